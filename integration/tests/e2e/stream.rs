//! Leaders that tell each other their endpoints: what they say arrives while the registry takes nothing, also if only one of
//! two clusters can dial the other; and without any connection everything goes through the registry.

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{NAMES, World, eventually, holds};
use emulator::{Effect, Fault};

/// Nobody is there (RFC 5737).
const NOWHERE: &str = "192.0.2.1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_arrive_by_stream_where_one_leader_reaches_the_other_and_else_by_the_registry() {
    World::run_in(&[0, 1], &[0, 1], "stream", async |world| {
        let [source, other] = world.pair();
        world.settle().await?;
        world.export(source, "web", 1).await?;
        world.followed(source, "web").await?;
        both_connected(world, 1.0).await?;
        without_the_registry(world, 3).await?;

        // The other cluster cannot dial this one, but is dialled.
        let before = source.controller().set(&[("CLOUDMAP_MCS_STREAM_ADDRESSES", NOWHERE.to_owned())]).await?;
        let of_other = async {
            both_connected(world, 1.0).await?;
            without_the_registry(world, 2).await?;
            other.controller().set(&[("CLOUDMAP_MCS_STREAM_ADDRESSES", NOWHERE.to_owned())]).await
        };
        let of_other = of_other.await;
        let alone = async {
            both_connected(world, 0.0).await?;
            world.deploy(source, "web", 4).await?;
            world.followed_within(NAMES, source, "web").await.map(drop)
        };
        let alone = if of_other.is_ok() { alone.await } else { Ok(()) };
        source.controller().restore(before).await?;
        other.controller().restore(of_other?).await?;
        alone?;
        both_connected(world, 1.0).await?;
        without_the_registry(world, 1).await
    })
    .await;
}

/// Waits until both leaders say that they are connected with the other one (1), or cannot reach it (0).
async fn both_connected(world: &World, wanted: f64) -> Result<()> {
    let [source, other] = world.pair();
    eventually(&format!("the leaders are connected: {wanted}"), NAMES, async || {
        for (here, there) in [(source, other), (other, source)] {
            let (controller, label) = (here.controller(), format!("remote_cluster=\"{}\"", there.id));
            let leader = controller.leader().await?;
            let connected = controller.metric(&leader, "cloudmap_mcs_stream_connected", &label).await?;
            holds((connected - wanted).abs() < f64::EPSILON, &format!("{} says so", here.id), &connected)?;
        }
        Ok(())
    })
    .await
}

/// The registry takes no write of the source, and its endpoints arrive all the same.
async fn without_the_registry(world: &World, replicas: u32) -> Result<()> {
    let [source, _] = world.pair();
    let registry = world.registry()?;
    let denied = Effect::Error {
        code: "AccessDeniedException".into(),
        message: "the scenario denies it".into(),
        status: Some(403),
    };
    let caller = Some(registry.caller(&source.id).await?);
    let fault = registry.add_fault(&Fault { caller, ..Fault::on("RegisterInstance", denied) }).await?;
    let arrived = async {
        world.deploy(source, "web", replicas).await?;
        world.followed(source, "web").await
    };
    let arrived = arrived.await;
    registry.remove_fault(fault).await?;
    arrived.map(drop)
}
