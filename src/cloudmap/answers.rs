//! Whether AWS answers the calls of this process.

use std::time::Duration;

use tokio::time::Instant;

/// After this time without an answer, AWS counts as out of reach. A short outage changes nothing.
pub const OUT_OF_REACH_AFTER: Duration = Duration::from_mins(1);

/// Who has made no call for so long needs AWS for nothing. Calls that fail are repeated within a minute.
const STILL_CALLS: Duration = Duration::from_mins(2);

/// When AWS last answered a call, and since when calls have had no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answers {
    last: Option<Instant>,
    /// The ends of the first and the last call since then that had no answer.
    failed: Option<(Instant, Instant)>,
}

impl Answers {
    /// A call has ended.
    pub(super) fn ended(&mut self, answered: bool, now: Instant) {
        if answered {
            *self = Self { last: Some(now), failed: None };
        } else {
            let first = self.failed.map_or(now, |(first, _)| first);
            self.failed = Some((first, now));
        }
    }

    /// When AWS last answered.
    pub fn last(&self) -> Option<Instant> {
        self.last
    }

    /// For how long calls have had no answer, if this process still makes calls and AWS counts as out of reach
    /// ([`OUT_OF_REACH_AFTER`]).
    pub fn unanswered(&self, now: Instant) -> Option<Duration> {
        let (first, last) = self.failed?;
        let out_of_reach = last.duration_since(first) >= OUT_OF_REACH_AFTER;
        (out_of_reach && now.duration_since(last) < STILL_CALLS).then(|| now.duration_since(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aws_is_out_of_reach_when_calls_of_a_minute_had_no_answer_and_calls_are_still_made() {
        let (yes, no) = (true, false);
        // Calls (when they end, in seconds, and whether AWS answers), the time, and for how long calls had no answer.
        for (calls, now, unanswered) in [
            (&[(0, yes)][..], 500, None),
            (&[], 500, None),
            (&[(0, no)], 500, None),
            (&[(0, no), (59, no)], 100, None),
            (&[(0, no), (60, no)], 60, Some(60)),
            (&[(0, yes), (10, no), (65, no)], 69, None),
            (&[(0, yes), (10, no), (40, no), (70, no)], 75, Some(65)),
            (&[(0, no), (50, yes), (60, no), (110, no)], 115, None),
            (&[(0, no), (60, no), (61, yes)], 62, None),
            (&[(0, no), (60, no)], 179, Some(179)),
            (&[(0, no), (60, no)], 180, None),
            (&[(0, no), (60, no), (900, no)], 900, Some(900)),
        ] {
            let began = Instant::now();
            let at = |seconds| began + Duration::from_secs(seconds);
            let mut answers = Answers::default();
            for (end, answered) in calls {
                answers.ended(*answered, at(*end));
            }
            let expected = unanswered.map(Duration::from_secs);
            assert_eq!(answers.unanswered(at(now)), expected, "{calls:?} at {now}");
            let last = calls.iter().rev().find(|(_, answered)| *answered).map(|(end, _)| at(*end));
            assert_eq!(answers.last(), last, "{calls:?}");
        }
    }
}
