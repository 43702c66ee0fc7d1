//! Which scenarios run beside each other. Those that kill or reconfigure a cluster's controllers have that cluster for
//! themselves; the others share clusters.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// So many clusters there are at most.
const CLUSTERS: usize = 4;

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

/// The scenarios that run now.
#[derive(Debug)]
pub(super) struct Stage {
    scenarios: Mutex<Scenarios>,
    left: Notify,
}

#[derive(Debug)]
struct Scenarios {
    running: Vec<Clusters>,
    /// Those that disturb a cluster and wait for it.
    waiting: Vec<Clusters>,
}

impl Scenarios {
    fn remove(from: &mut Vec<Clusters>, clusters: Clusters) {
        if let Some(at) = from.iter().position(|other| *other == clusters) {
            from.swap_remove(at);
        }
    }
}

impl Stage {
    pub(super) const fn new() -> Self {
        Self {
            scenarios: Mutex::new(Scenarios { running: Vec::new(), waiting: Vec::new() }),
            left: Notify::const_new(),
        }
    }

    /// Waits until a scenario may run. Those that have a cluster for themselves run one after the other, which takes longest:
    /// nobody who shares it goes before them. Those that need every cluster come last.
    pub(super) async fn enter(&self, clusters: Clusters, most: usize) -> Entered<'_> {
        let first = clusters.disturbs() && clusters != Clusters::ALL;
        if first {
            self.lock().waiting.push(clusters);
        }
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            {
                let mut scenarios = self.lock();
                let Scenarios { running, waiting } = &mut *scenarios;
                let free = first || waiting.iter().all(|other| other.goes_with(clusters));
                if free && running.len() < most && running.iter().all(|other| other.goes_with(clusters)) {
                    running.push(clusters);
                    if first {
                        Scenarios::remove(waiting, clusters);
                    }
                    return Entered { stage: self, clusters };
                }
            }
            left.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Scenarios> {
        self.scenarios.lock().unwrap_or_else(PoisonError::into_inner)
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
        Scenarios::remove(&mut self.stage.lock().running, self.clusters);
        self.stage.left.notify_waiters();
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
        let pair = stage.enter(Clusters::new(&[0, 1], &[]), 3).await;
        let mut first = Box::pin(stage.enter(Clusters::new(&[0, 1], &[0]), 3));
        assert!((&mut first).now_or_never().is_none());
        assert!(
            stage.enter(Clusters::new(&[0, 1], &[]), 3).now_or_never().is_none(),
            "the first cluster is waited for"
        );
        let third = stage.enter(Clusters::new(&[1, 2], &[2]), 3).now_or_never().unwrap();
        let again = stage.enter(Clusters::new(&[1], &[]), 3).now_or_never().unwrap();
        assert!(stage.enter(Clusters::new(&[1], &[]), 3).now_or_never().is_none(), "no more than three");
        drop(third);
        assert!((&mut first).now_or_never().is_none());
        drop((pair, again));
        let first = first.now_or_never().unwrap();
        assert!(stage.enter(Clusters::ALL, 3).now_or_never().is_none());
        drop(first);
        assert!(stage.enter(Clusters::ALL, 3).now_or_never().is_some());
    }
}
