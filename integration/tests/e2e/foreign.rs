//! Pods reach what others registered in Cloud Map: ECS tasks, played by pods of the other cluster that only Cloud Map names.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    Cluster, NAMESPACE, POD, PROPAGATION, SERVICE_EXPORT, World, eventually, holds, manifests, name_of,
};
use serde_json::json;

/// What ECS registers for a task, beside its address and port.
const TASK: [(&str, &str); 4] = [
    ("AVAILABILITY_ZONE", "eu-central-1a"),
    ("ECS_CLUSTER_NAME", "prod"),
    ("ECS_SERVICE_NAME", "orders"),
    ("REGION", "eu-central-1"),
];

/// The pods of a Deployment by name, with their addresses. They serve their names on 8080.
async fn tasks(world: &World, cluster: &Cluster, name: &str, count: u32) -> Result<BTreeMap<String, String>> {
    world.deploy(cluster, name, count).await?;
    let pods = cluster.list(POD, &world.namespace, &format!("app={name}")).await?;
    let address = |pod: &serde_json::Value| {
        let ips = pod["status"]["podIPs"].as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str());
        let v4 = ips.into_iter().find(|ip| !ip.contains(':')).context("a pod without an IPv4 address")?;
        Ok((name_of(pod).to_owned(), v4.to_owned()))
    };
    pods.iter().map(address).collect()
}

/// Registers a task as ECS does it.
async fn start(world: &World, namespace: &str, service: (&str, &str), task: &str, address: &str) -> Result<()> {
    let mut attributes = TASK.to_vec();
    attributes.extend([("AWS_INSTANCE_IPV4", address), ("AWS_INSTANCE_PORT", "8080")]);
    world.registry.register(namespace, service, task, &attributes).await.map(drop)
}

/// Waits until exactly these answer under a name.
async fn answered_by(world: &World, cluster: &Cluster, url: &str, wanted: &BTreeSet<&str>) -> Result<()> {
    eventually(&format!("{wanted:?} answer at {url}"), PROPAGATION, async || {
        let mut answered = BTreeSet::new();
        for _ in 0..10 * wanted.len() {
            answered.insert(cluster.curl(url, &[]).await?);
        }
        let answered: BTreeSet<&str> = answered.iter().map(String::as_str).collect();
        holds(answered == *wanted, &format!("it is {wanted:?} in {}", world.namespace), &answered)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_reach_ecs_tasks_alone_and_beside_pods_by_one_name() {
    World::run("ecs-tasks", async |world| {
        let [here, elsewhere] = &world.clusters;
        let tasks = tasks(world, elsewhere, "tasks", 2).await?;
        let [(first, first_ip), (second, second_ip)] = &tasks.iter().collect::<Vec<_>>()[..] else {
            anyhow::bail!("two tasks were started, but there are {tasks:?}")
        };
        let namespace = format!("{}-ecs", world.namespace);
        let id = world.registry.create_service(&namespace, "orders").await?;
        let orders = ("orders", id.as_str());
        start(world, &namespace, orders, "0db8dbd2185c4c0184e80f58fee8ba1d", first_ip).await?;

        let annotate = async |value: Option<&str>| {
            let annotations = json!({"metadata": {"annotations": {"cloudmap.controller/import-from": value}}});
            here.merge(NAMESPACE, "", &world.namespace, &annotations).await
        };
        annotate(Some(&namespace)).await?;
        let import = world.imported(here, "orders").await?;
        holds(import["spec"]["type"] == "ClusterSetIP", "it has an address of its own", &import)?;
        holds(import["spec"]["ports"][0]["port"] == 8080, "its port is the tasks'", &import)?;
        let direct = format!("http://{}:8080/hostname", world.name("orders"));
        answered_by(world, here, &direct, &[first.as_str()].into()).await?;
        start(world, &namespace, orders, "5c1f0a6f3bd94b6b9f0a2f5f6f1d7e90", second_ip).await?;
        answered_by(world, here, &direct, &[first.as_str(), second.as_str()].into()).await?;
        for slice in world.imported_slices(here, "orders").await? {
            let source = &slice["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"];
            holds(source == "ecs-prod", "the ECS cluster is its source", &slice)?;
        }

        // Half of it pods: the Service's port counts, and both halves answer.
        world.deploy(here, "orders", 1).await?;
        world.apply(here, manifests::service("orders", &[manifests::http(80)])).await?;
        world.apply(here, manifests::export("orders")).await?;
        let pods = here.list(POD, &world.namespace, "app=orders").await?;
        let pod = name_of(&pods[0]);
        let by_service = format!("http://{}/hostname", world.name("orders"));
        answered_by(world, here, &by_service, &[first.as_str(), second.as_str(), pod].into()).await?;
        world.export_condition(here, "orders", "Conflict", "False", "NoConflicts").await?;
        world.registry.deregister(&id, "0db8dbd2185c4c0184e80f58fee8ba1d").await?;
        answered_by(world, here, &by_service, &[second.as_str(), pod].into()).await?;
        holds(
            world.imported_addresses(elsewhere, "orders", here).await? == world.local_addresses(here, "orders").await?,
            "who imports nothing from Cloud Map has the pods alone",
            &world.imported_slices(elsewhere, "orders").await?,
        )?;

        here.delete(SERVICE_EXPORT, &world.namespace, "orders").await?;
        answered_by(world, here, &direct, &[second.as_str()].into()).await?;
        annotate(None).await?;
        world.import_gone(here, "orders").await?;
        let writes = world.registry.writes().await?;
        let foreign = ["0db8dbd2185c4c0184e80f58fee8ba1d", "5c1f0a6f3bd94b6b9f0a2f5f6f1d7e90"];
        let written = |write: &&_| -> bool {
            let write: &cloudmap_mcs_integration::emulator::Write = write;
            foreign.contains(&&*write.instance) && write.caller != "e2e"
        };
        let writes: Vec<_> = writes.iter().filter(written).collect();
        holds(writes.is_empty(), "no controller wrote to the tasks", &writes)
    })
    .await;
}
