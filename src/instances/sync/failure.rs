//! Calls that fail: when they are tried again, and from which failure on they are reported.

use std::time::Duration;

use tokio::time::Instant;

use super::Reason;
use cloudmap::{Error, ErrorKind};

/// First and longest pause before something that failed is tried again.
const RETRY_FIRST: Duration = Duration::from_secs(1);
pub(super) const RETRY_LAST: Duration = Duration::from_mins(1);

/// The pause after the n-th failure in a row, counted from 1.
pub(super) fn back_off(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(RETRY_LAST)
}

/// Calls that failed, one after the other.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    pub(super) failures: u32,
    pub(super) not_before: Option<Instant>,
    /// What the user should know of it, if anything.
    pub(super) problem: Trouble,
}

impl Attempts {
    /// Whether there may be another one now.
    pub(super) fn may(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// One failed. There is another one later. Returns when.
    pub(super) fn fail(&mut self, error: &Error, now: Instant) -> Instant {
        self.failures += 1;
        let (wait, problem) = consequence(error, self.failures);
        self.problem = problem.or(self.problem.take());
        *self.not_before.insert(now + wait)
    }

    /// One succeeded. (Others may have to wait all the same.)
    pub(super) fn succeeded(&mut self) {
        (self.failures, self.problem) = (0, None);
    }
}

/// How long to wait after so many failures in a row, and what is reported, if it lasts.
fn consequence(error: &Error, failures: u32) -> (Duration, Option<(Reason, String)>) {
    let Some(reason) = reason(error) else { return (back_off(failures), None) };
    let hopeless = matches!(reason, Reason::AccessDenied | Reason::LimitExceeded);
    let wait = if hopeless { RETRY_LAST } else { back_off(failures) };
    (wait, (failures > reason.hiccups()).then(|| (reason, error.to_string())))
}

impl Reason {
    /// Number of failures in a row that are not reported.
    pub(super) const fn hiccups(self) -> u32 {
        match self {
            Self::Failed => 2,
            // Half a minute: several clusters share the rates of an account.
            Self::Throttled => 5,
            _ => 0,
        }
    }
}

/// What the user should know about a failed call; `None` if it is only a matter of time.
pub(super) fn reason(error: &Error) -> Option<Reason> {
    match error.kind {
        ErrorKind::LimitExceeded => Some(Reason::LimitExceeded),
        ErrorKind::AccessDenied => Some(Reason::AccessDenied),
        ErrorKind::Throttled => Some(Reason::Throttled),
        ErrorKind::NoZone => Some(Reason::NoNamespace),
        ErrorKind::Duplicate { .. } | ErrorKind::NotFound | ErrorKind::InUse => None,
        _ => Some(Reason::Failed),
    }
}

/// What the user should know about a failure, if anything yet.
pub(super) type Trouble = Option<(Reason, String)>;
