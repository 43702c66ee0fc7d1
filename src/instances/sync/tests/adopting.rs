//! Taking over from another controller.

use super::*;
use crate::plan::tests::on_host;
use cloudmap::{DnsRecord, RecordType};

fn theirs(last: u32) -> Instance {
    let address = format!("10.0.0.{last}");
    Instance { id: address.as_str().into(), attributes: [("AWS_INSTANCE_IPV4".to_owned(), address)].into() }
}

/// The addresses in a service, and the number of instances.
fn addresses(world: &World) -> (BTreeSet<String>, usize) {
    let instances = world.instances("web");
    (instances.iter().map(|instance| instance.attributes["AWS_INSTANCE_IPV4"].clone()).collect(), instances.len())
}

#[tokio::test(start_paused = true)]
async fn a_service_without_room_for_both_changes_hands_address_by_address() {
    let fake = Fake::new().with_quota(10);
    {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let web = registry.add_service(&ns, "web", "x", "heritage=external-dns,external-dns/owner=eks");
        for instance in (1..=8).map(theirs) {
            registry.instances.insert((web.clone(), instance.id), instance.attributes);
        }
    }
    let world = World::new(fake);
    let (web, all) = (target("shop", "web"), addresses(&world).0);
    let consent = Consent { named: true, adopt: Some("external-dns/eks".parse().unwrap()), ..Consent::default() };
    world.desire([(web.clone(), TargetDesired { consent, ..active(specs("uid-1", "web", 1..=8, "a")) })]);
    let since = Instant::now();
    while world.instances("web").iter().any(|instance| !instance.id.starts_with("k8s-")) {
        assert_eq!(addresses(&world).0, all, "the name lost an address");
        assert!(since.elapsed() < Duration::from_mins(2), "{:?}", addresses(&world));
        sleep(Duration::from_millis(100)).await;
    }
    world.registered(&web, 8).await;
    assert_eq!(addresses(&world), (all, 8));
}

#[tokio::test(start_paused = true)]
async fn what_was_to_be_taken_over_is_left_alone_when_the_permission_goes() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let web = registry.add_service(&ns, "web", "x", "heritage=external-dns,external-dns/owner=eks");
        for instance in (1..=3).map(theirs) {
            registry.instances.insert((web.clone(), instance.id), instance.attributes);
        }
    }
    for _ in 0..1_000 {
        fake.fault(Operation::DeregisterInstance, Fault::Refused(ErrorKind::Throttled));
    }
    let (world, web) = (World::new(fake), target("shop", "web"));
    let consent = Consent { named: true, adopt: Some("external-dns/eks".parse().unwrap()), ..Consent::default() };
    let pods = specs("uid-1", "web", 1..=3, "a");
    world.desire([(web.clone(), TargetDesired { consent: consent.clone(), ..active(pods.clone()) })]);
    sleep(Duration::from_mins(2)).await;
    let is_theirs = |instance: &Instance| !instance.id.starts_with("k8s-");
    assert_eq!(world.instances("web").len(), 6, "theirs were to go, and AWS throttled that");
    let consent = Consent { adopt: None, ..consent };
    world.desire([(web.clone(), TargetDesired { consent, ..active(pods) })]);
    world.fake.registry().faults.clear();
    sleep(Duration::from_mins(20)).await;
    assert_eq!(world.instances("web").iter().filter(|instance| is_theirs(instance)).count(), 3);
}

/// As when the owner id is lost, of which the next leader is the first to know.
#[tokio::test(start_paused = true)]
async fn without_the_permission_ours_stay_and_follow_the_pods_until_somebody_else_serves_the_name() {
    let fake = Fake::new();
    let service = {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        registry.add_service(&ns, "web", "x", "heritage=external-dns,external-dns/owner=eks")
    };
    let (former, web) = (World::new(fake.clone()), target("shop", "web"));
    let consent = Consent { named: true, adopt: Some("external-dns/eks".parse().unwrap()), ..Consent::default() };
    former.desire([(web.clone(), TargetDesired { consent, ..active(specs("uid-1", "web", 1..=3, "a")) })]);
    former.registered(&web, 3).await;
    drop(former);

    let world = World::new(fake);
    let desire = |first: u32, last: u32| {
        let pods = specs("uid-1", "web", first..=last, "a");
        world.desire([(web.clone(), TargetDesired { consent: named(), ..active(pods) })]);
    };
    let writes = world.writes();
    desire(1, 3);
    world.refused(&web, Reason::ForeignOwner).await;
    sleep(Duration::from_mins(20)).await;
    assert_eq!((world.writes(), world.instances("web").len()), (writes, 3));

    for (first, last) in [(2, 4), (4, 5), (5, 5)] {
        desire(first, last);
        // The pod before may be gone before AWS has registered the one that replaces it.
        if first == 4 {
            world.fake.fault(Operation::RegisterInstance, Fault::Refused(ErrorKind::Throttled));
            sleep(Duration::from_millis(300)).await;
            continue;
        }
        for _ in 0..300 {
            sleep(Duration::from_millis(100)).await;
            assert!(!world.instances("web").is_empty(), "the name is empty");
        }
        let there: BTreeSet<_> = (first..=last).map(|last| format!("10.0.0.{last}")).collect();
        assert_eq!(addresses(&world).0, there);
        world.refused(&web, Reason::ForeignOwner).await;
    }

    world.fake.registry().instances.insert((service.clone(), theirs(5).id), theirs(5).attributes);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(world.instances("web"), [theirs(5)]);
    world.fake.registry().instances.remove(&(service, theirs(5).id));
    sleep(Duration::from_mins(20)).await;
    assert!(world.instances("web").is_empty(), "nothing is registered where nothing of ours is");
}

#[tokio::test(start_paused = true)]
async fn without_the_permission_a_name_whose_pods_are_all_replaced_at_once_has_the_new_ones() {
    let fake = Fake::new();
    let ns = fake.registry().add_namespace("shop", NamespaceKind::Http);
    fake.registry().add_service(&ns, "web", "ecs", "");
    let (world, web) = (World::new(fake), target("shop", "web"));
    let owner = ClaimOwner::service(&ServiceKey::new("shop", "web"));
    let pods =
        |first, last| TargetDesired { owner: Some(owner.clone()), ..active(specs("uid-1", "web", first..=last, "a")) };
    world.desire([(web.clone(), TargetDesired { consent: named(), ..pods(1, 2) })]);
    world.registered(&web, 2).await;
    world.desire([(web.clone(), pods(1, 2))]);
    world.refused(&web, Reason::ForeignOwner).await;
    // The claim says so from now on.
    let unable = |first, last| {
        let only_found = Some(ServiceKey::new("shop", "web"));
        world.desire([(web.clone(), TargetDesired { unable: true, only_found, ..pods(first, last) })]);
    };
    unable(1, 2);
    sleep(Duration::from_mins(1)).await;
    unable(8, 9);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(addresses(&world).0, ["10.0.0.8", "10.0.0.9"].map(str::to_owned).into());
}

/// The claim says that its owner is unable until the permission is seen, and waits then.
#[tokio::test(start_paused = true)]
async fn nothing_is_taken_over_before_the_claim_says_that_its_owner_is_able() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let web = registry.add_service(&ns, "web", "x", "heritage=external-dns,external-dns/owner=eks");
        for instance in (1..=2).map(theirs) {
            registry.instances.insert((web.clone(), instance.id), instance.attributes);
        }
    }
    let (world, web) = (World::new(fake), target("shop", "web"));
    let owner = ClaimOwner::service(&ServiceKey::new("shop", "web"));
    let pods = |unable: bool, adopt: Option<&str>| TargetDesired {
        owner: Some(owner.clone()),
        unable,
        only_found: unable.then(|| ServiceKey::new("shop", "web")),
        consent: Consent { named: true, adopt: adopt.map(|adopt| adopt.parse().unwrap()), ..Consent::default() },
        ..active(specs("uid-1", "web", 1..=2, "a"))
    };
    world.desire([(web.clone(), pods(false, None))]);
    world.refused(&web, Reason::ForeignOwner).await;
    world.desire([(web.clone(), pods(true, None))]);
    sleep(Duration::from_mins(1)).await;
    world.desire([(web.clone(), pods(true, Some("external-dns/eks")))]);
    let able = |status: &TargetStatus| {
        let claims = status.claims.as_ref();
        claims.is_some_and(|claims| claims.verdicts == [(owner.clone(), Ok(()))])
    };
    world.until(&web, able).await;
    sleep(Duration::from_mins(5)).await;
    assert_eq!(world.instances("web"), [theirs(1), theirs(2)]);
    world.desire([(web.clone(), pods(false, Some("external-dns/eks")))]);
    for _ in 0..600 {
        sleep(Duration::from_millis(100)).await;
        assert_eq!(addresses(&world).0.len(), 2, "an address is gone");
    }
    world.registered(&web, 2).await;
    assert_eq!(addresses(&world).1, 2);
}

/// All of theirs stayed as long as any endpoint did not fit, and pointed at dead pods.
#[tokio::test(start_paused = true)]
async fn an_endpoint_that_does_not_fit_keeps_no_instance_of_a_dead_pod() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let web = registry.add_service(&ns, "web", "x", "heritage=external-dns,external-dns/owner=eks");
        let records = vec![DnsRecord { record_type: RecordType::A, ttl: 300 }];
        registry.services.get_mut(&web).unwrap().dns = Some(DnsConfig { weighted: false, records });
        for instance in [1, 9].map(theirs) {
            registry.instances.insert((web.clone(), instance.id), instance.attributes);
        }
    }
    let (world, web) = (World::new(fake), target("shop", "web"));
    let (identity, service) = (identity("uid-1"), ServiceKey::new("shop", "web"));
    let source = Source { identity: &identity, service: &service, ports: &[], region: None };
    let unfit = Endpoint { ipv4: None, ipv6: Some("fd00::1".parse().unwrap()), ..fixtures::mk_endpoint(0) };
    let instances = source.instances(&[fixtures::mk_endpoint([10, 0, 0, 1]), unfit]).unwrap();
    let consent = Consent { named: true, adopt: Some("external-dns/eks".parse().unwrap()), ..Consent::default() };
    world.desire([(web.clone(), TargetDesired { consent, ..active(instances.into()) })]);
    world.refused(&web, Reason::UnfitEndpoints).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(addresses(&world), (["10.0.0.1".to_owned()].into(), 1));
}

/// As when one of two pods on the host network of a node goes: it was away until its new registration succeeded.
#[tokio::test(start_paused = true)]
async fn an_endpoint_whose_id_loses_its_port_is_registered_all_the_time() {
    let (world, web) = (World::new(Fake::new()), target("shop", "web"));
    world.desire([(web.clone(), active(on_host(&[8080, 9090]).into()))]);
    world.registered(&web, 2).await;
    world.fake.fault(Operation::RegisterInstance, Fault::Refused(ErrorKind::Throttled));
    world.desire([(web.clone(), active(on_host(&[9090]).into()))]);
    for _ in 0..200 {
        sleep(Duration::from_millis(100)).await;
        let there = world.instances("web");
        assert!(there.iter().any(|instance| instance.attributes["AWS_INSTANCE_PORT"] == "9090"), "{there:?}");
    }
    world.registered(&web, 1).await;
    assert_eq!(world.instances("web").len(), 1);
}

/// As when a pod comes to the node of another one on the host network, and has a lower port.
#[tokio::test(start_paused = true)]
async fn an_endpoint_whose_id_gets_a_port_is_registered_all_the_time() {
    let (world, web) = (World::new(Fake::new()), target("shop", "web"));
    world.desire([(web.clone(), active(on_host(&[9090]).into()))]);
    world.registered(&web, 1).await;
    let before = world.count(Operation::RegisterInstance);
    for _ in 0..2 {
        world.fake.fault(Operation::RegisterInstance, Fault::Refused(ErrorKind::Throttled));
    }
    world.desire([(web.clone(), active(on_host(&[8080, 9090]).into()))]);
    for _ in 0..200 {
        sleep(Duration::from_millis(100)).await;
        let there = world.instances("web");
        assert!(there.iter().any(|instance| instance.attributes["AWS_INSTANCE_PORT"] == "9090"), "{there:?}");
    }
    world.registered(&web, 2).await;
    let registry = world.fake.registry();
    let writes = registry.calls.iter().filter(|(call, _)| *call == Operation::RegisterInstance).skip(before);
    let with_port: Vec<_> = writes.map(|(_, id)| id.ends_with("-9090")).collect();
    assert_eq!(with_port, [true, true, true, false], "only when it is there, another one gets its id");
}
