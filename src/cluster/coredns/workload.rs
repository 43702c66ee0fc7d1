//! The workloads of CoreDNS and NodeLocal DNSCache, and their service accounts.

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Container, Pod, PodSpec},
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{Api, Client, api::ListParams, core::Selector};

use super::{AskError, Installation, Keeper, ask, get};

/// What Kubernetes takes if a template names none.
const DEFAULT_ACCOUNT: &str = "default";

/// How many pods are in one answer.
const PAGE: u32 = 500;

/// A Deployment or a DaemonSet of CoreDNS, or one of its pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Workload {
    /// Such as `deployment`, as kubectl takes it.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Image of its container.
    pub image: String,
    /// The service account as which it runs.
    pub account: String,
    /// The label selector of its pods.
    pub(super) selector: String,
    pub(super) keeper: Option<Keeper>,
}

impl Workload {
    fn of(kind: &'static str, name: Option<String>, spec: &PodSpec) -> Self {
        let name_or_default = |account: &&String| !account.is_empty();
        let accounts = [&spec.service_account_name, &spec.service_account];
        let account = accounts.into_iter().flatten().find(name_or_default).map_or(DEFAULT_ACCOUNT, |it| it);
        Self {
            kind,
            name: name.unwrap_or_default(),
            image: container(spec).and_then(|container| container.image.clone()).unwrap_or_default(),
            account: account.to_owned(),
            ..Self::default()
        }
    }
}

/// The one that is CoreDNS: others may stand beside it, such as a reloader or a mesh proxy.
fn container(spec: &PodSpec) -> Option<&Container> {
    let is_coredns = |container: &&Container| {
        container.name == "coredns" || container.image.as_deref().is_some_and(|image| image.contains("coredns"))
    };
    spec.containers.iter().find(is_coredns).or(spec.containers.first())
}

/// The Deployment or the DaemonSet that has the name.
pub(super) async fn named(client: &Client, installation: &Installation) -> Result<Option<Workload>, AskError> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &installation.namespace);
    let daemon_sets: Api<DaemonSet> = Api::namespaced(client.clone(), &installation.namespace);
    let deployment = get(deployments, "read the Deployment of CoreDNS", &installation.deployment).await?;
    let daemon_set = get(daemon_sets, "read the DaemonSet of CoreDNS", &installation.deployment).await?;
    let deployment = deployment.and_then(|it| {
        let spec = it.spec?;
        Some(("deployment", it.metadata, spec.selector, spec.template.spec?))
    });
    let daemon_set = daemon_set.and_then(|it| {
        let spec = it.spec?;
        Some(("daemonset", it.metadata, spec.selector, spec.template.spec?))
    });
    Ok(deployment.or(daemon_set).map(|(kind, metadata, selector, spec)| {
        let keeper = Keeper::of(&metadata);
        Workload { selector: labels(selector), keeper, ..Workload::of(kind, metadata.name, &spec) }
    }))
}

fn labels(selector: LabelSelector) -> String {
    Selector::try_from(selector).map(|selector| selector.to_string()).unwrap_or_default()
}

/// The pods of CoreDNS: those of the workload; if it is not known, those that mount the ConfigMap.
pub(super) async fn running(
    client: &Client,
    installation: &Installation,
    workload: Option<&Workload>,
) -> Result<Vec<Workload>, AskError> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &installation.namespace);
    let selector = workload.map(|workload| workload.selector.as_str()).unwrap_or_default();
    let mut params = ListParams { limit: Some(PAGE), ..ListParams::default() }.labels(selector);
    let mut pods = Vec::new();
    loop {
        let page = ask("list the pods of CoreDNS", api.list(&params)).await?;
        pods.extend(page.items.into_iter().filter_map(|pod| {
            let phase = pod.status.and_then(|status| status.phase);
            let spec = pod.spec.filter(|_| !matches!(phase.as_deref(), Some("Succeeded" | "Failed")))?;
            let ours = !selector.is_empty() || config_maps(&spec).iter().any(|name| *name == installation.config_map);
            ours.then(|| Workload::of("pod", pod.metadata.name, &spec))
        }));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(pods);
        }
    }
}

/// The DaemonSets of NodeLocal DNSCache, each with its ConfigMaps.
pub(super) async fn node_locals(
    client: &Client,
    installation: &Installation,
) -> Result<Vec<(String, String)>, AskError> {
    let api: Api<DaemonSet> = Api::namespaced(client.clone(), &installation.namespace);
    let list = ask("list the DaemonSets beside CoreDNS", api.list(&ListParams::default())).await?;
    let mut found = Vec::new();
    for daemon_set in list.items {
        let Some(spec) = daemon_set.spec.and_then(|spec| spec.template.spec) else { continue };
        let name = daemon_set.metadata.name.unwrap_or_default();
        if name != installation.deployment && is_node_local(&name, &spec) {
            found.extend(config_maps(&spec).into_iter().map(|map| (name.clone(), map.to_owned())));
        }
    }
    Ok(found)
}

/// By its image, k8s-dns-node-cache, or by its name, if somebody renamed the image.
fn is_node_local(name: &str, spec: &PodSpec) -> bool {
    let images = spec.containers.iter().filter_map(|container| container.image.as_deref());
    let flat = name.replace(['-', '_'], "");
    flat.contains("nodelocal")
        || images.into_iter().any(|image| image.contains("node-cache") || image.contains("nodelocal"))
}

fn config_maps(spec: &PodSpec) -> Vec<&str> {
    let volumes = spec.volumes.iter().flatten();
    let names = volumes.flat_map(|volume| {
        let own = volume.config_map.iter().map(|map| map.name.as_str());
        let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        own.chain(projected.filter_map(|source| source.config_map.as_ref()).map(|map| map.name.as_str()))
    });
    names.filter(|name| !name.is_empty()).collect()
}
