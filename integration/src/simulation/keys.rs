//! The Secrets with the keys of clusters, which people delete.

use std::collections::BTreeMap;

use ledger::trust::SECRET;
use serde_json::Value;

use super::{
    kubernetes::Write,
    world::{Cluster, OWN, World},
};

impl World {
    /// Deletes the Secret with the key of a cluster. If nobody else knows the key any more, people put it back before the
    /// next leader makes another one, as trust.md asks them to: the other clusters would not believe that one.
    pub(crate) fn delete_key(&self, cluster: usize) {
        drop(self.clusters[cluster].api.take_away("secrets", OWN, SECRET));
    }
}

/// A cluster that does not have its key.
pub(crate) fn missing(world: &World) -> Option<String> {
    let cluster = world.clusters.iter().find(|cluster| cluster.api.get("secrets", OWN, SECRET).is_none())?;
    Some(format!("{} has no Secret {SECRET}", cluster.id))
}

/// What the Secret of each cluster contained first, by UID.
#[derive(Debug, Default)]
pub(crate) struct Keys(BTreeMap<String, Value>);

impl Keys {
    /// Why a replica must not have made this write of a Secret: the cluster would have another key.
    pub(crate) fn wrong(&mut self, cluster: &Cluster, write: &Write) -> Option<String> {
        let stored = &write.after.as_ref()?["data"];
        let first = self.0.entry(cluster.uid.clone()).or_insert_with(|| stored.clone());
        (*first != *stored).then(|| format!("{}: {write}", cluster.id))
    }
}
