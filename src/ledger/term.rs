//! One leader's term: writer, reader and the record between them, as one pure state machine.

mod record;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    Map,
    call::{Call, CallId, Created, Ids, Outbox, Outcome},
    forgotten,
    joining::{self, Ballot, Facts, Standing},
    limits::{Limits, Timing},
    news::News,
    pace::Pace,
    reader::Reader,
    remote::Remotes,
    stream::{Command, Contact, SessionId, Stream, message::Message},
    trust::{Mode, Trust},
    writer::{Heads, Inherited, Now, Writer, WriterIdentity},
};
use crate::record::{Member, Record};
use model::PublicKey;
use record::Keeper;

/// R10: when the own exports service was created. It is asked once a term: somebody may have purged it.
#[derive(Debug, Default)]
struct Dated {
    /// In seconds since 1970.
    at: Option<i64>,
    call: Option<CallId>,
    retry_at: Duration,
}

/// The state machine. A driver (or a simulation) gives it inputs and makes its calls.
#[derive(Debug)]
pub struct Term {
    timing: Timing,
    uid: Arc<str>,
    trust: Trust,
    /// The state to publish, without what is said of other clusters.
    wanted: Option<Arc<Map>>,
    member: Member,
    writer: Writer,
    reader: Reader,
    /// `None` where leaders do not talk to each other.
    stream: Option<Stream>,
    /// What the ledger says of other clusters, as of the last input, and the reader's revision of it.
    contacts: BTreeMap<Arc<str>, Contact>,
    contacts_of: u64,
    pace: Pace,
    keeper: Keeper,
    out: Outbox,
    inherited: Option<Arc<Inherited>>,
    /// The other clusters as the reader has them, and the reader's revision of it.
    read: Remotes,
    read_of: u64,
    remotes: Arc<Remotes>,
    /// The revisions of reader and stream that `remotes` shows.
    remotes_of: (u64, u64),
    dated: Dated,
    /// Whether this cluster may register (J3 to J5), once that is known, and the reader's revision of it.
    standing: Option<Standing>,
    standing_of: Option<(u64, Option<bool>)>,
    /// What became of other clusters since somebody asked last.
    news: Vec<News>,
    /// See [`Self::revision`].
    revision: u64,
    /// [`Self::read_back`]
    read_back: Option<Arc<Map>>,
}

impl Term {
    /// A term in which nothing is known yet.
    pub fn new(
        me: WriterIdentity,
        timing: Timing,
        limits: Limits,
        stale_ttl: Option<Duration>,
        trust: Trust,
        ids: Ids,
    ) -> Self {
        let keys = if trust.mode == Mode::Open { Vec::new() } else { trust.own.clone() };
        let member = Member { clusterset: me.clusterset.to_string(), cluster: me.cluster.to_string() };
        Self {
            stream: None,
            contacts: BTreeMap::new(),
            contacts_of: 0,
            pace: Pace::default(),
            timing,
            uid: me.uid.clone(),
            wanted: None,
            member,
            writer: Writer::new(me.clone(), timing, limits, ids).signing(keys),
            reader: Reader::new(me, timing, stale_ttl, trust.clone(), limits.remote_bytes),
            trust,
            keeper: Keeper::default(),
            out: Outbox::default(),
            inherited: None,
            read: Remotes::default(),
            read_of: 0,
            remotes: Arc::default(),
            remotes_of: (0, 0),
            dated: Dated::default(),
            standing: None,
            standing_of: None,
            news: Vec::new(),
            revision: 0,
            read_back: None,
        }
    }

    /// Lets this leader talk to others, who find it at these addresses. Without keys nobody does.
    #[must_use]
    pub fn streaming(mut self, addresses: Arc<[SocketAddr]>, ids: Ids) -> Self {
        let stream = Stream::new(self.writer.identity().clone(), self.timing, ids);
        self.stream = Some(stream.within(self.reader.most()));
        self.writer = self.writer.listening(addresses);
        self
    }

    /// Another number whenever what others see of this term may have changed. A sign of life and a socket that took a
    /// message change nothing of it, and with many clusters these are most of what happens.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The half that publishes: how far it is, and what it wrote.
    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// The half that reads: what it knows of other clusters.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The state from which this leader started; `None` until W2 is over.
    pub fn own(&self) -> Option<&Arc<Map>> {
        self.inherited.as_ref().map(|inherited| &inherited.map)
    }

    /// That state, and how old it is. The same [`Arc`] for all of the term.
    pub fn inherited(&self) -> Option<&Arc<Inherited>> {
        self.inherited.as_ref()
    }

    /// The other clusters. This is the same [`Arc`] until something relevant changes.
    pub fn remotes(&self) -> &Arc<Remotes> {
        &self.remotes
    }

    /// The stored record, if it is known.
    pub fn record(&self) -> Option<&Record> {
        self.keeper.stored.as_ref().map(|(record, _)| record)
    }

    /// The last error of writer or record.
    pub fn error(&self) -> Option<&str> {
        self.writer.error().or(self.keeper.error.as_deref())
    }

    /// Sets the state to publish.
    pub fn desire(&mut self, now: Now, map: Arc<Map>) {
        self.wanted = Some(map);
        self.say(now);
        self.settle(now);
    }

    /// Publishes the wanted state, and which clusters are gone for good.
    fn say(&mut self, now: Now) {
        let Some(wanted) = &self.wanted else { return };
        let signs = self.trust.mode != Mode::Open;
        // Others would hear that it has not joined, and newcomers would ask nobody.
        if signs && self.standing.is_none() {
            return;
        }
        let record = self.keeper.stored.as_ref().map(|(record, _)| record).or(self.keeper.before.as_ref());
        // A cluster that leaves says nothing any more.
        let map = match record.filter(|record| signs && !record.leaving) {
            Some(record) => {
                let joined = self.standing.as_ref().is_some_and(Standing::is_joined);
                let said = Ballot::of_record(self.trust.join, joined, &record.accepted);
                said.write(forgotten::with(wanted, &record.accepted), &self.member.cluster)
            }
            None => wanted.clone(),
        };
        self.writer.desire(now, map, &mut self.out);
    }

    /// How soon after the beginning of a read of the heads the next one should begin. It may fall at any input; then the next
    /// read is due no later than this after that.
    pub fn pace(&self) -> Duration {
        self.pace.next(&self.timing)
    }

    /// Takes the heads of one discovery; `None` if it failed or returned 1,000 rows (R1).
    pub fn tick(&mut self, now: Now, heads: Option<&Heads>) {
        let max_step = self.pace.read(&self.timing);
        // Nothing is known without the record: positions would go back, and a leaving cluster would publish.
        if self.keeper.stored.is_some() || self.keeper.before.is_some() {
            // Leaders may end before one of their heads is there. Who signed from the beginning has no other heads.
            let begins = |record: &Record| {
                let none_yet = |since: u64| since > 0 && record.signs.is_none();
                record.signed_since.is_none_or(|since| record.epoch <= since || none_yet(since))
            };
            let begins = self.record().or(self.keeper.before.as_ref()).is_some_and(begins);
            let genuine = heads.and_then(|heads| self.trust.without_forged(heads, &self.uid, begins));
            let heads = genuine.as_ref().or(heads);
            self.writer.tick(now, heads, &mut self.out);
            self.reader.tick(now, max_step, heads, &mut self.out);
        }
        self.settle(now);
    }

    /// Does whatever is due.
    pub fn poll(&mut self, now: Now) {
        self.out.wake = self.out.wake.filter(|at| *at > now.mono);
        if self.keeper.stored.is_some() || self.keeper.before.is_some() {
            self.writer.advance(now, &mut self.out);
        }
        self.settle(now);
    }

    /// Takes the outcome of a call. Outcomes of calls that nobody waits for any more are ignored.
    pub fn done(&mut self, now: Now, id: CallId, outcome: &Outcome) {
        if self.keeper.call.as_ref().is_some_and(|call| call.id == id) {
            self.record_done(now, outcome);
            self.say(now);
        } else if self.dated.call.take_if(|call| *call == id).is_some() {
            self.dated.retry_at = now.mono + self.timing.creator_retry;
            if let Outcome::Creator(Some(Created { by, at })) = outcome {
                self.dated.at = Some(*at).filter(|_| **by == *self.uid);
            }
        } else if let Some((_, from)) = self.keeper.departing.take_if(|(call, _)| *call == id) {
            if matches!(outcome, Outcome::Done) {
                self.keeper.departed.push(from);
            } else {
                self.keeper.depart_at = now.mono + self.timing.refused_retry;
                self.keeper.failed_departures += 1;
            }
        } else if !self.writer.done(now, id, outcome, &mut self.out) {
            self.reader.done(now, id, outcome, &mut self.out);
        }
        self.settle(now);
    }

    /// A connection was made, by dialling `dialled` or by being dialled, and both keys are verified.
    pub fn opened(&mut self, now: Now, id: SessionId, key: PublicKey, dialled: Option<&Arc<str>>) {
        self.stream.iter_mut().for_each(|stream| stream.opened(now.mono, id, key, dialled));
        self.settle(now);
    }

    /// No connection to this cluster could be made.
    pub fn unreachable(&mut self, now: Now, cluster: &Arc<str>, why: String) {
        if let Some(stream) = &mut self.stream {
            stream.failed(now.mono, cluster, why);
        }
        self.settle(now);
    }

    /// Somebody wanted to connect with this key, which no live cluster has.
    pub fn refused(&mut self, now: Now, key: PublicKey) {
        self.stream.iter_mut().for_each(|stream| stream.refused(now.mono, key));
        self.settle(now);
    }

    /// A message came.
    pub fn received(&mut self, now: Now, id: SessionId, message: Message) {
        if let Some(stream) = &mut self.stream {
            if message == Message::Alive && stream.alive(now.mono, id) {
                return;
            }
            stream.received(now.mono, id, message, &self.contacts);
        }
        self.settle(now);
    }

    /// The socket has taken the message that was sent last.
    pub fn taken(&mut self, now: Now, id: SessionId) {
        match self.stream.as_mut().and_then(|stream| stream.taken(now.mono, id, self.writer.said())) {
            Some(at) => self.out.wake_at(at),
            None => self.settle(now),
        }
    }

    /// The connection is gone.
    pub fn closed(&mut self, now: Now, id: SessionId) {
        self.stream.iter_mut().for_each(|stream| stream.closed(now.mono, id));
        self.settle(now);
    }

    /// What the stream asks for.
    pub fn take_commands(&mut self) -> Vec<Command> {
        self.stream.as_mut().map(Stream::take_commands).unwrap_or_default()
    }

    /// The clusters from which a whole state came by a session that lasts.
    pub fn connected(&self) -> BTreeSet<Arc<str>> {
        self.stream.iter().flat_map(Stream::connected).cloned().collect()
    }

    /// Clusters that should be connected and are not, and why the last attempt failed: they are heard through the ledger, and
    /// their leaders say where they can be reached.
    pub fn unconnected(&self) -> BTreeMap<Arc<str>, String> {
        let silent =
            |id: &str| self.remotes.clusters.iter().any(|(other, it)| other.as_str() == id && it.stale.is_some());
        let wanted = |id: &Arc<str>| {
            self.contacts.get(id).is_some_and(|contact| contact.live && !contact.addresses.is_empty()) && !silent(id)
        };
        let failed = self.stream.iter().flat_map(Stream::unreachable);
        failed.filter(|(id, _)| wanted(id)).map(|(id, why)| (id.clone(), why.clone())).collect()
    }

    /// The keys that may connect: those of live clusters.
    pub fn may_connect(&self) -> BTreeSet<PublicKey> {
        self.contacts.values().filter(|contact| contact.live).filter_map(|contact| contact.key).collect()
    }

    /// The stream, if leaders talk to each other.
    pub fn stream(&self) -> Option<&Stream> {
        self.stream.as_ref()
    }

    /// A published state that was read back in this epoch. It is shown only when everything applies that others said in
    /// the same read, because they may have older claims.
    pub fn read_back(&self) -> Option<&Arc<Map>> {
        self.read_back.as_ref()
    }

    /// The calls to make now.
    pub fn take_calls(&mut self) -> Vec<(CallId, Call)> {
        std::mem::take(&mut self.out.calls)
    }

    /// What became of other clusters since this was called last.
    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Calls that need not be awaited any more: their outcomes are ignored.
    pub fn take_cancelled(&mut self) -> Vec<CallId> {
        std::mem::take(&mut self.out.cancelled)
    }

    /// When to call [`Self::poll`] at the latest.
    pub fn wake(&self) -> Option<Duration> {
        self.out.wake
    }

    /// Says to others what this leader wants to be known, and takes what they said.
    fn talk(&mut self, now: Now) {
        let Some(stream) = &mut self.stream else { return };
        stream.advance(now.mono, self.writer.term(), self.writer.said(), &self.contacts);
        let mut more = false;
        for (cluster, streamed) in stream.held() {
            self.reader.heard(cluster);
            more |= self.reader.hold(cluster, streamed);
        }
        if more {
            self.reader.keep_budget(now);
        }
        stream.wake().into_iter().for_each(|at| self.out.wake_at(at));
    }

    fn settle(&mut self, now: Now) {
        self.revision += 1;
        self.depart(now);
        if self.contacts_of != self.reader.revision() {
            (self.contacts, self.contacts_of) = (self.reader.contacts(), self.reader.revision());
        }
        self.talk(now);
        self.date(now);
        self.judge(now);
        self.keep(now);
        if self.inherited.is_none() {
            let barred = !self.standing.as_ref().is_some_and(Standing::is_joined);
            let inherited = self.writer.inherited().map(|inherited| Inherited { barred, ..inherited });
            self.inherited = inherited.map(|inherited| Arc::new(self.with_standalone(inherited)));
        }
        if !self.reader.is_behind() {
            self.read_back = self.writer.read_back().cloned();
        }
        self.show();
        let read = self.reader.is_at_rest();
        self.pace.observe(now.mono, &self.timing, &self.writer, read, self.stream.as_ref(), &self.contacts);
    }

    /// R10: asks since when this cluster is in the ledger, once it owns its id.
    fn date(&mut self, now: Now) {
        if self.dated.at.is_some() || self.dated.call.is_some() || self.writer.epoch() == 0 {
            return;
        }
        if now.mono < self.dated.retry_at {
            return self.out.wake_at(self.dated.retry_at);
        }
        self.dated.call = Some(self.out.call(Call::Creator { cluster: self.writer.identity().cluster.clone() }));
    }

    /// J3 to J5: whether this cluster may register. It is judged again when something changed that the others say.
    fn judge(&mut self, now: Now) {
        let Some(Inherited { map, .. }) = self.writer.inherited() else { return };
        let record = self.record().filter(|record| record.is_of(&self.member.clusterset));
        let recorded = record.and_then(|record| record.joined);
        let of = (self.reader.revision(), recorded);
        if self.standing_of == Some(of) {
            return;
        }
        let me = self.writer.identity().clone();
        let begins = self.standing.is_none();
        let own = if begins { Ballot::read(&map, &me.cluster) } else { Ballot::default() };
        let had_joined = own.joined || self.standing.as_ref().is_some_and(Standing::is_joined);
        self.standing_of = Some(of);
        if self.trust.demands_approval() {
            for (cluster, (uid, key)) in &own.approved {
                self.reader.believe(cluster, uid, *key);
            }
        }
        let standing = if self.trust.mode == Mode::Open {
            Standing::Joined
        } else {
            joining::judge(&Facts {
                me: (&me.cluster, &me.uid),
                keys: &self.trust.own,
                created: self.own_created(),
                join: self.trust.join,
                joined: recorded.unwrap_or(had_joined),
                // What a cluster says of which AWS has not answered yet whose it is may be that it is a member.
                heads_read: self.reader.is_verified(),
                accepted: &self.reader.voters(),
                unaccepted: self.reader.unaccepted(),
            })
        };
        if self.standing.as_ref() != Some(&standing) {
            self.standing = Some(standing);
            self.say(now);
        }
    }

    /// Why this cluster may not register, with the remedy.
    pub fn barred(&self) -> Option<String> {
        self.standing.as_ref()?.text(&self.member.cluster, self.trust.own.first())
    }

    /// Whether this cluster may register, once that is known.
    pub fn standing(&self) -> Option<&Standing> {
        self.standing.as_ref()
    }

    /// Since when this cluster is in the ledger, also under a former id; 0 if that is not known.
    fn own_created(&self) -> i64 {
        let record = self.record().filter(|record| record.is_of(&self.member.clusterset));
        let recorded = record.and_then(|record| record.created.values().min().copied());
        recorded.into_iter().chain(self.dated.at).min().unwrap_or_default()
    }

    /// Shows the other clusters as reader and stream have them now.
    fn show(&mut self) {
        let revisions = (self.reader.revision(), self.stream.as_ref().map_or(0, Stream::revision));
        let own_created = self.own_created();
        if self.remotes_of == revisions && own_created == self.remotes.own_created {
            return;
        }
        self.remotes_of = revisions;
        if self.read_of != revisions.0 {
            (self.read, self.read_of) = (self.reader.remotes(), revisions.0);
        }
        let mut remotes = Remotes { own_created, ..self.read.clone() };
        self.stream.iter().for_each(|stream| stream.overlay(&mut remotes));
        if !remotes.same_content(&self.remotes) {
            self.remotes = Arc::new(remotes);
        }
    }
}
