//! W2: the search for the state from which this leader starts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    Heads, Leader, Now,
    candidate::Stranger,
    publish::Sent,
    run::{Base, Epoch, Run, Source},
};
use crate::{
    Map,
    call::{Call, CallId, Outbox, Outcome},
    claims,
    fetch::{Fetch, Progress},
    head::Head,
    record::Position,
    runs::Layout,
    verify::{Cache, Verified},
};

/// The search of one epoch.
#[derive(Debug)]
pub(super) struct Search {
    pub epoch: Epoch,
    /// W0 has just created the service, so there is nothing to wait for.
    pub created: bool,
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
    gave_up: Option<(Position, Option<Arc<Head>>)>,
    /// What could be read of roots that do not verify.
    salvage: Map,
}

/// What came of an input.
#[derive(Debug)]
pub(super) enum Found {
    /// The search goes on.
    Nothing,
    /// A later epoch of this cluster.
    Later,
    /// What to start from.
    Base(Box<Run>),
}

type Live<'a> = BTreeMap<&'a Arc<str>, &'a Arc<Head>>;

impl Search {
    pub(super) fn new(epoch: Epoch, created: bool, now: Duration) -> Self {
        let (fetch, missed, last_miss, former, others, ours) = Default::default();
        let (asking, copy, gave_up, salvage) = Default::default();
        let retry_at = now;
        Self {
            epoch,
            created,
            fetch,
            retry_at,
            missed,
            last_miss,
            former,
            others,
            ours,
            asking,
            copy,
            gave_up,
            salvage,
        }
    }

    /// The id under which somebody else writes in the name of this cluster.
    pub(super) fn contested_by(&self) -> Option<&Arc<str>> {
        self.others.iter().find(|(_, other)| other.advances > 0).map(|(id, _)| id)
    }

    /// The head whose state is looked for; `best` is the newest own one that was seen.
    fn sought(&self, best: Option<&Arc<Head>>) -> Option<Arc<Head>> {
        let own = if let Some((_, fallback)) = &self.gave_up { fallback.as_ref() } else { best };
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

    /// A completed read of all heads: reads the newest own root until it verifies.
    pub(super) fn observe(&mut self, leader: &mut Leader, now: Now, heads: &Heads, out: &mut Outbox) -> Found {
        let others: Live<'_> = heads
            .iter()
            .filter(|(id, _)| **id != leader.me.cluster && self.ours.get(*id) != Some(&false))
            .filter_map(|(id, head)| Some((id, head.as_ref().ok()?)))
            .filter(|(_, head)| head.uid == leader.me.uid && head.is_live())
            .collect();
        self.choose_former(leader.best.as_ref(), &others);
        if self.ask(now, &others, out) || self.contested(leader, now, &others) {
            return Found::Nothing;
        }
        let own = heads.get(&leader.me.cluster).and_then(|head| head.as_ref().ok());
        let own = own.filter(|head| head.uid == leader.me.uid && head.is_live());
        if own.is_none() && !leader.keys.is_empty() && self.copy.is_none() && now.mono >= self.retry_at {
            self.copy = Some(out.call(Call::Copy { cluster: leader.me.cluster.clone() }));
        }
        let gives_up = self.gives_up(leader, now, own);
        match self.sought(leader.best.as_ref()) {
            Some(head) if !head.is_live() => {
                let layout = Layout::empty(head.root.shards);
                self.found(leader, now, Base::new(Arc::default(), layout), head.written)
            }
            None if self.created || gives_up => self.found_nothing(leader, now, Source::default()),
            Some(head) if gives_up => {
                let salvaged = head.delta.apply(&self.salvage);
                let claims = salvaged.iter().filter(|(key, _)| claims::is_claim(key));
                let map = Arc::new(claims.map(|(key, value)| (key.clone(), value.clone())).collect());
                self.found_nothing(leader, now, Source { map, written: head.written })
            }
            None => Found::Nothing,
            Some(head) => {
                let reads = |fetch: &Fetch| fetch.root == head.root && *fetch.cluster() == head.cluster;
                if self.fetch.as_ref().is_some_and(reads) || now.mono < self.retry_at {
                    return Found::Nothing;
                }
                let mut started = Fetch::new(head.cluster.clone(), head.root.clone(), Cache::default());
                let progress = started.advance(out);
                self.fetch = Some(started);
                self.read(leader, now, progress)
            }
        }
    }

    /// Which of the heads under other ids may be the one to start from.
    fn choose_former(&mut self, best: Option<&Arc<Head>>, others: &Live<'_>) {
        // Which of two heads of one epoch is newer shows only under one id. Under two, the one that did not leave.
        let newer = |head: &&Arc<Head>| match best {
            Some(best) if best.is_live() => best.position < head.position,
            Some(best) => best.position.epoch <= head.position.epoch,
            None => true,
        };
        if let Some(&seen) = others.values().max_by_key(|head| head.position)
            && self.former.as_ref().is_none_or(|former| former.position < seen.position)
        {
            self.former = Some(seen.clone());
        }
        let denied = |former: &Arc<Head>| self.ours.get(&former.cluster) == Some(&false);
        self.former = self.former.take().filter(|former| newer(&former) && !denied(former));
    }

    /// Asks who created the services of the other ids, one by one. Returns whether that is not known of all.
    fn ask(&mut self, now: Now, others: &Live<'_>, out: &mut Outbox) -> bool {
        let all = others.keys().copied().chain(self.former.as_ref().map(|former| &former.cluster));
        let Some(id) = all.filter(|id| !self.ours.contains_key(*id)).min() else { return false };
        if self.asking.is_none() && now.mono >= self.retry_at {
            let call = out.call(Call::Creator { cluster: id.clone() });
            self.asking = Some((call, id.clone()));
        }
        true
    }

    /// Whether somebody may write under another id. A head there is from this cluster, which had that id before, or from
    /// another cluster with the same UID.
    fn contested(&mut self, leader: &Leader, now: Now, others: &Live<'_>) -> bool {
        for (id, head) in others {
            self.others.entry((*id).clone()).or_insert_with(|| Stranger::new(head.position, now.mono));
        }
        for (id, other) in &mut self.others {
            other.watch(others.get(id).map(|head| head.position), now.mono, leader.timing.max_step);
        }
        self.others.values().any(|other| !other.is_silent(&leader.timing))
    }

    /// Whether completed reads have shown no base for so long that the base is nothing. An older own head is looked for first.
    fn gives_up(&mut self, leader: &Leader, now: Now, own: Option<&Arc<Head>>) -> bool {
        if let Some((gave_up, fallback)) = &mut self.gave_up
            && let Some(older) = own.filter(|head| head.position < *gave_up)
        {
            *fallback = Some(older.clone());
        }
        let wanted = self.sought(leader.best.as_ref());
        if wanted.is_none() {
            self.missed(now.mono, leader.timing.max_step);
        }
        let gives_up = self.missed >= leader.timing.verify_limit;
        if let Some(head) = wanted.filter(|_| gives_up && self.former.is_none() && self.gave_up.is_none())
            && let Some(there) = own.filter(|there| there.position < head.position)
        {
            self.gave_up = Some((head.position, Some(there.clone())));
            (self.fetch, self.missed, self.last_miss) = Default::default();
            return false;
        }
        gives_up
    }

    /// The outcome of a call of this search.
    pub(super) fn done(
        &mut self,
        leader: &mut Leader,
        now: Now,
        id: CallId,
        outcome: &Outcome,
        out: &mut Outbox,
    ) -> Found {
        if let Some((_, cluster)) = self.asking.take_if(|(call, _)| *call == id) {
            if let Outcome::Creator(creator) = outcome {
                self.ours.insert(cluster, creator.as_ref().is_some_and(|creator| *creator.by == *leader.me.uid));
            } else {
                self.unread();
                self.retry_at = now.mono + leader.timing.retry_min;
                leader.note(outcome);
            }
            return Found::Nothing;
        }
        if self.copy.take_if(|call| *call == id).is_some() {
            return self.copied(leader, now, outcome);
        }
        let Some(fetch) = &mut self.fetch else { return Found::Nothing };
        let progress = fetch.on_outcome(outcome, out);
        if let Progress::Unread(_) = progress {
            leader.note(outcome);
        }
        self.read(leader, now, progress)
    }

    fn copied(&mut self, leader: &mut Leader, now: Now, outcome: &Outcome) -> Found {
        self.retry_at = now.mono + leader.timing.retry_min;
        match outcome {
            Outcome::Copy(Some(head))
                if head.uid == leader.me.uid && head.signer.is_some_and(|signer| leader.keys.contains(&signer)) =>
            {
                if leader.best.as_ref().is_none_or(|best| best.position < head.position) {
                    leader.best = Some(head.clone());
                }
                // W6, as of a head that can be seen: the record was lost, and readers would refuse what is below.
                let epoch = self.epoch.number;
                if leader.is_plausible(head, epoch) && head.position.epoch >= epoch {
                    return Found::Later;
                }
            }
            Outcome::Copy(_) => {}
            outcome => {
                self.unread();
                leader.note(outcome);
            }
        }
        Found::Nothing
    }

    fn read(&mut self, leader: &Leader, now: Now, progress: Progress) -> Found {
        match progress {
            Progress::Waiting => return Found::Nothing,
            Progress::Unread(_) => {
                self.unread();
                self.fetch = None;
            }
            Progress::Failed(_) => {
                self.missed(now.mono, leader.timing.max_step);
                if let Some(fetch) = self.fetch.take() {
                    // What the newer one said counts.
                    let newer = std::mem::replace(&mut self.salvage, fetch.salvage());
                    self.salvage.extend(newer.iter().map(|(key, value)| (key.clone(), value.clone())));
                }
            }
            Progress::Complete(verified) => {
                let Some(fetch) = self.fetch.take() else { return Found::Nothing };
                let read = |head: &Arc<Head>| head.root == verified.layout.root() && *fetch.cluster() == head.cluster;
                let Some(head) = self.sought(leader.best.as_ref()).filter(read) else { return Found::Nothing };
                let Verified { layout, map, cache: _ } = *verified;
                let said = Arc::new(head.delta.apply(&map));
                if head.delta.check().is_ok() && head.means(&leader.me.clusterset, &said) {
                    return self.verified(leader, now, &head, Base::new(Arc::new(map), layout), said);
                }
                self.missed(now.mono, leader.timing.max_step);
                self.salvage = map;
            }
        }
        self.retry_at = now.mono + leader.timing.backoff_min / 2;
        Found::Nothing
    }

    /// The root of `head` is `base`, and with its delta it is `said`.
    fn verified(&self, leader: &Leader, now: Now, head: &Head, base: Base, said: Arc<Map>) -> Found {
        let source = Source { map: said.clone(), written: head.written };
        if head.cluster != leader.me.cluster {
            // Those pages belong to another id, so everything is written again with their content.
            return self.found_nothing(leader, now, source);
        }
        let (delta, summary) = (head.delta.clone(), head.summary);
        let sent = Sent { map: said, delta, generation: 0, as_of: Duration::ZERO, summary };
        self.start(leader, now, base, source, Some(sent))
    }

    /// The state of a head that left.
    fn found(&self, leader: &Leader, now: Now, base: Base, written: u64) -> Found {
        let source = Source { map: base.map.clone(), written };
        self.start(leader, now, base, source, None)
    }

    /// No head is sent before a full flush. `source` is what is nevertheless known of the previous state.
    fn found_nothing(&self, leader: &Leader, now: Now, source: Source) -> Found {
        let shards = leader.best.as_ref().map_or(1, |best| best.root.shards);
        self.start(leader, now, Base::nothing(shards), source, None)
    }

    fn start(&self, leader: &Leader, now: Now, base: Base, source: Source, sent: Option<Sent>) -> Found {
        let mut run = Run::new(self.epoch, base, source, sent, now.mono, &leader.timing);
        if self.created {
            run.garbage.created(0, now.mono);
        }
        Found::Base(Box::new(run))
    }
}
