//! A registry in memory behind the port, for tests under simulated time. It has asynchronous operations, one at a time
//! per instance, quotas and injected faults, and it records all calls.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::{Instant, sleep};

use super::{
    Attributes, CloudMap, CreateService, Discovery, DnsConfig, DnsRecord, Error, ErrorKind, Instance, Lane, Namespace,
    NamespaceKind, NewService, Operation, OperationId, OperationState, Service, ServiceChange, quotas,
};

/// "Cloud Map waits for 30 seconds" before a custom health status takes effect.
const HEALTH_DELAY: Duration = Duration::from_secs(30);

/// What happens to the next matching call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The call fails and has no effect.
    Refused(ErrorKind),
    /// The call fails, but has its effect.
    Lost(ErrorKind),
    /// The call is accepted, and its operation fails.
    FailedLater,
}

/// What there is, and what happens to calls.
#[derive(Debug, Default)]
pub struct Registry {
    /// All namespaces.
    pub namespaces: Vec<Namespace>,
    /// All services, by id.
    pub services: BTreeMap<Arc<str>, Service>,
    /// All instances, by service id and instance id.
    pub instances: BTreeMap<(Arc<str>, Arc<str>), Attributes>,
    /// Instances that fail their health check.
    pub unhealthy: BTreeSet<(Arc<str>, Arc<str>)>,
    /// Instances that the discovery plane does not return, although they exist.
    pub undiscovered: BTreeSet<(Arc<str>, Arc<str>)>,
    /// Instances that the discovery plane still returns, although they are gone.
    pub lingering: BTreeMap<(Arc<str>, Arc<str>), Attributes>,
    /// The tags of namespaces and services, by ARN.
    pub tags: BTreeMap<Arc<str>, BTreeMap<String, String>>,
    /// What happens to the next calls of each operation.
    pub faults: BTreeMap<Operation, VecDeque<Fault>>,
    /// Every call about these services and namespaces fails with the given error while they are in this map.
    pub failing: BTreeMap<Arc<str>, ErrorKind>,
    /// Every operation in these services is accepted and fails later while they are in this set.
    pub failing_later: BTreeSet<Arc<str>>,
    /// Health statuses that were set, and when they take effect.
    said: Vec<Said>,
    /// All calls: the operation, and the id of the instance, service or namespace.
    pub calls: Vec<(Operation, String)>,
    /// Calls in flight.
    pub in_flight: usize,
    /// The most calls that were in flight at the same time.
    pub most_in_flight: usize,
    /// Operations in progress.
    running: BTreeMap<Arc<str>, Pending>,
    /// Finished operations, and whether they succeeded.
    over: BTreeMap<Arc<str>, bool>,
    /// Namespaces by the operation that created them.
    made: BTreeMap<Arc<str>, Arc<str>>,
    next: u64,
}

/// When a health status takes effect, the service and instance, and whether it is healthy.
type Said = (Instant, (Arc<str>, Arc<str>), bool);

#[derive(Debug)]
struct Pending {
    until: Instant,
    key: (Arc<str>, Arc<str>),
    /// `None` removes the instance.
    effect: Option<Attributes>,
    fails: bool,
}

/// The registry. Clones share it.
#[derive(Debug, Clone)]
pub struct Fake {
    registry: Arc<Mutex<Registry>>,
    call: Duration,
    operation: Duration,
    quota: usize,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            registry: Arc::default(),
            call: Duration::from_millis(20),
            operation: Duration::from_millis(1700),
            quota: 1000,
        }
    }
}

impl Fake {
    /// An empty registry. A call takes 20 ms, an operation 1.7 s; a service has room for 1,000 instances.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows so many instances in a service.
    #[must_use]
    pub fn with_quota(self, quota: usize) -> Self {
        Self { quota, ..self }
    }

    /// Sets how long each call takes.
    #[must_use]
    pub fn with_call(self, call: Duration) -> Self {
        Self { call, ..self }
    }

    /// The registry as it is now, to look at and to change.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        let mut registry = self.registry.lock().unwrap();
        registry.settle();
        registry
    }

    /// Lets a fault happen to the next call of the operation that has none yet.
    pub fn fault(&self, operation: Operation, fault: Fault) {
        self.registry().faults.entry(operation).or_default().push_back(fault);
    }

    async fn begin(&self, operation: Operation, subject: &str) -> Result<Option<Fault>, Error> {
        let fault = {
            let mut registry = self.registry();
            registry.calls.push((operation, subject.to_owned()));
            registry.in_flight += 1;
            registry.most_in_flight = registry.most_in_flight.max(registry.in_flight);
            registry.faults.get_mut(&operation).and_then(VecDeque::pop_front)
        };
        sleep(self.call).await;
        let mut registry = self.registry();
        registry.in_flight -= 1;
        if let Some(kind) = registry.failing.get(subject) {
            return Err(error(operation, kind.clone()));
        }
        match fault {
            Some(Fault::Refused(kind)) => Err(error(operation, kind)),
            fault => Ok(fault),
        }
    }

    fn start(
        &self,
        operation: Operation,
        key: (Arc<str>, Arc<str>),
        effect: Option<Attributes>,
        fault: Option<Fault>,
    ) -> Result<OperationId, Error> {
        let mut registry = self.registry();
        if let Some((id, _)) = registry.running.iter().find(|(_, pending)| pending.key == key) {
            let id = Some(OperationId(id.clone()));
            return Err(error(operation, ErrorKind::Duplicate { operation: id }));
        }
        let id = registry.id("op");
        let until = Instant::now() + self.operation;
        let fails = matches!(fault, Some(Fault::FailedLater));
        registry.running.insert(id.clone(), Pending { until, key, effect, fails });
        match fault {
            Some(Fault::Lost(kind)) => Err(error(operation, kind)),
            _ => Ok(OperationId(id)),
        }
    }
}

fn error(operation: Operation, kind: ErrorKind) -> Error {
    Error { operation: operation.name(), message: format!("injected {}", kind.category()), kind }
}

impl Registry {
    /// Finishes the operations that are due.
    fn settle(&mut self) {
        let now = Instant::now();
        for (id, pending) in self.running.extract_if(.., |_, pending| pending.until <= now) {
            let fails = pending.fails || self.failing_later.contains(&pending.key.0);
            let succeeds = !fails && self.services.contains_key(&pending.key.0);
            self.over.insert(id, succeeds);
            match pending.effect {
                _ if !succeeds => {}
                Some(attributes) => {
                    match attributes.get("AWS_INIT_HEALTH_STATUS").map(String::as_str) {
                        Some("UNHEALTHY") => self.unhealthy.insert(pending.key.clone()),
                        _ => self.unhealthy.remove(&pending.key),
                    };
                    self.instances.insert(pending.key, attributes);
                }
                None => {
                    self.unhealthy.remove(&pending.key);
                    self.instances.remove(&pending.key);
                }
            }
        }
        for (_, key, healthy) in self.said.extract_if(.., |(at, _, _)| *at <= now) {
            if healthy {
                self.unhealthy.remove(&key);
            } else if self.instances.contains_key(&key) {
                self.unhealthy.insert(key);
            }
        }
    }

    fn id(&mut self, kind: &str) -> Arc<str> {
        self.next += 1;
        format!("{kind}-{}", self.next).into()
    }

    /// Adds a namespace, and returns its id.
    pub fn add_namespace(&mut self, name: &str, kind: NamespaceKind) -> Arc<str> {
        let id = self.id("ns");
        let namespace = Namespace {
            id: id.clone(),
            arn: format!("arn:{id}").into(),
            name: name.into(),
            http_name: name.into(),
            kind,
            description: None,
            created: i64::try_from(self.next).unwrap(),
            soa_ttl: (kind != NamespaceKind::Http).then_some(15),
            hosted_zone: (kind != NamespaceKind::Http).then(|| format!("Z-{}", self.next).into()),
        };
        self.namespaces.push(namespace);
        id
    }

    /// Adds a service, and returns its id.
    pub fn add_service(&mut self, namespace_id: &Arc<str>, name: &str, creator: &str, description: &str) -> Arc<str> {
        let id = self.id("srv");
        let service = Service {
            id: id.clone(),
            arn: format!("arn:{id}").into(),
            name: name.into(),
            namespace_id: Some(namespace_id.clone()),
            description: Some(description.to_owned()),
            creator_request_id: Some(creator.to_owned()),
            // In other seconds than any other, so that orders by date show.
            created: 1_000 * i64::try_from(self.next).unwrap(),
            ..mk_service()
        };
        self.services.insert(id.clone(), service);
        id
    }

    fn unhealthy_in(&self, service_id: &str) -> BTreeSet<Arc<str>> {
        let inside = self.unhealthy.iter().filter(|key| *key.0 == *service_id && self.instances.contains_key(key));
        inside.map(|(_, id)| id.clone()).collect()
    }

    /// How many calls of the operation there were.
    pub fn count(&self, operation: Operation) -> usize {
        self.calls.iter().filter(|(called, _)| *called == operation).count()
    }
}

#[async_trait]
impl CloudMap for Fake {
    async fn list_namespaces(&self, _lane: Lane) -> Result<Vec<Namespace>, Error> {
        self.begin(Operation::ListNamespaces, "").await?;
        Ok(self.registry().namespaces.clone())
    }

    async fn get_namespace(&self, id: &str) -> Result<Namespace, Error> {
        self.begin(Operation::GetNamespace, id).await?;
        let found = self.registry().namespaces.iter().find(|namespace| &*namespace.id == id).cloned();
        found.ok_or_else(|| error(Operation::GetNamespace, ErrorKind::NotFound))
    }

    async fn create_http_namespace(
        &self,
        name: &str,
        _creator_request_id: &str,
        description: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<OperationId, Error> {
        self.begin(Operation::CreateHttpNamespace, name).await?;
        let mut registry = self.registry();
        if let Some(taken) = registry.namespaces.iter().find(|namespace| &*namespace.name == name) {
            let id = Some(taken.id.to_string());
            return Err(error(Operation::CreateHttpNamespace, ErrorKind::AlreadyExists { id }));
        }
        if tags.len() > quotas::TAGS {
            return Err(error(Operation::CreateHttpNamespace, ErrorKind::LimitExceeded));
        }
        let id = registry.add_namespace(name, NamespaceKind::Http);
        registry.tags.insert(format!("arn:{id}").into(), tags.clone());
        if let Some(namespace) = registry.namespaces.last_mut() {
            namespace.description = Some(description.to_owned());
        }
        let operation = registry.id("op");
        registry.over.insert(operation.clone(), true);
        registry.made.insert(operation.clone(), id);
        Ok(OperationId(operation))
    }

    async fn delete_namespace(&self, id: &str) -> Result<OperationId, Error> {
        self.begin(Operation::DeleteNamespace, id).await?;
        let mut registry = self.registry();
        if registry.services.values().any(|service| service.namespace_id.as_deref() == Some(id)) {
            return Err(error(Operation::DeleteNamespace, ErrorKind::InUse));
        }
        registry.namespaces.retain(|namespace| &*namespace.id != id);
        Ok(OperationId("op".into()))
    }

    async fn list_services(&self, namespace_id: &str, _lane: Lane) -> Result<Vec<Service>, Error> {
        self.begin(Operation::ListServices, namespace_id).await?;
        let registry = self.registry();
        let inside = registry.services.values().filter(|service| service.namespace_id.as_deref() == Some(namespace_id));
        let counted = |id: &str| Some(registry.instances.keys().filter(|(of, _)| **of == *id).count());
        let listed = |s: Service| {
            let instances = counted(&s.id);
            Service { creator_request_id: None, namespace_id: None, instances, ..s }
        };
        Ok(inside.cloned().map(listed).collect())
    }

    async fn get_service(&self, id: &str, _lane: Lane) -> Result<Service, Error> {
        self.begin(Operation::GetService, id).await?;
        let found = self.registry().services.get(id).cloned();
        found.ok_or_else(|| error(Operation::GetService, ErrorKind::NotFound))
    }

    async fn create_service(&self, new: &NewService, _lane: Lane) -> Result<CreateService, Error> {
        let fault = self.begin(Operation::CreateService, &new.name).await?;
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

    async fn update_service(&self, id: &str, change: &ServiceChange) -> Result<OperationId, Error> {
        let fault = self.begin(Operation::UpdateService, id).await?;
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
        let succeeds = !matches!(fault, Some(Fault::FailedLater));
        if let Some(service) = registry.services.get_mut(id).filter(|_| succeeds) {
            let ServiceChange { description, records, health_check } = change.clone();
            service.description = description.or_else(|| service.description.take());
            // As in AWS, everything that the request omits is deleted.
            service.health_check = health_check;
            service.dns = service.dns.take().map(|dns| DnsConfig { records, ..dns });
        }
        let operation = registry.id("op");
        registry.over.insert(operation.clone(), succeeds);
        match fault {
            Some(Fault::Lost(kind)) => Err(error(Operation::UpdateService, kind)),
            _ => Ok(OperationId(operation)),
        }
    }

    async fn delete_service(&self, id: &str) -> Result<(), Error> {
        self.begin(Operation::DeleteService, id).await?;
        let mut registry = self.registry();
        if registry.instances.keys().any(|(service, _)| &**service == id) {
            return Err(error(Operation::DeleteService, ErrorKind::InUse));
        }
        registry.services.remove(id).map(|_| ()).ok_or_else(|| error(Operation::DeleteService, ErrorKind::NotFound))
    }

    async fn register_instance(
        &self,
        service_id: &str,
        instance: &Instance,
        _lane: Lane,
    ) -> Result<OperationId, Error> {
        let operation = Operation::RegisterInstance;
        let fault = self.begin(operation, &instance.id).await?;
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
            let pending = registry.running.values().filter(|p| p.effect.is_some() && *p.key.0 == *service_id);
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
        service_id: &str,
        instance_id: &str,
        _lane: Lane,
    ) -> Result<OperationId, Error> {
        let operation = Operation::DeregisterInstance;
        let fault = self.begin(operation, instance_id).await?;
        if let Some(kind) = self.registry().failing.get(service_id) {
            return Err(error(operation, kind.clone()));
        }
        let key: (Arc<str>, Arc<str>) = (service_id.into(), instance_id.into());
        let busy = self.registry().running.values().any(|pending| pending.key == key);
        if !busy && !self.registry().instances.contains_key(&key) {
            return Err(error(operation, ErrorKind::NotFound));
        }
        self.start(operation, key, None, fault)
    }

    async fn operation(&self, id: &OperationId, _lane: Lane) -> Result<OperationState, Error> {
        self.begin(Operation::GetOperation, &id.0).await?;
        let registry = self.registry();
        match registry.over.get(&id.0) {
            Some(true) => {
                let made = registry.made.get(&id.0).map(|made| ("NAMESPACE".to_owned(), made.to_string()));
                Ok(OperationState::Succeeded { targets: made.into_iter().collect() })
            }
            Some(false) => {
                Ok(OperationState::Failed { code: "INTERNAL_FAILURE".to_owned(), message: "injected".to_owned() })
            }
            None if registry.running.contains_key(&id.0) => Ok(OperationState::Running),
            None => Err(error(Operation::GetOperation, ErrorKind::NotFound)),
        }
    }

    async fn list_instances(&self, service_id: &str) -> Result<Vec<Instance>, Error> {
        self.begin(Operation::ListInstances, service_id).await?;
        let registry = self.registry();
        if !registry.services.contains_key(service_id) {
            return Err(error(Operation::ListInstances, ErrorKind::NotFound));
        }
        let inside = registry.instances.iter().filter(|((service, _), _)| **service == *service_id);
        Ok(inside.map(|((_, id), attributes)| Instance { id: id.clone(), attributes: attributes.clone() }).collect())
    }

    async fn unhealthy_instances(&self, service_id: &str) -> Result<BTreeSet<Arc<str>>, Error> {
        self.begin(Operation::GetInstancesHealthStatus, service_id).await?;
        Ok(self.registry().unhealthy_in(service_id))
    }

    async fn discover_instances(
        &self,
        http_name: &str,
        service: &str,
        query: &BTreeMap<String, String>,
        _lane: Lane,
    ) -> Result<Discovery, Error> {
        self.begin(Operation::DiscoverInstances, service).await?;
        let registry = self.registry();
        let namespace = registry.namespaces.iter().find(|namespace| &*namespace.http_name == http_name);
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

    async fn set_custom_health(&self, service_id: &str, instance_id: &str, healthy: bool) -> Result<(), Error> {
        let operation = Operation::UpdateInstanceCustomHealthStatus;
        let fault = self.begin(operation, instance_id).await?;
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
        registry.said.push((takes_effect, key, healthy));
        match fault {
            Some(Fault::Lost(kind)) => Err(error(operation, kind)),
            _ => Ok(()),
        }
    }

    async fn list_tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error> {
        self.begin(Operation::ListTagsForResource, arn).await?;
        Ok(self.registry().tags.get(arn).cloned().unwrap_or_default())
    }

    async fn tag(&self, arn: &str, tags: &BTreeMap<String, String>) -> Result<(), Error> {
        self.begin(Operation::TagResource, arn).await?;
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

/// A service without records that nobody owns.
pub fn mk_service() -> Service {
    Service {
        id: "srv".into(),
        arn: "arn".into(),
        name: "web".into(),
        namespace_id: None,
        description: None,
        creator_request_id: None,
        dns: None,
        custom_health_check: false,
        health_check: None,
        created: 0,
        instances: None,
    }
}
