//! Several services move at once and back, with the commands and in the order of docs/moving-from-ecs.md. Their pods are
//! Deployments behind a kubelet, with the readiness gate and the `preStop` hook, and the caller is a pod that asks CoreDNS.

use std::time::Duration;

use anyhow::{Result, anyhow};
use cloudmap_mcs_integration::ecs::{Definition, Ecs, EcsApi, Model, Records};
use cloudmap_mcs_integration::scenario::{
    CUTOVER, NAMES, POD, PODS, World, condition, eventually, holds, manifests, name_of,
};
use serde_json::{Value, json};

use super::cutover::{STEP, run};
use super::shares::addresses;
use crate::gates::{GATE, gated};

/// So many services, each of two tasks and two pods.
const SERVICES: usize = 20;
const TASKS: i64 = 2;
const PODS_OF_EACH: usize = 2;
/// Of the records, in seconds: a tenth of what the documents use. So is the interval of the steps.
const TTL: u64 = 6;
/// `--settle` of the controller, in seconds. CoreDNS keeps each answer for 5 s at least, and a machine may stand still for some
/// seconds.
pub(super) const SETTLE: u64 = 15;
/// For so long clients use an answer.
const USED: Duration = Duration::from_secs(TTL + SETTLE);
/// For so many seconds pods serve after they were deleted: 5 s until they are withdrawn, 15 s for another leader, the TTL, and
/// what clients are late.
const LINGERS: u64 = 5 + 15 + TTL + SETTLE;
const CALLER: &str = "caller";

/// Of a service, in ECS, Cloud Map and Kubernetes.
fn name(number: usize) -> String {
    format!("orders-{number}")
}

/// A pod that requests one service after the other. It takes one of the addresses that CoreDNS answers with, as it comes: curl by
/// itself would prefer pods, which are in its subnet, and try the next address if one fails.
fn caller(zone: &str) -> Value {
    let names: Vec<_> = (0..SERVICES).map(name).collect();
    let script = format!(
        "while :; do for name in {}; do \
         address=$(dig +short +tries=4 +time=10 $name.{zone}. A 2>&1 | grep -m 1 '^[0-9]'); \
         said=$(curl --silent --show-error --fail --max-time 20 http://$address:8080/hostname 2>&1) \
         && echo \"answered $said\" || echo \"failed before $(date -u +%T): $name at $address: $said\"; \
         sleep 0.2; done; done",
        names.join(" ")
    );
    let mut pod = manifests::client(CALLER);
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
    pod
}

/// What moves, and where.
struct Day<'a> {
    world: &'a World,
    ecs: Ecs,
    api: EcsApi,
    /// The Cloud Map namespace, which is a zone of DNS.
    zone: String,
    /// The services in ECS.
    services: Vec<Definition>,
}

impl<'a> Day<'a> {
    /// Makes the services in Cloud Map and ECS, as yet without tasks.
    async fn new(world: &'a World) -> Result<Self> {
        let (ecs, api) = (Ecs::from_env().await?, EcsApi::start(Model::default()).await?);
        let (zone, mut services) = (format!("{}-ecs", world.namespace), Vec::new());
        let namespace = ecs.cloud_map().private_namespace(&zone, 1).await?;
        for service in (0..SERVICES).map(name) {
            let registry = ecs.cloud_map().service(&namespace, &service, Records::A, i64::try_from(TTL)?).await?;
            let definition = Definition::new(&world.namespace, &service, &registry);
            let arn = ecs.cloud_map().arn(&registry).await?;
            api.adopt(&arn, ecs.service(definition.clone()).await?, None).await?;
            services.push(definition);
        }
        Ok(Self { world, ecs, api, zone, services })
    }

    /// Sets the desired counts, as `aws ecs update-service` does, and waits until so many tasks run.
    async fn set_tasks(&self, desired: i64) -> Result<()> {
        for Definition { cluster, name, .. } in &self.services {
            let request = json!({"cluster": cluster, "service": name, "desiredCount": desired});
            let answer = self.api.model().call("UpdateService", &request);
            answer.map_err(|refusal| anyhow!("{}: {}", refusal.code, refusal.message))?;
        }
        eventually(&format!("{desired} tasks of each service run"), PODS, async || {
            let counts: Vec<_> = self.api.model().services.values().map(|it| (it.running, it.pending)).collect();
            holds(counts.iter().all(|counts| *counts == (desired, 0)), "they run, and none is to start", &counts)
        })
        .await
    }

    /// Waits until the names have the addresses of the tasks, and no others.
    async fn tasks_alone(&self) -> Result<()> {
        for service in &self.services {
            let tasks = addresses(&self.ecs.service(service.clone()).await?);
            self.world.names()?.have(&format!("{}.{}", service.name, self.zone), "A", &tasks).await?;
        }
        Ok(())
    }

    /// Waits until the names have the addresses of the pods, and no others.
    async fn pods_alone(&self) -> Result<()> {
        for service in &self.services {
            let pods = self.world.pod_ipv4s(&self.world.clusters[0], &service.name).await?;
            self.world.names()?.have(&format!("{}.{}", service.name, self.zone), "A", &pods).await?;
        }
        Ok(())
    }

    /// Starts the caller, and waits until it is answered.
    async fn call(&self) -> Result<()> {
        let here = &self.world.clusters[0];
        // Else CoreDNS might remember for the caller that there was no such name.
        for service in &self.services {
            let name = format!("{}.{}.", service.name, self.zone);
            eventually("pods resolve the name", NAMES, async || {
                let found = here.dig(&name, "A").await?;
                holds(!found.is_empty(), &format!("{name} has addresses"), &found)
            })
            .await?;
        }
        self.world.apply(here, caller(&self.zone)).await?;
        eventually("the caller is answered", PODS, async || {
            let log = here.logs(&self.world.namespace, CALLER).await?;
            holds(log.contains("answered "), "it is", &log)
        })
        .await
    }

    /// What became of all requests until now: none failed, and both tasks and pods answered.
    async fn no_request_failed(&self) -> Result<()> {
        let log = self.world.clusters[0].logs(&self.world.namespace, CALLER).await?;
        let failed: Vec<_> = log.lines().filter(|line| !line.starts_with("answered ")).collect();
        let (all, by_pods) = (log.lines().count(), log.matches("answered orders-").count());
        holds(failed.is_empty(), &format!("none of {all} requests failed"), &failed)?;
        holds(by_pods > 0 && by_pods < all, "some were answered by pods, and some by tasks", &(by_pods, all))
    }

    /// Creates Services and exports, which get no traffic yet.
    async fn export(&self) -> Result<()> {
        let here = &self.world.clusters[0];
        for Definition { name, .. } in &self.services {
            self.world.apply(here, manifests::service(name, &[manifests::http(80)])).await?;
            let target = json!({
                "cloudmap-mcs/namespace": self.zone, "cloudmap-mcs/service": name, "cloudmap-mcs/share-of-traffic": "0%",
            });
            self.world.apply(here, manifests::annotated(manifests::export(name), &target)).await?;
        }
        Ok(())
    }

    /// All pods.
    async fn pods(&self) -> Result<Vec<Value>> {
        self.world.clusters[0].list(POD, &self.world.namespace, "cloudmap-mcs/gate=registered").await
    }

    /// Rolls the Deployments out, all at once, and waits until their pods are ready, and others are gone.
    async fn roll_out(&self, version: &str) -> Result<()> {
        for service in &self.services {
            self.world.apply(&self.world.clusters[0], gated(&service.name, version, LINGERS)).await?;
        }
        eventually(&format!("there are pods of version {version} alone"), PODS, async || {
            let pods = self.pods().await?;
            let is_new = |pod: &Value| pod["metadata"]["annotations"]["version"] == version;
            let is_ready = |pod: &Value| condition(pod, "Ready")["status"] == "True";
            let all = pods.len() == PODS_OF_EACH * SERVICES && pods.iter().all(|pod| is_new(pod) && is_ready(pod));
            holds(all, "they are ready, and others are gone", &pods.iter().map(name_of).collect::<Vec<_>>())
        })
        .await
    }

    /// Waits until all Cutovers are in this phase.
    async fn all_are(&self, phase: &str) -> Result<()> {
        eventually(&format!("all Cutovers are {phase}"), STEP, async || {
            let cutovers = self.world.clusters[0].list(CUTOVER, &self.world.namespace, "").await?;
            let others: Vec<_> = cutovers.iter().filter(|cutover| cutover["status"]["phase"] != phase).collect();
            holds(cutovers.len() == SERVICES && others.is_empty(), "no other phase is left", &others)
        })
        .await
    }

    /// All traffic goes to the pods.
    async fn there(&self) -> Result<()> {
        let planned = run(self.world, &self.api, "plan", &["--all"]).await?;
        // By any other --settle than the controller's it would be another time.
        let stops = format!("pods stop {LINGERS} s after they are deleted");
        for finding in [stops.as_str(), "pods are ready when clients of Cloud Map find them"] {
            holds(planned.matches(finding).count() == SERVICES, &format!("of each it says `{finding}`"), &planned)?;
        }
        let flags = ["--all", "--wave", "1", "--steps", "25,100", "--every", "30s", "--hide-tasks"];
        run(self.world, &self.api, "start", &flags).await?;
        self.all_are("Finished").await?;
        // The tasks are hidden, and still run.
        self.roll_out("2").await?;
        let pods = self.pods().await?;
        let is_other = |pod: &&Value| condition(pod, GATE)["reason"] != "Registered";
        let others: Vec<_> = pods.iter().filter(is_other).map(name_of).collect();
        holds(others.is_empty(), "all gates are open because of success", &others)?;
        // It waits until no client uses the hidden tasks any more.
        run(self.world, &self.api, "finish", &["--all", "--scale-ecs"]).await?;
        self.pods_alone().await
    }
}

/// All services move to the pods and back, and no request fails.
pub(super) async fn a_day(world: &World) -> Result<()> {
    let day = Day::new(world).await?;
    day.set_tasks(TASKS).await?;
    day.tasks_alone().await?;
    day.call().await?;
    day.export().await?;
    day.roll_out("1").await?;
    day.there().await?;
    // Clients that noticed nothing yet have the time to do so. A new task may get the address of one that was stopped.
    tokio::time::sleep(USED).await;

    day.set_tasks(TASKS).await?;
    run(world, &day.api, "back", &["--all"]).await?;
    day.all_are("RolledBack").await?;
    day.tasks_alone().await?;
    tokio::time::sleep(USED).await;
    day.no_request_failed().await?;

    let Day { ecs, api, services, .. } = day;
    drop(api);
    for service in services {
        ecs.service(service).await?.stop().await?;
    }
    Ok(())
}
