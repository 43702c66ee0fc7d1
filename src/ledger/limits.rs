//! All sizes and times of the ledger in one place, so that a simulation can scale them.

use std::time::Duration;

use cloudmap::LATEST_EFFECT;

/// Sizes. The defaults follow from Cloud Map: 30 attributes, 1,024 characters per value, 5,000 characters in total,
/// 1,000 instances per service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a record's value. A larger one is refused on the object that caused it.
    pub value_bytes: usize,
    /// Packed bytes of a page: (5,000 - 90 characters for `f`, names and future attributes) x 3/4.
    pub page_bytes: usize,
    /// Bytes of a head with its delta: (5,000 - 250 characters for version, checksum and a signature) x 3/4.
    pub head_bytes: usize,
    /// Packed bytes of a head's delta.
    pub delta_bytes: usize,
    /// Entries of an index page: 16 bytes of digest each, which do not compress, and a few more.
    pub index_entries: usize,
    /// Run indexes with few pages that a head names. Where something changes all the time an index has nine, and the head of
    /// a large state would soon have no room for anything else.
    pub indexes: usize,
    /// Pages of a tree in one service. More need another shard. While a tree is replaced there are two of them beside the runs,
    /// and the garbage of two minutes.
    pub live_pages: usize,
    /// Pages of changes beside which a tree is worth its pages, however small it is.
    pub runs: usize,
    /// Live pages, garbage and pending writes of one service. Cloud Map allows 1,000 instances, and a read of 1,000
    /// counts as partial.
    pub pages: usize,
    /// Pages that a root names, itself or by its indexes.
    pub root_pages: usize,
    /// Page writes in flight.
    pub flush_concurrency: usize,
    /// Deletions in flight per round of garbage collection.
    pub garbage_batch: usize,
    /// Deflate level; 0 stores.
    pub compression: u32,
    /// Bytes that the states and pages of all other clusters may take in memory, together.
    pub remote_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            value_bytes: 2_500,
            page_bytes: 3_650,
            head_bytes: 3_550,
            delta_bytes: 3_200,
            index_entries: 160,
            indexes: 16,
            live_pages: 200,
            runs: 128,
            pages: 900,
            root_pages: MAX_PAGES,
            flush_concurrency: 16,
            garbage_batch: 100,
            compression: 6,
            remote_bytes: REMOTE_MEMORY_MIB as usize * MIB,
        }
    }
}

/// Bytes of a MiB.
pub const MIB: usize = 1 << 20;
/// The default of [`Limits::remote_bytes`] in MiB: half of the memory limit in the manifests.
pub const REMOTE_MEMORY_MIB: u32 = 128;
/// Maximum number of pages of one cluster's ledger. No cluster writes more than this and the following limits allow,
/// and readers read no more. Whatever is larger was written by others, and readers must protect their memory from it.
/// 6,000 services of ten pods are 18,000 pairs, about 400 pages and 6 MB.
pub const MAX_PAGES: usize = 4_096;
/// Maximum number of pairs of a state. This also limits names, and endpoints, of which a chunk has at most 16.
pub const MAX_PAIRS: usize = 65_536;
/// Maximum size of a state in bytes: keys and values, unpacked.
pub const MAX_STATE_BYTES: usize = 32 << 20;
/// Maximum size of all changes in a state's runs in bytes: keys and values, unpacked. They are as large as the state when a new
/// tree is begun, and grow while it is written.
pub const MAX_RUN_BYTES: usize = 2 * MAX_STATE_BYTES;
/// Maximum number of reads in one attempt to read a root: each of 64 shards as a whole, and some by flush.
pub const MAX_READS: usize = 192;
/// Maximum number of other clusters that a cluster knows, without those that left. Cloud Map has room for 1,000 heads.
pub const MAX_CLUSTERS: usize = 1_000;
/// An epoch of the own head that is this far above the record was not written by this cluster. Every real epoch was
/// stored in the record first, and a lost record is restored within far fewer elections.
pub const MAX_EPOCH_LEAP: u64 = 1 << 20;

/// A clock that is further ahead than this is wrong and shows no time: AWS refuses signatures that are more than five
/// minutes off.
pub const MAX_SKEW: Duration = Duration::from_mins(10);

/// Times. The rules (W3, R7, ...) are those of the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Time between two reads of all heads (R1).
    pub tick: Duration,
    /// The same while leaders are connected and the ledger is at rest (S10). With a heartbeat, an operation and the lag of
    /// discovery it stays below [`Self::silence`].
    pub tick_at_rest: Duration,
    /// The same for [`Self::motion`] after a change in a cluster without a session (R1).
    pub tick_in_motion: Duration,
    /// For this long after such a change, more of them are likely (R1).
    pub motion: Duration,
    /// The ledger is not at rest before no claim changed for this long (S10). Claims ripen and change hands in this time.
    pub claims_at_rest: Duration,
    /// Maximum time between two publications (W3).
    pub heartbeat: Duration,
    /// A cluster whose head does not advance for this long is stale (R7). Heads contain this time, for people.
    pub lease: Duration,
    /// A changed state is flushed when it did not change for this long (W5).
    pub quiet: Duration,
    /// Average time between the end of a flush and the next one (W5).
    pub flush_gap: Duration,
    /// Time between two listings of an id's pages that are to be deleted (W9).
    pub sweep: Duration,
    /// A flush without progress for this long is abandoned (W5): no page was written or seen.
    pub flush_limit: Duration,
    /// A page whose write takes longer is looked for: it may exist although its operation is not known to be done (W5).
    pub overdue: Duration,
    /// An operation that takes longer has an unknown outcome. An earlier write may still take effect until then (W9).
    pub operation: Duration,
    /// A page that nothing refers to for this long is deleted (W7).
    pub garbage: Duration,
    /// Time between two rounds of garbage collection while there is garbage.
    pub collect: Duration,
    /// The same while there is none.
    pub collect_idle: Duration,
    /// Time between two audits (W8).
    pub audit: Duration,
    /// How long an audit may fail before everything is written again (W8).
    pub audit_limit: Duration,
    /// How long an own root may not verify before the leader starts from nothing (W2).
    pub verify_limit: Duration,
    /// A head of this cluster that the record does not know must not advance for this long before this leader is
    /// elected (W1). It is longer than a heartbeat and a slow operation together.
    pub stranger: Duration,
    /// A cluster that left is forgotten when its head is absent for this long (R6).
    pub forget: Duration,
    /// Time between two attempts to claim an id that another cluster owns, or whose ledger cannot be read (W0).
    pub refused_retry: Duration,
    /// How long the new head must have been read back before the old id's head is marked as left (W9).
    pub handover: Duration,
    /// Time between two writes of `left` (W9).
    pub leave_retry: Duration,
    /// If nothing at or above the accepted position is seen for this long, a lower one that advances counts (R3).
    pub escape: Duration,
    /// First pause after a failed verification (R5).
    pub backoff_min: Duration,
    /// Longest pause after failed verifications (R5).
    pub backoff_max: Duration,
    /// Maximum step of the monotonic clock between two reads that counts (R1, R7: paused processes). It is at least two
    /// ticks; otherwise time would pass too slowly.
    pub max_step: Duration,
    /// Time between two reads of the record, for its `leaving` flag.
    pub record_poll: Duration,
    /// Time between two checks of another cluster's creator that did not match (R2).
    pub creator_retry: Duration,
    /// First pause after a failed head operation, page write or store of the record.
    pub retry_min: Duration,
    /// Longest pause after these failures.
    pub retry_max: Duration,
    /// Time between two reads that wait for written pages to be visible (W5).
    pub see: Duration,
}

impl Timing {
    /// A head that does not advance for this long, two heartbeats and a half, is not being written.
    pub fn silence(&self) -> Duration {
        self.heartbeat * 5 / 2
    }

    /// The times for another tick than the default. Steps of that tick count in full, even with jitter and slow reads.
    #[must_use]
    pub fn with_tick(self, tick: Duration) -> Self {
        Self {
            tick,
            tick_at_rest: self.tick_at_rest.max(tick),
            tick_in_motion: tick / 2,
            max_step: self.max_step.max(tick * 2),
            ..self
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            tick: seconds(1),
            tick_at_rest: seconds(12),
            tick_in_motion: Duration::from_millis(500),
            motion: seconds(60),
            claims_at_rest: seconds(60),
            heartbeat: seconds(20),
            lease: seconds(300),
            quiet: seconds(60),
            flush_gap: Duration::from_millis(500),
            sweep: seconds(5),
            flush_limit: seconds(120),
            overdue: seconds(10),
            operation: LATEST_EFFECT,
            garbage: seconds(120),
            collect: seconds(10),
            collect_idle: seconds(60),
            audit: seconds(300),
            audit_limit: seconds(60),
            verify_limit: seconds(15),
            stranger: seconds(30),
            forget: seconds(600),
            refused_retry: seconds(30),
            handover: seconds(30),
            leave_retry: seconds(3),
            escape: seconds(45),
            backoff_min: seconds(1),
            backoff_max: seconds(4),
            max_step: seconds(3),
            record_poll: seconds(5),
            creator_retry: seconds(30),
            retry_min: seconds(1),
            retry_max: seconds(8),
            see: Duration::from_millis(500),
        }
    }
}
