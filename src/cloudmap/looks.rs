//! When to ask whether an asynchronous operation has ended.

use std::time::Duration;

/// No look comes earlier, and none so soon after another one.
const SHORTEST: Duration = Duration::from_millis(20);
/// No first look comes later; AWS's operations take seconds.
const LONGEST: Duration = Duration::from_secs(10);
/// How much one operation changes the estimate (logarithmic).
const STEP: f64 = 0.1;

/// Learns how long operations take, and says when to look at one. A look that is too early costs a call and time: a
/// slot is held until the next one. A look that is too late costs time.
#[derive(Debug, Clone)]
pub struct Looks {
    /// The share of operations that have ended at the first look.
    share: f64,
    /// How much of an operation's age passes until it is looked at again.
    pause: f64,
    first: Duration,
}

impl Looks {
    /// For operations that somebody waits for: most are looked at several times.
    pub const fn often() -> Self {
        Self { share: 0.25, pause: 0.1, first: Duration::from_millis(100) }
    }

    /// For many operations at once, which share the rate of GetOperation: most are looked at once.
    pub const fn rarely() -> Self {
        Self { share: 0.8, pause: 0.4, first: Duration::from_secs(1) }
    }

    /// As [`Self::rarely`], but soon as long as it is not known how long operations take.
    pub const fn seldom() -> Self {
        Self { first: Self::often().first, ..Self::rarely() }
    }

    /// The age of an operation at its first look.
    pub const fn first(&self) -> Duration {
        self.first
    }

    /// How long after a look that found an operation running, at this age, the next one comes.
    pub fn again(&self, age: Duration) -> Duration {
        age.mul_f64(self.pause).clamp(SHORTEST, LONGEST)
    }

    /// An operation of this age was seen to have ended, at its first look or later.
    pub fn ended(&mut self, age: Duration, at_first: bool) {
        let change = if at_first { STEP * (self.share - 1.0) } else { STEP * self.share };
        let first = self.first.mul_f64(change.exp());
        // Far off: there quickly, but one operation that hangs proves little.
        let first = if at_first { first } else { first.max((age / 2).min(self.first * 2)) };
        self.first = first.clamp(SHORTEST, LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets operations of these durations in milliseconds end, and returns the looks at the last hundred and how much later
    /// than their end they were seen, both on average.
    fn run(mut looks: Looks, durations: impl Iterator<Item = u64>) -> (f64, f64) {
        let mut seen = Vec::new();
        for duration in durations.map(Duration::from_millis) {
            let (mut age, mut count) = (looks.first(), 1);
            while age < duration {
                age += looks.again(age);
                count += 1;
            }
            looks.ended(age, count == 1);
            seen.push((f64::from(count), age.saturating_sub(duration).as_secs_f64()));
        }
        let last = &seen[seen.len() - 100..];
        let mean = |value: fn(&(f64, f64)) -> f64| last.iter().map(value).sum::<f64>() / 100.0;
        (mean(|(count, _)| *count), mean(|(_, late)| *late))
    }

    /// From one to three seconds.
    fn like_aws() -> impl Iterator<Item = u64> {
        (0..400u64).map(|n| 1_000 + n * 7_919 % 2_000)
    }

    #[test]
    fn looks_come_when_operations_end() {
        for looks in [Looks::often(), Looks::rarely(), Looks::seldom()] {
            let (count, late) = run(looks, std::iter::repeat_n(100, 400));
            assert!(count < 2.0 && late < 0.02, "{count} looks, {late} s late");
        }
        let (count, late) = run(Looks::often(), like_aws());
        assert!(count < 6.0 && late < 0.15, "{count} looks, {late} s late");
        let (count, late) = run(Looks::rarely(), like_aws());
        assert!(count < 1.4 && late < 1.0, "{count} looks, {late} s late");
    }

    #[test]
    fn a_few_operations_teach_what_is_usual_and_one_that_hangs_is_forgotten() {
        let mut looks = Looks::often();
        for _ in 0..5 {
            looks.ended(Duration::from_secs(2), false);
        }
        assert!(looks.first() > Duration::from_millis(900), "{looks:?}");
        let before = looks.first();
        looks.ended(Duration::from_mins(1), false);
        assert!(looks.first() <= before * 2);
        for _ in 0..2_000 {
            looks.ended(looks.first(), true);
        }
        assert_eq!(looks.first(), SHORTEST);
    }
}
