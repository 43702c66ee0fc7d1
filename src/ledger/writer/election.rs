//! W0 to W2: from the claim of the id to the base from which this leader starts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Heads, Now, Phase, Run, Sent, Writer};
use crate::ledger::{
    Map,
    call::{CallId, Outbox, Outcome},
    fetch::{Fetch, Progress},
    head::Head,
    limits::MAX_EPOCH_LEAP,
    record::Position,
    tree::{Cache, Tree, Verified},
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
    /// Whether this cluster created the exports service of an id, once that is known.
    ours: BTreeMap<Arc<str>, bool>,
    asking: Option<(CallId, Arc<str>)>,
    /// The readable part of a root that does not verify.
    salvage: Map,
}

/// W1: an own head whose epoch the record does not contain. Either the record was lost or restored, or another cluster
/// has the same identity, and then its head advances.
#[derive(Debug)]
pub(super) struct Stranger {
    position: Position,
    pub(super) advances: bool,
    /// Time between completed reads in a row that showed nothing above `position`.
    pub(super) silent: Duration,
    read: Duration,
}

impl Search {
    pub(super) fn new(now: Duration) -> Self {
        let (missed, salvage, ours) = Default::default();
        Self { fetch: None, retry_at: now, missed, last_miss: None, former: None, ours, asking: None, salvage }
    }

    pub(super) fn waits_for(&self, id: CallId) -> bool {
        self.fetch.as_ref().is_some_and(|fetch| fetch.waits_for(id))
            || self.asking.as_ref().is_some_and(|(call, _)| *call == id)
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
        let step = |since: Duration| now.mono.saturating_sub(since).min(self.timing.max_step);
        match (&mut self.stranger, own) {
            (Some(stranger), Some(head)) if head.position > stranger.position => {
                *stranger =
                    Stranger { position: head.position, advances: true, silent: Duration::ZERO, read: now.mono };
            }
            (Some(stranger), _) => {
                stranger.silent += step(stranger.read);
                stranger.read = now.mono;
            }
            (None, Some(head)) => {
                let (position, silent, read) = (head.position, Duration::ZERO, now.mono);
                self.stranger = Some(Stranger { position, advances: false, silent, read });
            }
            (None, None) => {}
        }
    }

    /// W0: the id belongs to another cluster, as it turned out at the start or, after somebody purged the ledger,
    /// later.
    pub(super) fn refuse(&mut self, now: Now, owner: &str) {
        self.elect_again();
        self.refused = Some(owner.to_owned());
        self.phase = Phase::Claim { retry_at: now.mono + self.timing.refused_retry, call: None };
    }

    /// W2: reads the newest own root until it verifies.
    pub(super) fn verify(&mut self, now: Now, heads: &Heads, out: &mut Outbox) {
        let Phase::Verify(search) = &mut self.phase else { return };
        let best = self.best.as_ref().filter(|best| best.uid == self.me.uid).cloned();
        let newer = |head: &&Arc<Head>| best.as_ref().is_none_or(|best| best.position < head.position);
        let seen = heads
            .iter()
            .filter(|(id, _)| **id != self.me.cluster && search.ours.get(*id) != Some(&false))
            .filter_map(|(_, head)| head.as_ref().ok())
            .filter(|head| head.uid == self.me.uid && head.is_live())
            .max_by_key(|head| head.position);
        if let Some(seen) = seen
            && search.former.as_ref().is_none_or(|former| former.position < seen.position)
        {
            search.former = Some(seen.clone());
        }
        search.former = search.former.take().filter(|former| newer(&former));
        if let Some(former) = &search.former {
            match search.ours.get(&former.cluster) {
                None => {
                    if search.asking.is_none() && now.mono >= search.retry_at {
                        let call = out.call(crate::ledger::call::Call::Creator { cluster: former.cluster.clone() });
                        search.asking = Some((call, former.cluster.clone()));
                    }
                    return;
                }
                Some(false) => search.former = None,
                Some(true) => {}
            }
        }
        let wanted = search.former.clone().or_else(|| best.clone());
        if wanted.is_none() {
            search.missed(now.mono, self.timing.max_step);
        }
        let gives_up = search.missed >= self.timing.verify_limit;
        match wanted {
            Some(head) if !head.is_live() => {
                let tree = Tree::empty(head.root.shards);
                self.start(now, Arc::default(), tree);
            }
            None if self.created || gives_up => self.start_baseless(now, Arc::default()),
            Some(head) if gives_up => {
                let salvaged = head.delta.apply(&search.salvage);
                let records = salvaged.into_iter().filter(|(key, _)| key.starts_with('!'));
                let records = Arc::new(records.collect());
                self.start_baseless(now, records);
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
                    search.ours.insert(cluster, creator.as_deref() == Some(&*self.me.uid));
                }
                outcome => {
                    search.unread();
                    search.retry_at = now.mono + self.timing.retry_min;
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
                    search.salvage = fetch.salvage();
                }
                search.retry_at = now.mono + self.timing.backoff_min / 2;
            }
            Progress::Complete(verified) => {
                let Some(fetch) = search.fetch.take() else { return };
                let best = self.best.as_ref().filter(|best| best.uid == self.me.uid);
                let head = search.former.as_ref().or(best);
                let read = |head: &&Arc<Head>| head.root == verified.tree.root && *fetch.cluster() == head.cluster;
                let Some(head) = head.filter(read).cloned() else { return };
                let Verified { tree, map, cache: _ } = *verified;
                if head.delta.check().is_err() {
                    return search.missed(now.mono, self.timing.max_step);
                }
                let said = Arc::new(head.delta.apply(&map));
                if head.cluster != self.me.cluster {
                    // Those pages belong to another id, so everything is written again with their content.
                    return self.start_baseless(now, said);
                }
                self.start(now, Arc::new(map), tree);
                self.run.inherited = said.clone();
                self.run.sent = Some(Sent { map: said, delta: head.delta.clone(), generation: 0 });
            }
        }
    }

    fn start(&mut self, now: Now, base: Arc<Map>, tree: Tree) {
        self.shards = self.shards.max(tree.root.shards);
        self.run = Run::new(base, tree, now.mono, &self.timing);
        self.created = false;
        self.error = None;
        self.phase = Phase::Run;
    }

    /// No head is sent before a full flush. `inherited` is what is nevertheless known of the previous state.
    fn start_baseless(&mut self, now: Now, inherited: Arc<Map>) {
        let shards = self.best.as_ref().filter(|best| best.uid == self.me.uid).map_or(1, |best| best.root.shards);
        self.start(now, Arc::default(), Tree::empty(shards));
        self.run.inherited = inherited;
        self.run.baseless = true;
    }
}
