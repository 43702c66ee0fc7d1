//! The stages of the benchmark. Each leaves the clusters as the next one wants them.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::{
    arrivals::Arrivals,
    conditions::Conditions,
    direct::Direct,
    direct_arrival::Least,
    figure::Figure,
    load::{self, Load},
    others::Others,
    plan::{Plan, Stage},
    process,
    registry::{self, Registry},
    side::{Costs, Side, Spent},
    targets,
};

/// How fast exports are created.
pub(super) const EXPORTS_PER_SECOND: f64 = 200.0;
/// How long nobody may have written before a cluster counts as settled: the ledger collects garbage after 120 s.
const SETTLED: Duration = Duration::from_secs(125);
/// After this long without what is waited for something is broken.
pub(super) const PATIENCE: Duration = Duration::from_mins(10);
/// What AWS registers a second, with some room: 50.
const INSTANCES_PER_SECOND: f64 = 40.0;
/// The operation that drift checks of instances, and nothing else, consist of. All others count as the ledger's.
const DRIFT_CHECK: &str = "ListInstances";
const DRIFT_PERIOD: &str = "cloudmap_mcs_instances_drift_period_seconds";

/// The benchmark on running clusters.
pub struct Bench {
    pub(super) plan: Plan,
    pub(super) registry: Registry,
    pub(super) exporter: Side,
    pub(super) importer: Side,
    /// What arrivals are compared with.
    pub(super) least: Vec<Least>,
}

/// Something has arrived.
struct Arrived {
    figures: Vec<Figure>,
    at: Instant,
    /// What everything had cost before it.
    before: [Costs; 2],
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl Bench {
    pub async fn new(plan: Plan) -> anyhow::Result<Self> {
        let ours = |stage: &Stage| {
            matches!(stage, Stage::Small | Stage::Large | Stage::Instances | Stage::Change | Stage::Direct)
        };
        let foreign = plan.stages.iter().find(|stage| plan.peer && !ours(stage));
        ensure!(foreign.is_none(), "{foreign:?} cannot be measured for controllers that are not ours");
        let registry = Registry::new(&plan.registry)?;
        let (exporter, importer) = (Side::new(&plan.exporter).await?, Side::new(&plan.importer).await?);
        Ok(Self { plan, registry, exporter, importer, least: Vec::new() })
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
            "stream": self.plan.stream,
            "seed": self.plan.seed,
        }))
    }

    /// Runs the stages that are asked for and hands out each figure as soon as it is known.
    pub async fn run(mut self, mut print: impl FnMut(Figure)) -> anyhow::Result<()> {
        let peer = self.plan.peer;
        let mut print = |figures: Vec<Figure>| {
            figures.into_iter().map(|figure| if peer { figure.of_peer() } else { figure }).for_each(&mut print);
        };
        let plan = self.plan.clone();
        if plan.wants(Stage::Image) {
            print(self.image()?);
        }
        if plan.stages.iter().all(|stage| *stage == Stage::Image) {
            return Ok(());
        }
        if !peer {
            self.await_leaders().await?;
        }
        if plan.wants(Stage::DirectArrival) {
            print(self.direct_arrival().await?);
        }
        if plan.wants(Stage::Small) {
            print(self.small().await?);
        }
        if !plan.stages.iter().any(|stage| stage.needs_large()) {
            return Ok(());
        }
        let (mut load, arrivals) = self.namespace("bench-large", plan.services).await?;
        let Arrived { figures, at: arrived, .. } = self.export("large", &load, &arrivals).await?;
        if plan.wants(Stage::Large) {
            print(figures);
        }
        if plan.stages.iter().any(|stage| stage.needs_instances()) {
            let figures = self.drain(plan.services * plan.endpoints, arrived).await?;
            if plan.wants(Stage::Instances) {
                print(figures);
            }
        }
        if plan.wants(Stage::Idle) {
            print(self.idle().await?);
        }
        if plan.wants(Stage::Memory) {
            print(self.memory("memory", targets::memory(plan.services, plan.endpoints))?);
        }
        self.changes(&mut load, &arrivals, &mut print).await?;
        if plan.wants(Stage::Failover) {
            print(self.failover(&mut load, &arrivals).await?);
        }
        if plan.wants(Stage::Clusters) {
            print(self.clusters(&mut load, &arrivals).await?);
        }
        Ok(())
    }

    /// The stages in which endpoints change and nothing else happens.
    async fn changes(
        &self,
        load: &mut Load,
        arrivals: &Arrivals,
        mut print: impl FnMut(Vec<Figure>),
    ) -> anyhow::Result<()> {
        let plan = &self.plan;
        let (memory, target) = (plan.wants(Stage::Memory), targets::memory(plan.services, plan.endpoints));
        if plan.wants(Stage::Change) || plan.wants(Stage::Direct) {
            let mut direct = None;
            if plan.wants(Stage::Direct) {
                direct = Some(Direct::start(&self.exporter, &self.importer, plan.endpoints, plan.seed).await?);
            }
            print(self.change(load, arrivals, direct.as_mut()).await?);
            if memory {
                print(self.memory("memory_after_changes", target)?);
            }
        }
        if plan.wants(Stage::Instance) {
            print(self.instance(load, arrivals).await?);
        }
        if plan.wants(Stage::Cut) && plan.stream {
            print(self.cut(load, arrivals).await?);
        }
        if plan.wants(Stage::Sustained) {
            print(self.sustained(load, arrivals, plan.rate, plan.sustained).await?);
            if memory {
                print(self.memory("memory_after_sustained_change", target)?);
            }
        }
        if plan.wants(Stage::Rollout) {
            print(self.rollout(load, arrivals).await?);
        }
        if memory {
            print(self.peak_memory()?);
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
            Figure::at_most("image_size", megabytes(&self.plan.image, "--image")?, "MB", 15.0),
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
        let load = Load::new(self.exporter.cluster.clone(), name, services, self.plan.endpoints, self.plan.seed);
        tracing::info!("creating {services} Services with {} endpoints each in {name}", self.plan.endpoints);
        load.create_services().await?;
        let arrivals = Arrivals::watch(self.importer.cluster.clone(), name, &self.exporter.member.id);
        // The controllers see the Services, and the machine comes to rest.
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok((load, arrivals))
    }

    pub(super) fn small_services(&self) -> usize {
        100.min(self.plan.services)
    }

    async fn small(&self) -> anyhow::Result<Vec<Figure>> {
        let services = self.small_services();
        let (load, arrivals) = self.namespace("bench-small", services).await?;
        let Arrived { mut figures, at: arrived, before } = self.export("small", &load, &arrivals).await?;
        self.drain(services * self.plan.endpoints, arrived).await?;
        if self.plan.wants(Stage::DirectArrival) {
            let spent = self.spent(&before, "all until the instances").await?;
            figures.extend(self.writes(&format!("small_{services}x{}_all", self.plan.endpoints), services, &spent));
        }
        let withdrawn = Instant::now();
        load.withdraw().await?;
        let gone = load.addresses().into_keys().map(|service| (service, BTreeSet::default())).collect();
        arrivals.expect(gone).await?;
        let gone = arrivals.complete(PATIENCE).await.context("withdrawn services stay in the importing cluster")?;
        let took = (gone - withdrawn).as_secs_f64();
        figures.push(Figure::for_scale("small_withdrawal", took, "s"));
        figures.extend(self.least(services).map(|least| least.compare_withdrawal("small", took)));
        self.drain(0, gone).await?;
        load.delete_services().await?;
        Ok(figures)
    }

    /// Exports everything and waits until it has arrived, and its conditions say so.
    async fn export(&self, name: &str, load: &Load, arrivals: &Arrivals) -> anyhow::Result<Arrived> {
        let expected = load.addresses();
        let services = expected.len();
        tracing::info!("exporting {services} Services at {EXPORTS_PER_SECOND} a second");
        arrivals.expect(expected).await?;
        let conditions = Conditions::watch(&self.exporter.cluster, &self.importer.cluster, load.namespace());
        let compares = self.plan.wants(Stage::DirectArrival);
        let others = if compares { Some(self.others().await?) } else { None };
        let before = self.costs().await?;
        let (first, took) = load.export(EXPORTS_PER_SECOND).await?;
        let complete = arrivals.complete(PATIENCE).await.context("not everything exported has arrived")?;
        self.spent(&before, "the arrival").await?;
        let name = format!("{name}_{services}x{}", self.plan.endpoints);
        let target = targets::arrival(services, self.plan.endpoints);
        let since = |at: Instant| at.saturating_duration_since(first).as_secs_f64();
        let mut figures = vec![
            Figure::new(format!("{name}_arrival"), since(complete), "s", target),
            Figure::for_scale(format!("{name}_exporting"), took.as_secs_f64(), "s"),
        ];
        // The AWS controller writes none that say this.
        if !self.plan.peer {
            let usable = conditions.usable(services, PATIENCE).await.context("imports have no address")?;
            figures.push(Figure::for_scale(format!("{name}_usable"), since(usable), "s"));
            let settled = conditions.ready(services, PATIENCE).await.context("the conditions have not settled")?;
            let target = targets::settled(services, self.plan.endpoints);
            figures.push(Figure::new(format!("{name}_settled"), since(settled), "s", target));
            if let Some(least) = self.least(services) {
                figures.extend(least.compare(&name, since(complete), since(settled)));
            }
        }
        if let Some(others) = others {
            let others = others.each_ref().map(Others::take);
            let spent = self.spent(&before, "the arrival with its conditions").await?;
            figures.extend(self.arrival_costs(&name, services, &spent, &others)?);
        }
        Ok(Arrived { figures, at: complete, before })
    }

    /// Waits until the importing cluster has exactly what the load has.
    pub(super) async fn rest(&self, load: &Load, arrivals: &Arrivals) -> anyhow::Result<()> {
        arrivals.expect(load.addresses()).await?;
        arrivals.complete(PATIENCE).await.context("not everything has arrived").map(drop)
    }

    /// Waits until there are as many instances as there should be, `since` their endpoints arrived or went.
    async fn drain(&self, instances: usize, since: Instant) -> anyhow::Result<Vec<Figure>> {
        let before = self.costs().await?;
        let limit = PATIENCE + Duration::from_secs_f64(instances as f64 / INSTANCES_PER_SECOND);
        tracing::info!("waiting for {instances} instances in the registry");
        loop {
            let present = self.registry.instances().await?;
            if present == instances {
                break;
            }
            ensure!(since.elapsed() < limit, "after {limit:?} there are {present} instances, not {instances}");
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        self.spent(&before, "draining").await?;
        Ok(vec![Figure::for_scale("instances_drained_after", since.elapsed().as_secs_f64(), "s")])
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

    pub(super) fn sides(&self) -> [&Side; 2] {
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

    /// The target is for the exporting leader.
    fn memory(&self, name: &str, target: Option<f64>) -> anyhow::Result<Vec<Figure>> {
        let targets = [target, None];
        let figure = |(side, target): (&Side, Option<f64>)| {
            let bytes = process::resident_memory(side.member.pid)?;
            Ok(Figure::new(format!("{name}_{}", side.member.id), bytes as f64 / 1e6, "MB", target))
        };
        self.sides().into_iter().zip(targets).map(figure).collect()
    }

    fn peak_memory(&self) -> anyhow::Result<Vec<Figure>> {
        self.sides()
            .into_iter()
            .map(|side| {
                let bytes = process::peak_memory(side.member.pid)?;
                Ok(Figure::for_scale(format!("memory_peak_{}", side.member.id), bytes as f64 / 1e6, "MB"))
            })
            .collect()
    }
}

fn idle_figures(id: &str, spent: &Spent, stream: bool) -> Vec<Figure> {
    let drift = spent.calls.get(DRIFT_CHECK).copied().unwrap_or(0);
    let ledger = spent.calls.values().sum::<u64>() - drift;
    let of_leases = |key: &str| key.ends_with(" leases");
    let writes = |leases: bool| -> f64 {
        let writes = spent.kubernetes_writes.iter().filter(|(key, _)| of_leases(key) == leases);
        writes.map(|(_, count)| count).sum()
    };
    let a_second = |count: f64| count / spent.seconds;
    let target = if stream { 0.3 } else { 1.3 };
    vec![
        Figure::at_most(format!("idle_ledger_calls_{id}"), a_second(ledger as f64), "1/s", target),
        Figure::for_scale(format!("idle_drift_check_calls_{id}"), a_second(drift as f64), "1/s"),
        Figure::at_most(format!("idle_kubernetes_writes_{id}"), writes(false), "requests", 0.0),
        Figure::for_scale(format!("idle_lease_writes_{id}"), a_second(writes(true)), "1/s"),
    ]
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
            ..Spent::default()
        };
        assert_eq!(
            idle_figures("a", &spent, false),
            [
                Figure::at_most("idle_ledger_calls_a", 1.05, "1/s", 1.3),
                Figure::for_scale("idle_drift_check_calls_a", 0.25, "1/s"),
                Figure::at_most("idle_kubernetes_writes_a", 3.0, "requests", 0.0),
                Figure::for_scale("idle_lease_writes_a", 61.0 / 120.0, "1/s"),
            ]
        );
        assert_eq!(idle_figures("a", &spent, true)[0].met, Some(false), "0.3 a second with the stream");
    }
}
