//! Writes of instances: one operation per instance at a time. Its result is awaited ([`polls`](super::polls)), and it
//! is tried again if it fails.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Reason, TargetDesired,
    call::{Call, Inventory},
    engine::Engine,
    failure::{RETRY_LAST, back_off, reason},
    share::is_alive,
    state::{Phase, Reading, Retry, Running, Seen, State, Unread},
};
use crate::{
    InstanceSpec,
    attributes::{Digest, ServiceTraits},
    ownership::is_of,
    plan::{self, Own, Plan, find, ill_told, outstays, plan, replaced, unneeded, writable},
};
use cloudmap::{Error, ErrorKind, Instance, LATEST_EFFECT, OperationId};
use model::Target;

/// Maximum number of operations in flight. More would not make AWS faster, and each costs polls.
pub(super) const OPERATIONS: usize = 1000;
/// A successor is looked for less and less often, up to this number of times: every 16 s in the end.
const SUCCESSION: u32 = 4;
/// Pause after a quota was exhausted.
const FULL: Duration = Duration::from_mins(1);

/// The desired instances of a target: none if it retires, or if the service is foreign, and a part of them for a share
/// of the traffic.
pub(super) fn wanted(state: &State, desired: &TargetDesired) -> Arc<[InstanceSpec]> {
    if desired.retiring || is_refused(state, desired) || desired.unable && !state.found_own {
        return Arc::default();
    }
    let chosen = state.part.as_ref().and_then(|part| part.chosen());
    Arc::clone(chosen.unwrap_or(&desired.instances))
}

/// Whether the service is foreign, and nothing of ours stays there. If the annotation for a takeover is invalid, existing
/// own instances show that it was taken over. So do those of the same Service where nobody else is, though all of its pods
/// were replaced at once.
fn is_refused(state: &State, desired: &TargetDesired) -> bool {
    let refused = state.place().is_some_and(|place| place.refused);
    let stays = || {
        let follows = desired.unable && state.found_own && state.strangers == 0;
        follows || desired.consent.unclear && !state.own.is_empty()
    };
    refused && !stays() && !outstays(&desired.instances, &state.own, state.strangers)
}

/// What remains to be written of some of a target's instances.
fn planned(
    desired: &TargetDesired,
    instances: &[InstanceSpec],
    own: &Own,
    taken: &BTreeSet<Arc<str>>,
    traits: ServiceTraits,
) -> Plan {
    let mut plan = plan(instances, own, taken, traits);
    if desired.as_is {
        plan = plan.as_is(own);
    }
    if desired.keep {
        plan.deregister.clear();
        plan.renamed.clear();
    }
    plan
}

impl Engine {
    /// The next instance to write.
    pub(super) fn next_write(&mut self, target: &Target, desired: &TargetDesired, now: Instant) -> Option<Arc<str>> {
        self.plan_writes(target, desired, now)?;
        let state = self.targets.get_mut(target)?;
        let full = state.full_until.is_some_and(|until| until > now);
        let instances = wanted(state, desired);
        let traits = state.place()?.traits;
        let denied = |state: &State, id: &Arc<str>| {
            let registers = || writable(&instances, id, &state.own, &state.taken, traits).is_some();
            !state.denied.is_empty() && state.denied.get(&registers()).is_some_and(|until| *until > now)
        };
        let blocked = |state: &State, id: &Arc<str>| {
            state.running.contains_key(id)
                || state.telling.contains(id)
                || state.unsure.contains(id)
                || state.retry.get(id).is_some_and(|retry| retry.at > now)
                || (full && !matches!(state.own.get(id), Some(Some(_))) && find(&instances, id).is_some())
                || denied(state, id)
        };
        // A blocked instance is planned again when its operation ends or its time comes.
        while let Some(id) = state.pending.as_ref()?.front().cloned() {
            if !blocked(state, &id) {
                return Some(id);
            }
            state.pending.as_mut()?.pop_front();
        }
        state.pending = Some(VecDeque::new());
        let refused = is_refused(state, desired);
        let remade = state.is_to_be_remade(desired);
        if state.at_rest() && !full && !refused && !remade {
            state.settle();
        }
        // Only when ours are registered, so that the name loses no address while it changes hands.
        let last = instances.is_empty() && state.part.as_ref().is_some_and(|part| part.is_alone());
        let going: Vec<_> = if state.adopted.is_empty() || !desired.active || desired.keep || refused || last {
            Vec::new()
        } else if full {
            replaced(&state.adopted, &desired.instances, &state.own)
        } else if state.at_rest() && state.unfit.is_none() {
            state.adopted.keys().cloned().collect()
        } else if state.at_rest() {
            unneeded(&state.adopted, &desired.instances, &state.own)
        } else {
            Vec::new()
        };
        if going.is_empty() {
            return None;
        }
        for id in going {
            state.adopted.remove(&id);
            state.own.entry(id).or_insert(None);
        }
        state.pending = None;
        self.next_write(target, desired, now)
    }

    /// Plans what remains to be written, unless that is known.
    pub(super) fn plan_writes(&mut self, target: &Target, desired: &TargetDesired, now: Instant) -> Option<()> {
        let state = self.targets.get_mut(target)?;
        if state.pending.is_some() {
            return Some(());
        }
        let traits = state.place()?.traits;
        self.choose(target, desired, now);
        let shows_first = self.shows_first(target, now);
        let state = self.targets.get_mut(target)?;
        let instances = wanted(state, desired);
        let mut plan = planned(desired, &instances, &state.own, &state.taken, traits);
        state.own.retain(|id, _| !plan.renamed.contains_key(id));
        state.adopted.append(&mut plan.renamed);
        if instances.is_empty() && (desired.retiring || is_refused(state, desired)) && shows_first {
            plan.deregister.clear();
        }
        // What is there may be another one's that the claim took the target from. It gets the target back as soon as the
        // claim says that its owner is unable.
        if desired.owner.is_some() && !desired.retiring && !desired.unable && is_refused(state, desired) {
            plan.deregister.clear();
        }
        let was_denied = !state.denied.is_empty();
        let left = |registers| if registers { !plan.register.is_empty() } else { !plan.deregister.is_empty() };
        state.denied.retain(|registers, _| left(*registers));
        let alive: Vec<_> = if let Some(part) = &state.part {
            plan.refused.extend_from_slice(part.refused());
            // A pod that replaces another one is registered first: before attributes change, and before instances of
            // living pods go.
            plan.register.sort_by_key(|id| state.own.contains_key(id));
            plan.deregister.extract_if(.., |id| is_alive(desired, id)).collect()
        } else {
            Vec::new()
        };
        let fitted = state.unfit.is_none();
        // Where the service is made again, nothing is wrong with them.
        let remade = state.is_to_be_remade(desired);
        state.settled &= !remade;
        state.unfit = plan.refused.first().filter(|_| !remade).map(|(id, why)| {
            let (refused, all) = (plan.refused.len(), plan.refused.len() + plan.wanted);
            format!("{refused} of {all} instances cannot be registered; {id}: {why}")
        });
        let awaited = |(id, _): (Arc<str>, _)| desired.awaited.contains(&id).then_some(id);
        state.unfit_awaited = plan.refused.into_iter().filter_map(awaited).collect();
        state.untold = if traits.has_custom_health_check() {
            let told = |id: &str| state.told.get(id).map(|told| told.healthy);
            ill_told(&instances, &state.own, told).collect()
        } else {
            VecDeque::new()
        };
        // Dead addresses go first. But if no other would remain, they wait for the first new one, so that a name that
        // changes hands is never empty. They do not wait if anything but time delays the new one.
        let hindered = state.problem.as_ref().is_some_and(|(reason, _)| *reason != Reason::ForeignOwner);
        let unhindered = !hindered && state.full_until.is_none_or(|until| until <= now);
        state.waits_for_first = plan.present == 0 && !plan.register.is_empty() && unhindered;
        let deregister = if state.waits_for_first { Vec::new() } else { plan.deregister };
        let others_first = !alive.is_empty() && !plan.register.is_empty() && unhindered;
        state.waits_for_first |= others_first;
        if unhindered && !plan.displacing.is_empty() {
            plan.register.retain(|id| !plan.displacing.contains(id));
            state.waits_for_first = true;
        }
        let alive = if others_first { Vec::new() } else { alive };
        let pending: VecDeque<_> = deregister.into_iter().chain(plan.register).chain(alive).collect();
        if !state.retry.is_empty() || was_denied {
            // A failed instance that is no longer desired is forgotten.
            let wanted: BTreeSet<_> = pending.iter().chain(state.untold.iter().map(|(id, _)| id)).collect();
            state.retry.retain(|id, _| wanted.contains(id));
            state.relieve();
        }
        state.pending = Some(pending);
        if let Some(place) = state.place().filter(|_| fitted && state.unfit.is_some()) {
            let at = place.again_at();
            self.wake_at(target, at);
        }
        Some(())
    }

    pub(super) fn issue_write(
        &mut self,
        target: &Target,
        service_id: Arc<str>,
        id: Arc<str>,
        now: Instant,
    ) -> Option<Call> {
        let desired = &Arc::clone(self.desired.get(target)?);
        let state = self.targets.get_mut(target)?;
        state.pending.as_mut()?.pop_front();
        if state.taken.contains(&id) {
            return None;
        }
        let traits = state.place()?.traits;
        let instances = wanted(state, desired);
        let spec = writable(&instances, &id, &state.own, &state.taken, traits);
        let running = Running {
            effect: spec.map(|spec| spec.digest(traits)),
            healthy: spec.is_some_and(InstanceSpec::is_ready),
            operation: None,
            in_the_way: false,
            unpolled: false,
            polls: 0,
            since: now,
        };
        state.running.insert(id.clone(), running);
        self.running += 1;
        state.own.insert(id.clone(), None);
        touch(state, &id);
        let target = target.clone();
        Some(match spec {
            Some(spec) => Call::Register { target, service_id, instance: spec.render(traits) },
            None => Call::Deregister { target, service_id, id },
        })
    }

    /// AWS accepted a request, or refused it.
    pub(super) fn written(
        &mut self,
        target: &Target,
        service_id: &Arc<str>,
        id: &Arc<str>,
        result: Result<OperationId, Error>,
        now: Instant,
    ) {
        // An answer may arrive when the target already has another service.
        let state = self.targets.get_mut(target).filter(|state| state.service_id.as_ref() == Some(service_id));
        let Some(state) = state else { return };
        let Some(running) = state.running.get_mut(id) else { return };
        match result {
            Ok(operation) => {
                running.operation = Some(operation.clone());
                let at = now.max(running.since + self.looks.first());
                self.poll_at(target, id, operation, at);
            }
            Err(Error { kind: ErrorKind::Duplicate { operation: Some(operation) }, .. }) => {
                running.operation = Some(operation.clone());
                running.in_the_way = true;
                let at = now.max(running.since + self.looks.first());
                self.poll_at(target, id, operation, at);
            }
            Err(error) => {
                let registering = running.effect.is_some();
                if registering && error.kind.may_come_late() {
                    state.late_until = Some(now + LATEST_EFFECT);
                }
                self.ended(target, id, now);
                let Some(state) = self.targets.get_mut(target) else { return };
                match error.kind {
                    ErrorKind::NotFound if registering => {
                        self.lost(target, &error, now);
                    }
                    ErrorKind::NotFound => {
                        state.own.remove(id);
                        state.retry.remove(id);
                    }
                    ErrorKind::LimitExceeded => {
                        let until = state.full_until.filter(|until| *until > now).unwrap_or(now + FULL);
                        state.full_until = Some(until);
                        state.problem = reason(&error).map(|reason| (reason, error.to_string()));
                        state.pending = None;
                        self.retry(target, id, until);
                    }
                    ErrorKind::AccessDenied => {
                        let until = now + RETRY_LAST;
                        state.denied.insert(registering, until);
                        // If both are denied, the text stays the same: every other one would be an Event.
                        if state.problem.is_none() || !state.denied.contains_key(&!registering) {
                            state.problem = reason(&error).map(|reason| (reason, error.to_string()));
                        }
                        state.pending = None;
                        self.wake_at(target, until);
                    }
                    _ => {
                        self.failed(target, id, &error, now);
                        if matches!(error.kind, ErrorKind::Duplicate { .. }) {
                            self.doubt(target, id, now);
                        }
                    }
                }
            }
        }
        self.wake_target(target, now);
    }

    /// Somebody else's operation on an instance blocked ours. Its result is read before the instance is written.
    pub(super) fn doubt(&mut self, target: &Target, id: &Arc<str>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.unsure.insert(id.clone());
        self.read_soon(target, now);
    }

    /// Tries one instance again later, and reports it if this happens repeatedly.
    pub(super) fn failed(&mut self, target: &Target, id: &Arc<str>, error: &Error, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        let failures = state.retry.get(id).map_or(0, |retry| retry.failures) + 1;
        if error.kind == ErrorKind::InvalidInput
            && let Phase::Resolved(place) = &mut state.phase
        {
            place.doubtful = true;
        }
        let hopeless = matches!(error.kind, ErrorKind::InvalidInput | ErrorKind::AccessDenied);
        if let Some(reason) = reason(error)
            && (failures > reason.hiccups() || hopeless)
        {
            state.problem = Some((reason, format!("instance {id}: {error}")));
        }
        let at = now + back_off(if hopeless { u32::MAX } else { failures });
        self.retry(target, id, at);
    }

    fn retry(&mut self, target: &Target, id: &Arc<str>, at: Instant) {
        if let Some(state) = self.targets.get_mut(target) {
            let failures = state.retry.get(id).map_or(0, |retry| retry.failures) + 1;
            state.retry.insert(id.clone(), Retry { failures, at });
            self.wake_at(target, at);
        }
    }

    /// An operation ended. The caller handles its result.
    pub(super) fn ended(&mut self, target: &Target, id: &Arc<str>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        if state.running.remove(id).is_some() {
            self.running -= 1;
        }
        if state.running.is_empty() {
            // An emptied map keeps its memory, and there are many targets.
            state.running = BTreeMap::new();
        }
        state.seen = state.seen.min(Seen::Once);
        if let Some(part) = &mut state.part {
            part.wrote(now);
        }
        if state.waits_for_first || state.part.as_ref().is_some_and(|part| part.is_due(now)) {
            state.pending = None;
        }
        touch(state, id);
    }

    pub(super) fn succeeded(&mut self, target: &Target, id: &Arc<str>, effect: Option<Digest>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        if let Some(said) = effect {
            state.own.insert(id.clone(), Some(said));
            state.end_remaking(now);
        } else {
            state.own.remove(id);
            state.make_room(now);
            if state.own.is_empty() && self.desired.get(target).is_some_and(|desired| state.is_to_be_remade(desired)) {
                state.begin_remaking(now);
            }
        }
        state.retry.remove(id);
        if state.denied.remove(&effect.is_some()).is_some() {
            state.pending = None;
        }
        state.relieve();
        self.look_again(target, id);
    }

    /// The service of a target was deleted. Everything that was known about it is worthless.
    pub(super) fn lost(&mut self, target: &Target, error: &Error, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        self.running -= state.running.len();
        state.running.clear();
        state.lose_place();
        let at = state.fail(error, now);
        self.forget_services(target, now);
        self.wake_at(target, at);
    }

    /// An operation that AWS had accepted failed. The service may be gone, which AWS reports only in this way. A
    /// reading shows more. If it was throttled, that is only a matter of time.
    pub(super) fn operation_failed(&mut self, target: &Target, id: &Arc<str>, error: &Error, now: Instant) {
        if error.kind != ErrorKind::Throttled
            && let Some(state) = self.targets.get_mut(target)
        {
            state.problem = Some((Reason::Failed, format!("instance {id}: {error}")));
        }
        self.read_soon(target, now);
        self.failed(target, id, error, now);
    }

    /// Whether an instance that was just written must be written again, because the desired state changed meanwhile.
    fn look_again(&mut self, target: &Target, id: &Arc<str>) {
        let Some(desired) = self.desired.get(target) else { return };
        let Some(state) = self.targets.get_mut(target) else { return };
        let Some(traits) = state.place().map(|place| place.traits) else { return };
        let instances = wanted(state, desired);
        let spec = find(&instances, id).map(std::slice::from_ref).unwrap_or_default();
        let own = state.own.get_key_value(id).map(|(id, said)| (id.clone(), *said)).into_iter().collect();
        let again = planned(desired, spec, &own, &state.taken, traits);
        if let Some(pending) = &mut state.pending
            && !again.is_empty()
        {
            pending.push_front(id.clone());
        }
        if traits.has_custom_health_check() {
            let told = |id: &str| state.told.get(id).map(|told| told.healthy);
            let ill: Vec<_> = ill_told(spec, &own, told).collect();
            state.untold.extend(ill);
        }
    }

    /// Takes a complete listing of a target's service, or an error.
    pub(super) fn was_read(&mut self, target: &Target, begun: Instant, result: Result<Inventory, Error>, now: Instant) {
        let desired = self.desired.get(target).cloned();
        let certain = self.certain_from(target);
        let Some(state) = self.targets.get_mut(target) else { return };
        // This may be the late answer of an earlier reading: the target was found again meanwhile, and is being read
        // once more.
        let Some(Reading { written, .. }) = state.reading.take_if(|reading| reading.begun == begun) else { return };
        let Some(desired) = desired else { return };
        match result {
            Err(error) => {
                if error.kind == ErrorKind::NotFound {
                    self.lost(target, &error, now);
                } else {
                    let first = state.seen == Seen::Never;
                    let at = if first { state.fail(&error, now) } else { state.read_failed(&error, now) };
                    if !state.unsure.is_empty() || state.part.as_ref().is_some_and(|part| part.awaits_reading()) {
                        state.read_at.get_or_insert(at);
                    }
                    self.wake_at(target, at);
                }
            }
            // The service is being looked for again, so it is not known whose instances are taken over.
            Ok(_) if state.place().is_none() => self.read_soon(target, now),
            Ok(Inventory { instances: listing, unhealthy }) => {
                let reading = plan::read(
                    &listing,
                    &desired.instances,
                    &self.settings.identity,
                    state.place().and_then(|place| place.adopt.as_ref()),
                );
                let back = state.shown(&reading, &written);
                for id in &back {
                    self.took_effect(target, id, now);
                }
                let Some(state) = self.targets.get_mut(target) else { return };
                let known = std::mem::take(&mut state.own);
                let untold = |id: &Arc<str>| written.contains(id) || state.running.contains_key(id);
                let mut own = reading.own;
                own.retain(|id, _| !untold(id));
                let differ =
                    |id: &Arc<str>, said: &Option<_>| !untold(id) && said.is_some() && own.get(id) != Some(said);
                let said = |there: &Instance| known.get(&there.id).copied().flatten();
                let is_altered = |there: &&Instance| differ(&there.id, &said(there));
                let altered = listing.iter().filter(is_altered).filter_map(|there| Some((there, said(there)?)));
                let altered: Vec<_> = altered.collect();
                let drifted = known.iter().filter(|(id, said)| differ(id, said)).count()
                    + own.keys().filter(|id| !known.contains_key(*id)).count();
                if state.seen != Seen::Never {
                    self.drifted += drifted as u64;
                }
                // An unknown outcome stays unknown until the instance is written again, unless somebody else has it
                // now.
                let unknown = |id: &Arc<str>, said: &Option<_>| said.is_none() && !reading.taken.contains(id);
                own.extend(known.into_iter().filter(|(id, said)| untold(id) || unknown(id, said)));
                state.unsure.retain(|id| written.contains(id));
                state.own = own;
                for (there, said) in altered {
                    state.compare(&desired, there, said, now);
                }
                state.forget_altered(now);
                state.forget_remaking(now);
                state.taken = reading.taken;
                state.adopted = reading.adopted;
                state.adopted.retain(|id, _| !state.own.contains_key(id));
                if state.found.is_none() {
                    state.found = Some(Arc::new(state.own.keys().cloned().collect()));
                }
                (state.foreign, state.strangers) = (reading.foreign, reading.strangers);
                let hidden = self.hiding.ill_by_us(state.service_id.as_ref(), begun);
                state.others_were_read(&listing, (unhealthy.as_ref(), &hidden), &self.settings.identity, begun);
                state.found_own = desired
                    .only_found
                    .as_ref()
                    .is_some_and(|service| listing.iter().any(|there| is_of(there, service, &self.settings.identity)));
                state.succession_was_read(&listing, unhealthy.as_ref(), &desired, &self.settings.identity);
                state.health_was_read(&listing, unhealthy.as_ref(), &written, now);
                state.count();
                // What this reading showed first has ended a moment before.
                let whole = written.is_empty() && back.is_empty() && state.running.is_empty() && begun >= certain;
                let first = state.seen == Seen::Never;
                state.seen = if whole { Seen::Since } else { Seen::Once };
                state.pending = None;
                state.unread = Unread::default();
                let again = state.read_again;
                state.relieve();
                // A target that waits for health is read less and less often while that cannot be read. So is one that
                // waits for what only a reading shows.
                let checked = state.place().is_some_and(|place| place.traits.has_custom_health_check());
                if unhealthy.is_none() && checked || state.running.values().any(|running| running.unpolled) {
                    state.read_again = again;
                }
                if desired.successor.is_some() && state.succeeded.is_none() {
                    state.read_again = again.min(SUCCESSION);
                    self.read_soon(target, now);
                }
                self.tasks_were_read(target, &desired, &listing, unhealthy.as_ref(), begun);
                if first {
                    self.drift_check_soon(now);
                }
            }
        }
        self.wake_target(target, now);
    }
}

/// A reading in flight proves nothing about an instance that is written meanwhile.
fn touch(state: &mut State, id: &Arc<str>) {
    if let Some(reading) = &mut state.reading {
        reading.written.insert(id.clone());
    }
}
