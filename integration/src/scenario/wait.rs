//! Waiting for facts. Deadlines are generous and only end a wait that would not end: no scenario passes or fails by how
//! fast the machine is.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

/// For a change to cross from one cluster into the other. The upstream suite waits 20 s; a machine that others keep busy
/// may be several times slower than usual, or stand still for as long.
pub const PROPAGATION: Duration = Duration::from_mins(4);
/// For a name in Cloud Map to come, to go or to change hands: a new claim to one waits for 10 s, the loser of one keeps its
/// endpoints for 20 s, and resolvers keep what they have heard.
pub const NAMES: Duration = Duration::from_mins(6);
/// For pods to start or to go.
pub const PODS: Duration = Duration::from_mins(10);

const PAUSE: Duration = Duration::from_millis(250);
/// For the first look: a pod that takes connections but does not answer must not swallow the deadline. Each look that is cut off
/// gives the next one twice as long, so that many requests in one look end on a slow machine, too.
const LOOK: Duration = Duration::from_secs(15);

tokio::task_local! {
    static STOPWATCH: Stopwatch;
}

#[derive(Debug)]
struct Stopwatch {
    /// When a scenario last changed something, or pods had started.
    changed: Cell<Instant>,
    longest: Cell<Option<Duration>>,
}

/// Runs a scenario, and tells the longest time that a change of it took to show in the clusters: from the change to the
/// look that found it. `None` where nothing had to be waited for.
pub async fn measured<T>(scenario: impl Future<Output = T>) -> (T, Option<Duration>) {
    let stopwatch = Stopwatch { changed: Cell::new(Instant::now()), longest: Cell::new(None) };
    STOPWATCH
        .scope(stopwatch, async {
            let outcome = scenario.await;
            (outcome, STOPWATCH.with(|stopwatch| stopwatch.longest.get()))
        })
        .await
}

/// The scenario changed something: what it waits for next follows from that.
pub(super) fn changed() {
    let _ = STOPWATCH.try_with(|stopwatch| stopwatch.changed.set(Instant::now()));
}

/// A wait ended. What was there at the first look appeared at an unknown time before; what is waited for with another
/// deadline, such as pods, is not what is measured, but what comes next follows from it.
fn waited(deadline: Duration, looks: u32) {
    if looks < 2 {
        return;
    }
    if deadline != PROPAGATION {
        return changed();
    }
    let _ = STOPWATCH.try_with(|stopwatch| {
        let took = stopwatch.changed.get().elapsed();
        stopwatch.longest.set(stopwatch.longest.get().max(Some(took)));
    });
}

/// Looks until `check` succeeds.
///
/// # Errors
/// What the last look found wrong, if none succeeds within the deadline.
pub async fn eventually<T>(what: &str, deadline: Duration, check: impl AsyncFn() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let mut patience = LOOK;
    for look in 1.. {
        let error = match tokio::time::timeout(patience, check()).await {
            Ok(Ok(value)) => {
                waited(deadline, look);
                return Ok(value);
            }
            Ok(Err(error)) => error,
            Err(_) => {
                let error = anyhow::anyhow!("no answer within {patience:?}");
                patience *= 2;
                error
            }
        };
        if start.elapsed() >= deadline {
            return Err(error.context(format!("not within {deadline:?}: {what}")));
        }
        tokio::time::sleep(PAUSE).await;
    }
    unreachable!("looking ends with an answer")
}

/// Looks again and again for as long as `duration`, and fails as soon as `check` does.
///
/// # Errors
/// What a look found wrong.
pub async fn holds_for(what: &str, duration: Duration, check: impl AsyncFn() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < duration {
        check().await.with_context(|| format!("did not hold for {duration:?}: {what}"))?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// A fact about an object.
///
/// # Errors
/// If it does not hold; the error shows the object.
pub fn holds(fact: bool, what: &str, object: &impl Serialize) -> Result<()> {
    if fact {
        return Ok(());
    }
    bail!("it is not so that {what}:\n{}", yaml(object))
}

/// An object as people read it.
pub fn yaml(object: &impl Serialize) -> String {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = value.get_mut("metadata").and_then(|metadata| metadata.as_object_mut()) {
        metadata.remove("managedFields");
    }
    serde_yaml_ng::to_string(&value).unwrap_or_else(|error| error.to_string())
}
