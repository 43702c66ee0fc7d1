//! Namespaces. All changes are asynchronous operations.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde_json::{Value, json};

use super::calls::Call;
use super::dns::Zone;
use super::error::{Answer, ApiError};
use super::operations::Work;
use super::replicas::Change;
use super::requests::{
    CreateNamespaceRequest, Filter, IdRequest, ListRequest, NamespaceChange, PropertiesChange, UpdateNamespaceRequest,
};
use super::services::namespace_arn;
use super::state::{Namespace, NamespaceType};
use super::{CloudMap, paging, tags, timestamp, validate};

impl CloudMap {
    /// A namespace of one type has a name once; a private one once for each VPC.
    ///
    /// For a private one, Route 53 finds it out, when the operation makes the hosted zone: it fails with
    /// `CANNOT_CREATE_HOSTED_ZONE`, as users of Terraform report ("The VPC ... has already been associated with the hosted
    /// zone ... with the same domain name"). Only for a repeated `CreatorRequestId`, `NamespaceAlreadyExists` is chosen here,
    /// which AWS documents without saying when.
    pub(crate) fn create_namespace(
        &mut self,
        call: &Call,
        kind: NamespaceType,
        request: CreateNamespaceRequest,
    ) -> Answer {
        validate::namespace_name(kind, &request.name)?;
        validate::creator_request_id(request.creator_request_id.as_ref())?;
        validate::description(request.description.as_ref())?;
        let tags = tags::collect(request.tags)?;
        if kind == NamespaceType::DnsPrivate {
            validate::required("Vpc", &request.vpc)?;
            validate::length("Vpc", &request.vpc, 64)?;
        }
        let soa_ttl = soa_ttl(request.properties.as_ref())?;
        let vpc = if kind == NamespaceType::DnsPrivate { request.vpc } else { String::new() };
        let key = (kind, request.name.clone(), vpc.clone());
        if let Some(number) = self.creating.get(&key) {
            return Err(self.duplicate(*number));
        }
        let existing = self.namespaces.values().find(|namespace| {
            namespace.r#type == kind
                && self.is_own(namespace)
                && namespace.name == request.name
                && namespace.vpc.as_deref().unwrap_or_default() == vpc
        });
        let is_repeated = |existing: &&Namespace| {
            request.creator_request_id.is_some() && existing.creator_request_id == request.creator_request_id
        };
        let refused = existing.filter(|existing| kind != NamespaceType::DnsPrivate || is_repeated(existing));
        if let Some(existing) = refused {
            let creator = existing.creator_request_id.clone().unwrap_or_default();
            return Err(ApiError::new("NamespaceAlreadyExists", "A namespace with this name exists already.")
                .with("NamespaceId", &existing.id)
                .with("CreatorRequestId", creator));
        }
        let conflict = existing.map(|existing| {
            let (region, zone) = (&self.settings.region, existing.hosted_zone_id.as_deref().unwrap_or_default());
            format!(
                "The VPC {vpc} in region {region} has already been associated with the hosted zone {zone} with the same domain \
                 name."
            )
        });
        let quota = self.settings.quotas.namespaces;
        if self.namespaces.len() + self.creating.len() >= quota {
            return Err(ApiError::limit_exceeded(format!("The quota of {quota} namespaces is reached.")));
        }
        let id = format!("ns-{}", self.random_id(16));
        // "If you reuse Name for namespace creation, a generated hash is added to HttpName to distinguish the two."
        let taken = self.namespaces.values().any(|namespace| namespace.http_name == request.name)
            || self.creating.keys().any(|(_, name, _)| *name == request.name);
        let http_name = if taken { format!("{}-{}", request.name, self.random_id(8)) } else { request.name.clone() };
        let dns = kind != NamespaceType::Http;
        let namespace = Namespace {
            arn: self.arn("namespace", &id),
            id: id.clone(),
            name: request.name,
            r#type: kind,
            http_name,
            description: request.description,
            creator_request_id: request.creator_request_id,
            vpc: dns.then_some(vpc).filter(|vpc| !vpc.is_empty()),
            hosted_zone_id: dns.then(|| format!("Z{}", self.random_id(20).to_uppercase())),
            // Route 53 gives the SOA record of a new zone 15 minutes.
            soa_ttl: dns.then(|| soa_ttl.unwrap_or(900)),
            tags,
            created: call.now,
            services: HashMap::new(),
            instance_count: 0,
            in_flight: None,
        };
        let work = Work::CreateNamespace(Box::new(namespace));
        let (number, answer) = self.submit(call, &id, [("NAMESPACE", id.clone())], work);
        if let Some(message) = conflict {
            self.operations.fail(number, "CANNOT_CREATE_HOSTED_ZONE", message);
        }
        self.creating.insert(key, number);
        Ok(answer)
    }

    pub(crate) fn finish_create_namespace(&mut self, namespace: Namespace, failed: bool, at: Duration) {
        let vpc = namespace.vpc.clone().unwrap_or_default();
        self.creating.remove(&(namespace.r#type, namespace.name.clone(), vpc));
        if !failed {
            let change = add_namespace(&namespace);
            self.namespaces.insert(namespace.id.clone(), namespace);
            self.replicate(at, &change);
        }
    }

    pub(crate) fn update_namespace(
        &mut self,
        call: &Call,
        kind: NamespaceType,
        request: UpdateNamespaceRequest,
    ) -> Answer {
        let id = self.find_namespace("Id", &request.id)?.id.clone();
        let namespace = &self.namespaces[&id];
        if namespace.r#type != kind {
            let found = namespace.r#type.name();
            return Err(ApiError::invalid(format!("Namespace {id} is of type {found}, not {}.", kind.name())));
        }
        let change = request.namespace.ok_or_else(|| ApiError::invalid("Namespace is required."))?;
        if kind == NamespaceType::Http && change.description.is_none() {
            return Err(ApiError::invalid("Namespace.Description is required."));
        }
        validate::description(change.description.as_ref())?;
        soa_ttl(change.properties.as_ref())?;
        if let Some(number) = namespace.in_flight {
            return Err(self.duplicate(number));
        }
        let work = Work::UpdateNamespace { id: id.clone(), change };
        Ok(self.submit_for_namespace(call, &id, work))
    }

    pub(crate) fn finish_update_namespace(&mut self, id: &str, change: NamespaceChange, failed: bool, at: Duration) {
        let Some(namespace) = self.namespaces.get_mut(id) else { return };
        namespace.in_flight = None;
        if failed {
            return;
        }
        if change.description.is_some() {
            namespace.description = change.description;
        }
        let ttl = change.properties.and_then(|properties| properties.dns_properties?.soa?.ttl);
        if namespace.r#type != NamespaceType::Http && ttl.is_some() {
            namespace.soa_ttl = ttl;
            if let Some(zone) = Zone::of(namespace) {
                let http_name = namespace.http_name.clone();
                let change = Change::SetSoaTtl { http_name, id: id.to_owned(), ttl: zone.soa_ttl };
                self.replicate(at, &change);
            }
        }
    }

    /// "If the namespace still contains one or more services, the request fails."
    pub(crate) fn delete_namespace(&mut self, call: &Call, request: &IdRequest) -> Answer {
        let namespace = self.find_namespace("Id", &request.id)?;
        let id = namespace.id.clone();
        if let Some(number) = namespace.in_flight {
            return Err(self.duplicate(number));
        }
        if !namespace.services.is_empty() {
            let count = namespace.services.len();
            return Err(ApiError::resource_in_use(format!("Namespace {id} still contains {count} service(s).")));
        }
        Ok(self.submit_for_namespace(call, &id, Work::DeleteNamespace { id: id.clone() }))
    }

    pub(crate) fn finish_delete_namespace(&mut self, id: &str, failed: bool, at: Duration) {
        let Some(namespace) = self.namespaces.get_mut(id) else { return };
        namespace.in_flight = None;
        if !failed {
            let change = Change::RemoveNamespace { http_name: namespace.http_name.clone(), id: id.to_owned() };
            self.namespaces.remove(id);
            self.replicate(at, &change);
        }
    }

    fn submit_for_namespace(&mut self, call: &Call, id: &str, work: Work) -> Value {
        let (number, answer) = self.submit(call, id, [("NAMESPACE", id.to_owned())], work);
        if let Some(namespace) = self.namespaces.get_mut(id) {
            namespace.in_flight = Some(number);
        }
        answer
    }

    pub(crate) fn get_namespace(&self, request: &IdRequest) -> Answer {
        let namespace = self.find_namespace("Id", &request.id)?;
        let mut members = Self::describe_namespace(namespace);
        members["CreatorRequestId"] = json!(namespace.creator_request_id);
        Ok(json!({ "Namespace": members }))
    }

    /// Filtered after paging, as [`Self::list_services`].
    pub(crate) fn list_namespaces(&self, request: &ListRequest) -> Answer {
        const TEXT: &[&str] = &["EQ", "BEGINS_WITH"];
        const FILTERS: &[(&str, &[&str])] =
            &[("TYPE", TEXT), ("NAME", TEXT), ("HTTP_NAME", TEXT), ("RESOURCE_OWNER", &["EQ"])];
        let size = validate::max_results(request.max_results, 100)?;
        request.filters.iter().try_for_each(|filter| validate::filter(filter, FILTERS))?;
        let all = [&self.namespaces, &self.shared.namespaces];
        let (page, next) = paging::page("ListNamespaces", &all, size, request.next_token.as_ref())?;
        let found: Vec<_> = page
            .into_iter()
            .filter(|(_, namespace)| {
                request.filters.iter().all(|filter| matches(namespace, filter, self.is_own(namespace)))
            })
            .map(|(_, namespace)| Self::describe_namespace(namespace))
            .collect();
        Ok(json!({ "Namespaces": found, "NextToken": next }))
    }

    /// A namespace by id or ARN.
    pub(crate) fn find_namespace(&self, field: &str, id_or_arn: &str) -> Answer<&Namespace> {
        validate::id(field, id_or_arn)?;
        self.resource_id("namespace", id_or_arn)
            .and_then(|id| self.namespaces.get(id))
            .ok_or_else(|| ApiError::namespace_not_found(id_or_arn))
    }

    /// Whether it is not only shared with this account.
    fn is_own(&self, namespace: &Namespace) -> bool {
        owner(namespace) == self.settings.account
    }

    fn describe_namespace(namespace: &Namespace) -> Value {
        let soa = namespace.soa_ttl.map(|ttl| json!({ "TTL": ttl }));
        json!({
            "Id": namespace.id,
            "Arn": namespace.arn,
            "ResourceOwner": owner(namespace),
            "Name": namespace.name,
            "Type": namespace.r#type.name(),
            "Description": namespace.description,
            "ServiceCount": namespace.services.len(),
            "Properties": {
                "DnsProperties": { "HostedZoneId": namespace.hosted_zone_id, "SOA": soa },
                "HttpProperties": { "HttpName": namespace.http_name },
            },
            "CreateDate": timestamp(namespace.created),
        })
    }
}

/// How the replicas learn of a namespace.
pub(crate) fn add_namespace(namespace: &Namespace) -> Change {
    Change::AddNamespace { http_name: namespace.http_name.clone(), id: namespace.id.clone(), zone: Zone::of(namespace) }
}

/// The account in the ARN: a snapshot may have namespaces that another one shares with this (AWS RAM).
fn owner(namespace: &Namespace) -> &str {
    namespace.arn.split(':').nth(4).unwrap_or_default()
}

fn matches(namespace: &Namespace, filter: &Filter, own: bool) -> bool {
    let value = filter.values[0].as_str();
    let field = match filter.name.as_str() {
        "TYPE" => namespace.r#type.name(),
        "NAME" => &namespace.name,
        "HTTP_NAME" => &namespace.http_name,
        _ => return value == if own { "SELF" } else { "OTHER_ACCOUNTS" },
    };
    if filter.condition.as_deref() == Some("BEGINS_WITH") { field.starts_with(value) } else { field == value }
}

fn soa_ttl(properties: Option<&PropertiesChange>) -> Answer<Option<i64>> {
    let Some(properties) = properties else { return Ok(None) };
    let ttl = properties.dns_properties.as_ref().and_then(|dns| dns.soa.as_ref()?.ttl);
    let ttl = ttl.ok_or_else(|| ApiError::invalid("Properties.DnsProperties.SOA.TTL is required."))?;
    validate::ttl(ttl)?;
    Ok(Some(ttl))
}

impl CloudMap {
    /// The ARN of the namespace that the ARN of a namespace or service leads to.
    pub(crate) fn namespace_of(&self, arn: &str) -> Option<String> {
        let namespace = self.resource_id("namespace", arn).and_then(|id| self.namespaces.get(id));
        let service = || self.services.get(self.resource_id("service", arn)?);
        namespace.map(|namespace| namespace.arn.clone()).or_else(|| service().map(namespace_arn))
    }

    /// Whether the namespace is being deleted: nothing can be created in it any more.
    pub(crate) fn is_leaving(&self, namespace: &Namespace) -> bool {
        let work = namespace.in_flight.and_then(|number| self.operations.work(number));
        matches!(work, Some(Work::DeleteNamespace { .. }))
    }

    /// The tags of a namespace or service by its ARN.
    pub(crate) fn tags_mut(&mut self, arn: &str) -> Answer<&mut BTreeMap<String, String>> {
        validate::required("ResourceARN", arn)?;
        validate::length("ResourceARN", arn, 1011)?;
        let missing = || ApiError::resource_not_found(arn);
        if !arn.starts_with("arn:") {
            return Err(ApiError::invalid(format!("{arn} is not an ARN.")));
        }
        if let Some(id) = self.resource_id("namespace", arn) {
            let namespace = self.namespaces.get_mut(id).ok_or_else(missing)?;
            return Ok(&mut namespace.tags);
        }
        let id = self.resource_id("service", arn).ok_or_else(missing)?;
        let service = self.services.get_mut(id).ok_or_else(missing)?;
        Ok(&mut service.tags)
    }
}
