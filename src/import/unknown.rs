//! Clusters of which too little is known to take anything away from the objects that a name has.

use std::collections::BTreeSet;

use super::plan::Observed;
use model::ClusterId;

/// Clusters whose state is not known (yet).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unknown {
    /// The registry has not been read at all, so any cluster may export anything.
    All,
    /// Only these clusters are unknown.
    Only(BTreeSet<ClusterId>),
    /// Only these clusters are known; any other may export the name as well, no matter whether it is in the ledger.
    AllBut(BTreeSet<ClusterId>),
}

impl Unknown {
    /// Whether a cluster is unknown. A source of discovered instances never is: the ledger says nothing of it.
    pub fn contains(&self, cluster: &str) -> bool {
        let among = |clusters: &BTreeSet<ClusterId>| clusters.iter().any(|one| one.as_str() == cluster);
        match self {
            Self::All => !ClusterId::is_discovered(cluster),
            Self::Only(clusters) => among(clusters),
            Self::AllBut(clusters) => !ClusterId::is_discovered(cluster) && !among(clusters),
        }
    }

    /// The same, but for clusters that count as known to export nothing. `seen`: those that the objects of the name show.
    #[must_use]
    pub fn without<'a>(self, seen: impl Iterator<Item = &'a str>, counts: impl Fn(&str) -> bool) -> Self {
        let known = || seen.filter(|cluster| counts(cluster)).filter_map(|cluster| cluster.parse::<ClusterId>().ok());
        match self {
            Self::Only(mut clusters) => {
                clusters.retain(|cluster| !counts(cluster.as_str()));
                Self::Only(clusters)
            }
            Self::AllBut(mut clusters) => {
                clusters.extend(known());
                Self::AllBut(clusters)
            }
            Self::All => {
                let known: BTreeSet<_> = known().collect();
                if known.is_empty() { Self::All } else { Self::AllBut(known) }
            }
        }
    }

    /// Whether every cluster is known.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::Only(clusters) if clusters.is_empty())
    }
}

/// Whether an unknown cluster may still export the name, as far as the objects show.
pub(super) fn concerns_unknown(observed: &Observed<'_>) -> bool {
    import_concerns_unknown(observed)
        || names_no_cluster(observed) && !observed.unknown.is_none()
        || observed
            .slices
            .iter()
            .any(|slice| observed.unknown.contains(slice.source_cluster.as_deref().unwrap_or_default()))
}

/// An import that does not exist yet, or that somebody handed over, waits for the first reading of all clusters,
/// because one of them may have an older export. It does not wait for a cluster that cannot be read at all: one bad
/// cluster never stops the others.
pub(super) fn import_concerns_unknown(observed: &Observed<'_>) -> bool {
    match (observed.import.filter(|import| import.managed), observed.unknown) {
        (_, Unknown::All) => true,
        (Some(import), unknown) if !names_no_cluster(observed) => {
            import.status.clusters.iter().any(|cluster| unknown.contains(cluster))
        }
        (_, unknown) => observed.first_reading && !unknown.is_none(),
    }
}

/// Whether the import exists but does not name its clusters: another controller created it, and somebody gave it this
/// project's label.
fn names_no_cluster(observed: &Observed<'_>) -> bool {
    observed.import.is_some_and(|import| import.managed && import.status.clusters.is_empty())
}
