mod outages;
mod registry;
mod released;
mod yielding;

use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::{sync::oneshot, task::JoinHandle, time::sleep};

use super::*;
use cloudmap::{ErrorKind, Lane, Listings, Operation, Rates, fake::Fake};

/// A Lease that replicas share, with a connection for each replica.
#[derive(Clone, Default)]
struct Shared {
    lease: Arc<Mutex<Option<(Record, u64)>>>,
    cut_off: Arc<AtomicBool>,
    hanging: Arc<AtomicBool>,
    /// Requests are answered only at this time, as by a server that is stopped for a while.
    frozen_until: Arc<Mutex<Option<Instant>>>,
    /// Writes arrive, but their answers do not.
    deaf: Arc<AtomicBool>,
    /// Its watch shows when the Lease is released.
    watched: bool,
    reads: Arc<AtomicUsize>,
}

impl Shared {
    fn connection(&self) -> Self {
        Self { lease: Arc::clone(&self.lease), ..Self::default() }
    }

    /// What the Lease says.
    fn record(&self) -> Record {
        self.lease.lock().unwrap().clone().unwrap().0
    }

    /// Another replica offers to lead.
    fn offer(&self, bid: &str) {
        let mut lease = self.lease.lock().unwrap();
        let (record, version) = lease.as_mut().unwrap();
        record.bid = Some(bid.to_owned());
        *version += 1;
    }

    fn holder(&self) -> Option<String> {
        self.lease.lock().unwrap().as_ref().and_then(|(record, _)| record.holder.clone())
    }

    async fn reach(&self) -> Result<(), Error> {
        let frozen = *self.frozen_until.lock().unwrap();
        if let Some(until) = frozen {
            sleep_until(until).await;
        }
        if self.hanging.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.cut_off.load(Ordering::Relaxed) {
            return Err(Error::Timeout);
        }
        Ok(())
    }
}

#[async_trait]
impl LeaseStore for Shared {
    async fn read(&self) -> Result<Option<(Record, String)>, Error> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.reach().await?;
        let lease = self.lease.lock().unwrap().clone();
        Ok(lease.map(|(record, version)| (record, version.to_string())))
    }

    async fn write(&self, record: &Record, version: Option<&str>) -> Result<String, Error> {
        self.reach().await?;
        let next = {
            let mut lease = self.lease.lock().unwrap();
            let present = lease.as_ref().map(|(_, version)| version.to_string());
            if present.as_deref() != version {
                return Err(Error::Conflict);
            }
            let next = present.map_or(1, |version| version.parse::<u64>().unwrap() + 1);
            *lease = Some((record.clone(), next));
            next
        };
        if self.deaf.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(next.to_string())
    }

    async fn released(&self) {
        if !self.watched {
            std::future::pending::<()>().await;
        }
        let is_held = || self.lease.lock().unwrap().as_ref().is_some_and(|(record, _)| record.holder.is_some());
        while is_held() {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

struct Replica {
    leadership: Leadership,
    connection: Shared,
    trouble: Arc<AtomicBool>,
    /// AWS, as this replica reaches it.
    aws: Fake,
    cloudmap: Arc<dyn cloudmap::Read>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(shared: &Shared, identity: &str) -> Self {
        Self::start_over(shared.connection(), identity)
    }

    fn start_watching(shared: &Shared, identity: &str) -> Self {
        Self::start_over(Shared { watched: true, ..shared.connection() }, identity)
    }

    fn start_over(connection: Shared, identity: &str) -> Self {
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let troubled = Arc::new(AtomicBool::new(false));
        let trouble: Trouble = Arc::new({
            let troubled = Arc::clone(&troubled);
            move || troubled.load(Ordering::Relaxed).then(|| "a frozen cache".to_owned())
        });
        let aws = Fake::new();
        let calls = cloudmap::Metrics::new(&prometheus::Registry::new()).unwrap();
        let cloudmap = cloudmap::limited(aws.clone(), &Rates::default(), calls.clone());
        let registry = Some(AwsAccess::new(Listings::new(cloudmap.clone()), calls));
        let (elector, leadership) =
            Elector::new(connection.clone(), identity.to_owned(), Timing::default(), trouble, registry, metrics);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(elector.run(async {
            let _ = stopped.await;
        }));
        Self { leadership, connection, trouble: troubled, aws, cloudmap, stop: Some(stop), task }
    }

    /// The same, with calls of AWS while it leads.
    fn start_working(shared: &Shared, identity: &str) -> Self {
        let replica = Self::start(shared, identity);
        let (leadership, cloudmap) = (replica.leadership.clone(), Arc::clone(&replica.cloudmap));
        tokio::spawn(async move {
            loop {
                leadership.acquired().await;
                let _ = cloudmap.list_namespaces(Lane::Instances).await;
                seconds(8).await;
            }
        });
        replica
    }

    /// Lets AWS answer it, or lets it have no credentials.
    fn reach_aws(&self, reached: bool) {
        let mut registry = self.aws.registry();
        if reached {
            registry.failing.clear();
        } else {
            registry.failing.insert("".into(), ErrorKind::NoCredentials);
        }
    }

    /// Lets AWS deny it everything.
    fn deny(&self) {
        self.aws.registry().failing.insert("".into(), ErrorKind::AccessDenied);
    }

    /// How often it has called AWS.
    fn calls(&self) -> usize {
        self.aws.registry().count(Operation::ListNamespaces)
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.task.await.unwrap();
    }

    fn kill(self) {
        self.task.abort();
    }
}

/// Waits until this leadership no longer allows writes.
async fn stopped(leadership: &Leadership) {
    while leadership.is_leader() {
        sleep(Duration::from_millis(10)).await;
    }
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn one_of_two_leads_and_keeps_leading() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start(&shared, "b");
    for _ in 0..300 {
        seconds(1).await;
        assert!(first.leadership.is_leader() && !second.leadership.is_leader());
    }
    assert_eq!(shared.holder().as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn renewals_publish_with_whom_the_leader_is_connected_and_whom_it_refuses_until_it_no_longer_leads() {
    let shared = Shared::default();
    let published = || shared.lease.lock().unwrap().as_ref().map(|(record, _)| record.peers.clone());
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let report = PeerReport {
        connected: Some(["two".into()].into()),
        refused: [("three".into(), "too large".to_owned())].into(),
    };
    first.leadership.publish(report.clone());
    seconds(4).await;
    assert_eq!(published(), Some(report));
    first.stop().await;
    assert_eq!(published(), Some(PeerReport::default()));
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_replaced_only_after_the_lease_has_expired() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start(&shared, "b");
    seconds(10).await;
    first.kill();
    let died = Instant::now();
    second.leadership.acquired().await;
    let took = died.elapsed();
    let Timing { duration, renew_every, look_every, .. } = Timing::default();
    assert!(took + 2 * renew_every >= duration && took <= duration + 2 * look_every, "{took:?}");
    assert_eq!(shared.record().transitions, 1);
}

/// The leader loses the API server, by errors or by silence. It stops before another replica begins.
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_stops_before_another_starts() {
    for silent in [false, true] {
        let shared = Shared::default();
        let first = Replica::start(&shared, "a");
        first.leadership.acquired().await;
        let second = Replica::start(&shared, "b");
        seconds(10).await;
        if silent {
            first.connection.hanging.store(true, Ordering::Relaxed);
        } else {
            first.connection.cut_off.store(true, Ordering::Relaxed);
        }
        let cut = Instant::now();
        stopped(&first.leadership).await;
        assert!(cut.elapsed() <= Timing::default().act_for);
        let stopped = Instant::now();
        assert!(!second.leadership.is_leader());
        second.leadership.acquired().await;
        assert!(stopped.elapsed() >= Duration::from_secs(1), "{:?}", stopped.elapsed());

        // When it can reach the API server again, it finds the other one leading and does not take the Lease.
        first.connection.hanging.store(false, Ordering::Relaxed);
        first.connection.cut_off.store(false, Ordering::Relaxed);
        for _ in 0..60 {
            seconds(1).await;
            assert!(!first.leadership.is_leader() && second.leadership.is_leader());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_changes_nothing() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start(&shared, "b");
    seconds(10).await;
    first.connection.cut_off.store(true, Ordering::Relaxed);
    seconds(5).await;
    first.connection.cut_off.store(false, Ordering::Relaxed);
    for _ in 0..60 {
        seconds(1).await;
        assert!(first.leadership.is_leader() && !second.leadership.is_leader());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_was_rewritten_steps_down() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    {
        let mut lease = shared.lease.lock().unwrap();
        let (record, version) = lease.as_mut().unwrap();
        record.holder = Some("somebody".to_owned());
        *version += 1;
    }
    assert!(!first.leadership.confirm().await.unwrap(), "the Lease as read says otherwise");
    assert!(!first.leadership.is_leader());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_created_again() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    *shared.lease.lock().unwrap() = None;
    seconds(10).await;
    assert!(first.leadership.is_leader());
    assert_eq!(shared.holder().as_deref(), Some("a"));
}

/// Its watches begin at versions that the API server has yet to reach, so that they are silent and look healthy.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_cluster_is_restored_from_a_backup_begins_a_new_term() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let lost = tokio::spawn({
        let leadership = first.leadership.clone();
        async move { leadership.lost().await }
    });
    let backup = shared.lease.lock().unwrap().clone();
    seconds(10).await;
    assert!(!lost.is_finished());
    *shared.lease.lock().unwrap() = backup;
    seconds(4).await;
    assert!(lost.is_finished(), "everything is listed again");
    assert!(first.leadership.is_leader(), "nobody else was there");
    assert_eq!(shared.holder().as_deref(), Some("a"));
}

#[test]
fn versions_of_the_lease_are_compared_as_numbers() {
    assert!(is_before("99/u", "100/u") && !is_before("100/u", "99/u") && !is_before("99/u", "99/u"));
    assert!(!is_before("/u", "99/u") && !is_before("99", "new"), "nothing is known");
}

#[tokio::test(start_paused = true)]
async fn leadership_is_confirmed_only_by_an_answer() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    assert!(first.leadership.confirm().await.unwrap());
    first.connection.hanging.store(true, Ordering::Relaxed);
    assert!(matches!(first.leadership.confirm().await, Err(Error::Timeout)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_ends_without_renewal_but_its_term_only_when_another_takes_the_lease() {
    let leadership = Leadership::manual(Some(Instant::now() + Duration::from_secs(5)));
    assert!(leadership.is_leader());
    let lost = tokio::spawn({
        let leadership = leadership.clone();
        async move { leadership.lost().await }
    });
    seconds(6).await;
    assert!(!leadership.is_leader() && leadership.is_leader_until().is_none() && !lost.is_finished());
    leadership.set(None);
    lost.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_term_that_another_replica_interrupted_is_over_even_if_the_lease_comes_back() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start(&shared, "b");
    seconds(5).await;
    let lost = tokio::spawn({
        let leadership = first.leadership.clone();
        async move { leadership.lost().await }
    });
    first.connection.hanging.store(true, Ordering::Relaxed);
    second.leadership.acquired().await;
    second.stop().await;
    first.connection.hanging.store(false, Ordering::Relaxed);
    first.leadership.acquired().await;
    assert!(lost.is_finished(), "the second one has written in between");
}

/// The leader learns of the deletion only at its next renewal. Until then it may act.
#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_not_taken_while_its_holder_may_act() {
    for phase in 0..30 {
        let shared = Shared::default();
        let first = Replica::start(&shared, "a");
        first.leadership.acquired().await;
        let second = Replica::start(&shared, "b");
        sleep(Duration::from_secs(10) + phase * Duration::from_millis(100)).await;
        *shared.lease.lock().unwrap() = None;
        if phase % 2 == 0 {
            first.connection.hanging.store(true, Ordering::Relaxed);
        }
        for _ in 0..300 {
            sleep(Duration::from_millis(100)).await;
            assert!(!(first.leadership.is_leader() && second.leadership.is_leader()), "phase {phase}");
        }
        assert!(first.leadership.is_leader() || second.leadership.is_leader());
        first.kill();
        second.kill();
    }
}

/// It cannot know that another replica has led since.
#[tokio::test(start_paused = true)]
async fn a_leader_that_was_cut_off_does_not_take_a_deleted_lease_while_another_may_act() {
    for phase in 0..30 {
        let shared = Shared::default();
        let first = Replica::start(&shared, "a");
        first.leadership.acquired().await;
        let second = Replica::start(&shared, "b");
        seconds(5).await;
        first.connection.cut_off.store(true, Ordering::Relaxed);
        second.leadership.acquired().await;
        sleep(phase * Duration::from_millis(100)).await;
        *shared.lease.lock().unwrap() = None;
        first.connection.cut_off.store(false, Ordering::Relaxed);
        for _ in 0..300 {
            sleep(Duration::from_millis(100)).await;
            assert!(!first.leadership.is_leader() && second.leadership.is_leader(), "phase {phase}");
        }
        first.kill();
        second.kill();
    }
}

/// The replicas communicate through the annotations.
#[tokio::test]
async fn a_record_survives_the_round_trip_through_the_lease_object() {
    let api = crate::fake_api::FakeApi::default();
    let store = KubernetesLease::new(api.client(), "own");
    let record = Record {
        holder: Some("a".to_owned()),
        duration: Duration::from_secs(15),
        transitions: 3,
        acquired: Timestamp::from_second(7).unwrap(),
        yields: Some("a frozen cache".to_owned()),
        bid: Some("b".to_owned()),
        peers: PeerReport {
            connected: Some(["two".into(), "three".into()].into()),
            refused: [("four".into(), "its state is large".to_owned())].into(),
        },
    };
    for record in [record.clone(), record.released()] {
        api.prepare(201, serde_json::json!({"metadata": {"resourceVersion": "5", "uid": "u"}}));
        let version = store.write(&record, None).await.unwrap();
        store.write(&record, Some(&version)).await.unwrap();
        let mut written = api.requests().pop().unwrap().body;
        assert_eq!(written["metadata"]["resourceVersion"], "5", "compared by the API server");
        assert_eq!(written["metadata"]["uid"], "u", "without it the API server creates a Lease that somebody deleted");
        written["metadata"]["resourceVersion"] = "6".into();
        api.prepare(200, written);
        let (read, newer) = store.read().await.unwrap().unwrap();
        assert_eq!(read, record);
        assert_ne!(newer, version);
    }
    api.refuse(404, "NotFound", "leases \"cloudmap-mcs\" not found");
    assert!(matches!(store.write(&record, Some("6")).await, Err(Error::Conflict)), "it was deleted");
}
