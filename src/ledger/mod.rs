//! The ledger: how clusters tell each other what they export, through Cloud Map alone.

use std::{collections::BTreeMap, sync::Arc};

pub mod call;
pub mod chunks;
pub mod codec;
pub mod driver;
mod fetch;
pub mod head;
pub mod limits;
pub mod page;
pub mod reader;
pub mod record;
pub mod records;
pub mod remote;
pub mod show;
pub mod term;
#[cfg(test)]
mod tests;
pub mod tree;
mod wire;
pub mod writer;

/// The state of one cluster as the ledger carries it: opaque values under keys. `<ns>/<name>` is an export,
/// `<ns>/<name>#<i>` a chunk of its endpoints, `!<id>` a registration record.
pub type Map = BTreeMap<Arc<str>, Value>;

/// An encoded record.
pub type Value = Arc<[u8]>;

/// The service that holds the heads of all clusters.
pub const CLUSTERS: &str = "clusters";

/// The service that holds a shard of a cluster's pages.
pub fn service_name(cluster: &str, shard: u32) -> String {
    format!("exports-{shard}.{cluster}")
}

/// The Cloud Map namespace of a ClusterSet's ledger.
pub fn namespace_name(clusterset: &str) -> String {
    format!("clusterset-{clusterset}")
}
