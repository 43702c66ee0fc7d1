//! Joining with approvals (J1 to J5): clusters begin one after the other or at the same time, administrators approve late and in
//! any order, members die and return, and somebody writes in the ledger whom nobody approves.

use std::sync::Arc;

use ledger::{
    Map, joining,
    joining::{Join, Standing},
    record::{Accepted, Gone},
};

use super::{FAULTS_END, Sim, cluster::Cluster, events::Event, faults::Fault, registry::micros, rng::Rng};

/// The next clusters begin when everybody can read the first one: of two that are the first, neither can know the other.
const BEGINS: (f64, f64) = (30.0, 170.0);
/// Mean time until an administrator approves a cluster that is in the ledger.
const APPROVED: f64 = 50.0;
/// Mean time between deaths of a cluster.
const DIES: f64 = 160.0;
/// When it returns.
const RETURNS: (f64, f64) = (10.0, 100.0);
/// What has to wait is tried again after this time.
const AGAIN: f64 = 3.0;

/// What the administrators of the other clusters think of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// They approve it, sooner or later.
    Wanted,
    /// They never do. Its own administrators approve everybody.
    Stranger,
    /// They never do. Its own administrators reject everybody.
    Hostile,
}

/// A cluster that takes part.
#[derive(Debug, Clone)]
pub(super) struct Participant {
    pub(super) id: &'static str,
    pub(super) uid: String,
    pub(super) join: Join,
    pub(super) role: Role,
    /// In seconds.
    pub(super) begins: f64,
}

impl Participant {
    /// One that is there from the beginning, and asks nobody.
    pub(super) fn member(id: &'static str, uid: String) -> Self {
        Self { id, uid, join: Join::Tofu, role: Role::Wanted, begins: 0.0 }
    }
}

/// A first cluster that demands approvals, two to four others, and perhaps a stranger.
pub(super) fn participants(rng: &mut Rng) -> Vec<Participant> {
    let others = ["b", "c", "d", "e"].into_iter().take(2 + rng.below(3));
    let stranger = rng.chance(0.6).then_some("s");
    let mut participants = vec![Participant { join: Join::Approve, ..Participant::member("a", "uid-a".to_owned()) }];
    for id in others.chain(stranger) {
        let join = if rng.chance(0.75) { Join::Approve } else { Join::Tofu };
        let hostile = rng.chance(0.5);
        let role = match (id, hostile) {
            ("s", true) => Role::Hostile,
            ("s", false) => Role::Stranger,
            _ => Role::Wanted,
        };
        // Some begin at the same time.
        let same = participants.last().map(|last| last.begins).filter(|begins| *begins > 0.0 && rng.chance(0.5));
        let begins = same.unwrap_or_else(|| rng.uniform(BEGINS.0, BEGINS.1));
        participants.push(Participant { id, uid: format!("uid-{id}"), join, role, begins });
    }
    participants
}

impl Sim {
    /// What is to come.
    pub(super) fn plan_joining(&mut self, participants: &[Participant]) {
        for (of, Participant { begins, .. }) in participants.iter().enumerate().filter(|(_, part)| part.begins > 0.0) {
            for proc in self.clusters[of].procs.clone() {
                self.procs[proc].stopped = true;
            }
            self.at(*begins, Event::Once(Fault::Begin(of)));
        }
        for of in 0..participants.len() {
            self.every(DIES, Fault::Die(of));
            for other in (0..participants.len()).filter(|other| *other != of) {
                let approves = match (participants[of].role, participants[other].role) {
                    (Role::Wanted, Role::Wanted) => participants[of].join == Join::Approve,
                    (Role::Wanted, _) => false,
                    _ => true,
                };
                if approves {
                    let late = self.rng.exponential(APPROVED);
                    let at = (participants[of].begins.max(participants[other].begins) + late).min(FAULTS_END);
                    self.at(at, Event::Once(Fault::Approve { of, other }));
                }
            }
        }
    }

    /// The controller of a cluster is installed, or comes back.
    pub(super) fn begin(&mut self, cluster: usize) {
        if cluster != 0 && !self.first_is_there() {
            return self.at(AGAIN, Event::Once(Fault::Begin(cluster)));
        }
        self.trace(|s| format!("{} begins", s.clusters[cluster].uid));
        self.revive(cluster);
    }

    /// Whether every replica shows the first cluster, and that it has joined.
    fn first_is_there(&self) -> bool {
        let Cluster { id, joined, .. } = &self.clusters[0];
        let advances = self.registry.advances(id);
        let said = joined.and_then(|joined| advances.into_iter().find(|at| *at > joined + AGAIN));
        said.is_some_and(|at| self.seconds() > at + self.scenario.lag + AGAIN)
    }

    fn revive(&mut self, cluster: usize) {
        for proc in self.clusters[cluster].procs.clone() {
            self.procs[proc].stopped = false;
            self.start(proc);
        }
    }

    /// All of a cluster is away for a while.
    pub(super) fn die(&mut self, cluster: usize) {
        let procs = self.clusters[cluster].procs.clone();
        if procs.iter().any(|proc| self.procs[*proc].stopped) {
            return;
        }
        for proc in procs {
            self.procs[proc].stopped = true;
            self.crash(proc);
        }
        let pause = self.rng.uniform(RETURNS.0, RETURNS.1);
        let rest = (FAULTS_END - self.seconds()).max(0.0);
        self.at(pause.min(rest), Event::Once(Fault::Begin(cluster)));
    }

    /// `cloudmap-mcs trust accept`, or `trust reject` in a hostile cluster: in the record of a cluster that has led, and of a
    /// cluster whose head is in the ledger.
    pub(super) fn approve(&mut self, of: usize, other: usize) {
        let Cluster { id, uid, key, .. } = self.clusters[other].clone();
        let there = self.registry.head(&id).is_some_and(|head| head.uid == uid);
        let c = &mut self.clusters[of];
        let Some((mut record, _)) = c.record.clone().filter(|(record, _)| there && record.member.is_some()) else {
            return self.at(AGAIN, Event::Once(Fault::Approve { of, other }));
        };
        let gone = (c.role == Role::Hostile).then_some(Gone::Rejected);
        let known = record.accepted.get(&*id).is_some_and(|it| it.key == Some(key) && it.gone == gone);
        if known {
            return;
        }
        let accepted = Accepted { gone, ..Accepted::unread(uid.to_string(), Some(key)) };
        record.accepted.insert(id.to_string(), accepted);
        c.record_version += 1;
        c.record = Some((record, c.record_version));
        self.trace(|s| format!("{} approves {id}, or rejects it: {gone:?}", s.clusters[of].uid));
    }

    /// Whether one cluster has accepted another one, and nobody has taken that back.
    fn accepts(&self, one: usize, other: usize) -> bool {
        let Cluster { id, uid, key, .. } = &self.clusters[other];
        let record = self.clusters[one].record.as_ref().map(|(record, _)| record);
        record.and_then(|record| record.accepted.get(&**id)).is_some_and(|accepted| {
            *accepted.uid == **uid && accepted.key == Some(*key) && !accepted.gone.is_some_and(Gone::is_left)
        })
    }

    /// Whether a cluster may have registered something: its leader may, or an earlier one might.
    pub(super) fn has_joined(&self, cluster: usize) -> bool {
        let c = &self.clusters[cluster];
        c.record.as_ref().is_some_and(|(record, _)| record.joined == Some(true))
            || c.procs.iter().any(|proc| self.procs[*proc].joined && self.holds(*proc, 0.0))
    }

    /// I13: of two clusters that may register, each that demands approvals has approved the other. I14: who is not approved may
    /// not register.
    pub(super) fn check_joined(&mut self, proc: usize) {
        if !self.scenario.approvals || !self.holds(proc, 0.0) {
            return;
        }
        let standing = self.procs[proc].term.as_ref().and_then(|term| term.standing());
        let joined = standing.is_some_and(Standing::is_joined);
        if let Some(Standing::Waits { approval, .. }) = standing {
            let newcomer =
                |id: &Arc<str>| !(0..self.clusters.len()).any(|it| self.clusters[it].id == *id && self.has_joined(it));
            let (waits, newcomers) = (!approval.is_empty(), approval.iter().any(newcomer));
            waits.then(|| self.count("waits for approvals"));
            newcomers.then(|| self.count("waits for newcomers"));
        }
        if std::mem::replace(&mut self.procs[proc].joined, joined) == joined || !joined {
            return;
        }
        let me = self.procs[proc].cluster;
        let (name, role) = (self.name(proc), self.clusters[me].role);
        self.trace(|_| format!("{name} has joined"));
        self.count("joined");
        let seconds = self.seconds();
        self.clusters[me].joined.get_or_insert(seconds);
        match role {
            Role::Hostile => return,
            Role::Stranger => return self.violate("I14", format!("{name} has joined, and nobody approved it")),
            Role::Wanted => {}
        }
        let others =
            (0..self.clusters.len()).filter(|other| *other != me && self.clusters[*other].role == Role::Wanted);
        for other in others.filter(|other| self.has_joined(*other)).collect::<Vec<_>>() {
            for (one, two) in [(me, other), (other, me)] {
                if self.clusters[one].join == Join::Approve && !self.accepts(one, two) {
                    let [one, two] = [one, two].map(|cluster| self.clusters[cluster].id.clone());
                    self.violate(
                        "I13",
                        format!("{name} has joined, but {one} and {two} have, too, and {one} does not know {two}"),
                    );
                }
            }
        }
    }

    /// Whether two clusters should know each other in the end.
    pub(super) fn belong_together(&self, one: usize, other: usize) -> bool {
        [one, other].iter().all(|cluster| self.clusters[*cluster].role == Role::Wanted)
    }

    /// Who should have joined and has not.
    pub(super) fn not_joined(&self) -> Vec<String> {
        let wanted = self.clusters.iter().filter(|cluster| self.scenario.approvals && cluster.role == Role::Wanted);
        let waits = wanted.filter_map(|cluster| {
            let leads = cluster.procs.iter().find(|proc| self.holds(**proc, 0.0));
            let term = leads.and_then(|proc| self.procs[*proc].term.as_ref());
            match term.map(|term| (term.standing().is_some_and(Standing::is_joined), term.barred())) {
                Some((true, _)) => None,
                Some((false, why)) => Some(format!("{} has not joined: {why:?}", cluster.uid)),
                None => Some(format!("nobody leads {}", cluster.uid)),
            }
        });
        waits.collect()
    }
}

/// A state without what it says of other clusters.
pub(super) fn own(state: &Map) -> Map {
    let own = state.iter().filter(|(key, _)| joining::cluster_of(key).is_none());
    own.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// When the service of a cluster was created, in seconds since 1970.
pub(super) fn created(begins: f64) -> i64 {
    1_700_000_000 + (micros(begins) / 1_000_000).cast_signed()
}
