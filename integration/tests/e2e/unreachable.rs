//! A cluster to which the network is gone serves nobody until it is back. Whatever else is gone proves nothing.

use std::{io::Write as _, time::Duration};

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    Cluster, NODE, POD, PODS, PROPAGATION, SERVICE_IMPORT, World, condition, eventually, holds, holds_for, manifests,
    name_of,
};
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// Two rounds of connections, from which the leader knows who answers.
const KNOWN: Duration = Duration::from_secs(30);
/// It takes about 20 s; the machine does much else.
const JUDGED: Duration = Duration::from_mins(3);
/// What is true for so long stays so.
const STAYS: Duration = Duration::from_secs(45);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_network_is_gone_serves_nobody_and_comes_back_and_less_proves_nothing() {
    World::run_in(&[0, 1, 2], &[0, 1], "unreachable", async |world| {
        let [dead, here, other] = [&world.clusters[0], &world.clusters[1], &world.clusters[2]];
        for (cluster, replicas) in [(dead, 4), (here, 1), (other, 2)] {
            world.export(cluster, "web", replicas).await?;
        }
        world.export(dead, "only", 1).await?;
        eventually("all serve", PROPAGATION, async || {
            for source in [dead, other] {
                serves(world, here, source, true).await?;
            }
            Ok(())
        })
        .await?;
        sleep(KNOWN).await;

        // The stream alone: nothing passes to the controllers.
        let controllers = addresses(&dead.controller().pods().await?);
        blackhole(world, here, "stream", &controllers).await?;
        holds_for("its endpoints serve without a stream", STAYS, async || serves(world, here, dead, true).await)
            .await?;
        restore(world, here, "stream").await?;
        // The leaders find each other again.
        sleep(KNOWN).await;

        // The controllers alone.
        dead.controller().stop().await?;
        holds_for("its endpoints serve without controllers", STAYS, async || serves(world, here, dead, true).await)
            .await?;
        dead.controller().run(2, &[]).await?;

        // All others at once: it is this cluster that is cut off.
        let mut all = Vec::new();
        for cluster in [dead, other] {
            all.extend(addresses(&cluster.list(POD, &world.namespace, "").await?));
            all.extend(addresses(&cluster.controller().pods().await?));
        }
        blackhole(world, here, "all", &all).await?;
        holds_for("nobody is judged", STAYS, async || {
            serves(world, here, dead, true).await?;
            serves(world, here, other, true).await
        })
        .await?;
        restore(world, here, "all").await?;
        sleep(KNOWN).await;

        // Everything of one.
        let pods = [dead.list(POD, &world.namespace, "").await?, dead.controller().pods().await?].concat();
        let gone = Instant::now();
        blackhole(world, here, "network", &addresses(&pods)).await?;
        eventually("others serve", JUDGED, async || serves(world, here, dead, false).await).await?;
        tell("the endpoints of the cluster went", gone);
        serves(world, here, other, true).await?;
        let only = world.imported_addresses(here, "only", dead).await?;
        holds(!only.is_empty(), "what nobody else serves stays", &only)?;
        said(world, here, "web", &format!("{} (since ", dead.id)).await?;
        serves(world, other, dead, true).await?;

        let url = format!("http://{}/hostname", world.name("web"));
        let ((), load) = here
            .load(&url, async {
                // A new leader knows it, too.
                here.controller().kill_leader().await?;
                here.controller().settle().await?;
                holds_for("others serve", STAYS, async || serves(world, here, dead, false).await).await
            })
            .await?;
        holds(load.answers > 100 && load.failures.is_empty(), "every request is answered", &load.failures)?;

        let back = Instant::now();
        restore(world, here, "network").await?;
        eventually("its endpoints serve again", JUDGED, async || serves(world, here, dead, true).await).await?;
        tell("the endpoints of the cluster came back", back);
        eventually("nothing is said any more", PROPAGATION, async || {
            let import = here.expect(SERVICE_IMPORT, &world.namespace, "web").await?;
            holds(condition(&import, "Unreachable").is_null(), "there is no condition", &import["status"])
        })
        .await
    })
    .await;
}

/// Prints how long something took. It decides nothing: the machine does much else.
fn tell(what: &str, since: Instant) {
    let _ = writeln!(std::io::stderr(), "{what} after {:.0} s", since.elapsed().as_secs_f64());
}

/// Whether the import of a cluster has ready endpoints of another one.
async fn serves(world: &World, cluster: &Cluster, source: &Cluster, serves: bool) -> Result<()> {
    let shown = world.imported_addresses(cluster, "web", source).await?;
    holds(shown.is_empty() != serves, &format!("{} serves in {}: {serves}", source.id, cluster.id), &shown)
}

async fn said(world: &World, cluster: &Cluster, name: &str, words: &str) -> Result<()> {
    eventually("the import says who cannot be reached", PROPAGATION, async || {
        let import = cluster.expect(SERVICE_IMPORT, &world.namespace, name).await?;
        let said = condition(&import, "Unreachable");
        let message = said["message"].as_str().unwrap_or_default();
        holds(said["reason"] == "NoAnswer" && message.contains(words), words, said)
    })
    .await
}

/// The addresses of pods.
fn addresses(pods: &[Value]) -> Vec<String> {
    let ips = pods.iter().flat_map(|pod| pod["status"]["podIPs"].as_array().into_iter().flatten());
    ips.filter_map(|ip| ip["ip"].as_str().map(str::to_owned)).collect()
}

/// Lets nothing pass from the nodes of a cluster to these addresses, until [`restore`].
async fn blackhole(world: &World, cluster: &Cluster, name: &str, addresses: &[String]) -> Result<()> {
    holds(!addresses.is_empty(), "there are pods", &addresses)?;
    let nodes = cluster.list(NODE, "", "").await?;
    for node in &nodes {
        let pod = format!("{name}-{}", name_of(node));
        world.apply(cluster, manifests::blackhole(&pod, name_of(node), addresses)).await?;
    }
    eventually("nothing passes any more", PODS, async || {
        for node in &nodes {
            let pod = cluster.expect(POD, &world.namespace, &format!("{name}-{}", name_of(node))).await?;
            holds(pod["status"]["containerStatuses"][0]["ready"] == true, "the routes are there", &pod["status"])?;
        }
        Ok(())
    })
    .await
}

async fn restore(world: &World, cluster: &Cluster, name: &str) -> Result<()> {
    let nodes = cluster.list(NODE, "", "").await?;
    for node in &nodes {
        cluster.delete(POD, &world.namespace, &format!("{name}-{}", name_of(node))).await?;
    }
    eventually("the routes are gone", PODS, async || {
        for node in &nodes {
            cluster.expect_none(POD, &world.namespace, &format!("{name}-{}", name_of(node))).await?;
        }
        Ok(())
    })
    .await
}
