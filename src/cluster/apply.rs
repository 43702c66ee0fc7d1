//! Writes to the Kubernetes API. Each write has a deadline, is counted, and is made only while this replica leads.

mod error;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::{
    api::{core::v1, discovery::v1 as discovery},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

pub use self::error::{Cause, Error};
pub(super) use self::error::{with_remedy, words};
use super::{
    events::{EventRecord, Publisher},
    lease::Leadership,
    metrics::Metrics,
    objects::ObjectKey,
};
use api::{
    ClusterImportPolicy, ClusterImportPolicyStatus, Cutover, CutoverStatus, ServiceExport, ServiceImport,
    ServiceImportStatus,
    conditions::{GateReason, Row},
    names::FieldManager,
};
use model::ServiceKey;

/// Deadline of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long after the end of a leader's claim a write may still arrive. A write that began at the last moment is given
/// up before another replica can lead ([`super::lease::Timing`]: 15 s minus 10 s).
const ARRIVAL: Duration = Duration::from_secs(5);

/// How long it is assumed that what the API server does not accept is not accepted: the control plane may be upgraded.
const ASSUMED: Duration = Duration::from_hours(1);

/// The writes of importing and exporting in this cluster.
///
/// Each object is complete: it contains all fields that the import owns, and a field that was in an earlier version but
/// is left out now is removed. With a `metadata.uid`, the write forces ownership of its fields, but never writes
/// another object that has taken the name. Without a uid, the object is created; if an object with that name exists, it
/// must not be foreign ([`Cause::Conflict`]).
///
/// Compare with the cache first: every call is a write.
#[async_trait]
pub trait ClusterWriter: Send + Sync + 'static {
    /// Writes a ServiceImport without its status.
    async fn apply_service_import(&self, import: &ServiceImport) -> Result<ServiceImport, Error>;

    /// Writes the status of the ServiceImport with this uid.
    async fn apply_import_status(
        &self,
        key: &ServiceKey,
        uid: &str,
        status: &ServiceImportStatus,
    ) -> Result<ServiceImport, Error>;

    /// Writes a derived Service. The result has the cluster IPs that the API server allocated. If the API server does not
    /// accept the `trafficDistribution`, it is left out; see [`ClusterWriter::takes_traffic_distribution`].
    async fn apply_derived_service(&self, service: &v1::Service) -> Result<v1::Service, Error>;

    /// Whether the API server accepts this `trafficDistribution` in a namespace, as far as is known. Kubernetes keeps the field
    /// since 1.31, and later versions know more values. An admission webhook may drop it in some namespaces.
    fn takes_traffic_distribution(&self, namespace: &str, value: &str) -> bool;

    /// Writes an imported EndpointSlice. If the API server does not accept node hints, they are left out; see
    /// [`ClusterWriter::takes_node_hints`].
    async fn apply_endpoint_slice(&self, slice: &discovery::EndpointSlice) -> Result<discovery::EndpointSlice, Error>;

    /// Whether the API server accepts `hints.forNodes`, as far as is known. Kubernetes has them since 1.34, and in 1.33 behind
    /// a feature gate.
    fn takes_node_hints(&self) -> bool;

    /// Deletes a ServiceImport. If it is gone, or another object has its name, that is no error.
    async fn delete_service_import(&self, key: &ServiceKey, uid: &str) -> Result<(), Error>;

    /// Deletes a derived Service. If it is gone, or another object has its name, that is no error.
    async fn delete_derived_service(&self, key: &ServiceKey, uid: &str) -> Result<(), Error>;

    /// Deletes an imported EndpointSlice. If it is gone, or another object has its name, that is no error.
    async fn delete_endpoint_slice(&self, key: &ObjectKey, uid: &str) -> Result<(), Error>;

    /// Writes the conditions that `manager` owns on the ServiceExport with this uid. A condition that was in an earlier
    /// version but is left out now is removed. Conditions of other managers stay.
    async fn apply_export_conditions(
        &self,
        key: &ServiceKey,
        uid: &str,
        conditions: &[Condition],
        manager: FieldManager,
    ) -> Result<(), Error>;

    /// Opens the readiness gate of the pod with this uid: sets its condition `cloudmap-mcs/registered` to True. Conditions
    /// of others stay.
    async fn open_gate(
        &self,
        key: &ObjectKey,
        uid: &str,
        reason: GateReason,
        message: &str,
        now: Timestamp,
    ) -> Result<(), Error>;

    /// Replaces the status of the Cutover with this uid, if it still is the one of this version.
    async fn apply_cutover_status(
        &self,
        key: &ServiceKey,
        uid: &str,
        version: &str,
        status: &CutoverStatus,
    ) -> Result<(), Error>;

    /// Replaces the status of the ClusterImportPolicy with this uid.
    async fn apply_import_policy_status(
        &self,
        name: &str,
        uid: &str,
        status: &ClusterImportPolicyStatus,
    ) -> Result<(), Error>;

    /// Emits an Event about a user's object. Call it only when something changes. Failures are logged and counted.
    async fn emit(&self, note: EventRecord);
}

/// Removes `hints.forNodes` from a slice.
pub fn drop_node_hints(slice: &mut discovery::EndpointSlice) {
    for endpoint in &mut slice.endpoints {
        if let Some(hints) = &mut endpoint.hints {
            hints.for_nodes = None;
        }
        endpoint.hints.take_if(|hints| hints.for_zones.is_none());
    }
}

fn has_node_hints(slice: &discovery::EndpointSlice) -> bool {
    slice.endpoints.iter().filter_map(|endpoint| endpoint.hints.as_ref()).any(|hints| hints.for_nodes.is_some())
}

/// The writer that calls the API server.
#[derive(Clone)]
pub struct KubernetesWriter {
    client: Client,
    leadership: Leadership,
    metrics: Metrics,
    events: Publisher,
    refused: Refused,
}

/// What the API server did not accept, and when it showed that.
#[derive(Clone, Default)]
struct Refused(Arc<Mutex<BTreeMap<Fact, Instant>>>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    NodeHints,
    /// A value of `trafficDistribution`, in a namespace.
    Distribution(String, String),
}

impl Refused {
    fn note(&self, fact: Fact) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(fact, Instant::now());
    }

    fn has(&self, fact: &Fact) -> bool {
        let facts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        facts.get(fact).is_some_and(|since| since.elapsed() < ASSUMED)
    }
}

impl Debug for KubernetesWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubernetesWriter").field("leadership", &self.leadership).finish_non_exhaustive()
    }
}

/// A kind that this project writes.
trait Written: Resource<DynamicType = (), Scope: Within<Self>> + Clone + Debug + DeserializeOwned {
    const KIND: &'static str;
}

/// Where the objects of a kind are: in a namespace, or in none.
trait Within<K> {
    fn api(client: Client, namespace: &str) -> Api<K>;
}

impl<K: Resource<DynamicType = (), Scope = Self>> Within<K> for NamespaceResourceScope {
    fn api(client: Client, namespace: &str) -> Api<K> {
        Api::namespaced(client, namespace)
    }
}

impl<K: Resource<DynamicType = (), Scope = Self>> Within<K> for ClusterResourceScope {
    fn api(client: Client, _: &str) -> Api<K> {
        Api::all(client)
    }
}

impl Written for ServiceImport {
    const KIND: &'static str = "ServiceImport";
}

impl Written for ServiceExport {
    const KIND: &'static str = "ServiceExport";
}

impl Written for ClusterImportPolicy {
    const KIND: &'static str = "ClusterImportPolicy";
}

impl Written for Cutover {
    const KIND: &'static str = "Cutover";
}

impl Written for v1::Pod {
    const KIND: &'static str = "Pod";
}

impl Written for v1::Service {
    const KIND: &'static str = "Service";
}

impl Written for discovery::EndpointSlice {
    const KIND: &'static str = "EndpointSlice";
}

impl KubernetesWriter {
    /// A writer that writes only while `leadership` lasts.
    pub fn new(client: Client, leadership: Leadership, metrics: Metrics, events: Publisher) -> Self {
        Self { client, leadership, metrics, events, refused: Refused::default() }
    }

    /// Server-side apply of a complete object.
    async fn apply<K: Written + Serialize + Sync>(&self, object: &K) -> Result<K, Error> {
        let metadata = object.meta();
        let (namespace, name) =
            (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default());
        let mut params = PatchParams::apply(FieldManager::Import.as_str());
        // Without a uid this creates the object. Server-side apply has no "only if absent". But without force, a
        // foreign object causes a conflict, while our own object that the cache has not seen yet does not.
        params.force = metadata.uid.is_some();
        let api = K::Scope::api(self.client.clone(), namespace);
        self.call("apply", K::KIND, namespace, name, api.patch(name, &params, &Patch::Apply(object))).await
    }

    /// Server-side apply of the status of an existing object; a status subresource never creates. The API server does
    /// not compare uids of custom resources here, so one that has just taken the name of another can get its status. The
    /// caller gets an error, and corrects the status when it handles the new object. (It does compare those of pods.) With
    /// a version, only the object of that version gets it.
    async fn apply_status<K: Written>(
        &self,
        key: &ObjectKey,
        (uid, version): (&str, Option<&str>),
        status: impl Serialize,
        manager: FieldManager,
    ) -> Result<K, Error> {
        let mut metadata = json!({"name": &*key.name, "uid": uid});
        if !key.namespace.is_empty() {
            metadata["namespace"] = (*key.namespace).into();
        }
        if let Some(version) = version {
            metadata["resourceVersion"] = version.into();
        }
        let patch = Patch::Apply(json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            "metadata": metadata,
            "status": status,
        }));
        let params = PatchParams::apply(manager.as_str()).force();
        let api = K::Scope::api(self.client.clone(), &key.namespace);
        let request = api.patch_status(&key.name, &params, &patch);
        let answer = self.call("apply_status", K::KIND, &key.namespace, &key.name, request).await?;
        if answer.meta().uid.as_deref() != Some(uid) {
            let cause = Cause::Conflict("another object has taken the name".to_owned());
            return Err(Error { verb: "apply_status", kind: K::KIND, object: key.to_string(), cause });
        }
        Ok(answer)
    }

    async fn delete<K: Written>(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        let params = DeleteParams::background()
            .preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let api = K::Scope::api(self.client.clone(), namespace);
        match self.call("delete", K::KIND, namespace, name, api.delete(name, &params)).await {
            Ok(_) | Err(Error { cause: Cause::NotFound(_) | Cause::Conflict(_), .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        kind: &'static str,
        namespace: &str,
        name: &str,
        request: impl Future<Output = Result<T, kube::Error>> + Send,
    ) -> Result<T, Error> {
        let begun = Instant::now();
        // The request is not sent before it is polled.
        let result = match self.leadership.is_leader_until() {
            Some(until) => match timeout_at((begun + CALL_TIMEOUT).min(until + ARRIVAL), request).await {
                Ok(result) => result.map_err(Cause::from),
                Err(_) => Err(Cause::Timeout),
            },
            None => Err(Cause::NotLeader),
        };
        let outcome = result.as_ref().map_or_else(Cause::category, |_| "ok");
        self.metrics.calls.with_label_values(&[verb, kind, outcome]).inc();
        self.metrics.call_seconds.with_label_values(&[verb, kind]).observe(begun.elapsed().as_secs_f64());
        result.map_err(|cause| Error { verb, kind, object: format!("{namespace}/{name}"), cause })
    }
}

#[async_trait]
impl ClusterWriter for KubernetesWriter {
    async fn apply_service_import(&self, import: &ServiceImport) -> Result<ServiceImport, Error> {
        self.apply(import).await
    }

    async fn apply_import_status(
        &self,
        key: &ServiceKey,
        uid: &str,
        status: &ServiceImportStatus,
    ) -> Result<ServiceImport, Error> {
        self.apply_status(&key.clone().into(), (uid, None), status, FieldManager::ImportStatus).await
    }

    async fn apply_derived_service(&self, service: &v1::Service) -> Result<v1::Service, Error> {
        let applied = self.apply(service).await;
        let Some(value) = service.spec.as_ref().and_then(|spec| spec.traffic_distribution.as_ref()) else {
            return applied;
        };
        let taken = match &applied {
            // Kubernetes 1.30 drops it without a word.
            Ok(applied) => applied.spec.as_ref().is_none_or(|spec| spec.traffic_distribution.is_some()),
            // A policy may forbid it in one namespace only.
            Err(Error { cause: Cause::Invalid(message) | Cause::Forbidden(message), .. }) => {
                !message.contains("trafficDistribution")
            }
            Err(_) => true,
        };
        if taken {
            return applied;
        }
        let namespace = service.metadata.namespace.clone().unwrap_or_default();
        self.refused.note(Fact::Distribution(namespace, value.clone()));
        if applied.is_ok() {
            return applied;
        }
        // kube-proxy uses only the hints in the slices.
        let mut service = service.clone();
        service.spec.get_or_insert_default().traffic_distribution = None;
        self.apply(&service).await
    }

    fn takes_traffic_distribution(&self, namespace: &str, value: &str) -> bool {
        !self.refused.has(&Fact::Distribution(namespace.to_owned(), value.to_owned()))
    }

    async fn apply_endpoint_slice(&self, slice: &discovery::EndpointSlice) -> Result<discovery::EndpointSlice, Error> {
        match self.apply(slice).await {
            Err(Error { cause: Cause::Invalid(message), .. }) if message.contains("forNodes") => {
                self.refused.note(Fact::NodeHints);
                let mut slice = slice.clone();
                drop_node_hints(&mut slice);
                self.apply(&slice).await
            }
            Ok(applied) => {
                // Kubernetes 1.33 drops them without a word. What is never there would be written again and again.
                if has_node_hints(slice) && !has_node_hints(&applied) {
                    self.refused.note(Fact::NodeHints);
                }
                Ok(applied)
            }
            Err(error) => Err(error),
        }
    }

    fn takes_node_hints(&self) -> bool {
        !self.refused.has(&Fact::NodeHints)
    }

    async fn delete_service_import(&self, key: &ServiceKey, uid: &str) -> Result<(), Error> {
        self.delete::<ServiceImport>(&key.namespace, &key.name, uid).await
    }

    async fn delete_derived_service(&self, key: &ServiceKey, uid: &str) -> Result<(), Error> {
        self.delete::<v1::Service>(&key.namespace, &key.name, uid).await
    }

    async fn delete_endpoint_slice(&self, key: &ObjectKey, uid: &str) -> Result<(), Error> {
        self.delete::<discovery::EndpointSlice>(&key.namespace, &key.name, uid).await
    }

    async fn apply_export_conditions(
        &self,
        key: &ServiceKey,
        uid: &str,
        conditions: &[Condition],
        manager: FieldManager,
    ) -> Result<(), Error> {
        let status = json!({ "conditions": conditions });
        self.apply_status::<ServiceExport>(&key.clone().into(), (uid, None), status, manager).await.map(drop)
    }

    async fn open_gate(
        &self,
        key: &ObjectKey,
        uid: &str,
        reason: GateReason,
        message: &str,
        now: Timestamp,
    ) -> Result<(), Error> {
        let Row { condition, status, reason, .. } = reason.row();
        let condition = v1::PodCondition {
            type_: condition.to_owned(),
            status: status.as_str().to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(Time(now)),
            ..v1::PodCondition::default()
        };
        let status = json!({ "conditions": [condition] });
        self.apply_status::<v1::Pod>(key, (uid, None), status, FieldManager::Gate).await.map(drop)
    }

    async fn apply_cutover_status(
        &self,
        key: &ServiceKey,
        uid: &str,
        version: &str,
        status: &CutoverStatus,
    ) -> Result<(), Error> {
        let (key, which) = (key.clone().into(), (uid, Some(version)));
        self.apply_status::<Cutover>(&key, which, status, FieldManager::CutoverStatus).await.map(drop)
    }

    async fn apply_import_policy_status(
        &self,
        name: &str,
        uid: &str,
        status: &ClusterImportPolicyStatus,
    ) -> Result<(), Error> {
        let key = ObjectKey::new("", name);
        let manager = FieldManager::ImportPolicyStatus;
        self.apply_status::<ClusterImportPolicy>(&key, (uid, None), status, manager).await.map(drop)
    }

    async fn emit(&self, note: EventRecord) {
        if self.leadership.is_leader() {
            self.events.publish(note).await;
        }
    }
}

#[cfg(test)]
mod tests;
