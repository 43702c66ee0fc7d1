//! What the pairs of a cluster's state in the ledger mean. The ledger itself only carries them.
//!
//! | key | value |
//! |---|---|
//! | `<ns>/<name>` | [`Export`] |
//! | `<ns>/<name>#<i>` | a chunk of at most 16 [`Endpoint`]s |
//! | `!<id>`, `~<id>` | a claim that holds its target or waits for it, as a [`Registration`]; [`ledger::claims`] has the keys |
//! | `^<cluster id>` | [`Forgotten`] |
//! | `+<cluster id>` | who may join; [`ledger::joining`] |
//! | `@<name>` | the value of a [property](properties) of the cluster |
//!
//! Equal records encode to equal bytes. Fields of a newer version are ignored. An unreadable record is skipped and
//! reported; the others are not affected.

#![warn(missing_docs)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use prost::Message as _;

pub mod chunks;
pub mod properties;
mod received;
mod show;
#[cfg(test)]
mod tests;
mod wire;

pub use show::{ClusterView, read_all};

use chunks::{Chunk, Places};
use ledger::{
    MAX_VALUE, Map, Value,
    claims::{self, Claim},
    forgotten::{self, Forgotten},
    joining,
};
use model::{
    ClaimOwner, ClaimState, Drain, Endpoint, Export, Exported, IpFamily, Protocol, Registration, ServiceKey,
    ServicePort, ServiceType, SessionAffinity, Target, TrafficPolicy, intern, is_dns_label,
};

/// Maximum length of a key that is read, in bytes. The longest key that is written has a namespace and a name of 63
/// characters each, and the number of a chunk.
const MAX_KEY: usize = 160;

/// A record is too large for the ledger. Only the object that caused it is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("failed to encode {key}: it takes {bytes} bytes of at most {MAX_VALUE}; {}", remedy(.key))]
pub struct TooLarge {
    /// The key of the record.
    pub key: Arc<str>,
    /// Its size.
    pub bytes: usize,
}

fn remedy(key: &str) -> &'static str {
    if key.contains('#') {
        // Labels and annotations are in the export record.
        "too many EndpointSlices list one address with other port numbers; let fewer of them do so"
    } else {
        "export fewer or shorter labels, annotations or ports"
    }
}

/// A pair that was skipped, or a field of it that was replaced by a default.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The key of the pair.
    pub key: Arc<str>,
    /// What is wrong.
    pub message: &'static str,
}

/// A decoded [`Map`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalog {
    /// The exports, with their endpoints.
    pub exports: BTreeMap<ServiceKey, Exported>,
    /// The registration records.
    pub registrations: BTreeMap<Target, Registration>,
    /// Claims that wait for one of these.
    pub waiting: Vec<Registration>,
    /// The properties of the cluster.
    pub properties: BTreeMap<String, String>,
    /// Clusters that are gone for good, as this one says.
    pub forgotten: BTreeMap<Arc<str>, Forgotten>,
    /// Entries that cannot be decoded.
    pub problems: Vec<Problem>,
}

impl Catalog {
    /// Decodes all records of a map.
    pub fn decode(map: &Map) -> Self {
        let mut catalog = Self { properties: properties::read(map), ..Self::default() };
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
                Some(Key::Waiting) => match decode_registration(value) {
                    Some(waiting) => catalog.waiting.push(waiting),
                    None => catalog.problems.push(unreadable(key)),
                },
                Some(Key::Forgotten(cluster)) => match Forgotten::decode(value) {
                    Some(forgotten) => {
                        catalog.forgotten.insert(cluster, forgotten);
                    }
                    None => catalog.problems.push(unreadable(key)),
                },
                Some(Key::Chunk(_) | Key::Vote | Key::Property) => {}
                // A kind of record from a newer version.
                None => catalog.problems.push(Problem { key: key.clone(), message: "unknown kind of record" }),
            }
        }
        catalog
    }

    /// How many instances the exports of the cluster have in each target, if all that it claims is done: one for each ready
    /// endpoint. Those of annotated Services are not known: their endpoints are not in the ledger.
    pub fn instances(&self) -> impl Iterator<Item = (&Target, usize)> {
        let claims = self.registrations.iter().filter(|(_, claim)| !claim.is_retiring() && !claim.is_unable());
        claims.map(|(target, claim)| {
            let export = (!claim.owner.is_ingress()).then(|| self.exports.get(&claim.owner.key())).flatten();
            (target, export.map_or(0, Exported::ready))
        })
    }
}

/// The services whose export or endpoints differ between two maps.
pub fn changed_services(old: &Map, new: &Map) -> BTreeSet<ServiceKey> {
    let services = old.difference(new).filter_map(|(key, ..)| match Key::parse(key)? {
        Key::Export(service) | Key::Chunk(service) => Some(service),
        Key::Registration | Key::Waiting | Key::Forgotten(_) | Key::Vote | Key::Property => None,
    });
    services.collect()
}

/// The targets whose registration records differ between two maps.
pub fn changed_registrations(old: &Map, new: &Map) -> BTreeSet<Target> {
    let records = old.difference(new).filter(|(key, ..)| key.starts_with(claims::HOLDS));
    let registrations =
        records.flat_map(|(_, old, new)| old.into_iter().chain(new)).filter_map(|v| decode_registration(v));
    registrations.map(|registration| registration.target).collect()
}

/// One service of `map`; `None` if it is not exported, or its export is unreadable.
pub fn decode_service(map: &Map, service: &ServiceKey, problems: &mut Vec<Problem>) -> Option<Exported> {
    let key = export_key(service);
    let mut export = received::export(map.get(&key)?);
    match &mut export {
        Some((_, degraded)) => problems.extend(degraded.drain(..).map(|message| Problem { key: key.clone(), message })),
        None => problems.push(unreadable(&key)),
    }
    let (export, _) = export?;
    let chunks = read_chunks(map, service, &export.ports, problems);
    let mut endpoints: Vec<Endpoint> = chunks.into_iter().flat_map(|chunk| chunk.endpoints).collect();
    endpoints.sort_unstable();
    Some(Exported { export, endpoints })
}

/// The ports in the export record of a service; empty if it cannot be read.
pub fn ports(map: &Map, service: &ServiceKey) -> Vec<ServicePort> {
    let export = map.get(&export_key(service)).and_then(|value| received::export(value));
    export.map(|(export, _)| export.ports).unwrap_or_default()
}

/// The drains in the export records of a map.
pub fn drains(map: &Map) -> impl Iterator<Item = (ServiceKey, Drain)> {
    map.into_iter().filter_map(|(key, value)| match Key::parse(key)? {
        Key::Export(service) => Some((service, received::export(value)?.0.drain?)),
        _ => None,
    })
}

/// In which chunk each endpoint of a service is, for [`chunks::assign`]. Unreadable chunks are left out.
pub fn places(map: &Map, service: &ServiceKey) -> Places {
    chunks::places(&read_chunks(map, service, &[], &mut Vec::new()))
}

/// The keys of all chunks of a service, readable or not.
pub fn chunk_keys(map: &Map, service: &ServiceKey) -> Vec<Arc<str>> {
    chunk_records(map, service).map(|(key, _, _)| key.clone()).collect()
}

/// The chunks with the index part of each key.
fn chunk_records<'a>(map: &'a Map, service: &ServiceKey) -> impl Iterator<Item = (&'a Arc<str>, &'a str, &'a Value)> {
    let prefix = format!("{service}#");
    map.range_from(&*prefix).map_while(move |(key, value)| Some((key, key.strip_prefix(&*prefix)?, value)))
}

fn read_chunks(map: &Map, service: &ServiceKey, ports: &[ServicePort], problems: &mut Vec<Problem>) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    for (key, index, value) in chunk_records(map, service) {
        match (index.parse(), chunks::decode(value, ports)) {
            (Ok(index), Some((endpoints, degraded))) => {
                problems.extend(degraded.map(|message| Problem { key: key.clone(), message }));
                chunks.push(Chunk { index, endpoints });
            }
            _ => problems.push(unreadable(key)),
        }
    }
    chunks
}

/// Encodes an export.
///
/// # Errors
/// It is too large.
pub fn encode_export(service: &ServiceKey, export: &Export) -> Result<(Arc<str>, Value), TooLarge> {
    let Export {
        uid,
        created,
        service_type,
        ports,
        session_affinity,
        internal_traffic_policy,
        traffic_distribution,
        ip_families,
        labels,
        annotations,
        publish_not_ready_addresses,
        target,
        cluster_selection,
        drain,
    } = export;
    let (affinity, affinity_timeout) = match *session_affinity {
        SessionAffinity::None => (0, None),
        SessionAffinity::ClientIp { timeout } => (1, timeout),
    };
    let message = wire::Export {
        uid: uid.to_string(),
        created: *created,
        service_type: match service_type {
            ServiceType::ClusterSetIp => 1,
            ServiceType::Headless => 2,
        },
        ports: ports.iter().map(write_port).collect(),
        affinity,
        affinity_timeout,
        internal_traffic_policy: u32::from(*internal_traffic_policy == TrafficPolicy::Local),
        traffic_distribution: traffic_distribution.as_ref().map(ToString::to_string),
        families: ip_families.iter().map(|family| if *family == IpFamily::V4 { 4 } else { 6 }).collect(),
        labels: labels.clone(),
        annotations: annotations.clone(),
        publish_not_ready_addresses: *publish_not_ready_addresses,
        target: target.as_ref().map(write_target),
        cluster_selection: cluster_selection.as_ref().map(ToString::to_string),
        drain: drain.as_ref().map(ToString::to_string),
    };
    bounded(export_key(service), message.encode_to_vec())
}

/// Encodes a chunk. `ports` are those of the export record: a chunk only refers to them, with the numbers on which its
/// endpoints listen.
///
/// # Errors
/// The chunk contains one endpoint that is too large ([`chunks::assign`]).
pub fn encode_chunk(service: &ServiceKey, chunk: &Chunk, ports: &[ServicePort]) -> Result<(Arc<str>, Value), TooLarge> {
    bounded(chunk_key(service, chunk.index), chunks::encode(&chunk.endpoints, ports))
}

/// Encodes a registration record.
///
/// # Errors
/// It is too large.
pub fn encode_registration(registration: &Registration) -> Result<(Arc<str>, Value), TooLarge> {
    bounded(registration_key(&registration.target), write_registration(registration))
}

/// A claim that waits, as one that holds, under a key of its own.
///
/// # Errors
/// As [`encode_registration`].
pub fn encode_waiting(waiting: &Registration) -> Result<(Arc<str>, Value), TooLarge> {
    bounded(waiting_key(&waiting.target, &waiting.owner), write_registration(waiting))
}

fn write_registration(registration: &Registration) -> Vec<u8> {
    let Registration { target, owner: ClaimOwner { kind, namespace, name }, claimed, state } = registration;
    let message = Claim {
        target: Some(write_target(target)),
        owner_kind: kind.to_string(),
        owner_namespace: namespace.to_string(),
        owner_name: name.to_string(),
        claimed: *claimed,
        retiring: matches!(state, ClaimState::Retiring | ClaimState::Unable),
        empty: *state == ClaimState::Empty,
        unable: *state == ClaimState::Unable,
    };
    message.encode_to_vec()
}

/// The registration records of a map, by target. Unreadable ones are left out.
pub fn registrations(map: &Map) -> BTreeMap<Target, Registration> {
    claims::values(map, claims::HOLDS)
        .filter_map(|value| decode_registration(value))
        .map(|registration| (registration.target.clone(), registration))
        .collect()
}

/// The registration record of a target, if it is readable.
pub fn registration(map: &Map, target: &Target) -> Option<Registration> {
    registration_under(map, &registration_key(target), target)
}

/// The same where the target's [`registration_key`] is known: to look into many maps, it is computed once.
pub fn registration_under(map: &Map, key: &str, target: &Target) -> Option<Registration> {
    decode_registration(map.get(key)?).filter(|registration| registration.target == *target)
}

/// The claims of a map that wait; unreadable ones are left out.
pub fn waiting(map: &Map) -> impl Iterator<Item = Registration> {
    claims::values(map, claims::WAITS).filter_map(|value| decode_registration(value))
}

/// The key of an export.
pub fn export_key(service: &ServiceKey) -> Arc<str> {
    service.to_string().into()
}

/// The key of a chunk of endpoints.
pub fn chunk_key(service: &ServiceKey, index: u32) -> Arc<str> {
    format!("{service}#{index}").into()
}

/// The key of a registration record.
pub fn registration_key(target: &Target) -> Arc<str> {
    claims::key(&target.namespace, &target.service)
}

/// The key of the record of an owner that waits for a target.
pub fn waiting_key(target: &Target, owner: &ClaimOwner) -> Arc<str> {
    claims::waiting_key(&target.namespace, &target.service, [&owner.kind, &owner.namespace, &owner.name])
}

enum Key {
    Export(ServiceKey),
    Chunk(ServiceKey),
    Registration,
    Waiting,
    Forgotten(Arc<str>),
    Vote,
    Property,
}

impl Key {
    fn parse(key: &str) -> Option<Self> {
        if key.len() > MAX_KEY {
            return None;
        }
        if key.starts_with(claims::HOLDS) {
            return Some(Self::Registration);
        }
        if key.starts_with(claims::WAITS) {
            return Some(Self::Waiting);
        }
        if let Some(cluster) = forgotten::cluster_of(key) {
            return Some(Self::Forgotten(cluster.into()));
        }
        if key.starts_with(properties::PREFIX) {
            return Some(Self::Property);
        }
        if joining::cluster_of(key).is_some() {
            return Some(Self::Vote);
        }
        let (namespace, rest) = key.split_once('/')?;
        let (name, index) = rest.split_once('#').map_or((rest, None), |(name, index)| (name, Some(index)));
        // Nobody can import another name, and some API server would refuse it again and again.
        let are_names = [namespace, name].into_iter().all(is_dns_label);
        if !are_names || index.is_some_and(|index| index.parse::<u32>().is_err()) {
            return None;
        }
        let service = ServiceKey::new(intern(namespace), intern(name));
        Some(if index.is_some() { Self::Chunk(service) } else { Self::Export(service) })
    }
}

fn bounded(key: Arc<str>, bytes: Vec<u8>) -> Result<(Arc<str>, Value), TooLarge> {
    if bytes.len() > MAX_VALUE { Err(TooLarge { key, bytes: bytes.len() }) } else { Ok((key, bytes.into())) }
}

fn unreadable(key: &Arc<str>) -> Problem {
    Problem { key: key.clone(), message: "unreadable record" }
}

/// A registration record; `None` if it is unreadable.
pub fn decode_registration(bytes: &[u8]) -> Option<Registration> {
    let message = Claim::read(bytes)?;
    Some(Registration {
        target: read_target(message.target.as_ref()?),
        owner: ClaimOwner {
            kind: intern(&message.owner_kind),
            namespace: intern(&message.owner_namespace),
            name: intern(&message.owner_name),
        },
        claimed: message.claimed,
        state: match (message.unable, message.retiring, message.empty) {
            (true, ..) => ClaimState::Unable,
            (_, true, _) => ClaimState::Retiring,
            (_, _, true) => ClaimState::Empty,
            (_, _, false) => ClaimState::Serves,
        },
    })
}

fn write_port(port: &ServicePort) -> wire::Port {
    let ServicePort { name, protocol, port, app_protocol } = port;
    wire::Port {
        name: name.to_string(),
        protocol: write_protocol(*protocol),
        port: (*port).into(),
        app_protocol: app_protocol.as_ref().map(ToString::to_string),
    }
}

/// The number of a protocol. It is less than 4, on which chunks depend.
pub(crate) const fn write_protocol(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Tcp => 0,
        Protocol::Udp => 1,
        Protocol::Sctp => 2,
    }
}

fn write_target(target: &Target) -> claims::Target {
    claims::Target { namespace: target.namespace.to_string(), service: target.service.to_string() }
}

pub(crate) fn read_target(target: &claims::Target) -> Target {
    Target { namespace: intern(&target.namespace), service: intern(&target.service) }
}
