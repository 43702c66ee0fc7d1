//! W0 and R2: whose an id is, and how little is asked to find out.

use super::*;
use crate::{
    record::{Member, Record},
    trust::StoredKey,
};
use cloudmap::{ErrorKind, Limited, Limits, Rates, fake::Fault};

#[tokio::test(start_paused = true)]
async fn who_does_not_own_the_id_writes_nothing_and_says_whose_it_is() {
    let cloudmap = Fake::new();
    let owner = start(&cloudmap, "blue", "uid-1");
    owner.desired().send_replace(Some(state(1)));
    let mut published = owner.published();
    published.wait_for(Option::is_some).await.unwrap();
    let second = start(&cloudmap, "blue", "uid-2");
    second.desired().send_replace(Some(state(2)));
    let refused = Stage::Refused { owner: "uid-1".to_owned() };
    let mut status = second.status();
    let said = tokio::time::timeout(Duration::from_mins(1), status.wait_for(|status| status.stage == refused)).await;
    drop(said.unwrap().unwrap());
    assert!(second.published().borrow().is_none());
    sees(&second, "blue", &state(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_creates_nothing_that_is_there() {
    let cloudmap = Fake::new();
    let blue = start(&cloudmap, "blue", "uid-blue");
    publish(&blue, &state(400)).await;
    drop(blue);
    let made = cloudmap.registry().count(Operation::CreateService);
    assert_eq!(made, 2);
    let blue = start(&cloudmap, "blue", "uid-blue");
    publish(&blue, &state(401)).await;
    tokio::time::sleep(Duration::from_mins(3)).await;
    let registry = cloudmap.registry();
    assert_eq!(registry.count(Operation::CreateService), made);
    assert_eq!(registry.count(Operation::CreateHttpNamespace), 1);
    assert_eq!(registry.count(Operation::TagResource), 0);
}

/// With many services in the account, a listing takes seconds (W0).
/// AWS allows one listing in two seconds, and others read a registry that has no ledger yet.
#[tokio::test(start_paused = true)]
async fn whoever_founds_a_ledger_lists_the_namespaces_before_and_after() {
    let cloudmap = Fake::new();
    let blue = start(&cloudmap, "blue", "uid-blue");
    publish(&blue, &state(1)).await;
    assert_eq!(cloudmap.registry().count(Operation::ListNamespaces), 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_finds_the_services_of_the_one_before_without_a_listing() {
    let cloudmap = Fake::new();
    let record = Arc::<Stored>::default();
    let blue = start_with(&cloudmap, "blue", "uid-blue", Arc::clone(&record));
    publish(&blue, &state(400)).await;
    drop(blue);
    let listings = || cloudmap.registry().count(Operation::ListServices);
    let before = listings();
    let blue = start_with(&cloudmap, "blue", "uid-blue", record);
    publish(&blue, &state(401)).await;
    assert_eq!(listings(), before);
    // An audit looks whether there are further services.
    tokio::time::sleep(Duration::from_mins(6)).await;
    assert_eq!(listings(), before);
}

/// All clusters of an account share two listed pages a second (W0, R2).
#[tokio::test(start_paused = true)]
async fn a_new_cluster_claims_its_id_and_is_believed_without_a_listing() {
    let (cloudmap, network) = (Fake::new(), sessions::tests::World::default());
    let blue = connect(&cloudmap, &network, "blue", 1);
    publish(&blue, &state(1)).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let listings = || cloudmap.registry().count(Operation::ListServices);
    let before = listings();
    let green = connect(&cloudmap, &network, "green", 2);
    publish(&green, &state(2)).await;
    sees(&green, "blue", &state(1)).await;
    sees(&blue, "green", &state(2)).await;
    assert_eq!(listings(), before);
    let named = |name: &str| cloudmap.registry().services.values().filter(|service| *service.name == *name).count();
    assert_eq!([CLUSTERS, "exports-0.blue", "exports-0.green"].map(named), [1; 3]);
}

/// What is announced may be wrong: only the service with the cluster's name says who created it (R2).
#[tokio::test(start_paused = true)]
async fn a_service_that_is_announced_must_have_the_name() {
    let cloudmap = Fake::new();
    let namespace = cloudmap.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
    let add = |name: &str, uid: &str| cloudmap.registry().add_service(&namespace, name, uid, "").to_string();
    let [pages, other] = ["blue", "red"].map(|id| add(&format!("exports-0.{id}"), &format!("uid-{id}")));
    let keys = Keys { current: sessions::tests::key(1), former: Vec::new() };
    let mut key = keys.to_instance();
    key.attributes.insert(trust::SERVICE.to_owned(), other);
    cloudmap.registry().instances.insert((pages.into(), key.id), key.attributes);
    let registry = Registry::new(Arc::new(cloudmap.clone()), &"prod".parse().unwrap());
    registry.find_namespace().await.unwrap();
    registry.announced("blue", "uid-blue").await.unwrap().unwrap();
    assert_eq!(registry.creator("blue").await.unwrap().map(|creator| creator.by).as_deref(), Some("uid-blue"));
}

/// A role may be allowed to create only the cluster's own services (W0).
#[tokio::test(start_paused = true)]
async fn a_new_cluster_that_may_not_create_what_is_there_lists() {
    let cloudmap = Fake::new();
    publish(&start(&cloudmap, "blue", "uid-blue"), &state(1)).await;
    cloudmap.fault(Operation::CreateService, Fault::Refused(ErrorKind::AccessDenied));
    publish(&start(&cloudmap, "green", "uid-green"), &state(1)).await;
}

/// A leader may end after it claimed a service and before it stores the record again.
#[tokio::test(start_paused = true)]
async fn a_service_that_the_record_lacks_is_found_by_a_listing() {
    let cloudmap = Fake::new();
    let namespace = cloudmap.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
    let add = |name: &str| cloudmap.registry().add_service(&namespace, name, "uid-blue", "").to_string();
    let member = Member { clusterset: "prod".to_owned(), cluster: "blue".to_owned() };
    let services = [CLUSTERS, "exports-0.blue"].map(|name| (name.to_owned(), add(name)));
    let record = Record { member: Some(member), services: services.into(), ..Record::default() };
    let claim = async || {
        let registry = Registry::new(Arc::new(cloudmap.clone()), &"prod".parse().unwrap())
            .owned_by(&"blue".parse().unwrap(), "uid-blue");
        registry.remember(&record).await;
        registry.claim(&permit(), 0).await.unwrap()
    };
    let claimed = claim().await;
    assert!(matches!(claimed, Outcome::Claimed { created: false, shards: 1 }), "{claimed:?}");
    assert_eq!(cloudmap.registry().count(Operation::ListServices), 0);
    add("exports-1.blue");
    let claimed = claim().await;
    assert!(matches!(claimed, Outcome::Claimed { created: false, shards: 2 }), "{claimed:?}");
}

/// AWS may give a service that is created again the id of the deleted one.
#[tokio::test(start_paused = true)]
async fn what_the_record_says_of_a_service_that_another_cluster_has_now_does_not_count() {
    for same_id in [true, false] {
        let cloudmap = Fake::new();
        let record = Arc::<Stored>::default();
        let blue = start_with(&cloudmap, "blue", "uid-1", Arc::clone(&record));
        publish(&blue, &state(1)).await;
        drop(blue);
        let pages = service(&cloudmap, "exports-0.blue");
        {
            let mut registry = cloudmap.registry();
            if same_id {
                registry.services.get_mut(&pages).unwrap().creator_request_id = Some("uid-2".to_owned());
            } else {
                let ledger = registry.services.remove(&pages).unwrap().namespace_id.unwrap();
                registry.add_service(&ledger, "exports-0.blue", "uid-2", "");
            }
        }
        let writes = || cloudmap.registry().count(Operation::RegisterInstance);
        let before = writes();
        let blue = start_with(&cloudmap, "blue", "uid-1", record);
        blue.desired().send_replace(Some(state(2)));
        let refused = Stage::Refused { owner: "uid-2".to_owned() };
        let mut status = blue.status();
        let said =
            tokio::time::timeout(Duration::from_mins(1), status.wait_for(|status| status.stage == refused)).await;
        drop(said.unwrap().unwrap());
        assert_eq!(writes(), before, "same id: {same_id}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_loses_its_id_writes_nothing_until_it_has_it_again() {
    let cloudmap = Fake::new();
    let blue = start(&cloudmap, "blue", "uid-1");
    publish(&blue, &state(400)).await;
    let mut back = blue.read_back();
    let seen = back.wait_for(|map| map.as_ref() == Some(&state(400)));
    tokio::time::timeout(Duration::from_mins(1), seen).await.unwrap().unwrap();
    // Somebody purges the pages, and another cluster takes the id.
    let pages = service(&cloudmap, "exports-0.blue");
    let stranger = {
        let mut registry = cloudmap.registry();
        registry.instances.retain(|(service, _), _| *service != pages);
        let ledger = registry.services.remove(&pages).unwrap().namespace_id.unwrap();
        registry.add_service(&ledger, "exports-0.blue", "uid-2", "")
    };
    blue.desired().send_replace(Some(state(800)));
    let mut status = blue.status();
    let refused = Stage::Refused { owner: "uid-2".to_owned() };
    let said = tokio::time::timeout(Duration::from_mins(5), status.wait_for(|status| status.stage == refused)).await;
    drop(said.unwrap().unwrap());
    let writes = || {
        let registry = cloudmap.registry();
        [Operation::RegisterInstance, Operation::DeregisterInstance, Operation::CreateService]
            .map(|operation| registry.count(operation))
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = writes();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(writes(), before);
    assert!(!cloudmap.registry().instances.keys().any(|(service, _)| *service == stranger));
    // The other one goes.
    cloudmap.registry().services.remove(&stranger);
    publish(&blue, &state(800)).await;
    assert_eq!(blue.status().borrow().stage, Stage::Running);
    assert_eq!(views(&cloudmap).await["blue"].state, Some(state(800)));
}

#[tokio::test]
async fn services_that_nobody_made_yet_are_empty_and_the_last_one_counts() {
    let cloudmap = Fake::new();
    let namespace = cloudmap.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
    for name in ["exports-0.blue", "exports-5.blue"] {
        cloudmap.registry().add_service(&namespace, name, "uid-blue", "");
    }
    let set = "prod".parse().unwrap();
    let registry = Registry::new(Arc::new(cloudmap), &set).owned_by(&"blue".parse().unwrap(), "uid-blue");
    let claimed = registry.claim(&permit(), 0).await.unwrap();
    assert!(matches!(claimed, Outcome::Claimed { created: false, shards: 6 }), "{claimed:?}");
    let read = registry.read_pages("blue", 3, None).await.unwrap();
    assert!(read.pages.is_empty() && !read.truncated);
}

#[tokio::test(start_paused = true)]
async fn a_claim_does_not_wait_with_the_instances_while_aws_throttles() {
    let limits = Limits::new(&Rates::default(), None);
    let cloudmap: Arc<dyn cloudmap::Write> = Arc::new(Limited::new(Fake::new(), limits.clone()));
    let set = "prod".parse().unwrap();
    let registry = |id: &str| Registry::new(Arc::clone(&cloudmap), &set).owned_by(&id.parse().unwrap(), id);
    registry("blue").claim(&permit(), 0).await.unwrap();
    for _ in 0..5 {
        for operation in [Operation::ListServices, Operation::GetService, Operation::CreateService] {
            limits.throttled(operation);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    limits.throttled(Operation::ListServices);
    limits.throttled(Operation::CreateService);
    let since = Instant::now();
    let claimed = registry("green").claim(&permit(), 0).await.unwrap();
    assert!(matches!(claimed, Outcome::Claimed { created: true, .. }), "{claimed:?}");
    assert!(since.elapsed() <= Duration::from_secs(2), "{:?}", since.elapsed());
}

/// Of a cluster that had the id before, and of which not all was purged.
#[tokio::test(start_paused = true)]
async fn a_further_service_of_somebody_else_is_not_used_and_stops_nobody() {
    let cloudmap = Fake::new();
    let namespace = cloudmap.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
    let stranger = cloudmap.registry().add_service(&namespace, "exports-1.blue", "uid-old", "");
    let blue = start(&cloudmap, "blue", "uid-blue");
    publish(&blue, &state(2_000)).await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    publish(&blue, &state(3_000)).await;
    assert_eq!(blue.status().borrow().stage, Stage::Running);
    assert_eq!(views(&cloudmap).await["blue"].state, Some(state(3_000)));
    assert!(!cloudmap.registry().instances.keys().any(|(service, _)| *service == stranger));
}

/// A backup was restored that is older than `trust rotate`, with or without the record.
#[tokio::test(start_paused = true)]
async fn a_key_from_before_a_rotation_writes_nothing_and_is_said_with_the_remedy() {
    let first = Keys::read(&StoredKey { seed: vec![1; 32], former: Vec::new() }).unwrap();
    let second = Keys::read(&first.rotated("uid-blue", [2; 32]).unwrap()).unwrap();
    let third = Keys::read(&second.rotated("uid-blue", [3; 32]).unwrap()).unwrap();
    let cloudmap = Fake::new();
    let led_with = |keys: &Keys| {
        let mut settings = LedgerSettings::new("blue".parse().unwrap(), "prod".parse().unwrap(), "uid-blue");
        settings.trust.mode = trust::Mode::Tofu;
        settings.keys = Some(Arc::new(keys.clone()));
        spawn(settings, Arc::new(cloudmap.clone()), Arc::<Stored>::default(), Always, std::future::pending())
    };
    // In this order they were rotated, and the last one is announced.
    for keys in [&first, &second, &third] {
        let leader = led_with(keys);
        publish(&leader, &state(1)).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
    }
    let clusters = service(&cloudmap, CLUSTERS);
    let head = || cloudmap.registry().instances[&(Arc::clone(&clusters), "blue".into())].clone();
    let before = head();
    for (keys, newer) in [(&first, &third), (&second, &third)] {
        let leader = led_with(keys);
        leader.desired().send_replace(Some(state(2)));
        let asked = cloudmap.registry().calls.len();
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(head(), before, "nothing is written");
        let asked = cloudmap.registry().calls[asked..].iter().filter(|(_, of)| of.contains("exports-0.blue")).count();
        assert!((10..=25).contains(&asked), "it looks again twice a minute: {asked}");
        let status = leader.status().borrow().clone();
        assert_eq!((&status.stage, status.owned_epoch()), (&Stage::Claiming, None), "instances are not written either");
        let error = status.error.clone().unwrap();
        for part in
            [&keys.current.public().to_string(), &newer.current.public().to_string(), "trust accept blue", "Restore"]
        {
            assert!(error.contains(part), "{error}");
        }
    }
    publish(&led_with(&third), &state(2)).await;
}
