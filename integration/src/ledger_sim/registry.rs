//! A Cloud Map that forgets nothing wrong and does everything late: asynchronous operations, one at a time per
//! instance, and discovery replicas that lag each on its own, key by key.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    sync::Arc,
};

use ledger::{head::Head, page::StoredPage, record::Position, trust::Announced};

use super::rng::Rng;

/// A service of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Service {
    Clusters,
    Exports { cluster: Arc<str>, shard: u32 },
}

pub(super) type Key = (Service, Arc<str>);

#[derive(Debug, Clone)]
pub(super) enum Value {
    Head(Arc<Head>),
    Page(Arc<StoredPage>),
    Key(Arc<Announced>),
}

impl Value {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Head(a), Self::Head(b)) => Arc::ptr_eq(a, b),
            (Self::Page(a), Self::Page(b)) => Arc::ptr_eq(a, b),
            (Self::Key(a), Self::Key(b)) => a == b,
            _ => false,
        }
    }
}

#[derive(Debug, Default)]
struct Replica {
    rows: BTreeMap<Service, BTreeMap<Arc<str>, Value>>,
    pending: BinaryHeap<Reverse<(u64, u64)>>,
    changes: BTreeMap<u64, (Key, Option<Value>)>,
    latest: BTreeMap<Key, u64>,
}

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) committed: BTreeMap<Service, BTreeMap<Arc<str>, Value>>,
    /// Creator by service.
    pub(super) services: BTreeMap<Service, Arc<str>>,
    pub(super) in_flight: BTreeSet<Key>,
    replicas: Vec<Replica>,
    changes: u64,
    max_lag: f64,
    /// Most pages that any service ever had.
    pub(super) most_pages: usize,
    /// When heads were committed, and their positions, by cluster id.
    pub(super) head_commits: BTreeMap<Arc<str>, Vec<(f64, Position)>>,
    /// When the key of a cluster was committed first, by cluster id.
    pub(super) announced: BTreeMap<Arc<str>, u64>,
    /// Heads that clusters committed: what somebody can repeat.
    pub(super) said: Vec<Arc<Head>>,
}

pub(super) type Snapshot = BTreeMap<Service, BTreeMap<Arc<str>, Value>>;

impl Registry {
    pub(super) fn new(rng: &mut Rng, max_lag: f64) -> Self {
        Self {
            committed: BTreeMap::new(),
            services: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            replicas: (0..2 + rng.below(2)).map(|_| Replica::default()).collect(),
            changes: 0,
            max_lag,
            most_pages: 0,
            head_commits: BTreeMap::new(),
            announced: BTreeMap::new(),
            said: Vec::new(),
        }
    }

    pub(super) fn put(&mut self, now: u64, rng: &mut Rng, key: &Key, value: Option<Value>) {
        if let (Service::Exports { cluster, .. }, Some(Value::Key(_))) = (&key.0, &value) {
            self.announced.entry(cluster.clone()).or_insert(now);
        }
        let rows = self.committed.entry(key.0.clone()).or_default();
        match &value {
            Some(value) => rows.insert(key.1.clone(), value.clone()),
            None => rows.remove(&key.1),
        };
        if key.0 == Service::Clusters {
            if let Some(Value::Head(head)) = &value {
                self.head_commits.entry(key.1.clone()).or_default().push((now as f64 / 1e6, head.position));
            }
        } else {
            self.most_pages = self.most_pages.max(rows.len());
        }
        for replica in &mut self.replicas {
            let mut lag = rng.uniform(0.0, self.max_lag);
            if rng.chance(0.3) {
                lag *= 0.05;
            }
            let latest = replica.latest.entry(key.clone()).or_default();
            let at = (now + micros(lag)).max(*latest);
            *latest = at;
            self.changes += 1;
            replica.pending.push(Reverse((at, self.changes)));
            replica.changes.insert(self.changes, (key.clone(), value.clone()));
        }
    }

    /// The seconds at which a head of this id was above all before it. A deposed leader that stood still writes lower ones,
    /// which are no sign of life.
    pub(super) fn advances(&self, id: &str) -> Vec<f64> {
        let mut newest = Position::default();
        let mut times = Vec::new();
        for (at, position) in self.head_commits.get(id).into_iter().flatten() {
            if *position > newest {
                newest = *position;
                times.push(*at);
            }
        }
        times
    }

    /// What one replica, chosen at random, shows of a service.
    pub(super) fn discover(&mut self, now: u64, rng: &mut Rng, service: &Service) -> Vec<(Arc<str>, Value)> {
        let index = rng.below(self.replicas.len());
        let replica = &mut self.replicas[index];
        while let Some(Reverse((at, change))) = replica.pending.peek().copied() {
            if at > now {
                break;
            }
            replica.pending.pop();
            if let Some(((service, id), value)) = replica.changes.remove(&change) {
                let rows = replica.rows.entry(service).or_default();
                match value {
                    Some(value) => rows.insert(id, value),
                    None => rows.remove(&id),
                };
            }
        }
        let rows = replica.rows.get(service).into_iter().flatten();
        rows.map(|(id, value)| (id.clone(), value.clone())).collect()
    }

    /// Somebody restores an old state of everything.
    pub(super) fn restore(&mut self, now: u64, rng: &mut Rng, snapshot: &Snapshot) {
        let keys: BTreeSet<Key> = [snapshot, &self.committed]
            .into_iter()
            .flat_map(|rows| {
                rows.iter().flat_map(|(service, rows)| rows.keys().map(|id| (service.clone(), id.clone())))
            })
            .collect();
        for key in keys {
            let old = snapshot.get(&key.0).and_then(|rows| rows.get(&key.1)).cloned();
            let new = self.committed.get(&key.0).and_then(|rows| rows.get(&key.1));
            let same = match (&old, new) {
                (Some(old), Some(new)) => old.is_same(new),
                (None, None) => true,
                _ => false,
            };
            if !same {
                self.put(now, rng, &key, old);
            }
        }
    }

    pub(super) fn head(&self, cluster: &str) -> Option<&Arc<Head>> {
        match self.committed.get(&Service::Clusters)?.get(cluster)? {
            Value::Head(head) => Some(head),
            Value::Page(_) | Value::Key(_) => None,
        }
    }
}

pub(super) fn micros(seconds: f64) -> u64 {
    (seconds * 1e6) as u64
}
