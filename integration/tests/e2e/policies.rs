//! The samples of ValidatingAdmissionPolicies: the API server evaluates their expressions.

use anyhow::{Context as _, Result, bail};
use cloudmap_mcs_integration::scenario::{
    ADMISSION_POLICY, ADMISSION_POLICY_BINDING, Cluster, ENDPOINT_SLICE, Kind, NAMESPACE, PODS, SERVICE,
    SERVICE_EXPORT, SERVICE_IMPORT, World, eventually, explained, holds,
    manifests::{self, LABEL_SCENARIO, with_spec},
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

/// A derived Service, as far as its mark says so.
fn marked(service: Value) -> Value {
    let mut service = with_spec(service, &json!({"selector": null}));
    service["metadata"]["labels"] = json!({"cloudmap-mcs/managed-by": "cloudmap-mcs"});
    service
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_samples_of_admission_policies_let_the_controller_write_its_own_and_nobody_else() {
    World::run_in(&[1, 0], &[], "policy-own", async |world| {
        let [cluster, other] = world.pair();
        let files = [("what-the-controller-writes.yaml", "controller"), ("what-others-leave-alone.yaml", "others")];
        let name = |what: &str| format!("{}-{what}", world.namespace);
        let outcome = async {
            for (file, what) in files {
                for object in sample(file, &name(what), &[&world.namespace])? {
                    cluster.apply("", object).await?;
                }
            }
            each_writes_its_own(world).await?;
            // Under the policies, imports come, follow and go.
            world.export(other, "imported", 1).await?;
            world.followed(other, "imported").await?;
            world.deploy(other, "imported", 2).await?;
            world.followed(other, "imported").await?;
            let editor = cluster.as_user(EDITOR).await?;
            let words = "only cloudmap-mcs writes this ServiceImport: change the ServiceExports";
            let error =
                editor.delete(SERVICE_IMPORT, &world.namespace, "imported").await.err().context("it is deleted")?;
            holds(explained(&error).contains(words), words, &explained(&error))?;
            other.delete(SERVICE_EXPORT, &world.namespace, "imported").await?;
            world.import_gone(cluster, "imported").await
        }
        .await;
        for (_, what) in files {
            cluster.delete(ADMISSION_POLICY_BINDING, "", &name(what)).await?;
            cluster.delete(ADMISSION_POLICY, "", &name(what)).await?;
        }
        outcome
    })
    .await;
}

/// Somebody who may edit a namespace, ServiceImports included.
const EDITOR: &str = "e2e-editor";

async fn each_writes_its_own(world: &World) -> Result<()> {
    let (cluster, namespace) = (&world.clusters[0], world.namespace.as_str());
    for (name, role) in [("editor", "edit"), ("imports", "cloudmap-mcs")] {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": EDITOR}],
        });
        cluster.apply(namespace, binding).await?;
    }
    let controller = cluster.as_user("system:serviceaccount:cloudmap-mcs-system:cloudmap-mcs").await?;
    let editor = cluster.as_user(EDITOR).await?;
    let service = |name: &str| manifests::service(name, &[manifests::http(80)]);
    eventually("the controller may create only what has its mark", PODS, async || {
        refused(&controller, namespace, SERVICE, service("web"), "cloudmap-mcs may create only objects with its mark")
            .await
    })
    .await?;
    eventually("nobody else gives an object this mark", PODS, async || {
        let words = "only cloudmap-mcs gives an object of the kind Service its mark, the label cloudmap-mcs/managed-by";
        refused(&editor, namespace, SERVICE, marked(service("fake")), words).await
    })
    .await?;
    editor.apply(namespace, service("web")).await?;
    controller.apply(namespace, marked(service("derived"))).await?;
    let words = "cloudmap-mcs may not change what it did not create";
    refused(&controller, namespace, SERVICE, marked(service("web")), words).await?;
    let words = "a derived Service has type ClusterIP and no selector";
    let selecting = with_spec(marked(service("derived")), &json!({"selector": {"app": "web"}}));
    refused(&controller, namespace, SERVICE, selecting, words).await?;
    let words = "only cloudmap-mcs writes this Service: change the ServiceExports";
    refused(&editor, namespace, SERVICE, service("derived"), words).await?;
    let slice = manifests::endpoint_slice("web-by-hand", "web", &["192.0.2.1".to_owned()]);
    let mut taken = slice.clone();
    taken["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = "cloudmap-mcs".into();
    let words = "only cloudmap-mcs gives an object of the kind EndpointSlice its mark, the label endpointslice.kubernetes.io/managed-by";
    refused(&editor, namespace, ENDPOINT_SLICE, taken, words).await?;
    let words = "only cloudmap-mcs gives an import its endpoints";
    let of_derived = manifests::endpoint_slice("web-by-hand", "derived-0123456789", &["192.0.2.1".to_owned()]);
    refused(&editor, namespace, ENDPOINT_SLICE, of_derived, words).await?;
    let mut of_web = slice.clone();
    of_web["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = "cloudmap-mcs".into();
    let words = "an imported EndpointSlice belongs to a derived Service, or to none";
    refused(&controller, namespace, ENDPOINT_SLICE, of_web, words).await?;
    editor.apply(namespace, slice).await?;
    editor.delete(ENDPOINT_SLICE, namespace, "web-by-hand").await?;
    controller.delete(SERVICE, namespace, "derived").await?;
    editor.delete(SERVICE, namespace, "web").await
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
