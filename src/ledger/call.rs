//! The calls that the state machines request, and their outcomes. The machines never wait: a call goes out with an id,
//! and its outcome comes back with the same id, or never.

use std::{sync::Arc, time::Duration};

use super::{
    RegistryName,
    head::Head,
    page::{PageId, StoredPage},
    trust::Announced,
};
use crate::record::{Member, Record, ResourceVersion};

/// Identifies a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A call that a state machine requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Create the own service `exports-<shard>.<own id>` with the own UID as its creator (W0).
    Claim {
        /// The shard.
        shard: u32,
    },
    /// Read the Lease again from the API server, to see whether it is still ours (W1).
    ConfirmLease,
    /// Load the record.
    LoadRecord,
    /// Store the record.
    StoreRecord {
        /// The new content.
        record: Box<Record>,
        /// The version to replace.
        expected: ResourceVersion,
    },
    /// Discover the pages of a cluster's shard: those of one flush, or all.
    ReadPages {
        /// Id of the cluster.
        cluster: Arc<str>,
        /// The shard.
        shard: u32,
        /// The flush; `None` for all pages.
        flush: Option<Arc<str>>,
    },
    /// Upsert a head, and wait for the operation.
    PutHead {
        /// The head.
        head: Arc<Head>,
        /// Whether it says nothing new, so that nobody waits for the outcome.
        repeats: bool,
    },
    /// Upsert an own page, and wait for the operation.
    PutPage {
        /// The shard.
        shard: u32,
        /// The page.
        page: Arc<StoredPage>,
    },
    /// Deregister a page of a cluster id that is or was ours. A page that is gone counts as a success.
    DeletePage {
        /// Id of the cluster.
        cluster: Arc<str>,
        /// The shard.
        shard: u32,
        /// Id of the page.
        page: PageId,
    },
    /// Publish `left` in the ledger of a former ClusterSet, and delete this cluster's pages there (W9).
    Depart {
        /// The former membership.
        from: Member,
    },
    /// Delete the services and the head of a former id of this cluster. The id has left, and its services are empty (W9).
    RemoveFormer {
        /// The former id.
        cluster: Arc<str>,
    },
    /// Announce the own key in `exports-0.<own id>`, unless it is there (R9).
    Announce,
    /// Upsert a copy of the own head in `exports-0.<own id>`, and wait for the operation (W3).
    PutCopy {
        /// The head.
        head: Arc<Head>,
    },
    /// Read the copy of a cluster's head (R9).
    Copy {
        /// Id of the cluster.
        cluster: Arc<str>,
    },
    /// Find the key that a cluster announces (R9).
    Announced {
        /// Id of the cluster.
        cluster: Arc<str>,
        /// UID of the cluster.
        uid: Arc<str>,
    },
    /// Find the creator of `exports-0.<cluster>` (R2).
    Creator {
        /// Id of the cluster.
        cluster: Arc<str>,
    },
    /// A call that reads, in another registry than the home.
    Elsewhere {
        /// The registry.
        registry: RegistryName,
        /// The call.
        call: Box<Self>,
    },
}

impl Call {
    /// Whether the call changes anything, so that leadership must be checked immediately before it.
    pub const fn writes(&self) -> bool {
        match self {
            Self::Claim { .. }
            | Self::StoreRecord { .. }
            | Self::PutHead { .. }
            | Self::PutPage { .. }
            | Self::Depart { .. }
            | Self::RemoveFormer { .. }
            | Self::Announce
            | Self::PutCopy { .. }
            | Self::DeletePage { .. } => true,
            Self::ConfirmLease
            | Self::LoadRecord
            | Self::ReadPages { .. }
            | Self::Announced { .. }
            | Self::Copy { .. }
            | Self::Elsewhere { .. }
            | Self::Creator { .. } => false,
        }
    }
}

/// The pages that a discovery returned.
#[derive(Debug, Clone, Default)]
pub struct Pages {
    /// The pages.
    pub pages: Vec<Arc<StoredPage>>,
    /// Exactly 1,000 rows were returned, so there may be more.
    pub truncated: bool,
}

/// The outcome of a call.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// The service is ours. If this call `created` it, nothing can be in it.
    Claimed {
        /// Whether this call created it.
        created: bool,
        /// One more than the shard of the last own service.
        shards: u32,
    },
    /// The service belongs to another cluster.
    Taken {
        /// UID of the owner.
        owner: String,
    },
    /// The service is ours, but this cluster replaced the key with which its leader would write: the text says what to do. It
    /// does not pass by itself.
    OldKey(String),
    /// Whether the Lease is still ours.
    Lease {
        /// Whether it is.
        held: bool,
    },
    /// The record was loaded.
    Loaded {
        /// Its content.
        record: Box<Record>,
        /// Its version.
        version: ResourceVersion,
    },
    /// The record was stored.
    Stored {
        /// Its new version.
        version: ResourceVersion,
    },
    /// Another process changed the record in the meantime.
    Conflict,
    /// The pages that were read; none if the service does not exist.
    Pages(Arc<Pages>),
    /// The write took effect in the control plane.
    Done,
    /// Who created the service, and when; `None` if there is no such service, or it has no creator.
    Creator(Option<Created>),
    /// The copy of a head; `None` if there is none that can be read.
    Copy(Option<Arc<Head>>),
    /// The key that was announced; `None` if there is none that can be read.
    Announced(Option<Announced>),
    /// The call failed.
    Failed(Failure),
}

/// Whose a service is, as AWS says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// UID of the cluster that created it.
    pub by: String,
    /// When, in seconds since 1970.
    pub at: i64,
}

/// Why a call failed. Nobody asks whether it took effect, or may still do so: nothing is assumed about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The reason, as a text.
    pub message: String,
}

/// The calls to make, and when the machine wants to be polled again.
#[derive(Debug, Default)]
pub struct Outbox {
    issued: u64,
    pub(super) calls: Vec<(CallId, Call)>,
    /// Calls whose outcome nobody waits for any more.
    pub(super) cancelled: Vec<CallId>,
    pub(super) wake: Option<Duration>,
}

impl Outbox {
    pub(super) fn call(&mut self, call: Call) -> CallId {
        self.issued += 1;
        let id = CallId(self.issued);
        self.calls.push((id, call));
        id
    }

    /// The outcome of this call is not needed any more.
    pub(super) fn cancel(&mut self, call: CallId) {
        self.cancelled.push(call);
    }

    pub(super) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// Numbers that never repeat, from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Ids(u64);

impl Ids {
    /// The numbers of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
}
