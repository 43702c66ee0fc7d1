//! W0 to W2: from the claim of the id to the base from which this leader starts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Heads, Now, Phase, Run, Sent, Writer};
use crate::{
    Map,
    call::{Call, CallId, Outbox, Outcome},
    fetch::{Fetch, Progress},
    head::Head,
    limits::{MAX_EPOCH_LEAP, Timing},
    record::Position,
    records,
    runs::Layout,
    verify::{Cache, Verified},
};

/// W2: the search for the state from which this leader starts.
#[derive(Debug)]
pub(super) struct Search {
    fetch: Option<Fetch>,
    retry_at: Duration,
    /// Time between completed reads in a row that showed no base. Time in which reads fail does not count.
    missed: Duration,
    last_miss: Option<Duration>,
    /// The newest live head of this cluster under another id (its id was changed), if it is newer than the own one.
    former: Option<Arc<Head>>,
    /// Live heads with this cluster's UID under other ids: its own former ones, or those of another cluster with this
    /// UID. The latter advance.
    others: BTreeMap<Arc<str>, Stranger>,
    /// Whether this cluster created the exports service of an id, once that is known.
    ours: BTreeMap<Arc<str>, bool>,
    asking: Option<(CallId, Arc<str>)>,
    /// The call that reads the copy of the own head, which somebody hides.
    copy: Option<CallId>,
    /// The newest own head that was seen does not verify: the registry went back, and the one that is there is looked for.
    gave_up: Option<Position>,
    fallback: Option<Arc<Head>>,
    /// What could be read of roots that do not verify.
    salvage: Map,
}

/// A head with this cluster's UID that somebody else may have written: the own one with an epoch that the record does
/// not know (W1), or a live one under another id (W2, W9). If the record was lost or restored, or the id was changed,
/// nobody writes this head any more. If another process has the same UID, it goes on writing.
#[derive(Debug)]
pub(super) struct Stranger {
    position: Position,
    pub(super) advances: u32,
    /// Time between completed reads in a row that showed nothing above `position`.
    silent: Duration,
    read: Duration,
}

/// After this many advances, somebody is writing the stranger's head: one operation of a former leader may come late.
pub(super) const MUCH: u32 = 2;

impl Stranger {
    pub(super) fn new(position: Position, now: Duration) -> Self {
        Self { position, advances: 0, silent: Duration::ZERO, read: now }
    }

    /// Whether nobody writes there any more. A slow operation and a replica that lags can hide a heartbeat, so a writer
    /// that was seen at work is gone only when every other cluster regards it as stale.
    pub(super) fn is_silent(&self, timing: &Timing) -> bool {
        self.silent >= if self.advances >= MUCH { timing.lease } else { timing.stranger }
    }

    /// A completed read, and the position that it showed, if any.
    pub(super) fn watch(&mut self, position: Option<Position>, now: Duration, max_step: Duration) {
        match position {
            Some(position) if position > self.position => {
                *self = Self { advances: self.advances + 1, ..Self::new(position, now) };
            }
            _ => {
                self.silent += now.saturating_sub(self.read).min(max_step);
                self.read = now;
            }
        }
    }
}

impl Search {
    pub(super) fn new(now: Duration) -> Self {
        let (missed, salvage, ours, others) = Default::default();
        let (copy, last_miss, asking, former, gave_up, fallback, fetch) = Default::default();
        Self { fetch, retry_at: now, missed, last_miss, former, others, ours, asking, copy, gave_up, fallback, salvage }
    }

    /// The id under which somebody else writes in the name of this cluster.
    pub(super) fn contested_by(&self) -> Option<&Arc<str>> {
        self.others.iter().find(|(_, other)| other.advances > 0).map(|(id, _)| id)
    }

    /// The head whose state is looked for; `best` is the newest own one that was seen.
    fn sought(&self, best: Option<&Arc<Head>>) -> Option<Arc<Head>> {
        let own = if self.gave_up.is_some() { self.fallback.as_ref() } else { best };
        self.former.as_ref().or(own).cloned()
    }

    pub(super) fn waits_for(&self, id: CallId) -> bool {
        self.fetch.as_ref().is_some_and(|fetch| fetch.waits_for(id))
            || self.asking.as_ref().is_some_and(|(call, _)| *call == id)
            || self.copy == Some(id)
    }

    fn missed(&mut self, now: Duration, max_step: Duration) {
        if let Some(last) = self.last_miss.replace(now) {
            self.missed += now.saturating_sub(last).min(max_step);
        }
    }

    /// A read failed. The time until the next completed one does not count.
    pub(super) fn unread(&mut self) {
        self.last_miss = None;
    }
}

impl Writer {
    pub(super) fn claimed(&mut self, now: Now, outcome: &Outcome) {
        match outcome {
            Outcome::Claimed { created, shards } => {
                self.created |= created;
                self.shards = (*shards).max(1);
                self.refused = None;
                self.phase = Phase::Confirm { call: None };
            }
            Outcome::Taken { owner } => self.refuse(now, owner),
            Outcome::OldKey(why) => {
                self.error = Some(why.clone());
                self.phase = Phase::Claim { retry_at: now.mono + self.timing.refused_retry, call: None };
            }
            outcome => {
                self.note(outcome);
                self.phase = Phase::Claim { retry_at: now.mono + self.timing.retry_min, call: None };
            }
        }
    }

    /// Whether a head of the own id can come from this cluster: every epoch is stored in the record before a head
    /// contains it.
    pub(super) fn is_plausible(&self, head: &Head) -> bool {
        head.uid != self.me.uid || head.position.epoch <= self.recorded.max(self.epoch) + MAX_EPOCH_LEAP
    }

    pub(super) fn watch_stranger(&mut self, now: Now, own: Option<&Arc<Head>>) {
        let own = own.filter(|head| head.uid == self.me.uid && head.position.epoch > self.recorded);
        let position = own.map(|head| head.position);
        match (&mut self.stranger, position) {
            (Some(stranger), position) => stranger.watch(position, now.mono, self.timing.max_step),
            (None, Some(position)) => self.stranger = Some(Stranger::new(position, now.mono)),
            (None, None) => {}
        }
    }

    /// W0: the id belongs to another cluster. This shows at the start, or later if somebody purged the ledger.
    pub(super) fn refuse(&mut self, now: Now, owner: &str) {
        self.elect_again();
        self.refused = Some(owner.to_owned());
        self.phase = Phase::Claim { retry_at: now.mono + self.timing.refused_retry, call: None };
    }

    /// W2: reads the newest own root until it verifies.
    pub(super) fn verify(&mut self, now: Now, heads: &Heads, out: &mut Outbox) {
        let Phase::Verify(search) = &mut self.phase else { return };
        let best = self.best.as_ref().filter(|best| best.uid == self.me.uid).cloned();
        // Which of two heads of one epoch is newer shows only under one id. Under two, the one that did not leave.
        let newer = |head: &&Arc<Head>| match &best {
            Some(best) if best.is_live() => best.position < head.position,
            Some(best) => best.position.epoch <= head.position.epoch,
            None => true,
        };
        let others: BTreeMap<&Arc<str>, &Arc<Head>> = heads
            .iter()
            .filter(|(id, _)| **id != self.me.cluster && search.ours.get(*id) != Some(&false))
            .filter_map(|(id, head)| Some((id, head.as_ref().ok()?)))
            .filter(|(_, head)| head.uid == self.me.uid && head.is_live())
            .collect();
        if let Some(&seen) = others.values().max_by_key(|head| head.position)
            && search.former.as_ref().is_none_or(|former| former.position < seen.position)
        {
            search.former = Some(seen.clone());
        }
        let denied = |former: &Arc<Head>| search.ours.get(&former.cluster) == Some(&false);
        search.former = search.former.take().filter(|former| newer(&former) && !denied(former));
        let unasked = others.keys().copied().chain(search.former.as_ref().map(|former| &former.cluster));
        if let Some(id) = unasked.filter(|id| !search.ours.contains_key(*id)).min() {
            if search.asking.is_none() && now.mono >= search.retry_at {
                let call = out.call(Call::Creator { cluster: id.clone() });
                search.asking = Some((call, id.clone()));
            }
            return;
        }
        // A head under another id is from this cluster, which had that id before, or from another cluster with the same
        // UID.
        for (id, head) in &others {
            search.others.entry((*id).clone()).or_insert_with(|| Stranger::new(head.position, now.mono));
        }
        for (id, other) in &mut search.others {
            other.watch(others.get(id).map(|head| head.position), now.mono, self.timing.max_step);
        }
        if search.others.values().any(|other| !other.is_silent(&self.timing)) {
            return;
        }
        let own = heads.get(&self.me.cluster).and_then(|head| head.as_ref().ok());
        let own = own.filter(|head| head.uid == self.me.uid && head.is_live());
        if own.is_none() && !self.keys.is_empty() && search.copy.is_none() && now.mono >= search.retry_at {
            let cluster = self.me.cluster.clone();
            search.copy = Some(out.call(Call::Copy { cluster }));
        }
        if let Some(gave_up) = search.gave_up {
            search.fallback = own.filter(|head| head.position < gave_up).cloned().or(search.fallback.take());
        }
        let wanted = search.sought(best.as_ref());
        if wanted.is_none() {
            search.missed(now.mono, self.timing.max_step);
        }
        let mut gives_up = search.missed >= self.timing.verify_limit;
        if let Some(head) = wanted.as_ref().filter(|_| gives_up && search.former.is_none() && search.gave_up.is_none())
            && let Some(there) = own.filter(|there| there.position < head.position)
        {
            search.gave_up = Some(head.position);
            search.fallback = Some(there.clone());
            (search.fetch, search.missed, search.last_miss) = Default::default();
            gives_up = false;
        }
        match search.sought(best.as_ref()) {
            Some(head) if !head.is_live() => {
                self.start(now, Arc::default(), Layout::empty(head.root.shards));
                self.run.written = head.written;
            }
            None if self.created || gives_up => self.start_baseless(now, Arc::default()),
            Some(head) if gives_up => {
                let salvaged = head.delta.apply(&search.salvage);
                let records = salvaged.iter().filter(|(key, _)| records::is_claim(key));
                let records = Arc::new(records.map(|(key, value)| (key.clone(), value.clone())).collect());
                self.start_baseless(now, records);
                self.run.written = head.written;
            }
            None => {}
            Some(head) => {
                let reads = |fetch: &Fetch| fetch.root == head.root && *fetch.cluster() == head.cluster;
                if search.fetch.as_ref().is_some_and(reads) || now.mono < search.retry_at {
                    return;
                }
                let mut started = Fetch::new(head.cluster.clone(), head.root.clone(), Cache::default());
                let progress = started.advance(out);
                search.fetch = Some(started);
                self.searched(now, progress);
            }
        }
    }

    pub(super) fn search_done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) {
        let Phase::Verify(search) = &mut self.phase else { return };
        if let Some((_, cluster)) = search.asking.take_if(|(call, _)| *call == id) {
            match outcome {
                Outcome::Creator(creator) => {
                    search.ours.insert(cluster, creator.as_ref().is_some_and(|creator| *creator.by == *self.me.uid));
                }
                outcome => {
                    search.unread();
                    search.retry_at = now.mono + self.timing.retry_min;
                    self.note(outcome);
                }
            }
            return;
        }
        if search.copy.take_if(|call| *call == id).is_some() {
            search.retry_at = now.mono + self.timing.retry_min;
            match outcome {
                Outcome::Copy(Some(head))
                    if head.uid == self.me.uid && head.signer.is_some_and(|signer| self.keys.contains(&signer)) =>
                {
                    if self.best.as_ref().is_none_or(|best| best.position < head.position) {
                        self.best = Some(head.clone());
                    }
                    // W6, as of a head that can be seen: the record was lost, and readers would refuse what is below.
                    if self.is_plausible(head) && head.position.epoch >= self.epoch {
                        self.elect_again();
                    }
                }
                Outcome::Copy(_) => {}
                outcome => {
                    search.unread();
                    self.note(outcome);
                }
            }
            return;
        }
        let Some(fetch) = &mut search.fetch else { return };
        let progress = fetch.on_outcome(outcome, out);
        if let Progress::Unread(_) = progress {
            self.note(outcome);
        }
        self.searched(now, progress);
    }

    fn searched(&mut self, now: Now, progress: Progress) {
        let Phase::Verify(search) = &mut self.phase else { return };
        match progress {
            Progress::Waiting => {}
            Progress::Unread(_) => {
                search.unread();
                search.fetch = None;
                search.retry_at = now.mono + self.timing.backoff_min / 2;
            }
            Progress::Failed(_) => {
                search.missed(now.mono, self.timing.max_step);
                if let Some(fetch) = search.fetch.take() {
                    // What the newer one said counts.
                    let newer = std::mem::replace(&mut search.salvage, fetch.salvage());
                    search.salvage.extend(newer.iter().map(|(key, value)| (key.clone(), value.clone())));
                }
                search.retry_at = now.mono + self.timing.backoff_min / 2;
            }
            Progress::Complete(verified) => {
                let Some(fetch) = search.fetch.take() else { return };
                let best = self.best.as_ref().filter(|best| best.uid == self.me.uid);
                let read = |head: &Arc<Head>| head.root == verified.layout.root() && *fetch.cluster() == head.cluster;
                let Some(head) = search.sought(best).filter(read) else { return };
                let Verified { layout, map, cache: _ } = *verified;
                let said = Arc::new(head.delta.apply(&map));
                if head.delta.check().is_err() || !head.means(&self.me.clusterset, &said) {
                    search.missed(now.mono, self.timing.max_step);
                    search.salvage = map;
                    search.retry_at = now.mono + self.timing.backoff_min / 2;
                    return;
                }
                if head.cluster != self.me.cluster {
                    // Those pages belong to another id, so everything is written again with their content.
                    self.start_baseless(now, said);
                    self.run.written = head.written;
                    return;
                }
                self.start(now, Arc::new(map), layout);
                (self.run.inherited, self.run.written) = (said.clone(), head.written);
                self.run.sent = Some(Sent {
                    map: said,
                    delta: head.delta.clone(),
                    generation: 0,
                    as_of: Duration::ZERO,
                    summary: head.summary,
                });
            }
        }
    }

    fn start(&mut self, now: Now, base: Arc<Map>, layout: Layout) {
        self.shards = self.shards.max(layout.shards);
        self.run = Run::new(base, layout, now.mono, &self.timing);
        if self.created {
            self.run.garbage.created(0, now.mono);
        }
        self.created = false;
        self.error = None;
        self.phase = Phase::Run;
    }

    /// No head is sent before a full flush. `inherited` is what is nevertheless known of the previous state.
    fn start_baseless(&mut self, now: Now, inherited: Arc<Map>) {
        let shards = self.best.as_ref().filter(|best| best.uid == self.me.uid).map_or(1, |best| best.root.shards);
        self.start(now, Arc::default(), Layout::empty(shards));
        self.run.inherited = inherited;
        self.run.baseless = true;
    }
}
