//! W3: a copy of the own head, in a service to which nobody else should write. Readers and new leaders read it while
//! somebody hides the head.

use std::{sync::Arc, time::Duration};

use super::{Now, Writer};
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

impl Writer {
    /// Whether a head of this epoch was there, in a read of all heads.
    pub(super) fn observe_copied(&mut self, now: Now, own: Option<&Arc<Head>>) {
        let there = own.is_some_and(|head| head.position.epoch >= self.epoch);
        let copy = &mut self.run.copy;
        if self.run.published.is_some() {
            let since = *copy.published.get_or_insert(now.mono);
            // What was just written is not visible everywhere yet.
            if !there && now.mono.saturating_sub(since) > self.timing.overdue {
                copy.missed = Some(now.mono);
            }
        }
    }

    /// Copies a head that is being sent. While the head is hidden, and for a while after that, each one is copied.
    /// Otherwise a new root is copied at once, and a new delta once in a while, so that a new leader does not depend on
    /// the head alone.
    pub(super) fn copy(&mut self, now: Now, head: &Arc<Head>, out: &mut Outbox) {
        let copy = &mut self.run.copy;
        let hidden = copy.missed.is_some_and(|at| now.mono.saturating_sub(at) <= self.timing.quiet);
        let due = copy.sent.as_ref().is_none_or(|(sent, at)| {
            // Nobody changes it again when all is at rest, or when the cluster has left.
            (&sent.root, &sent.presence) != (&head.root, &head.presence)
                || sent.delta != head.delta && now.mono.saturating_sub(*at) >= self.timing.quiet
        });
        if !self.keys.is_empty() && copy.call.is_none() && (hidden || due) {
            copy.sent = Some((head.clone(), now.mono));
            copy.call = Some(out.call(Call::PutCopy { head: head.clone() }));
        }
    }

    pub(super) fn copy_done(&mut self, id: CallId, outcome: &Outcome) -> bool {
        if self.run.copy.call.take_if(|call| *call == id).is_none() {
            return false;
        }
        if !matches!(outcome, Outcome::Done) {
            // No error of this cluster's exports: the head itself is published.
            self.run.copy.sent = None;
        }
        true
    }
}
