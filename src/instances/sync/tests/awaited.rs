//! Instances for which somebody waits.

use super::*;
use cloudmap::DnsConfig;

fn awaiting(instances: &Arc<[InstanceSpec]>) -> TargetDesired {
    let ids = instances.iter().map(|spec| spec.id().clone()).collect();
    TargetDesired { awaited: Arc::new(ids), ..active(Arc::clone(instances)) }
}

#[tokio::test(start_paused = true)]
async fn an_awaited_instance_is_registered_when_its_operation_has_succeeded() {
    let world = World::new(Fake::new());
    let (web, instances) = (target("shop", "web"), specs("uid-1", "web", [1, 2], "a"));
    world.desire([(web.clone(), active(Arc::clone(&instances)))]);
    world.registered(&web, 2).await;
    assert_eq!(world.status(&web).awaited, None, "nobody waits");

    let more = specs("uid-1", "web", [1, 2, 3], "a");
    world.fake.fault(Operation::RegisterInstance, Fault::FailedLater("INTERNAL_FAILURE"));
    world.desire([(web.clone(), awaiting(&more))]);
    let status = world.until(&web, |status| status.awaited.is_some()).await;
    let awaited = status.awaited.unwrap();
    assert_eq!((awaited.registered.len(), awaited.http_name.as_deref()), (2, Some("shop")));
    let all = |status: &TargetStatus| status.awaited.as_ref().is_some_and(|awaited| awaited.registered.len() == 3);
    world.until(&web, all).await;
    assert_eq!(world.instances("web").len(), 3);
    assert_eq!(world.count(Operation::RegisterInstance), 4, "one failed after it was accepted");

    // The next leader reads what the former one registered.
    let writes = world.writes();
    world.begin_term();
    sleep(Duration::from_mins(1)).await;
    world.until(&web, all).await;
    assert_eq!(world.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn an_awaited_instance_that_the_service_cannot_take_is_told_from_one_that_is_on_its_way() {
    let fake = Fake::new();
    let shop = fake.registry().add_namespace("shop", NamespaceKind::DnsPrivate);
    let id = fake.registry().add_service(&shop, "web", "theirs", "");
    let records = vec![cloudmap::DnsRecord { record_type: cloudmap::RecordType::A, ttl: 60 }];
    fake.registry().services.get_mut(&id).unwrap().dns = Some(DnsConfig { weighted: false, records });
    let (identity, service) = (identity("uid-1"), ServiceKey::new("shop", "web"));
    let source = Source { identity: &identity, service: &service, ports: &[], region: None };
    let six = Endpoint { ipv4: None, ipv6: Some("fd00::1".parse().unwrap()), ..fixtures::mk_endpoint(0) };
    let instances: Arc<[InstanceSpec]> = source.instances(&[fixtures::mk_endpoint(0x0a00_0001), six]).unwrap().into();
    let world = World::new(fake);
    let web = target("shop", "web");
    world.desire([(web.clone(), TargetDesired { consent: named(), ..awaiting(&instances) })]);
    world.refused(&web, Reason::UnfitEndpoints).await;
    let done = |status: &TargetStatus| status.awaited.as_ref().is_some_and(|awaited| awaited.registered.len() == 1);
    let awaited = world.until(&web, done).await.awaited.unwrap();
    assert_eq!(awaited.unfit.len(), 1);
    assert!(awaited.unfit.is_disjoint(&awaited.registered));
}

#[tokio::test(start_paused = true)]
async fn an_awaited_instance_that_the_service_cannot_take_is_not_one_that_a_share_leaves_out() {
    let fake = Fake::new();
    let service = shares::service(&fake);
    shares::run_tasks(&fake, &service, 2);
    let all = shares::ready(1..=3);
    fake.registry().instances.insert((service, all[0].id().clone()), ecs(9).attributes);
    let (world, web) = (World::new(fake), target("shop", "web"));
    let ids: BTreeSet<_> = all.iter().map(|spec| spec.id().clone()).collect();
    world.desire([(web.clone(), TargetDesired { awaited: Arc::new(ids), ..shares::shared("30%", all.clone()) })]);
    let done = |status: &TargetStatus| status.awaited.as_ref().is_some_and(|awaited| awaited.registered.len() == 1);
    let awaited = world.until(&web, done).await.awaited.unwrap();
    assert_eq!(awaited.unfit, [all[0].id().clone()].into());
    assert!(awaited.held_back.len() == 1 && awaited.held_back.is_disjoint(&awaited.unfit), "{awaited:?}");
}
