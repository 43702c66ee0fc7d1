//! A seeded discrete-event simulation of the ledger: the real state machines of several clusters, two processes each,
//! against a registry that lags and fails, under the faults of a [`scenario`]. What must hold:
//!
//! - I1 a reader only applies states that the writing cluster really had, never a mixture;
//! - I2 it never goes backwards;
//! - I3 it drops no cluster that did not leave (or was silent, where a TTL is set);
//! - I4 everything converges when the faults stop;
//! - I5 who does not own an id writes nothing under it;
//! - I6 garbage is bounded, and gone in the end;
//! - I7 the final root is readable;
//! - I8 no leader starts from nothing while its cluster's last state can be read;
//! - I9 of two clusters with one UID exactly one goes on;
//! - I10 equal versions are equal states, and no head of a term has an earlier version than the one before;
//! - I11 claims are judged only by states that the registry had;
//! - I12 claims are read soon after all replicas show them, and again when their delay is over, however rarely heads are read;
//! - I13 of two clusters that may register, each that demands approvals has approved the other;
//! - I14 who is not approved may not register.
//!
//! A run is determined by its scenario and its seed.

// Events are a closed protocol between these files, and hand over what they carry; a scenario is a list of switches.
#![allow(
    missing_debug_implementations,
    clippy::needless_pass_by_value,
    clippy::struct_excessive_bools,
    clippy::unwrap_used
)]

mod calls;
pub mod campaign;
mod check;
mod cluster;
mod events;
mod faults;
mod history;
mod joining;
mod network;
mod process;
mod registry;
pub(crate) mod rng;
pub mod scenario;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc};

use cluster::Cluster;
use events::Event;
use history::History;
use network::Network;
use process::Proc;
use registry::{Registry, Snapshot, micros};
use rng::Rng;
use scenario::Scenario;

/// Faults stop at this second.
const FAULTS_END: f64 = 420.0;

/// What one run came to.
#[derive(Debug, Default)]
pub struct Report {
    pub scenario: &'static str,
    pub seed: u64,
    /// Second, invariant, what happened.
    pub violations: Vec<(f64, &'static str, String)>,
    /// Seconds from the end of the faults until everybody agreed.
    pub converged: Option<f64>,
    /// Seconds from a change to its application by another cluster.
    pub delays: Vec<f64>,
    pub counts: BTreeMap<&'static str, u64>,
}

/// Runs `scenario` with `seed`; with `trace`, prints what happens.
pub fn run(scenario: &Scenario, seed: u64, trace: bool) -> Report {
    let mut sim = Sim::new(scenario, seed, trace);
    sim.prepare();
    sim.report.converged = sim.play();
    sim.report
}

pub(crate) struct Sim {
    scenario: Scenario,
    rng: Rng,
    /// Microseconds since the beginning.
    now: u64,
    queue: Queue,
    /// Nothing fails any more, or in the whole run.
    calm: bool,
    registry: Registry,
    clusters: Vec<Cluster>,
    procs: Vec<Proc>,
    /// How many terms there were.
    terms: u64,
    outages: Outages,
    backups: Backups,
    network: Network,
    report: Report,
    history: History,
    traces: bool,
}

/// The events to come, by their time and in the order in which they were pushed.
#[derive(Default)]
struct Queue {
    events: BTreeMap<(u64, u64), Event>,
    pushed: u64,
}

impl Queue {
    fn push(&mut self, at: u64, event: Event) {
        self.pushed += 1;
        self.events.insert((at, self.pushed), event);
    }

    /// The next event until `end`, and its time.
    fn pop(&mut self, end: u64) -> Option<(u64, Event)> {
        let next = self.events.first_entry().filter(|next| next.key().0 <= end)?;
        let ((at, _), event) = next.remove_entry();
        Some((at, event))
    }
}

/// From, to, and of whom (all, if nobody is named).
type Outage = (u64, u64, Option<Arc<str>>);

/// When what does not answer.
#[derive(Default)]
struct Outages {
    writes: Vec<Outage>,
    reads: Vec<Outage>,
    kube: Vec<Outage>,
    /// Most calls are throttled.
    throttling: Vec<Outage>,
}

/// What may be restored.
#[derive(Default)]
struct Backups {
    registry: Vec<(u64, Snapshot)>,
    /// The first cluster.
    cluster: Option<Cluster>,
}

impl Sim {
    fn push(&mut self, at: u64, event: Event) {
        self.queue.push(at, event);
    }

    fn run_until(&mut self, end: u64) {
        while let Some((at, event)) = self.queue.pop(end) {
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    fn play(&mut self) -> Option<f64> {
        self.run_until(micros(FAULTS_END));
        self.stop_faults();
        let mut converged = None;
        let limit = self.scenario.converge;
        let mut after = 0.0;
        while after < limit && converged.is_none() {
            after += 2.0;
            self.run_until(micros(FAULTS_END + after));
            if self.disagreements().is_empty() {
                converged = Some(after);
            }
        }
        if converged.is_none() {
            let why = self.disagreements();
            self.violate("I4", format!("no agreement {limit} s after the faults: {:?}", &why[..why.len().min(3)]));
        }
        self.run_until(micros(FAULTS_END + limit + self.scenario.aftermath));
        let why = self.disagreements();
        if converged.is_some() && !why.is_empty() {
            self.violate("I4", format!("agreement was lost: {:?}", &why[..why.len().min(3)]));
        }
        self.check_final();
        converged
    }

    fn seconds(&self) -> f64 {
        self.now as f64 / 1e6
    }

    fn violate(&mut self, invariant: &'static str, what: String) {
        if self.traces {
            self.trace(|_| format!("VIOLATION {invariant}: {what}"));
        }
        self.report.violations.push((self.seconds(), invariant, what));
    }

    #[allow(clippy::print_stdout)]
    fn trace(&self, what: impl FnOnce(&Self) -> String) {
        if self.traces {
            println!("{:9.3} {}", self.seconds(), what(self));
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.report.counts.entry(what).or_default() += 1;
    }
}
