//! R1 and S10: how soon after a read of the heads the next one follows. Pure.
//!
//! Where leaders are connected, a read of the heads shows only what the leaders have said before. Three things are in
//! the ledger alone: claims, who is a member, and what became of this cluster's own head. So the heads are read rarely
//! while none of these is about to change. Where leaders are not connected, a change is seen half the time between two
//! reads later. After a change more of them are likely, as in a rollout, so the heads are read more often for some
//! time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{hash::StateHash, limits::Timing, stream::Contact, stream::Stream, writer::Writer};

/// Hashes of the claims of a cluster: as it says itself, as its head has them, and as they apply here.
type Claims = [Option<StateHash>; 3];

/// Whether the heads are read rarely, or often.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The states of the clusters that are not connected, as their heads have them.
    told: BTreeMap<Arc<str>, StateHash>,
    /// When one of these states changed last, and whether that was recently.
    moved: Option<Duration>,
    moves: bool,
    /// The claims of this cluster and of the others, and since when they are these.
    own: Option<Claims>,
    claims: BTreeMap<Arc<str>, Claims>,
    since: Duration,
    rests: bool,
    /// Whether it did at any time since the last read.
    rested: bool,
}

/// Whether this is what is `known`, without making another map: it is asked at each message of each cluster.
fn is_same<'a, T: PartialEq>(known: &BTreeMap<Arc<str>, T>, current: impl Iterator<Item = (&'a Arc<str>, T)>) -> bool {
    let mut known = known.iter();
    let mut same =
        current.map(|(id, value)| known.next().is_some_and(|(other, before)| id == other && value == *before));
    same.all(|same| same) && known.next().is_none()
}

impl Pace {
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
        self.watch(now, timing, stream, contacts);
        let Some(stream) = stream else { return };
        let [wanted, there] = writer.claims();
        let own = Some([wanted, there, None]);
        let others = || {
            contacts.iter().filter(|(_, contact)| contact.live).map(|(cluster, contact)| {
                let said = stream.latest(cluster).map(|summary| summary.hashes.claims);
                let [head, applied] = [contact.head, contact.summary].map(|summary| Some(summary?.hashes.claims));
                (cluster, [said, head, applied])
            })
        };
        if own != self.own || !is_same(&self.claims, others()) {
            self.own = own;
            self.claims = others().map(|(cluster, claims)| (cluster.clone(), claims)).collect();
            self.since = now;
        }
        let settled = now.saturating_sub(self.since) >= timing.claims_at_rest;
        self.rests = settled && read && writer.is_at_rest() && stream.is_at_rest(now, contacts);
        self.rested |= self.rests;
    }

    fn watch(
        &mut self,
        now: Duration,
        timing: &Timing,
        stream: Option<&Stream>,
        contacts: &BTreeMap<Arc<str>, Contact>,
    ) {
        let connected = |cluster: &Arc<str>| stream.is_some_and(|it| it.latest(cluster).is_some());
        let others = || {
            let others = contacts.iter().filter(|(cluster, contact)| contact.live && !connected(cluster));
            others.filter_map(|(cluster, contact)| Some((cluster, contact.head?.hashes.state)))
        };
        if !is_same(&self.told, others()) {
            let told: BTreeMap<_, _> = others().map(|(cluster, state)| (cluster.clone(), state)).collect();
            // A cluster that comes or goes says nothing about how soon a state changes again.
            if told.keys().eq(self.told.keys()) {
                self.moved = Some(now);
            }
            self.told = told;
        }
        self.moves = self.moved.is_some_and(|at| now.saturating_sub(at) < timing.motion);
    }

    /// From the beginning of a read to that of the next one.
    pub(super) fn next(&self, timing: &Timing) -> Duration {
        match (self.rests, self.moves) {
            (true, _) => timing.tick_at_rest,
            (false, true) => timing.tick_in_motion,
            (false, false) => timing.tick,
        }
    }

    /// The heads were read: how much of the time since the last read counts (R1).
    pub(super) fn read(&mut self, timing: &Timing) -> Duration {
        let rested = std::mem::replace(&mut self.rested, self.rests);
        if rested { timing.max_step.max(timing.tick_at_rest * 2) } else { timing.max_step }
    }
}
