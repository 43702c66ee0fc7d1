use std::{net::IpAddr, sync::Arc};

use k8s_openapi::{api::core::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{MAX_ADDRESSES, addresses, created, is_managed, known_annotations, label, service_key, service_port, uid};
use crate::cache::Narrow;
use api::names;
use model::{IpFamily, Pairs, ServiceKey, ServicePort, SessionAffinity, TrafficPolicy, intern};

/// A Service: an exported one, an annotated one, or a derived one of this project's imports.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of the object, and they are independent")]
pub struct Service {
    /// Its key.
    pub key: ServiceKey,
    /// Its uid.
    pub uid: Box<str>,
    /// Creation in seconds since 1970.
    pub created: i64,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// `spec.type`.
    pub kind: ServiceKind,
    /// Whether it has `clusterIP: None`.
    pub headless: bool,
    /// The allocated cluster IPs in the order of `ip_families`. Empty for headless and ExternalName Services, and for a
    /// moment after creation.
    pub cluster_ips: Box<[IpAddr]>,
    /// `spec.externalIPs`, cut in the same way.
    pub external_ips: Box<[IpAddr]>,
    /// Addresses and host names in `status.loadBalancer.ingress`, cut if there are more than a Cloud Map service takes.
    pub load_balancer: Box<[Box<str>]>,
    /// `spec.externalName`.
    pub external_name: Option<Box<str>>,
    /// The ports, in the order of the Service.
    pub ports: Box<[ServicePort]>,
    /// `spec.ipFamilies`, the primary one first.
    pub ip_families: Box<[IpFamily]>,
    /// `SingleStack`, `PreferDualStack` or `RequireDualStack`.
    pub ip_family_policy: Option<Arc<str>>,
    /// `spec.sessionAffinity` with its configuration.
    pub session_affinity: SessionAffinity,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// `spec.trafficDistribution`.
    pub traffic_distribution: Option<Arc<str>>,
    /// `spec.publishNotReadyAddresses`.
    pub publish_not_ready_addresses: bool,
    /// Whether the EndpointSlice controller writes its endpoints. Without a selector, somebody else does.
    pub has_selector: bool,
    /// Annotations with one of [`names::ANNOTATION_PREFIXES`].
    pub annotations: Pairs,
    /// Whether it is a derived Service of this project.
    pub managed: bool,
    /// Name of the ServiceImport to which a derived Service belongs. Somebody may have taken the label of this project from
    /// it, so that it is not `managed`.
    pub service_import: Option<Arc<str>>,
}

/// `spec.type` of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceKind {
    /// Clients in the cluster use a virtual IP.
    ClusterIp,
    /// Also a port of every node.
    NodePort,
    /// Also an external load balancer.
    LoadBalancer,
    /// An alias for a DNS name.
    ExternalName,
    /// A type that this version does not know.
    Other(Box<str>),
}

impl ServiceKind {
    /// Whether it can be exported. KEP-1645 exports every type that has endpoints of its own.
    pub const fn can_be_exported(&self) -> bool {
        matches!(self, Self::ClusterIp | Self::NodePort | Self::LoadBalancer)
    }
}

impl Narrow for Service {
    type Kind = v1::Service;
    type Key = ServiceKey;

    const CACHE: &'static str = "Service";

    fn key(metadata: &ObjectMeta) -> Option<ServiceKey> {
        service_key(metadata)
    }

    fn narrow(object: v1::Service) -> Option<Self> {
        let metadata = &object.metadata;
        let spec = object.spec.unwrap_or_default();
        let managed = is_managed(metadata);
        let cluster_ips = spec.cluster_ips.or_else(|| spec.cluster_ip.map(|ip| vec![ip])).unwrap_or_default();
        Some(Self {
            key: service_key(metadata)?,
            uid: uid(metadata),
            created: created(metadata),
            deleting: metadata.deletion_timestamp.is_some(),
            kind: match spec.type_.as_deref() {
                None | Some("ClusterIP") => ServiceKind::ClusterIp,
                Some("NodePort") => ServiceKind::NodePort,
                Some("LoadBalancer") => ServiceKind::LoadBalancer,
                Some("ExternalName") => ServiceKind::ExternalName,
                Some(other) => ServiceKind::Other(other.into()),
            },
            headless: cluster_ips.iter().any(|ip| ip == "None"),
            cluster_ips: addresses(&cluster_ips),
            external_ips: addresses(&spec.external_ips.unwrap_or_default()),
            load_balancer: object
                .status
                .and_then(|status| status.load_balancer?.ingress)
                .into_iter()
                .flatten()
                .flat_map(|ingress| [ingress.ip, ingress.hostname])
                .flatten()
                .filter(|text| !text.is_empty())
                .take(MAX_ADDRESSES)
                .map(String::into_boxed_str)
                .collect(),
            external_name: spec.external_name.filter(|name| !name.is_empty()).map(String::into_boxed_str),
            ports: spec.ports.iter().flatten().filter_map(port).collect(),
            ip_families: spec.ip_families.iter().flatten().filter_map(|name| IpFamily::parse(name)).collect(),
            ip_family_policy: spec.ip_family_policy.map(|policy| intern(&policy)),
            session_affinity: match spec.session_affinity.as_deref() {
                Some("ClientIP") => SessionAffinity::ClientIp {
                    timeout: spec
                        .session_affinity_config
                        .and_then(|config| config.client_ip?.timeout_seconds)
                        .and_then(|seconds| u32::try_from(seconds).ok()),
                },
                _ => SessionAffinity::None,
            },
            internal_traffic_policy: match spec.internal_traffic_policy.as_deref() {
                Some("Local") => TrafficPolicy::Local,
                _ => TrafficPolicy::Cluster,
            },
            traffic_distribution: spec.traffic_distribution.map(|name| intern(&name)),
            publish_not_ready_addresses: spec.publish_not_ready_addresses.unwrap_or(false),
            has_selector: spec.selector.is_some_and(|selector| !selector.is_empty()),
            annotations: known_annotations(metadata),
            managed,
            service_import: label(metadata, names::LABEL_SERVICE_NAME).map(intern),
        })
    }
}

fn port(port: &v1::ServicePort) -> Option<ServicePort> {
    let v1::ServicePort { name, protocol, port, app_protocol, .. } = port;
    service_port(name.as_deref(), protocol.as_deref(), *port, app_protocol.as_deref())
}
