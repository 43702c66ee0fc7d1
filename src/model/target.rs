//! Where a Kubernetes Service is registered in Cloud Map, and who may register there.

use std::{fmt, sync::Arc};

use super::ServiceKey;

/// A Cloud Map service in which instances are registered, by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Name of the Cloud Map namespace (not its `HttpName`).
    pub namespace: Arc<str>,
    /// Name of the Cloud Map service.
    pub service: Arc<str>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.service)
    }
}

/// The Kubernetes object that claims a target. Objects with the same kind, namespace and name in several clusters of
/// one ClusterSet are one owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimOwner {
    /// `ServiceExport`, `Service` (annotated) or `Ingress`.
    pub kind: Arc<str>,
    /// Kubernetes namespace of the object.
    pub namespace: Arc<str>,
    /// Name of the object.
    pub name: Arc<str>,
}

impl ClaimOwner {
    const EXPORT: &str = "ServiceExport";
    const INGRESS: &str = "Ingress";

    /// A ServiceExport.
    pub fn export(key: &ServiceKey) -> Self {
        Self { kind: Self::EXPORT.into(), namespace: key.namespace.clone(), name: key.name.clone() }
    }

    /// An annotated Service.
    pub fn service(key: &ServiceKey) -> Self {
        Self { kind: "Service".into(), namespace: key.namespace.clone(), name: key.name.clone() }
    }

    /// An annotated Ingress.
    pub fn ingress(key: &ServiceKey) -> Self {
        Self { kind: Self::INGRESS.into(), namespace: key.namespace.clone(), name: key.name.clone() }
    }

    /// Whether it is an annotated object and not an export.
    pub fn is_annotated(&self) -> bool {
        *self.kind != *Self::EXPORT
    }

    /// Whether it is an annotated Ingress.
    pub fn is_ingress(&self) -> bool {
        *self.kind == *Self::INGRESS
    }

    /// Whether both owners stand for one Service, exported or annotated.
    pub fn is_same_service(&self, other: &Self) -> bool {
        (&self.namespace, &self.name) == (&other.namespace, &other.name) && self.is_ingress() == other.is_ingress()
    }

    /// Namespace and name.
    pub fn key(&self) -> ServiceKey {
        ServiceKey::new(self.namespace.clone(), self.name.clone())
    }
}

impl fmt::Display for ClaimOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A registration record. The ledger has it before the first instance is registered in its target, and keeps it as
/// `retiring` until every own instance there was seen to be gone, so that a leader that takes over after a crash knows
/// where to look. It is also the cluster's claim to the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The target.
    pub target: Target,
    /// Who claims it.
    pub owner: ClaimOwner,
    /// When this cluster first committed the claim, in seconds since 1970. Every later leader keeps the date.
    pub claimed: i64,
    /// The target is no longer wanted: only deregistrations may follow.
    pub retiring: bool,
}
