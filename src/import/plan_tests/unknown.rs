//! Clusters that are not read yet may export the name.

use super::*;

#[test]
fn nothing_of_a_cluster_that_was_not_read_is_deleted() {
    let mut scene = Scene::new(&[]).unknown(&["there"]);
    scene.import = Some(mk_import(true, &["there"]));
    scene.slices = vec![mk_slice("s", "there")];
    assert_eq!(scene.plan(), Plan::Keep);
    scene.unknown = Unknown::All;
    assert_eq!(scene.plan(), Plan::Keep);
    scene.unknown = Unknown::Only([id("elsewhere")].into());
    assert_eq!(scene.plan(), Plan::Remove, "another unknown cluster does not matter");
}

#[test]
fn the_slices_of_an_unknown_cluster_stay_and_so_does_the_import() {
    let mut scene = Scene::new(&[("third", 5, &["10.2.0.1"])]).unknown(&["there"]);
    scene.import = Some(mk_import(true, &["there", "third"]));
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "gone")];
    let wanted = scene.wanted();
    assert_eq!(wanted.service, None, "the unknown export may be the oldest");
    assert_eq!(wanted.stale, ["t".into()]);
    assert_eq!(wanted.slices[&id("third")].len(), 1, "known endpoints go on being updated");
    scene.unknown = Unknown::All;
    let wanted = scene.wanted();
    assert_eq!((wanted.service, wanted.stale), (None, vec![]), "anybody may export it still");
}

/// Clients would get connections to pods that no longer exist, for as long as the other cluster cannot be read.
#[test]
fn the_endpoints_of_the_last_known_exporter_go_while_another_one_is_unknown() {
    let mut scene = Scene::new(&[]).unknown(&["there"]);
    scene.import = Some(mk_import(true, &["here", "there"]));
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "here")];
    let wanted = scene.wanted();
    assert_eq!((wanted.service, wanted.lost, wanted.slices.len()), (None, None, 0));
    assert_eq!(wanted.stale, ["t".into()]);
    scene.namespace = false;
    assert_eq!(scene.plan(), Plan::Keep, "it takes them along");
}

/// The unknown cluster has the oldest export, with which that of this cluster agrees and that of the other one does not.
#[test]
fn what_conflicts_with_a_known_export_stays_while_the_one_that_decides_is_unknown() {
    let mut scene = Scene::new(&[("here", 3, &["10.1.0.1"]), ("third", 2, &["10.2.0.1"])]).unknown(&["there"]);
    scene.exports[1].1.ports[0].name = "web".into();
    scene.exports[1].1.ip_families = vec![IpFamily::V6];
    let mut import = mk_import(true, &["here", "there", "third"]);
    import.spec = ImportSpec::from(&ServiceImportSpec {
        ports: vec![ServiceImportPort { name: Some("http".to_owned()), port: 80, ..Default::default() }],
        ip_families: vec!["IPv4".to_owned()],
        ..ServiceImportSpec::default()
    });
    scene.import = Some(import);
    assert_eq!(scene.wanted().slices[&id("here")].len(), 1);
    scene.unknown = Unknown::Only(BTreeSet::new());
    assert_eq!(scene.wanted().slices[&id("here")], [], "the older one counts once everything is known");
}

/// Such as `kubectl delete service --all`.
#[test]
fn a_derived_service_that_somebody_deleted_is_wanted_as_the_import_shows_it_while_an_exporter_is_unknown() {
    let mut scene = Scene::new(&[("third", 5, &["10.2.0.1"])]).unknown(&["there"]);
    let mut import = mk_import(true, &["there", "third"]);
    import.annotations = [(names::ANNOTATION_DERIVED_SERVICE, "derived-x")].into_iter().collect();
    import.spec = ImportSpec::from(&ServiceImportSpec {
        ports: vec![ServiceImportPort { name: Some("of-there".to_owned()), port: 80, ..Default::default() }],
        ip_families: vec!["IPv4".to_owned()],
        session_affinity: Some("ClientIP".to_owned()),
        internal_traffic_policy: Some("Local".to_owned()),
        ..ServiceImportSpec::default()
    });
    scene.import = Some(import);
    let wanted = scene.wanted();
    assert_eq!((wanted.service, wanted.derived.as_deref()), (None, Some("derived-x")));
    assert_eq!(wanted.slices[&id("third")].len(), 1);
    let lost = wanted.lost.unwrap();
    assert_eq!((&*lost.ports[0].name, lost.ports.len(), lost.ip_families), ("of-there", 1, vec![IpFamily::V4]));
    assert_eq!(lost.session_affinity, SessionAffinity::ClientIp { timeout: None });
    assert_eq!(lost.internal_traffic_policy, TrafficPolicy::Local);
    scene.exports.clear();
    assert!(scene.wanted().lost.is_some(), "even if no known cluster exports it");
    scene.derived = Some(mk_foreign("derived-x"));
    assert_eq!(scene.plan(), Plan::Keep, "somebody else has the name");
    (scene.derived, scene.unknown) = (None, Unknown::Only(BTreeSet::new()));
    assert_eq!(scene.plan(), Plan::Remove, "nobody exports it");
}

#[test]
fn hints_stay_while_the_export_that_decides_is_unknown() {
    let mut scene = Scene::new(&[("here", 3, &["10.1.0.1"])]).unknown(&["there"]);
    scene.exports[0].2[0].zone = Some("zone-a".into());
    let mut import = mk_import(true, &["here", "there"]);
    import.spec = ImportSpec::from(&ServiceImportSpec {
        ports: vec![ServiceImportPort { name: Some("http".to_owned()), port: 80, ..Default::default() }],
        traffic_distribution: Some("PreferClose".to_owned()),
        ..ServiceImportSpec::default()
    });
    scene.import = Some(import);
    let hinted = |scene: &Scene| scene.wanted().slices[&id("here")][0].endpoints[0].hints.zone.clone();
    assert_eq!(hinted(&scene).as_deref(), Some("zone-a"));
    scene.unknown = Unknown::Only(BTreeSet::new());
    assert_eq!(hinted(&scene), None, "the known export asks for none");
}

#[test]
fn a_new_import_waits_for_the_first_reading_but_not_for_a_broken_cluster() {
    let mut scene = Scene::new(&[("there", 1, &[])]).unknown(&["broken"]);
    scene.first_reading = true;
    assert_eq!(scene.plan(), Plan::Keep);
    scene.first_reading = false;
    assert!(scene.wanted().service.is_some());
    scene.unknown = Unknown::All;
    assert_eq!(scene.plan(), Plan::Keep);
}

/// An import that another controller created has no status of ours. Nobody knows its clusters until all were read.
#[test]
fn a_handed_over_import_is_not_removed_before_all_clusters_were_read() {
    let mut scene = Scene::new(&[]);
    scene.import = Some(mk_import(true, &[]));
    for unknown in [Unknown::All, Unknown::Only([id("there")].into()), Unknown::AllBut([id("here")].into())] {
        scene.unknown = unknown;
        assert_eq!(scene.plan(), Plan::Keep);
    }
    scene.unknown = Unknown::Only(BTreeSet::new());
    assert_eq!(scene.plan(), Plan::Remove);

    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]).unknown(&["broken"]);
    scene.import = Some(mk_import(true, &[]));
    scene.first_reading = true;
    assert_eq!(scene.wanted().service, None, "an older export may be among them");
    scene.first_reading = false;
    assert!(scene.wanted().service.is_some(), "one bad cluster never stops the others");
}

/// If a cluster may run the AWS Cloud Map MCS Controller, there are exports that are not in the ledger.
#[test]
fn clusters_that_are_not_known_at_all_may_export_as_well() {
    let mut scene = Scene::new(&[("there", 1, &["10.2.0.1"])]);
    scene.unknown = Unknown::AllBut([id("here"), id("there"), id("left")].into());
    scene.import = Some(mk_import(true, &["elsewhere", "there"]));
    scene.slices = vec![mk_slice("e", "elsewhere"), mk_slice("l", "left"), mk_slice("x", "ecs-prod")];
    let wanted = scene.wanted();
    assert_eq!((wanted.service, wanted.stale), (None, vec!["l".into(), "x".into()]));
    scene.import = Some(mk_import(true, &["there"]));
    assert!(scene.wanted().service.is_some(), "all that it comes from is known");
}
