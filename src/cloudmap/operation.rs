//! The operations of Cloud Map that this project calls, by the names that AWS gives them.

use std::fmt;

/// One API operation. Its name is the one in AWS's documentation and in IAM actions (`servicediscovery:<name>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    ListNamespaces,
    GetNamespace,
    CreateHttpNamespace,
    DeleteNamespace,
    ListServices,
    GetService,
    CreateService,
    UpdateService,
    DeleteService,
    RegisterInstance,
    DeregisterInstance,
    GetOperation,
    ListInstances,
    DiscoverInstances,
    GetInstancesHealthStatus,
    UpdateInstanceCustomHealthStatus,
    ListTagsForResource,
    TagResource,
}

impl Operation {
    pub const ALL: [Self; 18] = [
        Self::ListNamespaces,
        Self::GetNamespace,
        Self::CreateHttpNamespace,
        Self::DeleteNamespace,
        Self::ListServices,
        Self::GetService,
        Self::CreateService,
        Self::UpdateService,
        Self::DeleteService,
        Self::RegisterInstance,
        Self::DeregisterInstance,
        Self::GetOperation,
        Self::ListInstances,
        Self::DiscoverInstances,
        Self::GetInstancesHealthStatus,
        Self::UpdateInstanceCustomHealthStatus,
        Self::ListTagsForResource,
        Self::TagResource,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ListNamespaces => "ListNamespaces",
            Self::GetNamespace => "GetNamespace",
            Self::CreateHttpNamespace => "CreateHttpNamespace",
            Self::DeleteNamespace => "DeleteNamespace",
            Self::ListServices => "ListServices",
            Self::GetService => "GetService",
            Self::CreateService => "CreateService",
            Self::UpdateService => "UpdateService",
            Self::DeleteService => "DeleteService",
            Self::RegisterInstance => "RegisterInstance",
            Self::DeregisterInstance => "DeregisterInstance",
            Self::GetOperation => "GetOperation",
            Self::ListInstances => "ListInstances",
            Self::DiscoverInstances => "DiscoverInstances",
            Self::GetInstancesHealthStatus => "GetInstancesHealthStatus",
            Self::UpdateInstanceCustomHealthStatus => "UpdateInstanceCustomHealthStatus",
            Self::ListTagsForResource => "ListTagsForResource",
            Self::TagResource => "TagResource",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
