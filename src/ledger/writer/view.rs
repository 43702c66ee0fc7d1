//! What a writer shows: to the term, to the stream, and to people.

use std::{sync::Arc, time::Duration};

use super::{Farewell, Inherited, Now, Phase, Writer, WriterIdentity};
use crate::{Map, hash::StateHash, stream::Said};
use model::PublicKey;

/// Statistics of the current epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WriterFigures {
    /// Share of the delta's room that the desired state takes. Above 1 it does not fit.
    pub delta_occupancy: f64,
    /// Number of data pages of the tree.
    pub data_pages: usize,
    /// Number of pages of changes that were appended to it.
    pub run_pages: usize,
    /// Number of index pages.
    pub index_pages: usize,
    /// Number of shards.
    pub shards: u32,
    /// Number of pages that were listed and to which nothing refers.
    pub garbage_pages: usize,
    /// Number of head writes.
    pub head_writes: u64,
    /// Number of page writes.
    pub page_writes: u64,
    /// Number of page deletions.
    pub page_deletions: u64,
    /// Number of successful flushes.
    pub flushes: u64,
    /// Number of trees that replaced a tree and its runs.
    pub compactions: u64,
    /// Number of flushes and trees that were given up.
    pub flushes_abandoned: u64,
    /// How often a flush waited for quota.
    pub flush_quota_waits: u64,
    /// Number of full flushes.
    pub full_flushes: u64,
    /// Time from the start of the last successful flush until its pages were visible.
    pub flush_duration: Option<Duration>,
    /// Time from the change of the desired state to the success of the head that contained it.
    pub publish_latency: Option<Duration>,
    /// How long the oldest change that is not published waits.
    pub unpublished: Option<Duration>,
}

/// The stage of a writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Claiming the cluster id (W0).
    Claiming,
    /// The id belongs to another cluster. Nothing is written until it is changed.
    Refused {
        /// UID of the owner.
        owner: String,
    },
    /// Being elected (W1).
    Electing,
    /// Another process writes in the name of this cluster, which its record does not know of: the controller of a second
    /// cluster with the same UID of kube-system, under the same id or another one. Nothing is written until it stops.
    Contested {
        /// The id under which the other process writes.
        cluster: Arc<str>,
    },
    /// Reading the state to start from (W2).
    Verifying,
    /// Publishing (W3 to W8).
    Running,
    /// Withdrawing everything. `left` is published once the desired state is empty (W9).
    Leaving,
    /// `left` was read back, and no page remains.
    Left,
}

impl Stage {
    /// Whether this cluster owns its id and no later leader was elected, as far as a leader can know.
    pub const fn owns_id(&self) -> bool {
        match self {
            Self::Running | Self::Leaving | Self::Left => true,
            Self::Claiming | Self::Refused { .. } | Self::Electing | Self::Contested { .. } | Self::Verifying => false,
        }
    }
}

impl Writer {
    /// Under which epoch and random number this leader speaks.
    pub(crate) fn term(&self) -> Option<(u64, u64)> {
        matches!(self.phase, Phase::Run).then_some((self.epoch, self.nonce))
    }

    /// What this leader may say to others: nothing before W2 is over, and nothing once it said farewell.
    pub(crate) fn said(&self) -> Option<Said<'_>> {
        self.desired.as_ref().filter(|_| matches!(self.phase, Phase::Run) && self.run.farewell.is_none())?;
        let hashed = &self.hashed;
        Some(Said { hashed, summary: self.summary(self.generation, hashed.hashes()) })
    }

    /// The hashes of the claims to be published, and of those in the newest own head that was read.
    pub(crate) fn claims(&self) -> [Option<StateHash>; 2] {
        [self.desired.as_ref().map(|_| self.hashed.hashes().claims), self.run.own.newest.map(|(_, claims)| claims)]
    }

    /// S10: whether this writer has nothing to do. The state to be published was read back. The last read had the own
    /// head, and no live head of this cluster under another id. The cluster does not leave.
    pub(crate) fn is_at_rest(&self) -> bool {
        let there = self.desired.as_ref().zip(self.run.visibility.map.as_ref());
        matches!(self.phase, Phase::Run)
            && !self.leaving
            && !self.run.baseless
            && self.run.own.there
            && there.is_some_and(|(desired, there)| Arc::ptr_eq(desired, there))
    }

    /// The current stage.
    pub fn stage(&self) -> Stage {
        match (&self.phase, &self.refused) {
            (Phase::Claim { .. }, Some(owner)) => Stage::Refused { owner: owner.clone() },
            (Phase::Claim { .. }, None) => Stage::Claiming,
            (Phase::Confirm { .. } | Phase::Elected, _) if self.stranger.as_ref().is_some_and(|it| it.advances > 0) => {
                Stage::Contested { cluster: self.me.cluster.clone() }
            }
            (Phase::Confirm { .. } | Phase::Elected, _) => Stage::Electing,
            (Phase::Verify(search), _) => match search.contested_by() {
                Some(id) => Stage::Contested { cluster: id.clone() },
                None => Stage::Verifying,
            },
            (Phase::Run, _) if self.run.farewell.as_ref().is_some_and(Farewell::is_over) => Stage::Left,
            (Phase::Run, _) if self.leaving => Stage::Leaving,
            (Phase::Run, _) => Stage::Running,
        }
    }

    /// In whose name it writes.
    pub(crate) fn identity(&self) -> &WriterIdentity {
        &self.me
    }

    /// The epoch; 0 before the election.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Why the newest state is not published; otherwise the last error, until something of the same kind succeeds.
    pub fn error(&self) -> Option<&str> {
        let flush = self.run.waits.as_ref().or(self.run.blocked.as_ref());
        self.unfit.as_ref().or(flush).or(self.error.as_ref()).map(String::as_str)
    }

    /// The statistics.
    pub fn figures(&self) -> WriterFigures {
        WriterFigures {
            data_pages: self.run.layout.tree.data_pages(),
            run_pages: self.run.layout.runs.len(),
            index_pages: self.run.layout.tree.index_pages() + self.run.layout.runs.index_pages(),
            shards: self.shards,
            page_writes: self.run.garbage.written(),
            ..self.run.figures
        }
    }

    /// The state from which this leader starts; `None` until W2 is over.
    pub fn base(&self) -> Option<&Arc<Map>> {
        matches!(self.phase, Phase::Run).then_some(&self.run.base)
    }

    /// What this leader starts from; `None` until W2 is over.
    pub(crate) fn inherited(&self) -> Option<Inherited> {
        let (map, written, heard) = (self.run.inherited.clone(), self.run.written, self.heard);
        matches!(self.phase, Phase::Run).then_some(Inherited { map, written, heard, barred: false })
    }

    /// The state to be published.
    pub(crate) fn desired(&self) -> Option<&Arc<Map>> {
        self.desired.as_ref()
    }

    /// The last state whose publication succeeded.
    pub fn published(&self) -> Option<&Arc<Map>> {
        self.run.published.as_ref()
    }

    /// A published state that was read back: the newest one, or one shortly before it.
    pub fn read_back(&self) -> Option<&Arc<Map>> {
        self.run.visibility.map.as_ref()
    }

    /// The current key, once a head of this epoch was read back.
    pub(crate) fn signs(&self) -> Option<PublicKey> {
        let read_back = matches!(self.phase, Phase::Run) && self.run.read_back.is_some();
        self.keys.first().filter(|_| read_back).copied()
    }

    /// Whether others have been able to read this cluster's exports for a while, so that what it published elsewhere
    /// may go.
    pub(crate) fn is_settled(&self, now: Now) -> bool {
        matches!(self.phase, Phase::Run)
            && self.run.farewell.is_none()
            && self.run.read_back.is_some_and(|since| now.mono >= since + self.timing.handover)
    }
}
