//! W5: the delta becomes pages that are appended to the base, so that the delta is empty again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    Now, Writer,
    publish::Sent,
    upload::{Progress, Upload},
};
use crate::{
    Map,
    call::{Call, CallId, Failure, Outbox, Outcome},
    hash::Hashes,
    head::{Delta, MAX_SHARDS},
    page::PageId,
    runs::{self, Appended, Layout, Runs},
};

/// The delta is flushed above this share of its room.
const FULL_ENOUGH: f64 = 0.6;
/// How many times in a row a flush is repeated instead of replacing a state that may be newer.
const MOST_DISCARDED: u32 = 3;

/// How many flushes may follow each other at once after a pause.
const FLUSH_BURST: u32 = 4;

/// One flush, from its snapshot to its visible pages.
#[derive(Debug)]
pub(super) struct Flush {
    upload: Upload,
    snapshot: Arc<Map>,
    generation: u64,
    hashes: Hashes,
    /// Whether nothing of the base counts.
    anew: bool,
    appended: Appended,
}

impl Flush {
    /// Whether the flush needs this page. Its indexes also name earlier pages. These are no longer in the base if a new
    /// tree has replaced them meanwhile.
    pub(super) fn has(&self, page: &PageId) -> bool {
        self.upload.has(page) || self.appended.groups(page)
    }
}

/// Claiming further services.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// How many services there should be.
    wanted: u32,
    call: Option<CallId>,
    retry_at: Duration,
}

impl Writer {
    pub(super) fn flush(&mut self, now: Now, out: &mut Outbox) {
        self.grow(now, out);
        let Some(flush) = &mut self.run.flush else { return self.start_flush(now, out) };
        let (most, garbage) = (self.limits.flush_concurrency, &mut self.run.garbage);
        match flush.upload.advance(now, most, &self.timing, &self.me.cluster, garbage, out) {
            Progress::Working => {}
            Progress::Seen => self.finish_flush(now, out),
            Progress::Stuck => {
                let stuck = self.run.flush.take().map(|flush| flush.upload);
                self.abandon(stuck);
                self.space_flushes(now);
            }
        }
    }

    /// Gives an upload up. What it has written can be used by another one.
    pub(super) fn abandon(&mut self, stuck: Option<Upload>) {
        if let Some(stuck) = stuck {
            stuck.spare(&mut self.run.spare);
        }
        self.error = Some("the ledger's pages cannot be written; there was no progress for minutes".to_owned());
        self.run.figures.flushes_abandoned += 1;
    }

    /// An id for pages, which is never used again.
    pub(super) fn flush_id(&mut self) -> Arc<str> {
        self.run.flushes += 1;
        format!("{}-{}-{:08x}", self.epoch, self.run.flushes, self.ids.next() as u32).into()
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
            (self.run.waits, self.run.blocked) = (None, None);
            return;
        }
        if now.mono < self.run.next_flush {
            return out.wake_at(self.run.next_flush);
        }
        let Some(snapshot) = self.desired.clone() else { return };
        let Some(mut free) = self.free(now) else { return self.run.garbage.expect(now.mono) };
        let id = self.flush_id();
        let everything = anew.then(|| Delta::between(&Map::new(), &snapshot, self.limits.compression));
        let none = Runs::default();
        let Some(measured) = self.run.measured.as_ref() else { return };
        let (delta, runs) = match &everything {
            Some(everything) => (everything, &none),
            None => (&*measured.delta, &self.run.layout.runs),
        };
        let packed = match runs::pack(delta.changes(), &self.limits) {
            Ok(packed) => packed,
            Err(error) => {
                self.error = Some(error.to_string());
                self.run.next_flush = now.mono + self.timing.quiet;
                return;
            }
        };
        let written = |digest| {
            let spare = self.run.spare.range((digest, 0)..=(digest, u32::MAX)).next();
            spare.map(|((_, shard), page)| (*shard, page.clone()))
        };
        let mut last = None;
        let place = || place(&mut free, &mut last);
        let Some(mut appended) = runs.plan(packed, &id, written, place, &self.limits) else {
            // Heads go on meanwhile, and their success must not hide it.
            self.run.waits = Some(self.wait_for_room(now));
            return;
        };
        let before = if anew { 0 } else { self.run.layout.pages().count() };
        if before + appended.pages.len() > self.limits.root_pages {
            return self.exceed(now, anew, out);
        }
        self.run.waits = None;
        if anew {
            self.run.figures.full_flushes += 1;
        }
        let upload = Upload::new(id, std::mem::take(&mut appended.pages), now.mono);
        self.run.flush =
            Some(Flush { upload, snapshot, generation: self.generation, hashes: self.hashed.hashes(), anew, appended });
        self.flush(now, out);
    }

    /// The root would name more pages than anybody reads. In a full flush it names none of those that there are.
    fn exceed(&mut self, now: Now, anew: bool, out: &mut Outbox) {
        if anew {
            self.run.waits = Some(format!(
                "the exports of this cluster take more than {} pages of the ledger, and nobody reads more: what does not fit \
                 into the head is not published until there are fewer",
                self.limits.root_pages
            ));
            self.run.next_flush = now.mono + self.timing.quiet;
        } else if self.run.compaction.is_some() {
            // Its tree takes the place of the runs soon.
            self.space_flushes(now);
        } else {
            self.run.rewrite = true;
            self.start_flush(now, out);
        }
    }

    /// The shard of the page that a call writes or deletes.
    pub(super) fn shard_of(&self, call: CallId) -> Option<u32> {
        let flush = self.run.flush.iter().map(|flush| &flush.upload);
        let mut writes = flush.chain(self.run.compaction.iter().map(|compaction| &compaction.upload));
        let written = writes.find_map(|upload| upload.calls().find(|(id, _)| *id == call)).map(|(_, shard)| shard);
        written.or_else(|| self.run.dropped.get(&call).copied()).or_else(|| self.run.garbage.shard_of(call))
    }

    /// Nothing is written into this shard any more. What is being written there begins again elsewhere.
    pub(super) fn avoid(&mut self, shard: u32) {
        self.strange.insert(shard);
        let flush = self.run.flush.take_if(|flush| flush.upload.is_in(shard)).map(|flush| flush.upload);
        let compaction = self.run.compaction.take_if(|compaction| compaction.upload.is_in(shard));
        for upload in flush.into_iter().chain(compaction.map(|compaction| compaction.upload)) {
            self.run.dropped.extend(upload.calls());
            upload.spare(&mut self.run.spare);
        }
        self.run.spare.retain(|(_, of), _| *of != shard);
    }

    /// How many pages each shard has room for beside live ones, garbage and writes in flight; `None` while that is not
    /// known. Somebody else may write as well, so that where room is short an old listing does not count.
    pub(super) fn free(&self, now: Now) -> Option<BTreeMap<u32, usize>> {
        let free = |shard| {
            let (listed, occupied) = self.run.garbage.occupied(shard, now.mono, &self.timing)?;
            let known = now.mono.saturating_sub(listed) <= self.timing.collect || occupied <= self.limits.pages / 4 * 3;
            known.then(|| (shard, self.limits.pages.saturating_sub(occupied)))
        };
        (0..self.shards).filter(|shard| !self.strange.contains(shard)).map(free).collect()
    }

    /// There is no room for pages: garbage goes at once, and a further service comes. Where no garbage can be deleted, a
    /// further service would fill with it, too, and the namespace's room is that of all clusters. Returns why it waits.
    pub(super) fn wait_for_room(&mut self, now: Now) -> String {
        self.run.figures.flush_quota_waits += 1;
        self.space_flushes(now);
        if let Some(refused) = self.run.garbage.refused() {
            return format!("the ledger waits for room; its garbage pages cannot be deleted: {refused}");
        }
        self.run.garbage.expect(now.mono);
        self.want_shards(self.shards + 1);
        "the ledger waits for room; garbage pages are being deleted".to_owned()
    }

    /// There should be so many services, or the next power of two.
    pub(super) fn want_shards(&mut self, shards: u32) {
        self.run.growth.wanted = self.run.growth.wanted.max(shards.next_power_of_two().min(MAX_SHARDS));
    }

    /// Claims services one by one.
    fn grow(&mut self, now: Now, out: &mut Outbox) {
        let growth = &mut self.run.growth;
        if self.shards >= growth.wanted || growth.call.is_some() {
            return;
        }
        if now.mono < growth.retry_at {
            return out.wake_at(growth.retry_at);
        }
        growth.call = Some(out.call(Call::Claim { shard: self.shards }));
    }

    fn grown(&mut self, now: Now, outcome: &Outcome) {
        match outcome {
            Outcome::Claimed { created: true, shards } if *shards == self.shards + 1 => {
                self.run.garbage.created(self.shards, now.mono);
                self.shards = *shards;
            }
            Outcome::Claimed { shards, .. } => self.learn_of(now, *shards),
            Outcome::Taken { owner } => {
                let service = crate::service_name(&self.me.cluster, self.shards);
                self.error = Some(format!("the service {service} belongs to {owner}"));
                self.run.growth.retry_at = now.mono + self.timing.refused_retry;
            }
            outcome => {
                self.note(outcome);
                self.run.growth.retry_at = now.mono + self.timing.retry_max;
            }
        }
    }

    /// All own services are below `shards`. Nobody else collects what former leaders wrote into those unknown so far.
    pub(super) fn learn_of(&mut self, now: Now, shards: u32) {
        if shards > self.shards {
            self.shards = shards;
            self.run.garbage.expect(now.mono);
        }
    }

    /// Whether a call claims a further service.
    pub(super) fn grows_by(&self, id: CallId) -> bool {
        self.run.growth.call == Some(id)
    }

    pub(super) fn flush_done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        if self.run.growth.call.take_if(|call| *call == id).is_some() {
            self.grown(now, outcome);
            return true;
        }
        let retry_at = now.mono + self.timing.retry_min / 2 + self.timing.retry_min.mul_f64(self.fraction());
        let see = self.timing.see;
        let flush = self.run.flush.as_mut();
        if flush.is_some_and(|flush| flush.upload.done(now, id, outcome, see, retry_at, out)) {
            if let Outcome::Failed(Failure { message }) = outcome {
                // Heads go on meanwhile, and pages in other shards: their success must not hide it.
                self.run.blocked = Some(message.clone());
            }
            return true;
        }
        let compaction = self.run.compaction.as_mut();
        let mine = compaction.is_some_and(|it| it.upload.done(now, id, outcome, see, retry_at, out));
        if mine {
            self.note(outcome);
        }
        mine
    }

    fn fraction(&mut self) -> f64 {
        (self.ids.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// On average flushes are `flush_gap` apart. After a pause a few may follow each other at once: hundreds of new
    /// exports do not fit into one delta, and must not wait for seconds behind the first few that were flushed.
    fn space_flushes(&mut self, now: Now) {
        let gap = self.timing.flush_gap;
        self.run.next_flush = self.run.next_flush.max(now.mono.saturating_sub(gap * (FLUSH_BURST - 1))) + gap;
    }

    /// The pages are visible, so the snapshot becomes the base. It does not if no head that may be sent next would fit
    /// on it.
    fn finish_flush(&mut self, now: Now, out: &mut Outbox) {
        let Some(flush) = self.run.flush.take() else { return };
        self.space_flushes(now);
        let Some(desired) = self.desired.clone() else { return };
        let level = self.limits.compression;
        let mut layout = if flush.anew { Layout::empty(self.shards) } else { self.run.layout.clone() };
        layout.shards = self.shards.next_power_of_two();
        layout.runs.append(flush.appended);
        let before = std::mem::replace(&mut self.run.layout, layout);
        let fits = |writer: &Self, delta: &Arc<Delta>| writer.occupancy(now, delta) <= 1.0;
        // While the desired state does not fit, heads repeat a state that is never older than the last one that was
        // sent. After an election the caches may lag, so the snapshot may be older than the previous leader's state.
        // Then the flush is repeated a few times before the state goes back.
        let lagging = self.run.discarded < MOST_DISCARDED && *flush.snapshot != *desired;
        let sent = match self.run.sent.take() {
            Some(sent) if sent.generation > flush.generation || sent.generation == 0 && lagging => {
                let delta = Arc::new(Delta::between(&flush.snapshot, &sent.map, level));
                if fits(self, &delta) { Ok(Sent { delta, ..sent }) } else { Err(Some(sent)) }
            }
            _ => Ok(Sent {
                map: flush.snapshot.clone(),
                delta: Arc::default(),
                generation: flush.generation,
                as_of: flush.upload.started,
                summary: self.summary(flush.generation, flush.hashes),
            }),
        };
        let desired_fits = fits(self, &Arc::new(Delta::between(&flush.snapshot, &desired, level)));
        match sent {
            Err(sent) if !desired_fits => {
                self.run.layout = before;
                self.run.sent = sent;
                self.run.discarded += 1;
                self.run.figures.flushes_abandoned += 1;
                return flush.upload.spare(&mut self.run.spare);
            }
            sent => self.run.sent = sent.ok(),
        }
        if flush.anew {
            self.run.compaction = None;
        }
        self.run.discarded = 0;
        self.run.spare.retain(|_, page| !flush.upload.has(&page.id));
        self.run.base = flush.snapshot;
        self.run.baseless = false;
        self.run.rewrite = false;
        self.run.blocked = None;
        self.run.figures.flushes += 1;
        self.run.figures.flush_duration = Some(now.mono.saturating_sub(flush.upload.started));
        self.rebased(now, out);
    }

    /// The root changed: a head says so at once.
    pub(super) fn rebased(&mut self, now: Now, out: &mut Outbox) {
        self.run.measured = None;
        self.run.force = true;
        self.run.garbage.expect(now.mono);
        self.publish(now, out);
    }
}

/// A place for a page: in the shard where the last one went, or where there is most room. Pages of a flush that are in one
/// shard are read by one call.
fn place(free: &mut BTreeMap<u32, usize>, last: &mut Option<u32>) -> Option<u32> {
    let full = |shard: &u32| free.get(shard).is_none_or(|room| *room == 0);
    if last.as_ref().is_none_or(full) {
        *last = free.iter().max_by_key(|(_, room)| **room).map(|(shard, _)| *shard);
    }
    let room = free.get_mut(last.as_ref()?)?;
    *room = room.checked_sub(1)?;
    *last
}
