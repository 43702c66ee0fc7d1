//! The resources. Their serialised form is that of the snapshots of the control interface.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::requests::{Attributes, DnsConfig, HealthCheckConfig, HealthCheckCustomConfig};
use super::settings::millis;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum NamespaceType {
    Http,
    DnsPrivate,
    DnsPublic,
}

impl NamespaceType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::DnsPrivate => "DNS_PRIVATE",
            Self::DnsPublic => "DNS_PUBLIC",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Namespace {
    pub id: String,
    pub arn: String,
    pub name: String,
    pub r#type: NamespaceType,
    /// The name that the discovery calls take.
    pub http_name: String,
    pub description: Option<String>,
    pub creator_request_id: Option<String>,
    pub vpc: Option<String>,
    pub hosted_zone_id: Option<String>,
    pub soa_ttl: Option<i64>,
    pub tags: BTreeMap<String, String>,
    /// Since the Unix epoch.
    #[serde(rename = "created_ms", with = "millis")]
    pub created: Duration,
    /// Ids of services by name; in DNS namespaces by name in lower case, because there names "that differ only by case"
    /// are one name.
    #[serde(skip)]
    pub(crate) services: HashMap<String, String>,
    /// Registered instances and registrations under way, for the quota.
    #[serde(skip)]
    pub(crate) instance_count: usize,
    /// The operation under way on the namespace itself.
    #[serde(skip)]
    pub(crate) in_flight: Option<u64>,
}

impl Namespace {
    pub(crate) fn service_key(&self, name: &str) -> String {
        if self.r#type == NamespaceType::Http { name.to_owned() } else { name.to_ascii_lowercase() }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Service {
    pub id: String,
    pub arn: String,
    pub name: String,
    pub namespace_id: String,
    pub description: Option<String>,
    pub creator_request_id: Option<String>,
    pub dns_config: Option<DnsConfig>,
    pub health_check_config: Option<HealthCheckConfig>,
    pub health_check_custom_config: Option<HealthCheckCustomConfig>,
    /// `HTTP` or `DNS_HTTP`.
    pub r#type: String,
    /// The account that created it, if that is not the owner of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    pub attributes: Attributes,
    pub tags: BTreeMap<String, String>,
    #[serde(rename = "created_ms", with = "millis")]
    pub created: Duration,
    /// Moves when an instance is registered or deregistered, and never back.
    pub revision: u64,
    pub instances: BTreeMap<String, Instance>,
    /// The operation under way for each instance id: "One `RegisterInstance` request must complete before you can
    /// submit another request and specify the same service ID and instance ID."
    #[serde(skip)]
    pub(crate) in_flight: HashMap<String, u64>,
    /// How many of them register an instance that does not exist yet.
    #[serde(skip)]
    pub(crate) arriving: usize,
    #[serde(skip)]
    pub(crate) updating: Option<u64>,
}

impl Service {
    pub(crate) fn health_checked(&self) -> bool {
        self.health_check_config.is_some() || self.health_check_custom_config.is_some()
    }

    pub(crate) fn has_record(&self, kind: &str) -> bool {
        self.dns_config.as_ref().is_some_and(|dns| dns.dns_records.iter().any(|record| record.r#type == kind))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Health {
    Healthy,
    Unhealthy,
    /// The service has no health check.
    Unknown,
}

impl Health {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "HEALTHY",
            Self::Unhealthy => "UNHEALTHY",
            Self::Unknown => "UNKNOWN",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Instance {
    pub id: String,
    pub creator_request_id: Option<String>,
    #[serde(with = "shared")]
    pub attributes: Arc<Attributes>,
    pub health: Health,
    /// Who registered it last: the access key id.
    pub caller: String,
    /// The account that registered it last, if that is not the owner of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// A custom status that was sent and has not taken effect, and when it does.
    #[serde(skip)]
    pub(crate) next_health: Option<(Health, Duration)>,
}

/// All namespaces and services with their instances and attributes, as the control plane has them. Operations under way
/// and what lags behind are left out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    #[serde(default)]
    pub namespaces: Vec<Namespace>,
    #[serde(default)]
    pub services: Vec<Service>,
}

impl Snapshot {
    pub fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.name == name)
    }

    /// A service by the names of its namespace and of itself.
    pub fn service(&self, namespace: &str, service: &str) -> Option<&Service> {
        let namespace = self.namespace(namespace)?;
        self.services.iter().find(|found| found.namespace_id == namespace.id && found.name == service)
    }
}

/// An [`Arc`] as what it holds.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::requests::Attributes;

    pub(crate) fn serialize<S: Serializer>(attributes: &Arc<Attributes>, serializer: S) -> Result<S::Ok, S::Error> {
        (**attributes).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Attributes>, D::Error> {
        Attributes::deserialize(deserializer).map(Arc::new)
    }
}
