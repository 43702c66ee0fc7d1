//! Imports from a namespace that another account shares (AWS RAM).

use super::*;

const OWNER: &str = "444455556666";

#[tokio::test(start_paused = true)]
async fn what_another_account_shares_is_imported_by_its_arn_and_stays_while_it_is_not_shared() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    let arn = world.fake.registry().add_shared("internal", OWNER);
    let orders = world.fake.registry().add_service(&arn, "orders", "terraform", "");
    let [own] = world.foreign("internal", &["orders"]).try_into().unwrap();
    world.task(&orders, "10.9.0.1", Some(8080));
    world.task(&own, "10.9.0.9", Some(8080));
    // A name means an own namespace, as ever.
    blue.import_from(Some("internal"));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.9:8080"]).await;
    blue.import_from(Some(&arn));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080"]).await;
    // Instances of this ClusterSet are no endpoints, whoever owns the service.
    let ours =
        [("AWS_INSTANCE_IPV4", "10.9.0.7"), ("CLOUDMAP_MCS_CLUSTERSET", "prod"), ("CLOUDMAP_MCS_CLUSTER_UID", "x")];
    world.add_instance(&orders, "ours", &ours);
    world.add_instance(&orders, "vm", &[("AWS_INSTANCE_IPV4", "10.9.0.2"), ("AWS_INSTANCE_PORT", "8080")]);
    let id = arn.rsplit('/').next().unwrap();
    let vm = format!("cloudmap-{id} 10.9.0.2:8080");
    let both = [vm.as_str(), "ecs-prod 10.9.0.1:8080"];
    blue.until_endpoints("orders", &both).await;
    let before = blue.uids("orders");

    // The owner ends the sharing: nothing goes, not even with the next leader, and the user is told.
    blue.objects.take_notes();
    world.fake.registry().unshared.insert(arn.clone());
    let mut notes = Vec::new();
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        notes.extend(blue.notes("ImportFailed"));
    }
    let [note] = notes.as_slice() else { panic!("{notes:?}") };
    let words = [&*arn, "AWS RAM", "accepts the invitation", "What was imported from it stays"];
    assert!(note.starts_with("Namespace: ") && words.iter().all(|words| note.contains(words)), "{note}");
    blue.kill();
    blue.lead();
    always("the imports stay", Duration::from_mins(10), || blue.uids("orders") == before).await;
    blue.until_endpoints("orders", &both).await;
    assert!(!blue.notes("ImportFailed").is_empty(), "the next leader tells it, too");

    // It is shared again, with another task by now.
    world.stop_task(&orders, "10.9.0.1");
    world.task(&orders, "10.9.0.3", Some(8080));
    world.fake.registry().unshared.clear();
    let both = [vm.as_str(), "ecs-prod 10.9.0.3:8080"];
    blue.until_endpoints("orders", &both).await;
    assert_eq!(blue.uids("orders")[..2], before[..2], "the import and its Service");

    // What others see of it does not say whose it is.
    let seen = format!("{:?} {:?}", blue.objects.import(&key("orders")), blue.slices("orders").collect::<Vec<_>>());
    assert!(!seen.contains(OWNER), "{seen}");
    world.fake.registry().services.remove(&orders);
    until("it goes with its service", || blue.is_clean("orders")).await;
}

#[tokio::test(start_paused = true)]
async fn an_own_and_a_shared_namespace_of_one_name_are_imported_side_by_side() {
    let world = World::new();
    let blue = world.cluster("blue");
    let arn = world.fake.registry().add_shared("internal", OWNER);
    let shared = world.fake.registry().add_service(&arn, "orders", "terraform", "");
    let [own] = world.foreign("internal", &["orders"]).try_into().unwrap();
    world.task(&shared, "10.9.0.1", Some(8080));
    world.task(&own, "10.9.0.2", Some(8080));
    blue.import_from(Some(&format!("internal,{arn}")));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080", "ecs-prod 10.9.0.2:8080"]).await;
    blue.import_from(Some("internal"));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.2:8080"]).await;
    blue.import_from(Some("arn:aws:servicediscovery:us-east-1:1:namespace/ns-1"));
    until("an ARN that is none is told", || !blue.notes("InvalidAnnotation").is_empty()).await;
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.2:8080"]).await;
}
