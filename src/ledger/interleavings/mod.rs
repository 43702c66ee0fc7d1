//! Interleavings that once lost something, one by one, through the real state machines. The simulation finds such
//! things; these say which rule prevents which of them.

mod bounds;
mod contesting;
mod crowded;
mod flushing;
mod hiding;
mod inheriting;
mod joining;
mod leaving;
mod reading;
mod resting;
mod streaming;
mod summaries;
mod sustained;
mod trusting;
mod writing;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Map, Value,
    call::{Call, CallId, Created, Failure, Ids, Outcome, Pages},
    hash::{Hashes, Summary},
    head::Head,
    limits::{Limits, Timing},
    page::{PageId, StoredPage},
    remote::Remote,
    term::Term,
    trust::{Announced, Trust},
    verify::{self, Cache},
    writer::{Heads, Now, WriterIdentity},
};
use crate::record::{Member, Position, Record};

/// When the world began, in seconds since 1970.
const BEGAN: i64 = 1_700_000_000;

type Stored = BTreeMap<PageId, Arc<StoredPage>>;

/// A registry that does at once what it is asked to do, and the Kubernetes objects of every cluster.
#[derive(Default)]
struct World {
    now: Duration,
    creators: BTreeMap<(Arc<str>, u32), Arc<str>>,
    /// When exports services were created, by cluster id, in seconds since 1970; the others were [`BEGAN`].
    dates: BTreeMap<Arc<str>, i64>,
    heads: BTreeMap<Arc<str>, Arc<Head>>,
    /// What clusters announce.
    keys: BTreeMap<Arc<str>, Announced>,
    /// Copies of heads in the clusters' own services.
    copies: BTreeMap<Arc<str>, Arc<Head>>,
    pages: BTreeMap<(Arc<str>, u32), Stored>,
    /// Every page that ever was written: what a head meant when it was sent.
    archive: Stored,
    /// Pages that no discovery shows, although their operations succeeded.
    hidden: BTreeSet<PageId>,
    hides_new_pages: bool,
    /// Every head that was sent, in order.
    sent: Vec<Arc<Head>>,
    /// Former memberships that were marked as left.
    departed: Vec<Member>,
    /// By API server: the record, and the process that holds the Lease. A cluster's is named by its UID.
    records: BTreeMap<Arc<str>, (Record, u64)>,
    leases: BTreeMap<Arc<str>, u32>,
}

impl World {
    fn now(&self) -> Now {
        Now { mono: self.now, wall: 1_700_000_000_000 + self.now.as_millis() as u64 }
    }

    fn discover(&self) -> Heads {
        self.heads.iter().map(|(id, head)| (id.clone(), Ok(head.clone()))).collect()
    }

    /// The state that the committed head means to somebody who has read nothing before.
    fn read(&self, cluster: &str) -> Option<Map> {
        let of_cluster = |((of, _), _): &(&(Arc<str>, u32), &Stored)| **of == *cluster;
        let stored = self.pages.iter().filter(of_cluster).flat_map(|(_, pages)| pages.clone()).collect();
        meaning(self.heads.get(cluster)?, &stored)
    }

    /// The states that the heads sent since the first `from` ones meant.
    fn said(&self, from: usize) -> Vec<Map> {
        self.sent[from..].iter().map(|head| meaning(head, &self.archive).unwrap()).collect()
    }

    fn count_pages(&self, cluster: &str) -> usize {
        self.pages.iter().filter(|((of, _), _)| **of == *cluster).map(|(_, pages)| pages.len()).sum()
    }

    fn epoch(&self, uid: &str) -> u64 {
        self.records.get(uid).map_or(0, |(record, _)| record.epoch)
    }

    /// What `cloudmap-mcs leave` does.
    fn set_leaving(&mut self, uid: &str) {
        let (record, version) = self.records.entry(uid.into()).or_default();
        record.leaving = true;
        *version += 1;
    }

    /// Whatever the call does, it does now.
    fn claim(&mut self, service: (Arc<str>, u32), uid: &Arc<str>) -> Outcome {
        let id = service.0.clone();
        let created = !self.creators.contains_key(&service);
        let owner = self.creators.entry(service).or_insert_with(|| uid.clone());
        if owner != uid {
            return Outcome::Taken { owner: owner.to_string() };
        }
        let own = self.creators.iter().filter(|((cluster, _), owner)| *cluster == id && *owner == uid);
        let shards = own.map(|((_, shard), _)| shard + 1).max().unwrap_or_default();
        Outcome::Claimed { created, shards }
    }

    fn put_page(&mut self, service: (Arc<str>, u32), uid: &Arc<str>, page: Arc<StoredPage>) -> Outcome {
        if self.hides_new_pages {
            self.hidden.insert(page.id.clone());
        }
        let owner = self.creators.entry(service.clone()).or_insert_with(|| uid.clone());
        if owner != uid {
            return Outcome::Taken { owner: owner.to_string() };
        }
        self.pages.entry(service).or_default().insert(page.id.clone(), page);
        Outcome::Done
    }

    fn make(&mut self, by: &Process, call: &Call) -> Outcome {
        let (own, uid, home) = (by.me.cluster.clone(), by.me.uid.clone(), by.home.clone());
        match call.clone() {
            Call::Claim { shard } => self.claim((own, shard), &uid),
            Call::ConfirmLease => Outcome::Lease { held: self.leases.get(&home) == Some(&by.number) },
            Call::LoadRecord => {
                let (record, version) = self.records.get(&home).cloned().unzip();
                Outcome::Loaded {
                    record: Box::new(record.unwrap_or_default()),
                    version: version.map(|v| v.to_string()),
                }
            }
            Call::StoreRecord { record, expected } => {
                let version = self.records.get(&home).map(|(_, version)| *version);
                if version.map(|version| version.to_string()) != expected {
                    return Outcome::Conflict;
                }
                let version = version.unwrap_or_default() + 1;
                self.records.insert(home, (*record, version));
                Outcome::Stored { version: Some(version.to_string()) }
            }
            Call::ReadPages { cluster, shard, flush } => {
                let rows = self.pages.get(&(cluster, shard)).into_iter().flatten();
                let asked = |id: &PageId| flush.as_ref().is_none_or(|flush| *flush == id.flush);
                let shown = rows.filter(|(id, _)| asked(id) && !self.hidden.contains(id));
                let pages = shown.map(|(_, page)| page.clone()).collect();
                Outcome::Pages(Arc::new(Pages { pages, truncated: false }))
            }
            Call::PutHead { head, .. } => {
                let signer = by.trust.own.first().copied();
                self.heads.insert(head.cluster.clone(), Arc::new(Head { signer, ..Head::clone(&head) }));
                Outcome::Done
            }
            Call::PutPage { shard, page } => self.put_page((own, shard), &uid, page),
            Call::DeletePage { cluster, shard, page } => {
                let owner = self.creators.get(&(cluster.clone(), shard)).filter(|owner| **owner != uid);
                if let Some(owner) = owner {
                    return Outcome::Taken { owner: owner.to_string() };
                }
                self.pages.entry((cluster, shard)).or_default().remove(&page);
                Outcome::Done
            }
            Call::Depart { from } => {
                self.departed.push(from);
                Outcome::Done
            }
            Call::RemoveFormer { cluster } => {
                self.creators.retain(|(of, _), owner| *of != cluster || *owner != uid);
                self.heads.remove(&cluster);
                Outcome::Done
            }
            Call::Announce => {
                let (key, former) = by.trust.own.split_first().unwrap();
                self.keys.insert(own, Announced { key: *key, former: former.to_vec() });
                Outcome::Done
            }
            Call::PutCopy { head } => {
                let signer = by.trust.own.first().copied();
                self.copies.insert(own, Arc::new(Head { signer, ..Head::clone(&head) }));
                Outcome::Done
            }
            // There is one registry.
            Call::Elsewhere { .. } => Outcome::Copy(None),
            Call::Copy { cluster } => Outcome::Copy(self.copies.get(&cluster).cloned()),
            Call::Announced { cluster, uid: _ } => Outcome::Announced(self.keys.get(&cluster).cloned()),
            Call::Creator { cluster } => {
                let by = self.creators.get(&(cluster.clone(), 0)).map(ToString::to_string);
                let at = self.dates.get(&cluster).copied().unwrap_or(BEGAN);
                Outcome::Creator(by.map(|by| Created { by, at }))
            }
        }
    }
}

/// The state that a head means, given these pages.
fn meaning(head: &Head, pages: &Stored) -> Option<Map> {
    let verified = verify::verify(&head.root, &Cache::default(), pages).ok()?;
    Some(head.delta.apply(&verified.map))
}

/// The head with the hashes of this state.
fn of_state(head: Head, map: &Arc<Map>) -> Head {
    let hashes = Hashes::of(&head.owner(&"prod".into()), map);
    Head { summary: Summary { hashes, ..head.summary }, ..head }
}

/// A process that believes that it leads its cluster.
struct Process {
    number: u32,
    /// The API server that has its record and Lease.
    home: Arc<str>,
    me: WriterIdentity,
    trust: Trust,
    term: Term,
    /// Calls that hang, and which ones do.
    hanging: Vec<(CallId, Call)>,
    hangs: fn(&Call) -> bool,
    /// Calls that fail without an effect, and calls that have theirs but never an answer.
    fails: fn(&Call) -> bool,
    loses: fn(&Call) -> bool,
    /// What discovery returns instead of what is true.
    sees: Option<Heads>,
    /// How many instances it wrote or deleted.
    writes: usize,
}

fn timing() -> Timing {
    Timing::default()
}

/// About five pairs a page and nine changes a delta.
fn limits() -> Limits {
    Limits { page_bytes: 120, delta_bytes: 200, index_entries: 4, runs: 8, compression: 0, ..Limits::default() }
}

impl Process {
    /// A new process, which holds the Lease.
    fn elect(world: &mut World, cluster: &str) -> Self {
        Self::elect_with(world, cluster, &format!("uid-{cluster}"), limits(), None)
    }

    fn elect_with(world: &mut World, cluster: &str, uid: &str, limits: Limits, ttl: Option<Duration>) -> Self {
        Self::start(
            world,
            WriterIdentity { clusterset: "prod".into(), cluster: cluster.into(), uid: uid.into() },
            &timing(),
            limits,
            ttl,
        )
    }

    fn start(world: &mut World, me: WriterIdentity, timing: &Timing, limits: Limits, ttl: Option<Duration>) -> Self {
        let home = me.uid.clone();
        Self::start_at(world, home, me, timing, limits, ttl, Trust::default())
    }

    fn start_at(
        world: &mut World,
        home: Arc<str>,
        me: WriterIdentity,
        timing: &Timing,
        limits: Limits,
        ttl: Option<Duration>,
        trust: Trust,
    ) -> Self {
        let holder = world.leases.entry(home.clone()).or_default();
        *holder += 1;
        let number = *holder;
        let term = Term::new(me.clone(), *timing, limits, ttl, trust.clone(), Ids::new(u64::from(number)));
        let mut process = Self {
            number,
            home,
            me,
            trust,
            term,
            hanging: Vec::new(),
            hangs: |_| false,
            fails: |_| false,
            loses: |_| false,
            sees: None,
            writes: 0,
        };
        process.term.poll(world.now());
        process.settle(world);
        process
    }

    fn desire(&mut self, world: &mut World, map: &Arc<Map>) {
        self.term.desire(world.now(), map.clone());
        self.settle(world);
    }

    /// Makes its calls until it asks for no more, but for those that hang.
    fn settle(&mut self, world: &mut World) {
        loop {
            let calls = self.term.take_calls();
            if calls.is_empty() {
                return;
            }
            for (id, call) in calls {
                self.writes +=
                    usize::from(call.writes() && !matches!(call, Call::Claim { .. } | Call::StoreRecord { .. }));
                match &call {
                    Call::PutHead { head, .. } => world.sent.push(head.clone()),
                    Call::PutPage { page, .. } => {
                        world.archive.insert(page.id.clone(), page.clone());
                    }
                    _ => {}
                }
                if (self.hangs)(&call) {
                    self.hanging.push((id, call));
                } else if (self.fails)(&call) {
                    let failure = Failure { message: "throttled".to_owned() };
                    self.term.done(world.now(), id, &Outcome::Failed(failure));
                } else if (self.loses)(&call) {
                    world.make(self, &call);
                } else {
                    let outcome = world.make(self, &call);
                    self.term.done(world.now(), id, &outcome);
                }
            }
        }
    }

    /// The calls that hang fail as far as the process knows. What they do, they may still do.
    fn time_out(&mut self, world: &mut World) -> Vec<Call> {
        self.hangs = |_| false;
        let hanging = std::mem::take(&mut self.hanging);
        for (id, _) in &hanging {
            let failure = Failure { message: "time-out".to_owned() };
            self.term.done(world.now(), *id, &Outcome::Failed(failure));
        }
        self.settle(world);
        hanging.into_iter().map(|(_, call)| call).collect()
    }

    /// The calls that hang succeed after all.
    fn let_go(&mut self, world: &mut World) {
        self.hangs = |_| false;
        self.let_go_first(world, usize::MAX);
    }

    /// The first `count` of the calls that hang succeed after all.
    fn let_go_first(&mut self, world: &mut World, count: usize) {
        let count = count.min(self.hanging.len());
        for (id, call) in self.hanging.drain(..count).collect::<Vec<_>>() {
            let outcome = world.make(self, &call);
            self.term.done(world.now(), id, &outcome);
        }
        self.settle(world);
    }

    fn remote(&self, cluster: &str) -> Option<Remote> {
        self.term.remotes().clusters.get(&cluster.parse().unwrap()).cloned()
    }

    /// The state of another cluster that applies here.
    fn applies(&self, cluster: &str) -> Option<Arc<Map>> {
        self.remote(cluster)?.state
    }
}

/// Lets seconds pass: one tick each, of every process.
fn pass(world: &mut World, processes: &mut [&mut Process], seconds: u64) {
    pass_by(world, processes, Duration::from_secs(1), seconds);
}

/// Lets so many ticks pass.
fn pass_by(world: &mut World, processes: &mut [&mut Process], tick: Duration, ticks: u64) {
    for _ in 0..ticks {
        world.now += tick;
        for process in &mut *processes {
            let heads = process.sees.clone().unwrap_or_else(|| world.discover());
            process.term.poll(world.now());
            // A driver would ask again at once, and again, while the clock stands.
            assert!(process.term.wake().is_none_or(|at| at > world.now), "it asks to be polled for what is due by now");
            process.term.tick(world.now(), Some(&heads));
            process.settle(world);
        }
    }
}

/// Lets seconds pass in which AWS denies these calls of `process`. Returns when it made some.
fn refuse(world: &mut World, process: &mut Process, which: fn(&Call) -> bool, seconds: u64) -> Vec<u64> {
    process.hangs = which;
    let mut refused = Vec::new();
    for _ in 0..seconds {
        pass(world, &mut [&mut *process], 1);
        let calls: Vec<_> = process.hanging.drain(..).collect();
        if !calls.is_empty() {
            refused.push(world.now.as_secs());
        }
        for (id, _) in calls {
            let failure = Failure { message: "AccessDeniedException".to_owned() };
            process.term.done(world.now(), id, &Outcome::Failed(failure));
        }
        process.settle(world);
    }
    process.hangs = |_| false;
    refused
}

/// A state with these keys.
fn state(keys: impl IntoIterator<Item = u32>, value: u8) -> Arc<Map> {
    Arc::new(keys.into_iter().map(|key| (format!("ns/{key:03}").into(), Value::from([value; 8]))).collect())
}

/// A leader of `cluster` whose state of `keys` keys is in pages, and has been for a while.
fn with_pages(world: &mut World, cluster: &str, keys: u32) -> Process {
    let mut leader = Process::elect(world, cluster);
    leader.desire(world, &state(0..keys, 1));
    pass(world, &mut [&mut leader], 30);
    assert_eq!(world.read(cluster), Some(Map::clone(&state(0..keys, 1))));
    assert!(world.heads[cluster].delta.is_empty() && world.count_pages(cluster) > 0);
    leader
}

fn is_head(call: &Call) -> bool {
    matches!(call, Call::PutHead { .. })
}

fn is_page(call: &Call) -> bool {
    matches!(call, Call::PutPage { .. })
}

fn reads_pages(call: &Call) -> bool {
    matches!(call, Call::ReadPages { .. })
}

fn is_record(call: &Call) -> bool {
    matches!(call, Call::StoreRecord { .. })
}

fn at(epoch: u64, seq: u64) -> Position {
    Position { epoch, seq }
}
