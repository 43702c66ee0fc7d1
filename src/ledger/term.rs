//! One leader's term: writer, reader and the record between them, as one pure state machine.

mod record;
mod standing;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    Map, RegistryName,
    call::{Call, CallId, Created, Ids, Outbox, Outcome},
    forgotten,
    joining::{Ballot, Standing},
    limits::{Limits, Timing},
    news::News,
    pace::Pace,
    reader::Reader,
    readers::Readers,
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

/// Who this leader is, and what applies to all of its term.
#[derive(Debug)]
struct Settings {
    timing: Timing,
    uid: Arc<str>,
    trust: Trust,
    member: Member,
    /// The name of the home, if registries have names.
    home: Option<RegistryName>,
    stale_ttl: Option<Duration>,
}

/// Something that is much to make, and what it was made of: it is made again when that is another one.
#[derive(Debug, Default)]
struct Made<T, Of = u64> {
    value: T,
    of: Of,
}

impl<T, Of: PartialEq> Made<T, Of> {
    fn renew(&mut self, of: Of, make: impl FnOnce() -> T) {
        if self.of != of {
            *self = Self { value: make(), of };
        }
    }
}

/// The other clusters.
#[derive(Debug, Default)]
struct Others {
    /// What the ledger says of them, by the reader's revision.
    contacts: Made<BTreeMap<Arc<str>, Contact>>,
    /// As the reader has them, by its revision.
    read: Made<Remotes>,
    /// As others see them, by the revisions of reader and stream.
    remotes: Made<Arc<Remotes>, (u64, u64)>,
}

/// The state machine. A driver (or a simulation) gives it inputs and makes its calls.
#[derive(Debug)]
pub struct Term {
    settings: Settings,
    /// The state to publish, without what is said of other clusters.
    wanted: Option<Arc<Map>>,
    writer: Writer,
    readers: Readers,
    /// `None` where leaders do not talk to each other.
    stream: Option<Stream>,
    others: Others,
    pace: Pace,
    keeper: Keeper,
    out: Outbox,
    inherited: Option<Arc<Inherited>>,
    dated: Dated,
    /// Whether this cluster may register (J3 to J5), once that is known, by the reader's revision and the record.
    standing: Made<Option<Standing>, Option<(u64, Option<bool>)>>,
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
            settings: Settings { timing, uid: me.uid.clone(), trust: trust.clone(), member, home: None, stale_ttl },
            wanted: None,
            writer: Writer::new(me.clone(), timing, limits, ids).signing(keys),
            readers: Readers::new(Reader::new(me, timing, stale_ttl, trust, limits.remote_bytes)),
            stream: None,
            others: Others::default(),
            pace: Pace::default(),
            keeper: Keeper::default(),
            out: Outbox::default(),
            inherited: None,
            dated: Dated::default(),
            standing: Made::default(),
            news: Vec::new(),
            revision: 0,
            read_back: None,
        }
    }

    /// Reads these registries beside the home, which has this name.
    #[must_use]
    pub fn reading(mut self, home: RegistryName, registries: &[RegistryName]) -> Self {
        let Settings { timing, stale_ttl, trust, .. } = &self.settings;
        let me = self.writer.identity();
        let make = |most| Reader::new(me.clone(), *timing, *stale_ttl, trust.clone(), most);
        self.readers = self.readers.beside(home.clone(), registries, make);
        self.settings.home = Some(home);
        self
    }

    /// Lets this leader talk to others, who find it at these addresses. Without keys nobody does.
    #[must_use]
    pub fn streaming(mut self, addresses: Arc<[SocketAddr]>, ids: Ids) -> Self {
        let stream = Stream::new(self.writer.identity().clone(), self.settings.timing, ids);
        self.stream = Some(stream.within(self.readers.most()));
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

    /// The half that reads the home: what it knows of the clusters there.
    pub fn reader(&self) -> &Reader {
        self.readers.home()
    }

    /// Those of all registries.
    pub(crate) const fn readers(&self) -> &Readers {
        &self.readers
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
        &self.others.remotes.value
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
        self.publish(now);
        self.conclude(now);
    }

    /// Publishes the wanted state, and which clusters are gone for good.
    fn publish(&mut self, now: Now) {
        let Some(wanted) = &self.wanted else { return };
        let signs = self.settings.trust.mode != Mode::Open;
        // Others would hear that it has not joined, and newcomers would ask nobody.
        if signs && self.standing.value.is_none() {
            return;
        }
        let record = self.keeper.stored.as_ref().map(|(record, _)| record).or(self.keeper.before.as_ref());
        // A cluster that leaves says nothing any more.
        let map = match record.filter(|record| signs && !record.leaving) {
            Some(record) => {
                let joined = self.standing.value.as_ref().is_some_and(Standing::is_joined);
                let said = Ballot::of_record(self.settings.trust.join, joined, &record.accepted);
                said.write(forgotten::with(wanted, &record.accepted), &self.settings.member.cluster)
            }
            None => wanted.clone(),
        };
        self.writer.desire(now, map, &mut self.out);
    }

    /// How soon after the beginning of a read of the heads the next one should begin. It may fall at any input; then the next
    /// read is due no later than this after that.
    pub fn pace(&self) -> Duration {
        self.pace.next(&self.settings.timing)
    }

    /// Takes the heads of one discovery; `None` if it failed or returned 1,000 rows (R1).
    pub fn tick(&mut self, now: Now, heads: Option<&Heads>) {
        let max_step = self.pace.read(&self.settings.timing);
        // Nothing is known without the record: positions would go back, and a leaving cluster would publish.
        if self.keeper.stored.is_some() || self.keeper.before.is_some() {
            // Leaders may end before one of their heads is there. Who signed from the beginning has no other heads.
            let begins = |record: &Record| {
                let none_yet = |since: u64| since > 0 && record.signs.is_none();
                record.signed_since.is_none_or(|since| record.epoch <= since || none_yet(since))
            };
            let begins = self.record().or(self.keeper.before.as_ref()).is_some_and(begins);
            let genuine = heads.and_then(|heads| self.settings.trust.without_forged(heads, &self.settings.uid, begins));
            let heads = genuine.as_ref().or(heads);
            self.writer.tick(now, heads, &mut self.out);
            self.readers.tick(now, None, max_step, heads, &mut self.out);
        }
        self.conclude(now);
    }

    /// [`Self::tick`] with the heads of another registry than the home.
    pub fn tick_elsewhere(&mut self, now: Now, registry: &RegistryName, heads: Option<&Heads>) {
        let max_step = self.settings.timing.max_step.max(self.settings.timing.tick_at_rest * 2);
        if self.keeper.stored.is_some() || self.keeper.before.is_some() {
            self.readers.tick(now, Some(registry), max_step, heads, &mut self.out);
        }
        self.conclude(now);
    }

    /// Does whatever is due.
    pub fn poll(&mut self, now: Now) {
        self.out.wake = self.out.wake.filter(|at| *at > now.mono);
        if self.keeper.stored.is_some() || self.keeper.before.is_some() {
            self.writer.advance(now, &mut self.out);
        }
        self.conclude(now);
    }

    /// Takes the outcome of a call. Outcomes of calls that nobody waits for any more are ignored.
    pub fn done(&mut self, now: Now, id: CallId, outcome: &Outcome) {
        if self.keeper.call.as_ref().is_some_and(|call| call.id == id) {
            self.record_done(now, outcome);
            self.publish(now);
        } else if self.dated.call.take_if(|call| *call == id).is_some() {
            self.dated.retry_at = now.mono + self.settings.timing.creator_retry;
            if let Outcome::Creator(Some(Created { by, at })) = outcome {
                self.dated.at = Some(*at).filter(|_| **by == *self.settings.uid);
            }
        } else if let Some((_, from)) = self.keeper.departing.take_if(|(call, _)| *call == id) {
            if matches!(outcome, Outcome::Done) {
                self.keeper.departed.push(from);
            } else {
                self.keeper.depart_at = now.mono + self.settings.timing.refused_retry;
                self.keeper.failed_departures += 1;
            }
        } else if !self.writer.done(now, id, outcome, &mut self.out) {
            self.readers.done(now, id, outcome, &mut self.out);
        }
        self.conclude(now);
    }

    /// A connection was made, by dialling `dialled` or by being dialled, and both keys are verified.
    pub fn opened(&mut self, now: Now, id: SessionId, key: PublicKey, dialled: Option<&Arc<str>>) {
        self.stream.iter_mut().for_each(|stream| stream.opened(now.mono, id, key, dialled));
        self.conclude(now);
    }

    /// No connection to this cluster could be made.
    pub fn unreachable(&mut self, now: Now, cluster: &Arc<str>, why: String) {
        if let Some(stream) = &mut self.stream {
            stream.failed(now.mono, cluster, why);
        }
        self.conclude(now);
    }

    /// Somebody wanted to connect with this key, which no live cluster has.
    pub fn refused(&mut self, now: Now, key: PublicKey) {
        self.stream.iter_mut().for_each(|stream| stream.refused(now.mono, key));
        self.conclude(now);
    }

    /// A message came.
    pub fn received(&mut self, now: Now, id: SessionId, message: Message) {
        if let Some(stream) = &mut self.stream {
            if message == Message::Alive && stream.alive(now.mono, id) {
                return;
            }
            stream.received(now.mono, id, message, &self.others.contacts.value);
        }
        self.conclude(now);
    }

    /// The socket has taken the message that was sent last.
    pub fn taken(&mut self, now: Now, id: SessionId) {
        match self.stream.as_mut().and_then(|stream| stream.taken(now.mono, id, self.writer.own_state())) {
            Some(at) => self.out.wake_at(at),
            None => self.conclude(now),
        }
    }

    /// The connection is gone.
    pub fn closed(&mut self, now: Now, id: SessionId) {
        self.stream.iter_mut().for_each(|stream| stream.closed(now.mono, id));
        self.conclude(now);
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
        let silent = |id: &str| {
            self.others.remotes.value.clusters.iter().any(|(other, it)| other.as_str() == id && it.stale.is_some())
        };
        let wanted = |id: &Arc<str>| {
            self.others.contacts.value.get(id).is_some_and(|contact| contact.live && !contact.addresses.is_empty())
                && !silent(id)
        };
        let failed = self.stream.iter().flat_map(Stream::unreachable);
        failed.filter(|(id, _)| wanted(id)).map(|(id, why)| (id.clone(), why.clone())).collect()
    }

    /// The keys that may connect: those of live clusters.
    pub fn may_connect(&self) -> BTreeSet<PublicKey> {
        self.others.contacts.value.values().filter(|contact| contact.live).filter_map(|contact| contact.key).collect()
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

    /// Sends others the state of this leader, and takes theirs.
    fn exchange(&mut self, now: Now) {
        let Some(stream) = &mut self.stream else { return };
        stream.advance(now.mono, self.writer.term(), self.writer.own_state(), &self.others.contacts.value);
        let mut more = false;
        for (cluster, streamed, diff) in stream.held() {
            more |= self.readers.hold(cluster, streamed, diff.as_ref());
        }
        if more {
            self.readers.keep_budget(now);
        }
        stream.wake().into_iter().for_each(|at| self.out.wake_at(at));
    }

    fn conclude(&mut self, now: Now) {
        self.revision += 1;
        self.depart(now);
        self.others.contacts.renew(self.readers.revision(), || self.readers.contacts());
        self.exchange(now);
        self.writer.diff_taken();
        self.date(now);
        self.judge(now);
        self.keep(now);
        if self.inherited.is_none() {
            let barred = !self.standing.value.as_ref().is_some_and(Standing::is_joined);
            let inherited = self.writer.inherited().map(|inherited| Inherited { barred, ..inherited });
            self.inherited = inherited.map(|inherited| Arc::new(self.with_standalone(inherited)));
        }
        if !self.readers.home().is_behind() {
            self.read_back = self.writer.read_back().cloned();
        }
        self.show();
        let read = self.readers.is_at_rest();
        self.pace.observe(
            now.mono,
            &self.settings.timing,
            &self.writer,
            read,
            self.stream.as_ref(),
            &self.others.contacts.value,
        );
    }

    /// Shows the other clusters as reader and stream have them now.
    fn show(&mut self) {
        let revisions = (self.readers.revision(), self.stream.as_ref().map_or(0, Stream::revision));
        let own_created = self.own_created();
        if self.others.remotes.of == revisions && own_created == self.others.remotes.value.own_created {
            return;
        }
        self.others.remotes.of = revisions;
        self.others.read.renew(revisions.0, || self.readers.remotes());
        let mut remotes = Remotes { own_created, ..self.others.read.value.clone() };
        self.stream.iter().for_each(|stream| stream.overlay(&mut remotes));
        if !remotes.same_content(&self.others.remotes.value) {
            self.others.remotes.value = Arc::new(remotes);
        }
    }
}
