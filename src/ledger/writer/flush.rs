//! W5: the delta becomes pages that are appended to the base, so that the delta is empty again.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    Leader, Now,
    compact::Compaction,
    garbage::Garbage,
    publish::{Measured, Sent},
    run::{Duty, Epoch, Ground, Run},
    services::{Growth, Services},
    upload::{Progress, Spare, Upload},
};
use crate::{
    Map,
    call::{CallId, Failure, Ids, Outbox, Outcome},
    hash::Hashes,
    head::Delta,
    limits::Timing,
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

/// The pages of an epoch, on their way into the registry.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    pub flushing: Flushing,
    /// Why a page of the flush could not be written or looked for, until a flush succeeds or none is due.
    blocked: Option<String>,
    next_flush: Duration,
    /// How many flushes in a row were repeated.
    discarded: u32,
    pub compaction: Option<Compaction>,
    pub next_compaction: Duration,
    pub spare: Spare,
}

/// How far the next flush is.
#[derive(Debug, Default)]
pub(super) enum Flushing {
    /// None is due, or its time has not come.
    #[default]
    Idle,
    /// One is due and cannot begin: there is no room, or the root would name more pages than it may.
    Waits(String),
    Runs(Box<Flush>),
}

/// See [`super::WriterFigures`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UploadFigures {
    /// Number of ids for pages.
    ids: u64,
    pub flushes: u64,
    pub compactions: u64,
    pub abandoned: u64,
    pub quota_waits: u64,
    pub full_flushes: u64,
    pub flush_duration: Option<Duration>,
}

impl UploadFigures {
    /// An id for pages, which is never used again.
    pub(super) fn id(&mut self, epoch: Epoch, ids: &mut Ids) -> Arc<str> {
        self.ids += 1;
        format!("{}-{}-{:08x}", epoch.number, self.ids, ids.next() as u32).into()
    }
}

impl Flushing {
    fn running(&mut self) -> Option<&mut Flush> {
        match self {
            Self::Runs(flush) => Some(flush),
            Self::Idle | Self::Waits(_) => None,
        }
    }

    fn end(&mut self) -> Option<Flush> {
        match std::mem::take(self) {
            Self::Runs(flush) => Some(*flush),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Uploads {
    /// Why a flush does not get on, if so.
    pub(super) fn error(&self) -> Option<&String> {
        let waits = if let Flushing::Waits(why) = &self.flushing { Some(why) } else { None };
        waits.or(self.blocked.as_ref())
    }

    fn running(&self) -> impl Iterator<Item = &Upload> {
        let flush = if let Flushing::Runs(flush) = &self.flushing { Some(&flush.upload) } else { None };
        flush.into_iter().chain(self.compaction.iter().map(|compaction| &compaction.upload))
    }

    /// Whether a flush or a compaction needs this page. The indexes of a flush also name earlier pages. These are no longer in
    /// the base if a new tree has replaced them meanwhile.
    pub(super) fn has(&self, page: &PageId) -> bool {
        let grouped = matches!(&self.flushing, Flushing::Runs(flush) if flush.appended.groups(page));
        grouped || self.running().any(|upload| upload.has(page))
    }

    /// The shard of the page that a call writes.
    pub(super) fn shard_of(&self, call: CallId) -> Option<u32> {
        self.running().find_map(|upload| upload.calls().find(|(id, _)| *id == call)).map(|(_, shard)| shard)
    }

    /// What is being written into this shard begins again elsewhere. Returns the calls that go on.
    fn avoid(&mut self, shard: u32) -> Vec<(CallId, u32)> {
        let is_in = self.flushing.running().is_some_and(|flush| flush.upload.is_in(shard));
        let flush = if is_in { self.flushing.end() } else { None };
        let compaction = self.compaction.take_if(|compaction| compaction.upload.is_in(shard));
        let mut calls = Vec::new();
        for upload in flush.map(|flush| flush.upload).into_iter().chain(compaction.map(|it| it.upload)) {
            calls.extend(upload.calls());
            upload.spare(&mut self.spare);
        }
        self.spare.retain(|(_, of), _| *of != shard);
        calls
    }

    /// Nothing that was written counts any more.
    pub(super) fn forget(&mut self) {
        self.flushing.end();
        self.compaction = None;
        self.spare.clear();
    }

    /// Gives an upload up. What it has written can be used by another one.
    pub(super) fn abandon(&mut self, stuck: Upload, figures: &mut UploadFigures, leader: &mut Leader) {
        stuck.spare(&mut self.spare);
        figures.abandoned += 1;
        leader.error = Some("the ledger's pages cannot be written; there was no progress for minutes".to_owned());
    }

    /// There is no room for pages: garbage goes at once, and a further service comes. Where no garbage can be deleted, a
    /// further service would fill with it, too, and the namespace's room is that of all clusters. Returns why it waits.
    pub(super) fn wait_for_room(
        &mut self,
        leader: &Leader,
        now: Now,
        garbage: &mut Garbage,
        growth: &mut Growth,
    ) -> String {
        self.space_flushes(now, leader.timing.flush_gap);
        if let Some(refused) = garbage.refused() {
            return format!("the ledger waits for room; its garbage pages cannot be deleted: {refused}");
        }
        garbage.expect(now.mono);
        growth.want(leader.services.count() + 1);
        "the ledger waits for room; garbage pages are being deleted".to_owned()
    }

    /// On average flushes are `gap` apart. After a pause a few may follow each other at once: hundreds of new exports do
    /// not fit into one delta, and must not wait for seconds behind the first few that were flushed.
    fn space_flushes(&mut self, now: Now, gap: Duration) {
        self.next_flush = self.next_flush.max(now.mono.saturating_sub(gap * (FLUSH_BURST - 1))) + gap;
    }
}

impl Run {
    pub(super) fn flush(&mut self, leader: &mut Leader, now: Now, out: &mut Outbox) {
        let Duty::Publish(uploads) = &mut self.duty else { return };
        let Flushing::Runs(flush) = &mut uploads.flushing else { return self.start_flush(leader, now, out) };
        let (most, garbage) = (leader.limits.flush_concurrency, &mut self.garbage);
        match flush.upload.advance(now, most, &leader.timing, &leader.me.cluster, garbage, out) {
            Progress::Working => {}
            Progress::Seen => self.finish_flush(leader, now, out),
            Progress::Stuck => {
                if let Some(flush) = uploads.flushing.end() {
                    uploads.abandon(flush.upload, &mut self.figures, leader);
                }
                uploads.space_flushes(now, leader.timing.flush_gap);
            }
        }
    }

    fn start_flush(&mut self, leader: &mut Leader, now: Now, out: &mut Outbox) {
        let due_later = leader.desired.changed_at() + leader.timing.quiet;
        let anew = self.base.is_due();
        let Some(Measured { delta, occupancy, .. }) = self.measure(leader, now).cloned() else { return };
        let Duty::Publish(uploads) = &mut self.duty else { return };
        let pending = !delta.is_empty();
        if !(anew || occupancy > FULL_ENOUGH || pending && now.mono >= due_later) {
            if pending {
                out.wake_at(due_later);
            }
            (uploads.flushing, uploads.blocked) = (Flushing::Idle, None);
            return;
        }
        if now.mono < uploads.next_flush {
            return out.wake_at(uploads.next_flush);
        }
        let Some(snapshot) = leader.desired.map().cloned() else { return };
        let Some(mut free) = self.garbage.free(leader, now) else { return self.garbage.expect(now.mono) };
        let id = self.figures.id(self.epoch, &mut leader.ids);
        let limits = &leader.limits;
        let none = Runs::default();
        let (delta, runs) = if anew {
            (Arc::new(Delta::between(&Map::new(), &snapshot, limits.compression)), &none)
        } else {
            (delta, &self.base.layout.runs)
        };
        let packed = match runs::pack(delta.changes(), limits) {
            Ok(packed) => packed,
            Err(error) => {
                leader.error = Some(error.to_string());
                uploads.next_flush = now.mono + leader.timing.quiet;
                return;
            }
        };
        let written = |digest| {
            let spare = uploads.spare.range((digest, 0)..=(digest, u32::MAX)).next();
            spare.map(|((_, shard), page)| (*shard, page.clone()))
        };
        let mut last = None;
        let place = || place(&mut free, &mut last);
        let Some(mut appended) = runs.plan(packed, &id, written, place, limits) else {
            // Heads go on meanwhile, and their success must not hide it.
            let why = uploads.wait_for_room(leader, now, &mut self.garbage, &mut self.growth);
            self.figures.quota_waits += 1;
            uploads.flushing = Flushing::Waits(why);
            return;
        };
        let before = if anew { 0 } else { self.base.layout.pages().count() };
        if before + appended.pages.len() > limits.root_pages {
            return self.exceed(leader, now, anew, out);
        }
        self.figures.full_flushes += u64::from(anew);
        let upload = Upload::new(id, std::mem::take(&mut appended.pages), now.mono);
        let (generation, hashes) = (leader.desired.generation(), leader.desired.hashes());
        uploads.flushing = Flushing::Runs(Box::new(Flush { upload, snapshot, generation, hashes, anew, appended }));
        self.flush(leader, now, out);
    }

    /// The root would name more pages than anybody reads. In a full flush it names none of those that there are.
    fn exceed(&mut self, leader: &mut Leader, now: Now, anew: bool, out: &mut Outbox) {
        let Duty::Publish(uploads) = &mut self.duty else { return };
        if anew {
            uploads.flushing = Flushing::Waits(format!(
                "the exports of this cluster take more than {} pages of the ledger, and nobody reads more: what does not fit \
                 into the head is not published until there are fewer",
                leader.limits.root_pages
            ));
            uploads.next_flush = now.mono + leader.timing.quiet;
        } else if uploads.compaction.is_some() {
            // Its tree takes the place of the runs soon.
            uploads.space_flushes(now, leader.timing.flush_gap);
        } else {
            self.base.ground = Ground::Rewritten;
            self.start_flush(leader, now, out);
        }
    }

    /// Nothing is written into this shard any more.
    pub(super) fn avoid(&mut self, services: &mut Services, shard: u32) {
        services.avoid(shard);
        if let Duty::Publish(uploads) = &mut self.duty {
            self.dropped.extend(uploads.avoid(shard));
        }
    }

    pub(super) fn upload_done(
        &mut self,
        leader: &mut Leader,
        now: Now,
        id: CallId,
        outcome: &Outcome,
        out: &mut Outbox,
    ) -> bool {
        let Duty::Publish(uploads) = &mut self.duty else { return false };
        let fraction = (leader.ids.next() >> 11) as f64 / (1u64 << 53) as f64;
        let Timing { retry_min, see, .. } = leader.timing;
        let retry_at = now.mono + retry_min / 2 + retry_min.mul_f64(fraction);
        let mut done = |upload: &mut Upload| upload.done(now, id, outcome, see, retry_at, out);
        if let Flushing::Runs(flush) = &mut uploads.flushing
            && done(&mut flush.upload)
        {
            if let Outcome::Failed(Failure { message }) = outcome {
                // Heads go on meanwhile, and pages in other shards: their success must not hide it.
                uploads.blocked = Some(message.clone());
            }
            return true;
        }
        let mine = uploads.compaction.as_mut().is_some_and(|compaction| done(&mut compaction.upload));
        if mine {
            leader.note(outcome);
        }
        mine
    }

    /// The pages are visible, so the snapshot becomes the base. It does not if no head that may be sent next would fit
    /// on it.
    fn finish_flush(&mut self, leader: &mut Leader, now: Now, out: &mut Outbox) {
        let Duty::Publish(uploads) = &mut self.duty else { return };
        let Some(Flush { upload, snapshot, generation, hashes, anew, appended }) = uploads.flushing.end() else {
            return;
        };
        uploads.space_flushes(now, leader.timing.flush_gap);
        let Some(desired) = leader.desired.map().cloned() else { return };
        // After an election the caches may lag, so the snapshot may be older than the previous leader's state. Then the
        // flush is repeated a few times before the state goes back.
        let lagging = uploads.discarded < MOST_DISCARDED && *snapshot != *desired;
        let shards = leader.services.shards();
        let mut layout = if anew { Layout::empty(shards) } else { self.base.layout.clone() };
        layout.shards = shards;
        layout.runs.append(appended);
        let before = std::mem::replace(&mut self.base.layout, layout);
        let on_snapshot = |run: &Self, map: &Map| {
            let delta = Arc::new(Delta::between(&snapshot, map, leader.limits.compression));
            (run.occupancy(leader, now, &delta) <= 1.0).then_some(delta)
        };
        // While the desired state does not fit, heads repeat a state that is never older than the last one that was sent.
        let sent = match self.publisher.sent.take() {
            Some(sent) if sent.generation > generation || sent.generation == 0 && lagging => {
                match on_snapshot(self, &sent.map) {
                    Some(delta) => Ok(Sent { delta, ..sent }),
                    None => Err(sent),
                }
            }
            _ => Ok(Sent {
                map: snapshot.clone(),
                delta: Arc::default(),
                generation,
                as_of: upload.started,
                summary: self.epoch.summary(generation, hashes),
            }),
        };
        let fits = on_snapshot(self, &desired).is_some();
        let Duty::Publish(uploads) = &mut self.duty else { return };
        match sent {
            Err(sent) if !fits => {
                self.base.layout = before;
                self.publisher.sent = Some(sent);
                uploads.discarded += 1;
                self.figures.abandoned += 1;
                return upload.spare(&mut uploads.spare);
            }
            sent => self.publisher.sent = sent.ok(),
        }
        if anew {
            uploads.compaction = None;
        }
        uploads.discarded = 0;
        uploads.spare.retain(|_, page| !upload.has(&page.id));
        uploads.blocked = None;
        self.figures.flushes += 1;
        self.figures.flush_duration = Some(now.mono.saturating_sub(upload.started));
        (self.base.map, self.base.ground) = (snapshot, Ground::Sound);
        self.rebased(leader, now, out);
    }

    /// The root changed: a head says so at once.
    pub(super) fn rebased(&mut self, leader: &mut Leader, now: Now, out: &mut Outbox) {
        self.publisher.rebased();
        self.garbage.expect(now.mono);
        self.publish(leader, now, out);
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
