//! The reasons of Events: every `reason` that this project emits, with its type and the kinds of objects that it is about.

use std::fmt;

/// `type` of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// For information.
    Normal,
    /// Something needs attention.
    Warning,
}

impl Severity {
    /// The spelling of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The table of Events: an enum with a row for each reason. `docs/reference/conditions.md` is made of it (`make docs`).
macro_rules! events {
    ($($variant:ident => $reason:literal, $severity:ident, [$($kind:literal),+], $text:literal;)+) => {
        /// `reason` of an Event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventReason {
            $(
                #[doc = concat!(stringify!($severity), ": ", $text, ".")]
                $variant,
            )+
        }

        impl EventReason {
            /// All reasons, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The `reason` of the Event, in CamelCase.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $reason,)+
                }
            }

            /// The `type` of the Event.
            pub const fn severity(self) -> Severity {
                match self {
                    $(Self::$variant => Severity::$severity,)+
                }
            }

            /// The kinds of objects that the Event is about.
            pub const fn kinds(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($kind),+],)+
                }
            }

            /// The meaning, in Markdown.
            #[cfg(any(test, feature = "testing"))]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}

events! {
    Exported => "Exported", Normal, ["ServiceExport"], "the registry contains the export again";
    NoConflicts => "NoConflicts", Normal, ["ServiceExport"], "all exporting clusters agree again";
    NoService => "NoService", Warning, ["ServiceExport"], "this cluster has no Service of that name, or it is being deleted";
    InvalidServiceType => "InvalidServiceType", Warning, ["ServiceExport"], "the Service has a type that cannot be exported, or is the derived Service of an import";
    Conflict => "Conflict", Warning, ["ServiceExport"], "exports of one name differ";
    NameConflict => "NameConflict", Warning, ["ServiceExport"], "another claim holds the target";
    AddressFamilyMissing => "AddressFamilyMissing", Warning, ["ServiceExport"], "endpoints lack what the service's DNS records require";
    PortNotServed => "PortNotServed", Warning, ["ServiceExport", "Service"], "no endpoint serves a port of an exported or annotated Service, mostly because its `targetPort` is a name that no container of the pods has. Its addresses are registered all the same. The message names the port and the remedy. With `--instances=none`, the condition `Valid` has the same text";
    NoClusterSet => "NoClusterSet", Warning, ["ServiceExport", "Namespace"], "this cluster is in no ClusterSet, so nothing is exported, or imported from Cloud Map. Create the ClusterProperty `clusterset.k8s.io`, or set `--clusterset-id`";
    ForeignObject => "ForeignObject", Warning, ["ServiceImport", "Service", "ServiceExport"], "an object that this controller did not create blocks an import: a ServiceImport of this name, or a Service with the name of the derived Service. The Event is on that object and on this cluster's ServiceExport. Stop whatever creates the object, and delete it";
    DerivedNameUnusable => "DerivedNameUnusable", Warning, ["ServiceImport"], "the derived Service cannot have the name that `--derived-name` gives it, because a Service of others has it, or because it is too long or begins with a digit. Its name is `derived-` and a hash instead. Delete the other Service, or choose another template";
    SystemNamespace => "SystemNamespace", Warning, ["ServiceExport", "Namespace"], "the exported name is in a namespace of Kubernetes (`kube-*`) or of this controller, or it is `default/kubernetes`. No cluster imports such a name";
    ImportExcluded => "ImportExcluded", Warning, ["ServiceImport", "Namespace"], "the namespace does not accept exports of other clusters, or a [ClusterImportPolicy](../import-policies.md) leaves them or their endpoints out. The message says whose, and why. The Event is on the Namespace if there is no ServiceImport";
    ImportIncluded => "ImportIncluded", Normal, ["ServiceImport"], "the condition `Excluded` of the ServiceImport disappeared: all exports of the name count again";
    ClusterSilent => "ClusterSilent", Warning, ["ServiceImport"], "the condition `Stale` of the ServiceImport appeared: clusters that export the service are silent";
    ClustersHeard => "ClustersHeard", Normal, ["ServiceImport"], "the condition `Stale` of the ServiceImport disappeared: no cluster that exports the service is silent any more";
    ClusterUnreachable => "ClusterUnreachable", Warning, ["ServiceImport"], "the condition `Unreachable` of the ServiceImport appeared: the network to clusters that export the service is gone";
    ClusterReachable => "ClusterReachable", Normal, ["ServiceImport"], "the condition `Unreachable` of the ServiceImport disappeared: all clusters that export the service can be reached again";
    TypeChanges => "TypeChanges", Warning, ["ServiceImport", "ServiceExport"], "the type of the import changes at the time in the message (`--type-notice`), because the oldest export has another type; see [mcs-api.md](../mcs-api.md)";
    AddressSkipped => "AddressSkipped", Warning, ["ServiceImport", "ServiceExport", "Service", "Ingress"], "addresses are left out because they [cannot be endpoints](../imports.md#addresses), in this cluster or in any. Or an EndpointSlice of an exported Service is left out because it lists host names (`addressType: FQDN`)";
    ImportFailed => "ImportFailed", Warning, ["Namespace"], "a Cloud Map namespace, or services in it, cannot be read; see [ecs.md](../ecs.md#what-to-look-at)";
    InstanceSkipped => "InstanceSkipped", Warning, ["ServiceImport", "Namespace"], "foreign instances cannot be endpoints. The Event is on the Namespace if there is no ServiceImport";
    InstancesLeft => "InstancesLeft", Warning, ["Namespace"], "with `--aws-mcs-compat`: there are instances of a name that this cluster does not export. They have the form of the AWS controller and the id of this cluster, but this controller did not register them; see [the move](../moving-from-aws-mcs-controller.md#what-the-flag-does)";
    ReconcileFailed => "ReconcileFailed", Warning, ["ServiceExport", "ServiceImport", "Namespace"], "writes to the API server fail repeatedly, or a foreign object has the name of an object that the controller has to create. The controller keeps trying. The Event is on the Namespace if there is neither an export nor an import";
    IpRegistered => "IPRegistered", Normal, ["Service", "Ingress"], "addresses of an annotated object were registered: one Event per change, with at most 8 addresses";
    IpRemoved => "IPRemoved", Normal, ["Service", "Ingress"], "addresses of an annotated object were removed: one Event per change, with at most 8 addresses";
    ServiceDeleted => "ServiceDeleted", Normal, ["Service"], "an annotated Service was deleted, and all of its instances are withdrawn";
    IngressDeleted => "IngressDeleted", Normal, ["Ingress"], "an annotated Ingress was deleted, and all of its instances are withdrawn";
    DnsAnswersLimited => "DnsAnswersLimited", Warning, ["Service", "Ingress"], "a DNS answer does not contain all healthy instances: a [limit](../instances.md#limits)";
    DiscoveryLimited => "DiscoveryLimited", Warning, ["Service", "Ingress"], "a discovery does not return all instances by default: a [limit](../instances.md#limits)";
    NearlyFull => "NearlyFull", Warning, ["Service", "Ingress"], "the Cloud Map service can take only few more instances: a [limit](../instances.md#limits)";
    ShareReached => "ShareReached", Normal, ["Service", "Ingress"], "other pods were chosen for the [share of the traffic](../shares.md). The message has the share that they have when they are registered, and the requested one";
    ShareLimited => "ShareLimited", Warning, ["Service", "Ingress"], "the requested [share of the traffic](../shares.md) needs more ready pods, or fewer instances of others";
    TtlNotChanged => "TtlNotChanged", Warning, ["Service", "Ingress"], "AWS refuses to change the TTL, and the controller tries again";
    RecordsDiffer => "RecordsDiffer", Warning, ["Service", "Ingress"], "the service has other types of records than requested. AWS does not allow changes of the types";
    ServiceRemade => "ServiceRemade", Warning, ["Service", "Ingress"], "the Cloud Map service was deleted and made again with other types of records, because [its endpoints fit only those](../instances.md#where). The message says for how long the name had no answer, and how long resolvers may keep that";
    InstancesAltered => "InstancesAltered", Warning, ["Service", "Ingress"], "somebody else changes attributes of the registered instances, and the controller takes that back; said once. The message has the names of the attributes";
    DomainConflict => "DomainConflict", Warning, ["Service", "Ingress"], "another claim holds the name. It is older, or it is of the Kubernetes namespace whose own name this is. The message names its object. This object takes over when that claim is released";
    AwaitsClusters => "AwaitsClusters", Warning, ["Service", "Ingress"], "a cluster has not been readable for more than 15 s, and may have claimed the name before; see `ledger show`";
    NamespacesUnknown => "NamespacesUnknown", Warning, ["Service", "Ingress"], "the Cloud Map namespaces cannot be listed";
    NotAllowed => "NotAllowed", Warning, ["Service", "Ingress"], "the Namespace does not allow what an annotation requests";
    NoAddress => "NoAddress", Warning, ["Service", "Ingress"], "there is no address to register under a host name";
    NotHeadless => "NotHeadless", Warning, ["Service"], "the annotations `cloudmap.controller/...` register only headless Services";
    InvalidName => "InvalidName", Warning, ["Service", "Ingress"], "Cloud Map does not accept the name";
    TooManyAttributes => "TooManyAttributes", Warning, ["Service", "Ingress"], "instances would have too many attributes";
    Disabled => "Disabled", Warning, ["Service", "Ingress"], "instances are turned off";
    UnfitEndpoints => "UnfitEndpoints", Warning, ["Service", "Ingress"], "endpoints lack what the service's DNS records require";
    AccessDenied => "AccessDenied", Warning, ["Service", "Ingress"], "AWS denies a call";
    Throttled => "Throttled", Warning, ["ServiceExport", "Service", "Ingress"], "AWS has throttled calls for some time";
    NoNamespace => "NoNamespace", Warning, ["ServiceExport", "Service", "Ingress", "Namespace"], "a Cloud Map namespace does not exist. On a Namespace, it is one that it imports from; see [ecs.md](../ecs.md#what-to-look-at)";
    UnknownCluster => "UnknownCluster", Warning, ["ServiceExport"], "a weight is that of a cluster that does not export the name";
    UnknownProperty => "UnknownProperty", Warning, ["ServiceExport"], "a selector of the cluster selection names a property that no cluster has";
    DrainStays => "DrainStays", Warning, ["ServiceExport"], "this cluster is [drained](../upgrading-a-cluster.md), and endpoints of it stay because nobody else can serve the name well enough; the message says why";
    InvalidAnnotation => "InvalidAnnotation", Warning, ["ServiceExport", "Service", "Ingress", "Namespace"], "an annotation is invalid or not allowed. The message says what to write, and where";
    ForeignOwner => "ForeignOwner", Warning, ["ServiceExport", "Service", "Ingress"], "the Cloud Map service belongs to somebody else";
    QuotaExceeded => "QuotaExceeded", Warning, ["ServiceExport", "Service", "Ingress"], "the Kubernetes namespace has used up its [quota](../operations.md#quotas-of-namespaces), the object has too many host names, or the cluster has no room for more records. Something of the object is left out";
    LimitExceeded => "LimitExceeded", Warning, ["ServiceExport", "Service", "Ingress"], "a Cloud Map quota is exhausted";
    Failed => "Failed", Warning, ["ServiceExport", "Service", "Ingress"], "the object cannot be exported or registered; the message says why. On an annotated object, the reason can be that the ledger cannot be written; until it can, nothing new is registered";
    AwaitsRegistration => "AwaitsRegistration", Warning, ["Pod"], "the [readiness gate](../gates.md) of the pod has been waiting for more than 30 s. The message says for what";
    NotRegistered => "NotRegistered", Normal, ["Pod"], "the readiness gate of the pod is open, because no Service of it is registered in Cloud Map";
    Refused => "Refused", Warning, ["Pod"], "the readiness gate of the pod is open, although the pod cannot be registered in Cloud Map";
    TimedOut => "TimedOut", Warning, ["Pod"], "the readiness gate of the pod is open, because it waited for `--gate-timeout`. Clients of Cloud Map may not find the pod yet";
    GateNotWritten => "GateNotWritten", Warning, ["Pod"], "the API server refuses the condition that opens the readiness gate of the pod. The controller keeps trying; the message has the remedy";
    StepBegun => "StepBegun", Normal, ["Cutover"], "another share of the traffic came into force: a step of the [cutover](../cutover.md), or a share that its spec requests";
    LastStep => "LastStep", Normal, ["Cutover"], "the last step is reached, and is less than 100 %";
    Finished => "Finished", Normal, ["Cutover"], "all ready pods are registered. The message says whether others still have instances";
    RolledBack => "RolledBack", Normal, ["Cutover"], "no pod is registered any more";
    LastInstance => "LastInstance", Warning, ["Cutover"], "the registered pods keep the traffic while it is rolled back, because nobody else has a healthy instance. Start the tasks";
    GuardFailed => "GuardFailed", Warning, ["Cutover"], "the guard of the Cutover found something wrong. The message says what. The traffic goes back to others";
    TasksNotHidden => "TasksNotHidden", Warning, ["Cutover"], "tasks cannot be hidden. The message has the remedy; the steps go on";
    CutoverBlocked => "CutoverBlocked", Warning, ["Cutover"], "the Cutover cannot go on. The message has the remedy; the share stays as it is";
    CutoverNotWritten => "CutoverNotWritten", Warning, ["Cutover"], "the API server refuses the status of the Cutover, so no step begins. The controller keeps trying; the message has the remedy";
    StreamUnreachable => "StreamUnreachable", Warning, ["Lease"], "the leader of another cluster cannot be reached, so changes take seconds instead of milliseconds; see [stream.md](../stream.md#network)";
    HeadIgnored => "HeadIgnored", Warning, ["Lease"], "the head of a cluster in the ledger cannot be read, is not signed by the key that counts, or means a state that is too large; see [trust.md](../trust.md) and [CloudmapMcsHeadsIgnored](../alerts.md#cloudmapmcsheadsignored)";
    RegistryUnreadable => "RegistryUnreadable", Warning, ["Lease"], "a registry beside the home cannot be read. What was read of its clusters stays; see [regions.md](../regions.md) and [CloudmapMcsRegistryUnreadable](../alerts.md#cloudmapmcsregistryunreadable)";
    KeyRestored => "KeyRestored", Warning, ["Lease"], "somebody deleted the Secret `cloudmap-mcs-key`, and the leader created it again with the same key; see [trust.md](../trust.md#the-secret)";
    ClusterAccepted => "ClusterAccepted", Warning, ["Lease"], "another cluster is accepted as a member of the ClusterSet for the first time, or again after it was gone; see [CloudmapMcsClusterJoined](../alerts.md#cloudmapmcsclusterjoined)";
    KeyPinned => "KeyPinned", Warning, ["Lease"], "another key counts for a cluster from now on, because the cluster rotated its key, or because somebody ran `trust accept`; see [trust.md](../trust.md#commands)";
    KeyRotated => "KeyRotated", Warning, ["Lease"], "this cluster signs with another key from now on; see [trust.md](../trust.md#commands)";
    NotApproved => "NotApproved", Warning, ["Lease", "ServiceExport"], "this cluster registers nothing, because members of the ClusterSet have not approved it, or rejected it; see [trust.md](../trust.md#joining)";
    ClusterRejected => "ClusterRejected", Warning, ["Lease"], "somebody ran `trust reject` here: what the other cluster exports and claims counts in this cluster no more; see [trust.md](../trust.md#joining)";
    ClusterLeft => "ClusterLeft", Normal, ["Lease"], "another cluster left the ClusterSet";
    ClusterForgotten => "ClusterForgotten", Warning, ["Lease"], "somebody said that another cluster is gone for good (`forget`), in this cluster or in another one";
    LedgerCrowded => "LedgerCrowded", Warning, ["Lease"], "the ledger has 800 heads or more. From 1,000 heads on, nobody can read it; see [CloudmapMcsLedgerCrowded](../alerts.md#cloudmapmcsledgercrowded)";
    DottedClusterId => "DottedClusterId", Warning, ["Lease"], "the cluster id has dots. Stock CoreDNS does not answer names of single pods of such a cluster";
}

impl fmt::Display for EventReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Tests compare reasons with the text that users see.
#[cfg(any(test, feature = "testing"))]
impl PartialEq<str> for EventReason {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

#[cfg(any(test, feature = "testing"))]
impl PartialEq<&str> for EventReason {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}
