//! The overview, and the streams that it shows.

use super::*;
use api::ServiceExport;

#[test]
fn who_is_connected_is_what_the_leader_said_lately() {
    let with = |change: &dyn Fn(&mut Leader)| {
        let mut seen = cluster();
        change(seen.lease.as_mut().unwrap().as_mut().unwrap());
        seen
    };
    let (seen, mut deaf) = (cluster(), view("two"));
    assert_eq!(overview::stream(&seen, &view("two")), Some(true));
    assert_eq!(overview::stream(&seen, &view("three")), Some(false));
    assert_eq!(overview::stream(&seen, &view("one")), None, "this cluster");
    Arc::make_mut(deaf.head.as_mut().unwrap()).addresses = Arc::default();
    assert_eq!(overview::stream(&seen, &deaf), None, "its leader does not listen");
    let silent = [
        with(&|leader| leader.peers.connected = None),
        with(&|leader| leader.holder = None),
        with(&|leader| leader.renewed = Some(ago(31))),
        Cluster { lease: Ok(None), ..cluster() },
    ];
    for seen in silent {
        assert_eq!(overview::stream(&seen, &view("two")), None, "{:?}", seen.lease);
    }
}

#[test]
fn a_cluster_that_signs_with_another_key_than_the_pinned_one_is_not_well() {
    let mut seen = cluster();
    sign_with_another_key(&mut seen);
    let findings = overview::ledger(&seen);
    let of_two: Vec<_> = findings.iter().filter(|finding| finding.about == "cluster two").collect();
    assert!(of_two.len() == 1 && of_two[0].text.contains("its head is ignored: the key"), "{findings:?}");
}

/// Its state is read here as well as any other; only the leader knows that it has no room for it.
#[test]
fn a_cluster_that_the_leader_refuses_is_named_with_the_limit_and_the_remedy() {
    let of_two = |seen: &Cluster| -> Vec<_> {
        overview::ledger(seen).into_iter().filter(|finding| finding.about == "cluster two").collect()
    };
    let mut seen = cluster();
    refuse_two(&mut seen);
    let unseen = Cluster { ledger: Err(Dark::Unseen("no credentials".into())), lease: seen.lease.clone(), ..cluster() };
    for seen in [&seen, &unseen] {
        let [finding] = &*of_two(seen) else { panic!("{:?}", of_two(seen)) };
        assert_eq!(finding.state, State::Wrong);
        assert!(finding.text.contains("all other clusters together may take 32 MiB"), "{finding:?}");
        assert!(finding.remedy.as_ref().unwrap().starts_with("Look at what it exports, or raise"), "{finding:?}");
    }
    seen.lease.as_mut().unwrap().as_mut().unwrap().renewed = Some(ago(31));
    assert_eq!(of_two(&seen)[0].state, State::Well, "nobody knows whether it is still so");
}

#[test]
fn the_overview_has_each_cluster_and_each_object_that_is_not_well() {
    let mut seen = cluster();
    let objects = |exports: Vec<Value>, imports: Vec<Value>| Objects {
        namespace: None,
        exports: Ok(exports.into_iter().map(parsed).collect()),
        imports: Ok(imports.into_iter().map(parsed).collect()),
    };
    let well = objects(vec![exported()], vec![import(&json!([condition("Ready", "True", "Ready")]))]);
    let report = overview::plan(&seen, &well);
    assert_eq!(report.first_wrong(), None, "{}", report.table());
    let two = report.findings.iter().find(|finding| finding.about == "cluster two").unwrap();
    assert_eq!(two.text, "live at position 3.17; exports: 1, endpoints ready: 1 of 2, claims: 1, stream: connected");

    let stale = json!([condition("Ready", "True", "Ready"), condition("Stale", "True", "ClusterSilent")]);
    let refused = export(&json!([condition("Ready", "False", "Failed"), condition("Valid", "False", "NoService")]));
    let ill = objects(vec![exported(), refused], vec![import(&stale)]);
    seen.ledger.as_mut().unwrap()[1].age = Some(Duration::from_mins(9));
    let report = overview::plan(&seen, &ill);
    let wrong: Vec<_> = report.findings.iter().filter(|finding| finding.state == State::Wrong).collect();
    let texts: Vec<_> = wrong.iter().map(|finding| format!("{}: {}", finding.about, finding.text)).collect();
    assert_eq!(
        texts,
        [
            "cluster two: its ledger is silent at position 3.17",
            "ServiceExport shop/web: Valid=False NoService: this cluster has no Service of that name, or it is being \
             deleted",
            "ServiceExport shop/web: Ready=False Failed: the message says why",
            "ServiceImport shop/web: Stale=True ClusterSilent: the clusters named in the message have been silent for 5 \
             minutes or more",
        ]
    );
    assert!(report.table().contains("4 things are wrong, the first is cluster two"), "{}", report.table());
    assert!(wrong.iter().all(|finding| finding.age.is_some() && finding.remedy.is_some()), "{wrong:?}");
}

/// Annotated Services need no ClusterSet, but an export does, and an id of the cluster alone is half a set-up.
#[test]
fn a_cluster_without_ids_and_exports_needs_no_clusterset() {
    let objects =
        |exports: Vec<ServiceExport>| Objects { namespace: None, exports: Ok(exports), imports: Ok(Vec::new()) };
    let unread = Objects { exports: Err(Unread::Failed("no answer".into())), ..objects(Vec::new()) };
    for (id, objects, expected) in [
        ("uid-one", objects(Vec::new()), State::Absent),
        ("uid-one", objects(vec![parsed(exported())]), State::Wrong),
        ("uid-one", unread, State::Wrong),
        ("one", objects(Vec::new()), State::Wrong),
    ] {
        let mut seen = Cluster { ledger: Err(Dark::NoClusterSet), ..cluster() };
        let identity = seen.identity.as_mut().unwrap().as_mut().unwrap();
        (identity.cluster, identity.clusterset) = (id.parse().unwrap(), None);
        let report = overview::plan(&seen, &objects);
        let found = &report.findings[0];
        assert_eq!((&*found.about, found.state), ("identity", expected), "{}", report.table());
        assert!(expected == State::Wrong || report.first_wrong().is_none(), "{}", report.table());
    }
    let mut seen = Cluster { ledger: Err(Dark::NoClusterSet), ..cluster() };
    let identity = seen.identity.as_mut().unwrap().as_mut().unwrap();
    (identity.cluster, identity.clusterset) = ("uid-one".parse().unwrap(), None);
    let annotated =
        Name { export: Ok(None), import: Ok(None), derived: Ok(None), imported: Ok(Vec::new()), ..followed() };
    let report = name::plan(&seen, &Name { targets: Vec::new(), dns: Dns::NotAsked, ..annotated });
    assert_eq!(report.first_wrong(), None, "{}", report.table());
}

#[test]
fn the_overview_names_a_cluster_whose_id_is_taken() {
    let mut seen = cluster();
    seen.ledger.as_mut().unwrap()[0].creator = Some("uid-of-another".to_owned());
    let none = Objects { namespace: None, exports: Ok(Vec::new()), imports: Ok(Vec::new()) };
    let report = overview::plan(&seen, &none);
    let first = report.first_wrong().unwrap();
    assert_eq!(first.about, "cluster one");
    assert!(first.text.contains("uid-of-another") && first.remedy.as_ref().unwrap().contains("another id"));
}
