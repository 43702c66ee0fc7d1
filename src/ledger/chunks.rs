//! Endpoints in chunks: a change of one endpoint changes one record of a few hundred bytes, not its whole service.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use prost::Message as _;

use super::{
    records::{self, MAX_VALUE},
    wire,
};
use crate::model::{Endpoint, EndpointPort};

/// Most endpoints of a chunk.
pub const MAX_ENDPOINTS: usize = 16;

/// The endpoints of `<ns>/<name>#<index>`, sorted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chunk {
    pub index: u32,
    pub endpoints: Vec<Endpoint>,
}

/// Assigns endpoints to chunks with the least churn: an endpoint (identified by its addresses) stays in the chunk that
/// it is in, a new one goes where there is room, a chunk that becomes empty goes, and its index is used again.
/// Of endpoints with equal addresses the first in order counts.
///
/// A single endpoint can be too large for a chunk (its ports); [`records::encode_chunk`] then says so.
pub fn assign(previous: &[Chunk], endpoints: &[Endpoint]) -> Vec<Chunk> {
    let wanted: BTreeMap<Address, &Endpoint> = {
        let mut sorted: Vec<_> = endpoints.iter().collect();
        sorted.sort_unstable();
        sorted.into_iter().rev().map(|endpoint| (address(endpoint), endpoint)).collect()
    };
    let mut rooms = BTreeMap::<u32, Room<'_>>::new();
    let mut placed = BTreeSet::new();
    // Chunks that are far emptier than they need be are dissolved, or a service that shrank would keep them for ever.
    let needed = wanted.len().div_ceil(MAX_ENDPOINTS);
    if previous.len() <= 4 + 2 * needed {
        for chunk in previous {
            for old in &chunk.endpoints {
                let Some(endpoint) = wanted.get(&address(old)) else { continue };
                if !placed.contains(&address(old)) && rooms.entry(chunk.index).or_default().add(endpoint) {
                    placed.insert(address(old));
                }
            }
        }
    }
    let mut from = 0;
    for (address, endpoint) in &wanted {
        if placed.contains(address) {
            continue;
        }
        // Room that one endpoint was too large for may do for the next, but looking again would make this quadratic.
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

type Address = (Option<Ipv4Addr>, Option<Ipv6Addr>);

fn address(endpoint: &Endpoint) -> Address {
    (endpoint.ipv4, endpoint.ipv6)
}

/// A chunk being filled, with an upper bound of its encoded size.
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
        // Tags and lengths: at most three bytes each.
        let names = [(false, endpoint.zone.as_deref()), (true, endpoint.node.as_deref())];
        let new_names: Vec<_> = names.into_iter().filter_map(|(node, name)| Some((node, name?))).collect();
        let names: usize =
            new_names.iter().filter(|name| !self.names.contains(*name)).map(|(_, name)| name.len() + 3).sum();
        let ports = if self.port_sets.contains(&*endpoint.ports) {
            0
        } else {
            let port =
                |port: &EndpointPort| port.name.len() + port.app_protocol.as_ref().map_or(0, |p| p.len() + 3) + 15;
            endpoint.ports.iter().map(port).sum::<usize>() + 4
        };
        let addresses = endpoint.ipv4.map_or(0, |_| 5) + endpoint.ipv6.map_or(0, |_| 18);
        let own = addresses + endpoint.hostname.as_ref().map_or(0, |hostname| hostname.len() + 3) + 11;
        if self.endpoints.len() >= MAX_ENDPOINTS || self.bytes + own + names + ports > MAX_VALUE {
            return false;
        }
        self.bytes += own + names + ports;
        self.port_sets.insert(&endpoint.ports);
        self.names.extend(new_names);
        self.endpoints.push(endpoint);
        true
    }
}

/// Encodes endpoints; in sorted order, so that equal sets encode to equal bytes.
pub(super) fn encode(endpoints: &[Endpoint]) -> Vec<u8> {
    let mut sorted: Vec<&Endpoint> = endpoints.iter().collect();
    sorted.sort_unstable();
    let mut chunk = wire::Chunk::default();
    let mut port_sets: Vec<&Arc<[EndpointPort]>> = Vec::new();
    for endpoint in sorted {
        let known = port_sets.iter().position(|ports| **ports == endpoint.ports);
        let port_set = known.unwrap_or_else(|| {
            port_sets.push(&endpoint.ports);
            let ports = endpoint.ports.iter();
            let ports = ports
                .map(|port| records::write_port(&port.name, port.protocol, port.port, port.app_protocol.as_ref()))
                .collect();
            chunk.port_sets.push(wire::PortSet { ports });
            port_sets.len() - 1
        });
        let conditions = endpoint.conditions;
        chunk.endpoints.push(wire::Endpoint {
            ipv4: endpoint.ipv4.map(Ipv4Addr::to_bits),
            ipv6: endpoint.ipv6.map(|address| address.octets().to_vec()),
            port_set: port_set as u32,
            conditions: u32::from(!conditions.ready)
                | u32::from(!conditions.serving) << 1
                | u32::from(conditions.terminating) << 2,
            hostname: endpoint.hostname.as_ref().map(ToString::to_string),
            zone: intern(&mut chunk.zones, endpoint.zone.as_deref()),
            node: intern(&mut chunk.nodes, endpoint.node.as_deref()),
        });
    }
    chunk.encode_to_vec()
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
