//! W3 and W4: one upsert of the head carries what changed since the base.

use std::{sync::Arc, time::Duration};

use super::{Now, Writer};
use crate::ledger::{
    Map,
    call::{Call, CallId, Outbox, Outcome},
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
}

/// The head operation in flight.
#[derive(Debug)]
pub(super) struct Publication {
    call: CallId,
    map: Arc<Map>,
    /// When the change came that it carries, if it carries one.
    changed_at: Option<Duration>,
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
        let fits = self.head(now, u64::MAX, self.run.tree.root.clone(), delta.clone()).fits(&self.limits);
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
            self.run.sent = Some(Sent { map: desired, delta, generation: self.generation });
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
        let (map, delta) = (sent.map.clone(), sent.delta.clone());
        self.run.seq += 1;
        self.run.force = false;
        self.run.sent_at = Some(now.mono);
        self.run.figures.head_writes += 1;
        let head = Arc::new(self.head(now, self.run.seq, self.run.tree.root.clone(), delta));
        self.run.garbage.refer(&head.root, now.mono);
        let call = out.call(Call::PutHead { head });
        self.run.publication = Some(Publication { call, map, changed_at });
    }

    pub(super) fn publication_done(&mut self, now: Now, id: CallId, outcome: &Outcome) -> bool {
        let Some(publication) = self.run.publication.take_if(|publication| publication.call == id) else {
            return false;
        };
        if matches!(outcome, Outcome::Done) {
            self.run.failures = 0;
            self.error = None;
            if let Some(changed_at) = publication.changed_at {
                self.run.figures.publish_latency = Some(now.mono.saturating_sub(changed_at));
            }
            self.run.published = Some(publication.map);
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
