//! Pods behind the readiness gate: a roll-out goes on when clients of Cloud Map find the new pods, and does not hang when
//! Cloud Map is away.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cloudmap_mcs_integration::{
    ecs::Ecs,
    scenario::{
        CLUSTER_ROLE, CLUSTER_ROLE_BINDING, Cluster, NAMES, POD, World, condition, eventually, holds, manifests,
        name_of, system_namespace,
    },
};
use emulator::{Effect, Fault};
use serde_json::{Value, json};

/// `--gate-timeout` of the controller. A gate that is to open because clients find its pod must not wait for so long, on a
/// machine that is slow or stands still either.
const TIMEOUT: Duration = Duration::from_mins(2);
/// Replicas of the discovery plane show an instance up to this much later than others.
const LAG: Duration = Duration::from_secs(3);
/// A roll-out of two pods that takes longer hangs.
const ROLL_OUT: Duration = Duration::from_mins(15);

pub(crate) const GATE: &str = "cloudmap-mcs/registered";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_roll_out_waits_until_clients_of_cloud_map_find_the_new_pods_and_no_longer_than_the_timeout() {
    World::run_in(&[5], &[5], "gates", async |world| {
        let source = &world.clusters[0];
        Ecs::from_env().await?.cloud_map().private_namespace(&world.namespace, 1).await?;
        let component = component("readiness-gates")?;
        for object in &component {
            source.apply("", object.clone()).await?;
        }
        let flags = [
            ("CLOUDMAP_MCS_READINESS_GATES", "true".to_owned()),
            ("CLOUDMAP_MCS_GATE_TIMEOUT", format!("{}s", TIMEOUT.as_secs())),
        ];
        let before = source.controller().set(&flags).await?;
        let outcome = roll_outs(world, source).await;
        source.controller().restore(before).await?;
        source.delete(CLUSTER_ROLE_BINDING, "", name_of(&component[1])).await?;
        source.delete(CLUSTER_ROLE, "", name_of(&component[0])).await?;
        outcome
    })
    .await;
}

/// The objects of a component of `config/components`, for the namespace in which the controller is.
pub(crate) fn component(name: &str) -> Result<Vec<Value>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/components").join(name);
    ["cluster_role.yaml", "cluster_role_binding.yaml"]
        .map(|file| -> Result<Value> {
            let mut object: Value = serde_yaml_ng::from_str(&fs::read_to_string(folder.join(file))?)?;
            if let Some(subject) = object.pointer_mut("/subjects/0/namespace") {
                *subject = system_namespace().into();
            }
            Ok(object)
        })
        .into_iter()
        .collect()
}

/// A Deployment of two pods with the gate, which serve for so many seconds after they were deleted. Another `version` is another
/// template.
pub(crate) fn gated(name: &str, version: &str, lingers: u64) -> Value {
    let mut deployment = manifests::deployment(name, 2);
    let template = &mut deployment["spec"]["template"];
    template["metadata"]["labels"]["cloudmap-mcs/gate"] = json!("registered");
    template["metadata"]["annotations"] = json!({"version": version});
    template["spec"]["readinessGates"] = json!([{"conditionType": GATE}]);
    // Old pods serve while resolvers have their addresses.
    template["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": lingers}}});
    template["spec"]["terminationGracePeriodSeconds"] = json!(lingers + 7);
    deployment["spec"]["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
    deployment
}

async fn roll_outs(world: &World, source: &Cluster) -> Result<()> {
    world.apply(source, manifests::service("web", &[manifests::http(80)])).await?;
    world.apply(source, manifests::export("web")).await?;
    world.roll_out(source, gated("web", "1", 3)).await?;
    let first = ready(world, source).await?;
    holds(first.values().all(|(_, reason)| reason == "Registered"), "all gates are open because of success", &first)?;

    world.apply(source, gated("web", "2", 3)).await?;
    observe(world, source, &first, true).await?;
    let second = ready(world, source).await?;
    holds(second.values().all(|(_, reason)| reason == "Registered"), "all gates are open because of success", &second)?;
    holds(second.len() == 2, "both pods are ready", &second)?;
    eventually("clients find both pods", NAMES, async || {
        let found = discovered(world).await?;
        holds(second.values().all(|(address, _)| found.contains(address)), &format!("{second:?} are found"), &found)
    })
    .await?;

    let registry = world.registry()?;
    let denied = Effect::Error {
        code: "AccessDeniedException".to_owned(),
        message: "User is not authorized to perform: servicediscovery".to_owned(),
        status: Some(400),
    };
    let fault = registry.add_fault(&Fault::on_any(denied).for_caller(&registry.caller(&source.id).await?)).await?;
    let outcome = async {
        let begun = Instant::now();
        // Both new pods wait at the same time.
        let mut third = gated("web", "3", 3);
        third["spec"]["strategy"]["rollingUpdate"]["maxSurge"] = json!(2);
        world.apply(source, third).await?;
        observe(world, source, &second, false).await?;
        ensure!(begun.elapsed() >= TIMEOUT, "the roll-out took only {:?}", begun.elapsed());
        let third = ready(world, source).await?;
        holds(third.values().all(|(_, reason)| reason == "TimedOut"), "all gates are open because of time", &third)?;
        let pod = third.keys().next().context("no pods")?;
        world.described(source, POD, pod, "TimedOut", "--gate-timeout").await
    }
    .await;
    registry.remove_fault(fault).await.context("the rule stays")?;
    outcome
}

/// The ready pods that are to stay: their IPv4 addresses, and the reasons for which their gates are open.
async fn ready(world: &World, source: &Cluster) -> Result<BTreeMap<String, (String, String)>> {
    let mut pods = source.list(POD, &world.namespace, "app=web").await?;
    pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null() && condition(pod, "Ready")["status"] == "True");
    let of = |pod: &Value| {
        let reason = condition(pod, GATE)["reason"].as_str().unwrap_or_default().to_owned();
        (name_of(pod).to_owned(), (ipv4(pod).unwrap_or_default(), reason))
    };
    Ok(pods.iter().map(of).collect())
}

/// The IPv4 addresses that `DiscoverInstances` returns.
async fn discovered(world: &World) -> Result<BTreeSet<String>> {
    let instances = world.registry()?.discover(&world.namespace, "web").await?;
    Ok(instances.values().filter_map(|attributes| attributes.get("AWS_INSTANCE_IPV4").cloned()).collect())
}

fn ipv4(pod: &Value) -> Option<String> {
    let ips = pod["status"]["podIPs"].as_array().into_iter().flatten();
    ips.filter_map(|ip| ip["ip"].as_str()).find(|ip| !ip.contains(':')).map(str::to_owned)
}

/// Watches a roll-out until two pods other than the `former` ones are ready and these are gone. With `served`, the name
/// always has the address of a pod that is there, by DNS and by `DiscoverInstances`, and whoever asks when a new pod is ready
/// finds it. Only what was asked after the pod was seen counts: this process may get no time between two looks.
async fn observe(
    world: &World,
    source: &Cluster,
    former: &BTreeMap<String, (String, String)>,
    served: bool,
) -> Result<()> {
    let (names, name, begun) = (world.names()?, format!("web.{}", world.namespace), Instant::now());
    // When each new pod was first seen to be ready, with its address.
    let mut seen: BTreeMap<String, (String, Instant)> = BTreeMap::new();
    let mut there: BTreeSet<String> = BTreeSet::new();
    loop {
        let asked = Instant::now();
        let discovered = discovered(world).await?;
        let resolved: BTreeSet<String> = names.ask(&name, "A").await?.data().into_iter().collect();
        let pods = source.list(POD, &world.namespace, "app=web").await?;
        let now = Instant::now();
        let current: BTreeSet<String> = pods.iter().filter_map(ipv4).collect();
        // With those of the last look, which may have gone since the name was asked for.
        there.extend(current.iter().cloned());
        if served {
            for (how, addresses) in [("DiscoverInstances", &discovered), ("DNS", &resolved)] {
                ensure!(!addresses.is_disjoint(&there), "{how} knows {addresses:?}, and the pods have {there:?}");
            }
            for (pod, (address, at)) in &seen {
                let late = asked.saturating_duration_since(*at);
                ensure!(
                    late <= LAG || discovered.contains(address),
                    "{pod} is ready for {late:?}, and is not discovered"
                );
            }
        }
        there = current;
        let is_ready = |pod: &&Value| condition(pod, "Ready")["status"] == "True" && !former.contains_key(name_of(pod));
        for pod in pods.iter().filter(is_ready) {
            let address = ipv4(pod).context("a ready pod without an address")?;
            seen.entry(name_of(pod).to_owned()).or_insert((address, now));
        }
        if seen.len() >= 2 && pods.iter().all(|pod| !former.contains_key(name_of(pod))) {
            return Ok(());
        }
        ensure!(begun.elapsed() < ROLL_OUT, "the roll-out is not over after {ROLL_OUT:?}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
