//! ServiceImport (KEP-1645).

// The descriptions are those of the upstream CRDs, including bare URLs.
#![allow(rustdoc::bare_urls)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{crds, spec_may_be_absent};

/// spec defines the behavior of a ServiceImport.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "multicluster.x-k8s.io",
    version = "v1beta1",
    kind = "ServiceImport",
    plural = "serviceimports",
    namespaced,
    status = "ServiceImportStatus",
    shortname = "svcim",
    shortname = "svcimport",
    category = "mcs",
    printcolumn = r#"{"name": "Type", "type": "string", "description": "The type of this ServiceImport", "jsonPath": ".spec.type"}"#,
    printcolumn = r#"{"name": "IP", "type": "string", "description": "The VIP for this ServiceImport", "jsonPath": ".spec.ips"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "description": "Whether the service can be used in this cluster", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Clusters", "type": "string", "description": "The clusters that export the service", "jsonPath": ".status.clusters", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    doc = "ServiceImport describes a service imported from clusters in a ClusterSet.",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("required" = ["ports", "type"]))]
pub struct ServiceImportSpec {
    #[expect(missing_docs, reason = "a comment would be a description in the CRD, where upstream has none")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    #[serde(deserialize_with = "crds::null_as_default")]
    pub ports: Vec<ServiceImportPort>,

    /// ip will be used as the VIP for this service when type is ClusterSetIP.
    #[schemars(length(max = 2))]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub ips: Vec<String>,

    /// type defines the type of this service. Must be ClusterSetIP or Headless.
    #[serde(rename = "type")]
    pub type_: ServiceImportType,

    /// Supports "ClientIP" and "None". Used to maintain session affinity. Enable client IP based session affinity.
    /// Must be ClientIP or None. Defaults to None. Ignored when type is Headless. More info:
    /// https://kubernetes.io/docs/concepts/services-networking/service/#virtual-ips-and-service-proxies
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity: Option<String>,

    /// sessionAffinityConfig contains session affinity configuration.
    #[schemars(with = "SessionAffinityConfig")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_affinity_config: Option<SessionAffinityConfig>,

    /// IPFamilies identifies all the IPFamilies assigned for this ServiceImport.
    #[schemars(length(max = 2))]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub ip_families: Vec<String>,

    /// InternalTrafficPolicy describes how nodes distribute service traffic they receive on the ClusterIP. If set to
    /// "Local", the proxy will assume that pods only want to talk to endpoints of the service on the same node as the
    /// pod, dropping the traffic if there are no local endpoints. The default value, "Cluster", uses the standard
    /// behavior of routing to all endpoints evenly (possibly modified by topology and other features).
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub internal_traffic_policy: Option<String>,

    /// TrafficDistribution offers a way to express preferences for how traffic is distributed to Service endpoints.
    /// Implementations can use this field as a hint, but are not required to guarantee strict adherence. If the field
    /// is not set, the implementation will apply its default routing strategy. If set to "PreferClose",
    /// implementations should prioritize endpoints that are in the same zone.
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
}

spec_may_be_absent!(ServiceImportSpec, "ServiceImportSpec");

/// ServicePort represents the port on which the service is exposed
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["port"]))]
pub struct ServiceImportPort {
    /// The name of this port within the service. This must be a DNS_LABEL. All ports within a ServiceSpec must have
    /// unique names. When considering the endpoints for a Service, this must match the 'name' field in the
    /// EndpointPort. Optional if only one ServicePort is defined on this service.
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// The IP protocol for this port. Supports "TCP", "UDP", and "SCTP". Default is TCP.
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,

    /// The application protocol for this port, as in a Service: an IANA service name, a `kubernetes.io/` name such as
    /// `kubernetes.io/h2c`, or an implementation-defined prefixed name.
    #[schemars(with = "String")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,

    /// The port that will be exposed by this service.
    pub port: i32,
}

/// `spec.type`. An unknown value is kept, so that it does not make the object unreadable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServiceImportType {
    /// Clients use the IPs of the import.
    ClusterSetIp,
    /// Clients use the addresses of the endpoints.
    Headless,
    /// A type that this version does not know.
    Other(String),
}

/// `status.endpointSliceObjects`: whether the imported EndpointSlices exist as objects. An unknown value is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointSliceObjects {
    /// EndpointSlices exist.
    Present,
    /// No EndpointSlices exist.
    Absent,
    /// A value that this version does not know.
    Other(String),
}

/// Makes an enum of strings. The CRD allows only the listed values; reading accepts others.
macro_rules! open_enum {
    ($name:ident { $($variant:ident = $value:literal),+ }) => {
        impl $name {
            /// The spelling of the API.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $value,)+
                    Self::Other(value) => value,
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = String::deserialize(deserializer)?;
                Ok(match value.as_str() {
                    $($value => Self::$variant,)+
                    _ => Self::Other(value),
                })
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [$($value),+] })
            }
        }
    };
}

open_enum!(ServiceImportType { ClusterSetIp = "ClusterSetIP", Headless = "Headless" });
open_enum!(EndpointSliceObjects { Present = "Present", Absent = "Absent" });

impl Default for ServiceImportType {
    /// The type of an object without a spec, which no export has.
    fn default() -> Self {
        Self::Other(String::new())
    }
}

/// sessionAffinityConfig contains session affinity configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    /// clientIP contains the configurations of Client IP based session affinity.
    #[schemars(with = "ClientIpConfig")]
    #[serde(rename = "clientIP", skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<ClientIpConfig>,
}

/// clientIP contains the configurations of Client IP based session affinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpConfig {
    /// timeoutSeconds specifies the seconds of ClientIP type session sticky time. The value must be >0 && <=86400(for
    /// 1 day) if ServiceAffinity == "ClientIP". Default value is 10800(for 3 hours).
    #[schemars(with = "i32")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
}

/// status contains information about the exported services that form the multi-cluster service referenced by this
/// ServiceImport.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceImportStatus {
    /// clusters is the list of exporting clusters from which this service was derived.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["cluster"]))]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub clusters: Vec<ClusterStatus>,

    #[expect(missing_docs, reason = "a comment would be a description in the CRD, where upstream has none")]
    #[schemars(schema_with = "crds::conditions_schema")]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub conditions: Vec<Condition>,

    /// EndpointSliceObjects indicates whether imported EndpointSlice objects are present for this ServiceImport.
    #[schemars(with = "EndpointSliceObjects")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_slice_objects: Option<EndpointSliceObjects>,
}

/// ClusterStatus contains service configuration mapped to a specific source cluster
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["cluster"]))]
pub struct ClusterStatus {
    /// cluster is the name of the exporting cluster. Must be a valid RFC-1123 DNS label.
    pub cluster: String,
}
