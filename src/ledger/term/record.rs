//! The record in Kubernetes: what a term loads from it, and what it waits for to be stored.

use std::{borrow::Cow, sync::Arc, time::Duration};

use super::Term;
use crate::{
    call::{Call, CallId, Failure, Outcome},
    claims, forgotten,
    joining::{self, Standing},
    news,
    record::{Member, Record, ResourceVersion},
    trust::Mode,
    writer::{Inherited, Now},
};

/// What is known about the stored record, and the one call on it that is in flight.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    pub(super) stored: Option<(Record, ResourceVersion)>,
    /// The last known content, while `stored` is in doubt.
    pub(super) before: Option<Record>,
    pub(super) call: Option<RecordCall>,
    pub(super) retry_at: Duration,
    pub(super) failures: u32,
    /// Number of answers in a row that came late.
    pub(super) late: u32,
    pub(super) next_poll: Duration,
    pub(super) error: Option<String>,
    /// The call that marks a former membership as left, and that membership.
    pub(super) departing: Option<(CallId, Member)>,
    pub(super) depart_at: Duration,
    /// How many of these calls failed.
    pub(super) failed_departures: usize,
    /// Former memberships that are marked as left; the record must follow.
    pub(super) departed: Vec<Member>,
}

#[derive(Debug)]
pub(super) struct RecordCall {
    pub(super) id: CallId,
    pub(super) made: Duration,
    /// What is being stored; `None` while it is being loaded.
    pub(super) storing: Option<Record>,
}

impl Term {
    /// Leaves a former ClusterSet, once this cluster's exports can be read in the current one.
    pub(super) fn depart(&mut self, now: Now) {
        let Some((Record { former, .. }, _)) = &self.keeper.stored else { return };
        // One that cannot be ended stops no other: the role of this cluster may have no rights there any more.
        let left: Vec<_> = former.iter().filter(|former| !self.keeper.departed.contains(former)).collect();
        let next = self.keeper.failed_departures.checked_rem(left.len()).map(|next| left[next]);
        let Some(from) = next.filter(|_| self.keeper.departing.is_none() && self.writer.is_settled(now)) else {
            return;
        };
        if now.mono < self.keeper.depart_at {
            return self.out.wake_at(self.keeper.depart_at);
        }
        self.keeper.departing = Some((self.out.call(Call::Depart { from: from.clone() }), from.clone()));
    }

    /// Adds what was registered before this cluster was in a ClusterSet, which only the record in Kubernetes contains. Leaves
    /// out what the former leader said of other clusters.
    pub(super) fn with_standalone(&self, mut inherited: Inherited) -> Inherited {
        let kept = self.keeper.stored.as_ref().map(|(record, _)| claims::of_stored(&record.registrations));
        let kept = kept.unwrap_or_default();
        let unknown = kept.iter().filter(|(key, _)| !inherited.map.contains_key(*key));
        let unknown: Vec<_> = unknown.map(|(key, value)| (key.clone(), value.clone())).collect();
        if !unknown.is_empty() {
            Arc::make_mut(&mut inherited.map).extend(unknown);
        }
        Inherited { map: joining::without(forgotten::without(inherited.map)), ..inherited }
    }

    /// Whether all registrations of `record` are published, or no longer wanted.
    fn has_standalone(&self, record: &Record) -> bool {
        let (Some(published), Some(desired)) = (self.writer.published(), self.writer.desired()) else { return false };
        let kept = claims::of_stored(&record.registrations);
        kept.keys().all(|key| published.contains_key(key) || !desired.contains_key(key))
    }

    /// Handles the record with one call at a time: loads it when it is in doubt, and stores what writer and reader wait
    /// for.
    pub(super) fn keep(&mut self, now: Now) {
        if self.keeper.call.is_some() {
            return;
        }
        if now.mono < self.keeper.retry_at {
            return self.out.wake_at(self.keeper.retry_at);
        }
        let Some((record, version)) = &self.keeper.stored else {
            return self.load_record(now);
        };
        let mut wanted = self.updated(record);
        // What came by stream applies first, and the record follows. A deposed leader would mark as known what its successor,
        // which has read the record, does not know.
        let speaks = self.writer.own_state().is_some();
        if let Some(stream) = self.stream.as_ref().filter(|stream| speaks && !stream.is_recorded(&wanted.streamed)) {
            if now.mono >= stream.record_due() || *wanted != *record {
                wanted.to_mut().streamed = stream.record();
            } else {
                self.out.wake_at(stream.record_due());
            }
        }
        // After a restart, what is proposed may already be stored. It applies only if it still is: another process of this
        // cluster may have stored something newer since.
        let stored_already = self.readers.proposal().next().is_some();
        match wanted {
            Cow::Owned(wanted) if wanted != *record => {
                let id =
                    self.out.call(Call::StoreRecord { record: Box::new(wanted.clone()), expected: version.clone() });
                self.keeper.call = Some(RecordCall { id, made: now.mono, storing: Some(wanted) });
            }
            _ => {
                // Not before nothing is left to be stored: that a record can be read does not mean that it can be stored.
                (self.keeper.failures, self.keeper.error) = (0, None);
                if stored_already || now.mono >= self.keeper.next_poll {
                    self.load_record(now);
                } else {
                    self.out.wake_at(self.keeper.next_poll);
                }
            }
        }
    }

    /// The record with what writer and reader wait for. It is copied only if something changes: with many clusters it is
    /// large, and this is asked at each message of each of them.
    fn updated<'a>(&self, record: &'a Record) -> Cow<'a, Record> {
        let mut wanted = Cow::Borrowed(record);
        let is_bound = record.member.as_ref() == Some(&self.settings.member)
            && record.home.as_deref() == self.settings.home.as_deref();
        if !is_bound || !record.accepted.values().all(|accepted| self.readers.reads_from(accepted)) {
            wanted = Cow::Owned(self.bound(record.clone()));
        }
        let held = self.writer.holds_epoch();
        if held > wanted.epoch {
            wanted.to_mut().epoch = held;
        }
        if let Some(epoch) = self.writer.wants_epoch(record.epoch) {
            let wanted = wanted.to_mut();
            wanted.epoch = epoch;
            // A new cluster has no head that is not signed.
            let since = if record.epoch == 0 { 0 } else { epoch };
            wanted.signed_since =
                (self.settings.trust.mode != Mode::Open).then(|| record.signed_since.unwrap_or(since));
            wanted.signs = wanted.signs.filter(|_| wanted.signed_since.is_some());
        }
        if let Some(key) = self.writer.signs().filter(|key| wanted.signs != Some(*key)) {
            wanted.to_mut().signs = Some(key);
        }
        if let Some(at) = self.dated.at.filter(|at| wanted.created.get(&self.settings.member.cluster) != Some(at)) {
            wanted.to_mut().created.insert(self.settings.member.cluster.clone(), at);
        }
        match &self.standing.value {
            Some(Standing::Joined) if wanted.joined != Some(true) && self.settings.trust.mode != Mode::Open => {
                wanted.to_mut().joined = Some(true);
            }
            Some(Standing::Rejected { .. }) if wanted.joined != Some(false) => wanted.to_mut().joined = Some(false),
            _ => {}
        }
        let departed = |former: &Member| self.keeper.departed.contains(former);
        if wanted.former.iter().any(departed) {
            wanted.to_mut().former.retain(|former| !departed(former));
        }
        if !wanted.registrations.is_empty() && self.has_standalone(record) {
            wanted.to_mut().registrations.clear();
        }
        for id in self.readers.forgettable() {
            if wanted.accepted.contains_key(id) {
                wanted.to_mut().accepted.remove(id);
            }
        }
        for (id, accepted) in self.readers.proposal() {
            if wanted.accepted.get(id) != Some(accepted) {
                wanted.to_mut().accepted.insert(id.to_owned(), accepted.clone());
            }
        }
        wanted
    }

    /// The record with which this leader continues. What it knows of registries that are no longer read is over.
    fn bound(&self, record: Record) -> Record {
        let mut record = record.bound_to(&self.settings.member).at_home(self.settings.home.as_deref());
        record.accepted.retain(|_, accepted| self.readers.reads_from(accepted));
        record
    }

    fn load_record(&mut self, now: Now) {
        let id = self.out.call(Call::LoadRecord);
        self.keeper.call = Some(RecordCall { id, made: now.mono, storing: None });
    }

    pub(super) fn record_done(&mut self, now: Now, outcome: &Outcome) {
        let Some(RecordCall { made, storing, .. }) = self.keeper.call.take() else { return };
        // A late answer shows an old content: another process of this cluster may have stored and applied something
        // newer since. The positions count when they are read again.
        let late = now.mono.saturating_sub(made) > self.settings.timing.tick * 2u32.pow(self.keeper.late.min(4));
        // An API server that is always slow must not stop everything.
        self.keeper.late = if late { self.keeper.late + 1 } else { 0 };
        match (outcome, storing) {
            (Outcome::Loaded { record, version }, None) => {
                self.keeper.next_poll = now.mono + self.settings.timing.record_poll;
                let before = self.keeper.stored.take().map(|(record, _)| record).or(self.keeper.before.take());
                let before = before.map(|record| self.bound(record));
                let Record { accepted, streamed, .. } = self.bound(Record::clone(record));
                // Another process changed it: a command, or one whose answer was lost.
                self.news.extend(before.iter().flat_map(|before| news::between(&before.accepted, &accepted)));
                self.readers.restore(before.as_ref().map(|before| &before.accepted), &accepted);
                if let Some(stream) = &mut self.stream {
                    stream.restore(made, before.as_ref().map(|before| &before.streamed), &streamed);
                }
                if !late {
                    self.readers.commit(now, &accepted);
                }
                self.writer.recorded(record.epoch);
                self.writer.superseded(record.epoch);
                // Somebody deleted it. What it said goes back with the epoch.
                let kept = before.filter(|_| version.is_none());
                let kept = kept.map(|before| Record { epoch: record.epoch, leaving: record.leaving, ..before });
                self.keeper.stored = Some((kept.unwrap_or_else(|| Record::clone(record)), version.clone()));
                let leaving = self.bound(Record::clone(record)).leaving;
                self.writer.set_leaving(now, leaving, &mut self.out);
            }
            (Outcome::Stored { version }, Some(record)) => {
                self.keeper.failures = 0;
                self.keeper.error = None;
                let before = self.keeper.stored.take().map(|(record, _)| record).unwrap_or_default();
                self.news.extend(news::between(&before.accepted, &record.accepted));
                let before = before.epoch;
                if !late {
                    self.readers.commit(now, &record.accepted);
                }
                self.readers.forget(&record.accepted);
                self.stream.iter_mut().for_each(|stream| stream.stored(made));
                self.writer.recorded(record.epoch);
                if record.epoch > before {
                    self.writer.epoch_stored(now, record.epoch);
                }
                self.keeper.stored = Some((record, version.clone()));
            }
            (Outcome::Conflict, _) => self.doubt(),
            (outcome, _) => {
                // It may have been stored, or not, or it may still be.
                self.doubt();
                self.keeper.failures += 1;
                let factor = 2u32.pow(self.keeper.failures.min(6) - 1);
                self.keeper.retry_at =
                    now.mono + (self.settings.timing.retry_min * factor).min(self.settings.timing.retry_max);
                if let Outcome::Failed(Failure { message }) = outcome {
                    self.keeper.error = Some(message.clone());
                }
            }
        }
    }

    fn doubt(&mut self) {
        if let Some((record, _)) = self.keeper.stored.take() {
            self.keeper.before = Some(record);
        }
    }
}
