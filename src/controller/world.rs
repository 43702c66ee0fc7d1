//! The objects of this cluster as the core has taken them in. The caches of the watches may be ahead; nothing here reads them.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use super::{
    derived::Derived,
    index::{SliceIndex, import_of},
};
use cluster::{
    Change,
    cache::Narrow,
    objects::{
        ClusterImportPolicy, ClusterProperty, Cutover, GatedPod, Ingress, Namespace, OwnSlice, Pod, Service,
        ServiceExport, ServiceImport, SourceSlice,
    },
    watched_kinds,
};
use import::DerivedNaming;
use model::addresses::Range;

macro_rules! batch {
    ($($(#[$doc:meta])* $kind:ident: $type:ty,)*) => {
        /// What changed since the last batch: all kinds at once, so that a decision sees an object and what belongs to it.
        #[derive(Debug, Clone, Default)]
        pub(super) struct Batch {
            $(pub(super) $kind: Vec<Change<$type>>,)*
        }
    };
}

watched_kinds!(batch);

/// The objects of one kind, by key. They are shared with the cache.
#[derive(Debug, Clone)]
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

    /// All keys from this one on, sorted.
    pub(super) fn keys_from<'a>(&'a self, first: &T::Key) -> impl Iterator<Item = &'a T::Key> + use<'a, T> {
        self.0.range(first..).map(|(key, _)| key)
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

/// All objects, and what is found through them.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) exports: Objects<ServiceExport>,
    pub(super) services: Objects<Service>,
    pub(super) ingresses: Objects<Ingress>,
    pub(super) namespaces: Objects<Namespace>,
    pub(super) imports: Objects<ServiceImport>,
    pub(super) pods: Objects<Pod>,
    pub(super) gated: Objects<GatedPod>,
    pub(super) cutovers: Objects<Cutover>,
    pub(super) policies: Objects<ClusterImportPolicy>,
    pub(super) properties: Objects<ClusterProperty>,
    /// EndpointSlices by Service, and those of this project by import.
    pub(super) slices: SliceIndex<SourceSlice>,
    pub(super) imported: SliceIndex<OwnSlice>,
    pub(super) derived: Derived,
    /// How many Services have each cluster IP.
    pub(super) cluster_ips: BTreeMap<IpAddr, usize>,
    /// The ranges of cluster IPs, as far as they are known.
    pub(super) ranges: Arc<[Range]>,
}

impl World {
    /// A world without objects.
    pub(super) fn new(naming: DerivedNaming) -> Self {
        Self {
            exports: Objects::default(),
            services: Objects::default(),
            ingresses: Objects::default(),
            namespaces: Objects::default(),
            imports: Objects::default(),
            pods: Objects::default(),
            gated: Objects::default(),
            cutovers: Objects::default(),
            policies: Objects::default(),
            properties: Objects::default(),
            slices: SliceIndex::new(|slice| slice.service.clone()),
            imported: SliceIndex::new(import_of),
            derived: Derived::new(naming),
            cluster_ips: BTreeMap::new(),
            ranges: Arc::default(),
        }
    }

    /// Takes a batch in, before anything is decided by it: all but the EndpointSlices, because who is concerned by those also
    /// depends on what they were.
    pub(super) fn fold(&mut self, batch: &Batch) {
        let Batch {
            exports,
            services,
            ingresses,
            namespaces,
            imports,
            pods,
            gated,
            cutovers,
            policies,
            properties,
            slices: _,
            imported_slices: _,
        } = batch;
        self.exports.fold(exports);
        self.services.fold(services);
        self.ingresses.fold(ingresses);
        self.namespaces.fold(namespaces);
        self.imports.fold(imports);
        self.pods.fold(pods);
        self.gated.fold(gated);
        self.cutovers.fold(cutovers);
        self.policies.fold(policies);
        self.properties.fold(properties);
    }
}
