//! W9: leaving a ClusterSet.

use std::{sync::Arc, time::Duration};

use super::{
    Leader, Now,
    run::{Duty, Run},
    sweep::Sweep,
};
use crate::{
    call::{Call, CallId, Outbox, Outcome},
    hash::Summary,
    head::{Head, Presence, Root},
};

/// The end of this cluster's membership: a head that says `left`, and no pages.
#[derive(Debug, Default)]
pub(super) struct Farewell {
    call: Option<CallId>,
    sent_at: Option<Duration>,
    read_back: bool,
    /// A live head was read since it was sent.
    again: bool,
    sweep: Sweep,
}

impl Farewell {
    pub(super) const fn is_over(&self) -> bool {
        self.read_back && self.sweep.is_clean()
    }

    pub(super) fn observe(&mut self, head: &Head, epoch: u64) {
        if head.is_live() {
            self.again = true;
            self.read_back = false;
            // Its writer may have written pages, too.
            self.sweep.doubt();
        } else if head.position.epoch == epoch {
            self.read_back = true;
        }
    }
}

impl Run {
    /// Once everything is withdrawn (the desired state is empty), publishes `left` until that is read back.
    pub(super) fn leave(&mut self, leader: &Leader, now: Now, out: &mut Outbox) {
        let empty = leader.desired.map().is_some_and(|desired| desired.is_empty());
        if matches!(self.duty, Duty::Publish(_)) && leader.leaving && empty && self.publisher.is_free() {
            self.duty = Duty::Leave(Farewell::default());
        }
        let Duty::Leave(farewell) = &self.duty else { return };
        let Farewell { call, sent_at, read_back, again, .. } = farewell;
        let pause = if *read_back && !again { leader.timing.heartbeat } else { leader.timing.leave_retry };
        let due = sent_at.map_or(now.mono, |sent_at| sent_at + pause);
        if call.is_none() && now.mono >= due {
            self.send_left(leader, now, out);
        } else if call.is_none() {
            out.wake_at(due);
        }
        let Duty::Leave(farewell) = &mut self.duty else { return };
        if farewell.read_back {
            // Operations are awaited for this long. Before, an operation of this process or its predecessor may still
            // take effect. What a predecessor that stalls for longer writes after the last process stopped belongs to
            // nobody: no reader looks at it, and `purge` removes it.
            if now.mono < self.garbage.last_issue() + leader.timing.operation {
                farewell.sweep.doubt();
            }
            farewell.sweep.advance(now.mono, &leader.timing, &leader.me.cluster, leader.services.count(), out);
        }
    }

    fn send_left(&mut self, leader: &Leader, now: Now, out: &mut Outbox) {
        self.seq += 1;
        let root = Root::empty(leader.services.shards());
        let mut head = self.head(leader, now, self.seq, root, Arc::default(), Summary::default());
        head.presence = Presence::Left { successor: None };
        let head = Arc::new(head);
        let Duty::Leave(farewell) = &mut self.duty else { return };
        farewell.sent_at = Some(now.mono);
        farewell.again = false;
        farewell.call = Some(out.call(Call::PutHead { head: head.clone(), repeats: false }));
        self.copy.put(leader, now, &head, out);
    }

    pub(super) fn farewell_done(
        &mut self,
        leader: &mut Leader,
        id: CallId,
        outcome: &Outcome,
        out: &mut Outbox,
    ) -> bool {
        let Duty::Leave(farewell) = &mut self.duty else { return false };
        let batch = leader.limits.garbage_batch;
        let mine = farewell.call.take_if(|call| *call == id).is_some()
            || farewell.sweep.done(id, outcome, &leader.me.cluster, batch, out);
        if mine {
            leader.note(outcome);
        }
        mine
    }
}
