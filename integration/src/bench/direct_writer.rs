//! The reference of arrivals: one process with the credentials of both API servers makes, for the same number of
//! ServiceExports, what an import needs at the least, by plain writes in parallel. Nothing is faster than this without
//! writing less.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::Context as _;
use k8s_openapi::{api::core::v1::Service, api::discovery::v1::EndpointSlice};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use super::direct_objects::{MANAGED_BY, Objects, exports, imports};

/// How objects are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Created, and their statuses replaced.
    Created,
    /// By server-side apply, as the controller does it.
    Applied,
}

/// The imported objects of one cluster.
struct Place {
    services: Api<Service>,
    slices: Api<EndpointSlice>,
    imports: Api<DynamicObject>,
}

impl Place {
    fn new(cluster: &Client, namespace: &str) -> Self {
        Self {
            services: Api::namespaced(cluster.clone(), namespace),
            slices: Api::namespaced(cluster.clone(), namespace),
            imports: Api::namespaced_with(cluster.clone(), namespace, &imports()),
        }
    }
}

/// One after the other, what belongs together.
enum Job {
    /// What clients in the importing cluster need. The status of the import and the rest follow.
    Import(usize, Box<DynamicObject>),
    /// The status of an import in the importing cluster.
    Status(Box<DynamicObject>),
    /// The import in the exporting cluster.
    Own(usize),
    /// The conditions of an export.
    Conditions(Box<DynamicObject>),
    /// Takes the endpoints from the clients in the importing cluster, and then the rest.
    Withdraw(usize),
    /// Deletes the import in the exporting cluster.
    WithdrawOwn(usize),
}

/// Writes what the reference writes in one namespace.
pub(super) struct Reference {
    how: How,
    objects: Objects,
    exports: Api<DynamicObject>,
    exporter: Place,
    importer: Place,
    requests: AtomicUsize,
}

impl Reference {
    pub(super) fn new(how: How, [exporter, importer]: [&Client; 2], namespace: &str, objects: Objects) -> Self {
        Self {
            how,
            objects,
            exports: Api::namespaced_with(exporter.clone(), namespace, &exports()),
            exporter: Place::new(exporter, namespace),
            importer: Place::new(importer, namespace),
            requests: AtomicUsize::new(0),
        }
    }

    pub(super) fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Writes since the last call.
    pub(super) fn take_requests(&self) -> usize {
        self.requests.swap(0, Ordering::Relaxed)
    }

    /// Creates a ServiceExport, as its user does.
    pub(super) async fn create_export(&self, service: usize) -> anyhow::Result<DynamicObject> {
        let created = self.exports.create(&PostParams::default(), &self.objects.export(service)?).await;
        created.context("failed to create a ServiceExport of the reference")
    }

    /// Deletes it.
    pub(super) async fn delete_export(&self, service: usize) -> anyhow::Result<()> {
        let deleted = self.exports.delete(&super::load::name(service), &DeleteParams::default()).await;
        deleted.context("failed to delete a ServiceExport of the reference").map(drop)
    }

    /// Writes everything for exports that are created, with so many requests in flight, until all of them are done.
    /// Returns when that was.
    pub(super) async fn import(
        self: &Arc<Self>,
        created: mpsc::UnboundedReceiver<(usize, DynamicObject)>,
        concurrency: usize,
    ) -> anyhow::Result<Instant> {
        self.work(created, concurrency, |(service, export)| Job::Import(service, Box::new(export))).await
    }

    /// The same for exports that are deleted.
    pub(super) async fn withdraw(
        self: &Arc<Self>,
        deleted: mpsc::UnboundedReceiver<usize>,
        concurrency: usize,
    ) -> anyhow::Result<Instant> {
        self.work(deleted, concurrency, Job::Withdraw).await
    }

    /// What clients need comes before the rest.
    async fn work<T>(
        self: &Arc<Self>,
        mut begun: mpsc::UnboundedReceiver<T>,
        concurrency: usize,
        job: impl Fn(T) -> Job,
    ) -> anyhow::Result<Instant> {
        let (mut first, mut rest) = (VecDeque::new(), VecDeque::new());
        let mut running = JoinSet::new();
        loop {
            while running.len() < concurrency
                && let Some(next) = first.pop_front().or_else(|| rest.pop_front())
            {
                let reference = Arc::clone(self);
                running.spawn(async move { reference.run(next).await });
            }
            tokio::select! {
                Some(new) = begun.recv() => first.push_back(job(new)),
                Some(done) = running.join_next() => rest.extend(done??),
                else => return Ok(Instant::now()),
            }
        }
    }

    async fn run(&self, job: Job) -> anyhow::Result<Vec<Job>> {
        Ok(match job {
            Job::Import(service, export) => {
                let import = self.write_import(&self.importer, service, false).await?;
                vec![Job::Status(Box::new(import)), Job::Conditions(export), Job::Own(service)]
            }
            Job::Status(import) => {
                self.write_import_status(*import).await?;
                Vec::new()
            }
            Job::Own(service) => {
                let import = self.write_import(&self.exporter, service, true).await?;
                self.write_status(&self.exporter.imports, import, json!(self.objects.import_status())).await?;
                Vec::new()
            }
            Job::Conditions(export) => {
                self.write_conditions(*export).await?;
                Vec::new()
            }
            Job::Withdraw(service) => {
                self.delete_import(&self.importer, service).await?;
                vec![Job::WithdrawOwn(service)]
            }
            Job::WithdrawOwn(service) => {
                self.delete_import(&self.exporter, service).await?;
                Vec::new()
            }
        })
    }

    /// Writes the derived Service in the importing cluster.
    pub(super) async fn write_derived(&self, service: usize) -> anyhow::Result<()> {
        self.write(&self.importer.services, &self.objects.derived(service)).await.map(drop)
    }

    /// Writes the EndpointSlice there.
    pub(super) async fn write_slice(&self, service: usize) -> anyhow::Result<()> {
        self.write(&self.importer.slices, &self.objects.slice(service, false)).await.map(drop)
    }

    /// Changes the endpoints of the EndpointSlice by server-side apply, however it was written before.
    pub(super) async fn change_slice(&self, service: usize) -> anyhow::Result<()> {
        let (slice, params) = (self.objects.slice(service, true), PatchParams::apply(MANAGED_BY).force());
        let changed = self.importer.slices.patch(&slice.name_any(), &params, &Patch::Apply(&slice)).await;
        changed.context("the reference failed to change an EndpointSlice").map(drop)
    }

    /// Writes the ServiceImport there, without its status.
    pub(super) async fn write_import_alone(&self, service: usize) -> anyhow::Result<DynamicObject> {
        let address = IpAddr::from([172, 21, (service >> 8) as u8, service as u8]);
        self.write(&self.importer.imports, &self.objects.import(service, &[address])?).await
    }

    /// Writes the status of this ServiceImport.
    pub(super) async fn write_import_status(&self, import: DynamicObject) -> anyhow::Result<()> {
        self.write_status(&self.importer.imports, import, json!(self.objects.import_status())).await
    }

    /// Writes the conditions of this ServiceExport.
    pub(super) async fn write_conditions(&self, export: DynamicObject) -> anyhow::Result<()> {
        let status = json!({ "conditions": self.objects.export_conditions() });
        self.write_status(&self.exports, export, status).await
    }

    /// Everything but the status of the import.
    async fn write_import(&self, place: &Place, service: usize, own: bool) -> anyhow::Result<DynamicObject> {
        let derived = self.write(&place.services, &self.objects.derived(service)).await?;
        self.write(&place.slices, &self.objects.slice(service, own)).await?;
        let ips = derived.spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
        let ips: Vec<IpAddr> = ips.iter().filter_map(|ip| ip.parse().ok()).collect();
        self.write(&place.imports, &self.objects.import(service, &ips)?).await
    }

    async fn delete_import(&self, place: &Place, service: usize) -> anyhow::Result<()> {
        self.delete(&place.slices, &Objects::slice_name(service)).await?;
        self.delete(&place.imports, &super::load::name(service)).await?;
        self.delete(&place.services, &self.objects.derived_name(service)).await
    }

    async fn write<K>(&self, api: &Api<K>, object: &K) -> anyhow::Result<K>
    where
        K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let name = object.name_any();
        let written = match self.how {
            How::Created => api.create(&PostParams::default(), object).await,
            How::Applied => api.patch(&name, &PatchParams::apply(MANAGED_BY), &Patch::Apply(object)).await,
        };
        written.with_context(|| format!("the reference failed to write {name}"))
    }

    /// `object` is what the API server has.
    async fn write_status(
        &self,
        api: &Api<DynamicObject>,
        mut object: DynamicObject,
        status: Value,
    ) -> anyhow::Result<()> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let name = object.name_any();
        let written = match self.how {
            How::Created => {
                object.data["status"] = status;
                api.replace_status(&name, &PostParams::default(), &object).await
            }
            How::Applied => {
                let patch = json!({
                    "apiVersion": object.types.as_ref().map(|types| &types.api_version),
                    "kind": object.types.as_ref().map(|types| &types.kind),
                    "metadata": { "name": name, "namespace": object.namespace(), "uid": object.uid() },
                    "status": status,
                });
                api.patch_status(&name, &PatchParams::apply(MANAGED_BY).force(), &Patch::Apply(patch)).await
            }
        };
        written.with_context(|| format!("the reference failed to write the status of {name}")).map(drop)
    }

    async fn delete<K>(&self, api: &Api<K>, name: &str) -> anyhow::Result<()>
    where
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let deleted = api.delete(name, &DeleteParams::default()).await;
        deleted.with_context(|| format!("the reference failed to delete {name}")).map(drop)
    }
}
