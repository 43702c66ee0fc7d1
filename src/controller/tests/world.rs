//! Clusters in memory, each with a whole controller, around one Cloud Map in memory, under simulated time.

use std::{
    collections::BTreeSet,
    future::pending,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery},
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::Timestamp,
};
use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};

use super::super::*;
use api::names;
use base::env;
use cloudmap::{
    Access, ErrorKind, Instance, Operation,
    fake::{Fake, Fault},
};
use cluster::{Caches, Leadership, memory::MemoryCluster, record::memory::StoredHidden, selector::NamespaceSelector};
use cutover::{
    Settle,
    guard::{self, Failure, Outside},
};
use export::Quota;
use import::{DerivedNaming, hashed};
use instances::{Naming, RegistrationPolicy, Selection};
use ledger::{CLUSTERS, driver, head::Head, record::memory::Stored, records, show};
use model::{IpFamily, ServiceKey, addresses::Range};

/// Simulated time within which everything converges.
const PATIENCE: Duration = Duration::from_mins(10);

pub(super) fn key(name: &str) -> ServiceKey {
    ServiceKey::new("shop", name)
}

/// What guards find.
#[derive(Debug, Default)]
pub(super) struct Callers {
    /// Where somebody was asked.
    pub(super) asked: Mutex<BTreeSet<SocketAddr>>,
    /// The pods that do not answer.
    pub(super) ill: Mutex<BTreeSet<IpAddr>>,
    /// The value of every query.
    pub(super) value: Mutex<Option<f64>>,
    /// Why no DNS name resolves, if so.
    pub(super) unresolved: Mutex<Option<String>>,
}

#[async_trait]
impl Outside for Callers {
    async fn resolve(&self, _: &str) -> Result<BTreeSet<IpAddr>, String> {
        let unresolved = self.unresolved.lock().unwrap().clone();
        unresolved.map_or_else(|| Ok([[10, 0, 0, 1].into()].into()), Err)
    }

    async fn probe(&self, at: SocketAddr, _: Option<&str>) -> Result<(), Failure> {
        self.asked.lock().unwrap().insert(at);
        if self.ill.lock().unwrap().contains(&at.ip()) { Err(Failure::Refused) } else { Ok(()) }
    }

    async fn query(&self, _: &str) -> Result<f64, String> {
        self.value.lock().unwrap().ok_or_else(|| "the query has no value".to_owned())
    }
}

/// The registry that all clusters share, and the clock that all of them see.
pub(super) struct World {
    pub(super) fake: Fake,
    pub(super) callers: Arc<Callers>,
    machine: Arc<dyn env::Machine>,
}

impl World {
    pub(super) fn new() -> Self {
        Self { fake: Fake::new(), callers: Arc::default(), machine: Arc::new(env::Simulated::new()) }
    }

    /// A cluster that leads at once.
    pub(super) fn cluster(&self, id: &str) -> Cluster {
        self.cluster_with_uid(id, &format!("uid-{id}"))
    }

    pub(super) fn cluster_with_uid(&self, id: &str, uid: &str) -> Cluster {
        let (objects, caches) = MemoryCluster::new();
        objects.add_namespace("shop");
        // Most tests are about other things.
        objects.annotate_namespace("shop", &[(names::ANNOTATION_MAY_REGISTER, "*/*")]);
        let (id, uid, exposed) = (id.to_owned(), uid.to_owned(), prometheus::Registry::new());
        let mut cluster = Cluster {
            id,
            uid,
            objects,
            caches,
            fake: self.fake.clone(),
            callers: Arc::clone(&self.callers),
            machine: Arc::clone(&self.machine),
            record: Arc::default(),
            leader: None,
            export_namespaces: None,
            naming: DerivedNaming::Hash,
            stale_ttl: None,
            member: true,
            annotations: annotations::AnnotationSettings::default(),
            instances: Selection::All,
            aws_mcs: false,
            registration: RegistrationPolicy::Open,
            quota: Quota::default(),
            hide_tasks: false,
            settle: Settle::default(),
            hidden: Arc::default(),
            metrics: Metrics::new(&exposed).unwrap(),
            exposed,
        };
        cluster.lead();
        cluster
    }

    /// Whoever leads from now on has a clock that is behind.
    pub(super) fn set_back(cluster: &mut Cluster, behind: Duration) {
        cluster.machine = Arc::new(env::Simulated::behind(behind));
    }

    /// What the clocks of all machines say.
    pub(super) fn wall(&self) -> Timestamp {
        Timestamp::try_from(self.machine.wall_clock()).unwrap()
    }

    /// Lets every call fail from now on.
    pub(super) fn fail(&self) {
        for &operation in Operation::ALL {
            for _ in 0..20_000 {
                self.fake.fault(operation, Fault::Refused(ErrorKind::AccessDenied));
            }
        }
    }

    pub(super) fn heal(&self) {
        self.fake.registry().faults.clear();
    }

    /// Calls that changed the registry, heads apart: the ids of what they changed.
    pub(super) fn writes(&self) -> Vec<(Operation, String)> {
        let calls = self.fake.registry().calls.clone();
        let heads = ["blue", "green", "red"];
        let writes = calls.into_iter().filter(|(operation, _)| operation.access() == Access::Write);
        writes.filter(|(_, id)| !heads.contains(&&**id)).collect()
    }

    /// Lets a service of the ledger be made by somebody else. Returns who made it before.
    pub(super) fn rename_creator(&self, service: &str, creator: &str) -> String {
        let mut registry = self.fake.registry();
        let service = registry.services.values_mut().find(|there| *there.name == *service).unwrap();
        service.creator_request_id.replace(creator.to_owned()).unwrap()
    }

    /// Puts a head of another cluster under an id.
    pub(super) fn rewrite_heads(&self, id: &str, uid: &str) {
        let mut registry = self.fake.registry();
        let heads = registry.services.values().find(|there| *there.name == *CLUSTERS).unwrap().id.clone();
        let attributes = registry.instances.get_mut(&(heads, id.into())).unwrap();
        let mut head = Head::from_instance(&Instance { id: id.into(), attributes: attributes.clone() }).unwrap();
        head.uid = uid.into();
        *attributes = head.to_instance().attributes;
    }

    /// Whether a cluster's head says that it has left.
    pub(super) fn has_left(&self, id: &str) -> bool {
        let registry = self.fake.registry();
        let heads = registry.services.values().find(|there| *there.name == *CLUSTERS).unwrap().id.clone();
        let attributes = registry.instances[&(heads, id.into())].clone();
        !Head::from_instance(&Instance { id: id.into(), attributes }).unwrap().is_live()
    }

    /// The targets to which the ledger has a claim of this cluster, as `cloudmap-mcs ledger show` reads it.
    pub(super) async fn claims(&self, id: &str) -> Vec<String> {
        let (clusterset, fake) = ("prod".parse().unwrap(), Arc::new(self.fake.clone()));
        let views = show::read_all(fake, &clusterset).await.unwrap();
        let view = views.into_iter().find(|view| &*view.id == id).unwrap();
        records::registrations(&view.state.unwrap()).into_keys().map(|target| target.to_string()).collect()
    }

    /// As `cloudmap-mcs forget` does it.
    pub(super) async fn forget(&self, id: &str) {
        let (clusterset, id) = ("prod".parse().unwrap(), id.parse().unwrap());
        let fake = Arc::new(self.fake.clone());
        env::on(&self.machine, async move {
            show::forget(fake, &clusterset, &id).await.unwrap();
        })
        .await;
    }

    /// As `cloudmap-mcs purge --cluster` does it, but for instances.
    pub(super) fn purge(&self, id: &str) {
        let mut registry = self.fake.registry();
        let heads = registry.services.values().find(|there| *there.name == *CLUSTERS).unwrap().id.clone();
        registry.instances.remove(&(heads, id.into()));
        registry.services.retain(|_, there| *there.name != *ledger::service_name(id, 0));
    }

    /// Ids of the instances in a service of the Cloud Map namespace `shop`.
    pub(super) fn instances(&self, service: &str) -> Vec<String> {
        let registry = self.fake.registry();
        let Some(shop) = registry.namespaces.iter().find(|namespace| &*namespace.name == "shop") else { return vec![] };
        let of = registry.services.values().find(|s| &*s.name == service && s.namespace_id.as_ref() == Some(&shop.id));
        let Some(of) = of else { return vec![] };
        registry.instances.keys().filter(|(service, _)| *service == of.id).map(|(_, id)| id.to_string()).collect()
    }
}

/// Waits until something holds.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Lets time pass while something holds all the time.
pub(super) async fn always(what: &str, time: Duration, holds: impl Fn() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        assert!(holds(), "{what}: no more, {:?} before the end", end - Instant::now());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) struct Cluster {
    pub(super) id: String,
    uid: String,
    pub(super) objects: Arc<MemoryCluster>,
    caches: Caches,
    fake: Fake,
    callers: Arc<Callers>,
    pub(super) machine: Arc<dyn env::Machine>,
    record: Arc<Stored>,
    leader: Option<JoinHandle<()>>,
    /// Heeded by those that lead from now on.
    pub(super) export_namespaces: Option<NamespaceSelector>,
    pub(super) naming: DerivedNaming,
    pub(super) stale_ttl: Option<Duration>,
    /// It has a ClusterSet id.
    pub(super) member: bool,
    pub(super) annotations: annotations::AnnotationSettings,
    pub(super) instances: Selection,
    /// `--aws-mcs-compat`
    pub(super) aws_mcs: bool,
    pub(super) registration: RegistrationPolicy,
    pub(super) quota: Quota,
    /// `--hide-tasks`
    pub(super) hide_tasks: bool,
    /// `--settle`
    pub(super) settle: Settle,
    pub(super) hidden: Arc<StoredHidden>,
    metrics: Metrics,
    /// What its process shows, whether it leads or not.
    exposed: prometheus::Registry,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Cluster {
    /// Ends the process that leads, in the middle of whatever it does.
    pub(super) fn kill(&mut self) {
        if let Some(leader) = self.leader.take() {
            leader.abort();
        }
    }

    /// Starts a process that leads, as `app` does it.
    pub(super) fn lead(&mut self) {
        let cluster = self.id.parse().unwrap();
        let clusterset = self.member.then(|| "prod".parse().unwrap());
        let identity = instances::Owner { clusterset, cluster, cluster_uid: self.uid.as_str().into() };
        let (annotations, policy) = (self.annotations.clone(), self.instances);
        let (objects, caches, fake, record) =
            (Arc::clone(&self.objects), self.caches.clone(), Arc::new(self.fake.clone()), Arc::clone(&self.record));
        let (export_namespaces, stale_ttl, member) = (self.export_namespaces.clone(), self.stale_ttl, self.member);
        let callers = Arc::clone(&self.callers);
        let (hide_tasks, hidden, metrics) = (self.hide_tasks, Arc::clone(&self.hidden), self.metrics.clone());
        let settle = self.settle;
        let (aws_mcs, registration, quota, derived) =
            (self.aws_mcs, self.registration, self.quota, self.naming.clone());
        self.leader = Some(tokio::spawn(env::on(&self.machine, async move {
            let leadership = Leadership::manual(Some(Instant::now() + Duration::from_hours(10_000)));
            let records = if let Some(clusterset) = identity.clusterset.clone() {
                let mut settings =
                    driver::LedgerSettings::new(identity.cluster.clone(), clusterset, &*identity.cluster_uid);
                settings.stale_ttl = stale_ttl;
                Records::Ledger(driver::spawn(settings, fake.clone(), record, leadership.clone(), pending()))
            } else {
                let uid = &identity.cluster_uid;
                Records::Local(driver::local::spawn(record, leadership.clone(), fake.clone(), uid, None, || true))
            };
            let ledger = if let Records::Ledger(ledger) = &records { Some(ledger.status()) } else { None };
            let (desired, receiver) = tokio::sync::watch::channel(instances::sync::Desired::new());
            let (_stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let registered = instances::sync::spawn(
                instances::sync::SyncSettings::new(identity.clone()),
                fake.clone(),
                hidden,
                receiver,
                instances::sync::Permit { leadership, ledger },
                async move { drop(stopped.await) },
            );
            let (subscribed, subscribed_receiver) = tokio::sync::watch::channel(Arc::default());
            let (_ranges, service_ranges) = tokio::sync::watch::channel([Range::parse("10.96.0.0/16").unwrap()].into());
            let reader =
                ::discovery::DiscoverySettings { aws_mcs, ..::discovery::DiscoverySettings::new(identity.clone()) };
            let read = ::discovery::spawn(reader, fake.clone(), subscribed_receiver);
            let (naming, of) = (Naming::PerNamespace, identity.clone());
            let targets = Targets { policy, naming, identity: of, region: None, aws_mcs, zones: None };
            let inputs = Inputs {
                caches,
                writer: objects,
                membership: Membership::Joining(if member {
                    "The controller is starting.".to_owned()
                } else {
                    "This cluster is in no ClusterSet.".to_owned()
                }),
                records,
                directory: Some(annotations::Directory::spawn(fake.clone())),
                guards: guard::spawn(fake.clone(), callers),
                lookups: ::gates::lookups::spawn(fake),
                instances: desired,
                statuses: registered.status(),
                subscribed,
                found: read.found(),
                service_ranges,
                metrics,
            };
            let settings = ControllerSettings {
                cluster: identity.cluster,
                concurrency: 4,
                targets,
                annotations,
                registration,
                quota,
                claim_delay: Duration::from_secs(10),
                export_namespaces,
                import: ImportRules { own: Some("cloudmap-mcs-system".into()), ..ImportRules::default() },
                families: vec![IpFamily::V4],
                derived,
                gate_timeout: Duration::from_mins(5),
                hide_tasks,
                settle,
                type_notice: Duration::from_mins(15),
            };
            run(settings, inputs).await;
        })));
    }

    /// Whether the metrics page has this line.
    pub(super) fn shows(&self, line: &str) -> bool {
        let page = prometheus::TextEncoder::new().encode_to_string(&self.exposed.gather()).unwrap();
        page.lines().any(|there| there == line)
    }

    /// Waits until another cluster's head was read, by an export that comes and goes.
    pub(super) async fn until_knows(&self, other: &Self) {
        other.export("known", 80, &[]);
        self.until_imports("known", &[]).await;
        other.objects.remove_export(&key("known"));
        until("it is gone", || self.is_clean("known")).await;
    }

    /// As `cloudmap-mcs leave` does it, or takes it back.
    pub(super) fn set_leaving(&self, leaving: bool) {
        let mut held = self.record.0.lock().unwrap();
        let (record, version) = held.as_mut().unwrap();
        record.leaving = leaving;
        *version += 1;
    }

    /// Whether the API server refuses to store the ledger's record.
    pub(super) fn refuse_record(&self, refuse: bool) {
        self.record.1.store(refuse, std::sync::atomic::Ordering::SeqCst);
    }

    pub(super) fn put_service(&self, name: &str, port: u16) {
        let service: core::Service = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": {
                "clusterIP": "10.96.200.1", "clusterIPs": ["10.96.200.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "selector": {"app": name},
                "ports": [{"name": "http", "protocol": "TCP", "port": port}],
            },
        }))
        .unwrap();
        self.objects.put_service(service);
    }

    /// The endpoints of a Service, all ready.
    pub(super) fn put_endpoints(&self, name: &str, addresses: &[&str]) {
        let endpoints: Vec<_> = addresses.iter().map(|&address| (address, true)).collect();
        self.put_readiness(name, &endpoints);
    }

    /// The endpoints of a Service, and whether they are ready.
    pub(super) fn put_readiness(&self, name: &str, endpoints: &[(&str, bool)]) {
        let pod = |address: &str| json!({"kind": "Pod", "namespace": "shop", "name": address});
        let row = |(address, ready): &(&str, bool)| json!({"addresses": [address], "conditions": {"ready": ready}, "targetRef": pod(address)});
        let endpoints: Vec<_> = endpoints.iter().map(row).collect();
        let slice: discovery::EndpointSlice = serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop", "name": format!("{name}-1"),
                "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: name, names::LABEL_SLICE_MANAGED_BY: "endpointslice-controller.k8s.io"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
            "endpoints": endpoints,
        }))
        .unwrap();
        self.objects.put_slice(slice);
    }

    /// A ServiceExport; one that is there keeps its status, as an API server does it.
    pub(super) fn put_export(&self, name: &str, annotations: &[(&str, &str)]) {
        let annotations: serde_json::Map<_, _> =
            annotations.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let export: api::ServiceExport = serde_json::from_value(json!({
            "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
            "metadata": {"namespace": "shop", "name": name, "annotations": annotations},
        }))
        .unwrap();
        let status = self.objects.export(&key(name)).and_then(|there| there.status);
        self.objects.put_export(api::ServiceExport { status, ..export });
    }

    /// A Service with endpoints, and its ServiceExport.
    pub(super) fn export(&self, name: &str, port: u16, addresses: &[&str]) {
        self.put_service(name, port);
        self.put_endpoints(name, addresses);
        self.put_export(name, &[]);
    }

    /// Status and reason of a condition of a ServiceExport.
    pub(super) fn says(&self, name: &str, type_: &str) -> (String, String) {
        self.condition(name, type_).map(|condition| (condition.status, condition.reason)).unwrap_or_default()
    }

    pub(super) fn condition(&self, name: &str, type_: &str) -> Option<Condition> {
        let conditions = self.objects.export(&key(name))?.status?.conditions;
        conditions.into_iter().find(|condition| condition.type_ == type_)
    }

    /// A condition of a ServiceImport.
    pub(super) fn import_condition(&self, name: &str, type_: &str) -> Option<Condition> {
        let conditions = self.objects.import(&key(name))?.status?.conditions;
        conditions.into_iter().find(|condition| condition.type_ == type_)
    }

    /// The clusters that an import comes from, and those that its slices name as their sources.
    pub(super) fn sources(&self, name: &str) -> [BTreeSet<String>; 2] {
        let status = self.objects.import(&key(name)).and_then(|import| import.status).unwrap_or_default();
        let label =
            |slice: discovery::EndpointSlice| slice.metadata.labels.unwrap()[names::LABEL_SOURCE_CLUSTER].clone();
        [status.clusters.into_iter().map(|status| status.cluster).collect(), self.slices(name).map(label).collect()]
    }

    pub(super) async fn until_says(&self, name: &str, type_: &str, status: &str, reason: &str) {
        let what = format!("{} {name} {type_}={status} {reason}", self.id);
        let wanted = (status.to_owned(), reason.to_owned());
        until(&what, || {
            let said = self.says(name, type_);
            said == wanted
        })
        .await;
    }

    pub(super) fn slices(&self, name: &str) -> impl Iterator<Item = discovery::EndpointSlice> {
        let is_of = move |slice: &discovery::EndpointSlice| {
            let labels = slice.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(names::LABEL_SERVICE_NAME)).is_some_and(|of| of == name)
        };
        self.objects.slices().into_iter().filter(is_of)
    }

    /// The addresses of a name's imported slices, sorted.
    pub(super) fn imported(&self, name: &str) -> Vec<String> {
        let mut addresses: Vec<_> =
            self.slices(name).flat_map(|slice| slice.endpoints).flat_map(|endpoint| endpoint.addresses).collect();
        addresses.sort();
        addresses
    }

    /// Waits until a name is imported, with these addresses in its slices.
    pub(super) async fn until_imports(&self, name: &str, addresses: &[&str]) {
        until(&format!("{} imports {name} with {addresses:?}", self.id), || {
            self.objects.import(&key(name)).is_some_and(|import| import.status.is_some())
                && self.imported(name) == addresses
        })
        .await;
    }

    pub(super) fn derived(&self, name: &str) -> Option<core::Service> {
        let derived = hashed(&key(name));
        self.objects.services().into_iter().find(|service| service.metadata.name.as_ref() == Some(&derived))
    }

    /// Nothing of an import is there.
    pub(super) fn is_clean(&self, name: &str) -> bool {
        self.objects.import(&key(name)).is_none() && self.derived(name).is_none() && self.imported(name).is_empty()
    }

    /// The uids of all that the import made for a name: equal ones mean that nothing was deleted and made again.
    pub(super) fn uids(&self, name: &str) -> Vec<Option<String>> {
        let import = self.objects.import(&key(name)).map(|import| import.metadata.uid);
        let derived = self.derived(name).map(|service| service.metadata.uid);
        let slices = self.slices(name).map(|slice| slice.metadata.uid);
        import.into_iter().chain(derived).chain(slices).collect()
    }
}
