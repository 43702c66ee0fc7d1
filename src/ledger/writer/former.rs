//! W9: continuing under another id.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use super::{
    Heads, Leader, Now,
    candidate::{MUCH, Stranger},
    run::Run,
    sweep::{Sweep, doubled},
};
use crate::{
    call::{Call, CallId, Outbox, Outcome},
    codec,
    hash::Summary,
    head::{FORMAT, Head, MAX_SHARDS, Presence, Root},
    record::Position,
};

/// A former id of this cluster.
#[derive(Debug, Default)]
pub(super) struct Former {
    whose: Whose,
    standing: Standing,
    /// The call that marks its head as left, or removes what is left of it.
    call: Option<CallId>,
    next: Duration,
    /// Of the last head that marks it as left.
    seq: u64,
    sweep: Sweep,
}

/// Who created the former id's service.
#[derive(Debug, PartialEq, Eq)]
enum Whose {
    /// It is being asked for.
    Unknown(Option<CallId>),
    Ours,
    Others,
    /// The service was deleted, so that only the head of the former id is left.
    Nobodys,
}

impl Default for Whose {
    fn default() -> Self {
        Self::Unknown(None)
    }
}

/// What its head says.
#[derive(Debug)]
enum Standing {
    /// It is there: a live one, or one that this cluster did not sign. If it advances, it belongs to another cluster with the
    /// same UID.
    Stays { genuine: Option<Stranger>, forged: Option<Stranger> },
    /// It left. `removals`: how often it was tried to remove what is left of it.
    Left { since: Duration, removals: u32 },
}

impl Default for Standing {
    fn default() -> Self {
        Self::Stays { genuine: None, forged: None }
    }
}

/// What a former id needs to know of the run.
struct Context {
    epoch: u64,
    /// Whether others have been able to read this cluster's exports for a while.
    settled: bool,
    leaves: bool,
}

impl Former {
    /// Whether a call deletes a page of it, which says nothing about the own id.
    pub(super) fn deletes(&self, id: CallId) -> bool {
        self.sweep.deletes(id)
    }

    fn is_free(&self, now: Now) -> bool {
        self.call.is_none() && now.mono >= self.next
    }

    /// Its head is there, and is to be marked as left. Breaks if this cluster has to be elected again.
    fn stay(
        &mut self,
        leader: &Leader,
        now: Now,
        context: &Context,
        (head, is_genuine): (&Head, bool),
        out: &mut Outbox,
    ) -> ControlFlow<()> {
        self.sweep.doubt();
        let (mut genuine, mut forged) = match std::mem::take(&mut self.standing) {
            Standing::Stays { genuine, forged } => (genuine, forged),
            Standing::Left { .. } => (None, None),
        };
        let watched = if is_genuine { &mut genuine } else { &mut forged };
        let watched = watched.get_or_insert_with(|| Stranger::new(head.position, now.mono));
        watched.watch(Some(head.position), now.mono, leader.timing.max_step);
        let (advances, silent) = (watched.advances, watched.is_silent(&leader.timing));
        self.standing = Standing::Stays { genuine, forged };
        if is_genuine && advances >= MUCH && head.cluster < leader.me.cluster {
            // Of two clusters with one UID that began at the same time this one stops.
            return ControlFlow::Break(());
        }
        if context.settled && silent && self.is_free(now) {
            self.next = now.mono + 2 * leader.timing.leave_retry;
            self.seq += 1;
            // Anybody may have chosen a forged epoch. What this cluster wrote there is below its own one.
            let epoch = if is_genuine { (head.position.epoch + 1).max(context.epoch) } else { context.epoch };
            let farewell = Head {
                cluster: head.cluster.clone(),
                reads: FORMAT,
                uid: leader.me.uid.clone(),
                position: Position { epoch, seq: self.seq },
                presence: Presence::Left { successor: Some(leader.me.cluster.clone()) },
                root: Root::empty(head.root.shards),
                delta: Arc::default(),
                summary: Summary::default(),
                addresses: Arc::default(),
                lease: leader.timing.lease,
                written: now.wall,
                signer: None,
            };
            self.call = Some(out.call(Call::PutHead { head: Arc::new(farewell), repeats: false }));
        }
        ControlFlow::Continue(())
    }

    /// Its head says that it left: its pages go, and then the rest.
    fn remove(&mut self, leader: &Leader, now: Now, context: &Context, id: &Arc<str>, out: &mut Outbox) {
        let (since, removals) = match self.standing {
            Standing::Left { since, removals } => (since, removals),
            Standing::Stays { .. } => (now.mono, 0),
        };
        let (timing, bare) = (&leader.timing, self.whose == Whose::Nobodys);
        let left_for = now.mono.saturating_sub(since);
        if left_for > timing.garbage && !bare {
            self.sweep.advance(now.mono, timing, id, MAX_SHARDS, out);
        }
        let clean = bare || self.sweep.is_clean();
        let removes = left_for > timing.forget && clean && self.is_free(now) && !context.leaves;
        if removes {
            self.next = now.mono + doubled(timing.creator_retry, removals, timing);
            self.call = Some(out.call(Call::RemoveFormer { cluster: id.clone() }));
        }
        self.standing = Standing::Left { since, removals: removals + u32::from(removes) };
    }

    fn done(&mut self, leader: &Leader, now: Now, id: CallId, outcome: &Outcome) -> bool {
        if self.whose == Whose::Unknown(Some(id)) {
            self.whose = match outcome {
                Outcome::Creator(Some(creator)) if *creator.by == *leader.me.uid => Whose::Ours,
                Outcome::Creator(Some(_)) => Whose::Others,
                Outcome::Creator(None) => Whose::Nobodys,
                _ => {
                    self.next = now.mono + leader.timing.creator_retry;
                    Whose::Unknown(None)
                }
            };
            return true;
        }
        self.call.take_if(|call| *call == id).is_some()
    }
}

impl Run {
    /// Handles heads of this cluster's UID under other ids. Breaks if this cluster has to be elected again.
    pub(super) fn observe_former(
        &mut self,
        leader: &Leader,
        now: Now,
        heads: &Heads,
        out: &mut Outbox,
    ) -> ControlFlow<()> {
        let (settled, leaves) = (self.is_settled(leader, now), self.farewell().is_some());
        let context = Context { epoch: self.epoch.number, settled, leaves };
        for (id, head) in heads {
            // Readers do not believe one that this cluster did not sign, and go on with what they have of the former id.
            let (head, genuine) = match head {
                Ok(head) => (head, true),
                Err(codec::Error::Foreign(head)) => (head, false),
                Err(_) => continue,
            };
            if *id == leader.me.cluster || head.uid != leader.me.uid {
                continue;
            }
            let former = self.former.entry(id.clone()).or_default();
            if former.whose == Whose::Unknown(None) && now.mono >= former.next {
                former.whose = Whose::Unknown(Some(out.call(Call::Creator { cluster: id.clone() })));
            }
            match (&former.whose, !genuine || head.is_live()) {
                (Whose::Ours, true) => former.stay(leader, now, &context, (head, genuine), out)?,
                (Whose::Ours | Whose::Nobodys, false) => former.remove(leader, now, &context, id, out),
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }

    pub(super) fn former_done(
        &mut self,
        leader: &Leader,
        now: Now,
        id: CallId,
        outcome: &Outcome,
        out: &mut Outbox,
    ) -> bool {
        let batch = leader.limits.garbage_batch;
        let mut former = self.former.iter_mut();
        former.any(|(cluster, former)| {
            former.done(leader, now, id, outcome) || former.sweep.done(id, outcome, cluster, batch, out)
        })
    }
}
