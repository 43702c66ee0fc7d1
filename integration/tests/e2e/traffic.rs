//! Clients use the nearest cluster that is well.

use std::{collections::BTreeSet, time::Duration};

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    Cluster, PODS, PROPAGATION, SERVICE_EXPORT, World, condition, eventually, holds, manifests,
};
use serde_json::json;

/// Pods that go on serving for a while when they are deleted, as pods must whose addresses others use.
const GRACE: u32 = 15;

/// Four steps of 30 s, on a machine that does much else.
const BACK: Duration = Duration::from_mins(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_use_the_nearest_cluster_that_is_well() {
    World::run("nearest", async |world| {
        let [here, there] = world.pair();
        for cluster in [here, there] {
            scale(world, cluster, 2).await?;
            world.apply(cluster, manifests::service("web", &[manifests::http(80)])).await?;
            let annotations = json!({"cloudmap-mcs/cluster-selectors": "local-first"});
            world.apply(cluster, manifests::annotated(manifests::export("web"), &annotations)).await?;
        }
        for (cluster, other) in [(here, there), (there, here)] {
            serves(world, cluster, &[cluster]).await?;
            eventually("the export says who serves", PROPAGATION, async || {
                let export = cluster.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
                let said = condition(&export, "ClusterSelection");
                let order = format!("use {}; then {}.", cluster.id, other.id);
                let message = said["message"].as_str().unwrap_or_default();
                holds(said["reason"] == "InForce" && message.ends_with(&order), &order, said)
            })
            .await?;
        }
        let url = format!("http://web.{}.svc.clusterset.local/hostname", world.namespace);
        let ((), load) = here
            .load(&url, async {
                answered(world, here, &url, here).await?;
                scale(world, here, 0).await?;
                serves(world, here, &[there]).await?;
                answered(world, here, &url, there).await?;
                scale(world, here, 2).await?;
                // The pods of the other cluster go step by step.
                serves(world, here, &[here]).await?;
                answered(world, here, &url, here).await
            })
            .await?;
        holds(load.answers > 100 && load.failures.is_empty(), "every request is answered", &load.failures)
    })
    .await;
}

async fn scale(world: &World, cluster: &Cluster, replicas: u32) -> Result<()> {
    let mut deployment = manifests::deployment("web", replicas);
    let pod = &mut deployment["spec"]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(GRACE + 5);
    pod["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": GRACE}}});
    world.roll_out(cluster, deployment).await
}

/// Waits until the import has the ready addresses of these clusters, and no others.
async fn serves(world: &World, cluster: &Cluster, sources: &[&Cluster]) -> Result<()> {
    let ids: Vec<_> = sources.iter().map(|source| &source.id).collect();
    eventually(&format!("{ids:?} alone serve in {}", cluster.id), BACK, async || {
        for source in world.pair() {
            let wanted =
                if ids.contains(&&source.id) { world.local_addresses(source, "web").await? } else { BTreeSet::new() };
            let imported = world.imported_addresses(cluster, "web", source).await?;
            holds(
                imported == wanted && (wanted.is_empty() || wanted.len() >= 2),
                &format!("{wanted:?} of {}", source.id),
                &imported,
            )?;
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
