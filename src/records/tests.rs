//! Properties of records.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use proptest::prelude::*;

use super::{
    Catalog,
    chunks::{self, Chunk, MAX_ENDPOINTS},
    decode_registration, encode_chunk, encode_export, encode_registration, show,
};
use ledger::{MAX_VALUE, Map, Value, claims::Claim};
use model::{
    ClaimOwner, ClaimState, Conditions, Endpoint, EndpointPort, Export, Exported, IpFamily, Protocol, Registration,
    ServiceKey, ServicePort, ServiceType, SessionAffinity, Target, TrafficPolicy, fixtures,
};

fn endpoints() -> impl Strategy<Value = Vec<Endpoint>> {
    let endpoint = (0u8..60, any::<[bool; 5]>(), 0u8..3, 0u16..3).prop_map(|(host, flags, place, ports)| Endpoint {
        ipv4: Some(Ipv4Addr::new(10, 0, 0, host)),
        ipv6: flags[0].then(|| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host))),
        ports: (0..ports)
            .map(|port| EndpointPort {
                name: format!("p{port}").into(),
                protocol: Protocol::Udp,
                port: 8000 + port,
                app_protocol: (port == 1).then(|| "h2c".into()),
            })
            .collect(),
        conditions: Conditions { ready: flags[1], serving: flags[2], terminating: flags[3] },
        hostname: flags[4].then(|| format!("pod-{host}").into()),
        zone: (place > 0).then(|| format!("zone-{place}").into()),
        node: (place > 1).then(|| format!("node-{host}").into()),
    });
    prop::collection::vec(endpoint, 0..70).prop_map(|endpoints| {
        let distinct: BTreeMap<_, _> =
            endpoints.into_iter().map(|endpoint| ((endpoint.ipv4, endpoint.ipv6), endpoint)).collect();
        distinct.into_values().collect()
    })
}

fn export() -> Export {
    Export {
        uid: "3f0c".into(),
        created: 1_700_000_000,
        service_type: ServiceType::Headless,
        ports: vec![
            ServicePort { name: "http".into(), protocol: Protocol::Sctp, port: 80, app_protocol: Some("h2c".into()) },
            ServicePort { name: "p1".into(), protocol: Protocol::Udp, port: 81, app_protocol: Some("h2c".into()) },
            ServicePort { name: "p0".into(), protocol: Protocol::Udp, port: 80, app_protocol: None },
        ],
        session_affinity: SessionAffinity::ClientIp { timeout: Some(10_800) },
        internal_traffic_policy: TrafficPolicy::Local,
        traffic_distribution: Some("PreferClose".into()),
        ip_families: vec![IpFamily::V6, IpFamily::V4],
        labels: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
        annotations: BTreeMap::from([("c".to_owned(), String::new())]),
        publish_not_ready_addresses: true,
        target: Some(Target { namespace: "ns".into(), service: "web".into() }),
        cluster_selection: Some("local-first".into()),
        drain: Some("100-70".parse().unwrap()),
    }
}

/// With a hundred clusters, what their records repeat would take more memory than what they say.
#[test]
fn what_many_records_repeat_is_in_memory_once() {
    let endpoint = Endpoint {
        ports: [EndpointPort { name: "p0".into(), protocol: Protocol::Udp, port: 8_000, app_protocol: None }].into(),
        zone: Some("zone-1".into()),
        node: Some("node-1".into()),
        ..fixtures::mk_endpoint([10, 0, 0, 1])
    };
    let chunk = Chunk { index: 0, endpoints: vec![endpoint] };
    let mut map = Map::new();
    for name in ["api", "web"] {
        let service = ServiceKey::new("ns", name);
        map.extend([encode_export(&service, &export()).unwrap()]);
        map.extend([encode_chunk(&service, &chunk, &export().ports).unwrap()]);
    }
    let exports: Vec<_> = Catalog::decode(&map).exports.into_iter().collect();
    let [(one, api), (other, web)] = exports.as_slice() else { panic!("{exports:?}") };
    assert!(Arc::ptr_eq(&one.namespace, &other.namespace));
    let target = |exported: &Exported| exported.export.target.clone().unwrap();
    assert!(Arc::ptr_eq(&target(api).service, &target(web).service));
    assert!(Arc::ptr_eq(&api.export.ports[0].name, &web.export.ports[0].name));
    let (api, web) = (&api.endpoints[0], &web.endpoints[0]);
    assert!(Arc::ptr_eq(&api.ports, &web.ports));
    assert!(api.zone.as_ref().zip(web.zone.as_ref()).is_some_and(|(one, other)| Arc::ptr_eq(one, other)));
    assert!(api.node.as_ref().zip(web.node.as_ref()).is_some_and(|(one, other)| Arc::ptr_eq(one, other)));
}

proptest! {
    #[test]
    fn endpoints_survive_their_chunks(endpoints in endpoints()) {
        let service = ServiceKey::new("ns", "web");
        let chunks = chunks::assign(&[], &endpoints);
        let mut map = Map::new();
        map.extend([encode_export(&service, &export()).unwrap()]);
        map.extend(chunks.iter().map(|chunk| encode_chunk(&service, chunk, &export().ports).unwrap()));
        let catalog = Catalog::decode(&map);
        prop_assert!(catalog.problems.is_empty());
        let mut sorted = endpoints;
        sorted.sort_unstable();
        prop_assert_eq!(&catalog.exports[&service].endpoints, &sorted);
        prop_assert_eq!(&catalog.exports[&service].export, &export());
        prop_assert_eq!(super::places(&map, &service), chunks::places(&chunks));
    }

    /// Names of ports have at most 63 characters, a slice at most 100 ports, a node's name 253 characters, labels 63.
    #[test]
    fn where_an_export_fits_every_endpoint_that_kubernetes_admits_fits(
        count in 0u16..=100, width in 3usize..=63, sets in 1u16..4, pods in 1u16..50, gone in any::<prop::sample::Index>(),
    ) {
        let service = ServiceKey::new("ns", "web");
        let name = |n: u16| Arc::<str>::from(format!("{n:p>width$}"));
        let port = |n| ServicePort { name: name(n), protocol: Protocol::Sctp, port: u16::MAX - n, app_protocol: None };
        let export = Export { ports: (0..count).map(port).collect(), ..export() };
        let mut map = Map::new();
        match encode_export(&service, &export) {
            Ok(pair) => map.extend([pair]),
            Err(_) => return Ok(()),
        }
        let endpoint = |pod: u16| {
            let port = |n: u16| EndpointPort {
                name: name(n),
                protocol: Protocol::Sctp,
                port: u16::MAX - n - 1_000 * (pod % sets),
                app_protocol: None,
            };
            let mut ports: Vec<_> = (0..count).map(port).collect();
            ports.sort();
            Endpoint {
                ipv4: Some(Ipv4Addr::from_bits(u32::from(pod))),
                ipv6: Some(Ipv6Addr::from_bits(u128::from(pod))),
                ports: ports.into(),
                conditions: Conditions { ready: false, serving: false, terminating: true },
                hostname: Some(format!("{pod:h>63}").into()),
                zone: Some(format!("{pod:z>63}").into()),
                node: Some(format!("{pod:n>253}").into()),
            }
        };
        let mut endpoints: Vec<_> = (0..pods).map(endpoint).collect();
        let first = chunks::assign(&[], &endpoints);
        for chunk in &first {
            map.extend([encode_chunk(&service, chunk, &export.ports).unwrap()]);
        }
        prop_assert_eq!(&Catalog::decode(&map).exports[&service].endpoints, &endpoints);
        // One that goes changes its own chunk alone.
        endpoints.remove(gone.index(endpoints.len()));
        let second = chunks::assign(&chunks::places(&first), &endpoints);
        prop_assert!(second.len() >= first.len() - 1);
        prop_assert!(second.iter().filter(|chunk| !first.contains(chunk)).count() <= 1);
    }

    #[test]
    fn an_endpoint_stays_in_its_chunk(before in endpoints(), after in endpoints()) {
        let place = |chunks: &[Chunk]| -> BTreeMap<_, _> {
            chunks::places(chunks).iter().map(|(index, address)| (*address, *index)).collect()
        };
        let first = chunks::assign(&[], &before);
        let second = chunks::assign(&chunks::places(&first), &after);
        let (old, new) = (place(&first), place(&second));
        prop_assert_eq!(new.len(), after.len());
        prop_assert!(second.iter().all(|chunk| chunk.endpoints.len() <= MAX_ENDPOINTS));
        if first.len() <= 4 {
            prop_assert!(new.iter().all(|(address, index)| old.get(address).is_none_or(|old| old == index)));
        }
    }
}

#[test]
fn registrations_round_trip_and_are_found_by_their_target() {
    for state in [ClaimState::Serves, ClaimState::Empty, ClaimState::Unable, ClaimState::Retiring] {
        let registration = Registration {
            target: Target { namespace: "ns".into(), service: "web".into() },
            owner: ClaimOwner { kind: "ServiceExport".into(), namespace: "ns".into(), name: "web".into() },
            claimed: 1_700_000_000,
            state,
        };
        let map = Map::from([encode_registration(&registration).unwrap()]);
        assert_eq!(Catalog::decode(&map).registrations[&registration.target], registration);
        // Who knows no other states takes a claim of somebody unable for none.
        let retires = Claim::read(&encode_registration(&registration).unwrap().1).unwrap().retiring;
        assert_eq!(retires, matches!(state, ClaimState::Unable | ClaimState::Retiring), "{state:?}");
    }
}

#[test]
fn a_record_that_is_too_large_names_its_key() {
    let mut large = export();
    large.annotations.insert("note".to_owned(), "x".repeat(MAX_VALUE));
    let error = encode_export(&ServiceKey::new("ns", "web"), &large).unwrap_err();
    assert!(error.to_string().contains("ns/web"), "{error}");
}

#[test]
fn one_unreadable_record_costs_nothing_else() {
    let mut map = Map::from([encode_export(&ServiceKey::new("ns", "good"), &export()).unwrap()]);
    map.insert("ns/bad".into(), Value::from([0xff, 0xff]));
    map.insert("?future".into(), Value::from([]));
    let (catalog, problems) = show::decode(&map);
    assert_eq!(catalog.exports.len(), 1);
    let named: BTreeSet<_> = catalog.problems.iter().map(|problem| &*problem.key).collect();
    assert_eq!(named, BTreeSet::from(["ns/bad", "?future"]));
    assert_eq!(problems, ["?future: unknown kind of record", "ns/bad: unreadable record"]);
}

#[test]
fn values_that_nobody_writes_are_not_read() {
    let service = ServiceKey::new("ns", "web");
    let endpoint = |host: u8| Endpoint {
        ipv4: Some(Ipv4Addr::new(10, 0, 0, host)),
        ipv6: None,
        ports: [].into(),
        conditions: Conditions { ready: true, serving: true, terminating: false },
        hostname: None,
        zone: None,
        node: None,
    };
    let read = |endpoints: u8| {
        let chunk = Chunk { index: 0, endpoints: (0..endpoints).map(endpoint).collect() };
        let map = Map::from([encode_chunk(&service, &chunk, &[]).unwrap()]);
        super::places(&map, &service).len()
    };
    assert_eq!((read(16), read(17)), (16, 0));
    let mut value = encode_registration(&Registration {
        target: Target { namespace: "ns".into(), service: "web".into() },
        owner: ClaimOwner { kind: "Service".into(), namespace: "ns".into(), name: "web".into() },
        claimed: 0,
        state: ClaimState::Serves,
    });
    let (_, bytes) = value.as_mut().unwrap();
    assert!(decode_registration(bytes).is_some());
    // A field that nobody knows: it would be ignored.
    let unknown = [vec![0x7a, 0xb8, 0x17], vec![0; 3_000]].concat();
    assert!(decode_registration(&[bytes, &unknown[..]].concat()).is_none());
}
