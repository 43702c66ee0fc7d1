//! Runs a [`Term`] against Cloud Map, the record store and tokio's clock.

mod departure;
mod elsewhere;
pub mod local;
mod ports;
mod registry;
pub mod sessions;
mod status;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::{
    FutureExt, StreamExt,
    future::{AbortHandle, BoxFuture, abortable},
    stream::FuturesUnordered,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::{
    Map, RegistryName,
    call::{CallId, Failure, Ids, Outcome},
    limits::{Limits, Timing},
    news::News,
    remote::Remotes,
    stream::Command,
    term::Term,
    trust::{Keys, Trust},
    writer::{Heads, Inherited, Now, WriterIdentity},
};
use crate::record::RecordStore;
use base::env;
use cloudmap::Permit;
use elsewhere::{Elsewhere, read_elsewhere};
use model::{ClusterId, ClusterSetId};
use ports::{Ports, permit};
pub(super) use registry::Registry;
use sessions::{Event, Network, Sessions};
pub use status::Status;

/// At the beginning of a term, a leader reads the heads this often, for this long. It may say nothing before it has
/// elected itself and found its base (W1, W2), and each of these waits for a read.
const PACE_AT_FIRST: Duration = Duration::from_millis(200);
const BEGINNING: Duration = Duration::from_secs(3);

/// Whether this process leads its cluster.
#[async_trait]
pub trait Leadership: Send + Sync + 'static {
    /// The permit to write for as long as nobody else can hold the Lease; `None` if this process does not hold it. This is
    /// called immediately before every write, so it must be cheap, and must be correct without a call to the API
    /// server.
    fn permit(&self) -> Option<Permit>;

    /// Reads the Lease from the API server, not from a cache, and returns whether it is still ours (W1).
    async fn confirm(&self) -> bool;
}

/// The identity of this cluster, and how to run the ledger.
#[derive(Debug, Clone)]
pub struct LedgerSettings {
    /// Cluster id.
    pub cluster: ClusterId,
    /// ClusterSet id.
    pub clusterset: ClusterSetId,
    /// UID of the namespace kube-system.
    pub uid: String,
    /// Remove the endpoints of a cluster that is silent for this long, at least [`Timing::lease`]; `None` means never.
    pub stale_ttl: Option<Duration>,
    /// Whom this cluster believes. Its own keys are those of `keys`.
    pub trust: Trust,
    /// The keys of this cluster; `None` signs nothing.
    pub keys: Option<Arc<Keys>>,
    /// How the leaders of other clusters are reached, if they are. Without keys they are not.
    pub network: Option<Arc<dyn Network>>,
    /// The registries that are read beside the home, where this cluster writes.
    pub registries: Registries,
    /// Times; [`Timing::tick`] is how often the heads are read.
    pub timing: Timing,
    /// Sizes.
    pub limits: Limits,
}

impl LedgerSettings {
    /// The default settings for this cluster.
    pub fn new(cluster: ClusterId, clusterset: ClusterSetId, uid: impl Into<String>) -> Self {
        let (timing, limits, trust) = Default::default();
        let (uid, stale_ttl, keys, network) = (uid.into(), None, None, None);
        let registries = Registries::default();
        Self { cluster, clusterset, uid, stale_ttl, trust, keys, network, registries, timing, limits }
    }
}

/// The registries of a ClusterSet, as far as they are read beside the home.
#[derive(Clone, Default)]
pub struct Registries {
    /// The name of the home. Empty if it has none, because there is no other registry.
    pub home: RegistryName,
    /// The others, by name.
    pub others: BTreeMap<RegistryName, Arc<dyn cloudmap::Read>>,
}

impl Registries {
    /// The name of the home, if it has one.
    pub fn home_name(&self) -> Option<&str> {
        Some(&*self.home).filter(|home| !home.is_empty())
    }

    /// The names of all of them, the home included. Empty if they have none.
    pub fn names(&self) -> Arc<[RegistryName]> {
        let home = self.home_name().map(|_| Arc::clone(&self.home));
        self.others.keys().cloned().chain(home).collect()
    }
}

impl fmt::Debug for Registries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registries").field("home", &self.home).field("others", &self.others.keys()).finish()
    }
}

/// A running ledger. Dropping this stops it at once; the next leader continues from the record.
#[derive(Debug)]
pub struct LedgerHandle {
    desired: watch::Sender<Option<Arc<Map>>>,
    own: watch::Receiver<Option<Arc<Inherited>>>,
    published: watch::Receiver<Option<Arc<Map>>>,
    read_back: watch::Receiver<Option<Arc<Map>>>,
    remotes: watch::Receiver<Arc<Remotes>>,
    status: watch::Receiver<Arc<Status>>,
    news: Option<mpsc::UnboundedReceiver<News>>,
    task: JoinHandle<()>,
}

impl LedgerHandle {
    /// The state to publish. `None` until the first complete state is computed; nothing is published before.
    pub fn desired(&self) -> &watch::Sender<Option<Arc<Map>>> {
        &self.desired
    }

    /// The state from which this leader starts; `Some` once W2 is over. With it endpoints keep their chunks, and
    /// registration records show where instances are.
    pub fn own(&self) -> watch::Receiver<Option<Arc<Inherited>>> {
        self.own.clone()
    }

    /// The last state whose publication succeeded in this epoch.
    pub fn published(&self) -> watch::Receiver<Option<Arc<Map>>> {
        self.published.clone()
    }

    /// A published state that was read back in this epoch, so that others probably see it, too: the newest one, or one
    /// shortly before it.
    pub fn read_back(&self) -> watch::Receiver<Option<Arc<Map>>> {
        self.read_back.clone()
    }

    /// The other clusters. It changes only when something relevant does.
    pub fn remotes(&self) -> watch::Receiver<Arc<Remotes>> {
        self.remotes.clone()
    }

    /// What becomes of other clusters from now on. `None` if somebody else has taken it.
    pub fn take_news(&mut self) -> Option<mpsc::UnboundedReceiver<News>> {
        self.news.take()
    }

    /// The status, for conditions, metrics and people.
    pub fn status(&self) -> watch::Receiver<Arc<Status>> {
        self.status.clone()
    }
}

impl Drop for LedgerHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a term. Call it when this process was elected. The term ends with `shutdown`, or when the handle is dropped.
pub fn spawn(
    settings: LedgerSettings,
    cloudmap: Arc<dyn cloudmap::Write>,
    record: Arc<dyn RecordStore>,
    leadership: impl Leadership,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> LedgerHandle {
    let LedgerSettings { cluster, clusterset, uid, stale_ttl, trust, keys, network, registries, timing, limits } =
        settings;
    let trust = Trust { own: keys.as_ref().map(|keys| keys.own()).unwrap_or_default(), ..trust };
    let (desired, desired_rx) = watch::channel(None);
    let (own_tx, own) = watch::channel(None);
    let (published_tx, published) = watch::channel(None);
    let (read_back_tx, read_back) = watch::channel(None);
    let (remotes_tx, remotes) = watch::channel(Arc::default());
    let (status_tx, status) = watch::channel(Arc::default());
    // Rare: clusters that join, and keys that change.
    let (news_tx, news) = mpsc::unbounded_channel();
    let me = WriterIdentity {
        clusterset: clusterset.as_str().into(),
        cluster: cluster.as_str().into(),
        uid: uid.as_str().into(),
    };
    let seed = env::random();
    let term = Term::new(me, timing, limits, stale_ttl, trust, Ids::new(seed));
    let names: Vec<_> = registries.others.keys().cloned().collect();
    let term = if registries.home.is_empty() { term } else { term.reading(registries.home, &names) };
    let open = |(name, cloudmap)| (name, Arc::new(Registry::new(cloudmap, &clusterset)));
    let elsewhere: BTreeMap<_, _> = registries.others.into_iter().map(open).collect();
    let (term, sessions) = match network.zip(keys.as_ref()) {
        Some((network, keys)) => {
            let addresses = network.addresses();
            let sessions = Sessions::new(network, &keys.current)
                .map_err(|error| warn!(%error, "cannot use TLS; no stream to other leaders"));
            (term.streaming(addresses, Ids::new(env::random())), sessions.ok())
        }
        None => (term, None),
    };
    let driver = Driver {
        term,
        sessions,
        reported: None,
        timing,
        jitter: Ids::new(!seed),
        ports: Arc::new(Ports {
            cloudmap: Arc::clone(&cloudmap),
            elsewhere: elsewhere.clone(),
            registry: Registry::new(cloudmap, &clusterset).owned_by(&cluster, &uid).signed_with(keys.clone()),
            keys,
            uid,
            record,
            leadership: Box::new(leadership),
        }),
        started: Instant::now(),
        elsewhere: elsewhere.into_iter().map(|(name, registry)| (name, Elsewhere::new(registry))).collect(),
        calls: FuturesUnordered::new(),
        cancel: BTreeMap::new(),
        own: own_tx,
        published: published_tx,
        read_back: read_back_tx,
        remotes: remotes_tx,
        status: status_tx,
        news: news_tx,
    };
    let task = env::spawn(async move {
        let mut shutdown = pin!(shutdown.fuse());
        tokio::select! {
            biased;
            () = &mut shutdown => {}
            () = driver.run(desired_rx) => {}
        }
    });
    LedgerHandle { desired, own, published, read_back, remotes, status, news: Some(news), task }
}

struct Driver {
    term: Term,
    /// The connections with other leaders, if there are any.
    sessions: Option<Sessions>,
    /// The revision of the term that was reported last.
    reported: Option<u64>,
    timing: Timing,
    jitter: Ids,
    ports: Arc<Ports>,
    started: Instant,
    /// The registries beside the home.
    elsewhere: BTreeMap<RegistryName, Elsewhere>,
    /// Calls in flight. The outcome of a cancelled one is ignored.
    calls: FuturesUnordered<BoxFuture<'static, Option<(CallId, Outcome)>>>,
    cancel: BTreeMap<CallId, AbortHandle>,
    own: watch::Sender<Option<Arc<Inherited>>>,
    published: watch::Sender<Option<Arc<Map>>>,
    read_back: watch::Sender<Option<Arc<Map>>>,
    remotes: watch::Sender<Arc<Remotes>>,
    status: watch::Sender<Arc<Status>>,
    news: mpsc::UnboundedSender<News>,
}

impl Driver {
    async fn run(mut self, mut desired: watch::Receiver<Option<Arc<Map>>>) {
        let mut heads: Option<BoxFuture<'static, Result<Option<Heads>, Failure>>> = None;
        let mut next_tick = Instant::now();
        let mut pace = self.term.pace();
        let mut failures = 0u32;
        let mut heads_error = None;
        let mut wanting = true;
        self.term.poll(self.now());
        loop {
            for (id, call) in self.term.take_calls() {
                let (call, cancel) = abortable(self.ports.clone().make(id, call));
                self.cancel.insert(id, cancel);
                self.calls.push(call.map(Result::ok).boxed());
            }
            for id in self.term.take_cancelled() {
                if let Some(cancel) = self.cancel.remove(&id) {
                    cancel.abort();
                }
            }
            self.converse();
            for news in self.term.take_news() {
                info!(cluster = news.cluster, uid = news.uid, what = ?news.what, "the members of the ClusterSet changed");
                // Nobody may want to hear it.
                let _ = self.news.send(news);
            }
            if self.reported != Some(self.term.revision()) {
                self.reported = Some(self.term.revision());
                self.report(heads_error.as_ref());
            }
            // Where it need not be rare any more, not all leaders read in the same moment.
            let before = std::mem::replace(&mut pace, self.term.pace());
            if pace < before {
                next_tick = next_tick.min(Instant::now() + pace.mul_f64(self.fraction()));
            }
            let wake = self.term.wake().map(|at| self.started + at);
            tokio::select! {
                biased;
                changed = desired.changed(), if wanting => {
                    // Without a sender the last state stays, and heartbeats continue.
                    wanting = changed.is_ok();
                    let map = desired.borrow_and_update().clone();
                    if let Some(map) = map {
                        self.term.desire(self.now(), map);
                    }
                }
                Some(done) = self.calls.next(), if !self.calls.is_empty() => {
                    let Some((id, outcome)) = done else { continue };
                    self.cancel.remove(&id);
                    if let Outcome::Failed(Failure { message }) = &outcome {
                        tracing::warn!(error = message, "ledger call failed");
                    }
                    self.term.done(self.now(), id, &outcome);
                }
                read = async { match &mut heads { Some(read) => read.await, None => std::future::pending().await } },
                    if heads.is_some() =>
                {
                    heads = None;
                    failures = if read.is_ok() { 0 } else { failures + 1 };
                    if failures > 0 {
                        next_tick = next_tick.max(Instant::now() + self.pause(failures) - self.timing.tick);
                    }
                    heads_error = read.as_ref().err().map(|failure| failure.message.clone());
                    self.term.tick(self.now(), read.as_ref().ok().and_then(Option::as_ref));
                }
                () = sleep_until(next_tick), if heads.is_none() => {
                    next_tick = Instant::now() + self.pause(0);
                    let ports = self.ports.clone();
                    heads = Some(async move { ports.registry.read_heads().await }.boxed());
                }
                (name, answer) = read_elsewhere(&mut self.elsewhere) => {
                    let pace = self.jittered(self.term.pace());
                    let heads = self.elsewhere.get_mut(&name).and_then(|it| it.take(&name, answer, pace));
                    self.term.tick_elsewhere(self.now(), &name, heads.as_ref());
                }
                () = sleep_until(wake.unwrap_or(next_tick)), if wake.is_some() => self.term.poll(self.now()),
                event = async { match &mut self.sessions { Some(open) => open.next().await, None => std::future::pending().await } },
                    if self.sessions.is_some() => self.session_event(event),
            }
        }
    }

    /// Does what the stream asks for.
    fn converse(&mut self) {
        let Some(sessions) = &mut self.sessions else { return };
        if self.reported != Some(self.term.revision()) {
            sessions.know(self.term.may_connect());
        }
        loop {
            let commands = self.term.take_commands();
            if commands.is_empty() {
                return;
            }
            // Between this and the socket everything may happen: what keeps readers safe is the order of versions.
            let leads = self.ports.leadership.permit().is_some();
            for command in commands {
                match command {
                    Command::Send { session, .. } if !leads => {
                        sessions.act(Command::Close { session, why: "the Lease is not held" });
                        let wall = env::since_epoch().as_millis() as u64;
                        self.term.closed(Now { mono: self.started.elapsed(), wall }, session);
                    }
                    command => sessions.act(command),
                }
            }
        }
    }

    fn session_event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Opened { session, key, dialled } => self.term.opened(now, session, key, dialled.as_ref()),
            Event::Refused { key } => self.term.refused(now, key),
            Event::Unreachable { cluster, why } => self.term.unreachable(now, &cluster, why),
            Event::Received { session, message } => self.term.received(now, session, message),
            Event::Taken { session } => self.term.taken(now, session),
            Event::Closed { session } => self.term.closed(now, session),
        }
    }

    fn now(&self) -> Now {
        let wall = env::since_epoch().as_millis() as u64;
        Now { mono: self.started.elapsed(), wall }
    }

    /// The time between two reads, plus or minus a tenth so that clusters do not read in step; up to eight ticks after
    /// failures, and short at the beginning of a term.
    fn pause(&mut self, failures: u32) -> Duration {
        let pause = match failures {
            0 if self.started.elapsed() < BEGINNING => self.timing.tick.min(PACE_AT_FIRST),
            0 => self.term.pace(),
            failures => self.timing.tick * 2u32.pow(failures.min(3)),
        };
        self.jittered(pause)
    }

    /// A pause, plus or minus a tenth.
    fn jittered(&mut self, pause: Duration) -> Duration {
        pause.mul_f64(0.9 + self.fraction() / 5.0)
    }

    /// At random, from 0 to 1.
    fn fraction(&mut self) -> f64 {
        (self.jitter.next() % 10_001) as f64 / 10_000.0
    }

    fn report(&self, heads_error: Option<&String>) {
        let set = |channel: &watch::Sender<Option<Arc<Map>>>, value: Option<&Arc<Map>>| {
            channel.send_if_modified(|held| {
                let changed = held.as_ref().map(Arc::as_ptr) != value.map(Arc::as_ptr);
                if changed {
                    *held = value.cloned();
                }
                changed
            });
        };
        self.own.send_if_modified(|held| {
            let news = held.is_none() && self.term.inherited().is_some();
            if news {
                *held = self.term.inherited().cloned();
            }
            news
        });
        // Before the own state that was read with them.
        self.remotes.send_if_modified(|held| {
            let changed = !Arc::ptr_eq(held, self.term.remotes());
            if changed {
                *held = self.term.remotes().clone();
            }
            changed
        });
        set(&self.published, self.term.writer().published());
        set(&self.read_back, self.term.read_back());
        let elsewhere = self.elsewhere.iter().map(|(name, it)| (name.clone(), it.error().cloned())).collect();
        let status = Status::of(&self.term, heads_error, elsewhere, &self.ports.registry);
        self.status.send_if_modified(|held| {
            let changed = **held != status;
            for (cluster, why) in status.ignored.iter().filter(|(id, why)| held.ignored.get(*id) != Some(*why)) {
                warn!(%cluster, why, "a head is ignored");
            }
            if changed {
                *held = Arc::new(status);
            }
            changed
        });
    }
}
