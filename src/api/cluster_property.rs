//! ClusterProperty (KEP-2149).

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec_may_be_absent;

/// ClusterPropertySpec defines the desired state of ClusterProperty
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "about.k8s.io",
    version = "v1beta1",
    kind = "ClusterProperty",
    plural = "clusterproperties",
    printcolumn = r#"{"name": "value", "type": "string", "jsonPath": ".spec.value"}"#,
    printcolumn = r#"{"name": "age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    doc = "ClusterProperty is a resource provides a way to store identification related, cluster scoped information for multi-cluster tools while creating flexibility for implementations.",
    annotation("api-approved.kubernetes.io", "https://github.com/kubernetes/enhancements/pull/3084"),
    category = "mcs",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("required" = ["value"]))]
pub struct ClusterPropertySpec {
    /// ClusterProperty value
    #[schemars(length(min = 1))]
    pub value: String,
}

spec_may_be_absent!(ClusterPropertySpec, "ClusterPropertySpec");
