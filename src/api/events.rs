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

/// The table of Events: an enum with a row for each reason. `docs/operations.md` has the same reasons for the same objects; a test
/// compares them (`src/tests/vocabulary.rs`).
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
        }
    };
}

events! {
    Exported => "Exported", Normal, ["ServiceExport"], "the registry contains the export again";
    NoConflicts => "NoConflicts", Normal, ["ServiceExport"], "all exporting clusters agree again";
    NoService => "NoService", Warning, ["ServiceExport"], "this cluster has no Service of that name";
    InvalidServiceType => "InvalidServiceType", Warning, ["ServiceExport"], "the Service has a type that cannot be exported";
    Conflict => "Conflict", Warning, ["ServiceExport"], "exports of one name differ";
    NameConflict => "NameConflict", Warning, ["ServiceExport"], "another claim holds the target";
    AddressFamilyMissing => "AddressFamilyMissing", Warning, ["ServiceExport"], "endpoints lack what the service's DNS records require";
    NoClusterSet => "NoClusterSet", Warning, ["ServiceExport", "Namespace"], "this cluster is in no ClusterSet";
    ForeignObject => "ForeignObject", Warning, ["ServiceImport", "Service", "ServiceExport"], "a foreign object blocks an import";
    SystemNamespace => "SystemNamespace", Warning, ["ServiceExport", "Namespace"], "no cluster imports the name";
    ClusterSilent => "ClusterSilent", Warning, ["ServiceImport"], "clusters that export it are silent";
    ClustersHeard => "ClustersHeard", Normal, ["ServiceImport"], "no cluster that exports it is silent any more";
    AddressSkipped => "AddressSkipped", Warning, ["ServiceImport", "ServiceExport", "Service", "Ingress"], "addresses that cannot be endpoints are left out";
    ImportFailed => "ImportFailed", Warning, ["Namespace"], "a Cloud Map namespace, or services in it, cannot be read";
    InstanceSkipped => "InstanceSkipped", Warning, ["ServiceImport", "Namespace"], "foreign instances cannot be endpoints";
    InstancesLeft => "InstancesLeft", Warning, ["Namespace"], "the former AWS controller of this cluster left instances";
    ReconcileFailed => "ReconcileFailed", Warning, ["ServiceExport", "ServiceImport"], "writes to the API server fail repeatedly";
    IpRegistered => "IPRegistered", Normal, ["Service", "Ingress"], "addresses were registered";
    IpRemoved => "IPRemoved", Normal, ["Service", "Ingress"], "addresses were removed";
    ServiceDeleted => "ServiceDeleted", Normal, ["Service"], "it was deleted, and its instances are withdrawn";
    IngressDeleted => "IngressDeleted", Normal, ["Ingress"], "it was deleted, and its instances are withdrawn";
    DnsAnswersLimited => "DnsAnswersLimited", Warning, ["Service", "Ingress"], "a DNS answer does not contain all healthy instances";
    DiscoveryLimited => "DiscoveryLimited", Warning, ["Service", "Ingress"], "a discovery does not return all instances by default";
    NearlyFull => "NearlyFull", Warning, ["Service", "Ingress"], "the Cloud Map service can take only few more instances";
    TtlNotChanged => "TtlNotChanged", Warning, ["Service", "Ingress"], "AWS refuses to change the TTL";
    RecordsDiffer => "RecordsDiffer", Warning, ["Service", "Ingress"], "the service has other types of records than requested";
    DomainConflict => "DomainConflict", Warning, ["Service", "Ingress"], "another claim holds the name";
    AwaitsClusters => "AwaitsClusters", Warning, ["Service", "Ingress"], "a cluster that may have an older claim cannot be read";
    NamespacesUnknown => "NamespacesUnknown", Warning, ["Service", "Ingress"], "the Cloud Map namespaces cannot be listed";
    NotAllowed => "NotAllowed", Warning, ["Service", "Ingress"], "the Namespace does not allow it";
    NoAddress => "NoAddress", Warning, ["Service", "Ingress"], "there is no address to register under a host name";
    NotHeadless => "NotHeadless", Warning, ["Service"], "this annotation registers only headless Services";
    InvalidName => "InvalidName", Warning, ["Service", "Ingress"], "Cloud Map does not accept the name";
    TooManyAttributes => "TooManyAttributes", Warning, ["Service", "Ingress"], "instances would have too many attributes";
    Disabled => "Disabled", Warning, ["Service", "Ingress"], "instances are turned off";
    UnfitEndpoints => "UnfitEndpoints", Warning, ["Service", "Ingress"], "endpoints lack what the service's DNS records require";
    AccessDenied => "AccessDenied", Warning, ["Service", "Ingress"], "AWS denies a call";
    Throttled => "Throttled", Warning, ["Service", "Ingress"], "AWS has throttled calls for some time";
    NoNamespace => "NoNamespace", Warning, ["ServiceExport", "Service", "Ingress", "Namespace"], "a Cloud Map namespace does not exist";
    InvalidAnnotation => "InvalidAnnotation", Warning, ["ServiceExport", "Service", "Ingress", "Namespace"], "an annotation is invalid or not allowed";
    ForeignOwner => "ForeignOwner", Warning, ["ServiceExport", "Service", "Ingress"], "the Cloud Map service belongs to somebody else";
    LimitExceeded => "LimitExceeded", Warning, ["ServiceExport", "Service", "Ingress"], "a Cloud Map quota is exhausted";
    Failed => "Failed", Warning, ["ServiceExport", "Service", "Ingress"], "it cannot be exported or registered; the text says why";
    DottedClusterId => "DottedClusterId", Warning, ["Lease"], "stock CoreDNS does not answer names of single pods for such a cluster id";
}

impl fmt::Display for EventReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Tests compare reasons with the text that users see.
#[cfg(test)]
impl PartialEq<str> for EventReason {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

#[cfg(test)]
impl PartialEq<&str> for EventReason {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}
