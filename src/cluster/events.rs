//! Events (events.k8s.io) on users' objects, and on the controller's Lease.
//!
//! Own code rather than kube's `Recorder`, which repeats the first note for six minutes whatever the later ones say.
//! Publish on transitions only. Needs `create` on events.k8s.io Events.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::{
        core::v1::{Namespace, ObjectReference},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, Resource, api::PostParams};
use tokio::time::{Instant, timeout};
use tracing::warn;

use super::{apply::Cause, metrics::Metrics};
use crate::{
    api::{ServiceExport, ServiceImport, names},
    env,
    model::ServiceKey,
};

/// Limit of the API server, in bytes.
const MAX_NOTE: usize = 1024;

/// Longest name of an object.
const MAX_NAME: usize = 253;

/// The same thing is not said again about the same object within this time: a condition that flaps fills nobody's
/// list of Events.
const REPEAT_AFTER: Duration = Duration::from_mins(10);

/// More remembered Events than this, and the old ones are forgotten.
const REMEMBERED: usize = 4096;

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// An Event to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The object, with kind, name and uid; `kubectl describe` finds the Event by its uid.
    pub regarding: ObjectReference,
    pub severity: Severity,
    /// In CamelCase, at most 128 characters: the reason of the condition that changed.
    pub reason: &'static str,
    /// What was being done, in CamelCase: `Export`, `Register`.
    pub action: &'static str,
    /// Cut at 1,024 bytes.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    Normal,
    Warning,
}

impl Severity {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Refers to a ServiceExport.
pub fn export(key: &ServiceKey, uid: &str) -> ObjectReference {
    reference::<ServiceExport>(key, uid)
}

/// Refers to a ServiceImport.
pub fn import(key: &ServiceKey, uid: &str) -> ObjectReference {
    reference::<ServiceImport>(key, uid)
}

/// Refers to a Service.
pub fn service(key: &ServiceKey, uid: &str) -> ObjectReference {
    reference::<k8s_openapi::api::core::v1::Service>(key, uid)
}

/// Refers to an Ingress.
pub fn ingress(key: &ServiceKey, uid: &str) -> ObjectReference {
    reference::<k8s_openapi::api::networking::v1::Ingress>(key, uid)
}

/// Refers to the controller's Lease in its own namespace: what concerns no user's object is said there.
pub fn lease(namespace: &str) -> ObjectReference {
    let key = ServiceKey::new(namespace, super::lease::LEASE);
    ObjectReference { uid: None, ..reference::<k8s_openapi::api::coordination::v1::Lease>(&key, "") }
}

/// Refers to a Namespace, from within it: Events about objects without a namespace would be in `default`, where nobody
/// looks for them.
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

/// Publishes Events. Cheap to clone.
#[derive(Clone)]
pub struct Publisher {
    client: Client,
    /// Name of this replica.
    instance: Arc<str>,
    metrics: Metrics,
    said: Arc<Mutex<Said>>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl Publisher {
    /// `instance` is the name of the pod, at most 128 characters.
    pub fn new(client: Client, instance: &str, metrics: Metrics) -> Self {
        Self { client, instance: instance.into(), metrics, said: Arc::default() }
    }

    /// Publishes; a failure is logged and counted, because no work may depend on an Event.
    pub async fn publish(&self, note: Note) {
        let new = self.said.lock().unwrap_or_else(PoisonError::into_inner).is_new(&note, Instant::now());
        if !new {
            self.metrics.events.with_label_values(&["repeated"]).inc();
            return;
        }
        let namespace = note.regarding.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let event = event(note, &self.instance, env::timestamp());
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let result = timeout(CALL_TIMEOUT, api.create(&PostParams::default(), &event)).await;
        let outcome = match result {
            Ok(Ok(_)) => "ok",
            Ok(Err(error)) => {
                let error = Cause::from(error);
                warn!(%error, reason = event.reason, "failed to publish an Event");
                "failed"
            }
            Err(_) => {
                warn!(reason = event.reason, "failed to publish an Event: no answer");
                "timeout"
            }
        };
        self.metrics.events.with_label_values(&[outcome]).inc();
    }
}

/// What was said lately.
#[derive(Debug, Default)]
struct Said(HashMap<(String, &'static str, String), Instant>);

impl Said {
    fn is_new(&mut self, note: &Note, now: Instant) -> bool {
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, at| now.duration_since(*at) < REPEAT_AFTER);
        }
        if self.0.len() >= REMEMBERED {
            self.0.clear();
        }
        let object = note.regarding.uid.clone().unwrap_or_default();
        let said = (object, note.reason, note.text.clone());
        let is_new = self.0.get(&said).is_none_or(|at| now.duration_since(*at) >= REPEAT_AFTER);
        if is_new {
            self.0.insert(said, now);
        }
        is_new
    }
}

fn event(note: Note, instance: &str, now: Timestamp) -> Event {
    let Note { regarding, severity, reason, action, mut text } = note;
    text.truncate(text.floor_char_boundary(MAX_NOTE));
    Event {
        metadata: ObjectMeta {
            namespace: regarding.namespace.clone(),
            name: Some(event_name(regarding.name.as_deref().unwrap_or(names::CONTROLLER), now)),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some(names::CONTROLLER.to_owned()),
        reporting_instance: Some(instance.to_owned()),
        type_: Some(severity.as_str().to_owned()),
        reason: Some(reason.to_owned()),
        action: Some(action.to_owned()),
        note: Some(text),
        regarding: Some(regarding),
        ..Event::default()
    }
}

/// As client-go names them: the object, a dot, and the time in hexadecimal. At most 253 characters, and the part before
/// the dot must end in a letter or digit.
fn event_name(object: &str, now: Timestamp) -> String {
    let object = &object[..object.floor_char_boundary(MAX_NAME - 33)];
    format!("{}.{:x}", object.trim_end_matches(['-', '.']), now.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(text: &str) -> Note {
        Note {
            regarding: export(&ServiceKey::new("ns", "web"), "u"),
            severity: Severity::Warning,
            reason: "NameConflict",
            action: "Register",
            text: text.to_owned(),
        }
    }

    #[test]
    fn an_event_names_the_object_by_uid_and_fits_the_api() {
        let event = event(note(&"é".repeat(1000)), "pod-1", Timestamp::UNIX_EPOCH);
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
    fn an_event_has_a_name_that_the_api_server_takes() {
        let now = Timestamp::from_second(1).unwrap();
        assert_eq!(event_name("web", now), "web.3b9aca00");
        let long = event_name(&format!("{}-{}", "a".repeat(MAX_NAME - 34), "b".repeat(33)), Timestamp::MAX);
        assert!(long.len() <= MAX_NAME && !long.contains("-."), "{long}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_is_not_said_twice_but_something_new_is() {
        let mut said = Said::default();
        assert!(said.is_new(&note("a"), Instant::now()));
        assert!(!said.is_new(&note("a"), Instant::now()));
        assert!(said.is_new(&note("b"), Instant::now()));
        tokio::time::advance(REPEAT_AFTER).await;
        assert!(said.is_new(&note("a"), Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_recurs_is_said_every_ten_minutes() {
        let mut said = Said::default();
        for new in [true, false, true] {
            assert_eq!(said.is_new(&note("a"), Instant::now()), new);
            tokio::time::advance(Duration::from_mins(6)).await;
        }
    }

    #[tokio::test]
    async fn what_is_remembered_is_bounded() {
        let mut said = Said::default();
        for n in 0..3 * REMEMBERED {
            said.is_new(&note(&n.to_string()), Instant::now());
        }
        assert!(said.0.len() <= REMEMBERED);
    }
}
