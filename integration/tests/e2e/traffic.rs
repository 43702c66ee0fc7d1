//! Clients use the nearest cluster that is well.

use std::{
    collections::BTreeSet,
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    CLUSTER_PROPERTY, Cluster, POD, PODS, PROPAGATION, SERVICE_EXPORT, World, condition, eventually, holds, manifests,
    name_of,
};
use serde_json::{Value, json};
use tokio::time::sleep;

/// Pods that go on serving for a while when they are deleted, as pods must whose addresses others use.
const GRACE: u32 = 15;

/// Four steps of 30 s, on a machine that does much else, and a new leader, who waits anew.
const BACK: Duration = Duration::from_mins(8);

const REGION: &str = "region.topology.k8s.io";
/// The pods of the cluster that serves where the nearest one cannot: many more.
const MANY: u32 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_use_the_nearest_cluster_that_is_well() {
    World::run_in(&[5, 4, 2], &[5], "nearest", async |world| {
        let outcome = Box::pin(nearest(world)).await;
        for cluster in &world.clusters {
            cluster.delete(CLUSTER_PROPERTY, "", REGION).await?;
        }
        outcome
    })
    .await;
}

async fn nearest(world: &World) -> Result<()> {
    let [here, there, far] = [&world.clusters[0], &world.clusters[1], &world.clusters[2]];
    for (cluster, region) in [(here, "eu-central-1"), (there, "eu-central-1"), (far, "eu-west-1")] {
        let property = json!({"apiVersion": "about.k8s.io/v1beta1", "kind": "ClusterProperty",
            "metadata": {"name": REGION}, "spec": {"value": region}});
        cluster.apply("", property).await?;
    }
    let pods = [(here, serving(2)), (there, light("web", MANY)), (far, light("web", 1))];
    for (cluster, deployment) in pods {
        world.roll_out(cluster, deployment).await?;
        export(world, cluster, "web").await?;
    }
    for (cluster, order) in [(here, [here, there, far]), (there, [there, here, far])] {
        serves(world, cluster, "web", &[cluster]).await?;
        let order = format!("use {}.", order.map(|cluster| cluster.id.as_str()).join("; then "));
        eventually("the export says who serves", PROPAGATION, async || {
            let export = cluster.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
            let said = condition(&export, "ClusterSelection");
            let message = said["message"].as_str().unwrap_or_default();
            holds(said["reason"] == "InForce" && message.ends_with(&order), &order, said)
        })
        .await?;
    }
    let url = format!("http://{}/hostname", world.name("web"));
    let ((), load) = here
        .load(&url, async {
            answered(world, here, &url, here).await?;
            world.apply(here, serving(0)).await?;
            ready(world, here, 0).await?;
            let last = Instant::now();
            serves(world, here, "web", &[there]).await?;
            tell("the next cluster served", last);
            answered(world, here, &url, there).await?;
            world.roll_out(here, serving(2)).await?;
            // The pods of the other cluster go step by step, whoever leads.
            eventually("a step was taken", BACK, async || {
                let left = world.imported_addresses(here, "web", there).await?.len();
                let all = world.local_addresses(there, "web").await?.len();
                holds(left > 0 && left < all, &format!("some of {all}"), &left)
            })
            .await?;
            here.controller().kill_leader().await?;
            serves(world, here, "web", &[here]).await?;
            answered(world, here, &url, here).await
        })
        .await?;
    holds(load.answers > 100 && load.failures.is_empty(), "every request is answered", &load.failures)?;
    crash(world, here, &url).await?;
    herd(world, here, there).await
}

/// A pod that ends without a word fails what reaches it until the import shows that it is not ready. That is counted, and decides
/// nothing.
async fn crash(world: &World, here: &Cluster, url: &str) -> Result<()> {
    let ((), load) = here
        .load(url, async {
            let pods = here.list(POD, &world.namespace, "app=web").await?;
            let first = pods.first().map(name_of).unwrap_or_default();
            here.kill_pod(&world.namespace, first).await?;
            sleep(Duration::from_secs(15)).await;
            answered(world, here, url, here).await
        })
        .await?;
    let (failed, all) = (load.failures.len(), load.failures.len() + load.answers);
    let _ = writeln!(std::io::stderr(), "requests that failed when one pod of two crashed: {failed} of {all}");
    Ok(())
}

/// One pod of ten becomes ready, and gets no more than its share. 70 % of the ten must be ready, so it takes a seventh.
async fn herd(world: &World, here: &Cluster, there: &Cluster) -> Result<()> {
    let mut ten = light("herd", 10);
    ten["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["cat", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 10});
    world.apply(here, ten).await?;
    world.roll_out(there, light("herd", 12)).await?;
    for cluster in [here, there] {
        export(world, cluster, "herd").await?;
    }
    let first = eventually("the ten run", PODS, async || {
        let pods = here.list(POD, &world.namespace, "app=herd").await?;
        let run = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
        holds(run == 10, "all run", &run)?;
        Ok(name_of(&pods[0]).to_owned())
    })
    .await?;
    serves(world, here, "herd", &[there]).await?;
    here.exec(&world.namespace, &first, &["touch", "/tmp/ready"]).await?;
    eventually("one pod of ten takes its share", PROPAGATION, async || {
        let own = world.imported_addresses(here, "herd", here).await?;
        holds(!own.is_empty(), "it is shown", &own)
    })
    .await?;
    let requests = 1_000;
    let url = format!("http://{}/hostname", world.name("herd"));
    let share = requests / 7;
    let (low, high) = (share - requests * 5 / 100, share + requests * 5 / 100);
    eventually("a seventh of the connections is its share", BACK, async || {
        let shares = here.shares(&url, requests).await?;
        let own = shares.get(&first).copied().unwrap_or_default();
        holds(
            own >= low && own <= high && shares.values().sum::<usize>() == requests,
            &format!("from {low} to {high} of {requests} reach {first}"),
            &shares,
        )
    })
    .await?;
    weights(world, here, there, &first).await
}

/// The one pod of this cluster and the twelve of the other one get the same, where their clusters have the same weight.
async fn weights(world: &World, here: &Cluster, there: &Cluster, first: &str) -> Result<()> {
    let weights = format!("{}=50%,{}=50%", here.id, there.id);
    for cluster in [here, there] {
        let annotations = json!({"cloudmap-mcs/cluster-weights": weights});
        world.apply(cluster, manifests::annotated(manifests::export("herd"), &annotations)).await?;
    }
    let requests = 400;
    let url = format!("http://{}/hostname", world.name("herd"));
    let (low, high) = (requests * 38 / 100, requests * 62 / 100);
    eventually("half of the connections is the weight", BACK, async || {
        let shares = here.shares(&url, requests).await?;
        let own = shares.get(first).copied().unwrap_or_default();
        holds(own >= low && own <= high, &format!("from {low} to {high} of {requests} reach {first}"), &shares)
    })
    .await
}

/// Prints how long something took. It decides nothing: the machine does much else.
fn tell(what: &str, since: Instant) {
    let _ = writeln!(std::io::stderr(), "{what} after {:.1} s", since.elapsed().as_secs_f64());
}

async fn export(world: &World, cluster: &Cluster, name: &str) -> Result<()> {
    world.apply(cluster, manifests::service(name, &[manifests::http(80)])).await?;
    let annotations = json!({"cloudmap-mcs/cluster-selectors": "local-first"});
    world.apply(cluster, manifests::annotated(manifests::export(name), &annotations)).await.map(drop)
}

/// Pods that end gently.
fn serving(replicas: u32) -> Value {
    let mut deployment = manifests::deployment("web", replicas);
    let pod = &mut deployment["spec"]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(GRACE + 5);
    pod["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": GRACE}}});
    deployment
}

/// Pods that nobody probes, so that many cost little.
fn light(name: &str, replicas: u32) -> Value {
    let mut deployment = manifests::deployment(name, replicas);
    if let Some(container) = deployment["spec"]["template"]["spec"]["containers"][0].as_object_mut() {
        container.remove("readinessProbe");
    }
    deployment
}

/// Waits until a cluster has so many ready addresses of its own.
async fn ready(world: &World, cluster: &Cluster, count: usize) -> Result<()> {
    eventually("the pods are ready, or not", PODS, async || {
        let own = world.local_addresses(cluster, "web").await?;
        holds(own.len() == count, &format!("{count} are ready"), &own)
    })
    .await
}

/// Waits until the import has the ready addresses of these clusters, and no others.
async fn serves(world: &World, cluster: &Cluster, name: &str, sources: &[&Cluster]) -> Result<()> {
    let ids: Vec<_> = sources.iter().map(|source| &source.id).collect();
    eventually(&format!("{ids:?} alone serve in {}", cluster.id), BACK, async || {
        for source in &world.clusters {
            let wanted =
                if ids.contains(&&source.id) { world.local_addresses(source, name).await? } else { BTreeSet::new() };
            let imported = world.imported_addresses(cluster, name, source).await?;
            let serves = !ids.contains(&&source.id) || !wanted.is_empty();
            holds(imported == wanted && serves, &format!("{wanted:?} of {}", source.id), &imported)?;
        }
        Ok(())
    })
    .await
}

/// Waits until only pods of one cluster answer.
async fn answered(world: &World, client: &Cluster, url: &str, by: &Cluster) -> Result<()> {
    eventually(&format!("only pods of {} answer", by.id), PODS, async || {
        let pods = world.pods(by, "web").await?;
        let answers = client.answers(None, url, 20).await?;
        holds(answers.is_subset(&pods), &format!("they are {pods:?}"), &answers)
    })
    .await
}
