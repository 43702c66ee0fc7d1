//! Discovered instances in the plan of a name.

use std::sync::Arc;

use super::super::addresses::Unusable;
use super::super::plan::tests::*;
use crate::{Plan, Unknown};
use cluster::objects::OwnSlice;
use discovery::{Backend, Picture};
use model::{ClusterId, IpFamily, Protocol, ServicePort, ServiceType};

fn backend(ip: &str, port: u16) -> Backend {
    Backend {
        source: ClusterId::discovered("ecs-prod").unwrap(),
        ipv4: Some(ip.parse().unwrap()),
        ipv6: None,
        port: Some(port),
        dynamic: false,
        zone: None,
        healthy: true,
    }
}

fn picture(backends: &[Backend]) -> Picture {
    Picture { backends: backends.to_vec(), exists: true, ..Picture::nothing() }
}

fn addresses(plan: &Plan, source: &str) -> Vec<String> {
    let Plan::Want(wanted) = plan else { panic!("{plan:?}") };
    let slices = wanted.slices.iter().filter(|(id, _)| id.as_str() == source).flat_map(|(_, slices)| slices);
    slices.flat_map(|slice| &slice.endpoints).map(|endpoint| endpoint.address.to_string()).collect()
}

/// A scene with an import of discovered instances.
fn imported() -> Scene {
    let mut scene = Scene::new(&[]);
    let mut import = mk_import(true, &["ecs-prod"]);
    import.spec.ip_families = [IpFamily::V4].into();
    import.spec.ports =
        [ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 9000, app_protocol: None }].into();
    scene.import = Some(import);
    scene.slices = vec![mk_slice("svc-1", "ecs-prod")];
    scene
}

#[test]
fn discovered_instances_of_a_name_that_nobody_exports_are_a_service() {
    let mut scene = Scene::new(&[]);
    scene.discovered = picture(&[backend("10.9.0.1", 8080), backend("127.0.0.1", 8080)]);
    let plan = scene.plan();
    assert_eq!(addresses(&plan, "ecs-prod"), ["10.9.0.1"]);
    let Plan::Want(wanted) = plan else { panic!() };
    let service = wanted.service.unwrap();
    assert_eq!((service.service_type, service.ports[0].port), (ServiceType::ClusterSetIp, 8080));
    assert_eq!(service.clusters.keys().map(ClusterId::as_str).collect::<Vec<_>>(), ["ecs-prod"]);
    assert_eq!(wanted.skipped.len(), 1);
    assert!(wanted.out_of_reach.is_empty());
    // An older export may appear at any moment, or the namespace may not exist at all.
    scene.unknown = Unknown::All;
    assert_eq!(scene.plan(), Plan::Keep);
    scene.unknown = Unknown::Only([].into());
    scene.namespace = false;
    assert_eq!(scene.plan(), Plan::Keep);
}

/// A silent cluster may be lost, and the VPC may have given its addresses to ECS tasks.
#[test]
fn an_address_of_a_silent_cluster_hides_no_discovered_instance() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"]), ("third", 2, &["10.0.0.2"])]);
    scene.discovered = picture(&[backend("10.0.0.1", 3000), backend("10.0.0.2", 3000)]);
    assert!(addresses(&scene.plan(), "ecs-prod").is_empty());
    scene.silent = [("there".parse::<ClusterId>().unwrap(), 5)].into();
    let plan = scene.plan();
    assert_eq!(addresses(&plan, "ecs-prod"), ["10.0.0.1"]);
    assert_eq!(addresses(&plan, "there"), ["10.0.0.1"], "its last exports count");
}

#[test]
fn discovered_instances_join_an_export_without_changing_it() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]);
    let Plan::Want(alone) = scene.plan() else { panic!() };
    scene.discovered = picture(&[backend("10.9.0.1", 3000), backend("10.0.0.1", 8080)]);
    let plan = scene.plan();
    assert_eq!(addresses(&plan, "ecs-prod"), ["10.9.0.1"], "the other one is the exported endpoint");
    let Plan::Want(joined) = plan else { panic!() };
    let (alone, joined) = (alone.service.unwrap(), joined.service.unwrap());
    assert_eq!(
        (&alone.ports, alone.service_type, &alone.conflicts),
        (&joined.ports, joined.service_type, &joined.conflicts)
    );
    assert_eq!(joined.clusters.keys().map(ClusterId::as_str).collect::<Vec<_>>(), ["ecs-prod", "there"]);
}

/// The pods of an export, of which none is left, showed on which number they listen.
#[test]
fn tasks_without_a_registered_port_are_served_where_they_were_when_the_pods_are_gone() {
    let mut scene = Scene::new(&[("there", 1, &[])]);
    let mut import = mk_import(true, &["ecs-prod", "there"]);
    let http = |port| [ServicePort { name: "http".into(), protocol: Protocol::Tcp, port, app_protocol: None }];
    import.spec.ports = http(80).into();
    scene.import = Some(import);
    scene.discovered = picture(&[Backend { port: None, ..backend("10.9.0.1", 0) }]);
    let numbers = |scene: &Scene| {
        let Plan::Want(wanted) = scene.plan() else { panic!() };
        let slices = &wanted.slices[&ClusterId::discovered("ecs-prod").unwrap()];
        slices.iter().flat_map(|slice| slice.ports.iter()).map(|port| port.port).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&scene), [80], "nothing shows another one");
    scene.slices = vec![mk_slice("svc-1", "there")];
    assert_eq!(numbers(&scene), [80], "those of a cluster are its own");
    scene.slices = vec![mk_slice("svc-2", "ecs-prod")];
    assert_eq!(numbers(&scene), [8080]);
    scene.import.as_mut().unwrap().spec.ports = http(8080).into();
    assert_eq!(numbers(&scene), [80], "the port had the number 8080, and now has 80");
}

#[test]
fn only_an_existing_empty_service_keeps_its_import_without_endpoints() {
    let mut scene = imported();
    scene.discovered = picture(&[]);
    let Plan::Want(wanted) = scene.plan() else { panic!() };
    assert_eq!((wanted.service, wanted.slices.len()), (None, 0));
    assert_eq!(wanted.stale.iter().map(|name| &**name).collect::<Vec<_>>(), ["svc-1"]);
    scene.discovered.exists = false;
    assert_eq!(scene.plan(), Plan::Remove);
    // An import that clusters exported goes with their exports, no matter what is registered.
    scene.discovered.exists = true;
    scene.import = Some(mk_import(true, &["there"]));
    assert_eq!(scene.plan(), Plan::Remove);
    scene.import = None;
    scene.slices = vec![];
    assert_eq!(scene.plan(), Plan::Keep);
}

#[test]
fn endpoints_that_were_not_read_stay_as_they_are() {
    let mut scene = imported();
    scene.discovered = Picture { complete: false, exists: false, ..picture(&[]) };
    let plan = scene.plan();
    assert_eq!(addresses(&plan, "ecs-prod"), ["10.0.0.1"]);
    let Plan::Want(wanted) = plan else { panic!() };
    assert!(wanted.service.is_none() && wanted.stale.is_empty(), "{wanted:?}");
    // A part was read: its instances are added, the rest stays, and so does the port.
    scene.discovered = Picture { complete: false, ..picture(&[backend("10.9.0.1", 3000)]) };
    let plan = scene.plan();
    assert_eq!(addresses(&plan, "ecs-prod").into_iter().collect::<std::collections::BTreeSet<_>>().len(), 2);
    let Plan::Want(wanted) = plan else { panic!() };
    assert_eq!(wanted.service, None);
    // What was read once and no longer exists goes.
    scene.discovered.seen = ["10.0.0.1".parse().unwrap()].into();
    assert_eq!(addresses(&scene.plan(), "ecs-prod"), ["10.9.0.1"]);
    scene.discovered.complete = true;
    let Plan::Want(wanted) = scene.plan() else { panic!() };
    assert_eq!(wanted.service.unwrap().ports[0].port, 3000);
}

#[test]
fn an_endpoint_that_was_not_read_goes_when_its_address_becomes_a_cluster_ip() {
    let mut scene = imported();
    let mut slice = OwnSlice::clone(&mk_slice("svc-2", "ecs-prod"));
    slice.0.endpoints[0].address = Some("10.20.0.1".parse().unwrap());
    scene.slices.push(Arc::new(slice));
    for read in [&[][..], &[backend("10.9.0.1", 3000)]] {
        scene.discovered = Picture { complete: false, ..picture(read) };
        let plan = scene.plan();
        let there = addresses(&plan, "ecs-prod");
        assert!(there.contains(&"10.0.0.1".to_owned()) && there.len() == 1 + read.len(), "{there:?}");
        let Plan::Want(wanted) = plan else { panic!() };
        let gone = (ClusterId::discovered("ecs-prod").unwrap(), "10.20.0.1".parse().unwrap(), Unusable::ClusterIp);
        assert_eq!(wanted.skipped, [gone]);
    }
}

#[test]
fn while_an_exporter_is_unknown_endpoints_are_kept_up_to_date_and_the_import_stays() {
    let mut scene = imported();
    scene.import.as_mut().unwrap().status.clusters = mk_import(true, &["ecs-prod", "there"]).status.clusters;
    scene.unknown = Unknown::Only([id("there")].into());
    scene.discovered = picture(&[backend("10.9.0.1", 3000)]);
    let plan = scene.plan();
    assert_eq!(addresses(&plan, "ecs-prod"), ["10.9.0.1"]);
    let Plan::Want(wanted) = plan else { panic!() };
    assert_eq!(wanted.service, None);
}

#[test]
fn the_last_instance_goes_while_an_exporter_is_unknown() {
    let mut scene = imported();
    scene.import.as_mut().unwrap().status.clusters = mk_import(true, &["ecs-prod", "there"]).status.clusters;
    for unknown in [Unknown::Only([id("there")].into()), Unknown::All] {
        scene.unknown = unknown;
        scene.discovered = picture(&[]);
        let Plan::Want(wanted) = scene.plan() else { panic!() };
        assert_eq!((wanted.service, wanted.stale), (None, vec!["svc-1".into()]));
        scene.discovered.complete = false;
        assert_eq!(addresses(&scene.plan(), "ecs-prod"), ["10.0.0.1"], "it may be one that was not read");
    }
}

#[test]
fn discovered_instances_without_a_family_that_is_served_here_are_out_of_reach() {
    let mut scene = Scene::new(&[]);
    scene.discovered = picture(&[backend("10.9.0.1", 8080)]);
    scene.families = vec![IpFamily::V6];
    let Plan::Want(wanted) = scene.plan() else { panic!() };
    assert_eq!(wanted.out_of_reach, [(ClusterId::discovered("ecs-prod").unwrap(), [IpFamily::V4].into())].into());
}
