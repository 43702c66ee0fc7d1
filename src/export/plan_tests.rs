use serde_json::json;

use super::*;
use api::conditions::{Heading, SharedCondition};
use cluster::cache::Narrow;
use instances::policy::mk_namespace;

fn mk_export(spec: &serde_json::Value) -> ServiceExport {
    let object = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                     "labels": {"mine": "x"}, "annotations": {"mine": "x"}},
        "spec": spec,
    });
    ServiceExport::narrow(serde_json::from_value(object).unwrap()).unwrap()
}

fn mk_service(spec: &serde_json::Value) -> Service {
    let object = json!({
        "metadata": {"namespace": "shop", "name": "web", "creationTimestamp": "2020-01-01T00:00:00Z",
                     "labels": {"theirs": "x"}, "annotations": {"theirs": "x"}},
        "spec": spec,
    });
    Service::narrow(serde_json::from_value(object).unwrap()).unwrap()
}

fn planned(export: &ServiceExport, service: &serde_json::Value) -> Result<Exported, Refusal> {
    plan(export, Some(&mk_service(service)), &[], Given::default())
}

#[test]
fn types_are_those_of_kep_1645() {
    let export = mk_export(&json!({}));
    for (service, expected) in [
        (json!({"clusterIP": "10.0.0.1"}), Some(ServiceType::ClusterSetIp)),
        (json!({"type": "NodePort", "clusterIP": "10.0.0.1"}), Some(ServiceType::ClusterSetIp)),
        (json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1"}), Some(ServiceType::ClusterSetIp)),
        (json!({"clusterIP": "None"}), Some(ServiceType::Headless)),
        (json!({"type": "ExternalName", "externalName": "example.com"}), None),
        (json!({"type": "Novel"}), None),
    ] {
        let planned = planned(&export, &service);
        assert_eq!(planned.as_ref().ok().map(|local| local.export.service_type), expected, "{service}");
        if let Err(refusal) = planned {
            assert!(matches!(refusal, Refusal::Invalid { reason: ValidReason::InvalidServiceType, .. }), "{refusal:?}");
        }
    }
}

#[test]
fn a_service_that_is_being_deleted_is_not_exported_and_not_called_missing() {
    let export = mk_export(&json!({}));
    let going = Service { deleting: true, ..mk_service(&json!({"clusterIP": "10.0.0.1"})) };
    for (service, says) in [(None, "no Service shop/web"), (Some(&going), "Service shop/web is being deleted")] {
        let Err(Refusal::Invalid { reason, message }) = plan(&export, service, &[], Given::default()) else {
            panic!("{says}")
        };
        assert_eq!((reason, message.contains(says)), (ValidReason::NoService, true), "{message}");
    }
}

#[test]
fn a_derived_service_is_not_exported_again() {
    let derived =
        Service { service_import: Some("api".into()), managed: true, ..mk_service(&json!({"clusterIP": "10.0.0.1"})) };
    let Err(Refusal::Invalid { reason, message }) = plan(&mk_export(&json!({})), Some(&derived), &[], Given::default())
    else {
        panic!("exported")
    };
    assert_eq!(reason, ValidReason::InvalidServiceType);
    assert!(message.contains("Service shop/web is the derived Service of ServiceImport shop/api"), "{message}");
}

#[test]
fn an_export_is_as_old_as_its_service_export_and_the_default_policy_is_cluster() {
    let export = planned(&mk_export(&json!({})), &json!({"clusterIP": "10.0.0.1"})).unwrap().export;
    assert_eq!(export.created, "2026-01-01T00:00:00Z".parse::<k8s_openapi::jiff::Timestamp>().unwrap().as_second());
    let explicit = json!({"clusterIP": "10.0.0.1", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None"});
    assert_eq!(export, planned(&mk_export(&json!({})), &explicit).unwrap().export);
}

#[test]
fn only_valid_labels_in_the_spec_are_exported() {
    let request = mk_export(&json!({
        "exportedLabels": {"team": "a", "bad value": "x", "b": "no value", "cloudmap-mcs/managed-by": "x"},
        "exportedAnnotations": {"note": "any text", "no/t/so": "x", "multicluster.kubernetes.io/derived-service": "x"},
    }));
    let export = planned(&request, &json!({"clusterIP": "10.0.0.1"})).unwrap().export;
    assert_eq!(export.labels, [("team".to_owned(), "a".to_owned())].into());
    assert_eq!(export.annotations, [("note".to_owned(), "any text".to_owned())].into());
    let message = remarks(&request).unwrap();
    for named in ["\"bad value\"", "\"b\": \"no value\"", "cloudmap-mcs/managed-by", "no/t/so", "derived-service"] {
        assert!(message.contains(named), "{named}: {message}");
    }
    assert_eq!(remarks(&mk_export(&json!({"exportedLabels": {"team": "a"}}))), None);
}

#[test]
fn labels_and_annotations_that_are_too_large_are_cut_in_the_cache_and_refused_all_the_same() {
    let pair = |nth: usize| (format!("k{nth}"), serde_json::Value::from("v"));
    let many = |count: usize| (0..count).map(pair).collect::<serde_json::Map<String, serde_json::Value>>();
    let left_out = "x".repeat(1_000_000);
    for spec in [
        json!({"exportedAnnotations": {"note": "é".repeat(500_000)}}),
        json!({"exportedAnnotations": many(100_000)}),
        json!({"exportedLabels": many(100_000)}),
        json!({"exportedLabels": {"a": &left_out}, "exportedAnnotations": {&left_out: &left_out, "z": "é".repeat(1_500)}}),
    ] {
        let request = mk_export(&spec);
        let pairs = request.exported_labels.iter().chain(&request.exported_annotations);
        let size: usize = pairs.map(|(name, value)| name.len() + value.len()).sum();
        assert!(size < 20_000, "{size} bytes");
        let export = planned(&request, &json!({"clusterIP": "10.0.0.1"})).unwrap().export;
        assert!(records::encode_export(&request.key, &export).is_err());
    }
    let request = mk_export(&json!({"exportedAnnotations": {"cloudmap-mcs/x": &left_out, "note": "kept"}}));
    let export = planned(&request, &json!({"clusterIP": "10.0.0.1"})).unwrap().export;
    assert_eq!(export.annotations, [("note".to_owned(), "kept".to_owned())].into());
}

#[test]
fn a_namespace_without_the_labels_may_not_export_and_gets_the_remedy() {
    let namespace = |labels: &[(&str, &str)]| Namespace {
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..mk_namespace()
    };
    let allowed: NamespaceSelector = "export in (yes, all)".parse().unwrap();
    assert_eq!(permit(&namespace(&[("export", "yes")]), &allowed), Ok(()));
    let Err(Refusal::NotAllowed(message)) = permit(&namespace(&[("export", "no")]), &allowed) else {
        panic!("allowed")
    };
    for part in ["Namespace shop", "export in (all,yes)", "--export-namespaces"] {
        assert!(message.contains(part), "{message}");
    }
}

/// Somebody started the AWS controller, which put its finalizer there, or stopped it and left the finalizer.
#[test]
fn an_export_of_ours_goes_on_with_the_finalizer_of_the_aws_controller_also_while_the_registry_fails() {
    for (conditions, goes_on) in [
        (&[][..], false),
        (&[("Valid", "True"), ("Ready", "False")], false),
        (&[("Valid", "True"), ("Ready", "True")], true),
        (&[("Valid", "True"), ("Ready", "False"), ("Registered", "True")], true),
        (&[("Valid", "True"), ("Ready", "False"), ("Registered", "False")], true),
    ] {
        let said = |(type_, status): &(&str, &str)| SharedCondition {
            heading: Heading { type_: (*type_).into(), status: (*status).into(), reason: "Any".into() }.into(),
            message: "".into(),
            observed_generation: None,
            last_transition_time: k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
        };
        let conditions = conditions.iter().map(said).collect();
        let request = ServiceExport { aws_mcs_finalizer: Some(0), conditions, ..mk_export(&json!({})) };
        assert_eq!(hand_over(&request).is_ok(), goes_on, "{:?}", request.conditions);
        assert_eq!(remarks(&request).is_some_and(|text| text.contains(FINALIZER)), goes_on);
    }
}

#[test]
fn the_command_that_removes_the_finalizer_of_the_aws_controller_removes_no_other_one() {
    let request = ServiceExport { aws_mcs_finalizer: Some(1), ..mk_export(&json!({})) };
    let Err(Refusal::NotAllowed(message)) = hand_over(&request) else { panic!("handed over") };
    let (_, patch) = message.split_once("--type json -p '").unwrap();
    let patch: serde_json::Value = serde_json::from_str(patch.strip_suffix("'.").unwrap()).unwrap();
    let path = "/metadata/finalizers/1";
    // Others may have come or gone since.
    assert_eq!(patch, json!([{"op": "test", "path": path, "value": FINALIZER}, {"op": "remove", "path": path}]));
}
