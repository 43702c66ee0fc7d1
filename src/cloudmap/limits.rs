//! Request rates: one token bucket per operation, with a reserve that only the ledger may use.
//!
//! AWS throttles per account, region and operation, and does not publish the rates of the control plane;
//! [`Operation::rate`] has what is known. The clock is tokio's, so it stands still while a test pauses it.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Mutex as FairMutex,
    time::{Instant, sleep_until},
};

use super::{Lane, Metrics, Operation};

/// A throttled answer multiplies the rate of the instances lane by this factor.
const SLOW_DOWN: f64 = 0.5;
/// The rate never falls below this share: at 50 writes a second one or two remain, which is how the recovery is
/// noticed.
const SLOWEST: f64 = 0.03;
/// The rate never falls below this many calls a second either. All callers of `ListNamespaces` depend on this one call,
/// and in an account where others do not slow down, many calls fail.
const FEWEST: f64 = 0.25;
/// Share of the full rate that returns each second without a throttled answer: from the lowest to the full rate in 20
/// s.
const RECOVERY: f64 = 0.05;
/// All calls that were in flight together are throttled together, so they count as one.
const SLOW_DOWN_EVERY: Duration = Duration::from_secs(1);

/// Rate and burst of one operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests per second, greater than 0.
    pub per_second: f64,
    /// Requests that may follow each other at once after a pause, at least 1.
    pub burst: f64,
    /// Part of the burst that only [`Lane::Ledger`] may use, less than `burst`. It is the last part of the bucket, so a
    /// waiting ledger call is always served before any waiting call for instances.
    pub reserve: f64,
}

impl Rate {
    /// A rate of one operation.
    pub const fn new(per_second: f64, burst: f64, reserve: f64) -> Self {
        Self { per_second, burst, reserve }
    }
}

/// Rates of all operations.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates(BTreeMap<Operation, Rate>);

impl Default for Rates {
    /// The rates in the table of operations ([`Operation::rate`]).
    fn default() -> Self {
        Self(Operation::ALL.iter().map(|operation| (*operation, operation.rate())).collect())
    }
}

impl Rates {
    /// Replaces the rate of one operation.
    #[must_use]
    pub fn with(mut self, operation: Operation, rate: Rate) -> Self {
        self.0.insert(operation, rate);
        self
    }

    /// The rate of one operation.
    pub fn get(&self, operation: Operation) -> Rate {
        self.0[&operation]
    }
}

/// The token buckets of one account and region. Everything in the process that calls AWS shares them.
pub struct Limits {
    buckets: BTreeMap<Operation, Bucket>,
    metrics: Option<Metrics>,
}

struct Bucket {
    rate: Rate,
    state: Mutex<State>,
    /// First come, first served within a lane: the first in the queue sleeps while it holds this lock.
    ledger: FairMutex<()>,
    instances: FairMutex<()>,
}

struct State {
    level: f64,
    filled: Instant,
    /// Share of the rate that the instances lane gets: 1, unless AWS throttled recently.
    share: f64,
    slowed: Instant,
    /// When the instances lane may make its next call while it is slowed down.
    next: Instant,
}

impl Limits {
    /// Full buckets with these rates. `metrics` records how long calls wait.
    pub fn new(rates: &Rates, metrics: Option<Metrics>) -> Arc<Self> {
        let now = Instant::now();
        let bucket = |rate: Rate| Bucket {
            rate,
            state: Mutex::new(State { level: rate.burst, filled: now, share: 1.0, slowed: now, next: now }),
            ledger: FairMutex::new(()),
            instances: FairMutex::new(()),
        };
        let buckets = rates.0.iter().map(|(&operation, &rate)| (operation, bucket(rate))).collect();
        Arc::new(Self { buckets, metrics })
    }

    /// Waits until one request may be made. Cancel-safe: a caller that gives up takes no token.
    pub async fn acquire(&self, operation: Operation, lane: Lane) {
        let since = Instant::now();
        let bucket = &self.buckets[&operation];
        let queue = match lane {
            Lane::Ledger => &bucket.ledger,
            Lane::Instances => &bucket.instances,
        };
        let head = queue.lock().await;
        while let Some(turn) = bucket.take(lane) {
            sleep_until(turn).await;
        }
        drop(head);
        if let Some(metrics) = &self.metrics {
            metrics.waited(operation, lane, since.elapsed());
        }
    }

    /// Waits until the next page of a listing may be requested; the first page needs [`acquire`](Self::acquire). `outcome` is
    /// that of the request before.
    pub async fn acquire_page(&self, operation: Operation, lane: Lane, outcome: &'static str) {
        if let Some(metrics) = &self.metrics {
            metrics.page(operation, outcome);
        }
        self.acquire(operation, lane).await;
    }

    /// Reports that AWS throttled a request, of either lane. The instances lane slows down.
    pub fn throttled(&self, operation: Operation) {
        self.buckets[&operation].throttled();
    }

    /// The share of its rate that the instances lane currently gets: 1, or less while AWS throttles.
    pub fn share(&self, operation: Operation) -> f64 {
        let bucket = &self.buckets[&operation];
        bucket.lock().share_at(Instant::now())
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits").finish_non_exhaustive()
    }
}

impl Bucket {
    /// Takes a token, or returns when to try again.
    fn take(&self, lane: Lane) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.lock();
        let filled = now.duration_since(state.filled).as_secs_f64() * self.rate.per_second;
        state.level = (state.level + filled).min(self.rate.burst);
        state.filled = now;

        let needed = match lane {
            Lane::Ledger => 1.0,
            Lane::Instances => {
                if state.next > now {
                    return Some(state.next);
                }
                1.0 + self.rate.reserve
            }
        };
        // A token that lacks only a rounding error counts. Otherwise the wait below could be too short for time to
        // pass.
        if state.level + 1e-6 >= needed {
            state.level -= 1.0;
            if lane == Lane::Instances {
                let share = state.share_at(now);
                if share < 1.0 {
                    state.next = now + Duration::from_secs_f64(1.0 / (self.rate.per_second * share));
                }
            }
            return None;
        }
        // Timers have a resolution of one millisecond.
        let wait = Duration::from_secs_f64((needed - state.level) / self.rate.per_second);
        Some(now + wait.max(Duration::from_millis(1)))
    }

    fn throttled(&self) {
        let now = Instant::now();
        let mut state = self.lock();
        let share = state.share_at(now);
        if share < 1.0 && now.duration_since(state.slowed) < SLOW_DOWN_EVERY {
            return;
        }
        state.share = (share * SLOW_DOWN).max(SLOWEST).max((FEWEST / self.rate.per_second).min(1.0));
        state.slowed = now;
        state.next = now + Duration::from_secs_f64(1.0 / (self.rate.per_second * state.share));
        state.level = state.level.min(self.rate.reserve);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn share_at(&self, now: Instant) -> f64 {
        (self.share + now.duration_since(self.slowed).as_secs_f64() * RECOVERY).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Operation = Operation::RegisterInstance;

    fn limits(rate: Rate) -> Arc<Limits> {
        Limits::new(&Rates::default().with(WRITE, rate), None)
    }

    /// Number of calls that the instances lane gets in a given time.
    async fn granted(limits: &Limits, time: Duration) -> u32 {
        let mut count = 0;
        let _ = tokio::time::timeout(time, async {
            loop {
                limits.acquire(WRITE, Lane::Instances).await;
                count += 1;
            }
        })
        .await;
        count
    }

    #[tokio::test(start_paused = true)]
    async fn grants_the_burst_at_once_and_then_the_rate() {
        let limits = limits(Rate::new(50.0, 100.0, 40.0));
        assert_eq!(granted(&limits, Duration::from_millis(1)).await, 60, "all of the burst but the reserve");
        let in_ten_seconds = granted(&limits, Duration::from_secs(10)).await;
        assert!((495..=501).contains(&in_ten_seconds), "{in_ten_seconds}");
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_queued_instances_never_delay_the_ledger() {
        let limits = limits(Rate::new(50.0, 100.0, 40.0));
        let queue: Vec<_> = (0..10_000)
            .map(|_| {
                let limits = limits.clone();
                tokio::spawn(async move { limits.acquire(WRITE, Lane::Instances).await })
            })
            .collect();
        let mut worst = Duration::ZERO;
        // One head write each second and a flush of forty pages every ten seconds: as much as a busy ledger writes.
        for second in 0..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let writes = if second % 10 == 9 { 40 } else { 1 };
            for _ in 0..writes {
                let since = Instant::now();
                limits.acquire(WRITE, Lane::Ledger).await;
                worst = worst.max(since.elapsed());
            }
        }
        assert!(queue.iter().any(|queued| !queued.is_finished()), "the queue was there all the time");
        assert!(queue.iter().any(tokio::task::JoinHandle::is_finished), "and moved");
        // At most the time for one token: no instance is ever served before a waiting ledger call.
        assert!(worst <= Duration::from_millis(21), "{worst:?}");
        for queued in queue {
            queued.abort();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_ledger_may_use_the_whole_rate() {
        let limits = limits(Rate::new(50.0, 100.0, 40.0));
        let since = Instant::now();
        for _ in 0..200 {
            limits.acquire(WRITE, Lane::Ledger).await;
        }
        assert!(since.elapsed() <= Duration::from_millis(2_100), "{:?}", since.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn the_ledger_can_list_namespaces_no_matter_who_else_does() {
        let limits = Limits::new(&Rates::default(), None);
        let listing = async {
            loop {
                limits.acquire(Operation::ListNamespaces, Lane::Instances).await;
            }
        };
        let _: Result<(), _> = tokio::time::timeout(Duration::from_mins(1), listing).await;
        let since = Instant::now();
        limits.acquire(Operation::ListNamespaces, Lane::Ledger).await;
        assert_eq!(since.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn throttling_slows_instances_for_a_while_but_never_the_ledger() {
        let limits = limits(Rate::new(50.0, 100.0, 40.0));
        assert!(granted(&limits, Duration::from_secs(10)).await > 500);
        for _ in 0..64 {
            limits.throttled(WRITE);
        }
        assert!((0.49..0.51).contains(&limits.share(WRITE)), "one burst of answers counts once");

        let since = Instant::now();
        limits.acquire(WRITE, Lane::Ledger).await;
        assert_eq!(since.elapsed(), Duration::ZERO);

        let first = granted(&limits, Duration::from_secs(1)).await;
        assert!((20..=30).contains(&first), "{first}");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!((limits.share(WRITE) - 1.0).abs() < f64::EPSILON);
        granted(&limits, Duration::from_millis(1)).await;
        let recovered = granted(&limits, Duration::from_secs(10)).await;
        assert!((495..=501).contains(&recovered), "{recovered}");
    }

    #[tokio::test(start_paused = true)]
    async fn long_throttling_never_stops_the_instances() {
        let limits = limits(Rate::new(50.0, 100.0, 40.0));
        for _ in 0..20 {
            limits.throttled(WRITE);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        limits.throttled(WRITE);
        assert!(granted(&limits, Duration::from_secs(5)).await >= 5);
    }

    #[tokio::test(start_paused = true)]
    async fn long_throttling_leaves_a_slow_operation_one_call_in_four_seconds() {
        let limits = limits(Rate::new(0.5, 5.0, 1.0));
        for _ in 0..20 {
            limits.throttled(WRITE);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        for _ in 0..10 {
            limits.throttled(WRITE);
            let since = Instant::now();
            limits.acquire(WRITE, Lane::Instances).await;
            assert!(since.elapsed() <= Duration::from_secs(4), "{:?}", since.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_takes_no_token() {
        let limits = limits(Rate::new(1.0, 1.0, 0.0));
        limits.acquire(WRITE, Lane::Instances).await;
        let gave_up = tokio::time::timeout(Duration::from_millis(10), limits.acquire(WRITE, Lane::Instances)).await;
        assert!(gave_up.is_err());
        let since = Instant::now();
        limits.acquire(WRITE, Lane::Instances).await;
        assert!(since.elapsed() <= Duration::from_secs(1));
    }
}
