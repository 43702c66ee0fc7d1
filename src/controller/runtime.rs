//! The runtime of the core: channels, the queue, the clock and the workers. It waits for nothing but the next change,
//! so the removal of an endpoint is on its way to the registry within a millisecond, no matter what the workers are
//! doing.

mod inputs;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinError, JoinSet, coop},
    time::{Instant, sleep_until},
};
use tracing::warn;

pub(super) use self::inputs::Watched;
use self::inputs::{Channels, never, next};
use super::{
    Membership, Mode, Targets,
    core::{Command, Core, Input, Now},
    cutover_writer::Written,
    cutovers,
    gate_writer::Openings,
    metrics::{MOST_NAMESPACES, Metrics},
    policy_writer,
    replay::Replay,
    status_writer,
    subscriptions::ImportRules,
    work::{Part, Work},
};
use annotations::Directory;
use api::selection::ClusterSelection;
use base::{
    env,
    queue::{Queue, Turn},
};
use cluster::{Caches, ClusterWriter, apply::Error, events::Outbox, selector::NamespaceSelector};
use cutover::{Settle, guard::Watcher};
use discovery::Discovered;
use export::Quota;
use gates::Lookups;
use import::DerivedNaming;
use instances::{
    RegistrationPolicy,
    sync::{Desired, Statuses},
};
use ledger::{
    Map,
    driver::{self, local},
    remote::Remotes,
};
use model::{ClusterId, IpFamily, ServiceKey, addresses::Range};
use reachability::Prober;

/// How often sizes are measured, and cluster IPs that moved are looked for among the endpoints.
const TICK: Duration = Duration::from_secs(1);

/// Settings of the controller.
#[derive(Debug, Clone)]
pub struct ControllerSettings {
    /// The id of this cluster.
    pub cluster: ClusterId,
    /// How many names are written at the same time.
    pub concurrency: usize,
    /// The rules for targets of exports.
    pub targets: Targets,
    /// The rules for annotated objects.
    pub annotations: annotations::AnnotationSettings,
    /// Which targets annotations may name.
    pub registration: RegistrationPolicy,
    /// How much the objects of one Kubernetes namespace may use.
    pub quota: Quota,
    /// How long a new claim to a named target must have been visible before instances are registered there.
    pub claim_delay: Duration,
    /// The namespaces that may export; `None` means all.
    pub export_namespaces: Option<NamespaceSelector>,
    /// The IP families of this cluster.
    pub families: Vec<IpFamily>,
    /// Which namespaces import, and from where.
    pub import: ImportRules,
    /// How derived Services are named.
    pub derived: DerivedNaming,
    /// How long a pod waits for its readiness gate at most.
    pub gate_timeout: Duration,
    /// Whether Cutovers may hide ECS tasks.
    pub hide_tasks: bool,
    /// By how much clients are late beyond the TTL, for Cutovers.
    pub settle: Settle,
    /// How long a change of an import's type is said before it is done.
    pub type_notice: Duration,
    /// Which clusters serve a name of which nobody says it.
    pub cluster_selection: ClusterSelection,
    /// Whether endpoints of other clusters are tried (`--probe`).
    pub probe: bool,
}

/// Where the records of this cluster are stored, which follows from its [`Mode`].
#[derive(Debug)]
pub enum Records {
    /// In the ledger of its ClusterSet.
    Ledger(driver::LedgerHandle),
    /// In a ConfigMap: only registration records.
    Local(local::LocalHandle),
    /// Nowhere, because its identity is not known.
    Nowhere,
}

impl Records {
    /// The mode that belongs to this place.
    pub const fn mode(&self) -> Mode {
        match self {
            Self::Ledger(_) => Mode::Member,
            Self::Local(_) => Mode::Standalone,
            Self::Nowhere => Mode::Unidentified,
        }
    }

    fn publish(&self, map: Arc<Map>) {
        match self {
            Self::Ledger(ledger) => drop(ledger.desired().send_replace(Some(map))),
            Self::Local(local) => drop(local.desired().send_replace(Some(map))),
            Self::Nowhere => {}
        }
    }
}

/// All connections of the controller.
#[expect(missing_debug_implementations, reason = "the writer is a trait object")]
pub struct Inputs {
    /// The caches of the Kubernetes API.
    pub caches: Caches,
    /// Writes to the Kubernetes API.
    pub writer: Arc<dyn ClusterWriter>,
    /// The records of this cluster.
    pub records: Records,
    /// The namespaces in which host names of annotations may be; `None` if no annotated object is registered.
    pub directory: Option<Directory>,
    /// The lookups for pods that wait for their readiness gates.
    pub lookups: Lookups,
    /// What looks for the guards of Cutovers.
    pub guards: Watcher,
    /// What connects to endpoints of other clusters.
    pub prober: Prober,
    /// What to report before the first status of the ledger.
    pub membership: Membership,
    /// The desired instances.
    pub instances: watch::Sender<Desired>,
    /// The statuses of the instances.
    pub statuses: watch::Receiver<Statuses>,
    /// The subscribed Cloud Map namespaces.
    pub subscribed: watch::Sender<Arc<BTreeSet<Arc<str>>>>,
    /// What was discovered in them.
    pub found: watch::Receiver<Arc<Discovered>>,
    /// The ranges of cluster IPs, as far as they are known.
    pub service_ranges: watch::Receiver<Arc<[Range]>>,
    /// The metrics.
    pub metrics: Metrics,
}

/// Clears the gauges when the controller ends, for whatever reason. Its process lives on as a standby, or begins
/// another term, and old figures would look like present ones.
struct Shown(Metrics);

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// Runs until it is dropped. The caches must be synced: nothing may act before. Only the leader runs it.
pub async fn run(settings: ControllerSettings, inputs: Inputs) {
    let Inputs {
        caches,
        writer,
        records,
        directory,
        lookups,
        guards,
        prober,
        membership,
        instances,
        statuses,
        subscribed,
        found,
        service_ranges,
        metrics,
    } = inputs;
    // The first one here is the last one that is dropped.
    let _shown = Shown(metrics.clone());
    let notes = Outbox::new(metrics.dropped_events());
    let said = notes.clone();
    let ledger = if let Records::Ledger(ledger) = &records { Some(ledger) } else { None };
    let local = if let Records::Local(local) = &records { Some(local) } else { None };
    let registry = Channels {
        own: ledger.map_or_else(never, driver::LedgerHandle::own),
        published: ledger.map_or_else(never, driver::LedgerHandle::published),
        read_back: ledger.map_or_else(never, driver::LedgerHandle::read_back),
        remotes: ledger.map_or_else(never, driver::LedgerHandle::remotes),
        status: ledger.map_or_else(never, driver::LedgerHandle::status),
        kept: local.map_or_else(never, local::LocalHandle::kept),
        answers: lookups.answers(),
        judged: guards.answers(),
        reached: prober.answers(),
        zones: directory.as_ref().map_or_else(never, Directory::known),
        statuses,
        found,
        service_ranges,
    };
    let objects = Watched::new(&caches);
    let (gates, openings) = watch::channel(Arc::default());
    let gates_written = status_writer::write(openings, Arc::clone(&writer), notes.clone(), metrics.clone());
    let (cutovers, planned) = watch::channel(Arc::default());
    let cutovers_written = status_writer::write(planned, Arc::clone(&writer), notes.clone(), metrics.clone());
    let (policies, reported) = watch::channel(Arc::default());
    let policies_written = status_writer::write(reported, Arc::clone(&writer), notes.clone(), metrics.clone());
    let (done, finished) = mpsc::unbounded_channel();
    let now = Now { mono: Duration::ZERO, wall: env::timestamp() };
    let runtime = Runtime {
        started: Instant::now(),
        concurrency: settings.concurrency,
        replay: env::is_simulated()
            .then(|| Box::new(Replay::new(settings.clone(), records.mode(), membership.clone(), now))),
        core: Core::new(settings, records.mode(), membership, now),
        queue: Queue::default(),
        workers: JoinSet::new(),
        done,
        outputs: Outputs {
            records,
            directory,
            lookups,
            guards,
            prober,
            gates,
            cutovers,
            policies,
            instances,
            subscribed,
        },
        notes,
        failing: BTreeSet::new(),
        writer: Arc::clone(&writer),
        metrics,
        unmeasured: None,
    };
    tokio::select! {
        biased;
        () = runtime.run(objects, registry, finished) => {}
        // Events are emitted one after the other, and none may delay the loop or a worker.
        () = gates_written => {}
        () = cutovers_written => {}
        () = policies_written => {}
        () = async { loop { writer.emit(said.next().await).await } } => {}
    }
}

/// A worker is done with a name.
struct Done {
    work: Box<Work>,
    part: Part,
    outcome: Result<(), Error>,
    begun: Instant,
}

/// Whether a worker ended as it should. After a panic the process must not continue with a name that nobody works on.
fn is_sound(ended: Result<(), JoinError>) -> bool {
    ended.inspect_err(|error| warn!(%error, "a worker of the controller ended")).is_ok()
}

/// Where the commands of the core go, beside the workers and the Events.
struct Outputs {
    records: Records,
    directory: Option<Directory>,
    lookups: Lookups,
    guards: Watcher,
    prober: Prober,
    gates: watch::Sender<Arc<Openings>>,
    cutovers: watch::Sender<Arc<Written>>,
    policies: watch::Sender<Arc<policy_writer::Written>>,
    instances: watch::Sender<Desired>,
    subscribed: watch::Sender<Arc<BTreeSet<Arc<str>>>>,
}

struct Runtime {
    started: Instant,
    concurrency: usize,
    core: Core,
    /// On a simulated machine only.
    replay: Option<Box<Replay>>,
    queue: Queue<ServiceKey>,
    workers: JoinSet<()>,
    done: mpsc::UnboundedSender<Done>,
    outputs: Outputs,
    notes: Outbox,
    /// The names whose Events said that their writes fail.
    failing: BTreeSet<ServiceKey>,
    writer: Arc<dyn ClusterWriter>,
    metrics: Metrics,
    /// What the metrics do not show yet: with a hundred clusters it changes a hundred times a second.
    unmeasured: Option<Arc<Remotes>>,
}

impl Runtime {
    async fn run(mut self, mut objects: Watched, mut registry: Channels, mut finished: mpsc::UnboundedReceiver<Done>) {
        self.handle(Input::Ledger(Arc::clone(&registry.status.borrow_and_update())));
        self.handle(registry.ranges());
        self.handle(Input::Objects(Box::new(objects.take())));
        let mut next_tick = Instant::now();
        let mut turn = false;
        loop {
            let wake = self.core.wake().map(|at| self.started + at);
            turn = !turn;
            tokio::select! {
                biased;
                input = next(&mut objects, &mut registry, turn) => self.handle(input),
                Some(done) = finished.recv() => self.finish(done),
                Some(ended) = self.workers.join_next(), if !self.workers.is_empty() => {
                    if !is_sound(ended) {
                        return;
                    }
                }
                (key, turn) = self.queue.take(), if self.workers.len() < self.concurrency => self.due(key, turn),
                () = sleep_until(wake.unwrap_or(self.started)), if wake.is_some() => self.handle(Input::Tick),
                () = sleep_until(next_tick) => {}
            }
            // The workers must not starve either, however much changes.
            while let Ok(done) = finished.try_recv() {
                self.finish(done);
            }
            // One that has ended counts until it is taken out, and would keep its place from the next one.
            while let Some(ended) = self.workers.try_join_next() {
                if !is_sound(ended) {
                    return;
                }
            }
            while self.workers.len() < self.concurrency
                && let Some((key, turn)) = self.queue.take().now_or_never()
            {
                self.due(key, turn);
            }
            // Nor must what comes with time.
            if Instant::now() >= next_tick {
                next_tick = Instant::now() + TICK;
                self.tick();
            }
            // Nor the writers of statuses and Events, which share this task.
            coop::consume_budget().await;
            env::interleave().await;
        }
    }

    fn tick(&mut self) {
        self.handle(Input::Tick);
        let sizes = self.core.sizes();
        self.metrics.measured(self.queue.len(), sizes.clusters, sizes.names);
        self.metrics.annotated(sizes.annotated);
        self.metrics.waiting_pods(sizes.waiting_pods);
        self.metrics.serving(sizes.serving);
        self.metrics.unreachable(self.core.reachable_or_not());
        self.metrics.excluded(self.core.importing.policies.excluded_names());
        self.metrics.quotas(&self.core.knowledge.quotas(MOST_NAMESPACES));
        self.metrics.cutovers(cutovers::phases(&self.core.world.cutovers));
        if let Some(remotes) = self.unmeasured.take() {
            self.metrics.adopted(&remotes);
        }
    }

    fn handle(&mut self, input: Input) {
        if let Input::Remotes(remotes) = &input {
            self.unmeasured = Some(Arc::clone(remotes));
        }
        for command in self.decide(input) {
            self.obey(command, false);
        }
    }

    /// Gives a name to a worker. If others wait, only what is urgent for it is written now.
    fn due(&mut self, key: ServiceKey, turn: Turn) {
        let pressed = turn == Turn::First && self.queue.is_pressed();
        for command in self.decide(Input::Due(key)) {
            self.obey(command, pressed);
        }
    }

    fn decide(&mut self, input: Input) -> Vec<Command> {
        let (now, recorded) = (self.now(), self.replay.is_some().then(|| input.clone()));
        let commands = self.core.handle(input, now);
        if let Some((replay, input)) = self.replay.as_mut().zip(recorded) {
            replay.record(input, now, &commands);
        }
        commands
    }

    fn now(&self) -> Now {
        Now { mono: self.started.elapsed(), wall: env::timestamp() }
    }

    /// `pressed`: other names wait for a worker.
    fn obey(&mut self, command: Command, pressed: bool) {
        match command {
            Command::Publish(map) => self.outputs.records.publish(map),
            Command::Register(desired) => drop(self.outputs.instances.send_replace(desired)),
            Command::Subscribe(namespaces) => drop(self.outputs.subscribed.send_replace(namespaces)),
            Command::List(wanted) => {
                if let Some(directory) = &self.outputs.directory {
                    directory.want(wanted);
                }
            }
            Command::Reconcile(key) => self.queue.add(key),
            Command::ReconcileIn(key, delay) => self.queue.add_after(key, delay),
            Command::Apply(work) => {
                let part = if pressed { work.urgent() } else { Part::All };
                let (writer, metrics, begun) = (Arc::clone(&self.writer), self.metrics.clone(), Instant::now());
                let (done, notes) = (self.done.clone(), self.notes.clone());
                self.workers.spawn(env::task(async move {
                    let outcome = work.apply(part, &*writer, &notes, &metrics).await;
                    // The receiver lives as long as the runtime.
                    let _ = done.send(Done { work, part, outcome, begun });
                }));
            }
            Command::OpenGates(openings) => drop(self.outputs.gates.send_replace(openings)),
            Command::WriteCutovers(written) => drop(self.outputs.cutovers.send_replace(written)),
            Command::WritePolicies(written) => drop(self.outputs.policies.send_replace(written)),
            Command::LookUp(asked) => self.outputs.lookups.ask(asked),
            Command::Guard(asked) => self.outputs.guards.ask(asked),
            Command::Reach(asked) => self.outputs.prober.ask(asked),
            Command::Emit(note) => self.notes.send(note),
        }
    }

    fn finish(&mut self, Done { work, part, outcome, begun }: Done) {
        let outcome = match outcome {
            Ok(()) if part == Part::All => {
                self.queue.done(&work.key);
                self.failing.remove(&work.key);
                "ok"
            }
            Ok(()) => {
                self.queue.rest(&work.key);
                "ok"
            }
            Err(error) => {
                let (retry_in, failures) = self.queue.failed(&work.key);
                for note in work.failed(&error, retry_in, failures, &mut self.failing) {
                    self.notes.send(note);
                }
                error.cause.category()
            }
        };
        self.metrics.reconciled(outcome, begun.elapsed());
    }
}
