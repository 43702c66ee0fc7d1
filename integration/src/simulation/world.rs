//! Clusters with their users and replicas around one registry.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use app::{
    admin::Admin,
    replica::{Metrics, Replica},
};
use base::env;
use clap::Parser as _;
use cli::{Cli, Command, RunArgs};
use cloudmap::{Connected, Endpoint, Rates, limited};
use cluster::lease::LEASE;
use futures::future::select_all;
use k8s_openapi::jiff::Timestamp;
use ledger::driver::Registries;
use prometheus::Registry as Exposition;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use super::{
    cloudmap::Registry,
    cutovers::Callers,
    expect::Name,
    kubernetes::{ApiServer, ApiServerSettings},
    ledger::has_left,
    machine::{EPOCH, Machine},
    network::{self, Network},
    reuse::Pool,
    scenario::Site,
    silences::Silence,
    strangers::Intruder,
    trace::Trace,
};
use crate::ledger_sim::rng::Rng;
use emulator::Latency;

/// ClusterProperties.
const ID: &str = "cluster.clusterset.k8s.io";
const SET: &str = "clusterset.k8s.io";
const DRAIN: &str = "drain.cloudmap-mcs.io";

/// The ConfigMap in which a cluster keeps what must outlive its leaders.
const RECORD: &str = "cloudmap-mcs-ledger";

/// The controller's own namespace.
pub(crate) const OWN: &str = "cloudmap-mcs-system";

/// Everything that there is.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) began: Instant,
    pub(crate) seed: u64,
    pub(crate) trace: Trace,
    pub(crate) registry: Registry,
    /// The home of clusters in another region, if there are any.
    pub(crate) abroad: Option<Registry>,
    /// Between the leaders of clusters, in half of the runs and in scenarios that are about it.
    pub(crate) network: Option<Network>,
    /// Who calls the pods of the Service that joins ECS tasks.
    pub(crate) callers: Callers,
    pub(crate) clusters: Vec<Cluster>,
    /// Last address that was given to an endpoint: none is given twice, unless there is a pool.
    pub(super) addresses: u32,
    /// The addresses of pods, in scenarios in which one gets them after another.
    pub(crate) pool: Option<Pool>,
    /// By UID, the groups that clusters left before all that they had registered there was withdrawn.
    pub(crate) abandoned: BTreeSet<(String, String)>,
    /// By UID, when a cluster joined a ClusterSet that had been in none.
    pub(crate) joined: BTreeMap<String, Duration>,
    /// Cloud Map services in which people deleted or altered our instances, and when they did it last.
    pub(crate) meddled: BTreeMap<Name, Duration>,
    /// By UID and name, when people deleted or altered by hand what a cluster imports.
    pub(crate) edited: BTreeMap<(String, Name), Duration>,
    /// When people deleted a part of a ledger last.
    pub(crate) torn: Option<Duration>,
    /// When people changed a TTL last.
    pub(crate) retimed: Option<Duration>,
    /// Until when ends of operations cannot be read.
    pub(crate) blind: Option<Duration>,
    /// The cluster whose ledger is silent.
    pub(crate) silent: Option<Silence>,
    /// When a silence ended last.
    pub(crate) heard: Option<Duration>,
    /// What others made under our names in Kubernetes, by the step that will delete it.
    pub(crate) strangers: BTreeMap<usize, Intruder>,
    /// The steps in progress that keep news from arriving ([`Action::holds_up`](super::schedule::Action::holds_up)).
    pub(crate) held_up: BTreeSet<usize>,
}

/// The version of what people look at in a cluster, and whether it was told to leave, which only its record says.
pub(crate) type Version = (u64, bool);

#[derive(Debug)]
pub(crate) struct Cluster {
    /// The present one.
    pub(crate) id: String,
    /// The ClusterSet; empty: none.
    pub(crate) set: String,
    /// `cloudmap-mcs leave` was run.
    pub(crate) leaving: bool,
    /// All ids and ClusterSets that it had.
    pub(crate) ids: BTreeSet<String>,
    pub(crate) sets: BTreeSet<String>,
    /// Of the namespace `kube-system`.
    pub(crate) uid: String,
    pub(crate) site: &'static Site,
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
    /// Its metrics.
    pub(crate) exposed: Exposition,
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

/// A namespace that may join the services of ECS, and whose exports may have the names of the other namespace.
pub(crate) fn namespace(name: &str) -> Value {
    let annotations = json!({"cloudmap-mcs/may-register": "*/*", "cloudmap-mcs/may-create": "shop, pay"});
    json!({"metadata": {"name": name, "annotations": annotations}})
}

impl World {
    /// `connected`: there are connections between leaders, else in half of the worlds.
    pub(crate) fn new(seed: u64, sites: &'static [Site], connected: bool, began: Instant, trace: Trace) -> Self {
        let seconds = Duration::from_secs;
        let settings = emulator::EmulatorSettings {
            seed: Some(seed),
            call_latency: Latency::range(Duration::from_millis(8), Duration::from_millis(40)),
            operation_latency: Latency::range(Duration::from_millis(300), seconds(2)),
            discovery_lag: vec![Latency::range(Duration::ZERO, Duration::from_millis(1500)); 3],
            ..emulator::EmulatorSettings::default()
        };
        let elsewhere = emulator::EmulatorSettings { seed: Some(!seed), ..settings.clone() };
        let registry = Registry::new(began, trace.clone(), settings);
        let abroad = sites.iter().any(|site| site.abroad).then(|| Registry::new(began, trace.clone(), elsewhere));
        let (callers, clusters, addresses, abandoned, joined, meddled, edited) = Default::default();
        let (torn, retimed, blind, held_up) = Default::default();
        let (silent, heard, strangers) = Default::default();
        let network = (connected || Rng::new("network", seed).chance(0.5)).then(Network::default);
        let mut world = Self {
            began,
            seed,
            trace,
            registry,
            abroad,
            network,
            callers,
            clusters,
            addresses,
            pool: None,
            abandoned,
            joined,
            meddled,
            edited,
            torn,
            retimed,
            blind,
            silent,
            heard,
            strangers,
            held_up,
        };
        for (index, site) in sites.iter().enumerate() {
            world.add_cluster(index, site);
        }
        world
    }

    /// All registries.
    pub(crate) fn registries(&self) -> impl Iterator<Item = &Registry> {
        std::iter::once(&self.registry).chain(&self.abroad)
    }

    /// The home of a cluster.
    pub(crate) fn home(&self, site: &Site) -> &Registry {
        self.abroad.as_ref().filter(|_| site.abroad).unwrap_or(&self.registry)
    }

    /// Makes the Cloud Map namespaces that annotations name, as people do it: one with DNS and one without.
    pub(crate) fn add_namespaces(&self) {
        let private = json!({"Name": "internal", "Vpc": "vpc-1"});
        self.registry.call("people", "CreatePrivateDnsNamespace", &private);
        self.registry.call("people", "CreateHttpNamespace", &json!({"Name": "plain"}));
    }

    /// Makes the Cloud Map services that others have there: one of ECS tasks, and one of external-dns with its records.
    pub(crate) fn add_foreign_services(&self) {
        let namespaces = self.registry.with(|cloudmap, _| cloudmap.snapshot());
        let Some(internal) = namespaces.namespace("internal").map(|namespace| namespace.id.clone()) else { return };
        for (caller, name, description) in
            [("ecs", "b", ""), ("external-dns", "x", "heritage=external-dns,external-dns/owner=eks")]
        {
            let dns = json!({"RoutingPolicy": "MULTIVALUE", "DnsRecords": [{"Type": "A", "TTL": 60}]});
            let body = json!({"Name": name, "NamespaceId": internal, "DnsConfig": dns, "Description": description});
            let service = self.registry.call(caller, "CreateService", &body);
            let id = service.map(|service| service["Service"]["Id"].clone()).unwrap_or_default();
            let attributes = json!({"AWS_INSTANCE_IPV4": "172.16.1.1"});
            let body = json!({"ServiceId": id, "InstanceId": format!("ecs-{name}"), "Attributes": attributes});
            self.registry.call(caller, "RegisterInstance", &body);
        }
    }

    fn add_cluster(&mut self, index: usize, site: &'static Site) {
        let id = format!("c{}", index + 1);
        let epoch = Timestamp::UNIX_EPOCH.checked_add(EPOCH).unwrap_or(Timestamp::MAX);
        let seed = Rng::new(&id, self.seed).next();
        let families = site.families.iter().map(|&family| family.to_owned()).collect();
        let api = ApiServer::new(ApiServerSettings { seed, epoch, families, ..ApiServerSettings::default() });
        for name in [OWN, "shop", "pay"] {
            must(api.put("namespaces", namespace(name)));
        }
        set_property(&api, ID, &id);
        set_property(&api, SET, site.set);
        if index == 1 {
            // It allows all that there is, so that whoever leads counts names and endpoints, and leaves nothing out.
            let ranges = json!({"allowed": ["0.0.0.0/0", "::/0"]});
            let spec = json!({"addresses": ranges, "maxNames": 20, "maxEndpointsPerName": 50});
            must(api.put("clusterimportpolicies", json!({"metadata": {"name": "everybody"}, "spec": spec})));
        }
        let replicas = [(0, "a"), (1, "b")].map(|(number, letter)| {
            let name = format!("{id}-{letter}");
            let offset = Rng::new(&name, self.seed).between(0, 4_000).cast_signed() - 2_000;
            self.start(&api, site, (index, number), &name, 0, offset)
        });
        let system = api.get("namespaces", "", "kube-system");
        let uid = system.and_then(|system| system["metadata"]["uid"].as_str().map(str::to_owned)).unwrap_or_default();
        let (set, leaving, shown) = (site.set.to_owned(), false, api.shown());
        let (ids, sets) = ([id.clone()].into(), [set.clone()].into());
        self.clusters.push(Cluster { id, set, leaving, ids, sets, uid, site, api, replicas: replicas.into(), shown });
    }

    /// Asks for weights in a Kubernetes namespace of a cluster, or no more.
    pub(crate) fn weigh(&mut self, cluster: usize, name: &str, weights: Option<&str>) {
        let mut object = namespace(name);
        if let Some(weights) = weights {
            object["metadata"]["annotations"]["cloudmap-mcs/cluster-weights"] = weights.into();
        }
        must(self.clusters[cluster].api.put("namespaces", object));
    }

    /// Asks for the drain of a cluster, as far as others have a ready endpoint, or no more.
    pub(crate) fn drain(&mut self, cluster: usize, drained: bool) {
        let api = &self.clusters[cluster].api;
        set_property(api, "drain-min-ready.cloudmap-mcs.io", "any");
        set_property(api, DRAIN, if drained { "true" } else { "" });
    }

    /// Gives a cluster another id.
    pub(crate) fn rename(&mut self, cluster: usize, id: &str) {
        let cluster = &mut self.clusters[cluster];
        set_property(&cluster.api, ID, id);
        id.clone_into(&mut cluster.id);
        cluster.ids.insert(id.to_owned());
    }

    /// Tells a cluster to leave its ClusterSet, or to come back, as `cloudmap-mcs leave` does it.
    pub(crate) fn leave(&mut self, cluster: usize, leaving: bool) {
        let cluster = &mut self.clusters[cluster];
        let mut record = record(&cluster.api);
        if record["member"]["clusterset"] == *cluster.set {
            cluster.leaving = leaving;
            record["leaving"] = json!(leaving);
            drop(cluster.api.patch("configmaps", OWN, RECORD, &json!({"data": {"record.json": record.to_string()}})));
        }
    }

    /// Puts a cluster into a ClusterSet, or into none. Whoever left this one comes back.
    pub(crate) fn join(&mut self, cluster: usize, set: &str) {
        let Cluster { uid, set: before, sets, leaving, api, .. } = &mut self.clusters[cluster];
        if before != set {
            set_property(api, SET, set);
            *leaving = false;
            sets.insert(set.to_owned());
            let before = std::mem::replace(before, set.to_owned());
            // What is registered there is not this cluster's own any more.
            if before.is_empty() {
                self.joined.insert(uid.clone(), self.began.elapsed());
            } else if !self.registry.with(|cloudmap, _| has_left(cloudmap, &before, uid)) {
                self.abandoned.insert((uid.clone(), format!("clusterset/{before}")));
            }
        }
        self.leave(cluster, false);
    }

    /// Starts a process.
    fn start(
        &self,
        api: &ApiServer,
        site: &'static Site,
        (cluster, replica): (usize, usize),
        name: &str,
        starts: u64,
        offset: i64,
    ) -> Slot {
        let machine = Machine::new(self.began, offset, Rng::new(&format!("{name} {starts}"), self.seed));
        let (stop, stopped) = watch::channel(false);
        let client = api.client(name, OWN);
        let (port, trace, named) = (self.home(site).port(name), self.trace.clone(), name.to_owned());
        let beside = self.abroad.as_ref().map(|abroad| if site.abroad { &self.registry } else { abroad }.port(name));
        let network = self.network.as_ref().map(|network| network.place(cluster, replica));
        let outside = self.callers.place(self.began);
        let endpoints = network::pods(self.network.as_ref(), cluster);
        let exposed = Exposition::new();
        let metrics = exposed.clone();
        let process = async move {
            let exposed = metrics;
            let Ok(metrics) = Metrics::new(&exposed) else { return };
            let cloudmap = limited(port, &Rates::default(), metrics.cloudmap.clone());
            let (region, endpoint) = (Some("us-east-1".to_owned()), Endpoint::default());
            let registry = Connected { cloudmap, region, endpoint };
            let (args, pod) = (args(site), named.clone());
            let (home, other) = if site.abroad { ("us", "eu") } else { ("eu", "us") };
            let mut registries = Registries { home: home.into(), ..Default::default() };
            if let Some(port) = beside {
                let Ok(metrics) = cloudmap::Metrics::of(&exposed, other) else { return };
                registries.others.insert(other.into(), limited(port, &Rates::default(), metrics));
            }
            let admin = Admin::new(exposed);
            let replica =
                Replica { args, pod, client, registry, registries, network, outside, endpoints, admin, metrics };
            let ended = replica.run(stopped).await;
            trace.line(|| format!("{named} ended: {ended:?}"));
        };
        let dynamic: Arc<dyn env::Machine> = Arc::new(machine.clone());
        let task = tokio::spawn(env::on(&dynamic, process));
        self.trace.line(|| format!("{name} starts"));
        Slot { name: name.to_owned(), machine, exposed, task, stop, starts, offset, restart: None }
    }

    /// The next change of anything that people look at.
    pub(crate) async fn changed(&mut self) {
        let changes = self.clusters.iter_mut().map(|cluster| Box::pin(cluster.shown.changed()));
        drop(select_all(changes).await);
    }

    /// The version of each cluster. Two are equal only if nothing happened in between that checks look at.
    pub(crate) fn versions(&self) -> Vec<Version> {
        self.clusters.iter().map(|cluster| (*cluster.shown.borrow(), cluster.leaving)).collect()
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
                    let Cluster { api, site, .. } = &self.clusters[cluster];
                    let next = self.start(api, site, (cluster, replica), &name, starts, offset);
                    self.clusters[cluster].replicas[replica] = next;
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

impl Cluster {
    /// The ClusterSet that it exports to and imports from.
    pub(crate) fn membership(&self) -> Option<&str> {
        Some(&*self.set).filter(|set| !set.is_empty() && !self.leaving)
    }

    /// What shares services and claims: the ClusterSet, or outside of any the cluster alone.
    pub(crate) fn group(&self) -> String {
        if self.set.is_empty() { format!("cluster/{}", self.uid) } else { format!("clusterset/{}", self.set) }
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
fn args(site: &Site) -> RunArgs {
    // What is said beforehand would only take time here.
    let usual = ["cloudmap-mcs", "run", "--controller-namespace", OWN, "--type-notice=1ms"];
    let cli = Cli::try_parse_from(usual.iter().chain(site.flags));
    match cli.map(|cli| cli.command) {
        Ok(Command::Run(args)) => *args,
        other => unreachable!("run is a command: {other:?}"),
    }
}

impl Cluster {
    /// Whether users ask for its drain.
    pub(crate) fn is_drained(&self) -> bool {
        self.api.get("clusterproperties", "", DRAIN).is_some()
    }
}

/// Sets a ClusterProperty, or removes it where it is to be empty.
fn set_property(api: &ApiServer, name: &str, value: &str) {
    if value.is_empty() {
        drop(api.delete("clusterproperties", "", name));
    } else {
        must(api.put("clusterproperties", json!({"metadata": {"name": name}, "spec": {"value": value}})));
    }
}

/// What a cluster keeps for its next leader.
pub(crate) fn record(api: &ApiServer) -> Value {
    let object = api.get("configmaps", OWN, RECORD);
    let text = object.as_ref().and_then(|object| object["data"]["record.json"].as_str()).unwrap_or_default();
    serde_json::from_str(text).unwrap_or_default()
}

pub(super) fn must<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => unreachable!("users write valid objects: {error}"),
    }
}
