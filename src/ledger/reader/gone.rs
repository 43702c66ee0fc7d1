//! R6 and R7: which clusters are gone, or silent.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Applied, Peer, Reader};
use crate::{
    Map, forgotten,
    record::{Accepted, Gone},
    trust::Mode,
    writer::Now,
};

impl Reader {
    /// R6: clusters that left, also according to the record, and whose heads are gone. Nothing of them needs to be
    /// remembered. Without a head nothing can bring them back, and a new head belongs to a new member.
    pub(crate) fn forgettable(&self) -> impl Iterator<Item = &str> {
        let long_gone = |peer: &Peer| {
            let left = |accepted: &Accepted| accepted.gone.is_some_and(Gone::is_left);
            peer.accepted.as_ref().is_some_and(left)
                && !peer.is_rejected()
                && peer.applied.as_ref().is_some_and(|applied| left(&applied.accepted))
                && peer.candidate.is_none()
                && self.clocks.read.saturating_sub(peer.times.seen) > self.timing.forget
        };
        self.counting().filter(move |(_, peer)| long_gone(peer)).map(|(id, _)| &**id)
    }

    /// Forgets these clusters, because the record no longer contains them.
    pub(crate) fn forget(&mut self, stored: &BTreeMap<String, Accepted>) {
        self.revision += 1;
        let gone: Vec<Arc<str>> = self.forgettable().filter(|id| !stored.contains_key(*id)).map(Into::into).collect();
        for id in gone {
            self.peers.remove(&id);
        }
    }

    /// A cluster that is gone according to the record needs no state, because it may be purged. The head of a cluster
    /// that left, if there is one, may name a successor to wait for (R6). Without a head, the successor is whoever has the
    /// cluster's UID: objects may still be there that an earlier process made for the former id.
    pub(super) fn recall(&mut self) {
        let unread = |peer: &&Peer| peer.applied.is_none() && peer.yields_to.is_none();
        let live = |peer: &Peer| peer.accepted.clone().filter(|accepted| accepted.gone.is_none());
        let unread: BTreeSet<String> = self.peers.values().filter(unread).filter_map(live).map(|it| it.uid).collect();
        for peer in self.peers.values_mut().filter(|peer| peer.applied.is_none() && peer.candidate.is_none()) {
            let gone = |accepted: &&Accepted| match accepted.gone {
                Some(Gone::Left | Gone::Forgotten) => peer.head.is_none() && !unread.contains(&accepted.uid),
                Some(Gone::Expired | Gone::Rejected) => true,
                None => false,
            };
            peer.candidate = peer.accepted.as_ref().filter(gone).cloned().map(Applied::without_state);
        }
    }

    /// R6: a cluster has one id at a time. If its head is gone, and its UID was read under another id at a higher
    /// epoch, the cluster has left under the former id. It removed that head itself, and whoever was away then never
    /// saw it leave.
    pub(super) fn follow_ids(&mut self) {
        let applied = |peer: &Peer| {
            let applied = peer.applied.as_ref().filter(|applied| applied.state.is_some())?;
            (peer.times.seen == self.clocks.read)
                .then(|| (applied.accepted.uid.clone(), applied.accepted.position.epoch))
        };
        let present: BTreeMap<String, u64> = self.peers.values().filter_map(applied).collect();
        for peer in self.peers.values_mut() {
            let absent = self.clocks.read.saturating_sub(peer.times.seen) > self.timing.escape;
            let Some(accepted) =
                peer.accepted.as_mut().filter(|accepted| absent && !accepted.gone.is_some_and(Gone::is_left))
            else {
                continue;
            };
            if present.get(&accepted.uid).is_some_and(|epoch| *epoch > accepted.position.epoch) {
                accepted.gone = Some(Gone::Left);
                (peer.head, peer.reading.fetch) = (None, None);
                peer.candidate = Some(Applied::without_state(accepted.clone()));
            }
        }
    }

    /// R7: which clusters are stale or expired.
    pub(super) fn judge(&mut self, now: Now) {
        let settled = self.clocks.read.saturating_sub(self.clocks.recovered) > self.timing.lease;
        for peer in self.peers.values_mut() {
            let Some(accepted) = &mut peer.accepted else { continue };
            let live = peer.applied.as_ref().is_none_or(|applied| applied.state.is_some());
            let silent = self.clocks.own.saturating_sub(peer.times.advanced);
            // Without an own head, it is said of all clusters if no head advances any more. Nothing follows from that alone.
            let quiet =
                if self.registry.is_none() { silent } else { self.clocks.read.saturating_sub(peer.times.moved) };
            let lost = quiet > self.timing.lease && settled && live;
            if lost || accepted.gone == Some(Gone::Expired) {
                peer.stale.get_or_insert(now.wall);
            }
            let too_long = lost && self.stale_ttl.is_some_and(|ttl| silent > ttl);
            if let Some(applied) = peer.applied.as_ref().filter(|applied| too_long && applied.accepted.gone.is_none()) {
                // A cluster that left and waits for its successor (R6) is silent as well.
                accepted.gone.get_or_insert(Gone::Expired);
                let accepted = Accepted { gone: Some(Gone::Expired), ..accepted.clone() };
                peer.candidate = Some(Applied { accepted, ..applied.clone() });
            }
        }
    }

    /// R6: clusters that are stale, and gone for good according to one that is not. Nobody could sign that for them. `others`: the
    /// states of live clusters in other registries.
    pub(crate) fn bury(&mut self, others: &[&Arc<Map>]) {
        if self.trust.mode == Mode::Open {
            return;
        }
        let states = || self.live_states().chain(others.iter().copied());
        let gone = |(id, peer): &(&Arc<str>, &Peer)| {
            let accepted = peer.accepted.as_ref().filter(|_| peer.stale.is_some() && peer.pin().is_some());
            accepted.is_some_and(|Accepted { uid, position, .. }| {
                states().filter_map(|map| forgotten::of(map, id)).any(|said| said.is_about(uid, *position))
            })
        };
        let gone: Vec<_> = self.peers.iter().filter(gone).map(|(id, _)| id.clone()).collect();
        for id in gone {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            let Some(accepted) = &mut peer.accepted else { continue };
            accepted.gone = Some(Gone::Forgotten);
            let accepted = accepted.clone();
            (peer.head, peer.reading.fetch, peer.stale) = (None, None, None);
            peer.candidate = Some(Applied::without_state(accepted));
        }
    }
}
