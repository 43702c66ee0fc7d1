//! The membership of this cluster: its own ledger, those of the other clusters, and what they mean for its objects.

use std::{sync::Arc, time::Duration};

use tracing::{info, warn};

use super::{
    Knowledge, Membership, Mode,
    core::{Core, FIRST_READING, Now},
    dirty::Fact,
    knowledge::Concerned,
};
use api::conditions::{ImportCondition, find};
use ledger::{
    Map,
    driver::{Status, local::Kept},
    readers::Owner,
    remote::{RemoteFigures, Remotes},
    writer::{Inherited, Stage},
};
use model::{ClusterId, ServiceKey};

/// How long conditions keep the words of an error. The errors of an outage alternate, and each of them would be written to
/// every ServiceExport.
const WORDED: Duration = Duration::from_mins(1);
/// The text while `cloudmap-mcs leave` holds.
pub(super) const LEAVING: &str = "This cluster leaves its ClusterSet. To come back: cloudmap-mcs leave --undo.";

/// What this leader has learned of its ledger since it leads.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub(super) status: Arc<Status>,
    /// Whether this cluster is in no ClusterSet, and has left its former ones.
    pub(super) outside: bool,
    /// Whether errors of the registry count as waiting.
    pub(super) young: bool,
    /// When unreadable clusters have had their time; `None` if they had it.
    pub(super) first_reading_ends: Option<Duration>,
    /// Until when the membership keeps its words while an error has others; `None` if that time is over.
    pub(super) worded: Option<Duration>,
}

impl Term {
    /// A term that begins.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            status: Arc::default(),
            outside: false,
            young: true,
            first_reading_ends: Some(now + FIRST_READING),
            worded: None,
        }
    }
}

impl Core {
    pub(super) fn ledger_changed(&mut self, status: Arc<Status>, now: Now) {
        if status.reads != self.term.status.reads {
            let positions = status.remotes.iter().filter_map(|(id, remote)| Some((id, remote.position?)));
            self.claims.read(positions, now.mono);
        }
        let streams = status.connected != self.term.status.connected;
        let before = std::mem::replace(&mut self.term.status, status);
        if streams {
            self.choose_endpoints(now);
        }
        self.positions_changed(&before);
        if self.settings.mode == Mode::Member {
            self.judge_membership(now);
            self.judge_joining(now);
        }
    }

    /// Whether this cluster may register.
    fn judge_joining(&mut self, now: Now) {
        if self.term.status.judged && self.knowledge.set_barred(self.term.status.barred.clone(), now.seconds()) {
            info!(why = self.knowledge.barred(), "whether this cluster may register changed");
            self.changed(Fact::Membership);
        }
    }

    /// Notes which clusters have written since the former status. Imports no longer say of them what an earlier leader
    /// said.
    fn positions_changed(&mut self, before: &Status) {
        // Positions in the record may be far behind those of the first read.
        let former = |id: &Arc<str>| before.remotes.get(id).filter(|_| before.reads > 0)?.position;
        let advanced =
            |(id, remote): &(&Arc<str>, &RemoteFigures)| former(id).is_some_and(|at| remote.position > Some(at));
        let writing =
            self.term.status.remotes.iter().filter(advanced).filter_map(|(id, _)| id.parse::<ClusterId>().ok());
        let names = self.knowledge.set_advanced(&writing.collect::<Vec<_>>());
        let is_stale = |key: &ServiceKey| {
            let import = self.world.imports.get(key);
            import.is_some_and(|import| find(&import.status.conditions, ImportCondition::Stale.as_str()).is_some())
        };
        let stale: Vec<_> = names.into_iter().filter(is_stale).collect();
        self.changed_each(&stale, Fact::Import);
    }

    pub(super) fn judge_membership(&mut self, now: Now) {
        let membership = membership(&self.term.status, self.term.young, self.knowledge.local());
        let known = self.knowledge.membership();
        let keeps_words = self.term.worded.is_some_and(|until| now.mono < until) && differ_in_words(known, &membership);
        if *known == membership || keeps_words {
            return;
        }
        self.term.worded = Some(now.mono + WORDED);
        if let Membership::Refused(why) = &membership {
            warn!(why, "this cluster does not take part in its ClusterSet");
        } else {
            info!(?membership, "membership changed");
        }
        if !matches!(self.knowledge.membership(), Membership::Member { .. }) {
            self.claims.seen(now.mono);
        }
        self.knowledge.set_membership(membership, now.seconds());
        self.check_membership();
        self.changed(Fact::Membership);
    }

    pub(super) fn report_held_up(&mut self) {
        for owner in self.annotated.owners() {
            self.annotated.report_held_up(&self.knowledge, &owner);
        }
    }

    /// This leader starts from what the previous one left.
    pub(super) fn resumed(&mut self, own: Option<&Inherited>, now: Now) {
        let Some(Inherited { map, written, heard, barred }) = own else { return };
        let why = barred.then(|| "This cluster registers nothing before it has joined the ClusterSet.".to_owned());
        self.knowledge.set_barred(why, now.seconds());
        let [written, heard] = [*written, *heard].map(|millis| (millis / 1_000).cast_signed());
        self.claims.inherit(records::registrations(map).values(), written);
        self.knowledge.not_before(heard);
        self.knowledge.resume(map, now.seconds());
        self.resume_drains(map, now);
        self.resume_unreachable(map);
        // Now it is known what is on record, and so who gets what.
        self.changed(Fact::Resumed);
    }

    /// What is stored instead of a ledger is published and visible at once: there are no other clusters to see it.
    pub(super) fn kept(&mut self, Kept { map, error, outside }: Kept, now: Now) {
        if self.knowledge.exports().is_none() {
            let own = map.clone().map(|map| Inherited { map, ..Inherited::default() });
            self.resumed(own.as_ref(), now);
        }
        if map.is_some() {
            self.published(map.clone());
            self.read_back(map);
        }
        if outside && !std::mem::replace(&mut self.term.outside, true) {
            self.changed(Fact::Outside);
        }
        self.annotated.set_unrecorded(error.as_deref());
        self.changed(Fact::Recordable);
    }

    pub(super) fn published(&mut self, map: Option<Arc<Map>>) {
        let Concerned { names, targets } = self.knowledge.adopt_published(map);
        self.changed_each(&names, Fact::Published);
        self.changed_each(&targets, Fact::Record);
    }

    pub(super) fn read_back(&mut self, map: Option<Arc<Map>>) {
        let targets = self.claims.set_visible(map);
        self.changed_each(&targets, Fact::Record);
    }

    pub(super) fn remotes_changed(&mut self, remotes: &Remotes, now: Now) {
        let waiting = |knowledge: &Knowledge| {
            // Imports that keep what an unknown cluster exported say so. Nobody knows which names it exports.
            let silent: Vec<_> =
                knowledge.silent().into_keys().filter(|cluster| knowledge.is_unread(cluster)).collect();
            (knowledge.unknown(), knowledge.awaits_first_reading(), silent)
        };
        let before = waiting(&self.knowledge);
        let Concerned { names, targets } = self.knowledge.adopt_remotes(remotes);
        // The instances of a live cluster never bring back what it withdrew. Those of one that has left decide, once
        // they were read.
        self.knowledge.forget_withdrawn(|key, live| {
            if live { !self.importing.peers.reads(key) } else { self.importing.peers.is_complete(key) }
        });
        let known = waiting(&self.knowledge) != before;
        // Claims of clusters in other registries are about what is there.
        let others = remotes.clusters.values().any(|remote| !remote.left && remote.registry.is_none())
            || !remotes.unaccepted.is_empty();
        let sole = remotes.all_live_verified && !others;
        if self.claims.set_clusters(sole, remotes.all_live_verified, now.mono) {
            self.changed(Fact::Clusters);
        }
        if known {
            self.changed(Fact::Unknown);
        }
        self.admit_changed(&names);
        let sided = self.knowledge.side_with_others(&targets);
        self.changed_each(&sided, Fact::Freed);
        self.changed_each(&targets, Fact::Record);
        self.changed_each(&names, Fact::Remote);
    }

    /// Unreadable clusters have had their time, and failed calls another attempt.
    pub(super) fn end_first_reading(&mut self, now: Now) {
        self.term.young = false;
        if self.settings.mode == Mode::Member {
            self.judge_membership(now);
        }
        // Both must be called: what waits for either no longer waits.
        if self.knowledge.end_first_reading() | self.importing.peers.end_first_reading() {
            info!("not all clusters could be read: their objects are kept, new imports wait no longer");
            self.changed(Fact::Unknown);
        }
        // While the registry cannot be read at all, the time has not begun.
        self.term.first_reading_ends = self.knowledge.awaits_first_reading().then_some(now.mono + FIRST_READING);
    }
}

/// Whether two memberships differ only in the words of an error.
fn differ_in_words(one: &Membership, other: &Membership) -> bool {
    matches!(
        (one, other),
        (Membership::Failing(_), Membership::Failing(_))
            | (Membership::Member { trouble: Some(_) }, Membership::Member { trouble: Some(_) })
    )
}

/// The membership that follows from a status. Errors of a `young` leader count as waiting: a short error is not worth a
/// write on every ServiceExport. `cluster` is the own id.
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
        Stage::OwnedElsewhere(Owner { registry, uid }) => Membership::Refused(format!(
            "The cluster id \"{cluster}\" belongs to another member of the ClusterSet, whose ledger is in the registry {registry} for \
             longer, and whose kube-system namespace has the UID {uid}: nothing that is exported from here counts. Give this cluster \
             another id (ClusterProperty cluster.clusterset.k8s.io, or the flag --cluster-id). If that member is gone for good: \
             cloudmap-mcs forget {cluster}, then cloudmap-mcs purge --cluster {cluster} in that registry."
        )),
        Stage::Contested { cluster: other } => Membership::Refused(format!(
            "Another controller writes in the name of this cluster, under the id \"{other}\" and with the same UID of its namespace \
             kube-system: nothing is exported from here. If the controller is installed twice in this cluster (kubectl get \
             deployments -A -l app.kubernetes.io/part-of=cloudmap-mcs), remove one installation. Otherwise a cluster was restored \
             from a backup while the original goes on: stop the controller in one of the two clusters, or make that cluster \
             anew, because its kube-system namespace must have a UID of its own."
        )),
        Stage::Leaving | Stage::Left => Membership::Leaving,
        Stage::Claiming => joining("Claiming the cluster id in the registry"),
        Stage::Electing | Stage::Verifying => joining("Reading the own ledger"),
        Stage::Running => Membership::Member {
            trouble: error.map(|error| {
                format!("The registry does not accept changes of this cluster: {error} The controller tries again until it does.")
            }),
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
    fn an_error_of_the_registry_is_reported_in_its_words() {
        let Membership::Member { trouble: Some(trouble) } = said(&status(Stage::Running, Some("access denied")), false)
        else {
            panic!("a member without trouble")
        };
        assert!(trouble.contains("access denied.") && trouble.contains("tries again"), "{trouble}");
        let claiming = said(&status(Stage::Claiming, Some("access denied")), false);
        assert_eq!(claiming, Membership::Failing("Claiming the cluster id in the registry: access denied.".to_owned()));
        assert!(matches!(said(&status(Stage::Verifying, None), false), Membership::Joining(_)));
        let young = said(&status(Stage::Claiming, Some("not found yet")), true);
        assert!(matches!(young, Membership::Joining(_)));
    }

    #[test]
    fn a_taken_id_is_reported_with_its_owner_and_both_remedies() {
        let Membership::Refused(message) = said(&status(Stage::Refused { owner: "uid-9".to_owned() }, None), false)
        else {
            panic!("not refused")
        };
        for part in ["\"blue\"", "uid-9", "cluster.clusterset.k8s.io", "--cluster-id", "purge --cluster blue"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_second_controller_is_reported_with_both_ways_to_get_one() {
        let Membership::Refused(message) = said(&status(Stage::Contested { cluster: "green".into() }, None), false)
        else {
            panic!("not refused")
        };
        for part in ["\"green\"", "installed twice", "part-of=cloudmap-mcs", "restored from a backup"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn the_flag_in_the_record_counts_before_the_leader_has_acted_on_it() {
        let status = Status { leaving: true, ..status(Stage::Running, None) };
        assert_eq!(said(&status, false), Membership::Leaving);
    }
}
