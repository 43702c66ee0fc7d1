//! What this cluster knows of the others: the reader's result.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{Map, head::Presence, record::Position};
use crate::model::ClusterId;

/// All other clusters of the ClusterSet, as far as this one has read them.
#[derive(Debug, Clone, Default)]
pub struct Remotes {
    pub clusters: BTreeMap<ClusterId, Remote>,
    /// The heads were read since the term began. Before that `clusters` has at most those that the record knows of, which
    /// may be an old one: other clusters may be there.
    pub heads_read: bool,
    /// Clusters with a head that is not accepted (yet): its creator was not asked yet, or it cannot be read. What they
    /// export is not known, so nothing that came from them may be deleted (R8).
    pub unaccepted: BTreeSet<ClusterId>,
    /// The heads were read, and every live cluster among them that is not stale is verified. Claims wait for it.
    pub all_live_verified: bool,
}

/// One other cluster.
#[derive(Debug, Clone)]
pub struct Remote {
    pub uid: Arc<str>,
    /// The verified state. `None` without `left` or `expired` means: not verified (yet), so nothing that came from
    /// this cluster may be deleted (R8).
    pub state: Option<Arc<Map>>,
    /// Position of the newest state that was applied, when that state was applied.
    pub position: Position,
    /// It left (R6): its exports are dropped.
    pub left: bool,
    /// Since when it is stale, in milliseconds since 1970 on this cluster's clock (R7): its head does not advance.
    pub stale: Option<u64>,
    /// It is stale for longer than the configured TTL: its endpoints are removed.
    pub expired: bool,
    /// What keeps its newest state from being read, in words.
    pub problem: Option<String>,
}

impl Remotes {
    /// Equal but for positions: nothing to do for anybody.
    pub(super) fn same_content(&self, other: &Self) -> bool {
        (self.all_live_verified, self.heads_read, &self.unaccepted)
            == (other.all_live_verified, other.heads_read, &other.unaccepted)
            && self.clusters.len() == other.clusters.len()
            && self.clusters.iter().zip(&other.clusters).all(|((a, x), (b, y))| a == b && x.same_content(y))
    }
}

impl Remote {
    fn same_content(&self, other: &Self) -> bool {
        let same_state = match (&self.state, &other.state) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
            (None, None) => true,
            _ => false,
        };
        same_state
            && (&self.uid, self.left, self.stale, self.expired, &self.problem)
                == (&other.uid, other.left, other.stale, other.expired, &other.problem)
    }
}

/// Figures of one other cluster, for metrics and people; they change with every tick.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFigures {
    /// Newest accepted position.
    pub position: Option<Position>,
    /// How long the head did not advance, on the clock of R7.
    pub silent: Duration,
    /// From the writing of the newest applied change, by the writer's clock, to its application, by ours.
    pub lag: Option<Duration>,
    pub fetches: u64,
    pub failed_fetches: u64,
}

pub(super) fn successor(presence: &Presence) -> Option<&Arc<str>> {
    match presence {
        Presence::Left { successor } => successor.as_ref(),
        Presence::Live => None,
    }
}
