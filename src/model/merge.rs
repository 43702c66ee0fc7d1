//! KEP-1645's conflict rules: the exports that several clusters have of one name become one service.
//!
//! The same claims give the same answer in every cluster, in whatever order they come. The oldest export wins
//! (`metadata.creationTimestamp` of the ServiceExport, then the cluster id, because timestamps have whole seconds), so
//! that a younger export never changes what running traffic sees, but for the ports that it adds.

use std::{collections::BTreeMap, fmt, fmt::Write as _, sync::Arc};

use super::{ClusterId, Export, IpFamily, ServicePort, ServiceType, SessionAffinity, TrafficPolicy};

/// What a name is in the whole ClusterSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSetService {
    pub service_type: ServiceType,
    /// The union of all exports' ports, without a duplicate name or a duplicate (protocol, port).
    pub ports: Vec<ServicePort>,
    pub session_affinity: SessionAffinity,
    pub internal_traffic_policy: TrafficPolicy,
    pub traffic_distribution: Option<Arc<str>>,
    /// Those of the oldest export, its primary family first.
    pub ip_families: Vec<IpFamily>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// For each exporting cluster the names of the merged ports that it really exposes: only these may receive its
    /// endpoints.
    pub clusters: BTreeMap<ClusterId, Vec<Arc<str>>>,
    /// In the order of [`ConflictReason`]; empty when all agree.
    pub conflicts: Vec<Conflict>,
}

/// One disagreement between exports, to be shown on every ServiceExport of the name (KEP-1645).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    pub reason: ConflictReason,
    pub message: String,
}

/// Reasons of the `Conflict` condition; several are joined with commas, in this order. Spelled as in the upstream API (`pkg/apis/v1beta1/serviceexport.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConflictReason {
    Type,
    Port,
    SessionAffinity,
    SessionAffinityConfig,
    InternalTrafficPolicy,
    TrafficDistribution,
    IpFamily,
    Labels,
    Annotations,
}

impl ConflictReason {
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
        }
    }
}

/// Merges the exports that the clusters have of one name; `None` where nobody exports it.
pub fn merge(exports: &BTreeMap<ClusterId, &Export>) -> Option<ClusterSetService> {
    let mut by_age: Vec<(&ClusterId, &Export)> = exports.iter().map(|(id, export)| (id, *export)).collect();
    by_age.sort_by_key(|(id, export)| (export.created, *id));
    let &(_, oldest) = by_age.first()?;

    let (ports, clusters, port_conflict) = merge_ports(&by_age);
    let disagreement = Disagreement { by_age: &by_age };
    let conflicts = [
        disagreement.over(ConflictReason::Type, "type", |e| e.service_type, |v| quoted(v)),
        port_conflict,
        disagreement.over(
            ConflictReason::SessionAffinity,
            "session affinity",
            |e| matches!(e.session_affinity, SessionAffinity::ClientIp { .. }),
            |client_ip| quoted(if *client_ip { "ClientIP" } else { "None" }),
        ),
        disagreement.affinity_config(),
        disagreement.over(
            ConflictReason::InternalTrafficPolicy,
            "internal traffic policy",
            |e| e.internal_traffic_policy,
            |v| quoted(v),
        ),
        disagreement.over(
            ConflictReason::TrafficDistribution,
            "traffic distribution",
            |e| e.traffic_distribution.clone(),
            |v| v.as_deref().map_or_else(|| "none".to_owned(), |v| quoted(v)),
        ),
        disagreement.ip_families(),
        disagreement.over(ConflictReason::Labels, "exported labels", |e| &e.labels, |v| map_text(v)),
        disagreement.over(ConflictReason::Annotations, "exported annotations", |e| &e.annotations, |v| map_text(v)),
    ];

    Some(ClusterSetService {
        service_type: oldest.service_type,
        ports,
        session_affinity: oldest.session_affinity,
        internal_traffic_policy: oldest.internal_traffic_policy,
        traffic_distribution: oldest.traffic_distribution.clone(),
        ip_families: oldest.ip_families.clone(),
        labels: oldest.labels.clone(),
        annotations: oldest.annotations.clone(),
        clusters,
        conflicts: conflicts.into_iter().flatten().collect(),
    })
}

type PortNames = BTreeMap<ClusterId, Vec<Arc<str>>>;

/// Union of the ports: by name first, then by (protocol, port); where two exports differ the older one's port stays.
fn merge_ports(by_age: &[(&ClusterId, &Export)]) -> (Vec<ServicePort>, PortNames, Option<Conflict>) {
    let mut merged: Vec<(ServicePort, &ClusterId)> = Vec::new();
    let mut clusters = BTreeMap::new();
    let mut clashes = String::new();
    for &(cluster, export) in by_age {
        let mut carried = Vec::new();
        for port in &export.ports {
            let same = |(m, _): &&(ServicePort, &ClusterId)| {
                m.name == port.name || (m.protocol, m.port) == (port.protocol, port.port)
            };
            match merged.iter().find(same) {
                None => {
                    merged.push((port.clone(), cluster));
                    carried.push(port.name.clone());
                }
                Some((winner, _))
                    if winner.name == port.name && (winner.protocol, winner.port) == (port.protocol, port.port) =>
                {
                    carried.push(port.name.clone());
                }
                Some((winner, owner)) => {
                    let _ = write!(
                        clashes,
                        " Port {} of cluster {} is not served: {} of cluster {} is older.",
                        port_text(port),
                        quoted(cluster),
                        port_text(winner),
                        quoted(owner)
                    );
                }
            }
        }
        carried.sort();
        clusters.insert(cluster.clone(), carried);
    }

    let sorted = |export: &Export| {
        let mut ports = export.ports.clone();
        ports.sort();
        ports
    };
    let (winner, oldest) = by_age[0];
    let expected = sorted(oldest);
    let differing = by_age.iter().filter(|(_, export)| sorted(export) != expected).count();
    let conflict = (differing > 0).then(|| Conflict {
        reason: ConflictReason::Port,
        message: format!(
            "Conflicting ports. Using the union of all ports, first of all [{}] from oldest service export in {}. \
             {differing}/{} clusters disagree.{clashes}",
            expected.iter().map(port_text).collect::<Vec<_>>().join(", "),
            quoted(winner),
            by_age.len(),
        ),
    });
    (merged.into_iter().map(|(port, _)| port).collect(), clusters, conflict)
}

/// Compares a property of all exports with the oldest one's.
struct Disagreement<'a> {
    by_age: &'a [(&'a ClusterId, &'a Export)],
}

impl<'a> Disagreement<'a> {
    fn over<T: PartialEq>(
        &self,
        reason: ConflictReason,
        field: &str,
        property: impl Fn(&'a Export) -> T,
        text: impl Fn(&T) -> String,
    ) -> Option<Conflict> {
        let (winner, oldest) = self.by_age[0];
        let value = property(oldest);
        let differing = self.by_age.iter().filter(|(_, export)| property(export) != value).count();
        (differing > 0).then(|| Conflict {
            reason,
            message: format!(
                "Conflicting {field}. Using {} from oldest service export in {}. {differing}/{} clusters disagree.",
                text(&value),
                quoted(winner),
                self.by_age.len(),
            ),
        })
    }

    /// Only exports that have client-IP affinity like the oldest one can disagree about its time-out.
    fn affinity_config(&self) -> Option<Conflict> {
        let SessionAffinity::ClientIp { timeout } = self.by_age[0].1.session_affinity else { return None };
        let seconds = |timeout: Option<u32>| timeout.unwrap_or(10_800);
        self.over(
            ConflictReason::SessionAffinityConfig,
            "session affinity config",
            |export| match export.session_affinity {
                SessionAffinity::ClientIp { timeout } => seconds(timeout),
                SessionAffinity::None => seconds(timeout),
            },
            |seconds| format!("clientIP.timeoutSeconds {seconds}"),
        )
    }

    /// KEP-1645: raised when traffic reaches only some of the backends depending on its family, which is so where an
    /// export lacks a family that the oldest one has.
    fn ip_families(&self) -> Option<Conflict> {
        let (winner, oldest) = self.by_age[0];
        let lacking: Vec<_> = self
            .by_age
            .iter()
            .filter(|(_, export)| oldest.ip_families.iter().any(|family| !export.ip_families.contains(family)))
            .map(|(cluster, export)| format!("{} has [{}]", quoted(cluster), families_text(&export.ip_families)))
            .collect();
        (!lacking.is_empty()).then(|| Conflict {
            reason: ConflictReason::IpFamily,
            message: format!(
                "Conflicting IP families. Using [{}] from oldest service export in {}. {}/{} clusters disagree: {}.",
                families_text(&oldest.ip_families),
                quoted(winner),
                lacking.len(),
                self.by_age.len(),
                lacking.join(", "),
            ),
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

fn families_text(families: &[IpFamily]) -> String {
    families.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn map_text(map: &BTreeMap<String, String>) -> String {
    let pairs: Vec<_> = map.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{{{}}}", pairs.join(", "))
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
