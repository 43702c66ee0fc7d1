//! The state that this cluster wants in its ledger: encoded exports, chunks of endpoints, registration records.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use crate::{
    ledger::{
        Map, Value,
        chunks::assign,
        records::{self, TooLarge},
    },
    model::{ClaimOwner, Registration, ServiceKey, Target},
};

/// What this cluster exports under one name.
pub type Local = records::Exported;

/// All exports of this cluster, and the ledger map that says them.
///
/// It starts from the own ledger as the leader before left it: endpoints stay in their chunks, claims keep their dates,
/// and targets that nobody wants any more are still known until their instances are seen to be gone.
#[derive(Debug)]
pub struct Exports {
    map: Map,
    /// The target that each export wants.
    targets: HashMap<ServiceKey, Target>,
    registrations: BTreeMap<Target, Registration>,
    /// Exports of this cluster that want a target which another one of them holds.
    waiting: BTreeMap<Target, BTreeSet<ServiceKey>>,
    refused: HashMap<ServiceKey, TooLarge>,
}

impl Exports {
    pub fn resume(own: &Map) -> Self {
        let catalog = records::Catalog::decode(own);
        Self {
            map: own.clone(),
            targets: HashMap::new(),
            registrations: catalog.registrations,
            waiting: BTreeMap::new(),
            refused: HashMap::new(),
        }
    }

    /// Every name that the ledger has, exported still or not.
    pub fn names(&self) -> BTreeSet<ServiceKey> {
        records::changed_services(&Map::new(), &self.map)
    }

    /// The map to publish.
    pub fn map(&self) -> Arc<Map> {
        Arc::new(self.map.clone())
    }

    /// The encoded record under a key of the map.
    pub fn record(&self, key: &str) -> Option<&Value> {
        self.map.get(key)
    }

    /// Why the newest version of an export is not in the map. The last one that fitted stays there.
    pub fn refusal(&self, key: &ServiceKey) -> Option<&TooLarge> {
        self.refused.get(key)
    }

    pub fn registrations(&self) -> &BTreeMap<Target, Registration> {
        &self.registrations
    }

    /// Whether the export of this name holds its target, or which other one of this cluster does.
    pub fn holder(&self, target: &Target) -> Option<&ClaimOwner> {
        self.registrations.get(target).map(|registration| &registration.owner)
    }

    /// Sets what a name exports (`None`: nothing). Returns the names that may now get a target they waited for.
    ///
    /// `now` is in seconds since 1970: new claims date from it.
    pub fn set(&mut self, key: &ServiceKey, local: Option<Arc<Local>>, now: i64) -> BTreeSet<ServiceKey> {
        let wanted = local.as_ref().and_then(|local| local.export.target.clone());
        let freed = self.release_other_targets(key, wanted.as_ref());
        if let Some(target) = wanted {
            self.targets.insert(key.clone(), target.clone());
            self.claim(key, target, now);
        }
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

    /// Retires the registrations that an earlier leader recorded for owners that are no more.
    pub fn retire_unowned(&mut self, is_owner: impl Fn(&ClaimOwner) -> bool) {
        let unowned: Vec<Registration> =
            self.registrations.values().filter(|held| !held.retiring && !is_owner(&held.owner)).cloned().collect();
        for registration in unowned {
            self.put_registration(Registration { retiring: true, ..registration });
        }
    }

    /// A retired target holds no instance of this cluster any more. Returns the names that waited for it.
    pub fn retired(&mut self, target: &Target) -> BTreeSet<ServiceKey> {
        if self.registrations.get(target).is_some_and(|registration| registration.retiring) {
            self.registrations.remove(target);
            self.map.remove(&records::registration_key(target));
            return self.waiting.remove(target).unwrap_or_default();
        }
        BTreeSet::new()
    }

    fn claim(&mut self, key: &ServiceKey, target: Target, now: i64) {
        let owner = owner(key);
        let registration = match self.registrations.get(&target) {
            Some(held) if held.owner == owner => Registration { retiring: false, ..held.clone() },
            Some(held) if !held.retiring => {
                self.waiting.entry(target).or_default().insert(key.clone());
                return;
            }
            _ => Registration { target: target.clone(), owner, claimed: now, retiring: false },
        };
        self.put_registration(registration);
    }

    fn release_other_targets(&mut self, key: &ServiceKey, wanted: Option<&Target>) -> BTreeSet<ServiceKey> {
        self.waiting.retain(|_, names| {
            names.remove(key);
            !names.is_empty()
        });
        // What an earlier leader recorded counts as well: it may have been another target.
        let owner = owner(key);
        let released: Vec<Registration> = match self.targets.remove(key) {
            Some(target) => self.registrations.get(&target).into_iter().cloned().collect(),
            None => self.registrations.values().filter(|held| held.owner == owner).cloned().collect(),
        };
        let mut freed = BTreeSet::new();
        for registration in released {
            if registration.owner == owner && !registration.retiring && Some(&registration.target) != wanted {
                freed.extend(self.waiting.remove(&registration.target).unwrap_or_default());
                self.put_registration(Registration { retiring: true, ..registration });
            }
        }
        freed
    }

    fn put_registration(&mut self, registration: Registration) {
        // Names of namespaces and services are bounded (cloudmap limits), so that the record always fits.
        if let Ok((key, value)) = records::encode_registration(&registration) {
            self.map.insert(key, value);
        }
        self.registrations.insert(registration.target.clone(), registration);
    }

    fn encode(&mut self, key: &ServiceKey, local: &Local) -> Result<(), TooLarge> {
        let previous = records::chunks(&self.map, key, &mut Vec::new());
        let mut pairs = vec![records::encode_export(key, &local.export)?];
        for chunk in assign(&previous, &local.endpoints) {
            pairs.push(records::encode_chunk(key, &chunk)?);
        }
        for chunk in previous {
            let stale = records::chunk_key(key, chunk.index);
            if !pairs.iter().any(|(key, _)| *key == stale) {
                self.map.remove(&stale);
            }
        }
        self.map.extend(pairs);
        Ok(())
    }

    fn remove_service(&mut self, key: &ServiceKey) {
        self.map.remove(&records::export_key(key));
        for chunk in records::chunks(&self.map, key, &mut Vec::new()) {
            self.map.remove(&records::chunk_key(key, chunk.index));
        }
    }
}

fn owner(key: &ServiceKey) -> ClaimOwner {
    ClaimOwner { kind: "ServiceExport".into(), namespace: key.namespace.clone(), name: key.name.clone() }
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;
