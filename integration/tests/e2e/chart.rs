//! The Helm chart on a real cluster, by the real helm (`HELM`): taking over from `kubectl apply -k`, upgrade, rollback, uninstall,
//! and an installation from nothing. The other clusters keep the endpoints throughout.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cloudmap_mcs_integration::scenario::{
    CLUSTER_PROPERTY, CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, Cluster, DEPLOYMENT, NAMES, PODS, SERVICE_EXPORT, World,
    eventually, holds, manifests, system_namespace,
};
use serde_json::{Value, json};
use tokio::process::Command;

const NAME: &str = "cloudmap-mcs";
const DEFINITIONS: [&str; 3] =
    ["serviceexports.multicluster.x-k8s.io", "serviceimports.multicluster.x-k8s.io", "clusterproperties.about.k8s.io"];
/// Shorter than the limit of scenarios, so that all is put back.
const LIMIT: Duration = Duration::from_mins(25);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

/// How the scenario's cluster is installed.
struct Installation {
    values: PathBuf,
    image: String,
    endpoint: String,
    clusterset: String,
}

impl Installation {
    /// Values that install what is installed.
    async fn of(cluster: &Cluster) -> Result<Self> {
        let deployment = cluster.expect(DEPLOYMENT, &system_namespace(), NAME).await?;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned).context("it is no text");
        let image = text(&container["image"])?;
        let (repository, tag) = image.rsplit_once(':').context("the image has no tag")?;
        let sources = &container["envFrom"];
        let settings = text(&sources[0]["configMapRef"]["name"])?;
        let settings = cluster.expect(CONFIG_MAP, &system_namespace(), &settings).await?;
        let endpoint = text(&settings["data"]["CLOUDMAP_MCS_CLOUDMAP_ENDPOINT"])?;
        let clusterset = cluster.expect(CLUSTER_PROPERTY, "", "clusterset.k8s.io").await?;
        let clusterset = text(&clusterset["spec"]["value"])?;
        let values = json!({
            "clusterProperties": {"clusterId": cluster.id, "clustersetId": clusterset},
            "config": {"region": settings["data"]["CLOUDMAP_MCS_REGION"], "cloudmapEndpoint": endpoint},
            "image": {"repository": repository, "tag": tag},
            "extraEnvFrom": [sources[1]],
        });
        let file = std::env::temp_dir().join(format!("cloudmap-mcs-e2e-{:016x}.json", rand::random::<u64>()));
        tokio::fs::write(&file, values.to_string()).await?;
        Ok(Self { values: file, image, endpoint, clusterset })
    }
}

/// Runs helm in a cluster.
async fn helm(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let program = std::env::var("HELM")
        .context("HELM is not set: it takes what `integration/testbed/testbed peer helm` prints")?;
    let namespace = system_namespace();
    run(Command::new(program)
        .args(["--kube-context", &cluster.context, "--namespace", &namespace])
        .args(["--timeout", "10m"])
        .args(arguments))
    .await
}

async fn run(command: &mut Command) -> Result<String> {
    let output = command.kill_on_drop(true).output().await.with_context(|| format!("failed to run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    Ok(text(&output.stdout))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helm_takes_over_upgrades_rolls_back_uninstalls_and_installs_anew() {
    World::run_in(&[4, 3], &[3], "chart", async |world| {
        let [_, theirs] = world.pair();
        world.settle().await?;
        let installation = Installation::of(theirs).await?;
        let outcome = tokio::time::timeout(LIMIT, Box::pin(play(world, &installation))).await;
        let outcome = outcome.unwrap_or_else(|_| Err(anyhow!("it did not end within {LIMIT:?}")));
        // Whatever came of it: everything is put back, by the way that the other scenarios take.
        let _ = helm(theirs, &["uninstall", NAME, "--wait", "--ignore-not-found"]).await;
        let _ = tokio::fs::remove_file(&installation.values).await;
        let Installation { image, endpoint, clusterset, .. } = &installation;
        let back = run(Command::new(root().join("integration/install.sh")).args([
            &theirs.context,
            &theirs.id,
            clusterset,
            image,
            endpoint,
        ]))
        .await;
        outcome?;
        back?;
        theirs.controller().settle().await
    })
    .await;
}

async fn play(world: &World, installation: &Installation) -> Result<()> {
    let [ours, theirs] = world.pair();
    let chart = root().join("config/chart").display().to_string();
    let values = installation.values.display().to_string();
    let install = ["install", NAME, &chart, "--values", &values, "--wait"];
    world.export(theirs, "web", 1).await?;
    world.imported(ours, "web").await?;
    world.followed(theirs, "web").await?;

    // What `kubectl apply -k` made becomes the release's, and nothing is interrupted.
    let mut take_over = install.to_vec();
    take_over.extend(["--take-ownership", "--force-conflicts"]);
    let notes = helm(theirs, &take_over).await?;
    holds(notes.contains("0.10 USD a month"), "it says what instances cost", &notes)?;
    runs(world, "1s", 2).await?;

    let mut upgrade = vec!["upgrade", NAME, &chart, "--values", &values, "--wait"];
    // kubectl still owns the fields that it applied, too.
    upgrade.extend(["--force-conflicts", "--set", "config.ledgerTick=2s", "--set", "replicas=3"]);
    helm(theirs, &upgrade).await?;
    runs(world, "2s", 3).await?;

    helm(theirs, &["rollback", NAME, "1", "--wait", "--force-conflicts"]).await?;
    runs(world, "1s", 2).await?;

    // The export outlives the controller, as its endpoints do elsewhere.
    helm(theirs, &["uninstall", NAME, "--wait"]).await?;
    eventually("the Deployment is gone", PODS, async || {
        theirs.expect_none(DEPLOYMENT, &system_namespace(), NAME).await
    })
    .await?;
    for definition in DEFINITIONS {
        theirs.expect(CUSTOM_RESOURCE_DEFINITION, "", definition).await?;
    }
    for property in ["cluster.clusterset.k8s.io", "clusterset.k8s.io"] {
        theirs.expect(CLUSTER_PROPERTY, "", property).await?;
    }
    theirs.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
    let kept = world.imported_addresses(ours, "web", theirs).await?;
    holds(!kept.is_empty(), "the other clusters keep the endpoints", &kept)?;

    // The same release finds what it left.
    helm(theirs, &install).await?;
    runs(world, "1s", 2).await?;
    helm(theirs, &["uninstall", NAME, "--wait"]).await?;

    // From nothing: the definitions and the properties are made by one command.
    for definition in DEFINITIONS {
        theirs.delete(CUSTOM_RESOURCE_DEFINITION, "", definition).await?;
        eventually("a definition is gone", PODS, async || {
            theirs.expect_none(CUSTOM_RESOURCE_DEFINITION, "", definition).await
        })
        .await?;
    }
    helm(theirs, &install).await?;
    let property = theirs.expect(CLUSTER_PROPERTY, "", "cluster.clusterset.k8s.io").await?;
    holds(property["spec"]["value"] == theirs.id.as_str(), "the chart has made the cluster's id", &property)?;
    world.apply(theirs, manifests::export("web")).await?;
    world.export_condition_within(NAMES, theirs, "web", ["Ready", "True", "Exported"]).await?;
    runs(world, "1s", 2).await
}

/// So many controllers run with this setting, and the other clusters have the endpoints.
async fn runs(world: &World, tick: &str, replicas: usize) -> Result<()> {
    let [_, theirs] = world.pair();
    let controller = theirs.controller();
    controller.settle().await?;
    let pods = controller.pods().await?;
    holds(pods.len() == replicas, &format!("{replicas} run"), &pods)?;
    let settings = theirs.expect(CONFIG_MAP, &system_namespace(), "cloudmap-mcs-config").await?;
    let set = settings["data"]["CLOUDMAP_MCS_LEDGER_TICK"].as_str().unwrap_or("1s");
    holds(set == tick, &format!("the ledger is read every {tick}"), &settings)?;
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    controller.metric(&controller.leader().await?, "cloudmap_mcs_build_info", &version).await?;
    world.followed_within(NAMES, theirs, "web").await.map(drop)
}
