//! W5: pages under a new base, so that the delta can start from nothing again.

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

/// Above this share of its room the delta is flushed.
const FULL_ENOUGH: f64 = 0.6;
/// How often in a row a flush is made again rather than put before a state that may be newer.
const MOST_DISCARDED: u32 = 3;

/// Flushes that may follow each other without a gap after a pause.
const FLUSH_BURST: u32 = 3;

/// One flush, from its snapshot to its pages being visible.
#[derive(Debug)]
pub(super) struct Flush {
    id: Arc<str>,
    started: Duration,
    snapshot: Arc<Map>,
    generation: u64,
    tree: Tree,
    pages: BTreeMap<PageId, (u32, Arc<StoredPage>)>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The shards that it writes to are listed: is there room?
    List {
        calls: BTreeMap<CallId, u32>,
        listed: BTreeMap<u32, Arc<Pages>>,
    },
    /// A further shard is claimed.
    Grow {
        call: CallId,
    },
    Write {
        waiting: Vec<PageId>,
        calls: BTreeMap<CallId, PageId>,
        retries: Vec<(Duration, PageId)>,
    },
    /// SUCCESS is not visibility: until a discovery shows them all, no head may name them.
    See {
        unseen: BTreeSet<PageId>,
        calls: BTreeSet<CallId>,
        next: Duration,
    },
}

impl Flush {
    pub(super) fn has(&self, page: &PageId) -> bool {
        page.flush == self.id
    }
}

impl Writer {
    pub(super) fn flush(&mut self, now: Now, out: &mut Outbox) {
        let Some(flush) = &mut self.run.flush else { return self.start_flush(now, out) };
        if now.mono.saturating_sub(flush.started) > self.timing.flush_limit {
            return self.abandon_flush(now, "the flush took too long");
        }
        out.wake_at(flush.started + self.timing.flush_limit);
        match &mut flush.step {
            Step::Write { waiting, calls, retries } => {
                waiting.extend(retries.extract_if(.., |(at, _)| *at <= now.mono).map(|(_, page)| page));
                while calls.len() < self.limits.flush_concurrency
                    && let Some(id) = waiting.pop()
                {
                    let (shard, page) = &flush.pages[&id];
                    self.run.garbage.issue(*shard, &id, now.mono);
                    self.run.figures.page_writes += 1;
                    calls.insert(out.call(Call::PutPage { shard: *shard, page: page.clone() }), id);
                }
                for (at, _) in retries.iter() {
                    out.wake_at(*at);
                }
                if waiting.is_empty() && calls.is_empty() && retries.is_empty() {
                    let unseen = flush.pages.keys().cloned().collect();
                    flush.step = Step::See { unseen, calls: BTreeSet::new(), next: now.mono };
                    self.flush(now, out);
                }
            }
            Step::See { unseen, calls, next } => {
                if unseen.is_empty() {
                    return self.finish_flush(now, out);
                }
                if calls.is_empty() && now.mono >= *next {
                    let shards: BTreeSet<u32> = unseen.iter().map(|id| flush.pages[id].0).collect();
                    for shard in shards {
                        calls.insert(out.call(Call::ReadPages {
                            cluster: self.me.cluster.clone(),
                            shard,
                            flush: Some(flush.id.clone()),
                        }));
                    }
                } else if calls.is_empty() {
                    out.wake_at(*next);
                }
            }
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
        let plan = tree::plan(previous, &snapshot, &id, self.run.tree.root.shards, &self.limits);
        let Plan { tree, pages } = match plan {
            Ok(plan) => plan,
            Err(error) => {
                self.error = Some(error.to_string());
                self.run.next_flush = now.mono + self.timing.flush_limit;
                return;
            }
        };
        if anew {
            self.run.figures.full_flushes += 1;
        }
        let mut flush = Flush {
            id,
            started: now.mono,
            snapshot,
            generation: self.generation,
            tree,
            pages: pages.into_iter().map(|(shard, page)| (page.id.clone(), (shard, page))).collect(),
            step: Step::List { calls: BTreeMap::new(), listed: BTreeMap::new() },
        };
        let shards: BTreeSet<u32> =
            flush.pages.values().map(|(shard, _)| *shard).filter(|s| *s < self.shards).collect();
        if shards.is_empty() {
            self.run.flush = Some(flush);
            return self.grow_or_write(now, out);
        }
        let cluster = &self.me.cluster;
        let list = |shard| (out.call(Call::ReadPages { cluster: cluster.clone(), shard, flush: None }), shard);
        flush.step = Step::List { calls: shards.into_iter().map(list).collect(), listed: BTreeMap::new() };
        self.run.flush = Some(flush);
    }

    /// All shards are listed: is there room for the new pages beside live ones, garbage and writes under way?
    fn check_room(&mut self, now: Now, out: &mut Outbox) {
        let Some(Flush { step: Step::List { listed, .. }, pages, .. }) = &self.run.flush else { return };
        let room = listed.iter().all(|(shard, listing)| {
            let new = pages.values().filter(|(of, _)| of == shard).count();
            !listing.truncated && self.run.garbage.occupied(*shard, listing, now.mono) + new <= self.limits.pages
        });
        if room {
            self.grow_or_write(now, out);
        } else {
            self.run.figures.flush_quota_waits += 1;
            self.error = Some("the ledger waits for room: garbage pages are being collected".to_owned());
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
        let waiting = flush.pages.keys().rev().cloned().collect();
        flush.step = Step::Write { waiting, calls: BTreeMap::new(), retries: Vec::new() };
        self.flush(now, out);
    }

    pub(super) fn flush_done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        let retry_at = now.mono + self.timing.retry_min / 2 + self.timing.retry_min.mul_f64(self.fraction());
        let Some(flush) = &mut self.run.flush else { return false };
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
            Step::Write { calls, retries, .. } => {
                let Some(page) = calls.remove(&id) else { return false };
                if !matches!(outcome, Outcome::Done) {
                    // The page is immutable: writing it again under its id is harmless.
                    retries.push((retry_at, page));
                    self.note(outcome);
                }
            }
            Step::See { unseen, calls, next } => {
                if !calls.remove(&id) {
                    return false;
                }
                if let Outcome::Pages(pages) = outcome {
                    for page in &pages.pages {
                        if flush.pages.get(&page.id).is_some_and(|(_, written)| written.digest == page.digest) {
                            unseen.remove(&page.id);
                        }
                    }
                }
                *next = now.mono + self.timing.see;
            }
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
        self.drop_flush(now);
    }

    fn drop_flush(&mut self, now: Now) {
        self.run.flush = None;
        self.space_flushes(now);
    }

    /// Flushes are `flush_gap` apart on the mean, but after a pause a few may follow each other at once: hundreds of new
    /// exports do not fit into one delta, and must not wait for seconds behind the first few that were flushed.
    fn space_flushes(&mut self, now: Now) {
        let gap = self.timing.flush_gap;
        self.run.next_flush = self.run.next_flush.max(now.mono.saturating_sub(gap * (FLUSH_BURST - 1))) + gap;
    }

    /// The pages are there: the snapshot becomes the base, unless nothing that may be said next fits on it.
    fn finish_flush(&mut self, now: Now, out: &mut Outbox) {
        let Some(flush) = self.run.flush.take() else { return };
        self.space_flushes(now);
        let Some(desired) = self.desired.clone() else { return };
        let level = self.limits.compression;
        let old_tree = std::mem::replace(&mut self.run.tree, flush.tree);
        let fits = |writer: &Self, delta: &Arc<Delta>| writer.occupancy(now, delta) <= 1.0;
        // What is repeated while the desired state does not fit: never older than what was said last.
        // The state of the leader before may be newer than a snapshot of caches that lag after an election; a few times
        // the flush is rather made again than going back.
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
