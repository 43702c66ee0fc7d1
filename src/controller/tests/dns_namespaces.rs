//! `--create-dns-namespaces`: missing Cloud Map namespaces are made with DNS.

use std::{collections::BTreeSet, time::Duration};

use super::{
    annotated::{HOSTNAME, PYTHON},
    iam::check,
    world::{Cluster, World, always, key, until},
};
use api::names;
use cloudmap::{NamespaceKind, Operation, RecordType};
use iam::Mode;
use instances::MissingNamespaces;

const NAMESPACE: &str = names::ANNOTATION_TARGET_NAMESPACE;

fn cluster(world: &World, id: &str) -> Cluster {
    let mut cluster = world.cluster(id);
    cluster.kill();
    cluster.missing_namespaces = MissingNamespaces::Private("vpc-0123456789abcdef0".parse().unwrap());
    cluster.lead();
    cluster
}

/// The kinds of the namespaces beside the ledger.
fn kinds(world: &World) -> BTreeSet<(String, NamespaceKind)> {
    let registry = world.fake.registry();
    let others = registry.namespaces.iter().filter(|it| !it.name.starts_with("clusterset-"));
    others.map(|it| (it.name.to_string(), it.kind)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_export_makes_its_namespace_with_dns_and_has_records_there() {
    let world = World::new();
    let (blue, green) = (cluster(&world, "blue"), cluster(&world, "green"));
    blue.until_knows(&green).await;
    blue.export("web", 80, &["10.0.0.1"]);
    green.export("web", 80, &["10.1.0.1"]);
    until("both are registered", || world.holds("shop", "web") == ["10.0.0.1", "10.1.0.1"]).await;
    blue.until_says("web", "Registered", "True", "Registered").await;
    assert_eq!(kinds(&world), [("shop".to_owned(), NamespaceKind::DnsPrivate)].into());
    let records = world.service("shop", "web").unwrap().dns.unwrap().records;
    assert_eq!(records.iter().map(|record| record.record_type).collect::<Vec<_>>(), [RecordType::A]);
    let without_dns = (Operation::CreateHttpNamespace, "shop".to_owned());
    assert!(!world.fake.registry().calls.contains(&without_dns));
    let called = check(&world, &[Mode::Instances, Mode::DnsNamespaces]);
    assert!(called.contains("CreatePrivateDnsNamespace"), "{called:?}");

    // It stays when nothing needs it any more: others may know its zone.
    for cluster in [&blue, &green] {
        cluster.objects.remove_export(&key("web"));
    }
    until("it is withdrawn", || world.service("shop", "web").is_none()).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(kinds(&world).len(), 1);
    assert_eq!(world.fake.registry().count(Operation::DeleteNamespace), 0);
}

#[tokio::test(start_paused = true)]
async fn the_same_namespaces_are_made_as_without_dns_and_none_for_host_names() {
    let world = World::new();
    let blue = cluster(&world, "blue");
    blue.headless("host", &[(HOSTNAME, "host.internal")], &["10.0.0.1"]);
    blue.headless("python", &[(PYTHON[0], "internal"), (PYTHON[1], "python")], &["10.0.0.2"]);
    blue.export("granted", 80, &["10.0.0.3"]);
    blue.put_export("granted", &[(NAMESPACE, "team.example")]);
    blue.until_says("granted", "Registered", "False", "NoNamespace").await;
    always("nothing is made", Duration::from_mins(5), || kinds(&world).is_empty()).await;
    blue.objects.annotate_namespace("shop", &[(names::ANNOTATION_MAY_CREATE, "team.example")]);
    until("the listed one is made", || world.holds("team.example", "granted") == ["10.0.0.3"]).await;
    assert_eq!(kinds(&world), [("team.example".to_owned(), NamespaceKind::DnsPrivate)].into());
}

#[tokio::test(start_paused = true)]
async fn a_name_that_the_vpc_has_already_is_said_on_the_export_and_heals() {
    let world = World::new();
    world.fake.registry().zones.insert("shop".to_owned());
    let mut blue = cluster(&world, "blue");
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Registered", "False", "NoNamespace").await;
    let text = blue.condition("web", "Registered").unwrap().message;
    assert!(text.contains("same domain name") && text.contains("list-hosted-zones-by-vpc"), "{text}");
    // A new leader comes to the same.
    blue.kill();
    blue.lead();
    tokio::time::sleep(Duration::from_mins(5)).await;
    blue.until_says("web", "Registered", "False", "NoNamespace").await;
    assert!(kinds(&world).is_empty());
    world.fake.registry().zones.clear();
    blue.until_says("web", "Registered", "True", "Registered").await;
    assert_eq!(world.holds("shop", "web"), ["10.0.0.1"]);
}
