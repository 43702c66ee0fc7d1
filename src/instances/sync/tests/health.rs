//! The readiness of pods, in services with and without a custom health check.

use super::*;

const NOT_READY: Conditions = Conditions { ready: false, serving: false, terminating: false };
const GOING: Conditions = Conditions { ready: false, serving: true, terminating: true };
const READY: Conditions = Conditions::READY;

/// A service with a custom health check that somebody created as ECS does, with a task in it.
fn ecs_service(fake: &Fake) -> Arc<str> {
    let mut registry = fake.registry();
    let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
    let web = registry.add_service(&ns, "web", "ecs", "");
    registry.services.get_mut(&web).unwrap().custom_health_check = true;
    registry.instances.insert((web.clone(), ecs(1).id), ecs(1).attributes);
    web
}

fn joined(instances: Arc<[InstanceSpec]>) -> TargetDesired {
    TargetDesired { consent: named(), ..active(instances) }
}

impl World {
    /// The last parts of the addresses of registered pods: the healthy ones, and the unhealthy ones.
    fn healths(&self, service: &str) -> (Vec<String>, Vec<String>) {
        let id = self.service(service).id;
        let all = self.instances(service).into_iter().filter(|instance| instance.id.starts_with("k8s-"));
        let last = |instance: Instance| {
            let ill = self.fake.registry().unhealthy.contains(&(id.clone(), instance.id.clone()));
            (instance.id.rsplit('-').next().unwrap().to_owned(), ill)
        };
        let (ill, well): (Vec<_>, Vec<_>) = all.map(last).partition(|(_, ill)| *ill);
        let names = |all: Vec<(String, bool)>| all.into_iter().map(|(name, _)| name).collect();
        (names(well), names(ill))
    }

    fn says(&self) -> usize {
        self.count(Operation::UpdateInstanceCustomHealthStatus)
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_custom_health_check_a_pod_that_is_not_ready_is_kept_as_unhealthy() {
    let fake = Fake::new();
    ecs_service(&fake);
    let world = World::new(fake);
    let web = target("shop", "web");
    world.desire([(web.clone(), joined(pods("web", &[(1, READY), (2, READY), (3, NOT_READY)])))]);
    world.registered(&web, 2).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        world.healths("web"),
        (vec!["1".to_owned(), "2".to_owned()], vec![]),
        "who was never ready is not there"
    );
    assert_eq!(world.instances("web").last().unwrap().attributes["AWS_INIT_HEALTH_STATUS"], "HEALTHY");

    let writes = world.writes();
    world.desire([(web.clone(), joined(pods("web", &[(1, READY), (2, NOT_READY), (3, READY)])))]);
    sleep(Duration::from_secs(40)).await;
    assert_eq!(world.healths("web"), (vec!["1".to_owned(), "3".to_owned()], vec!["2".to_owned()]));
    assert_eq!((world.writes() - writes, world.says()), (1, 1), "one is registered, one is said to be ill");

    world.desire([(web.clone(), joined(pods("web", &[(1, GOING), (2, READY), (3, READY)])))]);
    sleep(Duration::from_secs(40)).await;
    assert_eq!(world.healths("web"), (vec!["2".to_owned(), "3".to_owned()], vec![]), "who goes is deregistered");
    assert_eq!((world.writes() - writes, world.says()), (2, 2));

    // Readings change nothing, even those that come before AWS shows the new status.
    sleep(Duration::from_mins(20)).await;
    assert_eq!((world.writes() - writes, world.says()), (2, 2));
    let calls = world.fake.registry().calls.clone();
    let said = calls.iter().filter(|(operation, _)| *operation == Operation::UpdateInstanceCustomHealthStatus);
    assert!(said.into_iter().all(|(_, id)| id.starts_with("k8s-")), "a task's health is ECS' to say");
}

#[tokio::test(start_paused = true)]
async fn without_a_custom_health_check_only_ready_pods_are_registered() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(pods("web", &[(1, READY), (2, READY), (3, NOT_READY)])))]);
    world.registered(&web, 2).await;
    world.desire([(web.clone(), active(pods("web", &[(1, READY), (2, NOT_READY), (3, NOT_READY)])))]);
    world.registered(&web, 1).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.healths("web"), (vec!["1".to_owned()], vec![]));
    assert!(!world.instances("web")[0].attributes.contains_key("AWS_INIT_HEALTH_STATUS"));
    assert_eq!((world.says(), world.count(Operation::GetInstancesHealthStatus)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn readiness_is_mirrored_in_a_service_that_is_created_with_a_custom_health_check() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    let checked = |instances| TargetDesired {
        creation: Creation { custom_health_check: true, ..Creation::default() },
        ..active(instances)
    };
    world.desire([(web.clone(), checked(pods("web", &[(1, READY)])))]);
    world.registered(&web, 1).await;
    assert!(world.service("web").custom_health_check);
    world.desire([(web.clone(), checked(pods("web", &[(1, NOT_READY)])))]);
    sleep(Duration::from_secs(40)).await;
    assert_eq!(world.healths("web"), (vec![], vec!["1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_and_a_drift_check_correct_wrong_health_statuses() {
    let fake = Fake::new();
    let service = ecs_service(&fake);
    let web = target("shop", "web");
    let former = World::new(fake.clone());
    former.desire([(web.clone(), joined(pods("web", &[(1, READY), (2, READY)])))]);
    former.registered(&web, 2).await;
    former.lead(false);
    sleep(Duration::from_secs(1)).await;
    let ids = specs("uid-1", "web", 1..=2, "a").iter().map(|spec| spec.id().clone()).collect::<Vec<_>>();
    fake.registry().unhealthy.insert((service.clone(), ids[0].clone()));
    let writes = former.writes();

    let next = World::new(fake.clone());
    next.desire([(web.clone(), joined(pods("web", &[(1, READY), (2, NOT_READY)])))]);
    next.registered(&web, 2).await;
    sleep(Duration::from_secs(40)).await;
    assert_eq!(next.healths("web"), (vec!["1".to_owned()], vec!["2".to_owned()]));
    assert_eq!((next.writes(), next.says()), (writes, 2), "nothing but the two healths was written");

    fake.registry().unhealthy.insert((service, ids[0].clone()));
    sleep(Duration::from_mins(3)).await;
    assert_eq!(next.healths("web"), (vec!["1".to_owned()], vec!["2".to_owned()]));
    drop(next);

    // If health may not be read, each status is set once and not again.
    for _ in 0..1000 {
        fake.fault(Operation::GetInstancesHealthStatus, Fault::Refused(ErrorKind::AccessDenied));
    }
    let blind = World::new(fake);
    let before = blind.says();
    blind.desire([(web.clone(), joined(pods("web", &[(1, READY), (2, NOT_READY)])))]);
    blind.registered(&web, 2).await;
    sleep(Duration::from_mins(10)).await;
    assert_eq!(blind.says() - before, 2);
}

#[tokio::test(start_paused = true)]
async fn a_health_status_that_cannot_be_set_is_reported_and_affects_nothing_else() {
    let fake = Fake::new();
    ecs_service(&fake);
    let world = World::new(fake.clone());
    let web = target("shop", "web");
    world.desire([(web.clone(), joined(pods("web", &[(1, READY), (2, READY)])))]);
    world.registered(&web, 2).await;
    fake.fault(Operation::UpdateInstanceCustomHealthStatus, Fault::Refused(ErrorKind::AccessDenied));
    world.desire([(web.clone(), joined(pods("web", &[(1, READY), (2, NOT_READY), (3, READY)])))]);
    let message = world.refused(&web, Reason::AccessDenied).await;
    assert!(message.contains("UpdateInstanceCustomHealthStatus"), "{message}");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(world.instances("web").len(), 4, "the third pod is registered meanwhile");
    world.registered(&web, 3).await;
    sleep(Duration::from_secs(40)).await;
    assert_eq!(world.healths("web").1, ["2"]);
}
