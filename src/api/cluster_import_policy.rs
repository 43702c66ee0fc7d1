//! ClusterImportPolicy: what other clusters may bring into this one.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{crds, spec_may_be_absent};

/// spec says which clusters it is about, and what of their exports counts in this cluster. A policy only takes away: where
/// several apply, each of them must allow it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "cloudmap-mcs.io",
    version = "v1alpha1",
    kind = "ClusterImportPolicy",
    plural = "clusterimportpolicies",
    status = "ClusterImportPolicyStatus",
    category = "mcs",
    printcolumn = r#"{"name": "Enforced", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Enforced\")].status"}"#,
    printcolumn = r#"{"name": "Clusters", "type": "integer", "description": "How many known clusters it is about", "jsonPath": ".status.clusters"}"#,
    printcolumn = r#"{"name": "Excluded", "type": "integer", "description": "Of how many names it leaves something out", "jsonPath": ".status.excludedNames"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "priority": 1, "jsonPath": ".status.conditions[?(@.type==\"Enforced\")].message"}"#,
    doc = "ClusterImportPolicy says what the exports of other clusters may bring into this cluster: into which namespaces, with which addresses, and how much. It changes nothing in other clusters, and no claim or conflict.",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct ClusterImportPolicySpec {
    /// from selects the clusters that the policy is about. Without it, these are all other clusters.
    #[schemars(with = "ImportSources")]
    #[serde(skip_serializing_if = "crds::is_default", deserialize_with = "crds::null_as_default")]
    pub from: ImportSources,

    /// namespaces says into which Kubernetes namespaces their exports may come. Without it, into all.
    #[schemars(with = "AllowedNames")]
    #[serde(skip_serializing_if = "crds::is_default", deserialize_with = "crds::null_as_default")]
    pub namespaces: AllowedNames,

    /// addresses says which addresses their endpoints may have, beside those that no endpoint may have. Without it, all.
    #[schemars(with = "AllowedRanges")]
    #[serde(skip_serializing_if = "crds::is_default", deserialize_with = "crds::null_as_default")]
    pub addresses: AllowedRanges,

    /// maxNames is the number of names that each of the clusters may have in this one. What is imported stays, and nothing
    /// more comes. Without it, there is no limit.
    #[schemars(schema_with = "count_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_names: Option<i64>,

    /// maxEndpointsPerName is the number of endpoints that each of the clusters may have under one name. Those that are
    /// imported stay, and no others come. Without it, there is no limit.
    #[schemars(schema_with = "count_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_endpoints_per_name: Option<i64>,
}

/// Which clusters a policy is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImportSources {
    /// clusters are ids of clusters; `*` stands for any text, as in `partner-*`. Without it, all other clusters.
    #[schemars(schema_with = "some_names_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters: Option<Vec<String>>,

    /// exceptClusters are ids of clusters that the policy is not about; `*` stands for any text.
    #[schemars(schema_with = "names_schema")]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub except_clusters: Vec<String>,

    /// registries are names of registries, as `--registries` has them: only clusters whose home is one of these. Without it,
    /// whatever their home is.
    #[schemars(schema_with = "some_names_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registries: Option<Vec<String>>,
}

/// Names that are allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedNames {
    /// allowed are the names of namespaces; `*` stands for any text. Without it all are, and none with an empty list.
    #[schemars(schema_with = "names_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,

    /// denied are the names of namespaces that are not allowed, whatever else is; `*` stands for any text.
    #[schemars(schema_with = "names_schema")]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub denied: Vec<String>,
}

/// Ranges of addresses that are allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AllowedRanges {
    /// allowed are ranges in CIDR notation, such as 10.0.0.0/8. Without it all are, and none with an empty list.
    #[schemars(schema_with = "ranges_schema")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,

    /// denied are ranges in CIDR notation that are not allowed, whatever else is.
    #[schemars(schema_with = "ranges_schema")]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub denied: Vec<String>,
}

spec_may_be_absent!(ClusterImportPolicySpec, "ClusterImportPolicySpec");

/// status says what the policy does. Only the controller writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterImportPolicyStatus {
    /// clusters is the number of known clusters that the policy is about.
    #[schemars(with = "i64")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters: Option<i64>,

    /// excludedNames is the number of names, in namespaces that this cluster has, of which the policy leaves an export or
    /// endpoints out.
    #[schemars(with = "i64")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excluded_names: Option<i64>,

    /// conditions has Enforced, which says whether all of the spec is in force, and about which clusters it is.
    #[schemars(schema_with = "crds::conditions_schema")]
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "crds::null_as_default")]
    pub conditions: Vec<Condition>,
}

/// The longest list. The CRD has it, too.
const MOST_ENTRIES: usize = 256;

fn names(least: usize) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": least,
        "maxItems": MOST_ENTRIES,
        "items": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": "^[a-z0-9*]([-a-z0-9.*]*[a-z0-9*])?$"},
        "x-kubernetes-list-type": "atomic"
    })
}

fn names_schema(_: &mut SchemaGenerator) -> Schema {
    names(0)
}

fn some_names_schema(_: &mut SchemaGenerator) -> Schema {
    names(1)
}

fn ranges_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MOST_ENTRIES,
        "items": {
            "type": "string",
            "maxLength": 49,
            "pattern": "^(((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])/(3[0-2]|[12]?[0-9])|[0-9a-fA-F:]*:[0-9a-fA-F:.]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$"
        },
        "x-kubernetes-list-type": "atomic"
    })
}

fn count_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "minimum": 0, "maximum": 1_000_000})
}
