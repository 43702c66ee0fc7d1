//! Which pods are registered for a share. They stay while they are ready, and are spread over zones as far as that
//! needs no exchange.

use std::collections::{BTreeMap, BTreeSet};

/// A pod that can be registered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate<'a> {
    /// What tells it from other pods. Ties go to the first.
    pub id: &'a str,
    /// Its availability zone, if it is known.
    pub zone: Option<&'a str>,
    /// Whether it is registered already.
    pub registered: bool,
}

/// The ids of `number` candidates, or of all if there are fewer. Those that are registered come first. If they are too
/// many, pods of the zones that have most of them go; if they are too few, pods of the zones that have fewest come.
pub fn choose<'a>(candidates: impl IntoIterator<Item = Candidate<'a>>, number: usize) -> BTreeSet<&'a str> {
    let mut zones = BTreeMap::<Option<&str>, (BTreeSet<&str>, BTreeSet<&str>)>::new();
    for Candidate { id, zone, registered } in candidates {
        let (chosen, free) = zones.entry(zone).or_default();
        if registered {
            chosen.insert(id)
        } else {
            free.insert(id)
        };
    }
    let mut count: usize = zones.values().map(|(chosen, _)| chosen.len()).sum();
    while count > number {
        let fullest = zones.values_mut().rev().max_by_key(|(chosen, _)| chosen.len());
        fullest.and_then(|(chosen, _)| chosen.pop_last());
        count -= 1;
    }
    while count < number {
        let emptiest = zones.values_mut().filter(|(_, free)| !free.is_empty()).min_by_key(|(chosen, _)| chosen.len());
        let Some((chosen, free)) = emptiest else { break };
        chosen.extend(free.pop_first());
        count += 1;
    }
    zones.into_values().flat_map(|(chosen, _)| chosen).collect()
}
