//! ServiceImports: where they are, what they say, and whose they are.

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    EVENT, NAMESPACE, PROPAGATION, SERVICE, SERVICE_EXPORT, SERVICE_IMPORT, SERVICE_IMPORT_V1ALPHA1, Skip, World,
    condition, eventually, holds, holds_for, manifests,
};
use serde_json::{Value, json};

use crate::check::{Check, check};
use crate::facts::{self, QUIET};

pub(crate) const CHECKS: &[Check] = &[
    check!(All, [5, 28, 31, 33, 35], imports::have_the_whole_spec_and_status_in_every_cluster),
    check!(Two, [28], imports::appear_when_their_namespace_does),
    check!(Two, [29, 32], imports::keep_their_addresses),
    check!(Two, [30], imports::of_somebody_else_are_left_alone),
    check!(Two, [30], imports::are_put_right_when_somebody_changes_them),
    check!(Two, [31, 32, 33], imports::of_headless_services_have_no_addresses),
    check!(Three, [26, 33, 34], imports::cross_between_single_and_dual_stack_clusters),
];

async fn have_the_whole_spec_and_status_in_every_cluster(world: &World) -> Result<()> {
    let source = &world.clusters[0];
    let ports = [
        json!({"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP", "appProtocol": "kubernetes.io/h2c"}),
        json!({"name": "dns", "port": 53, "targetPort": 8081, "protocol": "UDP"}),
    ];
    let mut fields = json!({
        "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 77}},
        "internalTrafficPolicy": "Local", "trafficDistribution": "PreferClose",
    });
    if facts::minor(source).await? < facts::TRAFFIC_DISTRIBUTION {
        fields["trafficDistribution"].take();
    }
    let service = manifests::with_spec(manifests::single_stack("web", &ports), &fields);
    facts::export(world, source, service).await?;
    let service = source.expect(SERVICE, &world.namespace, "web").await?;
    let address = "198.18.0.1".to_owned();
    world.apply(source, manifests::endpoint_slice("web", "web", &[address])).await?;
    for cluster in &world.clusters {
        let import = facts::import_with_ips(world, cluster, "web").await?;
        let spec = &import["spec"];
        holds(spec["type"] == "ClusterSetIP", "it is a ClusterSetIP", &import)?;
        holds(facts::ports(&spec["ports"]) == facts::ports(&json!(ports)), "its ports are the Service's", &import)?;
        let http = spec["ports"].as_array().into_iter().flatten().find(|port| port["name"] == "http");
        holds(http.is_some_and(|port| port["appProtocol"] == "kubernetes.io/h2c"), "appProtocol is there", &import)?;
        for field in ["sessionAffinity", "sessionAffinityConfig", "internalTrafficPolicy", "trafficDistribution"] {
            holds(spec[field] == fields[field], &format!("{field} is the Service's"), &import)?;
        }
        let families = facts::strings(&spec["ipFamilies"]);
        holds(families == facts::strings(&service["spec"]["ipFamilies"]), "ipFamilies are the Service's", &import)?;
        holds(facts::strings(&spec["ips"]).len() == families.len(), "there is an address for each family", &import)?;

        let import = facts::import_where(world, cluster, "web", "its status is complete", |import| {
            facts::clusters_of(import) == [source.id.clone()].into()
                && import["status"]["endpointSliceObjects"] == "Present"
                && condition(import, "Ready")["status"] == "True"
                && condition(import, "Ready")["reason"] == "Ready"
        })
        .await?;
        // What consumers find it by, and the version that CoreDNS reads.
        let derived = cluster.expect(SERVICE, &world.namespace, facts::derived_service(&import)?).await?;
        holds(
            facts::strings(&derived["spec"]["clusterIPs"]) == facts::strings(&import["spec"]["ips"]),
            "the derived Service has the import's addresses",
            &derived,
        )?;
        let old = cluster.expect(SERVICE_IMPORT_V1ALPHA1, &world.namespace, "web").await?;
        holds(old["spec"] == import["spec"], "v1alpha1 says the same", &old)?;
    }
    Ok(())
}

async fn appear_when_their_namespace_does(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    world.remove_namespace(other).await?;
    facts::export(world, source, manifests::service("web", &[manifests::http(80)])).await?;
    world.export_condition(source, "web", "Ready", "True", "Exported").await?;
    world.imported(source, "web").await?;
    holds_for("the namespace is not created", QUIET, async || other.expect_none(NAMESPACE, "", &world.namespace).await)
        .await?;
    world.create_namespace(other).await?;
    world.imported(other, "web").await?;
    // And once more: a namespace that was there before.
    world.remove_namespace(other).await?;
    world.create_namespace(other).await?;
    world.imported(other, "web").await.map(drop)
}

async fn keep_their_addresses(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    let service = |ports: &[Value]| manifests::single_stack("web", ports);
    facts::export(world, first, service(&[manifests::http(80)])).await?;
    let before = facts::import_with_ips(world, second, "web").await?;
    let same = |import: &Value| {
        let uid = &import["metadata"]["uid"];
        uid == &before["metadata"]["uid"] && import["spec"]["ips"] == before["spec"]["ips"]
    };
    // Another port, another exporter, another type of policy, the first exporter gone.
    let extra = json!({"name": "extra", "port": 8000, "targetPort": 8080, "protocol": "TCP"});
    world.apply(first, service(&[manifests::http(80), extra.clone()])).await?;
    facts::import_where(world, second, "web", "it has the port and its addresses", |import| {
        same(import) && facts::ports(&import["spec"]["ports"]).len() == 2
    })
    .await?;
    facts::export(world, second, service(&[manifests::http(80), extra])).await?;
    facts::import_where(world, second, "web", "it has both exporters and its addresses", |import| {
        same(import) && facts::clusters_of(import).len() == 2
    })
    .await?;
    for cluster in [first, second] {
        let patch = json!({"spec": {"sessionAffinity": "ClientIP"}});
        cluster.merge(SERVICE, &world.namespace, "web", &patch).await?;
    }
    facts::import_where(world, second, "web", "it has the affinity and its addresses", |import| {
        same(import) && import["spec"]["sessionAffinity"] == "ClientIP"
    })
    .await?;
    first.delete(SERVICE_EXPORT, &world.namespace, "web").await?;
    facts::import_where(world, second, "web", "it has one exporter and its addresses", |import| {
        same(import) && facts::clusters_of(import) == [second.id.clone()].into()
    })
    .await?;
    let imports = second.list(SERVICE_IMPORT, &world.namespace, "").await?;
    holds(imports.len() == 1, "there is one import", &imports)
}

async fn of_somebody_else_are_left_alone(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    let foreign = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport",
        "metadata": {"name": "taken", "labels": {"made-by": "somebody-else"}},
        "spec": {
            "type": "ClusterSetIP", "ips": ["10.1.2.3"],
            "ports": [{"name": "theirs", "port": 1234, "protocol": "TCP"}],
        },
    });
    let before = world.apply(other, foreign).await?;
    facts::export(world, source, manifests::service("taken", &[manifests::http(80)])).await?;
    world.imported(source, "taken").await?;
    eventually("an Event says that it is in the way", PROPAGATION, async || {
        let events = other.list(EVENT, &world.namespace, "").await?;
        let said = events.iter().any(|event| event["type"] == "Warning" && event["regarding"]["name"] == "taken");
        holds(said, "there is a warning about it", &events)
    })
    .await?;
    let same =
        |after: &Value| before["spec"] == after["spec"] && before["metadata"]["labels"] == after["metadata"]["labels"];
    let after = other.expect(SERVICE_IMPORT, &world.namespace, "taken").await?;
    holds(same(&after), "it is what it was", &after)?;
    source.delete(SERVICE_EXPORT, &world.namespace, "taken").await?;
    world.import_gone(source, "taken").await?;
    let after = other.expect(SERVICE_IMPORT, &world.namespace, "taken").await?;
    holds(same(&after), "it is what it was after un-exporting", &after)
}

async fn are_put_right_when_somebody_changes_them(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    facts::export(world, source, manifests::single_stack("web", &[manifests::http(80)])).await?;
    let before = facts::import_with_ips(world, other, "web").await?;
    let patch = json!({"spec": {"ips": ["10.1.2.3"], "ports": [{"name": "http", "port": 81, "protocol": "TCP"}]}});
    other.merge(SERVICE_IMPORT, &world.namespace, "web", &patch).await?;
    facts::import_where(world, other, "web", "its spec is what it was", |import| import["spec"] == before["spec"])
        .await?;
    other.delete(SERVICE_IMPORT, &world.namespace, "web").await?;
    facts::import_where(world, other, "web", "it is back", |import| import["spec"]["ports"] == before["spec"]["ports"])
        .await
        .map(drop)
}

async fn of_headless_services_have_no_addresses(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    let service = manifests::service("db", &[manifests::http(8080)]);
    facts::export(world, source, manifests::with_spec(service, &json!({"clusterIP": "None"}))).await?;
    let families = source.expect(SERVICE, &world.namespace, "db").await?["spec"]["ipFamilies"].clone();
    for cluster in [source, other] {
        let import = facts::import_where(world, cluster, "db", "its status is complete", |import| {
            facts::clusters_of(import).len() == 1 && condition(import, "Ready")["status"] == "True"
        })
        .await?;
        holds(import["spec"]["type"] == "Headless", "it is headless", &import)?;
        holds(facts::strings(&import["spec"]["ips"]).is_empty(), "it has no addresses", &import)?;
        holds(import["spec"]["ipFamilies"] == families, "its families are the Service's", &import)?;
    }
    Ok(())
}

/// The third cluster of the testbed has IPv4 only.
async fn cross_between_single_and_dual_stack_clusters(world: &World) -> Result<()> {
    let [dual, _, single] = world.three();
    let families = async |cluster| {
        let service = world.apply(cluster, manifests::service("probe", &[manifests::http(80)])).await?;
        anyhow::Ok(facts::strings(&service["spec"]["ipFamilies"]))
    };
    let (of_dual, of_single) = (families(dual).await?, families(single).await?);
    if of_dual.len() != 2 || of_single.len() != 1 {
        return Err(Skip("needs a dual-stack first and a single-stack third cluster".to_owned()).into());
    }
    let [has, lacks] = if of_single[0] == "IPv4" { ["IPv4", "IPv6"] } else { ["IPv6", "IPv4"] };
    for (name, cluster, wanted) in
        [("both", dual, vec![has, lacks]), ("one", single, vec![has]), ("lacking", dual, vec![lacks])]
    {
        world.deploy(cluster, name, 1).await?;
        let policy = if wanted.len() == 2 { "RequireDualStack" } else { "SingleStack" };
        let fields = json!({"ipFamilyPolicy": policy, "ipFamilies": wanted});
        let service = manifests::with_spec(manifests::service(name, &[manifests::http(80)]), &fields);
        facts::export(world, cluster, service).await?;
    }
    for (cluster, name, wanted) in [
        (dual, "both", vec![has, lacks]),
        (single, "both", vec![has]),
        (dual, "one", vec![has]),
        (single, "one", vec![has]),
        (dual, "lacking", vec![lacks]),
    ] {
        let import = facts::import_with_ips(world, cluster, name).await?;
        let ips = facts::strings(&import["spec"]["ips"]);
        let of_ips: Vec<_> = ips.iter().map(|ip| if ip.contains(':') { "IPv6" } else { "IPv4" }).collect();
        holds(of_ips == wanted, &format!("its addresses are of {wanted:?}, in this order"), &import)?;
        holds(facts::strings(&import["spec"]["ipFamilies"]) == wanted, &format!("ipFamilies are {wanted:?}"), &import)?;
        facts::import_where(world, cluster, name, "it is Ready", |import| {
            condition(import, "Ready")["status"] == "True"
        })
        .await?;
        facts::answers(cluster, &format!("http://{}/hostname", world.name(name)), &[]).await?;
    }
    facts::import_where(world, single, "lacking", "it says that it cannot be served here", |import| {
        let ready = condition(import, "Ready");
        ready["status"] == "False" && ready["reason"] == "IPFamilyNotSupported"
    })
    .await
    .map(drop)
}
