//! ECS behind a narrow port, as far as a move away from it needs ECS: which ECS service registers its tasks in a Cloud Map
//! service, what that service is like, and its desired count. Only commands call it, with the credentials of their user.

#![warn(missing_docs)]

mod aws;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a fake fails by panicking")]
pub mod fake;
mod find;
mod operation;
mod port;

pub use aws::AwsEcs;
pub use find::{Choice, Found, all};
pub use operation::Operation;
pub use port::{Controller, Ecs, Error, Network, Service, region_flag};
