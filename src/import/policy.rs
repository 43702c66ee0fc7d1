//! Which exports of other clusters count in this one: what administrators say with ClusterImportPolicies, with the annotation of
//! a Namespace, and with `--closed-namespaces`. Pure. Nothing here concerns claims or conflicts, which all clusters judge alike.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
    net::IpAddr,
    sync::Arc,
};

use api::{ClusterImportPolicySpec, names::ANNOTATION_ACCEPT_CLUSTERS};
use base::pattern;
use model::{ClusterId, Endpoint, addresses::Range};

/// Namespaces that take no exports of other clusters until somebody opens them, unless `--closed-namespaces` says otherwise: where
/// the tools of a cluster run that are trusted with all of it, and `default`, which nobody owns.
pub const CLOSED_NAMESPACES: &str = "default,amazon-*,argocd,calico-system,cert-manager,cilium-*,external-secrets,flux-system,\
                                     gatekeeper-system,istio-system,karpenter,kyverno,linkerd*,tigera-operator";

/// A cluster, as policies select it.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// Its id.
    pub cluster: &'a str,
    /// The name of its home; `None` if it is not known, or registries have no names.
    pub registry: Option<&'a str>,
}

/// Why an export of another cluster, or a part of its endpoints, does not count in this cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exclusion {
    /// The namespace is closed, and its annotation opens it to nobody.
    Closed,
    /// The annotation of the Namespace lists other clusters.
    NotAccepted,
    /// A policy does not let the cluster into the namespace.
    Namespace(Arc<str>),
    /// A policy lets the cluster have so many names, and others have that room.
    Names(Arc<str>, usize),
    /// A policy does not allow some of the addresses.
    Addresses(Arc<str>),
    /// A policy lets the cluster have so many endpoints under a name, and others have that room.
    Endpoints(Arc<str>, usize),
}

impl Exclusion {
    /// Whether the export does not count at all.
    #[must_use]
    pub const fn is_of_export(&self) -> bool {
        !matches!(self, Self::Addresses(_) | Self::Endpoints(..))
    }

    /// The policy that does it, if one does.
    #[must_use]
    pub const fn policy(&self) -> Option<&Arc<str>> {
        match self {
            Self::Closed | Self::NotAccepted => None,
            Self::Namespace(policy) | Self::Names(policy, _) | Self::Addresses(policy) | Self::Endpoints(policy, _) => {
                Some(policy)
            }
        }
    }
}

/// What of the exports of a name does not count, by cluster.
pub type Excluded = Vec<(ClusterId, Exclusion)>;

/// The reason after "its export is left out, because", or "endpoints are left out, because".
impl Display for Exclusion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(
                f,
                "its export is left out, because the namespace is closed: the annotation {ANNOTATION_ACCEPT_CLUSTERS} on the Namespace \
                 opens it"
            ),
            Self::NotAccepted => write!(
                f,
                "its export is left out, because the annotation {ANNOTATION_ACCEPT_CLUSTERS} on the Namespace does not list it"
            ),
            Self::Namespace(policy) => {
                write!(
                    f,
                    "its export is left out, because ClusterImportPolicy {policy} does not let it into the namespace"
                )
            }
            Self::Names(policy, most) => write!(
                f,
                "its export is left out, because ClusterImportPolicy {policy} lets it have {most} names here, and it has them"
            ),
            Self::Addresses(policy) => write!(
                f,
                "endpoints of it are left out, because ClusterImportPolicy {policy} does not allow their addresses"
            ),
            Self::Endpoints(policy, most) => write!(
                f,
                "endpoints of it are left out, because ClusterImportPolicy {policy} lets it have {most} of them under a name"
            ),
        }
    }
}

/// What is between two clusters in a message.
const BETWEEN: &str = "; ";

/// What is left out of a name, by cluster: the message of the condition.
#[must_use]
pub fn message(excluded: &[(ClusterId, Exclusion)]) -> String {
    let of = |(cluster, why): &(ClusterId, Exclusion)| format!("{cluster}: {why}");
    format!("{}.", excluded.iter().map(of).collect::<Vec<_>>().join(BETWEEN))
}

/// The clusters of which such a message says something.
pub fn named(message: &str) -> impl Iterator<Item = &str> {
    message.split(BETWEEN).filter_map(|part| Some(part.split_once(": ")?.0))
}

/// What such a message says of a cluster.
#[must_use]
pub fn said_of<'a>(message: &'a str, cluster: &str) -> Option<&'a str> {
    let mut parts = message.trim_end_matches('.').split(BETWEEN);
    parts.find_map(|part| part.strip_prefix(cluster)?.strip_prefix(": "))
}

/// A ClusterImportPolicy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Policy {
    spec: ClusterImportPolicySpec,
    allowed: Option<Vec<Range>>,
    denied: Vec<Range>,
}

impl Policy {
    fn new(spec: ClusterImportPolicySpec) -> Self {
        let parse = |ranges: &[String]| ranges.iter().filter_map(|range| Range::parse(range)).collect();
        let allowed = spec.addresses.allowed.as_deref().map(parse);
        Self { allowed, denied: parse(&spec.addresses.denied), spec }
    }

    fn is_about(&self, origin: Origin<'_>) -> bool {
        let from = &self.spec.from;
        let is_one = |ids: &Vec<String>| any(ids, origin.cluster);
        let is_at_home = |registries: &Vec<String>| origin.registry.is_some_and(|home| any(registries, home));
        from.clusters.as_ref().is_none_or(is_one)
            && !any(&from.except_clusters, origin.cluster)
            && from.registries.as_ref().is_none_or(is_at_home)
    }

    fn allows_namespace(&self, namespace: &str) -> bool {
        let names = &self.spec.namespaces;
        names.allowed.as_ref().is_none_or(|allowed| any(allowed, namespace)) && !any(&names.denied, namespace)
    }

    fn allows_address(&self, address: IpAddr) -> bool {
        let within = |ranges: &Vec<Range>| ranges.iter().any(|range| range.contains(address));
        self.allowed.as_ref().is_none_or(within) && !within(&self.denied)
    }
}

fn any(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern::matches(pattern, name))
}

/// What of a spec cannot be in force, as a text for its owner: the field, the value, and what to write.
#[must_use]
pub fn invalid(spec: &ClusterImportPolicySpec) -> Option<String> {
    let addresses = &spec.addresses;
    let fields = [("allowed", addresses.allowed.as_deref().unwrap_or_default()), ("denied", &addresses.denied)];
    let wrong = |(field, ranges): (&str, &[String])| {
        let range = ranges.iter().find(|range| Range::parse(range).is_none())?;
        Some(format!(
            "spec.addresses.{field} has {range:?}, which is no range of addresses: write one such as 10.0.0.0/8."
        ))
    };
    fields.into_iter().find_map(wrong)
}

/// All that decides which exports count.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policies {
    closed: Arc<[String]>,
    policies: BTreeMap<Arc<str>, Policy>,
}

impl Policies {
    /// Without policies. `closed`: the closed namespaces; `*` stands for any text.
    #[must_use]
    pub fn new(closed: Arc<[String]>) -> Self {
        Self { closed, policies: BTreeMap::new() }
    }

    /// A policy appeared, changed or disappeared.
    pub fn set(&mut self, name: &Arc<str>, spec: Option<&ClusterImportPolicySpec>) {
        match spec {
            Some(spec) => drop(self.policies.insert(Arc::clone(name), Policy::new(spec.clone()))),
            None => drop(self.policies.remove(name)),
        }
    }

    /// Whether a policy is about a cluster.
    #[must_use]
    pub fn is_about(&self, policy: &str, origin: Origin<'_>) -> bool {
        self.policies.get(policy).is_some_and(|policy| policy.is_about(origin))
    }

    fn about<'a, 'o>(&'a self, origin: Origin<'o>) -> impl Iterator<Item = (&'a Arc<str>, &'a Policy)> + use<'a, 'o> {
        self.policies.iter().filter(move |(_, policy)| policy.is_about(origin))
    }

    /// Why no export of a cluster counts in a namespace, whatever it is. `accepted`: the annotation of the Namespace.
    #[must_use]
    pub fn excludes(&self, origin: Origin<'_>, namespace: &str, accepted: Option<&str>) -> Option<Exclusion> {
        match accepted {
            Some(accepted) if !accepts(accepted, origin.cluster) => return Some(Exclusion::NotAccepted),
            None if any(&self.closed, namespace) => return Some(Exclusion::Closed),
            Some(_) | None => {}
        }
        let denies = |(name, policy): (&Arc<str>, &Policy)| {
            (!policy.allows_namespace(namespace)).then(|| Exclusion::Namespace(Arc::clone(name)))
        };
        self.about(origin).find_map(denies)
    }

    /// Whether any cluster may have only so many names.
    #[must_use]
    pub fn limit_names(&self) -> bool {
        self.policies.values().any(|policy| policy.spec.max_names.is_some())
    }

    /// How many names a cluster may have, and which policy says so; `None` without a limit.
    #[must_use]
    pub fn most_names(&self, origin: Origin<'_>) -> Option<(usize, &Arc<str>)> {
        self.about(origin).filter_map(|(name, policy)| Some((count(policy.spec.max_names?), name))).min()
    }

    /// The endpoints of an export that count, and why others do not. `is_shown`: whether a slice of this cluster has the address
    /// already.
    #[must_use]
    pub fn admit<'a>(
        &self,
        origin: Origin<'_>,
        endpoints: &'a [Endpoint],
        is_shown: impl Fn(IpAddr) -> bool,
    ) -> (Cow<'a, [Endpoint]>, Vec<Exclusion>) {
        let (mut admitted, mut excluded) = (Cow::Borrowed(endpoints), Vec::new());
        for (name, policy) in self.about(origin) {
            let allows = |address: IpAddr| policy.allows_address(address);
            if admitted.iter().flat_map(addresses).all(allows) {
                continue;
            }
            let mut others = admitted.into_owned();
            for endpoint in &mut others {
                endpoint.ipv4 = endpoint.ipv4.filter(|address| allows((*address).into()));
                endpoint.ipv6 = endpoint.ipv6.filter(|address| allows((*address).into()));
            }
            others.retain(|endpoint| addresses(endpoint).next().is_some());
            admitted = Cow::Owned(others);
            excluded.push(Exclusion::Addresses(Arc::clone(name)));
        }
        let most =
            self.about(origin).filter_map(|(name, policy)| Some((count(policy.spec.max_endpoints_per_name?), name)));
        if let Some((most, name)) = most.min().filter(|(most, _)| admitted.len() > *most) {
            let mut first = admitted.into_owned();
            // A ready one displaces only one that takes no traffic.
            first.sort_by_key(|endpoint| (!endpoint.conditions.ready, !addresses(endpoint).any(&is_shown)));
            first.truncate(most);
            admitted = Cow::Owned(first);
            excluded.push(Exclusion::Endpoints(Arc::clone(name), most));
        }
        (admitted, excluded)
    }
}

fn count(most: i64) -> usize {
    usize::try_from(most).unwrap_or_default()
}

fn addresses(endpoint: &Endpoint) -> impl Iterator<Item = IpAddr> {
    endpoint.ipv4.map(IpAddr::from).into_iter().chain(endpoint.ipv6.map(IpAddr::from))
}

fn listed(accepted: &str) -> impl Iterator<Item = &str> {
    accepted.split(',').map(str::trim).filter(|id| !id.is_empty())
}

/// Whether the annotation of a Namespace lists a cluster.
fn accepts(accepted: &str, cluster: &str) -> bool {
    listed(accepted).any(|id| pattern::matches(id, cluster))
}

/// The first entry of the annotation of a Namespace that no id of a cluster can match.
#[must_use]
pub fn unacceptable(accepted: &str) -> Option<&str> {
    let is_of_id = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.*".contains(letter);
    listed(accepted).find(|id| !id.chars().all(is_of_id))
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
