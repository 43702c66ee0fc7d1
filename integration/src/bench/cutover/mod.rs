//! The benchmark of Cutovers: many services move from ECS to pods and back, while clients of all kinds send requests.
//!
//! One cluster has the objects, the pods of which are addresses of this process, and so are the tasks. The controller and the
//! commands are the real ones; Cloud Map and its resolver are the emulator, ECS is [`EcsApi`]. docs/benchmarks.md explains it.

mod calls;
mod clients;
mod course;
mod leaders;
mod objects;
mod pods;
mod program;
mod runtimes;
mod shares;
mod trouble;
mod way;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use cutover::Settle;
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::{
    clients::{Client, Kind, Source, Tally},
    course::Course,
    objects::Objects,
    program::Program,
    runtimes::Runtimes,
    shares::Shares,
    trouble::Trouble,
};
use super::{
    figure::Figure,
    plan::Member,
    registry::{self, Registry},
    side::Side,
};
use crate::ecs::{Addresses, Definition, EcsApi, Machine, Model, Records};
use emulator::dns_client as dns;

/// The Cloud Map namespace, which is a zone of DNS.
const ZONE: &str = "internal";
const ECS_CLUSTER: &str = "prod";
/// The namespace in Kubernetes.
const NAMESPACE: &str = "shop";
/// The port of tasks and pods.
const PORT: u16 = 8080;
/// The caller of Cloud Map as which the commands are known.
const OPERATOR: &str = "operator";
/// The caller as which clients are known that ask Cloud Map itself.
const CALLER: &str = "caller";
/// `CreateService` is allowed five times a second.
const CREATED_AT_ONCE: usize = 4;
/// Percentage points between the share that is reached and that of new connections.
const NEAR: f64 = 5.0;
/// With fewer answers, chance alone makes some points: of half of so many, five in one of ten thousand runs.
const LEAST_ANSWERS: u64 = 1500;

/// What is to be done.
#[derive(Debug, Clone)]
pub struct CutoverPlan {
    /// The controller, and the cluster that it leads.
    pub controller: Member,
    /// Address of the emulator.
    pub registry: String,
    /// Where its resolver answers.
    pub resolver: IpAddr,
    /// `cloudmap-mcs`
    pub program: PathBuf,
    /// The first address of this machine for tasks and pods.
    pub first_address: Ipv4Addr,
    pub services: usize,
    /// Tasks of each service, and pods.
    pub tasks: usize,
    pub pods: usize,
    /// Of the records.
    pub ttl: u32,
    pub steps: Vec<u8>,
    /// The least time of a step.
    pub every: Duration,
    pub hide_tasks: bool,
    /// `--settle` of the controller.
    pub settle: Settle,
    /// How often ECS reports the health of each task; AWS documents nothing.
    pub reports: Option<Duration>,
    /// Requests a second of clients that resolve; others send fewer.
    pub rate: u16,
    /// Decides which addresses clients choose.
    pub seed: u64,
    /// Whether pods, images, leaders, the API server and the registry make trouble on the way.
    pub trouble: bool,
    /// The folder of further clients, one program for each runtime.
    pub clients: Option<PathBuf>,
    /// `integration/bench-host.sh`, which starts replicas and restarts the API server.
    pub host: Option<PathBuf>,
}

/// The benchmark on a running cluster.
#[derive(Debug)]
pub struct CutoverBench {
    plan: CutoverPlan,
}

impl CutoverBench {
    pub fn new(plan: CutoverPlan) -> Self {
        Self { plan }
    }

    /// What the figures hold for, as a JSON object.
    ///
    /// # Errors
    /// The emulator does not answer.
    pub async fn setting(&self) -> Result<Value> {
        let (plan, settings) = (&self.plan, Registry::new(&self.plan.registry)?.settings().await?);
        Ok(json!({
            "registry": "Cloud Map emulator",
            "ecs": "emulator",
            "call_latency": settings.call_latency,
            "operation_latency": settings.operation_latency,
            "discovery_lag": settings.discovery_lag,
            "request_limits": if settings.throttling { "those of AWS" } else { "none" },
            "services": plan.services,
            "tasks_per_service": plan.tasks,
            "pods_per_service": plan.pods,
            "ttl_seconds": plan.ttl,
            "steps": plan.steps,
            "step_seconds": plan.every.as_secs(),
            "hide_tasks": plan.hide_tasks,
            "settle_seconds": plan.settle.as_secs(),
            "trouble": plan.trouble,
            "seed": plan.seed,
        }))
    }

    /// Moves all services and takes them back. Hands out the figures.
    ///
    /// # Errors
    /// What broke, so that nothing can be said.
    pub async fn run(self, mut print: impl FnMut(Figure)) -> Result<()> {
        let plan = &self.plan;
        if plan.trouble {
            plan.allows_trouble()?;
        }
        let registry = Registry::new(&plan.registry)?;
        let addresses = Addresses::beginning_at(plan.first_address);
        let (machine, api) = (Machine::new(&plan.registry, addresses.clone()), EcsApi::start(Model::default()).await?);
        tracing::info!("{} services of {} tasks in ECS", plan.services, plan.tasks);
        self.start_tasks(&machine, &api).await?;
        let cluster = Side::new(&plan.controller).await?.cluster;
        let objects = Objects::new(cluster.clone(), plan, &addresses).await?;
        tracing::info!("{} Services of {} pods in Kubernetes", plan.services, plan.pods);
        objects.create().await?;

        let shares = Arc::new(Shares::new(plan.services, plan.ttl, plan.settle));
        let course = Course::follow(cluster, Arc::clone(&shares));
        let program = Program::new(plan, &api);
        let mut trouble = if plan.trouble { Some(Trouble::new(plan, &objects, &course, &shares).await?) } else { None };
        let (tallies, clients) = self.start_clients(&shares).await?;
        let runtimes = Runtimes::start(plan)?;
        let (before, begun) = (registry.counters().await?, Instant::now());
        let mut times = Box::pin(self.there(&program, &course, trouble.as_mut())).await?;
        times.extend(self.back(&program, &course, &api).await?);
        times.push(("all", begun.elapsed()));
        let after = registry.counters().await?;
        drop(clients);
        let of_runtimes = runtimes.stop().await?;

        for (name, time) in times {
            print(Figure::for_scale(format!("{name}_took"), time.as_secs_f64(), "s"));
        }
        for (kind, tally) in &tallies {
            kind.figures(tally, plan.hide_tasks).into_iter().for_each(&mut print);
        }
        of_runtimes.into_iter().for_each(&mut print);
        let measured = shares.measured(LEAST_ANSWERS);
        // With trouble, the numbers of pods change, and shares with them.
        let followed = plan.trouble || shares::shows_a_part(&plan.steps, &measured);
        for (reached, measured) in measured {
            let name = |what: &str| format!("share_{what}_where_{reached:.2}_is_reached");
            print(Figure::for_scale(name("measured"), measured, "%"));
            print(Figure::at_most(name("distance"), (measured - reached).abs(), "points", NEAR));
        }
        trouble.iter().flat_map(Trouble::figures).for_each(&mut print);
        plan.calls(&before, &after).into_iter().for_each(&mut print);
        calls::marks(&registry, &plan.controller.id).await?.into_iter().for_each(&mut print);
        ensure!(
            followed,
            "no share below 100 % has {LEAST_ANSWERS} answers, so nothing says that connections follow shares: give a higher --rate \
             or --every"
        );
        Ok(())
    }

    /// Makes the ECS services and their Cloud Map services, and starts their tasks.
    async fn start_tasks(&self, machine: &Machine, api: &EcsApi) -> Result<()> {
        let plan = &self.plan;
        let zone = machine.cloud_map().private_namespace(ZONE, plan.ttl.into()).await?;
        let zone = zone.as_str();
        futures::stream::iter(0..plan.services)
            .map(async |number| {
                let (name, cloud_map) = (objects::name(number), machine.cloud_map());
                let registry = cloud_map.service(zone, &name, Records::A, plan.ttl.into()).await?;
                let definition = Definition { port: PORT, ..Definition::new(ECS_CLUSTER, &name, &registry) };
                let arn = cloud_map.arn(&registry).await?;
                api.adopt(&arn, machine.service(definition), plan.reports).await
            })
            .buffer_unordered(CREATED_AT_ONCE)
            .try_for_each(async |()| Ok(()))
            .await?;
        self.raise(api).await
    }

    /// Raises the desired counts, as `aws ecs update-service` does, and waits until the tasks run.
    async fn raise(&self, api: &EcsApi) -> Result<()> {
        for number in 0..self.plan.services {
            let request = json!({
                "cluster": ECS_CLUSTER, "service": objects::name(number), "desiredCount": self.plan.tasks,
            });
            let answer = api.model().call("UpdateService", &request);
            answer.map_err(|refusal| anyhow!("{}: {}", refusal.code, refusal.message))?;
        }
        let tasks = i64::try_from(self.plan.tasks)?;
        course::until("all tasks run", async || {
            Ok(api.model().services.values().all(|service| service.running == tasks && service.pending == 0))
        })
        .await
    }

    /// The clients, and what becomes of their requests. They end when they are dropped.
    async fn start_clients(&self, shares: &Arc<Shares>) -> Result<(BTreeMap<Kind, Arc<Tally>>, JoinSet<()>)> {
        let (plan, mut clients) = (&self.plan, JoinSet::new());
        let resolver = dns::Client::new(SocketAddr::new(plan.resolver, 53));
        let api = registry::caller(&plan.registry, CALLER).await?;
        let tallies: BTreeMap<Kind, Arc<Tally>> = Kind::ALL.into_iter().map(|kind| (kind, Arc::default())).collect();
        for (kind, tally) in &tallies {
            let pause = Duration::from_secs_f64(plan.services as f64 / kind.rate(f64::from(plan.rate)));
            for number in 0..plan.services {
                let client = Client {
                    kind: *kind,
                    number,
                    source: match kind {
                        Kind::Fresh | Kind::Pool | Kind::Never => Source::Dns(resolver),
                        Kind::Sdk => Source::Api(api.clone(), plan.ttl),
                    },
                    port: PORT,
                    pause,
                    seed: plan.seed,
                };
                clients.spawn(client.run(Arc::clone(tally), Arc::clone(shares)));
            }
        }
        Ok((tallies, clients))
    }
}
