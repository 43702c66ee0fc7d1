use proptest::prelude::*;

use super::*;
use crate::{Protocol, fixtures};

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
fn no_exports_make_no_service() {
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
    let conflict = &service.conflicts[0];
    let summary =
        "Conflicting type. Using \"ClusterSetIP\" from oldest service export in \"b\". 1/3 clusters disagree.";
    assert_eq!(conflict.message(&id("c")), format!("{summary} Cluster \"a\" has \"Headless\"."));
    assert_eq!(
        conflict.message(&id("a")),
        format!("{summary} This cluster's Service has \"Headless\": make it equal, or delete this ServiceExport.")
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
    type Change = fn(&mut Export);
    let oldest = mk_export(1, &[("http", 80)]);
    let cases: [(&str, Change); 8] = [
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
        let message = service.conflicts[0].message(&id("a"));
        assert!(message.contains("service export in \"a\". 1/2 clusters disagree. Cluster \"b\" has "), "{message}");
        let message = service.conflicts[0].message(&id("b"));
        let object =
            if reason.starts_with("Labels") || reason.starts_with("Annot") { "ServiceExport" } else { "Service" };
        assert!(message.contains(&format!("This cluster's {object} has ")), "{message}");
    }
}

#[test]
fn affinity_timeouts_have_a_conflict_reason_of_their_own() {
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
    let summary = "Conflicting ports. Using [\"http\" 80/TCP, \"admin\" 9000/TCP] from oldest service export in \"a\", and \
                   [\"extra\" 7/TCP] of the others. 1/2 clusters disagree. Not served: \"http\" 8080/TCP of \"b\", because \
                   \"http\" 80/TCP of \"a\" is older. Not served: \"metrics\" 9000/TCP of \"b\", because \"admin\" 9000/TCP of \
                   \"a\" is older.";
    let theirs = "has [\"http\" 8080/TCP, \"metrics\" 9000/TCP, \"extra\" 7/TCP], of which its endpoints get traffic on \
                  [\"extra\" 7/TCP] only";
    let conflict = &service.conflicts[0];
    assert_eq!(conflict.message(&id("a")), format!("{summary} Cluster \"b\" {theirs}."));
    let remedy = "make it equal, or delete this ServiceExport.";
    assert_eq!(conflict.message(&id("b")), format!("{summary} This cluster's Service {theirs}: {remedy}"));
}

/// (name, number, protocol, appProtocol)
type Port = (&'static str, u16, Protocol, Option<&'static str>);

/// (what, the older export's ports, the younger's, the merged ones, those that the younger carries, whether it is a conflict)
type Case = (&'static str, &'static [Port], &'static [Port], &'static [Port], &'static [&'static str], bool);

#[test]
fn ports_are_merged_by_name_then_by_protocol_and_number() {
    use Protocol::{Tcp, Udp};
    let cases: [Case; 10] = [
        ("equal", &[("a", 1, Tcp, None)], &[("a", 1, Tcp, None)], &[("a", 1, Tcp, None)], &["a"], false),
        (
            "disjoint",
            &[("a", 1, Tcp, None)],
            &[("b", 2, Tcp, None)],
            &[("a", 1, Tcp, None), ("b", 2, Tcp, None)],
            &["b"],
            true,
        ),
        (
            "a subset",
            &[("a", 1, Tcp, None), ("b", 2, Tcp, None)],
            &[("b", 2, Tcp, None)],
            &[("a", 1, Tcp, None), ("b", 2, Tcp, None)],
            &["b"],
            true,
        ),
        ("same name, other number", &[("a", 1, Tcp, None)], &[("a", 2, Tcp, None)], &[("a", 1, Tcp, None)], &[], true),
        (
            "same name, other protocol",
            &[("a", 1, Tcp, None)],
            &[("a", 1, Udp, None)],
            &[("a", 1, Tcp, None)],
            &[],
            true,
        ),
        ("same number, other name", &[("a", 1, Tcp, None)], &[("b", 1, Tcp, None)], &[("a", 1, Tcp, None)], &[], true),
        (
            "same number, other protocol and name",
            &[("a", 1, Tcp, None)],
            &[("b", 1, Udp, None)],
            &[("a", 1, Tcp, None), ("b", 1, Udp, None)],
            &["b"],
            true,
        ),
        (
            "other appProtocol",
            &[("a", 1, Tcp, Some("http"))],
            &[("a", 1, Tcp, Some("h2c"))],
            &[("a", 1, Tcp, Some("http"))],
            &["a"],
            true,
        ),
        ("unnamed, other number", &[("", 1, Tcp, None)], &[("", 2, Tcp, None)], &[("", 1, Tcp, None)], &[], true),
        (
            "unnamed and named",
            &[("", 1, Tcp, None)],
            &[("b", 2, Tcp, None)],
            &[("", 1, Tcp, None), ("b", 2, Tcp, None)],
            &["b"],
            true,
        ),
    ];
    let ports = |ports: &[Port]| -> Vec<ServicePort> {
        let port = |(name, port, protocol, app): &Port| ServicePort {
            name: (*name).into(),
            protocol: *protocol,
            port: *port,
            app_protocol: app.map(Into::into),
        };
        ports.iter().map(port).collect()
    };
    for (what, older, younger, expected, carried, conflict) in cases {
        let (a, b) = (
            Export { ports: ports(older), ..mk_export(1, &[]) },
            Export { ports: ports(younger), ..mk_export(2, &[]) },
        );
        let service = merged(&[("a", &a), ("b", &b)]);
        assert_eq!(service.ports, ports(expected), "{what}");
        assert_eq!(service.clusters[&id("b")].iter().map(|name| &**name).collect::<Vec<_>>(), carried, "{what}");
        assert_eq!(service.clusters[&id("a")].len(), older.len(), "{what}: the oldest carries all of its own");
        assert_eq!(reasons(&service), if conflict { vec!["PortConflict"] } else { vec![] }, "{what}");
    }
}

#[test]
fn duplicates_within_one_export_are_merged_like_those_of_two() {
    // No API server accepts such a Service, but another cluster's ledger may contain it.
    let a = mk_export(1, &[("", 80), ("", 81), ("http", 82), ("http", 82), ("web", 82)]);
    let service = merged(&[("a", &a)]);
    assert_eq!(service.ports, [mk_port("", 80), mk_port("http", 82)]);
    assert_eq!(service.clusters[&id("a")], ["".into(), "http".into()]);
    assert_eq!(reasons(&service), Vec::<&str>::new());
}

#[test]
fn families_conflict_if_a_backend_lacks_a_family_in_use() {
    use IpFamily::{V4, V6};
    for (oldest, younger, conflict) in [
        (vec![V4], vec![V4], false),
        (vec![V4], vec![V6], true),
        (vec![V4, V6], vec![V4], true),
        (vec![V4, V6], vec![V6, V4], false),
        (vec![V4], vec![V6, V4], false),
    ] {
        let (a, b) = (
            Export { ip_families: oldest.clone(), ..mk_export(1, &[]) },
            Export { ip_families: younger.clone(), ..mk_export(2, &[]) },
        );
        let service = merged(&[("a", &a), ("b", &b)]);
        assert_eq!(reasons(&service).len(), usize::from(conflict), "{oldest:?} {younger:?}");
        assert_eq!(service.ip_families, oldest);
        if conflict {
            let message = service.conflicts[0].message(&id("b"));
            assert!(message.contains("so that its endpoints get no traffic by IPv"), "{message}");
        }
    }
}

#[test]
fn long_lists_of_clusters_are_cut() {
    let (oldest, younger) = (mk_export(1, &[]), Export { service_type: ServiceType::Headless, ..mk_export(2, &[]) });
    let names: Vec<String> = (1..=9).map(|n| format!("c{n}")).collect();
    let mut exports = vec![("c0", &oldest)];
    exports.extend(names.iter().map(|name| (name.as_str(), &younger)));
    let message = merged(&exports).conflicts[0].message(&id("c0"));
    assert!(message.ends_with("9/10 clusters disagree. Cluster \"c1\" has \"Headless\"; \"c2\" has \"Headless\"; \"c3\" has \"Headless\"; and 6 more."), "{message}");
}

fn any_export() -> impl Strategy<Value = Export> {
    let port = (0..3u8, 0..3u16, prop::bool::ANY).prop_map(|(name, port, udp)| ServicePort {
        name: ["", "http", "admin"][usize::from(name)].into(),
        protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
        port: 80 + port,
        app_protocol: None,
    });
    // A Service never has two ports with one name or one (protocol, number): the API server refuses it.
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
    fn a_younger_export_only_adds_ports(mut exports in prop::collection::vec(any_export(), 1..5), mut younger in any_export()) {
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
    fn neither_the_order_of_exports_nor_the_names_of_clusters_matter(
        exports in prop::collection::vec(any_export(), 1..5),
    ) {
        // The exports have different ages, so that the names of clusters decide nothing.
        let exports: Vec<_> = exports.into_iter().zip(0..).map(|(export, created)| Export { created, ..export }).collect();
        let named = |name: fn(usize) -> String| -> BTreeMap<_, _> {
            exports.iter().enumerate().map(|(i, e)| (id(&name(i)), e)).collect()
        };
        let (there, elsewhere) = (merge(&named(|i| format!("c{i}"))).unwrap(), merge(&named(|i| format!("c{}", 9 - i))).unwrap());
        prop_assert_eq!(reasons(&there), reasons(&elsewhere));
        prop_assert_eq!(&there.ports, &elsewhere.ports);
        let carried = |service: &ClusterSetService| service.clusters.values().cloned().collect::<Vec<_>>();
        prop_assert_eq!(carried(&there), carried(&elsewhere).into_iter().rev().collect::<Vec<_>>());
        prop_assert_eq!(
            (there.service_type, there.session_affinity, there.internal_traffic_policy, there.ip_families, there.other_families),
            (elsewhere.service_type, elsewhere.session_affinity, elsewhere.internal_traffic_policy, elsewhere.ip_families,
             elsewhere.other_families)
        );
    }

    #[test]
    fn a_merged_service_merges_to_itself(exports in prop::collection::vec(any_export(), 1..5)) {
        let named: BTreeMap<_, _> = exports.iter().enumerate().map(|(i, e)| (id(&format!("c{i}")), e)).collect();
        let service = merge(&named).unwrap();
        let oldest = exports.iter().min_by_key(|export| export.created).unwrap();
        let as_one = Export { ports: service.ports.clone(), ..oldest.clone() };
        let again = merge(&[(id("c0"), &as_one)].into()).unwrap();
        prop_assert!(again.conflicts.is_empty());
        prop_assert_eq!((again.ports, again.service_type, again.ip_families), (service.ports, service.service_type, service.ip_families));
    }

    #[test]
    fn every_cluster_reports_the_same_reasons_and_only_those_that_disagree_should_change(
        exports in prop::collection::vec(any_export(), 1..5),
    ) {
        let named: BTreeMap<_, _> = exports.iter().enumerate().map(|(i, e)| (id(&format!("c{i}")), e)).collect();
        let oldest = named.iter().min_by_key(|(id, export)| (export.created, *id)).unwrap().0;
        for conflict in merge(&named).unwrap().conflicts {
            prop_assert!(!conflict.differing.is_empty() && !conflict.differing.contains_key(oldest));
            for cluster in named.keys() {
                let message = conflict.message(cluster);
                prop_assert!(message.starts_with(&conflict.summary));
                prop_assert_eq!(message.contains("This cluster's"), conflict.differing.contains_key(cluster));
            }
        }
    }

    #[test]
    fn conflicts_are_raised_exactly_when_exports_differ(export in any_export(), count in 1..4usize) {
        let named: BTreeMap<_, _> = (0..count).map(|i| (id(&format!("c{i}")), &export)).collect();
        prop_assert!(merge(&named).unwrap().conflicts.is_empty());
    }
}
