//! The readings of the instances of a service: one at a time.

use std::{collections::BTreeSet, sync::Arc};

use tokio::time::Instant;

use super::{
    Reason,
    failure::{Attempts, back_off},
};
use cloudmap::Error;

/// When the own instances of a service were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Seen {
    #[default]
    Never,
    /// Since this replica leads.
    Once,
    /// Since the last write ended, and since the previous leader has no more requests in flight.
    Since,
}

/// A reading in flight.
#[derive(Debug)]
struct Reading {
    begun: Instant,
    /// Ids that were written since, about which the reading proves nothing.
    written: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
pub(super) struct Readings {
    seen: Seen,
    in_flight: Option<Reading>,
    /// When to read out of turn.
    due: Option<Instant>,
    /// How often something waited for a reading since a write succeeded.
    pub(super) waited: u32,
    /// What is known is enough to write, so nothing else waits for those that fail after the first one that succeeded.
    attempts: Attempts,
}

impl Readings {
    /// Those of a service in which nothing can be yet.
    pub(super) fn of_new() -> Self {
        Self { seen: Seen::Once, ..Self::default() }
    }

    pub(super) const fn seen(&self) -> Seen {
        self.seen
    }

    pub(super) const fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Why readings fail, if they do for some time.
    pub(super) const fn problem(&self) -> Option<&(Reason, String)> {
        self.attempts.problem.as_ref()
    }

    /// Whether one can begin now.
    pub(super) fn may_begin(&self, now: Instant) -> bool {
        self.in_flight.is_none() && self.attempts.may(now)
    }

    /// Whether something waits for one now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|at| at <= now)
    }

    /// Something waits for a reading from now on, unless something does already. Returns when it is due if it is new.
    pub(super) fn request(&mut self, now: Instant) -> Option<Instant> {
        if self.due.is_some() {
            return None;
        }
        self.due = Some(now + back_off(self.waited + 1));
        self.due
    }

    /// Something waits for a reading at this time, or earlier. Returns when it is due.
    pub(super) fn request_at(&mut self, at: Instant) -> Instant {
        *self.due.get_or_insert(at)
    }

    /// One is needed at once.
    pub(super) const fn hurry(&mut self, now: Instant) {
        self.due = Some(now);
    }

    /// What was read proves nothing about what is there now.
    pub(super) const fn read_anew(&mut self) {
        self.seen = Seen::Never;
    }

    /// What was read is not the last that happened there.
    pub(super) fn is_outdated(&mut self) {
        self.seen = self.seen.min(Seen::Once);
    }

    /// A reading is sent.
    pub(super) fn begin(&mut self, now: Instant) {
        self.in_flight = Some(Reading { begun: now, written: BTreeSet::new() });
        self.waited = self.waited.saturating_add(u32::from(self.due.take().is_some()));
    }

    /// A reading in flight proves nothing about an instance that is written meanwhile.
    pub(super) fn touch(&mut self, id: &Arc<str>) {
        if let Some(reading) = &mut self.in_flight {
            reading.written.insert(Arc::clone(id));
        }
    }

    /// A reading ended. Returns the ids about which it proves nothing; `None` if it is not awaited any more.
    pub(super) fn end(&mut self, begun: Instant) -> Option<BTreeSet<Arc<str>>> {
        self.in_flight.take_if(|reading| reading.begun == begun).map(|reading| reading.written)
    }

    /// It succeeded. `whole`: nothing was written meanwhile.
    pub(super) fn succeeded(&mut self, whole: bool) {
        self.seen = if whole { Seen::Since } else { Seen::Once };
        self.attempts = Attempts::default();
    }

    /// It failed, and is tried again later. Returns when.
    pub(super) fn failed(&mut self, error: &Error, now: Instant) -> Instant {
        self.attempts.fail(error, now)
    }

    /// What failed may succeed now.
    pub(super) fn retry(&mut self) {
        self.attempts = Attempts::default();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_answer_to_the_reading_in_flight_counts_and_says_nothing_about_what_was_written_meanwhile() {
        let (mut readings, now) = (Readings::default(), Instant::now());
        let (later, id) = (now + Duration::from_secs(1), Arc::<str>::from("k8s-1"));
        readings.touch(&id);
        readings.begin(now);
        assert!(!readings.may_begin(later), "one at a time");
        readings.touch(&id);
        assert_eq!(readings.end(later), None);
        assert_eq!(readings.end(now), Some([id].into()));
        assert_eq!(readings.end(now), None);
        assert!(readings.may_begin(later));
    }

    #[test]
    fn a_reading_that_is_awaited_is_requested_once_and_less_and_less_often() {
        let (mut readings, mut now) = (Readings::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let at = readings.request(now).unwrap();
            assert_eq!((readings.request(now), readings.is_due(now), readings.is_due(at)), (None, false, true));
            pauses.push((at - now).as_secs());
            now = at;
            readings.begin(now);
            readings.end(now);
            readings.succeeded(true);
        }
        assert_eq!(pauses, [1, 2, 4, 8]);
    }
}
