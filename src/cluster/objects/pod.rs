use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{api::core::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::core::PartialObjectMeta;

use super::TargetId;
use crate::cache::Narrow;
use model::intern;

/// A pod with labels that become attributes of its instances (`--instance-labels`). Others are ignored, and without the
/// flag no pod is watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Kubernetes namespace.
    pub namespace: Arc<str>,
    /// The selected labels; the watch drops all others.
    pub labels: Arc<BTreeMap<String, String>>,
}

impl Narrow for Pod {
    type Kind = PartialObjectMeta<v1::Pod>;
    /// The id that `targetRef` of an EndpointSlice contains.
    type Key = TargetId;

    const CACHE: &'static str = "Pod";

    fn key(metadata: &ObjectMeta) -> Option<TargetId> {
        TargetId::new(metadata.uid.as_deref()?)
    }

    fn narrow(object: Self::Kind) -> Option<Self> {
        let labels = object.metadata.labels.filter(|labels| !labels.is_empty())?;
        let namespace = intern(object.metadata.namespace.as_deref()?);
        Some(Self { namespace, labels: Arc::new(labels) })
    }
}
