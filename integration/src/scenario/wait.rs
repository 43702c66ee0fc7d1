//! Waiting for facts. Deadlines are generous and only end a wait that would not end: no scenario passes or fails by how
//! fast the machine is.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

/// For a change to cross from one cluster into the other.
pub const PROPAGATION: Duration = Duration::from_secs(20);
/// For pods to start or to go.
pub const PODS: Duration = Duration::from_mins(2);

const PAUSE: Duration = Duration::from_millis(250);
/// For one look: a pod that takes connections but does not answer must not swallow the deadline.
const LOOK: Duration = Duration::from_secs(15);

/// Looks until `check` succeeds.
///
/// # Errors
/// What the last look found wrong, if none succeeds within the deadline.
pub async fn eventually<T>(what: &str, deadline: Duration, check: impl AsyncFn() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        let error = match tokio::time::timeout(LOOK, check()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("no answer within {LOOK:?}"),
        };
        if start.elapsed() >= deadline {
            return Err(error.context(format!("not within {deadline:?}: {what}")));
        }
        tokio::time::sleep(PAUSE).await;
    }
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
