//! Request rates: one token bucket per operation, with a reserve that only the ledger may use.
//!
//! AWS throttles per account, region and operation, and does not publish the rates of the control plane; see
//! [`Operation::rate`] for what is known. The time is tokio's, so that it stands still where a test pauses it.

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

/// How hard one throttled answer slows the instances lane down, and how fast it recovers.
const SLOW_DOWN: f64 = 0.5;
/// Never slower than this share of the rate: at 50 writes a second still one or two, which is how recovery is noticed.
const SLOWEST: f64 = 0.03;
/// Nor fewer calls a second than this, however low the rate: those who wait for a listing of namespaces wait for it alone.
const FEWEST: f64 = 0.1;
/// Share of the full rate that comes back each second without a throttled answer: from the slowest to full in 20 s.
const RECOVERY: f64 = 0.05;
/// All calls that were in flight together are throttled together: they count as one.
const SLOW_DOWN_EVERY: Duration = Duration::from_secs(1);

/// Rate and burst of one operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests per second, greater than 0.
    pub per_second: f64,
    /// Requests that may follow each other at once after a quiet time, at least 1.
    pub burst: f64,
    /// Part of the burst that only [`Lane::Ledger`] may use, less than `burst`. Because it is the last part of the
    /// bucket, a waiting ledger call is always served before any waiting instance call.
    pub reserve: f64,
}

impl Rate {
    pub const fn new(per_second: f64, burst: f64, reserve: f64) -> Self {
        Self { per_second, burst, reserve }
    }
}

/// Rates of all operations.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates(BTreeMap<Operation, Rate>);

impl Default for Rates {
    /// Those of the table of operations ([`Operation::rate`]).
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

    pub fn get(&self, operation: Operation) -> Rate {
        self.0[&operation]
    }
}

/// The buckets of one account and region, shared by everything in the process that calls AWS.
pub struct Limits {
    buckets: BTreeMap<Operation, Bucket>,
    metrics: Option<Metrics>,
}

struct Bucket {
    rate: Rate,
    state: Mutex<State>,
    /// First come, first served within a lane: who is at the head of the queue sleeps while it holds this.
    ledger: FairMutex<()>,
    instances: FairMutex<()>,
}

struct State {
    level: f64,
    filled: Instant,
    /// Share of the rate that the instances lane takes, 1 unless AWS throttled lately.
    share: f64,
    slowed: Instant,
    /// The instances lane's next turn while it is slowed down.
    next: Instant,
}

impl Limits {
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

    /// Waits for the turn of one request. Cancel-safe: a caller that goes away takes nothing.
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

    /// Waits for the turn of a further page of a listing, whose first page its caller has paid for.
    pub async fn acquire_page(&self, operation: Operation) {
        if let Some(metrics) = &self.metrics {
            metrics.page(operation);
        }
        self.acquire(operation, Lane::Instances).await;
    }

    /// AWS throttled a request, from whichever lane: the instances lane makes room.
    pub fn throttled(&self, operation: Operation) {
        self.buckets[&operation].throttled();
    }

    /// The share of its rate that the instances lane takes at present: 1, or less while AWS throttles.
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
    /// Takes a token, or says when to try again.
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
        // A token that is short by a rounding error is there: else the wait below would be too short to pass time.
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
        // Timers have a resolution of a millisecond.
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

    /// Grants to the instances lane during a time.
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
        // A head write each second and a flush of forty pages every ten: as much as a busy ledger writes.
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
        // At most the time in which one token is made: no instance is ever served before a waiting ledger call.
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
    async fn the_ledger_finds_its_namespace_whoever_else_lists() {
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
    async fn throttling_slows_instances_but_not_the_ledger_and_passes() {
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
    async fn throttling_for_long_never_stops_the_instances() {
        let limits = limits(Rate::new(50.0, 100.0, 40.0));
        for _ in 0..20 {
            limits.throttled(WRITE);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        limits.throttled(WRITE);
        assert!(granted(&limits, Duration::from_secs(5)).await >= 5);
    }

    #[tokio::test(start_paused = true)]
    async fn throttling_for_long_leaves_a_slow_operation_a_call_in_ten_seconds() {
        let limits = limits(Rate::new(0.5, 5.0, 1.0));
        for _ in 0..20 {
            limits.throttled(WRITE);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        for _ in 0..10 {
            limits.throttled(WRITE);
            let since = Instant::now();
            limits.acquire(WRITE, Lane::Instances).await;
            assert!(since.elapsed() <= Duration::from_secs(10), "{:?}", since.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_takes_nothing() {
        let limits = limits(Rate::new(1.0, 1.0, 0.0));
        limits.acquire(WRITE, Lane::Instances).await;
        let gave_up = tokio::time::timeout(Duration::from_millis(10), limits.acquire(WRITE, Lane::Instances)).await;
        assert!(gave_up.is_err());
        let since = Instant::now();
        limits.acquire(WRITE, Lane::Instances).await;
        assert!(since.elapsed() <= Duration::from_secs(1));
    }
}
