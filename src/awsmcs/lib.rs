//! The AWS Cloud Map MCS Controller for K8s in other clusters of the same ClusterSet (`--aws-mcs-compat`).
//!
//! It has no ledger. An export consists of its instances in the Cloud Map service `<namespace>/<name>`, one for each
//! address and port, and their attributes contain everything. [`attributes`] has their names, [`instance`] writes and
//! reads one instance, [`export`] makes exports from instances. All of this is pure, and describes release v0.3.1 of
//! that controller.
//!
//! | | |
//! |---|---|
//! | how it selects instances | it requests only those with the attribute `CLUSTERSET_ID` of its own ClusterSet, skips those that lack a required attribute, and ignores further attributes |
//! | how it distinguishes clusters | by `CLUSTER_ID`; it updates and deregisters only instances with its own id, by instance id |
//! | what it cannot express | session affinity, traffic policy and distribution, exported labels and annotations, app protocols, IPv6 |

#![warn(missing_docs)]

pub mod attributes;
mod export;
mod instance;

pub use export::{exports, join};
pub use instance::{ExportAttributes, Invalid, PortOf, Registered, is_id, is_of_set, wrote};

/// Its finalizer on ServiceExports. It shows that the AWS controller runs in this cluster, or once ran there.
pub const FINALIZER: &str = "multicluster.k8s.aws/service-export-finalizer";
