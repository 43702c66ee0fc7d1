//! A cluster that is lost: nothing is withdrawn, and everybody sees it.

use std::time::Duration;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    DEPLOYMENT, SERVICE_IMPORT, World, condition, eventually, holds, manifests, system_namespace,
};
use serde_json::json;

use crate::check::{Check, check};
use crate::facts;

pub(crate) const CHECKS: &[Check] = &[check!(DisturbThird, [41], loss::of_a_cluster_is_visible_and_withdraws_nothing)];

/// A cluster is called stale after five minutes of silence.
const STALE: Duration = Duration::from_secs(360);

async fn of_a_cluster_is_visible_and_withdraws_nothing(world: &World) -> Result<()> {
    let [first, second, third] = world.three();
    for cluster in [first, second, third] {
        cluster.controller().settle().await?;
    }
    world.deploy(third, "web", 1).await?;
    facts::export(world, third, manifests::single_stack("web", &[manifests::http(80)])).await?;
    let addresses = world.followed(third, "web").await?;
    let url = format!("http://{}/hostname", world.name("web"));
    facts::answers(first, &url, &[]).await?;
    let deployment = third.expect(DEPLOYMENT, &system_namespace(), "cloudmap-mcs").await?;
    let scale = async |replicas: &serde_json::Value| {
        let patch = json!({"spec": {"replicas": replicas}});
        third.merge(DEPLOYMENT, &system_namespace(), "cloudmap-mcs", &patch).await
    };
    scale(&json!(0)).await?;
    let outcome = async {
        for cluster in [first, second] {
            eventually(&format!("{cluster:?} says that the third one is stale"), STALE, async || {
                let import = cluster.expect(SERVICE_IMPORT, &world.namespace, "web").await?;
                let imported = world.imported_addresses(cluster, "web", third).await?;
                holds(imported == addresses, "its endpoints are there", &imported)?;
                let message = condition(&import, "Ready")["message"].as_str().unwrap_or_default().to_lowercase();
                holds(
                    message.contains("stale") && message.contains(&third.id),
                    "the import's conditions say so",
                    &import,
                )?;
                let controller = cluster.controller();
                let stale = controller.metric(&controller.leader().await?, "cloudmap_mcs_stale_clusters", "").await?;
                holds(stale == 1.0, "the metric says so", &stale)
            })
            .await?;
        }
        facts::answers(first, &url, &[]).await.map(drop)
    }
    .await;
    scale(&deployment["spec"]["replicas"]).await?;
    third.controller().settle().await?;
    outcome?;
    eventually("it is not stale any more", Duration::from_secs(60), async || {
        let import = first.expect(SERVICE_IMPORT, &world.namespace, "web").await?;
        let ready = condition(&import, "Ready");
        let message = ready["message"].as_str().unwrap_or_default().to_lowercase();
        holds(ready["status"] == "True" && !message.contains("stale"), "the import's conditions say so", &import)
    })
    .await
}
