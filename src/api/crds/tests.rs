use std::{collections::BTreeSet, fs};

use serde_json::Value;

use super::*;
use base::repository;

fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural)
}

/// After a change of the types, run `UPDATE_CRDS=1 cargo test -p cloudmap-mcs-api crds` and review the difference.
#[test]
fn the_committed_files_equal_the_generated_crds() {
    for crd in crds() {
        let path = repository().join("config/crd").join(file_name(&crd));
        let generated = serde_yaml_ng::to_string(&crd).unwrap();
        if std::env::var_os("UPDATE_CRDS").is_some() {
            fs::write(&path, &generated).unwrap();
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == generated,
            "{} differs from the types: run `UPDATE_CRDS=1 cargo test -p cloudmap-mcs-api crds`",
            path.strip_prefix(repository()).unwrap().display()
        );
    }
}

/// Where this project's CRDs have more than the upstream ones, and why: (suffix of the JSON pointer, reason).
const ADDITIONS: &[(&str, &str)] = &[
    ("/spec/versions/0/additionalPrinterColumns/+", "`kubectl get` says whether it works, and why not"),
    ("/spec/versions/1/additionalPrinterColumns/+", "likewise"),
    ("/spec/names/categories", "`kubectl get mcs` lists exports and imports"),
    ("/spec/names/listKind", "the API server fills in the same value"),
];

#[test]
fn the_crds_have_the_structure_of_the_upstream_ones() {
    for crd in crds().iter().filter(|crd| crd.spec.group == "multicluster.x-k8s.io") {
        let file = file_name(crd);
        let upstream = fs::read_to_string(repository().join("integration/testdata/upstream-crds").join(&file)).unwrap();
        let upstream = structure(serde_yaml_ng::from_str(&upstream).unwrap());
        let ours = structure(serde_json::to_value(crd).unwrap());
        let mut differences = Vec::new();
        compare("", &upstream, &ours, &mut differences);
        differences
            .retain(|difference| !ADDITIONS.iter().any(|(pointer, _)| difference == &format!("added {pointer}")));
        assert!(differences.is_empty(), "{file}: {differences:#?}");
    }
}

/// The structure of a CRD: without descriptions, and with lists that are sets in sorted order.
fn structure(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                // A description that is not a string is a property with that name.
                .filter(|(name, value)| name != "description" || !value.is_string())
                .map(|(name, value)| {
                    let value = structure(value);
                    match (name.as_str(), value) {
                        ("required" | "enum", Value::Array(items)) => {
                            let sorted: BTreeSet<String> = items.iter().map(ToString::to_string).collect();
                            (name, sorted.into_iter().map(Value::String).collect())
                        }
                        (_, value) => (name, value),
                    }
                })
                .collect(),
        ),
        Value::Array(items) => items.into_iter().map(structure).collect(),
        other => other,
    }
}

fn compare(pointer: &str, upstream: &Value, ours: &Value, differences: &mut Vec<String>) {
    match (upstream, ours) {
        (Value::Object(theirs), Value::Object(mine)) => {
            for (name, value) in theirs {
                match mine.get(name) {
                    Some(other) => compare(&format!("{pointer}/{name}"), value, other, differences),
                    None => differences.push(format!("missing {pointer}/{name}")),
                }
            }
            for name in mine.keys().filter(|name| !theirs.contains_key(*name)) {
                differences.push(format!("added {pointer}/{name}"));
            }
        }
        // Additional columns may be anywhere between the upstream ones.
        (Value::Array(theirs), Value::Array(mine)) if pointer.ends_with("/additionalPrinterColumns") => {
            let kept: Vec<Value> = mine.iter().filter(|column| theirs.contains(column)).cloned().collect();
            compare(&format!("{pointer}/"), upstream, &Value::Array(kept.clone()), differences);
            if mine.len() > kept.len() {
                differences.push(format!("added {pointer}/+"));
            }
        }
        (Value::Array(theirs), Value::Array(mine)) if theirs.len() == mine.len() => {
            for (index, (value, other)) in theirs.iter().zip(mine).enumerate() {
                compare(&format!("{pointer}/{index}"), value, other, differences);
            }
        }
        // YAML and JSON may write the same number as 0 or 0.0.
        (Value::Number(theirs), Value::Number(mine)) if theirs.as_f64() == mine.as_f64() => {}
        _ if upstream == ours => {}
        _ => differences.push(format!("{pointer}: upstream {upstream}, ours {ours}")),
    }
}

#[test]
fn versions_have_the_same_schema_and_one_is_stored() {
    for crd in needed_crds(false).into_iter().filter(|crd| crd.spec.group != names::GROUP) {
        let [alpha, beta] = crd.spec.versions.as_slice() else { panic!("two versions of {}", crd.spec.names.kind) };
        assert_eq!((alpha.name.as_str(), alpha.served, alpha.storage), ("v1alpha1", true, false));
        assert_eq!((beta.name.as_str(), beta.served, beta.storage), ("v1beta1", true, true));
        assert_eq!(alpha.schema, beta.schema);
    }
}

/// The API server holds Cutovers to this, so that a typing error is refused before anything moves.
#[test]
fn the_schema_of_a_cutover_has_rising_steps_and_a_status_of_its_own() {
    let crd = crds().into_iter().find(|crd| crd.spec.names.kind == "Cutover").unwrap();
    let [version] = crd.spec.versions.as_slice() else { panic!("one version") };
    assert!(version.served && version.storage && version.subresources.as_ref().unwrap().status.is_some());
    let schema = serde_json::to_value(version.schema.as_ref().unwrap()).unwrap();
    let spec = &schema["openAPIV3Schema"]["properties"]["spec"];
    assert_eq!(spec["required"], serde_json::json!(["steps"]));
    let steps = &spec["properties"]["steps"];
    assert_eq!((&steps["minItems"], &steps["maxItems"]), (&1.into(), &20.into()));
    let rule = steps["x-kubernetes-validations"][0]["rule"].as_str().unwrap();
    assert!(rule.contains("isSorted()") && rule.contains("exists_one"), "{rule}");
    assert_eq!(spec["properties"]["shareOfTraffic"]["maximum"].as_f64(), Some(100.0));
    let phases = schema.pointer("/openAPIV3Schema/properties/status/properties/phase/enum").unwrap();
    assert_eq!(phases.as_array().unwrap().len(), 8);
}

#[test]
fn a_crd_of_a_protected_group_has_the_approval_annotation() {
    // The API server refuses CRDs in *.k8s.io without this annotation. x-k8s.io is not protected.
    let property = crds().into_iter().find(|crd| crd.spec.group == "about.k8s.io").unwrap();
    assert!(property.metadata.annotations.unwrap()["api-approved.kubernetes.io"].starts_with("https://"));
    assert_eq!(property.spec.scope, "Cluster");
}

#[test]
fn objects_without_a_spec_can_be_read() {
    for spec in [r#"{"metadata": {"name": "a"}}"#, r#"{"metadata": {"name": "a"}, "spec": null}"#] {
        let export: ServiceExport = serde_json::from_str(spec).unwrap();
        assert!(export.spec.exported_labels.is_empty());
        let import: ServiceImport = serde_json::from_str(spec).unwrap();
        assert!(import.spec.ports.is_empty());
        assert_eq!(serde_json::from_str::<ClusterProperty>(spec).unwrap().spec.value, "");
        assert!(serde_json::from_str::<Cutover>(spec).unwrap().spec.steps.is_empty());
    }
}

#[test]
fn objects_with_unknown_values_and_fields_can_be_read() {
    let import: ServiceImport = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "a"},
        "spec": {"type": "Mesh", "ports": null, "novel": 1},
        "status": {"endpointSliceObjects": "Partly", "clusters": [{"cluster": "c1", "weight": 3}]},
    }))
    .unwrap();
    assert_eq!(import.spec.type_.as_str(), "Mesh");
    assert_eq!(serde_json::to_value(&import.spec).unwrap()["type"], "Mesh");
    assert_eq!(import.status.unwrap().endpoint_slice_objects.unwrap().as_str(), "Partly");
}

#[test]
fn a_spec_survives_a_round_trip() {
    let written = serde_json::json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1",
        "kind": "ServiceImport",
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {
            "type": "ClusterSetIP",
            "ports": [{"name": "http", "protocol": "TCP", "appProtocol": "http", "port": 80}],
            "ips": ["10.0.0.1"],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
            "ipFamilies": ["IPv4"],
            "internalTrafficPolicy": "Local",
            "trafficDistribution": "PreferClose",
        },
    });
    let import: ServiceImport = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(serde_json::to_value(&import).unwrap(), written);
}
