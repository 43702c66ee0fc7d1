//! What a complete listing of a target's service shows.

use std::{collections::BTreeSet, sync::Arc};

use tokio::time::Instant;

use super::{
    TargetDesired,
    call::Inventory,
    engine::Engine,
    known::Known,
    readings::Seen,
    state::{Phase, State},
};
use crate::{
    attributes::Digest,
    ownership::is_of,
    plan::{self, Reading},
};
use cloudmap::{Error, ErrorKind, Instance};
use model::Target;

/// A successor is looked for less and less often, up to this number of times: every 16 s in the end.
const SUCCESSION: u32 = 4;

impl Engine {
    /// Takes a complete listing of a target's service, or an error.
    pub(super) fn was_read(&mut self, target: &Target, begun: Instant, result: Result<Inventory, Error>, now: Instant) {
        let desired = self.desired.get(target).cloned();
        let Some(state) = self.targets.get_mut(target) else { return };
        let Some(there) = state.known_mut() else { return };
        // This may be the late answer of an earlier reading: the target was found again meanwhile, and is being read
        // once more.
        let Some(written) = there.readings.end(begun) else { return };
        let Some(desired) = desired else { return };
        match result {
            Err(error) if error.kind == ErrorKind::NotFound => self.lost(target, &error, now),
            Err(error) => {
                let first = there.readings.seen() == Seen::Never;
                let at = if first { state.attempts.fail(&error, now) } else { there.readings.failed(&error, now) };
                let Phase::Resolved(there) = &mut state.phase else { return };
                if there.activities.is_any_unsure() || state.part.as_ref().is_some_and(|part| part.awaits_reading()) {
                    there.readings.request_at(at);
                }
                self.wake_at(target, at);
            }
            // The service is being looked for again, so it is not known whose instances are taken over.
            Ok(_) if there.place.is_none() => self.read_soon(target, now),
            Ok(inventory) => self.shows(target, &desired, &inventory, (begun, &written), now),
        }
        self.wake_target(target, now);
    }

    /// Takes a complete listing whose call began at that time. It proves nothing about the instances in `written`.
    fn shows(
        &mut self,
        target: &Target,
        desired: &TargetDesired,
        Inventory { instances: listing, unhealthy }: &Inventory,
        (begun, written): (Instant, &BTreeSet<Arc<str>>),
        now: Instant,
    ) {
        let (certain, identity) = (self.certain_from(target), self.settings.identity.clone());
        let unhealthy = unhealthy.as_ref();
        let Some(there) = self.known_mut(target) else { return };
        let adopt = there.place.as_ref().and_then(|place| place.adopt.as_ref());
        let reading = plan::read(listing, &desired.instances, &identity, adopt);
        let back = there.shown(&reading, written);
        for id in &back {
            self.took_effect(target, id, now);
        }
        let Some(state) = self.targets.get_mut(target) else { return };
        let Some(there) = state.known_mut() else { return };
        let first = there.readings.seen() == Seen::Never;
        let (altered, drifted) = there.compare(listing, reading, written);
        if !first {
            self.drifted += drifted as u64;
        }
        for (there, said) in altered {
            state.compare(desired, there, said, now);
        }
        state.forget_altered(now);
        state.forget_remaking(now);
        if state.found.is_none() {
            let own = state.known().map(|there| there.own.keys().cloned().collect()).unwrap_or_default();
            state.found = Some(Arc::new(own));
        }
        let hidden = self.hiding.ill_by_us(state.service_id(), begun);
        state.others_were_read(listing, (unhealthy, &hidden), &identity, begun);
        let service = desired.only_found.as_ref();
        state.found_own = service.is_some_and(|service| listing.iter().any(|there| is_of(there, service, &identity)));
        state.succession_was_read(listing, unhealthy, desired, &identity);
        if let Some(there) = state.known_mut() {
            there.health_was_read(listing, unhealthy, written, now);
        }
        state.count();
        // What this reading showed first has ended a moment before.
        let whole = written.is_empty() && back.is_empty() && begun >= certain;
        if state.was_read(whole, unhealthy.is_some(), desired) {
            self.read_soon(target, now);
        }
        self.tasks_were_read(target, desired, listing, unhealthy, begun);
        if first {
            self.drift_check_soon(now);
        }
    }
}

impl State {
    /// A reading succeeded. Returns whether to read again soon, because a successor is awaited.
    fn was_read(&mut self, whole: bool, with_health: bool, desired: &TargetDesired) -> bool {
        let Some(there) = self.known_mut() else { return false };
        there.readings.succeeded(whole && !there.activities.is_any_written());
        there.activities.plan_again();
        let waited = there.readings.waited;
        // A target that waits for health is read less and less often while that cannot be read. So is one that waits for
        // what only a reading shows.
        let checked = there.place.as_ref().is_some_and(|place| place.traits.has_custom_health_check());
        let waits = !with_health && checked || there.activities.writes().any(|(_, write)| write.is_unpolled());
        self.relieve();
        let succession = desired.successor.is_some() && self.succeeded.is_none();
        let Some(there) = self.known_mut() else { return false };
        if succession {
            there.readings.waited = waited.min(SUCCESSION);
        } else if waits {
            there.readings.waited = waited;
        }
        succession
    }
}

impl Known {
    /// Takes the instances of a complete listing, which proves nothing about those in `written`. Returns the own ones that
    /// somebody else changed, with what was written last, and the number of those that are not as they were.
    fn compare<'a>(
        &mut self,
        listing: &'a [Instance],
        reading: Reading,
        written: &BTreeSet<Arc<str>>,
    ) -> (Vec<(&'a Instance, Digest)>, usize) {
        let Reading { mut own, taken, foreign, strangers, adopted } = reading;
        let known = std::mem::take(&mut self.own);
        let untold = |id: &Arc<str>| written.contains(id) || self.activities.write(id).is_some();
        own.retain(|id, _| !untold(id));
        let differ = |id: &Arc<str>, said: &Option<_>| !untold(id) && said.is_some() && own.get(id) != Some(said);
        let altered = listing.iter().filter_map(|there| {
            let said = known.get(&there.id)?;
            differ(&there.id, said).then_some((there, (*said)?))
        });
        let altered = altered.collect();
        let drifted = known.iter().filter(|(id, said)| differ(id, said)).count()
            + own.keys().filter(|id| !known.contains_key(*id)).count();
        // An unknown outcome stays unknown until the instance is written again, unless somebody else has it now.
        let unknown = |id: &Arc<str>, said: &Option<_>| said.is_none() && !taken.contains(id);
        own.extend(known.into_iter().filter(|(id, said)| untold(id) || unknown(id, said)));
        self.activities.were_read(written);
        (self.own, self.taken, self.adopted) = (own, taken, adopted);
        self.adopted.retain(|id, _| !self.own.contains_key(id));
        (self.foreign, self.strangers) = (foreign, strangers);
        (altered, drifted)
    }
}
