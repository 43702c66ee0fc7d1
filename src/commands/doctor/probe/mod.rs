//! Temporary pods: in each cluster one that listens, and one or more that connect to the listening pods of the other clusters
//! and resolve an imported name. They are deleted in any case. Pods that an earlier run left behind are deleted first; those of
//! a run that is still going on stay.

mod pods;
mod program;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use futures::{FutureExt as _, future::join_all};
use k8s_openapi::{
    api::core::v1::{Pod, PodSpec},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::SignedDuration,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
};
use tokio::time::{Instant, sleep, timeout_at};

pub(super) use self::program::{Connected, Outcome, Tried, run};
use super::observe::Import;
use api::names;
use base::env;
use cluster::reader::{Unread, read};

/// How long the pods may take until they run, and then until they are done. Nodes may have to pull the image.
const PATIENCE: Duration = Duration::from_mins(2);
/// Kubernetes ends the pods after this time, whatever becomes of this process. A run needs them for a shorter time.
pub(super) const DEADLINE: Duration = Duration::from_mins(6);
const POLL: Duration = Duration::from_millis(500);
/// How many addresses a pod tries. What it says of more would not fit into its status, which has 4,096 bytes for it.
const TARGETS: usize = 20;
/// How long pods may take to disappear.
const GONE: Duration = Duration::from_mins(1);

/// A cluster in which pods are created.
#[derive(Clone)]
pub(super) struct Member {
    pub(super) name: String,
    /// The label of the pods of this run.
    pub(super) run: String,
    /// How far the API server's clock is ahead of the one here.
    pub(super) ahead: SignedDuration,
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) image: String,
    /// Where the image may come from, and on which nodes it runs.
    pub(super) template: PodSpec,
    /// The name to resolve.
    pub(super) import: Option<Import>,
    /// Where its leader listens for those of other clusters.
    pub(super) streams: Vec<SocketAddr>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Probed {
    pub(super) port: u16,
    pub(super) clusters: BTreeMap<String, Probe>,
}

/// What came of it in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Probe {
    /// The label of the pods of this run.
    pub(super) run: String,
    /// The addresses of the pod that listens, or why it does not run.
    pub(super) listens: Result<Vec<IpAddr>, String>,
    /// What the other pod did, or why nothing is known of it.
    pub(super) tried: Result<Tried, String>,
    pub(super) import: Option<Import>,
    /// Where its leader listens for those of other clusters.
    pub(super) streams: Vec<SocketAddr>,
    /// Why pods are left.
    pub(super) left: Option<String>,
}

impl Probed {
    /// The cluster whose pod listens at an address.
    pub(super) fn listener(&self, address: IpAddr) -> Option<&str> {
        let listens = |probe: &Probe| probe.listens.as_ref().is_ok_and(|all| all.contains(&address));
        self.clusters.iter().find(|(_, probe)| listens(probe)).map(|(name, _)| name.as_str())
    }
}

/// Tries the network. When `stop` ends first, the pods are deleted, and there is no result.
///
/// # Errors
/// `stop` ended first; in which clusters pods are left, and why.
pub(super) async fn probe(
    members: &[Member],
    port: u16,
    stop: impl Future<Output = ()>,
) -> Result<Probed, BTreeMap<String, String>> {
    let cleaned = join_all(members.iter().map(|member| clean(member, Whose::Former))).await;
    let tried = tokio::select! {
        biased;
        () = stop => None,
        tried = attempt(members, cleaned, port) => Some(tried),
    };
    let left = join_all(members.iter().map(|member| clean(member, Whose::Own))).await;
    let left = members.iter().zip(left).filter_map(|(member, left)| Some((member.name.clone(), left.err()?)));
    let mut left: BTreeMap<_, _> = left.collect();
    let Some(mut probed) = tried else { return Err(left) };
    for (name, probe) in &mut probed.clusters {
        probe.left = left.remove(name);
    }
    Ok(probed)
}

/// Creates pods only where they can be deleted.
async fn attempt(members: &[Member], cleaned: Vec<Result<(), String>>, port: u16) -> Probed {
    let listens = members.iter().zip(cleaned).map(|(member, cleaned)| async move {
        cleaned.map_err(|why| format!("pods cannot be listed and deleted: {why}"))?;
        listen(member, port).await
    });
    let listens = join_all(listens).await;
    let listeners: Vec<(&Member, &[IpAddr])> =
        members.iter().zip(&listens).filter_map(|(member, ips)| Some((member, ips.as_deref().ok()?))).collect();
    let tried = members.iter().zip(&listens).map(|(member, own)| {
        let families: BTreeSet<bool> = own.iter().flatten().map(IpAddr::is_ipv4).collect();
        let others = listeners.iter().filter(|(other, _)| other.name != member.name);
        let pods =
            others.flat_map(|(other, ips)| ips.iter().map(|ip| (SocketAddr::new(*ip, port), other.name.clone())));
        // Leaders say nothing to strangers: it is enough to be connected.
        let leaders = members.iter().filter(|other| other.name != member.name).flat_map(|other| &other.streams);
        let targets: Vec<_> = pods
            .chain(leaders.map(|address| (*address, String::new())))
            .filter(|(address, _)| families.contains(&address.is_ipv4()))
            .collect();
        async move {
            match own {
                Ok(_) => connect(member, &targets).await,
                Err(_) => Err("the pod that listens does not run".to_owned()),
            }
        }
        .boxed()
    });
    let tried = join_all(tried).await;
    let clusters = members.iter().zip(listens.into_iter().zip(tried)).map(|(member, (listens, tried))| {
        let (run, import, streams) = (member.run.clone(), member.import.clone(), member.streams.clone());
        (member.name.clone(), Probe { run, listens, tried, import, streams, left: None })
    });
    Probed { port, clusters: clusters.collect() }
}

fn api(member: &Member) -> Api<Pod> {
    Api::namespaced(member.client.clone(), &member.namespace)
}

async fn listen(member: &Member, port: u16) -> Result<Vec<IpAddr>, String> {
    let name = create(member, &pods::listener(member, port)).await?;
    let ips = |pod: &Pod| {
        let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Running"))?;
        let ips = status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.parse().ok());
        Some(ips.collect::<Vec<IpAddr>>()).filter(|ips| !ips.is_empty())
    };
    wait(member, &name, ips).await
}

async fn connect(member: &Member, targets: &[(SocketAddr, String)]) -> Result<Tried, String> {
    let mut pods = Vec::new();
    // Without an address there is still the name to resolve.
    for some in targets.chunks(TARGETS).chain(targets.is_empty().then_some(targets)) {
        pods.push(try_out(member, some).boxed());
    }
    let mut all = Tried::default();
    for tried in join_all(pods).await {
        let Tried { connected, resolved } = tried?;
        all.connected.extend(connected);
        all.resolved = resolved;
    }
    Ok(all)
}

/// What one pod found out.
async fn try_out(member: &Member, targets: &[(SocketAddr, String)]) -> Result<Tried, String> {
    let name = create(member, &pods::client(member, targets)).await?;
    let message = |pod: &Pod| {
        let mut containers = pod.status.as_ref()?.container_statuses.iter().flatten();
        let ended = containers.find_map(|container| container.state.as_ref()?.terminated.as_ref())?;
        Some((ended.exit_code, ended.message.clone().unwrap_or_default()))
    };
    let (code, message) = wait(member, &name, message).await?;
    serde_json::from_str(&message)
        .map_err(|_| format!("it ended with {code}: {message:?} (does the image have this program in this version?)"))
}

async fn create(member: &Member, pod: &Pod) -> Result<String, String> {
    let created = read(api(member).create(&PostParams::default(), pod)).await;
    created.map(|pod| pod.name_any()).map_err(|why| format!("it cannot be created: {why}"))
}

/// Waits until a pod has what is wanted.
async fn wait<T>(member: &Member, name: &str, wanted: impl Fn(&Pod) -> Option<T>) -> Result<T, String> {
    let until = Instant::now() + PATIENCE;
    let mut why = "the API server does not show it".to_owned();
    while Instant::now() < until {
        match read(api(member).get(name)).await {
            Ok(pod) => match wanted(&pod) {
                Some(found) => return Ok(found),
                None => why = pods::state(&pod),
            },
            Err(error) => why = error.to_string(),
        }
        sleep(POLL).await;
    }
    Err(format!("after {} s {why}", PATIENCE.as_secs()))
}

/// Which temporary pods are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Those of this run.
    Own,
    /// Those of runs that are over.
    Former,
}

/// What selects the temporary pods of a run.
pub(super) fn selector(run: &str) -> String {
    format!("{}={run}", names::LABEL_DOCTOR)
}

/// Whether no run needs the pod any more.
fn is_over(pod: &Pod, member: &Member) -> bool {
    let now = env::timestamp().checked_add(member.ahead).unwrap_or_default();
    let age = pod.creation_timestamp().map(|Time(then)| now.duration_since(then));
    age.is_some_and(|age| Duration::try_from(age).is_ok_and(|age| age > DEADLINE))
}

/// Deletes temporary pods, and waits until they are gone. A pod whose creation was on its way when it was given up may
/// appear a little later, and is deleted, too.
async fn clean(member: &Member, whose: Whose) -> Result<(), String> {
    let until = Instant::now() + GONE;
    let all = ListParams::default().labels(&match whose {
        Whose::Own => selector(&member.run),
        Whose::Former => names::LABEL_DOCTOR.to_owned(),
    });
    let at_once = DeleteParams::default().grace_period(0);
    let mut empty = 0;
    let cleaning = async {
        let mut failed = None;
        while empty < 2 {
            match read(api(member).list(&all)).await {
                Ok(mut found) => {
                    found.items.retain(|pod| whose == Whose::Own || is_over(pod, member));
                    if found.items.is_empty() {
                        empty += 1;
                    } else {
                        (empty, failed) = (0, None);
                    }
                    for pod in found {
                        // If it is gone already, the next list does not have it.
                        let deleted = read(api(member).delete(&pod.name_any(), &at_once)).await;
                        failed = deleted.err().map(|error| error.to_string()).or(failed);
                    }
                }
                Err(error @ Unread::Forbidden(_)) => return Err(error.to_string()),
                Err(error) => failed = Some(error.to_string()),
            }
            if failed.is_some() && Instant::now() + POLL > until {
                return Err(failed.unwrap_or_default());
            }
            sleep(POLL).await;
        }
        Ok(())
    };
    timeout_at(until, cleaning)
        .await
        .unwrap_or_else(|_| Err(format!("they are still there after {} s", GONE.as_secs())))
}
