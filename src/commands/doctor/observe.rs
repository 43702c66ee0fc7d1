//! What `doctor` reads of a cluster. Each part may fail by itself, and the rest goes on.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Namespace, Node, Pod, PodSpec},
        discovery::v1::EndpointSlice,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, Client, ResourceExt as _, api::ListParams};

use super::{
    access::{self, Access},
    gates::{self, Unwatched},
};
use crate::{
    asking::version,
    installed::{self, DEPLOYMENT, Settings, kube_dns},
    status::Leader,
};
use api::{ServiceExport, ServiceImport, names};
use base::env;
use cli::STREAM_PORT;
use cloudmap::NamespaceArn;
use cluster::{
    coredns,
    identity::{self, Flags, Identity, IdentityError},
    lease,
    objects::ClusterProperty,
    reader::{Unread, each, read},
};
use model::{ServiceKey, addresses::Range};

pub(super) type Read<T> = Result<T, Unread>;

/// How a cluster is called if nothing names its context.
pub(super) const HERE: &str = "this cluster";
/// The label by which Kubernetes enforces a level of Pod Security in a namespace.
pub(super) const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
/// How many objects of a kind are looked at: enough for an example.
const SOME: u32 = 500;

/// Everything that was seen.
#[derive(Debug, Clone)]
pub(super) struct Observation {
    pub(super) clusters: Vec<Cluster>,
    /// `None`: the user left it out. The error says why there is no connection.
    pub(super) registry: Option<Result<super::registry::ObservedRegistry, String>>,
    /// `None`: there were no temporary pods.
    pub(super) probed: Option<super::probe::Probed>,
}

/// A cluster, by the name of its context.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) name: String,
    /// What leads the commands of remedies to this cluster.
    pub(super) flags: String,
    /// The controller's namespace.
    pub(super) own: String,
    /// The error says why the cluster is not reached.
    pub(super) seen: Result<Seen, String>,
}

/// What a cluster shows.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// As in `v1.34.4`.
    pub(super) version: String,
    /// How far the API server's clock is ahead of the one here; `None` if its answers have no date.
    pub(super) ahead: Option<SignedDuration>,
    pub(super) crds: Vec<(String, Read<Option<Crd>>)>,
    pub(super) controller: Read<Option<Controller>>,
    /// The level of Pod Security that the controller's namespace enforces, if it has the label.
    pub(super) enforced: Read<Option<String>>,
    pub(super) lease: Read<Option<Leader>>,
    /// When the Lease was read, by the API server's clock if it is known.
    pub(super) read: Timestamp,
    pub(super) uid: Read<Arc<str>>,
    pub(super) properties: Read<Vec<ClusterProperty>>,
    /// Whether there is a ServiceExport.
    pub(super) exports: Read<bool>,
    pub(super) access: Read<Vec<Access>>,
    pub(super) dns: Read<coredns::Observed>,
    /// The ranges of the Nodes' pods. With the VPC CNI there are none.
    pub(super) ranges: Read<Vec<Range>>,
    /// Addresses of some pods.
    pub(super) pods: Read<BTreeSet<IpAddr>>,
    pub(super) imports: Read<Vec<Import>>,
    /// ARNs of Cloud Map namespaces that annotations of Namespaces name; none if these cannot be listed.
    pub(super) shared: BTreeSet<String>,
    /// Where the leader listens for those of other clusters; none if it does not.
    pub(super) streams: Read<Vec<SocketAddr>>,
    /// The pods whose readiness gate nobody opens; `None` if the controller opens none, or is not known.
    pub(super) unwatched: Option<Read<Vec<Unwatched>>>,
}

/// A CustomResourceDefinition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Crd {
    pub(super) established: bool,
    pub(super) served: Vec<String>,
}

/// The Deployment of the controller.
#[derive(Debug, Clone, Default)]
pub(super) struct Controller {
    pub(super) wanted: i32,
    pub(super) ready: i32,
    /// The pods that a roll-out has not replaced yet.
    pub(super) former: i32,
    pub(super) image: String,
    /// What the nodes pulled under the name of the image, of all running pods, as far as it was read.
    pub(super) pulled: BTreeSet<String>,
    pub(super) account: String,
    pub(super) settings: Settings,
    pub(super) template: PodSpec,
}

/// A ServiceImport with IPs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) key: ServiceKey,
    pub(super) ips: BTreeSet<IpAddr>,
}

impl Seen {
    /// The settings of the controller, if they can be read.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.controller.as_ref().ok()?.as_ref()?.settings.get(name)
    }

    /// The identity of the cluster, as its controller sees it; `None` if it cannot be known: the UID or the properties were not
    /// read, or flags were not read that may have an id which no property has.
    pub(super) fn identity(&self) -> Option<Result<Identity, IdentityError>> {
        let (uid, properties) = (self.uid.as_ref().ok()?, self.properties.as_ref().ok()?);
        let has = |name: &str| properties.iter().any(|property| *property.name == *name);
        let controller = self.controller.as_ref().ok().map(Option::as_ref);
        let knows_flags = controller.is_some_and(|it| it.is_none_or(|it| it.settings.unread.is_none()));
        if !knows_flags && ![names::PROPERTY_CLUSTER_ID, names::PROPERTY_CLUSTERSET_ID].into_iter().all(has) {
            return None;
        }
        let flags = Flags {
            cluster: self.setting("CLOUDMAP_MCS_CLUSTER_ID").and_then(|id| id.parse().ok()),
            clusterset: self.setting("CLOUDMAP_MCS_CLUSTERSET_ID").and_then(|id| id.parse().ok()),
        };
        Some(identity::resolve(properties, &flags, uid))
    }

    /// Whether the cluster needs no ClusterSet: nobody set an id, and nothing is exported.
    pub(super) fn is_standalone(&self) -> bool {
        self.exports == Ok(false) && self.identity().is_some_and(|identity| identity.is_ok_and(|it| it.is_unset()))
    }
}

/// Reads a cluster.
///
/// # Errors
/// Why the API server does not answer.
pub(super) async fn observe(client: &Client, own: &str) -> Result<Seen, String> {
    let (version, ahead) = version(client).await.map_err(|why| why.to_string())?;
    let leases: Api<Lease> = Api::namespaced(client.clone(), own);
    let controller = controller(client, own).await;
    let deployed = controller.as_ref().ok().and_then(Option::as_ref);
    let has = |variable: &str| deployed.is_some_and(|it| it.settings.has(variable));
    let account = deployed.map_or(DEPLOYMENT, |it| it.account.as_str());
    let all = async {
        tokio::join!(
            crds(client, has("CLOUDMAP_MCS_CUTOVERS")),
            read(leases.get_opt(lease::LEASE)),
            identity::kube_system_uid(client),
            identity::properties(client),
            exports(client),
            access::observe(client, own, account, access::granted(own, has)),
            dns(client),
            ranges(client),
            pods(client),
            imports(client),
            enforced(client, own),
            shared(client),
        )
    };
    let (crds, lease, uid, properties, exports, access, dns, ranges, pods, imports, enforced, shared) =
        Box::pin(all).await;
    let lease = lease.map(|lease| lease.map(Leader::from));
    let leader = lease.as_ref().ok().and_then(Option::as_ref);
    let streams = streams(client, own, deployed, leader).await;
    let unwatched = if has("CLOUDMAP_MCS_READINESS_GATES") { Some(gates::observe(client).await) } else { None };
    Ok(Seen {
        version,
        ahead,
        crds,
        controller,
        enforced,
        lease,
        read: env::timestamp().checked_add(ahead.unwrap_or_default()).unwrap_or_default(),
        uid: uid.map_err(Unread::from),
        properties: properties.map_err(Unread::from),
        exports,
        access,
        dns,
        ranges,
        pods,
        imports,
        shared: shared.unwrap_or_default(),
        streams,
        unwatched,
    })
}

async fn crds(client: &Client, cutovers: bool) -> Vec<(String, Read<Option<Crd>>)> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut found = Vec::new();
    for crd in api::needed_crds(cutovers) {
        let name = crd.name_any();
        let crd = read(api.get_opt(&name)).await.map(|crd| crd.map(narrow));
        found.push((name, crd));
    }
    found
}

fn narrow(crd: CustomResourceDefinition) -> Crd {
    let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
    Crd {
        established: conditions.iter().any(|it| it.type_ == "Established" && it.status == "True"),
        served: crd.spec.versions.into_iter().filter(|version| version.served).map(|version| version.name).collect(),
    }
}

async fn controller(client: &Client, own: &str) -> Read<Option<Controller>> {
    let Some(deployment) = installed::deployment(client, own).await? else { return Ok(None) };
    let status = deployment.status.unwrap_or_default();
    let former = status.replicas.unwrap_or_default() - status.updated_replicas.unwrap_or_default();
    let spec = deployment.spec.unwrap_or_default();
    let template = spec.template.spec.unwrap_or_default();
    let container = template.containers.first().cloned().unwrap_or_default();
    let account = template.service_account_name.clone().unwrap_or_else(|| "default".to_owned());
    Ok(Some(Controller {
        wanted: spec.replicas.unwrap_or(1),
        ready: status.ready_replicas.unwrap_or_default(),
        former,
        settings: installed::settings(client, own, &container).await,
        image: container.image.unwrap_or_default(),
        pulled: pulled(client, own).await,
        account,
        template,
    }))
}

/// The digests of the images that the controller's pods run; none if the pods are not shown.
async fn pulled(client: &Client, own: &str) -> BTreeSet<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), own);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={DEPLOYMENT}"));
    let Ok(pods) = read(pods.list(&ours)).await else { return BTreeSet::new() };
    let running = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    let containers = running.filter_map(|pod| pod.status).flat_map(|it| it.container_statuses.unwrap_or_default());
    containers.map(|container| container.image_id).filter(|id| !id.is_empty()).collect()
}

/// The addresses that the leader publishes: those of the flag, or of its pod.
async fn streams(
    client: &Client,
    own: &str,
    controller: Option<&Controller>,
    leader: Option<&Leader>,
) -> Read<Vec<SocketAddr>> {
    let Some(controller) = controller.filter(|it| it.settings.get("CLOUDMAP_MCS_STREAM") != Some("off")) else {
        return Ok(Vec::new());
    };
    let setting = |name| controller.settings.get(name);
    let port = setting("CLOUDMAP_MCS_STREAM_PORT").and_then(|port| port.parse().ok()).unwrap_or(STREAM_PORT);
    let told = setting("CLOUDMAP_MCS_STREAM_ADDRESSES").map(|all| all.split(',').map(str::to_owned).collect());
    // The pod and a random number; no pod's name has an underscore.
    let pod = leader.and_then(|leader| leader.holder.as_deref()?.split('_').next());
    let addresses: Vec<String> = match (told, pod) {
        (Some(told), _) => told,
        (None, None) => Vec::new(),
        (None, Some(name)) => {
            let pods: Api<Pod> = Api::namespaced(client.clone(), own);
            // Readers may list pods there, and not get one.
            let only = ListParams::default().fields(&format!("metadata.name={name}"));
            let status = read(pods.list(&only)).await?.items.into_iter().find_map(|pod| pod.status);
            status.into_iter().flat_map(|status| status.pod_ips.unwrap_or_default()).map(|ip| ip.ip).collect()
        }
    };
    let addresses = addresses.iter().filter_map(|address| address.trim().parse::<IpAddr>().ok());
    Ok(addresses.map(|address| SocketAddr::new(address, port)).collect())
}

async fn dns(client: &Client) -> Read<coredns::Observed> {
    coredns::observe(client, &kube_dns()).await.map_err(Unread::from)
}

async fn ranges(client: &Client) -> Read<Vec<Range>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let mut ranges = Vec::new();
    let keep = |node: Node| {
        let of_pods = node.spec.and_then(|spec| spec.pod_cidrs).unwrap_or_default();
        ranges.extend(of_pods.iter().filter_map(|range| Range::parse(range)));
    };
    each(&nodes, ListParams::default(), keep).await?;
    Ok(ranges)
}

/// The addresses of pods that this cluster's own EndpointSlices have.
async fn pods(client: &Client) -> Read<BTreeSet<IpAddr>> {
    let slices: Api<EndpointSlice> = Api::all(client.clone());
    let own = format!("{}!={}", names::LABEL_SLICE_MANAGED_BY, names::MANAGED_BY);
    let slices = read(slices.list(&ListParams::default().labels(&own).limit(SOME))).await?;
    let endpoints = slices.items.into_iter().flat_map(|slice| slice.endpoints);
    let pods = endpoints.filter(|it| it.target_ref.as_ref().is_some_and(|it| it.kind.as_deref() == Some("Pod")));
    Ok(pods.flat_map(|pod| pod.addresses).filter_map(|address| address.parse().ok()).collect())
}

async fn enforced(client: &Client, own: &str) -> Read<Option<String>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    // Readers may list namespaces, and not get one.
    let only = ListParams::default().fields(&format!("metadata.name={own}"));
    let found = read(namespaces.list(&only)).await?.items.into_iter().next();
    Ok(found.and_then(|namespace| namespace.labels().get(POD_SECURITY).cloned()))
}

async fn shared(client: &Client) -> Read<BTreeSet<String>> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let mut shared = BTreeSet::new();
    let keep = |namespace: Namespace| {
        let names = namespace.annotations().get(names::ANNOTATION_IMPORT_FROM).into_iter();
        let names = names.flat_map(|names| names.split(',')).map(str::trim);
        shared.extend(names.filter(|name| NamespaceArn::parse(name).is_some()).map(str::to_owned));
    };
    each(&namespaces, ListParams::default(), keep).await?;
    Ok(shared)
}

async fn exports(client: &Client) -> Read<bool> {
    let exports: Api<ServiceExport> = Api::all(client.clone());
    Ok(!read(exports.list(&ListParams::default().limit(1))).await?.items.is_empty())
}

async fn imports(client: &Client) -> Read<Vec<Import>> {
    let imports: Api<ServiceImport> = Api::all(client.clone());
    let mut imports = read(imports.list(&ListParams::default().limit(SOME))).await?;
    // The oldest first: it is the least likely to change just now.
    imports.items.sort_by_key(|import| import.creation_timestamp().map(|time| time.0));
    let narrowed = imports.items.into_iter().filter_map(|import| {
        let key = ServiceKey::new(import.namespace()?, import.name_any());
        let ips: BTreeSet<_> = import.spec.ips.iter().filter_map(|ip| ip.parse().ok()).collect();
        (!ips.is_empty()).then_some(Import { key, ips })
    });
    Ok(narrowed.collect())
}
