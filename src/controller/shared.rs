//! What the loop and the workers share.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    Knowledge, Metrics, Targets, claims::Claims, foreign::Foreign, index::SliceIndex, peers::Peers, pending::Pending,
    pods::PodLabels, targets::Asked,
};
use crate::{
    awsmcs,
    cluster::{
        Caches,
        objects::{ForeignSlice, OwnSlice, ServiceExport},
        selector::NamespaceSelector,
    },
    export::{self, Local, Refusal},
    import::Unknown,
    instances::sync::TargetStatus,
    model::{ClusterId, IpFamily, ServiceKey, Target, addresses::Range},
    queue::Queue,
};

/// The caches, the queue, the rules, and what is known.
pub(super) struct Shared {
    pub(super) caches: Caches,
    pub(super) queue: Queue<ServiceKey>,
    pub(super) targets: Targets,
    /// The namespaces that may export; `None`: all.
    pub(super) export_namespaces: Option<NamespaceSelector>,
    /// The IP families that this cluster has.
    pub(super) families: Vec<IpFamily>,
    /// The ranges that it takes addresses of Services from, as far as they are known.
    pub(super) service_ranges: Vec<Range>,
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
    pub(super) pending: Pending,
    pub(super) foreign: Foreign,
    pub(super) pods: PodLabels,
    pub(super) peers: Peers,
}

impl State {
    /// What every known cluster says about a name, by the ledger or by the instances of its AWS controller.
    pub(super) fn sources(&self, key: &ServiceKey) -> BTreeMap<ClusterId, Arc<Local>> {
        let mut sources = self.knowledge.sources(key);
        let knowledge = &self.knowledge;
        let told = self.peers.told(key, |cluster| knowledge.is_live(cluster));
        awsmcs::join(&mut sources, told.exports, |cluster| knowledge.is_unread(cluster));
        sources
    }

    /// The clusters of which it is not known what they say about a name.
    pub(super) fn unknown(&self, key: &ServiceKey) -> Unknown {
        match self.knowledge.unknown() {
            Unknown::Only(_) if !self.peers.is_complete(key) => Unknown::AllBut(self.knowledge.known()),
            unknown => unknown,
        }
    }

    /// New imports wait for the first reading.
    pub(super) fn settling(&self) -> bool {
        self.knowledge.settling() || !self.peers.is_settled()
    }
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a ServiceExport exports now. `None`: nothing is known yet of its namespace, whose labels and annotations decide.
    pub(super) fn plan(&self, export: &ServiceExport, slices: &[Arc<ForeignSlice>]) -> Option<Result<Local, Refusal>> {
        let service = self.caches.services.get(&export.key);
        let target = match self.targets.asked(export, self.state().knowledge.rights()) {
            Asked::Target(target) => Some(target),
            Asked::None | Asked::Invalid(_) => None,
            Asked::Unknown => return None,
        };
        let plan = export::plan(export, service.as_deref(), slices, target);
        let plan =
            if self.targets.aws_mcs { plan.and_then(|local| export::hand_over(export).map(|()| local)) } else { plan };
        let Some(allowed) = &self.export_namespaces else { return Some(plan) };
        let namespace = self.caches.namespaces.get(&export.key.namespace)?;
        Some(plan.and_then(|local| export::permit(&namespace, allowed).map(|()| local)))
    }

    pub(super) fn measure(&self) {
        let (clusters, services) = self.state().knowledge.sizes();
        self.metrics.measured(self.queue.len(), clusters, services);
    }
}
