//! Which objects are watched, and how.

use std::{fmt::Debug, time::Duration};

use futures::{
    FutureExt,
    future::{BoxFuture, join, join_all},
};
use k8s_openapi::api::core::v1;
use kube::{
    Api, Client, Resource,
    core::{DeserializeGuard, PartialObjectMeta, error_boundary::InvalidObject},
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tracing::{Instrument, info_span, warn};

use super::{
    cache::{Cache, Narrow, REFRESHED_WITHIN},
    follow::{Scope, follow},
    metrics::Metrics,
    objects::{
        ClusterProperty, Cutover, GatedPod, Ingress, Namespace, OwnSlice, Pod, Service, ServiceExport, ServiceImport,
        SourceSlice,
    },
};
use crate::LabelKeys;
use api::names;
use base::env;

/// All caches of this controller.
#[derive(Debug, Clone)]
pub struct Caches {
    /// All ServiceExports.
    pub exports: Cache<ServiceExport>,
    /// All Services: exported, annotated and derived ones.
    pub services: Cache<Service>,
    /// Ingresses with annotations that this project reads.
    pub ingresses: Cache<Ingress>,
    /// EndpointSlices that others write: the endpoints to export.
    pub slices: Cache<SourceSlice>,
    /// EndpointSlices that this project writes.
    pub imported_slices: Cache<OwnSlice>,
    /// All namespaces.
    pub namespaces: Cache<Namespace>,
    /// All ServiceImports.
    pub imports: Cache<ServiceImport>,
    /// The ClusterProperties of the identity.
    pub properties: Cache<ClusterProperty>,
    /// Pods with labels that become attributes of instances; empty without `--instance-labels`.
    pub pods: Cache<Pod>,
    /// Pods with the readiness gate; empty without `--readiness-gates`.
    pub gated: Cache<GatedPod>,
    /// All Cutovers; empty without `--cutovers`.
    pub cutovers: Cache<Cutover>,
}

impl Caches {
    /// Starts a task for each watch. The tasks end when the `JoinSet` is dropped. A task that ends before has panicked,
    /// and the process should end, too.
    ///
    /// The API server divides the two watches of EndpointSlices, so that this project's slices do not wake exports, and
    /// all other slices do not wake imports. Pods are watched only with `instance_labels`, and only their metadata, and those
    /// that have the label of the readiness gate only with `gates`. Cutovers are watched only with `cutovers`, because
    /// their CRD may not be there.
    pub fn start(
        client: &Client,
        metrics: &Metrics,
        instance_labels: Option<&LabelKeys>,
        gates: bool,
        cutovers: bool,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let own = format!("{}={}", names::LABEL_SLICE_MANAGED_BY, names::MANAGED_BY);
        let foreign = format!("{}!={}", names::LABEL_SLICE_MANAGED_BY, names::MANAGED_BY);
        let mut watches = Watches { client, metrics, tasks };
        Self {
            exports: watches.custom(),
            services: watches.builtin(None),
            ingresses: watches.builtin(None),
            slices: watches.builtin(Some(foreign)),
            imported_slices: watches.builtin(Some(own)),
            namespaces: watches.builtin(None),
            imports: watches.custom(),
            properties: watches.custom(),
            pods: match instance_labels {
                Some(keys) => watches.pods(keys.clone()),
                None => Cache::without_objects(),
            },
            gated: if gates { watches.builtin(Some(names::LABEL_GATE.to_owned())) } else { Cache::without_objects() },
            cutovers: if cutovers { watches.custom() } else { Cache::without_objects() },
        }
    }

    /// Empty caches and their writers, for tests and simulations.
    pub fn unfilled() -> (Self, Writers) {
        let (exports, exports_writer) = Cache::new();
        let (services, services_writer) = Cache::new();
        let (ingresses, ingresses_writer) = Cache::new();
        let (slices, slices_writer) = Cache::new();
        let (imported_slices, imported_slices_writer) = Cache::new();
        let (namespaces, namespaces_writer) = Cache::new();
        let (imports, imports_writer) = Cache::new();
        let (properties, properties_writer) = Cache::new();
        let (pods, pods_writer) = Cache::new();
        let (gated, gated_writer) = Cache::new();
        let (cutovers, cutovers_writer) = Cache::new();
        (
            Self {
                exports,
                services,
                ingresses,
                slices,
                imported_slices,
                namespaces,
                imports,
                properties,
                pods,
                gated,
                cutovers,
            },
            Writers {
                exports: exports_writer,
                services: services_writer,
                ingresses: ingresses_writer,
                slices: slices_writer,
                imported_slices: imported_slices_writer,
                namespaces: namespaces_writer,
                imports: imports_writer,
                properties: properties_writer,
                pods: pods_writer,
                gated: gated_writer,
                cutovers: cutovers_writer,
            },
        )
    }

    /// All caches, with the properties that do not depend on the kind.
    fn all(&self) -> [&dyn Progress; 11] {
        let Self {
            exports,
            services,
            ingresses,
            slices,
            imported_slices,
            namespaces,
            imports,
            properties,
            pods,
            gated,
            cutovers,
        } = self;
        [exports, services, ingresses, slices, imported_slices, namespaces, imports, properties, pods, gated, cutovers]
    }

    /// Waits until every cache has seen a complete list. Nothing may act on any cache before that: an empty cache of
    /// EndpointSlices reads as "no endpoints".
    pub async fn synced(&self) {
        join_all(self.all().map(Progress::synced)).await;
    }

    /// Waits until every cache has a list that began after this call. A newly elected leader acts on nothing older: the
    /// previous leader may have seen more, and what it wrote would look wrong.
    ///
    /// Pods determine only attributes of instances and gates, and only if this is requested. So pods are waited for no
    /// longer than [`REFRESHED_WITHIN`].
    pub async fn refresh(&self) {
        let needed = self.all().into_iter().filter(|cache| cache.is_needed()).map(Progress::refresh);
        let pods = tokio::time::timeout(REFRESHED_WITHIN, join(self.pods.refresh(), self.gated.refresh()));
        let (_, pods) = join(join_all(needed), pods).await;
        if pods.is_err() {
            warn!("no new list of pods yet: labels of instances stay as they are, and gates follow the old list");
        }
    }

    /// Why nothing new may begin on the basis of these caches, as a text for people; `None` if it may. A replica in
    /// this state is not ready and does not stand for election. The caches of pods count until their first list, for which
    /// every replica waits: otherwise a roll-out would replace a leader by replicas that never lead.
    pub fn trouble(&self) -> Option<String> {
        let counted = self.all().into_iter().filter(|cache| cache.is_needed() || !cache.is_synced());
        let words = counted.filter_map(Progress::trouble).collect::<Vec<_>>().join("; ");
        (!words.is_empty()).then_some(words)
    }

    /// How long ago the API server last answered for each cache, by the name of the cache.
    pub fn ages(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        self.all().into_iter().map(|cache| (cache.name(), cache.age()))
    }
}

/// What the caches of all kinds have in common.
trait Progress: Sync {
    fn name(&self) -> &'static str;
    /// Whether no replica may begin to lead while this cache is old.
    fn is_needed(&self) -> bool;
    fn is_synced(&self) -> bool;
    fn synced(&self) -> BoxFuture<'_, ()>;
    fn refresh(&self) -> BoxFuture<'_, ()>;
    fn trouble(&self) -> Option<String>;
    fn age(&self) -> Duration;
}

impl<T: Narrow> Progress for Cache<T> {
    fn name(&self) -> &'static str {
        T::CACHE
    }

    fn is_needed(&self) -> bool {
        T::CACHE != Pod::CACHE && T::CACHE != GatedPod::CACHE
    }

    fn is_synced(&self) -> bool {
        self.is_synced()
    }

    fn synced(&self) -> BoxFuture<'_, ()> {
        self.synced().boxed()
    }

    fn refresh(&self) -> BoxFuture<'_, ()> {
        self.refresh().boxed()
    }

    fn trouble(&self) -> Option<String> {
        self.trouble()
    }

    fn age(&self) -> Duration {
        self.age()
    }
}

/// The writers of [`Caches::unfilled`].
#[derive(Debug)]
pub struct Writers {
    /// Writer of [`Caches::exports`].
    pub exports: super::cache::Writer<ServiceExport>,
    /// Writer of [`Caches::services`].
    pub services: super::cache::Writer<Service>,
    /// Writer of [`Caches::ingresses`].
    pub ingresses: super::cache::Writer<Ingress>,
    /// Writer of [`Caches::slices`].
    pub slices: super::cache::Writer<SourceSlice>,
    /// Writer of [`Caches::imported_slices`].
    pub imported_slices: super::cache::Writer<OwnSlice>,
    /// Writer of [`Caches::namespaces`].
    pub namespaces: super::cache::Writer<Namespace>,
    /// Writer of [`Caches::imports`].
    pub imports: super::cache::Writer<ServiceImport>,
    /// Writer of [`Caches::properties`].
    pub properties: super::cache::Writer<ClusterProperty>,
    /// Writer of [`Caches::pods`].
    pub pods: super::cache::Writer<Pod>,
    /// Writer of [`Caches::gated`].
    pub gated: super::cache::Writer<GatedPod>,
    /// Writer of [`Caches::cutovers`].
    pub cutovers: super::cache::Writer<Cutover>,
}

impl Writers {
    /// Ends an empty list of every kind.
    pub fn sync(&mut self) {
        let Self {
            exports,
            services,
            ingresses,
            slices,
            imported_slices,
            namespaces,
            imports,
            properties,
            pods,
            gated,
            cutovers,
        } = self;
        exports.sync();
        services.sync();
        ingresses.sync();
        slices.sync();
        imported_slices.sync();
        namespaces.sync();
        imports.sync();
        properties.sync();
        pods.sync();
        gated.sync();
        cutovers.sync();
    }
}

/// Starts watches.
struct Watches<'a> {
    client: &'a Client,
    metrics: &'a Metrics,
    tasks: &'a mut JoinSet<()>,
}

impl Watches<'_> {
    /// Watches a custom resource. Its CRD may be newer than this code, so each object is parsed separately.
    fn custom<T: Narrow>(&mut self) -> Cache<T>
    where
        T::Kind: Clone + Debug + DeserializeOwned + Send,
    {
        let api: Api<DeserializeGuard<T::Kind>> = Api::all(self.client.clone());
        self.start(api, None, |DeserializeGuard(object)| object.map_err(Box::new))
    }

    /// Watches a built-in kind, which the API server has validated, without the copy that the guard costs.
    fn builtin<T: Narrow>(&mut self, labels: Option<String>) -> Cache<T>
    where
        T::Kind: Clone + Debug + DeserializeOwned + Send,
    {
        self.start(Api::all(self.client.clone()), labels, Ok)
    }

    /// Watches the metadata of pods, and keeps only the selected labels.
    fn pods(&mut self, keys: LabelKeys) -> Cache<Pod> {
        self.start(Api::all(self.client.clone()), None, move |mut pod: PartialObjectMeta<v1::Pod>| {
            if let Some(labels) = &mut pod.metadata.labels {
                labels.retain(|key, _| keys.0.contains(key.as_str()));
            }
            Ok(pod)
        })
    }

    fn start<T, K, F>(&mut self, api: Api<K>, labels: Option<String>, read: F) -> Cache<T>
    where
        T: Narrow,
        T::Kind: Send,
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        F: Fn(K) -> Result<T::Kind, Box<InvalidObject>> + Send + Sync + 'static,
    {
        let (cache, writer) = Cache::new();
        let following = follow(Scope { api, labels, read }, writer, self.metrics.clone(), env::random());
        self.tasks.spawn(env::task(following.instrument(info_span!("watch", kind = T::CACHE))));
        cache
    }
}
