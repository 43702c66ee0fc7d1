//! Services. Creation and deletion take effect at once; updates are asynchronous operations.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Value, json};

use super::calls::Call;
use super::error::{Answer, ApiError};
use super::operations::Work;
use super::replicas::{Change, ServicePath, View};
use super::requests::{
    Attributes, CreateServiceRequest, DnsConfig, HealthCheckConfig, HealthCheckCustomConfig, IdRequest, ListRequest,
    ServiceChange, UpdateServiceRequest,
};
use super::settings::RepeatedCreate;
use super::state::{Health, Namespace, NamespaceType, Service};
use super::sts::account_of;
use super::{CloudMap, paging, tags, timestamp, validate};

impl CloudMap {
    pub(crate) fn create_service(&mut self, call: &Call, request: CreateServiceRequest) -> Answer {
        validate::service_name(&request.name)?;
        validate::creator_request_id(request.creator_request_id.as_ref())?;
        validate::description(request.description.as_ref())?;
        let tags = tags::collect(request.tags)?;
        let legacy = request.dns_config.as_ref().and_then(|dns| dns.namespace_id.as_ref());
        let namespace_id = request.namespace_id.as_ref().or(legacy).map_or("", String::as_str);
        let namespace = self.find_namespace("NamespaceId", namespace_id)?;
        if self.is_leaving(namespace) {
            return Err(ApiError::namespace_not_found(namespace_id));
        }
        let api_only = match request.r#type.as_deref() {
            None => namespace.r#type == NamespaceType::Http,
            Some("HTTP") => true,
            Some(other) => return Err(ApiError::invalid(format!("Type {other} is not valid; it can only be HTTP."))),
        };
        let dns_config = check_dns_config(api_only, request.dns_config)?;
        let health_check_config = request.health_check_config.map(check_health_check).transpose()?;
        check_health_config(namespace, dns_config.as_ref(), health_check_config.as_ref())?;
        if health_check_config.is_some() && request.health_check_custom_config.is_some() {
            return Err(ApiError::invalid("HealthCheckConfig and HealthCheckCustomConfig can't be given both."));
        }
        // "This parameter is no longer supported and is always set to 1."
        let health_check_custom_config =
            request.health_check_custom_config.map(|_| HealthCheckCustomConfig { failure_threshold: Some(1) });

        let key = namespace.service_key(&request.name);
        let namespace_id = namespace.id.clone();
        if let Some(existing) = namespace.services.get(&key).and_then(|id| self.services.get(id)) {
            return self.create_again(existing, request.creator_request_id.as_ref());
        }
        let retired = self.retired.remove(&(namespace_id.clone(), request.name.clone()));
        let id = retired.unwrap_or_else(|| format!("srv-{}", self.random_id(16)));
        let service = Service {
            arn: self.arn("service", &id),
            id: id.clone(),
            name: request.name,
            namespace_id,
            description: request.description,
            creator_request_id: request.creator_request_id,
            dns_config,
            health_check_config,
            health_check_custom_config,
            r#type: if api_only { "HTTP" } else { "DNS_HTTP" }.to_owned(),
            created_by: call.guest.map(str::to_owned),
            attributes: Attributes::new(),
            tags,
            created: call.now,
            revision: self.next_sequence(),
            instances: BTreeMap::new(),
            in_flight: HashMap::new(),
            arriving: 0,
            updating: None,
        };
        let answer = json!({ "Service": Self::describe_service(&service, true) });
        if let Some(namespace) = self.namespaces.get_mut(&service.namespace_id) {
            namespace.services.insert(key, id.clone());
        }
        let change = add_service(&service);
        self.services.insert(id.clone(), service);
        self.replicate(call.now, &change);
        Ok(answer)
    }

    fn create_again(&self, existing: &Service, creator: Option<&String>) -> Answer {
        let same = creator.is_some() && creator == existing.creator_request_id.as_ref();
        if same && self.settings.repeated_create == RepeatedCreate::Success {
            return Ok(json!({ "Service": Self::describe_service(existing, true) }));
        }
        Err(ApiError::new("ServiceAlreadyExists", "Service already exists.")
            .with("CreatorRequestId", existing.creator_request_id.clone().unwrap_or_default())
            .with("ServiceId", &existing.id)
            .with("ServiceArn", &existing.arn))
    }

    pub(crate) fn update_service(&mut self, call: &Call, request: UpdateServiceRequest) -> Answer {
        let service = self.find_service("Id", &request.id)?;
        let change = request.service.ok_or_else(|| ApiError::invalid("Service is required."))?;
        validate::description(change.description.as_ref())?;
        let namespace = self.find_namespace("NamespaceId", &service.namespace_id)?;
        if namespace.r#type == NamespaceType::Http {
            return Err(ApiError::invalid(
                "You can't call UpdateService when the service is associated with an HTTP namespace.",
            ));
        }
        // "When the service is associated with a shared namespace and contains instances that were registered by Amazon Web
        // Services accounts other than the account making the UpdateService call"
        if service.instances.values().any(|instance| instance.created_by.as_deref() != call.guest) {
            return Err(ApiError::invalid("The service contains instances that other accounts registered."));
        }
        if let Some(dns) = &change.dns_config {
            for record in &dns.dns_records {
                validate::ttl(record.ttl)?;
                let same = dns.dns_records.iter().filter(|other| other.r#type == record.r#type).count();
                if same > 1 {
                    return Err(ApiError::invalid(format!("Record type {} was given twice.", record.r#type)));
                }
                if !service.has_record(&record.r#type) {
                    let kind = &record.r#type;
                    return Err(ApiError::invalid(format!("Record type {kind} can't be added to a service.")));
                }
            }
        }
        if change.health_check_config.is_some() && service.health_check_custom_config.is_some() {
            return Err(ApiError::invalid("HealthCheckConfig and HealthCheckCustomConfig can't be given both."));
        }
        let health_check_config = change.health_check_config.map(check_health_check).transpose()?;
        check_health_config(namespace, change.dns_config.as_ref(), health_check_config.as_ref())?;
        if let (Some(old), Some(new)) = (&service.health_check_config, &health_check_config)
            && old.r#type != new.r#type
        {
            return Err(ApiError::invalid("The type of a health check can't be changed."));
        }
        if let Some(number) = service.updating {
            return Err(self.duplicate(number));
        }
        let (id, namespace) = (service.id.clone(), namespace.id.clone());
        let work = Work::UpdateService { id: id.clone(), change: ServiceChange { health_check_config, ..change } };
        let (number, answer) = self.submit(call, &namespace, [("SERVICE", id.clone())], work);
        if let Some(service) = self.services.get_mut(&id) {
            service.updating = Some(number);
        }
        Ok(answer)
    }

    /// "If you omit any existing `DnsRecords` or `HealthCheckConfig` configurations [...], the configurations are deleted
    /// from the service."
    pub(crate) fn finish_update_service(&mut self, id: &str, change: ServiceChange, failed: bool, at: Duration) {
        let Some(service) = self.services.get_mut(id) else { return };
        service.updating = None;
        if failed {
            return;
        }
        if change.description.is_some() {
            service.description = change.description;
        }
        let records = change.dns_config.map(|dns| dns.dns_records).unwrap_or_default();
        service.dns_config = service
            .dns_config
            .take()
            .filter(|_| !records.is_empty())
            .map(|dns| DnsConfig { dns_records: records, ..dns });
        let (at_place, dns) = (place(service), service.dns_config.clone());
        let was_checked = service.health_checked();
        service.health_check_config = change.health_check_config;
        let health_checked = service.health_checked();
        if was_checked != health_checked {
            let health = if health_checked { Health::Healthy } else { Health::Unknown };
            service.instances.values_mut().for_each(|instance| instance.health = health);
            self.replicate(at, &Change::SetHealthChecked { at: at_place.clone(), health_checked });
        }
        self.replicate(at, &Change::SetDns { at: at_place, dns });
    }

    pub(crate) fn get_service(&self, request: &IdRequest) -> Answer {
        let service = self.find_service("Id", &request.id)?;
        Ok(json!({ "Service": Self::describe_service(service, true) }))
    }

    /// "If the service still contains one or more registered instances, the request fails." So it does while one is on
    /// its way in or out.
    pub(crate) fn delete_service(&mut self, call: &Call, request: &IdRequest) -> Answer {
        let service = self.find_service("Id", &request.id)?;
        let id = service.id.clone();
        if !service.instances.is_empty() || !service.in_flight.is_empty() {
            return Err(ApiError::resource_in_use(format!("Service {id} contains registered instances.")));
        }
        let change = Change::RemoveService { at: place(service) };
        self.replicate(call.now, &change);
        if let Some(service) = self.services.remove(&id) {
            if let Some(namespace) = self.namespaces.get_mut(&service.namespace_id) {
                namespace.services.remove(&namespace.service_key(&service.name));
            }
            if self.settings.reuse_service_ids {
                self.retired.insert((service.namespace_id, service.name), id);
            }
        }
        Ok(json!({}))
    }

    /// "Cloud Map gets `MaxResults` services and then filters them", so that pages can be empty though more follow.
    pub(crate) fn list_services(&self, request: &ListRequest) -> Answer {
        const FILTERS: &[(&str, &[&str])] = &[("NAMESPACE_ID", &["EQ"]), ("RESOURCE_OWNER", &["EQ"])];
        let size = validate::max_results(request.max_results, 100)?;
        request.filters.iter().try_for_each(|filter| validate::filter(filter, FILTERS))?;
        let own = |service: &Service| account_of(&service.arn) == self.settings.account;
        let all = [&self.services, &self.shared.services];
        let (page, next) = paging::page("ListServices", &all, size, request.next_token.as_ref())?;
        let found: Vec<_> = page
            .into_iter()
            .filter(|(_, service)| {
                request.filters.iter().all(|filter| match filter.name.as_str() {
                    // "For namespaces shared with your account, specify the namespace ARN."
                    "NAMESPACE_ID" if filter.values[0].starts_with("arn:") => {
                        filter.values[0] == namespace_arn(service)
                    }
                    "NAMESPACE_ID" => own(service) && filter.values[0] == service.namespace_id,
                    _ => filter.values[0] == if own(service) { "SELF" } else { "OTHER_ACCOUNTS" },
                })
            })
            .map(|(_, service)| Self::describe_service(service, false))
            .collect();
        Ok(json!({ "Services": found, "NextToken": next }))
    }

    /// A service by id or ARN.
    pub(crate) fn find_service(&self, field: &str, id_or_arn: &str) -> Answer<&Service> {
        validate::id(field, id_or_arn)?;
        self.resource_id("service", id_or_arn)
            .and_then(|id| self.services.get(id))
            .ok_or_else(|| ApiError::service_not_found(id_or_arn))
    }

    pub(crate) fn find_service_mut(&mut self, field: &str, id_or_arn: &str) -> Answer<&mut Service> {
        let id = self.find_service(field, id_or_arn)?.id.clone();
        self.services.get_mut(&id).ok_or_else(|| ApiError::service_not_found(id_or_arn))
    }

    /// `ServiceSummary` has no `NamespaceId` and no `CreatorRequestId`; `Service` has.
    fn describe_service(service: &Service, whole: bool) -> Value {
        let owner = account_of(&service.arn);
        let mut members = json!({
            "Id": service.id,
            "Arn": service.arn,
            "ResourceOwner": owner,
            "CreatedByAccount": service.created_by.as_deref().unwrap_or(owner),
            "Name": service.name,
            "Type": service.r#type,
            "Description": service.description,
            "InstanceCount": service.instances.len(),
            "DnsConfig": service.dns_config,
            "HealthCheckConfig": service.health_check_config,
            "HealthCheckCustomConfig": service.health_check_custom_config,
            "CreateDate": timestamp(service.created),
        });
        if whole {
            members["NamespaceId"] = json!(service.namespace_id);
            members["CreatorRequestId"] = json!(service.creator_request_id);
            if service.dns_config.is_some() {
                members["DnsConfig"]["NamespaceId"] = json!(service.namespace_id);
            }
        }
        members
    }
}

/// The ARN of the namespace that a service is in: they have one owner.
pub(crate) fn namespace_arn(service: &Service) -> String {
    let registry = service.arn.rsplit_once(':').map_or("", |(registry, _)| registry);
    format!("{registry}:namespace/{}", service.namespace_id)
}

/// Where the discovery side has the service.
pub(crate) fn place(service: &Service) -> ServicePath {
    ServicePath { namespace: service.namespace_id.clone(), name: service.name.clone(), service: service.id.clone() }
}

pub(crate) fn add_service(service: &Service) -> Change {
    let view = View {
        service: service.id.clone(),
        health_checked: service.health_checked(),
        dns: service.dns_config.clone(),
        instances: BTreeMap::new(),
        revision: service.revision,
    };
    Change::AddService { namespace: service.namespace_id.clone(), name: service.name.clone(), view }
}

/// The combinations "A, AAAA, A and AAAA, SRV, CNAME"; CNAME only `WEIGHTED`. A service that DNS queries find needs
/// records, and one that they don't has none.
///
/// A and SRV are accepted too, though the API model does not list them: the documentation of ECS service discovery says
/// "you can create any combination of A or SRV records for each service task", AWS Copilot creates its services with both,
/// and a user reports that ECS's console did (aws/aws-cdk, issue 18894). Nothing says that AAAA and SRV are.
fn check_dns_config(api_only: bool, dns: Option<DnsConfig>) -> Answer<Option<DnsConfig>> {
    let Some(dns) = dns else {
        if api_only {
            return Ok(None);
        }
        return Err(ApiError::invalid("DnsConfig is required in a DNS namespace, unless Type is HTTP."));
    };
    if api_only {
        return Err(ApiError::invalid("DnsConfig can't be given for a service that is only found by API calls."));
    }
    let mut kinds: Vec<&str> = dns.dns_records.iter().map(|record| record.r#type.as_str()).collect();
    kinds.sort_unstable();
    if !matches!(kinds[..], ["A" | "AAAA" | "SRV" | "CNAME"] | ["A", "AAAA" | "SRV"]) {
        let given = kinds.join(", ");
        return Err(ApiError::invalid(format!(
            "DnsRecords [{given}] must be A, AAAA, A and AAAA, A and SRV, SRV, or CNAME."
        )));
    }
    dns.dns_records.iter().try_for_each(|record| validate::ttl(record.ttl))?;
    let policy = dns.routing_policy.unwrap_or_else(|| "MULTIVALUE".to_owned());
    if !matches!(policy.as_str(), "MULTIVALUE" | "WEIGHTED") {
        return Err(ApiError::invalid(format!("RoutingPolicy {policy} must be MULTIVALUE or WEIGHTED.")));
    }
    if kinds == ["CNAME"] && policy != "WEIGHTED" {
        return Err(ApiError::invalid("RoutingPolicy must be WEIGHTED for a CNAME record."));
    }
    Ok(Some(DnsConfig { namespace_id: None, routing_policy: Some(policy), dns_records: dns.dns_records }))
}

fn check_health_check(check: HealthCheckConfig) -> Answer<HealthCheckConfig> {
    let HealthCheckConfig { r#type, resource_path, failure_threshold } = check;
    let resource_path = match (r#type.as_str(), resource_path) {
        ("TCP", Some(_)) => return Err(ApiError::invalid("ResourcePath can't be given for type TCP.")),
        ("TCP", None) => None,
        // "If you don't specify a value for ResourcePath, the default value is /."
        ("HTTP" | "HTTPS", path) => Some(path.unwrap_or_else(|| "/".to_owned())),
        (other, _) => return Err(ApiError::invalid(format!("Type {other} must be HTTP, HTTPS or TCP."))),
    };
    validate::length("ResourcePath", resource_path.as_deref().unwrap_or_default(), 255)?;
    let threshold = failure_threshold.unwrap_or(1);
    if !(1..=10).contains(&threshold) {
        return Err(ApiError::invalid(format!("FailureThreshold {threshold} is out of range 1 to 10.")));
    }
    Ok(HealthCheckConfig { r#type, resource_path, failure_threshold: Some(threshold) })
}

/// "Public DNS and HTTP namespaces only." And: "You can't specify both CNAME for Type and settings for
/// `HealthCheckConfig`."
fn check_health_config(
    namespace: &Namespace,
    dns: Option<&DnsConfig>,
    health_check: Option<&HealthCheckConfig>,
) -> Answer<()> {
    if health_check.is_none() {
        return Ok(());
    }
    if namespace.r#type == NamespaceType::DnsPrivate {
        return Err(ApiError::invalid("HealthCheckConfig can't be given in a private DNS namespace."));
    }
    if dns.is_some_and(|dns| dns.dns_records.iter().any(|record| record.r#type == "CNAME")) {
        return Err(ApiError::invalid("HealthCheckConfig can't be given with a CNAME record."));
    }
    Ok(())
}
