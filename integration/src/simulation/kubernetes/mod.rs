//! A Kubernetes API server in this process: real clients of kube talk to it through a service instead of a socket.
//!
//! It keeps objects as JSON and does what the controller can come upon: versions and history, paged lists, watches with
//! bookmarks and 410, server-side apply with field ownership, preconditions, statuses apart, cluster IPs, validation,
//! namespaces that terminate. What it does not do: authentication, garbage collection, admission by default, kinds that
//! are not in `resources`.
//!
//! All time is tokio's, and nothing is random: the same calls at the same (paused) time have the same results.

mod copies;
mod faults;
mod fields;
mod log;
mod ownership;
mod refusal;
mod request;
mod resources;
mod schema;
mod selector;
mod service;
mod services;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod validation;
mod watch;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch::Receiver;

pub use self::{
    faults::{Fault, FaultId, Moment, Scope},
    log::{Verb, Write},
    resources::{RESOURCES, Resource},
    store::Key,
};
use self::{
    ownership::Author,
    state::{Change, State},
};

/// How the cluster is set up.
#[derive(Debug, Clone)]
pub struct ApiServerSettings {
    /// Tells uids of two clusters apart.
    pub seed: u64,
    /// The server's wall clock at the start.
    pub epoch: Timestamp,
    /// IP families of Services, the default first.
    pub families: Vec<String>,
    /// Whether the API server knows `hints.forNodes` (Kubernetes 1.33).
    pub node_hints: bool,
    /// Events that are kept of each kind; watches from before get a 410.
    pub history: usize,
    /// From a request to its effect.
    pub latency: Duration,
}

impl Default for ApiServerSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            epoch: Timestamp::UNIX_EPOCH,
            families: vec!["IPv4".to_owned(), "IPv6".to_owned()],
            node_hints: true,
            history: 10_000,
            latency: Duration::from_millis(2),
        }
    }
}

/// The API server of one cluster. Cheap to clone; all clones are the same server.
///
/// The verbs here are those of its users and of the driver: they act at once, know no faults, and their writes are
/// logged as `user`.
#[derive(Debug, Clone)]
pub struct ApiServer(Arc<Mutex<State>>);

/// Why a write of a user was refused: the API server's own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(String);

impl From<refusal::Refusal> for Refused {
    fn from(refusal: refusal::Refusal) -> Self {
        Self(refusal.status()["message"].as_str().unwrap_or_default().to_owned())
    }
}

const USER: &str = "user";

fn change(plural: &str, namespace: &str, name: &str, status: bool) -> Change<'static> {
    let author = Author { manager: USER.to_owned(), applies: false, status };
    let key = (namespace.to_owned(), name.to_owned());
    Change { resource: Resource::named(plural), key, author, by: USER, dry_run: false }
}

/// Namespace and name, as an object says them.
fn key_of(object: &Value) -> (&str, &str) {
    let metadata = &object["metadata"];
    (metadata["namespace"].as_str().unwrap_or_default(), metadata["name"].as_str().unwrap_or_default())
}

impl ApiServer {
    /// An empty cluster, but for the namespaces `default` and `kube-system`. Must be called within a runtime.
    ///
    /// # Panics
    /// Never: both are valid.
    pub fn new(settings: ApiServerSettings) -> Self {
        let server = Self(Arc::new(Mutex::new(State::new(settings))));
        for name in ["default", "kube-system"] {
            server.put("namespaces", serde_json::json!({"metadata": {"name": name}})).expect("valid namespaces");
        }
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates an object, or puts it whole in place of the one of that name; a status in it counts, too.
    ///
    /// # Errors
    /// What the API server would refuse.
    pub fn put(&self, plural: &str, object: Value) -> Result<Arc<Value>, Refused> {
        let (namespace, name) = key_of(&object);
        let change = change(plural, namespace, name, false);
        let status = object["status"].clone();
        let mut state = self.state();
        let stored = match state.store.get(change.resource, &change.key) {
            None => state.create(&change, object)?,
            Some(live) => {
                let mut object = object;
                // A user who means this object, and whatever version of it is there.
                object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
                state.update(&change, object)?
            }
        };
        drop(state);
        if status.is_null() || !change.resource.status {
            return Ok(stored);
        }
        self.put_status(plural, &change.key.0, &change.key.1, &status)
    }

    /// Sets the status of an object, as the controllers of the cluster do it.
    ///
    /// # Errors
    /// There is no such object, or the API server would refuse it.
    pub fn put_status(&self, plural: &str, namespace: &str, name: &str, status: &Value) -> Result<Arc<Value>, Refused> {
        let change = change(plural, namespace, name, true);
        Ok(self.state().patch(&change, &serde_json::json!({ "status": status }))?)
    }

    /// A JSON merge patch: `null` removes.
    ///
    /// # Errors
    /// There is no such object, or the API server would refuse it.
    pub fn patch(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> Result<Arc<Value>, Refused> {
        Ok(self.state().patch(&change(plural, namespace, name, false), patch)?)
    }

    /// Deletes an object. A namespace begins to terminate: [`Self::finish_namespace`] ends that.
    ///
    /// # Errors
    /// There is no such object.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) -> Result<(), Refused> {
        self.state().delete(&change(plural, namespace, name, false), None, None)?;
        Ok(())
    }

    /// Deletes an object of which people have a copy. They put it back when a replica asks for it that cannot know it: one
    /// that has neither read nor made it since the Lease in its namespace changed hands.
    ///
    /// # Errors
    /// There is no such object.
    pub fn take_away(&self, plural: &str, namespace: &str, name: &str) -> Result<(), Refused> {
        self.state().take_away(&change(plural, namespace, name, false))?;
        Ok(())
    }

    /// Deletes everything in a namespace, and the namespace.
    pub fn finish_namespace(&self, name: &str) {
        self.state().finish_namespace(name);
    }

    /// An object as it is now.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.state().get(Resource::named(plural), &(namespace.to_owned(), name.to_owned())).ok()
    }

    /// All objects of a kind as they are now, by namespace and name.
    pub fn list(&self, plural: &str) -> BTreeMap<Key, Arc<Value>> {
        self.state().store.kind(Resource::named(plural)).objects.clone()
    }

    /// The version of the last change of anything but Leases, ConfigMaps and Events, and word of the next one.
    pub fn shown(&self) -> Receiver<u64> {
        self.state().store.shown.subscribe()
    }

    /// Takes the log of all writes since it was taken last: of replicas, users and the cluster itself.
    pub fn take_writes(&self) -> Vec<Write> {
        std::mem::take(&mut self.state().writes)
    }

    /// How many requests each replica has made since the start, by verb and kind; those that failed count, too.
    pub fn requests(&self) -> BTreeMap<(String, Verb, &'static str), u64> {
        self.state().requests.clone()
    }

    /// Installs the CRD of a kind, or takes it away; its objects are hidden meanwhile.
    pub fn install(&self, plural: &str, installed: bool) {
        let resource = Resource::named(plural);
        let mut state = self.state();
        if installed {
            state.absent.remove(resource.plural);
        } else {
            state.absent.insert(resource.plural);
        }
        state.store.wake();
    }

    /// Whether the API server knows `hints.forNodes`, from now on: as after an upgrade.
    pub fn set_node_hints(&self, known: bool) {
        self.state().settings.node_hints = known;
    }

    /// Lets something go wrong until it is cleared.
    pub fn inject(&self, scope: Scope, fault: Fault) -> FaultId {
        let mut state = self.state();
        let id = state.faults.inject(scope, fault);
        state.store.wake();
        id
    }

    /// Ends a fault. Watches that died meanwhile stay dead.
    pub fn clear(&self, id: FaultId) {
        let mut state = self.state();
        state.faults.clear(id);
        state.store.wake();
    }

    /// Ends all faults, and forgets crashes to come.
    pub fn clear_all(&self) {
        let mut state = self.state();
        state.faults.clear_all();
        state.store.wake();
    }

    /// Calls `then` at the `nth` write of a replica from now on (1: the next), which is never answered. Writes of Leases
    /// do not count. `then` must stop the replica; it may call this server.
    pub fn crash_at_write(&self, replica: &str, nth: u32, moment: Moment, then: impl FnOnce() + Send + 'static) {
        self.state().faults.crash(replica, nth, moment, Box::new(then));
    }

    /// Lets a replica lose the events of a kind up to now that it has not got yet (for a fault kept them back): its watch
    /// ends with a 410, and only a list helps.
    pub fn lose_events(&self, replica: &str, plural: &str) {
        let mut state = self.state();
        let version = state.store.version();
        state.faults.lose_events(replica, Resource::named(plural), version);
        state.store.wake();
    }

    /// Forgets the history of a kind: whoever watches from an older version, or reads a later page of a list, gets a 410.
    pub fn compact(&self, plural: &str) {
        self.state().store.compact(Resource::named(plural));
    }
}
