//! The real external-dns beside this controller in one Cloud Map namespace (`testbed peer external-dns`), and the way over and
//! back that docs/moving-from-external-dns.md describes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::ecs::{Ecs, Task};
use cloudmap_mcs_integration::scenario::{
    Cluster, Instances, NAMES, NAMESPACE, PODS, SERVICE, World, eventually, explained, holds, manifests,
};
use emulator::Write;
use serde_json::{Value, json};

/// Its `--txt-owner-id`. Another one begins like it: external-dns itself takes that for its own.
const OWNER: &str = "eks-prod";
const NOT_THE_OWNER: &str = "eks";
const OWNER_FLAG: &str = "CLOUDMAP_MCS_TXT_OWNER_ID";
/// What is said of a service of external-dns: never its owner id, with which it could be taken over.
const THEIRS: &str = "the service belongs to external-dns";
const DRY_RUN_FLAG: &str = "CLOUDMAP_MCS_DRY_RUN";
/// Services that move from external-dns and back.
const MOVED: [&str; 2] = ["web", "api"];
/// What it is known as in the emulator's books.
const CALLER: &str = "external-dns";
/// What this controller alone registers: with records and without, at which external-dns crashes if there is a description.
const OURS: [&str; 2] = ["ours", "bare"];
/// An instance that somebody registered, with the address of nobody.
const BY_HAND: [(&str, &str); 1] = [("AWS_INSTANCE_IPV4", "10.99.9.9")];

/// A kubeconfig for a program that knows no contexts.
struct Kubeconfig(PathBuf);

impl Kubeconfig {
    async fn of(cluster: &Cluster) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("cloudmap-mcs-e2e-{:016x}.kubeconfig", rand::random::<u64>()));
        let file = Self(path);
        tokio::fs::write(&file.0, cluster.kubeconfig().await?).await.context("failed to write a kubeconfig")?;
        Ok(file)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts external-dns for one Kubernetes namespace and one domain, as a task, since that ends with the tests whatever happens.
async fn start(world: &World, ecs: &Ecs, kubeconfig: &Kubeconfig, domain: &str) -> Result<Task> {
    let program = std::env::var("MCS_E2E_EXTERNAL_DNS")
        .context("MCS_E2E_EXTERNAL_DNS is not set: it takes what `testbed peer external-dns` prints")?;
    let port = ecs.cloud_map().endpoint().rsplit(':').next().context("the emulator's endpoint has no port")?;
    let (kubeconfig, namespace) = (kubeconfig.path().display(), &world.namespace);
    // Any error of AWS ends its process, and a Deployment starts it again.
    let script = format!(
        "while :; do {program} --provider=aws-sd --source=service --namespace={namespace} --kubeconfig={kubeconfig} \
         --domain-filter={domain} --aws-zone-type=private --txt-owner-id={OWNER} --policy=sync --interval=3s; sleep 1; done"
    );
    let endpoint = format!("AWS_ENDPOINT_URL=http://servicediscovery.testbed:{port}");
    let credentials = format!("AWS_ACCESS_KEY_ID={CALLER}");
    ecs.run_task(&[
        "env",
        &endpoint,
        &credentials,
        "AWS_SECRET_ACCESS_KEY=none",
        "AWS_REGION=eu-central-1",
        "AWS_EC2_METADATA_DISABLED=true",
        "AWS_CONFIG_FILE=/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
        "sh",
        "-c",
        &script,
    ])
    .await
}

/// A headless Service for the pods of the Deployment of its name.
fn headless(name: &str, annotations: &Value) -> Value {
    let service =
        manifests::with_spec(manifests::single_stack(name, &[manifests::http(8080)]), &json!({"clusterIP": "None"}));
    manifests::annotated(service, annotations)
}

/// Waits until the instances of a Service are its pods, each with the id that is expected for its address.
async fn followed(world: &World, domain: &str, name: &str, id: impl Fn(&str) -> String) -> Result<()> {
    let what = format!("the pods of {name} are registered in {domain}, and nothing else is");
    eventually(&what, PODS, async || {
        let wanted = world.pod_ipv4s(&world.clusters[0], name).await?;
        let found = world.registry()?.discover(domain, name).await?;
        let matches = |address: &String| {
            found.iter().any(|(key, attributes)| {
                attributes.get("AWS_INSTANCE_IPV4") == Some(address) && key.ends_with(&id(address))
            })
        };
        let all = !wanted.is_empty() && found.len() == wanted.len() && wanted.iter().all(matches);
        holds(all, &format!("{what}: {wanted:?}"), &found)
    })
    .await
}

/// external-dns has addresses for ids.
async fn followed_by_theirs(world: &World, domain: &str) -> Result<()> {
    followed(world, domain, "theirs", ToOwned::to_owned).await
}

/// How the id ends that this controller gives a pod.
fn own_id(address: &str) -> String {
    format!("-{}", address.replace('.', "-"))
}

async fn followed_by_ours(world: &World, domain: &str) -> Result<()> {
    for name in OURS {
        followed(world, domain, name, own_id).await?;
    }
    Ok(())
}

/// What an administrator says on the Namespace.
async fn allow_adopt(world: &World, owners: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {"cloudmap-mcs/allow-adopt": owners}}});
    world.clusters[0].merge(NAMESPACE, "", &world.namespace, &patch).await
}

async fn annotate(world: &World, name: &str, annotations: &Value) -> Result<()> {
    let patch = json!({"metadata": {"annotations": annotations}});
    world.clusters[0].merge(SERVICE, &world.namespace, name, &patch).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_touches_what_is_the_others_until_it_is_adopted() {
    World::run_in(&[1], &[], "beside-external-dns", async |world| {
        let ecs = Ecs::from_env().await?;
        let domain = format!("{}.internal", world.namespace);
        ecs.cloud_map().private_namespace(&domain, 1).await?;
        let kubeconfig = Kubeconfig::of(&world.clusters[0]).await?;
        let peer = start(world, &ecs, &kubeconfig, &domain).await?;
        if let Err(error) = side_by_side(world, &domain).await {
            let log = peer.log().await.unwrap_or_else(|error| explained(&error));
            return Err(error.context(format!("what external-dns said last:\n{log}")));
        }
        peer.stop().await?;
        adopt(world, &domain).await
    })
    .await;
}

async fn side_by_side(world: &World, domain: &str) -> Result<()> {
    let here = &world.clusters[0];
    world.deploy(here, "theirs", 2).await?;
    for name in OURS {
        world.deploy(here, name, 1).await?;
    }
    // external-dns v0.18 does not know the newer prefix, by which the Service is none of this controller's business.
    let annotations = json!({
        "external-dns.alpha.kubernetes.io/hostname": format!("theirs.{domain}"),
        "external-dns.kubernetes.io/controller": "external-dns",
    });
    world.apply(here, headless("theirs", &annotations)).await?;
    let [ours, bare] = OURS;
    let annotations = json!({"cloudmap.controller/namespace": domain, "cloudmap.controller/hostname": ours});
    world.apply(here, headless(ours, &annotations)).await?;
    let annotations = json!({
        "cloudmap.controller/namespace": domain,
        "cloudmap.controller/hostname": bare,
        "cloudmap-mcs/dns-records": "none",
    });
    world.apply(here, headless(bare, &annotations)).await?;
    // What external-dns then registers shows that it goes on beside both.
    followed_by_ours(world, domain).await?;
    followed_by_theirs(world, domain).await?;
    let addresses = world.pod_ipv4s(here, "theirs").await?;
    world.names()?.have(&format!("theirs.{domain}"), "A", &addresses).await?;

    // Now both want it. Another owner is no consent, nor is this one before an administrator allows it.
    allow_adopt(world, &format!("external-dns/{NOT_THE_OWNER}")).await?;
    annotate(
        world,
        "theirs",
        &json!({
            "external-dns.kubernetes.io/controller": null,
            "cloudmap-mcs/adopt": format!("external-dns/{NOT_THE_OWNER}"),
        }),
    )
    .await?;
    world.described(here, SERVICE, "theirs", "ForeignOwner", THEIRS).await?;
    for (theirs, ours) in [(3, 2), (1, 1)] {
        world.deploy(here, "theirs", theirs).await?;
        for name in OURS {
            world.deploy(here, name, ours).await?;
        }
        followed_by_theirs(world, domain).await?;
        followed_by_ours(world, domain).await?;
    }
    let writes = world.registry()?.writes().await?;
    // Whoever is second to make a service is refused: that wrote nothing.
    let done = writes.iter().filter(|write| write.result == "ok");
    let writes: Vec<_> = done.filter(|write| write.namespace == domain && !write.service.is_empty()).collect();
    let own = |write: &Write| if write.caller == CALLER { &["theirs"][..] } else { &OURS[..] };
    let strays: Vec<_> = writes.iter().filter(|write| !own(write).contains(&&*write.service)).collect();
    let all = OURS.iter().chain(&["theirs"]).all(|name| writes.iter().any(|write| write.service == *name));
    holds(strays.is_empty() && all, "each wrote its own alone", &strays)
}

/// external-dns is gone, its instances are not: they become ours, and nothing else does.
async fn adopt(world: &World, domain: &str) -> Result<()> {
    let here = &world.clusters[0];
    let name = format!("theirs.{domain}");
    let service = world.registry()?.service_id(domain, "theirs").await?;
    let by_hand = world.registry()?.register(domain, ("theirs", &service), "by-hand", &BY_HAND).await?;
    let before = world.registry()?.writes().await?.last().map_or(0, |write| write.sequence);
    let taken_over = async {
        annotate(world, "theirs", &json!({"cloudmap-mcs/adopt": format!("external-dns/{OWNER}")})).await?;
        world.described(here, SERVICE, "theirs", "NotAllowed", "cloudmap-mcs/allow-adopt").await?;
        allow_adopt(world, &format!("external-dns/{OWNER}")).await?;
        for replicas in [1, 3, 2] {
            world.deploy(here, "theirs", replicas).await?;
            let addresses = world.pod_ipv4s(here, "theirs").await?;
            eventually("the pods are ours, and what was registered by hand is there", NAMES, async || {
                let mut found = world.registry()?.discover(domain, "theirs").await?;
                let kept = found.remove("by-hand");
                holds(kept.as_ref() == Some(&by_hand), "it is as it was", &kept)?;
                let ours = found.keys().all(|id| id.starts_with("k8s-"));
                holds(ours && found.len() == addresses.len(), &format!("the pods are {addresses:?}"), &found)
            })
            .await?;
            let all: BTreeSet<_> = addresses.into_iter().chain([BY_HAND[0].1.to_owned()]).collect();
            world.names()?.have(&name, "A", &all).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        lost = never_without(world, domain, "theirs") => lost,
        done = taken_over => done,
    }?;
    let writes = world.registry()?.writes().await?;
    let others: Vec<_> = writes
        .iter()
        .filter(|write| write.sequence > before && write.service_id == service)
        .filter(|write| !["RegisterInstance", "DeregisterInstance"].contains(&write.operation.as_str()))
        .collect();
    holds(others.is_empty(), "the Cloud Map service itself is left as it is", &others)?;
    here.delete(SERVICE, &world.namespace, "theirs").await?;
    eventually("what was registered by hand is left", NAMES, async || {
        let found = world.registry()?.discover(domain, "theirs").await?;
        holds(found == Instances::from([("by-hand".to_owned(), by_hand.clone())]), "it is as it was", &found)
    })
    .await
}

/// Ends only when no pod is registered in a service.
async fn never_without(world: &World, domain: &str, service: &str) -> Result<()> {
    // What one replica of discovery shows, another one may not show yet.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    loop {
        let found = world.registry()?.discover(domain, service).await?;
        holds(found.keys().any(|id| id != "by-hand"), "a pod is registered", &found)?;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

/// The runbook: a dry run beside external-dns, taking all that it owns over by its owner id, and the way back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_that_external_dns_owns_is_taken_over_by_the_flag_and_given_back() {
    World::run_in(&[2], &[2], "from-external-dns", async |world| {
        let here = &world.clusters[0];
        let outcome = Box::pin(move_over_and_back(world)).await;
        here.controller().run(2, &[(DRY_RUN_FLAG, None), (OWNER_FLAG, None)]).await?;
        outcome
    })
    .await;
}

async fn move_over_and_back(world: &World) -> Result<()> {
    let here = &world.clusters[0];
    let ecs = Ecs::from_env().await?;
    let domain = format!("{}.internal", world.namespace);
    ecs.cloud_map().private_namespace(&domain, 1).await?;
    let kubeconfig = Kubeconfig::of(here).await?;
    here.controller().run(2, &[(DRY_RUN_FLAG, Some("true"))]).await?;
    let peer = start(world, &ecs, &kubeconfig, &domain).await?;
    for name in MOVED {
        world.deploy(here, name, 2).await?;
        let annotations = json!({"external-dns.alpha.kubernetes.io/hostname": format!("{name}.{domain}")});
        world.apply(here, headless(name, &annotations)).await?;
    }
    for name in MOVED {
        followed(world, &domain, name, ToOwned::to_owned).await?;
    }
    writers_are(world, &domain, &[CALLER]).await?;
    tokio::select! {
        lost = never_without(world, &domain, MOVED[0]) => lost,
        lost = never_without(world, &domain, MOVED[1]) => lost,
        done = Box::pin(over_and_back(world, &ecs, &kubeconfig, &domain, peer)) => done,
    }
}

async fn over_and_back(world: &World, ecs: &Ecs, kubeconfig: &Kubeconfig, domain: &str, peer: Task) -> Result<()> {
    let here = &world.clusters[0];
    peer.stop().await?;

    here.controller().run(2, &[(DRY_RUN_FLAG, None), (OWNER_FLAG, Some(OWNER))]).await?;
    for replicas in [2, 3] {
        world.deploy(here, MOVED[0], replicas).await?;
        for name in MOVED {
            followed(world, domain, name, own_id).await?;
        }
    }
    writers_are(world, domain, &[CALLER, &here.id]).await?;

    // Back: external-dns takes ours for its own, and only a TTL that differs makes it register its own beside them.
    here.controller().run(2, &[(DRY_RUN_FLAG, Some("true")), (OWNER_FLAG, None)]).await?;
    for name in MOVED {
        annotate(world, name, &json!({"external-dns.alpha.kubernetes.io/ttl": "7"})).await?;
    }
    let peer = start(world, ecs, kubeconfig, domain).await?;
    eventually("external-dns has registered its own again, beside ours", NAMES, async || {
        for name in MOVED {
            let addresses = world.pod_ipv4s(here, name).await?;
            let found = world.registry()?.discover(domain, name).await?;
            let (ours, theirs): (Vec<_>, Vec<_>) = found.keys().cloned().partition(|id| id.starts_with("k8s-"));
            let all = addresses.iter().eq(&theirs) && ours.len() == addresses.len();
            holds(all, &format!("both have {addresses:?}"), &found)?;
        }
        Ok(())
    })
    .await?;
    here.controller().run(2, &[(DRY_RUN_FLAG, None)]).await?;
    for name in MOVED {
        followed(world, domain, name, ToOwned::to_owned).await?;
        world.described(here, SERVICE, name, "ForeignOwner", THEIRS).await?;
    }
    world.deploy(here, MOVED[0], 1).await?;
    followed(world, domain, MOVED[0], ToOwned::to_owned).await?;
    peer.stop().await
}

/// These, and nobody else, have written instances in a Cloud Map namespace.
async fn writers_are(world: &World, domain: &str, callers: &[&str]) -> Result<()> {
    let writes = world.registry()?.writes().await?;
    let wrote = writes.into_iter().filter(|write| write.namespace == domain && !write.instance.is_empty());
    let wrote: BTreeSet<_> = wrote.map(|write| write.caller).collect();
    let callers: BTreeSet<_> = callers.iter().map(|&caller| caller.to_owned()).collect();
    holds(wrote == callers, &format!("{callers:?} wrote, and nobody else"), &wrote)
}
