//! Services whose records take none of the endpoints any more, and instances that somebody else changes.

use super::*;
use crate::{
    Custom,
    records::{address_records, host_record},
};
use cloudmap::DnsConfig;
use model::IpFamily;

const HOST: &str = "lb.example.org";
const BALANCER: &str = "web-1234.eu-west-1.elb.amazonaws.com";

fn with(dns: DnsConfig, instances: Arc<[InstanceSpec]>) -> TargetDesired {
    TargetDesired { creation: Creation { dns: Some(dns), ..Creation::default() }, decides: true, ..active(instances) }
}

fn of_host(host: &str) -> TargetDesired {
    let (us, service) = (identity("uid-1"), ServiceKey::new("shop", "web"));
    let source = Source { identity: &us, service: &service, ports: &[], region: None };
    let dns = host_record(host == BALANCER, 60);
    with(dns, source.hosts([&Arc::from(host)], &Custom::default()).unwrap().into())
}

fn of_address(last: u32) -> TargetDesired {
    with(address_records([IpFamily::V4].into(), 60).unwrap(), specs("uid-1", "web", [last], "a"))
}

/// A DNS namespace with the service `web`, as it was made for this.
async fn registered(desired: TargetDesired) -> (World, Target) {
    let fake = Fake::new();
    fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
    let (world, web) = (World::new(fake), target("shop", "web"));
    world.desire([(web.clone(), desired)]);
    world.registered(&web, 1).await;
    (world, web)
}

/// The longest time without an instance, until these are registered and nothing changes any more.
async fn gap(world: &World, web: &Target, desired: &TargetDesired) -> Duration {
    let expected: Vec<_> = desired.instances.iter().map(|spec| spec.id().clone()).collect();
    let (mut gap, mut empty) = (Duration::ZERO, Instant::now());
    for _ in 0..6000 {
        let there: Vec<_> = world.instances("web").into_iter().map(|instance| instance.id).collect();
        if !there.is_empty() {
            empty = Instant::now();
        }
        gap = gap.max(empty.elapsed());
        if there == expected && world.status(web).outcome == (Outcome::Registered { count: 1 }) {
            return gap;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{web} says {:?}", world.status(web));
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_records_take_no_endpoint_is_made_again_and_the_gap_is_said() {
    for (before, after, types, remade) in [
        (of_host(HOST), of_address(1), "were CNAME and its endpoints need A", true),
        (of_address(1), of_host(HOST), "were A and its endpoints need CNAME", true),
        // An alias needs another routing policy.
        (of_address(1), of_host(BALANCER), "were A and its endpoints need A", true),
        // These fit what is there, so the new one is registered before the old one goes.
        (of_host(BALANCER), of_address(1), "", false),
        (of_host(HOST), of_host(BALANCER), "", false),
    ] {
        let (world, web) = registered(before).await;
        let service = world.service("web").id;
        world.desire([(web.clone(), after.clone())]);
        let gap = gap(&world, &web, &after).await;
        assert_eq!(world.service("web").id != service, remade, "{types}");
        let notices = world.status(&web).notices;
        let said = notices.iter().find(|notice| notice.reason == EventReason::ServiceRemade);
        assert_eq!(said.is_some(), remade, "{notices:?}");
        if let Some(said) = said {
            assert!(said.message.contains(types) && said.message.contains("up to 15 s"), "{}", said.message);
            let words = said.message.split("no answer for ").nth(1).unwrap();
            let seconds: u64 = words.split(' ').next().unwrap().parse().unwrap();
            assert!(gap <= Duration::from_secs(seconds) && seconds <= gap.as_secs() + 5, "{gap:?} {seconds}");
            assert!(gap < Duration::from_secs(15), "{gap:?}");
        } else {
            assert_eq!(gap, Duration::ZERO);
        }
        // It is not said for ever, and nothing else happens.
        let writes = (world.writes(), world.count(Operation::DeleteService));
        sleep(Duration::from_mins(20)).await;
        assert!(world.status(&web).notices.iter().all(|notice| notice.reason != EventReason::ServiceRemade));
        assert_eq!((world.writes(), world.count(Operation::DeleteService)), writes);
    }
}

#[tokio::test(start_paused = true)]
async fn the_old_answer_stays_while_there_is_no_new_one_that_other_records_take() {
    let (world, web) = registered(of_host(HOST)).await;
    let before = world.instances("web");
    // The new endpoint is not ready, or the wishes are invalid, or another cluster decides.
    let none: [TargetDesired; 3] = [
        TargetDesired { keep: true, ..of_address(1) },
        TargetDesired { as_is: true, keep: true, ..of_address(1) },
        TargetDesired { decides: false, keep: true, ..of_address(1) },
    ];
    for desired in none {
        world.desire([(web.clone(), desired)]);
        sleep(Duration::from_mins(2)).await;
        assert_eq!(world.instances("web"), before);
    }
}

/// Somebody else's answer stays, and what is theirs is not deleted.
#[tokio::test(start_paused = true)]
async fn a_service_with_instances_of_others_or_of_others_is_never_made_again() {
    let (world, web) = registered(of_host(HOST)).await;
    let service = world.service("web").id;
    world.fake.registry().instances.insert((service.clone(), ecs(1).id), ecs(1).attributes);
    world.begin_term();
    world.desire([(web.clone(), of_address(1))]);
    world.refused(&web, Reason::UnfitEndpoints).await;
    sleep(Duration::from_mins(10)).await;
    assert_eq!((world.instances("web"), world.count(Operation::DeleteService)), (vec![ecs(1)], 0));
    assert!(world.status(&web).notices.iter().any(|notice| notice.reason == EventReason::RecordsDiffer));
    // When they are gone, it is made again.
    world.fake.registry().instances.remove(&(service, ecs(1).id));
    gap(&world, &web, &of_address(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_ends_in_the_middle_leaves_it_to_the_next() {
    for ends_after in [Operation::DeregisterInstance, Operation::DeleteService, Operation::CreateService] {
        let (world, web) = registered(of_host(HOST)).await;
        let before = world.count(ends_after);
        world.desire([(web.clone(), of_address(1))]);
        while world.count(ends_after) == before {
            sleep(Duration::from_millis(10)).await;
        }
        let fake = world.fake.clone();
        drop(world);
        let next = World::new(fake);
        next.desire([(web.clone(), of_address(1))]);
        gap(&next, &web, &of_address(1)).await;
    }
}

/// AWS notices only after a moment that a service is empty.
#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_denied_is_said_and_tried_until_it_succeeds() {
    let (world, web) = registered(of_host(HOST)).await;
    for kind in [ErrorKind::InUse, ErrorKind::AccessDenied, ErrorKind::AccessDenied] {
        world.fake.fault(Operation::DeleteService, Fault::Refused(kind));
    }
    world.desire([(web.clone(), of_address(1))]);
    let message = world.refused(&web, Reason::AccessDenied).await;
    assert!(message.contains("DeleteService"), "{message}");
    world.registered(&web, 1).await;
    let said = world.status(&web).notices;
    assert!(said.iter().any(|notice| notice.reason == EventReason::ServiceRemade), "{said:?}");
}

/// A program adds an attribute every minute. Each reading takes it away, and nothing else is said.
#[tokio::test(start_paused = true)]
async fn attributes_that_somebody_else_adds_again_and_again_are_said_once() {
    let (world, web) = registered(of_address(1)).await;
    let key = || (world.service("web").id, of_address(1).instances[0].id().clone());
    let meddle = |name: &str| {
        let (key, attribute) = (key(), (name.to_owned(), format!("{:?}", Instant::now())));
        world.fake.registry().instances.get_mut(&key).unwrap().extend([attribute]);
    };
    let notices = || {
        let notices = world.status(&web).notices.into_iter();
        notices.filter(|notice| notice.reason == EventReason::InstancesAltered).collect::<Vec<_>>()
    };
    let clean = world.instances("web");
    sleep(Duration::from_mins(5)).await;
    assert_eq!(notices(), []);
    meddle("LAST_SEEN");
    sleep(Duration::from_mins(2)).await;
    let first = notices();
    assert!(
        first[0].message.contains("LAST_SEEN") && first[0].message.contains("cloudmap-mcs/attributes"),
        "{first:?}"
    );
    for _ in 0..10 {
        meddle("LAST_SEEN");
        sleep(Duration::from_mins(2)).await;
        assert_eq!((notices(), world.instances("web")), (first.clone(), clean.clone()));
    }
    for name in ["A", "B", "C", "D"] {
        meddle(name);
        sleep(Duration::from_mins(2)).await;
    }
    assert!(notices()[0].message.contains("\"A\", \"B\", \"LAST_SEEN\" and others"), "{:?}", notices());
    // What AWS adds is nobody's.
    meddle("AWS_INIT_HEALTH_STATUS");
    sleep(Duration::from_mins(90)).await;
    assert_eq!(notices(), [], "it is over");
    // A change of what is desired is no change of somebody else.
    world.desire([(web.clone(), of_address(2))]);
    world.registered(&web, 1).await;
    sleep(Duration::from_mins(5)).await;
    assert_eq!(notices(), []);
}
