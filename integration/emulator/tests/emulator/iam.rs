//! IAM: identity-based policies on calls of Cloud Map. Resources and condition keys of each action are those of the service
//! authorization reference.

use aws_sdk_servicediscovery::Client;
use aws_sdk_servicediscovery::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_servicediscovery::types::{HealthCheckCustomConfig, ServiceFilter, ServiceFilterName, Tag};
use cloudmap_emulator::{AccessKey, Accounts, Policy, Role};
use serde_json::{Value, json};

use super::control::{http, raw};
use super::sts::{ROLE, key, keys, registry, sts};
use super::{Fixture, code, create_service};

const ACCOUNT: &str = "123456789012";

fn policy(statements: &Value) -> Policy {
    let document = json!({ "Version": "2012-10-17", "Statement": statements });
    Policy::parse(&document.to_string()).unwrap()
}

/// A statement that allows actions.
fn allow(actions: &[&str], resource: &str, condition: &Value) -> Value {
    let actions: Vec<_> = actions.iter().map(|action| format!("servicediscovery:{action}")).collect();
    json!({ "Effect": "Allow", "Action": actions, "Resource": resource, "Condition": condition })
}

fn arn(what: &str) -> String {
    format!("arn:aws:servicediscovery:us-east-1:{ACCOUNT}:{what}")
}

fn tag(key: &str, value: &str) -> Tag {
    Tag::builder().key(key).value(value).build().unwrap()
}

impl Fixture {
    /// A client of the same account that may only do what these statements say.
    fn limited(&self, statements: &Value) -> Client {
        let user = AccessKey::of(ACCOUNT).arn(&format!("arn:aws:iam::{ACCOUNT}:user/limited"));
        let accounts = Accounts::default().with_key("limited", user.policy(policy(statements)));
        self.emulator.control().set_accounts(accounts);
        self.emulator.client("limited")
    }
}

const DENIED: &str = "AccessDeniedException";

/// The message of a denial.
fn denial<T: std::fmt::Debug, E: ProvideErrorMetadata>(answer: Result<T, SdkError<E>>) -> String {
    let SdkError::ServiceError(error) = answer.expect_err("the call was to be denied") else {
        panic!("the call got no answer")
    };
    assert_eq!(error.err().code(), Some(DENIED));
    error.err().message().unwrap().to_owned()
}

#[tokio::test]
async fn what_no_policy_allows_is_denied_in_the_words_of_aws() {
    let f = Fixture::start().await;
    let client = f.limited(&json!([allow(&["GetService"], "*", &json!({}))]));
    client.get_service().id(&f.service).send().await.unwrap();
    let register = client.register_instance().service_id(&f.service).instance_id("a").attributes("k", "1");
    assert_eq!(
        denial(register.clone().send().await),
        format!(
            "User: arn:aws:iam::{ACCOUNT}:user/limited is not authorized to perform: servicediscovery:RegisterInstance on \
             resource: {} because no identity-based policy allows the servicediscovery:RegisterInstance action",
            arn(&format!("service/{}", f.service))
        )
    );
    assert!(denial(client.list_services().send().await).contains(" on resource: * because "));
    assert!(f.discover().await.is_empty());
    // Denials count as errors, and are in the log of writes.
    let control = f.emulator.control();
    assert_eq!(control.counters().errors("RegisterInstance", DENIED), 1);
    assert_eq!(control.writes().last().unwrap().result, DENIED);
    // Who has no policy may do everything.
    f.register("a", "1").await;
}

#[tokio::test]
async fn the_tags_of_a_service_decide_who_writes_in_it() {
    let f = Fixture::start().await;
    let own = json!({ "StringEquals": { "aws:ResourceTag/owner": "me" } });
    let write = allow(&["RegisterInstance", "DeleteService"], &arn("service/*"), &own);
    let client = f.limited(&json!([write]));
    let register = || client.register_instance().service_id(&f.service).instance_id("a").attributes("k", "1").send();
    assert_eq!(code(register().await), DENIED);
    let service = arn(&format!("service/{}", f.service));
    f.client.tag_resource().resource_arn(&service).tags(tag("owner", "other")).send().await.unwrap();
    assert_eq!(code(register().await), DENIED);
    f.client.tag_resource().resource_arn(&service).tags(tag("owner", "me")).send().await.unwrap();
    register().await.unwrap();
    // The ARN is as good as the id.
    let by_arn = client.register_instance().service_id(&service).instance_id("b").attributes("k", "1");
    by_arn.send().await.unwrap();
    // What does not exist has no tags.
    assert_eq!(code(client.delete_service().id("srv-none").send().await), DENIED);
    assert_eq!(code(client.delete_service().id(&f.service).send().await), "ResourceInUse");
}

#[tokio::test]
async fn creation_needs_the_namespace_the_service_and_its_tags() {
    let f = Fixture::start().await;
    let namespace = arn(&format!("namespace/{}", f.namespace));
    let create = |client: &Client, tags: &[(&str, &str)]| {
        let tags = tags.iter().map(|(key, value)| tag(key, value)).collect();
        let request = client.create_service().namespace_id(&f.namespace).name(format!("s{}", rand_name()));
        request.set_tags(Some(tags)).send()
    };
    // Whoever has only one of the two resources has nothing.
    for resources in [json!([namespace]), json!([arn("service/*")])] {
        let mut statement = allow(&["CreateService"], "*", &json!({}));
        statement["Resource"] = resources;
        assert_eq!(code(create(&f.limited(&json!([statement])), &[]).await), DENIED);
    }
    let mut statement = allow(&["CreateService"], "*", &json!({}));
    statement["Resource"] = json!([namespace, arn("service/*")]);
    let client = f.limited(&json!([statement]));
    create(&client, &[]).await.unwrap();
    // Tags are another action.
    let message = denial(create(&client, &[("owner", "me")]).await);
    assert!(message.contains("servicediscovery:TagResource on resource: *"), "{message}");
    let mine = json!({
        "StringEquals": { "aws:RequestTag/owner": "me" },
        "ForAllValues:StringEquals": { "aws:TagKeys": ["owner", "stage"] },
    });
    let client = f.limited(&json!([allow(&["CreateService", "TagResource"], "*", &mine)]));
    create(&client, &[("owner", "me"), ("stage", "test")]).await.unwrap();
    for tags in [&[("owner", "other")][..], &[], &[("owner", "me"), ("more", "1")]] {
        assert_eq!(code(create(&client, tags).await), DENIED, "{tags:?}");
    }
    // servicediscovery:NamespaceArn is the namespace of the request.
    for (wanted, allowed) in [(namespace, true), (arn("namespace/ns-other"), false)] {
        let there = json!({ "ArnEquals": { "servicediscovery:NamespaceArn": wanted } });
        let client = f.limited(&json!([allow(&["CreateService"], "*", &there)]));
        assert_eq!(create(&client, &[]).await.is_ok(), allowed);
    }
}

/// Another name at each call.
fn rand_name() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[tokio::test]
async fn discovery_is_limited_by_names_and_by_resources() {
    let f = Fixture::start().await;
    let discover = |client: &Client, namespace: &str, service: &str| {
        client.discover_instances().namespace_name(namespace).service_name(service).send()
    };
    let named = json!({ "StringLike": { "servicediscovery:NamespaceName": "app*" } });
    let client = f.limited(&json!([allow(&["DiscoverInstances"], "*", &named)]));
    discover(&client, "apps", "web").await.unwrap();
    assert_eq!(code(discover(&client, "apps", "none").await), "ServiceNotFound");
    assert_eq!(code(discover(&client, "other", "web").await), DENIED);
    let named = json!({ "StringEquals": { "servicediscovery:ServiceName": "web" } });
    let client = f.limited(&json!([allow(&["DiscoverInstances"], "*", &named)]));
    discover(&client, "apps", "web").await.unwrap();
    assert_eq!(code(discover(&client, "apps", "none").await), DENIED);
    let revision = client.discover_instances_revision().namespace_name("apps").service_name("web");
    assert_eq!(code(revision.send().await), DENIED);
    // The reference requires both resources.
    let both = [arn(&format!("namespace/{}", f.namespace)), arn(&format!("service/{}", f.service))];
    for (resources, allowed) in [(&both[..1], false), (&both[1..], false), (&both[..], true)] {
        let mut statement = allow(&["DiscoverInstances"], "*", &json!({}));
        statement["Resource"] = json!(resources);
        let client = f.limited(&json!([statement]));
        assert_eq!(discover(&client, "apps", "web").await.is_ok(), allowed, "{resources:?}");
        assert_eq!(code(discover(&client, "apps", "none").await), DENIED);
    }
}

#[tokio::test]
async fn a_denial_by_tag_holds_whatever_else_is_allowed() {
    let f = Fixture::start().await;
    let other = create_service(&f.client, &f.namespace, "other").await;
    let ledger = arn(&format!("service/{other}"));
    f.client.tag_resource().resource_arn(&ledger).tags(tag("ledger", "x")).send().await.unwrap();
    let client = f.limited(&json!([
        { "Effect": "Allow", "Action": "servicediscovery:*", "Resource": "*" },
        { "Effect": "Deny", "Action": "servicediscovery:RegisterInstance", "Resource": arn("service/*"),
          "Condition": { "Null": { "aws:ResourceTag/ledger": "false" },
                         "StringNotEquals": { "aws:ResourceTag/ledger": "mine" } } },
        { "Effect": "Deny", "Action": ["servicediscovery:TagResource", "servicediscovery:UntagResource"], "Resource": "*",
          "Condition": { "ForAnyValue:StringEquals": { "aws:TagKeys": "ledger" } } },
    ]));
    let register = |service: &str| client.register_instance().service_id(service).instance_id("a").attributes("k", "1");
    register(&f.service).send().await.unwrap();
    let message = denial(register(&other).send().await);
    assert!(message.ends_with("with an explicit deny in an identity-based policy"), "{message}");
    client.tag_resource().resource_arn(&ledger).tags(tag("free", "1")).send().await.unwrap();
    assert_eq!(code(client.tag_resource().resource_arn(&ledger).tags(tag("ledger", "mine")).send().await), DENIED);
    assert_eq!(code(client.untag_resource().resource_arn(&ledger).tag_keys("ledger").send().await), DENIED);
    client.untag_resource().resource_arn(&ledger).tag_keys("free").send().await.unwrap();
}

#[tokio::test]
async fn condition_keys_exist_for_the_actions_of_the_reference_only() {
    let f = Fixture::start().await;
    let checked = f.client.create_service().namespace_id(&f.namespace).name("checked");
    let checked = checked.health_check_custom_config(HealthCheckCustomConfig::builder().build());
    checked.send().await.unwrap();
    let service = json!({ "ArnEquals": { "servicediscovery:ServiceArn": arn(&format!("service/{}", f.service)) } });
    let client = f.limited(&json!([allow(&["ListInstances", "GetService"], "*", &service)]));
    client.list_instances().service_id(&f.service).send().await.unwrap();
    assert_eq!(code(client.get_service().id(&f.service).send().await), DENIED);
    let creator = json!({ "StringEquals": { "servicediscovery:ServiceCreatedByAccount": ACCOUNT } });
    let client = f.limited(&json!([allow(&["DeleteService", "GetInstance"], "*", &creator)]));
    assert_eq!(code(client.get_instance().service_id(&f.service).instance_id("a").send().await), DENIED);
    client.delete_service().id(&f.service).send().await.unwrap();
    // Listing takes neither a resource nor a condition of Cloud Map's.
    let client = f.limited(&json!([allow(&["ListServices"], &arn("service/*"), &json!({}))]));
    assert_eq!(code(client.list_services().send().await), DENIED);
    let filter = ServiceFilter::builder().name(ServiceFilterName::NamespaceId).values(&f.namespace).build().unwrap();
    let client = f.limited(&json!([allow(&["ListServices"], "*", &json!({}))]));
    client.list_services().filters(filter).send().await.unwrap();
}

#[tokio::test]
async fn an_operation_belongs_to_its_namespace_and_service() {
    let f = Fixture::start().await;
    let register = f.client.register_instance().service_id(&f.service).instance_id("a").attributes("k", "1");
    let operation = register.send().await.unwrap().operation_id.unwrap();
    let both = [arn(&format!("namespace/{}", f.namespace)), arn(&format!("service/{}", f.service))];
    for (resources, allowed) in [(&both[..1], false), (&both[..], true)] {
        let mut statement = allow(&["GetOperation"], "*", &json!({}));
        statement["Resource"] = json!(resources);
        let client = f.limited(&json!([statement]));
        let get = |id: &str| client.get_operation().operation_id(id).send();
        assert_eq!(get(&operation).await.is_ok(), allowed);
        assert_eq!(code(get("none").await), DENIED);
    }
}

#[tokio::test]
async fn a_role_has_policies_of_its_own_and_needs_one_to_be_taken() {
    let f = Fixture::start().await;
    let namespaces = Role::default().policy(policy(&json!([allow(&["ListNamespaces"], "*", &json!({}))])));
    let take = |resource: &str| json!([{ "Effect": "Allow", "Action": ["sts:AssumeRole", "sts:TagSession"], "Resource": resource }]);
    let accounts = Accounts::default()
        .with_role(ROLE, namespaces)
        .with_key("may", AccessKey::of(ACCOUNT).policy(policy(&take(ROLE))))
        .with_key("mayOther", AccessKey::of(ACCOUNT).policy(policy(&take("arn:aws:iam::222222222222:role/other"))));
    f.emulator.control().set_accounts(accounts);
    let assume = |caller| sts(&f.emulator, key(caller)).assume_role().role_arn(ROLE).role_session_name("controller");
    let client = registry(&f.emulator, keys(assume("may")).await, "us-east-1");
    client.list_namespaces().send().await.unwrap();
    let message = denial(client.list_operations().send().await);
    assert!(message.contains("User: arn:aws:sts::222222222222:assumed-role/registry/controller is not"), "{message}");
    // Its own account has nothing of the role's permissions.
    assert_eq!(code(f.emulator.client("may").list_namespaces().send().await), DENIED);
    let error = assume("mayOther").send().await.unwrap_err().into_service_error();
    assert_eq!(error.code(), Some("AccessDenied"));
    assert!(error.message().unwrap().ends_with("no identity-based policy allows the sts:AssumeRole action"));
}

#[tokio::test]
async fn members_that_an_operation_does_not_have_allow_nothing() {
    let f = Fixture::start().await;
    let other = create_service(&f.client, &f.namespace, "other").await;
    f.limited(&json!([allow(&["GetService"], &arn(&format!("service/{}", f.service)), &json!({}))]));
    let get = async |body: Value| {
        let headers = "X-Amz-Target: Route53AutoNaming_v20170314.GetService\r\nAuthorization: AWS4-HMAC-SHA256 \
                       Credential=limited/20300101/us-east-1/servicediscovery/aws4_request, Signature=00\r\n";
        raw(&f.emulator.endpoint(), "POST", "/", headers, &body.to_string()).await.0
    };
    assert_eq!(get(json!({ "Id": f.service })).await, 200);
    assert_eq!(get(json!({ "Id": other })).await, 400);
    assert_eq!(get(json!({ "Id": other, "ServiceId": f.service })).await, 400);
    assert_eq!(get(json!({ "Id": f.service, "ServiceId": other, "Tags": 1 })).await, 200);
}

#[tokio::test]
async fn accounts_are_set_over_http_and_mistakes_are_named() {
    let f = Fixture::start().await;
    let endpoint = f.emulator.endpoint();
    let document = json!({ "Version": "2012-10-17", "Statement": allow(&["GetService"], "*", &json!({})) });
    let accounts = json!({ "keys": { "KEY": { "account": ACCOUNT, "policies": [document] } } });
    let (status, answer) = http(&endpoint, "PUT", "accounts", &accounts).await;
    assert_eq!((status, &answer["keys"]["KEY"]["policies"][0]), (200, &document));
    assert_eq!(http(&endpoint, "GET", "accounts", &Value::Null).await, (200, answer.clone()));
    let client = f.emulator.client("KEY");
    client.get_service().id(&f.service).send().await.unwrap();
    assert_eq!(code(client.list_services().send().await), DENIED);
    for (wrong, expected) in [
        (json!({ "keys": { "KEY": { "account": "1" } } }), "twelve digits"),
        (json!({ "keys": { "KEY": { "account": ACCOUNT, "policies": [{ "Version": "1" }] } } }), "Version"),
        (json!({ "roles": { "registry": {} } }), "give an ARN"),
        (json!({ "users": {} }), "users"),
    ] {
        let (status, answer) = http(&endpoint, "PUT", "accounts", &wrong).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(answer["error"].as_str().unwrap().contains(expected), "{answer}");
    }
    assert_eq!(http(&endpoint, "GET", "accounts", &Value::Null).await.1, answer);
    let there = format!("registries/{ACCOUNT}/us-east-1/counters");
    assert!(http(&endpoint, "GET", &there, &Value::Null).await.1["operations"]["GetService"]["ok"].as_u64() >= Some(1));
    assert_eq!(http(&endpoint, "GET", "registries/1/us-east-1/counters", &Value::Null).await.0, 400);
}
