//! What rounds of connections make of a party. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{Evidence, Party, Verdict};

/// The stream of a cluster must be lost for this long before it is judged. A stream over which nothing comes is lost after 10 s
/// (S10).
const LOST: Duration = Duration::from_secs(10);
/// So many rounds in a row must fail.
pub(super) const ROUNDS: u32 = 3;
/// After so many rounds in a row with an answer, a cluster is back.
const BACK: u32 = 2;
/// Endpoints on so many nodes must fail in a round, and so many endpoints.
const SEVERAL: usize = 2;

/// What a round found of one party, of the endpoints that had answered before.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    pub(super) answered: BTreeMap<SocketAddr, Arc<str>>,
    pub(super) failed: BTreeMap<SocketAddr, Arc<str>>,
}

impl Found {
    fn is_tried(&self) -> bool {
        !self.answered.is_empty() || !self.failed.is_empty()
    }
}

fn nodes(endpoints: &BTreeMap<SocketAddr, Arc<str>>) -> usize {
    endpoints.values().collect::<BTreeSet<_>>().len()
}

/// Whether a round shows that this cluster is not the one that is cut off: none of its own endpoints failed, and another cluster
/// answered. With one other cluster alone, own endpoints on several nodes must have answered, one of which is another node than
/// the one of this process.
pub(super) fn shows_others(round: &BTreeMap<Party, Found>) -> bool {
    let here = round.get(&Party::Here);
    if here.is_some_and(|here| !here.failed.is_empty()) {
        return false;
    }
    let there = || round.iter().filter(|(party, found)| **party != Party::Here && found.is_tried());
    match there().count() {
        0 => false,
        1 => here.is_some_and(|here| nodes(&here.answered) >= SEVERAL),
        _ => there().any(|(_, found)| !found.answered.is_empty()),
    }
}

/// The course of one cluster.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// Since when its stream is lost.
    pub(super) lost: Option<Instant>,
    failed: Option<Failed>,
    /// Rounds in a row with an answer.
    answered: u32,
    pub(super) verdict: Option<Verdict>,
}

/// Rounds in a row that failed.
#[derive(Debug, Default)]
struct Failed {
    rounds: u32,
    endpoints: BTreeMap<SocketAddr, Arc<str>>,
}

impl Course {
    /// Its stream is up, or not.
    pub(super) fn connected(&mut self, connected: bool, now: Instant) {
        if connected {
            (self.lost, self.failed) = (None, None);
        } else if self.lost.is_none() {
            self.lost = Some(now);
        }
    }

    /// Takes what a round found. `judged`: whether it shows that others are well.
    pub(super) fn take(&mut self, found: &Found, judged: bool, now: Instant) {
        if !found.answered.is_empty() {
            self.failed = None;
            self.answered += 1;
            if self.answered >= BACK {
                self.verdict = Some(Verdict::Reachable);
            }
            return;
        }
        if !found.is_tried() {
            return;
        }
        self.answered = 0;
        let Some(lost) =
            self.lost.filter(|_| judged && found.failed.len() >= SEVERAL && nodes(&found.failed) >= SEVERAL)
        else {
            self.failed = None;
            return;
        };
        let failed = self.failed.get_or_insert_default();
        failed.rounds += 1;
        failed.endpoints.extend(found.failed.iter().map(|(at, node)| (*at, Arc::clone(node))));
        if failed.rounds >= ROUNDS && now.saturating_duration_since(lost) >= LOST {
            let evidence = Evidence { endpoints: failed.endpoints.len(), nodes: nodes(&failed.endpoints) };
            self.verdict = Some(Verdict::Unreachable(evidence));
        }
    }

    /// Whether the next round should come soon.
    pub(super) fn hurries(&self) -> bool {
        self.lost.is_some() || matches!(self.verdict, Some(Verdict::Unreachable(_)))
    }
}
