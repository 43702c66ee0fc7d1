//! For how long a share has been reached, by the leader's own clock.

use std::time::Duration;

use api::CutoverStatus;

/// Counts the time in which a share is reached. Time by the wall clock is not used, so a clock that jumps makes no step
/// shorter. What an earlier leader counted is taken from the status, where it is written now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stopwatch {
    share: Option<i64>,
    waited: Duration,
    /// When it was last looked at, if the share was reached then.
    reached_at: Option<Duration>,
}

impl Stopwatch {
    /// For how long the share of this status has been reached. `is_reached` says whether it is at `mono`, the time since this
    /// replica leads.
    pub fn look(&mut self, status: &CutoverStatus, is_reached: bool, mono: Duration) -> Duration {
        if self.share != status.share_of_traffic {
            let waited = u64::try_from(status.waited_seconds.unwrap_or_default()).unwrap_or_default();
            *self = Self { share: status.share_of_traffic, waited: Duration::from_secs(waited), reached_at: None };
        }
        if let Some(before) = self.reached_at.filter(|_| is_reached) {
            self.waited += mono.saturating_sub(before);
        }
        self.reached_at = is_reached.then_some(mono);
        self.waited
    }
}
