//! Writes the statuses of Cutovers that the core planned, and tries again until that succeeds or another one is planned.

use std::{collections::BTreeMap, sync::Arc};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::{
    api::{CutoverStatus, events::EventReason},
    cluster::{
        ClusterWriter,
        apply::Cause,
        events::{self, EventRecord, Outbox},
    },
    model::ServiceKey,
    queue::Queue,
};

/// How many statuses are written at the same time.
const CONCURRENCY: usize = 8;
/// After this many failures in a row, an Event on the Cutover says so.
const SAID_AFTER: u32 = 3;

/// A status that is to be written.
#[derive(Debug, PartialEq)]
pub(super) struct Progress {
    pub(super) key: ServiceKey,
    pub(super) uid: Box<str>,
    /// The version of the Cutover from which it was planned.
    pub(super) version: Box<str>,
    pub(super) status: CutoverStatus,
    /// The Events to emit when it is written.
    pub(super) news: Vec<(EventReason, String)>,
}

/// All statuses that are to be written.
pub(super) type Written = BTreeMap<ServiceKey, Arc<Progress>>;

/// Writes each status that appears or changes, until `planned` is closed.
pub(super) async fn write(mut planned: watch::Receiver<Arc<Written>>, writer: Arc<dyn ClusterWriter>, notes: Outbox) {
    let queue = Queue::default();
    let mut held = Arc::<Written>::default();
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some((progress, result)) = running.next() => {
                let progress: Arc<Progress> = progress;
                let Progress { key, uid, version: _, status, news } = &*progress;
                match result {
                    Ok(()) => {
                        queue.done(key);
                        debug!(cutover = %key, share = status.share_of_traffic, "wrote the status of a Cutover");
                        for (reason, text) in news {
                            notes.send(note(key, uid, *reason, text.clone()));
                        }
                    }
                    // Its cache shows that it is gone, or is another one, or has another spec. Then this is planned anew.
                    Err(Cause::NotFound(_) | Cause::Conflict(_)) => queue.done(key),
                    Err(cause) => {
                        let (retry_in, failures) = queue.failed(key);
                        warn!(cutover = %key, %cause, ?retry_in, failures, "failed to write the status of a Cutover");
                        if failures == SAID_AFTER && !matches!(cause, Cause::NotLeader) {
                            let text = format!(
                                "The status cannot be written, so the share stays as it is: {cause}. The controller tries again until \
                                 it succeeds."
                            );
                            notes.send(note(key, uid, EventReason::CutoverNotWritten, text));
                        }
                    }
                }
            }
            changed = planned.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = Arc::clone(&planned.borrow_and_update());
                for (key, _) in now.iter().filter(|(key, progress)| held.get(*key) != Some(*progress)) {
                    queue.add(key.clone());
                }
                held = now;
            }
            (key, _) = queue.take(), if running.len() < CONCURRENCY => {
                let Some(progress) = held.get(&key).cloned() else {
                    queue.done(&key);
                    continue;
                };
                let writer = Arc::clone(&writer);
                running.push(async move {
                    let Progress { key, uid, version, status, .. } = &*progress;
                    let result = writer.apply_cutover_status(key, uid, version, status).await;
                    (Arc::clone(&progress), result.map_err(|error| error.cause))
                });
            }
        }
    }
}

fn note(key: &ServiceKey, uid: &str, reason: EventReason, text: String) -> EventRecord {
    EventRecord { regarding: events::cutover(key, uid), reason, action: "Shift", text }
}
