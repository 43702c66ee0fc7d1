//! Asks AWS whether operations on instances have ended.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    call::{Call, Event},
    engine::Engine,
    readback::ASK_AGAIN,
    state::{Running, Told},
};
use cloudmap::{Error, ErrorKind, OperationId, OperationState};
use model::Target;

/// Maximum number of polls in flight. With 20 ms per call they could use up the rate of GetOperation, which is 100/s.
const POLLS: usize = 8;
/// An operation that takes longer is given up, and the instance is written again.
const OPERATION_DEADLINE: Duration = Duration::from_mins(2);
/// AWS's code of an operation that failed because Route 53, which takes few changes a second, was asked too often.
const THROTTLED: &str = "THROTTLED_REQUEST";

/// An operation on an instance of a target.
pub(super) type Poll = (Target, Arc<str>, OperationId);

impl Engine {
    pub(super) fn poll_at(&mut self, target: &Target, id: &Arc<str>, operation: OperationId, at: Instant) {
        self.sequence += 1;
        self.polls.insert((at, self.sequence), (target.clone(), id.clone(), operation));
    }

    pub(super) fn may_poll(&self) -> bool {
        self.polling < POLLS
    }

    pub(super) fn next_poll(&mut self, now: Instant) -> Option<Call> {
        while self.may_poll() {
            let due = self.polls.first_entry().filter(|poll| poll.key().0 <= now)?;
            let (target, id, operation) = due.remove();
            let awaited = self.targets.get(&target).is_some_and(|state| state.awaits(&id, &operation));
            if awaited || self.still_asks(&operation) {
                self.polling += 1;
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
        let running = self.targets.get_mut(&target).and_then(|state| state.running.get_mut(&id));
        let Some(running) = running.filter(|running| running.operation.as_ref() == Some(&operation)) else {
            if asks_again {
                self.poll_at(&target, &id, operation, now + ASK_AGAIN);
            }
            return self.wake_target(&target, now);
        };
        match result {
            Ok(OperationState::Succeeded { .. } | OperationState::Failed { .. }) if running.in_the_way => {
                self.ended(&target, &id, now);
                self.registered_as(&target, &id, None);
                self.doubt(&target, &id, now);
            }
            Ok(OperationState::Succeeded { .. }) => {
                self.looks.ended(now.duration_since(running.since), running.polls == 0);
                self.took_effect(&target, &id, now);
            }
            Ok(OperationState::Failed { code, message }) => {
                let operation = if running.effect.is_some() { "RegisterInstance" } else { "DeregisterInstance" };
                let kind = if code == THROTTLED { ErrorKind::Throttled } else { ErrorKind::Other };
                let message = format!("{code}: {message}");
                self.ended(&target, &id, now);
                self.operation_failed(&target, &id, &Error { operation, kind, message }, now);
            }
            // AWS forgets operations after a while, and an operation that takes too long is not awaited any more.
            Err(Error { kind: ErrorKind::NotFound, .. }) => self.given_up(&target, &id, now),
            _ if now.duration_since(running.since) > OPERATION_DEADLINE => {
                self.given_up(&target, &id, now);
                if asks_again {
                    self.poll_at(&target, &id, operation, now + ASK_AGAIN);
                }
            }
            Ok(OperationState::Running) | Err(_) => {
                running.polls += 1;
                // A reading says nothing about what others do.
                let reads = denied && !running.in_the_way;
                running.unpolled |= reads;
                let wait = self.looks.again(now.duration_since(running.since));
                self.poll_at(&target, &id, operation, now + wait);
                if reads {
                    self.read_soon(&target, now);
                }
            }
        }
        self.wake_target(&target, now);
    }

    /// An operation succeeded.
    pub(super) fn took_effect(&mut self, target: &Target, id: &Arc<str>, now: Instant) {
        let running = self.targets.get(target).and_then(|state| state.running.get(id));
        let Some(&Running { effect, healthy, .. }) = running else { return };
        self.ended(target, id, now);
        self.registered_as(target, id, effect.map(|_| Told { healthy, settles: now }));
        self.succeeded(target, id, effect, now);
    }

    fn given_up(&mut self, target: &Target, id: &Arc<str>, now: Instant) {
        self.ended(target, id, now);
        self.doubt(target, id, now);
    }
}
