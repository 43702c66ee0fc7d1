//! Every label, annotation, well-known name and field manager that this project reads or writes.

pub use super::annotations::*;
use model::ServiceKey;

/// Prefix of this project's own labels and annotations.
pub const DOMAIN: &str = "cloudmap-mcs";

/// Whether a label or annotation has a meaning for this project or for the standard. Such names are not exported: they
/// would pass for those that the importing controller writes.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(DOMAIN) || name.starts_with("multicluster.kubernetes.io/")
}

/// API group of Cutover and ClusterImportPolicy, which are of this project.
pub const GROUP: &str = "cloudmap-mcs.io";

/// Release of sigs.k8s.io/mcs-api whose schemas [`mod@crate::crds`] reproduces.
pub const MCS_RELEASE_VERSION: &str = "v0.5.2";

/// The value of [`LABEL_CRD_SCHEMA_REVISION`].
pub const MCS_SCHEMA_REVISION: &str = "0";

/// The zone of the ClusterSet in DNS (KEP-1645).
pub const ZONE: &str = "clusterset.local";

/// The name of an imported Service in DNS, without the last dot (KEP-1645).
pub fn dns_name(key: &ServiceKey) -> String {
    format!("{}.{}.svc.{ZONE}", key.name, key.namespace)
}

/// Name of the ClusterProperty with the cluster's id (KEP-2149).
pub const PROPERTY_CLUSTER_ID: &str = "cluster.clusterset.k8s.io";

/// Name of the ClusterProperty with the id of the cluster's ClusterSet (KEP-2149).
pub const PROPERTY_CLUSTERSET_ID: &str = "clusterset.k8s.io";

/// Name of the ClusterProperty with the region of a cluster, as examples of KEP-5939 call it.
pub const PROPERTY_REGION: &str = "region.topology.k8s.io";

/// The ClusterProperties that have a meaning for this project, and are not just there to be selected by.
pub const PROPERTIES: [&str; 4] =
    [PROPERTY_CLUSTER_ID, PROPERTY_CLUSTERSET_ID, PROPERTY_DRAIN, PROPERTY_DRAIN_MIN_READY];

/// Name of the ClusterProperty with which a cluster is drained: `true`. It is published as [`model::Drain`] writes it.
pub const PROPERTY_DRAIN: &str = "drain.cloudmap-mcs.io";

/// Name of the ClusterProperty that says which share of the endpoints elsewhere must be ready for a drain.
pub const PROPERTY_DRAIN_MIN_READY: &str = "drain-min-ready.cloudmap-mcs.io";

/// With what the names of properties begin that a cluster publishes of those that it cannot reach: `…/<cluster>`, with the time since
/// when, in seconds since 1970. No ClusterProperty sets it.
pub const PROPERTY_UNREACHABLE: &str = "unreachable.cloudmap-mcs.io";

/// Value of [`LABEL_SLICE_MANAGED_BY`] and [`LABEL_MANAGED_BY`] on the objects of this project.
pub const MANAGED_BY: &str = "cloudmap-mcs";

/// Value of [`LABEL_SLICE_MANAGED_BY`] on the slices that Kubernetes writes for Services with a selector.
pub const ENDPOINT_SLICE_CONTROLLER: &str = "endpointslice-controller.k8s.io";

/// The condition of a pod, and its readiness gate: clients of Cloud Map find the pod.
pub const CONDITION_REGISTERED: &str = "cloudmap-mcs/registered";

/// Prefixes of the annotations that caches keep: those of this project and of the controllers that it replaces. Caches
/// drop all others.
pub const ANNOTATION_PREFIXES: &[&str] = &[
    "cloudmap-mcs/",
    "cloudmap.controller/",
    "external-dns.alpha.kubernetes.io/",
    "external-dns.kubernetes.io/",
    "multicluster.kubernetes.io/",
];

/// The origin of Events and metrics.
pub const CONTROLLER: &str = "cloudmap-mcs";

/// The field managers for server-side apply. Each writer has its own, so that it does not remove the fields of another
/// writer by leaving them out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldManager {
    /// Writes ServiceImports, derived Services and imported EndpointSlices.
    Import,
    /// Writes the status of ServiceImports.
    ImportStatus,
    /// Writes the conditions of a ServiceExport that exporting determines: `Valid`, `Ready`, `Registered`.
    ExportStatus,
    /// Writes the condition of a ServiceExport that the merge determines: `Conflict`.
    ConflictStatus,
    /// Writes the condition of a pod that opens its readiness gate.
    Gate,
    /// Writes the status of Cutovers.
    CutoverStatus,
    /// Writes the status of ClusterImportPolicies.
    ImportPolicyStatus,
    /// Writes the course of a Cutover for `cloudmap-mcs cutover`: steps, interval, wave.
    CutoverCourse,
    /// Writes what holds a Cutover for `cloudmap-mcs cutover`: a pause, a share, the way back.
    CutoverHold,
    /// Writes what `cloudmap-mcs coredns` writes.
    CoreDns,
    /// Writes what `cloudmap-mcs drain` writes.
    Drain,
}

impl FieldManager {
    /// The name of the field manager.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Import => "cloudmap-mcs-import",
            Self::ImportStatus => "cloudmap-mcs-import-status",
            Self::ExportStatus => "cloudmap-mcs-export-status",
            Self::ConflictStatus => "cloudmap-mcs-conflict-status",
            Self::Gate => "cloudmap-mcs-gate",
            Self::CutoverStatus => "cloudmap-mcs-cutover-status",
            Self::ImportPolicyStatus => "cloudmap-mcs-import-policy-status",
            Self::CutoverCourse => "cloudmap-mcs-cutover",
            Self::CutoverHold => "cloudmap-mcs-cutover-hold",
            Self::CoreDns => "cloudmap-mcs-coredns",
            Self::Drain => "cloudmap-mcs-drain",
        }
    }
}
