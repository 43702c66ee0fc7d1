//! What is put into the exporting cluster: Services without selectors, EndpointSlices written by hand, ServiceExports.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use cloudmap_mcs::api::ServiceExport;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::{
    api::{
        core::v1::{Namespace, ObjectReference, Service, ServicePort, ServiceSpec},
        discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use rand::RngExt as _;
use serde_json::json;
use tokio::task::JoinSet;

use super::arrivals::Addresses;

/// Requests in flight where no rate is asked for.
const CONCURRENCY: usize = 16;
/// Nodes that the endpoints are spread over.
const NODES: usize = 30;
const ZONES: [&str; 3] = ["eu-central-1a", "eu-central-1b", "eu-central-1c"];

/// Services in one namespace of the exporting cluster, each with the same number of endpoints.
#[derive(Clone)]
pub(super) struct Load {
    client: Client,
    namespace: String,
    /// The pods of each service.
    pods: Vec<Vec<u32>>,
    /// Numbers all pods there ever were, so that none comes back.
    next_pod: u32,
}

impl Load {
    pub(super) fn new(client: Client, namespace: &str, services: usize, endpoints: usize) -> Self {
        let pods = (0..services).map(|service| (0..endpoints).map(|pod| (service * endpoints + pod) as u32).collect());
        Self { client, namespace: namespace.to_owned(), pods: pods.collect(), next_pod: (services * endpoints) as u32 }
    }

    /// Whether a pod has this address.
    pub(super) fn has(&self, wanted: &str) -> bool {
        self.pods.iter().flatten().any(|&pod| address(pod) == wanted)
    }

    /// What the importing cluster should have when everything is exported.
    pub(super) fn addresses(&self) -> Addresses {
        let services = self.pods.iter().enumerate();
        services.map(|(service, pods)| (name(service), pods.iter().map(|&pod| address(pod)).collect())).collect()
    }

    /// Creates the Services and their EndpointSlices.
    pub(super) async fn create_services(&self) -> anyhow::Result<()> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        futures::stream::iter(self.pods.iter().enumerate())
            .map(async |(service, pods)| {
                services.create(&PostParams::default(), &mk_service(service)).await?;
                slices.create(&PostParams::default(), &mk_slice(service, pods)).await
            })
            .buffer_unordered(CONCURRENCY)
            .try_for_each(async |_| Ok(()))
            .await
            .context("failed to create Services and EndpointSlices")
    }

    /// Creates the ServiceExports at `rate` a second. Returns when the first was sent and how long all took.
    pub(super) async fn export(&self, rate: f64) -> anyhow::Result<(Instant, Duration)> {
        let exports: Api<ServiceExport> = Api::namespaced(self.client.clone(), &self.namespace);
        let start = tokio::time::Instant::now();
        let mut requests = JoinSet::new();
        for service in 0..self.pods.len() {
            // Each at its own time, whether those before are answered or not: a slow API server must not slow the load.
            tokio::time::sleep_until(start + Duration::from_secs_f64(service as f64 / rate)).await;
            let exports = exports.clone();
            requests.spawn(async move { exports.create(&PostParams::default(), &mk_export(service)).await });
        }
        while let Some(answer) = requests.join_next().await {
            answer?.context("failed to create a ServiceExport")?;
        }
        Ok((start.into_std(), start.elapsed()))
    }

    /// Draws a pod and another one for its place.
    pub(super) fn draw_replacement(&mut self) -> Replacement {
        let service = rand::rng().random_range(0..self.pods.len());
        let endpoint = rand::rng().random_range(0..self.pods[service].len());
        self.pods[service][endpoint] = self.next_pod;
        self.next_pod += 1;
        Replacement { service, endpoint, pods: self.pods[service].clone() }
    }

    /// Writes a replacement into the EndpointSlice.
    pub(super) async fn replace(&self, replacement: &Replacement) -> anyhow::Result<()> {
        let Replacement { service, endpoint, pods } = replacement;
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        let pod = mk_endpoint(*service, pods[*endpoint]);
        let patch = json!([{ "op": "replace", "path": format!("/endpoints/{endpoint}"), "value": pod }]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch)?);
        slices
            .patch(&slice_name(*service), &PatchParams::default(), &patch)
            .await
            .context("failed to change an EndpointSlice")?;
        Ok(())
    }

    /// Deletes the ServiceExports.
    pub(super) async fn withdraw(&self) -> anyhow::Result<()> {
        self.delete::<ServiceExport>(name).await
    }

    /// Deletes the Services and their EndpointSlices.
    pub(super) async fn delete_services(&self) -> anyhow::Result<()> {
        self.delete::<EndpointSlice>(slice_name).await?;
        self.delete::<Service>(name).await
    }

    async fn delete<K>(&self, name: fn(usize) -> String) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let objects: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        futures::stream::iter(0..self.pods.len())
            .map(async |service| objects.delete(&name(service), &DeleteParams::default()).await)
            .buffer_unordered(CONCURRENCY)
            .try_for_each(async |_| Ok(()))
            .await
            .with_context(|| format!("failed to delete a {}", K::kind(&())))
    }
}

/// One pod of a service in the place of another.
#[derive(Debug)]
pub(super) struct Replacement {
    service: usize,
    endpoint: usize,
    /// The service's pods afterwards.
    pods: Vec<u32>,
}

impl Replacement {
    /// The address of the new pod.
    pub(super) fn address(&self) -> String {
        address(self.pods[self.endpoint])
    }

    /// What the service should have afterwards.
    pub(super) fn addresses(&self) -> Addresses {
        [(name(self.service), self.pods.iter().map(|&pod| address(pod)).collect())].into()
    }
}

/// Creates a namespace.
pub(super) async fn create_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let namespace = Namespace { metadata: metadata(name), ..Default::default() };
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .with_context(|| format!("failed to create the namespace {name}"))?;
    Ok(())
}

fn metadata(name: impl Into<String>) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), ..Default::default() }
}

fn name(service: usize) -> String {
    format!("service-{service:04}")
}

fn slice_name(service: usize) -> String {
    format!("service-{service:04}-slice")
}

/// A pod's address: outside the ranges of the testbed, and never the same for two pods.
fn address(pod: u32) -> String {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 16, 0, 0).to_bits() + pod).to_string()
}

fn mk_service(service: usize) -> Service {
    let port = ServicePort { name: Some("http".into()), port: 80, protocol: Some("TCP".into()), ..Default::default() };
    Service {
        metadata: metadata(name(service)),
        spec: Some(ServiceSpec { ports: Some(vec![port]), ..Default::default() }),
        status: None,
    }
}

/// As the EndpointSlice controller writes one, so that the figures hold for real clusters.
fn mk_slice(service: usize, pods: &[u32]) -> EndpointSlice {
    let port = EndpointPort {
        name: Some("http".into()),
        port: Some(8080),
        protocol: Some("TCP".into()),
        ..Default::default()
    };
    EndpointSlice {
        metadata: ObjectMeta {
            labels: Some(BTreeMap::from([
                ("kubernetes.io/service-name".to_owned(), name(service)),
                ("endpointslice.kubernetes.io/managed-by".to_owned(), "cloudmap-mcs-bench".to_owned()),
            ])),
            ..metadata(slice_name(service))
        },
        address_type: "IPv4".into(),
        endpoints: pods.iter().map(|&pod| mk_endpoint(service, pod)).collect(),
        ports: Some(vec![port]),
    }
}

fn mk_endpoint(service: usize, pod: u32) -> Endpoint {
    let node = pod as usize % NODES;
    Endpoint {
        addresses: vec![address(pod)],
        conditions: Some(EndpointConditions { ready: Some(true), serving: Some(true), terminating: Some(false) }),
        node_name: Some(format!("ip-10-0-{}-{}.eu-central-1.compute.internal", node % 3, 10 + node)),
        zone: Some(ZONES[node % ZONES.len()].into()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            name: Some(format!("{}-7d4b9c6f5d-{pod:05x}", name(service))),
            uid: Some(format!("00000000-0000-4000-8000-{pod:012x}")),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn mk_export(service: usize) -> ServiceExport {
    ServiceExport { metadata: metadata(name(service)), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pods_share_an_address() {
        let addresses: std::collections::BTreeSet<String> = (0..70_000).map(address).collect();
        assert_eq!(addresses.len(), 70_000);
        assert_eq!((address(0), address(65_536)), ("10.16.0.0".into(), "10.17.0.0".into()));
    }

    #[test]
    fn a_slice_has_the_pods_of_its_service() {
        let slice = mk_slice(3, &[30, 31]);
        assert_eq!(slice.metadata.labels.unwrap()["kubernetes.io/service-name"], mk_service(3).metadata.name.unwrap());
        let addresses: Vec<String> = slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).collect();
        assert_eq!(addresses, [address(30), address(31)]);
    }
}
