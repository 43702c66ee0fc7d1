//! The processes of clusters: their Leases, their terms, and what goes on between them and the registry.

use std::{sync::Arc, time::Duration};

use ledger::{
    call::{CallId, Ids, Outcome},
    limits::{Limits, Timing},
    remote::Remotes,
    term::Term,
    trust::{Mode, Trust},
    writer::{Heads, Now, Stage, WriterIdentity},
};

use super::{
    Sim,
    calls::{CALL_LIMIT, failed},
    events::Event,
    network,
    registry::micros,
};

const LEASE_DURATION: f64 = 15.0;
const LEASE_RENEWED_FOR: f64 = 10.0;

pub(super) fn timing() -> Timing {
    let seconds = Duration::from_secs;
    Timing {
        lease: seconds(100),
        quiet: seconds(30),
        garbage: seconds(60),
        collect: seconds(4),
        collect_idle: seconds(15),
        audit: seconds(80),
        audit_limit: seconds(30),
        forget: seconds(90),
        see: seconds(1),
        claims_at_rest: seconds(30),
        ..Timing::default()
    }
}

/// Six pairs a page, eight changes a delta (and the version), four entries an index page, 100 rows a service.
pub(super) fn limits(shards: bool) -> Limits {
    Limits {
        page_bytes: 6 * 18 + 2,
        delta_bytes: 9 * 18 + 2,
        index_entries: 4,
        live_pages: if shards { 5 } else { 40 },
        runs: 4,
        pages: 90,
        flush_concurrency: 4,
        compression: 0,
        ..Limits::default()
    }
}

#[derive(Debug, Default)]
pub(super) struct Proc {
    pub(super) cluster: usize,
    pub(super) id: Arc<str>,
    pub(super) alive: bool,
    pub(super) stopped: bool,
    pub(super) incarnation: u32,
    pub(super) term_number: u64,
    pub(super) term: Option<Term>,
    /// When the last term began.
    pub(super) led_since: u64,
    /// Milliseconds that its node's clock is ahead.
    pub(super) offset: i64,
    pub(super) paused_until: u64,
    pub(super) frozen_until: u64,
    pub(super) lease_until: u64,
    pub(super) view: usize,
    pub(super) desired: Option<usize>,
    pub(super) seen: Arc<Remotes>,
    /// What this leader started from is looked at.
    pub(super) started: bool,
    /// Whether this leader may register.
    pub(super) joined: bool,
    pub(super) wake: u64,
    pub(super) next_tick: u64,
    /// When the heads are to be read next, and how soon after a read the next one should follow.
    pub(super) next_read: u64,
    /// When the last completed read began, and the one that runs.
    pub(super) read: u64,
    pub(super) reading: u64,
    pub(super) pace: Duration,
}

/// Whose outcome it is: a restarted process knows nothing of its earlier calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) proc: usize,
    pub(super) incarnation: u32,
    pub(super) term: u64,
}

impl Sim {
    pub(super) fn at(&mut self, seconds: f64, event: Event) {
        self.push(self.now + micros(seconds), event);
    }

    /// What a leader's clocks show: one counts from the beginning of the term, the other one is its node's.
    pub(super) fn time(&self, proc: usize) -> Now {
        let p = &self.procs[proc];
        let wall = (1_000_000_000_000 + self.now / 1_000).saturating_add_signed(p.offset);
        Now { mono: Duration::from_micros(self.now - p.led_since), wall }
    }

    pub(super) fn holds(&self, proc: usize, margin: f64) -> bool {
        self.now + micros(margin) <= self.procs[proc].lease_until
    }

    pub(super) fn start(&mut self, proc: usize) {
        let newest = self.clusters[self.procs[proc].cluster].newest();
        let p = &mut self.procs[proc];
        if p.stopped || p.alive {
            return;
        }
        p.incarnation += 1;
        p.alive = true;
        p.paused_until = 0;
        p.frozen_until = 0;
        p.lease_until = 0;
        p.view = newest;
        let pause = self.rng.uniform(0.0, 1.0);
        self.tick_at(proc, self.now + micros(pause));
    }

    /// When a process ticks next; what was meant before does not count any more.
    pub(super) fn tick_at(&mut self, proc: usize, at: u64) {
        let incarnation = self.procs[proc].incarnation;
        self.procs[proc].next_tick = at;
        self.push(at, Event::Tick { proc, incarnation });
    }

    pub(super) fn crash(&mut self, proc: usize) {
        let p = &mut self.procs[proc];
        p.alive = false;
        p.incarnation += 1;
        p.term = None;
        p.lease_until = 0;
        self.trace(|s| format!("{} crashes", s.name(proc)));
    }

    pub(super) fn name(&self, proc: usize) -> String {
        let p = &self.procs[proc];
        format!("{}/{}.{}", p.id, self.clusters[p.cluster].uid, proc)
    }

    /// Renews or takes the Lease, reads the heads.
    pub(super) fn tick(&mut self, proc: usize, incarnation: u32) {
        let p = &self.procs[proc];
        if !p.alive || p.incarnation != incarnation || p.next_tick != self.now {
            return;
        }
        if self.now < p.paused_until {
            let at = p.paused_until + micros(self.rng.uniform(0.0, 0.5));
            return self.tick_at(proc, at);
        }
        self.tick_lease(proc);
        self.look(proc);
        let p = &self.procs[proc];
        if p.term.is_some() && self.now >= p.next_read {
            self.procs[proc].reading = self.now;
            let heads = self.read_heads(proc);
            let latency = self.rng.uniform(0.02, 0.3);
            let caller = self.caller(proc);
            self.at(latency, Event::HeadsRead { caller, heads });
        } else {
            let pause = self.rng.uniform(0.9, 1.1);
            self.tick_at(proc, self.now + micros(pause));
        }
    }

    /// A Lease that ran out ends no term: it goes on when the Lease is renewed before anybody else has taken it.
    fn tick_lease(&mut self, proc: usize) {
        let (cluster, incarnation) = (self.procs[proc].cluster, self.procs[proc].incarnation);
        if self.kube_down(cluster) {
            return;
        }
        let lease = self.clusters[cluster].lease;
        if self.procs[proc].term.is_some() && !self.holds(proc, 0.0) {
            if lease.is_some_and(|(holder, _, of)| (holder, of) == (proc, incarnation)) {
                self.count("terms that went on");
            } else {
                self.procs[proc].term = None;
            }
        }
        let free =
            lease.is_none_or(|(holder, renewed, _)| holder == proc || self.now - renewed > micros(LEASE_DURATION));
        if free {
            self.clusters[cluster].lease = Some((proc, self.now, incarnation));
            self.procs[proc].lease_until = self.now + micros(LEASE_RENEWED_FOR);
            if self.procs[proc].term.is_none() {
                self.lead(proc);
            }
        }
    }

    fn lead(&mut self, proc: usize) {
        let ids = Ids::new(self.rng.next());
        let limits = limits(self.scenario.shards);
        let ttl = self.scenario.ttl.then_some(timing().lease);
        let p = &mut self.procs[proc];
        let me = WriterIdentity {
            clusterset: "prod".into(),
            cluster: p.id.clone(),
            uid: self.clusters[p.cluster].uid.clone(),
        };
        self.terms += 1;
        p.term_number = self.terms;
        p.led_since = self.now;
        let own = vec![self.clusters[p.cluster].key];
        let join = self.clusters[p.cluster].join;
        let trust = if self.scenario.signed {
            Trust { mode: Mode::Tofu, join, own, ..Trust::default() }
        } else {
            Trust::default()
        };
        let term = Term::new(me, timing(), limits, ttl, trust, ids);
        let streaming = Ids::new(self.terms);
        p.term =
            Some(if self.network.streams { term.streaming([network::address(proc)].into(), streaming) } else { term });
        p.desired = None;
        p.seen = Arc::default();
        (p.started, p.joined) = (false, false);
        (p.wake, p.next_read) = (0, 0);
        self.trace(|s| format!("{} leads", s.name(proc)));
        let now = self.time(proc);
        if let Some(term) = &mut self.procs[proc].term {
            term.poll(now);
        }
        self.pump(proc);
    }

    pub(super) fn caller(&self, proc: usize) -> Caller {
        let p = &self.procs[proc];
        Caller { proc, incarnation: p.incarnation, term: p.term_number }
    }

    /// The process sees the newest state of its cluster, unless its caches are stale.
    pub(super) fn look(&mut self, proc: usize) {
        let p = &self.procs[proc];
        if !p.alive || self.now < p.paused_until {
            return;
        }
        let newest = self.clusters[p.cluster].newest();
        let p = &mut self.procs[proc];
        if self.now >= p.frozen_until {
            p.view = newest;
        }
        if p.term.is_some() && p.desired != Some(p.view) {
            p.desired = Some(p.view);
            let (view, cluster, now) = (p.view, p.cluster, self.time(proc));
            let map = self.clusters[cluster].states[view].clone();
            if let Some(term) = &mut self.procs[proc].term {
                term.desire(now, map);
            }
            self.pump(proc);
        }
    }

    /// Whether the caller is still in the same term. A paused one gets the event later.
    fn may_receive(&mut self, caller: Caller, event: impl FnOnce() -> Event) -> bool {
        let p = &self.procs[caller.proc];
        if !p.alive || p.incarnation != caller.incarnation || p.term_number != caller.term || p.term.is_none() {
            return false;
        }
        if self.now < p.paused_until {
            let at = p.paused_until + micros(0.01);
            self.push(at, event());
            return false;
        }
        true
    }

    pub(super) fn heads_read(&mut self, caller: Caller, heads: Option<Heads>) {
        let proc = caller.proc;
        let p = &self.procs[proc];
        if p.alive && p.incarnation == caller.incarnation && self.now >= p.paused_until {
            let tick = self.procs[proc].pace.min(timing().tick).as_secs_f64();
            let pause = self.rng.uniform(0.9, 1.1) * tick;
            self.tick_at(proc, self.now + micros(pause));
        }
        if !self.may_receive(caller, || Event::HeadsRead { caller, heads: heads.clone() }) {
            return;
        }
        let now = self.time(proc);
        if let Some(term) = &mut self.procs[proc].term {
            term.tick(now, heads.as_ref());
        }
        self.count("reads");
        let p = &mut self.procs[proc];
        if heads.is_some() {
            p.read = p.reading;
        }
        self.pump(proc);
        let pace = self.procs[proc].pace;
        if pace > timing().tick {
            self.count("rests");
            let pause = self.rng.uniform(0.9, 1.1) * pace.as_secs_f64();
            self.procs[proc].next_read = self.now + micros(pause);
        }
    }

    pub(super) fn done(&mut self, caller: Caller, id: CallId, outcome: Outcome) {
        if !self.may_receive(caller, || Event::Done { caller, id, outcome: outcome.clone() }) {
            return;
        }
        let now = self.time(caller.proc);
        if let Some(term) = &mut self.procs[caller.proc].term {
            term.done(now, id, &outcome);
        }
        self.pump(caller.proc);
    }

    /// Notifies a term, unless its process is gone; a paused one gets the event `again` later.
    pub(super) fn notify_term(
        &mut self,
        caller: Caller,
        again: impl FnOnce() -> Event,
        what: impl FnOnce(&mut Term, Now),
    ) {
        if !self.may_receive(caller, again) {
            return;
        }
        let now = self.time(caller.proc);
        if let Some(term) = &mut self.procs[caller.proc].term {
            what(term, now);
        }
        self.pump(caller.proc);
    }

    /// Does what is due for a term; what was meant before an earlier time was asked for does not count any more.
    pub(super) fn wake(&mut self, caller: Caller) {
        if self.procs[caller.proc].wake != self.now || self.caller(caller.proc) != caller {
            return;
        }
        if !self.may_receive(caller, || Event::Wake { caller }) {
            let p = &mut self.procs[caller.proc];
            p.wake = p.paused_until + micros(0.01);
            return;
        }
        self.procs[caller.proc].wake = 0;
        let now = self.time(caller.proc);
        if let Some(term) = &mut self.procs[caller.proc].term {
            term.poll(now);
        }
        self.pump(caller.proc);
    }

    /// Makes the calls that a term asks for, and takes note of what it says about the others.
    pub(super) fn pump(&mut self, proc: usize) {
        let caller = self.caller(proc);
        let Some(term) = &mut self.procs[proc].term else { return };
        let (calls, commands) = (term.take_calls(), term.take_commands());
        let pace = term.pace();
        let wake = term.wake().map(|at| at.as_micros() as u64);
        let (remotes, stage) = (term.remotes().clone(), term.writer().stage());
        let own = term.own().cloned();
        let leaving = term.record().is_some_and(|record| record.leaving);
        // Who does not hold the Lease writes nothing, whatever it starts from.
        if let Some(own) = own.filter(|_| !self.procs[proc].started && self.holds(proc, 0.0)) {
            self.procs[proc].started = true;
            self.check_start(proc, &own);
        }
        self.check_joined(proc);
        let p = &mut self.procs[proc];
        if std::mem::replace(&mut p.pace, pace) > pace {
            // It ticks within a second.
            p.next_read = 0;
        }
        if let Some(at) = wake {
            let p = &mut self.procs[proc];
            let at = p.led_since + at;
            if p.wake == 0 || at < p.wake {
                p.wake = at.max(self.now + 1);
                let at = p.wake;
                self.push(at, Event::Wake { caller });
            }
        }
        if !Arc::ptr_eq(&remotes, &self.procs[proc].seen) && self.holds(proc, 0.0) {
            let before = std::mem::replace(&mut self.procs[proc].seen, remotes.clone());
            self.import(proc, &before, &remotes);
        }
        let cluster = self.procs[proc].cluster;
        // A process that has not read the record yet leaves once more although its user came back.
        let leaving = leaving && self.clusters[cluster].leaving;
        if leaving && !self.clusters[cluster].states[self.clusters[cluster].newest()].is_empty() {
            self.clusters[cluster].states.push(Arc::default());
            self.trace(|s| format!("{} withdraws everything", s.name(proc)));
        }
        if stage == Stage::Left && leaving && !self.clusters[cluster].left {
            self.clusters[cluster].left = true;
            self.trace(|s| format!("{} has left", s.name(proc)));
            self.at(0.0, Event::Left { cluster });
        }
        for command in commands {
            self.command(caller, command);
        }
        for (id, call) in calls {
            let stalls = call.writes() && !self.calm && self.rng.chance(self.scenario.gap);
            if call.writes() && !self.holds(proc, CALL_LIMIT) {
                self.at(0.01, Event::Done { caller, id, outcome: failed("not leading") });
            } else if stalls {
                // Between the check and the call: whatever happened meanwhile, the call goes out.
                let pause = self.rng.uniform(3.0, self.scenario.gap_max);
                self.pause(proc, pause);
                self.at(pause, Event::Make { caller, id, call });
            } else {
                self.make(caller, id, call);
            }
        }
    }

    pub(super) fn pause(&mut self, proc: usize, seconds: f64) {
        let stale = micros(self.rng.uniform(0.0, 2.0));
        let p = &mut self.procs[proc];
        p.paused_until = p.paused_until.max(self.now + micros(seconds));
        p.frozen_until = p.paused_until + stale;
        self.trace(|s| format!("{} pauses for {seconds:.1} s", s.name(proc)));
    }
}
