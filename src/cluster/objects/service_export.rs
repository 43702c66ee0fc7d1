use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{created, known_annotations, service_key, uid};
use crate::cache::Narrow;
use api::{conditions::SharedCondition, names::is_reserved};
use model::{
    Pairs, ServiceKey,
    labels::{is_annotation_key, is_label_key, is_label_value},
};

/// How many bytes are kept of the exported labels that can be published, and of those that cannot; the same of
/// annotations. A record of the ledger is smaller, and the API server accepts more than a megabyte: what is cut is refused
/// like the whole.
const MAX_EXPORTED: usize = 4096;

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
    /// Where among its finalizers that of the AWS Cloud Map MCS Controller is, if it is there. That controller runs in this
    /// cluster or once did.
    pub aws_mcs_finalizer: Option<usize>,
    /// `spec.exportedLabels`, cut if they are too large to be published.
    pub exported_labels: BTreeMap<String, String>,
    /// `spec.exportedAnnotations`, cut in the same way.
    pub exported_annotations: BTreeMap<String, String>,
    /// Annotations with one of [`api::names::ANNOTATION_PREFIXES`].
    pub annotations: Pairs,
    /// All conditions, no matter who wrote them.
    pub conditions: Box<[SharedCondition]>,
}

impl ServiceExport {
    /// Whether an exported label can be published: it is well-formed, and has no meaning of its own.
    pub fn admits_label(name: &str, value: &str) -> bool {
        !is_reserved(name) && is_label_key(name) && is_label_value(value)
    }

    /// The same of an exported annotation, whose value is any text.
    pub fn admits_annotation(name: &str) -> bool {
        !is_reserved(name) && is_annotation_key(name)
    }
}

/// Cuts exported labels or annotations. Those that can be published are still too large then, if they were.
fn cut(pairs: BTreeMap<String, String>, admits: impl Fn(&str, &str) -> bool) -> BTreeMap<String, String> {
    let short = |mut text: String| {
        text.truncate(text.floor_char_boundary(MAX_EXPORTED));
        text.shrink_to_fit();
        text
    };
    let mut room = [MAX_EXPORTED; 2];
    let mut kept = BTreeMap::new();
    for (name, value) in pairs {
        let left = &mut room[usize::from(admits(&name, &value))];
        if *left > 0 {
            *left = left.saturating_sub(name.len() + value.len());
            kept.insert(short(name), short(value));
        }
    }
    kept
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
            aws_mcs_finalizer: metadata
                .finalizers
                .iter()
                .flatten()
                .position(|finalizer| finalizer == awsmcs::FINALIZER),
            annotations: known_annotations(metadata),
            exported_labels: cut(object.spec.exported_labels, Self::admits_label),
            exported_annotations: cut(object.spec.exported_annotations, |name, _| Self::admits_annotation(name)),
            conditions: object.status.iter().flat_map(|status| &status.conditions).map(SharedCondition::from).collect(),
        })
    }
}
