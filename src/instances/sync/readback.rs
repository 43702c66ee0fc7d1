//! Confirms writes by reading the instances back, where the role may not ask for operations.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{activity::Write, engine::Engine, known::Known, notice::Notice, state::State};
use crate::plan::Reading;
use api::events::EventReason;
use cloudmap::{Error, ErrorKind, OperationId, OperationState};
use model::Target;

/// How often to ask again for an operation that is no longer awaited. The answer only shows whether AWS allows the
/// question by now.
pub(super) const ASK_AGAIN: Duration = Duration::from_mins(1);

/// AWS denies to say whether operations have ended. That is a matter of the role, and not of a target.
#[derive(Debug)]
pub(super) struct Unpolled {
    /// The operation for which to ask again. One is enough for all targets.
    operation: OperationId,
    /// In AWS's words. They stay the same, because every other text would be an Event.
    problem: Arc<str>,
}

/// What the user of a target should know in whose writes that was denied.
pub(super) fn notice(problem: &str) -> Notice {
    let message = format!(
        "The controller may not ask AWS whether a write is finished. It reads the instances back instead, which takes longer: \
         {problem}"
    );
    Notice { reason: EventReason::AccessDenied, message }
}

impl Engine {
    /// Whether this is the operation for which to ask until that is allowed.
    pub(super) fn asks_again(&self, operation: &OperationId) -> bool {
        self.polls.denied.as_ref().is_some_and(|unpolled| unpolled.operation == *operation)
    }

    /// Whether to ask for an operation that is not awaited: as long as a target says that it is not allowed.
    pub(super) fn still_asks(&mut self, operation: &OperationId) -> bool {
        if !self.asks_again(operation) {
            return false;
        }
        let concerns_any = self.targets.values().any(|state| state.remarks.unpolled.is_some());
        if !concerns_any {
            self.polls.denied = None;
        }
        concerns_any
    }

    /// Takes note of whether operations may be asked for. Returns whether the answer denied it.
    pub(super) fn was_asked(
        &mut self,
        target: &Target,
        id: &Arc<str>,
        operation: &OperationId,
        result: &Result<OperationState, Error>,
        now: Instant,
    ) -> bool {
        let error = match result {
            Ok(_) | Err(Error { kind: ErrorKind::NotFound, .. }) => {
                self.may_ask(now);
                return false;
            }
            Err(error) => error,
        };
        if error.kind != ErrorKind::AccessDenied {
            return false;
        }
        let state = self.targets.get_mut(target);
        let denied = || Unpolled { operation: operation.clone(), problem: error.to_string().into() };
        let unpolled = self.polls.denied.get_or_insert_with(denied);
        if let Some(state) = state {
            if state.awaits(id, operation) {
                unpolled.operation = operation.clone();
            }
            state.remarks.unpolled.get_or_insert_with(|| Arc::clone(&unpolled.problem));
        }
        true
    }

    /// Operations may be asked for: what was said of all targets is over.
    fn may_ask(&mut self, now: Instant) {
        if self.polls.denied.take().is_none() {
            return;
        }
        let said =
            self.targets.iter_mut().filter_map(|(target, state)| state.remarks.unpolled.take().map(|_| target.clone()));
        for target in said.collect::<Vec<_>>() {
            self.wake_target(&target, now);
        }
    }
}

impl State {
    /// Whether the result of this very operation is awaited.
    pub(super) fn awaits(&self, id: &Arc<str>, operation: &OperationId) -> bool {
        self.known()
            .and_then(|there| there.activities.write(id))
            .is_some_and(|write| write.operation() == Some(operation))
    }
}

impl Known {
    /// The instances of which a complete reading shows that their operations took effect, of those whose operations AWS
    /// does not let us ask for. The reading proves nothing about the instances in `written`.
    pub(super) fn shown(&self, reading: &Reading, written: &BTreeSet<Arc<str>>) -> Vec<Arc<str>> {
        let shows = |id: &Arc<str>, write: &Write| match write.effect {
            Some(said) => reading.own.get(id) == Some(&Some(said)),
            None => !reading.own.contains_key(id) && !reading.adopted.contains_key(id),
        };
        let unpolled = self.activities.writes().filter(|(id, write)| write.is_unpolled() && !written.contains(*id));
        unpolled.filter(|(id, write)| shows(id, write)).map(|(id, _)| id.clone()).collect()
    }
}
