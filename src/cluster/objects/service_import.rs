use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{addresses, applied, is_managed, service_key, service_port, uid};
use crate::cache::Narrow;
use api::{
    EndpointSliceObjects, ServiceImportPort, ServiceImportSpec, ServiceImportStatus, ServiceImportType,
    conditions::SharedCondition,
};
use model::{IpFamily, Pairs, ServiceKey, ServicePort, SessionAffinity, TrafficPolicy, intern};

/// A ServiceImport: all of it in some form, so that "nothing changed" is decided by comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceImport {
    /// Its key.
    pub key: ServiceKey,
    /// Its uid.
    pub uid: Box<str>,
    /// The generation, for `observedGeneration` of the conditions.
    pub generation: Option<i64>,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Whether this project created it. If not, it is foreign: it is never written or deleted, and blocks the import.
    pub managed: bool,
    /// Labels that this project applied, with their current values (by `managedFields`).
    pub labels: Pairs,
    /// Annotations that this project applied, with their current values.
    pub annotations: Pairs,
    /// `spec`.
    pub spec: ImportSpec,
    /// `status`.
    pub status: ImportStatus,
}

/// `spec` of a ServiceImport: the fields that the controller reads, and a digest of all fields. Equal for equal specs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportSpec {
    /// `type` is `Headless`.
    pub headless: bool,
    /// The valid addresses in `ips`.
    pub ips: Box<[IpAddr]>,
    /// The valid ports.
    pub ports: Box<[ServicePort]>,
    /// The known IP families.
    pub ip_families: Box<[IpFamily]>,
    /// `sessionAffinity` with its configuration.
    pub session_affinity: SessionAffinity,
    /// `internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// `trafficDistribution`.
    pub traffic_distribution: Option<Arc<str>>,
    digest: u64,
}

impl From<&ServiceImportSpec> for ImportSpec {
    fn from(spec: &ServiceImportSpec) -> Self {
        let mut hasher = DefaultHasher::new();
        spec.hash(&mut hasher);
        let port = |port: &ServiceImportPort| {
            let ServiceImportPort { name, protocol, port, app_protocol } = port;
            service_port(name.as_deref(), protocol.as_deref(), *port, app_protocol.as_deref())
        };
        Self {
            headless: spec.type_ == ServiceImportType::Headless,
            ips: addresses(&spec.ips),
            ports: spec.ports.iter().filter_map(port).collect(),
            ip_families: spec.ip_families.iter().filter_map(|family| IpFamily::parse(family)).collect(),
            session_affinity: match spec.session_affinity.as_deref() {
                Some("ClientIP") => SessionAffinity::ClientIp {
                    timeout: spec
                        .session_affinity_config
                        .as_ref()
                        .and_then(|config| config.client_ip.as_ref()?.timeout_seconds)
                        .and_then(|seconds| u32::try_from(seconds).ok()),
                },
                _ => SessionAffinity::None,
            },
            internal_traffic_policy: match spec.internal_traffic_policy.as_deref() {
                Some("Local") => TrafficPolicy::Local,
                _ => TrafficPolicy::Cluster,
            },
            traffic_distribution: spec.traffic_distribution.as_deref().map(intern),
            digest: hasher.finish(),
        }
    }
}

/// `status` of a ServiceImport. Server-side apply leaves the items of its lists in the order in which they came, so they are
/// sorted here.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImportStatus {
    /// The exporting clusters.
    pub clusters: Box<[Arc<str>]>,
    /// `conditions`.
    pub conditions: Box<[SharedCondition]>,
    /// `endpointSliceObjects`.
    pub endpoint_slice_objects: Option<EndpointSliceObjects>,
}

impl From<&ServiceImportStatus> for ImportStatus {
    fn from(status: &ServiceImportStatus) -> Self {
        let ServiceImportStatus { clusters, conditions, endpoint_slice_objects } = status;
        let mut clusters: Box<[_]> = clusters.iter().map(|status| intern(&status.cluster)).collect();
        clusters.sort();
        let mut conditions: Box<[_]> = conditions.iter().map(SharedCondition::from).collect();
        conditions.sort_by(|one, other| one.type_.cmp(&other.type_));
        Self { clusters, conditions, endpoint_slice_objects: endpoint_slice_objects.clone() }
    }
}

impl Narrow for ServiceImport {
    type Kind = api::ServiceImport;
    type Key = ServiceKey;

    const CACHE: &'static str = "ServiceImport";

    fn key(metadata: &ObjectMeta) -> Option<ServiceKey> {
        service_key(metadata)
    }

    fn narrow(object: Self::Kind) -> Option<Self> {
        let metadata = &object.metadata;
        let (labels, annotations) = applied(metadata);
        Some(Self {
            key: service_key(metadata)?,
            uid: uid(metadata),
            generation: metadata.generation,
            deleting: metadata.deletion_timestamp.is_some(),
            managed: is_managed(metadata),
            labels,
            annotations,
            spec: ImportSpec::from(&object.spec),
            status: object.status.as_ref().map(ImportStatus::from).unwrap_or_default(),
        })
    }
}
