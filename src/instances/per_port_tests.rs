use super::*;
use crate::{Owner, attributes::ServiceTraits, ownership::is_ours};
use model::{Conditions, EndpointPort, Protocol, ServiceKey, ServicePort, ServiceType};

fn port(name: &str, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol: Protocol::Tcp, port, app_protocol: None }
}

fn endpoint(ipv4: Option<&str>, ipv6: Option<&str>, ports: &[(&str, u16)], ready: bool) -> Endpoint {
    let port = |(name, port): &(&str, u16)| EndpointPort {
        name: (*name).into(),
        protocol: Protocol::Tcp,
        port: *port,
        app_protocol: None,
    };
    Endpoint {
        ipv4: ipv4.map(|ip| ip.parse().unwrap()),
        ipv6: ipv6.map(|ip| ip.parse().unwrap()),
        ports: ports.iter().map(port).collect(),
        conditions: Conditions { ready, serving: ready, terminating: false },
        hostname: None,
        zone: Some("eu-central-1a".into()),
        node: Some("node-1".into()),
    }
}

#[test]
fn each_port_of_a_ready_endpoint_is_one_instance_that_both_controllers_read() {
    let identity =
        Owner { clusterset: Some("set1".parse().unwrap()), cluster: "c2".parse().unwrap(), cluster_uid: "uid".into() };
    let key = ServiceKey::new("shop", "web");
    // The third port has the number of the first one.
    let ports = [port("http", 80), port("metrics", 90), port("alias", 81)];
    let source = Source { identity: &identity, service: &key, ports: &ports, region: Some("eu-central-1") };
    let exported = ExportAttributes {
        cluster: &identity.cluster,
        clusterset: identity.clusterset.as_ref().unwrap(),
        created: 1_795_254_716,
        service_type: ServiceType::ClusterSetIp,
    };
    let endpoints = [
        endpoint(Some("10.0.0.1"), Some("fd00::1"), &[("http", 8080), ("metrics", 9090), ("alias", 8080)], true),
        endpoint(Some("10.0.0.2"), None, &[("http", 8080)], true),
        endpoint(Some("10.0.0.3"), None, &[("http", 8080)], false),
    ];
    let added = [("version", "2"), ("READY", "maybe")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let custom = Custom { service: added, ..Custom::default() };
    let specs = source.instances_per_port(exported, &endpoints, &custom).unwrap();
    let ids: Vec<_> = specs.iter().map(|spec| &**spec.id()).collect();
    assert_eq!(ids, ["tcp-10_0_0_1-8080", "tcp-10_0_0_1-9090", "tcp-10_0_0_2-8080"]);
    for spec in &specs {
        let instance = spec.render(ServiceTraits::default());
        assert!(is_ours(&instance, &identity) && awsmcs::is_of_set(&instance, exported.clusterset));
        let told = awsmcs::Registered::read(&instance, true).unwrap();
        assert_eq!((told.cluster.as_str(), told.created, told.ready), ("c2", 1_795_254_716_000, true));
        // What ECS tasks and people discover.
        for (key, value) in [
            ("AVAILABILITY_ZONE", "eu-central-1a"),
            ("REGION", "eu-central-1"),
            ("CLOUDMAP_MCS_SERVICE", "web"),
            ("NODENAME", "node-1"),
            ("version", "2"),
            ("SERVICE_PORT_NAME", if told.served.port == 9090 { "metrics" } else { "http" }),
        ] {
            assert_eq!(instance.attributes.get(key).map(String::as_str), Some(value), "{key}");
        }
        assert!(instance.attributes.len() < 30, "{}", instance.attributes.len());
    }
    assert_eq!(specs[0].render(ServiceTraits::default()).attributes["AWS_INSTANCE_IPV6"], "fd00::1");

    let none = Source { ports: &[], ..source };
    let specs = none.instances_per_port(exported, &endpoints, &custom).unwrap();
    // Of the default instances, the third one needs a health check to mark it as not ready.
    assert!(specs.len() == 3 && specs.iter().all(|spec| spec.id().starts_with("k8s-")));
}
