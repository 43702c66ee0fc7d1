//! What people read when something is wrong: `status` and `gather`, for somebody who may only read, and `doctor`.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use cli::{Cli, Command};
use cloudmap_mcs_integration::scenario::{
    CLUSTER_PROPERTY, CLUSTER_ROLE, CLUSTER_ROLE_BINDING, CONFIG_MAP, Cluster, DEPLOYMENT, Kind, NAMES, POD, PODS,
    ROLE_BINDING, SERVICE_ACCOUNT, World, eventually, holds, manifests, system_namespace,
};
use emulator::{Effect, Fault};
use serde_json::{Value, json};

/// For a controller that begins anew when its cluster has an id again.
const NEW_IDENTITY: Duration = Duration::from_mins(5);

/// How many commands were run.
static COMMANDS: AtomicU32 = AtomicU32::new(0);

/// The pod of a command.
fn pod_name(reader: &str, number: u32) -> String {
    format!("{reader}-{number}")
}

/// What a command printed, and how it ended.
struct Ended {
    code: i64,
    output: String,
}

/// Lets a service account of this name read what `cloudmap-mcs-reader` allows, and nothing else.
async fn create_reader(cluster: &Cluster, name: &str) -> Result<()> {
    let system = system_namespace();
    let metadata = json!({"name": name});
    let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": system}]);
    let role =
        |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "cloudmap-mcs-reader"});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
    cluster.apply(&system, account).await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata,
        "roleRef": role("ClusterRole"), "subjects": subjects,
    });
    cluster.apply("", binding).await?;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": role("Role"), "subjects": subjects,
    });
    cluster.apply(&system, binding).await.map(drop)
}

/// Removes it, with the pods in which it ran commands.
async fn remove_reader(cluster: &Cluster, name: &str) -> Result<()> {
    let system = system_namespace();
    for number in 0..COMMANDS.load(Ordering::Relaxed) {
        cluster.delete(POD, &system, &pod_name(name, number)).await?;
    }
    cluster.delete(SERVICE_ACCOUNT, &system, name).await?;
    cluster.delete(CLUSTER_ROLE_BINDING, "", name).await?;
    cluster.delete(ROLE_BINDING, &system, name).await
}

/// Runs `cloudmap-mcs` in a pod of its own: with the image and the settings of the controller, as the reader.
async fn run_as(cluster: &Cluster, reader: &str, arguments: &[&str]) -> Result<Ended> {
    let system = system_namespace();
    let deployment = cluster.expect(DEPLOYMENT, &system, "cloudmap-mcs").await?;
    let mut spec = deployment["spec"]["template"]["spec"].clone();
    let container = spec["containers"][0].as_object_mut().context("the controller has no container")?;
    for field in ["livenessProbe", "readinessProbe", "ports"] {
        container.remove(field);
    }
    // The log of a pod has what its program prints on both outputs.
    container.insert("args".to_owned(), json!([&["--log", "error"], arguments].concat()));
    container.insert("volumeMounts".to_owned(), json!([{"name": "scratch", "mountPath": "/tmp"}]));
    spec["volumes"] = json!([{"name": "scratch", "emptyDir": {}}]);
    spec["serviceAccountName"] = reader.into();
    spec["restartPolicy"] = "Never".into();
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("serviceAccount");
        spec.remove("topologySpreadConstraints");
    }
    let name = pod_name(reader, COMMANDS.fetch_add(1, Ordering::Relaxed));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    cluster.apply(&system, pod).await?;
    let code = eventually("the command ends", PODS, async || {
        let pod = cluster.expect(POD, &system, &name).await?;
        let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"];
        holds(ended.is_i64() || ended.is_u64(), "the container has ended", &pod["status"])?;
        Ok(ended.as_i64().unwrap_or_default())
    })
    .await?;
    Ok(Ended { code, output: cluster.logs(&system, &name).await? })
}

/// Checks how a command ended, and that its output has these words.
fn says(ended: &Ended, code: i64, words: &[&str]) -> Result<()> {
    holds(ended.code == code, &format!("the exit status is {code}, not {}", ended.code), &ended.output)?;
    for word in words {
        holds(ended.output.contains(word), &format!("it says {word:?}"), &ended.output)?;
    }
    Ok(())
}

/// Runs a command until it ends so ([`says`]): what it reads may still be about to follow what the scenario waited for. Each look
/// is a pod, and is not cut off.
async fn comes_to_say(cluster: &Cluster, reader: &str, arguments: &[&str], code: i64, words: &[&str]) -> Result<Ended> {
    let begun = Instant::now();
    loop {
        let ended = run_as(cluster, reader, arguments).await?;
        match says(&ended, code, words) {
            Ok(()) => return Ok(ended),
            Err(error) if begun.elapsed() >= NAMES => return Err(error),
            Err(_) => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_are_told_what_holds_a_name_up_and_gather_everything() {
    World::run("status", async |world| {
        let [source, other] = world.pair();
        let reader = world.namespace.as_str();
        for cluster in [source, other] {
            create_reader(cluster, reader).await?;
        }
        let outcome = follow(world, reader).await;
        for cluster in [source, other] {
            remove_reader(cluster, reader).await?;
        }
        outcome
    })
    .await;
}

async fn follow(world: &World, reader: &str) -> Result<()> {
    let [source, other] = world.pair();
    let namespace = world.namespace.as_str();
    world.export(source, "web", 1).await?;
    world.imported(other, "web").await?;
    world.followed(source, "web").await?;
    world.export_condition_within(NAMES, source, "web", ["Registered", "True", "Registered"]).await?;

    let name = world.name("web");
    for cluster in [source, other] {
        let ledger = format!("ledger of {}", source.id);
        let slices = format!("EndpointSlices from {}", source.id);
        let target = format!("Cloud Map {namespace}/web");
        let words: [&str; 6] = ["nothing is wrong", &ledger, "1 of 1 endpoints ready", &slices, &target, &name];
        comes_to_say(cluster, reader, &["status", "web", "-n", namespace], 0, &words).await?;
    }

    let ended = run_as(source, reader, &["status", "web", "-n", namespace, "-o", "json"]).await?;
    let report: Value = serde_json::from_str(&ended.output)?;
    let slices = format!("EndpointSlices from {}", source.id);
    let target = format!("Cloud Map {namespace}/web");
    for about in ["endpoints here", &target, &slices] {
        let aged = |finding: &Value| finding["about"] == about && finding["ageSeconds"].is_u64();
        let findings = report["findings"].as_array().context("no findings")?;
        holds(findings.iter().any(aged), &format!("{about} has an age"), &report)?;
    }

    let ended = run_as(source, reader, &["status", "-n", namespace, "-o", "json"]).await?;
    let report: Value = serde_json::from_str(&ended.output)?;
    let findings = report["findings"].as_array().context("no findings")?;
    let find = |about: &str| findings.iter().find(|finding| finding["about"] == about).cloned().unwrap_or_default();
    holds(find("ServiceExports")["text"] == "1 of 1 are well", "the export is well", &report)?;
    holds(find("registry")["state"] == "ok", "the registry was read", &report)?;

    let ended = run_as(source, reader, &["gather", "-n", namespace, "-o", "/tmp/bundle.tar.gz"]).await?;
    let exports = format!("objects/{namespace}/serviceexports.json: ");
    let leader = format!("controller/{}/metrics.txt: ", source.controller().leader().await?);
    let files = ["Corefile: ", "controller/deployment.json: ", "ledger.json: ", "status.json: ", &exports, &leader];
    says(&ended, 0, &files)?;
    holds(!ended.output.contains("NOT READ"), "the reader may read everything", &ended.output)?;

    world.apply(source, manifests::export("ghost")).await?;
    world.export_condition(source, "ghost", "Valid", "False", "NoService").await?;
    let words = ["the first is Service", "Create the Service, or delete the ServiceExport"];
    comes_to_say(source, reader, &["status", "ghost", "-n", namespace], 1, &words).await?;
    let export = format!("ServiceExport {namespace}/ghost");
    let words: [&str; 2] = [&export, "Valid=False NoService"];
    comes_to_say(source, reader, &["status", "-n", namespace], 1, &words).await?;

    world.deploy(source, "web", 0).await?;
    eventually("the Service has no endpoints", PODS, async || {
        let left = world.local_addresses(source, "web").await?;
        holds(left.is_empty(), "there are none", &left)
    })
    .await?;
    let words = ["1 thing is wrong, endpoints here", "get pods -l app=web"];
    comes_to_say(source, reader, &["status", "web", "-n", namespace], 1, &words).await.map(drop)
}

/// The findings of `doctor` on this machine, with these flags.
async fn examine(flags: &[&str]) -> Result<Vec<Value>> {
    let cli = Cli::of([&["cloudmap-mcs", "doctor"], flags].concat())?;
    let Command::Doctor(args) = cli.command else { bail!("not doctor") };
    let report = commands::doctor_report(&args).await?;
    Ok(report["findings"].as_array().context("no findings")?.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_finds_clusters_well_tries_the_network_and_leaves_nothing() {
    World::run_in(&[0, 1], &[0, 1], "doctor", async |world| {
        let [source, other] = world.pair();
        world.export(source, "web", 1).await?;
        world.imported(other, "web").await?;
        let contexts = format!("--contexts={},{}", source.context, other.context);

        // Controllers that another scenario restarted before may still connect. A look must not be cut off: it has pods.
        let reached = |it: &&Value| it["subject"] == "stream" && it["state"] == "OK";
        let begun = Instant::now();
        let findings = loop {
            let findings = examine(&[&contexts, "--no-aws"]).await?;
            let well = findings.iter().all(|finding| finding["state"] != "FAIL");
            if (well && findings.iter().any(|it| reached(&it))) || begun.elapsed() >= NAMES {
                break findings;
            }
        };
        let failed: Vec<_> = findings.iter().filter(|finding| finding["state"] == "FAIL").collect();
        holds(failed.is_empty(), "nothing failed", &failed)?;
        for (from, to) in [(source, other), (other, source)] {
            let way = format!("{}→{}", from.context, to.context);
            let is_it = |finding: &&Value| finding["subject"] == "tcp" && finding["where"] == *way;
            holds(findings.iter().any(|finding| is_it(&finding)), &format!("{way} was tried"), &findings)?;
        }
        let streams = findings.iter().filter(reached).count();
        holds(streams == 1, "one leader is reached by the other cluster's pods", &findings)?;
        for cluster in [source, other] {
            let left = cluster.list(POD, &system_namespace(), "cloudmap-mcs/doctor").await?;
            holds(left.is_empty(), "no temporary pod is left", &left)?;
        }

        let findings = examine(&[&contexts, "--no-aws", "--no-probe", "--controller-namespace=default"]).await?;
        let missing = |finding: &&Value| finding["subject"] == "controller" && finding["state"] == "FAIL";
        holds(findings.iter().filter(missing).count() == 2, "the controllers are missed", &findings)?;

        // The registry, and what a reader may see.
        let reader = world.namespace.as_str();
        create_reader(source, reader).await?;
        let words = ["0 failed", "WriteTheLedger: ", "so its role may write", "USD a month"];
        let ended = comes_to_say(source, reader, &["doctor"], 0, &words).await;
        remove_reader(source, reader).await?;
        let ended = ended?;
        holds(!ended.output.contains("not read"), "the reader may read everything", &ended.output)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_names_what_is_broken_in_a_cluster_and_what_to_do() {
    World::run_in(&[2], &[2], "doctor-broken", async |world| {
        let cluster = &world.clusters[0];
        cluster.controller().settle().await?;
        world.apply(cluster, manifests::service("web", &[manifests::http(80)])).await?;
        world.apply(cluster, manifests::export("web")).await?;
        world.export_condition_within(NAMES, cluster, "web", ["Ready", "True", "Exported"]).await?;
        nothing_fails(cluster).await?;
        without_a_permission(cluster).await?;
        without_the_zone(cluster).await?;
        without_an_id(world, cluster).await?;
        let reader = world.namespace.as_str();
        create_reader(cluster, reader).await?;
        let outcome = without_an_operation(world, cluster, reader).await;
        remove_reader(cluster, reader).await?;
        outcome?;
        nothing_fails(cluster).await
    })
    .await;
}

/// Waits until `doctor` finds nothing wrong in a cluster.
async fn nothing_fails(cluster: &Cluster) -> Result<()> {
    let contexts = format!("--contexts={}", cluster.context);
    eventually("nothing fails", NAMES, async || {
        let findings = examine(&[&contexts, "--no-aws"]).await?;
        let failed: Vec<_> = findings.iter().filter(|finding| finding["state"] == "FAIL").collect();
        holds(failed.is_empty(), "nothing fails", &failed)
    })
    .await
}

/// Waits until `doctor` says that something fails, with these words and this remedy.
async fn fails(cluster: &Cluster, subject: &str, words: &str, remedy: &str) -> Result<()> {
    let contexts = format!("--contexts={}", cluster.context);
    let what = format!("{subject} fails: {words}; what to do is {remedy}");
    eventually(&what, NAMES, async || {
        let findings = examine(&[&contexts, "--no-aws"]).await?;
        let has = |text: &Value, words: &str| text.as_str().is_some_and(|text| text.contains(words));
        let is_it = |finding: &Value| {
            finding["state"] == "FAIL"
                && finding["subject"] == subject
                && has(&finding["text"], words)
                && has(&finding["remedy"], remedy)
        };
        holds(findings.iter().any(is_it), &what, &findings)
    })
    .await
}

/// Breaks an object by a patch, and heals it by another one when it is known what is said of it.
async fn broken(
    cluster: &Cluster,
    (kind, namespace, name): (Kind, &str, &str),
    [breaks, heals]: [&Value; 2],
    said: impl Future<Output = Result<()>>,
) -> Result<()> {
    let outcome = async {
        cluster.merge(kind, namespace, name, breaks).await?;
        said.await
    }
    .await;
    // Whatever came of it: the other scenarios need the cluster.
    cluster.merge(kind, namespace, name, heals).await?;
    outcome
}

async fn without_a_permission(cluster: &Cluster) -> Result<()> {
    let role = cluster.expect(CLUSTER_ROLE, "", "cloudmap-mcs").await?;
    let mut others = role["rules"].as_array().context("the ClusterRole has no rules")?.clone();
    others.retain(|rule| rule["resources"] != json!(["serviceexports/status"]));
    let patches = [&json!({"rules": others}), &json!({"rules": role["rules"]})];
    let lacks = "permissions: patch serviceexports/status.multicluster.x-k8s.io";
    let remedy = format!("kubectl --context {} apply -k your overlay", cluster.context);
    let said = fails(cluster, "rbac", lacks, &remedy);
    broken(cluster, (CLUSTER_ROLE, "", "cloudmap-mcs"), patches, said).await
}

async fn without_the_zone(cluster: &Cluster) -> Result<()> {
    let map = cluster.expect(CONFIG_MAP, "kube-system", "coredns").await?;
    let corefile = map["data"]["Corefile"].as_str().context("the ConfigMap has no Corefile")?;
    let without: String = corefile
        .split_inclusive('\n')
        .filter(|line| !line.trim_start().starts_with("multicluster"))
        .map(|line| line.replace(" clusterset.local", ""))
        .collect();
    let patches = [without.as_str(), corefile].map(|text| json!({"data": {"Corefile": text}}));
    let remedy = format!("cloudmap-mcs coredns apply --context {}", cluster.context);
    let said = fails(cluster, "coredns", "`kubernetes` does not answer for clusterset.local", &remedy);
    broken(cluster, (CONFIG_MAP, "kube-system", "coredns"), patches.each_ref(), said).await
}

async fn without_an_id(world: &World, cluster: &Cluster) -> Result<()> {
    const ID: &str = "cluster.clusterset.k8s.io";
    let patches = ["No Id", &cluster.id].map(|id| json!({"spec": {"value": id}}));
    let words = format!("the ClusterProperty {ID} cannot be used");
    let said = async {
        fails(cluster, "ids", &words, "correct the ClusterProperty").await?;
        // The controller has seen it, too, and will see that it is healed.
        world.export_condition_within(NAMES, cluster, "web", ["Ready", "False", "Failed"]).await.map(drop)
    };
    broken(cluster, (CLUSTER_PROPERTY, "", ID), patches.each_ref(), said).await?;
    world.export_condition_within(NEW_IDENTITY, cluster, "web", ["Ready", "True", "Exported"]).await.map(drop)
}

/// AWS denies the cluster's role one operation. In its pod, `doctor` asks as that role.
async fn without_an_operation(world: &World, cluster: &Cluster, reader: &str) -> Result<()> {
    let registry = world.registry()?;
    let denied = Effect::Error {
        code: "AccessDeniedException".to_owned(),
        message: "User is not authorized to perform: servicediscovery:RegisterInstance".to_owned(),
        status: Some(400),
    };
    let rule = Fault::on("RegisterInstance", denied).for_caller(&registry.caller(&cluster.id).await?);
    let fault = registry.add_fault(&rule).await?;
    let ended = run_as(cluster, reader, &["doctor"]).await;
    registry.remove_fault(fault).await.context("the rule stays")?;
    let remedy = "add the statement WriteTheLedger to the role's policy: cloudmap-mcs iam --mode";
    says(&ended?, 1, &["WriteTheLedger: RegisterInstance denied", remedy])
}
