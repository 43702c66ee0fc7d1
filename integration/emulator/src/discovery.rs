//! Discovery: what a replica, which may lag behind, knows of a service by the names of its namespace and itself.

use std::sync::Arc;

use rand::RngExt;
use rand::seq::SliceRandom;
use serde::Serialize;
use serde_json::json;

use super::calls::Call;
use super::error::{Answer, ApiError};
use super::replicas::{Missing, Row, View};
use super::requests::{Attributes, DiscoverRequest};
use super::settings::HealthFilter;
use super::state::Health;
use super::{CloudMap, validate};

/// The answer of `DiscoverInstances`. It shares the attributes with the registry until it becomes text.
#[derive(Debug)]
pub struct Discovered {
    namespace: String,
    service: String,
    instances: Vec<(String, Row)>,
    revision: u64,
}

impl Discovered {
    pub(crate) fn into_json(self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Body<'a> {
            instances: Vec<Summary<'a>>,
            instances_revision: u64,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Summary<'a> {
            instance_id: &'a str,
            namespace_name: &'a str,
            service_name: &'a str,
            health_status: &'static str,
            attributes: &'a Attributes,
        }
        let instances = self.instances.iter().map(|(id, row)| Summary {
            instance_id: id,
            namespace_name: &self.namespace,
            service_name: &self.service,
            health_status: row.health.name(),
            attributes: &row.attributes,
        });
        let body = Body { instances: instances.collect(), instances_revision: self.revision };
        serde_json::to_vec(&body).expect("strings and numbers have a form in JSON")
    }
}

impl CloudMap {
    /// "Returns a randomized list of instances"; "if you don't specify a value for `MaxResults`, Cloud Map returns up to
    /// 100 instances", and there is no next page.
    pub(crate) fn discover_instances(&mut self, call: &Call, request: &DiscoverRequest) -> Answer<Discovered> {
        let max = validate::max_results(request.max_results, 1000)?;
        let filter = match request.health_status.as_deref() {
            None => self.settings.default_health,
            Some("HEALTHY") => HealthFilter::Healthy,
            Some("UNHEALTHY") => HealthFilter::Unhealthy,
            Some("ALL") => HealthFilter::All,
            Some("HEALTHY_OR_ELSE_ALL") => HealthFilter::HealthyOrElseAll,
            Some(other) => return Err(ApiError::invalid(format!("HealthStatus {other} is not valid."))),
        };
        let view = self.view(call, request)?;
        let mut found = select(&view, &request.query_parameters, &request.optional_parameters, filter);
        if let Some(kept) = call.shaping.partial {
            found.retain(|_| self.rng.random_bool(kept));
        }
        // The whole set is shuffled, so that what a limit cuts off is random too.
        found.shuffle(&mut self.rng);
        found.truncate(max);
        Ok(Discovered {
            namespace: request.namespace_name.clone(),
            service: request.service_name.clone(),
            instances: found.into_iter().map(|(id, row)| (id.clone(), row.clone())).collect(),
            revision: view.revision,
        })
    }

    pub(crate) fn discover_instances_revision(&mut self, call: &Call, request: &DiscoverRequest) -> Answer {
        let view = self.view(call, request)?;
        Ok(json!({ "InstancesRevision": view.revision }))
    }

    /// The service as any one replica sees it, or as a fault rule has kept it.
    fn view(&mut self, call: &Call, request: &DiscoverRequest) -> Answer<Arc<View>> {
        let DiscoverRequest { namespace_name, service_name, owner_account, .. } = request;
        validate::required("NamespaceName", namespace_name)?;
        validate::length("NamespaceName", namespace_name, 1024)?;
        validate::service_name(service_name)?;
        if owner_account.as_ref().is_some_and(|owner| *owner != self.settings.account) {
            return Err(ApiError::namespace_not_found(namespace_name));
        }
        let replica = match &call.shaping.stale {
            Some(replica) => replica,
            None => &self.replicas[self.rng.random_range(0..self.settings.discovery_lag.len())],
        };
        replica.find(namespace_name, service_name).map(Arc::clone).map_err(|missing| match missing {
            Missing::Namespace => ApiError::namespace_not_found(namespace_name),
            Missing::Service => ApiError::service_not_found(service_name),
        })
    }
}

/// "Only instances that match all the specified key-value pairs are returned." Of the optional ones: "If there are
/// instances that match both the filters [...], all of these instances are returned. Otherwise, the filters are ignored".
/// The health filter "is ignored for services that don't have a health check configured".
fn select<'a>(
    view: &'a View,
    query: &Attributes,
    optional: &Attributes,
    filter: HealthFilter,
) -> Vec<(&'a String, &'a Row)> {
    let has = |row: &Row, wanted: &Attributes| wanted.iter().all(|(key, value)| row.attributes.get(key) == Some(value));
    let mut found: Vec<_> = view.instances.iter().filter(|(_, row)| has(row, query)).collect();
    if !optional.is_empty() && found.iter().any(|(_, row)| has(row, optional)) {
        found.retain(|(_, row)| has(row, optional));
    }
    if view.health_checked {
        match filter {
            HealthFilter::All => {}
            HealthFilter::Healthy => found.retain(|(_, row)| row.health == Health::Healthy),
            HealthFilter::Unhealthy => found.retain(|(_, row)| row.health == Health::Unhealthy),
            HealthFilter::HealthyOrElseAll => {
                if found.iter().any(|(_, row)| row.health == Health::Healthy) {
                    found.retain(|(_, row)| row.health == Health::Healthy);
                }
            }
        }
    }
    found
}
