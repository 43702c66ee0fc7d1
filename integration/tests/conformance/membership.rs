//! Membership: what a cluster is called, and that it is not called what another one is.

use std::time::Duration;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    CLUSTER_PROPERTY, Cluster, SERVICE_EXPORT, World, condition, eventually, holds, holds_for, manifests,
};
use serde_json::{Value, json};

use crate::check::{Check, check};
use crate::facts::{self, QUIET};

pub(crate) const CHECKS: &[Check] = &[
    check!(DisturbThird, [2, 4, 14], membership::without_a_clusterset_is_said_and_heals),
    check!(DisturbThird, [1, 4, 14], membership::of_another_member_is_refused),
    check!(DisturbThird, [3, 28], membership::under_a_new_id_replaces_the_one_under_the_old_id),
];

const CLUSTER: &str = "cluster.clusterset.k8s.io";
const CLUSTERSET: &str = "clusterset.k8s.io";

/// For a controller that begins anew under another identity: it claims the id, reads the ledger, and hands over.
const NEW_IDENTITY: Duration = Duration::from_secs(120);

async fn set(cluster: &Cluster, property: &str, value: &str) -> Result<()> {
    let manifest = json!({
        "apiVersion": "about.k8s.io/v1beta1", "kind": "ClusterProperty",
        "metadata": {"name": property}, "spec": {"value": value},
    });
    cluster.apply("", manifest).await.map(drop)
}

/// Exports a Service with one endpoint, which was written by hand.
async fn export(world: &World, cluster: &Cluster, name: &str, address: &str) -> Result<()> {
    let service = manifests::service_without_selector(name, &[manifests::http(80)]);
    let service = manifests::with_spec(service, &json!({"ipFamilyPolicy": "SingleStack"}));
    facts::export(world, cluster, service).await?;
    world.apply(cluster, manifests::endpoint_slice(name, name, &[address.to_owned()])).await.map(drop)
}

/// Waits for a condition of an export, for as long as a new identity takes.
async fn ready(world: &World, cluster: &Cluster, export: &str, status: &str, reasons: &[&str]) -> Result<Value> {
    let what = format!("{cluster:?}: the export {export} has Ready={status}, {reasons:?}");
    eventually(&what, NEW_IDENTITY, async || {
        let export = cluster.expect(SERVICE_EXPORT, &world.namespace, export).await?;
        let ready = condition(&export, "Ready");
        let reason = ready["reason"].as_str().unwrap_or_default();
        holds(ready["status"] == status && reasons.contains(&reason), &what, &export)?;
        Ok(ready.clone())
    })
    .await
}

/// A ClusterSet that is named late: until then exports wait, and say for what.
async fn without_a_clusterset_is_said_and_heals(world: &World) -> Result<()> {
    let [first, _, third] = world.three();
    third.controller().settle().await?;
    let property = third.expect(CLUSTER_PROPERTY, "", CLUSTERSET).await?;
    let value = property["spec"]["value"].as_str().unwrap_or_default();
    third.delete(CLUSTER_PROPERTY, "", CLUSTERSET).await?;
    let outcome = async {
        export(world, third, "late", "198.18.0.1").await?;
        let waiting = ready(world, third, "late", "False", &["Pending", "Failed"]).await?;
        let message = waiting["message"].as_str().unwrap_or_default();
        holds(message.contains(CLUSTERSET), "the message names the property to create", &waiting)?;
        holds_for("nothing is imported", QUIET, async || {
            let slices = world.imported_slices(first, "late").await?;
            holds(slices.is_empty(), "there are no slices", &slices)
        })
        .await
    }
    .await;
    set(third, CLUSTERSET, value).await?;
    outcome?;
    ready(world, third, "late", "True", &["Exported"]).await?;
    world.followed(third, "late").await.map(drop)
}

/// The third cluster takes the second one's id.
async fn of_another_member_is_refused(world: &World) -> Result<()> {
    let [first, second, third] = world.three();
    third.controller().settle().await?;
    export(world, second, "theirs", "198.18.0.2").await?;
    export(world, third, "mine", "198.18.0.3").await?;
    world.followed(second, "theirs").await?;
    world.followed(third, "mine").await?;
    let before = match world.registry() {
        Ok(registry) => registry.writes().await?.last().map_or(0, |write| write.sequence),
        Err(_) => 0,
    };
    set(third, CLUSTER, &second.id).await?;
    let outcome = async {
        let refused = ready(world, third, "mine", "False", &["Failed"]).await?;
        let message = refused["message"].as_str().unwrap_or_default();
        holds(message.contains(&second.id), "the message names the id", &refused)?;
        holds_for("nothing of either cluster is withdrawn", QUIET, async || {
            for (name, source) in [("theirs", second), ("mine", third)] {
                let addresses = world.imported_addresses(first, name, source).await?;
                holds(addresses.len() == 1, &format!("{name} has its endpoint"), &addresses)?;
            }
            Ok(())
        })
        .await?;
        // The member whose id it is goes on, and nobody else writes in its name.
        world.apply(second, manifests::endpoint_slice("theirs", "theirs", &["198.18.0.4".to_owned()])).await?;
        eventually("the member still exports", NEW_IDENTITY, async || {
            let addresses = world.imported_addresses(first, "theirs", second).await?;
            holds(addresses == ["198.18.0.4".to_owned()].into(), "its new endpoint arrived", &addresses)
        })
        .await?;
        let Ok(registry) = world.registry() else { return Ok(()) };
        let member = registry.caller(&second.id).await?;
        let writes = registry.writes().await?;
        let of_others: Vec<_> = writes
            .iter()
            .filter(|write| write.sequence > before && write.service == "clusters" && write.instance == second.id)
            .filter(|write| write.caller != member)
            .collect();
        holds(of_others.is_empty(), "nobody else wrote the head of the member", &of_others)
    }
    .await;
    set(third, CLUSTER, &third.id).await?;
    outcome?;
    ready(world, third, "mine", "True", &["Exported"]).await?;
    world.followed(third, "mine").await.map(drop)
}

/// The end of one membership and the beginning of another one, without an endpoint being gone in between.
async fn under_a_new_id_replaces_the_one_under_the_old_id(world: &World) -> Result<()> {
    let [first, second, third] = world.three();
    third.controller().settle().await?;
    export(world, third, "mine", "198.18.0.3").await?;
    world.followed(third, "mine").await?;
    let name = format!("{}-renamed", third.id);
    set(third, CLUSTER, &name).await?;
    let moved = async {
        for cluster in [first, second] {
            eventually(&format!("{cluster:?} has the export under its new id alone"), NEW_IDENTITY, async || {
                let import = world.imported(cluster, "mine").await?;
                holds(
                    facts::clusters_of(&import) == [name.clone()].into(),
                    "the new id alone is in its status",
                    &import,
                )?;
                for slice in world.imported_slices(cluster, "mine").await? {
                    let source = &slice["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"];
                    holds(source == name.as_str(), "no slice is of the old id", &slice)?;
                }
                Ok(())
            })
            .await?;
        }
        Ok(())
    };
    // Ends only when the endpoint is lost.
    let stays = async {
        loop {
            let slices = world.imported_slices(first, "mine").await?;
            holds(facts::endpoints(&slices).count() > 0, "the endpoint is there", &slices)?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let outcome: Result<()> = tokio::select! {
        lost = stays => lost,
        done = moved => done,
    };
    set(third, CLUSTER, &third.id).await?;
    outcome?;
    eventually("it is back under its old id", NEW_IDENTITY, async || {
        let import = world.imported(first, "mine").await?;
        holds(facts::clusters_of(&import) == [third.id.clone()].into(), "the old id alone is in its status", &import)
    })
    .await?;
    ready(world, third, "mine", "True", &["Exported"]).await.map(drop)
}
