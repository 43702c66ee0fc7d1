//! Which endpoints to connect to, and when. Makes no calls and reads no clock.
//!
//! While all is well, every [`REST`] a few endpoints of each cluster are tried, so that it is known which ones answer. Only these
//! are tried once the stream of their cluster is lost, every [`QUICK`]: they answered this leader before, so that a
//! NetworkPolicy that never let it through proves nothing. Each round tries other clusters and this one, too.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Candidates, Party, Questions, Verdicts,
    judge::{Course, Found, shows_others},
};
use base::inquiry::Planner;

/// Time from one round to the next while all is well.
const REST: Duration = Duration::from_secs(10);
/// The same while the stream of a cluster is lost, or a cluster counts as unreachable.
const QUICK: Duration = Duration::from_secs(3);
/// So many endpoints of a party are tried in a round at most.
const PER_ROUND: usize = 3;
/// So many endpoints of a party are known to answer at most.
const SAMPLE: usize = 6;
/// An endpoint that has not answered for this long is not known to answer. Each one is tried every 30 s at least.
const RECENT: Duration = Duration::from_mins(1);

/// The endpoints that are tried at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round(BTreeMap<Party, BTreeMap<SocketAddr, Arc<str>>>);

impl Round {
    /// Their addresses.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.values().flat_map(BTreeMap::keys).copied()
    }
}

/// Which endpoints answer, and what that says of their clusters.
#[derive(Debug, Default)]
pub struct Agenda {
    asked: Questions,
    samples: BTreeMap<Party, Sample>,
    /// When something was asked first, and when the last round began.
    first: Option<Instant>,
    began: Option<Instant>,
    in_flight: bool,
    verdicts: Verdicts,
}

/// Of one party.
#[derive(Debug, Default)]
struct Sample {
    /// Those that answered, and when that was last.
    answered: BTreeMap<SocketAddr, Instant>,
    /// When each was tried last.
    tried: BTreeMap<SocketAddr, Instant>,
    course: Course,
}

impl Sample {
    fn ask(&mut self, candidates: &Candidates, now: Instant) {
        let is_listed = |at: &SocketAddr| candidates.endpoints.contains_key(at);
        let was_lost = self.course.lost.is_some();
        self.course.connected(candidates.connected, now);
        self.answered.retain(|at, last| is_listed(at) && (was_lost || now.saturating_duration_since(*last) < RECENT));
        self.tried.retain(|at, _| is_listed(at));
    }

    /// Those to try next.
    fn pick(&self, candidates: &Candidates) -> BTreeMap<SocketAddr, Arc<str>> {
        let node = |at: &SocketAddr| candidates.endpoints.get(at);
        let known: BTreeSet<_> = self.answered.keys().filter_map(node).collect();
        let mut new: Vec<_> = candidates.endpoints.iter().filter(|(at, _)| !self.answered.contains_key(at)).collect();
        new.sort_by_key(|(at, node)| (self.tried.get(at), known.contains(node)));
        let room = match self.answered.len() {
            _ if !candidates.connected => 0,
            0 => PER_ROUND,
            1..SAMPLE => 1,
            _ => 0,
        };
        new.truncate(room);
        let mut old: Vec<_> = self.answered.keys().filter_map(|at| candidates.endpoints.get_key_value(at)).collect();
        old.sort_by_key(|(at, _)| self.tried.get(at));
        // Those on several nodes say more.
        let mut picked = BTreeMap::new();
        let mut nodes = BTreeSet::new();
        for twice in [false, true] {
            for (at, node) in new.iter().chain(&old) {
                if picked.len() < PER_ROUND && (twice || nodes.insert(*node)) {
                    picked.insert(**at, Arc::clone(node));
                }
            }
        }
        picked
    }

    /// What a round found of those that had answered before. Those that answer for the first time are known from now on.
    fn take(
        &mut self,
        picked: &BTreeMap<SocketAddr, Arc<str>>,
        answered: &BTreeSet<SocketAddr>,
        candidates: &Candidates,
        now: Instant,
    ) -> Found {
        let mut found = Found::default();
        for (at, node) in picked.iter().filter(|(at, _)| candidates.endpoints.contains_key(at)) {
            self.tried.insert(*at, now);
            let (was_known, answers) = (self.answered.contains_key(at), answered.contains(at));
            if answers && (was_known || candidates.connected) {
                self.answered.insert(*at, now);
            }
            if was_known {
                let list = if answers { &mut found.answered } else { &mut found.failed };
                list.insert(*at, Arc::clone(node));
            }
        }
        while self.answered.len() > SAMPLE
            && let Some(at) = self.answered.iter().min_by_key(|(at, last)| (**last, Reverse(**at))).map(|(at, _)| *at)
        {
            self.answered.remove(&at);
        }
        found
    }
}

impl Agenda {
    /// How long after the beginning of one round the next one begins.
    fn pause(&self) -> Duration {
        let waits = |party: &Party, candidates: &Candidates| {
            let sample = self.samples.get(party);
            candidates.unreachable
                || sample.is_some_and(|sample| !sample.answered.is_empty() && sample.course.hurries())
        };
        if self.asked.iter().any(|(party, candidates)| waits(party, candidates)) { QUICK } else { REST }
    }
}

impl Planner for Agenda {
    type Key = ();
    type Question = Arc<Round>;
    type Found = BTreeSet<SocketAddr>;
    type Questions = Questions;
    type Answers = Verdicts;

    const IN_FLIGHT: usize = 1;

    fn ask(&mut self, asked: &Questions, now: Instant) {
        self.first.get_or_insert(now);
        self.asked.clone_from(asked);
        self.samples.retain(|party, _| asked.contains_key(party));
        self.verdicts.retain(|cluster, _| asked.contains_key(&Party::There(cluster.clone())));
        for (party, candidates) in asked {
            self.samples.entry(party.clone()).or_default().ask(candidates, now);
        }
    }

    fn next(&mut self, now: Instant) -> Option<((), Arc<Round>)> {
        if self.wake().is_none_or(|at| at > now) {
            return None;
        }
        (self.began, self.in_flight) = (Some(now), true);
        let picks = self.asked.iter().filter_map(|(party, candidates)| {
            let picked = self.samples.get(party)?.pick(candidates);
            (!picked.is_empty()).then(|| (party.clone(), picked))
        });
        Some(((), Arc::new(Round(picks.collect()))))
    }

    fn wake(&self) -> Option<Instant> {
        let is_asked = !self.in_flight && !self.asked.is_empty();
        self.began.map(|began| began + self.pause()).or(self.first).filter(|_| is_asked)
    }

    fn answered(&mut self, (): &(), round: &Arc<Round>, answered: BTreeSet<SocketAddr>, now: Instant) {
        self.in_flight = false;
        let mut found = BTreeMap::new();
        for (party, picked) in &round.0 {
            if let Some((sample, candidates)) = self.samples.get_mut(party).zip(self.asked.get(party)) {
                found.insert(party.clone(), sample.take(picked, &answered, candidates, now));
            }
        }
        let judged = shows_others(&found);
        for (party, found) in &found {
            let Party::There(cluster) = party else { continue };
            let Some(sample) = self.samples.get_mut(party) else { continue };
            sample.course.take(found, judged, now);
            if let Some(verdict) = sample.course.verdict {
                self.verdicts.insert(cluster.clone(), verdict);
            }
        }
    }

    fn answers(&self) -> &Verdicts {
        &self.verdicts
    }
}

#[cfg(test)]
#[path = "agenda_tests.rs"]
mod tests;
