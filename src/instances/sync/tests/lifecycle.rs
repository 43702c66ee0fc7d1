//! From the first instance to the last, and from one leader to the next.

use super::*;

#[tokio::test(start_paused = true)]
async fn makes_namespace_and_service_once_and_marks_them() {
    let world = World::new(Fake::new());
    let (web, api) = (target("shop", "web"), target("shop", "api"));
    world.desire([
        (web.clone(), active(specs("uid-1", "web", 1..=3, "a"))),
        (api.clone(), active(specs("uid-1", "api", 4..=5, "a"))),
    ]);
    world.registered(&web, 3).await;
    world.registered(&api, 2).await;
    assert_eq!((world.count(Operation::CreateHttpNamespace), world.count(Operation::CreateService)), (1, 2));
    assert_eq!(world.instances("web").len(), 3);
    assert!(world.instances("web").iter().all(|instance| is_ours(instance, &identity("uid-1"))));
    let registry = world.fake.registry();
    assert_eq!(registry.tags[&registry.namespaces[0].arn], identity("uid-1").tags());
    let creator = registry.services.values().next().unwrap().creator_request_id.clone().unwrap();
    assert!(creator.starts_with("cloudmap-mcs:"), "{creator}");
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_record_and_for_leadership() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    let waiting = TargetDesired { active: false, ..active(specs("uid-1", "web", 1..=3, "a")) };
    world.desire([(web.clone(), waiting)]);
    sleep(Duration::from_mins(5)).await;
    assert!(world.fake.registry().calls.is_empty());

    world.leads.store(false, Ordering::SeqCst);
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    sleep(Duration::from_mins(5)).await;
    assert!(world.fake.registry().calls.is_empty());

    world.leads.store(true, Ordering::SeqCst);
    world.registered(&web, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_takes_over_what_the_former_left() {
    let fake = Fake::new();
    let web = target("shop", "web");
    let former = World::new(fake.clone());
    former.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
    former.registered(&web, 4).await;
    former.leads.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(1)).await;
    assert!(former.handle.status().borrow().is_empty());
    let writes = former.writes();

    let next = World::new(fake);
    next.desire([(web.clone(), active(specs("uid-1", "web", 3..=6, "a")))]);
    next.registered(&web, 4).await;
    assert_eq!(next.writes() - writes, 4, "two to register, two to deregister, two as they were");
    assert_eq!(next.instances("web").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn leadership_that_ends_stops_the_queue() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=1000, "a")))]);
    sleep(Duration::from_secs(10)).await;
    world.leads.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(1)).await;
    let writes = world.writes();
    assert!(writes > 0 && writes < 1000);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn retires_to_nothing_and_removes_what_it_made() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    world.registered(&web, 3).await;
    world.desire([(web.clone(), retiring())]);
    world.until(&web, |status| status.own_gone).await;
    {
        let registry = world.fake.registry();
        assert!(registry.instances.is_empty() && registry.services.is_empty());
    }
    world.desire([]);
    sleep(Duration::from_mins(5)).await;
    assert!(world.fake.registry().namespaces.is_empty(), "an empty namespace of ours goes later");

    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    world.registered(&web, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_former_leaders_record_alone_leads_to_the_remains() {
    let fake = Fake::new();
    let web = target("shop", "web");
    let former = World::new(fake.clone());
    former.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    former.registered(&web, 3).await;
    drop(former);

    let next = World::new(fake);
    next.desire([(web.clone(), retiring())]);
    next.until(&web, |status| status.own_gone).await;
    assert!(next.fake.registry().instances.is_empty());
}
