//! The small commands.

use std::{collections::BTreeMap, io::Write as _, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::time::{Instant, sleep};

use super::connect;
use crate::{
    api,
    cli::{ForgetArgs, KubeArgs, LeaveArgs},
    cloudmap::CloudMap,
    cluster::record::{Accepted, Position, Record, RecordObject, RecordStore, StoreError},
    ledger::show,
    model::{ClusterId, ClusterSetId},
};

pub(super) fn crds() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for crd in api::crds() {
        writeln!(out, "---\n{}", serde_yaml_ng::to_string(&crd)?.trim_end())?;
    }
    Ok(())
}

/// How often `leave` asks the registry whether the leader is done.
const POLL: Duration = Duration::from_secs(2);

/// Sets the flag in the record, on which the leader acts, and waits until the registry shows the result.
pub(super) async fn leave(args: LeaveArgs) -> anyhow::Result<()> {
    let client = connect::kubernetes(&args.place.kube).await?;
    let record = RecordObject::new(client.clone(), &args.place.kube.namespace);
    let mut out = std::io::stdout();
    if args.undo {
        flag(&record, false).await?;
        writeln!(out, "The cluster rejoins the ClusterSet: its leader exports again within seconds.")?;
        return Ok(());
    }
    let identity = connect::identity(&client, &args.place.identity).await?;
    let clusterset = identity.clusterset.context("this cluster is in no ClusterSet, so there is nothing to leave")?;
    let cloudmap = connect::registry_for_command(&args.place.aws).await?;
    let news = if flag(&record, true).await? { "The flag is set" } else { "The flag was already set" };
    writeln!(
        out,
        "{news}. The leader withdraws the exports, the instances, the imports and the ledger of cluster {}.",
        identity.cluster
    )?;
    let deadline = Instant::now() + args.timeout;
    while Instant::now() < deadline {
        if has_left(&cloudmap, &clusterset, &identity.cluster).await? {
            writeln!(out, "Done: nothing of this cluster is left in the registry. You can now remove the controller.")?;
            return Ok(());
        }
        sleep(POLL).await;
    }
    anyhow::bail!(
        "the leader is not done after {} s. It continues by itself; look at its logs, and at `cloudmap-mcs purge --dry-run`",
        args.timeout.as_secs()
    )
}

/// Whether the cluster has left: its head says `left`, which it does only after the last instance is gone, and it has
/// no pages.
async fn has_left(
    cloudmap: &Arc<dyn CloudMap>,
    clusterset: &ClusterSetId,
    cluster: &ClusterId,
) -> anyhow::Result<bool> {
    let views = show::read_all(Arc::clone(cloudmap), clusterset).await?;
    let head = views.iter().find(|view| *view.id == *cluster.as_str()).and_then(|view| view.head.clone());
    if head.is_some_and(|head| head.is_live()) {
        return Ok(false);
    }
    let belongings = show::belongings(Arc::clone(cloudmap), clusterset, Some(cluster)).await?;
    Ok(belongings
        .iter()
        .filter(|belonging| belonging.cluster.is_some())
        .all(|belonging| belonging.instances.is_empty()))
}

/// Returns whether the flag changed.
async fn flag(record: &RecordObject, leaving: bool) -> anyhow::Result<bool> {
    loop {
        let Some((stored, version)) = RecordStore::load(record).await? else {
            anyhow::ensure!(
                !leaving,
                "this cluster has no ledger record: its controller has never led, or --namespace is not the \
                 controller's namespace"
            );
            return Ok(false);
        };
        if stored.leaving == leaving {
            return Ok(false);
        }
        match RecordStore::store(record, &Record { leaving, ..stored }, &version).await {
            Ok(_) => return Ok(true),
            Err(StoreError::Conflict) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(super) async fn forget(args: ForgetArgs) -> anyhow::Result<()> {
    let clusterset = connect::clusterset(&args.place.kube, &args.place.identity).await?;
    let cloudmap = connect::registry_for_command(&args.place.aws).await?;
    refuse_if_alive(&cloudmap, &clusterset, Some(&args.cluster)).await?;
    let deleted = match show::forget(Arc::clone(&cloudmap), &clusterset, &args.cluster).await {
        Err(no_head @ show::Error::NoHead(_)) => {
            let Some(recorded) = recorded(&args.place.kube, &args.cluster).await else { return Err(no_head.into()) };
            refuse_if_it_advances(&cloudmap, &clusterset, Some(&args.cluster), &BTreeMap::new()).await?;
            show::forget_recorded(cloudmap, &clusterset, &args.cluster, &recorded).await?;
            0
        }
        deleted => deleted?,
    };
    writeln!(
        std::io::stdout(),
        "Cluster {0} is marked as left, and {deleted} of its pages are deleted. The others drop its exports within \
         seconds.\nTo list what else it left behind: cloudmap-mcs purge --cluster {0} --dry-run",
        args.cluster
    )?;
    Ok(())
}

/// What the cluster of this command has recorded about another one, if it can be asked.
async fn recorded(kube: &KubeArgs, cluster: &ClusterId) -> Option<Accepted> {
    let client = connect::kubernetes(kube).await.ok()?;
    let (record, _) = RecordObject::new(client, &kube.namespace).load().await.ok()??;
    record.accepted.get(cluster.as_str()).cloned()
}

/// Longer than two heartbeats of the ledger.
const ALIVE_WITHIN: Duration = Duration::from_secs(45);

/// Fails if a cluster (`None`: any cluster of the ClusterSet) says that it is a member and its ledger advances. It
/// would restore what is removed, so a person should decide.
pub(super) async fn refuse_if_alive(
    cloudmap: &Arc<dyn CloudMap>,
    clusterset: &ClusterSetId,
    cluster: Option<&ClusterId>,
) -> anyhow::Result<()> {
    let before = live(cloudmap, clusterset, cluster).await?;
    if before.is_empty() {
        return Ok(());
    }
    refuse_if_it_advances(cloudmap, clusterset, cluster, &before).await
}

/// Positions of the clusters that say that they are members.
async fn live(
    cloudmap: &Arc<dyn CloudMap>,
    clusterset: &ClusterSetId,
    cluster: Option<&ClusterId>,
) -> anyhow::Result<BTreeMap<Arc<str>, Position>> {
    let views = show::read_all(Arc::clone(cloudmap), clusterset).await?;
    Ok(views
        .into_iter()
        .filter(|view| cluster.is_none_or(|cluster| *view.id == *cluster.as_str()))
        .filter_map(|view| Some((view.id, view.head?)))
        .filter(|(_, head)| head.is_live())
        .map(|(id, head)| (id, head.position))
        .collect())
}

async fn refuse_if_it_advances(
    cloudmap: &Arc<dyn CloudMap>,
    clusterset: &ClusterSetId,
    cluster: Option<&ClusterId>,
    before: &BTreeMap<Arc<str>, Position>,
) -> anyhow::Result<()> {
    let names: Vec<_> = cluster.map_or_else(|| before.keys().map(AsRef::as_ref).collect(), |id| vec![id.as_str()]);
    writeln!(std::io::stdout(), "Watching for {} s whether {} is alive ...", ALIVE_WITHIN.as_secs(), names.join(", "))?;
    sleep(ALIVE_WITHIN).await;
    let after = live(cloudmap, clusterset, cluster).await?;
    let alive: Vec<_> = after
        .iter()
        .filter(|(id, position)| before.get(*id).is_none_or(|b| b < *position))
        .map(|(id, _)| &**id)
        .collect();
    anyhow::ensure!(
        alive.is_empty(),
        "{} is alive: its ledger advances. Run `cloudmap-mcs leave` in that cluster instead",
        alive.join(", ")
    );
    Ok(())
}
