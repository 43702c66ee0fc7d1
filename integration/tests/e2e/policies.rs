//! The sample of a ValidatingAdmissionPolicy: the API server evaluates its expressions.

use anyhow::{Context as _, Result, bail};
use cloudmap_mcs_integration::scenario::{
    ADMISSION_POLICY, ADMISSION_POLICY_BINDING, Cluster, NAMESPACE, PODS, SERVICE_EXPORT, World, eventually, explained,
    holds,
    manifests::{self, LABEL_SCENARIO},
    name_of,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../samples/policies/validating-admission-policy.yaml");

/// The sample's policy and its binding under a name of the scenario, for these namespaces alone.
fn sample(name: &str, namespaces: &[&str]) -> Result<[Value; 2]> {
    let text = std::fs::read_to_string(SAMPLE)?;
    let documents = serde_yaml_ng::Deserializer::from_str(&text).map(Value::deserialize);
    let [mut policy, mut binding] = <[Value; 2]>::try_from(documents.collect::<Result<Vec<_>, _>>()?)
        .map_err(|documents| anyhow::anyhow!("the sample has {} objects, not two", documents.len()))?;
    policy["metadata"]["name"] = name.into();
    binding["metadata"]["name"] = name.into();
    binding["spec"]["policyName"] = name.into();
    let ours = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces});
    binding["spec"]["matchResources"] = json!({"namespaceSelector": {"matchExpressions": [ours]}});
    Ok([policy, binding])
}

/// An export that names a Cloud Map namespace.
fn export_to(namespace: &str) -> Value {
    manifests::annotated(manifests::export("web"), &json!({"cloudmap-mcs/namespace": namespace}))
}

/// Checks that the API server refuses an export with these words.
async fn refused(cluster: &Cluster, namespace: &str, export: Value, words: &str) -> Result<()> {
    match cluster.apply(namespace, export).await {
        Ok(export) => {
            cluster.delete(SERVICE_EXPORT, namespace, name_of(&export)).await?;
            bail!("an export was admitted in {namespace}")
        }
        Err(error) => holds(explained(&error).contains(words), &format!("it says {words:?}"), &explained(&error)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sample_of_an_admission_policy_decides_who_may_export_and_where() {
    World::run_in(&[1], &[], "policy", async |world| {
        let cluster = &world.clusters[0];
        let (allowed, other) = (world.namespace.as_str(), format!("{}-other", world.namespace));
        let outcome = async {
            let namespace = cluster.expect(NAMESPACE, "", allowed).await?;
            let run = namespace["metadata"]["labels"][LABEL_SCENARIO].as_str().context("no label of the run")?;
            cluster.apply("", manifests::namespace(&other, &[(LABEL_SCENARIO, run)])).await?;
            let label = json!({"metadata": {"labels": {"cloudmap-mcs.example/export": "allowed"}}});
            cluster.merge(NAMESPACE, "", allowed, &label).await?;
            for object in sample(allowed, &[allowed, &other])? {
                cluster.apply("", object).await?;
            }
            decides(cluster, allowed, &other).await
        }
        .await;
        cluster.delete(ADMISSION_POLICY_BINDING, "", allowed).await?;
        cluster.delete(ADMISSION_POLICY, "", allowed).await?;
        cluster.delete(NAMESPACE, "", &other).await?;
        outcome
    })
    .await;
}

async fn decides(cluster: &Cluster, allowed: &str, other: &str) -> Result<()> {
    let words = format!("the namespace {other} may not export: it lacks the label cloudmap-mcs.example/export=allowed");
    eventually("a namespace without the label may not export", PODS, async || {
        refused(cluster, other, manifests::export("web"), &words).await
    })
    .await?;
    eventually("a namespace with the label may export", PODS, async || {
        cluster.apply(allowed, manifests::export("web")).await.map(drop)
    })
    .await?;
    for namespace in ["internal", allowed] {
        cluster.apply(allowed, export_to(namespace)).await?;
    }
    let words = "cloudmap-mcs/namespace may be \"internal\" or the name of the namespace";
    refused(cluster, allowed, export_to("elsewhere"), words).await
}
