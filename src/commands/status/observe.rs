//! What `status` reads. Each part may fail by itself, and the rest goes on.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Namespace, Service},
        discovery::v1::EndpointSlice,
    },
    jiff::{SignedDuration, Timestamp},
};
use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;

use super::overview::since;
use crate::asking::{in_time, version};
use api::{ServiceExport, ServiceImport, names};
use app::connect;
use base::{dns, env};
use cli::PlaceArgs;
use cloudmap::{Error, ErrorKind, Lane, Namespace as RegistryNamespace, attributes};
use cluster::{
    identity::{self, Identity, IdentityError},
    lease::{self, PeerReport},
    reader::{Unread, each, read},
    record::RecordObject,
};
use import::hashed;
use ledger::{
    record::{Record, RecordStore as _, StoreError},
    show,
};
use model::{ClusterSetId, ServiceKey, Target};
use records::{ClusterView, read_all};

/// A part that Kubernetes showed, or why not.
pub(crate) type Read<T> = Result<T, Unread>;

/// How long DNS may take.
const DNS_PATIENCE: Duration = Duration::from_secs(5);

/// What every report begins with.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// The time of the API server, because the clock here may be wrong. If an answer has no date, the time here.
    pub(crate) now: Timestamp,
    /// The controller's namespace.
    pub(super) own: String,
    /// What leads the commands of remedies to this cluster.
    pub(super) flags: String,
    pub(super) identity: Read<Result<Identity, IdentityError>>,
    pub(super) lease: Read<Option<Leader>>,
    /// The ledger's record.
    pub(super) record: Result<Option<Record>, StoreError>,
    pub(crate) ledger: Result<Vec<ClusterView>, Dark>,
}

/// The Lease.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leader {
    pub(crate) holder: Option<String>,
    pub(crate) acquired: Option<Timestamp>,
    /// By the clock of the holder's Node.
    pub(crate) renewed: Option<Timestamp>,
    pub(crate) transitions: i32,
    /// Why it would rather not lead.
    pub(crate) yields: Option<String>,
    pub(crate) peers: PeerReport,
    /// Which build it is: version, commit and date.
    pub(crate) build: Option<String>,
}

/// The registry was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Dark {
    /// There is nothing to read, because this cluster is in no ClusterSet, or its identity is not known.
    #[error("no ClusterSet is known")]
    NoClusterSet,
    /// There is no ledger, in the account and region that were asked.
    #[error("{0}")]
    NoLedger(String),
    /// Credentials, region or network are missing here.
    #[error("{0}")]
    Unseen(String),
}

/// All exports and imports, or those of one namespace.
#[derive(Debug)]
pub(crate) struct Objects {
    /// `None` means all namespaces.
    pub(crate) namespace: Option<String>,
    pub(crate) exports: Read<Vec<ServiceExport>>,
    pub(crate) imports: Read<Vec<ServiceImport>>,
}

/// Everything about one name.
#[derive(Debug)]
pub(crate) struct Name {
    pub(super) key: ServiceKey,
    pub(super) namespace: Read<bool>,
    pub(super) service: Read<Option<Service>>,
    pub(super) export: Read<Option<ServiceExport>>,
    /// The EndpointSlices of the Service in this cluster.
    pub(super) local: Read<Vec<EndpointSlice>>,
    pub(super) targets: Vec<(Target, Result<Option<Instances>, String>)>,
    pub(super) import: Read<Option<ServiceImport>>,
    pub(super) derived: Read<Option<Service>>,
    /// The EndpointSlices of the import.
    pub(super) imported: Read<Vec<EndpointSlice>>,
    pub(super) dns: Dns,
}

/// The instances in a target, as the discovery plane has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Instances {
    /// How many of each cluster; of others under the empty text.
    pub(super) registered: BTreeMap<String, usize>,
    /// How many of all fail their health check.
    pub(super) unhealthy: usize,
    /// There are more than AWS returns.
    pub(super) truncated: bool,
}

/// What the cluster's DNS answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Dns {
    /// This machine does not use the cluster's DNS.
    NotAsked,
    Asked(Result<Vec<IpAddr>, String>),
}

/// Where `status` looks.
pub(crate) struct Observer<'a> {
    pub(crate) client: Client,
    pub(crate) place: &'a PlaceArgs,
    /// The registry, or why it cannot be asked.
    pub(crate) cloudmap: Result<Arc<dyn cloudmap::Read>, String>,
}

impl<'a> Observer<'a> {
    pub(crate) async fn new(client: Client, place: &'a PlaceArgs) -> Self {
        let cloudmap = connect::registry_for_status(&place.aws).await.map_err(|error| format!("{error:#}"));
        Self { client, place, cloudmap }
    }

    pub(super) async fn cluster(&self) -> Cluster {
        let own = &self.place.kube.controller.namespace;
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), own);
        let record = RecordObject::new(self.client.clone(), own);
        let (identity, lease, record, version) =
            tokio::join!(self.identity(), read(leases.get_opt(lease::LEASE)), record.load(), version(&self.client));
        let ahead = version.ok().and_then(|(_, ahead)| ahead).unwrap_or_default();
        let now = env::timestamp().checked_add(ahead).unwrap_or_default();
        let known = identity.as_ref().ok().and_then(|identity| identity.as_ref().ok());
        let clusterset = known.and_then(|identity| identity.clusterset.clone());
        let clusterset = clusterset.or_else(|| self.place.identity.clusterset_id.clone());
        Cluster {
            now,
            own: own.clone(),
            flags: self.place.kube.cluster.flags(),
            ledger: self.ledger(clusterset, ahead).await,
            lease: lease.map(|lease| lease.map(Leader::from)),
            record: record.map(|record| record.map(|(record, _)| record)),
            identity,
        }
    }

    async fn identity(&self) -> Read<Result<Identity, IdentityError>> {
        let (uid, properties) =
            tokio::join!(identity::kube_system_uid(&self.client), identity::properties(&self.client));
        Ok(identity::resolve(&properties?, &connect::flags(&self.place.identity), &uid?))
    }

    /// `ahead`: how far the API server's clock is ahead of the one here.
    async fn ledger(&self, clusterset: Option<ClusterSetId>, ahead: SignedDuration) -> Result<Vec<ClusterView>, Dark> {
        let clusterset = clusterset.ok_or(Dark::NoClusterSet)?;
        let cloudmap = self.cloudmap.clone().map_err(Dark::Unseen)?;
        let read = Box::pin(async {
            match read_all(cloudmap, &clusterset).await {
                Err(error @ show::Error::NoLedger(_)) => Ok(Err(Dark::NoLedger(error.to_string()))),
                read => read.map(Ok),
            }
        });
        let mut views = in_time(read).await.map_err(Dark::Unseen)??;
        let now = env::timestamp().checked_add(ahead).unwrap_or_default();
        for view in &mut views {
            view.date(since(now, Timestamp::UNIX_EPOCH));
        }
        Ok(views)
    }

    pub(super) async fn objects(&self, namespace: Option<&str>) -> Objects {
        let (exports, imports): (Api<ServiceExport>, Api<ServiceImport>) = match namespace {
            Some(namespace) => {
                (Api::namespaced(self.client.clone(), namespace), Api::namespaced(self.client.clone(), namespace))
            }
            None => (Api::all(self.client.clone()), Api::all(self.client.clone())),
        };
        let (exports, imports) = tokio::join!(all(&exports), all(&imports));
        Objects { namespace: namespace.map(str::to_owned), exports, imports }
    }

    /// Lists with the name as a selector: who may list, as the controller's own role, need not be allowed to get.
    pub(crate) async fn name(&self, key: &ServiceKey, ledger: &Result<Vec<ClusterView>, Dark>) -> Name {
        let named = |name: &str| ListParams::default().fields(&format!("metadata.name={name}"));
        let labelled = |label: &str| ListParams::default().labels(&format!("{label}={}", key.name));
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let services: Api<Service> = Api::namespaced(self.client.clone(), &key.namespace);
        let exports: Api<ServiceExport> = Api::namespaced(self.client.clone(), &key.namespace);
        let imports: Api<ServiceImport> = Api::namespaced(self.client.clone(), &key.namespace);
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &key.namespace);
        let (this, of_namespace) = (named(&key.name), named(&key.namespace));
        let (of_service, of_import) =
            (labelled(names::LABEL_KUBERNETES_SERVICE_NAME), labelled(names::LABEL_SERVICE_NAME));
        let import = async {
            let import = read(imports.list(&this)).await.map(|list| list.items.into_iter().next());
            // Its name follows from a flag of the controller.
            let annotation = |import: &ServiceImport| {
                import.metadata.annotations.as_ref()?.get(names::ANNOTATION_DERIVED_SERVICE).cloned()
            };
            let named_there = import.as_ref().ok().and_then(|import| annotation(import.as_ref()?));
            let derived = named(&named_there.unwrap_or_else(|| hashed(key)));
            (import, read(services.list(&derived)).await)
        };
        let (namespace, service, export, local, (import, derived), imported, targets, dns) = tokio::join!(
            read(namespaces.list(&of_namespace)),
            read(services.list(&this)),
            read(exports.list(&this)),
            read(slices.list(&of_service)),
            import,
            read(slices.list(&of_import)),
            self.targets(ledger.as_deref().unwrap_or_default(), key),
            self.dns(key),
        );
        Name {
            key: key.clone(),
            namespace: namespace.map(|list| !list.items.is_empty()),
            service: service.map(|list| list.items.into_iter().next()),
            export: export.map(|list| list.items.into_iter().next()),
            local: local.map(|list| list.items),
            targets,
            import,
            derived: derived.map(|list| list.items.into_iter().next()),
            imported: imported.map(|list| list.items),
            dns,
        }
    }

    /// The instances in every target to which some cluster has a claim for this name.
    async fn targets(
        &self,
        views: &[ClusterView],
        key: &ServiceKey,
    ) -> Vec<(Target, Result<Option<Instances>, String>)> {
        let mut found = Vec::new();
        let (Ok(cloudmap), targets) = (&self.cloudmap, super::name::targets(views, key)) else { return found };
        if targets.is_empty() {
            return found;
        }
        // Once for all of them: AWS allows few such listings, and the controllers need them, too.
        let namespaces = in_time(cloudmap.list_namespaces(Lane::Instances)).await;
        for target in targets {
            let instances = match &namespaces {
                Ok(namespaces) => in_time(instances(&**cloudmap, namespaces, &target)).await,
                Err(why) => Err(why.clone()),
            };
            found.push((target, instances));
        }
        found
    }

    async fn dns(&self, key: &ServiceKey) -> Dns {
        let kube = &self.place.kube.cluster;
        let in_this_cluster = kube.kubeconfig.is_none() && kube.context.is_none() && is_pod();
        if !in_this_cluster {
            return Dns::NotAsked;
        }
        // With the last dot, so that no search domain is tried.
        let question = format!("{}.", names::dns_name(key));
        let answers = dns::resolve(&question, DNS_PATIENCE).await;
        Dns::Asked(answers.map(|answers| answers.into_iter().collect()))
    }
}

/// All objects, without `managedFields`: nobody asks for these, and they are about as large as the rest. The page reads in
/// the controller's own container, within its memory limit.
pub(super) async fn all<K>(api: &Api<K>) -> Read<Vec<K>>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut all = Vec::new();
    let keep = |mut object: K| {
        object.meta_mut().managed_fields = None;
        all.push(object);
    };
    each(api, ListParams::default(), keep).await?;
    Ok(all)
}

fn is_pod() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && std::env::var_os("KUBECONFIG").is_none()
}

/// What `DiscoverInstances` returns for a target; `None` if there is no such service.
async fn instances(
    cloudmap: &dyn cloudmap::Read,
    namespaces: &[RegistryNamespace],
    target: &Target,
) -> Result<Option<Instances>, Error> {
    let Some(namespace) = RegistryNamespace::named(namespaces, &target.namespace) else { return Ok(None) };
    let found =
        cloudmap.discover_instances(namespace.in_discovery(), &target.service, &BTreeMap::new(), Lane::Instances).await;
    match found {
        Ok(discovery) => {
            let mut registered = BTreeMap::new();
            for instance in &discovery.instances {
                let cluster = instance.attributes.get(attributes::CLUSTER).cloned().unwrap_or_default();
                *registered.entry(cluster).or_default() += 1;
            }
            let (unhealthy, truncated) = (discovery.unhealthy.len(), discovery.truncated);
            Ok(Some(Instances { registered, unhealthy, truncated }))
        }
        Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl From<Lease> for Leader {
    fn from(lease: Lease) -> Self {
        let mut annotations = lease.metadata.annotations.unwrap_or_default();
        let spec = lease.spec.unwrap_or_default();
        Self {
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
            acquired: spec.acquire_time.map(|time| time.0),
            renewed: spec.renew_time.map(|time| time.0),
            transitions: spec.lease_transitions.unwrap_or(0),
            yields: annotations.remove(names::ANNOTATION_YIELDS),
            build: annotations.remove(names::ANNOTATION_BUILD),
            peers: PeerReport::read(&annotations),
        }
    }
}
