//! A leader that is told to stop releases the Lease.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_by_the_next_replica_that_looks() {
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
    assert!(released.elapsed() <= Timing::default().look_every);
}

/// Who may not take it does not look all the time.
#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once_by_a_replica_whose_watch_shows_it() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start_watching(&shared, "b");
    seconds(5).await;
    second.trouble.store(true, Ordering::Relaxed);
    first.stop().await;
    let reads = second.connection.reads.load(Ordering::Relaxed);
    seconds(10).await;
    let reads = second.connection.reads.load(Ordering::Relaxed) - reads;
    assert!((10..=22).contains(&reads), "{reads}");
    second.trouble.store(false, Ordering::Relaxed);
    second.leadership.acquired().await;

    let third = Replica::start_watching(&shared, "c");
    seconds(5).await;
    second.stop().await;
    let released = Instant::now();
    third.leadership.acquired().await;
    assert!(released.elapsed() <= Duration::from_millis(20), "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_released_even_if_the_last_answer_was_lost() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    first.connection.deaf.store(true, Ordering::Relaxed);
    seconds(4).await;
    first.connection.deaf.store(false, Ordering::Relaxed);
    first.stop().await;
    assert_eq!(shared.holder(), None);
}

/// All pods are told to stop at once: one releases the Lease, and the next one takes it before it is told to stop.
#[tokio::test(start_paused = true)]
async fn the_lease_is_released_even_if_it_was_taken_while_the_replica_was_told_to_stop() {
    let shared = Shared::default();
    let last = Replica::start(&shared, "a");
    last.connection.deaf.store(true, Ordering::Relaxed);
    seconds(1).await;
    assert_eq!(shared.holder().as_deref(), Some("a"));
    last.connection.deaf.store(false, Ordering::Relaxed);
    last.stop().await;
    assert_eq!(shared.holder(), None);
}
