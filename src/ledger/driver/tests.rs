//! Drivers against a registry in memory, under paused time; and what people read of what they wrote.

mod claims;
mod departures;

use std::collections::BTreeMap;

use super::{departure::depart, *};
use crate::{
    CLUSTERS, Value,
    call::Call,
    head::{Head, Presence},
    page::PageId,
    record::{Accepted, memory::Stored},
    show, trust,
    writer::Stage,
};
use cloudmap::{
    Instance, Limited, NamespaceKind, Operation, Rate, Rates,
    fake::{Fake, permit, permit_until},
};

struct Always;

#[async_trait]
impl Leadership for Always {
    fn permit(&self) -> Option<Permit> {
        Permit::of_lease(|| Some(Instant::now() + Duration::from_secs(10)))
    }
    async fn confirm(&self) -> bool {
        true
    }
}

/// Leads until then.
struct Until(Instant);

#[async_trait]
impl Leadership for Until {
    fn permit(&self) -> Option<Permit> {
        permit_until(self.0)
    }
    async fn confirm(&self) -> bool {
        true
    }
}

fn start(cloudmap: &Fake, cluster: &str, uid: &str) -> LedgerHandle {
    start_with(cloudmap, cluster, uid, Arc::default())
}

fn start_with(cloudmap: &Fake, cluster: &str, uid: &str, record: Arc<Stored>) -> LedgerHandle {
    let settings = LedgerSettings::new(cluster.parse().unwrap(), "prod".parse().unwrap(), uid);
    spawn(settings, Arc::new(cloudmap.clone()), record, Always, std::future::pending())
}

fn state(pairs: u32) -> Arc<Map> {
    Arc::new((0..pairs).map(|pair| (Arc::from(format!("ns/{pair}")), Value::from([7; 300]))).collect())
}

async fn sees(reader: &LedgerHandle, cluster: &str, map: &Arc<Map>) {
    let mut remotes = reader.remotes();
    let id: ClusterId = cluster.parse().unwrap();
    let there = |remotes: &Arc<Remotes>| {
        remotes.clusters.get(&id).and_then(|remote| remote.state.as_ref()).is_some_and(|state| state == map)
    };
    let seen = tokio::time::timeout(Duration::from_mins(2), remotes.wait_for(there)).await;
    assert!(seen.is_ok(), "the state of {cluster} did not arrive: {:?}", reader.status().borrow());
}

#[tokio::test(start_paused = true)]
async fn a_state_reaches_the_other_cluster_and_follows_its_changes() {
    let cloudmap = Fake::new();
    let namespace = cloudmap.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
    // Discovery takes the HttpName, which may differ.
    let rename = |namespaces: &mut Vec<cloudmap::Namespace>| {
        let found = namespaces.iter_mut().find(|found| found.id == namespace);
        found.unwrap().http_name = "clusterset-prod-f00".into();
    };
    rename(&mut cloudmap.registry().namespaces);
    let (blue, green) = (start(&cloudmap, "blue", "uid-blue"), start(&cloudmap, "green", "uid-green"));
    // The second needs pages, the others do not.
    for pairs in [3, 400, 399, 0] {
        blue.desired().send_replace(Some(state(pairs)));
        sees(&green, "blue", &state(pairs)).await;
    }
    assert_eq!(blue.status().borrow().stage, Stage::Running);
    publish(&blue, &state(0)).await;
    // external-dns, in whose reach the namespace may be, crashes at services with one that have no records.
    let registry = cloudmap.registry();
    assert!(registry.services.len() > 2 && registry.services.values().all(|service| service.description.is_none()));
}

#[tokio::test(start_paused = true)]
async fn who_may_not_ask_for_operations_does_not_wait_for_them() {
    let cloudmap = Fake::new();
    let blue = start(&cloudmap, "blue", "uid-blue");
    publish(&blue, &state(1)).await;
    let denied = cloudmap::fake::Fault::Refused(cloudmap::ErrorKind::AccessDenied);
    let deny = |times: usize| {
        cloudmap
            .registry()
            .faults
            .insert(Operation::GetOperation, std::iter::repeat_n(denied.clone(), times).collect());
    };
    deny(1_000);
    let began = Instant::now();
    // The first two need pages.
    for pairs in [400, 500, 499] {
        publish(&blue, &state(pairs)).await;
    }
    assert!(began.elapsed() < Duration::from_secs(13), "{:?}", began.elapsed());
    let asked = 1_000 - cloudmap.registry().faults[&Operation::GetOperation].len();
    assert!((3..50).contains(&asked), "{asked}");
}

/// Counts the pairs of every state, and says that the last one is wrong.
async fn read_all(cloudmap: &Fake) -> Result<Vec<show::ClusterView<usize>>, show::Error> {
    let decode = |map: &Map| (map.len(), map.keys().last().map(ToString::to_string).into_iter().collect());
    show::read_all(Arc::new(cloudmap.clone()), &"prod".parse().unwrap(), decode).await
}

/// Reads everything; the registry is quick, but not at once consistent.
async fn views(cloudmap: &Fake) -> BTreeMap<Arc<str>, show::ClusterView<usize>> {
    let views = read_all(cloudmap).await.unwrap();
    views.into_iter().map(|view| (view.id.clone(), view)).collect()
}

async fn publish(cluster: &LedgerHandle, map: &Arc<Map>) {
    cluster.desired().send_replace(Some(map.clone()));
    let mut published = cluster.published();
    let there = |published: &Option<Arc<Map>>| published.as_ref() == Some(map);
    tokio::time::timeout(Duration::from_mins(2), published.wait_for(there)).await.unwrap().unwrap();
}

/// The service of this name in the registry.
fn service(cloudmap: &Fake, name: &str) -> Arc<str> {
    cloudmap.registry().services.values().find(|service| *service.name == *name).unwrap().id.clone()
}

#[tokio::test(start_paused = true)]
async fn people_read_every_cluster_and_what_is_wrong_with_it() {
    let cloudmap = Fake::new();
    let missing = read_all(&cloudmap).await;
    assert_eq!(missing.unwrap_err(), show::Error::NoLedger("prod".to_owned()));

    let (blue, green) = (start(&cloudmap, "blue", "uid-blue"), start(&cloudmap, "green", "uid-green"));
    // In pages.
    let map = state(400);
    publish(&blue, &map).await;
    publish(&green, &state(1)).await;

    let read = views(&cloudmap).await;
    let view = &read["blue"];
    assert_eq!((view.state.as_ref(), view.creator.as_deref()), (Some(&map), Some("uid-blue")));
    let last = map.keys().last().unwrap();
    assert_eq!((view.catalog, &view.problems), (map.len(), &vec![last.to_string()]));
    assert!(view.age.is_some() && view.head.as_ref().is_some_and(|head| head.is_live()));
    assert_eq!(read["green"].state, Some(state(1)));

    // A page is gone; a head is damaged; a third cluster's head is under an id that it does not own.
    drop((blue, green));
    let (pages, heads) = (service(&cloudmap, "exports-0.blue"), service(&cloudmap, CLUSTERS));
    let stranger = Head { cluster: "red".into(), ..Head::clone(read["blue"].head.as_ref().unwrap()) };
    {
        let mut registry = cloudmap.registry();
        let page = registry.instances.keys().find(|(service, _)| *service == pages).unwrap().clone();
        registry.instances.remove(&page);
        registry.instances.get_mut(&(heads.clone(), "green".into())).unwrap().insert("c".to_owned(), "0".to_owned());
        let Instance { id, attributes } = stranger.to_instance();
        registry.instances.insert((heads, id), attributes);
    }
    let read = views(&cloudmap).await;
    for (id, why) in [("blue", "missing"), ("green", "checksum"), ("red", "belongs to nobody")] {
        let view = &read[id];
        assert!(view.state.is_none(), "{id}");
        assert!(view.problems.iter().any(|problem| problem.contains(why)), "{id}: {:?}", view.problems);
    }
}

#[tokio::test(start_paused = true)]
async fn belongings_are_those_of_the_cluster_that_was_asked_for() {
    let cloudmap = Fake::new();
    let (blue, green) = (start(&cloudmap, "blue", "uid-blue"), start(&cloudmap, "green", "uid-green"));
    publish(&blue, &state(2_000)).await;
    publish(&green, &state(1)).await;
    let ask = async |cluster: Option<&str>| {
        let cluster = cluster.map(|cluster| cluster.parse().unwrap());
        let found = show::belongings(Arc::new(cloudmap.clone()), &"prod".parse().unwrap(), cluster.as_ref()).await;
        let found = found.unwrap().into_iter().map(|belonging| (belonging.service.to_string(), belonging));
        found.collect::<BTreeMap<_, _>>()
    };
    let all = ask(None).await;
    assert_eq!(all.keys().collect::<Vec<_>>(), [CLUSTERS, "exports-0.blue", "exports-0.green"]);
    assert_eq!(all[CLUSTERS].instances, ["blue".into(), "green".into()]);
    let of_blue = ask(Some("blue")).await;
    assert_eq!(of_blue.keys().collect::<Vec<_>>(), [CLUSTERS, "exports-0.blue"]);
    assert_eq!(of_blue[CLUSTERS].instances, ["blue".into()]);
    let pages = &of_blue["exports-0.blue"];
    assert_eq!((pages.cluster.as_deref(), pages), (Some("blue"), &all["exports-0.blue"]));
    assert!(pages.instances.len() > 5);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_died_is_forgotten_and_one_that_lives_comes_back() {
    let cloudmap = Fake::new();
    let (blue, green) = (start(&cloudmap, "blue", "uid-blue"), start(&cloudmap, "green", "uid-green"));
    publish(&blue, &state(2_000)).await;
    sees(&green, "blue", &state(2_000)).await;
    let forget = async |cluster: &str| {
        show::forget(Arc::new(cloudmap.clone()), &permit(), &"prod".parse().unwrap(), &cluster.parse().unwrap()).await
    };
    assert_eq!(forget("red").await, Err(show::Error::NoHead("red".to_owned())));
    // It is alive: what was said in its name does not last.
    assert!(forget("blue").await.unwrap() > 5);
    publish(&blue, &state(2_001)).await;
    sees(&green, "blue", &state(2_001)).await;
    drop(blue);

    let pages = service(&cloudmap, "exports-0.blue");
    let count = || cloudmap.registry().instances.keys().filter(|(service, _)| *service == pages).count();
    let before = count();
    assert_eq!(forget("blue").await, Ok(before));
    assert_eq!(count(), 0);
    let mut remotes = green.remotes();
    let blue = "blue".parse().unwrap();
    let left = |remotes: &Arc<Remotes>| remotes.clusters.get(&blue).is_some_and(|remote| remote.left);
    tokio::time::timeout(Duration::from_mins(1), remotes.wait_for(left)).await.unwrap().unwrap();
    assert_eq!(views(&cloudmap).await["blue"].head.as_ref().unwrap().presence, Presence::Left { successor: None });
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_was_purged_too_early_is_forgotten_by_what_another_recorded() {
    let cloudmap = Fake::new();
    let (blues, greens) = (Arc::<Stored>::default(), Arc::<Stored>::default());
    let blue = start_with(&cloudmap, "blue", "uid-blue", Arc::clone(&blues));
    let green = start_with(&cloudmap, "green", "uid-green", Arc::clone(&greens));
    publish(&blue, &state(1)).await;
    sees(&green, "blue", &state(1)).await;
    drop(blue);
    // Leaders that changed nothing are not recorded.
    for _ in 0..3 {
        let blue = start_with(&cloudmap, "blue", "uid-blue", Arc::clone(&blues));
        publish(&blue, &state(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (pages, heads) = (service(&cloudmap, "exports-0.blue"), service(&cloudmap, CLUSTERS));
    cloudmap.registry().instances.remove(&(heads, "blue".into()));
    cloudmap.registry().services.remove(&pages);
    tokio::time::sleep(Duration::from_mins(10)).await;
    sees(&green, "blue", &state(1)).await;

    let (clusterset, id) = ("prod".parse().unwrap(), "blue".parse().unwrap());
    let port: Arc<dyn cloudmap::Write> = Arc::new(cloudmap.clone());
    let no_head = show::forget(Arc::clone(&port), &permit(), &clusterset, &id).await.unwrap_err();
    assert!(no_head.to_string().contains("ledger show"), "{no_head}");
    let recorded = greens.0.lock().unwrap().as_ref().unwrap().0.accepted["blue"].clone();
    show::forget_recorded(Arc::clone(&port), &permit(), &clusterset, &id, &recorded).await.unwrap();
    let mut remotes = green.remotes();
    let left = |remotes: &Arc<Remotes>| remotes.clusters.get(&id).is_some_and(|remote| remote.left);
    tokio::time::timeout(Duration::from_mins(1), remotes.wait_for(left)).await.unwrap().unwrap();

    // It was not dead, only away.
    let blue = start_with(&cloudmap, "blue", "uid-blue", blues);
    publish(&blue, &state(2)).await;
    sees(&green, "blue", &state(2)).await;
    // The id is another's by now.
    let other = Accepted { uid: "uid-red".to_owned(), ..recorded };
    let taken = show::forget_recorded(port, &permit(), &clusterset, &id, &other).await;
    assert_eq!(taken, Err(show::Error::Taken { cluster: "blue".to_owned(), owner: "uid-blue".to_owned() }));
}

/// Others wait for it: W1 and W2 each need a read of the heads.
#[tokio::test(start_paused = true)]
async fn a_new_leader_has_its_base_within_a_second() {
    let cloudmap = Fake::new();
    let record = Arc::<Stored>::default();
    let blue = start_with(&cloudmap, "blue", "uid-blue", Arc::clone(&record));
    publish(&blue, &state(1)).await;
    drop(blue);
    let began = Instant::now();
    let blue = start_with(&cloudmap, "blue", "uid-blue", record);
    let mut status = blue.status();
    status.wait_for(|status| status.stage == Stage::Running).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

/// By this tag a policy can keep the clusters' roles out of each other's services.
#[tokio::test(start_paused = true)]
async fn services_of_one_cluster_have_its_id_as_a_tag() {
    let cloudmap = Fake::new();
    let blue = start(&cloudmap, "blue", "uid-blue");
    publish(&blue, &state(1)).await;
    let registry = cloudmap.registry();
    let tags: BTreeMap<_, _> = registry
        .services
        .values()
        .map(|service| (&*service.name, registry.tags[&service.arn].get("cloudmap-mcs/cluster").map(|id| &**id)))
        .collect();
    assert_eq!(tags, BTreeMap::from([("clusters", None), ("exports-0.blue", Some("blue"))]));
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_is_not_made_yet_is_no_error() {
    let cloudmap = Fake::new();
    let blue = start(&cloudmap, "blue", "uid-blue");
    blue.desired().send_replace(Some(state(1)));
    let mut status = blue.status();
    while status.borrow_and_update().stage != Stage::Running {
        status.changed().await.unwrap();
        assert_eq!(status.borrow().error, None);
    }
}

/// A leader that begins in this state has never completed a read.
#[tokio::test(start_paused = true)]
async fn a_ledger_that_is_full_says_so_although_it_cannot_be_read() {
    let cloudmap = Fake::new();
    let blue = start(&cloudmap, "blue", "uid-blue");
    publish(&blue, &state(1)).await;
    drop(blue);
    let clusters = service(&cloudmap, CLUSTERS);
    {
        let mut registry = cloudmap.registry();
        let head = registry.instances[&(clusters.clone(), "blue".into())].clone();
        let gone = (0..1_000).map(|n| ((clusters.clone(), format!("gone-{n}").into()), head.clone()));
        registry.instances.extend(gone);
    }
    let blue = start(&cloudmap, "blue", "uid-blue");
    let mut status = blue.status();
    let full = |status: &Arc<Status>| status.heads == 1_000 && status.error.is_some();
    let said = tokio::time::timeout(Duration::from_mins(1), status.wait_for(full)).await;
    assert_eq!(said.unwrap().unwrap().reads, 0);
    // Somebody removes them.
    cloudmap.registry().instances.retain(|(service, id), _| *service != clusters || **id == *"blue");
    let read = |status: &Arc<Status>| status.heads == 1 && status.reads > 0;
    let said = tokio::time::timeout(Duration::from_mins(1), status.wait_for(read)).await;
    assert_eq!(said.unwrap().unwrap().error, None);
}

/// Each call of a burst would open a connection.
#[tokio::test(start_paused = true)]
async fn a_few_pages_are_deleted_at_once() {
    let cloudmap = Fake::new().with_call(Duration::from_secs(1));
    let namespace = cloudmap.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
    cloudmap.registry().add_service(&namespace, "exports-0.blue", "uid-blue", "");
    let registry = Registry::new(Arc::new(cloudmap.clone()), &"prod".parse().unwrap())
        .owned_by(&"blue".parse().unwrap(), "uid-blue");
    registry.find_namespace().await.unwrap();
    let permit = permit();
    registry.delete_page(&permit, "blue", 0, "1-1-00000000.0").await.unwrap();
    let pages: Vec<_> = (1..=24).map(|number| format!("1-1-00000000.{number}")).collect();
    let begun = Instant::now();
    let deleted = pages.iter().map(|page| registry.delete_page(&permit, "blue", 0, page));
    futures::future::try_join_all(deleted).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
}

/// As when AWS throttles, and the API server cannot renew the Lease.
#[tokio::test(start_paused = true)]
async fn a_write_that_waits_for_its_turn_is_not_made_after_the_lease_ran_out() {
    let fake = Fake::new();
    let namespace = fake.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
    fake.registry().add_service(&namespace, "exports-0.blue", "uid-blue", "");
    let rates = Rates::default().with(Operation::DeregisterInstance, Rate::new(0.01, 1.0, 0.0));
    let limited: Arc<dyn cloudmap::Write> = Arc::new(Limited::new(fake.clone(), cloudmap::Limits::new(&rates, None)));
    let registry =
        Registry::new(Arc::clone(&limited), &"prod".parse().unwrap()).owned_by(&"blue".parse().unwrap(), "uid-blue");
    registry.find_namespace().await.unwrap();
    let ports = Arc::new(Ports {
        cloudmap: limited,
        uid: "uid-blue".to_owned(),
        keys: None,
        registry,
        elsewhere: BTreeMap::new(),
        record: Arc::<Stored>::default(),
        leadership: Box::new(Until(Instant::now() + Duration::from_mins(1))),
    });
    let delete = |number| {
        let page = PageId { flush: "1-1-00000000".into(), number };
        ports.clone().make(CallId(1), Call::DeletePage { cluster: "blue".into(), shard: 0, page })
    };
    let (_, first) = delete(0).await;
    assert!(matches!(first, Outcome::Done), "{first:?}");
    let (_, second) = delete(1).await;
    assert!(matches!(second, Outcome::Failed(_)), "{second:?}");
    assert_eq!(fake.registry().count(Operation::DeregisterInstance), 1);
}

/// A leader that others can reach.
fn connect(cloudmap: &Fake, network: &sessions::tests::World, cluster: &str, n: u8) -> LedgerHandle {
    connect_by(cloudmap, network, cluster, n, trust::Mode::Tofu)
}

fn connect_by(
    cloudmap: &Fake,
    network: &sessions::tests::World,
    cluster: &str,
    n: u8,
    mode: trust::Mode,
) -> LedgerHandle {
    let keys = Keys { current: sessions::tests::key(n), former: Vec::new() };
    let settings = LedgerSettings {
        trust: Trust { mode, ..Trust::default() },
        keys: Some(Arc::new(keys)),
        network: Some(network.network(n)),
        ..LedgerSettings::new(cluster.parse().unwrap(), "prod".parse().unwrap(), format!("uid-{cluster}"))
    };
    spawn(settings, Arc::new(cloudmap.clone()), Arc::<Stored>::default(), Always, std::future::pending())
}

#[tokio::test(start_paused = true)]
async fn connected_leaders_make_few_calls_at_rest_and_read_at_once_when_one_is_gone() {
    let (cloudmap, network) = (Fake::new(), sessions::tests::World::default());
    let (blue, green) = (connect(&cloudmap, &network, "blue", 1), connect(&cloudmap, &network, "green", 2));
    publish(&blue, &state(400)).await;
    publish(&green, &state(1)).await;
    sees(&green, "blue", &state(400)).await;
    let calls = async |time: Duration| {
        let before = cloudmap.registry().calls.len();
        tokio::time::sleep(time).await;
        let mut by_operation = BTreeMap::<_, usize>::new();
        for (operation, _) in &cloudmap.registry().calls[before..] {
            *by_operation.entry(operation.name()).or_default() += 1;
        }
        by_operation
    };
    tokio::time::sleep(Duration::from_mins(5)).await;
    let time = Duration::from_mins(30);
    let spent = calls(time).await;
    let a_second = spent.values().sum::<usize>() as f64 / time.as_secs_f64() / 2.0;
    assert!(a_second < 0.27, "{a_second} calls a second and cluster: {spent:?}");
    // What changes is there at once, and not after the next read.
    let changed = Instant::now();
    blue.desired().send_replace(Some(state(399)));
    sees(&green, "blue", &state(399)).await;
    assert!(changed.elapsed() < Duration::from_millis(100), "{:?}", changed.elapsed());
    tokio::time::sleep(Duration::from_mins(2)).await;
    drop(blue);
    let spent = calls(Duration::from_mins(1)).await;
    let reads = spent[Operation::DiscoverInstances.name()];
    assert!((50..70).contains(&reads), "{reads} reads in a minute");
}

#[tokio::test(start_paused = true)]
async fn who_takes_a_connection_and_refuses_the_key_cannot_be_reached_and_why_is_said() {
    fn why(status: &Status) -> Option<&str> {
        status.unreachable.get("green").map(String::as_str)
    }
    let (cloudmap, network) = (Fake::new(), sessions::tests::World::default());
    let blue = connect(&cloudmap, &network, "blue", 1);
    // Nobody told green the key of blue.
    let green = connect_by(&cloudmap, &network, "green", 2, trust::Mode::Pinned);
    publish(&blue, &state(1)).await;
    publish(&green, &state(1)).await;
    sees(&blue, "green", &state(1)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let status = blue.status().borrow().clone();
        assert_eq!(why(&status), Some(crate::stream::REFUSED));
    }
}

#[tokio::test(start_paused = true)]
async fn a_signed_head_is_not_replaced_by_an_unsigned_farewell() {
    let (cloudmap, network) = (Fake::new(), sessions::tests::World::default());
    let (blue, green) = (connect(&cloudmap, &network, "blue", 1), connect(&cloudmap, &network, "green", 2));
    publish(&blue, &state(400)).await;
    publish(&green, &state(1)).await;
    drop(blue);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let forget = async || {
        show::forget(Arc::new(cloudmap.clone()), &permit(), &"prod".parse().unwrap(), &"blue".parse().unwrap()).await
    };
    assert_eq!(forget().await, Err(show::Error::Signed("blue".to_owned())));
    let read = views(&cloudmap).await;
    assert!(read["blue"].head.as_ref().unwrap().is_live());
    assert_eq!(read["blue"].state, Some(state(400)), "its pages are still there");

    // Where no member signs any more, all believe what is not signed.
    drop(green);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let heads = service(&cloudmap, CLUSTERS);
    cloudmap.registry().instances.get_mut(&(heads, "green".into())).unwrap().remove("s");
    assert!(forget().await.unwrap() > 0);
    assert!(!views(&cloudmap).await["blue"].head.as_ref().unwrap().is_live());
}
