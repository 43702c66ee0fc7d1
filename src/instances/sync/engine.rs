//! Decides which call comes next, without network and clock. [`Engine::next`] returns calls, and [`Engine::done`] takes
//! their results, with the time.
//!
//! Targets take turns, with one call each. Targets with a change come before the backlog, so neither a long queue nor a
//! failing target delays the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    Desired, Statuses, SyncFigures, SyncSettings, TargetDesired, TargetStatus,
    activity::Running,
    call::Call,
    directory::Directory,
    failure::Attempts,
    hiding::Hiding,
    known::Known,
    polls::Polls,
    readings::Seen,
    state::{Counts, Phase, State, Want},
    ttl::RECORDS,
    turns::{Class, Round, Timers, Turns},
    writes::OPERATIONS,
};
use cloudmap::LATEST_EFFECT;
use model::Target;

/// The statuses of the targets.
struct Published {
    statuses: Statuses,
    /// Targets whose status or counts may have changed.
    changed: BTreeSet<Target>,
    /// Whether statuses or figures may differ from the last ones that were taken.
    news: bool,
}

impl Published {
    /// Takes the targets to look at.
    fn take_changed(&mut self) -> BTreeSet<Target> {
        self.news |= !self.changed.is_empty();
        std::mem::take(&mut self.changed)
    }

    /// Sets the status of a target; `None` if it is not desired.
    fn set(&mut self, target: Target, status: Option<TargetStatus>) {
        match status {
            Some(status) if self.statuses.get(&target) == Some(&status) => None,
            Some(status) => self.statuses.insert(target, status),
            None => self.statuses.remove(&target),
        };
    }
}

pub(super) struct Engine {
    pub(super) settings: Arc<SyncSettings>,
    pub(super) started: Instant,
    pub(super) desired: Desired,
    /// Boxed, because the nodes of a map have room for more entries than they hold.
    pub(super) targets: BTreeMap<Target, Box<State>>,
    pub(super) directory: Directory,
    /// Sums over all targets.
    pub(super) counts: Counts,
    published: Published,
    pub(super) turns: Turns,
    pub(super) timers: Timers<Target>,
    pub(super) polls: Polls,
    /// Operations, of all targets.
    pub(super) running: Running,
    pub(super) drifted: u64,
    pub(super) drift: Round<Target>,
    /// The Cloud Map namespaces whose records are listed.
    pub(super) records: Round<Arc<str>>,
    pub(super) hiding: Hiding,
}

impl Engine {
    pub(super) fn new(settings: Arc<SyncSettings>, now: Instant) -> Self {
        Self {
            started: now,
            settings,
            desired: Desired::default(),
            targets: BTreeMap::new(),
            directory: Directory::default(),
            counts: Counts::default(),
            published: Published { statuses: Statuses::default(), changed: BTreeSet::new(), news: true },
            turns: Turns::default(),
            timers: Timers::default(),
            polls: Polls::default(),
            running: Running::default(),
            drifted: 0,
            drift: Round::new(now),
            records: Round::new(now + RECORDS),
            hiding: Hiding::default(),
        }
    }

    /// Sets the latest desired state. What an earlier one wanted and was not sent yet is forgotten.
    pub(super) fn desire(&mut self, desired: &Desired, now: Instant) {
        let before = std::mem::replace(&mut self.desired, desired.clone());
        // All of them first: a target may get its service from one that gives it up in the same step.
        for (target, _, wanted) in before.difference(desired) {
            self.directory.namesakes.note(target, wanted.is_some_and(|wanted| wanted.active));
        }
        for (target, old, wanted) in before.difference(desired) {
            let Some(wanted) = wanted else {
                self.drop_unwanted(target);
                continue;
            };
            let state = self.targets.entry(target.clone()).or_default();
            state.plan_again();
            if matches!(state.phase, Phase::Gone { .. }) && !wanted.retiring {
                **state = State { counted: state.counted, ..State::default() };
            }
            let share_is_new = state.share_desired(old.map(Arc::as_ref), wanted, now);
            if let Some(there) = state.known_mut() {
                if share_is_new {
                    there.readings.hurry(now);
                }
                if wanted.retiring && !old.is_some_and(|old| old.retiring) {
                    // What goes now is more than what went before: a reading has to tell.
                    there.readings.is_outdated();
                }
                if old.is_some_and(|old| old.consent.adopt != wanted.consent.adopt) {
                    let prefix = self.settings.identity.id_prefix();
                    there.disown(|id| id.starts_with(&prefix) || awsmcs::is_id(id));
                }
            }
            self.claim_changed(target, old.map(Arc::as_ref), wanted, now);
            let Some(state) = self.targets.get_mut(target) else { continue };
            let flags = |d: &TargetDesired| {
                let only_found = d.only_found.clone().filter(|_| !d.unable);
                (d.active, only_found, d.retiring, d.keep, d.consent.clone(), d.creation.clone())
            };
            if old.is_some_and(|old| flags(old) != flags(wanted)) {
                state.attempts = Attempts::default();
                // Nothing was registered with this consent yet.
                state.was_complete = false;
                if let Some(there) = state.known_mut() {
                    there.readings.retry();
                    there.ttl.not_before = None;
                    there.denied.clear();
                    if old.is_some_and(|old| old.only_found != wanted.only_found && !wanted.unable) {
                        there.readings.read_anew();
                    }
                }
                // It was found under other rules, so it must be found again. So must what was refused to somebody else.
                let other = old.is_some_and(|old| old.consent != wanted.consent);
                let refused = state.place().is_some_and(|place| place.refused);
                if (other || refused) && !wanted.consent.unclear && !state.busy {
                    state.find_again();
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
        self.published.changed.insert(target.clone());
        if self.desired.contains_key(target) || self.targets.get(target).is_some_and(|state| state.is_writing()) {
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
        self.directory.forget(namespace);
    }

    /// Puts a target into the queue for its next step, if it has one.
    pub(super) fn wake_target(&mut self, target: &Target, now: Instant) {
        self.published.changed.insert(target.clone());
        let Some(want) = self.want(target, now) else { return };
        let Some(state) = self.targets.get_mut(target) else { return };
        let withdrawn = self.desired.get(target).is_some_and(|desired| desired.retiring);
        // Writes in a service wait until its owner is known. Nothing else does.
        let inspect = matches!(want, Want::Inspect { .. });
        let is_planned = state.known().is_some_and(|known| known.activities.is_planned());
        let changed = inspect && is_planned && !state.at_rest();
        let unhurried = inspect && !changed && state.place().is_some_and(|place| place.unproven);
        let turn = (want.class(), !unhurried && (state.was_complete || withdrawn || changed));
        if state.queued != Some(turn) {
            state.queued = Some(turn);
            self.turns.push(turn, target.clone());
        }
    }

    pub(super) fn wake_at(&mut self, target: &Target, at: Instant) {
        self.timers.add(at, target.clone());
    }

    /// The service of a target, and what is known of its instances.
    pub(super) fn known_mut(&mut self, target: &Target) -> Option<&mut Known> {
        self.targets.get_mut(target)?.known_mut()
    }

    /// Requests a reading, unless one is requested already: that one has its timer, and if it is overdue, what it waits
    /// for wakes the target. A second timer would be due at once, again and again.
    pub(super) fn read_soon(&mut self, target: &Target, now: Instant) {
        if let Some(at) = self.known_mut(target).and_then(|there| there.readings.request(now)) {
            self.wake_at(target, at);
        }
    }

    pub(super) fn wake_unresolved(&mut self, now: Instant) {
        let seeks = |state: &State| state.is_unresolved() || state.is_look_due(now);
        let unresolved = self.targets.iter().filter(|(_, state)| seeks(state));
        let targets: Vec<_> = unresolved.map(|(target, _)| target.clone()).collect();
        for target in targets {
            self.wake_target(&target, now);
        }
    }

    /// When to call [`next`](Self::next) again, if nothing happens before.
    pub(super) fn wake(&self) -> Option<Instant> {
        // What waits for a free place is woken by the call that frees one.
        let poll = self.polls.due.wake().filter(|_| self.may_poll());
        let drift = Some(self.drift.at).filter(|_| self.may_check());
        let records = Some(self.records.at).filter(|_| self.may_check());
        [self.timers.wake(), poll, drift, records, self.hiding.wake()].into_iter().flatten().min()
    }

    /// The next call to make now, if there is one.
    pub(super) fn next(&mut self, now: Instant) -> Option<Call> {
        while let Some(target) = self.timers.pop(now) {
            if let Some(state) = self.targets.get_mut(&target) {
                let hides = self.hiding.of_service(state.service_id()).is_some();
                let due = hides || state.part.as_ref().is_some_and(|part| part.is_due(now));
                let there = state.known_mut();
                if let Some(there) =
                    there.filter(|there| due || !there.denied.is_empty() || there.activities.has_any_failed())
                {
                    there.activities.plan_again();
                }
            }
            self.wake_target(&target, now);
        }
        if let Some(poll) = self.next_poll(now) {
            return Some(poll);
        }
        if let Some(call) = self.next_hiding(now) {
            return Some(call);
        }
        let full = self.running.count() >= OPERATIONS;
        for queue in self.turns.free().filter(|(class, _)| !(full && *class == Class::Write)) {
            if let Some(call) = self.next_of(queue, now) {
                self.turns.began(queue.0);
                return Some(call);
            }
        }
        self.drift_check(now).or_else(|| self.records_check(now))
    }

    fn next_of(&mut self, queue: (Class, bool), now: Instant) -> Option<Call> {
        loop {
            let target = self.turns.pop(queue)?;
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
        if state.busy || state.attempts.not_before.is_some_and(|at| at > now) {
            return None;
        }
        if !(desired.active || desired.retiring) {
            return desired.successor.as_ref().and_then(|_| self.want_succession(target, now));
        }
        let is_read = state.known().is_some_and(|there| there.readings.is_in_flight());
        let rests = !state.is_writing() && !is_read && !matches!(state.phase, Phase::Gone { .. });
        if desired.retiring && rests && self.is_left(target, now) {
            return None;
        }
        if self.targets.get(target)?.is_look_due(now)
            && let Some(look) = self.find_again(target, desired, now)
        {
            return Some(look);
        }
        match &self.targets.get(target)?.phase {
            Phase::Gone { look_at, .. } => self.want_look(target, desired, *look_at, now),
            Phase::Resolved(there) if there.place.is_some() => self.want_inside(target, desired, now),
            Phase::Unresolved | Phase::Resolved(_) => self.want_place(target, desired, now),
        }
    }

    /// The next step of a target whose service is known.
    fn want_inside(&mut self, target: &Target, desired: &TargetDesired, now: Instant) -> Option<Want> {
        let state = self.targets.get(target)?;
        let there = state.known()?;
        let (place, service_id) = (there.place.as_ref()?, there.service_id.clone());
        let unproven = place.unproven;
        if there.readings.seen() == Seen::Never {
            // A hidden task would count as one that is ill.
            let may_read = !there.readings.is_in_flight() && self.hiding.answered();
            return may_read.then_some(Want::Read { service_id });
        }
        if there.readings.may_begin(now) && there.readings.is_due(now) {
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
            if state.at_rest() && state.has_own() {
                state.complete();
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
        let readings = &state.known()?.readings;
        let empty = state.at_rest() && !state.has_own() && !readings.is_in_flight();
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
        if readings.seen() != Seen::Since {
            return readings.may_begin(now).then_some(Want::Read { service_id });
        }
        Some(Want::DeleteService { service_id })
    }

    /// Delays everything for a target until then.
    pub(super) fn wait_until(&mut self, target: &Target, at: Instant) {
        if let Some(state) = self.targets.get_mut(target) {
            state.attempts.not_before = Some(at);
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
                self.directory.namespaces.load(now);
                Call::ListNamespaces
            }
            Want::CreateNamespace => {
                self.directory.creating(&target.namespace).load(now);
                Call::CreateNamespace { name: target.namespace.clone() }
            }
            Want::Services { namespace_id } => {
                self.directory.services(&namespace_id).load(now);
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
                let there = self.known_mut(target)?;
                there.readings.begin(now);
                let health = there.place.as_ref().is_some_and(|place| place.traits.has_custom_health_check());
                Call::Read { target: target_owned, service_id, health, begun: now }
            }
            Want::SetHealth { service_id, id, healthy } => {
                self.known_mut(target)?.activities.begin_health();
                Call::SetHealth { target: target_owned, service_id, id, healthy }
            }
            Want::SetTtl { service_id, ttl } => {
                let there = self.known_mut(target)?;
                there.ttl.in_flight = true;
                let adopt = there.place.as_ref().and_then(|place| place.adopt.clone());
                Call::SetTtl { target: target_owned, service_id, ttl, adopt }
            }
            Want::Write { service_id, id } => return self.issue_write(target, service_id, id, now),
        })
    }

    /// Statuses and figures, if they may have changed since this was asked last.
    pub(super) fn take_news(&mut self) -> Option<(Statuses, SyncFigures)> {
        self.look_over();
        std::mem::take(&mut self.published.news).then(|| (self.published.statuses.clone(), self.figures()))
    }

    /// Brings statuses and counts up to date.
    pub(super) fn look_over(&mut self) {
        for target in self.published.take_changed() {
            if let Some(state) = self.targets.get_mut(&target) {
                let counts = state.count_all(self.desired.get(&target).map(Arc::as_ref));
                self.counts -= std::mem::replace(&mut state.counted, counts);
                self.counts += counts;
            }
            let status = self.status(&target);
            self.published.set(target, status);
        }
    }

    /// `None`: it is not desired.
    pub(super) fn status(&self, target: &Target) -> Option<TargetStatus> {
        let desired = self.desired.get(target)?;
        let namespace = self.directory.namespace(&target.namespace);
        let status = self.targets.get(target).map(|state| state.status(desired, namespace));
        let mut status = status.unwrap_or_default();
        if let Some(share) = &mut status.share {
            share.tasks = self.tasks_of(target, desired);
            share.complete &= share.tasks.as_ref().is_none_or(|tasks| tasks.complete || tasks.trouble.is_some());
        }
        status.claims = self.claims_status(target, desired);
        Some(status)
    }

    pub(super) fn figures(&self) -> SyncFigures {
        SyncFigures {
            targets: self.targets.len(),
            registered: self.counts.registered,
            queued: self.counts.queued,
            running: self.running.count(),
            drift_period: self.drift_period(),
            drifted: self.drifted,
            shares: self.counts.shares,
        }
    }
}
