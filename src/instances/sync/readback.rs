//! Confirms writes by reading the instances back, where the role may not ask for operations.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{
    notice::Notice,
    state::{Running, State},
};
use crate::{
    api::events::EventReason,
    cloudmap::{Error, ErrorKind, OperationId, OperationState},
    instances::plan::Reading,
};

/// How often to ask again for an operation that is no longer awaited, only to see whether that is allowed by now.
pub(super) const ASK_AGAIN: Duration = Duration::from_mins(1);

/// AWS denies to say whether operations have ended.
#[derive(Debug)]
pub(super) struct Unpolled {
    /// The operation for which to ask again.
    operation: OperationId,
    /// In AWS's words.
    problem: String,
}

impl Unpolled {
    pub(super) fn notice(&self) -> Notice {
        let message = format!(
            "The controller may not ask whether AWS has finished a write, and reads the instances back instead, which \
             takes longer: {}",
            self.problem
        );
        Notice { reason: EventReason::AccessDenied, message }
    }
}

impl State {
    /// Whether the result of this very operation is awaited.
    pub(super) fn awaits(&self, id: &Arc<str>, operation: &OperationId) -> bool {
        self.running.get(id).is_some_and(|running| running.operation.as_ref() == Some(operation))
    }

    /// Whether this is the operation for which to ask until that is allowed.
    pub(super) fn asks_again(&self, operation: &OperationId) -> bool {
        self.unpolled.as_ref().is_some_and(|unpolled| unpolled.operation == *operation)
    }

    /// Takes note of whether operations may be asked for. Returns whether the answer denied it.
    pub(super) fn was_asked(
        &mut self,
        id: &Arc<str>,
        operation: &OperationId,
        result: &Result<OperationState, Error>,
    ) -> bool {
        let error = match result {
            Ok(_) | Err(Error { kind: ErrorKind::NotFound, .. }) => {
                self.unpolled = None;
                return false;
            }
            Err(error) => error,
        };
        if error.kind != ErrorKind::AccessDenied {
            return false;
        }
        let awaited = self.awaits(id, operation);
        match &mut self.unpolled {
            // One operation is enough. The text stays the same, because every other one would be an Event.
            Some(unpolled) if awaited => unpolled.operation = operation.clone(),
            Some(_) => {}
            None => {
                let (operation, problem) = (operation.clone(), error.to_string());
                self.unpolled = Some(Box::new(Unpolled { operation, problem }));
            }
        }
        true
    }

    /// The instances whose operations may not be asked for, and had their effect by a complete reading. `written` are
    /// those about which it proves nothing.
    pub(super) fn shown(&self, reading: &Reading, written: &BTreeSet<Arc<str>>) -> Vec<Arc<str>> {
        let shows = |id: &Arc<str>, running: &Running| match running.effect {
            Some(said) => reading.own.get(id) == Some(&Some(said)),
            None => !reading.own.contains_key(id) && !reading.adopted.contains_key(id),
        };
        let unpolled = self.running.iter().filter(|(id, running)| running.unpolled && !written.contains(*id));
        unpolled.filter(|(id, running)| shows(id, running)).map(|(id, _)| id.clone()).collect()
    }
}
