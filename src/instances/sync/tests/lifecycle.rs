//! From the first instance to the last, and from one leader to the next.

use std::collections::BTreeMap;

use super::*;
use crate::attributes::ServiceTraits;
use cloudmap::{DnsRecord, RecordType};

#[tokio::test(start_paused = true)]
async fn creates_namespace_and_service_once_and_marks_them() {
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

    world.lead(false);
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    sleep(Duration::from_mins(5)).await;
    assert!(world.fake.registry().calls.is_empty());

    world.lead(true);
    world.registered(&web, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_takes_over_from_the_previous_one() {
    let fake = Fake::new();
    let web = target("shop", "web");
    let former = World::new(fake.clone());
    former.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
    former.registered(&web, 4).await;
    let writes = former.writes();
    drop(former);

    let next = World::new(fake);
    next.desire([(web.clone(), active(specs("uid-1", "web", 3..=6, "a")))]);
    next.registered(&web, 4).await;
    assert_eq!(next.writes() - writes, 4, "two to register, two to deregister, two as they were");
    assert_eq!(next.instances("web").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn where_a_new_leader_finds_everything_their_ids_are_in_memory_once() {
    let fake = Fake::new();
    let web = target("shop", "web");
    for _ in 0..2 {
        let world = World::new(fake.clone());
        world.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
        world.registered(&web, 4).await;
        let TargetStatus { found, reached, .. } = world.status(&web);
        let (found, reached) = (found.unwrap(), reached.unwrap());
        assert_eq!((Arc::ptr_eq(&found, &reached), reached.len()), (found.len() == 4, 4));
    }
}

/// The service names of host names are in lower case, and those of ECS services may have capitals.
#[tokio::test(start_paused = true)]
async fn the_case_of_a_service_name_matters_only_in_an_api_only_namespace() {
    let fake = Fake::new();
    for (name, kind) in [("internal", NamespaceKind::DnsPrivate), ("shop", NamespaceKind::Http)] {
        let namespace = fake.registry().add_namespace(name, kind);
        fake.registry().add_service(&namespace, "Orders", "terraform-1", "");
    }
    let (dns, api) = (target("internal", "orders"), target("shop", "orders"));
    let wanted = || TargetDesired { consent: named(), ..active(specs("uid-1", "orders", 1..=2, "a")) };
    let world = World::new(fake.clone());
    world.desire([(dns.clone(), wanted()), (api.clone(), wanted())]);
    world.registered(&dns, 2).await;
    world.registered(&api, 2).await;
    assert_eq!((world.count(Operation::CreateService), world.instances("orders").len()), (1, 2));
    drop(world);

    // A new leader, which has only the listing, withdraws what is there.
    let next = World::new(fake.clone());
    next.desire([(dns.clone(), retiring())]);
    next.until(&dns, |status| status.own_gone).await;
    let left = fake.registry().instances.len();
    assert_eq!((left, next.instances("orders").len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn leadership_that_ends_stops_the_queue() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=1000, "a")))]);
    sleep(Duration::from_secs(10)).await;
    world.lead(false);
    sleep(Duration::from_secs(1)).await;
    let writes = world.writes();
    assert!(writes > 0 && writes < 1000);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.writes(), writes);
}

/// As while the API server is away: nobody else can have written.
#[tokio::test(start_paused = true)]
async fn a_pause_within_a_term_costs_no_reading_and_a_new_term_does() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    world.registered(&web, 3).await;
    let listings = || [Operation::ListNamespaces, Operation::ListServices].map(|operation| world.count(operation));
    let before = listings();
    world.lead(false);
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
    sleep(Duration::from_mins(10)).await;
    assert_eq!((world.writes(), world.status(&web).registered), (3, 3));
    world.lead(true);
    world.until(&web, |status| status.registered == 4).await;
    assert_eq!((world.writes(), listings()), (4, before));

    world.begin_term();
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=5, "a")))]);
    world.registered(&web, 5).await;
    assert_eq!(world.writes(), 5);
    assert!(listings().iter().zip(before).all(|(now, before)| *now > before));
}

#[tokio::test(start_paused = true)]
async fn a_retiring_target_becomes_empty_and_its_service_is_deleted() {
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
    // A namespace that is created again has another HttpName, and callers of DiscoverInstances with the old one would
    // find nothing.
    let namespaces = world.fake.registry().namespaces.clone();
    world.desire([]);
    sleep(Duration::from_hours(1)).await;
    assert_eq!((namespaces.len(), &world.fake.registry().namespaces), (1, &namespaces));

    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    world.registered(&web, 2).await;
    assert_eq!(world.fake.registry().namespaces, namespaces);
}

/// AWS may refuse to delete a service for a moment after its last instance is gone, and refuses it where others have some.
#[tokio::test(start_paused = true)]
async fn an_empty_service_is_deleted_when_aws_notices_that_it_is_empty() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    let wanted = || active(specs("uid-1", "web", 1..=3, "a"));
    world.desire([(web.clone(), wanted())]);
    world.registered(&web, 3).await;
    for _ in 0..4 {
        world.fake.fault(Operation::DeleteService, Fault::Refused(ErrorKind::InUse));
    }
    world.desire([(web.clone(), retiring())]);
    world
        .until(&web, |status| {
            assert!(!matches!(status.outcome, Outcome::Refused { .. }), "{status:?}");
            status.own_gone
        })
        .await;
    assert!(world.fake.registry().services.is_empty());

    world.desire([(web.clone(), wanted())]);
    world.registered(&web, 3).await;
    {
        let mut registry = world.fake.registry();
        let service = registry.services.keys().next().unwrap().clone();
        registry.instances.insert((service, ecs(1).id), ecs(1).attributes);
    }
    let before = world.count(Operation::DeleteService);
    world.desire([(web.clone(), retiring())]);
    world.until(&web, |status| status.own_gone).await;
    assert_eq!(world.instances("web"), [ecs(1)]);
    assert_eq!(world.count(Operation::DeleteService), before + 1, "it is not tried again");
}

/// A request of the previous leader may take effect after this leader's first listing.
#[tokio::test(start_paused = true)]
async fn a_registration_that_takes_effect_after_a_listing_is_withdrawn_before_the_record_goes() {
    let fake = Fake::new();
    fake.registry().add_namespace("other", NamespaceKind::Http);
    let (web, api) = (target("shop", "web"), target("other", "api"));
    let next = World::new(fake.clone());
    next.desire([(web.clone(), retiring()), (api.clone(), retiring())]);
    sleep(Duration::from_secs(5)).await;
    {
        let mut registry = fake.registry();
        let shop = registry.add_namespace("shop", NamespaceKind::Http);
        let other = registry.namespaces[0].id.clone();
        for (namespace, name) in [(shop, "web"), (other, "api")] {
            let service = registry.add_service(&namespace, name, &identity("uid-1").creator_request_id(1), "");
            let spec = &specs("uid-1", name, 1..=1, "a")[0];
            let instance = spec.render(ServiceTraits::default());
            registry.instances.insert((service, instance.id), instance.attributes);
        }
    }
    for target in [&web, &api] {
        next.until(target, |status| status.own_gone).await;
    }
    assert_eq!(fake.registry().instances, BTreeMap::new());
    assert!(fake.registry().services.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_creation_had_no_answer_is_not_left_behind() {
    let fake = Fake::new();
    fake.registry().add_namespace("shop", NamespaceKind::Http);
    let (web, api) = (target("shop", "web"), target("shop", "api"));
    let world = World::new(fake.clone());
    world.desire([(api.clone(), active(specs("uid-1", "api", 1..=1, "a")))]);
    world.registered(&api, 1).await;
    sleep(Duration::from_mins(1)).await;
    fake.fault(Operation::CreateService, Fault::Lost(ErrorKind::Unknown));
    let made = world.count(Operation::CreateService);
    let wanted = |web_desired| [(api.clone(), active(specs("uid-1", "api", 1..=1, "a"))), (web.clone(), web_desired)];
    world.desire(wanted(active(specs("uid-1", "web", 1..=1, "a"))));
    while world.count(Operation::CreateService) == made {
        sleep(Duration::from_millis(10)).await;
    }
    world.desire(wanted(retiring()));
    world.until(&web, |status| status.own_gone).await;
    let services: Vec<_> = fake.registry().services.values().map(|service| service.name.clone()).collect();
    assert_eq!(services, ["api".into()]);
}

#[tokio::test(start_paused = true)]
async fn the_record_of_a_previous_leader_is_enough_to_find_its_instances() {
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

/// external-dns (provider `aws-sd`) ignores services without a description, and crashes on those that have one and no
/// records.
#[tokio::test(start_paused = true)]
async fn a_service_without_records_has_no_description_and_is_recognised_by_its_creator() {
    let fake = Fake::new();
    fake.registry().add_namespace("internal", NamespaceKind::DnsPrivate);
    let (api, bare, web) = (target("shop", "api"), target("internal", "bare"), target("internal", "web"));
    let ipv4 = [(RecordType::A, 60)].map(|(record_type, ttl)| DnsRecord { record_type, ttl });
    let dns = DnsConfig { weighted: false, records: ipv4.into() };
    let wanted = |pods: std::ops::RangeInclusive<u32>| {
        let with = |creation| TargetDesired { creation, ..active(specs("uid-1", "web", pods.clone(), "a")) };
        let recorded = Creation { dns: Some(dns.clone()), ..Creation::default() };
        [
            (api.clone(), with(recorded.clone())),
            (bare.clone(), with(Creation::default())),
            (web.clone(), with(recorded)),
        ]
    };
    let former = World::new(fake.clone());
    former.desire(wanted(1..=3));
    for target in [&api, &bare, &web] {
        former.registered(target, 3).await;
    }
    let described = identity("uid-1").description();
    for (service, description) in [("api", None), ("bare", None), ("web", Some(described))] {
        assert_eq!(former.service(service).description, description, "{service}");
    }
    drop(former);

    let next = World::new(fake);
    next.desire(wanted(2..=4));
    for target in [&api, &bare, &web] {
        next.registered(target, 3).await;
    }
    assert_eq!((next.count(Operation::CreateService), next.count(Operation::GetService)), (3, 2));
    assert_eq!(next.count(Operation::ListTagsForResource), 0, "the creator tells enough");
    next.desire([&api, &bare, &web].map(|target| (target.clone(), retiring())));
    for target in [&api, &bare, &web] {
        next.until(target, |status| status.own_gone).await;
    }
    assert!(next.fake.registry().services.is_empty() && next.fake.registry().instances.is_empty());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_registered_in_a_service_without_a_description_before_its_owner_is_known() {
    let fake = Fake::new();
    let web = target("shop", "web");
    {
        let mut registry = fake.registry();
        let shop = registry.add_namespace("shop", NamespaceKind::Http);
        let other = Owner { clusterset: Some("other".parse().unwrap()), ..identity("uid-9") };
        let service = registry.add_service(&shop, "web", &other.creator_request_id(1), "");
        registry.services.get_mut(&service).unwrap().description = None;
        registry.instances.insert((service, ecs(1).id), ecs(1).attributes);
    }
    // It seems to be gone after it was read.
    fake.fault(Operation::GetService, Fault::Refused(ErrorKind::NotFound));
    fake.fault(Operation::GetService, Fault::Refused(ErrorKind::Unknown));
    let world = World::new(fake.clone());
    world.desire([(web.clone(), active(specs("uid-1", "web", 3..=4, "a")))]);
    let message = world.refused(&web, Reason::ForeignOwner).await;
    assert!(message.contains("cloudmap-mcs/share"), "{message}");
    sleep(Duration::from_mins(20)).await;
    assert!(matches!(world.status(&web).outcome, Outcome::Refused { .. }));
    assert_eq!((world.writes(), world.count(Operation::CreateService)), (0, 0));

    let share = Consent { share: true, ..Consent::default() };
    world.desire([(web.clone(), TargetDesired { consent: share, ..active(specs("uid-1", "web", 3..=4, "a")) })]);
    world.registered(&web, 2).await;
    // It is no longer shared, which happened while nobody led.
    drop(world);
    let next = World::new(fake);
    next.desire([(web.clone(), active(specs("uid-1", "web", 3..=4, "a")))]);
    next.refused(&web, Reason::ForeignOwner).await;
    next.until(&web, |status| status.registered == 0).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(next.instances("web"), [ecs(1)]);
}

/// Somebody creates another namespace with the name: an API-only one, or a private one for another VPC, whose id
/// happens to be smaller.
#[tokio::test(start_paused = true)]
async fn a_later_namespace_with_the_same_name_moves_nothing() {
    for kind in [NamespaceKind::Http, NamespaceKind::DnsPrivate] {
        let fake = Fake::new();
        let first = fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
        let world = World::new(fake.clone());
        let web = target("shop", "web");
        world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
        world.registered(&web, 3).await;
        {
            let mut registry = fake.registry();
            registry.add_namespace("shop", kind);
            let later = registry.namespaces.last_mut().unwrap();
            (later.id, later.arn) = ("ns-0".into(), "arn:ns-0".into());
        }
        // Another leader, which knows only what exists.
        world.begin_term();
        world.desire([(web.clone(), active(specs("uid-1", "web", 2..=4, "a")))]);
        world.registered(&web, 3).await;
        sleep(Duration::from_mins(5)).await;
        let services: Vec<_> = fake.registry().services.values().map(|service| service.namespace_id.clone()).collect();
        assert_eq!(services, [Some(first)], "{kind:?}: it moved");
        assert_eq!((world.instances("web").len(), world.status(&web).registered), (3, 3));
    }
}

/// Another object has the same name, but for the case, by mistake. Later the first one gives up the name.
#[tokio::test(start_paused = true)]
async fn of_two_names_in_a_dns_namespace_that_differ_only_in_case_one_alone_is_registered() {
    let fake = Fake::new();
    super::shares::service(&fake);
    let world = World::new(fake);
    let (web, upper) = (target("shop", "web"), target("shop", "Web"));
    let with = |instances: &Arc<[InstanceSpec]>| TargetDesired { consent: named(), ..active(instances.clone()) };
    let [first, other] = [("web", 1..=2), ("other", 3..=4)].map(|(name, pods)| specs("uid-1", name, pods, "a"));
    world.desire([(web.clone(), with(&first)), (upper.clone(), with(&other))]);
    world.registered(&web, 2).await;
    let message = world.refused(&upper, Reason::ForeignOwner).await;
    assert!(message.contains("in shop/web; name another"), "{message}");
    let writes = world.writes();
    sleep(Duration::from_mins(20)).await;
    assert_eq!((world.writes(), world.status(&web).registered), (writes, 2));
    world.desire([(web.clone(), retiring()), (upper.clone(), with(&other))]);
    world.registered(&upper, 2).await;
    world.until(&web, |status| status.own_gone).await;
    sleep(Duration::from_mins(5)).await;
    let there: Vec<_> = world.instances("web").into_iter().map(|there| there.id).collect();
    assert_eq!(there, other.iter().map(|spec| spec.id().clone()).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_name_in_a_dns_namespace_whose_case_changes_keeps_its_instances() {
    let fake = Fake::new();
    super::shares::service(&fake);
    let world = World::new(fake);
    let (web, upper) = (target("shop", "web"), target("shop", "Web"));
    let with = || TargetDesired { consent: named(), ..active(specs("uid-1", "web", 1..=2, "a")) };
    world.desire([(web.clone(), with())]);
    world.registered(&web, 2).await;
    let writes = world.writes();
    world.desire([(web.clone(), retiring()), (upper.clone(), with())]);
    world.until(&web, |status| status.own_gone).await;
    sleep(Duration::from_mins(20)).await;
    assert_eq!((world.instances("web").len(), world.status(&upper).registered, world.writes()), (2, 2, writes));
}
