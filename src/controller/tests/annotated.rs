//! Annotated Services: registered, followed, withdrawn, claimed, and said about.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use super::world::{Cluster, World, always, key, until};
use api::events::Severity;
use cloudmap::{Attributes, NamespaceKind, Operation, RecordType, Service};
use cluster::events::EventRecord;
use instances::Selection;

pub(super) const HOSTNAME: &str = "external-dns.alpha.kubernetes.io/hostname";
pub(super) const PYTHON: [&str; 2] = ["cloudmap.controller/namespace", "cloudmap.controller/hostname"];

impl World {
    pub(super) fn add_namespace(&self, name: &str, kind: NamespaceKind) -> Arc<str> {
        self.fake.registry().add_namespace(name, kind)
    }

    pub(super) fn service(&self, namespace: &str, service: &str) -> Option<Service> {
        let registry = self.fake.registry();
        let namespace = registry.namespaces.iter().find(|there| &*there.name == namespace)?.id.clone();
        registry.services.values().find(|s| &*s.name == service && s.namespace_id.as_ref() == Some(&namespace)).cloned()
    }

    /// The addresses or host names in a service, sorted, with the ids for those that are not ours.
    pub(super) fn holds(&self, namespace: &str, service: &str) -> Vec<String> {
        let Some(service) = self.service(namespace, service) else { return vec![] };
        let registry = self.fake.registry();
        let keys = ["AWS_INSTANCE_IPV4", "AWS_ALIAS_DNS_NAME", "AWS_INSTANCE_CNAME"];
        let inside = registry.instances.iter().filter(|((id, _), _)| *id == service.id);
        let mut held: Vec<_> = inside
            .map(|((_, id), attributes)| {
                let address = keys.iter().find_map(|&key| attributes.get(key)).cloned().unwrap_or_default();
                if id.starts_with("k8s-") { address } else { format!("{id}={address}") }
            })
            .collect();
        held.sort();
        held
    }

    pub(super) fn add_instance(&self, service_id: &Arc<str>, id: &str, attributes: &[(&str, &str)]) {
        let attributes: Attributes = attributes.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.fake.registry().instances.insert((service_id.clone(), id.into()), attributes);
    }
}

impl Cluster {
    pub(super) fn annotate(&self, name: &str, annotations: &[(&str, &str)], spec: &Value) {
        let annotations: std::collections::BTreeMap<_, _> = annotations.iter().copied().collect();
        let service: core::Service = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": name, "annotations": annotations},
            "spec": spec,
        }))
        .unwrap();
        self.objects.put_service(service);
    }

    /// A headless Service with ready pods.
    pub(super) fn headless(&self, name: &str, annotations: &[(&str, &str)], addresses: &[&str]) {
        self.put_endpoints(name, addresses);
        let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
        let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"], "ports": ports});
        self.annotate(name, annotations, &spec);
    }

    /// Waits for an Event on a Service, and returns its text.
    pub(super) async fn until_noted(&self, name: &str, reason: &str) -> String {
        let deadline = tokio::time::Instant::now() + Duration::from_mins(10);
        let wanted = |note: &EventRecord| note.reason == reason && note.regarding.name.as_deref() == Some(name);
        loop {
            if let Some(note) = self.objects.take_note(wanted) {
                assert_eq!(note.regarding.kind.as_deref(), Some("Service"));
                let bad = !["IPRegistered", "IPRemoved", "ServiceDeleted"].contains(&reason);
                assert_eq!(note.reason.severity() == Severity::Warning, bad, "{note:?}");
                return note.text;
            }
            let in_time = tokio::time::Instant::now() < deadline;
            assert!(in_time, "no {reason} on {name}, only {:?}", self.objects.take_notes());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_services_of_both_tools_are_registered_followed_and_withdrawn() {
    let world = World::new();
    world.add_namespace("test-namespace", NamespaceKind::Http);
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    blue.headless("nginx", &[(PYTHON[0], "test-namespace"), (PYTHON[1], "nginx-service")], &["10.0.0.1", "10.0.0.2"]);
    blue.headless("web", &[(HOSTNAME, "web.internal,www.internal")], &["10.0.0.3"]);
    until("both are registered", || {
        world.holds("test-namespace", "nginx-service") == ["10.0.0.1", "10.0.0.2"]
            && world.holds("internal", "web") == ["10.0.0.3"]
            && world.holds("internal", "www") == ["10.0.0.3"]
    })
    .await;
    let text = blue.until_noted("nginx", "IPRegistered").await;
    assert!(text.contains("10.0.0.1, 10.0.0.2") && text.contains("test-namespace/nginx-service"), "{text}");
    let dns = world.service("internal", "web").unwrap().dns.unwrap();
    assert_eq!((dns.records[0].record_type, dns.records[0].ttl, dns.weighted), (RecordType::A, 300, false));
    assert_eq!(
        world.service("test-namespace", "nginx-service").unwrap().dns,
        None,
        "API-only namespaces have no records"
    );

    blue.put_endpoints("nginx", &["10.0.0.2", "10.0.0.9"]);
    until("pods are followed", || world.holds("test-namespace", "nginx-service") == ["10.0.0.2", "10.0.0.9"]).await;
    let text = blue.until_noted("nginx", "IPRemoved").await;
    assert!(text.contains("10.0.0.1 ") && !text.contains("10.0.0.2"), "{text}");

    // One of two names is given up, then the annotation.
    blue.headless("web", &[(HOSTNAME, "web.internal")], &["10.0.0.3"]);
    until("one name is withdrawn", || world.service("internal", "www").is_none()).await;
    assert_eq!(world.holds("internal", "web"), ["10.0.0.3"]);
    blue.headless("web", &[], &["10.0.0.3"]);
    until("the other, too", || world.service("internal", "web").is_none()).await;
    blue.until_noted("web", "IPRemoved").await;

    blue.objects.remove_service(&key("nginx"));
    let text = blue.until_noted("nginx", "ServiceDeleted").await;
    assert!(text.contains("10.0.0.2, 10.0.0.9"), "{text}");
    assert_eq!(world.holds("test-namespace", "nginx-service"), [""; 0]);
    let deleted = world.fake.registry().count(Operation::DeleteNamespace);
    assert_eq!(deleted, 0, "namespaces are neither made nor deleted");
}

#[tokio::test(start_paused = true)]
async fn what_happened_while_nobody_led_is_withdrawn_and_nothing_is_said_twice() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let mut blue = world.cluster("blue");
    for name in ["web", "api", "db"] {
        blue.headless(name, &[(HOSTNAME, &format!("{name}.internal"))], &["10.0.0.1", "10.0.0.2"]);
        until("it is registered", || world.holds("internal", name).len() == 2).await;
        blue.until_noted(name, "IPRegistered").await;
    }
    blue.kill();
    blue.objects.remove_service(&key("web"));
    blue.headless("api", &[(HOSTNAME, "other.internal")], &["10.0.0.1", "10.0.0.2"]);
    blue.lead();
    until("both follow", || {
        world.service("internal", "web").is_none()
            && world.service("internal", "api").is_none()
            && world.holds("internal", "other").len() == 2
    })
    .await;
    let text = blue.until_noted("web", "ServiceDeleted").await;
    assert!(text.contains("10.0.0.1, 10.0.0.2"), "{text}");

    // A leader that finds everything as it is writes nothing and says nothing.
    tokio::time::sleep(Duration::from_mins(2)).await;
    blue.objects.take_notes();
    let before = world.writes().iter().filter(|(operation, _)| *operation == Operation::RegisterInstance).count();
    blue.kill();
    blue.lead();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let after = world.writes().iter().filter(|(operation, _)| *operation == Operation::RegisterInstance).count();
    assert_eq!(after, before);
    let notes = blue.objects.take_notes();
    assert!(notes.iter().all(|note| note.regarding.kind.as_deref() != Some("Service")), "{notes:?}");
}

/// Under the Python controller two Services with one name evicted each other every minute.
#[tokio::test(start_paused = true)]
async fn of_two_services_that_want_one_name_the_older_claim_wins_through_restarts() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::Http);
    world.add_namespace("other", NamespaceKind::Http);
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    green.until_knows(&blue).await;
    let wants = |namespace| [(PYTHON[0], namespace), (PYTHON[1], "web")];
    blue.headless("a", &wants("internal"), &["10.0.0.1"]);
    until("the first is registered", || world.holds("internal", "web") == ["10.0.0.1"]).await;
    blue.headless("b", &wants("internal"), &["10.0.0.2"]);
    green.headless("c", &wants("internal"), &["10.1.0.3"]);
    // The same name in another namespace is no conflict.
    blue.headless("d", &wants("other"), &["10.0.0.4"]);
    until("another namespace is another name", || world.holds("other", "web") == ["10.0.0.4"]).await;
    for (cluster, name) in [(&blue, "b"), (&green, "c")] {
        let text = cluster.until_noted(name, "DomainConflict").await;
        assert!(text.contains("internal/web") && text.contains("Service shop/a of cluster blue"), "{text}");
    }
    // Who waits keeps its date: that of b and c is the same second, and then the cluster's id decides.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    blue.kill();
    blue.lead();
    always("nobody evicts anybody", Duration::from_mins(5), || world.holds("internal", "web") == ["10.0.0.1"]).await;
    // The claim is released: the next oldest takes over, in whichever cluster it is, and keeps it.
    blue.objects.take_notes();
    green.objects.take_notes();
    blue.objects.remove_service(&key("a"));
    let text = blue.until_noted("a", "ServiceDeleted").await;
    assert!(text.contains("Removed 10.0.0.1 "), "{text}");
    until("the next one has it", || world.holds("internal", "web") == ["10.0.0.2"]).await;
    always("it keeps it", Duration::from_mins(2), || world.holds("internal", "web") == ["10.0.0.2"]).await;
    let text = green.until_noted("c", "DomainConflict").await;
    assert!(text.contains("Service shop/b of cluster blue"), "{text}");
    blue.headless("b", &[], &["10.0.0.2"]);
    until("the last one takes over", || world.holds("internal", "web") == ["10.1.0.3"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_name_in_no_namespace_is_refused_on_the_service_until_there_is_one() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    blue.headless("web", &[(HOSTNAME, "web.example.org")], &["10.0.0.1"]);
    let text = blue.until_noted("web", "NoNamespace").await;
    assert!(text.contains("\"web.example.org\"") && text.contains("create a namespace"), "{text}");
    world.add_namespace("example.org", NamespaceKind::DnsPublic);
    until("it is found", || world.holds("example.org", "web") == ["10.0.0.1"]).await;

    blue.headless("py", &[(PYTHON[0], "missing"), (PYTHON[1], "py")], &["10.0.0.2"]);
    let text = blue.until_noted("py", "NoNamespace").await;
    assert!(text.contains("missing/py") && text.contains("create it"), "{text}");
    assert_eq!(world.fake.registry().count(Operation::CreateHttpNamespace), 1, "the ledger's alone");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_of_a_kind_that_is_left_out_is_not_written_to_in_place_of_one_with_the_same_name() {
    let world = World::new();
    let private = world.add_namespace("example.org", NamespaceKind::DnsPrivate);
    world.add_namespace("example.org", NamespaceKind::DnsPublic);
    let mut blue = world.cluster("blue");
    blue.kill();
    let public = Some(annotations::ZoneKind::Public);
    blue.annotations =
        annotations::AnnotationSettings { zone_kind: public, ..annotations::AnnotationSettings::default() };
    blue.lead();
    blue.headless("web", &[(HOSTNAME, "web.example.org")], &["10.0.0.1"]);
    let text = blue.until_noted("web", "NoNamespace").await;
    assert!(text.contains("the private one") && text.contains("delete that namespace"), "{text}");
    let made = || world.fake.registry().services.values().any(|service| &*service.name == "web");
    always("it is registered in neither", Duration::from_mins(5), || !made()).await;

    world.fake.registry().namespaces.retain(|namespace| namespace.id != private);
    until("it is registered in the other", || world.holds("example.org", "web") == ["10.0.0.1"]).await;
    let namespace = world.service("example.org", "web").unwrap().namespace_id;
    assert!(namespace.is_some_and(|namespace| namespace != private));
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_is_an_alias_and_an_ecs_service_is_joined_as_it_is() {
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let ecs = world.fake.registry().add_service(&internal, "orders", "ecs-1", "");
    world.add_instance(
        &ecs,
        "0db8dbd2185c4c0184e80f58fee8ba1d",
        &[("AWS_INSTANCE_IPV4", "10.9.0.1"), ("ECS_SERVICE_NAME", "orders")],
    );
    let blue = world.cluster("blue");
    blue.headless("orders", &[(HOSTNAME, "orders.internal")], &["10.0.0.1"]);
    let task = "0db8dbd2185c4c0184e80f58fee8ba1d=10.9.0.1".to_owned();
    until("pods are beside tasks", || world.holds("internal", "orders") == [task.clone(), "10.0.0.1".to_owned()]).await;

    let balanced = json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]});
    blue.annotate("web", &[(HOSTNAME, "web.internal")], &balanced);
    always("without an address there is nothing", Duration::from_secs(30), || {
        world.service("internal", "web").is_none()
    })
    .await;
    let elb = "web-1.eu-west-1.elb.amazonaws.com";
    let service: core::Service = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "web", "annotations": {HOSTNAME: "web.internal"}},
        "spec": balanced, "status": {"loadBalancer": {"ingress": [{"hostname": elb}]}},
    }))
    .unwrap();
    blue.objects.put_service(service);
    until("the load balancer is", || world.holds("internal", "web") == [elb]).await;
    let dns = world.service("internal", "web").unwrap().dns.unwrap();
    assert!(dns.weighted && dns.records[0].record_type == RecordType::A);

    blue.objects.remove_service(&key("orders"));
    until("tasks stay", || world.holds("internal", "orders") == [task.clone()]).await;
    assert!(world.service("internal", "orders").is_some_and(|service| service.id == ecs), "the service was never ours");
}

#[tokio::test(start_paused = true)]
async fn what_external_dns_owns_is_refused_and_taken_over_by_its_exact_id() {
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let heritage = "heritage=external-dns,external-dns/owner=eks,external-dns/resource=service/shop/web";
    let theirs = world.fake.registry().add_service(&internal, "web", "random", heritage);
    for ip in ["10.0.0.1", "10.0.0.66"] {
        world.add_instance(&theirs, ip, &[("AWS_INSTANCE_IPV4", ip)]);
    }
    world.add_instance(&theirs, "by-hand", &[("AWS_INSTANCE_IPV4", "10.0.0.77")]);
    let mut blue = world.cluster("blue");
    let before = world.holds("internal", "web");
    blue.headless("web", &[(HOSTNAME, "web.internal")], &["10.0.0.1"]);
    let text = blue.until_noted("web", "ForeignOwner").await;
    assert!(!text.contains("eks") && text.contains("cloudmap-mcs/adopt") && text.contains("administrator"), "{text}");
    assert_eq!(world.holds("internal", "web"), before);

    blue.kill();
    blue.annotations = annotations::AnnotationSettings {
        owner_id: Some("eks".to_owned()),
        ..annotations::AnnotationSettings::default()
    };
    blue.lead();
    // Never without an instance: theirs go when ours are there.
    let mut most = 0;
    let taken_over = ["10.0.0.1".to_owned(), "by-hand=10.0.0.77".to_owned()];
    let deadline = tokio::time::Instant::now() + Duration::from_mins(10);
    while world.holds("internal", "web") != taken_over {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", world.holds("internal", "web"));
        let held = world.holds("internal", "web");
        assert!(held.iter().any(|ip| ip == "10.0.0.1" || ip == "10.0.0.1=10.0.0.1"), "{held:?}");
        most = most.max(held.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(most, 4, "ours came before theirs went");
}

#[tokio::test(start_paused = true)]
async fn upsert_only_withdraws_no_name_and_dry_run_registers_none() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.annotations = annotations::AnnotationSettings { dry_run: true, ..annotations::AnnotationSettings::default() };
    blue.lead();
    blue.headless("web", &[(HOSTNAME, "web.internal")], &["10.0.0.1", "10.0.0.2"]);
    always("nothing is registered", Duration::from_mins(2), || world.service("internal", "web").is_none()).await;
    blue.kill();
    blue.annotations =
        annotations::AnnotationSettings { upsert_only: true, ..annotations::AnnotationSettings::default() };
    blue.lead();
    until("it is registered", || world.holds("internal", "web").len() == 2).await;
    blue.put_endpoints("web", &["10.0.0.2"]);
    until("dead pods go", || world.holds("internal", "web") == ["10.0.0.2"]).await;
    blue.put_endpoints("web", &[]);
    always("the last one stays", Duration::from_mins(2), || world.holds("internal", "web") == ["10.0.0.2"]).await;
    blue.objects.remove_service(&key("web"));
    always("the name stays", Duration::from_mins(2), || world.holds("internal", "web") == ["10.0.0.2"]).await;
    // The name is free for others.
    blue.headless("api", &[(HOSTNAME, "web.internal")], &["10.0.0.3"]);
    until("another takes it over", || world.holds("internal", "web") == ["10.0.0.3"]).await;
    // What was registered before stays, and does not hold up who leaves.
    blue.kill();
    blue.annotations = annotations::AnnotationSettings { dry_run: true, ..annotations::AnnotationSettings::default() };
    blue.lead();
    blue.headless("late", &[(HOSTNAME, "late.internal")], &["10.0.0.4"]);
    always("it stays", Duration::from_mins(2), || world.holds("internal", "web") == ["10.0.0.3"]).await;
    blue.set_leaving(true);
    until("it is withdrawn", || world.holds("internal", "web").is_empty()).await;
    until("the cluster has left", || world.has_left("blue")).await;
    assert!(world.service("internal", "late").is_none());
}

/// Otherwise the record would go and the instances would stay, and nobody would withdraw them when the controller is removed.
#[tokio::test(start_paused = true)]
async fn without_any_instances_upsert_only_withdraws_what_is_registered_too() {
    for member in [true, false] {
        let world = World::new();
        world.add_namespace("internal", NamespaceKind::DnsPrivate);
        let mut blue = world.cluster("blue");
        blue.kill();
        blue.member = member;
        blue.annotations =
            annotations::AnnotationSettings { upsert_only: true, ..annotations::AnnotationSettings::default() };
        blue.lead();
        blue.headless("web", &[(HOSTNAME, "web.internal")], &["10.0.0.1"]);
        until("it is registered", || world.holds("internal", "web") == ["10.0.0.1"]).await;
        blue.kill();
        blue.instances = Selection::None;
        blue.lead();
        until("it is withdrawn", || world.holds("internal", "web").is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn outside_a_clusterset_annotated_services_are_registered_and_withdrawn_by_the_record_in_kubernetes() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.member = false;
    blue.lead();
    blue.headless("web", &[(HOSTNAME, "web.internal")], &["10.0.0.1"]);
    blue.export("exported", 80, &["10.0.0.5"]);
    until("it is registered", || world.holds("internal", "web") == ["10.0.0.1"]).await;
    blue.until_noted("web", "IPRegistered").await;
    blue.until_says("exported", "Ready", "False", "Pending").await;
    assert!(world.instances("exported").is_empty(), "without a ClusterSet nothing is exported");
    blue.kill();
    blue.objects.remove_service(&key("web"));
    blue.lead();
    until("it is withdrawn", || world.service("internal", "web").is_none()).await;

    // What was registered before the cluster joined a ClusterSet is still its own.
    blue.headless("web", &[(HOSTNAME, "web.internal")], &["10.0.0.1"]);
    until("it is registered again", || world.holds("internal", "web") == ["10.0.0.1"]).await;
    blue.headless("gone", &[(HOSTNAME, "gone.internal")], &["10.0.0.9"]);
    until("another one is, too", || world.holds("internal", "gone") == ["10.0.0.9"]).await;
    blue.kill();
    blue.objects.remove_service(&key("gone"));
    blue.member = true;
    blue.lead();
    blue.put_endpoints("web", &["10.0.0.2"]);
    until("it goes on", || world.holds("internal", "web") == ["10.0.0.2"]).await;
    until("what went meanwhile is withdrawn", || world.service("internal", "gone").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn while_the_namespaces_cannot_be_listed_nothing_is_concluded_and_it_is_said() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let mut blue = world.cluster("blue");
    blue.headless("web", &[(HOSTNAME, "web.internal")], &["10.0.0.1"]);
    until("it is registered", || world.holds("internal", "web") == ["10.0.0.1"]).await;
    blue.kill();
    world.fail();
    blue.lead();
    let text = blue.until_noted("web", "NamespacesUnknown").await;
    assert!(text.contains("ListNamespaces"), "{text}");
    always("it stays", Duration::from_mins(5), || world.holds("internal", "web") == ["10.0.0.1"]).await;
    world.heal();
    blue.put_endpoints("web", &["10.0.0.2"]);
    until("it goes on", || world.holds("internal", "web") == ["10.0.0.2"]).await;
}
