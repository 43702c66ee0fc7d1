//! Hidden tasks: recorded, marked as unhealthy, and marked as healthy again.

use std::sync::atomic::Ordering;

use super::{
    shares::{ready, run_tasks, service, shared},
    *,
};
use cloudmap::attributes::CLUSTER_UID;

const NOT_READY: Conditions = Conditions { ready: false, serving: false, terminating: false };
/// Until AWS shows marks, a reading sees it, and what follows was done.
const LONG: Duration = Duration::from_mins(4);

fn hiding(share: &str, instances: Arc<[InstanceSpec]>) -> TargetDesired {
    TargetDesired { hide_tasks: true, ..shared(share, instances) }
}

/// A world with so many tasks, and two pods that have a share.
fn world(tasks: u32, share: &str) -> (World, Target, Arc<str>) {
    let fake = Fake::new();
    let id = service(&fake);
    run_tasks(&fake, &id, tasks);
    let (world, web) = (World::new(fake), target("shop", "web"));
    world.desire([(web.clone(), hiding(share, ready([1, 2])))]);
    (world, web, id)
}

impl World {
    /// The numbers of the tasks that clients do not find.
    fn ill(&self) -> Vec<u32> {
        let registry = self.fake.registry();
        let ill = registry.unhealthy.iter().filter(|key| registry.instances.contains_key(key));
        let tasks = ill.filter(|(_, id)| !id.starts_with("k8s-"));
        tasks.map(|(_, id)| u32::from_str_radix(id, 16).unwrap_or(u32::MAX)).collect()
    }

    /// The numbers of the tasks in the record, in its order.
    fn record(&self) -> Vec<u32> {
        let stored = self.hidden.0.lock().unwrap();
        stored.0.values().flatten().map(|id| u32::from_str_radix(id, 16).unwrap_or(u32::MAX)).collect()
    }

    /// The ids of others that were marked.
    fn marked(&self) -> Vec<String> {
        let registry = self.fake.registry();
        let marks = registry.calls.iter().filter(|(call, _)| *call == Operation::UpdateInstanceCustomHealthStatus);
        marks.map(|(_, id)| id.clone()).filter(|id| !id.starts_with("k8s-")).collect()
    }

    /// Number of instances that clients find.
    fn found(&self) -> usize {
        let registry = self.fake.registry();
        registry.instances.keys().filter(|key| !registry.unhealthy.contains(*key)).count()
    }

    /// Waits, and looks all the time that nothing is marked that was never recorded, and that clients find something.
    async fn watch(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut recorded: BTreeSet<String> = BTreeSet::new();
        let before = self.marked().len();
        while Instant::now() < end {
            recorded.extend(self.hidden.0.lock().unwrap().0.values().flatten().map(ToString::to_string));
            for id in self.marked().into_iter().skip(before) {
                assert!(recorded.contains(&id), "{id} was marked and not recorded before");
            }
            assert!(self.found() > 0, "clients find nothing");
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn tasks(&self, target: &Target) -> TargetTasks {
        self.status(target).share.unwrap().tasks.unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_are_hidden_as_far_as_the_share_needs_it_and_shown_before_pods_go() {
    let (world, web, _) = world(6, "25%");
    world.watch(LONG).await;
    assert_eq!((world.ours().len(), world.ill(), world.marked().len()), (2, vec![], 0), "the share is within reach");
    for (share, hidden, others) in [("50%", 4, 2), ("100%", 6, 0), ("50%", 4, 2), ("60%", 4, 2), ("90%", 5, 1)] {
        world.desire([(web.clone(), hiding(share, ready([1, 2])))]);
        world.watch(LONG).await;
        let expected: Vec<u32> = (1..=hidden).collect();
        assert_eq!((world.ours().len(), world.ill(), world.record()), (2, expected.clone(), expected), "{share}");
        let said = world.status(&web).share.unwrap();
        assert_eq!((said.reached.others, said.reached.hidden), (others, usize::try_from(hidden).unwrap()), "{share}");
        assert!(said.complete && !said.reached.is_limited(), "{share}: {said:?}");
    }
    world.desire([(web.clone(), hiding("0%", ready([1, 2])))]);
    sleep(Duration::from_secs(20)).await;
    assert_eq!((world.ours().len(), world.ill().len()), (2, 5), "AWS has not shown them yet, so no pod goes");
    world.watch(LONG).await;
    assert_eq!((world.ours(), world.ill(), world.record()), (vec![], vec![], vec![]));
    let said = world.status(&web).share.unwrap();
    assert!(said.complete && said.reached.others == 6, "{said:?}");
    let marks = world.marked().len();
    world.watch(Duration::from_mins(20)).await;
    assert_eq!(world.marked().len(), marks, "at rest nothing is marked");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_hidden_that_is_not_recorded_and_the_pods_are_registered_all_the_same() {
    let (world, web, _) = world(3, "100%");
    world.hidden.1.store(true, Ordering::SeqCst);
    world.watch(LONG).await;
    assert_eq!((world.ours().len(), world.marked().len()), (2, 0));
    let TargetTasks { trouble, to_hide, .. } = world.tasks(&web);
    assert_eq!((trouble.unwrap().0, to_hide), (HidingTrouble::NotRecorded, 3));
    assert!(world.status(&web).share.unwrap().complete, "the steps go on");
    world.hidden.1.store(false, Ordering::SeqCst);
    world.watch(LONG).await;
    assert_eq!(world.ill(), [1, 2, 3]);
    assert_eq!(world.tasks(&web).trouble, None);
}

#[tokio::test(start_paused = true)]
async fn only_healthy_ecs_tasks_of_others_are_hidden() {
    let (world, web, id) = world(2, "100%");
    {
        let mut registry = world.fake.registry();
        let mut add = |name: &str, more: &[(&str, &str)]| {
            let attributes = [("AWS_INSTANCE_IPV4", "10.8.0.1")].iter().chain(more);
            let attributes = attributes.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            registry.instances.insert((id.clone(), name.into()), attributes);
        };
        add("terraform", &[]);
        add("other-cluster", &[("ECS_SERVICE_NAME", "web"), (CLUSTER_UID, "uid-2")]);
        add("ill-by-itself", &[("ECS_SERVICE_NAME", "web")]);
        registry.unhealthy.insert((id.clone(), "ill-by-itself".into()));
    }
    world.watch(LONG).await;
    assert_eq!(world.record(), [1, 2]);
    let marked: BTreeSet<_> = world.marked().into_iter().collect();
    assert_eq!(marked, [ecs(1).id.to_string(), ecs(2).id.to_string()].into());
    world.desire([(web.clone(), shared("100%", ready([1, 2])))]);
    world.watch(LONG).await;
    assert_eq!(world.ill(), [u32::MAX], "what is ill by itself stays so");
    assert_eq!(world.record(), [0_u32; 0]);
}

#[tokio::test(start_paused = true)]
async fn without_a_custom_health_check_nothing_is_hidden() {
    let fake = Fake::new();
    let id = service(&fake);
    run_tasks(&fake, &id, 3);
    fake.registry().services.get_mut(&id).unwrap().custom_health_check = false;
    let (world, web) = (World::new(fake), target("shop", "web"));
    world.desire([(web.clone(), hiding("100%", ready([1, 2])))]);
    world.watch(LONG).await;
    assert_eq!((world.marked().len(), world.record().len(), world.ours().len()), (0, 0, 2));
    assert_eq!(world.tasks(&web).trouble.unwrap().0, HidingTrouble::NoHealthCheck);
    assert!(world.status(&web).share.unwrap().complete);
}

#[tokio::test(start_paused = true)]
async fn without_a_healthy_pod_no_task_is_hidden() {
    let (world, web, _) = world(3, "100%");
    let pods = |conditions| pods("web", &[(1, conditions), (2, conditions)]);
    world.desire([(web.clone(), hiding("100%", pods(NOT_READY)))]);
    sleep(LONG).await;
    assert_eq!((world.marked().len(), world.record().len()), (0, 0));
    world.desire([(web.clone(), hiding("100%", pods(Conditions::READY)))]);
    sleep(LONG).await;
    assert_eq!(world.ill(), [1, 2, 3]);
    world.desire([(web.clone(), hiding("100%", pods(NOT_READY)))]);
    sleep(Duration::from_secs(35)).await;
    assert_eq!(world.ill(), [0_u32; 0], "all pods failed, so the tasks are shown at once");
    sleep(LONG).await;
    assert_eq!(world.record(), [0_u32; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_ready_and_not_in_turn_hides_no_task_and_shows_none() {
    let (world, web, _) = world(6, "50%");
    world.watch(LONG).await;
    assert_eq!(world.ill(), [1, 2, 3, 4]);
    let marks = world.marked().len();
    for conditions in [NOT_READY, Conditions::READY].repeat(20) {
        let pods = pods("web", &[(1, Conditions::READY), (2, conditions)]);
        world.desire([(web.clone(), hiding("50%", pods))]);
        world.watch(Duration::from_secs(5)).await;
    }
    world.watch(LONG).await;
    assert_eq!((world.ill(), world.marked().len()), (vec![1, 2, 3, 4], marks));
    world.desire([(web.clone(), hiding("50%", ready([1])))]);
    world.watch(LONG).await;
    assert_eq!(world.ill(), [1, 2, 3, 4, 5], "it is gone");
}

#[tokio::test(start_paused = true)]
async fn new_tasks_and_those_that_ecs_brings_back_are_hidden_and_gone_ones_forgotten() {
    let (world, web, id) = world(3, "100%");
    world.watch(LONG).await;
    assert_eq!(world.ill(), [1, 2, 3]);
    world.fake.registry().unhealthy.remove(&(id.clone(), ecs(2).id));
    world.fake.registry().instances.insert((id.clone(), ecs(4).id), ecs(4).attributes);
    world.watch(LONG).await;
    assert_eq!((world.ill(), world.record()), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
    let marks = world.marked().len();
    world.fake.registry().instances.remove(&(id.clone(), ecs(1).id));
    world.watch(LONG).await;
    assert_eq!((world.record(), world.marked().len()), (vec![2, 3, 4], marks));
    run_tasks(&world.fake, &id, 0);
    world.watch(LONG).await;
    assert_eq!((world.record(), world.marked().len()), (vec![], marks), "ECS stopped them");
    assert_eq!(world.status(&web).share.unwrap().reached.hidden, 0);
}

#[tokio::test(start_paused = true)]
async fn the_record_is_all_that_a_new_leader_needs() {
    let (world, web, _) = world(3, "100%");
    world.watch(LONG).await;
    let marks = world.marked().len();
    world.begin_term();
    world.watch(LONG).await;
    assert_eq!((world.ill(), world.marked().len()), (vec![1, 2, 3], marks), "what is hidden stays so");
    world.begin_term();
    world.desire([(web.clone(), shared("100%", ready([1, 2])))]);
    world.watch(LONG).await;
    assert_eq!((world.ill(), world.record()), (vec![], vec![]), "and is shown if nobody wants it hidden");
}

/// The user may be about to stop them. Whoever goes back needs them.
#[tokio::test(start_paused = true)]
async fn a_new_leader_that_cannot_read_a_service_leaves_its_tasks_hidden_until_the_way_back() {
    for operation in [Operation::ListNamespaces, Operation::ListServices, Operation::ListInstances] {
        let (world, web, _) = world(3, "100%");
        world.watch(LONG).await;
        for _ in 0..1_000 {
            world.fake.fault(operation, Fault::Refused(ErrorKind::AccessDenied));
        }
        world.begin_term();
        world.watch(LONG).await;
        assert_eq!((world.ill(), world.record()), (vec![1, 2, 3], vec![1, 2, 3]), "{operation}");
        world.desire([(web, hiding("0%", ready([1, 2])))]);
        world.watch(LONG).await;
        assert_eq!((world.ill(), world.record()), (vec![], vec![]), "{operation}");
        assert_eq!(world.ours(), [1, 2], "{operation}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_that_retires_shows_its_tasks_before_its_instances_go() {
    let (world, web, _) = world(3, "100%");
    world.watch(LONG).await;
    world.desire([(web.clone(), retiring())]);
    sleep(Duration::from_secs(20)).await;
    assert_eq!((world.ours().len(), world.ill().len()), (2, 3), "AWS has not shown them yet");
    world.watch(LONG).await;
    assert_eq!((world.ours(), world.ill(), world.record()), (vec![], vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn tasks_of_a_target_that_nobody_has_any_more_are_shown() {
    let (world, _, _) = world(3, "100%");
    world.watch(LONG).await;
    world.desire([]);
    world.watch(LONG).await;
    assert_eq!((world.ours().len(), world.ill(), world.record()), (2, vec![], vec![]));
}

/// They are still hidden where they are.
#[tokio::test(start_paused = true)]
async fn tasks_stay_recorded_in_another_account_or_region_and_are_shown_after_the_way_back() {
    let (world, _, _) = world(3, "100%");
    world.watch(LONG).await;
    let (services, instances) = {
        let mut registry = world.fake.registry();
        (std::mem::take(&mut registry.services), std::mem::take(&mut registry.instances))
    };
    world.begin_term();
    world.desire([]);
    sleep(LONG).await;
    assert_eq!(world.record(), [1, 2, 3]);
    {
        let mut registry = world.fake.registry();
        (registry.services, registry.instances) = (services, instances);
    }
    assert_eq!(world.ill(), [1, 2, 3]);
    sleep(LONG).await;
    assert_eq!((world.ill(), world.record()), (vec![], vec![]));
}

/// An earlier leader hid it.
#[tokio::test(start_paused = true)]
async fn a_task_that_is_gone_from_a_service_that_no_target_has_is_forgotten() {
    let (world, _, id) = world(3, "100%");
    world.watch(LONG).await;
    run_tasks(&world.fake, &id, 0);
    world.begin_term();
    world.desire([]);
    sleep(LONG).await;
    assert_eq!(world.record(), [0_u32; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_denied_mark_is_reported_and_tried_again_after_a_minute() {
    let fake = Fake::new();
    let id = service(&fake);
    run_tasks(&fake, &id, 3);
    for _ in 0..3 {
        fake.fault(Operation::UpdateInstanceCustomHealthStatus, Fault::Refused(ErrorKind::AccessDenied));
    }
    let (world, web) = (World::new(fake), target("shop", "web"));
    world.desire([(web.clone(), hiding("100%", ready([1, 2])))]);
    world.watch(Duration::from_secs(30)).await;
    assert_eq!(world.tasks(&web).trouble.unwrap().0, HidingTrouble::AccessDenied);
    assert_eq!((world.ours().len(), world.marked().len()), (2, 3));
    world.watch(LONG).await;
    assert_eq!((world.ill(), world.tasks(&web).trouble), (vec![1, 2, 3], None));
}

/// AWS denies to show the tasks, so one pod stays at 0 %.
#[tokio::test(start_paused = true)]
async fn at_zero_another_pod_takes_the_place_of_the_last_one_while_no_task_is_visible() {
    let (world, web, _) = world(3, "100%");
    world.watch(LONG).await;
    for _ in 0..1_000 {
        world.fake.fault(Operation::UpdateInstanceCustomHealthStatus, Fault::Refused(ErrorKind::AccessDenied));
    }
    world.desire([(web.clone(), hiding("0%", ready([1, 2])))]);
    world.watch(2 * LONG).await;
    let ours = world.ours();
    assert!(matches!(*ours, [1 | 2]), "{ours:?}");
    // A roll-out.
    world.desire([(web.clone(), hiding("0%", ready([3, 4])))]);
    world.watch(LONG).await;
    let ours = world.ours();
    assert!(matches!(*ours, [3 | 4]), "{ours:?}");
}

/// The call that hides a task had no answer, and may take effect later.
#[tokio::test(start_paused = true)]
async fn a_task_is_released_only_when_nothing_can_hide_it_any_more() {
    let (world, web, _) = world(1, "0%");
    world.watch(Duration::from_mins(1)).await;
    world.fake.fault(Operation::UpdateInstanceCustomHealthStatus, Fault::Lost(ErrorKind::Unknown));
    world.desire([(web.clone(), hiding("100%", ready([1, 2])))]);
    while world.marked().is_empty() {
        sleep(Duration::from_millis(20)).await;
    }
    let began = Instant::now();
    world.desire([(web.clone(), hiding("0%", ready([1, 2])))]);
    while !world.record().is_empty() {
        assert!(began.elapsed() < Duration::from_mins(5), "{:?}", world.record());
        sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() >= Duration::from_secs(55), "{:?}", began.elapsed());
    assert_eq!(world.ill(), [0_u32; 0]);
}

/// AWS shows marks after half a minute. Until then the readings say that the tasks are ill, and they are not.
#[tokio::test(start_paused = true)]
async fn tasks_that_are_being_shown_count_and_the_pods_follow_them() {
    let (world, web, _) = world(3, "100%");
    world.watch(LONG).await;
    world.desire([(web.clone(), hiding("0%", ready([1, 2])))]);
    let began = Instant::now();
    while !world.ours().is_empty() {
        let reached = world.status(&web).share.unwrap().reached;
        assert_eq!(reached.others + reached.hidden, 3, "after {:?}: {reached:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(90), "the pods stay too long");
        world.watch(Duration::from_millis(200)).await;
    }
    assert_eq!(world.ill(), [0_u32; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_way_back_needs_no_health() {
    let (world, web, _) = world(3, "100%");
    world.watch(LONG).await;
    for _ in 0..1_000 {
        world.fake.fault(Operation::GetInstancesHealthStatus, Fault::Refused(ErrorKind::AccessDenied));
    }
    world.begin_term();
    world.desire([(web.clone(), hiding("0%", ready([1, 2])))]);
    world.watch(LONG).await;
    assert_eq!((world.ill(), world.record()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_marked_and_is_gone_is_forgotten() {
    let fake = Fake::new();
    let id = service(&fake);
    run_tasks(&fake, &id, 1);
    for _ in 0..1_000 {
        fake.fault(Operation::UpdateInstanceCustomHealthStatus, Fault::Refused(ErrorKind::Other));
    }
    let (world, web) = (World::new(fake), target("shop", "web"));
    world.desire([(web.clone(), hiding("100%", ready([1, 2])))]);
    world.watch(LONG).await;
    assert_eq!(world.tasks(&web).trouble.unwrap().0, HidingTrouble::Failed);
    run_tasks(&world.fake, &id, 0);
    world.watch(LONG).await;
    assert_eq!((world.tasks(&web).trouble, world.record()), (None, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_deleted_is_written_again_and_its_tasks_are_shown() {
    for after_a_task_came in [false, true] {
        let (world, web, id) = world(3, "100%");
        world.watch(LONG).await;
        *world.hidden.0.lock().unwrap() = Default::default();
        if after_a_task_came {
            world.fake.registry().instances.insert((id.clone(), ecs(4).id), ecs(4).attributes);
            sleep(LONG).await;
            assert_eq!((world.ill(), world.record().len()), (vec![1, 2, 3, 4], 4));
        }
        world.desire([(web.clone(), hiding("0%", ready([1, 2])))]);
        sleep(LONG).await;
        assert_eq!((world.ill(), world.record()), (vec![], vec![]), "{after_a_task_came}");
    }
}
