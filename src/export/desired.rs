//! The desired state of this cluster's ledger: encoded exports, chunks of endpoints, registration records.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    accounts::Need,
    endpoints::by_addresses,
    quota::Usage,
    registrations::{Changed, Dates, Registrations},
};
use ledger::{
    Map, Value,
    limits::{MAX_PAIRS, MAX_STATE_BYTES},
};
use model::{ClaimOwner, ClaimState, Exported, Registration, ServiceKey, Target};
use records::{
    TooLarge,
    chunks::{Places, assign, is_served, places},
};

/// Why the newest version of an export is not in the map, or not all of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Shortened {
    /// A record is too large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The map has no room.
    #[error("this cluster has no room for more records, so new endpoints are left out; export fewer names")]
    Full,
}

/// The records of an export.
#[derive(Debug)]
pub struct Encoded {
    pairs: BTreeMap<Arc<str>, Value>,
    places: Places,
    refusal: Option<Shortened>,
    /// The record of the export fits, or an earlier one stays.
    has_record: bool,
}

impl Encoded {
    /// What the export needs, with so many endpoints and targets.
    pub fn need(&self, key: &ServiceKey, endpoints: usize, targets: &BTreeSet<Target>) -> Need {
        let owner = ClaimOwner::export(key);
        let mut fixed = Usage { names: targets.len().max(1), records: targets.len(), ..Usage::default() };
        fixed.bytes = targets.iter().map(|target| claim_bytes(&owner, target)).sum();
        let mut of_endpoints = Usage { instances: endpoints * targets.len(), ..Usage::default() };
        for (key, value) in &self.pairs {
            let sum = if key.contains('#') { &mut of_endpoints } else { &mut fixed };
            (sum.records, sum.bytes) = (sum.records + 1, sum.bytes + key.len() + value.len());
        }
        Need { fixed, endpoints, of_endpoints }
    }
}

/// What a target of an annotated object needs, with so many instances.
pub fn need_of_target(owner: &ClaimOwner, target: &Target, instances: usize) -> Need {
    let fixed = Usage { names: 1, records: 1, instances: 0, bytes: claim_bytes(owner, target) };
    Need { fixed, endpoints: instances, of_endpoints: Usage { instances, ..Usage::default() } }
}

/// The size of a registration record, or of one that waits, with its key.
fn claim_bytes(owner: &ClaimOwner, target: &Target) -> usize {
    let names = [&target.namespace, &target.service, &owner.kind, &owner.namespace, &owner.name];
    names.iter().map(|name| name.len() + 2).sum::<usize>() + 32
}

/// All exports of this cluster, and the ledger map that contains them.
///
/// It starts from the own ledger as the previous leader left it: endpoints stay in their chunks, claims keep their
/// dates, and targets that nobody wants any more stay known until their instances were seen to be gone.
#[derive(Debug, Clone)]
pub struct Exports {
    map: Map,
    /// Of all keys and values in it.
    bytes: usize,
    /// In which chunk of the map each endpoint is, by the name in the map.
    places: BTreeMap<ServiceKey, Places>,
    /// The largest map.
    capacity: Usage,
    registrations: Registrations,
    refused: BTreeMap<ServiceKey, Shortened>,
    /// The Kubernetes namespaces of targets that retire.
    retiring: BTreeMap<Target, Arc<str>>,
    /// Kubernetes namespaces in which a target began to retire (`true`), or is gone, since this was asked last.
    retired: Vec<(Arc<str>, bool)>,
    /// Targets whose record changed since this was asked last.
    changed: BTreeSet<Target>,
}

impl Exports {
    /// The exports in the ledger map of the previous leader.
    pub fn resume(own: &Map) -> Self {
        let registrations = Registrations::resume(records::registrations(own), records::waiting(own));
        let held = registrations.held().values().filter(|held| held.is_retiring());
        let retiring: BTreeMap<_, _> =
            held.map(|held| (held.target.clone(), Arc::clone(&held.owner.namespace))).collect();
        let names = records::changed_services(&Map::new(), own);
        Self {
            map: own.clone(),
            bytes: own.iter().map(|(key, value)| key.len() + value.len()).sum(),
            places: names.into_iter().map(|key| (key.clone(), records::places(own, &key))).collect(),
            capacity: Usage { records: MAX_PAIRS, bytes: MAX_STATE_BYTES, ..Usage::UNLIMITED },
            retired: retiring.values().map(|namespace| (Arc::clone(namespace), true)).collect(),
            registrations,
            refused: BTreeMap::new(),
            retiring,
            changed: BTreeSet::new(),
        }
    }

    /// The exports with another limit than the ledger's for the whole map.
    #[must_use]
    pub fn within(self, capacity: Usage) -> Self {
        Self { capacity, ..self }
    }

    /// How much the map has left for something new.
    pub fn room(&self) -> Usage {
        self.left().minus(self.reserve()).minus(self.reserve())
    }

    /// What endpoints leave to claims and to what is withdrawn, and the same that new names leave to endpoints: who is there
    /// has to be kept up to date. In the ledger, 1,024 records and 1 MiB.
    fn reserve(&self) -> Usage {
        Usage { records: self.capacity.records / 64, bytes: self.capacity.bytes / 32, ..Usage::default() }
    }

    fn left(&self) -> Usage {
        self.capacity.minus(Usage { records: self.map.len(), bytes: self.bytes, ..Usage::default() })
    }

    /// The exports of which endpoints are left out because the map has no room.
    pub fn shortened(&self) -> impl Iterator<Item = &ServiceKey> {
        self.refused.iter().filter(|(_, why)| **why == Shortened::Full).map(|(key, _)| key)
    }

    /// The Kubernetes namespaces in which a target began to retire (`true`), or is gone, since this was asked last.
    pub fn take_retired(&mut self) -> Vec<(Arc<str>, bool)> {
        std::mem::take(&mut self.retired)
    }

    /// The targets whose record changed since this was asked last.
    pub fn take_changed(&mut self) -> BTreeSet<Target> {
        std::mem::take(&mut self.changed)
    }

    /// Sets the properties of this cluster. Of one that has no room, nothing is published.
    pub fn set_properties<'a>(&mut self, properties: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let wanted = records::properties::records(properties);
        for stale in records::properties::keys(&self.map) {
            if !wanted.contains_key(&stale) {
                self.take_back(&stale);
            }
        }
        for (key, value) in wanted {
            self.put_record(key, value, Usage::default());
        }
    }

    /// Every name in the ledger, even if it is no longer exported.
    pub fn names(&self) -> BTreeSet<ServiceKey> {
        self.places.keys().cloned().collect()
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
    pub fn refusal(&self, key: &ServiceKey) -> Option<&Shortened> {
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

    /// The claims that hold a target or wait for one.
    pub fn claims(&self) -> impl Iterator<Item = (&ClaimOwner, &Target)> {
        self.registrations.claims()
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
        let encoded = local.map(|local| self.encode(key, &local));
        self.set_encoded(key, encoded, targets, dates)
    }

    /// The same with the records of the export ([`encode`](Self::encode)).
    pub fn set_encoded<'a>(
        &mut self,
        key: &ServiceKey,
        encoded: Option<Encoded>,
        targets: BTreeSet<Target>,
        dates: impl Into<Dates<'a>>,
    ) -> BTreeSet<ClaimOwner> {
        let freed = self.claim(&ClaimOwner::export(key), targets, dates);
        let Some(encoded) = encoded else {
            self.refused.remove(key);
            self.remove_service(key);
            return freed;
        };
        match self.put_all(key, encoded) {
            None => self.refused.remove(key),
            Some(why) => self.refused.insert(key.clone(), why),
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
        self.take_back(&records::registration_key(target));
        self.note_retiring(target);
        self.changed.insert(target.clone());
        freed
    }

    /// Puts changed records into the map. Returns the freed owners.
    fn put(&mut self, Changed { records, waits, freed }: Changed) -> BTreeSet<ClaimOwner> {
        // The names of namespaces and services are limited (by Cloud Map), so the records always fit.
        for target in &records {
            let held = self.registrations.held().get(target);
            if let Some((key, value)) = held.and_then(|held| records::encode_registration(held).ok()) {
                self.put_record(key, value, Usage::default());
            }
            self.note_retiring(target);
        }
        self.changed.extend(records);
        for (target, owner) in waits {
            self.take_back(&records::waiting_key(&target, &owner));
            if let Some(waiting) = self.registrations.waits(&target, &owner)
                && let Ok((key, value)) = records::encode_waiting(&waiting)
            {
                self.put_record(key, value, Usage::default());
            }
        }
        freed
    }

    fn note_retiring(&mut self, target: &Target) {
        let held = self.registrations.held().get(target).filter(|held| held.is_retiring());
        let now = held.map(|held| Arc::clone(&held.owner.namespace));
        let before = match &now {
            Some(namespace) => self.retiring.insert(target.clone(), Arc::clone(namespace)),
            None => self.retiring.remove(target),
        };
        if before != now {
            self.retired.extend(before.map(|namespace| (namespace, false)));
            self.retired.extend(now.map(|namespace| (namespace, true)));
        }
    }

    /// Encodes an export. If the record is too large, the last version that fitted stays. An endpoint that is too large
    /// is left out. The other endpoints are kept up to date all the same, because endpoints that are gone serve nobody.
    pub fn encode(&self, key: &ServiceKey, local: &Exported) -> Encoded {
        let Exported { export, endpoints } = local;
        let (mut refusal, mut pairs) = (None, BTreeMap::new());
        match records::encode_export(key, export) {
            Ok(pair) => pairs.extend([pair]),
            Err(too_large) => refusal = Some(Shortened::from(too_large)),
        }
        let has_record = refusal.is_none() || self.map.contains_key(&records::export_key(key));
        if !has_record {
            return Encoded { pairs, places: Places::default(), refusal, has_record };
        }
        // Chunks refer to the ports of the record that others read.
        let ports = if refusal.is_none() { &export.ports } else { &records::ports(&self.map, key) };
        let served = by_addresses(endpoints.iter().filter(|endpoint| is_served(endpoint, ports)));
        let previous = self.places.get(key).map(|places| &**places);
        let chunks = assign(previous.unwrap_or_default(), &served);
        for chunk in &chunks {
            match records::encode_chunk(key, chunk, ports) {
                Ok(pair) => pairs.extend([pair]),
                Err(too_large) => refusal = refusal.or(Some(too_large.into())),
            }
        }
        Encoded { pairs, places: places(&chunks), refusal, has_record }
    }

    /// Puts the records of an export into the map, in place of those that are there. Removals always have room.
    fn put_all(&mut self, key: &ServiceKey, encoded: Encoded) -> Option<Shortened> {
        let Encoded { pairs, places, mut refusal, has_record } = encoded;
        if !has_record {
            return refusal;
        }
        for stale in records::chunk_keys(&self.map, key) {
            if !pairs.contains_key(&stale) {
                self.take_back(&stale);
            }
        }
        // First the export itself, without which its endpoints belong to nothing, and then what is there already.
        let (there, new): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|(key, _)| self.map.contains_key(key));
        for (key, value) in there.into_iter().chain(new) {
            if !self.put_record(key, value, self.reserve()) {
                refusal = refusal.or(Some(Shortened::Full));
            }
        }
        let is_there = |(index, _): &_| refusal.is_none() || self.map.contains_key(&records::chunk_key(key, *index));
        self.places.insert(key.clone(), places.into_iter().filter(is_there).collect());
        if !self.map.contains_key(&records::export_key(key)) {
            self.remove_service(key);
        }
        refusal
    }

    /// Puts a record into the map, unless the map would then have less left than the `reserve`. One that says the same
    /// stays, with what it shares with earlier states. One that says something else must not stay.
    fn put_record(&mut self, key: Arc<str>, value: Value, reserve: Usage) -> bool {
        if self.map.get(&key) == Some(&value) {
            return true;
        }
        let is_new = !self.take_back(&key);
        let needs = Usage { records: is_new.into(), bytes: key.len() + value.len(), ..Usage::default() };
        let left = self.left().minus(if is_new { reserve } else { Usage::default() });
        if needs.excess(&left).is_some() {
            return false;
        }
        self.bytes += needs.bytes;
        self.map.insert(key, value);
        true
    }

    /// Removes a record. Returns whether it was there.
    fn take_back(&mut self, key: &str) -> bool {
        let Some(value) = self.map.remove(key) else { return false };
        self.bytes -= key.len() + value.len();
        true
    }

    fn remove_service(&mut self, key: &ServiceKey) {
        self.places.remove(key);
        self.take_back(&records::export_key(key));
        for chunk in records::chunk_keys(&self.map, key) {
            self.take_back(&chunk);
        }
    }
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;
