//! The adapter against scripted answers, for what a faithful emulator would not answer on demand.

mod connection;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use aws_config::{BehaviorVersion, Region};
use aws_sdk_servicediscovery::config::{Credentials, SharedCredentialsProvider};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use prometheus::Registry;
use serde_json::{Value, json};
use tokio::{net::TcpListener, time::timeout};

use super::*;
use crate::{
    Access, Counted, CreateService, HttpName, Metrics, NewNamespace, NewService, Rate, Rates, ServiceChange, Write,
    fake::{permit, permit_until},
};

/// Deadline of the calls in tests that are about something else: the machine may stand still for a while.
const PATIENCE: Duration = Duration::from_mins(5);

/// The requests that the server received.
type Requests = Arc<Mutex<Vec<Request>>>;

#[derive(Clone)]
struct Request {
    operation: String,
    host: String,
    authorization: String,
    body: String,
}

struct Server {
    url: String,
    requests: Requests,
}

/// What the server's handler shares with the test: the requests, and the next answers.
type Shared = (Requests, Arc<Mutex<VecDeque<(u16, String)>>>);

/// Answers each request with the next answer of the script, and after that with the last one.
async fn serve(script: Vec<(u16, String)>) -> Server {
    let requests = Requests::default();
    let state = (requests.clone(), Arc::new(Mutex::new(VecDeque::from(script))));
    let answer = async |State((requests, script)): State<Shared>, headers: HeaderMap, body: Bytes| {
        let header = |name: &str| headers.get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
        let body = String::from_utf8(body.to_vec()).unwrap();
        requests.lock().unwrap().push(Request {
            operation: header("x-amz-target"),
            host: header("host"),
            authorization: header("authorization"),
            body,
        });
        let mut script = script.lock().unwrap();
        let (status, body) = if script.len() > 1 { script.pop_front() } else { script.front().cloned() }.unwrap();
        (StatusCode::from_u16(status).unwrap(), body)
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(state);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Server { url, requests }
}

fn sdk() -> SdkConfig {
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new("test", "test", None, None, "test")))
        .build()
}

fn settings(endpoint: &str) -> AwsSettings {
    AwsSettings { endpoint: Some(endpoint.to_owned()), deadline: PATIENCE, ..AwsSettings::default() }
}

async fn cloudmap(endpoint: &str) -> AwsCloudMap {
    AwsCloudMap::configured(&sdk(), &settings(endpoint), Limits::new(&Rates::default(), None)).await.unwrap()
}

async fn answering(status: u16, body: &Value) -> (AwsCloudMap, Server) {
    let server = serve(vec![(status, body.to_string())]).await;
    (cloudmap(&server.url).await, server)
}

fn instance() -> Instance {
    let attributes = [("AWS_INSTANCE_IPV4".to_owned(), "10.0.0.1".to_owned())].into();
    Instance { id: "pod-1".into(), attributes }
}

async fn register_error(status: u16, body: &Value) -> Error {
    let (cloudmap, server) = answering(status, body).await;
    let error = cloudmap.register_instance(&permit(), "srv-1", &instance(), Lane::Ledger).await.unwrap_err();
    assert_eq!(server.requests.lock().unwrap().len(), 1, "a write is never repeated");
    error
}

#[tokio::test]
async fn sorts_every_error_of_aws() {
    let kinds = [
        ("ServiceNotFound", 400, ErrorKind::NotFound),
        ("com.amazonaws#InstanceNotFound", 400, ErrorKind::NotFound),
        ("ResourceInUse", 400, ErrorKind::InUse),
        ("ResourceLimitExceeded", 400, ErrorKind::LimitExceeded),
        ("ThrottlingException", 400, ErrorKind::Throttled),
        ("RequestLimitExceeded", 400, ErrorKind::Throttled),
        ("InvalidInput", 400, ErrorKind::InvalidInput),
        ("CustomHealthNotFound", 400, ErrorKind::InvalidInput),
        ("AccessDeniedException", 400, ErrorKind::AccessDenied),
        ("ExpiredTokenException", 400, ErrorKind::AccessDenied),
        ("UnrecognizedClientException", 400, ErrorKind::AccessDenied),
        ("InternalFailure", 500, ErrorKind::Unknown),
        ("SomethingNew", 400, ErrorKind::Other),
    ];
    for (code, status, kind) in kinds {
        let error = register_error(status, &json!({"__type": code, "message": "the reason"})).await;
        assert_eq!(error.kind, kind, "{code}: {error}");
        assert!(error.message.contains("the reason"), "{error}");
    }
}

#[tokio::test]
async fn a_wrong_clock_is_not_taken_for_wrong_credentials() {
    let late = "Signature expired: 20261126T080000Z is now earlier than 20261126T081000Z (20261126T081500Z - 5 min.)";
    let early =
        "Signature not yet current: 20261126T083000Z is still later than 20261126T082000Z (20261126T081500Z + 5 min.)";
    let other = "The request signature we calculated does not match the signature you provided.";
    for (message, part) in [(late, "the clock"), (early, "the clock"), (other, "credentials are not accepted")] {
        let error = register_error(403, &json!({"__type": "InvalidSignatureException", "message": message})).await;
        assert_eq!(error.kind, ErrorKind::AccessDenied);
        assert!(error.message.contains(part) && error.message.contains(message), "{error}");
    }
}

#[tokio::test]
async fn names_the_missing_iam_action() {
    let error = register_error(400, &json!({"__type": "AccessDeniedException", "Message": "not authorized"})).await;
    assert!(error.to_string().contains("needs the action servicediscovery:RegisterInstance"), "{error}");
}

#[tokio::test]
async fn reads_which_operation_is_in_progress() {
    let body = json!({"__type": "DuplicateRequest", "Message": "in progress", "DuplicateOperationId": "op-7"});
    let error = register_error(400, &body).await;
    assert_eq!(error.kind, ErrorKind::Duplicate { operation: Some(OperationId("op-7".into())) });
}

fn new_namespace<'a>(vpc: Option<&'a str>, tags: &'a BTreeMap<String, String>) -> NewNamespace<'a> {
    NewNamespace { name: "shop", vpc, creator_request_id: "me", description: "", tags }
}

fn new_service() -> NewService {
    NewService {
        namespace_id: "ns-1".into(),
        name: "web".into(),
        creator_request_id: "me".to_owned(),
        description: None,
        dns: None,
        custom_health_check: false,
        tags: BTreeMap::new(),
    }
}

#[tokio::test]
async fn the_loser_of_a_name_learns_who_won() {
    let body = json!({"__type": "ServiceAlreadyExists", "ServiceId": "srv-9", "CreatorRequestId": "other"});
    let (cloudmap, _server) = answering(400, &body).await;
    let exists = CreateService::Exists { id: "srv-9".into(), creator_request_id: Some("other".to_owned()) };
    assert_eq!(cloudmap.create_service(&permit(), &new_service(), Lane::Instances).await.unwrap(), exists);

    // An emulator that does not say who: a listing can resolve this error.
    let (cloudmap, _server) = answering(400, &json!({"__type": "ServiceAlreadyExists"})).await;
    let error = cloudmap.create_service(&permit(), &new_service(), Lane::Instances).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::AlreadyExists { id: None });

    let body = json!({"__type": "NamespaceAlreadyExists", "NamespaceId": "ns-9", "CreatorRequestId": "other"});
    let (cloudmap, _server) = answering(400, &body).await;
    let tags = BTreeMap::new();
    let error = cloudmap.create_namespace(&permit(), &new_namespace(None, &tags)).await.unwrap_err();
    let taken = ErrorKind::AlreadyExists { id: Some("ns-9".to_owned()) };
    assert_eq!(error.kind, taken);
    let (cloudmap, _server) = answering(400, &body).await;
    let made = cloudmap.create_namespace(&permit(), &new_namespace(Some("vpc-0123abcd"), &tags)).await;
    assert_eq!(made.unwrap_err().kind, taken);
}

#[tokio::test]
async fn follows_empty_pages_to_the_end() {
    let script = [
        json!({"Instances": [], "NextToken": "a"}),
        json!({"Instances": [{"Id": "one", "Attributes": {"k": "v"}}], "NextToken": "b"}),
        json!({"NextToken": "c"}),
        json!({"Instances": [{"Id": "two"}]}),
    ];
    let server = serve(script.iter().map(|page| (200, page.to_string())).collect()).await;
    let instances = cloudmap(&server.url).await.list_instances("srv-1").await.unwrap();
    assert_eq!(instances.iter().map(|i| &*i.id).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(instances[0].attributes["k"], "v");
    let bodies: Vec<Value> =
        server.requests.lock().unwrap().iter().map(|request| serde_json::from_str(&request.body).unwrap()).collect();
    assert_eq!(
        bodies.iter().map(|body| body["NextToken"].as_str()).collect::<Vec<_>>(),
        [None, Some("a"), Some("b"), Some("c")]
    );
}

#[tokio::test]
async fn namespaces_are_listed_to_the_last_page_with_the_names_that_discovery_takes() {
    let script = [
        json!({"Namespaces": [{"Id": "ns-1", "Name": "shop", "Type": "HTTP", "CreateDate": 1_700_000_000.25,
            "Properties": {"HttpProperties": {"HttpName": "shop-1a2b"}}}], "NextToken": "a"}),
        json!({"NextToken": "b"}),
        json!({"Namespaces": [{"Id": "ns-2", "Name": "internal", "Type": "DNS_PRIVATE",
            "Properties": {"DnsProperties": {"HostedZoneId": "Z1"}}}]}),
    ];
    let server = serve(script.iter().map(|page| (200, page.to_string())).collect()).await;
    let namespaces = cloudmap(&server.url).await.list_namespaces(Lane::Instances).await.unwrap();
    let names: Vec<_> = namespaces.iter().map(|namespace| (&*namespace.name, &*namespace.http_name)).collect();
    assert_eq!(names, [("shop", "shop-1a2b"), ("internal", "internal")]);
    assert_eq!([namespaces[0].created, namespaces[1].created], [1_700_000_000_250, i64::MAX]);
    assert_eq!([&namespaces[0], &namespaces[1]].map(|namespace| namespace.hosted_zone.as_deref()), [None, Some("Z1")]);
    for request in server.requests.lock().unwrap().iter() {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body["Filters"], json!([{"Name": "RESOURCE_OWNER", "Values": ["SELF"]}]), "others' are not ours");
    }
    let (cloudmap, _server) = answering(
        200,
        &json!({"Namespace": {"Id": "ns-1", "Name": "shop", "Type": "HTTP", "CreateDate": 1_700_000_000.25,
        "Properties": {"HttpProperties": {"HttpName": "shop-1a2b"}}}}),
    )
    .await;
    assert_eq!(cloudmap.get_namespace("ns-1").await.unwrap(), namespaces[0]);
}

/// `cutover plan` adds them up. What AWS leaves out is not zero.
#[tokio::test]
async fn services_are_listed_with_the_number_of_their_instances() {
    let body = json!({"Services": [{"Id": "srv-1", "InstanceCount": 7}, {"Id": "srv-2"}, {"Id": "srv-3", "InstanceCount": 0}]});
    let (cloudmap, _server) = answering(200, &body).await;
    let listed = cloudmap.list_services("ns-1", Lane::Instances).await.unwrap();
    assert_eq!(listed.iter().map(|service| service.instances).collect::<Vec<_>>(), [Some(7), None, Some(0)]);
}

/// As a broken proxy may answer. Each page would cost a call of those that all controllers of the account share.
#[tokio::test]
async fn a_listing_that_repeats_a_page_ends() {
    let page = json!({"NextToken": "a", "Namespaces": [{"Id": "ns-1", "Name": "shop", "Type": "HTTP"}]});
    let server = serve(vec![(200, page.to_string())]).await;
    let error = cloudmap(&server.url).await.list_namespaces(Lane::Ledger).await.unwrap_err();
    assert!(error.kind == ErrorKind::Other && error.message.contains("repeats a page"), "{error}");
    assert_eq!(server.requests.lock().unwrap().len(), 2);
}

/// Pages can be empty where other accounts share many namespaces, so that even a short listing has several.
#[tokio::test]
async fn the_ledger_waits_for_nobody_on_further_pages_either() {
    let script = [json!({"NextToken": "a"}), json!({"Namespaces": [{"Id": "ns-1", "Name": "shop", "Type": "HTTP"}]})];
    let server = serve(script.iter().map(|page| (200, page.to_string())).collect()).await;
    let slow = Rate::new(0.001, 10.0, 5.0);
    let limits = Limits::new(&Rates::default().with(Operation::ListNamespaces, slow), None);
    let cloudmap = AwsCloudMap::configured(&sdk(), &settings(&server.url), limits.clone()).await.unwrap();
    // The others wait for a thousand seconds now.
    limits.throttled(Operation::ListNamespaces);
    let listed = timeout(PATIENCE, cloudmap.list_namespaces(Lane::Ledger)).await.expect("it waits");
    assert_eq!(listed.unwrap().len(), 1);
}

#[tokio::test]
async fn a_page_that_fails_fails_the_listing() {
    let script = vec![
        (200, json!({"Instances": [{"Id": "one"}], "NextToken": "a"}).to_string()),
        (400, json!({"__type": "ServiceNotFound"}).to_string()),
    ];
    let server = serve(script).await;
    let error = cloudmap(&server.url).await.list_instances("srv-1").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
}

/// The rest may be ill: that none is known of it does not mean that none is.
#[tokio::test]
async fn a_service_without_a_health_check_has_no_unhealthy_instances_but_a_failed_page_says_nothing() {
    for kind in ["InvalidInput", "InstanceNotFound"] {
        let refused = || (400, json!({"__type": kind}).to_string());
        let server = serve(vec![refused()]).await;
        assert!(cloudmap(&server.url).await.unhealthy_instances("srv-1").await.unwrap().is_empty());
        let first = json!({"Status": {"one": "UNHEALTHY", "two": "HEALTHY"}, "NextToken": "a"}).to_string();
        let server = serve(vec![(200, first.clone()), refused()]).await;
        cloudmap(&server.url).await.unhealthy_instances("srv-1").await.unwrap_err();
        let last = json!({"Status": {"three": "UNHEALTHY"}}).to_string();
        let server = serve(vec![(200, first), (200, last)]).await;
        let unhealthy = cloudmap(&server.url).await.unhealthy_instances("srv-1").await.unwrap();
        assert_eq!(unhealthy.iter().map(|id| &**id).collect::<Vec<_>>(), ["one", "three"]);
    }
    // Nor does a service that is not there, or not yet.
    let (cloudmap, _server) = answering(400, &json!({"__type": "ServiceNotFound"})).await;
    assert_eq!(cloudmap.unhealthy_instances("srv-1").await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn a_throttled_further_page_is_requested_again_but_not_forever() {
    let throttled = || (400, json!({"__type": "ThrottlingException"}).to_string());
    let first = (200, json!({"Instances": [{"Id": "one"}], "NextToken": "a"}).to_string());
    let last = (200, json!({"Instances": [{"Id": "two"}]}).to_string());
    let server = serve(vec![first.clone(), throttled(), throttled(), last]).await;
    let metrics = Metrics::new(&Registry::new()).unwrap();
    let limits = Limits::new(&Rates::default(), Some(metrics.clone()));
    let aws = AwsCloudMap::configured(&sdk(), &settings(&server.url), limits).await.unwrap();
    let counted = Counted::new(aws, metrics.clone());
    let listed = counted.list_instances("srv-1").await.unwrap();
    assert_eq!(listed.iter().map(|instance| &*instance.id).collect::<Vec<_>>(), ["one", "two"]);
    let calls = metrics.snapshot();
    assert_eq!(calls.iter().collect::<Vec<_>>(), [("ListInstances", "ok", 2), ("ListInstances", "throttled", 2)]);

    // Each page of a long listing may be throttled.
    let page = |next: &str| (200, json!({"Instances": [{"Id": next}], "NextToken": next}).to_string());
    let mut script = Vec::new();
    for next in ["a", "b", "c"] {
        script.push(page(next));
        script.extend(std::iter::repeat_with(throttled).take(3));
    }
    script.push((200, json!({"Instances": []}).to_string()));
    let server = serve(script).await;
    assert_eq!(cloudmap(&server.url).await.list_instances("srv-1").await.unwrap().len(), 3);

    let server = serve(std::iter::once(first).chain(std::iter::repeat_with(throttled).take(20)).collect()).await;
    let error = cloudmap(&server.url).await.list_instances("srv-1").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Throttled);
    // The first page is not repeated: its caller decides.
    let server = serve(vec![throttled(), throttled()]).await;
    cloudmap(&server.url).await.list_instances("srv-1").await.unwrap_err();
    assert_eq!(server.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn discovers_at_the_exact_endpoint_and_requests_everything() {
    let rows: Vec<_> = (0..1000).map(|i| json!({"InstanceId": format!("i-{i}")})).collect();
    let (cloudmap, server) = answering(200, &json!({"Instances": rows})).await;
    let query = [("k".to_owned(), "v".to_owned())].into();
    let discovery = cloudmap.discover_instances(HttpName::own("shop"), "web", &query, Lane::Ledger).await.unwrap();
    assert!(discovery.truncated, "a thousand rows may be a part of more");
    let Request { operation, host, body, .. } = server.requests.lock().unwrap()[0].clone();
    assert_eq!(operation, "Route53AutoNaming_v20170314.DiscoverInstances");
    assert_eq!(format!("http://{host}"), server.url);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["MaxResults"], 1000);
    assert_eq!(body["HealthStatus"], "ALL");
    assert_eq!(body["QueryParameters"], json!({"k": "v"}));
}

#[tokio::test]
async fn a_service_without_records_is_api_only_and_one_with_records_is_not() {
    let answer = json!({"Service": {
        "Id": "srv-1", "Name": "web", "NamespaceId": "ns-1", "CreatorRequestId": "me", "Type": "DNS",
        "DnsConfig": {"RoutingPolicy": "WEIGHTED", "DnsRecords": [{"Type": "A", "TTL": 60}, {"Type": "AAAA", "TTL": 60}]},
        "HealthCheckCustomConfig": {}}});
    let (cloudmap, server) = answering(200, &answer).await;
    let CreateService::Created(service) =
        cloudmap.create_service(&permit(), &new_service(), Lane::Instances).await.unwrap()
    else {
        panic!()
    };
    let dns = service.dns.clone().unwrap();
    assert!(dns.weighted && service.custom_health_check);
    assert_eq!(
        dns.records.iter().map(|r| r.record_type).collect::<Vec<_>>(),
        [super::super::RecordType::A, super::super::RecordType::Aaaa]
    );
    let described = Some("for people".to_owned());
    cloudmap
        .create_service(
            &permit(),
            &NewService { dns: Some(dns), description: described, ..new_service() },
            Lane::Instances,
        )
        .await
        .unwrap();
    let requests = server.requests.lock().unwrap();
    let body = |i: usize| serde_json::from_str::<Value>(&requests[i].body).unwrap();
    assert_eq!((&body(0)["Type"], &body(0)["DnsConfig"]), (&json!("HTTP"), &Value::Null));
    assert_eq!(body(0)["CreatorRequestId"], "me");
    assert_eq!(body(0).get("Description"), None, "an empty one would be one");
    assert_eq!((&body(1)["Type"], &body(1)["Description"]), (&Value::Null, &json!("for people")));
    assert_eq!(body(1)["DnsConfig"]["RoutingPolicy"], "WEIGHTED");
}

#[tokio::test]
async fn an_operation_that_fails_later_has_the_reason() {
    let answer =
        json!({"Operation": {"Id": "op", "Status": "FAIL", "ErrorCode": "ACCESS_DENIED", "ErrorMessage": "no"}});
    let (cloudmap, _server) = answering(200, &answer).await;
    let failed = OperationState::Failed { code: "ACCESS_DENIED".to_owned(), message: "no".to_owned() };
    assert_eq!(cloudmap.operation(&OperationId("op".into()), Lane::Ledger).await.unwrap(), failed);
}

/// An update deletes what it does not repeat.
#[tokio::test]
async fn an_update_of_a_service_repeats_everything() {
    let described = json!({"Service": {
        "Id": "srv-1", "Name": "web", "Description": "made by us", "Type": "DNS_HTTP",
        "DnsConfig": {"DnsRecords": [{"Type": "A", "TTL": 60}, {"Type": "AAAA", "TTL": 60}]},
        "HealthCheckConfig": {"Type": "HTTP", "ResourcePath": "/up", "FailureThreshold": 3}}});
    let script = vec![(200, described.to_string()), (200, json!({"OperationId": "op-1"}).to_string())];
    let server = serve(script).await;
    let cloudmap = cloudmap(&server.url).await;
    let Service { description, dns, health_check, .. } = cloudmap.get_service("srv-1", Lane::Instances).await.unwrap();
    let records = dns.unwrap().records;
    let change = ServiceChange { description, records, health_check };
    assert_eq!(cloudmap.update_service(&permit(), "srv-1", &change).await.unwrap(), OperationId("op-1".into()));
    let requests = server.requests.lock().unwrap();
    assert!(requests[1].operation.ends_with(".UpdateService"), "{}", requests[1].operation);
    let body: Value = serde_json::from_str(&requests[1].body).unwrap();
    assert_eq!(body["Service"]["Description"], "made by us");
    let records = json!([{"Type": "A", "TTL": 60}, {"Type": "AAAA", "TTL": 60}]);
    assert_eq!(body["Service"]["DnsConfig"]["DnsRecords"], records);
    let check = json!({"Type": "HTTP", "ResourcePath": "/up", "FailureThreshold": 3});
    assert_eq!(body["Service"]["HealthCheckConfig"], check);
}

/// AWS answers a repeated request id with its earlier answer, and the address of a pod can be used again.
#[tokio::test]
async fn no_two_registrations_have_the_same_request_id() {
    let (cloudmap, server) = answering(200, &json!({"OperationId": "op-1"})).await;
    for _ in 0..2 {
        cloudmap.register_instance(&permit(), "srv-1", &instance(), Lane::Instances).await.unwrap();
    }
    let requests = server.requests.lock().unwrap();
    let id = |i: usize| serde_json::from_str::<Value>(&requests[i].body).unwrap()["CreatorRequestId"].clone();
    assert!(id(0).is_string() && id(0) != id(1), "{} {}", id(0), id(1));
}
