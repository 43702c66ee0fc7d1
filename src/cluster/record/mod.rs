//! What a cluster must remember outside Cloud Map: one Kubernetes object, written by compare-and-swap only.

mod config_map;
#[cfg(test)]
pub(crate) mod memory;

use std::{collections::BTreeMap, fmt};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use config_map::{RECORD, RecordObject};

/// The order of heads: every upsert of a head raises it, heartbeats too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Position {
    pub epoch: u64,
    pub seq: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.seq)
    }
}

/// The newest state of a remote cluster that this cluster applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// UID of the remote cluster: positions of an id that changed hands do not compare.
    pub uid: String,
    #[serde(flatten)]
    pub position: Position,
    /// Why nothing of the cluster applies since this position, if so: its head and pages may be purged by the time that
    /// somebody asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<Gone>,
}

/// Why nothing of a cluster applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gone {
    /// It said so (R6).
    Left,
    /// It was silent for longer than the configured TTL (R7), and its position has not advanced since.
    Expired,
}

/// The record: the own epoch, whether this cluster is leaving, and the accepted positions of the others. Without it a
/// restarted reader that meets a lagging replica would go back, and a deleted Lease would take the epoch back.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    /// Highest epoch that a leader of this cluster took.
    #[serde(default)]
    pub epoch: u64,
    /// The ClusterSet, and the own id there, that `leaving` and `accepted` are of. `None`: no leader of a ClusterSet was elected
    /// yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<Member>,
    /// Where this cluster was a member before, and has not been marked as left yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Member>,
    /// Set by `cloudmap-mcs leave`: the leader withdraws everything and says so.
    #[serde(default)]
    pub leaving: bool,
    /// By cluster id.
    #[serde(default)]
    pub accepted: BTreeMap<String, Accepted>,
    /// Outside a ClusterSet only: where this cluster's annotated Services are registered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registrations: Vec<StoredRegistration>,
}

/// A cluster as a member of a ClusterSet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub clusterset: String,
    pub cluster: String,
}

/// Most memberships that are remembered to be marked as left: who changes its ClusterSet more often while the former ones
/// cannot be reached has to clean up itself.
const MOST_FORMER: usize = 8;

impl Record {
    /// The record as the leader of this member goes on with it. Positions of another ClusterSet's clusters say nothing here, nor
    /// does a request to leave that one; the epoch is the cluster's own and stays.
    #[must_use]
    pub fn bound_to(mut self, member: &Member) -> Self {
        if self.member.as_ref() == Some(member) {
            return self;
        }
        let before = self.member.replace(member.clone());
        self.former.retain(|former| former != member);
        if let Some(before) = before.filter(|before| before.clusterset != member.clusterset) {
            self.accepted.clear();
            self.leaving = false;
            self.former.retain(|former| *former != before);
            self.former.push(before);
            let excess = self.former.len().saturating_sub(MOST_FORMER);
            self.former.drain(..excess);
        }
        self
    }
}

/// A [`Registration`](crate::model::Registration) as people read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRegistration {
    /// Cloud Map namespace and service.
    pub namespace: String,
    pub service: String,
    /// Kind, namespace and name of the Kubernetes object.
    pub owner: [String; 3],
    /// Seconds since 1970.
    pub claimed: i64,
    #[serde(default)]
    pub retiring: bool,
}

/// What a stored record is compared by: a Kubernetes `resourceVersion`. `None` where nothing is stored yet.
pub type Version = Option<String>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Somebody else wrote it since: load it again.
    #[error("failed to store the ledger record: it changed meanwhile")]
    Conflict,
    /// Anything else, an unknown outcome included.
    #[error("failed to access the ledger record: {0}")]
    Failed(String),
}

impl StoreError {
    /// A stable word for metrics and reasons.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Failed(_) => "failed",
        }
    }
}

/// Where the record is kept.
#[async_trait]
pub trait RecordStore: Send + Sync + 'static {
    /// The stored record with its version; `None` when there is none. It must come from the API server, not a cache.
    async fn load(&self) -> Result<Option<(Record, Version)>, StoreError>;

    /// Stores `record` if the stored version still is `expected` (`None`: if there is none); returns the new version.
    async fn store(&self, record: &Record, expected: &Version) -> Result<Version, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a release reads it that does not know who is gone.
    #[derive(Deserialize)]
    struct Before {
        uid: String,
        #[serde(flatten)]
        position: Position,
    }

    #[test]
    fn releases_that_know_less_of_the_others_read_the_record_and_are_read() {
        let json = r#"{"uid":"u","epoch":3,"seq":4}"#;
        let accepted = Accepted { uid: "u".to_owned(), position: Position { epoch: 3, seq: 4 }, gone: None };
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
