use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cache::Narrow;
use api::names;
use model::{intern, labels::is_label_value};

/// A ClusterProperty (KEP-2149): one that this project reads, or one that a cluster selection can select by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterProperty {
    /// Name of the property.
    pub name: Arc<str>,
    /// Its value.
    pub value: Arc<str>,
}

impl Narrow for ClusterProperty {
    type Kind = api::ClusterProperty;
    type Key = Arc<str>;

    const CACHE: &'static str = "ClusterProperty";

    fn key(metadata: &ObjectMeta) -> Option<Arc<str>> {
        metadata.name.as_deref().map(intern)
    }

    fn narrow(object: Self::Kind) -> Option<Self> {
        let name = Self::key(&object.metadata)?;
        let value = object.spec.value;
        // What is wrong about these is reported.
        (names::PROPERTIES.contains(&&*name) || is_label_value(&value)).then(|| Self { name, value: value.into() })
    }
}
