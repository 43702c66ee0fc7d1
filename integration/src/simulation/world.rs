//! Clusters with their users and replicas around one registry.

use std::{sync::Arc, time::Duration};

use clap::Parser as _;
use cloudmap_mcs::{
    admin::Admin,
    app::replica::{Metrics, Replica},
    cli::{Cli, Command, RunArgs},
    cloudmap::{Connected, Rates, limited},
    env,
};
use futures::future::select_all;
use k8s_openapi::jiff::Timestamp;
use prometheus::Registry as Exposition;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use super::{
    cloudmap::Registry,
    kubernetes::{ApiServer, Settings},
    machine::{EPOCH, Machine},
    trace::Trace,
};
use crate::{
    emulator::{self, Latency},
    ledger_sim::rng::Rng,
};

/// The controller's own namespace.
pub(crate) const OWN: &str = "cloudmap-mcs-system";

/// The names that users export: namespace, name, and whether the Service is headless.
pub(crate) const NAMES: [(&str, &str, bool); 4] =
    [("shop", "web", false), ("shop", "db", true), ("pay", "api", false), ("pay", "web", false)];

/// Everything that there is.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) began: Instant,
    pub(crate) seed: u64,
    pub(crate) trace: Trace,
    pub(crate) registry: Registry,
    pub(crate) clusters: Vec<Cluster>,
    /// Last address that was given to an endpoint: none is given twice.
    addresses: u32,
}

#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) id: String,
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

/// Where and what of a user's Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) cluster: usize,
    /// Index into [`NAMES`].
    pub(crate) name: usize,
}

impl World {
    pub(crate) fn new(seed: u64, clusters: usize, began: Instant, trace: Trace) -> Self {
        let seconds = Duration::from_secs;
        let settings = emulator::Settings {
            seed: Some(seed),
            call_latency: Latency::range(Duration::from_millis(8), Duration::from_millis(40)),
            operation_latency: Latency::range(Duration::from_millis(300), seconds(2)),
            discovery_lag: vec![Latency::range(Duration::ZERO, Duration::from_millis(1500)); 3],
            ..emulator::Settings::default()
        };
        let registry = Registry::new(began, trace.clone(), settings);
        let mut world = Self { began, seed, trace, registry, clusters: Vec::new(), addresses: 0 };
        for index in 0..clusters {
            world.add_cluster(index);
        }
        world
    }

    fn add_cluster(&mut self, index: usize) {
        let id = format!("c{}", index + 1);
        let epoch = Timestamp::UNIX_EPOCH.checked_add(EPOCH).unwrap_or(Timestamp::MAX);
        let seed = Rng::new(&id, self.seed).next();
        let api = ApiServer::new(Settings { seed, epoch, ..Settings::default() });
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
        let shown = api.shown();
        self.clusters.push(Cluster { id, api, replicas: replicas.into(), shown });
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

    pub(crate) fn slot(&mut self, cluster: usize, replica: usize) -> &mut Slot {
        &mut self.clusters[cluster].replicas[replica]
    }

    fn address(&mut self, cluster: usize) -> String {
        self.addresses += 1;
        format!("10.{}.{}.{}", cluster + 1, self.addresses / 250, self.addresses % 250 + 1)
    }

    /// Makes the Service if it is not there, and gives it this many endpoints: those that it had go first where it has
    /// too many, or all of them where it is `rolled`.
    pub(crate) fn scale(&mut self, place: Place, to: usize, rolled: bool) {
        let Place { cluster, name } = place;
        let (namespace, service, headless) = NAMES[name];
        let api = self.clusters[cluster].api.clone();
        if api.get("namespaces", "", namespace).is_none_or(|object| is_terminating(&object)) {
            return;
        }
        if api.get("services", namespace, service).is_none() {
            let mut object = json!({
                "metadata": {"namespace": namespace, "name": service},
                "spec": {"selector": {"app": service}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
            });
            if headless {
                object["spec"]["clusterIP"] = json!("None");
            }
            must(api.put("services", object));
        }
        let slice = format!("{service}-slice");
        let mut addresses: Vec<String> = match api.get("endpointslices", namespace, &slice) {
            Some(object) if !rolled => addresses(&object).into_iter().collect(),
            _ => Vec::new(),
        };
        if addresses.len() > to {
            addresses.drain(..addresses.len() - to);
        }
        while addresses.len() < to {
            addresses.push(self.address(cluster));
        }
        let endpoints: Vec<Value> = addresses
            .iter()
            .map(|address| json!({"addresses": [address], "conditions": {"ready": true, "serving": true}}))
            .collect();
        must(api.put(
            "endpointslices",
            json!({
                "metadata": {"namespace": namespace, "name": slice, "labels": {
                    "kubernetes.io/service-name": service,
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                }},
                "addressType": "IPv4",
                "endpoints": endpoints,
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            }),
        ));
    }

    pub(crate) fn export(&mut self, place: Place) {
        let (namespace, name, _) = NAMES[place.name];
        let api = &self.clusters[place.cluster].api;
        let there = api.get("namespaces", "", namespace).is_some_and(|object| !is_terminating(&object));
        if there && api.get("serviceexports", namespace, name).is_none() {
            must(api.put("serviceexports", json!({"metadata": {"namespace": namespace, "name": name}})));
        }
    }

    pub(crate) fn unexport(&mut self, place: Place) {
        let (namespace, name, _) = NAMES[place.name];
        drop(self.clusters[place.cluster].api.delete("serviceexports", namespace, name));
    }

    /// Deletes the Service and its endpoints; the export stays.
    pub(crate) fn remove_service(&mut self, place: Place) {
        let (namespace, name, _) = NAMES[place.name];
        let api = &self.clusters[place.cluster].api;
        drop(api.delete("services", namespace, name));
        drop(api.delete("endpointslices", namespace, &format!("{name}-slice")));
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

/// Ready addresses of an EndpointSlice.
pub(crate) fn addresses(slice: &Value) -> Vec<String> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    endpoints
        .filter(|endpoint| endpoint["conditions"]["ready"] != false)
        .flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten())
        .filter_map(|address| address.as_str().map(str::to_owned))
        .collect()
}

pub(crate) fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// A label of an object, or nothing.
pub(crate) fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["labels"][name].as_str().unwrap_or_default()
}

fn must<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => unreachable!("users write valid objects: {error}"),
    }
}
