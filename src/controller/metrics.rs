//! Metrics of exporting and importing. No names of objects in labels, and of namespaces only a few.

use std::{sync::Arc, time::Duration};

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, histogram_opts, opts};

use api::{CutoverPhase, conditions::GateReason};
use base::metrics::Register;
use export::{Resource, Used};
use import::Serving;
use ledger::remote::Remotes;
use model::ClusterId;

/// Number of Kubernetes namespaces whose use of their quota is shown: those that are nearest to a limit.
pub(super) const MOST_NAMESPACES: usize = 10;

/// The metrics of the controller. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Metrics {
    reconciles: HistogramVec,
    skipped: IntCounterVec,
    blocked: IntCounter,
    stale: IntGauge,
    unverified: IntGauge,
    cluster_stale: IntGaugeVec,
    cluster_unreachable: IntGaugeVec,
    cluster_expired: IntGaugeVec,
    excluded: IntGaugeVec,
    queued: IntGauge,
    clusters: IntGauge,
    services: IntGauge,
    annotated_objects: IntGauge,
    annotated_refused: IntGauge,
    dropped_events: IntCounter,
    waiting_pods: IntGauge,
    gates_opened: IntCounterVec,
    serving: IntGaugeVec,
    cutovers: IntGaugeVec,
    quota_used: IntGaugeVec,
    quota_limit: IntGaugeVec,
    quota_refused: IntGauge,
}

impl Metrics {
    /// Counts Events that were dropped.
    pub(super) fn dropped_events(&self) -> IntCounter {
        self.dropped_events.clone()
    }

    /// Registers the metrics.
    ///
    /// # Errors
    /// The registry already has a metric with one of these names.
    pub fn new(registry: &impl Register) -> prometheus::Result<Self> {
        let metrics = Self {
            reconciles: HistogramVec::new(
                histogram_opts!(
                    "cloudmap_mcs_reconcile_duration_seconds",
                    "Duration of reconciling one name; the outcome is ok or the kind of error",
                    vec![0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]
                ),
                &["outcome"],
            )?,
            skipped: IntCounterVec::new(
                opts!("cloudmap_mcs_import_skipped_addresses_total", "Addresses that were left out of imports"),
                &["reason"],
            )?,
            blocked: IntCounter::with_opts(opts!(
                "cloudmap_mcs_import_blocked_total",
                "Imports that are refused because of a foreign object. Each attempt counts; while it lasts, there is one at least every 10 minutes"
            ))?,
            stale: IntGauge::with_opts(opts!(
                "cloudmap_mcs_stale_clusters",
                "Clusters whose ledger has not advanced for more than 5 minutes"
            ))?,
            unverified: IntGauge::with_opts(opts!(
                "cloudmap_mcs_unverified_clusters",
                "Clusters whose ledger this leader has not been able to read in its term"
            ))?,
            cluster_unreachable: IntGaugeVec::new(
                opts!(
                    "cloudmap_mcs_cluster_unreachable",
                    "1 while the network from this cluster to another one is gone, so that its endpoints serve only if no others do"
                ),
                &["remote_cluster"],
            )?,
            cluster_stale: IntGaugeVec::new(
                opts!(
                    "cloudmap_mcs_cluster_stale",
                    "1 while the ledger of a cluster has not advanced for more than 5 minutes"
                ),
                &["remote_cluster"],
            )?,
            cluster_expired: IntGaugeVec::new(
                opts!(
                    "cloudmap_mcs_cluster_expired",
                    "1 once the endpoints of a stale cluster are withdrawn (--stale-cluster-ttl)"
                ),
                &["remote_cluster"],
            )?,
            excluded: IntGaugeVec::new(
                opts!(
                    "cloudmap_mcs_import_policy_excluded_names",
                    "Names of which a ClusterImportPolicy leaves an export or endpoints out, in namespaces of this cluster"
                ),
                &["policy"],
            )?,
            queued: IntGauge::with_opts(opts!("cloudmap_mcs_queue_length", "Names that wait to be reconciled"))?,
            clusters: IntGauge::with_opts(opts!("cloudmap_mcs_clusters", "Clusters of the ClusterSet that are known"))?,
            services: IntGauge::with_opts(opts!("cloudmap_mcs_services", "Names that any known cluster exports"))?,
            dropped_events: IntCounter::with_opts(opts!(
                "cloudmap_mcs_events_dropped_total",
                "Events that were dropped because newer ones waited. At most 1,024 wait, and 8 with one reason about one object"
            ))?,
            annotated_objects: IntGauge::with_opts(opts!(
                "cloudmap_mcs_annotated_objects",
                "Services and Ingresses whose annotations request names in Cloud Map"
            ))?,
            annotated_refused: IntGauge::with_opts(opts!(
                "cloudmap_mcs_annotated_refused_names",
                "Names that annotations request and that are not registered, conflicts included"
            ))?,
            waiting_pods: IntGauge::with_opts(opts!(
                "cloudmap_mcs_gates_waiting_pods",
                "Pods that wait for nothing but the readiness gate cloudmap-mcs/registered"
            ))?,
            serving: IntGaugeVec::new(
                opts!(
                    "cloudmap_mcs_import_selections",
                    "Imports with a cluster selection or with drained clusters, by who serves: nearest (the first tier alone), farther, nobody"
                ),
                &["serving"],
            )?,
            gates_opened: IntCounterVec::new(
                opts!(
                    "cloudmap_mcs_gates_opened_total",
                    "Readiness gates that were opened, by the reason of the condition"
                ),
                &["reason"],
            )?,
            quota_used: IntGaugeVec::new(
                opts!(
                    "cloudmap_mcs_namespace_quota_used",
                    "What the objects of a Kubernetes namespace use of its quota (--namespace-quota), of the 10 namespaces that are nearest to a limit"
                ),
                &["kubernetes_namespace", "resource"],
            )?,
            quota_limit: IntGaugeVec::new(
                opts!("cloudmap_mcs_namespace_quota_limit", "The quota of the same namespaces"),
                &["kubernetes_namespace", "resource"],
            )?,
            quota_refused: IntGauge::with_opts(opts!(
                "cloudmap_mcs_quota_refused_objects",
                "Exports and annotated objects of which something is left out, because their namespace has used up its quota or the cluster has no room"
            ))?,
            cutovers: IntGaugeVec::new(opts!("cloudmap_mcs_cutovers", "Cutovers, by phase"), &["phase"])?,
        };
        registry.register(Box::new(metrics.cutovers.clone()))?;
        registry.register(Box::new(metrics.quota_used.clone()))?;
        registry.register(Box::new(metrics.quota_limit.clone()))?;
        registry.register(Box::new(metrics.quota_refused.clone()))?;
        registry.register(Box::new(metrics.waiting_pods.clone()))?;
        registry.register(Box::new(metrics.gates_opened.clone()))?;
        registry.register(Box::new(metrics.serving.clone()))?;
        registry.register(Box::new(metrics.reconciles.clone()))?;
        registry.register(Box::new(metrics.skipped.clone()))?;
        registry.register(Box::new(metrics.blocked.clone()))?;
        registry.register(Box::new(metrics.stale.clone()))?;
        registry.register(Box::new(metrics.unverified.clone()))?;
        registry.register(Box::new(metrics.cluster_stale.clone()))?;
        registry.register(Box::new(metrics.cluster_unreachable.clone()))?;
        registry.register(Box::new(metrics.cluster_expired.clone()))?;
        registry.register(Box::new(metrics.excluded.clone()))?;
        registry.register(Box::new(metrics.queued.clone()))?;
        registry.register(Box::new(metrics.clusters.clone()))?;
        registry.register(Box::new(metrics.services.clone()))?;
        registry.register(Box::new(metrics.annotated_objects.clone()))?;
        registry.register(Box::new(metrics.annotated_refused.clone()))?;
        registry.register(Box::new(metrics.dropped_events.clone()))?;
        Ok(metrics)
    }

    pub(super) fn reconciled(&self, outcome: &'static str, duration: Duration) {
        self.reconciles.with_label_values(&[outcome]).observe(duration.as_secs_f64());
    }

    pub(super) fn skipped_address(&self, reason: &'static str) {
        self.skipped.with_label_values(&[reason]).inc();
    }

    pub(super) fn blocked(&self) {
        self.blocked.inc();
    }

    pub(super) fn measured(&self, queued: usize, clusters: usize, services: usize) {
        for (gauge, value) in [(&self.queued, queued), (&self.clusters, clusters), (&self.services, services)] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn annotated(&self, (objects, refused): (usize, usize)) {
        for (gauge, value) in [(&self.annotated_objects, objects), (&self.annotated_refused, refused)] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn serving(&self, counts: [usize; 3]) {
        for (serving, count) in Serving::ALL.into_iter().zip(counts) {
            self.serving.with_label_values(&[serving.as_str()]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Which of the clusters cannot be reached.
    pub(super) fn unreachable<'a>(&self, clusters: impl Iterator<Item = (&'a ClusterId, bool)>) {
        self.cluster_unreachable.reset();
        for (cluster, is_unreachable) in clusters {
            self.cluster_unreachable.with_label_values(&[cluster.as_str()]).set(is_unreachable.into());
        }
    }

    /// Of how many names each ClusterImportPolicy leaves something out.
    pub(super) fn excluded<'a>(&self, names: impl Iterator<Item = (&'a Arc<str>, usize)>) {
        self.excluded.reset();
        for (policy, count) in names {
            self.excluded.with_label_values(&[&**policy]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn waiting_pods(&self, count: usize) {
        self.waiting_pods.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn quotas(&self, (nearest, refused): &(Vec<Used>, usize)) {
        self.quota_refused.set(i64::try_from(*refused).unwrap_or(i64::MAX));
        // Others may be nearest now.
        self.quota_used.reset();
        self.quota_limit.reset();
        for Used { namespace, used, quota } in nearest {
            for resource in Resource::ALL {
                for (gauge, usage) in [(&self.quota_used, used), (&self.quota_limit, &quota.0)] {
                    let value = i64::try_from(usage.of(resource)).unwrap_or(i64::MAX);
                    gauge.with_label_values(&[&**namespace, resource.as_str()]).set(value);
                }
            }
        }
    }

    pub(super) fn cutovers(&self, phases: impl IntoIterator<Item = (CutoverPhase, usize)>) {
        for (phase, count) in phases {
            self.cutovers.with_label_values(&[phase.as_str()]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn gate_opened(&self, reason: GateReason) {
        self.gates_opened.with_label_values(&[reason.as_str()]).inc();
    }

    /// Shows nothing that only a leader knows: whoever leads next may see something else. Counters stay.
    pub(super) fn clear(&self) {
        self.measured(0, 0, 0);
        self.annotated((0, 0));
        self.waiting_pods(0);
        self.quotas(&(Vec::new(), 0));
        self.stale.set(0);
        self.unverified.set(0);
        let Self { cluster_stale, cluster_unreachable, cluster_expired, excluded, cutovers, .. } = self;
        for gauges in [cluster_stale, cluster_unreachable, cluster_expired, excluded, cutovers] {
            gauges.reset();
        }
    }

    pub(super) fn adopted(&self, remotes: &Remotes) {
        let count = |wanted: fn(&ledger::remote::Remote) -> bool| {
            i64::try_from(remotes.clusters.values().filter(|remote| wanted(remote)).count()).unwrap_or(i64::MAX)
        };
        self.stale.set(count(|remote| remote.stale.is_some() && !remote.left));
        self.unverified.set(count(|remote| remote.state.is_none() && !remote.left && !remote.expired));
        self.cluster_stale.reset();
        self.cluster_expired.reset();
        for (cluster, remote) in remotes.clusters.iter().filter(|(_, remote)| !remote.left) {
            self.cluster_stale.with_label_values(&[cluster.as_str()]).set(remote.stale.is_some().into());
            self.cluster_expired.with_label_values(&[cluster.as_str()]).set(remote.expired.into());
        }
    }
}
