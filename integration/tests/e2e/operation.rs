//! Running the controller: what happens when it dies, what its commands say.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    Cluster, DEPLOYMENT, NAMES, PROPAGATION, SERVICE_EXPORT, SERVICE_IMPORT, World, eventually, holds, manifests,
    name_of, system_namespace,
};

/// For a killed controller: another replica must see that the Lease has run out, and then the change must cross.
const TAKEOVER: Duration = Duration::from_mins(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_run_and_one_leads() {
    World::run("leader", async |world| {
        for cluster in &world.clusters {
            let controller = cluster.controller();
            controller.settle().await?;
            let deployment = cluster.expect(DEPLOYMENT, &system_namespace(), "cloudmap-mcs").await?;
            holds(deployment["spec"]["replicas"] == 2, "two replicas run", &deployment["spec"])?;
            eventually("one pod says that it leads, the one that holds the Lease", PROPAGATION, async || {
                let leader = controller.leader().await?;
                let mut leading = Vec::new();
                for pod in controller.pods().await? {
                    let log = cluster.logs(&system_namespace(), name_of(&pod)).await?;
                    holds(log.contains("caches are synced"), "its log is there from the beginning", &log)?;
                    if controller.metric(name_of(&pod), "cloudmap_mcs_leader", "").await? > 0.0 {
                        leading.push(name_of(&pod).to_owned());
                    }
                }
                holds(leading == [leader.as_str()], &format!("only {leader} leads"), &leading)
            })
            .await?;
        }
        Ok(())
    })
    .await;
}

/// These have no series before something was counted.
const ONLY_COUNTED: [&str; 5] = [
    "cloudmap_mcs_kubernetes_events_total",
    "cloudmap_mcs_kubernetes_watch_errors_total",
    "cloudmap_mcs_import_skipped_addresses_total",
    "cloudmap_mcs_gates_opened_total",
    "cloudmap_mcs_share_mean_ratio",
];

/// The metrics that alerts and dashboards are made of.
fn monitored() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../config/components/monitoring");
    let files = ["prometheus_rule.yaml", "dashboards/clusterset.json", "dashboards/controller.json"];
    let texts = files.map(|file| std::fs::read_to_string(format!("{folder}/{file}")).unwrap_or_default());
    let words = texts.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.filter(|word| word.starts_with("cloudmap_mcs_")).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_controller_has_the_metrics_of_alerts_and_dashboards() {
    World::run("metrics", async |world| {
        let [source, other] = world.pair();
        world.export(source, "web", 1).await?;
        world.imported(other, "web").await?;
        let wanted = monitored();
        holds(wanted.len() > 40, "alerts and dashboards name metrics", &wanted)?;
        eventually("the leader exposes all of them", PROPAGATION, async || {
            // A machine that stands still for longer than the Lease lasts gets another one.
            let leader = source.controller().leader().await?;
            let page = source.get_from_pod(&system_namespace(), &leader, 8080, "metrics").await?;
            let there: BTreeSet<_> = page.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
            let missing: Vec<_> = wanted
                .iter()
                .filter(|name| !there.contains(name.as_str()) && !ONLY_COUNTED.contains(&name.as_str()))
                .collect();
            holds(missing.is_empty(), "no metric is missing", &missing)
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_controllers_loses_no_endpoint() {
    World::run_in(&[3, 1], &[3, 1], "kill", async |world| {
        let [source, other] = world.pair();
        world.settle().await?;
        world.export(source, "web", 1).await?;
        world.imported(other, "web").await?;
        let first = world.followed(source, "web").await?;
        tokio::select! {
            lost = stays(world, &first) => lost,
            done = kill_while_scaling(world) => done,
        }
    })
    .await;
}

/// Ends only when an endpoint is lost in a cluster, or its name does not answer with it.
async fn stays(world: &World, addresses: &BTreeSet<String>) -> Result<()> {
    let [source, other] = world.pair();
    loop {
        for cluster in [source, other] {
            let now = world.imported_addresses(cluster, "web", source).await?;
            holds(now.is_superset(addresses), &format!("{cluster:?} still has {addresses:?}"), &now)?;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Only upwards: Kubernetes may take any pod when it scales down, also the one that must stay.
async fn kill_while_scaling(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    for (replicas, delay) in [(2, 0), (3, 300), (4, 900), (5, 1700)] {
        let change = world.deploy(source, "web", replicas);
        let kill = async {
            tokio::time::sleep(Duration::from_millis(delay)).await;
            source.controller().kill_leader().await
        };
        let (deployed, killed) = tokio::join!(change, kill);
        deployed?;
        killed?;
        world.followed_within(TAKEOVER, source, "web").await?;
        source.controller().settle().await?;
    }
    other.controller().kill_leader().await?;
    world.deploy(source, "web", 6).await?;
    world.followed_within(TAKEOVER, source, "web").await?;
    other.controller().settle().await?;
    for cluster in [source, other] {
        kill_all(cluster).await?;
    }
    world.deploy(source, "web", 7).await?;
    world.followed_within(TAKEOVER, source, "web").await?;
    world.settle().await?;
    eventually("all pods are instances, and nothing else is", TAKEOVER, async || {
        let instances = world.registry()?.discover(&world.namespace, "web").await?;
        let registered: BTreeSet<_> = instances
            .values()
            .flat_map(|attributes| [attributes.get("AWS_INSTANCE_IPV4"), attributes.get("AWS_INSTANCE_IPV6")])
            .flatten()
            .cloned()
            .collect();
        let wanted = world.local_addresses(source, "web").await?;
        holds(registered == wanted, &format!("the instances have {wanted:?}"), &instances)
    })
    .await
}

/// SIGKILLs both replicas.
async fn kill_all(cluster: &Cluster) -> Result<()> {
    for pod in cluster.controller().pods().await? {
        cluster.kill_pod(&system_namespace(), name_of(&pod)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_can_be_looked_into() {
    World::run("ledger-show", async |world| {
        let [source, other] = world.pair();
        world.apply(source, manifests::service("web", &[manifests::http(80)])).await?;
        world.apply(source, manifests::export("web")).await?;
        world.imported(other, "web").await?;
        for cluster in &world.clusters {
            // The stream brings an export before the registry has it, and the command reads the registry.
            eventually("the registry has the export", PROPAGATION, async || {
                let table = cluster.controller().command(&["ledger", "show"]).await?;
                for word in [&source.id, &other.id, &world.namespace] {
                    holds(table.contains(word.as_str()), &format!("the table names {word}"), &table)?;
                }
                let json = cluster.controller().command(&["ledger", "show", "--output", "json"]).await?;
                let value: serde_json::Value = serde_json::from_str(&json)?;
                holds(json.contains(&world.namespace), "the JSON names the export", &value)
            })
            .await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_can_leave_and_come_back() {
    World::run_in(&[3, 0], &[3], "leave", async |world| {
        let [source, other] = world.pair();
        world.settle().await?;
        world.export(source, "web", 1).await?;
        world.imported(other, "web").await?;
        world.followed(source, "web").await?;
        let left = leave(world).await;
        // Whatever came of it: the other scenarios need the cluster.
        source.controller().command(&["leave", "--undo"]).await?;
        left?;
        eventually("the export is back", TAKEOVER, async || {
            other.expect(SERVICE_IMPORT, &world.namespace, "web").await.map(drop)
        })
        .await?;
        world.followed_within(TAKEOVER, source, "web").await.map(drop)
    })
    .await;
}

async fn leave(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    source.controller().command(&["leave", "--timeout", "8m"]).await?;
    world.import_gone(other, "web").await?;
    eventually("its instances are gone", NAMES, async || {
        let instances = world.registry()?.discover(&world.namespace, "web").await?;
        holds(instances.is_empty(), "there are none", &instances)
    })
    .await?;
    source.expect(SERVICE_EXPORT, &world.namespace, "web").await.map(drop)
}
