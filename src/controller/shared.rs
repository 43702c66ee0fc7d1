//! What the loop and the workers share.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Knowledge, Metrics, Targets, claims::Claims, index::SliceIndex};
use crate::{
    cluster::{Caches, objects::OwnSlice},
    instances::sync::TargetStatus,
    model::{ServiceKey, Target},
    queue::Queue,
};

/// The caches, the queue, the rules, and what is known.
pub(super) struct Shared {
    pub(super) caches: Caches,
    pub(super) queue: Queue<ServiceKey>,
    pub(super) targets: Targets,
    pub(super) metrics: Metrics,
    /// In a ClusterSet, or on the way into one.
    pub(super) ledger: bool,
    pub(super) state: Mutex<State>,
}

/// Behind one lock, which is never held across an await.
pub(super) struct State {
    pub(super) knowledge: Knowledge,
    pub(super) imported: SliceIndex<OwnSlice>,
    pub(super) cluster_ips: HashMap<IpAddr, usize>,
    pub(super) claims: Claims,
    pub(super) statuses: Arc<BTreeMap<Target, TargetStatus>>,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn measure(&self) {
        let (clusters, services) = self.state().knowledge.sizes();
        self.metrics.measured(self.queue.len(), clusters, services);
    }
}
