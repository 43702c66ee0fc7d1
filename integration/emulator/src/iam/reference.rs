//! What the service authorization reference says of each action of Cloud Map ("Actions, resources, and condition keys for
//! AWS Cloud Map"): its resource types and its condition keys.

/// The resources that an action takes. All of them are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resources {
    /// None: "you must specify all resources (\"*\")".
    Everything,
    Namespace,
    Service,
    /// `namespace*` and `service*`: the namespace, and the service that is to be.
    NewService,
    /// `namespace*` and `service*`, both by name.
    Discovered,
    /// `namespace*` and `service`.
    Operation,
}

/// A condition key beside `aws:ResourceTag/...`, which every action with a resource takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// `aws:RequestTag/...`
    RequestTag,
    TagKeys,
    NamespaceArn,
    /// `servicediscovery:NamespaceName` and `servicediscovery:ServiceName`, which the same actions take.
    Names,
    ServiceArn,
    ServiceCreatedByAccount,
}

/// The resources and condition keys of an operation's action.
pub(super) fn of(operation: &str) -> (Resources, &'static [Key]) {
    use Key::{Names, NamespaceArn, RequestTag, ServiceArn, ServiceCreatedByAccount, TagKeys};
    match operation {
        "CreateHttpNamespace" | "CreatePrivateDnsNamespace" | "CreatePublicDnsNamespace" | "TagResource" => {
            (Resources::Everything, &[RequestTag, TagKeys])
        }
        "UntagResource" => (Resources::Everything, &[TagKeys]),
        "CreateService" => (Resources::NewService, &[RequestTag, TagKeys, NamespaceArn]),
        "DeleteNamespace"
        | "GetNamespace"
        | "UpdateHttpNamespace"
        | "UpdatePrivateDnsNamespace"
        | "UpdatePublicDnsNamespace" => (Resources::Namespace, &[]),
        "GetService" | "GetServiceAttributes" => (Resources::Service, &[]),
        "GetInstance" | "GetInstancesHealthStatus" | "ListInstances" => (Resources::Service, &[ServiceArn]),
        "DeleteService" | "DeleteServiceAttributes" | "UpdateService" | "UpdateServiceAttributes" => {
            (Resources::Service, &[ServiceCreatedByAccount])
        }
        "DeregisterInstance" | "RegisterInstance" | "UpdateInstanceCustomHealthStatus" => {
            (Resources::Service, &[ServiceArn, ServiceCreatedByAccount])
        }
        "DiscoverInstances" | "DiscoverInstancesRevision" => (Resources::Discovered, &[Names]),
        "GetOperation" => (Resources::Operation, &[]),
        // ListNamespaces, ListOperations, ListServices, ListTagsForResource.
        _ => (Resources::Everything, &[]),
    }
}

/// Whether calls can have a condition key, in lower case: those of the reference, and global ones.
pub(super) fn is_known_key(key: &str) -> bool {
    const KEYS: [&str; 10] = [
        "aws:principalaccount",
        "aws:principalarn",
        "aws:requestedregion",
        "aws:resourceaccount",
        "aws:tagkeys",
        "servicediscovery:namespacearn",
        "servicediscovery:namespacename",
        "servicediscovery:servicearn",
        "servicediscovery:servicecreatedbyaccount",
        "servicediscovery:servicename",
    ];
    KEYS.contains(&key) || ["aws:requesttag/", "aws:resourcetag/"].iter().any(|prefix| key.starts_with(prefix))
}
