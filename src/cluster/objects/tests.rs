use serde_json::json;

use super::*;
use crate::cache::Narrow;
use api::ServiceImportStatus;
use model::{Conditions, IpFamily, Protocol, SessionAffinity, TrafficPolicy};

fn narrow<T: Narrow>(object: serde_json::Value) -> Option<T>
where
    T::Kind: serde::de::DeserializeOwned,
{
    T::narrow(serde_json::from_value(object).unwrap())
}

#[test]
fn a_service_keeps_what_an_export_needs() {
    let service: Service = narrow(json!({
        "metadata": {
            "namespace": "ns", "name": "web", "uid": "u", "creationTimestamp": "1970-01-01T00:01:00Z",
            "annotations": {"cloudmap-mcs/service": "web2", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "spec": {
            "type": "NodePort",
            "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack",
            "ports": [
                {"name": "http", "port": 80, "protocol": "TCP", "appProtocol": "http", "targetPort": "web"},
                {"name": "dns", "port": 53, "protocol": "UDP"},
            ],
            "selector": {"app": "web"},
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "internalTrafficPolicy": "Local", "trafficDistribution": "PreferClose",
            "publishNotReadyAddresses": true,
        },
    }))
    .unwrap();
    assert_eq!((service.created, service.headless, service.has_selector, service.managed), (60, false, true, false));
    assert!(service.kind.can_be_exported());
    assert_eq!(*service.cluster_ips, ["10.0.0.1".parse::<IpAddr>().unwrap(), "fd00::1".parse().unwrap()]);
    assert_eq!(*service.ip_families, [IpFamily::V4, IpFamily::V6]);
    assert_eq!(service.ports[0].app_protocol.as_deref(), Some("http"));
    assert_eq!((service.ports[1].protocol, service.ports[1].port), (Protocol::Udp, 53));
    assert_eq!(service.session_affinity, SessionAffinity::ClientIp { timeout: Some(60) });
    assert_eq!(service.internal_traffic_policy, TrafficPolicy::Local);
    assert_eq!(service.traffic_distribution.as_deref(), Some("PreferClose"));
    assert!(service.publish_not_ready_addresses);
    assert_eq!(service.annotations.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["cloudmap-mcs/service"]);
}

#[test]
fn headless_and_external_services_are_distinguished() {
    let headless: Service = narrow(
        json!({"metadata": {"namespace": "ns", "name": "a"}, "spec": {"clusterIP": "None", "clusterIPs": ["None"]}}),
    )
    .unwrap();
    assert!(headless.headless && headless.cluster_ips.is_empty() && headless.kind.can_be_exported());
    let external: Service = narrow(
        json!({"metadata": {"namespace": "ns", "name": "a"}, "spec": {"type": "ExternalName", "externalName": "x.example"}}),
    )
    .unwrap();
    assert!(!external.headless && !external.kind.can_be_exported());
    let novel: Service =
        narrow(json!({"metadata": {"namespace": "ns", "name": "a"}, "spec": {"type": "Tunnel"}})).unwrap();
    assert_eq!(novel.kind, ServiceKind::Other("Tunnel".into()));
}

#[allow(clippy::needless_pass_by_value, reason = "reads better with json!")]
fn slice(endpoints: serde_json::Value) -> serde_json::Value {
    json!({
        "metadata": {
            "namespace": "ns", "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "b", "port": 81, "protocol": "TCP"}, {"name": "a", "port": 80}, {"name": "all"}],
        "endpoints": endpoints,
    })
}

#[test]
fn absent_conditions_mean_ready_and_serving_as_in_the_api() {
    let slice: SourceSlice = narrow(slice(json!([
        {"addresses": ["10.0.0.1"]},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
        {"addresses": ["10.0.0.3"], "conditions": {"ready": false, "serving": true, "terminating": true}},
    ])))
    .unwrap();
    let conditions: Vec<Conditions> = slice.endpoints.iter().map(|endpoint| endpoint.conditions).collect();
    let unready = Conditions { ready: false, serving: true, terminating: false };
    let draining = Conditions { ready: false, serving: true, terminating: true };
    assert_eq!(conditions, [Conditions::READY, unready, draining]);
}

#[test]
fn an_endpoint_keeps_its_place_and_its_pod() {
    let slice: SourceSlice = narrow(slice(json!([{
        "addresses": ["10.0.0.1", "not-an-address"],
        "hostname": "web-0", "nodeName": "node-1", "zone": "eu-west-1a",
        "hints": {"forZones": [{"name": "eu-west-1b"}], "forNodes": [{"name": "node-2"}]},
        "targetRef": {"kind": "Pod", "namespace": "ns", "name": "web-0", "uid": "p"},
    }])))
    .unwrap();
    let endpoint = &slice.endpoints[0];
    assert_eq!((endpoint.address, endpoint.further_addresses), (Some([10, 0, 0, 1].into()), true));
    assert_eq!((endpoint.hostname.as_deref(), endpoint.node.as_deref()), (Some("web-0"), Some("node-1")));
    assert_eq!((endpoint.zone.as_deref(), &endpoint.hints), (Some("eu-west-1a"), &None));
    assert_eq!(endpoint.target, TargetId::new("p"));
    assert_eq!(slice.service.as_deref(), Some("web"));
    let ports: Vec<(&str, u16)> = slice.ports.iter().map(|port| (&*port.name, port.port)).collect();
    assert_eq!(ports, [("a", 80), ("b", 81)], "sorted, and without the port that has no number");
}

/// There are tens of thousands, and caches know each by its key.
#[test]
fn a_slice_of_others_keeps_no_uid_and_its_names_are_in_memory_once() {
    let mut object = slice(json!([]));
    object["metadata"]["uid"] = "u".into();
    let object: <SourceSlice as Narrow>::Kind = serde_json::from_value(object).unwrap();
    let key = <SourceSlice as Narrow>::key(&object.metadata).unwrap();
    let slice = <SourceSlice as Narrow>::narrow(object).unwrap();
    assert!(Arc::ptr_eq(&key.namespace, &slice.key.namespace) && Arc::ptr_eq(&key.name, &slice.key.name));
    assert_eq!(*slice.uid, *"");
}

#[test]
fn hints_are_kept_of_own_slices_only() {
    let mut object = slice(json!([{
        "addresses": ["10.0.0.1"],
        "hints": {"forZones": [{"name": "eu-west-1b"}], "forNodes": [{"name": "node-2"}]},
    }]));
    object["metadata"]["labels"][names::LABEL_SLICE_MANAGED_BY] = names::MANAGED_BY.into();
    let slice: OwnSlice = narrow(object).unwrap();
    let hints = slice.endpoints[0].hints.as_ref().unwrap();
    assert_eq!((&*hints.zones, &*hints.nodes), (&["eu-west-1b".into()][..], &["node-2".into()][..]));
}

#[test]
fn different_uids_are_different_objects_and_an_empty_uid_is_none() {
    let uuid = "6d7f1c9e-0f5e-4a53-9a8c-0d7c1a1f2b3c";
    let uids = [uuid, "6d7f1c9e-0f5e-4a53-9a8c-0d7c1a1f2b3d", &uuid.replace('-', ""), "web-0", "web-1"];
    let ids: std::collections::BTreeSet<_> = uids.into_iter().map(|uid| TargetId::new(uid).unwrap()).collect();
    assert_eq!(ids.len(), uids.len());
    assert_eq!(TargetId::new(""), None);
}

#[test]
fn host_name_slices_have_no_addresses() {
    let mut object = slice(json!([{"addresses": ["db.example.com"]}]));
    object["addressType"] = "FQDN".into();
    let slice: SourceSlice = narrow(object).unwrap();
    assert_eq!(slice.address_type, AddressType::Unsupported);
    assert_eq!(slice.endpoints[0].address, None);
}

#[test]
fn own_slices_and_all_others_never_mix() {
    let foreign = slice(json!([]));
    let mut own = foreign.clone();
    own["metadata"]["labels"][names::LABEL_SLICE_MANAGED_BY] = names::MANAGED_BY.into();
    assert!(narrow::<SourceSlice>(foreign.clone()).is_some() && narrow::<OwnSlice>(foreign).is_none());
    assert!(narrow::<SourceSlice>(own.clone()).is_none() && narrow::<OwnSlice>(own).is_some());
}

#[test]
fn what_many_endpoints_have_in_common_is_shared_between_slices() {
    let read = || {
        let object = serde_json::from_value(slice(json!([{"addresses": ["10.0.0.1"], "zone": "z"}]))).unwrap();
        SourceSlice::narrow(object).unwrap()
    };
    let (one, other) = (read(), read());
    assert!(Arc::ptr_eq(&one.ports, &other.ports));
    assert!(Arc::ptr_eq(&one.endpoints[0].about, &other.endpoints[0].about));
    assert!(size_of::<Endpoint>() <= 48, "{} bytes", size_of::<Endpoint>());
}

#[test]
fn an_import_distinguishes_what_this_project_applied_from_what_others_added() {
    let import: ServiceImport = narrow(json!({
        "metadata": {
            "namespace": "ns", "name": "web", "uid": "u",
            "labels": {"cloudmap-mcs/managed-by": "cloudmap-mcs", "team": "a", "mine": "b"},
            "annotations": {"multicluster.kubernetes.io/derived-service": "derived-x"},
            "managedFields": [
                {"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:metadata": {"f:labels": {"f:mine": {}}}}},
                {"manager": "cloudmap-mcs-import", "operation": "Apply", "fieldsType": "FieldsV1",
                 "fieldsV1": {"f:metadata": {
                    "f:labels": {"f:cloudmap-mcs/managed-by": {}, "f:team": {}},
                    "f:annotations": {"f:multicluster.kubernetes.io/derived-service": {}}}}},
            ],
        },
        "spec": {"type": "ClusterSetIP", "ports": [{"port": 80, "protocol": "TCP"}], "ips": ["10.0.0.1"]},
        "status": {"clusters": [{"cluster": "c1"}]},
    }))
    .unwrap();
    assert!(import.managed);
    assert_eq!(import.labels.iter().map(|(name, _)| name).collect::<Vec<_>>(), [names::LABEL_MANAGED_BY, "team"]);
    assert_eq!(import.annotations.get(names::ANNOTATION_DERIVED_SERVICE), Some("derived-x"));
    assert_eq!((import.spec.ports.len(), import.status.clusters.len()), (1, 1));
}

#[test]
fn a_foreign_import_is_not_managed() {
    let import: ServiceImport =
        narrow(json!({"metadata": {"namespace": "ns", "name": "web", "labels": {"team": "a"}}})).unwrap();
    assert!(!import.managed && import.labels.is_empty());
}

#[test]
fn an_export_keeps_its_age_and_its_conditions() {
    let export: ServiceExport = narrow(json!({
        "metadata": {
            "namespace": "ns", "name": "web", "uid": "u", "generation": 3, "creationTimestamp": "1970-01-01T00:00:07Z",
            "deletionTimestamp": "1970-01-01T00:00:09Z",
            "finalizers": ["example.com/hold", "multicluster.k8s.aws/service-export-finalizer"],
        },
        "spec": {"exportedLabels": {"team": "a"}},
        "status": {"conditions": [{
            "type": "Valid", "status": "True", "reason": "Valid", "message": "", "lastTransitionTime": "1970-01-01T00:00:08Z",
        }]},
    }))
    .unwrap();
    assert_eq!((export.created, export.generation, export.deleting), (7, Some(3), true));
    assert_eq!((export.exported_labels["team"].as_str(), export.conditions.len()), ("a", 1));
    assert_eq!(export.aws_mcs_finalizer, Some(1));
}

#[test]
fn only_properties_that_something_reads_are_kept() {
    let property =
        |name, value| narrow::<ClusterProperty>(json!({"metadata": {"name": name}, "spec": {"value": value}}));
    for name in ["cluster.clusterset.k8s.io", "clusterset.k8s.io", "region.example.com"] {
        assert!(property(name, "v").is_some(), "{name}");
    }
    assert!(property("cluster.clusterset.k8s.io", "a b").is_some(), "it is reported");
    assert!(property("region.example.com", "a b").is_none(), "no selector can match it");
}

#[test]
fn a_terminating_namespace_is_recognised() {
    let namespace: Namespace =
        narrow(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns", "deletionTimestamp": "1970-01-01T00:00:07Z"}})).unwrap();
    assert!(namespace.terminating);
}

#[test]
fn an_ingress_is_kept_only_with_annotations_that_this_project_reads() {
    let ingress = |annotation: &str| {
        narrow::<Ingress>(json!({
            "metadata": {"namespace": "ns", "name": "web", "uid": "u", "annotations": {annotation: "x"}},
            "spec": {"rules": [{"host": "a.example.org"}, {}], "tls": [{"hosts": ["b.example.org", "a.example.org"]}]},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "lb.example.org"}]}},
        }))
    };
    assert_eq!(ingress("nginx.ingress.kubernetes.io/rewrite-target"), None);
    let kept = ingress("external-dns.alpha.kubernetes.io/hostname").unwrap();
    assert_eq!(kept.hosts.iter().map(|host| &**host).collect::<Vec<_>>(), ["a.example.org", "b.example.org"]);
    assert_eq!(kept.load_balancer.iter().map(|text| &**text).collect::<Vec<_>>(), ["192.0.2.1", "lb.example.org"]);
}

#[test]
fn a_service_keeps_its_external_addresses() {
    let service: Service = narrow(json!({
        "metadata": {"namespace": "ns", "name": "web"},
        "spec": {"type": "LoadBalancer", "externalIPs": ["198.51.100.7"], "externalName": "db.example.org"},
        "status": {"loadBalancer": {"ingress": [{"hostname": "lb.example.org"}, {"ip": "192.0.2.1"}]}},
    }))
    .unwrap();
    assert_eq!(service.external_ips[..], ["198.51.100.7".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(service.load_balancer.iter().map(|text| &**text).collect::<Vec<_>>(), ["lb.example.org", "192.0.2.1"]);
    assert_eq!(service.external_name.as_deref(), Some("db.example.org"));
}

/// Every replica would keep this for every object whose author likes: the API server accepts 256 KiB.
#[test]
fn the_size_replaces_an_annotation_that_is_too_large() {
    let annotations = |size: usize| {
        let value = |name: &str| (name.to_owned(), "x".repeat(size));
        Some([value("cloudmap-mcs/attributes"), value("example.com/other")].into())
    };
    for (size, kept) in [(MAX_ANNOTATION, MAX_ANNOTATION), (200_000, 46)] {
        let metadata = ObjectMeta { annotations: annotations(size), ..ObjectMeta::default() };
        let known = known_annotations(&metadata);
        assert_eq!(known.iter().map(|(_, value)| value.len()).collect::<Vec<_>>(), [kept]);
    }
    let metadata = ObjectMeta { annotations: annotations(200_000), ..ObjectMeta::default() };
    let known = known_annotations(&metadata);
    assert_eq!(known.get("cloudmap-mcs/attributes"), Some("<too large: 200000 bytes where 65536 are read>"));
}

#[test]
fn all_annotations_of_an_object_together_are_bounded() {
    let annotations = (0..1_000).map(|n| (format!("cloudmap-mcs/{n:03}"), "x".repeat(2_000))).collect();
    let known = known_annotations(&ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() });
    let bytes: usize = known.iter().map(|(_, value)| value.len()).sum();
    assert!(bytes <= MAX_ANNOTATIONS + 100 * MOST_ANNOTATIONS, "{bytes}");
    assert_eq!(known.get("cloudmap-mcs/064").map(str::len), Some(2_000));
    assert!(known.get("cloudmap-mcs/070").unwrap().starts_with("<too large: 2000 bytes"));
}

/// The API server accepts more than a megabyte of hosts in one Ingress, and every replica would keep them.
#[test]
fn hosts_and_addresses_of_an_ingress_are_cut_and_it_says_so() {
    let ingress = |hosts: usize, length: usize| {
        let rules: Vec<_> = (0..hosts).map(|n| json!({"host": format!("{n:0length$}.example.org")})).collect();
        narrow::<Ingress>(json!({
            "metadata": {"namespace": "ns", "name": "web", "annotations": {"external-dns.kubernetes.io/ttl": "60"}},
            "spec": {"rules": rules},
            "status": {"loadBalancer": {"ingress": vec![json!({"ip": "192.0.2.1"}); 5_000]}},
        }))
        .unwrap()
    };
    let bytes = |ingress: &Ingress| ingress.hosts.iter().map(|host| host.len()).sum::<usize>();
    let few = ingress(500, 4);
    assert_eq!((few.hosts.len(), few.has_more_hosts), (500, false));
    for (hosts, length) in [(501, 4), (20_000, 4), (5_000, 200)] {
        let many = ingress(hosts, length);
        assert!(many.has_more_hosts && many.hosts.len() <= 500 && bytes(&many) <= 32 * 1024, "{hosts} of {length}");
        assert!(many.hosts.iter().next().unwrap().starts_with('0'), "the first ones, whoever reads them");
    }
    assert_eq!(few.load_balancer.len(), MAX_ADDRESSES);
}

/// Else the status of such an import would be written again and again, and nothing would change.
#[test]
fn lists_in_the_status_of_an_import_are_equal_in_any_order() {
    let status = |clusters: [&str; 2], types: [&str; 2]| {
        let condition = |type_| {
            json!({
                "type": type_, "status": "True", "reason": type_, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        let status = json!({
            "clusters": clusters.map(|cluster| json!({"cluster": cluster})), "conditions": types.map(condition),
        });
        ImportStatus::from(&serde_json::from_value::<ServiceImportStatus>(status).unwrap())
    };
    assert_eq!(status(["b", "a"], ["Stale", "Ready"]), status(["a", "b"], ["Ready", "Stale"]));
    assert!(status(["b", "a"], ["Stale", "Ready"]) != status(["a", "c"], ["Ready", "Stale"]));
}
