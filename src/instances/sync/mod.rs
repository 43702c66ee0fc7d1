//! Brings Cloud Map to the desired instances, and keeps it there.
//!
//! One task owns all state ([`engine`], which makes no calls and reads no clock) and makes the calls that the engine
//! requests ([`call`]). When this replica begins to lead, each target is read once, and its observed state is kept in
//! memory. A slow round over all targets ([`SyncFigures::drift_period`]) finds what somebody else changed.

mod activity;
mod altered;
mod authority;
mod call;
mod claims;
mod directory;
mod ended;
mod engine;
mod failure;
mod health;
mod hidden_tasks;
mod hiding;
mod inventory;
mod known;
mod listing;
mod making;
mod notice;
mod performer;
mod places;
mod polls;
mod readback;
mod readings;
mod remade;
mod share;
mod state;
#[cfg(test)]
mod tests;
mod ttl;
mod turns;
mod upkeep;
mod writes;

use std::{collections::BTreeSet, future::Future, net::IpAddr, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

pub use self::{authority::Authority, notice::Notice};
use self::{engine::Engine, performer::Performer};
use super::{
    Consent, InstanceSpec, MissingNamespaces, Owner,
    share::{Reached, Share, Traffic},
};
use api::events::EventReason;
use base::{env, shared_map::SharedMap};
use cloudmap::{DnsConfig, Listings};
use cluster::record::HiddenStore;
use model::{ClaimOwner, ClusterId, ServiceKey, Target};

/// How often leadership is checked while nothing happens, and the minimum time between two publications of statuses.
const TICK: Duration = Duration::from_millis(250);
/// How long requests in progress may take when the process stops. Their operations continue in AWS.
const GRACE: Duration = Duration::from_secs(5);

/// Settings of the task.
#[derive(Debug, Clone)]
pub struct SyncSettings {
    /// Our identity, for owner marks.
    pub identity: Owner,
    /// Calls per second that drift checks may use. One call reads up to 100 instances of a target. The period follows
    /// from it: with 10 calls per second, 50 seconds for up to 500 targets, 100 seconds for 1,000.
    pub drift_budget: f64,
    /// Minimum period of the drift checks.
    pub drift_period: Duration,
    /// Which missing namespaces to create.
    pub missing_namespaces: MissingNamespaces,
}

impl SyncSettings {
    /// The default settings.
    pub fn new(identity: Owner) -> Self {
        let missing_namespaces = MissingNamespaces::default();
        Self { identity, drift_budget: 10.0, drift_period: Duration::from_secs(50), missing_namespaces }
    }
}

/// The desired state of all targets for which this cluster has, or wants, a registration record.
pub type Desired = SharedMap<Target, Arc<TargetDesired>>;

/// The statuses of the desired targets.
pub type Statuses = SharedMap<Target, TargetStatus>;

/// The desired state of a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct TargetDesired {
    /// Whose claim it is; `None` if there is none, or nothing is to be said of it.
    pub owner: Option<ClaimOwner>,
    /// The registration record is published and the claim is ours, so instances may be registered.
    pub active: bool,
    /// The claim says that its owner may not register there. [`ClaimsStatus::verdicts`] says when that is over.
    pub unable: bool,
    /// Owners whose claims say the same, while `owner` or another cluster has the target. Nothing is done for them.
    pub contenders: Arc<[Contender]>,
    /// Who has the target now, in another cluster: [`ClaimsStatus::succeeded`] says when its instances are there.
    pub successor: Option<(ClusterId, ServiceKey)>,
    /// Nothing is created or written unless something is registered there for this Service: an earlier leader may have
    /// held the target, but another name has it now.
    pub only_found: Option<ServiceKey>,
    /// The target is no longer wanted: only deregistrations follow, until [`TargetStatus::own_gone`].
    pub retiring: bool,
    /// It is `retiring`, and its record is no claim any more. A claim that another name won stays, and nothing may be
    /// registered for it.
    pub released: bool,
    /// The claim is the oldest of the ClusterSet, so its wishes for the service itself count.
    pub decides: bool,
    /// Nothing is deregistered, whatever is in `instances`.
    pub keep: bool,
    /// Existing instances are not overwritten, because something that determines their attributes is invalid or does
    /// not fit.
    pub as_is: bool,
    /// What the user allowed for a foreign service.
    pub consent: Consent,
    /// How to create what is missing.
    pub creation: Creation,
    /// Which part of the traffic they should get. Then only a part of them is registered.
    pub traffic: Traffic,
    /// Whether ECS tasks are hidden where they could not get it otherwise.
    pub hide_tasks: bool,
    /// The desired instances, sorted by id as [`Source::instances`](super::Source::instances) returns them.
    pub instances: Arc<[InstanceSpec]>,
    /// Those of them for which somebody waits: [`TargetStatus::awaited`] says what became of each.
    pub awaited: Ids,
}

impl TargetDesired {
    /// Whether tasks may be hidden. On the way to 0 % none is, whatever can be read.
    fn hides(&self) -> bool {
        self.hide_tasks && !self.retiring && !self.traffic.share().is_some_and(Share::is_none)
    }
}

/// An owner that may not register in a target, as its claim says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// The owner.
    pub owner: ClaimOwner,
    /// What the user allowed for a foreign service.
    pub consent: Consent,
    /// Whether the namespace would be created if it is missing.
    pub creates_namespace: bool,
}

/// Whether an owner may register in a target, and if not, why: [`Reason::ForeignOwner`] or [`Reason::NoNamespace`], and the
/// text for the user.
pub type Verdict = Result<(), (Reason, String)>;

/// How to create what is missing for a target. An existing service is used as it is, except that ours gets the TTL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Creation {
    /// Create a missing namespace.
    pub namespace: bool,
    /// Create a missing service, and set the TTL of ours: the wishes are valid.
    pub service: bool,
    /// The records in a DNS namespace; `None` for a service that can be discovered only through the API, as in all
    /// other namespaces.
    pub dns: Option<DnsConfig>,
    /// Whether the service gets a custom health check.
    pub custom_health_check: bool,
    /// The requested TTL in seconds, which an adopted service gets as well.
    pub ttl: Option<u32>,
}

impl Default for Creation {
    fn default() -> Self {
        Self { namespace: true, service: true, dns: None, custom_health_check: false, ttl: None }
    }
}

/// Ids of instances.
pub type Ids = Arc<BTreeSet<Arc<str>>>;

/// The state of a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetStatus {
    /// The result so far.
    pub outcome: Outcome,
    /// Number of own instances that are known to be registered.
    pub registered: usize,
    /// The target retires, and after the last deregistration no own instance was seen there.
    pub own_gone: bool,
    /// The same, and its claim was released before: the record can go.
    pub done: bool,
    /// What the user should know even if everything is registered.
    pub notices: Vec<Notice>,
    /// The own instances when this leader first read the target.
    pub found: Option<Ids>,
    /// The own instances when nothing remained to be written the last time.
    pub reached: Option<Ids>,
    /// What became of the share of the traffic; `None` if none is requested, or the target was not read yet. Boxed, because
    /// few targets have one.
    pub share: Option<Box<TargetShare>>,
    /// What became of [`TargetDesired::awaited`]; `None` if nothing is awaited.
    pub awaited: Option<Arc<Awaited>>,
    /// What is to be said of the claims to the target, if anything. Boxed, because that is rare.
    pub claims: Option<Box<ClaimsStatus>>,
}

/// What is to be said of the claims to a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimsStatus {
    /// Whether contenders may register there, as far as that is known; and whether the owner may, if its claim says the
    /// opposite.
    pub verdicts: Vec<(ClaimOwner, Verdict)>,
    /// The successor whose instances the last reading shows, or to which nothing is to be handed over.
    pub succeeded: Option<(ClusterId, ServiceKey)>,
}

/// What became of a target's share of the traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetShare {
    /// The numbers.
    pub reached: Reached,
    /// Number of ready pods that are known to be registered. While writes wait or run, it differs from `reached.ours`.
    pub registered: usize,
    /// The addresses of the pods that are chosen for it.
    pub addresses: Arc<BTreeSet<IpAddr>>,
    /// Number of pods that are not ready, and are not being deleted.
    pub unready: usize,
    /// Whether nothing remains to be written, read or tried again for it.
    pub complete: bool,
    /// The TTL of the service's records in seconds, or the largest; 0 without records.
    pub ttl: u32,
    /// Whether the name of the service has address records. Beside SRV records alone, only the names of instances have them.
    pub resolves: bool,
    /// The name by which `DiscoverInstances` knows the namespace; `None` if there is no such namespace yet.
    pub http_name: Option<Arc<str>>,
    /// What became of tasks that are, or should be, hidden; `None` if there are none.
    pub tasks: Option<TargetTasks>,
}

/// What became of a target's hidden tasks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetTasks {
    /// Number of tasks that are hidden.
    pub hidden: usize,
    /// Number of those that are going to be.
    pub to_hide: usize,
    /// Whether tasks are being shown again.
    pub showing: bool,
    /// Whether nothing remains to be marked.
    pub complete: bool,
    /// How many times a task was hidden in this term.
    pub hides: u64,
    /// Why tasks are not hidden that should be, in the words of whoever refuses it.
    pub trouble: Option<(HidingTrouble, String)>,
}

/// Why tasks cannot be hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HidingTrouble {
    /// The service has no custom health check.
    NoHealthCheck,
    /// The record cannot be read or written.
    NotRecorded,
    /// The record takes no more.
    RecordFull,
    /// The health of the tasks cannot be read.
    Unread,
    /// IAM does not allow it.
    AccessDenied,
    /// AWS refuses it.
    Failed,
}

/// What became of the instances for which somebody waits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Awaited {
    /// The name by which `DiscoverInstances` knows the namespace; `None` if there is no such namespace yet.
    pub http_name: Option<Arc<str>>,
    /// Those for which the operation that registers them has succeeded, also under an earlier leader.
    pub registered: BTreeSet<Arc<str>>,
    /// Those that a share of the traffic leaves out.
    pub held_back: BTreeSet<Arc<str>>,
    /// Those that the service cannot take; [`Reason::UnfitEndpoints`].
    pub unfit: BTreeSet<Arc<str>>,
}

/// The result for a target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Outcome {
    /// Not everything is registered yet.
    #[default]
    Pending,
    /// All instances were registered. Later changes are on their way.
    Registered {
        /// Their number.
        count: usize,
    },
    /// Some or all instances cannot be registered.
    Refused {
        /// Why not.
        reason: Reason,
        /// The text for the user.
        message: String,
    },
}

/// Why a target, or a part of its instances, is not registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The Cloud Map service belongs to somebody else.
    ForeignOwner,
    /// The namespace does not exist, and may not or cannot be created.
    NoNamespace,
    /// An AWS quota is exhausted: 1,000 instances per service, namespaces per region, ...
    LimitExceeded,
    /// IAM does not allow a call.
    AccessDenied,
    /// AWS has throttled calls for some time.
    Throttled,
    /// Endpoints lack what the service's records require, or somebody else uses their instance ids.
    UnfitEndpoints,
    /// AWS refused a call, or its operation failed later. It is tried again.
    Failed,
}

impl Reason {
    /// The Event with this reason.
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

/// Statistics for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SyncFigures {
    /// Number of targets.
    pub targets: usize,
    /// Number of own registered instances.
    pub registered: usize,
    /// Number of writes that wait for their turn.
    pub queued: usize,
    /// Number of operations that AWS has not finished.
    pub running: usize,
    /// Time in which every target is read once.
    pub drift_period: Duration,
    /// Number of own instances that were missing, changed or unexpected when a target was read again.
    pub drifted: u64,
    /// Shares of the traffic.
    pub shares: ShareFigures,
}

/// Sums over all targets that have a share of the traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShareFigures {
    /// Number of targets.
    pub targets: usize,
    /// Number of those whose share needs more pods than are ready, or fewer instances of others.
    pub limited: usize,
    /// Number of ready pods that are not chosen.
    pub held_back: usize,
    /// Requested shares, in hundredths of a percent.
    pub asked: usize,
    /// The shares that the registered pods have, likewise.
    pub reached: usize,
    /// The largest shares that can be reached with the pods that are ready, likewise.
    pub reachable: usize,
}

/// The running task. Dropping this does not stop the task; `shutdown` does.
#[derive(Debug)]
pub struct SyncHandle {
    status: watch::Receiver<Statuses>,
    figures: watch::Receiver<SyncFigures>,
    task: JoinHandle<()>,
}

impl SyncHandle {
    /// The statuses of all targets in [`Desired`]; empty while another replica leads.
    pub fn status(&self) -> watch::Receiver<Statuses> {
        self.status.clone()
    }

    /// The statistics, and their changes.
    pub fn figures(&self) -> watch::Receiver<SyncFigures> {
        self.figures.clone()
    }

    /// Waits until the task has stopped after a shutdown.
    pub async fn stopped(self) {
        // The panic hook has reported a panic.
        let _ = self.task.await;
    }
}

/// Starts the task. It ends with `shutdown`, or when `desired` is closed.
pub fn spawn(
    settings: SyncSettings,
    cloudmap: Arc<dyn cloudmap::Write>,
    listings: Arc<Listings>,
    hidden: Arc<dyn HiddenStore>,
    desired: watch::Receiver<Desired>,
    authority: Authority,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> SyncHandle {
    let (status, status_receiver) = watch::channel(Statuses::default());
    let (figures, figures_receiver) = watch::channel(SyncFigures::default());
    let task = Task {
        performer: Arc::new(Performer::new(cloudmap, listings, hidden, &settings, authority.clone())),
        settings: Arc::new(settings),
        desired,
        authority,
        status,
        figures,
    };
    SyncHandle { status: status_receiver, figures: figures_receiver, task: env::spawn(task.run(shutdown)) }
}

struct Task {
    settings: Arc<SyncSettings>,
    performer: Arc<Performer>,
    desired: watch::Receiver<Desired>,
    authority: Authority,
    status: watch::Sender<Statuses>,
    figures: watch::Sender<SyncFigures>,
}

impl Task {
    async fn run(mut self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        // The observed state of a previous term is worthless: another replica may have written since.
        let mut picture: Option<(u64, Engine)> = None;
        let mut calls = FuturesUnordered::new();
        let mut publish = Instant::now();
        loop {
            let now = Instant::now();
            let (term, may_write) = (self.authority.term(), self.authority.permit().is_some());
            if picture.take_if(|(of, _)| Some(*of) != term).is_some() {
                calls.clear();
                self.status.send_replace(Statuses::default());
                self.figures.send_replace(SyncFigures::default());
            }
            if let Some(term) = term.filter(|_| may_write && picture.is_none()) {
                let mut engine = Engine::new(self.settings.clone(), now);
                engine.desire(&self.desired.borrow_and_update(), now);
                picture = Some((term, engine));
            }
            let mut wake = now + TICK;
            if let Some((_, engine)) = &mut picture {
                while may_write && let Some(call) = engine.next(now) {
                    calls.push(self.performer.clone().perform(call));
                }
                if now >= publish && self.publish(engine) {
                    publish = now + TICK;
                }
                wake = engine.wake().filter(|_| may_write).map_or(wake, |at| wake.min(at));
            }
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(event) = calls.next(), if !calls.is_empty() => {
                    if let Some((_, engine)) = &mut picture {
                        engine.done(event, Instant::now());
                    }
                }
                changed = self.desired.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    if let Some((_, engine)) = &mut picture {
                        engine.desire(&self.desired.borrow_and_update(), Instant::now());
                    }
                }
                () = sleep_until(wake) => {}
            }
        }
        let _ = tokio::time::timeout(GRACE, async { while calls.next().await.is_some() {} }).await;
    }

    /// Publishes what changed. Returns whether anything did.
    fn publish(&self, engine: &mut Engine) -> bool {
        let Some((statuses, figures)) = engine.take_news() else { return false };
        self.status.send_if_modified(|published| {
            let changed = *published != statuses;
            *published = statuses;
            changed
        });
        self.figures.send_if_modified(|published| std::mem::replace(published, figures) != figures);
        true
    }
}
