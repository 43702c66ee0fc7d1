//! The permissions in AWS that each way of running needs, as IAM statements. `cloudmap-mcs iam` prints them, and tests hold
//! them to the calls that are made.
//!
//! Which resources and condition keys an action takes is in AWS's service authorization reference: `List...`,
//! `CreateHttpNamespace` and `TagResource` take no resource, so that a condition is all that limits them.

#![warn(missing_docs)]

pub mod harmless;
mod modes;
mod permissions;
mod statement;

pub use modes::{Mode, Needed, statements};
pub use permissions::READ_SHARED;
pub use statement::{Conditions, Effect, Policy, Scope, Statement, Values, domain, partition};

#[cfg(test)]
mod tests;
