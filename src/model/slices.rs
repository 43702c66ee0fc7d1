//! Packing of a source cluster's endpoints into EndpointSlices, with as few changes to existing slices as possible.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::IpAddr,
    sync::Arc,
};

use sha2::{Digest, Sha256};

use super::{ClusterId, Conditions, Endpoint, EndpointPort, IpFamily, ServiceKey, labels::is_label_value};

/// Maximum number of endpoints per slice: the default of the EndpointSlice controller. The API allows 1,000.
pub const MAX_ENDPOINTS: usize = 100;

/// One EndpointSlice of a name: endpoints of one source cluster, one IP family and one set of ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Name of the object.
    pub name: Arc<str>,
    /// Family of all addresses in it.
    pub family: IpFamily,
    /// The ports, sorted.
    pub ports: Arc<[EndpointPort]>,
    /// The endpoints, sorted by address.
    pub endpoints: Vec<SliceEndpoint>,
}

/// One address in a slice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceEndpoint {
    /// The address.
    pub address: IpAddr,
    /// Whether it takes traffic.
    pub conditions: Conditions,
    /// Host name of the pod in DNS, for headless services.
    pub hostname: Option<Arc<str>>,
    /// Zone of the endpoint.
    pub zone: Option<Arc<str>>,
    /// Node of the endpoint; only for endpoints of this cluster.
    pub node: Option<Arc<str>>,
    /// Which clients should prefer it.
    pub hints: Hints,
}

/// Which clients should prefer an endpoint (`trafficDistribution`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Hints {
    /// Clients in this zone.
    pub zone: Option<Arc<str>>,
    /// Clients on this node.
    pub node: Option<Arc<str>>,
}

/// How near traffic should stay, as a `trafficDistribution` requests it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proximity {
    /// No preference.
    Any,
    /// Prefer endpoints in the client's zone.
    Zone,
    /// Prefer endpoints on the client's node, then in its zone.
    Node,
}

impl Proximity {
    /// Interprets `trafficDistribution` as Kubernetes does (KEP-3015). Unknown values request nothing.
    pub fn of(traffic_distribution: Option<&str>) -> Self {
        match traffic_distribution {
            Some("PreferClose" | "PreferSameZone") => Self::Zone,
            Some("PreferSameNode") => Self::Node,
            _ => Self::Any,
        }
    }
}

/// Zone hint of an endpoint without a known zone. kube-proxy uses hints only if every ready endpoint has one, so
/// without this hint one cluster without zones would end the preference in all clusters.
const NO_ZONE: &str = "unknown.cloudmap-mcs";

/// Suffix of the node hint of an endpoint that is on no node of this cluster. The domain is reserved (RFC 2606), so no
/// node has such a name.
const NO_NODE: &str = "clusterset.invalid";

/// The slices that should contain `endpoints`, given the `existing` slices of the same name and source cluster.
/// Existing slices that the result lacks are to be deleted.
///
/// An endpoint stays in its slice. A new endpoint goes where there is room. A slice keeps its name for life. A
/// duplicate address with the same ports is used once: as the first one says, if none takes traffic better.
pub fn pack(key: &ServiceKey, source: &ClusterId, endpoints: &[PackedEndpoint], existing: &[Slice]) -> Vec<Slice> {
    let mut groups: BTreeMap<Group, BTreeMap<IpAddr, SliceEndpoint>> = BTreeMap::new();
    for packed in endpoints {
        let group = Group { family: family_of(packed.endpoint.address), ports: packed.ports.clone() };
        let of_group = groups.entry(group).or_default();
        let one = of_group.entry(packed.endpoint.address).or_insert_with(|| packed.endpoint.clone());
        if one.conditions.better(packed.endpoint.conditions) != one.conditions {
            one.clone_from(&packed.endpoint);
        }
    }
    let taken: BTreeSet<&str> = existing.iter().map(|slice| &*slice.name).collect();
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
        // Fullest first: a slice that becomes full needs no later write, and the emptiest slices may drain.
        kept.sort_by_key(|slice| std::cmp::Reverse(slice.endpoints.len()));
        let mut rest: VecDeque<SliceEndpoint> = wanted.into_values().collect();
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

/// A slice without endpoints: whoever looks at EndpointSlices sees by it that a cluster exports the name, though none of its
/// endpoints is shown (KEP-1645). Its name is none of those that are `taken`.
pub fn empty_slice(
    key: &ServiceKey,
    source: &ClusterId,
    family: IpFamily,
    ports: Arc<[EndpointPort]>,
    taken: &BTreeSet<Arc<str>>,
) -> Slice {
    let prefix = name_prefix(key, source, &Group { family, ports: ports.clone() });
    let mut names = (0..=taken.len()).map(|n| format!("{prefix}-{n}"));
    let name = names.find(|name| !taken.contains(name.as_str())).unwrap_or_default();
    Slice { name: name.into(), family, ports, endpoints: Vec::new() }
}

/// An endpoint that goes into a slice, with the ports that the slice may show for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedEndpoint {
    /// The address and its properties.
    pub endpoint: SliceEndpoint,
    /// Its ports.
    pub ports: Arc<[EndpointPort]>,
}

/// How the endpoints of one source cluster go into slices.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    /// The source cluster.
    pub source: &'a ClusterId,
    /// Whether the source is this cluster, whose endpoints keep their nodes. A node of another cluster that has the
    /// name of a local node is not local.
    pub local: bool,
    /// The IP families to serve.
    pub families: &'a [IpFamily],
    /// Names of the ports that the source really exposes under the merged service.
    pub carried: &'a [Arc<str>],
    /// The name by which the derived Service finds an unnamed port. The slices list that port under both names.
    pub unnamed_alias: Option<&'a str>,
    /// How near traffic should stay.
    pub proximity: Proximity,
}

/// The addresses of `endpoints`, with the ports and hints that slices show for them.
///
/// If the service has ports but an endpoint may show none of them, the endpoint is left out. One that serves a port under
/// several numbers has several sets of ports.
pub fn packable(endpoints: &[Endpoint], placement: &Placement<'_>) -> Vec<PackedEndpoint> {
    let mut port_sets: BTreeMap<&[EndpointPort], Vec<Arc<[EndpointPort]>>> = BTreeMap::new();
    let nowhere: Arc<str> = format!("{}.{NO_NODE}", placement.source).into();
    let no_zone: Arc<str> = NO_ZONE.into();
    let mut packed = Vec::new();
    for endpoint in endpoints {
        let Endpoint { ipv4, ipv6, ports: served, conditions, hostname, zone, node } = endpoint;
        let shown = &*port_sets.entry(served).or_insert_with(|| placement.port_sets(served));
        if shown.is_empty() {
            continue;
        }
        let node = node.clone().filter(|_| placement.local);
        let known_zone = zone.as_ref().filter(|zone| !zone.is_empty() && is_label_value(zone));
        let hints = Hints {
            zone: (placement.proximity != Proximity::Any).then(|| known_zone.unwrap_or(&no_zone).clone()),
            node: (placement.proximity == Proximity::Node).then(|| node.as_ref().unwrap_or(&nowhere).clone()),
        };
        let addresses = placement.families.iter().filter_map(|family| match family {
            IpFamily::V4 => ipv4.map(IpAddr::V4),
            IpFamily::V6 => ipv6.map(IpAddr::V6),
        });
        for address in addresses {
            let endpoint = SliceEndpoint {
                address,
                conditions: *conditions,
                hostname: hostname.clone(),
                zone: zone.clone(),
                node: node.clone(),
                hints: hints.clone(),
            };
            for ports in shown {
                packed.push(PackedEndpoint { endpoint: endpoint.clone(), ports: ports.clone() });
            }
        }
    }
    packed
}

impl Placement<'_> {
    /// The sets of ports that slices show for an endpoint that serves these ports: one, or none if it may show no port. An
    /// endpoint can serve a port under several numbers, as a host with two instances does. The API server takes no slice
    /// with two ports of one name, so each number is in a set of its own.
    fn port_sets(&self, ports: &[EndpointPort]) -> Vec<Arc<[EndpointPort]>> {
        if ports.is_empty() {
            return vec![Arc::default()];
        }
        let mut sets: Vec<Vec<EndpointPort>> = Vec::new();
        for port in ports.iter().filter(|port| self.carried.contains(&port.name)) {
            match sets.iter_mut().find(|set| set.iter().all(|other| other.name != port.name)) {
                Some(set) => set.push(port.clone()),
                None => sets.push(vec![port.clone()]),
            }
        }
        for set in &mut sets {
            let unnamed = set.iter().find(|port| port.name.is_empty()).cloned();
            if let (Some(alias), Some(unnamed)) = (self.unnamed_alias, unnamed) {
                set.push(EndpointPort { name: alias.into(), ..unnamed });
                set.sort();
            }
        }
        sets.into_iter().map(Into::into).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    family: IpFamily,
    ports: Arc<[EndpointPort]>,
}

/// `<service>-<12 hex digits>`: unique for name, source cluster, family and ports, and at most 253 characters long.
fn name_prefix(key: &ServiceKey, source: &ClusterId, group: &Group) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("{key}\0{source}\0{}", group.family));
    for EndpointPort { name, protocol, port, app_protocol } in group.ports.iter() {
        hash.update(format!("\0{name}\0{protocol}\0{port}\0{app_protocol:?}"));
    }
    let digest = hash.finalize()[..6].iter().fold(0_u64, |bits, byte| (bits << 8) | u64::from(*byte));
    format!("{}-{digest:012x}", key.name)
}

/// The name of the service, from the name of a slice that [`pack`] made.
pub fn service_of_slice(slice: &str) -> Option<&str> {
    let (prefix, number) = slice.rsplit_once('-')?;
    let (service, digest) = prefix.rsplit_once('-')?;
    let is_digest = digest.len() == 12 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_digest && number.parse::<u32>().is_ok() && !service.is_empty()).then_some(service)
}

/// The family of an address.
pub fn family_of(address: IpAddr) -> IpFamily {
    if address.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
