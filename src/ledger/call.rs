//! What the state machines ask for and what comes of it. They never wait: a call goes out with an id, its outcome
//! comes back with the same id, or never.

use std::{sync::Arc, time::Duration};

use super::{
    head::Head,
    page::{PageId, StoredPage},
    record::{Member, Record, Version},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

#[derive(Debug, Clone, PartialEq)]
pub enum Call {
    /// Create the own service `exports-<shard>.<own id>` with the own UID as its creator (W0).
    Claim {
        shard: u32,
    },
    /// Read the Lease again from the API server: is it still ours (W1)?
    ConfirmLease,
    LoadRecord,
    StoreRecord {
        record: Record,
        expected: Version,
    },
    /// Discover the pages of a cluster's shard, of one flush only or all.
    ReadPages {
        cluster: Arc<str>,
        shard: u32,
        flush: Option<Arc<str>>,
    },
    /// Upsert a head, and wait for the operation.
    PutHead {
        head: Arc<Head>,
    },
    /// Upsert an own page, and wait for the operation.
    PutPage {
        shard: u32,
        page: Arc<StoredPage>,
    },
    /// Deregister a page of a cluster id that is or was ours. A page that is gone is a success.
    DeletePage {
        cluster: Arc<str>,
        shard: u32,
        page: PageId,
    },
    /// Say `left` in the ledger of a ClusterSet that this cluster was a member of, and delete its pages there (W9).
    Depart {
        from: Member,
    },
    /// Who created `exports-0.<cluster>` (R2)?
    Creator {
        cluster: Arc<str>,
    },
}

impl Call {
    /// Whether the call changes anything, so that leadership is checked immediately before it.
    pub const fn writes(&self) -> bool {
        match self {
            Self::Claim { .. }
            | Self::StoreRecord { .. }
            | Self::PutHead { .. }
            | Self::PutPage { .. }
            | Self::Depart { .. }
            | Self::DeletePage { .. } => true,
            Self::ConfirmLease | Self::LoadRecord | Self::ReadPages { .. } | Self::Creator { .. } => false,
        }
    }
}

/// The pages that a discovery returned.
#[derive(Debug, Clone, Default)]
pub struct Pages {
    pub pages: Vec<Arc<StoredPage>>,
    /// Exactly 1,000 rows: there may be more.
    pub truncated: bool,
}

#[derive(Debug, Clone)]
pub enum Outcome {
    /// The service is ours. `created`: by this very call, so there can be nothing in it. `shards`: how many own
    /// services there are.
    Claimed {
        created: bool,
        shards: u32,
    },
    /// The service is another cluster's.
    Taken {
        owner: String,
    },
    Lease {
        held: bool,
    },
    Loaded {
        record: Record,
        version: Version,
    },
    Stored {
        version: Version,
    },
    Conflict,
    Pages(Arc<Pages>),
    /// The service whose pages were to be read does not exist.
    Absent,
    /// The write took effect, as far as the control plane is concerned.
    Done,
    /// `None`: there is no such service, or nobody signed it.
    Creator(Option<String>),
    Failed(Failure),
}

/// Why a call failed, in words. After [`Failure::uncertain`] ones the effect may still come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    pub uncertain: bool,
}

/// Calls on their way out, and when the machine wants to be polled again.
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

    /// What the call was for is known without its outcome.
    pub(super) fn cancel(&mut self, call: CallId) {
        self.cancelled.push(call);
    }

    pub(super) fn wake_at(&mut self, at: Duration) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// Numbers that are never used twice, from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Ids(u64);

impl Ids {
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
