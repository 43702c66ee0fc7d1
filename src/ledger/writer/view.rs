//! What a writer shows: to the term, to the stream, and to people.

use std::{sync::Arc, time::Duration};

use super::{
    Inherited, Now, Phase, Writer, WriterIdentity,
    candidate::Step,
    farewell::Farewell,
    run::{Duty, Ground, Run},
};
use crate::{Map, hash::StateHash, readers::Owner, stream::OwnState};
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
    /// The id belongs to a cluster whose ledger is in another registry, and that has it for longer. Nobody heeds what is written.
    OwnedElsewhere(Owner),
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
            Self::Claiming
            | Self::Refused { .. }
            | Self::OwnedElsewhere(_)
            | Self::Electing
            | Self::Contested { .. }
            | Self::Verifying => false,
        }
    }
}

impl Writer {
    /// What is known in this epoch, once W2 is over.
    fn run(&self) -> Option<&Run> {
        if let Phase::Run(run) = &self.phase { Some(run) } else { None }
    }

    /// The run that publishes.
    fn publishing(&self) -> Option<&Run> {
        self.run().filter(|run| run.farewell().is_none())
    }

    /// Under which epoch and random number this leader speaks.
    pub(crate) fn term(&self) -> Option<(u64, u64)> {
        self.run().map(|run| (run.epoch.number, run.epoch.nonce))
    }

    /// The state that this leader may send to others: none before W2 is over, and none once it said farewell.
    pub(crate) fn own_state(&self) -> Option<OwnState<'_>> {
        let (hashed, run) = self.leader.desired.hashed().zip(self.publishing())?;
        let diff = self.leader.desired.diff();
        Some(OwnState { hashed, diff, summary: run.epoch.summary(self.leader.desired.generation(), hashed.hashes()) })
    }

    /// The hashes of the claims to be published, and of those in the newest own head that was read.
    pub(crate) fn claims(&self) -> [Option<StateHash>; 2] {
        let wanted = self.leader.desired.hashed().map(|hashed| hashed.hashes().claims);
        [wanted, self.run().and_then(|run| run.own.claims())]
    }

    /// S10: whether this writer has nothing to do. The state to be published was read back. The last read had the own
    /// head, and no live head of this cluster under another id. The cluster does not leave.
    pub(crate) fn is_at_rest(&self) -> bool {
        let there = self.leader.desired.map().zip(self.leader.back.map());
        self.run().is_some_and(|run| run.base.ground != Ground::Nothing && run.own.is_alone())
            && !self.leader.leaving
            && there.is_some_and(|(desired, there)| Arc::ptr_eq(desired, there))
    }

    /// The current stage.
    pub fn stage(&self) -> Stage {
        match &self.phase {
            Phase::Candidate(candidate) => match &candidate.step {
                Step::Claim { refused: Some(owner), .. } => Stage::Refused { owner: owner.clone() },
                Step::Claim { refused: None, .. } => Stage::Claiming,
                Step::Confirm { .. } | Step::Elected
                    if candidate.stranger.as_ref().is_some_and(|stranger| stranger.advances > 0) =>
                {
                    Stage::Contested { cluster: self.leader.me.cluster.clone() }
                }
                Step::Confirm { .. } | Step::Elected => Stage::Electing,
            },
            Phase::Search(search) => match search.contested_by() {
                Some(id) => Stage::Contested { cluster: id.clone() },
                None => Stage::Verifying,
            },
            Phase::Run(run) if run.farewell().is_some_and(Farewell::is_over) => Stage::Left,
            Phase::Run(_) if self.leader.leaving => Stage::Leaving,
            Phase::Run(_) => Stage::Running,
        }
    }

    /// In whose name it writes.
    pub(crate) fn identity(&self) -> &WriterIdentity {
        &self.leader.me
    }

    /// The epoch; before the election the last one of this leader, or 0.
    pub fn epoch(&self) -> u64 {
        self.phase.epoch()
    }

    /// Why the newest state is not published; otherwise the last error, until something of the same kind succeeds.
    pub fn error(&self) -> Option<&str> {
        let flush =
            self.run().and_then(|run| if let Duty::Publish(uploads) = &run.duty { uploads.error() } else { None });
        self.leader.desired.unfit().or(flush).or(self.leader.error.as_ref()).map(String::as_str)
    }

    /// The statistics.
    pub fn figures(&self) -> WriterFigures {
        let shards = self.leader.services.count();
        let Some(run) = self.run() else { return WriterFigures { shards, ..WriterFigures::default() } };
        let (layout, uploads) = (&run.base.layout, run.figures);
        WriterFigures {
            delta_occupancy: run.publisher.occupancy,
            data_pages: layout.tree.data_pages(),
            run_pages: layout.runs.len(),
            index_pages: layout.tree.index_pages() + layout.runs.index_pages(),
            shards,
            garbage_pages: run.garbage.figures.pages,
            head_writes: run.seq,
            page_writes: run.garbage.figures.writes,
            page_deletions: run.garbage.figures.deletions,
            flushes: uploads.flushes,
            compactions: uploads.compactions,
            flushes_abandoned: uploads.abandoned,
            flush_quota_waits: uploads.quota_waits,
            full_flushes: uploads.full_flushes,
            flush_duration: uploads.flush_duration,
            publish_latency: run.publisher.latency,
            unpublished: run.publisher.unpublished,
        }
    }

    /// The state from which this leader starts; `None` until W2 is over.
    pub fn base(&self) -> Option<&Arc<Map>> {
        self.run().map(|run| &run.base.map)
    }

    /// What this leader starts from; `None` until W2 is over.
    pub(crate) fn inherited(&self) -> Option<Inherited> {
        let source = &self.run()?.source;
        Some(Inherited { map: source.map.clone(), written: source.written, heard: self.leader.heard, barred: false })
    }

    /// The state to be published.
    pub(crate) fn desired(&self) -> Option<&Arc<Map>> {
        self.leader.desired.map()
    }

    /// The last state whose publication succeeded.
    pub fn published(&self) -> Option<&Arc<Map>> {
        self.leader.back.newest()
    }

    /// A published state that was read back: the newest one, or one shortly before it.
    pub fn read_back(&self) -> Option<&Arc<Map>> {
        self.leader.back.map()
    }

    /// The current key, once a head of this epoch was read back.
    pub(crate) fn signs(&self) -> Option<PublicKey> {
        self.run()?.own.since()?;
        self.leader.keys.first().copied()
    }

    /// Whether others have been able to read this cluster's exports for a while, so that what it published elsewhere
    /// may go.
    pub(crate) fn is_settled(&self, now: Now) -> bool {
        self.publishing().is_some_and(|run| run.is_settled(&self.leader, now))
    }
}
