//! Reads the whole ledger once, for people: `ledger show`, `purge --dry-run` and `forget`.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Map,
    call::{Call, Failure, Outbox, Outcome},
    cluster_of,
    driver::Registry,
    fetch::{Fetch, Progress, UNEXPECTED},
    hash::Summary,
    head::{FORMAT, Head, Presence, Root},
    limits::Timing,
    page::PageId,
    service_name,
    verify::Cache,
};
use crate::record::{Accepted, Position};
use base::env;
use cloudmap::{Permit, Read, Write};
use model::{ClusterId, ClusterSetId};

/// One cluster's entry in the ledger, with a state that was decoded as `C`.
#[derive(Debug, Clone)]
pub struct ClusterView<C> {
    /// The id in the registry, which may not be a valid cluster id.
    pub id: Arc<str>,
    /// The head, if it can be read.
    pub head: Option<Arc<Head>>,
    /// Who created the cluster's exports service.
    pub creator: Option<String>,
    /// The verified state; `None` if it could not be read, or the cluster left.
    pub state: Option<Arc<Map>>,
    /// The decoded state.
    pub catalog: C,
    /// How many pages the verified state has.
    pub pages: usize,
    /// Time since the head was written, by the writer's clock and this one.
    pub age: Option<std::time::Duration>,
    /// What is wrong, as texts.
    pub problems: Vec<String>,
}

impl<C> ClusterView<C> {
    /// Says how old the head is at `now`, a time since 1970.
    pub fn date(&mut self, now: std::time::Duration) {
        let written = self.head.as_ref().map(|head| std::time::Duration::from_millis(head.written));
        self.age = written.and_then(|written| now.checked_sub(written));
    }
}

/// A service of the ledger with its instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belonging {
    /// Name of the service.
    pub service: Arc<str>,
    /// Id of the service.
    pub service_id: Arc<str>,
    /// The id of the cluster to which the service belongs; `None` for the service of all heads.
    pub cluster: Option<String>,
    /// Ids of its instances.
    pub instances: Vec<Arc<str>>,
}

/// The ledger could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error("failed to read the ledger: {0}")]
    Registry(String),
    /// There is no ledger.
    #[error(
        "failed to find the ledger of the ClusterSet {0}: there is no Cloud Map namespace clusterset-{0} in this account and \
         region (check --clusterset-id, --region and the credentials)"
    )]
    NoLedger(String),
    /// The cluster has no head.
    #[error(
        "failed to find a head of the cluster {0} in the ledger: `cloudmap-mcs ledger show` lists those that there are (check \
         --clusterset-id and --region, too). If it was purged before it was forgotten, run this where the controller of \
         a cluster runs that still has its imports: that one knows what to say"
    )]
    NoHead(String),
    /// Others believe only what is signed, and nobody can sign for a dead cluster.
    #[error(
        "failed to forget the cluster {0}: the head of cluster {0} is signed, so only a member can say that it is gone. Run this \
         in the controller's pod of another cluster (kubectl exec), or with its --controller-namespace and context"
    )]
    Signed(String),
    /// The id belongs to another cluster now.
    #[error(
        "failed to forget the cluster {cluster}: its id now belongs to the cluster whose kube-system UID is {owner}. What that \
         one says replaces what the former said"
    )]
    Taken {
        /// Id of the cluster.
        cluster: String,
        /// UID of the new owner.
        owner: String,
    },
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Self::Registry(failure.message)
    }
}

async fn open<C: Read + ?Sized>(cloudmap: Arc<C>, clusterset: &ClusterSetId) -> Result<Registry<C>, Error> {
    let registry = Registry::new(cloudmap, clusterset);
    match registry.find_namespace().await? {
        Some(_) => Ok(registry),
        None => Err(Error::NoLedger(clusterset.to_string())),
    }
}

/// Every cluster of the ClusterSet. `decode` returns what a state means, and what is wrong with it. Only reads.
pub async fn read_all<C: Default>(
    cloudmap: Arc<dyn Read>,
    clusterset: &ClusterSetId,
    decode: fn(&Map) -> (C, Vec<String>),
) -> Result<Vec<ClusterView<C>>, Error> {
    let registry = open(cloudmap, clusterset).await?;
    let mut views = Vec::new();
    for (id, head) in registry.read_heads().await?.unwrap_or_default() {
        let mut view = ClusterView {
            creator: registry.creator(&id).await?.map(|creator| creator.by),
            id,
            head: None,
            state: None,
            catalog: C::default(),
            pages: 0,
            age: None,
            problems: Vec::new(),
        };
        match head {
            Ok(head) => {
                view.head = Some(Arc::clone(&head));
                view.date(env::since_epoch());
                if let Some(map) = read(&registry, clusterset, &head, &mut view).await {
                    let problems;
                    (view.catalog, problems) = decode(&map);
                    view.problems.extend(problems);
                    view.state = Some(map);
                }
            }
            Err(error) => view.problems.push(error.to_string()),
        }
        views.push(view);
    }
    Ok(views)
}

/// The state that a head means, if it can be read.
async fn read<C>(
    registry: &Registry<dyn Read>,
    clusterset: &ClusterSetId,
    head: &Arc<Head>,
    view: &mut ClusterView<C>,
) -> Option<Arc<Map>> {
    if view.creator.as_deref() != Some(&head.uid) {
        let creator = view.creator.as_deref().unwrap_or("nobody");
        view.problems.push(format!("the head is from UID {}, but the id belongs to {creator}", head.uid));
    }
    if !head.is_live() || view.creator.as_deref() != Some(&head.uid) {
        return None;
    }
    if let Err(error) = head.delta.check() {
        view.problems.push(error.to_string());
        return None;
    }
    let mut fetch = Fetch::new(head.cluster.clone(), head.root.clone(), Cache::default());
    let mut out = Outbox::default();
    let mut progress = fetch.advance(&mut out);
    while let Progress::Waiting = progress {
        let Some((_, Call::ReadPages { cluster, shard, flush })) = out.calls.pop() else { break };
        let pages = match registry.read_pages(&cluster, shard, flush.as_deref()).await {
            Ok(pages) => Some(pages),
            Err(failure) => {
                view.problems.push(failure.message);
                None
            }
        };
        progress = fetch.on_pages(pages.as_ref(), &mut out);
    }
    match progress {
        Progress::Complete(verified) => {
            let map = Arc::new(head.delta.apply(&verified.map));
            if !head.means(&clusterset.as_str().into(), &map) {
                view.problems.push(UNEXPECTED.to_owned());
            }
            view.pages = verified.layout.pages().count();
            Some(map)
        }
        Progress::Failed(why) | Progress::Unread(why) => {
            view.problems.push(why.to_owned());
            None
        }
        Progress::Waiting => None,
    }
}

/// Everything of one cluster, or of every cluster, in the ledger's namespace. Only reads, from the control plane.
pub async fn belongings(
    cloudmap: Arc<dyn Read>,
    clusterset: &ClusterSetId,
    cluster: Option<&ClusterId>,
) -> Result<Vec<Belonging>, Error> {
    let registry = open(cloudmap.clone(), clusterset).await?;
    Ok(belongings_in(&*cloudmap, &registry, cluster).await?)
}

async fn belongings_in<C: Read + ?Sized>(
    cloudmap: &C,
    registry: &Registry<C>,
    cluster: Option<&ClusterId>,
) -> Result<Vec<Belonging>, Failure> {
    let mut belongings = Vec::new();
    for service in registry.list_services().await? {
        let owner = cluster_of(&service.name);
        let heads = &*service.name == super::CLUSTERS;
        // Others may have services of their own in the namespace.
        let concerned = owner.is_some_and(|owner| cluster.is_none_or(|cluster| cluster.as_str() == owner));
        if !heads && !concerned {
            continue;
        }
        let instances = cloudmap.list_instances(&service.id).await?;
        let mut instances: Vec<Arc<str>> = instances.into_iter().map(|instance| instance.id).collect();
        if heads && let Some(cluster) = cluster {
            instances.retain(|instance| **instance == *cluster.as_str());
        }
        instances.sort_unstable();
        belongings.push(Belonging {
            cluster: owner.map(str::to_owned),
            service: service.name,
            service_id: service.id,
            instances,
        });
    }
    belongings.sort_by(|a, b| a.service.cmp(&b.service));
    Ok(belongings)
}

/// How many leaders a cluster may have had after the one whose position another cluster recorded. Heads that change
/// nothing are not recorded.
const UNRECORDED_EPOCHS: u64 = 1_000;

/// Like [`forget`], for a cluster whose head was purged, with what another cluster has recorded. The cluster's exports
/// service is created again, because readers accept only its creator (R2); `purge` removes both.
pub async fn forget_recorded(
    cloudmap: Arc<dyn Write>,
    permit: &Permit,
    clusterset: &ClusterSetId,
    cluster: &ClusterId,
    recorded: &Accepted,
) -> Result<(), Error> {
    let registry = open(cloudmap, clusterset).await?.owned_by(cluster, &recorded.uid);
    if let Outcome::Taken { owner } = registry.claim(permit, 0).await? {
        return Err(Error::Taken { cluster: cluster.to_string(), owner });
    }
    let now = env::since_epoch();
    let farewell = Head {
        cluster: cluster.as_str().into(),
        reads: FORMAT,
        uid: recorded.uid.as_str().into(),
        position: Position { epoch: recorded.position.epoch + UNRECORDED_EPOCHS, seq: 1 },
        presence: Presence::Left { successor: None },
        root: Root::empty(1),
        delta: Arc::default(),
        summary: Summary::default(),
        addresses: Arc::default(),
        lease: Timing::default().lease,
        written: now.as_millis() as u64,
        signer: None,
    };
    registry.put_head(permit, &farewell, false).await?;
    Ok(())
}

/// Publishes `left` in the name of a dead cluster, so that the others drop its exports, and deletes its pages. A
/// cluster that is alive reverts this with its next head. Returns the number of deleted pages.
///
/// # Errors
/// The ledger cannot be read or written, the cluster has no head, or its head is signed and members remain that sign, too:
/// these would refuse what is not signed, and keep the dead cluster's exports.
pub async fn forget(
    cloudmap: Arc<dyn Write>,
    permit: &Permit,
    clusterset: &ClusterSetId,
    cluster: &ClusterId,
) -> Result<usize, Error> {
    let registry = open(cloudmap.clone(), clusterset).await?;
    let heads: BTreeMap<_, _> = registry.read_heads().await?.unwrap_or_default();
    let Some(Ok(head)) = heads.get(cluster.as_str()) else { return Err(Error::NoHead(cluster.to_string())) };
    // Who signs nothing believes everyone (`--trust=open`). Of a head that cannot be read, nobody knows.
    let signs = |other: &Arc<Head>| other.is_live() && other.signer.is_some();
    let mut others = heads.iter().filter(|(id, _)| ***id != *cluster.as_str());
    let may_refuse = others.any(|(_, other)| other.as_ref().ok().is_none_or(signs));
    if head.signer.is_some() && may_refuse {
        return Err(Error::Signed(cluster.to_string()));
    }
    let mut farewell = Head::clone(head);
    farewell.position.epoch += 1;
    farewell.position.seq = 1;
    farewell.presence = Presence::Left { successor: None };
    farewell.root = Root::empty(head.root.shards);
    farewell.delta = Arc::default();
    registry.put_head(permit, &farewell, false).await?;
    Ok(delete_pages(&*cloudmap, permit, &registry, cluster).await?)
}

/// Deletes all pages of a cluster, and returns their number. The key stays, because nobody who has not pinned it believes
/// without it that the cluster left. What somebody else wrote stays, too.
pub(super) async fn delete_pages(
    cloudmap: &dyn Write,
    permit: &Permit,
    registry: &Registry,
    cluster: &ClusterId,
) -> Result<usize, Failure> {
    let mut deleted = 0;
    for belonging in belongings_in(cloudmap, registry, Some(cluster)).await? {
        let prefix = |shard: &u32| *belonging.service == *service_name(cluster.as_str(), *shard);
        let Some(shard) = (0..super::head::MAX_SHARDS).find(prefix) else { continue };
        for page in belonging.instances.iter().filter(|id| id.parse::<PageId>().is_ok()) {
            registry.delete_page(permit, cluster.as_str(), shard, page).await?;
            deleted += 1;
        }
    }
    Ok(deleted)
}
