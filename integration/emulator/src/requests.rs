//! The requests, as the AWS API model (2017-03-14) names their members. A missing required string reads as empty, which
//! the checks refuse; unknown members are ignored, as AWS does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) type Attributes = BTreeMap<String, String>;

macro_rules! request {
    ($($(#[$meta:meta])* $name:ident { $($(#[$member:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "PascalCase", default)]
        pub(crate) struct $name { $($(#[$member])* pub(crate) $field: $type),* }
    )*};
}

request! {
    /// All three `Create*Namespace` requests.
    CreateNamespaceRequest {
        name: String,
        creator_request_id: Option<String>,
        description: Option<String>,
        tags: Vec<Tag>,
        vpc: String,
        properties: Option<PropertiesChange>,
    }
    PropertiesChange { dns_properties: Option<DnsPropertiesChange> }
    DnsPropertiesChange { #[serde(rename = "SOA")] soa: Option<SoaChange> }
    SoaChange { #[serde(rename = "TTL")] ttl: Option<i64> }
    /// All three `Update*Namespace` requests.
    UpdateNamespaceRequest { id: String, namespace: Option<NamespaceChange> }
    NamespaceChange { description: Option<String>, properties: Option<PropertiesChange> }
    /// `Get*` and `Delete*` of namespaces and services.
    IdRequest { id: String }
    CreateServiceRequest {
        name: String,
        namespace_id: Option<String>,
        creator_request_id: Option<String>,
        description: Option<String>,
        dns_config: Option<DnsConfig>,
        health_check_config: Option<HealthCheckConfig>,
        health_check_custom_config: Option<HealthCheckCustomConfig>,
        tags: Vec<Tag>,
        r#type: Option<String>,
    }
    UpdateServiceRequest { id: String, service: Option<ServiceChange> }
    ServiceChange {
        description: Option<String>,
        dns_config: Option<DnsConfig>,
        health_check_config: Option<HealthCheckConfig>,
    }
    RegisterInstanceRequest {
        service_id: String,
        instance_id: String,
        creator_request_id: Option<String>,
        attributes: Option<Attributes>,
    }
    /// `DeregisterInstance` and `GetInstance`.
    InstanceRequest { service_id: String, instance_id: String }
    UpdateHealthRequest { service_id: String, instance_id: String, status: String }
    HealthStatusRequest {
        service_id: String,
        instances: Option<Vec<String>>,
        max_results: Option<i64>,
        next_token: Option<String>,
    }
    ListInstancesRequest { service_id: String, max_results: Option<i64>, next_token: Option<String> }
    /// `ListNamespaces`, `ListServices` and `ListOperations`.
    ListRequest { max_results: Option<i64>, next_token: Option<String>, filters: Vec<Filter> }
    Filter { name: String, values: Vec<String>, condition: Option<String> }
    DiscoverRequest {
        namespace_name: String,
        service_name: String,
        max_results: Option<i64>,
        query_parameters: Attributes,
        optional_parameters: Attributes,
        health_status: Option<String>,
        owner_account: Option<String>,
    }
    GetOperationRequest { operation_id: String, owner_account: Option<String> }
    ServiceRequest { service_id: String }
    UpdateServiceAttributesRequest { service_id: String, attributes: Attributes }
    DeleteServiceAttributesRequest { service_id: String, attributes: Vec<String> }
    TagResourceRequest { #[serde(rename = "ResourceARN")] resource_arn: String, tags: Vec<Tag> }
    UntagResourceRequest { #[serde(rename = "ResourceARN")] resource_arn: String, tag_keys: Vec<String> }
    ListTagsRequest { #[serde(rename = "ResourceARN")] resource_arn: String }
    /// What fault rules and the write log want to know of any request.
    Subject {
        id: String,
        name: String,
        service_id: String,
        service_name: String,
        namespace_id: String,
        namespace_name: String,
        instance_id: String,
        #[serde(rename = "ResourceARN")]
        resource_arn: String,
        attributes: serde_json::Value,
    }
}

/// What IAM and shares want to know of a request: ids, names and tags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Authorized {
    /// Ids or ARNs: of the namespace that the call is about or in which something is to be, of the service, and of whatever
    /// has tags.
    pub(crate) namespace: String,
    pub(crate) service: String,
    pub(crate) tagged: String,
    pub(crate) namespace_name: String,
    pub(crate) service_name: String,
    pub(crate) operation: String,
    pub(crate) owner_account: Option<String>,
    pub(crate) tags: Vec<Tag>,
    pub(crate) tag_keys: Vec<String>,
}

impl Authorized {
    /// From what the operation takes: whatever else a request has is ignored, and must not be what is allowed.
    pub(crate) fn of(operation: &str, body: &[u8]) -> Self {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let none = Self::default();
        let tags = || serde_json::from_value(body["Tags"].clone()).unwrap_or_default();
        let owner_account = || body["OwnerAccount"].as_str().map(str::to_owned);
        match operation {
            "CreateHttpNamespace" | "CreatePrivateDnsNamespace" | "CreatePublicDnsNamespace" => {
                Self { tags: tags(), ..none }
            }
            "CreateService" => {
                let legacy = || body["DnsConfig"]["NamespaceId"].as_str().unwrap_or_default().to_owned();
                let named = text("NamespaceId");
                Self { namespace: if named.is_empty() { legacy() } else { named }, tags: tags(), ..none }
            }
            "DeleteService" | "GetService" | "UpdateService" => Self { service: text("Id"), ..none },
            "DiscoverInstances" | "DiscoverInstancesRevision" => Self {
                namespace_name: text("NamespaceName"),
                service_name: text("ServiceName"),
                owner_account: owner_account(),
                ..none
            },
            "GetOperation" => Self { operation: text("OperationId"), owner_account: owner_account(), ..none },
            "ListTagsForResource" | "TagResource" | "UntagResource" => Self {
                tagged: text("ResourceARN"),
                tags: tags(),
                tag_keys: serde_json::from_value(body["TagKeys"].clone()).unwrap_or_default(),
                ..none
            },
            operation if operation.ends_with("Namespace") => Self { namespace: text("Id"), ..none },
            _ => Self { service: text("ServiceId"), ..none },
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Tag {
    pub key: String,
    #[serde(default)]
    pub value: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DnsConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_policy: Option<String>,
    #[serde(default)]
    pub dns_records: Vec<DnsRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DnsRecord {
    pub r#type: String,
    #[serde(rename = "TTL")]
    pub ttl: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct HealthCheckConfig {
    pub r#type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_threshold: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct HealthCheckCustomConfig {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_threshold: Option<i64>,
}
