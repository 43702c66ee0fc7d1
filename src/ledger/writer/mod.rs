//! The writer: the leader's side of the ledger, as a pure state machine. The rules W0 to W9 are those of the module
//! documentation of [`super`].

mod audit;
mod compact;
mod copy;
mod election;
mod flush;
mod garbage;
mod leave;
mod publish;
mod upload;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use super::{
    Map, Value,
    call::{Call, CallId, Failure, Ids, Outbox, Outcome},
    codec,
    hash::{Hashed, Hashes, StateHash, Summary},
    head::{Delta, Head, Root},
    limits::{Limits, MAX_SKEW, Timing},
    runs::Layout,
    stream::Said,
    tree,
};
use crate::{
    cluster::record::{Position, Version},
    model::PublicKey,
};
use audit::Audit;
use compact::Compaction;
use copy::Copy;
use election::{Search, Stranger};
use flush::{Flush, Growth};
use garbage::Garbage;
use leave::{Farewell, FormerId};
use publish::{Measured, Publication, ReadBack, Sent, Unconfirmed};
use upload::Spare;

/// All heads by cluster id, as one discovery returned them.
pub type Heads = BTreeMap<Arc<str>, Result<Arc<Head>, codec::Error>>;

/// The time of an input. The monotonic clock counts; the wall clock is for people.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// The monotonic clock.
    pub mono: Duration,
    /// The wall clock, in milliseconds since 1970.
    pub wall: u64,
}

/// The member in whose name the writer writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterIdentity {
    /// ClusterSet id.
    pub clusterset: Arc<str>,
    /// Cluster id.
    pub cluster: Arc<str>,
    /// UID of the namespace kube-system.
    pub uid: Arc<str>,
}

/// What a leader starts from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inherited {
    /// What the last own head said: base and delta.
    pub map: Arc<Map>,
    /// When that head was written, in milliseconds since 1970 by the clock of its writer.
    pub written: u64,
    /// When the newest of all heads was written, in milliseconds since 1970 by the clock of its writer.
    pub heard: u64,
}

#[derive(Debug)]
enum Phase {
    /// W0.
    Claim { retry_at: Duration, call: Option<CallId> },
    /// W1, before the epoch: the Lease is read again.
    Confirm { call: Option<CallId> },
    /// W1: the epoch must be stored in the record.
    Elected,
    /// W2.
    Verify(Box<Search>),
    /// W3 to W9.
    Run,
}

/// The writer of one cluster, from election to the loss of the Lease.
#[derive(Debug)]
pub struct Writer {
    me: WriterIdentity,
    timing: Timing,
    limits: Limits,
    ids: Ids,
    phase: Phase,
    /// Who owns the id, if it is not this cluster.
    refused: Option<String>,
    error: Option<String>,
    /// Why the newest state to be published is not, if so: the last one that fitted stays.
    unfit: Option<String>,
    /// W0 has just created the service, so there is nothing to wait for.
    created: bool,
    /// Number of existing own services.
    shards: u32,
    /// The newest own head that was read in this term, no matter who wrote it.
    best: Option<Arc<Head>>,
    /// When the newest of all heads that were read was written.
    heard: u64,
    epoch: u64,
    /// The epoch in the record, as far as is known.
    recorded: u64,
    /// A head of this cluster above that.
    stranger: Option<Stranger>,
    /// The state to be published, and how many there were before.
    desired: Option<Arc<Map>>,
    /// Of all keys and values in it.
    desired_bytes: usize,
    generation: u64,
    /// Its hashes.
    hashed: Hashed,
    /// Distinguishes this leader from another one with its epoch.
    nonce: u64,
    changed_at: Duration,
    leaving: bool,
    /// The keys whose heads are this cluster's; none if it does not sign (R9).
    keys: Vec<PublicKey>,
    /// Where this leader listens for others.
    addresses: Arc<[SocketAddr]>,
    run: Run,
}

/// The state of one epoch.
#[derive(Debug)]
struct Run {
    seq: u64,
    /// What the pages say.
    base: Arc<Map>,
    layout: Layout,
    /// What the last own head said when W2 ended, and when it was written.
    inherited: Arc<Map>,
    written: u64,
    /// No head may be sent before a full flush.
    baseless: bool,
    /// The next flush writes every page again.
    rewrite: bool,
    measured: Option<Measured>,
    /// The last state sent, on the current base.
    sent: Option<Sent>,
    publication: Option<Publication>,
    sent_at: Option<Duration>,
    sent_generation: Option<u64>,
    force: bool,
    failures: u32,
    retry_at: Duration,
    /// Heads that were sent and whose outcome is not known yet, by seq.
    unconfirmed: BTreeMap<u64, Unconfirmed>,
    published: Option<Arc<Map>>,
    visibility: ReadBack,
    /// Since when heads of this epoch are read back.
    read_back: Option<Duration>,
    own: OwnHeads,
    flush: Option<Flush>,
    growth: Growth,
    compaction: Option<Compaction>,
    next_compaction: Duration,
    spare: Spare,
    flushes: u64,
    discarded: u32,
    next_flush: Duration,
    garbage: Garbage,
    audit: Audit,
    farewell: Option<Farewell>,
    former: BTreeMap<Arc<str>, FormerId>,
    /// When to ask again whose the own id is, and to look at the own key, at the earliest.
    next_look: Duration,
    next_announcement: Duration,
    announcing: Option<CallId>,
    copy: Copy,
    figures: WriterFigures,
}

/// What S10 needs to know of the own heads of this epoch, as they are read back.
#[derive(Debug, Default)]
struct OwnHeads {
    /// The newest one, and its claims.
    newest: Option<(u64, StateHash)>,
    /// Whether it was in the last read of all heads, and no live head of this cluster under another id.
    there: bool,
}

impl Run {
    fn new(base: Arc<Map>, layout: Layout, now: Duration, timing: &Timing) -> Self {
        Self {
            seq: 0,
            inherited: base.clone(),
            written: 0,
            base,
            layout,
            baseless: false,
            rewrite: false,
            measured: None,
            sent: None,
            publication: None,
            sent_at: None,
            sent_generation: None,
            force: false,
            failures: 0,
            retry_at: now,
            unconfirmed: BTreeMap::new(),
            published: None,
            visibility: ReadBack::default(),
            read_back: None,
            own: OwnHeads::default(),
            flush: None,
            growth: Growth::default(),
            compaction: None,
            next_compaction: Duration::ZERO,
            spare: Spare::new(),
            flushes: 0,
            discarded: 0,
            next_flush: Duration::ZERO,
            garbage: Garbage::new(now),
            audit: Audit::new(now + timing.audit),
            farewell: None,
            former: BTreeMap::new(),
            next_look: now,
            next_announcement: now,
            announcing: None,
            copy: Copy::default(),
            figures: WriterFigures::default(),
        }
    }
}

/// Statistics of the current epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WriterFigures {
    /// Share of the delta's room that the desired state takes. Above 1 it does not fit.
    pub delta_occupancy: f64,
    /// Number of data pages of the tree.
    pub data_pages: usize,
    /// Number of pages of changes that were appended to it.
    pub run_pages: usize,
    /// Number of index pages.
    pub index_pages: usize,
    /// Number of shards.
    pub shards: u32,
    /// Number of pages that were listed and to which nothing refers.
    pub garbage_pages: usize,
    /// Number of head writes.
    pub head_writes: u64,
    /// Number of page writes.
    pub page_writes: u64,
    /// Number of page deletions.
    pub page_deletions: u64,
    /// Number of successful flushes.
    pub flushes: u64,
    /// Number of trees that replaced a tree and its runs.
    pub compactions: u64,
    /// Number of flushes and trees that were given up.
    pub flushes_abandoned: u64,
    /// How often a flush waited for quota.
    pub flush_quota_waits: u64,
    /// Number of full flushes.
    pub full_flushes: u64,
    /// Time from the start of the last successful flush until its pages were visible.
    pub flush_duration: Option<Duration>,
    /// Time from the change of the desired state to the success of the head that contained it.
    pub publish_latency: Option<Duration>,
}

/// The stage of a writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Claiming the cluster id (W0).
    Claiming,
    /// The id belongs to another cluster. Nothing is written until it is changed.
    Refused {
        /// UID of the owner.
        owner: String,
    },
    /// Being elected (W1).
    Electing,
    /// Another process writes in the name of this cluster, which its record does not know of: the controller of a second
    /// cluster with the same UID of kube-system, under the same id or another one. Nothing is written until it stops.
    Contested {
        /// The id under which the other process writes.
        cluster: Arc<str>,
    },
    /// Reading the state to start from (W2).
    Verifying,
    /// Publishing (W3 to W8).
    Running,
    /// Withdrawing everything. `left` is published once the desired state is empty (W9).
    Leaving,
    /// `left` was read back, and no page remains.
    Left,
}

impl Stage {
    /// Whether it is certain, as far as a leader can know, that this cluster owns its id and that no later leader was
    /// elected.
    pub const fn owns_id(&self) -> bool {
        match self {
            Self::Running | Self::Leaving | Self::Left => true,
            Self::Claiming | Self::Refused { .. } | Self::Electing | Self::Contested { .. } | Self::Verifying => false,
        }
    }
}

impl Writer {
    /// A writer that has claimed nothing yet.
    pub fn new(me: WriterIdentity, timing: Timing, limits: Limits, ids: Ids) -> Self {
        let run = Run::new(Arc::default(), Layout::empty(1), Duration::ZERO, &timing);
        Self {
            hashed: Hashed::new(me.clone()),
            nonce: 0,
            me,
            timing,
            limits,
            ids,
            phase: Phase::Claim { retry_at: Duration::ZERO, call: None },
            refused: None,
            error: None,
            unfit: None,
            created: false,
            shards: 1,
            best: None,
            heard: 0,
            epoch: 0,
            recorded: 0,
            stranger: None,
            desired: None,
            desired_bytes: 0,
            generation: 0,
            changed_at: Duration::ZERO,
            leaving: false,
            keys: Vec::new(),
            addresses: Arc::default(),
            run,
        }
    }

    /// Whose heads are this cluster's, so that no others are.
    #[must_use]
    pub(super) fn signing(self, keys: Vec<PublicKey>) -> Self {
        Self { keys, ..self }
    }

    /// Where this leader listens, which its heads say.
    #[must_use]
    pub(super) fn listening(self, addresses: Arc<[SocketAddr]>) -> Self {
        Self { addresses, ..self }
    }

    /// Under which epoch and random number this leader speaks.
    pub(super) fn term(&self) -> Option<(u64, u64)> {
        matches!(self.phase, Phase::Run).then_some((self.epoch, self.nonce))
    }

    /// What this leader may say to others: nothing before W2 is over, and nothing once it said farewell.
    pub(super) fn said(&self) -> Option<Said<'_>> {
        self.desired.as_ref().filter(|_| matches!(self.phase, Phase::Run) && self.run.farewell.is_none())?;
        let hashed = &self.hashed;
        Some(Said { hashed, summary: self.summary(self.generation, hashed.hashes()) })
    }

    /// The hashes of the claims to be published, and of those in the newest own head that was read.
    pub(super) fn claims(&self) -> [Option<StateHash>; 2] {
        [self.desired.as_ref().map(|_| self.hashed.hashes().claims), self.run.own.newest.map(|(_, claims)| claims)]
    }

    /// S10: whether what is to be published was read back, the own head was there in the last read, and this cluster neither
    /// leaves nor has a live head under another id.
    pub(super) fn is_at_rest(&self) -> bool {
        let there = self.desired.as_ref().zip(self.run.visibility.map.as_ref());
        matches!(self.phase, Phase::Run)
            && !self.leaving
            && !self.run.baseless
            && self.run.own.there
            && there.is_some_and(|(desired, there)| Arc::ptr_eq(desired, there))
    }

    /// The current stage.
    pub fn stage(&self) -> Stage {
        match (&self.phase, &self.refused) {
            (Phase::Claim { .. }, Some(owner)) => Stage::Refused { owner: owner.clone() },
            (Phase::Claim { .. }, None) => Stage::Claiming,
            (Phase::Confirm { .. } | Phase::Elected, _) if self.stranger.as_ref().is_some_and(|it| it.advances > 0) => {
                Stage::Contested { cluster: self.me.cluster.clone() }
            }
            (Phase::Confirm { .. } | Phase::Elected, _) => Stage::Electing,
            (Phase::Verify(search), _) => match search.contested_by() {
                Some(id) => Stage::Contested { cluster: id.clone() },
                None => Stage::Verifying,
            },
            (Phase::Run, _) if self.run.farewell.as_ref().is_some_and(Farewell::is_over) => Stage::Left,
            (Phase::Run, _) if self.leaving => Stage::Leaving,
            (Phase::Run, _) => Stage::Running,
        }
    }

    /// In whose name it writes.
    pub(super) fn identity(&self) -> &WriterIdentity {
        &self.me
    }

    /// The epoch; 0 before the election.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Why the newest state is not published; otherwise the last error, until something of the same kind succeeds.
    pub fn error(&self) -> Option<&str> {
        self.unfit.as_deref().or(self.error.as_deref())
    }

    /// The statistics.
    pub fn figures(&self) -> WriterFigures {
        WriterFigures {
            data_pages: self.run.layout.tree.data_pages(),
            run_pages: self.run.layout.runs.len(),
            index_pages: self.run.layout.tree.index_pages() + self.run.layout.runs.index_pages(),
            shards: self.shards,
            page_writes: self.run.garbage.written(),
            ..self.run.figures
        }
    }

    /// The state from which this leader starts; `None` until W2 is over.
    pub fn base(&self) -> Option<&Arc<Map>> {
        matches!(self.phase, Phase::Run).then_some(&self.run.base)
    }

    /// What this leader starts from; `None` until W2 is over.
    pub(super) fn inherited(&self) -> Option<Inherited> {
        let (map, written, heard) = (self.run.inherited.clone(), self.run.written, self.heard);
        matches!(self.phase, Phase::Run).then_some(Inherited { map, written, heard })
    }

    /// The state to be published.
    pub(super) fn desired(&self) -> Option<&Arc<Map>> {
        self.desired.as_ref()
    }

    /// The last state whose publication succeeded.
    pub fn published(&self) -> Option<&Arc<Map>> {
        self.run.published.as_ref()
    }

    /// A published state that was read back: the newest one, or one shortly before it.
    pub fn read_back(&self) -> Option<&Arc<Map>> {
        self.run.visibility.map.as_ref()
    }

    /// The epoch that must be stored before this writer continues, given the stored one (W1).
    pub(super) fn wants_epoch(&self, stored: u64) -> Option<u64> {
        let best = self.best.as_ref().filter(|best| self.is_plausible(best)).map_or(0, |best| best.position.epoch);
        let silent = self.stranger.as_ref().is_none_or(|stranger| stranger.is_silent(&self.timing));
        let elected = matches!(self.phase, Phase::Elected) && (best <= stored || silent && self.stranger.is_some());
        elected.then(|| stored.max(best).max(self.epoch) + 1)
    }

    /// The epoch behind which the record must not fall: somebody may have deleted or restored it.
    pub(super) fn holds_epoch(&self) -> u64 {
        if matches!(self.phase, Phase::Verify(_) | Phase::Run) { self.epoch } else { 0 }
    }

    pub(super) fn recorded(&mut self, epoch: u64) {
        self.recorded = epoch;
    }

    /// Whether others have been able to read this cluster's exports for a while, so that what it published elsewhere
    /// may go.
    pub(super) fn is_settled(&self, now: Now) -> bool {
        matches!(self.phase, Phase::Run)
            && self.run.farewell.is_none()
            && self.run.read_back.is_some_and(|since| now.mono >= since + self.timing.handover)
    }

    pub(super) fn epoch_stored(&mut self, now: Now, epoch: u64) {
        if matches!(self.phase, Phase::Elected) {
            self.stranger = None;
            self.epoch = epoch;
            self.nonce = self.ids.next();
            self.phase = Phase::Verify(Box::new(Search::new(now.mono)));
        }
    }

    /// The record shows that a later leader was elected.
    pub(super) fn superseded(&mut self, epoch: u64) {
        if epoch > self.epoch && matches!(self.phase, Phase::Verify(_) | Phase::Run) {
            self.elect_again();
        }
    }

    pub(super) fn set_leaving(&mut self, now: Now, leaving: bool, out: &mut Outbox) {
        if self.leaving && !leaving && self.run.farewell.is_some() && matches!(self.phase, Phase::Run) {
            self.best = None;
            self.elect_again();
            // The ledger may have been purged meanwhile.
            self.phase = Phase::Claim { retry_at: now.mono, call: None };
        }
        if self.leaving != leaving {
            self.leaving = leaving;
            self.advance(now, out);
        }
    }

    fn elect_again(&mut self) {
        self.phase = Phase::Confirm { call: None };
        (self.run.flush, self.run.compaction) = (None, None);
        self.run.growth = Growth::default();
        self.run.publication = None;
        self.run.farewell = None;
    }

    /// Sets a new desired state. It is published at once if no head operation is in flight.
    pub(super) fn desire(&mut self, now: Now, map: Arc<Map>, out: &mut Outbox) {
        let before = self.desired.clone().unwrap_or_default();
        let (mut bytes, mut changed) = (self.desired_bytes, self.desired.is_none());
        for (key, old, new) in before.difference(&map) {
            let size = |value: Option<&Value>| value.map_or(0, |value| key.len() + value.len());
            (bytes, changed) = (bytes + size(new) - size(old), true);
            if let Some(value) = new.filter(|value| value.len() > self.limits.value_bytes) {
                let bytes = value.len();
                self.unfit = Some(format!("the record {key} takes {bytes} bytes; the change is not published"));
                return;
            }
        }
        if changed && let Some(excess) = tree::excess(map.len(), bytes) {
            self.unfit = Some(excess);
            return;
        }
        // Also where it is again what is published.
        self.unfit = None;
        if !changed {
            return;
        }
        self.hashed.set(map.clone());
        self.desired = Some(map);
        self.desired_bytes = bytes;
        self.generation += 1;
        self.changed_at = now.mono;
        self.advance(now, out);
    }

    /// One tick: the heads of one discovery, or `None` if it failed or was partial.
    pub(super) fn tick(&mut self, now: Now, heads: Option<&Heads>, out: &mut Outbox) {
        if let Some(heads) = heads {
            let written = heads.values().flatten().map(|head| head.written);
            let plausible = written.filter(|written| *written <= now.wall + MAX_SKEW.as_millis() as u64);
            self.heard = self.heard.max(plausible.max().unwrap_or_default());
            self.observe(now, heads, out);
        } else if let Phase::Verify(search) = &mut self.phase {
            search.unread();
        }
        self.advance(now, out);
    }

    /// W6, and what W1 and W2 need.
    fn observe(&mut self, now: Now, heads: &Heads, out: &mut Outbox) {
        let own = heads.get(&self.me.cluster).and_then(|head| head.as_ref().ok());
        let rank = |head: &Head| (self.is_plausible(head), head.position);
        // Epochs of another UID say nothing about this cluster's.
        if let Some(head) = own.filter(|head| head.uid == self.me.uid)
            && self.best.as_ref().is_none_or(|best| rank(best) < rank(head))
        {
            self.best = Some(head.clone());
        }
        // The next heartbeat writes over one that cannot be real, and readers come back to what is real (R3).
        let own = own.filter(|head| self.is_plausible(head));
        if matches!(self.phase, Phase::Confirm { .. } | Phase::Elected) {
            // The newest one that was seen, also where an older one is there again: its epoch is what the next must be above.
            let best = self.best.clone().filter(|best| self.is_plausible(best));
            self.watch_stranger(now, best.as_ref());
        }
        match &mut self.phase {
            Phase::Confirm { call } => {
                if call.is_none() {
                    *call = Some(out.call(Call::ConfirmLease));
                }
            }
            Phase::Verify(_) | Phase::Run => {
                if let Some(head) = own {
                    if head.uid != self.me.uid && !self.keys.is_empty() {
                        self.look_whose(now, out);
                    } else if head.uid != self.me.uid && matches!(self.phase, Phase::Run) {
                        self.elect_again();
                        self.phase = Phase::Claim { retry_at: now.mono, call: None };
                        return;
                    }
                    let sent = if matches!(self.phase, Phase::Run) { self.run.seq } else { 0 };
                    if head.uid == self.me.uid && head.position > (Position { epoch: self.epoch, seq: sent }) {
                        self.elect_again();
                        return;
                    }
                }
                if matches!(self.phase, Phase::Run) {
                    let own = own.filter(|head| head.uid == self.me.uid);
                    self.announce(now, out);
                    self.observe_copied(now, own);
                    self.observe_own(now, own, out);
                    self.observe_rest(heads, own);
                    self.observe_former(now, heads, out);
                    self.audit(now, own, out);
                    self.collect(now, out);
                } else {
                    self.verify(now, heads, out);
                }
            }
            Phase::Claim { .. } | Phase::Elected => {}
        }
    }

    /// W6: there is another cluster's head under the own id, which anybody may have written. The exports service says
    /// whose the id is.
    fn look_whose(&mut self, now: Now, out: &mut Outbox) {
        if matches!(self.phase, Phase::Run) && now.mono >= self.run.next_look {
            self.run.next_look = now.mono + self.timing.refused_retry;
            out.call(Call::Claim { shard: 0 });
        }
    }

    /// R9: the key is where other clusters look for it, and is there again if somebody changed it.
    fn announce(&mut self, now: Now, out: &mut Outbox) {
        if !self.keys.is_empty() && now.mono >= self.run.next_announcement {
            self.run.next_announcement = now.mono + self.timing.audit;
            self.run.announcing = Some(out.call(Call::Announce));
        }
    }

    fn observe_own(&mut self, now: Now, own: Option<&Arc<Head>>, out: &mut Outbox) {
        let Some(head) = own else { return };
        self.run.garbage.refer(&head.root, now.mono);
        if head.position.epoch == self.epoch {
            self.run.read_back.get_or_insert(now.mono);
            self.confirmed(now, head.position.seq, out);
            self.run.visibility.seen(head.position.seq);
        }
        let epoch = self.epoch;
        if let Some(farewell) = &mut self.run.farewell {
            farewell.observe(head, epoch);
        }
    }

    /// What S10 needs to know of a read of all heads.
    fn observe_rest(&mut self, heads: &Heads, own: Option<&Arc<Head>>) {
        let elsewhere = |(id, head): (&Arc<str>, &Result<Arc<Head>, _>)| {
            // One that left changes no more. It may stay for long, where its services may not be deleted.
            *id != self.me.cluster && head.as_ref().is_ok_and(|head| head.is_live() && head.uid == self.me.uid)
        };
        let newest = self.run.own.newest.map_or(0, |(seq, _)| seq);
        let own = own.filter(|head| head.position.epoch == self.epoch && head.position.seq >= newest);
        self.run.own = OwnHeads {
            newest: own.map(|head| (head.position.seq, head.summary.hashes.claims)).or(self.run.own.newest),
            there: own.is_some() && !heads.iter().any(elsewhere),
        };
    }

    /// Whatever is due: called after every input, and when the time asked for has come.
    pub(super) fn advance(&mut self, now: Now, out: &mut Outbox) {
        match &mut self.phase {
            Phase::Claim { retry_at, call } => {
                if call.is_none() && now.mono >= *retry_at {
                    *call = Some(out.call(Call::Claim { shard: 0 }));
                }
            }
            Phase::Run => {
                self.say_farewell(now, out);
                if self.run.farewell.is_none() {
                    self.flush(now, out);
                    self.compact(now, out);
                    self.publish(now, out);
                }
            }
            Phase::Confirm { .. } | Phase::Elected | Phase::Verify(_) => {}
        }
    }

    /// The outcome of a call of this writer; `false` if it is nobody's here.
    pub(super) fn done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        let mine = match &mut self.phase {
            Phase::Claim { call, .. } if *call == Some(id) => {
                *call = None;
                self.claimed(now, outcome);
                true
            }
            Phase::Confirm { call } if *call == Some(id) => {
                *call = None;
                if matches!(outcome, Outcome::Lease { held: true }) {
                    self.phase = Phase::Elected;
                }
                true
            }
            Phase::Verify(search) if search.waits_for(id) => {
                self.search_done(now, id, outcome, out);
                true
            }
            Phase::Run => {
                if let Outcome::Taken { owner } = outcome
                    && !self.grows_by(id)
                {
                    self.refuse(now, owner);
                    return true;
                }
                if self.run.announcing == Some(id) {
                    self.run.announcing = None;
                    if !matches!(outcome, Outcome::Done) {
                        self.note(outcome);
                        self.run.next_announcement = now.mono + self.timing.retry_max;
                    }
                    return true;
                }
                self.copy_done(id, outcome)
                    || self.publication_done(now, id, outcome, out)
                    || self.flush_done(now, id, outcome, out)
                    || self.collect_done(now, id, outcome, out)
                    || self.audit_done(now, id, outcome, out)
                    || self.former_done(now, id, outcome, out)
                    || self.farewell_done(now, id, outcome, out)
            }
            _ => false,
        };
        if mine {
            self.advance(now, out);
        }
        mine
    }

    fn note(&mut self, outcome: &Outcome) {
        if let Outcome::Failed(Failure { message, .. }) = outcome {
            self.error = Some(message.clone());
        }
    }

    /// What heads of this epoch say of a state that was desired in it.
    fn summary(&self, generation: u64, hashes: Hashes) -> Summary {
        Summary { version: Version { epoch: self.epoch, nonce: self.nonce, n: generation }, hashes }
    }

    fn head(&self, now: Now, seq: u64, root: Root, delta: Arc<Delta>, summary: Summary) -> Head {
        Head {
            cluster: self.me.cluster.clone(),
            reads: super::head::FORMAT,
            uid: self.me.uid.clone(),
            position: Position { epoch: self.epoch, seq },
            presence: super::head::Presence::Live,
            root,
            delta,
            summary,
            addresses: self.addresses.clone(),
            lease: self.timing.lease,
            written: now.wall,
            signer: None,
        }
    }

    /// Exponential back-off between the shortest and the longest retry.
    fn back_off(&self, failures: u32) -> Duration {
        (self.timing.retry_min * 2u32.pow(failures.saturating_sub(1).min(6))).min(self.timing.retry_max)
    }
}
