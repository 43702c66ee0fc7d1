//! What is put into the exporting cluster: Services without selectors, EndpointSlices written by hand, ServiceExports.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use api::{ServiceExport, names};
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
use serde_json::json;
use tokio::task::JoinSet;

use super::{arrivals::Addresses, pods::Pods};
use crate::ledger_sim::rng::Rng;

/// Requests in flight where no rate is asked for.
pub(super) const CONCURRENCY: usize = 16;

/// A pod as an EndpointSlice lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) number: u32,
    /// It ends: it is not ready any more, and still answers.
    pub(super) terminating: bool,
}

impl Pod {
    pub(super) fn ready(number: u32) -> Self {
        Self { number, terminating: false }
    }
}

/// Writes the EndpointSlices of one namespace. Clones are cheap.
#[derive(Clone)]
pub(super) struct Slices {
    slices: Api<EndpointSlice>,
    pods: Pods,
}

impl Slices {
    /// Writes a replacement into the EndpointSlice.
    pub(super) async fn replace(&self, replacement: &Replacement) -> anyhow::Result<()> {
        let Replacement { service, endpoint, pods } = replacement;
        let pod = mk_endpoint(self.pods, *service, Pod::ready(pods[*endpoint]));
        self.patch(*service, &format!("/endpoints/{endpoint}"), &pod).await
    }

    /// Writes all endpoints of a service.
    pub(super) async fn put(&self, service: usize, pods: &[Pod]) -> anyhow::Result<()> {
        let endpoints: Vec<Endpoint> = pods.iter().map(|&pod| mk_endpoint(self.pods, service, pod)).collect();
        self.patch(service, "/endpoints", &endpoints).await
    }

    pub(super) fn address(&self, pod: u32) -> String {
        self.pods.address(pod).to_string()
    }

    async fn patch(&self, service: usize, path: &str, value: &impl serde::Serialize) -> anyhow::Result<()> {
        let patch = json!([{ "op": "replace", "path": path, "value": value }]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch)?);
        let written = self.slices.patch(&slice_name(service), &PatchParams::default(), &patch).await;
        written.context("failed to change an EndpointSlice").map(drop)
    }
}

/// Services in one namespace of the exporting cluster, each with the same number of endpoints.
pub(super) struct Load {
    client: Client,
    namespace: String,
    slices: Slices,
    /// The pods of each service.
    pods: Vec<Vec<u32>>,
    /// Numbers all pods there ever were, so that none comes back.
    next_pod: u32,
    rng: Rng,
}

impl Load {
    pub(super) fn new(client: Client, namespace: &str, services: usize, endpoints: usize, seed: u64) -> Self {
        let pods = (0..services).map(|service| (0..endpoints).map(|pod| (service * endpoints + pod) as u32).collect());
        Self {
            slices: Slices { slices: Api::namespaced(client.clone(), namespace), pods: Pods::new(seed) },
            client,
            namespace: namespace.to_owned(),
            pods: pods.collect(),
            next_pod: (services * endpoints) as u32,
            rng: Rng::new(namespace, seed),
        }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(super) fn slices(&self) -> Slices {
        self.slices.clone()
    }

    /// Seconds, drawn from this range.
    pub(super) fn draw_pause(&mut self, range: &std::ops::Range<f64>) -> Duration {
        Duration::from_secs_f64(self.rng.uniform(range.start, range.end))
    }

    /// The addresses of all pods.
    pub(super) fn present(&self) -> BTreeSet<String> {
        self.pods.iter().flatten().map(|&pod| self.slices.address(pod)).collect()
    }

    /// What the importing cluster should have when everything is exported.
    pub(super) fn addresses(&self) -> Addresses {
        let address = |pod: &u32| self.slices.address(*pod);
        let services = self.pods.iter().enumerate();
        services.map(|(service, pods)| (name(service), pods.iter().map(address).collect())).collect()
    }

    /// The pods of the first services, and others for their places, which the load has from now on.
    pub(super) fn draw_rollout(&mut self, services: usize) -> Vec<(Vec<u32>, Vec<u32>)> {
        let mut next = self.next_pod;
        let replaced = self.pods.iter_mut().take(services).map(|pods| {
            let new: Vec<u32> = (next..).take(pods.len()).collect();
            next += pods.len() as u32;
            (std::mem::replace(pods, new.clone()), new)
        });
        let replaced = replaced.collect();
        self.next_pod = next;
        replaced
    }

    /// Creates the Services and their EndpointSlices.
    pub(super) async fn create_services(&self) -> anyhow::Result<()> {
        let services: Api<Service> = Api::namespaced(self.client.clone(), &self.namespace);
        futures::stream::iter(self.pods.iter().enumerate())
            .map(async |(service, pods)| {
                services.create(&PostParams::default(), &mk_service(service)).await?;
                let slice = mk_slice(self.slices.pods, service, pods);
                self.slices.slices.create(&PostParams::default(), &slice).await
            })
            .buffer_unordered(CONCURRENCY)
            .try_for_each(async |_| Ok(()))
            .await
            .context("failed to create Services and EndpointSlices")
    }

    /// Creates the ServiceExports at `rate` a second. Returns when the first was sent and how long all took.
    pub(super) async fn export(&self, rate: f64) -> anyhow::Result<(Instant, Duration)> {
        let exports: Api<ServiceExport> = Api::namespaced(self.client.clone(), &self.namespace);
        let create = |service| {
            let exports = exports.clone();
            async move {
                let created = exports.create(&PostParams::default(), &mk_export(service)).await;
                created.context("failed to create a ServiceExport").map(drop)
            }
        };
        paced(rate, self.pods.len(), create).await
    }

    /// Draws a pod and another one for its place.
    pub(super) fn draw_replacement(&mut self) -> Replacement {
        let service = self.rng.below(self.pods.len());
        self.draw_replacement_in(service)
    }

    /// The same in a service that is not `busy`; `None` if all are.
    pub(super) fn draw_replacement_unless(&mut self, busy: impl Fn(usize) -> bool) -> Option<Replacement> {
        let services = self.pods.len();
        let first = self.rng.below(services);
        let service = (first..services).chain(0..first).find(|&service| !busy(service))?;
        Some(self.draw_replacement_in(service))
    }

    fn draw_replacement_in(&mut self, service: usize) -> Replacement {
        let endpoint = self.rng.below(self.pods[service].len());
        self.pods[service][endpoint] = self.next_pod;
        self.next_pod += 1;
        Replacement { service, endpoint, pods: self.pods[service].clone() }
    }

    /// The address of the new pod.
    pub(super) fn new_address(&self, replacement: &Replacement) -> String {
        self.slices.address(replacement.pods[replacement.endpoint])
    }

    /// What the service should have afterwards.
    pub(super) fn addresses_after(&self, replacement: &Replacement) -> Addresses {
        let addresses = replacement.pods.iter().map(|&pod| self.slices.address(pod)).collect();
        [(name(replacement.service), addresses)].into()
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

/// Makes requests at `rate` a second. Returns when the first was sent and how long all took.
pub(super) async fn paced<F>(
    rate: f64,
    count: usize,
    request: impl Fn(usize) -> F,
) -> anyhow::Result<(Instant, Duration)>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let start = tokio::time::Instant::now();
    let mut requests = JoinSet::new();
    for number in 0..count {
        // Each at its own time, whether those before are answered or not: a slow API server must not slow the load.
        tokio::time::sleep_until(start + Duration::from_secs_f64(number as f64 / rate)).await;
        requests.spawn(request(number));
    }
    while let Some(answer) = requests.join_next().await {
        answer??;
    }
    Ok((start.into_std(), start.elapsed()))
}

/// One pod of a service in the place of another.
#[derive(Debug)]
pub(super) struct Replacement {
    pub(super) service: usize,
    endpoint: usize,
    /// The service's pods afterwards.
    pods: Vec<u32>,
}

impl Replacement {
    /// Name of the service.
    pub(super) fn service_name(&self) -> String {
        name(self.service)
    }
}

/// Creates a namespace, which has a quota for all Services of a load.
pub(super) async fn create_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let quota = "names=60000,records=60000,instances=1000000,bytes=33554432";
    let annotations = [(names::ANNOTATION_QUOTA.to_owned(), quota.to_owned())].into();
    let metadata = ObjectMeta { annotations: Some(annotations), ..metadata(name) };
    let namespace = Namespace { metadata, ..Default::default() };
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

/// Name of a service and of its ServiceExport.
pub(super) fn name(service: usize) -> String {
    format!("service-{service:04}")
}

fn slice_name(service: usize) -> String {
    format!("service-{service:04}-slice")
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
fn mk_slice(pods: Pods, service: usize, numbers: &[u32]) -> EndpointSlice {
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
        endpoints: numbers.iter().map(|&pod| mk_endpoint(pods, service, Pod::ready(pod))).collect(),
        ports: Some(vec![port]),
    }
}

fn mk_endpoint(pods: Pods, service: usize, pod: Pod) -> Endpoint {
    let Pod { number, terminating } = pod;
    Endpoint {
        addresses: vec![pods.address(number).to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(!terminating),
            serving: Some(true),
            terminating: Some(terminating),
        }),
        node_name: Some(pods.node(number)),
        zone: Some(pods.zone(number).into()),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            name: Some(pods.name(&name(service), number)),
            uid: Some(pods.uid(number)),
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
    fn a_slice_has_the_pods_of_its_service() {
        let pods = Pods::new(1);
        let slice = mk_slice(pods, 3, &[30, 31]);
        assert_eq!(slice.metadata.labels.unwrap()["kubernetes.io/service-name"], mk_service(3).metadata.name.unwrap());
        let addresses: Vec<String> = slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).collect();
        assert_eq!(addresses, [pods.address(30).to_string(), pods.address(31).to_string()]);
    }

    #[test]
    fn a_pod_that_ends_is_not_ready_and_still_serves() {
        let endpoint = mk_endpoint(Pods::new(1), 0, Pod { number: 1, terminating: true });
        let expected = EndpointConditions { ready: Some(false), serving: Some(true), terminating: Some(true) };
        assert_eq!(endpoint.conditions, Some(expected));
    }
}
