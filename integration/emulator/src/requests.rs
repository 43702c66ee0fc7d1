//! The requests, as the AWS API model (2017-03-14) names their members. A missing required string reads as empty, which
//! the checks refuse; unknown members are ignored, as AWS does.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
    /// What IAM wants to know of any request.
    Authorized {
        id: String,
        namespace_id: String,
        dns_config: DnsNamespace,
        service_id: String,
        namespace_name: String,
        service_name: String,
        operation_id: String,
        #[serde(rename = "ResourceARN")]
        resource_arn: String,
        owner_account: Option<String>,
        tags: Vec<Tag>,
        tag_keys: Vec<String>,
    }
    DnsNamespace { namespace_id: String }
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

impl Authorized {
    /// The id or ARN of the namespace in which a service is to be.
    pub(crate) fn namespace(&self) -> &str {
        if self.namespace_id.is_empty() { &self.dns_config.namespace_id } else { &self.namespace_id }
    }

    /// The id or ARN of the service.
    pub(crate) fn service(&self) -> &str {
        if self.service_id.is_empty() { &self.id } else { &self.service_id }
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
