//! What the reader knows, for others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Held, Peer, Reader, Reading};
use crate::{
    Map, RegistryName,
    diff::Diff,
    hash::Hashed,
    record::{Accepted, Gone},
    remote::{Remote, RemoteFigures, Remotes},
    stream::Contact,
};

impl Reader {
    /// Another number whenever [`Self::remotes`] or [`Self::contacts`] may have changed: with many clusters they are much to
    /// make, and most inputs, such as a sign of life, change neither.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The state of the other clusters.
    pub fn remotes(&self) -> Remotes {
        let mut clusters = BTreeMap::new();
        for (id, peer) in self.counting() {
            let Ok(cluster) = id.parse() else { continue };
            let Some(accepted) = &peer.accepted else { continue };
            let applied = peer.applied.as_ref().filter(|_| !peer.returns());
            let gone = applied.and_then(|applied| applied.accepted.gone);
            let ignored = self.ignored.get(id).cloned();
            let remote = Remote {
                uid: applied.map_or(&accepted.uid, |applied| &applied.accepted.uid).as_str().into(),
                state: applied.and_then(|applied| applied.state.clone()).filter(|_| gone.is_none()),
                committed: applied
                    .and_then(|applied| applied.state.clone())
                    .filter(|_| gone.is_none() && self.registry.is_none()),
                version: applied.filter(|applied| applied.state.is_some()).map(|applied| applied.summary.version),
                position: applied.map_or(accepted.position, |applied| applied.accepted.position),
                left: gone.is_some_and(Gone::is_left),
                stale: peer.stale,
                expired: gone == Some(Gone::Expired),
                refused: peer.refused.is_some(),
                created: accepted.created,
                registry: self.registry.clone(),
                problem: ignored.or_else(|| peer.reading.problem.clone()),
            };
            clusters.insert(cluster, remote);
        }
        Remotes {
            clusters,
            heads_read: self.reads > 0,
            unaccepted: self.unaccepted.iter().filter_map(|id| id.parse().ok()).collect(),
            all_live_verified: self.is_verified(),
            all_read: self.is_verified(),
            own_created: 0,
            others: 0,
            unread: BTreeSet::new(),
        }
    }

    /// The clusters, without those of whose id another registry has what counts.
    pub(super) fn counting(&self) -> impl Iterator<Item = (&Arc<str>, &Peer)> {
        self.peers.iter().filter(|(_, peer)| peer.yields_to.is_none())
    }

    /// Whether what this registry has of a cluster counts.
    pub(crate) fn counts(&self, id: &str) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.accepted.is_some() && peer.yields_to.is_none())
    }

    /// The registry that is read, if it is not the home.
    pub(crate) const fn registry(&self) -> Option<&RegistryName> {
        self.registry.as_ref()
    }

    /// The id of this cluster.
    pub(crate) const fn me(&self) -> &Arc<str> {
        &self.me.cluster
    }

    /// Whether the last read was complete.
    pub(crate) const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The accepted positions, also of clusters that do not count here.
    pub(crate) fn positions(&self) -> impl Iterator<Item = (&Arc<str>, &Accepted)> {
        self.peers.iter().filter_map(|(id, peer)| Some((id, peer.accepted.as_ref()?)))
    }

    /// The clusters that do not count here, and which registry has what counts.
    pub(crate) fn given_way(&self) -> impl Iterator<Item = (&Arc<str>, &RegistryName)> {
        self.peers.iter().filter_map(|(id, peer)| Some((id, peer.yields_to.as_ref()?)))
    }

    /// Takes it since when a cluster is in the ledger, if it was in another registry before.
    pub(crate) fn date(&mut self, id: &str, created: i64) {
        let accepted = self.peers.get_mut(id).and_then(|peer| peer.accepted.as_mut());
        if let Some(accepted) = accepted.filter(|accepted| accepted.created > created) {
            accepted.created = created;
            self.revision += 1;
        }
    }

    /// Takes it which registry has what counts of each cluster, if that is another one. What does not count, and is gone, is
    /// forgotten.
    pub(crate) fn give_way(&mut self, to: impl Fn(&Arc<str>) -> Option<RegistryName>) {
        let (read, forget) = (self.clocks.read, self.timing.forget);
        self.peers.retain(|_, peer| peer.yields_to.is_none() || read.saturating_sub(peer.times.seen) <= forget);
        for (id, peer) in &mut self.peers {
            let to = to(id);
            if peer.yields_to == to {
                continue;
            }
            self.revision += 1;
            peer.yields_to = to;
            if peer.yields_to.is_some() {
                (peer.applied, peer.candidate, peer.stale) = (None, None, None);
                peer.reading = Reading { begun: peer.reading.begun, failed: peer.reading.failed, ..Reading::default() };
                peer.held = Held::default();
            }
        }
    }

    /// The states of the clusters that are not silent.
    pub(crate) fn live_states(&self) -> impl Iterator<Item = &Arc<Map>> {
        let live = self.counting().filter(|(_, peer)| peer.stale.is_none());
        live.filter_map(|(_, peer)| peer.applied.as_ref()?.state.as_ref())
    }

    /// Whether the heads were read, and every live cluster that counts and is not stale was read, too.
    pub(crate) fn is_verified(&self) -> bool {
        self.reads > 0 && self.all_live_verified
    }

    /// What the stream needs to know of the other clusters.
    pub(crate) fn contacts(&self) -> BTreeMap<Arc<str>, Contact> {
        let contact = |(id, peer): (&Arc<str>, &Peer)| {
            let accepted = peer.accepted.as_ref()?;
            let applied = peer.applied.as_ref().filter(|applied| applied.accepted.uid == accepted.uid);
            let whole = applied.filter(|applied| applied.state.is_some());
            let head = peer.head.as_ref();
            let contact = Contact {
                uid: accepted.uid.as_str().into(),
                key: accepted.key.filter(|key| self.trust.still_counts(id, key)),
                live: !accepted.gone.is_some_and(Gone::is_left),
                refused: peer.refused.is_some(),
                dropped: applied.is_some_and(|applied| applied.accepted.gone.is_some()),
                position: accepted.position,
                head: head.map(|head| head.summary),
                silent: peer.stale.is_some(),
                summary: whole.map(|applied| applied.summary),
                state: whole.and_then(|applied| applied.state.clone()),
                addresses: head.map(|head| head.addresses.clone()).unwrap_or_default(),
            };
            Some((id.clone(), contact))
        };
        self.counting().filter_map(contact).collect()
    }

    /// R7: something came of the cluster by stream, so it is not silent.
    pub(crate) fn streams(&mut self, id: &Arc<str>) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        (peer.times.advanced, peer.times.moved) = (self.clocks.own, self.clocks.read);
        let expired = peer.accepted.as_mut().filter(|accepted| accepted.gone == Some(Gone::Expired));
        if peer.stale.take().is_some() || expired.is_some() {
            self.revision += 1;
        }
        if let Some(accepted) = expired {
            accepted.gone = None;
        }
    }

    /// Takes the newest state of a cluster that came by stream: a head with its hashes needs no pages. Returns whether it is
    /// another one than before (`diff`: how it came from that one), so that [`Self::keep_budget`] has to be called.
    pub(crate) fn hold(&mut self, id: &Arc<str>, streamed: &Hashed, diff: Option<&Arc<Diff>>) -> bool {
        let Some(peer) = self.peers.get_mut(id).filter(|peer| peer.refused.is_none()) else { return false };
        if peer.held.hashed.as_ref().is_none_or(|hashed| !Arc::ptr_eq(hashed.map(), streamed.map())) {
            peer.held.hashed = Some(streamed.clone());
        }
        let applied = peer.applied.as_ref().and_then(|applied| applied.state.as_ref());
        peer.held.streamed.push(streamed.hashes(), streamed.map(), diff, applied)
    }

    /// Whether something does not apply yet that another cluster said, and that can be read.
    pub(crate) fn is_behind(&self) -> bool {
        self.counting().any(|(_, peer)| {
            let applied = peer.applied.as_ref().map(|applied| (&applied.accepted.uid, applied.accepted.position));
            let accepted = peer.accepted.as_ref().map(|accepted| (&accepted.uid, accepted.position));
            let live = peer.head.as_ref().is_some_and(|head| head.is_live());
            live && peer.reading.problem.is_none() && applied != accepted
        })
    }

    /// S10: whether the last read was complete, every head in it counts, and all that the heads say applies.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.complete
            && self.all_live_verified
            && self.ignored.keys().all(|id| self.is_kept_out(id))
            && self.unaccepted.iter().all(|id| self.is_kept_out(id))
            && self.peers.values().all(|peer| peer.is_at_rest(self.clocks.read))
    }

    /// Whether only a person can let the cluster in. That somebody writes such heads keeps no leader from resting.
    fn is_kept_out(&self, id: &Arc<str>) -> bool {
        let peer = self.peers.get(id);
        let is_new = || self.trust.demands_approval() && peer.is_none_or(|peer| peer.pin().is_none());
        peer.is_some_and(Peer::is_rejected) || is_new()
    }

    /// How often the heads were read in this term.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Ids whose heads are ignored, and why (R2), including ids that were never accepted.
    pub fn ignored(&self) -> &BTreeMap<Arc<str>, String> {
        &self.ignored
    }

    /// Statistics of the other clusters, without those that left: their heads do not advance any more.
    pub fn figures(&self) -> BTreeMap<Arc<str>, RemoteFigures> {
        let left = |accepted: &Accepted| accepted.gone.is_some_and(Gone::is_left);
        let members = self.counting().filter(|(_, peer)| !peer.accepted.as_ref().is_some_and(left));
        let figures = members.map(|(id, peer)| {
            let figures = RemoteFigures {
                position: peer.accepted.as_ref().map(|accepted| accepted.position),
                since: peer.accepted.as_ref().map_or(0, |accepted| accepted.since),
                silent: self.clocks.own.saturating_sub(peer.times.advanced),
                lag: peer.lag,
                fetches: peer.reading.begun,
                failed_fetches: peer.reading.failed,
                bytes: peer.bytes(),
            };
            (id.clone(), figures)
        });
        figures.collect()
    }
}
