//! Custom health statuses, which take effect late.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use super::calls::Call;
use super::error::{Answer, ApiError};
use super::replicas::Change;
use super::requests::{HealthStatusRequest, UpdateHealthRequest};
use super::services::place;
use super::state::Health;
use super::{CloudMap, Event, paging, validate};

impl CloudMap {
    /// "Cloud Map waits for 30 seconds. If another `UpdateInstanceCustomHealthStatus` request doesn't arrive during that
    /// time to change the status back", the status changes. "Sending a second or subsequent [...] request with the same
    /// value before 30 seconds has passed doesn't accelerate the change."
    pub(crate) fn update_instance_custom_health_status(
        &mut self,
        call: &Call,
        request: &UpdateHealthRequest,
    ) -> Answer {
        let status = match request.status.as_str() {
            "HEALTHY" => Health::Healthy,
            "UNHEALTHY" => Health::Unhealthy,
            other => return Err(ApiError::invalid(format!("Status {other} must be HEALTHY or UNHEALTHY."))),
        };
        let at = call.now + self.settings.health_delay;
        let service = self.find_service_mut("ServiceId", &request.service_id)?;
        let id = service.id.clone();
        let instance = service
            .instances
            .get_mut(&request.instance_id)
            .ok_or_else(|| ApiError::instance_not_found(&id, &request.instance_id))?;
        if service.health_check_custom_config.is_none() {
            return Err(ApiError::new("CustomHealthNotFound", format!("Service {id} has no custom health check.")));
        }
        if instance.health == status {
            instance.next_health = None;
        } else if instance.next_health.is_none() {
            instance.next_health = Some((status, at));
            self.schedule(at, Event::ChangeHealth { service: id, instance: request.instance_id.clone() });
        }
        Ok(json!({}))
    }

    pub(crate) fn change_health(&mut self, id: &str, instance_id: &str, at: Duration) {
        let Some(service) = self.services.get_mut(id) else { return };
        let Some(instance) = service.instances.get_mut(instance_id) else { return };
        // Taken back, or registered again since.
        let Some((health, _)) = instance.next_health.filter(|(_, due)| *due == at) else { return };
        instance.health = health;
        instance.next_health = None;
        let change = Change::SetHealth { at: place(service), instance: instance_id.to_owned(), health };
        self.replicate(at, &change);
    }

    pub(crate) fn get_instances_health_status(&self, request: &HealthStatusRequest) -> Answer {
        let size = validate::max_results(request.max_results, 100)?;
        let service = self.find_service("ServiceId", &request.service_id)?;
        let Some(ids) = &request.instances else {
            let (page, next) =
                paging::page("GetInstancesHealthStatus", &[&service.instances], size, request.next_token.as_ref())?;
            let status: BTreeMap<_, _> = page.into_iter().map(|(id, instance)| (id, instance.health.name())).collect();
            return Ok(json!({ "Status": status, "NextToken": next }));
        };
        if ids.is_empty() {
            return Err(ApiError::invalid("Instances is empty; leave it out for all instances."));
        }
        let chosen = ids
            .iter()
            .map(|id| match service.instances.get(id) {
                Some(instance) => Ok((id.clone(), instance.health.name())),
                None => Err(ApiError::instance_not_found(&service.id, id)),
            })
            .collect::<Answer<BTreeMap<_, _>>>()?;
        let (page, next) = paging::page("GetInstancesHealthStatus", &[&chosen], size, request.next_token.as_ref())?;
        let status: BTreeMap<_, _> = page.into_iter().collect();
        Ok(json!({ "Status": status, "NextToken": next }))
    }
}
