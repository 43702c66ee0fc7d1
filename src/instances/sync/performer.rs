//! Makes the calls that the engine requests. Each write asks for its permit immediately before it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    Authority, SyncSettings,
    call::{Call, Event, Inventory},
    making::kind_of_failure,
};
use crate::{
    Adopt, MissingNamespaces, Owner,
    ownership::{self, Control},
};
use base::env;
use cloudmap::{
    CreateService, DnsConfig, DnsRecord, Error, ErrorKind, Instance, Lane, Listings, NewService, Operation,
    OperationId, OperationState, Permit, Service, ServiceChange,
};
use cluster::record::{Hidden, HiddenStore};
use ledger::record::{ResourceVersion, StoreError};
use model::Target;

/// How long the change of a service may take. AWS takes seconds; if it takes longer, the next look shows the result.
const PATIENCE: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_secs(2);

pub(super) struct Performer {
    pub(super) cloudmap: Arc<dyn cloudmap::Write>,
    listings: Arc<Listings>,
    hidden: Arc<dyn HiddenStore>,
    pub(super) identity: Owner,
    pub(super) missing: MissingNamespaces,
    authority: Authority,
}

impl Performer {
    pub(super) fn new(
        cloudmap: Arc<dyn cloudmap::Write>,
        listings: Arc<Listings>,
        hidden: Arc<dyn HiddenStore>,
        settings: &SyncSettings,
        authority: Authority,
    ) -> Self {
        let SyncSettings { identity, missing_namespaces: missing, .. } = settings.clone();
        Self { cloudmap, listings, hidden, identity, missing, authority }
    }

    pub(super) async fn perform(self: Arc<Self>, call: Call) -> Event {
        let cloudmap = &self.cloudmap;
        match call {
            Call::ListNamespaces => Event::Namespaces(self.listings.namespaces().await),
            Call::CreateNamespace { name } => {
                let result = self.create_namespace(&name).await;
                Event::NamespaceCreated { name, result }
            }
            Call::ListServices { namespace_id } => {
                let result = self.listings.services(&namespace_id).await;
                Event::Services { namespace_id, result }
            }
            Call::ListRecords { namespace_id } => Event::Records(self.listings.services(&namespace_id).await),
            Call::CreateService { target, namespace_id, dns, custom_health_check } => {
                let result = self.create_service(&target, namespace_id, dns, custom_health_check).await;
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
                let result = self.set_health(&target, &service_id, &id, healthy).await;
                Event::HealthSet { target, id, healthy, result }
            }
            Call::SetTtl { target, service_id, ttl, adopt } => {
                let result = self.set_ttl(&target.namespace, &service_id, ttl, adopt.as_ref()).await;
                Event::TtlSet { target, result }
            }
            Call::Register { target, service_id, instance } => {
                let result = self.register(&target, &service_id, &instance).await;
                Event::Written { target, service_id, id: instance.id, result }
            }
            Call::Deregister { target, service_id, id } => {
                let result = self.deregister(&service_id, &id).await;
                Event::Written { target, service_id, id, result }
            }
            Call::Poll { target, id, operation } => {
                let result = cloudmap.operation(&operation, Lane::Instances).await;
                Event::Polled { target, id, operation, result }
            }
            Call::DeleteService { target, service_id } => {
                let result = self.delete_service(&target, &service_id).await;
                Event::ServiceDeleted { target, result }
            }
            Call::Recall => Event::Recalled(self.hidden.load().await),
            Call::Remember { hidden, expected } => Event::Remembered(self.remember(&hidden, &expected).await),
            Call::Mark { target, service_id, id, healthy } => {
                let result = match &target {
                    Some(target) => self.set_health(target, &service_id, &id, healthy).await,
                    None => self.mark_unwanted(&service_id, &id, healthy).await,
                };
                Event::Marked { target, service_id, id, healthy, result }
            }
        }
    }

    /// The permit for a write; an error if this replica may not write now.
    fn permit(&self, operation: Operation) -> Result<Permit, Error> {
        self.authority.permit().ok_or_else(|| Permit::missing(operation))
    }

    /// The same, but never in a ledger, whatever was planned.
    pub(super) fn permit_in(&self, namespace: &str, operation: Operation) -> Result<Permit, Error> {
        if ledger::is_ledger(namespace) {
            let message = format!("the namespace {namespace} is the ledger of a ClusterSet; nothing was sent");
            return Err(Error { operation: operation.name(), kind: ErrorKind::AccessDenied, message });
        }
        self.permit(operation)
    }

    /// Stores the record of hidden tasks, only while this replica leads.
    async fn remember(&self, hidden: &Hidden, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        let ended = || StoreError::Failed("this replica no longer leads".to_owned());
        let permit = self.authority.permit().ok_or_else(ended)?;
        tokio::select! {
            biased;
            stored = self.hidden.store(hidden, expected) => stored,
            () = permit.ended() => Err(ended()),
        }
    }

    async fn create_service(
        &self,
        target: &Target,
        namespace_id: Arc<str>,
        dns: Option<DnsConfig>,
        custom_health_check: bool,
    ) -> Result<CreateService, Error> {
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
        let permit = self.permit_in(&target.namespace, Operation::CreateService)?;
        self.cloudmap.create_service(&permit, &new, Lane::Instances).await
    }

    async fn register(&self, target: &Target, service_id: &str, instance: &Instance) -> Result<OperationId, Error> {
        let permit = self.permit_in(&target.namespace, Operation::RegisterInstance)?;
        self.cloudmap.register_instance(&permit, service_id, instance, Lane::Instances).await
    }

    /// The only write that may happen in a ledger: our instances do not belong there.
    async fn deregister(&self, service_id: &str, id: &str) -> Result<OperationId, Error> {
        let permit = self.permit(Operation::DeregisterInstance)?;
        self.cloudmap.deregister_instance(&permit, service_id, id, Lane::Instances).await
    }

    async fn set_health(&self, target: &Target, service_id: &str, id: &str, healthy: bool) -> Result<(), Error> {
        let permit = self.permit_in(&target.namespace, Operation::UpdateInstanceCustomHealthStatus)?;
        self.cloudmap.set_custom_health(&permit, service_id, id, healthy).await
    }

    /// Shows a task in a service that nobody has any more, and that this term has not read.
    async fn mark_unwanted(&self, service_id: &str, id: &str, healthy: bool) -> Result<(), Error> {
        let operation = Operation::UpdateInstanceCustomHealthStatus;
        if !healthy {
            let message = "nobody has the service".to_owned();
            return Err(Error { operation: operation.name(), kind: ErrorKind::Other, message });
        }
        let permit = self.permit(operation)?;
        let shown = self.cloudmap.set_custom_health(&permit, service_id, id, healthy).await;
        self.unless_elsewhere(service_id, shown).await
    }

    /// Waits for the end of an operation. Returns its targets by type.
    pub(super) async fn finished(
        &self,
        operation: Operation,
        id: &OperationId,
        patience: Duration,
    ) -> Result<BTreeMap<String, String>, Error> {
        let failed = |kind, message| Err(Error { operation: operation.name(), kind, message });
        let until = Instant::now() + patience;
        while Instant::now() < until {
            match self.cloudmap.operation(id, Lane::Instances).await {
                Ok(OperationState::Running) => sleep(POLL).await,
                Ok(OperationState::Succeeded { targets }) => return Ok(targets),
                Ok(OperationState::Failed { code, message }) => {
                    return failed(kind_of_failure(&code), format!("{code}: {message}"));
                }
                Err(error) => return Err(error),
            }
        }
        failed(ErrorKind::Unknown, format!("AWS has not finished it within {} s", patience.as_secs()))
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
            let permit = self.permit_in(namespace, Operation::UpdateService)?;
            let operation = match self.cloudmap.update_service(&permit, service_id, &change).await {
                Ok(operation) => operation,
                // Somebody else's update is in progress. Another look shows its result.
                Err(Error { kind: ErrorKind::Duplicate { operation: Some(operation) }, .. }) => {
                    self.finished(Operation::UpdateService, &operation, PATIENCE).await?;
                    return Ok(Some(before));
                }
                Err(error) => return Err(error),
            };
            self.finished(Operation::UpdateService, &operation, PATIENCE).await?;
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
    async fn delete_service(&self, target: &Target, service_id: &str) -> Result<(), Error> {
        let permit = self.permit_in(&target.namespace, Operation::DeleteService)?;
        let service = match self.cloudmap.get_service(service_id, Lane::Instances).await {
            Err(Error { kind: ErrorKind::NotFound, .. }) => return Ok(()),
            service => service?,
        };
        if !ownership::made_by_us(&service, &self.identity) {
            return Ok(());
        }
        match self.cloudmap.delete_service(&permit, service_id).await {
            Err(Error { kind: ErrorKind::NotFound, .. }) => Ok(()),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cloudmap::{Access, Limited, Limits, NamespaceKind, Rate, Rates, fake::Fake};
    use cluster::{Leadership, record::memory::StoredHidden};

    /// Planning already refuses such targets. This is the last protection if planning is wrong.
    #[tokio::test(start_paused = true)]
    async fn only_deregistrations_are_sent_to_a_ledger() {
        let fake = Fake::new();
        let namespace_id = fake.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
        let service_id = fake.registry().add_service(&namespace_id, "clusters", "cloudmap-mcs", "");
        let cluster = "c1".parse().unwrap();
        let identity = Owner { clusterset: None, cluster, cluster_uid: "uid-1".into() };
        let authority =
            Authority { leadership: Leadership::manual(Some(Instant::now() + Duration::from_hours(1))), ledger: None };
        let hidden = Arc::new(StoredHidden::default());
        let cloudmap: Arc<dyn cloudmap::Write> = Arc::new(fake.clone());
        let listings = Listings::new(cloudmap.clone());
        let performer = Arc::new(Performer::new(cloudmap, listings, hidden, &SyncSettings::new(identity), authority));
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
        let limited: Arc<dyn cloudmap::Write> = Arc::new(Limited::new(fake.clone(), Limits::new(&rates, None)));
        let identity = Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "uid-1".into() };
        let leadership = Leadership::manual(Some(Instant::now() + Duration::from_secs(10)));
        let authority = Authority { leadership: leadership.clone(), ledger: None };
        let hidden = Arc::new(StoredHidden::default());
        let listings = Listings::new(limited.clone());
        let performer = Arc::new(Performer::new(limited, listings, hidden, &SyncSettings::new(identity), authority));
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
        assert!(matches!(result, Err(Error { kind: ErrorKind::NoPermit, .. })), "{result:?}");
        assert_eq!(fake.registry().count(Operation::RegisterInstance), 1);
    }
}
