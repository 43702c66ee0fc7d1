//! Instances that others registered: ECS, the AWS Cloud Map MCS Controller, people.

use std::{collections::BTreeMap, sync::Arc};

use cloudmap::{Attributes, DnsConfig, DnsRecord, Instance, RecordType, Service, attributes as names};
use discovery::{Backend, Front, Numbers, fit, label, service};
use instances::{Adopt, Owner, Source, attributes, ownership, share::Others};
use model::{
    ClusterId, Conditions, Endpoint, EndpointPort, Protocol, ServiceKey, ServicePort, ServiceType, is_dns_label,
    is_port_name,
};

use super::{Target, Verdict, fields, holds, same};

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "instance",
        corpus,
        words: &[
            names::IPV4,
            names::IPV6,
            names::PORT,
            names::ALIAS,
            names::CNAME,
            names::EC2_INSTANCE,
            names::ECS_CLUSTER,
            names::ZONE,
            names::CLUSTERSET,
            names::CLUSTER,
            names::CLUSTER_UID,
            names::PARTIAL,
            "CLUSTERSET_ID",
            "CLUSTER_ID",
            "ClusterSetIP",
            "Headless",
            "prod",
            "blue",
            "uid-blue",
            "192.0.2.7",
            "::ffff:192.0.2.7",
            "2001:db8::7%eth0",
            "010.0.0.1",
            "8080",
            "tcp-192_0_2_7-8080",
            "TCP",
            "true",
            "T",
        ],
        longest: 12_000,
        quick: 3_000,
        check,
    },
    Target {
        name: "name",
        corpus: || {
            ["orders", "Orders.Internal", "a-x0123456789", "_http._tcp", "-"].map(|it| it.as_bytes().to_vec()).into()
        },
        words: &["-x0123456789", "x0123456789", "ecs-", "cloudmap-", ".", "my service", "örders"],
        longest: 2_000,
        quick: 3_000,
        check: name,
    },
];

fn owner() -> Option<Owner> {
    Some(Owner { clusterset: "prod".parse().ok(), cluster: "blue".parse().ok()?, cluster_uid: "uid-blue".into() })
}

fn ports() -> Vec<ServicePort> {
    let port = |name: &str, port| ServicePort { name: name.into(), protocol: Protocol::Tcp, port, app_protocol: None };
    vec![port("http", 80), port("metrics", 9_090)]
}

fn endpoints() -> Vec<Endpoint> {
    let port = |port: &ServicePort| EndpointPort {
        name: port.name.clone(),
        protocol: port.protocol,
        port: 8_080,
        app_protocol: None,
    };
    let ports: Arc<[EndpointPort]> = ports().iter().map(port).collect();
    let endpoint = |n: u8| Endpoint {
        ipv4: (n != 2).then(|| [192, 0, 2, n].into()),
        ipv6: (n != 1).then(|| [0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(n)].into()),
        ports: ports.clone(),
        conditions: Conditions::READY,
        hostname: Some("web-0".into()),
        zone: Some("eu-central-1a".into()),
        node: Some("node-1".into()),
    };
    (1..4).map(endpoint).collect()
}

/// Services with each kind of records.
fn services() -> Vec<Service> {
    let service = |records: &[RecordType]| Service {
        id: "srv-0123456789abcdef".into(),
        arn: "arn:aws:servicediscovery:eu-central-1:111122223333:service/srv-0123456789abcdef".into(),
        name: "web".into(),
        namespace_id: None,
        description: None,
        creator_request_id: None,
        dns: (!records.is_empty()).then(|| DnsConfig {
            weighted: false,
            records: records.iter().map(|record_type| DnsRecord { record_type: *record_type, ttl: 60 }).collect(),
        }),
        custom_health_check: false,
        health_check: None,
        created: 0,
        instances: None,
    };
    [&[][..], &[RecordType::Srv], &[RecordType::A, RecordType::Aaaa]].map(service).into()
}

fn corpus() -> Vec<Vec<u8>> {
    let key = ServiceKey::new("ns", "web");
    let ours: Option<Vec<Instance>> = owner().map(|owner| {
        let (ports, endpoints) = (ports(), endpoints());
        let source = Source { identity: &owner, service: &key, ports: &ports, region: Some("eu-central-1") };
        let specs = source.instances(&endpoints).unwrap_or_default();
        services()
            .iter()
            .flat_map(|service| specs.iter().map(|spec| spec.render(service.into())).collect::<Vec<_>>())
            .collect()
    });
    let ecs = [
        (names::IPV4, "192.0.2.7"),
        (names::PORT, "49153"),
        (names::ECS_CLUSTER, "shop"),
        (names::ECS_SERVICE, "web"),
        ("ECS_TASK_DEFINITION_FAMILY", "web"),
        (names::ZONE, "eu-central-1a"),
        (names::REGION, "eu-central-1"),
        (names::INIT_HEALTH, "HEALTHY"),
        ("EC2_INSTANCE_ID", "i-0123456789abcdef0"),
    ];
    let alias = [(names::ALIAS, "lb-1.eu-central-1.elb.amazonaws.com")];
    let others = [("0123456789abcdef0123456789abcdef", ecs.as_slice()), ("lb", &alias), ("192.0.2.7", &ecs[..1])];
    let others = others.map(|(id, pairs)| Instance {
        id: id.into(),
        attributes: pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    });
    let all: Vec<Instance> =
        ours.unwrap_or_default().into_iter().chain(others).chain(of_aws_mcs().unwrap_or_default()).collect();
    all.iter().map(fields::of_instance).collect()
}

/// As the AWS controller registers them, and as we do for it.
fn of_aws_mcs() -> Option<Vec<Instance>> {
    let (cluster, clusterset) = ("red".parse().ok()?, "prod".parse().ok()?);
    let ports = ports();
    let mut made = Vec::new();
    for endpoint in endpoints() {
        for service_type in [ServiceType::ClusterSetIp, ServiceType::Headless] {
            let exported = awsmcs::ExportAttributes {
                cluster: &cluster,
                clusterset: &clusterset,
                created: 1_700_000_000,
                service_type,
            };
            let port = awsmcs::PortOf { service: &ports[0], number: 8_080 };
            let mut attributes: Attributes = port.attributes(exported, &endpoint);
            attributes.insert(names::PORT.to_owned(), "8080".to_owned());
            attributes.extend(endpoint.ipv4.map(|address| (names::IPV4.to_owned(), address.to_string())));
            attributes.extend(endpoint.ipv6.map(|address| (names::IPV6.to_owned(), address.to_string())));
            let address = endpoint.ipv4.map(Into::into).or(endpoint.ipv6.map(Into::into))?;
            made.push(Instance { id: port.id(address).into(), attributes });
        }
    }
    Some(made)
}

fn check(input: &[u8]) -> Verdict {
    let instance = fields::instance(input);
    let key = ServiceKey::new("ns", "web");
    let owner = owner().ok_or("no owner")?;
    let is_ours = ownership::is_ours(&instance, &owner);
    holds(!ownership::is_of(&instance, &key, &owner) || is_ours, || "of a Service of ours, and not ours".to_owned())?;
    holds(
        !is_ours || ownership::is_of_our_set(&instance, &owner) || !instance.attributes.contains_key(names::CLUSTERSET),
        || "ours, and not of our ClusterSet".to_owned(),
    )?;
    for adopt in ["external-dns/one", "cloudmap-controller"].iter().filter_map(|text| text.parse::<Adopt>().ok()) {
        holds(!adopt.wrote(&instance) || !is_ours, || format!("ours, and written by {adopt}"))?;
    }
    attributes::digest(&instance.attributes);
    Others::of([&instance]);
    let registered = of_others(&instance)?;
    let mut backends = Vec::new();
    for service in services() {
        let Ok(backend) = Backend::read(&instance, true, &service, "internal.example") else { continue };
        holds(backend.addresses().next().is_some(), || "an endpoint without an address".to_owned())?;
        holds(backend.port != Some(0), || "the port 0".to_owned())?;
        holds(ClusterId::is_discovered(backend.source.as_str()), || format!("the source {}", backend.source))?;
        backends.push(backend);
    }
    if let Some(made) = service(&backends, None) {
        let fitted = fit(&Front::of(&made), [], &backends, &Numbers::new());
        let count: usize = fitted.endpoints.values().map(Vec::len).sum();
        holds(count + fitted.misfits.len() <= backends.len(), || format!("{count} endpoints"))?;
        holds(count > 0, || format!("no endpoint: {fitted:?}"))?;
    }
    Ok(registered || !backends.is_empty() || instance.attributes.contains_key(names::ALIAS))
}

/// The instance as one of the AWS controller.
fn of_others(instance: &Instance) -> Verdict {
    let (Ok(clusterset), Ok(cluster)) = ("prod".parse(), "red".parse()) else { return Ok(false) };
    awsmcs::wrote(instance, &cluster, &clusterset);
    if !awsmcs::is_of_set(instance, &clusterset) {
        return Ok(false);
    }
    let Ok(told) = awsmcs::Registered::read(instance, true) else { return Ok(false) };
    holds(told.port.port > 0 && told.served.port > 0, || "the port 0".to_owned())?;
    holds(is_port_name(&told.port.name), || format!("a port {:?}", told.port.name))?;
    holds(told.hostname.as_deref().is_none_or(is_dns_label), || format!("a host {:?}", told.hostname))?;
    let mut exports: BTreeMap<_, _> = BTreeMap::new();
    awsmcs::join(&mut exports, awsmcs::exports([&told, &told]), |_| false);
    let endpoints: Vec<usize> = exports.values().map(|exported| exported.endpoints.len()).collect();
    same("the endpoints of one address", &vec![1], &endpoints)?;
    Ok(true)
}

fn name(input: &[u8]) -> Verdict {
    let text = String::from_utf8_lossy(input);
    let made = label(&text);
    holds(is_dns_label(&made), || format!("the name {made:?}"))?;
    holds(made == *text || made.len() <= 63 && label(&made) != made, || format!("two names become {made:?}"))?;
    let sources = [discovery::source(Some(&text), "internal"), discovery::source(None, &text)];
    holds(sources.iter().flatten().all(|source| ClusterId::is_discovered(source.as_str())), || format!("{sources:?}"))?;
    // AWS allows no other names.
    let is_of_aws = (1..=255).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    holds(!is_of_aws || sources.iter().all(Option::is_some), || format!("no source: {sources:?}"))?;
    Ok(is_of_aws)
}
