//! What is there after each write, and after each write that was refused.

use super::*;

/// The endpoint listens on another port.
fn serve(endpoint: &mut Endpoint, port: u16) {
    let port = EndpointPort { port, ..endpoint.ports[0].clone() };
    endpoint.ports = [port].into();
}

impl Scene {
    /// An import whose exporter is no longer known, and ten endpoints of another cluster: its Service is not decided.
    async fn undecided() -> Self {
        let mut scene = Self::new();
        scene.reconcile().await.unwrap();
        scene.unknown = Unknown::Only(["there".parse().unwrap()].into());
        scene.from = "third";
        scene.endpoints = (1000..1010).map(mk_endpoint).collect();
        scene.reconcile().await.unwrap();
        scene
    }
}

#[tokio::test]
async fn a_refused_slice_delays_no_other_and_no_removal() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    // One change in each slice; the third slice goes.
    scene.endpoints[7].conditions.ready = false;
    scene.endpoints.truncate(200);
    scene.endpoints.remove(120);
    let ready = || scene.cluster.import(&key()).unwrap().status.unwrap().conditions.remove(0);
    for _ in 0..3 {
        scene.cluster.fail_next(Cause::Invalid("denied by policy".to_owned()));
        scene.reconcile().await.unwrap_err();
        assert_eq!((scene.addresses(), scene.cluster.slices().len()), (199, 2));
        let refused = scene.cluster.slices()[0].metadata.name.clone().unwrap();
        assert_eq!((&*ready().status, &*ready().reason), ("False", "Pending"));
        assert!(ready().message.contains(&refused), "{}", ready().message);
    }
    assert_eq!(scene.writes().await, 2, "what was refused, and the status");
    assert_eq!(&*ready().status, "True");
}

#[tokio::test]
async fn endpoints_that_a_refused_slice_should_take_over_stay_where_they_are() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    // The ports change, and therefore the slices. One pod of each is gone.
    for gone in [240, 140, 40] {
        scene.endpoints.remove(gone);
    }
    for endpoint in &mut scene.endpoints {
        serve(endpoint, 9090);
    }
    scene.cluster.fail_next(Cause::Invalid("denied by policy".to_owned()));
    scene.reconcile().await.unwrap_err();
    assert!(scene.has_all());
    scene.reconcile().await.unwrap();
    assert_eq!((scene.addresses(), scene.writes().await), (247, 0));
}

#[tokio::test]
async fn a_slice_loses_addresses_only_after_they_are_elsewhere() {
    // The slices have names with hashes. One of the directions is against their order.
    for (moved, port) in [(0, 9090), (9, 8080)] {
        for cause in [|| Cause::Timeout, || Cause::Invalid("denied by policy".to_owned())] {
            for nth in 0..2 {
                let mut scene = Scene::new();
                scene.endpoints.truncate(10);
                for endpoint in &mut scene.endpoints[5..] {
                    serve(endpoint, 9090);
                }
                scene.reconcile().await.unwrap();
                assert_eq!((scene.addresses(), scene.cluster.slices().len()), (10, 2));
                serve(&mut scene.endpoints[moved], port);
                scene.cluster.fail_after(nth, cause());
                scene.reconcile().await.unwrap_err();
                assert!(scene.has_all(), "endpoint {moved}, write {nth}");
                assert_eq!(scene.addresses(), 10 + nth, "it is in both only after the first write");
                scene.reconcile().await.unwrap();
                assert_eq!((scene.has_all(), scene.addresses(), scene.writes().await), (true, 10, 0));
            }
        }
    }
}

#[tokio::test]
async fn endpoints_that_swap_their_slices_are_always_in_one() {
    for cause in [|| Cause::Timeout, || Cause::Invalid("denied by policy".to_owned())] {
        for nth in 0..3 {
            let mut scene = Scene::new();
            scene.endpoints.truncate(10);
            for endpoint in &mut scene.endpoints[5..] {
                serve(endpoint, 9090);
            }
            scene.reconcile().await.unwrap();
            serve(&mut scene.endpoints[0], 9090);
            serve(&mut scene.endpoints[9], 8080);
            scene.cluster.fail_after(nth, cause());
            scene.reconcile().await.unwrap_err();
            assert!(scene.has_all(), "write {nth}");
            scene.reconcile().await.unwrap();
            assert_eq!((scene.has_all(), scene.addresses(), scene.writes().await), (true, 10, 0));
        }
    }
}

#[tokio::test]
async fn a_slice_loses_dead_endpoints_while_it_keeps_those_that_a_refused_one_should_take_over() {
    let mut scene = Scene::new();
    scene.endpoints.truncate(10);
    scene.reconcile().await.unwrap();
    serve(&mut scene.endpoints[0], 9090);
    scene.endpoints.remove(5);
    for _ in 0..2 {
        scene.cluster.fail_next(Cause::Invalid("denied by policy".to_owned()));
        scene.reconcile().await.unwrap_err();
        assert_eq!((scene.has_all(), scene.addresses()), (true, 9));
    }
    scene.reconcile().await.unwrap();
    assert_eq!((scene.has_all(), scene.addresses(), scene.writes().await), (true, 9, 0));
}

#[tokio::test]
async fn an_object_that_cannot_be_deleted_delays_no_other_deletion() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    scene.export = None;
    scene.cluster.fail_next(Cause::Forbidden("denied by policy".to_owned()));
    scene.reconcile().await.unwrap_err();
    assert!(scene.cluster.import(&key()).is_some());
    assert_eq!((scene.cluster.services().len(), scene.addresses()), (0, 0));
    scene.reconcile().await.unwrap();
    assert!(scene.cluster.import(&key()).is_none());
}

#[tokio::test]
async fn endpoints_are_kept_up_to_date_while_a_change_of_the_derived_service_is_refused() {
    for cause in [|| Cause::Invalid("policy".to_owned()), || Cause::Unavailable("failed calling webhook".to_owned())] {
        let mut scene = Scene::new();
        scene.reconcile().await.unwrap();
        let admin = ServicePort { name: "admin".into(), protocol: Protocol::Tcp, port: 9090, app_protocol: None };
        scene.export.as_mut().unwrap().ports.push(admin);
        scene.endpoints.truncate(40);
        // The one slice that stays comes first.
        scene.cluster.fail_after(1, cause());
        scene.reconcile().await.unwrap_err();
        assert_eq!((scene.addresses(), scene.cluster.slices().len()), (40, 1));
        scene.reconcile().await.unwrap();
        assert_eq!((scene.addresses(), scene.writes().await), (40, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn no_step_leaves_a_port_of_the_service_without_endpoints() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    scene.rename_port("web");
    let writes = scene.writes().await;
    assert_eq!((scene.ports_without_endpoints(), scene.addresses()), (vec![], 250));
    // Three: no slice with the new port is written, but the Service could be. Twenty: the leader dies.
    for (nth, failures) in (0..writes).flat_map(|nth| [1, 3, 20].map(|failures| (nth, failures))) {
        for cause in [|| Cause::Timeout, || Cause::Invalid("denied by policy".to_owned())] {
            let mut scene = Scene::new();
            scene.reconcile().await.unwrap();
            scene.rename_port("web");
            scene.cluster.fail_after(nth, cause());
            for _ in 1..failures {
                scene.cluster.fail_next(cause());
            }
            scene.reconcile().await.unwrap_err();
            assert_eq!(scene.ports_without_endpoints(), [""; 0], "write {nth} and {failures} failures");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slices_of_the_ports_that_a_refused_service_still_has_stay() {
    for cause in [|| Cause::Invalid("policy".to_owned()), || Cause::Timeout] {
        let mut scene = Scene::new();
        scene.reconcile().await.unwrap();
        scene.rename_port("web");
        // The three slices with the new port come first.
        scene.cluster.fail_after(3, cause());
        scene.reconcile().await.unwrap_err();
        assert_eq!(scene.cluster.services()[0].spec.clone().unwrap().ports.unwrap()[0].name.as_deref(), Some("http"));
        assert_eq!((scene.ports_without_endpoints(), scene.addresses()), (vec![], 500), "under both names");
        scene.reconcile().await.unwrap();
        assert_eq!((scene.ports_without_endpoints(), scene.addresses()), (vec![], 250));
        assert_eq!(scene.writes().await, 0);
    }
}

/// The Service stays as it is until all its clusters are known.
#[tokio::test]
async fn slices_of_the_ports_of_a_service_that_is_not_decided_stay() {
    let mut scene = Scene::undecided().await;
    scene.rename_port("web");
    scene.reconcile().await.unwrap();
    assert_eq!((scene.ports_without_endpoints(), scene.addresses()), (vec![], 270), "the ten under both names");
    scene.endpoints.pop();
    scene.reconcile().await.unwrap();
    assert!(scene.has_all() && scene.addresses() < 280);
    assert_eq!(scene.writes().await, 0);
}

/// As long as one endpoint of the slice lived, the Service sent connections to all of them.
#[tokio::test]
async fn slices_that_stay_for_their_ports_keep_no_dead_endpoints_and_follow_the_live_ones() {
    let mut scene = Scene::undecided().await;
    scene.rename_port("web");
    scene.endpoints.truncate(4);
    scene.endpoints[0].conditions.ready = false;
    scene.reconcile().await.unwrap();
    assert_eq!((scene.ports_without_endpoints(), scene.addresses()), (vec![], 258), "the four under both names");
    let slices = scene.cluster.slices();
    let said = slices.iter().flat_map(|slice| &slice.endpoints).filter_map(|row| row.conditions.as_ref());
    assert_eq!(said.filter(|said| said.ready == Some(false)).count(), 2);
    assert_eq!(scene.writes().await, 0);
}

/// Its Service finds them by the ports that it has.
#[tokio::test]
async fn endpoints_of_a_cluster_with_a_new_id_are_there_once_even_if_the_service_is_not_decided() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    scene.unknown = Unknown::Only(["there".parse().unwrap()].into());
    scene.endpoints = (1000..1010).map(mk_endpoint).collect();
    for id in ["third", "fourth"] {
        scene.from = id;
        scene.reconcile().await.unwrap();
        assert_eq!((scene.has_all(), scene.addresses()), (true, 260), "those of the cluster that is not known stay");
    }
    assert_eq!(scene.writes().await, 0);
}

#[tokio::test]
async fn the_next_attempt_makes_up_for_a_failed_write() {
    let failures: [fn() -> Cause; 3] =
        [|| Cause::Timeout, || Cause::Conflict("changed".to_owned()), || Cause::Unavailable("down".to_owned())];
    for (nth, cause) in (0..).zip(failures.into_iter().cycle()).take(6) {
        let scene = Scene::new();
        scene.cluster.fail_after(nth, cause());
        assert!(scene.reconcile().await.is_err(), "write {nth}");
        scene.reconcile().await.unwrap();
        assert!(scene.cluster.import(&key()).unwrap().status.is_some());
        assert_eq!((scene.addresses(), scene.cluster.services().len(), scene.writes().await), (250, 1, 0));
    }
    for nth in 0..5 {
        let mut scene = Scene::new();
        scene.reconcile().await.unwrap();
        scene.export = None;
        scene.cluster.fail_after(nth, Cause::Timeout);
        assert!(scene.reconcile().await.is_err(), "deletion {nth}");
        scene.reconcile().await.unwrap();
        assert!(scene.cluster.import(&key()).is_none() && scene.cluster.services().is_empty());
        assert_eq!(scene.addresses(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn no_step_of_a_change_of_type_leaves_the_name_without_an_answer() {
    use ServiceType::{ClusterSetIp, Headless};
    for naming in [DerivedNaming::Hash, "{name}-global".parse().unwrap()] {
        for (from, to) in [(ClusterSetIp, Headless), (Headless, ClusterSetIp)] {
            let scene = Scene::retyped(&naming, from, to).await;
            let writes = scene.writes().await;
            scene.reconcile().await.unwrap();
            assert_eq!((scene.answers(), scene.writes().await), (true, 0));
            for (nth, failures) in (0..writes).flat_map(|nth| [1, 20].map(|failures| (nth, failures))) {
                for cause in [|| Cause::Timeout, || Cause::Invalid("denied by policy".to_owned())] {
                    let scene = Scene::retyped(&naming, from, to).await;
                    scene.cluster.fail_after(nth, cause());
                    for _ in 1..failures {
                        scene.cluster.fail_next(cause());
                    }
                    scene.reconcile().await.unwrap_err();
                    assert!(scene.answers(), "from {from:?} to {to:?}, {naming:?}: write {nth}, {failures} failures");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_headless_import_stays_headless_while_it_cannot_have_an_address() {
    let scene = Scene::retyped(&DerivedNaming::Hash, ServiceType::Headless, ServiceType::ClusterSetIp).await;
    scene.cluster.fail_next(Cause::Forbidden("exceeded quota".to_owned()));
    scene.reconcile().await.unwrap_err();
    let import = scene.cluster.import(&key()).unwrap();
    assert_eq!(import.spec.type_, ServiceImportType::Headless);
    let status = import.status.unwrap();
    assert_eq!(status.endpoint_slice_objects.unwrap().as_str(), "Present");
    assert!(status.conditions[0].message.contains("exceeded quota"), "{}", status.conditions[0].message);
    scene.reconcile().await.unwrap();
    let import = scene.cluster.import(&key()).unwrap();
    assert_eq!((import.spec.type_, import.spec.ips.len()), (ServiceImportType::ClusterSetIp, 1));
}

/// Its clients do not need the Service, and must not be sent to endpoints that are gone.
#[tokio::test(start_paused = true)]
async fn the_slices_of_a_headless_import_follow_while_its_service_cannot_be_made() {
    let global = "{name}-global".parse().unwrap();
    for (naming, to) in [(DerivedNaming::Hash, ServiceType::ClusterSetIp), (global, ServiceType::Headless)] {
        let mut scene = Scene::retyped(&DerivedNaming::Hash, ServiceType::Headless, to).await;
        scene.naming = naming;
        for endpoints in [180, 120] {
            scene.endpoints.truncate(endpoints);
            scene.cluster.fail_next(Cause::Forbidden("exceeded quota".to_owned()));
            scene.reconcile().await.unwrap_err();
            assert_eq!((scene.answers(), scene.addresses()), (true, endpoints));
        }
        scene.reconcile().await.unwrap();
        assert_eq!((scene.answers(), scene.addresses(), scene.writes().await), (true, 120, 0));
    }
}

/// Its clients do not need that Service either.
#[tokio::test(start_paused = true)]
async fn the_slices_of_a_headless_import_follow_while_its_service_has_a_foreign_one_in_the_way() {
    let mut scene = Scene::retyped(&DerivedNaming::Hash, ServiceType::Headless, ServiceType::ClusterSetIp).await;
    let foreign = scene.put_foreign_service();
    for endpoints in [180, 120] {
        scene.endpoints.truncate(endpoints);
        scene.reconcile().await.unwrap();
        assert_eq!((scene.answers(), scene.addresses(), scene.labels()), (true, endpoints, [None].into()));
        assert_eq!(scene.writes().await, 0);
    }
    let import = scene.cluster.import(&key()).unwrap();
    assert_eq!(import.spec.type_, ServiceImportType::Headless);
    let status = import.status.unwrap();
    let ready = &status.conditions[0];
    assert_eq!((&*ready.status, &*ready.reason), ("False", "Pending"));
    assert!(ready.message.contains(&hashed(&key())), "{}", ready.message);
    assert_eq!(status.endpoint_slice_objects.unwrap().as_str(), "Present");
    assert_eq!(scene.cluster.services()[0].spec, foreign.spec);

    scene.cluster.remove_service(&ServiceKey::new("ns", hashed(&key())));
    scene.reconcile().await.unwrap();
    assert_eq!((scene.answers(), scene.addresses(), scene.labels()), (true, 120, [Some(hashed(&key()))].into()));
    assert_eq!(scene.writes().await, 0);
}

/// As GitOps tools do, or a restored backup. Clients still have the address of the derived Service.
#[tokio::test]
async fn the_slices_of_an_import_whose_label_somebody_took_away_follow() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    let mut import = scene.cluster.import(&key()).unwrap();
    import.metadata.labels.as_mut().unwrap().remove(names::LABEL_MANAGED_BY);
    scene.cluster.put_import(import);
    let before = (scene.cluster.import(&key()), scene.cluster.services());
    scene.endpoints.truncate(40);
    scene.reconcile().await.unwrap();
    assert_eq!((scene.answers(), scene.has_all(), scene.addresses()), (true, true, 40));
    assert_eq!((scene.cluster.import(&key()), scene.cluster.services()), before);
    assert_eq!(scene.writes().await, 0);
}

/// Its address stays in the ServiceImport, and comes back with the Service that is made when people follow the remedy.
#[tokio::test(start_paused = true)]
async fn a_derived_service_whose_label_somebody_took_away_serves_on() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    let before = scene.cluster.import(&key()).unwrap().spec;
    let mut service = scene.cluster.services().remove(0);
    service.metadata.labels.as_mut().unwrap().remove(names::LABEL_MANAGED_BY);
    scene.cluster.put_service(service);
    let services = scene.cluster.services();
    scene.endpoints.truncate(40);
    scene.reconcile().await.unwrap();
    assert_eq!((scene.answers(), scene.has_all(), scene.addresses()), (true, true, 40));
    let import = scene.cluster.import(&key()).unwrap();
    assert_eq!((&import.spec, scene.cluster.services()), (&before, services));
    let ready = import.status.unwrap().conditions.remove(0);
    assert_eq!((&*ready.status, ready.message.contains(&hashed(&key()))), ("False", true), "{}", ready.message);
    assert_eq!(scene.writes().await, 0);

    scene.cluster.remove_service(&ServiceKey::new("ns", hashed(&key())));
    scene.reconcile().await.unwrap();
    let import = scene.cluster.import(&key()).unwrap();
    assert_eq!((scene.answers(), &import.spec), (true, &before));
    assert_eq!(import.status.unwrap().conditions[0].reason, "Ready");
}
