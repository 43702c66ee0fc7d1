//! W7: deletes pages to which nothing refers, late enough for every head that may still name them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Leader, Now,
    run::{Duty, Run},
    sweep::doubled,
};
use crate::{
    call::{Call, CallId, Failure, Outbox, Outcome, Pages},
    head::Root,
    limits::Timing,
    page::PageId,
    verify::{self, Found},
};

/// After this many garbage times, a write whose page was never listed no longer counts against the quota: an operation
/// that hangs longer is dead.
const FORGET_AFTER: u32 = 5;

/// What is known about the own pages.
#[derive(Debug)]
pub(super) struct Garbage {
    /// When each listed page was last referred to, or first seen.
    referred: BTreeMap<(u32, PageId), Duration>,
    /// Roots of own heads that were read or sent, and when last.
    roots: Vec<(Root, Duration)>,
    /// Writes that were not listed yet.
    issued: BTreeMap<(u32, PageId), Duration>,
    last_issue: Duration,
    /// When each shard was listed last, and how many pages that showed; as many as there can be if there may be more.
    listed: BTreeMap<u32, (Duration, usize)>,
    step: Step,
    /// When the next round may begin.
    next: Duration,
    attempts: Attempts,
    pub figures: GarbageFigures,
}

/// How far the current round is.
#[derive(Debug)]
enum Step {
    Waits,
    /// The calls, with their shards, and what the shards have that were listed.
    Lists(BTreeMap<CallId, u32>, BTreeMap<u32, Arc<Pages>>),
    /// The calls, with the shards of the pages.
    Deletes(BTreeMap<CallId, u32>),
}

/// What came of the rounds that deleted.
#[derive(Debug)]
struct Attempts {
    /// What the last one tried, whether that deleted a page, and how many of these rounds in a row deleted none.
    tried: Vec<(u32, PageId)>,
    deleted: bool,
    vain: u32,
    /// The last failure, in the words of AWS.
    failure: Option<String>,
    /// When to delete again at the earliest.
    again: Duration,
}

/// See [`super::WriterFigures`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GarbageFigures {
    pub writes: u64,
    pub deletions: u64,
    pub pages: usize,
}

impl Garbage {
    pub(super) fn new(now: Duration) -> Self {
        let (referred, roots, issued, listed, figures) = Default::default();
        let attempts = Attempts { tried: Vec::new(), deleted: false, vain: 0, failure: None, again: now };
        Self { referred, roots, issued, last_issue: now, listed, step: Step::Waits, next: now, attempts, figures }
    }

    /// An own head with this root was read or sent.
    pub(super) fn refer(&mut self, root: &Root, now: Duration) {
        match self.roots.iter_mut().find(|(known, _)| known == root) {
            Some((_, at)) => *at = now,
            None => self.roots.push((root.clone(), now)),
        }
    }

    /// A page is being written.
    pub(super) fn issue(&mut self, shard: u32, page: &PageId, now: Duration) {
        self.issued.insert((shard, page.clone()), now);
        self.last_issue = now;
        self.figures.writes += 1;
    }

    /// When the last page was written. A predecessor may have written until this epoch began.
    pub(super) fn last_issue(&self) -> Duration {
        self.last_issue
    }

    /// The shard of the page that this call deletes.
    pub(super) fn shard_of(&self, call: CallId) -> Option<u32> {
        if let Step::Deletes(calls) = &self.step { calls.get(&call).copied() } else { None }
    }

    /// Why nothing can be deleted, if so.
    pub(super) fn refused(&self) -> Option<&str> {
        self.attempts.failure.as_deref().filter(|_| self.attempts.vain > 0)
    }

    /// There will be garbage.
    pub(super) fn expect(&mut self, now: Duration) {
        self.next = self.next.min(now);
    }

    /// A service was created, so that nothing is in it.
    pub(super) fn created(&mut self, shard: u32, now: Duration) {
        self.listed.insert(shard, (now, 0));
    }

    /// Number of pages of a shard that exist or may appear, and when it was listed; `None` before its first listing.
    fn occupied(&self, shard: u32, now: Duration, timing: &Timing) -> Option<(Duration, usize)> {
        let counts = |at: Duration| now.saturating_sub(at) < timing.garbage * FORGET_AFTER;
        let unlisted = self.issued.iter().filter(|((of, _), at)| *of == shard && counts(**at));
        let (at, listed) = self.listed.get(&shard)?;
        Some((*at, listed.saturating_add(unlisted.count())))
    }

    /// How many pages each shard has room for beside live ones, garbage and writes in flight; `None` while that is not
    /// known. Somebody else may write as well, so that where room is short an old listing does not count.
    pub(super) fn free(&self, leader: &Leader, now: Now) -> Option<BTreeMap<u32, usize>> {
        let most = leader.limits.pages;
        let free = |shard| {
            let (listed, occupied) = self.occupied(shard, now.mono, &leader.timing)?;
            let known = now.mono.saturating_sub(listed) <= leader.timing.collect || occupied <= most / 4 * 3;
            known.then(|| (shard, most.saturating_sub(occupied)))
        };
        leader.services.usable().map(free).collect()
    }
}

impl Attempts {
    /// Takes the outcome of a deletion.
    fn done(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Done => (self.deleted, self.vain) = (true, 0),
            Outcome::Failed(Failure { message }) => self.failure = Some(message.clone()),
            _ => {}
        }
    }

    /// A listing shows whether the last round deleted something: looking at operations may be denied as well. After one that
    /// did not, the next one waits longer and longer.
    fn judge(&mut self, now: Duration, is_there: impl Fn(&(u32, PageId)) -> bool, timing: &Timing) {
        let tried = std::mem::take(&mut self.tried);
        if self.deleted || !tried.iter().all(is_there) {
            self.vain = 0;
        } else if !tried.is_empty() {
            self.vain += 1;
            self.again = now + doubled(timing.collect, self.vain, timing);
        }
    }
}

impl Run {
    /// Starts a round when one is due; only on ticks in which the heads were read.
    pub(super) fn collect(&mut self, leader: &Leader, now: Now, out: &mut Outbox) {
        let garbage = &mut self.garbage;
        let waits = matches!(garbage.step, Step::Waits) && matches!(self.duty, Duty::Publish(_));
        if !waits || now.mono < garbage.next {
            return;
        }
        let cluster = &leader.me.cluster;
        let list = |shard| (out.call(Call::ReadPages { cluster: cluster.clone(), shard, flush: None }), shard);
        garbage.step = Step::Lists(leader.services.usable().map(list).collect(), BTreeMap::new());
        garbage.next = now.mono + leader.timing.collect;
    }

    pub(super) fn collect_done(
        &mut self,
        leader: &mut Leader,
        now: Now,
        id: CallId,
        outcome: &Outcome,
        out: &mut Outbox,
    ) -> bool {
        let garbage = &mut self.garbage;
        let (calls, listed) = match &mut garbage.step {
            Step::Waits => return false,
            Step::Deletes(calls) => {
                if calls.remove(&id).is_none() {
                    return false;
                }
                if calls.is_empty() {
                    garbage.step = Step::Waits;
                }
                // A failure is no error of this cluster's exports: everything is published all the same, until the room is
                // used up.
                garbage.attempts.done(outcome);
                return true;
            }
            Step::Lists(calls, listed) => (calls, listed),
        };
        let Some(shard) = calls.remove(&id) else { return false };
        if let Outcome::Pages(pages) = outcome {
            listed.insert(shard, pages.clone());
            if calls.is_empty() {
                let listed = std::mem::take(listed);
                garbage.step = Step::Waits;
                self.sweep(leader, now, &listed, out);
            }
        } else {
            // One unread shard may contain the index page that protects pages of the others.
            garbage.step = Step::Waits;
            leader.note(outcome);
        }
        true
    }

    fn sweep(&mut self, leader: &Leader, now: Now, listed: &BTreeMap<u32, Arc<Pages>>, out: &mut Outbox) {
        let timing = leader.timing;
        let garbage = &mut self.garbage;
        garbage.roots.retain(|(_, at)| now.mono.saturating_sub(*at) < timing.garbage);
        let known: Found =
            listed.values().flat_map(|pages| pages.pages.iter().map(|page| (page.id.clone(), page.clone()))).collect();
        let mut named = BTreeMap::<PageId, Duration>::new();
        for (root, at) in &garbage.roots {
            for page in verify::reachable(root, &known) {
                let latest = named.entry(page).or_default();
                *latest = (*latest).max(*at);
            }
        }
        let base: BTreeSet<&PageId> = self.base.layout.pages().map(|(_, page)| page).collect();
        let mut referred = BTreeMap::new();
        let mut dead = Vec::new();
        let mut unreferred = 0;
        for (shard, pages) in listed {
            let there = if pages.truncated { usize::MAX } else { pages.pages.len() };
            garbage.listed.insert(*shard, (now.mono, there));
            for page in &pages.pages {
                let key = (*shard, page.id.clone());
                garbage.issued.remove(&key);
                let uploaded = matches!(&self.duty, Duty::Publish(uploads) if uploads.has(&page.id));
                let live = uploaded || base.contains(&page.id);
                let last = if live {
                    now.mono
                } else {
                    let before = garbage.referred.get(&key).copied().unwrap_or(now.mono);
                    before.max(named.get(&page.id).copied().unwrap_or_default())
                };
                unreferred += usize::from(!live);
                if now.mono.saturating_sub(last) >= timing.garbage {
                    dead.push(key.clone());
                }
                referred.insert(key, last);
            }
        }
        garbage.attempts.judge(now.mono, |page| referred.contains_key(page), &timing);
        // A lagging read may miss a page. When it was last referred to must not be forgotten meanwhile.
        for (key, at) in std::mem::take(&mut garbage.referred) {
            if now.mono.saturating_sub(at) < timing.garbage {
                referred.entry(key).or_insert(at);
            }
        }
        garbage.referred = referred;
        garbage.issued.retain(|_, at| now.mono.saturating_sub(*at) < timing.garbage * FORGET_AFTER);
        garbage.figures.pages = unreferred;
        garbage.next = now.mono + if unreferred > 0 { timing.collect } else { timing.collect_idle };
        if now.mono < garbage.attempts.again {
            return;
        }
        dead.truncate(leader.limits.garbage_batch);
        if let Duty::Publish(uploads) = &mut self.duty {
            uploads.spare.retain(|_, spare| dead.iter().all(|(_, page)| *page != spare.id));
        }
        garbage.attempts.deleted = false;
        garbage.attempts.tried.clone_from(&dead);
        garbage.figures.deletions += dead.len() as u64;
        let cluster = &leader.me.cluster;
        let delete = |(shard, page)| (out.call(Call::DeletePage { cluster: cluster.clone(), shard, page }), shard);
        let calls: BTreeMap<_, _> = dead.into_iter().map(delete).collect();
        garbage.step = if calls.is_empty() { Step::Waits } else { Step::Deletes(calls) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_no_listing_shows_counts_for_some_garbage_times() {
        let timing = Timing { garbage: Duration::from_secs(1), ..Timing::default() };
        let mut garbage = Garbage::new(Duration::ZERO);
        garbage.created(0, Duration::ZERO);
        garbage.issue(0, &PageId { flush: "1-1-00000000".into(), number: 0 }, Duration::ZERO);
        let pages = |at| garbage.occupied(0, Duration::from_secs(at), &timing).map(|(_, pages)| pages);
        assert_eq!((pages(4), pages(5), pages(500)), (Some(1), Some(0), Some(0)));
    }
}
