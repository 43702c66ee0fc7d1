//! Services and Ingresses that request registrations by the annotations of the controllers that this one replaces: the
//! Python CloudMap Kubernetes Controller (`cloudmap.controller/...`), and external-dns with the provider `aws-sd`
//! (`external-dns.alpha.kubernetes.io/...`, `external-dns.kubernetes.io/...`).
//!
//! [`request`] parses the annotations, [`zones`] finds the Cloud Map namespace of a host name, [`mod@plan`] decides
//! what belongs into which target, and [`news`] writes the texts of Events. All of these are pure. [`directory`] keeps
//! the list of namespaces.

#![warn(missing_docs)]

pub mod directory;
pub mod news;
pub mod plan;
pub mod request;
pub mod zones;

use clap::ValueEnum;
pub use directory::{Directory, Known};
pub use plan::{Planned, Refusal, UNLISTED, Wanted, plan, plan_ingress};
pub use request::Request;
pub use zones::{Zone, ZoneKind, Zones, is_id, needs_zones};

/// What happens to names that no annotated Service requests any more (`--policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// They are withdrawn.
    Sync,
    /// They stay.
    UpsertOnly,
}

/// How annotations are interpreted: the flags that external-dns has, too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnnotationSettings {
    /// `--domain-filter`: only Cloud Map namespaces of these domains take host names. If empty, all do.
    pub domain_filter: Vec<String>,
    /// `--aws-zone-type`: only Cloud Map namespaces of this kind take host names. `None` means all, including API-only
    /// ones.
    pub zone_kind: Option<ZoneKind>,
    /// `--txt-owner-id`: services that external-dns owns by exactly this id are taken over.
    pub owner_id: Option<String>,
    /// `--policy=upsert-only`: no name is withdrawn.
    pub upsert_only: bool,
    /// `--dry-run`: nothing is registered for annotations; what would be registered is logged.
    pub dry_run: bool,
}
