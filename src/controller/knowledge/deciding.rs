//! For which clusters the ledger says whether they export a name, and for which their instances may say it
//! (`--aws-mcs-compat`).

use std::collections::BTreeSet;

use super::{Knowledge, Remote};
use model::{ClusterId, ServiceKey};

impl Knowledge {
    /// Whether the cluster is in the ledger, has not left, and has not been silent for longer than the TTL.
    pub fn is_live(&self, cluster: &ClusterId) -> bool {
        self.others.remotes.get(cluster).is_some_and(|remote| !remote.gone)
    }

    /// Whether the cluster is in the ledger, but its exports are not known (yet).
    pub fn is_unread(&self, cluster: &ClusterId) -> bool {
        self.others.unaccepted.contains(cluster)
            || self.others.remotes.get(cluster).is_some_and(|remote| remote.map.is_none())
    }

    /// The clusters for which the ledger decides whether they export a name: this one, and those that export it there
    /// or withdrew it in this term. For any other cluster, its instances may be the export even if it is in the ledger:
    /// it moves, or it went back to its AWS controller. This is meaningful only after the ledger was read.
    pub fn deciding(&self, key: &ServiceKey) -> BTreeSet<ClusterId> {
        let decides = |remote: &Remote| remote.exports.contains(key) || remote.withdrawn.contains(key);
        let remotes = self.others.remotes.iter().filter(|(_, remote)| decides(remote)).map(|(id, _)| id.clone());
        remotes.chain([self.local.clone()]).collect()
    }

    /// Whether a live cluster withdrew a name in this term. Its instances show the name until they are deregistered and
    /// that was read, but they are no export any more. The instances of a cluster that has left may be an export,
    /// because the cluster may have gone back to its AWS controller.
    pub fn withdrew(&self, cluster: &ClusterId, key: &ServiceKey) -> bool {
        self.others.remotes.get(cluster).is_some_and(|remote| !remote.gone && remote.withdrawn.contains(key))
    }

    /// Forgets who withdrew names. `is_over` gets a name and whether the cluster lives, and returns whether that no
    /// longer matters.
    pub fn forget_withdrawn(&mut self, is_over: impl Fn(&ServiceKey, bool) -> bool) {
        for remote in self.others.remotes.values_mut() {
            let live = !remote.gone;
            remote.withdrawn.retain(|key| !is_over(key, live));
        }
    }
}
