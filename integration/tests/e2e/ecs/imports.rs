//! Pods reach ECS tasks by the name that they have in `clusterset.local`.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use aws_sdk_servicediscovery::types::CustomHealthStatus;
use cloudmap_mcs_integration::ecs::{Definition, Ecs, Records};
use cloudmap_mcs_integration::scenario::{
    Cluster, NAMES, NAMESPACE, POD, PROPAGATION, SERVICE_EXPORT, SERVICE_IMPORT, World, eventually, holds, name_of,
};
use serde_json::{Value, json};

use super::ids;

/// Lets the scenario's namespace import from Cloud Map namespaces, or from none.
async fn import_from(world: &World, cluster: &Cluster, namespaces: Option<&str>) -> Result<()> {
    let annotations = json!({"metadata": {"annotations": {"cloudmap.controller/import-from": namespaces}}});
    cluster.merge(NAMESPACE, "", &world.namespace, &annotations).await
}

/// Waits for the first import from a Cloud Map namespace: that it is there tells a listing, and AWS allows all clusters together
/// few of those.
async fn found(world: &World, cluster: &Cluster, name: &str) -> Result<Value> {
    eventually("what is in the namespace is imported", NAMES, async || {
        cluster.expect(SERVICE_IMPORT, &world.namespace, name).await
    })
    .await
}

/// Waits until all of these answer at a URL, and nobody else.
async fn answered_by(cluster: &Cluster, url: &str, wanted: &BTreeSet<String>) -> Result<()> {
    answered_within(PROPAGATION, cluster, url, wanted).await
}

async fn answered_within(within: Duration, cluster: &Cluster, url: &str, wanted: &BTreeSet<String>) -> Result<()> {
    eventually(&format!("{wanted:?} answer at {url}"), within, async || {
        // The tasks have IPv4 only; where the pods' Service has both, a client that takes IPv6 gets pods.
        let answered = cluster.answers(None, &format!("--ipv4 {url}"), 10 * wanted.len()).await?;
        holds(answered == *wanted, &format!("it is {wanted:?}"), &answered)
    })
    .await
}

/// The tasks alone are behind a ServiceImport with their port; beside pods, both halves are behind the pods' Service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_reach_tasks_alone_and_beside_pods_by_one_name() {
    World::run("ecs-tasks", async |world| {
        let [here, elsewhere] = world.pair();
        let ecs = Ecs::from_env().await?;
        let namespace = format!("{}-ecs", world.namespace);
        let registry = ecs.cloud_map().private_service(&namespace, "orders", Records::A).await?;
        let mut orders = ecs.service(Definition::new(&world.namespace, "orders", &registry)).await?;
        orders.scale(2).await?;

        import_from(world, here, Some(&namespace)).await?;
        let import = found(world, here, "orders").await?;
        holds(import["spec"]["type"] == "ClusterSetIP", "it has an address of its own", &import)?;
        holds(import["spec"]["ports"][0]["port"] == 8080, "its port is the tasks'", &import)?;
        let by_port = format!("http://{}:8080/hostname", world.name("orders"));
        answered_by(here, &by_port, &ids(&orders)).await?;
        for slice in world.imported_slices(here, "orders").await? {
            let source = &slice["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"];
            holds(*source == format!("ecs-{}", world.namespace), "the ECS cluster is its source", &slice)?;
        }
        orders.scale(3).await?;
        answered_by(here, &by_port, &ids(&orders)).await?;
        let sick = orders.tasks().first().context("no tasks")?.clone();
        orders.set_health(&sick, CustomHealthStatus::Unhealthy).await?;
        let healthy: BTreeSet<_> = ids(&orders).into_iter().filter(|id| *id != sick.id).collect();
        answered_within(super::HEALTH, here, &by_port, &healthy).await?;
        orders.set_health(&sick, CustomHealthStatus::Healthy).await?;
        answered_within(super::HEALTH, here, &by_port, &ids(&orders)).await?;

        world.export(here, "orders", 1).await?;
        let pods = here.list(POD, &world.namespace, "app=orders").await?;
        let pods: BTreeSet<_> = pods.iter().map(|pod| name_of(pod).to_owned()).collect();
        let by_service = format!("http://{}/hostname", world.name("orders"));
        orders.scale(1).await?;
        answered_by(here, &by_service, &ids(&orders).union(&pods).cloned().collect()).await?;
        world.export_condition(here, "orders", "Conflict", "False", "NoConflicts").await?;
        orders.scale(2).await?;
        answered_by(here, &by_service, &ids(&orders).union(&pods).cloned().collect()).await?;
        // Who does not import from Cloud Map has the pods alone.
        answered_by(elsewhere, &by_service, &pods).await?;

        here.delete(SERVICE_EXPORT, &world.namespace, "orders").await?;
        answered_by(here, &by_port, &ids(&orders)).await?;
        let tasks = ids(&orders);
        orders.stop().await?;
        eventually("no task is an endpoint", PROPAGATION, async || {
            let slices = world.imported_slices(here, "orders").await?;
            holds(slices.is_empty(), "there are no slices", &slices)
        })
        .await?;
        world.imported(here, "orders").await?;
        import_from(world, here, None).await?;
        world.import_gone(here, "orders").await?;
        let writes = world.registry()?.writes().await?;
        let others: Vec<_> =
            writes.iter().filter(|write| tasks.contains(&*write.instance) && write.caller != "ecs").collect();
        holds(others.is_empty(), "nobody but ECS wrote to the tasks", &others)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_with_dynamic_ports_are_behind_one_stable_port() {
    World::run_in(&[1], &[], "ecs-bridge", async |world| {
        let here = &world.clusters[0];
        let ecs = Ecs::from_env().await?;
        let namespace = format!("{}-ecs", world.namespace);
        let registry = ecs.cloud_map().private_service(&namespace, "legacy", Records::Srv).await?;
        let definition = Definition::new(&world.namespace, "legacy", &registry).in_bridge_mode();
        let mut legacy = ecs.service(definition).await?;
        legacy.scale(1).await?;
        import_from(world, here, Some(&namespace)).await?;
        // Nobody asks for the name before: that it is not there would be remembered.
        found(world, here, "legacy").await?;
        let url = format!("http://{}/hostname", world.name("legacy"));
        for count in [1, 3, 2] {
            legacy.scale(count).await?;
            answered_by(here, &url, &ids(&legacy)).await?;
        }
        let import = world.imported(here, "legacy").await?;
        holds(import["spec"]["ports"][0]["port"] == 80, "the port is what it was", &import)?;
        legacy.stop().await
    })
    .await;
}
