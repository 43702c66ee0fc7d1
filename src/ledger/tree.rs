//! The page tree: a map that is split by bits of `sha256(key)` into pages, with index pages. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use sha2::{Digest as _, Sha256};

use super::{
    Map, Value,
    codec::Digest,
    head::{MAX_SHARDS, Root, RootPage},
    limits::{Limits, MAX_PAGES, MAX_PAIRS, MAX_STATE_BYTES},
    page::{self, Entry, PageId, Pairs, Prefix, StoredPage},
};

/// Deflate rarely makes records smaller than this fraction. Larger sets are split without trying.
const MAX_RATIO: usize = 8;

/// The pages that contain the pairs of a published map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// The root that names the index pages.
    pub root: Root,
    leaves: BTreeMap<Prefix, (PageId, Digest)>,
}

impl Tree {
    /// The tree of the empty map.
    pub fn empty(shards: u32) -> Self {
        Self { root: Root::empty(shards), leaves: BTreeMap::new() }
    }

    /// Number of data pages.
    pub fn data_pages(&self) -> usize {
        self.leaves.len()
    }

    /// Number of index pages.
    pub fn index_pages(&self) -> usize {
        self.root.pages.len()
    }

    /// Every page that the tree needs, including index pages, by shard.
    pub fn pages(&self) -> impl Iterator<Item = (u32, &PageId)> {
        let leaves = self.leaves.iter().map(|(prefix, (id, _))| (prefix.shard(self.root.shards), id));
        self.root.pages.iter().map(|page| (page.shard, &page.id)).chain(leaves)
    }

    fn leaf(&self, prefix: Prefix, shards: u32) -> Option<&(PageId, Digest)> {
        let here = prefix.shard(self.root.shards) == prefix.shard(shards);
        self.leaves.get(&prefix).filter(|_| here)
    }

    /// Whether there are pages whose prefix begins with `prefix` and is longer.
    fn is_split(&self, prefix: Prefix) -> bool {
        let mut below = self.leaves.range(prefix..).map(|(leaf, _)| leaf);
        below.next().is_some_and(|leaf| leaf.depth() > prefix.depth() && leaf.range().0 <= prefix.range().1)
    }
}

/// A tree, and the pages that must be written, or be seen to exist, before a head may name it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The tree.
    pub tree: Tree,
    /// The pages to write or see, with their shards.
    pub pages: Vec<(u32, Arc<StoredPage>)>,
}

/// Pages cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A value does not fit into a page.
    #[error("failed to plan pages: the value of {0} does not fit into a page")]
    Value(Arc<str>),
    /// The state is too large.
    #[error("failed to plan pages: the state needs more than {MAX_SHARDS} shards")]
    Shards,
}

/// A published map with its tree, which a plan can reuse.
pub type Published<'a> = (&'a Tree, &'a Map);

/// Plans the pages of `map` with the flush id `flush`, in at least `shards` shards. Pages of `previous` whose content
/// and place do not change are reused. Without it everything is written again, except for pages in `written` with the
/// same shard and digest: pages of other flushes to which nothing refers yet.
///
/// # Errors
/// A value does not fit into a page by itself, or there are more pages than [`MAX_SHARDS`] shards can hold.
pub fn plan(
    previous: Option<Published<'_>>,
    written: impl Fn(u32, Digest) -> Option<Arc<StoredPage>>,
    map: &Map,
    flush: &str,
    shards: u32,
    limits: &Limits,
) -> Result<Plan, Error> {
    let mut items: Vec<Item<'_>> = map.iter().map(|(key, value)| (hash(key), key, value)).collect();
    items.sort_unstable_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
    let mut changed: Vec<u64> =
        previous.map_or_else(Vec::new, |(_, base)| base.difference(map).map(|(key, ..)| hash(key)).collect());
    changed.sort_unstable();
    let mut shards = previous.map_or(1, |(tree, _)| tree.root.shards).max(shards);
    loop {
        let mut planner = Planner {
            previous: previous.map(|(tree, _)| tree),
            changed: &changed,
            written: &written,
            flush: flush.into(),
            shards,
            limits,
            leaves: BTreeMap::new(),
            pages: Vec::new(),
        };
        planner.split(Prefix::ALL, &items)?;
        let plan = planner.index();
        let mut live = BTreeMap::<u32, usize>::new();
        plan.tree.pages().for_each(|(shard, _)| *live.entry(shard).or_default() += 1);
        if live.values().all(|pages| *pages <= limits.live_pages) {
            return Ok(plan);
        }
        if shards >= MAX_SHARDS {
            return Err(Error::Shards);
        }
        shards *= 2;
    }
}

type Item<'a> = (u64, &'a Arc<str>, &'a Value);

pub(super) fn hash(key: &str) -> u64 {
    let digest = Sha256::digest(key.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(first)
}

struct Planner<'a> {
    previous: Option<&'a Tree>,
    changed: &'a [u64],
    written: &'a dyn Fn(u32, Digest) -> Option<Arc<StoredPage>>,
    flush: Arc<str>,
    shards: u32,
    limits: &'a Limits,
    leaves: BTreeMap<Prefix, (PageId, Digest)>,
    pages: Vec<(u32, Arc<StoredPage>)>,
}

impl Planner<'_> {
    fn split(&mut self, prefix: Prefix, items: &[Item<'_>]) -> Result<(), Error> {
        let Some((_, key, _)) = items.first() else { return Ok(()) };
        let placed = 1u32 << prefix.depth().min(31) >= self.shards;
        let mut try_here = placed;
        if let Some(previous) = self.previous
            && placed
            && self.is_unchanged(prefix)
        {
            if let Some(leaf) = previous.leaf(prefix, self.shards) {
                self.leaves.insert(prefix, leaf.clone());
                return Ok(());
            }
            try_here = !previous.is_split(prefix);
        }
        let raw: usize = items.iter().map(|(_, key, value)| key.len() + value.len() + 8).sum();
        let deepest = prefix.depth() >= Prefix::MAX_DEPTH;
        if try_here && (items.len() == 1 || deepest || raw <= MAX_RATIO * self.limits.page_bytes) {
            let mut pairs: Vec<_> = items.iter().map(|(_, key, value)| (*key, *value)).collect();
            pairs.sort_unstable_by_key(|(key, _)| *key);
            let bytes = page::encode_pairs(pairs.into_iter(), self.limits.compression);
            if bytes.len() <= self.limits.page_bytes {
                let shard = prefix.shard(self.shards);
                let reusable = self.previous.and_then(|tree| tree.leaf(prefix, self.shards)).cloned();
                let leaf = self.place(shard, bytes, reusable);
                self.leaves.insert(prefix, leaf);
                return Ok(());
            }
            if items.len() == 1 || deepest {
                return Err(Error::Value((*key).clone()));
            }
        }
        let (zero, one) = prefix.split();
        let middle = items.partition_point(|(hash, _, _)| *hash < one.range().0);
        self.split(zero, &items[..middle])?;
        self.split(one, &items[middle..])
    }

    fn is_unchanged(&self, prefix: Prefix) -> bool {
        let (first, last) = prefix.range();
        let at = self.changed.partition_point(|hash| *hash < first);
        self.changed.get(at).is_none_or(|hash| *hash > last)
    }

    /// Reuses a page with these bytes, or writes a new one.
    fn place(&mut self, shard: u32, bytes: Vec<u8>, reusable: Option<(PageId, Digest)>) -> (PageId, Digest) {
        let page = StoredPage::new(PageId { flush: self.flush.clone(), number: self.pages.len() as u32 }, bytes);
        match reusable {
            Some((id, digest)) if digest == page.digest => (id, digest),
            _ => {
                let page = (self.written)(shard, page.digest).unwrap_or_else(|| Arc::new(page));
                let placed = (page.id.clone(), page.digest);
                self.pages.push((shard, page));
                placed
            }
        }
    }

    fn index(mut self) -> Plan {
        let written: BTreeMap<(u32, Digest), PageId> = self.previous.map_or_else(BTreeMap::new, |tree| {
            tree.root.pages.iter().map(|page| ((page.shard, page.digest), page.id.clone())).collect()
        });
        let mut by_shard = BTreeMap::<u32, Vec<Entry>>::new();
        for (prefix, (page, digest)) in &self.leaves {
            let entry = Entry { prefix: *prefix, page: page.clone(), digest: *digest };
            by_shard.entry(prefix.shard(self.shards)).or_default().push(entry);
        }
        let mut root = Vec::new();
        for (shard, entries) in by_shard {
            for entries in entries.chunks(self.limits.index_entries) {
                let bytes = page::encode_index(entries, self.limits.compression);
                let digest = Digest::of(&bytes);
                let reusable = written.get(&(shard, digest)).map(|id| (id.clone(), digest));
                let (id, digest) = self.place(shard, bytes, reusable);
                root.push(RootPage { shard, id, digest });
            }
        }
        let tree = Tree { root: Root { shards: self.shards, pages: root.into() }, leaves: self.leaves };
        Plan { tree, pages: self.pages }
    }
}

/// Decoded pages by id, each with the digest against which it was verified.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    index: BTreeMap<PageId, (Digest, Arc<[Entry]>)>,
    /// With the prefix that all of its keys have.
    data: BTreeMap<PageId, (Digest, Prefix, Pairs)>,
}

/// A map that was read and verified, page by page, against a root.
#[derive(Debug, Clone)]
pub struct Verified {
    /// The tree.
    pub tree: Tree,
    /// The map.
    pub map: Map,
    /// The pages of this tree only.
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

/// Reads the map under `root` from `cache` and the `found` pages, as a whole or not at all.
///
/// A digest only proves that these are the pages that the root's writer meant. Their content is checked as well: each
/// page has the keys of its prefix, no two prefixes overlap, and the whole stays within the limits ([`MAX_PAGES`],
/// [`MAX_PAIRS`], [`MAX_STATE_BYTES`]) before more of it is unpacked.
pub fn verify(root: &Root, cache: &Cache, found: &BTreeMap<PageId, Arc<StoredPage>>) -> Result<Verified, Missing> {
    let mut verified = Verified { tree: Tree::empty(root.shards), map: Map::new(), cache: Cache::default() };
    verified.tree.root = root.clone();
    let mut missing = BTreeSet::new();
    let broken = |why| Missing { pages: BTreeSet::new(), broken: Some(why) };
    let stored = |id: &PageId, digest: Digest| found.get(id).filter(|page| page.digest == digest);
    let (mut listed, mut pairs_read, mut bytes) = (0, 0, 0);
    for root_page in root.pages.iter() {
        let cached = cache.index.get(&root_page.id).filter(|(digest, _)| *digest == root_page.digest);
        let entries = match (cached, stored(&root_page.id, root_page.digest)) {
            (Some((_, entries)), _) => entries.clone(),
            (None, Some(page)) => page::decode_index(&page.bytes)
                .map_err(|_| broken("an index page has the right digest but cannot be read"))?,
            (None, None) => {
                missing.insert((root_page.shard, root_page.id.clone()));
                continue;
            }
        };
        listed += 1 + entries.len();
        if listed > MAX_PAGES {
            return Err(broken("the root has more pages than a cluster may have"));
        }
        for entry in entries.iter() {
            if entry.prefix.shard(root.shards) != root_page.shard {
                return Err(broken("a page is in another shard than its prefix"));
            }
            let cached = cache.data.get(&entry.page);
            let cached = cached.filter(|(digest, prefix, _)| (*digest, *prefix) == (entry.digest, entry.prefix));
            let pairs = match (cached, stored(&entry.page, entry.digest)) {
                (Some((_, _, pairs)), _) => pairs.clone(),
                (None, Some(page)) => {
                    let pairs = page::decode_pairs(&page.bytes)
                        .map_err(|_| broken("a page has the right digest but cannot be read"))?;
                    let (first, last) = entry.prefix.range();
                    if !pairs.iter().all(|(key, _)| (first..=last).contains(&hash(key))) {
                        return Err(broken("a page has keys that do not belong to its prefix"));
                    }
                    pairs
                }
                (None, None) => {
                    missing.insert((entry.prefix.shard(root.shards), entry.page.clone()));
                    continue;
                }
            };
            pairs_read += pairs.len();
            bytes += pairs.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
            if pairs_read > MAX_PAIRS || bytes > MAX_STATE_BYTES {
                return Err(broken("the state is larger than a cluster's may be"));
            }
            verified.map.extend(pairs.iter().cloned());
            verified.tree.leaves.insert(entry.prefix, (entry.page.clone(), entry.digest));
            verified.cache.data.insert(entry.page.clone(), (entry.digest, entry.prefix, pairs));
        }
        verified.cache.index.insert(root_page.id.clone(), (root_page.digest, entries));
    }
    if !missing.is_empty() {
        return Err(Missing { pages: missing, broken: None });
    }
    let leaves = verified.tree.leaves.keys();
    let overlaps = leaves.clone().zip(leaves.skip(1)).any(|(one, next)| next.range().0 <= one.range().1);
    if overlaps || verified.map.len() != pairs_read {
        return Err(broken("pages overlap"));
    }
    Ok(verified)
}

/// Why a state of so many pairs, and bytes in them, is larger than any reader takes.
pub(super) fn excess(pairs: usize, bytes: usize) -> Option<String> {
    (pairs > MAX_PAIRS || bytes > MAX_STATE_BYTES).then(|| {
        format!(
            "the exports of this cluster take {pairs} records of {bytes} bytes, and a cluster may have {MAX_PAIRS} of \
             {MAX_STATE_BYTES} in all: nothing new is published until there are fewer"
        )
    })
}

/// The pairs in those pages of `root` that are among `found`: a part of a state.
pub(super) fn salvage(root: &Root, found: &BTreeMap<PageId, Arc<StoredPage>>) -> Map {
    let stored = |id: &PageId, digest: Digest| found.get(id).filter(|page| page.digest == digest);
    let index = root.pages.iter().filter_map(|page| page::decode_index(&stored(&page.id, page.digest)?.bytes).ok());
    let entries: Vec<Entry> = index.flat_map(|entries| entries.to_vec()).collect();
    let pages = entries.iter().filter_map(|entry| page::decode_pairs(&stored(&entry.page, entry.digest)?.bytes).ok());
    pages.flat_map(|pairs| pairs.to_vec()).collect()
}

/// The pages that `root` needs, as far as its index pages are among `known`; for garbage collection.
pub(super) fn reachable(root: &Root, known: &BTreeMap<PageId, Arc<StoredPage>>) -> BTreeSet<PageId> {
    let mut reachable = BTreeSet::new();
    for root_page in root.pages.iter() {
        reachable.insert(root_page.id.clone());
        let page = known.get(&root_page.id).filter(|page| page.digest == root_page.digest);
        if let Some(entries) = page.and_then(|page| page::decode_index(&page.bytes).ok()) {
            reachable.extend(entries.iter().map(|entry| entry.page.clone()));
        }
    }
    reachable
}
