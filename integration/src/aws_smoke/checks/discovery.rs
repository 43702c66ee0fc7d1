//! What discovery returns.

use aws_sdk_servicediscovery::types::{CustomHealthStatus, HealthCheckCustomConfig, HealthStatusFilter};
use futures::{StreamExt as _, TryStreamExt as _};

use super::ADDRESS;
use crate::aws_smoke::{
    lab::{Lab, answer, unknown_yet},
    verdict::Verdict,
};

pub(crate) async fn query(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("query").await?;
    lab.put(&service, "a", &[("kind", "page"), ("of", "1")]).await?;
    lab.put(&service, "b", &[("kind", "page"), ("of", "2")]).await?;
    lab.shown("query", 2).await?;
    let request = lab.client.discover_instances().namespace_name(&lab.namespace.http_name);
    let request = request.service_name(lab.name("query")).query_parameters("kind", "page").query_parameters("of", "2");
    let found = request.send().await?;
    let ids: Vec<_> = found.instances().iter().filter_map(|found| found.instance_id()).collect();
    Ok(Verdict::holds(ids == ["b"], ids.join(", ")))
}

pub(crate) async fn max_results(lab: &Lab) -> anyhow::Result<Verdict> {
    lab.service("max").await?;
    let ask = |number| {
        let request = lab.client.discover_instances().namespace_name(&lab.namespace.http_name);
        request.service_name(lab.name("max")).max_results(number).send()
    };
    // Discovery may not know the service yet, or only some of its replicas may.
    lab.until(|| async {
        for _ in 0..10 {
            if ask(1).await.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await?;
    let (fits, over) = (answer(ask(1000).await)?, answer(ask(1001).await)?);
    Ok(Verdict::holds(fits == "accepted" && over != "accepted", format!("1000: {fits}; 1001: {over}")))
}

async fn revision(lab: &Lab, what: &str) -> anyhow::Result<i64> {
    let request = lab.client.discover_instances_revision().namespace_name(&lab.namespace.http_name);
    match request.service_name(lab.name(what)).send().await {
        Ok(answer) => Ok(answer.instances_revision().unwrap_or_default()),
        Err(error) if unknown_yet(&error) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// The highest revision that several replicas answer.
async fn highest(lab: &Lab, what: &str) -> anyhow::Result<i64> {
    let mut highest = 0;
    for _ in 0..10 {
        highest = highest.max(revision(lab, what).await?);
    }
    Ok(highest)
}

pub(crate) async fn revision_registered(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("revision").await?;
    let before = highest(lab, "revision").await?;
    lab.put(&service, "one", &[ADDRESS]).await?;
    lab.shown("revision", 1).await?;
    let with = highest(lab, "revision").await?;
    lab.remove(&service, "one").await?;
    lab.shown("revision", 0).await?;
    let after = highest(lab, "revision").await?;
    Ok(Verdict::holds(before != with && with != after, format!("{before}, {with}, {after}")))
}

pub(crate) async fn revision_updated(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("revision-updated").await?;
    lab.put(&service, "one", &[("k", "1")]).await?;
    lab.shown("revision-updated", 1).await?;
    let before = highest(lab, "revision-updated").await?;
    lab.put(&service, "one", &[("k", "2")]).await?;
    lab.until(|| async {
        let found = lab.discover("revision-updated").await?;
        Ok(found.iter().any(|found| found.attributes().is_some_and(|all| all.get("k").is_some_and(|k| k == "2"))))
    })
    .await?;
    let after = highest(lab, "revision-updated").await?;
    Ok(Verdict::holds(before == after, format!("{before}, {after}")))
}

pub(crate) async fn revision_health(lab: &Lab) -> anyhow::Result<Verdict> {
    let custom = HealthCheckCustomConfig::builder().build();
    let created = lab.new_service("revision-health").health_check_custom_config(custom).send().await?;
    let service = created.service.and_then(|service| service.id).unwrap_or_default();
    lab.put(&service, "one", &[ADDRESS]).await?;
    lab.shown("revision-health", 1).await?;
    let before = highest(lab, "revision-health").await?;
    let request = lab.client.update_instance_custom_health_status().service_id(&service).instance_id("one");
    request.status(CustomHealthStatus::Unhealthy).send().await?;
    lab.until(|| async {
        let request = lab.client.discover_instances().namespace_name(&lab.namespace.http_name);
        let request = request.service_name(lab.name("revision-health")).health_status(HealthStatusFilter::Unhealthy);
        Ok(!request.send().await?.instances().is_empty())
    })
    .await?;
    let after = highest(lab, "revision-health").await?;
    Ok(Verdict::holds(before == after, format!("{before}, {after}")))
}

/// Registers this many instances, some at a time.
async fn fill(lab: &Lab, service: &str, number: u32) -> anyhow::Result<()> {
    let puts = (0..number).map(|n| async move { lab.put(service, &format!("i-{n}"), &[ADDRESS]).await });
    futures::stream::iter(puts).buffer_unordered(20).try_for_each(|_| async { Ok(()) }).await
}

pub(crate) async fn first_hundred(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("hundred").await?;
    fill(lab, &service, 101).await?;
    lab.shown("hundred", 101).await?;
    let request = lab.client.discover_instances().namespace_name(&lab.namespace.http_name);
    let found = request.service_name(lab.name("hundred")).send().await?;
    Ok(Verdict::holds(found.instances().len() == 100, format!("{} of 101", found.instances().len())))
}

pub(crate) async fn thousand(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("thousand").await?;
    fill(lab, &service, 1000).await?;
    let shown = lab.shown("thousand", 1000).await?;
    let request = lab.client.register_instance().service_id(&service).instance_id("one-more");
    let over = answer(request.attributes(ADDRESS.0, ADDRESS.1).send().await)?;
    let found = if shown.is_some() { "1000 were returned" } else { "1000 were not returned" };
    Ok(Verdict::holds(shown.is_some() && over == "ResourceLimitExceeded", format!("{found}; one more: {over}")))
}
