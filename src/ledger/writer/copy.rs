//! W3: a copy of the own head, in a service to which nobody else should write. Readers and new leaders read it while
//! somebody hides the head.

use std::{sync::Arc, time::Duration};

use super::{Leader, Now};
use crate::{
    call::{Call, CallId, Outbox, Outcome},
    head::Head,
};

/// What is known about the copy.
#[derive(Debug, Default)]
pub(super) struct Copy {
    call: Option<CallId>,
    /// The last one that was sent, and when.
    sent: Option<(Arc<Head>, Duration)>,
    /// Since when a head of this epoch is published.
    published: Option<Duration>,
    /// When the own head was last missed where all heads are.
    missed: Option<Duration>,
}

impl Copy {
    /// A read of all heads, and whether a head of this epoch was there.
    pub(super) fn observe(&mut self, leader: &Leader, now: Now, there: bool) {
        if leader.back.newest().is_some() {
            let since = *self.published.get_or_insert(now.mono);
            // What was just written is not visible everywhere yet.
            if !there && now.mono.saturating_sub(since) > leader.timing.overdue {
                self.missed = Some(now.mono);
            }
        }
    }

    /// Copies a head that is being sent. While the head is hidden, and for a while after that, each one is copied.
    /// Otherwise a new root is copied at once, and a new delta once in a while, so that a new leader does not depend on
    /// the head alone.
    pub(super) fn put(&mut self, leader: &Leader, now: Now, head: &Arc<Head>, out: &mut Outbox) {
        let quiet = leader.timing.quiet;
        let hidden = self.missed.is_some_and(|at| now.mono.saturating_sub(at) <= quiet);
        let due = self.sent.as_ref().is_none_or(|(sent, at)| {
            // Nobody changes it again when all is at rest, or when the cluster has left.
            (&sent.root, &sent.presence) != (&head.root, &head.presence)
                || sent.delta != head.delta && now.mono.saturating_sub(*at) >= quiet
        });
        if !leader.keys.is_empty() && self.call.is_none() && (hidden || due) {
            self.sent = Some((head.clone(), now.mono));
            self.call = Some(out.call(Call::PutCopy { head: head.clone() }));
        }
    }

    pub(super) fn done(&mut self, id: CallId, outcome: &Outcome) -> bool {
        let mine = self.call.take_if(|call| *call == id).is_some();
        if mine && !matches!(outcome, Outcome::Done) {
            // No error of this cluster's exports: the head itself is published.
            self.sent = None;
        }
        mine
    }
}
