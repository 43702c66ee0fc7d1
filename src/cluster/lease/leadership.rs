//! Whether a replica may write, as the rest of the process sees it.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::{sync::watch, time::Instant};
use tracing::warn;

use super::{Error, LeaseStore, PeerReport, call};
use cloudmap::Permit;
use ledger::driver;

/// Whether this replica may write. Clones are cheap.
#[derive(Clone)]
pub struct Leadership {
    pub(super) claim: Arc<watch::Sender<Claim>>,
    /// What the renewals publish about other clusters.
    pub(super) peers: Arc<watch::Sender<PeerReport>>,
    pub(super) confirm: Option<Arc<Confirm>>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Claim {
    /// Counts the terms of this process.
    pub(super) term: u64,
    /// Until when the replica may act, while its term lasts. This time may have passed.
    pub(super) until: Option<Instant>,
}

pub(super) struct Confirm {
    pub(super) store: Box<dyn LeaseStore>,
    pub(super) identity: String,
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leadership").field("claim", &*self.claim.borrow()).finish_non_exhaustive()
    }
}

#[async_trait]
impl driver::Leadership for Leadership {
    fn permit(&self) -> Option<Permit> {
        Self::permit(self)
    }

    async fn confirm(&self) -> bool {
        match Self::confirm(self).await {
            Ok(held) => held,
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, "failed to confirm the Lease");
                false
            }
        }
    }
}

impl Leadership {
    /// A leadership that is set by hand: for tests, simulations, and commands without an election.
    pub fn manual(until: Option<Instant>) -> Self {
        Self { claim: Arc::new(watch::Sender::new(Claim { term: 0, until })), peers: Arc::default(), confirm: None }
    }

    /// Sets a [`Self::manual`] leadership; `None` ends the term.
    pub fn set(&self, until: Option<Instant>) {
        self.claim.send_modify(|claim| {
            claim.term += u64::from(until.is_none());
            claim.until = until;
        });
    }

    /// Sets what the next renewals publish about other clusters. Nothing is written for it alone.
    pub fn publish(&self, peers: PeerReport) {
        self.peers.send_replace(peers);
    }

    /// The permit to write in Cloud Map; `None` if this replica may not write now. Renewals prolong it, and the end of the
    /// term ends it for good.
    pub fn permit(&self) -> Option<Permit> {
        let (claims, term) = (Arc::clone(&self.claim), self.claim.borrow().term);
        Permit::of_lease(move || {
            let claim = *claims.borrow();
            claim.until.filter(|_| claim.term == term)
        })
    }

    /// Until when this replica may write; `None` if it may not write now. Call this immediately before each write.
    pub fn is_leader_until(&self) -> Option<Instant> {
        self.claim.borrow().until.filter(|until| *until > Instant::now())
    }

    /// Whether this replica may write now.
    pub fn is_leader(&self) -> bool {
        self.is_leader_until().is_some()
    }

    /// Waits until this replica leads.
    pub async fn acquired(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.claim.subscribe().wait_for(|claim| claim.until.is_some_and(|until| until > Instant::now())).await;
    }

    /// Waits until the current term has ended, so another replica may have led since. A claim that ran out and may
    /// still be renewed does not end the term; nothing can be written meanwhile.
    pub async fn lost(&self) {
        let mut claims = self.claim.subscribe();
        let term = claims.borrow_and_update().term;
        let _ = claims.wait_for(|claim| claim.until.is_none() || claim.term != term).await;
    }

    /// Whether this replica leads according to a Lease that has just been read from the API server. This must be known
    /// before a new epoch of the ledger begins.
    ///
    /// # Errors
    /// The Lease could not be read.
    pub async fn confirm(&self) -> Result<bool, Error> {
        let Some(confirm) = &self.confirm else { return Ok(self.is_leader()) };
        let record = call(confirm.store.read()).await?;
        let held = record.is_some_and(|(record, _)| record.holder.as_deref() == Some(&confirm.identity));
        if !held && self.claim.borrow().until.is_some() {
            warn!("another replica holds the Lease; this replica stops writing");
            self.set(None);
        }
        Ok(held && self.is_leader())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;

    use super::*;
    use cloudmap::{ErrorKind, Operation};

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_permit_lasts_through_renewals_and_ends_with_the_term() {
        let held = || Some(Instant::now() + 10 * SECOND);
        let leadership = Leadership::manual(held());
        let (permit, operation) = (leadership.permit().unwrap(), Operation::RegisterInstance);
        sleep(8 * SECOND).await;
        leadership.set(held());
        sleep(8 * SECOND).await;
        assert_eq!(permit.check(operation), Ok(()));
        sleep(3 * SECOND).await;
        assert_eq!(permit.check(operation).unwrap_err().kind, ErrorKind::NoPermit);
        assert!(leadership.permit().is_none());
        leadership.set(held());
        assert_eq!(permit.check(operation), Ok(()), "nobody else has led meanwhile");
        leadership.set(None);
        leadership.set(held());
        assert!(permit.check(operation).is_err(), "somebody else may have led meanwhile");
        assert!(leadership.permit().is_some());
    }
}
