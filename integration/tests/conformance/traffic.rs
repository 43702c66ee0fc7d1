//! Traffic: what the properties of an import do on the data path.

use std::collections::BTreeSet;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    Cluster, DEPLOYMENT, PODS, PROPAGATION, Skip, World, eventually, explained, holds, manifests,
};
use serde_json::json;

use crate::check::{Check, check};
use crate::facts;

pub(crate) const CHECKS: &[Check] = &[
    check!(Two, [20, 40], traffic::survives_a_rolling_update),
    check!(Two, [23, 31], traffic::keeps_to_a_pod_by_session_affinity),
    check!(Two, [24, 31], traffic::stays_on_the_node_by_internal_traffic_policy),
    check!(Two, [24, 31, 40], traffic::stays_in_the_zone_by_traffic_distribution),
    check!(Two, [24, 31, 40], traffic::prefers_the_node_by_traffic_distribution),
    check!(All, [5, 28, 37], traffic::reaches_the_pods_of_all_exporters),
];

/// Two nodes of the first cluster in different zones, the second one of which the other cluster has no node in.
struct Nodes {
    near: String,
    far: String,
}

/// The first cluster's nodes: `near` is in a zone of the other cluster, `far` in another one.
async fn nodes(world: &World) -> Result<Nodes> {
    let [first, second] = world.pair();
    let zones = facts::zones(second).await?;
    let shared = |zone: &str| !zone.is_empty() && zones.iter().all(|(_, other)| other == zone);
    let nodes = facts::zones(first).await?;
    let near = nodes.iter().find(|(_, zone)| shared(zone));
    let far = nodes.iter().find(|(_, zone)| !zone.is_empty() && !shared(zone));
    let (Some((near, _)), Some((far, _))) = (near, far) else {
        let needs = "needs two nodes in two zones in the first cluster, one of which is the second cluster's only one";
        return Err(Skip(needs.to_owned()).into());
    };
    Ok(Nodes { near: near.clone(), far: far.clone() })
}

/// A pod `app=web` in both clusters, that of the first one on this node.
async fn deploy(world: &World, node: &str) -> Result<[BTreeSet<String>; 2]> {
    let [first, second] = world.pair();
    world.apply(first, manifests::on_node(manifests::deployment("web", 1), node)).await?;
    world.deploy(second, "web", 1).await?;
    eventually("the pod on this node runs", PODS, async || {
        let deployment = first.expect(DEPLOYMENT, &world.namespace, "web").await?;
        holds(deployment["status"]["readyReplicas"] == 1, "it is ready", &deployment["status"])
    })
    .await?;
    Ok([facts::pods(world, first, "web").await?, facts::pods(world, second, "web").await?])
}

/// Exports the Service from both clusters, and waits until the first one has all endpoints.
async fn export(world: &World, name: &str, fields: &serde_json::Value) -> Result<()> {
    let [first, second] = world.pair();
    let service = manifests::single_stack(name, &[manifests::http(80)]);
    let mut service = manifests::with_spec(service, fields);
    service["spec"]["selector"] = json!({"app": "web"});
    for cluster in [first, second] {
        facts::export(world, cluster, service.clone()).await?;
    }
    for source in [first, second] {
        eventually("the Service has its own endpoint", PODS, async || {
            let own = world.local_addresses(source, name).await?;
            holds(own.len() == 1, "there is one", &own)
        })
        .await?;
        world.followed(source, name).await?;
    }
    Ok(())
}

async fn stays_on_the_node_by_internal_traffic_policy(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    let nodes = nodes(world).await?;
    let [on_far, _] = deploy(world, &nodes.far).await?;
    export(world, "web", &json!({"internalTrafficPolicy": "Local"})).await?;
    let (near, far) = (first.start_client_on(&nodes.near).await?, first.start_client_on(&nodes.far).await?);
    let url = format!("http://{}/hostname", world.name("web"));
    facts::reaches(first, Some(&far), &url, &on_far).await?;
    // The other cluster's pod is on a node of the same name in the testbed, and still it is not local.
    let names: Vec<_> = facts::zones(second).await?.into_iter().map(|(name, _)| name).collect();
    for _ in 0..3 {
        let answer = first.curl_from(&near, &url, &["--max-time", "5"]).await;
        // It cannot connect, or gets nothing. That curl was not run at all would say nothing.
        let said = answer.as_ref().err().map(explained).unwrap_or_default();
        holds(
            said.contains("curl: (7)") || said.contains("curl: (28)"),
            &format!("no endpoint is local to {}; the other cluster has {names:?}", nodes.near),
            &(answer.ok(), said),
        )?;
    }
    Ok(())
}

async fn stays_in_the_zone_by_traffic_distribution(world: &World) -> Result<()> {
    let [first, _] = world.pair();
    facts::needs(first, facts::TRAFFIC_DISTRIBUTION).await?;
    let nodes = nodes(world).await?;
    let [of_first, of_second] = deploy(world, &nodes.far).await?;
    let (near, far) = (first.start_client_on(&nodes.near).await?, first.start_client_on(&nodes.far).await?);
    for (name, distribution, since) in
        [("close", "PreferClose", facts::TRAFFIC_DISTRIBUTION), ("same-zone", "PreferSameZone", 34)]
    {
        if facts::minor(first).await? < since {
            continue;
        }
        export(world, name, &json!({"trafficDistribution": distribution})).await?;
        let url = format!("http://{}/hostname", world.name(name));
        facts::reaches(first, Some(&near), &url, &of_second).await?;
        facts::reaches(first, Some(&far), &url, &of_first).await?;
    }
    Ok(())
}

/// The other cluster's pod is in the same zone, and is not asked as long as there is one on the node.
async fn prefers_the_node_by_traffic_distribution(world: &World) -> Result<()> {
    let [first, _] = world.pair();
    facts::needs(first, 34).await?;
    let nodes = nodes(world).await?;
    let [on_near, _] = deploy(world, &nodes.near).await?;
    let near = first.start_client_on(&nodes.near).await?;
    export(world, "same-node", &json!({"trafficDistribution": "PreferSameNode"})).await?;
    let url = format!("http://{}/hostname", world.name("same-node"));
    facts::reaches(first, Some(&near), &url, &on_near).await
}

async fn keeps_to_a_pod_by_session_affinity(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    for cluster in [first, second] {
        world.deploy(cluster, "web", 1).await?;
    }
    export(world, "any", &json!({})).await?;
    export(world, "sticky", &json!({"sessionAffinity": "ClientIP"})).await?;
    for (name, several) in [("any", true), ("sticky", false)] {
        let url = format!("http://{}/hostname", world.name(name));
        eventually(&format!("{name} is answered by several pods: {several}"), PROPAGATION, async || {
            let answered = first.answers(None, &url, 20).await?;
            holds((answered.len() > 1) == several, &format!("several pods answered: {several}"), &answered)
        })
        .await?;
    }
    Ok(())
}

async fn reaches_the_pods_of_all_exporters(world: &World) -> Result<()> {
    let mut all = BTreeSet::new();
    for cluster in &world.clusters {
        world.deploy(cluster, "web", 1).await?;
        facts::export(world, cluster, manifests::single_stack("web", &[manifests::http(80)])).await?;
        all.extend(facts::pods(world, cluster, "web").await?);
    }
    for source in &world.clusters {
        world.followed(source, "web").await?;
    }
    let url = format!("http://{}/hostname", world.name("web"));
    for cluster in &world.clusters {
        eventually(&format!("pods of all clusters answer in {cluster:?}"), PROPAGATION, async || {
            let answered = cluster.answers(None, &url, 40).await?;
            holds(answered == all, &format!("all of {all:?} answered"), &answered)
        })
        .await?;
    }
    Ok(())
}

/// Every backend is replaced while another cluster asks. They live on for longer than a change takes to arrive, on a slow machine
/// as well.
async fn survives_a_rolling_update(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    let mut deployment = manifests::deployment("web", 2);
    deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    let pod = &mut deployment["spec"]["template"]["spec"];
    pod["terminationGracePeriodSeconds"] = json!(90);
    pod["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 60}}});
    world.apply(source, deployment.clone()).await?;
    rolled_out(world, source, "").await?;
    facts::export(world, source, manifests::service("web", &[manifests::http(80)])).await?;
    world.followed(source, "web").await?;
    let url = format!("http://{}/hostname", world.name("web"));
    facts::answers(other, &url, &[]).await?;
    let before = facts::pods(world, source, "web").await?;
    deployment["spec"]["template"]["metadata"]["labels"]["version"] = json!("2");
    let update = async {
        world.apply(source, deployment).await?;
        rolled_out(world, source, "version=2").await?;
        eventually("the pods of before are gone", PODS, async || {
            let now = facts::pods(world, source, "web").await?;
            holds(now.is_disjoint(&before), "they are gone", &now)
        })
        .await
    };
    let ((), load) = other.load(&url, update).await?;
    holds(load.failures.is_empty() && load.answers > 50, "no request was lost", &load)
}

/// Waits until two ready pods have a label.
async fn rolled_out(world: &World, cluster: &Cluster, label: &str) -> Result<()> {
    eventually(&format!("two pods with {label:?} are ready"), PODS, async || {
        let selector = if label.is_empty() { "app=web".to_owned() } else { format!("app=web,{label}") };
        let pods = cluster.list(cloudmap_mcs_integration::scenario::POD, &world.namespace, &selector).await?;
        let ready =
            pods.iter().filter(|pod| cloudmap_mcs_integration::scenario::condition(pod, "Ready")["status"] == "True");
        let ready = ready.count();
        holds(ready >= 2, "two are ready", &ready)
    })
    .await
}
