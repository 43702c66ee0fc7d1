//! `leave`: asks the leader to withdraw everything, and waits for it.

use std::{io::Write as _, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::time::{Instant, sleep};

use crate::{
    app::connect,
    cli::LeaveArgs,
    cloudmap::CloudMap,
    cluster::record::{self, Record, RecordObject},
    ledger::{
        show,
        trust::{COPY_INSTANCE, KEY_INSTANCE},
    },
    model::{ClusterId, ClusterSetId},
};

/// How often `leave` asks the registry whether the leader is done.
const POLL: Duration = Duration::from_secs(2);

/// Sets the flag in the record, on which the leader acts, and waits until the registry shows the result.
pub(super) async fn leave(args: LeaveArgs) -> anyhow::Result<()> {
    let client = connect::kubernetes(&args.place.kube).await?;
    let record = RecordObject::new(client.clone(), &args.place.kube.controller_namespace);
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
        // The key proves what the head says, and the copy says it as well.
        .all(|belonging| belonging.instances.iter().all(|id| [KEY_INSTANCE, COPY_INSTANCE].contains(&&**id))))
}

/// Returns whether the flag changed.
async fn flag(record: &RecordObject, leaving: bool) -> anyhow::Result<bool> {
    let set = |record: &mut Record| std::mem::replace(&mut record.leaving, leaving) != leaving;
    let changed = record::update(record, set).await?;
    changed.context(
        "this cluster has no ledger record: its controller has never led, or is not in the namespace that \
         --controller-namespace says",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::fake_api::FakeApi;

    #[tokio::test]
    async fn undo_without_a_record_fails() {
        let api = FakeApi::default();
        let store = RecordObject::new(api.client(), "elsewhere");
        for leaving in [true, false] {
            api.refuse(404, "NotFound", "configmaps \"cloudmap-mcs-ledger\" not found");
            let error = flag(&store, leaving).await.unwrap_err().to_string();
            assert!(error.contains("--controller-namespace"), "{error}");
        }
        api.prepare(200, json!({"metadata": {"name": record::RECORD, "resourceVersion": "1"}}));
        assert!(!flag(&store, false).await.unwrap(), "it was not leaving");
    }
}
