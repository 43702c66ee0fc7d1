//! Whether instances may be written.

use std::sync::Arc;

use tokio::sync::watch;

use cloudmap::Permit;
use cluster::Leadership;
use ledger::driver::Status;

/// What gives this replica the right to write instances: it leads and, where there is a ledger, owns the id of its cluster.
#[derive(Debug, Clone)]
pub struct Authority {
    /// Whether this replica leads.
    pub leadership: Leadership,
    /// The status of the ledger. `None` if this cluster is in no ClusterSet.
    pub ledger: Option<watch::Receiver<Arc<Status>>>,
}

impl Authority {
    /// The permit for a write. It is asked for immediately before each, and ends with the [term](Self::term). `None`: this
    /// replica must not write now.
    pub fn permit(&self) -> Option<Permit> {
        let (permit, term) = self.leadership.permit().zip(self.term())?;
        let ledger = self.clone();
        Some(permit.only_while(move || ledger.term() == Some(term)))
    }

    /// The term. While it is the same, nobody else wrote in the name of this cluster, even if this replica could not write
    /// for a while. `None`: somebody else may write.
    pub fn term(&self) -> Option<u64> {
        // Without a ledger the task ends with the term of its replica.
        self.ledger.as_ref().map_or(Some(0), |status| status.borrow().owned_epoch())
    }
}
