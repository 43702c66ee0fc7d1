//! W3 and W4: one upsert of the head carries what changed since the base.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    Leader, Now,
    run::{Ground, Run},
};
use crate::{
    Map,
    call::{Call, CallId, Outbox, Outcome},
    hash::Summary,
    head::Delta,
    limits::Timing,
};

/// The desired state as a delta on the current base.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    generation: u64,
    pub delta: Arc<Delta>,
    /// Share of the room that it takes; above 1 it does not fit.
    pub occupancy: f64,
}

/// A state that was sent, on the current base: what is repeated while the desired one does not fit.
#[derive(Debug)]
pub(super) struct Sent {
    pub map: Arc<Map>,
    pub delta: Arc<Delta>,
    pub generation: u64,
    /// It contains what changed until then.
    pub as_of: Duration,
    pub summary: Summary,
}

/// Whether the next head may be sent.
#[derive(Debug)]
enum Turn {
    /// From then on.
    Free(Duration),
    /// A head is on its way.
    Sending { call: CallId, seq: u64 },
}

/// A head that was sent, until it is known that the registry has it, or a later one.
#[derive(Debug)]
struct Unconfirmed {
    map: Arc<Map>,
    /// When the change came that it carries, if it carries one.
    changed_at: Option<Duration>,
    /// It contains what changed until then.
    as_of: Duration,
}

/// So many heads are remembered whose outcomes are not known.
const MOST_UNCONFIRMED: usize = 32;

/// The states that were published, and which of them were read back. Reads may always be some publications behind the newest
/// one, so an earlier one is awaited as well.
#[derive(Debug, Default)]
pub(super) struct ReadBack {
    awaited: Option<(u64, Arc<Map>)>,
    /// The newest one, until it is read back.
    newest: Option<(u64, Arc<Map>)>,
    map: Option<Arc<Map>>,
}

impl ReadBack {
    /// The newest state that was published.
    pub(super) fn newest(&self) -> Option<&Arc<Map>> {
        self.newest.as_ref().map(|(_, map)| map).or(self.map.as_ref())
    }

    /// The newest one that was read back, or one shortly before it.
    pub(super) fn map(&self) -> Option<&Arc<Map>> {
        self.map.as_ref()
    }

    fn published(&mut self, seq: u64, map: &Arc<Map>) {
        self.newest = Some((seq, map.clone()));
        self.awaited.get_or_insert((seq, map.clone()));
    }

    /// An own head of this epoch was read.
    pub(super) fn seen(&mut self, seq: u64) {
        if let Some((_, map)) = self.newest.take_if(|(newest, _)| *newest <= seq) {
            self.map = Some(map);
            self.awaited = None;
        } else if let Some((_, map)) = self.awaited.take_if(|(awaited, _)| *awaited <= seq) {
            self.map = Some(map);
            self.awaited.clone_from(&self.newest);
        }
    }
}

/// The heads of an epoch, on their way into the registry.
#[derive(Debug)]
pub(super) struct Publisher {
    turn: Turn,
    /// The last state sent, on the current base.
    pub sent: Option<Sent>,
    sent_at: Option<Duration>,
    /// Of the last desired state that was sent, unless that failed.
    sent_generation: Option<u64>,
    /// The next head does not wait for a change or a heartbeat.
    force: bool,
    failures: u32,
    /// Heads that were sent and whose outcome is not known yet, by seq.
    unconfirmed: BTreeMap<u64, Unconfirmed>,
    measured: Option<Measured>,
    /// See [`super::WriterFigures`].
    pub occupancy: f64,
    pub latency: Option<Duration>,
    pub unpublished: Option<Duration>,
}

impl Publisher {
    pub(super) fn new(sent: Option<Sent>, now: Duration) -> Self {
        let (sent_at, sent_generation, force, failures, unconfirmed) = Default::default();
        let (measured, occupancy, latency, unpublished) = Default::default();
        Self {
            turn: Turn::Free(now),
            sent,
            sent_at,
            sent_generation,
            force,
            failures,
            unconfirmed,
            measured,
            occupancy,
            latency,
            unpublished,
        }
    }

    /// Whether no head is on its way.
    pub(super) const fn is_free(&self) -> bool {
        matches!(self.turn, Turn::Free(_))
    }

    /// The root changed, so that a head must say so.
    pub(super) fn rebased(&mut self) {
        self.measured = None;
        self.force = true;
    }

    /// Takes the head `seq` for sent.
    fn sending(&mut self, call: CallId, seq: u64, now: Duration, sent: Unconfirmed) {
        self.turn = Turn::Sending { call, seq };
        self.sent_at = Some(now);
        self.force = false;
        self.unconfirmed.insert(seq, sent);
        if self.unconfirmed.len() > MOST_UNCONFIRMED {
            self.unconfirmed.pop_first();
        }
    }
}

impl Run {
    /// The desired state on the current base; `None` while there is no desired state.
    pub(super) fn measure(&mut self, leader: &Leader, now: Now) -> Option<&Measured> {
        let (desired, generation) = (leader.desired.map()?, leader.desired.generation());
        if self.publisher.measured.as_ref().is_none_or(|measured| measured.generation != generation) {
            let delta = Arc::new(Delta::between(&self.base.map, desired, leader.limits.compression));
            let occupancy = self.occupancy(leader, now, &delta);
            self.publisher.occupancy = occupancy;
            self.publisher.measured = Some(Measured { generation, delta, occupancy });
        }
        self.publisher.measured.as_ref()
    }

    pub(super) fn occupancy(&self, leader: &Leader, now: Now, delta: &Arc<Delta>) -> f64 {
        let share = delta.size() as f64 / leader.limits.delta_bytes as f64;
        // The roots may leave less room than the delta's own limit.
        let summary = self.epoch.summary(leader.desired.generation(), leader.desired.hashes());
        let head = self.head(leader, now, u64::MAX, self.base.layout.root(), delta.clone(), summary);
        if head.fits(&leader.limits) { share } else { share.max(1.01) }
    }

    pub(super) fn publish(&mut self, leader: &mut Leader, now: Now, out: &mut Outbox) {
        let Turn::Free(from) = self.publisher.turn else { return };
        if self.base.ground == Ground::Nothing {
            return;
        }
        let Some(desired) = leader.desired.map().cloned() else { return };
        let generation = leader.desired.generation();
        let changed = self.publisher.sent_generation != Some(generation);
        let beat_at = self.publisher.sent_at.map_or(now.mono, |sent_at| sent_at + leader.timing.heartbeat);
        let beat = self.publisher.force || now.mono >= beat_at;
        if !(changed || beat) {
            return out.wake_at(beat_at);
        }
        if now.mono < from {
            return out.wake_at(from);
        }
        let Some(measured) = self.measure(leader, now) else { return };
        if measured.occupancy <= 1.0 {
            let delta = measured.delta.clone();
            let summary = self.epoch.summary(generation, leader.desired.hashes());
            self.publisher.sent_generation = Some(generation);
            self.publisher.sent = Some(Sent { map: desired, delta, generation, as_of: now.mono, summary });
            self.send(leader, now, changed.then_some(leader.desired.changed_at()), out);
        } else if beat && self.publisher.sent.is_some() {
            self.send(leader, now, None, out);
        } else {
            out.wake_at(beat_at.max(now.mono + leader.timing.tick));
        }
    }

    /// Upserts a head with what is in `sent`.
    fn send(&mut self, leader: &Leader, now: Now, changed_at: Option<Duration>, out: &mut Outbox) {
        let Some(Sent { map, delta, summary, as_of, .. }) = &self.publisher.sent else { return };
        let (delta, unconfirmed) = (delta.clone(), Unconfirmed { map: map.clone(), changed_at, as_of: *as_of });
        self.seq += 1;
        let head = Arc::new(self.head(leader, now, self.seq, self.base.layout.root(), delta, *summary));
        self.garbage.refer(&head.root, now.mono);
        self.copy.put(leader, now, &head, out);
        let repeats = changed_at.is_none() && !self.publisher.force;
        let call = out.call(Call::PutHead { head, repeats });
        self.publisher.sending(call, self.seq, now.mono, unconfirmed);
    }

    /// The registry has, or had, the head `seq` of this epoch: its operation succeeded, or it was read back.
    pub(super) fn confirmed(&mut self, leader: &mut Leader, now: Now, seq: u64, out: &mut Outbox) {
        let publisher = &mut self.publisher;
        if let Turn::Sending { call, seq: sent } = publisher.turn
            && sent == seq
        {
            out.cancel(call);
            publisher.turn = Turn::Free(now.mono);
        }
        let Some(Unconfirmed { map, changed_at, as_of }) = publisher.unconfirmed.remove(&seq) else { return };
        publisher.unconfirmed = publisher.unconfirmed.split_off(&seq);
        publisher.failures = 0;
        leader.error = None;
        if let Some(changed_at) = changed_at {
            publisher.latency = Some(now.mono.saturating_sub(changed_at));
        }
        leader.desired.published(&map, as_of);
        leader.back.published(seq, &map);
    }

    pub(super) fn publication_done(
        &mut self,
        leader: &mut Leader,
        now: Now,
        id: CallId,
        outcome: &Outcome,
        out: &mut Outbox,
    ) -> bool {
        let Turn::Sending { call, seq } = self.publisher.turn else { return false };
        if call != id {
            return false;
        }
        self.publisher.turn = Turn::Free(now.mono);
        if matches!(outcome, Outcome::Done) {
            self.confirmed(leader, now, seq, out);
        } else {
            // Whether it took effect or not, or will later: nothing is assumed, the next head says it again.
            leader.note(outcome);
            let Timing { retry_min, retry_max, .. } = leader.timing;
            let back_off = (retry_min * 2u32.pow(self.publisher.failures.min(6))).min(retry_max);
            self.publisher.failures += 1;
            self.publisher.turn = Turn::Free(now.mono + back_off);
            self.publisher.sent_generation = None;
            self.publisher.force = true;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_are_always_behind_show_what_was_published_all_the_same() {
        let map = |seq: u64| Arc::new(Map::from([(Arc::from(seq.to_string()), crate::Value::from([0]))]));
        let mut back = ReadBack::default();
        let shown = |back: &ReadBack| back.map().and_then(|map| map.keys().next()?.parse::<u64>().ok());
        let mut last = 0;
        for seq in 1..100_u64 {
            back.published(seq, &map(seq));
            back.seen(seq.saturating_sub(5));
            let now = shown(&back).unwrap_or_default();
            assert!(now >= last && now <= seq.saturating_sub(5), "{now} at {seq}");
            assert!(seq < 20 || now + 15 > seq, "{now} at {seq}");
            last = now;
        }
        back.seen(99);
        assert_eq!(shown(&back), Some(99));
    }
}
