//! What others made is in the way of an import, or they took our label away.

use super::*;

#[test]
fn a_foreign_import_blocks_the_import_and_is_named() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]);
    scene.import = Some(mk_import(false, &[]));
    let Plan::Blocked(message) = scene.plan() else { panic!() };
    assert!(message.contains("ServiceImport ns/svc"), "{message}");
    assert!(
        message.contains("kubectl label serviceimport -n ns svc cloudmap-mcs/managed-by=cloudmap-mcs"),
        "{message}"
    );
}

/// Clients have the address of the derived Service.
#[test]
fn the_slices_of_an_import_that_lost_our_label_follow_their_endpoints() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    scene.import = Some(mk_import(false, &["there"]));
    scene.derived = Some(Service::narrow(derived_service(&key(), "derived-x", &mk_service())).unwrap());
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "gone")];
    let wanted = scene.wanted();
    assert!(wanted.obstacle.as_ref().unwrap().contains("ServiceImport ns/svc"), "{:?}", wanted.obstacle);
    assert_eq!((wanted.service, wanted.stale), (None, vec!["t".into()]));
    let [slice] = &wanted.slices[&id("there")][..] else { panic!("{:?}", wanted.slices) };
    assert_eq!((&*slice.name, slice.endpoints.len()), ("s", 2));
    scene.unknown = Unknown::All;
    assert!(matches!(scene.plan(), Plan::Blocked(_)));
}

/// CoreDNS finds them by the label that names the import.
#[test]
fn the_slices_of_a_headless_import_that_lost_our_label_follow_their_endpoints() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    scene.exports[0].1.service_type = ServiceType::Headless;
    let mut import = mk_import(false, &["there"]);
    import.spec.headless = true;
    scene.import = Some(import);
    assert!(matches!(scene.plan(), Plan::Blocked(_)), "nothing was imported");
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "gone")];
    let wanted = scene.wanted();
    assert!(wanted.obstacle.as_ref().unwrap().contains("ServiceImport ns/svc"), "{:?}", wanted.obstacle);
    assert_eq!((wanted.service, wanted.derived, wanted.stale), (None, None, vec!["t".into()]));
    let [slice] = &wanted.slices[&id("there")][..] else { panic!("{:?}", wanted.slices) };
    assert_eq!((&*slice.name, slice.endpoints.len()), ("s", 2));
}

#[test]
fn the_slices_of_a_derived_service_that_lost_our_label_follow_their_endpoints() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    let shown: IpAddr = "10.96.0.9".parse().unwrap();
    let mut import = mk_import(true, &["there"]);
    import.spec.ips = [shown].into();
    scene.import = Some(import);
    scene.derived = Some(Service { cluster_ips: [shown].into(), ..mk_foreign("derived-x") });
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "gone")];
    let wanted = scene.wanted();
    assert!(wanted.obstacle.as_ref().unwrap().contains("Service ns/derived-x"), "{:?}", wanted.obstacle);
    assert_eq!((wanted.derived, wanted.stale), (Some("derived-x".into()), vec!["t".into()]));
    let [slice] = &wanted.slices[&id("there")][..] else { panic!("{:?}", wanted.slices) };
    assert_eq!((&*slice.name, slice.endpoints.len()), ("s", 2));
}

#[test]
fn a_foreign_service_with_the_derived_name_is_reported_and_gets_no_endpoints() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]);
    scene.derived = Some(mk_foreign("derived-x"));
    scene.slices = vec![mk_slice("s", "there")];
    let wanted = scene.wanted();
    assert!(wanted.obstacle.as_ref().unwrap().contains("Service ns/derived-x"), "{:?}", wanted.obstacle);
    assert!(wanted.service.is_some() && wanted.slices.is_empty() && wanted.stale.is_empty());
    scene.exports[0].1.service_type = ServiceType::Headless;
    assert_eq!(scene.wanted().obstacle, None, "a headless import needs no derived Service");
}

#[test]
fn the_slices_of_a_headless_import_follow_while_a_foreign_service_is_in_the_way_of_its_new_type() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    scene.exports[0].1.ports[0].name = "".into();
    let unnamed: Arc<[EndpointPort]> = [EndpointPort { name: "".into(), ..mk_ports()[0].clone() }].into();
    scene.exports[0].2.iter_mut().for_each(|endpoint| endpoint.ports = unnamed.clone());
    let mut slice = mk_slice("s", "there").0.clone();
    slice.ports = unnamed;
    scene.slices = vec![Arc::new(OwnSlice(slice)), mk_slice("t", "gone")];
    scene.import = Some(mk_import(true, &["there"]));
    scene.import.as_mut().unwrap().spec.headless = true;
    scene.derived = Some(mk_foreign("derived-x"));
    let wanted = scene.wanted();
    assert!(wanted.obstacle.is_some() && wanted.service.is_some());
    let [slice] = &wanted.slices[&id("there")][..] else { panic!("{:?}", wanted.slices) };
    assert_eq!((&*slice.name, slice.endpoints.len(), wanted.stale), ("s", 2, vec!["t".into()]));

    // Nothing is in the way of one that stays headless until the cluster is known that decides.
    scene.exports[0].0 = id("third");
    scene.unknown = Unknown::Only([id("there")].into());
    let wanted = scene.wanted();
    assert_eq!((wanted.obstacle, wanted.service), (None, None));
    assert_eq!(wanted.slices[&id("third")][0].endpoints.len(), 2);
}

/// An EndpointSlice belongs to one Service.
#[test]
fn a_former_derived_service_has_slices_of_its_own_until_the_import_shows_another_one() {
    let ours = |name: &str| Service::narrow(derived_service(&key(), name, &mk_service())).unwrap();
    let of = |service: &str, name: &str, ip: &str| {
        let mut slice = mk_slice(name, "there").0.clone();
        slice.service = Some(service.into());
        slice.endpoints[0].address = Some(ip.parse().unwrap());
        Arc::new(OwnSlice(slice))
    };
    let named = |slices: &BTreeMap<ClusterId, Vec<Slice>>| {
        let slices = &slices[&id("there")];
        assert!(slices.iter().all(|slice| slice.endpoints.len() == 2), "{slices:?}");
        slices.iter().map(|slice| slice.name.to_string()).collect::<Vec<_>>()
    };
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    scene.import = Some(mk_import(true, &["there"]));
    scene.former = vec![Arc::new(ours("former"))];
    scene.slices = vec![of("former", "a", "10.0.0.1"), of("former", "gone", "10.9.9.9")];
    let wanted = scene.wanted();
    let former = wanted.former.as_ref().unwrap();
    assert_eq!((&*former.derived, wanted.derived.as_deref()), ("former", Some("derived-x")));
    assert_eq!((named(&former.slices), &wanted.stale), (vec!["a".to_owned()], &vec!["gone".into()]));
    let present = named(&wanted.slices);
    assert!(present.len() == 1 && present[0] != "a", "{present:?}");

    // The other Service and its slice are there.
    scene.derived = Some(ours("derived-x"));
    scene.slices.push(of("derived-x", &present[0], "10.0.0.1"));
    assert_eq!(scene.wanted(), wanted);

    // The import shows it.
    let annotations = [(names::ANNOTATION_DERIVED_SERVICE, "derived-x")];
    scene.import.as_mut().unwrap().annotations = annotations.into_iter().collect();
    let wanted = scene.wanted();
    assert_eq!((&wanted.former, named(&wanted.slices)), (&None, present));
    assert_eq!(wanted.stale, ["a".into(), "gone".into()]);

    // Nobody makes another one.
    (scene.derived, scene.slices) = (None, vec![of("former", "s", "10.0.0.1")]);
    scene.exports[0].1.service_type = ServiceType::Headless;
    let wanted = scene.wanted();
    assert_eq!((wanted.derived.as_deref(), &wanted.former), (Some("former"), &None));
    assert_eq!((named(&wanted.slices), wanted.stale.len()), (vec!["s".to_owned()], 0));
}

/// Nobody writes that Service any more, so a port that gets another name keeps its former one there.
#[test]
fn the_slices_of_a_former_service_have_the_ports_that_it_has() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]);
    scene.import = Some(mk_import(true, &["there"]));
    let former = derived_service(&key(), "former", &mk_service());
    scene.former = vec![Arc::new(Service::narrow(former).unwrap())];
    let names = |slices: &BTreeMap<ClusterId, Vec<Slice>>, source: &str| {
        let [slice] = &slices[&id(source)][..] else { panic!("{slices:?}") };
        slice.ports.iter().map(|port| port.name.to_string()).collect::<Vec<_>>()
    };
    for (name, of_former, present) in [
        ("http", vec!["http"], vec!["http"]),
        ("web", vec!["http"], vec!["web"]),
        // It has the number of another port.
        ("admin", vec!["http"], vec!["admin"]),
        ("", vec!["", "http"], vec!["", UNNAMED_PORT]),
    ] {
        scene.exports[0].1.ports[0].name = name.into();
        let port = EndpointPort { name: name.into(), ..mk_ports()[0].clone() };
        scene.exports[0].2[0].ports = [port].into();
        let wanted = scene.wanted();
        assert_eq!(names(&wanted.slices, "there"), present);
        assert_eq!(names(&wanted.former.unwrap().slices, "there"), of_former);
    }
    // Nobody makes another one.
    scene.unknown = Unknown::Only([id("there")].into());
    scene.exports[0].0 = id("third");
    let wanted = scene.wanted();
    assert_eq!((wanted.derived.as_deref(), &wanted.former), (Some("former"), &None));
    assert_eq!(names(&wanted.slices, "third"), ["", "http"]);
}
