//! Metrics of the ledger, the instances and imports. They are read from their owners when somebody scrapes.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{
    Gauge, GaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::{sync::watch, time::Instant};

use crate::{
    cloudmap::{self, Estimate},
    discovery::{self, NoEndpoint},
    instances::sync,
    ledger::driver::{LedgerHandle, Status},
};

/// The metrics. Clones are cheap.
#[derive(Debug, Clone)]
pub(super) struct LeaderMetrics {
    sources: Arc<Mutex<Sources>>,
}

#[derive(Debug, Default)]
struct Sources {
    ledger: Option<watch::Receiver<Arc<Status>>>,
    instances: Option<watch::Receiver<sync::SyncFigures>>,
    discovery: Option<watch::Receiver<discovery::DiscoveryFigures>>,
}

impl LeaderMetrics {
    pub(super) fn new(registry: &Registry, calls: cloudmap::Metrics) -> prometheus::Result<Self> {
        let sources = Arc::default();
        let collector = Scrape::new(Arc::clone(&sources), calls)?;
        registry.register(Box::new(collector))?;
        Ok(Self { sources })
    }

    /// Shows the numbers of these sources from now on.
    pub(super) fn follow(
        &self,
        ledger: Option<&LedgerHandle>,
        instances: watch::Receiver<sync::SyncFigures>,
        discovery: watch::Receiver<discovery::DiscoveryFigures>,
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

#[derive(Debug)]
struct Scrape {
    sources: Arc<Mutex<Sources>>,
    calls: cloudmap::Metrics,
    started: (Instant, cloudmap::Calls),
    ledger: GaugeVec,
    remote_lag: GaugeVec,
    remote_silent: GaugeVec,
    instances: GaugeVec,
    drift_period: Gauge,
    import_sources: GaugeVec,
    import_period: GaugeVec,
    rejected: GaugeVec,
    month: GaugeVec,
}

impl Scrape {
    fn new(sources: Arc<Mutex<Sources>>, calls: cloudmap::Metrics) -> prometheus::Result<Self> {
        let vec = |name: &str, help: &str, label: &str| GaugeVec::new(Opts::new(name, help), &[label]);
        let started = (Instant::now(), calls.snapshot());
        Ok(Self {
            sources,
            calls,
            started,
            ledger: vec("cloudmap_mcs_ledger", "The own ledger, since this replica leads", "figure")?,
            remote_lag: vec(
                "cloudmap_mcs_remote_lag_seconds",
                "Time from the writing of a cluster's newest change, by its clock, to its application here",
                "cluster",
            )?,
            remote_silent: vec(
                "cloudmap_mcs_remote_silent_seconds",
                "How long the ledger of a cluster has not advanced",
                "cluster",
            )?,
            instances: vec("cloudmap_mcs_instances", "Instances in Cloud Map", "figure")?,
            drift_period: Gauge::new(
                "cloudmap_mcs_instances_drift_period_seconds",
                "Time in which the instances of every target are checked once",
            )?,
            import_sources: vec(
                "cloudmap_mcs_import_sources",
                "What is imported from Cloud Map namespaces, and how much of it could not be read",
                "figure",
            )?,
            import_period: vec(
                "cloudmap_mcs_import_period_seconds",
                "Time from one reading of a service in an imported Cloud Map namespace to the next",
                "services",
            )?,
            rejected: vec(
                "cloudmap_mcs_import_rejected_instances",
                "Instances in imported Cloud Map namespaces that cannot be endpoints",
                "reason",
            )?,
            month: vec(
                "cloudmap_mcs_estimated_month",
                "Cloud Map calls, discovery calls and their price in USD per month, at the pace since the start",
                "figure",
            )?,
        })
    }

    fn update(&self) {
        let of_the_leader = [
            &self.ledger,
            &self.remote_lag,
            &self.remote_silent,
            &self.instances,
            &self.import_sources,
            &self.import_period,
            &self.rejected,
            &self.month,
        ];
        for gauges in of_the_leader {
            gauges.reset();
        }
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(status) = &sources.ledger {
            self.update_ledger(&status.borrow());
        }
        if let Some(figures) = &sources.instances {
            let figures = *figures.borrow();
            for (name, value) in [
                ("targets", figures.targets as f64),
                ("registered", figures.registered as f64),
                ("queued_writes", figures.queued as f64),
                ("running_operations", figures.running as f64),
                ("drifted_total", figures.drifted as f64),
            ] {
                self.instances.with_label_values(&[name]).set(value);
            }
            self.drift_period.set(figures.drift_period.as_secs_f64());
        }
        if let Some(figures) = &sources.discovery {
            self.update_discovery(&figures.borrow());
        }
        let (begun, before) = &self.started;
        let estimate = self.calls.snapshot().per_month(before, begun.elapsed());
        for (name, value) in
            [("calls", estimate.calls), ("discovery_calls", estimate.discovery_calls), ("usd", estimate.usd)]
        {
            self.month.with_label_values(&[name]).set(value);
        }
    }

    fn update_discovery(&self, figures: &discovery::DiscoveryFigures) {
        for (name, value) in [
            ("namespaces", figures.namespaces),
            ("unreadable_namespaces", figures.unreadable_namespaces),
            ("services", figures.services),
            ("unreadable_services", figures.unreadable_services),
            ("instances", figures.instances),
        ] {
            self.import_sources.with_label_values(&[name]).set(value as f64);
        }
        for (services, period) in [("idle", figures.idle_period), ("active", figures.active_period)] {
            self.import_period.with_label_values(&[services]).set(period.as_secs_f64());
        }
        for (category, count) in NoEndpoint::CATEGORIES.iter().zip(figures.rejected) {
            self.rejected.with_label_values(&[category]).set(count as f64);
        }
        let estimate = Estimate::of_discovery(figures.calls_per_second);
        self.month.with_label_values(&["import_calls"]).set(estimate.calls);
        self.month.with_label_values(&["import_usd"]).set(estimate.usd);
    }

    fn update_ledger(&self, status: &Status) {
        let figures = &status.figures;
        for (name, value) in [
            ("epoch", status.epoch as f64),
            ("delta_occupancy", figures.delta_occupancy),
            ("data_pages", figures.data_pages as f64),
            ("index_pages", figures.index_pages as f64),
            ("garbage_pages", figures.garbage_pages as f64),
            ("shards", f64::from(figures.shards)),
            ("head_writes_total", figures.head_writes as f64),
            ("page_writes_total", figures.page_writes as f64),
            ("page_deletions_total", figures.page_deletions as f64),
            ("flushes_total", figures.flushes as f64),
            ("flushes_abandoned_total", figures.flushes_abandoned as f64),
            ("flush_quota_waits_total", figures.flush_quota_waits as f64),
            ("full_flushes_total", figures.full_flushes as f64),
            ("flush_seconds", figures.flush_duration.unwrap_or_default().as_secs_f64()),
            ("publish_latency_seconds", figures.publish_latency.unwrap_or_default().as_secs_f64()),
            ("bytes_read_total", status.bytes_read as f64),
            ("ignored_heads", status.ignored.len() as f64),
        ] {
            self.ledger.with_label_values(&[name]).set(value);
        }
        for (cluster, remote) in &status.remotes {
            self.remote_silent.with_label_values(&[&**cluster]).set(remote.silent.as_secs_f64());
            if let Some(lag) = remote.lag {
                self.remote_lag.with_label_values(&[&**cluster]).set(lag.as_secs_f64());
            }
        }
    }

    fn all(&self) -> [&dyn Collector; 9] {
        [
            &self.ledger,
            &self.remote_lag,
            &self.remote_silent,
            &self.instances,
            &self.drift_period,
            &self.import_sources,
            &self.import_period,
            &self.rejected,
            &self.month,
        ]
    }
}

impl Collector for Scrape {
    fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.update();
        self.all().into_iter().flat_map(Collector::collect).collect()
    }
}
