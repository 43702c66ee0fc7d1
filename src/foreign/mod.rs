//! What others registered in Cloud Map, for pods: ECS tasks, EC2 instances, and whatever else has an address there.
//!
//! A Kubernetes namespace names the Cloud Map namespaces that it imports from ([`ImportFrom`]). The leader reads them:
//! [`schedule`] decides which service is asked when, on a budget of its own, [`engine`] keeps what was read and asks for
//! the calls, [`call`] makes them. [`backend`] tells which instances are somebody else's and what they offer, [`name`]
//! what they are called here; [`mod@fit`] brings them under a Service. All but [`call`] are pure.

mod backend;
mod call;
mod engine;
mod fit;
mod import_from;
mod name;
mod reader;
mod reading;
mod schedule;
#[cfg(test)]
mod tests;

pub use backend::{Backend, NoEndpoint};
pub use fit::{Fitted, Front, Misfit, fit, service};
pub use import_from::{ImportFrom, InvalidImportFrom};
pub use name::{label, source};
pub use reader::{Figures, Handle, Settings, spawn};
pub use reading::{Found, NamespaceFound, Picture, Reading, Rejected, ServiceFound, Trouble};
