//! A ClusterSet of a cluster with both IP families, one with IPv4 only and one with IPv6 only. Clusters of EKS are of the
//! last two kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    Cluster, NAMES, PROPAGATION, SERVICE, SERVICE_IMPORT, World, condition, eventually, holds, manifests,
};
use serde_json::{Value, json};

const IPV4: &str = "-4";
const IPV6: &str = "-6";

/// Creation times have a resolution of one second: exports that far apart have an order.
const AGE: Duration = Duration::from_millis(1100);

async fn export(world: &World, cluster: &Cluster, name: &str) -> Result<()> {
    let service = manifests::service(name, &[manifests::http(80)]);
    world.apply(cluster, manifests::with_spec(service, &json!({"selector": {"app": "web"}}))).await?;
    world.apply(cluster, manifests::export(name)).await.map(drop)
}

/// Waits until the condition `Ready` of an import is so, with all these words in its message.
async fn is_ready(world: &World, cluster: &Cluster, name: &str, reason: &str, words: &[&str]) -> Result<Value> {
    let what = format!("{cluster:?} says {reason} of {name}, with {words:?}");
    eventually(&what, PROPAGATION, async || {
        let import = cluster.expect(SERVICE_IMPORT, &world.namespace, name).await?;
        let ready = condition(&import, "Ready");
        let message = ready["message"].as_str().unwrap_or_default();
        holds(ready["reason"] == reason && words.iter().all(|word| message.contains(word)), &what, &import)?;
        Ok(import)
    })
    .await
}

/// Waits until requests by this family are answered by exactly these pods, which see an address of it.
async fn is_answered(
    world: &World,
    cluster: &Cluster,
    name: &str,
    family: &str,
    pods: &BTreeSet<String>,
) -> Result<()> {
    let url = format!("{family} http://{}", world.name(name));
    let what = format!("{cluster:?} gets answers of {pods:?} by `curl {url}`");
    eventually(&what, PROPAGATION, async || {
        let answers = cluster.answers(None, &format!("{url}/hostname"), 10).await?;
        holds(answers == *pods, &what, &answers)?;
        let client = cluster.answers(None, &format!("{url}/clientip"), 1).await?;
        let seen = client.iter().all(|address| address.starts_with('[') == (family == IPV6));
        holds(seen, &format!("`curl {family}` arrives by that family"), &client)?;
        let record = if family == IPV4 { "A" } else { "AAAA" };
        let addresses = cluster.dig(&world.name(name), record).await?;
        holds(addresses.len() == 1, &format!("{name} has one {record} record"), &addresses)
    })
    .await
}

/// A pod in each cluster.
async fn deployed(world: &World) -> Result<Vec<BTreeSet<String>>> {
    let mut pods = Vec::new();
    for cluster in &world.clusters {
        world.deploy(cluster, "web", 1).await?;
        pods.push(world.pods(cluster, "web").await?);
    }
    Ok(pods)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_cross_by_a_family_of_both_clusters_and_what_cannot_cross_is_said() {
    // Both families, IPv4 only, IPv6 only.
    World::run_in(&[0, 2, 3], &[], "families", async |world| {
        let [dual, four, six] = world.three();
        let pods = deployed(world).await?;
        let [in_dual, in_four, in_six] = [&pods[0], &pods[1], &pods[2]];
        for (cluster, name) in [(dual, "dual"), (four, "four"), (six, "six")] {
            export(world, cluster, name).await?;
        }
        for (cluster, name, family, pods) in [
            (dual, "dual", IPV4, in_dual),
            (dual, "dual", IPV6, in_dual),
            (dual, "four", IPV4, in_four),
            (dual, "six", IPV6, in_six),
            (four, "dual", IPV4, in_dual),
            (four, "four", IPV4, in_four),
            (six, "dual", IPV6, in_dual),
            (six, "six", IPV6, in_six),
        ] {
            is_answered(world, cluster, name, family, pods).await?;
        }
        for (cluster, name, exporter, has) in [(four, "six", six, "IPv6"), (six, "four", four, "IPv4")] {
            let exported = format!("\"{}\" ({has})", exporter.id);
            let words = ["supports none of the IP families", exported.as_str(), "load balancer"];
            let import = is_ready(world, cluster, name, "IPFamilyNotSupported", &words).await?;
            let empty = import["spec"]["ips"].as_array().is_none_or(Vec::is_empty);
            holds(empty, "an import that cannot be served has no address", &import)?;
            let services = cluster.list(SERVICE, &world.namespace, "").await?;
            holds(services.len() == 3, "only its own Service and two derived ones are there", &services)?;
            for record in ["A", "AAAA"] {
                let addresses = cluster.dig(&world.name(name), record).await?;
                holds(addresses.is_empty(), &format!("{name} has no {record} record"), &addresses)?;
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_of_all_three_kinds_is_served_where_it_can_be() {
    // Both families, IPv4 only, IPv6 only.
    World::run_in(&[0, 2, 3], &[], "one-name", async |world| {
        let [dual, four, six] = world.three();
        let pods = deployed(world).await?;
        let of = |two: [usize; 2]| -> BTreeSet<String> { two.iter().flat_map(|n| pods[*n].clone()).collect() };
        // The oldest export has IPv4 only: other clusters serve that where they can.
        for cluster in [four, dual, six] {
            export(world, cluster, "web").await?;
            tokio::time::sleep(AGE).await;
        }
        for (cluster, family, answering, lost) in
            [(four, IPV4, of([0, 1]), six), (dual, IPV4, of([0, 1]), six), (six, IPV6, of([0, 2]), four)]
        {
            is_ready(world, cluster, "web", "Ready", &["but not its endpoints in", &lost.id]).await?;
            is_answered(world, cluster, "web", family, &answering).await?;
            eventually("the conflict says what lacks IPv4", PROPAGATION, async || {
                let conflict = world.export_condition(cluster, "web", "Conflict", "True", "IPFamilyConflict").await?;
                let message = conflict["message"].as_str().unwrap_or_default();
                holds(message.contains("has [IPv6]"), "the message does", &conflict)
            })
            .await?;
        }
        eventually("each pod is an instance with the addresses that it has", NAMES, async || {
            let instances = world.registry()?.discover(&world.namespace, "web").await?;
            let has = |attributes: &BTreeMap<String, String>| {
                ["AWS_INSTANCE_IPV4", "AWS_INSTANCE_IPV6"].map(|name| attributes.contains_key(name))
            };
            let kinds: BTreeSet<_> = instances.values().map(has).collect();
            holds(kinds == [[true, false], [true, true], [false, true]].into(), "all three kinds are there", &instances)
        })
        .await
    })
    .await;
}
