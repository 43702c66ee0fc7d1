//! Metrics of the ledger, the instances and imports. They are read from their owners when somebody scrapes.

mod ledger;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus::{
    CounterVec, GaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::{sync::watch, time::Instant};

use ::ledger::driver::{LedgerHandle, Status};
use base::metrics::Register;
use cloudmap::Estimate;
use discovery::{DiscoveryFigures, NoEndpoint};
use instances::sync::SyncFigures;

/// The metrics. Clones are cheap.
#[derive(Debug, Clone)]
pub(super) struct LeaderMetrics {
    sources: Arc<Mutex<Sources>>,
}

#[derive(Debug, Default)]
struct Sources {
    ledger: Option<watch::Receiver<Arc<Status>>>,
    instances: Option<watch::Receiver<SyncFigures>>,
    discovery: Option<watch::Receiver<DiscoveryFigures>>,
}

impl LeaderMetrics {
    pub(super) fn new(registry: &impl Register, calls: cloudmap::Metrics) -> prometheus::Result<Self> {
        let sources = Arc::default();
        registry.register(Box::new(Scrape::new(Arc::clone(&sources), calls)?))?;
        Ok(Self { sources })
    }

    /// Shows the numbers of these sources from now on.
    pub(super) fn follow(
        &self,
        ledger: Option<&LedgerHandle>,
        instances: watch::Receiver<SyncFigures>,
        discovery: watch::Receiver<DiscoveryFigures>,
    ) {
        let ledger = ledger.map(LedgerHandle::status);
        *self.lock() = Sources { ledger, instances: Some(instances), discovery: Some(discovery) };
    }

    /// Shows nothing: this replica does not lead.
    pub(super) fn clear(&self) {
        *self.lock() = Sources::default();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the sources say at one time.
struct Seen {
    ledger: Option<Arc<Status>>,
    instances: Option<SyncFigures>,
    discovery: Option<DiscoveryFigures>,
    /// Of the calls since the start of the process.
    month: Estimate,
}

/// The values of a metric, with the value of its label if it has one.
type Values = Vec<(String, f64)>;

/// A metric and where it comes from.
struct Family {
    metric: Metric,
    read: Box<dyn Fn(&Seen) -> Values + Send + Sync>,
}

enum Metric {
    Gauge(GaugeVec),
    Counter(CounterVec),
}

impl Family {
    fn gauge(
        name: &str,
        help: &str,
        label: Option<&str>,
        read: impl Fn(&Seen) -> Values + Send + Sync + 'static,
    ) -> prometheus::Result<Self> {
        let labels: Vec<_> = label.into_iter().collect();
        Ok(Self { metric: Metric::Gauge(GaugeVec::new(Opts::new(name, help), &labels)?), read: Box::new(read) })
    }

    /// A total that starts at 0 in each term, which Prometheus takes for a restart.
    fn counter(
        name: &str,
        help: &str,
        read: impl Fn(&Seen) -> Values + Send + Sync + 'static,
    ) -> prometheus::Result<Self> {
        Ok(Self { metric: Metric::Counter(CounterVec::new(Opts::new(name, help), &[])?), read: Box::new(read) })
    }

    fn collector(&self) -> &dyn Collector {
        match &self.metric {
            Metric::Gauge(gauges) => gauges,
            Metric::Counter(counters) => counters,
        }
    }

    fn collect(&self, seen: &Seen) -> Vec<MetricFamily> {
        match &self.metric {
            Metric::Gauge(gauges) => {
                gauges.reset();
                for (label, value) in (self.read)(seen) {
                    gauges.with_label_values(&labels(&label)).set(value);
                }
            }
            Metric::Counter(counters) => {
                counters.reset();
                for (label, value) in (self.read)(seen) {
                    counters.with_label_values(&labels(&label)).inc_by(value);
                }
            }
        }
        self.collector().collect()
    }
}

fn labels(label: &str) -> Vec<&str> {
    if label.is_empty() { Vec::new() } else { vec![label] }
}

fn one(value: Option<f64>) -> Values {
    value.map(|value| (String::new(), value)).into_iter().collect()
}

/// One value of the instances.
fn instances(read: fn(&SyncFigures) -> f64) -> impl Fn(&Seen) -> Values + Send + Sync + 'static {
    move |seen| one(seen.instances.as_ref().map(read))
}

/// One value of imports from Cloud Map namespaces.
fn discovery(read: fn(&DiscoveryFigures) -> f64) -> impl Fn(&Seen) -> Values + Send + Sync + 'static {
    move |seen| one(seen.discovery.as_ref().map(read))
}

fn labelled<const N: usize>(values: [(&str, f64); N]) -> Values {
    values.map(|(label, value)| (label.to_owned(), value)).into()
}

fn of_the_instances() -> prometheus::Result<Vec<Family>> {
    Ok(vec![
        Family::gauge(
            "cloudmap_mcs_instances_targets",
            "Cloud Map services in which this cluster registers",
            None,
            instances(|figures| figures.targets as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_instances_registered",
            "Instances that this cluster has registered",
            None,
            instances(|figures| figures.registered as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_instances_queued_writes",
            "Registrations and deregistrations of instances that have not been sent to AWS yet",
            None,
            instances(|figures| figures.queued as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_instances_running_operations",
            "Registrations and deregistrations of instances that AWS has accepted and not completed yet",
            None,
            instances(|figures| figures.running as f64),
        )?,
        Family::counter(
            "cloudmap_mcs_instances_drifted_total",
            "Instances that drift checks found altered, missing or left over",
            instances(|figures| figures.drifted as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_instances_drift_period_seconds",
            "Period of the drift checks: in this time, the instances of every target are checked once",
            None,
            instances(|figures| figures.drift_period.as_secs_f64()),
        )?,
        Family::gauge(
            "cloudmap_mcs_share_targets",
            "Cloud Map services in which this cluster has a share of the traffic. The state is near (as near to the requested share as \
             whole pods allow) or limited (it needs more ready pods, or fewer instances of others)",
            Some("state"),
            |seen| {
                let Some(shares) = seen.instances.map(|figures| figures.shares) else { return Values::new() };
                let near = shares.targets - shares.limited;
                labelled([("near", near as f64), ("limited", shares.limited as f64)])
            },
        )?,
        Family::gauge(
            "cloudmap_mcs_share_mean_ratio",
            "Mean share of the traffic, from 0 to 1, over the Cloud Map services in which this cluster has a share. The share is requested, \
             reached by the registered pods, or reachable (the most that the ready pods can have)",
            Some("share"),
            |seen| {
                let shares = seen.instances.map(|figures| figures.shares).filter(|shares| shares.targets > 0);
                let Some(shares) = shares else { return Values::new() };
                let mean = |hundredths: usize| hundredths as f64 / 10_000.0 / shares.targets as f64;
                labelled([
                    ("requested", mean(shares.asked)),
                    ("reached", mean(shares.reached)),
                    ("reachable", mean(shares.reachable)),
                ])
            },
        )?,
        Family::gauge(
            "cloudmap_mcs_share_held_back_pods",
            "Ready pods that are not registered, because this cluster would have a larger share of the traffic than requested",
            None,
            instances(|figures| figures.shares.held_back as f64),
        )?,
    ])
}

fn of_imports() -> prometheus::Result<Vec<Family>> {
    Ok(vec![
        Family::gauge(
            "cloudmap_mcs_import_namespaces",
            "Cloud Map namespaces that are imported",
            None,
            discovery(|figures| figures.namespaces as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_import_unreadable_namespaces",
            "Imported Cloud Map namespaces that cannot be read",
            None,
            discovery(|figures| figures.unreadable_namespaces as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_import_services",
            "Cloud Map services in imported namespaces",
            None,
            discovery(|figures| figures.services as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_import_unreadable_services",
            "Cloud Map services in imported namespaces that cannot be read",
            None,
            discovery(|figures| figures.unreadable_services as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_import_instances",
            "Instances that are imported",
            None,
            discovery(|figures| figures.instances as f64),
        )?,
        Family::gauge(
            "cloudmap_mcs_import_period_seconds",
            "Time from one reading of a service in an imported Cloud Map namespace to the next. The services are idle, or active (they \
             changed within the last minute)",
            Some("services"),
            |seen| {
                seen.discovery.as_ref().map_or_else(Values::new, |figures| {
                    labelled([
                        ("idle", figures.idle_period.as_secs_f64()),
                        ("active", figures.active_period.as_secs_f64()),
                    ])
                })
            },
        )?,
        Family::gauge(
            "cloudmap_mcs_import_rejected_instances",
            "Instances in imported Cloud Map namespaces that cannot be endpoints",
            Some("reason"),
            |seen| {
                let figures = seen.discovery.iter();
                figures
                    .flat_map(|figures| NoEndpoint::CATEGORIES.iter().zip(figures.rejected))
                    .map(|(category, count)| ((*category).to_owned(), count as f64))
                    .collect()
            },
        )?,
    ])
}

fn of_costs() -> prometheus::Result<Vec<Family>> {
    let imports = |seen: &Seen| seen.discovery.as_ref().map(|figures| Estimate::of_discovery(figures.calls_per_second));
    Ok(vec![
        Family::gauge(
            "cloudmap_mcs_estimated_monthly_calls",
            "Estimate of calls per month. The calls are all, or discovery (those for which AWS charges), both at the pace since this process \
             started. On the leader also imports: reading imported Cloud Map namespaces at its current period",
            Some("of"),
            move |seen| {
                let mut values = labelled([("all", seen.month.calls), ("discovery", seen.month.discovery_calls)]);
                values.extend(imports(seen).map(|estimate| ("imports".to_owned(), estimate.calls)));
                values
            },
        )?,
        Family::gauge(
            "cloudmap_mcs_estimated_monthly_cost_usd",
            "Estimate of the price per month, in USD, of the calls that cloudmap_mcs_estimated_monthly_calls counts as discovery and \
             imports. Instances and pages cost extra",
            Some("of"),
            move |seen| {
                let mut values = labelled([("discovery", seen.month.usd)]);
                values.extend(imports(seen).map(|estimate| ("imports".to_owned(), estimate.usd)));
                values
            },
        )?,
    ])
}

struct Scrape {
    sources: Arc<Mutex<Sources>>,
    calls: cloudmap::Metrics,
    started: (Instant, cloudmap::Calls),
    families: Vec<Family>,
    /// Of two scrapes at once, each would add to the totals of the other, or miss what the other has just cleared.
    turn: Mutex<()>,
}

impl Scrape {
    fn new(sources: Arc<Mutex<Sources>>, calls: cloudmap::Metrics) -> prometheus::Result<Self> {
        let started = (Instant::now(), calls.snapshot());
        let families = [ledger::families()?, of_the_instances()?, of_imports()?, of_costs()?].into_iter().flatten();
        Ok(Self { sources, calls, started, families: families.collect(), turn: Mutex::default() })
    }

    fn seen(&self) -> Seen {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let (begun, before) = &self.started;
        Seen {
            ledger: sources.ledger.as_ref().map(|status| Arc::clone(&status.borrow())),
            instances: sources.instances.as_ref().map(|figures| *figures.borrow()),
            discovery: sources.discovery.as_ref().map(|figures| *figures.borrow()),
            month: self.calls.snapshot().per_month(before, begun.elapsed()),
        }
    }
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

impl Collector for Scrape {
    fn desc(&self) -> Vec<&Desc> {
        self.families.iter().flat_map(|family| family.collector().desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = self.seen();
        self.families.iter().flat_map(|family| family.collect(&seen)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use prometheus::{Registry, TextEncoder};

    use super::*;

    #[test]
    fn whoever_scrapes_at_the_same_time_sees_the_same_total() {
        let registry = Registry::new();
        let metrics = LeaderMetrics::new(&registry, cloudmap::Metrics::new(&registry).unwrap()).unwrap();
        let (_status, ledger) = watch::channel(Arc::new(Status { bytes_read: 5, ..Status::default() }));
        metrics.lock().ledger = Some(ledger);
        let scrape = || {
            for _ in 0..500 {
                let page = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
                let total = page.lines().find(|line| line.starts_with("cloudmap_mcs_ledger_read_bytes_total"));
                assert_eq!(total, Some("cloudmap_mcs_ledger_read_bytes_total 5"));
            }
        };
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(scrape);
            }
        });
    }
}
