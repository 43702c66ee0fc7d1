//! Decides which call comes next, without network and clock. [`Engine::next`] returns calls, and [`Engine::done`] takes
//! their results, with the time.
//!
//! Targets take turns, with one call each. Targets with a change come before the backlog, so neither a long queue nor a
//! failing target delays the others.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    Desired, Statuses, SyncFigures, SyncSettings, TargetDesired, TargetStatus,
    call::Call,
    failure::back_off,
    hiding::Hiding,
    listing::Listing,
    places::{Namesakes, Services},
    polls::Poll,
    readback::Unpolled,
    state::{Class, Counts, Phase, Reading, Seen, State, Unread, Want},
    ttl::RECORDS,
    writes::OPERATIONS,
};
use cloudmap::{LATEST_EFFECT, Looks, Namespace};
use model::Target;

pub(super) struct Engine {
    pub(super) settings: Arc<SyncSettings>,
    pub(super) started: Instant,
    pub(super) desired: Desired,
    /// Boxed, because the nodes of a map have room for more entries than they hold.
    pub(super) targets: BTreeMap<Target, Box<State>>,
    /// The active ones by the name that they have in a DNS namespace.
    pub(super) namesakes: Namesakes,
    pub(super) namespaces: Listing<BTreeMap<Arc<str>, Namespace>>,
    /// By namespace id.
    pub(super) services: BTreeMap<Arc<str>, Listing<Services>>,
    pub(super) creating: BTreeMap<Arc<str>, Listing<()>>,
    statuses: Statuses,
    /// Sums over all targets.
    pub(super) counts: Counts,
    /// Targets whose status or counts may have changed.
    changed: BTreeSet<Target>,
    /// Whether statuses or figures may differ from the last ones that were taken.
    news: bool,
    pub(super) queues: BTreeMap<(Class, bool), VecDeque<Target>>,
    pub(super) in_flight: BTreeMap<Class, usize>,
    pub(super) timers: BTreeMap<(Instant, u64), Target>,
    pub(super) polls: BTreeMap<(Instant, u64), Poll>,
    pub(super) polling: usize,
    pub(super) unpolled: Option<Unpolled>,
    pub(super) looks: Looks,
    pub(super) sequence: u64,
    pub(super) running: usize,
    pub(super) drifted: u64,
    pub(super) drift_next: Instant,
    pub(super) drift_last: Option<Target>,
    pub(super) records_next: Instant,
    pub(super) records_last: Option<Arc<str>>,
    pub(super) hiding: Hiding,
}

impl Engine {
    pub(super) fn new(settings: Arc<SyncSettings>, now: Instant) -> Self {
        Self {
            started: now,
            drift_next: now,
            settings,
            desired: Desired::default(),
            targets: BTreeMap::new(),
            namesakes: Namesakes::default(),
            namespaces: Listing::default(),
            services: BTreeMap::new(),
            creating: BTreeMap::new(),
            statuses: Statuses::default(),
            counts: Counts::default(),
            changed: BTreeSet::new(),
            news: true,
            queues: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            timers: BTreeMap::new(),
            polls: BTreeMap::new(),
            polling: 0,
            unpolled: None,
            looks: Looks::rarely(),
            sequence: 0,
            running: 0,
            drifted: 0,
            drift_last: None,
            records_next: now + RECORDS,
            records_last: None,
            hiding: Hiding::default(),
        }
    }

    /// Sets the latest desired state. What an earlier one wanted and was not sent yet is forgotten.
    pub(super) fn desire(&mut self, desired: &Desired, now: Instant) {
        let before = std::mem::replace(&mut self.desired, desired.clone());
        // All of them first: a target may get its service from one that gives it up in the same step.
        for (target, _, wanted) in before.difference(desired) {
            self.namesakes.note(target, wanted.is_some_and(|wanted| wanted.active));
        }
        for (target, old, wanted) in before.difference(desired) {
            let Some(wanted) = wanted else {
                self.drop_unwanted(target);
                continue;
            };
            let state = self.targets.entry(target.clone()).or_default();
            state.pending = None;
            if matches!(state.phase, Phase::Gone) && !wanted.retiring {
                **state = State { counted: state.counted, ..State::default() };
            }
            if state.share_desired(old.map(Arc::as_ref), wanted, now) {
                state.read_at = Some(now);
            }
            if wanted.retiring && !old.is_some_and(|old| old.retiring) {
                // What goes now is more than what went before: a reading has to tell.
                state.seen = state.seen.min(Seen::Once);
            }
            if old.is_some_and(|old| old.consent.adopt != wanted.consent.adopt) {
                let prefix = self.settings.identity.id_prefix();
                state.disown(|id| id.starts_with(&prefix) || awsmcs::is_id(id));
            }
            self.claim_changed(target, old.map(Arc::as_ref), wanted, now);
            let Some(state) = self.targets.get_mut(target) else { continue };
            let flags = |d: &TargetDesired| {
                let only_found = d.only_found.clone().filter(|_| !d.unable);
                (d.active, only_found, d.retiring, d.keep, d.consent.clone(), d.creation.clone())
            };
            if old.is_some_and(|old| flags(old) != flags(wanted)) {
                state.not_before = None;
                state.unread = Unread::default();
                state.ttl.not_before = None;
                state.failures = 0;
                state.problem = None;
                state.denied.clear();
                // Nothing was registered with this consent yet.
                state.settled = false;
                if old.is_some_and(|old| old.only_found != wanted.only_found && !wanted.unable) {
                    state.seen = Seen::Never;
                }
                // It was found under other rules, so it must be found again. So must what was refused to somebody else.
                let other = old.is_some_and(|old| old.consent != wanted.consent);
                let refused = state.place().is_some_and(|place| place.refused);
                if (other || refused) && !wanted.consent.unclear && !state.busy {
                    state.phase = Phase::Unresolved;
                }
            }
            // Imports have the same pods, whether or not anything can be written now.
            self.choose(target, wanted, now);
            self.wake_target(target, now);
        }
    }

    /// Forgets a target that is no longer desired, and what is known only for it, as soon as none of its operations is
    /// running. (Its places in queues are skipped when their turn comes.)
    pub(super) fn drop_unwanted(&mut self, target: &Target) {
        self.changed.insert(target.clone());
        if self.desired.contains_key(target) || self.targets.get(target).is_some_and(|state| !state.running.is_empty())
        {
            return;
        }
        if let Some(state) = self.targets.remove(target) {
            self.counts -= state.counted;
        }
        self.forget_unneeded(&target.namespace);
    }

    /// Forgets what is known of a Cloud Map namespace, if no target is in it.
    pub(super) fn forget_unneeded(&mut self, namespace: &Arc<str>) {
        let first = Target { namespace: namespace.clone(), service: "".into() };
        if self.targets.range(first..).next().is_some_and(|(other, _)| other.namespace == *namespace) {
            return;
        }
        if self.creating.get(namespace).is_some_and(|listing| !listing.is_loading()) {
            self.creating.remove(namespace);
        }
        let listed = self.namespaces.rows.as_ref().and_then(|(_, rows)| rows.get(namespace));
        if let Some(id) = listed.map(|namespace| namespace.id.clone())
            && self.services.get(&id).is_some_and(|listing| !listing.is_loading())
        {
            self.services.remove(&id);
        }
    }

    /// Puts a target into the queue for its next step, if it has one.
    pub(super) fn wake_target(&mut self, target: &Target, now: Instant) {
        self.changed.insert(target.clone());
        let Some(want) = self.want(target, now) else { return };
        let Some(state) = self.targets.get_mut(target) else { return };
        let withdrawn = self.desired.get(target).is_some_and(|desired| desired.retiring);
        // Writes in a service wait until its owner is known. Nothing else does.
        let inspect = matches!(want, Want::Inspect { .. });
        let changed = inspect && state.pending.is_some() && !state.at_rest();
        let unhurried = inspect && !changed && state.place().is_some_and(|place| place.unproven);
        let place = (want.class(), !unhurried && (state.settled || withdrawn || changed));
        if state.queued != Some(place) {
            state.queued = Some(place);
            self.queues.entry(place).or_default().push_back(target.clone());
        }
    }

    pub(super) fn wake_at(&mut self, target: &Target, at: Instant) {
        self.sequence += 1;
        self.timers.insert((at, self.sequence), target.clone());
    }

    /// Requests a reading, unless one is requested already: that one has its timer, and if it is overdue, what it waits
    /// for wakes the target. A second timer would be due at once, again and again.
    pub(super) fn read_soon(&mut self, target: &Target, now: Instant) {
        let Some(state) = self.targets.get_mut(target).filter(|state| state.read_at.is_none()) else { return };
        let at = now + back_off(state.read_again + 1);
        state.read_at = Some(at);
        self.wake_at(target, at);
    }

    pub(super) fn wake_unresolved(&mut self, now: Instant) {
        let seeks = |state: &State| matches!(state.phase, Phase::Unresolved) || state.is_look_due(now);
        let unresolved = self.targets.iter().filter(|(_, state)| seeks(state));
        let targets: Vec<_> = unresolved.map(|(target, _)| target.clone()).collect();
        for target in targets {
            self.wake_target(&target, now);
        }
    }

    /// When to call [`next`](Self::next) again, if nothing happens before.
    pub(super) fn wake(&self) -> Option<Instant> {
        let timer = self.timers.first_key_value().map(|((at, _), _)| *at);
        // What waits for a free place is woken by the call that frees one.
        let poll = self.polls.first_key_value().map(|((at, _), _)| *at).filter(|_| self.may_poll());
        let drift = Some(self.drift_next).filter(|_| self.may_check());
        let records = Some(self.records_next).filter(|_| self.may_check());
        [timer, poll, drift, records, self.hiding.wake()].into_iter().flatten().min()
    }

    /// The next call to make now, if there is one.
    pub(super) fn next(&mut self, now: Instant) -> Option<Call> {
        while let Some(timer) = self.timers.first_entry().filter(|timer| timer.key().0 <= now) {
            let target = timer.remove();
            if let Some(state) = self.targets.get_mut(&target) {
                let hides = self.hiding.of_service(state.service_id.as_ref()).is_some();
                let due = hides || !state.denied.is_empty() || state.part.as_ref().is_some_and(|part| part.is_due(now));
                state.pending = state.pending.take().filter(|_| state.retry.is_empty() && !due);
            }
            self.wake_target(&target, now);
        }
        if let Some(poll) = self.next_poll(now) {
            return Some(poll);
        }
        if let Some(call) = self.next_hiding(now) {
            return Some(call);
        }
        for class in Class::ALL {
            let full = class == Class::Write && self.running >= OPERATIONS;
            if full || self.in_flight(class) >= class.places() {
                continue;
            }
            for urgent in [true, false] {
                if let Some(call) = self.next_of((class, urgent), now) {
                    *self.in_flight.entry(class).or_default() += 1;
                    return Some(call);
                }
            }
        }
        self.drift_check(now).or_else(|| self.records_check(now))
    }

    pub(super) fn in_flight(&self, class: Class) -> usize {
        self.in_flight.get(&class).copied().unwrap_or_default()
    }

    fn next_of(&mut self, queue: (Class, bool), now: Instant) -> Option<Call> {
        loop {
            let Some(target) = self.queues.get_mut(&queue)?.pop_front() else {
                // An emptied queue keeps its memory.
                self.queues.remove(&queue);
                return None;
            };
            match self.targets.get_mut(&target) {
                Some(state) if state.queued == Some(queue) => state.queued = None,
                // It was moved to another queue, or dropped.
                _ => continue,
            }
            let call = match self.want(&target, now) {
                Some(want) if want.class() == queue.0 => self.issue(&target, want, now),
                _ => None,
            };
            // To the end of the queue, if there is more to do.
            self.wake_target(&target, now);
            if call.is_some() {
                return call;
            }
        }
    }

    /// The next step of a target.
    pub(super) fn want(&mut self, target: &Target, now: Instant) -> Option<Want> {
        let desired = &Arc::clone(self.desired.get(target)?);
        let state = self.targets.get(target)?;
        if state.busy || state.not_before.is_some_and(|at| at > now) {
            return None;
        }
        if !(desired.active || desired.retiring) {
            return desired.successor.as_ref().and_then(|_| self.want_succession(target, now));
        }
        let rests = state.running.is_empty() && state.reading.is_none() && !matches!(state.phase, Phase::Gone);
        if desired.retiring && rests && self.is_left(target, now) {
            return None;
        }
        if self.targets.get(target)?.is_look_due(now)
            && let Some(look) = self.find_again(target, desired, now)
        {
            return Some(look);
        }
        let state = self.targets.get(target)?;
        match &state.phase {
            Phase::Gone => self.want_look(target, desired, now),
            Phase::Unresolved => self.want_place(target, desired, now),
            Phase::Resolved(place) => {
                let (service_id, unproven) = (place.service_id.clone(), place.unproven);
                if state.seen == Seen::Never {
                    // A hidden task would count as one that is ill.
                    let may_read = state.reading.is_none() && self.hiding.answered();
                    return may_read.then_some(Want::Read { service_id });
                }
                if state.may_read(now) && state.read_at.is_some_and(|at| at <= now) {
                    return Some(Want::Read { service_id });
                }
                // While somebody who was unable waits for its turn, nothing happens there, or what it takes over would go
                // before its own instances are there. In a service that is refused, what is left of others goes.
                let idle = if desired.unable { !place.refused && !unproven } else { desired.only_found.is_some() };
                if idle && !state.found_own {
                    return None;
                }
                // Our own instances are withdrawn, no matter who owns the service.
                if unproven && !desired.retiring {
                    self.plan_writes(target, desired, now);
                    let state = self.targets.get_mut(target)?;
                    // A previous leader registered what is there, after it had checked the owner.
                    if state.at_rest() && !state.own.is_empty() {
                        state.settle();
                    }
                    return Some(Want::Inspect { service_id });
                }
                if let Some((id, healthy)) = self.next_health(target, desired, now) {
                    return Some(Want::SetHealth { service_id, id, healthy });
                }
                if let Some(id) = self.next_write(target, desired, now) {
                    return Some(Want::Write { service_id, id });
                }
                let state = self.targets.get(target)?;
                if let Some(ttl) = state.wanted_ttl(desired, now) {
                    return Some(Want::SetTtl { service_id, ttl });
                }
                let empty = state.at_rest() && state.own.is_empty() && state.reading.is_none();
                if empty && state.is_to_be_remade(desired) {
                    return Some(Want::DeleteService { service_id });
                }
                if !(desired.retiring && empty) {
                    return None;
                }
                let certain = self.certain_from(target);
                if now < certain {
                    self.wait_until(target, certain);
                    return None;
                }
                // The final proof is a reading after the last write, not one after each write.
                if state.seen != Seen::Since {
                    return state.may_read(now).then_some(Want::Read { service_id });
                }
                Some(Want::DeleteService { service_id })
            }
        }
    }

    /// Delays everything for a target until then.
    pub(super) fn wait_until(&mut self, target: &Target, at: Instant) {
        if let Some(state) = self.targets.get_mut(target) {
            state.not_before = Some(at);
        }
        self.wake_at(target, at);
    }

    /// The time from which on a listing or reading proves that nothing of ours is, or will appear, in a retiring
    /// target.
    ///
    /// Before it, requests of the previous leader, or a call without an answer, may take effect. If the registration record
    /// went earlier, a late instance would stay forever.
    pub(super) fn certain_from(&self, target: &Target) -> Instant {
        let late_until = self.targets.get(target).and_then(|state| state.late_until);
        late_until.unwrap_or(self.started).max(self.started + LATEST_EFFECT)
    }

    pub(super) fn issue(&mut self, target: &Target, want: Want, now: Instant) -> Option<Call> {
        let mut busy = || self.targets.get_mut(target).map(|state| state.busy = true);
        let target_owned = target.clone();
        Some(match want {
            Want::Namespaces => {
                self.namespaces.load(now);
                Call::ListNamespaces
            }
            Want::CreateNamespace => {
                self.creating.entry(target.namespace.clone()).or_default().load(now);
                Call::CreateNamespace { name: target.namespace.clone() }
            }
            Want::Services { namespace_id } => {
                self.services.entry(namespace_id.clone()).or_default().load(now);
                Call::ListServices { namespace_id }
            }
            Want::CreateService { namespace_id, dns, custom_health_check } => {
                busy()?;
                Call::CreateService { target: target_owned, namespace_id, dns, custom_health_check }
            }
            Want::Inspect { service_id } => {
                busy()?;
                Call::Inspect { target: target_owned, service_id }
            }
            Want::DeleteService { service_id } => {
                busy()?;
                if let (Some(state), Some(desired)) = (self.targets.get_mut(target), self.desired.get(target))
                    && !desired.retiring
                {
                    state.begin_remaking(now);
                }
                Call::DeleteService { target: target_owned, service_id }
            }
            Want::Read { service_id } => {
                let state = self.targets.get_mut(target)?;
                state.reading = Some(Reading { begun: now, written: BTreeSet::new() });
                state.read_again = state.read_again.saturating_add(u32::from(state.read_at.take().is_some()));
                let health = state.place().is_some_and(|place| place.traits.has_custom_health_check());
                Call::Read { target: target_owned, service_id, health, begun: now }
            }
            Want::SetHealth { service_id, id, healthy } => {
                let state = self.targets.get_mut(target)?;
                state.untold.pop_front();
                state.telling.insert(id.clone());
                Call::SetHealth { target: target_owned, service_id, id, healthy }
            }
            Want::SetTtl { service_id, ttl } => {
                let state = self.targets.get_mut(target)?;
                state.ttl.in_flight = true;
                let adopt = state.place().and_then(|place| place.adopt.clone());
                Call::SetTtl { target: target_owned, service_id, ttl, adopt }
            }
            Want::Write { service_id, id } => return self.issue_write(target, service_id, id, now),
        })
    }

    /// Statuses and figures, if they may have changed since this was asked last.
    pub(super) fn take_news(&mut self) -> Option<(Statuses, SyncFigures)> {
        self.look_over();
        std::mem::take(&mut self.news).then(|| (self.statuses.clone(), self.figures()))
    }

    /// Brings statuses and counts up to date.
    pub(super) fn look_over(&mut self) {
        for target in std::mem::take(&mut self.changed) {
            self.news = true;
            if let Some(state) = self.targets.get_mut(&target) {
                let counts = state.count_all(self.desired.get(&target).map(Arc::as_ref));
                self.counts -= std::mem::replace(&mut state.counted, counts);
                self.counts += counts;
            }
            match self.status(&target) {
                Some(status) if self.statuses.get(&target) == Some(&status) => None,
                Some(status) => self.statuses.insert(target, status),
                None => self.statuses.remove(&target),
            };
        }
    }

    /// `None`: it is not desired.
    pub(super) fn status(&self, target: &Target) -> Option<TargetStatus> {
        let desired = self.desired.get(target)?;
        let namespace = self.namespaces.rows.as_ref().and_then(|(_, rows)| rows.get(&target.namespace));
        let status = self.targets.get(target).map(|state| state.status(desired, namespace));
        let mut status = status.unwrap_or_default();
        if let Some(share) = &mut status.share {
            share.tasks = self.tasks_of(target, desired);
            share.settled &= share.tasks.as_ref().is_none_or(|tasks| tasks.settled || tasks.trouble.is_some());
        }
        status.claims = self.claims_status(target, desired);
        Some(status)
    }

    pub(super) fn figures(&self) -> SyncFigures {
        SyncFigures {
            targets: self.targets.len(),
            registered: self.counts.registered,
            queued: self.counts.queued,
            running: self.running,
            drift_period: self.drift_period(),
            drifted: self.drifted,
            shares: self.counts.shares,
        }
    }
}
