//! Instances: what the rest of AWS reads about our endpoints.
//!
//! [`target`] names the Cloud Map service of a Kubernetes Service, [`attributes`] writes its instances, [`ownership`]
//! says whose things are, [`plan`] compares: all pure. [`sync`] makes Cloud Map so.

pub mod attributes;
pub mod ownership;
pub mod plan;
pub mod sync;
pub mod target;

pub use attributes::{InstanceSpec, Source, Unfit};
pub use ownership::Identity;
pub use target::{InvalidTarget, Naming};
