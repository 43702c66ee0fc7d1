//! A cluster is drained, upgraded and brought back, and no client notices.

use std::collections::BTreeSet;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    CLUSTER_PROPERTY, Cluster, DEPLOYMENT, POD, PROPAGATION, World, eventually, holds, manifests, name_of,
};
use serde_json::json;
use tokio::process::Command;

/// The ClusterProperty that the program sets.
const PROPERTY: &str = "drain.cloudmap-mcs.io";

/// Names that both clusters serve, and one that only the drained one does.
const BOTH: [&str; 2] = ["web", "api"];
const ONLY: &str = "only";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_drained_upgraded_and_brought_back_without_a_failed_request() {
    World::run_in(&[3, 1], &[3], "drain", async |world| {
        let [upgraded, _] = world.pair();
        let outcome = Box::pin(upgrade(world)).await;
        // Whoever uses the cluster next finds it as it was.
        upgraded.delete(CLUSTER_PROPERTY, "", PROPERTY).await?;
        outcome?;
        for name in BOTH {
            world.followed(upgraded, name).await?;
        }
        Ok(())
    })
    .await;
}

async fn upgrade(world: &World) -> Result<()> {
    let [upgraded, other] = world.pair();
    for name in BOTH {
        for cluster in [upgraded, other] {
            world.export(cluster, name, 2).await?;
        }
    }
    world.export(upgraded, ONLY, 1).await?;
    for name in [BOTH[0], BOTH[1], ONLY] {
        world.followed(upgraded, name).await?;
    }
    eventually("the other cluster serves, too", PROPAGATION, async || {
        for name in BOTH {
            // The cluster that is upgraded may have one IP family alone.
            let (own, there) =
                (world.local_addresses(other, name).await?, world.imported_addresses(upgraded, name, other).await?);
            holds(
                own.len() >= 2 && !there.is_empty() && there.is_subset(&own),
                &format!("{own:?} serve {name}"),
                &there,
            )?;
        }
        Ok(())
    })
    .await?;

    let urls = BOTH.map(|name| format!("http://{name}.{}.svc.clusterset.local/hostname", world.namespace));
    let day = async {
        let drained = run(upgraded, &["--settle", "5s"]).await?;
        let said = String::from_utf8_lossy(&drained.stdout).into_owned();
        holds(drained.status.code() == Some(1), "a name stays, so the program fails", &said)?;
        let stays = format!("{}/{ONLY}: No other cluster exports this name.", world.namespace);
        let says = said.contains("2 names are drained") && said.contains(&stays);
        holds(says, "it says what is drained, and what stays and why", &said)?;
        for (cluster, name) in [upgraded, other].into_iter().flat_map(|cluster| BOTH.map(|name| (cluster, name))) {
            let left = world.imported_addresses(cluster, name, upgraded).await?;
            holds(left.is_empty(), &format!("{name} is left in {}", cluster.id), &left)?;
        }
        let stay = world.imported_addresses(other, ONLY, upgraded).await?;
        holds(!stay.is_empty(), "what nobody else serves stays", &stay)?;

        // The controller and all pods go without a word, as their nodes do.
        upgraded.controller().stop().await?;
        for name in BOTH {
            upgraded.merge(DEPLOYMENT, &world.namespace, name, &json!({"spec": {"replicas": 0}})).await?;
            for pod in upgraded.list(POD, &world.namespace, &format!("app={name}")).await? {
                upgraded.kill_pod(&world.namespace, name_of(&pod)).await?;
            }
        }
        eventually("no pod is left", PROPAGATION, async || {
            let pods = upgraded.list(POD, &world.namespace, "app=web").await?;
            holds(pods.is_empty(), "there is none", &pods.len())
        })
        .await?;
        for name in BOTH {
            world.roll_out(upgraded, manifests::deployment(name, 2)).await?;
        }
        upgraded.controller().run(2, &[]).await?;

        let back = run(upgraded, &["--back"]).await?;
        let said = [back.stdout, back.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        holds(back.status.success() && said.contains("are back"), "it waits until they are back", &said)
    };
    let (((), first), second) = Box::pin(other.load(&urls[0], Box::pin(other.load(&urls[1], Box::pin(day))))).await?;
    let failed: BTreeSet<_> = first.failures.iter().chain(&second.failures).collect();
    let answers = [first.answers, second.answers];
    holds(
        failed.is_empty() && answers.iter().all(|count| *count > 500),
        &format!("{answers:?} requests, all answered"),
        &failed,
    )
}

/// Runs `cloudmap-mcs drain --all` on this machine.
async fn run(cluster: &Cluster, arguments: &[&str]) -> Result<Output> {
    let program = std::env::var("PROGRAM").context("PROGRAM is not set: it is the path of cloudmap-mcs")?;
    let mut process = Command::new(program);
    process.args(["drain", "--all", "--context", &cluster.context]).args(arguments);
    Ok(process.stdin(Stdio::null()).kill_on_drop(true).output().await?)
}
