//! Conversion between the types of the SDK and those of the port.

use std::{collections::HashMap, sync::Arc};

use aws_sdk_servicediscovery::{
    error::BuildError,
    primitives::DateTime,
    types::{self, OperationStatus, OperationTargetType, ServiceType},
};

use crate::{
    Attributes, DnsConfig, DnsRecord, HealthCheck, Instance, Namespace, NamespaceKind, OperationState, RecordType,
    Service, ServiceChange, shared::named_as,
};

/// The routing policy of a service with records if none is given: up to eight healthy instances, as documented for
/// `CreateService`.
const MULTIVALUE: types::RoutingPolicy = types::RoutingPolicy::Multivalue;

fn text(value: Option<&str>) -> Arc<str> {
    value.unwrap_or_default().into()
}

fn id(asked: &str, id: Option<&str>, arn: Option<&str>) -> Arc<str> {
    named_as(asked, id.unwrap_or_default(), arn.unwrap_or_default()).into()
}

/// `None` for a kind of namespace that this version does not know.
pub(super) fn summarized_namespace(summary: &types::NamespaceSummary) -> Option<Namespace> {
    let properties = summary.properties();
    Some(Namespace {
        id: text(summary.id()),
        arn: text(summary.arn()),
        name: text(summary.name()),
        http_name: http_name(properties.and_then(|properties| properties.http_properties()), summary.name()),
        kind: kind(summary.r#type())?,
        description: summary.description().map(str::to_owned),
        created: created(summary.create_date()),
        soa_ttl: soa_ttl(properties),
        hosted_zone: hosted_zone(properties),
    })
}

/// Like [`summarized_namespace`], for a namespace that was asked for by `asked`.
pub(super) fn namespace(namespace: &types::Namespace, asked: &str) -> Option<Namespace> {
    let properties = namespace.properties();
    Some(Namespace {
        id: id(asked, namespace.id(), namespace.arn()),
        arn: text(namespace.arn()),
        name: text(namespace.name()),
        http_name: http_name(properties.and_then(|properties| properties.http_properties()), namespace.name()),
        kind: kind(namespace.r#type())?,
        description: namespace.description().map(str::to_owned),
        created: created(namespace.create_date()),
        soa_ttl: soa_ttl(properties),
        hosted_zone: hosted_zone(properties),
    })
}

fn soa_ttl(properties: Option<&types::NamespaceProperties>) -> Option<u32> {
    let soa = properties?.dns_properties()?.soa()?;
    u32::try_from(soa.ttl()).ok()
}

fn hosted_zone(properties: Option<&types::NamespaceProperties>) -> Option<Arc<str>> {
    properties?.dns_properties()?.hosted_zone_id().map(Into::into)
}

fn created(date: Option<&DateTime>) -> i64 {
    date.and_then(|date| date.to_millis().ok()).unwrap_or(i64::MAX)
}

fn http_name(properties: Option<&types::HttpProperties>, name: Option<&str>) -> Arc<str> {
    text(properties.and_then(|properties| properties.http_name()).or(name))
}

fn kind(kind: Option<&types::NamespaceType>) -> Option<NamespaceKind> {
    match kind? {
        types::NamespaceType::Http => Some(NamespaceKind::Http),
        types::NamespaceType::DnsPrivate => Some(NamespaceKind::DnsPrivate),
        types::NamespaceType::DnsPublic => Some(NamespaceKind::DnsPublic),
        _ => None,
    }
}

/// A service of the namespace that was asked for by `asked`.
pub(super) fn summarized_service(summary: &types::ServiceSummary, asked: &str) -> Service {
    Service {
        id: id(asked, summary.id(), summary.arn()),
        arn: text(summary.arn()),
        name: text(summary.name()),
        namespace_id: None,
        description: summary.description().map(str::to_owned),
        creator_request_id: None,
        dns: dns(summary.dns_config(), summary.r#type()),
        custom_health_check: summary.health_check_custom_config().is_some(),
        health_check: summary.health_check_config().map(health_check),
        created: created(summary.create_date()),
        instances: summary.instance_count().and_then(|count| usize::try_from(count).ok()),
    }
}

/// A service that was asked for by `asked`.
pub(super) fn service(service: &types::Service, asked: &str) -> Service {
    Service {
        id: id(asked, service.id(), service.arn()),
        arn: text(service.arn()),
        name: text(service.name()),
        namespace_id: service.namespace_id().map(Into::into),
        description: service.description().map(str::to_owned),
        creator_request_id: service.creator_request_id().map(str::to_owned),
        dns: dns(service.dns_config(), service.r#type()),
        custom_health_check: service.health_check_custom_config().is_some(),
        health_check: service.health_check_config().map(health_check),
        created: created(service.create_date()),
        instances: service.instance_count().and_then(|count| usize::try_from(count).ok()),
    }
}

/// Skips records of types that this version does not know. Only a service without any records has no DNS configuration.
fn dns(config: Option<&types::DnsConfig>, kind: Option<&ServiceType>) -> Option<DnsConfig> {
    let config = config.filter(|config| !config.dns_records().is_empty() && kind != Some(&ServiceType::Http))?;
    let records = config.dns_records().iter().filter_map(|record| {
        let record_type = match record.r#type() {
            types::RecordType::A => RecordType::A,
            types::RecordType::Aaaa => RecordType::Aaaa,
            types::RecordType::Srv => RecordType::Srv,
            types::RecordType::Cname => RecordType::Cname,
            _ => return None,
        };
        Some(DnsRecord { record_type, ttl: u32::try_from(record.ttl()).unwrap_or(0) })
    });
    Some(DnsConfig {
        weighted: config.routing_policy() == Some(&types::RoutingPolicy::Weighted),
        records: records.collect(),
    })
}

fn health_check(config: &types::HealthCheckConfig) -> HealthCheck {
    HealthCheck {
        kind: config.r#type().as_str().to_owned(),
        path: config.resource_path().map(str::to_owned),
        failure_threshold: config.failure_threshold(),
    }
}

fn record_request(record: DnsRecord) -> Result<types::DnsRecord, BuildError> {
    let record_type = match record.record_type {
        RecordType::A => types::RecordType::A,
        RecordType::Aaaa => types::RecordType::Aaaa,
        RecordType::Srv => types::RecordType::Srv,
        RecordType::Cname => types::RecordType::Cname,
    };
    types::DnsRecord::builder().r#type(record_type).ttl(record.ttl.into()).build()
}

pub(super) fn service_change(change: &ServiceChange) -> Result<types::ServiceChange, BuildError> {
    let records = change.records.iter().copied().map(record_request).collect::<Result<_, _>>()?;
    let check = change.health_check.as_ref().map(|check| {
        types::HealthCheckConfig::builder()
            .r#type(check.kind.as_str().into())
            .set_resource_path(check.path.clone())
            .set_failure_threshold(check.failure_threshold)
            .build()
    });
    Ok(types::ServiceChange::builder()
        .set_description(change.description.clone())
        .dns_config(types::DnsConfigChange::builder().set_dns_records(Some(records)).build()?)
        .set_health_check_config(check.transpose()?)
        .build())
}

pub(super) fn dns_request(config: &DnsConfig) -> Result<types::DnsConfig, BuildError> {
    let policy = if config.weighted { types::RoutingPolicy::Weighted } else { MULTIVALUE };
    let records = config.records.iter().copied().map(record_request).collect::<Result<_, _>>()?;
    types::DnsConfig::builder().routing_policy(policy).set_dns_records(Some(records)).build()
}

pub(super) fn attributes(attributes: Option<HashMap<String, String>>) -> Attributes {
    attributes.unwrap_or_default().into_iter().collect()
}

pub(super) fn listed_instance(summary: types::InstanceSummary) -> Instance {
    Instance { id: text(summary.id()), attributes: attributes(summary.attributes) }
}

pub(super) fn discovered_instance(summary: types::HttpInstanceSummary) -> Instance {
    Instance { id: text(summary.instance_id()), attributes: attributes(summary.attributes) }
}

pub(super) fn operation(operation: &types::Operation) -> OperationState {
    match operation.status() {
        Some(OperationStatus::Success) => {
            let targets = operation.targets().into_iter().flatten();
            let name = |target: &OperationTargetType| target.as_str().to_owned();
            OperationState::Succeeded { targets: targets.map(|(target, id)| (name(target), id.clone())).collect() }
        }
        Some(OperationStatus::Fail) => OperationState::Failed {
            code: operation.error_code().unwrap_or("UNKNOWN").to_owned(),
            message: operation.error_message().unwrap_or("AWS gives no reason").to_owned(),
        },
        // Submitted, pending, or a state of a later AWS release. None of these is an end.
        _ => OperationState::Running,
    }
}
