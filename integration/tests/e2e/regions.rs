//! One ClusterSet over two registries: a cluster moves its home to another region, which is away for a while.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    CONFIG_MAP, Cluster, DEPLOYMENT, NAMES, NAMESPACE, PODS, PROPAGATION, Registry, SERVICE_EXPORT, Skip, World,
    eventually, holds, holds_for,
    manifests::{self, Blackhole},
    system_namespace,
};
use serde_json::{Value, json};

/// The settings of the controllers that have two registries.
const SETTINGS: &str = "cloudmap-mcs-config-regions";
/// The address of a task in the other region, which nobody asks.
const TASK: &str = "10.251.7.7";
/// What is true for so long stays so.
const STAYS: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_moves_to_another_region_whose_registry_is_away_for_a_while() {
    World::run_in(&[4, 5], &[4, 5], "regions", async |world| {
        let elsewhere = Registry::elsewhere()?;
        let elsewhere = elsewhere.ok_or_else(|| Skip("needs another emulator (MCS_E2E_OTHER_EMULATOR)".to_owned()))?;
        let [here, there] = world.pair();
        for cluster in [here, there] {
            world.roll_out(cluster, pods()).await?;
            world.apply(cluster, manifests::service("web", &[manifests::http(80)])).await?;
            world.apply(cluster, manifests::export("web")).await?;
        }
        both_serve(world).await?;
        let mut former = Vec::new();
        for cluster in [here, there] {
            former.push(cluster.controller().containers().await?);
        }
        let outcome = Box::pin(regions(world, &elsewhere)).await;
        // Whoever uses the clusters next finds them as they were.
        for (cluster, former) in [here, there].into_iter().zip(former) {
            cluster.controller().restore(former).await?;
            cluster.delete(CONFIG_MAP, &system_namespace(), SETTINGS).await?;
        }
        outcome?;
        eventually("they are in one region again", PROPAGATION, async || shows(world, there, here).await).await
    })
    .await;
}

async fn regions(world: &World, elsewhere: &Registry) -> Result<()> {
    let [here, there] = world.pair();
    let url = format!("http://{}/hostname", world.name("web"));
    let ((), load) = here.load(&url, Box::pin(day(world, elsewhere))).await?;
    holds(load.answers > 100 && load.failures.is_empty(), "every request is answered", &load.failures)?;

    let shown = here.controller().command(&["ledger", "show"]).await?;
    let of_us = shown.split("Registry us:").nth(1).unwrap_or_default();
    holds(of_us.contains(&there.id), "the ledger of the other region is shown", &shown)?;
    there.delete(SERVICE_EXPORT, &world.namespace, "web").await?;
    eventually("what is withdrawn there goes here", PROPAGATION, async || {
        let left = world.imported_addresses(here, "web", there).await?;
        holds(left.is_empty(), "nothing of it is left", &left)
    })
    .await
}

/// Two clusters in one region; one of them moves to another region; the registry there is away, and is back.
async fn day(world: &World, elsewhere: &Registry) -> Result<()> {
    let [here, there] = world.pair();
    let registries = json!({
        "eu": {"region": "eu-central-1", "endpoint": format!("http://{}", world.registry()?.address()?)},
        "us": {"region": "us-east-1", "endpoint": format!("http://{}", elsewhere.address()?)},
    });
    give_home(here, "eu", &registries).await?;
    give_home(there, "us", &registries).await?;
    eventually("its pods are registered in the region of its new home", PROPAGATION, async || {
        let found = elsewhere.discover(&world.namespace, "web").await?;
        holds(found.len() == 2, "both are", &found)
    })
    .await?;
    both_serve(world).await?;
    scale(world, there, 3).await?;
    both_serve(world).await?;
    import_task(world, elsewhere).await?;

    for cluster in [here, there] {
        world.blackhole(cluster, "us", &[Blackhole::Port(elsewhere.address()?)]).await?;
    }
    readable(here, false).await?;
    scale(world, here, 3).await?;
    scale(world, there, 2).await?;
    // What leaders send each other needs no registry.
    both_serve(world).await?;
    here.controller().kill_leader().await?;
    here.controller().settle().await?;
    holds_for("a new leader that cannot read the registry keeps what was read", STAYS, async || {
        let shown = ipv4(world.imported_addresses(here, "web", there).await?);
        holds(shown.len() == 2, "both are there", &shown)?;
        shows_task(world).await
    })
    .await?;
    scale(world, here, 2).await?;
    for cluster in [here, there] {
        world.let_through(cluster, "us").await?;
    }
    readable(here, true).await?;
    scale(world, there, 3).await?;
    both_serve(world).await
}

/// Imports a task of the other region, which is in no cluster.
async fn import_task(world: &World, elsewhere: &Registry) -> Result<()> {
    let [here, _] = world.pair();
    let namespace = format!("{}-tasks", world.namespace);
    let service = elsewhere.create_service(&namespace, "billing").await?;
    let attributes = [("AWS_INSTANCE_IPV4", TASK), ("AWS_INSTANCE_PORT", "8080")];
    elsewhere.register(&namespace, ("billing", &service), "task", &attributes).await?;
    let from = json!({"metadata": {"annotations": {"cloudmap.controller/import-from": format!("us/{namespace}")}}});
    here.merge(NAMESPACE, "", &world.namespace, &from).await?;
    eventually("a task of the other region is imported", NAMES, async || shows_task(world).await).await
}

async fn shows_task(world: &World) -> Result<()> {
    let [here, _] = world.pair();
    let slices = world.imported_slices(here, "billing").await?;
    holds(slices.len() == 1 && slices[0]["endpoints"][0]["addresses"] == json!([TASK]), "the task is there", &slices)
}

/// Pods that end gently.
fn pods() -> Value {
    let mut deployment = manifests::deployment("web", 2);
    let pod = &mut deployment["spec"]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(20);
    pod["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 15}}});
    deployment
}

/// One of the clusters has no other family.
fn ipv4(addresses: BTreeSet<String>) -> BTreeSet<String> {
    addresses.into_iter().filter(|address| !address.contains(':')).collect()
}

async fn scale(world: &World, cluster: &Cluster, replicas: u32) -> Result<()> {
    cluster.merge(DEPLOYMENT, &world.namespace, "web", &json!({"spec": {"replicas": replicas}})).await?;
    eventually("so many pods are ready", PODS, async || {
        let ready = ipv4(world.local_addresses(cluster, "web").await?);
        holds(ready.len() == replicas as usize, &format!("{replicas} are"), &ready)
    })
    .await
}

/// Waits until each cluster imports the pods of both.
async fn both_serve(world: &World) -> Result<()> {
    eventually("each cluster has the endpoints of both", PROPAGATION, async || {
        for cluster in world.pair() {
            for source in world.pair() {
                shows(world, cluster, source).await?;
            }
        }
        Ok(())
    })
    .await
}

/// Whether a cluster imports the pods of another one, or its own.
async fn shows(world: &World, cluster: &Cluster, source: &Cluster) -> Result<()> {
    let own = ipv4(world.local_addresses(source, "web").await?);
    let shown = ipv4(world.imported_addresses(cluster, "web", source).await?);
    holds(own == shown && !own.is_empty(), &format!("those of {} in {}", source.id, cluster.id), &shown)
}

/// Waits until the leader of a cluster says whether it can read the other registry.
async fn readable(cluster: &Cluster, can: bool) -> Result<()> {
    eventually("the metric says whether the registry can be read", PROPAGATION, async || {
        let leader = cluster.controller().leader().await?;
        let value = cluster.controller().metric(&leader, "cloudmap_mcs_registry_readable", "registry=\"us\"").await?;
        holds((value > 0.5) == can, &format!("it can: {can}"), &value)
    })
    .await
}

/// Gives a cluster this home among these registries, as an administrator does it: in the ConfigMap with the flags.
async fn give_home(cluster: &Cluster, home: &str, registries: &Value) -> Result<()> {
    let mut containers = cluster.controller().containers().await?;
    let from = containers[0]["envFrom"][0]["configMapRef"]["name"].as_str().context("there are no settings")?;
    let mut settings = cluster.expect(CONFIG_MAP, &system_namespace(), from).await?["data"].clone();
    let flags = settings.as_object_mut().context("there are no settings")?;
    flags.retain(|name, _| !["CLOUDMAP_MCS_REGION", "CLOUDMAP_MCS_CLOUDMAP_ENDPOINT"].contains(&name.as_str()));
    flags.insert("CLOUDMAP_MCS_HOME".to_owned(), home.into());
    flags.insert("CLOUDMAP_MCS_REGISTRIES".to_owned(), registries.to_string().into());
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": SETTINGS}, "data": settings,
    });
    cluster.apply(&system_namespace(), object).await?;
    containers[0]["envFrom"][0]["configMapRef"]["name"] = SETTINGS.into();
    cluster.controller().restore(containers).await
}
