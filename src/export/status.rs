//! The conditions of a ServiceExport.

use super::Invalid;
use crate::{
    api::conditions::{ExportCondition, ReadyReason, RegisteredReason, ValidReason, Verdict},
    model::Conflict,
};

/// What is known about one ServiceExport.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// Why there is nothing to export, if so.
    pub invalid: Option<&'a Invalid>,
    pub publication: Publication,
    /// Of the merge over all clusters; `None` while it is not known.
    pub conflicts: Option<&'a [Conflict]>,
    /// State of the instances: reason and message; `None` leaves the condition out.
    pub registered: Option<(RegisteredReason, String)>,
}

/// How far an export has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publication {
    /// The registry has it.
    Published,
    /// On the way, or waiting for what the message says.
    Pending(String),
    /// Not without somebody's help, which the message names.
    Failed(String),
}

/// The conditions, with KEP-1645's reasons, and this project's own `Registered`.
pub fn verdicts(facts: &Facts<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::with_capacity(4);
    match facts.invalid {
        None => verdicts.push(Verdict::new(
            ExportCondition::Valid.as_str(),
            true,
            ValidReason::Valid,
            "The Service can be exported.",
        )),
        Some(Invalid { reason, message }) => {
            verdicts.push(Verdict::new(ExportCondition::Valid.as_str(), false, *reason, message.clone()));
        }
    }
    let ready =
        |holds: bool, reason, message: &str| Verdict::new(ExportCondition::Ready.as_str(), holds, reason, message);
    verdicts.push(match (&facts.publication, facts.invalid) {
        (Publication::Failed(message), _) => ready(false, ReadyReason::Failed, message),
        (Publication::Pending(message), None) => ready(false, ReadyReason::Pending, message),
        (_, Some(_)) => ready(false, ReadyReason::Failed, "Nothing is exported: see the condition Valid."),
        (Publication::Published, None) => ready(
            true,
            ReadyReason::Exported,
            "The registry has the export: the other clusters of the ClusterSet see it.",
        ),
    });
    if let Some(conflicts) = facts.conflicts.filter(|_| facts.invalid.is_none()) {
        verdicts.push(conflict(conflicts));
    }
    if let Some((reason, message)) = facts.registered.clone().filter(|_| facts.invalid.is_none()) {
        let holds = reason == RegisteredReason::Registered;
        verdicts.push(Verdict::new(ExportCondition::Registered.as_str(), holds, reason, message));
    }
    verdicts
}

/// One condition for all conflicts: reasons joined by commas, as KEP-1645 allows.
fn conflict(conflicts: &[Conflict]) -> Verdict {
    let type_ = ExportCondition::Conflict.as_str();
    if conflicts.is_empty() {
        return Verdict::new(type_, false, "NoConflicts", "All exporting clusters agree.");
    }
    let reasons: Vec<_> = conflicts.iter().map(|conflict| conflict.reason.as_str()).collect();
    let messages: Vec<_> = conflicts.iter().map(|conflict| conflict.message.as_str()).collect();
    Verdict::new(type_, true, reasons.join(","), messages.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ConflictReason;

    fn facts(publication: Publication) -> Facts<'static> {
        Facts { invalid: None, publication, conflicts: Some(&[]), registered: None }
    }

    fn of<'a>(verdicts: &'a [Verdict], type_: &str) -> Option<(&'static str, &'a str)> {
        verdicts
            .iter()
            .find(|verdict| verdict.type_ == type_)
            .map(|verdict| (verdict.status.as_str(), &*verdict.reason))
    }

    #[test]
    fn a_published_export_is_ready() {
        let verdicts = verdicts(&facts(Publication::Published));
        assert_eq!(of(&verdicts, "Valid"), Some(("True", "Valid")));
        assert_eq!(of(&verdicts, "Ready"), Some(("True", "Exported")));
        assert_eq!(of(&verdicts, "Conflict"), Some(("False", "NoConflicts")));
        assert_eq!(of(&verdicts, "Registered"), None);
    }

    #[test]
    fn an_invalid_export_is_not_ready_and_has_no_conflict() {
        let invalid = Invalid { reason: ValidReason::NoService, message: "no".to_owned() };
        let facts = Facts { invalid: Some(&invalid), ..facts(Publication::Published) };
        let verdicts = verdicts(&facts);
        assert_eq!(of(&verdicts, "Valid"), Some(("False", "NoService")));
        assert_eq!(of(&verdicts, "Ready"), Some(("False", "Failed")));
        assert_eq!(of(&verdicts, "Conflict"), None);
    }

    #[test]
    fn the_words_of_a_failure_reach_the_user() {
        let verdicts = verdicts(&facts(Publication::Failed("access denied".to_owned())));
        assert_eq!(of(&verdicts, "Ready"), Some(("False", "Failed")));
        assert_eq!(verdicts[1].message, "access denied");
    }

    #[test]
    fn several_conflicts_are_one_condition() {
        let conflicts = [
            Conflict { reason: ConflictReason::Type, message: "one.".to_owned() },
            Conflict { reason: ConflictReason::Port, message: "two.".to_owned() },
        ];
        let facts = Facts { conflicts: Some(&conflicts), ..facts(Publication::Published) };
        let verdicts = verdicts(&facts);
        assert_eq!(of(&verdicts, "Conflict"), Some(("True", "TypeConflict,PortConflict")));
        assert_eq!(verdicts[2].message, "one. two.");
    }
}
