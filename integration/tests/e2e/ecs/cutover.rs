//! The traffic of ECS tasks moves to pods step by step, and back.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloudmap_mcs_integration::ecs::{Ecs, EcsApi, Model, Service};
use cloudmap_mcs_integration::scenario::{
    CLUSTER_ROLE, CLUSTER_ROLE_BINDING, CUTOVER, Cluster, NAMES, World, condition, eventually, holds, manifests,
    name_of,
};
use emulator::Write;
use serde_json::{Value, json};
use tokio::process::Command;

use super::day::{SETTLE, a_day};
use super::shares::{beside_tasks, resolves};
use super::{ids, two_tasks, written, wrote_no_task};
use crate::gates::component;

/// A step lasts for the TTL of the records and 15 s at least, and a new leader may begin it again. Tasks are hidden
/// and shown within a minute or two.
pub(super) const STEP: Duration = Duration::from_mins(8);

fn cutover(spec: &Value) -> Value {
    json!({"apiVersion": "cloudmap-mcs.io/v1alpha1", "kind": "Cutover", "metadata": {"name": "orders"}, "spec": spec})
}

/// Waits until the Cutover says this, and gives it.
async fn says(world: &World, phase: &str, share: i64, reason: &str) -> Result<Value> {
    let here = &world.clusters[0];
    eventually(&format!("the Cutover is {phase} at {share} %"), STEP, async || {
        let found = here.expect(CUTOVER, &world.namespace, "orders").await?;
        let status = &found["status"];
        let right = status["phase"] == phase && status["shareOfTraffic"] == share;
        holds(right && condition(&found, "Progressing")["reason"] == reason, reason, status)
    })
    .await?;
    here.expect(CUTOVER, &world.namespace, "orders").await
}

async fn steps(world: &World, namespace: &str, orders: &Service) -> Result<()> {
    let spec = json!({"steps": [40, 50], "interval": "1s"});
    let here = &world.clusters[0];
    let shifting = says(world, "Shifting", 40, "Shifting").await?;
    let said = condition(&shifting, "Progressing")["message"].as_str().context("a message")?.to_owned();
    holds(said.contains("is too short"), "the interval is raised, and that is said", &said)?;
    let mut paused = spec.clone();
    paused["paused"] = json!(true);
    world.apply(here, cutover(&paused)).await?;
    says(world, "Paused", 40, "Paused").await?;
    beside_tasks(world, namespace, orders, 1).await?;
    world.apply(here, cutover(&spec)).await?;
    says(world, "Holding", 50, "LastStep").await?;
    beside_tasks(world, namespace, orders, 2).await?;

    // What the schema refuses never gets to the controller.
    let falling = here.apply(&world.namespace, cutover(&json!({"steps": [50, 40]}))).await;
    let refused = falling.err().map(|error| format!("{error:#}")).unwrap_or_default();
    holds(refused.contains("steps must rise"), "steps that fall are refused", &refused)?;

    let mut held = spec.clone();
    held["shareOfTraffic"] = json!(10);
    world.apply(here, cutover(&held)).await?;
    says(world, "Holding", 10, "Held").await?;
    beside_tasks(world, namespace, orders, 1).await?;
    let mut back = spec;
    back["rollBack"] = json!(true);
    world.apply(here, cutover(&back)).await?;
    says(world, "RolledBack", 0, "RolledBack").await?;
    beside_tasks(world, namespace, orders, 0).await?;

    // A guard reaches the pods and DNS from the controller's pod. It asks nobody on a port that the Service does not have,
    // and without an answer no pod gets traffic.
    world.apply(here, cutover(&json!({"steps": [50], "guard": {"port": 81}}))).await?;
    says(world, "Shifting", 0, "GuardUnclear").await?;
    // At first, the guard has not looked yet.
    eventually("the remedy is named", STEP, async || {
        let unclear = here.expect(CUTOVER, &world.namespace, "orders").await?;
        let said = unclear["status"]["conditions"].to_string();
        holds(said.contains("no pod to probe"), "the message says why", &said)
    })
    .await?;
    beside_tasks(world, namespace, orders, 0).await?;
    world.apply(here, cutover(&json!({"steps": [50], "guard": {"path": "/"}}))).await?;
    says(world, "Holding", 50, "LastStep").await?;
    beside_tasks(world, namespace, orders, 2).await.map(drop)
}

/// Two pods for `orders`, and a Cutover with this spec.
async fn prepare(world: &World, spec: &Value) -> Result<()> {
    let here = &world.clusters[0];
    world.deploy(here, "orders", 2).await?;
    world.apply(here, manifests::service("orders", &[manifests::http(80)])).await?;
    world.apply(here, cutover(spec)).await.map(drop)
}

/// Has the pods registered beside the tasks.
async fn export(world: &World, namespace: &str) -> Result<()> {
    let target = json!({"cloudmap-mcs/namespace": namespace, "cloudmap-mcs/service": "orders"});
    world.apply(&world.clusters[0], manifests::annotated(manifests::export("orders"), &target)).await.map(drop)
}

async fn hide_and_show(world: &World, namespace: &str, orders: &Service) -> Result<()> {
    let here = &world.clusters[0];
    says(world, "Finished", 100, "OthersServe").await?;
    let pods = world.pod_ipv4s(here, "orders").await?;
    world.names()?.have(&format!("orders.{namespace}"), "A", &pods).await?;
    let finished = here.expect(CUTOVER, &world.namespace, "orders").await?;
    let hidden = condition(&finished, "TasksHidden");
    holds(hidden["reason"] == "Hidden" && finished["status"]["hidden"] == 2, "both are hidden", &finished["status"])?;
    for task in orders.tasks() {
        eventually("a hidden task still answers", NAMES, async || {
            let answered = orders.tasks()[0].curl(&format!("http://{}:8080/hostname", task.ipv4)).await?;
            holds(answered == task.id, "it is the task", &answered)
        })
        .await?;
    }
    world.apply(here, cutover(&json!({"steps": [100], "rollBack": true, "hideTasks": true}))).await?;
    says(world, "RolledBack", 0, "RolledBack").await?;
    beside_tasks(world, namespace, orders, 0).await.map(drop)
}

/// Of the tasks, only their health was written: both were hidden, and shown again.
async fn marked_only(world: &World, namespace: &str, tasks: &BTreeSet<String>) -> Result<()> {
    let theirs = written(world, namespace, tasks).await?;
    let marks = |write: &&Write| write.operation == "UpdateInstanceCustomHealthStatus";
    let (marks, others): (Vec<_>, Vec<_>) = theirs.iter().partition(marks);
    holds(others.is_empty() && marks.len() >= 4, "each was hidden and shown, and nothing else", &theirs)
}

/// All traffic goes to the pods while the tasks still run, and back: they are hidden, and shown again.
async fn hides(world: &World) -> Result<()> {
    let (namespace, orders) = two_tasks(world).await?;
    prepare(world, &json!({"steps": [100], "interval": "1s", "hideTasks": true})).await?;
    export(world, &namespace).await?;
    tokio::select! {
        lost = resolves(world, &namespace) => lost,
        done = hide_and_show(world, &namespace, &orders) => done,
    }?;
    marked_only(world, &namespace, &ids(&orders)).await?;
    orders.stop().await
}

/// Runs `cloudmap-mcs cutover COMMAND` on this machine with these arguments, and gives what it printed.
pub(super) async fn run(world: &World, api: &EcsApi, command: &str, arguments: &[&str]) -> Result<String> {
    let program = std::env::var("PROGRAM").context("PROGRAM is not set: it is the path of cloudmap-mcs")?;
    let endpoint = std::env::var("MCS_E2E_EMULATOR").context("MCS_E2E_EMULATOR is not set")?;
    let mut process = Command::new(program);
    process.args(["cutover", command, "--namespace", &world.namespace, "--context", &world.clusters[0].context]);
    process.args(arguments);
    // `start` asks neither Cloud Map nor ECS.
    if command != "start" {
        process.args(["--cloudmap-endpoint", &endpoint, "--ecs-endpoint", &api.endpoint(), "--region", "eu-central-1"]);
    }
    process.env("AWS_ACCESS_KEY_ID", "operator").env("AWS_SECRET_ACCESS_KEY", "none");
    let ran = process.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let said = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    // With warnings, the exit status of `plan` is 1.
    let is_good = ran.status.success() || (command == "plan" && ran.status.code() == Some(1));
    ensure!(is_good, "cutover {command}: {}: {said}", ran.status);
    Ok(said)
}

/// The end, with the program that users have: it finds the ECS service, stops its tasks when all pods are registered, and says
/// on the way back how to start them again.
async fn ends(world: &World, namespace: &str, orders: &Service) -> Result<()> {
    let (here, ecs) = (&world.clusters[0], Ecs::from_env().await?);
    let (definition, api) = (orders.definition(), EcsApi::start(Model::default()).await?);
    api.adopt(&orders.registry_arn().await?, ecs.service(definition.clone()).await?, None).await?;
    let cluster = &definition.cluster;
    let planned = run(world, &api, "plan", &["orders"]).await?;
    holds(planned.contains(&format!("{cluster}/orders: 2 of 2 tasks run")), "the ECS service is named", &planned)?;

    world.apply(here, cutover(&json!({"steps": [100], "interval": "1s"}))).await?;
    says(world, "Finished", 100, "OthersServe").await?;
    let pods = world.pod_ipv4s(here, "orders").await?;
    let finished = run(world, &api, "finish", &["orders", "--scale-ecs", "--timeout", "10m"]).await?;
    let stopped = finished.contains(&format!("{cluster}/orders has no task any more"));
    holds(stopped, "the tasks were stopped and waited for", &finished)?;
    // ECS does not count a task as running any more as soon as it begins to end.
    eventually("all tasks have ended", NAMES, async || {
        let left = ids(&ecs.service(definition.clone()).await?);
        holds(left.is_empty(), "no task is left", &left)
    })
    .await?;
    world.names()?.have(&format!("orders.{namespace}"), "A", &pods).await?;

    let back = run(world, &api, "back", &["orders"]).await?;
    let raise = format!(
        "aws ecs update-service --region eu-central-1 --cluster {cluster} --service orders --desired-count {}",
        pods.len()
    );
    let told = back.contains(&format!("{cluster}/orders is to have 0 tasks")) && back.contains(&raise);
    holds(told, &format!("no task takes the traffic, and `{raise}` starts them"), &back)
}

async fn moves(world: &World, here: &Cluster) -> Result<()> {
    let (namespace, orders) = two_tasks(world).await?;
    let first = ids(&orders);
    prepare(world, &json!({"steps": [40, 50], "interval": "1s"})).await?;
    // Without its counterpart it says what is missing.
    eventually("the Cutover says what is missing", NAMES, async || {
        let cutover = here.expect(CUTOVER, &world.namespace, "orders").await?;
        holds(condition(&cutover, "Progressing")["reason"] == "NoObject", "NoObject", &cutover["status"])
    })
    .await?;
    export(world, &namespace).await?;
    tokio::select! {
        lost = resolves(world, &namespace) => lost,
        done = steps(world, &namespace, &orders) => done,
    }?;

    wrote_no_task(world, &namespace, &first).await?;
    tokio::select! {
        lost = resolves(world, &namespace) => lost,
        done = ends(world, &namespace, &orders) => done,
    }?;
    // Without the Cutover all pods are registered. There is no task beside them any more.
    here.delete(CUTOVER, &world.namespace, "orders").await?;
    let orders = Ecs::from_env().await?.service(orders.definition().clone()).await?;
    beside_tasks(world, &namespace, &orders, 2).await?;
    orders.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_traffic_of_two_tasks_moves_to_two_pods_step_by_step_and_back() {
    World::run_in(&[2], &[2], "ecs-cutover", async |world| {
        let here = &world.clusters[0];
        let components = [component("cutovers")?, component("readiness-gates")?].concat();
        for object in &components {
            here.apply("", object.clone()).await?;
        }
        let flags = ["CLOUDMAP_MCS_CUTOVERS", "CLOUDMAP_MCS_HIDE_TASKS", "CLOUDMAP_MCS_READINESS_GATES"];
        let mut flags = Vec::from(flags.map(|flag| (flag, "true".to_owned())));
        flags.push(("CLOUDMAP_MCS_SETTLE", format!("{SETTLE}s")));
        let before = here.controller().set(&flags).await?;
        // Each of them waits for most of its time.
        let hiding = world.beside("ecs-hiding", async |world| hides(world).await);
        let day = world.beside("ecs-day", async |world| a_day(world).await);
        let (moved, hidden, day) = tokio::join!(Box::pin(moves(world, here)), Box::pin(hiding), Box::pin(day));
        let outcome = moved.and(hidden).and(day);
        here.controller().restore(before).await?;
        for object in components.iter().rev() {
            let kind = if object["kind"] == "ClusterRole" { CLUSTER_ROLE } else { CLUSTER_ROLE_BINDING };
            here.delete(kind, "", name_of(object)).await?;
        }
        outcome
    })
    .await;
}
