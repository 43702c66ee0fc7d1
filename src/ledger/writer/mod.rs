//! The writer: the leader's side of the ledger, as a pure state machine. The rules W0 to W9 are those of the module
//! documentation of [`super`].

mod announce;
mod audit;
mod candidate;
mod compact;
mod copy;
mod desired;
mod farewell;
mod flush;
mod former;
mod garbage;
mod own;
mod publish;
mod run;
mod search;
mod services;
mod sweep;
mod upload;
mod view;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use super::{
    Map,
    call::{CallId, Failure, Ids, Outbox, Outcome},
    codec,
    head::Head,
    limits::{Limits, MAX_EPOCH_LEAP, MAX_SKEW, Timing},
};
use crate::record::Position;
use candidate::{Candidate, Step};
use desired::Desired;
use model::PublicKey;
use publish::ReadBack;
use run::{Epoch, Run};
use search::{Found, Search};
use services::Services;
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

/// How far this leader is. What only one phase knows is in it.
#[derive(Debug)]
enum Phase {
    /// W0 and W1.
    Candidate(Candidate),
    /// W2.
    Search(Box<Search>),
    /// W3 to W9.
    Run(Box<Run>),
}

/// The writer of one cluster, from election to the loss of the Lease.
#[derive(Debug)]
pub struct Writer {
    leader: Leader,
    phase: Phase,
}

/// What a leader knows in every phase.
#[derive(Debug)]
struct Leader {
    me: WriterIdentity,
    timing: Timing,
    limits: Limits,
    /// The keys whose heads are this cluster's; none if it does not sign (R9).
    keys: Vec<PublicKey>,
    /// Where this leader listens for others.
    addresses: Arc<[SocketAddr]>,
    ids: Ids,
    error: Option<String>,
    services: Services,
    /// The newest head with the own id and UID that was read in this term, no matter who wrote it.
    best: Option<Arc<Head>>,
    /// When the newest of all heads that were read was written.
    heard: u64,
    /// Since when no read of the heads succeeds, while that is what this leader waits for (W1, W2).
    unread_since: Option<Duration>,
    /// The epoch in the record, as far as is known.
    recorded: u64,
    desired: Desired,
    leaving: bool,
    back: ReadBack,
}

impl Leader {
    fn note(&mut self, outcome: &Outcome) {
        if let Outcome::Failed(Failure { message }) = outcome {
            self.error = Some(message.clone());
        }
    }

    /// Whether a head of the own id can come from this cluster, whose newest epoch is `epoch`: every epoch is stored in the
    /// record before a head contains it.
    fn is_plausible(&self, head: &Head, epoch: u64) -> bool {
        head.uid != self.me.uid || head.position.epoch <= self.recorded.max(epoch) + MAX_EPOCH_LEAP
    }

    /// A read of all heads showed this one under the own id.
    fn observe(&mut self, own: Option<&Arc<Head>>, epoch: u64) {
        let rank = |head: &Head| (self.is_plausible(head, epoch), head.position);
        // Epochs of another UID say nothing about this cluster's.
        if let Some(head) = own.filter(|head| head.uid == self.me.uid)
            && self.best.as_ref().is_none_or(|best| rank(best) < rank(head))
        {
            self.best = Some(head.clone());
        }
    }
}

impl Writer {
    /// A writer that has claimed nothing yet.
    pub fn new(me: WriterIdentity, timing: Timing, limits: Limits, ids: Ids) -> Self {
        let leader = Leader {
            desired: Desired::new(me.clone()),
            me,
            timing,
            limits,
            keys: Vec::new(),
            addresses: Arc::default(),
            ids,
            error: None,
            services: Services::default(),
            best: None,
            heard: 0,
            unread_since: None,
            recorded: 0,
            leaving: false,
            back: ReadBack::default(),
        };
        Self { leader, phase: Phase::Candidate(Candidate::new()) }
    }

    /// Whose heads are this cluster's, so that no others are.
    #[must_use]
    pub(super) fn signing(mut self, keys: Vec<PublicKey>) -> Self {
        self.leader.keys = keys;
        self
    }

    /// Where this leader listens, which its heads say.
    #[must_use]
    pub(super) fn listening(mut self, addresses: Arc<[SocketAddr]>) -> Self {
        self.leader.addresses = addresses;
        self
    }

    /// The epoch that must be stored before this writer continues, given the stored one (W1).
    pub(super) fn wants_epoch(&self, stored: u64) -> Option<u64> {
        let Phase::Candidate(candidate) = &self.phase else { return None };
        candidate.wants_epoch(&self.leader, stored)
    }

    /// The epoch behind which the record must not fall: somebody may have deleted or restored it.
    pub(super) fn holds_epoch(&self) -> u64 {
        if matches!(self.phase, Phase::Candidate(_)) { 0 } else { self.epoch() }
    }

    pub(super) fn recorded(&mut self, epoch: u64) {
        self.leader.recorded = epoch;
    }

    pub(super) fn epoch_stored(&mut self, now: Now, epoch: u64) {
        if let Phase::Candidate(Candidate { step: Step::Elected, created, .. }) = self.phase {
            let epoch = Epoch { number: epoch, nonce: self.leader.ids.next() };
            self.phase = Phase::Search(Box::new(Search::new(epoch, created, now.mono)));
        }
    }

    /// The record shows that a later leader was elected.
    pub(super) fn superseded(&mut self, epoch: u64) {
        if epoch > self.epoch() && !matches!(self.phase, Phase::Candidate(_)) {
            self.elect_again();
        }
    }

    pub(super) fn set_leaving(&mut self, now: Now, leaving: bool, out: &mut Outbox) {
        if self.leader.leaving && !leaving && matches!(&self.phase, Phase::Run(run) if run.farewell().is_some()) {
            self.leader.best = None;
            // The ledger may have been purged meanwhile.
            self.stand_again(Step::claim(now.mono));
        }
        if self.leader.leaving != leaving {
            self.leader.leaving = leaving;
            self.advance(now, out);
        }
    }

    fn elect_again(&mut self) {
        self.stand_again(Step::Confirm { call: None });
    }

    /// Ends the epoch, if there is one. Nothing that was on its way counts any more.
    fn stand_again(&mut self, step: Step) {
        let (created, last, stranger) = match &mut self.phase {
            Phase::Candidate(candidate) => (candidate.created, candidate.last, candidate.stranger.take()),
            Phase::Search(search) => (search.created, search.epoch.number, None),
            Phase::Run(run) => (false, run.epoch.number, None),
        };
        self.phase = Phase::Candidate(Candidate { step, created, last, stranger });
    }

    /// W0: the id belongs to another cluster. This shows at the start, or later if somebody purged the ledger.
    fn refuse(&mut self, now: Now, owner: &str) {
        let retry_at = now.mono + self.leader.timing.refused_retry;
        self.stand_again(Step::Claim { retry_at, call: None, refused: Some(owner.to_owned()) });
    }

    /// Sets a new desired state. It is published at once if no head operation is in flight.
    pub(super) fn desire(&mut self, now: Now, map: Arc<Map>, out: &mut Outbox) {
        if self.leader.desired.set(now.mono, map, self.leader.limits.value_bytes) {
            self.advance(now, out);
        }
    }

    /// Whoever follows the desired state has it.
    pub(super) fn diff_taken(&mut self) {
        self.leader.desired.diff_taken();
    }

    /// Whatever is due: called after every input, and when the time asked for has come.
    pub(super) fn advance(&mut self, now: Now, out: &mut Outbox) {
        match &mut self.phase {
            Phase::Candidate(candidate) => candidate.advance(now, out),
            Phase::Search(_) => {}
            Phase::Run(run) => run.advance(&mut self.leader, now, out),
        }
    }

    /// The outcome of a call of this writer; `false` if it is nobody's here.
    pub(super) fn done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        let mine = match &mut self.phase {
            Phase::Candidate(candidate) => candidate.done(&mut self.leader, now, id, outcome),
            Phase::Search(search) if search.waits_for(id) => {
                let found = search.done(&mut self.leader, now, id, outcome, out);
                self.searched(found);
                true
            }
            Phase::Search(_) => false,
            Phase::Run(run) => {
                if let Outcome::Taken { owner } = outcome
                    && !run.expects_taken(id)
                {
                    // A former leader may have left a gap, where another cluster has claimed the service.
                    let Some(shard) = run.shard_of(id).filter(|shard| *shard > 0) else {
                        self.refuse(now, owner);
                        return true;
                    };
                    run.avoid(&mut self.leader.services, shard);
                }
                run.done(&mut self.leader, now, id, outcome, out)
            }
        };
        if mine {
            self.advance(now, out);
        }
        mine
    }

    /// One tick: the heads of one discovery, or `None` if it failed or was partial.
    pub(crate) fn tick(&mut self, now: Now, heads: Option<&Heads>, out: &mut Outbox) {
        if let Some(heads) = heads {
            let written = heads.values().flatten().map(|head| head.written);
            let plausible = written.filter(|written| *written <= now.wall + MAX_SKEW.as_millis() as u64);
            self.leader.heard = self.leader.heard.max(plausible.max().unwrap_or_default());
            self.leader.unread_since = None;
            self.observe(now, heads, out);
        } else {
            if let Phase::Search(search) = &mut self.phase {
                search.unread();
            }
            self.claim_unread(now);
        }
        self.advance(now, out);
    }

    /// W0: claims the id again if nothing can be read for long and this leader may write nothing yet, because somebody may
    /// have deleted the ledger. Who runs creates it again with the next head.
    fn claim_unread(&mut self, now: Now) {
        let waits = match &self.phase {
            Phase::Candidate(candidate) => !matches!(candidate.step, Step::Claim { .. }),
            Phase::Search(_) => true,
            Phase::Run(_) => false,
        };
        let since = self.leader.unread_since.filter(|_| waits).unwrap_or(now.mono);
        self.leader.unread_since = Some(since);
        if now.mono.saturating_sub(since) >= self.leader.timing.refused_retry {
            self.leader.unread_since = None;
            self.stand_again(Step::claim(now.mono));
        }
    }

    /// W6, and what W1 and W2 need.
    fn observe(&mut self, now: Now, heads: &Heads, out: &mut Outbox) {
        let (leader, epoch) = (&mut self.leader, self.phase.epoch());
        let own = heads.get(&leader.me.cluster).and_then(|head| head.as_ref().ok());
        leader.observe(own, epoch);
        // A head whose epoch cannot be real is ignored. The next heartbeat overwrites it, and readers go back to what
        // is real (R3).
        let own = own.filter(|head| leader.is_plausible(head, epoch));
        let ours = own.filter(|head| head.uid == leader.me.uid);
        let stranger = own.is_some() && ours.is_none();
        let later = |sent| ours.is_some_and(|head| head.position > Position { epoch, seq: sent });
        match &mut self.phase {
            Phase::Candidate(candidate) => candidate.observe(leader, now, out),
            Phase::Search(_) if later(0) => self.elect_again(),
            Phase::Search(search) => {
                let found = search.observe(leader, now, heads, out);
                self.searched(found);
            }
            Phase::Run(_) if stranger && leader.keys.is_empty() => self.stand_again(Step::claim(now.mono)),
            Phase::Run(run) if later(run.seq) => self.elect_again(),
            Phase::Run(run) => {
                if stranger {
                    run.announcement.look_whose(leader, now, out);
                }
                if run.observe(leader, now, heads, ours, out).is_break() {
                    self.elect_again();
                }
            }
        }
    }

    fn searched(&mut self, found: Found) {
        match found {
            Found::Nothing => {}
            Found::Later => self.elect_again(),
            Found::Base(run) => {
                self.leader.services.learn(run.base.layout.shards);
                self.leader.back = ReadBack::default();
                self.leader.error = None;
                self.phase = Phase::Run(run);
            }
        }
    }
}

impl Phase {
    /// The epoch, or the last one of this leader before its election; 0 if it had none.
    fn epoch(&self) -> u64 {
        match self {
            Self::Candidate(candidate) => candidate.last,
            Self::Search(search) => search.epoch.number,
            Self::Run(run) => run.epoch.number,
        }
    }
}
