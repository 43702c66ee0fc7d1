//! What happens, and when.

use std::{net::SocketAddr, sync::Arc};

use ledger::{
    call::{Call, CallId, Outcome},
    head::Head,
    stream::SessionId,
    writer::Heads,
};
use model::PublicKey;

use super::{
    Backups, FAULTS_END, Outages, Queue, Report, Sim,
    cluster::Cluster,
    faults::Fault,
    history::History,
    joining::{self, Participant},
    network::Network,
    process::{Caller, Proc, timing},
    registry::{Registry, Service, Value, micros},
    rng::Rng,
    scenario::Scenario,
};

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
    /// Somebody wanted to connect whose key the caller does not know.
    Refused {
        caller: Caller,
        key: PublicKey,
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

impl Sim {
    pub(super) fn new(scenario: &Scenario, seed: u64, traces: bool) -> Self {
        let mut rng = Rng::new(scenario.name, seed);
        Self {
            scenario: *scenario,
            registry: Registry::new(&mut rng, scenario.lag),
            rng,
            now: 0,
            queue: Queue::default(),
            calm: scenario.calm,
            clusters: Vec::new(),
            procs: Vec::new(),
            terms: 0,
            outages: Outages::default(),
            backups: Backups::default(),
            network: Network::default(),
            report: Report { scenario: scenario.name, seed, ..Report::default() },
            history: History::default(),
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
                self.notify_term(caller, again, |term, now| term.opened(now, session, key, dialled.as_ref()));
            }
            Event::Unreachable { caller, cluster } => {
                let again = || Event::Unreachable { caller, cluster: cluster.clone() };
                self.notify_term(caller, again, |term, now| term.unreachable(now, &cluster, String::new()));
            }
            Event::Refused { caller, key } => {
                self.notify_term(caller, || Event::Refused { caller, key }, |term, now| term.refused(now, key));
            }
            Event::Deliver { session, from } => self.deliver(session, from),
            Event::Taken { caller, session } => {
                self.notify_term(caller, || Event::Taken { caller, session }, |term, now| term.taken(now, session));
            }
            Event::Closed { caller, session } => {
                self.notify_term(caller, || Event::Closed { caller, session }, |term, now| term.closed(now, session));
            }
            Event::Left { cluster } => {
                let rejoin = self.rng.chance(0.5);
                self.at(5.0, Event::Once(Fault::Stop { cluster, rejoin }));
            }
        }
    }

    pub(super) fn every(&mut self, mean: f64, fault: Fault) {
        let pause = self.rng.exponential(mean);
        self.at(pause, Event::Every { mean, fault });
    }

    /// Two processes of a cluster, which start within three seconds.
    pub(super) fn start_processes(&mut self, cluster: usize) {
        let (id, scenario) = (self.clusters[cluster].id.clone(), self.scenario);
        for proc in self.procs.len()..self.procs.len() + 2 {
            self.clusters[cluster].procs.push(proc);
            let offset = self.rng.between(0, 4_000).cast_signed() - 2_000;
            self.procs.push(Proc { cluster, id: id.clone(), pace: timing().tick, offset, ..Proc::default() });
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
        let member = |i| Participant::member(["a", "b", "c"][i], format!("uid-{i}"));
        let mut participants: Vec<Participant> = (0..count).map(member).collect();
        if scenario.same_id {
            participants.push(Participant::member("a", "uid-x".to_owned()));
        }
        if scenario.approvals {
            participants = joining::participants(&mut self.rng);
        }
        for (index, part) in participants.iter().enumerate() {
            self.clusters.push(Cluster::new(part, PublicKey::from_bytes([index as u8 + 1; 32])));
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
        if scenario.approvals {
            self.plan_joining(&participants);
        }
        if !scenario.calm {
            self.plan_outages();
        }
        self.plan_faults();
    }

    /// When the faults happen that the scenario has beside outages and lost objects.
    fn plan_faults(&mut self) {
        let scenario = self.scenario;
        self.network.streams = scenario.signed && self.rng.chance(scenario.stream);
        if self.network.streams && !scenario.calm {
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
                self.outages.writes.push(outage.clone());
            }
            if kind != 1 {
                self.outages.reads.push(outage);
            }
        }
        if self.rng.chance(0.4) {
            let from = self.rng.uniform(20.0, FAULTS_END - 40.0);
            let to = from + self.rng.uniform(5.0, 40.0);
            self.outages.throttling.push((micros(from), micros(to), None));
        }
        if self.scenario.kube {
            for _ in 0..3 {
                let outage = self.plan_outage();
                self.outages.kube.push(outage);
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
        self.within(&self.outages.writes, uid)
    }

    pub(super) fn kube_down(&self, cluster: usize) -> bool {
        !self.calm && self.within(&self.outages.kube, &self.clusters[cluster].uid)
    }

    /// Whether a call fails before it does anything.
    pub(super) fn throttled(&mut self, caller: Caller, writes: bool) -> bool {
        if self.calm {
            return false;
        }
        let uid = &self.clusters[self.procs[caller.proc].cluster].uid;
        let outages = if writes { &self.outages.writes } else { &self.outages.reads };
        if self.within(outages, uid) {
            return true;
        }
        let probability = if self.within(&self.outages.throttling, uid) { 0.6 } else { self.scenario.throttle };
        self.rng.chance(probability)
    }
}
