//! What the API server knows, and what each verb does to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    ApiServerSettings,
    copies::Copies,
    faults::Faults,
    log::{Verb, Write},
    ownership::{self, Author},
    refusal::Refusal,
    resources::{RESOURCES, Resource},
    schema,
    services::Allocator,
    store::{Key, Store},
    validation,
};

#[derive(Debug)]
pub(super) struct State {
    pub(super) settings: ApiServerSettings,
    started: Instant,
    pub(super) store: Store,
    allocator: Allocator,
    serial: u64,
    pub(super) absent: BTreeSet<&'static str>,
    pub(super) faults: Faults,
    pub(super) copies: Copies,
    pub(super) writes: Vec<Write>,
    /// By replica, verb and kind.
    pub(super) requests: BTreeMap<(String, Verb, &'static str), u64>,
}

/// One write, and by whom.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) resource: &'static Resource,
    pub(super) key: Key,
    pub(super) author: Author,
    /// The pod, or the user.
    pub(super) by: &'a str,
    pub(super) dry_run: bool,
}

impl State {
    pub(super) fn new(settings: ApiServerSettings) -> Self {
        Self {
            started: Instant::now(),
            store: Store::new(settings.history),
            allocator: Allocator::new(&settings.families),
            serial: 0,
            absent: BTreeSet::new(),
            faults: Faults::default(),
            copies: Copies::default(),
            writes: Vec::new(),
            requests: BTreeMap::new(),
            settings,
        }
    }

    /// The server's own wall clock, in seconds as Kubernetes writes it.
    fn time(&self) -> Value {
        let passed = SignedDuration::try_from(self.started.elapsed()).unwrap_or_default();
        let now = self.settings.epoch.saturating_add(passed).unwrap_or(Timestamp::MAX);
        format!("{now:.0}").into()
    }

    fn uid(&mut self) -> String {
        self.serial += 1;
        let (seed, serial) = (self.settings.seed, self.serial);
        let (high, low) = ((seed >> 32) as u32, seed as u32);
        format!("{high:08x}-{:04x}-4{:03x}-8000-{serial:012x}", low >> 16, low & 0xfff)
    }

    /// An object.
    ///
    /// # Errors
    /// 404.
    pub(super) fn get(&self, resource: &Resource, key: &Key) -> Result<Arc<Value>, Refusal> {
        self.store.get(resource, key).cloned().ok_or_else(|| Refusal::not_found(resource, &key.1))
    }

    pub(super) fn create(&mut self, change: &Change<'_>, mut object: Value) -> Result<Arc<Value>, Refusal> {
        let Change { resource, key, author, .. } = change;
        if self.store.get(resource, key).is_some() {
            return Err(Refusal::already_exists(resource, &key.1));
        }
        strip(&mut object, resource);
        let now = self.time();
        ownership::update(&Value::Null, &mut object, resource, author, &now);
        self.commit(change, Verb::Create, None, object)
    }

    pub(super) fn update(&mut self, change: &Change<'_>, object: Value) -> Result<Arc<Value>, Refusal> {
        let Change { resource, key, .. } = change;
        // A Lease that is gone is created, whatever its version. Its uid is a precondition, as that of any object.
        if resource.plural == "leases" && self.store.get(resource, key).is_none() {
            if let Some(uid) = object["metadata"]["uid"].as_str() {
                let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
                return Err(Refusal::conflict(resource, &key.1, &why));
            }
            return self.create(change, object);
        }
        self.replace(change, Verb::Update, object)
    }

    fn replace(&mut self, change: &Change<'_>, verb: Verb, object: Value) -> Result<Arc<Value>, Refusal> {
        let Change { resource, key, author, .. } = change;
        let live = self.get(resource, key)?;
        let metadata = &object["metadata"];
        if let Some(uid) = metadata["uid"].as_str().filter(|uid| live["metadata"]["uid"] != *uid) {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                live["metadata"]["uid"].as_str().unwrap_or_default()
            );
            return Err(Refusal::conflict(resource, &key.1, &why));
        }
        match metadata["resourceVersion"].as_str().filter(|version| !version.is_empty()) {
            Some(version) if live["metadata"]["resourceVersion"] != *version => {
                return Err(Refusal::outdated(resource, &key.1));
            }
            None if resource.plural == "leases" => {
                let why = "must be specified for an update";
                return Err(Refusal::invalid(resource, &key.1, "metadata.resourceVersion", why));
            }
            _ => {}
        }
        let mut new = within(&live, object, resource, author.status);
        new["metadata"]["managedFields"] = live["metadata"]["managedFields"].clone();
        let now = self.time();
        ownership::update(&live, &mut new, resource, author, &now);
        self.commit(change, verb, Some(live), new)
    }

    /// A merge patch.
    pub(super) fn patch(&mut self, change: &Change<'_>, patch: &Value) -> Result<Arc<Value>, Refusal> {
        let mut object = (*self.get(change.resource, &change.key)?).clone();
        let version = patch["metadata"]["resourceVersion"].clone();
        ownership::merge_patch(&mut object, patch);
        if version.is_null() {
            let live = self.get(change.resource, &change.key)?;
            object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        }
        self.replace(change, Verb::Patch, object)
    }

    /// A server-side apply.
    pub(super) fn apply(&mut self, change: &Change<'_>, mut config: Value, force: bool) -> Result<Arc<Value>, Refusal> {
        let Change { resource, key, author, .. } = change;
        validation::known_fields(&config, resource, key, self.settings.node_hints)?;
        let uid = config["metadata"]["uid"].as_str().map(str::to_owned);
        let version = config["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let live = self.store.get(resource, key).cloned();
        let Some(live) = live else {
            if author.status {
                return Err(Refusal::not_found(resource, &key.1));
            }
            if let Some(uid) = uid {
                let why =
                    format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
                return Err(Refusal::conflict(resource, &key.1, &why));
            }
            strip(&mut config, resource);
            let now = self.time();
            let named = json!({
                "apiVersion": resource.api_version(), "kind": resource.kind,
                "metadata": {"name": key.1, "namespace": key.0},
            });
            let object = ownership::apply(&named, &config, resource, author, force, &now)?;
            return self.commit(change, Verb::Apply, None, object);
        };
        // Through the status, the API server does not compare uids.
        if let Some(uid) = uid.filter(|uid| !author.status && live["metadata"]["uid"] != **uid) {
            let why = format!("Invalid value: {uid:?}: field is immutable");
            return Err(Refusal::invalid(resource, &key.1, "metadata.uid", &why));
        }
        if version.is_some_and(|version| live["metadata"]["resourceVersion"] != *version) {
            return Err(Refusal::outdated(resource, &key.1));
        }
        if author.status {
            config = json!({"status": config["status"]});
        } else {
            strip(&mut config, resource);
        }
        let now = self.time();
        let object = ownership::apply(&live, &config, resource, author, force, &now)?;
        self.commit(change, Verb::Apply, Some(live), object)
    }

    /// Deletes an object, if it is the one meant. One with finalizers stays until they are gone.
    pub(super) fn delete(
        &mut self,
        change: &Change<'_>,
        uid: Option<&str>,
        version: Option<&str>,
    ) -> Result<Arc<Value>, Refusal> {
        let Change { resource, key, .. } = change;
        let live = self.get(resource, key)?;
        let mismatch = |what: &str, wanted: &str, have: &Value| {
            let have = have.as_str().unwrap_or_default();
            let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {have}");
            Refusal::conflict(resource, &key.1, &why)
        };
        if let Some(uid) = uid.filter(|uid| live["metadata"]["uid"] != **uid) {
            return Err(mismatch("UID", uid, &live["metadata"]["uid"]));
        }
        if let Some(version) = version.filter(|version| live["metadata"]["resourceVersion"] != **version) {
            return Err(mismatch("ResourceVersion", version, &live["metadata"]["resourceVersion"]));
        }
        let finalized = live["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        let stays = !finalized || resource.plural == "namespaces";
        if !stays {
            return Ok(self.gone(change, live));
        }
        let mut object = (*live).clone();
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = self.time();
            object["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        }
        if resource.plural == "namespaces" {
            object["status"] = json!({"phase": "Terminating"});
        }
        self.commit(change, Verb::Delete, Some(live), object)
    }

    /// The end of a namespace that terminates: of all that is in it, then of itself.
    pub(super) fn finish_namespace(&mut self, name: &str) {
        let author = Author { manager: "kube-controller-manager".to_owned(), applies: false, status: false };
        for resource in RESOURCES.iter().filter(|resource| resource.namespaced) {
            let keys = self.store.kind(resource).objects.keys().filter(|key| key.0 == name).cloned();
            for key in keys.collect::<Vec<_>>() {
                let Some(live) = self.store.get(resource, &key).cloned() else { continue };
                let by = "kube-controller-manager";
                self.gone(&Change { resource, key, author: author.clone(), by, dry_run: false }, live);
            }
        }
        let resource = Resource::named("namespaces");
        let key = (String::new(), name.to_owned());
        if let Some(live) = self.store.get(resource, &key).cloned() {
            let by = "kube-controller-manager";
            self.gone(&Change { resource, key, author, by, dry_run: false }, live);
        }
    }

    fn gone(&mut self, change: &Change<'_>, live: Arc<Value>) -> Arc<Value> {
        if change.dry_run {
            return live;
        }
        if change.resource.plural == "services" {
            self.allocator.free(&live);
        }
        let now = Instant::now();
        let last = self.store.put(change.resource, &change.key, None, now);
        self.log(change, Verb::Delete, Some(live), None);
        last
    }

    /// The checks that all writes have in common; then the object is stored, unless nothing about it is new.
    fn commit(
        &mut self,
        change: &Change<'_>,
        verb: Verb,
        live: Option<Arc<Value>>,
        mut object: Value,
    ) -> Result<Arc<Value>, Refusal> {
        let Change { resource, key, dry_run, .. } = change;
        if live.is_none() {
            self.check_namespace(resource, key)?;
        }
        self.name(&mut object, change, live.as_deref());
        validation::set_defaults(&mut object, resource);
        schema::conform(&mut object, resource)?;
        let allocated = match resource.plural {
            "services" => Some(self.allocator.allocate(&mut object, live.as_deref())?),
            _ => None,
        };
        if let Err(refusal) = validation::check(&object, live.as_deref(), resource) {
            self.give_back(allocated.as_deref());
            return Err(refusal);
        }
        if *dry_run {
            self.give_back(allocated.as_deref());
            return Ok(Arc::new(object));
        }
        if let Some(live) = live.as_ref().filter(|live| is_same(live, &object)) {
            self.log(change, verb, Some(Arc::clone(live)), Some(Arc::clone(live)));
            return Ok(Arc::clone(live));
        }
        if resource.counted {
            let generation = live.as_ref().map_or(0, |live| live["metadata"]["generation"].as_i64().unwrap_or(0));
            let counts = live.as_ref().is_none_or(|live| body(live, resource) != body(&object, resource));
            object["metadata"]["generation"] = (generation + i64::from(counts)).into();
        }
        let finalized = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        let deleted = !object["metadata"]["deletionTimestamp"].is_null();
        if deleted && finalized && resource.plural != "namespaces" {
            let live = live.unwrap_or_else(|| Arc::new(object));
            return Ok(self.gone(change, live));
        }
        if let Some(live) = live.as_ref().filter(|_| resource.plural == "services") {
            self.allocator.free_unused(live, &object);
        }
        let stored = self.store.put(resource, key, Some(object), Instant::now());
        self.log(change, verb, live, Some(Arc::clone(&stored)));
        Ok(stored)
    }

    /// Addresses of a Service that is not stored.
    fn give_back(&mut self, allocated: Option<&[IpAddr]>) {
        for address in allocated.into_iter().flatten() {
            self.allocator.release(address);
        }
    }

    /// What the API server itself says in an object's metadata.
    fn name(&mut self, object: &mut Value, change: &Change<'_>, live: Option<&Value>) {
        let Change { resource, key, .. } = change;
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        let (uid, created) = match live {
            Some(live) => (live["metadata"]["uid"].clone(), live["metadata"]["creationTimestamp"].clone()),
            None => (self.uid().into(), self.time()),
        };
        let metadata = &mut object["metadata"];
        metadata["name"] = key.1.as_str().into();
        if !key.0.is_empty() {
            metadata["namespace"] = key.0.as_str().into();
        }
        metadata["uid"] = uid;
        metadata["creationTimestamp"] = created;
        if let Some(live) = live {
            metadata["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
            if let Some(generation) = live["metadata"].get("generation") {
                metadata["generation"] = generation.clone();
            }
            if let Some(at) = live["metadata"].get("deletionTimestamp") {
                metadata["deletionTimestamp"] = at.clone();
            }
        }
    }

    fn check_namespace(&self, resource: &Resource, key: &Key) -> Result<(), Refusal> {
        if !resource.namespaced {
            return Ok(());
        }
        let namespaces = Resource::named("namespaces");
        let namespace = self.get(namespaces, &(String::new(), key.0.clone()))?;
        if namespace["metadata"]["deletionTimestamp"].is_null() {
            return Ok(());
        }
        Err(Refusal::terminating(resource, &key.1, &key.0))
    }

    fn log(&mut self, change: &Change<'_>, verb: Verb, before: Option<Arc<Value>>, after: Option<Arc<Value>>) {
        self.writes.push(Write {
            at: self.started.elapsed(),
            by: change.by.to_owned(),
            manager: change.author.manager.clone(),
            verb,
            resource: change.resource.plural,
            key: change.key.clone(),
            status: change.author.status,
            before,
            after,
        });
    }
}

/// Takes out what a caller has no say in.
fn strip(object: &mut Value, resource: &Resource) {
    let Some(map) = object.as_object_mut() else { return };
    if resource.status {
        map.remove("status");
    }
    if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "deletionTimestamp"]
        {
            metadata.remove(field);
        }
    }
}

/// The part of an update that counts: the status through its subresource, everything else otherwise.
fn within(live: &Value, mut object: Value, resource: &Resource, status: bool) -> Value {
    if status {
        let mut new = live.clone();
        set(&mut new, "status", object["status"].take());
        return new;
    }
    if resource.status {
        set(&mut object, "status", live["status"].clone());
    }
    object
}

fn set(object: &mut Value, field: &str, value: Value) {
    let Some(map) = object.as_object_mut() else { return };
    if value.is_null() {
        map.remove(field);
    } else {
        map.insert(field.to_owned(), value);
    }
}

/// What `metadata.generation` counts the changes of.
fn body(object: &Value, resource: &Resource) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.remove("metadata");
        if resource.status {
            map.remove("status");
        }
    }
    object
}

/// Whether there is nothing to store. When a field was written is not looked at.
fn is_same(live: &Value, new: &Value) -> bool {
    let rest = |object: &Value, other: &Value| {
        object
            .as_object()
            .into_iter()
            .flatten()
            .all(|(name, value)| name == "metadata" || other.get(name) == Some(value))
    };
    if !rest(live, new) || !rest(new, live) {
        return false;
    }
    let bare = |object: &Value| {
        let mut object = object.clone();
        if let Some(entries) = object["metadata"]["managedFields"].as_array_mut() {
            entries.iter_mut().filter_map(Value::as_object_mut).for_each(|entry| drop(entry.remove("time")));
        }
        object
    };
    bare(live) == bare(new)
}
