//! The stage of a scenario: two or three clusters, the registry, and a namespace of its own in each of them.

use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use futures::FutureExt as _;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::cluster::{Cluster, ENDPOINT_SLICE, EVENT, Kind, NAMESPACE, POD, SERVICE, SERVICE_EXPORT, SERVICE_IMPORT};
use super::manifests::{self, LABEL_SCENARIO};
use super::names::Names;
use super::registry::Registry;
use super::stage::{Clusters, Stage};
use super::wait::{PODS, eventually};

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
const LONGEST: [&str; 22] = [
    "chart",
    "drain",
    "unreachable",
    "nearest",
    "regions",
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

    /// Runs a scenario with these clusters, by their number: two dual-stack ones, of which the first has two nodes; one that has
    /// IPv4 only; one that has IPv6 only, which does not reach the one before; and two more dual-stack ones. Of some it kills or reconfigures the controllers: no other scenario uses those
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
        let namespace = manifests::namespace(&self.namespace, &[(LABEL_SCENARIO, &RUN)]);
        // Scenarios join services of ECS and of others.
        let granted = json!({"cloudmap-mcs/may-register": "*/*"});
        cluster.apply("", manifests::annotated(namespace, &granted)).await?;
        cluster.takes_pods(&self.namespace).await
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
        "MCS_E2E_CONTEXTS takes two contexts of the kubeconfig or more, `a,b`; or run `make test`"
    );
    Ok(contexts)
}

/// The numbers of the clusters that a scenario gets for these.
fn standing_in(wanted: &[usize]) -> Vec<usize> {
    let named = contexts().map_or(0, |contexts| contexts.len());
    let there = |number: usize| match among_contexts(number) {
        None => ipv6_context().is_some(),
        Some(place) => place < named,
    };
    let mut others = (0..IPV6_ONLY).filter(|number| there(*number) && !wanted.contains(number));
    wanted.iter().map(|number| if there(*number) { *number } else { others.next().unwrap_or(*number) }).collect()
}

/// The place of a cluster in `MCS_E2E_CONTEXTS`, which has all but the one with IPv6 only.
fn among_contexts(number: usize) -> Option<usize> {
    match number {
        IPV6_ONLY => None,
        before if before < IPV6_ONLY => Some(before),
        after => Some(after - 1),
    }
}

/// The context of a cluster by its number: one of `MCS_E2E_CONTEXTS`, or the one that has IPv6 only.
fn context(number: usize) -> Result<String> {
    let Some(place) = among_contexts(number) else {
        return ipv6_context().context("there is no MCS_E2E_IPV6_CONTEXT");
    };
    let contexts = contexts()?;
    contexts.get(place).cloned().with_context(|| format!("MCS_E2E_CONTEXTS names {} contexts only", contexts.len()))
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

/// What an object says, so short that what several scenarios failed of can be read one after the other.
fn in_a_line(object: &Value) -> String {
    const LONGEST: usize = 1200;
    let mut told = object.clone();
    let name = name_of(object).to_owned();
    for common in ["apiVersion", "kind", "metadata"] {
        told.as_object_mut().and_then(|fields| fields.remove(common));
    }
    format!("{name} {}", told.to_string().chars().take(LONGEST).collect::<String>())
}
