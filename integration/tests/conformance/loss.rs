//! A cluster that is lost: nothing is withdrawn, and everybody sees it.

use std::time::Duration;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    DEPLOYMENT, NAMES, SERVICE_IMPORT, World, eventually, holds, holds_for, manifests, name_of, system_namespace,
};
use emulator::{Effect, Fault};
use serde_json::{Value, json};

use crate::check::{Check, check};
use crate::facts::{self, QUIET};

pub(crate) const CHECKS: &[Check] = &[
    check!(Lose, [41], loss::of_a_cluster_is_visible_and_withdraws_nothing),
    check!(Disturb, [29, 41], loss::of_sight_withdraws_nothing),
];

/// A cluster is called stale after five minutes of silence, of which those do not count in which the observer was silent.
const STALE: Duration = Duration::from_mins(15);

async fn of_a_cluster_is_visible_and_withdraws_nothing(world: &World) -> Result<()> {
    let [first, _, third] = world.three();
    third.controller().settle().await?;
    world.deploy(third, "web", 1).await?;
    facts::export(world, third, manifests::single_stack("web", &[manifests::http(80)])).await?;
    let addresses = world.followed(third, "web").await?;
    let url = format!("http://{}/hostname", world.name("web"));
    facts::answers(first, &url, &[]).await?;
    let deployment = third.expect(DEPLOYMENT, &system_namespace(), "cloudmap-mcs").await?;
    let scale = async |replicas: &Value| {
        let patch = json!({"spec": {"replicas": replicas}});
        third.merge(DEPLOYMENT, &system_namespace(), "cloudmap-mcs", &patch).await
    };
    scale(&json!(0)).await?;
    let outcome = tokio::select! {
        gone = stays(world, &addresses) => gone,
        seen = is_visible(world) => seen,
    };
    let answered = facts::answers(first, &url, &[]).await;
    scale(&deployment["spec"]["replicas"]).await?;
    third.controller().settle().await?;
    outcome?;
    answered?;
    eventually("it is not stale any more", NAMES, async || {
        let import = first.expect(SERVICE_IMPORT, &world.namespace, "web").await?;
        holds(!says_stale(&import, &third.id), "the import's conditions do not call it stale", &import)
    })
    .await
}

/// Ends only when an endpoint is lost.
async fn stays(world: &World, addresses: &std::collections::BTreeSet<String>) -> Result<()> {
    let [first, _, third] = world.three();
    loop {
        let imported = world.imported_addresses(first, "web", third).await?;
        holds(imported == *addresses, "its endpoints are there", &imported)?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn is_visible(world: &World) -> Result<()> {
    let [first, _, third] = world.three();
    eventually("the metric says that a cluster is stale", STALE, async || {
        let controller = first.controller();
        let stale = controller.metric(&controller.leader().await?, "cloudmap_mcs_stale_clusters", "").await?;
        holds(stale > 0.0, "the metric says so", &stale)
    })
    .await?;
    eventually(&format!("the import says that {} is stale", third.id), NAMES, async || {
        let import = first.expect(SERVICE_IMPORT, &world.namespace, "web").await?;
        holds(facts::clusters_of(&import).contains(&third.id), "it is still in its status", &import)?;
        holds(says_stale(&import, &third.id), "a condition says so and names it", &import)
    })
    .await
}

fn says_stale(import: &Value, cluster: &str) -> bool {
    let conditions = import["status"]["conditions"].as_array().into_iter().flatten();
    conditions.map(ToString::to_string).any(|text| text.to_lowercase().contains("stale") && text.contains(cluster))
}

/// The second cluster reads nothing, or half, or gets errors; also right after a restart.
async fn of_sight_withdraws_nothing(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    second.controller().settle().await?;
    let registry = world.registry()?;
    let caller = registry.caller(&second.id).await?;
    let service = manifests::service_without_selector("web", &[manifests::http(80)]);
    facts::export(world, first, service).await?;
    let addresses: Vec<_> = (1..=120).map(|n| format!("198.18.0.{n}")).collect();
    world.apply(first, manifests::endpoint_slice("web", "web", &addresses)).await?;
    let there = world.followed(first, "web").await?;
    let before = facts::import_with_ips(world, second, "web").await?;
    let looks = async || anyhow::Ok(registry.counters().await?.calls_by(&caller, "DiscoverInstances"));
    let stays = async || {
        let asked = looks().await?;
        eventually("the cluster looks several times meanwhile", NAMES, async || {
            let now = looks().await?;
            holds(now >= asked + 3, &format!("it has asked more often than {asked} times"), &now)
        })
        .await?;
        holds_for("nothing is withdrawn", QUIET, async || {
            let import = second.expect(SERVICE_IMPORT, &world.namespace, "web").await?;
            holds(import["spec"] == before["spec"], "the import is what it was", &import)?;
            let now = world.imported_addresses(second, "web", first).await?;
            holds(now == there, "all endpoints are there", &now)
        })
        .await
    };
    let failing = Effect::Error { code: "InternalFailure".to_owned(), message: String::new(), status: Some(500) };
    for (effect, restart) in
        [(Effect::Partial { keep: 0.5 }, false), (failing, false), (Effect::Partial { keep: 0.0 }, true)]
    {
        let fault = registry.add_fault(&Fault::on("DiscoverInstances", effect).for_caller(&caller)).await?;
        let outcome = async {
            if restart {
                for pod in second.controller().pods().await? {
                    second.kill_pod(&system_namespace(), name_of(&pod)).await?;
                }
                second.controller().settle().await?;
            }
            stays().await
        }
        .await;
        registry.remove_fault(fault).await?;
        outcome?;
    }
    // And it sees again.
    world.apply(first, manifests::endpoint_slice("web", "web", &addresses[..3])).await?;
    eventually("it follows again", NAMES, async || {
        let now = world.imported_addresses(second, "web", first).await?;
        holds(now.len() == 3, "three endpoints are left", &now)
    })
    .await
}
