//! EndpointSlices: their labels, and what of the endpoints they carry.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    ENDPOINT_SLICE, POD, PODS, PROPAGATION, SERVICE_IMPORT, World, eventually, holds, manifests, name_of,
    system_namespace,
};
use serde_json::{Value, json};

use crate::check::{Check, check};
use crate::facts;

pub(crate) const CHECKS: &[Check] = &[
    check!(All, [36, 37, 39, 51], slices::have_the_labels_and_one_source_each),
    check!(Two, [36, 37], slices::hold_hundreds_of_endpoints),
    check!(Two, [36, 37], slices::hold_more_than_a_thousand_endpoints),
    check!(Two, [27, 40], slices::follow_the_conditions_of_an_endpoint),
    check!(Two, [40], slices::have_zones_and_only_the_own_nodes),
    check!(Two, [38, 40], slices::follow_scaling_and_pods_that_die),
    check!(Disturb, [36, 37], slices::are_the_same_after_a_restart),
];

async fn have_the_labels_and_one_source_each(world: &World) -> Result<()> {
    for (n, cluster) in world.clusters.iter().enumerate() {
        let service = manifests::service_without_selector("web", &[manifests::http(80)]);
        let service = manifests::with_spec(service, &json!({"ipFamilyPolicy": "SingleStack"}));
        facts::export(world, cluster, service).await?;
        let addresses: Vec<_> = (1..=3).map(|m| format!("198.18.{n}.{m}")).collect();
        world.apply(cluster, manifests::endpoint_slice("web", "web", &addresses)).await?;
    }
    for source in &world.clusters {
        world.followed(source, "web").await?;
    }
    for cluster in &world.clusters {
        let import = facts::import_with_ips(world, cluster, "web").await?;
        let derived = facts::derived_service(&import)?;
        let slices = world.imported_slices(cluster, "web").await?;
        let mut sources = BTreeSet::new();
        for slice in &slices {
            let label = |name: &str| slice["metadata"]["labels"][name].as_str().unwrap_or_default().to_owned();
            let manager = label("endpointslice.kubernetes.io/managed-by");
            holds(
                !manager.is_empty() && manager != "endpointslice-controller.k8s.io",
                "managed-by is the controller",
                slice,
            )?;
            holds(
                label("kubernetes.io/service-name") == derived,
                "kubernetes.io/service-name is the derived Service",
                slice,
            )?;
            let source = label("multicluster.kubernetes.io/source-cluster");
            let number = world.clusters.iter().position(|cluster| cluster.id == source);
            let of_source = facts::endpoints(std::slice::from_ref(slice)).all(|endpoint| {
                let address = endpoint["addresses"][0].as_str().unwrap_or_default();
                number.is_some_and(|number| address.starts_with(&format!("198.18.{number}.")))
            });
            holds(of_source, "all its endpoints are of its source cluster", slice)?;
            sources.insert(source);
        }
        holds(sources.len() == world.clusters.len(), "every cluster is a source", &slices)?;
        holds(facts::endpoints(&slices).count() == 3 * sources.len(), "no endpoint is there twice", &slices)?;
    }
    Ok(())
}

async fn hold_hundreds_of_endpoints(world: &World) -> Result<()> {
    hold_endpoints(world, 250).await
}

async fn hold_more_than_a_thousand_endpoints(world: &World) -> Result<()> {
    hold_endpoints(world, 1200).await
}

/// Slices written by hand, of a size that is not ours; one of them goes again.
async fn hold_endpoints(world: &World, count: usize) -> Result<()> {
    let [source, other] = world.pair();
    // Addresses of the benchmarking range (RFC 2544), where nothing answers.
    let addresses: Vec<_> = (0..count).map(|n| format!("198.18.{}.{}", n / 100, n % 100 + 1)).collect();
    world.apply(source, manifests::service_without_selector("wide", &[manifests::http(80)])).await?;
    for (n, some) in addresses.chunks(90).enumerate() {
        world.apply(source, manifests::endpoint_slice(&format!("wide-{n}"), "wide", some)).await?;
    }
    world.apply(source, manifests::export("wide")).await?;
    world.imported(other, "wide").await?;
    let arrived = world.followed(source, "wide").await?;
    holds(arrived == addresses.iter().cloned().collect(), "all addresses arrived", &arrived.len())?;
    let slices = world.imported_slices(other, "wide").await?;
    for slice in &slices {
        let count = slice["endpoints"].as_array().map_or(0, Vec::len);
        holds((1..=100).contains(&count), "it has at most 100 endpoints", slice)?;
    }
    holds(facts::endpoints(&slices).count() == count, "no endpoint is there twice", &slices.len())?;
    source.delete(ENDPOINT_SLICE, &world.namespace, "wide-1").await?;
    let left = world.followed(source, "wide").await?;
    holds(left.len() == count - 90, "the others are left", &left.len())
}

async fn follow_the_conditions_of_an_endpoint(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    let service = manifests::service_without_selector("web", &[manifests::http(80)]);
    facts::export(world, source, service).await?;
    let mut names = BTreeSet::new();
    for (ready, serving, terminating) in
        [(true, true, false), (false, false, false), (true, true, false), (false, true, true), (false, false, true)]
    {
        let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
        let endpoint = json!([{
            "addresses": ["198.18.0.1"], "conditions": conditions, "hostname": "first", "zone": "eu-central-1b",
            "targetRef": {"kind": "Pod", "name": "first", "namespace": world.namespace},
        }]);
        world.apply(source, manifests::endpoint_slice_of("web", "web", &endpoint)).await?;
        for cluster in [source, other] {
            eventually(&format!("{cluster:?} has {conditions}"), PROPAGATION, async || {
                let slices = world.imported_slices(cluster, "web").await?;
                let all: Vec<_> = facts::endpoints(&slices).collect();
                holds(all.len() == 1 && all[0]["conditions"] == conditions, "the conditions are the endpoint's", &all)?;
                holds(
                    all[0]["hostname"] == "first" && all[0]["zone"] == "eu-central-1b",
                    "host name and zone, too",
                    &all,
                )
            })
            .await?;
            names.extend(world.imported_slices(cluster, "web").await?.iter().map(|slice| name_of(slice).to_owned()));
        }
    }
    holds(names.len() == 1, "the endpoint stayed in its slice", &names)?;
    // publishNotReadyAddresses is said by the conditions themselves: the endpoint is ready.
    let endpoint = json!([{"addresses": ["198.18.0.1"], "conditions": {}}]);
    world.apply(source, manifests::endpoint_slice_of("web", "web", &endpoint)).await?;
    eventually("an endpoint without conditions is ready", PROPAGATION, async || {
        let slices = world.imported_slices(other, "web").await?;
        let all: Vec<_> = facts::endpoints(&slices).collect();
        holds(all.len() == 1 && all[0]["conditions"]["ready"] != false, "it is ready", &all)
    })
    .await
}

async fn have_zones_and_only_the_own_nodes(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    world.deploy(source, "web", 2).await?;
    facts::export(world, source, manifests::service("web", &[manifests::http(80)])).await?;
    world.imported(other, "web").await?;
    world.followed(source, "web").await?;
    let origin = source.list(ENDPOINT_SLICE, &world.namespace, "kubernetes.io/service-name=web").await?;
    let zones = |slices: &[Value]| -> BTreeSet<String> {
        facts::endpoints(slices).map(|endpoint| format!("{} {}", endpoint["addresses"], endpoint["zone"])).collect()
    };
    for cluster in [source, other] {
        let slices = world.imported_slices(cluster, "web").await?;
        holds(zones(&slices) == zones(&origin), "zones are those of the original endpoints", &slices)?;
        for endpoint in facts::endpoints(&slices) {
            let local = cluster.id == source.id;
            holds(endpoint["nodeName"].is_string() == local, &format!("nodeName is there: {local}"), endpoint)?;
        }
    }
    Ok(())
}

async fn follow_scaling_and_pods_that_die(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    facts::export(world, source, manifests::service("web", &[manifests::http(80)])).await?;
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
    let alive = facts::pods(world, source, "web").await?;
    holds(!alive.contains(name_of(&pods[0])), "the pod that was killed is gone", &alive)?;
    facts::reaches(other, None, &format!("http://{}/hostname", world.name("web")), &alive).await?;
    world.deploy(source, "web", 0).await?;
    world.followed(source, "web").await?;
    world.imported(other, "web").await.map(drop)
}

/// Both replicas of the second cluster's controller are killed; their successors find everything as it should be.
async fn are_the_same_after_a_restart(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    second.controller().settle().await?;
    for (n, cluster) in [first, second].into_iter().enumerate() {
        let service = manifests::service_without_selector("wide", &[manifests::http(80)]);
        let service = manifests::with_spec(service, &json!({"ipFamilyPolicy": "SingleStack"}));
        facts::export(world, cluster, service).await?;
        let addresses: Vec<_> = (1..=150).map(|m| format!("198.18.{n}.{m}")).collect();
        for (m, some) in addresses.chunks(90).enumerate() {
            world.apply(cluster, manifests::endpoint_slice(&format!("wide-{m}"), "wide", some)).await?;
        }
    }
    for source in [first, second] {
        world.followed(source, "wide").await?;
    }
    let versions = async || {
        let slices = world.imported_slices(second, "wide").await?;
        let version = |slice: &Value| (name_of(slice).to_owned(), slice["metadata"]["resourceVersion"].clone());
        anyhow::Ok(slices.iter().map(version).collect::<BTreeMap<_, _>>())
    };
    let before = versions().await?;
    for pod in second.controller().pods().await? {
        second.kill_pod(&system_namespace(), name_of(&pod)).await?;
    }
    second.controller().settle().await?;
    // It works again when a change arrives: by then it has had its say about everything else, too.
    facts::export(world, first, manifests::single_stack("later", &[manifests::http(80)])).await?;
    eventually("the new leader imports", PODS, async || second.expect(SERVICE_IMPORT, &world.namespace, "later").await)
        .await?;
    let after = versions().await?;
    holds(before == after, &format!("every slice is what it was: {before:?}"), &after)
}
