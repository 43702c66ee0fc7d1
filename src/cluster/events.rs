//! Events (events.k8s.io) about users' objects, and about the controller's Lease.
//!
//! This is not kube's `Recorder`, which repeats the text of the first Event for six minutes, even if later texts
//! differ. Emit Events only when something changes. This needs the permission `create` on events.k8s.io Events. The
//! Events that wait are limited in number and size ([`Outbox`]), so nobody can fill the controller's memory by changing
//! an object faster than Events can be created.

use std::{
    collections::{HashMap, VecDeque},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Namespace, ObjectReference},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, Resource, api::PostParams};
use prometheus::IntCounter;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tracing::warn;

use super::{apply::Cause, lease::LEASE, metrics::Metrics, objects::ObjectKey};
use api::{Cutover, ServiceExport, ServiceImport, events::EventReason, names};
use base::env;
use model::ServiceKey;

/// Maximum length of the text in the API, in bytes.
const MAX_NOTE: usize = 1024;

/// Maximum length of an object's name.
const MAX_NAME: usize = 253;

/// The same Event about the same object is not created again within this time, so a condition that flaps fills no list
/// of Events.
const REPEAT_AFTER: Duration = Duration::from_mins(10);

/// How many Events are remembered for this. Beyond that, old ones are forgotten.
const REMEMBERED: usize = 4096;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of attempts to create an Event, and the pause after the first attempt; the second pause is twice as long.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// How many Events can wait. Beyond that, the oldest one is dropped.
const WAITING: usize = 1024;

/// How many Events about one object with one reason can wait, so that one tenant does not displace the Events of
/// others.
const WAITING_ALIKE: usize = 8;

/// An Event to be emitted.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRecord {
    /// The object, with kind, name and uid. `kubectl describe` finds the Event by the uid. Only the Lease may lack it here.
    pub regarding: ObjectReference,
    /// The reason: that of the condition that changed, if there is one.
    pub reason: EventReason,
    /// The action in CamelCase, such as `Export` or `Register`.
    pub action: &'static str,
    /// The text. It is cut at 1,024 bytes.
    pub text: String,
}

impl EventRecord {
    fn cut(&mut self) {
        self.text.truncate(self.text.floor_char_boundary(MAX_NOTE));
        self.text.shrink_to_fit();
    }
}

/// Events that wait to be created, the oldest first. Clones are cheap and share the queue.
///
/// An Event that already waits is not added again. At most 1,024 wait, and at most 8 about one object with one reason;
/// the oldest ones make room.
#[derive(Debug, Clone)]
pub struct Outbox(Arc<Waiting>);

#[derive(Debug)]
struct Waiting {
    notes: Mutex<VecDeque<EventRecord>>,
    filled: Notify,
    dropped: IntCounter,
}

impl Outbox {
    /// An empty queue. `dropped` counts the Events that had to make room for others.
    pub fn new(dropped: IntCounter) -> Self {
        Self(Arc::new(Waiting { notes: Mutex::default(), filled: Notify::new(), dropped }))
    }

    /// Adds an Event. Its text is cut here.
    pub fn send(&self, mut note: EventRecord) {
        note.cut();
        let mut notes = self.0.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.contains(&note) {
            return;
        }
        let alike = |waiting: &EventRecord| waiting.reason == note.reason && waiting.regarding == note.regarding;
        let superseded = if notes.iter().filter(|waiting| alike(waiting)).count() >= WAITING_ALIKE {
            notes.iter().position(alike)
        } else {
            (notes.len() >= WAITING).then_some(0)
        };
        if superseded.and_then(|oldest| notes.remove(oldest)).is_some() {
            self.0.dropped.inc();
        }
        notes.push_back(note);
        self.0.filled.notify_one();
    }

    /// Waits for the next Event and removes it. Cancel-safe.
    pub async fn next(&self) -> EventRecord {
        loop {
            let note = {
                let mut notes = self.0.notes.lock().unwrap_or_else(PoisonError::into_inner);
                let note = notes.pop_front();
                if notes.is_empty() {
                    // An emptied queue keeps its memory.
                    *notes = VecDeque::new();
                }
                note
            };
            if let Some(note) = note {
                return note;
            }
            self.0.filled.notified().await;
        }
    }
}

/// A reference to a ServiceExport.
pub fn export(key: &ServiceKey, uid: &str) -> ObjectReference {
    reference::<ServiceExport>(key, uid)
}

/// A reference to a ServiceImport.
pub fn import(key: &ServiceKey, uid: &str) -> ObjectReference {
    reference::<ServiceImport>(key, uid)
}

/// A reference to a Service.
pub fn service(key: &ServiceKey, uid: &str) -> ObjectReference {
    reference::<k8s_openapi::api::core::v1::Service>(key, uid)
}

/// A reference to an Ingress.
pub fn ingress(key: &ServiceKey, uid: &str) -> ObjectReference {
    reference::<k8s_openapi::api::networking::v1::Ingress>(key, uid)
}

/// A reference to a Pod.
pub fn pod(key: &ObjectKey, uid: &str) -> ObjectReference {
    reference::<k8s_openapi::api::core::v1::Pod>(&ServiceKey::new(&*key.namespace, &*key.name), uid)
}

/// A reference to a Cutover.
pub fn cutover(key: &ServiceKey, uid: &str) -> ObjectReference {
    reference::<Cutover>(key, uid)
}

/// A reference to the controller's Lease in its own namespace, for Events that concern no user's object. [`Publisher`] adds
/// the uid.
pub fn lease(namespace: &str) -> ObjectReference {
    ObjectReference { uid: None, ..reference::<Lease>(&ServiceKey::new(namespace, LEASE), "") }
}

/// A reference to a Namespace from within it. Events about objects without a namespace would be in `default`, where
/// nobody looks for them.
pub fn namespace(name: &str, uid: &str) -> ObjectReference {
    reference::<Namespace>(&ServiceKey::new(name, name), uid)
}

fn reference<K: Resource<DynamicType = ()>>(key: &ServiceKey, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        namespace: Some(key.namespace.to_string()),
        name: Some(key.name.to_string()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// Creates Events. Clones are cheap.
#[derive(Clone)]
pub struct Publisher {
    client: Client,
    /// Name of this replica.
    instance: Arc<str>,
    metrics: Metrics,
    said: Arc<Mutex<RecentEvents>>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl Publisher {
    /// Creates Events through `client`. `instance` is the name of the pod, at most 128 characters.
    pub fn new(client: Client, instance: &str, metrics: Metrics) -> Self {
        Self { client, instance: instance.into(), metrics, said: Arc::default() }
    }

    /// Creates an Event. A failure is only logged and counted, because nothing may depend on an Event.
    pub async fn publish(&self, mut note: EventRecord) {
        note.cut();
        let new = self.said.lock().unwrap_or_else(PoisonError::into_inner).is_new(&note, Instant::now());
        if !new {
            self.metrics.events.with_label_values(&["repeated"]).inc();
            return;
        }
        let namespace = note.regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
        if note.regarding.uid.is_none() {
            note.regarding.uid = self.lease_uid(&namespace).await;
        }
        let event = event(note, &self.instance, env::timestamp());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let mut attempt = 1;
        let outcome = loop {
            let error = match timeout(CALL_TIMEOUT, api.create(&PostParams::default(), &event)).await {
                Ok(Ok(_)) => break "ok",
                Ok(Err(error)) => Cause::from(error),
                Err(_) => Cause::Timeout,
            };
            // If the server is busy or briefly away, another attempt is worth it. The name ensures that the Event is
            // created only once.
            if matches!(error, Cause::Unavailable(_)) && attempt < ATTEMPTS {
                sleep(PAUSE * attempt).await;
                attempt += 1;
                continue;
            }
            // An earlier attempt created it, and the answer was lost.
            if matches!(error, Cause::Conflict(_)) && attempt > 1 {
                break "ok";
            }
            warn!(%error, reason = event.reason, "failed to create an Event");
            break if matches!(error, Cause::Timeout) { "timeout" } else { "failed" };
        };
        self.metrics.events.with_label_values(&[outcome]).inc();
    }

    /// It is another one after somebody deleted the Lease, so it is not kept. Without an answer the Event is created all the
    /// same.
    async fn lease_uid(&self, namespace: &str) -> Option<String> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        timeout(CALL_TIMEOUT, api.get(LEASE)).await.ok()?.ok()?.metadata.uid
    }
}

/// Suppresses Events that repeat a recent one. Keeps a hash of the object's uid, the reason and the text of each.
#[derive(Debug, Default)]
struct RecentEvents(HashMap<u64, Instant>);

impl RecentEvents {
    fn is_new(&mut self, note: &EventRecord, now: Instant) -> bool {
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, at| now.duration_since(*at) < REPEAT_AFTER);
        }
        if self.0.len() >= REMEMBERED {
            self.0.clear();
        }
        let mut said = DefaultHasher::new();
        (&note.regarding.uid, note.reason, &note.text).hash(&mut said);
        let said = said.finish();
        let is_new = self.0.get(&said).is_none_or(|at| now.duration_since(*at) >= REPEAT_AFTER);
        if is_new {
            self.0.insert(said, now);
        }
        is_new
    }
}

fn event(note: EventRecord, instance: &str, now: Timestamp) -> Event {
    let EventRecord { regarding, reason, action, text } = note;
    Event {
        metadata: ObjectMeta {
            namespace: regarding.namespace.clone(),
            name: Some(event_name(regarding.name.as_deref().unwrap_or(names::CONTROLLER), now)),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(names::CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(reason.severity().as_str().to_owned()),
        reason: Some(reason.as_str().to_owned()),
        action: Some(action.to_owned()),
        note: Some(text),
        regarding: Some(regarding),
        ..Event::default()
    }
}

/// The name that client-go would give: the object, a dot, and the time in hexadecimal. It has at most 253 characters,
/// and the part before the dot must end in a letter or digit.
fn event_name(object: &str, now: Timestamp) -> String {
    let object = &object[..object.floor_char_boundary(MAX_NAME - 33)];
    format!("{}.{:x}", object.trim_end_matches(['-', '.']), now.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: &str) -> EventRecord {
        EventRecord {
            regarding: export(&ServiceKey::new("ns", "web"), "u"),
            reason: EventReason::NameConflict,
            action: "Register",
            text: text.to_owned(),
        }
    }

    #[test]
    fn an_event_names_the_object_by_uid_and_fits_the_api() {
        let mut long = note(&"é".repeat(1000));
        long.cut();
        let event = event(long, "pod-1", Timestamp::UNIX_EPOCH);
        assert!(event.note.unwrap().len() <= MAX_NOTE);
        let regarding = event.regarding.unwrap();
        assert_eq!(regarding.api_version.as_deref(), Some("multicluster.x-k8s.io/v1beta1"));
        assert_eq!((regarding.kind.as_deref(), regarding.uid.as_deref()), (Some("ServiceExport"), Some("u")));
        assert_eq!((event.metadata.namespace.as_deref(), event.type_.as_deref()), (Some("ns"), Some("Warning")));
        let lease = lease("system");
        assert_eq!(lease.api_version.as_deref(), Some("coordination.k8s.io/v1"));
        assert_eq!((lease.kind.as_deref(), lease.namespace.as_deref()), (Some("Lease"), Some("system")));
    }

    /// The API server refuses `web.` and `web-.x` as names.
    #[test]
    fn an_event_has_a_name_that_the_api_server_accepts() {
        let now = Timestamp::from_second(1).unwrap();
        assert_eq!(event_name("web", now), "web.3b9aca00");
        let long = event_name(&format!("{}-{}", "a".repeat(MAX_NAME - 34), "b".repeat(33)), Timestamp::MAX);
        assert!(long.len() <= MAX_NAME && !long.contains("-."), "{long}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_event_is_not_repeated_but_a_new_one_is_created() {
        let mut said = RecentEvents::default();
        assert!(said.is_new(&note("a"), Instant::now()));
        assert!(!said.is_new(&note("a"), Instant::now()));
        assert!(said.is_new(&note("b"), Instant::now()));
        tokio::time::advance(REPEAT_AFTER).await;
        assert!(said.is_new(&note("a"), Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_recurring_event_is_created_every_ten_minutes() {
        let mut said = RecentEvents::default();
        for new in [true, false, true] {
            assert_eq!(said.is_new(&note("a"), Instant::now()), new);
            tokio::time::advance(Duration::from_mins(6)).await;
        }
    }

    #[tokio::test]
    async fn the_number_of_remembered_events_is_bounded() {
        let mut said = RecentEvents::default();
        for n in 0..3 * REMEMBERED {
            said.is_new(&note(&n.to_string()), Instant::now());
        }
        assert!(said.0.len() <= REMEMBERED);
    }

    #[test]
    fn events_of_other_objects_or_with_another_reason_are_others() {
        let mut said = RecentEvents::default();
        assert!(said.is_new(&note("a"), Instant::now()));
        let other = |uid: &str| EventRecord { regarding: export(&ServiceKey::new("ns", "web"), uid), ..note("a") };
        assert!(said.is_new(&other("another"), Instant::now()));
        assert!(said.is_new(&EventRecord { reason: EventReason::NoService, ..note("a") }, Instant::now()));
        assert!(!said.is_new(&other("another"), Instant::now()));
    }

    fn outbox() -> Outbox {
        Outbox::new(IntCounter::new("dropped", "dropped").unwrap())
    }

    fn waiting(outbox: &Outbox) -> Vec<EventRecord> {
        outbox.0.notes.lock().unwrap().iter().cloned().collect()
    }

    /// An annotation of 200 KB that is changed 1,300 times while the API server takes no Events.
    #[test]
    fn the_events_that_wait_are_bounded_no_matter_what_a_tenant_does() {
        let outbox = outbox();
        outbox.send(EventRecord { reason: EventReason::NoService, ..note("of somebody else") });
        for n in 0..1300 {
            outbox.send(note(&format!("{n} {}", "x".repeat(200_000))));
        }
        let notes = waiting(&outbox);
        assert_eq!(notes.len(), 1 + WAITING_ALIKE);
        assert!(notes.iter().all(|note| note.text.capacity() <= MAX_NOTE));
        assert_eq!(notes[0].text, "of somebody else");
        assert!(notes[1].text.starts_with("1292 ") && notes[8].text.starts_with("1299 "), "the newest stay");
        assert_eq!(outbox.0.dropped.get(), 1292);
        for n in 0..2 * WAITING {
            outbox
                .send(EventRecord { regarding: export(&ServiceKey::new("ns", &*n.to_string()), "u"), ..note("text") });
        }
        assert_eq!(waiting(&outbox).len(), WAITING);
    }

    #[tokio::test]
    async fn after_many_events_none_of_their_memory_is_kept() {
        let outbox = outbox();
        for n in 0..WAITING {
            outbox
                .send(EventRecord { regarding: export(&ServiceKey::new("ns", &*n.to_string()), "u"), ..note("text") });
        }
        for _ in 0..WAITING {
            drop(outbox.next().await);
        }
        assert_eq!(outbox.0.notes.lock().unwrap().capacity(), 0);
    }

    #[tokio::test]
    async fn events_are_taken_in_order_and_each_once() {
        let outbox = outbox();
        for text in ["a", "b", "a"] {
            outbox.send(note(text));
        }
        assert_eq!((outbox.next().await.text, outbox.next().await.text), ("a".to_owned(), "b".to_owned()));
        let next = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.next().await.text }
        });
        tokio::task::yield_now().await;
        outbox.send(note("a"));
        assert_eq!(next.await.unwrap(), "a");
        assert_eq!(outbox.0.dropped.get(), 0);
    }

    /// `kubectl describe lease` shows only Events with the uid of the Lease.
    #[tokio::test]
    async fn an_event_about_the_lease_has_its_uid_if_the_api_server_says_it() {
        let api = crate::fake_api::FakeApi::default();
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let publisher = Publisher::new(api.client(), "pod", metrics.clone());
        let about = |text: &str| EventRecord { regarding: lease("system"), ..note(text) };
        publisher.publish(about("a")).await;
        api.refuse(403, "Forbidden", "no");
        publisher.publish(about("b")).await;
        let requests = api.requests();
        assert_eq!(requests[0].path, "/apis/coordination.k8s.io/v1/namespaces/system/leases/cloudmap-mcs");
        assert_eq!(requests[1].body["regarding"]["uid"], "uid");
        assert!(requests[3].body["regarding"]["uid"].is_null(), "{}", requests[3].body);
        assert_eq!(metrics.events.with_label_values(&["ok"]).get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_is_tried_again_if_the_api_server_is_busy() {
        let api = crate::fake_api::FakeApi::default();
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let publisher = Publisher::new(api.client(), "pod", metrics.clone());
        for (refusals, outcome) in [(2, "ok"), (3, "failed")] {
            (0..refusals).for_each(|_| api.refuse(429, "TooManyRequests", "busy"));
            publisher.publish(note(outcome)).await;
            assert_eq!(metrics.events.with_label_values(&[outcome]).get(), 1);
        }
        assert_eq!(api.requests().len(), 6);
        api.refuse(403, "Forbidden", "no");
        publisher.publish(note("forbidden")).await;
        assert_eq!(api.requests().len(), 7, "what is refused is not repeated");
        api.refuse(503, "ServiceUnavailable", "away");
        api.refuse(409, "AlreadyExists", "it exists");
        publisher.publish(note("its answer is lost")).await;
        assert_eq!(metrics.events.with_label_values(&["ok"]).get(), 2);
    }
}
