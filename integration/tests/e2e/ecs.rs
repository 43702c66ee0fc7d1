//! ECS itself, without a controller: if this fails, so does every scenario that has tasks.

mod aws_mcs;
mod cutover;
mod day;
mod exports;
mod imports;
mod shares;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::ecs::{Agent, Definition, Ecs, Records, Service};
use cloudmap_mcs_integration::scenario::{PROPAGATION, World, eventually, holds};
use emulator::Write;

/// Cloud Map takes 30 s over a change of a custom health status, which has to cross after that.
const HEALTH: Duration = Duration::from_mins(5);

/// Names of this run: another may have been here before.
fn unique(name: &str) -> String {
    format!("{name}-{:08x}", rand::random::<u32>())
}

#[tokio::test]
async fn tasks_of_a_process_that_was_killed_are_found_and_ended() -> Result<()> {
    // What looks for such tasks by itself, once, has done so: else it could be first.
    Ecs::from_env().await?;
    let mut owner = tokio::process::Command::new("sleep").arg("600").kill_on_drop(true).spawn()?;
    let (theirs, ours) = (unique("theirs"), unique("ours"));
    let agent = Agent::owned_by(owner.id().context("it has ended")?);
    agent.run(&theirs, &theirs, 8080, "").await?;
    Agent::owned_by(std::process::id()).run(&ours, &ours, 8080, "").await?;
    let task =
        async |name: &str| Ok::<_, anyhow::Error>(agent.list().await?.into_iter().find(|running| running.task == name));
    let running = task(&theirs).await?.context("it is not listed")?;
    assert!(running.alive && !running.orphaned, "{running:?}");
    owner.kill().await?;
    let orphan = task(&theirs).await?.context("it is not listed")?;
    assert!(orphan.alive && orphan.orphaned, "{orphan:?}");
    agent.reap().await?;
    assert_eq!(task(&theirs).await?, None);
    let kept = task(&ours).await?.context("it was not to be touched")?;
    assert!(kept.alive && !kept.orphaned, "{kept:?}");
    agent.stop(&ours, std::time::Duration::ZERO).await?;
    assert_eq!(task(&ours).await?, None);
    Ok(())
}

/// The ids of the tasks.
fn ids(service: &Service) -> BTreeSet<String> {
    service.tasks().iter().map(|task| task.id.clone()).collect()
}

/// A service `orders` of two tasks, in a Cloud Map namespace of this scenario: the namespace, and the service.
async fn two_tasks(world: &World) -> Result<(String, Service)> {
    let ecs = Ecs::from_env().await?;
    let namespace = format!("{}-ecs", world.namespace);
    let registry = ecs.cloud_map().private_service(&namespace, "orders", Records::A).await?;
    let mut orders = ecs.service(Definition::new(&world.namespace, "orders", &registry)).await?;
    orders.scale(2).await?;
    Ok((namespace, orders))
}

/// The writes of ours in `orders` that are about these tasks.
async fn written(world: &World, namespace: &str, tasks: &BTreeSet<String>) -> Result<Vec<Write>> {
    let service = world.registry()?.service_id(namespace, "orders").await?;
    let writes = world.registry()?.writes().await?.into_iter().filter(|write| write.service_id == service);
    Ok(writes.filter(|write| write.caller != "ecs" && tasks.contains(&write.instance)).collect())
}

/// Every write of ours in `orders` was about a pod: none was about these tasks.
async fn wrote_no_task(world: &World, namespace: &str, tasks: &BTreeSet<String>) -> Result<()> {
    let theirs = written(world, namespace, tasks).await?;
    holds(theirs.is_empty(), "the controller wrote no task", &theirs)
}

/// One of the tasks answers by the name of all, and each by its addresses.
async fn all_answer(service: &Service, name: &str) -> Result<()> {
    let client = service.tasks().first().context("no tasks")?;
    eventually("a task answers by the name", PROPAGATION, async || {
        let answered = client.curl(&format!("http://{name}:8080/hostname")).await?;
        holds(ids(service).contains(&answered), "it is one of the tasks", &answered)
    })
    .await?;
    for task in service.tasks() {
        for address in [task.ipv4.to_string(), format!("[{}]", task.ipv6)] {
            eventually(&format!("{} answers at {address}", task.id), PROPAGATION, async || {
                let answered = client.curl(&format!("http://{address}:8080/hostname")).await?;
                holds(answered == task.id, "it is the task", &answered)
            })
            .await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_find_each_other_by_the_name_in_cloud_map() -> Result<()> {
    let ecs = Ecs::from_env().await?;
    let namespace = unique("ecs");
    let registry = ecs.cloud_map().private_service(&namespace, "orders", Records::DualStack).await?;
    let definition =
        Definition { registers_ipv6: true, ..Definition::new(&unique("prod"), "orders-service", &registry) };
    let mut orders = ecs.service(definition.clone()).await?;
    orders.scale(2).await?;
    let name = format!("orders.{namespace}");

    let follows = async |orders: &Service| {
        let expected: BTreeSet<_> = orders.tasks().iter().map(|task| task.ipv4.to_string()).collect();
        let expected6: BTreeSet<_> = orders.tasks().iter().map(|task| task.ipv6.to_string()).collect();
        let task = orders.tasks().first().context("no tasks")?;
        eventually("DNS answers the addresses of the tasks", PROPAGATION, async || {
            let (found, found6) = (task.dig(&name, "A").await?, task.dig(&name, "AAAA").await?);
            holds(found == expected, &format!("A is {expected:?}"), &found)?;
            holds(found6 == expected6, &format!("AAAA is {expected6:?}"), &found6)
        })
        .await?;
        all_answer(orders, &name).await?;
        eventually("the tasks are discovered", PROPAGATION, async || {
            let found: BTreeSet<_> = task.discover(&namespace, "orders").await?.into_keys().collect();
            holds(found == ids(orders), "all of them are discovered", &found)
        })
        .await
    };
    follows(&orders).await?;
    let attributes = orders.tasks()[0].attributes(orders.definition());
    let task = &orders.tasks()[0];
    eventually("the attributes are as ECS has them", PROPAGATION, async || {
        let found = task.discover(&namespace, "orders").await?;
        holds(found.get(&task.id) == Some(&attributes), "they are", &found)
    })
    .await?;

    // Another process sees the same service.
    let same = ecs.service(definition).await?;
    holds(ids(&same) == ids(&orders), "the same tasks", &ids(&same))?;

    orders.scale(3).await?;
    follows(&orders).await?;
    let crashed = orders.tasks()[0].clone();
    orders.crash(&crashed).await?;
    let others = &orders.tasks()[1];
    let direct = format!("http://{}:8080/hostname", crashed.ipv4);
    holds(others.curl(&direct).await.is_err(), "a crashed task does not answer", &crashed.id)?;
    // Until ECS notices.
    eventually("it is registered still", PROPAGATION, async || {
        let found = others.discover(&namespace, "orders").await?;
        holds(found.contains_key(&crashed.id), "it is", &found)
    })
    .await?;
    orders.scale(3).await?;
    holds(!ids(&orders).contains(&crashed.id) && orders.tasks().len() == 3, "it is replaced", &ids(&orders))?;
    follows(&orders).await?;

    let last = ids(&orders);
    orders.stop().await?;
    let left = ecs.agent().list().await?;
    let left: Vec<_> = left.into_iter().map(|running| running.task).filter(|task| last.contains(task)).collect();
    holds(left.is_empty(), "no task is left", &left)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_in_bridge_mode_share_hosts_and_have_ports_of_their_own() -> Result<()> {
    let ecs = Ecs::from_env().await?;
    let namespace = unique("bridge");
    let registry = ecs.cloud_map().private_service(&namespace, "legacy", Records::Srv).await?;
    let mut legacy = ecs.service(Definition::new(&unique("bridge"), "legacy", &registry).in_bridge_mode()).await?;
    legacy.scale(3).await?;
    let hosts: BTreeSet<_> = legacy.tasks().iter().map(|task| task.ipv4).collect();
    let ports: BTreeSet<_> = legacy.tasks().iter().map(|task| (task.ipv4, task.port)).collect();
    holds(hosts.len() == 2 && ports.len() == 3, "three tasks on two hosts", &legacy.tasks().len())?;
    let task = &legacy.tasks()[0];
    eventually("SRV names every task and its port", PROPAGATION, async || {
        let expected: BTreeSet<_> =
            legacy.tasks().iter().map(|task| format!("1 1 {} {}.legacy.{namespace}.", task.port, task.id)).collect();
        let found = task.dig(&format!("legacy.{namespace}"), "SRV").await?;
        holds(found == expected, &format!("they are {expected:?}"), &found)
    })
    .await?;
    for other in legacy.tasks() {
        let url = format!("http://{}.legacy.{namespace}:{}/hostname", other.id, other.port);
        // The next query may reach a replica that does not know the task yet.
        eventually("the target is the task", PROPAGATION, async || {
            holds(task.curl(&url).await? == other.id, "the target is the task", &other.id)
        })
        .await?;
    }
    legacy.stop().await
}
