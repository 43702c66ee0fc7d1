//! The listings that targets share.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Reason,
    failure::{RETRY_LAST, Trouble, back_off, reason},
};
use cloudmap::{Error, ErrorKind};

/// Longest pause before a listing that AWS throttled. The next call waits for its turn as well.
const RETRY_THROTTLED: Duration = Duration::from_secs(2);
/// Throttling of a listing is reported if it lasts longer: an account allows few, and others need them, too.
const THROTTLED: Duration = Duration::from_mins(1);

/// A listing that many targets need. It is read once, by one call at a time.
#[derive(Debug)]
pub(super) struct Listing<T> {
    /// The rows, with the time at which they arrived.
    pub(super) rows: Option<(Instant, T)>,
    /// When the call for the rows began.
    begun: Option<Instant>,
    loading: Option<Instant>,
    /// A call that began before this proves nothing.
    forgotten: Option<Instant>,
    failure: Option<Failure>,
}

/// Failed readings in a row.
#[derive(Debug)]
struct Failure {
    times: u32,
    first: Instant,
    last: Instant,
    not_before: Instant,
    error: Error,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { rows: None, begun: None, loading: None, forgotten: None, failure: None }
    }
}

impl<T> Listing<T> {
    /// The rows, if they are at most `age` old.
    pub(super) fn fresh(&self, age: Duration, now: Instant) -> Option<&T> {
        self.rows.as_ref().filter(|(at, _)| now.duration_since(*at) <= age).map(|(_, rows)| rows)
    }

    pub(super) fn may_load(&self, now: Instant) -> bool {
        !self.is_loading() && self.not_before().is_none_or(|at| at <= now)
    }

    pub(super) const fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    pub(super) fn load(&mut self, now: Instant) {
        self.loading = Some(now);
    }

    /// Discards the rows, and those of a call in flight.
    pub(super) fn forget(&mut self, now: Instant) {
        self.rows = None;
        self.forgotten = self.loading.map(|_| now);
    }

    /// Whether the rows come from a call that began at `since` or later, so that what they lack did not exist at
    /// `since`.
    pub(super) fn began_since(&self, since: Instant) -> bool {
        self.rows.is_some() && self.begun.is_some_and(|begun| begun >= since)
    }

    pub(super) fn not_before(&self) -> Option<Instant> {
        self.failure.as_ref().map(|failure| failure.not_before)
    }

    /// Whether the last reading failed, and what to report.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let failure = self.failure.as_ref()?;
        let reason = reason(&failure.error)
            .filter(|reason| *reason != Reason::Throttled || failure.last.duration_since(failure.first) >= THROTTLED);
        Some(reason.map(|reason| (reason, failure.error.to_string())))
    }

    /// Takes the result of a reading. After a failure the rows stay as they were.
    pub(super) fn loaded(&mut self, result: Result<T, Error>, now: Instant) {
        let begun = self.loading.take().unwrap_or(now);
        match result {
            Ok(_) if self.forgotten.is_some_and(|at| begun <= at) => *self = Self::default(),
            Ok(rows) => *self = Self { rows: Some((now, rows)), begun: Some(begun), ..Self::default() },
            Err(error) => {
                let (times, first) = self.failure.as_ref().map_or((1, now), |f| (f.times.saturating_add(1), f.first));
                let longest = if error.kind == ErrorKind::Throttled { RETRY_THROTTLED } else { RETRY_LAST };
                let not_before = now + back_off(times).min(longest);
                self.failure = Some(Failure { times, first, last: now, not_before, error });
            }
        }
    }
}
