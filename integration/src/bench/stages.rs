//! The stages of the benchmark. Each leaves the clusters as the next one wants them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, ensure};
use kube::{Client, Config, config::KubeConfigOptions};
use rand::RngExt as _;
use serde_json::json;

use super::{
    arrivals::Arrivals,
    exposition::{api_writes, samples},
    figure::{Figure, percentile},
    http,
    load::{self, Load},
    process,
    registry::{self, Registry},
};
use crate::emulator::Counters;

/// How fast exports are created.
const EXPORTS_PER_SECOND: f64 = 200.0;
/// The ledger is read once a second: a pause drawn from a whole period starts the next change at any phase of it.
const PAUSE: std::ops::Range<f64> = 0.3..1.3;
/// How long nobody may have written before a cluster counts as settled: the ledger collects garbage after 120 s.
const SETTLED: Duration = Duration::from_secs(125);
/// After this long without what is waited for something is broken.
const PATIENCE: Duration = Duration::from_mins(10);
/// The operation that drift checks of instances, and nothing else, consist of. All others count as the ledger's.
const DRIFT_CHECK: &str = "ListInstances";
const DRIFT_PERIOD: &str = "cloudmap_mcs_instances_drift_period_seconds";

/// What is measured. Each stage implies those before it that it builds on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// The time until 100 services have arrived.
    Small,
    /// The time until all services have arrived.
    Large,
    /// Calls and writes while nothing changes.
    Idle,
    /// The time that one changed endpoint takes, and what it costs.
    Change,
    /// Endpoints that change all the time.
    Sustained,
    /// Resident memory with all services.
    Memory,
    /// Sizes of image and binary.
    Image,
}

/// A cluster, its controller, and where both are.
#[derive(Debug, Clone)]
pub struct Member {
    /// Cluster id, which is also the access key id of its controller.
    pub id: String,
    /// Context of the kubeconfig.
    pub context: String,
    /// Process id of its controller.
    pub pid: u32,
    /// Address of its controller's probes and metrics.
    pub admin: String,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub stages: Vec<Stage>,
    pub exporter: Member,
    pub importer: Member,
    /// Address of the emulator.
    pub registry: String,
    pub services: usize,
    pub endpoints: usize,
    pub changes: usize,
    /// How long nothing is done for the idle figures.
    pub idle: Duration,
    /// Changes a second, and for how long, for the figures of sustained change.
    pub rate: u16,
    pub sustained: Duration,
    /// Whether leaders tell each other their endpoints.
    pub stream: bool,
    pub image: Option<PathBuf>,
    pub compressed_image: Option<PathBuf>,
    pub binary: Option<PathBuf>,
}

/// A cluster as the benchmark sees it.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) member: Member,
    cluster: Client,
    pub(super) admin: Client,
}

impl Side {
    async fn new(member: &Member) -> anyhow::Result<Self> {
        let options = KubeConfigOptions { context: Some(member.context.clone()), ..Default::default() };
        let config = Config::from_kubeconfig(&options)
            .await
            .with_context(|| format!("failed to read the kubeconfig's context {}", member.context))?;
        Ok(Self { member: member.clone(), cluster: Client::try_from(config)?, admin: http::client(&member.admin)? })
    }

    /// Writes that its API server has counted.
    async fn api_writes(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        Ok(api_writes(&http::text(&self.cluster, "/metrics").await?))
    }

    async fn costs(&self, registry: &Registry) -> anyhow::Result<Costs> {
        Ok(Costs {
            kubernetes_writes: self.api_writes().await?,
            processor_seconds: process::processor_time(self.member.pid)?,
            calls: registry.counters().await?,
            at: Instant::now(),
        })
    }

    /// What the cluster cost since `before`; told on the way, because it says why a figure is what it is.
    async fn spent(&self, registry: &Registry, before: &Costs, stage: &str) -> anyhow::Result<Spent> {
        let now = self.costs(registry).await?;
        let written = |(key, count): (&String, &f64)| {
            let more = count - before.kubernetes_writes.get(key).copied().unwrap_or(0.0);
            (more > 0.0).then(|| (key.clone(), more))
        };
        let spent = Spent {
            seconds: seconds(now.at - before.at),
            kubernetes_writes: now.kubernetes_writes.iter().filter_map(written).collect(),
            calls: registry::calls_between(&before.calls, &now.calls, &self.member.id),
            processor_seconds: now.processor_seconds - before.processor_seconds,
        };
        tracing::info!(
            "{stage} took {:.1} s and cost {}: processor {:.2} s, Cloud Map {:?}, Kubernetes {:?}",
            spent.seconds,
            self.member.id,
            spent.processor_seconds,
            spent.calls,
            spent.kubernetes_writes
        );
        Ok(spent)
    }

    /// A gauge of its controller.
    async fn gauge(&self, name: &str) -> anyhow::Result<Option<f64>> {
        let page = http::text(&self.admin, "/metrics").await?;
        Ok(samples(&page).find(|sample| sample.name == name).map(|sample| sample.value))
    }
}

/// What a cluster has cost so far.
pub(super) struct Costs {
    at: Instant,
    kubernetes_writes: BTreeMap<String, f64>,
    calls: Counters,
    processor_seconds: f64,
}

/// What a cluster cost from one look to the next.
#[derive(Debug)]
pub(super) struct Spent {
    seconds: f64,
    /// By verb and resource.
    kubernetes_writes: BTreeMap<String, f64>,
    /// Calls of Cloud Map by operation.
    calls: BTreeMap<String, u64>,
    processor_seconds: f64,
}

/// The benchmark on running clusters.
pub struct Bench {
    plan: Plan,
    pub(super) registry: Registry,
    pub(super) exporter: Side,
    importer: Side,
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Bench {
    pub async fn new(plan: Plan) -> anyhow::Result<Self> {
        let registry = Registry::new(&plan.registry)?;
        let (exporter, importer) = (Side::new(&plan.exporter).await?, Side::new(&plan.importer).await?);
        Ok(Self { plan, registry, exporter, importer })
    }

    /// What the figures hold for, as a JSON object: above all that the registry is the emulator, and how it is set.
    pub async fn setting(&self) -> anyhow::Result<serde_json::Value> {
        let settings = self.registry.settings().await?;
        Ok(json!({
            "registry": "Cloud Map emulator",
            "call_latency": settings.call_latency,
            "operation_latency": settings.operation_latency,
            "request_limits": if settings.throttling { "those of AWS" } else { "none" },
            "instances_per_namespace_quota": settings.quotas.instances_per_namespace,
            "services": self.plan.services,
            "endpoints_per_service": self.plan.endpoints,
        }))
    }

    /// Runs the stages that are asked for and hands out each figure as soon as it is known.
    pub async fn run(self, mut print: impl FnMut(Figure)) -> anyhow::Result<()> {
        let wanted = |stage| self.plan.stages.contains(&stage);
        if wanted(Stage::Image) {
            self.image()?.into_iter().for_each(&mut print);
        }
        if self.plan.stages.iter().all(|stage| *stage == Stage::Image) {
            return Ok(());
        }
        self.await_leaders().await?;
        if wanted(Stage::Small) {
            self.small().await?.into_iter().for_each(&mut print);
        }
        if ![Stage::Large, Stage::Idle, Stage::Change, Stage::Sustained, Stage::Memory].into_iter().any(wanted) {
            return Ok(());
        }
        let (mut load, arrivals) = self.namespace("bench-large", self.plan.services).await?;
        let figures = self.export("large", &load, &arrivals).await?;
        if wanted(Stage::Large) {
            figures.into_iter().for_each(&mut print);
        }
        self.drain(self.plan.services * self.plan.endpoints).await?.into_iter().for_each(&mut print);
        if wanted(Stage::Idle) {
            self.idle().await?.into_iter().for_each(&mut print);
        }
        if wanted(Stage::Memory) {
            self.memory("memory")?.into_iter().for_each(&mut print);
        }
        if wanted(Stage::Change) {
            self.change(&mut load, &arrivals).await?.into_iter().for_each(&mut print);
            if wanted(Stage::Memory) {
                self.memory("memory_after_changes")?.into_iter().for_each(&mut print);
            }
        }
        if wanted(Stage::Sustained) {
            let figures = self.sustained(&mut load, &arrivals, self.plan.rate, self.plan.sustained).await?;
            figures.into_iter().for_each(&mut print);
            if wanted(Stage::Memory) {
                self.memory("memory_after_sustained_change")?.into_iter().for_each(&mut print);
            }
        }
        Ok(())
    }

    fn image(&self) -> anyhow::Result<Vec<Figure>> {
        let megabytes = |path: &Option<PathBuf>, flag| {
            let path = path.as_ref().with_context(|| format!("the image's figures need {flag}"))?;
            let size = std::fs::metadata(path).with_context(|| format!("failed to look at {}", path.display()))?.len();
            anyhow::Ok(size as f64 / 1e6)
        };
        Ok(vec![
            Figure::at_most("image_size", megabytes(&self.plan.image, "--image")?, "MB", 20.0),
            Figure::for_scale(
                "image_compressed_size",
                megabytes(&self.plan.compressed_image, "--compressed-image")?,
                "MB",
            ),
            Figure::for_scale("binary_size", megabytes(&self.plan.binary, "--binary")?, "MB"),
        ])
    }

    /// Both controllers lead when both have written a head.
    async fn await_leaders(&self) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let writes = self.registry.writes_since(0).await?;
            let leads =
                |side: &Side| writes.iter().any(|write| registry::is_head(write) && write.caller == side.member.id);
            if leads(&self.exporter) && leads(&self.importer) {
                return Ok(());
            }
            for side in self.sides() {
                process::resident_memory(side.member.pid)?;
            }
            ensure!(started.elapsed() < Duration::from_mins(2), "a controller has written no head for 120 s");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// A namespace in both clusters, with Services in the exporting one that are not exported yet.
    async fn namespace(&self, name: &str, services: usize) -> anyhow::Result<(Load, Arrivals)> {
        for side in self.sides() {
            load::create_namespace(&side.cluster, name).await?;
        }
        let load = Load::new(self.exporter.cluster.clone(), name, services, self.plan.endpoints);
        tracing::info!("creating {services} Services with {} endpoints each in {name}", self.plan.endpoints);
        load.create_services().await?;
        let arrivals = Arrivals::watch(self.importer.cluster.clone(), name, &self.exporter.member.id);
        // The controllers see the Services, and the machine comes to rest.
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok((load, arrivals))
    }

    async fn small(&self) -> anyhow::Result<Vec<Figure>> {
        let services = 100.min(self.plan.services);
        let (load, arrivals) = self.namespace("bench-small", services).await?;
        let mut figures = self.export("small", &load, &arrivals).await?;
        self.drain(services * self.plan.endpoints).await?;
        let withdrawn = Instant::now();
        load.withdraw().await?;
        let gone = load.addresses().into_keys().map(|service| (service, BTreeSet::default())).collect();
        arrivals.expect(gone).await?;
        let gone = arrivals.complete(PATIENCE).await.context("withdrawn services stay in the importing cluster")?;
        figures.push(Figure::for_scale("small_withdrawal", seconds(gone - withdrawn), "s"));
        self.drain(0).await?;
        load.delete_services().await?;
        Ok(figures)
    }

    /// Exports everything and waits until it has arrived.
    async fn export(&self, name: &str, load: &Load, arrivals: &Arrivals) -> anyhow::Result<Vec<Figure>> {
        let expected = load.addresses();
        let services = expected.len();
        tracing::info!("exporting {services} Services at {EXPORTS_PER_SECOND} a second");
        arrivals.expect(expected).await?;
        let before = self.costs().await?;
        let (first, took) = load.export(EXPORTS_PER_SECOND).await?;
        let complete = arrivals.complete(PATIENCE).await.context("not everything exported has arrived")?;
        self.spent(&before, "the arrival").await?;
        let name = format!("{name}_{services}x{}", self.plan.endpoints);
        let target = if services <= 100 { 3.0 } else { 15.0 };
        Ok(vec![
            Figure::at_most(format!("{name}_arrival"), seconds(complete - first), "s", target),
            Figure::for_scale(format!("{name}_exporting"), seconds(took), "s"),
        ])
    }

    /// Waits until there are as many instances as there should be.
    async fn drain(&self, instances: usize) -> anyhow::Result<Vec<Figure>> {
        let started = Instant::now();
        let before = self.costs().await?;
        tracing::info!("waiting for {instances} instances in the registry");
        loop {
            let present = self.registry.instances().await?;
            if present == instances {
                break;
            }
            ensure!(started.elapsed() < PATIENCE, "after {PATIENCE:?} there are {present} instances, not {instances}");
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        self.spent(&before, "draining").await?;
        Ok(vec![Figure::for_scale("instances_drained_after", seconds(started.elapsed()), "s")])
    }

    /// Waits until nothing but heads has been written for a while.
    async fn settle(&self) -> anyhow::Result<()> {
        tracing::info!("waiting until nothing but heartbeats was written for {SETTLED:?}");
        let started = Instant::now();
        let mut quiet_since = None;
        let mut seen = 0;
        loop {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
            for write in self.registry.writes_since(seen).await? {
                seen = write.sequence;
                if !registry::is_head(&write) {
                    quiet_since = Some(write.at);
                }
            }
            if now.saturating_sub(*quiet_since.get_or_insert(now)) >= SETTLED {
                return Ok(());
            }
            ensure!(started.elapsed() < PATIENCE, "the registry has not come to rest after {PATIENCE:?}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn idle(&self) -> anyhow::Result<Vec<Figure>> {
        self.settle().await?;
        tracing::info!("doing nothing for {:?}", self.plan.idle);
        let before = self.costs().await?;
        tokio::time::sleep(self.plan.idle).await;
        let mut figures = Vec::new();
        for (side, spent) in self.sides().into_iter().zip(self.spent(&before, "idling").await?) {
            figures.extend(idle_figures(&side.member.id, &spent, self.plan.stream));
            if let Some(period) = side.gauge(DRIFT_PERIOD).await? {
                figures.push(Figure::for_scale(format!("idle_drift_check_period_{}", side.member.id), period, "s"));
            }
        }
        Ok(figures)
    }

    fn sides(&self) -> [&Side; 2] {
        [&self.exporter, &self.importer]
    }

    pub(super) async fn costs(&self) -> anyhow::Result<[Costs; 2]> {
        Ok([self.exporter.costs(&self.registry).await?, self.importer.costs(&self.registry).await?])
    }

    pub(super) async fn spent(&self, before: &[Costs; 2], stage: &str) -> anyhow::Result<[Spent; 2]> {
        let [exporter, importer] = before;
        Ok([
            self.exporter.spent(&self.registry, exporter, stage).await?,
            self.importer.spent(&self.registry, importer, stage).await?,
        ])
    }

    async fn change(&self, load: &mut Load, arrivals: &Arrivals) -> anyhow::Result<Vec<Figure>> {
        tracing::info!("replacing {} endpoints, one at a time", self.plan.changes);
        let mut latencies = Vec::new();
        let before = self.costs().await?;
        let exporter = &self.exporter.member.id;
        let last_head = self.registry.last_head(exporter).await?;
        for _ in 0..self.plan.changes {
            let pause = rand::rng().random_range(PAUSE);
            tokio::time::sleep(Duration::from_secs_f64(pause)).await;
            let replacement = load.draw_replacement();
            arrivals.expect(replacement.addresses()).await?;
            let sent = Instant::now();
            load.replace(&replacement).await?;
            let arrived = arrivals.complete(PATIENCE).await.context("a changed endpoint has not arrived")?;
            latencies.push(seconds(arrived - sent));
        }
        self.spent(&before, "changing").await?;
        latencies.sort_by(f64::total_cmp);
        let percentile = |percent| percentile(&latencies, percent).context("there were no changes");
        let writes = self.registry.writes_since(last_head.saturating_sub(1)).await?;
        let ledger = registry::ledger_writes(&writes, exporter)?;
        let per_change = |writes: usize| writes as f64 / self.plan.changes as f64;
        let (half, most) = if self.plan.stream { (0.04, 0.15) } else { (0.8, 1.5) };
        Ok(vec![
            Figure::at_most("change_p50", percentile(50.0)?, "s", half),
            Figure::at_most("change_p99", percentile(99.0)?, "s", most),
            Figure::for_scale("change_max", percentile(100.0)?, "s"),
            Figure::at_most("change_head_writes", per_change(ledger.changes), "writes/change", 1.0),
            Figure::for_scale("change_page_writes", per_change(ledger.pages), "writes/change"),
            Figure::for_scale("change_flushes", ledger.flushes as f64, "flushes"),
            Figure::for_scale("change_heartbeats", ledger.heartbeats as f64, "writes"),
        ])
    }

    fn memory(&self, name: &str) -> anyhow::Result<Vec<Figure>> {
        self.sides()
            .into_iter()
            .map(|side| {
                let bytes = process::resident_memory(side.member.pid)?;
                Ok(Figure::at_most(format!("{name}_{}", side.member.id), bytes as f64 / 1e6, "MB", 36.0))
            })
            .collect()
    }
}

fn idle_figures(id: &str, spent: &Spent, stream: bool) -> Vec<Figure> {
    let most = if stream { 0.3 } else { 1.3 };
    let drift = spent.calls.get(DRIFT_CHECK).copied().unwrap_or(0);
    let ledger = spent.calls.values().sum::<u64>() - drift;
    let of_leases = |key: &str| key.ends_with(" leases");
    let writes = |leases: bool| -> f64 {
        let writes = spent.kubernetes_writes.iter().filter(|(key, _)| of_leases(key) == leases);
        writes.map(|(_, count)| count).sum()
    };
    let a_second = |count: f64| count / spent.seconds;
    vec![
        Figure::at_most(format!("idle_ledger_calls_{id}"), a_second(ledger as f64), "1/s", most),
        Figure::for_scale(format!("idle_drift_check_calls_{id}"), a_second(drift as f64), "1/s"),
        Figure::at_most(format!("idle_kubernetes_writes_{id}"), writes(false), "requests", 0.0),
        Figure::for_scale(format!("idle_lease_writes_{id}"), a_second(writes(true)), "1/s"),
    ]
}

fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_calls_and_writes_are_sorted_by_what_they_are_for() {
        let writes = [("PUT leases", 60.0), ("POST leases", 1.0), ("APPLY serviceexports/status", 3.0)];
        let calls = [("DiscoverInstances", 120), ("RegisterInstance", 6), ("ListInstances", 30)];
        let spent = Spent {
            seconds: 120.0,
            kubernetes_writes: writes.map(|(key, count)| (key.to_owned(), count)).into(),
            calls: calls.map(|(operation, count)| (operation.to_owned(), count)).into(),
            processor_seconds: 1.0,
        };
        for (stream, most) in [(true, 0.3), (false, 1.3)] {
            assert_eq!(
                idle_figures("a", &spent, stream),
                [
                    Figure::at_most("idle_ledger_calls_a", 1.05, "1/s", most),
                    Figure::for_scale("idle_drift_check_calls_a", 0.25, "1/s"),
                    Figure::at_most("idle_kubernetes_writes_a", 3.0, "requests", 0.0),
                    Figure::for_scale("idle_lease_writes_a", 61.0 / 120.0, "1/s"),
                ]
            );
        }
    }
}
