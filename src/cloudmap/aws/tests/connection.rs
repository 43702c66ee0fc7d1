//! How the adapter is connected: settings, credentials, endpoints, deadlines and attempts.

use std::sync::atomic::{AtomicU32, Ordering};

use aws_sdk_servicediscovery::{config::http::HttpRequest, error::ConnectorError};
use aws_smithy_runtime_api::client::{
    http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn},
    orchestrator::HttpResponse,
};
use tokio::net::TcpSocket;

use super::*;

#[tokio::test]
async fn a_command_repeats_what_is_throttled() {
    let script =
        vec![(400, json!({"__type": "ThrottlingException"}).to_string()), (200, json!({"Namespaces": []}).to_string())];
    let server = serve(script).await;
    let settings = AwsSettings { repeat: 2, ..settings(&server.url) };
    let cloudmap = AwsCloudMap::configured(&sdk(), &settings, Limits::new(&Rates::default(), None)).await.unwrap();
    assert_eq!(cloudmap.list_namespaces(Lane::Instances).await.unwrap(), []);
    assert_eq!(server.requests.lock().unwrap().len(), 2);
}

/// Answers at once: a number of times as throttled, then with an empty list.
#[derive(Debug, Clone)]
struct Throttling(Arc<AtomicU32>);

impl HttpConnector for Throttling {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        let (status, body) = match left {
            Ok(_) => (400_u16, r#"{"__type": "ThrottlingException"}"#),
            Err(_) => (200, r#"{"Namespaces": []}"#),
        };
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status.try_into().unwrap(), body.into())))
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_repeats_for_longer_than_one_call_may_take() {
    let left = Arc::new(AtomicU32::new(24));
    let connector = Throttling(left.clone());
    let client = http_client_fn(move |_, _| SharedHttpConnector::new(connector.clone()));
    let sdk = sdk().to_builder().http_client(client).build();
    let settings = AwsSettings { repeat: 24, ..AwsSettings::default() };
    let cloudmap = AwsCloudMap::configured(&sdk, &settings, Limits::new(&Rates::default(), None)).await.unwrap();
    assert_eq!(cloudmap.list_namespaces(Lane::Instances).await.unwrap(), []);
    assert_eq!(left.load(Ordering::Relaxed), 0);
}

/// The Lease may end while credentials are fetched, or between two attempts.
#[tokio::test(start_paused = true)]
async fn no_attempt_is_sent_once_the_permit_has_ended() {
    let left = Arc::new(AtomicU32::new(u32::MAX));
    let connector = Throttling(left.clone());
    let client = http_client_fn(move |_, _| SharedHttpConnector::new(connector.clone()));
    let sdk = sdk().to_builder().http_client(client).build();
    let settings = AwsSettings { repeat: 24, ..AwsSettings::default() };
    let cloudmap = AwsCloudMap::configured(&sdk, &settings, Limits::new(&Rates::default(), None)).await.unwrap();
    let sent = || u32::MAX - left.load(Ordering::Relaxed);
    let until = tokio::time::Instant::now() + Duration::from_secs(5);
    let permit = permit_until(until).unwrap();
    let error = cloudmap.register_instance(&permit, "srv-1", &instance(), Lane::Ledger).await.unwrap_err();
    assert_eq!((&error.kind, error.operation), (&ErrorKind::NoPermit, "RegisterInstance"));
    assert!(error.message.contains("nothing was sent") && tokio::time::Instant::now() >= until, "{error}");
    let attempts = sent();
    assert!((1..24).contains(&attempts), "{attempts}");
    let (web, tags) = (new_service(), BTreeMap::new());
    let change = ServiceChange { description: None, records: Vec::new(), health_check: None };
    let refused = [
        cloudmap.create_namespace(&permit, &new_namespace(None, &tags)).await.err(),
        cloudmap.create_namespace(&permit, &new_namespace(Some("vpc-1"), &tags)).await.err(),
        cloudmap.delete_namespace(&permit, "ns-1").await.err(),
        cloudmap.create_service(&permit, &web, Lane::Instances).await.err(),
        cloudmap.update_service(&permit, "srv-1", &change).await.err(),
        cloudmap.delete_service(&permit, "srv-1").await.err(),
        cloudmap.register_instance(&permit, "srv-1", &instance(), Lane::Instances).await.err(),
        cloudmap.deregister_instance(&permit, "srv-1", "pod-1", Lane::Instances).await.err(),
        cloudmap.set_custom_health(&permit, "srv-1", "pod-1", true).await.err(),
        cloudmap.tag(&permit, "arn", &tags).await.err(),
    ];
    assert!(refused.iter().flatten().all(|error| error.kind == ErrorKind::NoPermit), "{refused:?}");
    let writes = Operation::ALL.iter().filter(|operation| operation.access() == Access::Write);
    assert!(writes.map(|write| write.name()).eq(refused.iter().flatten().map(|error| error.operation)), "each of them");
    assert_eq!(sent(), attempts);
}

/// Sends nothing, and records where it would have been sent.
#[derive(Debug, Clone, Default)]
struct Sent(Arc<Mutex<Vec<String>>>);

impl HttpConnector for Sent {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        self.0.lock().unwrap().push(request.uri().to_owned());
        HttpConnectorFuture::ready(Err(ConnectorError::io("not sent".into())))
    }
}

#[tokio::test]
async fn the_host_prefix_stays_without_our_own_flag() {
    let sent = Sent::default();
    let connector = sent.clone();
    let client = http_client_fn(move |_, _| SharedHttpConnector::new(connector.clone()));
    let sdk = sdk().to_builder().endpoint_url("https://vpce-1.example").http_client(client).build();
    let limits = Limits::new(&Rates::default(), None);
    let cloudmap = AwsCloudMap::configured(&sdk, &AwsSettings::default(), limits).await.unwrap();
    cloudmap.discover_instances(HttpName::own("shop"), "web", &BTreeMap::new(), Lane::Ledger).await.unwrap_err();
    cloudmap.list_namespaces(Lane::Instances).await.unwrap_err();
    assert_eq!(*sent.0.lock().unwrap(), ["https://data-vpce-1.example/", "https://vpce-1.example/"]);
}

/// Where nobody listens, for as long as the socket is kept: another test could get the port, and answer.
fn nobody() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    (socket, url)
}

#[tokio::test]
async fn without_a_listener_nothing_is_sent() {
    let (_kept, url) = nobody();
    let error =
        cloudmap(&url).await.register_instance(&permit(), "srv-1", &instance(), Lane::Ledger).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Other);
    assert!(error.message.contains("nothing was sent"), "{error}");
}

#[tokio::test]
async fn a_broken_connection_leaves_the_outcome_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 64];
            let _ = tokio::io::AsyncReadExt::read(&mut connection, &mut request).await;
        }
    });
    let error =
        cloudmap(&url).await.register_instance(&permit(), "srv-1", &instance(), Lane::Ledger).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
}

#[tokio::test]
async fn a_silent_server_meets_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let sdk = sdk().to_builder().build();
    let settings = AwsSettings { endpoint: Some(url), ..AwsSettings::default() };
    let cloudmap = AwsCloudMap::configured(&sdk, &settings, Limits::new(&Rates::default(), None)).await.unwrap();
    let error = cloudmap.register_instance(&permit(), "srv-1", &instance(), Lane::Ledger).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
    drop(listener);
}

#[tokio::test]
async fn missing_credentials_are_reported_as_such() {
    let (_, server) = answering(200, &json!({})).await;
    let sdk = SdkConfig::builder().behavior_version(BehaviorVersion::latest()).region(Region::new("eu-west-1")).build();
    let settings = AwsSettings { endpoint: Some(server.url.clone()), ..AwsSettings::default() };
    let cloudmap = AwsCloudMap::configured(&sdk, &settings, Limits::new(&Rates::default(), None)).await.unwrap();
    let error = cloudmap.list_namespaces(Lane::Instances).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::AccessDenied, "{error}");
    assert!(server.requests.lock().unwrap().is_empty());
}

/// How a call fails that needs credentials from this STS.
async fn without_credentials(sts: &str, settings: AwsSettings) -> Error {
    let loaded = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("base", "base", None, None, "test"))
        .retry_config(retries(0))
        .endpoint_url(sts)
        .load()
        .await;
    let role = Some("arn:aws:iam::123456789012:role/registry".to_owned());
    let settings = AwsSettings { assume_role_arn: role, ..settings };
    let cloudmap = AwsCloudMap::configured(&loaded, &settings, Limits::new(&Rates::default(), None)).await.unwrap();
    cloudmap.list_namespaces(Lane::Instances).await.unwrap_err()
}

/// Nothing is wrong with Cloud Map then, nor with the role, and its giver may answer at any moment.
#[tokio::test]
async fn credentials_that_nobody_gives_are_not_mistaken_for_an_endpoint_that_does_not_answer() {
    let (_kept, closed) = nobody();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    let (_, registry) = answering(200, &json!({"Namespaces": []})).await;
    for sts in [closed, silent] {
        let settings = AwsSettings { endpoint: Some(registry.url.clone()), ..AwsSettings::default() };
        let error = without_credentials(&sts, settings).await;
        assert_eq!(error.kind, ErrorKind::NoCredentials, "{error}");
        assert!(error.message.starts_with("cannot get AWS credentials: "), "{error}");
    }
    assert!(registry.requests.lock().unwrap().is_empty());
    drop(listener);
}

/// The writes of a target stop for a minute after a denial, and its users are told at once.
#[tokio::test]
async fn credentials_that_sts_fails_to_give_are_not_mistaken_for_denied_ones() {
    let (_, registry) = answering(200, &json!({"Namespaces": []})).await;
    for (status, code, kind) in [
        (400, "Throttling", ErrorKind::NoCredentials),
        (400, "IDPCommunicationError", ErrorKind::NoCredentials),
        (500, "InternalFailure", ErrorKind::NoCredentials),
        (503, "ServiceUnavailable", ErrorKind::NoCredentials),
        (403, "AccessDenied", ErrorKind::AccessDenied),
    ] {
        let said = format!("<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>");
        let sts = serve(vec![(status, said)]).await;
        let error = without_credentials(&sts.url, settings(&registry.url)).await;
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.starts_with("cannot get AWS credentials: "), "{error}");
    }
}

#[tokio::test]
async fn refuses_settings_that_cannot_work() {
    let connect = async |sdk: SdkConfig, settings: AwsSettings| {
        AwsCloudMap::configured(&sdk, &settings, Limits::new(&Rates::default(), None)).await.unwrap_err()
    };
    for endpoint in ["127.0.0.1:5000", "http://", "http://a b", "ftp://x"] {
        let settings = AwsSettings { endpoint: Some(endpoint.to_owned()), ..AwsSettings::default() };
        assert_eq!(connect(sdk(), settings).await, ConnectError::InvalidEndpoint(endpoint.to_owned()));
    }
    let settings = AwsSettings { external_id: Some("x".to_owned()), ..AwsSettings::default() };
    assert_eq!(connect(sdk(), settings).await, ConnectError::ExternalIdWithoutRole);
    let here = AwsCloudMap::configured(&sdk(), &AwsSettings::default(), Limits::new(&Rates::default(), None)).await;
    assert_eq!(here.unwrap().region().as_deref(), Some("eu-west-1"), "for the attribute REGION");
    let nowhere = SdkConfig::builder().behavior_version(BehaviorVersion::latest()).build();
    assert_eq!(connect(nowhere, AwsSettings::default()).await, ConnectError::NoRegion);
}

#[tokio::test]
async fn assumes_a_role_over_the_same_stack() {
    let sts = serve(vec![(
        200,
        "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><Credentials>\
         <AccessKeyId>ASSUMED</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>\
         <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
            .to_owned(),
    )])
    .await;
    let (_, registry) = answering(200, &json!({"Namespaces": []})).await;
    // The default chain provides client, clock and sleep as in the product. Only the credentials are the test's.
    let loaded = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new("eu-west-1"))
        .credentials_provider(Credentials::new("base", "base", None, None, "test"))
        .endpoint_url(&sts.url)
        .load()
        .await;
    let settings = AwsSettings {
        assume_role_arn: Some("arn:aws:iam::123456789012:role/registry".to_owned()),
        external_id: Some("shared-secret".to_owned()),
        ..settings(&registry.url)
    };
    let cloudmap = AwsCloudMap::configured(&loaded, &settings, Limits::new(&Rates::default(), None)).await.unwrap();
    cloudmap.list_namespaces(Lane::Instances).await.unwrap();
    let asked = sts.requests.lock().unwrap()[0].body.clone();
    assert!(asked.contains("Action=AssumeRole") && asked.contains("ExternalId=shared-secret"), "{asked}");
    let signed = registry.requests.lock().unwrap()[0].authorization.clone();
    assert!(signed.contains("Credential=ASSUMED/"), "{signed}");
}
