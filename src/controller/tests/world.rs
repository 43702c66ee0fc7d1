//! Clusters in memory, each with a whole controller, around one Cloud Map in memory, under simulated time.

mod member;

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

pub(super) use self::member::Cluster;
use super::super::*;
use api::names;
use base::env;
use cloudmap::{
    Access, ErrorKind, Instance, Listings, Operation,
    fake::{Fake, Fault, permit},
};
use cluster::{Caches, Leadership, memory::MemoryCluster, record::memory::StoredHidden, selector::NamespaceSelector};
use cutover::{
    Settle,
    guard::{self, Failure, Outside},
};
use export::Quota;
use import::{DerivedNaming, hashed};
use instances::{Naming, RegistrationPolicy, Selection};
use ledger::{CLUSTERS, driver, head::Head, record::memory::Stored, show};
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

    /// Another registry, for clusters with the same clock.
    pub(super) fn beside(&self) -> Self {
        Self { fake: Fake::new(), callers: Arc::clone(&self.callers), machine: Arc::clone(&self.machine) }
    }

    /// A cluster that leads at once, whose home is the first of these registries, and that reads the others.
    pub(super) fn cluster_of(id: &str, uid: &str, registries: &[(&str, &Self)]) -> Cluster {
        let [(home, at), others @ ..] = registries else { panic!("no home") };
        let mut cluster = at.cluster_with_uid(id, uid);
        cluster.move_to(home, at, others);
        cluster
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
            registries: driver::Registries::default(),
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
            missing_namespaces: instances::MissingNamespaces::default(),
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
        self.refuse(|_| true);
    }

    /// Lets every call that writes fail from now on.
    pub(super) fn refuse_writes(&self) {
        self.refuse(|operation| operation.access() == Access::Write);
    }

    fn refuse(&self, which: impl Fn(Operation) -> bool) {
        for &operation in Operation::ALL.iter().filter(|operation| which(**operation)) {
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
        let views = records::read_all(fake, &clusterset).await.unwrap();
        let view = views.into_iter().find(|view| &*view.id == id).unwrap();
        records::registrations(&view.state.unwrap()).into_keys().map(|target| target.to_string()).collect()
    }

    /// As `cloudmap-mcs forget` does it.
    pub(super) async fn forget(&self, id: &str) {
        let (clusterset, id) = ("prod".parse().unwrap(), id.parse().unwrap());
        let fake = Arc::new(self.fake.clone());
        env::on(&self.machine, async move {
            show::forget(fake, &permit(), &clusterset, &id).await.unwrap();
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
