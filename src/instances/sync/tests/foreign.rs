//! Ids that somebody else uses, before, while and after they are desired.

use super::*;
use crate::attributes::ServiceTraits;
use cloudmap::{Write as _, fake::permit};

/// An instance of another cluster, with an id that ours can have, too.
fn squatter(last: u32) -> Instance {
    let id = specs("uid-1", "web", [last], "a")[0].id().clone();
    Instance { id, attributes: specs("uid-2", "web", [last], "a")[0].render(ServiceTraits::default()).attributes }
}

fn squat(world: &World, last: u32) {
    let (service, Instance { id, attributes }) = (world.service("web").id, squatter(last));
    world.fake.registry().instances.insert((service, id), attributes);
}

#[tokio::test(start_paused = true)]
async fn an_id_that_was_foreign_before_it_was_desired_is_never_written_until_it_is_free() {
    let world = World::new(Fake::new());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    world.registered(&web, 2).await;
    squat(&world, 3);
    sleep(Duration::from_mins(1)).await;
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    let message = world.refused(&web, Reason::UnfitEndpoints).await;
    assert!(message.contains("somebody else"), "{message}");
    sleep(Duration::from_mins(5)).await;
    assert!(world.instances("web").contains(&squatter(3)));

    let key = (world.service("web").id, squatter(3).id);
    world.fake.registry().instances.remove(&key);
    world.registered(&web, 3).await;
}

#[tokio::test(start_paused = true)]
async fn an_id_that_became_foreign_while_a_write_had_no_answer_is_not_deregistered() {
    let fake = Fake::new();
    let world = World::new(fake.clone());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    world.registered(&web, 2).await;
    for _ in 0..10 {
        fake.fault(Operation::RegisterInstance, Fault::Refused(ErrorKind::Unknown));
    }
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=3, "a")))]);
    world.refused(&web, Reason::Failed).await;
    squat(&world, 3);
    // A drift check sees it.
    sleep(Duration::from_secs(55)).await;
    fake.registry().faults.clear();
    world.desire([(web.clone(), retiring())]);
    world.until(&web, |status| status.own_gone).await;
    assert_eq!(world.instances("web"), [squatter(3)]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_somebody_registers_at_the_same_moment_is_read_before_it_is_written() {
    let fake = Fake::new();
    let world = World::new(fake.clone());
    let web = target("shop", "web");
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    world.registered(&web, 2).await;
    let service = world.service("web").id;
    fake.register_instance(&permit(), &service, &squatter(3), Lane::Instances).await.unwrap();
    world.desire([(web.clone(), active(specs("uid-1", "web", 1..=4, "a")))]);
    let message = world.refused(&web, Reason::UnfitEndpoints).await;
    assert!(message.contains("1 of 4"), "{message}");
    sleep(Duration::from_mins(5)).await;
    assert!(world.instances("web").contains(&squatter(3)));
    assert_eq!(world.status(&web).registered, 3);

    // A request of the previous leader is ours, and as desired.
    fake.register_instance(
        &permit(),
        &service,
        &specs("uid-1", "web", [5], "a")[0].render(ServiceTraits::default()),
        Lane::Instances,
    )
    .await
    .unwrap();
    world.desire([(web.clone(), active(specs("uid-1", "web", [1, 2, 4, 5], "a")))]);
    world.registered(&web, 4).await;
    assert_eq!(world.instances("web").len(), 5);
}
