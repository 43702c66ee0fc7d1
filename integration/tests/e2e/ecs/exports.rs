//! ECS tasks reach pods, by the name in Cloud Map's DNS and by `DiscoverInstances`, and pods do by the name as well.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::ecs::{Ecs, Service, Task};
use cloudmap_mcs_integration::scenario::{NAMES, SERVICE_EXPORT, World, eventually, holds, manifests};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{ids, two_tasks};

/// For a pod or a task on a machine that is busy, or stands still. The address of one that ended never answers.
const ANSWER: Duration = Duration::from_mins(1);

/// Waits until the pods of all clusters, and nobody else, are found in every way.
async fn found(world: &World, task: &Task) -> Result<()> {
    let name = format!("web.{}", world.namespace);
    let (mut pods, mut four, mut six) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for cluster in &world.clusters {
        pods.extend(world.pods(cluster, "web").await?);
        four.extend(world.pod_ipv4s(cluster, "web").await?);
        six.extend(world.pod_ipv6s(cluster, "web").await?);
    }
    world.names()?.have(&name, "A", &four).await?;
    world.names()?.have(&name, "AAAA", &six).await?;
    let what = format!("{pods:?} answer");
    eventually("they answer the task by name", NAMES, async || {
        let answered = task.reach(&name, 8080).await?;
        holds(answered == pods, &what, &answered)
    })
    .await?;
    eventually("the task discovers them", NAMES, async || {
        let instances = task.discover(&world.namespace, "web").await?;
        let discovered = instances.values().filter_map(|attributes| attributes.get("AWS_INSTANCE_IPV4").cloned());
        holds(discovered.collect::<BTreeSet<_>>() == four, &format!("they are {four:?}"), &instances)
    })
    .await?;
    for cluster in &world.clusters {
        eventually("they answer pods by the same name", NAMES, async || {
            // With a dot at its end: else the pods' search path finds the Service of this name and namespace in their cluster.
            let answered = cluster.reach(&format!("{name}."), 8080).await?;
            holds(answered == pods, &what, &answered)
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_reach_pods_by_the_dns_name_and_by_discovery() {
    World::run("ecs-exports", async |world| {
        let ecs = Ecs::from_env().await?;
        // Where a namespace of this name has DNS, so has what is exported from the Kubernetes namespace.
        ecs.cloud_map().private_namespace(&world.namespace, 1).await?;
        let task = ecs.run_task(&[]).await?;
        for cluster in &world.clusters {
            world.deploy(cluster, "web", 1).await?;
            world.apply(cluster, manifests::service("web", &[manifests::http(80)])).await?;
            let export = manifests::annotated(manifests::export("web"), &json!({"cloudmap-mcs/dns-ttl": "1"}));
            world.apply(cluster, export).await?;
        }
        found(world, &task).await?;
        let [here, there] = world.pair();
        for replicas in [3, 1] {
            world.deploy(here, "web", replicas).await?;
            found(world, &task).await?;
        }
        for cluster in [here, there] {
            cluster.delete(SERVICE_EXPORT, &world.namespace, "web").await?;
        }
        world.names()?.have_not(&format!("web.{}", world.namespace)).await?;
        eventually("the task discovers nothing", NAMES, async || {
            let instances = world.registry()?.discover(&world.namespace, "web").await?;
            holds(instances.is_empty(), "there is nothing", &instances)
        })
        .await?;
        task.stop().await
    })
    .await;
}

/// Whether HTTP is answered at an address.
async fn answers(address: &str) -> bool {
    let ask = async {
        let address: IpAddr = address.parse().ok()?;
        let mut stream = TcpStream::connect((address, 8080)).await.ok()?;
        stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n").await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        answer.split_once(' ')?.1.starts_with("200").then_some(())
    };
    tokio::time::timeout(ANSWER, ask).await.is_ok_and(|answered| answered.is_some())
}

/// Ends only when nobody healthy is registered, the name does not resolve, or none of its addresses answers.
async fn stays(world: &World, namespace: &str) -> Result<()> {
    let name = format!("orders.{namespace}");
    loop {
        let healthy = world.registry()?.discover_healthy(namespace, "orders").await?;
        holds(!healthy.is_empty(), "somebody healthy is registered", &healthy)?;
        let addresses = world.names()?.resolve(&name, "A").await?;
        holds(!addresses.is_empty(), "the name has addresses", &addresses)?;
        let asked: FuturesUnordered<_> = addresses.iter().map(|address| answers(address)).collect();
        let reached = asked.any(async |answered| answered).await;
        holds(reached, "one of the name's addresses answers", &addresses)?;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

/// So many tasks, then so many pods; the half that grows does so first.
async fn scale(world: &World, namespace: &str, orders: &mut Service) -> Result<()> {
    let here = &world.clusters[0];
    for (tasks, pods) in [(2, 1), (0, 1), (0, 3), (2, 3), (2, 0), (1, 2), (1, 0)] {
        if tasks >= orders.tasks().len() {
            orders.scale(tasks).await?;
            world.deploy(here, "orders", pods).await?;
        } else {
            world.deploy(here, "orders", pods).await?;
            both(world, namespace, orders, orders.tasks().len()).await?;
            orders.scale(tasks).await?;
        }
        both(world, namespace, orders, tasks).await?;
    }
    Ok(())
}

/// Waits until exactly the tasks, as many as there should be, and the pods are registered, and whoever is asked knows it.
async fn both(world: &World, namespace: &str, orders: &Service, tasks: usize) -> Result<()> {
    let here = &world.clusters[0];
    let mut wanted: BTreeSet<_> = orders.tasks().iter().map(|task| task.ipv4.to_string()).collect();
    holds(wanted.len() == tasks, "the tasks run", &wanted)?;
    wanted.extend(world.pod_ipv4s(here, "orders").await?);
    let name = format!("orders.{namespace}");
    world.names()?.have(&name, "A", &wanted).await?;
    // The next query may reach a replica that does not know them yet, or a resolver's cache. ECS ends a task at once, whatever
    // those still say, so that clients would be left with addresses of ended tasks alone.
    eventually("the resolver and all replicas know them, too", NAMES, async || {
        let addresses = world.names()?.resolve(&name, "A").await?;
        holds(addresses == wanted, "the resolver does", &addresses)?;
        for _ in 0..20 {
            let healthy = world.registry()?.discover_healthy(namespace, "orders").await?;
            holds(healthy.len() == wanted.len(), "a replica does", &healthy)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_half_tasks_half_pods_is_scaled_both_ways_and_never_without_a_healthy_instance() {
    World::run_in(&[1], &[], "ecs-halves", async |world| {
        let here = &world.clusters[0];
        let (namespace, mut orders) = two_tasks(world).await?;
        let first = ids(&orders);
        both(world, &namespace, &orders, 2).await?;

        world.apply(here, manifests::service("orders", &[manifests::http(80)])).await?;
        // Naming the service is consent to share it with those who made it.
        let target = json!({"cloudmap-mcs/namespace": namespace, "cloudmap-mcs/service": "orders"});
        let export = manifests::annotated(manifests::export("orders"), &target);
        world.apply(here, export).await?;
        tokio::select! {
            lost = stays(world, &namespace) => lost,
            done = scale(world, &namespace, &mut orders) => done,
        }?;

        let service = world.registry()?.service_id(&namespace, "orders").await?;
        let writes = world.registry()?.writes().await?.into_iter().filter(|write| write.service_id == service);
        let (by_ecs, by_us): (Vec<_>, Vec<_>) = writes.partition(|write| write.caller == "ecs");
        let tasks: BTreeSet<_> = by_ecs.iter().map(|write| write.instance.as_str()).collect();
        holds(first.iter().all(|id| tasks.contains(id.as_str())), "ECS wrote its tasks", &tasks)?;
        let theirs: Vec<_> = by_us.iter().filter(|write| !write.instance.starts_with("k8s-")).collect();
        holds(theirs.is_empty() && !by_us.is_empty(), "the controller wrote its pods and nothing else", &theirs)?;
        here.delete(SERVICE_EXPORT, &world.namespace, "orders").await?;
        let left = orders.tasks().first().context("no task")?.clone();
        eventually("the task is left, as it was", NAMES, async || {
            let instances = world.registry()?.discover(&namespace, "orders").await?;
            let wanted = left.attributes(orders.definition());
            holds(instances.len() == 1 && instances.get(&left.id) == Some(&wanted), "it is", &instances)
        })
        .await?;
        orders.stop().await
    })
    .await;
}
