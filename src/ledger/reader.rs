//! The reader: the state of the other clusters, as a pure state machine. The rules R1 to R10 are those of the module
//! documentation of [`super`].

mod accept;
mod budget;
mod gone;
mod keys;
mod recent;
mod states;
mod views;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Map, RegistryName,
    call::{CallId, Created, Outbox},
    fetch::Fetch,
    hash::{Hashed, Hashes, Summary},
    head::{Delta, Head, Root},
    limits::{MAX_CLUSTERS, Timing},
    trust::{Mode, Trust},
    verify::Cache,
    writer::{Heads, Now, WriterIdentity},
};
use crate::record::{Accepted, Gone, Position};
use accept::Low;
use budget::Refused;
pub use budget::TOO_LARGE;
pub(super) use budget::cost;
use keys::Announcement;
use recent::Recent;

/// The reader of one cluster, from election to the loss of the Lease.
#[derive(Debug)]
pub struct Reader {
    me: WriterIdentity,
    /// The registry that it reads, if that is not the home of this cluster: the own head is not there.
    registry: Option<RegistryName>,
    timing: Timing,
    /// After this time of silence, the endpoints of a stale cluster are removed, if it is set (R7).
    stale_ttl: Option<Duration>,
    peers: BTreeMap<Arc<str>, Peer>,
    creators: BTreeMap<Arc<str>, Creator>,
    trust: Trust,
    /// What clusters announce whose keys are not known (R9).
    announced: BTreeMap<Arc<str>, Announcement>,
    /// Ids whose heads are ignored, and why (R2).
    ignored: BTreeMap<Arc<str>, String>,
    /// Ids of other clusters whose heads exist but were never accepted.
    unaccepted: BTreeSet<Arc<str>>,
    clocks: Clocks,
    /// Completed reads of the heads.
    reads: u64,
    /// Whether the last one was completed.
    complete: bool,
    all_live_verified: bool,
    /// See [`Self::revision`].
    revision: u64,
    /// Bytes that all other clusters may take, together.
    most: usize,
}

/// Who created an id's exports service.
#[derive(Debug, Default)]
struct Creator {
    created: Option<Created>,
    /// Whether there was an answer.
    answered: bool,
    call: Option<CallId>,
    /// When to ask again at the earliest.
    next: Duration,
}

/// Time that passes only while the registry can be read.
#[derive(Debug, Default)]
struct Clocks {
    /// Time in which the heads could be read (R1).
    read: Duration,
    /// When they were read last.
    last: Option<Duration>,
    /// Time in which this cluster's own head was seen to advance (R7).
    own: Duration,
    head: Option<OwnHead>,
    /// When that last began anew, on the read clock.
    recovered: Duration,
}

#[derive(Debug, Default)]
struct Peer {
    accepted: Option<Accepted>,
    head: Option<Arc<Head>>,
    held: Held,
    reading: Reading,
    /// Whether its state is too large.
    refused: Option<Refused>,
    times: Times,
    copy: CopyCall,
    /// Whether the accepted position was lowered on purpose (R3), so that the record must follow.
    escaped: bool,
    applied: Option<Applied>,
    candidate: Option<Applied>,
    stale: Option<u64>,
    lag: Option<Duration>,
    /// The registry with another cluster of this id, or with a newer ledger of this cluster, if that one counts.
    yields_to: Option<RegistryName>,
}

/// What is held of a cluster's states, so that the next one need not be read whole.
#[derive(Debug, Default)]
struct Held {
    verified: Option<Base>,
    /// The newest state that came by stream, or the last one that was compared with the hashes of its head since.
    hashed: Option<Hashed>,
    /// The last states that came by stream, from the one that a head had on.
    streamed: Recent,
    /// What the last state of a head takes, in bytes.
    state_bytes: usize,
    /// The head for whose state the last one and its delta are not enough.
    tried: Option<Arc<Head>>,
}

/// Reading the pages of a cluster's state.
#[derive(Debug, Default)]
struct Reading {
    fetch: Option<Fetch>,
    back_off: Option<Duration>,
    retry_at: Duration,
    /// Why it failed last.
    problem: Option<String>,
    begun: u64,
    failed: u64,
}

/// When a cluster's head was seen.
#[derive(Debug, Default)]
struct Times {
    /// When it advanced last, on the own clock.
    advanced: Duration,
    /// The same, on the read clock.
    moved: Duration,
    /// When it was at the accepted position or above, on the read clock.
    at_or_above: Duration,
    /// When it was last present, whatever it contained, on the read clock.
    seen: Duration,
    /// When that was last so of the successor that it names, or when it named none.
    succeeded: Duration,
    low: Option<Low>,
}

/// The call that reads a copy of a head, and when the next one may.
#[derive(Debug, Default)]
struct CopyCall {
    call: Option<CallId>,
    next: Duration,
}

impl Reading {
    /// It failed. The next attempt waits longer than the last one.
    fn fails(&mut self, now: Now, timing: &Timing, why: &str) {
        self.fetch = None;
        self.failed += 1;
        self.problem = Some(why.to_owned());
        let back_off = self.back_off.unwrap_or(timing.backoff_min);
        self.retry_at = now.mono + back_off;
        self.back_off = Some((back_off * 2).min(timing.backoff_max));
    }

    /// It is complete.
    fn succeeds(&mut self, now: Now) {
        *self = Self { retry_at: now.mono, begun: self.begun, failed: self.failed, ..Self::default() };
    }
}

impl Peer {
    /// Whether a cluster that was gone is back, and its state was not read yet: it may have claims from before.
    fn returns(&self) -> bool {
        let gone = |accepted: &Accepted| accepted.gone.is_some();
        self.applied.as_ref().is_some_and(|applied| gone(&applied.accepted))
            && self.accepted.as_ref().is_some_and(|accepted| !gone(accepted))
    }

    /// Whether nothing is left to do for its head, and the last read had the accepted head and no other.
    fn is_at_rest(&self, read_clock: Duration) -> bool {
        if self.yields_to.is_some() {
            return true;
        }
        let Some(accepted) = &self.accepted else { return false };
        if self.candidate.is_some() || self.times.low.is_some() {
            return false;
        }
        let applies = self.applied.as_ref().is_some_and(|applied| applied.accepted == *accepted);
        let there = self.times.at_or_above == read_clock || accepted.gone.is_some_and(Gone::is_left);
        let busy = self.reading.fetch.is_some() || self.copy.call.is_some() || self.reading.problem.is_some();
        self.stale.is_some() || applies && there && !busy
    }

    /// The hashes of a state of the head's cluster. What changes since the last one counts alone.
    fn hashes(&mut self, me: &WriterIdentity, head: &Head, state: &Arc<Map>) -> Hashes {
        let owner = head.owner(&me.clusterset);
        let hashed = self.held.hashed.take().filter(|hashed| *hashed.owner() == owner);
        let hashed = self.held.hashed.insert(hashed.unwrap_or_else(|| Hashed::new(owner)));
        hashed.set(state.clone());
        hashed.hashes()
    }
}

/// The own head, as it was read back last.
#[derive(Debug, Clone, Copy)]
struct OwnHead {
    position: Position,
    /// When this position was read first, on the read clock.
    read: Duration,
    /// Whether it was seen to advance to this position: what a process reads first may be old.
    advanced: bool,
}

/// A verified root.
#[derive(Debug)]
struct Base {
    root: Root,
    map: Arc<Map>,
    cache: Cache,
}

/// A state and its origin; no state if the cluster left, or if its state before it expired is not known.
#[derive(Debug, Clone)]
struct Applied {
    accepted: Accepted,
    state: Option<Arc<Map>>,
    root: Root,
    delta: Arc<Delta>,
    summary: Summary,
    written: u64,
}

impl Applied {
    /// What applies of a cluster that is gone.
    fn without_state(accepted: Accepted) -> Self {
        let (root, delta, summary) = (Root::empty(1), Arc::default(), Summary::default());
        Self { accepted, state: None, root, delta, summary, written: 0 }
    }

    fn same_state(&self, other: &Self) -> bool {
        let (one, next) = (&self.accepted, &other.accepted);
        (&one.uid, one.gone, one.key, one.created) == (&next.uid, next.gone, next.key, next.created)
            && match (&self.state, &other.state) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a == b,
                (None, None) => true,
                _ => false,
            }
    }
}

impl Reader {
    /// A reader that has read nothing yet.
    ///
    /// `most`: bytes that all other clusters may take in memory, together.
    pub fn new(me: WriterIdentity, timing: Timing, stale_ttl: Option<Duration>, trust: Trust, most: usize) -> Self {
        Self {
            me,
            registry: None,
            trust,
            announced: BTreeMap::new(),
            timing,
            stale_ttl,
            peers: BTreeMap::new(),
            creators: BTreeMap::new(),
            ignored: BTreeMap::new(),
            unaccepted: BTreeSet::new(),
            clocks: Clocks::default(),
            reads: 0,
            complete: false,
            all_live_verified: false,
            revision: 0,
            most,
        }
    }

    /// A reader of a registry that is not the home of this cluster.
    #[must_use]
    pub(super) fn elsewhere(self, registry: RegistryName) -> Self {
        Self { registry: Some(registry), ..self }
    }

    /// Takes the positions of the record: at the start (`before` is `None`), and whenever another process stored it.
    pub(super) fn restore(&mut self, before: Option<&BTreeMap<String, Accepted>>, stored: &BTreeMap<String, Accepted>) {
        self.revision += 1;
        // Whom a person rejected here, and accepted with a ledger in another registry.
        self.peers.retain(|id, peer| {
            !peer.is_rejected() || stored.get(&**id).is_none_or(|it| it.registry.as_deref() == self.registry.as_deref())
        });
        let here = stored.iter().filter(|(_, accepted)| accepted.registry.as_deref() == self.registry.as_deref());
        for (id, accepted) in here {
            let unchanged = before.is_some_and(|before| before.get(id) == Some(accepted));
            if unchanged && !self.peers.contains_key(id.as_str()) {
                continue;
            }
            let times = Times { seen: self.clocks.read, ..Times::default() };
            let peer = self.peers.entry(id.as_str().into()).or_insert_with(|| Peer { times, ..Peer::default() });
            let newer =
                peer.accepted.as_ref().is_none_or(|own| own.uid == accepted.uid && own.position < accepted.position);
            // Somebody accepted another key for it.
            let repinned = before.is_some() && peer.accepted.as_ref().is_some_and(|own| own.key != accepted.key);
            // A person said that it is gone. What it said since it was stored last is known here.
            let gone = |accepted: &Accepted| accepted.gone.is_some_and(Gone::is_said);
            let own = peer.accepted.as_ref().filter(|own| before.is_some() && own.uid == accepted.uid && !gone(own));
            if let Some(own) = own.filter(|_| gone(accepted) && !unchanged) {
                let newest = if own.position > accepted.position { own } else { accepted };
                let forgotten = Accepted { gone: accepted.gone, ..newest.clone() };
                let times = Times { seen: peer.times.seen, ..Times::default() };
                *peer = Peer { accepted: Some(forgotten), times, ..Peer::default() };
                continue;
            }
            let taken_back = before.is_some() && peer.is_rejected() && accepted.gone != Some(Gone::Rejected);
            if (newer || repinned || taken_back) && !unchanged {
                // Without a TTL no cluster is expired, whatever an earlier leader was configured to do.
                let gone = accepted.gone.filter(|gone| gone.is_left() || self.stale_ttl.is_some());
                peer.accepted = Some(Accepted { gone, ..accepted.clone() });
                peer.head = None;
                peer.candidate = None;
                peer.escaped = false;
                peer.times.low = None;
                // Another process of this cluster applied something newer, so this one's state is outdated.
                peer.applied = None;
            }
        }
    }

    /// One tick: the heads of one discovery, or `None` if it failed or was partial, which pauses all timers (R1). Of the time
    /// since the last one, `max_step` counts at most.
    pub(super) fn tick(&mut self, now: Now, max_step: Duration, heads: Option<&Heads>, out: &mut Outbox) {
        let step = self.clocks.last.map_or(Duration::ZERO, |last| now.mono.saturating_sub(last));
        self.clocks.last = Some(now.mono);
        self.complete = heads.is_some();
        self.revision += 1;
        let Some(heads) = heads else { return };
        self.clocks.read += step.min(max_step);
        self.reads += 1;
        if self.registry.is_none() {
            self.own_head_read(heads);
        }
        self.watch_successors(heads);
        let ignored = std::mem::take(&mut self.ignored);
        for (id, head) in heads {
            match head {
                Err(error) => {
                    self.ignored.insert(id.clone(), error.to_string());
                }
                Ok(head) if head.uid == self.me.uid => {}
                Ok(head) if !self.may_speak(now, head, out) => {
                    // While the registry is asked again, what it said last counts.
                    if let Some(why) = ignored.get(id).filter(|_| !self.ignored.contains_key(id)) {
                        self.ignored.insert(id.clone(), why.clone());
                    }
                }
                // The delta is unpacked only now. Before, its writer was not known.
                Ok(head) => match head.delta.check() {
                    Ok(()) if self.has_room(id) => self.accept(now, head),
                    Ok(()) => {
                        let full = format!(
                            "{MAX_CLUSTERS} other clusters are already known; mark those that are gone for good as left \
                             (cloudmap-mcs forget)"
                        );
                        self.ignored.insert(id.clone(), full);
                    }
                    Err(error) => {
                        self.ignored.insert(id.clone(), error.to_string());
                    }
                },
            }
        }
        if self.registry.is_some() {
            self.any_head_read();
        }
        for id in heads.keys() {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.times.seen = self.clocks.read;
            }
        }
        // Whose heads are gone is asked for again should they come back.
        self.creators.retain(|id, _| heads.contains_key(id) || self.peers.contains_key(id));
        self.announced.retain(|id, _| heads.contains_key(id));
        self.look_for_copies(now, out);
        self.recall();
        self.follow_ids();
        let ids: Vec<_> = self.peers.keys().cloned().collect();
        for id in ids {
            self.read(now, &id, out);
        }
        self.keep_budget(now);
        self.judge(now);
        self.bury(&[]);
        self.unaccepted =
            heads.iter().filter(|(id, head)| self.may_export(id, head)).map(|(id, _)| id.clone()).collect();
        self.all_live_verified = heads.iter().all(|(id, head)| {
            let peer = self.peers.get(id);
            // Somebody else's head, or one that nobody can read, hides that of a member, which has claims.
            let hidden = peer.and_then(Peer::pin).is_some();
            let counts = match head {
                Ok(head) if head.uid == self.me.uid => false,
                Ok(head) => hidden || head.is_live() && !self.is_refused(id),
                Err(_) => hidden,
            };
            !counts
                || peer.is_some_and(|peer| peer.yields_to.is_some())
                || peer.is_some_and(|peer| peer.applied.is_some() && !peer.returns() || peer.stale.is_some())
        });
    }

    /// Whether a cluster whose heads were never accepted may nevertheless export something.
    fn may_export(&self, id: &Arc<str>, head: &Result<Arc<Head>, impl Sized>) -> bool {
        let accepted = self.peers.get(id).is_some_and(|peer| peer.accepted.is_some());
        let own = *id == self.me.cluster || head.as_ref().is_ok_and(|head| head.uid == self.me.uid);
        // A head that says `left` and has no owner: the cluster was purged. That of a stranger says nothing here.
        let over = |head: &Arc<Head>| !head.is_live() && (self.is_refused(id) || self.trust.demands_approval());
        let purged = head.as_ref().is_ok_and(over);
        !accepted && !own && !purged
    }

    /// Whether the head under this id is ignored, and not only because AWS does not say who created the id's service.
    fn is_refused(&self, id: &Arc<str>) -> bool {
        self.ignored.contains_key(id) && self.creators.get(id).is_none_or(|creator| creator.answered)
    }

    /// R7: the own clock advances only between two advances of the own head as read back.
    fn own_head_read(&mut self, heads: &Heads) {
        let Some(Ok(own)) = heads.get(&self.me.cluster) else { return };
        // Without an advance of the own head for this long, this cluster counts as cut off and cannot judge others.
        let silence = self.timing.silence();
        let ahead = |there: &OwnHead| {
            // A head that nothing follows was not this cluster's: what was written since is lower.
            let recent = self.clocks.read.saturating_sub(there.read) <= silence;
            own.position <= there.position && (own.position == there.position || recent)
        };
        if own.uid != self.me.uid || self.clocks.head.as_ref().is_some_and(ahead) {
            return;
        }
        self.head_advanced(own.position, self.clocks.head.is_some());
    }

    /// The same in a registry without an own head, after its heads were accepted: there it is the head of any cluster.
    fn any_head_read(&mut self) {
        let read = self.clocks.read;
        let advanced = |peer: &Peer| peer.accepted.is_some() && peer.times.moved == read;
        if !self.peers.values().any(advanced) {
            return;
        }
        self.head_advanced(Position::default(), true);
        for peer in self.peers.values_mut().filter(|peer| advanced(peer)) {
            peer.times.advanced = self.clocks.own;
        }
    }

    /// The head that shows that discovery advances was read at this position. `advanced`: whether it was seen to advance to it.
    fn head_advanced(&mut self, position: Position, advanced: bool) {
        let read = self.clocks.read;
        match self.clocks.head {
            Some(there) if there.advanced && read.saturating_sub(there.read) <= self.timing.silence() => {
                self.clocks.own += read.saturating_sub(there.read);
            }
            _ => self.clocks.recovered = read,
        }
        self.clocks.head = Some(OwnHead { position, read, advanced });
    }

    fn has_room(&self, id: &Arc<str>) -> bool {
        let known =
            |peer: &&Peer| peer.accepted.as_ref().is_some_and(|accepted| !accepted.gone.is_some_and(Gone::is_left));
        self.peers.get(id).is_some_and(|peer| peer.accepted.is_some())
            || self.peers.values().filter(known).count() < MAX_CLUSTERS
    }
}
