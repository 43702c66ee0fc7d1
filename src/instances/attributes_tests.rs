use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    RecordType::{A, Aaaa, Cname, Srv},
    *,
};
use crate::ownership::is_ours;
use cloudmap::{DnsConfig, DnsRecord, fake::mk_service};
use model::{Conditions, Protocol};

fn identity(uid: &str) -> Owner {
    Owner { clusterset: Some("prod".parse().unwrap()), cluster: "c1".parse().unwrap(), cluster_uid: uid.into() }
}

fn port(name: &str, protocol: Protocol, port: u16) -> ServicePort {
    ServicePort { name: name.into(), protocol, port, app_protocol: None }
}

fn endpoint(ipv4: Option<&str>, ipv6: Option<&str>, ports: &[(&str, Protocol, u16)]) -> Endpoint {
    Endpoint {
        ipv4: ipv4.map(|ip| ip.parse().unwrap()),
        ipv6: ipv6.map(|ip| ip.parse().unwrap()),
        ports: ports
            .iter()
            .map(|&(name, protocol, port)| EndpointPort { name: name.into(), protocol, port, app_protocol: None })
            .collect(),
        conditions: Conditions::READY,
        hostname: None,
        zone: Some("eu-west-1a".into()),
        node: None,
    }
}

fn specs(ports: &[ServicePort], endpoints: &[Endpoint]) -> Result<Vec<InstanceSpec>, Unfit> {
    let service = ServiceKey::new("shop", "web");
    Source { identity: &identity("uid-1"), service: &service, ports, region: Some("eu-west-1") }.instances(endpoints)
}

const WEB: (&str, Protocol, u16) = ("http", Protocol::Tcp, 8080);

#[test]
fn one_instance_has_both_families_all_ports_and_the_owner() {
    let ports = [port("http", Protocol::Tcp, 80), port("dns", Protocol::Udp, 53), port("gone", Protocol::Tcp, 1)];
    let endpoint = endpoint(Some("10.0.0.1"), Some("fd00::1"), &[("dns", Protocol::Udp, 5353), WEB]);
    let specs = specs(&ports, &[endpoint]).unwrap();
    let instance = specs[0].render(ServiceTraits::default());
    let expected = [
        ("AVAILABILITY_ZONE", "eu-west-1a"),
        ("AWS_INSTANCE_IPV4", "10.0.0.1"),
        ("AWS_INSTANCE_IPV6", "fd00::1"),
        ("AWS_INSTANCE_PORT", "8080"),
        ("CLOUDMAP_MCS_CLUSTER", "c1"),
        ("CLOUDMAP_MCS_CLUSTERSET", "prod"),
        ("CLOUDMAP_MCS_CLUSTER_UID", "uid-1"),
        ("CLOUDMAP_MCS_NAMESPACE", "shop"),
        ("CLOUDMAP_MCS_SERVICE", "web"),
        ("PORT_dns", "5353/UDP"),
        ("REGION", "eu-west-1"),
    ];
    let expected: BTreeMap<_, _> = expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(instance.attributes, expected);
    assert!(is_ours(&instance, &identity("uid-1")));
    assert!(instance.id.starts_with("k8s-") && instance.id.ends_with("-10-0-0-1"), "{}", instance.id);
}

/// Clusters of several regions may share a registry, whose region is the one that is known.
#[test]
fn an_instance_in_a_zone_of_another_region_does_not_say_that_it_is_in_the_registrys() {
    for (zone, region) in [
        (Some("eu-west-1a"), Some("eu-west-1")),
        (Some("eu-west-1-lon-1a"), Some("eu-west-1")),
        (None, Some("eu-west-1")),
        (Some("us-east-1a"), None),
    ] {
        let endpoint = Endpoint { zone: zone.map(Arc::from), ..endpoint(Some("10.0.0.1"), None, &[WEB]) };
        let attributes = specs(&[], &[endpoint]).unwrap()[0].render(ServiceTraits::default()).attributes;
        assert_eq!(attributes.get(REGION).map(String::as_str), region, "{zone:?}");
        assert_eq!(attributes.get(ZONE).map(String::as_str), zone);
    }
}

#[test]
fn an_endpoint_that_is_not_ready_belongs_only_behind_a_health_check_and_a_terminating_one_nowhere() {
    let not_ready = |conditions| Endpoint { conditions, ..endpoint(Some("10.0.0.2"), None, &[WEB]) };
    let waiting = not_ready(Conditions { ready: false, serving: false, terminating: false });
    let going = not_ready(Conditions { ready: false, serving: true, terminating: true });
    let [plain, checked] =
        [false, true].map(|custom_health_check| ServiceTraits::from(&Service { custom_health_check, ..mk_service() }));
    assert_eq!(specs(&[], &[going]).unwrap(), []);
    let specs = specs(&[], &[endpoint(Some("10.0.0.1"), None, &[WEB]), waiting]).unwrap();
    assert_eq!(specs[0].port, None, "a Service without ports has no first one");
    let belongs = |service, registered| [&specs[0], &specs[1]].map(|spec| spec.belongs(service, registered));
    assert_eq!((belongs(plain, false), belongs(plain, true)), ([true, false], [true, false]));
    assert_eq!((belongs(checked, false), belongs(checked, true)), ([true, false], [true, true]));
    let health = |spec: &InstanceSpec| spec.render(checked).attributes[INIT_HEALTH].clone();
    assert_eq!([&specs[0], &specs[1]].map(health), ["HEALTHY", "UNHEALTHY"]);
}

#[test]
fn attributes_of_users_are_on_every_instance_and_replace_none() {
    let (identity, service) = (identity("uid-1"), ServiceKey::new("shop", "web"));
    let source = Source { identity: &identity, service: &service, ports: &[], region: Some("eu-west-1") };
    let added = |attributes: &[(&str, &str)]| Custom {
        service: attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..Custom::default()
    };
    let endpoints = [endpoint(Some("10.0.0.1"), None, &[WEB])];
    let with = |custom: &Custom| source.instances_with(&endpoints, custom);
    let custom = added(&[("stage", "canary"), (CLUSTER_UID, "somebody else"), (REGION, "moon")]);
    let attributes = with(&custom).unwrap()[0].render(ServiceTraits::default()).attributes;
    assert_eq!(attributes["stage"], "canary");
    assert_eq!((attributes[CLUSTER_UID].as_str(), attributes[REGION].as_str()), ("uid-1", "eu-west-1"));
    let plain = with(&Custom::default()).unwrap()[0].digest(ServiceTraits::default());
    assert_ne!(with(&custom).unwrap()[0].digest(ServiceTraits::default()), plain, "a change is written");

    let many: Vec<_> = (0..30).map(|i| format!("key-{i}")).collect();
    let many: Vec<_> = many.iter().map(|key| (key.as_str(), "x")).collect();
    let error = with(&added(&many)).unwrap_err().to_string();
    assert!(error.contains("allows 30") && error.contains("fewer attributes"), "{error}");
    let value = "x".repeat(1000);
    let error = with(&added(&["a", "b", "c", "d", "e"].map(|key| (key, value.as_str())))).unwrap_err().to_string();
    assert!(error.contains("5,000"), "{error}");
    let hosts = source.hosts([&Arc::from("db.example.org")], &added(&[("stage", "canary")])).unwrap();
    assert_eq!(hosts[0].render(ServiceTraits::default()).attributes["stage"], "canary");
}

/// AWS requires a port if Route 53 checks the health, in public namespaces.
#[test]
fn a_route_53_health_check_needs_a_port_and_an_address() {
    let check = cloudmap::HealthCheck { kind: "TCP".to_owned(), path: None, failure_threshold: Some(1) };
    let dns = DnsConfig { weighted: false, records: vec![DnsRecord { record_type: A, ttl: 60 }] };
    let service = ServiceTraits::from(&Service { dns: Some(dns), health_check: Some(check), ..mk_service() });
    let ports = [port("http", Protocol::Tcp, 80)];
    let v4 = endpoint(Some("10.0.0.1"), None, &[WEB]);
    assert_eq!(specs(&ports, std::slice::from_ref(&v4)).unwrap()[0].lacks(service), None);
    let portless = endpoint(Some("10.0.0.1"), None, &[]);
    let lacks = specs(&ports, &[portless]).unwrap()[0].lacks(service).unwrap();
    assert!(lacks.contains("health check"), "{lacks}");
    let instance = specs(&ports, &[v4]).unwrap()[0].render(service);
    assert!(!instance.attributes.contains_key(INIT_HEALTH), "only for custom checks");
}

#[test]
fn endpoints_that_share_an_address_are_distinguished_and_duplicates_are_not() {
    let ports = [port("http", Protocol::Tcp, 80)];
    let at = |number| endpoint(Some("10.0.0.1"), None, &[("http", Protocol::Tcp, number)]);
    let ids = |endpoints: &[Endpoint]| -> Vec<String> {
        let specs = specs(&ports, endpoints).unwrap();
        specs.iter().map(|spec| spec.id.rsplit_once("-10-0-0-1").unwrap().1.to_owned()).collect()
    };
    assert_eq!(ids(&[at(9000), at(8080), at(8080)]), ["", "-9000"]);
    assert_eq!(ids(&[at(8080)]), [""]);
}

/// In a service with both records each instance needs both families, so an address of the other one is repeated.
#[test]
fn addresses_of_a_load_balancer_that_has_more_of_ipv6_are_all_instances() {
    let at = |ipv6| endpoint(Some("10.0.0.1"), Some(ipv6), &[]);
    let found = specs(&[], &[at("fd00::2"), at("fd00::1"), at("fd00::3"), at("fd00::2")]).unwrap();
    let instances: Vec<_> = found.iter().map(|spec| (&*spec.id, spec.ipv6.unwrap().to_string())).collect();
    let prefix = identity("uid-1").id_prefix();
    let id = |last: u8| format!("{prefix}-fd00{last:028x}");
    assert_eq!(
        instances,
        [
            (&*format!("{prefix}-10-0-0-1"), "fd00::1".to_owned()),
            (&*id(2), "fd00::2".to_owned()),
            (&*id(3), "fd00::3".to_owned())
        ]
    );
    let gone = Endpoint { conditions: Conditions { ready: false, ..Conditions::READY }, ..at("fd00::2") };
    assert_eq!(specs(&[], &[at("fd00::1"), gone]).unwrap().len(), 1, "a former pod is no further one");
}

#[test]
fn health_is_written_only_with_a_custom_check_and_is_no_difference() {
    let specs = specs(&[], &[endpoint(Some("10.0.0.1"), None, &[])]).unwrap();
    let plain = specs[0].render(ServiceTraits::default());
    let checked = specs[0].render(ServiceTraits { custom_health_check: true, ..ServiceTraits::default() });
    assert!(!plain.attributes.contains_key(INIT_HEALTH));
    assert_eq!(checked.attributes[INIT_HEALTH], "HEALTHY");
    assert_eq!(digest(&plain.attributes), digest(&checked.attributes));
    assert_eq!(specs[0].digest(ServiceTraits::default()), digest(&plain.attributes));
    let mut altered = plain.attributes.clone();
    altered.insert(IPV4.to_owned(), "10.0.0.9".to_owned());
    assert_ne!(digest(&altered), digest(&plain.attributes));
}

#[test]
fn an_endpoint_that_lacks_what_the_records_require_is_refused() {
    let ports = [port("http", Protocol::Tcp, 80)];
    let v4 = endpoint(Some("10.0.0.1"), None, &[WEB]);
    let v6 = endpoint(None, Some("fd00::1"), &[WEB]);
    let both = endpoint(Some("10.0.0.1"), Some("fd00::1"), &[WEB]);
    let portless = endpoint(Some("10.0.0.1"), Some("fd00::1"), &[]);
    for (records, fits) in [
        (&[][..], [true, true, true, true]),
        (&[A], [true, false, true, true]),
        (&[Aaaa], [false, true, true, true]),
        (&[A, Aaaa], [false, false, true, true]),
        (&[Srv], [true, true, true, false]),
        (&[Cname], [false, false, false, false]),
    ] {
        let dns = DnsConfig {
            weighted: false,
            records: records.iter().map(|&record_type| DnsRecord { record_type, ttl: 60 }).collect(),
        };
        let service = Service { dns: Some(dns), ..mk_service() };
        let traits = ServiceTraits::from(&service);
        let found = [&v4, &v6, &both, &portless]
            .map(|endpoint| specs(&ports, std::slice::from_ref(endpoint)).unwrap()[0].lacks(traits).is_none());
        assert_eq!(found, fits, "{records:?}");
    }
}

#[test]
fn more_ports_than_attributes_are_refused_with_the_remedy() {
    let names: Vec<_> = (0..30).map(|i| format!("port-{i}")).collect();
    let ports: Vec<_> = names.iter().map(|name| port(name, Protocol::Tcp, 80)).collect();
    let listed: Vec<_> = names.iter().map(|name| (name.as_str(), Protocol::Tcp, 8080)).collect();
    let error = specs(&ports, &[endpoint(Some("10.0.0.1"), None, &listed)]).unwrap_err().to_string();
    assert!(error.contains("shop/web has 30 ports") && error.contains("fewer ports"), "{error}");
    specs(&ports[..20], &[endpoint(Some("10.0.0.1"), None, &listed)]).unwrap();
}

/// What is registered, what was found and what is desired: each has the ids.
#[test]
fn instances_that_stay_have_the_ids_of_those_before_in_memory() {
    let of = |addresses: [&str; 2]| -> Arc<[InstanceSpec]> {
        specs(&[], &addresses.map(|address| endpoint(Some(address), None, &[WEB]))).unwrap().into()
    };
    let (before, mut after) = (of(["10.0.0.1", "10.0.0.2"]), of(["10.0.0.2", "10.0.0.3"]));
    InstanceSpec::share_ids(&mut after, &before);
    assert_eq!(after, of(["10.0.0.2", "10.0.0.3"]));
    assert!(Arc::ptr_eq(after[0].id(), before[1].id()));
}

/// Each own instance has one.
#[test]
fn a_digest_that_is_not_known_takes_no_more_room_than_one_that_is() {
    assert_eq!(size_of::<Option<Digest>>(), size_of::<u64>());
}

proptest! {
    #[test]
    fn ids_are_dns_labels_unique_per_cluster_and_foreign_to_all_other_schemes(
        ipv4 in proptest::option::of(any::<u32>()),
        ipv6 in any::<u128>(),
        uid in "[0-9a-f]{8}-[0-9a-f]{4}",
    ) {
        let mut endpoint = endpoint(None, None, &[WEB]);
        endpoint.ipv4 = ipv4.map(Ipv4Addr::from_bits);
        endpoint.ipv6 = Some(Ipv6Addr::from_bits(ipv6));
        let service = ServiceKey::new("shop", "web");
        let id = |uid: &str| {
            let identity = identity(uid);
            let source = Source { identity: &identity, service: &service, ports: &[], region: None };
            source.instances([&endpoint, &endpoint]).unwrap()[0].id.clone()
        };
        let own = id(&uid);
        prop_assert!(own.len() <= 63);
        prop_assert!(own.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-'));
        prop_assert!(own.starts_with("k8s-") && !own.ends_with('-'));
        prop_assert_ne!(&own, &id("another"));
        prop_assert_eq!(&own, &id(&uid));
    }
}
