use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Value, json};

use super::*;
use cluster::{cache::Narrow, objects::OwnSlice};
use model::{Conditions, EndpointPort, Protocol, ServicePort, SliceEndpoint, TrafficPolicy};

const DERIVED: &str = "derived-eoric1rhri";

fn key() -> ServiceKey {
    ServiceKey::new("ns", "svc")
}

pub(crate) fn mk_port(name: &str, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol: Protocol::Tcp, port, app_protocol: None }
}

pub(crate) fn mk_service() -> ClusterSetService {
    ClusterSetService {
        cluster_selection: None,
        selection_conflict: None,
        service_type: ServiceType::ClusterSetIp,
        ports: vec![mk_port("http", 80), mk_port("admin", 81)],
        session_affinity: SessionAffinity::None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        traffic_distribution: None,
        ip_families: vec![IpFamily::V4],
        other_families: vec![],
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        clusters: [("there".parse().unwrap(), vec![])].into(),
        conflicts: vec![],
    }
}

type Change = (&'static str, fn(&mut ClusterSetService));

/// Changes of each property of a service.
const CHANGES: &[Change] = &[
    ("port", |s| s.ports[0].port = 8000),
    ("port name", |s| s.ports[0].name = "web".into()),
    ("protocol", |s| s.ports[0].protocol = Protocol::Udp),
    ("app protocol", |s| s.ports[0].app_protocol = Some("kubernetes.io/h2c".into())),
    ("one unnamed port", |s| s.ports = vec![mk_port("", 80)]),
    ("affinity", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: None }),
    ("affinity's timeout", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: Some(60) }),
    ("traffic policy", |s| s.internal_traffic_policy = TrafficPolicy::Local),
    ("traffic distribution", |s| s.traffic_distribution = Some("PreferClose".into())),
    ("family", |s| s.ip_families = vec![IpFamily::V6]),
    ("both families", |s| s.ip_families = vec![IpFamily::V4, IpFamily::V6]),
];

fn changed(change: &Change) -> ClusterSetService {
    let mut service = mk_service();
    change.1(&mut service);
    service
}

/// A derived Service as the cache has it after the API server has filled in its defaults.
fn cached(mut object: core::Service) -> objects::Service {
    let spec = object.spec.as_mut().unwrap();
    let families = spec.ip_families.get_or_insert_with(|| vec!["IPv4".to_owned(), "IPv6".to_owned()]);
    let ip = |family: &String| if family == "IPv4" { "10.96.0.7" } else { "fd00::7" }.to_owned();
    spec.cluster_ips = Some(families.iter().map(ip).collect());
    spec.cluster_ip = spec.cluster_ips.as_ref().map(|ips| ips[0].clone());
    objects::Service::narrow(object).unwrap()
}

/// A ServiceImport as the cache has it after the API server accepted it from our field manager.
fn cached_import(mut import: ServiceImport) -> objects::ServiceImport {
    let owned = |pairs: &Option<BTreeMap<String, String>>| -> Value {
        pairs
            .iter()
            .flatten()
            .map(|(name, _)| (format!("f:{name}"), json!({})))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let metadata = &mut import.metadata;
    let fields =
        json!({"f:metadata": {"f:labels": owned(&metadata.labels), "f:annotations": owned(&metadata.annotations)}});
    metadata.managed_fields = Some(vec![ManagedFieldsEntry {
        manager: Some(names::FieldManager::Import.as_str().to_owned()),
        operation: Some("Apply".to_owned()),
        fields_v1: Some(FieldsV1(fields)),
        ..ManagedFieldsEntry::default()
    }]);
    objects::ServiceImport::narrow(import).unwrap()
}

#[test]
fn a_complete_derived_service_is_not_written_again() {
    let all = CHANGES.iter().map(|change| (change.0, changed(change))).chain([("nothing", mk_service())]);
    for (name, service) in all {
        assert!(
            derived_service_matches(&cached(derived_service(&key(), DERIVED, &service)), &key(), &service),
            "{name}"
        );
    }
}

#[test]
fn a_derived_service_that_differs_is_written() {
    let before = cached(derived_service(&key(), DERIVED, &mk_service()));
    for change in CHANGES {
        assert!(!derived_service_matches(&before, &key(), &changed(change)), "{}", change.0);
    }
    let one = changed(&("", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: Some(60) }));
    let other = changed(&("", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: None }));
    assert!(!derived_service_matches(&cached(derived_service(&key(), DERIVED, &one)), &key(), &other));
    let mut selecting = derived_service(&key(), DERIVED, &mk_service());
    selecting.spec.as_mut().unwrap().selector = Some([("app".to_owned(), "a".to_owned())].into());
    assert!(!derived_service_matches(&cached(selecting), &key(), &mk_service()));
    let mut foreign = derived_service(&key(), DERIVED, &mk_service());
    foreign.metadata.labels = None;
    assert!(!derived_service_matches(&cached(foreign), &key(), &mk_service()));
}

#[test]
fn the_default_timeout_and_the_order_of_ports_are_no_difference() {
    let explicit = changed(&("", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: Some(10_800) }));
    let default = changed(&("", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: None }));
    assert!(derived_service_matches(&cached(derived_service(&key(), DERIVED, &explicit)), &key(), &default));
    let reordered = changed(&("", |s| s.ports.reverse()));
    assert!(derived_service_matches(&cached(derived_service(&key(), DERIVED, &mk_service())), &key(), &reordered));
}

#[test]
fn the_derived_service_has_no_selector_and_names_no_family_if_it_prefers_both() {
    let spec = derived_service(&key(), DERIVED, &changed(&CHANGES[10])).spec.unwrap();
    assert_eq!(
        (spec.ip_family_policy.as_deref(), spec.ip_families, spec.selector),
        (Some("PreferDualStack"), None, None)
    );
    let spec = derived_service(&key(), DERIVED, &mk_service()).spec.unwrap();
    assert_eq!(spec.ip_family_policy.as_deref(), Some("SingleStack"));
    assert_eq!(spec.ports.unwrap()[0].target_port, Some(IntOrString::Int(80)));
}

#[test]
fn a_complete_import_is_not_written_again_and_any_difference_is() {
    let ips = ["10.96.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
    let before = cached_import(service_import(&key(), Some(DERIVED), &mk_service(), &ips));
    let more: &[Change] = &[
        ("order of ports", |s| s.ports.reverse()),
        ("type", |s| s.service_type = ServiceType::Headless),
        ("label", |s| s.labels = [("a".to_owned(), "b".to_owned())].into()),
        ("annotation", |s| s.annotations = [("a".to_owned(), "b".to_owned())].into()),
    ];
    for change in CHANGES.iter().chain(more) {
        let wanted = service_import(&key(), Some(DERIVED), &changed(change), &ips);
        assert!(!service_import_matches(&before, &wanted), "{}", change.0);
        assert!(service_import_matches(&cached_import(wanted.clone()), &wanted), "{}", change.0);
    }
    assert!(!service_import_matches(&before, &service_import(&key(), Some(DERIVED), &mk_service(), &[])), "ips");
}

#[test]
fn a_label_that_is_no_longer_exported_is_a_difference_and_a_foreign_label_is_not() {
    let labelled = changed(&("", |s| s.labels = [("a".to_owned(), "b".to_owned())].into()));
    let there = cached_import(service_import(&key(), Some(DERIVED), &labelled, &[]));
    assert!(!service_import_matches(&there, &service_import(&key(), Some(DERIVED), &mk_service(), &[])));

    let wanted = service_import(&key(), Some(DERIVED), &mk_service(), &[]);
    let mut object = wanted.clone();
    object.metadata.managed_fields = None;
    let there = cached_import(wanted.clone());
    object.metadata.labels.as_mut().unwrap().insert("theirs".to_owned(), "x".to_owned());
    assert!(service_import_matches(&there, &wanted));
}

#[test]
fn reserved_names_are_not_exported() {
    let reserved = [
        (names::LABEL_MANAGED_BY, "somebody"),
        (names::ANNOTATION_SHARE, "true"),
        (names::LABEL_SERVICE_NAME, "other"),
        (names::ANNOTATION_DERIVED_SERVICE, "other"),
        ("team", "a"),
    ];
    let pairs: BTreeMap<_, _> = reserved.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let mut service = mk_service();
    service.labels.clone_from(&pairs);
    service.annotations = pairs;
    let import = service_import(&key(), Some(DERIVED), &service, &[]);
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    assert_eq!(import.metadata.labels, Some(pairs(&[(names::LABEL_MANAGED_BY, names::MANAGED_BY), ("team", "a")])));
    let annotations = pairs(&[(names::ANNOTATION_DERIVED_SERVICE, DERIVED), ("team", "a")]);
    assert_eq!(import.metadata.annotations, Some(annotations));
}

#[test]
fn ips_come_in_the_order_of_the_families() {
    let ips = ["10.96.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
    for (families, expected) in [
        (vec![IpFamily::V4, IpFamily::V6], vec!["10.96.0.7", "fd00::7"]),
        (vec![IpFamily::V6, IpFamily::V4], vec!["fd00::7", "10.96.0.7"]),
        (vec![IpFamily::V6], vec!["fd00::7"]),
    ] {
        let mut service = mk_service();
        service.ip_families = families;
        assert_eq!(service_import(&key(), Some(DERIVED), &service, &ips).spec.ips, expected);
    }
    let mut service = mk_service();
    service.ip_families = vec![IpFamily::V6, IpFamily::V4];
    let import = service_import(&key(), Some(DERIVED), &service, &ips[..1]);
    assert_eq!((import.spec.ips, import.spec.ip_families), (vec!["10.96.0.7".to_owned()], vec!["IPv4".to_owned()]));
}

#[test]
fn an_import_without_a_usable_family_reports_that() {
    let status = |service: &ClusterSetService, ips: &[IpAddr]| {
        let import = service_import(&key(), Some(DERIVED), service, ips);
        let status = status_of(&ServiceImportStatus::default(), service, &import, None, &[], 0);
        assert_eq!(status_of(&status, service, &import, None, &[], 99), status, "the time alone is no difference");
        let slices = status.endpoint_slice_objects.clone().unwrap();
        (status.conditions[0].status.clone(), status.conditions[0].reason.clone(), slices.as_str().to_owned())
    };
    let said = |status: &str, reason: &str, slices: &str| (status.to_owned(), reason.to_owned(), slices.to_owned());
    assert_eq!(status(&mk_service(), &[]), said("False", "IPFamilyNotSupported", "Absent"));
    assert_eq!(status(&mk_service(), &["10.96.0.7".parse().unwrap()]), said("True", "Ready", "Present"));
    let headless = changed(&("", |s| s.service_type = ServiceType::Headless));
    assert_eq!(status(&headless, &[]), said("True", "Ready", "Present"));
    let unserved = ClusterSetService { ip_families: vec![], ..headless };
    assert_eq!(status(&unserved, &[]), said("False", "IPFamilyNotSupported", "Absent"));
}

fn status_of(
    current: &ServiceImportStatus,
    service: &ClusterSetService,
    import: &ServiceImport,
    pending: Option<&str>,
    silent: &[(&str, u64)],
    now: i64,
) -> ServiceImportStatus {
    let silent = silent.iter().map(|(cluster, since)| (cluster.parse().unwrap(), *since)).collect();
    let facts = ImportFacts {
        pending,
        silent: Some(&silent),
        out_of_reach: &BTreeMap::new(),
        slices: pending.is_none(),
        change: None,
        selection: None,
        unreachable: &BTreeMap::new(),
        excluded: &[],
    };
    let current: Vec<_> = current.conditions.iter().map(SharedCondition::from).collect();
    import_status(&current, service, import, &facts, Some(3), Timestamp::from_second(now).unwrap())
}

#[test]
fn clusters_that_no_family_here_reaches_are_named() {
    let out_of_reach: OutOfReach = [("blue", vec![IpFamily::V4]), ("red", vec![IpFamily::V6, IpFamily::V4])]
        .map(|(cluster, families)| (cluster.parse().unwrap(), families.into_iter().collect()))
        .into();
    let message = |ips: &[IpAddr]| {
        let import = service_import(&key(), Some(DERIVED), &mk_service(), ips);
        let facts = ImportFacts {
            pending: None,
            silent: None,
            out_of_reach: &out_of_reach,
            slices: true,
            change: None,
            selection: None,
            unreachable: &BTreeMap::new(),
            excluded: &[],
        };
        let status = import_status(&[], &mk_service(), &import, &facts, None, Timestamp::UNIX_EPOCH);
        status.conditions[0].message.clone()
    };
    assert_eq!(
        message(&["10.96.0.7".parse().unwrap()]),
        "The service can be used in this cluster, but not its endpoints in \"blue\" (IPv4) and \"red\" (IPv4, IPv6), which \
         have none of the IP families that are served here."
    );
    let refused = message(&[]);
    assert!(refused.starts_with("This cluster supports none of the IP families"), "{refused}");
    assert!(refused.contains(": \"blue\" (IPv4) and") && refused.contains("load balancer"), "{refused}");
}

#[test]
fn a_pending_import_says_what_it_waits_for_and_promises_no_slices() {
    let import = service_import(&key(), Some(DERIVED), &mk_service(), &[]);
    let status = status_of(&ServiceImportStatus::default(), &mk_service(), &import, Some("denied."), &[], 1);
    let ready = &status.conditions[0];
    assert_eq!((&*ready.status, &*ready.reason, &*ready.message), ("False", "Pending", "denied."));
    assert_eq!(ready.observed_generation, Some(3));
    assert_eq!(status.endpoint_slice_objects, Some(EndpointSliceObjects::Absent));
}

#[test]
fn silent_clusters_are_named_while_they_are_silent() {
    let import = service_import(&key(), Some(DERIVED), &mk_service(), &["10.96.0.7".parse().unwrap()]);
    let status = |current: &ServiceImportStatus, silent: &[(&str, u64)], now| {
        status_of(current, &mk_service(), &import, None, silent, now)
    };
    let fresh = status(&ServiceImportStatus::default(), &[], 10);
    assert_eq!(fresh.conditions.len(), 1);
    let stale = status(&fresh, &[("blue", 1_700_000_000_000)], 20);
    assert_eq!((&*stale.conditions[0].status, stale.conditions[0].last_transition_time.0.as_second()), ("True", 10));
    let said = &stale.conditions[1];
    assert_eq!((&*said.type_, &*said.status, &*said.reason), ("Stale", "True", "ClusterSilent"));
    assert!(said.message.contains("\"blue\" (noticed at 2023-11-14T22:13:20Z)"), "{}", said.message);
    assert!(said.message.contains("cloudmap-mcs forget"), "{}", said.message);
    let more = status(&stale, &[("blue", 1_700_000_000_000), ("red", 1_700_000_100_000)], 30);
    assert_eq!(more.conditions[1].last_transition_time.0.as_second(), 20, "no transition");
    assert_eq!(status(&more, &[], 40), fresh);
}

/// A new leader has not waited for long enough to notice that a cluster is silent.
#[test]
fn what_was_said_of_silence_stays_while_it_is_not_known() {
    let import = service_import(&key(), Some(DERIVED), &mk_service(), &["10.96.0.7".parse().unwrap()]);
    let silent = [("blue", 1_700_000_000_000)];
    let stale = status_of(&ServiceImportStatus::default(), &mk_service(), &import, None, &silent, 10);
    let current: Vec<_> = stale.conditions.iter().map(SharedCondition::from).collect();
    let facts = ImportFacts {
        pending: None,
        silent: None,
        out_of_reach: &BTreeMap::new(),
        slices: true,
        change: None,
        selection: None,
        unreachable: &BTreeMap::new(),
        excluded: &[],
    };
    let now = Timestamp::from_second(20).unwrap();
    assert_eq!(import_status(&current, &mk_service(), &import, &facts, Some(3), now), stale);
}

#[test]
fn malformed_labels_of_another_cluster_do_not_prevent_the_import() {
    let mut service = mk_service();
    service.labels = [("a b".to_owned(), "x".to_owned()), ("a".to_owned(), "x y".to_owned())].into();
    service.annotations = [("a b".to_owned(), "x".to_owned()), ("note".to_owned(), "x y".to_owned())].into();
    let metadata = service_import(&key(), Some(DERIVED), &service, &[]).metadata;
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(metadata.labels, Some([pair(names::LABEL_MANAGED_BY, names::MANAGED_BY)].into()));
    let derived = pair(names::ANNOTATION_DERIVED_SERVICE, DERIVED);
    assert_eq!(metadata.annotations, Some([derived, pair("note", "x y")].into()));
}

#[test]
fn an_unnamed_port_has_a_name_only_in_the_derived_service() {
    let service = changed(&("", |s| s.ports = vec![mk_port("", 80), mk_port("admin", 81)]));
    let ports = derived_service(&key(), DERIVED, &service).spec.unwrap().ports.unwrap();
    let names: Vec<_> = ports.iter().map(|port| port.name.as_deref()).collect();
    assert_eq!(names, [Some(UNNAMED_PORT), Some("admin")], "the API server refuses one without a name beside others");
    let alone = changed(&("", |s| s.ports = vec![mk_port("", 80)]));
    let before = derived_service(&key(), DERIVED, &alone).spec.unwrap().ports.unwrap();
    assert_eq!(before[..], ports[..1], "another port changes nothing about the first one");
    assert_eq!(service_import(&key(), Some(DERIVED), &service, &[]).spec.ports[0].name, None);
}

#[test]
fn an_endpoint_slice_reads_back_as_it_was_written() {
    let mut slice = Slice {
        name: "svc-1-0".into(),
        family: IpFamily::V4,
        ports: [
            EndpointPort { name: "".into(), protocol: Protocol::Udp, port: 53, app_protocol: None },
            EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 80, app_protocol: Some("h2c".into()) },
        ]
        .into(),
        endpoints: vec![SliceEndpoint {
            address: "10.0.0.1".parse().unwrap(),
            conditions: Conditions { ready: false, serving: true, terminating: true },
            hostname: Some("web-0".into()),
            zone: Some("a".into()),
            node: Some("node-1".into()),
            hints: Hints { zone: Some("a".into()), node: Some("n".into()) },
        }],
    };
    let source = "there".parse().unwrap();
    let narrow = |slice: &Slice, derived| OwnSlice::narrow(endpoint_slice(&key(), derived, &source, slice)).unwrap();
    let written = narrow(&slice, Some(DERIVED));
    let mut object = endpoint_slice(&key(), Some(DERIVED), &source, &slice);
    object.metadata.uid = Some("assigned".to_owned());
    let read = OwnSlice::narrow(object).unwrap();
    assert!(read.has_same_content(&written));
    assert_eq!(read.service.as_deref(), Some(DERIVED));
    assert!(!read.has_same_content(&narrow(&slice, None)));
    let edits: [fn(&mut SliceEndpoint); 7] = [
        |e| e.address = "10.0.0.2".parse().unwrap(),
        |e| e.conditions.ready = true,
        |e| e.hostname = None,
        |e| e.zone = None,
        |e| e.node = None,
        |e| e.hints.zone = None,
        |e| e.hints.node = None,
    ];
    for edit in edits {
        let before = slice.clone();
        edit(&mut slice.endpoints[0]);
        assert!(!read.has_same_content(&narrow(&slice, Some(DERIVED))), "{slice:?}");
        slice = before;
    }
}
