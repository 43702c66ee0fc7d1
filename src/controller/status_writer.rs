//! Writes what the core planned for objects that no worker has, and tries again until that succeeds or another thing is
//! planned.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::Metrics;
use base::queue::Queue;
use cluster::{
    ClusterWriter,
    apply::{Cause, Error},
    events::{EventRecord, Outbox},
};

/// How many writes run at the same time.
const CONCURRENCY: usize = 8;
/// After this many failures in a row, an Event on the object says so, once.
const SAID_AFTER: u32 = 3;

/// What is to be written to an object.
pub(super) trait Planned: PartialEq + fmt::Debug {
    /// What a write does, for the log: it completes "failed to ".
    const DOES: &'static str;

    /// The object, for the log.
    fn object(&self) -> String;

    /// Writes it.
    async fn write(&self, writer: &dyn ClusterWriter) -> Result<(), Error>;

    /// It was written. Returns the Events to emit.
    fn written(&self, metrics: &Metrics) -> Vec<EventRecord>;

    /// The Event that says that it cannot be written, if there is one about such an object.
    fn refused(&self, cause: &Cause) -> Option<EventRecord>;
}

/// All that is to be written, by key.
pub(super) type All<K, P> = BTreeMap<K, Arc<P>>;

/// Writes each thing that appears or changes, until `planned` is closed.
pub(super) async fn write<K: Ord + Clone, P: Planned>(
    mut planned: watch::Receiver<Arc<All<K, P>>>,
    writer: Arc<dyn ClusterWriter>,
    notes: Outbox,
    metrics: Metrics,
) {
    let queue = Queue::default();
    let mut held = Arc::<All<K, P>>::default();
    let mut running = FuturesUnordered::new();
    // Those whose Events said that they cannot be written.
    let mut said = BTreeSet::<K>::new();
    loop {
        tokio::select! {
            biased;
            Some((key, thing, result)) = running.next() => {
                let (key, thing): (K, Arc<P>) = (key, thing);
                match result {
                    Ok(()) => {
                        queue.done(&key);
                        said.remove(&key);
                        debug!(written = ?thing, "{}", P::DOES);
                        thing.written(&metrics).into_iter().for_each(|note| notes.send(note));
                    }
                    // Mostly the object is gone, or is another one, or has changed. The cache shows that soon, and then another
                    // thing is planned, or none. Or others wrote it at the same time, and nothing else will be planned.
                    Err(cause @ (Cause::NotFound(_) | Cause::Conflict(_))) => {
                        let (retry_in, failures) = queue.failed(&key);
                        debug!(object = thing.object(), %cause, ?retry_in, failures, "failed to {}", P::DOES);
                    }
                    Err(cause) => {
                        let (retry_in, failures) = queue.failed(&key);
                        warn!(object = thing.object(), %cause, ?retry_in, failures, "failed to {}", P::DOES);
                        // Failures that are not worth an Event count as well.
                        if failures >= SAID_AFTER && !matches!(cause, Cause::NotLeader) && said.insert(key) {
                            thing.refused(&cause).into_iter().for_each(|note| notes.send(note));
                        }
                    }
                }
            }
            changed = planned.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = Arc::clone(&planned.borrow_and_update());
                for (key, _) in now.iter().filter(|(key, thing)| held.get(*key) != Some(*thing)) {
                    queue.add(key.clone());
                }
                held = now;
            }
            (key, _) = queue.take(), if running.len() < CONCURRENCY => {
                let Some(thing) = held.get(&key).cloned() else {
                    queue.done(&key);
                    said.remove(&key);
                    continue;
                };
                let writer = Arc::clone(&writer);
                running.push(async move {
                    let result = thing.write(&*writer).await;
                    (key, thing, result.map_err(|error| error.cause))
                });
            }
        }
    }
}
