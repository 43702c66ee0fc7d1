//! What other clusters may bring into a cluster, on real API servers: they check policies, and the controller may read them and
//! write their status.

use anyhow::{Result, bail};
use cloudmap_mcs_integration::scenario::{
    Cluster, IMPORT_POLICY, NAMESPACE, PROPAGATION, SERVICE_IMPORT, World, condition, eventually, explained, holds,
};
use serde_json::{Value, json};

fn policy(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "cloudmap-mcs.io/v1alpha1", "kind": "ClusterImportPolicy", "metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_takes_only_what_its_policies_and_namespaces_allow() {
    World::run_in(&[4, 5], &[], "imports", async |world| {
        let outcome = takes_what_is_allowed(world).await;
        world.clusters[0].delete(IMPORT_POLICY, "", &world.namespace).await?;
        outcome
    })
    .await;
}

async fn takes_what_is_allowed(world: &World) -> Result<()> {
    let [here, other] = world.pair();
    let name = world.namespace.as_str();
    world.export(other, "web", 2).await?;
    world.followed(other, "web").await?;
    let from = json!({"clusters": [other.id]});

    here.apply("", policy(name, &json!({"from": from, "namespaces": {"denied": [name]}}))).await?;
    world.import_gone(here, "web").await?;
    enforced(here, name, "Enforced", &format!("It is about {}.", other.id)).await?;
    eventually("the policy counts the name", PROPAGATION, async || {
        let policy = here.expect(IMPORT_POLICY, "", name).await?;
        holds(
            policy["status"]["excludedNames"] == 1 && policy["status"]["clusters"] == 1,
            "one of one cluster",
            &policy,
        )
    })
    .await?;

    here.apply("", policy(name, &json!({"from": from, "maxEndpointsPerName": 1}))).await?;
    eventually("one endpoint of two counts, and the import says so", PROPAGATION, async || {
        let shown = world.imported_slices(here, "web").await?;
        let counts: Vec<_> = shown.iter().map(|slice| slice["endpoints"].as_array().map_or(0, Vec::len)).collect();
        holds(!counts.is_empty() && counts.iter().all(|count| *count == 1), "each family has one", &counts)?;
        let import = here.expect(SERVICE_IMPORT, name, "web").await?;
        let said = condition(&import, "Excluded")["message"].as_str().unwrap_or_default();
        holds(
            said.contains(&format!("ClusterImportPolicy {name} lets it have 1 of them")),
            "it names the policy",
            &import,
        )
    })
    .await?;

    for (spec, words) in [
        (json!({"addresses": {"denied": ["10.300.0.0/16"]}}), "spec.addresses.denied[0]"),
        (json!({"maxNames": -1}), "spec.maxNames"),
        (json!({"from": {"clusters": ["Blue"]}}), "spec.from.clusters[0]"),
        (json!({"namespace": {"denied": ["shop"]}}), ".spec.namespace: field not declared in schema"),
    ] {
        refused(here, policy(name, &spec), words).await?;
    }
    // No pattern of the CRD knows all that is no address.
    here.apply("", policy(name, &json!({"from": from, "addresses": {"denied": ["1::2::3/64"]}}))).await?;
    enforced(here, name, "InvalidSpec", "spec.addresses.denied has \"1::2::3/64\"").await?;
    world.followed(other, "web").await?;

    let accept = |ids: &str| json!({"metadata": {"annotations": {"cloudmap-mcs/accept-clusters": ids}}});
    here.merge(NAMESPACE, "", name, &accept("nobody-else")).await?;
    world.import_gone(here, "web").await?;
    here.merge(NAMESPACE, "", name, &accept(&format!("nobody-else,{}", other.id))).await?;
    world.followed(other, "web").await.map(drop)
}

/// Waits until the condition of the policy has this reason and these words.
async fn enforced(cluster: &Cluster, name: &str, reason: &str, words: &str) -> Result<()> {
    let what = format!("the policy says {reason}: {words}");
    eventually(&what, PROPAGATION, async || {
        let policy = cluster.expect(IMPORT_POLICY, "", name).await?;
        let said = condition(&policy, "Enforced");
        let message = said["message"].as_str().unwrap_or_default();
        holds(said["reason"] == reason && message.contains(words), &what, &policy)
    })
    .await
}

/// Checks that the API server refuses a policy with these words.
async fn refused(cluster: &Cluster, policy: Value, words: &str) -> Result<()> {
    match cluster.apply("", policy.clone()).await {
        Ok(_) => bail!("the API server took {policy}"),
        Err(error) => holds(explained(&error).contains(words), &format!("it says {words:?}"), &explained(&error)),
    }
}
