//! Leader election by a Lease: every replica keeps its caches warm, one writes.
//!
//! The holder may act until a moment on its own monotonic clock: the start of its last successful renewal plus
//! [`Timing::act_for`]. Others take the Lease over when it has not changed for [`Timing::duration`] on *their* monotonic
//! clock since they first saw it. No wall clock is compared, and a holder that cannot reach the API server stops
//! before anybody can take over: writes to AWS do not go through the API server, so nothing else would stop it.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info, warn};

use super::metrics::Metrics;
use crate::env;

/// Name of the Lease in the controller's namespace.
pub const LEASE: &str = "cloudmap-mcs";

/// How long claims last.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Others wait this long without a renewal before they take over.
    pub duration: Duration,
    /// The holder acts this long after the start of a renewal that succeeded. The difference to `duration` is what
    /// writes that were begun in the last moment have to arrive in.
    pub act_for: Duration,
    /// Between renewals, and between looks at somebody else's Lease.
    pub renew_every: Duration,
}

impl Default for Timing {
    /// As client-go has it, so that a failed leader is replaced within 15 to 18 s.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            act_for: Duration::from_secs(10),
            renew_every: Duration::from_secs(3),
        }
    }
}

/// Longest wait for one call. Two fit into [`Timing::act_for`].
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// Why the Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("somebody else wrote the Lease")]
    Conflict,
    #[error("no answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    #[error("failed to reach the Lease")]
    Api(#[source] Box<kube::Error>),
}

/// What the Lease says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// `None`: released.
    pub holder: Option<String>,
    pub duration: Duration,
    /// How often it changed hands.
    pub transitions: i32,
    /// For people; never compared with a clock.
    pub acquired: Timestamp,
}

/// Where the Lease is kept: reads are fresh, writes compare and swap.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// The Lease and its version, if it exists.
    async fn read(&self) -> Result<Option<(Record, String)>, Error>;

    /// Creates it (`version` is `None`) or replaces that version; returns the new version. Every write renews.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the version is not the present one, or if it exists already.
    async fn write(&self, record: &Record, version: Option<&str>) -> Result<String, Error>;
}

/// Whether this replica may write. Cheap to clone.
#[derive(Clone)]
pub struct Leadership {
    until: Arc<watch::Sender<Option<Instant>>>,
    confirm: Option<Arc<Confirm>>,
}

struct Confirm {
    store: Box<dyn LeaseStore>,
    identity: String,
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leadership").field("until", &*self.until.borrow()).finish_non_exhaustive()
    }
}

impl Leadership {
    /// A leadership that is given and taken by hand: for tests, simulations, and commands that need no election.
    pub fn manual(until: Option<Instant>) -> Self {
        Self { until: Arc::new(watch::Sender::new(until)), confirm: None }
    }

    /// Sets a [`Self::manual`] leadership.
    pub fn set(&self, until: Option<Instant>) {
        self.until.send_replace(until);
    }

    /// Until when this replica may write, if it may now. Ask immediately before each write.
    pub fn is_leader_until(&self) -> Option<Instant> {
        (*self.until.borrow()).filter(|until| *until > Instant::now())
    }

    pub fn is_leader(&self) -> bool {
        self.is_leader_until().is_some()
    }

    /// Waits until this replica leads.
    pub async fn acquired(&self) {
        let mut until = self.until.subscribe();
        loop {
            if self.is_leader() {
                return;
            }
            if until.changed().await.is_err() {
                // Only if `self` were gone.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until this replica does not lead (any more).
    pub async fn lost(&self) {
        let mut changes = self.until.subscribe();
        while let Some(until) = self.is_leader_until() {
            tokio::select! {
                () = sleep_until(until) => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Whether this replica leads by a Lease that has just been read from the API server: what must be known before a
    /// new epoch of the ledger is begun.
    ///
    /// # Errors
    /// The Lease could not be read: nothing is known.
    pub async fn confirm(&self) -> Result<bool, Error> {
        let Some(confirm) = &self.confirm else { return Ok(self.is_leader()) };
        let record = call(confirm.store.read()).await?;
        let held = record.is_some_and(|(record, _)| record.holder.as_deref() == Some(&confirm.identity));
        if !held && self.is_leader() {
            warn!("the Lease has another holder: this replica stops writing");
            self.until.send_replace(None);
        }
        Ok(held && self.is_leader())
    }
}

/// Takes part in the election.
pub struct Elector<S> {
    store: S,
    identity: String,
    timing: Timing,
    leadership: Leadership,
    metrics: Metrics,
    /// The version of the last own write, while held: a renewal is then one call.
    held: Option<(Record, String)>,
    /// Somebody else's Lease, and when this version of it was first seen.
    observed: Option<(String, Instant)>,
}

impl<S> std::fmt::Debug for Elector<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Elector").field("identity", &self.identity).field("held", &self.held).finish_non_exhaustive()
    }
}

impl<S: LeaseStore + Clone> Elector<S> {
    /// `identity` must be unique to this process, not only to this pod: a restarted container must not take its
    /// predecessor's claim for its own.
    pub fn new(store: S, identity: String, timing: Timing, metrics: Metrics) -> (Self, Leadership) {
        let confirm = Confirm { store: Box::new(store.clone()), identity: identity.clone() };
        let leadership = Leadership { until: Arc::new(watch::Sender::new(None)), confirm: Some(Arc::new(confirm)) };
        let elector =
            Self { store, identity, timing, leadership: leadership.clone(), metrics, held: None, observed: None };
        (elector, leadership)
    }

    /// Takes part until `shutdown` resolves, then releases the Lease if it is held, so that another replica need not
    /// wait for it to expire.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            let deadline = self.leadership.is_leader_until();
            // A renewal that hangs must not outlive the claim.
            let expire = async {
                match deadline {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut shutdown => break,
                () = expire => self.demote("it could not be renewed in time"),
                result = self.step() => if let Err(error) = result {
                    warn!(error = &error as &dyn std::error::Error, "failed to take part in the election");
                },
            }
            tokio::select! {
                () = &mut shutdown => break,
                () = sleep(self.timing.renew_every) => {}
            }
            if self.leadership.until.borrow().is_some_and(|until| until <= Instant::now()) {
                self.demote("it could not be renewed in time");
            }
        }
        self.release().await;
    }

    /// One look at the Lease: renews, takes over, or waits.
    async fn step(&mut self) -> Result<(), Error> {
        if let Some((record, version)) = self.held.clone() {
            return match self.claim(record, Some(version)).await {
                Err(Error::Conflict) => {
                    self.held = None;
                    self.contend().await
                }
                result => result,
            };
        }
        self.contend().await
    }

    async fn contend(&mut self) -> Result<(), Error> {
        let Some((record, version)) = call(self.store.read()).await? else {
            return self.claim(self.fresh(0), None).await;
        };
        match record.holder.as_deref() {
            // An own write whose answer was lost.
            Some(holder) if holder == self.identity => self.claim(record, Some(version)).await,
            None => self.claim(self.fresh(record.transitions + 1), Some(version)).await,
            Some(holder) => {
                if self.leadership.until.borrow().is_some() {
                    self.demote("another replica holds it");
                }
                match &self.observed {
                    Some((seen, since)) if *seen == version => {
                        if since.elapsed() < record.duration {
                            return Ok(());
                        }
                        info!(holder, "the Lease has expired: taking over");
                        self.claim(self.fresh(record.transitions + 1), Some(version)).await
                    }
                    _ => {
                        debug!(holder, "another replica leads");
                        self.observed = Some((version, Instant::now()));
                        Ok(())
                    }
                }
            }
        }
    }

    /// A record that makes this replica the holder.
    fn fresh(&self, transitions: i32) -> Record {
        Record {
            holder: Some(self.identity.clone()),
            duration: self.timing.duration,
            transitions,
            acquired: env::timestamp(),
        }
    }

    async fn claim(&mut self, record: Record, version: Option<String>) -> Result<(), Error> {
        // Counted from before the call: whoever sees the write sees it later than this.
        let begun = Instant::now();
        let version = call(self.store.write(&record, version.as_deref())).await?;
        self.held = Some((record, version));
        self.observed = None;
        if self.leadership.until.send_replace(Some(begun + self.timing.act_for)).is_none() {
            info!(identity = self.identity, "this replica leads");
            self.metrics.leader.set(1);
        }
        Ok(())
    }

    fn demote(&mut self, why: &str) {
        self.held = None;
        if self.leadership.until.send_replace(None).is_some() {
            warn!(identity = self.identity, why, "this replica does not lead any more");
        }
        self.metrics.leader.set(0);
    }

    async fn release(mut self) {
        let held = self.held.take();
        self.leadership.until.send_replace(None);
        self.metrics.leader.set(0);
        let Some((record, version)) = held else { return };
        let released = Record { holder: None, ..record };
        match call(self.store.write(&released, Some(&version))).await {
            Ok(_) => info!("released the Lease"),
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "failed to release the Lease: it will expire");
            }
        }
    }
}

async fn call<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(CALL_TIMEOUT, request).await.unwrap_or(Err(Error::Timeout))
}

/// The Lease in Kubernetes.
#[derive(Debug, Clone)]
pub struct KubernetesLease {
    api: Api<Lease>,
}

impl KubernetesLease {
    /// `namespace` is the controller's own.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }
}

#[async_trait]
impl LeaseStore for KubernetesLease {
    async fn read(&self) -> Result<Option<(Record, String)>, Error> {
        let lease = self.api.get_opt(LEASE).await.map_err(failed)?;
        Ok(lease.map(|lease| {
            let spec = lease.spec.unwrap_or_default();
            let record = Record {
                holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
                duration: spec
                    .lease_duration_seconds
                    .and_then(|seconds| u64::try_from(seconds).ok())
                    .map_or(Timing::default().duration, Duration::from_secs),
                transitions: spec.lease_transitions.unwrap_or(0),
                acquired: spec.acquire_time.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            };
            (record, lease.metadata.resource_version.unwrap_or_default())
        }))
    }

    async fn write(&self, record: &Record, version: Option<&str>) -> Result<String, Error> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(LEASE.to_owned()),
                resource_version: version.map(str::to_owned),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                // The API server refuses an empty holder, but not a missing one.
                holder_identity: record.holder.clone(),
                lease_duration_seconds: i32::try_from(record.duration.as_secs()).ok(),
                lease_transitions: Some(record.transitions),
                acquire_time: Some(MicroTime(record.acquired)),
                renew_time: Some(MicroTime(env::timestamp())),
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams::default();
        let written = match version {
            Some(_) => self.api.replace(LEASE, &params, &lease).await,
            None => self.api.create(&params, &lease).await,
        };
        Ok(written.map_err(failed)?.metadata.resource_version.unwrap_or_default())
    }
}

fn failed(error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => Error::Conflict,
        error => Error::Api(Box::new(error)),
    }
}

#[cfg(test)]
mod tests;
