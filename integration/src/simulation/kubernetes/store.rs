//! The objects, and what has become of them since: one counter of versions for all kinds, as etcd has it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use serde_json::Value;
use tokio::{sync::watch, time::Instant};

use super::{refusal::Refusal, resources::RESOURCES, resources::Resource};

/// Namespace (empty for kinds without) and name.
pub type Key = (String, String);

/// A change of an object.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) version: u64,
    pub(super) at: Instant,
    pub(super) key: Key,
    pub(super) old: Option<Arc<Value>>,
    /// `None` if it was deleted.
    pub(super) new: Option<Arc<Value>>,
    /// What watches show: of a deleted object, its last state with the version of the deletion.
    pub(super) shown: Arc<Value>,
}

/// The objects of one kind.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) objects: BTreeMap<Key, Arc<Value>>,
    history: VecDeque<Event>,
    /// Events up to this version are forgotten.
    compacted: u64,
    /// Wakes the watches.
    changed: watch::Sender<()>,
}

#[derive(Debug)]
pub(super) struct Store {
    version: u64,
    kinds: BTreeMap<&'static str, Kind>,
    /// Events that are kept of each kind.
    kept: usize,
    /// Version of the last change of what people look at: Leases, ConfigMaps and Events are not among it.
    pub(super) shown: watch::Sender<u64>,
}

impl Store {
    pub(super) fn new(kept: usize) -> Self {
        let kind = || Kind {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            compacted: 0,
            changed: watch::Sender::new(()),
        };
        // Version 0 means "any" in requests.
        let kinds = RESOURCES.iter().map(|resource| (resource.plural, kind())).collect();
        Self { version: 1, kinds, kept, shown: watch::Sender::new(1) }
    }

    /// The version of the last change of all.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn kind(&self, resource: &Resource) -> &Kind {
        &self.kinds[resource.plural]
    }

    pub(super) fn get(&self, resource: &Resource, key: &Key) -> Option<&Arc<Value>> {
        self.kind(resource).objects.get(key)
    }

    /// Puts an object in place of what is there, or takes it away; the object gets the new version.
    pub(super) fn put(&mut self, resource: &Resource, key: &Key, object: Option<Value>, now: Instant) -> Arc<Value> {
        self.version += 1;
        let version = self.version;
        let kept = self.kept;
        let kind = self.kinds.get_mut(resource.plural).unwrap_or_else(|| unreachable!("all kinds are there"));
        let gone = object.is_none();
        let old = kind.objects.get(key).cloned();
        let mut object = object.or_else(|| old.as_deref().cloned()).unwrap_or_default();
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let object = Arc::new(object);
        if gone {
            kind.objects.remove(key);
        } else {
            kind.objects.insert(key.clone(), Arc::clone(&object));
        }
        let new = (!gone).then(|| Arc::clone(&object));
        let shown = Arc::clone(&object);
        kind.history.push_back(Event { version, at: now, key: key.clone(), old, new, shown });
        while kind.history.len() > kept {
            kind.forget_one();
        }
        kind.changed.send_replace(());
        if !["leases", "configmaps", "secrets", "events"].contains(&resource.plural) {
            self.shown.send_replace(version);
        }
        object
    }

    /// Forgets the events of a kind: watches and pages of older versions get a 410.
    pub(super) fn compact(&mut self, resource: &Resource) {
        let version = self.version;
        if let Some(kind) = self.kinds.get_mut(resource.plural) {
            while !kind.history.is_empty() {
                kind.forget_one();
            }
            kind.compacted = version;
            kind.changed.send_replace(());
        }
    }

    /// Lets all watches look at what applies to them.
    pub(super) fn wake(&self) {
        self.kinds.values().for_each(|kind| {
            kind.changed.send_replace(());
        });
    }
}

impl Kind {
    fn forget_one(&mut self) {
        if let Some(event) = self.history.pop_front() {
            self.compacted = event.version;
        }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The events after a version.
    ///
    /// # Errors
    /// They are not kept any more.
    pub(super) fn since(&self, version: u64) -> Result<impl Iterator<Item = &Event>, Refusal> {
        if version < self.compacted {
            return Err(Refusal::expired(version, self.compacted));
        }
        let from = self.history.partition_point(|event| event.version <= version);
        Ok(self.history.range(from..))
    }

    /// The objects as they were at a version.
    ///
    /// # Errors
    /// It is too long ago.
    pub(super) fn at(&self, version: u64) -> Result<BTreeMap<Key, Arc<Value>>, Refusal> {
        let mut objects = self.objects.clone();
        for event in self.since(version)?.collect::<Vec<_>>().into_iter().rev() {
            match &event.old {
                Some(old) => objects.insert(event.key.clone(), Arc::clone(old)),
                None => objects.remove(&event.key),
            };
        }
        Ok(objects)
    }

    /// The newest version of all that a reader sees who sees nothing of this kind that is younger than `then`.
    pub(super) fn version_at(&self, then: Instant, newest: u64) -> u64 {
        let unseen = self.history.partition_point(|event| event.at <= then);
        self.history.get(unseen).map_or(newest, |event| (event.version - 1).max(self.compacted))
    }

    /// When the first event after a version happened.
    pub(super) fn next_after(&self, version: u64) -> Option<Instant> {
        let from = self.history.partition_point(|event| event.version <= version);
        self.history.get(from).map(|event| event.at)
    }
}
