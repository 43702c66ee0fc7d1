use std::time::Duration;

use axum::http::Method;
use kube::api::ObjectMeta;
use serde_json::Value;

use super::*;
use crate::fake_api::FakeApi;

struct Fixture {
    api: FakeApi,
    leadership: Leadership,
    metrics: Metrics,
    writer: KubernetesWriter,
}

impl Fixture {
    fn new() -> Self {
        let api = FakeApi::default();
        let leadership = Leadership::manual(Some(Instant::now() + Duration::from_hours(1)));
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let publisher = Publisher::new(api.client(), "pod", metrics.clone());
        let writer = KubernetesWriter::new(api.client(), leadership.clone(), metrics.clone(), publisher);
        Self { api, leadership, metrics, writer }
    }
}

fn key() -> ServiceKey {
    ServiceKey::new("ns", "web")
}

fn service(uid: Option<&str>) -> v1::Service {
    v1::Service {
        metadata: ObjectMeta {
            namespace: Some("ns".to_owned()),
            name: Some("derived-x".to_owned()),
            uid: uid.map(str::to_owned),
            ..ObjectMeta::default()
        },
        ..v1::Service::default()
    }
}

#[tokio::test]
async fn an_object_without_uid_is_created_without_force_and_one_with_uid_is_forced() {
    let fixture = Fixture::new();
    fixture.writer.apply_derived_service(&service(None)).await.unwrap();
    fixture.writer.apply_derived_service(&service(Some("u"))).await.unwrap();
    let requests = fixture.api.requests();
    for request in &requests {
        assert_eq!(
            (request.method.clone(), request.path.as_str()),
            (Method::PATCH, "/api/v1/namespaces/ns/services/derived-x")
        );
        assert_eq!(request.content_type, "application/apply-patch+yaml");
        assert!(request.query.contains("fieldManager=cloudmap-mcs-import"), "{}", request.query);
    }
    assert!(!requests[0].query.contains("force=true"), "{}", requests[0].query);
    assert!(requests[1].query.contains("force=true"), "{}", requests[1].query);
    assert_eq!(requests[1].body["metadata"]["uid"], "u");
}

#[tokio::test]
async fn the_answer_carries_what_the_api_server_allocated() {
    let fixture = Fixture::new();
    let mut answer = serde_json::to_value(service(Some("new"))).unwrap();
    answer["spec"] = json!({"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"]});
    fixture.api.prepare(201, answer);
    let made = fixture.writer.apply_derived_service(&service(None)).await.unwrap();
    assert_eq!(made.spec.unwrap().cluster_ips.unwrap(), ["10.0.0.7"]);
    assert_eq!(fixture.metrics.calls.with_label_values(&["apply", "Service", "ok"]).get(), 1);
}

#[tokio::test]
async fn nothing_is_sent_without_leadership() {
    let fixture = Fixture::new();
    fixture.leadership.set(Some(Instant::now()));
    let error = fixture.writer.apply_derived_service(&service(None)).await.unwrap_err();
    assert!(matches!(error.cause, Cause::NotLeader));
    assert_eq!(error.to_string(), "failed to apply Service ns/derived-x");
    assert!(fixture.api.requests().is_empty());
}

#[tokio::test]
async fn a_status_is_applied_by_its_own_manager_to_that_very_object() {
    let fixture = Fixture::new();
    let condition: Condition = serde_json::from_value(json!({
        "type": "Valid", "status": "True", "reason": "Valid", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z",
    }))
    .unwrap();
    fixture.writer.apply_export_conditions(&key(), "u", &[condition], FieldManager::ConflictStatus).await.unwrap();
    let request = &fixture.api.requests()[0];
    assert_eq!(request.path, "/apis/multicluster.x-k8s.io/v1beta1/namespaces/ns/serviceexports/web/status");
    assert!(
        request.query.contains("fieldManager=cloudmap-mcs-conflict-status") && request.query.contains("force=true")
    );
    assert_eq!(request.body["metadata"], json!({"namespace": "ns", "name": "web", "uid": "u"}));
    assert_eq!(request.body["status"]["conditions"][0]["type"], "Valid");
    assert_eq!(request.body.get("spec"), None::<&Value>);
}

#[tokio::test]
async fn a_status_that_was_written_to_another_object_is_an_error() {
    let fixture = Fixture::new();
    fixture.api.prepare(200, json!({"metadata": {"namespace": "ns", "name": "web", "uid": "new"}}));
    let error = fixture.writer.apply_import_status(&key(), "old", &ServiceImportStatus::default()).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Conflict(_)));
}

#[tokio::test]
async fn only_the_object_with_that_uid_is_deleted() {
    let fixture = Fixture::new();
    fixture.writer.delete_service_import(&key(), "u").await.unwrap();
    let request = &fixture.api.requests()[0];
    assert_eq!((request.method.clone(), &request.body["preconditions"]["uid"]), (Method::DELETE, &json!("u")));
    // The object is gone, or another object has the name, so the object to delete does not exist.
    fixture.api.refuse(404, "NotFound", "not found");
    fixture.writer.delete_service_import(&key(), "u").await.unwrap();
    fixture.api.refuse(409, "Conflict", "the UID in the precondition does not match");
    fixture.writer.delete_service_import(&key(), "u").await.unwrap();
    fixture.api.refuse(403, "Forbidden", "no");
    assert!(fixture.writer.delete_service_import(&key(), "u").await.is_err());
}

#[tokio::test]
async fn a_traffic_distribution_that_the_api_server_does_not_take_is_left_out_and_remembered() {
    let fixture = Fixture::new();
    let distributed = |value: &str| {
        let mut service = service(None);
        service.spec.get_or_insert_default().traffic_distribution = Some(value.to_owned());
        service
    };
    let sent = || -> Vec<Value> {
        fixture.api.requests().iter().map(|request| request.body["spec"]["trafficDistribution"].clone()).collect()
    };
    let words = "Service \"derived-x\" is invalid: spec.trafficDistribution: Unsupported value: \"PreferSameNode\"";
    fixture.api.refuse(422, "Invalid", words);
    assert!(fixture.writer.takes_traffic_distribution("ns", "PreferSameNode"));
    fixture.writer.apply_derived_service(&distributed("PreferSameNode")).await.unwrap();
    assert_eq!(sent(), [json!("PreferSameNode"), Value::Null]);
    assert!(!fixture.writer.takes_traffic_distribution("ns", "PreferSameNode"));
    fixture.writer.apply_derived_service(&distributed("PreferClose")).await.unwrap();
    // A policy may forbid it in one namespace.
    fixture.api.refuse(403, "Forbidden", "trafficDistribution is not allowed here");
    fixture.writer.apply_derived_service(&distributed("PreferClose")).await.unwrap();
    assert_eq!(sent()[3..], [json!("PreferClose"), Value::Null]);
    assert!(!fixture.writer.takes_traffic_distribution("ns", "PreferClose"), "it would be sent twice each time");
    // As Kubernetes 1.30 does.
    let mut stored = distributed("PreferSameZone");
    stored.spec.get_or_insert_default().traffic_distribution = None;
    fixture.api.prepare(200, serde_json::to_value(&stored).unwrap());
    fixture.writer.apply_derived_service(&distributed("PreferSameZone")).await.unwrap();
    assert!(!fixture.writer.takes_traffic_distribution("ns", "PreferSameZone"));
    for value in ["PreferClose", "PreferSameZone"] {
        assert!(fixture.writer.takes_traffic_distribution("other", value), "a webhook of one namespace may drop it");
    }
}

fn with_node_hints() -> discovery::EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": "web-1"}, "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.0.0.1"], "hints": {"forNodes": [{"name": "n"}]}},
            {"addresses": ["10.0.0.2"], "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]}},
        ],
    }))
    .unwrap()
}

/// As Kubernetes 1.33 does without the feature gate.
#[tokio::test]
async fn node_hints_that_the_api_server_drops_are_not_sent_again() {
    let fixture = Fixture::new();
    let slice = with_node_hints();
    fixture.writer.apply_endpoint_slice(&slice).await.unwrap();
    assert!(fixture.writer.takes_node_hints());
    let mut stored = slice.clone();
    drop_node_hints(&mut stored);
    fixture.api.prepare(200, serde_json::to_value(&stored).unwrap());
    fixture.writer.apply_endpoint_slice(&slice).await.unwrap();
    assert!(!fixture.writer.takes_node_hints());
    // The control plane may be upgraded.
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(59)).await;
    assert!(!fixture.writer.takes_node_hints());
    tokio::time::advance(Duration::from_mins(2)).await;
    assert!(fixture.writer.takes_node_hints());
}

#[tokio::test]
async fn node_hints_that_the_api_server_does_not_know_are_left_out() {
    let fixture = Fixture::new();
    let slice = with_node_hints();
    // The text of Kubernetes 1.32.
    let words = "failed to create typed patch object (ns/web-1; discovery.k8s.io/v1, Kind=EndpointSlice): \
                 .endpoints[0].hints.forNodes: field not declared in schema";
    assert!(fixture.writer.takes_node_hints());
    fixture.api.refuse(500, "InternalError", words);
    fixture.writer.apply_endpoint_slice(&slice).await.unwrap();
    let requests = fixture.api.requests();
    assert_eq!(requests[0].body["endpoints"][0]["hints"]["forNodes"][0]["name"], "n");
    assert_eq!(requests[1].body["endpoints"][0].get("hints"), None);
    assert_eq!(requests[1].body["endpoints"][1]["hints"], json!({"forZones": [{"name": "z"}]}));
    assert!(!fixture.writer.takes_node_hints());
}

#[tokio::test]
async fn refusals_are_sorted_and_keep_the_text_of_the_api_server() {
    let fixture = Fixture::new();
    let table = [
        (409, "Conflict", "conflict"),
        (404, "NotFound", "not_found"),
        (403, "Forbidden", "forbidden"),
        (422, "Invalid", "invalid"),
        (400, "BadRequest", "invalid"),
        (500, "InternalError", "unavailable"),
    ];
    for (code, reason, category) in table {
        fixture.api.refuse(code, reason, "its words");
        let error = fixture.writer.apply_derived_service(&service(None)).await.unwrap_err();
        assert_eq!(error.cause.category(), category);
        assert!(error.cause.to_string().starts_with("its words"), "{}", error.cause);
        assert!(fixture.metrics.calls.with_label_values(&["apply", "Service", category]).get() > 0);
    }
    let unknown = "failed to create typed patch object: .spec.trafficDistribution: field not declared in schema";
    fixture.api.refuse(500, "InternalError", unknown);
    let error = fixture.writer.apply_derived_service(&service(None)).await.unwrap_err();
    assert_eq!(error.cause.category(), "invalid");
    fixture.api.prepare(
        403,
        json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "being terminated",
               "details": {"causes": [{"reason": "NamespaceTerminating", "message": "", "field": "metadata.namespace"}]}}),
    );
    let error = fixture.writer.apply_derived_service(&service(None)).await.unwrap_err();
    assert_eq!(error.cause.category(), "namespace_terminating");
    // The answer of the API server if another Service has taken the name.
    fixture.api.prepare(
        422,
        json!({"kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid", "message": "field is immutable",
               "details": {"causes": [{"reason": "FieldValueInvalid", "message": "", "field": "metadata.uid"}]}}),
    );
    let error = fixture.writer.apply_derived_service(&service(Some("old"))).await.unwrap_err();
    assert_eq!(error.cause.category(), "conflict");
}

/// Whoever has exceeded a quota looks in vain for a missing permission.
#[tokio::test]
async fn permissions_are_the_remedy_only_where_one_is_missing() {
    let fixture = Fixture::new();
    let cannot = "services is forbidden: User \"system:serviceaccount:cloudmap-mcs-system:cloudmap-mcs\" cannot create \
                  resource \"services\" in API group \"\" in the namespace \"ns\"";
    let quota = "services \"derived-x\" is forbidden: exceeded quota: few, requested: services=1, used: services=5, \
                 limited: services=5";
    let policy = "admission webhook \"validation.example.com\" denied the request: no Services here";
    for (words, is_missing) in [(cannot, true), (quota, false), (policy, false)] {
        fixture.api.refuse(403, "Forbidden", words);
        let cause = fixture.writer.apply_derived_service(&service(None)).await.unwrap_err().cause;
        let text = cause.to_string();
        assert_eq!(cause.category(), "forbidden");
        assert!(text.starts_with(words) && text.contains("config/rbac") == is_missing, "{text}");
    }
}

/// A request that begins at the last moment of a claim must not arrive when another replica leads.
#[tokio::test(start_paused = true)]
async fn a_write_is_given_up_before_another_replica_can_lead() {
    let fixture = Fixture::new();
    for (left, waits) in [(1, 6), (60, 10)] {
        fixture.leadership.set(Some(Instant::now() + Duration::from_secs(left)));
        fixture.api.hang();
        let begun = Instant::now();
        let error = fixture.writer.apply_derived_service(&service(None)).await.unwrap_err();
        assert!(matches!(error.cause, Cause::Timeout), "{error:?}");
        assert_eq!(begun.elapsed().as_secs(), waits);
    }
}
