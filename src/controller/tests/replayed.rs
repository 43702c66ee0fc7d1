//! What the core decides follows from its inputs, whatever the watches write meanwhile on other threads.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::world::{World, key, until};

/// On several threads and in real time. The leader's task panics where the replay comes out differently, and then nothing
/// converges.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_watches_write_on_other_threads_changes_no_decision_in_between() {
    const NAMES: usize = 20;
    const ROUNDS: usize = 150;
    let world = World::new();
    let blue = world.cluster("blue");
    blue.export("first", 80, &["10.0.99.9"]);
    until("it leads", || world.holds("shop", "first") == ["10.0.99.9"]).await;
    let busy = AtomicBool::new(true);
    std::thread::scope(|threads| {
        let (blue, busy) = (&blue, &busy);
        let endpoints = threads.spawn(move || {
            for round in 0..ROUNDS {
                for name in 0..NAMES {
                    blue.put_endpoints(&format!("web-{name}"), &[&format!("10.0.{}.{}", name, 1 + round % 200)]);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        threads.spawn(move || {
            let mut round = 0;
            while busy.load(Ordering::Relaxed) {
                for name in 0..NAMES {
                    let name = format!("web-{name}");
                    blue.put_service(&name, 80 + round % 3);
                    if round % 5 == 4 { blue.objects.remove_export(&key(&name)) } else { blue.put_export(&name, &[]) }
                }
                round += 1;
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        endpoints.join().unwrap();
        busy.store(false, Ordering::Relaxed);
    });
    for name in 0..NAMES {
        let name = format!("web-{name}");
        blue.put_service(&name, 80);
        blue.put_export(&name, &[]);
    }
    for name in 0..NAMES {
        let last = format!("10.0.{name}.{}", 1 + (ROUNDS - 1) % 200);
        until("the last state is registered", || world.holds("shop", &format!("web-{name}")) == [last.as_str()]).await;
    }
}
