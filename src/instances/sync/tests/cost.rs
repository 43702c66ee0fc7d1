//! Rates, quotas, and the number of calls.

use super::*;
use cloudmap::{Write as _, fake::permit};

#[tokio::test(start_paused = true)]
async fn a_full_service_is_reported_and_affects_no_other() {
    let world = World::new(Fake::new().with_quota(10));
    let (big, small) = (target("shop", "big"), target("shop", "small"));
    world.desire([
        (big.clone(), active(specs("uid-1", "big", 1..=15, "a"))),
        (small.clone(), active(specs("uid-1", "small", 1..=5, "a"))),
    ]);
    world.refused(&big, Reason::LimitExceeded).await;
    world.registered(&small, 5).await;
    let status = world.until(&big, |status| status.registered == 10).await;
    assert!(matches!(status.outcome, Outcome::Refused { reason: Reason::LimitExceeded, .. }), "{status:?}");
    sleep(Duration::from_mins(10)).await;
    let writes = world.writes();
    assert!(writes < 150, "{writes}: a full service is not hammered");

    // Deregistrations continue, and make room.
    world.desire([
        (big.clone(), active(specs("uid-1", "big", 8..=15, "a"))),
        (small, active(specs("uid-1", "small", 1..=5, "a"))),
    ]);
    world.registered(&big, 8).await;
    assert_eq!(world.instances("big").len(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_change_overtakes_a_long_queue() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=5, "a")))]);
    world.registered(&web, 5).await;

    let bulk = |web_instances: Arc<[InstanceSpec]>| {
        let services = (0..20).map(|i| format!("bulk-{i}"));
        let bulk = services.map(|s| (target("shop", &s), active(specs("uid-1", &s, 1..=500, "a"))));
        bulk.chain([(web.clone(), active(web_instances))]).collect::<Vec<_>>()
    };
    world.desire(bulk(specs("uid-1", "web", 1..=5, "a")));
    sleep(Duration::from_secs(20)).await;
    let queued = world.handle.figures().borrow().queued;
    assert!(queued > 5_000, "{queued}");

    let since = Instant::now();
    world.desire(bulk(specs("uid-1", "web", 2..=6, "a")));
    let wanted: BTreeSet<_> = specs("uid-1", "web", 2..=6, "a").iter().map(|spec| spec.id().clone()).collect();
    while world.instances("web").into_iter().map(|instance| instance.id).collect::<BTreeSet<_>>() != wanted {
        sleep(Duration::from_millis(50)).await;
        assert!(since.elapsed() < Duration::from_secs(10), "the queue starves a change");
    }
    // Its place in the queue, and the operation itself.
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_instances_never_delay_the_ledger() {
    let fake = Fake::new();
    let limits = Limits::new(&Rates::default(), None);
    let shared = Arc::new(Limited::new(fake.clone(), limits));
    let (desired, receiver) = watch::channel(Desired::new());
    let settings = SyncSettings::new(identity("uid-1"));
    let handle = spawn(
        settings,
        shared.clone(),
        Listings::new(shared.clone()),
        Arc::new(StoredHidden::default()),
        receiver,
        authority(),
        std::future::pending(),
    );
    let services: Vec<_> = (0..100).map(|i| format!("s-{i}")).collect();
    let wanted = services.iter().map(|s| (target("shop", s), active(specs("uid-1", s, 1..=100, "a"))));
    desired.send_replace(targets(wanted));

    let head = fake.registry().add_service(&"ledger".into(), "clusters", "ledger", "");
    let mut worst = Duration::ZERO;
    let started = Instant::now();
    while handle.figures().borrow().registered < 10_000 {
        sleep(Duration::from_secs(3)).await;
        let since = Instant::now();
        let instance = Instance { id: "c1".into(), attributes: [("seq".to_owned(), "1".to_owned())].into() };
        shared.register_instance(&permit(), &head, &instance, Lane::Ledger).await.unwrap();
        worst = worst.max(since.elapsed());
        assert!(started.elapsed() < Duration::from_mins(10), "{:?}", handle.figures().borrow());
    }
    assert!(worst < Duration::from_millis(50), "{worst:?}: the call itself takes 20 ms");
    let taken = started.elapsed();
    assert!((Duration::from_secs(190)..Duration::from_secs(260)).contains(&taken), "{taken:?} at 50 a second");
    let registry = fake.registry();
    assert!(registry.most_in_flight <= 40, "{}", registry.most_in_flight);
    let polls = registry.count(Operation::GetOperation);
    assert!(polls <= 25_000, "{polls} polls for ten thousand operations");
    let heads = registry.calls.iter().filter(|(_, id)| id == "c1").count();
    assert_eq!(registry.count(Operation::RegisterInstance), 10_000 + heads, "each instance is written once");
}

#[tokio::test(start_paused = true)]
async fn the_drift_period_follows_from_the_budget() {
    let mut settings = SyncSettings::new(identity("uid-1"));
    settings.drift_budget = 0.25;
    let world = World::with(Fake::new(), &Rates::default(), settings);
    let services: Vec<_> = (0..40).map(|i| format!("s-{i}")).collect();
    world.desire(services.iter().map(|s| (target("shop", s), active(specs("uid-1", s, 1..=2, "a")))));
    for service in &services {
        world.registered(&target("shop", service), 2).await;
    }
    assert_eq!(world.handle.figures().borrow().drift_period, Duration::from_secs(160));
    let (reads, since) = (world.count(Operation::ListInstances), Instant::now());
    sleep(Duration::from_mins(16)).await;
    let rate = (world.count(Operation::ListInstances) - reads) as f64 / since.elapsed().as_secs_f64();
    assert!((0.2..=0.27).contains(&rate), "{rate} calls a second");
}

#[tokio::test(start_paused = true)]
async fn withdrawing_reads_each_target_once_more() {
    let world = World::new(Fake::new());
    let services: Vec<_> = (0..100).map(|i| format!("s-{i}")).collect();
    world.desire(services.iter().map(|s| (target("shop", s), active(specs("uid-1", s, 1..=10, "a")))));
    for service in &services {
        world.registered(&target("shop", service), 10).await;
    }
    sleep(Duration::from_secs(30)).await;
    let (before, since) = (world.count(Operation::ListInstances), Instant::now());
    world.desire(services.iter().map(|s| (target("shop", s), retiring())));
    for service in &services {
        world.until(&target("shop", service), |status| status.own_gone).await;
    }
    assert!(world.fake.registry().instances.is_empty());
    let reads = world.count(Operation::ListInstances) - before;
    // Drift checks continue meanwhile, 100 targets in fifty seconds.
    let checks = since.elapsed().as_secs() as usize * 100 / 50 + 1;
    assert!((100..=100 + checks).contains(&reads), "{reads} readings, {checks} of them checks");
}

#[tokio::test(start_paused = true)]
async fn writes_nothing_while_nothing_changes() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    world.registered(&web, 3).await;
    let writes = world.writes();
    for _ in 0..20 {
        sleep(Duration::from_mins(1)).await;
        // The same state again, as another object.
        world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    }
    assert_eq!(world.writes(), writes);
    assert_eq!((world.count(Operation::CreateHttpNamespace), world.count(Operation::CreateService)), (1, 1));
    let reads = world.count(Operation::ListInstances);
    assert!((22..=26).contains(&reads), "one drift check in fifty seconds, not {reads}");
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_created_one_by_one_with_at_most_one_listing_each_and_stay() {
    let world = World::new(Fake::new());
    for i in 0..20 {
        let web = target(&format!("shop-{i}"), "web");
        world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
        world.registered(&web, 2).await;
        world.desire([(web.clone(), retiring())]);
        world.until(&web, |status| status.own_gone).await;
        world.desire([]);
        sleep(Duration::from_mins(10)).await;
    }
    assert_eq!(world.fake.registry().namespaces.len(), 20, "deleting them is for `purge`");
    // Before a namespace is created, a fresh listing must show that none has its name. Everything else is known
    // already.
    assert_eq!(world.count(Operation::CreateHttpNamespace), 20);
    let listings = world.count(Operation::ListNamespaces);
    assert!(listings <= 20, "{listings}");
}

/// A listing does not show who created a service without records, and few calls a second can.
#[tokio::test(start_paused = true)]
async fn a_new_leader_asks_once_for_each_owner_and_no_change_waits_for_that() {
    let fake = Fake::new();
    let services: Vec<_> = (0..400).map(|i| format!("s-{i:03}")).collect();
    let wanted = |pods: std::ops::RangeInclusive<u32>| {
        let of = move |s: &String| {
            let pods = if s == "s-399" { pods.clone() } else { 1..=1 };
            (target("shop", s), active(specs("uid-1", s, pods, "a")))
        };
        services.iter().map(of).collect::<Vec<_>>()
    };
    let former = World::new(fake.clone());
    former.desire(wanted(1..=1));
    for service in &services {
        former.registered(&target("shop", service), 1).await;
    }
    drop(former);

    let (next, since) = (World::new(fake), Instant::now());
    let calls = (next.count(Operation::CreateService), next.writes());
    let new = target("shop", "t-new");
    next.desire(wanted(1..=2).into_iter().chain([(new.clone(), active(specs("uid-1", "t-new", 1..=1, "a")))]));
    next.registered(&new, 1).await;
    next.registered(&target("shop", "s-399"), 2).await;
    let changed = since.elapsed();
    for service in &services {
        next.until(&target("shop", service), |status| matches!(status.outcome, Outcome::Registered { .. })).await;
    }
    let all = since.elapsed();
    assert!(changed < Duration::from_secs(12), "{changed:?}: 400 readings take 7 s");
    assert!(
        all < Duration::from_secs(12),
        "{all:?}: 400 looks take 17.5 s, and nobody waits for those that change nothing"
    );
    sleep(Duration::from_mins(30)).await;
    assert_eq!(next.count(Operation::GetService), 400, "each is asked for once in a term");
    assert_eq!((next.count(Operation::CreateService), next.writes()), (calls.0 + 1, calls.1 + 2));
}

/// The permission is the role's, so one question is enough for all targets.
#[tokio::test(start_paused = true)]
async fn a_role_that_may_not_ask_for_operations_asks_once_a_minute_however_many_targets_there_are() {
    let services: Vec<_> = (0..20).map(|i| format!("s-{i}")).collect();
    let wanted = |services: &[String]| {
        services.iter().map(|s| (target("shop", s), active(specs("uid-1", s, 1..=2, "a")))).collect::<Vec<_>>()
    };
    // The target of the operation for which it asks is among these or those.
    for stay in [&services[..10], &services[10..]] {
        let world = World::new(Fake::new());
        for _ in 0..10_000 {
            world.fake.fault(Operation::GetOperation, Fault::Refused(ErrorKind::AccessDenied));
        }
        let told = |services: &[String]| {
            services.iter().filter(|s| !world.status(&target("shop", s)).notices.is_empty()).count()
        };
        world.desire(wanted(&services));
        for service in &services {
            world.registered(&target("shop", service), 2).await;
        }
        sleep(Duration::from_mins(5)).await;
        assert_eq!(told(&services), 20, "it concerns each of them");
        let before = world.count(Operation::GetOperation);
        sleep(Duration::from_mins(30)).await;
        let asked = world.count(Operation::GetOperation) - before;
        assert!((28..=31).contains(&asked), "asked {asked} times in half an hour");

        world.desire(wanted(stay));
        sleep(Duration::from_mins(10)).await;
        assert_eq!(told(stay), 10);
        world.fake.registry().faults.clear();
        sleep(Duration::from_mins(2)).await;
        assert_eq!(told(stay), 0, "one answer is enough");
    }
}

/// There is one for each Service, and states that are published copy those of 64 for each that changes.
#[test]
fn what_is_said_of_a_target_without_a_share_is_small() {
    assert!(size_of::<TargetStatus>() <= 128, "{} bytes", size_of::<TargetStatus>());
}

/// Each target looks whether another one has its name in other letters. With the 12,000 names of one tenant, to look at all of
/// them for each of them took minutes.
#[tokio::test(start_paused = true)]
async fn the_steps_to_find_services_are_in_proportion_to_the_number_of_targets() {
    let mut counts = Vec::new();
    for targets in [50, 400] {
        let fake = Fake::new();
        fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
        let world = World::new(fake);
        let names: Vec<_> = (0..targets).map(|n| format!("s-{n}")).collect();
        steps::take();
        world.desire(names.iter().map(|name| (target("shop", name), active(specs("uid-1", name, 1..=1, "a")))));
        while world.handle.figures().borrow().registered < targets {
            sleep(Duration::from_secs(1)).await;
        }
        world.desire(names.iter().map(|name| (target("shop", name), retiring())));
        for name in &names {
            world.until(&target("shop", name), |status| status.done).await;
        }
        counts.push(steps::take());
    }
    assert!(counts[0] >= 50 && counts[1] <= counts[0] * 12, "{counts:?} steps for 50 and 400 targets");
}
