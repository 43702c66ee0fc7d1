//! The Kubernetes API: narrowed caches to read from, server-side apply to write with, Events, the Lease and the
//! ledger's record. No other module calls an API server.
//!
//! Every replica keeps the caches warm; only the one that holds the [`lease`] writes.

#![warn(missing_docs)]

pub mod apply;
pub mod cache;
pub mod client;
pub mod coredns;
pub mod events;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a fake fails by panicking")]
pub mod fake_api;
mod follow;
pub mod identity;
pub mod keys;
mod label_keys;
pub mod lease;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a fake fails by panicking")]
pub mod memory;
pub mod metrics;
pub mod neighbours;
pub mod objects;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a fake fails by panicking")]
pub mod rbac;
pub mod reader;
pub mod record;
pub mod selector;
pub mod service_network;
mod watches;

pub use apply::{ClusterWriter, KubernetesWriter};
pub use cache::{Cache, Change, Changes};
pub use label_keys::LabelKeys;
pub use lease::Leadership;
pub use metrics::Metrics;
pub use watches::{Caches, Writers};
