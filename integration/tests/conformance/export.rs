//! Exporting and un-exporting: what is exported, what is refused, what is left.

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    NAMESPACE, PROPAGATION, ROLE_BINDING, SERVICE, SERVICE_EXPORT, SERVICE_IMPORT, World, eventually, holds, holds_for,
    manifests,
};
use serde_json::json;

use crate::check::{Check, check};
use crate::facts::{self, QUIET};

pub(crate) const CHECKS: &[Check] = &[
    check!(Two, [6, 7, 5, 42], export::only_what_is_exported_is_reached),
    check!(Two, [9], export::every_type_of_service_is_exported),
    check!(Two, [9, 13], export::an_external_name_is_refused),
    check!(Two, [10, 13], export::an_export_without_a_service_says_so_until_there_is_one),
    check!(Two, [8, 38], export::un_exporting_leaves_nothing_behind),
    check!(Two, [11], export::only_exported_labels_and_annotations_arrive),
    check!(Disturb, [12], export::only_from_namespaces_that_the_administrator_allows),
    check!(Two, [12, 30], export::editors_export_and_cannot_write_imports),
];

/// Both clusters have the Service; one exports it.
async fn only_what_is_exported_is_reached(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    for cluster in [source, other] {
        world.deploy(cluster, "web", 1).await?;
        world.apply(cluster, manifests::service("web", &[manifests::http(80)])).await?;
    }
    holds_for("nothing is imported before it is exported", QUIET, async || {
        source.expect_none(SERVICE_IMPORT, &world.namespace, "web").await?;
        other.expect_none(SERVICE_IMPORT, &world.namespace, "web").await
    })
    .await?;
    world.apply(source, manifests::export("web")).await?;
    let exported = facts::pods(world, source, "web").await?;
    let own = facts::pods(world, other, "web").await?;
    for cluster in [source, other] {
        facts::import_with_ips(world, cluster, "web").await?;
        facts::import_where(world, cluster, "web", "only the exporter is in its status", |import| {
            facts::clusters_of(import) == [source.id.clone()].into()
        })
        .await?;
        world.followed(source, "web").await?;
        let url = format!("http://{}/hostname", world.name("web"));
        facts::reaches(cluster, None, &url, &exported).await?;
    }
    // The name of the own Service still means the own Service.
    let local = format!("http://web.{}.svc.cluster.local/hostname", world.namespace);
    facts::reaches(other, None, &local, &own).await
}

async fn every_type_of_service_is_exported(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    world.deploy(source, "web", 1).await?;
    for (name, kind) in [("cluster-ip", "ClusterIP"), ("node-port", "NodePort"), ("load-balancer", "LoadBalancer")] {
        let service = manifests::service(name, &[manifests::http(80)]);
        let fields = json!({"type": kind, "selector": {"app": "web"}});
        facts::export(world, source, manifests::with_spec(service, &fields)).await?;
        world.export_condition(source, name, "Valid", "True", "Valid").await?;
        let import = facts::import_with_ips(world, other, name).await?;
        holds(import["spec"]["type"] == "ClusterSetIP", "it is a ClusterSetIP", &import)?;
        facts::answers(other, &format!("http://{}/hostname", world.name(name)), &[]).await?;
    }
    let service = manifests::service("headless", &[manifests::http(8080)]);
    let fields = json!({"clusterIP": "None", "selector": {"app": "web"}});
    facts::export(world, source, manifests::with_spec(service, &fields)).await?;
    let import = world.imported(other, "headless").await?;
    holds(import["spec"]["type"] == "Headless", "it is headless", &import)
}

async fn an_external_name_is_refused(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "elsewhere"},
        "spec": {"type": "ExternalName", "externalName": "elsewhere.example"},
    });
    facts::export(world, source, service).await?;
    world.export_condition(source, "elsewhere", "Valid", "False", "InvalidServiceType").await?;
    holds_for("nothing is imported", QUIET, async || {
        source.expect_none(SERVICE_IMPORT, &world.namespace, "elsewhere").await?;
        other.expect_none(SERVICE_IMPORT, &world.namespace, "elsewhere").await
    })
    .await
}

async fn an_export_without_a_service_says_so_until_there_is_one(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    world.apply(source, manifests::export("late")).await?;
    world.export_condition(source, "late", "Valid", "False", "NoService").await?;
    holds_for("nothing is imported", QUIET, async || other.expect_none(SERVICE_IMPORT, &world.namespace, "late").await)
        .await?;
    world.apply(source, manifests::service("late", &[manifests::http(80)])).await?;
    world.export_condition(source, "late", "Valid", "True", "Valid").await?;
    world.export_condition(source, "late", "Ready", "True", "Exported").await?;
    world.imported(other, "late").await?;
    source.delete(SERVICE, &world.namespace, "late").await?;
    world.export_condition(source, "late", "Valid", "False", "NoService").await?;
    world.import_gone(other, "late").await?;
    source.expect(SERVICE_EXPORT, &world.namespace, "late").await.map(drop)
}

/// Two exporters; one leaves, then the other.
async fn un_exporting_leaves_nothing_behind(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    for cluster in [first, second] {
        world.deploy(cluster, "web", 1).await?;
        facts::export(world, cluster, manifests::service("web", &[manifests::http(80)])).await?;
    }
    for source in [first, second] {
        world.followed(source, "web").await?;
    }
    first.delete(SERVICE_EXPORT, &world.namespace, "web").await?;
    for cluster in [first, second] {
        eventually("only the second cluster's endpoints are left", PROPAGATION, async || {
            let gone = world.imported_addresses(cluster, "web", first).await?;
            holds(gone.is_empty(), "the first cluster's endpoints are gone", &gone)
        })
        .await?;
        facts::import_where(world, cluster, "web", "only the second cluster is in its status", |import| {
            facts::clusters_of(import) == [second.id.clone()].into()
        })
        .await?;
    }
    let left = world.followed(second, "web").await?;
    holds(!left.is_empty(), "the second cluster's endpoints are left", &left)?;
    second.delete(SERVICE_EXPORT, &world.namespace, "web").await?;
    for cluster in [first, second] {
        world.import_gone(cluster, "web").await?;
        cluster.expect(SERVICE, &world.namespace, "web").await?;
    }
    Ok(())
}

async fn only_exported_labels_and_annotations_arrive(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    let private = json!({"example.com/private": "yes"});
    let mut service = manifests::service("web", &[manifests::http(80)]);
    let exported = json!({
        "exportedLabels": {"example.com/team": "orders"},
        "exportedAnnotations": {"example.com/contact": "orders@example.com"},
    });
    let mut export = manifests::with_spec(manifests::export("web"), &exported);
    for manifest in [&mut service, &mut export] {
        manifest["metadata"]["labels"] = private.clone();
        manifest["metadata"]["annotations"] = private.clone();
    }
    world.apply(source, service).await?;
    world.apply(source, export).await?;
    for cluster in [source, other] {
        let import = world.imported(cluster, "web").await?;
        let (labels, annotations) = (&import["metadata"]["labels"], &import["metadata"]["annotations"]);
        holds(labels["example.com/team"] == "orders", "it has the exported label", &import)?;
        holds(annotations["example.com/contact"] == "orders@example.com", "it has the exported annotation", &import)?;
        let none = labels["example.com/private"].is_null() && annotations["example.com/private"].is_null();
        holds(none, "it has none of the metadata of Service and ServiceExport", &import)?;
    }
    let changed = manifests::with_spec(manifests::export("web"), &json!({"exportedLabels": {"example.com/team": "x"}}));
    world.apply(source, changed).await?;
    for cluster in [source, other] {
        facts::import_where(world, cluster, "web", "the label follows, the annotation is gone", |import| {
            import["metadata"]["labels"]["example.com/team"] == "x"
                && import["metadata"]["annotations"]["example.com/contact"].is_null()
        })
        .await?;
    }
    Ok(())
}

/// The permissions that come with the installation: whoever may edit a namespace may export from it, and without a role
/// nobody does.
async fn editors_export_and_cannot_write_imports(world: &World) -> Result<()> {
    let [cluster, _] = world.pair();
    let user = format!("editor-of-{}", world.namespace);
    let review = async |resource: &str, user: &str| {
        let attributes = json!({
            "group": "multicluster.x-k8s.io", "resource": resource, "verb": "create", "namespace": world.namespace,
        });
        let review = cluster
            .create(json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
                "spec": {"user": user, "resourceAttributes": attributes},
            }))
            .await?;
        anyhow::Ok(review["status"]["allowed"] == true)
    };
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "editor"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    });
    world.apply(cluster, binding).await?;
    cluster.expect(ROLE_BINDING, &world.namespace, "editor").await?;
    eventually("an editor may export", PROPAGATION, async || {
        let may = review("serviceexports", &user).await?;
        holds(may, "an editor may create ServiceExports", &may)
    })
    .await?;
    let may = review("serviceimports", &user).await?;
    holds(!may, "an editor may not create ServiceImports", &may)?;
    let may = review("serviceexports", "somebody").await?;
    holds(!may, "somebody without a role may not export", &may)
}

/// The controller of the second cluster is told to export only from namespaces with a label.
async fn only_from_namespaces_that_the_administrator_allows(world: &World) -> Result<()> {
    const LABEL: &str = "cloudmap-mcs-e2e-exports";
    let [first, second] = world.pair();
    second.controller().settle().await?;
    facts::export(world, second, manifests::single_stack("web", &[manifests::http(80)])).await?;
    world.imported(first, "web").await?;
    let setting = [("CLOUDMAP_MCS_EXPORT_NAMESPACES", format!("{LABEL}=yes"))];
    let before = second.controller().set(&setting).await?;
    let outcome = async {
        facts::not_ready(world, second, "web", PROPAGATION, &["Failed"], LABEL).await?;
        let refused = world.export_condition(second, "web", "Ready", "False", "Failed").await?;
        let message = refused["message"].as_str().unwrap_or_default();
        let helps = message.contains(&world.namespace) && message.contains(LABEL);
        holds(helps, "the message names the namespace and the label that it lacks", &refused)?;
        world.import_gone(first, "web").await?;
        let label = json!({"metadata": {"labels": {LABEL: "yes"}}});
        second.merge(NAMESPACE, "", &world.namespace, &label).await?;
        world.export_condition(second, "web", "Ready", "True", "Exported").await?;
        world.imported(first, "web").await.map(drop)
    }
    .await;
    second.controller().restore(before).await?;
    outcome
}
