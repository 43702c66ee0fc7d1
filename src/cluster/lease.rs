//! Leader election with a Lease. Every replica keeps its caches warm, and one writes.
//!
//! The leader may act until a moment on its own monotonic clock: the start of its last successful renewal plus
//! [`Timing::act_for`]. Others take the Lease when it has not changed for [`Timing::duration`] on *their* monotonic
//! clock since they first saw it. No wall clocks are compared. A leader that cannot reach the API server stops before
//! another replica can take over. Nothing else would stop it, because writes to AWS do not go through the API server.
//!
//! A leader whose time has run out stops acting, but its *term* ends only when another replica has written the Lease.
//! If its next renewal replaces exactly the version that it wrote last, nobody led in between, and it continues. So if
//! the API server is away for everybody, the only effect is that nobody acts. A term also ends when the API server has
//! an older Lease than the one that the leader wrote last: its data were restored from a backup.
//!
//! A replica whose caches cannot be trusted does not take the Lease. If it holds the Lease, it says so in its renewals
//! ([`Record::yields`]) and continues. A replica with better caches answers with a bid ([`Record::bid`]), and the
//! leader releases the Lease. So the leader stays the same while all replicas have the same trouble.
//!
//! A leader yields also if AWS does not answer it, or denies everything. A standby then asks AWS itself, and bids only if AWS
//! answers and lets it in. A replica that released the Lease for this reason leaves it to others for a minute. After that it may take
//! it: a leader without AWS is better than none.

mod aws;
mod leadership;
mod object;
mod peers;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::FutureExt as _;
use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use self::leadership::{Claim, Confirm};
pub use self::{aws::AwsAccess, leadership::Leadership, object::KubernetesLease, peers::PeerReport};
use super::metrics::Metrics;
use base::env;

/// Name of the Lease in the controller's namespace.
pub const LEASE: &str = "cloudmap-mcs";

/// How long claims last.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// How long others wait without a renewal before they take over.
    pub duration: Duration,
    /// How long the leader acts after the start of a successful renewal. The difference to `duration` is the time that
    /// writes have to arrive which began at the last moment.
    pub act_for: Duration,
    /// The time between renewals.
    pub renew_every: Duration,
    /// The time between looks at another replica's Lease. So long a released Lease may stay without a leader, if the watch does
    /// not show it.
    pub look_every: Duration,
}

impl Default for Timing {
    /// A leader that fails is replaced within 16 s of its last renewal, and one that stops at once, or within a second.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            act_for: Duration::from_secs(10),
            renew_every: Duration::from_secs(3),
            look_every: Duration::from_secs(1),
        }
    }
}

/// Deadline of one call. A renewal begins 3 s after the previous one. Two that hang, the pauses after them, and a third
/// one fit into [`Timing::act_for`].
const CALL_TIMEOUT: Duration = Duration::from_millis(2500);

/// Time from a failed renewal to the next attempt.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// For so long a replica leaves the Lease to others that it released because AWS does not answer it, or denies everything.
const LEAVES_FOR: Duration = Duration::from_mins(1);

/// The Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process wrote or deleted it.
    #[error("another process wrote or deleted the Lease")]
    Conflict,
    /// No answer came in time.
    #[error("no answer within {} s", CALL_TIMEOUT.as_secs_f32())]
    Timeout,
    /// The API server refused the call, or cannot be reached.
    #[error("failed to reach the Lease")]
    Api(#[source] Box<kube::Error>),
}

/// The content of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Identity of the leader; `None` if the Lease was released.
    pub holder: Option<String>,
    /// How long others wait without a renewal.
    pub duration: Duration,
    /// How often the leader changed.
    pub transitions: i32,
    /// When the leader took the Lease; for people, and never compared with a clock.
    pub acquired: Timestamp,
    /// Why the leader would rather not lead, as a text: its caches cannot be trusted, or AWS does not answer it or denies
    /// everything.
    pub yields: Option<String>,
    /// A replica that can do better.
    pub bid: Option<String>,
    /// What the leader publishes about other clusters.
    pub peers: PeerReport,
}

/// Where the Lease is stored. Reads are fresh, writes compare and swap.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// The Lease and its version, if it exists.
    async fn read(&self) -> Result<Option<(Record, String)>, Error>;

    /// Creates the Lease (if `version` is `None`) or replaces that version, and returns the new version. Every write
    /// renews it.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the version is not the current one, if the Lease was deleted, or if it already exists.
    async fn write(&self, record: &Record, version: Option<&str>) -> Result<String, Error>;

    /// Resolves when nobody seems to hold the Lease any more. It may come late, or never: whoever gets it reads the Lease.
    async fn released(&self);
}

/// Returns why the caches of a replica cannot be trusted, as a text; `None` if they can.
pub type Trouble = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Takes part in the election.
pub struct Elector<S> {
    store: S,
    identity: String,
    timing: Timing,
    leadership: Leadership,
    trouble: Trouble,
    registry: Option<AwsAccess>,
    metrics: Metrics,
    /// The last own write, while the term lasts. With it, a renewal is a single call.
    held: Option<(Record, String)>,
    /// Another replica's Lease: its version, and when this version was first seen.
    observed: Option<(String, Instant)>,
    /// When another replica was last seen to hold the Lease, or may have held it unseen.
    rival: Option<Instant>,
    /// When this replica last released the Lease to another one, if it did so because of AWS.
    left: Option<Instant>,
    /// Whether a write that takes the Lease was sent, and its answer is not known.
    claiming: bool,
    /// Whether this replica acts, as last logged.
    acting: bool,
}

impl<S> std::fmt::Debug for Elector<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Elector").field("identity", &self.identity).field("held", &self.held).finish_non_exhaustive()
    }
}

impl<S: LeaseStore + Clone> Elector<S> {
    /// `identity` must be unique to this process, not only to this pod: a restarted container must not mistake its
    /// predecessor's claim for its own. `trouble` is called before each attempt. Without a `registry`, only the caches
    /// count.
    pub fn new(
        store: S,
        identity: String,
        timing: Timing,
        trouble: Trouble,
        registry: Option<AwsAccess>,
        metrics: Metrics,
    ) -> (Self, Leadership) {
        let confirm = Confirm { store: Box::new(store.clone()), identity: identity.clone() };
        let claim = Arc::new(watch::Sender::new(Claim::default()));
        let leadership = Leadership { claim, peers: Arc::default(), confirm: Some(Arc::new(confirm)) };
        let elector = Self {
            store,
            identity,
            timing,
            leadership: leadership.clone(),
            trouble,
            registry,
            metrics,
            held: None,
            observed: None,
            rival: None,
            left: None,
            claiming: false,
            acting: false,
        };
        (elector, leadership)
    }

    /// Takes part until `shutdown` resolves. Then releases the Lease if this replica holds it, so that another one need
    /// not wait for it to expire.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut released = None;
        // Who may not take a released Lease does not look at it again and again.
        let mut looked = false;
        loop {
            let begun = Instant::now();
            let result = tokio::select! {
                biased;
                () = &mut shutdown => break,
                result = self.step() => result,
            };
            let next = match result {
                Ok(()) => begun + if self.held.is_some() { self.timing.renew_every } else { self.timing.look_every },
                Err(error) => {
                    warn!(error = &error as &dyn std::error::Error, "failed to take part in the election");
                    // While a claim runs out, each second counts.
                    Instant::now() + if self.held.is_some() { RETRY_AFTER } else { self.timing.renew_every }
                }
            };
            self.show_acting();
            if self.held.is_some() {
                released = None;
            }
            let watch = || {
                let store = self.store.clone();
                async move { store.released().await }.boxed()
            };
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = sleep_until(next) => looked = false,
                () = async { released.get_or_insert_with(watch).await }, if self.held.is_none() && !looked => {
                    (released, looked) = (None, true);
                }
            }
        }
        self.release().await;
    }

    /// Looks at the Lease once: renews it, takes it, gives it up, or waits.
    async fn step(&mut self) -> Result<(), Error> {
        if let Some((record, version)) = self.held.clone() {
            return match self.claim(record, Some(version)).await {
                Err(Error::Conflict) => self.contend().await,
                result => result,
            };
        }
        self.contend().await
    }

    async fn contend(&mut self) -> Result<(), Error> {
        let Some((record, version)) = call(self.store.read()).await? else {
            return self.contend_for_none().await;
        };
        match record.holder.as_deref() {
            // The holder is this replica: an own write whose answer was lost, or a bid.
            Some(holder) if holder == self.identity => {
                if self.held.as_ref().is_some_and(|(_, held)| is_before(&version, held)) {
                    // A watch from a version that the API server has yet to reach is silent, and looks healthy. In a new term
                    // everything is listed again.
                    self.end_term(
                        "the Lease is older than the one that it wrote: the cluster was restored from a backup",
                    );
                }
                if let Some(better) = &record.bid
                    && let Some(why) = self.yields()
                {
                    info!(better, why, "another replica can do better; releasing the Lease");
                    self.left = AwsAccess::is_why(&why).then(Instant::now);
                    self.end_term("another replica can do better");
                    return call(self.store.write(&record.released(), Some(&version))).await.map(drop);
                }
                self.claim(record, Some(version)).await
            }
            None => {
                self.end_term("it was released");
                if self.leaves() {
                    return Ok(());
                }
                self.claim(self.fresh(record.transitions + 1), Some(version)).await
            }
            Some(_) => self.contend_with_another(record, version).await,
        }
    }

    /// Handles a Lease that somebody deleted; its holder may not know this yet.
    async fn contend_for_none(&mut self) -> Result<(), Error> {
        if !self.leadership.is_leader() {
            if self.held.is_some() {
                // Another replica may have taken it before it was deleted, and may act until its next renewal.
                self.rival = Some(Instant::now());
            }
            self.end_term("it was deleted");
        }
        let held_by_another = self.rival.is_some_and(|seen| seen.elapsed() < self.timing.duration);
        if self.held.is_none() && (held_by_another || self.leaves()) {
            return Ok(());
        }
        let transitions = self.held.as_ref().map_or(0, |(record, _)| record.transitions);
        self.claim(self.fresh(transitions), None).await
    }

    async fn contend_with_another(&mut self, record: Record, version: String) -> Result<(), Error> {
        self.end_term("another replica holds it");
        self.claiming = false;
        let now = Instant::now();
        self.rival = Some(now);
        let since = match &self.observed {
            Some((seen, since)) if *seen == version => *since,
            _ => {
                debug!(holder = record.holder, "another replica leads");
                self.observed = Some((version.clone(), now));
                now
            }
        };
        if self.leaves() {
            return Ok(());
        }
        if now.duration_since(since) >= record.duration {
            info!(holder = record.holder, "the Lease has expired; taking over");
            return self.claim(self.fresh(record.transitions + 1), Some(version)).await;
        }
        if let Some(why) = &record.yields
            && record.bid.is_none()
            && self.is_better(why)
        {
            info!(holder = record.holder, why, "offering to lead instead");
            let offer = Record { bid: Some(self.identity.clone()), ..record };
            let version = call(self.store.write(&offer, Some(&version))).await?;
            self.observed = Some((version, now));
        }
        Ok(())
    }

    /// Why this replica, as the leader, would rather not lead. Caches come first: no other replica needs to look at AWS.
    fn yields(&mut self) -> Option<String> {
        (self.trouble)().or_else(|| self.registry.as_mut()?.trouble())
    }

    /// Whether this replica leaves the Lease to others.
    fn leaves(&self) -> bool {
        (self.trouble)().is_some() || self.left.is_some_and(|left| left.elapsed() < LEAVES_FOR)
    }

    /// Whether this replica, whose caches are fresh, is better than a leader that yields because of this.
    fn is_better(&mut self, why: &str) -> bool {
        !AwsAccess::is_why(why) || self.registry.as_mut().is_some_and(AwsAccess::answers)
    }

    /// A record with this replica as the holder.
    fn fresh(&self, transitions: i32) -> Record {
        Record {
            holder: Some(self.identity.clone()),
            duration: self.timing.duration,
            transitions,
            acquired: env::timestamp(),
            yields: None,
            bid: None,
            peers: PeerReport::default(),
        }
    }

    async fn claim(&mut self, record: Record, version: Option<String>) -> Result<(), Error> {
        let peers = self.leadership.peers.borrow().clone();
        let record = Record { yields: self.yields(), bid: None, peers, ..record };
        // The time counts from before the call: others see the write later than this.
        let begun = Instant::now();
        self.claiming = self.held.is_none();
        let version = call(self.store.write(&record, version.as_deref())).await?;
        self.claiming = false;
        let until = Some(begun + self.timing.act_for);
        self.observed = None;
        let begins = self.held.replace((record, version)).is_none();
        self.leadership.claim.send_modify(|claim| {
            claim.term += u64::from(begins);
            claim.until = until;
        });
        if begins {
            info!(identity = self.identity, "this replica leads");
        }
        self.show_acting();
        Ok(())
    }

    /// Shows in the log and in the metrics whether this replica acts.
    fn show_acting(&mut self) {
        let acting = self.leadership.is_leader();
        if acting != self.acting && self.held.is_some() {
            if acting {
                info!("the Lease is renewed; this replica writes again");
            } else {
                warn!("the Lease could not be renewed in time; nothing is written until it is renewed");
            }
        }
        self.acting = acting;
        self.metrics.leader.set(acting.into());
    }

    fn end_term(&mut self, why: &str) {
        if self.held.take().is_some() {
            warn!(identity = self.identity, why, "this replica no longer leads");
        }
        self.leadership.set(None);
        self.leadership.publish(PeerReport::default());
        self.show_acting();
    }

    async fn release(mut self) {
        let held = self.held.take();
        self.leadership.set(None);
        self.metrics.leader.set(0);
        let written = match held {
            Some((record, version)) => call(self.store.write(&record.released(), Some(&version))).await,
            // It may have been taken at the last moment.
            None if self.claiming => Err(Error::Conflict),
            None => return,
        };
        let released = match written {
            // The answer to the last renewal, or to the first write, was lost.
            Err(Error::Conflict) => match call(self.store.read()).await {
                Ok(Some((record, version))) if record.holder.as_ref() == Some(&self.identity) => {
                    call(self.store.write(&record.released(), Some(&version))).await.map(drop)
                }
                Ok(_) => return,
                Err(error) => Err(error),
            },
            result => result.map(drop),
        };
        match released {
            Ok(()) => info!("released the Lease"),
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "failed to release the Lease; it will expire");
            }
        }
    }
}

impl Record {
    fn released(&self) -> Self {
        Self { holder: None, yields: None, bid: None, peers: PeerReport::default(), ..self.clone() }
    }
}

/// Whether a version of the Lease is older than another one. Versions of one API server are numbers that only grow, unless its
/// data are restored from a backup.
fn is_before(version: &str, other: &str) -> bool {
    let number = |version: &str| version.split('/').next()?.parse::<u64>().ok();
    number(version).zip(number(other)).is_some_and(|(version, other)| version < other)
}

async fn call<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(CALL_TIMEOUT, request).await.unwrap_or(Err(Error::Timeout))
}

#[cfg(test)]
mod tests;
