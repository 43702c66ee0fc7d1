//! Namespaces that one account shares with another.

use aws_sdk_servicediscovery::Client;
use aws_sdk_servicediscovery::error::ProvideErrorMetadata;
use aws_sdk_servicediscovery::types::{
    CustomHealthStatus, HealthCheckCustomConfig, HttpNamespaceChange, NamespaceFilter, NamespaceFilterName,
    ServiceChange, ServiceFilter, ServiceFilterName, Tag,
};
use cloudmap_emulator::{AccessKey, Accounts, Emulator, EmulatorSettings, Policy, Share};
use serde_json::{Value, json};

use super::control::http;
use super::{code, create_http_namespace, create_service};

const OWNER: &str = "111111111111";
const CONSUMER: &str = "222222222222";
const DENIED: &str = "AccessDeniedException";

/// An owner with a namespace `apps` and a service `web` in it, and the account that it is to be shared with.
struct Sharing {
    emulator: Emulator,
    owner: Client,
    consumer: Client,
    /// ARNs.
    namespace: String,
    web: String,
}

fn accounts() -> Accounts {
    Accounts::default().with_key("OWNER", AccessKey::of(OWNER)).with_key("CONSUMER", AccessKey::of(CONSUMER))
}

impl Sharing {
    async fn start() -> Self {
        let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
        emulator.control().set_accounts(accounts());
        let [owner, consumer] = ["OWNER", "CONSUMER"].map(|key| emulator.client(key));
        let id = create_http_namespace(&owner, "apps").await;
        let namespace = owner.get_namespace().id(&id).send().await.unwrap().namespace.unwrap().arn.unwrap();
        let web = create_service(&owner, &id, "web").await;
        let web = owner.get_service().id(&web).send().await.unwrap().service.unwrap().arn.unwrap();
        Self { emulator, owner, consumer, namespace, web }
    }

    fn share(&self) -> u64 {
        self.emulator.control().share(Share::new(&self.namespace, CONSUMER).accepted())
    }

    async fn register(&self, client: &Client, service: &str, instance: &str) -> String {
        let request = client.register_instance().service_id(service).instance_id(instance).attributes("k", "1");
        request.send().await.unwrap().operation_id.unwrap()
    }

    async fn discover(&self, owner: Option<&str>) -> Result<usize, String> {
        let request = self.consumer.discover_instances().namespace_name("apps").service_name("web");
        let answer = request.set_owner_account(owner.map(str::to_owned)).send().await;
        answer.map(|found| found.instances().len()).map_err(|error| error.code().unwrap().to_owned())
    }
}

#[tokio::test]
async fn a_share_counts_once_it_is_accepted_and_until_it_is_revoked() {
    // "Otherwise, consumers receive an invitation to join the resource share and are granted access to the shared namespace
    // after accepting the invitation." "When a namespace is no longer shared, the namespace and any services and instances
    // associated with it can no longer be accessed by consumer AWS accounts."
    let s = Sharing::start().await;
    let control = s.emulator.control();
    let get = || s.consumer.get_namespace().id(&s.namespace).send();
    let denied = async || {
        let error = get().await.unwrap_err();
        assert_eq!(error.code(), Some(DENIED));
        let expected = format!(
            "User: arn:aws:iam::{CONSUMER}:user/CONSUMER is not authorized to perform: servicediscovery:GetNamespace on \
             resource: {} because no resource-based policy allows the servicediscovery:GetNamespace action",
            s.namespace
        );
        assert_eq!(error.message(), Some(expected.as_str()));
        assert_eq!(code(s.consumer.get_service().id(&s.web).send().await), DENIED);
        assert_eq!(s.discover(Some(OWNER)).await, Err("NamespaceNotFound".to_owned()));
        assert!(s.consumer.list_namespaces().send().await.unwrap().namespaces().is_empty());
    };
    denied().await;
    let id = control.share(Share::new(&s.namespace, CONSUMER));
    denied().await;
    assert!(control.accept_share(id) && control.shares()[0].1.accepted);
    assert_eq!(get().await.unwrap().namespace.unwrap().resource_owner(), Some(OWNER));
    s.register(&s.consumer, &s.web, "a").await;
    assert_eq!(s.discover(Some(OWNER)).await, Ok(1));
    assert!(control.revoke_share(id) && !control.revoke_share(id));
    denied().await;
    let deregister = s.consumer.deregister_instance().service_id(&s.web).instance_id("a");
    assert_eq!(code(deregister.send().await), DENIED);
    // What the consumer made is there still.
    assert_eq!(s.owner.list_instances().service_id(&s.web).send().await.unwrap().instances().len(), 1);
}

#[tokio::test]
async fn consumers_name_what_is_shared_by_arn_and_owner() {
    let s = Sharing::start().await;
    s.share();
    let id = |arn: &str| arn.rsplit_once('/').unwrap().1.to_owned();
    assert_eq!(code(s.consumer.get_namespace().id(id(&s.namespace)).send().await), "NamespaceNotFound");
    assert_eq!(code(s.consumer.get_service().id(id(&s.web)).send().await), "ServiceNotFound");
    let operation = s.register(&s.consumer, &s.web, "a").await;
    assert_eq!(s.discover(None).await, Err("NamespaceNotFound".to_owned()));
    let revision = s.consumer.discover_instances_revision().namespace_name("apps").service_name("web");
    assert_eq!(code(revision.clone().send().await), "NamespaceNotFound");
    revision.owner_account(OWNER).send().await.unwrap();
    let get = s.consumer.get_operation().operation_id(operation);
    assert_eq!(code(get.clone().send().await), "OperationNotFound");
    let found = get.owner_account(OWNER).send().await.unwrap().operation.unwrap();
    assert_eq!(found.owner_account(), Some(OWNER));
    // The owner needs neither.
    let discover = s.owner.discover_instances().namespace_name("apps").service_name("web").send().await.unwrap();
    assert_eq!(discover.instances().len(), 1);
}

#[tokio::test]
async fn what_was_made_says_who_made_it_and_whose_it_is() {
    let s = Sharing::start().await;
    s.share();
    let made = s.consumer.create_service().namespace_id(&s.namespace).name("theirs").send().await.unwrap();
    let made = made.service.unwrap();
    assert_eq!((made.resource_owner(), made.created_by_account()), (Some(OWNER), Some(CONSUMER)));
    assert!(made.arn().unwrap().contains(&format!(":{OWNER}:service/")));
    s.register(&s.owner, made.arn().unwrap(), "a").await;
    s.register(&s.consumer, made.arn().unwrap(), "b").await;
    for client in [&s.owner, &s.consumer] {
        let found = client.list_instances().service_id(made.arn().unwrap()).send().await.unwrap();
        assert_eq!(found.resource_owner(), Some(OWNER));
        let makers: Vec<_> = found.instances().iter().map(|found| found.created_by_account().unwrap()).collect();
        assert_eq!(makers, [OWNER, CONSUMER]);
        let one = client.get_instance().service_id(made.arn().unwrap()).instance_id("b").send().await.unwrap();
        assert_eq!(one.instance.unwrap().created_by_account(), Some(CONSUMER));
    }
}

#[tokio::test]
async fn lists_have_what_is_shared_and_filters_tell_it_apart() {
    let s = Sharing::start().await;
    s.share();
    let own = create_http_namespace(&s.consumer, "apps").await;
    create_service(&s.consumer, &own, "web").await;
    let namespaces = async |client: &Client, owner: Option<&str>| {
        let filter = |owner: &str| {
            let name = NamespaceFilterName::ResourceOwner;
            NamespaceFilter::builder().name(name).values(owner).build().unwrap()
        };
        let mut pages = client.list_namespaces().set_filters(owner.map(|owner| vec![filter(owner)])).max_results(1);
        let mut found = Vec::new();
        loop {
            let page = pages.clone().send().await.unwrap();
            found.extend(page.namespaces().iter().map(|found| found.resource_owner().unwrap().to_owned()));
            let Some(token) = page.next_token else { break found };
            pages = pages.next_token(token);
        }
    };
    assert_eq!(namespaces(&s.consumer, None).await.len(), 2);
    assert_eq!(namespaces(&s.consumer, Some("SELF")).await, [CONSUMER]);
    assert_eq!(namespaces(&s.consumer, Some("OTHER_ACCOUNTS")).await, [OWNER]);
    assert_eq!(namespaces(&s.owner, Some("OTHER_ACCOUNTS")).await, [""; 0]);
    let services = async |name: ServiceFilterName, value: &str| {
        let filter = ServiceFilter::builder().name(name).values(value).build().unwrap();
        let page = s.consumer.list_services().filters(filter).send().await.unwrap();
        page.services().iter().map(|found| found.resource_owner().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(services(ServiceFilterName::ResourceOwner, "SELF").await, [CONSUMER]);
    assert_eq!(services(ServiceFilterName::ResourceOwner, "OTHER_ACCOUNTS").await, [OWNER]);
    assert_eq!(services(ServiceFilterName::NamespaceId, &s.namespace).await, [OWNER]);
    assert_eq!(services(ServiceFilterName::NamespaceId, &own).await, [CONSUMER]);
    let id = s.namespace.rsplit_once('/').unwrap().1;
    assert_eq!(services(ServiceFilterName::NamespaceId, id).await, [""; 0]);
}

#[tokio::test]
async fn consumers_may_not_change_the_namespace_or_tags() {
    let s = Sharing::start().await;
    s.share();
    let tag = || Tag::builder().key("owner").value("me").build().unwrap();
    let change = HttpNamespaceChange::builder().description("mine").build().unwrap();
    let update = s.consumer.update_http_namespace().id(&s.namespace).namespace(change).send().await;
    assert_eq!(code(update), DENIED);
    assert_eq!(code(s.consumer.delete_namespace().id(&s.namespace).send().await), DENIED);
    assert_eq!(code(s.consumer.tag_resource().resource_arn(&s.web).tags(tag()).send().await), DENIED);
    let create = s.consumer.create_service().namespace_id(&s.namespace).name("tagged");
    assert_eq!(code(create.clone().tags(tag()).send().await), DENIED);
    create.send().await.unwrap();
    // A share can allow less.
    let control = s.emulator.control();
    control.shares().into_iter().for_each(|(id, _)| assert!(control.revoke_share(id)));
    let share = Share { actions: vec!["DiscoverInstances".into()], ..Share::new(&s.namespace, CONSUMER).accepted() };
    control.share(share);
    assert_eq!(s.discover(Some(OWNER)).await, Ok(0));
    assert_eq!(code(s.consumer.get_namespace().id(&s.namespace).send().await), DENIED);
}

#[tokio::test]
async fn update_service_is_refused_where_others_have_instances() {
    // "When the service is associated with a shared namespace and contains instances that were registered by Amazon Web
    // Services accounts other than the account making the UpdateService call"
    let s = Sharing::start().await;
    let created = s.owner.create_private_dns_namespace().name("shared.internal").vpc("vpc-1").send().await.unwrap();
    let id = super::namespace_of(&s.owner, created.operation_id().unwrap()).await;
    let arn = s.owner.get_namespace().id(&id).send().await.unwrap().namespace.unwrap().arn.unwrap();
    s.emulator.control().share(Share::new(&arn, CONSUMER).accepted());
    let service = s.owner.create_service().namespace_id(&id).name("web").r#type("HTTP".into());
    let service = service.health_check_custom_config(HealthCheckCustomConfig::builder().build());
    let service = service.send().await.unwrap().service.unwrap().arn.unwrap();
    let update = |client: &Client| {
        let change = ServiceChange::builder().description("new").build();
        client.update_service().id(&service).service(change).send()
    };
    update(&s.owner).await.unwrap();
    update(&s.consumer).await.unwrap();
    s.register(&s.consumer, &service, "a").await;
    update(&s.consumer).await.unwrap();
    assert_eq!(code(update(&s.owner).await), "InvalidInput");
    let sick = s.consumer.update_instance_custom_health_status().service_id(&service).instance_id("a");
    sick.status(CustomHealthStatus::Unhealthy).send().await.unwrap();
}

#[tokio::test]
async fn policies_of_consumers_count_beside_the_share() {
    let s = Sharing::start().await;
    s.share();
    let statement = json!({ "Effect": "Allow", "Action": "servicediscovery:*", "Resource": "*",
        "Condition": { "StringEquals": { "aws:ResourceAccount": [OWNER] } } });
    let foreign = json!({ "Version": "2012-10-17", "Statement": statement });
    let by_creator = json!({ "Version": "2012-10-17", "Statement": { "Effect": "Deny", "Resource": "*",
        "Action": "servicediscovery:DeleteService",
        "Condition": { "StringNotEquals": { "servicediscovery:ServiceCreatedByAccount": CONSUMER } } } });
    let mut key = AccessKey::of(CONSUMER);
    for document in [foreign, by_creator] {
        key = key.policy(Policy::parse(&document.to_string()).unwrap());
    }
    s.emulator.control().set_accounts(accounts().with_key("CONSUMER", key));
    let made = s.consumer.create_service().namespace_id(&s.namespace).name("theirs").send().await.unwrap();
    assert_eq!(code(s.consumer.create_http_namespace().name("own").send().await), DENIED);
    assert_eq!(code(s.consumer.delete_service().id(&s.web).send().await), DENIED);
    s.consumer.delete_service().id(made.service.unwrap().arn.unwrap()).send().await.unwrap();
}

#[tokio::test]
async fn request_rates_are_those_of_the_consumer() {
    let s = Sharing::start().await;
    s.share();
    let control = s.emulator.control();
    control.registry(CONSUMER, "us-east-1").update_settings(|settings| {
        settings.throttling = true;
        settings.rates.insert("DiscoverInstances".into(), cloudmap_emulator::Rate { per_second: 0.001, burst: 1.0 });
    });
    assert_eq!(s.discover(Some(OWNER)).await, Ok(0));
    assert_eq!(s.discover(Some(OWNER)).await, Err("RequestLimitExceeded".to_owned()));
    assert_eq!(control.registry(OWNER, "us-east-1").counters().calls_by("CONSUMER", "DiscoverInstances"), 2);
}

#[tokio::test]
async fn shares_are_made_over_http_too() {
    let s = Sharing::start().await;
    let endpoint = s.emulator.endpoint();
    let (status, made) =
        http(&endpoint, "POST", "shares", &json!({ "namespace": s.namespace, "with": CONSUMER })).await;
    assert_eq!(status, 200);
    let path = format!("shares/{}", made["id"]);
    assert_eq!(s.discover(Some(OWNER)).await, Err("NamespaceNotFound".to_owned()));
    assert_eq!(http(&endpoint, "POST", &format!("{path}/accept"), &Value::Null).await.0, 200);
    assert_eq!(s.discover(Some(OWNER)).await, Ok(0));
    let (_, list) = http(&endpoint, "GET", "shares", &Value::Null).await;
    assert_eq!(list[0]["share"], json!({ "namespace": s.namespace, "with": CONSUMER, "accepted": true }));
    assert_eq!(http(&endpoint, "DELETE", &path, &Value::Null).await.0, 200);
    assert_eq!(http(&endpoint, "DELETE", &path, &Value::Null).await.0, 404);
    assert_eq!(s.discover(Some(OWNER)).await, Err("NamespaceNotFound".to_owned()));
    for (wrong, expected) in [
        (json!({ "namespace": s.namespace, "with": OWNER }), "owned by"),
        (json!({ "namespace": format!("{}x", s.namespace), "with": CONSUMER }), "does not exist"),
        (json!({ "namespace": s.web, "with": CONSUMER }), "does not exist"),
        (json!({ "namespace": s.namespace, "with": CONSUMER, "actions": ["Discover"] }), "no operation"),
    ] {
        let (status, answer) = http(&endpoint, "POST", "shares", &wrong).await;
        assert_eq!(status, 400, "{wrong}");
        assert!(answer["error"].as_str().unwrap().contains(expected), "{answer}");
    }
}
