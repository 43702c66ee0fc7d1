//! W0 and W1: the claim of the id, and the election.

use std::time::Duration;

use super::{Leader, Now};
use crate::{
    call::{Call, CallId, Outbox, Outcome},
    limits::Timing,
    record::Position,
};

/// A leader that has no epoch.
#[derive(Debug)]
pub(super) struct Candidate {
    pub step: Step,
    /// W0 has just created the service, so there is nothing to wait for.
    pub created: bool,
    /// The last epoch of this leader; 0 if it had none.
    pub last: u64,
    /// A head of this cluster above the record.
    pub stranger: Option<Stranger>,
}

/// How far a candidate is.
#[derive(Debug)]
pub(super) enum Step {
    /// W0. `refused` says who owns the id, if it is not this cluster.
    Claim { retry_at: Duration, call: Option<CallId>, refused: Option<String> },
    /// W1, before the epoch: the Lease is read again.
    Confirm { call: Option<CallId> },
    /// W1: the epoch must be stored in the record.
    Elected,
}

impl Step {
    /// Claims the id from then on.
    pub(super) const fn claim(retry_at: Duration) -> Self {
        Self::Claim { retry_at, call: None, refused: None }
    }
}

/// A head with this cluster's UID that somebody else may have written: the own one with an epoch that the record does
/// not know (W1), or a live one under another id (W2, W9). If the record was lost or restored, or the id was changed,
/// nobody writes this head any more. If another process has the same UID, it goes on writing.
#[derive(Debug)]
pub(super) struct Stranger {
    position: Position,
    pub(super) advances: u32,
    /// Time between completed reads in a row that showed nothing above `position`.
    silent: Duration,
    read: Duration,
}

/// After this many advances, somebody is writing the stranger's head: one operation of a former leader may come late.
pub(super) const MUCH: u32 = 2;

impl Stranger {
    pub(super) fn new(position: Position, now: Duration) -> Self {
        Self { position, advances: 0, silent: Duration::ZERO, read: now }
    }

    /// Whether nobody writes there any more. A slow operation and a replica that lags can hide a heartbeat, so a writer
    /// that was seen at work is gone only when every other cluster regards it as stale.
    pub(super) fn is_silent(&self, timing: &Timing) -> bool {
        self.silent >= if self.advances >= MUCH { timing.lease } else { timing.stranger }
    }

    /// A completed read, and the position that it showed, if any.
    pub(super) fn watch(&mut self, position: Option<Position>, now: Duration, max_step: Duration) {
        match position {
            Some(position) if position > self.position => {
                *self = Self { advances: self.advances + 1, ..Self::new(position, now) };
            }
            _ => {
                self.silent += now.saturating_sub(self.read).min(max_step);
                self.read = now;
            }
        }
    }
}

impl Candidate {
    pub(super) fn new() -> Self {
        Self { step: Step::claim(Duration::ZERO), created: false, last: 0, stranger: None }
    }

    /// The epoch that must be stored next, given the stored one.
    pub(super) fn wants_epoch(&self, leader: &Leader, stored: u64) -> Option<u64> {
        let best = leader.best.as_ref().filter(|best| leader.is_plausible(best, self.last));
        let best = best.map_or(0, |best| best.position.epoch);
        let silent = self.stranger.as_ref().is_some_and(|stranger| stranger.is_silent(&leader.timing));
        let elected = matches!(self.step, Step::Elected) && (best <= stored || silent);
        elected.then(|| stored.max(best).max(self.last) + 1)
    }

    pub(super) fn advance(&mut self, now: Now, out: &mut Outbox) {
        if let Step::Claim { retry_at, call: call @ None, .. } = &mut self.step
            && now.mono >= *retry_at
        {
            *call = Some(out.call(Call::Claim { shard: 0 }));
        }
    }

    pub(super) fn done(&mut self, leader: &mut Leader, now: Now, id: CallId, outcome: &Outcome) -> bool {
        match &mut self.step {
            Step::Claim { call, .. } if *call == Some(id) => self.claimed(leader, now, outcome),
            Step::Confirm { call } if *call == Some(id) => {
                let held = matches!(outcome, Outcome::Lease { held: true });
                self.step = if held { Step::Elected } else { Step::Confirm { call: None } };
            }
            _ => return false,
        }
        true
    }

    fn claimed(&mut self, leader: &mut Leader, now: Now, outcome: &Outcome) {
        let Step::Claim { retry_at, call, refused } = &mut self.step else { return };
        *call = None;
        *retry_at = now.mono + leader.timing.refused_retry;
        match outcome {
            Outcome::Claimed { created, shards } => {
                self.created |= created;
                leader.services.found(*shards);
                self.step = Step::Confirm { call: None };
            }
            Outcome::Taken { owner } => *refused = Some(owner.clone()),
            Outcome::OldKey(why) => leader.error = Some(why.clone()),
            outcome => {
                leader.note(outcome);
                *retry_at = now.mono + leader.timing.retry_min;
            }
        }
    }

    /// A completed read of all heads.
    pub(super) fn observe(&mut self, leader: &Leader, now: Now, out: &mut Outbox) {
        if matches!(self.step, Step::Claim { .. }) {
            return;
        }
        // The newest one that was seen, also where an older one is there again: its epoch is what the next must be above.
        let best = leader.best.as_ref().filter(|best| leader.is_plausible(best, self.last));
        let position = best.map(|best| best.position).filter(|position| position.epoch > leader.recorded);
        match (&mut self.stranger, position) {
            (Some(stranger), position) => stranger.watch(position, now.mono, leader.timing.max_step),
            (None, Some(position)) => self.stranger = Some(Stranger::new(position, now.mono)),
            (None, None) => {}
        }
        if let Step::Confirm { call: call @ None } = &mut self.step {
            *call = Some(out.call(Call::ConfirmLease));
        }
    }
}
