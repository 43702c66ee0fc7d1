//! Metrics of the Kubernetes API. No object names in labels.

use prometheus::{GaugeVec, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, histogram_opts, opts};

use super::watches::Caches;
use base::metrics::Register;

/// The metrics of this module. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Objects in each cache, by `kind`.
    pub(super) cache_objects: IntGaugeVec,
    /// 1 while a cache has its first complete list, by `kind`.
    pub(super) cache_synced: IntGaugeVec,
    /// Seconds since the API server last answered for a cache, by `kind`.
    cache_age: GaugeVec,
    /// Failed lists and watches, by `kind` and `reason`.
    pub(super) watch_errors: IntCounterVec,
    /// Objects that could not be parsed, by `kind`. Each occurrence counts.
    pub(super) invalid_objects: IntCounterVec,
    /// Calls, by `verb`, `kind` and `outcome`.
    pub(super) calls: IntCounterVec,
    /// Duration of calls in seconds, by `verb` and `kind`.
    pub(super) call_seconds: HistogramVec,
    /// Events, by `outcome`.
    pub(super) events: IntCounterVec,
    /// 1 while this replica holds the Lease.
    pub(super) leader: IntGauge,
}

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// The registry already has a metric with one of these names.
    pub fn new(registry: &impl Register) -> prometheus::Result<Self> {
        let metrics = Self {
            cache_objects: IntGaugeVec::new(
                opts!("cloudmap_mcs_kubernetes_cache_objects", "Objects in the caches of the Kubernetes API"),
                &["kind"],
            )?,
            cache_synced: IntGaugeVec::new(
                opts!("cloudmap_mcs_kubernetes_cache_synced", "1 once a cache has been filled completely"),
                &["kind"],
            )?,
            cache_age: GaugeVec::new(
                opts!(
                    "cloudmap_mcs_kubernetes_cache_age_seconds",
                    "Time since the API server last sent anything for a cache. The cache can be behind by this time. It is up to 60 s if nothing \
                     changes"
                ),
                &["kind"],
            )?,
            watch_errors: IntCounterVec::new(
                opts!(
                    "cloudmap_mcs_kubernetes_watch_errors_total",
                    "Lists and watches of the Kubernetes API that failed. The reason is timeout, silence, connection, \
                     not_found, forbidden, unauthorized, throttled or api"
                ),
                &["kind", "reason"],
            )?,
            invalid_objects: IntCounterVec::new(
                opts!("cloudmap_mcs_kubernetes_invalid_objects_total", "Objects that could not be parsed"),
                &["kind"],
            )?,
            calls: IntCounterVec::new(
                opts!("cloudmap_mcs_kubernetes_calls_total", "Calls of the Kubernetes API, without watches"),
                &["verb", "kind", "outcome"],
            )?,
            call_seconds: HistogramVec::new(
                histogram_opts!(
                    "cloudmap_mcs_kubernetes_call_duration_seconds",
                    "Duration of calls of the Kubernetes API, without watches",
                    vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]
                ),
                &["verb", "kind"],
            )?,
            events: IntCounterVec::new(
                opts!(
                    "cloudmap_mcs_kubernetes_events_total",
                    "Events about users' objects. The outcome is ok, repeated (emitted within the last 10 minutes), \
                     failed or timeout"
                ),
                &["outcome"],
            )?,
            leader: IntGauge::with_opts(opts!("cloudmap_mcs_leader", "1 while this replica holds the Lease"))?,
        };
        registry.register(Box::new(metrics.cache_objects.clone()))?;
        registry.register(Box::new(metrics.cache_synced.clone()))?;
        registry.register(Box::new(metrics.cache_age.clone()))?;
        registry.register(Box::new(metrics.watch_errors.clone()))?;
        registry.register(Box::new(metrics.invalid_objects.clone()))?;
        registry.register(Box::new(metrics.calls.clone()))?;
        registry.register(Box::new(metrics.call_seconds.clone()))?;
        registry.register(Box::new(metrics.events.clone()))?;
        registry.register(Box::new(metrics.leader.clone()))?;
        Ok(metrics)
    }

    /// Updates the age of the caches. Call it when the metrics are read.
    pub fn observe(&self, caches: &Caches) {
        for (kind, age) in caches.ages() {
            self.cache_age.with_label_values(&[kind]).set(age.as_secs_f64());
        }
    }
}
