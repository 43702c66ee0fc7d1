//! Any order of changes, faults and leaders.

use proptest::prelude::*;

use super::*;

/// What the test does to a target.
#[derive(Debug, Clone)]
enum Step {
    Desire(BTreeSet<u32>, bool),
    /// These are not ready; all others are.
    Unready(BTreeSet<u32>),
    Retire,
    Fault(Operation, u8),
    Foreign(u32),
    Steal(u32),
    NewLeader,
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let addresses = proptest::collection::btree_set(1_u32..12, 0..8);
    let unready = proptest::collection::btree_set(1_u32..12, 0..4);
    let operation = prop::sample::select(vec![
        Operation::RegisterInstance,
        Operation::DeregisterInstance,
        Operation::GetOperation,
        Operation::ListInstances,
        Operation::ListServices,
        Operation::GetService,
        Operation::CreateService,
        Operation::DeleteService,
        Operation::UpdateInstanceCustomHealthStatus,
        Operation::GetInstancesHealthStatus,
    ]);
    prop_oneof![
        4 => (addresses, any::<bool>()).prop_map(|(addresses, zone)| Step::Desire(addresses, zone)),
        3 => unready.prop_map(Step::Unready),
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
        3 => Fault::FailedLater("INTERNAL_FAILURE"),
        4 => Fault::Refused(ErrorKind::AccessDenied),
        _ => Fault::Refused(ErrorKind::Duplicate { operation: None }),
    }
}

/// Foreign instances in a service that both sides use, with every write checked. `checked`: it has a custom health
/// check.
async fn storm(steps: Vec<Step>, checked: bool) {
    let fake = Fake::new();
    let web = target("shop", "web");
    let service = {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::Http);
        let web = registry.add_service(&ns, "web", "terraform", "");
        registry.services.get_mut(&web).unwrap().custom_health_check = checked;
        web
    };
    let foreign: Mutex<BTreeSet<Arc<str>>> = Mutex::default();
    let mut world = World::new(fake.clone());
    let named = |(addresses, zone, unready): &(BTreeSet<u32>, bool, BTreeSet<u32>)| {
        let pod = |&last: &u32| Endpoint {
            zone: Some(if *zone { "a" } else { "b" }.into()),
            conditions: Conditions { ready: !unready.contains(&last), ..Conditions::READY },
            ..fixtures::mk_endpoint(0x0a00_0000 + last)
        };
        let endpoints: Vec<_> = addresses.iter().map(pod).collect();
        let (identity, service) = (identity("uid-1"), ServiceKey::new("shop", "web"));
        let source = Source { identity: &identity, service: &service, ports: &[], region: None };
        TargetDesired { consent: named(), ..active(source.instances(&endpoints).unwrap().into()) }
    };
    let mut pods = (BTreeSet::new(), true, BTreeSet::new());
    let mut last = named(&pods);
    for step in steps {
        match step {
            Step::Desire(addresses, zone) => {
                pods = (addresses, zone, pods.2);
                last = named(&pods);
            }
            Step::Unready(unready) => {
                pods.2 = unready;
                last = named(&pods);
            }
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
                world.lead(false);
                sleep(Duration::from_secs(1)).await;
                world = World::new(fake.clone());
            }
            Step::Wait(ms) => sleep(Duration::from_millis(ms.into())).await,
        }
        world.desire([(web.clone(), last.clone())]);
    }
    fake.registry().faults.clear();
    sleep(Duration::from_mins(10)).await;

    let mut there: BTreeSet<_> = world.instances("web").into_iter().map(|instance| instance.id).collect();
    let foreign = foreign.into_inner().unwrap();
    assert!(foreign.is_subset(&there), "{foreign:?} of {there:?}");
    there.retain(|id| !foreign.contains(id));
    let wanted = |only_ready: bool| -> BTreeSet<_> {
        last.instances.iter().filter(|spec| spec.is_ready() || !only_ready).map(|spec| spec.id().clone()).collect()
    };
    // Instances that are not ready stay behind a health check, if they were ready once.
    assert!(wanted(true).is_subset(&there) && there.is_subset(&wanted(!checked)), "{there:?} of {:?}", last.instances);
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
        let mut attributes = attributes.clone();
        assert_eq!(attributes.remove("AWS_INIT_HEALTH_STATUS").is_some(), checked);
        assert_eq!(attributes, spec.render(crate::attributes::ServiceTraits::default()).attributes);
        let healthy = !registry.unhealthy.contains(&(service.clone(), id.clone()));
        assert_eq!(healthy, spec.is_ready(), "{id}");
    }
    drop(registry);
    let status = world.status(&web);
    if last.retiring {
        assert!(status.own_gone, "{status:?}");
    } else {
        assert_eq!(status.outcome, Outcome::Registered { count: there.len() });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]
    #[test]
    fn converges_after_any_storm_and_never_touches_foreign_instances(
        steps in proptest::collection::vec(step(), 1..30),
        checked in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(storm(steps, checked));
    }
}
