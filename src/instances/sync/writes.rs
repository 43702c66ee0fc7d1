//! Writes of instances: one operation per instance at a time. Its result is awaited ([`polls`](super::polls)), and it
//! is tried again if it fails.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Reason, TargetDesired,
    activity::{Progress, Todo},
    call::Call,
    engine::Engine,
    failure::{RETRY_LAST, back_off, reason},
    known::Known,
    share::is_alive,
    state::{Phase, State},
};
use crate::{
    InstanceSpec,
    attributes::{Digest, ServiceTraits},
    plan::{Own, Plan, find, last_ill, outstays, plan, replaced, unneeded, writable},
};
use cloudmap::{Error, ErrorKind, LATEST_EFFECT, OperationId};
use model::Target;

/// Maximum number of operations in flight. More would not make AWS faster, and each costs polls.
pub(super) const OPERATIONS: usize = 1000;
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
    let Some(there) = state.known() else { return false };
    let refused = there.place.as_ref().is_some_and(|place| place.refused);
    let stays = || {
        let follows = desired.unable && state.found_own && there.strangers == 0;
        follows || desired.consent.unclear && !there.own.is_empty()
    };
    refused && !stays() && !outstays(&desired.instances, &there.own, there.strangers)
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
        let instances = wanted(state, desired);
        let traits = state.place()?.traits;
        let Known { activities, own, taken, denied, full_until, .. } = state.known_mut()?;
        let full = full_until.is_some_and(|until| until > now);
        let is_denied = |id: &Arc<str>| {
            let registers = || writable(&instances, id, own, taken, traits).is_some();
            !denied.is_empty() && denied.get(&registers()).is_some_and(|until| *until > now)
        };
        let blocked = |id: &Arc<str>| {
            full && !matches!(own.get(id), Some(Some(_))) && find(&instances, id).is_some() || is_denied(id)
        };
        if let Some(id) = activities.next_write(blocked) {
            return Some(id);
        }
        let refused = is_refused(state, desired);
        let remade = state.is_to_be_remade(desired);
        if state.at_rest() && !full && !refused && !remade {
            state.complete();
        }
        // Only when ours are registered, so that the name loses no address while it changes hands.
        let last = instances.is_empty() && state.part.as_ref().is_some_and(|part| part.is_alone());
        let (at_rest, fit) = (state.at_rest(), state.unfit.is_none());
        let Known { activities, own, adopted, .. } = state.known_mut()?;
        let going: Vec<_> = if adopted.is_empty() || !desired.active || desired.keep || refused || last {
            Vec::new()
        } else if full {
            replaced(adopted, &desired.instances, own)
        } else if at_rest && fit {
            adopted.keys().cloned().collect()
        } else if at_rest {
            unneeded(adopted, &desired.instances, own)
        } else {
            Vec::new()
        };
        if going.is_empty() {
            return None;
        }
        for id in going {
            adopted.remove(&id);
            own.entry(id).or_insert(None);
        }
        activities.plan_again();
        self.next_write(target, desired, now)
    }

    /// Plans what remains to be written, unless that is known.
    pub(super) fn plan_writes(&mut self, target: &Target, desired: &TargetDesired, now: Instant) -> Option<()> {
        let there = self.targets.get(target)?.known()?;
        if there.activities.is_planned() {
            return Some(());
        }
        let traits = there.place.as_ref()?.traits;
        self.choose(target, desired, now);
        let shows_first = self.shows_first(target, now);
        let state = self.targets.get_mut(target)?;
        let instances = wanted(state, desired);
        let refused = |state| is_refused(state, desired);
        let there = state.known_mut()?;
        let mut plan = planned(desired, &instances, &there.own, &there.taken, traits);
        there.own.retain(|id, _| !plan.renamed.contains_key(id));
        there.adopted.append(&mut plan.renamed);
        if instances.is_empty() && (desired.retiring || refused(state)) && shows_first {
            plan.deregister.clear();
        }
        // What is there may be another one's that the claim took the target from. It gets the target back as soon as the
        // claim says that its owner is unable.
        if desired.owner.is_some() && !desired.retiring && !desired.unable && refused(state) {
            plan.deregister.clear();
        }
        let there = state.known_mut()?;
        let was_denied = !there.denied.is_empty();
        let left = |registers| if registers { !plan.register.is_empty() } else { !plan.deregister.is_empty() };
        there.denied.retain(|registers, _| left(*registers));
        let alive: Vec<_> = if let Some(part) = &state.part {
            plan.refused.extend_from_slice(part.refused());
            // A pod that replaces another one is registered first: before attributes change, and before instances of
            // living pods go.
            plan.register.sort_by_key(|id| state.known().is_some_and(|there| there.own.contains_key(id)));
            plan.deregister.extract_if(.., |id| is_alive(desired, id)).collect()
        } else {
            Vec::new()
        };
        let fitted = state.unfit.is_none();
        // Where the service is made again, nothing is wrong with them.
        let remade = state.is_to_be_remade(desired);
        state.was_complete &= !remade;
        state.unfit = plan.refused.first().filter(|_| !remade).map(|(id, why)| {
            let (refused, all) = (plan.refused.len(), plan.refused.len() + plan.wanted);
            format!("{refused} of {all} instances cannot be registered; {id}: {why}")
        });
        let awaited = |(id, _): (Arc<str>, _)| desired.awaited.contains(&id).then_some(id);
        state.unfit_awaited = plan.refused.into_iter().filter_map(awaited).collect();
        let hindered = state.attempts.problem.as_ref().is_some_and(|(reason, _)| *reason != Reason::ForeignOwner);
        let there = state.known_mut()?;
        let checked = traits.has_custom_health_check();
        let health = last_ill(&instances, &there.own, |id| there.last_health(id)).filter(|_| checked).collect();
        // Dead addresses go first. But if no other would remain, they wait for the first new one, so that a name that
        // changes hands is never empty. They do not wait if anything but time delays the new one.
        let unhindered = !hindered && there.full_until.is_none_or(|until| until <= now);
        let mut waits_for_first = plan.present == 0 && !plan.register.is_empty() && unhindered;
        let deregister = if waits_for_first { Vec::new() } else { plan.deregister };
        let others_first = !alive.is_empty() && !plan.register.is_empty() && unhindered;
        waits_for_first |= others_first;
        if unhindered && !plan.displacing.is_empty() {
            plan.register.retain(|id| !plan.displacing.contains(id));
            waits_for_first = true;
        }
        let alive = if others_first { Vec::new() } else { alive };
        let writes = deregister.into_iter().chain(plan.register).chain(alive).collect();
        let failed = there.activities.has_any_failed();
        there.activities.plan(Todo { writes, health, waits_for_first }, now);
        if failed || was_denied {
            state.relieve();
        }
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
        let instances = wanted(state, desired);
        let there = state.known_mut()?;
        there.activities.take_write();
        if there.taken.contains(&id) {
            return None;
        }
        let traits = there.place.as_ref()?.traits;
        let spec = writable(&instances, &id, &there.own, &there.taken, traits);
        let (effect, healthy) = (spec.map(|spec| spec.digest(traits)), spec.is_some_and(InstanceSpec::is_ready));
        there.activities.begin(&id, self.running.write(effect, healthy, now));
        there.own.insert(id.clone(), None);
        there.readings.touch(&id);
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
        let first = self.polls.looks.first();
        // An answer may arrive when the target already has another service.
        let there = self.known_mut(target).filter(|there| there.service_id == *service_id);
        let Some(write) = there.and_then(|there| there.activities.write_mut(id)) else { return };
        let at = now.max(write.since + first);
        match result {
            Ok(operation) => {
                write.progress = Progress::Running { operation: operation.clone(), polls: 0, unpolled: false };
                self.poll_at(target, id, operation, at);
            }
            Err(Error { kind: ErrorKind::Duplicate { operation: Some(operation) }, .. }) => {
                write.progress = Progress::InTheWay { operation: operation.clone() };
                self.poll_at(target, id, operation, at);
            }
            Err(error) => {
                let registering = write.effect.is_some();
                self.ended(target, id, now);
                self.not_written(target, id, registering, &error, now);
            }
        }
        self.wake_target(target, now);
    }

    /// AWS refused a request, or its answer was not understood.
    fn not_written(&mut self, target: &Target, id: &Arc<str>, registering: bool, error: &Error, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        if registering && error.kind.may_come_late() {
            state.late_until = Some(now + LATEST_EFFECT);
        }
        let Phase::Resolved(there) = &mut state.phase else { return };
        let problem = &mut state.attempts.problem;
        match error.kind {
            ErrorKind::NotFound if registering => self.lost(target, error, now),
            ErrorKind::NotFound => {
                there.own.remove(id);
                there.activities.over(id);
                self.look_again(target, id);
            }
            ErrorKind::LimitExceeded => {
                let until = there.full_until.filter(|until| *until > now).unwrap_or(now + FULL);
                there.full_until = Some(until);
                *problem = reason(error).map(|reason| (reason, error.to_string()));
                there.activities.plan_again();
                self.retry(target, id, until);
            }
            ErrorKind::AccessDenied => {
                let until = now + RETRY_LAST;
                there.denied.insert(registering, until);
                // If both are denied, the text stays the same: every other one would be an Event.
                if problem.is_none() || !there.denied.contains_key(&!registering) {
                    *problem = reason(error).map(|reason| (reason, error.to_string()));
                }
                there.activities.plan_again();
                self.wake_at(target, until);
            }
            _ => {
                self.failed(target, id, error, now);
                if matches!(error.kind, ErrorKind::Duplicate { .. }) {
                    self.doubt(target, id, now);
                }
            }
        }
    }

    /// Somebody else's operation on an instance blocked ours. Its result is read before the instance is written.
    pub(super) fn doubt(&mut self, target: &Target, id: &Arc<str>, now: Instant) {
        if let Some(there) = self.known_mut(target) {
            there.activities.doubt(id, now);
            self.read_soon(target, now);
        }
    }

    /// Tries one instance again later, and reports it if this happens repeatedly.
    pub(super) fn failed(&mut self, target: &Target, id: &Arc<str>, error: &Error, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        let Phase::Resolved(there) = &mut state.phase else { return };
        let failures = there.activities.failures(id) + 1;
        if let Some(place) = there.place.as_mut().filter(|_| error.kind == ErrorKind::InvalidInput) {
            place.doubtful = true;
        }
        let hopeless = matches!(error.kind, ErrorKind::InvalidInput | ErrorKind::AccessDenied);
        if let Some(reason) = reason(error)
            && (failures > reason.hiccups() || hopeless)
        {
            state.attempts.problem = Some((reason, format!("instance {id}: {error}")));
        }
        let at = now + back_off(if hopeless { u32::MAX } else { failures });
        self.retry(target, id, at);
    }

    fn retry(&mut self, target: &Target, id: &Arc<str>, at: Instant) {
        if let Some(there) = self.known_mut(target) {
            there.activities.fail(id, at);
            self.wake_at(target, at);
        }
    }

    /// An operation ended. The caller handles its result.
    pub(super) fn ended(&mut self, target: &Target, id: &Arc<str>, now: Instant) {
        let Some(State { phase: Phase::Resolved(there), part, .. }) =
            self.targets.get_mut(target).map(|state| &mut **state)
        else {
            return;
        };
        there.activities.end(id, now);
        there.readings.is_outdated();
        there.readings.touch(id);
        there.activities.plan_after_first();
        if let Some(part) = part {
            part.wrote(now);
            if part.is_due(now) {
                there.activities.plan_again();
            }
        }
    }

    pub(super) fn succeeded(&mut self, target: &Target, id: &Arc<str>, effect: Option<Digest>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        let Some(there) = state.known_mut() else { return };
        if let Some(said) = effect {
            there.own.insert(id.clone(), Some(said));
        } else {
            there.own.remove(id);
            there.make_room(now);
        }
        there.activities.over(id);
        if there.denied.remove(&effect.is_some()).is_some() {
            there.activities.plan_again();
        }
        let empty = there.own.is_empty();
        if effect.is_some() {
            state.end_remaking(now);
        } else if empty && self.desired.get(target).is_some_and(|desired| state.is_to_be_remade(desired)) {
            state.begin_remaking(now);
        }
        state.relieve();
        self.look_again(target, id);
    }

    /// The service of a target was deleted. Everything that was known about it is worthless.
    pub(super) fn lost(&mut self, target: &Target, error: &Error, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.lose_place();
        let at = state.attempts.fail(error, now);
        self.forget_services(target, now);
        self.wake_at(target, at);
    }

    /// An operation that AWS had accepted failed. The service may be gone, which AWS reports only in this way. A
    /// reading shows more. If it was throttled, that is only a matter of time.
    pub(super) fn operation_failed(&mut self, target: &Target, id: &Arc<str>, error: &Error, now: Instant) {
        if error.kind != ErrorKind::Throttled
            && let Some(state) = self.targets.get_mut(target)
        {
            state.attempts.problem = Some((Reason::Failed, format!("instance {id}: {error}")));
        }
        self.read_soon(target, now);
        self.failed(target, id, error, now);
    }

    /// Whether an instance that was just written must be written again, because the desired state changed meanwhile.
    fn look_again(&mut self, target: &Target, id: &Arc<str>) {
        let Some(desired) = self.desired.get(target) else { return };
        let Some(state) = self.targets.get_mut(target) else { return };
        let instances = wanted(state, desired);
        let Some(there) = state.known_mut() else { return };
        let Some(traits) = there.place.as_ref().map(|place| place.traits) else { return };
        let spec = find(&instances, id).map(std::slice::from_ref).unwrap_or_default();
        let own = there.own.get_key_value(id).map(|(id, said)| (id.clone(), *said)).into_iter().collect();
        let again = planned(desired, spec, &own, &there.taken, traits);
        let ill = last_ill(spec, &own, |id| there.last_health(id)).next().filter(|_| traits.has_custom_health_check());
        there.activities.plan_more((!again.is_empty()).then(|| id.clone()), ill);
    }
}
