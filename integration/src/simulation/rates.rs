//! What processes ask of the API server and of Cloud Map while nothing changes. The bounds are above what the documents
//! say of reads, and far below what a loop makes of them.

use std::collections::BTreeMap;

use super::{QUIET, kubernetes::Verb, world::World};

/// What was asked for since the start.
#[derive(Debug)]
pub(crate) struct Asked {
    /// By replica, verb and kind.
    kubernetes: BTreeMap<(String, Verb, &'static str), u64>,
    /// By replica and operation.
    cloudmap: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Asked {
    pub(crate) fn of(world: &World) -> Self {
        let kubernetes = world.clusters.iter().flat_map(|cluster| cluster.api.requests()).collect();
        let mut cloudmap = BTreeMap::<_, BTreeMap<_, _>>::new();
        for registry in world.registries() {
            for (caller, calls) in registry.with(|cloudmap, _| cloudmap.counters().callers.clone()) {
                let all = cloudmap.entry(caller).or_default();
                for (operation, count) in calls {
                    *all.entry(operation).or_default() += count;
                }
            }
        }
        Self { kubernetes, cloudmap }
    }

    /// What was asked for too often since then, which is [`QUIET`] ago.
    pub(crate) fn exceeded(&self, world: &World) -> Option<String> {
        let now = Self::of(world);
        for (key, count) in &now.kubernetes {
            let ((replica, verb, plural), before) = (key, self.kubernetes.get(key).copied().unwrap_or_default());
            let since = count - before;
            // What each registry shows is noted as it is read.
            if since > most_requests(*verb, plural) * world.registries().count() as u64 {
                return Some(format!("{replica}: {since} times {verb:?} {plural} within {QUIET:?}"));
            }
        }
        for cluster in &world.clusters {
            let mut calling = 0;
            for slot in &cluster.replicas {
                let before = self.cloudmap.get(&slot.name);
                let mut calls = 0;
                for (operation, count) in now.cloudmap.get(&slot.name).into_iter().flatten() {
                    let since = count - before.and_then(|before| before.get(operation)).copied().unwrap_or_default();
                    if since > most_calls(operation) {
                        return Some(format!("{}: {since} times {operation} within {QUIET:?}", slot.name));
                    }
                    calls += since;
                }
                // Who led until a moment ago may make a last call.
                calling += usize::from(calls > QUIET.as_secs() / 10);
            }
            // A leader writes heartbeats, and standbys only watch.
            if calling > 1 || calling == 0 && cluster.membership().is_some() {
                return Some(format!("{}: {calling} replicas call Cloud Map", cluster.id));
            }
        }
        None
    }
}

/// How often one replica may ask for a kind.
fn most_requests(verb: Verb, plural: &str) -> u64 {
    let seconds = QUIET.as_secs();
    match (verb, plural) {
        // A standby looks every second, and a leader renews every three.
        (_, "leases") => seconds * 2,
        // The API server ends each watch after a minute. EndpointSlices have two.
        (Verb::Watch, _) => seconds / 10,
        // Nobody lists again while watches work.
        (Verb::List, _) => 2,
        // A leader reads its record every 5 s.
        (Verb::Get, "configmaps") => seconds / 4,
        // A leader notes what others wrote last, and whom it forgets. It writes its key once.
        (verb, "configmaps" | "secrets") if verb.is_write() => seconds / 20,
        _ => seconds / 6,
    }
}

/// How often a leader may call an operation.
fn most_calls(operation: &str) -> u64 {
    let seconds = QUIET.as_secs();
    match operation {
        // Heads every second, twice as often in the minute after a change, and services from which it imports every second.
        // Of each cluster whose head is not believed, the key and the copy are read, too.
        "DiscoverInstances" => seconds * 8,
        // Each heartbeat, and each page that nobody needs any more, is an operation whose end is asked for some times.
        "GetOperation" => seconds * 4,
        // Drift checks of a few services every 50 s, each of one or two pages, and audits. Old pages go.
        "ListInstances" | "GetInstancesHealthStatus" | "DeregisterInstance" => seconds * 2,
        _ => seconds,
    }
}
