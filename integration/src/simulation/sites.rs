//! The clusters of scenarios as they are at the start.

use std::time::Duration;

/// A cluster as it is at the start.
#[derive(Debug)]
pub(crate) struct Site {
    /// The ClusterSet; empty: none.
    pub(crate) set: &'static str,
    /// IP families, the first one is what Services have by default.
    pub(crate) families: &'static [&'static str],
    /// What its controllers are started with, beside what all are.
    pub(crate) flags: &'static [&'static str],
    /// Its home is another registry than that of most.
    pub(crate) abroad: bool,
}

impl Site {
    /// Whether its pods have readiness gates, which its controllers open.
    pub(crate) fn has_gates(&self) -> bool {
        self.flags.contains(&"--readiness-gates")
    }

    /// Whether its controllers follow Cutovers.
    pub(crate) fn has_cutovers(&self) -> bool {
        self.flags.contains(&"--cutovers")
    }

    /// Whether headless imports have a derived Service as well.
    pub(crate) fn names_derived_services(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("--derived-name"))
    }

    /// Whether its clients use its own endpoints as long as one is ready.
    pub(crate) fn prefers_itself(&self) -> bool {
        self.flags.iter().any(|flag| flag.starts_with("--cluster-selectors"))
    }

    /// How long the endpoints of a cluster stay that is silent; `None`: until it is forgotten.
    pub(crate) fn stale_ttl(&self) -> Option<Duration> {
        self.flags.contains(&"--stale-cluster-ttl=6m").then_some(Duration::from_mins(6))
    }
}

/// In the usual ClusterSet.
pub(super) const USUAL: Site = Site { set: "set", families: &["IPv4", "IPv6"], flags: &[], abroad: false };
/// In another region.
pub(super) const ABROAD: Site = Site { abroad: true, ..USUAL };
/// Derived Services have names that people can guess, and headless imports have some, too. One worker writes everything, so
/// that names wait for each other.
pub(super) const NAMED: Site = Site { flags: &["--derived-name={name}-global", "--concurrency=1"], ..USUAL };
/// Pods are ready when discovery shows them.
pub(super) const GATED: Site = Site { flags: &["--readiness-gates", "--gate-timeout=90s"], ..USUAL };
/// Cutovers are followed.
pub(super) const MOVING: Site = Site { flags: &["--cutovers", "--hide-tasks"], ..USUAL };
/// The endpoints of a cluster that is silent for six minutes are withdrawn.
pub(super) const EXPIRING: Site = Site { flags: &["--stale-cluster-ttl=6m"], ..USUAL };
/// Clients use the cluster's own endpoints as long as one is ready, and then all others.
pub(super) const NEAREST: Site = Site {
    flags: &[
        "--cluster-selectors=[{propertySelector: {matchLabels: {cluster.clusterset.k8s.io: \"@SameAsImporter@\"}}}]",
    ],
    ..USUAL
};
pub(super) const V4: Site = Site { families: &["IPv4"], ..USUAL };
pub(super) const V6: Site = Site { families: &["IPv6"], ..USUAL };
/// In another ClusterSet of the same account.
pub(super) const OTHER: Site = Site { set: "other", ..USUAL };
pub(super) const TWO: &[Site] = &[USUAL, USUAL];
pub(super) const THREE: &[Site] = &[USUAL, USUAL, USUAL];
