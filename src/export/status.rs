//! The conditions of a ServiceExport.

use super::Refusal;
use api::conditions::{
    ConflictState, DrainReason, ReadyReason, RegisteredReason, SelectionReason, ValidReason, Verdict,
};
use model::{ClusterId, Conflict};

/// What is known about a ServiceExport.
#[derive(Debug, Clone)]
pub struct ExportFacts<'a> {
    /// This cluster.
    pub local: &'a ClusterId,
    /// Why nothing is exported, if so.
    pub refusal: Option<&'a Refusal>,
    /// Remarks on a valid export.
    pub remarks: Option<String>,
    /// How far the export has come.
    pub publication: Publication,
    /// The conflicts of the merge over all clusters; `None` while the merge is not known.
    pub conflicts: Option<&'a [Conflict]>,
    /// State of the instances as reason and message; `None` leaves the condition out.
    pub registered: Option<(RegisteredReason, String)>,
    /// State of the cluster selection as reason and message; `None` leaves the condition out.
    pub selection: Option<(SelectionReason, String)>,
    /// State of the drain as reason and message; `None` leaves the condition out.
    pub drained: Option<(DrainReason, String)>,
}

/// How far an export has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publication {
    /// The registry contains it.
    Published,
    /// It is on its way, or waits for what the message names.
    Pending(String),
    /// It cannot be exported before the cluster is in a ClusterSet, as the message says.
    Outside(String),
    /// It cannot be exported before somebody does what the message says.
    Failed(String),
}

/// The conditions: those of KEP-1645 with its reasons, and this project's own ones.
pub fn verdicts(facts: &ExportFacts<'_>) -> Vec<Verdict> {
    let mut verdicts = Vec::with_capacity(6);
    verdicts.push(match facts.refusal {
        Some(Refusal::Invalid { reason, message }) => Verdict::new(*reason, message),
        None | Some(Refusal::NotAllowed(_)) => {
            let all = "The Service can be exported.";
            let message = facts.remarks.as_ref().map_or_else(|| all.to_owned(), |rest| format!("{all} {rest}"));
            Verdict::new(ValidReason::Valid, message)
        }
    });
    verdicts.push(match (facts.refusal, &facts.publication) {
        (Some(Refusal::NotAllowed(message)), _) | (_, Publication::Failed(message)) => {
            Verdict::new(ReadyReason::Failed, message)
        }
        (Some(Refusal::Invalid { .. }), _) => {
            Verdict::new(ReadyReason::Failed, "Nothing is exported; see the condition Valid.")
        }
        (None, Publication::Pending(message)) => Verdict::new(ReadyReason::Pending, message),
        (None, Publication::Outside(message)) => Verdict::new(ReadyReason::Outside, message),
        (None, Publication::Published) => Verdict::new(
            ReadyReason::Exported,
            "The registry contains the export, and the other clusters of the ClusterSet see it.",
        ),
    });
    if facts.refusal.is_none() {
        verdicts.extend(facts.conflicts.map(|conflicts| conflict(conflicts, facts.local)));
        verdicts.extend(facts.registered.clone().map(|(reason, message)| Verdict::new(reason, message)));
        verdicts.extend(facts.selection.clone().map(|(reason, message)| Verdict::new(reason, message)));
        verdicts.extend(facts.drained.clone().map(|(reason, message)| Verdict::new(reason, message)));
    }
    verdicts
}

fn conflict(conflicts: &[Conflict], local: &ClusterId) -> Verdict {
    if conflicts.is_empty() {
        return Verdict::new(ConflictState::NoConflicts, "All exporting clusters agree.");
    }
    let reasons: Vec<_> = conflicts.iter().map(|conflict| conflict.reason).collect();
    let messages: Vec<_> = conflicts.iter().map(|conflict| conflict.message(local)).collect();
    Verdict::conflict(&reasons, messages.join(" "))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use model::ConflictReason;

    fn here() -> ClusterId {
        "here".parse().unwrap()
    }

    fn said(change: impl FnOnce(&mut ExportFacts<'_>)) -> Vec<Verdict> {
        let here = here();
        let mut facts = ExportFacts {
            local: &here,
            refusal: None,
            remarks: None,
            publication: Publication::Published,
            conflicts: Some(&[]),
            registered: None,
            selection: None,
            drained: None,
        };
        change(&mut facts);
        verdicts(&facts)
    }

    fn of<'a>(verdicts: &'a [Verdict], type_: &str) -> Option<(&'static str, &'a str)> {
        verdicts
            .iter()
            .find(|verdict| verdict.type_ == type_)
            .map(|verdict| (verdict.status.as_str(), &*verdict.reason))
    }

    #[test]
    fn a_published_export_is_ready() {
        let verdicts = said(|_| {});
        assert_eq!(of(&verdicts, "Valid"), Some(("True", "Valid")));
        assert_eq!(of(&verdicts, "Ready"), Some(("True", "Exported")));
        assert_eq!(of(&verdicts, "Conflict"), Some(("False", "NoConflicts")));
        assert_eq!(of(&verdicts, "Registered"), None);
    }

    #[test]
    fn an_invalid_export_is_not_ready_and_has_no_conflict() {
        static REFUSAL: LazyLock<Refusal> =
            LazyLock::new(|| Refusal::Invalid { reason: ValidReason::NoService, message: "no".to_owned() });
        let verdicts = said(|facts| {
            facts.refusal = Some(&REFUSAL);
            facts.registered = Some((RegisteredReason::Registered, String::new()));
        });
        assert_eq!(of(&verdicts, "Valid"), Some(("False", "NoService")));
        assert_eq!(of(&verdicts, "Ready"), Some(("False", "Failed")));
        assert_eq!((of(&verdicts, "Conflict"), of(&verdicts, "Registered")), (None, None));
    }

    #[test]
    fn an_export_that_is_not_allowed_is_valid_but_failed() {
        static REFUSAL: LazyLock<Refusal> = LazyLock::new(|| Refusal::NotAllowed("ask an administrator".to_owned()));
        let verdicts = said(|facts| facts.refusal = Some(&REFUSAL));
        assert_eq!(of(&verdicts, "Valid"), Some(("True", "Valid")));
        assert_eq!(of(&verdicts, "Ready"), Some(("False", "Failed")));
        assert_eq!((verdicts[1].message.as_str(), verdicts.len()), ("ask an administrator", 2));
    }

    #[test]
    fn what_is_left_out_is_reported() {
        let verdicts = said(|facts| facts.remarks = Some("Left out: x.".to_owned()));
        assert_eq!(verdicts[0].message, "The Service can be exported. Left out: x.");
    }

    #[test]
    fn the_text_of_a_failure_reaches_the_user() {
        let verdicts = said(|facts| facts.publication = Publication::Failed("access denied".to_owned()));
        assert_eq!(of(&verdicts, "Ready"), Some(("False", "Failed")));
        assert_eq!(verdicts[1].message, "access denied");
    }

    #[test]
    fn several_conflicts_are_one_condition() {
        static CONFLICTS: LazyLock<[Conflict; 2]> = LazyLock::new(|| {
            [(ConflictReason::Type, "one."), (ConflictReason::Port, "two.")].map(|(reason, summary)| Conflict {
                reason,
                summary: summary.to_owned(),
                differing: [("there".parse().unwrap(), "x".to_owned())].into(),
            })
        });
        let verdicts = said(|facts| facts.conflicts = Some(&*CONFLICTS));
        assert_eq!(of(&verdicts, "Conflict"), Some(("True", "TypeConflict,PortConflict")));
        assert_eq!(verdicts[2].message, "one. Cluster \"there\" has x. two. Cluster \"there\" has x.");
    }
}
