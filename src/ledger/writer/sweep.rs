//! W9: deletes all pages of an id.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::{
    call::{Call, CallId, Outbox, Outcome},
    limits::Timing,
};

/// How many listings in a row must show no page, because replicas lag.
const CLEAN_READS: u32 = 4;

/// A pause that doubles with each attempt in vain: AWS may deny the call, and every attempt costs something.
pub(super) fn doubled(pause: Duration, attempts: u32, timing: &Timing) -> Duration {
    (pause * 2u32.pow(attempts.min(10))).min(timing.forget)
}

/// Deletes all pages of an id, until several listings show none. After that it continues slowly, because a process that
/// stalled before a write may still write.
#[derive(Debug, Default)]
pub(super) struct Sweep {
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
    /// Whether no page is left, as far as is known.
    pub(super) const fn is_clean(&self) -> bool {
        self.clean >= CLEAN_READS
    }

    /// There may be pages that no listing showed.
    pub(super) fn doubt(&mut self) {
        self.clean = 0;
    }

    /// Whether a call deletes a page.
    pub(super) fn deletes(&self, id: CallId) -> bool {
        self.deletions.contains_key(&id)
    }

    /// Lists the pages of `cluster` in so many shards, if that is due.
    pub(super) fn advance(
        &mut self,
        now: Duration,
        timing: &Timing,
        cluster: &Arc<str>,
        shards: u32,
        out: &mut Outbox,
    ) {
        // A page that is being deleted would be listed, and deleted, again: the account's room for writes is that of all.
        if !self.lists.is_empty() || !self.deletions.is_empty() {
            return;
        }
        let pause = if self.is_clean() { timing.collect_idle } else { doubled(timing.sweep, self.vain, timing) };
        let due = self.began.map_or(now, |began| began + pause);
        if now < due {
            return out.wake_at(due);
        }
        let list = |shard| (out.call(Call::ReadPages { cluster: cluster.clone(), shard, flush: None }), shard);
        self.lists = (0..shards).filter(|shard| !self.foreign.contains(shard)).map(list).collect();
        (self.found, self.failed, self.deleted, self.refused) = (0, false, false, false);
        self.began = Some(now);
    }

    /// The outcome of a call; `false` if it is nobody's here. Of each shard, at most `batch` pages are deleted at a time.
    pub(super) fn done(
        &mut self,
        id: CallId,
        outcome: &Outcome,
        cluster: &Arc<str>,
        batch: usize,
        out: &mut Outbox,
    ) -> bool {
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
