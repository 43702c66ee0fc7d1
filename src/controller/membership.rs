//! What the state of the ledger means for the exports of this cluster.

use super::Membership;
use crate::ledger::{driver::Status, writer::Stage};

/// What a status says about this cluster's part in the ClusterSet. A `young` leader's errors count as waiting: one that
/// passes is not worth a write on every ServiceExport.
pub(super) fn membership(status: &Status, young: bool) -> Membership {
    let error = status.error.as_ref().filter(|_| !young).map(|error| format!("{error}."));
    let joining = |what: &str| match &error {
        None => Membership::Joining(format!("{what}.")),
        Some(error) => Membership::Failing(format!("{what}: {error}")),
    };
    match &status.stage {
        _ if status.leaving => Membership::Leaving,
        Stage::Refused { .. } => Membership::Refused(status.message.clone().unwrap_or_default()),
        Stage::Leaving | Stage::Left => Membership::Leaving,
        Stage::Claiming => joining("Claiming the cluster id in the registry"),
        Stage::Electing | Stage::Verifying => joining("Reading the own ledger"),
        Stage::Running => Membership::Member { trouble: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(stage: Stage, error: Option<&str>) -> Status {
        Status { stage, error: error.map(str::to_owned), ..Status::default() }
    }

    #[test]
    fn an_error_of_the_registry_is_said_in_its_words() {
        let running = membership(&status(Stage::Running, Some("access denied")), false);
        assert_eq!(running, Membership::Member { trouble: Some("access denied.".to_owned()) });
        let claiming = membership(&status(Stage::Claiming, Some("access denied")), false);
        assert_eq!(claiming, Membership::Failing("Claiming the cluster id in the registry: access denied.".to_owned()));
        assert!(matches!(membership(&status(Stage::Verifying, None), false), Membership::Joining(_)));
        let young = membership(&status(Stage::Claiming, Some("not found yet")), true);
        assert!(matches!(young, Membership::Joining(_)));
    }

    #[test]
    fn the_flag_in_the_record_counts_before_the_leader_has_acted_on_it() {
        let status = Status { leaving: true, ..status(Stage::Running, None) };
        assert_eq!(membership(&status, false), Membership::Leaving);
    }
}
