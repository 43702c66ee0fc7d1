//! A cluster in which something changes faster than the controller takes it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use futures::future::BoxFuture;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use tokio::time::sleep;

use super::world::World;
use api::names;
use base::env::{self, Machine};
use cluster::memory::MemoryCluster;

/// So long at most, or a loop that yields to nobody would never let the test end.
const RESTLESS: Duration = Duration::from_mins(3);

/// Whenever the controller looks at its clock, which it does for each input, there is another change.
struct Restless {
    machine: env::Simulated,
    objects: Arc<MemoryCluster>,
    began: Instant,
    calm: AtomicBool,
    changes: AtomicU32,
}

impl Machine for Restless {
    fn wall_clock(&self) -> SystemTime {
        if !self.calm.load(Ordering::SeqCst) && self.began.elapsed() < RESTLESS {
            let [_, a, b, c] = self.changes.fetch_add(1, Ordering::SeqCst).to_be_bytes();
            let slice: EndpointSlice = serde_json::from_value(json!({
                "metadata": {
                    "namespace": "shop", "name": "restless-1",
                    "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: "restless"},
                },
                "addressType": "IPv4",
                "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
                "endpoints": [{"addresses": [format!("10.{a}.{b}.{c}")], "conditions": {"ready": true}}],
            }))
            .unwrap();
            self.objects.put_slice(slice);
        }
        self.machine.wall_clock()
    }

    fn random(&self) -> u64 {
        self.machine.random()
    }

    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        self.machine.task(task)
    }
}

/// In real time: the controller is never idle, so that simulated time would stand still.
#[tokio::test]
async fn workers_go_on_while_changes_never_end() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.member = false;
    let machine = Arc::new(Restless {
        machine: env::Simulated::new(),
        objects: Arc::clone(&blue.objects),
        began: Instant::now(),
        calm: AtomicBool::new(false),
        changes: AtomicU32::new(0),
    });
    blue.machine = Arc::clone(&machine) as _;
    // Several times as many as there are workers.
    let names: Vec<_> = (0..20).map(|n| format!("web-{n}")).collect();
    for name in &names {
        blue.export(name, 80, &["10.0.0.1"]);
    }
    blue.lead();
    while !names.iter().all(|name| blue.condition(name, "Ready").is_some()) {
        assert!(machine.began.elapsed() < RESTLESS, "some names are not written");
        sleep(Duration::from_millis(5)).await;
    }
    assert!(machine.changes.load(Ordering::SeqCst) > 20);
    machine.calm.store(true, Ordering::SeqCst);
}
