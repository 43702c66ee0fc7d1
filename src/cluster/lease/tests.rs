use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use tokio::{sync::oneshot, task::JoinHandle};

use super::*;

/// A Lease that replicas share, and a replica's connection to it.
#[derive(Clone, Default)]
struct Shared {
    lease: Arc<Mutex<Option<(Record, u64)>>>,
    cut_off: Arc<AtomicBool>,
    hanging: Arc<AtomicBool>,
}

impl Shared {
    fn connection(&self) -> Self {
        Self { lease: Arc::clone(&self.lease), ..Self::default() }
    }

    fn holder(&self) -> Option<String> {
        self.lease.lock().unwrap().as_ref().and_then(|(record, _)| record.holder.clone())
    }

    async fn reach(&self) -> Result<(), Error> {
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
        self.reach().await?;
        let lease = self.lease.lock().unwrap().clone();
        Ok(lease.map(|(record, version)| (record, version.to_string())))
    }

    async fn write(&self, record: &Record, version: Option<&str>) -> Result<String, Error> {
        self.reach().await?;
        let mut lease = self.lease.lock().unwrap();
        let present = lease.as_ref().map(|(_, version)| version.to_string());
        if present.as_deref() != version {
            return Err(Error::Conflict);
        }
        let next = present.map_or(1, |version| version.parse::<u64>().unwrap() + 1);
        *lease = Some((record.clone(), next));
        Ok(next.to_string())
    }
}

struct Replica {
    leadership: Leadership,
    connection: Shared,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Replica {
    fn start(shared: &Shared, identity: &str) -> Self {
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let connection = shared.connection();
        let (elector, leadership) = Elector::new(connection.clone(), identity.to_owned(), Timing::default(), metrics);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(elector.run(async {
            let _ = stopped.await;
        }));
        Self { leadership, connection, stop: Some(stop), task }
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.task.await.unwrap();
    }

    fn kill(self) {
        self.task.abort();
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
async fn a_released_lease_is_taken_at_the_next_look() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start(&shared, "b");
    seconds(5).await;
    let leadership = first.leadership.clone();
    first.stop().await;
    assert!(!leadership.is_leader());
    assert_eq!(shared.holder(), None);
    let released = Instant::now();
    second.leadership.acquired().await;
    assert!(released.elapsed() <= Timing::default().renew_every);
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
    let Timing { duration, renew_every, .. } = Timing::default();
    assert!(took + 2 * renew_every >= duration && took <= duration + 2 * renew_every, "{took:?}");
    assert_eq!(shared.lease.lock().unwrap().as_ref().unwrap().0.transitions, 1);
}

/// The leader loses the API server, by errors and by silence: it stops before anybody else begins.
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
        first.leadership.lost().await;
        assert!(cut.elapsed() <= Timing::default().act_for);
        let stopped = Instant::now();
        assert!(!second.leadership.is_leader());
        second.leadership.acquired().await;
        assert!(stopped.elapsed() >= Duration::from_secs(1), "{:?}", stopped.elapsed());

        // Back again, it finds the other one leading and stays a follower.
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
async fn a_lease_that_was_deleted_is_made_again() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    *shared.lease.lock().unwrap() = None;
    seconds(10).await;
    assert!(first.leadership.is_leader());
    assert_eq!(shared.holder().as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn confirmation_needs_an_answer() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    assert!(first.leadership.confirm().await.unwrap());
    first.connection.hanging.store(true, Ordering::Relaxed);
    assert!(matches!(first.leadership.confirm().await, Err(Error::Timeout)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_ends_by_itself() {
    let leadership = Leadership::manual(Some(Instant::now() + Duration::from_secs(5)));
    assert!(leadership.is_leader());
    leadership.lost().await;
    assert!(!leadership.is_leader() && leadership.is_leader_until().is_none());
}
