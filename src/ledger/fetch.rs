//! Reading a root: which pages to request, and in which order. Readers (R5), a new leader (W2) and the audit (W8) use
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Map,
    call::{Call, CallId, Outbox, Outcome, Pages},
    head::Root,
    limits::{MAX_PAGES, MAX_READS, MAX_STATE_BYTES},
    page::{PageId, StoredPage},
    verify::{self, Cache, Missing, Verified},
};

/// Up to this many flushes of a shard are read one by one. More need one read of everything.
const FEW_FLUSHES: usize = 8;

/// Why pages do not count although they verify.
pub(super) const UNEXPECTED: &str = "the state has another hash than its head says";

/// One attempt to read and verify a root. At most one call is in flight.
#[derive(Debug)]
pub(super) struct Fetch {
    cluster: Arc<str>,
    pub root: Root,
    cache: Cache,
    /// Bytes that the state may have.
    most: usize,
    /// Bytes of the pages that were found.
    bytes: usize,
    found: BTreeMap<PageId, Arc<StoredPage>>,
    /// Reads that were made: a shard, and a flush or everything. The value says whether everything was truncated.
    made: BTreeSet<(u32, Option<Arc<str>>)>,
    /// How many reads there were, also those that had to be made again.
    reads: usize,
    truncated: BTreeSet<u32>,
    /// Whether a read of one flush was truncated as well.
    partial: bool,
    call: Option<CallId>,
}

#[derive(Debug)]
pub(super) enum Progress {
    Waiting,
    Complete(Box<Verified>),
    /// Everything was read, and it does not verify.
    Failed(&'static str),
    /// A read failed or was partial. This proves nothing about the pages.
    Unread(&'static str),
}

impl Fetch {
    pub(super) fn new(cluster: Arc<str>, root: Root, cache: Cache) -> Self {
        let (found, made, truncated) = Default::default();
        let most = MAX_STATE_BYTES;
        Self { cluster, root, cache, most, bytes: 0, found, made, reads: 0, truncated, partial: false, call: None }
    }

    /// The same for a state of so many bytes at most.
    pub(super) fn within(self, most: usize) -> Self {
        Self { most: most.min(MAX_STATE_BYTES), ..self }
    }

    /// What the pages take that were read, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn cluster(&self) -> &Arc<str> {
        &self.cluster
    }

    pub(super) fn waits_for(&self, id: CallId) -> bool {
        self.call == Some(id)
    }

    /// Verifies what is there, or requests more.
    pub(super) fn advance(&mut self, out: &mut Outbox) -> Progress {
        let missing = match verify::verify_within(&self.root, &self.cache, &self.found, self.most) {
            Ok(verified) => return Progress::Complete(Box::new(verified)),
            Err(Missing { broken: Some(broken), .. }) => return Progress::Failed(broken),
            Err(Missing { pages, broken: None }) => pages,
        };
        let Some(read) = self.next_read(&missing) else {
            let what = "pages in the root are missing or differ";
            return if self.partial { Progress::Unread(what) } else { Progress::Failed(what) };
        };
        self.made.insert(read.clone());
        self.reads += 1;
        let (shard, flush) = read;
        self.call = Some(out.call(Call::ReadPages { cluster: self.cluster.clone(), shard, flush }));
        Progress::Waiting
    }

    /// Another root is wanted now. What was read counts: most pages of a root are in the next one, too.
    pub(super) fn move_on(&mut self, root: Root, read: &Pages, out: &mut Outbox) -> Progress {
        self.root = root;
        self.call = None;
        (self.made, self.reads, self.truncated, self.partial) = Default::default();
        self.take(read);
        self.advance(out)
    }

    /// Takes the outcome of the awaited read.
    pub(super) fn on_outcome(&mut self, outcome: &Outcome, out: &mut Outbox) -> Progress {
        match outcome {
            Outcome::Pages(pages) => self.on_pages(Some(pages), out),
            _ => self.on_pages(None, out),
        }
    }

    pub(super) fn on_pages(&mut self, pages: Option<&Pages>, out: &mut Outbox) -> Progress {
        let read = self.call.take();
        debug_assert!(read.is_some(), "only an awaited read comes here");
        let Some(pages) = pages else { return Progress::Unread("reading the pages failed") };
        if self.reads > MAX_READS {
            return Progress::Failed("the state needs more reads than allowed for a cluster");
        }
        if pages.truncated {
            let whole: Vec<u32> =
                self.made.iter().filter(|(_, flush)| flush.is_none()).map(|(shard, _)| *shard).collect();
            self.partial |= whole.iter().all(|shard| self.truncated.contains(shard));
            self.truncated.extend(whole);
        }
        self.take(pages);
        self.advance(out)
    }

    /// Takes pages that were read. Where there are many, most are garbage, which nobody may have been able to delete for hours:
    /// those that the root does not need, as far as is known, are dropped. An index that is read later may name one, and then it
    /// is read again.
    fn take(&mut self, read: &Pages) {
        self.found.extend(read.pages.iter().map(|page| (page.id.clone(), page.clone())));
        if self.found.len() > 2 * MAX_PAGES {
            let needed = verify::reachable(&self.root, &self.found);
            self.found.retain(|page, _| needed.contains(page));
            self.made.clear();
        }
        self.bytes = self.found.values().map(|page| page.bytes.len()).sum();
    }

    /// The readable part of a root that does not verify.
    pub(super) fn salvage(&self) -> Map {
        verify::salvage(&self.root, &self.found)
    }

    fn next_read(&self, missing: &BTreeSet<(u32, PageId)>) -> Option<(u32, Option<Arc<str>>)> {
        let mut flushes = BTreeMap::<u32, BTreeSet<&Arc<str>>>::new();
        for (shard, page) in missing {
            flushes.entry(*shard).or_default().insert(&page.flush);
        }
        flushes.into_iter().find_map(|(shard, flushes)| {
            let unread = |flush: &&&Arc<str>| !self.made.contains(&(shard, Some((**flush).clone())));
            let one = flushes.iter().find(unread).map(|flush| (shard, Some((*flush).clone())));
            let all_read = self.made.contains(&(shard, None));
            match one {
                Some(one) if flushes.len() <= FEW_FLUSHES && !all_read => Some(one),
                Some(one) if self.truncated.contains(&shard) => Some(one),
                _ if !all_read => Some((shard, None)),
                _ => None,
            }
        })
    }
}
