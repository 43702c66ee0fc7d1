//! Properties of codec, heads and tree.

mod forged;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;

use super::{
    Map, Value, codec,
    hash::{Hashes, StateHash, Summary},
    head::{Change, Delta, Head, Presence, Root},
    limits::Limits,
    page::{PageId, StoredPage},
    runs::{self, Layout, Runs},
    tree::{self, Plan},
    verify::{self, Cache},
};
use crate::record::{Position, Version};
use cloudmap::Instance;

fn maps() -> impl Strategy<Value = Map> {
    let pair = (0u32..300, prop::collection::vec(any::<u8>(), 0..60));
    prop::collection::vec(pair, 0..120).prop_map(|pairs| {
        pairs.into_iter().map(|(key, value)| (Arc::from(format!("ns/{key}")), Value::from(value))).collect()
    })
}

fn small() -> Limits {
    Limits { page_bytes: 300, index_entries: 5, live_pages: 12, ..Limits::default() }
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
