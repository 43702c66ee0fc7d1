//! Shares of the traffic: some of the ready pods, beside instances of others.

use proptest::prelude::*;

use super::*;
use crate::{
    Share, Traffic,
    share::{Reached, pace::PATIENCE},
};

const READY: Conditions = Conditions::READY;
const NOT_READY: Conditions = Conditions { ready: false, serving: false, terminating: false };

/// A service with a custom health check, as ECS creates it.
pub(super) fn service(fake: &Fake) -> Arc<str> {
    let mut registry = fake.registry();
    let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
    let web = registry.add_service(&ns, "web", "ecs", "");
    registry.services.get_mut(&web).unwrap().custom_health_check = true;
    web
}

/// So many tasks run from now on.
pub(super) fn run_tasks(fake: &Fake, service: &Arc<str>, count: u32) {
    let mut registry = fake.registry();
    registry.instances.retain(|(there, id), _| there != service || id.starts_with("k8s-"));
    registry.unhealthy.retain(|(there, id)| there != service || id.starts_with("k8s-"));
    for n in 1..=count {
        registry.instances.insert((service.clone(), ecs(n).id), ecs(n).attributes);
    }
}

/// A controller beside so many tasks, the target that it joins, and the id of the Cloud Map service.
fn beside(tasks: u32) -> (World, Target, Arc<str>) {
    let fake = Fake::new();
    let id = service(&fake);
    run_tasks(&fake, &id, tasks);
    (World::new(fake), target("shop", "web"), id)
}

fn traffic(text: &str) -> Traffic {
    match text {
        "all" => Traffic::All,
        text => text.parse().map_or(Traffic::Unclear, Traffic::Share),
    }
}

pub(super) fn shared(share: &str, instances: Arc<[InstanceSpec]>) -> TargetDesired {
    TargetDesired { traffic: traffic(share), consent: named(), ..active(instances) }
}

pub(super) fn ready(addresses: impl IntoIterator<Item = u32>) -> Arc<[InstanceSpec]> {
    pods("web", &addresses.into_iter().map(|address| (address, READY)).collect::<Vec<_>>())
}

impl World {
    /// The last parts of the addresses of registered pods.
    pub(super) fn ours(&self) -> Vec<u32> {
        let all = self.instances("web").into_iter().filter(|instance| instance.id.starts_with("k8s-"));
        let mut all: Vec<_> = all.map(|instance| instance.id.rsplit('-').next().unwrap().parse().unwrap()).collect();
        all.sort_unstable();
        all
    }

    /// Waits, and looks all the time that the name has an instance.
    async fn never_empty(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            assert!(!self.instances("web").is_empty(), "the name is empty");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn beside_two_tasks_two_pods_get_what_can_be_reached_of_each_share() {
    let (world, web, _) = beside(2);
    for (share, count, limited) in
        [("0%", 0, false), ("40%", 1, false), ("50%", 2, false), ("60%", 2, true), ("33%", 1, false), ("0%", 0, false)]
    {
        world.desire([(web.clone(), shared(share, ready([1, 2])))]);
        world.never_empty(Duration::from_secs(10)).await;
        assert_eq!(world.ours().len(), count, "{share}");
        let status = world.status(&web);
        assert_eq!(status.outcome, Outcome::Registered { count }, "{share}");
        let reached = status.share.unwrap().reached;
        assert_eq!(
            reached,
            Reached { asked: share.parse().ok(), ours: count, ready: 2, others: 2, hidden: 0, to_hide: 0 }
        );
        let figures = world.handle.figures().borrow().shares;
        assert_eq!((figures.targets, figures.limited, figures.held_back), (1, limited.into(), 2 - count), "{share}");
        let notice = |reason| status.notices.iter().any(|notice| notice.reason == reason);
        assert!(notice(if limited { EventReason::ShareLimited } else { EventReason::ShareReached }), "{share}");
    }
    assert_eq!(world.instances("web").len(), 2, "the tasks are as they were");
    world.desire([(web.clone(), shared("all", ready([1, 2])))]);
    world.registered(&web, 2).await;
    assert_eq!((world.status(&web).share, world.handle.figures().borrow().shares.targets), (None, 0));
    world.desire([(web.clone(), shared("50%", ready([1, 2]))), (target("shop", "api"), active(ready([3])))]);
    sleep(Duration::from_secs(5)).await;
    world.desire([(web.clone(), retiring())]);
    world.until(&web, |status| status.own_gone).await;
    assert_eq!(world.ours(), [0_u32; 0], "a deleted Service is withdrawn");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_chosen_counts_as_registered_when_it_is() {
    let fake = Fake::new().with_call(Duration::from_millis(80));
    let id = service(&fake);
    run_tasks(&fake, &id, 3);
    let (world, web) = (World::new(fake), target("shop", "web"));
    world.desire([(web.clone(), shared("50%", ready(1..=9)))]);
    let chosen = |status: &TargetStatus| status.share.as_ref().is_some_and(|share| share.reached.ours > 0);
    let reached = || world.handle.figures().borrow().shares.reached;
    assert_eq!((world.until(&web, chosen).await.share.unwrap().registered, reached()), (0, 0));
    world.registered(&web, 3).await;
    assert_eq!((world.status(&web).share.unwrap().registered, reached()), (3, 5_000));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_is_replaced_before_anything_else_changes_and_the_others_stay() {
    let (world, web, _) = beside(3);
    world.desire([(web.clone(), shared("50%", ready(1..=9)))]);
    world.registered(&web, 3).await;
    let first = world.ours();
    let gone = first[0];
    let writes = world.writes();
    world.desire([(web.clone(), shared("50%", ready((1..=9).filter(|pod| *pod != gone))))]);
    sleep(Duration::from_secs(5)).await;
    let now = world.ours();
    assert!(now.len() == 3 && first[1..].iter().all(|pod| now.contains(pod)), "{first:?}, then {now:?}");
    assert_eq!(world.writes() - writes, 2, "one came, one went");

    // A smaller share and a pod that goes, at once: its replacement comes before a living pod is withdrawn.
    let gone = now[2];
    world.desire([(web.clone(), shared("45%", ready((1..=9).filter(|pod| *pod != gone && *pod != first[0]))))]);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(world.ours(), now[..2], "two are enough, and both were there");

    // A pod that is not ready keeps its instance behind the health check, and another one takes its part.
    let ill: Vec<_> = (1..=9).map(|pod| (pod, if pod == now[0] { NOT_READY } else { READY })).collect();
    world.desire([(web.clone(), shared("45%", pods("web", &ill)))]);
    sleep(Duration::from_mins(1)).await;
    let with_ill = world.ours();
    assert!(with_ill.len() == 3 && with_ill.contains(&now[0]), "{with_ill:?}");
    world.desire([(web.clone(), shared("45%", ready(1..=9)))]);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.ours().len(), 2);
}

/// The number of registered pods depends on the tasks. Which pods are ready decides only which ones they are, unless all are
/// needed.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_ready_now_and_then_is_replaced_once_and_moves_no_number() {
    let (world, web, _) = beside(3);
    let with = |ill: Option<u32>| {
        let all: Vec<_> = (1..=9).map(|pod| (pod, if Some(pod) == ill { NOT_READY } else { READY })).collect();
        [(web.clone(), shared("50%", pods("web", &all)))]
    };
    world.desire(with(None));
    world.registered(&web, 3).await;
    sleep(Duration::from_secs(20)).await;
    let first = world.ours();
    let spare = (1..=9).find(|pod| !first.contains(pod)).unwrap();
    for (ill, writes) in [(spare, 0), (first[0], 2)] {
        let before = world.writes();
        for _ in 0..6 {
            world.desire(with(Some(ill)));
            sleep(Duration::from_secs(10)).await;
            world.desire(with(None));
            sleep(Duration::from_secs(10)).await;
        }
        let now = world.ours();
        assert_eq!((now.len(), world.writes() - before), (3, writes), "{ill} of {first:?}, now {now:?}");
        assert!(first[1..].iter().all(|pod| now.contains(pod)), "{first:?}, then {now:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_that_come_and_go_move_the_number_only_after_a_minute() {
    let (world, web, id) = beside(2);
    world.desire([(web.clone(), shared("50%", ready(1..=9)))]);
    world.registered(&web, 2).await;
    run_tasks(&world.fake, &id, 5);
    sleep(PATIENCE.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(world.ours().len(), 2);
    sleep(Duration::from_secs(70)).await;
    assert_eq!(world.ours().len(), 5, "a reading shows it within 50 s, and the minute begins then");

    // Tasks that fail their health check do not count.
    world.fake.registry().unhealthy.extend((1..=3).map(|n| (id.clone(), ecs(n).id)));
    sleep(Duration::from_secs(130)).await;
    assert_eq!(world.ours().len(), 2);

    // Nobody else is left: all pods serve, within a reading.
    run_tasks(&world.fake, &id, 0);
    sleep(Duration::from_secs(70)).await;
    assert_eq!(world.ours().len(), 9);
    world.desire([(web.clone(), shared("0%", ready(1..=9)))]);
    world.never_empty(Duration::from_mins(5)).await;
    assert_eq!(world.ours().len(), 9, "at 0 % those that are registered stay while nobody else serves");
    run_tasks(&world.fake, &id, 1);
    world.never_empty(Duration::from_mins(5)).await;
    assert_eq!(world.ours(), [0_u32; 0]);
    run_tasks(&world.fake, &id, 0);
    sleep(Duration::from_mins(5)).await;
    assert_eq!(world.ours(), [0_u32; 0], "and none comes");
}

#[tokio::test(start_paused = true)]
async fn a_share_that_cannot_be_read_changes_nothing_even_for_a_new_leader() {
    let (world, web, _) = beside(3);
    world.desire([(web.clone(), shared("50%", ready(1..=9)))]);
    world.registered(&web, 3).await;
    let there = world.ours();
    world.desire([(web.clone(), shared("abc", ready(1..=9)))]);
    sleep(Duration::from_mins(5)).await;
    assert_eq!(world.ours(), there);
    assert_eq!(world.status(&web).share.unwrap().reached.asked, "50%".parse::<Share>().ok());
    let writes = world.writes();
    world.lead(false);
    sleep(Duration::from_secs(1)).await;
    let next = World::new(world.fake);
    next.desire([(web.clone(), shared("abc", ready(1..=9)))]);
    sleep(Duration::from_mins(5)).await;
    assert_eq!((next.ours(), next.writes()), (there, writes));
    assert_eq!(next.handle.figures().borrow().shares.asked, 5_000, "it counts as the share that stays");
    // A name that had no share keeps all of its pods.
    let api = target("shop", "api");
    next.desire([(api.clone(), active(specs("uid-1", "api", 1..=4, "a")))]);
    next.registered(&api, 4).await;
    next.desire([(
        api.clone(),
        TargetDesired { traffic: Traffic::Unclear, ..active(specs("uid-1", "api", 1..=5, "a")) },
    )]);
    next.registered(&api, 5).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_goes_on_with_the_same_pods() {
    let (world, web, _) = beside(4);
    world.desire([(web.clone(), shared("50%", ready(1..=6)))]);
    world.registered(&web, 4).await;
    world.desire([(web.clone(), shared("40%", ready(1..=9)))]);
    world.registered(&web, 2).await;
    // Until the operations of both that go have ended.
    sleep(Duration::from_secs(20)).await;
    let (there, writes) = (world.ours(), world.writes());
    assert_eq!(there.len(), 2);
    world.lead(false);
    sleep(Duration::from_secs(1)).await;
    let next = World::new(world.fake);
    next.desire([(web.clone(), shared("40%", ready(1..=9)))]);
    next.registered(&web, 2).await;
    sleep(Duration::from_mins(5)).await;
    assert_eq!((next.ours(), next.writes()), (there, writes));
}

#[tokio::test(start_paused = true)]
async fn pods_are_spread_over_zones_and_have_only_the_families_of_the_tasks() {
    let (world, web, id) = beside(3);
    let endpoint = |last: u8| Endpoint {
        zone: Some(["a", "a", "a", "b", "c"][usize::from(last % 5)].into()),
        ipv6: Some(std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into())),
        ..fixtures::mk_endpoint([10, 0, 0, last])
    };
    let (identity, key) = (identity("uid-1"), ServiceKey::new("shop", "web"));
    let source = Source { identity: &identity, service: &key, ports: &[], region: None };
    let only_v6 = Endpoint { ipv4: None, ..endpoint(99) };
    let endpoints: Vec<_> = (0..10).map(endpoint).chain([only_v6]).collect();
    let instances: Arc<[InstanceSpec]> = source.instances(&endpoints).unwrap().into();
    world.desire([(web.clone(), shared("50%", instances.clone()))]);
    let message = world.refused(&web, Reason::UnfitEndpoints).await;
    assert!(message.contains("1 of 4") && message.contains("no IP family of the instances"), "{message}");
    sleep(Duration::from_secs(5)).await;
    let ours =
        || -> Vec<_> { world.instances("web").into_iter().filter(|there| there.id.starts_with("k8s-")).collect() };
    let zones: BTreeSet<_> = ours().iter().map(|there| there.attributes["AVAILABILITY_ZONE"].clone()).collect();
    assert_eq!((ours().len(), zones.len()), (3, 3));
    assert!(ours().iter().all(|there| !there.attributes.contains_key("AWS_INSTANCE_IPV6")));
    assert!(ours().iter().all(|there| there.attributes["CLOUDMAP_MCS_PARTIAL"] == "true"));
    // The tasks have both now, so pods that have both do, too. One that has only IPv6 fits as well.
    for n in 1..=3 {
        let mut registry = world.fake.registry();
        let task = registry.instances.get_mut(&(id.clone(), ecs(n).id)).unwrap();
        task.insert("AWS_INSTANCE_IPV6".to_owned(), format!("fd00::9:{n}"));
    }
    sleep(Duration::from_secs(75)).await;
    assert!(ours().iter().all(|there| there.attributes.contains_key("AWS_INSTANCE_IPV6")));
    // Without a share, nothing of this is left.
    world.desire([(web.clone(), shared("all", instances))]);
    world.registered(&web, 11).await;
    sleep(Duration::from_secs(5)).await;
    assert!(ours().iter().all(|there| !there.attributes.contains_key("CLOUDMAP_MCS_PARTIAL")));
}

#[tokio::test(start_paused = true)]
async fn clusters_with_a_share_each_settle_and_take_over_together_if_the_tasks_are_gone() {
    let fake = Fake::new();
    let id = service(&fake);
    run_tasks(&fake, &id, 6);
    let web = target("shop", "web");
    let settings = |uid: &str| SyncSettings::new(identity(uid));
    let cluster = |uid: &str| World::with(fake.clone(), &Rates::default(), settings(uid));
    let (one, two) = (cluster("uid-1"), cluster("uid-2"));
    let desired = |uid: &str, share: &str| {
        let base = if uid == "uid-1" { 0 } else { 100 };
        [(web.clone(), shared(share, specs(uid, "web", base + 1..=base + 9, "a")))]
    };
    one.desire(desired("uid-1", "25%"));
    two.desire(desired("uid-2", "25%"));
    sleep(Duration::from_mins(30)).await;
    let counts = || {
        let all = one.ours();
        (all.iter().filter(|pod| **pod < 100).count(), all.iter().filter(|pod| **pod > 100).count())
    };
    let (a, b) = counts();
    let right = |share: &str, others: usize| share.parse::<Share>().unwrap().number(others).min(9);
    assert_eq!((a, b), (right("25%", 6 + b), right("25%", 6 + a)));
    assert!(a + b >= 4, "{a} and {b} beside 6 tasks");
    run_tasks(&fake, &id, 0);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(counts(), (9, 9));
    // Of two clusters that both go to 0 % at once, neither counts on the other.
    one.desire(desired("uid-1", "0%"));
    two.desire(desired("uid-2", "0%"));
    one.never_empty(Duration::from_mins(10)).await;
    run_tasks(&fake, &id, 1);
    one.never_empty(Duration::from_mins(10)).await;
    assert_eq!(counts(), (0, 0));
}

/// What happens to a name with a share.
#[derive(Debug, Clone)]
enum Step {
    Pods(BTreeSet<u32>),
    Share(u16),
    Tasks(u32),
    Fault(Operation, bool),
    NewLeader,
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let operation = prop::sample::select(vec![
        Operation::RegisterInstance,
        Operation::DeregisterInstance,
        Operation::GetOperation,
        Operation::ListInstances,
        Operation::GetInstancesHealthStatus,
    ]);
    prop_oneof![
        3 => prop::collection::btree_set(1_u32..12, 1..9).prop_map(Step::Pods),
        3 => prop::sample::select(vec![0_u16, 0, 5, 25, 40, 50, 75, 100]).prop_map(Step::Share),
        2 => (0_u32..6).prop_map(Step::Tasks),
        2 => (operation, any::<bool>()).prop_map(|(operation, lost)| Step::Fault(operation, lost)),
        1 => Just(Step::NewLeader),
        6 => (1_u16..40_000).prop_map(Step::Wait),
    ]
}

/// While no task runs, the name keeps an instance as long as one of its pods lives on.
async fn storm(steps: Vec<Step>) {
    let (mut world, web, id) = beside(2);
    let (mut alive, mut share, mut tasks): (BTreeSet<u32>, u16, u32) = ([1, 2, 3].into(), 50, 2);
    let mut last_task = Instant::now();
    let desired =
        |alive: &BTreeSet<u32>, share: u16| [(web.clone(), shared(&format!("{share}%"), ready(alive.iter().copied())))];
    world.desire(desired(&alive, share));
    for step in steps {
        match step {
            Step::Pods(pods) => alive = pods,
            Step::Share(asked) => share = asked,
            Step::Tasks(count) => {
                if tasks > 0 {
                    last_task = Instant::now();
                }
                tasks = count;
                run_tasks(&world.fake, &id, count);
            }
            Step::Fault(operation, lost) => {
                let kind = ErrorKind::Unknown;
                world.fake.fault(operation, if lost { Fault::Lost(kind) } else { Fault::Refused(kind) });
            }
            Step::NewLeader => {
                world.lead(false);
                sleep(Duration::from_secs(1)).await;
                world = World::new(world.fake.clone());
            }
            Step::Wait(ms) => {
                let end = Instant::now() + Duration::from_millis(ms.into());
                let mut before = world.ours();
                while Instant::now() < end {
                    sleep(Duration::from_millis(100)).await;
                    let now = world.ours();
                    let lived = before.iter().any(|pod| alive.contains(pod));
                    // What was decided by a reading that is half a minute old, and its operation.
                    let alone = tasks == 0 && last_task.elapsed() > Duration::from_mins(1);
                    assert!(!alone || !now.is_empty() || !lived, "{before:?} were withdrawn at {share} %");
                    before = now;
                }
            }
        }
        world.desire(desired(&alive, share));
    }
    world.fake.registry().faults.clear();
    sleep(Duration::from_mins(15)).await;
    let asked: Share = format!("{share}%").parse().unwrap();
    let count = world.ours().len();
    // k/(k+t) is the nearest from below, one above 0 %, and all where nobody else is.
    match (share, tasks) {
        (0, 0) => {}
        (_, 0) => assert_eq!(count, alive.len()),
        (0, _) => assert_eq!(count, 0),
        (share, tasks) => {
            let (share, tasks) = (usize::from(share), tasks as usize);
            let fits = |k: usize| 100 * k <= share * (k + tasks);
            let right = (1..=alive.len()).rev().find(|k| fits(*k)).unwrap_or(1);
            assert_eq!(count, right, "{asked} beside {tasks}, of {alive:?}");
        }
    }
    assert!(world.ours().iter().all(|pod| alive.contains(pod)));
    assert_eq!(world.instances("web").len(), count + tasks as usize, "the tasks are as they were");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn after_any_storm_the_share_is_the_nearest_from_below_and_no_step_empties_the_name(
        steps in prop::collection::vec(step(), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(storm(steps));
    }
}

#[tokio::test(start_paused = true)]
async fn a_share_changes_although_health_cannot_be_read_and_nothing_is_read_more_often() {
    let (world, web, _) = beside(6);
    world.desire([(web.clone(), shared("50%", ready([1, 2])))]);
    sleep(Duration::from_mins(2)).await;
    assert_eq!(world.ours().len(), 2);
    for _ in 0..10_000 {
        world.fake.fault(Operation::GetInstancesHealthStatus, Fault::Refused(ErrorKind::AccessDenied));
    }
    world.desire([(web.clone(), shared("10%", ready([1, 2])))]);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(world.ours().len(), 1);
    // The last one goes only when it is known that others are healthy.
    world.desire([(web.clone(), shared("0%", ready([1, 2])))]);
    sleep(Duration::from_mins(5)).await;
    assert_eq!(world.ours().len(), 1);
    let listings = || world.fake.registry().calls.iter().filter(|(call, _)| *call == Operation::ListInstances).count();
    let before = listings();
    sleep(Duration::from_hours(1)).await;
    assert!(listings() - before <= 100, "{} listings in an hour", listings() - before);
}

/// An import had the pods of the former choice alone, so that it was empty after a roll-out.
#[tokio::test(start_paused = true)]
async fn beside_nothing_that_can_be_read_no_pods_are_chosen() {
    let (world, web, _) = beside(3);
    world.desire([(web.clone(), shared("50%", ready(1..=9)))]);
    world.registered(&web, 3).await;
    for _ in 0..1_000 {
        world.fake.fault(Operation::CreateService, Fault::Refused(ErrorKind::AccessDenied));
    }
    {
        let mut registry = world.fake.registry();
        registry.instances.clear();
        registry.services.clear();
    }
    world.refused(&web, Reason::AccessDenied).await;
    world.desire([(web.clone(), shared("50%", ready(11..=19)))]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.status(&web).share, None);
    world.fake.registry().faults.clear();
    world.registered(&web, 9).await;
    assert_eq!(world.status(&web).share.unwrap().addresses.len(), 9);
}
