//! The TTL of services: ours follow the request, and an update deletes nothing.

use super::*;
use crate::records::address_records;
use cloudmap::{DnsRecord, HealthCheck, RecordType};
use model::IpFamily;

fn dns(families: &[IpFamily], ttl: u32) -> Option<DnsConfig> {
    address_records(families.iter().copied().collect(), ttl)
}

/// A target whose TTL counts; `asked`: an annotation requests it.
fn with_ttl(instances: Arc<[InstanceSpec]>, ttl: u32, asked: bool) -> TargetDesired {
    let creation = Creation { dns: dns(&[IpFamily::V4], ttl), ttl: asked.then_some(ttl), ..Creation::default() };
    TargetDesired { creation, decides: true, ..active(instances) }
}

/// Instances that are registered in a service of ours with a TTL of 60 s, and their target.
async fn registered(instances: Arc<[InstanceSpec]>, asked: bool) -> (World, Target) {
    let fake = Fake::new();
    fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
    let (world, web, count) = (World::new(fake), target("shop", "web"), instances.len());
    world.desire([(web.clone(), with_ttl(instances, 60, asked))]);
    world.registered(&web, count).await;
    (world, web)
}

fn ttls(service: &Service) -> Vec<(RecordType, u32)> {
    service.dns.iter().flat_map(|dns| &dns.records).map(|record| (record.record_type, record.ttl)).collect()
}

fn reasons(world: &World, target: &Target) -> Vec<&'static str> {
    world.status(target).notices.iter().map(|notice| notice.reason.as_str()).collect()
}

/// external-dns lost both when a TTL changed: an update deletes what it does not repeat.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_ttl_keeps_the_second_record_and_the_health_check() {
    let fake = Fake::new();
    fake.registry().add_namespace("shop", NamespaceKind::DnsPublic);
    let world = World::new(fake);
    let web = target("shop", "web");
    let both = |ttl| {
        let creation = Creation { dns: dns(&[IpFamily::V4, IpFamily::V6], ttl), ..Creation::default() };
        let instances: Arc<[InstanceSpec]> = [].into();
        TargetDesired { creation, decides: true, ..active(instances) }
    };
    world.desire([(web.clone(), both(60))]);
    world.registered(&web, 0).await;
    assert_eq!(ttls(&world.service("web")), [(RecordType::A, 60), (RecordType::Aaaa, 60)]);
    let check = HealthCheck { kind: "HTTP".to_owned(), path: Some("/up".to_owned()), failure_threshold: Some(2) };
    let id = world.service("web").id;
    world.fake.registry().services.get_mut(&id).unwrap().health_check = Some(check.clone());
    let description = world.service("web").description;

    world.desire([(web.clone(), both(20))]);
    sleep(Duration::from_secs(10)).await;
    let now = world.service("web");
    assert_eq!(ttls(&now), [(RecordType::A, 20), (RecordType::Aaaa, 20)]);
    assert_eq!((now.health_check, now.description), (Some(check), description));
    sleep(Duration::from_mins(20)).await;
    assert_eq!(world.count(Operation::UpdateService), 1, "once is enough");
}

/// In external-dns a TTL annotation adopted such a service together with its tasks, and ended in a crash loop.
#[tokio::test(start_paused = true)]
async fn the_ttl_of_a_shared_or_api_only_service_is_never_changed() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let shop = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        registry.add_namespace("api", NamespaceKind::Http);
        for (name, description) in
            [("bare", ""), ("text", "made by Terraform"), ("edns", "heritage=external-dns,external-dns/owner=eks")]
        {
            let id = registry.add_service(&shop, name, "theirs", description);
            registry.services.get_mut(&id).unwrap().dns = dns(&[IpFamily::V4], 10);
            registry.instances.insert((id, ecs(1).id), ecs(1).attributes);
        }
    }
    let world = World::new(fake);
    let share = Consent { named: true, share: true, ..Consent::default() };
    let shared =
        |name: &str| TargetDesired { consent: share.clone(), ..with_ttl(specs("uid-1", name, [1], "a"), 30, true) };
    let api = (target("api", "web"), with_ttl(specs("uid-1", "web", [1], "a"), 30, true));
    let names = ["bare", "text", "edns"];
    world.desire(names.map(|name| (target("shop", name), shared(name))).into_iter().chain([api]));
    for name in names {
        world.registered(&target("shop", name), 1).await;
    }
    world.registered(&target("api", "web"), 1).await;
    let listings = world.count(Operation::ListServices);
    sleep(Duration::from_mins(25)).await;
    assert_eq!((world.count(Operation::UpdateService), world.count(Operation::ListServices)), (0, listings));
    for name in names {
        assert_eq!(ttls(&world.service(name)), [(RecordType::A, 10)]);
        assert!(world.instances(name).contains(&ecs(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_somebody_else_changed_is_set_again_after_the_next_listing() {
    let (world, web) = registered(specs("uid-1", "web", [1], "a"), false).await;
    let id = world.service("web").id;
    world.fake.registry().services.get_mut(&id).unwrap().dns = dns(&[IpFamily::V4], 600);
    world.fake.fault(Operation::ListServices, Fault::Refused(ErrorKind::AccessDenied));
    sleep(Duration::from_mins(15)).await;
    assert_eq!(ttls(&world.service("web")), [(RecordType::A, 600)], "the listing failed");
    sleep(Duration::from_mins(10)).await;
    assert_eq!(ttls(&world.service("web")), [(RecordType::A, 60)]);
    let listings = world.count(Operation::ListServices);
    sleep(Duration::from_hours(1)).await;
    let counts = [Operation::ListServices, Operation::UpdateService].map(|operation| world.count(operation));
    assert_eq!(counts, [listings + 6, 1], "one listing in ten minutes, and one change");
    assert_eq!((reasons(&world, &web), world.instances("web").len()), (vec![], 1));
}

#[tokio::test(start_paused = true)]
async fn an_adopted_service_gets_only_a_requested_ttl() {
    let fake = Fake::new();
    let heritage = "heritage=external-dns,external-dns/owner=eks,external-dns/resource=service/shop/web";
    {
        let mut registry = fake.registry();
        let shop = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let id = registry.add_service(&shop, "web", "random", heritage);
        registry.services.get_mut(&id).unwrap().dns = dns(&[IpFamily::V4], 300);
    }
    let world = World::new(fake);
    let web = target("shop", "web");
    let adopted = |asked, decides| {
        let consent = Consent { named: true, adopt: Some("external-dns/eks".parse().unwrap()), ..Consent::default() };
        TargetDesired { decides, consent, ..with_ttl(specs("uid-1", "web", [1], "a"), 60, asked) }
    };
    for (asked, decides, expected) in [(false, true, 300), (true, false, 300), (true, true, 60)] {
        world.desire([(web.clone(), adopted(asked, decides))]);
        world.registered(&web, 1).await;
        sleep(Duration::from_mins(2)).await;
        assert_eq!(ttls(&world.service("web")), [(RecordType::A, expected)], "asked {asked}, decides {decides}");
    }
    assert_eq!(world.service("web").description.as_deref(), Some(heritage), "it can still go back");
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_cannot_be_changed_is_reported_and_tried_again_and_affects_no_instance() {
    let (world, web) = registered(specs("uid-1", "web", 1..=2, "a"), true).await;
    for fault in [
        Fault::Refused(ErrorKind::AccessDenied),
        Fault::FailedLater("INTERNAL_FAILURE"),
        Fault::Lost(ErrorKind::Unknown),
    ] {
        world.fake.fault(Operation::UpdateService, fault);
    }
    world.desire([(web.clone(), with_ttl(specs("uid-1", "web", 1..=3, "a"), 30, true))]);
    let status = world.until(&web, |status| !status.notices.is_empty()).await;
    assert_eq!(status.notices[0].reason, "TtlNotChanged");
    assert!(status.notices[0].message.contains("UpdateService"), "{:?}", status.notices);
    world.registered(&web, 3).await;
    sleep(Duration::from_mins(2)).await;
    assert_eq!(ttls(&world.service("web")), [(RecordType::A, 30)]);
    assert_eq!(reasons(&world, &web), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn records_of_other_types_than_requested_are_reported() {
    let (world, web) = registered(specs("uid-1", "web", [1], "a"), false).await;
    assert_eq!(reasons(&world, &web), [""; 0]);
    let records = vec![DnsRecord { record_type: RecordType::Srv, ttl: 60 }];
    for (dns, asked) in [(Some(DnsConfig { weighted: false, records }), "SRV"), (None, "none")] {
        let mut other = with_ttl(specs("uid-1", "web", [1], "a"), 60, false);
        other.creation.dns = dns;
        world.desire([(web.clone(), other)]);
        let words = format!("are A, but {asked} are requested");
        let said = |status: &TargetStatus| status.notices.iter().any(|notice| notice.message.contains(&words));
        world.until(&web, said).await;
    }
    assert_eq!(world.count(Operation::UpdateService), 0);
}
