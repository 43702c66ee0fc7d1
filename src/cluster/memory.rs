//! A cluster in memory for tests. It accepts the writes that an API server would accept, and shows them in real caches.

mod api_server;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use k8s_openapi::{
    api::{core::v1, discovery::v1 as discovery, networking::v1 as networking},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::{core::PartialObjectMeta, runtime::watcher::Event};

use super::{
    apply::Cause,
    events::EventRecord,
    objects::ObjectKey,
    watches::{Caches, Writers},
};
use api::{
    ClusterImportPolicy, ClusterImportPolicySpec, Cutover, CutoverSpec, ServiceExport, ServiceImport,
    names::FieldManager,
};
use model::ServiceKey;

/// The cluster. Its caches are synced from the start and follow every change at once.
#[derive(Debug)]
pub struct MemoryCluster {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    writers: Writers,
    imports: BTreeMap<ServiceKey, ServiceImport>,
    services: BTreeMap<ServiceKey, v1::Service>,
    slices: BTreeMap<ObjectKey, discovery::EndpointSlice>,
    exports: BTreeMap<ServiceKey, ServiceExport>,
    namespaces: BTreeMap<String, bool>,
    /// Pods with the readiness gate.
    pods: BTreeMap<ObjectKey, v1::Pod>,
    cutovers: BTreeMap<ServiceKey, Cutover>,
    policies: BTreeMap<String, ClusterImportPolicy>,
    /// Which types of conditions each manager applied on a ServiceExport.
    owned: HashMap<(ServiceKey, FieldManager), Vec<String>>,
    notes: Vec<EventRecord>,
    holds_events: bool,
    /// The outcomes of the next writes.
    failures: VecDeque<Option<Cause>>,
    writes: usize,
    serial: u32,
    refuses_node_hints: bool,
    refuses_traffic_distribution: bool,
}

impl MemoryCluster {
    /// An empty cluster, and its caches.
    pub fn new() -> (Arc<Self>, Caches) {
        let (caches, mut writers) = Caches::unfilled();
        writers.sync();
        let state = State {
            writers,
            imports: BTreeMap::new(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            exports: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            pods: BTreeMap::new(),
            cutovers: BTreeMap::new(),
            policies: BTreeMap::new(),
            owned: HashMap::new(),
            notes: Vec::new(),
            holds_events: false,
            failures: VecDeque::new(),
            writes: 0,
            serial: 0,
            refuses_node_hints: false,
            refuses_traffic_distribution: false,
        };
        (Arc::new(Self { state: Mutex::new(state) }), caches)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// How many writes of the controller were accepted, not counting Events.
    pub fn writes(&self) -> usize {
        self.state().writes
    }

    /// The Events since this was called last.
    pub fn take_notes(&self) -> Vec<EventRecord> {
        std::mem::take(&mut self.state().notes)
    }

    /// Removes and returns the first Event that `wanted` selects; the others stay.
    pub fn take_note(&self, wanted: impl Fn(&EventRecord) -> bool) -> Option<EventRecord> {
        let notes = &mut self.state().notes;
        notes.iter().position(wanted).map(|index| notes.remove(index))
    }

    /// Never answers from now on when an Event is to be created.
    pub fn hold_events(&self) {
        self.state().holds_events = true;
    }

    /// Makes the next write of the controller fail.
    pub fn fail_next(&self, cause: Cause) {
        self.state().failures.push_back(Some(cause));
    }

    /// Lets `writes` writes succeed, and the one after them fail.
    pub fn fail_after(&self, writes: usize, cause: Cause) {
        let passing = std::iter::repeat_with(|| None).take(writes);
        self.state().failures.extend(passing.chain([Some(cause)]));
    }

    /// Behaves like Kubernetes before 1.33.
    pub fn refuse_node_hints(&self) {
        self.state().refuses_node_hints = true;
    }

    /// Behaves like Kubernetes before 1.31.
    pub fn refuse_traffic_distribution(&self) {
        self.state().refuses_traffic_distribution = true;
    }

    /// A ServiceImport.
    pub fn import(&self, key: &ServiceKey) -> Option<ServiceImport> {
        self.state().imports.get(key).cloned()
    }

    /// A ServiceExport.
    pub fn export(&self, key: &ServiceKey) -> Option<ServiceExport> {
        self.state().exports.get(key).cloned()
    }

    /// All Services, derived ones too.
    pub fn services(&self) -> Vec<v1::Service> {
        self.state().services.values().cloned().collect()
    }

    /// All EndpointSlices, imported ones too.
    pub fn slices(&self) -> Vec<discovery::EndpointSlice> {
        self.state().slices.values().cloned().collect()
    }

    /// Creates a namespace without labels.
    pub fn add_namespace(&self, name: &str) {
        self.put_namespace(name, &[]);
    }

    /// Creates a namespace, or replaces its labels.
    pub fn put_namespace(&self, name: &str, labels: &[(&str, &str)]) {
        let mut state = self.state();
        state.namespaces.insert(name.to_owned(), false);
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let metadata = ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
        state
            .writers
            .namespaces
            .apply(Event::Apply(Ok(PartialObjectMeta { metadata, ..PartialObjectMeta::default() })));
    }

    /// Replaces the annotations of a namespace.
    pub fn annotate_namespace(&self, name: &str, annotations: &[(&str, &str)]) {
        let annotations = annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            uid: Some(format!("uid-{name}")),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        };
        let object = PartialObjectMeta { metadata, ..PartialObjectMeta::default() };
        self.state().writers.namespaces.apply(Event::Apply(Ok(object)));
    }

    /// Deletes a namespace and everything in it.
    pub fn remove_namespace(&self, name: &str) {
        let mut state = self.state();
        let state = &mut *state;
        state.namespaces.remove(name);
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        state
            .writers
            .namespaces
            .apply(Event::Delete(Ok(PartialObjectMeta { metadata, ..PartialObjectMeta::default() })));
        for (_, object) in state.imports.extract_if(.., |key, _| &*key.namespace == name) {
            state.writers.imports.apply(Event::Delete(Ok(object)));
        }
        for (_, object) in state.services.extract_if(.., |key, _| &*key.namespace == name) {
            state.writers.services.apply(Event::Delete(Ok(object)));
        }
        for (_, object) in state.slices.extract_if(.., |key, _| &*key.namespace == name) {
            state.writers.slices.apply(Event::Delete(Ok(object.clone())));
            state.writers.imported_slices.apply(Event::Delete(Ok(object)));
        }
        for (_, object) in state.exports.extract_if(.., |key, _| &*key.namespace == name) {
            state.writers.exports.apply(Event::Delete(Ok(object)));
        }
    }

    /// Sets a ClusterProperty; `None` removes it.
    pub fn set_property(&self, name: &str, value: Option<&str>) {
        let spec = api::ClusterPropertySpec { value: value.unwrap_or_default().to_owned() };
        let property = api::ClusterProperty::new(name, spec);
        let event = if value.is_some() { Event::Apply(Ok(property)) } else { Event::Delete(Ok(property)) };
        self.state().writers.properties.apply(event);
    }

    /// Writes an object as a user would. It needs a namespace and a name, and gets a uid.
    pub fn put_export(&self, mut export: ServiceExport) {
        let mut state = self.state();
        let key = service_key(&export.metadata);
        let old = state.exports.get(&key).map(|old| old.metadata.clone());
        state.identify(&mut export.metadata, old.as_ref());
        state.exports.insert(key, export.clone());
        state.writers.exports.apply(Event::Apply(Ok(export)));
    }

    /// Deletes a ServiceExport, if it exists.
    pub fn remove_export(&self, key: &ServiceKey) {
        let mut state = self.state();
        if let Some(export) = state.exports.remove(key) {
            state.owned.retain(|(owned, _), _| owned != key);
            state.writers.exports.apply(Event::Delete(Ok(export)));
        }
    }

    /// Creates or replaces a Service.
    pub fn put_service(&self, mut service: v1::Service) {
        let mut state = self.state();
        let key = service_key(&service.metadata);
        let old = state.services.get(&key).map(|old| old.metadata.clone());
        state.identify(&mut service.metadata, old.as_ref());
        state.services.insert(key, service.clone());
        state.writers.services.apply(Event::Apply(Ok(service)));
    }

    /// Deletes a Service, if it exists.
    pub fn remove_service(&self, key: &ServiceKey) {
        let mut state = self.state();
        if let Some(service) = state.services.remove(key) {
            state.writers.services.apply(Event::Delete(Ok(service)));
        }
    }

    /// Creates or replaces an Ingress.
    pub fn put_ingress(&self, ingress: networking::Ingress) {
        self.state().writers.ingresses.apply(Event::Apply(Ok(ingress)));
    }

    /// Deletes an Ingress.
    pub fn remove_ingress(&self, ingress: networking::Ingress) {
        self.state().writers.ingresses.apply(Event::Delete(Ok(ingress)));
    }

    /// Creates a pod with the labels that the watch keeps.
    pub fn put_pod(&self, namespace: &str, uid: &str, labels: &[(&str, &str)]) {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            uid: Some(uid.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        };
        let object = PartialObjectMeta { metadata, ..PartialObjectMeta::default() };
        self.state().writers.pods.apply(Event::Apply(Ok(object)));
    }

    /// Writes a pod that has the label of the readiness gate, with its status. It needs a uid. The conditions of others stay.
    pub fn put_gated(&self, mut pod: v1::Pod) {
        let mut state = self.state();
        let key = object_key(&pod.metadata);
        if let Some(old) = state.pods.get(&key).filter(|old| old.metadata.uid == pod.metadata.uid) {
            let of =
                |pod: &v1::Pod| pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
            let (mut conditions, given) = (of(old), of(&pod));
            conditions.retain(|there| given.iter().all(|condition| condition.type_ != there.type_));
            conditions.extend(given);
            pod.status.get_or_insert_default().conditions = Some(conditions);
        }
        state.pods.insert(key, pod.clone());
        state.writers.gated.apply(Event::Apply(Ok(pod)));
    }

    /// Deletes a pod that has the readiness gate, if it exists.
    pub fn remove_gated(&self, key: &ObjectKey) {
        let mut state = self.state();
        if let Some(pod) = state.pods.remove(key) {
            state.writers.gated.apply(Event::Delete(Ok(pod)));
        }
    }

    /// A pod that has the readiness gate.
    pub fn gated(&self, key: &ObjectKey) -> Option<v1::Pod> {
        self.state().pods.get(key).cloned()
    }

    /// Creates a ClusterImportPolicy, or replaces its spec.
    pub fn put_import_policy(&self, name: &str, spec: ClusterImportPolicySpec) {
        let mut state = self.state();
        let old = state.policies.get(name).cloned();
        let mut policy = ClusterImportPolicy::new(name, spec);
        state.identify(&mut policy.metadata, old.as_ref().map(|old| &old.metadata));
        policy.metadata.generation = Some(old.as_ref().and_then(|old| old.metadata.generation).unwrap_or_default() + 1);
        policy.status = old.and_then(|old| old.status);
        state.policies.insert(name.to_owned(), policy.clone());
        state.writers.policies.apply(Event::Apply(Ok(policy)));
    }

    /// Deletes a ClusterImportPolicy, if it exists.
    pub fn remove_import_policy(&self, name: &str) {
        let mut state = self.state();
        if let Some(policy) = state.policies.remove(name) {
            state.writers.policies.apply(Event::Delete(Ok(policy)));
        }
    }

    /// A ClusterImportPolicy.
    pub fn import_policy(&self, name: &str) -> Option<ClusterImportPolicy> {
        self.state().policies.get(name).cloned()
    }

    /// Creates a Cutover, or replaces its spec.
    pub fn put_cutover(&self, key: &ServiceKey, spec: CutoverSpec) {
        let mut state = self.state();
        let old = state.cutovers.get(key).cloned();
        let mut cutover = Cutover::new(&key.name, spec);
        cutover.metadata.namespace = Some(key.namespace.to_string());
        state.identify(&mut cutover.metadata, old.as_ref().map(|old| &old.metadata));
        let before = old.as_ref().and_then(|old| old.metadata.generation).unwrap_or_default();
        cutover.metadata.generation = Some(before + 1);
        cutover.status = old.and_then(|old| old.status);
        state.cutovers.insert(key.clone(), cutover.clone());
        state.writers.cutovers.apply(Event::Apply(Ok(cutover)));
    }

    /// Deletes a Cutover, if it exists.
    pub fn remove_cutover(&self, key: &ServiceKey) {
        let mut state = self.state();
        if let Some(cutover) = state.cutovers.remove(key) {
            state.writers.cutovers.apply(Event::Delete(Ok(cutover)));
        }
    }

    /// A Cutover.
    pub fn cutover(&self, key: &ServiceKey) -> Option<Cutover> {
        self.state().cutovers.get(key).cloned()
    }

    /// Creates or replaces an EndpointSlice.
    pub fn put_slice(&self, mut slice: discovery::EndpointSlice) {
        let mut state = self.state();
        let key = object_key(&slice.metadata);
        let old = state.slices.get(&key).map(|old| old.metadata.clone());
        state.identify(&mut slice.metadata, old.as_ref());
        state.show_slice(slice.clone());
        state.slices.insert(key, slice);
    }

    /// Creates or replaces a ServiceImport.
    pub fn put_import(&self, mut import: ServiceImport) {
        let mut state = self.state();
        let key = service_key(&import.metadata);
        let old = state.imports.get(&key).map(|old| old.metadata.clone());
        state.identify(&mut import.metadata, old.as_ref());
        state.imports.insert(key, import.clone());
        state.writers.imports.apply(Event::Apply(Ok(import)));
    }
}

fn service_key(metadata: &ObjectMeta) -> ServiceKey {
    ServiceKey::new(metadata.namespace.as_deref().unwrap(), metadata.name.as_deref().unwrap())
}

fn object_key(metadata: &ObjectMeta) -> ObjectKey {
    service_key(metadata).into()
}

impl State {
    /// Sets what the API server sets in the metadata of a new or changed object.
    fn identify(&mut self, metadata: &mut ObjectMeta, old: Option<&ObjectMeta>) {
        self.serial += 1;
        metadata.resource_version = Some(self.serial.to_string());
        let uid = || Some(format!("uid-{}", self.serial));
        metadata.uid = old.map_or_else(uid, |old| old.uid.clone());
        let now = || Some(Time(Timestamp::from_second(i64::from(self.serial)).unwrap()));
        let created = old.and_then(|old| old.creation_timestamp.clone());
        metadata.creation_timestamp = created.or_else(|| metadata.creation_timestamp.clone()).or_else(now);
    }

    fn show_slice(&mut self, slice: discovery::EndpointSlice) {
        self.writers.slices.apply(Event::Apply(Ok(slice.clone())));
        self.writers.imported_slices.apply(Event::Apply(Ok(slice)));
    }
}

#[cfg(test)]
mod tests;
