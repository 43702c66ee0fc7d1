//! Custom health checks.

use std::time::Duration;

use aws_sdk_servicediscovery::types::{CustomHealthStatus, HealthCheckCustomConfig, HealthStatusFilter};

use super::ADDRESS;
use crate::aws_smoke::{
    lab::{Lab, answer},
    verdict::Verdict,
};

/// How long the controller waits for a health status to take effect.
const SETTLES: Duration = Duration::from_secs(45);

/// A service with a custom health check.
async fn checked(lab: &Lab, what: &str) -> anyhow::Result<String> {
    let custom = HealthCheckCustomConfig::builder().build();
    let created = lab.new_service(what).health_check_custom_config(custom).send().await?;
    Ok(created.service.and_then(|service| service.id).unwrap_or_default())
}

/// The ids of the healthy instances in discovery.
async fn healthy(lab: &Lab, what: &str) -> anyhow::Result<Vec<String>> {
    let request = lab.client.discover_instances().namespace_name(&lab.namespace.http_name);
    let found = request.service_name(lab.name(what)).health_status(HealthStatusFilter::Healthy).send().await?;
    Ok(found.instances().iter().filter_map(|found| found.instance_id().map(str::to_owned)).collect())
}

async fn set(lab: &Lab, service: &str, status: CustomHealthStatus) -> anyhow::Result<String> {
    let request = lab.client.update_instance_custom_health_status().service_id(service).instance_id("one");
    answer(request.status(status).send().await)
}

pub(crate) async fn first(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = checked(lab, "health").await?;
    lab.put(&service, "plain", &[ADDRESS]).await?;
    lab.put(&service, "ill", &[ADDRESS, ("AWS_INIT_HEALTH_STATUS", "UNHEALTHY")]).await?;
    lab.shown("health", 2).await?;
    let healthy = healthy(lab, "health").await?;
    Ok(Verdict::holds(healthy == ["plain"], format!("healthy: {}", healthy.join(", "))))
}

pub(crate) async fn delay(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = checked(lab, "health-delay").await?;
    lab.put(&service, "one", &[ADDRESS]).await?;
    lab.shown("health-delay", 1).await?;
    set(lab, &service, CustomHealthStatus::Unhealthy).await?;
    let took = lab.until(|| async { Ok(healthy(lab, "health-delay").await?.is_empty()) }).await?;
    Ok(match took {
        Some(took) => Verdict::within(SETTLES, &[("unhealthy after", vec![took])]),
        None => Verdict::Differs(format!("it had no effect within {} s", lab.patience.as_secs_f64())),
    })
}

pub(crate) async fn only_custom(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("health-none").await?;
    lab.put(&service, "one", &[ADDRESS]).await?;
    let code = set(lab, &service, CustomHealthStatus::Unhealthy).await?;
    Ok(Verdict::holds(code == "CustomHealthNotFound", code))
}

pub(crate) async fn ignored(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("health-ignored").await?;
    lab.put(&service, "one", &[ADDRESS]).await?;
    lab.shown("health-ignored", 1).await?;
    let request = lab.client.discover_instances().namespace_name(&lab.namespace.http_name);
    let request = request.service_name(lab.name("health-ignored")).health_status(HealthStatusFilter::Unhealthy);
    let found = request.send().await?.instances().len();
    Ok(Verdict::holds(found == 1, format!("{found} of 1 with HealthStatus UNHEALTHY")))
}
