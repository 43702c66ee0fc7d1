//! Leaving a former ClusterSet after the ClusterSet of this cluster was changed (W9).

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Leadership, Registry, permit};
use crate::{
    call::{Failure, Outcome},
    head::{Delta, Head, Presence, Root},
    limits::Timing,
    record::{Member, Position},
    show,
    trust::Keys,
};
use model::{ClusterId, ClusterSetId};

/// Time between two looks at the ledger, and how many of them may not show `left` yet.
const LOOK: Duration = Duration::from_secs(3);
const LOOKS: u32 = 10;
/// Longest wait for a head that does not advance: somebody writes it.
const PATIENCE: Duration = Duration::from_mins(3);

/// Marks the membership as left, if its ledger has a live head of this cluster that nobody writes any more, and deletes
/// its pages. Without a head for a while, there is nothing to mark. Its instances stay: their marks name the other ClusterSet, and `purge` finds them.
///
/// # Errors
/// The ledger cannot be read or written, or does not say `left` (yet). Try again.
pub(super) async fn depart(
    cloudmap: &Arc<dyn cloudmap::Write>,
    from: &Member,
    uid: &str,
    keys: Option<Arc<Keys>>,
    leadership: &dyn Leadership,
) -> Result<Outcome, Failure> {
    let Member { clusterset, cluster } = from;
    // An invalid id was never a member.
    let (Ok(set), Ok(id)) = (clusterset.parse::<ClusterSetId>(), cluster.parse::<ClusterId>()) else {
        return Ok(Outcome::Done);
    };
    let own = keys.as_ref().map(|keys| keys.own()).unwrap_or_default();
    let signed = |head: &Arc<Head>| *head.uid == *uid && head.signer.is_some_and(|signer| own.contains(&signer));
    let registry = Registry::new(Arc::clone(cloudmap), &set).owned_by(&id, uid).signed_with(keys);
    if registry.find_namespace().await?.is_none()
        || registry.creator(cluster).await?.is_none_or(|creator| creator.by != uid)
    {
        return Ok(Outcome::Done);
    }
    let begun = Instant::now();
    let mut seen: Option<(Position, Instant)> = None;
    let mut looks = None;
    let mut absent: Option<Instant> = None;
    loop {
        let heads = registry.read_heads().await?.unwrap_or_default();
        let there = heads.get(cluster.as_str()).and_then(|head| head.as_ref().ok());
        let mut head = there.filter(|head| *head.uid == *uid).cloned();
        if !own.is_empty() && !head.as_ref().is_some_and(signed) {
            // Anybody may have written over it. Its copy is where only this cluster should write.
            head = registry.copy(cluster).await?.filter(signed).or(head);
        }
        let Some(head) = head else {
            // One read may be stale, and nobody looks again once the membership is ended.
            if absent.get_or_insert_with(Instant::now).elapsed() >= Timing::default().silence() {
                return Ok(Outcome::Done);
            }
            sleep(LOOK).await;
            continue;
        };
        absent = None;
        if !head.is_live() {
            let deleted = show::delete_pages(&**cloudmap, &permit(leadership)?, &registry, &id).await?;
            tracing::warn!(
                clusterset,
                cluster,
                pages = deleted,
                "this cluster's ClusterSet was changed, and it leaves the former one. Its instances for the former one \
                 stay until you run: cloudmap-mcs purge --clusterset-id {clusterset} --cluster {cluster}"
            );
            return Ok(Outcome::Done);
        }
        let since = match seen {
            Some((position, since)) if position >= head.position => since,
            _ => Instant::now(),
        };
        seen = Some((head.position, since));
        if looks.is_none() && since.elapsed() >= Timing::default().silence() {
            say_left(&registry, leadership, &head, clusterset).await?;
            looks = Some(0);
        } else if looks.is_none() && begun.elapsed() >= PATIENCE {
            tracing::warn!(
                clusterset,
                cluster,
                "this cluster was a member of another ClusterSet, where another cluster still writes in its name. Both have the same UID of \
                 their namespace kube-system, as after a restore from a backup. The membership in that ClusterSet is not ended"
            );
            return Ok(Outcome::Done);
        } else if let Some(looks) = &mut looks {
            *looks += 1;
            if *looks >= LOOKS {
                let message =
                    format!("the ledger of the former ClusterSet {clusterset} does not show yet that {cluster} left");
                return Err(Failure { message });
            }
        }
        sleep(LOOK).await;
    }
}

/// Says `left` in the name of this cluster, after its last head.
async fn say_left(
    registry: &Registry,
    leadership: &dyn Leadership,
    last: &Head,
    clusterset: &str,
) -> Result<(), Failure> {
    let farewell = Head {
        position: Position { epoch: last.position.epoch + 1, seq: 1 },
        presence: Presence::Left { successor: None },
        root: Root::empty(last.root.shards),
        delta: Arc::new(Delta::default()),
        ..last.clone()
    };
    // The key may have been replaced since. Where this is denied, most believe the head anyway.
    let announced = registry.announce(&permit(leadership)?).await;
    let copied = registry.put_copy(&permit(leadership)?, &farewell).await;
    for said in [announced, copied] {
        if let Err(Failure { message }) = said {
            tracing::warn!(error = message, clusterset, "cannot announce the key in the former ClusterSet");
        }
    }
    registry.put_head(&permit(leadership)?, &farewell, false).await?;
    Ok(())
}
