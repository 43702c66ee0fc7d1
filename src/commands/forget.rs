//! `forget`: marks a dead cluster as left; and the look whether a cluster is alive, which `purge` needs, too.

use std::{collections::BTreeMap, io::Write as _, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::time::sleep;

use super::asking::{self, patiently};
use app::connect;
use cli::{ForgetArgs, KubeArgs};
use cloudmap::Permit;
use cluster::record::RecordObject;
use ledger::{
    CLUSTERS,
    head::Head,
    record::{self, Accepted, Gone, Record, RecordStore as _},
    show,
};
use model::{ClusterId, ClusterSetId};

pub(super) async fn forget(args: ForgetArgs) -> anyhow::Result<()> {
    let clusterset = asking::clusterset(&args.place.kube, &args.place.identity).await?;
    let (cloudmap, permit) = connect::registry_to_write(&args.place.aws).await?;
    refuse_if_moved(&args, &clusterset, &(cloudmap.clone() as _)).await?;
    let said = mark(&cloudmap, &permit, &clusterset, &args.place.kube, &args.cluster).await?;
    writeln!(std::io::stdout(), "{said}\nTo list what else it left behind: {}", listing(&clusterset, &args.cluster))?;
    Ok(())
}

/// Fails if the cluster has another home now, and is alive there. Another cluster with its id is none of its business.
async fn refuse_if_moved(
    args: &ForgetArgs,
    clusterset: &ClusterSetId,
    home: &Arc<dyn cloudmap::Read>,
) -> anyhow::Result<()> {
    let others = connect::registries_for_command(&args.place.aws).await?.others;
    if others.is_empty() {
        return Ok(());
    }
    let uid =
        |heads: &BTreeMap<Arc<str>, Arc<Head>>| heads.get(args.cluster.as_str()).map(|head| Arc::clone(&head.uid));
    let here = uid(&live(home, clusterset, Some(&args.cluster)).await?);
    for (name, cloudmap) in others {
        let there = live(&cloudmap, clusterset, Some(&args.cluster)).await?;
        if here.is_none() || uid(&there) == here {
            let alive = refuse_if_alive(&cloudmap, clusterset, Some(&args.cluster), false).await;
            alive.with_context(|| format!("the cluster has a ledger in the registry {name}"))?;
        }
    }
    Ok(())
}

/// The command that lists what a cluster left behind. It names the ClusterSet, because the same id may belong to another
/// cluster in the ClusterSet of another context.
fn listing(clusterset: &ClusterSetId, cluster: &ClusterId) -> String {
    format!("cloudmap-mcs purge --clusterset-id {clusterset} --cluster {cluster} --dry-run")
}

/// Marks a cluster as left unless it is alive, and returns what follows from that.
async fn mark(
    cloudmap: &Arc<dyn cloudmap::Write>,
    permit: &Permit,
    clusterset: &ClusterSetId,
    kube: &KubeArgs,
    cluster: &ClusterId,
) -> anyhow::Result<String> {
    // Also if no head is there now: that one discovery does not show it says nothing.
    let heads = refuse_if_alive(&(cloudmap.clone() as _), clusterset, Some(cluster), true).await?;
    if signed(kube, clusterset, cluster, heads.get(cluster.as_str())).await? {
        return Ok(format!(
            "This cluster drops the exports of cluster {cluster} within seconds, and says so in its ledger. Each other cluster \
             follows when {cluster} is stale there, that is, silent for 5 minutes."
        ));
    }
    let deleted = match patiently(show::forget(Arc::clone(cloudmap), permit, clusterset, cluster)).await {
        Err(no_head @ show::Error::NoHead(_)) => {
            let Some(recorded) = recorded(kube, clusterset, cluster).await else { return Err(no_head.into()) };
            patiently(show::forget_recorded(Arc::clone(cloudmap), permit, clusterset, cluster, &recorded)).await?;
            0
        }
        deleted => deleted?,
    };
    Ok(format!(
        "Cluster {cluster} is marked as left, and {deleted} of its pages are deleted. The others drop its exports within seconds."
    ))
}

/// Notes in the record of this cluster that another one is gone, if that one signs its heads: without its key, no head can
/// say so. `false` if it does not sign, or if there is no cluster to connect to.
async fn signed(
    kube: &KubeArgs,
    clusterset: &ClusterSetId,
    cluster: &ClusterId,
    last: Option<&Arc<Head>>,
) -> anyhow::Result<bool> {
    let Ok(client) = connect::kubernetes(kube).await else { return Ok(false) };
    record_gone(&RecordObject::new(client, &kube.controller.namespace), clusterset, cluster, last).await
}

/// `false` without a record, or if it has no key of the cluster. A record that cannot be read may have one.
async fn record_gone(
    store: &RecordObject,
    clusterset: &ClusterSetId,
    cluster: &ClusterId,
    last: Option<&Arc<Head>>,
) -> anyhow::Result<bool> {
    let said = record::update(store, |record| forget_in(record, clusterset, cluster, last)).await;
    let said = said.with_context(|| format!("failed to say in the record of this cluster that {cluster} is gone"))?;
    Ok(said.unwrap_or_default())
}

/// Says in the record that the cluster is gone since its last head; `false` if the record has no key of it, or is that of a
/// cluster in another ClusterSet, where another cluster may have the id. The recorded position is that of the last change:
/// heartbeats since then would take the cluster back under a leader that has read none of them before.
fn forget_in(record: &mut Record, clusterset: &ClusterSetId, cluster: &ClusterId, last: Option<&Arc<Head>>) -> bool {
    if !record.is_of(clusterset.as_str()) {
        return false;
    }
    let accepted = record.accepted.get_mut(cluster.as_str()).filter(|accepted| accepted.key.is_some());
    // Of two clusters with one id, in two registries, the record has the other one.
    let is_it =
        |accepted: &&mut Accepted| accepted.registry.is_none() || last.is_none_or(|last| *last.uid == *accepted.uid);
    let accepted = accepted.filter(is_it);
    let Some(accepted) = accepted else { return false };
    // Anybody may have written one that the cluster did not sign.
    let genuine = last.filter(|last| *last.uid == *accepted.uid && last.signer == accepted.key);
    if let Some(last) = genuine.filter(|last| last.position > accepted.position) {
        (accepted.position, accepted.written) = (last.position, last.written);
    }
    accepted.gone = Some(Gone::Forgotten);
    true
}

/// What the cluster of this command has recorded about another one, if it can be asked.
async fn recorded(kube: &KubeArgs, clusterset: &ClusterSetId, cluster: &ClusterId) -> Option<Accepted> {
    let client = connect::kubernetes(kube).await.ok()?;
    let (record, _) = RecordObject::new(client, &kube.controller.namespace).load().await.ok()??;
    if !record.is_of(clusterset.as_str()) {
        return None;
    }
    record.accepted.get(cluster.as_str()).cloned()
}

/// Longer than two heartbeats of the ledger.
const ALIVE_WITHIN: Duration = Duration::from_secs(45);

/// Fails if the head of a cluster (`None`: of any cluster of the ClusterSet) shows a member, and its ledger advances. Its
/// controller would restore what is removed, so a person should decide. `headless`: something belongs to a cluster that has no head,
/// so even if no head is there now, one may appear. Returns the last heads of the members.
pub(super) async fn refuse_if_alive(
    cloudmap: &Arc<dyn cloudmap::Read>,
    clusterset: &ClusterSetId,
    cluster: Option<&ClusterId>,
    headless: bool,
) -> anyhow::Result<BTreeMap<Arc<str>, Arc<Head>>> {
    let before = live(cloudmap, clusterset, cluster).await?;
    if before.is_empty() && !headless {
        return Ok(before);
    }
    let names: Vec<_> = cluster.map_or_else(|| before.keys().map(AsRef::as_ref).collect(), |id| vec![id.as_str()]);
    let names = if names.is_empty() { "a cluster".to_owned() } else { names.join(", ") };
    writeln!(std::io::stdout(), "Watching for {} s whether {names} is alive ...", ALIVE_WITHIN.as_secs())?;
    sleep(ALIVE_WITHIN).await;
    let after = live(cloudmap, clusterset, cluster).await?;
    let alive: Vec<_> = after
        .iter()
        .filter(|(id, head)| before.get(*id).is_none_or(|before| before.position < head.position))
        .map(|(id, _)| &**id)
        .collect();
    anyhow::ensure!(
        alive.is_empty(),
        "{} is alive: its ledger advances. Run `cloudmap-mcs leave` in that cluster instead",
        alive.join(", ")
    );
    Ok(before)
}

/// The heads of the clusters that say that they are members. Fails if nobody knows what one says.
async fn live(
    cloudmap: &Arc<dyn cloudmap::Read>,
    clusterset: &ClusterSetId,
    cluster: Option<&ClusterId>,
) -> anyhow::Result<BTreeMap<Arc<str>, Arc<Head>>> {
    let views = patiently(asking::clusters_of(Arc::clone(cloudmap), clusterset)).await?;
    let mut live = BTreeMap::new();
    for view in views.into_iter().filter(|view| cluster.is_none_or(|cluster| *view.id == *cluster.as_str())) {
        let Some(head) = view.head else {
            anyhow::bail!(
                "the head of cluster {0} cannot be read, so nobody knows whether {0} is alive: {1}. Run a later version of this \
                 program, or try again. If {0} is dead for sure, first deregister the instance {0} of the Cloud Map service \
                 {CLUSTERS} by hand",
                view.id,
                view.problems.join("; ")
            )
        };
        if head.is_live() {
            live.insert(view.id, head);
        }
    }
    Ok(live)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::purge::tests::{clusterset, heads, member};
    use cli::{Cli, Command};
    use cloudmap::fake::{Fake, permit};
    use cluster::{fake_api::FakeApi, record::RECORD};
    use ledger::record::{Member, Position};
    use model::PublicKey;

    #[test]
    fn the_command_that_lists_the_rest_leads_to_the_same_cluster_set() {
        let said = listing(&clusterset(), &"blue".parse().unwrap());
        let Command::Purge(args) = Cli::parse_from(said.split(' ')).command else { panic!("not purge") };
        assert_eq!((args.place.identity.clusterset_id, args.dry_run), (Some(clusterset()), true));
        assert_eq!(args.cluster.unwrap().as_str(), "blue");
    }

    #[test]
    fn a_cluster_is_gone_since_the_last_head_that_it_signed() {
        let (own, other) = (PublicKey::from_bytes([1; 32]), PublicKey::from_bytes([9; 32]));
        let blue: ClusterId = "blue".parse().unwrap();
        let (recorded, later) = (Position { epoch: 2, seq: 7 }, Position { epoch: 2, seq: 900 });
        let head = |uid: &str, position, signer| {
            Arc::new(Head { uid: uid.into(), position, signer, ..ledger::fixtures::head() })
        };
        for (last, position) in [
            (None, recorded),
            (Some(head("uid-blue", later, Some(own))), later),
            (Some(head("uid-blue", Position { epoch: 1, seq: 1 }, Some(own))), recorded),
            (Some(head("uid-blue", later, Some(other))), recorded),
            (Some(head("uid-blue", later, None)), recorded),
            (Some(head("uid-other", later, Some(own))), recorded),
        ] {
            let accepted = Accepted { position: recorded, ..Accepted::unread("uid-blue".to_owned(), Some(own)) };
            let mut record = Record { accepted: [("blue".to_owned(), accepted)].into(), ..Record::default() };
            assert!(forget_in(&mut record, &clusterset(), &blue, last.as_ref()));
            let accepted = &record.accepted["blue"];
            assert_eq!((accepted.gone, accepted.position), (Some(Gone::Forgotten), position), "{last:?}");
        }
    }

    #[test]
    fn a_cluster_of_another_cluster_set_with_the_same_id_is_not_forgotten() {
        let blue: ClusterId = "blue".parse().unwrap();
        let accepted = Accepted::unread("uid-blue".to_owned(), Some(PublicKey::from_bytes([1; 32])));
        let member = |clusterset: &str| Member { clusterset: clusterset.to_owned(), cluster: "green".to_owned() };
        for (own, forgotten) in [("prod", true), ("staging", false)] {
            let accepted = [("blue".to_owned(), accepted.clone())].into();
            let mut record = Record { member: Some(member(own)), accepted, ..Record::default() };
            assert_eq!(forget_in(&mut record, &clusterset(), &blue, None), forgotten);
            assert_eq!(record.accepted["blue"].gone.is_some(), forgotten);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_live_cluster_whose_head_is_not_shown_for_a_moment_is_not_forgotten() {
        let fake = Fake::new();
        let _blue = member(&fake, "blue", "blue").await;
        let head = (heads(&fake), "blue".into());
        fake.registry().undiscovered.insert(head);
        let cloudmap: Arc<dyn cloudmap::Write> = Arc::new(fake.clone());
        let arguments = ["cloudmap-mcs", "forget", "blue", "--kubeconfig=/there/is/none"];
        let Command::Forget(args) = Cli::parse_from(arguments).command else { panic!("not forget") };
        let show_again = async {
            sleep(Duration::from_secs(3)).await;
            fake.registry().undiscovered.clear();
        };
        let clusterset = clusterset();
        let permit = permit();
        let marking = mark(&cloudmap, &permit, &clusterset, &args.place.kube, &args.cluster);
        let (marked, ()) = tokio::join!(marking, show_again);
        let message = marked.unwrap_err().to_string();
        assert!(message.contains("blue is alive"), "{message}");
    }

    #[tokio::test]
    async fn forget_fails_if_the_record_cannot_be_read() {
        let api = FakeApi::default();
        let store = RecordObject::new(api.client(), "cloudmap-mcs-system");
        let blue: ClusterId = "blue".parse().unwrap();
        api.refuse(403, "Forbidden", "its words");
        let error = format!("{:#}", record_gone(&store, &clusterset(), &blue, None).await.unwrap_err());
        assert!(error.contains("blue") && error.contains("its words"), "{error}");
        api.refuse(404, "NotFound", "configmaps \"cloudmap-mcs-ledger\" not found");
        assert!(
            !record_gone(&store, &clusterset(), &blue, None).await.unwrap(),
            "a cluster in which no controller has ever led"
        );
        api.prepare(200, json!({"metadata": {"name": RECORD, "resourceVersion": "1"}}));
        assert!(!record_gone(&store, &clusterset(), &blue, None).await.unwrap(), "it knows no key of that cluster");
    }
}
