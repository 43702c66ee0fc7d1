//! The real AWS Cloud Map MCS Controller for K8s in one cluster of the ClusterSet, this one in another (`--aws-mcs-compat`), and
//! the first one's cluster moving over and back as docs/moving-from-aws-mcs-controller.md says. It runs as a task outside the clusters:
//! `testbed peer aws-mcs-controller`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use cloudmap_mcs_integration::ecs::{Ecs, Task};
use cloudmap_mcs_integration::scenario::{
    Cluster, ENDPOINT_SLICE, Instances, Load, NAMES, PODS, SERVICE, SERVICE_EXPORT, SERVICE_IMPORT, World, condition,
    eventually, explained, holds, manifests, name_of,
};
use serde_json::{Value, json};

/// What it is known as in the emulator's books.
const CALLER: &str = "aws-mcs-controller";
const FLAG: &str = "CLOUDMAP_MCS_AWS_MCS_COMPAT";
/// On the Services that it makes for imports.
const SOURCE_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";
/// What the cluster of the AWS controller exports.
const EXPORTS: [&str; 3] = ["web", "both", "db"];
const FINALIZER: &str = "multicluster.k8s.aws/service-export-finalizer";
/// Shorter than the limit of scenarios, so that all is put back.
const LIMIT: Duration = Duration::from_mins(25);
/// Longer than clients and CoreDNS keep an answer of `clusterset.local`.
const DNS_TTL: Duration = Duration::from_secs(10);

/// Starts it for a cluster, as a task, since that ends with the tests whatever happens.
async fn start(ecs: &Ecs, kubeconfig: &Path) -> Result<Task> {
    let program = std::env::var("MCS_E2E_AWS_MCS_CONTROLLER")
        .context("MCS_E2E_AWS_MCS_CONTROLLER is not set: it takes what `testbed peer aws-mcs-controller` prints")?;
    let port = ecs.cloud_map().endpoint().rsplit(':').next().context("the emulator's endpoint has no port")?;
    ecs.run_task(&[
        "env",
        &format!("KUBECONFIG={}", kubeconfig.display()),
        &format!("AWS_ENDPOINT_URL=http://servicediscovery.testbed:{port}"),
        &format!("AWS_ACCESS_KEY_ID={CALLER}"),
        "AWS_SECRET_ACCESS_KEY=none",
        "AWS_REGION=eu-central-1",
        "AWS_EC2_METADATA_DISABLED=true",
        "AWS_CONFIG_FILE=/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
        &program,
    ])
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_the_aws_controller_shares_services_moves_over_and_back() {
    World::run_in(&[0, 2], &[0, 2], "aws-mcs", async |world| {
        let [ours, theirs] = world.pair();
        let ecs = Ecs::from_env().await?;
        world.settle().await?;
        let outcome = tokio::time::timeout(LIMIT, Box::pin(begin(world, &ecs))).await;
        let outcome = outcome.unwrap_or_else(|_| Err(anyhow!("it did not end within {LIMIT:?}")));
        // Whatever came of it: everything is put back.
        for export in theirs.list(SERVICE_EXPORT, &world.namespace, "").await? {
            release(world, theirs, name_of(&export)).await?;
        }
        for cluster in [ours, theirs] {
            run(cluster, false).await?;
        }
        outcome?;
        // A cluster that was forgotten comes back by itself.
        world.export_condition_within(NAMES, theirs, "web", ["Ready", "True", "Exported"]).await?;
        imported_from(world, ours, "web", theirs).await
    })
    .await;
}

/// Has a cluster run this controller, with the flag or without it.
async fn run(cluster: &Cluster, compatible: bool) -> Result<()> {
    cluster.controller().run(2, &[(FLAG, compatible.then_some("true"))]).await
}

async fn begin(world: &World, ecs: &Ecs) -> Result<()> {
    let [ours, theirs] = world.pair();
    theirs.controller().stop().await?;
    run(ours, true).await?;
    let kubeconfig = std::env::temp_dir().join(format!("cloudmap-mcs-e2e-{:016x}.kubeconfig", rand::random::<u64>()));
    tokio::fs::write(&kubeconfig, theirs.kubeconfig().await?).await.context("failed to write a kubeconfig")?;
    let before = started(ecs, &kubeconfig, async |peer| play(world, ecs, peer).await).await;
    let outcome = match before {
        Ok(()) => started(ecs, &kubeconfig, async |_| Box::pin(go_back(world)).await).await,
        Err(error) => Err(error),
    };
    let _ = tokio::fs::remove_file(kubeconfig).await;
    outcome
}

/// Plays something with the AWS controller running, which it may stop.
async fn started(ecs: &Ecs, kubeconfig: &Path, scene: impl AsyncFnOnce(&Task) -> Result<()>) -> Result<()> {
    let peer = start(ecs, kubeconfig).await?;
    let outcome = Box::pin(scene(&peer)).await;
    let log = peer.log().await;
    // It has been stopped before, if the scene came so far.
    let _ = ecs.agent().stop(&peer.id, Duration::from_secs(5)).await;
    outcome.map_err(|error| {
        let log = log.unwrap_or_else(|error| explained(&error));
        error.context(format!("what the AWS controller said last:\n{log}"))
    })
}

/// Removes the finalizer of the AWS controller, as the runbook has it.
async fn release(world: &World, cluster: &Cluster, export: &str) -> Result<()> {
    cluster.merge(SERVICE_EXPORT, &world.namespace, export, &json!({"metadata": {"finalizers": null}})).await
}

/// A Service of one family, as the AWS controller requires it, and its export.
async fn export(world: &World, cluster: &Cluster, name: &str) -> Result<()> {
    world.apply(cluster, manifests::single_stack(name, &[manifests::http(80)])).await?;
    world.apply(cluster, manifests::export(name)).await.map(drop)
}

async fn discover(world: &World, service: &str) -> Result<Instances> {
    world.registry()?.discover(&world.namespace, service).await
}

/// Whether some of these instances are a cluster's, and all of its instances are so.
fn all_of(cluster: &Cluster, found: &Instances, are: impl Fn(&BTreeMap<String, String>) -> bool) -> bool {
    let mut own = found.values().filter(|told| told.get("CLUSTER_ID") == Some(&cluster.id)).peekable();
    own.peek().is_some() && own.all(are)
}

/// Waits until all of these answer at a name in a cluster, and nobody else.
async fn answered_by(world: &World, cluster: &Cluster, name: &str, wanted: &BTreeSet<String>) -> Result<()> {
    let url = format!("http://{}/hostname", world.name(name));
    eventually(&format!("{wanted:?} answer at {url} in {}", cluster.context), NAMES, async || {
        let answered = cluster.answers(None, &url, 10 * wanted.len()).await?;
        holds(answered == *wanted, &format!("it is {wanted:?}"), &answered)
    })
    .await
}

async fn play(world: &World, ecs: &Ecs, peer: &Task) -> Result<()> {
    let [ours, theirs] = world.pair();
    for (cluster, name) in [(theirs, "web"), (ours, "api"), (theirs, "both"), (ours, "both")] {
        world.deploy(cluster, name, 2).await?;
    }
    // What the AWS controller exports, ours imports.
    export(world, theirs, "web").await?;
    export(world, theirs, "both").await?;
    let import = eventually("ours imports what the AWS controller exports", NAMES, async || {
        ours.expect(SERVICE_IMPORT, &world.namespace, "web").await
    })
    .await?;
    holds(import["spec"]["type"] == "ClusterSetIP", "it has an address", &import)?;
    holds(import["spec"]["ports"][0]["port"] == 80, "it has the port", &import)?;
    imported_from(world, ours, "web", theirs).await?;
    pods_have_names(world).await?;
    answered_by(world, ours, "web", &world.pods(theirs, "web").await?).await?;

    // What ours exports, the AWS controller imports.
    export(world, ours, "api").await?;
    export(world, ours, "both").await?;
    eventually("the AWS controller imports what ours exports", NAMES, async || {
        let import = theirs.expect(SERVICE_IMPORT, &world.namespace, "api").await?;
        holds(!import["spec"]["ips"][0].is_null(), "it has an address", &import)
    })
    .await?;
    answered_by(world, theirs, "api", &world.pods(ours, "api").await?).await?;
    // A name that both export, with the pods of both. (The AWS controller has a Service for each cluster, and DNS takes turns.)
    let mut all = world.pods(ours, "both").await?;
    all.extend(world.pods(theirs, "both").await?);
    imported_from(world, ours, "both", theirs).await?;
    imported_from(world, ours, "both", ours).await?;
    answered_by(world, ours, "both", &all).await?;
    world.export_condition_within(NAMES, ours, "both", ["Conflict", "False", "NoConflicts"]).await?;
    // Both ways endpoints come and go.
    for (cluster, name, other) in [(theirs, "web", ours), (ours, "api", theirs)] {
        world.deploy(cluster, name, 3).await?;
        answered_by(world, other, name, &world.pods(cluster, name).await?).await?;
        world.deploy(cluster, name, 1).await?;
        answered_by(world, other, name, &world.pods(cluster, name).await?).await?;
    }
    each_wrote_its_own(world).await?;

    let web = format!("http://{}/hostname", world.name("web"));
    let api = format!("http://{}/hostname", world.name("api"));
    let moving = async { theirs.load(&api, Box::pin(move_over(world, ecs, peer))).await };
    let (((), there), here) = ours.load(&web, Box::pin(moving)).await?;
    for (load, whose) in [(here, "of what moves"), (there, "in what moves")] {
        let Load { answers, failures, .. } = &load;
        holds(failures.is_empty() && *answers > 0, &format!("no request {whose} fails"), &load)?;
    }
    answered_by(world, ours, "web", &world.pods(theirs, "web").await?).await?;
    answered_by(world, theirs, "api", &world.pods(ours, "api").await?).await?;
    answered_by(world, theirs, "both", &all).await?;
    theirs.controller().stop().await
}

/// The pods of a headless Service that the AWS controller exports have names of their own.
async fn pods_have_names(world: &World) -> Result<()> {
    let [ours, theirs] = world.pair();
    world.apply(theirs, manifests::stateful_set("db", 1)).await?;
    let headless = manifests::single_stack("db", &[manifests::http(8080)]);
    world.apply(theirs, manifests::with_spec(headless, &json!({"clusterIP": "None"}))).await?;
    world.apply(theirs, manifests::export("db")).await?;
    let pod = format!("db-0.{}.{}", theirs.id, world.name("db"));
    eventually("the pod has a name", PODS, async || {
        let answered = ours.curl(&format!("http://{pod}:8080/hostname"), &[]).await?;
        holds(answered == "db-0", "it answers", &answered)
    })
    .await
}

/// Waits until a cluster has exactly the ready addresses of a Service in another one, each once.
async fn imported_from(world: &World, cluster: &Cluster, name: &str, source: &Cluster) -> Result<()> {
    let what = format!("{} has the addresses of {name} in {}", cluster.context, source.context);
    eventually(&what, NAMES, async || {
        let wanted = world.local_addresses(source, name).await?;
        let imported = world.imported_addresses(cluster, name, source).await?;
        holds(imported == wanted, &format!("{what}, which are {wanted:?}"), &imported)
    })
    .await
}

/// Nobody registers or deregisters what another cluster's controller did.
async fn each_wrote_its_own(world: &World) -> Result<()> {
    let [ours, theirs] = world.pair();
    let writes = world.registry()?.writes().await?;
    let of_instances = writes.iter().filter(|write| write.namespace == world.namespace && !write.instance.is_empty());
    let mut own = BTreeSet::new();
    for (cluster, names) in [(ours, ["api", "both"]), (theirs, ["web", "both"])] {
        for name in names {
            for (id, attributes) in discover(world, name).await? {
                let caller = if cluster.id == theirs.id { CALLER } else { &cluster.id };
                if attributes.get("CLUSTER_ID") == Some(&cluster.id) {
                    own.insert((name.to_owned(), id, caller.to_owned()));
                }
            }
        }
    }
    let strays: Vec<_> = of_instances
        .filter(|write| {
            own.iter()
                .any(|(name, id, caller)| *name == write.service && *id == write.instance && *caller != write.caller)
        })
        .collect();
    holds(strays.is_empty() && !own.is_empty(), "each cluster's instances are written by its controller alone", &strays)
}

/// The runbook's steps for one cluster.
async fn move_over(world: &World, ecs: &Ecs, peer: &Task) -> Result<()> {
    let [_, theirs] = world.pair();
    let ns = &world.namespace;
    // 1. The AWS controller is stopped; what it made stays.
    ecs.agent().stop(&peer.id, Duration::from_secs(10)).await?;
    let exports = theirs.list(SERVICE_EXPORT, ns, "").await?;
    let held = exports.iter().all(|export| export["metadata"]["finalizers"] == json!([FINALIZER]));
    holds(held && exports.len() == EXPORTS.len(), "its finalizer is on the exports", &exports)?;
    // 2. This controller is started in its place. Until it is told to it takes nothing over.
    run(theirs, true).await?;
    world.export_condition_within(NAMES, theirs, "web", ["Ready", "False", "Failed"]).await?;
    // 3. The exports and the imports are handed over.
    for name in EXPORTS {
        release(world, theirs, name).await?;
    }
    for import in theirs.list(SERVICE_IMPORT, ns, "").await? {
        let mut patch = json!({"metadata": {
            "labels": {"cloudmap-mcs/managed-by": "cloudmap-mcs"},
            "annotations": {"multicluster.k8s.aws/derived-service": null},
        }});
        if import["spec"]["ips"] == json!(["None"]) {
            patch["spec"] = json!({"ips": null});
        }
        theirs.merge(SERVICE_IMPORT, ns, name_of(&import), &patch).await?;
    }
    for name in EXPORTS {
        world.export_condition_within(NAMES, theirs, name, ["Ready", "True", "Exported"]).await?;
        world.export_condition_within(NAMES, theirs, name, ["Registered", "True", "Registered"]).await?;
        eventually("its instances are this controller's", PODS, async || {
            let found = discover(world, name).await?;
            let taken = all_of(theirs, &found, |told| told.contains_key("CLOUDMAP_MCS_CLUSTER_UID"));
            holds(taken, "there are some, and none is the AWS controller's", &found)
        })
        .await?;
    }
    eventually("the headless import is as the standard has it", NAMES, async || {
        let import = theirs.expect(SERVICE_IMPORT, ns, "db").await?;
        let ready = condition(&import, "Ready")["status"] == "True";
        holds(ready && import["spec"]["ips"].is_null(), "it is ready, and has no addresses", &import)
    })
    .await?;
    // 4. When names lead to the new Services, and nobody remembers the old ones, those go.
    for name in ["web", "api", "both"] {
        eventually("the name leads to the Service that this controller made", NAMES, async || {
            let import = theirs.expect(SERVICE_IMPORT, ns, name).await?;
            let derived = &import["metadata"]["annotations"]["multicluster.kubernetes.io/derived-service"];
            let derived = theirs.expect(SERVICE, ns, derived.as_str().unwrap_or_default()).await?;
            holds(import["spec"]["ips"] == derived["spec"]["clusterIPs"], "it has its addresses", &import)?;
            let answer = theirs.dig(&world.name(name), "A").await?;
            holds(answer == BTreeSet::from([text(&derived["spec"]["clusterIP"])]), "DNS says so, too", &answer)
        })
        .await?;
    }
    tokio::time::sleep(DNS_TTL).await;
    let old = theirs.list(SERVICE, ns, SOURCE_CLUSTER).await?;
    holds(old.len() >= 3, "the AWS controller left a Service for each name and cluster", &old.len())?;
    for service in old {
        theirs.delete(SERVICE, ns, name_of(&service)).await?;
    }
    eventually("nothing of the AWS controller is left", PODS, async || {
        let slices = theirs
            .list(ENDPOINT_SLICE, ns, "endpointslice.kubernetes.io/managed-by=aws-cloud-map-mcs-controller-for-k8s")
            .await?;
        holds(slices.is_empty(), "its slices went with its Services", &slices)
    })
    .await?;
    for (name, source) in [("web", theirs), ("both", theirs)] {
        for cluster in [&world.clusters[0], theirs] {
            imported_from(world, cluster, name, source).await?;
        }
    }
    Ok(())
}

/// The runbook's way back, with the AWS controller started again, while the service is called.
async fn go_back(world: &World) -> Result<()> {
    let [ours, theirs] = world.pair();
    let ns = &world.namespace;
    let back = async {
        for name in EXPORTS {
            eventually("its instances are the AWS controller's again", NAMES, async || {
                let found = discover(world, name).await?;
                let written = all_of(theirs, &found, |told| {
                    told.get("K8S_CONTROLLER").is_some_and(|by| by.starts_with("aws-cloud-map-mcs-controller-for-k8s"))
                });
                holds(written, "there are some, and all of them are", &found)
            })
            .await?;
        }
        ours.controller().command(&["forget", &theirs.id]).await?;
        world.deploy(theirs, "web", 2).await?;
        imported_from(world, ours, "web", theirs).await
    };
    let web = format!("http://{}/hostname", world.name("web"));
    let ((), Load { answers, failures, .. }) = ours.load(&web, Box::pin(back)).await?;
    holds(failures.is_empty() && answers > 0, "no request fails on the way back", &failures)?;
    for name in ["web", "api", "both"] {
        eventually("the AWS controller's Services are there", NAMES, async || {
            let import = theirs.expect(SERVICE_IMPORT, ns, name).await?;
            let selector = format!("multicluster.kubernetes.io/service-name={name},{SOURCE_CLUSTER}");
            let services = theirs.list(SERVICE, ns, &selector).await?;
            let ips: BTreeSet<_> = services.iter().map(|service| text(&service["spec"]["clusterIP"])).collect();
            let told: BTreeSet<_> = import["spec"]["ips"].as_array().into_iter().flatten().map(text).collect();
            holds(ips == told && !ips.is_empty(), &format!("the import has their addresses, {ips:?}"), &import)
        })
        .await?;
    }
    for service in theirs.list(SERVICE, ns, "cloudmap-mcs/managed-by=cloudmap-mcs").await? {
        theirs.delete(SERVICE, ns, name_of(&service)).await?;
    }
    for import in theirs.list(SERVICE_IMPORT, ns, "").await? {
        let patch = json!({"metadata": {"labels": {"cloudmap-mcs/managed-by": null}}});
        theirs.merge(SERVICE_IMPORT, ns, name_of(&import), &patch).await?;
    }
    answered_by(world, theirs, "api", &world.pods(ours, "api").await?).await?;
    answered_by(world, ours, "web", &world.pods(theirs, "web").await?).await
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
