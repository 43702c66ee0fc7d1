//! Replicas whose caches cannot be trusted.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_replica_whose_caches_cannot_be_trusted_does_not_take_the_lease() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start(&shared, "b");
    second.trouble.store(true, Ordering::Relaxed);
    seconds(5).await;
    first.stop().await;
    seconds(30).await;
    assert_eq!(shared.holder(), None);
    second.trouble.store(false, Ordering::Relaxed);
    second.leadership.acquired().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_a_frozen_cache_makes_room_for_one_with_fresh_caches() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start(&shared, "b");
    seconds(10).await;
    first.trouble.store(true, Ordering::Relaxed);
    let frozen = Instant::now();
    while !second.leadership.is_leader() {
        sleep(Duration::from_millis(100)).await;
        assert!(!(first.leadership.is_leader() && second.leadership.is_leader()));
    }
    assert!(frozen.elapsed() < Duration::from_secs(13), "{:?}", frozen.elapsed());
    seconds(60).await;
    assert!(second.leadership.is_leader() && !first.leadership.is_leader());
    let (record, _) = shared.lease.lock().unwrap().clone().unwrap();
    assert_eq!((record.yields, record.bid), (None, None));
}

/// If the API server is down, or a permission is missing, all replicas have the same trouble.
#[tokio::test(start_paused = true)]
async fn the_leader_stays_while_all_replicas_have_the_same_trouble() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    let second = Replica::start(&shared, "b");
    seconds(10).await;
    first.trouble.store(true, Ordering::Relaxed);
    second.trouble.store(true, Ordering::Relaxed);
    for _ in 0..300 {
        seconds(1).await;
        assert!(first.leadership.is_leader() && !second.leadership.is_leader());
    }
    let yields = shared.record().yields.clone();
    assert_eq!(yields.as_deref(), Some("a frozen cache"), "people can read it there");
    first.trouble.store(false, Ordering::Relaxed);
    seconds(4).await;
    second.trouble.store(false, Ordering::Relaxed);
    seconds(60).await;
    assert!(first.leadership.is_leader(), "it recovered first");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_recovers_before_it_sees_a_bid_keeps_the_lease() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    seconds(1).await;
    shared.offer("b");
    seconds(10).await;
    assert!(first.leadership.is_leader());
    assert_eq!(shared.record().bid, None);
}
