//! The cluster selection that is in force for a name, and the tiers that it makes of the name's sources. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    plan::Observed,
    tiers::{self, Around, Candidates, Rank, Spill},
    unknown::import_concerns_unknown,
    unreachable::Unreachable,
};
use api::{
    conditions::ImportSelectionReason,
    names::ANNOTATION_CLUSTER_SELECTORS,
    selection::{ClusterSelection, Properties},
};
use cluster::objects::{OwnSlice, ServiceImport};
use model::{ClusterId, Drain, PackedEndpoint};

/// What decides which clusters serve a name in this cluster, beside its exports.
#[derive(Debug, Clone, Copy)]
pub struct Selecting<'a> {
    /// The cluster selection of the Kubernetes namespace in this cluster. It counts instead of what exports say.
    pub of_namespace: Option<&'a ClusterSelection>,
    /// The cluster selection of this installation, which counts if nobody says anything.
    pub default: &'a ClusterSelection,
    /// The properties of all clusters that export the name, and of this one.
    pub properties: &'a BTreeMap<ClusterId, Properties>,
    /// The clusters that are drained, as far as they export the name.
    pub drains: &'a BTreeMap<ClusterId, Drain>,
    /// The clusters that cannot be reached from this one.
    pub unreachable: &'a BTreeMap<ClusterId, Unreachable>,
    /// How many steps farther clusters have gone back ([`STEPS`](model::drain::STEPS)).
    pub step: u8,
}

impl Selecting<'_> {
    /// The cluster selection that is in force; `None` if all clusters serve alike, and none is drained or cannot be reached. `exported`: that of the
    /// merged exports. One that cannot be read counts as none: a newer version wrote it.
    pub(super) fn in_force(&self, exported: Option<&str>) -> Option<ClusterSelection> {
        let of_exports = || exported.and_then(|text| ClusterSelection::from_published(text).ok());
        let selection = self.of_namespace.cloned().or_else(of_exports).unwrap_or_else(|| self.default.clone());
        let alike = selection.is_spread() && self.drains.is_empty() && self.unreachable.is_empty();
        (!alike).then_some(selection)
    }
}

/// The cluster selection that an import says is in force; `None` if there is no import of ours.
#[must_use]
pub fn shown_selection(import: Option<&ServiceImport>) -> Option<ClusterSelection> {
    let import = import.filter(|import| import.managed)?;
    let text = import.annotations.get(ANNOTATION_CLUSTER_SELECTORS);
    Some(text.and_then(|text| ClusterSelection::from_published(text).ok()).unwrap_or_default())
}

/// How near the clusters are that serve a name, of those that its cluster selection allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Serving {
    /// The first tier alone serves.
    Nearest,
    /// A farther tier serves, with it or alone; or a cluster that is drained, or cannot be reached.
    Farther,
    /// Nobody that it allows has a ready endpoint.
    Nobody,
}

impl Serving {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Nearest, Self::Farther, Self::Nobody];

    /// The word in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Farther => "farther",
            Self::Nobody => "nobody",
        }
    }
}

/// What a cluster selection makes of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    /// Who serves.
    pub serving: Serving,
    /// The message of the import's condition.
    pub message: String,
}

impl Selected {
    /// The reason of the import's condition.
    #[must_use]
    pub const fn reason(&self) -> ImportSelectionReason {
        match self.serving {
            Serving::Nearest | Serving::Farther => ImportSelectionReason::InForce,
            Serving::Nobody => ImportSelectionReason::NoneAllowed,
        }
    }
}

/// The endpoints that serve by a cluster selection, and what the import says of it. A source that never serves has none.
pub(super) fn selected(
    observed: &Observed<'_>,
    selection: &ClusterSelection,
    mut placed: Placed,
) -> (Placed, Spill, Selected) {
    let (none, Selecting { properties, drains, unreachable, step, .. }) = (Properties::new(), observed.selecting);
    let of = |cluster: &ClusterId| properties.get(cluster).unwrap_or(&none);
    let tiers = selection.for_importer(of(observed.local));
    let (mut candidates, mut order) = (BTreeMap::new(), Order::default());
    for (source, endpoints) in &mut placed {
        let discovered = ClusterId::is_discovered(source.as_str());
        let endpoints = std::mem::take(endpoints);
        if let Some(tier) = if discovered { tiers.of_discovered() } else { tiers.of(of(source)) } {
            let drain = drains.get(source).copied();
            let (drained, unreachable) = (drain.is_some_and(Drain::is_whole), unreachable.contains_key(source));
            order.ranks.entry((unreachable, Rank { drained, tier })).or_default().insert(source.clone());
            candidates.insert(source.clone(), Candidates { tier, drain, unreachable, endpoints });
        } else {
            order.never.insert(source.clone());
        }
    }
    let is_unknown = |slice: &OwnSlice| observed.unknown.contains(slice.source_cluster.as_deref().unwrap_or_default());
    let serves = || {
        let mut unknown = observed.slices.iter().filter(|slice| is_unknown(slice));
        unknown.any(|slice| slice.endpoints.iter().any(|endpoint| endpoint.conditions.ready))
    };
    let around = Around {
        local: observed.local,
        slices: observed.slices,
        min_ready: selection.min_ready(),
        weights: selection.weights(),
        step,
        unknown: import_concerns_unknown(observed).then(serves),
    };
    let (chosen, spill) = tiers::choose(candidates, &around);
    placed.extend(chosen);
    let serving = order.serving(&placed);
    let message = order.said(selection, &placed, drains);
    (placed, spill, Selected { serving, message })
}

/// The endpoints of each source.
pub(super) type Placed = BTreeMap<ClusterId, Vec<PackedEndpoint>>;

/// Whether a source has a ready endpoint that is chosen.
fn serves(placed: &Placed, source: &ClusterId) -> bool {
    placed[source].iter().any(|packed| packed.endpoint.conditions.ready)
}

/// The sources of a name, nearest first.
#[derive(Debug, Default)]
struct Order {
    /// By whether they cannot be reached, and then by rank.
    ranks: BTreeMap<(bool, Rank), BTreeSet<ClusterId>>,
    /// Those that never serve.
    never: BTreeSet<ClusterId>,
}

impl Order {
    fn serving(&self, placed: &Placed) -> Serving {
        let serve = |sources: &BTreeSet<ClusterId>| sources.iter().any(|source| serves(placed, source));
        let ranks = self.ranks.iter().filter(|(_, sources)| serve(sources)).map(|(rank, _)| rank);
        match (ranks.max(), self.ranks.keys().next()) {
            (None, _) | (_, None) => Serving::Nobody,
            (Some(farthest), Some(first)) if farthest == first => Serving::Nearest,
            _ => Serving::Farther,
        }
    }

    /// What the import says of it. It changes only when other clusters serve, and not with each endpoint.
    fn said(self, selection: &ClusterSelection, placed: &Placed, drains: &BTreeMap<ClusterId, Drain>) -> String {
        let names =
            |sources: &[&ClusterId]| sources.iter().map(|source| source.as_str()).collect::<Vec<_>>().join(", ");
        let sources = || self.ranks.values().flatten();
        let serving: Vec<_> = sources().filter(|source| serves(placed, source)).collect();
        let rest =
            self.ranks.values().map(|tier| tier.iter().filter(|source| !serves(placed, source)).collect::<Vec<_>>());
        let rest: Vec<_> = rest.filter(|tier| !tier.is_empty()).map(|tier| names(&tier)).collect();
        let sentence = |what: &str, sources: &[&ClusterId]| {
            if sources.is_empty() { String::new() } else { format!(" {what}: {}.", names(sources)) }
        };
        let never = sentence("Never", &self.never.iter().collect::<Vec<_>>());
        let (drained, returning): (Vec<_>, Vec<_>) = drains.keys().partition(|cluster| drains[*cluster].is_whole());
        let drained = sentence("Drained", &drained) + &sentence("Coming back", &returning);
        if serving.is_empty() {
            let allowed = if rest.is_empty() {
                "It allows none that exports the name.".to_owned()
            } else {
                format!("It allows {}.", rest.join(", "))
            };
            return format!(
                "By {selection}, no cluster serves: none that it allows has a ready endpoint. {allowed}{never}{drained}"
            );
        }
        let others =
            if rest.is_empty() { String::new() } else { format!(" Others in their order: {}.", rest.join("; ")) };
        let shares = if selection.weights().is_empty() { String::new() } else { shares(placed, &serving) };
        format!("By {selection}, these serve: {}.{shares}{others}{never}{drained}", names(&serving))
    }
}

/// Which part of the connections each of these sources gets: kube-proxy gives each endpoint the same.
fn shares(placed: &Placed, serving: &[&ClusterId]) -> String {
    let count = |source: &ClusterId| {
        let ready = placed[source].iter().filter(|packed| packed.endpoint.conditions.ready);
        ready.map(|packed| packed.endpoint.address).collect::<BTreeSet<_>>().len()
    };
    let all: usize = serving.iter().map(|source| count(source)).sum();
    let share = |source: &&ClusterId| {
        let count = count(source);
        format!("{source} {} % ({count} of {all} endpoints)", (count * 100 + all / 2) / all)
    };
    format!(" They get: {}.", serving.iter().map(share).collect::<Vec<_>>().join(", "))
}
