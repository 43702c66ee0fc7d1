//! Whether AWS answers the calls of this process, and lets it in.

use std::time::Duration;

use tokio::time::Instant;

/// After this time without an answer, AWS counts as out of reach. A short outage changes nothing.
pub const OUT_OF_REACH_AFTER: Duration = Duration::from_mins(1);

/// Who has made no call for so long needs AWS for nothing. Calls that fail are repeated within a minute.
const STILL_CALLS: Duration = Duration::from_mins(2);

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// AWS did as it was asked, or refused it for a reason other than a permission.
    Given,
    /// AWS denied it.
    Denied,
    /// It is not certain that AWS answered.
    Missing,
}

/// When AWS last answered a call, and since when calls have had no answer, or were all denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answers {
    last: Option<Instant>,
    /// The ends of the first and the last call since then that had no answer.
    failed: Option<(Instant, Instant)>,
    /// The ends of the first and the last call that was denied, with no other answer in between.
    denied: Option<(Instant, Instant)>,
}

impl Answers {
    /// A call has ended.
    pub(super) fn ended(&mut self, answer: Answer, now: Instant) {
        let until_now = |since: Option<(Instant, Instant)>| Some((since.map_or(now, |(first, _)| first), now));
        match answer {
            Answer::Given => *self = Self { last: Some(now), ..Self::default() },
            Answer::Denied => *self = Self { denied: until_now(self.denied), ..Self::default() },
            Answer::Missing => self.failed = until_now(self.failed),
        }
    }

    /// When AWS last answered, if it has denied nothing since.
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

    /// How long ago AWS began to deny every call that it answers, if this process still makes calls.
    pub fn denied(&self, now: Instant) -> Option<Duration> {
        let (first, last) = self.denied?;
        (now.duration_since(last) < STILL_CALLS).then(|| now.duration_since(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aws_is_out_of_reach_when_calls_of_a_minute_had_no_answer_and_calls_are_still_made() {
        let (yes, no) = (Answer::Given, Answer::Missing);
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
            for (end, answer) in calls {
                answers.ended(*answer, at(*end));
            }
            let expected = unanswered.map(Duration::from_secs);
            assert_eq!(answers.unanswered(at(now)), expected, "{calls:?} at {now}");
            let last = calls.iter().rev().find(|(_, answer)| *answer == yes).map(|(end, _)| at(*end));
            assert_eq!(answers.last(), last, "{calls:?}");
        }
    }

    #[test]
    fn denials_last_until_another_answer_and_show_that_aws_is_within_reach() {
        use Answer::{Denied, Given, Missing};
        // Calls, the time, for how long calls had no answer, and for how long they were denied.
        for (calls, now, unanswered, denied) in [
            (&[(0, Denied)][..], 10, None, Some(10)),
            (&[(0, Denied), (70, Denied)], 75, None, Some(75)),
            (&[(0, Denied), (40, Given), (60, Denied)], 75, None, Some(15)),
            (&[(0, Denied), (70, Given)], 75, None, None),
            (&[(0, Denied), (30, Missing), (70, Denied)], 75, None, Some(75)),
            (&[(0, Missing), (50, Denied), (70, Missing)], 75, None, Some(25)),
            (&[(0, Denied), (10, Missing), (80, Missing)], 85, Some(75), Some(85)),
            (&[(0, Denied), (70, Denied)], 190, None, None),
        ] {
            let began = Instant::now();
            let at = |seconds| began + Duration::from_secs(seconds);
            let mut answers = Answers::default();
            for (end, answer) in calls {
                answers.ended(*answer, at(*end));
            }
            let [unanswered, denied] = [unanswered, denied].map(|seconds| seconds.map(Duration::from_secs));
            assert_eq!(answers.unanswered(at(now)), unanswered, "{calls:?} at {now}");
            assert_eq!(answers.denied(at(now)), denied, "{calls:?} at {now}");
        }
    }
}
