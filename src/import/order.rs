//! The order in which the objects of an import are written: a state machine that makes no calls, and is given what
//! became of each write. After every write, whichever of them are refused,
//!
//! - an address that was an endpoint and stays one is in a slice;
//! - a port that clients use has the endpoints that it had and should have;
//! - endpoints that others take over from stay until one of these is in a slice;
//! - the type that the import shows is one that can be used, and so is the Service whose address it shows.

use std::{
    borrow::Cow,
    collections::{BTreeMap, VecDeque},
    net::IpAddr,
};

use super::{
    apply::There,
    objects::derived_port_name,
    plan::{self, Wanted},
};
use cluster::objects::{OwnSlice, Service};
use model::{ClusterId, ClusterSetService, EndpointPort, Protocol, ServiceType, Slice, SliceEndpoint};

/// One write. What is as it should be needs no call.
#[derive(Debug)]
pub(super) enum Step<'a> {
    /// Bring the derived Service to its desired state.
    Service(&'a ClusterSetService),
    /// Write a slice.
    Slice(SliceStep<'a>),
    /// Write the ServiceImport and its status.
    Import(&'a ClusterSetService),
    /// Delete a derived Service.
    Former(&'a Service),
    /// Delete a slice.
    Stale(&'a OwnSlice),
    /// Take out of such a slice what it need not keep until it can go.
    Kept(KeptSlice<'a>),
}

/// The write of a slice.
#[derive(Debug)]
pub(super) struct SliceStep<'a> {
    nth: usize,
    /// Whether the slice then lists nothing that it should not.
    whole: bool,
    pub(super) source: &'a ClusterId,
    pub(super) slice: Cow<'a, Slice>,
    pub(super) existing: Option<&'a OwnSlice>,
    /// The Service to which it belongs.
    pub(super) derived: Option<&'a str>,
}

/// A slice that goes later. Until then it has those of its endpoints that clients find nowhere else, as they are now.
#[derive(Debug)]
pub(super) struct KeptSlice<'a> {
    pub(super) source: ClusterId,
    pub(super) slice: Slice,
    pub(super) existing: &'a OwnSlice,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Written,
    Refused,
    /// The next write would fail as well: nobody answers, or this replica no longer leads.
    Over,
}

/// Steps of one kind. Stale slices come after all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepKind {
    /// Former Services that the import does not show, and their slices. A quota may have no room for them and for what is
    /// to come.
    Unused,
    Service,
    Slices(Whose),
    Import,
    Former,
}

/// To which Service a slice belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// To a former one, until the import shows another one.
    Former,
    /// To the one that is there or should be, or to none.
    Present,
}

/// A slice that should be there.
#[derive(Debug)]
struct Home<'a> {
    whose: Whose,
    derived: Option<&'a str>,
    source: &'a ClusterId,
    slice: &'a Slice,
    existing: Option<&'a OwnSlice>,
    /// Endpoints that it has, and that other slices of its Service should have instead.
    moving: Vec<SliceEndpoint>,
    /// Whether it lists all that it should.
    written: bool,
    /// Whether no further step writes it.
    over: bool,
}

impl Home<'_> {
    /// Whether it should have a ready endpoint.
    fn serves(&self) -> bool {
        self.slice.endpoints.iter().any(|endpoint| endpoint.conditions.ready)
    }

    /// Whether it gives up all of its endpoints, and stays.
    fn is_emptied(&self) -> bool {
        self.slice.endpoints.is_empty() && self.existing.is_some_and(|existing| !existing.endpoints.is_empty())
    }
}

/// The writes that are left.
#[derive(Debug)]
pub(super) struct Order<'a> {
    there: &'a There,
    /// The former Service whose address the import shows.
    shown: Option<&'a str>,
    before: VecDeque<StepKind>,
    /// What waits for the success of everything before it.
    after: VecDeque<StepKind>,
    service: Option<&'a ClusterSetService>,
    import: Option<&'a ClusterSetService>,
    unused: VecDeque<Step<'a>>,
    former: VecDeque<&'a Service>,
    homes: Vec<Home<'a>>,
    stale: VecDeque<&'a OwnSlice>,
    /// Whether clients find the endpoints of the present slices.
    in_use: bool,
    /// Whether they do so by a Service with the ports that it had. Slices that alone have one of them must stay while their
    /// endpoints live.
    lags: bool,
}

impl<'a> Order<'a> {
    pub(super) fn new(there: &'a There, wanted: &'a Wanted) -> Self {
        // If something is in the way of the Service, the import cannot announce that Service either.
        let import = wanted.service.as_ref().filter(|_| wanted.obstacle.is_none());
        let service_type = match (import, there.import.as_deref().filter(|import| import.managed)) {
            (Some(service), _) => service.service_type,
            (None, Some(import)) if import.spec.headless => ServiceType::Headless,
            (None, _) => ServiceType::ClusterSetIp,
        };
        let derives = there.derived.serves(service_type);
        let existing = there.derived.there.as_deref().filter(|derived| derived.managed);
        let [of_former, present] = [Whose::Former, Whose::Present].map(StepKind::Slices);
        let (mut before, after): (VecDeque<StepKind>, VecDeque<StepKind>) = match existing {
            // A Service gets its slices when it is there.
            None => ([StepKind::Service, of_former, present].into(), [StepKind::Import, StepKind::Former].into()),
            // A Service becomes headless by being made anew. Clients use its address until the import shows none.
            Some(existing) if service_type == ServiceType::Headless && !existing.headless => {
                ([of_former, present].into(), [StepKind::Import, StepKind::Service, StepKind::Former].into())
            }
            // kube-proxy refuses connections to a port that no slice has.
            Some(_) => ([of_former, present, StepKind::Service].into(), [StepKind::Import, StepKind::Former].into()),
        };
        let shown = wanted.former.as_ref().map(|former| &*former.derived);
        // While clients use a former Service, the present one may be there, too.
        let in_use = match shown {
            Some(_) => existing.is_some(),
            None => plan::is_in_use(there.import.as_deref(), &there.derived),
        };
        let lags = match shown {
            Some(_) => existing.is_some(),
            None => there.derived.is_used(there.import.as_deref()),
        };
        let service = import.or(wanted.lost.as_ref()).filter(|_| derives);
        let is_served = service.is_some_and(|service| !service.ip_families.is_empty());
        let stays = |derived: &Service| is_served && derived.key.name == there.derived.name;
        let is_left = |name: &str| import.is_some() && shown.is_some_and(|shown| *shown != *name);
        let unused = there.derived.former.iter().map(|derived| &**derived);
        let unused: Vec<&Service> = unused.filter(|derived| is_left(&derived.key.name)).collect();
        let is_unused = |name: &str| unused.iter().any(|derived| *derived.key.name == *name);
        let former = there.derived.ours().map(|derived| &**derived);
        let former = former.filter(|derived| import.is_some() && !stays(derived) && !is_unused(&derived.key.name));
        let former = former.collect();
        let stale = there.slices.iter().map(|slice| &**slice);
        let stale = stale.filter(|slice| wanted.stale.contains(&slice.key.name));
        let (of_unused, stale): (VecDeque<&OwnSlice>, VecDeque<&OwnSlice>) =
            stale.partition(|slice| slice.service.as_deref().is_some_and(is_unused));
        before.push_front(StepKind::Unused);
        Self {
            there,
            shown,
            before,
            after,
            service,
            import,
            unused: unused.into_iter().map(Step::Former).chain(of_unused.into_iter().map(Step::Stale)).collect(),
            former,
            homes: homes(there, wanted),
            stale,
            in_use,
            lags,
        }
    }

    /// The next write. Tell [`Self::done`] what became of it before asking again.
    pub(super) fn next(&mut self) -> Option<Step<'a>> {
        while let Some(part) = self.before.front().or_else(|| self.after.front()).copied() {
            let step = match part {
                StepKind::Unused => self.unused.pop_front(),
                StepKind::Service => self.next_service(),
                StepKind::Slices(whose) => self.next_slice(whose),
                StepKind::Import => self.import.take().map(Step::Import),
                StepKind::Former => self.former.pop_front().map(Step::Former),
            };
            if step.is_some() {
                return step;
            }
            if self.before.pop_front().is_none() {
                self.after.pop_front();
            }
        }
        self.next_stale()
    }

    /// Takes in what became of a step. A failure delays neither other slices nor the removal of dead endpoints.
    pub(super) fn done(&mut self, step: &Step<'a>, outcome: Outcome) {
        match (step, outcome) {
            (Step::Service(_), Outcome::Written) => self.lags = false,
            (Step::Import(_), Outcome::Written) => {
                self.lags &= self.service.is_some();
                self.release();
            }
            // Slices that nobody uses wait for their Service. But endpoints that clients use must not stay as they were
            // because a Service was refused.
            (Step::Service(_), _) if !self.in_use => {
                self.before.retain(|kind| *kind == StepKind::Slices(Whose::Former));
            }
            (Step::Slice(step), Outcome::Written) => {
                let home = &mut self.homes[step.nth];
                (home.written, home.over) = (true, step.whole);
            }
            (Step::Slice(step), _) => {
                self.homes[step.nth].over = true;
                if outcome == Outcome::Over {
                    self.before.clear();
                }
            }
            _ => {}
        }
        if outcome != Outcome::Written && !matches!(step, Step::Former(_) | Step::Stale(_) | Step::Kept(_)) {
            self.after.clear();
        }
    }

    /// The import shows another Service than the former one, or none. What that one had can go.
    fn release(&mut self) {
        self.shown = None;
        let left = self.homes.iter().filter(|home| home.whose == Whose::Former);
        self.stale.extend(left.filter_map(|home| home.existing));
    }

    fn next_service(&mut self) -> Option<Step<'a>> {
        let service = self.service.take()?;
        (!self.lacks_slices(service)).then_some(Step::Service(service))
    }

    /// Whether the Service must not be written: it would rename a port that clients use, and all slices with the new
    /// name could not be written.
    fn lacks_slices(&self, service: &ClusterSetService) -> bool {
        let Some(existing) = &self.there.derived.there else { return false };
        service.ports.iter().any(|port| {
            let name = derived_port_name(port);
            let mut same = existing.ports.iter().filter(|one| (one.port, one.protocol) == (port.port, port.protocol));
            let present = self.homes.iter().filter(|home| home.whose == Whose::Present);
            let mut homes = present.filter(|home| has_port(home.slice, name, port.protocol)).peekable();
            same.any(|one| &*one.name != name)
                && homes.peek().is_some()
                && homes.all(|home| !home.written && home.existing.is_none())
        })
    }

    /// The next slice to write: one that gives up no endpoint before the new slice of that endpoint has it. If all
    /// slices wait for each other, the one with the fewest endpoints lists what it should have and also what it gives
    /// up. It is far from the 1,000 endpoints that the API allows, because each slice should have at most 100.
    fn next_slice(&self, whose: Whose) -> Option<Step<'a>> {
        let waits = |row: &&SliceEndpoint| self.waits(whose, row.address, &[]);
        let is_left =
            |home: &Home<'_>| home.whose == whose && !home.over && (!home.is_emptied() || self.may_empty(home));
        let ready = self.homes.iter().position(|home| is_left(home) && !home.moving.iter().any(|row| waits(&row)));
        let nth = ready.or_else(|| {
            let waiting = self.homes.iter().enumerate().filter(|(_, home)| is_left(home) && !home.written);
            waiting.min_by_key(|(_, home)| home.slice.endpoints.len() + home.moving.len()).map(|(nth, _)| nth)
        })?;
        let home = &self.homes[nth];
        let mut slice = Cow::Borrowed(home.slice);
        if ready.is_none() {
            let endpoints = &mut slice.to_mut().endpoints;
            endpoints.extend(home.moving.iter().filter(waits).cloned());
            endpoints.sort_by_key(|endpoint| endpoint.address);
        }
        let (source, existing, derived, whole) = (home.source, home.existing, home.derived, ready.is_some());
        Some(Step::Slice(SliceStep { nth, whole, source, slice, existing, derived }))
    }

    /// Whether a slice may give up all of its endpoints: nobody has to take over, or somebody has.
    fn may_empty(&self, emptied: &Home<'_>) -> bool {
        let same = |home: &&Home<'_>| home.whose == emptied.whose && home.slice.family == emptied.slice.family;
        let mut serve = self.homes.iter().filter(same).filter(|home| home.serves()).peekable();
        serve.peek().is_none() || serve.any(|home| home.written)
    }

    /// A slice of which clients need no endpoint any more, or not all.
    fn next_stale(&mut self) -> Option<Step<'a>> {
        while let Some(slice) = self.stale.pop_front() {
            let is_of_former = self.shown.is_some() && slice.service.as_deref() == self.shown;
            let (whose, lags) = if is_of_former { (Whose::Former, true) } else { (Whose::Present, self.lags) };
            let ports: &[EndpointPort] = if lags { &slice.ports } else { &[] };
            let addresses = slice.endpoints.iter().filter_map(|row| row.address);
            let endpoints: Vec<_> = addresses.filter_map(|ip| self.keeps(whose, ip, ports)).collect();
            if endpoints.is_empty() {
                return Some(Step::Stale(slice));
            }
            if let Some((source, kept)) = source(slice).zip(plan::slice(slice)) {
                return Some(Step::Kept(KeptSlice { source, slice: Slice { endpoints, ..kept }, existing: slice }));
            }
        }
        None
    }

    /// An endpoint that a slice must keep for now.
    fn keeps(&self, whose: Whose, ip: IpAddr, ports: &[EndpointPort]) -> Option<SliceEndpoint> {
        let mut homes = self.homes.iter().filter(|home| home.whose == whose);
        let endpoint = homes.find_map(|home| find(home.slice, ip))?;
        self.waits(whose, ip, ports).then(|| endpoint.clone())
    }

    /// Whether an address should be in a slice that is not written yet. A slice that lacks one of these ports counts,
    /// too, because a Service may still look for the address by that port.
    fn waits(&self, whose: Whose, ip: IpAddr, ports: &[EndpointPort]) -> bool {
        let lacks = |slice: &Slice| ports.iter().any(|port| !has_port(slice, &port.name, port.protocol));
        let mut homes = self.homes.iter().filter(|home| home.whose == whose);
        homes.any(|home| has(home.slice, ip) && (!home.written || lacks(home.slice)))
    }
}

fn homes<'a>(there: &'a There, wanted: &'a Wanted) -> Vec<Home<'a>> {
    let mut homes = homes_of(there, (Whose::Present, wanted.derived.as_deref()), &wanted.slices);
    if let Some(former) = &wanted.former {
        homes.extend(homes_of(there, (Whose::Former, Some(&*former.derived)), &former.slices));
    }
    homes
}

fn homes_of<'a>(
    there: &'a There,
    (whose, derived): (Whose, Option<&'a str>),
    slices: &'a BTreeMap<ClusterId, Vec<Slice>>,
) -> Vec<Home<'a>> {
    let all: Vec<(&ClusterId, &Slice)> =
        slices.iter().flat_map(|(source, slices)| slices.iter().map(move |slice| (source, slice))).collect();
    let home = |&(source, slice): &(&'a ClusterId, &'a Slice)| {
        let existing = there.slices.iter().map(|one| &**one).find(|one| one.key.name == slice.name);
        let moves = |ip: IpAddr| !has(slice, ip) && all.iter().any(|(_, other)| has(other, ip));
        let rows = existing.into_iter().flat_map(|one| one.endpoints.iter());
        let moving = rows.filter(|row| row.address.is_some_and(moves)).filter_map(plan::endpoint).collect();
        Home { whose, derived, source, slice, existing, moving, written: false, over: false }
    };
    all.iter().map(home).collect()
}

fn source(slice: &OwnSlice) -> Option<ClusterId> {
    let source = slice.source_cluster.as_deref()?;
    ClusterId::discovered(source).or_else(|| source.parse().ok())
}

fn find(slice: &Slice, ip: IpAddr) -> Option<&SliceEndpoint> {
    let at = slice.endpoints.binary_search_by_key(&ip, |endpoint| endpoint.address).ok()?;
    Some(&slice.endpoints[at])
}

fn has(slice: &Slice, ip: IpAddr) -> bool {
    find(slice, ip).is_some()
}

/// Whether kube-proxy finds the endpoints of a slice for a Service's port of this name.
fn has_port(slice: &Slice, name: &str, protocol: Protocol) -> bool {
    slice.ports.iter().any(|port| &*port.name == name && port.protocol == protocol)
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
