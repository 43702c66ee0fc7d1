//! The task against a registry in memory, under simulated time.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use proptest::prelude::*;
use tokio::{sync::oneshot, time::sleep};

use super::*;
use crate::{
    cloudmap::{
        ErrorKind, Instance, Lane, Limited, Limits, NamespaceKind, Operation, Rates,
        fake::{Fake, Fault},
    },
    instances::{Source, ownership::is_ours},
    model::{Conditions, Endpoint, ServiceKey},
};

fn identity(uid: &str) -> Identity {
    Identity { clusterset: Some("prod".parse().unwrap()), cluster: "c1".parse().unwrap(), cluster_uid: uid.into() }
}

fn target(namespace: &str, service: &str) -> Target {
    Target { namespace: namespace.into(), service: service.into() }
}

fn specs(uid: &str, service: &str, addresses: impl IntoIterator<Item = u32>, zone: &str) -> Arc<[InstanceSpec]> {
    let endpoints: Vec<_> = addresses
        .into_iter()
        .map(|last| Endpoint {
            ipv4: Some((0x0a00_0000 + last).into()),
            ipv6: None,
            ports: [].into(),
            conditions: Conditions::READY,
            hostname: None,
            zone: Some(zone.into()),
            node: None,
        })
        .collect();
    let (identity, service) = (identity(uid), ServiceKey::new("shop", service));
    let source = Source { identity: &identity, service: &service, ports: &[], region: None };
    source.instances(&endpoints).unwrap().into()
}

fn active(instances: Arc<[InstanceSpec]>) -> TargetDesired {
    TargetDesired { active: true, retiring: false, implied: true, instances }
}

fn retiring() -> TargetDesired {
    TargetDesired { active: false, retiring: true, implied: true, instances: Arc::default() }
}

fn ecs(id: u32) -> Instance {
    let attributes = [("AWS_INSTANCE_IPV4", format!("10.9.0.{id}")), ("ECS_SERVICE_NAME", "web".to_owned())];
    Instance { id: format!("{id:032x}").into(), attributes: attributes.map(|(k, v)| (k.to_owned(), v)).into() }
}

/// A running task with all that a test turns.
struct World {
    fake: Fake,
    desired: watch::Sender<Arc<Desired>>,
    leads: Arc<AtomicBool>,
    handle: Handle,
    _shutdown: oneshot::Sender<()>,
}

impl World {
    fn new(fake: Fake) -> Self {
        Self::with(fake, &Rates::default(), Settings::new(identity("uid-1")))
    }

    fn with(fake: Fake, rates: &Rates, settings: Settings) -> Self {
        let (desired, receiver) = watch::channel(Arc::default());
        let (shutdown, stopped) = oneshot::channel();
        let leads = Arc::new(AtomicBool::new(true));
        let leader = leads.clone();
        let leadership = move || leader.load(Ordering::SeqCst).then(|| Instant::now() + Duration::from_secs(10));
        let limited = Limited::new(fake.clone(), Limits::new(rates, None));
        let handle = spawn(settings, Arc::new(limited), receiver, Arc::new(leadership), async {
            let _ = stopped.await;
        });
        Self { fake, desired, leads, handle, _shutdown: shutdown }
    }

    fn desire(&self, targets: impl IntoIterator<Item = (Target, TargetDesired)>) {
        self.desired.send_replace(Arc::new(Desired { targets: targets.into_iter().collect() }));
    }

    fn status(&self, target: &Target) -> TargetStatus {
        self.handle.status().borrow().get(target).cloned().unwrap_or_default()
    }

    /// Waits until a target says something; gives up after an hour of simulated time.
    async fn until(&self, target: &Target, what: impl Fn(&TargetStatus) -> bool) -> TargetStatus {
        let mut status = self.handle.status();
        let said = status.wait_for(|all| all.get(target).is_some_and(&what));
        let said = tokio::time::timeout(Duration::from_hours(1), said).await.map(|said| said.unwrap()[target].clone());
        said.unwrap_or_else(|_| panic!("{target} says {:?}", self.status(target)))
    }

    async fn registered(&self, target: &Target, count: usize) {
        self.until(target, |status| status.outcome == Outcome::Registered { count }).await;
    }

    async fn refused(&self, target: &Target, reason: Reason) -> String {
        let refused =
            |status: &TargetStatus| matches!(&status.outcome, Outcome::Refused { reason: r, .. } if *r == reason);
        match self.until(target, refused).await.outcome {
            Outcome::Refused { message, .. } => message,
            outcome => panic!("{outcome:?}"),
        }
    }

    /// Ids of the instances in a service, ours or not.
    fn instances(&self, service: &str) -> Vec<Instance> {
        let registry = self.fake.registry();
        let id = registry.services.values().find(|s| &*s.name == service).map(|s| s.id.clone());
        let inside = registry.instances.iter().filter(|((s, _), _)| Some(s) == id.as_ref());
        inside.map(|((_, id), attributes)| Instance { id: id.clone(), attributes: attributes.clone() }).collect()
    }

    fn count(&self, operation: Operation) -> usize {
        self.fake.registry().count(operation)
    }

    fn writes(&self) -> usize {
        self.count(Operation::RegisterInstance) + self.count(Operation::DeregisterInstance)
    }
}

#[tokio::test(start_paused = true)]
async fn makes_namespace_and_service_once_and_marks_them() {
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
async fn writes_nothing_while_nothing_changes() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    world.registered(&web, 3).await;
    let writes = world.writes();
    for _ in 0..20 {
        sleep(Duration::from_mins(1)).await;
        // The same again, as another object.
        world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    }
    assert_eq!(world.writes(), writes);
    assert_eq!((world.count(Operation::CreateHttpNamespace), world.count(Operation::CreateService)), (1, 1));
    let reads = world.count(Operation::ListInstances);
    assert!((18..=22).contains(&reads), "one drift check a minute, not {reads}");
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_record_and_for_leadership() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    let waiting = TargetDesired { active: false, ..active(specs("uid-1", "web", 1..=3, "a")) };
    world.desire([(web.clone(), waiting)]);
    sleep(Duration::from_mins(5)).await;
    assert!(world.fake.registry().calls.is_empty());

    world.leads.store(false, Ordering::SeqCst);
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    sleep(Duration::from_mins(5)).await;
    assert!(world.fake.registry().calls.is_empty());

    world.leads.store(true, Ordering::SeqCst);
    world.registered(&web, 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_takes_over_what_the_former_left() {
    let fake = Fake::new();
    let web = target("shop", "web");
    let former = World::new(fake.clone());
    former.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
    former.registered(&web, 4).await;
    former.leads.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(1)).await;
    assert!(former.handle.status().borrow().is_empty());
    let writes = former.writes();

    let next = World::new(fake);
    next.desire([(web.clone(), active(specs("uid-1", "web", 3..=6, "a")))]);
    next.registered(&web, 4).await;
    assert_eq!(next.writes() - writes, 4, "two to register, two to deregister, two as they were");
    assert_eq!(next.instances("web").len(), 4);
}

#[tokio::test(start_paused = true)]
async fn leadership_that_ends_stops_the_queue() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=1000, "a")))]);
    sleep(Duration::from_secs(10)).await;
    world.leads.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(1)).await;
    let writes = world.writes();
    assert!(writes > 0 && writes < 1000);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn retires_to_nothing_and_removes_what_it_made() {
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
    world.desire([]);
    sleep(Duration::from_mins(5)).await;
    assert!(world.fake.registry().namespaces.is_empty(), "an empty namespace of ours goes later");

    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    world.registered(&web, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_former_leaders_record_alone_leads_to_the_remains() {
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

#[tokio::test(start_paused = true)]
async fn keeps_services_and_namespaces_that_others_made_or_use() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let web = registry.add_service(&ns, "web", "terraform", "");
        registry.instances.insert((web, ecs(1).id), ecs(1).attributes);
        registry.add_service(&ns, "empty", "terraform", "");
    }
    let world = World::new(fake);
    let named = |service| TargetDesired { implied: false, ..active(specs("uid-1", service, 1..=2, "a")) };
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
async fn an_implied_target_is_refused_where_somebody_else_made_the_service() {
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
    let named = TargetDesired { implied: false, ..active(specs("uid-1", "dns", 1..=2, "a")) };
    world.desire([(web.clone(), active(instances.clone())), (dns.clone(), named.clone())]);
    let message = world.refused(&web, Reason::ForeignOwner).await;
    assert!(message.contains("annotation"), "{message}");
    let message = world.refused(&dns, Reason::ForeignOwner).await;
    assert!(message.contains("external-dns") && message.contains("eks"), "{message}");
    sleep(Duration::from_mins(30)).await;
    assert_eq!(world.writes(), 0);

    // The user says so: it is shared. And takes it back: what we have there is withdrawn.
    let shared = TargetDesired { implied: false, ..active(instances.clone()) };
    world.desire([(web.clone(), shared), (dns.clone(), named)]);
    world.registered(&web, 2).await;
    world.desire([(web.clone(), active(instances.clone()))]);
    world.refused(&web, Reason::ForeignOwner).await;
    sleep(Duration::from_mins(1)).await;
    assert!(world.instances("web").is_empty());

    // Its owner deletes it: within minutes it is ours.
    world.fake.registry().services.remove(&service);
    world.registered(&web, 2).await;
}

#[tokio::test(start_paused = true)]
async fn repairs_what_others_changed_and_leaves_what_is_theirs() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
    world.registered(&web, 4).await;
    let before = world.instances("web");
    let extra = specs("uid-1", "web", [9], "a")[0].render(crate::instances::attributes::ServiceTraits::default());
    let other = specs("uid-2", "web", [9], "a")[0].render(crate::instances::attributes::ServiceTraits::default());
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

    // Nor at the start of a term, for a target with less to register than there is.
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
async fn gets_over_every_kind_of_failed_write() {
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
        Fault::FailedLater,
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
async fn an_operation_that_fails_later_is_seen_and_said() {
    let fake = Fake::new();
    fake.fault(Operation::RegisterInstance, Fault::FailedLater);
    let world = World::new(fake);
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    let message = world.refused(&web, Reason::Failed).await;
    assert!(message.contains("INTERNAL_FAILURE") && message.contains("instance k8s-"), "{message}");
    world.registered(&web, 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_service_that_somebody_deleted_is_made_again() {
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
async fn a_full_service_says_so_and_stops_nobody_else() {
    let world = World::new(Fake::new().with_quota(10));
    let (big, small) = (target("shop", "big"), target("shop", "small"));
    world.desire([
        (big.clone(), active(specs("uid-1", "big", 1..=15, "a"))),
        (small.clone(), active(specs("uid-1", "small", 1..=5, "a"))),
    ]);
    world.refused(&big, Reason::LimitExceeded).await;
    world.registered(&small, 5).await;
    let status = world.until(&big, |status| status.registered == 10).await;
    assert!(matches!(status.outcome, Outcome::Refused { reason: Reason::LimitExceeded, .. }), "{status:?}");
    sleep(Duration::from_mins(10)).await;
    let writes = world.writes();
    assert!(writes < 150, "{writes}: a full service is not hammered");

    // Deregistrations go on, and make room.
    world.desire([
        (big.clone(), active(specs("uid-1", "big", 8..=15, "a"))),
        (small, active(specs("uid-1", "small", 1..=5, "a"))),
    ]);
    world.registered(&big, 8).await;
    assert_eq!(world.instances("big").len(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_change_overtakes_a_long_queue() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=5, "a")))]);
    world.registered(&web, 5).await;

    let bulk = |web_instances: Arc<[InstanceSpec]>| {
        let services = (0..20).map(|i| format!("bulk-{i}"));
        let bulk = services.map(|s| (target("shop", &s), active(specs("uid-1", &s, 1..=500, "a"))));
        bulk.chain([(web.clone(), active(web_instances))]).collect::<Vec<_>>()
    };
    world.desire(bulk(specs("uid-1", "web", 1..=5, "a")));
    sleep(Duration::from_secs(20)).await;
    let queued = world.handle.figures().borrow().queued;
    assert!(queued > 5_000, "{queued}");

    let since = Instant::now();
    world.desire(bulk(specs("uid-1", "web", 2..=6, "a")));
    let wanted: BTreeSet<_> = specs("uid-1", "web", 2..=6, "a").iter().map(|spec| spec.id().clone()).collect();
    while world.instances("web").into_iter().map(|instance| instance.id).collect::<BTreeSet<_>>() != wanted {
        sleep(Duration::from_millis(50)).await;
        assert!(since.elapsed() < Duration::from_secs(10), "the queue starves a change");
    }
    // Its place in the queue, and the operation itself.
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_instances_take_their_time_and_the_ledger_none() {
    let fake = Fake::new();
    let limits = Limits::new(&Rates::default(), None);
    let shared = Arc::new(Limited::new(fake.clone(), limits));
    let (desired, receiver) = watch::channel(Arc::default());
    let leadership = || Some(Instant::now() + Duration::from_secs(10));
    let settings = Settings::new(identity("uid-1"));
    let handle = spawn(settings, shared.clone(), receiver, Arc::new(leadership), std::future::pending());
    let services: Vec<_> = (0..100).map(|i| format!("s-{i}")).collect();
    let targets = services.iter().map(|s| (target("shop", s), active(specs("uid-1", s, 1..=100, "a")))).collect();
    desired.send_replace(Arc::new(Desired { targets }));

    let head = fake.registry().add_service(&"ledger".into(), "clusters", "ledger", "");
    let mut worst = Duration::ZERO;
    let started = Instant::now();
    while handle.figures().borrow().registered < 10_000 {
        sleep(Duration::from_secs(3)).await;
        let since = Instant::now();
        let instance = Instance { id: "c1".into(), attributes: [("seq".to_owned(), "1".to_owned())].into() };
        shared.register_instance(&head, &instance, Lane::Ledger).await.unwrap();
        worst = worst.max(since.elapsed());
        assert!(started.elapsed() < Duration::from_mins(10), "{:?}", handle.figures().borrow());
    }
    assert!(worst < Duration::from_millis(50), "{worst:?}: the call itself takes 20 ms");
    let taken = started.elapsed();
    assert!((Duration::from_secs(190)..Duration::from_secs(260)).contains(&taken), "{taken:?} at 50 a second");
    let registry = fake.registry();
    assert!(registry.most_in_flight <= 40, "{}", registry.most_in_flight);
    let polls = registry.count(Operation::GetOperation);
    assert!(polls <= 25_000, "{polls} polls for ten thousand operations");
    let heads = registry.calls.iter().filter(|(_, id)| id == "c1").count();
    assert_eq!(registry.count(Operation::RegisterInstance), 10_000 + heads, "each instance is written once");
}

#[tokio::test(start_paused = true)]
async fn the_drift_period_follows_from_the_budget() {
    let mut settings = Settings::new(identity("uid-1"));
    settings.drift_budget = 0.25;
    let world = World::with(Fake::new(), &Rates::default(), settings);
    let services: Vec<_> = (0..40).map(|i| format!("s-{i}")).collect();
    world.desire(services.iter().map(|s| (target("shop", s), active(specs("uid-1", s, 1..=2, "a")))));
    for service in &services {
        world.registered(&target("shop", service), 2).await;
    }
    assert_eq!(world.handle.figures().borrow().drift_period, Duration::from_secs(160));
    let (reads, since) = (world.count(Operation::ListInstances), Instant::now());
    sleep(Duration::from_mins(16)).await;
    let rate = (world.count(Operation::ListInstances) - reads) as f64 / since.elapsed().as_secs_f64();
    assert!((0.2..=0.27).contains(&rate), "{rate} calls a second");
}

#[tokio::test(start_paused = true)]
async fn without_leave_to_create_namespaces_the_remedy_is_said() {
    let mut settings = Settings::new(identity("uid-1"));
    settings.create_namespaces = false;
    let world = World::with(Fake::new(), &Rates::default(), settings);
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    let message = world.refused(&web, Reason::NoNamespace).await;
    assert!(message.contains("\"shop\"") && message.contains("create it"), "{message}");
    world.fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
    world.registered(&web, 2).await;
    assert_eq!(world.count(Operation::CreateHttpNamespace), 0);
}

/// What the test does to a target at some point.
#[derive(Debug, Clone)]
enum Step {
    Desire(BTreeSet<u32>, bool),
    Retire,
    Fault(Operation, u8),
    Foreign(u32),
    Steal(u32),
    NewLeader,
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let addresses = proptest::collection::btree_set(1_u32..12, 0..8);
    let operation = prop::sample::select(vec![
        Operation::RegisterInstance,
        Operation::DeregisterInstance,
        Operation::GetOperation,
        Operation::ListInstances,
        Operation::ListServices,
        Operation::CreateService,
        Operation::DeleteService,
    ]);
    prop_oneof![
        4 => (addresses, any::<bool>()).prop_map(|(addresses, zone)| Step::Desire(addresses, zone)),
        1 => Just(Step::Retire),
        3 => (operation, 0_u8..6).prop_map(|(operation, kind)| Step::Fault(operation, kind)),
        2 => (0_u32..20).prop_map(Step::Foreign),
        1 => (1_u32..12).prop_map(Step::Steal),
        1 => Just(Step::NewLeader),
        6 => (1_u16..20_000).prop_map(Step::Wait),
    ]
}

fn fault(kind: u8) -> Fault {
    match kind {
        0 => Fault::Refused(ErrorKind::Throttled),
        1 => Fault::Refused(ErrorKind::Unknown),
        2 => Fault::Lost(ErrorKind::Unknown),
        3 => Fault::FailedLater,
        4 => Fault::Refused(ErrorKind::AccessDenied),
        _ => Fault::Refused(ErrorKind::Duplicate { operation: None }),
    }
}

/// Foreign instances in a service that both sides use, and every write watched.
async fn storm(steps: Vec<Step>) {
    let fake = Fake::new();
    let web = target("shop", "web");
    let service = {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::Http);
        registry.add_service(&ns, "web", "terraform", "")
    };
    let foreign: Mutex<BTreeSet<Arc<str>>> = Mutex::default();
    let mut world = World::new(fake.clone());
    let named = |addresses: &BTreeSet<u32>, zone: bool| {
        let instances = specs("uid-1", "web", addresses.iter().copied(), if zone { "a" } else { "b" });
        TargetDesired { implied: false, ..active(instances) }
    };
    let mut last = named(&BTreeSet::new(), true);
    for step in steps {
        match step {
            Step::Desire(addresses, zone) => last = named(&addresses, zone),
            Step::Retire => last = retiring(),
            Step::Fault(operation, kind) => fake.fault(operation, fault(kind)),
            Step::Foreign(id) => {
                foreign.lock().unwrap().insert(ecs(id).id);
                fake.registry().instances.insert((service.clone(), ecs(id).id), ecs(id).attributes);
            }
            Step::Steal(address) => {
                let id = specs("uid-1", "web", [address], "a")[0].id().clone();
                fake.registry().instances.remove(&(service.clone(), id));
            }
            Step::NewLeader => {
                world.leads.store(false, Ordering::SeqCst);
                sleep(Duration::from_secs(1)).await;
                world = World::new(fake.clone());
            }
            Step::Wait(ms) => sleep(Duration::from_millis(ms.into())).await,
        }
        world.desire([(web.clone(), last.clone())]);
    }
    fake.registry().faults.clear();
    sleep(Duration::from_mins(10)).await;

    let ids = |instances: Vec<Instance>| instances.into_iter().map(|i| i.id).collect::<BTreeSet<_>>();
    let expected: BTreeSet<_> =
        last.instances.iter().map(|spec| spec.id().clone()).chain(foreign.lock().unwrap().clone()).collect();
    assert_eq!(ids(world.instances("web")), expected);
    let registry = fake.registry();
    for (operation, id) in &registry.calls {
        let write = [Operation::RegisterInstance, Operation::DeregisterInstance].contains(operation);
        assert!(!write || id.starts_with("k8s-"), "{operation} of {id}, which is not ours");
        assert_ne!((*operation, id.as_str()), (Operation::DeleteService, &*service));
    }
    let said: Vec<_> = registry
        .instances
        .iter()
        .filter(|(_, a)| is_ours(&Instance { id: "".into(), attributes: (*a).clone() }, &identity("uid-1")))
        .collect();
    for ((_, id), attributes) in said {
        let spec = last.instances.iter().find(|spec| spec.id() == id).unwrap();
        assert_eq!(*attributes, spec.render(crate::instances::attributes::ServiceTraits::default()).attributes);
    }
    drop(registry);
    let status = world.status(&web);
    if last.retiring {
        assert!(status.own_gone, "{status:?}");
    } else {
        assert_eq!(status.outcome, Outcome::Registered { count: last.instances.len() });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn converges_after_any_storm_and_never_touches_what_is_foreign(steps in proptest::collection::vec(step(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(storm(steps));
    }
}
