//! Claims: several Services, in one cluster or in several, that want one name in Cloud Map.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    Cluster, NAMES, SERVICE, SERVICE_EXPORT, World, condition, eventually, holds, manifests, name_of, system_namespace,
};
use serde_json::json;

/// The name that all want.
const NAME: &str = "shop";

/// The Cloud Map namespace of a scenario; the name that all want is in it.
fn namespace(world: &World) -> String {
    format!("{}-claims", world.namespace)
}

/// The IPv4 addresses that are registered under the name.
async fn registered(world: &World) -> Result<BTreeSet<String>> {
    let instances = world.registry()?.discover(&namespace(world), NAME).await?;
    Ok(instances.values().filter_map(|attributes| attributes.get("AWS_INSTANCE_IPV4").cloned()).collect())
}

/// Waits until exactly the pods of a Service are registered under the name.
async fn held_by(world: &World, cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
    let what = format!("the pods of {name} in {} have the name", cluster.context);
    eventually(&what, NAMES, async || {
        let (found, wanted) = (registered(world).await?, world.pod_ipv4s(cluster, name).await?);
        holds(!wanted.is_empty() && found == wanted, &format!("{what}, which are {wanted:?}"), &found)?;
        Ok(found)
    })
    .await
}

/// Starts a pod, and a Service for it that wants the name.
async fn claim(world: &World, cluster: &Cluster, name: &str) -> Result<()> {
    world.deploy(cluster, name, 1).await?;
    world.apply(cluster, manifests::named(name, &namespace(world), NAME)).await.map(drop)
}

/// Waits until a Service says that another one has the name.
async fn loses_to(world: &World, cluster: &Cluster, name: &str, winner: (&Cluster, &str)) -> Result<()> {
    let winner = format!("Service {}/{} of cluster {}", world.namespace, winner.1, winner.0.id);
    world.described(cluster, SERVICE, name, "DomainConflict", &winner).await
}

/// Ends only when an address that should be there is missing from the name, or one that should not be is there.
async fn stays(world: &World, some: &BTreeSet<String>, foreign: &BTreeSet<String>) -> Result<()> {
    loop {
        let now = registered(world).await?;
        holds(some.is_subset(&now), &format!("the name still has {some:?}"), &now)?;
        holds(now.is_disjoint(foreign), &format!("the name has none of {foreign:?}"), &now)?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// SIGKILLs both replicas.
async fn kill_controller(cluster: &Cluster) -> Result<()> {
    for pod in cluster.controller().pods().await? {
        cluster.kill_pod(&system_namespace(), name_of(&pod)).await?;
    }
    Ok(())
}

/// The annotations that ask for the name, gone.
fn released() -> serde_json::Value {
    json!({"metadata": {"annotations": {"cloudmap.controller/namespace": null, "cloudmap.controller/hostname": null}}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_claim_keeps_its_name_through_restarts_and_is_taken_over_when_it_is_released() {
    World::run_in(&[4, 5], &[4, 5], "claims", async |world| {
        let [here, there] = world.pair();
        world.settle().await?;
        world.registry()?.create_namespace(&namespace(world)).await?;
        claim(world, here, "first").await?;
        world.deploy(here, "passing", 1).await?;
        world.apply(here, manifests::named("passing", &namespace(world), "passing")).await?;
        let first = held_by(world, here, "first").await?;
        claim(world, there, "second").await?;
        loses_to(world, there, "second", (here, "first")).await?;
        let second = world.pod_ipv4s(there, "second").await?;
        eventually("the Service that goes is registered", NAMES, async || {
            let instances = world.registry()?.discover(&namespace(world), "passing").await?;
            holds(instances.len() == 1, "its pod is", &instances)
        })
        .await?;

        let before = world.registry()?.writes().await?.last().map_or(0, |write| write.sequence);
        let restart = async {
            for cluster in &world.clusters {
                kill_controller(cluster).await?;
            }
            // While nobody is there to see it.
            here.delete(SERVICE, &world.namespace, "passing").await?;
            world.deploy(here, "first", 2).await?;
            world.settle().await?;
            held_by(world, here, "first").await?;
            eventually("what was deleted while no controller ran is withdrawn", NAMES, async || {
                let instances = world.registry()?.discover(&namespace(world), "passing").await?;
                holds(instances.is_empty(), "it is", &instances)
            })
            .await
        };
        tokio::select! {
            lost = stays(world, &first, &second) => lost,
            done = restart => done,
        }?;
        let target = (namespace(world), NAME.to_owned());
        let writes: Vec<_> = world
            .registry()?
            .writes()
            .await?
            .into_iter()
            .filter(|write| write.sequence > before && write.result == "ok")
            .filter(|write| (&write.namespace, &write.service) == (&target.0, &target.1))
            .collect();
        // More than once where an answer came too late.
        let written: BTreeSet<_> = writes.iter().map(|write| (&write.operation, &write.instance)).collect();
        holds(
            written.len() == 1 && writes[0].operation == "RegisterInstance",
            "the second pod of the first Service is all that was written under the name",
            &writes,
        )?;

        here.merge(SERVICE, &world.namespace, "first", &released()).await?;
        held_by(world, there, "second").await?;
        world.described(there, SERVICE, "second", "IPRegistered", NAME).await?;
        world.described(here, SERVICE, "first", "IPRemoved", NAME).await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_goes_from_claim_to_claim_and_exports_wait_like_services() {
    World::run("claims-chain", async |world| {
        let [here, there] = world.pair();
        world.registry()?.create_namespace(&namespace(world)).await?;
        claim(world, here, "first").await?;
        held_by(world, here, "first").await?;
        claim(world, here, "second").await?;
        loses_to(world, here, "second", (here, "first")).await?;
        world.deploy(there, "third", 1).await?;
        world.apply(there, manifests::service("third", &[manifests::http(80)])).await?;
        let target = json!({"cloudmap-mcs/namespace": namespace(world), "cloudmap-mcs/service": NAME});
        world.apply(there, manifests::annotated(manifests::export("third"), &target)).await?;
        conflicts(world, there, "third", "first").await?;
        // The export itself is none the worse for it.
        world.export_condition(there, "third", "Ready", "True", "Exported").await?;

        let (nobody, third) = (BTreeSet::new(), world.pod_ipv4s(there, "third").await?);
        here.delete(SERVICE, &world.namespace, "first").await?;
        // The next oldest, although its cluster has no other claim to show than that of the first.
        tokio::select! {
            lost = stays(world, &nobody, &third) => lost,
            done = held_by(world, here, "second") => done.map(drop),
        }?;
        conflicts(world, there, "third", "second").await?;
        here.merge(SERVICE, &world.namespace, "second", &released()).await?;
        held_by(world, there, "third").await?;
        world.export_condition_within(NAMES, there, "third", ["Registered", "True", "Registered"]).await.map(drop)
    })
    .await;
}

/// Waits until an export says that a Service has its name.
async fn conflicts(world: &World, cluster: &Cluster, export: &str, winner: &str) -> Result<()> {
    let what = format!("the export {export} says that {winner} was first");
    eventually(&what, NAMES, async || {
        let export = cluster.expect(SERVICE_EXPORT, &world.namespace, export).await?;
        let registered = condition(&export, "Registered");
        let message = registered["message"].as_str().context("no message")?;
        let said = message.contains(&format!("{}/{winner} ", world.namespace));
        holds(registered["status"] == "False" && registered["reason"] == "NameConflict" && said, &what, registered)
    })
    .await
}
