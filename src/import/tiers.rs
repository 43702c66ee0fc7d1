//! Which endpoints serve a name in this cluster, if a cluster selection prefers some clusters to others, or one is drained.
//! Pure.
//!
//! A tier serves alone while enough of its endpoints are ready. Below that, the next tier gets the rest of the connections, by
//! how many of its endpoints are shown: kube-proxy gives each endpoint that it knows an equal share, so nothing else is needed.
//! A farther tier gets its share at once, and gives it back in [`STEPS`] steps, so that a nearer one that comes back is not
//! overrun. What is shown follows from the endpoints, the EndpointSlices that there are, and the step.
//!
//! Endpoints that are drained come after all others, whatever their tier. So they leave as farther endpoints do, and come back
//! as their cluster publishes a smaller [`Drain`]. Those of clusters that cannot be reached leave at once, and serve only if
//! nobody else is ready.
//!
//! Each IP family and each port is judged by itself: a port that only a farther cluster serves is served from there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use sha2::{Digest, Sha256};

use super::weights::counts;
use api::weights::Weights;
use cluster::objects::OwnSlice;
use model::{ClusterId, Conditions, Drain, EndpointPort, MinReady, PackedEndpoint, drain::STEPS, number};

/// What cluster selection needs to know of one name.
#[derive(Debug)]
pub(super) struct Around<'a> {
    /// This cluster: each cluster chooses other endpoints of a farther tier, so that they do not all choose the same.
    pub(super) local: &'a ClusterId,
    /// The EndpointSlices that there are.
    pub(super) slices: &'a [Arc<OwnSlice>],
    /// Which share of a tier must be ready for it to serve alone.
    pub(super) min_ready: MinReady,
    /// Which part of the connections each cluster of the tier that serves should get.
    pub(super) weights: &'a Weights,
    /// How many steps farther tiers have gone back.
    pub(super) step: u8,
    /// Whether a cluster is not known that may serve this name, too.
    pub(super) unknown: Option<Serving>,
}

/// Whether slices of a cluster that is not known list a ready endpoint.
pub(super) type Serving = bool;

/// How what is shown differs from what should be shown in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Spill {
    /// Not at all.
    #[default]
    Settled,
    /// A farther tier shows more than it should, and gives it back step by step.
    Excess,
    /// A farther tier shows more endpoints from now on than before, so steps begin anew.
    Rising,
}

/// The place of endpoints in the order in which they serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Those that are drained come last.
    pub(super) drained: bool,
    /// The tier; 0 is the nearest one.
    pub(super) tier: usize,
}

impl Rank {
    const FIRST: Self = Self { drained: false, tier: 0 };
}

/// The endpoints of one source that may serve.
#[derive(Debug)]
pub(super) struct Candidates {
    /// Its tier; 0 is the nearest one.
    pub(super) tier: usize,
    /// Which part of its endpoints leaves.
    pub(super) drain: Option<Drain>,
    /// Whether its cluster cannot be reached from this one.
    pub(super) unreachable: bool,
    /// Its endpoints.
    pub(super) endpoints: Vec<PackedEndpoint>,
}

/// An endpoint in one IP family and on one port.
#[derive(Debug, Clone, Copy)]
struct Member<'a> {
    source: &'a ClusterId,
    address: IpAddr,
    conditions: Conditions,
    /// Whether a slice has it now.
    shown: bool,
}

/// The endpoints of one rank.
type Members<'a> = BTreeMap<(&'a ClusterId, IpAddr), Member<'a>>;

/// What is chosen: of each source the addresses, by the name of the port.
type Chosen = BTreeSet<(ClusterId, IpAddr, Arc<str>)>;

/// Chooses the endpoints that serve.
pub(super) fn choose(
    candidates: BTreeMap<ClusterId, Candidates>,
    around: &Around<'_>,
) -> (BTreeMap<ClusterId, Vec<PackedEndpoint>>, Spill) {
    let mut chosen = Chosen::new();
    let mut spill = Spill::Settled;
    let leave_if = candidates.values().filter_map(|of| of.drain).map(Drain::min_ready).max().unwrap_or_default();
    for ((_, port), ranks) in groups(&candidates, around) {
        let (members, spilled) = serving(&ranks, around, leave_if);
        spill = spill.max(spilled);
        chosen.extend(members.into_iter().map(|member| (member.source.clone(), member.address, Arc::clone(&port))));
    }
    let chosen = candidates.into_iter().map(|(source, Candidates { endpoints, .. })| {
        let endpoints = endpoints.into_iter().filter_map(|endpoint| restricted(&source, endpoint, &chosen)).collect();
        (source, endpoints)
    });
    (chosen.collect(), spill)
}

/// The name of a port, or nothing for an endpoint without ports.
fn port_names(ports: &[EndpointPort]) -> impl Iterator<Item = Arc<str>> {
    let without = ports.is_empty().then(Arc::default);
    ports.iter().map(|port| Arc::clone(&port.name)).chain(without)
}

/// An IP family (whether it is IPv4) and the name of a port.
type Group = (bool, Arc<str>);

/// All endpoints by IP family and port, and in each of these by rank.
fn groups<'a>(
    candidates: &'a BTreeMap<ClusterId, Candidates>,
    around: &Around<'_>,
) -> BTreeMap<Group, BTreeMap<Rank, Members<'a>>> {
    let mut shown = BTreeSet::new();
    for slice in around.slices.iter().filter(|slice| !slice.deleting) {
        let Some(source) = slice.source_cluster.as_deref() else { continue };
        for address in slice.endpoints.iter().filter_map(|endpoint| endpoint.address) {
            shown.extend(port_names(&slice.ports).map(|port| (source, address, port)));
        }
    }
    let mut sources = BTreeMap::<Group, BTreeMap<&ClusterId, BTreeMap<IpAddr, Member<'_>>>>::new();
    for (source, Candidates { endpoints, .. }) in candidates {
        for PackedEndpoint { endpoint, ports } in endpoints {
            for port in port_names(ports) {
                let shown = shown.contains(&(source.as_str(), endpoint.address, Arc::clone(&port)));
                let group = sources.entry((endpoint.address.is_ipv4(), port)).or_default();
                let member = Member { source, address: endpoint.address, conditions: endpoint.conditions, shown };
                // It may be listed several times, with other numbers of its ports.
                let one = group.entry(source).or_default().entry(endpoint.address).or_insert(member);
                one.conditions = one.conditions.better(endpoint.conditions);
            }
        }
    }
    sources.into_iter().map(|(group, sources)| (group, ranked(sources, candidates, around.local))).collect()
}

/// The endpoints of one IP family and port by rank.
fn ranked<'a>(
    mut sources: BTreeMap<&'a ClusterId, BTreeMap<IpAddr, Member<'a>>>,
    candidates: &BTreeMap<ClusterId, Candidates>,
    local: &ClusterId,
) -> BTreeMap<Rank, Members<'a>> {
    let is_ready = |members: &BTreeMap<IpAddr, Member<'_>>| members.values().any(|member| member.conditions.ready);
    if sources.iter().any(|(source, of)| !candidates[*source].unreachable && is_ready(of)) {
        sources.retain(|source, _| !candidates[*source].unreachable);
    }
    // Who comes back takes its time only where somebody else serves meanwhile.
    let others_serve = sources.iter().any(|(source, of)| candidates[*source].drain.is_none() && is_ready(of));
    let mut ranks = BTreeMap::<Rank, Members<'_>>::new();
    for (source, members) in sources {
        let Candidates { tier, drain, .. } = candidates[source];
        let drain = drain.filter(|drain| drain.is_whole() || others_serve);
        let staying = drain.map(|drain| staying(&members, drain, local));
        for (address, member) in members {
            let drained = staying.as_ref().is_some_and(|staying| !staying.contains(&address));
            ranks.entry(Rank { drained, tier }).or_default().insert((source, address), member);
        }
    }
    ranks
}

/// Which endpoints of a source stay while the others leave.
fn staying(members: &BTreeMap<IpAddr, Member<'_>>, drain: Drain, local: &ClusterId) -> BTreeSet<IpAddr> {
    let ready = members.values().filter(|member| member.conditions.ready).map(|member| member.address);
    let mut ready: Vec<_> = ready.collect();
    ready.sort_by_cached_key(|address| (order(local, *address), *address));
    ready.truncate(drain.staying(ready.len()));
    ready.into_iter().collect()
}

/// The members that serve. `leave_if`: which share of the endpoints that are not drained must be ready for the others to leave.
fn serving<'a>(
    ranks: &BTreeMap<Rank, Members<'a>>,
    around: &Around<'_>,
    leave_if: MinReady,
) -> (Vec<Member<'a>>, Spill) {
    let mut tiers: Vec<Tier<'a>> =
        ranks.iter().map(|(rank, members)| Tier::of(*rank, members.values().copied(), around.local)).collect();
    // Nobody is ready, so there is nothing to prefer.
    let Some(first) = tiers.iter().find(|tier| !tier.ready.is_empty()).map(|tier| tier.rank) else {
        return (tiers.into_iter().flat_map(|tier| tier.others).collect(), Spill::Settled);
    };
    // Until all clusters are known, farther tiers keep what they show, unless nobody shows anything.
    let frozen = around.unknown.is_some_and(|serves| serves || tiers.iter().any(|tier| tier.shown > 0));
    let nearest = if frozen { Rank::FIRST } else { first };
    let parts = parts(&tiers, around.min_ready, leave_if);
    for tier in tiers.iter_mut().filter(|tier| tier.rank <= nearest) {
        tier.weigh(around.weights, frozen);
    }
    let targets = targets(&tiers, parts, first);
    let (mut members, mut spill) = (Vec::new(), Spill::Settled);
    for (tier, target) in tiers.into_iter().zip(targets) {
        let Tier { rank, mut ready, others, shown } = tier;
        if rank <= nearest {
            members.extend(ready.into_iter().chain(others));
            continue;
        }
        let (count, spilled) = if frozen {
            (shown, Spill::Settled)
        } else if target > shown {
            (target, Spill::Rising)
        } else if target < shown {
            (target.max(shown.min(left_after(ready.len(), around.step))), Spill::Excess)
        } else {
            (target, Spill::Settled)
        };
        spill = spill.max(spilled);
        let whole = count > 0 && count == ready.len();
        ready.truncate(count);
        members.extend(ready);
        // What shuts down keeps its connections, and the others of a tier that serves as a whole are listed as always.
        members.extend(others.into_iter().filter(|member| whole || member.shown && member.conditions.terminating));
    }
    (members, spill)
}

/// How many endpoints of a farther tier of which `ready` are ready may be left after so many steps.
fn left_after(ready: usize, step: u8) -> usize {
    (ready * usize::from(STEPS.saturating_sub(step))).div_ceil(usize::from(STEPS))
}

/// A tier, or the drained part of one, with its endpoints in order.
struct Tier<'a> {
    rank: Rank,
    /// Those that are ready, in the order in which this cluster chooses them.
    ready: Vec<Member<'a>>,
    others: Vec<Member<'a>>,
    /// How many of the ready ones slices have now.
    shown: usize,
}

impl<'a> Tier<'a> {
    fn of(rank: Rank, members: impl Iterator<Item = Member<'a>>, local: &ClusterId) -> Self {
        let (mut ready, others): (Vec<_>, Vec<_>) = members.partition(|member| member.conditions.ready);
        ready.sort_by_cached_key(|member| (order(local, member.address), member.address));
        let shown = ready.iter().filter(|member| member.shown).count();
        Self { rank, ready, others, shown }
    }

    /// Number of endpoints. Those that shut down do not count: they are wanted no more.
    fn listed(&self) -> usize {
        self.ready.len() + self.others.iter().filter(|member| !member.conditions.terminating).count()
    }

    /// Leaves out what its clusters have beyond their weights. Until all clusters are known (`frozen`), each shows as many as it
    /// showed.
    fn weigh(&mut self, weights: &Weights, frozen: bool) {
        if weights.is_empty() {
            return;
        }
        let mut ready = BTreeMap::<&ClusterId, (usize, usize)>::new();
        for member in &self.ready {
            let (count, shown) = ready.entry(member.source).or_default();
            (*count, *shown) = (*count + 1, *shown + usize::from(member.shown));
        }
        let mut left: BTreeMap<&ClusterId, usize> = if frozen && self.shown > 0 {
            ready.iter().map(|(source, (_, shown))| (*source, *shown)).collect()
        } else {
            counts(weights, &ready.iter().map(|(source, (count, _))| (*source, *count)).collect())
        };
        let whole: BTreeSet<_> =
            ready.iter().filter(|(source, (count, _))| left[*source] == *count).map(|it| *it.0).collect();
        self.ready.retain(|member| match left.get_mut(member.source) {
            Some(0) | None => false,
            Some(left) => {
                *left -= 1;
                true
            }
        });
        self.others.retain(|member| {
            let is_partial = ready.contains_key(member.source) && !whole.contains(member.source);
            !is_partial || member.shown && member.conditions.terminating
        });
    }

    /// Which part of the connections it can take.
    fn health(&self, min_ready: MinReady) -> f64 {
        min_ready.health(self.ready.len(), self.listed())
    }
}

/// How many ready endpoints of each tier should be shown: all of the first one that has any, and of each farther one as many
/// as give it its part of the connections. What a tier has not, the next one gives.
fn targets(tiers: &[Tier<'_>], parts: Vec<f64>, first: Rank) -> Vec<usize> {
    let base = tiers.iter().zip(&parts).find(|(tier, _)| tier.rank == first);
    let per_part = base.map_or(0.0, |(tier, part)| number(tier.ready.len()) / part);
    let mut lacking = 0.0;
    let target = |(tier, part): (&Tier<'_>, f64)| {
        let ready = tier.ready.len();
        if tier.rank <= first {
            return ready;
        }
        let wanted = per_part * part + lacking;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded, and not negative")]
        let target = wanted.round().min(number(ready)) as usize;
        lacking = if target == ready { wanted - number(ready) } else { 0.0 };
        target
    };
    tiers.iter().zip(parts).map(target).collect()
}

/// Which part of the connections each tier should get; 1 is all.
fn parts(tiers: &[Tier<'_>], min_ready: MinReady, leave_if: MinReady) -> Vec<f64> {
    let (staying, drained) = tiers.split_at(tiers.partition_point(|tier| !tier.rank.drained));
    let mut left = 1.0;
    let of = |tier: &Tier<'_>, left: &mut f64| {
        let part = *left * tier.health(min_ready);
        *left -= part;
        part
    };
    let mut parts: Vec<f64> = staying.iter().map(|tier| of(tier, &mut left)).collect();
    if drained.is_empty() {
        return parts;
    }
    let (ready, listed) = (staying.iter().map(|tier| tier.ready.len()).sum(), staying.iter().map(Tier::listed).sum());
    let taken = (1.0 - left).min(leave_if.health(ready, listed));
    if left < 1.0 {
        for part in &mut parts {
            *part *= taken / (1.0 - left);
        }
    }
    left = 1.0 - taken;
    parts.extend(drained.iter().map(|tier| of(tier, &mut left)));
    parts
}

/// The place of an address in this cluster's order.
fn order(local: &ClusterId, address: IpAddr) -> [u8; 8] {
    let mut hash = Sha256::new();
    hash.update(local.as_str());
    match address {
        IpAddr::V4(address) => hash.update(address.octets()),
        IpAddr::V6(address) => hash.update(address.octets()),
    }
    let digest = hash.finalize();
    std::array::from_fn(|n| digest[n])
}

/// The endpoint with the ports for which it is chosen; `None` if there is none.
fn restricted(source: &ClusterId, endpoint: PackedEndpoint, chosen: &Chosen) -> Option<PackedEndpoint> {
    let address = endpoint.endpoint.address;
    let is_chosen = |port: &Arc<str>| chosen.contains(&(source.clone(), address, Arc::clone(port)));
    if endpoint.ports.is_empty() {
        return is_chosen(&Arc::default()).then_some(endpoint);
    }
    if endpoint.ports.iter().all(|port| is_chosen(&port.name)) {
        return Some(endpoint);
    }
    let ports: Arc<[EndpointPort]> = endpoint.ports.iter().filter(|port| is_chosen(&port.name)).cloned().collect();
    (!ports.is_empty()).then_some(PackedEndpoint { ports, ..endpoint })
}

#[cfg(test)]
#[path = "tiers_tests.rs"]
mod tests;
