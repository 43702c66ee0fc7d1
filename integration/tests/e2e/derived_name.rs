//! Names of derived Services by a template: the cluster's own DNS answers for them, without the multicluster zone.

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    Cluster, EVENT, PROPAGATION, SERVICE, SERVICE_IMPORT, World, eventually, holds, manifests,
};
use serde_json::{Value, json};

const FLAG: &str = "CLOUDMAP_MCS_DERIVED_NAME";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_call_imports_by_names_that_every_dns_server_of_the_cluster_knows() {
    World::run_in(&[4, 3], &[3], "derived-name", async |world| {
        let [source, other] = world.pair();
        other.controller().settle().await?;
        world.export(source, "web", 1).await?;
        let mut headless = manifests::service("db", &[manifests::http(8080)]);
        headless["spec"]["selector"] = json!({"app": "web"});
        headless["spec"]["clusterIP"] = json!("None");
        world.apply(source, headless).await?;
        world.apply(source, manifests::export("db")).await?;
        // A Service of somebody else is in the way of the second name.
        world.apply(source, manifests::service("taken", &[manifests::http(80)])).await?;
        world.apply(source, manifests::export("taken")).await?;
        world.apply(other, manifests::service("taken-global", &[manifests::http(80)])).await?;
        for name in ["web", "db", "taken"] {
            world.imported(other, name).await?;
        }

        let before = other.controller().set(&[(FLAG, "{name}-global".to_owned())]).await?;
        let outcome = names_are_answered(world, other).await;
        other.controller().restore(before).await?;
        outcome?;
        eventually("the former names are back", PROPAGATION, async || {
            let derived = derived(other, &world.namespace, "web").await?;
            holds(derived.starts_with("derived-"), "the name is a hash", &derived)?;
            let named = other.get(SERVICE, &world.namespace, "web-global").await?;
            holds(named.is_none(), "the named Service is gone", &named)
        })
        .await
    })
    .await;
}

async fn names_are_answered(world: &World, other: &Cluster) -> Result<()> {
    let ns = &world.namespace;
    eventually("a request by the Service's name is answered", PROPAGATION, async || {
        let answer = other.curl(&format!("http://web-global.{ns}.svc.cluster.local/hostname"), &[]).await?;
        holds(answer.starts_with("web-"), "a pod of the other cluster answers", &answer)
    })
    .await?;
    // The Service serves before the import names it.
    eventually("the import has the addresses of the Service", PROPAGATION, async || {
        let import = other.expect(SERVICE_IMPORT, ns, "web").await?;
        let service = other.expect(SERVICE, ns, "web-global").await?;
        holds(import["spec"]["ips"] == service["spec"]["clusterIPs"], "it has them", &import)
    })
    .await?;
    eventually("a headless import is answered with addresses of pods", PROPAGATION, async || {
        let service = other.expect(SERVICE, ns, "db-global").await?;
        holds(service["spec"]["clusterIP"] == "None", "the Service is headless", &service)?;
        let name = format!("http://db-global.{ns}.svc.cluster.local:8080/hostname");
        let answer = other.curl(&name, &[]).await?;
        holds(answer.starts_with("web-"), "a pod of the other cluster answers", &answer)
    })
    .await?;
    let kept = derived(other, ns, "taken").await?;
    holds(kept.starts_with("derived-"), "the name of others' Service is not taken", &kept)?;
    eventually("an Event on the import says so", PROPAGATION, async || {
        let events = other.list(EVENT, ns, "").await?;
        let said = |event: &Value| {
            event["reason"] == "DerivedNameUnusable"
                && event["note"].as_str().is_some_and(|note| note.contains("taken-global"))
        };
        holds(events.iter().any(said), "it names the Service", &events)
    })
    .await
}

/// The name of the derived Service, as the import has it.
async fn derived(cluster: &Cluster, namespace: &str, name: &str) -> Result<String> {
    let import = cluster.expect(SERVICE_IMPORT, namespace, name).await?;
    let name = &import["metadata"]["annotations"]["multicluster.kubernetes.io/derived-service"];
    Ok(name.as_str().context("the import names no derived Service")?.to_owned())
}
