use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::Protocol;

fn mk_ports(names: &[&str]) -> Arc<[EndpointPort]> {
    let port =
        |name: &&str| EndpointPort { name: (*name).into(), protocol: Protocol::Tcp, port: 80, app_protocol: None };
    names.iter().map(port).collect::<Vec<_>>().into()
}

fn mk_endpoint(n: u32, ports: &Arc<[EndpointPort]>) -> Endpoint {
    Endpoint {
        ipv4: Some(Ipv4Addr::from(0x0a00_0000 + n)),
        ipv6: None,
        ports: ports.clone(),
        conditions: Conditions::READY,
        hostname: None,
        zone: Some("z1".into()),
        node: Some("node-1".into()),
    }
}

fn key() -> ServiceKey {
    ServiceKey::new("ns", "svc")
}

/// The endpoints of another cluster.
fn placement<'a>(source: &'a ClusterId, families: &'a [IpFamily], carried: &'a [Arc<str>]) -> Placement<'a> {
    Placement { source, local: false, families, carried, unnamed_alias: None, proximity: Proximity::Any }
}

fn packed_with(endpoints: &[Endpoint], change: impl Fn(&mut Placement<'_>)) -> Vec<PackedEndpoint> {
    let (source, carried) = (id(), ["http".into()]);
    let mut placement = placement(&source, &[IpFamily::V4], &carried);
    change(&mut placement);
    packable(endpoints, &placement)
}

fn id() -> ClusterId {
    "c1".parse().unwrap()
}

fn packed(numbers: impl IntoIterator<Item = u32>, existing: &[Slice]) -> Vec<Slice> {
    let ports = mk_ports(&["http"]);
    let endpoints: Vec<_> = numbers.into_iter().map(|n| mk_endpoint(n, &ports)).collect();
    let packable = packed_with(&endpoints, |_| {});
    pack(&key(), &"c1".parse().unwrap(), &packable, existing)
}

fn addresses(slices: &[Slice]) -> Vec<IpAddr> {
    let mut all: Vec<_> = slices.iter().flat_map(|slice| slice.endpoints.iter().map(|e| e.address)).collect();
    all.sort();
    all
}

#[test]
fn a_thousand_endpoints_fill_ten_slices() {
    let slices = packed(0..1_000, &[]);
    assert_eq!(slices.len(), 10);
    assert!(slices.iter().all(|slice| slice.endpoints.len() == MAX_ENDPOINTS));
}

#[test]
fn one_change_touches_one_slice() {
    let before = packed(0..250, &[]);
    let after = packed((0..250).filter(|n| *n != 17).chain([900]), &before);
    let changed = before.iter().filter(|slice| !after.contains(slice)).count();
    assert!(changed <= 2, "{changed} slices changed");
    let removed_only = packed((0..250).filter(|n| *n != 17), &before);
    assert_eq!(before.iter().filter(|slice| !removed_only.contains(slice)).count(), 1);
}

#[test]
fn a_changed_condition_updates_the_existing_slice() {
    let before = packed(0..3, &[]);
    let ports = mk_ports(&["http"]);
    let mut endpoints: Vec<_> = (0..3).map(|n| mk_endpoint(n, &ports)).collect();
    endpoints[1].conditions = Conditions { ready: false, serving: true, terminating: true };
    let packable = packed_with(&endpoints, |_| {});
    let after = pack(&key(), &"c1".parse().unwrap(), &packable, &before);
    assert_eq!((after.len(), &after[0].name), (1, &before[0].name));
    assert_eq!(after[0].endpoints[1].conditions, endpoints[1].conditions);
}

#[test]
fn an_endpoint_shows_only_the_ports_that_its_cluster_carries() {
    let endpoints = [mk_endpoint(1, &mk_ports(&["http", "old"])), mk_endpoint(2, &mk_ports(&["old"]))];
    let packed = packed_with(&endpoints, |_| {});
    assert_eq!(packed.len(), 1, "the second one has nothing to offer");
    assert_eq!(packed[0].ports, mk_ports(&["http"]));
}

#[test]
fn nodes_are_named_only_for_local_endpoints() {
    let endpoints = [mk_endpoint(1, &mk_ports(&["http"]))];
    let node = |local| packed_with(&endpoints, |p| p.local = local)[0].endpoint.node.clone();
    assert_eq!((node(true).as_deref(), node(false)), (Some("node-1"), None));
}

#[test]
fn families_and_port_sets_have_slices_of_their_own() {
    let mut dual = mk_endpoint(1, &mk_ports(&["http"]));
    dual.ipv6 = Some("fd00::1".parse().unwrap());
    let other = mk_endpoint(2, &mk_ports(&["grpc", "http"]));
    let (source, carried) = (id(), ["grpc".into(), "http".into()]);
    let packable = packable(&[dual, other], &placement(&source, &[IpFamily::V4, IpFamily::V6], &carried));
    let slices = pack(&key(), &"c1".parse().unwrap(), &packable, &[]);
    assert_eq!(slices.len(), 3);
    let names: BTreeSet<_> = slices.iter().map(|slice| &slice.name).collect();
    assert_eq!(names.len(), 3);
}

#[test]
fn a_headless_service_without_ports_keeps_its_endpoints() {
    let packed = packed_with(&[mk_endpoint(1, &mk_ports(&[]))], |p| p.carried = &[]);
    assert_eq!(packed.len(), 1);
}

#[test]
fn hints_follow_the_traffic_distribution() {
    let ports = mk_ports(&["http"]);
    let plain = mk_endpoint(1, &ports);
    let nowhere = Endpoint { zone: None, node: None, ..mk_endpoint(2, &ports) };
    let odd = Endpoint { zone: Some("no label".into()), ..mk_endpoint(3, &ports) };
    let (zone, unknown, away) = (Some("z1"), Some("unknown.cloudmap-mcs"), Some("c1.clusterset.invalid"));
    for (distribution, local, expected) in [
        (None, true, [(None, None); 3]),
        (Some("Novel"), true, [(None, None); 3]),
        (Some("PreferClose"), false, [(zone, None), (unknown, None), (unknown, None)]),
        (Some("PreferSameZone"), true, [(zone, None), (unknown, None), (unknown, None)]),
        (Some("PreferSameNode"), true, [(zone, Some("node-1")), (unknown, away), (unknown, Some("node-1"))]),
        // kube-proxy uses node hints only if every endpoint has one, and none of them may name a local node.
        (Some("PreferSameNode"), false, [(zone, away), (unknown, away), (unknown, away)]),
    ] {
        let packed = packed_with(&[plain.clone(), nowhere.clone(), odd.clone()], |p| {
            p.local = local;
            p.proximity = Proximity::of(distribution);
        });
        let hints: Vec<_> =
            packed.iter().map(|p| (p.endpoint.hints.zone.as_deref(), p.endpoint.hints.node.as_deref())).collect();
        assert_eq!(hints, expected, "{distribution:?} {local}");
    }
}

#[test]
fn an_unnamed_port_is_also_listed_under_the_derived_services_name_for_it() {
    let (source, carried) = (id(), ["".into()]);
    let placement = Placement { unnamed_alias: Some("unnamed"), ..placement(&source, &[IpFamily::V4], &carried) };
    let packed = packable(&[mk_endpoint(1, &mk_ports(&[""]))], &placement);
    assert_eq!(packed[0].ports, mk_ports(&["", "unnamed"]));
}

/// Two instances on one host, as EndpointSlices of others list them. The API server takes no slice with two ports of one
/// name.
#[test]
fn a_port_with_several_numbers_is_in_as_many_slices() {
    let port = |name: &str, port| EndpointPort { name: name.into(), protocol: Protocol::Tcp, port, app_protocol: None };
    let ports: Arc<[EndpointPort]> =
        [port("", 81), port("", 82), port("admin", 90), port("old", 71), port("old", 72)].into();
    let (source, carried) = (id(), ["".into(), "admin".into()]);
    let placement = Placement { unnamed_alias: Some("unnamed"), ..placement(&source, &[IpFamily::V4], &carried) };
    let packed = packable(&[mk_endpoint(1, &ports)], &placement);
    let slices = pack(&key(), &source, &packed, &[]);
    let mut shown: Vec<Vec<_>> =
        slices.iter().map(|slice| slice.ports.iter().map(|port| (&*port.name, port.port)).collect()).collect();
    shown.sort();
    assert_eq!(shown, [vec![("", 81), ("admin", 90), ("unnamed", 81)], vec![("", 82), ("unnamed", 82)]]);
    assert!(slices.iter().all(|slice| slice.endpoints.len() == 1));
    assert_eq!(pack(&key(), &source, &packed, &slices), slices, "they stay as they are");
}

/// The pod network may give a pod the address of one that has not gone yet.
#[test]
fn of_two_endpoints_with_one_address_the_one_that_takes_traffic_counts() {
    let ports = mk_ports(&["http"]);
    let ends = Conditions { ready: false, serving: true, terminating: true };
    let former = Endpoint { conditions: ends, zone: Some("z2".into()), ..mk_endpoint(1, &ports) };
    for endpoints in [[former.clone(), mk_endpoint(1, &ports)], [mk_endpoint(1, &ports), former]] {
        let slices = pack(&key(), &id(), &packed_with(&endpoints, |_| {}), &[]);
        let said: Vec<_> =
            slices.iter().flat_map(|slice| &slice.endpoints).map(|e| (e.conditions, e.zone.as_deref())).collect();
        assert_eq!(said, [(Conditions::READY, Some("z1"))]);
    }
}

#[test]
fn the_name_of_a_slice_says_to_which_service_it_belongs() {
    for name in ["svc", "svc-0123456789ab-1", "a"] {
        let endpoint = packed_with(&[mk_endpoint(1, &mk_ports(&["http"]))], |_| {});
        let slices = pack(&ServiceKey::new("ns", name), &id(), &endpoint, &[]);
        assert_eq!(service_of_slice(&slices[0].name), Some(name));
    }
    for other in ["svc", "svc-1", "svc-0123456789ab", "svc-0123456789xy-1", "-0123456789ab-1", "svc-0123456789ab-x"] {
        assert_eq!(service_of_slice(other), None, "{other}");
    }
}

proptest! {
    #[test]
    fn packing_is_complete_bounded_stable_and_idempotent(
        first in prop::collection::btree_set(0..400u32, 0..350),
        second in prop::collection::btree_set(0..400u32, 0..350),
    ) {
        let before = packed(first, &[]);
        let after = packed(second.iter().copied(), &before);
        prop_assert_eq!(addresses(&after), addresses(&packed(second.iter().copied(), &[])));
        prop_assert!(after.iter().all(|slice| (1..=MAX_ENDPOINTS).contains(&slice.endpoints.len())));
        prop_assert_eq!(&packed(second, &after), &after);
        for slice in &after {
            if let Some(old) = before.iter().find(|old| old.name == slice.name) {
                for endpoint in &old.endpoints {
                    let elsewhere = after.iter().any(|s| s.name != slice.name && s.endpoints.contains(endpoint));
                    prop_assert!(!elsewhere, "an endpoint stays in its slice");
                }
            }
        }
    }
}
