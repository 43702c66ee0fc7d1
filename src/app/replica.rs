//! One replica of the controller between Kubernetes and Cloud Map. `run` starts one in a pod; a simulation starts
//! several in one process.

use std::{sync::Arc, time::Duration};

use backon::{ExponentialBuilder, Retryable as _};
use futures::future::BoxFuture;
use kube::Client;
use tokio::{sync::watch, task::JoinSet};
use tracing::{info, warn};

use super::{connect, lead::Leader, metrics::LeaderMetrics};
use crate::admin::Admin;
use base::{env, metrics::Register};
use cli::RunArgs;
use cloudmap::{Connected, Listings};
use cluster::{
    Caches, KubernetesWriter,
    events::Publisher,
    identity::{self, Known},
    keys::KeyStore,
    lease::{self, Elector, KubernetesLease, Leadership, Timing},
    neighbours,
    record::{HiddenObject, RecordObject},
    service_network,
};
use cutover::guard::Outside;
use ledger::driver::{Registries, sessions::Network};
use model::{IpFamily, addresses::Range};
use reachability::Connect;

/// How long work in progress may take when the process is told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// The metrics of one replica.
#[derive(Debug)]
pub struct Metrics {
    cluster: cluster::Metrics,
    controller: controller::Metrics,
    figures: LeaderMetrics,
    /// Counters for the calls of whoever connects to the registry. The election reads them.
    pub cloudmap: cloudmap::Metrics,
}

impl Metrics {
    /// Creates the metrics in `registry`.
    ///
    /// # Errors
    /// The registry already has some of them.
    pub fn new(registry: &impl Register) -> prometheus::Result<Self> {
        let cloudmap = cloudmap::Metrics::new(registry)?;
        Ok(Self {
            cluster: cluster::Metrics::new(registry)?,
            controller: controller::Metrics::new(registry)?,
            figures: LeaderMetrics::new(registry, cloudmap.clone())?,
            cloudmap,
        })
    }
}

/// The parts of a replica.
#[expect(missing_debug_implementations, reason = "the port is a trait object")]
pub struct Replica {
    /// Its flags.
    pub args: RunArgs,
    /// Name of the pod: the replica's name in Events and, with a suffix that is unique to the process, in the Lease.
    pub pod: String,
    /// The connection to Kubernetes.
    pub client: Client,
    /// The connection to Cloud Map: to the home.
    pub registry: Connected,
    /// The registries that are read beside it.
    pub registries: Registries,
    /// How it reaches the leaders of other clusters, if it does.
    pub network: Option<Arc<dyn Network>>,
    /// What the guards of Cutovers look at.
    pub outside: Arc<dyn Outside>,
    /// How it connects to endpoints of other clusters.
    pub endpoints: Arc<dyn Connect>,
    /// Its probes and metrics page.
    pub admin: Admin,
    /// Its metrics.
    pub metrics: Metrics,
}

/// What a replica must know of its cluster before it can begin.
struct ClusterNetwork {
    /// Of the namespace `kube-system`.
    uid: Arc<str>,
    families: Vec<IpFamily>,
    service_ranges: Arc<[Range]>,
}

impl ClusterNetwork {
    /// Asks until there is an answer.
    async fn ask(client: &Client, namespace: &str, admin: &Admin) -> Result<Self, identity::AskError> {
        let ask = || async {
            Ok(Self {
                uid: identity::kube_system_uid(client).await?,
                families: service_network::ip_families(client, namespace).await?,
                service_ranges: service_network::service_ranges(client, namespace).await?,
            })
        };
        let notify = |error: &identity::AskError, after: Duration| {
            let why = error.words();
            warn!(error = why, ?after, "cannot begin yet; trying again");
            admin.waits(why);
        };
        let pauses = ExponentialBuilder::default().with_max_delay(Duration::from_secs(10)).without_max_times();
        ask.retry(pauses).notify(notify).await
    }
}

/// What a replica watches, whether it leads or not.
struct Watches {
    tasks: JoinSet<()>,
    caches: Caches,
    identity: watch::Receiver<Known>,
    /// Why this replica must not lead: another installation is older.
    beside: watch::Receiver<Option<String>>,
    /// Whether other installations were looked for.
    looks: watch::Receiver<bool>,
}

impl Watches {
    fn start(args: &RunArgs, client: &Client, metrics: &cluster::Metrics, uid: &Arc<str>) -> Self {
        let mut tasks = JoinSet::new();
        let (labels, gates, cutovers) = (args.instance_labels.as_ref(), args.readiness_gates, args.cutovers);
        let caches = Caches::start(client, metrics, labels, gates, cutovers, &mut tasks);
        let (known, identity) = watch::channel(None);
        let flags = connect::flags(&args.place.identity);
        tasks.spawn(env::task(identity::follow(caches.properties.clone(), flags, uid.clone(), known)));
        let (obstacle, beside) = watch::channel(None);
        let (looked, looks) = watch::channel(false);
        let namespace = args.place.kube.controller.namespace.clone();
        tasks.spawn(env::task(neighbours::follow(client.clone(), namespace, obstacle, looked)));
        Self { tasks, caches, identity, beside, looks }
    }

    /// Why this replica should not lead, whenever somebody asks.
    fn trouble(&self) -> lease::Trouble {
        let (caches, beside) = (self.caches.clone(), self.beside.clone());
        Arc::new(move || caches.trouble().or_else(|| beside.borrow().clone()))
    }

    /// Waits until the caches are complete, and other installations were looked for: a replica that does not know whether
    /// one of them leads must not take the Lease.
    async fn complete(&mut self) -> anyhow::Result<()> {
        let Self { tasks, caches, looks, .. } = self;
        tokio::select! {
            biased;
            ended = tasks.join_next() => anyhow::bail!("a watch ended: {ended:?}"),
            () = async {
                caches.synced().await;
                let _ = looks.wait_for(|looked| *looked).await;
            } => Ok(()),
        }
    }
}

/// Waits until this replica leads beside another installation that is older: both began at the same time. It starts
/// anew, and then waits. Returns why.
async fn leads_beside(mut beside: watch::Receiver<Option<String>>, leadership: Leadership) -> String {
    loop {
        leadership.acquired().await;
        let why = beside.borrow_and_update().clone();
        if let Some(why) = why.filter(|_| leadership.is_leader()) {
            return why;
        }
        tokio::select! {
            () = leadership.lost() => {}
            changed = beside.changed() => if changed.is_err() {
                std::future::pending::<()>().await;
            },
        }
    }
}

impl Replica {
    /// Keeps the caches warm, takes part in the election and leads while elected, until `stop` becomes true.
    ///
    /// # Errors
    /// A part of the replica ended that never should.
    pub fn run(self, stop: watch::Receiver<bool>) -> BoxFuture<'static, anyhow::Result<()>> {
        // Each program that awaits a future of a type of its own compiles all of the controller once more.
        Box::pin(self.run_here(stop))
    }

    async fn run_here(self, stop: watch::Receiver<bool>) -> anyhow::Result<()> {
        let Self { args, pod, client, registry, registries, network, outside, endpoints, admin, metrics } = self;
        let Connected { cloudmap, region, endpoint: _ } = registry;
        let namespace = args.place.kube.controller.namespace.clone();
        let mut stopping = stop.clone();
        let ClusterNetwork { uid, families, service_ranges } = tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => return Ok(()),
            known = ClusterNetwork::ask(&client, &namespace, &admin) => known?,
        };
        let (ranges, service_ranges) = watch::channel(service_ranges);
        let mut watches = Watches::start(&args, &client, &metrics.cluster, &uid);
        watches.tasks.spawn(env::task(service_network::follow_ranges(client.clone(), ranges)));
        admin.watch(watches.caches.clone(), metrics.cluster.clone());
        admin.beside(watches.beside.clone());

        let lease = KubernetesLease::new(client.clone(), &namespace);
        let listings = Listings::new(cloudmap.clone());
        let reached = lease::AwsAccess::new(Arc::clone(&listings), metrics.cloudmap);
        let (elector, leadership) = Elector::new(
            lease,
            // Unique to this process: a restarted container must not mistake its predecessor's claim for its own.
            format!("{pod}_{:08x}", env::random() as u32),
            Timing::default(),
            watches.trouble(),
            Some(reached),
            metrics.cluster.clone(),
        );

        let mut stopping = stop.clone();
        tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => return Ok(()),
            complete = watches.complete() => complete?,
        }
        let Watches { mut tasks, caches, identity, beside, .. } = watches;
        info!("caches are synced");
        // Not earlier: a replica that cannot act must not hold the Lease.
        let (taking_part, mut over) = watch::channel(());
        let mut election = env::spawn(elector.run(async move { while over.changed().await.is_ok() {} }));

        let leading = leadership.clone();
        let publisher = Publisher::new(client.clone(), &pod, metrics.cluster.clone());
        let leader = Leader {
            writer: Arc::new(KubernetesWriter::new(client.clone(), leadership.clone(), metrics.cluster, publisher)),
            keys: KeyStore::new(client.clone(), &namespace),
            hidden: Arc::new(HiddenObject::new(client.clone(), &namespace)),
            record: Arc::new(RecordObject::new(client, &namespace)),
            caches,
            cloudmap,
            listings,
            registries,
            network,
            outside,
            endpoints,
            region,
            leadership,
            identity,
            uid,
            families,
            service_ranges,
            figures: metrics.figures,
            metrics: metrics.controller,
            args,
        };
        let mut stopping = stop.clone();
        let result = tokio::select! {
            biased;
            _ = stopping.wait_for(|stop| *stop) => {
                info!("stopping");
                Ok(())
            }
            ended = &mut election => anyhow::bail!("the election ended: {ended:?}"),
            ended = tasks.join_next() => Err(anyhow::anyhow!("a watch ended: {ended:?}")),
            why = leads_beside(beside, leading) => Err(anyhow::anyhow!(why)),
            part = leader.run() => Err(anyhow::anyhow!("{part} ended")),
        };
        // Whatever the reason is, nothing is written any more, and the other replica continues at once.
        drop(taking_part);
        if tokio::time::timeout(GRACE, election).await.is_err() {
            warn!("the Lease could not be released in time; it will expire");
        }
        result
    }
}
