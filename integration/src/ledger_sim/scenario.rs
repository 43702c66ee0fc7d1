//! The scenarios: which faults come, and how often. Times are seconds.

#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    /// No faults at all.
    pub calm: bool,
    /// Probability of a failed operation, an unknown outcome, a throttled call.
    pub fail: f64,
    pub unknown: f64,
    pub throttle: f64,
    /// Probability and length of a stall between the check of leadership and the call.
    pub gap: f64,
    pub gap_max: f64,
    /// Replica lag and operation latency.
    pub lag: f64,
    pub latency: f64,
    /// Probability of a slow operation (5 to 40 s), and of a head operation that hangs (40 to 150 s).
    pub slow: f64,
    pub stuck: f64,
    /// Mean time between changes, and the probability that one changes more than a delta holds.
    pub change: f64,
    pub burst: f64,
    /// Mean times between faults of one process or cluster.
    pub crash: f64,
    pub pause: f64,
    pub lease_deleted: f64,
    pub record_deleted: Option<f64>,
    pub outages: Option<usize>,
    pub ttl: bool,
    pub same_id: bool,
    /// A cluster is restored from a backup while the original goes on, under the same id or another one.
    pub twin: Option<&'static str>,
    pub change_id: bool,
    pub leave: bool,
    /// The controller goes on running after it left.
    pub stays: bool,
    pub vandal: bool,
    pub restore: bool,
    pub forge: bool,
    /// Clusters sign, and believe the first key that they see of each other.
    pub signed: bool,
    /// Mean time between writes of heads and keys by somebody who has no cluster's key.
    pub mallory: Option<f64>,
    /// Probability that leaders talk to each other, and mean times between cuts of connections and divisions.
    pub stream: f64,
    pub cut: f64,
    pub divide: f64,
    /// Clusters join with `--join=approve`, late and at the same time, and a stranger wants to join.
    pub approvals: bool,
    /// Small shards.
    pub shards: bool,
    /// Probability that a read returns an arbitrary part and says that it was truncated.
    pub truncate: f64,
    /// Nobody may look at operations: they have their effects, but never a result.
    pub unobserved: bool,
    /// The Kubernetes API fails, slows down, and loses answers.
    pub kube: bool,
    /// Convergence after the faults stop.
    pub converge: f64,
    /// What garbage collection and audits need after that: where operations take most of a minute, a new tree does as well.
    pub aftermath: f64,
}

impl Scenario {
    /// Whether there may be a reason to go back to a lower position of a cluster (R3). An attacker is believed while a replica
    /// of discovery does not show the true key yet.
    pub(super) fn gives_positions_up(&self) -> bool {
        let forged = self.forge || self.mallory.is_some();
        self.restore || forged || self.same_id || self.twin.is_some() || self.record_deleted.is_some()
    }
}

const BASE: Scenario = Scenario {
    name: "base",
    calm: false,
    fail: 0.03,
    unknown: 0.03,
    throttle: 0.02,
    gap: 0.002,
    gap_max: 90.0,
    lag: 10.0,
    latency: 5.0,
    slow: 0.0,
    stuck: 0.0,
    change: 7.0,
    burst: 0.08,
    crash: 130.0,
    pause: 110.0,
    lease_deleted: 200.0,
    record_deleted: None,
    outages: None,
    ttl: false,
    same_id: false,
    twin: None,
    change_id: false,
    leave: false,
    stays: false,
    vandal: false,
    restore: false,
    forge: false,
    signed: true,
    mallory: None,
    stream: 0.5,
    cut: 60.0,
    divide: 90.0,
    approvals: false,
    shards: false,
    truncate: 0.0,
    unobserved: false,
    kube: false,
    converge: 150.0,
    aftermath: 180.0,
};

const CALM: Scenario = Scenario { name: "calm", calm: true, fail: 0.0, unknown: 0.0, throttle: 0.0, gap: 0.0, ..BASE };

/// Changes are rare, and so are faults: leaders that are connected read the heads rarely for most of the time.
const REST: Scenario = Scenario {
    stream: 1.0,
    change: 60.0,
    crash: 300.0,
    pause: 250.0,
    lease_deleted: 500.0,
    cut: 150.0,
    divide: 200.0,
    ..BASE
};

pub const SCENARIOS: &[Scenario] = &[
    BASE,
    CALM,
    Scenario { name: "outage", outages: Some(3), ttl: true, ..BASE },
    Scenario { name: "lease", lease_deleted: 60.0, pause: 50.0, crash: 150.0, gap: 0.01, gap_max: 120.0, ..BASE },
    Scenario { name: "churn", change: 3.0, burst: 0.25, fail: 0.1, unknown: 0.06, converge: 200.0, ..BASE },
    Scenario { name: "same-id", same_id: true, ..BASE },
    Scenario { name: "twin", twin: Some("a"), converge: 250.0, ..BASE },
    Scenario { name: "twin-renamed", twin: Some("t"), converge: 250.0, ..BASE },
    Scenario { name: "change-id", change_id: true, change: 10.0, converge: 200.0, ..BASE },
    Scenario { name: "leave", leave: true, ..BASE },
    Scenario { name: "leave-slow", leave: true, slow: 0.1, gap: 0.0, converge: 200.0, ..BASE },
    Scenario { name: "leave-running", leave: true, stays: true, ..BASE },
    Scenario { name: "vandal", vandal: true, converge: 300.0, ..BASE },
    Scenario { name: "restore", restore: true, crash: 100.0, converge: 300.0, ..BASE },
    Scenario { name: "record-deleted", record_deleted: Some(150.0), lease_deleted: 150.0, converge: 250.0, ..BASE },
    Scenario { name: "stuck", stuck: 0.04, converge: 250.0, pause: 400.0, crash: 400.0, ..BASE },
    Scenario { name: "calm-steady", burst: 0.0, change: 20.0, ..CALM },
    Scenario { name: "calm-busy", burst: 0.0, change: 3.0, ..CALM },
    Scenario { name: "calm-fresh", burst: 0.0, change: 20.0, lag: 0.1, ..CALM },
    Scenario { name: "forge", forge: true, signed: false, converge: 290.0, ..BASE },
    Scenario {
        name: "vandal-churn",
        vandal: true,
        change: 3.0,
        burst: 0.25,
        fail: 0.1,
        unknown: 0.06,
        crash: 60.0,
        converge: 300.0,
        ..BASE
    },
    Scenario { name: "slow", slow: 0.06, lease_deleted: 150.0, converge: 200.0, ..BASE },
    Scenario { name: "shards", shards: true, change: 3.0, burst: 0.25, ..BASE },
    Scenario { name: "truncated", truncate: 0.15, shards: true, ..BASE },
    Scenario { name: "kube", kube: true, converge: 200.0, ..BASE },
    Scenario { name: "unobserved", unobserved: true, gap: 0.0, converge: 250.0, ..BASE },
    Scenario { name: "crawl", latency: 45.0, burst: 0.25, change: 20.0, converge: 400.0, aftermath: 700.0, ..BASE },
    Scenario { name: "open", signed: false, ..BASE },
    Scenario { name: "mallory", mallory: Some(12.0), converge: 290.0, ..BASE },
    Scenario { name: "mallory-hides", mallory: Some(1.5), converge: 290.0, ..BASE },
    Scenario { name: "mallory-leave", mallory: Some(12.0), leave: true, converge: 290.0, ..BASE },
    Scenario {
        name: "mallory-calm",
        mallory: Some(12.0),
        converge: 290.0,
        calm: false,
        fail: 0.0,
        unknown: 0.0,
        throttle: 0.0,
        gap: 0.0,
        ..BASE
    },
    Scenario { name: "stream", stream: 1.0, ..BASE },
    Scenario { name: "stream-calm", stream: 1.0, ..CALM },
    Scenario { name: "stream-cut", stream: 1.0, cut: 4.0, change: 2.0, burst: 0.3, ..BASE },
    Scenario { name: "stream-divided", stream: 1.0, divide: 12.0, change: 4.0, ..BASE },
    Scenario { name: "stream-paused", stream: 1.0, pause: 30.0, crash: 60.0, gap: 0.01, ..BASE },
    Scenario { name: "stream-killed", stream: 1.0, crash: 40.0, change: 3.0, burst: 0.25, converge: 200.0, ..BASE },
    Scenario { name: "stream-denied", stream: 1.0, outages: Some(5), crash: 80.0, ttl: true, ..BASE },
    Scenario { name: "stream-restore", stream: 1.0, restore: true, crash: 60.0, converge: 300.0, ..BASE },
    Scenario {
        name: "stream-record",
        stream: 1.0,
        record_deleted: Some(100.0),
        lease_deleted: 100.0,
        converge: 250.0,
        ..BASE
    },
    Scenario {
        name: "stream-crawl",
        stream: 1.0,
        latency: 45.0,
        change: 5.0,
        converge: 400.0,
        aftermath: 700.0,
        ..BASE
    },
    Scenario { name: "stream-leave", stream: 1.0, leave: true, ..BASE },
    Scenario { name: "stream-id", stream: 1.0, change_id: true, change: 5.0, converge: 200.0, ..BASE },
    Scenario { name: "stream-mallory", stream: 1.0, mallory: Some(6.0), converge: 290.0, ..BASE },
    Scenario { name: "stream-rest", ..REST },
    Scenario { name: "stream-rest-calm", stream: 1.0, change: 40.0, lag: 1.0, ..CALM },
    Scenario { name: "stream-rest-denied", outages: Some(4), ttl: true, ..REST },
    Scenario { name: "stream-rest-leave", leave: true, ..REST },
    Scenario { name: "stream-rest-running", leave: true, stays: true, ..REST },
    Scenario { name: "stream-rest-id", change_id: true, converge: 200.0, ..REST },
    Scenario { name: "stream-rest-twin", twin: Some("a"), converge: 250.0, ..REST },
    Scenario { name: "stream-rest-twin-renamed", twin: Some("t"), converge: 250.0, ..REST },
    Scenario { name: "stream-rest-restore", restore: true, converge: 300.0, ..REST },
    Scenario { name: "stream-rest-record", record_deleted: Some(250.0), converge: 250.0, ..REST },
    Scenario { name: "stream-rest-vandal", vandal: true, converge: 300.0, ..REST },
    Scenario { name: "stream-rest-mallory", mallory: Some(40.0), converge: 290.0, ..REST },
    Scenario { name: "approvals", approvals: true, converge: 250.0, ..BASE },
    Scenario { name: "unread", outages: Some(6), crash: 40.0, lease_deleted: 90.0, ..BASE },
];
