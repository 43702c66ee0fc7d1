//! The objects of this cluster as the core has taken them in. The caches of the watches may be ahead; nothing here reads them.

use std::{collections::BTreeMap, sync::Arc};

use cluster::{
    Change,
    cache::Narrow,
    objects::{
        Cutover, GatedPod, Ingress, Namespace, OwnSlice, Pod, Service, ServiceExport, ServiceImport, SourceSlice,
    },
};

/// What changed since the last batch: all kinds at once, so that a decision sees an object and what belongs to it.
#[derive(Debug, Clone, Default)]
pub(super) struct Batch {
    pub(super) exports: Vec<Change<ServiceExport>>,
    pub(super) services: Vec<Change<Service>>,
    pub(super) ingresses: Vec<Change<Ingress>>,
    pub(super) slices: Vec<Change<SourceSlice>>,
    pub(super) imported: Vec<Change<OwnSlice>>,
    pub(super) namespaces: Vec<Change<Namespace>>,
    pub(super) imports: Vec<Change<ServiceImport>>,
    pub(super) pods: Vec<Change<Pod>>,
    pub(super) gated: Vec<Change<GatedPod>>,
    pub(super) cutovers: Vec<Change<Cutover>>,
}

/// The objects of one kind, by key. They are shared with the cache.
#[derive(Debug)]
pub(super) struct Objects<T: Narrow>(BTreeMap<T::Key, Arc<T>>);

impl<T: Narrow> Default for Objects<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Narrow> Objects<T> {
    /// The object with this key.
    pub(super) fn get(&self, key: &T::Key) -> Option<Arc<T>> {
        self.0.get(key).cloned()
    }

    pub(super) fn contains(&self, key: &T::Key) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All keys, sorted.
    pub(super) fn keys(&self) -> impl Iterator<Item = &T::Key> {
        self.0.keys()
    }

    /// All objects, sorted by key.
    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.values()
    }

    fn fold(&mut self, changes: &[Change<T>]) {
        for Change { key, new, .. } in changes {
            match new {
                Some(object) => drop(self.0.insert(key.clone(), Arc::clone(object))),
                None => drop(self.0.remove(key)),
            }
        }
    }
}

/// All objects but the EndpointSlices, which are in indexes of their own ([`SliceIndex`](super::index::SliceIndex)).
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) exports: Objects<ServiceExport>,
    pub(super) services: Objects<Service>,
    pub(super) ingresses: Objects<Ingress>,
    pub(super) namespaces: Objects<Namespace>,
    pub(super) imports: Objects<ServiceImport>,
    pub(super) pods: Objects<Pod>,
    pub(super) gated: Objects<GatedPod>,
    pub(super) cutovers: Objects<Cutover>,
}

impl World {
    /// Takes a batch in, before anything is decided by it.
    pub(super) fn fold(&mut self, batch: &Batch) {
        let Batch { exports, services, ingresses, namespaces, imports, pods, gated, cutovers, slices: _, imported: _ } =
            batch;
        self.exports.fold(exports);
        self.services.fold(services);
        self.ingresses.fold(ingresses);
        self.namespaces.fold(namespaces);
        self.imports.fold(imports);
        self.pods.fold(pods);
        self.gated.fold(gated);
        self.cutovers.fold(cutovers);
    }
}
