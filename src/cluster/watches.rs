//! Which objects are watched, and how.

use futures::{FutureExt, Stream, StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1;
use kube::{
    Api, Client, Resource,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tracing::{Instrument, info_span};

use super::{
    cache::{Cache, Narrow, WatchItem},
    metrics::Metrics,
    objects::{
        ClusterProperty, ForeignSlice, Ingress, Namespace, OwnSlice, Pod, Service, ServiceExport, ServiceImport,
    },
};
use crate::{api::names, cluster::LabelKeys, env};

/// Seconds after which a watch is renewed. A connection that died silently is noticed 5 s later; kube's default of 290 s
/// is too long for endpoints that have gone.
const WATCH_TIMEOUT: u32 = 120;

/// Objects per page of a list: what is held in full, not narrowed, at one moment.
const PAGE: u32 = 250;

/// All caches of this controller.
#[derive(Debug, Clone)]
pub struct Caches {
    pub exports: Cache<ServiceExport>,
    /// Exported, annotated and derived Services: all there are.
    pub services: Cache<Service>,
    /// Annotated ones.
    pub ingresses: Cache<Ingress>,
    /// Slices that others write: the endpoints to export.
    pub slices: Cache<ForeignSlice>,
    /// Slices that this project writes.
    pub imported_slices: Cache<OwnSlice>,
    pub namespaces: Cache<Namespace>,
    pub imports: Cache<ServiceImport>,
    pub properties: Cache<ClusterProperty>,
    /// Those with labels that instances say; none without `--instance-labels`.
    pub pods: Cache<Pod>,
}

impl Caches {
    /// Starts a task for each watch. They end when the `JoinSet` is dropped; before that, never: one that ends has
    /// panicked, and the process should end, too.
    ///
    /// The two watches of EndpointSlices are divided by the API server, so that neither the slices of this project wake
    /// the exports, nor those of all the others the imports.
    /// Pods are watched, their metadata alone, only where labels of theirs are asked for: `instance_labels`.
    pub fn start(
        client: &Client,
        metrics: &Metrics,
        instance_labels: Option<&LabelKeys>,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let own = format!("{}={}", names::LABEL_SLICE_MANAGED_BY, names::MANAGED_BY);
        let foreign = format!("{}!={}", names::LABEL_SLICE_MANAGED_BY, names::MANAGED_BY);
        Self {
            exports: follow(custom(client, config()), metrics, tasks),
            services: follow(builtin(client, config()), metrics, tasks),
            ingresses: follow(builtin(client, config()), metrics, tasks),
            slices: follow(builtin(client, config().labels(&foreign)), metrics, tasks),
            imported_slices: follow(builtin(client, config().labels(&own)), metrics, tasks),
            namespaces: follow(builtin(client, config()), metrics, tasks),
            imports: follow(custom(client, config()), metrics, tasks),
            properties: follow(custom(client, config()), metrics, tasks),
            pods: match instance_labels {
                Some(keys) => follow(pods(client, keys.clone()), metrics, tasks),
                None => Cache::without_objects(),
            },
        }
    }

    /// Empty caches and the ends that fill them, for tests and simulations.
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
        (
            Self { exports, services, ingresses, slices, imported_slices, namespaces, imports, properties, pods },
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
            },
        )
    }

    /// Waits until every cache has seen a complete list. Before that, nothing may act on any of them: an EndpointSlice
    /// cache that is still empty reads as "no endpoints".
    pub async fn synced(&self) {
        let Self { exports, services, ingresses, slices, imported_slices, namespaces, imports, properties, pods } =
            self;
        let all: [BoxFuture<'_, ()>; 9] = [
            exports.synced().boxed(),
            services.synced().boxed(),
            ingresses.synced().boxed(),
            slices.synced().boxed(),
            imported_slices.synced().boxed(),
            namespaces.synced().boxed(),
            imports.synced().boxed(),
            properties.synced().boxed(),
            pods.synced().boxed(),
        ];
        futures::future::join_all(all).await;
    }

    pub fn are_synced(&self) -> bool {
        let Self { exports, services, ingresses, slices, imported_slices, namespaces, imports, properties, pods } =
            self;
        exports.is_synced()
            && services.is_synced()
            && ingresses.is_synced()
            && slices.is_synced()
            && imported_slices.is_synced()
            && namespaces.is_synced()
            && imports.is_synced()
            && properties.is_synced()
            && pods.is_synced()
    }

    /// What each cache that may be out of date, or not yet complete, suffers from: for readiness and for people.
    pub fn degraded(&self) -> Vec<std::sync::Arc<str>> {
        let Self { exports, services, ingresses, slices, imported_slices, namespaces, imports, properties, pods } =
            self;
        [
            exports.degraded(),
            services.degraded(),
            ingresses.degraded(),
            slices.degraded(),
            imported_slices.degraded(),
            namespaces.degraded(),
            imports.degraded(),
            properties.degraded(),
            pods.degraded(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// The writing ends of [`Caches::unfilled`].
#[derive(Debug)]
pub struct Writers {
    pub exports: super::cache::Writer<ServiceExport>,
    pub services: super::cache::Writer<Service>,
    pub ingresses: super::cache::Writer<Ingress>,
    pub slices: super::cache::Writer<ForeignSlice>,
    pub imported_slices: super::cache::Writer<OwnSlice>,
    pub namespaces: super::cache::Writer<Namespace>,
    pub imports: super::cache::Writer<ServiceImport>,
    pub properties: super::cache::Writer<ClusterProperty>,
    pub pods: super::cache::Writer<Pod>,
}

fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_TIMEOUT).page_size(PAGE)
}

fn follow<T: Narrow>(
    watch: impl Stream<Item = WatchItem<T::Kind>> + Send + 'static,
    metrics: &Metrics,
    tasks: &mut JoinSet<()>,
) -> Cache<T>
where
    T::Kind: Send,
{
    let (cache, writer) = Cache::new();
    tasks.spawn(env::task(writer.run(watch, metrics.clone()).instrument(info_span!("watch", kind = T::CACHE))));
    cache
}

/// Custom resources: their CRDs may be newer than this code, so each object is read by itself.
fn custom<K>(client: &Client, config: watcher::Config) -> impl Stream<Item = WatchItem<K>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let api: Api<DeserializeGuard<K>> = Api::all(client.clone());
    watcher(api, config)
        .default_backoff()
        .map(|item| item.map(|event| map(event, |DeserializeGuard(object)| object.map_err(Box::new))))
}

/// Kinds of Kubernetes itself, which the API server has validated: without the copy that the guard costs.
fn builtin<K>(client: &Client, config: watcher::Config) -> impl Stream<Item = WatchItem<K>> + Send + 'static
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let api: Api<K> = Api::all(client.clone());
    watcher(api, config).default_backoff().map(|item| item.map(|event| map(event, Ok)))
}

/// The metadata of pods, with the labels that are let through and no others.
fn pods(
    client: &Client,
    keys: LabelKeys,
) -> impl Stream<Item = WatchItem<PartialObjectMeta<v1::Pod>>> + Send + 'static {
    let narrowed = move |mut pod: PartialObjectMeta<v1::Pod>| {
        if let Some(labels) = &mut pod.metadata.labels {
            labels.retain(|key, _| keys.0.contains(key.as_str()));
        }
        pod
    };
    builtin(client, config()).map(move |item| item.map(|event| map(event, |pod| pod.map(&narrowed))))
}

fn map<A, B>(event: Event<A>, f: impl FnOnce(A) -> B) -> Event<B> {
    match event {
        Event::Apply(object) => Event::Apply(f(object)),
        Event::Delete(object) => Event::Delete(f(object)),
        Event::InitApply(object) => Event::InitApply(f(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}
