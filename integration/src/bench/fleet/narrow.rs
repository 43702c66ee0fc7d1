//! The registry as a cluster of the fleet sees it: of all heads only its own and those of the measured clusters.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use cloudmap::{
    CreateService, Discovery, Error, HttpName, Instance, Lane, Namespace, NewNamespace, NewService, OperationId,
    OperationState, Permit, Read, Service, ServiceChange, Write,
};
use ledger::CLUSTERS;
use tokio::{sync::Mutex, time::Instant};

use super::Shape;

/// How old heads may be: half a tick of the ledger.
const FRESH: Duration = Duration::from_millis(500);

/// The heads of all clusters, which the whole fleet reads at once.
#[derive(Default)]
pub(super) struct Heads(Mutex<Option<(Instant, Discovery)>>);

/// The port of one cluster.
pub(super) struct Narrow {
    registry: Arc<dyn cloudmap::Write>,
    heads: Arc<Heads>,
    seen: BTreeSet<String>,
}

impl Narrow {
    pub(super) fn new(registry: Arc<dyn cloudmap::Write>, heads: Arc<Heads>, id: &str, shape: &Shape) -> Self {
        let seen = shape.measured.iter().cloned().chain([id.to_owned()]).collect();
        Self { registry, heads, seen }
    }

    fn narrowed(&self, heads: &Discovery) -> Discovery {
        let seen = |instance: &&Instance| self.seen.contains(&*instance.id);
        let instances = heads.instances.iter().filter(seen).cloned().collect();
        Discovery { instances, unhealthy: BTreeSet::new(), truncated: heads.truncated }
    }
}

#[async_trait]
impl Read for Narrow {
    async fn discover_instances(
        &self,
        namespace: HttpName<'_>,
        service: &str,
        query: &BTreeMap<String, String>,
        lane: Lane,
    ) -> Result<Discovery, Error> {
        if service != CLUSTERS || !query.is_empty() {
            return self.registry.discover_instances(namespace, service, query, lane).await;
        }
        let mut read = self.heads.0.lock().await;
        if let Some((at, heads)) = &*read
            && at.elapsed() < FRESH
        {
            return Ok(self.narrowed(heads));
        }
        let now = Instant::now();
        let heads = self.registry.discover_instances(namespace, service, query, lane).await?;
        let narrowed = self.narrowed(&heads);
        *read = Some((now, heads));
        Ok(narrowed)
    }

    async fn list_namespaces(&self, lane: Lane) -> Result<Vec<Namespace>, Error> {
        self.registry.list_namespaces(lane).await
    }

    async fn get_namespace(&self, id: &str) -> Result<Namespace, Error> {
        self.registry.get_namespace(id).await
    }

    async fn list_services(&self, namespace_id: &str, lane: Lane) -> Result<Vec<Service>, Error> {
        self.registry.list_services(namespace_id, lane).await
    }

    async fn get_service(&self, id: &str, lane: Lane) -> Result<Service, Error> {
        self.registry.get_service(id, lane).await
    }

    async fn operation(&self, id: &OperationId, lane: Lane) -> Result<OperationState, Error> {
        self.registry.operation(id, lane).await
    }

    async fn list_instances(&self, service_id: &str) -> Result<Vec<Instance>, Error> {
        self.registry.list_instances(service_id).await
    }

    async fn unhealthy_instances(&self, service_id: &str) -> Result<BTreeSet<Arc<str>>, Error> {
        self.registry.unhealthy_instances(service_id).await
    }

    async fn list_tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error> {
        self.registry.list_tags(arn).await
    }
}

#[async_trait]
impl Write for Narrow {
    async fn create_namespace(&self, permit: &Permit, new: &NewNamespace<'_>) -> Result<OperationId, Error> {
        self.registry.create_namespace(permit, new).await
    }

    async fn delete_namespace(&self, permit: &Permit, id: &str) -> Result<OperationId, Error> {
        self.registry.delete_namespace(permit, id).await
    }

    async fn create_service(&self, permit: &Permit, new: &NewService, lane: Lane) -> Result<CreateService, Error> {
        self.registry.create_service(permit, new, lane).await
    }

    async fn update_service(&self, permit: &Permit, id: &str, change: &ServiceChange) -> Result<OperationId, Error> {
        self.registry.update_service(permit, id, change).await
    }

    async fn delete_service(&self, permit: &Permit, id: &str) -> Result<(), Error> {
        self.registry.delete_service(permit, id).await
    }

    async fn register_instance(
        &self,
        permit: &Permit,
        service_id: &str,
        instance: &Instance,
        lane: Lane,
    ) -> Result<OperationId, Error> {
        self.registry.register_instance(permit, service_id, instance, lane).await
    }

    async fn deregister_instance(
        &self,
        permit: &Permit,
        service_id: &str,
        instance_id: &str,
        lane: Lane,
    ) -> Result<OperationId, Error> {
        self.registry.deregister_instance(permit, service_id, instance_id, lane).await
    }

    async fn set_custom_health(
        &self,
        permit: &Permit,
        service_id: &str,
        instance_id: &str,
        healthy: bool,
    ) -> Result<(), Error> {
        self.registry.set_custom_health(permit, service_id, instance_id, healthy).await
    }

    async fn tag(&self, permit: &Permit, arn: &str, tags: &BTreeMap<String, String>) -> Result<(), Error> {
        self.registry.tag(permit, arn, tags).await
    }
}
