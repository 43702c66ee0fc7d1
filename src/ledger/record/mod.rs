//! What a cluster must remember outside of Cloud Map. It is written only by compare-and-swap.

#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a fake fails by panicking")]
pub mod memory;

use std::{collections::BTreeMap, fmt};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use model::{ClusterId, ClusterSetId, PublicKey};

/// The position of a head. Heads are ordered by it, and every upsert of a head raises it, also a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Position {
    /// Counts the elections of the cluster's leaders.
    pub epoch: u64,
    /// Counts the upserts in an epoch.
    pub seq: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}

/// Which state of a cluster: versions of one term are ordered by `n`, those of different epochs by the epoch. A state keeps
/// its version when a later leader repeats it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Version {
    /// The epoch of the leader that wanted this state first.
    pub epoch: u64,
    /// The random number of that leader. Two leaders may have one epoch, where the record was deleted.
    pub nonce: u64,
    /// Counts the states that this leader wanted.
    pub n: u64,
}

impl Version {
    /// Whether the state is older than one of the other version. Of two leaders with one epoch it is not known: there the
    /// order of their heads decides.
    pub fn is_before(self, other: Self) -> bool {
        self.epoch < other.epoch || (self.epoch, self.nonce) == (other.epoch, other.nonce) && self.n < other.n
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.n)
    }
}

/// The newest state of a remote cluster that this cluster applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// UID of the remote cluster. Positions of different UIDs are not comparable.
    pub uid: String,
    /// Its position.
    #[serde(flatten)]
    pub position: Position,
    /// Why nothing of this cluster applies since this position, if so. By the time that somebody reads this, the
    /// cluster's head and pages may be purged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<Gone>,
    /// The key that signed it, which is pinned from then on (R9).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// When it was written, in milliseconds since 1970 by the clock of its writer, if it is signed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub written: u64,
    /// When the cluster was accepted first, in milliseconds since 1970 by the clock of the accepting leader; 0 if it was not
    /// read yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub since: u64,
    /// When its exports service was created, in seconds since 1970, as AWS says. Nothing of it counts as older. 0 while that
    /// is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub created: i64,
    /// The keys that it replaced by `key`, as it announced when it was accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<PublicKey>,
    /// The registry that has its ledger; `None` for the home of this cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
}

impl Accepted {
    /// A cluster of which nothing was applied yet, with the key that it must have.
    pub fn unread(uid: String, key: Option<PublicKey>) -> Self {
        let (position, gone, former, registry) = Default::default();
        Self { uid, position, gone, key, written: 0, since: 0, created: 0, former, registry }
    }

    /// Whether it was read, and is no member that is gone.
    pub fn is_member(&self) -> bool {
        self.position != Position::default() && !self.gone.is_some_and(Gone::is_left)
    }
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A state that came by stream, and that the ledger did not have yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streamed {
    /// UID of the remote cluster.
    pub uid: String,
    /// The version that was applied. Nothing before it applies.
    #[serde(flatten)]
    pub version: Version,
}

/// Why nothing of a cluster applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gone {
    /// The cluster said that it left (R6).
    Left,
    /// A person said that the cluster is gone for good (`cloudmap-mcs forget`), here or in a cluster that says so. It
    /// comes back if its position advances.
    Forgotten,
    /// A person said that the cluster is no member, whatever it says (`cloudmap-mcs trust reject`), until one accepts it.
    Rejected,
    /// The cluster was silent for longer than the configured TTL (R7), and its position has not advanced since.
    Expired,
}

impl Gone {
    /// Whether a person said it, so that the key of the cluster counts no more.
    pub const fn is_said(self) -> bool {
        matches!(self, Self::Forgotten | Self::Rejected)
    }

    /// Whether the cluster is no member any more.
    pub const fn is_left(self) -> bool {
        matches!(self, Self::Left | Self::Forgotten | Self::Rejected)
    }
}

/// The record: the own epoch, whether this cluster is leaving, and the accepted positions of other clusters. Without
/// it, a restarted reader that meets a lagging replica would go back, and a deleted Lease would reset the epoch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    /// The highest epoch that a leader of this cluster took.
    #[serde(default)]
    pub epoch: u64,
    /// The first epoch whose heads are signed; `None` if they are not. Later, and once a signed head was read back, unsigned
    /// heads are not this cluster's (W6).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signed_since: Option<u64>,
    /// The key that signed the newest own head that was read back. A key that has signed nothing yet must not be replaced
    /// (R9): only the one before it counts as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signs: Option<PublicKey>,
    /// The membership to which `leaving` and `accepted` belong; `None` if no leader of a ClusterSet has been elected
    /// yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Member>,
    /// The home of this cluster, if registries have names. `services`, and the positions that name no registry, belong to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// Former memberships that have not been marked as left yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Member>,
    /// Whether this cluster has joined the ClusterSet of `member`, so that it may register (J5). `None`: that is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<bool>,
    /// Set by `cloudmap-mcs leave`: the leader withdraws everything, and then publishes that it left.
    #[serde(default)]
    pub leaving: bool,
    /// The accepted positions, by cluster id.
    #[serde(default)]
    pub accepted: BTreeMap<String, Accepted>,
    /// When the exports services of this cluster's ids in this ClusterSet were created, by cluster id, in seconds since 1970; those in
    /// a former home by `id@home`. The first one counts (R10).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub created: BTreeMap<String, i64>,
    /// What was applied by stream ahead of them, by cluster id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub streamed: BTreeMap<String, Streamed>,
    /// The ids of the ledger's services to which this cluster writes, by name, so that a new leader need not list (W0).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub services: BTreeMap<String, String>,
    /// Only for standalone clusters: where annotated Services are registered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registrations: Vec<StoredRegistration>,
}

/// The membership of a cluster in a ClusterSet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Id of the ClusterSet.
    pub clusterset: String,
    /// Id of the cluster in it.
    pub cluster: String,
}

impl Member {
    /// Whether these ids say the same. That of a command may lack the flags of the controller.
    pub fn is_of(&self, clusterset: Option<&ClusterSetId>, cluster: &ClusterId) -> bool {
        clusterset.map(ClusterSetId::as_str) == Some(&*self.clusterset) && cluster.as_str() == self.cluster
    }
}

/// How many former memberships are remembered to be marked as left. Someone who changes the ClusterSet more often while
/// the former ledgers cannot be reached has to clean up by hand.
const MOST_FORMER: usize = 8;

impl Record {
    /// Whether its positions and keys are of clusters of this ClusterSet. Clusters of another one may have the same ids.
    pub fn is_of(&self, clusterset: &str) -> bool {
        self.member.as_ref().is_none_or(|member| member.clusterset == clusterset)
    }

    /// The record with which the leader of `member` continues. Positions of clusters in another ClusterSet mean nothing
    /// here, and neither does a request to leave that one. The services are others under another id, too. The epoch
    /// belongs to the cluster and stays.
    #[must_use]
    pub fn bound_to(mut self, member: &Member) -> Self {
        if self.member.as_ref() == Some(member) {
            return self;
        }
        let before = self.member.replace(member.clone());
        self.services.clear();
        self.former.retain(|former| former != member);
        if let Some(before) = before.filter(|before| before.clusterset != member.clusterset) {
            self.accepted.clear();
            self.created.clear();
            self.joined = None;
            self.streamed.clear();
            self.leaving = false;
            self.former.retain(|former| *former != before);
            self.former.push(before);
            let excess = self.former.len().saturating_sub(MOST_FORMER);
            self.former.drain(..excess);
        }
        self
    }

    /// The record with which the leader continues whose home has this name, if registries have names. What was the home's
    /// stays so while it has none: then there is one registry.
    #[must_use]
    pub fn at_home(mut self, home: Option<&str>) -> Self {
        let before = std::mem::replace(&mut self.home, home.map(str::to_owned));
        if let Some((before, home)) = before.zip(home).filter(|(before, home)| before != home) {
            // The services are others in another registry.
            self.services.clear();
            for accepted in self.accepted.values_mut() {
                let registry = accepted.registry.take().unwrap_or_else(|| before.clone());
                accepted.registry = (registry != home).then_some(registry);
            }
            // The first date counts, and the id has another one here.
            let of_home = |(id, at): (String, i64)| (if id.contains('@') { id } else { format!("{id}@{before}") }, at);
            self.created = std::mem::take(&mut self.created).into_iter().map(of_home).collect();
        }
        self
    }
}

/// A [`Claim`](crate::claims::Claim) in a form for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRegistration {
    /// Cloud Map namespace.
    pub namespace: String,
    /// Cloud Map service.
    pub service: String,
    /// Kind, namespace and name of the Kubernetes object.
    pub owner: [String; 3],
    /// When the claim was first wanted, in seconds since 1970.
    pub claimed: i64,
    /// Only deregistrations may follow.
    #[serde(default)]
    pub retiring: bool,
    /// Its owner may not register there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unable: bool,
    /// It waits until another object releases the service.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waiting: bool,
}

/// Which content of the record is stored: a Kubernetes `resourceVersion`. `None` if nothing is stored yet.
pub type ResourceVersion = Option<String>;

/// Changes a stored record, again if another process writes it meanwhile. `change` says whether there is anything to store;
/// the same is returned. `None` if there is no record.
///
/// # Errors
/// It cannot be read or written.
pub async fn update(
    store: &dyn RecordStore,
    mut change: impl FnMut(&mut Record) -> bool + Send,
) -> Result<Option<bool>, StoreError> {
    loop {
        let Some((mut record, version)) = store.load().await? else { return Ok(None) };
        if !change(&mut record) {
            return Ok(Some(false));
        }
        match store.store(&record, &version).await {
            Err(StoreError::Conflict) => {}
            stored => return stored.map(|_| Some(true)),
        }
    }
}

/// The record could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another process wrote it in the meantime. Load it again.
    #[error("failed to store the record: it changed meanwhile")]
    Conflict,
    /// The user may not read or write it.
    #[error("failed to access the record: {0}")]
    Forbidden(String),
    /// Any other error, including an unknown outcome.
    #[error("failed to access the record: {0}")]
    Failed(String),
}

/// Where the record is stored.
#[async_trait]
pub trait RecordStore: Send + Sync + 'static {
    /// The stored record with its version; `None` if there is none. It must come from the API server, not from a cache.
    async fn load(&self) -> Result<Option<(Record, ResourceVersion)>, StoreError>;

    /// Stores `record` if the stored version still is `expected` (`None` if nothing is stored), and returns the new
    /// version.
    async fn store(&self, record: &Record, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_home_changes_whose_home_the_others_have() {
        let entry = |registry: Option<&str>| Accepted {
            registry: registry.map(str::to_owned),
            ..Accepted::unread(String::new(), None)
        };
        let accepted = [("blue", None), ("red", Some("us")), ("lime", Some("ap"))];
        let accepted = accepted.map(|(id, registry)| (id.to_owned(), entry(registry))).into();
        let services = [("clusters".to_owned(), "srv-1".to_owned())].into();
        let created = [("green".to_owned(), 7)].into();
        let eu = Record { home: Some("eu".to_owned()), accepted, services, created, ..Record::default() };
        let registries = |record: &Record| -> Vec<Option<String>> {
            ["blue", "red", "lime"].map(|id| record.accepted[id].registry.clone()).into()
        };
        let us = eu.clone().at_home(Some("us"));
        assert_eq!(registries(&us), [Some("eu".to_owned()), None, Some("ap".to_owned())]);
        assert!(us.services.is_empty());
        assert_eq!(us.created, [("green@eu".to_owned(), 7)].into(), "it is in the ledger since then");
        // Without names, and with them again.
        let alone = eu.clone().at_home(None);
        assert_eq!((registries(&alone), &alone.services), (registries(&eu), &eu.services));
        assert_eq!(alone.at_home(Some("eu")), eu);
    }

    /// As a version reads it that does not have the field `gone`.
    #[derive(Deserialize)]
    struct Before {
        uid: String,
        #[serde(flatten)]
        position: Position,
    }

    #[test]
    fn services_are_those_of_one_id() {
        let member = |cluster: &str| Member { clusterset: "prod".to_owned(), cluster: cluster.to_owned() };
        let services = [("clusters".to_owned(), "srv-1".to_owned())].into();
        let record = Record { member: Some(member("blue")), services, ..Record::default() };
        assert_eq!(record.clone().bound_to(&member("blue")), record);
        assert!(record.bound_to(&member("navy")).services.is_empty());
    }

    #[test]
    fn versions_without_the_field_gone_can_exchange_records_with_this_one() {
        let json = r#"{"uid":"u","epoch":3,"seq":4}"#;
        let accepted = Accepted { position: Position { epoch: 3, seq: 4 }, ..Accepted::unread("u".to_owned(), None) };
        assert_eq!(serde_json::to_string(&accepted).unwrap(), json);
        assert_eq!(serde_json::from_str::<Accepted>(json).unwrap(), accepted);
        let left = Accepted { gone: Some(Gone::Left), ..accepted };
        let json = serde_json::to_string(&left).unwrap();
        assert_eq!(json, r#"{"uid":"u","epoch":3,"seq":4,"gone":"left"}"#);
        assert_eq!(serde_json::from_str::<Accepted>(&json).unwrap(), left);
        let before: Before = serde_json::from_str(&json).unwrap();
        assert_eq!((before.uid, before.position), (left.uid, left.position));
    }
}
