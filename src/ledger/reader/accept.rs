//! R2, R3 and R10: which heads count, and which of them are accepted.

use std::{sync::Arc, time::Duration};

use super::{Peer, Reader, Times};
use crate::{
    call::{Call, Outbox},
    head::Head,
    record::{Accepted, Gone, Position},
    trust::Mode,
    writer::Now,
};

/// So many keys of a cluster are remembered that it replaced: to know the part of the ledger that it left in a former home.
const FORMER_KEYS: usize = 2;
/// How often a lower head must advance before it counts (R3).
const LOW_ADVANCES: u32 = 2;

/// A head below the accepted position (R3).
#[derive(Debug, Clone, Copy)]
pub(super) struct Low {
    position: Position,
    /// How often it was seen to advance.
    advances: u32,
    /// When this position was read last, on the read clock.
    read: Duration,
}

impl Reader {
    /// R2: whether the head's UID is that of the creator of the cluster's exports service.
    pub(super) fn is_creator(&mut self, now: Now, head: &Head, out: &mut Outbox) -> bool {
        let creator = self.creators.entry(head.cluster.clone()).or_default();
        if creator.created.as_ref().is_some_and(|created| *created.by == *head.uid) {
            return true;
        }
        if creator.call.is_none() && now.mono >= creator.next {
            creator.next = now.mono + self.timing.creator_retry;
            creator.call = Some(out.call(Call::Creator { cluster: head.cluster.clone() }));
        }
        if creator.call.is_none() {
            let owner = creator.created.as_ref().map_or("nobody", |created| &created.by);
            let message = if creator.answered {
                format!("its head comes from UID {}, but the id belongs to {owner}", head.uid)
            } else {
                format!("AWS did not answer who created exports-0.{}, so its head does not count yet", head.cluster)
            };
            self.ignored.insert(head.cluster.clone(), message);
        }
        false
    }

    /// R10: when the exports service of the head's cluster was created, in seconds since 1970; 0 if that is not known. A
    /// cluster that has another id now keeps the date of the former one: its UID and its key prove that it is the same.
    fn date_of(&self, head: &Head) -> i64 {
        let accepted = |peer: &Peer| peer.accepted.clone().filter(|accepted| *accepted.uid == *head.uid);
        let known = self.peers.get(&head.cluster).and_then(accepted).map(|accepted| accepted.created);
        let creator = || self.creators.get(&head.cluster)?.created.as_ref().filter(|created| *created.by == *head.uid);
        let told = || creator().map(|created| created.at);
        let is_same = |accepted: &Accepted| head.signer.is_some() && accepted.key == head.signer;
        let former = self.peers.values().filter_map(accepted).filter(is_same).map(|accepted| accepted.created);
        let own = known.filter(|at| *at != 0).or_else(told);
        former.chain(own).filter(|at| *at != 0).min().unwrap_or_default()
    }

    /// R3: accepts a head if it is newer.
    pub(super) fn accept(&mut self, now: Now, head: &Arc<Head>) {
        let (read_clock, own_clock, created) = (self.clocks.read, self.clocks.own, self.date_of(head));
        let announced = self.announced.get(&head.cluster).and_then(|asked| asked.announced.as_ref());
        let announced = announced.filter(|announced| Some(announced.key) == head.signer);
        let announced = announced.map(|announced| announced.former.clone());
        let peer = self.peers.entry(head.cluster.clone()).or_insert_with(|| {
            let (advanced, moved, at_or_above, succeeded) = (own_clock, read_clock, read_clock, read_clock);
            Peer { times: Times { advanced, moved, at_or_above, succeeded, ..Times::default() }, ..Peer::default() }
        });
        // The id has another owner now, as its exports service proves. Positions of different UIDs are not comparable.
        let accepted = peer.accepted.as_ref().filter(|accepted| *accepted.uid == *head.uid);
        let since = accepted.filter(|accepted| accepted.is_member()).map_or(now.wall, |accepted| accepted.since);
        let (accepted, gone) = accepted.map(|accepted| (accepted.position, accepted.gone)).unzip();
        if accepted.is_some_and(|accepted| head.position < accepted) {
            // Somebody repeats what the cluster said before.
            let signed = peer.accepted.as_ref().filter(|it| it.key.is_some() && self.trust.mode != Mode::Open);
            if signed.is_some_and(|accepted| head.written <= accepted.written) {
                return;
            }
            if read_clock.saturating_sub(peer.times.at_or_above) <= self.timing.escape {
                peer.times.low = None;
                return;
            }
            let begins = Low { position: head.position, advances: 0, read: read_clock };
            let low = match peer.times.low {
                None => begins,
                Some(low) if head.position > low.position => Low { advances: low.advances + 1, ..begins },
                Some(low) if head.position == low.position => Low { read: read_clock, ..low },
                // It was forged as well: nothing follows it.
                Some(low) if read_clock.saturating_sub(low.read) > self.timing.escape => begins,
                Some(low) => low,
            };
            peer.times.low = Some(low);
            if low.advances < LOW_ADVANCES {
                return;
            }
            peer.escaped = true;
        }
        // A living cluster said that the cluster of this head is gone, so the same head does not bring it back. Where
        // nothing is signed, this is said in the cluster's own head instead, at a position that is a guess.
        let ended = peer.accepted.as_ref().is_some_and(|it| it.key.is_some() && it.gone.is_some_and(Gone::is_left));
        if accepted == Some(head.position) && head.is_live() && ended && self.trust.mode != Mode::Open {
            return;
        }
        if accepted == Some(head.position) && peer.head.is_some() {
            peer.times.at_or_above = read_clock;
            return;
        }
        let advanced = accepted != Some(head.position);
        if advanced {
            (peer.times.advanced, peer.times.moved) = (own_clock, read_clock);
            peer.stale = None;
        }
        let expired = gone.flatten().filter(|gone| *gone == Gone::Expired && !advanced);
        let gone = if head.is_live() { expired } else { Some(Gone::Left) };
        let key = head.signer.filter(|_| self.trust.mode != Mode::Open);
        let written = key.map_or(0, |_| head.written);
        let (uid, position) = (head.uid.to_string(), head.position);
        let registry = self.registry.as_deref().map(str::to_owned);
        let known = peer.accepted.as_ref().filter(|accepted| *accepted.uid == uid);
        let replaced = || {
            let known = known?;
            let replaced = known.key.filter(|_| known.key != key);
            Some(replaced.into_iter().chain(known.former.iter().copied()).collect())
        };
        let mut former: Vec<_> = key.and(announced).or_else(replaced).unwrap_or_default();
        former.truncate(FORMER_KEYS);
        peer.accepted = Some(Accepted { uid, position, gone, key, written, since, created, former, registry });
        peer.head = Some(head.clone());
        peer.times.at_or_above = read_clock;
        peer.times.low = None;
    }
}
