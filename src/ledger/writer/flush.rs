//! W5: pages for a new base, so that the delta becomes empty again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{Now, Writer, publish::Sent};
use crate::ledger::{
    Map,
    call::{Call, CallId, Outbox, Outcome, Pages},
    head::Delta,
    page::{PageId, StoredPage},
    tree::{self, Plan, Tree},
};

/// The delta is flushed above this share of its room.
const FULL_ENOUGH: f64 = 0.6;
/// Up to this many flushes of a shard are read one by one.
const FEW_FLUSHES: usize = 4;
/// How many times in a row a flush is repeated instead of replacing a state that may be newer.
const MOST_DISCARDED: u32 = 3;

/// How many flushes may follow each other at once after a pause.
const FLUSH_BURST: u32 = 3;

/// One flush, from its snapshot to its visible pages.
#[derive(Debug)]
pub(super) struct Flush {
    id: Arc<str>,
    started: Duration,
    /// When it last made progress.
    progressed: Duration,
    snapshot: Arc<Map>,
    generation: u64,
    tree: Tree,
    /// The pages that it writes, and those that abandoned flushes have already written.
    pages: BTreeMap<PageId, (u32, Arc<StoredPage>)>,
    /// A successful operation does not mean that the page is visible. No head may name the pages before a discovery
    /// showed all of them.
    unseen: BTreeSet<PageId>,
    looks: BTreeSet<CallId>,
    next_look: Duration,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// Listing the shards to be written, to see whether there is room.
    List {
        calls: BTreeMap<CallId, u32>,
        listed: BTreeMap<u32, Arc<Pages>>,
    },
    /// Claiming a further shard.
    Grow {
        call: CallId,
    },
    Write {
        waiting: Vec<PageId>,
        /// With the times when they were made.
        calls: BTreeMap<CallId, (PageId, Duration)>,
        retries: Vec<(Duration, PageId)>,
        written: BTreeSet<PageId>,
    },
    See,
}

impl Flush {
    pub(super) fn has(&self, page: &PageId) -> bool {
        self.pages.contains_key(page)
    }

    fn is_new(&self, page: &PageId) -> bool {
        page.flush == self.id
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
        if let Step::Write { waiting, calls, retries, .. } = &mut self.step {
            waiting.retain(|page| self.unseen.contains(page));
            retries.retain(|(_, page)| self.unseen.contains(page));
            calls.retain(|call, (page, _)| {
                let waits = self.unseen.contains(page);
                if !waits {
                    out.cancel(*call);
                }
                waits
            });
        }
    }
}

impl Writer {
    pub(super) fn flush(&mut self, now: Now, out: &mut Outbox) {
        let Some(flush) = &mut self.run.flush else { return self.start_flush(now, out) };
        if now.mono.saturating_sub(flush.progressed) >= self.timing.flush_limit {
            return self.abandon_flush(now, "the ledger's pages cannot be written; there was no progress for minutes");
        }
        out.wake_at(flush.progressed + self.timing.flush_limit);
        match &mut flush.step {
            Step::Write { waiting, calls, retries, .. } => {
                waiting.extend(retries.extract_if(.., |(at, _)| *at <= now.mono).map(|(_, page)| page));
                while calls.len() < self.limits.flush_concurrency
                    && let Some(id) = waiting.pop()
                {
                    let (shard, page) = &flush.pages[&id];
                    self.run.garbage.issue(*shard, &id, now.mono);
                    self.run.figures.page_writes += 1;
                    let call = out.call(Call::PutPage { shard: *shard, page: page.clone() });
                    calls.insert(call, (id, now.mono));
                }
                for (at, _) in retries.iter() {
                    out.wake_at(*at);
                }
                let overdue = calls.values().map(|(_, made)| *made + self.timing.overdue).min();
                if waiting.is_empty() && calls.is_empty() && retries.is_empty() {
                    flush.step = Step::See;
                    flush.next_look = now.mono;
                    self.flush(now, out);
                } else if !retries.is_empty() || overdue.is_some_and(|overdue| now.mono >= overdue) {
                    flush.look(now, &self.me.cluster, out);
                } else if let Some(overdue) = overdue {
                    out.wake_at(overdue);
                }
            }
            Step::See if flush.unseen.is_empty() => self.finish_flush(now, out),
            Step::See => flush.look(now, &self.me.cluster, out),
            Step::List { .. } | Step::Grow { .. } => {}
        }
    }

    fn start_flush(&mut self, now: Now, out: &mut Outbox) {
        let due_later = self.changed_at + self.timing.quiet;
        let anew = self.run.baseless || self.run.rewrite;
        let Some(measured) = self.measure(now) else { return };
        let pending = !measured.delta.is_empty();
        if !(anew || measured.occupancy > FULL_ENOUGH || pending && now.mono >= due_later) {
            if pending {
                out.wake_at(due_later);
            }
            return;
        }
        if now.mono < self.run.next_flush {
            return out.wake_at(self.run.next_flush);
        }
        let Some(snapshot) = self.desired.clone() else { return };
        self.run.flushes += 1;
        let id: Arc<str> = format!("{}-{}-{:08x}", self.epoch, self.run.flushes, self.ids.next() as u32).into();
        let previous = (!anew).then_some((&self.run.tree, &*self.run.base));
        let written = |shard, digest| self.run.spare.get(&(shard, digest)).cloned();
        let plan = tree::plan(previous, written, &snapshot, &id, self.run.tree.root.shards, &self.limits);
        let Plan { tree, pages } = match plan {
            Ok(plan) => plan,
            Err(error) => {
                self.error = Some(error.to_string());
                self.run.next_flush = now.mono + self.timing.quiet;
                return;
            }
        };
        if anew {
            self.run.figures.full_flushes += 1;
        }
        let mut flush = Flush {
            id,
            started: now.mono,
            progressed: now.mono,
            snapshot,
            generation: self.generation,
            tree,
            unseen: pages.iter().map(|(_, page)| page.id.clone()).collect(),
            pages: pages.into_iter().map(|(shard, page)| (page.id.clone(), (shard, page))).collect(),
            looks: BTreeSet::new(),
            next_look: now.mono,
            step: Step::List { calls: BTreeMap::new(), listed: BTreeMap::new() },
        };
        let new = flush.pages.iter().filter(|(id, _)| flush.is_new(id));
        let shards: BTreeSet<u32> = new.map(|(_, (shard, _))| *shard).filter(|s| *s < self.shards).collect();
        if shards.is_empty() {
            self.run.flush = Some(flush);
            return self.grow_or_write(now, out);
        }
        let cluster = &self.me.cluster;
        let list = |shard| (out.call(Call::ReadPages { cluster: cluster.clone(), shard, flush: None }), shard);
        flush.step = Step::List { calls: shards.into_iter().map(list).collect(), listed: BTreeMap::new() };
        self.run.flush = Some(flush);
    }

    /// All shards are listed. Checks whether there is room for the new pages beside live ones, garbage and writes in
    /// flight.
    fn check_room(&mut self, now: Now, out: &mut Outbox) {
        let Some(flush) = &self.run.flush else { return };
        let Step::List { listed, .. } = &flush.step else { return };
        let room = listed.iter().all(|(shard, listing)| {
            let new = flush.pages.iter().filter(|(id, (of, _))| of == shard && flush.is_new(id)).count();
            !listing.truncated && self.run.garbage.occupied(*shard, listing, now.mono) + new <= self.limits.pages
        });
        if room {
            self.grow_or_write(now, out);
        } else {
            self.run.figures.flush_quota_waits += 1;
            self.error = Some("the ledger waits for room; garbage pages are being deleted".to_owned());
            self.run.garbage.hurry(now.mono);
            self.drop_flush(now);
        }
    }

    fn grow_or_write(&mut self, now: Now, out: &mut Outbox) {
        let Some(flush) = &mut self.run.flush else { return };
        if flush.tree.root.shards > self.shards {
            flush.step = Step::Grow { call: out.call(Call::Claim { shard: self.shards }) };
            return;
        }
        let waiting = flush.pages.keys().rev().filter(|id| flush.is_new(id)).cloned().collect();
        let (calls, retries, written) = Default::default();
        flush.step = Step::Write { waiting, calls, retries, written };
        flush.progressed = now.mono;
        self.flush(now, out);
    }

    pub(super) fn flush_done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        let retry_at = now.mono + self.timing.retry_min / 2 + self.timing.retry_min.mul_f64(self.fraction());
        let Some(flush) = &mut self.run.flush else { return false };
        if flush.looks.remove(&id) {
            flush.next_look = now.mono + self.timing.see;
            if let Outcome::Pages(pages) = outcome {
                flush.seen(now, pages, out);
            }
            return true;
        }
        match &mut flush.step {
            Step::List { calls, listed } => {
                let Some(shard) = calls.remove(&id) else { return false };
                let Outcome::Pages(pages) = outcome else {
                    self.note(outcome);
                    self.drop_flush(now);
                    return true;
                };
                listed.insert(shard, pages.clone());
                if calls.is_empty() {
                    self.check_room(now, out);
                }
            }
            Step::Grow { call } => {
                if *call != id {
                    return false;
                }
                match outcome {
                    Outcome::Claimed { .. } => {
                        self.shards += 1;
                        self.grow_or_write(now, out);
                    }
                    Outcome::Taken { owner } => {
                        let service = super::super::service_name(&self.me.cluster, self.shards);
                        self.abandon_flush(now, &format!("the service {service} belongs to {owner}"));
                    }
                    outcome => {
                        self.note(outcome);
                        self.drop_flush(now);
                    }
                }
            }
            Step::Write { calls, retries, written, .. } => {
                let Some((page, _)) = calls.remove(&id) else { return false };
                if matches!(outcome, Outcome::Done) {
                    written.insert(page);
                    flush.progressed = now.mono;
                } else {
                    // The page is immutable, so writing it again under its id is harmless.
                    retries.push((retry_at, page));
                    self.note(outcome);
                }
            }
            Step::See => return false,
        }
        true
    }

    /// Whether a call claims a further service for the running flush.
    pub(super) fn grows_by(&self, id: CallId) -> bool {
        matches!(&self.run.flush, Some(Flush { step: Step::Grow { call }, .. }) if *call == id)
    }

    fn fraction(&mut self) -> f64 {
        (self.ids.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn abandon_flush(&mut self, now: Now, why: &str) {
        self.error = Some(why.to_owned());
        self.run.figures.flushes_abandoned += 1;
        if let Some(flush) = self.run.flush.take() {
            self.spare_pages(&flush);
        }
        self.drop_flush(now);
    }

    /// Remembers the pages that a flush has written, so that the next one need not write the same bytes again. The
    /// flush's own id is never used again.
    fn spare_pages(&mut self, flush: &Flush) {
        for (id, (shard, page)) in &flush.pages {
            let there = !flush.unseen.contains(id);
            let kept = match &flush.step {
                Step::Write { written, .. } => there || written.contains(id) || !flush.is_new(id),
                // A page that was written but did not appear is gone.
                Step::See => there,
                Step::List { .. } | Step::Grow { .. } => !flush.is_new(id),
            };
            let key = (*shard, page.digest);
            if kept {
                self.run.spare.insert(key, page.clone());
            } else if self.run.spare.get(&key).is_some_and(|spare| spare.id == *id) {
                self.run.spare.remove(&key);
            }
        }
    }

    fn drop_flush(&mut self, now: Now) {
        self.run.flush = None;
        self.space_flushes(now);
    }

    /// On average flushes are `flush_gap` apart. After a pause a few may follow each other at once: hundreds of new
    /// exports do not fit into one delta, and must not wait for seconds behind the first few that were flushed.
    fn space_flushes(&mut self, now: Now) {
        let gap = self.timing.flush_gap;
        self.run.next_flush = self.run.next_flush.max(now.mono.saturating_sub(gap * (FLUSH_BURST - 1))) + gap;
    }

    /// The pages are visible, so the snapshot becomes the base, unless nothing that may be sent next fits on it.
    fn finish_flush(&mut self, now: Now, out: &mut Outbox) {
        let Some(flush) = self.run.flush.take() else { return };
        self.space_flushes(now);
        self.spare_pages(&flush);
        let Some(desired) = self.desired.clone() else { return };
        let level = self.limits.compression;
        let old_tree = std::mem::replace(&mut self.run.tree, flush.tree);
        let fits = |writer: &Self, delta: &Arc<Delta>| writer.occupancy(now, delta) <= 1.0;
        // What is repeated while the desired state does not fit: never older than the last state sent. After an
        // election, the previous leader's state may be newer than a snapshot of caches that lag. A few times the flush
        // is repeated instead of going back.
        let lagging = self.run.discarded < MOST_DISCARDED && *flush.snapshot != *desired;
        let sent = match self.run.sent.take() {
            Some(sent) if sent.generation > flush.generation || sent.generation == 0 && lagging => {
                let delta = Arc::new(Delta::between(&flush.snapshot, &sent.map, level));
                if fits(self, &delta) { Ok(Sent { delta, ..sent }) } else { Err(Some(sent)) }
            }
            _ => Ok(Sent { map: flush.snapshot.clone(), delta: Arc::default(), generation: flush.generation }),
        };
        let desired_fits = fits(self, &Arc::new(Delta::between(&flush.snapshot, &desired, level)));
        match sent {
            Err(sent) if !desired_fits => {
                self.run.tree = old_tree;
                self.run.sent = sent;
                self.run.discarded += 1;
                self.run.figures.flushes_abandoned += 1;
                return;
            }
            sent => self.run.sent = sent.ok(),
        }
        self.run.discarded = 0;
        self.run.spare.clear();
        self.run.base = flush.snapshot;
        self.run.baseless = false;
        self.run.rewrite = false;
        self.run.measured = None;
        self.run.force = true;
        self.run.figures.flushes += 1;
        self.run.figures.flush_duration = Some(now.mono.saturating_sub(flush.started));
        self.run.garbage.expect(now.mono);
        self.publish(now, out);
    }
}
