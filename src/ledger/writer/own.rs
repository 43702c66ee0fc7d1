//! The own heads of an epoch, as they are read back.

use std::{sync::Arc, time::Duration};

use super::{Heads, Now, WriterIdentity, run::Epoch};
use crate::{hash::StateHash, head::Head};

/// What is known of them, once one was read.
#[derive(Debug, Default)]
pub(super) struct OwnHeads(Option<OwnHead>);

#[derive(Debug)]
struct OwnHead {
    /// When the first one was read.
    since: Duration,
    /// The newest one, and its claims.
    seq: u64,
    claims: StateHash,
    /// Whether the last read of all heads had it, and had no live head of this cluster under another id.
    alone: bool,
}

impl OwnHeads {
    /// Takes a read of all heads, and the own one in it.
    pub(super) fn observe(
        &mut self,
        epoch: Epoch,
        me: &WriterIdentity,
        now: Now,
        heads: &Heads,
        own: Option<&Arc<Head>>,
    ) {
        let elsewhere = |(id, head): (&Arc<str>, &Result<Arc<Head>, _>)| {
            // One that left changes no more. It may stay for long, where its services may not be deleted.
            *id != me.cluster && head.as_ref().is_ok_and(|head| head.is_live() && head.uid == me.uid)
        };
        let newest = self.0.as_ref().map_or(0, |newest| newest.seq);
        let own = own.filter(|head| head.position.epoch == epoch.number && head.position.seq >= newest);
        if let Some(head) = own {
            let (seq, claims) = (head.position.seq, head.summary.hashes.claims);
            let since = self.since().unwrap_or(now.mono);
            self.0 = Some(OwnHead { since, seq, claims, alone: !heads.iter().any(elsewhere) });
        } else if let Some(newest) = &mut self.0 {
            newest.alone = false;
        }
    }

    /// Since when heads of this epoch are read back.
    pub(super) fn since(&self) -> Option<Duration> {
        self.0.as_ref().map(|newest| newest.since)
    }

    /// The claims of the newest one.
    pub(super) fn claims(&self) -> Option<StateHash> {
        self.0.as_ref().map(|newest| newest.claims)
    }

    /// Whether the last read had the newest one, and nothing else of this cluster that lives (S10).
    pub(super) fn is_alone(&self) -> bool {
        self.0.as_ref().is_some_and(|newest| newest.alone)
    }
}
