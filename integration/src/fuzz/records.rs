//! The pairs of a state: exports, endpoints, registrations, votes, properties.

use std::{collections::BTreeMap, sync::Arc};

use ledger::{MAX_VALUE, Map, Value, joining::Ballot};
use model::{
    ClaimOwner, ClaimState, Conditions, Drain, Endpoint, EndpointPort, Export, Exported, IpFamily, MinReady, Protocol,
    Registration, ServiceKey, ServicePort, ServiceType, SessionAffinity, Target as CloudMapService, TrafficPolicy,
};
use records::{Catalog, chunks, properties};

use super::{Target, Verdict, fields, holds, same};

pub(super) const TARGETS: &[Target] = &[Target {
    name: "records",
    corpus,
    words: &[
        "ns/web",
        "ns/web#0",
        "ns/web#1",
        "!",
        "~",
        "^",
        "+",
        "@",
        "blue",
        "@tier",
        "100-50",
        "local-first",
        "http",
    ],
    longest: 16_000,
    quick: 3_000,
    check,
}];

fn export() -> Export {
    let port = |name: &str, protocol, port| ServicePort { name: name.into(), protocol, port, app_protocol: None };
    Export {
        uid: "5b1f6a4e-0000-4000-8000-000000000000".into(),
        created: 1_700_000_000,
        service_type: ServiceType::ClusterSetIp,
        ports: vec![
            ServicePort { app_protocol: Some("kubernetes.io/h2c".into()), ..port("http", Protocol::Tcp, 80) },
            port("dns", Protocol::Udp, 53),
            port("sig", Protocol::Sctp, 65_535),
        ],
        session_affinity: SessionAffinity::ClientIp { timeout: Some(600) },
        internal_traffic_policy: TrafficPolicy::Local,
        traffic_distribution: Some("PreferClose".into()),
        ip_families: vec![IpFamily::V6, IpFamily::V4],
        labels: [("team".to_owned(), "shop".to_owned())].into(),
        annotations: [("example.com/note".to_owned(), "text, with more".to_owned())].into(),
        publish_not_ready_addresses: true,
        target: Some(CloudMapService { namespace: "internal".into(), service: "web".into() }),
        cluster_selection: Some("local-first".into()),
        drain: Some(Drain::whole(MinReady::MOST)),
    }
}

fn endpoints(export: &Export) -> Vec<Endpoint> {
    let port = |port: &ServicePort| EndpointPort {
        name: port.name.clone(),
        protocol: port.protocol,
        port: 8_080,
        app_protocol: port.app_protocol.clone(),
    };
    let mut ports: Vec<EndpointPort> = export.ports.iter().map(port).collect();
    ports.sort_unstable();
    let endpoint = |n: u8| Endpoint {
        ipv4: (!n.is_multiple_of(3)).then(|| [10, 0, 0, n].into()),
        ipv6: (n % 3 != 1).then(|| [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)].into()),
        ports: if n == 7 { Arc::from([]) } else { ports[..=usize::from(n) % 3].into() },
        conditions: Conditions { ready: n.is_multiple_of(2), serving: n % 4 != 1, terminating: n.is_multiple_of(5) },
        hostname: n.is_multiple_of(2).then(|| format!("web-{n}").into()),
        zone: (n % 2 == 1).then(|| "eu-central-1a".into()),
        node: Some(format!("ip-10-0-0-{n}.eu-central-1.compute.internal").into()),
    };
    (1..20).map(endpoint).collect()
}

fn registration(state: ClaimState) -> Registration {
    let target = CloudMapService { namespace: "internal".into(), service: "web".into() };
    let owner = ClaimOwner::export(&ServiceKey::new("ns", "web"));
    Registration { target, owner, claimed: 1_700_000_000, state }
}

/// The pairs of an export, as they are published.
fn published(service: &ServiceKey, export: &Export, endpoints: &[Endpoint]) -> Option<Vec<(Arc<str>, Value)>> {
    let chunks = chunks::assign(&[], endpoints);
    let chunks = chunks.iter().map(|chunk| records::encode_chunk(service, chunk, &export.ports).ok());
    [records::encode_export(service, export).ok()].into_iter().chain(chunks).collect()
}

fn corpus() -> Vec<Vec<u8>> {
    let service = ServiceKey::new("ns", "web");
    let mut pairs = published(&service, &export(), &endpoints(&export())).unwrap_or_default();
    let headless = Export { service_type: ServiceType::Headless, ports: Vec::new(), drain: None, ..export() };
    pairs.extend(published(&ServiceKey::new("ns", "pods"), &headless, &[]).unwrap_or_default());
    let states = [ClaimState::Serves, ClaimState::Empty, ClaimState::Retiring, ClaimState::Unable];
    pairs.extend(states.into_iter().filter_map(|state| records::encode_registration(&registration(state)).ok()));
    pairs.extend(records::encode_waiting(&registration(ClaimState::Serves)));
    pairs.extend(properties::records([("region.topology.k8s.io", "eu-central-1"), ("tier", "gold")]));
    // A cluster that is gone, one that is approved, one that is rejected, and what the cluster says of itself.
    let gone = b"\x0a\x07uid-old\x10\x03\x18\x07".to_vec();
    let approved = [b"\x0a\x07uid-red\x12\x20".as_slice(), &[7; 32]].concat();
    let said =
        [("^old", gone), ("+red", approved), ("+grey", b"\x18\x01".to_vec()), ("+blue", b"\x20\x01\x28\x01".to_vec())];
    pairs.extend(said.into_iter().map(|(key, value)| (Arc::from(key), Value::from(value))));
    let one = |(key, value): &(Arc<str>, Value)| fields::join([key.as_bytes(), value]);
    let all = fields::join(pairs.iter().flat_map(|(key, value)| [key.as_bytes(), &**value]));
    let whole = published(&service, &export(), &endpoints(&export())).unwrap_or_default();
    let whole = fields::join(whole.iter().flat_map(|(key, value)| [key.as_bytes(), &**value]));
    pairs.iter().filter(|(key, _)| !key.contains(['#', '+', '@'])).map(one).chain([all, whole]).collect()
}

fn check(input: &[u8]) -> Verdict {
    let parts = fields::split(input);
    let pairs = parts.chunks_exact(2).map(|pair| (Arc::from(fields::text(pair[0])), Value::from(pair[1])));
    let map: Map = pairs.collect();
    let catalog = Catalog::decode(&map);
    for (service, exported) in &catalog.exports {
        again(service, exported)?;
    }
    for registration in catalog.registrations.values() {
        let again = records::encode_registration(registration).ok();
        let again = again.map(|(_, value)| records::decode_registration(&value));
        again.map_or(Ok(()), |again| same("the registration", &Some(registration.clone()), &again))?;
    }
    holds(catalog.properties.len() <= properties::MAX_PROPERTIES, || "too many properties".to_owned())?;
    let said: BTreeMap<_, _> = properties::records(catalog.properties.iter().map(|(name, value)| (&**name, &**value)));
    same("the properties", &catalog.properties, &properties::read(&said.into_iter().collect()))?;
    let ballot = Ballot::read(&map, "blue");
    holds(ballot.approved.len() + ballot.rejected.len() <= map.len(), || "more votes than pairs".to_owned())?;
    same("changes from itself", &0, &records::changed_services(&map, &map.clone()).len())?;
    let changed = records::changed_services(&Map::new(), &map);
    holds(catalog.exports.keys().all(|service| changed.contains(service)), || {
        "an export is not seen to come".to_owned()
    })?;
    holds(records::drains(&map).count() <= map.len(), || "more drains than pairs".to_owned())?;
    // These are found whatever their keys are.
    let registrations = records::registrations(&map);
    let is_found = |target| registrations.contains_key(target);
    holds(catalog.registrations.keys().all(is_found), || "a registration is not found".to_owned())?;
    holds(records::waiting(&map).count() <= map.len(), || "more claims than pairs".to_owned())?;
    let Catalog { exports, registrations, waiting, properties: _, forgotten, problems: _ } = catalog;
    Ok(!exports.is_empty() || !registrations.is_empty() || !waiting.is_empty() || !forgotten.is_empty())
}

/// What is read of an export is published as it is, unless it became too large: fields with a default are written.
fn again(service: &ServiceKey, exported: &Exported) -> Result<(), String> {
    let Exported { export, endpoints } = exported;
    let mut addresses: Vec<_> = endpoints.iter().map(|endpoint| (endpoint.ipv4, endpoint.ipv6)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    let numbers = export.ports.iter().map(|port| (port.protocol, port.port)).collect::<std::collections::BTreeSet<_>>();
    let names = export.ports.iter().map(|port| (port.protocol, &port.name)).collect::<std::collections::BTreeSet<_>>();
    // Kubernetes allows neither two ports with one number or name, nor one endpoint twice. Then the first one counts.
    let is_proper =
        addresses.len() == endpoints.len() && numbers.len() == export.ports.len() && names.len() == numbers.len();
    let Some(pairs) = published(service, export, endpoints) else { return Ok(()) };
    holds(pairs.iter().all(|(_, value)| value.len() <= MAX_VALUE), || "a value is too large".to_owned())?;
    let map: Map = pairs.into_iter().collect();
    let mut problems = Vec::new();
    let read = records::decode_service(&map, service, &mut problems).ok_or("it cannot be read again")?;
    same("the export", export, &read.export)?;
    if is_proper {
        same("the endpoints", endpoints, &read.endpoints)?;
    }
    same("problems", &Vec::new(), &problems)
}
