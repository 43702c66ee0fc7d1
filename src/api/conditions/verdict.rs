//! What is written of the conditions of an object, by the rules of `metav1.Condition`.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use super::{ConflictState, ExportCondition, ImportCondition, Row, Status};
use crate::events::EventReason;
use model::{ConflictReason, MAX_SHARED, Pool, intern};

/// Maximum length of a `message` in the CRD, in characters.
const MAX_MESSAGE: usize = 32_768;

/// The condition of an object, with shared texts: caches hold many of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedCondition {
    /// What thousands of objects have in common.
    pub heading: Arc<Heading>,
    /// `message`.
    pub message: Arc<str>,
    /// `observedGeneration`.
    pub observed_generation: Option<i64>,
    /// `lastTransitionTime`.
    pub last_transition_time: Timestamp,
}

impl std::ops::Deref for SharedCondition {
    type Target = Heading;

    fn deref(&self) -> &Heading {
        &self.heading
    }
}

/// What a condition says, without its text for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Heading {
    /// `type`.
    pub type_: Arc<str>,
    /// `status`.
    pub status: Arc<str>,
    /// `reason`.
    pub reason: Arc<str>,
}

impl Heading {
    /// The shared one that says the same.
    fn share(self) -> Arc<Self> {
        static POOL: LazyLock<Mutex<Pool<Heading>>> = LazyLock::new(Mutex::default);
        let Self { type_, status, reason } = &self;
        // As for texts: the pool keeps everything for a while.
        if type_.len() + status.len() + reason.len() > MAX_SHARED {
            return Arc::new(self);
        }
        POOL.lock().unwrap_or_else(PoisonError::into_inner).share(self)
    }
}

impl From<&Condition> for SharedCondition {
    fn from(condition: &Condition) -> Self {
        let Condition { type_, status, reason, message, observed_generation, last_transition_time: Time(since) } =
            condition;
        let [type_, status, reason, message] = [type_, status, reason, message].map(|text| intern(text));
        let (observed_generation, last_transition_time) = (*observed_generation, *since);
        let heading = Heading { type_, status, reason }.share();
        Self { heading, message, observed_generation, last_transition_time }
    }
}

impl From<&SharedCondition> for Condition {
    fn from(said: &SharedCondition) -> Self {
        let SharedCondition { heading, message, observed_generation, last_transition_time } = said;
        let Heading { type_, status, reason } = &**heading;
        let [type_, status, reason, message] = [type_, status, reason, message].map(ToString::to_string);
        let (observed_generation, last_transition_time) = (*observed_generation, Time(*last_transition_time));
        Self { type_, status, reason, message, observed_generation, last_transition_time }
    }
}

/// The desired content of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// `type` of the condition.
    pub type_: &'static str,
    /// `status` of the condition.
    pub status: Status,
    /// `reason` of the condition, in CamelCase.
    pub reason: String,
    /// `reason` of the Event that reports the change, if one does.
    pub event: Option<EventReason>,
    /// Text for people. It is cut after 32,768 characters, the limit of the CRD.
    pub message: String,
}

impl Verdict {
    /// The content of a condition, from a row of its table.
    pub fn new(row: impl Into<Row>, message: impl Into<String>) -> Self {
        let Row { condition, status, reason, event, text: _, remedy: _, more: _ } = row.into();
        Self { type_: condition, status, reason: reason.to_owned(), event, message: message.into() }
    }

    /// One condition for all conflicts, with their reasons joined by commas, as KEP-1645 allows.
    pub fn conflict(reasons: &[ConflictReason], message: impl Into<String>) -> Self {
        let reason = reasons.iter().map(|reason| reason.as_str()).collect::<Vec<_>>().join(",");
        Self { reason, ..Self::new(ConflictState::Conflict, message) }
    }

    /// Whether this is bad: `Conflict`, `Stale`, `Unreachable` and `TypeChanges` are bad if true, all others if not.
    pub fn is_bad(&self) -> bool {
        let holds = self.status == Status::True;
        let fears = [
            ExportCondition::Conflict.as_str(),
            ImportCondition::Stale.as_str(),
            ImportCondition::Unreachable.as_str(),
            ImportCondition::TypeChanges.as_str(),
        ];
        let fears = fears.contains(&self.type_);
        holds == fears
    }

    /// The reason of the Event to emit, if the object had the conditions `before`. Only a change is an Event, and a
    /// good one only after a bad one.
    pub fn news(&self, before: &[SharedCondition]) -> Option<EventReason> {
        let there = find(before, self.type_);
        let said = there.is_some_and(|there| *there.status == *self.status.as_str() && *there.reason == *self.reason);
        self.event.filter(|_| !said && (self.is_bad() || there.is_some()))
    }
}

/// The conditions with the content of `verdicts`, given those that the object has now.
///
/// `lastTransitionTime` is `now` only if the status changes. Conditions of other types in `current` are not repeated,
/// because each writer applies only its own (see [`FieldManager`](crate::names::FieldManager)). The result has the
/// order of `verdicts`, so equal verdicts give equal results.
pub fn conditions(
    current: &[SharedCondition],
    verdicts: impl IntoIterator<Item = Verdict>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    verdicts
        .into_iter()
        .map(|Verdict { type_, status, reason, event: _, message }| {
            let unchanged_since = find(current, type_)
                .filter(|condition| *condition.status == *status.as_str())
                .map(|condition| condition.last_transition_time);
            Condition {
                type_: type_.to_owned(),
                status: status.as_str().to_owned(),
                reason,
                message: truncate(message),
                observed_generation: generation,
                // The API server keeps whole seconds. A more precise time would differ from what is read back.
                last_transition_time: Time(unchanged_since.unwrap_or_else(|| whole_seconds(now))),
            }
        })
        .collect()
}

/// The condition of this type, if the object has it.
pub fn find<'a>(conditions: &'a [SharedCondition], type_: &str) -> Option<&'a SharedCondition> {
    conditions.iter().find(|condition| *condition.type_ == *type_)
}

/// Whether the object already has all `wanted` conditions, so that nothing needs to be written.
pub fn already_say(current: &[SharedCondition], wanted: &[Condition]) -> bool {
    wanted.iter().map(SharedCondition::from).all(|condition| current.contains(&condition))
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn truncate(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
        message.truncate(end);
    }
    message
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
