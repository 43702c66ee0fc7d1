use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Interner, applied, is_managed, service_key, uid};
use crate::model::Pairs;
use crate::{
    api::{self, ServiceImportSpec, ServiceImportStatus},
    cluster::cache::Narrow,
    model::ServiceKey,
};

/// A ServiceImport with all fields, so that a comparison decides whether it must be written.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceImport {
    /// Its key.
    pub key: ServiceKey,
    /// Its uid.
    pub uid: Box<str>,
    /// The generation, for `observedGeneration` of the conditions.
    pub generation: Option<i64>,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Whether this project created it. If not, it is foreign: it is never written or deleted, and blocks the import.
    pub managed: bool,
    /// Labels that this project applied, with their current values (by `managedFields`).
    pub labels: Pairs,
    /// Annotations that this project applied, with their current values.
    pub annotations: Pairs,
    /// `spec`.
    pub spec: ServiceImportSpec,
    /// `status`.
    pub status: ServiceImportStatus,
}

impl Narrow for ServiceImport {
    type Kind = api::ServiceImport;
    type Key = ServiceKey;

    const CACHE: &'static str = "ServiceImport";

    fn key(metadata: &ObjectMeta) -> Option<ServiceKey> {
        service_key(metadata)
    }

    fn narrow(object: Self::Kind, _: &mut Interner) -> Option<Self> {
        let metadata = &object.metadata;
        let (labels, annotations) = applied(metadata);
        Some(Self {
            key: service_key(metadata)?,
            uid: uid(metadata),
            generation: metadata.generation,
            deleting: metadata.deletion_timestamp.is_some(),
            managed: is_managed(metadata),
            labels,
            annotations,
            spec: object.spec,
            status: object.status.unwrap_or_default(),
        })
    }
}
