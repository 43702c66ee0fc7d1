//! R4 to R6: from the accepted head of a cluster to its state, which applies when the record has its position.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Applied, Base, Peer, Reader};
use crate::{
    Map,
    call::{CallId, Outbox, Outcome},
    fetch::{Fetch, Progress, UNEXPECTED},
    hash::Hashed,
    head::Head,
    limits::MAX_STATE_BYTES,
    record::{Accepted, Gone},
    remote::successor,
    verify::LARGER,
    writer::{Heads, Now},
};

impl Reader {
    /// R4 to R6: from the accepted head to a state.
    pub(super) fn read(&mut self, now: Now, id: &Arc<str>, out: &mut Outbox) {
        let Some(peer) = self.peers.get(id).filter(|peer| peer.yields_to.is_none()) else { return };
        let Some(head) = peer.head.clone() else { return };
        if !head.is_live() {
            // After a restart nothing is applied, but objects that an earlier process created from this cluster still
            // exist.
            let dropped = peer.applied.as_ref().is_some_and(|applied| applied.accepted.gone.is_some_and(Gone::is_left));
            let waits =
                successor(&head.presence).is_some_and(|successor| !dropped && !self.took_over(peer, successor, &head));
            if waits {
                return;
            }
            return self.propose_read(now, id, &head, None);
        }
        if peer.refused.is_some_and(|refused| now.mono < refused.until) {
            return;
        }
        let same = |applied: &&Applied| {
            (&applied.root, &applied.delta, &*applied.accepted.uid) == (&head.root, &head.delta, &*head.uid)
        };
        let last = peer.candidate.as_ref().or(peer.applied.as_ref()).filter(|last| *last.accepted.uid == *head.uid);
        let older = last.filter(|last| {
            last.state.is_some() && !peer.escaped && head.summary.version.is_before(last.summary.version)
        });
        if let Some(newer) = older.cloned() {
            // R5: a new leader that did not see the last heads of the one before repeats an older state.
            return self.propose(now, id, newer);
        }
        let known = last.filter(same);
        let base = || peer.held.verified.as_ref().filter(|base| base.root == head.root);
        let on = |base: &Base| {
            if head.delta.is_empty() { base.map.clone() } else { Arc::new(head.delta.apply(&base.map)) }
        };
        let known = known.and_then(|known| known.state.clone());
        // What came by stream needs no pages.
        let came = if known.is_none() { peer.held.streamed.find(head.summary.hashes) } else { None };
        let (streamed, came) = came.unzip();
        let compared = || {
            let hashed = peer.held.hashed.as_ref().filter(|hashed| hashed.hashes() == head.summary.hashes)?;
            Some(hashed.map().clone())
        };
        let said = known.or(came).or_else(compared).or_else(|| base().map(on));
        let certain = said.is_some();
        // What was appended to the pages came in deltas before, mostly: only the hash can tell.
        let untried = peer.held.tried.as_ref().is_none_or(|tried| !Arc::ptr_eq(tried, &head));
        let told = || last.filter(|_| untried)?.state.as_ref().map(|held| Arc::new(head.delta.apply(held)));
        let state = said.or_else(told);
        let Some(peer) = self.peers.get_mut(id) else { return };
        if let Some((at, state)) = streamed.zip(state.as_ref()) {
            // Later heads mean this state or later ones. Their pages would be a second copy, for each of many clusters.
            peer.held.streamed.reached(at, state);
            peer.held.verified = None;
        }
        if let Some(state) = state {
            let hashes = peer.hashes(&self.me, &head, &state);
            peer.held.state_bytes = peer.held.hashed.as_ref().map_or(0, Hashed::bytes);
            if hashes == head.summary.hashes {
                peer.refused = None;
                return self.propose_read(now, id, &head, Some(state));
            }
            if certain {
                if now.mono >= peer.reading.retry_at {
                    self.fetched(now, id, Progress::Failed(UNEXPECTED), out);
                }
                return;
            }
            peer.held.tried = Some(head.clone());
        }
        if peer.reading.fetch.is_some() || now.mono < peer.reading.retry_at {
            return;
        }
        let cache = peer.held.verified.as_ref().map(|base| base.cache.clone()).unwrap_or_default();
        let room = self.room_for(id);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let mut fetch = Fetch::new(id.clone(), head.root.clone(), cache).within(room);
        peer.reading.begun += 1;
        let progress = fetch.advance(out);
        peer.reading.fetch = Some(fetch);
        self.fetched(now, id, progress, out);
    }

    /// Notes which successors of left ids are there.
    pub(super) fn watch_successors(&mut self, heads: &Heads) {
        let there = |(head, successor): (&Arc<Head>, &Arc<str>)| {
            // What cannot be read may be the successor's.
            heads.get(successor).is_some_and(|next| next.as_ref().ok().is_none_or(|next| next.uid == head.uid))
        };
        for peer in self.peers.values_mut() {
            let names = peer.head.as_ref().and_then(|head| Some((head, successor(&head.presence)?)));
            if names.is_none_or(there) {
                peer.times.succeeded = self.clocks.read;
            }
        }
    }

    /// Whether the successor of a left id was applied, or has left itself. If its head was removed before this cluster saw it,
    /// nothing more comes of it; a cluster that has its UID now is read first.
    fn took_over(&self, left: &Peer, successor: &Arc<str>, head: &Head) -> bool {
        let applied = self.peers.get(successor).and_then(|peer| peer.applied.as_ref());
        let live = |accepted: &Accepted| *accepted.uid == *head.uid && !accepted.gone.is_some_and(Gone::is_left);
        let unread = |peer: &Peer| {
            peer.applied.is_none() && peer.yields_to.is_none() && peer.accepted.as_ref().is_some_and(live)
        };
        let removed = self.clocks.read.saturating_sub(left.times.succeeded) > self.timing.forget;
        applied.is_some_and(|applied| *applied.accepted.uid == *head.uid) || removed && !self.peers.values().any(unread)
    }

    pub(super) fn fetched(&mut self, now: Now, id: &Arc<str>, progress: Progress, out: &mut Outbox) {
        let (timing, room) = (self.timing, self.room_for(id));
        let Some(peer) = self.peers.get_mut(id) else { return };
        match progress {
            Progress::Waiting => return self.keep_budget(now),
            Progress::Failed(LARGER) if room < MAX_STATE_BYTES => {
                peer.reading.failed += 1;
                return self.refuse(now, id, room);
            }
            Progress::Failed(why) | Progress::Unread(why) => {
                return peer.reading.fails(now, &timing, why);
            }
            Progress::Complete(verified) => {
                let verified = *verified;
                peer.reading.succeeds(now);
                peer.held.verified =
                    Some(Base { root: verified.layout.root(), map: Arc::new(verified.map), cache: verified.cache });
            }
        }
        self.read(now, id, out);
        self.keep_budget(now);
    }

    /// Proposes the state of a head.
    fn propose_read(&mut self, now: Now, id: &Arc<str>, head: &Head, state: Option<Arc<Map>>) {
        let Some(accepted) = self.peers.get(id).and_then(|peer| peer.accepted.clone()) else { return };
        let (root, delta, summary) = (head.root.clone(), head.delta.clone(), head.summary);
        self.propose(now, id, Applied { accepted, state, root, delta, summary, written: head.written });
    }

    /// Proposes a state for the accepted position. The record must contain the position before it applies, unless the state
    /// changes nothing.
    fn propose(&mut self, now: Now, id: &Arc<str>, state: Applied) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(accepted) = peer.accepted.clone() else { return };
        (peer.reading.problem, peer.reading.back_off) = (None, None);
        if peer.applied.as_ref().is_some_and(|applied| applied.accepted == accepted && peer.candidate.is_none()) {
            return;
        }
        let candidate = Applied { accepted, ..state };
        match &mut peer.applied {
            Some(applied) if applied.same_state(&candidate) && !peer.escaped => {
                // The same map stays the same `Arc`, so nobody needs to compare contents to see that nothing changed.
                let state = applied.state.take();
                // If the same state comes again and takes less time, the cluster is not behind any more.
                let late = Duration::from_millis(now.wall.saturating_sub(candidate.written));
                peer.lag = peer.lag.map(|lag| lag.min(late));
                *applied = Applied { state, ..candidate };
                peer.candidate = None;
            }
            _ => peer.candidate = Some(candidate),
        }
    }

    pub(crate) fn done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        self.revision += 1;
        if let Some(creator) = self.creators.values_mut().find(|creator| creator.call == Some(id)) {
            creator.call = None;
            if let Outcome::Creator(created) = outcome {
                creator.created.clone_from(created);
                creator.answered = true;
            } else {
                creator.next = now.mono + self.timing.backoff_max;
            }
            return true;
        }
        if self.announcement_read(id, outcome) || self.read_copy(now, id, outcome, out) {
            return true;
        }
        let waiting = |(_, peer): &(&Arc<str>, &mut Peer)| peer.reading.fetch.as_ref().is_some_and(|f| f.waits_for(id));
        let Some((cluster, peer)) = self.peers.iter_mut().find(waiting) else { return false };
        let cluster = cluster.clone();
        let Some(fetch) = &mut peer.reading.fetch else { return true };
        let newest = peer.head.as_ref().map(|head| head.root.clone());
        let progress = match (newest.filter(|newest| *newest != fetch.root), outcome) {
            // The head moved on. Where it does so all the time, starting anew would never end.
            (Some(newest), Outcome::Pages(read)) => fetch.move_on(newest, read, out),
            _ => fetch.on_outcome(outcome, out),
        };
        self.fetched(now, &cluster, progress, out);
        true
    }

    /// The positions that the record must contain before their states apply.
    pub(crate) fn proposal(&self) -> impl Iterator<Item = (&str, &Accepted)> {
        self.counting().filter_map(|(id, peer)| Some((&**id, &peer.candidate.as_ref()?.accepted)))
    }

    /// The record contains these positions, so their states apply.
    pub(crate) fn commit(&mut self, now: Now, stored: &BTreeMap<String, Accepted>) {
        self.revision += 1;
        for (id, peer) in &mut self.peers {
            let Some(candidate) = peer.candidate.take_if(|candidate| stored.get(&**id) == Some(&candidate.accepted))
            else {
                continue;
            };
            peer.escaped = false;
            if candidate.accepted.gone.is_none() {
                peer.lag = Some(Duration::from_millis(now.wall.saturating_sub(candidate.written)));
            }
            peer.applied = Some(candidate);
        }
    }
}
