//! W0 to W2: from the claim of the id to the base that this leader starts from.

use std::sync::Arc;

use super::{Now, Phase, Run, Sent, Writer};
use crate::ledger::{
    Map,
    call::{Outbox, Outcome},
    fetch::{Fetch, Progress},
    tree::{Cache, Tree, Verified},
};

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

    /// W0: the id is another cluster's, as it turned out at the start or, where somebody purged the ledger, later.
    pub(super) fn refuse(&mut self, now: Now, owner: &str) {
        self.elect_again();
        self.refused = Some(owner.to_owned());
        self.phase = Phase::Claim { retry_at: now.mono + self.timing.refused_retry, call: None };
    }

    /// W2: reads the own root until it verifies.
    pub(super) fn verify(&mut self, now: Now, out: &mut Outbox) {
        let Phase::Verify { since, fetch, retry_at } = &mut self.phase else { return };
        let best = self.best.as_ref().filter(|best| best.uid == self.me.uid);
        let waited = now.mono.saturating_sub(*since) >= self.timing.verify_limit;
        match best {
            Some(best) if !best.is_live() => {
                let tree = Tree::empty(best.root.shards);
                self.start(now, Arc::default(), tree);
            }
            None if self.created || waited => self.start_baseless(now),
            Some(_) if waited => self.start_baseless(now),
            None => {}
            Some(best) => {
                if fetch.as_ref().is_some_and(|fetch| fetch.root == best.root) || now.mono < *retry_at {
                    return;
                }
                let mut started = Fetch::new(self.me.cluster.clone(), best.root.clone(), Cache::default());
                let progress = started.advance(out);
                *fetch = Some(started);
                self.verified(now, progress);
            }
        }
    }

    pub(super) fn verified(&mut self, now: Now, progress: Progress) {
        let Phase::Verify { fetch, retry_at, .. } = &mut self.phase else { return };
        match progress {
            Progress::Waiting => {}
            Progress::Failed(_) => {
                *fetch = None;
                *retry_at = now.mono + self.timing.backoff_min / 2;
            }
            Progress::Complete(verified) => {
                let best = self.best.as_ref().filter(|best| best.uid == self.me.uid && best.root == verified.tree.root);
                let Some(best) = best.cloned() else {
                    *fetch = None;
                    return;
                };
                let Verified { tree, map, cache: _ } = *verified;
                let sent = Sent { map: Arc::new(best.delta.apply(&map)), delta: best.delta.clone(), generation: 0 };
                self.start(now, Arc::new(map), tree);
                self.run.sent = Some(sent);
            }
        }
    }

    fn start(&mut self, now: Now, base: Arc<Map>, tree: Tree) {
        self.shards = self.shards.max(tree.root.shards);
        self.run = Run::new(base, tree, now.mono, &self.timing);
        self.created = false;
        self.phase = Phase::Run;
    }

    fn start_baseless(&mut self, now: Now) {
        let shards = self.best.as_ref().filter(|best| best.uid == self.me.uid).map_or(1, |best| best.root.shards);
        self.start(now, Arc::default(), Tree::empty(shards));
        self.run.baseless = true;
    }
}
