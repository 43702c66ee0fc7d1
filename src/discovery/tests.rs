//! The reader against a Cloud Map in memory, under simulated time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use super::*;
use cloudmap::{
    ErrorKind, NamespaceKind, Operation,
    fake::{Fake, Fault},
};
use instances::Owner;

pub(super) struct World {
    pub(super) subscribed: watch::Sender<Arc<BTreeSet<Arc<str>>>>,
    handle: DiscoveryHandle,
}

pub(super) fn set(names: &[&str]) -> Arc<BTreeSet<Arc<str>>> {
    Arc::new(names.iter().map(|name| Arc::from(*name)).collect())
}

impl World {
    pub(super) fn start(fake: Fake, subscribed: &[&str]) -> Self {
        let identity = Owner {
            clusterset: Some("prod".parse().unwrap()),
            cluster: "c1".parse().unwrap(),
            cluster_uid: "u".into(),
        };
        let (sender, receiver) = watch::channel(set(subscribed));
        let fake = Arc::new(fake);
        let handle = spawn(&DiscoverySettings::new(identity), (None, Registry::new(fake)), BTreeMap::new(), receiver);
        Self { subscribed: sender, handle }
    }

    pub(super) fn found(&self) -> Arc<Discovered> {
        self.handle.found().borrow().clone()
    }

    /// The last octets of the addresses discovered in a service; `None` if it was not read.
    pub(super) fn octets(&self, namespace: &str, service: &str) -> Option<Vec<u8>> {
        let found = self.found();
        let service = found.namespaces.get(namespace)?.services.get(service)?;
        let mut octets: Vec<u8> =
            service.reading.as_ref()?.backends().map(|backend| backend.ipv4.unwrap().octets()[3]).collect();
        octets.sort_unstable();
        Some(octets)
    }

    pub(super) async fn until(&self, what: &str, within: Duration, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + within;
        while !holds(self) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.found());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// These are the last octets of `internal/orders`, for so long.
    async fn stays(&self, octets: &[u8], within: Duration) {
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            assert_eq!(self.octets("internal", "orders").as_deref(), Some(octets));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(super) fn trouble(&self, namespace: &str) -> Option<Trouble> {
        self.found().namespaces.get(namespace)?.trouble.clone()
    }
}

/// A Cloud Map with the service `internal/orders`, which has the instances `a` and `b`. Returns it with the id of the service.
fn orders_of_two() -> (Fake, Arc<str>) {
    let fake = Fake::new();
    let namespace = add_namespace(&fake, "internal");
    let orders = add_service(&fake, &namespace, "orders");
    for (id, ip) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        add_instance(&fake, &orders, id, ip);
    }
    (fake, orders)
}

pub(super) fn add_instance(fake: &Fake, service: &Arc<str>, id: &str, ip: &str) {
    let attributes: BTreeMap<_, _> =
        [("AWS_INSTANCE_IPV4", ip), ("ECS_CLUSTER_NAME", "prod")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    fake.registry().instances.insert((service.clone(), id.into()), attributes);
}

pub(super) fn remove_instance(fake: &Fake, service: &Arc<str>, id: &str) {
    fake.registry().instances.remove(&(service.clone(), id.into()));
}

pub(super) fn add_service(fake: &Fake, namespace: &Arc<str>, name: &str) -> Arc<str> {
    fake.registry().add_service(namespace, name, "terraform", "")
}

pub(super) fn add_namespace(fake: &Fake, name: &str) -> Arc<str> {
    fake.registry().add_namespace(name, NamespaceKind::DnsPrivate)
}

pub(super) const SOON: Duration = Duration::from_secs(5);

#[tokio::test(start_paused = true)]
async fn reads_a_namespace_by_its_name_no_matter_what_its_http_name_is_and_follows_it() {
    let fake = Fake::new();
    let internal = add_namespace(&fake, "internal");
    fake.registry().namespaces[0].http_name = "internal-8f3a".into();
    let orders = add_service(&fake, &internal, "orders");
    let legacy = add_service(&fake, &internal, "Legacy_1");
    add_instance(&fake, &orders, "a", "10.0.0.1");
    let world = World::start(fake.clone(), &["internal"]);
    world.until("orders", SOON, |world| world.octets("internal", "orders") == Some(vec![1])).await;
    let renamed = label("Legacy_1");
    world.until("an empty service", SOON, |world| world.octets("internal", &renamed) == Some(vec![])).await;
    world.until("all are listed twice", SOON * 2, |world| world.found().namespaces["internal"].listed).await;

    add_instance(&fake, &legacy, "b", "10.0.0.2");
    remove_instance(&fake, &orders, "a");
    world.until("an instance came", SOON, |world| world.octets("internal", &renamed) == Some(vec![2])).await;
    world.until("an instance went", SOON, |world| world.octets("internal", "orders") == Some(vec![])).await;
    fake.registry().unhealthy.insert((legacy.clone(), "b".into()));
    let healthy = |world: &World| {
        let found = world.found();
        let reading = found.namespaces["internal"].services[&*renamed].reading.clone().unwrap();
        reading.backends().all(|backend| backend.healthy)
    };
    assert!(healthy(&world));
    world.until("it is unhealthy", SOON, |world| !healthy(world)).await;

    let later = add_service(&fake, &internal, "later");
    add_instance(&fake, &later, "c", "10.0.0.3");
    world.until("a new service", SOON * 4, |world| world.octets("internal", "later") == Some(vec![3])).await;
    world.subscribed.send_replace(set(&[]));
    world.until("no subscription is left", SOON, |world| world.found().namespaces.is_empty()).await;
    tokio::time::sleep(SOON).await;
    let calls = fake.registry().calls.len();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(fake.registry().calls.len(), calls, "and nothing is asked");
}

#[tokio::test(start_paused = true)]
async fn changes_of_two_hundred_services_are_seen_within_five_seconds_at_the_reported_cost() {
    let fake = Fake::new();
    let namespace = add_namespace(&fake, "internal");
    let services: Vec<_> = (0..200).map(|n| add_service(&fake, &namespace, &format!("s{n}"))).collect();
    for service in &services {
        add_instance(&fake, service, "a", "10.0.0.1");
    }
    let world = World::start(fake.clone(), &["internal"]);
    let all = |world: &World, wanted: &[u8]| {
        (0..200).all(|n| world.octets("internal", &format!("s{n}")).as_deref() == Some(wanted))
    };
    world.until("all are read", Duration::from_secs(20), |world| all(world, &[1])).await;
    for round in 2..5 {
        tokio::time::sleep(Duration::from_millis(u64::from(round) * 7_919)).await;
        for service in &services {
            remove_instance(&fake, service, "a");
            add_instance(&fake, service, "a", &format!("10.0.0.{round}"));
        }
        world.until("all changes are seen", SOON, |world| all(world, &[round])).await;
    }
    // Until all of them count as idle.
    tokio::time::sleep(Duration::from_mins(2)).await;
    let looks = || fake.registry().count(Operation::DiscoverInstances);
    let (before, listed) = (looks(), fake.registry().count(Operation::ListInstances));
    tokio::time::sleep(Duration::from_mins(1)).await;
    let figures = *world.handle.figures().borrow();
    assert_eq!((figures.services, figures.instances, figures.namespaces), (200, 200, 1));
    assert_eq!(figures.idle_period, Duration::from_secs(4));
    let rate = (looks() - before) as f64 / 60.0;
    assert!((rate - figures.calls_per_second).abs() < 2.0, "{rate} {figures:?}");
    assert_eq!(fake.registry().count(Operation::ListInstances), listed, "nothing else while nothing changes");
}

#[tokio::test(start_paused = true)]
async fn more_than_a_thousand_instances_are_read_page_by_page() {
    let fake = Fake::new();
    let namespace = add_namespace(&fake, "internal");
    let wide = add_service(&fake, &namespace, "wide");
    for n in 0..1_300_u32 {
        add_instance(&fake, &wide, &format!("{n:05}"), &std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string());
        if n % 2 == 0 {
            fake.registry().unhealthy.insert((wide.clone(), format!("{n:05}").into()));
        }
    }
    let world = World::start(fake.clone(), &["internal"]);
    let counts = |world: &World| {
        let found = world.found();
        let reading = found.namespaces.get("internal")?.services.get("wide")?.reading.clone()?;
        Some((reading.backends().count(), reading.backends().filter(|backend| backend.healthy).count()))
    };
    world.until("all are read", SOON, |world| counts(world) == Some((1_300, 650))).await;
    // While they cannot be listed, instances beyond the first thousand stay.
    for _ in 0..200 {
        fake.fault(Operation::ListInstances, Fault::Refused(ErrorKind::Throttled));
    }
    remove_instance(&fake, &wide, "01299");
    let deadline = Instant::now() + Duration::from_mins(1);
    while Instant::now() < deadline {
        assert_eq!(counts(&world), Some((1_300, 650)));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    fake.registry().faults.clear();
    world.until("it went", Duration::from_mins(2), |world| counts(world) == Some((1_299, 649))).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_gone_only_if_the_control_plane_agrees() {
    let (fake, orders) = orders_of_two();
    // This also holds for the first reading, before anything is known.
    fake.registry().undiscovered.insert((orders.clone(), "a".into()));
    let world = World::start(fake.clone(), &["internal"]);
    world.until("both are read", SOON, |world| world.octets("internal", "orders").is_some()).await;
    fake.registry().undiscovered.insert((orders.clone(), "b".into()));
    world.stays(&[1, 2], Duration::from_mins(1)).await;
    remove_instance(&fake, &orders, "a");
    world.until("it went", SOON, |world| world.octets("internal", "orders") == Some(vec![2])).await;
}

/// Replicas of the discovery plane lag, each by another time.
#[tokio::test(start_paused = true)]
async fn an_instance_that_went_does_not_come_back_with_an_older_answer() {
    let (fake, orders) = orders_of_two();
    let world = World::start(fake.clone(), &["internal"]);
    world.until("both are read", SOON, |world| world.octets("internal", "orders") == Some(vec![1, 2])).await;
    let key: (Arc<str>, Arc<str>) = (orders.clone(), "a".into());
    let went = fake.registry().instances.remove(&key).unwrap();
    world.until("it went", SOON, |world| world.octets("internal", "orders") == Some(vec![2])).await;
    fake.registry().lingering.insert(key.clone(), went.clone());
    world.stays(&[2], Duration::from_secs(20)).await;
    fake.registry().lingering.clear();
    // Many ids are addresses, which are used again.
    fake.registry().instances.insert(key, went);
    world.until("it is there again", SOON, |world| world.octets("internal", "orders") == Some(vec![1, 2])).await;
}

/// Otherwise tasks that are gone would stay forever, and nothing would say why.
#[tokio::test(start_paused = true)]
async fn while_instances_cannot_be_listed_those_that_went_stay_and_that_is_reported() {
    for kind in [ErrorKind::AccessDenied, ErrorKind::Throttled] {
        let (fake, orders) = orders_of_two();
        let world = World::start(fake.clone(), &["internal"]);
        world.until("both are read", SOON, |world| world.octets("internal", "orders") == Some(vec![1, 2])).await;
        for _ in 0..1000 {
            fake.fault(Operation::ListInstances, Fault::Refused(kind.clone()));
        }
        remove_instance(&fake, &orders, "a");
        add_instance(&fake, &orders, "c", "10.0.0.3");
        world.until("one came", SOON, |world| world.octets("internal", "orders") == Some(vec![1, 2, 3])).await;
        let error = |world: &World| world.found().namespaces["internal"].services["orders"].error.clone();
        world
            .until("it is reported", SOON * 6, |world| {
                error(world).is_some_and(|error| error.contains("ListInstances"))
            })
            .await;
        fake.registry().faults.clear();
        world
            .until("it went", SOON * 6, |world| {
                world.octets("internal", "orders") == Some(vec![2, 3]) && error(world).is_none()
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_failure_removes_what_was_read() {
    let fake = Fake::new();
    let namespace = add_namespace(&fake, "internal");
    let (orders, bad) = (add_service(&fake, &namespace, "orders"), add_service(&fake, &namespace, "bad"));
    for service in [&orders, &bad] {
        add_instance(&fake, service, "a", "10.0.0.1");
    }
    let world = World::start(fake.clone(), &["internal"]);
    let both =
        |world: &World| ["orders", "bad"].map(|name| world.octets("internal", name)) == [Some(vec![1]), Some(vec![1])];
    world.until("both are read", SOON, both).await;
    for operation in
        [Operation::ListNamespaces, Operation::ListServices, Operation::ListInstances, Operation::DiscoverInstances]
    {
        for kind in [ErrorKind::AccessDenied, ErrorKind::NotFound, ErrorKind::Unknown] {
            for _ in 0..30 {
                fake.fault(operation, Fault::Refused(kind.clone()));
            }
        }
    }
    remove_instance(&fake, &orders, "a");
    let deadline = Instant::now() + Duration::from_mins(2);
    while Instant::now() < deadline {
        assert!(both(&world) || world.octets("internal", "orders") == Some(vec![]), "{:?}", world.found());
        if !fake.registry().faults[&Operation::DiscoverInstances].is_empty() {
            assert!(both(&world), "nothing was read that says otherwise");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(matches!(world.trouble("internal"), Some(Trouble::Failed(_))));
    fake.registry().faults.clear();
    world
        .until("it recovers", Duration::from_mins(5), |world| {
            world.octets("internal", "orders") == Some(vec![]) && world.trouble("internal").is_none()
        })
        .await;
    world.until("the figures say so", SOON, |world| world.handle.figures().borrow().unreadable_namespaces == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_is_gone_after_two_listings_without_it() {
    let fake = Fake::new();
    let namespace = add_namespace(&fake, "internal");
    let orders = add_service(&fake, &namespace, "orders");
    add_instance(&fake, &orders, "a", "10.0.0.1");
    let world = World::start(fake.clone(), &["internal"]);
    world
        .until("all are listed", SOON * 3, |world| {
            world.octets("internal", "orders").is_some() && world.found().namespaces["internal"].listed
        })
        .await;
    let service = fake.registry().services.remove(&orders).unwrap();
    let listings = fake.registry().count(Operation::ListServices);
    world.until("it is missed once", SOON * 4, |_| fake.registry().count(Operation::ListServices) > listings).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.octets("internal", "orders"), Some(vec![1]));
    fake.registry().services.insert(orders.clone(), service);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(world.octets("internal", "orders"), Some(vec![1]), "it was a slip of the listing");
    fake.registry().services.remove(&orders);
    world.until("it is gone", Duration::from_mins(1), |world| world.octets("internal", "orders").is_none()).await;
    assert!(world.found().namespaces["internal"].listed);
}

#[tokio::test(start_paused = true)]
async fn a_missing_namespace_is_reported_and_later_found_and_affects_no_other() {
    let fake = Fake::new();
    let there = add_namespace(&fake, "there");
    let orders = add_service(&fake, &there, "orders");
    add_instance(&fake, &orders, "a", "10.0.0.1");
    let world = World::start(fake.clone(), &["later", "there"]);
    world.until("the other is read", SOON, |world| world.octets("there", "orders") == Some(vec![1])).await;
    assert_eq!(world.trouble("later"), Some(Trouble::NotFound));
    assert_eq!(world.trouble("there"), None);
    let later = add_namespace(&fake, "later");
    let web = add_service(&fake, &later, "web");
    add_instance(&fake, &web, "b", "10.0.0.2");
    world.until("it is found", Duration::from_secs(20), |world| world.octets("later", "web") == Some(vec![2])).await;
    assert_eq!(world.trouble("later"), None);
    // It disappears again, as if the account were changed by mistake.
    let arn = |arn: &str| fake.registry().namespaces[0].arn = arn.into();
    arn("arn:another-account:there");
    fake.registry().namespaces.retain(|namespace| *namespace.name != *"later");
    world
        .until("it is missed", Duration::from_mins(2), |world| world.trouble("later") == Some(Trouble::NotFound))
        .await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(world.octets("later", "web"), Some(vec![2]), "what was read stays");

    // It is the same account, so the namespace was deleted, and AWS deletes none that has services.
    arn("arn:there");
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(world.octets("later", "web"), Some(vec![2]), "it may be a slip of the listing");
    world.until("what was in it is gone", SOON * 10, |world| world.octets("later", "web").is_none()).await;
    assert!(world.found().namespaces["later"].listed && world.trouble("later") == Some(Trouble::NotFound));
    let later = add_namespace(&fake, "later");
    let web = add_service(&fake, &later, "web");
    add_instance(&fake, &web, "c", "10.0.0.3");
    world.until("it is created again", SOON * 8, |world| world.octets("later", "web") == Some(vec![3])).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_can_be_subscribed_by_its_id() {
    let fake = Fake::new();
    let id = add_namespace(&fake, "internal");
    let orders = add_service(&fake, &id, "orders");
    add_instance(&fake, &orders, "a", "10.0.0.1");
    let world = World::start(fake.clone(), &[&id]);
    world.until("it is read", SOON, |world| world.octets(&id, "orders") == Some(vec![1])).await;
}

#[tokio::test(start_paused = true)]
async fn capital_letters_do_not_count_in_the_name_of_a_dns_namespace() {
    let fake = Fake::new();
    for (namespace, kind) in [("internal", NamespaceKind::DnsPrivate), ("plain", NamespaceKind::Http)] {
        let id = fake.registry().add_namespace(namespace, kind);
        let orders = add_service(&fake, &id, "orders");
        add_instance(&fake, &orders, "a", "10.0.0.1");
    }
    let world = World::start(fake.clone(), &["Internal", "Plain"]);
    world.until("it is read", SOON, |world| world.octets("Internal", "orders") == Some(vec![1])).await;
    assert_eq!(world.trouble("Plain"), Some(Trouble::NotFound), "names of API-only namespaces have a case");
}

#[tokio::test(start_paused = true)]
async fn a_ledger_is_never_read_not_even_by_its_id() {
    let fake = Fake::new();
    let id = add_namespace(&fake, "clusterset-prod");
    let heads = add_service(&fake, &id, "clusters");
    add_instance(&fake, &heads, "blue", "10.0.0.1");
    let world = World::start(fake.clone(), &[&id]);
    world.until("it is refused", Duration::from_mins(1), |world| world.trouble(&id).is_some()).await;
    assert!(matches!(world.trouble(&id), Some(Trouble::Failed(why)) if why.contains("ledger")));
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(fake.registry().count(Operation::DiscoverInstances), 0);
}

#[tokio::test(start_paused = true)]
async fn namespaces_that_do_not_exist_delay_nothing() {
    let fake = Fake::new();
    let internal = add_namespace(&fake, "internal");
    add_service(&fake, &internal, "orders");
    let missing: Vec<_> = (0..100).map(|n| format!("missing-{n}")).collect();
    let subscribed: Vec<_> = missing.iter().map(String::as_str).chain(["internal"]).collect();
    let world = World::start(fake.clone(), &subscribed);
    let listed = |world: &World| world.found().namespaces.get("internal").is_some_and(|namespace| namespace.listed);
    world.until("all are listed", SOON * 4, listed).await;
    let later = add_service(&fake, &internal, "later");
    add_instance(&fake, &later, "a", "10.0.0.1");
    world.until("a new service", SOON * 4, |world| world.octets("internal", "later") == Some(vec![1])).await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_service_is_no_failure() {
    let fake = Fake::new();
    let namespace = add_namespace(&fake, "internal");
    let orders = add_service(&fake, &namespace, "orders");
    add_instance(&fake, &orders, "a", "10.0.0.1");
    let world = World::start(fake.clone(), &["internal"]);
    world.until("it is read", SOON, |world| world.octets("internal", "orders") == Some(vec![1])).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    fake.registry().services.remove(&orders);
    let there = |world: &World| world.found().namespaces["internal"].services.get("orders").cloned();
    let deadline = Instant::now() + Duration::from_mins(1);
    while let Some(service) = there(&world) {
        assert!(Instant::now() < deadline);
        assert_eq!(service.error, None);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
