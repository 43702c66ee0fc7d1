//! What one cluster exports under one name.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{Drain, Endpoint, Target, is_dns_label};

/// One cluster's export of a `<namespace>/<name>`: everything that other clusters need for the conflict rules of
/// KEP-1645, without the endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// UID of the ServiceExport.
    pub uid: Arc<str>,
    /// `metadata.creationTimestamp` of the ServiceExport, in seconds since 1970. The oldest export wins conflicts.
    pub created: i64,
    /// Whether the service has a cluster IP in the ClusterSet.
    pub service_type: ServiceType,
    /// The ports, in the order of the Service.
    pub ports: Vec<ServicePort>,
    /// `spec.sessionAffinity` of the Service.
    pub session_affinity: SessionAffinity,
    /// `spec.internalTrafficPolicy` of the Service.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.trafficDistribution` of the Service (`PreferClose`, `PreferSameZone`, ...). Newer Kubernetes releases may
    /// add values.
    pub traffic_distribution: Option<Arc<str>>,
    /// The IP families of the Service, the primary one first.
    pub ip_families: Vec<IpFamily>,
    /// `spec.exportedLabels` of the ServiceExport.
    pub labels: BTreeMap<String, String>,
    /// `spec.exportedAnnotations` of the ServiceExport.
    pub annotations: BTreeMap<String, String>,
    /// `publishNotReadyAddresses` of the Service.
    pub publish_not_ready_addresses: bool,
    /// Where the instances of this export are registered, if anywhere.
    pub target: Option<Target>,
    /// Which clusters serve the name in an importing cluster (KEP-5939), as `api::selection` writes it; `None`: as that cluster
    /// sees fit.
    pub cluster_selection: Option<Arc<str>>,
    /// Which part of the endpoints leaves the name as far as other clusters can serve it, if any.
    pub drain: Option<Drain>,
}

/// An export with its endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The export.
    pub export: Export,
    /// The endpoints, sorted.
    pub endpoints: Vec<Endpoint>,
}

impl Exported {
    /// Number of endpoints that are ready.
    pub fn ready(&self) -> usize {
        self.endpoints.iter().filter(|endpoint| endpoint.conditions.ready).count()
    }
}

/// `ServiceImport.spec.type` (KEP-1645).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceType {
    /// Clients use an IP of the ServiceImport.
    ClusterSetIp,
    /// Clients use the addresses of the endpoints.
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

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePort {
    /// Empty for an unnamed port.
    pub name: Arc<str>,
    /// Transport protocol.
    pub protocol: Protocol,
    /// The number to which clients connect.
    pub port: u16,
    /// Application protocol, such as `http`.
    pub app_protocol: Option<Arc<str>>,
}

/// The name of an unnamed port in a derived Service. The API server refuses a Service with several ports of which one has
/// no name, and a name that comes together with a second port would interrupt the first port's traffic. No user's port has
/// this name: if exports of two clusters had ports with one name, the API server would refuse the Service.
pub const UNNAMED_PORT: &str = "cloudmap-mcs-unnamed";

/// Whether a port that others describe can have this name: none, or one that API servers take for a port of a Service
/// (RFC 1123, up to 63 characters; only those of containers have 15).
pub fn is_port_name(name: &str) -> bool {
    name.is_empty() || is_dns_label(name) && name != UNNAMED_PORT
}

/// A transport protocol that Services support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The spelling of Kubernetes: `TCP`, `UDP` or `SCTP`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// Parses the spelling of Kubernetes, where an absent protocol means TCP. `None` for a protocol that Kubernetes
    /// does not have.
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

/// An IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Parses the spelling of Kubernetes, `IPv4` or `IPv6`.
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

/// The timeout that Kubernetes gives to client-IP affinity by default, in seconds.
pub const DEFAULT_AFFINITY_TIMEOUT: u32 = 10_800;

/// `spec.sessionAffinity` of a Service with its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionAffinity {
    /// No affinity.
    None,
    /// Requests from one client IP go to the same endpoint.
    ClientIp {
        /// Timeout in seconds; `None` means [`DEFAULT_AFFINITY_TIMEOUT`].
        timeout: Option<u32>,
    },
}

/// `spec.internalTrafficPolicy` of a Service. An absent policy means `Cluster`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// Traffic goes to all endpoints.
    Cluster,
    /// Traffic goes only to endpoints on the node of the client.
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
