//! The Kubernetes API of the Multi-Cluster Services standard as Rust types, the CRDs generated from them, and every
//! name that this project reads or writes in Kubernetes objects.
//!
//! Reading is lenient: a value that a newer release of the standard adds never makes an object unreadable.

#![warn(missing_docs)]

pub mod annotations;
mod cluster_import_policy;
mod cluster_property;
pub mod conditions;
mod crds;
mod cutover;
pub mod drain;
pub mod events;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a fake fails by panicking")]
pub mod fixtures;
pub mod names;
pub mod selection;
mod service_export;
mod service_import;
pub mod unreachable;
pub mod weights;

pub use cluster_import_policy::{
    AllowedNames, AllowedRanges, ClusterImportPolicy, ClusterImportPolicySpec, ClusterImportPolicyStatus, ImportSources,
};
pub use cluster_property::{ClusterProperty, ClusterPropertySpec};
pub use crds::{crds, needed_crds};
pub use cutover::{Cutover, CutoverGuard, CutoverPhase, CutoverSpec, CutoverStatus, GuardFailure};
pub use service_export::{ServiceExport, ServiceExportSpec, ServiceExportStatus};
pub use service_import::{
    ClientIpConfig, ClusterStatus, EndpointSliceObjects, ServiceImport, ServiceImportPort, ServiceImportSpec,
    ServiceImportStatus, ServiceImportType, SessionAffinityConfig,
};

/// Reads an absent or null `spec` as the default spec. The derive macro of `kube` cannot tell serde to do this. The
/// upstream CRDs do not require `spec`, so objects without one exist. The struct must be `#[serde(remote = "Self")]`.
macro_rules! spec_may_be_absent {
    ($spec:ident, $name:literal) => {
        impl<'de> serde::Deserialize<'de> for $spec {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                struct Present(#[serde(with = $name)] $spec);
                Ok(Option::<Present>::deserialize(deserializer)?.map(|Present(spec)| spec).unwrap_or_default())
            }
        }

        impl serde::Serialize for $spec {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }
    };
}
use spec_may_be_absent;
