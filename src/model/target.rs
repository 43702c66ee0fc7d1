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

/// What a claim says of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum ClaimState {
    /// The owner may register, and has something to register, as far as is known.
    #[default]
    Serves,
    /// The owner may register, and has nothing to register: no ready endpoint.
    Empty,
    /// The owner may not register, whoever else claims the target: the Cloud Map service is somebody else's, or there is
    /// no such Cloud Map namespace. Errors, quotas and throttling make nobody unable. Who is unable has no target while
    /// anybody is able.
    Unable,
    /// The target is no longer wanted: only deregistrations may follow. It is no claim any more.
    Retiring,
}

/// A registration record. The ledger has it before the first instance is registered in its target, and keeps it as
/// [retiring](ClaimState::Retiring) until every own instance there was seen to be gone, so that a leader that takes over
/// after a crash knows where to look. It is also the cluster's claim to the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The target.
    pub target: Target,
    /// Who claims it.
    pub owner: ClaimOwner,
    /// When this cluster first committed the claim, in seconds since 1970, or when its owner became able again. Every
    /// later leader keeps the date.
    pub claimed: i64,
    /// What the claim says of its owner.
    pub state: ClaimState,
}

impl Registration {
    /// Whether only deregistrations may follow.
    pub fn is_retiring(&self) -> bool {
        self.state == ClaimState::Retiring
    }

    /// Whether the owner may not register, whoever else claims the target.
    pub fn is_unable(&self) -> bool {
        self.state == ClaimState::Unable
    }

    /// Whether both are the same claim, whether or not there is anything to register now.
    pub fn is_same_claim(&self, other: &Self) -> bool {
        let said = |state| if state == ClaimState::Empty { ClaimState::Serves } else { state };
        (&self.target, &self.owner, self.claimed, said(self.state))
            == (&other.target, &other.owner, other.claimed, said(other.state))
    }
}
