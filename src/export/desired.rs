//! The desired state of this cluster's ledger: encoded exports, chunks of endpoints, registration records.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    endpoints::by_addresses,
    registrations::{Changed, Dates, Registrations},
};
use crate::{
    ledger::{
        Map, Value,
        chunks::{assign, is_served},
        records::{self, TooLarge},
    },
    model::{ClaimOwner, ClaimState, Exported, Registration, ServiceKey, Target},
};

/// All exports of this cluster, and the ledger map that contains them.
///
/// It starts from the own ledger as the previous leader left it: endpoints stay in their chunks, claims keep their
/// dates, and targets that nobody wants any more stay known until their instances were seen to be gone.
#[derive(Debug)]
pub struct Exports {
    map: Map,
    registrations: Registrations,
    refused: BTreeMap<ServiceKey, TooLarge>,
}

impl Exports {
    /// The exports in the ledger map of the previous leader.
    pub fn resume(own: &Map) -> Self {
        let catalog = records::Catalog::decode(own);
        let registrations = Registrations::resume(catalog.registrations, catalog.waiting);
        Self { map: own.clone(), registrations, refused: BTreeMap::new() }
    }

    /// Every name in the ledger, even if it is no longer exported.
    pub fn names(&self) -> BTreeSet<ServiceKey> {
        records::changed_services(&Map::new(), &self.map)
    }

    /// The map to publish.
    pub fn map(&self) -> Arc<Map> {
        Arc::new(self.map.clone())
    }

    /// The encoded record for a key of the map.
    pub fn record(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }

    /// Why the newest version of an export is not in the map, if so. The last version that fitted stays there.
    pub fn refusal(&self, key: &ServiceKey) -> Option<&TooLarge> {
        self.refused.get(key)
    }

    /// The export as the map contains it, and as other clusters see it.
    pub fn said(&self, key: &ServiceKey) -> Option<Exported> {
        records::decode_service(&self.map, key, &mut Vec::new())
    }

    /// The registration records.
    pub fn registrations(&self) -> &BTreeMap<Target, Registration> {
        self.registrations.held()
    }

    /// Since when an owner has waited for its first target, by the records of earlier leaders.
    pub fn waited_since(&self, owner: &ClaimOwner) -> Option<i64> {
        self.registrations.waited_since(owner)
    }

    /// The dates of all claims, in seconds since 1970.
    pub fn dates(&self) -> impl Iterator<Item = i64> {
        self.registrations.dates()
    }

    /// Sets what a name exports (`None`: nothing) and the targets that it wants. Returns the owners that may now get a
    /// target for which they waited.
    ///
    /// `dates` determines the dates of new claims.
    pub fn set<'a>(
        &mut self,
        key: &ServiceKey,
        local: Option<Arc<Exported>>,
        targets: BTreeSet<Target>,
        dates: impl Into<Dates<'a>>,
    ) -> BTreeSet<ClaimOwner> {
        let freed = self.claim(&ClaimOwner::export(key), targets, dates);
        let Some(local) = local else {
            self.refused.remove(key);
            self.remove_service(key);
            return freed;
        };
        match self.encode(key, &local) {
            Ok(()) => self.refused.remove(key),
            Err(too_large) => self.refused.insert(key.clone(), too_large),
        };
        freed
    }

    /// Sets the targets that an owner wants. Returns the owners that may now get a target for which they waited. `dates`
    /// determines the dates of new claims.
    pub fn claim<'a>(
        &mut self,
        owner: &ClaimOwner,
        targets: BTreeSet<Target>,
        dates: impl Into<Dates<'a>>,
    ) -> BTreeSet<ClaimOwner> {
        let changed = self.registrations.set(owner, targets, dates);
        self.put(changed)
    }

    /// Sets what the claim of an owner to a target says of it. Returns the owners that may now get a target for which they
    /// waited, and whether the map changed. `dates` determines the date of a claim that is able again.
    pub fn set_state<'a>(
        &mut self,
        target: &Target,
        owner: &ClaimOwner,
        state: ClaimState,
        dates: impl Into<Dates<'a>>,
    ) -> (BTreeSet<ClaimOwner>, bool) {
        let changed = self.registrations.set_state(target, owner, state, dates);
        let anything = !changed.records.is_empty() || !changed.waits.is_empty();
        (self.put(changed), anything)
    }

    /// The owners that wait for a target and may not register there.
    pub fn unable(&self, target: &Target) -> impl Iterator<Item = &ClaimOwner> {
        self.registrations.unable(target)
    }

    /// Gives the record of a target to a waiting owner that `shares` the target with its holder in another cluster. Returns
    /// the owners concerned.
    pub fn pass(&mut self, target: &Target, shares: impl Fn(&ClaimOwner) -> bool) -> BTreeSet<ClaimOwner> {
        self.registrations.pass(target, shares).map(|changed| self.put(changed)).unwrap_or_default()
    }

    /// Retires the registrations that an earlier leader recorded for owners that no longer exist.
    pub fn retire_unowned(&mut self, is_owner: impl Fn(&ClaimOwner) -> bool) {
        let changed = self.registrations.retire_unowned(is_owner);
        self.put(changed);
    }

    /// Records a target as retired that was not on record.
    pub fn retire(&mut self, target: &Target, owner: &ClaimOwner, now: i64) {
        let changed = self.registrations.retire(target, owner, now);
        self.put(changed);
    }

    /// Removes the record of a retired target that has no instance of this cluster any more. Returns the owners that
    /// waited for it.
    pub fn retired(&mut self, target: &Target) -> BTreeSet<ClaimOwner> {
        let Some(freed) = self.registrations.retired(target) else { return BTreeSet::new() };
        self.map.remove(&records::registration_key(target));
        freed
    }

    /// Puts changed records into the map. Returns the freed owners.
    fn put(&mut self, Changed { records, waits, freed }: Changed) -> BTreeSet<ClaimOwner> {
        // The names of namespaces and services are limited (by Cloud Map), so the records always fit.
        let held = records.iter().filter_map(|target| self.registrations.held().get(target));
        self.map.extend(held.filter_map(|held| records::encode_registration(held).ok()));
        for (target, owner) in waits {
            self.map.remove(&records::waiting_key(&target, &owner));
            if let Some(waiting) = self.registrations.waits(&target, &owner) {
                self.map.extend(records::encode_waiting(&waiting).ok());
            }
        }
        freed
    }

    /// Encodes an export. If the record is too large, the last version that fitted stays. An endpoint that is too large
    /// is left out. The other endpoints are kept up to date all the same, because endpoints that are gone serve nobody.
    fn encode(&mut self, key: &ServiceKey, local: &Exported) -> Result<(), TooLarge> {
        let Exported { export, endpoints } = local;
        let mut refusal = None;
        let previous = records::chunks(&self.map, key);
        match records::encode_export(key, export) {
            Ok((key, value)) => self.say(key, value),
            Err(too_large) if self.map.contains_key(&records::export_key(key)) => refusal = Some(too_large),
            Err(too_large) => return Err(too_large),
        }
        // Chunks refer to the ports of the record that others read.
        let ports = if refusal.is_none() { &export.ports } else { &records::ports(&self.map, key) };
        let served = by_addresses(endpoints.iter().filter(|endpoint| is_served(endpoint, ports)));
        let mut chunks = BTreeMap::new();
        for chunk in assign(&previous, &served) {
            match records::encode_chunk(key, &chunk, ports) {
                Ok(pair) => chunks.extend([pair]),
                Err(too_large) => refusal = refusal.or(Some(too_large)),
            }
        }
        for stale in records::chunk_keys(&self.map, key) {
            if !chunks.contains_key(&stale) {
                self.map.remove(&stale);
            }
        }
        for (key, value) in chunks {
            self.say(key, value);
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Puts a record into the map. One that says the same stays, with what it shares with earlier states.
    fn say(&mut self, key: Arc<str>, value: Value) {
        if self.map.get(&key) != Some(&value) {
            self.map.insert(key, value);
        }
    }

    fn remove_service(&mut self, key: &ServiceKey) {
        self.map.remove(&records::export_key(key));
        for chunk in records::chunk_keys(&self.map, key) {
            self.map.remove(&chunk);
        }
    }
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;
