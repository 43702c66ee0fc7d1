//! Reading a state from its pages, as a whole or not at all. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Map,
    codec::Digest,
    head::{Change, Root, RootPage, RootRun},
    limits::{MAX_PAGES, MAX_PAIRS, MAX_RUN_BYTES, MAX_STATE_BYTES},
    page::{self, Entry, PageId, Pairs, Prefix, StoredPage},
    runs::{Layout, Runs},
    tree::{self, Tree},
};

/// Pages that were read, by id.
pub type Found = BTreeMap<PageId, Arc<StoredPage>>;

/// Decoded pages of a verified root, each with the digest against which it was verified. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    base: Arc<Base>,
    runs: Arc<RunPages>,
    /// The pages of changes that are in `map`, in their order.
    applied: Arc<[RootPage]>,
    map: Map,
    /// Of all keys and values in `map`.
    bytes: usize,
    /// The same of all pages of changes.
    said: usize,
}

impl Cache {
    /// Bytes of all keys and values in the pages of changes.
    pub(super) const fn run_bytes(&self) -> usize {
        self.said
    }
}

/// A tree that was read.
#[derive(Debug, Default)]
struct Base {
    tree: Arc<Tree>,
    map: Map,
    bytes: usize,
    index: BTreeMap<PageId, (Digest, Arc<[Entry]>)>,
    /// With the prefix that all of its keys have.
    data: BTreeMap<PageId, (Digest, Prefix, Pairs)>,
}

/// The pages of changes of a run.
type Members = Arc<[RootPage]>;

/// Pages of changes, and indexes of such pages, that were read.
#[derive(Debug, Clone, Default)]
struct RunPages {
    indexes: BTreeMap<PageId, (Digest, Members)>,
    changes: BTreeMap<PageId, (Digest, Arc<[Change]>)>,
}

/// A map that was read and verified, page by page, against a root.
#[derive(Debug, Clone)]
pub struct Verified {
    /// The pages.
    pub layout: Layout,
    /// The map.
    pub map: Map,
    /// The pages of this root only.
    pub cache: Cache,
}

/// Pages that still must be read, by shard, and what is wrong with the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Pages that still must be read, with their shards.
    pub pages: BTreeSet<(u32, PageId)>,
    /// What is wrong with pages that were read, if anything.
    pub broken: Option<&'static str>,
}

impl Missing {
    const fn broken(why: &'static str) -> Self {
        Self { pages: BTreeSet::new(), broken: Some(why) }
    }
}

const UNREADABLE: Missing = Missing::broken("a page has the right digest but cannot be read");
const UNREADABLE_INDEX: Missing = Missing::broken("an index page has the right digest but cannot be read");
const STRAY: Missing = Missing::broken("a page has keys that do not belong to its prefix");
const TOO_MANY_PAGES: Missing = Missing::broken("the root has more pages than a cluster may have");
/// Why a state is not read that has more than it may.
pub(super) const LARGER: &str = "the state is larger than a cluster's may be";
const TOO_LARGE: Missing = Missing::broken(LARGER);

fn stored<'a>(found: &'a Found, id: &PageId, digest: Digest) -> Option<&'a Arc<StoredPage>> {
    found.get(id).filter(|page| page.digest == digest)
}

/// A page that is needed: as it was decoded before, or decoded now. `None` if it must be read first, which `missing` says
/// then.
fn page<T>(
    needed: &RootPage,
    cached: Option<T>,
    found: &Found,
    missing: &mut BTreeSet<(u32, PageId)>,
    decode: impl FnOnce(&[u8]) -> Result<T, Missing>,
) -> Result<Option<T>, Missing> {
    match (cached, stored(found, &needed.id, needed.digest)) {
        (Some(cached), _) => Ok(Some(cached)),
        (None, Some(page)) => decode(&page.bytes).map(Some),
        (None, None) => {
            missing.insert((needed.shard, needed.id.clone()));
            Ok(None)
        }
    }
}

/// Reads the map under `root` from `cache` and the `found` pages, as a whole or not at all.
///
/// A digest only proves that these are the pages that the root's writer meant. Their content is checked as well: each
/// page of the tree has the keys of its prefix, no two prefixes overlap, and the whole stays within the limits
/// ([`MAX_PAGES`], [`MAX_PAIRS`], [`MAX_STATE_BYTES`], [`MAX_RUN_BYTES`]) before more of it is unpacked.
///
/// # Errors
/// Pages are missing, or say what no writer of this project writes.
pub fn verify(root: &Root, cache: &Cache, found: &Found) -> Result<Verified, Missing> {
    verify_within(root, cache, found, MAX_STATE_BYTES)
}

/// The same for a state of `most` bytes at most, which may be fewer than a cluster may have.
pub(super) fn verify_within(root: &Root, cache: &Cache, found: &Found, most: usize) -> Result<Verified, Missing> {
    let mut missing = BTreeSet::new();
    let same_tree = cache.base.tree.index == root.pages;
    let base =
        if same_tree { Some(cache.base.clone()) } else { read_tree(root, &cache.base, found, most, &mut missing)? };
    let pages = base.as_ref().map_or(0, |base| base.index.len() + base.data.len());
    let (members, mut read) = read_indexes(root, &cache.runs, found, &mut missing)?;
    if pages + members.iter().map(|members| 1 + members.len()).sum::<usize>() > MAX_PAGES {
        return Err(TOO_MANY_PAGES);
    }
    let applied: Arc<[RootPage]> = members.iter().flat_map(|members| members.iter().cloned()).collect();
    let known = if same_tree && applied.starts_with(&cache.applied) { cache.applied.len() } else { 0 };
    let (mut map, mut bytes) = match &base {
        Some(_) if known > 0 => (cache.map.clone(), cache.bytes),
        Some(base) => (base.map.clone(), base.bytes),
        None => Default::default(),
    };
    let mut said = 0;
    for (number, needed) in applied.iter().enumerate() {
        let cached = cache.runs.changes.get(&needed.id).filter(|(digest, _)| *digest == needed.digest);
        let cached = cached.map(|(_, changes)| changes.clone());
        let decode = |bytes: &[u8]| page::decode_changes(bytes).map(Arc::<[Change]>::from).map_err(|_| UNREADABLE);
        let Some(changes) = page(needed, cached, found, &mut missing, decode)? else { continue };
        said +=
            changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, |value| value.len())).sum::<usize>();
        if number >= known && missing.is_empty() {
            let (came, went) = apply(&mut map, &changes);
            bytes = bytes + came - went;
        }
        if map.len() > MAX_PAIRS || bytes > most || said > MAX_RUN_BYTES.min(2 * most) {
            return Err(TOO_LARGE);
        }
        read.changes.insert(needed.id.clone(), (needed.digest, changes));
    }
    let Some(base) = base.filter(|_| missing.is_empty()) else { return Err(Missing { pages: missing, broken: None }) };
    let runs = Runs::read(root.runs.iter().zip(members.iter().map(|members| &**members)));
    let layout = Layout { shards: root.shards, tree: base.tree.clone(), base: base.map.clone(), runs };
    let cache = Cache { base, runs: Arc::new(read), applied, map: map.clone(), bytes, said };
    Ok(Verified { layout, map, cache })
}

/// Returns how many bytes of keys and values came, and how many went.
fn apply(map: &mut Map, changes: &[Change]) -> (usize, usize) {
    let (mut came, mut went) = (0, 0);
    for (key, value) in changes {
        let before = match value {
            Some(value) => {
                came += key.len() + value.len();
                map.insert(key.clone(), value.clone())
            }
            None => map.remove(key),
        };
        went += before.map_or(0, |before| key.len() + before.len());
    }
    (came, went)
}

/// Reads the tree; `None` if pages are missing.
fn read_tree(
    root: &Root,
    cache: &Base,
    found: &Found,
    most: usize,
    missing: &mut BTreeSet<(u32, PageId)>,
) -> Result<Option<Arc<Base>>, Missing> {
    let (mut base, mut tree) = (Base::default(), Tree { index: root.pages.clone(), ..Tree::default() });
    let (mut listed, mut pairs_read) = (0, 0);
    for root_page in root.pages.iter() {
        let cached = cache.index.get(&root_page.id).filter(|(digest, _)| *digest == root_page.digest);
        let cached = cached.map(|(_, entries)| entries.clone());
        let decode = |bytes: &[u8]| page::decode_index(bytes).map_err(|_| UNREADABLE_INDEX);
        let Some(entries) = page(root_page, cached, found, missing, decode)? else { continue };
        listed += 1 + entries.len();
        if listed > MAX_PAGES {
            return Err(TOO_MANY_PAGES);
        }
        for entry in entries.iter() {
            let leaf = RootPage { shard: root_page.shard, id: entry.page.clone(), digest: entry.digest };
            let cached = cache.data.get(&leaf.id);
            let cached = cached.filter(|(digest, prefix, _)| (*digest, *prefix) == (leaf.digest, entry.prefix));
            let cached = cached.map(|(_, _, pairs)| pairs.clone());
            let decode = |bytes: &[u8]| {
                let pairs = page::decode_pairs(bytes).map_err(|_| UNREADABLE)?;
                let (first, last) = entry.prefix.range();
                let belongs = |(key, _): &(Arc<str>, _)| (first..=last).contains(&tree::hash(key));
                if pairs.iter().all(belongs) { Ok(pairs) } else { Err(STRAY) }
            };
            let Some(pairs) = page(&leaf, cached, found, missing, decode)? else { continue };
            pairs_read += pairs.len();
            base.bytes += pairs.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
            if pairs_read > MAX_PAIRS || base.bytes > most {
                return Err(TOO_LARGE);
            }
            base.map.extend(pairs.iter().cloned());
            base.data.insert(leaf.id.clone(), (leaf.digest, entry.prefix, pairs));
            tree.leaves.insert(entry.prefix, leaf);
        }
        base.index.insert(root_page.id.clone(), (root_page.digest, entries));
    }
    if !missing.is_empty() {
        return Ok(None);
    }
    let leaves = tree.leaves.keys();
    let overlaps = leaves.clone().zip(leaves.skip(1)).any(|(one, next)| next.range().0 <= one.range().1);
    if overlaps || base.map.len() != pairs_read {
        return Err(Missing::broken("pages overlap"));
    }
    base.tree = Arc::new(tree);
    Ok(Some(Arc::new(base)))
}

/// The pages of changes of each run. Those of an index that is missing are not known yet.
fn read_indexes(
    root: &Root,
    cache: &RunPages,
    found: &Found,
    missing: &mut BTreeSet<(u32, PageId)>,
) -> Result<(Vec<Members>, RunPages), Missing> {
    let (mut runs, mut read) = (Vec::new(), RunPages::default());
    for run in root.runs.iter() {
        let index = match run {
            RootRun::Index(index) => index,
            RootRun::Page(page) => {
                runs.push([page.clone()].into());
                continue;
            }
        };
        let cached = cache.indexes.get(&index.id).filter(|(digest, _)| *digest == index.digest);
        let cached = cached.map(|(_, members)| members.clone());
        let decode = |bytes: &[u8]| page::decode_runs(bytes).map_err(|_| UNREADABLE_INDEX);
        let Some(members) = page(index, cached, found, missing, decode)? else { continue };
        if members.iter().any(|member| member.shard >= root.shards) {
            return Err(Missing::broken("a page is in no shard"));
        }
        read.indexes.insert(index.id.clone(), (index.digest, members.clone()));
        runs.push(members);
    }
    Ok((runs, read))
}

/// The pairs in those pages of `root` that are among `found`: a part of a state.
pub(super) fn salvage(root: &Root, found: &Found) -> Map {
    let mut map: Map = indexed(root, found)
        .iter()
        .filter_map(|page| page::decode_pairs(&stored(found, &page.id, page.digest)?.bytes).ok())
        .flat_map(|pairs| pairs.to_vec())
        .collect();
    let read = |page: &RootPage| page::decode_changes(&stored(found, &page.id, page.digest)?.bytes).ok();
    for changes in appended(root, found).iter().filter_map(read) {
        apply(&mut map, &changes);
    }
    map
}

/// The pages that `root` needs, as far as its index pages are among `known`; for garbage collection.
pub(super) fn reachable(root: &Root, known: &Found) -> BTreeSet<PageId> {
    let named = root.pages.iter().chain(root.runs.iter().map(RootRun::page)).map(|page| page.id.clone());
    let behind = indexed(root, known).into_iter().chain(appended(root, known)).map(|page| page.id);
    named.chain(behind).collect()
}

/// The pages of the tree, as far as its index pages are known.
fn indexed(root: &Root, known: &Found) -> Vec<RootPage> {
    let read = |index: &RootPage| {
        let entries = page::decode_index(&stored(known, &index.id, index.digest)?.bytes).ok()?;
        let shard = index.shard;
        let page = |entry: &Entry| RootPage { shard, id: entry.page.clone(), digest: entry.digest };
        Some(entries.iter().map(page).collect::<Vec<_>>())
    };
    root.pages.iter().filter_map(read).flatten().collect()
}

/// The pages of changes, as far as their indexes are known.
fn appended(root: &Root, known: &Found) -> Vec<RootPage> {
    let read = |run: &RootRun| match run {
        RootRun::Page(page) => Some(vec![page.clone()]),
        RootRun::Index(index) => {
            page::decode_runs(&stored(known, &index.id, index.digest)?.bytes).ok().map(|members| members.to_vec())
        }
    };
    root.runs.iter().filter_map(read).flatten().collect()
}
