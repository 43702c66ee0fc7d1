//! Clusters with their users and replicas around one registry.

use std::{sync::Arc, time::Duration};

use clap::Parser as _;
use cloudmap_mcs::{
    admin::Admin,
    app::replica::{Metrics, Replica},
    cli::{Cli, Command, RunArgs},
    cloudmap::{Connected, Rates, limited},
    cluster::lease::LEASE,
    env,
};
use futures::future::select_all;
use k8s_openapi::jiff::Timestamp;
use prometheus::Registry as Exposition;
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use super::{
    cloudmap::Registry,
    kubernetes::{ApiServer, ApiServerSettings},
    machine::{EPOCH, Machine},
    trace::Trace,
};
use crate::{
    emulator::{self, Latency},
    ledger_sim::rng::Rng,
};

/// The controller's own namespace.
pub(crate) const OWN: &str = "cloudmap-mcs-system";

/// Everything that there is.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) began: Instant,
    pub(crate) seed: u64,
    pub(crate) trace: Trace,
    pub(crate) registry: Registry,
    pub(crate) clusters: Vec<Cluster>,
    /// Last address that was given to an endpoint: none is given twice.
    pub(super) addresses: u32,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) id: String,
    /// Of the namespace `kube-system`.
    pub(crate) uid: String,
    pub(crate) api: ApiServer,
    pub(crate) replicas: Vec<Slot>,
    /// Says when anything but Leases, ConfigMaps and Events changes.
    shown: watch::Receiver<u64>,
}

/// The place of a replica, which has one process after the other.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) machine: Machine,
    task: JoinHandle<()>,
    stop: watch::Sender<bool>,
    starts: u64,
    offset: i64,
    /// When the next process starts, once this one has ended.
    restart: Option<Instant>,
}

/// Which replica of a cluster, by the Lease at that moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The one that holds it, or held it last.
    Leader,
    Other,
}

impl World {
    pub(crate) fn new(seed: u64, clusters: usize, began: Instant, trace: Trace) -> Self {
        let seconds = Duration::from_secs;
        let settings = emulator::EmulatorSettings {
            seed: Some(seed),
            call_latency: Latency::range(Duration::from_millis(8), Duration::from_millis(40)),
            operation_latency: Latency::range(Duration::from_millis(300), seconds(2)),
            discovery_lag: vec![Latency::range(Duration::ZERO, Duration::from_millis(1500)); 3],
            ..emulator::EmulatorSettings::default()
        };
        let registry = Registry::new(began, trace.clone(), settings);
        let mut world = Self { began, seed, trace, registry, clusters: Vec::new(), addresses: 0 };
        for index in 0..clusters {
            world.add_cluster(index);
        }
        world
    }

    /// Makes the Cloud Map namespaces that annotations name, as people do it: one with DNS and one without.
    pub(crate) fn add_namespaces(&self) {
        let private = json!({"Name": "internal", "Vpc": "vpc-1"});
        self.registry.call("people", "CreatePrivateDnsNamespace", &private);
        self.registry.call("people", "CreateHttpNamespace", &json!({"Name": "plain"}));
    }

    fn add_cluster(&mut self, index: usize) {
        let id = format!("c{}", index + 1);
        let epoch = Timestamp::UNIX_EPOCH.checked_add(EPOCH).unwrap_or(Timestamp::MAX);
        let seed = Rng::new(&id, self.seed).next();
        let api = ApiServer::new(ApiServerSettings { seed, epoch, ..ApiServerSettings::default() });
        for name in [OWN, "shop", "pay"] {
            must(api.put("namespaces", json!({"metadata": {"name": name}})));
        }
        for (name, value) in [("cluster.clusterset.k8s.io", id.as_str()), ("clusterset.k8s.io", "set")] {
            must(api.put("clusterproperties", json!({"metadata": {"name": name}, "spec": {"value": value}})));
        }
        let replicas = ["a", "b"].map(|letter| {
            let name = format!("{id}-{letter}");
            let offset = Rng::new(&name, self.seed).between(0, 4_000).cast_signed() - 2_000;
            self.start(&api, &name, 0, offset)
        });
        let system = api.get("namespaces", "", "kube-system");
        let uid = system.and_then(|system| system["metadata"]["uid"].as_str().map(str::to_owned)).unwrap_or_default();
        let shown = api.shown();
        self.clusters.push(Cluster { id, uid, api, replicas: replicas.into(), shown });
    }

    /// Starts a process.
    fn start(&self, api: &ApiServer, name: &str, starts: u64, offset: i64) -> Slot {
        let machine = Machine::new(self.began, offset, Rng::new(&format!("{name} {starts}"), self.seed));
        let (stop, stopped) = watch::channel(false);
        let client = api.client(name, OWN);
        let (port, trace, named) = (self.registry.port(name), self.trace.clone(), name.to_owned());
        let process = async move {
            let exposed = Exposition::new();
            let Ok(metrics) = Metrics::new(&exposed) else { return };
            let cloudmap = limited(port, &Rates::default(), metrics.cloudmap.clone());
            let registry = Connected { cloudmap, region: Some("us-east-1".to_owned()) };
            let admin = Admin::new(exposed);
            let replica = Replica { args: args(), pod: named.clone(), client, registry, admin, metrics };
            let ended = replica.run(stopped).await;
            trace.line(|| format!("{named} ended: {ended:?}"));
        };
        let dynamic: Arc<dyn env::Machine> = Arc::new(machine.clone());
        let task = tokio::spawn(env::on(&dynamic, process));
        self.trace.line(|| format!("{name} starts"));
        Slot { name: name.to_owned(), machine, task, stop, starts, offset, restart: None }
    }

    /// The next change of anything that people look at.
    pub(crate) async fn changed(&mut self) {
        let changes = self.clusters.iter_mut().map(|cluster| Box::pin(cluster.shown.changed()));
        drop(select_all(changes).await);
    }

    /// The version of what people look at in each cluster.
    pub(crate) fn versions(&self) -> Vec<u64> {
        self.clusters.iter().map(|cluster| *cluster.shown.borrow()).collect()
    }

    /// Starts processes anew where one has ended for some seconds, as the kubelet does.
    pub(crate) fn restart(&mut self) {
        for cluster in 0..self.clusters.len() {
            for replica in 0..self.clusters[cluster].replicas.len() {
                let slot = &mut self.clusters[cluster].replicas[replica];
                if !slot.task.is_finished() {
                    continue;
                }
                let pause = Duration::from_millis(Rng::new(&slot.name, self.seed ^ slot.starts).between(500, 12_000));
                let at = *slot.restart.get_or_insert(Instant::now() + pause);
                if at <= Instant::now() {
                    // What is left of it must not go on beside its successor.
                    slot.machine.kill();
                    let (name, starts, offset) = (slot.name.clone(), slot.starts + 1, slot.offset);
                    let api = self.clusters[cluster].api.clone();
                    self.clusters[cluster].replicas[replica] = self.start(&api, &name, starts, offset);
                }
            }
        }
    }

    /// The replica that has this role now.
    pub(crate) fn acting(&mut self, cluster: usize, role: Role) -> &mut Slot {
        let Cluster { api, replicas, .. } = &mut self.clusters[cluster];
        let lease = api.get("leases", OWN, LEASE);
        let holder = lease.as_ref().and_then(|lease| lease["spec"]["holderIdentity"].as_str()).unwrap_or_default();
        let leads = |slot: &Slot| holder.strip_prefix(&*slot.name).is_some_and(|rest| rest.starts_with('_'));
        let leader = replicas.iter().position(leads).unwrap_or(0);
        let number = if role == Role::Leader { leader } else { (leader + 1) % replicas.len() };
        &mut replicas[number]
    }
}

impl Slot {
    /// Ends the process in the middle of whatever it does.
    pub(crate) fn kill(&self) {
        self.machine.kill();
    }

    /// Asks the process to end.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(crate) fn set_clock(&mut self, offset: i64) {
        self.offset = offset;
        self.machine.set_offset(offset);
    }
}

/// What the Deployment says.
fn args() -> RunArgs {
    let cli = Cli::try_parse_from(["cloudmap-mcs", "run", "--namespace", OWN]);
    match cli.map(|cli| cli.command) {
        Ok(Command::Run(args)) => *args,
        other => unreachable!("run is a command: {other:?}"),
    }
}

pub(super) fn must<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => unreachable!("users write valid objects: {error}"),
    }
}
