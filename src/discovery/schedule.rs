//! When each discovered service is read next.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// Minimum time between two readings of a service that changes.
const ACTIVE: Duration = Duration::from_secs(1);
/// Minimum time between two readings of a service that does not change. With the duration of a call and the wait for a
/// turn, the controller sees a change within 5 s.
const IDLE: Duration = Duration::from_secs(4);
/// How long a service counts as changing after a change.
const RESTLESS: Duration = Duration::from_mins(1);
/// The part of the budget from which periods are computed. The rest is for repeated readings after changes, and for new
/// services.
const PLANNED: f64 = 0.9;
/// Maximum pause after failures. It doubles, starting at [`ACTIVE`].
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// The times between two readings.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Periods {
    pub(super) idle: Duration,
    pub(super) active: Duration,
    /// Number of readings per second that follow from these times.
    pub(super) per_second: f64,
}

impl Periods {
    /// The periods for `services` services, of which `active` changed recently, and a budget in calls per second.
    ///
    /// All services get the idle period first. It is longer if the budget is not enough for [`IDLE`]. The active
    /// services share the rest of the budget.
    pub(super) fn new(services: usize, active: usize, budget: f64) -> Self {
        let (all, active_ones, budget) = (services as f64, active as f64, budget * PLANNED);
        let idle = IDLE.as_secs_f64().max(all / budget);
        let spare = (budget - all / idle).max(0.0);
        let active_period = if active == 0 { ACTIVE.as_secs_f64() } else { 1.0 / (1.0 / idle + spare / active_ones) };
        let active_period = active_period.max(ACTIVE.as_secs_f64()).min(idle);
        Self {
            idle: Duration::from_secs_f64(idle),
            active: Duration::from_secs_f64(active_period),
            per_second: (all - active_ones) / idle + active_ones / active_period,
        }
    }
}

/// The turns of services; `K` identifies a service.
#[derive(Debug)]
pub(super) struct Schedule<K> {
    budget: f64,
    tokens: f64,
    filled: Instant,
    turns: BTreeMap<K, Turn>,
}

#[derive(Debug)]
struct Turn {
    /// When the last reading began.
    last: Option<Instant>,
    changed: Option<Instant>,
    asked: bool,
    failures: u32,
    not_before: Instant,
}

impl Turn {
    fn is_active(&self, now: Instant) -> bool {
        self.changed.is_some_and(|changed| now.duration_since(changed) < RESTLESS)
    }

    fn due(&self, now: Instant, periods: &Periods) -> Instant {
        let period = if self.is_active(now) { periods.active } else { periods.idle };
        self.last.map_or(self.not_before, |last| (last + period).max(self.not_before))
    }
}

impl<K: Ord + Clone> Schedule<K> {
    /// An empty schedule. `budget` is in calls per second, greater than 0.
    pub(super) fn new(budget: f64, now: Instant) -> Self {
        Self { budget, tokens: budget.max(1.0), filled: now, turns: BTreeMap::new() }
    }

    /// Adds a service, which is due at once.
    pub(super) fn insert(&mut self, key: K, now: Instant) {
        let turn = || Turn { last: None, changed: None, asked: false, failures: 0, not_before: now };
        self.turns.entry(key).or_insert_with(turn);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    pub(super) fn remove(&mut self, key: &K) {
        self.turns.remove(key);
    }

    /// The service to read now, if any.
    pub(super) fn next(&mut self, now: Instant) -> Option<K> {
        self.refill(now);
        if self.tokens < 1.0 {
            return None;
        }
        let (key, _) = self.first_due(now).filter(|(_, due)| *due <= now)?;
        let turn = self.turns.get_mut(&key)?;
        (turn.asked, turn.last) = (true, Some(now));
        self.tokens -= 1.0;
        Some(key)
    }

    /// Notes a reading that took `further_calls` calls in addition to the first one.
    pub(super) fn done(&mut self, key: &K, changed: bool, further_calls: u32, now: Instant) {
        self.tokens -= f64::from(further_calls);
        if let Some(turn) = self.turns.get_mut(key) {
            (turn.asked, turn.failures) = (false, 0);
            if changed {
                turn.changed = Some(now);
            }
        }
    }

    /// Notes a failed reading. The service is read again later, and later after each failure.
    pub(super) fn failed(&mut self, key: &K, further_calls: u32, now: Instant) {
        self.tokens -= f64::from(further_calls);
        if let Some(turn) = self.turns.get_mut(key) {
            turn.not_before = now + ACTIVE.saturating_mul(1 << turn.failures.min(6)).min(LONGEST_WAIT);
            (turn.asked, turn.failures) = (false, turn.failures.saturating_add(1));
        }
    }

    /// As [`failed`](Self::failed), for a turn that took no call.
    pub(super) fn skipped(&mut self, key: &K, now: Instant) {
        self.tokens += 1.0;
        self.failed(key, 0, now);
    }

    /// When to call [`next`](Self::next) again.
    pub(super) fn wake(&self, now: Instant) -> Option<Instant> {
        let (_, due) = self.first_due(now)?;
        let missing = (1.0 - self.tokens).max(0.0) / self.budget;
        Some(due.max(self.filled + Duration::from_secs_f64(missing)))
    }

    pub(super) fn periods(&self, now: Instant) -> Periods {
        let active = self.turns.values().filter(|turn| turn.is_active(now)).count();
        Periods::new(self.turns.len(), active, self.budget)
    }

    fn first_due(&self, now: Instant) -> Option<(K, Instant)> {
        let periods = self.periods(now);
        let waiting = self.turns.iter().filter(|(_, turn)| !turn.asked);
        let (key, due) = waiting.map(|(key, turn)| (key, turn.due(now, &periods))).min_by_key(|(_, due)| *due)?;
        Some((key.clone(), due))
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * self.budget).min(self.budget.max(1.0));
        self.filled = now;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGET: f64 = crate::reader::CALLS_PER_SECOND;

    /// Reads like the reader does for `seconds`. Each reading takes `latency`, and `changes` returns which services
    /// differ. Returns the times of the readings of each service in milliseconds.
    fn run(
        services: u32,
        budget: f64,
        seconds: u64,
        latency: u64,
        changes: impl Fn(u32, u64) -> bool,
    ) -> BTreeMap<u32, Vec<u64>> {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut schedule = Schedule::new(budget, start);
        for service in 0..services {
            schedule.insert(service, start);
        }
        let mut looks: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut running: Vec<(u64, u32)> = Vec::new();
        for ms in (0..seconds * 1000).step_by(10) {
            for (_, service) in running.extract_if(.., |(until, _)| *until <= ms) {
                schedule.done(&service, changes(service, ms), 0, at(ms));
            }
            while let Some(service) = schedule.next(at(ms)) {
                looks.entry(service).or_default().push(ms);
                running.push((ms + latency, service));
            }
        }
        looks
    }

    fn longest_gap(looks: &[u64]) -> u64 {
        looks.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(u64::MAX)
    }

    #[tokio::test(start_paused = true)]
    async fn two_hundred_services_are_read_often_enough_no_matter_which_others_change() {
        for restless in [0, 1, 20, 200] {
            let looks = run(200, BUDGET, 120, 100, |service, _| service < restless);
            let worst = looks.values().map(|looks| longest_gap(looks)).max().unwrap();
            assert!(worst <= 4_500, "{restless} restless: {worst} ms");
            assert_eq!(looks.len(), 200);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_changing_service_is_read_more_often_for_a_while() {
        let looks = run(50, BUDGET, 300, 50, |service, ms| service == 7 && ms < 20_000);
        let during = |from: u64, to: u64| looks[&7].iter().filter(|ms| (from..to).contains(ms)).count();
        assert!((9..=11).contains(&during(30_000, 40_000)), "{}", during(30_000, 40_000));
        assert!(during(200_000, 220_000) <= 5, "{}", during(200_000, 220_000));
        let idle = looks[&8].iter().filter(|ms| (30_000..50_000).contains(*ms)).count();
        assert!((4..=5).contains(&idle), "{idle}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_reading_of_all_services_is_as_fast_as_the_budget_allows() {
        let looks = run(600, BUDGET, 30, 50, |_, _| false);
        let first = looks.values().map(|looks| looks[0]).max().unwrap();
        assert!(looks.len() == 600 && first <= 11_000, "{first} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_service_waits_longer_and_longer_and_takes_no_turn_of_others() {
        let start = Instant::now();
        let mut schedule = Schedule::new(BUDGET, start);
        schedule.insert("bad", start);
        schedule.insert("good", start);
        let (mut bad, mut good) = (0, 0);
        for second in 0..300 {
            let now = start + Duration::from_secs(second);
            while let Some(key) = schedule.next(now) {
                if key == "bad" {
                    bad += 1;
                    schedule.failed(&key, 0, now);
                } else {
                    good += 1;
                    schedule.done(&key, false, 0, now);
                }
            }
        }
        assert!((8..=12).contains(&bad) && good == 75, "{bad} {good}");
        assert!(schedule.wake(start + Duration::from_mins(5)).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn further_calls_count_against_the_budget() {
        let start = Instant::now();
        let mut schedule = Schedule::new(2.0, start);
        schedule.insert((), start);
        assert_eq!(schedule.next(start), Some(()));
        schedule.done(&(), false, 21, start);
        assert_eq!(schedule.next(start + Duration::from_secs(10)), None);
        assert_eq!(schedule.wake(start + Duration::from_secs(9)), Some(start + Duration::from_millis(10_500)));
        assert_eq!(schedule.next(start + Duration::from_secs(11)), Some(()));
    }

    #[test]
    fn the_period_grows_with_the_services_beyond_the_budget() {
        let idle = |services, budget| Periods::new(services, 0, budget).idle.as_secs_f64();
        assert!((idle(1, BUDGET) - 4.0).abs() < 1e-9 && (idle(200, BUDGET) - 4.0).abs() < 1e-9);
        assert!((idle(1000, BUDGET) - 1000.0 / (BUDGET * PLANNED)).abs() < 1e-6);
        assert!((idle(10, 0.5) - 10.0 / 0.45).abs() < 1e-6);
    }

    proptest! {
        #[test]
        fn the_periods_keep_the_budget_and_their_order(
            services in 0usize..5_000, part in 0.0f64..=1.0, budget in 0.1f64..500.0,
        ) {
            let active = (services as f64 * part) as usize;
            let periods = Periods::new(services, active, budget);
            prop_assert!(periods.per_second <= budget + 1e-6, "{:?}", periods);
            prop_assert!(periods.idle >= IDLE && periods.active <= periods.idle && periods.active >= ACTIVE);
            // Changes of some services do not make readings of others less frequent.
            prop_assert_eq!(periods.idle, Periods::new(services, 0, budget).idle);
        }

    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn nobody_starves(services in 1u32..60, budget in 1.0f64..40.0, restless in 0u32..60, latency in 5u64..400) {
            let looks = run(services, budget, 120, latency, |service, _| service < restless);
            let periods = Periods::new(services as usize, 0, budget);
            let bound = periods.idle.as_millis() as u64 * 2 + 1_000 + latency;
            for service in 0..services {
                let looks = looks.get(&service).map(Vec::as_slice).unwrap_or_default();
                let end = 120_000 - looks.last().copied().unwrap_or_default();
                prop_assert!(longest_gap(looks).max(end) <= bound || periods.idle.as_secs() > 50, "{} {:?}", service, looks);
            }
            let calls: usize = looks.values().map(Vec::len).sum();
            prop_assert!(calls as f64 <= budget * 121.0 + 1.0);
        }
    }
}
