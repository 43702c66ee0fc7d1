//! All sizes and times of the ledger in one place, so that a simulation can scale them.

use std::time::Duration;

/// Sizes. The defaults follow from Cloud Map: 30 attributes, 1,024 characters a value, 5,000 characters in all, 1,000
/// instances a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a record's value; a larger one is refused on the object that caused it.
    pub value_bytes: usize,
    /// Packed bytes of a page: (5,000 - 90 characters for `f`, keys and what may come) x 3/4.
    pub page_bytes: usize,
    /// Bytes of a head, delta included: (5,000 - 250 characters for version, checksum, a signature) x 3/4.
    pub head_bytes: usize,
    /// Packed bytes of a head's delta.
    pub delta_bytes: usize,
    /// Entries of an index page: 16 bytes of digest each, which do not compress, and a few more.
    pub index_entries: usize,
    /// Live pages of one service; more make another shard.
    pub live_pages: usize,
    /// Live pages, garbage and pending writes of one service. Cloud Map takes 1,000 instances, and a read of 1,000
    /// counts as partial.
    pub pages: usize,
    /// Page writes in flight.
    pub flush_concurrency: usize,
    /// Deletions in flight per round of garbage collection.
    pub garbage_batch: usize,
    /// Deflate level; 0 stores.
    pub compression: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            value_bytes: 2_500,
            page_bytes: 3_650,
            head_bytes: 3_550,
            delta_bytes: 3_200,
            index_entries: 160,
            live_pages: 400,
            pages: 900,
            flush_concurrency: 16,
            garbage_batch: 50,
            compression: 6,
        }
    }
}

/// What the ledger of one cluster may come to. Beyond it nothing of the cluster is read, and no cluster writes it: what is in the
/// registry was written by others, and a reader's memory is its own. 6,000 services of ten pods are 18,000 pairs, some 400 pages and
/// 6 MB.
pub const MAX_PAGES: usize = 4_096;
/// Pairs of a state. With them names are bounded, and endpoints, of which a chunk has at most 16.
pub const MAX_PAIRS: usize = 65_536;
/// Bytes of a state: keys and values, unpacked.
pub const MAX_STATE_BYTES: usize = 32 << 20;
/// Reads of one attempt to read a root: each of 64 shards as a whole, and then some by flush.
pub const MAX_READS: usize = 192;
/// Other clusters that a cluster knows, those that left not counted. Cloud Map has room for 1,000 heads.
pub const MAX_CLUSTERS: usize = 1_000;
/// So far above the record an epoch of the own head is nobody's: every real one was stored there first, and a record that was lost
/// is not lost for longer than this many elections.
pub const MAX_EPOCH_LEAP: u64 = 1 << 20;

/// Times. The names of the rules (W3, R7, ...) are those of the module documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// One read of all heads (R1).
    pub tick: Duration,
    /// A publication at least this often (W3).
    pub heartbeat: Duration,
    /// A cluster whose head does not advance for this long is stale (R7). Written to the head, for people.
    pub lease: Duration,
    /// A changed state is flushed when it was quiet for this long (W5).
    pub quiet: Duration,
    /// Between the end of a flush and the next, on the mean (W5).
    pub flush_gap: Duration,
    /// A flush that comes no further for this long is given up (W5): no page was written or seen.
    pub flush_limit: Duration,
    /// A page whose write takes longer is looked for: it may be there although its operation is not known to be done (W5).
    pub overdue: Duration,
    /// An operation that takes longer is of unknown outcome; what was written before that may still come (W9).
    pub operation: Duration,
    /// A page that nothing refers to for this long is collected (W7).
    pub garbage: Duration,
    /// Between rounds of garbage collection while there is garbage, and while there is none.
    pub collect: Duration,
    pub collect_idle: Duration,
    /// Between audits, and how long one may fail before everything is written anew (W8).
    pub audit: Duration,
    pub audit_limit: Duration,
    /// How long an own root may be unverifiable before the leader starts from nothing (W2).
    pub verify_limit: Duration,
    /// A head of the own cluster that the record does not know must not advance for this long before this leader is elected
    /// (W1). Longer than a heartbeat and what a slow operation takes.
    pub stranger: Duration,
    /// A cluster that left is forgotten when its head is not there for this long (R6).
    pub forget: Duration,
    /// Between attempts to claim an id that another cluster owns (W0).
    pub refused_retry: Duration,
    /// How long the new head was read back before the old id's head is marked as left (W9).
    pub handover: Duration,
    /// Between assertions of `left` (W9).
    pub leave_retry: Duration,
    /// Nothing at or above the accepted position for this long: a lower one that advances counts (R3).
    pub escape: Duration,
    /// Back-off of failed verifications (R5).
    pub backoff_min: Duration,
    pub backoff_max: Duration,
    /// A step of the monotonic clock between two reads counts at most this much (R1, R7: paused processes). No less than two
    /// ticks, or time would pass more slowly than it does.
    pub max_step: Duration,
    /// Between re-reads of the record, for its `leaving` flag.
    pub record_poll: Duration,
    /// Between re-checks of a remote's creator that did not match (R2).
    pub creator_retry: Duration,
    /// First and longest wait after a failed head operation, page write or store of the record.
    pub retry_min: Duration,
    pub retry_max: Duration,
    /// Between reads that wait for written pages to be visible (W5).
    pub see: Duration,
}

impl Timing {
    /// Another tick than the default, whose steps count in full (with those of the jitter, and of reads that take time).
    #[must_use]
    pub fn with_tick(self, tick: Duration) -> Self {
        Self { tick, max_step: self.max_step.max(tick * 2), ..self }
    }
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            tick: seconds(1),
            heartbeat: seconds(20),
            lease: seconds(300),
            quiet: seconds(60),
            flush_gap: seconds(5),
            flush_limit: seconds(120),
            overdue: seconds(10),
            operation: seconds(60),
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
