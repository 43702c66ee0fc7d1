//! R9 and W6: the own exports service says whose the id is, and which key counts.

use std::time::Duration;

use super::{Leader, Now};
use crate::call::{Call, CallId, Outbox, Outcome};

/// When to look at the own exports service again.
#[derive(Debug)]
pub(super) struct Announcement {
    /// The earliest times to ask again who owns the own id, and to look again at the announced key.
    next_look: Duration,
    next: Duration,
    call: Option<CallId>,
}

impl Announcement {
    pub(super) const fn new(now: Duration) -> Self {
        Self { next_look: now, next: now, call: None }
    }

    /// W6: there is another cluster's head under the own id, which anybody may have written. The exports service says
    /// whose the id is.
    pub(super) fn look_whose(&mut self, leader: &Leader, now: Now, out: &mut Outbox) {
        if now.mono >= self.next_look {
            self.next_look = now.mono + leader.timing.refused_retry;
            out.call(Call::Claim { shard: 0 });
        }
    }

    /// R9: the key is where other clusters look for it, and is there again if somebody changed it.
    pub(super) fn announce(&mut self, leader: &Leader, now: Now, out: &mut Outbox) {
        if !leader.keys.is_empty() && now.mono >= self.next {
            self.next = now.mono + leader.timing.audit;
            self.call = Some(out.call(Call::Announce));
        }
    }

    pub(super) fn done(&mut self, leader: &mut Leader, now: Now, id: CallId, outcome: &Outcome) -> bool {
        let mine = self.call.take_if(|call| *call == id).is_some();
        if mine && !matches!(outcome, Outcome::Done) {
            leader.note(outcome);
            self.next = now.mono + leader.timing.retry_max;
        }
        mine
    }
}
