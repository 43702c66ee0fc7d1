//! What the users of exports and annotated Services see of their instances: TTL, health, attributes, limits, refusals.

use std::time::Duration;

use serde_json::json;

use super::{
    annotated::HOSTNAME,
    world::{Cluster, World, always, key, until},
};
use api::names;
use cloudmap::{NamespaceKind, Operation, RecordType};

impl World {
    fn ttl(&self, namespace: &str, service: &str) -> Option<u32> {
        Some(self.service(namespace, service)?.dns?.records.first()?.ttl)
    }

    fn change_service(&self, id: &str, change: impl FnOnce(&mut cloudmap::Service)) {
        change(self.fake.registry().services.get_mut(id).unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn the_ttl_follows_the_annotation_of_whoever_claimed_first() {
    let world = World::new();
    world.add_namespace("shop", NamespaceKind::DnsPrivate);
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    green.until_knows(&blue).await;
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    assert_eq!(world.ttl("shop", "web"), Some(60));
    // Claims date from whole seconds.
    tokio::time::sleep(Duration::from_secs(5)).await;
    green.put_service("web", 80);
    green.put_endpoints("web", &["10.1.0.1"]);
    green.put_export("web", &[(names::ANNOTATION_TTL, "7")]);
    until("both are registered", || world.instances("web").len() == 2).await;
    always("the younger claim decides nothing", Duration::from_mins(2), || world.ttl("shop", "web") == Some(60)).await;
    blue.put_export("web", &[(names::ANNOTATION_TTL, "10")]);
    until("the older one does", || world.ttl("shop", "web") == Some(10)).await;
    blue.objects.remove_export(&key("web"));
    until("the younger one is the oldest now", || world.ttl("shop", "web") == Some(7)).await;

    let ttl = "external-dns.alpha.kubernetes.io/ttl";
    blue.headless("api", &[(HOSTNAME, "api.internal")], &["10.0.0.2"]);
    until("it is registered", || world.ttl("internal", "api") == Some(300)).await;
    for (value, expected) in [("1m", 60), ("5", 5)] {
        blue.headless("api", &[(HOSTNAME, "api.internal"), (ttl, value)], &["10.0.0.2"]);
        until("the TTL follows", || world.ttl("internal", "api") == Some(expected)).await;
    }
    blue.headless("api", &[(HOSTNAME, "api.internal")], &["10.0.0.2"]);
    until("without the annotation it is the default", || world.ttl("internal", "api") == Some(300)).await;
}

/// All record types that a user can ask for, on exports and on annotated Services.
#[tokio::test(start_paused = true)]
async fn every_kind_of_record_can_be_asked_for() {
    use RecordType::{A, Aaaa, Srv};
    let world = World::new();
    world.add_namespace("shop", NamespaceKind::DnsPrivate);
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    let kinds = |namespace: &str, name: &str| -> Option<Vec<RecordType>> {
        let records = world.service(namespace, name)?.dns.map(|dns| dns.records).unwrap_or_default();
        Some(records.into_iter().map(|record| record.record_type).collect())
    };
    for (n, (asked, expected)) in
        [("A", &[A][..]), ("AAAA", &[Aaaa]), ("A,AAAA", &[A, Aaaa]), ("SRV", &[Srv]), ("none", &[])]
            .into_iter()
            .enumerate()
    {
        let name = format!("web-{n}");
        blue.put_service(&name, 80);
        blue.put_endpoints(&name, &["10.0.0.1"]);
        blue.put_export(&name, &[(names::ANNOTATION_RECORDS, asked)]);
        until(asked, || kinds("shop", &name).is_some_and(|found| found == expected)).await;
        let host = format!("{name}.internal");
        blue.headless(&format!("pods-{n}"), &[(HOSTNAME, &host), (names::ANNOTATION_RECORDS, asked)], &["10.0.0.1"]);
        until(asked, || kinds("internal", &name).is_some_and(|found| found == expected)).await;
    }
    // What IPv4 pods cannot have is said on the object, what they can have is registered.
    for name in ["web-1", "web-2"] {
        blue.until_says(name, "Registered", "False", "AddressFamilyMissing").await;
    }
    for name in ["web-0", "web-3", "web-4"] {
        blue.until_says(name, "Registered", "True", "Registered").await;
        assert_eq!(world.instances(name).len(), 1);
    }
    let text = blue.until_noted("pods-1", "UnfitEndpoints").await;
    assert!(text.contains("IPv6") && text.contains("internal/web-1"), "{text}");
}

/// ECS makes its services with a custom health check.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_not_ready_is_unhealthy_beside_the_tasks_and_healthy_again() {
    let world = World::new();
    let shop = world.add_namespace("shop", NamespaceKind::DnsPrivate);
    let orders = world.fake.registry().add_service(&shop, "orders", "ecs", "");
    world.change_service(&orders, |service| service.custom_health_check = true);
    let task = "0db8dbd2185c4c0184e80f58fee8ba1d";
    world.add_instance(&orders, task, &[("AWS_INSTANCE_IPV4", "10.9.0.1"), ("ECS_SERVICE_NAME", "orders")]);
    let blue = world.cluster("blue");
    blue.put_service("orders", 80);
    blue.put_readiness("orders", &[("10.0.0.1", true), ("10.0.0.2", true), ("10.0.0.3", false)]);
    blue.put_export("orders", &[(names::ANNOTATION_SHARE, "true")]);
    until("the ready ones are registered", || world.instances("orders").len() == 3).await;
    blue.until_says("orders", "Registered", "True", "Registered").await;
    let ill = || -> Vec<String> {
        world.fake.registry().unhealthy.iter().map(|(_, id)| id.rsplit('-').next().unwrap().to_owned()).collect()
    };
    blue.put_readiness("orders", &[("10.0.0.1", true), ("10.0.0.2", false), ("10.0.0.3", false)]);
    until("it is unhealthy", || ill() == ["2"]).await;
    assert_eq!(world.instances("orders").len(), 3, "and still there");
    blue.put_readiness("orders", &[("10.0.0.1", true), ("10.0.0.2", true), ("10.0.0.3", false)]);
    until("it is healthy again", || ill().is_empty()).await;
    blue.objects.remove_export(&key("orders"));
    until("the task alone is left", || world.instances("orders") == [task]).await;
    assert!(world.fake.registry().calls.iter().all(|(_, id)| id != task), "nobody touched it");
}

#[tokio::test(start_paused = true)]
async fn attributes_of_the_users_own_are_on_the_instances_and_reserved_ones_are_said() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    let stage = |namespace: &str, service: &str| -> Option<String> {
        let id = world.service(namespace, service)?.id;
        let registry = world.fake.registry();
        let (_, attributes) = registry.instances.iter().find(|((service, _), _)| *service == id)?;
        attributes.get("stage").cloned()
    };
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    blue.put_export("web", &[(names::ANNOTATION_ATTRIBUTES, "stage=canary,ECS_CLUSTER_NAME=mine")]);
    until("the instance says it", || stage("shop", "web").as_deref() == Some("canary")).await;
    until("the bad one is said", || {
        let registered = blue.condition("web", "Registered").unwrap();
        registered.status == "True"
            && registered.message.contains("ECS_CLUSTER_NAME")
            && registered.message.contains("reserved")
    })
    .await;
    blue.put_export("web", &[]);
    until("it goes with the annotation", || stage("shop", "web").is_none()).await;

    let attributes = [(HOSTNAME, "api.internal"), (names::ANNOTATION_ATTRIBUTES, "stage=blue,PORT_x=1")];
    blue.headless("api", &attributes, &["10.0.0.2"]);
    until("the instance says it", || stage("internal", "api").as_deref() == Some("blue")).await;
    let text = blue.until_noted("api", "InvalidAnnotation").await;
    assert!(text.contains("PORT_x"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_service_with_more_ports_than_attributes_says_so() {
    let world = World::new();
    let blue = world.cluster("blue");
    let names: Vec<_> = (0..30).map(|i| format!("p{i}")).collect();
    let ports: Vec<_> = names.iter().enumerate().map(|(i, name)| json!({"name": name, "port": 80 + i})).collect();
    let service = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {"clusterIP": "10.96.200.1", "clusterIPs": ["10.96.200.1"], "ipFamilies": ["IPv4"], "ports": ports},
    }));
    blue.objects.put_service(service.unwrap());
    let slice = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: "web"}},
        "addressType": "IPv4", "ports": ports, "endpoints": [{"addresses": ["10.0.0.1"]}],
    }));
    blue.objects.put_slice(slice.unwrap());
    blue.put_export("web", &[]);
    blue.until_says("web", "Registered", "False", "Failed").await;
    let message = blue.condition("web", "Registered").unwrap().message;
    assert!(message.contains("30 ports") && message.contains("fewer ports"), "{message}");
    assert!(world.instances("web").is_empty());
}

#[tokio::test(start_paused = true)]
async fn more_healthy_instances_than_dns_answers_with_are_said_and_registered() {
    let world = World::new();
    world.add_namespace("shop", NamespaceKind::DnsPrivate);
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let mut blue = world.cluster("blue");
    let pods: Vec<_> = (1..=9).map(|last| format!("10.0.0.{last}")).collect();
    let pods: Vec<_> = pods.iter().map(String::as_str).collect();
    blue.export("web", 80, &pods[..8]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    let says = |words: &str| blue.condition("web", "Registered").unwrap().message.contains(words);
    assert!(!says("DNS answer"));
    let since = tokio::time::Instant::now();
    blue.put_endpoints("web", &pods);
    until("it is said", || says("each DNS answer has 8 of them")).await;
    assert!(since.elapsed() < Duration::from_secs(20), "not only at the next reading");
    until("the ninth is registered", || world.instances("web").len() == 9).await;
    assert_eq!(blue.says("web", "Registered").0, "True");

    blue.headless("api", &[(HOSTNAME, "api.internal")], &pods);
    let text = blue.until_noted("api", "DnsAnswersLimited").await;
    assert!(text.contains("internal/api") && text.contains("at random"), "{text}");
    // A new leader does not take it back while it looks.
    tokio::time::sleep(Duration::from_mins(2)).await;
    let writes = blue.objects.writes();
    blue.kill();
    blue.lead();
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert_eq!(blue.objects.writes(), writes);
}

/// Cloud Map appends a hash to the `HttpName` of a namespace whose name was used before; names are resolved by `Name`,
/// instances by ids.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_discovered_under_another_name_takes_instances() {
    let world = World::new();
    for name in ["shop", "internal"] {
        world.add_namespace(name, NamespaceKind::DnsPrivate);
    }
    for namespace in &mut world.fake.registry().namespaces {
        namespace.http_name = format!("{}-1a2b3c", namespace.name).into();
    }
    let blue = world.cluster("blue");
    blue.export("web", 80, &["10.0.0.1"]);
    blue.headless("api", &[(HOSTNAME, "api.internal")], &["10.0.0.2"]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    until("both are", || world.holds("internal", "api") == ["10.0.0.2"] && world.instances("web").len() == 1).await;
    blue.objects.remove_service(&key("api"));
    until("it is withdrawn", || world.service("internal", "api").is_none()).await;
    assert_eq!(world.fake.registry().count(Operation::CreateHttpNamespace), 1, "the ledger's alone");
}

#[tokio::test(start_paused = true)]
async fn both_families_of_a_pod_are_one_instance_in_a_service_with_both_records() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4", "IPv6"],
        "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
    let family = |name: &str, family: &str, address: &str| {
        let slice = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": name, "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: "web"}},
            "addressType": family, "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": [address], "zone": "eu-west-1a",
                "targetRef": {"kind": "Pod", "name": "web-0", "uid": "b4a3c1b0-0000-4000-8000-000000000001"}}],
        }));
        blue.objects.put_slice(slice.unwrap());
    };
    family("web-v4", "IPv4", "10.0.0.1");
    family("web-v6", "IPv6", "fd00::1");
    blue.annotate("web", &[(HOSTNAME, "web.internal")], &spec);
    until("it is registered", || world.holds("internal", "web").len() == 1).await;
    let service = world.service("internal", "web").unwrap();
    let kinds: Vec<_> = service.dns.unwrap().records.iter().map(|record| record.record_type).collect();
    assert_eq!(kinds, [RecordType::A, RecordType::Aaaa]);
    let registry = world.fake.registry();
    let (_, attributes) = registry.instances.iter().find(|((id, _), _)| *id == service.id).unwrap();
    assert_eq!(
        (attributes["AWS_INSTANCE_IPV4"].as_str(), attributes["AWS_INSTANCE_IPV6"].as_str()),
        ("10.0.0.1", "fd00::1")
    );
    assert_eq!(attributes["AVAILABILITY_ZONE"], "eu-west-1a", "as ECS writes it");
}

#[tokio::test(start_paused = true)]
async fn labels_of_pods_that_are_let_through_are_on_their_instances_and_follow_them() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    let pod = |service: &str, uid: &str, address: &str| {
        let slice = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": format!("{service}-1"), "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: service}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": [address], "targetRef": {"kind": "Pod", "name": service, "uid": uid}}],
        }));
        blue.objects.put_slice(slice.unwrap());
    };
    let version = |namespace: &str, service: &str| -> Option<String> {
        let id = world.service(namespace, service)?.id;
        let registry = world.fake.registry();
        let (_, attributes) = registry.instances.iter().find(|((service, _), _)| *service == id)?;
        Some(attributes.get("version").cloned().unwrap_or_default())
    };
    // A pod that is seen before its endpoint, and one that is seen after it.
    blue.objects.put_pod("shop", "pod-a", &[("version", "1")]);
    blue.put_service("web", 80);
    pod("web", "pod-a", "10.0.0.1");
    blue.put_export("web", &[]);
    until("the instance has the label", || version("shop", "web").as_deref() == Some("1")).await;
    let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
    pod("api", "pod-b", "10.0.0.2");
    blue.annotate("api", &[(HOSTNAME, "api.internal")], &spec);
    until("it is registered", || version("internal", "api").as_deref() == Some("")).await;
    blue.objects.put_pod("shop", "pod-b", &[("version", "2")]);
    until("the label follows", || version("internal", "api").as_deref() == Some("2")).await;
    blue.objects.put_pod("shop", "pod-a", &[("version", "3")]);
    until("a label that changes, too", || version("shop", "web").as_deref() == Some("3")).await;
    // The annotation was written for the instances, the label was not.
    blue.put_export("web", &[(names::ANNOTATION_ATTRIBUTES, "version=canary")]);
    until("the annotation wins", || version("shop", "web").as_deref() == Some("canary")).await;
    blue.objects.put_pod("shop", "pod-b", &[]);
    until("a label that goes", || version("internal", "api").as_deref() == Some("")).await;
}

/// A typo in how to register takes nothing away, and makes nothing that could not be changed again.
#[tokio::test(start_paused = true)]
async fn an_annotation_that_cannot_be_understood_is_said_and_what_is_registered_stays() {
    let world = World::new();
    world.add_namespace("shop", NamespaceKind::DnsPrivate);
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    blue.put_service("web", 80);
    blue.put_endpoints("web", &["10.0.0.1"]);
    blue.put_export("web", &[(names::ANNOTATION_TTL, "30")]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    let hosted = |ttl| [(HOSTNAME, "api.internal"), (names::ANNOTATION_TTL, ttl)];
    blue.headless("api", &hosted("30"), &["10.0.0.1"]);
    until("it is registered", || world.holds("internal", "api").len() == 1).await;

    blue.put_export("web", &[(names::ANNOTATION_TTL, "30s")]);
    blue.headless("api", &hosted("soon"), &["10.0.0.1"]);
    blue.until_says("web", "Registered", "False", "InvalidAnnotation").await;
    blue.until_noted("api", "InvalidAnnotation").await;
    let stays = || {
        let ttls = [world.ttl("shop", "web"), world.ttl("internal", "api")];
        world.instances("web").len() == 1 && world.holds("internal", "api").len() == 1 && ttls == [Some(30); 2]
    };
    always("all of it stays", Duration::from_mins(2), stays).await;
    blue.put_endpoints("web", &["10.0.0.2"]);
    until("endpoints are followed", || world.instances("web").iter().any(|id| id.ends_with("-2"))).await;
    blue.put_export("web", &[(names::ANNOTATION_TTL, "20")]);
    until("and the TTL again", || world.ttl("shop", "web") == Some(20)).await;
    blue.until_says("web", "Registered", "True", "Registered").await;

    blue.put_service("new", 80);
    blue.put_endpoints("new", &["10.0.0.3"]);
    blue.put_export("new", &[(names::ANNOTATION_RECORDS, "A,SRV")]);
    blue.until_says("new", "Registered", "False", "InvalidAnnotation").await;
    always("nothing is made", Duration::from_mins(1), || world.service("shop", "new").is_none()).await;
}

/// Who it was taken over from is what allows to register in a service that external-dns made.
#[tokio::test(start_paused = true)]
async fn while_it_cannot_be_understood_who_a_service_is_taken_over_from_it_stays_taken_over() {
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let heritage = "heritage=external-dns,external-dns/owner=eks";
    for (name, ip) in [("web", "10.9.0.1"), ("api", "10.9.0.2"), ("new", "10.9.0.3")] {
        let theirs = world.fake.registry().add_service(&internal, name, "random", heritage);
        world.add_instance(&theirs, ip, &[("AWS_INSTANCE_IPV4", ip)]);
    }
    let mut blue = world.cluster("blue");
    blue.objects.annotate_namespace("shop", &[(names::ANNOTATION_ALLOW_ADOPT, "*")]);
    blue.put_service("web", 80);
    let (right, wrong) = ("external-dns/eks", "external-dns");
    let export = |blue: &Cluster, name, adopt| {
        let target = [(names::ANNOTATION_TARGET_NAMESPACE, "internal"), (names::ANNOTATION_ADOPT, adopt)];
        blue.put_export(name, &target);
    };
    let annotate = |blue: &Cluster, adopt, addresses: &[&str]| {
        blue.headless("api", &[(HOSTNAME, "api.internal"), (names::ANNOTATION_ADOPT, adopt)], addresses);
    };
    let hold =
        |web: &str, api: &str| world.holds("internal", "web") == [web] && world.holds("internal", "api") == [api];
    blue.put_endpoints("web", &["10.0.0.1"]);
    export(&blue, "web", right);
    annotate(&blue, right, &["10.0.0.2"]);
    until("both are taken over", || hold("10.0.0.1", "10.0.0.2")).await;
    export(&blue, "web", wrong);
    annotate(&blue, wrong, &["10.0.0.2"]);
    blue.until_says("web", "Registered", "False", "InvalidAnnotation").await;
    blue.until_noted("api", "InvalidAnnotation").await;
    always("they stay", Duration::from_mins(8), || hold("10.0.0.1", "10.0.0.2")).await;
    blue.put_endpoints("web", &["10.0.0.3"]);
    annotate(&blue, wrong, &["10.0.0.4"]);
    until("endpoints are followed", || hold("10.0.0.3", "10.0.0.4")).await;

    // Where nothing of ours is, nothing was allowed.
    blue.put_service("new", 80);
    blue.put_endpoints("new", &["10.0.0.5"]);
    export(&blue, "new", wrong);
    blue.until_says("new", "Registered", "False", "InvalidAnnotation").await;
    blue.kill();
    blue.lead();
    always("also after a restart", Duration::from_mins(8), || hold("10.0.0.3", "10.0.0.4")).await;
    blue.put_endpoints("web", &["10.0.0.1"]);
    annotate(&blue, wrong, &["10.0.0.2"]);
    until("endpoints are followed", || hold("10.0.0.1", "10.0.0.2")).await;
    assert_eq!(world.holds("internal", "new"), ["10.9.0.3=10.9.0.3"]);
    for name in ["web", "new"] {
        export(&blue, name, right);
        blue.until_says(name, "Registered", "True", "Registered").await;
    }
    until("it is taken over, too", || world.holds("internal", "new") == ["10.0.0.5"]).await;
    assert!(hold("10.0.0.1", "10.0.0.2"));
}
