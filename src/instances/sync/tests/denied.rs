//! Calls that IAM denies, or that AWS calls invalid.

use super::*;
use cloudmap::{DnsRecord, RecordType};

/// From the first look on that was denied, nothing was written there: dead addresses stayed.
#[tokio::test(start_paused = true)]
async fn what_a_service_takes_is_written_while_another_look_at_it_is_denied() {
    for denied in [Operation::ListServices, Operation::GetService] {
        let fake = Fake::new();
        {
            let mut registry = fake.registry();
            let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
            let service = registry.add_service(&ns, "web", "terraform", "");
            let records = vec![DnsRecord { record_type: RecordType::A, ttl: 60 }];
            registry.services.get_mut(&service).unwrap().dns = Some(DnsConfig { weighted: false, records });
        }
        let world = World::new(fake);
        let web = target("shop", "web");
        let (identity, service) = (identity("uid-1"), ServiceKey::new("shop", "web"));
        let source = Source { identity: &identity, service: &service, ports: &[], region: None };
        let unfit = Endpoint { ipv4: None, ipv6: Some("fd00::1".parse().unwrap()), ..fixtures::mk_endpoint(0) };
        let wanted = |last: u32| {
            let instances = source.instances(&[fixtures::mk_endpoint(0x0a00_0000 + last), unfit.clone()]).unwrap();
            TargetDesired { consent: named(), ..active(instances.into()) }
        };
        world.desire([(web.clone(), wanted(1))]);
        world.refused(&web, Reason::UnfitEndpoints).await;
        for _ in 0..10_000 {
            world.fake.fault(denied, Fault::Refused(ErrorKind::AccessDenied));
        }
        let before = world.count(denied);
        sleep(Duration::from_mins(12)).await;
        world.desire([(web.clone(), wanted(2))]);
        sleep(Duration::from_secs(10)).await;
        let there = world.instances("web");
        let addresses: Vec<_> = there.iter().map(|instance| &*instance.attributes["AWS_INSTANCE_IPV4"]).collect();
        assert_eq!(addresses, ["10.0.0.2"], "{denied:?}");
        world.refused(&web, Reason::UnfitEndpoints).await;
        let looks = world.count(denied) - before;
        assert!((1..=4).contains(&looks), "{looks} looks in twelve minutes");
    }
}

/// From the first such write on, nothing was written there: the service was to be found again first.
#[tokio::test(start_paused = true)]
async fn a_write_that_aws_calls_invalid_stops_no_other_while_services_cannot_be_listed() {
    let (world, web) = (World::new(Fake::new()), target("shop", "web"));
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    world.registered(&web, 2).await;
    sleep(Duration::from_mins(1)).await;
    for _ in 0..10_000 {
        world.fake.fault(Operation::ListServices, Fault::Refused(ErrorKind::AccessDenied));
    }
    world.fake.fault(Operation::RegisterInstance, Fault::Refused(ErrorKind::InvalidInput));
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    world.refused(&web, Reason::Failed).await;
    world.desire([(web.clone(), active(specs("uid-1", "web", [2, 4], "a")))]);
    world.registered(&web, 2).await;
    let there = world.instances("web");
    let addresses: Vec<_> = there.iter().map(|instance| &*instance.attributes["AWS_INSTANCE_IPV4"]).collect();
    assert_eq!(addresses, ["10.0.0.2", "10.0.0.4"]);
}

/// They were written again every two minutes, and nothing said why.
#[tokio::test(start_paused = true)]
async fn writes_are_read_back_where_the_role_may_not_ask_for_operations() {
    let world = World::new(Fake::new());
    world.fake.registry().add_namespace("shop", NamespaceKind::Http);
    let web = target("shop", "web");
    let deny = || {
        for _ in 0..10_000 {
            world.fake.fault(Operation::GetOperation, Fault::Refused(ErrorKind::AccessDenied));
        }
    };
    deny();
    let begun = Instant::now();
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    world.registered(&web, 3).await;
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    sleep(Duration::from_mins(30)).await;
    let notices = world.status(&web).notices;
    assert!(notices.len() == 1 && notices[0].reason == "AccessDenied", "{notices:?}");
    assert!(notices[0].message.contains("GetOperation"), "{notices:?}");
    assert_eq!(world.writes(), 3, "nothing is written again");
    let asked = world.count(Operation::GetOperation);
    assert!(asked < 60, "asked {asked} times in half an hour");

    world.desire([(web.clone(), active(specs("uid-1", "web", 2..=4, "a")))]);
    sleep(Duration::from_mins(10)).await;
    world.registered(&web, 3).await;
    assert_eq!((world.instances("web").len(), world.writes()), (3, 5));
    // It is said until AWS answers.
    world.fake.registry().faults.clear();
    sleep(Duration::from_mins(2)).await;
    assert!(world.status(&web).notices.is_empty());
    deny();
    world.desire([(web.clone(), retiring())]);
    world.until(&web, |status| status.own_gone).await;
    assert_eq!((world.instances("web").len(), world.writes()), (0, 8));
}

/// The call that would have shown it was throttled, and nobody asked any more.
#[tokio::test(start_paused = true)]
async fn whether_operations_may_be_asked_for_is_asked_until_aws_answers() {
    let world = World::new(Fake::new());
    world.fake.registry().add_namespace("shop", NamespaceKind::Http);
    let web = target("shop", "web");
    for _ in 0..10_000 {
        world.fake.fault(Operation::GetOperation, Fault::Refused(ErrorKind::AccessDenied));
    }
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=1, "a")))]);
    world.registered(&web, 1).await;
    sleep(Duration::from_mins(5)).await;
    assert_eq!(world.status(&web).notices.len(), 1);
    world.fake.registry().faults.clear();
    world.fake.fault(Operation::GetOperation, Fault::Refused(ErrorKind::Throttled));
    sleep(Duration::from_mins(3)).await;
    assert_eq!(world.status(&web).notices, []);
}

/// As where an organisation denies everything that deletes.
#[tokio::test(start_paused = true)]
async fn who_may_only_register_or_only_deregister_does_that_at_once() {
    for denied in [Operation::RegisterInstance, Operation::DeregisterInstance] {
        let world = World::new(Fake::new());
        let web = target("shop", "web");
        world.desire([(web.clone(), active(specs("uid-1", "web", 1..=40, "a")))]);
        world.registered(&web, 40).await;
        let calls = || world.count(denied);
        let before = calls();
        for _ in 0..10_000 {
            world.fake.fault(denied, Fault::Refused(ErrorKind::AccessDenied));
        }
        let there = |last: u32| {
            let id = specs("uid-1", "web", [last], "a")[0].id().clone();
            world.instances("web").iter().any(|instance| instance.id == id)
        };
        // More pods go at once than there are writes in flight, and others come.
        world.desire([(web.clone(), active(specs("uid-1", "web", 21..=45, "a")))]);
        sleep(Duration::from_secs(10)).await;
        let registers = denied == Operation::DeregisterInstance;
        assert_eq!((there(1), there(45)), (registers, registers), "{denied:?}");
        world.desire([(web.clone(), active(specs("uid-1", "web", 22..=46, "a")))]);
        sleep(Duration::from_secs(10)).await;
        assert_eq!((there(21), there(46)), (registers, registers), "{denied:?}");
        let message = world.refused(&web, Reason::AccessDenied).await;
        assert!(message.contains(denied.name()), "{message}");
        sleep(Duration::from_mins(10)).await;
        assert!(calls() - before < 250, "{} calls in ten minutes", calls() - before);
        assert!(matches!(world.status(&web).outcome, Outcome::Refused { .. }), "{:?}", world.status(&web));
        world.fake.registry().faults.clear();
        world.registered(&web, 25).await;
        sleep(Duration::from_secs(10)).await;
        assert!(!there(21) && there(46));
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_neither_register_nor_deregister_is_told_the_same_all_the_time() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    world.registered(&web, 3).await;
    for _ in 0..1000 {
        world.fake.fault(Operation::RegisterInstance, Fault::Refused(ErrorKind::AccessDenied));
        world.fake.fault(Operation::DeregisterInstance, Fault::Refused(ErrorKind::AccessDenied));
    }
    world.desire([(web.clone(), active(specs("uid-1", "web", 3..=5, "a")))]);
    let message = world.refused(&web, Reason::AccessDenied).await;
    let end = Instant::now() + Duration::from_mins(5);
    while Instant::now() < end {
        sleep(Duration::from_millis(500)).await;
        let outcome = Outcome::Refused { reason: Reason::AccessDenied, message: message.clone() };
        assert_eq!(world.status(&web).outcome, outcome);
    }
    world.fake.registry().faults.clear();
    world.registered(&web, 3).await;
}

/// Writes need no reading where the instances were read before.
#[tokio::test(start_paused = true)]
async fn a_service_that_cannot_be_read_again_still_follows_its_pods() {
    for kind in [ErrorKind::AccessDenied, ErrorKind::Throttled, ErrorKind::Other] {
        let world = World::new(Fake::new());
        let web = target("shop", "web");
        world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
        world.registered(&web, 2).await;
        for _ in 0..10_000 {
            world.fake.fault(Operation::ListInstances, Fault::Refused(kind.clone()));
        }
        sleep(Duration::from_mins(30)).await;
        assert!(matches!(world.status(&web).outcome, Outcome::Refused { .. }), "{:?}", world.status(&web));
        let pods = specs("uid-1", "web", 3..=4, "a");
        world.desire([(web.clone(), active(pods.clone()))]);
        sleep(Duration::from_secs(10)).await;
        let there: BTreeSet<_> = world.instances("web").into_iter().map(|instance| instance.id).collect();
        assert_eq!(there, pods.iter().map(|spec| spec.id().clone()).collect::<BTreeSet<_>>(), "{kind:?}");
        let calls = world.fake.registry().calls.iter().filter(|(call, _)| *call == Operation::ListInstances).count();
        assert!(calls < 100, "{calls} readings in half an hour");
    }
}
