//! The condition of a ClusterImportPolicy.

use std::fmt;

use super::{Row, Status};

/// Types of conditions on a ClusterImportPolicy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyCondition {
    /// Of this project: all of the spec is in force.
    Enforced,
}

impl PolicyCondition {
    /// The `type` of the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforced => "Enforced",
        }
    }
}

condition! {
    /// Reasons of [`PolicyCondition::Enforced`].
    PolicyReason, PolicyCondition::Enforced;
    Enforced => True, "Enforced", None, "the policy is in force for the clusters that the message names", "", "";
    NoCluster => True, "NoCluster", None, "the policy is in force, and no cluster that is known is one of those that it is about",
        "", "Correct `spec.from` if that is not meant.";
    InvalidSpec => False, "InvalidSpec", None,
        "an entry of the spec is invalid; the rest is in force", "The message says which one, and what to write",
        "An invalid range matches no address: in `allowed` it allows nothing, in `denied` it denies nothing.";
}
