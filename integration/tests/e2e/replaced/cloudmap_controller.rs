//! The Python CloudMap Kubernetes Controller: the Services of its example manifests and of its README.

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::ecs::{Definition, Ecs, Records};
use cloudmap_mcs_integration::scenario::{EVENT, NAMES, SERVICE, World, eventually, holds};
use serde_json::{Value, json};

use super::{leads_to, serve};

/// The Cloud Map namespace of all its examples: no domain, which is why external-dns would not do.
const NAMESPACE: &str = "test-namespace";

/// A Service of its examples, but for the Kubernetes namespace.
fn example(name: &str, hostname: &str, ttl: Option<&str>) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "annotations": {
            "cloudmap.controller/namespace": NAMESPACE, "cloudmap.controller/hostname": hostname}},
        "spec": {
            "clusterIP": "None",
            "ports": [{"port": 80, "name": "http", "targetPort": 80}],
            "selector": {"app": name},
        },
    });
    if let Some(ttl) = ttl {
        service["metadata"]["annotations"]["cloudmap.controller/ttl"] = ttl.into();
    }
    service
}

fn dns(hostname: &str) -> String {
    format!("{hostname}.{NAMESPACE}")
}

/// The Cloud Map service as Events name it.
fn registered_in(hostname: &str) -> String {
    format!("{NAMESPACE}/{hostname}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_examples_of_the_python_controller_work_unchanged() {
    World::run_in(&[4, 5], &[], "python", async |world| {
        let [here, there] = world.pair();
        let ecs = Ecs::from_env().await?;
        // What it was written for: a service of ECS, whose tasks stay until the pods have taken over.
        let registry = ecs.cloud_map().private_service(NAMESPACE, "nginx-ecs-service", Records::A).await?;
        let definition = Definition { port: 80, ..Definition::new(&world.namespace, "nginx-ecs-service", &registry) };
        let mut tasks = ecs.service(definition).await?;
        tasks.scale(1).await?;
        let (deployed, others) = tokio::join!(
            async {
                serve(world, here, "nginx-ecs-service", 2).await?;
                world.apply(here, example("nginx-ecs-service", "nginx-ecs-service", Some("30"))).await
            },
            async {
                for name in ["nginx-2", "nginx-3", "nginx-test"] {
                    serve(world, here, name, 1).await?;
                }
                anyhow::Ok(())
            },
        );
        deployed?;
        others?;
        beside_tasks(world, tasks.tasks().first().context("no task")?).await?;

        // Two of its examples want one name: there the one that was seen first has it until the controller restarts.
        world.apply(here, example("nginx-2", "nginx-service-2", Some("30"))).await?;
        let wanted = world.pod_ipv4s(here, "nginx-2").await?;
        world.names()?.have(&dns("nginx-service-2"), "A", &wanted).await?;
        world.names()?.have_ttl(&dns("nginx-service-2"), "A", 30).await?;
        world.apply(here, example("nginx-3", "nginx-service-2", Some("30"))).await?;
        let winner = format!("{}/nginx-2", world.namespace);
        world.described(here, SERVICE, "nginx-3", "DomainConflict", &winner).await?;
        world.described(here, SERVICE, "nginx-2", "IPRegistered", &registered_in("nginx-service-2")).await?;
        world.names()?.have(&dns("nginx-service-2"), "A", &wanted).await?;
        here.delete(SERVICE, &world.namespace, "nginx-2").await?;
        world.names()?.have(&dns("nginx-service-2"), "A", &world.pod_ipv4s(here, "nginx-3").await?).await?;
        world.described(here, SERVICE, "nginx-3", "IPRegistered", &registered_in("nginx-service-2")).await?;
        eventually("it is said that the Service was deleted", NAMES, async || {
            let events = here.list(EVENT, &world.namespace, "").await?;
            let told = |event: &&Value| event["reason"] == "ServiceDeleted" && event["regarding"]["name"] == "nginx-2";
            holds(events.iter().any(|event| told(&event)), "an Event says so", &events.len())
        })
        .await?;

        // The example without a TTL, renamed and then no longer annotated.
        world.apply(here, example("nginx-test", "nginx-test-service", None)).await?;
        let wanted = world.pod_ipv4s(here, "nginx-test").await?;
        world.names()?.have(&dns("nginx-test-service"), "A", &wanted).await?;
        // That of the controller.
        world.names()?.have_ttl(&dns("nginx-test-service"), "A", 60).await?;
        // One that was taken back before it was said that it was done would not be mentioned at all.
        world.described(here, SERVICE, "nginx-test", "IPRegistered", &registered_in("nginx-test-service")).await?;
        world.apply(here, example("nginx-test", "nginx-renamed", None)).await?;
        world.names()?.have(&dns("nginx-renamed"), "A", &wanted).await?;
        world.names()?.have_not(&dns("nginx-test-service")).await?;
        leads_to(there, &dns("nginx-renamed"), &world.pods(here, "nginx-test").await?).await?;
        world.described(here, SERVICE, "nginx-test", "IPRegistered", &registered_in("nginx-renamed")).await?;
        let none = json!({"cloudmap.controller/namespace": null, "cloudmap.controller/hostname": null});
        here.merge(SERVICE, &world.namespace, "nginx-test", &json!({"metadata": {"annotations": none}})).await?;
        world.names()?.have_not(&dns("nginx-renamed")).await?;
        for hostname in ["nginx-test-service", "nginx-renamed"] {
            world.described(here, SERVICE, "nginx-test", "IPRemoved", &registered_in(hostname)).await?;
        }

        here.delete(SERVICE, &world.namespace, "nginx-3").await?;
        world.names()?.have_not(&dns("nginx-service-2")).await?;
        tasks.stop().await
    })
    .await;
}

/// Pods beside a task of ECS under one name: they come, follow and go, and the task stays as it is.
async fn beside_tasks(world: &World, task: &cloudmap_mcs_integration::ecs::Task) -> Result<()> {
    let [here, there] = world.pair();
    let name = dns("nginx-ecs-service");
    for replicas in [2, 3, 1] {
        serve(world, here, "nginx-ecs-service", replicas).await?;
        let mut addresses = world.pod_ipv4s(here, "nginx-ecs-service").await?;
        addresses.insert(task.ipv4.to_string());
        world.names()?.have(&name, "A", &addresses).await?;
    }
    let mut all = world.pods(here, "nginx-ecs-service").await?;
    all.insert(task.id.clone());
    leads_to(there, &name, &all).await?;
    eventually("the task reaches pods by the name", NAMES, async || {
        let answered = task.reach(&name, 80).await?;
        holds(answered == all, &format!("they are {all:?}"), &answered)
    })
    .await?;
    for reason in ["IPRegistered", "IPRemoved"] {
        world.described(here, SERVICE, "nginx-ecs-service", reason, &registered_in("nginx-ecs-service")).await?;
    }
    here.delete(SERVICE, &world.namespace, "nginx-ecs-service").await?;
    world.names()?.have(&name, "A", &[task.ipv4.to_string()].into()).await?;
    let writes = world.registry()?.writes().await?;
    let writes: Vec<_> = writes.iter().filter(|write| write.instance == task.id && write.caller != "ecs").collect();
    holds(writes.is_empty(), "nobody but ECS wrote to its task", &writes)
}
