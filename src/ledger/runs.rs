//! Runs: pages of changes that are appended to a tree, so that a change costs its own bytes and not the page that its key is
//! in. Once the runs are as large as the tree, a new tree replaces both. Pure.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Map,
    codec::Digest,
    head::{Change, Root, RootPage, RootRun},
    limits::Limits,
    page::{self, PageId, StoredPage},
    tree::{Error, Tree},
};

/// A head names so many run pages itself; more are put into an index.
const MOST_NAMED: usize = 8;

/// A page that has less than this share of its room is tried again with more changes.
const GOOD_FILL: f64 = 0.85;

/// A page of changes, and its number among all that were appended in this term.
type Member = (u64, RootPage);

/// What a root says about runs, with the members of its indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    root: RootRun,
    members: Arc<[Member]>,
}

/// The runs of a state, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    runs: Vec<Run>,
    /// The number of the next page.
    next: u64,
}

impl Runs {
    /// The runs of a root, each with the pages that it consists of.
    pub(super) fn read<'a>(runs: impl Iterator<Item = (&'a RootRun, &'a [RootPage])>) -> Self {
        let mut next = 0..;
        let runs = runs
            .map(|(root, members)| Run {
                root: root.clone(),
                members: members.iter().map(|member| (next.next().unwrap_or_default(), member.clone())).collect(),
            })
            .collect();
        Self { runs, next: next.start }
    }

    /// What the root says.
    pub(super) fn root(&self) -> Arc<[RootRun]> {
        self.runs.iter().map(|run| run.root.clone()).collect()
    }

    /// Number of pages of changes.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.members.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Number of index pages.
    pub fn index_pages(&self) -> usize {
        self.runs.iter().filter(|run| matches!(run.root, RootRun::Index(_))).count()
    }

    /// Every page, including indexes, with its shard.
    pub fn pages(&self) -> impl Iterator<Item = (u32, &PageId)> {
        self.runs.iter().flat_map(|run| {
            let index = matches!(run.root, RootRun::Index(_)).then(|| run.root.page());
            index.into_iter().chain(run.members.iter().map(|(_, page)| page)).map(|page| (page.shard, &page.id))
        })
    }

    /// What stands for the pages up to now: see [`Self::drop_until`].
    pub(super) const fn mark(&self) -> u64 {
        self.next
    }

    /// Drops the runs that have no page since `mark`, because a tree contains them. An index that also has older pages
    /// stays. It changes nothing: what the older pages say of a key, a later one of them or the tree says, too.
    pub(super) fn drop_until(&mut self, mark: u64) {
        self.runs.retain(|run| run.members.last().is_some_and(|(number, _)| *number >= mark));
    }

    /// Plans the pages for `packed` changes under the id `flush`. `place` says in which shard the next page goes; pages in
    /// `written` are there already. `None` if there is no place.
    pub(super) fn plan(
        &self,
        packed: Vec<Vec<u8>>,
        flush: &Arc<str>,
        written: impl Fn(Digest) -> Option<(u32, Arc<StoredPage>)>,
        mut place: impl FnMut() -> Option<u32>,
        limits: &Limits,
    ) -> Option<Appended> {
        let mut pages = Vec::new();
        let mut store = |bytes: Vec<u8>| {
            let id = PageId { flush: flush.clone(), number: pages.len() as u32 };
            let page = StoredPage::new(id, bytes);
            let (shard, page) = match written(page.digest) {
                Some(written) => written,
                None => (place()?, Arc::new(page)),
            };
            let root = RootPage { shard, id: page.id.clone(), digest: page.digest };
            pages.push((shard, page));
            Some(root)
        };
        let mut members: Vec<Member> = Vec::new();
        for (number, bytes) in (self.next..).zip(packed) {
            members.push((number, store(bytes)?));
        }
        let named = self.runs.iter().filter(|run| matches!(run.root, RootRun::Page(_))).count();
        if named + members.len() <= MOST_NAMED {
            let run = |member: Member| Run { root: RootRun::Page(member.1.clone()), members: [member].into() };
            let (grouped, earlier) = Default::default();
            return Some(Appended { runs: members.into_iter().map(run).collect(), grouped, earlier, pages });
        }
        // The ids of many flushes take as much room in an index as the digests.
        let full = (limits.index_entries / 2).max(1);
        let replaced = self.loose(full, limits.indexes);
        let merges = replaced.iter().any(|run| matches!(run.root, RootRun::Index(_)));
        let grouped = replaced.iter().map(|run| run.root.page().id.clone()).collect();
        let before = replaced.iter().flat_map(|run| run.members.iter());
        let earlier = before.clone().map(|(_, page)| page.id.clone()).collect();
        let all: Vec<Member> = before.cloned().chain(members).collect();
        let mut runs = Vec::new();
        for members in all.chunks(if merges { full } else { limits.index_entries }) {
            let index = store(page::encode_runs(members.iter().map(|(_, page)| page), limits.compression))?;
            runs.push(Run { root: RootRun::Index(index), members: members.into() });
        }
        Some(Appended { runs, grouped, earlier, pages })
    }

    /// The last runs, which new indexes replace: the pages that the root names itself. Once many of the indexes before
    /// them have few pages, these indexes are replaced, too.
    fn loose(&self, full: usize, most: usize) -> &[Run] {
        let is_page = |run: &Run| matches!(run.root, RootRun::Page(_));
        let named = self.runs.iter().position(is_page).unwrap_or(self.runs.len());
        let small = self.runs.iter().position(|run| run.members.len() < full).unwrap_or(self.runs.len());
        let small = &self.runs[small..];
        let indexes = small.iter().filter(|run| !is_page(run)).count();
        let pages: usize = small.iter().map(|run| run.members.len()).sum();
        let fewer = indexes >= most && pages.div_ceil(full) * 2 <= indexes;
        if fewer { small } else { &self.runs[named..] }
    }

    /// Appends what was planned. Runs may have been dropped since, but none was appended.
    pub(super) fn append(&mut self, appended: Appended) {
        self.runs.retain(|run| !appended.grouped.contains(&run.root.page().id));
        let last = appended.runs.iter().flat_map(|run| run.members.iter()).map(|(number, _)| number + 1).max();
        self.next = last.unwrap_or_default().max(self.next);
        self.runs.extend(appended.runs);
    }
}

/// Planned runs, and the pages that must be seen before a head may name them.
#[derive(Debug, Clone)]
pub(crate) struct Appended {
    runs: Vec<Run>,
    /// The run pages and indexes whose place the new indexes take.
    grouped: BTreeSet<PageId>,
    /// The run pages in the new indexes that are there already.
    earlier: BTreeSet<PageId>,
    /// The pages to write or see, with their shards.
    pub pages: Vec<(u32, Arc<StoredPage>)>,
}

impl Appended {
    /// Whether a planned index names this page, which is there already.
    pub(crate) fn groups(&self, page: &PageId) -> bool {
        self.earlier.contains(page)
    }
}

/// Packs changes into as many pages as they need.
///
/// # Errors
/// The value of a key does not fit into a page by itself.
pub(super) fn pack(changes: &[Change], limits: &Limits) -> Result<Vec<Vec<u8>>, Error> {
    let mut pages = Vec::new();
    let mut rest = changes;
    // How many changes the last page took: the next one is tried with as many.
    let mut guess = rest.len();
    while let Some((first, _)) = rest.first() {
        // The most that is known to fit, packed, and the fewest that are known not to.
        let (mut fits, mut exceeds) = ((0, Vec::new()), rest.len() + 1);
        let mut tried = guess.clamp(1, rest.len());
        loop {
            let packed = page::encode_changes(&rest[..tried], limits.compression);
            let length = packed.as_ref().map_or(usize::MAX, Vec::len);
            let share = length as f64 / limits.page_bytes as f64;
            match packed {
                Some(packed) if share <= 1.0 => fits = (tried, packed),
                _ => exceeds = tried,
            }
            let full = fits.0 == rest.len() || fits.0 > 0 && fits.1.len() as f64 > GOOD_FILL * limits.page_bytes as f64;
            if full || fits.0 + 1 >= exceeds {
                break;
            }
            let next = if length == usize::MAX { tried / 2 } else { (tried as f64 * 0.95 / share) as usize };
            tried = next.clamp(fits.0 + 1, exceeds - 1);
        }
        let (taken, packed) = fits;
        if taken == 0 {
            return Err(Error::Value(first.clone()));
        }
        pages.push(packed);
        rest = &rest[taken..];
        guess = taken;
    }
    Ok(pages)
}

/// The pages of a base, as the writer knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Number of shards, a power of two.
    pub shards: u32,
    /// The tree.
    pub tree: Arc<Tree>,
    /// What the tree says.
    pub base: Map,
    /// What was appended to it.
    pub runs: Runs,
}

impl Layout {
    /// Without pages, in at least so many shards.
    pub fn empty(shards: u32) -> Self {
        let (tree, base, runs) = Default::default();
        Self { shards: shards.next_power_of_two(), tree, base, runs }
    }

    /// The root that names these pages.
    pub fn root(&self) -> Root {
        Root { shards: self.shards, pages: self.tree.index.clone(), runs: self.runs.root() }
    }

    /// Every page, with its shard.
    pub fn pages(&self) -> impl Iterator<Item = (u32, &PageId)> {
        self.tree.pages().chain(self.runs.pages())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_pages_are_appended_one_by_one_a_head_has_room_to_name_them() {
        let count = 2_000_u32;
        // A head has room for about 75.
        for (indexes, most) in [(2, 40), (Limits::default().indexes, 50)] {
            let limits = Limits { indexes, ..Limits::default() };
            let mut runs = Runs::default();
            for n in 0..count {
                let flush: Arc<str> = format!("1234-{n}-{:08x}", n.wrapping_mul(0x9e37_79b9)).into();
                let page = n.to_be_bytes().to_vec();
                let appended = runs.plan(vec![page], &flush, |_| None, || Some(n % 16), &limits).unwrap();
                assert!(appended.pages.iter().all(|(_, page)| page.bytes.len() <= limits.page_bytes));
                runs.append(appended);
            }
            let numbers = runs.runs.iter().flat_map(|run| run.members.iter()).map(|(number, _)| *number);
            assert!(numbers.eq(0..u64::from(count)), "each page follows the one before");
            assert!(runs.root().len() < most, "{}", runs.root().len());
        }
    }
}
