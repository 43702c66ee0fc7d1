//! Cloud Map instances, which ECS tasks and everybody else read.

use std::collections::BTreeSet;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    Instances, NAMES, PROPAGATION, SERVICE_EXPORT, World, eventually, holds, manifests,
};
use serde_json::json;

/// What ECS registers for a task (its documented attributes).
const TASK: [(&str, &str); 8] = [
    ("AVAILABILITY_ZONE", "eu-central-1a"),
    ("AWS_INIT_HEALTH_STATUS", "HEALTHY"),
    ("AWS_INSTANCE_IPV4", "10.99.1.21"),
    ("AWS_INSTANCE_PORT", "8080"),
    ("ECS_CLUSTER_NAME", "prod"),
    ("ECS_SERVICE_NAME", "orders"),
    ("ECS_TASK_DEFINITION_FAMILY", "orders"),
    ("REGION", "eu-central-1"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_instances_with_the_attributes_that_ecs_uses() {
    World::run_in(&[4, 5], &[], "instances", async |world| {
        let [source, other] = world.pair();
        world.export(source, "web", 2).await?;
        world.imported(other, "web").await?;
        let addresses = world.followed(source, "web").await?;
        let (six, four): (BTreeSet<_>, BTreeSet<_>) = addresses.into_iter().partition(|address| address.contains(':'));
        let has = |instances: &Instances, attribute: &str| -> BTreeSet<String> {
            instances.values().filter_map(|attributes| attributes.get(attribute).cloned()).collect()
        };
        eventually("each pod is one instance", NAMES, async || {
            let instances = world.registry()?.discover(&world.namespace, "web").await?;
            holds(instances.len() == 2, "there are two instances", &instances)?;
            holds(
                has(&instances, "AWS_INSTANCE_IPV4") == four,
                &format!("their IPv4 addresses are {four:?}"),
                &instances,
            )?;
            holds(
                has(&instances, "AWS_INSTANCE_IPV6") == six,
                &format!("their IPv6 addresses are {six:?}"),
                &instances,
            )?;
            holds(
                has(&instances, "AWS_INSTANCE_PORT") == BTreeSet::from(["8080".to_owned()]),
                "their port is the pods'",
                &instances,
            )
        })
        .await?;
        world.deploy(source, "web", 1).await?;
        eventually("the pod that went is no instance", PROPAGATION, async || {
            let instances = world.registry()?.discover(&world.namespace, "web").await?;
            holds(instances.len() == 1, "there is one instance", &instances)
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_others_in_our_services_are_never_touched() {
    World::run_in(&[4, 5], &[], "foreign-instances", async |world| {
        let [source, other] = world.pair();
        let task = "0db8dbd2185c4c0184e80f58fee8ba1d";
        world.export(source, "orders", 1).await?;
        world.imported(other, "orders").await?;
        has_instances(world, 1).await?;
        let service = world.registry()?.service_id(&world.namespace, "orders").await?;
        // The health of instances can be given only in a service with health checks, as ECS makes them.
        let attributes: Vec<_> = TASK.into_iter().filter(|(name, _)| *name != "AWS_INIT_HEALTH_STATUS").collect();
        let before = world.registry()?.register(&world.namespace, ("orders", &service), task, &attributes).await?;
        for replicas in [2, 1] {
            world.deploy(source, "orders", replicas).await?;
            has_instances(world, replicas as usize + 1).await?;
        }
        source.delete(SERVICE_EXPORT, &world.namespace, "orders").await?;
        world.import_gone(other, "orders").await?;
        eventually("the task alone is left", PROPAGATION, async || {
            let after = world.registry()?.discover(&world.namespace, "orders").await?;
            holds(after == Instances::from([(task.to_owned(), before.clone())]), "it is what it was", &after)
        })
        .await?;
        let writes = world.registry()?.writes().await?;
        let writes: Vec<_> =
            writes.into_iter().filter(|write| write.instance == task && write.caller != "e2e").collect();
        holds(writes.is_empty(), "no controller wrote to it", &writes)
    })
    .await;
}

/// Waits until the Cloud Map service `orders` has so many instances.
async fn has_instances(world: &World, count: usize) -> Result<()> {
    eventually(&format!("there are {count} instances"), PROPAGATION, async || {
        let now = world.registry()?.discover(&world.namespace, "orders").await?;
        holds(now.len() == count, &format!("there are {count} instances"), &now)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_of_others_in_a_shared_service_are_never_touched() {
    World::run_in(&[4, 5], &[], "shared-service", async |world| {
        let [source, other] = world.pair();
        let task = "0db8dbd2185c4c0184e80f58fee8ba1d";
        let service = world.registry()?.create_service(&world.namespace, "orders").await?;
        let before = world.registry()?.register(&world.namespace, ("orders", &service), task, &TASK).await?;
        let before = Instances::from([(task.to_owned(), before)]);
        world.deploy(source, "orders", 1).await?;
        world.apply(source, manifests::service("orders", &[manifests::http(80)])).await?;
        let mut export = manifests::export("orders");
        export["metadata"]["annotations"] = json!({"cloudmap-mcs/share": "true"});
        world.apply(source, export).await?;
        world.imported(other, "orders").await?;
        for (replicas, instances) in [(1, 2), (2, 3), (1, 2)] {
            world.deploy(source, "orders", replicas).await?;
            eventually("the pods are instances beside the task", NAMES, async || {
                let now = world.registry()?.discover(&world.namespace, "orders").await?;
                holds(now.len() == instances, &format!("there are {instances} instances"), &now)
            })
            .await?;
        }
        source.delete(SERVICE_EXPORT, &world.namespace, "orders").await?;
        eventually("the pods are no instances any more", PROPAGATION, async || {
            let now = world.registry()?.discover(&world.namespace, "orders").await?;
            holds(now == before, "the task is what it was", &now)
        })
        .await?;
        let writes: Vec<_> = world
            .registry()?
            .writes()
            .await?
            .into_iter()
            .filter(|write| write.instance == task && write.caller != "e2e")
            .collect();
        holds(writes.is_empty(), "no controller wrote to it", &writes)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_of_somebody_else_is_not_joined_without_being_asked() {
    World::run_in(&[4, 5], &[], "foreign-service", async |world| {
        let [source, other] = world.pair();
        let service = world.registry()?.create_service(&world.namespace, "orders").await?;
        world.registry()?.register(&world.namespace, ("orders", &service), "task", &TASK).await?;
        world.export(source, "orders", 1).await?;
        // Other controllers of the account list its namespaces, too.
        world.export_condition_within(NAMES, source, "orders", ["Registered", "False", "ForeignOwner"]).await?;
        world.export_condition(source, "orders", "Ready", "True", "Exported").await?;
        world.imported(other, "orders").await?;
        world.followed(source, "orders").await?;
        let instances = world.registry()?.discover(&world.namespace, "orders").await?;
        holds(instances.len() == 1, "the task is alone", &instances)
    })
    .await;
}
