//! The checks, by subject. Each makes services of its own.

pub(super) mod claims;
pub(super) mod discovery;
pub(super) mod dns;
pub(super) mod health;
pub(super) mod instances;
pub(super) mod limits;
pub(super) mod product;
pub(super) mod times;

/// An address of the range for documentation: nobody is reached by it.
const ADDRESS: (&str, &str) = ("AWS_INSTANCE_IPV4", "192.0.2.1");
