//! Decides which call comes next. No network and no clock: calls go out of [`Engine::next`], what came of them goes
//! into [`Engine::done`], with the time.
//!
//! Targets take turns: one call each, those with a change before those of the backlog, so that neither a long queue
//! nor a failing target holds up the others.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Desired, Figures, Reason, Settings, TargetDesired, TargetStatus,
    call::{Call, Event},
    state::{Class, Listing, Phase, Place, State, Want},
    writes::OPERATIONS,
};
use crate::{
    cloudmap::{CreateService, Error, ErrorKind, Namespace, NamespaceKind, Service},
    instances::{
        attributes::ServiceTraits,
        ownership::{self, ServiceOwner, refusal, service_owner},
        target::validate,
    },
    model::Target,
};

/// How long a listing that does not show something is believed: people create namespaces and services, too.
const LISTING_AGE: Duration = Duration::from_secs(30);
/// A target that is somebody else's is looked at again this often.
const REFUSED_AGAIN: Duration = Duration::from_mins(5);
/// A namespace of ours that nothing needs is kept this long: deleting it is not free of consequences, since AWS gives
/// a namespace that is made again another `HttpName`.
const NAMESPACE_LINGERS: Duration = Duration::from_mins(2);
/// Attempts to delete an empty service before it is left to people.
const DELETE_ATTEMPTS: u32 = 5;

pub(super) type Services = BTreeMap<Arc<str>, Listed>;

/// A service in a listing, cut down to what is needed of it.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    id: Arc<str>,
    traits: ServiceTraits,
    owner: ServiceOwner,
}

/// What the leader before had sent may take effect until then: a retiring target that is found empty earlier is read once
/// more, or its registration record would go and the late instance would stay for ever.
const HANDOVER: Duration = Duration::from_secs(20);

pub(super) struct Engine {
    pub(super) settings: Arc<Settings>,
    started: Instant,
    pub(super) desired: Arc<Desired>,
    pub(super) targets: BTreeMap<Target, State>,
    namespaces: Listing<BTreeMap<Arc<str>, Namespace>>,
    /// By namespace id.
    services: BTreeMap<Arc<str>, Listing<Services>>,
    creating: BTreeMap<Arc<str>, Listing<()>>,
    /// Namespaces that may have become superfluous, and when that is looked at.
    superfluous: BTreeMap<Arc<str>, Instant>,
    /// Namespaces that a former leader left were looked for.
    looked_for_remains: bool,
    /// Statuses or figures may differ from the last ones.
    changed: bool,
    queues: BTreeMap<(Class, bool), VecDeque<Target>>,
    in_flight: BTreeMap<Class, usize>,
    timers: BTreeMap<(Instant, u64), Target>,
    pub(super) polls: BTreeMap<(Instant, u64), (Target, Arc<str>)>,
    pub(super) polling: usize,
    pub(super) sequence: u64,
    pub(super) running: usize,
    pub(super) drifted: u64,
    drift_next: Instant,
    drift_last: Option<Target>,
}

impl Engine {
    pub(super) fn new(settings: Arc<Settings>, now: Instant) -> Self {
        Self {
            started: now,
            drift_next: now + settings.drift_period,
            settings,
            desired: Arc::default(),
            targets: BTreeMap::new(),
            namespaces: Listing::default(),
            services: BTreeMap::new(),
            creating: BTreeMap::new(),
            superfluous: BTreeMap::new(),
            looked_for_remains: false,
            changed: true,
            queues: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            timers: BTreeMap::new(),
            polls: BTreeMap::new(),
            polling: 0,
            sequence: 0,
            running: 0,
            drifted: 0,
            drift_last: None,
        }
    }

    /// The latest desired state counts; what an earlier one asked for and is not sent yet is forgotten.
    pub(super) fn desire(&mut self, desired: &Arc<Desired>, now: Instant) {
        self.changed = true;
        let before = std::mem::replace(&mut self.desired, desired.clone());
        self.targets.retain(|target, state| {
            let kept = desired.targets.contains_key(target) || !state.running.is_empty();
            if !kept {
                state.queued = None;
            }
            kept
        });
        for (target, wanted) in &desired.targets {
            let old = before.targets.get(target);
            let state = self.targets.entry(target.clone()).or_default();
            if old == Some(wanted) {
                continue;
            }
            state.pending = None;
            if matches!(state.phase, Phase::Gone) && !wanted.retiring {
                *state = State::default();
            }
            let flags = |d: &TargetDesired| (d.active, d.retiring, d.implied);
            if old.is_some_and(|old| flags(old) != flags(wanted)) {
                state.not_before = None;
                state.failures = 0;
                state.problem = None;
                // Found under other rules: looked at again.
                if old.is_some_and(|old| old.implied != wanted.implied) && !state.busy {
                    state.phase = Phase::Unresolved;
                }
            }
            self.wake_target(target, now);
        }
    }

    /// Puts a target into the queue for what it needs next, if anything.
    pub(super) fn wake_target(&mut self, target: &Target, now: Instant) {
        let Some(want) = self.want(target, now) else { return };
        let Some(state) = self.targets.get_mut(target) else { return };
        let withdrawn = self.desired.targets.get(target).is_some_and(|desired| desired.retiring);
        let place = (want.class(), state.settled || withdrawn);
        if state.queued != Some(place) {
            state.queued = Some(place);
            self.queues.entry(place).or_default().push_back(target.clone());
        }
    }

    pub(super) fn wake_at(&mut self, target: &Target, at: Instant) {
        self.sequence += 1;
        self.timers.insert((at, self.sequence), target.clone());
    }

    fn wake_unresolved(&mut self, now: Instant) {
        let unresolved = self.targets.iter().filter(|(_, state)| matches!(state.phase, Phase::Unresolved));
        let targets: Vec<_> = unresolved.map(|(target, _)| target.clone()).collect();
        for target in targets {
            self.wake_target(&target, now);
        }
    }

    /// When to call [`next`](Self::next) again, if nothing is done before.
    pub(super) fn wake(&self) -> Option<Instant> {
        let timer = self.timers.first_key_value().map(|((at, _), _)| *at);
        // What waits for a place is woken by the call that leaves it.
        let poll = self.polls.first_key_value().map(|((at, _), _)| *at).filter(|_| self.may_poll());
        let drift = Some(self.drift_next).filter(|_| self.in_flight(Class::Read) == 0);
        [timer, poll, drift].into_iter().flatten().min()
    }

    /// The next call to make now, if there is one.
    pub(super) fn next(&mut self, now: Instant) -> Option<Call> {
        while let Some(timer) = self.timers.first_entry().filter(|timer| timer.key().0 <= now) {
            let target = timer.remove();
            self.changed = true;
            if let Some(state) = self.targets.get_mut(&target) {
                state.pending = state.pending.take().filter(|_| state.retry.is_empty());
            }
            self.wake_target(&target, now);
        }
        if let Some(poll) = self.next_poll(now) {
            return Some(poll);
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
        self.drift_check(now).or_else(|| self.tidy_namespaces(now))
    }

    fn in_flight(&self, class: Class) -> usize {
        self.in_flight.get(&class).copied().unwrap_or_default()
    }

    fn next_of(&mut self, queue: (Class, bool), now: Instant) -> Option<Call> {
        loop {
            let target = self.queues.get_mut(&queue)?.pop_front()?;
            match self.targets.get_mut(&target) {
                Some(state) if state.queued == Some(queue) => state.queued = None,
                // Moved to another queue, or dropped.
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

    /// What a target needs next.
    fn want(&mut self, target: &Target, now: Instant) -> Option<Want> {
        let desired = self.desired.clone();
        let desired = desired.targets.get(target)?;
        let again = |place: &Place| place.refused_until.is_some_and(|until| until <= now);
        if self.targets.get(target)?.place().is_some_and(again) {
            self.targets.get_mut(target)?.phase = Phase::Unresolved;
            self.forget_services(target);
        }
        let state = self.targets.get(target)?;
        if !(desired.active || desired.retiring) || state.busy || state.not_before.is_some_and(|at| at > now) {
            return None;
        }
        match &state.phase {
            Phase::Gone => None,
            Phase::Unresolved => self.want_place(target, desired, now),
            Phase::Resolved(place) => {
                let service_id = place.service_id.clone();
                if !state.read {
                    return state.reading.is_none().then_some(Want::Read { service_id });
                }
                if let Some(id) = self.next_write(target, desired, now) {
                    return Some(Want::Write { service_id, id });
                }
                let state = self.targets.get(target)?;
                let empty = state.at_rest() && state.own.is_empty() && state.reading.is_none();
                if !(desired.retiring && empty) {
                    return None;
                }
                let handed_over = self.started + HANDOVER;
                if now < handed_over {
                    if let Some(state) = self.targets.get_mut(target) {
                        state.read = false;
                        state.not_before = Some(handed_over);
                    }
                    self.wake_at(target, handed_over);
                    return None;
                }
                if self.settings.delete_empty {
                    return Some(Want::DeleteService { service_id });
                }
                self.gone(target);
                None
            }
        }
    }

    /// Finds the service of a target, step by step.
    fn want_place(&mut self, target: &Target, desired: &TargetDesired, now: Instant) -> Option<Want> {
        if let Err(invalid) = validate(target) {
            self.refuse(target, Reason::Failed, invalid.to_string(), now);
            return None;
        }
        let Some((_, namespaces)) = &self.namespaces.rows else { return self.want_namespaces(target, now) };
        let Some(namespace) = namespaces.get(&target.namespace) else {
            if desired.retiring {
                self.gone(target);
                return None;
            }
            if self.namespaces.fresh(LISTING_AGE, now).is_none() {
                return self.want_namespaces(target, now);
            }
            if !self.settings.create_namespaces {
                let message = format!(
                    "there is no Cloud Map namespace {:?}, and creating namespaces is switched off; create it, or name another one",
                    target.namespace
                );
                self.refuse(target, Reason::NoNamespace, message, now);
                return None;
            }
            let creating = self.creating.entry(target.namespace.clone()).or_default();
            if creating.may_load(now) {
                return Some(Want::CreateNamespace);
            }
            let (error, at) = (creating.error.clone(), creating.not_before());
            self.wait_for_listing(target, error, at, now);
            return None;
        };
        let namespace_id = namespace.id.clone();
        let listing = self.services.entry(namespace_id.clone()).or_default();
        // Something that is not in the listing is created, and then it shows whether somebody else was faster. What
        // is in it and is ours stays so; the rest is looked at again.
        let Some((_, services)) = &listing.rows else {
            if listing.may_load(now) {
                return Some(Want::Services { namespace_id });
            }
            let (error, at) = (listing.error.clone(), listing.not_before());
            self.wait_for_listing(target, error, at, now);
            return None;
        };
        match services.get(&target.service) {
            None if desired.retiring => {
                self.gone(target);
                None
            }
            None => Some(Want::CreateService { namespace_id }),
            // What we have there is withdrawn, whoever owns the service.
            Some(listed) if desired.retiring || listed.owner == ServiceOwner::Ours => {
                let place = Place { service_id: listed.id.clone(), traits: listed.traits, refused_until: None };
                self.resolved(target, place);
                self.want(target, now)
            }
            Some(listed) => Some(Want::Inspect { service_id: listed.id.clone() }),
        }
    }

    fn want_namespaces(&mut self, target: &Target, now: Instant) -> Option<Want> {
        if self.namespaces.may_load(now) {
            return Some(Want::Namespaces);
        }
        let (error, at) = (self.namespaces.error.clone(), self.namespaces.not_before());
        self.wait_for_listing(target, error, at, now);
        None
    }

    /// A listing that a target needs failed, or is on its way.
    fn wait_for_listing(&mut self, target: &Target, error: Option<Error>, at: Option<Instant>, now: Instant) {
        // One that is on its way again wakes the target itself.
        let Some((error, at)) = error.zip(at.filter(|at| *at > now)) else { return };
        if let Some(state) = self.targets.get_mut(target) {
            if let Some(reason) = super::state::reason(&error) {
                state.problem = Some((reason, error.to_string()));
            }
            state.not_before = Some(at);
        }
        self.wake_at(target, at);
    }

    fn refuse(&mut self, target: &Target, reason: Reason, message: String, now: Instant) {
        let at = now + REFUSED_AGAIN;
        if let Some(state) = self.targets.get_mut(target) {
            state.problem = Some((reason, message));
            state.not_before = Some(at);
        }
        self.wake_at(target, at);
    }

    fn gone(&mut self, target: &Target) {
        if let Some(state) = self.targets.get_mut(target) {
            *state = State { phase: Phase::Gone, ..State::default() };
        }
    }

    fn resolved(&mut self, target: &Target, place: Place) {
        if let Some(state) = self.targets.get_mut(target) {
            if place.refused_until.is_none() {
                state.problem = None;
                state.failures = 0;
            }
            state.phase = Phase::Resolved(place);
            state.pending = None;
        }
    }

    fn issue(&mut self, target: &Target, want: Want, now: Instant) -> Option<Call> {
        let mut busy = || self.targets.get_mut(target).map(|state| state.busy = true);
        let target_owned = target.clone();
        Some(match want {
            Want::Namespaces => {
                self.namespaces.loading = true;
                Call::ListNamespaces
            }
            Want::CreateNamespace => {
                self.creating.entry(target.namespace.clone()).or_default().loading = true;
                Call::CreateNamespace { name: target.namespace.clone() }
            }
            Want::Services { namespace_id } => {
                self.services.entry(namespace_id.clone()).or_default().loading = true;
                Call::ListServices { namespace_id }
            }
            Want::CreateService { namespace_id } => {
                busy()?;
                Call::CreateService { target: target_owned, namespace_id }
            }
            Want::Inspect { service_id } => {
                busy()?;
                Call::Inspect { target: target_owned, service_id }
            }
            Want::DeleteService { service_id } => {
                busy()?;
                Call::DeleteService { target: target_owned, service_id }
            }
            Want::Read { service_id } => {
                self.targets.get_mut(target)?.reading = Some(std::collections::BTreeSet::new());
                Call::Read { target: target_owned, service_id }
            }
            Want::Write { service_id, id } => return self.issue_write(target, service_id, id, now),
        })
    }

    /// What came of a call.
    pub(super) fn done(&mut self, event: Event, now: Instant) {
        self.changed = true;
        let class = match &event {
            Event::Read { .. } => Class::Read,
            Event::Written { .. } => Class::Write,
            Event::Polled { .. } => {
                self.polling -= 1;
                return self.polled(event, now);
            }
            _ => Class::Resolve,
        };
        if let Some(count) = self.in_flight.get_mut(&class) {
            *count = count.saturating_sub(1);
        }
        match event {
            Event::Namespaces(result) => {
                self.namespaces.loaded(result.map(by_name), now);
                if let Some((_, rows)) = self.namespaces.rows.as_ref().filter(|_| !self.looked_for_remains) {
                    self.looked_for_remains = true;
                    let ours = self.settings.identity.description();
                    for namespace in rows.values().filter(|n| n.description.as_ref() == Some(&ours)) {
                        self.superfluous.entry(namespace.name.clone()).or_insert(now + NAMESPACE_LINGERS);
                    }
                }
                self.wake_unresolved(now);
            }
            Event::NamespaceCreated { name, result } => {
                if result.is_ok() {
                    // Only a listing tells its id and its HttpName.
                    self.namespaces.rows = None;
                    self.creating.remove(&name);
                } else {
                    self.creating.entry(name).or_default().loaded(result, now);
                }
                self.wake_unresolved(now);
            }
            Event::NamespaceDeleted { name, result } => {
                self.superfluous.remove(&name);
                match result {
                    Ok(()) => self.namespaces.rows = None,
                    Err(error) => tracing::warn!(namespace = %name, %error, "cannot delete an empty namespace"),
                }
            }
            Event::Services { namespace_id, result } => {
                if matches!(&result, Err(error) if error.kind == ErrorKind::NotFound) {
                    self.namespaces.rows = None;
                }
                let identity = &self.settings.identity;
                let rows =
                    result.map(|services| services.iter().map(|s| (s.name.clone(), listed(s, identity))).collect());
                self.services.entry(namespace_id).or_default().loaded(rows, now);
                self.wake_unresolved(now);
            }
            Event::ServiceCreated { target, result } => self.service_created(&target, result, now),
            Event::Inspected { target, result } => self.inspected(&target, result, now),
            Event::Read { target, result } => self.was_read(&target, result, now),
            Event::Written { target, id, result } => self.written(&target, &id, result, now),
            Event::ServiceDeleted { target, result } => self.service_deleted(&target, result, now),
            Event::Polled { .. } => {}
        }
    }

    fn service_created(&mut self, target: &Target, result: Result<CreateService, Error>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.busy = false;
        let namespace_id =
            self.namespaces.rows.as_ref().and_then(|(_, n)| n.get(&target.namespace)).map(|n| n.id.clone());
        match (result, namespace_id) {
            (Ok(CreateService::Created(service)), Some(namespace_id)) => {
                state.failures = 0;
                // Just made, and so empty of ours: nothing to read. (An earlier service of this name may have had
                // instances; AWS deletes no service that has any.)
                state.read = true;
                let known = listed(&service, &self.settings.identity);
                let place = Place { service_id: service.id.clone(), traits: known.traits, refused_until: None };
                self.remember(&namespace_id, &target.service, known);
                self.resolved(target, place);
            }
            (Ok(CreateService::Exists { id, .. }), Some(namespace_id)) => {
                // Somebody was faster, or an earlier request of ours: the look that follows tells which.
                let unclaimed = Listed { id, traits: ServiceTraits::default(), owner: ServiceOwner::Unclaimed };
                self.remember(&namespace_id, &target.service, unclaimed);
            }
            (Ok(_), None) => {}
            (Err(error), namespace_id) => {
                let at = state.fail(&error, now);
                match error.kind {
                    ErrorKind::NotFound => self.namespaces.rows = None,
                    ErrorKind::AlreadyExists { .. } => {
                        namespace_id.map(|id| self.services.remove(&id));
                    }
                    _ => {}
                }
                self.wake_at(target, at);
            }
        }
        self.wake_target(target, now);
    }

    fn remember(&mut self, namespace_id: &Arc<str>, service: &Arc<str>, known: Listed) {
        if let Some((_, services)) = self.services.get_mut(namespace_id).and_then(|listing| listing.rows.as_mut()) {
            services.insert(service.clone(), known);
        }
    }

    fn inspected(&mut self, target: &Target, result: Result<(Service, BTreeMap<String, String>), Error>, now: Instant) {
        let implied = self.desired.targets.get(target).is_some_and(|desired| desired.implied);
        let Some(state) = self.targets.get_mut(target) else { return };
        state.busy = false;
        match result {
            Ok((service, tags)) => {
                let refused = refusal(&service_owner(&service, &tags, &self.settings.identity), implied);
                let until = refused.is_some().then_some(now + REFUSED_AGAIN);
                let (service_id, traits) = (service.id.clone(), ServiceTraits::from(&service));
                self.resolved(target, Place { service_id, traits, refused_until: until });
                if let Some((message, at)) = refused.zip(until) {
                    if let Some(state) = self.targets.get_mut(target) {
                        state.problem = Some((Reason::ForeignOwner, message));
                    }
                    self.wake_at(target, at);
                }
            }
            Err(error) => {
                let at = state.fail(&error, now);
                if error.kind == ErrorKind::NotFound {
                    self.forget_services(target);
                }
                self.wake_at(target, at);
            }
        }
        self.wake_target(target, now);
    }

    /// The listing of a target's namespace is out of date.
    pub(super) fn forget_services(&mut self, target: &Target) {
        let Some((_, namespaces)) = &self.namespaces.rows else { return };
        if let Some(namespace) = namespaces.get(&target.namespace) {
            self.services.remove(&namespace.id);
        }
    }

    fn service_deleted(&mut self, target: &Target, result: Result<(), Error>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.busy = false;
        if let Err(error) = result {
            let at = state.fail(&error, now);
            if state.failures < DELETE_ATTEMPTS {
                return self.wake_at(target, at);
            }
            tracing::warn!(%target, %error, "cannot delete an empty service");
        }
        self.forget_services(target);
        self.superfluous.insert(target.namespace.clone(), now + NAMESPACE_LINGERS);
        self.gone(target);
    }

    /// Deletes namespaces of ours that no target needs any more. AWS keeps those with services in them.
    fn tidy_namespaces(&mut self, now: Instant) -> Option<Call> {
        if !self.settings.delete_empty || self.in_flight(Class::Resolve) > 0 {
            return None;
        }
        let name = self.superfluous.iter().find(|(_, at)| **at <= now)?.0.clone();
        if self.namespaces.fresh(LISTING_AGE, now).is_none() {
            let load = self.namespaces.may_load(now);
            self.namespaces.loading |= load;
            *self.in_flight.entry(Class::Resolve).or_default() += usize::from(load);
            return load.then_some(Call::ListNamespaces);
        }
        let needed = self.desired.targets.range(first_in(&name)..).next().is_some_and(|(t, _)| t.namespace == name);
        let listed = self.namespaces.rows.as_ref().and_then(|(_, rows)| rows.get(&name)).cloned();
        self.superfluous.remove(&name);
        let namespace = listed.filter(|listed| !needed && listed.kind == NamespaceKind::Http)?;
        *self.in_flight.entry(Class::Resolve).or_default() += 1;
        Some(Call::DeleteNamespace(namespace))
    }

    /// Reads the next target again, spread evenly over the period.
    fn drift_check(&mut self, now: Instant) -> Option<Call> {
        if now < self.drift_next || self.in_flight(Class::Read) > 0 {
            return None;
        }
        let (period, pages) = self.drift_period();
        let idle = |(_, state): &(&Target, &State)| {
            let mine = state.place().is_some_and(|place| place.refused_until.is_none());
            mine && state.read && state.reading.is_none() && state.running.is_empty()
        };
        let last = self.drift_last.take();
        let after = (last.as_ref().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let next = self.targets.range(after).find(idle).or_else(|| self.targets.iter().find(idle));
        let Some((target, state)) = next else {
            self.drift_next = now + self.settings.drift_period;
            return None;
        };
        let (target, cost) = (target.clone(), pages_of(state));
        self.drift_last = Some(target.clone());
        self.drift_next = now + period.mul_f64(cost as f64 / pages.max(1) as f64);
        let service_id = self.targets.get(&target)?.place()?.service_id.clone();
        *self.in_flight.entry(Class::Read).or_default() += 1;
        self.issue(&target, Want::Read { service_id }, now)
    }

    /// The period of the drift checks and the calls that one round takes.
    fn drift_period(&self) -> (Duration, usize) {
        let pages = self.targets.values().filter(|state| state.read).map(pages_of).sum::<usize>();
        let needed = Duration::from_secs_f64(pages as f64 / self.settings.drift_budget.max(0.01));
        (needed.max(self.settings.drift_period), pages)
    }

    /// Whether statuses or figures may have changed since this was asked last.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn statuses(&self) -> BTreeMap<Target, TargetStatus> {
        let status = |target: &Target| self.targets.get(target).map(State::status).unwrap_or_default();
        self.desired.targets.keys().map(|target| (target.clone(), status(target))).collect()
    }

    pub(super) fn figures(&self) -> Figures {
        let pending = |state: &State| state.pending.as_ref().map_or(0, VecDeque::len) + state.retry.len();
        Figures {
            targets: self.targets.len(),
            registered: self.targets.values().map(State::registered).sum(),
            queued: self.targets.values().map(pending).sum(),
            running: self.running,
            drift_period: self.drift_period().0,
            drifted: self.drifted,
        }
    }
}

/// Calls that reading a target takes, from what we have there: foreign instances are not known before.
fn pages_of(state: &State) -> usize {
    1 + state.own.len() / 100
}

fn first_in(namespace: &Arc<str>) -> Target {
    Target { namespace: namespace.clone(), service: "".into() }
}

fn listed(service: &Service, identity: &ownership::Identity) -> Listed {
    Listed {
        id: service.id.clone(),
        traits: ServiceTraits::from(service),
        owner: service_owner(service, &BTreeMap::new(), identity),
    }
}

/// Where several namespaces have one name, API-only ones come before private and public ones, then the smallest id.
fn by_name(namespaces: Vec<Namespace>) -> BTreeMap<Arc<str>, Namespace> {
    let mut chosen = BTreeMap::<Arc<str>, Namespace>::new();
    for namespace in namespaces {
        match chosen.get(&namespace.name) {
            Some(other) if (other.kind, &other.id) <= (namespace.kind, &namespace.id) => {}
            _ => {
                chosen.insert(namespace.name.clone(), namespace);
            }
        }
    }
    chosen
}
