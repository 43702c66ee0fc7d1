//! Any order of changes, faults and leaders.

use proptest::prelude::*;

use super::*;

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
        TargetDesired { consent: named(), ..active(instances) }
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
