//! W3 to W9: one epoch, from the end of W2 on.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc, time::Duration};

use super::{
    Heads, Leader, Now,
    announce::Announcement,
    audit::Audit,
    copy::Copy,
    farewell::Farewell,
    flush::{UploadFigures, Uploads},
    former::Former,
    garbage::Garbage,
    own::OwnHeads,
    publish::{Publisher, Sent},
    services::{Grown, Growth},
};
use crate::{
    Map,
    call::{CallId, Outbox, Outcome},
    hash::{Hashes, Summary},
    head::{Delta, FORMAT, Head, Presence, Root},
    limits::Timing,
    record::{Position, Version},
    runs::Layout,
};

/// An epoch, and the random number that distinguishes its leader from another one with this epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Epoch {
    pub number: u64,
    pub nonce: u64,
}

impl Epoch {
    /// What heads of this epoch say of a state that was desired in it.
    pub(super) const fn summary(self, generation: u64, hashes: Hashes) -> Summary {
        Summary { version: Version { epoch: self.number, nonce: self.nonce, n: generation }, hashes }
    }
}

/// What the last own head said when W2 ended, and when it was written.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub map: Arc<Map>,
    pub written: u64,
}

/// What the pages say.
#[derive(Debug)]
pub(super) struct Base {
    pub map: Arc<Map>,
    pub layout: Layout,
    pub ground: Ground,
}

/// Whether something can be appended to the pages of a base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ground {
    /// Readers can read it.
    Sound,
    /// The next flush writes every page again.
    Rewritten,
    /// There is none: no head may be sent before a full flush.
    Nothing,
}

impl Base {
    pub(super) const fn new(map: Arc<Map>, layout: Layout) -> Self {
        Self { map, layout, ground: Ground::Sound }
    }

    pub(super) fn nothing(shards: u32) -> Self {
        Self { map: Arc::default(), layout: Layout::empty(shards), ground: Ground::Nothing }
    }

    /// Whether a full flush is due.
    pub(super) fn is_due(&self) -> bool {
        self.ground != Ground::Sound
    }
}

/// What a run is there for.
#[derive(Debug)]
pub(super) enum Duty {
    /// W3 to W5.
    Publish(Box<Uploads>),
    /// W9: everything was withdrawn.
    Leave(Farewell),
}

/// The state of one epoch.
#[derive(Debug)]
pub(super) struct Run {
    pub epoch: Epoch,
    /// Of the last head that was sent.
    pub seq: u64,
    pub source: Source,
    pub base: Base,
    pub duty: Duty,
    pub publisher: Publisher,
    pub growth: Growth,
    pub garbage: Garbage,
    /// Page writes of uploads that began again elsewhere, with the shards of the pages.
    pub dropped: BTreeMap<CallId, u32>,
    pub audit: Audit,
    pub former: BTreeMap<Arc<str>, Former>,
    pub announcement: Announcement,
    pub copy: Copy,
    pub own: OwnHeads,
    pub figures: UploadFigures,
}

impl Run {
    pub(super) fn new(
        epoch: Epoch,
        base: Base,
        source: Source,
        sent: Option<Sent>,
        now: Duration,
        timing: &Timing,
    ) -> Self {
        Self {
            epoch,
            seq: 0,
            source,
            base,
            duty: Duty::Publish(Box::default()),
            publisher: Publisher::new(sent, now),
            growth: Growth::default(),
            garbage: Garbage::new(now),
            dropped: BTreeMap::new(),
            audit: Audit::new(now + timing.audit),
            former: BTreeMap::new(),
            announcement: Announcement::new(now),
            copy: Copy::default(),
            own: OwnHeads::default(),
            figures: UploadFigures::default(),
        }
    }

    pub(super) fn farewell(&self) -> Option<&Farewell> {
        match &self.duty {
            Duty::Leave(farewell) => Some(farewell),
            Duty::Publish(_) => None,
        }
    }

    /// Whether others have been able to read this cluster's exports for a while.
    pub(super) fn is_settled(&self, leader: &Leader, now: Now) -> bool {
        self.own.since().is_some_and(|since| now.mono >= since + leader.timing.handover)
    }

    /// Whatever is due.
    pub(super) fn advance(&mut self, leader: &mut Leader, now: Now, out: &mut Outbox) {
        self.leave(leader, now, out);
        if matches!(self.duty, Duty::Publish(_)) {
            self.growth.advance(&leader.services, now, out);
            self.flush(leader, now, out);
            self.compact(leader, now, out);
            self.publish(leader, now, out);
        }
        let since = leader.desired.unpublished_since().filter(|_| matches!(self.duty, Duty::Publish(_)));
        self.publisher.unpublished = since.map(|since| now.mono.saturating_sub(since));
    }

    /// A read of all heads, with the own one if this cluster wrote it. Breaks if this cluster has to be elected again.
    pub(super) fn observe(
        &mut self,
        leader: &mut Leader,
        now: Now,
        heads: &Heads,
        own: Option<&Arc<Head>>,
        out: &mut Outbox,
    ) -> ControlFlow<()> {
        self.announcement.announce(leader, now, out);
        self.copy.observe(leader, now, own.is_some_and(|head| head.position.epoch >= self.epoch.number));
        if let Some(head) = own {
            self.garbage.refer(&head.root, now.mono);
            if head.position.epoch == self.epoch.number {
                self.confirmed(leader, now, head.position.seq, out);
                leader.back.seen(head.position.seq);
            }
            if let Duty::Leave(farewell) = &mut self.duty {
                farewell.observe(head, self.epoch.number);
            }
        }
        self.own.observe(self.epoch, &leader.me, now, heads, own);
        self.observe_former(leader, now, heads, out)?;
        self.audit(leader, now, own, out);
        self.collect(leader, now, out);
        ControlFlow::Continue(())
    }

    /// Whether a service that is another cluster's says nothing about the own id.
    pub(super) fn expects_taken(&self, id: CallId) -> bool {
        self.growth.waits_for(id) || self.former.values().any(|former| former.deletes(id))
    }

    /// The outcome of a call; `false` if it is nobody's here.
    pub(super) fn done(
        &mut self,
        leader: &mut Leader,
        now: Now,
        id: CallId,
        outcome: &Outcome,
        out: &mut Outbox,
    ) -> bool {
        if self.growth.waits_for(id) {
            match self.growth.done(leader, now, outcome) {
                Grown::Created(shard) => self.garbage.created(shard, now.mono),
                Grown::Found => self.garbage.expect(now.mono),
                Grown::Nothing => {}
            }
            return true;
        }
        self.announcement.done(leader, now, id, outcome)
            || self.dropped.remove(&id).is_some()
            || self.copy.done(id, outcome)
            || self.publication_done(leader, now, id, outcome, out)
            || self.upload_done(leader, now, id, outcome, out)
            || self.collect_done(leader, now, id, outcome, out)
            || self.audit_done(leader, now, id, outcome, out)
            || self.former_done(leader, now, id, outcome, out)
            || self.farewell_done(leader, id, outcome, out)
    }

    /// The shard of the page that a call writes or deletes.
    pub(super) fn shard_of(&self, call: CallId) -> Option<u32> {
        let written = match &self.duty {
            Duty::Publish(uploads) => uploads.shard_of(call),
            Duty::Leave(_) => None,
        };
        written.or_else(|| self.dropped.get(&call).copied()).or_else(|| self.garbage.shard_of(call))
    }

    pub(super) fn head(
        &self,
        leader: &Leader,
        now: Now,
        seq: u64,
        root: Root,
        delta: Arc<Delta>,
        summary: Summary,
    ) -> Head {
        Head {
            cluster: leader.me.cluster.clone(),
            reads: FORMAT,
            uid: leader.me.uid.clone(),
            position: Position { epoch: self.epoch.number, seq },
            presence: Presence::Live,
            root,
            delta,
            summary,
            addresses: leader.addresses.clone(),
            lease: leader.timing.lease,
            written: now.wall,
            signer: None,
        }
    }
}
