//! The benchmark of Cutovers: many services move from ECS to pods and back, while clients of three kinds send requests.
//!
//! One cluster has the objects, the pods of which are addresses of this process, and so are the tasks. The controller and the
//! commands are the real ones; Cloud Map and its resolver are the emulator, ECS is [`EcsApi`]. docs/benchmarks.md explains it.

mod clients;
mod course;
mod objects;
mod program;
mod shares;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use cloudmap_mcs::cloudmap::{Operation, Plane};
use futures::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::{
    clients::{Client, Kind, Tally},
    course::Course,
    objects::Objects,
    program::Program,
    shares::Shares,
};
use super::{
    figure::Figure,
    plan::Member,
    registry::{Registry, calls_between},
    side::Side,
};
use crate::{
    ecs::{Addresses, Definition, EcsApi, Machine, Model, Records},
    emulator::Counters,
};

/// The Cloud Map namespace, which is a zone of DNS.
const ZONE: &str = "internal";
const ECS_CLUSTER: &str = "prod";
/// The namespace in Kubernetes.
const NAMESPACE: &str = "shop";
/// The port of tasks and pods.
const PORT: u16 = 8080;
/// The caller of Cloud Map as which the commands are known.
const OPERATOR: &str = "operator";
/// `CreateService` is allowed five times a second.
const CREATED_AT_ONCE: usize = 4;
/// How often `finish` is tried.
const ATTEMPTS: u32 = 5;
/// Percentage points between the share that is reached and that of new connections.
const NEAR: f64 = 5.0;
/// With fewer answers, chance alone makes some points.
const LEAST_ANSWERS: u64 = 2000;

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
    /// How often ECS reports the health of each task; AWS documents nothing.
    pub reports: Option<Duration>,
    /// Requests a second of clients that resolve; others send fewer.
    pub rate: u16,
    /// Decides which addresses clients choose.
    pub seed: u64,
}

/// The benchmark on a running cluster.
#[derive(Debug)]
pub struct CutoverBench {
    plan: CutoverPlan,
}

/// How long each part took.
type Times = Vec<(&'static str, Duration)>;

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
            "seed": plan.seed,
        }))
    }

    /// Moves all services and takes them back. Hands out the figures.
    ///
    /// # Errors
    /// What broke, so that nothing can be said.
    pub async fn run(self, mut print: impl FnMut(Figure)) -> Result<()> {
        let plan = &self.plan;
        let registry = Registry::new(&plan.registry)?;
        let addresses = Addresses::beginning_at(plan.first_address);
        let (machine, api) = (Machine::new(&plan.registry, addresses.clone()), EcsApi::start(Model::default()).await?);
        tracing::info!("{} services of {} tasks in ECS", plan.services, plan.tasks);
        self.start_tasks(&machine, &api).await?;
        let cluster = Side::new(&plan.controller).await?.cluster;
        let objects = Objects::new(cluster.clone(), plan, &addresses).await?;
        tracing::info!("{} Services of {} pods in Kubernetes", plan.services, plan.pods);
        objects.create().await?;

        let shares = Arc::new(Shares::new(plan.services, plan.ttl));
        let course = Course::follow(cluster, Arc::clone(&shares));
        let program = Program::new(plan, &api);
        let (tallies, clients) = self.start_clients(&shares);
        let (before, begun) = (registry.counters().await?, Instant::now());
        let mut times = self.there(&program, &course).await?;
        times.extend(self.back(&program, &course, &api).await?);
        times.push(("all", begun.elapsed()));
        let after = registry.counters().await?;
        drop(clients);

        for (name, time) in times {
            print(Figure::for_scale(format!("{name}_took"), time.as_secs_f64(), "s"));
        }
        for (kind, tally) in &tallies {
            kind.figures(tally, plan.hide_tasks).into_iter().for_each(&mut print);
        }
        for (reached, measured) in shares.measured(LEAST_ANSWERS) {
            let name = |what: &str| format!("share_{what}_where_{reached:.2}_is_reached");
            print(Figure::for_scale(name("measured"), measured, "%"));
            print(Figure::at_most(name("distance"), (measured - reached).abs(), "points", NEAR));
        }
        self.calls(&before, &after).into_iter().for_each(&mut print);
        marks(&registry, &plan.controller.id).await?.into_iter().for_each(&mut print);
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
    fn start_clients(&self, shares: &Arc<Shares>) -> (BTreeMap<Kind, Arc<Tally>>, JoinSet<()>) {
        let (plan, mut clients) = (&self.plan, JoinSet::new());
        let tallies: BTreeMap<Kind, Arc<Tally>> = Kind::ALL.into_iter().map(|kind| (kind, Arc::default())).collect();
        for (kind, tally) in &tallies {
            let pause = Duration::from_secs_f64(plan.services as f64 / kind.rate(f64::from(plan.rate)));
            for number in 0..plan.services {
                let client = Client {
                    kind: *kind,
                    name: format!("{}.{ZONE}", objects::name(number)),
                    number,
                    resolver: SocketAddr::new(plan.resolver, 53),
                    port: PORT,
                    pause,
                    seed: plan.seed,
                };
                clients.spawn(client.run(Arc::clone(tally), Arc::clone(shares)));
            }
        }
        (tallies, clients)
    }

    /// All traffic goes to the pods, and the tasks stop.
    async fn there(&self, program: &Program, course: &Course) -> Result<Times> {
        let plan = &self.plan;
        let mut times = Times::new();
        let begun = Instant::now();
        program.run("plan", &["--all"], &[0, 1]).await?;
        times.push(("plan", begun.elapsed()));

        let steps = plan.steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let every = format!("{}s", plan.every.as_secs());
        let mut flags = vec!["--all", "--steps", &steps, "--every", &every];
        if plan.hide_tasks {
            flags.push("--hide-tasks");
        }
        let begun = Instant::now();
        program.run("start", &flags, &[0]).await?;
        course.until("all are Finished", plan.services, |cutover| cutover.is("Finished")).await?;
        times.push(("start_to_finished", begun.elapsed()));

        let stop = Instant::now();
        for attempt in 1.. {
            if plan.hide_tasks {
                // Those that are stopped already are hidden no more.
                let least = if attempt == 1 { plan.tasks } else { 0 };
                course.until("all tasks are hidden", plan.services, |cutover| cutover.has_hidden(least)).await?;
                course.wait_until_stoppable(plan.ttl).await?;
            }
            if attempt == 1 {
                times.push(("start_to_stoppable", begun.elapsed()));
            }
            match program.run("finish", &["--all", "--scale-ecs"], &[0]).await {
                Ok(()) => break,
                // Tasks that ECS reported as healthy meanwhile were hidden again, and clients may still use them.
                Err(error) if attempt < ATTEMPTS => tracing::warn!("{error:#}"),
                Err(error) => return Err(error),
            }
        }
        times.push(("finished_to_stopped", stop.elapsed()));
        // Clients that noticed nothing yet have the time to do so.
        tokio::time::sleep(Duration::from_secs(plan.ttl.into()) + course::SETTLE).await;
        Ok(times)
    }

    /// All traffic goes to tasks again.
    async fn back(&self, program: &Program, course: &Course, api: &EcsApi) -> Result<Times> {
        let begun = Instant::now();
        self.raise(api).await?;
        program.run("back", &["--all"], &[0]).await?;
        course.until("all are RolledBack", self.plan.services, |cutover| cutover.is("RolledBack")).await?;
        let time = begun.elapsed();
        tokio::time::sleep(Duration::from_secs(self.plan.ttl.into()) + course::SETTLE).await;
        Ok(vec![("back", time)])
    }

    /// Calls by caller, and what those of the discovery plane cost.
    fn calls(&self, before: &Counters, after: &Counters) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (who, caller) in [("controller", self.plan.controller.id.as_str()), ("commands", OPERATOR)] {
            let calls = calls_between(before, after, caller);
            let total: u64 = calls.values().sum();
            let usd: f64 = calls.iter().map(|(operation, calls)| price(operation) * *calls as f64).sum();
            figures.push(Figure::for_scale(format!("calls_of_{who}"), total as f64, "calls"));
            // A call costs a millionth of a dollar: the unit has to be small.
            figures.push(Figure::for_scale(format!("calls_of_{who}_cost"), usd * 100.0, "US cents"));
        }
        figures
    }
}

/// US dollars for a call.
fn price(operation: &str) -> f64 {
    let known = Operation::ALL.iter().find(|known| known.name() == operation);
    known.map_or(Plane::Control, |operation| operation.plane()).usd_per_million_calls() / 1e6
}

/// What the controller wrote about tasks: marks, and nothing else; and that all it marked were tasks of ECS.
async fn marks(registry: &Registry, controller: &str) -> Result<Vec<Figure>> {
    let writes = registry.writes_since(0).await?;
    let tasks: BTreeSet<&str> = writes
        .iter()
        .filter(|write| write.caller == "ecs" && write.operation == "RegisterInstance")
        .map(|write| write.instance.as_str())
        .collect();
    ensure!(!tasks.is_empty(), "the emulator does not remember the writes of ECS any more");
    let (marks, others): (Vec<_>, Vec<_>) = writes
        .iter()
        .filter(|write| write.caller == controller)
        .partition(|write| write.operation == "UpdateInstanceCustomHealthStatus");
    let marked: BTreeSet<&str> = marks.iter().map(|write| write.instance.as_str()).collect();
    let of_tasks = marked.intersection(&tasks).count();
    let wrong = others.iter().filter(|write| tasks.contains(write.instance.as_str())).count();
    Ok(vec![
        Figure::for_scale("tasks_marked", of_tasks as f64, "tasks"),
        Figure::at_most("tasks_written_otherwise", wrong as f64, "writes", 0.0),
    ])
}
