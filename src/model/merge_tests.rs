use proptest::prelude::*;

use super::*;
use crate::model::{Protocol, fixtures};

fn mk_port(name: &str, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol: Protocol::Tcp, port, app_protocol: None }
}

fn mk_export(created: i64, ports: &[(&str, u16)]) -> Export {
    Export { ports: ports.iter().map(|(name, port)| mk_port(name, *port)).collect(), ..fixtures::mk_export(created) }
}

fn id(name: &str) -> ClusterId {
    name.parse().unwrap()
}

fn merged(exports: &[(&str, &Export)]) -> ClusterSetService {
    merge(&exports.iter().map(|(name, export)| (id(name), *export)).collect()).unwrap()
}

fn reasons(service: &ClusterSetService) -> Vec<&'static str> {
    service.conflicts.iter().map(|conflict| conflict.reason.as_str()).collect()
}

#[test]
fn nothing_exported_is_no_service() {
    assert_eq!(merge(&BTreeMap::new()), None);
}

#[test]
fn equal_exports_do_not_conflict() {
    let (a, b) = (mk_export(1, &[("http", 80), ("x", 81)]), mk_export(2, &[("x", 81), ("http", 80)]));
    let service = merged(&[("a", &a), ("b", &b)]);
    assert_eq!(reasons(&service), Vec::<&str>::new());
    assert_eq!(service.ports, a.ports);
}

#[test]
fn the_oldest_export_wins_and_the_message_names_field_winner_and_count() {
    let (mut a, b, c) = (mk_export(5, &[]), mk_export(1, &[]), mk_export(3, &[]));
    a.service_type = ServiceType::Headless;
    let service = merged(&[("a", &a), ("b", &b), ("c", &c)]);
    assert_eq!(service.service_type, ServiceType::ClusterSetIp);
    assert_eq!(reasons(&service), ["TypeConflict"]);
    assert_eq!(
        service.conflicts[0].message,
        "Conflicting type. Using \"ClusterSetIP\" from oldest service export in \"b\". 1/3 clusters disagree."
    );
}

#[test]
fn equal_ages_are_decided_by_cluster_id() {
    let (mut a, b) = (mk_export(1, &[]), mk_export(1, &[]));
    a.service_type = ServiceType::Headless;
    assert_eq!(merged(&[("b", &b), ("a", &a)]).service_type, ServiceType::Headless);
}

#[test]
fn every_property_has_its_reason() {
    let oldest = mk_export(1, &[("http", 80)]);
    let cases: [(&str, fn(&mut Export)); 8] = [
        ("TypeConflict", |e| e.service_type = ServiceType::Headless),
        ("PortConflict", |e| e.ports[0].app_protocol = Some("h2c".into())),
        ("SessionAffinityConflict", |e| e.session_affinity = SessionAffinity::ClientIp { timeout: None }),
        ("InternalTrafficPolicyConflict", |e| e.internal_traffic_policy = TrafficPolicy::Local),
        ("TrafficDistributionConflict", |e| e.traffic_distribution = Some("PreferClose".into())),
        ("IPFamilyConflict", |e| e.ip_families = vec![IpFamily::V6]),
        ("LabelsConflict", |e| e.labels = [("a".into(), "b".into())].into()),
        ("AnnotationsConflict", |e| e.annotations = [("a".into(), "b".into())].into()),
    ];
    for (reason, change) in cases {
        let mut younger = mk_export(2, &[("http", 80)]);
        change(&mut younger);
        let service = merged(&[("a", &oldest), ("b", &younger)]);
        assert_eq!(reasons(&service), [reason]);
        assert!(service.conflicts[0].message.contains("\"a\"") && service.conflicts[0].message.contains("1/2"));
    }
}

#[test]
fn affinity_time_outs_conflict_apart_from_affinity() {
    let mut a = mk_export(1, &[]);
    let mut b = mk_export(2, &[]);
    a.session_affinity = SessionAffinity::ClientIp { timeout: None };
    b.session_affinity = SessionAffinity::ClientIp { timeout: Some(10_800) };
    assert_eq!(reasons(&merged(&[("a", &a), ("b", &b)])), Vec::<&str>::new(), "the default is 10800 s");
    b.session_affinity = SessionAffinity::ClientIp { timeout: Some(5) };
    assert_eq!(reasons(&merged(&[("a", &a), ("b", &b)])), ["SessionAffinityConfigConflict"]);
    b.session_affinity = SessionAffinity::None;
    assert_eq!(reasons(&merged(&[("a", &a), ("b", &b)])), ["SessionAffinityConflict"]);
}

#[test]
fn a_younger_export_with_more_families_is_no_conflict() {
    let (a, mut b) = (mk_export(1, &[]), mk_export(2, &[]));
    b.ip_families = vec![IpFamily::V6, IpFamily::V4];
    let service = merged(&[("a", &a), ("b", &b)]);
    assert_eq!((service.ip_families.as_slice(), reasons(&service).len()), ([IpFamily::V4].as_slice(), 0));
}

#[test]
fn a_conflicting_port_is_carried_only_by_the_clusters_that_expose_it() {
    let a = mk_export(1, &[("http", 80), ("admin", 9000)]);
    let b = mk_export(2, &[("http", 8080), ("metrics", 9000), ("extra", 7)]);
    let service = merged(&[("a", &a), ("b", &b)]);
    assert_eq!(service.ports, [mk_port("http", 80), mk_port("admin", 9000), mk_port("extra", 7)]);
    assert_eq!(service.clusters[&id("a")], ["admin".into(), "http".into()]);
    assert_eq!(service.clusters[&id("b")], ["extra".into()]);
    let message = &service.conflicts[0].message;
    assert!(message.contains("Port \"http\" 8080/TCP of cluster \"b\" is not served: \"http\" 80/TCP"), "{message}");
    assert!(message.contains("Port \"metrics\" 9000/TCP of cluster \"b\" is not served: \"admin\""), "{message}");
}

fn any_export() -> impl Strategy<Value = Export> {
    let port = (0..3u8, 0..3u16, prop::bool::ANY).prop_map(|(name, port, udp)| ServicePort {
        name: ["", "http", "admin"][usize::from(name)].into(),
        protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
        port: 80 + port,
        app_protocol: None,
    });
    // A Service never has two ports of one name or of one (protocol, port): the API server refuses it.
    let ports = prop::collection::vec(port, 0..4).prop_map(|ports| {
        let mut unique: Vec<ServicePort> = Vec::new();
        for port in ports {
            if !unique.iter().any(|p| p.name == port.name || (p.protocol, p.port) == (port.protocol, port.port)) {
                unique.push(port);
            }
        }
        unique
    });
    (0..4i64, ports, any::<[bool; 4]>()).prop_map(|(created, ports, [headless, local, affinity, v6])| Export {
        service_type: if headless { ServiceType::Headless } else { ServiceType::ClusterSetIp },
        internal_traffic_policy: if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster },
        session_affinity: if affinity {
            SessionAffinity::ClientIp { timeout: Some(created as u32) }
        } else {
            SessionAffinity::None
        },
        ip_families: if v6 { vec![IpFamily::V6, IpFamily::V4] } else { vec![IpFamily::V4] },
        ports,
        ..mk_export(created, &[])
    })
}

proptest! {
    #[test]
    fn no_port_name_and_no_protocol_port_pair_comes_twice(exports in prop::collection::vec(any_export(), 1..5)) {
        let named: BTreeMap<_, _> = exports.iter().enumerate().map(|(i, e)| (id(&format!("c{i}")), e)).collect();
        let service = merge(&named).unwrap();
        for (i, a) in service.ports.iter().enumerate() {
            for b in &service.ports[i + 1..] {
                prop_assert!(a.name != b.name && (a.protocol, a.port) != (b.protocol, b.port));
            }
        }
        for (cluster, carried) in &service.clusters {
            for name in carried {
                let merged = service.ports.iter().find(|p| &p.name == name).unwrap();
                prop_assert!(named[cluster].ports.iter().any(|p| p == merged), "{cluster} carries only what it exposes");
            }
        }
    }

    #[test]
    fn a_younger_export_changes_nothing_but_adds_ports(mut exports in prop::collection::vec(any_export(), 1..5), mut younger in any_export()) {
        for export in &mut exports { export.created += 1; }
        younger.created = 100;
        let mut named: BTreeMap<_, _> = exports.iter().enumerate().map(|(i, e)| (id(&format!("c{i}")), e)).collect();
        let before = merge(&named).unwrap();
        named.insert(id("aaa"), &younger);
        let after = merge(&named).unwrap();
        prop_assert_eq!(&after.ports[..before.ports.len()], &before.ports[..]);
        for (cluster, carried) in &before.clusters { prop_assert_eq!(&after.clusters[cluster], carried); }
        prop_assert_eq!(
            (after.service_type, after.session_affinity, after.internal_traffic_policy, after.ip_families),
            (before.service_type, before.session_affinity, before.internal_traffic_policy, before.ip_families)
        );
    }

    #[test]
    fn conflicts_are_raised_exactly_when_exports_differ(export in any_export(), count in 1..4usize) {
        let named: BTreeMap<_, _> = (0..count).map(|i| (id(&format!("c{i}")), &export)).collect();
        prop_assert!(merge(&named).unwrap().conflicts.is_empty());
    }
}
