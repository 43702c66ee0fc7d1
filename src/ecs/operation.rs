//! The operations of ECS that are called.

use std::fmt;

/// One API operation of ECS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// `ecs:ListClusters`
    ListClusters,
    /// `ecs:ListServices`
    ListServices,
    /// `ecs:DescribeServices`
    DescribeServices,
    /// `ecs:UpdateService`
    UpdateService,
}

impl Operation {
    /// All operations.
    pub const ALL: &[Self] = &[Self::ListClusters, Self::ListServices, Self::DescribeServices, Self::UpdateService];

    /// The name that AWS uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ListClusters => "ListClusters",
            Self::ListServices => "ListServices",
            Self::DescribeServices => "DescribeServices",
            Self::UpdateService => "UpdateService",
        }
    }

    /// The action in IAM that allows it.
    pub fn action(self) -> String {
        format!("ecs:{self}")
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
