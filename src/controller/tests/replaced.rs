//! What went wrong with the controllers that this one replaces; `docs/testing.md` lists all of it.

use std::time::Duration;

use serde_json::json;

use super::{
    annotated::{HOSTNAME, PYTHON},
    world::{World, always, key, until},
};
use cloudmap::{DnsConfig, DnsRecord, NamespaceKind, Operation, RecordType};

const TASK: &str = "0db8dbd2185c4c0184e80f58fee8ba1d";
const TTL: &str = "external-dns.alpha.kubernetes.io/ttl";

/// A service as ECS uses it: records, and a task that must stay as it is.
fn ecs_service(world: &World, namespace: &std::sync::Arc<str>, name: &str, description: Option<&str>) {
    let id = world.fake.registry().add_service(namespace, name, "ecs", "");
    world.add_instance(&id, TASK, &[("AWS_INSTANCE_IPV4", "10.9.0.1"), ("ECS_SERVICE_NAME", name)]);
    let mut registry = world.fake.registry();
    let service = registry.services.get_mut(&id).unwrap();
    service.description = description.map(str::to_owned);
    let records = vec![DnsRecord { record_type: RecordType::A, ttl: 10 }];
    service.dns = Some(DnsConfig { weighted: false, records });
}

/// external-dns, by its version: skipped the pods until ECS had left; crashed at start; registered them for ever again and
/// never took one back; took tasks for its own and crashed.
#[tokio::test(start_paused = true)]
async fn pods_live_beside_ecs_tasks_whatever_the_services_description_and_ttl_are() {
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let descriptions = [("bare", None), ("text", Some("made by Terraform")), ("empty", Some(""))];
    for (name, description) in descriptions {
        ecs_service(&world, &internal, name, description);
    }
    let mut blue = world.cluster("blue");
    let task = format!("{TASK}=10.9.0.1");
    let holds = |name: &str, pods: &[&str]| {
        let pods = pods.iter().map(|&pod| pod.to_owned());
        world.holds("internal", name) == [task.clone()].into_iter().chain(pods).collect::<Vec<_>>()
    };
    for (name, _) in descriptions {
        let host = format!("{name}.internal");
        blue.headless(name, &[(HOSTNAME, &host), (TTL, "60")], &["10.0.0.1", "10.0.0.2"]);
        until("pods are beside the task", || holds(name, &["10.0.0.1", "10.0.0.2"])).await;
    }
    let registrations = || {
        let calls = world.fake.registry().calls.clone();
        calls.iter().filter(|(op, id)| *op == Operation::RegisterInstance && id.starts_with("k8s-")).count()
    };
    let before = registrations();
    always("it stays so, after a restart as well", Duration::from_mins(5), || registrations() == before).await;
    blue.kill();
    blue.lead();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(registrations(), before, "nothing is registered again");
    for (name, description) in descriptions {
        blue.put_endpoints(name, &["10.0.0.2", "10.0.0.3"]);
        until("pods are followed", || holds(name, &["10.0.0.2", "10.0.0.3"])).await;
        // ECS leaves, and comes back.
        let service = world.service("internal", name).unwrap().id;
        let attributes = world.fake.registry().instances.remove(&(service.clone(), TASK.into())).unwrap();
        blue.put_endpoints(name, &["10.0.0.3"]);
        until("also alone", || world.holds("internal", name) == ["10.0.0.3"]).await;
        world.fake.registry().instances.insert((service, TASK.into()), attributes);
        blue.objects.remove_service(&key(name));
        until("pods go with the Service", || holds(name, &[])).await;
        let service = world.service("internal", name).unwrap();
        assert_eq!((service.description.as_deref(), service.dns.unwrap().records[0].ttl), (description, 10));
    }
    let registry = world.fake.registry();
    assert_eq!(registry.count(Operation::UpdateService) + registry.count(Operation::DeleteService), 0);
    assert!(registry.calls.iter().all(|(_, id)| id != TASK), "tasks are never touched");
}

/// external-dns: nil pointer. The Python controller: `KeyError` at the first instance without an IPv4 address.
#[tokio::test(start_paused = true)]
async fn services_without_records_and_instances_of_every_kind_stop_nobody() {
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let api = world.add_namespace("api", NamespaceKind::Http);
    let foreign: [(&str, &[(&str, &str)]); 6] = [
        ("alias", &[("AWS_ALIAS_DNS_NAME", "web-1.eu-west-1.elb.amazonaws.com")]),
        ("six", &[("AWS_INSTANCE_IPV6", "fd00::9")]),
        ("ec2", &[("AWS_EC2_INSTANCE_ID", "i-0123456789abcdef0")]),
        ("cname", &[("AWS_INSTANCE_CNAME", "db.example.org")]),
        ("custom", &[("url", "https://example.org")]),
        ("nothing", &[]),
    ];
    for (namespace, service) in [(&internal, "connect"), (&api, "mixed")] {
        let id = world.fake.registry().add_service(namespace, service, "people", "found by API only");
        for (instance, attributes) in foreign {
            world.add_instance(&id, instance, attributes);
        }
    }
    let blue = world.cluster("blue");
    blue.headless("connect", &[(HOSTNAME, "connect.internal")], &["10.0.0.1"]);
    blue.headless("mixed", &[(PYTHON[0], "api"), (PYTHON[1], "mixed")], &["10.0.0.2"]);
    blue.headless("other", &[(HOSTNAME, "other.internal")], &["10.0.0.3"]);
    let ours = |namespace: &str, service: &str| -> Vec<String> {
        let held = world.holds(namespace, service);
        assert_eq!(held.iter().filter(|held| held.contains('=')).count(), if service == "other" { 0 } else { 6 });
        held.into_iter().filter(|held| !held.contains('=')).collect()
    };
    for (namespace, service, pod) in [("internal", "connect", "10.0.0.1"), ("api", "mixed", "10.0.0.2")] {
        until("the pod is registered", || ours(namespace, service) == [pod]).await;
    }
    until("so is the other", || ours("internal", "other") == ["10.0.0.3"]).await;
    blue.objects.remove_service(&key("mixed"));
    until("ours goes, theirs stays", || ours("api", "mixed").is_empty()).await;
}

/// The Python controller looked at no change of a Service: instances leaked.
#[tokio::test(start_paused = true)]
async fn a_service_that_changes_its_name_its_type_or_its_mind_leaves_nothing_behind() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::Http);
    let blue = world.cluster("blue");
    let wants = |service| [(PYTHON[0], "internal"), (PYTHON[1], service)];
    blue.headless("web", &wants("web"), &["10.0.0.1"]);
    until("it is registered", || world.holds("internal", "web") == ["10.0.0.1"]).await;
    blue.headless("web", &wants("www"), &["10.0.0.1"]);
    until("it moved", || world.holds("internal", "www") == ["10.0.0.1"] && world.service("internal", "web").is_none())
        .await;
    let cluster_ip = json!({"type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]});
    blue.annotate("web", &wants("www"), &cluster_ip);
    until("it is not headless any more", || world.service("internal", "www").is_none()).await;
    blue.until_noted("web", "NotHeadless").await;
    blue.headless("web", &wants("www"), &["10.0.0.1"]);
    until("it is headless again", || world.holds("internal", "www") == ["10.0.0.1"]).await;
    blue.headless("web", &[], &["10.0.0.1"]);
    until("it asks for nothing", || world.service("internal", "www").is_none()).await;
}

/// The controllers that are replaced stopped, or never told: a failure in one service is said on its object and nowhere else.
#[tokio::test(start_paused = true)]
async fn what_fails_in_one_service_or_namespace_is_said_on_its_object_and_stops_no_other() {
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let denied = world.add_namespace("denied", NamespaceKind::DnsPrivate);
    let [later, refused] =
        ["later", "refused"].map(|name| world.fake.registry().add_service(&internal, name, "people", ""));
    {
        let mut registry = world.fake.registry();
        registry.failing.insert(denied, cloudmap::ErrorKind::AccessDenied);
        registry.failing.insert(refused, cloudmap::ErrorKind::LimitExceeded);
        registry.failing_later.insert(later);
    }
    let blue = world.cluster("blue");
    for (name, host) in [("a", "a.denied"), ("later", "later.internal"), ("refused", "refused.internal")] {
        blue.headless(name, &[(HOSTNAME, host)], &["10.0.0.1", "10.0.0.2"]);
    }
    blue.headless("good", &[(HOSTNAME, "good.internal")], &["10.0.0.1", "10.0.0.2"]);
    blue.export("web", 80, &["10.0.0.3"]);
    until("the good one is registered", || world.holds("internal", "good").len() == 2).await;
    blue.until_says("web", "Registered", "True", "Registered").await;
    let mut said = std::collections::BTreeSet::new();
    let expected = [("a", "AccessDenied"), ("later", "Failed"), ("refused", "LimitExceeded")];
    let deadline = tokio::time::Instant::now() + Duration::from_mins(10);
    while !expected.iter().all(|(name, reason)| said.contains(&((*name).to_owned(), *reason))) {
        assert!(tokio::time::Instant::now() < deadline, "{said:?}");
        let notes = blue.objects.take_notes();
        said.extend(notes.into_iter().map(|note| (note.regarding.name.unwrap_or_default(), note.reason.as_str())));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(!said.iter().any(|(name, reason)| name == "good" && *reason != "IPRegistered"), "{said:?}");
    blue.put_endpoints("good", &["10.0.0.2", "10.0.0.4"]);
    until("the good one is followed", || world.holds("internal", "good") == ["10.0.0.2", "10.0.0.4"]).await;
    {
        let mut registry = world.fake.registry();
        registry.failing.clear();
        registry.failing_later.clear();
    }
    for (namespace, service) in [("denied", "a"), ("internal", "later"), ("internal", "refused")] {
        until("it gets over it", || world.holds(namespace, service).len() == 2).await;
    }
}
