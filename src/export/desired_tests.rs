use super::*;
use crate::model::{Export, fixtures};

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("ns", name)
}

fn target(service: &str) -> Target {
    Target { namespace: "ns".into(), service: service.into() }
}

fn mk_local(endpoints: u8, target: Option<Target>) -> Arc<Local> {
    Arc::new(Local {
        export: Export { target, ..fixtures::mk_export(1) },
        endpoints: (0..endpoints).map(|n| fixtures::mk_endpoint([10, 0, 0, n])).collect(),
    })
}

/// Sets an export, with the target that it names.
fn set(exports: &mut Exports, name: &str, local: Option<Arc<Local>>, now: i64) -> BTreeSet<ClaimOwner> {
    let target = local.as_ref().and_then(|local| local.export.target.clone());
    exports.set(&key(name), local, target.into_iter().collect(), now)
}

#[test]
fn what_is_set_is_what_a_reader_decodes() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(40, None)), 7);
    let read = records::decode_service(&exports.map(), &key("a"), &mut Vec::new()).unwrap();
    assert_eq!(read, *mk_local(40, None));
    set(&mut exports, "a", None, 8);
    assert_eq!(*exports.map(), Map::new());
}

#[test]
fn one_endpoint_changes_one_record_also_after_a_restart() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(40, None)), 7);
    let before = exports.map();
    let mut exports = Exports::resume(&before);
    let mut local = (*mk_local(40, None)).clone();
    local.endpoints.remove(3);
    set(&mut exports, "a", Some(Arc::new(local)), 8);
    let after = exports.map();
    let changed = before.iter().filter(|(key, value)| after.get(*key) != Some(value)).count();
    assert_eq!((changed, after.len()), (1, before.len()));
}

#[test]
fn what_is_too_large_leaves_the_last_good_record() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(1, None)), 7);
    let good = exports.map();
    let large = |endpoints| {
        let mut large = (*mk_local(endpoints, None)).clone();
        large.export.labels = (0..200).map(|n| (format!("label-{n}"), "x".repeat(30))).collect();
        Some(Arc::new(large))
    };
    set(&mut exports, "a", large(1), 8);
    assert_eq!(exports.map(), good);
    assert!(exports.refusal(&key("a")).is_some());
    // Endpoints are not to blame: nobody is sent to those that are gone.
    for endpoints in [40, 2] {
        set(&mut exports, "a", large(endpoints), 9);
        let read = records::decode_service(&exports.map(), &key("a"), &mut Vec::new()).unwrap();
        assert_eq!(read, *mk_local(endpoints, None));
        assert!(exports.refusal(&key("a")).is_some());
    }
    set(&mut exports, "a", Some(mk_local(1, None)), 10);
    assert!(exports.refusal(&key("a")).is_none());
    // Without a record that fits there is nothing to hang endpoints on.
    set(&mut exports, "b", large(3), 11);
    assert_eq!(exports.map(), good);
}

#[test]
fn a_claim_keeps_its_date_over_restarts_and_retires_until_its_instances_are_gone() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(1, Some(target("t")))), 7);
    assert_eq!(exports.registrations()[&target("t")].claimed, 7);

    let mut exports = Exports::resume(&exports.map());
    set(&mut exports, "a", Some(mk_local(2, Some(target("t")))), 9);
    assert_eq!(exports.registrations()[&target("t")].claimed, 7);

    let mut exports = Exports::resume(&exports.map());
    set(&mut exports, "a", None, 10);
    let registration = &exports.registrations()[&target("t")];
    assert!(registration.retiring, "a leader that knows only the ledger retires it, too");
    assert!(exports.map().contains_key(&records::registration_key(&target("t"))));
    exports.retired(&target("t"));
    assert!(exports.map().is_empty());
}

#[test]
fn an_active_target_is_never_dropped_as_retired() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(1, Some(target("t")))), 7);
    exports.retired(&target("t"));
    assert!(exports.registrations().contains_key(&target("t")));
}

#[test]
fn the_older_claim_of_two_names_holds_until_it_is_released() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(1, Some(target("t")))), 7);
    set(&mut exports, "b", Some(mk_local(1, Some(target("t")))), 8);
    assert_eq!(&*exports.registrations()[&target("t")].owner.name, "a");
    let freed = set(&mut exports, "a", None, 9);
    assert_eq!(freed, [ClaimOwner::export(&key("b"))].into());
    set(&mut exports, "b", Some(mk_local(1, Some(target("t")))), 10);
    let held = &exports.registrations()[&target("t")];
    assert_eq!((&*held.owner.name, held.claimed, held.retiring), ("b", 8, false));
}

#[test]
fn another_target_retires_the_first() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(1, Some(target("t")))), 7);
    set(&mut exports, "a", Some(mk_local(1, Some(target("u")))), 8);
    assert!(exports.registrations()[&target("t")].retiring);
    assert!(!exports.registrations()[&target("u")].retiring);
}
