//! S10: how soon after a read of the heads the next one follows. Pure.
//!
//! Where leaders are connected, a read shows what they said before, unless it is about what only the ledger can say: claims,
//! who is a member, and what became of this cluster's own head. So the heads are read rarely while there is nothing of that.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{hash::StateHash, limits::Timing, stream::Contact, stream::Stream, writer::Writer};

/// The claims of a cluster: those that it wants by its own word, those in its head, and those by which it is judged.
type Claims = [Option<StateHash>; 3];

/// Whether the heads are read rarely.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// The claims of this cluster and of the others, and since when they are these.
    claims: BTreeMap<Arc<str>, Claims>,
    since: Duration,
    rests: bool,
    /// Whether it did at any time since the last read.
    rested: bool,
}

impl Rest {
    /// Takes what is known now. `read`: whether the last read of the heads left nothing to do for the reader.
    pub(super) fn observe(
        &mut self,
        now: Duration,
        timing: &Timing,
        writer: &Writer,
        read: bool,
        stream: Option<&Stream>,
        contacts: &BTreeMap<Arc<str>, Contact>,
    ) {
        let Some(stream) = stream else { return };
        let [wanted, there] = writer.claims();
        let own = (writer.identity().cluster.clone(), [wanted, there, None]);
        let others = contacts.iter().filter(|(_, contact)| contact.live).map(|(cluster, contact)| {
            let said = stream.latest(cluster).map(|summary| summary.hashes.claims);
            let [head, applied] = [contact.head, contact.summary].map(|summary| Some(summary?.hashes.claims));
            (cluster.clone(), [said, head, applied])
        });
        let claims = others.chain([own]).collect();
        if claims != self.claims {
            (self.claims, self.since) = (claims, now);
        }
        let settled = now.saturating_sub(self.since) >= timing.claims_at_rest;
        self.rests = settled && read && writer.is_at_rest() && stream.is_at_rest(now, contacts);
        self.rested |= self.rests;
    }

    /// From the beginning of a read to that of the next one.
    pub(super) fn pace(&self, timing: &Timing) -> Duration {
        if self.rests { timing.tick_at_rest } else { timing.tick }
    }

    /// The heads were read: how much of the time since the last read counts (R1).
    pub(super) fn read(&mut self, timing: &Timing) -> Duration {
        let rested = std::mem::replace(&mut self.rested, self.rests);
        if rested { timing.max_step.max(timing.tick_at_rest * 2) } else { timing.max_step }
    }
}
