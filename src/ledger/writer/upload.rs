//! Pages on their way into the registry: written, and then seen there (W5).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{Now, garbage::Garbage};
use crate::{
    call::{Call, CallId, Outbox, Outcome, Pages},
    codec::Digest,
    limits::Timing,
    page::{PageId, StoredPage},
};

/// Up to this many flushes of a shard are read one by one.
const FEW_FLUSHES: usize = 4;

/// Pages that abandoned uploads have written, by digest and shard, so that the same bytes need not be written again.
pub(super) type Spare = BTreeMap<(Digest, u32), Arc<StoredPage>>;

/// The pages of one flush, or of one new tree.
#[derive(Debug)]
pub(super) struct Upload {
    id: Arc<str>,
    pub started: Duration,
    /// When it last made progress.
    progressed: Duration,
    /// The pages that it writes, and those that abandoned uploads have already written.
    pages: BTreeMap<PageId, (u32, Arc<StoredPage>)>,
    waiting: Vec<PageId>,
    /// With the times when they were made.
    calls: BTreeMap<CallId, (PageId, Duration)>,
    retries: Vec<(Duration, PageId)>,
    written: BTreeSet<PageId>,
    /// A successful operation does not mean that the page is visible. No head may name the pages before a discovery
    /// showed all of them.
    unseen: BTreeSet<PageId>,
    looks: BTreeSet<CallId>,
    next_look: Duration,
}

/// How far an upload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Working,
    /// All pages were seen.
    Seen,
    /// No page was written or seen for too long.
    Stuck,
}

impl Upload {
    pub(super) fn new(id: Arc<str>, pages: Vec<(u32, Arc<StoredPage>)>, now: Duration) -> Self {
        let pages: BTreeMap<_, _> = pages.into_iter().map(|(shard, page)| (page.id.clone(), (shard, page))).collect();
        Self {
            started: now,
            progressed: now,
            waiting: pages.keys().rev().filter(|page| page.flush == id).cloned().collect(),
            calls: BTreeMap::new(),
            retries: Vec::new(),
            written: BTreeSet::new(),
            unseen: pages.keys().cloned().collect(),
            looks: BTreeSet::new(),
            next_look: now,
            pages,
            id,
        }
    }

    pub(super) fn has(&self, page: &PageId) -> bool {
        self.pages.contains_key(page)
    }

    /// Its writes, with the shards of the pages.
    pub(super) fn calls(&self) -> impl Iterator<Item = (CallId, u32)> {
        self.calls.iter().map(move |(call, (page, _))| (*call, self.pages[page].0))
    }

    /// Whether it has pages in this shard.
    pub(super) fn is_in(&self, shard: u32) -> bool {
        self.pages.values().any(|(in_shard, _)| *in_shard == shard)
    }

    fn writes(&self) -> bool {
        !(self.waiting.is_empty() && self.calls.is_empty() && self.retries.is_empty())
    }

    /// Writes, at most `most` pages at a time, and looks. What is written counts against the room that `garbage` knows of.
    pub(super) fn advance(
        &mut self,
        now: Now,
        most: usize,
        timing: &Timing,
        cluster: &Arc<str>,
        garbage: &mut Garbage,
        out: &mut Outbox,
    ) -> Progress {
        if self.unseen.is_empty() {
            return Progress::Seen;
        }
        if now.mono.saturating_sub(self.progressed) >= timing.flush_limit {
            return Progress::Stuck;
        }
        out.wake_at(self.progressed + timing.flush_limit);
        self.waiting.extend(self.retries.extract_if(.., |(at, _)| *at <= now.mono).map(|(_, page)| page));
        while self.calls.len() < most
            && let Some(id) = self.waiting.pop()
        {
            let (shard, page) = &self.pages[&id];
            garbage.issue(*shard, &id, now.mono);
            let call = out.call(Call::PutPage { shard: *shard, page: page.clone() });
            self.calls.insert(call, (id, now.mono));
        }
        for (at, _) in &self.retries {
            out.wake_at(*at);
        }
        let overdue = self.calls.values().map(|(_, made)| *made + timing.overdue).min();
        if !self.writes() || !self.retries.is_empty() || overdue.is_some_and(|overdue| now.mono >= overdue) {
            self.look(now, cluster, out);
        } else if let Some(overdue) = overdue {
            out.wake_at(overdue);
        }
        Progress::Working
    }

    /// Looks for pages that were not seen yet. A page that exists is written, whatever became of its operation.
    fn look(&mut self, now: Now, cluster: &Arc<str>, out: &mut Outbox) {
        if !self.looks.is_empty() {
            return;
        }
        if now.mono < self.next_look {
            return out.wake_at(self.next_look);
        }
        let mut flushes = BTreeMap::<u32, BTreeSet<Arc<str>>>::new();
        for page in &self.unseen {
            flushes.entry(self.pages[page].0).or_default().insert(page.flush.clone());
        }
        for (shard, flushes) in flushes {
            let each = flushes.len() <= FEW_FLUSHES;
            let asked = if each { flushes.into_iter().map(Some).collect() } else { vec![None] };
            for flush in asked {
                self.looks.insert(out.call(Call::ReadPages { cluster: cluster.clone(), shard, flush }));
            }
        }
    }

    fn seen(&mut self, now: Now, found: &Pages, out: &mut Outbox) {
        for found in &found.pages {
            if self.pages.get(&found.id).is_some_and(|(_, page)| page.digest == found.digest)
                && self.unseen.remove(&found.id)
            {
                self.progressed = now.mono;
            }
        }
        self.waiting.retain(|page| self.unseen.contains(page));
        self.retries.retain(|(_, page)| self.unseen.contains(page));
        self.calls.retain(|call, (page, _)| {
            let waits = self.unseen.contains(page);
            if !waits {
                out.cancel(*call);
            }
            waits
        });
    }

    /// Takes the outcome of a call; `false` if it is not this upload's. A page whose write failed is written again at
    /// `retry_at`: it is immutable, so that this is harmless.
    pub(super) fn done(
        &mut self,
        now: Now,
        id: CallId,
        outcome: &Outcome,
        see: Duration,
        retry_at: Duration,
        out: &mut Outbox,
    ) -> bool {
        if self.looks.remove(&id) {
            self.next_look = now.mono + see;
            if let Outcome::Pages(pages) = outcome {
                self.seen(now, pages, out);
            }
            return true;
        }
        let Some((page, _)) = self.calls.remove(&id) else { return false };
        if matches!(outcome, Outcome::Done) {
            self.written.insert(page);
            self.progressed = now.mono;
        } else {
            self.retries.push((retry_at, page));
        }
        if !self.writes() {
            self.next_look = now.mono;
        }
        true
    }

    /// Remembers the pages that are written. The upload's own id is never used again.
    pub(super) fn spare(self, spare: &mut Spare) {
        let writes = self.writes();
        for (id, (shard, page)) in self.pages {
            // Once all writes are over, a page that did not appear is gone.
            let written = writes && (self.written.contains(&id) || id.flush != self.id);
            let key = (page.digest, shard);
            if written || !self.unseen.contains(&id) {
                spare.insert(key, page);
            } else if spare.get(&key).is_some_and(|spare| spare.id == id) {
                spare.remove(&key);
            }
        }
    }
}
