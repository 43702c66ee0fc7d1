//! States that came by stream and are ahead of the ledger: which of the two applies.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Contact, Stream};
use crate::{
    Map,
    hash::Summary,
    record::{Position, Streamed, Version},
    remote::Remotes,
};

/// Nothing applies before the record while it was not read or stored for this long: it cannot follow, or another process of
/// this cluster leads by now. It is longer than the time between two reads.
const HOLD: Duration = Duration::from_secs(6);
/// Time between two stores of the record for states that came by stream.
const RECORD: Duration = Duration::from_secs(1);
/// As the escape of R3: a leader of another term writes heads, and the one that streamed is not there.
const ADVANCES: u32 = 2;

/// What is ahead of the ledger, by cluster.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    clusters: BTreeMap<Arc<str>, Entry>,
    /// When the record was read or stored last, and when it was stored last.
    known_at: Option<Duration>,
    stored_at: Option<Duration>,
    /// See [`Self::revision`].
    revision: u64,
}

#[derive(Debug)]
struct Entry {
    uid: Arc<str>,
    version: Version,
    /// The state; `None` after a restart: this cluster applied it, and does not know it any more.
    state: Option<(Summary, Arc<Map>)>,
    /// While neither the leader that streamed it nor a later one is heard: since when, the position of the newest head,
    /// and how often that position changed.
    cut: Option<(Duration, Position, u32)>,
}

impl Ahead {
    /// Another number whenever [`Self::overlay`] may show something else.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The version that applies: what was streamed, or else what the ledger has.
    fn version(&self, cluster: &str, contact: &Contact) -> Option<Version> {
        self.clusters.get(cluster).map(|entry| entry.version).or(contact.summary.map(|summary| summary.version))
    }

    /// What a sync begins with.
    pub(super) fn map(&self, cluster: &str) -> Option<&Arc<Map>> {
        self.clusters.get(cluster)?.state.as_ref().map(|(_, map)| map)
    }

    /// Takes a whole state that came by stream.
    pub(super) fn offer(&mut self, now: Duration, cluster: &Arc<str>, contact: &Contact, latest: &(Summary, Arc<Map>)) {
        let (summary, map) = latest;
        let held = self.known_at.is_none_or(|at| now.saturating_sub(at) > HOLD);
        let unknown = self.clusters.get(cluster).is_some_and(|it| it.state.is_none() && it.version == summary.version);
        let newer = match self.version(cluster, contact) {
            // The record has the version, and here is the state.
            Some(_) if unknown => true,
            Some(applied) => applied.is_before(summary.version) && !held,
            None => !held,
        };
        if !newer {
            return;
        }
        let entry = Entry {
            uid: contact.uid.clone(),
            version: summary.version,
            state: Some((*summary, map.clone())),
            cut: None,
        };
        self.clusters.insert(cluster.clone(), entry);
        self.revision += 1;
    }

    /// Forgets what the ledger has as well, or what does not count any more. `leader` is the epoch and the random number of
    /// the leader that a cluster is heard from.
    pub(super) fn forget(
        &mut self,
        now: Duration,
        escape: Duration,
        contacts: &BTreeMap<Arc<str>, Contact>,
        leader: impl Fn(&str) -> Option<(u64, u64)>,
    ) {
        let term = |version: Version| (version.epoch, version.nonce);
        let (before, mut emptied) = (self.clusters.len(), false);
        self.clusters.retain(|cluster, entry| {
            // It is not known yet after a restart.
            let Some(contact) = contacts.get(cluster) else { return true };
            if contact.uid != entry.uid || contact.dropped {
                return false;
            }
            // Its version still applies.
            emptied |= contact.refused && entry.state.take().is_some();
            if contact.summary.is_some_and(|ledger| !ledger.version.is_before(entry.version)) {
                return false;
            }
            let (leader, streamed) = (leader(cluster), term(entry.version));
            if leader.is_some_and(|leader| leader == streamed || leader.0 > streamed.0) {
                entry.cut = None;
                return true;
            }
            // The first head that is read is later than the record, and shows nothing.
            let Some(Summary { version: said, .. }) = contact.head else { return true };
            // Positions go back where R3 does.
            let (since, position, advances) = entry.cut.get_or_insert((now, contact.position, 0));
            if contact.position != *position {
                (*position, *advances) = (contact.position, *advances + 1);
            }
            // The record of that cluster was lost, and its leaders began again below.
            let other = term(said) != streamed && said.is_before(entry.version);
            let below = leader.is_some() || contact.position.epoch < entry.version.epoch;
            !(other && below && *advances >= ADVANCES && now.saturating_sub(*since) > escape)
        });
        if self.clusters.len() < before || emptied {
            self.revision += 1;
        }
    }

    /// Shows what was streamed in place of what the ledger has.
    pub(super) fn overlay(&self, remotes: &mut Remotes) {
        for (cluster, remote) in &mut remotes.clusters {
            let Some(entry) = self.clusters.get(cluster.as_str()) else { continue };
            if entry.uid != remote.uid || remote.left || remote.expired {
                continue;
            }
            remote.version = Some(entry.version);
            remote.state = entry.state.as_ref().map(|(_, map)| map.clone());
            if remote.state.is_none() {
                remote.problem.get_or_insert_with(|| {
                    "what it said last came by stream; the ledger does not have it yet".to_owned()
                });
            }
        }
    }

    /// Whether the record has what it should have.
    pub(super) fn is_recorded(&self, stored: &BTreeMap<String, Streamed>) -> bool {
        let of = |(cluster, entry): (&Arc<str>, &Entry)| {
            stored.get(&**cluster).is_some_and(|it| *it.uid == *entry.uid && it.version == entry.version)
        };
        self.clusters.len() == stored.len() && self.clusters.iter().all(of)
    }

    /// What the record should have.
    pub(super) fn record(&self) -> BTreeMap<String, Streamed> {
        let of = |entry: &Entry| Streamed { uid: entry.uid.to_string(), version: entry.version };
        self.clusters.iter().map(|(cluster, entry)| (cluster.to_string(), of(entry))).collect()
    }

    /// When the record may be stored for nothing but what was streamed.
    pub(super) fn due(&self) -> Duration {
        self.stored_at.map_or(Duration::ZERO, |at| at + RECORD)
    }

    /// The record was stored by a call that was made at `made`.
    pub(super) fn stored(&mut self, made: Duration) {
        (self.stored_at, self.known_at) = (Some(made), Some(made));
    }

    /// Takes what the record has, as a call read it that was made at `made`.
    pub(super) fn restore<'a>(&mut self, made: Duration, stored: impl Iterator<Item = (&'a String, &'a Streamed)>) {
        self.known_at = Some(made);
        self.revision += 1;
        for (cluster, Streamed { uid, version }) in stored {
            let older = |entry: &Entry| *entry.uid == **uid && entry.version.is_before(*version);
            if self.clusters.get(cluster.as_str()).is_none_or(older) {
                let entry = Entry { uid: uid.as_str().into(), version: *version, state: None, cut: None };
                self.clusters.insert(cluster.as_str().into(), entry);
            }
        }
    }
}

impl Stream {
    /// Whether the record has what it should have (S6).
    pub(crate) fn is_recorded(&self, stored: &BTreeMap<String, Streamed>) -> bool {
        self.ahead.is_recorded(stored)
    }

    /// What the record should have (S6).
    pub(crate) fn record(&self) -> BTreeMap<String, Streamed> {
        self.ahead.record()
    }

    /// When the record may be stored for nothing but what was streamed.
    pub(crate) fn record_due(&self) -> Duration {
        self.ahead.due()
    }

    /// The record was stored by a call that was made at `made`.
    pub(crate) fn stored(&mut self, made: Duration) {
        self.ahead.stored(made);
    }

    /// Takes what the record has, as a call read it that was made at `made`: at the start (`before` is `None`), and whenever
    /// another process stored it.
    pub(crate) fn restore(
        &mut self,
        made: Duration,
        before: Option<&BTreeMap<String, Streamed>>,
        stored: &BTreeMap<String, Streamed>,
    ) {
        let same = |(cluster, streamed): &(&String, &Streamed)| {
            before.is_some_and(|before| before.get(*cluster) == Some(streamed))
        };
        self.ahead.restore(made, stored.iter().filter(|entry| !same(entry)));
    }
}
