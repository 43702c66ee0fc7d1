//! Samples are what Kubernetes takes, and are listed.

use std::fs;

use k8s_openapi::{
    Resource,
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::Deployment,
        core::v1::{Namespace, Service},
        networking::v1::NetworkPolicy,
    },
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{files, root};
use api::{ClusterImportPolicy, ClusterProperty, Cutover, ServiceExport, ServiceImport, fixtures::unknown};

#[test]
fn every_object_of_the_samples_has_fields_that_its_kind_has() {
    let mut seen = 0;
    for path in files(&root().join("samples"), "yaml") {
        let text = fs::read_to_string(&path).unwrap();
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let value = Value::deserialize(document).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let Some(kind) = value["kind"].as_str() else {
                assert!(path.ends_with("health_test.yaml"), "{} has no kind", path.display());
                continue;
            };
            let lost = match kind {
                Deployment::KIND => unknown::<Deployment>(&value),
                Namespace::KIND => unknown::<Namespace>(&value),
                NetworkPolicy::KIND => unknown::<NetworkPolicy>(&value),
                Service::KIND => unknown::<Service>(&value),
                ValidatingAdmissionPolicy::KIND => unknown::<ValidatingAdmissionPolicy>(&value),
                ValidatingAdmissionPolicyBinding::KIND => unknown::<ValidatingAdmissionPolicyBinding>(&value),
                "ServiceExport" => unknown::<ServiceExport>(&value),
                "ServiceImport" if path.parent().unwrap().ends_with("testdata") => Vec::new(),
                "ServiceImport" => unknown::<ServiceImport>(&value),
                "ClusterProperty" => unknown::<ClusterProperty>(&value),
                "ClusterImportPolicy" => unknown::<ClusterImportPolicy>(&value),
                "Cutover" => unknown::<Cutover>(&value),
                "Kustomization" | "ClusterPolicy" => Vec::new(),
                _ => panic!("{}: no test knows the kind {kind}", path.display()),
            };
            assert!(lost.is_empty(), "{}: there are no fields {lost:?}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn the_task_definition_has_what_fargate_requires() {
    let text = fs::read_to_string(root().join("samples/clients/task-definition.json")).unwrap();
    let task: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(task["networkMode"], "awsvpc");
    for field in ["family", "cpu", "memory", "executionRoleArn"] {
        assert!(task[field].is_string(), "{field}");
    }
    for field in ["name", "image"] {
        assert!(task["containerDefinitions"][0][field].is_string(), "{field}");
    }
}

#[test]
fn every_sample_is_listed() {
    let readme = fs::read_to_string(root().join("samples/README.md")).unwrap();
    let listed = |name: &str| readme.contains(&format!("| `{name}` |"));
    for entry in fs::read_dir(root().join("samples")).unwrap().map(Result::unwrap) {
        let (name, folder) = (entry.file_name().into_string().unwrap(), entry.path().is_dir());
        let inside = |file: fs::DirEntry| listed(&format!("{name}/{}", file.file_name().to_string_lossy()));
        let each = || fs::read_dir(entry.path()).unwrap().map(Result::unwrap).all(inside);
        assert!(
            name == "README.md" || listed(&name) || folder && (listed(&format!("{name}/")) || each()),
            "samples/README.md does not say what {name} is"
        );
    }
}
