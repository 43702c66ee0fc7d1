//! Reasons of Events: each `reason` that this project publishes, how bad it is, and on which kinds of objects.

use std::fmt;

/// `type` of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The table of Events: an enum with a row for each reason. `docs/operations.md` has the same reasons, on the same objects, which a
/// test compares (`src/tests/vocabulary.rs`).
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
            /// All of them, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The `reason`, in CamelCase.
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

            /// The kinds of the objects that it is said on.
            pub const fn kinds(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($kind),+],)+
                }
            }
        }
    };
}

events! {
    Exported => "Exported", Normal, ["ServiceExport"], "the registry has the export again";
    NoConflicts => "NoConflicts", Normal, ["ServiceExport"], "all exporting clusters agree again";
    NoService => "NoService", Warning, ["ServiceExport"], "there is no Service of that name";
    InvalidServiceType => "InvalidServiceType", Warning, ["ServiceExport"], "the Service is of a type that cannot be exported";
    Conflict => "Conflict", Warning, ["ServiceExport"], "exports of one name differ";
    NameConflict => "NameConflict", Warning, ["ServiceExport"], "another claim holds the target";
    AddressFamilyMissing => "AddressFamilyMissing", Warning, ["ServiceExport"], "endpoints lack what the service's DNS records require";
    NoClusterSet => "NoClusterSet", Warning, ["ServiceExport", "Namespace"], "this cluster is in no ClusterSet";
    ForeignObject => "ForeignObject", Warning, ["ServiceImport", "Service", "ServiceExport"], "an object of somebody else is in the way of an import";
    SystemNamespace => "SystemNamespace", Warning, ["ServiceExport", "Namespace"], "no cluster imports the name";
    ClusterSilent => "ClusterSilent", Warning, ["ServiceImport"], "nothing is heard of clusters that export it";
    ClustersHeard => "ClustersHeard", Normal, ["ServiceImport"], "all clusters that export it are heard of again";
    AddressSkipped => "AddressSkipped", Warning, ["ServiceImport", "ServiceExport", "Service", "Ingress"], "addresses that cannot be endpoints are left out";
    ImportFailed => "ImportFailed", Warning, ["Namespace"], "a Cloud Map namespace, or services in it, cannot be read";
    InstanceSkipped => "InstanceSkipped", Warning, ["ServiceImport", "Namespace"], "instances of others cannot be endpoints";
    ReconcileFailed => "ReconcileFailed", Warning, ["ServiceExport", "ServiceImport"], "writes to the API server fail repeatedly";
    IpRegistered => "IPRegistered", Normal, ["Service", "Ingress"], "addresses were registered";
    IpRemoved => "IPRemoved", Normal, ["Service", "Ingress"], "addresses were removed";
    ServiceDeleted => "ServiceDeleted", Normal, ["Service"], "it was deleted, and what was registered for it is gone";
    IngressDeleted => "IngressDeleted", Normal, ["Ingress"], "it was deleted, and what was registered for it is gone";
    DnsAnswersLimited => "DnsAnswersLimited", Warning, ["Service", "Ingress"], "a DNS answer does not have all healthy instances";
    DiscoveryLimited => "DiscoveryLimited", Warning, ["Service", "Ingress"], "a discovery does not return all instances unless asked to";
    NearlyFull => "NearlyFull", Warning, ["Service", "Ingress"], "the Cloud Map service takes few more instances";
    TtlNotChanged => "TtlNotChanged", Warning, ["Service", "Ingress"], "AWS refuses to change the TTL";
    RecordsDiffer => "RecordsDiffer", Warning, ["Service", "Ingress"], "the service has other kinds of records than asked for";
    DomainConflict => "DomainConflict", Warning, ["Service", "Ingress"], "another claim holds the name";
    AwaitsClusters => "AwaitsClusters", Warning, ["Service", "Ingress"], "a cluster that may have an older claim cannot be read";
    NamespacesUnknown => "NamespacesUnknown", Warning, ["Service", "Ingress"], "the Cloud Map namespaces cannot be listed";
    NotAllowed => "NotAllowed", Warning, ["Service", "Ingress"], "the Namespace does not allow it";
    NoAddress => "NoAddress", Warning, ["Service", "Ingress"], "there is nothing to register under a host name";
    NotHeadless => "NotHeadless", Warning, ["Service"], "only headless Services can be registered so";
    InvalidName => "InvalidName", Warning, ["Service", "Ingress"], "Cloud Map takes no such name";
    TooManyAttributes => "TooManyAttributes", Warning, ["Service", "Ingress"], "instances would have too many attributes";
    Disabled => "Disabled", Warning, ["Service", "Ingress"], "instances are switched off";
    UnfitEndpoints => "UnfitEndpoints", Warning, ["Service", "Ingress"], "endpoints lack what the service's DNS records require";
    AccessDenied => "AccessDenied", Warning, ["Service", "Ingress"], "AWS denies it";
    Throttled => "Throttled", Warning, ["Service", "Ingress"], "AWS throttles, and not just for a moment";
    NoNamespace => "NoNamespace", Warning, ["ServiceExport", "Service", "Ingress", "Namespace"], "a Cloud Map namespace does not exist";
    InvalidAnnotation => "InvalidAnnotation", Warning, ["ServiceExport", "Service", "Ingress", "Namespace"], "an annotation cannot be understood, or is not allowed";
    ForeignOwner => "ForeignOwner", Warning, ["ServiceExport", "Service", "Ingress"], "the Cloud Map service is somebody else's";
    LimitExceeded => "LimitExceeded", Warning, ["ServiceExport", "Service", "Ingress"], "a quota of Cloud Map is reached";
    Failed => "Failed", Warning, ["ServiceExport", "Service", "Ingress"], "it cannot be exported or registered, for the reason in the text";
    DottedClusterId => "DottedClusterId", Warning, ["Lease"], "stock CoreDNS answers no names of single pods for such cluster ids";
}

impl fmt::Display for EventReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Tests name reasons as the user reads them.
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
