//! The calls that the engine requests, and their results.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout_at};

use tracing::warn;

use super::Permit;
use crate::{
    Adopt, Owner,
    ownership::{self, Control},
};
use base::env;
use cloudmap::{
    CloudMap, CreateService, DnsConfig, DnsRecord, Error, ErrorKind, Instance, Lane, Namespace, NewService,
    OperationId, OperationState, Service, ServiceChange,
};
use cluster::record::{Hidden, HiddenStore};
use ledger::record::{ResourceVersion, StoreError};
use model::Target;

/// Number of polls until the creation of a namespace or the change of a service is given up. AWS takes seconds for
/// them; if it takes longer, the next look shows the result.
const POLLS: u32 = 30;
const POLL: Duration = Duration::from_secs(2);
/// The type of target in operations that create a namespace.
const NAMESPACE: &str = "NAMESPACE";

#[derive(Debug)]
pub(super) enum Call {
    ListNamespaces,
    CreateNamespace {
        name: Arc<str>,
    },
    ListServices {
        namespace_id: Arc<str>,
    },
    /// The same for the records alone.
    ListRecords {
        namespace_id: Arc<str>,
    },
    CreateService {
        target: Target,
        namespace_id: Arc<str>,
        dns: Option<DnsConfig>,
        custom_health_check: bool,
    },
    Inspect {
        target: Target,
        service_id: Arc<str>,
    },
    /// `health`: the service has a custom health check, whose results are read as well.
    Read {
        target: Target,
        service_id: Arc<str>,
        health: bool,
        begun: Instant,
    },
    Register {
        target: Target,
        service_id: Arc<str>,
        instance: Instance,
    },
    Deregister {
        target: Target,
        service_id: Arc<str>,
        id: Arc<str>,
    },
    SetHealth {
        target: Target,
        service_id: Arc<str>,
        id: Arc<str>,
        healthy: bool,
    },
    SetTtl {
        target: Target,
        service_id: Arc<str>,
        ttl: u32,
        adopt: Option<Adopt>,
    },
    Poll {
        target: Target,
        id: Arc<str>,
        operation: OperationId,
    },
    DeleteService {
        target: Target,
        service_id: Arc<str>,
    },
    /// Read the record of hidden tasks.
    Recall,
    /// Store it.
    Remember {
        hidden: Hidden,
        expected: ResourceVersion,
    },
    /// Hide a task of others, or show it; `target` is `None` if nobody has the service any more.
    Mark {
        target: Option<Target>,
        service_id: Arc<str>,
        id: Arc<str>,
        healthy: bool,
    },
}

#[derive(Debug)]
pub(super) enum Event {
    Namespaces(Result<Vec<Namespace>, Error>),
    /// The namespace; `None` if only a listing shows it.
    NamespaceCreated {
        name: Arc<str>,
        result: Result<Option<Namespace>, Error>,
    },
    Services {
        namespace_id: Arc<str>,
        result: Result<Vec<Service>, Error>,
    },
    Records(Result<Vec<Service>, Error>),
    ServiceCreated {
        target: Target,
        result: Result<CreateService, Error>,
    },
    Inspected {
        target: Target,
        result: Result<(Service, BTreeMap<String, String>), Error>,
    },
    Read {
        target: Target,
        begun: Instant,
        result: Result<Inventory, Error>,
    },
    Written {
        target: Target,
        service_id: Arc<str>,
        id: Arc<str>,
        result: Result<OperationId, Error>,
    },
    HealthSet {
        target: Target,
        id: Arc<str>,
        healthy: bool,
        result: Result<(), Error>,
    },
    /// The current records; `None` if we may not change the service.
    TtlSet {
        target: Target,
        result: Result<Option<Vec<DnsRecord>>, Error>,
    },
    Polled {
        target: Target,
        id: Arc<str>,
        operation: OperationId,
        result: Result<OperationState, Error>,
    },
    ServiceDeleted {
        target: Target,
        result: Result<(), Error>,
    },
    Recalled(Result<(Hidden, ResourceVersion), StoreError>),
    Remembered(Result<ResourceVersion, StoreError>),
    Marked {
        target: Option<Target>,
        service_id: Arc<str>,
        id: Arc<str>,
        healthy: bool,
        result: Result<(), Error>,
    },
}

impl Event {
    /// The target that it is about; `None`: it is about what targets share.
    pub(super) fn target(&self) -> Option<&Target> {
        match self {
            Self::Namespaces(_)
            | Self::NamespaceCreated { .. }
            | Self::Services { .. }
            | Self::Records(_)
            | Self::Recalled(_)
            | Self::Remembered(_) => None,
            Self::Marked { target, .. } => target.as_ref(),
            Self::ServiceCreated { target, .. }
            | Self::Inspected { target, .. }
            | Self::Read { target, .. }
            | Self::Written { target, .. }
            | Self::HealthSet { target, .. }
            | Self::TtlSet { target, .. }
            | Self::Polled { target, .. }
            | Self::ServiceDeleted { target, .. } => Some(target),
        }
    }
}

/// All instances of a service.
#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) instances: Vec<Instance>,
    /// Instances that fail the custom health check; `None` if they were not read or could not be.
    pub(super) unhealthy: Option<BTreeSet<Arc<str>>>,
}

pub(super) struct Performer {
    cloudmap: Arc<dyn CloudMap>,
    hidden: Arc<dyn HiddenStore>,
    identity: Owner,
    permit: Permit,
}

impl Performer {
    pub(super) fn new(
        cloudmap: Arc<dyn CloudMap>,
        hidden: Arc<dyn HiddenStore>,
        identity: Owner,
        permit: Permit,
    ) -> Self {
        Self { cloudmap, hidden, identity, permit }
    }

    pub(super) async fn perform(self: Arc<Self>, call: Call) -> Event {
        let cloudmap = &self.cloudmap;
        match call {
            Call::ListNamespaces => Event::Namespaces(cloudmap.list_namespaces(Lane::Instances).await),
            Call::CreateNamespace { name } => {
                let result = self.writing(&name, "CreateHttpNamespace", self.create_namespace(&name)).await;
                Event::NamespaceCreated { name, result }
            }
            Call::ListServices { namespace_id } => {
                let result = cloudmap.list_services(&namespace_id, Lane::Instances).await;
                Event::Services { namespace_id, result }
            }
            Call::ListRecords { namespace_id } => {
                Event::Records(cloudmap.list_services(&namespace_id, Lane::Instances).await)
            }
            Call::CreateService { target, namespace_id, dns, custom_health_check } => {
                let new = NewService {
                    namespace_id,
                    name: target.service.clone(),
                    creator_request_id: self.identity.creator_request_id(env::random()),
                    // external-dns crashes on services that have a description and no records.
                    description: dns.is_some().then(|| self.identity.description()),
                    dns,
                    custom_health_check,
                    tags: self.identity.tags(),
                };
                let result = self
                    .writing(&target.namespace, "CreateService", cloudmap.create_service(&new, Lane::Instances))
                    .await;
                Event::ServiceCreated { target, result }
            }
            Call::Inspect { target, service_id } => {
                let result = self.inspect(&service_id).await;
                Event::Inspected { target, result }
            }
            Call::Read { target, service_id, health, begun } => {
                let result = self.inventory(&service_id, health).await;
                Event::Read { target, begun, result }
            }
            Call::SetHealth { target, service_id, id, healthy } => {
                let set = cloudmap.set_custom_health(&service_id, &id, healthy);
                let result = self.writing(&target.namespace, "UpdateInstanceCustomHealthStatus", set).await;
                Event::HealthSet { target, id, healthy, result }
            }
            Call::SetTtl { target, service_id, ttl, adopt } => {
                let set = self.set_ttl(&target.namespace, &service_id, ttl, adopt.as_ref());
                let result = set.await;
                Event::TtlSet { target, result }
            }
            Call::Register { target, service_id, instance } => {
                let register = cloudmap.register_instance(&service_id, &instance, Lane::Instances);
                let result = self.writing(&target.namespace, "RegisterInstance", register).await;
                Event::Written { target, service_id, id: instance.id, result }
            }
            Call::Deregister { target, service_id, id } => {
                // The only write that may happen in a ledger: our instances do not belong there.
                let deregister = cloudmap.deregister_instance(&service_id, &id, Lane::Instances);
                let result = self.leading("DeregisterInstance", deregister).await;
                Event::Written { target, service_id, id, result }
            }
            Call::Poll { target, id, operation } => {
                let result = cloudmap.operation(&operation, Lane::Instances).await;
                Event::Polled { target, id, operation, result }
            }
            Call::DeleteService { target, service_id } => {
                let delete = self.delete_service(&service_id);
                let result = self.writing(&target.namespace, "DeleteService", delete).await;
                Event::ServiceDeleted { target, result }
            }
            Call::Recall => Event::Recalled(self.hidden.load().await),
            Call::Remember { hidden, expected } => Event::Remembered(self.remember(&hidden, &expected).await),
            Call::Mark { target, service_id, id, healthy } => {
                let (to, named) = (service_id.clone(), id.clone());
                let mark = cloudmap.set_custom_health(&to, &named, healthy);
                let result = match &target {
                    Some(target) => self.writing(&target.namespace, "UpdateInstanceCustomHealthStatus", mark).await,
                    None if healthy => {
                        let shown = self.leading("UpdateInstanceCustomHealthStatus", mark).await;
                        self.unless_elsewhere(&to, shown).await
                    }
                    None => {
                        let (operation, message) =
                            ("UpdateInstanceCustomHealthStatus", "nobody has the service".to_owned());
                        Err(Error { operation, kind: ErrorKind::Other, message })
                    }
                };
                Event::Marked { target, service_id, id, healthy, result }
            }
        }
    }

    /// Stores the record of hidden tasks, only while this replica leads.
    async fn remember(&self, hidden: &Hidden, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        let ended = || StoreError::Failed("this replica no longer leads".to_owned());
        let until = self.permit.until().ok_or_else(ended)?;
        timeout_at(until, self.hidden.store(hidden, expected)).await.unwrap_or_else(|_| Err(ended()))
    }

    /// Like [`leading`](Self::leading), but never in a ledger, whatever was planned.
    async fn writing<T>(
        &self,
        namespace: &str,
        operation: &'static str,
        write: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if ledger::is_ledger(namespace) {
            let message = format!("the namespace {namespace} is the ledger of a ClusterSet; nothing was sent");
            return Err(Error { operation, kind: ErrorKind::AccessDenied, message });
        }
        self.leading(operation, write).await
    }

    /// Makes a write only while this replica leads. Gives it up when leadership ends, even while it waits for its turn. Who
    /// gives up the Lease is followed within a second, long before the time is over until which it might write.
    async fn leading<T>(
        &self,
        operation: &'static str,
        write: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let error = |kind, message: &str| Err(Error { operation, kind, message: message.to_owned() });
        let Some(mut until) = self.permit.until() else {
            return error(ErrorKind::Other, "this replica no longer leads; nothing was sent");
        };
        let (term, lost) = (self.permit.term(), self.permit.leadership.lost());
        tokio::pin!(write, lost);
        loop {
            tokio::select! {
                biased;
                () = &mut lost => return error(ErrorKind::Unknown, "this replica's leadership ended meanwhile"),
                result = timeout_at(until, &mut write) => {
                    if let Ok(result) = result {
                        return result;
                    }
                }
            }
            // The Lease is renewed every few seconds, and a call may wait longer than one renewal holds.
            match self.permit.until().filter(|renewed| *renewed > until && self.permit.term() == term) {
                Some(renewed) => until = renewed,
                None => return error(ErrorKind::Unknown, "this replica's leadership ended meanwhile"),
            }
        }
    }

    /// Creates a namespace, waits until it exists, and gets it, because AWS allows few listings. `None` if only a
    /// listing can show it.
    async fn create_namespace(&self, name: &Arc<str>) -> Result<Option<Namespace>, Error> {
        let (creator, description) = (self.identity.creator_request_id(env::random()), self.identity.description());
        let created = self.cloudmap.create_http_namespace(name, &creator, &description, &self.identity.tags()).await;
        let id = match created {
            Ok(operation) | Err(Error { kind: ErrorKind::Duplicate { operation: Some(operation) }, .. }) => {
                self.finished("CreateHttpNamespace", &operation).await?.remove(NAMESPACE)
            }
            Err(Error { kind: ErrorKind::AlreadyExists { id }, .. }) => id,
            Err(error) => return Err(error),
        };
        let Some(id) = id else { return Ok(None) };
        let found = self.cloudmap.get_namespace(&id).await;
        Ok(found.ok().filter(|found| found.name == *name))
    }

    /// Waits for the end of an operation. Returns its targets by type.
    async fn finished(&self, operation: &'static str, id: &OperationId) -> Result<BTreeMap<String, String>, Error> {
        let failed = |kind, message| Err(Error { operation, kind, message });
        for _ in 0..POLLS {
            match self.cloudmap.operation(id, Lane::Instances).await {
                Ok(OperationState::Running) => sleep(POLL).await,
                Ok(OperationState::Succeeded { targets }) => return Ok(targets),
                Ok(OperationState::Failed { code, message }) => {
                    return failed(ErrorKind::Other, format!("{code}: {message}"));
                }
                Err(error) => return Err(error),
            }
        }
        failed(ErrorKind::Unknown, "AWS has not finished it within a minute".to_owned())
    }

    /// If health cannot be read, the last known status counts.
    async fn inventory(&self, service_id: &str, health: bool) -> Result<Inventory, Error> {
        let instances = self.cloudmap.list_instances(service_id).await?;
        let unhealthy = if health { Some(self.cloudmap.unhealthy_instances(service_id).await) } else { None };
        if let Some(Err(error)) = &unhealthy {
            warn!(service_id, %error, "cannot read the health of instances; the health that was read before counts");
        }
        Ok(Inventory { instances, unhealthy: unhealthy.and_then(Result::ok) })
    }

    /// Changes the TTL of a service's records, if we may change the service. AWS deletes what an update omits, so all
    /// records and the health check are read just before.
    async fn set_ttl(
        &self,
        namespace: &str,
        service_id: &str,
        ttl: u32,
        adopt: Option<&Adopt>,
    ) -> Result<Option<Vec<DnsRecord>>, Error> {
        let (service, tags) = self.inspect(service_id).await?;
        if ownership::control(&service, &tags, &self.identity, adopt) == Control::Others {
            return Ok(None);
        }
        let before = service.dns.map(|dns| dns.records).unwrap_or_default();
        let records: Vec<_> = before.iter().map(|record| DnsRecord { ttl, ..*record }).collect();
        if records != before {
            let (description, health_check) = (service.description, service.health_check);
            let change = ServiceChange { description, records: records.clone(), health_check };
            let update = self.cloudmap.update_service(service_id, &change);
            let operation = match self.writing(namespace, "UpdateService", update).await {
                Ok(operation) => operation,
                // Somebody else's update is in progress. Another look shows its result.
                Err(Error { kind: ErrorKind::Duplicate { operation: Some(operation) }, .. }) => {
                    self.finished("UpdateService", &operation).await?;
                    return Ok(Some(before));
                }
                Err(error) => return Err(error),
            };
            self.finished("UpdateService", &operation).await?;
        }
        Ok(Some(records))
    }

    /// Tags matter only if our ClusterSet did not create the service.
    async fn inspect(&self, service_id: &str) -> Result<(Service, BTreeMap<String, String>), Error> {
        let service = self.cloudmap.get_service(service_id, Lane::Instances).await?;
        if ownership::made_by_us(&service, &self.identity) {
            return Ok((service, BTreeMap::new()));
        }
        let tags = self.cloudmap.list_tags(&service.arn).await?;
        Ok((service, tags))
    }

    /// What became of a mark in a service that this term has not read. The task is gone only if its service is there:
    /// otherwise the account or the region may be another one, and the task may still be hidden.
    async fn unless_elsewhere(&self, service_id: &str, marked: Result<(), Error>) -> Result<(), Error> {
        if !matches!(&marked, Err(error) if error.kind == ErrorKind::NotFound) {
            return marked;
        }
        match self.cloudmap.get_service(service_id, Lane::Instances).await {
            Ok(_) => marked,
            Err(error) if error.kind == ErrorKind::NotFound => Err(Error { kind: ErrorKind::Other, ..error }),
            Err(error) => Err(error),
        }
    }

    /// Deletes a service that our ClusterSet provably created. AWS refuses that for one that has instances.
    async fn delete_service(&self, service_id: &str) -> Result<(), Error> {
        let service = match self.cloudmap.get_service(service_id, Lane::Instances).await {
            Err(Error { kind: ErrorKind::NotFound, .. }) => return Ok(()),
            service => service?,
        };
        if !ownership::made_by_us(&service, &self.identity) {
            return Ok(());
        }
        match self.cloudmap.delete_service(service_id).await {
            Err(Error { kind: ErrorKind::NotFound, .. }) => Ok(()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cloudmap::{Access, Limited, Limits, NamespaceKind, Operation, Rate, Rates, fake::Fake};
    use cluster::{Leadership, record::memory::StoredHidden};

    /// Planning already refuses such targets. This is the last protection if planning is wrong.
    #[tokio::test(start_paused = true)]
    async fn only_deregistrations_are_sent_to_a_ledger() {
        let fake = Fake::new();
        let namespace_id = fake.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
        let service_id = fake.registry().add_service(&namespace_id, "clusters", "cloudmap-mcs", "");
        let cluster = "c1".parse().unwrap();
        let identity = Owner { clusterset: None, cluster, cluster_uid: "uid-1".into() };
        let permit =
            Permit { leadership: Leadership::manual(Some(Instant::now() + Duration::from_hours(1))), ledger: None };
        let hidden = Arc::new(StoredHidden::default());
        let performer = Arc::new(Performer::new(Arc::new(fake.clone()), hidden, identity, permit));
        let target = || Target { namespace: "clusterset-prod".into(), service: "clusters".into() };
        let id: Arc<str> = "k8s-1".into();
        let instance = Instance { id: id.clone(), attributes: BTreeMap::new() };
        let service = || service_id.clone();
        for call in [
            Call::CreateNamespace { name: "clusterset-new".into() },
            Call::CreateService { target: target(), namespace_id, dns: None, custom_health_check: false },
            Call::Register { target: target(), service_id: service(), instance },
            Call::SetHealth { target: target(), service_id: service(), id: id.clone(), healthy: true },
            Call::Mark { target: Some(target()), service_id: service(), id: id.clone(), healthy: false },
            Call::SetTtl { target: target(), service_id: service(), ttl: 1, adopt: Some(Adopt::CloudMapController) },
            Call::DeleteService { target: target(), service_id: service() },
        ] {
            performer.clone().perform(call).await;
        }
        let writes = || fake.registry().calls.iter().filter(|(call, _)| call.access() == Access::Write).count();
        assert_eq!(writes(), 0, "{:?}", fake.registry().calls);
        performer.perform(Call::Deregister { target: target(), service_id: service(), id }).await;
        assert_eq!(writes(), 1);
    }

    /// As when AWS throttles, and a replica with better caches gets the Lease.
    #[tokio::test(start_paused = true)]
    async fn a_write_that_waits_for_its_turn_is_not_sent_after_the_lease_is_given_up() {
        let fake = Fake::new();
        let namespace_id = fake.registry().add_namespace("shop", NamespaceKind::Http);
        let service_id = fake.registry().add_service(&namespace_id, "web", "terraform", "");
        let rates = Rates::default().with(Operation::RegisterInstance, Rate::new(0.25, 1.0, 0.0));
        let limited = Limited::new(fake.clone(), Limits::new(&rates, None));
        let identity = Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "uid-1".into() };
        let leadership = Leadership::manual(Some(Instant::now() + Duration::from_secs(10)));
        let permit = Permit { leadership: leadership.clone(), ledger: None };
        let hidden = Arc::new(StoredHidden::default());
        let performer = Arc::new(Performer::new(Arc::new(limited), hidden, identity, permit));
        let register = |id: &str| {
            let target = Target { namespace: "shop".into(), service: "web".into() };
            let instance = Instance { id: id.into(), attributes: BTreeMap::new() };
            performer.clone().perform(Call::Register { target, service_id: service_id.clone(), instance })
        };
        register("k8s-1").await;
        let waiting = tokio::spawn(register("k8s-2"));
        sleep(Duration::from_secs(1)).await;
        leadership.set(None);
        let Event::Written { result, .. } = waiting.await.unwrap() else { panic!("it is a write") };
        assert!(matches!(result, Err(Error { kind: ErrorKind::Unknown, .. })), "{result:?}");
        assert_eq!(fake.registry().count(Operation::RegisterInstance), 1);
    }
}
