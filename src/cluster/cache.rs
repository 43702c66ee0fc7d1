//! A cache of one kind of object, narrowed on the way in.
//!
//! Own code rather than kube's reflector and shared streams, for three guarantees: objects that vanish while a watch is
//! broken are reported as changes, a narrowed object that did not change is not, and a slow reader costs memory for
//! each changed object once, however often it changes.

use std::{
    collections::{HashMap, HashSet},
    fmt::{Debug, Display},
    hash::Hash,
    mem,
    sync::{Arc, Mutex, PoisonError, RwLock, Weak},
    time::Duration,
};

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::error_boundary::InvalidObject,
    runtime::watcher::{self, Event},
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::{debug, info, warn};

use super::{apply, metrics::Metrics, objects::Interner};

/// After an error, a watch counts as broken this long: retries are at most 30 s apart (doubled by jitter), and a watch
/// that works again says nothing until something changes.
const BROKEN_FOR: Duration = Duration::from_secs(90);

/// What a cache keeps of an object.
pub trait Narrow: Sized + PartialEq + Debug + Send + Sync + 'static {
    /// The object as the API server sends it.
    type Kind: Resource<DynamicType = ()>;
    type Key: Clone + Eq + Hash + Display + Debug + Send + Sync + 'static;

    /// Name of the cache in logs and metrics.
    const CACHE: &'static str;

    /// `None` for an object without a name, which the API server never sends.
    fn key(metadata: &ObjectMeta) -> Option<Self::Key>;

    /// `None` means that this object is as good as absent.
    fn narrow(object: Self::Kind, interner: &mut Interner) -> Option<Self>;
}

/// What a watch of [`Narrow::Kind`] yields: an object that cannot be read is an item, not the end of the watch.
pub type WatchItem<K> = Result<Event<Result<K, Box<InvalidObject>>>, watcher::Error>;

/// An object that came, changed or went.
#[derive(Debug)]
pub struct Change<T: Narrow> {
    pub key: T::Key,
    /// As of the last change that this subscriber took; `None` if it was absent then.
    pub old: Option<Arc<T>>,
    /// `None` if it is gone.
    pub new: Option<Arc<T>>,
}

/// Read access to a cache. Cheap to clone; all clones see the same objects.
#[derive(Debug)]
pub struct Cache<T: Narrow>(Arc<Shared<T>>);

impl<T: Narrow> Clone for Cache<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Shared<T: Narrow> {
    content: RwLock<Content<T>>,
    state: watch::Sender<State>,
}

#[derive(Debug)]
struct Content<T: Narrow> {
    objects: HashMap<T::Key, Arc<T>>,
    subscribers: Vec<Weak<Queue<T>>>,
}

#[derive(Debug, Clone, Default)]
struct State {
    /// A complete list has been seen.
    synced: bool,
    /// A list is under way or failing.
    listing: bool,
    last_error: Option<(Instant, Arc<str>)>,
}

impl<T: Narrow> Cache<T> {
    /// An empty, unsynced cache and the one end that fills it.
    pub fn new() -> (Self, Writer<T>) {
        let cache = Self(Arc::new(Shared {
            content: RwLock::new(Content { objects: HashMap::new(), subscribers: Vec::new() }),
            state: watch::Sender::new(State::default()),
        }));
        let writer = Writer { cache: cache.clone(), listed: None, interner: Interner::default() };
        (cache, writer)
    }

    /// A cache of what is not watched: synced, and empty for ever.
    pub fn without_objects() -> Self {
        let (cache, mut writer) = Self::new();
        writer.apply(Event::Init);
        writer.apply(Event::InitDone);
        cache
    }

    pub fn get(&self, key: &T::Key) -> Option<Arc<T>> {
        self.read(|objects| objects.get(key).cloned())
    }

    /// All objects at one moment, in no order.
    pub fn snapshot(&self) -> Vec<Arc<T>> {
        self.read(|objects| objects.values().cloned().collect())
    }

    /// Runs `f` on the objects at one moment, without copying them. The cache is not updated meanwhile: keep it short.
    pub fn read<R>(&self, f: impl FnOnce(&HashMap<T::Key, Arc<T>>) -> R) -> R {
        f(&self.0.content.read().unwrap_or_else(PoisonError::into_inner).objects)
    }

    pub fn len(&self) -> usize {
        self.read(HashMap::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a complete list has been seen since the start: before that, absence means nothing.
    pub fn is_synced(&self) -> bool {
        self.0.state.borrow().synced
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.0.state.subscribe().wait_for(|state| state.synced).await;
    }

    /// Why the cache may be out of date, in words, while it may be: its watch failed within the last 90 s, or a new
    /// list has not come to its end.
    pub fn degraded(&self) -> Option<Arc<str>> {
        let state = self.0.state.borrow();
        let (at, error) = state.last_error.as_ref()?;
        (state.listing || at.elapsed() < BROKEN_FOR).then(|| Arc::clone(error))
    }

    /// The changes from now on, and before them everything that the cache holds now.
    pub fn subscribe(&self) -> Changes<T> {
        let mut content = self.0.content.write().unwrap_or_else(PoisonError::into_inner);
        let held = content.objects.iter().map(|(key, object)| (key.clone(), (None, Some(Arc::clone(object)))));
        let queue = Arc::new(Queue { pending: Mutex::new(held.collect()), filled: Notify::new() });
        content.subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        content.subscribers.push(Arc::downgrade(&queue));
        Changes(queue)
    }
}

/// The changes of a cache for one subscriber. What it has not taken yet is coalesced by key.
#[derive(Debug)]
pub struct Changes<T: Narrow>(Arc<Queue<T>>);

#[derive(Debug)]
struct Queue<T: Narrow> {
    pending: Mutex<HashMap<T::Key, Pending<T>>>,
    filled: Notify,
}

/// What an object was when it was last taken, and what it is now.
type Pending<T> = (Option<Arc<T>>, Option<Arc<T>>);

impl<T: Narrow> Changes<T> {
    /// Waits for changes and takes all there are: at least one, each key once, in no order. Cancel-safe.
    pub async fn next(&mut self) -> Vec<Change<T>> {
        loop {
            let changes = self.take();
            if !changes.is_empty() {
                return changes;
            }
            self.0.filled.notified().await;
        }
    }

    /// Takes what there is without waiting.
    pub fn take(&mut self) -> Vec<Change<T>> {
        let pending = mem::take(&mut *self.0.pending.lock().unwrap_or_else(PoisonError::into_inner));
        pending.into_iter().map(|(key, (old, new))| Change { key, old, new }).collect()
    }
}

impl<T: Narrow> Queue<T> {
    fn push(&self, key: &T::Key, old: Option<&Arc<T>>, new: Option<&Arc<T>>) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, last) = pending.entry(key.clone()).or_insert_with(|| (old.cloned(), None));
        *last = new.cloned();
        if first == last {
            pending.remove(key);
        } else {
            self.filled.notify_one();
        }
    }
}

/// Fills a cache from the events of a watch.
#[derive(Debug)]
pub struct Writer<T: Narrow> {
    cache: Cache<T>,
    /// The keys that the running list has named, while one runs.
    listed: Option<HashSet<T::Key>>,
    interner: Interner,
}

impl<T: Narrow> Writer<T> {
    /// Follows a watch for ever. `watch` must back off after errors by itself.
    pub async fn run(mut self, watch: impl Stream<Item = WatchItem<T::Kind>>, metrics: Metrics) {
        let mut watch = std::pin::pin!(watch);
        let kind = &[T::CACHE];
        while let Some(item) = watch.next().await {
            match item {
                Ok(event) => {
                    let was_synced = self.cache.is_synced();
                    if let Some(invalid) = self.apply(event) {
                        metrics.invalid_objects.with_label_values(kind).inc();
                        warn!(
                            kind = T::CACHE,
                            namespace = invalid.metadata.namespace.as_deref().unwrap_or_default(),
                            name = invalid.metadata.name.as_deref().unwrap_or_default(),
                            error = invalid.error,
                            "object cannot be read and is left as it was last seen",
                        );
                    }
                    metrics
                        .cache_objects
                        .with_label_values(kind)
                        .set(i64::try_from(self.cache.len()).unwrap_or(i64::MAX));
                    if !was_synced && self.cache.is_synced() {
                        metrics.cache_synced.with_label_values(kind).set(1);
                        info!(kind = T::CACHE, objects = self.cache.len(), "cache is synced");
                    }
                }
                Err(error) => self.failed(&error, &metrics),
            }
        }
    }

    /// Applies one event of a watch; returns the object that could not be read, if it was one.
    ///
    /// Objects of a list that is still running are applied at once; nothing is removed before its end. An object that
    /// cannot be read stays as it was, and is not taken for gone.
    pub fn apply(&mut self, event: Event<Result<T::Kind, Box<InvalidObject>>>) -> Option<Box<InvalidObject>> {
        match event {
            Event::Init => {
                self.listed = Some(HashSet::new());
                self.cache.0.state.send_modify(|state| state.listing = true);
            }
            Event::InitApply(object) | Event::Apply(object) => match object {
                Ok(object) => {
                    let key = T::key(object.meta())?;
                    self.list(&key);
                    let object = T::narrow(object, &mut self.interner);
                    self.set(&key, object);
                }
                Err(invalid) => {
                    if let Some(key) = T::key(&invalid.metadata) {
                        self.list(&key);
                    }
                    return Some(invalid);
                }
            },
            Event::Delete(object) => {
                let metadata = object.as_ref().map_or_else(|invalid| &invalid.metadata, Resource::meta);
                self.set(&T::key(metadata)?, None);
            }
            Event::InitDone => {
                let listed = self.listed.take()?;
                let vanished: Vec<T::Key> =
                    self.cache.read(|objects| objects.keys().filter(|key| !listed.contains(*key)).cloned().collect());
                for key in vanished {
                    self.set(&key, None);
                }
                self.cache.0.state.send_modify(|state| {
                    state.synced = true;
                    state.listing = false;
                });
            }
        }
        None
    }

    fn list(&mut self, key: &T::Key) {
        if let Some(listed) = &mut self.listed {
            listed.insert(key.clone());
        }
    }

    fn set(&self, key: &T::Key, new: Option<T>) {
        let mut content = self.cache.0.content.write().unwrap_or_else(PoisonError::into_inner);
        let old = content.objects.get(key).cloned();
        if old.as_deref() == new.as_ref() {
            return;
        }
        let new = new.map(Arc::new);
        match &new {
            Some(object) => content.objects.insert(key.clone(), Arc::clone(object)),
            None => content.objects.remove(key),
        };
        for subscriber in content.subscribers.iter().filter_map(Weak::upgrade) {
            subscriber.push(key, old.as_ref(), new.as_ref());
        }
    }

    fn failed(&self, error: &watcher::Error, metrics: &Metrics) {
        let Diagnosis { reason, words, remedy } = diagnose(error);
        // A watch that is too old is the API server's way of asking for a new list.
        if reason == "expired" {
            debug!(kind = T::CACHE, words, "watch expired: listing again");
            return;
        }
        metrics.watch_errors.with_label_values(&[T::CACHE, reason]).inc();
        let text: Arc<str> = format!("the watch of {} fails: {words}{remedy}", T::CACHE).into();
        if self.cache.degraded().is_some_and(|previous| previous == text) {
            debug!(kind = T::CACHE, reason, "watch still fails");
        } else {
            warn!(kind = T::CACHE, reason, error = words, remedy, "watch fails and is retried");
        }
        self.cache.0.state.send_modify(|state| state.last_error = Some((Instant::now(), text)));
    }
}

struct Diagnosis {
    /// A stable word for the metric.
    reason: &'static str,
    words: String,
    /// What a person can do, as the end of a sentence.
    remedy: &'static str,
}

fn diagnose(error: &watcher::Error) -> Diagnosis {
    let (code, words) = match error {
        watcher::Error::WatchError(status) => (status.code, status.message.clone()),
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => {
            let code = if let kube::Error::Api(status) = error { status.code } else { 0 };
            (code, apply::words(error))
        }
        watcher::Error::NoResourceVersion => (0, error.to_string()),
    };
    let (reason, remedy) = match code {
        0 => ("connection", ""),
        404 => ("not_found", ": is the CustomResourceDefinition installed (kubectl apply -k config/crd)?"),
        403 => (
            "forbidden",
            ": does the service account have the permissions of config/rbac (for pods: config/components/instance-labels)?",
        ),
        401 => ("unauthorized", ""),
        410 => ("expired", ""),
        429 => ("throttled", ""),
        _ => ("api", ""),
    };
    Diagnosis { reason, words, remedy }
}

#[cfg(test)]
mod tests;
