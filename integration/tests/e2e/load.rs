//! What the controller costs when nothing happens.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    ENDPOINT_SLICE, PODS, SERVICE, SERVICE_EXPORT, SERVICE_IMPORT, World, eventually, holds, members, name_of,
};

/// Garbage of the ledger is kept for two minutes, and collected some at a time.
const GARBAGE: Duration = Duration::from_mins(5);

/// The ledger's calls a second in one cluster, at any number of services: a discovery, and a heartbeat now and then.
const LEDGER_CALLS_PER_SECOND: f64 = 1.3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_written_when_nothing_changes() {
    World::run_alone("idle", async |world| {
        let [source, other] = world.pair();
        world.settle().await?;
        world.export(source, "web", 2).await?;
        world.imported(other, "web").await?;
        world.followed(source, "web").await?;
        quiet(world).await?;
        // Controllers that were disturbed by what ran before read more for some minutes: one idle spell is to come.
        let start = Instant::now();
        loop {
            match idle(world).await {
                Err(_) if start.elapsed() < PODS => {}
                outcome => return outcome,
            }
        }
    })
    .await;
}

/// Looks for 20 s at what is written and called.
async fn idle(world: &World) -> Result<()> {
    let versions = resource_versions(world).await?;
    let writes = last_write(world).await?;
    let calls = ledger_calls(world).await?;
    let start = Instant::now();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let made = ledger_calls(world).await?;
    let seconds = start.elapsed().as_secs_f64();
    let now = resource_versions(world).await?;
    holds(versions == now, &format!("no object has changed; they were {versions:#?}"), &now)?;
    for (cluster, made) in &made {
        let rate = (made - calls[cluster]) / seconds;
        holds(
            rate <= LEDGER_CALLS_PER_SECOND,
            &format!("{cluster} makes at most {LEDGER_CALLS_PER_SECOND} calls a second"),
            &rate,
        )?;
        holds(rate > 0.0, &format!("{cluster} reads the ledger"), &rate)?;
    }
    let written: Vec<_> =
        world.registry()?.writes().await?.into_iter().filter(|write| write.sequence > writes).collect();
    // Two minutes after other scenarios, their Cloud Map services and namespaces are deleted.
    let ours = |namespace: &str| namespace == world.namespace || !namespace.starts_with("e2e-");
    let written: Vec<_> = written.into_iter().filter(|write| ours(&write.namespace)).collect();
    let heartbeats = written.iter().all(|write| write.operation == "RegisterInstance" && write.service == "clusters");
    holds(
        heartbeats && written.len() <= 2 * members()?.len(),
        "nothing is written to Cloud Map but each cluster's head every 20 seconds",
        &written,
    )
}

/// Waits until other scenarios' traces are gone: what their changes made superfluous in the ledger is collected after two
/// minutes, and five seconds have passed without a write that is not a heartbeat.
async fn quiet(world: &World) -> Result<()> {
    eventually("the ledgers have no garbage", GARBAGE, async || {
        for cluster in &world.clusters {
            let controller = cluster.controller();
            let leader = controller.leader().await?;
            let pages = controller.metric(&leader, "cloudmap_mcs_ledger_pages", "kind=\"garbage\"").await?;
            holds(pages == 0.0, "there is no garbage", &pages)?;
        }
        Ok(())
    })
    .await?;
    eventually("nothing is written any more", PODS, async || {
        let (before, versions) = (last_write(world).await?, resource_versions(world).await?);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let writes = world.registry()?.writes().await?;
        let written: Vec<_> = writes.iter().filter(|write| write.sequence > before).collect();
        holds(
            written.len() <= members()?.len() && written.iter().all(|write| write.service == "clusters"),
            "only heads are written",
            &written,
        )?;
        holds(versions == resource_versions(world).await?, "objects do not change", &versions)
    })
    .await
}

async fn last_write(world: &World) -> Result<u64> {
    Ok(world.registry()?.writes().await?.last().map_or(0, |write| write.sequence))
}

/// Versions of all that the controller could write in the scenario's namespace.
async fn resource_versions(world: &World) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for cluster in &world.clusters {
        for (title, kind) in
            [("export", SERVICE_EXPORT), ("import", SERVICE_IMPORT), ("service", SERVICE), ("slice", ENDPOINT_SLICE)]
        {
            for object in cluster.list(kind, &world.namespace, "").await? {
                let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
                versions.insert(format!("{} {title} {}", cluster.context, name_of(&object)), version);
            }
        }
    }
    Ok(versions)
}

/// Calls that each cluster's leader has made for the ledger.
async fn ledger_calls(world: &World) -> Result<BTreeMap<String, f64>> {
    let mut calls = BTreeMap::new();
    for cluster in &world.clusters {
        let controller = cluster.controller();
        let leader = controller.leader().await?;
        let made = controller.metric(&leader, "cloudmap_mcs_aws_limiter_wait_seconds_count", "lane=\"ledger\"").await?;
        calls.insert(cluster.context.clone(), made);
    }
    Ok(calls)
}
