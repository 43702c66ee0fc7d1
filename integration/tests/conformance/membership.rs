//! Membership: what a cluster is called, and that it is not called what another one is.

use std::time::Duration;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    CLUSTER_PROPERTY, Cluster, SERVICE_EXPORT, SERVICE_IMPORT, Skip, World, condition, eventually, holds, holds_for,
    manifests,
};
use serde_json::{Value, json};

use crate::check::{Check, check};
use crate::facts::{self, QUIET};

pub(crate) const CHECKS: &[Check] = &[
    check!(Disturb, [2, 4, 14], membership::without_a_clusterset_is_said_and_heals),
    check!(Disturb, [1, 4], membership::that_property_and_flag_contradict_is_said),
    check!(Disturb, [1, 4, 14], membership::of_another_member_is_refused),
    check!(Disturb, [3, 28], membership::under_a_new_id_replaces_the_one_under_the_old_id),
];

const CLUSTER: &str = "cluster.clusterset.k8s.io";
const CLUSTERSET: &str = "clusterset.k8s.io";

/// For a controller that begins anew under another identity: it claims the id, reads the ledger, and hands over.
const NEW_IDENTITY: Duration = Duration::from_mins(5);

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
async fn ready(world: &World, cluster: &Cluster, export: &str, status: &str, reason: &str) -> Result<Value> {
    let what = format!("{cluster:?}: the export {export} has Ready={status}, {reason}");
    eventually(&what, NEW_IDENTITY, async || {
        let export = cluster.expect(SERVICE_EXPORT, &world.namespace, export).await?;
        let ready = condition(&export, "Ready");
        holds(ready["status"] == status && ready["reason"] == reason, &what, &export)?;
        Ok(ready.clone())
    })
    .await
}

/// A ClusterSet that is named late: until then exports wait, and say for what.
async fn without_a_clusterset_is_said_and_heals(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    second.controller().settle().await?;
    let Some(property) = second.get(CLUSTER_PROPERTY, "", CLUSTERSET).await? else {
        return Err(Skip(format!("{second:?} has no ClusterProperty {CLUSTERSET}")).into());
    };
    let value = property["spec"]["value"].as_str().unwrap_or_default();
    second.delete(CLUSTER_PROPERTY, "", CLUSTERSET).await?;
    let outcome = async {
        export(world, second, "late", "198.18.0.1").await?;
        // It names the property to create.
        facts::not_ready(world, second, "late", NEW_IDENTITY, &["Pending", "Failed"], CLUSTERSET).await?;
        holds_for("nothing is imported", QUIET, async || {
            let slices = world.imported_slices(first, "late").await?;
            holds(slices.is_empty(), "there are no slices", &slices)
        })
        .await
    }
    .await;
    set(second, CLUSTERSET, value).await?;
    outcome?;
    ready(world, second, "late", "True", "Exported").await?;
    arrived(world, "late").await
}

/// Waits until the first cluster has the second one's endpoint, for as long as a new identity takes.
async fn arrived(world: &World, name: &str) -> Result<()> {
    let [first, second] = world.pair();
    eventually(&format!("{first:?} has the endpoint of {name}"), NEW_IDENTITY, async || {
        let addresses = world.imported_addresses(first, name, second).await?;
        holds(addresses.len() == 1, "it is there", &addresses)
    })
    .await
}

/// A flag that says something else than the ClusterProperty is an error, and not a second opinion.
async fn that_property_and_flag_contradict_is_said(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    second.controller().settle().await?;
    export(world, second, "mine", "198.18.0.3").await?;
    world.followed(second, "mine").await?;
    let before = second.controller().set(&[("CLOUDMAP_MCS_CLUSTER_ID", "somebody-else".to_owned())]).await?;
    let outcome = async {
        facts::not_ready(world, second, "mine", NEW_IDENTITY, &["Failed"], "somebody-else").await?;
        let refused = ready(world, second, "mine", "False", "Failed").await?;
        let message = refused["message"].as_str().unwrap_or_default();
        let named = message.contains(CLUSTER) && message.contains("--cluster-id") && message.contains("somebody-else");
        holds(named, "the message names the property, the flag and its value", &refused)?;
        arrived(world, "mine").await
    }
    .await;
    second.controller().restore(before).await?;
    outcome?;
    ready(world, second, "mine", "True", "Exported").await?;
    let import = first.expect(SERVICE_IMPORT, &world.namespace, "mine").await?;
    holds(facts::clusters_of(&import) == [second.id.clone()].into(), "the id of the property alone was used", &import)
}

/// The second cluster takes the first one's id.
async fn of_another_member_is_refused(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    second.controller().settle().await?;
    export(world, first, "theirs", "198.18.0.2").await?;
    export(world, second, "mine", "198.18.0.3").await?;
    world.followed(first, "theirs").await?;
    world.followed(second, "mine").await?;
    let books = match world.registry() {
        Ok(registry) => Some((registry, registry.caller(&first.id).await?, registry.caller(&second.id).await?)),
        Err(_) => None,
    };
    set(second, CLUSTER, &first.id).await?;
    let outcome = async {
        // It names the property to change.
        facts::not_ready(world, second, "mine", NEW_IDENTITY, &["Failed"], CLUSTER).await?;
        holds_for("nothing of either cluster is withdrawn", QUIET, async || {
            for (cluster, name, source) in
                [(first, "mine", second), (first, "theirs", first), (second, "theirs", first)]
            {
                let addresses = world.imported_addresses(cluster, name, source).await?;
                holds(addresses.len() == 1, &format!("{name} has its endpoint in {cluster:?}"), &addresses)?;
            }
            Ok(())
        })
        .await?;
        // The member whose id it is goes on as before.
        export(world, first, "later", "198.18.0.4").await?;
        world.export_condition(first, "later", "Ready", "True", "Exported").await?;
        let Some((registry, member, intruder)) = &books else { return Ok(()) };
        let writes = registry.writes().await?;
        let theirs = |service: &str| service.starts_with("exports-") && service.ends_with(&format!(".{}", first.id));
        let harmful: Vec<_> = writes
            .iter()
            .filter(|write| write.caller == *intruder && intruder != member && write.result == "ok")
            .filter(|write| write.instance == first.id || theirs(&write.service))
            .collect();
        holds(harmful.is_empty(), "it wrote nothing in the name of the member", &harmful)
    }
    .await;
    set(second, CLUSTER, &second.id).await?;
    outcome?;
    ready(world, second, "mine", "True", "Exported").await?;
    arrived(world, "mine").await
}

/// The end of one membership and the beginning of another one, without an endpoint being gone in between.
async fn under_a_new_id_replaces_the_one_under_the_old_id(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    second.controller().settle().await?;
    export(world, second, "mine", "198.18.0.3").await?;
    world.followed(second, "mine").await?;
    let name = format!("{}-renamed", second.id);
    let moved = async |id: &str| {
        eventually(&format!("{first:?} has the export under the id {id} alone"), NEW_IDENTITY, async || {
            let import = first.expect(SERVICE_IMPORT, &world.namespace, "mine").await?;
            holds(facts::clusters_of(&import) == [id.to_owned()].into(), "this id alone is in its status", &import)?;
            let slices = world.imported_slices(first, "mine").await?;
            for slice in &slices {
                let source = &slice["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"];
                holds(source == id, "no slice is of the other id", slice)?;
            }
            holds(facts::endpoints(&slices).count() == 1, "the endpoint is there", &slices)
        })
        .await
    };
    // Ends only when the endpoint is lost.
    let stays = async {
        loop {
            let slices = world.imported_slices(first, "mine").await?;
            holds(facts::endpoints(&slices).count() > 0, "the endpoint is there", &slices)?;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    set(second, CLUSTER, &name).await?;
    let outcome: Result<()> = tokio::select! {
        lost = stays => lost,
        done = moved(&name) => done,
    };
    set(second, CLUSTER, &second.id).await?;
    outcome?;
    moved(&second.id).await?;
    ready(world, second, "mine", "True", "Exported").await.map(drop)
}
