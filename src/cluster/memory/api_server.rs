//! What the API server does with the controller's writes: checks, field ownership, allocation.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
};

use async_trait::async_trait;
use k8s_openapi::{
    api::{core::v1, discovery::v1 as discovery},
    apimachinery::pkg::apis::meta::v1::{Condition, FieldsV1, ManagedFieldsEntry, ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::runtime::watcher::Event;
use serde_json::{Map, Value, json};

use super::{MemoryCluster, State, object_key, service_key};
use crate::{
    apply::{Cause, ClusterWriter, Error, drop_node_hints},
    events::EventRecord,
    objects::ObjectKey,
};
use api::{
    ClusterImportPolicyStatus, CutoverStatus, ServiceImport, ServiceImportStatus,
    conditions::GateReason,
    names::{CONDITION_REGISTERED, FieldManager},
};
use model::ServiceKey;

impl State {
    /// Checks a server-side apply by [`FieldManager::Import`], and completes the metadata.
    fn admit(&mut self, metadata: &mut ObjectMeta, old: Option<&ObjectMeta>) -> Result<(), Cause> {
        self.may_write()?;
        let namespace = metadata.namespace.clone().unwrap_or_default();
        match self.namespaces.get(&namespace) {
            None => return Err(Cause::NotFound(format!("namespaces {namespace:?} not found"))),
            Some(true) => {
                return Err(Cause::NamespaceTerminating(format!("namespace {namespace} is being terminated")));
            }
            Some(false) => {}
        }
        match (metadata.uid.as_deref(), old) {
            (None, Some(old)) if !is_own(old) => {
                return Err(Cause::Conflict("conflict with other field managers".to_owned()));
            }
            (Some(uid), old) if old.and_then(|old| old.uid.as_deref()) != Some(uid) => {
                return Err(Cause::Conflict("uid mismatch".to_owned()));
            }
            _ => {}
        }
        // What others set on the object stays. What was applied before and is left out now goes.
        let applied = |field: &Option<BTreeMap<String, String>>| -> Value {
            let owned = field.iter().flatten().map(|(name, _)| (format!("f:{name}"), json!({})));
            Value::Object(owned.collect::<Map<String, Value>>())
        };
        let fields = json!({"f:metadata": {"f:labels": applied(&metadata.labels), "f:annotations": applied(&metadata.annotations)}});
        let before = old.map(owned_metadata).unwrap_or_default();
        let keep =
            |mine: &mut Option<BTreeMap<String, String>>, old: Option<&BTreeMap<String, String>>, owned: &Value| {
                for (name, value) in old.into_iter().flatten() {
                    if owned.get(format!("f:{name}")).is_none() {
                        mine.get_or_insert_default().entry(name.clone()).or_insert_with(|| value.clone());
                    }
                }
            };
        keep(&mut metadata.labels, old.and_then(|old| old.labels.as_ref()), &before["f:labels"]);
        keep(&mut metadata.annotations, old.and_then(|old| old.annotations.as_ref()), &before["f:annotations"]);
        self.identify(metadata, old);
        metadata.managed_fields = Some(vec![ManagedFieldsEntry {
            manager: Some(FieldManager::Import.as_str().to_owned()),
            operation: Some("Apply".to_owned()),
            fields_v1: Some(FieldsV1(fields)),
            ..ManagedFieldsEntry::default()
        }]);
        Ok(())
    }

    fn may_write(&mut self) -> Result<(), Cause> {
        if let Some(Some(cause)) = self.failures.pop_front() {
            return Err(cause);
        }
        self.writes += 1;
        Ok(())
    }

    /// Allocates cluster IPs as Kubernetes does: one per family, for the life of the Service.
    fn allocate(&mut self, service: &mut v1::Service, old: Option<&v1::Service>) {
        let serial = self.serial;
        let spec = service.spec.get_or_insert_default();
        if spec.cluster_ip.as_deref() == Some("None") {
            spec.cluster_ips = Some(vec!["None".to_owned()]);
            return;
        }
        if let Some(old) = old.and_then(|old| old.spec.as_ref()) {
            spec.cluster_ip.clone_from(&old.cluster_ip);
            spec.cluster_ips.clone_from(&old.cluster_ips);
        }
        let dual = spec.ip_family_policy.as_deref() == Some("PreferDualStack");
        let families = spec.ip_families.get_or_insert_with(|| {
            let before = old.and_then(|old| old.spec.as_ref()?.ip_families.clone()).unwrap_or_default();
            let mut families = if before.is_empty() { vec!["IPv4".to_owned()] } else { before };
            if dual && families.len() == 1 {
                families.push(if families[0] == "IPv4" { "IPv6" } else { "IPv4" }.to_owned());
            }
            families
        });
        let families = families.clone();
        let ips = spec.cluster_ips.get_or_insert_default();
        for family in families.iter().skip(ips.len()) {
            ips.push(match family.as_str() {
                "IPv6" => Ipv6Addr::from_bits((0xfd00 << 112) + u128::from(serial)).to_string(),
                _ => Ipv4Addr::from_bits(0x0a60_0000 + serial).to_string(),
            });
        }
        ips.truncate(families.len());
        spec.cluster_ip = ips.first().cloned();
    }
}

fn is_own(metadata: &ObjectMeta) -> bool {
    !owned_metadata(metadata).is_null()
}

fn owned_metadata(metadata: &ObjectMeta) -> Value {
    metadata
        .managed_fields
        .iter()
        .flatten()
        .find(|entry| entry.manager.as_deref() == Some(FieldManager::Import.as_str()))
        .and_then(|entry| Some(entry.fields_v1.as_ref()?.0["f:metadata"].clone()))
        .unwrap_or_default()
}

fn failed(verb: &'static str, kind: &'static str, key: &impl std::fmt::Display) -> impl FnOnce(Cause) -> Error {
    let object = key.to_string();
    move |cause| Error { verb, kind, object, cause }
}

#[async_trait]
impl ClusterWriter for MemoryCluster {
    async fn apply_service_import(&self, import: &ServiceImport) -> Result<ServiceImport, Error> {
        let mut state = self.state();
        let (key, mut import) = (service_key(&import.metadata), import.clone());
        let old = state.imports.get(&key).cloned();
        state.admit(&mut import.metadata, old.as_ref().map(|old| &old.metadata)).map_err(failed(
            "apply",
            "ServiceImport",
            &key,
        ))?;
        import.status = old.and_then(|old| old.status);
        state.imports.insert(key, import.clone());
        state.writers.imports.apply(Event::Apply(Ok(import.clone())));
        Ok(import)
    }

    async fn apply_import_status(
        &self,
        key: &ServiceKey,
        uid: &str,
        status: &ServiceImportStatus,
    ) -> Result<ServiceImport, Error> {
        let failed = failed("apply_status", "ServiceImport", key);
        let mut state = self.state();
        let state = &mut *state;
        if let Err(cause) = state.may_write() {
            return Err(failed(cause));
        }
        match state.imports.get_mut(key) {
            None => Err(failed(Cause::NotFound(format!("serviceimports {key} not found")))),
            Some(import) if import.metadata.uid.as_deref() != Some(uid) => {
                Err(failed(Cause::Conflict("another object has taken the name".to_owned())))
            }
            Some(import) => {
                import.status = Some(status.clone());
                state.writers.imports.apply(Event::Apply(Ok(import.clone())));
                Ok(import.clone())
            }
        }
    }

    async fn apply_derived_service(&self, service: &v1::Service) -> Result<v1::Service, Error> {
        let mut state = self.state();
        let (key, mut service) = (service_key(&service.metadata), service.clone());
        let old = state.services.get(&key).cloned();
        state
            .admit(&mut service.metadata, old.as_ref().map(|old| &old.metadata))
            .map_err(failed("apply", "Service", &key))?;
        if let Some(spec) = service.spec.as_mut().filter(|_| state.refuses_traffic_distribution) {
            spec.traffic_distribution = None;
        }
        state.allocate(&mut service, old.as_ref());
        state.services.insert(key, service.clone());
        state.writers.services.apply(Event::Apply(Ok(service.clone())));
        Ok(service)
    }

    fn takes_traffic_distribution(&self, _namespace: &str, _value: &str) -> bool {
        !self.state().refuses_traffic_distribution
    }

    async fn apply_endpoint_slice(&self, slice: &discovery::EndpointSlice) -> Result<discovery::EndpointSlice, Error> {
        let mut state = self.state();
        let (key, mut slice) = (object_key(&slice.metadata), slice.clone());
        if state.refuses_node_hints {
            drop_node_hints(&mut slice);
        }
        let old = state.slices.get(&key).cloned();
        let admitted = match &old {
            Some(old) if old.address_type != slice.address_type => {
                Err(Cause::Invalid("addressType: field is immutable".to_owned()))
            }
            old => state.admit(&mut slice.metadata, old.as_ref().map(|old| &old.metadata)),
        };
        admitted.map_err(failed("apply", "EndpointSlice", &key))?;
        state.slices.insert(key, slice.clone());
        state.show_slice(slice.clone());
        Ok(slice)
    }

    fn takes_node_hints(&self) -> bool {
        !self.state().refuses_node_hints
    }

    async fn delete_service_import(&self, key: &ServiceKey, uid: &str) -> Result<(), Error> {
        let mut state = self.state();
        state.may_write().map_err(failed("delete", "ServiceImport", key))?;
        if state.imports.get(key).is_some_and(|import| import.metadata.uid.as_deref() == Some(uid)) {
            let import = state.imports.remove(key).unwrap();
            state.writers.imports.apply(Event::Delete(Ok(import)));
        }
        Ok(())
    }

    async fn delete_derived_service(&self, key: &ServiceKey, uid: &str) -> Result<(), Error> {
        let mut state = self.state();
        state.may_write().map_err(failed("delete", "Service", key))?;
        if state.services.get(key).is_some_and(|service| service.metadata.uid.as_deref() == Some(uid)) {
            let service = state.services.remove(key).unwrap();
            state.writers.services.apply(Event::Delete(Ok(service)));
        }
        Ok(())
    }

    async fn delete_endpoint_slice(&self, key: &ObjectKey, uid: &str) -> Result<(), Error> {
        let mut state = self.state();
        state.may_write().map_err(failed("delete", "EndpointSlice", key))?;
        if state.slices.get(key).is_some_and(|slice| slice.metadata.uid.as_deref() == Some(uid)) {
            let slice = state.slices.remove(key).unwrap();
            state.writers.slices.apply(Event::Delete(Ok(slice.clone())));
            state.writers.imported_slices.apply(Event::Delete(Ok(slice)));
        }
        Ok(())
    }

    async fn apply_export_conditions(
        &self,
        key: &ServiceKey,
        uid: &str,
        conditions: &[Condition],
        manager: FieldManager,
    ) -> Result<(), Error> {
        let failed = failed("apply_status", "ServiceExport", key);
        let mut state = self.state();
        let state = &mut *state;
        if let Err(cause) = state.may_write() {
            return Err(failed(cause));
        }
        let Some(export) = state.exports.get_mut(key).filter(|export| export.metadata.uid.as_deref() == Some(uid))
        else {
            return Err(failed(Cause::NotFound(format!("serviceexports {key} not found"))));
        };
        let types = conditions.iter().map(|condition| condition.type_.clone()).collect::<Vec<_>>();
        let before = state.owned.insert((key.clone(), manager), types.clone()).unwrap_or_default();
        let present = &mut export.status.get_or_insert_default().conditions;
        present.retain(|condition| !before.contains(&condition.type_) && !types.contains(&condition.type_));
        present.extend(conditions.iter().cloned());
        state.writers.exports.apply(Event::Apply(Ok(export.clone())));
        Ok(())
    }

    async fn open_gate(
        &self,
        key: &ObjectKey,
        uid: &str,
        reason: GateReason,
        message: &str,
        now: Timestamp,
    ) -> Result<(), Error> {
        let failed = failed("apply_status", "Pod", key);
        let mut state = self.state();
        let state = &mut *state;
        if let Err(cause) = state.may_write() {
            return Err(failed(cause));
        }
        let Some(pod) = state.pods.get_mut(key) else {
            return Err(failed(Cause::NotFound(format!("pods {key} not found"))));
        };
        if pod.metadata.uid.as_deref() != Some(uid) {
            return Err(failed(Cause::Conflict("metadata.uid: field is immutable".to_owned())));
        }
        let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != CONDITION_REGISTERED);
        conditions.push(v1::PodCondition {
            type_: CONDITION_REGISTERED.to_owned(),
            status: reason.row().status.as_str().to_owned(),
            reason: Some(reason.as_str().to_owned()),
            message: Some(message.to_owned()),
            last_transition_time: Some(Time(now)),
            ..v1::PodCondition::default()
        });
        state.writers.gated.apply(Event::Apply(Ok(pod.clone())));
        Ok(())
    }

    async fn apply_cutover_status(
        &self,
        key: &ServiceKey,
        uid: &str,
        version: &str,
        status: &CutoverStatus,
    ) -> Result<(), Error> {
        let failed = failed("apply_status", "Cutover", key);
        let mut state = self.state();
        let state = &mut *state;
        if let Err(cause) = state.may_write() {
            return Err(failed(cause));
        }
        let Some(mut cutover) = state.cutovers.get(key).cloned() else {
            return Err(failed(Cause::NotFound(format!("cutovers {key} not found"))));
        };
        let metadata = cutover.metadata.clone();
        if metadata.uid.as_deref() != Some(uid) || metadata.resource_version.as_deref() != Some(version) {
            return Err(failed(Cause::Conflict("the object has been modified".to_owned())));
        }
        cutover.status = Some(status.clone());
        state.identify(&mut cutover.metadata, Some(&metadata));
        state.cutovers.insert(key.clone(), cutover.clone());
        state.writers.cutovers.apply(Event::Apply(Ok(cutover)));
        Ok(())
    }

    async fn apply_import_policy_status(
        &self,
        name: &str,
        uid: &str,
        status: &ClusterImportPolicyStatus,
    ) -> Result<(), Error> {
        let key = ServiceKey::new("", name);
        let failed = failed("apply_status", "ClusterImportPolicy", &key);
        let mut state = self.state();
        let state = &mut *state;
        if let Err(cause) = state.may_write() {
            return Err(failed(cause));
        }
        let Some(policy) = state.policies.get_mut(name).filter(|policy| policy.metadata.uid.as_deref() == Some(uid))
        else {
            return Err(failed(Cause::NotFound(format!("clusterimportpolicies {name} not found"))));
        };
        policy.status = Some(status.clone());
        let policy = policy.clone();
        state.writers.policies.apply(Event::Apply(Ok(policy)));
        Ok(())
    }

    async fn emit(&self, note: EventRecord) {
        let kind = note.regarding.kind.as_deref().unwrap_or_default();
        assert!(note.reason.kinds().contains(&kind), "{} is not to be on a {kind}", note.reason);
        let held = self.state().holds_events;
        if held {
            std::future::pending::<()>().await;
        }
        self.state().notes.push(note);
    }
}
