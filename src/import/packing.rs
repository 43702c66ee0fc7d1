//! To which derived Service slices belong, and which endpoints are in them. An EndpointSlice belongs to one Service, so a
//! former derived Service keeps slices of its own until another one has taken over.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    objects::derived_port_name,
    plan::{Observed, of_cluster, slice},
};
use cluster::objects::{OwnSlice, Service};
use model::{ClusterId, EndpointPort, IpFamily, PackedEndpoint, ServicePort, Slice, empty_slice, family_of, pack};

/// A former derived Service that the import still shows, and its slices. They follow their endpoints until the import shows
/// another Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Former {
    /// Name of the Service.
    pub derived: Arc<str>,
    /// Its slices by source cluster.
    pub slices: BTreeMap<ClusterId, Vec<Slice>>,
}

/// The ports of a source, one set for each IP family in which it has endpoints.
pub(super) type Offered = BTreeMap<IpFamily, Arc<[EndpointPort]>>;

/// What a source offers.
pub(super) fn offered(endpoints: &[PackedEndpoint]) -> Offered {
    let mut offered = Offered::new();
    for PackedEndpoint { endpoint, ports } in endpoints {
        let first = offered.entry(family_of(endpoint.address)).or_insert_with(|| ports.clone());
        if ports < first {
            first.clone_from(ports);
        }
    }
    offered
}

/// Packs the endpoints of one source after the other.
#[derive(Debug)]
pub(super) struct Packing<'a> {
    observed: &'a Observed<'a>,
    /// The Service to which the slices belong, if any.
    pub(super) derived: Option<Arc<str>>,
    pub(super) slices: BTreeMap<ClusterId, Vec<Slice>>,
    pub(super) former: Option<Former>,
    /// The names that ports have in the slices of the former Service, if they now have others.
    renamed: BTreeMap<Arc<str>, Arc<str>>,
}

impl<'a> Packing<'a> {
    /// `derives`: the import has a derived Service, and nothing is in its way. `makes`: one that is missing will be made.
    /// `ports`: those that the Service has or shall have.
    pub(super) fn new(observed: &'a Observed<'a>, derives: bool, makes: bool, ports: &[ServicePort]) -> Self {
        let services = observed.derived;
        let is_there = services.there.as_ref().is_some_and(|service| service.managed)
            || services.unmarked(observed.import).is_some();
        let shown = services.shown(observed.import).filter(|shown| shown.key.name != services.name);
        let renamed = shown.map(|former| renamed(former, ports)).unwrap_or_default();
        let (former, derived) = match shown.map(|former| &former.key.name) {
            Some(former) if is_there || makes => (Some(former), Some(&services.name)),
            Some(former) => (None, Some(former)),
            None => (None, Some(&services.name).filter(|_| is_there || derives)),
        };
        let former = former.map(|name| Former { derived: name.clone(), slices: BTreeMap::new() });
        Self { observed, derived: derived.cloned(), slices: BTreeMap::new(), former, renamed }
    }

    /// Takes in the endpoints of a source. `offered`: the IP families in which it stays visible without endpoints.
    pub(super) fn place(&mut self, source: &ClusterId, endpoints: &[PackedEndpoint], offered: Option<&Offered>) {
        let under_former_names = with_names(endpoints, &self.renamed);
        let endpoints = if self.former.is_some() { endpoints } else { &*under_former_names };
        let mut of_former: &[Slice] = &[];
        if let Some(Former { derived, slices }) = &mut self.former {
            let is_its = |slice: &OwnSlice| slice.service.as_ref() == Some(&*derived);
            let packed = packed(self.observed, source, &under_former_names, is_its, &[]);
            slices.insert(source.clone(), packed);
            of_former = slices.get(source).map_or(&[][..], Vec::as_slice);
        }
        // Those of a headless import belong to no Service until it gets one.
        let is_its = |slice: &OwnSlice| match (&self.derived, &slice.service) {
            (Some(derived), Some(other)) => derived == other,
            _ => true,
        };
        let mut packed = packed(self.observed, source, endpoints, is_its, of_former);
        for (family, ports) in offered.into_iter().flatten() {
            if packed.iter().all(|slice| slice.family != *family) {
                let there = of_cluster(self.observed.slices, source).filter(|there| is_its(there)).filter_map(slice);
                let same = there.filter(|there| there.family == *family && there.ports == *ports);
                let kept = same.min_by(|one, other| one.name.cmp(&other.name));
                let slices = self.observed.slices.iter().map(|slice| slice.key.name.clone());
                let taken = || slices.chain(of_former.iter().chain(&packed).map(|slice| slice.name.clone())).collect();
                let new = || empty_slice(self.observed.key, source, *family, ports.clone(), &taken());
                packed.push(Slice { endpoints: Vec::new(), ..kept.unwrap_or_else(new) });
            }
        }
        packed.sort_by(|one, other| one.name.cmp(&other.name));
        self.slices.insert(source.clone(), packed);
    }

    /// Names of our slices that are left over. Those of clusters that are not known stay.
    pub(super) fn stale(&self) -> Vec<Arc<str>> {
        let of_former = self.former.iter().flat_map(|former| former.slices.values());
        let wanted: BTreeSet<&Arc<str>> =
            self.slices.values().chain(of_former).flatten().map(|slice| &slice.name).collect();
        let Observed { slices, unknown, .. } = self.observed;
        slices
            .iter()
            .filter(|slice| !wanted.contains(&slice.key.name))
            .filter(|slice| !unknown.contains(slice.source_cluster.as_deref().unwrap_or_default()))
            .map(|slice| slice.key.name.clone())
            .collect()
    }
}

/// The ports that have other names in a former Service, with these names. That Service is written no more.
fn renamed(former: &Service, ports: &[ServicePort]) -> BTreeMap<Arc<str>, Arc<str>> {
    let renamed = |port: &ServicePort| {
        let there = former.ports.iter().find(|there| (there.port, there.protocol) == (port.port, port.protocol))?;
        let name = derived_port_name(port);
        (*there.name != *name).then(|| (Arc::from(name), there.name.clone()))
    };
    ports.iter().filter_map(renamed).collect()
}

/// The endpoints with these names of their ports.
fn with_names<'a>(
    endpoints: &'a [PackedEndpoint],
    renamed: &BTreeMap<Arc<str>, Arc<str>>,
) -> Cow<'a, [PackedEndpoint]> {
    if renamed.is_empty() {
        return Cow::Borrowed(endpoints);
    }
    let endpoint = |packed: &PackedEndpoint| {
        let other = |port: &EndpointPort| Some(EndpointPort { name: renamed.get(&port.name)?.clone(), ..port.clone() });
        let mut ports: Vec<EndpointPort> = packed.ports.iter().filter_map(other).collect();
        for port in packed.ports.iter().filter(|port| !renamed.contains_key(&port.name)) {
            // The API server takes no slice with two ports of one name.
            if ports.iter().all(|taken| taken.name != port.name) {
                ports.push(port.clone());
            }
        }
        ports.sort();
        PackedEndpoint { endpoint: packed.endpoint.clone(), ports: ports.into() }
    };
    endpoints.iter().map(endpoint).collect()
}

/// The slices of a source for a Service: those of it that there are, which `is_its` returns, and new ones. No new one gets a
/// name that another one has, or one of `others`.
fn packed(
    observed: &Observed<'_>,
    source: &ClusterId,
    endpoints: &[PackedEndpoint],
    is_its: impl Fn(&OwnSlice) -> bool,
    others: &[Slice],
) -> Vec<Slice> {
    // What lists nothing gets nothing, but its name is taken.
    let emptied = |slice: &Slice| Slice {
        name: slice.name.clone(),
        family: slice.family,
        ports: slice.ports.clone(),
        endpoints: Vec::new(),
    };
    let there = of_cluster(observed.slices, source).filter_map(|there| {
        let slice = slice(there)?;
        Some(if is_its(there) { slice } else { emptied(&slice) })
    });
    let existing: Vec<Slice> = there.chain(others.iter().map(emptied)).collect();
    pack(observed.key, source, endpoints, &existing)
}
