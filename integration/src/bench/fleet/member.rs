//! One cluster of the fleet: its exports, and the ledger that publishes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use async_trait::async_trait;
use cluster::Leadership;
use export::Exports;
use ledger::{
    Map,
    driver::{
        self, LedgerHandle, LedgerSettings,
        sessions::{Listener, Network, Tcp, Wire},
    },
    record::{Record, RecordStore, ResourceVersion, StoreError},
    trust::{Keys, Mode, StoredKey},
};
use model::{
    Conditions, Endpoint, EndpointPort, Export, Exported, IpFamily, Protocol, ServiceKey, ServicePort, ServiceType,
    SessionAffinity, Target, TrafficPolicy,
};
use tokio::time::Instant;

use super::{Fleet, Shape};
use crate::{bench::pods::Pods, ledger_sim::rng::Rng};

/// Longer than any benchmark: nobody else wants to lead these clusters.
const TERM: Duration = Duration::from_hours(24);
const PORT: &str = "http";

/// A cluster that publishes its exports, and whose endpoints change.
pub(super) struct Member {
    id: String,
    namespace: Arc<str>,
    exports: Exports,
    /// The pods of each service.
    services: Vec<Vec<u32>>,
    next_pod: u32,
    pods: Pods,
    ports: Arc<[EndpointPort]>,
    rng: Rng,
    created: i64,
    ledger: LedgerHandle,
}

impl Member {
    pub(super) fn id(number: usize) -> String {
        format!("fleet-{number:03}")
    }

    /// Starts the ledger with all exports.
    pub(super) fn start(number: usize, shape: &Shape, registry: Arc<dyn cloudmap::Write>) -> anyhow::Result<Self> {
        let id = Self::id(number);
        let mut rng = Rng::new(&id, shape.seed);
        let mut settings = LedgerSettings::new(id.parse()?, shape.clusterset.clone(), format!("uid-{id}"));
        let seed: Vec<u8> = (0..4).flat_map(|_| rng.next().to_be_bytes()).collect();
        let keys = Keys::read(&StoredKey { seed, former: Vec::new() }).map_err(anyhow::Error::msg)?;
        settings.trust.mode = Mode::Tofu;
        settings.keys = Some(Arc::new(keys));
        settings.network = shape.stream.then(|| Arc::new(Outgoing(Tcp::new(&[], 0))) as _);
        let leadership = Leadership::manual(Some(Instant::now() + TERM));
        let record = Arc::new(Stored::default());
        let ledger = driver::spawn(settings, registry, record, leadership, std::future::pending());
        let port = EndpointPort { name: PORT.into(), protocol: Protocol::Tcp, port: 8080, app_protocol: None };
        let pods = |service: usize| (0..shape.endpoints).map(|pod| (service * shape.endpoints + pod) as u32).collect();
        let mut member = Self {
            namespace: Fleet::namespace(number).into(),
            exports: Exports::resume(&Map::new()),
            services: (0..shape.services).map(pods).collect(),
            next_pod: (shape.services * shape.endpoints) as u32,
            pods: Pods::new(rng.next()),
            ports: [port].into(),
            created: SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().cast_signed(),
            id,
            rng,
            ledger,
        };
        (0..shape.services).for_each(|service| member.set(service));
        member.publish();
        Ok(member)
    }

    /// Waits until the ledger has all exports.
    pub(super) async fn published(&self, deadline: Instant) -> anyhow::Result<()> {
        let wanted = self.wanted();
        let mut published = self.ledger.published();
        let there = published.wait_for(|there| there.as_ref().is_some_and(|there| **there == *wanted));
        match tokio::time::timeout_at(deadline, there).await {
            Ok(ended) => ended.map(drop).with_context(|| format!("the ledger of {} has ended", self.id)),
            Err(_) => anyhow::bail!("{} has not published its exports: {:?}", self.id, self.ledger.status().borrow()),
        }
    }

    /// The state to publish.
    pub(super) fn wanted(&self) -> Arc<Map> {
        self.exports.map()
    }

    /// Puts another pod in the place of one.
    pub(super) fn replace(&mut self) {
        let service = self.rng.below(self.services.len());
        let endpoint = self.rng.below(self.services[service].len());
        self.services[service][endpoint] = self.next_pod;
        self.next_pod += 1;
        self.set(service);
        self.publish();
    }

    fn publish(&self) {
        self.ledger.desired().send_replace(Some(self.wanted()));
    }

    fn set(&mut self, service: usize) {
        let name: Arc<str> = crate::bench::load::name(service).into();
        let key = ServiceKey { namespace: self.namespace.clone(), name: name.clone() };
        let target = Target { namespace: self.namespace.clone(), service: name };
        let mut endpoints: Vec<Endpoint> = self.services[service].iter().map(|&pod| self.endpoint(pod)).collect();
        endpoints.sort_unstable();
        let exported = Exported { export: self.export(service, target.clone()), endpoints };
        self.exports.set(&key, Some(Arc::new(exported)), BTreeSet::from([target]), self.created);
    }

    fn export(&self, service: usize, target: Target) -> Export {
        let port = ServicePort { name: PORT.into(), protocol: Protocol::Tcp, port: 80, app_protocol: None };
        Export {
            uid: self.pods.uid(service as u32).into(),
            created: self.created,
            service_type: ServiceType::ClusterSetIp,
            ports: vec![port],
            session_affinity: SessionAffinity::None,
            internal_traffic_policy: TrafficPolicy::Cluster,
            traffic_distribution: None,
            ip_families: vec![IpFamily::V4],
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            publish_not_ready_addresses: false,
            target: Some(target),
            cluster_selection: None,
            drain: None,
        }
    }

    fn endpoint(&self, pod: u32) -> Endpoint {
        Endpoint {
            ipv4: Some(self.pods.address(pod)),
            ipv6: None,
            ports: self.ports.clone(),
            conditions: Conditions::READY,
            hostname: None,
            zone: Some(self.pods.zone(pod).into()),
            node: Some(self.pods.node(pod).into()),
        }
    }
}

/// Dials others, and cannot be dialled: it says no address.
#[derive(Debug)]
struct Outgoing(Tcp);

#[async_trait]
impl Network for Outgoing {
    fn addresses(&self) -> Arc<[SocketAddr]> {
        [].into()
    }

    async fn listen(&self) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(Nobody))
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Wire>> {
        self.0.connect(to).await
    }
}

/// Nobody comes.
struct Nobody;

#[async_trait]
impl Listener for Nobody {
    async fn accept(&mut self) -> io::Result<(Box<dyn Wire>, IpAddr)> {
        std::future::pending().await
    }
}

/// The record in memory.
#[derive(Default)]
struct Stored(std::sync::Mutex<Option<(Record, u64)>>);

#[async_trait]
impl RecordStore for Stored {
    async fn load(&self) -> Result<Option<(Record, ResourceVersion)>, StoreError> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(held.clone().map(|(record, version)| (record, Some(version.to_string()))))
    }

    async fn store(&self, record: &Record, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let version = held.as_ref().map(|(_, version)| *version);
        if version.map(|version| version.to_string()) != *expected {
            return Err(StoreError::Conflict);
        }
        let next = version.unwrap_or(0) + 1;
        *held = Some((record.clone(), next));
        Ok(Some(next.to_string()))
    }
}
