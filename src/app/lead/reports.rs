//! What a leader reports about other clusters, and about its own key, in Events on the Lease.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::credentials::Credentials;
use api::events::EventReason;
use ledger::{CLUSTERS, driver, news::What, trust::SECRET};

/// The time between two looks at the troubles with other clusters. A trouble that is there at two looks has an Event.
pub(super) const LOOK_EVERY: Duration = Duration::from_mins(1);
/// A trouble that lasts has another Event after this time: the API server keeps an Event for an hour.
const EMIT_AGAIN: Duration = Duration::from_mins(30);

/// The reason of the Event about a member.
pub(super) const fn reason(what: &What) -> EventReason {
    match what {
        What::Accepted(_) => EventReason::ClusterAccepted,
        What::Pinned { .. } => EventReason::KeyPinned,
        What::Left => EventReason::ClusterLeft,
        What::Forgotten => EventReason::ClusterForgotten,
        What::Rejected => EventReason::ClusterRejected,
    }
}

/// The text of an Event, if this cluster signs with another key than before.
pub(super) fn rotated(before: Option<&Credentials>, now: Option<&Credentials>) -> Option<String> {
    let key = |of: Option<&Credentials>| Some(of?.keys.as_ref()?.current.public());
    let (before, now) = key(before).zip(key(now)).filter(|(before, now)| before != now)?;
    Some(format!(
        "This cluster signs with the key {now} from now on, and no more with {before}. If nobody rotated it (trust rotate), \
         somebody else wrote the Secret {SECRET}."
    ))
}

/// From this number of heads on somebody must act: one read has room for 1,000.
const CROWDED: usize = 800;

/// What an Event is about: a trouble, and the cluster that has it.
type Subject = (EventReason, Arc<str>);

/// Decides when Events are emitted about troubles that last.
#[derive(Debug, Default)]
pub(super) struct Lasting {
    /// The troubles at the last look.
    before: BTreeSet<Subject>,
    /// When an Event was emitted about each trouble that is not over.
    emitted: BTreeMap<Subject, Instant>,
}

impl Lasting {
    /// The Events that are due now: about troubles that were there at the last look, and that had no Event lately.
    pub(super) fn due(&mut self, now: Instant, troubles: BTreeMap<Subject, String>) -> Vec<(EventReason, String)> {
        self.emitted.retain(|about, _| troubles.contains_key(about));
        let mut due = Vec::new();
        for (about, text) in &troubles {
            let lately = self.emitted.get(about).is_some_and(|at| now.duration_since(*at) < EMIT_AGAIN);
            if self.before.contains(about) && !lately {
                self.emitted.insert(about.clone(), now);
                due.push((about.0, text.clone()));
            }
        }
        self.before = troubles.into_keys().collect();
        due
    }
}

/// The troubles with other clusters, and the texts of their Events.
pub(super) fn troubles(status: &driver::Status, stream_port: u16) -> BTreeMap<Subject, String> {
    let unreachable = status.unreachable.iter().map(|(cluster, why)| {
        let text = format!(
            "The leader of cluster {cluster} cannot be reached ({why}), so that changes take seconds and not milliseconds. If \
             nothing answers, let security groups and NetworkPolicies pass TCP port {stream_port} between the controllers' pods, \
             in one direction at least, or set --stream=off. If a key is the reason, run `cloudmap-mcs trust list` in both \
             clusters."
        );
        ((EventReason::StreamUnreachable, Arc::clone(cluster)), text)
    });
    let ignored = status.ignored.iter().map(|(cluster, why)| {
        let text = format!(
            "The head of cluster {cluster} in the ledger is ignored, and what it said before stays: {why}. `cloudmap-mcs ledger \
             show` and `cloudmap-mcs trust list` say more."
        );
        ((EventReason::HeadIgnored, Arc::clone(cluster)), text)
    });
    let crowded = (status.heads >= CROWDED).then(|| {
        let text = format!(
            "The ledger has {} heads, of all clusters that ever joined. With 1,000 it cannot be read any more, and nothing \
             changes in any cluster. Remove those of clusters that left, which `cloudmap-mcs ledger show` lists, with \
             `cloudmap-mcs purge --cluster ID`.",
            status.heads
        );
        ((EventReason::LedgerCrowded, Arc::from(CLUSTERS)), text)
    });
    let unread = status.elsewhere.iter().filter_map(|(registry, it)| Some((registry, it.as_ref()?)));
    let unread = unread.map(|(registry, why)| {
        let text = format!(
            "The registry {registry} cannot be read: {why}. What was read of the clusters there stays, and nothing else waits for it. \
             `cloudmap-mcs doctor` tries it; docs/regions.md says which permissions it needs."
        );
        ((EventReason::RegistryUnreadable, Arc::clone(registry)), text)
    });
    let barred = status.barred.clone().map(|text| ((EventReason::NotApproved, Arc::from(CLUSTERS)), text));
    unreachable.chain(ignored).chain(crowded).chain(unread).chain(barred).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_object_shows_is_said_of_each_cluster() {
        let one = |cluster: &str, why: &str| [(Arc::from(cluster), why.to_owned())].into();
        let status = driver::Status {
            unreachable: one("b", "10.2.2.9:7946 timed out"),
            ignored: one("c", "it has no signature"),
            ..driver::Status::default()
        };
        let troubles = troubles(&status, 7_946);
        assert!(
            troubles[&(EventReason::StreamUnreachable, "b".into())].contains("(10.2.2.9:7946 timed out)"),
            "{troubles:?}"
        );
        assert!(troubles[&(EventReason::StreamUnreachable, "b".into())].contains("trust list"), "{troubles:?}");
        assert!(
            troubles[&(EventReason::HeadIgnored, "c".into())].contains("stays: it has no signature."),
            "{troubles:?}"
        );
        assert_eq!(troubles.len(), 2);
    }

    #[test]
    fn a_registry_that_cannot_be_read_is_said() {
        let elsewhere = [("eu".into(), None), ("us".into(), Some("access denied".to_owned()))].into();
        let troubles = troubles(&driver::Status { elsewhere, ..driver::Status::default() }, 7_946);
        let text = &troubles[&(EventReason::RegistryUnreadable, "us".into())];
        assert!(troubles.len() == 1 && text.contains("registry us cannot be read: access denied."), "{troubles:?}");
    }

    #[test]
    fn it_is_said_in_time_that_the_ledger_fills_with_heads() {
        let said = |heads| troubles(&driver::Status { heads, ..driver::Status::default() }, 7_946).into_values().next();
        assert_eq!(said(799), None);
        let text = said(800).unwrap();
        assert!(text.contains("800 heads") && text.contains("cloudmap-mcs purge --cluster ID"), "{text}");
    }

    #[test]
    fn what_lasts_is_said_again_and_what_recurs_is_said_anew() {
        let (began, mut lasting) = (Instant::now(), Lasting::default());
        let mut look = |minute: u32, clusters: &[&str]| -> Vec<String> {
            let of = |cluster: &&str| ((EventReason::HeadIgnored, Arc::from(*cluster)), (*cluster).to_owned());
            let due = lasting.due(began + LOOK_EVERY * minute, clusters.iter().map(of).collect());
            due.into_iter().map(|(_, text)| text).collect()
        };
        assert!(look(0, &["b"]).is_empty(), "it may be over soon");
        assert_eq!(look(1, &["b"]), ["b"]);
        for minute in 2..31 {
            assert!(look(minute, &["b"]).is_empty(), "it was said {} minutes ago", minute - 1);
        }
        assert_eq!(look(31, &["b", "c"]), ["b"]);
        assert_eq!(look(32, &["c"]), ["c"], "each has its own time");
        assert!(look(33, &["b", "c"]).is_empty());
        assert_eq!(look(34, &["b", "c"]), ["b"], "it was over");
    }
}
