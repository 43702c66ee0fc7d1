//! A cluster to which the network is gone serves nobody until it is back. Whatever else is gone proves nothing.

use std::{io::Write as _, sync::LazyLock, time::Duration};

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    Cluster, POD, PROPAGATION, SERVICE_IMPORT, World, condition, eventually, holds, holds_for, manifests::Blackhole,
    setting,
};
use futures::future::try_join;
use serde_json::Value;
use tokio::time::{Instant, sleep};

/// Two rounds of connections, from which the leader knows who answers.
const KNOWN: Duration = Duration::from_secs(30);
/// It takes about 20 s; the machine does much else.
const JUDGED: Duration = Duration::from_mins(3);
/// What is true for so long stays so: twice what a judgement takes. `MCS_E2E_AWAY` says for how many seconds something is away.
static STAYS: LazyLock<Duration> = LazyLock::new(|| {
    let seconds = setting("MCS_E2E_AWAY", "45").parse();
    Duration::from_secs(seconds.expect("MCS_E2E_AWAY is a number of seconds"))
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_whose_network_is_gone_serves_nobody_and_comes_back_and_less_proves_nothing() {
    World::run_in(&[0, 1, 4], &[0, 1], "unreachable", async |world| {
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
        world.blackhole(here, "stream", &controllers).await?;
        holds_for("its endpoints serve without a stream", *STAYS, async || serves(world, here, dead, true).await)
            .await?;
        world.let_through(here, "stream").await?;
        // The leaders find each other again.
        sleep(KNOWN).await;

        // The registry alone, for both leaders.
        let registry = world.registry()?.address()?;
        for cluster in [dead, here] {
            world.blackhole(cluster, "registry", &[Blackhole::Port(registry)]).await?;
            let health = format!("http://{registry}/_emulator/health");
            let answer = cluster.curl(&health, &["--max-time", "2"]).await;
            holds(answer.is_err(), "the registry cannot be reached", &answer.ok())?;
        }
        holds_for("its endpoints serve without the registry", *STAYS, async || serves(world, here, dead, true).await)
            .await?;
        for cluster in [dead, here] {
            world.let_through(cluster, "registry").await?;
        }

        // Its API server alone.
        let serves_here = holds_for("its endpoints serve without its API server", *STAYS, async || {
            serves(world, here, dead, true).await
        });
        try_join(dead.restart_api_server(*STAYS), serves_here).await?;
        sleep(KNOWN).await;

        // The controllers alone.
        dead.controller().stop().await?;
        holds_for("its endpoints serve without controllers", *STAYS, async || serves(world, here, dead, true).await)
            .await?;
        dead.controller().run(2, &[]).await?;

        // All others at once: it is this cluster that is cut off.
        let mut all = Vec::new();
        for cluster in [dead, other] {
            all.extend(addresses(&cluster.list(POD, &world.namespace, "").await?));
            all.extend(addresses(&cluster.controller().pods().await?));
        }
        world.blackhole(here, "all", &all).await?;
        holds_for("nobody is judged", *STAYS, async || {
            serves(world, here, dead, true).await?;
            serves(world, here, other, true).await
        })
        .await?;
        world.let_through(here, "all").await?;
        sleep(KNOWN).await;

        // Everything of one.
        let pods = [dead.list(POD, &world.namespace, "").await?, dead.controller().pods().await?].concat();
        let gone = Instant::now();
        world.blackhole(here, "network", &addresses(&pods)).await?;
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
                holds_for("others serve", *STAYS, async || serves(world, here, dead, false).await).await
            })
            .await?;
        holds(load.answers > 100 && load.failures.is_empty(), "every request is answered", &load.failures)?;

        let back = Instant::now();
        world.let_through(here, "network").await?;
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
fn addresses(pods: &[Value]) -> Vec<Blackhole> {
    let ips = pods.iter().flat_map(|pod| pod["status"]["podIPs"].as_array().into_iter().flatten());
    ips.filter_map(|ip| ip["ip"].as_str().map(|ip| Blackhole::Address(ip.to_owned()))).collect()
}
