//! Properties of codec, records and tree.

mod forged;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use proptest::prelude::*;

use super::{
    Map, Value,
    chunks::{self, Chunk, MAX_ENDPOINTS},
    codec,
    hash::{Hashes, StateHash, Summary},
    head::{Change, Delta, Head, Presence, Root},
    limits::Limits,
    page::{PageId, StoredPage},
    records::{self, Catalog},
    runs::{self, Layout, Runs},
    tree::{self, Plan},
    verify::{self, Cache},
};
use crate::record::{Position, Version};
use cloudmap::Instance;
use model::{
    ClaimOwner, ClaimState, Conditions, Endpoint, EndpointPort, Export, Exported, IpFamily, Protocol, Registration,
    ServiceKey, ServicePort, ServiceType, SessionAffinity, Target, TrafficPolicy, fixtures,
};

fn maps() -> impl Strategy<Value = Map> {
    let pair = (0u32..300, prop::collection::vec(any::<u8>(), 0..60));
    prop::collection::vec(pair, 0..120).prop_map(|pairs| {
        pairs.into_iter().map(|(key, value)| (Arc::from(format!("ns/{key}")), Value::from(value))).collect()
    })
}

fn small() -> Limits {
    Limits { page_bytes: 300, index_entries: 5, live_pages: 12, ..Limits::default() }
}

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
    }
}

fn stored(plan: &Plan) -> BTreeMap<PageId, Arc<StoredPage>> {
    plan.pages.iter().map(|(_, page)| (page.id.clone(), page.clone())).collect()
}

fn root(tree: &tree::Tree, shards: u32) -> Root {
    Layout { shards, tree: Arc::new(tree.clone()), base: Map::new(), runs: Runs::default() }.root()
}

fn changes(before: &Map, after: &Map) -> Vec<Change> {
    before.difference(after).map(|(key, _, value)| (key.clone(), value.cloned())).collect()
}

fn fits_cloud_map(instance: &Instance) -> bool {
    let total: usize = instance.attributes.iter().map(|(key, value)| key.len() + value.len()).sum();
    instance.id.len() <= 64
        && instance.attributes.len() <= 30
        && total <= 5_000
        && instance.attributes.values().all(|value| value.len() <= 1_024)
}

proptest! {
    // Up to thirty states a case, each read back with all pages so far.
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Flushes, and trees that take minutes during which other flushes come: whoever reads on, and whoever reads for the first
    /// time, reads the state that was written last.
    #[test]
    fn appended_changes_read_back(states in prop::collection::vec((maps(), any::<bool>()), 1..30)) {
        let limits = small();
        let (mut layout, mut base, mut cache) = (Layout::empty(2), Map::new(), Cache::default());
        let (mut pages, mut tree) = (BTreeMap::new(), None);
        for (flush, (state, compacts)) in states.into_iter().enumerate() {
            let id: Arc<str> = format!("1-{flush}-a").into();
            let packed = runs::pack(&changes(&base, &state), &limits).unwrap();
            prop_assert!(packed.iter().all(|page| page.len() <= limits.page_bytes));
            let appended = layout.runs.plan(packed, &id, |_| None, || Some(flush as u32 % 2), &limits).unwrap();
            pages.extend(appended.pages.iter().map(|(_, page)| (page.id.clone(), page.clone())));
            if let Some((tree, map, mark)) = tree.take().filter(|_| compacts) {
                (layout.tree, layout.base) = (tree, map);
                layout.runs.drop_until(mark);
            }
            layout.runs.append(appended);
            base = state;
            for cache in [Cache::default(), cache.clone()] {
                let read = verify::verify(&layout.root(), &cache, &pages).unwrap();
                prop_assert_eq!(&read.map, &base);
                prop_assert_eq!(read.layout.root(), layout.root());
                prop_assert_eq!(read.layout.pages().collect::<BTreeSet<_>>(), layout.pages().collect());
                prop_assert_eq!(verify::reachable(&layout.root(), &pages).len(), layout.pages().count());
                prop_assert_eq!(&verify::salvage(&layout.root(), &pages), &base);
            }
            cache = verify::verify(&layout.root(), &cache, &pages).unwrap().cache;
            if tree.is_none() {
                let previous = (&*layout.tree, &layout.base);
                let id = format!("1-{flush}-b");
                let plan = tree::plan(Some(previous), |_, _| None, &base, &id, 2, &Limits { live_pages: 100, ..limits }).unwrap();
                pages.extend(stored(&plan));
                tree = Some((Arc::new(plan.tree), base.clone(), layout.runs.mark()));
            }
        }
        prop_assert!(layout.root().runs.len() <= 8 + layout.runs.index_pages());
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
        map.extend([records::encode_export(&service, &export()).unwrap()]);
        map.extend([records::encode_chunk(&service, &chunk, &export().ports).unwrap()]);
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
    fn packing_round_trips(bytes in prop::collection::vec(any::<u8>(), 0..5_000), level in 0u32..9) {
        prop_assert_eq!(codec::unpack(&codec::pack(&bytes, level)).unwrap(), bytes);
    }

    #[test]
    fn unpacking_survives_anything(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        if let Ok(raw) = codec::unpack(&bytes) {
            prop_assert!(raw.len() <= codec::MAX_UNPACKED);
        }
    }

    #[test]
    fn a_delta_turns_the_base_into_the_desired_state(base in maps(), desired in maps()) {
        prop_assert_eq!(Delta::between(&base, &desired, 6).apply(&base), desired);
    }

    #[test]
    fn a_planned_tree_reads_back(before in maps(), after in maps()) {
        let limits = small();
        let first = tree::plan(None, |_, _| None, &before, "1-1-a", 1, &limits).unwrap();
        let second = tree::plan(Some((&first.tree, &before)), |_, _| None, &after, "1-2-b", first.shards, &limits).unwrap();
        let mut pages = stored(&first);
        pages.extend(stored(&second));
        let read = verify::verify(&root(&second.tree, second.shards), &Cache::default(), &pages).unwrap();
        prop_assert_eq!(&read.map, &after);
        prop_assert_eq!(&*read.layout.tree, &second.tree);
        // What another leader plans from nothing says the same, in pages of its own.
        let anew = tree::plan(None, |_, _| None, &after, "2-1-c", second.shards, &limits).unwrap();
        prop_assert_eq!(anew.tree.data_pages(), second.tree.data_pages());
        for (_, page) in &anew.pages {
            prop_assert!(page.bytes.len() <= limits.page_bytes && fits_cloud_map(&page.to_instance()));
        }
    }

    #[test]
    fn equal_states_need_no_pages(map in maps()) {
        let limits = small();
        let first = tree::plan(None, |_, _| None, &map, "1-1-a", 1, &limits).unwrap();
        let second = tree::plan(Some((&first.tree, &map)), |_, _| None, &map, "1-2-b", first.shards, &limits).unwrap();
        prop_assert!(second.pages.is_empty());
        prop_assert_eq!(first.tree, second.tree);
    }

    #[test]
    fn a_tree_with_a_page_missing_is_not_read(map in maps(), victim in any::<prop::sample::Index>()) {
        let plan = tree::plan(None, |_, _| None, &map, "1-1-a", 1, &small()).unwrap();
        let mut pages = stored(&plan);
        if !pages.is_empty() {
            let victim = victim.get(&plan.pages).1.id.clone();
            pages.remove(&victim);
            prop_assert!(verify::verify(&root(&plan.tree, plan.shards), &Cache::default(), &pages).is_err());
        }
    }

    #[test]
    fn endpoints_survive_their_chunks(endpoints in endpoints()) {
        let service = ServiceKey::new("ns", "web");
        let chunks = chunks::assign(&[], &endpoints);
        let mut map = Map::new();
        map.extend([records::encode_export(&service, &export()).unwrap()]);
        map.extend(chunks.iter().map(|chunk| records::encode_chunk(&service, chunk, &export().ports).unwrap()));
        let catalog = Catalog::decode(&map);
        prop_assert!(catalog.problems.is_empty());
        let mut sorted = endpoints;
        sorted.sort_unstable();
        prop_assert_eq!(&catalog.exports[&service].endpoints, &sorted);
        prop_assert_eq!(&catalog.exports[&service].export, &export());
        prop_assert_eq!(records::chunks(&map, &service), chunks);
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
        match records::encode_export(&service, &export) {
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
            map.extend([records::encode_chunk(&service, chunk, &export.ports).unwrap()]);
        }
        prop_assert_eq!(&Catalog::decode(&map).exports[&service].endpoints, &endpoints);
        // One that goes changes its own chunk alone.
        endpoints.remove(gone.index(endpoints.len()));
        let second = chunks::assign(&first, &endpoints);
        prop_assert!(second.len() >= first.len() - 1);
        prop_assert!(second.iter().filter(|chunk| !first.contains(chunk)).count() <= 1);
    }

    #[test]
    fn an_endpoint_stays_in_its_chunk(before in endpoints(), after in endpoints()) {
        let place = |chunks: &[Chunk]| -> BTreeMap<_, _> {
            chunks.iter().flat_map(|c| c.endpoints.iter().map(|e| ((e.ipv4, e.ipv6), c.index))).collect()
        };
        let first = chunks::assign(&[], &before);
        let second = chunks::assign(&first, &after);
        let (old, new) = (place(&first), place(&second));
        prop_assert_eq!(new.len(), after.len());
        prop_assert!(second.iter().all(|chunk| chunk.endpoints.len() <= MAX_ENDPOINTS));
        if first.len() <= 4 {
            prop_assert!(new.iter().all(|(address, index)| old.get(address).is_none_or(|old| old == index)));
        }
    }
}

fn head() -> Head {
    let plan =
        tree::plan(None, |_, _| None, &Map::from([("a/b".into(), Value::from([1]))]), "1-1-a", 1, &Limits::default())
            .unwrap();
    Head {
        cluster: "blue".into(),
        reads: 1,
        uid: "0b0d2ab9-5a3b-4ab3-8a3d-0c8a8b4c1a11".into(),
        position: Position { epoch: 3, seq: 9 },
        presence: Presence::Left { successor: Some("green".into()) },
        root: root(&plan.tree, plan.shards),
        delta: Arc::new(Delta::between(&Map::new(), &Map::from([("x/y".into(), Value::from([7; 50]))]), 6)),
        summary: Summary {
            version: Version { epoch: 2, nonce: u64::MAX, n: 7 },
            hashes: Hashes { state: StateHash([1; 32]), claims: StateHash([2; 32]) },
        },
        addresses: Arc::default(),
        lease: std::time::Duration::from_mins(5),
        written: 1_700_000_000_000,
        signer: None,
    }
}

#[test]
fn a_head_survives_its_attributes() {
    let instance = head().to_instance();
    assert!(fits_cloud_map(&instance));
    assert_eq!(Head::from_instance(&instance).unwrap(), head());
}

#[test]
fn a_damaged_head_is_no_head() {
    let mut damaged = head().to_instance();
    damaged.attributes.insert("d0".to_owned(), "AAAA".to_owned());
    assert_eq!(Head::from_instance(&damaged), Err(codec::Error::Checksum));
    let mut newer = head().to_instance();
    newer.attributes.insert("v".to_owned(), "2".to_owned());
    assert_eq!(Head::from_instance(&newer), Err(codec::Error::Format(2)));
    let mut stolen = head().to_instance();
    stolen.id = "red".into();
    assert!(Head::from_instance(&stolen).is_err());
    let later = Summary { version: Version { epoch: 4, nonce: 1, n: 1 }, ..head().summary };
    assert!(Head::from_instance(&Head { summary: later, ..head() }.to_instance()).is_err());
    let mut extended = head().to_instance();
    extended.attributes.insert("s".to_owned(), "a signature of a later release".to_owned());
    assert_eq!(Head::from_instance(&extended).unwrap(), head());
}

#[test]
fn the_largest_head_and_page_fit_into_an_instance() {
    let limits = Limits::default();
    let noise: Vec<u8> =
        (0..limits.page_bytes as u32 - 1).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let id = PageId { flush: "18446744073709551615-4294967295-ffffffff".into(), number: 999 };
    let page = StoredPage::new(id, codec::pack(&noise, 0)).to_instance();
    assert!(fits_cloud_map(&page));
    let noise = noise[..3_100].to_vec();
    let delta = Arc::new(Delta::between(&Map::new(), &Map::from([("x/y".into(), noise.into())]), 0));
    let head = Head { delta, ..head() };
    assert!(head.fits(&limits));
    let instance = head.to_instance();
    assert!(fits_cloud_map(&instance));
    let room: usize = instance.attributes.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(room <= 5_000 - 200, "room for a signature: {room}");
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
        let map = Map::from([records::encode_registration(&registration).unwrap()]);
        assert_eq!(Catalog::decode(&map).registrations[&registration.target], registration);
        // Who knows no other states takes a claim of somebody unable for none.
        let retires = records::retires(&records::encode_registration(&registration).unwrap().1);
        assert_eq!(retires, matches!(state, ClaimState::Unable | ClaimState::Retiring), "{state:?}");
    }
}

#[test]
fn a_record_that_is_too_large_names_its_key() {
    let mut large = export();
    large.annotations.insert("note".to_owned(), "x".repeat(records::MAX_VALUE));
    let error = records::encode_export(&ServiceKey::new("ns", "web"), &large).unwrap_err();
    assert!(error.to_string().contains("ns/web"), "{error}");
}

#[test]
fn one_unreadable_record_costs_nothing_else() {
    let mut map = Map::from([records::encode_export(&ServiceKey::new("ns", "good"), &export()).unwrap()]);
    map.insert("ns/bad".into(), Value::from([0xff, 0xff]));
    map.insert("?future".into(), Value::from([]));
    let catalog = Catalog::decode(&map);
    assert_eq!(catalog.exports.len(), 1);
    let named: BTreeSet<_> = catalog.problems.iter().map(|problem| &*problem.key).collect();
    assert_eq!(named, BTreeSet::from(["ns/bad", "?future"]));
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
        let map = Map::from([records::encode_chunk(&service, &chunk, &[]).unwrap()]);
        records::chunks(&map, &service).len()
    };
    assert_eq!((read(16), read(17)), (1, 0));
    let mut value = records::encode_registration(&Registration {
        target: Target { namespace: "ns".into(), service: "web".into() },
        owner: ClaimOwner { kind: "Service".into(), namespace: "ns".into(), name: "web".into() },
        claimed: 0,
        state: ClaimState::Serves,
    });
    let (_, bytes) = value.as_mut().unwrap();
    assert!(records::decode_registration(bytes).is_some());
    // A field that nobody knows: it would be ignored.
    let unknown = [vec![0x7a, 0xb8, 0x17], vec![0; 3_000]].concat();
    assert!(records::decode_registration(&[bytes, &unknown[..]].concat()).is_none());
}
