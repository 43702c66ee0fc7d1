//! Leaving a former ClusterSet after the ClusterSet of this cluster was changed (W9).

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::Registry;
use crate::{
    cloudmap::CloudMap,
    ledger::{
        call::{Failure, Outcome},
        head::{Delta, Head, Presence, Root},
        record::{Member, Position},
        show,
    },
    model::{ClusterId, ClusterSetId},
};

/// Time between two looks whether the ledger says `left`, and their number.
const LOOK: Duration = Duration::from_secs(3);
const LOOKS: u32 = 10;

/// Marks the membership as left, if its ledger has a live head of this cluster, and deletes its pages. Its instances
/// stay: their marks name the other ClusterSet, and `purge` finds them.
///
/// # Errors
/// The ledger cannot be read or written, or does not say `left` (yet). Try again.
pub(super) async fn depart(cloudmap: &Arc<dyn CloudMap>, from: &Member, uid: &str) -> Result<Outcome, Failure> {
    let Member { clusterset, cluster } = from;
    // An invalid id was never a member.
    let (Ok(set), Ok(id)) = (clusterset.parse::<ClusterSetId>(), cluster.parse::<ClusterId>()) else {
        return Ok(Outcome::Done);
    };
    let registry = Registry::new(Arc::clone(cloudmap), &set).owned_by(&id, uid);
    if registry.find_namespace().await?.is_none() {
        return Ok(Outcome::Done);
    }
    for look in 0..LOOKS {
        let heads = registry.read_heads().await?.unwrap_or_default();
        let Some(Ok(head)) = heads.get(cluster.as_str()) else { return Ok(Outcome::Done) };
        if *head.uid != *uid || registry.creator(cluster).await?.as_deref() != Some(uid) {
            return Ok(Outcome::Done);
        }
        if !head.is_live() {
            let deleted = show::delete_pages(cloudmap, &registry, &set, &id).await?;
            tracing::warn!(
                clusterset,
                cluster,
                pages = deleted,
                "this cluster's ClusterSet was changed, and it leaves the former one. Its instances for the former one \
                 stay until you run: cloudmap-mcs purge --clusterset-id {clusterset} --cluster {cluster}"
            );
            return Ok(Outcome::Done);
        }
        if look == 0 {
            let farewell = Head {
                position: Position { epoch: head.position.epoch + 1, seq: 1 },
                presence: Presence::Left { successor: None },
                root: Root::empty(head.root.shards),
                delta: Arc::new(Delta::default()),
                ..Head::clone(head)
            };
            registry.put_head(&farewell).await?;
        }
        sleep(LOOK).await;
    }
    let message = format!("the ledger of the former ClusterSet {clusterset} does not show yet that {cluster} left");
    Err(Failure { message, uncertain: true })
}
