//! Which desired instances are registered in a target that has a share of the traffic.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    ShareFigures, TargetDesired, TargetShare,
    engine::Engine,
    hidden_tasks::{HiddenNow, HiddenTasks, Wish},
    known::Known,
    state::{Phase, State},
};
use crate::{
    InstanceSpec, Owner,
    attributes::ServiceTraits,
    ownership::is_ours,
    plan::find,
    share::{
        Families, Others, Reached, Share, Traffic,
        choice::{Candidate, choose},
        pace::{Observed, PATIENCE, Pace},
    },
};
use cloudmap::Instance;
use model::Target;

/// The last own instances go only if a reading that is not older shows instances of others.
const FRESH: Duration = Duration::from_secs(30);

/// The state of a target's share.
#[derive(Debug, Default)]
pub(super) struct ShareState {
    pace: Pace,
    /// What others have registered, and when the reading that showed it began.
    others: Option<(Instant, Others)>,
    /// When the last reading began, even if the health of the instances could not be read.
    listed_at: Option<Instant>,
    /// When another share was requested than the one that counts. It counts after a reading that began later.
    asked_at: Option<Instant>,
    /// When the last write ended.
    written_at: Option<Instant>,
    choice: Option<Choice>,
    /// Whether one instance is kept that should go, until a reading shows that the name is not empty without it.
    keeps_one: bool,
    /// Whether that was shown.
    may_be_empty: bool,
    /// Until when the engine waits because of this.
    wakes_at: Option<Instant>,
}

/// The pods that are registered.
#[derive(Debug)]
struct Choice {
    /// Their instances, sorted by id, and those that are registered already and only marked as unhealthy.
    instances: Arc<[InstanceSpec]>,
    /// Instances that have no IP family of the others.
    refused: Vec<(Arc<str>, &'static str)>,
    /// The pods, by [`InstanceSpec::address`].
    pods: BTreeSet<String>,
    share: TargetShare,
}

impl ShareState {
    /// Takes what others have registered, by a reading that began at that time.
    pub(super) fn was_read(&mut self, begun: Instant, others: Others) {
        self.others = Some((begun, others));
    }

    /// The service is another one, so nothing is known about it. Until it is read, nobody chooses: pods come and go
    /// meanwhile, and imports would have those of the former choice alone.
    pub(super) fn lost(&mut self) {
        (self.others, self.listed_at, self.choice) = (None, None, None);
    }

    /// A write ended.
    pub(super) fn wrote(&mut self, now: Instant) {
        self.written_at = Some(now);
    }

    /// Whether a new share counts only after another reading.
    pub(super) fn awaits_reading(&self) -> bool {
        self.asked_at.is_some()
    }

    /// Whether the choice may change because of the time, or of a write that ended.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.keeps_one || self.wakes_at.is_some_and(|at| at <= now)
    }

    pub(super) fn status(&self) -> Option<TargetShare> {
        self.choice.as_ref().map(|choice| choice.share.clone())
    }

    pub(super) fn chosen(&self) -> Option<&Arc<[InstanceSpec]>> {
        self.choice.as_ref().map(|choice| &choice.instances)
    }

    pub(super) fn refused(&self) -> &[(Arc<str>, &'static str)] {
        self.choice.as_ref().map(|choice| choice.refused.as_slice()).unwrap_or_default()
    }

    /// Whether the pod of an instance could be registered, and others are.
    pub(super) fn leaves_out(&self, spec: &InstanceSpec) -> bool {
        self.choice.as_ref().is_some_and(|choice| {
            let refused = choice.refused.iter().any(|(id, _)| id == spec.id());
            // Those that the service cannot take are among the instances, so that they are reported.
            spec.is_ready() && !refused && find(&choice.instances, spec.id()).is_none()
        })
    }

    /// Whether the name may have no instance but the own ones.
    pub(super) fn is_alone(&self) -> bool {
        self.others.is_none_or(|(_, others)| others.whole == 0)
    }
}

impl State {
    /// Another desired state. Returns whether to read the target, because a share is new.
    pub(super) fn share_desired(
        &mut self,
        before: Option<&TargetDesired>,
        desired: &TargetDesired,
        now: Instant,
    ) -> bool {
        if !desired.traffic.is_part() {
            self.part = None;
            return false;
        }
        // Before this term's first reading, an earlier leader may have registered a part.
        let known = !self.is_unread() && before.is_some_and(|before| before.active);
        match &mut self.part {
            // The last one that could be read was none.
            None if known && desired.traffic == Traffic::Unclear => return false,
            None => {
                let pace = if known { Pace::of_all() } else { Pace::default() };
                let asked_at = known.then_some(now);
                self.part = Some(Box::new(ShareState { pace, asked_at, ..ShareState::default() }));
            }
            Some(part) if part.pace.is_new(desired.traffic) && before.is_some_and(|b| b.traffic != desired.traffic) => {
                part.asked_at = Some(now);
            }
            Some(_) => return false,
        }
        !self.is_unread()
    }

    /// Number of ready pods that are known to be registered, whether they are chosen or not.
    pub(super) fn registered_pods(&self, desired: &TargetDesired) -> usize {
        let Some(there) = self.known() else { return 0 };
        let is_there = |spec: &&InstanceSpec| spec.is_ready() && there.has(spec.id());
        desired.instances.iter().filter(is_there).map(InstanceSpec::address).collect::<BTreeSet<_>>().len()
    }

    /// Takes what others have registered, by a complete listing. If their health could not be read, what was known
    /// stays. Tasks that are `hidden`, or were a moment ago, count as healthy.
    pub(super) fn others_were_read(
        &mut self,
        listing: &[Instance],
        (unhealthy, hidden): (Option<&BTreeSet<Arc<str>>>, &BTreeSet<Arc<str>>),
        identity: &Owner,
        begun: Instant,
    ) {
        let Self { part: Some(part), phase: Phase::Resolved(known), .. } = self else { return };
        let Known { place, own, adopted, .. } = known;
        let checked = place.as_ref().is_some_and(|place| place.traits.has_custom_health_check());
        part.listed_at = Some(begun);
        if checked && unhealthy.is_none() && part.others.is_some() {
            return;
        }
        let ours = |there: &Instance| {
            is_ours(there, identity) || own.contains_key(&there.id) || adopted.contains_key(&there.id)
        };
        let healthy =
            |there: &&Instance| hidden.contains(&there.id) || !unhealthy.is_some_and(|ill| ill.contains(&there.id));
        part.was_read(begun, Others::of(listing.iter().filter(|there| !ours(there)).filter(healthy)));
    }

    /// Chooses anew which instances are registered, and which tasks are hidden. Returns when to do so again, and whether to
    /// read before.
    fn choose(
        &mut self,
        desired: &TargetDesired,
        settling: Duration,
        hidden_tasks: Option<&mut HiddenTasks>,
        now: Instant,
    ) -> Option<(Option<Instant>, bool)> {
        let Self { part: Some(part), phase: Phase::Resolved(known), .. } = self else { return None };
        let traits = known.place.as_ref().map(|place| place.traits).unwrap_or_default();
        let (begun, others) = part.others?;
        let sorted = Sorted::of(&desired.instances, others.families, &known.taken, traits);
        let registered = |specs: &[InstanceSpec]| specs.iter().any(|spec| known.own.contains_key(spec.id()));
        let count = sorted.pods.values().filter(|specs| registered(specs)).count();
        let share = part.pace.hiding(desired.traffic);
        let wish = sorted.wish(known, share, others);
        let HiddenNow { hidden, to_hide, until } = hidden_tasks
            .map(|hidden_tasks| hidden_tasks.look(wish, desired.hide_tasks && desired.active, now))
            .unwrap_or_default();
        // Tasks are shown before pods go, whose number follows only then.
        let unread = |at: Instant| part.listed_at.is_none_or(|listed| listed < at);
        let unclear = until.is_some() || part.asked_at.is_some_and(unread);
        let traffic = if unclear { Traffic::Unclear } else { desired.traffic };
        if traffic == desired.traffic {
            part.asked_at = None;
        }
        let visible = others.whole.saturating_sub(hidden);
        let mut number = part.pace.number(Observed { traffic, others, registered: count, settling }, now);
        let mut reads = false;
        if number > 0 {
            (part.keeps_one, part.may_be_empty) = (false, false);
        } else {
            // The last instance is marked as one of a share before it goes. If two clusters withdraw their last
            // instances at once, one of them sees the other's mark, and does not count on that instance.
            let is_marked = |spec: &InstanceSpec| known.own.get(spec.id()) == Some(&Some(spec.digest(traits)));
            let marked = sorted.pods.values().flatten().any(is_marked);
            let idle = !known.activities.is_any_written();
            // If nobody else serves, and a roll-out took the last pod away, another pod takes its place.
            let none = count == 0 && idle && (visible > 0 || known.own.is_empty());
            let fresh = now.duration_since(begun) <= FRESH;
            let since = part.written_at.is_none_or(|written| written < begun);
            let proven = if part.may_be_empty { fresh || !idle } else { fresh && since && idle && marked };
            part.may_be_empty = none || proven && visible > 0;
            part.keeps_one = !part.may_be_empty;
            reads = part.keeps_one && others.whole > 0 && idle && !(fresh && since);
            number = usize::from(part.keeps_one);
        }

        let before = part.choice.as_ref().map(|choice| &choice.pods);
        let candidates = sorted.pods.iter().map(|(address, specs)| Candidate {
            id: address,
            zone: specs.first().and_then(InstanceSpec::zone),
            registered: before.map_or_else(|| registered(specs), |before| before.contains(address)),
        });
        let chosen: BTreeSet<String> = choose(candidates, number).into_iter().map(str::to_owned).collect();
        let (ours, ready, others) = (chosen.len(), sorted.pods.len(), others.count().saturating_sub(hidden));
        let reached = Reached { asked: part.pace.asked(), ours, ready, others, hidden, to_hide };
        let known = part.choice.take().map(|choice| choice.share.addresses);
        part.choice = Some(sorted.choice(&desired.instances, chosen, number > 0, reached, known));
        let wake = part.pace.wake().into_iter().chain(until).min();
        Some((if std::mem::replace(&mut part.wakes_at, wake) == wake { None } else { wake }, reads))
    }
}

/// The desired instances, as those of a share.
struct Sorted {
    /// Those of which some are chosen, by [`InstanceSpec::address`].
    pods: BTreeMap<String, Vec<InstanceSpec>>,
    /// Those of pods that are not ready, and those that are not registered, and reported as for a Service without a share.
    left: Vec<InstanceSpec>,
    /// As [`Choice::refused`].
    refused: Vec<(Arc<str>, &'static str)>,
}

impl Sorted {
    fn of(instances: &[InstanceSpec], families: Families, taken: &BTreeSet<Arc<str>>, traits: ServiceTraits) -> Self {
        let mut sorted = Self { pods: BTreeMap::new(), left: Vec::new(), refused: Vec::new() };
        for spec in instances {
            match spec.as_part(families) {
                None if spec.is_ready() => {
                    let why = "it has no IP family of the instances that others registered";
                    sorted.refused.push((spec.id().clone(), why));
                }
                None => {}
                Some(part) if !spec.is_ready() || taken.contains(spec.id()) || part.lacks(traits).is_some() => {
                    sorted.left.push(part);
                }
                Some(part) => sorted.pods.entry(spec.address()).or_default().push(part),
            }
        }
        sorted
    }

    /// What decides how many tasks are hidden.
    fn wish(&self, known: &Known, share: Option<Share>, others: Others) -> Wish {
        // One that is being written anew stays; one that is being registered for the first time has no health yet.
        let is_found = |spec: &InstanceSpec| {
            let goes = known.activities.write(spec.id()).is_some_and(|write| write.effect.is_none());
            known.own.contains_key(spec.id()) && !goes && known.last_health(spec.id()) == Some(true)
        };
        let registered = self.pods.values().filter(|specs| specs.iter().any(is_found)).count();
        // They keep their instances, and may be ready again in a moment.
        let ill = self.left.iter().filter(|spec| !spec.is_ready() && known.own.contains_key(spec.id()));
        let ill = ill.map(InstanceSpec::address).filter(|address| !self.pods.contains_key(address));
        let ill = ill.collect::<BTreeSet<_>>().len();
        Wish { share, ready: self.pods.len(), ill, registered, others: others.count() }
    }

    /// The pods that are registered. `known` are the addresses of the last choice.
    fn choice(
        self,
        desired: &[InstanceSpec],
        chosen: BTreeSet<String>,
        any: bool,
        reached: Reached,
        known: Option<Arc<BTreeSet<IpAddr>>>,
    ) -> Choice {
        let Self { mut pods, mut left, refused } = self;
        pods.retain(|address, _| chosen.contains(address));
        left.retain(|spec| spec.is_ready() || any);
        let mut instances: Vec<_> = pods.into_values().flatten().chain(left).collect();
        instances.sort_by(|a, b| a.id().cmp(b.id()));
        // With all of their families: an import has them.
        let of_chosen = desired.iter().filter(|spec| spec.is_ready() && chosen.contains(&spec.address()));
        let addresses: BTreeSet<IpAddr> = of_chosen.flat_map(InstanceSpec::addresses).collect();
        let addresses = known.filter(|known| **known == addresses).unwrap_or_else(|| Arc::new(addresses));
        let unready = desired.iter().filter(|spec| !spec.is_ready()).map(InstanceSpec::address);
        let share = TargetShare {
            reached,
            registered: 0,
            addresses,
            unready: unready.collect::<BTreeSet<_>>().len(),
            complete: false,
            ttl: 0,
            resolves: false,
            http_name: None,
            tasks: None,
        };
        Choice { instances: instances.into(), refused, pods: chosen, share }
    }
}

impl Engine {
    /// Chooses anew which instances of a target are registered, if it has a share.
    pub(super) fn choose(&mut self, target: &Target, desired: &TargetDesired, now: Instant) {
        // Others read as often as we do, and wait as long before they go down.
        let settling = 2 * (PATIENCE + self.drift_period());
        self.show_unwanted(target, desired, now);
        let Self { targets, hiding, .. } = self;
        let Some(state) = targets.get_mut(target) else { return };
        let mut hidden_tasks = hiding.of(state.service_id(), target, desired);
        if let Some(hidden_tasks) = &mut hidden_tasks {
            hidden_tasks.hides = desired.hide_tasks && !desired.retiring;
        }
        let Some((wake, reads)) = state.choose(desired, settling, hidden_tasks, now) else { return };
        if reads {
            self.read_soon(target, now);
        }
        if let Some(at) = wake {
            self.wake_at(target, at);
        }
    }
}

/// Whether an instance is that of a ready pod: it is not dead, and only others are registered in its place.
pub(super) fn is_alive(desired: &TargetDesired, id: &str) -> bool {
    find(&desired.instances, id).is_some_and(InstanceSpec::is_ready)
}

impl ShareFigures {
    /// Those of one target, in which so many pods are registered.
    pub(super) fn of(reached: Reached, registered: usize) -> Self {
        let hundredths = |share: Share| usize::from(share.hundredths());
        Self {
            targets: 1,
            limited: reached.is_limited().into(),
            held_back: reached.ready - reached.ours,
            // One that a new leader cannot read leaves the pods as they are.
            asked: hundredths(reached.asked.unwrap_or_else(|| reached.share())),
            reached: hundredths(Share::reached(registered, reached.others)),
            reachable: hundredths(reached.most()),
        }
    }

    pub(super) fn combined(self, other: Self, with: fn(usize, usize) -> usize) -> Self {
        let Self { targets, limited, held_back, asked, reached, reachable } = other;
        Self {
            targets: with(self.targets, targets),
            limited: with(self.limited, limited),
            held_back: with(self.held_back, held_back),
            asked: with(self.asked, asked),
            reached: with(self.reached, reached),
            reachable: with(self.reachable, reachable),
        }
    }
}
