//! Asks the discovery plane for the instances that pods wait for: once for each target, however many pods wait, and only
//! while one does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use base::inquiry::{Inquiry, Planner};
use cloudmap::{Discovery, Error, HttpName, Lane};
use cluster::objects::TargetId;
use model::Target;

/// Time from one lookup of a target to the next. What is registered appears after a few seconds.
const PERIOD: Duration = Duration::from_secs(1);
/// The same for a target that has been looked up for longer than [`SOON`] since anybody new waits there.
const SLOW: Duration = Duration::from_secs(5);
const SOON: Duration = Duration::from_mins(1);
/// Longest pause after failures. It doubles with each one in a row, beginning with [`PERIOD`].
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Shortest time between two lookups: 10 a second, of the 300 a second that the ledger leaves
/// ([`Operation::DiscoverInstances`](cloudmap::Operation)).
const GAP: Duration = Duration::from_millis(100);

/// An instance that a pod waits for. The pod is a part of it, because the next pod with the same address has the same
/// instance id, and discovery may still show the former one.
pub type Sought = (TargetId, Arc<str>);

/// What is asked about one target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The name by which `DiscoverInstances` knows the namespace.
    pub http_name: Arc<str>,
    /// The instances. The operations that register them have succeeded.
    pub sought: BTreeSet<Sought>,
}

/// What is asked of each target. One that is not here is not looked up.
pub type Questions = BTreeMap<Target, Question>;

/// What is known about the instances in question, by the last lookup of each target.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answers {
    /// Those that were discovered, and that no health check takes out of the answers.
    pub shown: BTreeSet<(Target, Sought)>,
    /// Those that were discovered, but fail the health check of their service.
    pub unhealthy: BTreeSet<(Target, Sought)>,
    /// Why the last lookup failed, if it did.
    pub failures: BTreeMap<Target, String>,
}

/// The task that looks up.
pub type Lookups = Inquiry<Agenda>;

/// Starts the task.
pub fn spawn(cloudmap: Arc<dyn cloudmap::Read>) -> Lookups {
    Lookups::start(move |target: Target, question: Question| {
        let cloudmap = Arc::clone(&cloudmap);
        async move {
            let (service, none) = (&target.service, BTreeMap::new());
            let result =
                cloudmap.discover_instances(HttpName::own(&question.http_name), service, &none, Lane::Instances).await;
            (target, question, result)
        }
    })
}

/// When to look up which target, and what was found. Makes no calls and reads no clock.
#[derive(Debug, Default)]
pub struct Agenda {
    entries: BTreeMap<Target, Entry>,
    answers: Answers,
    /// No lookup begins earlier.
    not_before: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    question: Question,
    /// When somebody new began to wait here.
    since: Instant,
    /// When to look up next; `None` while a lookup is in flight, or if everything is answered.
    due: Option<Instant>,
    in_flight: bool,
    failures: u32,
}

impl Planner for Agenda {
    type Key = Target;
    type Question = Question;
    type Found = Result<Discovery, Error>;
    type Questions = Questions;
    type Answers = Answers;

    const IN_FLIGHT: usize = 8;

    /// Takes new questions, and forgets the answers to those that are no longer asked.
    fn ask(&mut self, asked: &Questions, now: Instant) {
        let asks = |target: &Target, sought: &Sought| asked.get(target).is_some_and(|q| q.sought.contains(sought));
        self.answers.shown.retain(|(target, sought)| asks(target, sought));
        self.answers.unhealthy.retain(|(target, sought)| asks(target, sought));
        self.answers.failures.retain(|target, _| asked.contains_key(target));
        self.entries.retain(|target, _| asked.contains_key(target));
        for (target, question) in asked {
            let entry = self.entries.entry(target.clone()).or_insert_with(|| Entry {
                question: Question { sought: BTreeSet::new(), ..question.clone() },
                since: now,
                due: None,
                in_flight: false,
                failures: 0,
            });
            if !question.sought.is_subset(&entry.question.sought) {
                entry.since = now;
            }
            entry.question = question.clone();
            let open = question.sought.iter().any(|one| !self.answers.shown.contains(&(target.clone(), one.clone())));
            if open && !entry.in_flight {
                entry.due.get_or_insert(now);
            } else {
                entry.due = None;
            }
        }
    }

    /// The next lookup, if one is due: the one that is due for longest.
    fn next(&mut self, now: Instant) -> Option<(Target, Question)> {
        if self.wake()? > now {
            return None;
        }
        let due = |(_, entry): &(&Target, &mut Entry)| entry.due;
        let (target, entry) = self.entries.iter_mut().filter(|(_, entry)| entry.due.is_some()).min_by_key(due)?;
        (entry.due, entry.in_flight) = (None, true);
        self.not_before = Some(now + GAP);
        Some((target.clone(), entry.question.clone()))
    }

    /// When to call [`next`](Self::next) again.
    fn wake(&self) -> Option<Instant> {
        let due = self.entries.values().filter_map(|entry| entry.due).min()?;
        Some(self.not_before.map_or(due, |at| at.max(due)))
    }

    /// Takes a result. It answers what was asked when its lookup began, and no more.
    fn answered(&mut self, target: &Target, asked: &Question, result: Result<Discovery, Error>, now: Instant) {
        // Nobody asks any more.
        let Some(entry) = self.entries.get_mut(target) else { return };
        entry.in_flight = false;
        match result {
            Ok(Discovery { instances, unhealthy, truncated: _ }) => {
                let found: BTreeSet<_> = instances.into_iter().map(|instance| instance.id).collect();
                for sought in asked.sought.intersection(&entry.question.sought) {
                    let about = (target.clone(), sought.clone());
                    let (there, ill) = (found.contains(&sought.1), unhealthy.contains(&sought.1));
                    if there && ill {
                        self.answers.unhealthy.insert(about);
                    } else {
                        self.answers.unhealthy.remove(&about);
                        // What was shown once counts: replicas of the discovery plane lag.
                        if there {
                            self.answers.shown.insert(about);
                        }
                    }
                }
                entry.failures = 0;
                self.answers.failures.remove(target);
            }
            Err(error) => {
                entry.failures = entry.failures.saturating_add(1);
                self.answers.failures.insert(target.clone(), error.to_string());
            }
        }
        let shown = |one: &Sought| self.answers.shown.contains(&(target.clone(), one.clone()));
        let period = match entry.failures {
            0 if now < entry.since + SOON => PERIOD,
            0 => SLOW,
            failures => PERIOD.saturating_mul(1 << failures.min(5)).min(LAST_RETRY),
        };
        entry.due = entry.question.sought.iter().any(|one| !shown(one)).then_some(now + period);
    }

    fn answers(&self) -> &Answers {
        &self.answers
    }
}

#[cfg(test)]
#[path = "lookups_tests.rs"]
mod tests;
