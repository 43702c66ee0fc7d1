//! Exporting and un-exporting: what is refused, what heals, what is left.

use std::time::Duration;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    EVENT, NAMESPACE, PROPAGATION, SERVICE, SERVICE_EXPORT, SERVICE_IMPORT, World, eventually, holds, holds_for,
    manifests,
};
use serde_json::{Value, json};

/// Long enough for what must not come to have come.
const QUIET: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_without_a_service_says_so_until_the_service_is_there() {
    World::run("no-service", async |world| {
        let [source, other] = &world.clusters;
        world.apply(source, manifests::export("late")).await?;
        world.export_condition(source, "late", "Valid", "False", "NoService").await?;
        holds_for("nothing is imported", QUIET, async || {
            other.expect_none(SERVICE_IMPORT, &world.namespace, "late").await
        })
        .await?;
        world.apply(source, manifests::service("late", &[manifests::http(80)])).await?;
        world.export_condition(source, "late", "Valid", "True", "Valid").await?;
        world.export_condition(source, "late", "Ready", "True", "Exported").await?;
        world.imported(other, "late").await?;
        source.delete(SERVICE, &world.namespace, "late").await?;
        world.export_condition(source, "late", "Valid", "False", "NoService").await?;
        world.import_gone(other, "late").await?;
        source.expect(SERVICE_EXPORT, &world.namespace, "late").await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_external_name_is_refused() {
    World::run("external-name", async |world| {
        let [source, other] = &world.clusters;
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "elsewhere"},
            "spec": {"type": "ExternalName", "externalName": "elsewhere.example"},
        });
        world.apply(source, service).await?;
        world.apply(source, manifests::export("elsewhere")).await?;
        world.export_condition(source, "elsewhere", "Valid", "False", "InvalidServiceType").await?;
        holds_for("nothing is imported", QUIET, async || {
            source.expect_none(SERVICE_IMPORT, &world.namespace, "elsewhere").await?;
            other.expect_none(SERVICE_IMPORT, &world.namespace, "elsewhere").await
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_import_appears_when_its_namespace_does() {
    World::run("late-namespace", async |world| {
        let [source, other] = &world.clusters;
        world.remove_namespace(other).await?;
        world.apply(source, manifests::service("web", &[manifests::http(80)])).await?;
        world.apply(source, manifests::export("web")).await?;
        world.export_condition(source, "web", "Ready", "True", "Exported").await?;
        world.imported(source, "web").await?;
        holds_for("the namespace is not created", QUIET, async || {
            other.expect_none(NAMESPACE, "", &world.namespace).await
        })
        .await?;
        world.create_namespace(other).await?;
        world.imported(other, "web").await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_without_endpoints_is_imported_and_resolves() {
    World::run("no-endpoints", async |world| {
        let [source, other] = &world.clusters;
        world.apply(source, manifests::service("empty", &[manifests::http(80)])).await?;
        world.apply(source, manifests::export("empty")).await?;
        world.export_condition(source, "empty", "Ready", "True", "Exported").await?;
        eventually("the import has addresses", PROPAGATION, async || {
            let import = other.expect(SERVICE_IMPORT, &world.namespace, "empty").await?;
            holds(import["spec"]["ips"].as_array().is_some_and(|ips| !ips.is_empty()), "it has addresses", &import)
        })
        .await?;
        eventually("its name resolves", PROPAGATION, async || {
            let answer = other.dig(&world.name("empty"), "A").await?;
            holds(answer.len() == 1, "there is one A record", &answer)
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_exporting_leaves_nothing_behind() {
    World::run("un-export", async |world| {
        let [source, other] = &world.clusters;
        world.deploy(source, "web", 2).await?;
        world.apply(source, manifests::service("web", &[manifests::http(80)])).await?;
        world.apply(source, manifests::export("web")).await?;
        world.imported(other, "web").await?;
        world.followed(source, "web").await?;
        eventually("both pods are instances", PROPAGATION, async || {
            let instances = world.registry.discover(&world.namespace, "web").await?;
            holds(instances.len() == 2, "there are two instances", &instances)
        })
        .await?;
        let import = other.expect(SERVICE_IMPORT, &world.namespace, "web").await?;
        let derived = import["metadata"]["annotations"]["multicluster.kubernetes.io/derived-service"]
            .as_str()
            .unwrap_or_default();
        other.expect(SERVICE, &world.namespace, derived).await?;
        source.delete(SERVICE_EXPORT, &world.namespace, "web").await?;
        for cluster in &world.clusters {
            world.import_gone(cluster, "web").await?;
        }
        eventually("the instances are gone", PROPAGATION, async || {
            let instances = world.registry.discover(&world.namespace, "web").await?;
            holds(instances.is_empty(), "there are no instances", &instances)
        })
        .await?;
        source.expect(SERVICE, &world.namespace, "web").await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_somebody_else_made_is_left_alone_and_the_refusal_is_visible() {
    World::run("foreign-import", async |world| {
        let [source, other] = &world.clusters;
        let foreign = json!({
            "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport",
            "metadata": {"name": "taken", "labels": {"made-by": "somebody-else"}},
            "spec": {"type": "ClusterSetIP", "ports": [{"name": "theirs", "port": 1234, "protocol": "TCP"}], "ips": ["10.1.2.3"]},
        });
        let before = world.apply(other, foreign).await?;
        world.apply(source, manifests::service("taken", &[manifests::http(80)])).await?;
        world.apply(source, manifests::export("taken")).await?;
        world.imported(source, "taken").await?;
        eventually("an Event says that it is in the way", PROPAGATION, async || {
            let events = other.list(EVENT, &world.namespace, "").await?;
            let said = events.iter().any(|event| event["type"] == "Warning" && event["regarding"]["name"] == "taken");
            holds(said, "there is a warning about it", &events)
        })
        .await?;
        let after = other.expect(SERVICE_IMPORT, &world.namespace, "taken").await?;
        same("the import", &before, &after)?;
        source.delete(SERVICE_EXPORT, &world.namespace, "taken").await?;
        world.import_gone(source, "taken").await?;
        same("the import after un-exporting", &before, &other.expect(SERVICE_IMPORT, &world.namespace, "taken").await?)
    })
    .await;
}

fn same(what: &str, before: &Value, after: &Value) -> Result<()> {
    holds(before["spec"] == after["spec"], &format!("the spec of {what} is what it was"), after)?;
    holds(
        before["metadata"]["labels"] == after["metadata"]["labels"],
        &format!("the labels of {what} are what they were"),
        after,
    )
}
