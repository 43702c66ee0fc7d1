use super::*;
use crate::instance::tests::mk_instance;
use model::{ConflictReason, Protocol, ServiceType, fixtures, merge};

/// An instance of the cluster `c1`, unless changed.
fn mk(changes: &[(&str, &str)]) -> Registered {
    let changes: Vec<_> = changes.iter().map(|(key, value)| (*key, Some(*value))).collect();
    Registered::read(&mk_instance("x", &changes), true).unwrap()
}

fn id(name: &str) -> ClusterId {
    name.parse().unwrap()
}

fn port(name: &str, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol: Protocol::Tcp, port, app_protocol: None }
}

const METRICS: [(&str, &str); 5] = [
    ("AWS_INSTANCE_PORT", "9090"),
    ("ENDPOINT_PORT_NAME", "metrics"),
    ("SERVICE_PORT", "90"),
    ("SERVICE_PORT_NAME", "metrics"),
    ("SERVICE_TARGET_PORT", "9090"),
];

#[test]
fn instances_of_an_address_are_one_endpoint_and_all_of_a_cluster_one_export() {
    let second = ("AWS_INSTANCE_IPV4", "10.101.0.120");
    let instances = [
        mk(&METRICS),
        mk(&[]),
        mk(&[second, ("READY", "false"), ("HOSTNAME", "web-1")]),
        mk(&[("CLUSTER_ID", "c2"), ("AWS_INSTANCE_IPV4", "10.102.0.1"), ("SERVICE_TYPE", "Headless")]),
        mk(&[("CLUSTER_ID", "c2"), ("AWS_INSTANCE_IPV4", "10.102.0.2"), ("SERVICE_EXPORT_CREATION_TIMESTAMP", "999")]),
    ];
    let exports = exports(&instances);
    assert_eq!(exports.keys().map(ClusterId::as_str).collect::<Vec<_>>(), ["c1", "c2"]);
    let c1 = &exports[&id("c1")];
    assert_eq!((c1.export.created, c1.export.service_type), (1_795_254_716, ServiceType::ClusterSetIp));
    assert_eq!(c1.export.ports, [port("http", 80), port("metrics", 90)]);
    assert_eq!(c1.export.ip_families, [IpFamily::V4]);
    let rows: Vec<_> = c1
        .endpoints
        .iter()
        .map(|endpoint| {
            let ports: Vec<_> = endpoint.ports.iter().map(|port| (&*port.name, port.port)).collect();
            (endpoint.ipv4.unwrap().octets()[3], ports, endpoint.conditions.ready, endpoint.hostname.as_deref())
        })
        .collect();
    assert_eq!(
        rows,
        [(118, vec![("http", 8080), ("metrics", 9090)], true, None), (120, vec![("http", 8080)], false, Some("web-1"))]
    );
    let c2 = &exports[&id("c2")];
    assert_eq!((c2.export.created, c2.export.service_type, c2.endpoints.len()), (0, ServiceType::Headless, 2));
}

/// While the port of a Service changes, instances of both ports are there.
#[test]
fn of_two_conflicting_ports_of_one_cluster_one_counts() {
    let instances = [
        mk(&[("SERVICE_PORT", "81"), ("AWS_INSTANCE_IPV4", "10.101.0.119")]),
        mk(&[]),
        mk(&[("SERVICE_PORT_NAME", "web"), ("ENDPOINT_PORT_NAME", "web"), ("AWS_INSTANCE_IPV4", "10.101.0.120")]),
    ];
    let export = &exports(&instances)[&id("c1")];
    assert_eq!(export.export.ports, [port("http", 80)]);
    assert_eq!(export.endpoints.len(), 1);
}

#[test]
fn only_the_ledger_counts_for_a_cluster_that_has_moved() {
    let ledger = Arc::new(Exported { export: fixtures::mk_export(7), endpoints: vec![] });
    let mut told = BTreeMap::from([(id("c1"), Arc::clone(&ledger))]);
    let instances = exports(&[mk(&[]), mk(&[("CLUSTER_ID", "c2")]), mk(&[("CLUSTER_ID", "c3")])]);
    join(&mut told, instances, |cluster| *cluster == id("c3"));
    assert_eq!(told.keys().map(ClusterId::as_str).collect::<Vec<_>>(), ["c1", "c2"]);
    assert!(Arc::ptr_eq(&told[&id("c1")], &ledger));
    assert_eq!(told[&id("c2")].endpoints.len(), 1);
}

/// Age decides, but instances are not blamed for what they cannot express.
#[test]
fn what_instances_cannot_express_is_no_conflict() {
    let mut ledger = fixtures::mk_export(2_000_000_000);
    ledger.ports = vec![ServicePort { app_protocol: Some("http".into()), ..port("http", 80) }];
    ledger.session_affinity = SessionAffinity::ClientIp { timeout: Some(60) };
    ledger.internal_traffic_policy = TrafficPolicy::Local;
    ledger.traffic_distribution = Some("PreferClose".into());
    ledger.labels = [("team".to_owned(), "shop".to_owned())].into();
    ledger.annotations = [("owner".to_owned(), "shop".to_owned())].into();
    ledger.ip_families = vec![IpFamily::V4];
    let of = |instances: &[Registered]| {
        let mut told = BTreeMap::from([(id("here"), Arc::new(Exported { export: ledger.clone(), endpoints: vec![] }))]);
        join(&mut told, exports(instances), |_| false);
        merge(&told.iter().map(|(id, told)| (id.clone(), &told.export)).collect()).unwrap()
    };
    let merged = of(&[mk(&[])]);
    assert_eq!(merged.conflicts, []);
    assert_eq!((merged.session_affinity, &merged.labels), (ledger.session_affinity, &ledger.labels));
    // The older export, which is the AWS controller's, decides what it can express.
    let merged = of(&[mk(&[("SERVICE_TYPE", "Headless")])]);
    assert_eq!(merged.service_type, ServiceType::Headless);
    assert_eq!(merged.conflicts.iter().map(|conflict| conflict.reason).collect::<Vec<_>>(), [ConflictReason::Type]);
    let alone = exports(&[mk(&[])]);
    let mut told = BTreeMap::new();
    join(&mut told, alone, |_| false);
    assert_eq!(told[&id("c1")].export.session_affinity, SessionAffinity::None);
}
