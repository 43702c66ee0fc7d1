//! Endpoints in chunks: a change of one endpoint changes one record of a few hundred bytes, not that of its whole
//! service.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use prost::Message as _;

use super::{received, wire, write_protocol};
use ledger::{MAX_VALUE, capped};
use model::{Conditions, Endpoint, EndpointPort, ServicePort, intern_ports};

/// Maximum number of endpoints in a chunk.
pub const MAX_ENDPOINTS: usize = 16;

/// The endpoints of `<ns>/<name>#<index>`, sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chunk {
    /// Number of the chunk.
    pub index: u32,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// What identifies an endpoint.
pub type Address = (Option<Ipv4Addr>, Option<Ipv6Addr>);

/// In which chunk each endpoint of a service is, by the number of the chunk.
pub type Places = Box<[(u32, Address)]>;

/// In which of these chunks each endpoint is.
pub fn places(chunks: &[Chunk]) -> Places {
    chunks.iter().flat_map(|chunk| chunk.endpoints.iter().map(|endpoint| (chunk.index, address(endpoint)))).collect()
}

/// Assigns endpoints to chunks with few changes. An endpoint (identified by its addresses) stays in its chunk. A new
/// one goes where there is room. A chunk that becomes empty goes, and its index is used again. Of endpoints with equal
/// addresses, the first one counts.
///
/// A single endpoint can be too large for a chunk: one that many EndpointSlices list, with hundreds of numbers for the
/// same ports. It gets a chunk of its own, which [`super::encode_chunk`] refuses.
pub fn assign(previous: &[(u32, Address)], endpoints: &[Endpoint]) -> Vec<Chunk> {
    let wanted: BTreeMap<Address, &Endpoint> = {
        let mut sorted: Vec<_> = endpoints.iter().collect();
        sorted.sort_unstable();
        sorted.into_iter().rev().map(|endpoint| (address(endpoint), endpoint)).collect()
    };
    let mut rooms = BTreeMap::<u32, Room<'_>>::new();
    let mut placed = BTreeSet::new();
    // Chunks that are much emptier than necessary are dissolved. Otherwise a service that shrank would keep them
    // forever. Large endpoints may need more chunks than their number suggests, which shows only when new chunks are
    // filled.
    let at_least = wanted.len().div_ceil(MAX_ENDPOINTS);
    let chunks = previous.chunk_by(|(one, _), (next, _)| one == next).count();
    let few = |needed| chunks <= 4 + 2 * needed;
    if few(at_least) || few(assign(&[], endpoints).len()) {
        for (index, address) in previous {
            let Some(endpoint) = wanted.get(address) else { continue };
            if !placed.contains(address) && rooms.entry(*index).or_default().add(endpoint) {
                placed.insert(*address);
            }
        }
    }
    let mut from = 0;
    for (address, endpoint) in &wanted {
        if placed.contains(address) {
            continue;
        }
        // The next endpoint may fit where this one did not, but looking again would make this quadratic.
        while rooms.get_mut(&from).is_some_and(|room| !room.add(endpoint)) {
            from += 1;
        }
        rooms.entry(from).or_insert_with(|| Room::with(endpoint));
    }
    let rooms = rooms.into_iter().filter(|(_, room)| !room.endpoints.is_empty());
    rooms
        .map(|(index, room)| {
            let mut endpoints: Vec<Endpoint> = room.endpoints.into_iter().cloned().collect();
            endpoints.sort_unstable();
            Chunk { index, endpoints }
        })
        .collect()
}

fn address(endpoint: &Endpoint) -> Address {
    (endpoint.ipv4, endpoint.ipv6)
}

/// Maximum number of bytes of a port in a chunk: two numbers of at most 18 bits. Its name is in the export record.
const PORT: usize = 6;
/// The same for a set of ports in addition: tags and lengths.
const PORT_SET: usize = 11;

/// A chunk that is being filled, with an upper bound of its encoded size.
#[derive(Default)]
struct Room<'a> {
    endpoints: Vec<&'a Endpoint>,
    port_sets: BTreeSet<&'a [EndpointPort]>,
    names: BTreeSet<(bool, &'a str)>,
    bytes: usize,
}

impl<'a> Room<'a> {
    fn with(endpoint: &'a Endpoint) -> Self {
        let mut room = Self::default();
        if !room.add(endpoint) {
            room.endpoints.push(endpoint);
            room.bytes = MAX_VALUE;
        }
        room
    }

    fn add(&mut self, endpoint: &'a Endpoint) -> bool {
        let Endpoint { ipv4, ipv6, ports, conditions: _, hostname, zone, node } = endpoint;
        // Tags and lengths: at most three bytes each.
        let names = [(false, zone.as_deref()), (true, node.as_deref())];
        let new_names: Vec<_> = names.into_iter().filter_map(|(node, name)| Some((node, name?))).collect();
        let names: usize =
            new_names.iter().filter(|name| !self.names.contains(*name)).map(|(_, name)| name.len() + 3).sum();
        let port_set = if self.port_sets.contains(&**ports) { 0 } else { PORT_SET + PORT * ports.len() };
        let addresses = ipv4.map_or(0, |_| 5) + ipv6.map_or(0, |_| 18);
        let own = addresses + hostname.as_ref().map_or(0, |hostname| hostname.len() + 3) + 11;
        if self.endpoints.len() >= MAX_ENDPOINTS || self.bytes + own + names + port_set > MAX_VALUE {
            return false;
        }
        self.bytes += own + names + port_set;
        self.port_sets.insert(ports);
        self.names.extend(new_names);
        self.endpoints.push(endpoint);
        true
    }
}

/// Whether clients of the service can use an endpoint: it serves one of its ports, or the service has none.
pub fn is_served(endpoint: &Endpoint, ports: &[ServicePort]) -> bool {
    endpoint.ports.is_empty() || endpoint.ports.iter().any(|port| of_service(port, ports).is_some())
}

/// The port of the service that belongs to a port of an endpoint, by name and protocol as in kube-proxy.
fn of_service<'a>(port: &EndpointPort, ports: &'a [ServicePort]) -> Option<&'a ServicePort> {
    // The application protocol in the endpoint's slice is that of the Service, which counts.
    let EndpointPort { name, protocol, port: _, app_protocol: _ } = port;
    ports.iter().find(|of_service| of_service.name == *name && of_service.protocol == *protocol)
}

/// Kubernetes allows no two ports of a Service with one number and protocol.
fn reference(port: &ServicePort) -> u32 {
    u32::from(port.port) * 4 + write_protocol(port.protocol)
}

/// Encodes endpoints in sorted order, so that equal sets encode to equal bytes. Ports that are not among the service's
/// `ports` serve nobody, and are left out.
pub(crate) fn encode(endpoints: &[Endpoint], ports: &[ServicePort]) -> Vec<u8> {
    let mut sorted: Vec<&Endpoint> = endpoints.iter().collect();
    sorted.sort_unstable();
    let mut chunk = wire::Chunk::default();
    let mut port_sets: Vec<(&[EndpointPort], u32)> = Vec::new();
    for endpoint in sorted {
        let Endpoint { ipv4, ipv6, ports: served, conditions, hostname, zone, node } = endpoint;
        let Conditions { ready, serving, terminating } = *conditions;
        let known = port_sets.iter().find(|(set, _)| **set == **served).map(|(_, index)| *index);
        let port_set = known.unwrap_or_else(|| {
            let index = port_set(&mut chunk.port_sets, served, ports);
            port_sets.push((served, index));
            index
        });
        chunk.endpoints.push(wire::Endpoint {
            ipv4: ipv4.map(Ipv4Addr::to_bits),
            ipv6: ipv6.map(|address| address.octets().to_vec()),
            port_set,
            conditions: u32::from(!ready) | u32::from(!serving) << 1 | u32::from(terminating) << 2,
            hostname: hostname.as_ref().map(ToString::to_string),
            zone: intern(&mut chunk.zones, zone.as_deref()),
            node: intern(&mut chunk.nodes, node.as_deref()),
        });
    }
    chunk.encode_to_vec()
}

/// The index of an endpoint's ports among the port sets of a chunk.
fn port_set(sets: &mut Vec<wire::PortSet>, served: &[EndpointPort], ports: &[ServicePort]) -> u32 {
    let served = served.iter().filter_map(|port| Some((reference(of_service(port, ports)?), u32::from(port.port))));
    let served: BTreeSet<(u32, u32)> = served.collect();
    let (service_ports, numbers) = served.into_iter().unzip();
    let set = wire::PortSet { service_ports, numbers };
    let known = sets.iter().position(|known| *known == set);
    let index = known.unwrap_or_else(|| {
        sets.push(set);
        sets.len() - 1
    });
    index as u32
}

/// Said of a chunk with such endpoints.
const DEGRADED: &str = "a port, host name, zone or node that no EndpointSlice can have is left out";

/// The endpoints of a chunk, and whether something was left out of them; `None` if it is unreadable.
pub(crate) fn decode(bytes: &[u8], ports: &[ServicePort]) -> Option<(Vec<Endpoint>, Option<&'static str>)> {
    let wire::Chunk { port_sets, zones, nodes, endpoints } = wire::Chunk::decode(capped(bytes)?).ok()?;
    if endpoints.len() > MAX_ENDPOINTS {
        return None;
    }
    let by_reference: BTreeMap<u32, &ServicePort> = ports.iter().map(|port| (reference(port), port)).collect();
    let mut degraded = None;
    let mut fits = |fits: bool| {
        degraded = degraded.or_else(|| (!fits).then_some(DEGRADED));
        fits
    };
    let is_port = |number: &u32| received::number(*number).is_some();
    fits(port_sets.iter().flat_map(|set| &set.numbers).all(is_port));
    let port_sets: Vec<Arc<[EndpointPort]>> =
        port_sets.into_iter().map(|set| read_port_set(set, &by_reference)).collect::<Option<_>>()?;
    let mut names = |names: Vec<String>, is_name: fn(&str) -> bool| -> Vec<Option<Arc<str>>> {
        names.iter().map(|name| fits(is_name(name)).then(|| model::intern(name))).collect()
    };
    let (zones, nodes) = (names(zones, received::is_zone), names(nodes, received::is_node));
    fits(endpoints.iter().filter_map(|endpoint| endpoint.hostname.as_deref()).all(received::is_host_name));
    let named = |names: &[Option<Arc<str>>], index: u32| match index {
        0 => Some(None),
        index => names.get(index as usize - 1).cloned(),
    };
    let endpoint = |endpoint: wire::Endpoint| {
        let wire::Endpoint { ipv4, ipv6, port_set, conditions, hostname, zone, node } = endpoint;
        let ipv6 = match ipv6 {
            Some(bytes) => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
            None => None,
        };
        (ipv4.is_some() || ipv6.is_some()).then_some(())?;
        Some(Endpoint {
            ipv4: ipv4.map(Ipv4Addr::from_bits),
            ipv6,
            ports: port_sets.get(port_set as usize)?.clone(),
            conditions: Conditions {
                ready: conditions & 1 == 0,
                serving: conditions & 2 == 0,
                terminating: conditions & 4 != 0,
            },
            hostname: hostname.filter(|name| received::is_host_name(name)).map(Into::into),
            zone: named(&zones, zone)?,
            node: named(&nodes, node)?,
        })
    };
    let endpoints = endpoints.into_iter().map(endpoint).collect::<Option<_>>()?;
    Some((endpoints, degraded))
}

/// Leaves out a port that the export does not have, as far as this version can read it, or whose number is none.
fn read_port_set(set: wire::PortSet, ports: &BTreeMap<u32, &ServicePort>) -> Option<Arc<[EndpointPort]>> {
    let wire::PortSet { service_ports, numbers } = set;
    (service_ports.len() == numbers.len()).then_some(())?;
    let mut served = Vec::new();
    for (reference, number) in service_ports.iter().zip(numbers) {
        let Some(number) = received::number(number) else { continue };
        let Some(ServicePort { name, protocol, port: _, app_protocol }) = ports.get(reference) else { continue };
        let (name, app_protocol) = (name.clone(), app_protocol.clone());
        served.push(EndpointPort { name, protocol: *protocol, port: number, app_protocol });
    }
    served.sort_unstable();
    Some(intern_ports(&served))
}

/// The index of `name` in `names` plus one; 0 for none.
fn intern(names: &mut Vec<String>, name: Option<&str>) -> u32 {
    let Some(name) = name else { return 0 };
    let known = names.iter().position(|known| known == name);
    let index = known.unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    });
    index as u32 + 1
}
