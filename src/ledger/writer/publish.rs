//! W3 and W4: one upsert of the head carries what changed since the base.

use std::{sync::Arc, time::Duration};

use super::{Now, Writer};
use crate::{
    Map,
    call::{Call, CallId, Outbox, Outcome},
    hash::Summary,
    head::Delta,
};

/// The desired state as a delta on the current base.
#[derive(Debug)]
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

/// The head operation in flight.
#[derive(Debug)]
pub(super) struct Publication {
    call: CallId,
    seq: u64,
}

/// A head that was sent, until it is known that the registry has it, or a later one.
#[derive(Debug)]
pub(super) struct Unconfirmed {
    map: Arc<Map>,
    /// When the change came that it carries, if it carries one.
    changed_at: Option<Duration>,
    /// It contains what changed until then.
    as_of: Duration,
}

/// So many heads are remembered whose outcomes are not known.
const MOST_UNCONFIRMED: usize = 32;

/// Which of the published states were read back. Reads may always be some publications behind the newest one, so an
/// earlier one is awaited as well.
#[derive(Debug, Default)]
pub(super) struct ReadBack {
    awaited: Option<(u64, Arc<Map>)>,
    newest: Option<(u64, Arc<Map>)>,
    pub map: Option<Arc<Map>>,
}

impl ReadBack {
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

impl Writer {
    /// The desired state on the current base; `None` while there is no desired state.
    pub(super) fn measure(&mut self, now: Now) -> Option<&Measured> {
        let desired = self.desired.as_ref()?;
        if self.run.measured.as_ref().is_none_or(|measured| measured.generation != self.generation) {
            let delta = Arc::new(Delta::between(&self.run.base, desired, self.limits.compression));
            let occupancy = self.occupancy(now, &delta);
            self.run.figures.delta_occupancy = occupancy;
            self.run.measured = Some(Measured { generation: self.generation, delta, occupancy });
        }
        self.run.measured.as_ref()
    }

    pub(super) fn occupancy(&self, now: Now, delta: &Arc<Delta>) -> f64 {
        let share = delta.size() as f64 / self.limits.delta_bytes as f64;
        // The roots may leave less room than the delta's own limit.
        let summary = self.summary(self.generation, self.hashed.hashes());
        let fits = self.head(now, u64::MAX, self.run.layout.root(), delta.clone(), summary).fits(&self.limits);
        if fits { share } else { share.max(1.01) }
    }

    pub(super) fn publish(&mut self, now: Now, out: &mut Outbox) {
        if self.run.publication.is_some() || self.run.baseless {
            return;
        }
        let Some(desired) = self.desired.clone() else { return };
        let changed = self.run.sent_generation != Some(self.generation);
        let beat_at = self.run.sent_at.map_or(now.mono, |sent_at| sent_at + self.timing.heartbeat);
        let beat = self.run.force || now.mono >= beat_at;
        if !(changed || beat) {
            out.wake_at(beat_at);
            return;
        }
        if now.mono < self.run.retry_at {
            out.wake_at(self.run.retry_at);
            return;
        }
        let Some(measured) = self.measure(now) else { return };
        if measured.occupancy <= 1.0 {
            let delta = measured.delta.clone();
            let changed_at = changed.then_some(self.changed_at);
            self.run.sent_generation = Some(self.generation);
            let summary = self.summary(self.generation, self.hashed.hashes());
            self.run.sent = Some(Sent { map: desired, delta, generation: self.generation, as_of: now.mono, summary });
            self.send(now, changed_at, out);
        } else if beat && self.run.sent.is_some() {
            self.send(now, None, out);
        } else {
            out.wake_at(beat_at.max(now.mono + self.timing.tick));
        }
    }

    /// Upserts a head with what is in `sent`.
    fn send(&mut self, now: Now, changed_at: Option<Duration>, out: &mut Outbox) {
        let Some(sent) = &self.run.sent else { return };
        let (map, delta, summary, as_of) = (sent.map.clone(), sent.delta.clone(), sent.summary, sent.as_of);
        self.run.seq += 1;
        let forced = std::mem::take(&mut self.run.force);
        let repeats = changed_at.is_none() && !forced;
        self.run.sent_at = Some(now.mono);
        self.run.figures.head_writes += 1;
        let head = Arc::new(self.head(now, self.run.seq, self.run.layout.root(), delta, summary));
        self.run.garbage.refer(&head.root, now.mono);
        self.copy(now, &head, out);
        let call = out.call(Call::PutHead { head, repeats });
        self.run.publication = Some(Publication { call, seq: self.run.seq });
        self.run.unconfirmed.insert(self.run.seq, Unconfirmed { map, changed_at, as_of });
        if self.run.unconfirmed.len() > MOST_UNCONFIRMED {
            self.run.unconfirmed.pop_first();
        }
    }

    /// The registry has, or had, the head `seq` of this epoch: its operation succeeded, or it was read back.
    pub(super) fn confirmed(&mut self, now: Now, seq: u64, out: &mut Outbox) {
        if let Some(publication) = self.run.publication.take_if(|publication| publication.seq == seq) {
            out.cancel(publication.call);
        }
        let Some(Unconfirmed { map, changed_at, as_of }) = self.run.unconfirmed.remove(&seq) else { return };
        self.run.unconfirmed = self.run.unconfirmed.split_off(&seq);
        self.run.failures = 0;
        self.error = None;
        if let Some(changed_at) = changed_at {
            self.run.figures.publish_latency = Some(now.mono.saturating_sub(changed_at));
        }
        let is_newest = self.desired.as_ref().is_some_and(|desired| Arc::ptr_eq(desired, &map));
        self.unpublished_since = self.unpublished_since.filter(|_| !is_newest).map(|since| since.max(as_of));
        self.run.visibility.published(seq, &map);
        self.run.published = Some(map);
    }

    pub(super) fn publication_done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        let Some(publication) = self.run.publication.take_if(|publication| publication.call == id) else {
            return false;
        };
        if matches!(outcome, Outcome::Done) {
            self.confirmed(now, publication.seq, out);
        } else {
            // Whether it took effect or not, or will later: nothing is assumed, the next head says it again.
            self.note(outcome);
            self.run.failures += 1;
            self.run.retry_at = now.mono + self.back_off(self.run.failures);
            self.run.sent_generation = None;
            self.run.force = true;
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
        let shown = |back: &ReadBack| back.map.as_ref().and_then(|map| map.keys().next()?.parse::<u64>().ok());
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
