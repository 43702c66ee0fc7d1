//! Asks AWS whether operations on instances have ended.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    activity::{Progress, Write},
    call::{Call, Event},
    engine::Engine,
    known::LastHealth,
    readback::{ASK_AGAIN, Unpolled},
    turns::Timers,
};
use cloudmap::{Error, ErrorKind, Looks, OperationId, OperationState};
use model::Target;

/// Maximum number of polls in flight. With 20 ms per call they could use up the rate of GetOperation, which is 100/s.
const POLLS: usize = 8;
/// An operation that takes longer is given up, and the instance is written again.
const OPERATION_DEADLINE: Duration = Duration::from_mins(2);
/// AWS's code of an operation that failed because Route 53, which takes few changes a second, was asked too often.
const THROTTLED: &str = "THROTTLED_REQUEST";

/// An operation on an instance of a target.
type Poll = (Target, Arc<str>, OperationId);

/// The questions whether operations have ended.
#[derive(Debug)]
pub(super) struct Polls {
    pub(super) due: Timers<Poll>,
    pub(super) in_flight: usize,
    /// `None` as long as AWS answers.
    pub(super) denied: Option<Unpolled>,
    pub(super) looks: Looks,
}

impl Default for Polls {
    fn default() -> Self {
        Self { due: Timers::default(), in_flight: 0, denied: None, looks: Looks::rarely() }
    }
}

impl Engine {
    pub(super) fn poll_at(&mut self, target: &Target, id: &Arc<str>, operation: OperationId, at: Instant) {
        self.polls.due.add(at, (target.clone(), id.clone(), operation));
    }

    pub(super) fn may_poll(&self) -> bool {
        self.polls.in_flight < POLLS
    }

    pub(super) fn next_poll(&mut self, now: Instant) -> Option<Call> {
        while self.may_poll() {
            let (target, id, operation) = self.polls.due.pop(now)?;
            let awaited = self.targets.get(&target).is_some_and(|state| state.awaits(&id, &operation));
            if awaited || self.still_asks(&operation) {
                self.polls.in_flight += 1;
                return Some(Call::Poll { target, id, operation });
            }
        }
        None
    }

    pub(super) fn polled(&mut self, event: Event, now: Instant) {
        let Event::Polled { target, id, operation, result } = event else { return };
        let denied = self.was_asked(&target, &id, &operation, &result, now);
        // Also after a call that was throttled or had no answer: nothing else may ask.
        let asks_again = self.asks_again(&operation);
        // Things may have changed since the question was asked. The target or its service is gone, the instance is
        // being written in another service, or it was read back.
        let there = self.targets.get_mut(&target).and_then(|state| state.known_mut());
        let write = there.and_then(|there| there.activities.write_mut(&id));
        let Some(write) = write.filter(|write| write.operation() == Some(&operation)) else {
            if asks_again {
                self.poll_at(&target, &id, operation, now + ASK_AGAIN);
            }
            return self.wake_target(&target, now);
        };
        let age = now.duration_since(write.since);
        match (result, &mut write.progress) {
            (Ok(OperationState::Succeeded { .. } | OperationState::Failed { .. }), Progress::InTheWay { .. }) => {
                self.ended(&target, &id, now);
                self.registered_as(&target, &id, None);
                self.doubt(&target, &id, now);
            }
            (Ok(OperationState::Succeeded { .. }), progress) => {
                let at_once = matches!(progress, Progress::Running { polls: 0, .. });
                self.polls.looks.ended(age, at_once);
                self.took_effect(&target, &id, now);
            }
            (Ok(OperationState::Failed { code, message }), _) => {
                let operation = if write.effect.is_some() { "RegisterInstance" } else { "DeregisterInstance" };
                let kind = if code == THROTTLED { ErrorKind::Throttled } else { ErrorKind::Other };
                let message = format!("{code}: {message}");
                self.ended(&target, &id, now);
                self.operation_failed(&target, &id, &Error { operation, kind, message }, now);
            }
            // AWS forgets operations after a while, and an operation that takes too long is not awaited any more.
            (Err(Error { kind: ErrorKind::NotFound, .. }), _) => self.given_up(&target, &id, now),
            _ if age > OPERATION_DEADLINE => {
                self.given_up(&target, &id, now);
                if asks_again {
                    self.poll_at(&target, &id, operation, now + ASK_AGAIN);
                }
            }
            (Ok(OperationState::Running) | Err(_), progress) => {
                // A reading says nothing about what others do.
                if let Progress::Running { polls, unpolled, .. } = progress {
                    *polls += 1;
                    *unpolled |= denied;
                    if denied {
                        self.read_soon(&target, now);
                    }
                }
                self.poll_at(&target, &id, operation, now + self.polls.looks.again(age));
            }
        }
        self.wake_target(&target, now);
    }

    /// An operation succeeded.
    pub(super) fn took_effect(&mut self, target: &Target, id: &Arc<str>, now: Instant) {
        let write = self.targets.get(target).and_then(|state| state.known()?.activities.write(id));
        let Some(&Write { effect, healthy, .. }) = write else { return };
        self.ended(target, id, now);
        self.registered_as(target, id, effect.map(|_| LastHealth { healthy, shown_by: now }));
        self.succeeded(target, id, effect, now);
    }

    fn given_up(&mut self, target: &Target, id: &Arc<str>, now: Instant) {
        self.ended(target, id, now);
        self.doubt(target, id, now);
    }
}
