//! The objects in Kubernetes: Services, ServiceExports for them, and the pods of each.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Context as _, Result};
use api::ServiceExport;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Namespace, Service, ServiceAccount},
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    CutoverPlan, NAMESPACE, PORT, ZONE, course,
    pods::{Deployment, Image, Stopping, ZONES},
};
use crate::ecs::Addresses;

/// Services that are created at the same time.
const CONCURRENCY: usize = 8;
/// Services whose pods change at the same time: most of that is waiting.
const CHANGING: usize = 100;

/// Name of a service, everywhere.
pub(super) fn name(service: usize) -> String {
    format!("service-{service:04}")
}

/// All objects.
pub(super) struct Objects {
    client: Client,
    /// By service.
    deployments: Vec<Arc<Deployment>>,
    stopping: Stopping,
}

impl Objects {
    /// Starts the pods. They run until this is dropped.
    pub(super) async fn new(client: Client, plan: &CutoverPlan, addresses: &Addresses) -> Result<Self> {
        let mut deployments = Vec::new();
        for service in 0..plan.services {
            let deployment = Deployment::new(client.clone(), name(service), plan, addresses.clone()).await?;
            deployments.push(Arc::new(deployment));
        }
        Ok(Self { client, deployments, stopping: Stopping::default() })
    }

    /// Creates everything, and waits until the exports are accepted. No pod gets traffic yet.
    pub(super) async fn create(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({
            "metadata": {"name": NAMESPACE, "annotations": {"cloudmap-mcs/may-register": format!("{ZONE}/*")}},
        }))?;
        namespaces.create(&PostParams::default(), &namespace).await.context("failed to create the namespace")?;
        // Pods are refused without it, and nobody else makes it.
        put::<ServiceAccount>(&self.client, json!({"metadata": {"name": "default"}})).await?;
        futures::stream::iter(&self.deployments)
            .map(async |deployment| self.create_service(deployment).await)
            .buffer_unordered(CONCURRENCY)
            .try_for_each(async |()| Ok(()))
            .await?;
        let exports: Api<ServiceExport> = Api::namespaced(self.client.clone(), NAMESPACE);
        course::until("all exports are registered", async || {
            let list = exports.list(&ListParams::default()).await?;
            let accepted = list.items.iter().filter(|export| is_registered(export)).count();
            Ok(accepted == self.deployments.len())
        })
        .await
    }

    async fn create_service(&self, deployment: &Deployment) -> Result<()> {
        let name = &deployment.name;
        let service = json!({
            "metadata": {"name": name},
            "spec": {
                "selector": {"app": name},
                "ports": [{"name": "http", "port": 80, "targetPort": PORT, "protocol": "TCP"}],
            },
        });
        put::<Service>(&self.client, service).await?;
        deployment.create().await?;
        let export = json!({
            "metadata": {
                "name": name,
                "annotations": {
                    "cloudmap-mcs/namespace": ZONE, "cloudmap-mcs/service": name, "cloudmap-mcs/share-of-traffic": "0%",
                },
            },
        });
        put::<ServiceExport>(&self.client, export).await
    }

    /// Gives some services a pod more, which is ready when this returns.
    pub(super) async fn scale_out(&self, which: impl Fn(usize) -> bool, image: Image) -> Result<()> {
        self.each(which, async |it: &Arc<Deployment>| it.add(ZONES[0], image).await.map(|()| 1)).await.map(drop)
    }

    /// Takes the newest pod of some services away. Gives the number of pods.
    pub(super) async fn scale_in(&self, which: impl Fn(usize) -> bool) -> Result<usize> {
        self.each(which, async |it: &Arc<Deployment>| it.scale_in(&self.stopping).await).await
    }

    /// Replaces all pods of some services, one after the other in each. Gives the number of services.
    pub(super) async fn roll_out(&self, which: impl Fn(usize) -> bool) -> Result<usize> {
        self.each(which, async |it: &Arc<Deployment>| it.roll_out(&self.stopping).await.map(|()| 1)).await
    }

    /// Moves the pods of the last zone, all at once. Gives their number.
    pub(super) async fn drain(&self) -> Result<usize> {
        self.each(|_| true, async |it: &Arc<Deployment>| it.drain(&self.stopping).await).await
    }

    /// Does something to some services. Gives the sum of what it gave.
    async fn each(
        &self,
        which: impl Fn(usize) -> bool,
        change: impl AsyncFn(&Arc<Deployment>) -> Result<usize>,
    ) -> Result<usize> {
        let chosen: Vec<_> = (0..self.deployments.len()).filter(|service| which(*service)).collect();
        futures::stream::iter(chosen)
            .map(async |service| change(&self.deployments[service]).await)
            .buffer_unordered(CHANGING)
            .try_fold(0, async |sum, number| Ok(sum + number))
            .await
    }

    /// Addresses of the pods that were deleted and answer still.
    pub(super) async fn ending(&self) -> BTreeSet<String> {
        let mut ending = BTreeSet::new();
        for deployment in &self.deployments {
            ending.extend(deployment.ending().await);
        }
        ending
    }

    /// Waits until all pods that were deleted have stopped. Gives their number.
    pub(super) async fn stopped(&self) -> Result<usize> {
        self.stopping.wait().await
    }
}

/// Creates an object in the namespace.
pub(super) async fn put<K>(client: &Client, object: Value) -> Result<()>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    let object = serde_json::from_value(object)?;
    let created = api.create(&PostParams::default(), &object).await;
    created.with_context(|| format!("failed to create a {}", K::kind(&())))?;
    Ok(())
}

fn is_registered(export: &ServiceExport) -> bool {
    let mut conditions = export.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|it| it.type_ == "Registered" && it.status == "True")
}
