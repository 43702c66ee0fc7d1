//! Who gets the connections of clients here.

use std::collections::BTreeMap;

use kube::ResourceExt as _;

use super::{super::report::Finding, Follow, is_ready};
use api::{ServiceImportType, conditions::ImportCondition, names};
use cluster::objects;

/// The zone of endpoints without one.
const UNKNOWN: &str = "unknown";
/// Number of clusters and zones that are named, those that get most.
const MOST_NAMED: usize = 8;

/// Which part of the connections each of these gets, by their ready endpoints.
fn parts(counts: BTreeMap<&str, usize>) -> String {
    let all: usize = counts.values().sum();
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    let part = |(name, count): &(&str, usize)| format!("{name} {} % ({count} of {all})", (count * 100 + all / 2) / all);
    let named: Vec<_> = counts.iter().take(MOST_NAMED).map(part).collect();
    let more = counts.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

impl Follow<'_> {
    /// What each cluster and each zone gets of the connections of clients here: kube-proxy gives each ready endpoint the same.
    pub(super) fn traffic(&self) -> Option<Finding> {
        let import = self.name.import.as_ref().ok()?.as_ref()?;
        let slices = self.name.imported.as_ref().ok()?;
        if import.spec.type_ == ServiceImportType::Headless {
            return None;
        }
        // An endpoint with two families is in two slices, and slices of a former derived Service list it again.
        let mut families = BTreeMap::<&str, BTreeMap<(&str, &str), &str>>::new();
        for slice in slices.iter().filter(|slice| objects::is_managed_slice(&slice.metadata)) {
            let source = slice.labels().get(names::LABEL_SOURCE_CLUSTER).map_or("", String::as_str);
            for endpoint in slice.endpoints.iter().filter(|endpoint| is_ready(endpoint)) {
                if let Some(address) = endpoint.addresses.first() {
                    let zone = endpoint.zone.as_deref().unwrap_or(UNKNOWN);
                    families.entry(&slice.address_type).or_default().insert((source, address), zone);
                }
            }
        }
        let endpoints = families.into_values().max_by_key(BTreeMap::len)?;
        let (mut clusters, mut zones) = (BTreeMap::new(), BTreeMap::new());
        for ((source, _), zone) in endpoints {
            *clusters.entry(source).or_default() += 1;
            *zones.entry(zone).or_default() += 1;
        }
        let said = self
            .condition(ImportCondition::ClusterSelection)
            .map(|said| format!(". {}", said.message))
            .unwrap_or_default();
        let has_zones = zones.keys().any(|zone| *zone != UNKNOWN);
        let zones = if has_zones { format!("; by zone {}", parts(zones)) } else { String::new() };
        let text = format!("by cluster {}{zones}{said}", parts(clusters));
        Some(Finding::well("connections", text))
    }
}
