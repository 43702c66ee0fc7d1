//! Connections that fail, hang or are frozen.

use super::*;

/// The API server is stopped, or refuses connections. Nobody else can lead meanwhile, so there is no reason for a new
/// term afterwards.
#[tokio::test(start_paused = true)]
async fn nine_seconds_without_the_api_server_end_no_term() {
    for stopped in [false, true] {
        for phase in 0..40 {
            let shared = Shared::default();
            let first = Replica::start(&shared, "a");
            first.leadership.acquired().await;
            let second = Replica::start(&shared, "b");
            let lost = tokio::spawn({
                let leadership = first.leadership.clone();
                async move { leadership.lost().await }
            });
            sleep(Duration::from_secs(10) + phase * Duration::from_millis(100)).await;
            for connection in [&first.connection, &second.connection] {
                if stopped {
                    *connection.frozen_until.lock().unwrap() = Some(Instant::now() + Duration::from_secs(9));
                } else {
                    connection.cut_off.store(true, Ordering::Relaxed);
                }
            }
            seconds(9).await;
            for connection in [&first.connection, &second.connection] {
                connection.cut_off.store(false, Ordering::Relaxed);
                *connection.frozen_until.lock().unwrap() = None;
            }
            seconds(4).await;
            assert!(first.leadership.is_leader(), "phase {phase}, stopped {stopped}: back within one renewal");
            seconds(30).await;
            assert!(!lost.is_finished(), "phase {phase}, stopped {stopped}: the term goes on");
            assert!(!second.leadership.is_leader());
            first.kill();
            second.kill();
        }
    }
}

/// One lost answer costs nothing: another attempt fits.
#[tokio::test(start_paused = true)]
async fn one_hanging_renewal_interrupts_nothing() {
    let shared = Shared::default();
    let first = Replica::start(&shared, "a");
    first.leadership.acquired().await;
    for deaf in [false, true] {
        seconds(10).await;
        let flag = if deaf { &first.connection.deaf } else { &first.connection.hanging };
        flag.store(true, Ordering::Relaxed);
        for _ in 0..40 {
            sleep(Duration::from_millis(100)).await;
            assert!(first.leadership.is_leader());
        }
        flag.store(false, Ordering::Relaxed);
        for _ in 0..100 {
            sleep(Duration::from_millis(100)).await;
            assert!(first.leadership.is_leader());
        }
    }
}

/// Whatever happens to the connections, two replicas never act at the same time, and none acts in a term that another
/// one interrupted.
#[tokio::test(start_paused = true)]
async fn two_replicas_never_act_at_once_whatever_happens_to_their_connections() {
    use rand::{RngExt as _, SeedableRng as _};
    let mut terms = 0;
    for seed in 0..60 {
        let mut chance = rand::rngs::StdRng::seed_from_u64(seed);
        let shared = Shared::default();
        let replicas = ["a", "b", "c"].map(|name| Replica::start(&shared, name));
        let mut leader = None;
        for _ in 0..1200 {
            sleep(Duration::from_millis(100)).await;
            let acting: Vec<_> = (0..3).filter(|n| replicas[*n].leadership.is_leader()).collect();
            assert!(acting.len() <= 1, "seed {seed}: {acting:?} act at once");
            if let [acting] = acting[..]
                && leader.replace(acting) != Some(acting)
            {
                terms += 1;
            }
            if chance.random_bool(0.02) {
                let connection = &replicas[chance.random_range(0..3)].connection;
                connection.cut_off.store(chance.random_bool(0.3), Ordering::Relaxed);
                connection.hanging.store(chance.random_bool(0.3), Ordering::Relaxed);
                connection.deaf.store(chance.random_bool(0.2), Ordering::Relaxed);
                let frozen = chance.random_bool(0.3);
                let until = Instant::now() + Duration::from_millis(chance.random_range(0..20_000));
                *connection.frozen_until.lock().unwrap() = frozen.then_some(until);
            }
        }
        replicas.into_iter().for_each(Replica::kill);
    }
    assert!(terms > 100, "{terms}: they take turns");
}
