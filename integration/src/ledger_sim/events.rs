//! What happens, and the faults that a scenario asks for.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use cloudmap_mcs::{
    ledger::{
        Map,
        call::{Call, CallId, Outcome},
        head::{Delta, Head, Presence},
        stream::SessionId,
        trust::{Announced, KEY_INSTANCE},
        writer::Heads,
    },
    model::PublicKey,
};

use super::{
    FAULTS_END, Sim,
    registry::{Registry, Service, Value, micros},
    rng::Rng,
    scenario::Scenario,
    world::{Caller, Cluster, Proc},
};

/// The key of somebody who is no member.
const MALLORY: PublicKey = PublicKey::from_bytes([66; 32]);

/// Seconds until every replica shows a key.
const KEY_SEEN: f64 = 11.0;

pub(super) enum Event {
    Start(usize),
    Tick {
        proc: usize,
        incarnation: u32,
    },
    HeadsRead {
        caller: Caller,
        heads: Option<Heads>,
    },
    Done {
        caller: Caller,
        id: CallId,
        outcome: Outcome,
    },
    Wake {
        caller: Caller,
    },
    Make {
        caller: Caller,
        id: CallId,
        call: Call,
    },
    Kube {
        caller: Caller,
        id: CallId,
        call: Call,
    },
    Commit {
        caller: Caller,
        key: (Service, Arc<str>),
        value: Option<Value>,
        fails: bool,
        answer: Option<(Caller, CallId)>,
    },
    Every {
        mean: f64,
        fault: Fault,
    },
    Once(Fault),
    Left {
        cluster: usize,
    },
    /// The caller should have read this head, by a read that began at this time or later.
    Claimed {
        caller: Caller,
        head: Arc<Head>,
        began: u64,
    },
    Connect {
        caller: Caller,
        cluster: Arc<str>,
        addresses: Arc<[SocketAddr]>,
        key: PublicKey,
    },
    Opened {
        caller: Caller,
        session: SessionId,
        key: PublicKey,
        dialled: Option<Arc<str>>,
    },
    Unreachable {
        caller: Caller,
        cluster: Arc<str>,
    },
    Deliver {
        session: SessionId,
        from: usize,
    },
    Taken {
        caller: Caller,
        session: SessionId,
    },
    Closed {
        caller: Caller,
        session: SessionId,
    },
}

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
}

impl Sim {
    pub(super) fn new(scenario: &Scenario, seed: u64, traces: bool) -> Self {
        let mut rng = Rng::new(scenario.name, seed);
        Self {
            scenario: *scenario,
            registry: Registry::new(&mut rng, scenario.lag),
            rng,
            now: 0,
            events: std::collections::BinaryHeap::new(),
            payloads: BTreeMap::new(),
            pushed: 0,
            calm: scenario.calm,
            clusters: Vec::new(),
            procs: Vec::new(),
            terms: 0,
            write_outages: Vec::new(),
            read_outages: Vec::new(),
            kube_outages: Vec::new(),
            throttling: Vec::new(),
            snapshots: Vec::new(),
            backup: None,
            violations: Vec::new(),
            delays: Vec::new(),
            delivered: BTreeMap::new(),
            state_times: BTreeMap::new(),
            counts: BTreeMap::new(),
            connections: BTreeMap::new(),
            connected: 0,
            partitions: Vec::new(),
            streams: false,
            committed: std::collections::BTreeSet::new(),
            summaries: BTreeMap::new(),
            claims: BTreeMap::new(),
            newest: BTreeMap::new(),
            traces,
        }
    }

    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Start(proc) => self.start(proc),
            Event::Tick { proc, incarnation } => self.tick(proc, incarnation),
            Event::HeadsRead { caller, heads } => self.heads_read(caller, heads),
            Event::Done { caller, id, outcome } => self.done(caller, id, outcome),
            Event::Wake { caller } => self.wake(caller),
            Event::Make { caller, id, call } => self.make(caller, id, call),
            Event::Kube { caller, id, call } => self.kube(caller, id, call),
            Event::Commit { caller, key, value, fails, answer } => self.commit(caller, key, value, fails, answer),
            Event::Every { mean, fault } => {
                if self.seconds() < FAULTS_END {
                    self.happen(fault.clone());
                    let pause = self.rng.exponential(mean);
                    self.at(pause, Event::Every { mean, fault });
                }
            }
            Event::Once(fault) => self.happen(fault),
            Event::Claimed { caller, head, began } => self.check_claims_read(caller, &head, began),
            Event::Connect { caller, cluster, addresses, key } => self.connect(caller, &cluster, &addresses, key),
            Event::Opened { caller, session, key, dialled } => {
                let again = || Event::Opened { caller, session, key, dialled: dialled.clone() };
                self.tell(caller, again, |term, now| term.opened(now, session, key, dialled.as_ref()));
            }
            Event::Unreachable { caller, cluster } => {
                let again = || Event::Unreachable { caller, cluster: cluster.clone() };
                self.tell(caller, again, |term, now| term.unreachable(now, &cluster));
            }
            Event::Deliver { session, from } => self.deliver(session, from),
            Event::Taken { caller, session } => {
                self.tell(caller, || Event::Taken { caller, session }, |term, now| term.taken(now, session));
            }
            Event::Closed { caller, session } => {
                self.tell(caller, || Event::Closed { caller, session }, |term, now| term.closed(now, session));
            }
            Event::Left { cluster } => {
                let rejoin = self.rng.chance(0.5);
                self.at(5.0, Event::Once(Fault::Stop { cluster, rejoin }));
            }
        }
    }

    fn every(&mut self, mean: f64, fault: Fault) {
        let pause = self.rng.exponential(mean);
        self.at(pause, Event::Every { mean, fault });
    }

    /// Two processes of a cluster, which start within three seconds.
    fn start_processes(&mut self, cluster: usize) {
        let (id, scenario) = (self.clusters[cluster].id.clone(), self.scenario);
        for proc in self.procs.len()..self.procs.len() + 2 {
            self.clusters[cluster].procs.push(proc);
            self.procs.push(Proc { cluster, id: id.clone(), ..Proc::default() });
            let pause = self.rng.uniform(0.0, 3.0);
            self.at(pause, Event::Start(proc));
            if !scenario.calm {
                self.every(scenario.crash, Fault::Crash(proc));
                self.every(scenario.pause, Fault::Pause(proc));
            }
        }
    }

    pub(super) fn prepare(&mut self) {
        let scenario = self.scenario;
        let count = 2 + usize::from(self.rng.chance(0.33));
        let mut names: Vec<(&str, String)> = (0..count).map(|i| (["a", "b", "c"][i], format!("uid-{i}"))).collect();
        if scenario.same_id {
            names.push(("a", "uid-x".to_owned()));
        }
        for (index, (id, uid)) in names.into_iter().enumerate() {
            self.clusters.push(Cluster {
                id: id.into(),
                uid: uid.into(),
                key: PublicKey::from_bytes([index as u8 + 1; 32]),
                states: vec![Arc::default()],
                counter: 0,
                lease: None,
                record: None,
                record_version: 0,
                imported: BTreeMap::new(),
                recorded: BTreeMap::new(),
                may_go_back: std::collections::BTreeSet::new(),
                leaving: false,
                left: false,
                expected_id: id.into(),
                quiet_until: 0,
                twin: false,
                procs: Vec::new(),
            });
            self.start_processes(index);
        }
        for cluster in 0..self.clusters.len() {
            let size = if scenario.shards { 20 + self.rng.below(60) } else { 5 + self.rng.below(20) };
            self.mutate(cluster, size);
            self.every(scenario.change, Fault::Change(cluster));
            if !scenario.calm {
                self.every(scenario.lease_deleted, Fault::LeaseDeleted(cluster));
                if let Some(mean) = scenario.record_deleted {
                    self.every(mean, Fault::RecordDeleted(cluster));
                }
            }
        }
        if !scenario.calm {
            self.plan_outages();
        }
        self.streams = scenario.signed && self.rng.chance(scenario.stream);
        if self.streams && !scenario.calm {
            self.every(scenario.cut, Fault::Cut);
            self.every(scenario.divide, Fault::Divide);
        }
        if scenario.vandal {
            self.every(45.0, Fault::Vandal);
        }
        if scenario.forge {
            self.every(120.0, Fault::Forge);
        }
        if let Some(mean) = scenario.mallory {
            self.every(mean, Fault::Mallory);
        }
        if scenario.restore {
            self.every(70.0, Fault::Snapshot);
            let times = 1 + usize::from(self.rng.chance(0.3));
            for _ in 0..times {
                let at = self.rng.uniform(100.0, FAULTS_END - 10.0);
                self.at(at, Event::Once(Fault::Restore));
            }
        }
        if scenario.change_id {
            let at = self.rng.uniform(80.0, FAULTS_END - 150.0);
            let later = [self.rng.uniform(0.0, 3.0), self.rng.uniform(5.0, 60.0)];
            for (proc, later) in later.into_iter().enumerate() {
                self.at(at + later, Event::Once(Fault::ChangeId { proc }));
            }
        }
        if scenario.leave {
            let at = self.rng.uniform(60.0, FAULTS_END - 180.0);
            self.at(at, Event::Once(Fault::Leave));
        }
        if let Some(id) = scenario.twin {
            let backup = self.rng.uniform(60.0, FAULTS_END - 200.0);
            let later = if self.rng.chance(0.5) { 0.0 } else { self.rng.uniform(0.0, 100.0) };
            self.at(backup, Event::Once(Fault::Backup));
            self.at(backup + later, Event::Once(Fault::Twin { id }));
        }
    }

    fn plan_outages(&mut self) {
        let outages = self.scenario.outages.unwrap_or(*self.rng.pick(&[0, 1, 1, 2]));
        for _ in 0..outages {
            let (outage, kind) = (self.plan_outage(), self.rng.below(3));
            if kind != 0 {
                self.write_outages.push(outage.clone());
            }
            if kind != 1 {
                self.read_outages.push(outage);
            }
        }
        if self.rng.chance(0.4) {
            let from = self.rng.uniform(20.0, FAULTS_END - 40.0);
            let to = from + self.rng.uniform(5.0, 40.0);
            self.throttling.push((micros(from), micros(to), None));
        }
        if self.scenario.kube {
            for _ in 0..3 {
                let outage = self.plan_outage();
                self.kube_outages.push(outage);
            }
        }
    }

    fn plan_outage(&mut self) -> (u64, u64, Option<Arc<str>>) {
        let from = self.rng.uniform(20.0, FAULTS_END - 20.0);
        let (short, long) = *self.rng.pick(&[(3.0, 20.0), (20.0, 60.0), (60.0, 150.0)]);
        let to = (from + self.rng.uniform(short, long)).min(FAULTS_END);
        let whose = self.rng.below(3 + self.clusters.len()).checked_sub(3);
        (micros(from), micros(to), whose.map(|cluster| self.clusters[cluster].uid.clone()))
    }

    fn within(&self, outages: &[super::Outage], uid: &str) -> bool {
        let now = self.now;
        outages.iter().any(|(from, to, whose)| *from <= now && now < *to && whose.as_deref().is_none_or(|w| w == uid))
    }

    pub(super) fn write_outage(&self, uid: &str) -> bool {
        self.within(&self.write_outages, uid)
    }

    pub(super) fn kube_down(&self, cluster: usize) -> bool {
        !self.calm && self.within(&self.kube_outages, &self.clusters[cluster].uid)
    }

    /// Whether a call fails before it does anything.
    pub(super) fn throttled(&mut self, caller: Caller, writes: bool) -> bool {
        if self.calm {
            return false;
        }
        let uid = &self.clusters[self.procs[caller.proc].cluster].uid;
        let outages = if writes { &self.write_outages } else { &self.read_outages };
        if self.within(outages, uid) {
            return true;
        }
        let probability = if self.within(&self.throttling, uid) { 0.6 } else { self.scenario.throttle };
        self.rng.chance(probability)
    }

    fn happen(&mut self, fault: Fault) {
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
            Fault::RecordDeleted(cluster) => {
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
            Fault::Vandal => self.vandalise(),
            Fault::Forge => self.forge(),
            Fault::Mallory => self.meddle(),
            Fault::Unforge(head) => {
                let key = (Service::Clusters, head.cluster.clone());
                self.registry.put(self.now, &mut self.rng, &key, Some(Value::Head(head)));
            }
            Fault::Snapshot => self.snapshots.push((self.now, self.registry.committed.clone())),
            Fault::Restore => {
                let old: Vec<_> = self.snapshots.iter().filter(|(at, _)| self.now - at > micros(5.0)).collect();
                if !old.is_empty() {
                    let snapshot = self.rng.pick(&old).1.clone();
                    self.trace(|_| "the registry is restored".to_owned());
                    self.registry.restore(self.now, &mut self.rng, &snapshot);
                }
            }
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
                for proc in self.clusters[cluster].procs.clone() {
                    if !self.scenario.stays {
                        self.procs[proc].stopped = true;
                        self.crash(proc);
                    }
                }
                if rejoin && self.seconds() < FAULTS_END - 65.0 {
                    let pause = self.rng.uniform(5.0, 60.0);
                    self.at(pause, Event::Once(Fault::Rejoin { cluster }));
                }
            }
            Fault::Backup => self.backup = Some(self.clusters[0].clone()),
            Fault::Twin { id } => self.restore_twin(id),
            Fault::Retire { cluster } => {
                self.trace(|s| format!("the controller of cluster {cluster}, {}, is stopped", s.clusters[cluster].uid));
                for proc in self.clusters[cluster].procs.clone() {
                    self.procs[proc].stopped = true;
                    self.crash(proc);
                }
            }
            Fault::Cut => self.cut_any(),
            Fault::Divide => self.divide(),
            Fault::Rejoin { cluster } => {
                self.trace(|s| format!("{} joins again", s.clusters[cluster].uid));
                self.set_leaving(cluster, false);
                self.clusters[cluster].left = false;
                for proc in self.clusters[cluster].procs.clone() {
                    self.procs[proc].stopped = false;
                    self.start(proc);
                }
                self.mutate(cluster, 8);
            }
        }
    }

    /// The first cluster is restored from its backup as another one, and goes on as well. Some operators stop one of the two.
    fn restore_twin(&mut self, id: &'static str) {
        let (Some(backup), twin) = (self.backup.take(), self.clusters.len()) else { return };
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
