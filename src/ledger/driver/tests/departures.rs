//! Clusters that leave a ClusterSet, or go on under another id.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::record::{Member, Position, Record};
use cloudmap::{ErrorKind, fake::Fault};

async fn until_left(reader: &LedgerHandle, cluster: &str, patience: Duration) {
    let (mut remotes, id) = (reader.remotes(), cluster.parse().unwrap());
    let left = |remotes: &Arc<Remotes>| remotes.clusters.get(&id).is_some_and(|remote| remote.left);
    tokio::time::timeout(patience, remotes.wait_for(left)).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_changes_its_clusterset_has_left_the_former_one_and_knows_nobody_of_it() {
    let cloudmap = Fake::new();
    let (blues, greens) = (Arc::<Stored>::default(), Arc::<Stored>::default());
    let blue = start_with(&cloudmap, "blue", "uid-blue", Arc::clone(&blues));
    let green = start_with(&cloudmap, "green", "uid-green", Arc::clone(&greens));
    publish(&blue, &state(400)).await;
    publish(&green, &state(1)).await;
    sees(&green, "blue", &state(400)).await;
    sees(&blue, "green", &state(1)).await;
    let pages = service(&cloudmap, "exports-0.blue");
    drop(blue);
    let settings = LedgerSettings::new("blue".parse().unwrap(), "test".parse().unwrap(), "uid-blue");
    let port: Arc<dyn cloudmap::Write> = Arc::new(cloudmap.clone());
    let blue = spawn(settings, port, blues.clone(), Always, std::future::pending());
    publish(&blue, &state(2)).await;
    assert_eq!(blue.remotes().borrow().clusters.len(), 0);
    let mut remotes = green.remotes();
    let id: ClusterId = "blue".parse().unwrap();
    let left = |remotes: &Arc<Remotes>| remotes.clusters.get(&id).is_some_and(|remote| remote.left);
    tokio::time::timeout(Duration::from_mins(2), remotes.wait_for(left)).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let registered = cloudmap.registry().instances.keys().filter(|(service, _)| *service == pages).count();
    assert_eq!(registered, 0);
    let record = blues.0.lock().unwrap().as_ref().unwrap().0.clone();
    assert!(record.former.is_empty() && record.accepted.is_empty() && record.epoch > 1);
}

#[tokio::test(start_paused = true)]
async fn who_goes_to_no_clusterset_has_left_the_former_one_after_a_while() {
    let cloudmap = Fake::new();
    let blues = Arc::<Stored>::default();
    let blue = start_with(&cloudmap, "blue", "uid-blue", Arc::clone(&blues));
    let green = start(&cloudmap, "green", "uid-green");
    publish(&blue, &state(400)).await;
    publish(&green, &state(1)).await;
    sees(&green, "blue", &state(400)).await;
    sees(&blue, "green", &state(1)).await;
    drop(blue);
    let alone = local::spawn(blues.clone(), Always, Arc::new(cloudmap.clone()), "uid-blue", None, || true);
    // The property may come back.
    tokio::time::sleep(Duration::from_mins(9)).await;
    sees(&green, "blue", &state(400)).await;
    let listings = || cloudmap.registry().count(Operation::ListNamespaces);
    let before = listings();
    until_left(&green, "blue", Duration::from_mins(5)).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(listings() - before, 1, "an account allows one in two seconds, and other clusters may leave, too");
    let record = blues.0.lock().unwrap().as_ref().unwrap().0.clone();
    assert!(record.member.is_none() && record.former.is_empty() && record.accepted.is_empty() && record.epoch > 0);
    drop(alone);
    let blue = start_with(&cloudmap, "blue", "uid-blue", blues);
    publish(&blue, &state(2)).await;
    sees(&green, "blue", &state(2)).await;
}

/// Somebody deleted the CRD of the ClusterProperties, and with it all of them.
#[tokio::test(start_paused = true)]
async fn who_cannot_know_whether_it_is_in_a_clusterset_leaves_none() {
    let cloudmap = Fake::new();
    let blues = Arc::<Stored>::default();
    let blue = start_with(&cloudmap, "blue", "uid-blue", Arc::clone(&blues));
    publish(&blue, &state(1)).await;
    drop(blue);
    let known = Arc::new(AtomicBool::new(false));
    let is_known = {
        let known = Arc::clone(&known);
        move || known.load(Ordering::SeqCst)
    };
    let alone = local::spawn(blues, Always, Arc::new(cloudmap.clone()), "uid-blue", None, is_known);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(views(&cloudmap).await["blue"].head.as_ref().unwrap().is_live());
    known.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_mins(15)).await;
    assert!(!views(&cloudmap).await["blue"].head.as_ref().unwrap().is_live());
    drop(alone);
}

#[tokio::test(start_paused = true)]
async fn a_former_clusterset_that_cannot_be_left_keeps_a_cluster_without_one_in_no_other() {
    let cloudmap = Fake::new();
    let denied = cloudmap.registry().add_namespace("clusterset-denied", NamespaceKind::Http);
    cloudmap.registry().failing.insert(denied, ErrorKind::AccessDenied);
    let member = |clusterset: &str| Member { clusterset: clusterset.to_owned(), cluster: "blue".to_owned() };
    let blues = Arc::<Stored>::default();
    let record = Record { member: Some(member("denied")), former: vec![member("prod")], ..Record::default() };
    blues.store(&record, &None).await.unwrap();
    let alone = local::spawn(blues.clone(), Always, Arc::new(cloudmap), "uid-blue", None, || true);
    tokio::time::sleep(Duration::from_mins(15)).await;
    let record = blues.0.lock().unwrap().as_ref().unwrap().0.clone();
    assert_eq!((record.member, record.former), (Some(member("denied")), Vec::new()));
    drop(alone);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_does_not_show_the_own_head_ends_no_membership() {
    let cloudmap = Fake::new();
    let blue = start(&cloudmap, "blue", "uid-blue");
    publish(&blue, &state(1)).await;
    drop(blue);
    let head = (service(&cloudmap, CLUSTERS), "blue".into());
    cloudmap.registry().undiscovered.insert(head.clone());
    let from = Member { clusterset: "prod".to_owned(), cluster: "blue".to_owned() };
    let port: Arc<dyn cloudmap::Write> = Arc::new(cloudmap.clone());
    let late = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        cloudmap.registry().undiscovered.remove(&head);
    };
    let (left, ()) = tokio::join!(depart(&port, &from, "uid-blue", None, &Always), late);
    left.unwrap();
    assert!(!views(&cloudmap).await["blue"].head.as_ref().unwrap().is_live());
    // Where there is none, it ends after a while.
    cloudmap.registry().instances.remove(&head);
    tokio::time::timeout(Duration::from_mins(1), depart(&port, &from, "uid-blue", None, &Always))
        .await
        .unwrap()
        .unwrap();
}

/// The keys of blue after it replaced the one with which it [`connect`]s.
fn replaced_keys() -> Arc<Keys> {
    let [former, current] = [1, 3].map(sessions::tests::key);
    let handed = trust::Rotation::sign(&former, "uid-blue", &current.public());
    Arc::new(Keys { current, former: vec![handed] })
}

/// A cluster that was away while the key was replaced believes the farewell only where it finds the new key.
#[tokio::test(start_paused = true)]
async fn who_leaves_a_former_clusterset_deletes_its_pages_there_and_nothing_else() {
    let (cloudmap, network) = (Fake::new(), sessions::tests::World::default());
    let blue = connect(&cloudmap, &network, "blue", 1);
    publish(&blue, &state(2_000)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    drop(blue);
    let own = service(&cloudmap, "exports-0.blue");
    cloudmap.registry().instances.insert((own.clone(), "stranger".into()), BTreeMap::new());
    let kept = || {
        let registry = cloudmap.registry();
        let there = registry.instances.keys().filter(|(service, _)| *service == own);
        there.map(|(_, id)| id.to_string()).collect::<Vec<_>>()
    };
    assert!(kept().len() > 4, "{:?}", kept());
    let from = Member { clusterset: "prod".to_owned(), cluster: "blue".to_owned() };
    let keys = Arc::new(Keys { current: sessions::tests::key(1), former: Vec::new() });
    let port: Arc<dyn cloudmap::Write> = Arc::new(cloudmap.clone());
    depart(&port, &from, "uid-blue", Some(keys), &Always).await.unwrap();
    assert!(!views(&cloudmap).await["blue"].head.as_ref().unwrap().is_live());
    assert_eq!(kept(), [trust::COPY_INSTANCE, trust::KEY_INSTANCE, "stranger"]);
}

#[tokio::test(start_paused = true)]
async fn who_replaces_its_key_while_it_changes_its_clusterset_is_believed_in_the_former_one() {
    let (cloudmap, network) = (Fake::new(), sessions::tests::World::default());
    let (blue, green) = (connect(&cloudmap, &network, "blue", 1), connect(&cloudmap, &network, "green", 2));
    publish(&blue, &state(1)).await;
    sees(&green, "blue", &state(1)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    drop(blue);
    let keys = replaced_keys();
    let from = Member { clusterset: "prod".to_owned(), cluster: "blue".to_owned() };
    let port: Arc<dyn cloudmap::Write> = Arc::new(cloudmap.clone());
    depart(&port, &from, "uid-blue", Some(keys), &Always).await.unwrap();
    until_left(&green, "blue", Duration::from_mins(2)).await;
}

/// The others do not believe what is not signed, and would keep its exports.
#[tokio::test(start_paused = true)]
async fn a_farewell_that_somebody_else_wrote_ends_no_membership() {
    let (cloudmap, network) = (Fake::new(), sessions::tests::World::default());
    let blue = connect(&cloudmap, &network, "blue", 1);
    publish(&blue, &state(1)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    drop(blue);
    let last = views(&cloudmap).await["blue"].head.clone().unwrap();
    let presence = Presence::Left { successor: None };
    let forged = Head { position: Position { seq: 0, ..last.position }, presence, ..Head::clone(&last) };
    let (heads, Instance { id, attributes }) = (service(&cloudmap, CLUSTERS), forged.to_instance());
    cloudmap.registry().instances.insert((heads, id), attributes);
    let from = Member { clusterset: "prod".to_owned(), cluster: "blue".to_owned() };
    let keys = Arc::new(Keys { current: sessions::tests::key(1), former: Vec::new() });
    let port: Arc<dyn cloudmap::Write> = Arc::new(cloudmap.clone());
    depart(&port, &from, "uid-blue", Some(keys), &Always).await.unwrap();
    let registry = Registry::new(port, &"prod".parse().unwrap());
    registry.find_namespace().await.unwrap();
    assert!(!registry.copy("blue").await.unwrap().unwrap().is_live());
    let left = views(&cloudmap).await["blue"].head.clone().unwrap();
    assert!(!left.is_live() && left.signer.is_some() && left.position > last.position, "{left:?}");
}

/// Restored from a backup, and taken out of the ClusterSet so that it does no harm.
#[tokio::test(start_paused = true)]
async fn a_copy_of_a_cluster_ends_no_membership_in_which_the_original_goes_on() {
    let cloudmap = Fake::new();
    let blues = Arc::<Stored>::default();
    let blue = start_with(&cloudmap, "blue", "uid-blue", Arc::clone(&blues));
    publish(&blue, &state(1)).await;
    let copies = || Arc::new(Stored(std::sync::Mutex::new(blues.0.lock().unwrap().clone()), false.into()));
    let [alone, elsewhere] = [copies(), copies()];
    let kept = local::spawn(alone.clone(), Always, Arc::new(cloudmap.clone()), "uid-blue", None, || true);
    let settings = LedgerSettings::new("blue".parse().unwrap(), "test".parse().unwrap(), "uid-blue");
    let other = spawn(settings, Arc::new(cloudmap.clone()), elsewhere.clone(), Always, std::future::pending());
    publish(&other, &state(2)).await;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        let head = views(&cloudmap).await["blue"].head.clone().unwrap();
        assert_eq!((head.is_live(), head.position.epoch), (true, 1));
    }
    for copy in [&alone, &elsewhere] {
        let record = copy.0.lock().unwrap().as_ref().unwrap().0.clone();
        assert!(record.former.is_empty() && record.member.is_none_or(|member| member.clusterset == "test"));
    }
    drop((kept, other));
}

#[tokio::test(start_paused = true)]
async fn nothing_remains_of_an_id_that_this_cluster_had_before() {
    let cloudmap = Fake::new();
    let record = Arc::<Stored>::default();
    let blue = start_with(&cloudmap, "blue", "uid-blue", Arc::clone(&record));
    let green = start(&cloudmap, "green", "uid-green");
    publish(&blue, &state(400)).await;
    sees(&green, "blue", &state(400)).await;
    drop(blue);
    let navy = start_with(&cloudmap, "navy", "uid-blue", record);
    publish(&navy, &state(400)).await;
    until_left(&green, "blue", Duration::from_mins(3)).await;
    let heads = service(&cloudmap, CLUSTERS);
    assert!(cloudmap.registry().instances.contains_key(&(heads.clone(), "blue".into())));
    tokio::time::sleep(Duration::from_mins(15)).await;
    let registry = cloudmap.registry();
    assert!(!registry.services.values().any(|service| service.name.ends_with(".blue")));
    assert!(!registry.instances.contains_key(&(heads.clone(), "blue".into())));
    assert!(registry.instances.contains_key(&(heads, "navy".into())));
}

/// A head whose key is gone counts for nobody, and every other cluster would report it.
#[tokio::test(start_paused = true)]
async fn a_former_id_keeps_its_key_while_its_services_may_not_be_deleted() {
    let cloudmap = Fake::new();
    let namespace = cloudmap.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
    let add = |name: &str| cloudmap.registry().add_service(&namespace, name, "uid-blue", "");
    let (_, own, more) = (add(CLUSTERS), add("exports-0.blue"), add("exports-1.blue"));
    for id in [trust::KEY_INSTANCE, trust::COPY_INSTANCE] {
        cloudmap.registry().instances.insert((own.clone(), id.into()), BTreeMap::new());
    }
    let kept = || cloudmap.registry().instances.keys().filter(|(service, _)| *service == own).count();
    let set = "prod".parse().unwrap();
    let registry = Registry::new(Arc::new(cloudmap.clone()), &set).owned_by(&"navy".parse().unwrap(), "uid-blue");
    registry.find_namespace().await.unwrap();
    let denied = || cloudmap.fault(Operation::DeleteService, Fault::Refused(ErrorKind::AccessDenied));
    denied();
    registry.remove_former(&permit(), "blue").await.unwrap_err();
    assert!(cloudmap.registry().services.contains_key(&more));
    assert_eq!(kept(), 2, "the service with the key is the last");
    cloudmap.registry().services.remove(&more);
    denied();
    registry.remove_former(&permit(), "blue").await.unwrap_err();
    assert_eq!(kept(), 2);
    registry.remove_former(&permit(), "blue").await.unwrap();
    assert!(!cloudmap.registry().services.contains_key(&own));
    assert_eq!(kept(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_further_service_of_another_cluster_under_a_former_id_stays_and_keeps_nothing_else() {
    let cloudmap = Fake::new();
    let namespace = cloudmap.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
    let add = |name: &str, creator: &str| cloudmap.registry().add_service(&namespace, name, creator, "");
    add(CLUSTERS, "uid-blue");
    let (own, theirs) = (add("exports-0.blue", "uid-blue"), add("exports-1.blue", "uid-other"));
    let page = "1-1-00000000.0";
    cloudmap.registry().instances.insert((theirs.clone(), page.into()), BTreeMap::new());
    let set = "prod".parse().unwrap();
    let registry = Registry::new(Arc::new(cloudmap.clone()), &set).owned_by(&"navy".parse().unwrap(), "uid-blue");
    registry.find_namespace().await.unwrap();
    let outcome = registry.delete_page(&permit(), "blue", 1, page).await.unwrap();
    assert!(matches!(&outcome, Outcome::Taken { owner } if owner == "uid-other"), "{outcome:?}");
    registry.remove_former(&permit(), "blue").await.unwrap();
    let there = cloudmap.registry();
    assert!(!there.services.contains_key(&own) && there.services.contains_key(&theirs));
    assert!(there.instances.contains_key(&(theirs, page.into())));
}

/// The others know the former id by the key that it announced.
#[tokio::test(start_paused = true)]
async fn who_replaces_its_key_while_it_changes_its_id_is_believed_under_the_former_one() {
    let (cloudmap, network) = (Fake::new(), sessions::tests::World::default());
    let blue = connect(&cloudmap, &network, "blue", 1);
    publish(&blue, &state(1)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    drop(blue);
    let last = views(&cloudmap).await["blue"].head.clone().unwrap();
    let keys = replaced_keys();
    let (set, navy) = ("prod".parse().unwrap(), "navy".parse().unwrap());
    let registry = Registry::new(Arc::new(cloudmap), &set).owned_by(&navy, "uid-blue").signed_with(Some(keys));
    registry.find_namespace().await.unwrap();
    let farewell = Head { presence: Presence::Left { successor: Some("navy".into()) }, ..Head::clone(&last) };
    registry.put_head(&permit(), &farewell, false).await.unwrap();
    let announced = registry.announced("blue", "uid-blue").await.unwrap().unwrap();
    let former = sessions::tests::key(1).public();
    assert!(announced.key != former && announced.follows(&former), "{announced:?}");
}
