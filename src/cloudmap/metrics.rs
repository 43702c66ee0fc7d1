//! Counters of the calls to Cloud Map, and their cost.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, core::Collector};
use tokio::time::Instant;

use super::{Answers, Lane, Operation, Plane, answers::Answer};
use base::metrics::Register;

/// A month as AWS bills it, 730 hours.
const MONTH: Duration = Duration::from_hours(730);

/// Counters of calls, their durations and their waits for the request rate, and whether AWS answers. Clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    calls: IntCounterVec,
    duration: HistogramVec,
    wait: HistogramVec,
    answers: Arc<Mutex<Answers>>,
}

impl Metrics {
    /// Creates and registers the metrics of the home.
    ///
    /// # Errors
    /// The registry of metrics already has them.
    pub fn new(metrics: &impl Register) -> Result<Self, prometheus::Error> {
        Self::of(metrics, "")
    }

    /// The same of the registry with this name, which is not the home.
    ///
    /// # Errors
    /// The registry of metrics already has them.
    pub fn of(registry: &impl Register, name: &str) -> Result<Self, prometheus::Error> {
        let buckets = || vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
        let metrics = Self {
            calls: IntCounterVec::new(
                Opts::new(
                    "cloudmap_mcs_aws_calls_total",
                    "Calls to AWS Cloud Map; each page counts. The outcome is ok, not_found, already_exists, duplicate, \
                     in_use, limit_exceeded, throttled, access_denied, no_credentials, invalid_input, unknown or other. The registry \
                     is empty for the home",
                )
                .const_label("registry", name),
                &["operation", "outcome"],
            )?,
            duration: HistogramVec::new(
                HistogramOpts::new("cloudmap_mcs_aws_call_duration_seconds", "Duration of calls to AWS Cloud Map")
                    .buckets(buckets())
                    .const_label("registry", name),
                &["operation"],
            )?,
            wait: HistogramVec::new(
                HistogramOpts::new(
                    "cloudmap_mcs_aws_limiter_wait_seconds",
                    "Time that calls waited for the rate limit of their operation; the lane is ledger or instances",
                )
                .buckets(buckets())
                .const_label("registry", name),
                &["operation", "lane"],
            )?,
            answers: Arc::default(),
        };
        registry.register(Box::new(metrics.calls.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        registry.register(Box::new(metrics.wait.clone()))?;
        Ok(metrics)
    }

    pub(super) fn called(&self, operation: Operation, outcome: &'static str, duration: Duration) {
        self.calls.with_label_values(&[operation.name(), outcome]).inc();
        self.duration.with_label_values(&[operation.name()]).observe(duration.as_secs_f64());
    }

    /// A call has ended: AWS answered, or did not.
    pub(super) fn ended(&self, answer: Answer) {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).ended(answer, Instant::now());
    }

    /// When AWS last answered, and since when it has not, or denies everything.
    pub fn answers(&self) -> Answers {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request of a listing that another one follows. The last one counts as the call itself.
    pub(super) fn page(&self, operation: Operation, outcome: &'static str) {
        self.calls.with_label_values(&[operation.name(), outcome]).inc();
    }

    pub(super) fn waited(&self, operation: Operation, lane: Lane, wait: Duration) {
        let lane = match lane {
            Lane::Ledger => "ledger",
            Lane::Instances => "instances",
        };
        self.wait.with_label_values(&[operation.name(), lane]).observe(wait.as_secs_f64());
    }

    /// All calls so far.
    pub fn snapshot(&self) -> Calls {
        let mut calls = BTreeMap::new();
        for family in self.calls.collect() {
            for metric in family.get_metric() {
                let label =
                    |name| metric.get_label().iter().find(|l| l.name() == name).map_or("", |l| l.value()).to_owned();
                calls.insert((label("operation"), label("outcome")), metric.get_counter().get_value() as u64);
            }
        }
        Calls(calls)
    }
}

/// Numbers of calls by operation and outcome. The outcome is `ok` or an
/// [`ErrorKind::category`](super::ErrorKind::category).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Calls(BTreeMap<(String, String), u64>);

impl Calls {
    /// Operation, outcome and number of calls.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.0.iter().map(|((operation, outcome), &count)| (operation.as_str(), outcome.as_str(), count))
    }

    /// Number of all calls.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Number of calls of one operation.
    pub fn of(&self, operation: Operation) -> u64 {
        self.iter().filter(|(name, ..)| *name == operation.name()).map(|(.., count)| count).sum()
    }

    /// The calls and price of a month at the pace between `earlier` and this snapshot.
    ///
    /// Registered instances have a price of their own (0.10 USD per instance and month), which is not included.
    pub fn per_month(&self, earlier: &Self, elapsed: Duration) -> Estimate {
        let months = MONTH.as_secs_f64() / elapsed.as_secs_f64().max(1.0);
        let grown = |now: u64, then: u64| now.saturating_sub(then) as f64 * months;
        let calls = grown(self.total(), earlier.total());
        let mut estimate = Estimate { calls, discovery_calls: 0.0, usd: 0.0 };
        for operation in Operation::ALL {
            let (calls, plane) = (grown(self.of(*operation), earlier.of(*operation)), operation.plane());
            estimate.usd += calls / 1e6 * plane.usd_per_million_calls();
            if plane == Plane::Discovery {
                estimate.discovery_calls += calls;
            }
        }
        estimate
    }
}

/// Calls and price of a month at the current pace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// All calls.
    pub calls: f64,
    /// Calls of `DiscoverInstances`.
    pub discovery_calls: f64,
    /// Price of all calls in US dollars.
    pub usd: f64,
}

impl Estimate {
    /// The price of `per_second` discovery calls a second.
    pub fn of_discovery(per_second: f64) -> Self {
        let calls = per_second * MONTH.as_secs_f64();
        Self { calls, discovery_calls: calls, usd: calls / 1e6 * Plane::Discovery.usd_per_million_calls() }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn a_discovery_a_second_costs_about_two_and_a_half_dollars_a_month() {
        let metrics = Metrics::new(&Registry::new()).unwrap();
        let before = metrics.snapshot();
        for _ in 0..60 {
            metrics.called(Operation::DiscoverInstances, "ok", Duration::from_millis(5));
        }
        metrics.called(Operation::RegisterInstance, "throttled", Duration::from_millis(5));
        let after = metrics.snapshot();
        assert_eq!((after.total(), after.of(Operation::DiscoverInstances)), (61, 60));
        assert!(after.iter().any(|call| call == ("RegisterInstance", "throttled", 1)));
        let estimate = after.per_month(&before, Duration::from_mins(1));
        assert!((2.6..2.7).contains(&estimate.usd), "{estimate:?}");
        assert!((estimate.usd - Estimate::of_discovery(1.0).usd).abs() < 1e-9);
    }
}
