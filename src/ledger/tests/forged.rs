//! Roots and pages of somebody who keeps to no rule: they are not read, and cost their readers little.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use crate::{
    Value,
    call::{Call, Outbox, Pages},
    fetch::{Fetch, Progress},
    head::{Root, RootPage, RootRun},
    limits,
    page::{self, Entry, PageId, Prefix, StoredPage},
    tree,
    verify::{self, Cache},
};

/// A root of pages made by somebody who keeps to no rule.
fn forged(contents: &[(Prefix, Vec<Arc<str>>)]) -> (Root, BTreeMap<PageId, Arc<StoredPage>>) {
    let value = Value::from([1]);
    let mut pages = Vec::new();
    let mut store = |bytes| {
        let page = Arc::new(StoredPage::new(PageId { flush: "1-1-a".into(), number: pages.len() as u32 }, bytes));
        pages.push(page.clone());
        page
    };
    let mut entries = Vec::new();
    for (prefix, keys) in contents {
        let page = store(page::encode_pairs(keys.iter().map(|key| (key, &value)), 6));
        entries.push(Entry { prefix: *prefix, page: page.id.clone(), digest: page.digest });
    }
    let index = store(page::encode_index(&entries, 6));
    let root = [RootPage { shard: 0, id: index.id.clone(), digest: index.digest }];
    (
        Root { shards: 1, pages: root.into(), runs: Arc::default() },
        pages.into_iter().map(|page| (page.id.clone(), page)).collect(),
    )
}

fn why_not(contents: &[(Prefix, Vec<Arc<str>>)]) -> Option<&'static str> {
    let (root, pages) = forged(contents);
    verify::verify(&root, &Cache::default(), &pages).err().and_then(|missing| missing.broken)
}

#[test]
fn pages_that_say_what_is_not_their_part_are_not_read() {
    let keys = |count: u32| (0..count).map(|key| format!("ns/{key}").into()).collect::<Vec<Arc<str>>>();
    let (zero, one) = Prefix::ALL.split();
    let of = |prefix: Prefix, keys: &[Arc<str>]| -> Vec<Arc<str>> {
        let (first, last) = prefix.range();
        keys.iter().filter(|key| (first..=last).contains(&tree::hash(key))).cloned().collect()
    };
    let all = keys(20);
    assert_eq!(why_not(&[(zero, of(zero, &all)), (one, of(one, &all))]), None);
    assert!(why_not(&[(zero, of(one, &all)), (one, of(zero, &all))]).unwrap().contains("prefix"));
    assert!(why_not(&[(Prefix::ALL, all.clone()), (zero, of(zero, &all))]).unwrap().contains("overlap"));
}

#[test]
fn a_state_that_is_larger_than_a_cluster_may_have_is_not_read() {
    let keys: Vec<Arc<str>> = (0..=limits::MAX_PAIRS).map(|key| format!("a/{key}").into()).collect();
    let mut pages = BTreeMap::<Prefix, Vec<Arc<str>>>::new();
    let mut prefixes = vec![Prefix::ALL];
    for _ in 0..5 {
        prefixes = prefixes.into_iter().flat_map(|prefix| [prefix.split().0, prefix.split().1]).collect();
    }
    for key in &keys {
        let hash = tree::hash(key);
        let prefix = prefixes.iter().find(|prefix| (prefix.range().0..=prefix.range().1).contains(&hash)).unwrap();
        pages.entry(*prefix).or_default().push(key.clone());
    }
    let contents: Vec<_> = pages.into_iter().collect();
    assert!(why_not(&contents).unwrap().contains("larger"));
    assert!(tree::excess(limits::MAX_PAIRS + 1, 0).unwrap().contains("65536"));
    assert_eq!(tree::excess(limits::MAX_PAIRS, 0), None);
}

/// A page, under this number in one flush.
fn page_of(number: u32, bytes: Vec<u8>) -> Arc<StoredPage> {
    Arc::new(StoredPage::new(PageId { flush: "1-1-a".into(), number }, bytes))
}

fn named(page: &StoredPage) -> RootPage {
    RootPage { shard: 0, id: page.id.clone(), digest: page.digest }
}

/// The root whose tree has each of these pages as a leaf.
fn with_tree(leaves: &[RootPage]) -> (Root, Arc<StoredPage>) {
    let entry = |leaf: &RootPage| Entry { prefix: Prefix::ALL, page: leaf.id.clone(), digest: leaf.digest };
    let index = page_of(1_000_000, page::encode_index(&leaves.iter().map(entry).collect::<Vec<_>>(), 6));
    (Root { pages: [named(&index)].into(), ..Root::empty(1) }, index)
}

/// The root whose runs consist of these pages of changes.
fn with_runs(members: &[RootPage]) -> (Root, Arc<StoredPage>) {
    let index = page_of(1_000_001, page::encode_runs(members.iter(), 6));
    (Root { runs: [RootRun::Index(named(&index))].into(), ..Root::empty(1) }, index)
}

/// What is wrong with a root, if its index and these pages are found.
fn broken((root, index): (Root, Arc<StoredPage>), pages: &[Arc<StoredPage>]) -> Option<&'static str> {
    let found = pages.iter().chain([&index]).map(|page| (page.id.clone(), page.clone())).collect();
    verify::verify(&root, &Cache::default(), &found).err().and_then(|missing| missing.broken)
}

/// Zeros cost almost nothing in a registry, and a page costs its writer once, however often it is named.
#[test]
fn pages_that_unpack_to_more_than_a_cluster_may_have_are_not_read() {
    const LARGE: usize = 60_000;
    let pair = |key: u32| (Arc::<str>::from(format!("{key:04}")), Value::from(vec![0; LARGE - 4]));
    let (key, value) = pair(0);
    let leaf = page_of(0, page::encode_pairs([(&key, &value)].into_iter(), 6));
    let tree = |leaves| broken(with_tree(&vec![named(&leaf); leaves]), std::slice::from_ref(&leaf));
    let most = limits::MAX_STATE_BYTES / LARGE;
    assert!(tree(most).unwrap().contains("overlap"));
    assert!(tree(most + 1).unwrap().contains("larger"));

    let run = |key| page_of(key, page::encode_changes(&[pair(key)].map(|(key, value)| (key, Some(value))), 6).unwrap());
    let runs: Vec<_> = (0..=most as u32).map(run).collect();
    let runs_of = |pages: &[Arc<StoredPage>], times| {
        let members: Vec<_> = pages.iter().map(|page| named(page)).collect();
        broken(with_runs(&vec![members; times].concat()), pages)
    };
    assert_eq!(runs_of(&runs[..most], 1), None);
    assert!(runs_of(&runs, 1).unwrap().contains("larger"));
    // The state stays small here.
    let most = limits::MAX_RUN_BYTES / LARGE;
    assert_eq!(runs_of(&runs[..1], most), None);
    assert!(runs_of(&runs[..1], most + 1).unwrap().contains("larger"));
}

#[test]
fn a_root_with_more_pages_than_a_cluster_may_have_is_not_read() {
    const HALF: usize = limits::MAX_PAGES / 2;
    let absent = named(&page_of(0, Vec::new()));
    let twice = |(root, index): (Root, Arc<StoredPage>)| {
        let Root { shards, pages, runs } = root;
        (Root { shards, pages: [&*pages; 2].concat().into(), runs: [&*runs; 2].concat().into() }, index)
    };
    // Each index is a page, too.
    for root in [with_tree, with_runs] {
        assert_eq!(broken(twice(root(&vec![absent.clone(); HALF - 1])), &[]), None);
        assert!(broken(twice(root(&vec![absent.clone(); HALF])), &[]).unwrap().contains("more pages"));
    }
}

/// Pages that nobody asked for.
fn strays(count: u32) -> impl FnMut() -> Vec<Arc<StoredPage>> {
    let mut numbers = (2_000_000u32..).step_by(count as usize);
    move || {
        numbers.next().map(|first| (first..first + count).map(|number| page_of(number, Vec::new())).collect()).unwrap()
    }
}

/// Of a root with more flushes in one service than a read shows, each needs a read.
fn of_many_flushes() -> (Root, Arc<StoredPage>) {
    let leaf = |flush| RootPage {
        id: PageId { flush: format!("1-{flush}-b").into(), number: 0 },
        ..named(&page_of(0, Vec::new()))
    };
    with_tree(&(0..2 * limits::MAX_READS).map(leaf).collect::<Vec<_>>())
}

#[test]
fn an_attempt_that_needs_too_many_reads_ends_and_keeps_little_of_what_it_is_shown() {
    let reads = |strays: &mut dyn FnMut() -> Vec<Arc<StoredPage>>| {
        let (root, index) = of_many_flushes();
        let (mut fetch, mut out) = (Fetch::new("blue".into(), root, Cache::default()), Outbox::default());
        let mut progress = fetch.advance(&mut out);
        let mut shown = Vec::<Weak<StoredPage>>::new();
        while let Progress::Waiting = progress {
            let Some((_, Call::ReadPages { flush, .. })) = out.calls.last() else { panic!("it waits for nothing") };
            let strays = strays();
            shown.extend(strays.iter().map(Arc::downgrade));
            let pages = [vec![index.clone()], strays].concat();
            progress = fetch.on_pages(Some(&Pages { pages, truncated: flush.is_none() }), &mut out);
        }
        assert!(matches!(progress, Progress::Failed(why) if why.contains("more reads")), "{progress:?}");
        let kept = shown.iter().filter(|page| page.strong_count() > 0).count();
        assert!(kept <= 2 * limits::MAX_PAGES, "{kept}");
        out.calls.len()
    };
    assert_eq!(reads(&mut Vec::new), limits::MAX_READS + 1);
    assert_eq!(reads(&mut strays(1_000)), limits::MAX_READS + 1);
}

/// Where nothing may be deleted for hours, it fills the services.
#[test]
fn garbage_keeps_nobody_from_reading_a_state() {
    const SERVICES: u32 = 12;
    let mut services = vec![Vec::<Arc<StoredPage>>::new(); SERVICES as usize];
    let mut stored = 0;
    let mut store = |shard: u32, bytes: Option<Vec<u8>>| {
        stored += 1;
        let change = (Arc::from(format!("ns/{stored}")), Some(Value::from([1])));
        let bytes = bytes.or_else(|| page::encode_changes(&[change], 6)).unwrap();
        let page = Arc::new(StoredPage::new(PageId { flush: format!("1-{stored}-c").into(), number: 0 }, bytes));
        services[shard as usize].push(page.clone());
        RootPage { shard, ..named(&page) }
    };
    let mut runs = Vec::new();
    for shard in 0..SERVICES {
        // Each service has more flushes than are read one by one.
        runs.extend((0..9).map(|_| RootRun::Page(store(shard, None))));
        // Most indexes are read after the page that they name.
        let earlier = store((shard + SERVICES - 1) % SERVICES, None);
        runs.push(RootRun::Index(store(shard, Some(page::encode_runs([&earlier].into_iter(), 6)))));
    }
    let mut garbage = strays(880);
    for service in &mut services {
        service.extend(garbage());
    }

    let root = Root { runs: runs.into(), ..Root::empty(16) };
    let (mut fetch, mut out) = (Fetch::new("blue".into(), root, Cache::default()), Outbox::default());
    let mut progress = fetch.advance(&mut out);
    while let Progress::Waiting = progress {
        let Some((_, Call::ReadPages { shard, flush, .. })) = out.calls.last() else { panic!("it waits for nothing") };
        let asked = |page: &&Arc<StoredPage>| flush.as_ref().is_none_or(|flush| *flush == page.id.flush);
        let pages = services[*shard as usize].iter().filter(asked).cloned().collect();
        progress = fetch.on_pages(Some(&Pages { pages, truncated: false }), &mut out);
    }
    let Progress::Complete(read) = &progress else { panic!("{progress:?}") };
    assert_eq!(read.map.len(), 10 * SERVICES as usize);
    assert!(out.calls.len() < 20, "{}", out.calls.len());
}

#[test]
fn what_was_read_for_former_roots_does_not_pile_up() {
    let (root, _) = of_many_flushes();
    let (mut fetch, mut out) = (Fetch::new("blue".into(), root.clone(), Cache::default()), Outbox::default());
    fetch.advance(&mut out);
    let mut strays = strays(1_000);
    for _ in 0..20 {
        fetch.move_on(root.clone(), &Pages { pages: strays(), truncated: false }, &mut out);
    }
    assert!(matches!(fetch.on_pages(Some(&Pages::default()), &mut out), Progress::Waiting));
}
