//! One derived Service takes over from another.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_former_service_serves_while_a_foreign_one_has_the_new_name() {
    let mut scene = Scene::new();
    scene.naming = "{name}-global".parse().unwrap();
    scene.reconcile().await.unwrap();
    let before = scene.cluster.import(&key()).unwrap();
    scene.naming = DerivedNaming::Hash;
    scene.put_foreign_service();
    scene.endpoints.truncate(10);
    scene.reconcile().await.unwrap();
    let import = scene.cluster.import(&key()).unwrap();
    assert_eq!((&import.spec, &import.metadata.annotations), (&before.spec, &before.metadata.annotations));
    assert!(import.status.unwrap().conditions[0].message.contains(&hashed(&key())));
    let labels: BTreeSet<_> = [Some("svc-global".to_owned())].into();
    assert_eq!((scene.answers(), scene.addresses(), scene.labels()), (true, 10, labels));
    assert_eq!((scene.cluster.services().len(), scene.writes().await), (2, 0));
}

/// Clients have its address until the import shows another one.
#[tokio::test(start_paused = true)]
async fn no_step_of_a_change_of_name_leaves_the_shown_service_without_endpoints() {
    let renamed = async || {
        let mut scene = Scene::new();
        scene.reconcile().await.unwrap();
        scene.naming = "{name}-global".parse().unwrap();
        scene
    };
    let writes = renamed().await.writes().await;
    for (nth, failures) in (0..writes).flat_map(|nth| [1, 20].map(|failures| (nth, failures))) {
        for cause in [|| Cause::Timeout, || Cause::Invalid("denied by policy".to_owned())] {
            let scene = renamed().await;
            scene.cluster.fail_after(nth, cause());
            for _ in 1..failures {
                scene.cluster.fail_next(cause());
            }
            scene.reconcile().await.unwrap_err();
            assert_eq!(scene.served(), 250, "write {nth}, {failures} failures");
            while scene.reconcile().await.is_err() {
                assert_eq!(scene.served(), 250, "after write {nth}, {failures} failures");
            }
            let names: BTreeSet<_> = [Some("svc-global".to_owned())].into();
            assert_eq!((scene.served(), scene.addresses(), scene.labels()), (250, 250, names));
            assert_eq!((scene.cluster.services().len(), scene.writes().await), (1, 0));
        }
    }
}

/// Nobody writes that Service any more. With the names of its ports, it finds the pods that come.
#[tokio::test(start_paused = true)]
async fn a_former_service_finds_all_endpoints_when_a_port_gets_another_name() {
    let mut scene = Scene::new();
    scene.endpoints.truncate(10);
    scene.reconcile().await.unwrap();
    scene.naming = "{name}-global".parse().unwrap();
    let refused = || Cause::Forbidden("exceeded quota".to_owned());
    scene.cluster.fail_after(1, refused());
    scene.reconcile().await.unwrap_err();
    scene.endpoints = (1000..1010).map(mk_endpoint).collect();
    scene.rename_port("web");
    // The slice of the former Service comes first.
    scene.cluster.fail_after(1, refused());
    scene.reconcile().await.unwrap_err();
    assert_eq!((scene.served(), scene.ports_without_endpoints()), (10, vec![]));
    scene.reconcile().await.unwrap();
    assert_eq!((scene.served(), scene.ports_without_endpoints(), scene.addresses()), (10, vec![], 10));
    assert_eq!((scene.labels(), scene.writes().await), ([Some("svc-global".to_owned())].into(), 0));
}

/// A quota had no room for three of them, and the second one waited for the third one to go.
#[tokio::test(start_paused = true)]
async fn a_service_that_never_took_over_goes_before_one_with_a_third_name_is_made() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    let refused = || Cause::Forbidden("exceeded quota".to_owned());
    let names = |scene: &Scene| {
        let services = scene.cluster.services().into_iter().filter_map(|service| service.metadata.name);
        services.collect::<Vec<_>>()
    };
    scene.naming = "{name}-global".parse().unwrap();
    // The Service and its first slice are made.
    scene.cluster.fail_after(2, refused());
    scene.cluster.fail_next(refused());
    scene.reconcile().await.unwrap_err();
    assert_eq!((names(&scene).len(), scene.served(), scene.addresses()), (2, 250, 350));
    scene.naming = "all-{name}".parse().unwrap();
    // Both are deleted.
    scene.cluster.fail_after(2, refused());
    scene.reconcile().await.unwrap_err();
    assert_eq!((names(&scene), scene.served(), scene.addresses()), (vec![hashed(&key())], 250, 250));
    scene.reconcile().await.unwrap();
    assert_eq!((names(&scene), scene.served(), scene.addresses()), (vec!["all-svc".to_owned()], 250, 250));
    assert_eq!(scene.writes().await, 0);
}

/// kube-proxy refuses connections to the address of a Service of which it knows no endpoints yet.
#[tokio::test(start_paused = true)]
async fn the_import_shows_a_service_a_second_after_its_last_slice_however_old_it_is() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    scene.naming = "{name}-global".parse().unwrap();
    // The new Service is made, and one of its slices is not.
    scene.cluster.fail_after(1, Cause::Forbidden("exceeded quota".to_owned()));
    scene.reconcile().await.unwrap_err();
    scene.now = Timestamp::from_second(1_000_000).unwrap();
    let began = tokio::time::Instant::now();
    scene.reconcile().await.unwrap();
    assert!(began.elapsed() >= PROGRAMMED);
    assert_eq!((scene.served(), scene.cluster.services().len()), (250, 1));
    // Nobody waits for a change of the Service that is shown.
    let began = tokio::time::Instant::now();
    scene.rename_port("web");
    scene.reconcile().await.unwrap();
    assert_eq!((began.elapsed(), scene.ports_without_endpoints()), (Duration::ZERO, vec![]));
}

/// A quota on EndpointSlices does not allow them twice.
#[tokio::test(start_paused = true)]
async fn the_slices_of_a_former_service_follow_while_those_of_the_new_one_cannot_be_made() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    scene.naming = "{name}-global".parse().unwrap();
    // One slice loses endpoints, after the new Service was made.
    for (endpoints, others) in [(180, 2), (120, 1)] {
        scene.endpoints.truncate(endpoints);
        let refused = || Cause::Forbidden("exceeded quota".to_owned());
        scene.cluster.fail_after(others, refused());
        scene.cluster.fail_next(refused());
        scene.reconcile().await.unwrap_err();
        assert_eq!((scene.served(), scene.addresses()), (endpoints, endpoints));
        let import = scene.cluster.import(&key()).unwrap();
        assert_eq!(import.metadata.annotations.unwrap()[names::ANNOTATION_DERIVED_SERVICE], hashed(&key()));
        let ready = import.status.unwrap().conditions.remove(0);
        assert!(*ready.status == *"False" && ready.message.contains("exceeded quota"), "{}", ready.message);
    }
    scene.reconcile().await.unwrap();
    assert_eq!((scene.served(), scene.addresses(), scene.cluster.services().len()), (120, 120, 1));
    assert_eq!(scene.writes().await, 0);
}
