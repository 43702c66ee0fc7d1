//! Endpoints: every cluster follows what the exporting one has.

use std::collections::BTreeSet;

use cloudmap_mcs_integration::scenario::ENDPOINT_SLICE;
use cloudmap_mcs_integration::scenario::{POD, PODS, PROPAGATION, World, eventually, holds, manifests, name_of};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_follow_scaling_and_pods_that_die() {
    World::run("scaling", async |world| {
        let [source, other] = &world.clusters;
        world.apply(source, manifests::service("web", &[manifests::http(80)])).await?;
        world.apply(source, manifests::export("web")).await?;
        world.imported(other, "web").await?;
        for replicas in [1, 3, 1] {
            world.deploy(source, "web", replicas).await?;
            world.followed(source, "web").await?;
        }
        let before = world.local_addresses(source, "web").await?;
        let pods = source.list(POD, &world.namespace, "app=web").await?;
        source.kill_pod(&world.namespace, name_of(&pods[0])).await?;
        eventually("another pod has taken its place", PODS, async || {
            let now = world.local_addresses(source, "web").await?;
            holds(!now.is_empty() && now.is_disjoint(&before), "there are other addresses", &now)
        })
        .await?;
        world.followed(source, "web").await?;
        let answered = eventually("the new pod answers", PROPAGATION, async || {
            other.curl(&format!("http://{}/hostname", world.name("web")), &[]).await
        })
        .await?;
        holds(answered != name_of(&pods[0]), "it is not the one that was killed", &answered)?;
        world.deploy(source, "web", 0).await?;
        world.followed(source, "web").await?;
        world.imported(other, "web").await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_endpoints_arrive_in_slices_of_at_most_a_hundred() {
    World::run("many-endpoints", async |world| {
        let [source, other] = &world.clusters;
        // Addresses of the benchmarking range (RFC 2544), where nothing answers.
        let addresses: Vec<_> = (0..250).map(|n| format!("198.18.{}.{}", n / 100, n % 100 + 1)).collect();
        world.apply(source, manifests::service_without_selector("wide", &[manifests::http(80)])).await?;
        for (n, some) in addresses.chunks(90).enumerate() {
            world.apply(source, manifests::endpoint_slice(&format!("wide-{n}"), "wide", some)).await?;
        }
        world.apply(source, manifests::export("wide")).await?;
        world.imported(other, "wide").await?;
        let arrived = world.followed(source, "wide").await?;
        holds(arrived == addresses.iter().cloned().collect(), "all addresses arrived", &arrived)?;
        for slice in world.imported_slices(other, "wide").await? {
            let count = slice["endpoints"].as_array().map_or(0, Vec::len);
            holds((1..=100).contains(&count), "it has at most 100 endpoints", &slice)?;
        }
        source.delete(ENDPOINT_SLICE, &world.namespace, "wide-1").await?;
        let left = world.followed(source, "wide").await?;
        holds(left.len() == 160, "the others are left", &left)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_local_endpoints_name_their_nodes_and_all_name_their_zones() {
    World::run("topology", async |world| {
        let [source, other] = &world.clusters;
        world.deploy(source, "web", 2).await?;
        world.apply(source, manifests::service("web", &[manifests::http(80)])).await?;
        world.apply(source, manifests::export("web")).await?;
        world.imported(other, "web").await?;
        world.followed(source, "web").await?;
        let origin = source.list(ENDPOINT_SLICE, &world.namespace, "kubernetes.io/service-name=web").await?;
        let zones = |slices: &[serde_json::Value]| -> BTreeSet<String> {
            slices
                .iter()
                .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
                .map(|endpoint| format!("{} {}", endpoint["addresses"], endpoint["zone"]))
                .collect()
        };
        for cluster in &world.clusters {
            let slices = world.imported_slices(cluster, "web").await?;
            holds(zones(&slices) == zones(&origin), "zones are those of the original endpoints", &slices)?;
            for endpoint in slices.iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten()) {
                let local = cluster.id == source.id;
                holds(endpoint["nodeName"].is_string() == local, &format!("nodeName is there: {local}"), endpoint)?;
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_of_both_clusters_are_merged_and_one_can_leave() {
    World::run("merge", async |world| {
        let [first, second] = &world.clusters;
        for cluster in &world.clusters {
            world.deploy(cluster, "web", 1).await?;
            world.apply(cluster, manifests::service("web", &[manifests::http(80)])).await?;
            world.apply(cluster, manifests::export("web")).await?;
        }
        for source in &world.clusters {
            world.followed(source, "web").await?;
        }
        for cluster in &world.clusters {
            let wanted = BTreeSet::from([first.id.as_str(), second.id.as_str()]);
            eventually("the import names both clusters", PROPAGATION, async || {
                let import = world.imported(cluster, "web").await?;
                let named = import["status"]["clusters"].as_array().into_iter().flatten();
                let named: BTreeSet<_> = named.filter_map(|entry| entry["cluster"].as_str()).collect();
                holds(named == wanted, &format!("its status names {wanted:?}"), &import)
            })
            .await?;
            eventually("pods of both clusters answer", PROPAGATION, async || {
                let mut answered = BTreeSet::new();
                for _ in 0..20 {
                    answered.insert(cluster.curl(&format!("http://{}/hostname", world.name("web")), &[]).await?);
                }
                holds(answered.len() == 2, "both pods answered", &answered)
            })
            .await?;
        }
        first.delete(cloudmap_mcs_integration::scenario::SERVICE_EXPORT, &world.namespace, "web").await?;
        for cluster in &world.clusters {
            eventually("only the second cluster's endpoints are left", PROPAGATION, async || {
                let gone = world.imported_addresses(cluster, "web", first).await?;
                holds(gone.is_empty(), "the first cluster's endpoints are gone", &gone)
            })
            .await?;
        }
        let left = world.followed(second, "web").await?;
        holds(!left.is_empty(), "the second cluster's endpoints are left", &left)
    })
    .await;
}
