use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{created, known_annotations, service_key, uid};
use crate::{
    api::{self, conditions::Said},
    awsmcs,
    cluster::cache::Narrow,
    model::{Pairs, ServiceKey},
};

/// A ServiceExport.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceExport {
    /// Its key.
    pub key: ServiceKey,
    /// Its uid.
    pub uid: Box<str>,
    /// Creation in seconds since 1970. The oldest export wins conflicts.
    pub created: i64,
    /// The generation, for `observedGeneration` of the conditions.
    pub generation: Option<i64>,
    /// Whether it has a deletion timestamp: a finalizer keeps it, but it is no longer wanted.
    pub deleting: bool,
    /// Whether it has the finalizer of the AWS Cloud Map MCS Controller, which runs in this cluster or once did.
    pub aws_mcs_finalizer: bool,
    /// `spec.exportedLabels`.
    pub exported_labels: BTreeMap<String, String>,
    /// `spec.exportedAnnotations`.
    pub exported_annotations: BTreeMap<String, String>,
    /// Annotations with one of [`crate::api::names::ANNOTATION_PREFIXES`].
    pub annotations: Pairs,
    /// All conditions, no matter who wrote them.
    pub conditions: Box<[Said]>,
}

impl Narrow for ServiceExport {
    type Kind = api::ServiceExport;
    type Key = ServiceKey;

    const CACHE: &'static str = "ServiceExport";

    fn key(metadata: &ObjectMeta) -> Option<ServiceKey> {
        service_key(metadata)
    }

    fn narrow(object: Self::Kind) -> Option<Self> {
        let metadata = &object.metadata;
        Some(Self {
            key: service_key(metadata)?,
            uid: uid(metadata),
            created: created(metadata),
            generation: metadata.generation,
            deleting: metadata.deletion_timestamp.is_some(),
            aws_mcs_finalizer: metadata.finalizers.iter().flatten().any(|finalizer| finalizer == awsmcs::FINALIZER),
            annotations: known_annotations(metadata),
            exported_labels: object.spec.exported_labels,
            exported_annotations: object.spec.exported_annotations,
            conditions: object.status.iter().flat_map(|status| &status.conditions).map(Said::from).collect(),
        })
    }
}
