use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::core::PartialObjectMeta;

use super::Interner;
use crate::cluster::cache::Narrow;

/// A namespace: imports appear only where it exists (KEP-1645, namespace sameness).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    pub name: Arc<str>,
    /// Nothing can be created in it any more.
    pub terminating: bool,
    /// Decide whether Services may be exported from it.
    pub labels: BTreeMap<String, String>,
}

impl Narrow for Namespace {
    type Kind = PartialObjectMeta<v1::Namespace>;
    type Key = Arc<str>;

    const CACHE: &'static str = "Namespace";

    fn key(metadata: &ObjectMeta) -> Option<Arc<str>> {
        metadata.name.as_deref().map(Arc::from)
    }

    fn narrow(object: Self::Kind, _: &mut Interner) -> Option<Self> {
        let terminating = object.metadata.deletion_timestamp.is_some();
        let labels = object.metadata.labels.unwrap_or_default();
        Some(Self { name: object.metadata.name.as_deref()?.into(), terminating, labels })
    }
}
