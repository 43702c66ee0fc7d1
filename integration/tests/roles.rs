//! What a role may do, and for how long: the real SDK against the emulator's IAM and STS.

#![expect(clippy::unwrap_used, reason = "a test ends there")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aws_config::{BehaviorVersion, Region};
use aws_sdk_servicediscovery::config::Credentials;
use cloudmap::{
    AwsCloudMap, AwsSettings, CreateService, Error, ErrorKind, HttpName, Instance, Lane, Limits, NewNamespace,
    NewService, OperationState, Permit, Rates, Read as _, Write as _,
};
use discovery::{Backend, Discovered, DiscoverySettings, Reading, Registry, Trouble};
use emulator::{AccessKey, Accounts, Emulator, EmulatorSettings, Latency, Policy, Role, Share};
use iam::{Mode, Scope, statements};
use instances::Owner;
use serde_json::json;
use tokio::sync::watch;

const CLUSTERS: &str = "111111111111";
const REGISTRY: &str = "222222222222";
const ROLE: &str = "arn:aws:iam::222222222222:role/registry";
const HOUR: Duration = Duration::from_hours(1);

async fn emulator() -> Emulator {
    let settings = EmulatorSettings {
        operation_latency: Latency::millis(20),
        account: REGISTRY.to_owned(),
        ..EmulatorSettings::unthrottled()
    };
    Emulator::start(settings).await.unwrap()
}

/// The adapter, with this key, and with what else is set.
async fn adapter(emulator: &Emulator, key: &str, settings: AwsSettings) -> AwsCloudMap {
    let loaded = aws_config::defaults(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(key, "dummy", None, None, "test"))
        // That of STS.
        .endpoint_url(emulator.endpoint())
        .load()
        .await;
    let deadline = Duration::from_mins(5);
    let settings = AwsSettings { endpoint: Some(emulator.endpoint()), deadline, ..settings };
    AwsCloudMap::configured(&loaded, &settings, Limits::new(&Rates::default(), None)).await.unwrap()
}

fn role(external_id: &str) -> AwsSettings {
    let (role, id) = (Some(ROLE.to_owned()), Some(external_id.to_owned()));
    AwsSettings { assume_role_arn: role, external_id: id, ..AwsSettings::default() }
}

fn with_role() -> Accounts {
    let registry = Role::default().trusting(CLUSTERS).external_id("agreed");
    Accounts::default().with_key("pod", AccessKey::of(CLUSTERS)).with_role(ROLE, registry)
}

#[tokio::test]
async fn a_role_of_another_account_is_assumed_anew_before_and_after_its_sessions_end() {
    let emulator = emulator().await;
    let control = emulator.control();
    control.set_accounts(with_role());
    let wrong = adapter(&emulator, "pod", role("guessed")).await;
    let error = wrong.list_namespaces(Lane::Instances).await.unwrap_err();
    assert!(error.message.contains("AccessDenied"), "{error}");

    let registry = adapter(&emulator, "pod", role("agreed")).await;
    registry.list_namespaces(Lane::Instances).await.unwrap();
    // This machine's clock is behind, so that it takes the session for a good one.
    control.skip_time(2 * HOUR);
    let error = registry.list_namespaces(Lane::Instances).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::AccessDenied, "{error}");
    assert!(error.message.starts_with("the AWS credentials have expired"), "{error}");
    for _ in 0..3 {
        registry.list_namespaces(Lane::Instances).await.unwrap();
    }

    emulator.shutdown().await;
}

#[tokio::test]
async fn sessions_that_end_all_the_time_fail_no_call() {
    let emulator = emulator().await;
    let mut short = with_role();
    short.longest_session = Duration::from_secs(3);
    emulator.control().set_accounts(short);
    let registry = adapter(&emulator, "pod", role("agreed")).await;
    for _ in 0..8 {
        registry.list_namespaces(Lane::Instances).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    emulator.shutdown().await;
}

/// The policy that `cloudmap-mcs iam` prints.
fn policy(modes: &[Mode], scope: &Scope) -> Policy {
    let statements = statements(modes, scope).unwrap();
    Policy::parse(&json!({"Version": "2012-10-17", "Statement": statements}).to_string()).unwrap()
}

fn scope(cluster: Option<&str>) -> Scope {
    Scope {
        region: "us-east-1".to_owned(),
        account: REGISTRY.to_owned(),
        clusterset: Some("prod".parse().unwrap()),
        clusters: cluster.iter().map(|id| id.parse().unwrap()).collect(),
        ..Scope::default()
    }
}

type Tags = BTreeMap<String, String>;

fn tags(tags: &[(&str, &str)]) -> Tags {
    tags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A principal with a policy.
struct Principal(AwsCloudMap);

impl Principal {
    async fn finish(&self, operation: Result<cloudmap::OperationId, Error>) -> Result<(), Error> {
        let operation = operation?;
        while self.0.operation(&operation, Lane::Ledger).await? == OperationState::Running {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn namespace(&self, name: &str, tags: &Tags) -> Result<Arc<str>, Error> {
        let new = NewNamespace { name, vpc: None, creator_request_id: name, description: "of a test", tags };
        let begun = self.0.create_namespace(&Permit::of_command(), &new).await;
        self.finish(begun).await?;
        let listed = self.0.list_namespaces(Lane::Ledger).await?;
        Ok(listed.into_iter().find(|there| *there.name == *name).unwrap().id)
    }

    async fn service(&self, namespace: &Arc<str>, name: &str, tags: &Tags) -> Result<Arc<str>, Error> {
        let new = NewService {
            namespace_id: Arc::clone(namespace),
            name: name.into(),
            creator_request_id: name.to_owned(),
            description: None,
            dns: None,
            custom_health_check: false,
            tags: tags.clone(),
        };
        match self.0.create_service(&Permit::of_command(), &new, Lane::Ledger).await? {
            CreateService::Created(service) => Ok(service.id),
            CreateService::Exists { .. } => panic!("{name} is there"),
        }
    }

    async fn write(&self, service: &str, id: &str, address: &str) -> Result<(), Error> {
        let attributes = [("AWS_INSTANCE_IPV4".to_owned(), address.to_owned())].into();
        let instance = Instance { id: id.into(), attributes };
        let begun = self.0.register_instance(&Permit::of_command(), service, &instance, Lane::Ledger).await;
        self.finish(begun).await
    }

    async fn remove(&self, service: &str, id: &str) -> Result<(), Error> {
        let begun = self.0.deregister_instance(&Permit::of_command(), service, id, Lane::Ledger).await;
        self.finish(begun).await
    }
}

/// Checks that a call was denied.
fn denied<T: std::fmt::Debug>(what: &str, answer: Result<T, Error>) {
    let error = answer.expect_err(what);
    assert_eq!(error.kind, ErrorKind::AccessDenied, "{what}: {error}");
    assert!(error.message.contains("not authorized to perform"), "{what}: {error}");
}

#[tokio::test]
async fn the_role_of_a_cluster_writes_its_own_part_of_the_ledger_and_its_own_instances_and_nothing_else() {
    let emulator = emulator().await;
    let accounts = ["blue", "green"].into_iter().fold(Accounts::default(), |accounts, id| {
        let key = AccessKey::of(REGISTRY).policy(policy(&[Mode::Instances], &scope(Some(id))));
        accounts.with_key(id, key)
    });
    let reader = AccessKey::of(REGISTRY).policy(policy(&[Mode::Reading], &scope(None)));
    emulator.control().set_accounts(accounts.with_key("reader", reader));
    let principal = async |key| Principal(adapter(&emulator, key, AwsSettings::default()).await);
    let (blue, green, reader, admin) =
        (principal("blue").await, principal("green").await, principal("reader").await, principal("admin").await);

    // The ledger, as the controller makes it.
    let prod = ("cloudmap-mcs/clusterset", "prod");
    let ledger = blue.namespace("clusterset-prod", &tags(&[prod])).await.unwrap();
    let heads = blue.service(&ledger, "clusters", &tags(&[prod])).await.unwrap();
    let mut parts = BTreeMap::new();
    for (id, cluster) in [("blue", &blue), ("green", &green)] {
        let own = tags(&[prod, ("cloudmap-mcs/cluster", id)]);
        let part = cluster.service(&ledger, &format!("exports-0.{id}"), &own).await.unwrap();
        cluster.write(&part, "page", "10.0.0.1").await.unwrap();
        cluster.write(&heads, id, "10.0.0.1").await.unwrap();
        parts.insert(id, part);
    }
    denied("a page of another cluster", green.write(&parts["blue"], "page-2", "10.0.0.1").await);
    denied("the removal of one", green.remove(&parts["blue"], "page").await);
    denied("the removal of its service", green.0.delete_service(&Permit::of_command(), &parts["blue"]).await);
    green.remove(&parts["green"], "page").await.unwrap();
    green.0.delete_service(&Permit::of_command(), &parts["green"]).await.unwrap();

    // Instances: in services that the ClusterSet made.
    let made = ("cloudmap-mcs/made-for", "clusterset/prod");
    let shop = blue.namespace("shop", &tags(&[made])).await.unwrap();
    let web = blue.service(&shop, "web", &tags(&[made])).await.unwrap();
    for cluster in [&blue, &green] {
        cluster.write(&web, "k8s-1", "10.0.0.1").await.unwrap();
    }
    let tasks = admin.service(&shop, "tasks", &tags(&[])).await.unwrap();
    denied("an instance in a service of others", blue.write(&tasks, "k8s-1", "10.0.0.1").await);
    denied("a service of others", blue.0.delete_service(&Permit::of_command(), &tasks).await);
    denied("a namespace without the mark", blue.namespace("other", &tags(&[])).await);
    denied("a service with another mark", blue.service(&shop, "x", &tags(&[("team", "shop")])).await);
    denied("a namespace", blue.0.delete_namespace(&Permit::of_command(), &shop).await);
    let of_other = tags(&[("cloudmap-mcs/clusterset", "test")]);
    denied("a ledger of another ClusterSet", blue.namespace("clusterset-test", &of_other).await);

    // Who reads a registry that is not the home.
    let read = |who: &Principal, namespace: &'static str, service: &'static str| {
        let who = who.0.clone();
        async move { who.discover_instances(HttpName::own(namespace), service, &BTreeMap::new(), Lane::Ledger).await }
    };
    let found = read(&reader, "clusterset-prod", "clusters").await.unwrap();
    assert_eq!(found.instances.len(), 2);
    denied("what is no ledger", read(&reader, "shop", "web").await);
    denied("a write by who only reads", reader.write(&heads, "reader", "10.0.0.1").await);
    emulator.shutdown().await;
}

/// The addresses of `apps/web` in a namespace, as the reader found them.
fn addresses(found: &Discovered, namespace: &str) -> Vec<String> {
    let web = found.namespaces.get(namespace).and_then(|found| found.services.get("web"));
    let reading = web.and_then(|web| web.reading.as_ref());
    reading.into_iter().flat_map(Reading::backends).flat_map(Backend::addresses).map(|it| it.to_string()).collect()
}

async fn until(found: &mut watch::Receiver<Arc<Discovered>>, holds: impl Fn(&Discovered) -> bool) {
    tokio::time::timeout(Duration::from_mins(5), found.wait_for(|found| holds(found))).await.unwrap().unwrap();
}

/// Two accounts, each with a namespace `apps` that has a service `web`. That of the registry's account is shared.
#[tokio::test]
async fn what_another_account_shares_is_read_by_its_arn_with_the_policy_for_imports_until_sharing_ends() {
    let emulator = emulator().await;
    let control = emulator.control();
    let accounts = Accounts::default().with_key("owner", AccessKey::of(REGISTRY));
    let accounts = accounts.with_key("admin", AccessKey::of(CLUSTERS));
    control.set_accounts(accounts.clone());
    let principal = async |key| Principal(adapter(&emulator, key, AwsSettings::default()).await);
    let (owner, admin) = (principal("owner").await, principal("admin").await);
    let (mut services, none) = (Vec::new(), Tags::new());
    for (who, address) in [(&owner, "10.0.0.1"), (&admin, "10.0.0.2")] {
        let apps = who.namespace("apps", &none).await.unwrap();
        let web = who.service(&apps, "web", &none).await.unwrap();
        who.write(&web, "a", address).await.unwrap();
        services.push(web);
    }
    let apps = owner.0.list_namespaces(Lane::Instances).await.unwrap().remove(0);
    let arn = apps.arn.to_string();
    let scope = Scope { account: CLUSTERS.to_owned(), namespaces: vec!["apps".to_owned(), arn.clone()], ..scope(None) };
    let pod = AccessKey::of(CLUSTERS).policy(policy(&[Mode::Imports], &scope));
    control.set_accounts(accounts.with_key("pod", pod));
    let pod = principal("pod").await;

    // Who is not let in is told so, except where the ARN is only a filter.
    let share = control.share(Share::new(&arn, CLUSTERS));
    denied("what nobody accepted", pod.0.get_namespace(&arn).await);
    assert_eq!(pod.0.list_services(&arn, Lane::Instances).await.unwrap(), []);
    assert!(control.accept_share(share));
    let shared = pod.0.get_namespace(&arn).await.unwrap();
    assert_eq!((&*shared.id, &*shared.arn, &*shared.name), (&*arn, &*arn, "apps"));
    let web = pod.0.list_services(&arn, Lane::Instances).await.unwrap().remove(0);
    assert!(web.id.starts_with("arn:") && web.id.ends_with(&*services[0]), "{web:?}");
    assert_eq!(pod.0.get_service(&web.id, Lane::Instances).await.unwrap().id, web.id);
    assert_eq!(pod.0.list_instances(&web.id).await.unwrap()[0].attributes["AWS_INSTANCE_IPV4"], "10.0.0.1");
    assert!(pod.0.unhealthy_instances(&web.id).await.unwrap().is_empty());
    let own = pod.0.list_namespaces(Lane::Instances).await.unwrap();
    assert_eq!(own.len(), 1, "those of others are not listed");
    for (namespace, address) in [(&shared, "10.0.0.1"), (&own[0], "10.0.0.2")] {
        let found = pod.0.discover_instances(namespace.in_discovery(), "web", &Tags::new(), Lane::Instances).await;
        assert_eq!(found.unwrap().instances[0].attributes["AWS_INSTANCE_IPV4"], address);
    }
    // To its owner, the ARN is as good as the id.
    let by_arn = owner.0.get_namespace(&arn).await.unwrap();
    let found = owner.0.discover_instances(by_arn.in_discovery(), "web", &Tags::new(), Lane::Instances).await.unwrap();
    assert_eq!(found.instances.len(), 1);
    assert_eq!(owner.0.list_services(&arn, Lane::Instances).await.unwrap().len(), 1);

    // The reader of the controller.
    let names: [Arc<str>; 2] = ["apps".into(), arn.as_str().into()];
    let (_subscribed, names) = watch::channel(Arc::new(names.into()));
    let identity = Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "u".into() };
    let cloudmap = Arc::new(pod.0.clone());
    let reader =
        discovery::spawn(&DiscoverySettings::new(identity), (None, Registry::new(cloudmap)), BTreeMap::new(), names);
    let mut found = reader.found();
    let both = |found: &Discovered| addresses(found, "apps") == ["10.0.0.2"] && addresses(found, &arn) == ["10.0.0.1"];
    let trouble = |found: &Discovered| found.namespaces[&*arn].trouble.clone();
    until(&mut found, both).await;
    assert!(control.revoke_share(share));
    denied("what is not shared any more", pod.0.list_instances(&web.id).await);
    until(&mut found, |found| trouble(found).is_some()).await;
    let (now, why) = (found.borrow().clone(), trouble(&found.borrow()));
    assert!(matches!(&why, Some(Trouble::Failed(why)) if why.contains("AWS RAM")), "{why:?}");
    assert!(both(&now), "nothing is gone: {now:?}");
    owner.write(&services[0], "b", "10.0.0.3").await.unwrap();
    control.share(Share::new(&arn, CLUSTERS).accepted());
    until(&mut found, |found| addresses(found, &arn).len() == 2 && trouble(found).is_none()).await;
    emulator.shutdown().await;
}
