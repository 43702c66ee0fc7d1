//! What several commands ask of Cloud Map, of the API server and of pods.

use std::{
    fmt::Display,
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::{join, join_all};
use k8s_openapi::{api::core::v1::Pod, jiff::SignedDuration};
use kube::{Client, ResourceExt as _};
use tokio::time::{Instant, sleep, timeout};

use app::connect;
use base::env;
use cli::{AwsArgs, IdentityArgs, KubeArgs};
use cloudmap::{Error, ErrorKind, Operation};
use cluster::{
    identity::Identity,
    reader::{self, Unread},
};
use ledger::{RegistryName, show};
use model::ClusterSetId;
use records::{ClusterView, read_all};

/// Every cluster that a registry has; none if it has no ledger of the ClusterSet.
pub(super) async fn clusters_of(
    cloudmap: Arc<dyn cloudmap::Read>,
    clusterset: &ClusterSetId,
) -> Result<Vec<ClusterView>, show::Error> {
    match read_all(cloudmap, clusterset).await {
        Err(show::Error::NoLedger(_)) => Ok(Vec::new()),
        views => views,
    }
}

/// The ledgers of a ClusterSet: that of the home, and those of the other registries by name.
pub(super) struct AllLedgers {
    /// That of the home.
    pub(super) home: Vec<ClusterView>,
    /// The others, or why they cannot be read. A registry without a ledger has no clusters.
    pub(super) others: Vec<(RegistryName, Result<Vec<ClusterView>, show::Error>)>,
}

impl AllLedgers {
    /// Reads all of them at the same time.
    ///
    /// # Errors
    /// The settings cannot be used, or the home cannot be read.
    pub(super) async fn read(args: &AwsArgs, clusterset: &ClusterSetId) -> anyhow::Result<Self> {
        let cloudmap = connect::registry_for_command(args).await?;
        let others = connect::registries_for_command(args).await?.others;
        let others =
            others.into_iter().map(async |(name, cloudmap)| (name, patiently(clusters_of(cloudmap, clusterset)).await));
        let (home, others) = join(patiently(read_all(cloudmap, clusterset)), join_all(others)).await;
        Ok(Self { home: home?, others })
    }

    /// Every cluster that could be read, with its registry if that is not the home.
    pub(super) fn clusters(&self) -> impl Iterator<Item = (Option<&RegistryName>, &ClusterView)> {
        let others = self.others.iter().filter_map(|(name, views)| Some((name, views.as_ref().ok()?)));
        let others = others.flat_map(|(name, views)| views.iter().map(move |view| (Some(name), view)));
        self.home.iter().map(|view| (None, view)).chain(others)
    }

    /// Fails if a registry could not be read: what is shown lacks its clusters.
    ///
    /// # Errors
    /// Names these registries, and says why.
    pub(super) fn all_read(&self) -> anyhow::Result<()> {
        let unread = self.others.iter().filter_map(|(name, views)| Some((name, views.as_ref().err()?)));
        let unread: Vec<_> = unread.map(|(name, error)| format!("registry {name}: {error}")).collect();
        anyhow::ensure!(unread.is_empty(), "not all registries could be read: {}", unread.join("; "));
        Ok(())
    }
}

/// How long a call of AWS may take, its repetitions included; also a reading of the whole ledger.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a command says that it goes on.
pub(super) const SAY: Duration = Duration::from_secs(10);

const ASKING_CLUSTER: &str = "asking the API server who this cluster is, again where it does not answer";

/// How far work has come, for those who watch it.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<String>);

impl Progress {
    /// Sets the text.
    pub(super) fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// The text after a comma; empty if nothing is known yet.
    fn suffix(&self) -> String {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if text.is_empty() { String::new() } else { format!(", {text}") }
    }
}

/// Does work that may take minutes, and says meanwhile `what` it does, because silence looks like a hang.
pub(super) async fn aloud<T>(out: &mut impl Write, what: &str, work: impl Future<Output = T> + Unpin) -> T {
    counted(out, what, &Progress::default(), work).await
}

/// The same, and how far the work has come.
async fn counted<T>(
    out: &mut impl Write,
    what: &str,
    progress: &Progress,
    mut work: impl Future<Output = T> + Unpin,
) -> T {
    let begun = Instant::now();
    loop {
        if let Ok(done) = timeout(SAY, &mut work).await {
            return done;
        }
        // A closed output does not end the work.
        drop(writeln!(out, "{what}: {} s so far{}", begun.elapsed().as_secs(), progress.suffix()));
    }
}

/// Calls `look` until `wrong` finds nothing, for at most `patience`. Without patience, it looks once. Returns the last result.
/// Writes to `out` what it waits for, whenever that changes.
///
/// # Errors
/// The errors of `look`.
pub(super) async fn until_well<T>(
    out: &mut impl Write,
    patience: Option<Duration>,
    pause: Duration,
    mut look: impl AsyncFnMut() -> anyhow::Result<T>,
    wrong: impl Fn(&T) -> Option<String>,
) -> anyhow::Result<T> {
    let begun = Instant::now();
    let deadline = begun + patience.unwrap_or_default();
    let mut said = None;
    loop {
        let seen = look().await?;
        let Some(why) = wrong(&seen).filter(|_| Instant::now() + pause <= deadline) else { return Ok(seen) };
        if said.as_ref() != Some(&why) {
            // A closed output does not end the wait.
            drop(writeln!(out, "after {} s, waiting: {why}", begun.elapsed().as_secs()));
            said = Some(why);
        }
        sleep(pause).await;
    }
}

const ASKING_CLOUD_MAP: &str = "asking Cloud Map, again where AWS throttles or does not answer";

/// Does work that asks Cloud Map, however long that takes, and says so meanwhile on stderr.
pub(super) fn patiently<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    on_stderr(ASKING_CLOUD_MAP, work)
}

/// The same for work that takes many calls, of which `progress` says how many were made.
pub(super) fn patiently_counted<T>(progress: &Progress, work: impl Future<Output = T>) -> impl Future<Output = T> {
    let work = Box::pin(work);
    async move { counted(&mut io::stderr(), ASKING_CLOUD_MAP, progress, work).await }
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

/// Whether the next call would time out as well, because the server is away.
pub(super) const fn is_away(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Unknown | ErrorKind::NoCredentials)
}

/// The version of the API server, and how far its clock, which its answers have in whole seconds, is ahead of the one here;
/// `None` if an answer has no date.
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
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_looked_at_until_all_is_well_or_the_time_is_over() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_mins(1));
        let waited = async |patience, bad: u32| {
            let (mut out, mut looks) = (Vec::<u8>::new(), 0);
            let look = async || {
                looks += 1;
                Ok(looks)
            };
            let wrong = |looks: &u32| (*looks <= bad).then(|| format!("look {}", looks.div_ceil(10)));
            let last = until_well(&mut out, patience, second, look, wrong).await.unwrap();
            (last, String::from_utf8(out).unwrap())
        };
        assert_eq!(waited(None, 9).await, (1, String::new()), "nobody waits");
        assert_eq!(waited(Some(minute), 0).await, (1, String::new()));
        let said = "after 0 s, waiting: look 1\nafter 10 s, waiting: look 2\n";
        assert_eq!(waited(Some(minute), 12).await, (13, said.to_owned()));
        assert_eq!(waited(Some(minute), 999).await.0, 61, "the last look counts");
    }

    /// Calls that AWS throttles are repeated for half a minute each.
    #[tokio::test(start_paused = true)]
    async fn work_that_takes_long_says_so_every_ten_seconds() {
        let mut said = Vec::<u8>::new();
        let work = async |seconds| sleep(Duration::from_secs(seconds)).await;
        aloud(&mut said, "waiting", Box::pin(work(9))).await;
        assert!(said.is_empty(), "it is done soon");
        aloud(&mut said, "waiting", Box::pin(work(25))).await;
        assert_eq!(String::from_utf8(said).unwrap(), "waiting: 10 s so far\nwaiting: 20 s so far\n");

        let (mut said, progress) = (Vec::<u8>::new(), Progress::default());
        let counting = async {
            for done in 1..=3 {
                sleep(Duration::from_secs(8)).await;
                progress.set(format!("{done} of 3 services"));
            }
        };
        counted(&mut said, "waiting", &progress, Box::pin(counting)).await;
        let lines = "waiting: 10 s so far, 1 of 3 services\nwaiting: 20 s so far, 2 of 3 services\n";
        assert_eq!(String::from_utf8(said).unwrap(), lines);
    }
}
