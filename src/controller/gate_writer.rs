//! Opens the gates that the core decided to open, and tries again until that succeeds or the pod no longer waits.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::Metrics;
use crate::{
    api::{conditions::GateReason, events::EventReason},
    cluster::{
        ClusterWriter,
        apply::Cause,
        events::{self, EventRecord, Outbox},
        objects::{ObjectKey, TargetId},
    },
    env,
    queue::Queue,
};

/// How many gates are written at the same time.
const CONCURRENCY: usize = 8;
/// After this many failures in a row, an Event on the pod says so.
const SAID_AFTER: u32 = 3;

/// A gate that is to be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) key: ObjectKey,
    pub(super) uid: Box<str>,
    pub(super) reason: GateReason,
    pub(super) message: String,
}

/// All gates that are to be opened, by the ids of their pods.
pub(super) type Openings = BTreeMap<TargetId, Arc<Opening>>;

/// Writes each opening that appears or changes, until `openings` is closed.
pub(super) async fn write(
    mut openings: watch::Receiver<Arc<Openings>>,
    writer: Arc<dyn ClusterWriter>,
    notes: Outbox,
    metrics: Metrics,
) {
    let queue = Queue::default();
    let mut held = Arc::<Openings>::default();
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some((id, opening, result)) = running.next() => {
                let opening: Arc<Opening> = opening;
                let Opening { key, uid, reason, message } = &*opening;
                match result {
                    Ok(()) => {
                        queue.done(&id);
                        metrics.gate_opened(*reason);
                        debug!(pod = %key, %reason, message, "opened a readiness gate");
                        if let Some(event) = reason.row().event {
                            notes.send(note(key, uid, event, message.clone()));
                        }
                    }
                    // Its cache shows that it is gone, or that another pod has its name.
                    Err(Cause::NotFound(_) | Cause::Conflict(_)) => queue.done(&id),
                    Err(cause) => {
                        let (retry_in, failures) = queue.failed(&id);
                        warn!(pod = %key, %cause, ?retry_in, failures, "failed to open a readiness gate");
                        if failures == SAID_AFTER && !matches!(cause, Cause::NotLeader) {
                            let text = format!(
                                "The condition cloudmap-mcs/registered cannot be set: {cause}. The controller tries again until it \
                                 succeeds."
                            );
                            notes.send(note(key, uid, EventReason::GateNotWritten, text));
                        }
                    }
                }
            }
            changed = openings.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = Arc::clone(&openings.borrow_and_update());
                for (id, _) in now.iter().filter(|(id, opening)| held.get(*id) != Some(*opening)) {
                    queue.add(*id);
                }
                held = now;
            }
            (id, _) = queue.take(), if running.len() < CONCURRENCY => {
                let Some(opening) = held.get(&id).cloned() else {
                    queue.done(&id);
                    continue;
                };
                let writer = Arc::clone(&writer);
                running.push(async move {
                    let Opening { key, uid, reason, message } = &*opening;
                    let result = writer.open_gate(key, uid, *reason, message, env::timestamp()).await;
                    (id, Arc::clone(&opening), result.map_err(|error| error.cause))
                });
            }
        }
    }
}

fn note(key: &ObjectKey, uid: &str, reason: EventReason, text: String) -> EventRecord {
    EventRecord { regarding: events::pod(key, uid), reason, action: "Register", text }
}
