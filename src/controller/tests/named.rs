//! The Cloud Map namespaces that annotations name: by id, with other capital letters, and missing ones.

use std::time::Duration;

use super::{
    annotated::PYTHON,
    world::{World, always, until},
};
use api::names;
use cloudmap::{ErrorKind, NamespaceKind, Operation, fake::Fault};

const NAMESPACE: &str = names::ANNOTATION_TARGET_NAMESPACE;
const SERVICE: &str = names::ANNOTATION_TARGET_SERVICE;

impl World {
    /// The Cloud Map namespaces, without ledgers.
    fn namespaces(&self) -> Vec<String> {
        let registry = self.fake.registry();
        let names = registry.namespaces.iter().map(|namespace| namespace.name.to_string());
        let mut names: Vec<_> = names.filter(|name| !name.starts_with("clusterset-")).collect();
        names.sort();
        names
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_and_other_capitals_mean_the_namespace_that_is_there() {
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let plain = world.add_namespace("Plain", NamespaceKind::Http);
    let mut blue = world.cluster("blue");
    for (name, annotations) in [
        ("byid", &[(NAMESPACE, &*internal)][..]),
        ("bycase", &[(NAMESPACE, " Internal ")]),
        ("plain", &[(NAMESPACE, &plain), (SERVICE, "Web")]),
        ("both", &[(NAMESPACE, "INTERNAL"), (SERVICE, "Orders")]),
    ] {
        blue.export(name, 80, &["10.0.0.1"]);
        blue.put_export(name, annotations);
    }
    blue.headless("python", &[(PYTHON[0], &internal), (PYTHON[1], "Python")], &["10.0.0.2"]);
    let targets = [
        ("internal", "byid"),
        ("internal", "bycase"),
        ("Plain", "Web"),
        ("internal", "orders"),
        ("internal", "python"),
    ];
    let registered = || targets.iter().all(|(namespace, service)| world.holds(namespace, service).len() == 1);
    until("all are registered", registered).await;
    let text = blue.condition("byid", "Registered").unwrap().message;
    assert!(text.contains("internal/byid"), "{text}");
    assert!(world.service("internal", "byid").unwrap().dns.is_some(), "it has records");
    assert_eq!(world.namespaces(), ["Plain", "internal"], "none is made beside them");

    // A new leader that cannot list them keeps what is registered, and follows it.
    let before = world.fake.registry().services.len();
    blue.kill();
    for _ in 0..20 {
        world.fake.fault(Operation::ListNamespaces, Fault::Refused(ErrorKind::AccessDenied));
    }
    blue.lead();
    always("nothing goes", Duration::from_mins(2), || registered() && world.fake.registry().services.len() == before)
        .await;
    blue.until_says("byid", "Registered", "True", "Registered").await;
    blue.put_endpoints("byid", &["10.0.0.1", "10.0.0.3"]);
    until("endpoints are followed", || world.holds("internal", "byid").len() == 2).await;

    // Another name by the id of a namespace that is not there.
    blue.put_export("byid", &[(NAMESPACE, "ns-0123456789abcdef")]);
    blue.until_says("byid", "Registered", "False", "NoNamespace").await;
    until("the former is withdrawn", || world.service("internal", "byid").is_none()).await;
    assert_eq!(world.namespaces(), ["Plain", "internal"]);
}

/// Else each cluster would register another Service's endpoints in one Cloud Map service.
#[tokio::test(start_paused = true)]
async fn names_in_a_dns_namespace_that_differ_only_in_case_are_one_claim_across_clusters() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    blue.export("web", 80, &["10.0.0.1"]);
    blue.put_export("web", &[(NAMESPACE, "internal"), (SERVICE, "Api")]);
    until("the first has it", || world.holds("internal", "api") == ["10.0.0.1"]).await;
    green.export("other", 80, &["10.1.0.1"]);
    green.put_export("other", &[(NAMESPACE, "Internal"), (SERVICE, "api")]);
    green.until_says("other", "Registered", "False", "NameConflict").await;
    always("it keeps it", Duration::from_mins(2), || world.holds("internal", "api") == ["10.0.0.1"]).await;
}

/// An account has 50.
#[tokio::test(start_paused = true)]
async fn an_annotation_makes_no_cloud_map_namespace_unless_an_administrator_lists_it() {
    let world = World::new();
    let blue = world.cluster("blue");
    for n in 0..60 {
        let name = format!("web-{n}");
        blue.export(&name, 80, &["10.0.0.1"]);
        blue.put_export(&name, &[(NAMESPACE, &format!("junk-{n}"))]);
    }
    blue.export("own", 80, &["10.0.0.2"]);
    until("the own name needs no grant", || world.holds("shop", "own") == ["10.0.0.2"]).await;
    for name in ["web-0", "web-59"] {
        blue.until_says(name, "Registered", "False", "NoNamespace").await;
        let text = blue.condition(name, "Registered").unwrap().message;
        assert!(text.contains("\"junk-") && text.contains(names::ANNOTATION_MAY_CREATE), "{text}");
    }
    assert_eq!(world.namespaces(), ["shop"]);
    blue.objects.annotate_namespace("shop", &[(names::ANNOTATION_MAY_CREATE, "junk-3, *")]);
    until("the listed one is made", || world.holds("junk-3", "web-3") == ["10.0.0.1"]).await;
    assert_eq!(world.namespaces(), ["junk-3", "shop"]);
    // Who does not need it any more finds the namespace there.
    blue.objects.annotate_namespace("shop", &[]);
    always("it stays registered", Duration::from_mins(1), || world.holds("junk-3", "web-3") == ["10.0.0.1"]).await;
}

/// Names in DNS have no case, and a second namespace would be another one with the same name.
#[tokio::test(start_paused = true)]
async fn the_name_of_a_kubernetes_namespace_makes_none_beside_a_dns_namespace_with_capitals() {
    let world = World::new();
    world.add_namespace("Shop", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Registered", "False", "NoNamespace").await;
    let text = blue.condition("web", "Registered").unwrap().message;
    assert!(text.contains("\"shop\"") && text.contains("\"Shop\""), "{text}");
    assert_eq!(world.namespaces(), ["Shop"]);
    blue.put_export("web", &[(NAMESPACE, "Shop")]);
    until("it is registered there", || world.holds("Shop", "web") == ["10.0.0.1"]).await;
}
