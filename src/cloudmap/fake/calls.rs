//! The calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Fake, Fault, error, registry::Ended};
use crate::{
    Attributes, CreateService, Discovery, DnsConfig, DnsRecord, Error, ErrorKind, HttpName, Instance, Lane, Namespace,
    NamespaceArn, NamespaceKind, NewNamespace, NewService, Operation, OperationId, OperationState, Permit, Read,
    Service, ServiceChange, Write, quotas,
};

/// "Cloud Map waits for 30 seconds" before a custom health status takes effect.
const HEALTH_DELAY: Duration = Duration::from_secs(30);

#[async_trait]
impl Read for Fake {
    async fn list_namespaces(&self, _lane: Lane) -> Result<Vec<Namespace>, Error> {
        self.begin(Operation::ListNamespaces, "").await?;
        let own = |namespace: &Namespace| !NamespaceArn::is_meant(&namespace.id);
        Ok(self.registry().namespaces.iter().filter(|it| own(it)).cloned().collect())
    }

    async fn get_namespace(&self, id: &str) -> Result<Namespace, Error> {
        self.begin(Operation::GetNamespace, id).await?;
        self.registry().admit(Operation::GetNamespace, id)?;
        let found = self.registry().namespaces.iter().find(|namespace| &*namespace.id == id).cloned();
        found.ok_or_else(|| error(Operation::GetNamespace, ErrorKind::NotFound))
    }

    async fn list_services(&self, namespace_id: &str, _lane: Lane) -> Result<Vec<Service>, Error> {
        self.begin(Operation::ListServices, namespace_id).await?;
        let registry = self.registry();
        // As a filter, it finds nothing.
        let inside = registry.services.values().filter(|_| !registry.unshared.contains(namespace_id));
        let inside = inside.filter(|service| service.namespace_id.as_deref() == Some(namespace_id));
        let counted = |id: &str| Some(registry.instances.keys().filter(|(of, _)| **of == *id).count());
        let listed = |s: Service| {
            let instances = counted(&s.id);
            Service { creator_request_id: None, namespace_id: None, instances, ..s }
        };
        Ok(inside.cloned().map(listed).collect())
    }

    async fn get_service(&self, id: &str, _lane: Lane) -> Result<Service, Error> {
        self.begin(Operation::GetService, id).await?;
        self.registry().admit(Operation::GetService, id)?;
        let found = self.registry().services.get(id).cloned();
        found.ok_or_else(|| error(Operation::GetService, ErrorKind::NotFound))
    }

    async fn operation(&self, id: &OperationId, _lane: Lane) -> Result<OperationState, Error> {
        self.begin(Operation::GetOperation, &id.0).await?;
        let registry = self.registry();
        match registry.later.ended.get(&id.0) {
            Some(Ended::Succeeded { namespace }) => {
                let made = namespace.as_ref().map(|made| ("NAMESPACE".to_owned(), made.to_string()));
                Ok(OperationState::Succeeded { targets: made.into_iter().collect() })
            }
            Some(Ended::Failed { code, message }) => {
                Ok(OperationState::Failed { code: (*code).to_owned(), message: message.clone() })
            }
            None if registry.later.running.contains_key(&id.0) => Ok(OperationState::Running),
            None => Err(error(Operation::GetOperation, ErrorKind::NotFound)),
        }
    }

    async fn list_instances(&self, service_id: &str) -> Result<Vec<Instance>, Error> {
        self.begin(Operation::ListInstances, service_id).await?;
        let registry = self.registry();
        registry.admit(Operation::ListInstances, service_id)?;
        if !registry.services.contains_key(service_id) {
            return Err(error(Operation::ListInstances, ErrorKind::NotFound));
        }
        let inside = registry.instances.iter().filter(|((service, _), _)| **service == *service_id);
        Ok(inside.map(|((_, id), attributes)| Instance { id: id.clone(), attributes: attributes.clone() }).collect())
    }

    async fn unhealthy_instances(&self, service_id: &str) -> Result<BTreeSet<Arc<str>>, Error> {
        self.begin(Operation::GetInstancesHealthStatus, service_id).await?;
        self.registry().admit(Operation::GetInstancesHealthStatus, service_id)?;
        Ok(self.registry().unhealthy_in(service_id))
    }

    async fn discover_instances(
        &self,
        namespace: HttpName<'_>,
        service: &str,
        query: &BTreeMap<String, String>,
        _lane: Lane,
    ) -> Result<Discovery, Error> {
        self.begin(Operation::DiscoverInstances, service).await?;
        let registry = self.registry();
        let namespace = registry.namespaces.iter().find(|it| it.in_discovery() == namespace);
        // Whoever is not let in finds nothing.
        let namespace = namespace.filter(|it| !registry.unshared.contains(&it.id));
        let id = registry
            .services
            .values()
            .find(|s| &*s.name == service && s.namespace_id.as_ref() == namespace.map(|n| &n.id))
            .map(|service| service.id.clone())
            .ok_or_else(|| error(Operation::DiscoverInstances, ErrorKind::NotFound))?;
        let matching = |attributes: &Attributes| query.iter().all(|(key, value)| attributes.get(key) == Some(value));
        let shown = |key: &(Arc<str>, Arc<str>)| key.0 == id && !registry.undiscovered.contains(key);
        let all = registry.instances.iter().chain(&registry.lingering);
        let inside = all.filter(|(key, attributes)| shown(key) && matching(attributes));
        let instances: Vec<_> = inside
            .take(1000)
            .map(|((_, id), attributes)| Instance { id: id.clone(), attributes: attributes.clone() })
            .collect();
        let truncated = instances.len() == 1000;
        Ok(Discovery { instances, unhealthy: registry.unhealthy_in(&id), truncated })
    }

    async fn list_tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error> {
        self.begin(Operation::ListTagsForResource, arn).await?;
        Ok(self.registry().tags.get(arn).cloned().unwrap_or_default())
    }
}

#[async_trait]
impl Write for Fake {
    async fn create_namespace(&self, permit: &Permit, new: &NewNamespace<'_>) -> Result<OperationId, Error> {
        let (NewNamespace { name, vpc, description, tags, .. }, operation) = (*new, new.operation());
        let fault = self.begin_write(permit, operation, name).await?;
        let mut registry = self.registry();
        let taken = registry.namespaces.iter().find(|namespace| &*namespace.name == name);
        if let Some(taken) = taken.filter(|_| vpc.is_none()) {
            let id = Some(taken.id.to_string());
            return Err(error(operation, ErrorKind::AlreadyExists { id }));
        }
        if tags.len() > quotas::TAGS {
            return Err(error(operation, ErrorKind::LimitExceeded));
        }
        let Some(vpc) = vpc else {
            return Ok(OperationId(registry.make_namespace(name, NamespaceKind::Http, description, tags)));
        };
        // Each private namespace here is one of this VPC.
        let of_namespace = |it: &Namespace| it.kind == NamespaceKind::DnsPrivate && &*it.name == name;
        let has_zone = registry.zones.contains(name) || registry.namespaces.iter().any(of_namespace);
        let ended = match Ended::of(fault.as_ref()) {
            Ended::Succeeded { .. } if has_zone => Ended::Failed {
                code: "CANNOT_CREATE_HOSTED_ZONE",
                message: format!(
                    "The VPC {vpc} in region eu-west-1 has already been associated with the hosted zone Z1 with the same \
                     domain name."
                ),
            },
            Ended::Succeeded { .. } => {
                let made = registry.make_namespace(name, NamespaceKind::DnsPrivate, description, tags);
                return Ok(OperationId(made));
            }
            failed @ Ended::Failed { .. } => failed,
        };
        Ok(OperationId(registry.end(ended)))
    }

    async fn delete_namespace(&self, permit: &Permit, id: &str) -> Result<OperationId, Error> {
        let fault = self.begin_write(permit, Operation::DeleteNamespace, id).await?;
        let mut registry = self.registry();
        if registry.services.values().any(|service| service.namespace_id.as_deref() == Some(id)) {
            return Err(error(Operation::DeleteNamespace, ErrorKind::InUse));
        }
        let ended = Ended::of(fault.as_ref());
        if matches!(ended, Ended::Succeeded { .. }) {
            registry.namespaces.retain(|namespace| &*namespace.id != id);
        }
        Ok(OperationId(registry.end(ended)))
    }

    async fn create_service(&self, permit: &Permit, new: &NewService, _lane: Lane) -> Result<CreateService, Error> {
        let fault = self.begin_write(permit, Operation::CreateService, &new.name).await?;
        let mut registry = self.registry();
        if !registry.namespaces.iter().any(|namespace| namespace.id == new.namespace_id) {
            return Err(error(Operation::CreateService, ErrorKind::NotFound));
        }
        let taken = registry
            .services
            .values()
            .find(|s| s.name == new.name && s.namespace_id.as_ref() == Some(&new.namespace_id));
        if let Some(taken) = taken {
            let (id, creator_request_id) = (taken.id.clone(), taken.creator_request_id.clone());
            return Ok(CreateService::Exists { id, creator_request_id });
        }
        if new.tags.len() > quotas::TAGS {
            return Err(error(Operation::CreateService, ErrorKind::LimitExceeded));
        }
        let id = registry.add_service(&new.namespace_id, &new.name, &new.creator_request_id, "");
        if let Some(service) = registry.services.get_mut(&id) {
            (service.dns, service.custom_health_check) = (new.dns.clone(), new.custom_health_check);
            service.description.clone_from(&new.description);
        }
        registry.tags.insert(format!("arn:{id}").into(), new.tags.clone());
        if let Some(Fault::Lost(kind)) = fault {
            return Err(error(Operation::CreateService, kind));
        }
        Ok(CreateService::Created(registry.services[&id].clone()))
    }

    async fn update_service(&self, permit: &Permit, id: &str, change: &ServiceChange) -> Result<OperationId, Error> {
        let fault = self.begin_write(permit, Operation::UpdateService, id).await?;
        let mut registry = self.registry();
        let Some(service) = registry.services.get(id) else {
            return Err(error(Operation::UpdateService, ErrorKind::NotFound));
        };
        let namespace =
            registry.namespaces.iter().find(|namespace| Some(&namespace.id) == service.namespace_id.as_ref());
        let kinds = |records: &[DnsRecord]| records.iter().map(|record| record.record_type).collect::<BTreeSet<_>>();
        let has = service.dns.as_ref().map(|dns| kinds(&dns.records)).unwrap_or_default();
        let api_only = namespace.is_none_or(|namespace| namespace.kind == NamespaceKind::Http);
        if api_only || !kinds(&change.records).is_subset(&has) {
            return Err(error(Operation::UpdateService, ErrorKind::InvalidInput));
        }
        let ended = Ended::of(fault.as_ref());
        let succeeds = matches!(ended, Ended::Succeeded { .. });
        if let Some(service) = registry.services.get_mut(id).filter(|_| succeeds) {
            let ServiceChange { description, records, health_check } = change.clone();
            service.description = description.or_else(|| service.description.take());
            // As in AWS, everything that the request omits is deleted.
            service.health_check = health_check;
            service.dns = service.dns.take().map(|dns| DnsConfig { records, ..dns });
        }
        let operation = registry.end(ended);
        match fault {
            Some(Fault::Lost(kind)) => Err(error(Operation::UpdateService, kind)),
            _ => Ok(OperationId(operation)),
        }
    }

    async fn delete_service(&self, permit: &Permit, id: &str) -> Result<(), Error> {
        self.begin_write(permit, Operation::DeleteService, id).await?;
        let mut registry = self.registry();
        if registry.instances.keys().any(|(service, _)| &**service == id) {
            return Err(error(Operation::DeleteService, ErrorKind::InUse));
        }
        registry.services.remove(id).map(|_| ()).ok_or_else(|| error(Operation::DeleteService, ErrorKind::NotFound))
    }

    async fn register_instance(
        &self,
        permit: &Permit,
        service_id: &str,
        instance: &Instance,
        _lane: Lane,
    ) -> Result<OperationId, Error> {
        let operation = Operation::RegisterInstance;
        let fault = self.begin_write(permit, operation, &instance.id).await?;
        let key: (Arc<str>, Arc<str>) = (service_id.into(), instance.id.clone());
        {
            let registry = self.registry();
            if !registry.services.contains_key(service_id) {
                return Err(error(operation, ErrorKind::NotFound));
            }
            if let Some(kind) = registry.failing.get(service_id) {
                return Err(error(operation, kind.clone()));
            }
            if !instance.id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_/:.@-".contains(&b)) {
                return Err(error(operation, ErrorKind::InvalidInput));
            }
            let checked = registry.services[service_id].custom_health_check;
            if instance.attributes.contains_key("AWS_INIT_HEALTH_STATUS") && !checked {
                return Err(error(operation, ErrorKind::InvalidInput));
            }
            let pending = registry.later.running.values().filter(|p| p.effect.is_some() && *p.key.0 == *service_id);
            let from = (key.0.clone(), Arc::from(""));
            let there =
                registry.instances.range(from..).take_while(|((service, _), _)| **service == *service_id).count();
            if !registry.instances.contains_key(&key) && there + pending.count() >= self.quota {
                return Err(error(operation, ErrorKind::LimitExceeded));
            }
        }
        self.start(operation, key, Some(instance.attributes.clone()), fault)
    }

    async fn deregister_instance(
        &self,
        permit: &Permit,
        service_id: &str,
        instance_id: &str,
        _lane: Lane,
    ) -> Result<OperationId, Error> {
        let operation = Operation::DeregisterInstance;
        let fault = self.begin_write(permit, operation, instance_id).await?;
        if let Some(kind) = self.registry().failing.get(service_id) {
            return Err(error(operation, kind.clone()));
        }
        let key: (Arc<str>, Arc<str>) = (service_id.into(), instance_id.into());
        let busy = self.registry().later.running.values().any(|pending| pending.key == key);
        if !busy && !self.registry().instances.contains_key(&key) {
            return Err(error(operation, ErrorKind::NotFound));
        }
        self.start(operation, key, None, fault)
    }

    async fn set_custom_health(
        &self,
        permit: &Permit,
        service_id: &str,
        instance_id: &str,
        healthy: bool,
    ) -> Result<(), Error> {
        let operation = Operation::UpdateInstanceCustomHealthStatus;
        let fault = self.begin_write(permit, operation, instance_id).await?;
        let key = (service_id.into(), instance_id.into());
        let mut registry = self.registry();
        if let Some(kind) = registry.failing.get(service_id) {
            return Err(error(operation, kind.clone()));
        }
        if !registry.instances.contains_key(&key) {
            return Err(error(operation, ErrorKind::NotFound));
        }
        if !registry.services.get(service_id).is_some_and(|service| service.custom_health_check) {
            return Err(error(operation, ErrorKind::InvalidInput));
        }
        let takes_effect = Instant::now() + HEALTH_DELAY;
        registry.later.healths.push((takes_effect, key, healthy));
        match fault {
            Some(Fault::Lost(kind)) => Err(error(operation, kind)),
            _ => Ok(()),
        }
    }

    async fn tag(&self, permit: &Permit, arn: &str, tags: &BTreeMap<String, String>) -> Result<(), Error> {
        self.begin_write(permit, Operation::TagResource, arn).await?;
        let mut registry = self.registry();
        let exists = registry.namespaces.iter().any(|it| &*it.arn == arn)
            || registry.services.values().any(|it| &*it.arn == arn);
        if !exists {
            return Err(error(Operation::TagResource, ErrorKind::NotFound));
        }
        registry.tags.entry(arn.into()).or_default().extend(tags.clone());
        Ok(())
    }
}
