//! What workers write, in which order, and what they report where it fails.

use super::*;

#[test]
fn an_import_that_stays_blocked_is_looked_at_again_and_again() {
    let mut bench = Bench::member();
    bench.remotes(["web"], at(1));
    let put_import = |bench: &Bench, labels: BTreeMap<&str, &str>| {
        let metadata = json!({"namespace": "shop", "name": "web", "labels": labels});
        let import = json!({"metadata": metadata, "spec": {"type": "ClusterSetIP", "ports": []}});
        bench.objects.put_import(serde_json::from_value(import).unwrap());
    };
    put_import(&bench, BTreeMap::new());
    bench.observe(at(1));
    assert!(matches!(bench.work("web", at(1)).import, Plan::Blocked(_)));
    let again = |bench: &mut Bench, second| {
        let commands = bench.core.handle(Input::Tick, at(second));
        reconciled(&commands).contains(&key("web"))
    };
    assert_eq!([600, 601, 602, 1201].map(|second| again(&mut bench, second)), [false, true, false, true]);
    put_import(&bench, [("cloudmap-mcs/managed-by", "cloudmap-mcs")].into());
    bench.observe(at(1202));
    assert!(matches!(bench.work("web", at(1202)).import, Plan::Want(_)));
    assert!(!again(&mut bench, 2000) && bench.core.reports.blocked.is_empty());
}

/// Whoever cannot use the zone of the ClusterSet knows it by its name alone.
#[tokio::test]
async fn a_service_that_a_template_names_serves_on_when_somebody_takes_its_labels_away() {
    let mut bench = Bench::member();
    bench.core.world.derived = Derived::new("{name}-global".parse().unwrap());
    let mut local = crate::targets::tests::mk_local();
    local.export.ip_families = vec![IpFamily::V4];
    let mut map = Exports::resume(&Map::new());
    map.set(&key("web"), Some(Arc::new(local)), BTreeSet::new(), 1);
    bench.remote(Some(map.map()), at(1));
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let outbox = Outbox::new(metrics.dropped_events());
    let objects = Arc::clone(&bench.objects);
    bench.work("web", at(1)).apply(Part::All, &*objects, &outbox, &metrics).await.unwrap();
    for (label, is_foreign) in [(LABEL_SERVICE_NAME, false), (LABEL_MANAGED_BY, true)] {
        let mut service = objects.services().remove(0);
        service.metadata.labels.as_mut().unwrap().remove(label);
        objects.put_service(service);
        bench.observe(at(2));
        let work = bench.work("web", at(2));
        let Plan::Want(wanted) = &work.import else { panic!("nothing is wanted") };
        assert_eq!((wanted.derived.as_deref(), wanted.obstacle.is_some()), (Some("web-global"), is_foreign), "{label}");
        assert!(work.notes.is_empty(), "{:?}", work.notes);
    }
}

/// An object of somebody else may have the name of a slice, and no slice shows that.
#[test]
fn a_write_that_never_succeeds_is_said_even_if_such_failures_mostly_pass() {
    let mut bench = Bench::member();
    bench.remotes(["web"], at(1));
    let work = bench.work("web", at(1));
    let [foreign, down] = ["it is not ours", "down"].map(str::to_owned);
    for (cause, when) in [(Cause::Conflict(foreign), 5), (Cause::Unavailable(down), 3)] {
        let (error, mut said) = (failed(cause), BTreeSet::new());
        let notes: Vec<_> = (1..10)
            .flat_map(|nth| {
                work.failed(&error, Duration::ZERO, nth, &mut said).into_iter().map(move |note| (nth, note))
            })
            .map(|(nth, note)| (nth, note.regarding.kind.unwrap()))
            .collect();
        assert_eq!(notes, [(when, "Namespace".to_owned())], "there is no import yet");
    }
}

fn failed(cause: Cause) -> Error {
    Error { verb: "apply", kind: "EndpointSlice", object: "shop/web-0".to_owned(), cause }
}

#[test]
fn a_write_that_fails_for_several_reasons_is_said_once() {
    let mut bench = Bench::member();
    bench.remotes(["web"], at(1));
    let (work, mut said) = (bench.work("web", at(1)), BTreeSet::new());
    let mut notes = |cause, failures| work.failed(&failed(cause), Duration::ZERO, failures, &mut said).len();
    let forbidden = || Cause::Forbidden("exceeded quota".to_owned());
    assert_eq!(notes(Cause::Conflict("another version".to_owned()), 3), 0, "it mostly passes");
    assert_eq!((notes(forbidden(), 4), notes(forbidden(), 5)), (1, 0));
}

#[tokio::test]
async fn while_many_names_wait_endpoints_from_other_clusters_come_first() {
    let mut bench = Bench::member();
    bench.remotes(["web"], at(1));
    bench.export("own", &[]);
    bench.observe(at(1));
    let work = bench.work("web", at(1));
    assert_eq!(work.urgent(), Part::Objects, "a new import");
    let own = bench.work("own", at(1));
    assert_eq!(own.urgent(), Part::Nothing, "whoever asks for it here has its Service");

    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let outbox = Outbox::new(metrics.dropped_events());
    let objects = Arc::clone(&bench.objects);
    work.apply(Part::Objects, &*objects, &outbox, &metrics).await.unwrap();
    assert_eq!((objects.services().len(), objects.slices().len()), (1, 1), "the derived Service, and its endpoints");
    let conditions =
        |name| objects.import(&key(name)).map(|import| import.status.map_or(0, |status| status.conditions.len()));
    assert_eq!(conditions("web"), Some(0), "the import, without its status");
    bench.observe(at(1));
    assert_eq!(bench.work("web", at(1)).urgent(), Part::Objects, "it is new until it has conditions");
    own.apply(Part::Nothing, &*objects, &outbox, &metrics).await.unwrap();
    assert!(objects.import(&key("own")).is_none());

    for work in [bench.work("web", at(2)), own] {
        work.apply(Part::All, &*objects, &outbox, &metrics).await.unwrap();
    }
    assert!(conditions("web") > Some(0) && conditions("own") > Some(0));
    bench.observe(at(2));
    // The traffic of an existing import comes before what its export says.
    let mut own = bench.work("own", at(2));
    own.report = Some(Report { uid: "uid".into(), conditions: Vec::new(), notes: Vec::new() });
    assert_eq!(own.urgent(), Part::Import);
    let mut web = bench.work("web", at(2));
    assert_eq!(web.urgent(), Part::All, "nothing is left to say");
    // It takes a second until the import may show another derived Service.
    let Plan::Want(wanted) = &mut web.import else { panic!("nothing is wanted") };
    wanted.former = Some(Former { derived: "former".into(), slices: BTreeMap::new() });
    assert_eq!(web.urgent(), Part::Endpoints);
}
