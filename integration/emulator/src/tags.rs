//! Tags of namespaces and services: at most 50 on each.

use std::collections::BTreeMap;

use serde_json::json;

use super::CloudMap;
use super::error::{Answer, ApiError};
use super::requests::{ListTagsRequest, Tag, TagResourceRequest, UntagResourceRequest};
use super::validate;

/// "The maximum number of tags that can be applied to a resource is 50."
const MAX_TAGS: usize = 50;

/// The tags of a resource that is being created.
pub(crate) fn collect(tags: Vec<Tag>) -> Answer<BTreeMap<String, String>> {
    validate::tags(&tags)?;
    if tags.len() > MAX_TAGS {
        return Err(too_many(tags.len()));
    }
    Ok(tags.into_iter().map(|Tag { key, value }| (key, value)).collect())
}

fn too_many(count: usize) -> ApiError {
    ApiError::new("TooManyTagsException", format!("{count} tags are over the quota of {MAX_TAGS}."))
}

impl CloudMap {
    pub(crate) fn tag_resource(&mut self, request: TagResourceRequest) -> Answer {
        validate::tags(&request.tags)?;
        let tags = self.tags_mut(&request.resource_arn)?;
        let mut merged = tags.clone();
        merged.extend(request.tags.into_iter().map(|Tag { key, value }| (key, value)));
        if merged.len() > MAX_TAGS {
            return Err(too_many(merged.len()).with("ResourceName", request.resource_arn));
        }
        *tags = merged;
        Ok(json!({}))
    }

    pub(crate) fn untag_resource(&mut self, request: &UntagResourceRequest) -> Answer {
        let tags = self.tags_mut(&request.resource_arn)?;
        for key in &request.tag_keys {
            tags.remove(key);
        }
        Ok(json!({}))
    }

    pub(crate) fn list_tags_for_resource(&mut self, request: &ListTagsRequest) -> Answer {
        let tags = self.tags_mut(&request.resource_arn)?;
        let tags: Vec<_> = tags.iter().map(|(key, value)| json!({ "Key": key, "Value": value })).collect();
        Ok(json!({ "Tags": tags }))
    }
}
