//! A cache of the objects of one kind, narrowed to the fields that this project needs.
//!
//! This is not kube's reflector with shared streams, because of three guarantees. Objects that vanish while a watch is
//! broken are reported as changes. An event that changes no kept field of an object is not reported. A slow reader needs
//! memory once per changed object, however often the object changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{Debug, Display},
    mem,
    sync::{Arc, Mutex, PoisonError, RwLock, Weak},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::error_boundary::InvalidObject, runtime::watcher::Event};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// A cache that has made no progress for this long may be wrong. Its replica is not ready and does not stand for
/// election.
///
/// A watch that dies is noticed after 65 s of silence at the latest. The rest of the time is enough for three attempts
/// with their deadlines and pauses. A problem that lasts longer does not go away by itself.
pub const STALE_AFTER: Duration = Duration::from_mins(3);

/// The same for a list that an election requested, if no page of it arrives in this time. It is enough for two
/// attempts. A list of very many pages may take up to [`STALE_AFTER`].
pub const REFRESHED_WITHIN: Duration = Duration::from_mins(1);

/// What a cache keeps of an object.
pub trait Narrow: Sized + PartialEq + Debug + Send + Sync + 'static {
    /// The object as the API server sends it.
    type Kind: Resource<DynamicType = ()>;
    /// The key of an object.
    type Key: Clone + Ord + Display + Debug + Send + Sync + 'static;

    /// Name of the cache in logs and metrics.
    const CACHE: &'static str;

    /// The key of an object. `None` for an object without a name, which the API server never sends.
    fn key(metadata: &ObjectMeta) -> Option<Self::Key>;

    /// The fields to keep. `None` if the object can be ignored.
    fn narrow(object: Self::Kind) -> Option<Self>;
}

/// An object appeared, changed or disappeared.
///
/// It may also have done so and be again as it was, or be gone again: `old` and `new` are equal then. Whoever read the
/// cache in between has seen something else.
#[derive(Debug)]
pub struct Change<T: Narrow> {
    /// Its key.
    pub key: T::Key,
    /// The object when this subscriber last took its change; `None` if it did not exist then.
    pub old: Option<Arc<T>>,
    /// The object now; `None` if it no longer exists.
    pub new: Option<Arc<T>>,
}

impl<T: Narrow> Clone for Change<T> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), old: self.old.clone(), new: self.new.clone() }
    }
}

/// Read access to a cache. Clones are cheap, and all of them see the same objects.
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
    objects: BTreeMap<T::Key, Arc<T>>,
    subscribers: Vec<Weak<Queue<T>>>,
}

#[derive(Debug, Clone)]
struct State {
    /// Whether something fills the cache.
    watched: bool,
    /// Whether a complete list has been seen.
    synced: bool,
    /// When the server last sent something that shows that the watch is not frozen.
    heard: Instant,
    /// The number of lists that [`Cache::refresh`] requested, and how many of them were answered by a list that began
    /// later.
    requests: u64,
    answered: u64,
    /// When the first unanswered request was made, or the last page of its list arrived.
    requested: Option<Instant>,
    /// What went wrong since the server last answered.
    trouble: Option<Arc<str>>,
}

impl<T: Narrow> Cache<T> {
    /// An empty, unsynced cache, and the writer that fills it.
    pub fn new() -> (Self, Writer<T>) {
        let cache = Self(Arc::new(Shared {
            content: RwLock::new(Content { objects: BTreeMap::new(), subscribers: Vec::new() }),
            state: watch::Sender::new(State {
                watched: true,
                synced: false,
                heard: Instant::now(),
                requests: 0,
                answered: 0,
                requested: None,
                trouble: None,
            }),
        }));
        let writer = Writer { cache: cache.clone(), listed: None, answers: 0 };
        (cache, writer)
    }

    /// A cache of objects that are not watched. It is synced, and always empty.
    pub fn without_objects() -> Self {
        let (cache, mut writer) = Self::new();
        writer.sync();
        cache.0.state.send_modify(|state| state.watched = false);
        cache
    }

    /// The object with this key.
    pub fn get(&self, key: &T::Key) -> Option<Arc<T>> {
        self.read(|objects| objects.get(key).cloned())
    }

    /// All objects at one moment, by key.
    pub fn snapshot(&self) -> Vec<Arc<T>> {
        self.read(|objects| objects.values().cloned().collect())
    }

    /// Calls `f` with the objects at one moment, without copying them. The cache is locked meanwhile, so `f` must be
    /// short.
    pub fn read<R>(&self, f: impl FnOnce(&BTreeMap<T::Key, Arc<T>>) -> R) -> R {
        f(&self.0.content.read().unwrap_or_else(PoisonError::into_inner).objects)
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.read(BTreeMap::len)
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a complete list has been seen since the start. Before that, the absence of an object means nothing.
    pub fn is_synced(&self) -> bool {
        self.0.state.borrow().synced
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.0.state.subscribe().wait_for(|state| state.synced).await;
    }

    /// Time since the server last answered: how far behind the cache can be.
    pub fn age(&self) -> Duration {
        let state = self.0.state.borrow();
        if state.watched { state.heard.elapsed() } else { Duration::ZERO }
    }

    /// Requests a new list, as fresh as the API server has it, and waits until it is in the cache. After that the cache
    /// contains even what a frozen watch did not report. Returns at once if nothing fills the cache.
    pub async fn refresh(&self) {
        let mut request = 0;
        self.0.state.send_modify(|state| {
            state.requests += 1;
            state.requested.get_or_insert_with(Instant::now);
            request = state.requests;
        });
        let _ = self.0.state.subscribe().wait_for(|state| state.answered >= request || !state.watched).await;
    }

    /// Why nothing may depend on this cache, as a text for people: it has no complete list, has made no progress for
    /// [`STALE_AFTER`], or has waited for the list of an election for longer than [`REFRESHED_WITHIN`]. `None` if it
    /// can be trusted.
    pub fn trouble(&self) -> Option<String> {
        let state = self.0.state.borrow();
        let silent = state.heard.elapsed();
        let what = if !state.watched {
            return None;
        } else if !state.synced {
            format!("the cache of {} is not complete yet", T::CACHE)
        } else if silent >= STALE_AFTER {
            format!("the cache of {} has made no progress for {} s", T::CACHE, silent.as_secs())
        } else if state.requested.is_some_and(|requested| requested.elapsed() >= REFRESHED_WITHIN) {
            format!("the cache of {} is waiting for a new list", T::CACHE)
        } else {
            return None;
        };
        Some(match &state.trouble {
            Some(trouble) => format!("{what}: {trouble}"),
            None => what,
        })
    }

    /// All changes from now on, and before them everything that the cache contains now.
    pub fn subscribe(&self) -> Changes<T> {
        let mut content = self.0.content.write().unwrap_or_else(PoisonError::into_inner);
        let held = content.objects.iter().map(|(key, object)| (key.clone(), (None, Some(Arc::clone(object)))));
        let queue = Arc::new(Queue { pending: Mutex::new(held.collect()), filled: Notify::new() });
        content.subscribers.retain(|subscriber| subscriber.strong_count() > 0);
        content.subscribers.push(Arc::downgrade(&queue));
        Changes(queue)
    }
}

/// The changes of a cache for one subscriber. Changes that it has not taken yet are combined by key.
#[derive(Debug)]
pub struct Changes<T: Narrow>(Arc<Queue<T>>);

#[derive(Debug)]
struct Queue<T: Narrow> {
    pending: Mutex<BTreeMap<T::Key, Pending<T>>>,
    filled: Notify,
}

/// An object when it was last taken, and now.
type Pending<T> = (Option<Arc<T>>, Option<Arc<T>>);

impl<T: Narrow> Changes<T> {
    /// Waits until there are changes. Cancel-safe.
    pub async fn some(&mut self) {
        while self.0.pending.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.0.filled.notified().await;
        }
    }

    /// Waits for changes and takes all of them: at least one, each key once, in the order of the keys. Cancel-safe.
    pub async fn next(&mut self) -> Vec<Change<T>> {
        self.some().await;
        self.take()
    }

    /// Takes the changes that there are, without waiting.
    pub fn take(&mut self) -> Vec<Change<T>> {
        let pending = mem::take(&mut *self.0.pending.lock().unwrap_or_else(PoisonError::into_inner));
        pending.into_iter().map(|(key, (old, new))| Change { key, old, new }).collect()
    }
}

impl<T: Narrow> Queue<T> {
    fn push(&self, key: &T::Key, old: Option<&Arc<T>>, new: Option<&Arc<T>>) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // It stays even if the object is again as it was: the cache may have been read meanwhile.
        let (_, last) = pending.entry(key.clone()).or_insert_with(|| (old.cloned(), None));
        *last = new.cloned();
        self.filled.notify_one();
    }
}

/// Fills a cache from the events of a watch.
#[derive(Debug)]
pub struct Writer<T: Narrow> {
    cache: Cache<T>,
    /// The keys that the current list has contained so far, if there is one.
    listed: Option<BTreeSet<T::Key>>,
    /// The number of requests for a list that were made before the current list began.
    answers: u64,
}

impl<T: Narrow> Writer<T> {
    /// Ends a list without objects.
    pub(super) fn sync(&mut self) {
        self.apply(Event::Init);
        self.apply(Event::InitDone);
    }

    /// Applies one event of a watch. Returns the object if it could not be parsed.
    ///
    /// The objects of an unfinished list apply at once, but nothing is removed before the list ends. An object that
    /// cannot be parsed stays as it was and does not count as gone.
    pub fn apply(&mut self, event: Event<Result<T::Kind, Box<InvalidObject>>>) -> Option<Box<InvalidObject>> {
        match event {
            Event::Init => {
                self.listed = Some(BTreeSet::new());
                self.answers = self.cache.0.state.borrow().requests;
            }
            Event::InitApply(object) | Event::Apply(object) => match object {
                Ok(object) => {
                    let key = T::key(object.meta())?;
                    self.list(&key);
                    let object = T::narrow(object);
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
                    state.heard = Instant::now();
                    state.trouble = None;
                    state.answered = self.answers;
                    if state.answered == state.requests {
                        state.requested = None;
                    }
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

    /// Notes that the server answered: the cache is as fresh as possible.
    ///
    /// Returns the problem that this ends, if there was one.
    pub(super) fn answered(&self) -> Option<Arc<str>> {
        let mut trouble = None;
        self.cache.0.state.send_if_modified(|state| {
            state.heard = Instant::now();
            trouble = state.trouble.take();
            false
        });
        trouble
    }

    /// Notes that a page of a list arrived that is not the last one.
    pub(super) fn advanced(&self) {
        self.cache.0.state.send_if_modified(|state| {
            if state.requested.is_some() {
                state.requested = Some(Instant::now());
            }
            false
        });
    }

    /// Notes a problem. Returns whether it is new.
    pub(super) fn failed(&self, words: &str) -> bool {
        self.cache.0.state.send_if_modified(|state| {
            let news = state.trouble.as_deref() != Some(words);
            if news {
                state.trouble = Some(words.into());
            }
            news
        })
    }

    /// Whether a list was requested after the last one began.
    pub(super) fn is_list_wanted(&self) -> bool {
        self.cache.0.state.borrow().requests > self.answers
    }

    /// Waits until a list is requested.
    pub(super) async fn list_wanted(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.cache.0.state.subscribe().wait_for(|state| state.requests > self.answers).await;
    }

    pub(super) fn cache(&self) -> &Cache<T> {
        &self.cache
    }
}

#[cfg(test)]
mod tests;
