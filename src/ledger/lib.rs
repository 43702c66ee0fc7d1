//! The ledger: how clusters exchange their exports, through Cloud Map only.
//!
//! Each cluster has a small log-structured store with one writer (the leader), and every cluster is a reader. Cloud Map
//! has only one conditional write (a service name can be created once), no ordering, asynchronous upserts (one at a
//! time per instance), and reads that may be stale, partial, or older than the previous read. [`writer::Writer`] and
//! [`reader::Reader`] are pure state machines, [`term::Term`] combines them with the [`record`] and the [`stream`],
//! and [`driver`] makes their calls.
//!
//! Writer:
//! - W0 claims the cluster id by creating `exports-0.<id>`. If another cluster has done that, nothing is written.
//! - W1 is elected: the Lease is read again. The epoch is one above those of the record and the own head, and is stored
//!   first. An own head that the record does not know must not advance.
//! - W2 reads the own head until it verifies: that is the base. If completed reads show that it does not, a full flush
//!   comes first.
//! - W3 publishes when the state changed, or as a heartbeat. One head operation is in flight.
//! - W4 a head contains the difference to the base, or repeats the last state that was sent. A delta is never cut.
//! - W5 flushes: pages under a new id are written, awaited and seen with equal digests, and only then named by a head.
//! - W6 a higher epoch in the own head or the record ends the epoch. Another UID leads to W0.
//! - W7 deletes pages to which no own head, read or sent, has referred for a while.
//! - W8 reads the own ledger as a reader does, and writes it again if that fails.
//! - W9 leaves, or continues under another id.
//!
//! Reader:
//! - R1 one discovery returns all heads. A failed or partial one changes nothing and pauses all timers.
//! - R2 a head counts if its UID created the cluster's exports service.
//! - R3 a head above the accepted position is accepted, and the position is stored before its state applies.
//! - R4 an unchanged root needs no call.
//! - R5 another root is read page by page, and verified as a whole.
//! - R6 `left` drops a cluster, after its successor is there. An absent head means nothing.
//! - R7 silence counts only while this cluster's own head is seen to advance.
//! - R8 nothing of a cluster that is not verified yet is deleted.
//! - R9 a cluster's heads count if they are signed with the key that is known for it.

#![warn(missing_docs)]

use std::{collections::BTreeMap, sync::Arc};

use base::shared_map::SharedMap;
use model::ClusterSetId;

pub mod call;
pub mod claims;
pub mod codec;
pub mod diff;
pub mod driver;
mod fetch;
#[cfg(any(test, feature = "testing"))]
pub mod fixtures;
pub mod forgotten;
pub mod hash;
pub mod head;
#[cfg(test)]
mod interleavings;
pub mod joining;
pub mod limits;
pub mod news;
mod pace;
pub mod page;
pub mod reader;
pub mod readers;
pub mod record;
pub mod remote;
pub mod runs;
pub mod show;
pub mod stream;
pub mod term;
#[cfg(test)]
mod tests;
pub mod tree;
pub mod trust;
pub mod verify;
mod wire;
pub mod writer;

/// The state of one cluster in the ledger: opaque values by key. Of what they mean, the ledger knows only what its own rules
/// are about: [`claims`], who is [`forgotten`], and who may join ([`joining`]).
pub type Map = SharedMap<Arc<str>, Value>;

/// The name of a registry: of one of the places in AWS that together have the ledger of a ClusterSet.
pub type RegistryName = Arc<str>;

/// What a key of a state has.
pub type Value = Arc<[u8]>;

/// Maximum size of a value in bytes. It must fit into a page, and into a delta with others.
pub const MAX_VALUE: usize = 2_500;

/// Nobody writes a larger value, so nobody reads one.
pub fn capped(value: &[u8]) -> Option<&[u8]> {
    (value.len() <= MAX_VALUE).then_some(value)
}

/// The service with the heads of all clusters.
pub const CLUSTERS: &str = "clusters";

/// The service with a shard of a cluster's pages.
pub fn service_name(cluster: &str, shard: u32) -> String {
    format!("exports-{shard}.{cluster}")
}

/// Prefix of the names of all ledgers' namespaces.
const NAMESPACE_PREFIX: &str = "clusterset-";

/// Tag of everything that a ledger creates. Its value is the id of the ClusterSet.
pub const CLUSTERSET_TAG: &str = "cloudmap-mcs/clusterset";

/// Tag of the services that belong to one cluster ([`service_name`]): the cluster's id.
pub const CLUSTER_TAG: &str = "cloudmap-mcs/cluster";

/// The cluster to which a service of the ledger belongs, by its name; `None` for the service of all heads.
pub fn cluster_of(service: &str) -> Option<&str> {
    service.strip_prefix("exports-")?.split_once('.').map(|(_, cluster)| cluster)
}

/// The Cloud Map namespace of a ClusterSet's ledger.
pub fn namespace_name(clusterset: &str) -> String {
    format!("{NAMESPACE_PREFIX}{clusterset}")
}

/// Whether a Cloud Map namespace with this name is, or may become, the ledger of any ClusterSet. Other instances there
/// could pass for a head, hide the heads, or take the id of a future cluster.
///
/// The whole prefix is reserved, in upper and lower case. A ClusterSet may have any id, and its ledger uses an existing
/// namespace with its name, so even a namespace that is no ledger yet must not be written. Names never change in Cloud
/// Map, unlike tags.
pub fn is_ledger(namespace: &str) -> bool {
    namespace.get(..NAMESPACE_PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(NAMESPACE_PREFIX))
}

/// Creator of what belongs to the ClusterSet as a whole, and tag of everything that the ledger creates.
const OWNER: &str = "cloudmap-mcs";

/// Tags of everything that the ledger creates.
fn tags(clusterset: &ClusterSetId) -> BTreeMap<String, String> {
    let pairs = [("managed-by", OWNER), (CLUSTERSET_TAG, clusterset.as_str())];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Tags of a service of the ledger. One that belongs to a cluster says so, for IAM policies.
fn service_tags(clusterset: &ClusterSetId, service: &str) -> BTreeMap<String, String> {
    let mut tags = tags(clusterset);
    tags.extend(cluster_of(service).map(|cluster| (CLUSTER_TAG.to_owned(), cluster.to_owned())));
    tags
}

/// Whether the tags of a Cloud Map namespace prove that it was created for the ledger of this ClusterSet.
pub fn is_namespace_of(found: &BTreeMap<String, String>, clusterset: &ClusterSetId) -> bool {
    tags(clusterset).iter().all(|(key, value)| found.get(key) == Some(value))
}
