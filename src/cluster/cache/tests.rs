use std::collections::BTreeSet;

use k8s_openapi::api::core::v1;

use super::*;
use crate::objects::Service;
use ::model::ServiceKey;

type Events = Vec<Event<Result<v1::Service, Box<InvalidObject>>>>;

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("ns", name)
}

fn service(name: &str, port: u16) -> v1::Service {
    serde_json::from_value(serde_json::json!({
        "metadata": {"namespace": "ns", "name": name, "uid": name},
        "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": port}]},
    }))
    .unwrap()
}

fn unreadable(name: &str) -> Result<v1::Service, Box<InvalidObject>> {
    let metadata = service(name, 1).metadata;
    Err(Box::new(InvalidObject { error: "invalid type".to_owned(), metadata }))
}

fn listed(services: &[(&str, u16)]) -> Events {
    let objects = services.iter().map(|(name, port)| Event::InitApply(Ok(service(name, *port))));
    [Event::Init].into_iter().chain(objects).chain([Event::InitDone]).collect()
}

/// The changes as text: `+name:port`, `~name:port`, `-name`, and `*name` of one that came and went.
fn words(changes: Vec<Change<Service>>) -> BTreeSet<String> {
    changes
        .into_iter()
        .map(|Change { key, old, new }| match (old, new) {
            (None, Some(new)) => format!("+{}:{}", key.name, new.ports[0].port),
            (Some(_), Some(new)) => format!("~{}:{}", key.name, new.ports[0].port),
            (Some(_), None) => format!("-{}", key.name),
            (None, None) => format!("*{}", key.name),
        })
        .collect()
}

fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(ToString::to_string).collect()
}

struct Fixture {
    cache: Cache<Service>,
    writer: Writer<Service>,
    changes: Changes<Service>,
}

impl Fixture {
    fn new() -> Self {
        let (cache, writer) = Cache::new();
        let changes = cache.subscribe();
        Self { cache, writer, changes }
    }

    fn feed(&mut self, events: Events) -> BTreeSet<String> {
        for event in events {
            self.writer.apply(event);
        }
        words(self.changes.take())
    }
}

#[test]
fn the_first_list_syncs_and_reports_everything() {
    let mut fixture = Fixture::new();
    assert!(!fixture.cache.is_synced());
    assert_eq!(fixture.feed(listed(&[("a", 1), ("b", 2)])), set(&["+a:1", "+b:2"]));
    assert!(fixture.cache.is_synced());
    assert_eq!(fixture.cache.len(), 2);
}

#[test]
fn an_empty_list_syncs_too() {
    let mut fixture = Fixture::new();
    fixture.feed(listed(&[]));
    assert!(fixture.cache.is_synced());
}

#[test]
fn changes_and_deletions_are_reported_with_the_previous_object() {
    let mut fixture = Fixture::new();
    fixture.feed(listed(&[("a", 1)]));
    assert_eq!(fixture.feed(vec![Event::Apply(Ok(service("a", 2)))]), set(&["~a:2"]));
    assert_eq!(fixture.feed(vec![Event::Delete(Ok(service("a", 2)))]), set(&["-a"]));
    assert!(fixture.cache.get(&key("a")).is_none());
}

#[test]
fn an_event_that_changes_no_kept_field_is_not_a_change() {
    let mut fixture = Fixture::new();
    fixture.feed(listed(&[("a", 1)]));
    let mut touched = service("a", 1);
    touched.metadata.resource_version = Some("2".to_owned());
    touched.metadata.annotations = Some([("kubectl.kubernetes.io/x".to_owned(), "y".to_owned())].into());
    assert_eq!(fixture.feed(vec![Event::Apply(Ok(touched))]), set(&[]));
    assert_eq!(fixture.feed(listed(&[("a", 1)])), set(&[]));
}

#[test]
fn objects_that_vanished_during_a_broken_watch_are_reported_when_the_list_is_complete() {
    let mut fixture = Fixture::new();
    fixture.feed(listed(&[("a", 1), ("b", 2)]));
    assert_eq!(fixture.feed(vec![Event::Init, Event::InitApply(Ok(service("c", 3)))]), set(&["+c:3"]));
    assert!(fixture.cache.get(&key("a")).is_some(), "nothing is removed before the end of the list");
    assert_eq!(fixture.feed(vec![Event::InitDone]), set(&["-a", "-b"]));
}

#[test]
fn a_list_that_starts_again_forgets_the_objects_of_the_broken_one() {
    let mut fixture = Fixture::new();
    fixture.feed(listed(&[("a", 1), ("b", 2)]));
    // The broken list contained `a`, which is gone when the second list begins.
    fixture.feed(vec![Event::Init, Event::InitApply(Ok(service("a", 1)))]);
    assert_eq!(fixture.feed(listed(&[("b", 2)])), set(&["-a"]));
}

#[test]
fn an_object_that_cannot_be_parsed_stays_as_it_was_and_affects_no_other() {
    let mut fixture = Fixture::new();
    fixture.feed(listed(&[("a", 1)]));
    assert!(fixture.writer.apply(Event::Apply(unreadable("a"))).is_some());
    let relist =
        vec![Event::Init, Event::InitApply(unreadable("a")), Event::InitApply(Ok(service("b", 2))), Event::InitDone];
    assert_eq!(fixture.feed(relist), set(&["+b:2"]));
    assert_eq!(fixture.cache.get(&key("a")).unwrap().ports[0].port, 1);
    assert_eq!(fixture.feed(vec![Event::Delete(unreadable("a"))]), set(&["-a"]));
}

#[test]
fn a_slow_subscriber_gets_each_key_once_since_its_last_look() {
    let mut fixture = Fixture::new();
    fixture.feed(listed(&[("a", 1), ("b", 1), ("c", 1)]));
    let events = vec![
        Event::Apply(Ok(service("a", 2))),
        Event::Apply(Ok(service("a", 3))),
        Event::Apply(Ok(service("b", 2))),
        Event::Apply(Ok(service("b", 1))),
        Event::Delete(Ok(service("c", 1))),
        Event::Apply(Ok(service("d", 1))),
        Event::Delete(Ok(service("d", 1))),
    ];
    // Whoever read the cache meanwhile has seen that `b` was something else, and that there was a `d`.
    assert_eq!(fixture.feed(events), set(&["~a:3", "~b:1", "-c", "*d"]));
}

#[test]
fn a_late_subscriber_starts_with_all_objects() {
    let mut fixture = Fixture::new();
    fixture.feed(listed(&[("a", 1)]));
    let mut late = fixture.cache.subscribe();
    fixture.writer.apply(Event::Apply(Ok(service("a", 2))));
    assert_eq!(words(late.take()), set(&["+a:2"]));
    fixture.writer.apply(Event::Delete(Ok(service("a", 2))));
    assert_eq!(words(late.take()), set(&["-a"]));
}

mod model {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Apply(u8, u16),
        Delete(u8),
        Unreadable(u8),
        /// A list of these objects; it may break off before its end.
        List(BTreeMap<u8, u16>, bool),
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        let (name, port) = (0..6u8, 1..4u16);
        prop_oneof![
            (name.clone(), port.clone()).prop_map(|(name, port)| Step::Apply(name, port)),
            name.clone().prop_map(Step::Delete),
            name.clone().prop_map(Step::Unreadable),
            (prop::collection::btree_map(name, port, 0..6), any::<bool>())
                .prop_map(|(list, ends)| Step::List(list, ends)),
            Just(Step::Take),
        ]
    }

    fn name(name: u8) -> String {
        name.to_string()
    }

    proptest! {
        /// No matter what happens and when a subscriber looks, the changes that it takes add up to the content of the
        /// cache, and each one begins where the previous one ended. After a complete list, the cache contains the
        /// objects of the list.
        #[test]
        fn changes_add_up_to_the_cache(steps in prop::collection::vec(step(), 0..40)) {
            let mut fixture = Fixture::new();
            let mut seen: BTreeMap<ServiceKey, Arc<Service>> = BTreeMap::new();
            for step in steps.into_iter().chain([Step::Take]) {
                match step {
                    Step::Apply(of, port) => drop(fixture.writer.apply(Event::Apply(Ok(service(&name(of), port))))),
                    Step::Delete(of) => drop(fixture.writer.apply(Event::Delete(Ok(service(&name(of), 1))))),
                    Step::Unreadable(of) => drop(fixture.writer.apply(Event::Apply(unreadable(&name(of))))),
                    Step::List(list, ends) => {
                        fixture.writer.apply(Event::Init);
                        for (of, port) in &list {
                            fixture.writer.apply(Event::InitApply(Ok(service(&name(*of), *port))));
                        }
                        if ends {
                            fixture.writer.apply(Event::InitDone);
                            let held = fixture.cache.read(|objects| {
                                objects.iter().map(|(key, held)| (key.name.to_string(), held.ports[0].port)).collect()
                            });
                            let named: BTreeMap<_, _> = list.iter().map(|(of, port)| (name(*of), *port)).collect();
                            prop_assert_eq!(named, held);
                        }
                    }
                    Step::Take => {
                        for Change { key, old, new } in fixture.changes.take() {
                            let before = match new {
                                Some(new) => seen.insert(key, new),
                                None => seen.remove(&key),
                            };
                            prop_assert_eq!(before, old);
                        }
                        let held = fixture.cache.read(|objects| objects.clone().into_iter().collect::<BTreeMap<_, _>>());
                        prop_assert_eq!(&seen, &held);
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_not_watched_is_never_in_trouble() {
    let cache = Cache::<Service>::without_objects();
    tokio::time::advance(2 * STALE_AFTER).await;
    cache.refresh().await;
    assert_eq!((cache.trouble(), cache.age()), (None, Duration::ZERO));
}

#[tokio::test]
async fn waiting_for_changes_ends_with_the_next_one() {
    let (cache, mut writer) = Cache::<Service>::new();
    let mut changes = cache.subscribe();
    let waiting = tokio::spawn(async move { words(changes.next().await) });
    tokio::task::yield_now().await;
    writer.apply(Event::Apply(Ok(service("a", 1))));
    assert_eq!(waiting.await.unwrap(), set(&["+a:1"]));
}
