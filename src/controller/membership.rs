//! What the state of the ledger means for the exports and the annotated objects of this cluster.

use tracing::info;

use super::{
    Membership,
    watch::{Watch, seconds},
};
use crate::{
    ledger::{driver::Status, writer::Stage},
    model::ClusterId,
};

/// What is said while `cloudmap-mcs leave` holds.
pub(super) const LEAVING: &str = "This cluster leaves its ClusterSet. To come back: cloudmap-mcs leave --undo.";

impl Watch {
    /// The ledger, or outside a ClusterSet the record of registrations, stands otherwise than before.
    pub(super) fn membership_changed(&mut self, status: &Status, young: bool) {
        if self.shared.ledger {
            let membership = membership(status, young, self.shared.state().knowledge.local());
            if *self.shared.state().knowledge.membership() == membership {
                return;
            }
            info!(?membership, "membership changed");
            self.shared.state().knowledge.set_membership(membership, seconds());
            self.check_membership();
            self.touch_all();
            self.publish();
            self.enqueue(self.names());
        } else {
            self.annotated.set_unrecorded(status.error.as_deref());
        }
        for owner in self.annotated.owners() {
            self.annotated.tell_held_up(&self.shared.state().knowledge, &owner);
        }
    }
}

/// What a status says about this cluster's part in the ClusterSet. A `young` leader's errors count as waiting: one that
/// passes is not worth a write on every ServiceExport. `cluster` is the own id.
pub(super) fn membership(status: &Status, young: bool, cluster: &ClusterId) -> Membership {
    let error = status.error.as_ref().filter(|_| !young).map(|error| format!("{error}."));
    let joining = |what: &str| match &error {
        None => Membership::Joining(format!("{what}.")),
        Some(error) => Membership::Failing(format!("{what}: {error}")),
    };
    match &status.stage {
        _ if status.leaving => Membership::Leaving,
        Stage::Refused { owner } => Membership::Refused(format!(
            "The cluster id \"{cluster}\" belongs to another member of the ClusterSet, whose kube-system namespace has the UID \
             {owner}: nothing is exported from here. Give this cluster another id (ClusterProperty cluster.clusterset.k8s.io, or \
             the flag --cluster-id). If that member is gone for good: cloudmap-mcs forget {cluster}, then cloudmap-mcs purge --cluster {cluster}."
        )),
        Stage::Contested => Membership::Refused(
            "Another controller writes in the name of this cluster, with the same id and the same UID of its namespace kube-system \
             (as after a restore from a backup while the original goes on): nothing is exported from here. Stop one of the two."
                .to_owned(),
        ),
        Stage::Leaving | Stage::Left => Membership::Leaving,
        Stage::Claiming => joining("Claiming the cluster id in the registry"),
        Stage::Electing | Stage::Verifying => joining("Reading the own ledger"),
        Stage::Running => Membership::Member {
            trouble: error
                .map(|error| format!("The registry does not take it: {error} It is tried again until it does.")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(stage: Stage, error: Option<&str>) -> Status {
        Status { stage, error: error.map(str::to_owned), ..Status::default() }
    }

    fn said(status: &Status, young: bool) -> Membership {
        membership(status, young, &"blue".parse().unwrap())
    }

    #[test]
    fn an_error_of_the_registry_is_said_in_its_words() {
        let Membership::Member { trouble: Some(trouble) } = said(&status(Stage::Running, Some("access denied")), false)
        else {
            panic!("a member without trouble")
        };
        assert!(trouble.contains("access denied.") && trouble.contains("tried again"), "{trouble}");
        let claiming = said(&status(Stage::Claiming, Some("access denied")), false);
        assert_eq!(claiming, Membership::Failing("Claiming the cluster id in the registry: access denied.".to_owned()));
        assert!(matches!(said(&status(Stage::Verifying, None), false), Membership::Joining(_)));
        let young = said(&status(Stage::Claiming, Some("not found yet")), true);
        assert!(matches!(young, Membership::Joining(_)));
    }

    #[test]
    fn a_taken_id_is_said_with_its_owner_and_both_remedies() {
        let Membership::Refused(message) = said(&status(Stage::Refused { owner: "uid-9".to_owned() }, None), false)
        else {
            panic!("not refused")
        };
        for part in ["\"blue\"", "uid-9", "cluster.clusterset.k8s.io", "--cluster-id", "purge --cluster blue"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn the_flag_in_the_record_counts_before_the_leader_has_acted_on_it() {
        let status = Status { leaving: true, ..status(Stage::Running, None) };
        assert_eq!(said(&status, false), Membership::Leaving);
    }
}
