//! Names of clusters and of services.

use std::{fmt, str::FromStr, sync::Arc};

/// Maximum length of a cluster id. It becomes a label value (`multicluster.kubernetes.io/source-cluster`, at most 63
/// characters) and, for headless Services, a part of DNS names.
const MAX_CLUSTER_ID: usize = 63;

/// Prefixes of source-cluster names that are no clusters of the ClusterSet: ECS clusters, and Cloud Map namespaces.
const FOREIGN: [&str; 2] = ["ecs-", "cloudmap-"];

/// A cluster id or ClusterSet id was refused. The message has the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid cluster id {id:?}: {rule}")]
pub struct InvalidClusterId {
    id: String,
    rule: &'static str,
}

/// The id of a cluster in its ClusterSet: the value of its ClusterProperty `cluster.clusterset.k8s.io` (KEP-2149). It
/// is a DNS-1123 label, or several labels joined by dots, of at most 63 characters in total.
///
/// Ids that begin with `ecs-` or `cloudmap-` are refused, because endpoints discovered in Cloud Map appear under
/// source-cluster names of that form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(Arc<str>);

impl ClusterId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The source-cluster name of discovered endpoints. `None` unless `label` is a DNS label with one of the prefixes
    /// for them.
    pub fn discovered(label: &str) -> Option<Self> {
        (is_dns_label(label) && Self::is_discovered(label)).then(|| Self(label.into()))
    }

    /// Whether a source-cluster name belongs to discovered endpoints and not to a cluster of the ClusterSet.
    pub fn is_discovered(name: &str) -> bool {
        FOREIGN.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Whether the id has dots. This is legal (KEP-2149: a DNS subdomain), but stock CoreDNS answers per-pod names of
    /// headless Services only for ids of a single label.
    pub fn is_dotted(&self) -> bool {
        self.0.contains('.')
    }
}

impl FromStr for ClusterId {
    type Err = InvalidClusterId;

    fn from_str(id: &str) -> Result<Self, Self::Err> {
        let refuse = |rule| Err(InvalidClusterId { id: id.to_owned(), rule });
        if id.is_empty() || id.len() > MAX_CLUSTER_ID {
            return refuse("it must have 1 to 63 characters");
        }
        if !id.split('.').all(is_dns_label) {
            return refuse(
                "it must be a DNS-1123 label: lower-case letters, digits and '-', starting and ending with a letter or digit",
            );
        }
        if Self::is_discovered(id) {
            return refuse(
                "ids that begin with \"ecs-\" or \"cloudmap-\" are reserved for endpoints that are discovered in Cloud Map",
            );
        }
        Ok(Self(id.into()))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of a ClusterSet: the value of the ClusterProperty `clusterset.k8s.io`. It is a DNS-1123 subdomain of at most
/// 128 characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterSetId(Arc<str>);

impl ClusterSetId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterSetId {
    type Err = InvalidClusterId;

    fn from_str(id: &str) -> Result<Self, Self::Err> {
        if id.is_empty() || id.len() > 128 || !id.split('.').all(is_dns_label) {
            return Err(InvalidClusterId {
                id: id.to_owned(),
                rule: "a ClusterSet id must be a DNS-1123 subdomain of at most 128 characters",
            });
        }
        Ok(Self(id.into()))
    }
}

impl fmt::Display for ClusterSetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether the text is a DNS label, as RFC 1123 wants it and Kubernetes checks it.
pub fn is_dns_label(label: &str) -> bool {
    let alnum = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = label.as_bytes();
    (1..=63).contains(&bytes.len())
        && alnum(bytes[0])
        && alnum(bytes[bytes.len() - 1])
        && bytes.iter().all(|&c| alnum(c) || c == b'-')
}

/// `<namespace>/<name>`: the same Service in every cluster of the ClusterSet, by namespace sameness (KEP-1645).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// The Kubernetes namespace.
    pub namespace: Arc<str>,
    /// The name of the Service.
    pub name: Arc<str>,
}

impl ServiceKey {
    /// The key of a Service.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_labels_and_labels_joined_by_dots() {
        for id in ["a", "prod-1", "0cluster", "name.context", &"a".repeat(63)] {
            assert_eq!(id.parse::<ClusterId>().unwrap().as_str(), id);
        }
        assert!("name.context".parse::<ClusterId>().unwrap().is_dotted());
    }

    #[test]
    fn refuses_ids_that_are_no_label_value_or_dns_name() {
        for id in ["", "-a", "a-", "A", "a_b", "a..b", "ecs-prod", "cloudmap-x", &"a".repeat(64)] {
            let error = id.parse::<ClusterId>().unwrap_err().to_string();
            assert!(error.contains(&format!("{id:?}")), "{error}");
        }
    }

    #[test]
    fn a_clusterset_id_is_a_subdomain() {
        assert!("prod.example".parse::<ClusterSetId>().is_ok());
        assert!("Prod".parse::<ClusterSetId>().is_err());
    }
}
