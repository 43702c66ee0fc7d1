//! Drift is repaired, in a time that follows from a budget of calls.

use super::*;
use cloudmap::Rate;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("s-{i}")).collect()
}

async fn registered(count: usize) -> (World, Vec<String>) {
    // Only reading should take its time here.
    let quick = Rate::new(1000.0, 1000.0, 10.0);
    let rates = Rates::default().with(Operation::CreateService, quick).with(Operation::RegisterInstance, quick);
    let settings = SyncSettings::new(identity("uid-1"));
    let (world, services) = (World::with(Fake::new(), &rates, settings), names(count));
    world.desire(services.iter().map(|s| (target("shop", s), active(specs("uid-1", s, 1..=2, "a")))));
    for service in &services {
        world.registered(&target("shop", service), 2).await;
    }
    (world, services)
}

#[tokio::test(start_paused = true)]
async fn in_five_hundred_services_drift_is_repaired_within_a_minute() {
    let (world, services) = registered(500).await;
    assert_eq!(world.handle.figures().borrow().drift_period, Duration::from_secs(50));
    // At any moment, even the first after all are registered: the round may have just passed, or be about to begin.
    for pause in [0, 17, 34] {
        sleep(Duration::from_secs(pause)).await;
        let (reads, since) = (world.count(Operation::ListInstances), Instant::now());
        let before = world.fake.registry().instances.clone();
        {
            let mut registry = world.fake.registry();
            let ids: BTreeMap<_, _> = registry.services.values().map(|s| (s.name.clone(), s.id.clone())).collect();
            for (n, service) in services.iter().enumerate() {
                let first = (ids[service.as_str()].clone(), specs("uid-1", service, [1], "a")[0].id().clone());
                match n % 3 {
                    0 => drop(registry.instances.remove(&first)),
                    1 => drop(registry.instances.get_mut(&first).unwrap().insert("PORT_x".into(), "1/TCP".into())),
                    _ => {
                        let extra = &specs("uid-1", service, [9], "a")[0];
                        let instance = extra.render(crate::attributes::ServiceTraits::default());
                        registry.instances.insert((first.0, instance.id), instance.attributes);
                    }
                }
            }
        }
        while world.fake.registry().instances != before {
            assert!(since.elapsed() < Duration::from_mins(1), "not within a minute");
            sleep(Duration::from_secs(1)).await;
        }
        let calls = (world.count(Operation::ListInstances) - reads) as f64;
        let allowed = 10.0 * since.elapsed().as_secs_f64() + 1.0;
        assert!(calls <= allowed, "{calls} listings, where the budget allows {allowed}");
    }
}

#[tokio::test(start_paused = true)]
async fn beyond_five_hundred_services_the_period_grows_and_the_calls_do_not() {
    let (world, _) = registered(1000).await;
    assert_eq!(world.handle.figures().borrow().drift_period, Duration::from_secs(100));
    let (reads, since) = (world.count(Operation::ListInstances), Instant::now());
    sleep(Duration::from_mins(2)).await;
    let rate = (world.count(Operation::ListInstances) - reads) as f64 / since.elapsed().as_secs_f64();
    assert!((9.0..=10.1).contains(&rate), "{rate} calls a second");
}

/// Foreign instances in a service also cost pages.
#[tokio::test(start_paused = true)]
async fn a_service_full_of_foreign_instances_counts_with_all_its_pages() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::Http);
        let web = registry.add_service(&ns, "web", "ecs", "");
        for id in 0..950 {
            registry.instances.insert((web.clone(), ecs(id).id), ecs(id).attributes);
        }
    }
    let mut settings = SyncSettings::new(identity("uid-1"));
    settings.drift_budget = 0.1;
    let world = World::with(fake, &Rates::default(), settings);
    let web = target("shop", "web");
    world.desire([(web.clone(), TargetDesired { consent: named(), ..active(specs("uid-1", "web", 1..=2, "a")) })]);
    world.registered(&web, 2).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        world.handle.figures().borrow().drift_period,
        Duration::from_secs(100),
        "ten pages at one in ten seconds"
    );
    assert_eq!(world.status(&web).notices[0].reason, "NearlyFull");
}

/// Reading a service with a custom health check takes two calls, one after the other.
#[tokio::test(start_paused = true)]
async fn the_period_holds_even_if_aws_is_slow() {
    let quick = Rate::new(1000.0, 1000.0, 10.0);
    let rates = Rates::default().with(Operation::CreateService, quick).with(Operation::RegisterInstance, quick);
    let world =
        World::with(Fake::new().with_call(Duration::from_millis(80)), &rates, SyncSettings::new(identity("uid-1")));
    let services = names(500);
    let checked = |service: &String| TargetDesired {
        creation: Creation { custom_health_check: true, ..Creation::default() },
        ..active(specs("uid-1", service, 1..=2, "a"))
    };
    world.desire(services.iter().map(|s| (target("shop", s), checked(s))));
    for service in &services {
        world.registered(&target("shop", service), 2).await;
    }
    assert_eq!(world.handle.figures().borrow().drift_period, Duration::from_secs(50));
    let (reads, since) = (world.count(Operation::ListInstances), Instant::now());
    sleep(Duration::from_secs(100)).await;
    let rate = (world.count(Operation::ListInstances) - reads) as f64 / since.elapsed().as_secs_f64();
    assert!((9.0..=10.1).contains(&rate), "{rate} services a second");
}
