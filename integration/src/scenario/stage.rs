//! Which scenarios run beside each other. Those that kill or reconfigure a cluster's controllers have that cluster for
//! themselves; the others share clusters.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// So many clusters there are at most.
const CLUSTERS: usize = 6;

/// What a scenario does to each of the clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Nothing,
    Shares,
    Disturbs,
}

/// The clusters of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clusters([Use; CLUSTERS]);

impl Clusters {
    /// Those that it uses, of which it disturbs some.
    pub(super) fn new(used: &[usize], disturbed: &[usize]) -> Self {
        let mut uses = [Use::Nothing; CLUSTERS];
        for (clusters, as_what) in [(used, Use::Shares), (disturbed, Use::Disturbs)] {
            for cluster in clusters {
                uses[*cluster] = as_what;
            }
        }
        Self(uses)
    }

    /// Nothing else runs anywhere.
    pub(super) const ALL: Self = Self([Use::Disturbs; CLUSTERS]);

    fn disturbs(self) -> bool {
        self.0.contains(&Use::Disturbs)
    }

    fn goes_with(self, other: Self) -> bool {
        self.0.iter().zip(other.0).all(|(here, there)| match (here, there) {
            (Use::Nothing, _) | (_, Use::Nothing) | (Use::Shares, Use::Shares) => true,
            (Use::Disturbs, _) | (_, Use::Disturbs) => false,
        })
    }
}

/// Whose turn it is: first those that disturb a cluster, which run one after the other, and last those that need every cluster.
/// Then the place that they were given, and then the order in which they came.
type Turn = (u8, usize, usize);

/// Who runs now, and who waits.
#[derive(Debug)]
pub(super) struct Stage {
    scenarios: Mutex<Scenarios>,
    changed: Notify,
}

#[derive(Debug)]
struct Scenarios {
    running: Vec<Clusters>,
    waiting: BTreeMap<Turn, Clusters>,
    /// So many have come.
    came: usize,
}

impl Scenarios {
    /// The first of those that could run beside the ones that do.
    fn next(&self) -> Option<Turn> {
        let fits = |clusters: Clusters| self.running.iter().all(|other| other.goes_with(clusters));
        self.waiting.iter().find(|(_, clusters)| fits(**clusters)).map(|(turn, _)| *turn)
    }
}

impl Stage {
    pub(super) const fn new() -> Self {
        let scenarios = Scenarios { running: Vec::new(), waiting: BTreeMap::new(), came: 0 };
        Self { scenarios: Mutex::new(scenarios), changed: Notify::const_new() }
    }

    /// Takes a place among those that wait: of two that could begin, the one with the lower place does.
    pub(super) fn line_up(&self, clusters: Clusters, place: usize) -> Waiting<'_> {
        let first = match clusters {
            Clusters::ALL => 2,
            _ if clusters.disturbs() => 0,
            _ => 1,
        };
        let mut scenarios = self.lock();
        scenarios.came += 1;
        let turn = (first, place, scenarios.came);
        scenarios.waiting.insert(turn, clusters);
        Waiting { stage: self, turn, clusters }
    }

    fn lock(&self) -> MutexGuard<'_, Scenarios> {
        self.scenarios.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A scenario that waits.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    stage: &'a Stage,
    turn: Turn,
    clusters: Clusters,
}

impl<'a> Waiting<'a> {
    /// Waits until it may run beside the others, and these are fewer than `most`.
    pub(super) async fn enter(self, most: usize) -> Entered<'a> {
        loop {
            let changed = self.stage.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut scenarios = self.stage.lock();
                if scenarios.running.len() < most && scenarios.next() == Some(self.turn) {
                    scenarios.running.push(self.clusters);
                    return Entered { stage: self.stage, clusters: self.clusters };
                }
            }
            changed.await;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.stage.lock().waiting.remove(&self.turn);
        self.stage.changed.notify_waiters();
    }
}

/// A scenario that runs.
#[derive(Debug)]
pub(super) struct Entered<'a> {
    stage: &'a Stage,
    clusters: Clusters,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut scenarios = self.stage.lock();
        if let Some(at) = scenarios.running.iter().position(|other| *other == self.clusters) {
            scenarios.running.swap_remove(at);
        }
        drop(scenarios);
        self.stage.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn nobody_meets_those_who_disturb_a_cluster() {
        let (pair, third, first) =
            (Clusters::new(&[0, 1], &[]), Clusters::new(&[0, 2], &[2]), Clusters::new(&[0, 1], &[0]));
        assert!(pair.goes_with(pair) && pair.goes_with(third));
        assert!(!third.goes_with(third) && !first.goes_with(third) && !pair.goes_with(first));
        assert!([pair, third, first].iter().all(|other| !other.goes_with(Clusters::ALL)));
    }

    #[tokio::test]
    async fn whoever_fits_enters_and_the_others_follow() {
        let stage = Stage::new();
        let enter = |clusters: Clusters| stage.line_up(clusters, 0).enter(3);
        let pair = enter(Clusters::new(&[0, 1], &[])).await;
        let mut first = Box::pin(enter(Clusters::new(&[0, 1], &[0])));
        assert!((&mut first).now_or_never().is_none(), "somebody shares the first cluster");
        let again = enter(Clusters::new(&[0, 1], &[])).now_or_never().unwrap();
        let third = enter(Clusters::new(&[1, 2], &[2])).now_or_never().unwrap();
        assert!(enter(Clusters::new(&[1], &[])).now_or_never().is_none(), "no more than three");
        drop((again, third));
        assert!((&mut first).now_or_never().is_none());
        drop(pair);
        let first = first.now_or_never().unwrap();
        assert!(enter(Clusters::ALL).now_or_never().is_none());
        drop(first);
        assert!(enter(Clusters::ALL).now_or_never().is_some());
    }

    #[tokio::test]
    async fn of_those_that_fit_the_first_in_turn_begins() {
        let stage = Stage::new();
        let running = stage.line_up(Clusters::ALL, 0).enter(1).await;
        let wait = |clusters: Clusters, place: usize| Box::pin(stage.line_up(clusters, place).enter(1));
        let mut waiting = vec![
            wait(Clusters::ALL, 0),
            wait(Clusters::new(&[0], &[]), 0),
            wait(Clusters::new(&[0], &[0]), 2),
            wait(Clusters::new(&[1], &[1]), 1),
        ];
        assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
        drop(running);
        while let Some(last) = waiting.pop() {
            assert!(waiting.iter_mut().all(|one| one.now_or_never().is_none()));
            assert!(last.now_or_never().is_some());
        }
    }
}
