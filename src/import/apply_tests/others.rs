//! What others do to the objects of an import, or made in their place.

use super::*;

#[tokio::test]
async fn foreign_objects_are_never_touched() {
    let scene = Scene::new();
    let mut foreign = api::ServiceImport::new("svc", ServiceImportSpec::default());
    foreign.metadata.namespace = Some("ns".to_owned());
    scene.cluster.put_import(foreign);
    let before = scene.cluster.import(&key());
    assert!(matches!(scene.reconcile().await.unwrap(), Plan::Blocked(_)));
    assert_eq!((scene.cluster.import(&key()), scene.cluster.writes()), (before, 0));

    let scene = Scene::new();
    let service = scene.put_foreign_service();
    scene.reconcile().await.unwrap();
    let import = scene.cluster.import(&key()).unwrap();
    let ready = &import.status.as_ref().unwrap().conditions[0];
    assert_eq!((&*ready.status, &*ready.reason), ("False", "Pending"));
    assert!(ready.message.contains(&hashed(&key())) && import.spec.ips.is_empty(), "{}", ready.message);
    assert_eq!((scene.cluster.services()[0].spec.clone(), scene.addresses()), (service.spec, 0));
    assert_eq!(scene.writes().await, 0);
    scene.cluster.remove_service(&ServiceKey::new("ns", hashed(&key())));
    scene.reconcile().await.unwrap();
    assert_eq!(scene.cluster.import(&key()).unwrap().status.unwrap().conditions[0].reason, "Ready");
    assert_eq!((scene.addresses(), scene.writes().await), (250, 0));
}

#[tokio::test]
async fn the_import_says_why_a_derived_service_or_a_slice_cannot_be_written() {
    for (nth, object) in [(0, "Service ns/derived-"), (2, "EndpointSlice ns/svc-")] {
        let scene = Scene::new();
        scene.cluster.fail_after(nth, Cause::Invalid("denied by policy".to_owned()));
        assert!(scene.reconcile().await.is_err());
        let import = scene.cluster.import(&key()).unwrap();
        assert_eq!(import.spec.ips.len(), nth.min(1), "the address is shown as soon as there is one");
        let ready = import.status.unwrap().conditions.remove(0);
        assert_eq!((&*ready.status, &*ready.reason), ("False", "Pending"));
        assert!(ready.message.contains("denied by policy") && ready.message.contains(object), "{}", ready.message);
        scene.reconcile().await.unwrap();
        assert_eq!(scene.cluster.import(&key()).unwrap().status.unwrap().conditions[0].reason, "Ready");
    }
    let scene = Scene::new();
    scene.reconcile().await.unwrap();
    scene.reconcile().await.unwrap();
    let ready = scene.cluster.import(&key()).unwrap().status.unwrap().conditions.remove(0);
    assert_eq!((&*ready.status, &*ready.reason, scene.writes().await), ("True", "Ready", 0));
}

#[tokio::test]
async fn the_import_names_a_slice_that_somebody_marked_as_that_of_another_controller() {
    let scene = Scene::new();
    scene.reconcile().await.unwrap();
    let mut slice = scene.cluster.slices().remove(0);
    let labels = slice.metadata.labels.get_or_insert_default();
    labels.insert(names::LABEL_SLICE_MANAGED_BY.to_owned(), "theirs".to_owned());
    slice.metadata.managed_fields = None;
    scene.cluster.put_slice(slice.clone());
    scene.reconcile().await.unwrap_err();
    let ready = scene.cluster.import(&key()).unwrap().status.unwrap().conditions.remove(0);
    assert_eq!((&*ready.status, &*ready.reason), ("False", "Pending"));
    let (name, uid) = (slice.metadata.name.unwrap(), slice.metadata.uid.unwrap());
    for part in [&*name, "conflict", "Delete this EndpointSlice"] {
        assert!(ready.message.contains(part), "{}", ready.message);
    }
    scene.cluster.delete_endpoint_slice(&ObjectKey::new("ns", name), &uid).await.unwrap();
    scene.reconcile().await.unwrap();
    assert_eq!(scene.cluster.import(&key()).unwrap().status.unwrap().conditions[0].reason, "Ready");
    assert_eq!((scene.addresses(), scene.writes().await), (250, 0));
}

#[tokio::test(start_paused = true)]
async fn a_derived_service_that_somebody_deleted_comes_back_with_its_address_unless_another_has_it() {
    let scene = Scene::new();
    scene.reconcile().await.unwrap();
    let first = scene.cluster.import(&key()).unwrap().spec.ips;
    let name = ServiceKey::new("ns", hashed(&key()));
    scene.cluster.remove_service(&name);
    scene.reconcile().await.unwrap();
    let spec = scene.cluster.services()[0].spec.clone().unwrap();
    assert_eq!((spec.cluster_ip.as_ref(), spec.cluster_ips.as_ref()), (first.first(), Some(&first)));
    assert_eq!(scene.cluster.import(&key()).unwrap().spec.ips, first);
    assert_eq!(scene.writes().await, 0);

    let taken = "spec.clusterIPs: Invalid value: failed to allocate IP: provided IP is already allocated";
    for refused in [Cause::Invalid(taken.to_owned()), Cause::Forbidden("denied by policy".to_owned())] {
        let before = scene.cluster.import(&key()).unwrap().spec.ips;
        scene.cluster.remove_service(&name);
        scene.cluster.fail_next(refused);
        scene.reconcile().await.unwrap();
        let ips = scene.cluster.import(&key()).unwrap().spec.ips;
        assert_ne!(ips, before);
        assert_eq!(scene.cluster.services()[0].spec.as_ref().unwrap().cluster_ips.as_ref(), Some(&ips));
        assert_eq!(scene.writes().await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_import_shows_its_address_while_a_derived_service_that_somebody_deleted_cannot_come_back() {
    let scene = Scene::new();
    scene.reconcile().await.unwrap();
    let before = scene.cluster.import(&key()).unwrap().spec;
    scene.cluster.remove_service(&ServiceKey::new("ns", hashed(&key())));
    // With its address, and then with any.
    for _ in 0..2 {
        scene.cluster.fail_next(Cause::Forbidden("exceeded quota".to_owned()));
    }
    scene.reconcile().await.unwrap_err();
    let import = scene.cluster.import(&key()).unwrap();
    assert_eq!((&import.spec, &*import.status.unwrap().conditions[0].reason), (&before, "Pending"));
    scene.reconcile().await.unwrap();
    assert_eq!((scene.answers(), scene.cluster.import(&key()).unwrap().spec), (true, before));
}

#[tokio::test]
async fn a_derived_service_with_a_selector_is_made_anew_with_its_address() {
    let scene = Scene::new();
    scene.reconcile().await.unwrap();
    let mut service = scene.cluster.services().remove(0);
    let (uid, ips) = (service.metadata.uid.clone(), service.spec.as_ref().unwrap().cluster_ips.clone());
    service.spec.as_mut().unwrap().selector = Some([("app".to_owned(), "a".to_owned())].into());
    scene.cluster.put_service(service);
    scene.reconcile().await.unwrap();
    let service = scene.cluster.services().remove(0);
    assert_ne!(service.metadata.uid, uid, "the EndpointSlices that Kubernetes made for it go with it");
    let spec = service.spec.unwrap();
    assert_eq!((spec.selector, spec.cluster_ips), (None, ips));
    assert_eq!((scene.addresses(), scene.writes().await), (250, 0));
}
