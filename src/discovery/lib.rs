//! Instances that others registered in Cloud Map, imported for pods: ECS tasks, EC2 instances, and everything else with
//! an address.
//!
//! A Kubernetes namespace subscribes to the Cloud Map namespaces from which it imports ([`ImportFrom`]). The leader
//! reads them: [`schedule`] decides when to read which service, on a budget of its own, [`engine`] keeps what was read
//! and requests calls, and [`call`] makes them. [`backend`] turns foreign instances into endpoints, [`name`] determines
//! their names in Kubernetes, and [`mod@fit`] fits them under a Service. Each
//! registry of the ClusterSet has a reader of its own ([`registries`]). Everything except these and [`call`] is pure.

#![warn(missing_docs)]

mod backend;
mod call;
mod engine;
mod entry;
mod fit;
mod import_from;
mod name;
mod reader;
mod reading;
mod registries;
mod schedule;
#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod tests;

pub use backend::{Backend, NoEndpoint};
pub use fit::{Fitted, Front, Misfit, Numbers, fit, service};
pub use import_from::{ImportFrom, InvalidImportFrom};
pub use name::{label, source};
pub use reader::{DiscoveryFigures, DiscoveryHandle, DiscoverySettings};
pub use reading::{Discovered, NamespaceFound, Picture, Reading, Rejected, Remains, ServiceFound, Trouble};
pub use registries::{Registry, in_registry, spawn};
