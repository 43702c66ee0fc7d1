//! What is done while nothing changes: reading every target again. (`ttl.rs` lists records again.)

use std::{ops::Bound, time::Duration};

use tokio::time::Instant;

use super::{
    call::Call,
    engine::Engine,
    known::Known,
    readings::Seen,
    state::{State, Want},
    turns::Class,
};

/// When to look again for targets to check if there are none, as at the beginning of a term.
const NOTHING_YET: Duration = Duration::from_secs(1);

/// Maximum number of drift checks in flight. The other half of the places is for readings that something waits for.
const CHECKS: usize = Class::Read.places() / 2;

impl Engine {
    /// Whether there is a place for a drift check. A slow check must not delay the next one.
    pub(super) fn may_check(&self) -> bool {
        self.turns.in_flight(Class::Read) < CHECKS
    }

    /// The next target to read again, spread evenly over the period.
    pub(super) fn drift_check(&mut self, now: Instant) -> Option<Call> {
        if now < self.drift.at || !self.may_check() {
            return None;
        }
        self.look_over();
        let (period, pages) = (self.drift_period(), self.counts.pages);
        let last = self.drift.last.take();
        let after = (last.as_ref().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let next = self.targets.range(after).chain(&self.targets).find(|(_, state)| is_idle(state, now));
        let Some((target, state)) = next else {
            self.drift.at = now + NOTHING_YET;
            return None;
        };
        let (target, cost) = (target.clone(), state.pages());
        self.drift.last = Some(target.clone());
        self.drift.at = now + period.mul_f64(cost as f64 / pages.max(1) as f64);
        let service_id = self.targets.get(&target)?.service_id()?.clone();
        self.turns.began(Class::Read);
        self.issue(&target, Want::Read { service_id }, now)
    }

    /// There is one more target than the pause before the next check was computed for.
    pub(super) fn drift_check_soon(&mut self, now: Instant) {
        self.drift.at = self.drift.at.min(now + NOTHING_YET);
    }

    /// The period of the drift checks.
    pub(super) fn drift_period(&self) -> Duration {
        let needed = Duration::from_secs_f64(self.counts.pages as f64 / self.settings.drift_budget.max(0.01));
        needed.max(self.settings.drift_period)
    }
}

/// Whether a target can be read again: it was read, and is not being read or written.
fn is_idle(state: &State, now: Instant) -> bool {
    // In a foreign service, somebody else may come, beside whom ours do not stay.
    let Some(Known { place: Some(place), own, readings, activities, .. }) = state.known() else { return false };
    let mine = !place.refused || !own.is_empty();
    mine && readings.seen() != Seen::Never && readings.may_begin(now) && !activities.is_any_written()
}
