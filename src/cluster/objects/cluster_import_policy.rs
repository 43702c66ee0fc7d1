use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::uid;
use crate::cache::Narrow;
use api::{ClusterImportPolicySpec, ClusterImportPolicyStatus};
use model::intern;

/// A ClusterImportPolicy.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterImportPolicy {
    /// Its name.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: Box<str>,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// Its spec.
    pub spec: ClusterImportPolicySpec,
    /// Its status.
    pub status: ClusterImportPolicyStatus,
}

impl Narrow for ClusterImportPolicy {
    type Kind = api::ClusterImportPolicy;
    type Key = Arc<str>;

    const CACHE: &'static str = "ClusterImportPolicy";

    fn key(metadata: &ObjectMeta) -> Option<Arc<str>> {
        metadata.name.as_deref().map(intern)
    }

    fn narrow(object: Self::Kind) -> Option<Self> {
        let metadata = &object.metadata;
        Some(Self {
            name: Self::key(metadata)?,
            uid: uid(metadata),
            generation: metadata.generation,
            spec: object.spec,
            status: object.status.unwrap_or_default(),
        })
    }
}
