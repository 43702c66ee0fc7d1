use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::core::PartialObjectMeta;

use super::{MAX_ANNOTATION, annotation_value, uid};
use crate::cache::Narrow;
use api::names;
use model::intern;

/// A namespace. Imports exist only in existing namespaces (KEP-1645, namespace sameness).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: Arc<str>,
    /// Its uid.
    pub uid: Box<str>,
    /// Whether it is being deleted, so nothing can be created in it.
    pub terminating: bool,
    /// Labels, which determine whether Services may be exported from it.
    pub labels: BTreeMap<String, String>,
    /// The annotation [`names::ANNOTATION_IMPORT_FROM`].
    pub import_from: Option<Arc<str>>,
    /// The annotation [`names::ANNOTATION_ACCEPT_CLUSTERS`].
    pub accept_clusters: Option<Arc<str>>,
    /// The annotation [`names::ANNOTATION_MAY_REGISTER`].
    pub may_register: Option<Arc<str>>,
    /// The annotation [`names::ANNOTATION_MAY_CREATE`].
    pub may_create: Option<Arc<str>>,
    /// The annotation [`names::ANNOTATION_ALLOW_ADOPT`].
    pub allow_adopt: Option<Arc<str>>,
    /// The annotation [`names::ANNOTATION_QUOTA`].
    pub quota: Option<Arc<str>>,
    /// The annotations [`names::CLUSTER_SELECTION`].
    pub cluster_selection: [Option<Arc<str>>; 4],
}

impl Narrow for Namespace {
    type Kind = PartialObjectMeta<v1::Namespace>;
    type Key = Arc<str>;

    const CACHE: &'static str = "Namespace";

    fn key(metadata: &ObjectMeta) -> Option<Arc<str>> {
        metadata.name.as_deref().map(intern)
    }

    fn narrow(object: Self::Kind) -> Option<Self> {
        let terminating = object.metadata.deletion_timestamp.is_some();
        let annotations = object.metadata.annotations.as_ref();
        let read = |name: &str| annotations?.get(name).map(|value| annotation_value(value, MAX_ANNOTATION));
        Some(Self {
            name: intern(object.metadata.name.as_deref()?),
            uid: uid(&object.metadata),
            terminating,
            import_from: read(names::ANNOTATION_IMPORT_FROM),
            accept_clusters: read(names::ANNOTATION_ACCEPT_CLUSTERS),
            may_register: read(names::ANNOTATION_MAY_REGISTER),
            may_create: read(names::ANNOTATION_MAY_CREATE),
            allow_adopt: read(names::ANNOTATION_ALLOW_ADOPT),
            quota: read(names::ANNOTATION_QUOTA),
            cluster_selection: names::CLUSTER_SELECTION.map(read),
            labels: object.metadata.labels.unwrap_or_default(),
        })
    }
}
