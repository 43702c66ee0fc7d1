//! What there is.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

use super::{Fault, error, mk_service};
use crate::{Attributes, Error, ErrorKind, Namespace, NamespaceArn, NamespaceKind, Operation, Service};

/// What there is, and what happens to calls.
#[derive(Debug, Default)]
pub struct Registry {
    /// All namespaces. Those of other accounts have their ARN as id, and are not listed.
    pub namespaces: Vec<Namespace>,
    /// ARNs of namespaces that other accounts do not share any more.
    pub unshared: BTreeSet<Arc<str>>,
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
    /// All calls: the operation, and the id of the instance, service or namespace.
    pub calls: Vec<(Operation, String)>,
    /// Calls in flight.
    pub in_flight: usize,
    /// The most calls that were in flight at the same time.
    pub most_in_flight: usize,
    /// Names of hosted zones in the VPC that belong to no namespace.
    pub zones: BTreeSet<String>,
    pub(super) later: Later,
    next: u64,
}

/// What takes effect after the call, and what became of it.
#[derive(Debug, Default)]
pub(super) struct Later {
    /// Operations in progress.
    pub(super) running: BTreeMap<Arc<str>, Pending>,
    pub(super) ended: BTreeMap<Arc<str>, Ended>,
    /// Health statuses that were set.
    pub(super) healths: Vec<Health>,
}

/// What became of an operation.
#[derive(Debug)]
pub(super) enum Ended {
    Succeeded {
        /// The namespace that it created.
        namespace: Option<Arc<str>>,
    },
    Failed {
        /// AWS's code.
        code: &'static str,
        /// AWS's text.
        message: String,
    },
}

impl Ended {
    /// As a fault says it.
    pub(super) fn of(fault: Option<&Fault>) -> Self {
        match fault {
            Some(Fault::FailedLater(code)) => Self::failed(code),
            _ => Self::Succeeded { namespace: None },
        }
    }

    fn failed(code: &'static str) -> Self {
        Self::Failed { code, message: "injected".to_owned() }
    }
}

/// When a health status takes effect, the service and instance, and whether it is healthy.
pub(super) type Health = (Instant, (Arc<str>, Arc<str>), bool);

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) until: Instant,
    pub(super) key: (Arc<str>, Arc<str>),
    /// `None` removes the instance.
    pub(super) effect: Option<Attributes>,
    /// The code with which it fails.
    pub(super) fails: Option<&'static str>,
}

impl Registry {
    /// Finishes the operations that are due.
    pub(super) fn settle(&mut self) {
        let now = Instant::now();
        for (id, pending) in self.later.running.extract_if(.., |_, pending| pending.until <= now) {
            let fails = self.failing_later.contains(&pending.key.0) || !self.services.contains_key(&pending.key.0);
            if let Some(code) = pending.fails.or_else(|| fails.then_some("INTERNAL_FAILURE")) {
                self.later.ended.insert(id, Ended::failed(code));
                continue;
            }
            self.later.ended.insert(id, Ended::Succeeded { namespace: None });
            if let Some(attributes) = pending.effect {
                match attributes.get("AWS_INIT_HEALTH_STATUS").map(String::as_str) {
                    Some("UNHEALTHY") => self.unhealthy.insert(pending.key.clone()),
                    _ => self.unhealthy.remove(&pending.key),
                };
                self.instances.insert(pending.key, attributes);
            } else {
                self.unhealthy.remove(&pending.key);
                self.instances.remove(&pending.key);
            }
        }
        for (_, key, healthy) in self.later.healths.extract_if(.., |(at, _, _)| *at <= now) {
            if healthy {
                self.unhealthy.remove(&key);
            } else if self.instances.contains_key(&key) {
                self.unhealthy.insert(key);
            }
        }
    }

    pub(super) fn id(&mut self, kind: &str) -> Arc<str> {
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

    /// Adds a namespace that another account shares, and returns its ARN.
    pub fn add_shared(&mut self, name: &str, owner: &str) -> Arc<str> {
        let id = self.add_namespace(name, NamespaceKind::Http);
        let arn: Arc<str> =
            format!("arn:aws:servicediscovery:us-east-1:{owner}:namespace/{}", id.replace('-', "-a")).into();
        if let Some(namespace) = self.namespaces.last_mut() {
            (namespace.id, namespace.arn) = (arn.clone(), arn.clone());
        }
        arn
    }

    /// Refuses what names a namespace that is not shared any more, or a service in one.
    pub(super) fn admit(&self, operation: Operation, id: &str) -> Result<(), Error> {
        let namespace = self.services.get(id).and_then(|service| service.namespace_id.as_deref()).unwrap_or(id);
        if self.unshared.contains(namespace) { Err(error(operation, ErrorKind::AccessDenied)) } else { Ok(()) }
    }

    /// Adds a namespace as a call does, and returns the id of the operation.
    pub(super) fn make_namespace(
        &mut self,
        name: &str,
        kind: NamespaceKind,
        description: &str,
        tags: &BTreeMap<String, String>,
    ) -> Arc<str> {
        let id = self.add_namespace(name, kind);
        self.tags.insert(format!("arn:{id}").into(), tags.clone());
        if let Some(namespace) = self.namespaces.last_mut() {
            namespace.description = Some(description.to_owned());
        }
        self.end(Ended::Succeeded { namespace: Some(id) })
    }

    /// Notes what became of an operation, and returns its id.
    pub(super) fn end(&mut self, ended: Ended) -> Arc<str> {
        let operation = self.id("op");
        self.later.ended.insert(operation.clone(), ended);
        operation
    }

    /// Adds a service, and returns its id.
    pub fn add_service(&mut self, namespace_id: &Arc<str>, name: &str, creator: &str, description: &str) -> Arc<str> {
        let mut id = self.id("srv");
        if let Some(arn) = NamespaceArn::parse(namespace_id) {
            id = arn.services().replace('*', &id).into();
        }
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

    pub(super) fn unhealthy_in(&self, service_id: &str) -> BTreeSet<Arc<str>> {
        let inside = self.unhealthy.iter().filter(|key| *key.0 == *service_id && self.instances.contains_key(key));
        inside.map(|(_, id)| id.clone()).collect()
    }

    /// How many calls of the operation there were.
    pub fn count(&self, operation: Operation) -> usize {
        self.calls.iter().filter(|(called, _)| *called == operation).count()
    }
}
