use super::*;
use cloudmap::{
    NamespaceKind, Operation,
    fake::{Fake, Fault, permit},
};
use ledger::{
    Map, Value,
    driver::{self, LedgerHandle},
    record::{Position, memory::Stored},
    writer::Stage,
};
use model::{ClaimOwner, Registration};

struct Always;

#[async_trait::async_trait]
impl driver::Leadership for Always {
    fn permit(&self) -> Option<Permit> {
        Some(permit())
    }
    async fn confirm(&self) -> bool {
        true
    }
}

pub(crate) fn clusterset() -> ClusterSetId {
    "prod".parse().unwrap()
}

fn identity(cluster: &str) -> Owner {
    Owner { clusterset: Some(clusterset()), cluster: cluster.parse().unwrap(), cluster_uid: "uid".into() }
}

/// A cluster whose ledger has pages and a claim to a target.
pub(crate) async fn member(fake: &Fake, id: &str, claim: &str) -> LedgerHandle {
    member_with(fake, id, claim, Arc::default()).await
}

async fn member_with(fake: &Fake, id: &str, claim: &str, record: Arc<Stored>) -> LedgerHandle {
    let settings = driver::LedgerSettings::new(id.parse().unwrap(), clusterset(), format!("uid-{id}"));
    let handle = driver::spawn(settings, Arc::new(fake.clone()), record, Always, std::future::pending());
    let registration = Registration {
        target: Target { namespace: "shop".into(), service: claim.into() },
        owner: ClaimOwner { kind: "ServiceExport".into(), namespace: "shop".into(), name: claim.into() },
        claimed: 1,
        state: model::ClaimState::Serves,
    };
    let mut map: Map = (0..400).map(|n| (Arc::from(format!("ns/{n}")), Value::from([7; 300]))).collect();
    map.extend([records::encode_registration(&registration).unwrap()]);
    publish(&handle, &Arc::new(map)).await;
    handle
}

async fn publish(member: &LedgerHandle, map: &Arc<Map>) {
    member.desired().send_replace(Some(map.clone()));
    let published = async || member.published().wait_for(|there| there.as_ref() == Some(map)).await.is_ok();
    let published = tokio::time::timeout(Duration::from_mins(2), published()).await;
    assert_eq!(published, Ok(true), "{:?}", member.status().borrow());
}

/// Does what `cloudmap-mcs leave` does, or reverts it.
fn set_leaving(record: &Stored, leaving: bool) {
    let mut held = record.0.lock().unwrap();
    let (record, version) = held.as_mut().unwrap();
    record.leaving = leaving;
    *version += 1;
}

/// Services of the ClusterSet and of others in the namespace `shop`, which the ClusterSet created.
fn shop(fake: &Fake) {
    let mut registry = fake.registry();
    let shop = registry.add_namespace("shop", NamespaceKind::Http);
    registry.tags.insert(format!("arn:{shop}").into(), identity("blue").tags());
    let creator = identity("blue").creator_request_id(1);
    for (name, creator, clusters) in [
        ("blue", &*creator, &["blue"][..]),
        ("both", &creator, &["blue", "green"]),
        ("empty", &creator, &[]),
        ("claimed", &creator, &[]),
        ("foreign", "terraform", &["blue"]),
    ] {
        let service = registry.add_service(&shop, name, creator, "");
        for cluster in clusters {
            let attributes = [(attributes::CLUSTERSET, "prod"), (attributes::CLUSTER, *cluster)];
            let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            registry.instances.insert((service.clone(), format!("k8s-{cluster}").into()), attributes);
        }
        registry
            .instances
            .insert((service.clone(), "ecs".into()), [("ECS_CLUSTER_NAME".to_owned(), "x".to_owned())].into());
        if name != "foreign" {
            registry.instances.remove(&(service, "ecs".into()));
        }
    }
    let alien = registry.add_namespace("alien", NamespaceKind::Http);
    registry.add_service(&alien, "web", "terraform", "");
    registry.add_namespace("vacant", NamespaceKind::Http);
}

async fn purge(fake: &Fake, cluster: Option<&str>) -> String {
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let cluster = cluster.map(|id| id.parse().unwrap());
    let remains = Remains::find(&cloudmap, &clusterset(), cluster.as_ref(), &Progress::default()).await.unwrap();
    let mut out = Vec::new();
    let before = fake.registry().calls.len();
    remains.list(&mut out).unwrap();
    assert_eq!(fake.registry().calls.len(), before);
    remains.remove(fake, &permit(), &mut out, &Progress::default()).await.unwrap();
    String::from_utf8(out).unwrap()
}

/// The names of namespaces, and of services with the ids in them.
fn there(fake: &Fake) -> BTreeMap<String, Vec<String>> {
    let registry = fake.registry();
    let mut there: BTreeMap<_, _> = registry.namespaces.iter().map(|n| (n.name.to_string(), vec![])).collect();
    for service in registry.services.values() {
        let namespace = registry.namespaces.iter().find(|n| Some(&n.id) == service.namespace_id.as_ref()).unwrap();
        let inside = registry.instances.keys().filter(|(id, _)| *id == service.id).map(|(_, id)| id.to_string());
        there.insert(format!("{}/{}", namespace.name, service.name), inside.collect());
    }
    there
}

#[tokio::test(start_paused = true)]
async fn a_clusters_leftovers_go_and_what_others_own_or_claim_stays() {
    let fake = Fake::new();
    drop((member(&fake, "blue", "blue").await, member(&fake, "green", "claimed").await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    shop(&fake);
    let before = there(&fake);
    let said = purge(&fake, Some("blue")).await;
    assert!(said.contains("The ledger itself stays, because green"), "{said}");
    let after = there(&fake);
    let expected: Vec<_> = before
        .keys()
        .filter(|name| !["clusterset-prod/exports-0.blue", "shop/blue", "shop/empty"].contains(&name.as_str()))
        .collect();
    assert_eq!(after.keys().collect::<Vec<_>>(), expected);
    assert_eq!(after["clusterset-prod/clusters"], ["green"]);
    assert_eq!(after["clusterset-prod/exports-0.green"], before["clusterset-prod/exports-0.green"]);
    assert_eq!(
        (&*after["shop/both"], &*after["shop/foreign"]),
        (&["k8s-green".to_owned()][..], &["ecs".to_owned()][..])
    );

    // Now it is the last cluster, so the whole ledger goes.
    let said = purge(&fake, Some("green")).await;
    assert!(!said.contains("stays"), "{said}");
    let after = there(&fake);
    assert_eq!(after.keys().collect::<Vec<_>>(), ["alien", "alien/web", "shop", "shop/foreign", "vacant"]);
    assert_eq!(after["shop/foreign"], ["ecs"]);
}

#[tokio::test(start_paused = true)]
async fn the_document_shows_what_is_printed() {
    let fake = Fake::new();
    drop((member(&fake, "my-dead-cluster", "my-service").await, member(&fake, "cluster-1", "web").await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    {
        let mut registry = fake.registry();
        let shop = registry.add_namespace("shop", NamespaceKind::Http);
        let creator = identity("cluster-1").creator_request_id(1);
        for (name, cluster) in [("my-service", "my-dead-cluster"), ("old", "my-dead-cluster"), ("web", "cluster-1")] {
            let service = registry.add_service(&shop, name, &creator, "");
            let attributes = [(attributes::CLUSTERSET, "prod"), (attributes::CLUSTER, cluster)];
            let attributes = attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            if name != "old" {
                registry.instances.insert((service, format!("k8s-{name}-1").into()), attributes);
            }
        }
    }
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let cluster = "my-dead-cluster".parse().unwrap();
    let mut out = Vec::new();
    Remains::find(&cloudmap, &clusterset(), Some(&cluster), &Progress::default())
        .await
        .unwrap()
        .list(&mut out)
        .unwrap();
    let said = String::from_utf8(out).unwrap();
    let document = base::repository().join("docs/leaving.md");
    let document = std::fs::read_to_string(document).unwrap();
    assert!(document.contains(&format!("$ purge --cluster my-dead-cluster --dry-run\n{said}```\n")), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_is_still_a_member_must_be_forgotten_first() {
    let fake = Fake::new();
    drop((member(&fake, "blue", "blue").await, member(&fake, "green", "claimed").await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let refused = async |cluster: Option<&str>| {
        let cluster = cluster.map(|id| id.parse().unwrap());
        let remains = Remains::find(&cloudmap, &clusterset(), cluster.as_ref(), &Progress::default()).await.unwrap();
        remains.refuse_if_held(cluster.as_ref()).err().map(|error| error.to_string())
    };
    let message = refused(Some("blue")).await.unwrap();
    assert!(message.contains("cloudmap-mcs forget blue"), "{message}");
    assert_eq!(refused(None).await, None, "nobody is left to keep anything");
    show::forget(Arc::new(fake.clone()), &permit(), &clusterset(), &"blue".parse().unwrap()).await.unwrap();
    assert_eq!(refused(Some("blue")).await, None);
    assert_eq!(refused(Some("green")).await, None, "the last one");
}

#[tokio::test(start_paused = true)]
async fn the_whole_clusterset_goes_with_its_namespaces() {
    let fake = Fake::new();
    drop((member(&fake, "blue", "blue").await, member(&fake, "green", "claimed").await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    shop(&fake);
    let foreign = fake.registry().services.values().find(|s| &*s.name == "foreign").unwrap().id.clone();
    fake.registry().services.remove(&foreign);
    fake.registry().instances.retain(|(service, _), _| *service != foreign);
    purge(&fake, None).await;
    assert_eq!(there(&fake).keys().collect::<Vec<_>>(), ["alien", "alien/web", "vacant"]);
    let calls = fake.registry().calls.len();
    let said = purge(&fake, None).await;
    assert!(said.contains("0 service(s) of the ledger, 0 instance(s) in 0 service(s), 0 namespace(s)"), "{said}");
    let again = fake.registry().calls[calls..].to_vec();
    let writes = [Operation::DeregisterInstance, Operation::DeleteService, Operation::DeleteNamespace];
    assert!(again.iter().all(|(operation, _)| !writes.contains(operation)), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn what_others_have_in_the_ledgers_namespace_stays() {
    let fake = Fake::new();
    drop((member(&fake, "blue", "blue").await, member(&fake, "green", "claimed").await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    {
        let mut registry = fake.registry();
        let namespace = registry.namespaces.iter().find(|it| &*it.name == "clusterset-prod").unwrap().id.clone();
        let foreign = registry.add_service(&namespace, "foreign", "terraform", "");
        registry.instances.insert((foreign, "blue".into()), [("ECS_CLUSTER_NAME".to_owned(), "x".to_owned())].into());
    }
    purge(&fake, Some("blue")).await;
    assert_eq!(there(&fake)["clusterset-prod/foreign"], ["blue"]);
    purge(&fake, None).await;
    let after = there(&fake);
    assert_eq!(after.keys().collect::<Vec<_>>(), ["clusterset-prod", "clusterset-prod/foreign"]);
    assert_eq!(after["clusterset-prod/foreign"], ["blue"]);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_left_does_not_recreate_the_ledger_until_it_rejoins() {
    let fake = Fake::new();
    let record = Arc::<Stored>::default();
    let blue = member_with(&fake, "blue", "blue", Arc::clone(&record)).await;
    set_leaving(&record, true);
    blue.desired().send_replace(Some(Arc::default()));
    let mut status = blue.status();
    let left = tokio::time::timeout(Duration::from_mins(5), status.wait_for(|status| status.stage == Stage::Left));
    drop(left.await.unwrap().unwrap());
    purge(&fake, None).await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(there(&fake).is_empty(), "{:?}", there(&fake));
    }
    set_leaving(&record, false);
    publish(&blue, &Arc::new(Map::from([("ns/a".into(), Value::from([1]))]))).await;
    assert_eq!(there(&fake)["clusterset-prod/clusters"], ["blue"]);
}

#[tokio::test(start_paused = true)]
async fn a_live_controller_prevents_the_purge_and_a_dead_one_does_not() {
    let fake = Fake::new();
    let blue = member(&fake, "blue", "blue").await;
    drop(member(&fake, "green", "claimed").await);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let refused = async |cluster: Option<&str>| {
        let cluster = cluster.map(|id| id.parse().unwrap());
        refuse_if_alive(&cloudmap, &clusterset(), cluster.as_ref(), false).await.err().map(|error| error.to_string())
    };
    for concerned in [None, Some("blue")] {
        let message = refused(concerned).await.unwrap();
        assert!(message.contains("blue is alive") && !message.contains("green"), "{message}");
    }
    assert_eq!(refused(Some("green")).await, None);
    drop(blue);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(refused(None).await, None);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_superfluous_while_the_claims_of_a_member_cannot_be_read() {
    let fake = Fake::new();
    drop((member(&fake, "blue", "blue").await, member(&fake, "green", "claimed").await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    shop(&fake);
    let of_green = fake.registry().services.values().find(|s| &*s.name == "exports-0.green").unwrap().id.clone();
    let pages: Vec<_> = fake.registry().instances.keys().filter(|(id, _)| *id == of_green).cloned().collect();
    fake.registry().undiscovered.extend(pages);
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let (clusterset, blue) = (clusterset(), "blue".parse().unwrap());
    let found = Remains::find(&cloudmap, &clusterset, Some(&blue), &Progress::default()).await;
    let message = found.err().unwrap().to_string();
    assert!(message.contains("cannot read what cluster green claims"), "{message}");
    // Who is to be purged need not be readable, and nothing is left to claim anything after all.
    let green = "green".parse().unwrap();
    assert!(Remains::find(&cloudmap, &clusterset, Some(&green), &Progress::default()).await.is_ok());
    assert!(Remains::find(&cloudmap, &clusterset, None, &Progress::default()).await.is_ok());

    let show_again = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        fake.registry().undiscovered.clear();
    };
    let progress = Progress::default();
    let (found, ()) = tokio::join!(Remains::find(&cloudmap, &clusterset, Some(&blue), &progress), show_again);
    let superfluous = found.unwrap().leftovers.into_iter().filter(|leftover| leftover.superfluous);
    assert!(superfluous.map(|leftover| leftover.service.name).all(|name| *name != *"claimed"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_superfluous_while_the_head_of_a_member_is_not_shown() {
    let fake = Fake::new();
    drop((member(&fake, "blue", "blue").await, member(&fake, "green", "claimed").await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    shop(&fake);
    let head = (heads(&fake), "green".into());
    fake.registry().undiscovered.insert(head);
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let found = Remains::find(&cloudmap, &clusterset(), Some(&"blue".parse().unwrap()), &Progress::default()).await;
    let message = found.err().unwrap().to_string();
    assert!(message.contains("what cluster green claims: discovery does not show its head"), "{message}");
    // Nor may green be purged: its head may say that it is a member.
    let found = Remains::find(&cloudmap, &clusterset(), Some(&"green".parse().unwrap()), &Progress::default()).await;
    let message = found.err().unwrap().to_string();
    assert!(message.contains("run `cloudmap-mcs forget green` first"), "{message}");
    assert!(Remains::find(&cloudmap, &clusterset(), None, &Progress::default()).await.is_ok());
}

/// The service of all heads.
pub(crate) fn heads(fake: &Fake) -> Arc<str> {
    fake.registry().services.values().find(|service| *service.name == *ledger::CLUSTERS).unwrap().id.clone()
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_head_cannot_be_read_is_not_purged() {
    let fake = Fake::new();
    drop((member(&fake, "blue", "blue").await, member(&fake, "green", "claimed").await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    let key: (Arc<str>, Arc<str>) = (heads(&fake), "blue".into());
    fake.registry().instances.get_mut(&key).unwrap().insert("c".to_owned(), "0".to_owned());
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    for concerned in [None, Some("blue".parse().unwrap())] {
        let refused = refuse_if_alive(&cloudmap, &clusterset(), concerned.as_ref(), false).await;
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("the head of cluster blue cannot be read"), "{message}");
    }
    let green: ClusterId = "green".parse().unwrap();
    refuse_if_alive(&cloudmap, &clusterset(), Some(&green), false).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_head_that_appears_while_watching_prevents_the_purge() {
    let fake = Fake::new();
    drop((member(&fake, "blue", "blue").await, member(&fake, "green", "claimed").await));
    tokio::time::sleep(Duration::from_secs(30)).await;
    let key: (Arc<str>, Arc<str>) = (heads(&fake), "blue".into());
    let head = fake.registry().instances.remove(&key).unwrap();
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let (clusterset, blue): (_, ClusterId) = (clusterset(), "blue".parse().unwrap());
    let remains = Remains::find(&cloudmap, &clusterset, Some(&blue), &Progress::default()).await.unwrap();
    assert!(remains.headless, "its pages are there");
    let watched = async || refuse_if_alive(&cloudmap, &clusterset, Some(&blue), remains.headless).await;
    watched().await.unwrap();
    let appears = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        fake.registry().instances.insert(key, head);
    };
    let (refused, ()) = tokio::join!(watched(), appears);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("blue is alive"), "{message}");
    let green: ClusterId = "green".parse().unwrap();
    assert!(!Remains::find(&cloudmap, &clusterset, Some(&green), &Progress::default()).await.unwrap().headless);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_somebody_deletes_meanwhile_stops_no_purge() {
    let fake = Fake::new();
    shop(&fake);
    let foreign = fake.registry().services.values().find(|service| &*service.name == "foreign").unwrap().id.clone();
    fake.registry().failing.insert(foreign, ErrorKind::NotFound);
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let remains = Remains::find(&cloudmap, &clusterset(), None, &Progress::default()).await.unwrap();
    assert!(remains.leftovers.iter().all(|leftover| *leftover.service.name != *"foreign"));
    // Its namespace stays: a listing shows it.
    assert!(!remains.leftovers.is_empty() && remains.namespaces.is_empty());
}

#[tokio::test(start_paused = true)]
async fn purge_fails_if_something_is_not_empty() {
    let fake = Fake::new();
    shop(&fake);
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let remains = Remains::find(&cloudmap, &clusterset(), None, &Progress::default()).await.unwrap();
    let empty = fake.registry().services.values().find(|service| &*service.name == "empty").unwrap().id.clone();
    fake.registry().instances.insert((empty, "ecs".into()), [("ECS_CLUSTER_NAME".to_owned(), "x".to_owned())].into());
    let mut out = Vec::new();
    let error = remains.remove(&fake, &permit(), &mut out, &Progress::default()).await.unwrap_err().to_string();
    assert!(error.contains("the service shop/empty is left"), "{error}");
    let said = String::from_utf8(out).unwrap();
    assert!(said.contains("not empty") && !said.contains("Removed."), "{said}");
    assert!(!there(&fake).contains_key("shop/blue"), "the others are removed nevertheless");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_aws_does_not_remove_is_named() {
    let fake = Fake::new();
    shop(&fake);
    let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
    let remains = Remains::find(&cloudmap, &clusterset(), None, &Progress::default()).await.unwrap();
    for operation in [Operation::DeregisterInstance, Operation::GetOperation] {
        fake.fault(operation, Fault::Refused(ErrorKind::AccessDenied));
        let error = format!(
            "{:#}",
            remains.remove(&fake, &permit(), &mut std::io::sink(), &Progress::default()).await.unwrap_err()
        );
        assert!(error.contains(" k8s-") && error.contains(operation.name()), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn namespaces_go_by_name_if_they_are_empty_and_ours_and_nobody_claims_them() {
    let fake = Fake::new();
    let blue = member(&fake, "blue", "blue").await;
    shop(&fake);
    for name in ["junk-1", "junk-2", "used"] {
        let mut registry = fake.registry();
        let id = registry.add_namespace(name, NamespaceKind::Http);
        registry.tags.insert(format!("arn:{id}").into(), identity("blue").tags());
        if name == "used" {
            registry.add_service(&id, "web", "terraform", "");
        }
    }
    let purge = async |names: &[&str], dry_run: bool| {
        let (names, mut out) = (names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), Vec::new());
        let result =
            namespaces::purge(Arc::new(fake.clone()), &permit(), &clusterset(), &names, dry_run, &mut out).await;
        (String::from_utf8(out).unwrap(), result.err().map(|error| error.to_string()).unwrap_or_default())
    };
    let before = there(&fake);
    assert_eq!(
        purge(&["junk-1", "junk-2"], true).await,
        ("namespace  junk-1\nnamespace  junk-2\n".to_owned(), String::new())
    );
    assert_eq!(there(&fake), before, "a dry run removes nothing");

    // What can go goes. The cluster lives, and claims shop/blue.
    let (said, error) = purge(&["junk-1", "shop", "used", "vacant", "missing"], false).await;
    assert!(said.contains("junk-1") && !said.contains("Removed"), "{said}");
    for why in [
        "a cluster claims shop/blue",
        "used has services, such as web",
        "vacant was not made by",
        "there is no Cloud Map namespace missing",
    ] {
        assert!(error.contains(why), "{error}");
    }
    let gone = |name: &String| !there(&fake).contains_key(name);
    assert_eq!(before.keys().filter(|name| gone(name)).collect::<Vec<_>>(), ["junk-1"]);
    let (said, error) = purge(&["junk-2"], false).await;
    assert!(said.ends_with("Removed.\n") && error.is_empty(), "{said}{error}");

    // Who cannot be read may claim it.
    drop(blue);
    fake.registry().add_namespace("junk-1", NamespaceKind::Http);
    let key: (Arc<str>, Arc<str>) = (heads(&fake), "blue".into());
    fake.registry().instances.get_mut(&key).unwrap().insert("c".to_owned(), "0".to_owned());
    let (_, error) = purge(&["junk-1"], false).await;
    assert!(error.contains("cannot read what cluster blue claims"), "{error}");
}

/// It goes on elsewhere, so nobody would miss what it left.
#[test]
fn what_a_cluster_left_in_its_former_home_may_go() {
    let (blue, prod) = ("blue".parse().unwrap(), clusterset().to_string());
    let at = |epoch| {
        let view = crate::status::tests::view("blue");
        let position = Position { epoch, seq: 1 };
        let head = Head { position, ..Head::clone(view.head.as_deref().unwrap()) };
        ClusterView { head: Some(Arc::new(head)), ..view }
    };
    let moved = |here, there| has_moved(&AllLedgers { home: vec![here], others: vec![("us".into(), there)] }, &blue);
    assert!(moved(at(1), Ok(vec![at(2)])));
    assert!(!moved(at(2), Ok(vec![at(1)])), "it is here again");
    assert!(!moved(at(1), Ok(Vec::new())) && !moved(at(1), Err(show::Error::NoLedger(prod))));
    let stranger = ClusterView { creator: Some("uid-else".to_owned()), ..at(2) };
    assert!(!moved(at(1), Ok(vec![stranger])), "somebody says its UID");
}
