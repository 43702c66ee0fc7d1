//! Service attributes: up to 30 keys that hang on the service itself, merged key by key, at once.

use serde_json::json;

use super::error::{Answer, ApiError};
use super::requests::{DeleteServiceAttributesRequest, ServiceRequest, UpdateServiceAttributesRequest};
use super::{CloudMap, validate};

/// "You can specify a total of 30 attributes."
const MAX_ATTRIBUTES: usize = 30;

impl CloudMap {
    pub(crate) fn get_service_attributes(&self, request: &ServiceRequest) -> Answer {
        let service = self.find_service("ServiceId", &request.service_id)?;
        Ok(json!({ "ServiceAttributes": {
            "ServiceArn": service.arn,
            "ResourceOwner": self.settings.account,
            "Attributes": service.attributes,
        }}))
    }

    pub(crate) fn update_service_attributes(&mut self, request: UpdateServiceAttributesRequest) -> Answer {
        count(request.attributes.len())?;
        for (key, value) in &request.attributes {
            validate::required("An attribute key", key)?;
            validate::length("An attribute key", key, 255)?;
            validate::length(&format!("The value of attribute {key}"), value, 1024)?;
        }
        let service = self.find_service_mut("ServiceId", &request.service_id)?;
        let mut merged = service.attributes.clone();
        merged.extend(request.attributes);
        if merged.len() > MAX_ATTRIBUTES {
            let message = format!("{} attributes are over the quota of {MAX_ATTRIBUTES}.", merged.len());
            return Err(ApiError::new("ServiceAttributesLimitExceededException", message));
        }
        service.attributes = merged;
        Ok(json!({}))
    }

    pub(crate) fn delete_service_attributes(&mut self, request: &DeleteServiceAttributesRequest) -> Answer {
        count(request.attributes.len())?;
        let service = self.find_service_mut("ServiceId", &request.service_id)?;
        for key in &request.attributes {
            service.attributes.remove(key);
        }
        Ok(json!({}))
    }
}

fn count(attributes: usize) -> Answer<()> {
    if (1..=MAX_ATTRIBUTES).contains(&attributes) {
        return Ok(());
    }
    Err(ApiError::invalid(format!("Attributes has {attributes} entries; 1 to {MAX_ATTRIBUTES} are allowed.")))
}
