//! The AWS Cloud Map MCS Controller for K8s in other clusters of the same ClusterSet (`--aws-mcs-compat`).
//!
//! It has no ledger: an export is the set of its instances in the Cloud Map service `<namespace>/<name>`, one for each
//! address and port, whose attributes say everything. [`attributes`] has their names, [`instance`] writes and reads one,
//! [`export`] makes exports of those that were read. All pure; what is said of that controller is by its release v0.3.1.
//!
//! | | |
//! |---|---|
//! | how it tells instances | only those with the attribute `CLUSTERSET_ID` of its own ClusterSet are asked for, and one that lacks a required attribute is skipped; further attributes are ignored |
//! | how it tells clusters | `CLUSTER_ID`; it updates and deregisters instances with its own id only, by ids |
//! | what it cannot tell | session affinity, traffic policy and distribution, exported labels and annotations, app protocols, IPv6 |

pub mod attributes;
mod export;
mod instance;

pub use export::{exports, join};
pub use instance::{Exported, Invalid, PortOf, Registered, is_id, is_of_set, wrote};

/// Its finalizer on ServiceExports: it runs in the cluster, or it ran there.
pub const FINALIZER: &str = "multicluster.k8s.aws/service-export-finalizer";
