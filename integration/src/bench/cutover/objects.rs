//! The objects in Kubernetes: Services, their pods, and EndpointSlices and ServiceExports for them. There is no kubelet and no
//! controller manager: the pods are addresses of this process, and their statuses are written here.

use std::net::SocketAddrV4;

use anyhow::{Context as _, Result};
use cloudmap_mcs::api::ServiceExport;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        core::v1::{Namespace, Pod, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
    },
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::{CutoverPlan, NAMESPACE, PORT, ZONE, course};
use crate::ecs::{Addresses, Server};

/// Requests in flight.
const CONCURRENCY: usize = 8;
const ZONES: [&str; 2] = ["eu-central-1a", "eu-central-1b"];

/// Name of a service, everywhere.
pub(super) fn name(service: usize) -> String {
    format!("service-{service:04}")
}

/// A pod, which answers while this is there.
struct Running {
    name: String,
    address: SocketAddrV4,
    zone: &'static str,
    _server: Server,
}

/// All objects.
pub(super) struct Objects {
    client: Client,
    /// By service.
    pods: Vec<Vec<Running>>,
}

impl Objects {
    /// Starts the pods. They run until this is dropped.
    pub(super) async fn new(client: Client, plan: &CutoverPlan, addresses: &Addresses) -> Result<Self> {
        let (runtime, mut pods) = (Handle::current(), Vec::new());
        for service in 0..plan.services {
            let mut those = Vec::new();
            for number in 0..plan.pods {
                let address = SocketAddrV4::new(addresses.take(), PORT);
                let server = Server::start(&runtime, address, "pod").await?;
                let (name, zone) = (format!("{}-{number}", name(service)), ZONES[number % ZONES.len()]);
                those.push(Running { name, address, zone, _server: server });
            }
            pods.push(those);
        }
        Ok(Self { client, pods })
    }

    /// Creates everything, and waits until the exports are accepted. No pod gets traffic yet.
    pub(super) async fn create(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        namespaces.create(&PostParams::default(), &namespace).await.context("failed to create the namespace")?;
        // Pods are refused without it, and nobody else makes it.
        self.put::<ServiceAccount>(json!({"metadata": {"name": "default"}})).await?;
        futures::stream::iter(self.pods.iter().enumerate())
            .map(async |(service, pods)| self.create_service(&name(service), pods).await)
            .buffer_unordered(CONCURRENCY)
            .try_for_each(async |()| Ok(()))
            .await?;
        let exports: Api<ServiceExport> = Api::namespaced(self.client.clone(), NAMESPACE);
        course::until("all exports are registered", async || {
            let list = exports.list(&ListParams::default()).await?;
            let accepted = list.items.iter().filter(|export| is_registered(export)).count();
            Ok(accepted == self.pods.len())
        })
        .await
    }

    async fn create_service(&self, name: &str, pods: &[Running]) -> Result<()> {
        self.put::<Service>(json!({
            "metadata": {"name": name},
            "spec": {
                "selector": {"app": name},
                "ports": [{"name": "http", "port": 80, "targetPort": PORT, "protocol": "TCP"}],
            },
        }))
        .await?;
        let api: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        for pod in pods {
            self.put::<Pod>(json!({
                "metadata": {"name": pod.name, "labels": {"app": name}},
                "spec": {"containers": [{"name": "server", "image": "server"}]},
            }))
            .await?;
            let address = pod.address.ip();
            let status = json!({"status": {
                "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                "conditions": [{"type": "Ready", "status": "True"}],
            }});
            let written = api.patch_status(&pod.name, &PatchParams::default(), &Patch::Merge(&status)).await;
            written.with_context(|| format!("failed to write the status of the pod {}", pod.name))?;
        }
        let endpoints: Vec<_> = pods.iter().map(mk_endpoint).collect();
        self.put::<EndpointSlice>(json!({
            "metadata": {
                "name": format!("{name}-slice"),
                "labels": {
                    "kubernetes.io/service-name": name,
                    "endpointslice.kubernetes.io/managed-by": "cloudmap-mcs-bench",
                },
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}],
        }))
        .await?;
        self.put::<ServiceExport>(json!({
            "metadata": {
                "name": name,
                "annotations": {
                    "cloudmap-mcs/namespace": ZONE, "cloudmap-mcs/service": name, "cloudmap-mcs/share-of-traffic": "0%",
                },
            },
        }))
        .await
    }

    async fn put<K>(&self, object: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), NAMESPACE);
        let object = serde_json::from_value(object)?;
        let created = api.create(&PostParams::default(), &object).await;
        created.with_context(|| format!("failed to create a {}", K::kind(&())))?;
        Ok(())
    }
}

/// As the EndpointSlice controller writes one.
fn mk_endpoint(pod: &Running) -> Value {
    json!({
        "addresses": [pod.address.ip()],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "zone": pod.zone,
        "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": pod.name},
    })
}

fn is_registered(export: &ServiceExport) -> bool {
    let mut conditions = export.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|it| it.type_ == "Registered" && it.status == "True")
}
