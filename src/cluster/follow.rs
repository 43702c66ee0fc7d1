//! Lists and watches the objects of one kind, and keeps their cache up to date.
//!
//! This is not kube's `watcher`, which has no deadline for a list or for the opening of a watch: one hanging connection
//! freezes a cache forever, while its replica looks healthy. Here every step has a deadline, every failure is counted
//! and reported, and the cache knows when the server last answered.

use std::time::Duration;

use futures::{AsyncReadExt as _, StreamExt as _};
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
    core::{ObjectList, Request, Status, error_boundary::InvalidObject},
    runtime::watcher::Event,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use super::{
    apply,
    cache::{Narrow, Writer},
    metrics::Metrics,
};

/// Number of objects on a page of a list, which are in memory in full at the same time.
const PAGE: u32 = 250;

/// Maximum size of a page in bytes. Ordinary objects take a few KiB each, but every user of a namespace may write objects of more
/// than a megabyte. A page that is larger is not read to its end, and requested again with fewer objects.
const MAX_PAGE_BYTES: usize = 8 << 20;

/// The same for a page with one object. No API server stores so much.
const MAX_OBJECT_BYTES: usize = 64 << 20;

/// Maximum page size, used after lists that expired before their end.
const MAX_PAGE: u32 = 4000;

/// Deadline for a page of a list, and for the opening of a watch. The API server itself gives up after 60 s; a healthy
/// one answers within a second.
const DEADLINE: Duration = Duration::from_secs(30);

/// Seconds after which the API server ends a watch. A new watch proves that the connection works, and an idle watch
/// gets one bookmark in this time.
const WATCH_SECONDS: u32 = 60;

/// Maximum silence of a watch. After this time the connection counts as dead. Until then, endpoints that are gone are
/// still served, so it is shorter than kube's 295 s.
const SILENCE: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);

/// A watch that ends earlier than this, without any event, counts as failed.
const SHORTEST_WATCH: Duration = Duration::from_secs(5);

/// After this many failures in a row a list begins again, whatever the failures were: a server does not always say
/// "expired" about a continuation or version that it no longer accepts.
const ATTEMPTS: u32 = 5;

/// First pause after a failure. It doubles with each further failure up to [`MAX_PAUSE`]. A random part of up to a half
/// is subtracted, so that the watches of all replicas do not return at once.
const MIN_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause. It is short, because nobody leads while no replica has fresh caches.
const MAX_PAUSE: Duration = Duration::from_secs(16);

/// Maximum pause that a server can request with `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(1);

/// What to watch: the kind, and which of its objects.
#[derive(Debug)]
pub(super) struct Scope<K, F> {
    pub(super) api: Api<K>,
    pub(super) labels: Option<String>,
    /// Parses an object as the cache needs it. An object that cannot be parsed is an item of the stream; it does not
    /// end the watch.
    pub(super) read: F,
}

/// Keeps the cache behind `writer` up to date, forever. `seed` determines the pauses after failures.
pub(super) async fn follow<T, K, F>(scope: Scope<K, F>, writer: Writer<T>, metrics: Metrics, seed: u64)
where
    T: Narrow,
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    F: Fn(K) -> Result<T::Kind, Box<InvalidObject>> + Send + Sync,
    T::Kind: Send,
{
    let chance = StdRng::seed_from_u64(seed);
    let mut follower = Follower { scope, writer, metrics, chance, failures: 0, page: PAGE };
    loop {
        let version = follower.list().await;
        follower.watch(version).await;
    }
}

struct Follower<T: Narrow, K, F> {
    scope: Scope<K, F>,
    writer: Writer<T>,
    metrics: Metrics,
    chance: StdRng,
    /// Number of failures since the server last answered.
    failures: u32,
    page: u32,
}

/// Why a list or a watch failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Late,
    #[error("no data for {} s", SILENCE.as_secs())]
    Silent,
    #[error("a page with {objects} objects has more than {} MiB", MAX_PAGE_BYTES >> 20)]
    Large { objects: u32 },
    #[error("the API server ends the watch at once")]
    Brief,
    #[error("an object or a list without a resourceVersion")]
    NoVersion,
    #[error("{}", apply::words(.0))]
    Call(#[source] Box<kube::Error>),
    #[error("{}", .0.message)]
    Server(Box<Status>),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Server(status),
            error => Self::Call(Box::new(error)),
        }
    }
}

impl Failure {
    /// Whether the requested version is too old: the API server's way to demand a new list.
    fn is_expired(&self) -> bool {
        matches!(self, Self::Server(status) if status.code == 410)
    }

    fn retry_after(&self) -> Option<Duration> {
        let Self::Server(status) = self else { return None };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER))
    }

    /// A fixed word for the metric, and a remedy that completes the sentence.
    fn diagnose(&self) -> (&'static str, &'static str) {
        let code = match self {
            Self::Late => return ("timeout", ""),
            Self::Silent => return ("silence", ""),
            Self::Brief | Self::NoVersion | Self::Large { .. } => return ("api", ""),
            Self::Call(_) => return ("connection", ""),
            Self::Server(status) => status.code,
        };
        match code {
            404 => {
                ("not_found", "; check that the CustomResourceDefinition is installed (kubectl apply -k config/crd)")
            }
            403 => (
                "forbidden",
                "; check that the service account has the permissions in config/rbac (for pods: config/components/instance-labels and readiness-gates; for Cutovers: config/components/cutovers)",
            ),
            401 => ("unauthorized", ""),
            410 => ("expired", ""),
            429 => ("throttled", ""),
            _ => ("api", ""),
        }
    }
}

/// How a watch ended.
enum End {
    /// The API server ended it, as it does every [`WATCH_SECONDS`], or because it restarts.
    Closed,
    /// A new list is needed.
    List,
    Failed(Failure),
}

impl<T, K, F> Follower<T, K, F>
where
    T: Narrow,
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    F: Fn(K) -> Result<T::Kind, Box<InvalidObject>> + Send + Sync,
    T::Kind: Send,
{
    /// Lists until a list has reached its end, and returns its version. A page that fails is requested again, so the
    /// pages before it are not lost.
    async fn list(&mut self) -> String {
        loop {
            self.apply(Event::Init);
            let mut next = None;
            while !self.writer.is_list_wanted() {
                let failure = match self.get_page(next.clone()).await {
                    Ok(page) => {
                        for object in page.items {
                            self.apply(Event::InitApply((self.scope.read)(object)));
                        }
                        next = page.metadata.continue_.filter(|token| !token.is_empty());
                        let version = page.metadata.resource_version.filter(|version| !version.is_empty());
                        match (&next, version) {
                            (Some(_), _) => {
                                self.failures = 0;
                                self.writer.advanced();
                                continue;
                            }
                            (None, Some(version)) => {
                                self.apply(Event::InitDone);
                                self.page = PAGE;
                                return version;
                            }
                            (None, None) => Failure::NoVersion,
                        }
                    }
                    Err(Failure::Large { objects }) if objects > 1 => {
                        self.page = (objects / 4).max(1);
                        debug!(
                            kind = T::CACHE,
                            objects = self.page,
                            "a page was too large: listing on with smaller ones"
                        );
                        continue;
                    }
                    Err(failure) => failure,
                };
                let expired = failure.is_expired();
                self.failed("list", &failure).await;
                if next.is_some() && expired {
                    // The list took longer than the API server keeps a version (5 minutes). Larger pages are faster.
                    self.page = (self.page * 2).min(MAX_PAGE);
                }
                if next.is_none() || expired || self.failures >= ATTEMPTS {
                    break;
                }
            }
        }
    }

    async fn get_page(&mut self, next: Option<String>) -> Result<ObjectList<K>, Failure> {
        // Without a version the list is as fresh as the API server has it, and never comes from the cache of a server
        // that lags.
        let params = ListParams {
            label_selector: self.scope.labels.clone(),
            limit: Some(self.page),
            continue_token: next,
            ..ListParams::default()
        };
        let text = timeout(DEADLINE, self.read_page(&params)).await.map_err(|_| Failure::Late)??;
        if self.page < PAGE && text.len() < MAX_PAGE_BYTES / 4 {
            self.page = (self.page * 2).min(PAGE);
        }
        Ok(serde_json::from_slice(&text).map_err(kube::Error::SerdeError)?)
    }

    /// The text of a page, of which no more is read than may be in memory.
    async fn read_page(&self, params: &ListParams) -> Result<Vec<u8>, Failure> {
        let request = Request::new(self.scope.api.resource_url());
        let request = if K::metadata_api() { request.list_metadata(params) } else { request.list(params) };
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert("list");
        let most = if self.page == 1 { MAX_OBJECT_BYTES } else { MAX_PAGE_BYTES };
        let body = self.scope.api.clone().into_client().request_stream(request).await?;
        let mut text = Vec::new();
        let read = std::pin::pin!(body).take(most as u64 + 1).read_to_end(&mut text).await;
        read.map_err(kube::Error::ReadEvents)?;
        if text.len() > most { Err(Failure::Large { objects: self.page }) } else { Ok(text) }
    }

    /// Watches from a version on, with as many watches as this takes, until a new list is needed.
    async fn watch(&mut self, mut version: String) {
        loop {
            let begun = Instant::now();
            match self.watch_once(&mut version).await {
                // Whatever it sent, a server that ends each watch at once is not called in a tight loop.
                End::Closed if begun.elapsed() < SHORTEST_WATCH => sleep(MIN_PAUSE).await,
                End::Closed => {}
                End::List => return,
                End::Failed(failure) => {
                    let expired = failure.is_expired();
                    self.failed("watch", &failure).await;
                    if expired || self.failures >= ATTEMPTS {
                        return;
                    }
                }
            }
        }
    }

    async fn watch_once(&mut self, version: &mut String) -> End {
        let params = WatchParams {
            label_selector: self.scope.labels.clone(),
            timeout: Some(WATCH_SECONDS),
            ..WatchParams::default()
        };
        let begun = Instant::now();
        let events = match timeout(DEADLINE, self.scope.api.watch(&params, version)).await {
            Ok(Ok(events)) => events,
            Ok(Err(error)) => return End::Failed(error.into()),
            Err(_) => return End::Failed(Failure::Late),
        };
        let mut events = std::pin::pin!(events);
        let mut heard = false;
        loop {
            let event = tokio::select! {
                biased;
                () = self.writer.list_wanted() => return End::List,
                event = timeout(SILENCE, events.next()) => event,
            };
            match event {
                Err(_) => return End::Failed(Failure::Silent),
                Ok(None) => {
                    if begun.elapsed() < SHORTEST_WATCH {
                        return if heard { End::Closed } else { End::Failed(Failure::Brief) };
                    }
                    // There were no changes. Some proxies end a quiet connection earlier than the API server does.
                    self.answered();
                    return End::Closed;
                }
                Ok(Some(Err(error))) => return End::Failed(error.into()),
                Ok(Some(Ok(event))) => match self.take(event) {
                    Ok(newest) => *version = newest,
                    Err(failure) => return End::Failed(failure),
                },
            }
            heard = true;
            self.answered();
        }
    }

    /// Takes in one event and returns its version.
    fn take(&mut self, event: WatchEvent<K>) -> Result<String, Failure> {
        let (event, version) = match event {
            WatchEvent::Bookmark(bookmark) => return Ok(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => return Err(Failure::Server(status)),
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                let object = (self.scope.read)(object);
                let version = version::<T>(&object);
                (Event::Apply(object), version)
            }
            WatchEvent::Deleted(object) => {
                let object = (self.scope.read)(object);
                let version = version::<T>(&object);
                (Event::Delete(object), version)
            }
        };
        self.apply(event);
        version.ok_or(Failure::NoVersion)
    }

    fn apply(&mut self, event: Event<Result<T::Kind, Box<InvalidObject>>>) {
        let kind = &[T::CACHE];
        let was_synced = self.writer.cache().is_synced();
        if let Some(invalid) = self.writer.apply(event) {
            self.metrics.invalid_objects.with_label_values(kind).inc();
            warn!(
                kind = T::CACHE,
                namespace = invalid.metadata.namespace.as_deref().unwrap_or_default(),
                name = invalid.metadata.name.as_deref().unwrap_or_default(),
                error = invalid.error,
                "object cannot be read and is left as it was last seen",
            );
        }
        let objects = self.writer.cache().len();
        self.metrics.cache_objects.with_label_values(kind).set(i64::try_from(objects).unwrap_or(i64::MAX));
        if !was_synced && self.writer.cache().is_synced() {
            self.metrics.cache_synced.with_label_values(kind).set(1);
            info!(kind = T::CACHE, objects, "cache is synced");
        }
    }

    fn answered(&mut self) {
        self.failures = 0;
        if self.writer.answered().is_some() {
            info!(kind = T::CACHE, "watch works again");
        }
    }

    /// Reports a failure and waits before the next attempt: for a while, or until a list is requested.
    async fn failed(&mut self, what: &'static str, failure: &Failure) {
        if failure.is_expired() {
            debug!(kind = T::CACHE, what, %failure, "expired: listing again");
        } else {
            let (reason, remedy) = failure.diagnose();
            self.metrics.watch_errors.with_label_values(&[T::CACHE, reason]).inc();
            let words = format!("the {what} of {} fails: {failure}{remedy}", T::CACHE);
            if self.writer.failed(&words) {
                warn!(kind = T::CACHE, reason, "{words}; trying again");
            } else {
                debug!(kind = T::CACHE, reason, "{words}");
            }
        }
        let pause = self.pause(failure);
        self.failures += 1;
        tokio::select! {
            biased;
            () = self.writer.list_wanted() => {}
            () = sleep(pause) => {}
        }
    }

    fn pause(&mut self, failure: &Failure) -> Duration {
        let longest = MIN_PAUSE.saturating_mul(1 << self.failures.min(10)).min(MAX_PAUSE);
        let pause = longest.mul_f64(self.chance.random_range(0.5..1.0));
        failure.retry_after().map_or(pause, |asked| asked + pause)
    }
}

fn version<T: Narrow>(object: &Result<T::Kind, Box<InvalidObject>>) -> Option<String> {
    let metadata = object.as_ref().map_or_else(|invalid| &invalid.metadata, Resource::meta);
    metadata.resource_version.clone().filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests;
