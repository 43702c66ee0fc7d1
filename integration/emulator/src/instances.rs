//! Instances: registered, changed and deregistered by asynchronous operations, one at a time for each instance.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::calls::Call;
use super::dns::check_srv_target;
use super::error::{Answer, ApiError};
use super::faults::Shaping;
use super::operations::Work;
use super::replicas::{Change, Row};
use super::requests::{Attributes, InstanceRequest, ListInstancesRequest, RegisterInstanceRequest};
use super::services::place;
use super::state::{Health, Instance, NamespaceType, Service};
use super::{CloudMap, paging, validate};

/// "The total size of all provided attributes (sum of all keys and values) must not exceed 5,000 characters."
const MAX_ATTRIBUTE_CHARACTERS: usize = 5000;

const KNOWN_ATTRIBUTES: [&str; 7] = [
    "AWS_ALIAS_DNS_NAME",
    "AWS_EC2_INSTANCE_ID",
    "AWS_INIT_HEALTH_STATUS",
    "AWS_INSTANCE_CNAME",
    "AWS_INSTANCE_IPV4",
    "AWS_INSTANCE_IPV6",
    "AWS_INSTANCE_PORT",
];

impl CloudMap {
    /// An upsert: "If you specify an existing `InstanceId` and `ServiceId`, Cloud Map updates the existing DNS records".
    /// The attributes given replace all earlier ones.
    pub(crate) fn register_instance(&mut self, call: &Call, request: RegisterInstanceRequest) -> Answer {
        validate::instance_id(&request.instance_id)?;
        validate::creator_request_id(request.creator_request_id.as_ref())?;
        let service = self.find_service("ServiceId", &request.service_id)?;
        let namespace = &self.namespaces[&service.namespace_id];
        let mut attributes = request.attributes.ok_or_else(|| ApiError::invalid("Attributes is required."))?;
        check_attributes(&attributes, self.settings.quotas.custom_attributes)?;
        check_required_attributes(service, namespace.r#type, &attributes)?;
        if let Some(number) = service.in_flight.get(&request.instance_id) {
            return Err(self.duplicate(*number));
        }
        let new = !service.instances.contains_key(&request.instance_id);
        if new {
            let quotas = self.settings.quotas;
            if service.instances.len() + service.arriving >= quotas.instances_per_service {
                let quota = quotas.instances_per_service;
                return Err(ApiError::limit_exceeded(format!(
                    "The quota of {quota} instances per service is reached."
                )));
            }
            if namespace.instance_count >= quotas.instances_per_namespace {
                let quota = quotas.instances_per_namespace;
                let message = format!("The quota of {quota} instances per namespace is reached.");
                return Err(ApiError::limit_exceeded(message));
            }
        }
        let health = match attributes.get("AWS_INIT_HEALTH_STATUS").map(String::as_str) {
            _ if !service.health_checked() => Health::Unknown,
            Some("UNHEALTHY") => Health::Unhealthy,
            _ => Health::Healthy,
        };
        // "The AWS_INSTANCE_IPV4 attribute will be filled out with the primary private IPv4 address."
        if let Some(machine) = attributes.get("AWS_EC2_INSTANCE_ID") {
            let [a, b] =
                machine.bytes().fold(0u16, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())).to_be_bytes();
            attributes.insert("AWS_INSTANCE_IPV4".to_owned(), format!("10.0.{a}.{b}"));
        }
        let instance = Instance {
            id: request.instance_id.clone(),
            creator_request_id: request.creator_request_id,
            attributes: Arc::new(attributes),
            health,
            caller: call.caller.to_owned(),
            created_by: call.guest.map(str::to_owned),
            next_health: None,
        };
        let id = service.id.clone();
        let work = Work::Register { service: id.clone(), instance: Box::new(instance) };
        // What Route 53 refuses is seen when the operation ends.
        let refused = service.has_record("SRV").then(|| {
            check_srv_target(&request.instance_id, &service.name, &namespace.name)
                .err()
                .map(|message| ("INVALID_CHANGE_BATCH".to_owned(), message))
        });
        let mut shaping: Shaping = call.shaping.clone();
        shaping.fail_operation = shaping.fail_operation.or(refused.flatten());
        let answer = self.submit_for_instance(&Call { shaping: &shaping, ..*call }, &id, &request.instance_id, work);
        if new && let Some(service) = self.services.get_mut(&id) {
            service.arriving += 1;
            if let Some(namespace) = self.namespaces.get_mut(&service.namespace_id) {
                namespace.instance_count += 1;
            }
        }
        Ok(answer)
    }

    pub(crate) fn finish_register(&mut self, id: &str, instance: Instance, failed: bool, at: Duration) {
        let revision = self.next_sequence();
        let Some(service) = self.services.get_mut(id) else { return };
        service.in_flight.remove(&instance.id);
        let new = !service.instances.contains_key(&instance.id);
        service.arriving -= usize::from(new);
        if failed {
            if new && let Some(namespace) = self.namespaces.get_mut(&service.namespace_id) {
                namespace.instance_count -= 1;
            }
            return;
        }
        if new || self.settings.revision_counts_updates {
            service.revision = revision;
        }
        let row = Row { attributes: Arc::clone(&instance.attributes), health: instance.health };
        let change =
            Change::PutInstance { at: place(service), instance: instance.id.clone(), row, revision: service.revision };
        service.instances.insert(instance.id.clone(), instance);
        self.replicate(at, &change);
    }

    pub(crate) fn deregister_instance(&mut self, call: &Call, request: &InstanceRequest) -> Answer {
        validate::required("InstanceId", &request.instance_id)?;
        validate::length("InstanceId", &request.instance_id, 64)?;
        let service = self.find_service("ServiceId", &request.service_id)?;
        if let Some(number) = service.in_flight.get(&request.instance_id) {
            return Err(self.duplicate(*number));
        }
        if !service.instances.contains_key(&request.instance_id) {
            return Err(ApiError::instance_not_found(&service.id, &request.instance_id));
        }
        let id = service.id.clone();
        let work = Work::Deregister { service: id.clone(), instance: request.instance_id.clone() };
        Ok(self.submit_for_instance(call, &id, &request.instance_id, work))
    }

    pub(crate) fn finish_deregister(&mut self, id: &str, instance: &str, failed: bool, at: Duration) {
        let revision = self.next_sequence();
        let Some(service) = self.services.get_mut(id) else { return };
        service.in_flight.remove(instance);
        if failed || service.instances.remove(instance).is_none() {
            return;
        }
        service.revision = revision;
        if let Some(namespace) = self.namespaces.get_mut(&service.namespace_id) {
            namespace.instance_count -= 1;
        }
        let change = Change::RemoveInstance { at: place(service), instance: instance.to_owned(), revision };
        self.replicate(at, &change);
    }

    fn submit_for_instance(&mut self, call: &Call, id: &str, instance: &str, work: Work) -> Value {
        let service = &self.services[id];
        let namespace = service.namespace_id.clone();
        let mut targets = vec![("INSTANCE", instance.to_owned()), ("SERVICE", id.to_owned())];
        if service.dns_config.is_some() {
            targets.push(("ROUTE_53_CHANGE_ID", format!("C{}", self.random_id(20).to_uppercase())));
        }
        let (number, answer) = self.submit(call, &namespace, targets, work);
        if let Some(service) = self.services.get_mut(id) {
            service.in_flight.insert(instance.to_owned(), number);
        }
        answer
    }

    pub(crate) fn get_instance(&self, request: &InstanceRequest) -> Answer {
        validate::required("InstanceId", &request.instance_id)?;
        validate::length("InstanceId", &request.instance_id, 64)?;
        let service = self.find_service("ServiceId", &request.service_id)?;
        let missing = || ApiError::instance_not_found(&service.id, &request.instance_id);
        let instance = service.instances.get(&request.instance_id).ok_or_else(missing)?;
        let mut members = self.describe_instance(instance);
        members["CreatorRequestId"] = json!(instance.creator_request_id);
        Ok(json!({ "ResourceOwner": self.settings.account, "Instance": members }))
    }

    pub(crate) fn list_instances(&self, request: &ListInstancesRequest) -> Answer {
        let size = validate::max_results(request.max_results, 100)?;
        let service = self.find_service("ServiceId", &request.service_id)?;
        let (page, next) = paging::page("ListInstances", &[&service.instances], size, request.next_token.as_ref())?;
        let found: Vec<_> = page.into_iter().map(|(_, instance)| self.describe_instance(instance)).collect();
        Ok(json!({ "ResourceOwner": self.settings.account, "Instances": found, "NextToken": next }))
    }

    fn describe_instance(&self, instance: &Instance) -> Value {
        let creator = instance.created_by.as_ref().unwrap_or(&self.settings.account);
        json!({ "Id": instance.id, "Attributes": *instance.attributes, "CreatedByAccount": creator })
    }
}

/// What holds for the attributes of any instance.
fn check_attributes(attributes: &Attributes, max_custom: usize) -> Answer<()> {
    validate::attribute_charset(attributes)?;
    let characters: usize = attributes.iter().map(|(key, value)| key.chars().count() + value.chars().count()).sum();
    if characters > MAX_ATTRIBUTE_CHARACTERS {
        return Err(ApiError::invalid(format!(
            "The attributes have {characters} characters in all; at most {MAX_ATTRIBUTE_CHARACTERS} are allowed."
        )));
    }
    let (reserved, custom): (Vec<_>, Vec<_>) = attributes.keys().partition(|key| key.starts_with("AWS_"));
    if let Some(unknown) = reserved.iter().find(|key| !KNOWN_ATTRIBUTES.contains(&key.as_str())) {
        return Err(ApiError::invalid(format!("{unknown} begins with AWS_ but is no attribute that Cloud Map knows.")));
    }
    if custom.len() > max_custom {
        let count = custom.len();
        return Err(ApiError::invalid(format!("{count} custom attributes are over the quota of {max_custom}.")));
    }
    let invalid = |key: &str, value: &str, what: &str| ApiError::invalid(format!("{key} {value} is not {what}."));
    for (key, value) in attributes {
        let wrong = match key.as_str() {
            "AWS_INSTANCE_IPV4" if value.parse::<Ipv4Addr>().is_err() => "an IPv4 address",
            "AWS_INSTANCE_IPV6" if value.parse::<Ipv6Addr>().is_err() => "an IPv6 address",
            "AWS_INSTANCE_PORT" if value.parse::<u16>().is_err() => "a port from 0 to 65535",
            "AWS_INIT_HEALTH_STATUS" if value != "HEALTHY" && value != "UNHEALTHY" => "HEALTHY or UNHEALTHY",
            "AWS_INSTANCE_CNAME" | "AWS_ALIAS_DNS_NAME" if value.is_empty() => "a domain name",
            "AWS_EC2_INSTANCE_ID" if !value.starts_with("i-") => "the ID of an EC2 instance",
            _ => continue,
        };
        return Err(invalid(key, value, wrong));
    }
    Ok(())
}

/// What the service's records, health check and namespace ask of the attributes, from the documentation of
/// `RegisterInstance`.
fn check_required_attributes(service: &Service, namespace: NamespaceType, attributes: &Attributes) -> Answer<()> {
    let has = |key: &str| attributes.contains_key(key);
    let invalid = |message: &str| Err(ApiError::invalid(message));
    if has("AWS_INIT_HEALTH_STATUS") && service.health_check_custom_config.is_none() {
        return invalid("AWS_INIT_HEALTH_STATUS can only be given for a service with HealthCheckCustomConfig.");
    }
    if has("AWS_EC2_INSTANCE_ID") {
        if namespace != NamespaceType::Http {
            return invalid("AWS_EC2_INSTANCE_ID can only be given in an HTTP namespace.");
        }
        if attributes.keys().any(|key| key != "AWS_EC2_INSTANCE_ID" && key != "AWS_INIT_HEALTH_STATUS") {
            return invalid("With AWS_EC2_INSTANCE_ID only AWS_INIT_HEALTH_STATUS can be given.");
        }
    }
    if has("AWS_ALIAS_DNS_NAME") {
        let weighted = service.dns_config.as_ref().is_some_and(|dns| dns.routing_policy.as_deref() == Some("WEIGHTED"));
        if !weighted || !(service.has_record("A") || service.has_record("AAAA")) {
            return invalid("AWS_ALIAS_DNS_NAME needs a service with A or AAAA records and RoutingPolicy WEIGHTED.");
        }
        if attributes.keys().any(|key| key.starts_with("AWS_INSTANCE_")) {
            return invalid("With AWS_ALIAS_DNS_NAME none of the AWS_INSTANCE attributes can be given.");
        }
        return Ok(());
    }
    for (record, attribute) in [
        ("A", "AWS_INSTANCE_IPV4"),
        ("AAAA", "AWS_INSTANCE_IPV6"),
        ("CNAME", "AWS_INSTANCE_CNAME"),
        ("SRV", "AWS_INSTANCE_PORT"),
    ] {
        if service.has_record(record) && !has(attribute) {
            return invalid(&format!("{attribute} is required, because the service has a record of type {record}."));
        }
    }
    if service.has_record("SRV") && !has("AWS_INSTANCE_IPV4") && !has("AWS_INSTANCE_IPV6") {
        return invalid(
            "AWS_INSTANCE_IPV4 or AWS_INSTANCE_IPV6 is required, because the service has a record of type SRV.",
        );
    }
    if service.health_check_config.is_some() && !has("AWS_INSTANCE_PORT") && !has("AWS_EC2_INSTANCE_ID") {
        return invalid("AWS_INSTANCE_PORT is required, because the service has a Route 53 health check.");
    }
    Ok(())
}
