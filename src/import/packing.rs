//! To which derived Service slices belong, and which endpoints are in them. An EndpointSlice belongs to one Service, so a
//! former derived Service keeps slices of its own until another one has taken over.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::plan::{Observed, of_cluster, slice};
use crate::{
    cluster::objects::OwnSlice,
    model::{ClusterId, PackedEndpoint, Slice, pack},
};

/// A former derived Service that the import still shows, and its slices. They follow their endpoints until the import shows
/// another Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Former {
    /// Name of the Service.
    pub derived: Arc<str>,
    /// Its slices by source cluster.
    pub slices: BTreeMap<ClusterId, Vec<Slice>>,
}

/// Packs the endpoints of one source after the other.
#[derive(Debug)]
pub(super) struct Packing<'a> {
    observed: &'a Observed<'a>,
    /// The Service to which the slices belong, if any.
    pub(super) derived: Option<Arc<str>>,
    pub(super) slices: BTreeMap<ClusterId, Vec<Slice>>,
    pub(super) former: Option<Former>,
}

impl<'a> Packing<'a> {
    /// `derives`: the import has a derived Service, and nothing is in its way. `makes`: one that is missing will be made.
    pub(super) fn new(observed: &'a Observed<'a>, derives: bool, makes: bool) -> Self {
        let services = observed.derived;
        let is_there = services.there.as_ref().is_some_and(|service| service.managed);
        let shown = services.shown(observed.import).map(|service| &service.key.name);
        let (former, derived) = match shown.filter(|shown| **shown != services.name) {
            Some(former) if is_there || makes => (Some(former), Some(&services.name)),
            Some(former) => (None, Some(former)),
            None => (None, Some(&services.name).filter(|_| is_there || derives)),
        };
        let former = former.map(|name| Former { derived: name.clone(), slices: BTreeMap::new() });
        Self { observed, derived: derived.cloned(), slices: BTreeMap::new(), former }
    }

    /// Takes in the endpoints of a source.
    pub(super) fn place(&mut self, source: &ClusterId, endpoints: &[PackedEndpoint]) {
        let mut of_former: &[Slice] = &[];
        if let Some(Former { derived, slices }) = &mut self.former {
            let is_its = |slice: &OwnSlice| slice.service.as_ref() == Some(&*derived);
            let packed = packed(self.observed, source, endpoints, is_its, &[]);
            slices.insert(source.clone(), packed);
            of_former = slices.get(source).map_or(&[][..], Vec::as_slice);
        }
        // Those of a headless import belong to no Service until it gets one.
        let is_its = |slice: &OwnSlice| match (&self.derived, &slice.service) {
            (Some(derived), Some(other)) => derived == other,
            _ => true,
        };
        let packed = packed(self.observed, source, endpoints, is_its, of_former);
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
