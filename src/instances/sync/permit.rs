//! Whether instances may be written.

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};

use cluster::Leadership;
use ledger::driver::Status;

/// The right of this replica to write instances: it leads and, where there is a ledger, owns the id of its cluster.
#[derive(Debug, Clone)]
pub struct Permit {
    /// Whether this replica leads.
    pub leadership: Leadership,
    /// The status of the ledger. `None` if this cluster is in no ClusterSet.
    pub ledger: Option<watch::Receiver<Arc<Status>>>,
}

impl Permit {
    /// Until when this replica may write. It is asked immediately before each write, which is given up at that time. `None`:
    /// it must not write now.
    pub fn until(&self) -> Option<Instant> {
        self.leadership.is_leader_until().filter(|_| self.term().is_some())
    }

    /// The term. While it is the same, nobody else wrote in the name of this cluster, even if this replica could not write
    /// for a while. `None`: somebody else may write.
    pub fn term(&self) -> Option<u64> {
        // Without a ledger the task ends with the term of its replica.
        self.ledger.as_ref().map_or(Some(0), |status| status.borrow().owned_epoch())
    }
}
