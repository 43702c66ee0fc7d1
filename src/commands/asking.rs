//! What several commands ask of Cloud Map and of pods.

use std::{fmt::Display, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use tokio::time::timeout;

use crate::cloudmap::{Error, ErrorKind, Operation};

/// How long a call of AWS may take, its repetitions included; also a reading of the whole ledger.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks Cloud Map, with a deadline.
///
/// # Errors
/// Why there is no answer, as a text.
pub(super) async fn in_time<T, E: Display>(call: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match timeout(PATIENCE, call).await {
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        Ok(answer) => answer.map_err(|error| error.to_string()),
    }
}

/// The same, with the kind of the error. Where no answer comes in time, it is `Unknown`.
///
/// # Errors
/// Why there is no answer.
pub(super) async fn answered<T>(
    operation: Operation,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let late = |_| Error {
        operation: operation.name(),
        kind: ErrorKind::Unknown,
        message: format!("no answer within {} s", PATIENCE.as_secs()),
    };
    timeout(PATIENCE, call).await.map_err(late)?
}

/// Whether the next call would wait as long for the same answer, because nobody is there.
pub(super) const fn is_away(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unknown | ErrorKind::NoCredentials)
}

/// What made a pod, by kind and name: the Deployment of its ReplicaSet, or its other owner.
pub(super) fn workload(pod: &Pod) -> Option<(&str, &str)> {
    let owners = pod.metadata.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    let of_deployment = pod
        .labels()
        .get("pod-template-hash")
        .filter(|_| owner.kind == "ReplicaSet")
        .and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
    Some(of_deployment.map_or((&*owner.kind, &*owner.name), |name| ("Deployment", name)))
}
