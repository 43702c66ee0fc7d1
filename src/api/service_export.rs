//! ServiceExport (KEP-1645).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{crds, spec_may_be_absent};

/// spec defines the behavior of a ServiceExport.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "multicluster.x-k8s.io",
    version = "v1beta1",
    kind = "ServiceExport",
    plural = "serviceexports",
    namespaced,
    status = "ServiceExportStatus",
    shortname = "svcex",
    shortname = "svcexport",
    category = "mcs",
    printcolumn = r#"{"name": "Ready", "type": "string", "description": "Whether the registry has the export", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "description": "Why it is ready or not", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name": "Conflict", "type": "string", "description": "How the exports of the clusters differ", "jsonPath": ".status.conditions[?(@.type==\"Conflict\")].reason"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    doc = "ServiceExport declares that the Service with the same name and namespace as this export should be consumable from other clusters.",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct ServiceExportSpec {
    /// exportedLabels describes the labels exported. It is optional for implementation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "crds::null_as_default")]
    pub exported_labels: BTreeMap<String, String>,

    /// exportedAnnotations describes the annotations exported. It is optional for implementation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "crds::null_as_default")]
    pub exported_annotations: BTreeMap<String, String>,
}

spec_may_be_absent!(ServiceExportSpec, "ServiceExportSpec");

/// status describes the current state of an exported service. Service configuration comes from the Service that had
/// the same name and namespace as this ServiceExport. Populated by the multi-cluster service implementation's
/// controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceExportStatus {
    #[expect(missing_docs, reason = "a comment would be a description in the CRD, where upstream has none")]
    #[schemars(schema_with = "crds::conditions_schema")]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub conditions: Vec<Condition>,
}
