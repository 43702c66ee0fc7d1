//! The machine of one replica: its wall clock, its chance, and tasks that stand still while it is paused and end when it
//! dies.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base::env;
use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::Instant;

use crate::ledger_sim::rng::Rng;

/// When simulations begin, since 1970: the first hour of 2026.
pub(crate) const EPOCH: Duration = Duration::from_hours(490_896);

/// More polls than that at one moment are a loop that waits for what is past: the clock stands until all tasks wait.
const MOST_POLLS: u32 = 100_000;

/// One process, from its start to its death.
#[derive(Debug, Clone)]
pub(crate) struct Machine(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    began: Instant,
    /// Milliseconds that the wall clock is ahead of the world's.
    offset: i64,
    rng: Rng,
    paused: bool,
    dead: bool,
    /// How often tasks were polled at this moment, and which it is.
    polls: (Instant, u32),
    next_task: u64,
    /// The tasks that wait for something, by number.
    waiting: BTreeMap<u64, Waker>,
}

impl Machine {
    /// `began`: when the simulation did.
    pub(crate) fn new(began: Instant, offset: i64, rng: Rng) -> Self {
        let (paused, dead, next_task, waiting) = (false, false, 0, BTreeMap::new());
        let polls = (began, 0);
        Self(Arc::new(Mutex::new(State { began, offset, rng, paused, dead, polls, next_task, waiting })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process stands still, or goes on.
    pub(crate) fn pause(&self, paused: bool) {
        self.state().paused = paused;
        self.wake();
    }

    /// The process ends in the middle of whatever it does.
    pub(crate) fn kill(&self) {
        self.state().dead = true;
        self.wake();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// From now on the wall clock is this many milliseconds ahead of the world's.
    pub(crate) fn set_offset(&self, offset: i64) {
        self.state().offset = offset;
    }

    /// Ends a process that runs in circles, which no time would end.
    fn count(&self) {
        let (mut state, now) = (self.state(), Instant::now());
        state.polls = if state.polls.0 == now { (now, state.polls.1 + 1) } else { (now, 1) };
        let spins = state.polls.1 > MOST_POLLS;
        drop(state);
        assert!(!spins, "tasks of a process do something all the time and never wait");
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut self.state().waiting);
        waiting.into_values().for_each(Waker::wake);
    }
}

impl env::Machine for Machine {
    fn wall_clock(&self) -> SystemTime {
        let state = self.state();
        let world = UNIX_EPOCH + EPOCH + state.began.elapsed();
        let offset = Duration::from_millis(state.offset.unsigned_abs());
        if state.offset < 0 { world - offset } else { world + offset }
    }

    fn random(&self) -> u64 {
        self.state().rng.next()
    }

    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let mut state = self.state();
        state.next_task += 1;
        Gated { number: state.next_task, task: Some(task), machine: self.clone() }.boxed()
    }
}

/// A task that is polled only while its machine runs.
struct Gated {
    number: u64,
    task: Option<BoxFuture<'static, ()>>,
    machine: Machine,
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = self.machine.state();
            if !state.dead {
                state.waiting.insert(self.number, context.waker().clone());
                if state.paused {
                    return Poll::Pending;
                }
            }
        }
        if self.machine.is_dead() {
            self.task = None;
        }
        self.machine.count();
        match &mut self.task {
            Some(task) => task.poll_unpin(context),
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        let waker = self.machine.state().waiting.remove(&self.number);
        drop(waker);
    }
}
