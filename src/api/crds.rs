//! The CustomResourceDefinitions, generated from the types.
//!
//! `config/crd` has them as YAML. Tests compare the files with the generated CRDs, and the structure of both with the
//! CRDs of sigs.k8s.io/mcs-api.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::{ClusterImportPolicy, ClusterProperty, Cutover, ServiceExport, ServiceImport, names};

/// The CRDs of ServiceExport, ServiceImport, ClusterProperty, ClusterImportPolicy and Cutover. Of the first three, v1beta1 is stored and served,
/// and v1alpha1 is served with the same schema, so no conversion webhook is needed; CoreDNS and older controllers read it.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let release = BTreeMap::from([
        (names::LABEL_RELEASE_VERSION.to_owned(), names::MCS_RELEASE_VERSION.to_owned()),
        (names::LABEL_CRD_SCHEMA_REVISION.to_owned(), names::MCS_SCHEMA_REVISION.to_owned()),
    ]);
    let mut crds = vec![ServiceExport::crd(), ServiceImport::crd()];
    for crd in &mut crds {
        crd.metadata.labels = Some(release.clone());
    }
    crds.push(ClusterProperty::crd());
    let mut crds: Vec<_> = crds.into_iter().map(conforming).map(with_both_versions).collect();
    crds.extend([ClusterImportPolicy::crd(), Cutover::crd()].map(conforming));
    crds
}

/// Those without which the controller does nothing. That of Cutover is needed only with `--cutovers`.
pub fn needed_crds(cutovers: bool) -> Vec<CustomResourceDefinition> {
    crds().into_iter().filter(|crd| cutovers || crd.spec.names.kind != "Cutover").collect()
}

fn conforming(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    crd.spec.names.list_kind = Some(format!("{}List", crd.spec.names.kind));
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            conform(schema);
            complete_root(schema);
        }
    }
    crd
}

fn with_both_versions(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let alpha = crd.spec.versions.iter().map(|stored| CustomResourceDefinitionVersion {
        name: "v1alpha1".to_owned(),
        storage: false,
        ..stored.clone()
    });
    crd.spec.versions = alpha.chain(crd.spec.versions.iter().cloned()).collect();
    crd
}

/// Removes what describes the Rust types and not the API: defaults, which the API server would write into every object,
/// nullability, and titles.
fn conform(schema: &mut JSONSchemaProps) {
    schema.default = None;
    schema.nullable = None;
    schema.title = None;
    for property in schema.properties.iter_mut().flat_map(BTreeMap::values_mut) {
        conform(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => conform(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(conform),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        conform(values);
    }
}

/// Completes the root as controller-gen does: the type fields are declared, and `spec` is not required.
fn complete_root(root: &mut JSONSchemaProps) {
    root.required = None;
    let declare = |type_: &str| JSONSchemaProps { type_: Some(type_.to_owned()), ..JSONSchemaProps::default() };
    let properties = root.properties.get_or_insert_default();
    properties.insert("apiVersion".to_owned(), declare("string"));
    properties.insert("kind".to_owned(), declare("string"));
    properties.insert("metadata".to_owned(), declare("object"));
}

/// `[]metav1.Condition` as a map by type, with the limits that controller-gen derives from its Go markers.
pub(super) fn conditions_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "description": "Condition contains details for one aspect of the current state of this API Resource.",
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {
                    "description": "lastTransitionTime is the last time the condition transitioned from one status to another.",
                    "type": "string",
                    "format": "date-time"
                },
                "message": {
                    "description": "message is a human readable message indicating details about the transition.",
                    "type": "string",
                    "maxLength": 32768
                },
                "observedGeneration": {
                    "description": "observedGeneration represents the .metadata.generation that the condition was set based upon.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0
                },
                "reason": {
                    "description": "reason contains a programmatic identifier indicating the reason for the condition's last transition.",
                    "type": "string",
                    "maxLength": 1024,
                    "minLength": 1,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"
                },
                "status": {
                    "description": "status of the condition, one of True, False, Unknown.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"]
                },
                "type": {
                    "description": "type of condition in CamelCase or in foo.example.com/CamelCase.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"
                }
            }
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"]
    })
}

/// Whether a field says nothing, so that it is left out.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reads an explicit `null` like an absent field, as the API server does.
pub(super) fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
