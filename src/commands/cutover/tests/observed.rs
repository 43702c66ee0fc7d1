//! What is observed of names, and how steps are written and watched.

use tokio::time::{Instant, advance};

use super::*;
use cloudmap::{ErrorKind, Operation, fake::Fault};

#[test]
fn pods_are_summed_up_by_the_one_that_is_worst() {
    let pod = |ready: &str, seconds: u64, gate: bool, going: bool| {
        let gates = if gate { json!([{"conditionType": "cloudmap-mcs/registered"}]) } else { json!([]) };
        let mut pod = json!({
            "metadata": {
                "name": "orders-5d4-x", "labels": {"app": "orders", "pod-template-hash": "5d4"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "orders-5d4", "uid": "u", "controller": true}],
            },
            "spec": {
                "readinessGates": gates, "terminationGracePeriodSeconds": 60,
                "containers": [
                    {"name": "orders", "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", format!("sleep {seconds}; true")]}}}},
                    {"name": "linger", "lifecycle": {"preStop": {"httpGet": {"port": 15020}}}},
                ],
                // It stops after the others, by itself.
                "initContainers": [{"name": "proxy", "restartPolicy": "Always"}],
            },
            "status": {"podIPs": [{"ip": "192.0.2.1"}], "conditions": [{"type": "Ready", "status": ready}]},
        });
        if going {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-24T10:00:00Z");
        }
        serde_json::from_value(pod).unwrap()
    };
    let mut evicted: k8s_openapi::api::core::v1::Pod = pod("False", 0, false, false);
    evicted.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    let all = [pod("True", 90, true, false), pod("False", 20, false, false), pod("True", 0, false, true), evicted];
    let (pods, labels) = summed(&all);
    assert_eq!((pods.ready, pods.unready, pods.gated, pods.grace), (1, 1, 1, 60));
    assert_eq!(pods.containers, stopping([("linger", 0, Some("httpGet")), ("orders", 20, Some("exec"))]));
    assert!(!pods.addresses.is_empty() && pods.addresses.iter().all(std::net::IpAddr::is_ipv4));
    assert_eq!(pods.workload.as_deref(), Some("deployment/orders"));
    assert_eq!(labels["app"], "orders");
    let (nothing, _) = summed(&[]);
    assert_eq!((nothing.stops_after(), nothing.grace), (0, 0));
}

#[test]
fn what_each_cluster_registered_is_told_from_tasks() {
    let pod = |id: &str, address: &str, cluster: &str, part: &[(&str, &str)]| {
        let attributes = [("AWS_INSTANCE_IPV4", address), ("CLOUDMAP_MCS_CLUSTER_UID", cluster)];
        instance(id, &[&attributes[..], part].concat())
    };
    let instances = vec![
        instance("task", &[("AWS_INSTANCE_IPV4", "192.0.2.1"), ("ECS_SERVICE_NAME", "orders")]),
        pod("a-1", "192.0.2.2", "a", &[]),
        pod("a-2", "192.0.2.3", "a", &[]),
        pod("b-1", "192.0.2.4", "b", &[("CLOUDMAP_MCS_PARTIAL", "true")]),
    ];
    let seen = there(mk_service(), &Discovery { instances, unhealthy: ["a-2".into()].into(), truncated: false });
    assert_eq!((seen.others.count(), seen.ill, seen.tasks), (1, 0, 1));
    let [a, b] = ["a", "b"].map(|uid| &seen.clusters[uid]);
    assert_eq!((a.addresses.len(), a.healthy.whole, a.healthy.partial), (2, 1, 0));
    assert_eq!((b.addresses.len(), b.healthy.whole, b.healthy.partial), (1, 0, 1));
}

/// Otherwise a hook of two minutes is called too short, and the patch replaces it.
#[test]
fn a_hook_sleeps_for_as_long_as_its_shell_says() {
    let slept = |command: Value| {
        let hook = json!({"preStop": {"exec": {"command": command}}});
        let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "orders", "lifecycle": hook}]}});
        summed(&[serde_json::from_value(pod).unwrap()]).0.stops_after()
    };
    for (arguments, seconds) in [
        ("110", 110),
        ("110s", 110),
        ("2m", 120),
        ("1.5m", 90),
        ("1m 30s", 90),
        ("1h", 3_600),
        ("1d", 86_400),
        ("20; true", 20),
        ("5 && kill -TERM 1", 5),
        ("2m\nkill 1", 120),
        ("infinity", 0),
        ("$SECONDS", 0),
    ] {
        assert_eq!(slept(json!(["sh", "-c", format!("sleep {arguments}")])), seconds, "{arguments}");
    }
    assert_eq!(slept(json!(["sleep", "1m", "30s"])), 90);
}

#[tokio::test]
async fn who_may_not_read_the_export_hears_that_and_not_that_there_are_no_tasks() {
    let api = FakeApi::default();
    api.refuse(404, "NotFound", "there is no Cutover");
    api.prepare(200, json!({"metadata": {"name": "orders"}}));
    api.refuse(403, "Forbidden", "exports are forbidden");
    let ecs = EcsReader::new(Ok(None), Choice::default());
    let mut observer = Observer::new(api.client(), Err("no credentials".to_owned()), ecs, Ok(Settings::default()));
    let situation = observer.observe(&ServiceKey::new("shop", "orders")).await;
    let said = [check(&situation, false).unwrap_err(), back::remark(&situation).unwrap()];
    assert!(said.iter().all(|said| said.contains("exports are forbidden")), "{said:?}");
    let findings = plan(&situation, &[]).findings;
    assert!(findings.iter().all(|finding| !finding.text.contains("nobody else")), "{findings:?}");
}

#[test]
fn the_counterpart_is_the_export_or_an_annotated_service() {
    let service = |annotations: Value| {
        serde_json::from_value(json!({
            "metadata": {"name": "orders", "annotations": annotations},
            "spec": {"ports": [{"port": 80, "targetPort": 8080}]},
        }))
        .unwrap()
    };
    let plain = service(json!({}));
    let (usual, one) = (Naming::PerNamespace, Naming::OneNamespace("all".into()));
    let nothing = Counterpart { port: Some(8080), ..Counterpart::default() };
    assert_eq!(counterpart(None, Some(&plain), &usual), nothing);
    let annotated =
        service(json!({"cloudmap.controller/namespace": "internal ", "cloudmap.controller/hostname": " orders"}));
    assert_eq!(counterpart(None, Some(&annotated), &one).target.unwrap().to_string(), "internal/orders");
    let export: ServiceExport = serde_json::from_value(json!({
        "metadata": {"name": "orders", "annotations": {"cloudmap-mcs/namespace": "internal", "cloudmap-mcs/service": "orders"}},
    }))
    .unwrap();
    let found = counterpart(Some(&export), Some(&plain), &one);
    assert!(!found.is_implied && found.target.unwrap().to_string() == "internal/orders");
    assert_eq!((found.kind, found.refused.unwrap().0.as_str()), (Some("ServiceExport"), "Pending"));
    // One annotation is enough. The flag --instances-namespace counts for the rest.
    for (annotation, value, expected) in [
        ("cloudmap-mcs/namespace", "other", Some(["other/orders", "other/orders.shop"])),
        ("cloudmap-mcs/service", "other", Some(["shop/other", "all/other"])),
        ("cloudmap-mcs/service", " other ", Some(["shop/other", "all/other"])),
        ("cloudmap-mcs/share", "true", Some(["shop/orders", "all/orders.shop"])),
        ("cloudmap-mcs/share-of-traffic", "25%", Some(["shop/orders", "all/orders.shop"])),
        ("cloudmap-mcs/share", "false", None),
    ] {
        let export: ServiceExport = serde_json::from_value(json!({
            "metadata": {"name": "orders", "namespace": "shop", "annotations": {annotation: value}},
        }))
        .unwrap();
        for (at, naming) in [&usual, &one].into_iter().enumerate() {
            let found = counterpart(Some(&export), Some(&plain), naming);
            let target = found.target.map(|target| target.to_string());
            assert_eq!(target.as_deref(), expected.map(|expected| expected[at]), "{annotation}");
            assert!(found.is_implied);
        }
    }
}

/// Otherwise `plan` would warn of the port of the metrics, and probe it.
#[test]
fn the_port_of_the_pods_is_the_one_that_the_export_registers() {
    let ports = json!([{"name": "metrics", "port": 9090}, {"name": "http", "port": 80, "targetPort": 8080}]);
    let service = json!({"metadata": {"name": "orders"}, "spec": {"ports": ports}});
    let service: k8s_openapi::api::core::v1::Service = serde_json::from_value(service).unwrap();
    for (annotations, expected) in [
        (json!({}), 9090),
        (json!({"cloudmap-mcs/instance-port": "http"}), 8080),
        (json!({"cloudmap-mcs/instance-port": " 80 "}), 8080),
        (json!({"cloudmap-mcs/instance-port": "gone"}), 9090),
    ] {
        let export = json!({"metadata": {"name": "orders", "annotations": annotations}});
        let export: ServiceExport = serde_json::from_value(export).unwrap();
        let found = counterpart(Some(&export), Some(&service), &Naming::PerNamespace);
        assert_eq!(found.port, Some(expected), "{annotations}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_in_a_dns_namespace_is_found_whatever_the_case_of_its_name() {
    let cloudmap = Fake::new();
    for (namespace, kind) in [("internal", NamespaceKind::DnsPrivate), ("api", NamespaceKind::Http)] {
        let id = cloudmap.registry().add_namespace(namespace, kind);
        cloudmap.registry().add_service(&id, "Orders", "ecs", "");
    }
    let ecs = EcsReader::new(Ok(None), Choice::default());
    let mut observer = Observer::new(FakeApi::default().client(), Ok(Arc::new(cloudmap)), ecs, Ok(Settings::default()));
    for (namespace, found) in [("internal", true), ("api", false)] {
        let target = Target { namespace: namespace.into(), service: "orders".into() };
        let registry = observer.registry(&target).await.unwrap();
        assert_eq!(registry.service.is_some(), found, "{namespace}");
    }
}

/// Otherwise 200 names take 100 minutes where PrivateLink lacks the endpoint of DiscoverInstances.
#[tokio::test(start_paused = true)]
async fn what_does_not_answer_is_asked_once_for_all_names() {
    use Operation::{DiscoverInstances, ListNamespaces, ListServices};
    let target = Target { namespace: "internal".into(), service: "orders".into() };
    let mk_observer = |cloudmap: &Fake| {
        let ecs = EcsReader::new(Ok(None), Choice::default());
        Observer::new(FakeApi::default().client(), Ok(Arc::new(cloudmap.clone())), ecs, Ok(Settings::default()))
    };
    for (operation, kind, asked) in [
        (ListNamespaces, ErrorKind::AccessDenied, 1),
        (ListServices, ErrorKind::AccessDenied, 1),
        (ListServices, ErrorKind::Unknown, 1),
        (DiscoverInstances, ErrorKind::Unknown, 1),
        (DiscoverInstances, ErrorKind::NoCredentials, 1),
        // The next one may be allowed.
        (DiscoverInstances, ErrorKind::AccessDenied, 2),
        // Throttling passes.
        (ListNamespaces, ErrorKind::Throttled, 2),
        (ListServices, ErrorKind::Throttled, 2),
        (DiscoverInstances, ErrorKind::Throttled, 2),
    ] {
        let cloudmap = Fake::new();
        let id = cloudmap.registry().add_namespace("internal", NamespaceKind::Http);
        cloudmap.registry().add_service(&id, "orders", "ecs", "");
        cloudmap.fault(operation, Fault::Refused(kind.clone()));
        let mut observer = mk_observer(&cloudmap);
        let why = observer.registry(&target).await.unwrap_err();
        let again = observer.registry(&target).await.err();
        assert_eq!(again, (asked == 1).then_some(why), "{operation:?} {kind:?}");
        assert_eq!(cloudmap.registry().count(operation), asked, "{operation:?} {kind:?}");
    }
    let (mut observer, begun) = (mk_observer(&Fake::new().with_call(Duration::from_mins(1))), Instant::now());
    for _ in 0..200 {
        let why = observer.registry(&target).await.unwrap_err();
        assert!(why.contains("ListNamespaces failed: no answer within 30 s") && why.contains("doctor"), "{why}");
    }
    assert!(begun.elapsed() < Duration::from_secs(31), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reading_that_takes_long_says_how_far_it_is() {
    let (mut progress, mut out) = (Progress::of(4), Vec::<u8>::new());
    for seconds in [1, 10, 1, 30] {
        advance(Duration::from_secs(seconds)).await;
        progress.one_more(&mut out).unwrap();
    }
    assert_eq!(String::from_utf8(out).unwrap(), "2 of 4 names are read\n");
}

#[tokio::test]
async fn all_exports_are_those_with_an_annotation_that_names_a_cloud_map_service_or_joins_one() {
    let api = FakeApi::default();
    let export = |name: &str, annotations: Value| json!({"metadata": {"name": name, "annotations": annotations}});
    let items = [
        export("both", json!({"cloudmap-mcs/namespace": "internal", "cloudmap-mcs/service": "orders"})),
        export("elsewhere", json!({"cloudmap-mcs/namespace": "internal"})),
        export("renamed", json!({"cloudmap-mcs/service": "orders"})),
        export("joins", json!({"cloudmap-mcs/share": "true"})),
        export("shares", json!({"cloudmap-mcs/share-of-traffic": "25%"})),
        export("plain", json!({})),
    ];
    let kind = "ServiceExportList";
    let list = json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": kind, "metadata": {}, "items": items});
    api.prepare(200, list);
    assert_eq!(exported(&api.client(), "shop").await.unwrap(), ["both", "elsewhere", "renamed", "joins", "shares"]);
}

#[tokio::test]
async fn what_is_written_is_printed_and_nothing_of_others_is_overwritten() {
    let api = FakeApi::default();
    let key = ServiceKey::new("shop", "orders");
    let spec = serde_json::from_value(json!({"steps": [5, 100]})).unwrap();
    api.refuse(404, "NotFound", "there is none");
    fulfil(&api.client(), &key, &Wish::Start(spec, Vec::new()), true).await.unwrap();
    assert!(api.requests().iter().all(|request| request.method == "GET"), "a dry run");
    api.prepare(200, serde_json::to_value(status::tests::sample("orders", "Shifting", 25, "Shifting", true)).unwrap());
    fulfil(&api.client(), &key, &Wish::Pause, false).await.unwrap();
    let patches: BTreeMap<_, _> = api
        .requests()
        .into_iter()
        .filter(|request| request.method == "PATCH")
        .map(|request| (request.path.clone(), request.query.clone()))
        .collect();
    let (path, query) = patches.first_key_value().unwrap();
    assert!(path.ends_with("/apis/cloudmap-mcs.io/v1alpha1/namespaces/shop/cutovers/orders"), "{path}");
    assert!(query.contains("fieldManager=cloudmap-mcs-cutover-hold") && !query.contains("force=true"), "{query}");
}

/// A script would take it for done.
#[tokio::test]
async fn to_resume_what_somebody_else_paused_fails() {
    let resumed = |paused: bool| async move {
        let api = FakeApi::default();
        let mut cutover = status::tests::sample("orders", "Paused", 25, "Paused", false);
        cutover.spec.paused = true;
        api.prepare(200, serde_json::to_value(&cutover).unwrap());
        cutover.spec.paused = paused;
        api.prepare(200, serde_json::to_value(&cutover).unwrap());
        fulfil(&api.client(), &ServiceKey::new("shop", "orders"), &Wish::Resume, false).await
    };
    assert!(resumed(false).await.is_ok());
    let why = resumed(true).await.unwrap_err().to_string();
    assert!(why.contains("spec.paused stays, because somebody else set it"), "{why}");
}

/// The other commands take `namespace/name`.
#[tokio::test]
async fn who_asks_for_the_status_of_a_name_that_is_not_there_is_told_the_flag_of_the_namespace() {
    let line = ["cloudmap-mcs", "cutover", "status", "shop/orders"];
    let Command::Cutover(command) = Cli::try_parse_from(line).unwrap().command else { panic!("not cutover") };
    let CutoverCommand::Status(args) = *command else { panic!("not status") };
    let api = FakeApi::default();
    let items: [Value; 0] = [];
    let list = json!({"apiVersion": "cloudmap-mcs.io/v1alpha1", "kind": "CutoverList", "metadata": {}, "items": items});
    api.prepare(200, list);
    let why = follow(&Api::namespaced(api.client(), "default"), "default", &args).await.unwrap_err().to_string();
    assert!(why.contains("default/shop/orders") && why.contains("--namespace"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn who_watches_goes_on_after_a_failed_list_and_hears_what_does_not_heal() {
    let refuse = |api: &FakeApi, code, reason| api.refuse(code, reason, "no");
    let list = |api: &FakeApi, phase| {
        let items = [status::tests::sample("orders", phase, 100, "Shifting", true)];
        let list =
            json!({"apiVersion": "cloudmap-mcs.io/v1alpha1", "kind": "CutoverList", "metadata": {}, "items": items});
        api.prepare(200, list);
    };
    let followed = |api: FakeApi, watch: bool| async move {
        let line = ["cloudmap-mcs", "cutover", "status", "--watch"].into_iter().take(if watch { 4 } else { 3 });
        let Command::Cutover(command) = Cli::try_parse_from(line).unwrap().command else { panic!("not cutover") };
        let CutoverCommand::Status(args) = *command else { panic!("not status") };
        let cutovers = Api::namespaced(api.client(), "shop");
        let is_well = follow(&cutovers, "shop", &args).await.is_ok();
        (is_well, api.requests().len())
    };
    let api = FakeApi::default();
    refuse(&api, 500, "InternalError");
    list(&api, "Shifting");
    refuse(&api, 403, "Forbidden");
    refuse(&api, 500, "InternalError");
    list(&api, "Finished");
    assert_eq!(followed(api, true).await, (true, 5));
    for (code, reason, watch) in [(500, "InternalError", false), (403, "Forbidden", true), (404, "NotFound", true)] {
        let api = FakeApi::default();
        refuse(&api, code, reason);
        assert_eq!(followed(api, watch).await, (false, 1), "{reason}");
    }
}
