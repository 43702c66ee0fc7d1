//! `AssumeRole` of STS, and calls with the keys that it gives.

use std::time::Duration;

use aws_sdk_servicediscovery::Client;
use aws_sdk_servicediscovery::config::{Credentials, Region};
use aws_sdk_sts::config::BehaviorVersion;
use aws_sdk_sts::config::retry::RetryConfig;
use aws_sdk_sts::error::SdkError;
use aws_sdk_sts::operation::assume_role::AssumeRoleError;
use aws_sdk_sts::operation::assume_role::builders::AssumeRoleFluentBuilder;
use cloudmap_emulator::{ASSUME_ROLE, AccessKey, Accounts, Effect, Emulator, EmulatorSettings, Fault, Role};

use super::accounts::names;
use super::{code, create_http_namespace};

pub(crate) const ROLE: &str = "arn:aws:iam::222222222222:role/path/registry";

pub(crate) fn sts(emulator: &Emulator, credentials: Credentials) -> aws_sdk_sts::Client {
    let config = aws_sdk_sts::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(aws_sdk_sts::config::Region::new("us-east-1"))
        .credentials_provider(credentials)
        .retry_config(RetryConfig::disabled())
        .endpoint_url(emulator.endpoint());
    aws_sdk_sts::Client::from_conf(config.build())
}

pub(crate) fn key(id: &str) -> Credentials {
    Credentials::new(id, "dummy", None, None, "test")
}

/// Takes the role and gives its keys.
pub(crate) async fn keys(request: AssumeRoleFluentBuilder) -> Credentials {
    let given = request.send().await.unwrap().credentials.unwrap();
    let token = given.session_token().to_owned();
    Credentials::new(given.access_key_id(), given.secret_access_key(), Some(token), None, "test")
}

/// A client of the registry with these keys.
pub(crate) fn registry(emulator: &Emulator, credentials: Credentials, region: &str) -> Client {
    let config = emulator.sdk_config("").to_builder().credentials_provider(credentials);
    Client::from_conf(config.region(Region::new(region.to_owned())).build())
}

fn refused<T: std::fmt::Debug>(answer: Result<T, SdkError<AssumeRoleError>>) -> (u16, String, String) {
    use aws_sdk_sts::error::ProvideErrorMetadata;
    let error = answer.expect_err("the call was to be refused");
    let status = error.raw_response().unwrap().status().as_u16();
    let service = error.as_service_error().unwrap();
    (status, service.code().unwrap().to_owned(), service.message().unwrap().to_owned())
}

async fn start(role: Role) -> Emulator {
    let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
    let accounts = Accounts::default().with_key("KEY", AccessKey::of("111111111111")).with_role(ROLE, role);
    emulator.control().set_accounts(accounts);
    emulator
}

#[tokio::test]
async fn a_role_gives_keys_of_its_account() {
    let emulator = start(Role::default().trusting("111111111111")).await;
    let request = sts(&emulator, key("KEY")).assume_role().role_arn(ROLE).role_session_name("controller");
    let answer = request.clone().send().await.unwrap();
    let user = answer.assumed_role_user().unwrap();
    assert_eq!(user.arn(), "arn:aws:sts::222222222222:assumed-role/registry/controller");
    assert!(user.assumed_role_id().starts_with("AROA") && user.assumed_role_id().ends_with(":controller"));
    let given = answer.credentials().unwrap();
    assert!(given.access_key_id().starts_with("ASIA"), "{given:?}");
    // "DurationSeconds: [...] By default, the value is set to 3600 seconds."
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((given.expiration().as_secs_f64() - now - 3600.0).abs() < 60.0, "{given:?}");

    let registry = registry(&emulator, keys(request).await, "us-east-1");
    create_http_namespace(&registry, "apps").await;
    let found = registry.list_namespaces().send().await.unwrap();
    assert_eq!(found.namespaces()[0].resource_owner(), Some("222222222222"));
    assert!(names(&emulator.client("KEY")).await.is_empty());
    assert_eq!(emulator.control().counters().calls_by("KEY", ASSUME_ROLE), 2);
}

#[tokio::test]
async fn keys_that_have_expired_are_refused() {
    let emulator = start(Role::default()).await;
    let mut accounts = emulator.control().accounts();
    accounts.longest_session = Duration::from_secs(20);
    emulator.control().set_accounts(accounts);
    let request = sts(&emulator, key("KEY")).assume_role().role_arn(ROLE).role_session_name("controller");
    let given = keys(request).await;
    let client = registry(&emulator, given.clone(), "us-east-1");
    names(&client).await;
    emulator.control().skip_time(Duration::from_secs(20));
    let error = client.list_namespaces().send().await.unwrap_err();
    assert_eq!(error.raw_response().unwrap().status().as_u16(), 400);
    let text = std::str::from_utf8(error.raw_response().unwrap().body().bytes().unwrap()).unwrap();
    assert!(text.contains("The security token included in the request is expired"), "{text}");
    assert_eq!(code(client.list_namespaces().send().await), "ExpiredTokenException");
    // A write has no effect either, and STS itself takes such keys no more.
    assert_eq!(code(client.create_http_namespace().name("apps").send().await), "ExpiredTokenException");
    let again = sts(&emulator, given).assume_role().role_arn(ROLE).role_session_name("controller");
    assert_eq!(refused(again.send().await).1, "ExpiredToken");
}

#[tokio::test]
async fn keys_that_sts_did_not_give_are_refused() {
    let emulator = start(Role::default()).await;
    let request = sts(&emulator, key("KEY")).assume_role().role_arn(ROLE).role_session_name("controller");
    let given = keys(request).await;
    let id = given.access_key_id();
    for (id, token) in [(id, Some("forged")), (id, None), ("ASIAUNKNOWN", given.session_token())] {
        let forged = Credentials::new(id, "dummy", token.map(str::to_owned), None, "test");
        let client = registry(&emulator, forged, "us-east-1");
        assert_eq!(code(client.list_namespaces().send().await), "UnrecognizedClientException", "{id} {token:?}");
    }
    // So are those of a role that is gone.
    emulator.control().set_accounts(Accounts::default().with_key("KEY", AccessKey::of("111111111111")));
    let client = registry(&emulator, given, "us-east-1");
    assert_eq!(code(client.list_namespaces().send().await), "UnrecognizedClientException");
}

#[tokio::test]
async fn a_role_lets_in_whom_it_trusts_and_who_knows_its_external_id() {
    let emulator = start(Role::default().trusting("111111111111").external_id("secret")).await;
    let assume = |caller: &str, role: &str, external: Option<&str>| {
        let request = sts(&emulator, key(caller)).assume_role().role_arn(role).role_session_name("controller");
        request.set_external_id(external.map(str::to_owned)).send()
    };
    assume("KEY", ROLE, Some("secret")).await.unwrap();
    let other = "arn:aws:iam::222222222222:role/other";
    for (caller, role, external) in [
        ("KEY", ROLE, Some("wrong")),
        ("KEY", ROLE, None),
        ("KEY", other, Some("secret")),
        ("unnamed", ROLE, Some("secret")),
    ] {
        let (status, code, message) = refused(assume(caller, role, external).await);
        assert_eq!((status, code.as_str()), (403, "AccessDenied"), "{caller} {role} {external:?}");
        assert!(message.ends_with(&format!(" is not authorized to perform: sts:AssumeRole on resource: {role}")));
    }
}

#[tokio::test]
async fn the_duration_of_a_session_has_bounds() {
    let emulator = start(Role { max_session_seconds: 7200, ..Role::default() }).await;
    let assume = |credentials, seconds: i32| {
        let request = sts(&emulator, credentials).assume_role().role_arn(ROLE).role_session_name("controller");
        request.duration_seconds(seconds)
    };
    for (seconds, good) in [(899, false), (900, true), (7200, true), (7201, false), (43_201, false)] {
        let answer = assume(key("KEY"), seconds).send().await;
        assert_eq!(answer.is_ok(), good, "{seconds}");
        if !good {
            assert_eq!(refused(answer).1, "ValidationError", "{seconds}");
        }
    }
    // "Role chaining limits your [...] role session to a maximum of one hour."
    let given = keys(assume(key("KEY"), 7200)).await;
    assert_eq!(refused(assume(given.clone(), 7200).send().await).1, "ValidationError");
    assume(given, 3600).send().await.unwrap();
}

#[tokio::test]
async fn fault_rules_hit_sts_only_where_they_name_it() {
    let emulator = start(Role::default()).await;
    let request = sts(&emulator, key("KEY")).assume_role().role_arn(ROLE).role_session_name("controller");
    let down = |code: &str| Effect::Error { code: code.into(), message: String::new(), status: Some(503) };
    emulator.control().add_fault(Fault::on_any(down("ServiceUnavailable")));
    request.clone().send().await.unwrap();
    emulator.control().add_fault(Fault::on(ASSUME_ROLE, down("ServiceUnavailable")).for_service("registry").times(1));
    assert_eq!(refused(request.clone().send().await).0, 503);
    request.send().await.unwrap();
    assert_eq!(emulator.control().counters().errors(ASSUME_ROLE, "ServiceUnavailable"), 1);
}
