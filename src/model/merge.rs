//! The conflict rules of KEP-1645, by which the exports that several clusters have of one name become one service.
//!
//! The result is the same in every cluster, and does not depend on the order of the exports. The oldest export wins, by
//! the `metadata.creationTimestamp` of the ServiceExport and then by cluster id, because timestamps have whole seconds.
//! A younger export therefore changes nothing for running traffic. It only adds ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fmt::Write as _,
    sync::Arc,
};

use super::{
    ClusterId, DEFAULT_AFFINITY_TIMEOUT, Export, IpFamily, ServicePort, ServiceType, SessionAffinity, TrafficPolicy,
};

/// A service of the ClusterSet: the merged exports of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSetService {
    /// Type of the oldest export.
    pub service_type: ServiceType,
    /// The union of all exports' ports, without a duplicate name or a duplicate (protocol, number).
    pub ports: Vec<ServicePort>,
    /// Session affinity of the oldest export.
    pub session_affinity: SessionAffinity,
    /// Internal traffic policy of the oldest export.
    pub internal_traffic_policy: TrafficPolicy,
    /// Traffic distribution of the oldest export.
    pub traffic_distribution: Option<Arc<str>>,
    /// IP families of the oldest export, its primary family first.
    pub ip_families: Vec<IpFamily>,
    /// IP families that only younger exports have, for clusters that support none of the oldest export's families.
    pub other_families: Vec<IpFamily>,
    /// Cluster selection of the oldest export.
    pub cluster_selection: Option<Arc<str>>,
    /// Exports differ in it. KEP-1645 has no reason for that among those of the condition `Conflict`.
    pub selection_conflict: Option<Conflict>,
    /// Exported labels of the oldest export.
    pub labels: BTreeMap<String, String>,
    /// Exported annotations of the oldest export.
    pub annotations: BTreeMap<String, String>,
    /// For each exporting cluster, the names of the merged ports that it really exposes. Only these ports send traffic
    /// to its endpoints.
    pub clusters: BTreeMap<ClusterId, Vec<Arc<str>>>,
    /// The conflicts, in the order of [`ConflictReason`]. Empty if all exports agree.
    pub conflicts: Vec<Conflict>,
}

/// One property in which exports differ. Every ServiceExport of the name reports it (KEP-1645).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The property.
    pub reason: ConflictReason,
    /// Field, value in use, winning cluster, and how many clusters disagree. It is the same in every cluster.
    pub summary: String,
    /// The value of each cluster that disagrees.
    pub differing: BTreeMap<ClusterId, String>,
}

impl Conflict {
    /// The message for the ServiceExport of one cluster: what this cluster should change, or which others differ.
    pub fn message(&self, cluster: &ClusterId) -> String {
        if let Some(value) = self.differing.get(cluster) {
            let object = self.reason.object();
            return format!(
                "{} This cluster's {object} has {value}: make it equal, or delete this ServiceExport.",
                self.summary
            );
        }
        let named: Vec<_> =
            self.differing.iter().take(MAX_NAMED).map(|(id, value)| format!("\"{id}\" has {value}")).collect();
        let more = match self.differing.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        format!("{} Cluster {}{more}.", self.summary, named.join("; "))
    }
}

/// How many clusters a message lists with their values.
const MAX_NAMED: usize = 3;

/// Reasons of the condition `Conflict`. Several are joined with commas, in this order. The spelling is that of the
/// upstream API (`pkg/apis/v1beta1/serviceexport.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConflictReason {
    /// The types differ.
    Type,
    /// Ports with one name, or with one protocol and number, differ.
    Port,
    /// The session affinities differ.
    SessionAffinity,
    /// The timeouts of the session affinity differ.
    SessionAffinityConfig,
    /// The internal traffic policies differ.
    InternalTrafficPolicy,
    /// The traffic distributions differ.
    TrafficDistribution,
    /// An export lacks an IP family of the oldest export.
    IpFamily,
    /// The exported labels differ.
    Labels,
    /// The exported annotations differ.
    Annotations,
    /// The cluster selections differ. The reason is that of KEP-5939, and not of the condition `Conflict`.
    ClusterSelection,
}

impl ConflictReason {
    /// All reasons of the condition `Conflict`, in the order in which it joins them.
    pub const ALL: [Self; 9] = [
        Self::Type,
        Self::Port,
        Self::SessionAffinity,
        Self::SessionAffinityConfig,
        Self::InternalTrafficPolicy,
        Self::TrafficDistribution,
        Self::IpFamily,
        Self::Labels,
        Self::Annotations,
    ];

    /// The spelling of the upstream API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Type => "TypeConflict",
            Self::Port => "PortConflict",
            Self::SessionAffinity => "SessionAffinityConflict",
            Self::SessionAffinityConfig => "SessionAffinityConfigConflict",
            Self::InternalTrafficPolicy => "InternalTrafficPolicyConflict",
            Self::TrafficDistribution => "TrafficDistributionConflict",
            Self::IpFamily => "IPFamilyConflict",
            Self::Labels => "LabelsConflict",
            Self::Annotations => "AnnotationsConflict",
            Self::ClusterSelection => "ClusterSelectorsConflict",
        }
    }

    /// The kind of object that contains the property.
    const fn object(self) -> &'static str {
        match self {
            Self::Labels | Self::Annotations | Self::ClusterSelection => "ServiceExport",
            _ => "Service",
        }
    }
}

/// Merges the exports that the clusters have of one name; `None` if there are none.
pub fn merge(exports: &BTreeMap<ClusterId, &Export>) -> Option<ClusterSetService> {
    use ConflictReason as Reason;

    let mut by_age: Vec<(&ClusterId, &Export)> = exports.iter().map(|(id, export)| (id, *export)).collect();
    by_age.sort_by_key(|(id, export)| (export.created, *id));
    let &(_, oldest) = by_age.first()?;

    let MergedPorts { ports, clusters, conflict: port_conflict } = merge_ports(&by_age);
    let exports = Exports { by_age: &by_age };
    let conflicts = [
        exports.compare(Reason::Type, "type", |e| e.service_type, |v| quoted(v)),
        port_conflict,
        exports.compare(
            Reason::SessionAffinity,
            "sessionAffinity",
            |e| matches!(e.session_affinity, SessionAffinity::ClientIp { .. }),
            |client_ip| quoted(if *client_ip { "ClientIP" } else { "None" }),
        ),
        exports.affinity_config(),
        exports.compare(
            Reason::InternalTrafficPolicy,
            "internalTrafficPolicy",
            |e| e.internal_traffic_policy,
            |v| quoted(v),
        ),
        exports.compare(
            Reason::TrafficDistribution,
            "trafficDistribution",
            |e| e.traffic_distribution.clone(),
            |v| v.as_deref().map_or_else(|| "none".to_owned(), quoted),
        ),
        exports.ip_families(),
        exports.compare(Reason::Labels, "exportedLabels", |e| &e.labels, |v| map_text(v)),
        exports.compare(Reason::Annotations, "exportedAnnotations", |e| &e.annotations, |v| map_text(v)),
    ];

    let selection_conflict = exports.compare(
        Reason::ClusterSelection,
        "cluster selection",
        |e| e.cluster_selection.clone(),
        |v| v.as_deref().unwrap_or("none").to_owned(),
    );
    Some(ClusterSetService {
        cluster_selection: oldest.cluster_selection.clone(),
        selection_conflict,
        service_type: oldest.service_type,
        ports,
        session_affinity: oldest.session_affinity,
        internal_traffic_policy: oldest.internal_traffic_policy,
        traffic_distribution: oldest.traffic_distribution.clone(),
        ip_families: oldest.ip_families.clone(),
        other_families: other_families(&by_age),
        labels: oldest.labels.clone(),
        annotations: oldest.annotations.clone(),
        clusters,
        conflicts: conflicts.into_iter().flatten().collect(),
    })
}

impl ClusterSetService {
    /// The families by which a cluster that supports `supported` serves the service: those of the oldest export, or, if
    /// it supports none of them, those of the other exports.
    pub fn families_in(&self, supported: &[IpFamily]) -> Vec<IpFamily> {
        let usable = |families: &[IpFamily]| -> Vec<IpFamily> {
            families.iter().copied().filter(|family| supported.contains(family)).collect()
        };
        let first = usable(&self.ip_families);
        if first.is_empty() { usable(&self.other_families) } else { first }
    }
}

fn other_families(by_age: &[(&ClusterId, &Export)]) -> Vec<IpFamily> {
    let mut others = Vec::new();
    for family in by_age.iter().flat_map(|(_, export)| &export.ip_families) {
        if !by_age[0].1.ip_families.contains(family) && !others.contains(family) {
            others.push(*family);
        }
    }
    others
}

struct MergedPorts {
    ports: Vec<ServicePort>,
    clusters: BTreeMap<ClusterId, Vec<Arc<str>>>,
    conflict: Option<Conflict>,
}

/// Merges the ports: first by name, then by (protocol, number). If two exports differ, the older one's port stays.
fn merge_ports(by_age: &[(&ClusterId, &Export)]) -> MergedPorts {
    let mut merged: Vec<(&ServicePort, &ClusterId)> = Vec::new();
    let mut clusters = BTreeMap::new();
    let mut refused = String::new();
    for &(cluster, export) in by_age {
        let mut carried = BTreeSet::new();
        for port in &export.ports {
            let number = |port: &ServicePort| (port.protocol, port.port);
            let rival = merged.iter().find(|(m, _)| m.name == port.name || number(m) == number(port));
            match rival {
                None => {
                    merged.push((port, cluster));
                    carried.insert(port.name.clone());
                }
                Some((winner, _)) if winner.name == port.name && number(winner) == number(port) => {
                    carried.insert(port.name.clone());
                }
                Some((winner, owner)) => {
                    let _ = write!(
                        refused,
                        " Not served: {} of {}, because {} of {} is older.",
                        port_text(port),
                        quoted(cluster),
                        port_text(winner),
                        quoted(owner)
                    );
                }
            }
        }
        clusters.insert(cluster.clone(), carried.into_iter().collect::<Vec<_>>());
    }

    let &(winner, oldest) = &by_age[0];
    let sorted = |export: &Export| {
        let mut ports = export.ports.clone();
        ports.sort();
        ports
    };
    let expected = sorted(oldest);
    let differing: BTreeMap<ClusterId, String> = by_age
        .iter()
        .filter(|(_, export)| sorted(export) != expected)
        .map(|(cluster, export)| ((*cluster).clone(), their_ports(export, &clusters[*cluster])))
        .collect();
    let conflict = (!differing.is_empty()).then(|| {
        let of = |wanted: &dyn Fn(&ClusterId) -> bool| {
            ports_text(merged.iter().filter(|(_, owner)| wanted(owner)).map(|(port, _)| *port))
        };
        let added = merged.iter().any(|(_, owner)| *owner != winner);
        let others = if added { format!(", and {} of the others", of(&|owner| owner != winner)) } else { String::new() };
        Conflict {
            reason: ConflictReason::Port,
            summary: format!(
                "Conflicting ports. Using {} from oldest service export in {}{others}. {}/{} clusters disagree.{refused}",
                of(&|owner| owner == winner),
                quoted(winner),
                differing.len(),
                by_age.len(),
            ),
            differing,
        }
    });
    MergedPorts { ports: merged.into_iter().map(|(port, _)| port.clone()).collect(), clusters, conflict }
}

/// The ports of one cluster, and on which of them its endpoints get traffic, unless they do on all.
fn their_ports(export: &Export, carried: &[Arc<str>]) -> String {
    let all = ports_text(&export.ports);
    let (served, refused): (Vec<&ServicePort>, Vec<_>) =
        export.ports.iter().partition(|port| carried.contains(&port.name));
    match (served.is_empty(), refused.is_empty()) {
        (_, true) => all,
        (true, false) => format!("{all}, on none of which its endpoints get traffic"),
        (false, false) => format!("{all}, of which its endpoints get traffic on {} only", ports_text(served)),
    }
}

/// The exports of all clusters, compared with the oldest one.
struct Exports<'a> {
    by_age: &'a [(&'a ClusterId, &'a Export)],
}

impl<'a> Exports<'a> {
    fn compare<T: PartialEq>(
        &self,
        reason: ConflictReason,
        field: &str,
        property: impl Fn(&'a Export) -> T,
        text: impl Fn(&T) -> String,
    ) -> Option<Conflict> {
        let value = property(self.by_age[0].1);
        let differs = |export| {
            let theirs = property(export);
            (theirs != value).then(|| text(&theirs))
        };
        self.conflict(reason, field, &text(&value), differs)
    }

    /// The conflict over a field. `differs` returns the value of an export, or `None` if it agrees with the oldest one.
    fn conflict(
        &self,
        reason: ConflictReason,
        field: &str,
        used: &str,
        differs: impl Fn(&'a Export) -> Option<String>,
    ) -> Option<Conflict> {
        let differing: BTreeMap<ClusterId, String> =
            self.by_age.iter().filter_map(|&(cluster, export)| Some((cluster.clone(), differs(export)?))).collect();
        (!differing.is_empty()).then(|| Conflict {
            reason,
            summary: format!(
                "Conflicting {field}. Using {used} from oldest service export in {}. {}/{} clusters disagree.",
                quoted(self.by_age[0].0),
                differing.len(),
                self.by_age.len(),
            ),
            differing,
        })
    }

    /// Only exports that have client-IP affinity, like the oldest one, can disagree about its timeout.
    fn affinity_config(&self) -> Option<Conflict> {
        let seconds = |export: &Export| match export.session_affinity {
            SessionAffinity::ClientIp { timeout } => Some(timeout.unwrap_or(DEFAULT_AFFINITY_TIMEOUT)),
            SessionAffinity::None => None,
        };
        let used = seconds(self.by_age[0].1)?;
        self.conflict(
            ConflictReason::SessionAffinityConfig,
            "sessionAffinityConfig.clientIP.timeoutSeconds",
            &used.to_string(),
            |export| seconds(export).filter(|theirs| *theirs != used).map(|theirs| theirs.to_string()),
        )
    }

    /// KEP-1645 reports this conflict if traffic reaches only some of the backends, depending on its IP family. That is
    /// so if an export lacks a family that the oldest one has.
    fn ip_families(&self) -> Option<Conflict> {
        let used = &self.by_age[0].1.ip_families;
        self.conflict(ConflictReason::IpFamily, "ipFamilies", &families_text(used), |export| {
            let lacking: Vec<_> = used.iter().copied().filter(|family| !export.ip_families.contains(family)).collect();
            (!lacking.is_empty()).then(|| {
                format!(
                    "{}, so that its endpoints get no traffic by {}",
                    families_text(&export.ip_families),
                    lacking.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
                )
            })
        })
    }
}

fn quoted(value: impl fmt::Display) -> String {
    format!("\"{value}\"")
}

fn port_text(port: &ServicePort) -> String {
    let mut text = format!("{}/{}", port.port, port.protocol);
    if !port.name.is_empty() {
        text = format!("{} {text}", quoted(&port.name));
    }
    if let Some(app) = &port.app_protocol {
        let _ = write!(text, " ({app})");
    }
    text
}

fn ports_text<'a>(ports: impl IntoIterator<Item = &'a ServicePort>) -> String {
    format!("[{}]", ports.into_iter().map(port_text).collect::<Vec<_>>().join(", "))
}

fn families_text(families: &[IpFamily]) -> String {
    format!("[{}]", families.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

fn map_text(map: &BTreeMap<String, String>) -> String {
    let pairs: Vec<_> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(", "))
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
