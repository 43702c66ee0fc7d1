//! Pure: findings and remedies from an observation. One function for each subject.

mod between;
mod cluster;
mod gates;
mod network;
mod registry;
#[cfg(test)]
mod tests;

use super::{
    observe::{Cluster, Observation, Seen},
    report::Report,
};

/// All findings: cluster by cluster, then the clusters together, the registry, and the network.
pub(super) fn plan(observation: &Observation) -> Report {
    let mut findings = Vec::new();
    let seen: Vec<(&Cluster, &Seen)> =
        observation.clusters.iter().filter_map(|cluster| Some((cluster, cluster.seen.as_ref().ok()?))).collect();
    // One that is named with a member of a ClusterSet should be a member, too.
    let standalone = seen.iter().all(|(_, seen)| seen.is_standalone());
    for cluster in &observation.clusters {
        findings.extend(cluster::plan(cluster, standalone));
    }
    findings.extend(between::plan(&seen));
    match &observation.registry {
        None => {}
        Some(Ok(found)) => findings.extend(registry::plan(found, &seen)),
        Some(Err(why)) => findings.push(registry::unusable(why)),
    }
    if let Some(probed) = &observation.probed {
        findings.extend(network::plan(probed, &seen));
    }
    Report(findings)
}
