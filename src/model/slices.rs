//! Packing the endpoints of one source cluster into EndpointSlices with as few changes to existing ones as possible.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

use sha2::{Digest, Sha256};

use super::{ClusterId, Conditions, Endpoint, EndpointPort, IpFamily, ServiceKey};

/// Endpoints per slice: the EndpointSlice controller's own default. The API allows 1,000.
pub const MAX_ENDPOINTS: usize = 100;

/// One EndpointSlice of a name: endpoints of one source cluster, one family and one set of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    pub name: Arc<str>,
    pub family: IpFamily,
    /// Sorted.
    pub ports: Arc<[EndpointPort]>,
    /// Sorted by address.
    pub endpoints: Vec<SliceEndpoint>,
}

/// One address in a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceEndpoint {
    pub address: IpAddr,
    pub conditions: Conditions,
    pub hostname: Option<Arc<str>>,
    pub zone: Option<Arc<str>>,
    /// Only for endpoints of the own cluster: a remote node that has the name of a local one is not local.
    pub node: Option<Arc<str>>,
    /// Zone hint for kube-proxy (`trafficDistribution`).
    pub hint: Option<Arc<str>>,
}

/// The slices that `endpoints` should be in, given the `existing` ones of the same name and source cluster. Existing
/// slices that are missing in the answer are to be deleted.
///
/// An endpoint stays in its slice; a new one goes where there is room; slices keep their names for life. An address
/// that comes twice is taken once.
pub fn pack(key: &ServiceKey, source: &ClusterId, endpoints: &[PackedEndpoint], existing: &[Slice]) -> Vec<Slice> {
    let mut groups: BTreeMap<Group, BTreeMap<IpAddr, SliceEndpoint>> = BTreeMap::new();
    for packed in endpoints {
        let group = Group { family: family_of(packed.endpoint.address), ports: packed.ports.clone() };
        groups.entry(group).or_default().entry(packed.endpoint.address).or_insert_with(|| packed.endpoint.clone());
    }
    let taken: HashSet<&str> = existing.iter().map(|slice| &*slice.name).collect();
    let mut slices = Vec::new();
    for (group, mut wanted) in groups {
        let mut of_group: Vec<&Slice> =
            existing.iter().filter(|slice| slice.family == group.family && slice.ports == group.ports).collect();
        of_group.sort_by(|a, b| a.name.cmp(&b.name));
        let mut kept: Vec<Slice> = of_group
            .into_iter()
            .map(|slice| Slice {
                name: slice.name.clone(),
                family: group.family,
                ports: group.ports.clone(),
                endpoints: slice
                    .endpoints
                    .iter()
                    .filter_map(|endpoint| wanted.remove(&endpoint.address))
                    .take(MAX_ENDPOINTS)
                    .collect(),
            })
            .filter(|slice| !slice.endpoints.is_empty())
            .collect();
        // Fullest first: a slice that is filled up needs no later write, and the emptiest ones may drain away.
        kept.sort_by_key(|slice| std::cmp::Reverse(slice.endpoints.len()));
        let mut rest: std::collections::VecDeque<SliceEndpoint> = wanted.into_values().collect();
        for slice in &mut kept {
            let room = MAX_ENDPOINTS - slice.endpoints.len();
            slice.endpoints.extend(rest.drain(..room.min(rest.len())));
            slice.endpoints.sort_by_key(|endpoint| endpoint.address);
        }
        let prefix = name_prefix(key, source, &group);
        let mut names = (0..).map(|n| format!("{prefix}-{n}")).filter(|name| !taken.contains(name.as_str()));
        while !rest.is_empty() {
            let endpoints = rest.drain(..MAX_ENDPOINTS.min(rest.len())).collect();
            let name = names.next().unwrap_or_default().into();
            kept.push(Slice { name, family: group.family, ports: group.ports.clone(), endpoints });
        }
        slices.append(&mut kept);
    }
    slices.sort_by(|a, b| a.name.cmp(&b.name));
    slices
}

/// An endpoint on its way into a slice, with the ports that it may show there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedEndpoint {
    pub endpoint: SliceEndpoint,
    pub ports: Arc<[EndpointPort]>,
}

/// The addresses of `endpoints` in `families`, with only the ports whose names are `carried` (those that this cluster
/// really exposes under the merged service). `local` endpoints keep their node; `hints` asks for zone hints.
///
/// Endpoints of a service that has ports, but none of which it may carry, are left out.
pub fn packable(
    endpoints: &[Endpoint],
    families: &[IpFamily],
    carried: &[Arc<str>],
    local: bool,
    hints: bool,
) -> Vec<PackedEndpoint> {
    let mut port_sets: HashMap<&[EndpointPort], Arc<[EndpointPort]>> = HashMap::new();
    let mut packed = Vec::new();
    for endpoint in endpoints {
        let ports = port_sets
            .entry(&endpoint.ports)
            .or_insert_with(|| {
                endpoint.ports.iter().filter(|port| carried.contains(&port.name)).cloned().collect::<Vec<_>>().into()
            })
            .clone();
        if ports.is_empty() && !endpoint.ports.is_empty() {
            continue;
        }
        let addresses = families.iter().filter_map(|family| match family {
            IpFamily::V4 => endpoint.ipv4.map(IpAddr::V4),
            IpFamily::V6 => endpoint.ipv6.map(IpAddr::V6),
        });
        for address in addresses {
            packed.push(PackedEndpoint {
                endpoint: SliceEndpoint {
                    address,
                    conditions: endpoint.conditions,
                    hostname: endpoint.hostname.clone(),
                    zone: endpoint.zone.clone(),
                    node: endpoint.node.clone().filter(|_| local),
                    hint: endpoint.zone.clone().filter(|_| hints),
                },
                ports: ports.clone(),
            });
        }
    }
    packed
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    family: IpFamily,
    ports: Arc<[EndpointPort]>,
}

/// `<service>-<12 hex digits>`: unique to name, source cluster, family and ports, within 253 characters.
fn name_prefix(key: &ServiceKey, source: &ClusterId, group: &Group) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{key}\0{source}\0{}", group.family));
    for port in group.ports.iter() {
        hash.update(format!("\0{}\0{}\0{}\0{:?}", port.name, port.protocol, port.port, port.app_protocol));
    }
    let digest: String = hash.finalize()[..6].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{digest}", key.name)
}

fn family_of(address: IpAddr) -> IpFamily {
    if address.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
