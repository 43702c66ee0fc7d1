//! Signed heads: a cluster gets another key while it is in use, and somebody writes into the ledger who has none.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cloudmap::Instance;
use cloudmap_mcs_integration::scenario::{Cluster, Load, NAMES, PROPAGATION, SERVICE_IMPORT, World, eventually, holds};
use ledger::head::{Head, Presence};
use ledger::trust::{Scope, sign};
use ledger::{CLUSTERS, namespace_name};
use model::SigningKey;
use serde_json::Value;
use tokio::process::Command;

/// For a leader to read its new key, begin anew and sign with it, and for others to follow.
const ROTATION: Duration = Duration::from_mins(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_follow_to_a_new_key_and_ignore_whoever_has_none() {
    World::run_in(&[0, 1], &[0], "trust", async |world| {
        let [source, other] = world.pair();
        world.settle().await?;
        world.export(source, "web", 1).await?;
        world.followed(source, "web").await?;
        let url = format!("http://{}/hostname", world.name("web"));
        eventually("the name answers", NAMES, async || other.curl(&url, &[]).await).await?;
        let scenes = async {
            rotate(world).await?;
            forge(world).await
        };
        let ((), Load { answers, failures, .. }) = other.load(&url, Box::pin(scenes)).await?;
        holds(failures.is_empty() && answers > 0, "no request fails meanwhile", &failures)
    })
    .await;
}

/// What `trust list` says in `at`.
async fn list(at: &Cluster) -> Result<Value> {
    Ok(serde_json::from_str(&at.controller().command(&["trust", "list", "-o", "json"]).await?)?)
}

/// What it says of `cluster`.
async fn told(at: &Cluster, cluster: &Cluster) -> Result<Value> {
    let told = list(at).await?;
    let rows = told["clusters"].as_array().context("no clusters")?;
    rows.iter().find(|row| row["cluster"] == cluster.id).cloned().context("the cluster is not in the list")
}

async fn rotate(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    let before = told(other, source).await?;
    holds(before["pinned"].is_string() && before["pinned"] == before["signsWith"], "its key is pinned", &before)?;
    let program = std::env::var("PROGRAM").context("PROGRAM is not set: it is the path of cloudmap-mcs")?;
    let kubeconfig = std::env::temp_dir().join(format!("cloudmap-mcs-e2e-{:016x}.kubeconfig", rand::random::<u64>()));
    tokio::fs::write(&kubeconfig, source.kubeconfig().await?).await.context("failed to write a kubeconfig")?;
    let output = Command::new(program).args(["trust", "rotate", "--kubeconfig"]).arg(&kubeconfig).output().await;
    let _ = tokio::fs::remove_file(&kubeconfig).await;
    let output = output?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    eventually("the other cluster follows to the new key", ROTATION, async || {
        let now = told(other, source).await?;
        let new = now["signsWith"] != before["signsWith"] && now["pinned"] == now["signsWith"];
        holds(new, "it signs with another key, which is pinned", &now)
    })
    .await?;
    world.deploy(source, "web", 2).await?;
    world.followed_within(ROTATION, source, "web").await.map(drop)
}

/// Somebody who may write the ledger's namespace says that the cluster has left.
async fn forge(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    let registry = world.registry()?;
    let listed = list(other).await?;
    let clusterset = listed["clusterset"].as_str().context("no ClusterSet")?;
    let namespace = namespace_name(clusterset);
    let attributes = registry.discover(&namespace, CLUSTERS).await?.remove(&source.id);
    let attributes = attributes.context("the cluster has no head")?;
    let mut head = Head::from_instance(&Instance { id: source.id.as_str().into(), attributes })?;
    head.position.epoch += 5;
    head.presence = Presence::Left { successor: None };
    let key = SigningKey::from_seed(&[7; 32]).context("no key follows from the seed")?;
    let namespace_id = registry.namespace_id(&namespace).await?;
    let forged = sign(&head, &key, Scope { clusterset, namespace: &namespace_id });
    let attributes: Vec<_> = forged.attributes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let service = registry.service_id(&namespace, CLUSTERS).await?;
    registry.register(&namespace, (CLUSTERS, &service), &source.id, &attributes).await?;
    // What the cluster says meanwhile arrives all the same.
    world.deploy(source, "web", 3).await?;
    world.followed_within(ROTATION, source, "web").await?;
    let import = other.expect(SERVICE_IMPORT, &world.namespace, "web").await?;
    holds(import["status"]["clusters"][0]["cluster"] == source.id, "it is still a member", &import)?;
    eventually("the cluster has written its own head again", PROPAGATION, async || {
        let now = told(other, source).await?;
        holds(now["pinned"] == now["signsWith"], "its key signed the head", &now)
    })
    .await
}
