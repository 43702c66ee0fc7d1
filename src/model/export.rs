//! What one cluster says about one exported Service.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{Endpoint, Target};

/// One cluster's export of a `<namespace>/<name>`: all that other clusters need for the conflict rules of KEP-1645.
/// The endpoints travel beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// UID of the ServiceExport.
    pub uid: Arc<str>,
    /// `metadata.creationTimestamp` of the ServiceExport, seconds since 1970: the oldest export wins conflicts.
    pub created: i64,
    pub service_type: ServiceType,
    /// In the order of the Service.
    pub ports: Vec<ServicePort>,
    pub session_affinity: SessionAffinity,
    pub internal_traffic_policy: TrafficPolicy,
    /// As in the Service (`PreferClose`, `PreferSameZone`, ...): an open set.
    pub traffic_distribution: Option<Arc<str>>,
    /// Primary family first.
    pub ip_families: Vec<IpFamily>,
    /// `spec.exportedLabels` of the ServiceExport.
    pub labels: BTreeMap<String, String>,
    /// `spec.exportedAnnotations` of the ServiceExport.
    pub annotations: BTreeMap<String, String>,
    /// `publishNotReadyAddresses` of the Service.
    pub publish_not_ready_addresses: bool,
    /// Where the instances of this export are registered, if anywhere.
    pub target: Option<Target>,
}

/// What a cluster says about one name: its export with the endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    pub export: Export,
    /// Sorted.
    pub endpoints: Vec<Endpoint>,
}

/// `ServiceImport.spec.type` (KEP-1645).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceType {
    ClusterSetIp,
    Headless,
}

impl fmt::Display for ServiceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterSetIp => "ClusterSetIP",
            Self::Headless => "Headless",
        })
    }
}

/// A port of the Service: `port` is what clients connect to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePort {
    /// Empty for an unnamed port.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub app_protocol: Option<Arc<str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// The Kubernetes spelling; absent means TCP. `None` for anything that Kubernetes does not know.
    pub fn parse(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("TCP") => Some(Self::Tcp),
            Some("UDP") => Some(Self::Udp),
            Some("SCTP") => Some(Self::Sctp),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    /// The Kubernetes spelling.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "IPv4" => Some(Self::V4),
            "IPv6" => Some(Self::V6),
            _ => None,
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// Seconds that Kubernetes gives a client-IP affinity without a time-out.
pub const DEFAULT_AFFINITY_TIMEOUT: u32 = 10_800;

/// `spec.sessionAffinity` with its config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionAffinity {
    None,
    ClientIp {
        /// Seconds; absent means [`DEFAULT_AFFINITY_TIMEOUT`].
        timeout: Option<u32>,
    },
}

/// `spec.internalTrafficPolicy`; absent means `Cluster`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    Cluster,
    Local,
}

impl fmt::Display for TrafficPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        })
    }
}
