//! Answers of Cloud Map as objects of the port, and objects of the port as requests.

use std::{collections::BTreeMap, sync::Arc};

use cloudmap::{DnsConfig, DnsRecord, HealthCheck, Namespace, NamespaceKind, RecordType, Service};
use serde_json::{Value, json};

pub(super) fn text(value: &Value) -> Arc<str> {
    value.as_str().unwrap_or_default().into()
}

pub(super) fn strings(value: &Value) -> BTreeMap<String, String> {
    let members = value.as_object().into_iter().flatten();
    members.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

pub(super) fn tag_list(tags: &BTreeMap<String, String>) -> Value {
    tags.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect()
}

pub(super) fn namespace(value: &Value) -> Namespace {
    Namespace {
        id: text(&value["Id"]),
        arn: text(&value["Arn"]),
        name: text(&value["Name"]),
        http_name: text(&value["Properties"]["HttpProperties"]["HttpName"]),
        kind: match value["Type"].as_str() {
            Some("DNS_PRIVATE") => NamespaceKind::DnsPrivate,
            Some("DNS_PUBLIC") => NamespaceKind::DnsPublic,
            _ => NamespaceKind::Http,
        },
        description: value["Description"].as_str().map(str::to_owned),
        created: value["CreateDate"].as_f64().map_or(i64::MAX, |seconds| (seconds * 1000.0).round() as i64),
        soa_ttl: value["Properties"]["DnsProperties"]["SOA"]["TTL"].as_u64().and_then(|ttl| u32::try_from(ttl).ok()),
        hosted_zone: value["Properties"]["DnsProperties"]["HostedZoneId"].as_str().map(Into::into),
    }
}

pub(super) fn service(value: &Value) -> Service {
    let dns = &value["DnsConfig"];
    let records: Vec<DnsRecord> = dns["DnsRecords"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|record| DnsRecord {
            record_type: match record["Type"].as_str() {
                Some("AAAA") => RecordType::Aaaa,
                Some("SRV") => RecordType::Srv,
                Some("CNAME") => RecordType::Cname,
                _ => RecordType::A,
            },
            ttl: record["TTL"].as_u64().unwrap_or(0) as u32,
        })
        .collect();
    let check = &value["HealthCheckConfig"];
    Service {
        id: text(&value["Id"]),
        arn: text(&value["Arn"]),
        name: text(&value["Name"]),
        namespace_id: value["NamespaceId"].as_str().map(Into::into),
        description: value["Description"].as_str().map(str::to_owned),
        creator_request_id: value["CreatorRequestId"].as_str().map(str::to_owned),
        dns: (!records.is_empty())
            .then(|| DnsConfig { weighted: dns["RoutingPolicy"].as_str() == Some("WEIGHTED"), records }),
        custom_health_check: value["HealthCheckCustomConfig"].is_object(),
        health_check: check["Type"].as_str().map(|kind| HealthCheck {
            kind: kind.to_owned(),
            path: check["ResourcePath"].as_str().map(str::to_owned),
            failure_threshold: check["FailureThreshold"].as_i64().map(|threshold| threshold as i32),
        }),
        created: value["CreateDate"].as_f64().map_or(i64::MAX, |seconds| (seconds * 1000.0).round() as i64),
        instances: value["InstanceCount"].as_u64().and_then(|count| usize::try_from(count).ok()),
    }
}

pub(super) fn records(records: &[DnsRecord]) -> Value {
    records.iter().map(|record| json!({"Type": record.record_type.as_str(), "TTL": record.ttl})).collect()
}
