//! W9: leaving a ClusterSet, and continuing under another id.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Heads, Now, Writer,
    election::{MUCH, Stranger},
};
use crate::{
    call::{Call, CallId, Outbox, Outcome},
    codec,
    hash::Summary,
    head::{FORMAT, Head, MAX_SHARDS, Presence, Root},
    limits::Timing,
    record::Position,
};

/// How many listings in a row must show no page, because replicas lag.
const CLEAN_READS: u32 = 4;

/// The end of this cluster's membership: a head that says `left`, and no pages.
#[derive(Debug)]
pub(super) struct Farewell {
    call: Option<CallId>,
    sent_at: Option<Duration>,
    read_back: bool,
    again: bool,
    sweep: Sweep,
}

impl Farewell {
    pub(super) fn is_over(&self) -> bool {
        self.read_back && self.sweep.clean >= CLEAN_READS
    }

    pub(super) fn observe(&mut self, head: &Head, epoch: u64) {
        if head.is_live() {
            self.again = true;
            self.read_back = false;
            // Its writer may have written pages, too.
            self.sweep.clean = 0;
        } else if head.position.epoch == epoch {
            self.read_back = true;
        }
    }
}

/// A former id of this cluster.
#[derive(Debug, Default)]
pub(super) struct FormerId {
    creator: Option<CallId>,
    /// Whether this cluster created the former id's service.
    ours: Option<bool>,
    /// Whether the service was deleted, so that only the head of the former id is left.
    bare: bool,
    call: Option<CallId>,
    next: Duration,
    seq: u64,
    /// Its live head. If it advances, it belongs to another cluster with the same UID.
    watched: Option<Stranger>,
    /// The same for a head in its place that this cluster did not sign.
    forged: Option<Stranger>,
    left_since: Option<Duration>,
    sweep: Sweep,
    /// How often it was tried to remove what is left of it.
    removals: u32,
}

/// A pause that doubles with each attempt in vain: AWS may deny the call, and every attempt costs something.
pub(super) fn doubled(pause: Duration, attempts: u32, timing: &Timing) -> Duration {
    (pause * 2u32.pow(attempts.min(10))).min(timing.forget)
}

/// Deletes all pages of an id, until several listings show none. After that it continues slowly, because a process that
/// stalled before a write may still write.
#[derive(Debug, Default)]
struct Sweep {
    lists: BTreeMap<CallId, u32>,
    /// With the shard of the page.
    deletions: BTreeMap<CallId, u32>,
    /// Shards that turned out to be another cluster's.
    foreign: BTreeSet<u32>,
    found: usize,
    failed: bool,
    clean: u32,
    /// When the last round began.
    began: Option<Duration>,
    /// Whether a page was deleted since then, and whether a deletion failed.
    deleted: bool,
    refused: bool,
    /// How many rounds in a row deleted nothing of what they found.
    vain: u32,
}

impl Sweep {
    fn advance(&mut self, now: Duration, timing: &Timing, cluster: &Arc<str>, shards: u32, out: &mut Outbox) {
        // A page that is being deleted would be listed, and deleted, again: the account's room for writes is that of all.
        if !self.lists.is_empty() || !self.deletions.is_empty() {
            return;
        }
        let clean = self.clean >= CLEAN_READS;
        let pause = if clean { timing.collect_idle } else { doubled(timing.sweep, self.vain, timing) };
        let due = self.began.map_or(now, |began| began + pause);
        if now < due {
            return out.wake_at(due);
        }
        let list = |shard| (out.call(Call::ReadPages { cluster: cluster.clone(), shard, flush: None }), shard);
        self.lists = (0..shards).filter(|shard| !self.foreign.contains(shard)).map(list).collect();
        (self.found, self.failed, self.deleted, self.refused) = (0, false, false, false);
        self.began = Some(now);
    }

    fn done(&mut self, id: CallId, outcome: &Outcome, cluster: &Arc<str>, batch: usize, out: &mut Outbox) -> bool {
        if let Some(shard) = self.deletions.remove(&id) {
            match outcome {
                Outcome::Taken { .. } => {
                    self.foreign.insert(shard);
                }
                Outcome::Done => (self.deleted, self.vain) = (true, 0),
                // Once in a round: all pages of a service may be refused together.
                _ if !self.deleted && !self.refused => (self.refused, self.vain) = (true, self.vain + 1),
                _ => {}
            }
            return true;
        }
        let Some(shard) = self.lists.remove(&id) else { return false };
        match outcome {
            Outcome::Pages(pages) => {
                self.found += pages.pages.len();
                for page in pages.pages.iter().take(batch) {
                    let page = page.id.clone();
                    self.deletions.insert(out.call(Call::DeletePage { cluster: cluster.clone(), shard, page }), shard);
                }
            }
            _ => self.failed = true,
        }
        if self.lists.is_empty() && !self.failed {
            self.clean = if self.found == 0 { self.clean + 1 } else { 0 };
        }
        true
    }
}

impl Writer {
    /// Once everything is withdrawn (the desired state is empty), publishes `left` until that is read back.
    pub(super) fn say_farewell(&mut self, now: Now, out: &mut Outbox) {
        let empty = self.desired.as_ref().is_some_and(|desired| desired.is_empty());
        if self.run.farewell.is_none() {
            if !(self.leaving && empty && self.run.publication.is_none()) {
                return;
            }
            (self.run.flush, self.run.compaction) = (None, None);
            self.run.farewell =
                Some(Farewell { call: None, sent_at: None, read_back: false, again: false, sweep: Sweep::default() });
        }
        let seq = self.run.seq + 1;
        let mut head =
            self.head(now, seq, Root::empty(self.shards.next_power_of_two()), Arc::default(), Summary::default());
        head.presence = Presence::Left { successor: None };
        let head = Arc::new(head);
        let Some(farewell) = &mut self.run.farewell else { return };
        let pause = if farewell.read_back && !farewell.again { self.timing.heartbeat } else { self.timing.leave_retry };
        let due = farewell.sent_at.map_or(now.mono, |sent_at| sent_at + pause);
        if farewell.call.is_none() && now.mono >= due {
            self.run.seq = seq;
            self.run.figures.head_writes += 1;
            farewell.sent_at = Some(now.mono);
            farewell.again = false;
            farewell.call = Some(out.call(Call::PutHead { head: head.clone(), repeats: false }));
            self.copy(now, &head, out);
        } else if farewell.call.is_none() {
            out.wake_at(due);
        }
        let Some(farewell) = &mut self.run.farewell else { return };
        if farewell.read_back {
            // Operations are awaited for this long. Before, an operation of this process or its predecessor may still
            // take effect. What a predecessor that stalls for longer writes after the last process stopped belongs to
            // nobody: no reader looks at it, and `purge` removes it.
            if now.mono < self.run.garbage.last_issue() + self.timing.operation {
                farewell.sweep.clean = 0;
            }
            farewell.sweep.advance(now.mono, &self.timing, &self.me.cluster, self.shards, out);
        }
    }

    pub(super) fn farewell_done(&mut self, _now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        let Some(farewell) = &mut self.run.farewell else { return false };
        let mine = if farewell.call == Some(id) {
            farewell.call = None;
            true
        } else {
            farewell.sweep.done(id, outcome, &self.me.cluster, self.limits.garbage_batch, out)
        };
        if mine {
            self.note(outcome);
        }
        mine
    }

    /// Handles heads of this cluster's UID under other ids.
    pub(super) fn observe_former(&mut self, now: Now, heads: &Heads, out: &mut Outbox) {
        for (id, head) in heads {
            // Readers do not believe one that this cluster did not sign, and go on with what they have of the former id.
            let (head, genuine) = match head {
                Ok(head) => (head, true),
                Err(codec::Error::Foreign(head)) => (head, false),
                Err(_) => continue,
            };
            let stays = !genuine || head.is_live();
            if *id == self.me.cluster || head.uid != self.me.uid {
                continue;
            }
            let former = self.run.former.entry(id.clone()).or_default();
            if former.ours.is_none() && former.creator.is_none() && now.mono >= former.next {
                former.creator = Some(out.call(Call::Creator { cluster: id.clone() }));
            }
            if former.ours != Some(true) && (stays || !former.bare) {
                continue;
            }
            if stays {
                former.left_since = None;
                former.sweep.clean = 0;
                former.removals = 0;
                let watched = if genuine { &mut former.watched } else { &mut former.forged };
                let watched = watched.get_or_insert_with(|| Stranger::new(head.position, now.mono));
                watched.watch(Some(head.position), now.mono, self.timing.max_step);
                if genuine && watched.advances >= MUCH && *id < self.me.cluster {
                    // Of two clusters with one UID that began at the same time this one stops.
                    return self.elect_again();
                }
                let silent = watched.is_silent(&self.timing);
                let ready = self.run.read_back.is_some_and(|since| now.mono >= since + self.timing.handover);
                if !(ready && silent) || former.call.is_some() || now.mono < former.next {
                    continue;
                }
                former.next = now.mono + 2 * self.timing.leave_retry;
                former.seq += 1;
                // Anybody may have chosen a forged epoch. What this cluster wrote there is below its own one.
                let epoch = if genuine { (head.position.epoch + 1).max(self.epoch) } else { self.epoch };
                let farewell = Head {
                    cluster: id.clone(),
                    reads: FORMAT,
                    uid: self.me.uid.clone(),
                    position: Position { epoch, seq: former.seq },
                    presence: Presence::Left { successor: Some(self.me.cluster.clone()) },
                    root: Root::empty(head.root.shards),
                    delta: Arc::default(),
                    summary: Summary::default(),
                    addresses: Arc::default(),
                    lease: self.timing.lease,
                    written: now.wall,
                    signer: None,
                };
                former.call = Some(out.call(Call::PutHead { head: Arc::new(farewell), repeats: false }));
            } else {
                (former.watched, former.forged) = (None, None);
                let left_for = now.mono.saturating_sub(*former.left_since.get_or_insert(now.mono));
                if left_for > self.timing.garbage && !former.bare {
                    former.sweep.advance(now.mono, &self.timing, id, MAX_SHARDS, out);
                }
                let clean = former.bare || former.sweep.clean >= CLEAN_READS;
                let free = former.call.is_none() && now.mono >= former.next;
                if left_for > self.timing.forget && clean && free && self.run.farewell.is_none() {
                    former.next = now.mono + doubled(self.timing.creator_retry, former.removals, &self.timing);
                    former.removals += 1;
                    former.call = Some(out.call(Call::RemoveFormer { cluster: id.clone() }));
                }
            }
        }
    }

    /// Whether a call deletes a page of a former id, which says nothing about the own one.
    pub(super) fn sweeps_former(&self, id: CallId) -> bool {
        self.run.former.values().any(|former| former.sweep.deletions.contains_key(&id))
    }

    pub(super) fn former_done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        for (cluster, former) in &mut self.run.former {
            if former.creator == Some(id) {
                former.creator = None;
                match outcome {
                    Outcome::Creator(creator) => {
                        former.ours = Some(creator.as_ref().is_some_and(|creator| *creator.by == *self.me.uid));
                        former.bare = creator.is_none();
                    }
                    _ => former.next = now.mono + self.timing.creator_retry,
                }
                return true;
            }
            if former.call == Some(id) {
                former.call = None;
                return true;
            }
            if former.sweep.done(id, outcome, cluster, self.limits.garbage_batch, out) {
                return true;
            }
        }
        false
    }
}
