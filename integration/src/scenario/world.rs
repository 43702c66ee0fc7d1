//! The stage of a scenario: two or three clusters, the registry, and a namespace of its own in each of them.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use futures::FutureExt as _;
use serde_json::Value;
use tokio::sync::OnceCell;

use super::cluster::{
    Cluster, DEPLOYMENT, ENDPOINT_SLICE, EVENT, Kind, NAMESPACE, POD, SERVICE, SERVICE_EXPORT, SERVICE_IMPORT,
};
use super::manifests::{self, LABEL_SCENARIO};
use super::names::Names;
use super::registry::Registry;
use super::stage::{Clusters, Stage};
use super::wait::{NAMES, PODS, PROPAGATION, eventually, holds};

/// A scenario that takes longer hangs. On a machine that others keep busy some take several times the usual.
const LIMIT: Duration = Duration::from_mins(45);

/// What tells this run's namespaces from those that an earlier, killed one left.
static RUN: LazyLock<String> = LazyLock::new(|| format!("{:08x}", rand::random::<u32>()));

static STAGE: Stage = Stage::new();

/// So many scenarios run at once, unless `MCS_E2E_THREADS` says otherwise.
const AT_ONCE: usize = 6;

/// The number of the cluster that has IPv6 only.
const IPV6_ONLY: usize = 3;

/// The scenarios that take longest, the longest first: those that wait begin in this order. Only the time that all take
/// together depends on it.
const LONGEST: [&str; 18] = [
    "chart",
    "aws-mcs",
    "ecs-cutover",
    "ecs-tasks",
    "from-external-dns",
    "beside-external-dns",
    "external-dns",
    "python",
    "gates",
    "stream",
    "claims-chain",
    "claims",
    "ecs-halves",
    "leave",
    "status",
    "ecs-exports",
    "kill",
    "ecs-shares",
];

/// All tests of a run begin in this time. The longest of them is to go first, and not the first one that came.
const GATHERING: Duration = Duration::from_secs(1);

static CLEAN: OnceCell<()> = OnceCell::const_new();

/// Clusters, the registry, and a namespace.
#[derive(Debug)]
pub struct World {
    /// Those that the scenario is played in.
    pub clusters: Vec<Cluster>,
    registry: Option<Registry>,
    /// The scenario's own namespace, in all of these clusters.
    pub namespace: String,
}

/// What is printed of a scenario that failed.
const SHOWN: [(&str, Kind); 6] = [
    ("ServiceExport", SERVICE_EXPORT),
    ("ServiceImport", SERVICE_IMPORT),
    ("Service", SERVICE),
    ("EndpointSlice", ENDPOINT_SLICE),
    ("Pod", POD),
    ("Event", EVENT),
];

/// An error of a scenario that cannot be played with what there is.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Skip(pub String);

/// An error of a scenario in which a component that is not this project's deviates from the standard, as is known.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Deviation(pub String);

impl World {
    /// Runs a scenario with two clusters beside others.
    ///
    /// # Panics
    /// If the scenario fails; what was in its namespaces is printed then.
    pub async fn run(name: &str, scenario: impl AsyncFnOnce(&Self) -> Result<()>) {
        Self::run_in(&[0, 1], &[], name, scenario).await;
    }

    /// Runs a scenario with these clusters, by their number: two dual-stack ones, one that has IPv4 only and one that has IPv6
    /// only, which does not reach the one before. Of some it kills or reconfigures the controllers: no other scenario uses those
    /// meanwhile. So a scenario takes few clusters, and one that disturbs no others than it must.
    ///
    /// Where one of the clusters is not there (`CONTEXTS=a,b`), another one stands in for it.
    ///
    /// # Panics
    /// See [`World::run`].
    pub async fn run_in(
        clusters: &[usize],
        disturbed: &[usize],
        name: &str,
        scenario: impl AsyncFnOnce(&Self) -> Result<()>,
    ) {
        let there = standing_in(clusters);
        let contexts = there.iter().map(|number| context(*number)).collect();
        let disturbed: Vec<_> =
            clusters.iter().zip(&there).filter(|(wanted, _)| disturbed.contains(wanted)).map(|(_, it)| *it).collect();
        Self::stage(name, contexts, Clusters::new(&there, &disturbed), scenario).await;
    }

    /// Runs a scenario with two clusters while no other one runs: it counts what all of them do together.
    ///
    /// # Panics
    /// See [`World::run`].
    pub async fn run_alone(name: &str, scenario: impl AsyncFnOnce(&Self) -> Result<()>) {
        Self::stage(name, first(2), Clusters::ALL, scenario).await;
    }

    async fn stage(
        name: &str,
        contexts: Result<Vec<String>>,
        needs: Clusters,
        scenario: impl AsyncFnOnce(&Self) -> Result<()>,
    ) {
        let at_once = std::env::var("MCS_E2E_THREADS").ok().and_then(|threads| threads.parse().ok()).unwrap_or(AT_ONCE);
        let place = LONGEST.iter().position(|longest| *longest == name).unwrap_or(LONGEST.len());
        let waiting = STAGE.line_up(needs, place);
        tokio::time::sleep(GATHERING).await;
        let _entered = waiting.enter(at_once).await;
        let start = Instant::now();
        let outcome = async { Self::play_in(name, &contexts?, scenario).await }.await;
        // Not by a macro for printing: the test harness would keep it to itself.
        let _ = writeln!(std::io::stderr(), "scenario {name}: {:.0} s", start.elapsed().as_secs_f64());
        outcome.unwrap_or_else(|error| panic!("{}", explained(&error)));
    }

    /// Plays a scenario with so many clusters. The caller sees to it that it does not meet others that it disturbs.
    ///
    /// # Errors
    /// Why it failed, after what was in its namespaces has been printed; or [`Skip`] or [`Deviation`].
    pub async fn play(name: &str, clusters: usize, scenario: impl AsyncFnOnce(&Self) -> Result<()>) -> Result<()> {
        Self::play_in(name, &first(clusters)?, scenario).await
    }

    /// Plays something else in the same clusters, with namespaces of its own: it uses what has been set up in them.
    ///
    /// # Errors
    /// See [`World::play`].
    pub async fn beside(&self, name: &str, scenario: impl AsyncFnOnce(&Self) -> Result<()>) -> Result<()> {
        let contexts: Vec<_> = self.clusters.iter().map(|cluster| cluster.context.clone()).collect();
        Self::play_in(name, &contexts, scenario).await
    }

    async fn play_in(name: &str, contexts: &[String], scenario: impl AsyncFnOnce(&Self) -> Result<()>) -> Result<()> {
        let world = Self::enter(name, contexts).await.context("failed to set the scenario up")?;
        let outcome = AssertUnwindSafe(tokio::time::timeout(LIMIT, scenario(&world))).catch_unwind().await;
        let outcome = outcome
            .map_err(|_| anyhow!("it panicked"))
            .and_then(|ended| ended.unwrap_or_else(|_| Err(anyhow!("it did not end within {LIMIT:?}"))));
        if let Err(error) = &outcome
            && !error.is::<Skip>()
            && !error.is::<Deviation>()
        {
            world.show(&explained(error)).await;
        }
        world.leave().await;
        outcome
    }

    async fn enter(name: &str, contexts: &[String]) -> Result<Self> {
        let connect = contexts.iter().map(|context| Cluster::connect(context));
        let clusters = futures::future::try_join_all(connect).await?;
        let namespace = format!("e2e-{name}-{}", *RUN);
        let world = Self { clusters, registry: Registry::from_env()?, namespace };
        CLEAN.get_or_try_init(remove_leftovers).await?;
        let prepare = world.clusters.iter().map(async |cluster| {
            world.create_namespace(cluster).await?;
            cluster.start_client().await
        });
        futures::future::try_join_all(prepare).await?;
        Ok(world)
    }

    /// The first two clusters.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn pair(&self) -> [&Cluster; 2] {
        [&self.clusters[0], &self.clusters[1]]
    }

    /// The first three clusters.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn three(&self) -> [&Cluster; 3] {
        [&self.clusters[0], &self.clusters[1], &self.clusters[2]]
    }

    /// # Errors
    /// [`Skip`] where the registry is not an emulator.
    pub fn registry(&self) -> Result<&Registry> {
        self.registry.as_ref().ok_or_else(|| Skip("needs the emulator (MCS_E2E_EMULATOR)".to_owned()).into())
    }

    /// # Errors
    /// Where the emulator need not answer DNS.
    pub fn names(&self) -> Result<Names> {
        Names::from_env()
    }

    /// Makes the scenario's namespace in one cluster.
    pub async fn create_namespace(&self, cluster: &Cluster) -> Result<()> {
        cluster.apply("", manifests::namespace(&self.namespace, &[(LABEL_SCENARIO, &RUN)])).await?;
        eventually("the namespace has its service account", PODS, async || {
            cluster.expect(super::CONFIG_MAP, &self.namespace, "kube-root-ca.crt").await.map(drop)
        })
        .await
    }

    /// Removes the scenario's namespace from one cluster, and waits until it is gone.
    pub async fn remove_namespace(&self, cluster: &Cluster) -> Result<()> {
        cluster.delete(NAMESPACE, "", &self.namespace).await?;
        eventually("the namespace is gone", PODS, async || cluster.expect_none(NAMESPACE, "", &self.namespace).await)
            .await
    }

    /// Exports end before their namespaces do, as a careful user would have it: the clusters forget them at once.
    #[expect(clippy::print_stderr, reason = "it is no reason to fail, and somebody may wonder")]
    async fn leave(&self) {
        for cluster in &self.clusters {
            for export in cluster.list(SERVICE_EXPORT, &self.namespace, "").await.unwrap_or_default() {
                let _ = cluster.delete(SERVICE_EXPORT, &self.namespace, name_of(&export)).await;
            }
            if let Err(error) = cluster.delete(NAMESPACE, "", &self.namespace).await {
                eprintln!("{}", explained(&error));
            }
        }
    }

    /// Prints why the scenario failed, and what is in its namespaces.
    #[expect(clippy::print_stderr, reason = "it is for whoever reads why the test failed")]
    async fn show(&self, failure: &str) {
        eprintln!("# {} failed: {failure}", self.namespace);
        note(&format!("{}: {failure}", self.namespace));
        for cluster in &self.clusters {
            for (title, kind) in SHOWN {
                let objects = cluster.list(kind, &self.namespace, "").await.unwrap_or_default();
                // That pods come and go as they should is no news.
                for object in objects.iter().filter(|object| object["type"] != "Normal") {
                    eprintln!("# {}: {title} {}", cluster.context, in_a_line(object));
                }
            }
        }
    }

    /// `<service>.<namespace>.svc.clusterset.local`
    pub fn name(&self, service: &str) -> String {
        format!("{service}.{}.svc.clusterset.local", self.namespace)
    }

    pub async fn apply(&self, cluster: &Cluster, manifest: Value) -> Result<Value> {
        cluster.apply(&self.namespace, manifest).await
    }

    /// Applies a Deployment and waits until its pods are ready, and others are gone.
    pub async fn deploy(&self, cluster: &Cluster, name: &str, replicas: u32) -> Result<()> {
        self.roll_out(cluster, manifests::deployment(name, replicas)).await
    }

    /// Applies a Deployment, whose pods have the label `app` with its name, and waits until they are ready, and others are gone.
    pub async fn roll_out(&self, cluster: &Cluster, deployment: Value) -> Result<()> {
        let name = name_of(&deployment).to_owned();
        let replicas = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        self.apply(cluster, deployment).await?;
        eventually("the pods are ready, and no others are left", PODS, async || {
            let deployment = cluster.expect(DEPLOYMENT, &self.namespace, &name).await?;
            let ready = deployment["status"]["readyReplicas"].as_u64().unwrap_or(0);
            holds(ready == replicas, "all replicas are ready", &deployment["status"])?;
            let pods = cluster.list(POD, &self.namespace, &format!("app={name}")).await?;
            holds(
                pods.len() as u64 == replicas,
                "there are no other pods",
                &pods.iter().map(name_of).collect::<Vec<_>>(),
            )
        })
        .await
    }

    /// Deploys pods, and exports a Service with their port 80.
    pub async fn export(&self, cluster: &Cluster, name: &str, replicas: u32) -> Result<()> {
        self.deploy(cluster, name, replicas).await?;
        self.apply(cluster, manifests::service(name, &[manifests::http(80)])).await?;
        self.apply(cluster, manifests::export(name)).await.map(drop)
    }

    /// Waits until the controllers of all clusters are ready and have leaders.
    pub async fn settle(&self) -> Result<()> {
        for cluster in &self.clusters {
            cluster.controller().settle().await?;
        }
        Ok(())
    }

    /// Waits for a condition of a ServiceExport.
    pub async fn export_condition(
        &self,
        cluster: &Cluster,
        export: &str,
        kind: &str,
        status: &str,
        reason: &str,
    ) -> Result<Value> {
        self.export_condition_within(PROPAGATION, cluster, export, [kind, status, reason]).await
    }

    /// For a controller that has just begun to lead, and shares what AWS lets it list with others.
    pub async fn export_condition_within(
        &self,
        deadline: Duration,
        cluster: &Cluster,
        export: &str,
        [kind, status, reason]: [&str; 3],
    ) -> Result<Value> {
        let what = format!("{}: the export {export} has {kind}={status}, {reason}", cluster.context);
        eventually(&what, deadline, async || {
            let export = cluster.expect(SERVICE_EXPORT, &self.namespace, export).await?;
            let condition = condition(&export, kind);
            holds(condition["status"] == status && condition["reason"] == reason, &what, &export)?;
            Ok(condition.clone())
        })
        .await
    }

    /// Waits for a ServiceImport.
    pub async fn imported(&self, cluster: &Cluster, name: &str) -> Result<Value> {
        let what = format!("{} has the import {name}", cluster.context);
        eventually(&what, PROPAGATION, async || cluster.expect(SERVICE_IMPORT, &self.namespace, name).await).await
    }

    /// Waits until a ServiceImport, its derived Service and its EndpointSlices are gone.
    pub async fn import_gone(&self, cluster: &Cluster, name: &str) -> Result<()> {
        let what = format!("{} has nothing left of the import {name}", cluster.context);
        eventually(&what, PROPAGATION, async || {
            cluster.expect_none(SERVICE_IMPORT, &self.namespace, name).await?;
            let slices = self.imported_slices(cluster, name).await?;
            holds(slices.is_empty(), "the slices are gone", &slices)?;
            let services = cluster.list(SERVICE, &self.namespace, "").await?;
            let derived: Vec<_> =
                services.iter().map(name_of).filter(|service| service.starts_with("derived-")).collect();
            holds(derived.is_empty(), "the derived Service is gone", &derived)
        })
        .await
    }

    /// The names of a Deployment's pods, which are what they answer.
    pub async fn pods(&self, cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        let pods = cluster.list(POD, &self.namespace, &format!("app={name}")).await?;
        Ok(pods.iter().map(|pod| name_of(pod).to_owned()).collect())
    }

    /// The IPv4 addresses of a Deployment's pods, as the pods have them: EndpointSlices may still be on their way.
    pub async fn pod_ipv4s(&self, cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        self.pod_addresses(cluster, name, |address| !address.contains(':')).await
    }

    /// The IPv6 addresses of a Deployment's pods: see [`World::pod_ipv4s`].
    pub async fn pod_ipv6s(&self, cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        self.pod_addresses(cluster, name, |address| address.contains(':')).await
    }

    async fn pod_addresses(
        &self,
        cluster: &Cluster,
        name: &str,
        of_family: impl Fn(&str) -> bool,
    ) -> Result<BTreeSet<String>> {
        let pods = cluster.list(POD, &self.namespace, &format!("app={name}")).await?;
        let addresses = pods.iter().flat_map(addresses_of).filter(|address| of_family(address));
        Ok(addresses.map(ToOwned::to_owned).collect())
    }

    /// Waits until `kubectl describe` prints an Event of this reason for an object, with these words in its message.
    pub async fn described(&self, cluster: &Cluster, kind: Kind, name: &str, reason: &str, words: &str) -> Result<()> {
        let what = format!("kubectl describe tells of {reason} on {name} in {}: {words}", cluster.context);
        eventually(&what, NAMES, async || {
            let text = cluster.describe(kind, &self.namespace, name).await?;
            let events = text.split_once("\nEvents:").map_or("", |(_, events)| events);
            let told = |line: &str| line.split_whitespace().any(|word| word == reason) && line.contains(words);
            holds(events.lines().any(told), &what, &text)
        })
        .await
    }

    /// The EndpointSlices of a ServiceImport.
    pub async fn imported_slices(&self, cluster: &Cluster, name: &str) -> Result<Vec<Value>> {
        cluster.list(ENDPOINT_SLICE, &self.namespace, &format!("multicluster.kubernetes.io/service-name={name}")).await
    }

    /// The ready addresses that a ServiceImport has from one source cluster.
    pub async fn imported_addresses(
        &self,
        cluster: &Cluster,
        name: &str,
        source: &Cluster,
    ) -> Result<BTreeSet<String>> {
        let slices = self.imported_slices(cluster, name).await?;
        Ok(ready_addresses(
            slices
                .iter()
                .filter(|slice| slice["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"] == source.id),
        ))
    }

    /// The ready addresses that a Service has in its own cluster.
    pub async fn local_addresses(&self, cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        let slices =
            cluster.list(ENDPOINT_SLICE, &self.namespace, &format!("kubernetes.io/service-name={name}")).await?;
        Ok(ready_addresses(slices.iter()))
    }

    /// Waits until every cluster has exactly the ready addresses that the Service has in its own cluster. Where there are pods of
    /// its name, these are theirs: Kubernetes may not have written its own EndpointSlices yet.
    pub async fn followed(&self, source: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        self.followed_within(PROPAGATION, source, name).await
    }

    /// [`World::followed`] with another deadline.
    pub async fn followed_within(&self, deadline: Duration, source: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        let mut addresses = BTreeSet::new();
        for cluster in &self.clusters {
            let what = format!("{} has the addresses of {name} in {}", cluster.context, source.context);
            addresses = eventually(&what, deadline, async || {
                let wanted = self.local_addresses(source, name).await?;
                let pods = source.list(POD, &self.namespace, &format!("app={name}")).await?;
                for pod in &pods {
                    let known = addresses_of(pod).any(|address| wanted.contains(address));
                    holds(known, &format!("{} is an endpoint in its own cluster", name_of(pod)), &wanted)?;
                }
                let of_pods: BTreeSet<_> = pods.iter().flat_map(addresses_of).collect();
                let stays = wanted.iter().find(|address| !pods.is_empty() && !of_pods.contains(address.as_str()));
                holds(stays.is_none(), "pods that went are no endpoints in their own cluster", &stays)?;
                let imported = self.imported_addresses(cluster, name, source).await?;
                holds(imported == wanted, &format!("{what}, which are {wanted:?}"), &imported)?;
                Ok(wanted)
            })
            .await?;
        }
        Ok(addresses)
    }
}

/// The contexts of the kubeconfig that `MCS_E2E_CONTEXTS` names.
///
/// # Errors
/// If there are not at least two.
pub fn contexts() -> Result<Vec<String>> {
    let named = std::env::var("MCS_E2E_CONTEXTS").unwrap_or_default();
    let contexts: Vec<_> = named.split(',').filter(|context| !context.is_empty()).map(ToOwned::to_owned).collect();
    ensure!(
        contexts.len() >= 2,
        "MCS_E2E_CONTEXTS takes two or three contexts of the kubeconfig, `a,b`; or run `make test`"
    );
    Ok(contexts)
}

/// The numbers of the clusters that a scenario gets for these.
fn standing_in(wanted: &[usize]) -> Vec<usize> {
    let named = contexts().map_or(0, |contexts| contexts.len());
    let there = |number: usize| if number == IPV6_ONLY { ipv6_context().is_some() } else { number < named };
    let mut others = (0..IPV6_ONLY).filter(|number| there(*number) && !wanted.contains(number));
    wanted.iter().map(|number| if there(*number) { *number } else { others.next().unwrap_or(*number) }).collect()
}

/// The context of a cluster by its number: one of `MCS_E2E_CONTEXTS`, or the fourth, which has IPv6 only.
fn context(number: usize) -> Result<String> {
    if number == IPV6_ONLY {
        return ipv6_context().context("there is no MCS_E2E_IPV6_CONTEXT");
    }
    let contexts = contexts()?;
    contexts.get(number).cloned().with_context(|| format!("MCS_E2E_CONTEXTS names {} contexts only", contexts.len()))
}

/// The first so many of [`contexts`].
fn first(clusters: usize) -> Result<Vec<String>> {
    let mut contexts = contexts()?;
    ensure!(contexts.len() >= clusters, "MCS_E2E_CONTEXTS names {} contexts, of {clusters}", contexts.len());
    contexts.truncate(clusters);
    Ok(contexts)
}

/// The context of the cluster that has IPv6 only. It reaches not all others, so most scenarios leave it out.
fn ipv6_context() -> Option<String> {
    std::env::var("MCS_E2E_IPV6_CONTEXT").ok().filter(|context| !context.is_empty())
}

/// The contexts of all clusters that run the controller.
///
/// # Errors
/// See [`contexts`].
pub fn members() -> Result<Vec<String>> {
    Ok(contexts()?.into_iter().chain(ipv6_context()).collect())
}

async fn remove_leftovers() -> Result<()> {
    for context in members()? {
        let cluster = Cluster::connect(&context).await?;
        for namespace in cluster.list(NAMESPACE, "", &format!("{LABEL_SCENARIO},{LABEL_SCENARIO}!={}", *RUN)).await? {
            cluster.delete(NAMESPACE, "", name_of(&namespace)).await?;
        }
    }
    Ok(())
}

/// An error and its causes, without the backtrace that tells nothing about a cluster.
pub fn explained(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).collect::<Vec<_>>().join("\n- ")
}

/// The name of an object.
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The addresses of a pod.
fn addresses_of(pod: &Value) -> impl Iterator<Item = &str> {
    pod["status"]["podIPs"].as_array().into_iter().flatten().filter_map(|address| address["ip"].as_str())
}

/// A condition of an object, or null.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind)).unwrap_or(&Value::Null)
}

/// What an object says, so short that what several scenarios failed of can be read one after the other.
/// Keeps why a scenario failed for the end of the run (`MCS_E2E_FAILURES`), where it is not lost among the objects. What went
/// wrong is said last.
fn note(failure: &str) {
    const LONGEST: usize = 1500;
    let Some(path) = std::env::var_os("MCS_E2E_FAILURES") else { return };
    let (head, told) = failure.split_once('\n').unwrap_or((failure, ""));
    let left_out = told.chars().count().saturating_sub(LONGEST);
    let told = told.chars().skip(left_out).collect::<String>();
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let _ = file.and_then(|mut file| writeln!(file, "{head}\n{}{told}\n", if left_out > 0 { "... " } else { "" }));
}

fn in_a_line(object: &Value) -> String {
    const LONGEST: usize = 1200;
    let mut told = object.clone();
    let name = name_of(object).to_owned();
    for common in ["apiVersion", "kind", "metadata"] {
        told.as_object_mut().and_then(|fields| fields.remove(common));
    }
    format!("{name} {}", told.to_string().chars().take(LONGEST).collect::<String>())
}

fn ready_addresses<'a>(slices: impl Iterator<Item = &'a Value>) -> BTreeSet<String> {
    slices
        .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
        .filter(|endpoint| endpoint["conditions"]["ready"] != false)
        .flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten())
        .filter_map(|address| address.as_str().map(ToOwned::to_owned))
        .collect()
}
