//! Conditions of ServiceExports.

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    PROPAGATION, SERVICE_EXPORT, World, condition, eventually, holds, holds_for, manifests,
};
use emulator::{Effect, Fault};
use serde_json::{Value, json};

use crate::check::{Check, check};
use crate::facts::{self, AGE, QUIET};

pub(crate) const CHECKS: &[Check] = &[
    check!(Two, [13, 14, 15, 18], conditions::an_export_says_what_became_of_it),
    check!(Two, [18], conditions::transition_times_move_only_on_transitions),
    check!(Disturb, [14, 18, 34], conditions::lost_access_to_the_registry_is_said_and_heals),
];

async fn an_export_says_what_became_of_it(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    facts::export(world, source, manifests::service("web", &[manifests::http(80)])).await?;
    for (kind, status, reason) in
        [("Valid", "True", "Valid"), ("Ready", "True", "Exported"), ("Conflict", "False", "NoConflicts")]
    {
        let condition = world.export_condition(source, "web", kind, status, reason).await?;
        holds(condition["observedGeneration"] == 1, "it is about the first generation", &condition)?;
        holds(condition["lastTransitionTime"].is_string(), "it says since when", &condition)?;
    }
    world.imported(other, "web").await.map(drop)
}

async fn transition_times_move_only_on_transitions(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    facts::export(world, source, manifests::service("web", &[manifests::http(80)])).await?;
    world.export_condition(source, "web", "Ready", "True", "Exported").await?;
    world.export_condition(source, "web", "Conflict", "False", "NoConflicts").await?;
    let times =
        |export: &Value| ["Valid", "Conflict"].map(|kind| condition(export, kind)["lastTransitionTime"].clone());
    let before = source.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
    tokio::time::sleep(AGE).await;
    let labels = json!({"exportedLabels": {"example.com/team": "orders"}});
    world.apply(source, manifests::with_spec(manifests::export("web"), &labels)).await?;
    let after = eventually("all conditions are about the second generation", PROPAGATION, async || {
        let export = source.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
        let observed =
            ["Valid", "Ready", "Conflict"].map(|kind| condition(&export, kind)["observedGeneration"].clone());
        holds(observed.iter().all(|generation| *generation == 2), "observedGeneration is 2", &export)?;
        holds(condition(&export, "Ready")["status"] == "True", "it is Ready", &export)?;
        Ok(export)
    })
    .await?;
    holds(times(&before) == times(&after), "what did not change keeps its transition time", &after)?;
    tokio::time::sleep(AGE).await;
    // Another cluster disagrees: Conflict makes a transition, Valid does not.
    facts::export(world, other, manifests::service("web", &[manifests::http(81)])).await?;
    eventually("there is a conflict", PROPAGATION, async || {
        let export = source.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
        holds(condition(&export, "Conflict")["status"] == "True", "there is a conflict", &export)?;
        let ([valid, conflict], [valid_before, conflict_before]) = (times(&export), times(&after));
        holds(conflict.as_str() > conflict_before.as_str(), "Conflict has a new transition time", &export)?;
        holds(valid == valid_before, "Valid has the old one", &export)
    })
    .await
}

/// AWS denies the second cluster everything, for a while.
async fn lost_access_to_the_registry_is_said_and_heals(world: &World) -> Result<()> {
    let [first, second] = world.pair();
    second.controller().settle().await?;
    let registry = world.registry()?;
    for (cluster, name) in [(second, "old"), (first, "theirs")] {
        let service = manifests::service_without_selector(name, &[manifests::http(80)]);
        facts::export(world, cluster, service).await?;
        let address = "198.18.0.1".to_owned();
        world.apply(cluster, manifests::endpoint_slice(name, name, &[address])).await?;
    }
    for cluster in [first, second] {
        eventually("both have the other's endpoint", PROPAGATION, async || {
            let there = [world.imported_slices(cluster, "old").await?, world.imported_slices(cluster, "theirs").await?];
            holds(there.iter().all(|slices| facts::endpoints(slices).count() == 1), "they are there", &there)
        })
        .await?;
    }
    // Endpoints are written before conditions, and the stream is faster than both.
    world.export_condition(second, "old", "Ready", "True", "Exported").await?;
    let before = second.expect(SERVICE_EXPORT, &world.namespace, "old").await?;
    let denied = Effect::Error {
        code: "AccessDeniedException".to_owned(),
        message: "User is not authorized to perform: servicediscovery".to_owned(),
        status: Some(400),
    };
    let fault = registry.add_fault(&Fault::on_any(denied).for_caller(&registry.caller(&second.id).await?)).await?;
    let outcome = async {
        facts::export(world, second, manifests::service("new", &[manifests::http(80)])).await?;
        // AWS's words.
        facts::not_ready(world, second, "new", PROPAGATION, &["Failed"], "not authorized").await?;
        holds_for("nothing is withdrawn", QUIET, async || {
            for (cluster, name) in [(first, "old"), (second, "theirs"), (second, "old")] {
                let slices = world.imported_slices(cluster, name).await?;
                holds(facts::endpoints(&slices).count() == 1, "the endpoint is there", &slices)?;
            }
            Ok(())
        })
        .await
    }
    .await;
    registry.remove_fault(fault).await.context("the rule stays")?;
    outcome?;
    world.export_condition(second, "new", "Ready", "True", "Exported").await?;
    world.export_condition(second, "old", "Ready", "True", "Exported").await?;
    world.imported(first, "new").await?;
    let after = second.expect(SERVICE_EXPORT, &world.namespace, "old").await?;
    let since = |export: &Value| condition(export, "Valid")["lastTransitionTime"].clone();
    holds(since(&before) == since(&after), "Valid made no transition", &after)
}
