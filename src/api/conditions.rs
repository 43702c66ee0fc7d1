//! Conditions of ServiceExport and ServiceImport: the types and reasons of KEP-1645, this project's own, and the rules
//! of `metav1.Condition`.

use std::fmt;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

/// Longest `message` that the CRD accepts, in characters.
const MAX_MESSAGE: usize = 32_768;

/// Condition types of a ServiceExport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExportCondition {
    /// KEP-1645: the Service exists and is of a type that can be exported.
    Valid,
    /// KEP-1645: the export has reached the other clusters' source of truth, here the registry.
    Ready,
    /// KEP-1645: exports of one name differ between clusters.
    Conflict,
    /// This project's own: the endpoints are registered as Cloud Map instances.
    Registered,
}

impl ExportCondition {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "Valid",
            Self::Ready => "Ready",
            Self::Conflict => "Conflict",
            Self::Registered => "Registered",
        }
    }
}

/// Reasons of [`ExportCondition::Valid`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ValidReason {
    /// True.
    Valid,
    /// False: there is no Service of that name.
    NoService,
    /// False: the Service is of type ExternalName.
    InvalidServiceType,
}

/// Reasons of [`ExportCondition::Ready`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReadyReason {
    /// True: the export is in the registry.
    Exported,
    /// False or Unknown: not yet; the message says what it waits for.
    Pending,
    /// False: the message says why.
    Failed,
}

/// Reasons of [`ExportCondition::Registered`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RegisteredReason {
    /// True.
    Registered,
    /// False: registrations are under way.
    Pending,
    /// False: an annotation or a flag turned the instances off.
    Disabled,
    /// False: an older claim to the target wins; the message names it.
    NameConflict,
    /// False: the target belongs to somebody else, and nobody said `share` or `adopt`.
    ForeignOwner,
    /// False: the Cloud Map namespace does not exist and is not ours to create.
    NoNamespace,
    /// False: a quota of Cloud Map is reached.
    LimitExceeded,
    /// False: an annotation cannot be understood.
    InvalidAnnotation,
    /// False: an endpoint lacks an address of a family that the DNS records of the target require.
    AddressFamilyMissing,
    /// False: Cloud Map refused; the message carries its words.
    Failed,
}

/// Condition types of a ServiceImport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImportCondition {
    /// KEP-1645: the imported service can be used in this cluster.
    Ready,
    /// This project's own: exporting clusters have not been heard of for long. Absent while all are.
    Stale,
}

impl ImportCondition {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Stale => "Stale",
        }
    }
}

/// Reasons of [`ImportCondition::Ready`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImportReadyReason {
    /// True.
    Ready,
    /// False: what it needs cannot be made yet; the message says why.
    Pending,
    /// False: this cluster supports none of the families of the service.
    IpFamilyNotSupported,
}

/// Reasons of [`ImportCondition::Stale`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImportStaleReason {
    /// True: the ledger of the clusters that the message names does not advance.
    ClusterSilent,
}

macro_rules! reason {
    ($name:ident: $($variant:ident = $text:literal),+) => {
        impl $name {
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

reason!(ValidReason: Valid = "Valid", NoService = "NoService", InvalidServiceType = "InvalidServiceType");
reason!(ReadyReason: Exported = "Exported", Pending = "Pending", Failed = "Failed");
reason!(
    RegisteredReason: Registered = "Registered",
    Pending = "Pending",
    Disabled = "Disabled",
    NameConflict = "NameConflict",
    ForeignOwner = "ForeignOwner",
    NoNamespace = "NoNamespace",
    LimitExceeded = "LimitExceeded",
    InvalidAnnotation = "InvalidAnnotation",
    AddressFamilyMissing = "AddressFamilyMissing",
    Failed = "Failed"
);
reason!(ImportStaleReason: ClusterSilent = "ClusterSilent");
reason!(ImportReadyReason: Ready = "Ready", Pending = "Pending", IpFamilyNotSupported = "IPFamilyNotSupported");

/// `status` of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    True,
    False,
    Unknown,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Status {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// What a condition should say. Types and reasons come from the enums of this module, by their `as_str`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    pub type_: &'static str,
    pub status: Status,
    pub reason: String,
    /// Cut at 32,768 characters, the limit of the CRD.
    pub message: String,
}

impl Verdict {
    pub fn new(
        type_: &'static str,
        status: impl Into<Status>,
        reason: impl fmt::Display,
        message: impl Into<String>,
    ) -> Self {
        Self { type_, status: status.into(), reason: reason.to_string(), message: message.into() }
    }
}

/// The conditions that say `verdicts`, given those that the object has now.
///
/// `lastTransitionTime` is `now` only where the status is new, else it is kept. Conditions of other types in `current`
/// are not repeated: each writer applies only its own (see [`super::names::FieldManager`]). The result is in the order
/// of `verdicts`, so that an unchanged verdict gives an equal result.
pub fn conditions(
    current: &[Condition],
    verdicts: impl IntoIterator<Item = Verdict>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    verdicts
        .into_iter()
        .map(|Verdict { type_, status, reason, message }| {
            let unchanged_since = find(current, type_)
                .filter(|condition| condition.status == status.as_str())
                .map(|condition| condition.last_transition_time.clone());
            Condition {
                type_: type_.to_owned(),
                status: status.as_str().to_owned(),
                reason,
                message: truncate(message),
                observed_generation: generation,
                // The API server keeps whole seconds: finer ones would differ from what is read back.
                last_transition_time: unchanged_since.unwrap_or_else(|| Time(whole_seconds(now))),
            }
        })
        .collect()
}

/// The condition of this type, if the object has one.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the object already says all of this, so that nothing needs to be written.
pub fn already_say(current: &[Condition], wanted: &[Condition]) -> bool {
    wanted.iter().all(|condition| find(current, &condition.type_) == Some(condition))
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
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ready(status: Status, reason: ReadyReason, message: &str) -> Verdict {
        Verdict::new(ExportCondition::Ready.as_str(), status, reason, message)
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let first = conditions(&[], [ready(Status::False, ReadyReason::Pending, "waiting")], Some(1), at(10));
        assert_eq!(first[0].last_transition_time.0, at(10));

        let reworded = conditions(&first, [ready(Status::False, ReadyReason::Failed, "denied")], Some(2), at(20));
        assert_eq!(reworded[0].last_transition_time.0, at(10));
        assert_eq!((reworded[0].reason.as_str(), reworded[0].observed_generation), ("Failed", Some(2)));

        let flipped = conditions(&reworded, [ready(Status::True, ReadyReason::Exported, "")], Some(2), at(30));
        assert_eq!(flipped[0].last_transition_time.0, at(30));
    }

    #[test]
    fn the_same_verdict_is_nothing_to_write() {
        let verdict = ready(Status::True, ReadyReason::Exported, "");
        let written = conditions(&[], [verdict.clone()], Some(1), at(10));
        assert!(already_say(&written, &conditions(&written, [verdict], Some(1), at(99))));
        assert!(!already_say(&[], &written));
    }

    #[test]
    fn conditions_of_others_are_left_to_them() {
        let others = conditions(&[], [Verdict::new("Custom", true, "Because", "")], None, at(1));
        let own = conditions(&others, [ready(Status::True, ReadyReason::Exported, "")], None, at(2));
        assert_eq!(own.len(), 1);
        assert!(!already_say(&others, &own));
    }

    #[test]
    fn fractions_of_a_second_are_dropped_as_the_api_server_does() {
        let now = Timestamp::from_millisecond(1_500).unwrap();
        assert_eq!(
            conditions(&[], [ready(Status::True, ReadyReason::Exported, "")], None, now)[0].last_transition_time.0,
            at(1)
        );
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let message = "é".repeat(MAX_MESSAGE + 5);
        let made = conditions(&[], [ready(Status::False, ReadyReason::Failed, &message)], None, at(1));
        assert_eq!(made[0].message.chars().count(), MAX_MESSAGE);
    }
}
