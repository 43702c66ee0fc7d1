//! Missing namespaces that are made with DNS.

use super::*;
use cloudmap::{DnsConfig, DnsRecord, Namespace, RecordType};

const VPC: &str = "vpc-0123456789abcdef0";

fn settings() -> SyncSettings {
    let missing_namespaces = MissingNamespaces::Private(VPC.parse().unwrap());
    SyncSettings { missing_namespaces, ..SyncSettings::new(identity("uid-1")) }
}

fn world() -> World {
    World::with(Fake::new(), &Rates::default(), settings())
}

fn namespaces(world: &World) -> Vec<Namespace> {
    world.fake.registry().namespaces.clone()
}

/// One pod in `web`, with A records where there is DNS.
fn wanted() -> TargetDesired {
    let mut wanted = active(specs("uid-1", "web", [1], "a"));
    let records = vec![DnsRecord { record_type: RecordType::A, ttl: 60 }];
    wanted.creation.dns = Some(DnsConfig { weighted: false, records });
    wanted
}

#[tokio::test(start_paused = true)]
async fn a_missing_namespace_is_made_with_dns_for_the_vpc_and_its_services_have_records() {
    let world = world();
    let web = target("shop", "web");
    world.desire([(web.clone(), wanted())]);
    world.registered(&web, 1).await;
    let made = namespaces(&world);
    assert_eq!(made.iter().map(|it| (&*it.name, it.kind)).collect::<Vec<_>>(), [("shop", NamespaceKind::DnsPrivate)]);
    assert_eq!(world.fake.registry().tags[&made[0].arn], identity("uid-1").tags(), "by which purge knows it");
    assert_eq!(world.service("web").dns.unwrap().records[0].record_type, RecordType::A);
    assert_eq!(world.count(Operation::CreateHttpNamespace), 0);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_exists_is_used_whatever_its_kind() {
    let world = world();
    world.fake.registry().add_namespace("shop", NamespaceKind::Http);
    let web = target("shop", "web");
    world.desire([(web.clone(), wanted())]);
    world.registered(&web, 1).await;
    assert_eq!((namespaces(&world).len(), world.service("web").dns), (1, None));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_the_vpc_has_already_is_said_with_the_remedy_and_made_once_it_is_free() {
    let world = world();
    world.fake.registry().zones.insert("shop".to_owned());
    let web = target("shop", "web");
    world.desire([(web.clone(), wanted())]);
    let message = world.refused(&web, Reason::NoNamespace).await;
    for part in
        ["CreatePrivateDnsNamespace", "same domain name", "list-hosted-zones-by-vpc", VPC, "--create-dns-namespaces"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    sleep(Duration::from_hours(1)).await;
    let attempts = world.count(Operation::CreatePrivateDnsNamespace);
    assert!((30..=75).contains(&attempts), "about one in a minute: {attempts}");
    world.fake.registry().zones.clear();
    world.registered(&web, 1).await;
}

/// AWS takes the request, and Route 53 refuses the second zone.
#[tokio::test(start_paused = true)]
async fn of_two_clusters_that_make_a_namespace_at_once_the_second_uses_it_and_says_nothing() {
    let world = world();
    world.fake.fault(Operation::CreatePrivateDnsNamespace, Fault::FailedLater("CANNOT_CREATE_HOSTED_ZONE"));
    let web = target("shop", "web");
    world.desire([(web.clone(), wanted())]);
    while world.count(Operation::CreatePrivateDnsNamespace) == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    world.fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
    let said = world.until(&web, |status| status.outcome != Outcome::Pending).await;
    assert_eq!(said.outcome, Outcome::Registered { count: 1 });
    assert_eq!((namespaces(&world).len(), world.count(Operation::CreatePrivateDnsNamespace)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_aws_refuses_is_sorted_and_names_what_is_missing() {
    let web = target("shop", "web");
    for (fault, reason, words) in [
        (Fault::FailedLater("ACCESS_DENIED"), Reason::AccessDenied, "iam --mode dns-namespaces"),
        (Fault::Refused(ErrorKind::AccessDenied), Reason::AccessDenied, "iam --mode dns-namespaces"),
        (Fault::Refused(ErrorKind::InvalidInput), Reason::Failed, "of the registry's account and region"),
        (Fault::FailedLater("INTERNAL_FAILURE"), Reason::Failed, "INTERNAL_FAILURE"),
        (Fault::Refused(ErrorKind::LimitExceeded), Reason::LimitExceeded, "limit_exceeded"),
    ] {
        let world = world();
        world.fake.fault(Operation::CreatePrivateDnsNamespace, fault);
        world.desire([(web.clone(), wanted())]);
        let message = world.refused(&web, reason).await;
        assert!(message.contains(words), "{message}");
        world.registered(&web, 1).await;
    }
}

/// Whoever may make a Kubernetes namespace could take `.com` away from the whole VPC.
#[tokio::test(start_paused = true)]
async fn a_zone_that_would_hide_the_internet_is_not_made() {
    let world = world();
    let web = target("com", "web");
    world.desire([(web.clone(), wanted())]);
    let message = world.refused(&web, Reason::NoNamespace).await;
    assert!(message.contains(".com of the Internet"), "{message}");
    assert_eq!(world.count(Operation::CreatePrivateDnsNamespace), 0);
    // People may have their reasons.
    world.fake.registry().add_namespace("com", NamespaceKind::DnsPrivate);
    world.registered(&web, 1).await;
}
