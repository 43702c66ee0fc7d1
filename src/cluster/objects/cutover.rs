use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{service_key, uid};
use crate::cache::Narrow;
use api::{CutoverSpec, CutoverStatus};
use model::ServiceKey;

/// A Cutover (`--cutovers`).
#[derive(Debug, Clone, PartialEq)]
pub struct Cutover {
    /// Its key, which is that of its Service.
    pub key: ServiceKey,
    /// Its uid.
    pub uid: Box<str>,
    /// Its version, by which a status is written only where the one that it follows was seen.
    pub version: Box<str>,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// Its spec.
    pub spec: CutoverSpec,
    /// Its status. The share that it has is in force.
    pub status: CutoverStatus,
}

impl Narrow for Cutover {
    type Kind = api::Cutover;
    type Key = ServiceKey;

    const CACHE: &'static str = "Cutover";

    fn key(metadata: &ObjectMeta) -> Option<ServiceKey> {
        service_key(metadata)
    }

    /// One that is being deleted counts as gone.
    fn narrow(object: Self::Kind) -> Option<Self> {
        let metadata = &object.metadata;
        if metadata.deletion_timestamp.is_some() {
            return None;
        }
        Some(Self {
            key: service_key(metadata)?,
            uid: uid(metadata),
            version: metadata.resource_version.as_deref().unwrap_or_default().into(),
            generation: metadata.generation,
            spec: object.spec,
            status: object.status.unwrap_or_default(),
        })
    }
}
