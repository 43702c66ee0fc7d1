use super::*;
use model::{Conditions, Endpoint, EndpointPort, Export, Protocol, ServicePort, fixtures};

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("ns", name)
}

fn target(service: &str) -> Target {
    Target { namespace: "ns".into(), service: service.into() }
}

fn mk_local(endpoints: u8, target: Option<Target>) -> Arc<Exported> {
    Arc::new(Exported {
        export: Export { target, ..fixtures::mk_export(1) },
        endpoints: (0..endpoints).map(|n| fixtures::mk_endpoint([10, 0, 0, n])).collect(),
    })
}

/// Sets an export and the target that it names.
fn set(exports: &mut Exports, name: &str, local: Option<Arc<Exported>>, now: i64) -> BTreeSet<ClaimOwner> {
    let target = local.as_ref().and_then(|local| local.export.target.clone());
    exports.set(&key(name), local, target.into_iter().collect(), now)
}

/// What is known beside the map, as whoever reads the map knows it.
fn assert_as_in_the_map(exports: &Exports) {
    let known = |exports: &Exports| {
        let mut places = exports.places.clone();
        for places in places.values_mut() {
            places.sort_by_key(|(index, _)| *index);
        }
        (places, exports.bytes)
    };
    assert_eq!(known(exports), known(&Exports::resume(&exports.map())));
}

#[test]
fn a_reader_decodes_what_was_set() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(40, None)), 7);
    let read = records::decode_service(&exports.map(), &key("a"), &mut Vec::new()).unwrap();
    assert_eq!(read, *mk_local(40, None));
    set(&mut exports, "a", None, 8);
    assert_eq!(*exports.map(), Map::new());
}

#[test]
fn one_changed_endpoint_changes_one_record_even_after_a_restart() {
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
    let shared = |key: &Arc<str>, value: &Value| before.get(key).is_some_and(|was| Arc::ptr_eq(was, value));
    assert_eq!(after.iter().filter(|&(key, value)| !shared(key, value)).count(), 1, "the others are in memory once");
}

/// A Service with `ports` ports, whose names have `width` characters, and pods that serve all of them.
fn mk_many_ports(ports: u16, width: usize, endpoints: u8) -> Arc<Exported> {
    let name = |n: u16| Arc::<str>::from(format!("{n:p>width$}"));
    let of_service = |n| ServicePort { name: name(n), protocol: Protocol::Tcp, port: 1000 + n, app_protocol: None };
    let of_pod = |n| EndpointPort { name: name(n), protocol: Protocol::Tcp, port: 40_000 + n, app_protocol: None };
    let mut served: Vec<_> = (0..ports).map(of_pod).collect();
    served.sort();
    let served: Arc<[EndpointPort]> = served.into();
    let local = (*mk_local(endpoints, None)).clone();
    let endpoints = local.endpoints.into_iter().map(|endpoint| Endpoint { ports: served.clone(), ..endpoint });
    let export = Export { ports: (0..ports).map(of_service).collect(), ..local.export };
    Arc::new(Exported { endpoints: endpoints.collect(), export })
}

#[test]
fn endpoints_of_a_service_with_many_ports_are_kept_up_to_date() {
    // The names are as long as the record has room for.
    let fits =
        |ports, width: &usize| records::encode_export(&key("a"), &mk_many_ports(ports, *width, 0).export).is_ok();
    for ports in [1, 60, 85, 100] {
        let width = (3..=63).rev().find(|width| fits(ports, width)).unwrap();
        let mut exports = Exports::resume(&Map::new());
        for endpoints in [40, 3, 0, 20] {
            let local = mk_many_ports(ports, width, endpoints);
            set(&mut exports, "a", Some(local.clone()), 7);
            assert_eq!(exports.refusal(&key("a")), None, "{ports} ports of {width}");
            assert_eq!(exports.said(&key("a")).unwrap(), *local, "{ports} ports of {width}");
            assert_as_in_the_map(&exports);
        }
    }
}

#[test]
fn an_endpoint_that_can_never_fit_delays_no_other_and_no_removal() {
    let mut exports = Exports::resume(&Map::new());
    let with_large = |endpoints| {
        let mut local = (*mk_many_ports(1, 4, endpoints)).clone();
        let port = |n| EndpointPort { port: n, ..local.endpoints[0].ports[0].clone() };
        // One address in many EndpointSlices, each with another number for the port.
        local.endpoints[0].ports = (1..=2_000).map(port).collect();
        local
    };
    for endpoints in [40, 2, 30] {
        let local = with_large(endpoints);
        set(&mut exports, "a", Some(Arc::new(local.clone())), 7);
        let text = exports.refusal(&key("a")).unwrap().to_string();
        assert!(text.contains("EndpointSlices list one address") && !text.contains("labels"), "{text}");
        assert_eq!(exports.said(&key("a")).unwrap().endpoints, local.endpoints[1..]);
        assert_as_in_the_map(&exports);
    }
    set(&mut exports, "a", Some(mk_many_ports(1, 4, 30)), 7);
    assert_eq!(exports.refusal(&key("a")), None);
    set(&mut exports, "a", None, 8);
    assert_eq!(*exports.map(), Map::new());
}

/// Such as two pods on the host network of one node.
#[test]
fn an_address_that_several_endpoints_have_keeps_the_ports_of_all_that_are_ready() {
    let mut local = (*mk_many_ports(1, 4, 1)).clone();
    let one = local.endpoints[0].clone();
    let not_ready = Conditions { ready: false, serving: false, terminating: false };
    let said = [(8083, not_ready), (8082, Conditions::READY), (8081, Conditions::READY), (8080, not_ready)];
    let endpoints = said.map(|(port, conditions)| Endpoint {
        ports: [EndpointPort { port, ..one.ports[0].clone() }].into(),
        conditions,
        ..one.clone()
    });
    local.endpoints = endpoints.into();
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(Arc::new(local)), 7);
    let said = exports.said(&key("a")).unwrap().endpoints;
    let numbers: Vec<_> = said.iter().flat_map(|endpoint| endpoint.ports.iter().map(|port| port.port)).collect();
    assert_eq!((said.len(), numbers), (1, vec![8081, 8082]));
}

/// They come from a leader with another definition of a chunk, or are damaged.
#[test]
fn unreadable_chunks_are_removed_with_the_next_change() {
    let mut before = Exports::resume(&Map::new());
    set(&mut before, "a", Some(mk_local(40, None)), 7);
    let mut map = (*before.map()).clone();
    map.insert(records::chunk_key(&key("a"), 1), Value::from([0xff, 0xff]));
    map.insert(records::chunk_key(&key("a"), 7), Value::from([0xff, 0xff]));
    let mut exports = Exports::resume(&map);
    set(&mut exports, "a", Some(mk_local(3, None)), 8);
    assert_eq!(exports.said(&key("a")).unwrap(), *mk_local(3, None));
    assert_eq!(exports.map().len(), 2);
    let mut exports = Exports::resume(&map);
    set(&mut exports, "a", None, 8);
    assert_eq!(*exports.map(), Map::new());
}

#[test]
fn an_export_that_is_too_large_leaves_the_last_good_record() {
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
    assert!(exports.refusal(&key("a")).unwrap().to_string().contains("shorter labels"));
    // This is not the endpoints' fault: nobody should be sent to those that are gone.
    for endpoints in [40, 2] {
        set(&mut exports, "a", large(endpoints), 9);
        let read = records::decode_service(&exports.map(), &key("a"), &mut Vec::new()).unwrap();
        assert_eq!(read, *mk_local(endpoints, None));
        assert!(exports.refusal(&key("a")).is_some());
        assert_as_in_the_map(&exports);
    }
    set(&mut exports, "a", Some(mk_local(1, None)), 10);
    assert!(exports.refusal(&key("a")).is_none());
    // Without a record that fits, endpoints have nothing to belong to.
    set(&mut exports, "b", large(3), 11);
    assert_eq!(exports.map(), good);
}

#[test]
fn a_claim_keeps_its_date_across_restarts_and_retires_until_its_instances_are_gone() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(1, Some(target("t")))), 7);
    assert_eq!(exports.registrations()[&target("t")].claimed, 7);

    let mut exports = Exports::resume(&exports.map());
    set(&mut exports, "a", Some(mk_local(2, Some(target("t")))), 9);
    assert_eq!(exports.registrations()[&target("t")].claimed, 7);

    let mut exports = Exports::resume(&exports.map());
    set(&mut exports, "a", None, 10);
    let registration = &exports.registrations()[&target("t")];
    assert!(registration.is_retiring(), "a leader that knows only the ledger retires it, too");
    assert!(exports.map().contains_key(&records::registration_key(&target("t"))));
    exports.retired(&target("t"));
    assert!(exports.map().is_empty());
}

#[test]
fn exports_that_come_and_go_leave_nothing_behind() {
    let mut exports = Exports::resume(&Map::new());
    for round in 0..50 {
        let [web, api, large] = ["web", "api", "large"].map(|name| format!("{name}-{round}"));
        let t = target(&format!("t-{round}"));
        set(&mut exports, &web, Some(mk_local(40, Some(t.clone()))), 7);
        // It waits for the same target.
        set(&mut exports, &api, Some(mk_local(1, Some(t.clone()))), 8);
        set(&mut exports, &large, Some(mk_many_ports(100, 63, 3)), 9);
        for name in [&web, &api, &large] {
            set(&mut exports, name, None, 10);
        }
        exports.retired(&t);
        let Exports { map, bytes, places, capacity: _, registrations, refused, retiring, retired: _, changed: _ } =
            &exports;
        assert_eq!((map.len(), *bytes, refused.len(), registrations.len(), retiring.len()), (0, 0, 0, 0, 0));
        assert_eq!(places.len(), 0);
        assert_eq!(exports.take_retired().iter().map(|(_, begins)| *begins).collect::<Vec<_>>(), [true, false]);
    }
}

#[test]
fn an_active_target_is_never_dropped_as_retired() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(1, Some(target("t")))), 7);
    exports.retired(&target("t"));
    assert!(exports.registrations().contains_key(&target("t")));
}

#[test]
fn the_older_of_two_claims_holds_until_it_is_released() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(1, Some(target("t")))), 7);
    set(&mut exports, "b", Some(mk_local(1, Some(target("t")))), 8);
    assert_eq!(&*exports.registrations()[&target("t")].owner.name, "a");
    let freed = set(&mut exports, "a", None, 9);
    assert_eq!(freed, [ClaimOwner::export(&key("b"))].into());
    set(&mut exports, "b", Some(mk_local(1, Some(target("t")))), 10);
    let held = &exports.registrations()[&target("t")];
    assert_eq!((&*held.owner.name, held.claimed, held.is_retiring()), ("b", 8, false));
}

#[test]
fn a_new_target_retires_the_first() {
    let mut exports = Exports::resume(&Map::new());
    set(&mut exports, "a", Some(mk_local(1, Some(target("t")))), 7);
    set(&mut exports, "a", Some(mk_local(1, Some(target("u")))), 8);
    assert!(exports.registrations()[&target("t")].is_retiring());
    assert!(!exports.registrations()[&target("u")].is_retiring());
}

/// A cluster whose namespaces together want more than the ledger takes.
#[test]
fn a_full_ledger_takes_nothing_new_and_publishes_every_removal_and_every_change() {
    let records = 1_280;
    let mut exports = Exports::resume(&Map::new()).within(Usage { records, ..Usage::UNLIMITED });
    let web = |n: usize| format!("web-{n:04}");
    let exported = |exports: &Exports, n: usize| exports.said(&key(&web(n))).map(|said| said.endpoints.len());
    let mut n = 0;
    while exports.room().records > 0 {
        set(&mut exports, &web(n), Some(mk_local(1, None)), 7);
        n += 1;
    }
    // Those that are there still grow, into the half of the reserve that is theirs.
    for grows in 0..n {
        set(&mut exports, &web(grows), Some(mk_local(200, None)), 7);
    }
    let shortened = exports.shortened().count();
    assert!(shortened > 0 && shortened < n, "{shortened} of {n}");
    assert_eq!(exports.map().len(), records - records / 64);
    assert_as_in_the_map(&exports);
    let text = exports.refusal(&key(&web(n - 1))).unwrap().to_string();
    assert!(text.contains("no room") && text.contains("fewer"), "{text}");
    assert!((0..n).all(|n| exported(&exports, n) >= Some(1)), "no name is empty");
    // Whoever moves, moves.
    let mut moved = (*mk_local(200, None)).clone();
    moved.endpoints = (0..200).map(|n| fixtures::mk_endpoint([10, 9, 9, n])).collect();
    set(&mut exports, &web(n - 1), Some(Arc::new(moved)), 8);
    let said = exports.said(&key(&web(n - 1))).unwrap().endpoints;
    assert!(!said.is_empty() && said.iter().all(|endpoint| endpoint.ipv4.unwrap().octets()[1] == 9), "{said:?}");
    // A claim is not kept out, and what goes makes room.
    set(&mut exports, "last", Some(mk_local(0, Some(target("last")))), 8);
    assert!(exports.registrations().contains_key(&target("last")));
    assert!(records::registration(&exports.map(), &target("last")).is_some());
    let before = exports.map().len();
    set(&mut exports, &web(0), None, 9);
    assert!(exports.map().len() < before);
    set(&mut exports, &web(n - 1), Some(mk_local(200, None)), 9);
    assert_eq!(exports.refusal(&key(&web(n - 1))), None);
    assert_as_in_the_map(&exports);
}
