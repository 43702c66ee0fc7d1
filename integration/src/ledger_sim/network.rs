//! Connections between leaders: reliable and in order while they last, like TCP, over a network that delays, cuts and divides.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use ledger::{
    stream::{Command, SessionId, message::Message},
    term::Term,
};
use model::PublicKey;

use super::{Sim, events::Event, process::Caller, registry::micros};

/// Messages that a connection holds before its sender must wait.
const BUFFER: usize = 4;

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Flow {
    queue: VecDeque<Arc<Message>>,
    /// Whether its end follows what is in the queue.
    ends: bool,
    /// Whether the sender waits until there is room.
    full: bool,
}

/// A connection: the one who dialled, and the other.
pub(super) struct Connection {
    ends: [Caller; 2],
    flows: [Flow; 2],
}

/// Where a process listens.
pub(super) fn address(proc: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, proc as u8 + 1), 7_946))
}

/// What is between the leaders of clusters.
#[derive(Default)]
pub(super) struct Network {
    /// Whether there are streams in this run.
    pub(super) streams: bool,
    pub(super) connections: BTreeMap<u64, Connection>,
    /// How many connections there were.
    pub(super) connected: u64,
    /// From, to, and between which clusters, in one direction.
    pub(super) partitions: Vec<(u64, u64, usize, usize)>,
}

impl Sim {
    /// Does what a leader's stream asks for.
    pub(super) fn command(&mut self, caller: Caller, command: Command) {
        match command {
            Command::Dial { cluster, addresses, key } => {
                let pause = self.rng.uniform(0.002, 0.05);
                self.at(pause, Event::Connect { caller, cluster, addresses, key });
            }
            Command::Send { session, message } => {
                // Between the check of the Lease and the socket, everything may happen.
                if self.holds(caller.proc, 0.0) {
                    self.send(caller, session, message);
                } else {
                    self.reset(session.0);
                    self.at(0.001, Event::Closed { caller, session });
                }
            }
            Command::Close { session, why } => {
                self.trace(|s| format!("{} closes {session:?}: {why}", s.name(caller.proc)));
                self.count("sessions closed");
                if let Some(from) = self.end_of(session, caller)
                    && let Some(connection) = self.network.connections.get_mut(&session.0)
                {
                    let idle = connection.flows[from].queue.is_empty();
                    connection.flows[from].ends = true;
                    connection.flows[1 - from] = Flow { ends: true, ..Flow::default() };
                    if idle {
                        self.at(0.01, Event::Deliver { session, from });
                    }
                }
            }
        }
    }

    fn end_of(&self, session: SessionId, caller: Caller) -> Option<usize> {
        self.network.connections.get(&session.0)?.ends.iter().position(|end| *end == caller)
    }

    fn send(&mut self, caller: Caller, session: SessionId, message: Arc<Message>) {
        if self.rng.chance(0.02) {
            assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&*message), "a message survives its bytes");
        }
        let Some(from) = self.end_of(session, caller) else { return };
        let latency = self.latency();
        let Some(connection) = self.network.connections.get_mut(&session.0) else { return };
        let flow = &mut connection.flows[from];
        flow.queue.push_back(message);
        flow.full = flow.queue.len() > BUFFER;
        let (first, full) = (flow.queue.len() == 1, flow.full);
        self.count("messages");
        if first {
            self.at(latency, Event::Deliver { session, from });
        }
        if !full {
            self.at(0.000_1, Event::Taken { caller, session });
        }
    }

    fn latency(&mut self) -> f64 {
        let slow = !self.calm && self.rng.chance(0.02);
        if slow { self.rng.uniform(0.2, 3.0) } else { self.rng.uniform(0.001, 0.02) }
    }

    fn is_leader(&self, end: Caller) -> bool {
        let p = &self.procs[end.proc];
        p.alive && p.incarnation == end.incarnation && p.term_number == end.term && p.term.is_some()
    }

    /// Whether nothing gets from one cluster to the other.
    fn divided(&self, from: usize, to: usize) -> bool {
        !self.calm
            && self.network.partitions.iter().any(|(since, until, a, b)| {
                (*since..*until).contains(&self.now) && (*a, *b) == (self.procs[from].cluster, self.procs[to].cluster)
            })
    }

    pub(super) fn connect(&mut self, caller: Caller, cluster: &Arc<str>, addresses: &[SocketAddr], key: PublicKey) {
        let there = (0..self.procs.len()).find(|proc| addresses.contains(&address(*proc)));
        let answers = there.map(|proc| self.caller(proc)).filter(|end| {
            let paused = self.now < self.procs[end.proc].paused_until;
            let divided = self.divided(caller.proc, end.proc) || self.divided(end.proc, caller.proc);
            self.is_leader(*end) && self.holds(end.proc, 0.0) && !paused && !divided
        });
        // Whoever answers proves that it has a key, and whoever dials, too.
        let key_of = |sim: &Self, end: Caller| sim.clusters[sim.procs[end.proc].cluster].key;
        let Some(end) = answers.filter(|end| key_of(self, *end) == key && self.is_leader(caller)) else {
            let pause = self.rng.uniform(0.01, 5.0);
            return self.at(pause, Event::Unreachable { caller, cluster: cluster.clone() });
        };
        self.network.connected += 1;
        let session = SessionId(self.network.connected);
        let theirs = key_of(self, caller);
        let accepts = |term: &Term| term.may_connect().contains(&theirs);
        if !self.procs[end.proc].term.as_ref().is_some_and(accepts) {
            // Whoever dials learns only afterwards that its key is refused.
            self.count("keys refused");
            self.at(0.0, Event::Opened { caller, session, key, dialled: Some(cluster.clone()) });
            self.at(0.001, Event::Refused { caller: end, key: theirs });
            return self.at(0.01, Event::Closed { caller, session });
        }
        self.network.connections.insert(session.0, Connection { ends: [caller, end], flows: Default::default() });
        self.at(0.0, Event::Opened { caller, session, key, dialled: Some(cluster.clone()) });
        self.at(0.001, Event::Opened { caller: end, session, key: theirs, dialled: None });
    }

    /// The next message of a flow arrives, or its end.
    pub(super) fn deliver(&mut self, session: SessionId, from: usize) {
        let Some(connection) = self.network.connections.get(&session.0) else { return };
        let (sender, receiver) = (connection.ends[from], connection.ends[1 - from]);
        if !self.is_leader(receiver) {
            // There is nobody any more.
            self.network.connections.remove(&session.0);
            return self.at(0.01, Event::Closed { caller: sender, session });
        }
        if self.divided(sender.proc, receiver.proc) || self.now < self.procs[receiver.proc].paused_until {
            return self.at(0.2, Event::Deliver { session, from });
        }
        let latency = self.latency();
        let Some(connection) = self.network.connections.get_mut(&session.0) else { return };
        let flow = &mut connection.flows[from];
        let message = flow.queue.pop_front();
        let (more, ends) = (!flow.queue.is_empty(), flow.ends);
        let room = std::mem::take(&mut flow.full);
        if room {
            self.at(0.000_1, Event::Taken { caller: sender, session });
        }
        if more || ends && message.is_some() {
            self.at(latency, Event::Deliver { session, from });
        }
        match message {
            Some(message) => {
                let now = self.time(receiver.proc);
                if let Some(term) = &mut self.procs[receiver.proc].term {
                    term.received(now, session, Message::clone(&message));
                }
                self.pump(receiver.proc);
            }
            None if ends => {
                self.network.connections.remove(&session.0);
                self.at(0.0, Event::Closed { caller: receiver, session });
            }
            None => {}
        }
    }

    /// A connection breaks; what is on its way is lost.
    fn reset(&mut self, number: u64) {
        let Some(Connection { ends, .. }) = self.network.connections.remove(&number) else { return };
        for caller in ends {
            self.at(0.01, Event::Closed { caller, session: SessionId(number) });
        }
    }

    pub(super) fn cut_any(&mut self) {
        let numbers: Vec<u64> = self.network.connections.keys().copied().collect();
        if !numbers.is_empty() {
            let number = *self.rng.pick(&numbers);
            self.trace(|_| format!("connection {number} is cut"));
            self.reset(number);
        }
    }

    /// Two clusters are divided, in one direction or in both.
    pub(super) fn divide(&mut self) {
        let (count, a) = (self.clusters.len(), self.rng.below(self.clusters.len()));
        let b = (a + 1 + self.rng.below(count - 1)) % count;
        let (short, long) = *self.rng.pick(&[(2.0, 9.0), (9.0, 40.0), (60.0, 150.0)]);
        let until = self.now + micros(self.rng.uniform(short, long));
        self.trace(|_| format!("nothing gets from cluster {a} to cluster {b}"));
        self.network.partitions.push((self.now, until, a, b));
        if self.rng.chance(0.5) {
            self.network.partitions.push((self.now, until, b, a));
        }
    }
}
