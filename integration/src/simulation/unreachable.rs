//! Which clusters may count as unreachable: written from `docs/unreachable.md`.

use std::time::Duration;

use super::world::{Cluster, World};

/// A judgement ends this long after the pods are reached again: the former leader died, its Lease ended, and the next one had to
/// find the other leaders, read its ledger, and write again while the API server fails.
const LATE: Duration = Duration::from_mins(4);

/// An import that says of a cluster that it cannot be reached, though it was reached all the time.
pub(super) fn wrong(world: &World) -> Option<String> {
    let network = world.network.as_ref()?;
    for (from, cluster) in world.clusters.iter().enumerate() {
        for (name, import) in cluster.api.list("serviceimports") {
            let conditions = import["status"]["conditions"].as_array().into_iter().flatten();
            let said = conditions.filter(|condition| condition["type"] == "Unreachable");
            let said: String = said.filter_map(|condition| condition["message"].as_str()).collect();
            let names = |(_, other): &(usize, &Cluster)| said.contains(&format!("{} (since", other.id));
            let wrongly = |(to, _): &(usize, &Cluster)| !network.lost(from, *to, LATE);
            if let Some((_, other)) = world.clusters.iter().enumerate().filter(names).find(wrongly) {
                return Some(format!("{} says of {} under {name:?}: {said}", cluster.id, other.id));
            }
        }
    }
    None
}
