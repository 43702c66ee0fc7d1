//! A queue of keys with back-off. Only one worker at a time has a key. A key that is added while a worker has it comes
//! once more afterwards. A key that fails comes back later and later. If many keys wait, a worker may do only what is
//! urgent for each of them first, and the rest afterwards.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// First delay after a failure. It doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// Maximum delay between attempts, so that a user who fixes something does not wait longer.
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Where many keys go on failing, their attempts are so far apart, as in the queues of client-go. Thousands may fail for one
/// reason, such as a range of Service addresses that is full, which costs the API server much each time it says so.
const RETRIES_APART: Duration = Duration::from_millis(100);

/// After so many first turns, one key gets the turn for its rest although others wait: the rest must not wait for ever.
const FAIRNESS: u32 = 3;

/// What a key is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It was added, or comes back after a failure.
    First,
    /// What its first turn left.
    Rest,
}

/// The queue. Workers [`take`](Self::take) keys, and then call [`done`](Self::done) or [`failed`](Self::failed).
#[derive(Debug)]
pub struct Queue<K> {
    inner: Mutex<Inner<K>>,
    wake: Notify,
}

#[derive(Debug)]
struct Inner<K> {
    ready: VecDeque<K>,
    queued: BTreeSet<K>,
    /// Those that had their first turn, in the order of it.
    rest: VecDeque<K>,
    /// The same ones.
    resting: BTreeSet<K>,
    /// First turns since the last one for a rest.
    first_turns: u32,
    working: BTreeSet<K>,
    /// Added while a worker has them.
    again: BTreeSet<K>,
    failures: BTreeMap<K, u32>,
    delayed: BTreeMap<K, Instant>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        let inner = Inner {
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            rest: VecDeque::new(),
            resting: BTreeSet::new(),
            first_turns: 0,
            working: BTreeSet::new(),
            again: BTreeSet::new(),
            failures: BTreeMap::new(),
            delayed: BTreeMap::new(),
        };
        Self { inner: Mutex::new(inner), wake: Notify::new() }
    }
}

impl<K: Clone + Ord> Queue<K> {
    /// Adds a key to be taken as soon as possible, even if it waits for a retry: the change may have fixed the failure.
    pub fn add(&self, key: K) {
        let mut inner = self.lock();
        inner.delayed.remove(&key);
        inner.enqueue(key);
        drop(inner);
        self.wake.notify_one();
    }

    /// Adds a key to be taken after `delay`, or earlier if it is added again.
    pub fn add_after(&self, key: K, delay: Duration) {
        let mut inner = self.lock();
        inner.delay(key, Instant::now() + delay);
        drop(inner);
        self.wake.notify_one();
    }

    /// Waits for the next key. Cancel-safe.
    pub async fn take(&self) -> (K, Turn) {
        loop {
            let notified = self.wake.notified();
            let next_due = {
                let mut inner = self.lock();
                inner.promote(Instant::now());
                if let Some(taken) = inner.next() {
                    if !inner.ready.is_empty() || !inner.rest.is_empty() {
                        self.wake.notify_one();
                    }
                    return taken;
                }
                inner.delayed.values().min().copied()
            };
            match next_due {
                Some(due) => {
                    let _ = tokio::time::timeout_at(due, notified).await;
                }
                None => notified.await,
            }
        }
    }

    /// The worker succeeded with the key.
    pub fn done(&self, key: &K) {
        let mut inner = self.lock();
        inner.failures.remove(key);
        inner.finish(key);
        drop(inner);
        self.wake.notify_one();
    }

    /// The worker did what is urgent for the key, and the rest is still to do. Failures of the rest go on counting: many
    /// keys whose rest fails press each other, and would come back at once for ever.
    pub fn rest(&self, key: &K) {
        let mut inner = self.lock();
        inner.finish(key);
        if inner.resting.insert(key.clone()) {
            inner.rest.push_back(key.clone());
        }
        drop(inner);
        self.wake.notify_one();
    }

    /// Whether other keys wait for their first turn.
    pub fn is_pressed(&self) -> bool {
        !self.lock().ready.is_empty()
    }

    /// The worker failed with the key, which comes back later; or earlier, if [`add_after`](Self::add_after) said so.
    /// Returns the delay, and how many times in a row it has failed.
    pub fn failed(&self, key: &K) -> (Duration, u32) {
        let mut inner = self.lock();
        let count = inner.failures.entry(key.clone()).or_insert(0);
        *count += 1;
        let count = *count;
        let mut delay = FIRST_RETRY.saturating_mul(1 << (count - 1).min(16));
        if delay >= LAST_RETRY {
            let all = RETRIES_APART.saturating_mul(u32::try_from(inner.failures.len()).unwrap_or(u32::MAX));
            delay = LAST_RETRY.max(all);
        }
        inner.finish(key);
        if !inner.queued.contains(key) {
            inner.delay(key.clone(), Instant::now() + delay);
        }
        drop(inner);
        self.wake.notify_one();
        (delay, count)
    }

    /// Number of keys that wait, now or for a retry.
    pub fn len(&self) -> usize {
        let inner = self.lock();
        inner.ready.len() + inner.rest.len() + inner.delayed.len()
    }

    /// Whether no key waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Ord> Inner<K> {
    /// The next key. One that a worker has gets its turn for the rest when that worker is done.
    fn next(&mut self) -> Option<(K, Turn)> {
        let is_rest = self.ready.is_empty() || self.first_turns >= FAIRNESS;
        let rest = if is_rest { self.rest.iter().position(|key| !self.working.contains(key)) } else { None };
        let (key, turn) = match rest.and_then(|at| self.rest.remove(at)) {
            Some(key) => (key, Turn::Rest),
            None => (self.ready.pop_front()?, Turn::First),
        };
        match turn {
            Turn::First => {
                self.queued.remove(&key);
                self.first_turns += 1;
            }
            Turn::Rest => {
                self.resting.remove(&key);
                self.first_turns = 0;
            }
        }
        self.working.insert(key.clone());
        Some((key, turn))
    }

    fn enqueue(&mut self, key: K) {
        if self.working.contains(&key) {
            self.again.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn finish(&mut self, key: &K) {
        self.working.remove(key);
        if self.again.remove(key) {
            self.enqueue(key.clone());
        }
    }

    /// Lets a key come at that time, unless it comes earlier.
    fn delay(&mut self, key: K, due: Instant) {
        let at = self.delayed.entry(key).or_insert(due);
        *at = due.min(*at);
    }

    fn promote(&mut self, now: Instant) {
        let due: Vec<K> = self.delayed.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for key in due {
            self.delayed.remove(&key);
            self.enqueue(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_that_a_worker_has_is_not_given_to_another_but_comes_again() {
        let queue = Queue::default();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.take().await.0, "a");
        queue.add("a");
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.take()).await.is_err());
        queue.done(&"a");
        assert_eq!(queue.take().await.0, "a");
        queue.done(&"a");
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_comes_back_later_and_later_and_at_once_after_a_change() {
        let queue = Queue::default();
        queue.add("a");
        let mut delays = Vec::new();
        for _ in 0..12 {
            assert_eq!(queue.take().await.0, "a");
            delays.push(queue.failed(&"a").0);
        }
        assert!(delays.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!((delays[0], delays[11]), (FIRST_RETRY, LAST_RETRY));
        let before = Instant::now();
        queue.add("a");
        assert_eq!(queue.take().await.0, "a");
        assert_eq!(Instant::now(), before);
        queue.done(&"a");
        queue.add("a");
        queue.take().await;
        assert_eq!(queue.failed(&"a"), (FIRST_RETRY, 1), "success forgets failures");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_comes_once_when_it_was_to_come_and_then_later_again() {
        let queue = Queue::default();
        queue.add("a");
        for _ in 0..9 {
            queue.take().await;
            queue.failed(&"a");
        }
        queue.take().await;
        queue.add_after("a", Duration::from_secs(3));
        for seconds in [3, 30] {
            let failed = Instant::now();
            assert_eq!(queue.failed(&"a").0, LAST_RETRY);
            queue.take().await;
            assert_eq!(failed.elapsed().as_secs(), seconds);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_does_not_delay_the_others() {
        let queue = Arc::new(Queue::default());
        queue.add(1);
        let (key, _) = queue.take().await;
        queue.failed(&key);
        queue.add(2);
        assert_eq!(tokio::time::timeout(Duration::from_millis(1), queue.take()).await, Ok((2, Turn::First)));
    }

    #[tokio::test(start_paused = true)]
    async fn several_workers_get_all_keys() {
        let queue = Arc::new(Queue::default());
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move {
                    let mut seen = 0;
                    while let Ok((key, _)) = tokio::time::timeout(Duration::from_secs(5), queue.take()).await {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        queue.done(&key);
                        seen += 1;
                    }
                    seen
                })
            })
            .collect();
        for key in 0..1_000 {
            queue.add(key);
        }
        let mut total = 0;
        for worker in workers {
            total += worker.await.unwrap();
        }
        assert_eq!(total, 1_000);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_urgent_for_all_keys_comes_before_the_rest_of_any_which_does_not_wait_for_ever() {
        let queue = Queue::default();
        for key in 0..10 {
            queue.add(key);
        }
        let mut turns = Vec::new();
        for _ in 0..20 {
            let (key, turn) = queue.take().await;
            turns.push((key, turn));
            match turn {
                Turn::First => queue.rest(&key),
                Turn::Rest => queue.done(&key),
            }
        }
        let rests: Vec<_> = turns.iter().filter(|(_, turn)| *turn == Turn::Rest).map(|(key, _)| *key).collect();
        assert_eq!(rests, (0..10).collect::<Vec<_>>(), "each gets both turns, in order");
        assert_eq!(turns[3], (0, Turn::Rest), "every fourth turn is for a rest");
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_whose_rest_fails_comes_back_later_and_later_although_its_first_turns_succeed() {
        let queue = Queue::default();
        queue.add("a");
        let mut failed = Vec::new();
        for _ in 0..3 {
            assert_eq!(queue.take().await, ("a", Turn::First));
            queue.rest(&"a");
            assert_eq!(queue.take().await, ("a", Turn::Rest));
            failed.push(queue.failed(&"a"));
        }
        assert_eq!(failed, [(FIRST_RETRY, 1), (FIRST_RETRY * 2, 2), (FIRST_RETRY * 4, 3)]);
        queue.take().await;
        queue.rest(&"a");
        queue.take().await;
        queue.done(&"a");
        queue.add("a");
        queue.take().await;
        assert_eq!(queue.failed(&"a"), (FIRST_RETRY, 1), "success forgets failures");
    }

    #[tokio::test(start_paused = true)]
    async fn many_keys_that_go_on_failing_are_tried_ten_times_a_second_in_all() {
        let queue = Queue::default();
        for key in 0..1_000 {
            queue.add(key);
        }
        let (begun, mut tried) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_mins(10) {
            let (key, _) = queue.take().await;
            tried += u32::from(begun.elapsed() > Duration::from_mins(5));
            queue.failed(&key);
        }
        assert!((2_500..3_500).contains(&tried), "{tried} in five minutes");
    }

    #[tokio::test(start_paused = true)]
    async fn the_rest_of_a_key_waits_while_a_worker_has_it() {
        let queue = Queue::default();
        queue.add("a");
        queue.take().await;
        queue.rest(&"a");
        queue.add("a");
        assert_eq!(queue.take().await, ("a", Turn::First));
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.take()).await.is_err());
        queue.rest(&"a");
        assert_eq!(queue.take().await, ("a", Turn::Rest), "once");
        queue.done(&"a");
        assert!(queue.is_empty());
    }
}
