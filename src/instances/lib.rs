//! Instances: what the rest of AWS reads about our endpoints.
//!
//! [`target`] names the Cloud Map service of a Kubernetes Service. [`attributes`], [`custom`], [`host`] and
//! [`per_port`] write its instances. [`ownership`] determines owners, [`policy`] who may register where, and [`adopt`]
//! what may be taken over. [`share`] chooses the pods that get a share of the traffic. [`plan`] compares desired and
//! observed instances. All of these are pure. [`sync`] brings Cloud Map to the desired state.

#![warn(missing_docs)]

pub mod adopt;
pub mod attributes;
pub mod custom;
pub mod host;
mod missing;
pub mod ownership;
mod per_port;
pub mod plan;
pub mod policy;
pub mod records;
mod selection;
pub mod share;
pub mod sync;
pub mod target;

pub use adopt::Adopt;
pub use attributes::{InstanceSpec, Source, Unfit};
pub use custom::Custom;
pub use missing::{MissingNamespaces, NoVpcId, VpcId};
pub use ownership::{Consent, Owner};
pub use policy::{RegistrationPolicy, Rights};
pub use selection::Selection;
pub use share::{Share, Traffic};
pub use target::{InvalidTarget, Named, Naming};
