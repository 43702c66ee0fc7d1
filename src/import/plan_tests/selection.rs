//! Which clusters serve, by a cluster selection.

use super::*;
use crate::{Selected, Serving};
use api::names::{PROPERTY_CLUSTER_ID, PROPERTY_REGION};
use discovery::Backend;

/// `here` and `near` are in one region, and `far` in another one.
fn scene() -> Scene {
    let mut scene = Scene::new(&[("far", 1, &["10.2.0.1"]), ("here", 2, &["10.0.0.1"]), ("near", 3, &["10.1.0.1"])]);
    for (name, region) in [("far", "us-east-1"), ("here", "eu-central-1"), ("near", "eu-central-1")] {
        let properties = [(PROPERTY_CLUSTER_ID, name), (PROPERTY_REGION, region)];
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        scene.properties.insert(id(name), properties);
    }
    scene
}

/// The clusters that serve.
fn serving(scene: &Scene) -> Vec<String> {
    let wanted = scene.wanted();
    assert_eq!(wanted.service.unwrap().clusters.len(), 3, "the import names every cluster");
    let serve = |slices: &[Slice]| slices.iter().any(|slice| !slice.endpoints.is_empty());
    wanted.slices.iter().filter(|(_, slices)| serve(slices)).map(|(cluster, _)| cluster.to_string()).collect()
}

fn unready(scene: &mut Scene, cluster: &str) {
    let (_, _, endpoints) = scene.exports.iter_mut().find(|(name, ..)| name.as_str() == cluster).unwrap();
    endpoints[0].conditions = Conditions { ready: false, serving: false, terminating: false };
}

#[test]
fn the_namespace_counts_before_the_oldest_export_and_that_before_the_installation() {
    let mut scene = scene();
    assert_eq!(serving(&scene), ["far", "here", "near"]);
    scene.default = ClusterSelection::local_first();
    assert_eq!(serving(&scene), ["here"]);
    let only_far =
        r#"{"clusterSelectors":[{"propertySelector":{"matchLabels":{"region.topology.k8s.io":"us-east-1"}}}]}"#;
    scene.exports[0].1.cluster_selection = Some(only_far.into());
    scene.exports[1].1.cluster_selection = Some("spread".into());
    assert_eq!(serving(&scene), ["far"], "that of the oldest export");
    scene.of_namespace = Some(ClusterSelection::spread());
    assert_eq!(serving(&scene), ["far", "here", "near"]);
    scene.of_namespace = None;
    scene.exports[0].1.cluster_selection = Some("{\"of\":\"a newer version\"}".into());
    assert_eq!(serving(&scene), ["here"], "what cannot be read is none");
}

#[test]
fn local_first_goes_on_to_the_region_and_then_everywhere() {
    let mut scene = Scene { default: ClusterSelection::local_first(), ..scene() };
    unready(&mut scene, "here");
    assert_eq!(serving(&scene), ["here", "near"]);
    assert_eq!(scene.wanted().selection.unwrap().serving, Serving::Farther);
    unready(&mut scene, "near");
    assert_eq!(serving(&scene), ["far", "here", "near"]);
}

#[test]
fn local_only_serves_nothing_where_the_own_cluster_cannot() {
    let mut scene = Scene { default: ClusterSelection::local_only(), ..scene() };
    unready(&mut scene, "here");
    assert_eq!(serving(&scene), ["here"]);
    assert_eq!(scene.wanted().selection.unwrap().serving, Serving::Nobody);
}

/// KEP-1645: there is an EndpointSlice of each cluster that exports the name.
#[test]
fn who_does_not_serve_keeps_a_slice_without_endpoints_in_each_family() {
    let mut scene = scene();
    let before = scene.wanted().slices[&id("near")].clone();
    let [slice] = &*before else { panic!("{before:?}") };
    let OwnSlice(there) = &*mk_slice(&slice.name, "near");
    scene.slices = vec![Arc::new(OwnSlice(EndpointSlice { ports: slice.ports.clone(), ..there.clone() }))];
    scene.default = ClusterSelection::local_only();
    let wanted = scene.wanted();
    assert_eq!(wanted.slices[&id("near")], [Slice { endpoints: vec![], ..slice.clone() }], "the one that there was");
    assert!(wanted.stale.is_empty());
    let far = &wanted.slices[&id("far")];
    assert!(far.len() == 1 && far[0].endpoints.is_empty(), "{far:?}");
    scene.families = vec![IpFamily::V6];
    assert!(scene.wanted().slices[&id("near")].is_empty(), "of a family that it does not have there is none");
}

#[test]
fn the_import_says_what_each_cluster_gets_by_its_weight() {
    let mut scene = scene();
    scene.exports[0].1.cluster_selection = Some(r#"{"weights":{"here":50}}"#.into());
    let Selected { serving: who, message, .. } = scene.wanted().selection.unwrap();
    let shares = "They get: far 33 % (1 of 3 endpoints), here 33 % (1 of 3 endpoints), near 33 % (1 of 3 endpoints).";
    assert_eq!(message, format!("By spread with the weights here=50%, these serve: far, here, near. {shares}"));
    assert_eq!(who, Serving::Nearest);
    scene.exports[0].1.cluster_selection = Some(r#"{"weights":{"here":100}}"#.into());
    assert_eq!(serving(&scene), ["here"]);
}

/// Without a cluster selection.
#[test]
fn a_drained_cluster_leaves_as_far_as_others_serve() {
    let mut scene = Scene { drains: [(id("near"), "100-70".parse().unwrap())].into(), ..scene() };
    assert_eq!(serving(&scene), ["far", "here"]);
    let Selected { serving: who, message, .. } = scene.wanted().selection.unwrap();
    assert_eq!(message, "By spread, these serve: far, here. Others in their order: near. Drained: near.");
    assert_eq!(who, Serving::Nearest);
    unready(&mut scene, "here");
    unready(&mut scene, "far");
    assert_eq!(serving(&scene), ["far", "here", "near"], "all that are listed, and who can serve");
    for (_, export, _) in &mut scene.exports {
        export.service_type = ServiceType::Headless;
    }
    assert_eq!(scene.wanted().selection, None);
}

/// Peers of a StatefulSet need each other's names.
#[test]
fn a_headless_import_has_all_endpoints() {
    let mut scene = Scene { default: ClusterSelection::local_first(), ..scene() };
    for (_, export, _) in &mut scene.exports {
        export.service_type = ServiceType::Headless;
    }
    assert_eq!(serving(&scene), ["far", "here", "near"]);
}

/// Or an installation with `local-only` would import no ECS service.
#[test]
fn what_no_cluster_exports_has_no_tiers() {
    let backend = Backend {
        source: ClusterId::discovered("ecs-prod").unwrap(),
        ipv4: Some("10.3.0.1".parse().unwrap()),
        ipv6: None,
        port: Some(8080),
        dynamic: false,
        zone: None,
        healthy: true,
    };
    let discovered = Picture { backends: vec![backend], exists: true, ..Picture::nothing() };
    let mut scene = Scene { exports: vec![], discovered, default: ClusterSelection::local_only(), ..scene() };
    let wanted = scene.wanted();
    assert_eq!((wanted.slices.values().flatten().count(), wanted.selection), (1, None));
    scene.exports = self::scene().exports;
    let wanted = scene.wanted();
    let shown = wanted.slices.iter().filter(|(_, slices)| slices.iter().any(|slice| !slice.endpoints.is_empty()));
    assert_eq!(shown.map(|(source, _)| source.as_str()).collect::<Vec<_>>(), ["here"]);
    assert!(wanted.slices.iter().all(|(source, slices)| source.as_str() != "ecs-prod" || slices.is_empty()));
}
