//! Makes Cloud Map have the instances that it should have, and keeps it so.
//!
//! One task owns all state ([`engine`], which calls nothing and reads no clock) and performs the calls that the engine
//! asks for ([`call`]). Each target is read once when this replica begins to lead, and then a picture of it is kept;
//! a slow round over all targets ([`Figures::drift_period`]) finds what somebody else changed.

mod call;
mod engine;
mod health;
mod notice;
mod places;
mod state;
#[cfg(test)]
mod tests;
mod ttl;
mod upkeep;
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

pub use self::notice::Notice;
use self::{call::Performer, engine::Engine};
use super::{Consent, Identity, InstanceSpec};
use crate::{
    api::events::EventReason,
    cloudmap::{CloudMap, DnsConfig},
    env,
    model::Target,
};

/// How often leadership is looked at while nothing happens, and statuses are published at most.
const TICK: Duration = Duration::from_millis(250);
/// Time for requests that are on their way when the process stops; their operations go on in AWS.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Settings {
    pub identity: Identity,
    /// Calls per second that drift checks may use; one call reads up to 100 instances of a target. The period follows
    /// from it: at 10, fifty seconds up to 500 targets, 100 seconds for 1,000.
    pub drift_budget: f64,
    /// Drift checks are never more frequent than this.
    pub drift_period: Duration,
    /// Whether missing namespaces are created, as API-only ones (DNS namespaces never are).
    pub create_namespaces: bool,
}

impl Settings {
    pub fn new(identity: Identity) -> Self {
        Self { identity, drift_budget: 10.0, drift_period: Duration::from_secs(50), create_namespaces: true }
    }
}

/// All targets that this cluster has a registration record for, or wants one for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    pub targets: BTreeMap<Target, TargetDesired>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct TargetDesired {
    /// The registration record is published and the claim is ours: instances may be registered.
    pub active: bool,
    /// No longer wanted: only deregistrations follow, until [`TargetStatus::own_gone`].
    pub retiring: bool,
    /// The claim is the oldest of the ClusterSet: what it says of the service itself counts.
    pub decides: bool,
    /// Nothing is deregistered, whatever is in `instances`.
    pub keep: bool,
    /// What is registered is not written over: something that decides what it says cannot be understood, or does not fit.
    pub as_is: bool,
    pub consent: Consent,
    pub creation: Creation,
    /// Sorted by id, as [`Source::instances`](super::Source::instances) gives them.
    pub instances: Arc<[InstanceSpec]>,
}

/// What is made for a target where there is nothing. A service that is there is used as it is, but that ours gets the TTL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    /// A missing namespace is made, as an API-only one.
    pub namespace: bool,
    /// A missing service is made, and one that is ours gets the TTL: what it should be is known.
    pub service: bool,
    /// Its records in namespaces with DNS; `None`: it is found by API only, as it is in all others.
    pub dns: Option<DnsConfig>,
    pub custom_health_check: bool,
    /// The TTL that was asked for, in seconds: an adopted service gets it, too.
    pub ttl: Option<u32>,
}

impl Default for Creation {
    fn default() -> Self {
        Self { namespace: true, service: true, dns: None, custom_health_check: false, ttl: None }
    }
}

/// Ids of instances.
pub type Ids = Arc<BTreeSet<Arc<str>>>;

/// Where a target stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetStatus {
    pub outcome: Outcome,
    /// Own instances that are known to be registered.
    pub registered: usize,
    /// Retiring, and no instance of ours was seen there after the last one was deregistered: the record can go.
    pub own_gone: bool,
    /// What the user should know though everything is registered.
    pub notices: Vec<Notice>,
    /// Own instances that were there when this leader looked first.
    pub found: Option<Ids>,
    /// Own instances when nothing remained to be written the last time.
    pub reached: Option<Ids>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    #[default]
    Pending,
    /// All instances were registered; changes since are on their way.
    Registered { count: usize },
    /// Something, or everything, cannot be registered.
    Refused { reason: Reason, message: String },
}

/// Why a target, or a part of its instances, is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The Cloud Map service is somebody else's.
    ForeignOwner,
    /// The namespace does not exist and may not be created.
    NoNamespace,
    /// An AWS quota is reached: 1,000 instances per service, namespaces per region, ...
    LimitExceeded,
    AccessDenied,
    /// AWS throttles, and not just for a moment.
    Throttled,
    /// Endpoints that lack what the service's records require, or whose id somebody else uses.
    UnfitEndpoints,
    /// AWS refused, or failed the operation later; it is tried again.
    Failed,
}

impl Reason {
    /// The Event that says so.
    pub const fn event(self) -> EventReason {
        match self {
            Self::ForeignOwner => EventReason::ForeignOwner,
            Self::NoNamespace => EventReason::NoNamespace,
            Self::LimitExceeded => EventReason::LimitExceeded,
            Self::AccessDenied => EventReason::AccessDenied,
            Self::Throttled => EventReason::Throttled,
            Self::UnfitEndpoints => EventReason::UnfitEndpoints,
            Self::Failed => EventReason::Failed,
        }
    }
}

/// Sizes for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Figures {
    pub targets: usize,
    pub registered: usize,
    /// Writes that wait for their turn.
    pub queued: usize,
    /// Operations that AWS has not finished.
    pub running: usize,
    /// Time in which every target is read once.
    pub drift_period: Duration,
    /// Own instances that were missing, altered or too many when a target was read again.
    pub drifted: u64,
}

/// Until when this replica may write: checked immediately before each write, which is given up at that time.
pub trait Leadership: Send + Sync + 'static {
    /// `None`: not leading.
    fn leads_until(&self) -> Option<Instant>;
}

impl<F: Fn() -> Option<Instant> + Send + Sync + 'static> Leadership for F {
    fn leads_until(&self) -> Option<Instant> {
        self()
    }
}

/// The running task. Dropping the handle does not stop it: `shutdown` does.
#[derive(Debug)]
pub struct Handle {
    status: watch::Receiver<Arc<BTreeMap<Target, TargetStatus>>>,
    figures: watch::Receiver<Figures>,
    task: JoinHandle<()>,
}

impl Handle {
    /// Statuses of all targets in [`Desired`]; empty while another replica leads.
    pub fn status(&self) -> watch::Receiver<Arc<BTreeMap<Target, TargetStatus>>> {
        self.status.clone()
    }

    pub fn figures(&self) -> watch::Receiver<Figures> {
        self.figures.clone()
    }

    /// Waits until the task has stopped after a shutdown.
    pub async fn stopped(self) {
        // A panic has been reported by the panic hook.
        let _ = self.task.await;
    }
}

/// Starts the task. It ends with `shutdown`, and after `desired` was closed.
pub fn spawn(
    settings: Settings,
    cloudmap: Arc<dyn CloudMap>,
    desired: watch::Receiver<Arc<Desired>>,
    leadership: Arc<dyn Leadership>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Handle {
    let (status, status_receiver) = watch::channel(Arc::default());
    let (figures, figures_receiver) = watch::channel(Figures::default());
    let task = Task {
        performer: Arc::new(Performer::new(cloudmap, settings.identity.clone(), leadership.clone())),
        settings: Arc::new(settings),
        desired,
        leadership,
        status,
        figures,
    };
    Handle { status: status_receiver, figures: figures_receiver, task: env::spawn(task.run(shutdown)) }
}

struct Task {
    settings: Arc<Settings>,
    performer: Arc<Performer>,
    desired: watch::Receiver<Arc<Desired>>,
    leadership: Arc<dyn Leadership>,
    status: watch::Sender<Arc<BTreeMap<Target, TargetStatus>>>,
    figures: watch::Sender<Figures>,
}

impl Task {
    async fn run(mut self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        // The picture of a former term is worth nothing: another replica may have written since.
        let mut term: Option<Engine> = None;
        let mut calls = FuturesUnordered::new();
        let mut publish = Instant::now();
        loop {
            let now = Instant::now();
            let leads = self.leadership.leads_until().is_some_and(|until| until > now);
            if leads && term.is_none() {
                let mut engine = Engine::new(self.settings.clone(), now);
                engine.desire(&self.desired.borrow_and_update().clone(), now);
                term = Some(engine);
            } else if !leads && term.take().is_some() {
                calls.clear();
                self.status.send_replace(Arc::default());
                self.figures.send_replace(Figures::default());
            }
            let mut wake = now + TICK;
            if let Some(engine) = &mut term {
                while let Some(call) = engine.next(now) {
                    calls.push(self.performer.clone().perform(call));
                }
                if now >= publish && engine.take_changed() {
                    publish = now + TICK;
                    self.publish(engine);
                }
                wake = engine.wake().map_or(wake, |at| wake.min(at));
            }
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(event) = calls.next(), if !calls.is_empty() => {
                    if let Some(engine) = &mut term {
                        engine.done(event, Instant::now());
                    }
                }
                changed = self.desired.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let desired = self.desired.borrow_and_update().clone();
                    if let Some(engine) = &mut term {
                        engine.desire(&desired, Instant::now());
                    }
                }
                () = sleep_until(wake) => {}
            }
        }
        let _ = tokio::time::timeout(GRACE, async { while calls.next().await.is_some() {} }).await;
    }

    fn publish(&self, engine: &Engine) {
        let statuses = engine.statuses();
        self.status.send_if_modified(|published| {
            let changed = **published != statuses;
            if changed {
                *published = Arc::new(statuses);
            }
            changed
        });
        let figures = engine.figures();
        self.figures.send_if_modified(|published| std::mem::replace(published, figures) != figures);
    }
}
