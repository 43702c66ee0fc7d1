//! The page tree: a map that is split by bits of `sha256(key)` into pages, with index pages. Pure.
//!
//! A page is in the shard of its index page.

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest as _, Sha256};

use super::{
    Map, Value,
    codec::Digest,
    head::{MAX_SHARDS, RootPage},
    limits::{Limits, MAX_PAIRS, MAX_STATE_BYTES},
    page::{self, Entry, PageId, Prefix, StoredPage},
};

/// Deflate rarely makes records smaller than this fraction. Larger sets are split without trying.
const MAX_RATIO: usize = 8;

/// The pages that contain the pairs of a map.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// The index pages.
    pub(super) index: Arc<[RootPage]>,
    pub(super) leaves: BTreeMap<Prefix, RootPage>,
}

impl Tree {
    /// Number of data pages.
    pub fn data_pages(&self) -> usize {
        self.leaves.len()
    }

    /// Number of index pages.
    pub fn index_pages(&self) -> usize {
        self.index.len()
    }

    /// Every page that the tree needs, including index pages, with its shard.
    pub fn pages(&self) -> impl Iterator<Item = (u32, &PageId)> {
        self.index.iter().chain(self.leaves.values()).map(|page| (page.shard, &page.id))
    }

    /// The page of a prefix, if it is already in the shard that a tree with so many `shards` puts it into.
    fn leaf(&self, prefix: Prefix, shards: u32) -> Option<&RootPage> {
        self.leaves.get(&prefix).filter(|leaf| leaf.shard == prefix.shard(shards))
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
    /// In so many shards.
    pub shards: u32,
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

/// Plans the pages of `map` with the flush id `flush`, in at least `shards` shards, a power of two. Pages of `previous` whose content
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
    let mut shards = shards;
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
    leaves: BTreeMap<Prefix, RootPage>,
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
    fn place(&mut self, shard: u32, bytes: Vec<u8>, reusable: Option<RootPage>) -> RootPage {
        let page = StoredPage::new(PageId { flush: self.flush.clone(), number: self.pages.len() as u32 }, bytes);
        if let Some(reusable) = reusable.filter(|reusable| reusable.digest == page.digest) {
            return reusable;
        }
        let page = (self.written)(shard, page.digest).unwrap_or_else(|| Arc::new(page));
        let placed = RootPage { shard, id: page.id.clone(), digest: page.digest };
        self.pages.push((shard, page));
        placed
    }

    fn index(mut self) -> Plan {
        let written: BTreeMap<(u32, Digest), RootPage> = self.previous.map_or_else(BTreeMap::new, |tree| {
            tree.index.iter().map(|page| ((page.shard, page.digest), page.clone())).collect()
        });
        let mut by_shard = BTreeMap::<u32, Vec<Entry>>::new();
        for (prefix, page) in &self.leaves {
            let entry = Entry { prefix: *prefix, page: page.id.clone(), digest: page.digest };
            by_shard.entry(page.shard).or_default().push(entry);
        }
        let mut index = Vec::new();
        for (shard, entries) in by_shard {
            for entries in entries.chunks(self.limits.index_entries) {
                let bytes = page::encode_index(entries, self.limits.compression);
                let reusable = written.get(&(shard, Digest::of(&bytes))).cloned();
                index.push(self.place(shard, bytes, reusable));
            }
        }
        let tree = Tree { index: index.into(), leaves: self.leaves };
        Plan { tree, shards: self.shards, pages: self.pages }
    }
}

/// Why a state is too large for every reader, if it is: it has so many pairs, with so many bytes.
pub(super) fn excess(pairs: usize, bytes: usize) -> Option<String> {
    (pairs > MAX_PAIRS || bytes > MAX_STATE_BYTES).then(|| {
        format!(
            "the exports of this cluster take {pairs} records of {bytes} bytes, and a cluster may have {MAX_PAIRS} of \
             {MAX_STATE_BYTES} in all: nothing new is published until there are fewer"
        )
    })
}
