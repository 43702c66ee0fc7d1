//! Pages, and whole states that are read from them.

use std::sync::Arc;

use ledger::{
    codec::{self, Digest, MAX_UNPACKED},
    head::{Change, Root, RootPage, RootRun},
    limits::{Limits, MAX_PAIRS, MAX_STATE_BYTES},
    page::{self, Entry, PageId, StoredPage},
    tree,
    verify::{self, Cache, Found, Missing},
};

use super::{Target, Verdict, fields, holds, ledger::state, same};

/// Unpacked pages are longer than what a registry can hold.
const LONGEST: usize = MAX_UNPACKED + 100;

pub(super) const TARGETS: &[Target] = &[
    Target { name: "packed", corpus: packed, words: &[], longest: 6_000, quick: 2_000, check: unpack },
    Target {
        name: "page",
        corpus: pages,
        words: &["ns/web", "12-3-abcdef"],
        longest: LONGEST,
        quick: 2_000,
        check: page,
    },
    Target {
        name: "page-instance",
        corpus: instances,
        words: &["f", "d0", "d1", "d8", "1-1-a.0"],
        longest: 9_000,
        quick: 2_000,
        check: instance,
    },
    Target { name: "state", corpus: states, words: &["ns/web", "1-1-a"], longest: LONGEST, quick: 1_000, check: whole },
];

/// The pages of a state, and one of each other kind: what kind it is, and its packed bytes.
fn kinds() -> Vec<(u8, Vec<u8>)> {
    let (before, now) = (state(20), state(60));
    let changes: Vec<Change> = now.difference(&before).map(|(key, _, value)| (key.clone(), value.cloned())).collect();
    let ids = (0..5).map(|n| PageId { flush: format!("1-{n}-aa").into(), number: n });
    let runs: Vec<RootPage> = ids.map(|id| RootPage { shard: id.number % 2, digest: Digest([3; 16]), id }).collect();
    let pairs = || page::encode_pairs(now.iter(), 6);
    let planned = tree::plan(None, |_, _| None, &now, "1-1-a", 2, &Limits::default());
    let index = planned.map(|plan| page::encode_index(&entries(&plan), 6)).unwrap_or_default();
    let mut all = vec![(0, pairs()), (2, page::encode_runs(runs.iter(), 6)), (3, index)];
    all.extend(page::encode_changes(&changes, 6).map(|bytes| (1, bytes)));
    all
}

fn entries(plan: &tree::Plan) -> Vec<Entry> {
    // The first page that can be read as an index.
    plan.pages.iter().filter_map(|(_, page)| page::decode_index(&page.bytes).ok()).flat_map(|it| it.to_vec()).collect()
}

fn packed() -> Vec<Vec<u8>> {
    let bomb = codec::pack(&vec![7; MAX_UNPACKED], 9);
    kinds()
        .into_iter()
        .map(|(_, packed)| packed)
        .chain([bomb, codec::pack(b"", 6), codec::pack(b"stored", 0)])
        .collect()
}

fn unpack(input: &[u8]) -> Verdict {
    let Ok(raw) = codec::unpack(input) else { return Ok(false) };
    holds(raw.len() <= MAX_UNPACKED, || format!("{} bytes", raw.len()))?;
    for level in [0, 6] {
        same("the bytes", &Ok(raw.clone()), &codec::unpack(&codec::pack(&raw, level)))?;
    }
    Ok(true)
}

/// A kind, and unpacked bytes: to flip a bit of packed ones breaks their compression, and nothing behind it is tried.
fn pages() -> Vec<Vec<u8>> {
    let raw = |(kind, packed): (u8, Vec<u8>)| Some([vec![kind], codec::unpack(&packed).ok()?].concat());
    kinds().into_iter().filter_map(raw).collect()
}

fn page(input: &[u8]) -> Verdict {
    let Some((kind, raw)) = input.split_first() else { return Ok(false) };
    let packed = codec::pack(raw, 0);
    let is_short = |length: usize, least: usize| {
        holds(length * least <= input.len(), || format!("{length} entries in {} bytes", input.len()))
    };
    match kind % 4 {
        0 => {
            let Ok(pairs) = page::decode_pairs(&packed) else { return Ok(false) };
            is_short(pairs.len(), 2)?;
            let written = page::encode_pairs(pairs.iter().map(|(key, value)| (key, value)), 6);
            // What is missing is written, which may take more than fits.
            page::decode_pairs(&written).map_or(Ok(()), |again| same("the pairs", &pairs, &again))?;
        }
        1 => {
            let Ok(changes) = page::decode_changes(&packed) else { return Ok(false) };
            is_short(changes.len(), 2)?;
            let written = page::encode_changes(&changes, 6).map(|packed| page::decode_changes(&packed));
            written.map_or(Ok(()), |again| same("the changes", &Ok(changes), &again))?;
        }
        2 => {
            let Ok(runs) = page::decode_runs(&packed) else { return Ok(false) };
            is_short(runs.len(), 16)?;
            let written = page::decode_runs(&page::encode_runs(runs.iter(), 6));
            same("the runs", &Ok(runs), &written)?;
        }
        _ => {
            let Ok(entries) = page::decode_index(&packed) else { return Ok(false) };
            is_short(entries.len(), 16)?;
            let written = page::decode_index(&page::encode_index(&entries, 6));
            same("the index", &Ok(entries), &written)?;
        }
    }
    Ok(true)
}

fn instances() -> Vec<Vec<u8>> {
    let stored = kinds().into_iter().map(|(kind, bytes)| stored(u32::from(kind), bytes));
    stored.map(|page| fields::of_instance(&page.to_instance())).collect()
}

fn stored(number: u32, bytes: Vec<u8>) -> StoredPage {
    let id = PageId { flush: "1-1-a".into(), number };
    StoredPage { id, digest: Digest::of(&bytes), bytes: bytes.into() }
}

fn instance(input: &[u8]) -> Verdict {
    let Ok(page) = StoredPage::from_instance(&fields::instance(input)) else { return Ok(false) };
    let is_empty = page.bytes.is_empty();
    if !is_empty {
        same("the page", &Ok(page.clone()), &StoredPage::from_instance(&page.to_instance()))?;
    }
    Ok(!is_empty)
}

/// The pages that a state of so many pairs consists of: data pages, an index page, pages of changes and an index of these.
fn states() -> Vec<Vec<u8>> {
    let unpacked = |bytes: &[u8]| codec::unpack(bytes).unwrap_or_default();
    let small = Limits { page_bytes: 600, ..Limits::default() };
    let of = |pairs: usize| {
        let map = state(pairs);
        let plan = tree::plan(None, |_, _| None, &map, "1-1-a", 1, &small).ok()?;
        let data = plan.pages.iter().filter(|(_, page)| page::decode_index(&page.bytes).is_err());
        let mut parts: Vec<Vec<u8>> = data.map(|(_, page)| unpacked(&page.bytes)).collect();
        let index = entries(&plan).len();
        // How many of the parts are data pages comes first, then the index.
        parts.insert(0, unpacked(&page::encode_index(&entries(&plan), 0)));
        parts.insert(0, vec![u8::try_from(index).ok()?]);
        let changes: Vec<Change> =
            state(pairs + 9).difference(&map).map(|(key, _, value)| (key.clone(), value.cloned())).collect();
        parts.extend(page::encode_changes(&changes, 0).map(|bytes| unpacked(&bytes)));
        Some(fields::join(parts))
    };
    [0, 1, 12, 40].into_iter().filter_map(of).collect()
}

/// Makes pages of the parts of an input, so that each has the digest by which it is named, as forgers make it.
fn whole(input: &[u8]) -> Verdict {
    let parts = fields::split(input);
    let (Some([most]), Some(index)) = (parts.first(), parts.get(1)) else { return Ok(false) };
    let mut found = Found::new();
    let mut store = |number: usize, raw: &[u8]| {
        let page = stored(number as u32, codec::pack(raw, 0));
        let root = RootPage { shard: 0, id: page.id.clone(), digest: page.digest };
        found.insert(page.id.clone(), Arc::new(page));
        root
    };
    let rest = &parts[2..];
    let (data, changes) = rest.split_at(rest.len().min(usize::from(*most)));
    let data: Vec<RootPage> = data.iter().enumerate().map(|(n, raw)| store(n, raw)).collect();
    let changes: Vec<RootPage> = changes.iter().enumerate().map(|(n, raw)| store(1_000 + n, raw)).collect();
    let Ok(entries) = page::decode_index(&codec::pack(index, 0)) else { return Ok(false) };
    let named = entries.iter().zip(data.iter().cycle());
    let entries: Vec<Entry> =
        named.map(|(entry, page)| Entry { prefix: entry.prefix, page: page.id.clone(), digest: page.digest }).collect();
    let index = store(2_000, &codec::unpack(&page::encode_index(&entries, 0)).unwrap_or_default());
    let (first, others) = changes.split_at(changes.len().min(2));
    let grouped = store(3_000, &codec::unpack(&page::encode_runs(others.iter(), 0)).unwrap_or_default());
    let runs = first.iter().cloned().map(RootRun::Page).chain([RootRun::Index(grouped)]).collect();
    let root = Root { shards: 1, pages: if entries.is_empty() { [].into() } else { [index].into() }, runs };
    let verified = match verify::verify(&root, &Cache::default(), &found) {
        Ok(verified) => verified,
        Err(Missing { pages, broken }) => {
            holds(broken.is_some() || !pages.is_empty(), || "nothing is wrong, and nothing is read".to_owned())?;
            return Ok(false);
        }
    };
    same("the root", &root, &verified.layout.root())?;
    let bytes: usize = verified.map.iter().map(|(key, value)| key.len() + value.len()).sum();
    holds(verified.map.len() <= MAX_PAIRS && bytes <= MAX_STATE_BYTES, || format!("a state of {bytes} bytes"))?;
    let again = verify::verify(&root, &verified.cache, &Found::new()).map(|again| again.map);
    same("the state", &Some(verified.map), &again.ok())?;
    Ok(true)
}
