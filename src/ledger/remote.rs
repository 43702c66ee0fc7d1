//! What this cluster knows about the others: the reader's result.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{Map, RegistryName, head::Presence};
use crate::record::{Position, Version};
use model::ClusterId;

/// All other clusters of the ClusterSet, as far as this one has read them.
#[derive(Debug, Clone, Default)]
pub struct Remotes {
    /// The clusters, by id.
    pub clusters: BTreeMap<ClusterId, Remote>,
    /// Whether the heads were read since the term began. Before that, `clusters` has at most those in the record, which
    /// may be old, and other clusters may exist.
    pub heads_read: bool,
    /// Clusters with a head that is not accepted (yet): its creator was not found yet, or it cannot be read. Their
    /// exports are not known, so nothing that came from them may be deleted (R8).
    pub unaccepted: BTreeSet<ClusterId>,
    /// Whether the heads of the home were read, and every live cluster in it that is not stale is verified. Claims wait for this.
    pub all_live_verified: bool,
    /// The same for all registries. New imports wait for this, because another cluster may have an older export.
    pub all_read: bool,
    /// Since when this cluster is in the ledger, like [`Remote::created`].
    pub own_created: i64,
    /// Number of registries beside the home.
    pub others: usize,
    /// Those of them that were not read since the term began. Of those, `clusters` has at most the clusters that
    /// are in the record.
    pub unread: BTreeSet<RegistryName>,
}

/// One other cluster.
#[derive(Debug, Clone)]
pub struct Remote {
    /// Its cluster UID.
    pub uid: Arc<str>,
    /// The verified state. If it is `None` and neither `left` nor `expired` is set, the cluster is not verified (yet),
    /// and nothing that came from it may be deleted (R8).
    pub state: Option<Arc<Map>>,
    /// The state that the ledger has, by which claims are judged. It is the same but for what came by stream. `None` also if the
    /// cluster has another home: its claims are about what is in another registry.
    pub committed: Option<Arc<Map>>,
    /// The version of `state`.
    pub version: Option<Version>,
    /// Position of the newest applied state, at the time when it was applied.
    pub position: Position,
    /// Whether it left (R6), so that its exports are dropped.
    pub left: bool,
    /// Since when it is stale, in milliseconds since 1970 on this cluster's clock (R7): its head does not advance.
    pub stale: Option<u64>,
    /// Whether it has been stale for longer than the configured TTL, so that its endpoints are removed.
    pub expired: bool,
    /// Whether it is too large, so that it counts as not read.
    pub refused: bool,
    /// When its exports service was created, in seconds since 1970, as AWS says it to all: nothing that it says of itself counts as
    /// older (R10). 0 while that is not known.
    pub created: i64,
    /// Its home; `None` if it is that of this cluster.
    pub registry: Option<RegistryName>,
    /// Why its newest state cannot be read, as a text.
    pub problem: Option<String>,
}

impl Remotes {
    /// Whether the heads of any registry were read since the term began.
    #[must_use]
    pub fn any_read(&self) -> bool {
        self.heads_read || self.unread.len() < self.others
    }

    /// Whether both are equal except for their positions, so that there is nothing to do.
    pub(super) fn same_content(&self, other: &Self) -> bool {
        let all = |it: &Self| (it.all_live_verified, it.all_read, it.heads_read, it.others, it.own_created);
        all(self) == all(other)
            && (&self.unaccepted, &self.unread) == (&other.unaccepted, &other.unread)
            && self.clusters.len() == other.clusters.len()
            && self.clusters.iter().zip(&other.clusters).all(|((a, x), (b, y))| a == b && x.same_content(y))
    }
}

impl Remote {
    fn same_content(&self, other: &Self) -> bool {
        let same = |one: &Option<Arc<Map>>, other: &Option<Arc<Map>>| match (one, other) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        };
        same(&self.state, &other.state)
            && same(&self.committed, &other.committed)
            && self.registry == other.registry
            && (&self.uid, self.left, self.stale, self.expired, self.refused, self.created, &self.problem)
                == (&other.uid, other.left, other.stale, other.expired, other.refused, other.created, &other.problem)
    }
}

/// Statistics of one other cluster, for metrics and people. They change with every tick.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFigures {
    /// The newest accepted position.
    pub position: Option<Position>,
    /// When this cluster accepted it first, in milliseconds since 1970; 0 if that is not known.
    pub since: u64,
    /// How long the head has not advanced, on the clock of R7.
    pub silent: Duration,
    /// Time from the writing of the newest applied change, by the writer's clock, to its application, by the clock of
    /// this leader. If a later head with the same change came sooner, its time counts.
    pub lag: Option<Duration>,
    /// Number of attempts to read a root.
    pub fetches: u64,
    /// Number of these attempts that failed.
    pub failed_fetches: u64,
    /// What its states and pages take in memory, in bytes.
    pub bytes: usize,
}

pub(super) fn successor(presence: &Presence) -> Option<&Arc<str>> {
    match presence {
        Presence::Left { successor } => successor.as_ref(),
        Presence::Live => None,
    }
}
