//! A cluster is drained, upgraded and brought back, and no client notices.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    CLUSTER_PROPERTY, Cluster, DEPLOYMENT, POD, PODS, PROPAGATION, SERVICE_EXPORT, World, eventually, holds, manifests,
    name_of,
};
use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::process::Command;

/// The ClusterProperty that the program sets.
const PROPERTY: &str = "drain.cloudmap-mcs.io";

/// Number of names that both clusters serve; and one that only the drained one does.
const BOTH: usize = 20;
const ONLY: &str = "only";
/// What is rolled out again in the other cluster meanwhile.
const ROLLED: &str = "web-1";

fn both() -> impl Iterator<Item = String> {
    (1..=BOTH).map(|n| format!("web-{n}"))
}

/// Pods that end gently where that is asked for, and that nobody probes often.
fn pods(name: &str) -> Value {
    let mut deployment = manifests::deployment(name, 1);
    let pod = &mut deployment["spec"]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(20);
    pod["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 15}}});
    pod["containers"][0]["readinessProbe"]["periodSeconds"] = json!(3);
    deployment
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_drained_upgraded_and_brought_back_without_a_failed_request() {
    World::run_in(&[3, 4], &[3], "drain", async |world| {
        let [upgraded, _] = world.pair();
        let outcome = Box::pin(upgrade(world)).await;
        // Whoever uses the cluster next finds it as it was.
        upgraded.delete(CLUSTER_PROPERTY, "", PROPERTY).await?;
        outcome?;
        try_join_all(both().map(async |name| world.followed(upgraded, &name).await)).await.map(drop)
    })
    .await;
}

async fn upgrade(world: &World) -> Result<()> {
    let [upgraded, other] = world.pair();
    let everywhere = [upgraded, other].into_iter().flat_map(|cluster| both().map(move |name| (cluster, name)));
    try_join_all(everywhere.map(async |(cluster, name)| world.roll_out(cluster, pods(&name)).await)).await?;
    for name in both() {
        for cluster in [upgraded, other] {
            world.apply(cluster, manifests::service(&name, &[manifests::http(80)])).await?;
            world.apply(cluster, manifests::export(&name)).await?;
        }
    }
    world.export(upgraded, ONLY, 1).await?;
    try_join_all(both().chain([ONLY.to_owned()]).map(async |name| world.followed(upgraded, &name).await)).await?;
    eventually("the other cluster serves, too", PROPAGATION, async || {
        for name in both() {
            let there = world.imported_addresses(upgraded, &name, other).await?;
            holds(!there.is_empty(), &format!("{} serves {name}", other.id), &there)?;
        }
        Ok(())
    })
    .await?;

    let urls: Vec<_> = both().map(|name| format!("http://{}/hostname", world.name(&name))).collect();
    let (some, others) = urls.split_at(BOTH / 2);
    let day = Box::pin(other.load_all(others, Box::pin(day(world))));
    let (((), first), second) = Box::pin(other.load_all(some, day)).await?;
    let failed: BTreeSet<_> = first.failures.iter().chain(&second.failures).collect();
    let answers = first.answers + second.answers;
    let _ = writeln!(std::io::stderr(), "requests while a cluster was upgraded: {answers}, failed: {}", failed.len());
    holds(failed.is_empty() && answers > 5_000, &format!("{answers} requests, all answered"), &failed)
}

/// The day of an upgrade.
async fn day(world: &World) -> Result<()> {
    let [upgraded, other] = world.pair();
    let mut rolled = pods(ROLLED);
    rolled["spec"]["template"]["metadata"]["annotations"] = json!({"rolled": "out"});
    let arguments = ["--settle", "5s"];
    let (drained, rolled) = tokio::join!(run(upgraded, &arguments), world.roll_out(other, rolled));
    rolled?;
    let drained = drained?;
    let said = String::from_utf8_lossy(&drained.stdout).into_owned();
    holds(drained.status.code() == Some(1), "a name stays, so the program fails", &said)?;
    let stays = format!("{}/{ONLY}: No other cluster exports this name.", world.namespace);
    let says = said.contains(&format!("{BOTH} names are drained")) && said.contains(&stays);
    holds(says, "it says what is drained, and what stays and why", &said)?;
    for (cluster, name) in [upgraded, other].into_iter().flat_map(|cluster| both().map(move |name| (cluster, name))) {
        let left = world.imported_addresses(cluster, &name, upgraded).await?;
        holds(left.is_empty(), &format!("{name} is left in {}", cluster.id), &left)?;
    }
    let stay = world.imported_addresses(other, ONLY, upgraded).await?;
    holds(!stay.is_empty(), "what nobody else serves stays", &stay)?;

    // The controller, the API server and all pods go without a word, as their nodes do.
    upgraded.controller().stop().await?;
    upgraded.restart_api_server(Duration::ZERO).await?;
    try_join_all(both().map(async |name| {
        upgraded.merge(DEPLOYMENT, &world.namespace, &name, &json!({"spec": {"replicas": 0}})).await?;
        for pod in upgraded.list(POD, &world.namespace, &format!("app={name}")).await? {
            upgraded.kill_pod(&world.namespace, name_of(&pod)).await?;
        }
        eventually("no pod is left", PODS, async || {
            let pods = upgraded.list(POD, &world.namespace, &format!("app={name}")).await?;
            holds(pods.is_empty(), "there is none", &pods.len())
        })
        .await
    }))
    .await?;
    try_join_all(both().map(async |name| world.roll_out(upgraded, pods(&name)).await)).await?;
    upgraded.controller().run(2, &[]).await?;

    let back = run(upgraded, &["--back"]).await?;
    let said = [back.stdout, back.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    holds(back.status.success() && said.contains("are back"), "it waits until they are back", &said)?;
    drain_both(world).await
}

/// Two clusters that are drained at once serve: nobody else does.
async fn drain_both(world: &World) -> Result<()> {
    let clusters = world.pair();
    let drain = |drained: Option<&str>| json!({"metadata": {"annotations": {"cloudmap-mcs/drain": drained}}});
    for cluster in clusters {
        cluster.merge(SERVICE_EXPORT, &world.namespace, ROLLED, &drain(Some("true"))).await?;
    }
    for cluster in clusters {
        world.export_condition(cluster, ROLLED, "Drained", "False", "Stays").await?;
    }
    eventually("both serve", PROPAGATION, async || {
        for (cluster, source) in clusters.iter().flat_map(|cluster| clusters.map(|source| (*cluster, source))) {
            let shown = world.imported_addresses(cluster, ROLLED, source).await?;
            holds(!shown.is_empty(), &format!("{} serves in {}", source.id, cluster.id), &shown)?;
        }
        Ok(())
    })
    .await?;
    for cluster in clusters {
        cluster.merge(SERVICE_EXPORT, &world.namespace, ROLLED, &drain(None)).await?;
    }
    Ok(())
}

/// Runs `cloudmap-mcs drain --all` on this machine.
async fn run(cluster: &Cluster, arguments: &[&str]) -> Result<Output> {
    let program = std::env::var("PROGRAM").context("PROGRAM is not set: it is the path of cloudmap-mcs")?;
    let mut process = Command::new(program);
    process.args(["drain", "--all", "--context", &cluster.context]).args(arguments);
    Ok(process.stdin(Stdio::null()).kill_on_drop(true).output().await?)
}
