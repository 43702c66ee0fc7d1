//! Where a Kubernetes Service is registered in Cloud Map, and by whose right.

use std::{fmt, sync::Arc};

use super::ServiceKey;

/// A Cloud Map service that instances are registered in, by names.
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

/// The Kubernetes object that wants a target. Objects of the same kind, namespace and name in several clusters of one
/// ClusterSet are the same owner.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimOwner {
    /// `ServiceExport`, `Service` (annotated) or `Ingress`.
    pub kind: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ClaimOwner {
    const EXPORT: &str = "ServiceExport";
    const INGRESS: &str = "Ingress";

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

    /// Whether it is an annotated object, not an export.
    pub fn is_annotated(&self) -> bool {
        *self.kind != *Self::EXPORT
    }

    pub fn is_ingress(&self) -> bool {
        *self.kind == *Self::INGRESS
    }

    /// Whether two owners mean one Service, exported or annotated.
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

/// A registration record: written to the ledger before the first instance is registered under its target, and kept as
/// `retiring` until every own instance there is seen to be gone, so that a leader that takes over after a crash knows
/// where to look. It is also the cluster's claim to the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    pub target: Target,
    pub owner: ClaimOwner,
    /// When this cluster first committed the claim, seconds since 1970. Carried over by every later leader.
    pub claimed: i64,
    /// No longer wanted: only deregistrations may follow.
    pub retiring: bool,
}
