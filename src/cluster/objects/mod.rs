//! What the caches keep of each kind: only the fields that exporting and importing need.

mod cluster_import_policy;
mod cluster_property;
mod cutover;
mod endpoint_slice;
mod gated_pod;
mod ingress;
mod namespace;
mod pod;
mod service;
mod service_export;
mod service_import;

use std::{collections::BTreeMap, fmt, net::IpAddr, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use self::{
    cluster_import_policy::ClusterImportPolicy,
    cluster_property::ClusterProperty,
    cutover::Cutover,
    endpoint_slice::{About, AddressType, Endpoint, EndpointSlice, Hints, OwnSlice, SourceSlice, TargetId},
    gated_pod::GatedPod,
    ingress::Ingress,
    namespace::Namespace,
    pod::Pod,
    service::{Service, ServiceKind},
    service_export::ServiceExport,
    service_import::{ImportSpec, ImportStatus, ServiceImport},
};
use api::names;
use model::{Pairs, Protocol, ServiceKey, ServicePort, intern};

/// Namespace and name of an object that is not named after a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Kubernetes namespace.
    pub namespace: Arc<str>,
    /// Name of the object.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of an object.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl From<ServiceKey> for ObjectKey {
    fn from(ServiceKey { namespace, name }: ServiceKey) -> Self {
        Self { namespace, name }
    }
}

/// A port of a Service or ServiceImport. `None` for a protocol that Kubernetes does not have, or a number out of range. No
/// API server accepts either.
fn service_port(
    name: Option<&str>,
    protocol: Option<&str>,
    port: i32,
    app_protocol: Option<&str>,
) -> Option<ServicePort> {
    Some(ServicePort {
        name: intern(name.unwrap_or_default()),
        protocol: Protocol::parse(protocol)?,
        port: u16::try_from(port).ok()?,
        app_protocol: app_protocol.map(intern),
    })
}

fn service_key(metadata: &ObjectMeta) -> Option<ServiceKey> {
    Some(ServiceKey::new(intern(metadata.namespace.as_deref()?), intern(metadata.name.as_deref()?)))
}

fn uid(metadata: &ObjectMeta) -> Box<str> {
    metadata.uid.as_deref().unwrap_or_default().into()
}

/// `metadata.creationTimestamp` in seconds since 1970; 0 for an object that does not exist yet.
fn created(metadata: &ObjectMeta) -> i64 {
    metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

fn label<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.labels.as_ref()?.get(name).map(String::as_str)
}

/// Whether this project created the object, according to its label.
pub fn is_managed(metadata: &ObjectMeta) -> bool {
    label(metadata, names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY)
}

/// The same of an EndpointSlice, whose label is that of Kubernetes.
pub fn is_managed_slice(metadata: &ObjectMeta) -> bool {
    label(metadata, names::LABEL_SLICE_MANAGED_BY) == Some(names::MANAGED_BY)
}

/// Maximum number of addresses of a load balancer, or of external IPs, that are kept: one more than a Cloud Map service has
/// instances, so that its limit is what is reported.
const MAX_ADDRESSES: usize = 1_001;

/// The annotations that this project reads (see [`names::ANNOTATION_PREFIXES`]).
fn known_annotations(metadata: &ObjectMeta) -> Pairs {
    let known = |name: &String| names::ANNOTATION_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let mut room = MAX_ANNOTATIONS;
    metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(name, _)| known(name))
        .take(MOST_ANNOTATIONS)
        .map(|(name, value)| {
            let kept = annotation_value(value, room.min(MAX_ANNOTATION));
            room = room.saturating_sub(value.len());
            (intern(name), kept)
        })
        .collect()
}

/// Maximum number of annotations of an object that are kept: far more than this project reads.
const MOST_ANNOTATIONS: usize = 100;

/// Maximum length of an annotation's value that is kept, in bytes. A list of 1,000 host names or addresses is shorter.
const MAX_ANNOTATION: usize = 64 * 1024;

/// The same of all annotations of an object together.
const MAX_ANNOTATIONS: usize = 2 * MAX_ANNOTATION;

/// The value as it is kept, if there is so much room. If it is too large, its size replaces it, in a form that is never a valid
/// value of an annotation: the code that reads the annotation reports this on the object.
fn annotation_value(value: &str, room: usize) -> Arc<str> {
    if value.len() <= room {
        return value.into();
    }
    format!("<too large: {} bytes where {room} are read>", value.len()).into()
}

/// The labels and annotations that this project's import applied (according to `managedFields`), with their current
/// values. Those that others added are left out. If the result equals the desired ones, nothing needs to be written,
/// and one that is no longer desired shows up.
fn applied(metadata: &ObjectMeta) -> (Pairs, Pairs) {
    let fields = metadata
        .managed_fields
        .iter()
        .flatten()
        .filter(|entry| {
            entry.manager.as_deref() == Some(names::FieldManager::Import.as_str())
                && entry.operation.as_deref() == Some("Apply")
                && entry.subresource.as_deref().unwrap_or_default().is_empty()
        })
        .find_map(|entry| Some(entry.fields_v1.as_ref()?.0.get("f:metadata")?.clone()))
        .unwrap_or_default();
    let owned = |field: &str, values: &Option<BTreeMap<String, String>>| {
        let Some(owned) = fields.get(field).and_then(|owned| owned.as_object()) else { return Pairs::default() };
        values
            .iter()
            .flatten()
            .filter(|(name, _)| owned.contains_key(&format!("f:{name}")))
            .map(|(name, value)| (intern(name), intern(value)))
            .collect()
    };
    (owned("f:labels", &metadata.labels), owned("f:annotations", &metadata.annotations))
}

/// The valid addresses. IPv4 addresses with leading zeros, which old API servers accept, are not valid.
fn addresses(texts: &[String]) -> Box<[IpAddr]> {
    texts.iter().filter_map(|text| text.parse().ok()).take(MAX_ADDRESSES).collect()
}

#[cfg(test)]
mod tests;
