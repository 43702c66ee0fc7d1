use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Interner, applied, is_managed, service_key, uid};
use crate::model::Pairs;
use crate::{
    api::{self, ServiceImportSpec, ServiceImportStatus},
    cluster::cache::Narrow,
    model::ServiceKey,
};

/// A ServiceImport: whole, so that "nothing changed" is decided by comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceImport {
    pub key: ServiceKey,
    pub uid: Box<str>,
    pub generation: Option<i64>,
    pub deleting: bool,
    /// Made by this project. If not, it is in the way and never written or deleted.
    pub managed: bool,
    /// Labels that this project applied, with their present values (by `managedFields`).
    pub labels: Pairs,
    /// Annotations that this project applied, likewise.
    pub annotations: Pairs,
    pub spec: ServiceImportSpec,
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
