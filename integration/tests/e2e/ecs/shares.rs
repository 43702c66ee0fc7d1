//! Pods that join the service of ECS tasks get a share of its traffic.

use std::collections::BTreeSet;

use anyhow::Result;
use cloudmap_mcs_integration::ecs::Service;
use cloudmap_mcs_integration::scenario::{NAMES, SERVICE_EXPORT, World, condition, eventually, holds, manifests};
use serde_json::json;

use super::{ids, two_tasks, wrote_no_task};

/// Requests the share, with the target that it is about.
async fn request(world: &World, namespace: &str, share: &str) -> Result<()> {
    let annotations = json!({
        "cloudmap-mcs/namespace": namespace, "cloudmap-mcs/service": "orders", "cloudmap-mcs/share-of-traffic": share,
    });
    world.apply(&world.clusters[0], manifests::annotated(manifests::export("orders"), &annotations)).await?;
    Ok(())
}

/// Waits until all tasks and so many of the pods, the same in all ways, are registered and found. Gives those pods.
pub(super) async fn beside_tasks(
    world: &World,
    namespace: &str,
    orders: &Service,
    pods: usize,
) -> Result<BTreeSet<String>> {
    let (tasks, all) = (addresses(orders), world.pod_ipv4s(&world.clusters[0], "orders").await?);
    let chosen = eventually(&format!("{pods} of the pods {all:?} are registered"), NAMES, async || {
        let healthy = world.registry()?.discover_healthy(namespace, "orders").await?;
        let found: BTreeSet<_> =
            healthy.values().filter_map(|attributes| attributes.get("AWS_INSTANCE_IPV4").cloned()).collect();
        holds(found.is_superset(&tasks), "the tasks are", &found)?;
        let chosen: BTreeSet<_> = found.difference(&tasks).cloned().collect();
        holds(chosen.len() == pods && chosen.is_subset(&all), "so are the pods", &found)?;
        Ok(chosen)
    })
    .await?;
    let wanted = tasks.union(&chosen).cloned().collect();
    world.names()?.have(&format!("orders.{namespace}"), "A", &wanted).await?;
    Ok(chosen)
}

/// Of its tasks.
pub(super) fn addresses(orders: &Service) -> BTreeSet<String> {
    orders.tasks().iter().map(|task| task.ipv4.to_string()).collect()
}

/// Ends only when the name does not resolve.
pub(super) async fn resolves(world: &World, namespace: &str) -> Result<()> {
    loop {
        let addresses = world.names()?.resolve(&format!("orders.{namespace}"), "A").await?;
        holds(!addresses.is_empty(), "the name has addresses", &addresses)?;
        tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    }
}

async fn steps(world: &World, namespace: &str, orders: &Service) -> Result<()> {
    let here = &world.clusters[0];
    let mut before = BTreeSet::new();
    for (share, pods) in [("0%", 0), ("40%", 1), ("50%", 2), ("75%", 2), ("1%", 1), ("120%", 1), ("0%", 0)] {
        request(world, namespace, share).await?;
        let chosen = beside_tasks(world, namespace, orders, pods).await?;
        holds(chosen.is_subset(&before) || before.is_subset(&chosen), "no pod is exchanged", &chosen)?;
        before = chosen;
        let (status, said) = match share {
            "120%" => ("False", "from \"0%\" to \"100%\""),
            "75%" => ("True", "more ready pods"),
            "40%" => ("True", "the next share is 50 %"),
            _ => ("True", "chosen"),
        };
        eventually(&format!("the export says what became of {share}"), NAMES, async || {
            let export = here.expect(SERVICE_EXPORT, &world.namespace, "orders").await?;
            let registered = condition(&export, "Registered");
            let message = registered["message"].as_str().unwrap_or_default();
            holds(registered["status"] == status && message.contains(said), said, registered)
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pods_beside_two_tasks_get_a_third_or_half_of_the_traffic_and_nothing_again() {
    World::run_in(&[1], &[], "ecs-shares", async |world| {
        let here = &world.clusters[0];
        let (namespace, orders) = two_tasks(world).await?;
        let first = ids(&orders);
        world.deploy(here, "orders", 2).await?;
        world.apply(here, manifests::service("orders", &[manifests::http(80)])).await?;
        request(world, &namespace, "0%").await?;
        beside_tasks(world, &namespace, &orders, 0).await?;
        tokio::select! {
            lost = resolves(world, &namespace) => lost,
            done = steps(world, &namespace, &orders) => done,
        }?;

        wrote_no_task(world, &namespace, &first).await?;
        here.delete(SERVICE_EXPORT, &world.namespace, "orders").await?;
        beside_tasks(world, &namespace, &orders, 0).await?;
        orders.stop().await
    })
    .await;
}
