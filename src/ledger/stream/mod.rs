//! The stream: leaders tell each other their states directly, milliseconds after a change. Pure.
//!
//! The ledger stays what counts: who is a member, keys, claims, and the state that lasts. What comes by stream is shown in
//! place of the ledger's state while its version is newer, and is gone when the ledger has it, too. docs/stream.md has the
//! rules S1 to S10; S10 is in [`super::pace`].

mod ahead;
mod dial;
mod follow;
pub mod message;
mod rest;
mod serve;
mod session;
mod strangers;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use super::{
    Map,
    call::Ids,
    diff::Diff,
    hash::{Hashed, Summary},
    limits::Timing,
    remote::Remotes,
    writer::WriterIdentity,
};
use crate::record::Position;
use ahead::Ahead;
use dial::Dialling;
use follow::Following;
use message::{Hello, Message};
use model::PublicKey;
pub use serve::OwnState;
use serve::Serving;
use session::Session;
use strangers::Strangers;

/// Identifies a connection in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// What the stream asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Connect to the first of these addresses where this key answers.
    Dial {
        /// Whom.
        cluster: Arc<str>,
        /// Its addresses.
        addresses: Arc<[SocketAddr]>,
        /// Its key.
        key: PublicKey,
    },
    /// Send a message, and say when the socket has taken it.
    Send {
        /// Where.
        session: SessionId,
        /// What.
        message: Arc<Message>,
    },
    /// Close a connection.
    Close {
        /// Which one.
        session: SessionId,
        /// Why, as a text.
        why: &'static str,
    },
}

/// What the ledger says of another cluster.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Contact {
    /// Its UID.
    pub uid: Arc<str>,
    /// Its key; without one it has no sessions.
    pub key: Option<PublicKey>,
    /// Whether it is a member, so that it may speak.
    pub live: bool,
    /// Whether it is too large, so that nothing of it is kept.
    pub refused: bool,
    /// Whether its state was dropped: it left or expired.
    pub dropped: bool,
    /// Of the newest accepted head.
    pub position: Position,
    /// What that head says of its state, once it was read.
    pub head: Option<Summary>,
    /// Whether it is stale (R7).
    pub silent: bool,
    /// The state that applies by the ledger, and what it is.
    pub summary: Option<Summary>,
    /// That state.
    pub state: Option<Arc<Map>>,
    /// Where its leader listens.
    pub addresses: Arc<[SocketAddr]>,
}

/// Syncs that are said at once; others wait for them.
const SYNCS: usize = 8;
/// Who said what is wrong is not listened to for this long.
const DISTRUST: Duration = Duration::from_mins(5);

/// Of smaller states that come in, nobody counts how many there are: they are in few messages.
const LARGE: usize = 1 << 20;

/// Why there is no session where a connection is made: who dials learns only afterwards that its key is refused.
pub(super) const REFUSED: &str =
    "it took the connection and then said nothing; it may not accept the key of this cluster";
/// Why a session is of no use: the first message is small, and the next ones are not.
const CUT: &str = "it said who it is, and then no state came whole; large packets may be lost on the way (MTU), or a firewall \
                   ends the connection";

/// The stream of one leader.
#[derive(Debug)]
pub struct Stream {
    me: WriterIdentity,
    timing: Timing,
    ids: Ids,
    /// Epoch and random number under which this leader speaks.
    term: Option<(u64, u64)>,
    sessions: BTreeMap<SessionId, Session>,
    dialling: BTreeMap<Arc<str>, Dialling>,
    following: BTreeMap<Arc<str>, (SessionId, Following)>,
    distrusted: BTreeMap<Arc<str>, Duration>,
    /// Why the last attempt failed, of clusters from which no whole state came since.
    unreachable: BTreeMap<Arc<str>, String>,
    strangers: Strangers,
    ahead: Ahead,
    /// Bytes of all states that are not whole yet, together.
    most: usize,
    commands: Vec<Command>,
    wake: Option<Duration>,
}

impl Stream {
    /// No connections yet.
    pub fn new(me: WriterIdentity, timing: Timing, ids: Ids) -> Self {
        Self {
            me,
            timing,
            ids,
            term: None,
            sessions: BTreeMap::new(),
            dialling: BTreeMap::new(),
            following: BTreeMap::new(),
            distrusted: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            strangers: Strangers::default(),
            ahead: Ahead::default(),
            most: usize::MAX,
            commands: Vec::new(),
            wake: None,
        }
    }

    /// The same with so many bytes for all states that are not whole yet.
    pub(super) fn within(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Somebody came with this key, which no live cluster has.
    pub(super) fn refused(&mut self, now: Duration, key: PublicKey) {
        self.strangers.came(now, self.timing.heartbeat, key);
    }

    /// What is to be done now.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// When something is due.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.wake
    }

    /// The clusters from which a whole state came by a session that lasts. A session alone is not enough: where large packets
    /// are lost, one begins again and again.
    pub fn connected(&self) -> impl Iterator<Item = &Arc<str>> {
        let whole = self.following.iter().filter(|(_, (_, following))| following.whole().is_some());
        whole.map(|(cluster, _)| cluster)
    }

    /// Why the last attempt failed, of clusters from which no whole state came since.
    pub(super) fn unreachable(&self) -> &BTreeMap<Arc<str>, String> {
        &self.unreachable
    }

    /// A connection was made, by dialling a cluster or by being dialled, and both keys are verified.
    pub(super) fn opened(&mut self, now: Duration, id: SessionId, key: PublicKey, dialled: Option<&Arc<str>>) {
        if let Some(cluster) = dialled {
            let dialling = self.dialling.entry(cluster.clone()).or_default();
            dialling.running = false;
        }
        let Some((epoch, nonce)) = self.term else {
            return self.commands.push(Command::Close { session: id, why: "this leader does not speak yet" });
        };
        // Who has a key could begin any number of sessions and never say who it is.
        let silent = |(id, session): (&SessionId, &Session)| {
            (session.key == key && session.dialled.is_none() && session.peer.is_none()).then_some(*id)
        };
        if let Some(silent) = self.sessions.iter().find_map(silent).filter(|_| dialled.is_none()) {
            self.close(now, silent, "a newer connection took its place");
        }
        let WriterIdentity { clusterset, cluster, uid } = self.me.clone();
        let hello = Hello { clusterset, cluster, uid, epoch, nonce };
        self.sessions.insert(id, Session::new(now, key, dialled.cloned(), hello));
    }

    /// No connection could be made.
    pub(super) fn failed(&mut self, now: Duration, cluster: &Arc<str>, why: String) {
        self.dialling.entry(cluster.clone()).or_default().running = false;
        self.unreachable.insert(cluster.clone(), why);
        self.pause(now, cluster);
    }

    /// The socket has taken the message that was sent last. If there is nothing more to say now, when to look at the session
    /// again: with many clusters, this is a good part of all that happens.
    pub(super) fn taken(&mut self, now: Duration, id: SessionId, own: Option<OwnState<'_>>) -> Option<Duration> {
        let session = self.sessions.get_mut(&id)?;
        session.taken();
        let (more, at) = (own.is_none_or(|own| session.has_more(own)), session.wake(now));
        let waits = |session: &Session| session.serving.as_ref().is_some_and(Serving::waits);
        Some(at).filter(|_| !more && !self.sessions.values().any(waits))
    }

    /// A sign of life came. `true`: nothing follows from it, because something was heard lately.
    pub(super) fn alive(&mut self, now: Duration, id: SessionId) -> bool {
        let greeted = |session: &&mut Session| session.peer.is_some() && session.is_alive(now);
        let Some(session) = self.sessions.get_mut(&id).filter(greeted) else { return false };
        session.receive(now);
        true
    }

    /// The connection is gone.
    pub(super) fn closed(&mut self, now: Duration, id: SessionId) {
        self.drop_session(now, id, None);
    }

    /// A message came.
    pub(super) fn received(
        &mut self,
        now: Duration,
        id: SessionId,
        message: Message,
        contacts: &BTreeMap<Arc<str>, Contact>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.receive(now);
        let peer = session.peer.as_ref().map(|peer| peer.cluster.clone());
        match (message, peer) {
            (Message::Hello(hello), None) => self.greet(now, id, hello, contacts),
            (Message::Hello(_), Some(_)) => self.close(now, id, "it says who it is a second time"),
            (_, None) => self.close(now, id, "it does not say who it is"),
            (Message::Alive, Some(_)) => {}
            (Message::Subscribe { buckets }, Some(cluster)) => {
                // A cluster subscribes once.
                let of_it = |session: &&mut Session| session.peer.as_ref().is_some_and(|peer| peer.cluster == cluster);
                self.sessions.values_mut().filter(of_it).for_each(|session| session.serving = None);
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.serving = Some(Serving::new(buckets));
                }
            }
            (Message::Replace { buckets }, Some(cluster)) => {
                if let Some((_, following)) = self.following.get_mut(&cluster).filter(|(by, _)| *by == id) {
                    following.replace(&buckets);
                }
            }
            (Message::Changes { changes, end }, Some(cluster)) => {
                let following = self.following.get_mut(&cluster).filter(|(by, _)| *by == id);
                let taken = following.map(|(_, following)| (following.change(changes, end), following.coming()));
                match taken {
                    Some((Err(why), _)) => self.distrust(now, cluster, id, why),
                    Some((Ok(()), LARGE..)) => self.make_room(now),
                    _ => {}
                }
            }
        }
    }

    fn distrust(&mut self, now: Duration, cluster: Arc<str>, id: SessionId, why: &'static str) {
        self.distrusted.insert(cluster, now + DISTRUST);
        self.close(now, id, why);
    }

    /// Ends the largest state that is not whole yet, if all of them together are too large.
    fn make_room(&mut self, now: Duration) {
        let coming = |(_, following): &(SessionId, Following)| following.coming();
        if self.following.values().map(coming).sum::<usize>() > self.most
            && let Some((cluster, (id, _))) = self.following.iter().max_by_key(|entry| coming(entry.1))
        {
            let (cluster, id) = (cluster.clone(), *id);
            self.distrust(now, cluster, id, "it is the largest state that comes in, and there is no room for all");
        }
    }

    /// S2, S4: whether this is who it says, and a leader that was not replaced.
    fn greet(&mut self, now: Duration, id: SessionId, hello: Hello, contacts: &BTreeMap<Arc<str>, Contact>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let meant = session.dialled.as_ref().is_none_or(|dialled| *dialled == hello.cluster);
        if !meant || hello.clusterset != self.me.clusterset || !is_genuine(&hello, session.key, contacts) {
            let key = session.key;
            self.strangers.came(now, self.timing.heartbeat, key);
            return self.close(now, id, "it is not who it says");
        }
        let dialled = session.dialled.is_some();
        let others = self.sessions.iter().filter_map(|(other, session)| {
            let peer = session.peer.as_ref().filter(|peer| *other != id && peer.cluster == hello.cluster)?;
            Some((*other, peer.epoch, session.dialled.is_some() == dialled))
        });
        let others: Vec<_> = others.collect();
        if others.iter().any(|(_, epoch, _)| *epoch > hello.epoch) {
            return self.close(now, id, "a later leader is connected");
        }
        for (other, epoch, same_way) in others {
            if epoch < hello.epoch || same_way {
                self.close(now, other, "a newer connection took its place");
            }
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.peer = Some(hello);
        }
    }

    /// Whatever is due: called after every input. `own` is the state of this leader, once it may send it.
    pub(super) fn advance(
        &mut self,
        now: Duration,
        term: Option<(u64, u64)>,
        own: Option<OwnState<'_>>,
        contacts: &BTreeMap<Arc<str>, Contact>,
    ) {
        self.wake = None;
        let term = term.filter(|_| own.is_some());
        if self.term != term {
            self.term = term;
            let ids: Vec<_> = self.sessions.keys().copied().collect();
            for id in ids {
                self.close(now, id, "this leader's term ended");
            }
            self.dialling.clear();
            self.unreachable.clear();
        }
        self.end_sessions(now, contacts);
        let refused = |cluster: &str| contacts.get(cluster).is_some_and(|contact| contact.refused);
        self.following.retain(|cluster, _| !refused(cluster));
        self.follow(contacts);
        let mut two = Vec::new();
        for (cluster, (id, following)) in &self.following {
            let (Some(contact), Some(latest)) = (contacts.get(cluster), following.latest()) else { continue };
            self.unreachable.remove(cluster);
            let same = contact.summary.filter(|ledger| ledger.version == latest.0.version);
            if same.is_some_and(|ledger| ledger.hashes != latest.0.hashes) {
                two.push((cluster.clone(), *id));
            }
            self.ahead.offer(now, cluster, contact, latest);
        }
        for (cluster, id) in two {
            self.distrust(now, cluster, id, "the ledger has another state of this version");
        }
        let leader = |cluster: &str| {
            let peer = self.sessions.get(&self.following.get(cluster)?.0)?.peer.as_ref()?;
            Some((peer.epoch, peer.nonce))
        };
        self.ahead.forget(now, self.timing.escape, contacts, leader);
        if let Some(own) = own {
            self.dial(now, contacts);
            self.send(now, own);
        }
    }

    /// S4, S8: ends the sessions of those who are gone, were replaced, or whose keys do not count any more.
    fn end_sessions(&mut self, now: Duration, contacts: &BTreeMap<Arc<str>, Contact>) {
        let ends = |(id, session): (&SessionId, &Session)| {
            let valid = session.peer.as_ref().is_none_or(|peer| is_genuine(peer, session.key, contacts));
            if !valid {
                Some((*id, Some("the ledger says otherwise")))
            } else if now >= session.ends() {
                Some((*id, None))
            } else {
                None
            }
        };
        let ended: Vec<_> = self.sessions.iter().filter_map(ends).collect();
        for (session, why) in ended {
            self.commands.push(Command::Close { session, why: why.unwrap_or("nothing was heard, or taken") });
            self.drop_session(now, session, why);
        }
        self.distrusted.retain(|_, until| *until > now);
    }

    /// S3: subscribes to each cluster over one of its sessions.
    fn follow(&mut self, contacts: &BTreeMap<Arc<str>, Contact>) {
        let mut best = BTreeMap::<Arc<str>, (u64, SessionId)>::new();
        for (id, session) in &self.sessions {
            let unfollowed =
                |cluster: &Arc<str>| !self.following.contains_key(cluster) && !self.distrusted.contains_key(cluster);
            if let Some(peer) = session.peer.as_ref().filter(|peer| unfollowed(&peer.cluster)) {
                let entry = best.entry(peer.cluster.clone()).or_insert((peer.epoch, *id));
                *entry = (*entry).max((peer.epoch, *id));
            }
        }
        for (cluster, (_, id)) in best {
            let Some(contact) = contacts.get(&cluster).filter(|contact| !contact.refused) else { continue };
            let owner = WriterIdentity {
                clusterset: self.me.clusterset.clone(),
                cluster: cluster.clone(),
                uid: contact.uid.clone(),
            };
            let known = self.ahead.map(&cluster).or(contact.state.as_ref()).cloned().unwrap_or_default();
            let following = Following::new(owner, known);
            if let Some(session) = self.sessions.get_mut(&id) {
                session.enqueue(following.subscribe());
            }
            self.following.insert(cluster, (id, following));
        }
    }

    /// S7: gives every socket that has room the next message.
    fn send(&mut self, now: Duration, own: OwnState<'_>) {
        let syncing = |session: &Session| session.serving.as_ref().is_some_and(Serving::syncs);
        let mut room = SYNCS.saturating_sub(self.sessions.values().filter(|session| syncing(session)).count());
        for (id, session) in &mut self.sessions {
            if let Some(serving) = session.serving.as_mut().filter(|serving| room > 0 && serving.waits()) {
                room -= 1;
                serving.sync(own);
            }
            if let Some(message) = session.next(now, own) {
                self.commands.push(Command::Send { session: *id, message: Arc::new(message) });
            }
            let at = session.wake(now);
            self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
        }
    }

    fn close(&mut self, now: Duration, id: SessionId, why: &'static str) {
        self.commands.push(Command::Close { session: id, why });
        self.drop_session(now, id, Some(why));
    }

    /// `why` is what this leader has against the other side, if that is the reason.
    fn drop_session(&mut self, now: Duration, id: SessionId, why: Option<&str>) {
        let Some(session) = self.sessions.remove(&id) else { return };
        let (lasted, greeted) = (session.lasted(), session.peer.is_some());
        let of_it = self.following.extract_if(.., |_, (by, _)| *by == id).next();
        if let Some(cluster) = session.dialled.or(session.peer.map(|peer| peer.cluster)) {
            // Where a leader ends, all its sessions do, one after the other. One that lasted was no failed attempt.
            let awaited = of_it.is_some_and(|(_, (_, following))| following.latest().is_none());
            if !greeted || (awaited && !lasted) {
                let why = why.unwrap_or(if greeted { CUT } else { REFUSED });
                self.unreachable.insert(cluster.clone(), why.to_owned());
            }
            if lasted {
                self.dialling.remove(&cluster);
            }
            self.pause(now, &cluster);
        }
    }

    /// What a cluster said by stream last, as a whole.
    pub(super) fn latest(&self, cluster: &str) -> Option<Summary> {
        self.following.get(cluster)?.1.latest().map(|(summary, _)| *summary)
    }

    /// The newest whole state of each cluster that came by stream, and how it came from the one before if it is new.
    pub(super) fn held(&mut self) -> impl Iterator<Item = (&Arc<str>, &Hashed, Option<Arc<Diff>>)> {
        self.following.iter_mut().filter_map(|(cluster, (_, following))| {
            let diff = following.take_diff();
            Some((cluster, following.whole()?, diff))
        })
    }

    /// Shows what was streamed in place of what the ledger has (S5).
    pub(super) fn overlay(&self, remotes: &mut Remotes) {
        self.ahead.overlay(remotes);
    }

    /// Another number whenever [`Self::overlay`] may show something else.
    pub(super) fn revision(&self) -> u64 {
        self.ahead.revision()
    }
}

/// Whether the ledger knows this key and UID for the cluster, and no later leader.
fn is_genuine(hello: &Hello, key: PublicKey, contacts: &BTreeMap<Arc<str>, Contact>) -> bool {
    contacts.get(&hello.cluster).is_some_and(|contact| {
        contact.live && contact.uid == hello.uid && contact.key == Some(key) && hello.epoch >= contact.position.epoch
    })
}
