//! That what processes hold is bounded by what there is: their own metrics, compared with the objects at rest.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    claims::claims,
    expect::merged,
    ledger::Ledgers,
    world::{Cluster, Slot, World},
};

/// Garbage of a ledger may wait for as long as anybody could still read it.
const GARBAGE: f64 = 50.0;

/// A process that holds more, or has more to do, than it should at rest.
pub(crate) fn exceeded(world: &World) -> Option<String> {
    let claims = claims(&world.clusters);
    for (index, cluster) in world.clusters.iter().enumerate() {
        let own = |group: &String| *group == cluster.group();
        let targets =
            claims.values().filter(|claims| claims.iter().any(|it| it.cluster == index && own(&it.group))).count();
        let ids: usize = world.clusters.iter().map(|cluster| cluster.ids.len()).sum();
        let mut leaders = 0;
        for slot in &cluster.replicas {
            let held = held(slot);
            let of = |name: &str| held.get(&format!("cloudmap_mcs_{name}")).copied();
            let mut limits = caches(cluster);
            if of("leader").is_some_and(|leads| leads > 0.0) {
                leaders += 1;
                limits.extend([
                    ("queue_length".to_owned(), 0.0),
                    ("instances_queued_writes".to_owned(), 0.0),
                    ("instances_running_operations".to_owned(), 0.0),
                    ("instances_targets".to_owned(), targets as f64),
                    ("clusters".to_owned(), ids as f64),
                ]);
                if cluster.membership().is_some() {
                    limits.push(("ledger_pages/garbage".to_owned(), GARBAGE));
                    // Also those of its own exports that are refused.
                    let mut names: BTreeSet<_> = merged(&world.clusters, cluster).into_keys().collect();
                    names.extend(cluster.api.list("serviceexports").into_keys());
                    limits.push(("services".to_owned(), names.len() as f64));
                }
            }
            // A metric that is not there is none that is small enough.
            let over = |name: &str, most: f64| of(name).is_none_or(|value| value > most);
            if let Some((name, most)) = limits.into_iter().find(|(name, most)| over(name, *most)) {
                let mut ledgers = Ledgers::default();
                let read = world.registry.with(|cloudmap, _| ledgers.read(cloudmap));
                let records: Vec<_> = ledgers.of(&cluster.uid).map(|(_, ledger)| &ledger.records).collect();
                return Some(format!(
                    "{}: {name} is {:?}, more than {most}; records {records:?} {read:?}",
                    slot.name,
                    of(&name)
                ));
            }
        }
        // Nothing of a leader is looked at where nobody says that it leads.
        if leaders != 1 {
            return Some(format!("{}: {leaders} replicas lead", cluster.id));
        }
    }
    None
}

/// What the caches of a replica may hold at most.
fn caches(cluster: &Cluster) -> Vec<(String, f64)> {
    let most =
        |kind: &str, plural: &str| (format!("kubernetes_cache_objects/{kind}"), cluster.api.list(plural).len() as f64);
    [
        most("Service", "services"),
        most("ServiceExport", "serviceexports"),
        most("ServiceImport", "serviceimports"),
        most("Namespace", "namespaces"),
        most("ClusterProperty", "clusterproperties"),
        most("ClusterImportPolicy", "clusterimportpolicies"),
        most("EndpointSlice", "endpointslices"),
        most("ImportedEndpointSlice", "endpointslices"),
    ]
    .into()
}

/// The gauges of a process, by name, and by the value of their label if they have one.
fn held(slot: &Slot) -> BTreeMap<String, f64> {
    let mut held = BTreeMap::new();
    for family in slot.exposed.gather() {
        for metric in family.get_metric() {
            let labels = metric.get_label().iter().map(prometheus::proto::LabelPair::value);
            let name: Vec<_> = std::iter::once(family.name()).chain(labels).collect();
            held.insert(name.join("/"), metric.get_gauge().get_value());
        }
    }
    held
}
