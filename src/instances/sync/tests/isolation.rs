//! One service or namespace that fails, in any way and for any time, is reported and affects no other.

use super::*;

/// A service that somebody created in a namespace of its own, so that faults can name it.
fn bad_service(fake: &Fake) -> (Arc<str>, Arc<str>) {
    let mut registry = fake.registry();
    registry.add_namespace("shop", NamespaceKind::Http);
    let ns = registry.add_namespace("bad", NamespaceKind::Http);
    let service = registry.add_service(&ns, "bad", "somebody", "");
    (ns, service)
}

/// Registers in the bad service and in twenty good ones, whose pods then change while the bad one fails.
async fn others_continue(world: &World) {
    let bad =
        || (target("bad", "bad"), TargetDesired { consent: named(), ..active(specs("uid-1", "bad", 1..=30, "a")) });
    let good = |i: u32, pods: std::ops::Range<u32>| {
        let name = format!("good-{i}");
        (target("shop", &name), active(specs("uid-1", &name, pods, "a")))
    };
    world.desire((0..20).map(|i| good(i, 1..4)).chain([bad()]));
    for i in 0..20 {
        world.registered(&target("shop", &format!("good-{i}")), 3).await;
    }
    sleep(Duration::from_mins(5)).await;
    world.desire((0..20).map(|i| good(i, 3..8)).chain([bad()]));
    for i in 0..20 {
        world.registered(&target("shop", &format!("good-{i}")), 5).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_in_which_every_operation_fails_later() {
    let fake = Fake::new();
    let (_, service) = bad_service(&fake);
    fake.registry().failing_later.insert(service.clone());
    let world = World::new(fake);
    let since = Instant::now();
    others_continue(&world).await;
    assert!(since.elapsed() < Duration::from_mins(7), "{:?}", since.elapsed());
    let message = world.refused(&target("bad", "bad"), Reason::Failed).await;
    assert!(message.contains("INTERNAL_FAILURE"), "{message}");

    // It also delays no repair of drift, and costs no unplanned readings.
    let stolen = (world.service("good-0").id, specs("uid-1", "good-0", [3], "a")[0].id().clone());
    assert!(world.fake.registry().instances.remove(&stolen).is_some());
    let reads = || {
        let registry = world.fake.registry();
        registry.calls.iter().filter(|(op, id)| *op == Operation::ListInstances && **id == *service).count()
    };
    let before = reads();
    sleep(Duration::from_mins(1)).await;
    assert!(world.fake.registry().instances.contains_key(&stolen));
    sleep(Duration::from_mins(9)).await;
    let reads = reads() - before;
    assert!(reads <= 12 + 10, "{reads} readings in ten minutes: drift checks, and one for each back-off");
    world.fake.registry().failing_later.remove(&service);
    world.registered(&target("bad", "bad"), 30).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_to_which_every_write_is_refused() {
    for (kind, reason) in [
        (ErrorKind::AccessDenied, Reason::AccessDenied),
        (ErrorKind::InvalidInput, Reason::Failed),
        (ErrorKind::LimitExceeded, Reason::LimitExceeded),
        (ErrorKind::Other, Reason::Failed),
        (ErrorKind::Unknown, Reason::Failed),
    ] {
        let fake = Fake::new();
        let (_, service) = bad_service(&fake);
        let world = World::new(fake);
        world.desire([]);
        world.fake.registry().failing.insert(service.clone(), kind.clone());
        let since = Instant::now();
        others_continue(&world).await;
        assert!(since.elapsed() < Duration::from_mins(7), "{kind:?}: {:?}", since.elapsed());
        world.refused(&target("bad", "bad"), reason).await;
        world.fake.registry().failing.remove(&service);
        world.registered(&target("bad", "bad"), 30).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_denied() {
    let fake = Fake::new();
    let (ns, _) = bad_service(&fake);
    fake.registry().failing.insert(ns.clone(), ErrorKind::AccessDenied);
    let world = World::new(fake);
    others_continue(&world).await;
    let message = world.refused(&target("bad", "bad"), Reason::AccessDenied).await;
    assert!(message.contains("ListServices"), "{message}");
    world.fake.registry().failing.remove(&ns);
    world.registered(&target("bad", "bad"), 30).await;
}

/// The others become slow, because AWS' rates are per account, but none stops.
#[tokio::test(start_paused = true)]
async fn a_service_whose_writes_are_always_throttled() {
    let fake = Fake::new();
    let (_, service) = bad_service(&fake);
    let world = World::new(fake);
    world.fake.registry().failing.insert(service.clone(), ErrorKind::Throttled);
    others_continue(&world).await;
    let message = world.refused(&target("bad", "bad"), Reason::Throttled).await;
    assert!(message.contains("throttled"), "{message}");
    world.fake.registry().failing.remove(&service);
    world.registered(&target("bad", "bad"), 30).await;
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_prevents_the_creation_of_one_service_or_namespace() {
    for operation in [Operation::CreateService, Operation::CreateHttpNamespace] {
        let fake = Fake::new();
        fake.registry().add_namespace("shop", NamespaceKind::Http);
        let world = World::new(fake);
        world.fake.fault(operation, Fault::Refused(ErrorKind::LimitExceeded));
        let late = target("late", "late");
        world.desire([(late.clone(), active(specs("uid-1", "late", 1..=2, "a")))]);
        let message = world.refused(&late, Reason::LimitExceeded).await;
        assert!(message.contains(operation.name()), "{message}");
        others_in_shop(&world, &late).await;
        world.registered(&late, 2).await;
    }
}

async fn others_in_shop(world: &World, late: &Target) {
    let (web, since) = (target("shop", "web"), Instant::now());
    world.desire([
        (late.clone(), active(specs("uid-1", "late", 1..=2, "a"))),
        (web.clone(), active(specs("uid-1", "web", 1..=2, "a"))),
    ]);
    world.registered(&web, 2).await;
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
}
