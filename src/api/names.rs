//! Every label, annotation, well-known name and field manager that this project reads or writes.

use crate::model::ServiceKey;

/// Prefix of this project's own labels and annotations.
pub const DOMAIN: &str = "cloudmap-mcs";

/// Whether a label or annotation has a meaning for this project or for the standard. Such names are not exported: they
/// would pass for those that the importing controller writes.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(DOMAIN) || name.starts_with("multicluster.kubernetes.io/")
}

/// API group of ServiceExport and ServiceImport.
pub const MCS_GROUP: &str = "multicluster.x-k8s.io";

/// API group of ClusterProperty (KEP-2149).
pub const ABOUT_GROUP: &str = "about.k8s.io";

/// The release of the standard that the CRDs follow, as a label on them. An installer compares it to prevent
/// downgrades.
pub const LABEL_RELEASE_VERSION: &str = "multicluster.x-k8s.io/release-version";

/// Counts schema changes within one release of the standard (see [`LABEL_RELEASE_VERSION`]).
pub const LABEL_CRD_SCHEMA_REVISION: &str = "multicluster.x-k8s.io/crd-schema-revision";

/// Release of sigs.k8s.io/mcs-api whose schemas [`mod@crate::api::crds`] reproduces.
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

/// On every imported EndpointSlice: name of the ServiceImport (KEP-1645, MUST). CoreDNS selects slices by it.
pub const LABEL_SERVICE_NAME: &str = "multicluster.kubernetes.io/service-name";

/// On every imported EndpointSlice: id of the cluster that its endpoints come from (KEP-1645, MUST).
pub const LABEL_SOURCE_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";

/// On every ClusterSetIP ServiceImport: name of the derived Service. Not in KEP-1645, but mcs-api's own controllers
/// write it and Gateway API implementations require it.
pub const ANNOTATION_DERIVED_SERVICE: &str = "multicluster.kubernetes.io/derived-service";

/// On EndpointSlices: the Service they belong to. kube-proxy needs it, for imported slices with the derived Service.
pub const LABEL_KUBERNETES_SERVICE_NAME: &str = "kubernetes.io/service-name";

/// On EndpointSlices: which controller owns them. A slice with another value is never written or deleted.
pub const LABEL_SLICE_MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// Value of [`LABEL_SLICE_MANAGED_BY`] and [`LABEL_MANAGED_BY`] on the objects of this project.
pub const MANAGED_BY: &str = "cloudmap-mcs";

/// On ServiceImports and derived Services that this project created. The label is in this project's domain, because a
/// ServiceImport also has the labels that users export, and `app.kubernetes.io/managed-by` may be one of them.
pub const LABEL_MANAGED_BY: &str = "cloudmap-mcs/managed-by";

/// On the temporary pods of `doctor`.
pub const LABEL_DOCTOR: &str = "cloudmap-mcs/doctor";

/// On EndpointSlices that the EndpointSlice controller mirrors from Endpoints or creates for headless Services.
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";

/// On a derived Service: the kube-proxy implementation that should ignore it. This project never writes the label, but
/// keeps it.
pub const LABEL_SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// On a ServiceExport: the Cloud Map namespace of its instances, instead of the default one.
pub const ANNOTATION_TARGET_NAMESPACE: &str = "cloudmap-mcs/namespace";

/// On a ServiceExport: the Cloud Map service of its instances, instead of the default one.
pub const ANNOTATION_TARGET_SERVICE: &str = "cloudmap-mcs/service";

/// On a ServiceExport or an annotated Service: with `true`, an existing Cloud Map service is joined that would
/// otherwise be refused, because it only has the default name, or because another controller created it.
pub const ANNOTATION_SHARE: &str = "cloudmap-mcs/share";

/// On a ServiceExport or an annotated Service: take over the Cloud Map service and the instances of another controller,
/// `external-dns/<owner id>` or `cloudmap-controller`.
pub const ANNOTATION_ADOPT: &str = "cloudmap-mcs/adopt";

/// On a ServiceExport: `true` or `false` turns its instances on or off, regardless of `--instances`.
pub const ANNOTATION_INSTANCES: &str = "cloudmap-mcs/instances";

/// On a ServiceExport or an annotated Service: the records of a Cloud Map service that is created for it in a DNS
/// namespace, `A`, `AAAA`, `A,AAAA`, `SRV` or `none`, instead of those of the Service's IP families.
pub const ANNOTATION_RECORDS: &str = "cloudmap-mcs/dns-records";

/// On a ServiceExport or an annotated Service: TTL of these records, in seconds.
pub const ANNOTATION_TTL: &str = "cloudmap-mcs/dns-ttl";

/// On a ServiceExport or an annotated Service: with `custom`, a Cloud Map service that is created gets a custom health
/// check.
pub const ANNOTATION_HEALTH_CHECK: &str = "cloudmap-mcs/health-check";

/// On a ServiceExport or an annotated Service or Ingress: attributes for its instances, `key=value` separated by commas
/// or lines, or a JSON object.
pub const ANNOTATION_ATTRIBUTES: &str = "cloudmap-mcs/attributes";

/// On a ServiceExport: name or number of the Service port that becomes `AWS_INSTANCE_PORT`, instead of the first.
pub const ANNOTATION_INSTANCE_PORT: &str = "cloudmap-mcs/instance-port";

/// On a Namespace: the Cloud Map namespaces whose instances are imported into it, separated by commas. An empty value
/// imports none, regardless of `--import-from`.
pub const ANNOTATION_IMPORT_FROM: &str = "cloudmap.controller/import-from";

/// On a Namespace: which Cloud Map services the objects in it may name with `--registration-policy=granted`:
/// `<Cloud Map namespace>/<service>` separated by commas, `*` for any text.
pub const ANNOTATION_MAY_REGISTER: &str = "cloudmap-mcs/may-register";

/// On a Namespace: from which controllers the objects in it may take over with [`ANNOTATION_ADOPT`]: values of that
/// annotation, separated by commas, or `*`.
pub const ANNOTATION_ALLOW_ADOPT: &str = "cloudmap-mcs/allow-adopt";

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

/// Prefix of the environment variable of every flag: `--cluster-id` is `CLOUDMAP_MCS_CLUSTER_ID`.
pub const ENV_PREFIX: &str = "CLOUDMAP_MCS_";

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
    /// Writes what `cloudmap-mcs coredns` writes.
    CoreDns,
}

impl FieldManager {
    /// The name of the field manager.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Import => "cloudmap-mcs-import",
            Self::ImportStatus => "cloudmap-mcs-import-status",
            Self::ExportStatus => "cloudmap-mcs-export-status",
            Self::ConflictStatus => "cloudmap-mcs-conflict-status",
            Self::CoreDns => "cloudmap-mcs-coredns",
        }
    }
}
