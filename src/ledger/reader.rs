//! The reader: the state of the other clusters, as a pure state machine. The rules R1 to R10 are those of the module
//! documentation of [`super`].

mod budget;
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
    Map,
    call::{Call, CallId, Created, Outbox},
    fetch::Fetch,
    forgotten,
    hash::{Hashed, Hashes, Summary},
    head::{Delta, Head, Root},
    limits::{MAX_CLUSTERS, Timing},
    trust::{Mode, Trust},
    verify::Cache,
    writer::{Heads, Now, WriterIdentity},
};
use crate::record::{Accepted, Gone, Position};
use budget::Refused;
pub use budget::TOO_LARGE;
pub(super) use budget::cost;
use keys::Announcement;
use recent::Recent;

/// How often a lower head must advance before it counts (R3).
const LOW_ADVANCES: u32 = 2;

/// The reader of one cluster, from election to the loss of the Lease.
#[derive(Debug)]
pub struct Reader {
    me: WriterIdentity,
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
    /// Time in which the heads could be read (R1).
    read_clock: Duration,
    last_read: Option<Duration>,
    /// Time in which this cluster's own head was seen to advance (R7).
    own_clock: Duration,
    own: Option<OwnHead>,
    recovered: Duration,
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

#[derive(Debug, Default)]
struct Peer {
    accepted: Option<Accepted>,
    head: Option<Arc<Head>>,
    verified: Option<Base>,
    /// The newest state that came by stream, or the last one that was compared with the hashes of its head since.
    hashed: Option<Hashed>,
    /// The last states that came by stream, from the one that a head had on.
    streamed: Recent,
    /// What the last state of a head takes, in bytes.
    state_bytes: usize,
    /// Whether it is too large.
    refused: Option<Refused>,
    /// The head for whose state the last one and its delta are not enough.
    tried: Option<Arc<Head>>,
    fetch: Option<Fetch>,
    back_off: Option<Duration>,
    retry_at: Duration,
    /// On the own clock, and on the read clock.
    advanced: Duration,
    at_or_above: Duration,
    /// When its head was last present, whatever it contained, on the read clock.
    seen: Duration,
    /// When that was last so of the successor that its head names, or when it named none.
    succeeded: Duration,
    low: Option<Low>,
    /// The call that reads a copy of its head, and when the next one may.
    copy: Option<CallId>,
    copy_next: Duration,
    /// Whether the accepted position was lowered on purpose (R3), so that the record must follow.
    escaped: bool,
    applied: Option<Applied>,
    candidate: Option<Applied>,
    stale: Option<u64>,
    problem: Option<String>,
    lag: Option<Duration>,
    fetches: u64,
    failed_fetches: u64,
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
        let Some(accepted) = &self.accepted else { return false };
        if self.candidate.is_some() || self.low.is_some() {
            return false;
        }
        let applies = self.applied.as_ref().is_some_and(|applied| applied.accepted == *accepted);
        let there = self.at_or_above == read_clock || accepted.gone.is_some_and(Gone::is_left);
        let busy = self.fetch.is_some() || self.copy.is_some() || self.problem.is_some();
        self.stale.is_some() || applies && there && !busy
    }

    /// The hashes of a state of the head's cluster. What changes since the last one counts alone.
    fn hashes(&mut self, me: &WriterIdentity, head: &Head, state: &Arc<Map>) -> Hashes {
        let owner = head.owner(&me.clusterset);
        let hashed = self.hashed.take().filter(|hashed| *hashed.owner() == owner);
        let hashed = self.hashed.insert(hashed.unwrap_or_else(|| Hashed::new(owner)));
        hashed.set(state.clone());
        hashed.hashes()
    }
}

/// A head below the accepted position (R3).
#[derive(Debug, Clone, Copy)]
struct Low {
    position: Position,
    /// How often it was seen to advance.
    advances: u32,
    /// When this position was read last, on the read clock.
    read: Duration,
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
            trust,
            announced: BTreeMap::new(),
            timing,
            stale_ttl,
            peers: BTreeMap::new(),
            creators: BTreeMap::new(),
            ignored: BTreeMap::new(),
            unaccepted: BTreeSet::new(),
            read_clock: Duration::ZERO,
            last_read: None,
            own_clock: Duration::ZERO,
            own: None,
            recovered: Duration::ZERO,
            reads: 0,
            complete: false,
            all_live_verified: false,
            revision: 0,
            most,
        }
    }

    /// Takes the positions of the record: at the start (`before` is `None`), and whenever another process stored it.
    pub(super) fn restore(&mut self, before: Option<&BTreeMap<String, Accepted>>, stored: &BTreeMap<String, Accepted>) {
        self.revision += 1;
        for (id, accepted) in stored {
            let unchanged = before.is_some_and(|before| before.get(id) == Some(accepted));
            let peer = self.peers.entry(id.as_str().into()).or_default();
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
                *peer = Peer { accepted: Some(forgotten), seen: peer.seen, ..Peer::default() };
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
                peer.low = None;
                // Another process of this cluster applied something newer, so this one's state is outdated.
                peer.applied = None;
            }
        }
    }

    /// One tick: the heads of one discovery, or `None` if it failed or was partial, which pauses all timers (R1). Of the time
    /// since the last one, `max_step` counts at most.
    pub(super) fn tick(&mut self, now: Now, max_step: Duration, heads: Option<&Heads>, out: &mut Outbox) {
        let step = self.last_read.map_or(Duration::ZERO, |last| now.mono.saturating_sub(last));
        self.last_read = Some(now.mono);
        self.complete = heads.is_some();
        self.revision += 1;
        let Some(heads) = heads else { return };
        self.read_clock += step.min(max_step);
        self.reads += 1;
        self.hear_own(heads);
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
        for id in heads.keys() {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.seen = self.read_clock;
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
        self.bury();
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
            !counts || peer.is_some_and(|peer| peer.applied.is_some() && !peer.returns() || peer.stale.is_some())
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
    fn hear_own(&mut self, heads: &Heads) {
        let Some(Ok(own)) = heads.get(&self.me.cluster) else { return };
        // Without an advance of the own head for this long, this cluster counts as cut off and cannot judge others.
        let silence = self.timing.silence();
        let ahead = |there: &OwnHead| {
            // A head that nothing follows was not this cluster's: what was written since is lower.
            let recent = self.read_clock.saturating_sub(there.read) <= silence;
            own.position <= there.position && (own.position == there.position || recent)
        };
        if own.uid != self.me.uid || self.own.as_ref().is_some_and(ahead) {
            return;
        }
        match self.own {
            Some(there) if there.advanced && self.read_clock.saturating_sub(there.read) <= silence => {
                self.own_clock += self.read_clock.saturating_sub(there.read);
            }
            _ => self.recovered = self.read_clock,
        }
        self.own = Some(OwnHead { position: own.position, read: self.read_clock, advanced: self.own.is_some() });
    }

    fn has_room(&self, id: &Arc<str>) -> bool {
        let known =
            |peer: &&Peer| peer.accepted.as_ref().is_some_and(|accepted| !accepted.gone.is_some_and(Gone::is_left));
        self.peers.get(id).is_some_and(|peer| peer.accepted.is_some())
            || self.peers.values().filter(known).count() < MAX_CLUSTERS
    }

    /// R6: clusters that left, also according to the record, and whose heads are gone. Nothing of them needs to be
    /// remembered. Without a head nothing can bring them back, and a new head belongs to a new member.
    pub(super) fn forgettable(&self) -> impl Iterator<Item = &str> {
        let long_gone = |peer: &Peer| {
            let left = |accepted: &Accepted| accepted.gone.is_some_and(Gone::is_left);
            peer.accepted.as_ref().is_some_and(left)
                && !peer.is_rejected()
                && peer.applied.as_ref().is_some_and(|applied| left(&applied.accepted))
                && peer.candidate.is_none()
                && self.read_clock.saturating_sub(peer.seen) > self.timing.forget
        };
        self.peers.iter().filter(move |(_, peer)| long_gone(peer)).map(|(id, _)| &**id)
    }

    /// Forgets these clusters, because the record no longer contains them.
    pub(super) fn forget(&mut self, stored: &BTreeMap<String, Accepted>) {
        self.revision += 1;
        let gone: Vec<Arc<str>> = self.forgettable().filter(|id| !stored.contains_key(*id)).map(Into::into).collect();
        for id in gone {
            self.peers.remove(&id);
        }
    }

    /// R2: whether the head's UID is that of the creator of the cluster's exports service.
    fn is_creator(&mut self, now: Now, head: &Head, out: &mut Outbox) -> bool {
        let creator = self.creators.entry(head.cluster.clone()).or_default();
        if creator.created.as_ref().is_some_and(|created| *created.by == *head.uid) {
            return true;
        }
        if creator.call.is_none() && now.mono >= creator.next {
            creator.next = now.mono + self.timing.creator_retry;
            creator.call = Some(out.call(Call::Creator { cluster: head.cluster.clone() }));
        }
        if creator.call.is_none() {
            let owner = creator.created.as_ref().map_or("nobody", |created| &created.by);
            let message = if creator.answered {
                format!("its head comes from UID {}, but the id belongs to {owner}", head.uid)
            } else {
                format!("AWS did not answer who created exports-0.{}, so its head does not count yet", head.cluster)
            };
            self.ignored.insert(head.cluster.clone(), message);
        }
        false
    }

    /// R10: when the exports service of the head's cluster was created, in seconds since 1970; 0 if that is not known. A
    /// cluster that has another id now keeps the date of the former one: its UID and its key prove that it is the same.
    fn date_of(&self, head: &Head) -> i64 {
        let accepted = |peer: &Peer| peer.accepted.clone().filter(|accepted| *accepted.uid == *head.uid);
        let known = self.peers.get(&head.cluster).and_then(accepted).map(|accepted| accepted.created);
        let creator = || self.creators.get(&head.cluster)?.created.as_ref().filter(|created| *created.by == *head.uid);
        let told = || creator().map(|created| created.at);
        let is_same = |accepted: &Accepted| head.signer.is_some() && accepted.key == head.signer;
        let former = self.peers.values().filter_map(accepted).filter(is_same).map(|accepted| accepted.created);
        let own = known.filter(|at| *at != 0).or_else(told);
        former.chain(own).filter(|at| *at != 0).min().unwrap_or_default()
    }

    /// R3: accepts a head if it is newer.
    fn accept(&mut self, now: Now, head: &Arc<Head>) {
        let (read_clock, own_clock, created) = (self.read_clock, self.own_clock, self.date_of(head));
        let peer = self.peers.entry(head.cluster.clone()).or_insert_with(|| Peer {
            advanced: own_clock,
            at_or_above: read_clock,
            succeeded: read_clock,
            ..Peer::default()
        });
        // The id has another owner now, as its exports service proves. Positions of different UIDs are not comparable.
        let accepted = peer.accepted.as_ref().filter(|accepted| *accepted.uid == *head.uid);
        let since = accepted.filter(|accepted| accepted.is_member()).map_or(now.wall, |accepted| accepted.since);
        let (accepted, gone) = accepted.map(|accepted| (accepted.position, accepted.gone)).unzip();
        if accepted.is_some_and(|accepted| head.position < accepted) {
            // Somebody repeats what the cluster said before.
            let signed = peer.accepted.as_ref().filter(|it| it.key.is_some() && self.trust.mode != Mode::Open);
            if signed.is_some_and(|accepted| head.written <= accepted.written) {
                return;
            }
            if read_clock.saturating_sub(peer.at_or_above) <= self.timing.escape {
                peer.low = None;
                return;
            }
            let begins = Low { position: head.position, advances: 0, read: read_clock };
            let low = match peer.low {
                None => begins,
                Some(low) if head.position > low.position => Low { advances: low.advances + 1, ..begins },
                Some(low) if head.position == low.position => Low { read: read_clock, ..low },
                // It was forged as well: nothing follows it.
                Some(low) if read_clock.saturating_sub(low.read) > self.timing.escape => begins,
                Some(low) => low,
            };
            peer.low = Some(low);
            if low.advances < LOW_ADVANCES {
                return;
            }
            peer.escaped = true;
        }
        // A living cluster said that the cluster of this head is gone, so the same head does not bring it back. Where
        // nothing is signed, this is said in the cluster's own head instead, at a position that is a guess.
        let ended = peer.accepted.as_ref().is_some_and(|it| it.key.is_some() && it.gone.is_some_and(Gone::is_left));
        if accepted == Some(head.position) && head.is_live() && ended && self.trust.mode != Mode::Open {
            return;
        }
        if accepted == Some(head.position) && peer.head.is_some() {
            peer.at_or_above = read_clock;
            return;
        }
        let advanced = accepted != Some(head.position);
        if advanced {
            peer.advanced = own_clock;
            peer.stale = None;
        }
        let expired = gone.flatten().filter(|gone| *gone == Gone::Expired && !advanced);
        let gone = if head.is_live() { expired } else { Some(Gone::Left) };
        let key = head.signer.filter(|_| self.trust.mode != Mode::Open);
        let written = key.map_or(0, |_| head.written);
        let (uid, position) = (head.uid.to_string(), head.position);
        peer.accepted = Some(Accepted { uid, position, gone, key, written, since, created });
        peer.head = Some(head.clone());
        peer.at_or_above = read_clock;
        peer.low = None;
    }

    /// A cluster that is gone according to the record needs no state, because it may be purged. The head of a cluster
    /// that left, if there is one, may name a successor to wait for (R6). Without a head, the successor is whoever has the
    /// cluster's UID: objects may still be there that an earlier process made for the former id.
    fn recall(&mut self) {
        let unread = |peer: &&Peer| peer.applied.is_none();
        let live = |peer: &Peer| peer.accepted.clone().filter(|accepted| accepted.gone.is_none());
        let unread: BTreeSet<String> = self.peers.values().filter(unread).filter_map(live).map(|it| it.uid).collect();
        for peer in self.peers.values_mut().filter(|peer| peer.applied.is_none() && peer.candidate.is_none()) {
            let gone = |accepted: &&Accepted| match accepted.gone {
                Some(Gone::Left | Gone::Forgotten) => peer.head.is_none() && !unread.contains(&accepted.uid),
                Some(Gone::Expired | Gone::Rejected) => true,
                None => false,
            };
            peer.candidate = peer.accepted.as_ref().filter(gone).cloned().map(Applied::without_state);
        }
    }

    /// R6: a cluster has one id at a time. If its head is gone, and its UID was read under another id at a higher
    /// epoch, the cluster has left under the former id. It removed that head itself, and whoever was away then never
    /// saw it leave.
    fn follow_ids(&mut self) {
        let applied = |peer: &Peer| {
            let applied = peer.applied.as_ref().filter(|applied| applied.state.is_some())?;
            (peer.seen == self.read_clock).then(|| (applied.accepted.uid.clone(), applied.accepted.position.epoch))
        };
        let present: BTreeMap<String, u64> = self.peers.values().filter_map(applied).collect();
        for peer in self.peers.values_mut() {
            let absent = self.read_clock.saturating_sub(peer.seen) > self.timing.escape;
            let Some(accepted) =
                peer.accepted.as_mut().filter(|accepted| absent && !accepted.gone.is_some_and(Gone::is_left))
            else {
                continue;
            };
            if present.get(&accepted.uid).is_some_and(|epoch| *epoch > accepted.position.epoch) {
                accepted.gone = Some(Gone::Left);
                (peer.head, peer.fetch) = (None, None);
                peer.candidate = Some(Applied::without_state(accepted.clone()));
            }
        }
    }

    /// R7: which clusters are stale or expired.
    fn judge(&mut self, now: Now) {
        let settled = self.read_clock.saturating_sub(self.recovered) > self.timing.lease;
        for peer in self.peers.values_mut() {
            let Some(accepted) = &mut peer.accepted else { continue };
            let live = peer.applied.as_ref().is_none_or(|applied| applied.state.is_some());
            let silent = self.own_clock.saturating_sub(peer.advanced);
            let lost = silent > self.timing.lease && settled && live;
            if lost || accepted.gone == Some(Gone::Expired) {
                peer.stale.get_or_insert(now.wall);
            }
            let too_long = lost && self.stale_ttl.is_some_and(|ttl| silent > ttl);
            if let Some(applied) = peer.applied.as_ref().filter(|applied| too_long && applied.accepted.gone.is_none()) {
                // A cluster that left and waits for its successor (R6) is silent as well.
                accepted.gone.get_or_insert(Gone::Expired);
                let accepted = Accepted { gone: Some(Gone::Expired), ..accepted.clone() };
                peer.candidate = Some(Applied { accepted, ..applied.clone() });
            }
        }
    }

    /// R6: clusters that are stale, and gone for good according to one that is not. Nobody could sign that for them.
    fn bury(&mut self) {
        if self.trust.mode == Mode::Open {
            return;
        }
        let live = || self.peers.values().filter(|peer| peer.stale.is_none());
        let states = || live().filter_map(|peer| peer.applied.as_ref()?.state.as_ref());
        let gone = |(id, peer): &(&Arc<str>, &Peer)| {
            let accepted = peer.accepted.as_ref().filter(|_| peer.stale.is_some() && peer.pin().is_some());
            accepted.is_some_and(|Accepted { uid, position, .. }| {
                states().filter_map(|map| forgotten::of(map, id)).any(|said| said.is_about(uid, *position))
            })
        };
        let gone: Vec<_> = self.peers.iter().filter(gone).map(|(id, _)| id.clone()).collect();
        for id in gone {
            let Some(peer) = self.peers.get_mut(&id) else { continue };
            let Some(accepted) = &mut peer.accepted else { continue };
            accepted.gone = Some(Gone::Forgotten);
            let accepted = accepted.clone();
            (peer.head, peer.fetch, peer.stale) = (None, None, None);
            peer.candidate = Some(Applied::without_state(accepted));
        }
    }
}
