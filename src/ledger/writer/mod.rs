//! The writer: the leader's side of the ledger, as a pure state machine. The rules W0 to W9 are those of the module
//! documentation of [`super`].

mod audit;
mod compact;
mod copy;
mod election;
mod flush;
mod garbage;
mod leave;
mod observe;
mod publish;
mod upload;
mod view;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    Map, Value,
    call::{Call, CallId, Failure, Ids, Outbox, Outcome},
    codec,
    hash::{Hashed, Hashes, StateHash, Summary},
    head::{Delta, Head, Root},
    limits::{Limits, Timing},
    runs::Layout,
    tree,
};
use crate::record::{Position, Version};
use audit::Audit;
use compact::Compaction;
use copy::Copy;
use election::{Search, Stranger};
use flush::{Flush, Growth};
use garbage::Garbage;
use leave::{Farewell, FormerId};
use model::PublicKey;
use publish::{Measured, Publication, ReadBack, Sent, Unconfirmed};
use upload::Spare;
pub use view::{Stage, WriterFigures};

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
    /// Whether this cluster has not joined yet, so that it may not register (J5).
    pub barred: bool,
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
    /// Shards below it whose service another cluster created, so that nothing is written there.
    strange: BTreeSet<u32>,
    /// The newest own head that was read in this term, no matter who wrote it.
    best: Option<Arc<Head>>,
    /// When the newest of all heads that were read was written.
    heard: u64,
    /// Since when no read of the heads succeeds, while that is what this leader waits for (W1, W2).
    unread_since: Option<Duration>,
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
    /// When the oldest change came that is not published.
    unpublished_since: Option<Duration>,
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
    /// Why a flush that is due cannot begin: there is no room, or the root would name more pages than it may.
    waits: Option<String>,
    /// Why a page of the flush could not be written or looked for, until a flush succeeds or none is due.
    blocked: Option<String>,
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
    /// Page writes of uploads that began again elsewhere, with the shards of the pages.
    dropped: BTreeMap<CallId, u32>,
    audit: Audit,
    farewell: Option<Farewell>,
    former: BTreeMap<Arc<str>, FormerId>,
    /// The earliest times to ask again who owns the own id, and to look again at the announced key.
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
    /// Whether the last read of all heads had it, and had no live head of this cluster under another id.
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
            waits: None,
            blocked: None,
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
            dropped: BTreeMap::new(),
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
            strange: BTreeSet::new(),
            best: None,
            heard: 0,
            unread_since: None,
            epoch: 0,
            recorded: 0,
            stranger: None,
            desired: None,
            desired_bytes: 0,
            generation: 0,
            changed_at: Duration::ZERO,
            unpublished_since: None,
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
        self.unpublished_since.get_or_insert(now.mono);
        self.advance(now, out);
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
                let since = self.unpublished_since.filter(|_| self.run.farewell.is_none());
                self.run.figures.unpublished = since.map(|since| now.mono.saturating_sub(since));
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
                    && !self.sweeps_former(id)
                {
                    // A former leader may have left a gap, where another cluster has claimed the service.
                    let Some(shard) = self.shard_of(id).filter(|shard| *shard > 0) else {
                        self.refuse(now, owner);
                        return true;
                    };
                    self.avoid(shard);
                }
                if self.run.announcing == Some(id) {
                    self.run.announcing = None;
                    if !matches!(outcome, Outcome::Done) {
                        self.note(outcome);
                        self.run.next_announcement = now.mono + self.timing.retry_max;
                    }
                    return true;
                }
                self.run.dropped.remove(&id).is_some()
                    || self.copy_done(id, outcome)
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
        if let Outcome::Failed(Failure { message }) = outcome {
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
