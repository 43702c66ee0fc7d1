//! The faults that a scenario asks for.

use std::sync::Arc;

use ledger::{
    Map,
    head::{Delta, Head, Presence},
    trust::{Announced, KEY_INSTANCE},
};
use model::PublicKey;

use super::{
    FAULTS_END, Sim,
    cluster::Cluster,
    events::Event,
    registry::{Service, Value, micros},
};

/// The key of somebody who is no member.
const MALLORY: PublicKey = PublicKey::from_bytes([66; 32]);

/// Seconds until every replica shows a key.
const KEY_SEEN: f64 = 11.0;

#[derive(Clone)]
pub(super) enum Fault {
    Change(usize),
    Crash(usize),
    Pause(usize),
    LeaseDeleted(usize),
    RecordDeleted(usize),
    Vandal,
    Forge,
    Mallory,
    Unforge(Arc<Head>),
    Snapshot,
    Restore,
    ChangeId { proc: usize },
    Leave,
    Stop { cluster: usize, rejoin: bool },
    Rejoin { cluster: usize },
    Backup,
    Twin { id: &'static str },
    Retire { cluster: usize },
    Cut,
    Divide,
    Begin(usize),
    Die(usize),
    Approve { of: usize, other: usize },
}

impl Sim {
    pub(super) fn happen(&mut self, fault: Fault) {
        match fault {
            Fault::Change(cluster) => self.change(cluster),
            Fault::Crash(proc) => {
                if self.procs[proc].alive && !self.procs[proc].stopped {
                    self.crash(proc);
                    let pause = self.rng.uniform(0.5, 40.0);
                    self.at(pause, Event::Start(proc));
                }
            }
            Fault::Pause(proc) => {
                if self.procs[proc].alive {
                    let (short, long) = *self.rng.pick(&[(1.0, 8.0), (8.0, 30.0), (20.0, 100.0)]);
                    let pause = self.rng.uniform(short, long);
                    self.pause(proc, pause);
                }
            }
            Fault::LeaseDeleted(cluster) => self.clusters[cluster].lease = None,
            Fault::RecordDeleted(cluster) => self.delete_record(cluster),
            Fault::Vandal => self.vandalise(),
            Fault::Forge => self.forge(),
            Fault::Mallory => self.meddle(),
            Fault::Unforge(head) => {
                let key = (Service::Clusters, head.cluster.clone());
                self.registry.put(self.now, &mut self.rng, &key, Some(Value::Head(head)));
            }
            Fault::Snapshot => self.backups.registry.push((self.now, self.registry.committed.clone())),
            Fault::Restore => self.restore_registry(),
            Fault::ChangeId { proc } => {
                self.clusters[0].expected_id = "z".into();
                if self.procs[proc].alive {
                    self.crash(proc);
                }
                self.procs[proc].id = "z".into();
                let pause = self.rng.uniform(1.0, 5.0);
                self.at(pause, Event::Start(proc));
            }
            Fault::Leave => {
                self.trace(|_| "a leaves".to_owned());
                self.set_leaving(0, true);
            }
            Fault::Stop { cluster, rejoin } => {
                if !self.scenario.stays {
                    self.stop_processes(cluster);
                }
                if rejoin && self.seconds() < FAULTS_END - 65.0 {
                    let pause = self.rng.uniform(5.0, 60.0);
                    self.at(pause, Event::Once(Fault::Rejoin { cluster }));
                }
            }
            Fault::Backup => self.backups.cluster = Some(self.clusters[0].clone()),
            Fault::Twin { id } => self.restore_twin(id),
            Fault::Retire { cluster } => {
                self.trace(|s| format!("the controller of cluster {cluster}, {}, is stopped", s.clusters[cluster].uid));
                self.stop_processes(cluster);
            }
            Fault::Begin(cluster) => self.begin(cluster),
            Fault::Die(cluster) => self.die(cluster),
            Fault::Approve { of, other } => self.approve(of, other),
            Fault::Cut => self.cut_any(),
            Fault::Divide => self.divide(),
            Fault::Rejoin { cluster } => self.rejoin(cluster),
        }
    }

    fn delete_record(&mut self, cluster: usize) {
        let c = &mut self.clusters[cluster];
        c.lease = None;
        c.record = None;
        c.may_go_back.extend(c.imported.keys().cloned());
        // Its next leader may take an epoch again that a stale read hides: two heads of one position.
        let id = c.id.clone();
        for reader in &mut self.clusters {
            reader.may_go_back.insert(id.clone());
        }
        self.trace(|s| format!("the record of {} is deleted", s.clusters[cluster].uid));
    }

    /// Restores a snapshot of the registry, if there is one that is old enough to differ.
    fn restore_registry(&mut self) {
        let old: Vec<_> = self.backups.registry.iter().filter(|(at, _)| self.now - at > micros(5.0)).collect();
        if !old.is_empty() {
            let snapshot = self.rng.pick(&old).1.clone();
            self.trace(|_| "the registry is restored".to_owned());
            self.registry.restore(self.now, &mut self.rng, &snapshot);
        }
    }

    fn stop_processes(&mut self, cluster: usize) {
        for proc in self.clusters[cluster].procs.clone() {
            self.procs[proc].stopped = true;
            self.crash(proc);
        }
    }

    /// The opposite of `cloudmap-mcs leave`.
    fn rejoin(&mut self, cluster: usize) {
        self.trace(|s| format!("{} joins again", s.clusters[cluster].uid));
        self.set_leaving(cluster, false);
        self.clusters[cluster].left = false;
        for proc in self.clusters[cluster].procs.clone() {
            self.procs[proc].stopped = false;
            self.start(proc);
        }
        self.mutate(cluster, 8);
    }

    /// The first cluster is restored from its backup as another one, and goes on as well. Some operators stop one of the two.
    fn restore_twin(&mut self, id: &'static str) {
        let (Some(backup), twin) = (self.backups.cluster.take(), self.clusters.len()) else { return };
        self.trace(|_| format!("a backup is restored as cluster {twin}, under the id {id}"));
        self.clusters[0].twin = true;
        let (lease, procs) = (None, Vec::new());
        let id: Arc<str> = id.into();
        self.clusters.push(Cluster { id: id.clone(), expected_id: id, lease, procs, twin: true, ..backup });
        self.start_processes(twin);
        self.mutate(twin, 3);
        self.every(self.scenario.change, Fault::Change(twin));
        if self.rng.chance(0.5) {
            let (pause, cluster) = (self.rng.uniform(20.0, 120.0), *self.rng.pick(&[0, twin]));
            self.at(pause, Event::Once(Fault::Retire { cluster }));
        }
    }

    fn change(&mut self, cluster: usize) {
        if self.now < self.clusters[cluster].quiet_until {
            return;
        }
        let choice = self.rng.fraction();
        if choice < 0.03 {
            self.clusters[cluster].quiet_until = self.now + micros(self.rng.uniform(30.0, 80.0));
        }
        let count = if self.rng.chance(self.scenario.burst) {
            8 + self.rng.below(18)
        } else if self.rng.chance(0.2) {
            2 + self.rng.below(4)
        } else {
            1
        };
        if choice < 0.08 { self.revert(cluster) } else { self.mutate(cluster, count) }
    }

    fn vandalise(&mut self) {
        let mut keys: Vec<(Service, Arc<str>)> = Vec::new();
        for (service, rows) in &self.registry.committed {
            keys.extend(rows.keys().map(|id| (service.clone(), id.clone())));
        }
        if self.rng.chance(0.2) {
            keys.retain(|(service, _)| *service == Service::Clusters);
        }
        if !keys.is_empty() {
            let key = self.rng.pick(&keys).clone();
            self.trace(|_| format!("a vandal deletes {key:?}"));
            self.registry.put(self.now, &mut self.rng, &key, None);
        }
    }

    fn forge(&mut self) {
        let cluster = self.rng.below(self.clusters.len());
        let Some(head) = self.registry.head(&self.clusters[cluster].id).cloned() else { return };
        let mut forged = Head::clone(&head);
        // Above every real one, also where the head of a former leader hides the newest, and where a leader begins that does
        // not see this: who claims a position within a real epoch claims a state, and there is no telling forged states
        // from real ones.
        let epoch = self.clusters[cluster].record.as_ref().map_or(0, |(record, _)| record.epoch);
        forged.position.epoch = epoch.max(head.position.epoch) + self.rng.pick(&[2, 1_000_000, 10_000_000_000]);
        forged.position.seq = *self.rng.pick(&[1, 100]);
        self.trace(|_| format!("a head of {} is forged: {}", forged.cluster, forged.position));
        let key = (Service::Clusters, head.cluster.clone());
        self.registry.put(self.now, &mut self.rng, &key, Some(Value::Head(Arc::new(forged))));
        if self.rng.chance(0.7) {
            let pause = self.rng.uniform(0.0, 3.0);
            self.at(pause, Event::Once(Fault::Unforge(head)));
        }
    }

    /// Somebody writes into the ledger who has no cluster's key, but has seen all that was ever said.
    fn meddle(&mut self) {
        let cluster = self.rng.below(self.clusters.len());
        let id = self.clusters[cluster].id.clone();
        let row = (Service::Clusters, id.clone());
        let Some(head) = self.registry.head(&id).cloned() else { return };
        // Who comes first is believed: until the cluster's key can be seen, and where she may write keys, until it is pinned.
        let announced = self.registry.announced.get(&id).is_some_and(|at| self.now - at > micros(KEY_SEEN));
        let pins = |of: &Cluster| {
            let record = of.record.as_ref().and_then(|(record, _)| record.accepted.get(&*id));
            of.uid == self.clusters[cluster].uid || record.is_some_and(|accepted| accepted.key.is_some())
        };
        let pinned = self.clusters.iter().all(pins);
        let epoch = self.clusters[cluster].record.as_ref().map_or(0, |(record, _)| record.epoch);
        let (key, value) = match self.rng.below(6) {
            // What the cluster said before. Within its epoch, a new leader could not tell it from the newest.
            0 => {
                let before = |said: &&Arc<Head>| said.cluster == id && said.position.epoch + 1 < epoch;
                let said: Vec<_> = self.registry.said.iter().filter(before).cloned().collect();
                if said.is_empty() {
                    return;
                }
                (row, Value::Head(self.rng.pick(&said).clone()))
            }
            // A key that is hers, as if it were the cluster's.
            1 if pinned => {
                let announced = Announced { key: MALLORY, former: Vec::new() };
                ((Service::Exports { cluster: id, shard: 0 }, KEY_INSTANCE.into()), Value::Key(Arc::new(announced)))
            }
            // A state that never was, in a head with another signature, or none.
            kind if announced => {
                let mut forged = Head::clone(&head);
                forged.signer = *self.rng.pick(&[None, Some(MALLORY)]);
                forged.position.epoch = epoch + self.rng.pick(&[0, 1, 1_000_000, 1 << 61]);
                forged.position.seq = *self.rng.pick(&[1, 100, 1 << 40]);
                forged.delta = Arc::new(Delta::between(&Map::new(), &Map::from([("m/m".into(), [6; 8].into())]), 0));
                match kind {
                    2 => forged.presence = Presence::Left { successor: None },
                    3 => forged.uid = "uid-mallory".into(),
                    _ => {}
                }
                (row, Value::Head(Arc::new(forged)))
            }
            _ => return,
        };
        self.trace(|_| format!("somebody writes {key:?}: {value:?}"));
        self.registry.put(self.now, &mut self.rng, &key, Some(value));
    }

    pub(super) fn stop_faults(&mut self) {
        let faults = !self.calm;
        self.calm = true;
        self.trace(|_| "the faults stop".to_owned());
        for cluster in 0..self.clusters.len() {
            if faults && self.rng.chance(0.5) {
                let count = *self.rng.pick(&[1, 3, 15]);
                self.mutate(cluster, count);
            }
            for proc in self.clusters[cluster].procs.clone() {
                if self.procs[proc].alive && self.procs[proc].paused_until > self.now {
                    self.procs[proc].paused_until = self.now;
                    self.tick_at(proc, self.now);
                }
                self.procs[proc].frozen_until = 0;
                self.start(proc);
                self.look(proc);
            }
        }
    }
}
