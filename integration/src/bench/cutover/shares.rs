//! Which share of new connections goes to pods, while Cutovers say which share is reached.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use cutover::{Settle, hiding::stoppable_after};

use super::{course::SETTLE, objects};

/// Answers count when the share that they belong to was still reached so long after them: Cloud Map changes before the status
/// says it.
const HELD: Duration = Duration::from_secs(10);
/// Answers are counted together for so long.
const SLOT: Duration = Duration::from_secs(1);

/// Answers of tasks and of pods.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Answers {
    tasks: u64,
    pods: u64,
}

/// A service.
#[derive(Debug)]
struct Service {
    reached: Option<Reached>,
    /// From here on, clients use answers of DNS that are not older than that.
    settled: Instant,
    /// Answers that do not count yet.
    open: VecDeque<(Instant, Answers)>,
}

/// All services.
#[derive(Debug)]
pub(super) struct Shares {
    services: Vec<Mutex<Service>>,
    /// By the share that was reached.
    counted: Mutex<BTreeMap<u32, Answers>>,
    /// Of the records, in seconds.
    ttl: u32,
    /// `--settle` of the controller.
    settle: Settle,
    /// Whether no answer counts.
    paused: AtomicBool,
}

/// What a Cutover says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reached {
    /// In hundredths of a percent.
    pub(super) share: u32,
    /// Whether tasks are hidden for it, which Cloud Map takes its time to leave out.
    pub(super) hides: bool,
}

impl Reached {
    /// From the change until clients have noticed it.
    fn settle(self, ttl: u32, settle: Settle) -> Duration {
        if self.hides { stoppable_after(ttl, settle) } else { Duration::from_secs(ttl.into()) + SETTLE }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shares {
    pub(super) fn new(services: usize, ttl: u32, settle: Settle) -> Self {
        let now = Instant::now();
        let service = || Mutex::new(Service { reached: None, settled: now, open: VecDeque::new() });
        Self {
            services: (0..services).map(|_| service()).collect(),
            counted: Mutex::default(),
            ttl,
            settle,
            paused: AtomicBool::default(),
        }
    }

    /// While it is paused, no answer counts.
    pub(super) fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// A new connection to a service was answered by a task, or by a pod.
    pub(super) fn answered(&self, number: usize, by_task: bool) {
        self.answered_at(number, by_task, Instant::now());
    }

    fn answered_at(&self, number: usize, by_task: bool, now: Instant) {
        let Some(service) = self.services.get(number) else { return };
        let mut service = lock(service);
        if service.reached.is_none() || now < service.settled {
            return;
        }
        if service.open.back().is_none_or(|(at, _)| now.duration_since(*at) >= SLOT) {
            service.open.push_back((now, Answers::default()));
        }
        if let Some((_, answers)) = service.open.back_mut() {
            answers.tasks += u64::from(by_task);
            answers.pods += u64::from(!by_task);
        }
    }

    /// The shares that are reached now, by the names of services.
    pub(super) fn are_reached<'a>(&self, reached: impl Iterator<Item = (&'a str, Option<Reached>)>) {
        let reached: BTreeMap<_, _> = reached.filter(|_| !self.paused.load(Ordering::Relaxed)).collect();
        let now = Instant::now();
        for number in 0..self.services.len() {
            self.is_reached_at(number, reached.get(objects::name(number).as_str()).copied().flatten(), now);
        }
    }

    fn is_reached_at(&self, number: usize, reached: Option<Reached>, now: Instant) {
        let Some(service) = self.services.get(number) else { return };
        let mut service = lock(service);
        if service.reached != reached {
            let settle = reached.map_or(Duration::ZERO, |reached| reached.settle(self.ttl, self.settle));
            (service.reached, service.settled) = (reached, now + settle);
            service.open.clear();
            return;
        }
        let Some(reached) = reached else { return };
        let mut counted = lock(&self.counted);
        while let Some((at, answers)) = service.open.front().copied() {
            if now.duration_since(at) < HELD + SLOT {
                return;
            }
            service.open.pop_front();
            let sum = counted.entry(reached.share).or_default();
            sum.tasks += answers.tasks;
            sum.pods += answers.pods;
        }
    }

    /// Each share that was reached for at least so many answers, and the share of these that came from pods, in percent.
    pub(super) fn measured(&self, least: u64) -> Vec<(f64, f64)> {
        let counted = lock(&self.counted);
        let enough = counted.iter().filter(|(_, answers)| answers.tasks + answers.pods >= least);
        let measured = enough.map(|(reached, Answers { tasks, pods })| {
            (f64::from(*reached) / 100.0, *pods as f64 * 100.0 / (tasks + pods) as f64)
        });
        measured.collect()
    }
}

/// Whether a part of the traffic was measured ([`Shares::measured`]), if there is a step that moves a part.
pub(super) fn shows_a_part(steps: &[u8], measured: &[(f64, f64)]) -> bool {
    steps.iter().all(|step| *step == 100) || measured.iter().any(|(reached, _)| *reached > 0.0 && *reached < 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_for_the_share_that_holds_before_and_after_them() {
        let shares = Shares::new(1, 10, Settle::default());
        let reached = |share, hides| Some(Reached { share, hides });
        let begun = Instant::now();
        let at = |seconds: u64| begun + Duration::from_secs(seconds);
        shares.is_reached_at(0, reached(5000, false), at(0));
        // Resolvers may still have the answer from before.
        shares.answered_at(0, true, at(5));
        for second in 30..40 {
            shares.answered_at(0, second % 2 == 0, at(second));
            shares.answered_at(0, false, at(second));
        }
        shares.is_reached_at(0, reached(5000, false), at(45));
        assert_eq!(shares.measured(10), [(50.0, 70.0)], "those of five seconds count");
        // What came last was perhaps of the next share.
        shares.is_reached_at(0, reached(10_000, true), at(46));
        shares.is_reached_at(0, reached(10_000, true), at(120));
        assert_eq!(shares.measured(10), [(50.0, 70.0)]);
        assert_eq!(shares.measured(11), []);
        // Cloud Map answers with hidden tasks for a while.
        shares.answered_at(0, true, at(110));
        shares.answered_at(0, false, at(121));
        shares.is_reached_at(0, reached(10_000, true), at(140));
        assert_eq!(shares.measured(1), [(50.0, 70.0), (100.0, 100.0)]);
    }

    #[test]
    fn only_a_part_of_the_traffic_shows_that_connections_follow_shares() {
        let steps = [25, 50, 100];
        assert!(shows_a_part(&steps, &[(33.33, 34.0), (100.0, 100.0)]));
        assert!(!shows_a_part(&steps, &[(0.0, 0.0), (100.0, 100.0)]));
        assert!(!shows_a_part(&steps, &[]), "too few answers");
        assert!(shows_a_part(&[100], &[]), "no step moves a part");
    }
}
