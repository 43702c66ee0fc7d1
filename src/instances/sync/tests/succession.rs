//! What the task says of claims: whether their owners may register, and whether the successor of a hand-over serves.

use super::*;
use crate::attributes::ServiceTraits;
use model::ClaimOwner;

/// A pod of the same name in another cluster.
fn of_successor() -> Instance {
    let (identity, service) =
        (Owner { cluster: "c2".parse().unwrap(), ..identity("uid-2") }, ServiceKey::new("shop", "web"));
    let source = Source { identity: &identity, service: &service, ports: &[], region: None };
    let [spec]: [_; 1] = source.instances(&[fixtures::mk_endpoint(0x0a01_0001)]).unwrap().try_into().unwrap();
    spec.render(ServiceTraits::default())
}

#[tokio::test(start_paused = true)]
async fn a_successor_whose_instances_fail_their_health_check_serves_nobody() {
    for (checked, ill, serves) in [(false, false, true), (true, false, true), (true, true, false)] {
        let fake = Fake::new();
        let (service, theirs) = {
            let mut registry = fake.registry();
            let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
            let service = registry.add_service(&ns, "web", "ecs", "");
            registry.services.get_mut(&service).unwrap().custom_health_check = checked;
            let theirs = of_successor();
            registry.instances.insert((service.clone(), theirs.id.clone()), theirs.attributes);
            if ill {
                registry.unhealthy.insert((service.clone(), theirs.id.clone()));
            }
            (service, theirs.id)
        };
        let (world, web) = (World::new(fake), target("shop", "web"));
        let successor = ("c2".parse().unwrap(), ServiceKey::new("shop", "web"));
        let hands_over = |successor| TargetDesired {
            consent: named(),
            owner: Some(ClaimOwner::export(&ServiceKey::new("shop", "web"))),
            successor: Some(successor),
            ..active(specs("uid-1", "web", 1..=1, "a"))
        };
        world.desire([(web.clone(), hands_over(successor.clone()))]);
        world.registered(&web, 1).await;
        sleep(Duration::from_mins(1)).await;
        let succeeded = || world.status(&web).claims.and_then(|claims| claims.succeeded);
        assert_eq!(succeeded(), serves.then(|| successor.clone()), "checked: {checked}, ill: {ill}");
        // It is well again, or becomes so.
        world.fake.registry().unhealthy.remove(&(service, theirs));
        world.until(&web, |status| status.claims.as_ref().is_some_and(|claims| claims.succeeded.is_some())).await;
    }
}

/// What may pass, and what the platform team has to mend, takes no name away. Others would get it otherwise.
#[tokio::test(start_paused = true)]
async fn whose_calls_fail_is_not_unable_and_who_is_refused_the_name_is() {
    let owner = ClaimOwner::export(&ServiceKey::new("shop", "web"));
    let wanted = TargetDesired { owner: Some(owner.clone()), ..active(specs("uid-1", "web", 1..=1, "a")) };
    let web = target("shop", "web");
    let every = [Operation::CreateService, Operation::RegisterInstance];
    for (operation, kind) in
        every.into_iter().flat_map(|at| [(at, ErrorKind::AccessDenied), (at, ErrorKind::Throttled)])
    {
        let world = World::new(Fake::new());
        world.fake.registry().add_namespace("shop", NamespaceKind::Http);
        for _ in 0..1000 {
            world.fake.fault(operation, Fault::Refused(kind.clone()));
        }
        world.desire([(web.clone(), wanted.clone())]);
        for _ in 0..60 {
            sleep(Duration::from_secs(5)).await;
            assert!(world.status(&web).claims.is_none(), "{operation:?} {kind:?}: {:?}", world.status(&web));
        }
        let status = world.status(&web);
        assert!(!matches!(status.outcome, Outcome::Registered { .. }), "{operation:?} {kind:?}: {status:?}");
    }

    let world = World::new(Fake::new());
    {
        let mut registry = world.fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::Http);
        registry.add_service(&ns, "web", "terraform", "made by Terraform");
    }
    world.desire([(web.clone(), wanted)]);
    world.refused(&web, Reason::ForeignOwner).await;
    let verdicts = world.status(&web).claims.expect("it says so").verdicts;
    assert!(matches!(&verdicts[..], [(said, Err((Reason::ForeignOwner, _)))] if *said == owner), "{verdicts:?}");
}

/// Whoever waits for a name hears at once that it is not to be had, and not when it is looked for again minutes later.
#[tokio::test(start_paused = true)]
async fn the_next_owner_of_a_name_that_was_refused_is_refused_at_once() {
    let (world, web) = (World::new(Fake::new()), target("shop", "web"));
    {
        let mut registry = world.fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::Http);
        registry.add_service(&ns, "web", "terraform", "made by Terraform");
    }
    let wanted = |owner: &str, active| TargetDesired {
        owner: Some(ClaimOwner::service(&ServiceKey::new("shop", owner))),
        active,
        ..super::active(specs("uid-1", owner, 1..=1, "a"))
    };
    world.desire([(web.clone(), wanted("first", true))]);
    world.refused(&web, Reason::ForeignOwner).await;
    sleep(Duration::from_secs(10)).await;
    // Its claim has to be on record before.
    world.desire([(web.clone(), wanted("second", false))]);
    sleep(Duration::from_secs(10)).await;
    world.desire([(web.clone(), wanted("second", true))]);
    let since = Instant::now();
    world.refused(&web, Reason::ForeignOwner).await;
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    let verdicts = world.status(&web).claims.expect("it says so").verdicts;
    let second = ClaimOwner::service(&ServiceKey::new("shop", "second"));
    assert!(matches!(&verdicts[..], [(said, Err((Reason::ForeignOwner, _)))] if *said == second), "{verdicts:?}");
}

/// An owner without pods that moves to another name. Nobody made the Cloud Map service.
#[tokio::test(start_paused = true)]
async fn who_has_nothing_there_waits_for_no_successor() {
    for made in [false, true] {
        let (world, web) = (World::new(Fake::new()), target("shop", "web"));
        {
            let mut registry = world.fake.registry();
            let ns = registry.add_namespace("shop", NamespaceKind::Http);
            if made {
                registry.add_service(&ns, "web", "ecs", "");
            }
        }
        let owner = Some(ClaimOwner::service(&ServiceKey::new("shop", "web")));
        let empty = TargetDesired { owner: owner.clone(), consent: named(), ..active(Arc::default()) };
        world.desire([(web.clone(), empty)]);
        world.registered(&web, 0).await;
        sleep(Duration::from_mins(1)).await;
        let successor = Some(("c2".parse().unwrap(), ServiceKey::new("shop", "web")));
        world
            .desire([(web.clone(), TargetDesired { owner, successor: successor.clone(), ..TargetDesired::default() })]);
        let succeeded = |status: &TargetStatus| status.claims.as_ref().and_then(|claims| claims.succeeded.clone());
        world.until(&web, |status| succeeded(status) == successor).await;
        assert_eq!(world.writes(), 0, "made: {made}");
    }
}
