//! Failures, and actions of others.

use super::*;
use cloudmap::{DnsRecord, RecordType};

#[tokio::test(start_paused = true)]
async fn a_failed_reading_deletes_nothing() {
    let fake = Fake::new();
    let web = target("shop", "web");
    let world = World::new(fake.clone());
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
    world.registered(&web, 4).await;
    let writes = world.writes();
    for kind in [ErrorKind::Unknown, ErrorKind::Throttled, ErrorKind::AccessDenied, ErrorKind::Other] {
        fake.fault(Operation::ListInstances, Fault::Refused(kind));
    }
    sleep(Duration::from_mins(20)).await;
    assert_eq!(world.writes(), writes);
    world.registered(&web, 4).await;
    drop(world);

    // This also holds at the beginning of a term, for a target that has fewer desired than existing instances.
    for kind in [ErrorKind::Unknown, ErrorKind::AccessDenied] {
        fake.fault(Operation::ListNamespaces, Fault::Refused(kind.clone()));
        fake.fault(Operation::ListServices, Fault::Refused(kind.clone()));
        fake.fault(Operation::ListInstances, Fault::Refused(kind));
    }
    let next = World::new(fake);
    next.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
    next.registered(&web, 4).await;
    assert_eq!(next.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn recovers_from_every_kind_of_failed_write() {
    let fake = Fake::new();
    let web = target("shop", "web");
    let world = World::new(fake.clone());
    let duplicate = ErrorKind::Duplicate { operation: None };
    for fault in [
        Fault::Refused(ErrorKind::Throttled),
        Fault::Refused(duplicate),
        Fault::Refused(ErrorKind::InUse),
        Fault::Refused(ErrorKind::Unknown),
        Fault::Lost(ErrorKind::Unknown),
        Fault::Refused(ErrorKind::AccessDenied),
        Fault::Refused(ErrorKind::InvalidInput),
        Fault::FailedLater("INTERNAL_FAILURE"),
    ] {
        fake.fault(Operation::RegisterInstance, fault.clone());
        fake.fault(Operation::DeregisterInstance, fault);
    }
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=12, "a")))]);
    world.registered(&web, 12).await;
    assert_eq!(world.instances("web").len(), 12);
    world.desire([(web.clone(), retiring())]);
    world.until(&web, |status| status.own_gone).await;
    assert!(world.fake.registry().instances.is_empty());
}

#[tokio::test(start_paused = true)]
async fn throttled_listings_are_tried_again_every_few_seconds_and_reported_after_a_minute() {
    for (times, reported) in [(8, false), (30, true)] {
        let fake = Fake::new();
        for _ in 0..times {
            fake.fault(Operation::ListNamespaces, Fault::Refused(ErrorKind::Throttled));
        }
        let world = World::new(fake);
        let web = target("shop", "web");
        let begun = Instant::now();
        world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
        let status = world.until(&web, |status| !matches!(status.outcome, Outcome::Pending)).await;
        if reported {
            assert!(matches!(status.outcome, Outcome::Refused { reason: Reason::Throttled, .. }), "{status:?}");
            assert!((60..70).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        }
        world.registered(&web, 2).await;
        assert_eq!(reported, begun.elapsed() >= Duration::from_mins(1), "{:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_fails_later_is_noticed_and_reported() {
    let fake = Fake::new();
    fake.fault(Operation::RegisterInstance, Fault::FailedLater("INTERNAL_FAILURE"));
    let world = World::new(fake);
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    let message = world.refused(&web, Reason::Failed).await;
    assert!(message.contains("INTERNAL_FAILURE") && message.contains("instance k8s-"), "{message}");
    world.registered(&web, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_somebody_deleted_is_created_again() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    world.registered(&web, 3).await;
    {
        let mut registry = world.fake.registry();
        registry.services.clear();
        registry.instances.clear();
        registry.namespaces.clear();
    }
    sleep(Duration::from_mins(5)).await;
    assert_eq!(world.instances("web").len(), 3);
}

#[tokio::test(start_paused = true)]
async fn repairs_what_others_changed_and_never_touches_what_is_theirs() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
    world.registered(&web, 4).await;
    let before = world.instances("web");
    let extra = specs("uid-1", "web", [9], "a")[0].render(crate::attributes::ServiceTraits::default());
    let other = specs("uid-2", "web", [9], "a")[0].render(crate::attributes::ServiceTraits::default());
    {
        let mut registry = world.fake.registry();
        let service = registry.services.keys().next().unwrap().clone();
        registry.instances.remove(&(service.clone(), before[0].id.clone()));
        registry
            .instances
            .get_mut(&(service.clone(), before[1].id.clone()))
            .unwrap()
            .insert("PORT_x".into(), "1/TCP".into());
        for instance in [&extra, &other, &ecs(7)] {
            registry.instances.insert((service.clone(), instance.id.clone()), instance.attributes.clone());
        }
    }
    sleep(Duration::from_mins(2)).await;
    let mut expected: Vec<_> = before.into_iter().chain([other, ecs(7)]).collect();
    expected.sort_by(|a, b| a.id.cmp(&b.id));
    assert_eq!(world.instances("web"), expected);
    assert_eq!(world.handle.figures().borrow().drifted, 3);
}

#[tokio::test(start_paused = true)]
async fn keeps_services_and_namespaces_that_others_created_or_use() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let web = registry.add_service(&ns, "web", "terraform", "");
        registry.instances.insert((web, ecs(1).id), ecs(1).attributes);
        registry.add_service(&ns, "empty", "terraform", "");
    }
    let world = World::new(fake);
    let named = |service| TargetDesired { consent: named(), ..active(specs("uid-1", service, 1..=2, "a")) };
    let (web, empty) = (target("shop", "web"), target("shop", "empty"));
    world.desire([(web.clone(), named("web")), (empty.clone(), named("empty"))]);
    world.registered(&web, 2).await;
    world.registered(&empty, 2).await;
    world.desire([(web.clone(), retiring()), (empty.clone(), retiring())]);
    world.until(&web, |status| status.own_gone).await;
    world.until(&empty, |status| status.own_gone).await;
    world.desire([]);
    sleep(Duration::from_mins(10)).await;
    assert_eq!(world.instances("web"), [ecs(1)]);
    let registry = world.fake.registry();
    assert_eq!((registry.services.len(), registry.namespaces.len()), (2, 1));
    assert_eq!(registry.count(Operation::DeleteService) + registry.count(Operation::DeleteNamespace), 0);
}

#[tokio::test(start_paused = true)]
async fn an_implied_target_is_refused_if_somebody_else_created_the_service() {
    let fake = Fake::new();
    let service = {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::Http);
        let edns = "heritage=external-dns,external-dns/owner=eks,external-dns/resource=service/shop/dns";
        registry.add_service(&ns, "dns", "x", edns);
        registry.add_service(&ns, "web", "terraform", "made by Terraform")
    };
    let world = World::new(fake);
    let (web, dns) = (target("shop", "web"), target("shop", "dns"));
    let instances = specs("uid-1", "web", 1..=2, "a");
    let of_edns = TargetDesired { consent: named(), ..active(specs("uid-1", "dns", 1..=2, "a")) };
    world.desire([(web.clone(), active(instances.clone())), (dns.clone(), of_edns.clone())]);
    let message = world.refused(&web, Reason::ForeignOwner).await;
    assert!(message.contains("annotation"), "{message}");
    let message = world.refused(&dns, Reason::ForeignOwner).await;
    // Tenants do not learn the owner id, with which they could take the service over.
    assert!(message.contains("external-dns") && !message.contains("eks"), "{message}");
    sleep(Duration::from_mins(30)).await;
    assert_eq!(world.writes(), 0);

    // The user shares it, and later takes that back: our own instances stay until somebody else serves the name.
    let shared = TargetDesired { consent: named(), ..active(instances.clone()) };
    world.desire([(web.clone(), shared), (dns.clone(), of_edns)]);
    world.registered(&web, 2).await;
    world.desire([(web.clone(), active(instances.clone()))]);
    world.refused(&web, Reason::ForeignOwner).await;
    sleep(Duration::from_mins(10)).await;
    assert_eq!(world.instances("web").len(), 2);
    world.fake.registry().instances.insert((service.clone(), ecs(1).id), ecs(1).attributes);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(world.instances("web"), [ecs(1)]);

    // Its owner deletes it, and within minutes it is ours.
    {
        let mut registry = world.fake.registry();
        registry.instances.clear();
        registry.services.remove(&service);
    }
    world.registered(&web, 2).await;
}

/// The last task ended a moment before, and no reading has shown that yet.
#[tokio::test(start_paused = true)]
async fn whether_own_instances_stay_without_the_permission_depends_on_who_is_there_then() {
    let fake = Fake::new();
    let task = {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::Http);
        let service = registry.add_service(&ns, "web", "terraform", "");
        registry.instances.insert((service.clone(), ecs(1).id), ecs(1).attributes);
        (service, ecs(1).id)
    };
    let (world, web) = (World::new(fake), target("shop", "web"));
    let instances = specs("uid-1", "web", 1..=2, "a");
    world.desire([(web.clone(), TargetDesired { consent: named(), ..active(instances.clone()) })]);
    world.registered(&web, 2).await;
    world.fake.registry().instances.remove(&task);
    world.desire([(web.clone(), active(instances))]);
    world.refused(&web, Reason::ForeignOwner).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.instances("web").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn who_withdraws_from_a_foreign_service_and_wants_it_again_is_refused() {
    let fake = Fake::new();
    let own = specs("uid-1", "web", 1..=1, "a");
    {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::Http);
        let other = Owner { clusterset: Some("other".parse().unwrap()), ..identity("uid-9") };
        registry.add_service(&ns, "web", &other.creator_request_id(1), "");
    }
    let world = World::new(fake);
    let web = target("shop", "web");
    world.desire([(web.clone(), retiring())]);
    // It is read, and not yet certain that nothing appears there any more.
    sleep(Duration::from_secs(5)).await;
    assert!(!world.status(&web).own_gone);
    world.desire([(web.clone(), active(own))]);
    world.refused(&web, Reason::ForeignOwner).await;
    sleep(Duration::from_mins(20)).await;
    assert_eq!(world.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_target_does_not_count_as_registered_before_its_instances_are() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::Http);
        registry.add_service(&ns, "web", "terraform", "");
    }
    let world = World::new(fake);
    let web = target("shop", "web");
    let instances = specs("uid-1", "web", 1..=2, "a");
    let mut status = world.handle.status();
    world.desire([(web.clone(), active(instances.clone()))]);
    world.refused(&web, Reason::ForeignOwner).await;
    sleep(Duration::from_secs(10)).await;
    status.borrow_and_update();
    world.desire([(web.clone(), TargetDesired { consent: named(), ..active(instances) })]);
    loop {
        status.changed().await.unwrap();
        match status.borrow_and_update()[&web].outcome.clone() {
            Outcome::Registered { count } => break assert_eq!(count, 2),
            Outcome::Pending | Outcome::Refused { .. } => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn if_namespaces_may_not_be_created_the_message_has_the_remedy() {
    let mut settings = SyncSettings::new(identity("uid-1"));
    settings.missing_namespaces = MissingNamespaces::Leave;
    let world = World::with(Fake::new(), &Rates::default(), settings);
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    let message = world.refused(&web, Reason::NoNamespace).await;
    assert!(message.contains("\"shop\"") && message.contains("create it"), "{message}");
    world.fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
    world.registered(&web, 2).await;
    assert_eq!(world.count(Operation::CreateHttpNamespace), 0);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_was_just_created_is_used_and_not_shadowed_by_another() {
    let world = World::new(Fake::new());
    let (other, web) = (target("other", "web"), target("shop", "web"));
    world.desire([(other.clone(), active(specs("uid-1", "web", [1], "a")))]);
    world.registered(&other, 1).await;
    // The listing that the other target needed is still recent.
    sleep(Duration::from_secs(5)).await;
    world.fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
    world.desire([&other, &web].map(|target| (target.clone(), active(specs("uid-1", "web", [1], "a")))));
    world.registered(&web, 1).await;
    assert_eq!(world.count(Operation::CreateHttpNamespace), 1);
}

#[tokio::test(start_paused = true)]
async fn a_missing_namespace_is_found_as_soon_as_any_listing_has_it() {
    let mut settings = SyncSettings::new(identity("uid-1"));
    settings.missing_namespaces = MissingNamespaces::Leave;
    let world = World::with(Fake::new(), &Rates::default(), settings);
    let (web, other) = (target("shop", "web"), target("other", "web"));
    let desired = |target: &Target| (target.clone(), active(specs("uid-1", "web", [1], "a")));
    world.desire([desired(&web)]);
    world.refused(&web, Reason::NoNamespace).await;
    // A listing from before the request does not prove that a namespace does not exist.
    world.fake.registry().add_namespace("other", NamespaceKind::DnsPrivate);
    world.fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
    sleep(Duration::from_secs(5)).await;
    let start = Instant::now();
    world.desire([desired(&web), desired(&other)]);
    world.registered(&other, 1).await;
    world.registered(&web, 1).await;
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

/// As when a name goes from one Service of this cluster to another.
#[tokio::test(start_paused = true)]
async fn when_all_instances_change_the_last_old_one_goes_when_the_first_new_one_is_registered() {
    let fake = Fake::new();
    let web = target("shop", "web");
    let world = World::new(fake.clone());
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    world.registered(&web, 2).await;
    // A short failure changes nothing.
    for _ in 0..2 {
        fake.fault(Operation::RegisterInstance, Fault::Refused(ErrorKind::Throttled));
    }
    world.desire([(web.clone(), active(specs("uid-1", "web", 3..=4, "a")))]);
    let ids = |range| specs("uid-1", "web", range, "a").iter().map(|spec| spec.id().clone()).collect::<Vec<_>>();
    let there = || world.instances("web").into_iter().map(|instance| instance.id).collect::<Vec<_>>();
    let filled = || {
        assert!(!there().is_empty(), "nobody has the name");
        there()
    };
    until_there(filled, &ids(3..=4)).await;
    // A dead instance goes first as long as others are there.
    world.registered(&web, 2).await;
    let before = fake.registry().calls.len();
    world.desire([(web.clone(), active(specs("uid-1", "web", 4..=5, "a")))]);
    until_there(there, &ids(4..=5)).await;
    let writes = [Operation::DeregisterInstance, Operation::RegisterInstance];
    let mut calls: Vec<_> = fake.registry().calls[before..].iter().map(|(operation, _)| *operation).collect();
    calls.retain(|operation| writes.contains(operation));
    assert_eq!(calls, writes);

    // If none can be registered, the dead ones do not stay.
    for _ in 0..100 {
        fake.fault(Operation::RegisterInstance, Fault::Refused(ErrorKind::LimitExceeded));
    }
    world.desire([(web.clone(), active(specs("uid-1", "web", 6..=7, "a")))]);
    until_there(there, &[]).await;
    fake.registry().faults.clear();
    until_there(there, &ids(6..=7)).await;
}

async fn until_there(there: impl Fn() -> Vec<Arc<str>>, wanted: &[Arc<str>]) {
    let end = Instant::now() + Duration::from_mins(3);
    while there() != wanted {
        assert!(Instant::now() < end, "{:?}", there());
        sleep(Duration::from_millis(20)).await;
    }
}

/// Terraform creates a service again without its health check, or removes a record. No message says so.
#[tokio::test(start_paused = true)]
async fn a_changed_service_is_noticed() {
    let fake = Fake::new();
    let service = {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let service = registry.add_service(&ns, "web", "terraform", "");
        registry.services.get_mut(&service).unwrap().custom_health_check = true;
        service
    };
    let world = World::new(fake);
    let web = target("shop", "web");
    world.desire([(web.clone(), TargetDesired { consent: named(), ..active(specs("uid-1", "web", 1..=4, "a")) })]);
    world.registered(&web, 4).await;
    {
        let mut registry = world.fake.registry();
        registry.services.get_mut(&service).unwrap().custom_health_check = false;
        let first = registry.instances.keys().next().unwrap().clone();
        registry.instances.remove(&first);
    }
    sleep(Duration::from_mins(3)).await;
    assert_eq!(world.instances("web").len(), 4);
    world.registered(&web, 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_record_that_kept_instances_out_is_removed() {
    let fake = Fake::new();
    let service = {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let service = registry.add_service(&ns, "web", "terraform", "");
        let record = |record_type| DnsRecord { record_type, ttl: 60 };
        let records = [RecordType::A, RecordType::Aaaa].map(record).to_vec();
        registry.services.get_mut(&service).unwrap().dns = Some(DnsConfig { weighted: false, records });
        service
    };
    let world = World::new(fake);
    let (web, since) = (target("shop", "web"), Instant::now());
    world.desire([(web.clone(), TargetDesired { consent: named(), ..active(specs("uid-1", "web", 1..=2, "a")) })]);
    world.refused(&web, Reason::UnfitEndpoints).await;
    sleep(Duration::from_mins(12)).await;
    let looks = world.count(Operation::GetService);
    assert!((2..=4).contains(&looks), "{looks} looks in twelve minutes");
    world.refused(&web, Reason::UnfitEndpoints).await;
    world.fake.registry().services.get_mut(&service).unwrap().dns.as_mut().unwrap().records.pop();
    world.registered(&web, 2).await;
    assert!(since.elapsed() < Duration::from_mins(18), "{:?}", since.elapsed());
}
