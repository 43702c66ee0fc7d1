//! What several commands ask of Cloud Map, of the API server and of pods.

use std::{
    fmt::Display,
    io::{self, Write},
    time::Duration,
};

use k8s_openapi::{api::core::v1::Pod, jiff::SignedDuration};
use kube::{Client, ResourceExt as _};
use tokio::time::{Instant, timeout};

use crate::{
    app::connect,
    cli::{IdentityArgs, KubeArgs},
    cloudmap::{Error, ErrorKind, Operation},
    cluster::{
        identity::Identity,
        reader::{self, Unread},
    },
    env,
    model::ClusterSetId,
};

/// How long a call of AWS may take, its repetitions included; also a reading of the whole ledger.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a command says that it goes on.
pub(super) const SAY: Duration = Duration::from_secs(10);

const ASKING_CLUSTER: &str = "asking the API server who this cluster is, again where it does not answer";

/// Does work that may take minutes, and says meanwhile `what` it does, because silence looks like a hang.
pub(super) async fn aloud<T>(out: &mut impl Write, what: &str, mut work: impl Future<Output = T> + Unpin) -> T {
    let begun = Instant::now();
    loop {
        if let Ok(done) = timeout(SAY, &mut work).await {
            return done;
        }
        // The work is worth more than these words.
        drop(writeln!(out, "{what}: {} s so far", begun.elapsed().as_secs()));
    }
}

/// Does work that asks Cloud Map, however long that takes, and says so meanwhile on stderr.
pub(super) fn patiently<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    on_stderr("asking Cloud Map, again where AWS throttles or does not answer", work)
}

/// The ClusterSet of a command, like [`connect::clusterset`]; says meanwhile on stderr that the API server does not answer.
///
/// # Errors
/// The same.
pub(super) async fn clusterset(kube: &KubeArgs, identity: &IdentityArgs) -> anyhow::Result<ClusterSetId> {
    on_stderr(ASKING_CLUSTER, connect::clusterset(kube, identity)).await
}

/// Who the cluster is, like [`connect::identity`]; says meanwhile on stderr that the API server does not answer.
///
/// # Errors
/// The same.
pub(super) async fn identity(client: &Client, identity: &IdentityArgs) -> anyhow::Result<Identity> {
    on_stderr(ASKING_CLUSTER, connect::identity(client, identity)).await
}

fn on_stderr<T>(what: &str, work: impl Future<Output = T>) -> impl Future<Output = T> {
    let work = Box::pin(work);
    async move { aloud(&mut io::stderr(), what, work).await }
}

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

/// The version of the API server, and how far its clock, which it tells in whole seconds, is ahead of the one here; `None` if
/// it does not tell.
///
/// # Errors
/// Why there is no answer.
pub(super) async fn version(client: &Client) -> Result<(String, Option<SignedDuration>), Unread> {
    let before = env::timestamp();
    let (version, there) = reader::version(client).await?;
    let took = env::timestamp().duration_since(before);
    Ok((version, there.map(|there| there.duration_since(before) + SignedDuration::from_millis(500) - took / 2)))
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

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// Calls that AWS throttles are repeated for half a minute each.
    #[tokio::test(start_paused = true)]
    async fn work_that_takes_long_says_so_every_ten_seconds() {
        let mut said = Vec::<u8>::new();
        let work = async |seconds| sleep(Duration::from_secs(seconds)).await;
        aloud(&mut said, "waiting", Box::pin(work(9))).await;
        assert!(said.is_empty(), "it is done soon");
        aloud(&mut said, "waiting", Box::pin(work(25))).await;
        assert_eq!(String::from_utf8(said).unwrap(), "waiting: 10 s so far\nwaiting: 20 s so far\n");
    }
}
