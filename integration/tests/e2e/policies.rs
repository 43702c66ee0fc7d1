//! The samples of ValidatingAdmissionPolicies: the API server evaluates their expressions.

use anyhow::{Context as _, Result, bail};
use cloudmap_mcs_integration::scenario::{
    ADMISSION_POLICY, ADMISSION_POLICY_BINDING, Cluster, Kind, NAMESPACE, PODS, SERVICE, SERVICE_EXPORT, World,
    eventually, explained, holds,
    manifests::{self, LABEL_SCENARIO},
    name_of,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../samples/policies");
const EXPORTS: &str = "validating-admission-policy.yaml";
const ANNOTATED: &str = "annotated.yaml";

/// A sample's policy and its binding under a name of the scenario, for these namespaces alone.
fn sample(file: &str, name: &str, namespaces: &[&str]) -> Result<[Value; 2]> {
    let text = std::fs::read_to_string(format!("{SAMPLES}/{file}"))?;
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

/// A Service with these annotations.
fn annotated(annotations: &Value) -> Value {
    manifests::annotated(manifests::service("api", &[manifests::http(80)]), annotations)
}

/// Checks that the API server refuses an object with these words.
async fn refused(cluster: &Cluster, namespace: &str, kind: Kind, object: Value, words: &str) -> Result<()> {
    match cluster.apply(namespace, object).await {
        Ok(object) => {
            cluster.delete(kind, namespace, name_of(&object)).await?;
            bail!("an object was admitted in {namespace}")
        }
        Err(error) => holds(explained(&error).contains(words), &format!("it says {words:?}"), &explained(&error)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_samples_of_admission_policies_decide_who_may_export_and_annotate_and_where() {
    World::run_in(&[1], &[], "policy", async |world| {
        let cluster = &world.clusters[0];
        let (allowed, other) = (world.namespace.as_str(), format!("{}-other", world.namespace));
        let outcome = async {
            let namespace = cluster.expect(NAMESPACE, "", allowed).await?;
            let run = namespace["metadata"]["labels"][LABEL_SCENARIO].as_str().context("no label of the run")?;
            cluster.apply("", manifests::namespace(&other, &[(LABEL_SCENARIO, run)])).await?;
            let label = json!({"metadata": {"labels": {"cloudmap-mcs.example/export": "allowed"}}});
            cluster.merge(NAMESPACE, "", allowed, &label).await?;
            let samples = [(EXPORTS, allowed.to_owned()), (ANNOTATED, format!("{allowed}-annotated"))];
            for (file, name) in &samples {
                for object in sample(file, name, &[allowed, &other])? {
                    cluster.apply("", object).await?;
                }
            }
            decides(cluster, allowed, &other).await?;
            decides_about_annotations(cluster, allowed, &other).await
        }
        .await;
        for name in [allowed.to_owned(), format!("{allowed}-annotated")] {
            cluster.delete(ADMISSION_POLICY_BINDING, "", &name).await?;
            cluster.delete(ADMISSION_POLICY, "", &name).await?;
        }
        cluster.delete(NAMESPACE, "", &other).await?;
        outcome
    })
    .await;
}

async fn decides(cluster: &Cluster, allowed: &str, other: &str) -> Result<()> {
    let words = format!("the namespace {other} may not export: it lacks the label cloudmap-mcs.example/export=allowed");
    eventually("a namespace without the label may not export", PODS, async || {
        refused(cluster, other, SERVICE_EXPORT, manifests::export("web"), &words).await
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
    refused(cluster, allowed, SERVICE_EXPORT, export_to("elsewhere"), words).await
}

async fn decides_about_annotations(cluster: &Cluster, allowed: &str, other: &str) -> Result<()> {
    const HOST: &str = "external-dns.alpha.kubernetes.io/hostname";
    let host = |host: &str| annotated(&json!({HOST: host}));
    let words =
        format!("the namespace {other} may register nothing: it lacks the label cloudmap-mcs.example/export=allowed");
    eventually("a namespace without the label may not annotate", PODS, async || {
        refused(cluster, other, SERVICE, host("api.internal"), &words).await
    })
    .await?;
    eventually("a namespace with the label may annotate", PODS, async || {
        cluster.apply(allowed, host("api.internal, Www.Internal.")).await.map(drop)
    })
    .await?;
    cluster.apply(allowed, annotated(&json!({"cloudmap.controller/namespace": allowed}))).await?;
    cluster.delete(SERVICE, allowed, "api").await?;
    let words = "host names that are registered in Cloud Map must end with \".internal\"";
    for evil in ["api.example.org", "api.internal,www.example.org", "www.example.org api.internal"] {
        refused(cluster, allowed, SERVICE, host(evil), words).await?;
    }
    let words = "cloudmap.controller/namespace may be \"internal\" or the name of the namespace";
    refused(cluster, allowed, SERVICE, annotated(&json!({"cloudmap.controller/namespace": "elsewhere"})), words).await
}
