//! Typed records and the pairs of a [`Map`] that carry them.
//!
//! | key | value |
//! |---|---|
//! | `<ns>/<name>` | [`Export`] |
//! | `<ns>/<name>#<i>` | a chunk of at most 16 [`Endpoint`]s |
//! | `!<id>` | [`Registration`]; the id is a short hash of its target |
//!
//! Equal records encode to equal bytes. What a newer release adds is ignored; an unreadable record is skipped and
//! reported, and costs nothing else.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, Ipv6Addr},
    ops::Bound,
    sync::Arc,
};

use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{Map, Value, chunks::Chunk, head::difference, wire};
use crate::model::{
    ClaimOwner, Conditions, Endpoint, EndpointPort, Export, Exported, IpFamily, Protocol, Registration, ServiceKey,
    ServicePort, ServiceType, SessionAffinity, Target, TrafficPolicy,
};

/// Largest value, in bytes: it must fit into a page, and into a delta beside others.
pub const MAX_VALUE: usize = 2_500;

/// A record that is too large for the ledger. The object that caused it is refused; nothing else is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to encode {key}: it takes {bytes} bytes of at most {MAX_VALUE}; export fewer or shorter labels, annotations or ports"
)]
pub struct TooLarge {
    pub key: Arc<str>,
    pub bytes: usize,
}

/// A pair that was skipped, or a field of it that was degraded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub key: Arc<str>,
    pub message: &'static str,
}

/// A decoded [`Map`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    pub exports: BTreeMap<ServiceKey, Exported>,
    pub registrations: BTreeMap<Target, Registration>,
    pub problems: Vec<Problem>,
}

impl Catalog {
    pub fn decode(map: &Map) -> Self {
        let mut catalog = Self::default();
        for (key, value) in map {
            match Key::parse(key) {
                Some(Key::Export(service)) => {
                    if let Some(exported) = decode_service(map, &service, &mut catalog.problems) {
                        catalog.exports.insert(service, exported);
                    }
                }
                Some(Key::Registration) => match decode_registration(value) {
                    Some(registration) => {
                        catalog.registrations.insert(registration.target.clone(), registration);
                    }
                    None => catalog.problems.push(unreadable(key)),
                },
                Some(Key::Chunk(_)) => {}
                // A newer release's kind of record.
                None => catalog.problems.push(Problem { key: key.clone(), message: "unknown kind of record" }),
            }
        }
        catalog
    }
}

/// The services whose export or endpoints differ between two maps.
pub fn changed_services(old: &Map, new: &Map) -> BTreeSet<ServiceKey> {
    let services = difference(old, new).into_iter().filter_map(|(key, _)| match Key::parse(&key)? {
        Key::Export(service) | Key::Chunk(service) => Some(service),
        Key::Registration => None,
    });
    services.collect()
}

/// The targets whose registration records differ between two maps.
pub fn changed_registrations(old: &Map, new: &Map) -> BTreeSet<Target> {
    let differing = |map: &Map, other: &Map| {
        registration_records(map)
            .filter(|(key, value)| other.get(*key) != Some(value))
            .filter_map(|(_, value)| Some(decode_registration(value)?.target))
            .collect::<BTreeSet<_>>()
    };
    let mut targets = differing(old, new);
    targets.append(&mut differing(new, old));
    targets
}

/// One service of `map`; `None` when it is not exported or its export is unreadable.
pub fn decode_service(map: &Map, service: &ServiceKey, problems: &mut Vec<Problem>) -> Option<Exported> {
    let key = export_key(service);
    let mut export = decode_export(map.get(&key)?);
    match &mut export {
        Some((_, degraded)) => problems.extend(degraded.drain(..).map(|message| Problem { key: key.clone(), message })),
        None => problems.push(unreadable(&key)),
    }
    let (export, _) = export?;
    let mut endpoints: Vec<Endpoint> =
        chunks(map, service, problems).into_iter().flat_map(|chunk| chunk.endpoints).collect();
    endpoints.sort_unstable();
    Some(Exported { export, endpoints })
}

/// The chunks of a service's endpoints, for [`super::chunks::assign`].
pub fn chunks(map: &Map, service: &ServiceKey, problems: &mut Vec<Problem>) -> Vec<Chunk> {
    let prefix: Arc<str> = format!("{service}#").into();
    let mut chunks = Vec::new();
    for (key, value) in map.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&*prefix)) {
        match (key[prefix.len()..].parse(), decode_chunk(value)) {
            (Ok(index), Some(endpoints)) => chunks.push(Chunk { index, endpoints }),
            _ => problems.push(unreadable(key)),
        }
    }
    chunks
}

pub fn encode_export(service: &ServiceKey, export: &Export) -> Result<(Arc<str>, Value), TooLarge> {
    let (affinity, affinity_timeout) = match export.session_affinity {
        SessionAffinity::None => (0, None),
        SessionAffinity::ClientIp { timeout } => (1, timeout),
    };
    let message = wire::Export {
        uid: export.uid.to_string(),
        created: export.created,
        service_type: match export.service_type {
            ServiceType::ClusterSetIp => 1,
            ServiceType::Headless => 2,
        },
        ports: export
            .ports
            .iter()
            .map(|port| write_port(&port.name, port.protocol, port.port, port.app_protocol.as_ref()))
            .collect(),
        affinity,
        affinity_timeout,
        internal_traffic_policy: u32::from(export.internal_traffic_policy == TrafficPolicy::Local),
        traffic_distribution: export.traffic_distribution.as_ref().map(ToString::to_string),
        families: export.ip_families.iter().map(|family| if *family == IpFamily::V4 { 4 } else { 6 }).collect(),
        labels: export.labels.clone(),
        annotations: export.annotations.clone(),
        publish_not_ready_addresses: export.publish_not_ready_addresses,
        target: export.target.as_ref().map(write_target),
    };
    bounded(export_key(service), message.encode_to_vec())
}

pub fn encode_chunk(service: &ServiceKey, chunk: &Chunk) -> Result<(Arc<str>, Value), TooLarge> {
    bounded(chunk_key(service, chunk.index), super::chunks::encode(&chunk.endpoints))
}

pub fn encode_registration(registration: &Registration) -> Result<(Arc<str>, Value), TooLarge> {
    let message = wire::Registration {
        target: Some(write_target(&registration.target)),
        owner_kind: registration.owner.kind.to_string(),
        owner_namespace: registration.owner.namespace.to_string(),
        owner_name: registration.owner.name.to_string(),
        claimed: registration.claimed,
        retiring: registration.retiring,
    };
    bounded(registration_key(&registration.target), message.encode_to_vec())
}

/// The registration records of a map, by target; unreadable ones are left out.
pub fn registrations(map: &Map) -> BTreeMap<Target, Registration> {
    registration_records(map)
        .filter_map(|(_, value)| decode_registration(value))
        .map(|registration| (registration.target.clone(), registration))
        .collect()
}

fn registration_records(map: &Map) -> impl Iterator<Item = (&Arc<str>, &Value)> {
    map.range::<str, _>((Bound::Included("!"), Bound::Unbounded)).take_while(|(key, _)| key.starts_with('!'))
}

pub fn export_key(service: &ServiceKey) -> Arc<str> {
    service.to_string().into()
}

pub fn chunk_key(service: &ServiceKey, index: u32) -> Arc<str> {
    format!("{service}#{index}").into()
}

pub fn registration_key(target: &Target) -> Arc<str> {
    let digest = Sha256::new().chain_update(&*target.namespace).chain_update([0]).chain_update(&*target.service);
    let digest = digest.finalize();
    digest[..8].iter().fold("!".to_owned(), |id, byte| format!("{id}{byte:02x}")).into()
}

enum Key {
    Export(ServiceKey),
    Chunk(ServiceKey),
    Registration,
}

impl Key {
    fn parse(key: &str) -> Option<Self> {
        if key.starts_with('!') {
            return Some(Self::Registration);
        }
        let (namespace, rest) = key.split_once('/')?;
        let (name, index) = rest.split_once('#').map_or((rest, None), |(name, index)| (name, Some(index)));
        if namespace.is_empty() || name.is_empty() || index.is_some_and(|index| index.parse::<u32>().is_err()) {
            return None;
        }
        let service = ServiceKey::new(namespace, name);
        Some(if index.is_some() { Self::Chunk(service) } else { Self::Export(service) })
    }
}

fn bounded(key: Arc<str>, bytes: Vec<u8>) -> Result<(Arc<str>, Value), TooLarge> {
    if bytes.len() > MAX_VALUE { Err(TooLarge { key, bytes: bytes.len() }) } else { Ok((key, bytes.into())) }
}

fn unreadable(key: &Arc<str>) -> Problem {
    Problem { key: key.clone(), message: "unreadable record" }
}

/// The export, and which of its fields this release does not understand.
fn decode_export(bytes: &[u8]) -> Option<(Export, Vec<&'static str>)> {
    let message = wire::Export::decode(bytes).ok()?;
    let mut degraded = Vec::new();
    let ports: Vec<ServicePort> = message
        .ports
        .iter()
        .filter_map(read_port)
        .map(|(name, protocol, port, app_protocol)| ServicePort { name, protocol, port, app_protocol })
        .collect();
    if ports.len() < message.ports.len() {
        degraded.push("a port of unknown protocol is left out");
    }
    let ip_families: Vec<IpFamily> = message.families.iter().copied().filter_map(read_family).collect();
    if ip_families.len() < message.families.len() {
        degraded.push("an unknown IP family is left out");
    }
    let service_type = match message.service_type {
        1 => ServiceType::ClusterSetIp,
        2 => ServiceType::Headless,
        _ => {
            degraded.push("the unknown type is read as ClusterSetIP");
            ServiceType::ClusterSetIp
        }
    };
    let session_affinity = match message.affinity {
        0 => SessionAffinity::None,
        1 => SessionAffinity::ClientIp { timeout: message.affinity_timeout },
        _ => {
            degraded.push("the unknown session affinity is read as None");
            SessionAffinity::None
        }
    };
    let internal_traffic_policy = match message.internal_traffic_policy {
        0 => TrafficPolicy::Cluster,
        1 => TrafficPolicy::Local,
        _ => {
            degraded.push("the unknown internal traffic policy is read as Cluster");
            TrafficPolicy::Cluster
        }
    };
    let export = Export {
        uid: message.uid.into(),
        created: message.created,
        service_type,
        ports,
        session_affinity,
        internal_traffic_policy,
        traffic_distribution: message.traffic_distribution.map(Into::into),
        ip_families,
        labels: message.labels,
        annotations: message.annotations,
        publish_not_ready_addresses: message.publish_not_ready_addresses,
        target: message.target.map(read_target),
    };
    Some((export, degraded))
}

fn decode_chunk(bytes: &[u8]) -> Option<Vec<Endpoint>> {
    let message = wire::Chunk::decode(bytes).ok()?;
    let port_sets: Vec<Arc<[EndpointPort]>> = message
        .port_sets
        .iter()
        .map(|set| {
            let ports = set.ports.iter().filter_map(read_port);
            ports
                .map(|(name, protocol, port, app_protocol)| EndpointPort { name, protocol, port, app_protocol })
                .collect()
        })
        .collect();
    let zones: Vec<Arc<str>> = message.zones.into_iter().map(Into::into).collect();
    let nodes: Vec<Arc<str>> = message.nodes.into_iter().map(Into::into).collect();
    let named = |names: &[Arc<str>], index: u32| match index {
        0 => Some(None),
        index => names.get(index as usize - 1).cloned().map(Some),
    };
    message
        .endpoints
        .into_iter()
        .map(|endpoint| {
            let ipv6 = match endpoint.ipv6 {
                Some(bytes) => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
                None => None,
            };
            let ipv4 = endpoint.ipv4.map(Ipv4Addr::from_bits);
            (ipv4.is_some() || ipv6.is_some()).then_some(())?;
            Some(Endpoint {
                ipv4,
                ipv6,
                ports: port_sets.get(endpoint.port_set as usize)?.clone(),
                conditions: Conditions {
                    ready: endpoint.conditions & 1 == 0,
                    serving: endpoint.conditions & 2 == 0,
                    terminating: endpoint.conditions & 4 != 0,
                },
                hostname: endpoint.hostname.map(Into::into),
                zone: named(&zones, endpoint.zone)?,
                node: named(&nodes, endpoint.node)?,
            })
        })
        .collect()
}

/// One registration record; `None` if it is unreadable.
pub fn decode_registration(bytes: &[u8]) -> Option<Registration> {
    let message = wire::Registration::decode(bytes).ok()?;
    Some(Registration {
        target: read_target(message.target?),
        owner: ClaimOwner {
            kind: message.owner_kind.into(),
            namespace: message.owner_namespace.into(),
            name: message.owner_name.into(),
        },
        claimed: message.claimed,
        retiring: message.retiring,
    })
}

pub(super) fn write_port(name: &str, protocol: Protocol, port: u16, app_protocol: Option<&Arc<str>>) -> wire::Port {
    wire::Port {
        name: name.to_owned(),
        protocol: match protocol {
            Protocol::Tcp => 0,
            Protocol::Udp => 1,
            Protocol::Sctp => 2,
        },
        port: port.into(),
        app_protocol: app_protocol.map(ToString::to_string),
    }
}

type PortFields = (Arc<str>, Protocol, u16, Option<Arc<str>>);

fn read_port(port: &wire::Port) -> Option<PortFields> {
    let protocol = match port.protocol {
        0 => Protocol::Tcp,
        1 => Protocol::Udp,
        2 => Protocol::Sctp,
        _ => return None,
    };
    let number = u16::try_from(port.port).ok()?;
    Some((port.name.as_str().into(), protocol, number, port.app_protocol.as_deref().map(Into::into)))
}

const fn read_family(family: u32) -> Option<IpFamily> {
    match family {
        4 => Some(IpFamily::V4),
        6 => Some(IpFamily::V6),
        _ => None,
    }
}

fn write_target(target: &Target) -> wire::Target {
    wire::Target { namespace: target.namespace.to_string(), service: target.service.to_string() }
}

fn read_target(target: wire::Target) -> Target {
    Target { namespace: target.namespace.into(), service: target.service.into() }
}
