//! Custom health.

use std::time::Duration;

use aws_sdk_servicediscovery::types::{CustomHealthStatus, HealthCheckCustomConfig, HealthStatus, HealthStatusFilter};

use super::*;

/// A fixture with a service `checked` that has a custom health check.
async fn checked(delay: Duration) -> (Fixture, String) {
    let f = Fixture::start_with(EmulatorSettings { health_delay: delay, ..EmulatorSettings::unthrottled() }).await;
    let custom = HealthCheckCustomConfig::builder().build();
    let created = f.client.create_service().namespace_id(&f.namespace).name("checked");
    let created = created.health_check_custom_config(custom).send().await.unwrap();
    (f, created.service.unwrap().id.unwrap())
}

async fn register(f: &Fixture, service: &str, id: &str, status: Option<&str>) {
    let mut request = f.client.register_instance().service_id(service).instance_id(id).attributes("k", "v");
    if let Some(status) = status {
        request = request.attributes("AWS_INIT_HEALTH_STATUS", status);
    }
    request.send().await.unwrap();
}

async fn discover(f: &Fixture, service: &str, filter: HealthStatusFilter) -> String {
    let request = f.client.discover_instances().namespace_name("apps").service_name(service).health_status(filter);
    let mut ids: Vec<_> =
        request.send().await.unwrap().instances().iter().map(|i| i.instance_id().unwrap().to_owned()).collect();
    ids.sort_unstable();
    ids.join("")
}

async fn status(f: &Fixture, service: &str, id: &str) -> HealthStatus {
    let request = f.client.get_instances_health_status().service_id(service).instances(id);
    request.send().await.unwrap().status.unwrap().remove(id).unwrap()
}

#[tokio::test]
async fn discovery_filters_by_health() {
    // "HEALTHY Returns healthy instances. UNHEALTHY Returns unhealthy instances. ALL Returns all instances.
    // HEALTHY_OR_ELSE_ALL Returns healthy instances, unless none are reporting a healthy state. In that case, return all
    // instances." "If you don't specify a value for AWS_INIT_HEALTH_STATUS, the initial status is HEALTHY."
    let (f, service) = checked(Duration::ZERO).await;
    register(&f, &service, "a", None).await;
    register(&f, &service, "b", Some("UNHEALTHY")).await;
    assert_eq!(discover(&f, "checked", HealthStatusFilter::Healthy).await, "a");
    assert_eq!(discover(&f, "checked", HealthStatusFilter::Unhealthy).await, "b");
    assert_eq!(discover(&f, "checked", HealthStatusFilter::All).await, "ab");
    assert_eq!(discover(&f, "checked", HealthStatusFilter::HealthyOrElseAll).await, "a");
    register(&f, &service, "a", Some("UNHEALTHY")).await;
    assert_eq!(discover(&f, "checked", HealthStatusFilter::HealthyOrElseAll).await, "ab");
    // "This parameter is ignored for services that don't have a health check configured, and all instances are returned."
    f.register("c", "v").await;
    assert_eq!(discover(&f, "web", HealthStatusFilter::Unhealthy).await, "c");
    assert_eq!(status(&f, &f.service, "c").await.as_str(), "UNKNOWN");
}

#[tokio::test]
async fn a_status_can_be_set_for_custom_checks_only() {
    // CustomHealthNotFound: "The health check for the instance that's specified by ServiceId and InstanceId isn't a
    // custom health check."
    let (f, service) = checked(Duration::ZERO).await;
    register(&f, &service, "a", None).await;
    f.register("a", "v").await;
    let update = |service: &str, id: &str| {
        let request = f.client.update_instance_custom_health_status().service_id(service).instance_id(id);
        request.status(CustomHealthStatus::Unhealthy).send()
    };
    update(&service, "a").await.unwrap();
    assert_eq!(status(&f, &service, "a").await, HealthStatus::Unhealthy);
    assert_eq!(code(update(&f.service, "a").await), "CustomHealthNotFound");
    assert_eq!(code(update(&service, "b").await), "InstanceNotFound");
    assert_eq!(code(update("srv-none", "a").await), "ServiceNotFound");
    let wrong = f.client.update_instance_custom_health_status().service_id(&service).instance_id("a");
    assert_eq!(code(wrong.status("SICK".into()).send().await), "InvalidInput");
    let missing = f.client.get_instances_health_status().service_id(&service).instances("b").send().await;
    assert_eq!(code(missing), "InstanceNotFound");
}

#[tokio::test]
async fn health_does_not_move_the_revision() {
    // "The health status updates don't update InstancesRevision."
    let (f, service) = checked(Duration::ZERO).await;
    register(&f, &service, "a", None).await;
    let revision = async || {
        let request = f.client.discover_instances_revision().namespace_name("apps").service_name("checked");
        request.send().await.unwrap().instances_revision()
    };
    let before = revision().await;
    let update = f.client.update_instance_custom_health_status().service_id(&service).instance_id("a");
    update.status(CustomHealthStatus::Unhealthy).send().await.unwrap();
    assert_eq!(discover(&f, "checked", HealthStatusFilter::Healthy).await, "");
    assert_eq!(revision().await, before);
}

#[tokio::test]
async fn statuses_page() {
    // "If you don't specify a value for MaxResults, Cloud Map returns up to 100 instances."
    let (f, service) = checked(Duration::ZERO).await;
    for n in 0..120 {
        register(&f, &service, &format!("i-{n}"), None).await;
    }
    let mut pages = f.client.get_instances_health_status().service_id(&service).into_paginator().send();
    let mut sizes = Vec::new();
    while let Some(page) = pages.try_next().await.unwrap() {
        sizes.push(page.status().unwrap().len());
    }
    assert_eq!(sizes, [100, 20]);
}
