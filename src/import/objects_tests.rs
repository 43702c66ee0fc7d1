use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{
        cache::Narrow,
        objects::{Interner, OwnSlice},
    },
    model::{Conditions, EndpointPort, Protocol, ServicePort, SliceEndpoint, TrafficPolicy},
};

fn key() -> ServiceKey {
    ServiceKey::new("ns", "svc")
}

fn mk_port(name: &str, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol: Protocol::Tcp, port, app_protocol: None }
}

fn mk_service() -> ClusterSetService {
    ClusterSetService {
        service_type: ServiceType::ClusterSetIp,
        ports: vec![mk_port("http", 80), mk_port("admin", 81)],
        session_affinity: SessionAffinity::None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        traffic_distribution: None,
        ip_families: vec![IpFamily::V4],
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        clusters: [("there".parse().unwrap(), vec![])].into(),
        conflicts: vec![],
    }
}

type Change = (&'static str, fn(&mut ClusterSetService));

/// Each property of a service, changed.
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

/// What the cache has of a derived Service after the API server filled in what it fills in.
fn cached(mut object: core::Service) -> objects::Service {
    let spec = object.spec.as_mut().unwrap();
    let families = spec.ip_families.get_or_insert_with(|| vec!["IPv4".to_owned(), "IPv6".to_owned()]);
    let ip = |family: &String| if family == "IPv4" { "10.96.0.7" } else { "fd00::7" }.to_owned();
    spec.cluster_ips = Some(families.iter().map(ip).collect());
    spec.cluster_ip = spec.cluster_ips.as_ref().map(|ips| ips[0].clone());
    objects::Service::narrow(object, &mut Interner::default()).unwrap()
}

/// What the cache has of a ServiceImport after the API server took it from our field manager.
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
    objects::ServiceImport::narrow(import, &mut Interner::default()).unwrap()
}

#[test]
fn the_derived_name_is_that_of_mcs_api() {
    assert_eq!(derived_name(&key()), "derived-eoric1rhri");
}

#[test]
fn a_derived_service_that_says_it_all_is_not_written_again() {
    let all = CHANGES.iter().map(|change| (change.0, changed(change))).chain([("nothing", mk_service())]);
    for (name, service) in all {
        assert!(derived_service_matches(&cached(derived_service(&key(), &service)), &key(), &service), "{name}");
    }
}

#[test]
fn a_derived_service_that_differs_is_written() {
    let before = cached(derived_service(&key(), &mk_service()));
    for change in CHANGES {
        assert!(!derived_service_matches(&before, &key(), &changed(change)), "{}", change.0);
    }
    let one = changed(&("", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: Some(60) }));
    let other = changed(&("", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: None }));
    assert!(!derived_service_matches(&cached(derived_service(&key(), &one)), &key(), &other));
    let mut foreign = derived_service(&key(), &mk_service());
    foreign.metadata.labels = None;
    assert!(!derived_service_matches(&cached(foreign), &key(), &mk_service()));
}

#[test]
fn the_default_time_out_and_the_order_of_ports_are_no_difference() {
    let explicit = changed(&("", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: Some(10_800) }));
    let default = changed(&("", |s| s.session_affinity = SessionAffinity::ClientIp { timeout: None }));
    assert!(derived_service_matches(&cached(derived_service(&key(), &explicit)), &key(), &default));
    let reordered = changed(&("", |s| s.ports.reverse()));
    assert!(derived_service_matches(&cached(derived_service(&key(), &mk_service())), &key(), &reordered));
}

#[test]
fn the_derived_service_selects_nothing_and_asks_for_no_family_by_name_where_it_prefers_both() {
    let spec = derived_service(&key(), &changed(&CHANGES[10])).spec.unwrap();
    assert_eq!(
        (spec.ip_family_policy.as_deref(), spec.ip_families, spec.selector),
        (Some("PreferDualStack"), None, None)
    );
    let spec = derived_service(&key(), &mk_service()).spec.unwrap();
    assert_eq!(spec.ip_family_policy.as_deref(), Some("SingleStack"));
    assert_eq!(spec.ports.unwrap()[0].target_port, Some(IntOrString::Int(80)));
}

#[test]
fn an_import_that_says_it_all_is_not_written_again_and_any_difference_is() {
    let ips = ["10.96.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
    let before = cached_import(service_import(&key(), &mk_service(), &ips));
    let more: &[Change] = &[
        ("order of ports", |s| s.ports.reverse()),
        ("type", |s| s.service_type = ServiceType::Headless),
        ("label", |s| s.labels = [("a".to_owned(), "b".to_owned())].into()),
        ("annotation", |s| s.annotations = [("a".to_owned(), "b".to_owned())].into()),
    ];
    for change in CHANGES.iter().chain(more) {
        let wanted = service_import(&key(), &changed(change), &ips);
        assert!(!service_import_matches(&before, &wanted), "{}", change.0);
        assert!(service_import_matches(&cached_import(wanted.clone()), &wanted), "{}", change.0);
    }
    assert!(!service_import_matches(&before, &service_import(&key(), &mk_service(), &[])), "ips");
}

#[test]
fn a_label_that_is_exported_no_more_is_a_difference_and_one_of_somebody_else_is_none() {
    let labelled = changed(&("", |s| s.labels = [("a".to_owned(), "b".to_owned())].into()));
    let there = cached_import(service_import(&key(), &labelled, &[]));
    assert!(!service_import_matches(&there, &service_import(&key(), &mk_service(), &[])));

    let wanted = service_import(&key(), &mk_service(), &[]);
    let mut object = wanted.clone();
    object.metadata.managed_fields = None;
    let mut there = cached_import(wanted.clone());
    object.metadata.labels.as_mut().unwrap().insert("theirs".to_owned(), "x".to_owned());
    there.labels.remove("theirs");
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
    let import = service_import(&key(), &service, &[]);
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    assert_eq!(import.metadata.labels, Some(pairs(&[(names::LABEL_MANAGED_BY, names::MANAGED_BY), ("team", "a")])));
    let derived = derived_name(&key());
    let annotations = pairs(&[(names::ANNOTATION_DERIVED_SERVICE, &derived), ("team", "a")]);
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
        assert_eq!(service_import(&key(), &service, &ips).spec.ips, expected);
    }
    let mut service = mk_service();
    service.ip_families = vec![IpFamily::V6, IpFamily::V4];
    let import = service_import(&key(), &service, &ips[..1]);
    assert_eq!((import.spec.ips, import.spec.ip_families), (vec!["10.96.0.7".to_owned()], vec!["IPv4".to_owned()]));
}

#[test]
fn an_import_without_a_usable_family_says_so() {
    let status = |service: &ClusterSetService, ips: &[IpAddr]| {
        let import = service_import(&key(), service, ips);
        let status = import_status(&ServiceImportStatus::default(), service, &import, Some(3), Timestamp::UNIX_EPOCH);
        let again = import_status(&status, service, &import, Some(3), Timestamp::from_second(99).unwrap());
        assert_eq!(again, status, "the time alone is no difference");
        (status.conditions[0].status.clone(), status.conditions[0].reason.clone())
    };
    let said = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    assert_eq!(status(&mk_service(), &[]), said("False", "IPFamilyNotSupported"));
    assert_eq!(status(&mk_service(), &["10.96.0.7".parse().unwrap()]), said("True", "Ready"));
    let headless = changed(&("", |s| s.service_type = ServiceType::Headless));
    assert_eq!(status(&headless, &[]), said("True", "Ready"));
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
            hint: Some("a".into()),
        }],
    };
    let source = "there".parse().unwrap();
    let narrow = |slice: &Slice, type_| {
        OwnSlice::narrow(endpoint_slice(&key(), type_, &source, slice), &mut Interner::default()).unwrap()
    };
    let written = narrow(&slice, ServiceType::ClusterSetIp);
    let mut object = endpoint_slice(&key(), ServiceType::ClusterSetIp, &source, &slice);
    object.metadata.uid = Some("assigned".to_owned());
    let read = OwnSlice::narrow(object, &mut Interner::default()).unwrap();
    assert!(read.says_the_same(&written));
    assert_eq!(read.service.as_deref(), Some(&*derived_name(&key())));
    assert!(!read.says_the_same(&narrow(&slice, ServiceType::Headless)));
    let edits: [fn(&mut SliceEndpoint); 6] = [
        |e| e.address = "10.0.0.2".parse().unwrap(),
        |e| e.conditions.ready = true,
        |e| e.hostname = None,
        |e| e.zone = None,
        |e| e.node = None,
        |e| e.hint = None,
    ];
    for edit in edits {
        let before = slice.clone();
        edit(&mut slice.endpoints[0]);
        assert!(!read.says_the_same(&narrow(&slice, ServiceType::ClusterSetIp)), "{slice:?}");
        slice = before;
    }
}
