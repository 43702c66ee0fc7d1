//! A cluster, the states that it had, and what its import side made of the others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ledger::{
    Map, Value as Bytes,
    joining::Join,
    record::{Record, Version},
};
use model::PublicKey;

use super::{
    Sim,
    joining::{Participant, Role},
};

/// How many keys the states of a cluster have at most, beside the number of the state.
const KEYS: usize = 40;

/// The key whose value is the number of the state: states differ, so that order can be checked.
fn version_key() -> Arc<str> {
    "v/v".into()
}

pub(super) fn version_of(map: &Map) -> Option<usize> {
    let bytes: [u8; 8] = map.get("v/v")?.as_ref().try_into().ok()?;
    Some(u64::from_be_bytes(bytes) as usize)
}

/// What a cluster's import side made of another cluster.
#[derive(Debug, Clone)]
pub(super) struct Imported {
    pub(super) uid: Arc<str>,
    pub(super) epoch: u64,
    /// Of the version, and by which term it was applied.
    pub(super) said: Version,
    pub(super) term: u64,
    /// Whether another process was elected by then.
    pub(super) deposed: bool,
    /// Of the states of the cluster; `None`: dropped.
    pub(super) version: Option<usize>,
    pub(super) expired: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) id: Arc<str>,
    pub(super) uid: Arc<str>,
    /// What it signs with. A twin has it from the backup.
    pub(super) key: PublicKey,
    /// All states that it ever had.
    pub(super) states: Vec<Arc<Map>>,
    pub(super) counter: u64,
    /// Holder: process, renewal time, incarnation.
    pub(super) lease: Option<(usize, u64, u32)>,
    pub(super) record: Option<(Record, u64)>,
    pub(super) record_version: u64,
    pub(super) imported: BTreeMap<Arc<str>, Imported>,
    /// The newest versions that its record had of what came by stream, by cluster id and UID.
    pub(super) recorded: BTreeMap<(Arc<str>, Arc<str>), Version>,
    /// Ids whose order was given up on purpose: registry restored, record deleted.
    pub(super) may_go_back: BTreeSet<Arc<str>>,
    pub(super) leaving: bool,
    pub(super) left: bool,
    pub(super) expected_id: Arc<str>,
    pub(super) quiet_until: u64,
    /// Another cluster has its UID.
    pub(super) twin: bool,
    pub(super) procs: Vec<usize>,
    /// Whether newcomers need its approval, and what the others think of it.
    pub(super) join: Join,
    pub(super) role: Role,
    /// When its controller is installed, and when it joined first, in seconds.
    pub(super) begins: f64,
    pub(super) joined: Option<f64>,
}

impl Cluster {
    /// A cluster without any processes, in an empty state.
    pub(super) fn new(part: &Participant, key: PublicKey) -> Self {
        let id: Arc<str> = part.id.into();
        Self {
            id: id.clone(),
            uid: part.uid.as_str().into(),
            key,
            states: vec![Arc::default()],
            counter: 0,
            lease: None,
            record: None,
            record_version: 0,
            imported: BTreeMap::new(),
            recorded: BTreeMap::new(),
            may_go_back: BTreeSet::new(),
            leaving: false,
            left: false,
            expected_id: id,
            quiet_until: 0,
            twin: false,
            procs: Vec::new(),
            join: part.join,
            role: part.role,
            begins: part.begins,
            joined: None,
        }
    }

    pub(super) fn newest(&self) -> usize {
        self.states.len() - 1
    }
}

impl Sim {
    /// `cloudmap-mcs leave`, and its opposite.
    pub(super) fn set_leaving(&mut self, cluster: usize, leaving: bool) {
        let c = &mut self.clusters[cluster];
        c.leaving = leaving;
        c.record_version += 1;
        let mut record = c.record.take().map(|(record, _)| record).unwrap_or_default();
        record.leaving = leaving;
        c.record = Some((record, c.record_version));
    }

    /// Changes `count` keys of a cluster's state.
    pub(super) fn mutate(&mut self, cluster: usize, count: usize) {
        if self.clusters[cluster].leaving {
            return;
        }
        let mut map = Map::clone(&self.clusters[cluster].states[self.clusters[cluster].newest()]);
        for _ in 0..count {
            // Some are registration records.
            let number_of = self.rng.below(KEYS);
            // Who has not joined has none.
            let kind = if number_of < KEYS / 4 && !self.scenario.approvals { "!" } else { "k/" };
            let key: Arc<str> = format!("{kind}{number_of:02}").into();
            let choice = self.rng.fraction();
            if choice < 0.7 || map.len() <= 4 {
                self.clusters[cluster].counter += 1;
                map.insert(key, number(self.clusters[cluster].counter));
            } else {
                let chosen = map.keys().nth(self.rng.below(map.len())).cloned();
                chosen.and_then(|key| map.remove(&key));
            }
        }
        self.push_state(cluster, map);
    }

    /// Back to the content of the state before.
    pub(super) fn revert(&mut self, cluster: usize) {
        let states = &self.clusters[cluster].states;
        if states.len() > 2 && !self.clusters[cluster].leaving {
            let map = Map::clone(&states[states.len() - 2]);
            self.push_state(cluster, map);
        }
    }

    fn push_state(&mut self, cluster: usize, mut map: Map) {
        let c = &mut self.clusters[cluster];
        map.insert(version_key(), number(c.states.len() as u64));
        self.history.state_times.insert((c.uid.clone(), c.states.len()), self.now);
        c.states.push(Arc::new(map));
        for proc in c.procs.clone() {
            self.look(proc);
        }
    }
}

fn number(value: u64) -> Bytes {
    value.to_be_bytes().as_slice().into()
}
