//! Hides ECS tasks: marks them as unhealthy, and as healthy again. This is the one exception to the rule that nothing of
//! others is written.
//!
//! Nothing is marked before the [record](cluster::record::hidden) names it, and what it names is marked as healthy
//! before it is taken out. So whoever leads later shows what is hidden and should not be, even if nobody wants the target
//! any more. [`HiddenTasks`] decides for one service.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    TargetDesired, TargetTasks,
    call::{Call, Event},
    engine::Engine,
    failure::back_off,
    hidden_tasks::{HICCUPS, HiddenTasks, Next, SHOWN_WITHIN},
    known::Place,
};
use crate::ownership::is_ours;
use cloudmap::{
    Error, Instance, LATEST_EFFECT,
    attributes::{CLUSTER_UID, ECS_SERVICE, PARTIAL},
};
use cluster::record::Hidden;
use ledger::record::{ResourceVersion, StoreError};
use model::Target;

/// Number of ids that the record takes: a ConfigMap has 1 MiB, and an id 64 characters at most.
pub(super) const MOST: usize = 10_000;
/// This long after the beginning of a term, hidden tasks are shown if no target says that they should be hidden: a new
/// leader has to read the registry first. Later, such tasks are looked for in the same interval.
const ORPHANED: Duration = Duration::from_mins(2);
/// Maximum number of calls in flight that mark.
const MARKS: usize = 4;

/// What is hidden, in all services.
#[derive(Debug, Default)]
pub(super) struct Hiding {
    /// The version of what is stored; `None` while that is not known.
    version: Option<ResourceVersion>,
    /// What is being stored.
    storing: Option<Hidden>,
    /// Whether a call for the record is in flight, and whether one was ever answered.
    calling: bool,
    answered: bool,
    failures: u32,
    /// Why the last of them failed, if it did.
    unrecorded: Option<String>,
    not_before: Option<Instant>,
    /// Whether the record may have to be stored.
    changed: bool,
    /// By the id of the service.
    services: BTreeMap<Arc<str>, HiddenTasks>,
    /// Those in which something may be to be done.
    look: BTreeSet<Arc<str>>,
    marking: usize,
}

impl Hiding {
    /// Whether the record was read, or cannot be: no reading counts before that.
    pub(super) const fn answered(&self) -> bool {
        self.answered
    }

    /// Why the record cannot be read or stored, if that lasts.
    fn unrecorded(&self) -> Option<&str> {
        self.unrecorded.as_deref().filter(|_| self.failures > HICCUPS)
    }

    /// When to look again.
    pub(super) fn wake(&self) -> Option<Instant> {
        // What waits for a free place is woken by the call that frees one.
        let services = self.services.values().filter(|_| self.marking < MARKS);
        services.filter_map(|tasks| tasks.wakes_at).chain(self.not_before).min()
    }

    pub(super) fn of_service(&self, service: Option<&Arc<str>>) -> Option<&HiddenTasks> {
        self.services.get(service?)
    }

    /// The tasks of a service that a reading that began then may show as ill because of us.
    pub(super) fn ill_by_us(&self, service: Option<&Arc<str>>, begun: Instant) -> BTreeSet<Arc<str>> {
        self.of_service(service).map(|tasks| tasks.ill_by_us(begun).cloned().collect()).unwrap_or_default()
    }

    /// The hidden tasks of a target's service. There is one only where something is, or is to be, hidden.
    pub(super) fn of(
        &mut self,
        service: Option<&Arc<str>>,
        target: &Target,
        desired: &TargetDesired,
    ) -> Option<&mut HiddenTasks> {
        let service = service?;
        if !self.services.contains_key(service) {
            if !desired.hide_tasks {
                return None;
            }
            self.services.insert(Arc::clone(service), HiddenTasks::default());
        }
        self.look.insert(Arc::clone(service));
        let tasks = self.services.get_mut(service)?;
        if tasks.target.as_ref() != Some(target) {
            tasks.target = Some(target.clone());
        }
        Some(tasks)
    }

    /// What the record should say, and whether it is full.
    fn wanted(&self) -> (Hidden, bool) {
        let mut room = MOST.saturating_sub(self.services.values().map(HiddenTasks::kept).sum());
        let mut full = false;
        let content = self.services.iter().filter_map(|(service, tasks)| {
            let ids = tasks.content(&mut room, &mut full);
            (!ids.is_empty()).then(|| (Arc::clone(service), ids))
        });
        (content.collect(), full)
    }

    fn stored(&self) -> Hidden {
        let recorded = self.services.iter().map(|(service, tasks)| (Arc::clone(service), tasks.in_record()));
        recorded.filter(|(_, ids)| !ids.is_empty()).collect()
    }

    /// The record says what it should.
    fn is_stored(&mut self) {
        (self.failures, self.unrecorded) = (0, None);
    }

    /// Looks at what is due.
    fn look_again(&mut self, now: Instant) {
        let due = self.services.iter().filter(|(_, tasks)| tasks.wakes_at.is_some_and(|at| at <= now));
        self.look.extend(due.map(|(service, _)| Arc::clone(service)));
    }

    /// The next call for the record.
    fn next_record(&mut self, now: Instant) -> Option<Call> {
        if self.calling || self.not_before.is_some_and(|at| at > now) {
            return None;
        }
        self.not_before = None;
        let Some(expected) = self.version.clone() else {
            self.calling = true;
            return Some(Call::Recall);
        };
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let (hidden, full) = self.wanted();
        self.services.values_mut().for_each(|tasks| tasks.full = full);
        if hidden == self.stored() {
            self.is_stored();
            return None;
        }
        for (service, ids) in &hidden {
            if let Some(tasks) = self.services.get_mut(service) {
                tasks.is_recorded_soon(ids);
            }
        }
        self.calling = true;
        self.storing = Some(hidden.clone());
        Some(Call::Remember { hidden, expected })
    }

    /// The next mark.
    fn next_mark(&mut self, now: Instant) -> Option<Call> {
        while self.marking < MARKS {
            let service = self.look.first()?.clone();
            let Some(tasks) = self.services.get_mut(&service) else {
                self.look.remove(&service);
                continue;
            };
            self.changed |= tasks.tidy();
            // What is recorded now, and will be when a call in flight succeeds.
            let is_safe = |id: &Arc<str>| {
                let stays = |storing: &Hidden| storing.get(&service).is_some_and(|ids| ids.contains(id));
                self.version.is_some() && self.storing.as_ref().is_none_or(stays)
            };
            match tasks.next(is_safe, now) {
                Next::Mark(id, healthy) => {
                    tasks.marks(&id, healthy, now);
                    self.marking += 1;
                    let target = tasks.target.clone();
                    return Some(Call::Mark { target, service_id: service, id, healthy });
                }
                Next::Wait(at) => tasks.wakes_at = Some(at.min(now + ORPHANED)),
                Next::Nothing => tasks.wakes_at = Some(now + ORPHANED),
            }
            self.look.remove(&service);
            // What is being stored has to be taken out again.
            let stores = self.storing.as_ref().is_some_and(|storing| storing.contains_key(&service));
            if tasks.is_empty() && !stores {
                self.services.remove(&service);
            }
        }
        None
    }
}

impl Engine {
    /// The next call about hidden tasks.
    pub(super) fn next_hiding(&mut self, now: Instant) -> Option<Call> {
        self.hiding.look_again(now);
        if now >= self.started + ORPHANED && !self.hiding.look.is_empty() {
            self.show_orphans();
        }
        if let Some(mark) = self.hiding.next_mark(now) {
            return Some(mark);
        }
        self.hiding.next_record(now)
    }

    /// What no target has any more is to be shown.
    fn show_orphans(&mut self) {
        let orphans: Vec<_> = self.hiding.look.iter().filter(|service| self.is_orphan(service)).cloned().collect();
        for service in orphans {
            let Some(tasks) = self.hiding.services.get_mut(&service) else { continue };
            (tasks.target, tasks.hides) = (None, false);
            tasks.want(Vec::new());
        }
    }

    /// Whether no target has the service of hidden tasks. What an earlier leader hid has no target before that one was read,
    /// which may take long if AWS refuses a call.
    fn is_orphan(&self, service: &Arc<str>) -> bool {
        let Some(tasks) = self.hiding.of_service(Some(service)) else { return false };
        let Some(target) = &tasks.target else {
            return !self
                .desired
                .iter()
                .any(|(target, desired)| desired.hides() && self.directory.may_have(target, service));
        };
        let state = self.targets.get(target).filter(|_| self.desired.contains_key(target));
        state.is_none_or(|state| state.service_id() != Some(service))
    }

    /// Whether the withdrawal of a target's own instances waits, because tasks are shown first.
    pub(super) fn shows_first(&self, target: &Target, now: Instant) -> bool {
        let service = self.targets.get(target).and_then(|state| state.service_id());
        self.hiding.of_service(service).is_some_and(|tasks| tasks.shows_first(now))
    }

    /// What became of hidden tasks.
    pub(super) fn tasks_of(&self, target: &Target, desired: &TargetDesired) -> Option<TargetTasks> {
        let state = self.targets.get(target)?;
        let checked = state.place().is_none_or(|place| place.traits.has_custom_health_check());
        let unchecked = desired.hide_tasks && !checked;
        match self.hiding.of_service(state.service_id()) {
            Some(tasks) => Some(tasks.status(unchecked, self.hiding.unrecorded())),
            None => unchecked.then(|| HiddenTasks::default().status(true, None)),
        }
    }

    /// Takes the tasks of a complete listing.
    pub(super) fn tasks_were_read(
        &mut self,
        target: &Target,
        desired: &TargetDesired,
        listing: &[Instance],
        unhealthy: Option<&BTreeSet<Arc<str>>>,
        begun: Instant,
    ) {
        let Self { hiding, targets, settings, .. } = self;
        let Some(observed) = targets.get(target).and_then(|state| state.known()) else { return };
        let Some(tasks) = hiding.of(Some(&observed.service_id), target, desired) else { return };
        let listed: BTreeSet<&Arc<str>> = listing.iter().map(|there| &there.id).collect();
        tasks.only(|id| listed.contains(id));
        let Some(unhealthy) = unhealthy else { return tasks.read(begun, None) };
        let is_task = |there: &&Instance| {
            let has = |key: &str| there.attributes.contains_key(key);
            let ours = is_ours(there, &settings.identity)
                || observed.own.contains_key(&there.id)
                || observed.adopted.contains_key(&there.id);
            has(ECS_SERVICE) && !ours && !has(CLUSTER_UID) && !has(PARTIAL)
        };
        let listed = listing.iter().filter(is_task);
        let listed = listed.map(|there| (Arc::clone(&there.id), !unhealthy.contains(&there.id)));
        tasks.read(begun, Some(listed.collect()));
    }

    /// Takes the result of a call about hidden tasks.
    pub(super) fn hid(&mut self, event: Event, now: Instant) {
        match event {
            Event::Recalled(result) => self.recalled(result, now),
            Event::Remembered(result) => self.remembered(result, now),
            Event::Marked { target, service_id, id, healthy, result } => {
                self.marked((&service_id, target), &id, healthy, result, now);
            }
            _ => {}
        }
    }

    /// The record was read.
    fn recalled(&mut self, result: Result<(Hidden, ResourceVersion), StoreError>, now: Instant) {
        let hiding = &mut self.hiding;
        (hiding.calling, hiding.answered) = (false, true);
        match result {
            Ok((stored, version)) => {
                (hiding.version, hiding.changed) = (Some(version), true);
                // Requests of an earlier leader may take effect as late.
                let late = self.started + LATEST_EFFECT;
                for service in stored.keys() {
                    hiding.services.entry(Arc::clone(service)).or_default();
                }
                for (service, tasks) in &mut hiding.services {
                    tasks.loaded(stored.get(service).cloned().unwrap_or_default(), late);
                    hiding.look.insert(Arc::clone(service));
                }
                // What was read before the record was known counted hidden tasks as ill.
                let known = self.targets.values_mut().filter_map(|state| state.known_mut());
                for there in known.filter(|there| stored.contains_key(&there.service_id)) {
                    there.readings.hurry(now);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the record of hidden tasks; no task is hidden until the record is read");
                self.record_failed(&error, now);
            }
        }
        let resolved: Vec<_> = self.targets.keys().cloned().collect();
        for target in resolved {
            self.wake_target(&target, now);
        }
    }

    /// The record was stored.
    fn remembered(&mut self, result: Result<ResourceVersion, StoreError>, now: Instant) {
        let hiding = &mut self.hiding;
        hiding.calling = false;
        let storing = hiding.storing.take().unwrap_or_default();
        hiding.changed = true;
        match result {
            Ok(version) => {
                hiding.version = Some(version);
                hiding.is_stored();
                for (service, tasks) in &mut hiding.services {
                    tasks.stored(storing.get(service).cloned().unwrap_or_default());
                    hiding.look.insert(Arc::clone(service));
                }
            }
            Err(error) => {
                // It may have been stored all the same. Nothing is hidden before it was read again.
                hiding.version = None;
                tracing::warn!(%error, "cannot store the record of hidden tasks; no other task is hidden until the record is stored");
                self.record_failed(&error, now);
            }
        }
        self.statuses_changed(now);
    }

    fn record_failed(&mut self, error: &StoreError, now: Instant) {
        let hiding = &mut self.hiding;
        hiding.failures += 1;
        hiding.not_before = Some(now + back_off(hiding.failures));
        hiding.unrecorded = Some(error.to_string());
        self.statuses_changed(now);
    }

    /// All statuses may have changed.
    fn statuses_changed(&mut self, now: Instant) {
        let targets: Vec<_> = self.hiding.services.values().filter_map(|tasks| tasks.target.clone()).collect();
        for target in targets {
            self.status_changed(&target, now);
        }
    }

    fn status_changed(&mut self, target: &Target, now: Instant) {
        if let Some(state) = self.targets.get_mut(target) {
            state.plan_again();
            self.wake_target(target, now);
        }
    }

    /// A mark was made, or refused.
    fn marked(
        &mut self,
        (service, target): (&Arc<str>, Option<Target>),
        id: &Arc<str>,
        healthy: bool,
        result: Result<(), Error>,
        now: Instant,
    ) {
        let hiding = &mut self.hiding;
        hiding.marking = hiding.marking.saturating_sub(1);
        hiding.changed = true;
        hiding.look.insert(Arc::clone(service));
        let made = result.is_ok();
        if let Err(error) = &result {
            tracing::warn!(service = &**service, task = &**id, healthy, %error, "cannot mark an ECS task");
        }
        if let Some(tasks) = hiding.services.get_mut(service) {
            tasks.marked(id, healthy, result, now);
        }
        let Some(target) = target else { return };
        if made && let Some(there) = self.known_mut(&target) {
            let at = there.readings.request_at(now + SHOWN_WITHIN);
            self.wake_at(&target, at);
            self.wake_at(&target, now + SHOWN_WITHIN);
        }
        self.status_changed(&target, now);
    }

    /// Nothing of a target's tasks is to be hidden, unless its share says something else.
    pub(super) fn show_unwanted(&mut self, target: &Target, desired: &TargetDesired, now: Instant) {
        let Some(state) = self.targets.get(target) else { return };
        let fits = |place: &Place| !place.refused && place.traits.has_custom_health_check();
        if desired.hides() && state.part.is_some() && state.place().is_none_or(fits) {
            return;
        }
        let Some(tasks) = self.hiding.of(state.service_id(), target, &TargetDesired::default()) else {
            return;
        };
        tasks.want(Vec::new());
        if let Some(at) = tasks.shows_until(now) {
            self.wake_at(target, at);
        }
    }
}
