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
    cache::{Cache, Narrow, REFRESHED_WITHIN, Writer},
    follow::{Scope, follow},
    metrics::Metrics,
    objects::{GatedPod, Pod},
};
use crate::LabelKeys;
use api::names;
use base::env;

/// Declares each kind that the controller follows, once: the name of its cache, its type, and which of its objects there are.
/// Calls the macro `$then` with all of them.
///
/// How a kind is watched is said in [`Caches::start`].
#[macro_export]
macro_rules! watched_kinds {
    ($then:ident) => {
        $then! {
            /// All ServiceExports.
            exports: $crate::objects::ServiceExport,
            /// All Services: exported, annotated and derived ones.
            services: $crate::objects::Service,
            /// Ingresses with annotations that this project reads.
            ingresses: $crate::objects::Ingress,
            /// EndpointSlices that others write: the endpoints to export.
            slices: $crate::objects::SourceSlice,
            /// EndpointSlices that this project writes.
            imported_slices: $crate::objects::OwnSlice,
            /// All namespaces.
            namespaces: $crate::objects::Namespace,
            /// All ServiceImports.
            imports: $crate::objects::ServiceImport,
            /// Pods with labels that become attributes of instances; none without `--instance-labels`.
            pods: $crate::objects::Pod,
            /// Pods with the readiness gate; none without `--readiness-gates`.
            gated: $crate::objects::GatedPod,
            /// All Cutovers; none without `--cutovers`.
            cutovers: $crate::objects::Cutover,
            /// What other clusters may bring into this one.
            policies: $crate::objects::ClusterImportPolicy,
            /// The ClusterProperties. Those of the identity also decide what else runs.
            properties: $crate::objects::ClusterProperty,
        }
    };
}

macro_rules! caches {
    ($($(#[$doc:meta])* $kind:ident: $type:ty,)*) => {
        /// All caches of this controller.
        #[derive(Debug, Clone)]
        pub struct Caches {
            $($(#[$doc])* pub $kind: Cache<$type>,)*
        }

        /// The writers of [`Caches::unfilled`].
        #[derive(Debug)]
        pub struct Writers {
            $($(#[$doc])* pub $kind: Writer<$type>,)*
        }

        impl Caches {
            /// Empty caches and their writers, for tests and simulations.
            pub fn unfilled() -> (Self, Writers) {
                $(let $kind = Cache::new();)*
                (Self { $($kind: $kind.0,)* }, Writers { $($kind: $kind.1,)* })
            }

            /// All caches, with the properties that do not depend on the kind.
            fn all(&self) -> Vec<&dyn Progress> {
                vec![$(&self.$kind,)*]
            }
        }

        impl Writers {
            /// Ends an empty list of every kind.
            pub fn sync(&mut self) {
                $(self.$kind.sync();)*
            }
        }
    };
}

watched_kinds!(caches);

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
            policies: watches.custom(),
            properties: watches.custom(),
            pods: match instance_labels {
                Some(keys) => watches.pods(keys.clone()),
                None => Cache::without_objects(),
            },
            gated: if gates { watches.builtin(Some(names::LABEL_GATE.to_owned())) } else { Cache::without_objects() },
            cutovers: if cutovers { watches.custom() } else { Cache::without_objects() },
        }
    }

    /// Waits until every cache has seen a complete list. Nothing may act on any cache before that: an empty cache of
    /// EndpointSlices reads as "no endpoints".
    pub async fn synced(&self) {
        join_all(self.all().into_iter().map(Progress::synced)).await;
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
