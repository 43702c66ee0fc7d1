//! Holds the policies that `cloudmap-mcs iam` prints to the calls that the controller makes.

use std::{collections::BTreeSet, time::Duration};

use super::{
    annotated::{HOSTNAME, PYTHON},
    world::{World, key, until},
};
use api::names;
use cloudmap::{DnsConfig, DnsRecord, NamespaceKind, RecordType};
use iam::{Effect, Mode, Scope, statements};
use instances::Selection;

/// The Cloud Map operations that these modes allow.
fn allowed(modes: &[Mode]) -> BTreeSet<String> {
    let some = || vec!["some".to_owned()];
    let scope = Scope {
        clusterset: Some("prod".parse().unwrap()),
        cluster_uid: Some("uid".to_owned()),
        namespaces: some(),
        namespace_ids: some(),
        services: some(),
        ..Scope::default()
    };
    let allowing = statements(modes, &scope).unwrap().into_iter().filter(|statement| statement.effect == Effect::Allow);
    let actions = allowing.flat_map(|statement| statement.action.0);
    actions.filter_map(|action| action.strip_prefix("servicediscovery:").map(str::to_owned)).collect()
}

fn called(world: &World) -> BTreeSet<String> {
    world.fake.registry().calls.iter().map(|(operation, _)| operation.name().to_owned()).collect()
}

/// The calls that were made, all of which these modes allow.
pub(super) fn check(world: &World, modes: &[Mode]) -> BTreeSet<String> {
    let (called, allowed) = (called(world), allowed(modes));
    let refused: Vec<_> = called.difference(&allowed).collect();
    assert!(refused.is_empty(), "{modes:?} do not allow {refused:?}");
    called
}

/// An export that comes, changes and goes; `instances` is what is registered of it.
async fn exporting(world: &World, instances: Selection) {
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.instances = instances;
    blue.lead();
    blue.export("web", 80, &["10.0.0.1", "10.0.0.2"]);
    blue.until_says("web", "Ready", "True", "Exported").await;
    let registered = if instances == Selection::None { 0 } else { 2 };
    until("it is registered", || world.instances("web").len() == registered).await;
    blue.put_endpoints("web", &["10.0.0.1"]);
    blue.until_imports("web", &["10.0.0.1"]).await;
    // Until the ledger is flushed and its garbage collected.
    tokio::time::sleep(Duration::from_mins(6)).await;
    blue.objects.remove_export(&key("web"));
    until("it is gone", || blue.is_clean("web") && world.instances("web").is_empty()).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
}

#[tokio::test(start_paused = true)]
async fn each_mode_makes_the_calls_that_its_policies_allow_and_together_they_make_all() {
    let mut all = BTreeSet::new();
    let world = World::new();
    exporting(&world, Selection::None).await;
    all.extend(check(&world, &[Mode::Ledger]));

    let world = World::new();
    exporting(&world, Selection::All).await;
    all.extend(check(&world, &[Mode::Instances]));

    // Imports alone.
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let orders = world.fake.registry().add_service(&internal, "orders", "ecs", "");
    world.add_instance(&orders, "task", &[("AWS_INSTANCE_IPV4", "10.9.0.1")]);
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.instances = Selection::None;
    blue.lead();
    blue.objects.annotate_namespace("shop", &[(names::ANNOTATION_IMPORT_FROM, "internal")]);
    blue.until_imports("orders", &["10.9.0.1"]).await;
    world.fake.registry().instances.clear();
    until("it follows", || blue.imported("orders").is_empty()).await;
    all.extend(check(&world, &[Mode::Imports]));
    drop(blue);

    // Annotations alone, in no ClusterSet: made in a namespace with DNS, with a health check, and another TTL later.
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.member = false;
    world.fake.registry().calls.clear();
    blue.lead();
    let host = (HOSTNAME, "web.internal");
    blue.headless("web", &[host, (names::ANNOTATION_HEALTH_CHECK, "custom")], &["10.0.0.1", "10.0.0.2"]);
    until("it is registered", || world.holds("internal", "web").len() == 2).await;
    let ttl = ("external-dns.alpha.kubernetes.io/ttl", "5");
    blue.headless("web", &[host, (names::ANNOTATION_HEALTH_CHECK, "custom"), ttl], &["10.0.0.1", "10.0.0.2"]);
    blue.put_readiness("web", &[("10.0.0.1", true), ("10.0.0.2", false)]);
    until("it is unhealthy", || world.fake.registry().unhealthy.len() == 1).await;
    tokio::time::sleep(Duration::from_mins(3)).await;
    blue.objects.remove_service(&key("web"));
    until("it is withdrawn", || world.service("internal", "web").is_none()).await;
    let called = check(&world, &[Mode::Annotated]);
    assert!(called.contains("UpdateService"));
    all.extend(called);
    drop(blue);

    // Only in services of others, one of which external-dns owned.
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let edns = "heritage=external-dns,external-dns/owner=eks,external-dns/resource=service/shop/web";
    for (name, description) in [("web", edns), ("orders", "")] {
        let id = world.fake.registry().add_service(&internal, name, "theirs", description);
        let mut registry = world.fake.registry();
        let service = registry.services.get_mut(&id).unwrap();
        service.custom_health_check = true;
        let records = vec![DnsRecord { record_type: RecordType::A, ttl: 300 }];
        service.dns = Some(DnsConfig { weighted: false, records });
    }
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.member = false;
    blue.annotations = annotations::AnnotationSettings {
        owner_id: Some("eks".to_owned()),
        ..annotations::AnnotationSettings::default()
    };
    world.fake.registry().calls.clear();
    blue.lead();
    blue.headless("web", &[(HOSTNAME, "web.internal")], &["10.0.0.1"]);
    blue.headless("orders", &[(PYTHON[0], "internal"), (PYTHON[1], "orders")], &["10.0.0.1", "10.0.0.2"]);
    until("both are", || world.holds("internal", "web").len() == 1 && world.holds("internal", "orders").len() == 2)
        .await;
    blue.put_readiness("orders", &[("10.0.0.1", true), ("10.0.0.2", false)]);
    until("it is unhealthy", || world.fake.registry().unhealthy.len() == 1).await;
    for name in ["web", "orders"] {
        blue.objects.remove_service(&key(name));
        until("it is withdrawn", || world.holds("internal", name).is_empty()).await;
    }
    all.extend(check(&world, &[Mode::Joining]));

    // Creating with tags is authorized by it.
    all.insert("TagResource".to_owned());
    assert!(!all.contains("DeleteNamespace"), "who discovers by the HttpName of a namespace would lose it");
    assert_eq!(
        all,
        allowed(&[Mode::Instances, Mode::Imports, Mode::Annotated, Mode::Joining]),
        "nothing that is allowed is not needed"
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_id_is_cleaned_up_with_the_calls_that_the_ledger_mode_allows() {
    let world = World::new();
    let mut cluster = world.cluster("blue");
    cluster.kill();
    cluster.instances = Selection::None;
    cluster.lead();
    cluster.export("web", 80, &["10.0.0.1"]);
    cluster.until_says("web", "Ready", "True", "Exported").await;
    cluster.kill();
    cluster.id = "navy".to_owned();
    cluster.lead();
    // Until the head of the former id may go.
    tokio::time::sleep(Duration::from_mins(11)).await;
    let left = || world.fake.registry().services.values().any(|service| service.name.ends_with(".blue"));
    until("what was the former id's is gone", || !left()).await;
    let called = check(&world, &[Mode::Ledger]);
    assert!(called.contains("DeleteService"), "{called:?}");
}
