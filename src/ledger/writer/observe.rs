//! What a read of all heads shows of the own cluster.

use std::sync::Arc;

use super::{Heads, Now, OwnHeads, Phase, Writer};
use crate::{
    call::{Call, Outbox},
    head::Head,
    limits::MAX_SKEW,
    record::Position,
};

impl Writer {
    /// One tick: the heads of one discovery, or `None` if it failed or was partial.
    pub(crate) fn tick(&mut self, now: Now, heads: Option<&Heads>, out: &mut Outbox) {
        if let Some(heads) = heads {
            let written = heads.values().flatten().map(|head| head.written);
            let plausible = written.filter(|written| *written <= now.wall + MAX_SKEW.as_millis() as u64);
            self.heard = self.heard.max(plausible.max().unwrap_or_default());
            self.unread_since = None;
            self.observe(now, heads, out);
        } else {
            if let Phase::Verify(search) = &mut self.phase {
                search.unread();
            }
            self.claim_unread(now);
        }
        self.advance(now, out);
    }

    /// W0: claims the id again if nothing can be read for long and this leader may write nothing yet, because somebody may
    /// have deleted the ledger. Who runs creates it again with the next head.
    fn claim_unread(&mut self, now: Now) {
        let waits = matches!(self.phase, Phase::Confirm { .. } | Phase::Elected | Phase::Verify(_));
        let since = self.unread_since.filter(|_| waits).unwrap_or(now.mono);
        self.unread_since = Some(since);
        if now.mono.saturating_sub(since) >= self.timing.refused_retry {
            self.unread_since = None;
            self.elect_again();
            self.phase = Phase::Claim { retry_at: now.mono, call: None };
        }
    }

    /// W6, and what W1 and W2 need.
    fn observe(&mut self, now: Now, heads: &Heads, out: &mut Outbox) {
        let own = heads.get(&self.me.cluster).and_then(|head| head.as_ref().ok());
        let rank = |head: &Head| (self.is_plausible(head), head.position);
        // Epochs of another UID say nothing about this cluster's.
        if let Some(head) = own.filter(|head| head.uid == self.me.uid)
            && self.best.as_ref().is_none_or(|best| rank(best) < rank(head))
        {
            self.best = Some(head.clone());
        }
        // A head whose epoch cannot be real is ignored. The next heartbeat overwrites it, and readers go back to what
        // is real (R3).
        let own = own.filter(|head| self.is_plausible(head));
        if matches!(self.phase, Phase::Confirm { .. } | Phase::Elected) {
            // The newest one that was seen, also where an older one is there again: its epoch is what the next must be above.
            let best = self.best.clone().filter(|best| self.is_plausible(best));
            self.watch_stranger(now, best.as_ref());
        }
        match &mut self.phase {
            Phase::Confirm { call } => {
                if call.is_none() {
                    *call = Some(out.call(Call::ConfirmLease));
                }
            }
            Phase::Verify(_) | Phase::Run => {
                if let Some(head) = own {
                    if head.uid != self.me.uid && !self.keys.is_empty() {
                        self.look_whose(now, out);
                    } else if head.uid != self.me.uid && matches!(self.phase, Phase::Run) {
                        self.elect_again();
                        self.phase = Phase::Claim { retry_at: now.mono, call: None };
                        return;
                    }
                    let sent = if matches!(self.phase, Phase::Run) { self.run.seq } else { 0 };
                    if head.uid == self.me.uid && head.position > (Position { epoch: self.epoch, seq: sent }) {
                        self.elect_again();
                        return;
                    }
                }
                if matches!(self.phase, Phase::Run) {
                    let own = own.filter(|head| head.uid == self.me.uid);
                    self.announce(now, out);
                    self.observe_copied(now, own);
                    self.observe_own(now, own, out);
                    self.observe_rest(heads, own);
                    self.observe_former(now, heads, out);
                    self.audit(now, own, out);
                    self.collect(now, out);
                } else {
                    self.verify(now, heads, out);
                }
            }
            Phase::Claim { .. } | Phase::Elected => {}
        }
    }

    /// W6: there is another cluster's head under the own id, which anybody may have written. The exports service says
    /// whose the id is.
    fn look_whose(&mut self, now: Now, out: &mut Outbox) {
        if matches!(self.phase, Phase::Run) && now.mono >= self.run.next_look {
            self.run.next_look = now.mono + self.timing.refused_retry;
            out.call(Call::Claim { shard: 0 });
        }
    }

    /// R9: the key is where other clusters look for it, and is there again if somebody changed it.
    fn announce(&mut self, now: Now, out: &mut Outbox) {
        if !self.keys.is_empty() && now.mono >= self.run.next_announcement {
            self.run.next_announcement = now.mono + self.timing.audit;
            self.run.announcing = Some(out.call(Call::Announce));
        }
    }

    fn observe_own(&mut self, now: Now, own: Option<&Arc<Head>>, out: &mut Outbox) {
        let Some(head) = own else { return };
        self.run.garbage.refer(&head.root, now.mono);
        if head.position.epoch == self.epoch {
            self.run.read_back.get_or_insert(now.mono);
            self.confirmed(now, head.position.seq, out);
            self.run.visibility.seen(head.position.seq);
        }
        let epoch = self.epoch;
        if let Some(farewell) = &mut self.run.farewell {
            farewell.observe(head, epoch);
        }
    }

    /// What S10 needs to know of a read of all heads.
    fn observe_rest(&mut self, heads: &Heads, own: Option<&Arc<Head>>) {
        let elsewhere = |(id, head): (&Arc<str>, &Result<Arc<Head>, _>)| {
            // One that left changes no more. It may stay for long, where its services may not be deleted.
            *id != self.me.cluster && head.as_ref().is_ok_and(|head| head.is_live() && head.uid == self.me.uid)
        };
        let newest = self.run.own.newest.map_or(0, |(seq, _)| seq);
        let own = own.filter(|head| head.position.epoch == self.epoch && head.position.seq >= newest);
        self.run.own = OwnHeads {
            newest: own.map(|head| (head.position.seq, head.summary.hashes.claims)).or(self.run.own.newest),
            there: own.is_some() && !heads.iter().any(elsewhere),
        };
    }
}
