//! The properties by which a cluster publishes which others it cannot reach. No ClusterProperty sets them.

use std::collections::BTreeMap;

use crate::names::PROPERTY_UNREACHABLE;
use model::ClusterId;

/// The name of the property about a cluster.
#[must_use]
pub fn property(cluster: &ClusterId) -> String {
    format!("{PROPERTY_UNREACHABLE}/{cluster}")
}

/// Whether a property is one of these, whatever follows.
#[must_use]
pub fn is_one(property: &str) -> bool {
    about(property).is_some()
}

fn about(property: &str) -> Option<&str> {
    property.strip_prefix(PROPERTY_UNREACHABLE)?.strip_prefix('/')
}

/// The clusters about which there are such properties, and since when they cannot be reached, in seconds since 1970.
pub fn read(properties: &BTreeMap<String, String>) -> impl Iterator<Item = (ClusterId, i64)> {
    properties.iter().filter_map(|(name, since)| Some((about(name)?.parse().ok()?, since.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_read_and_nothing_else() {
        let blue: ClusterId = "blue".parse().unwrap();
        let published = |name: &str, since: &str| (name.to_owned(), since.to_owned());
        let properties = [
            published(&property(&blue), "60"),
            published("unreachable.cloudmap-mcs.io/green", "soon"),
            published("unreachable.cloudmap-mcs.io.example/red", "60"),
            published("region.topology.k8s.io", "60"),
        ];
        assert_eq!(read(&properties.into()).collect::<Vec<_>>(), [(blue.clone(), 60)]);
        assert!(is_one(&property(&blue)) && is_one("unreachable.cloudmap-mcs.io/A B") && !is_one(PROPERTY_UNREACHABLE));
    }
}
