//! Namespaces that another account shares, against a Cloud Map in memory.

use super::tests::*;
use super::*;
use cloudmap::{NamespaceKind, Operation, fake::Fake};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const OWNER: &str = "444455556666";

/// A namespace `apps` that another account shares, with the service `orders` and its instance `a`. Returns its ARN and
/// the service.
fn shared(fake: &Fake, octet: u8) -> (Arc<str>, Arc<str>) {
    let arn = fake.registry().add_shared("apps", OWNER);
    let orders = add_service(fake, &arn, "orders");
    add_instance(fake, &orders, "a", &format!("10.0.0.{octet}"));
    (arn, orders)
}

fn read(world: &World, namespace: &str, octets: &[u8]) -> bool {
    world.octets(namespace, "orders").as_deref() == Some(octets)
}

#[tokio::test(start_paused = true)]
async fn a_shared_namespace_is_read_by_its_arn_and_the_own_ones_are_not_listed() {
    let fake = Fake::new();
    let (arn, orders) = shared(&fake, 1);
    let world = World::start(fake.clone(), &[&arn]);
    world.until("orders", SOON, |world| read(world, &arn, &[1])).await;
    add_instance(&fake, &orders, "b", "10.0.0.2");
    world.until("an instance came", SOON, |world| read(world, &arn, &[1, 2])).await;
    remove_instance(&fake, &orders, "a");
    world.until("an instance went", SOON, |world| read(world, &arn, &[2])).await;
    // The label of its endpoints is no place for the account of somebody else.
    let source = world.found().namespaces[&arn].services["orders"]
        .reading
        .as_ref()
        .unwrap()
        .backends()
        .next()
        .unwrap()
        .source
        .clone();
    assert_eq!(source.as_str(), "ecs-prod");
    assert_eq!(world.trouble(&arn), None);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let count = |operation| fake.registry().count(operation);
    assert_eq!(count(Operation::ListNamespaces), 0);
    assert_eq!(count(Operation::GetNamespace), count(Operation::ListServices));
    assert!((55..=70).contains(&count(Operation::GetNamespace)), "{}", count(Operation::GetNamespace));
    // A service that is gone is gone, if later.
    fake.registry().services.remove(&orders);
    world.until("it went", Duration::from_mins(2), |world| world.octets(&arn, "orders").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn an_own_and_a_shared_namespace_of_one_name_are_two() {
    let fake = Fake::new();
    let (arn, _) = shared(&fake, 1);
    // The owner has two of the name, of which one is shared with a hash in its name for discovery.
    let (other, _) = shared(&fake, 2);
    fake.registry().namespaces[1].http_name = "apps-8f3a".into();
    let own = fake.registry().add_namespace("apps", NamespaceKind::Http);
    let orders = add_service(&fake, &own, "orders");
    add_instance(&fake, &orders, "a", "10.0.0.3");
    let world = World::start(fake.clone(), &["apps", &own, &arn, &other]);
    let each = |world: &World| {
        read(world, "apps", &[3]) && read(world, &own, &[3]) && read(world, &arn, &[1]) && read(world, &other, &[2])
    };
    world.until("each has its own", SOON, each).await;
    // Its id is none of this account.
    let id = arn.rsplit('/').next().unwrap();
    world.subscribed.send_replace(set(&[id]));
    world.until("no namespace", SOON, |world| world.trouble(id) == Some(Trouble::NotFound)).await;
}

/// AWS documents that consumers are cut off at once. Nothing that they see then means that something is gone.
#[tokio::test(start_paused = true)]
async fn the_end_of_sharing_is_a_failed_read_that_takes_nothing_until_it_is_shared_again() {
    let fake = Fake::new();
    let (arn, orders) = shared(&fake, 1);
    let world = World::start(fake.clone(), &[&arn]);
    world.until("orders", SOON, |world| read(world, &arn, &[1])).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(world.found().namespaces[&arn].listed);
    fake.registry().unshared.insert(arn.clone());
    add_instance(&fake, &orders, "b", "10.0.0.2");
    world.until("it is told", Duration::from_secs(30), |world| world.trouble(&arn).is_some()).await;
    let Some(Trouble::Failed(why)) = world.trouble(&arn) else { panic!("{:?}", world.trouble(&arn)) };
    for words in ["AWS RAM", "accepts the invitation", "cloudmap-mcs iam", "GetNamespace"] {
        assert!(why.contains(words), "{why}");
    }
    assert!(!why.contains(OWNER), "{why}");
    let deadline = Instant::now() + Duration::from_mins(20);
    while Instant::now() < deadline {
        assert!(read(&world, &arn, &[1]), "{:?}", world.found());
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    fake.registry().unshared.clear();
    world.until("it goes on", Duration::from_mins(3), |world| read(world, &arn, &[1, 2])).await;
    world.until("nothing is told any more", Duration::from_mins(3), |world| world.trouble(&arn).is_none()).await;
}

/// Who has read nothing yet does not take the empty list of what is not shared for an empty namespace.
#[tokio::test(start_paused = true)]
async fn what_is_not_shared_yet_is_unknown_and_is_read_when_it_is() {
    let fake = Fake::new();
    let (arn, _) = shared(&fake, 1);
    fake.registry().unshared.insert(arn.clone());
    let world = World::start(fake.clone(), &[&arn]);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let found = world.found().namespaces[&arn].clone();
    assert!(!found.listed && !found.is_absent() && found.services.is_empty(), "{found:?}");
    assert!(matches!(found.trouble, Some(Trouble::Failed(_))), "{found:?}");
    let asked = fake.registry().count(Operation::ListServices);
    assert!(asked <= 12, "{asked}");
    fake.registry().unshared.clear();
    world.until("orders", Duration::from_mins(3), |world| read(world, &arn, &[1])).await;
}

/// Sharing begins and ends in several places of AWS, and perhaps not at the same moment.
#[tokio::test(start_paused = true)]
async fn an_empty_list_counts_only_if_it_lasts() {
    let fake = Fake::new();
    let (arn, orders) = shared(&fake, 1);
    let world = World::start(fake.clone(), &[&arn]);
    world.until("orders", SOON, |world| read(world, &arn, &[1])).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    for _ in 0..3 {
        let service = fake.registry().services.remove(&orders).unwrap();
        tokio::time::sleep(Duration::from_secs(40)).await;
        fake.registry().unshared.insert(arn.clone());
        tokio::time::sleep(Duration::from_secs(40)).await;
        fake.registry().unshared.clear();
        tokio::time::sleep(Duration::from_secs(40)).await;
        fake.registry().services.insert(orders.clone(), service);
        assert!(read(&world, &arn, &[1]), "{:?}", world.found());
        tokio::time::sleep(Duration::from_secs(40)).await;
    }
}

/// Whoever may annotate a namespace may write any number of ARNs.
#[tokio::test(start_paused = true)]
async fn many_arns_that_nobody_shares_take_no_more_listings_than_others() {
    let fake = Fake::new();
    let arns: Vec<Arc<str>> = (0..300).map(|_| fake.registry().add_shared("apps", OWNER)).collect();
    fake.registry().unshared.extend(arns.iter().cloned());
    let own = add_namespace(&fake, "internal");
    let orders = add_service(&fake, &own, "orders");
    add_instance(&fake, &orders, "a", "10.0.0.1");
    let mut subscribed: Vec<&str> = arns.iter().map(|arn| &**arn).collect();
    subscribed.push("internal");
    let world = World::start(fake.clone(), &subscribed);
    world.until("the own one", Duration::from_mins(1), |world| read(world, "internal", &[1])).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    let before = fake.registry().count(Operation::ListServices);
    tokio::time::sleep(Duration::from_mins(20)).await;
    let rate = (fake.registry().count(Operation::ListServices) - before) as f64 / 1200.0;
    assert!(rate < 0.55, "{rate} a second");
}

#[tokio::test(start_paused = true)]
async fn a_shared_ledger_is_not_read() {
    let fake = Fake::new();
    let arn = fake.registry().add_shared("clusterset-prod", OWNER);
    add_service(&fake, &arn, "clusters");
    let world = World::start(fake.clone(), &[&arn]);
    world
        .until(
            "it is told",
            SOON,
            |world| matches!(world.trouble(&arn), Some(Trouble::Failed(why)) if why.contains("ledger")),
        )
        .await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(fake.registry().count(Operation::DiscoverInstances), 0);
}
