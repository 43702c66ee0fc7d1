use super::*;
use model::Conditions;

/// As v0.3.1 writes it for the port `http` of a Service `shop/web` in the cluster `c1`.
const WEB: [(&str, &str); 16] = [
    ("AWS_INSTANCE_IPV4", "10.101.0.118"),
    ("AWS_INSTANCE_PORT", "8080"),
    ("CLUSTERSET_ID", "set1"),
    ("CLUSTER_ID", "c1"),
    ("ENDPOINT_PORT_NAME", "http"),
    ("ENDPOINT_PROTOCOL", "TCP"),
    ("HOSTNAME", ""),
    ("K8S_CONTROLLER", "aws-cloud-map-mcs-controller-for-k8s "),
    ("NODENAME", "c1-node"),
    ("READY", "true"),
    ("SERVICE_EXPORT_CREATION_TIMESTAMP", "1795254716000"),
    ("SERVICE_PORT", "80"),
    ("SERVICE_PORT_NAME", "http"),
    ("SERVICE_PROTOCOL", "TCP"),
    ("SERVICE_TARGET_PORT", "8080"),
    ("SERVICE_TYPE", "ClusterSetIP"),
];

/// An instance of the AWS controller with changed attributes; `None` removes one.
pub(crate) fn mk_instance(id: &str, changes: &[(&str, Option<&str>)]) -> Instance {
    let mut attributes: Attributes = WEB.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    for (key, value) in changes {
        match value {
            Some(value) => attributes.insert((*key).to_owned(), (*value).to_owned()),
            None => attributes.remove(*key),
        };
    }
    Instance { id: id.into(), attributes }
}

/// The second instance of a StatefulSet `db` behind a headless Service with one unnamed port.
fn db() -> Instance {
    mk_instance(
        "tcp-10_101_0_121-5432",
        &[
            ("AWS_INSTANCE_IPV4", Some("10.101.0.121")),
            ("AWS_INSTANCE_PORT", Some("5432")),
            ("ENDPOINT_PORT_NAME", Some("")),
            ("HOSTNAME", Some("db-1")),
            ("SERVICE_PORT", Some("5432")),
            ("SERVICE_PORT_NAME", Some("")),
            ("SERVICE_TARGET_PORT", Some("5432")),
            ("SERVICE_TYPE", Some("Headless")),
        ],
    )
}

fn set() -> ClusterSetId {
    "set1".parse().unwrap()
}

fn web() -> Instance {
    mk_instance("tcp-10_101_0_118-8080", &[])
}

#[test]
fn instances_of_the_aws_controller_are_read() {
    let read = Registered::read(&web(), true).unwrap();
    let expected = Registered {
        cluster: "c1".parse().unwrap(),
        created: 1_795_254_716_000,
        service_type: ServiceType::ClusterSetIp,
        port: ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, app_protocol: None },
        address: "10.101.0.118".parse().unwrap(),
        served: EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080, app_protocol: None },
        ready: true,
        healthy: true,
        hostname: None,
        moved: false,
    };
    assert_eq!(read, expected);
    let read = Registered::read(&db(), false).unwrap();
    assert_eq!(
        (read.service_type, &*read.port.name, read.hostname.as_deref(), read.healthy),
        (ServiceType::Headless, "", Some("db-1"), false)
    );
    let unready = mk_instance("x", &[("READY", Some("false")), ("HOSTNAME", None), ("NODENAME", None)]);
    assert!(!Registered::read(&unready, true).unwrap().ready);
    let later = mk_instance("x", &[("AWS_INSTANCE_IPV4", None), ("AWS_INSTANCE_IPV6", Some("fd00::1"))]);
    assert_eq!(Registered::read(&later, true).unwrap().address, "fd00::1".parse::<IpAddr>().unwrap());
}

/// The attributes that the AWS controller requires itself, and those that this controller needs.
#[test]
fn the_error_names_the_attribute_that_an_instance_lacks() {
    let required = WEB
        .iter()
        .map(|(key, _)| *key)
        .filter(|key| !["HOSTNAME", "NODENAME", "K8S_CONTROLLER", "CLUSTERSET_ID"].contains(key));
    for key in required {
        assert_eq!(Registered::read(&mk_instance("x", &[(key, None)]), true), Err(Invalid(key)), "{key}");
    }
    for (key, value) in [
        ("AWS_INSTANCE_IPV4", "web.example.com"),
        ("AWS_INSTANCE_PORT", "0"),
        ("CLUSTER_ID", "Cluster_1"),
        ("CLUSTER_ID", "ecs-1"),
        ("ENDPOINT_PROTOCOL", "tcp"),
        ("READY", "yes"),
        ("SERVICE_EXPORT_CREATION_TIMESTAMP", "today"),
        // A port of the EndpointSlice that the Service does not have.
        ("SERVICE_PORT", "0"),
        ("SERVICE_PORT_NAME", "no label"),
        ("SERVICE_TYPE", "LoadBalancer"),
    ] {
        let error = Registered::read(&mk_instance("x", &[(key, Some(value))]), true).unwrap_err();
        assert!(error == Invalid(key) && error.to_string().contains(key), "{key}={value}");
    }
}

/// Each attribute equals what the AWS controller writes for such an endpoint, except for the name of the controller.
#[test]
fn written_attributes_equal_those_of_the_aws_controller() {
    let endpoint = |hostname: Option<&str>, ip: [u8; 4]| Endpoint {
        ipv4: Some(ip.into()),
        ipv6: None,
        ports: [].into(),
        conditions: Conditions::READY,
        hostname: hostname.map(Arc::from),
        zone: None,
        node: Some("c1-node".into()),
    };
    let cluster = "c1".parse().unwrap();
    for (theirs, hostname, ip, service_type) in [
        (web(), None, [10, 101, 0, 118], ServiceType::ClusterSetIp),
        (db(), Some("db-1"), [10, 101, 0, 121], ServiceType::Headless),
    ] {
        let told = Registered::read(&theirs, true).unwrap();
        let exported = ExportAttributes { cluster: &cluster, clusterset: &set(), created: 1_795_254_716, service_type };
        let port = PortOf { service: &told.port, number: told.served.port };
        assert_eq!(port.id(told.address), *theirs.id);
        let mut ours = port.attributes(exported, &endpoint(hostname, ip));
        assert_eq!(
            ours.insert("K8S_CONTROLLER".to_owned(), theirs.attributes["K8S_CONTROLLER"].clone()).as_deref(),
            Some("cloudmap-mcs")
        );
        ours.insert(IPV4.to_owned(), told.address.to_string());
        ours.insert(PORT.to_owned(), told.served.port.to_string());
        assert_eq!(ours, theirs.attributes);
    }
}

#[test]
fn ids_equal_those_of_the_aws_controller() {
    let port = |protocol| ServicePort { name: "".into(), protocol, port: 1, app_protocol: None };
    for (protocol, address, expected) in [
        (Protocol::Tcp, "10.1.2.3", "tcp-10_1_2_3-8080"),
        (Protocol::Udp, "10.1.2.3", "udp-10_1_2_3-8080"),
        (Protocol::Sctp, "fd00::a", "sctp-fd00__a-8080"),
    ] {
        let port = port(protocol);
        assert_eq!(PortOf { service: &port, number: 8080 }.id(address.parse().unwrap()), expected);
    }
    let longest = "1111:2222:3333:4444:5555:6666:7777:8888".parse().unwrap();
    assert_eq!(PortOf { service: &port(Protocol::Sctp), number: 65535 }.id(longest).len(), 50);
}

#[test]
fn only_instances_that_the_aws_controller_wrote_with_this_clusters_id_are_taken_over() {
    let here = |instance: &Instance| wrote(instance, &"c1".parse().unwrap(), &set());
    assert!(here(&web()) && here(&db()));
    for other in [
        mk_instance("tcp-10_101_0_118-8080", &[("CLUSTER_ID", Some("c2"))]),
        mk_instance("tcp-10_101_0_118-8080", &[("CLUSTERSET_ID", Some("set2"))]),
        mk_instance("tcp-10_101_0_118-8080", &[("CLUSTERSET_ID", None)]),
        mk_instance("tcp-10_101_0_118-8080", &[("CLOUDMAP_MCS_CLUSTER_UID", Some("uid"))]),
        mk_instance("tcp-10_101_0_118-8080", &[("SERVICE_TYPE", None)]),
        mk_instance("somebody-copied-the-attributes", &[]),
    ] {
        assert!(!here(&other), "{other:?}");
    }
}
