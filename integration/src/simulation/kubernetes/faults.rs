//! What goes wrong between one replica and the API server, while the driver says so.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{log::Verb, refusal::Refusal, resources::Resource};

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Watches show events, and lists of any version (`resourceVersion=0`) objects, this much later than they happen.
    Stale(Duration),
    /// Open watches die without a word: no more bytes, never closed. New ones work.
    DeadWatches,
    /// Open watches die without a word, and no request is answered or takes effect.
    Partitioned,
    /// Connections are refused, and open watches break.
    Away,
    /// 429, with `Retry-After` in seconds.
    Throttled(u64),
    /// 503.
    Unavailable,
    /// An admission policy refuses writes with this message.
    Denied(String),
    /// 409: somebody else is always faster.
    Conflict,
    /// The request takes this much longer: one half before it takes effect, and one half until the answer.
    Slow(Duration),
    /// Never answered, and without effect.
    HangsBefore,
    /// Never answered, but it took effect.
    HangsAfter,
    /// The connection breaks after it took effect.
    AnswerLost,
}

/// Which requests are meant: `None` is any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    pub replica: Option<String>,
    pub resource: Option<&'static Resource>,
    pub verb: Option<Verb>,
    /// All writing verbs.
    pub writes: bool,
    /// After that many requests it is over.
    pub times: Option<u32>,
}

impl PartialEq for Resource {
    fn eq(&self, other: &Self) -> bool {
        (self.group, self.plural) == (other.group, other.plural)
    }
}

impl Eq for Resource {}

impl Scope {
    pub fn all() -> Self {
        Self::default()
    }

    pub fn replica(name: &str) -> Self {
        Self { replica: Some(name.to_owned()), ..Self::default() }
    }

    /// # Panics
    /// If there is no such kind.
    #[must_use]
    pub fn of(self, plural: &str) -> Self {
        Self { resource: Some(Resource::named(plural)), ..self }
    }

    #[must_use]
    pub fn on(self, verb: Verb) -> Self {
        Self { verb: Some(verb), ..self }
    }

    #[must_use]
    pub fn on_writes(self) -> Self {
        Self { writes: true, ..self }
    }

    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self { times: Some(times), ..self }
    }

    fn covers(&self, replica: &str, resource: &Resource, verb: Verb) -> bool {
        self.replica.as_deref().is_none_or(|named| named == replica)
            && self.resource.is_none_or(|named| named == resource)
            && self.verb.is_none_or(|named| named == verb)
            && (!self.writes || verb.is_write())
            && self.times != Some(0)
    }
}

/// Which fault, to end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultId(u64);

/// When a crash hook strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The write has no effect.
    Before,
    /// It took effect, and nobody learns of it.
    After,
}

/// Strikes at a write of a replica.
pub(super) struct Crash {
    replica: String,
    /// Writes until it strikes.
    left: u32,
    moment: Moment,
    then: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crash").field("replica", &self.replica).field("left", &self.left).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    next: u64,
    present: BTreeMap<FaultId, (Scope, Fault)>,
    crashes: Vec<Crash>,
    /// Events before that version are lost for a replica and kind.
    floors: BTreeMap<(String, &'static str), u64>,
}

/// What becomes of one request.
#[derive(Default)]
pub(super) struct Course {
    pub(super) delay: Duration,
    pub(super) before: Option<Stop>,
    pub(super) after: Option<Stop>,
    pub(super) crash: Option<(Moment, Box<dyn FnOnce() + Send>)>,
}

/// How a request ends without the answer that it would have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    Refused(Refusal),
    Broken,
    Silence,
}

impl Faults {
    pub(super) fn inject(&mut self, scope: Scope, fault: Fault) -> FaultId {
        self.next += 1;
        let id = FaultId(self.next);
        self.present.insert(id, (scope, fault));
        id
    }

    pub(super) fn clear(&mut self, id: FaultId) {
        self.present.remove(&id);
    }

    pub(super) fn clear_all(&mut self) {
        self.present.clear();
        self.crashes.clear();
    }

    pub(super) fn crash(&mut self, replica: &str, nth: u32, moment: Moment, then: Box<dyn FnOnce() + Send>) {
        self.crashes.push(Crash { replica: replica.to_owned(), left: nth.max(1), moment, then });
    }

    pub(super) fn lose_events(&mut self, replica: &str, resource: &Resource, version: u64) {
        self.floors.insert((replica.to_owned(), resource.plural), version);
    }

    /// Before which version a replica has lost the events of a kind.
    pub(super) fn floor(&self, replica: &str, resource: &Resource) -> u64 {
        self.floors.get(&(replica.to_owned(), resource.plural)).copied().unwrap_or(0)
    }

    /// How late events come.
    pub(super) fn lag(&self, replica: &str, resource: &Resource, verb: Verb) -> Duration {
        let lags = self.present.values().filter_map(|(scope, fault)| match fault {
            Fault::Stale(lag) if scope.covers(replica, resource, verb) => Some(*lag),
            _ => None,
        });
        lags.max().unwrap_or_default()
    }

    /// Whether open watches of a replica break, or die without a word.
    pub(super) fn of_open_watch(&self, replica: &str, resource: &Resource) -> Option<Stop> {
        self.present.values().find_map(|(scope, fault)| match fault {
            _ if !scope.covers(replica, resource, Verb::Watch) => None,
            Fault::DeadWatches | Fault::Partitioned => Some(Stop::Silence),
            Fault::Away => Some(Stop::Broken),
            _ => None,
        })
    }

    /// What becomes of a request that arrives now.
    pub(super) fn course(&mut self, replica: &str, resource: &Resource, name: &str, verb: Verb) -> Course {
        let mut course = Course::default();
        for (scope, fault) in self.present.values_mut() {
            if course.before.is_some() || !scope.covers(replica, resource, verb) {
                continue;
            }
            match fault {
                Fault::Stale(_) | Fault::DeadWatches => continue,
                Fault::Denied(_) | Fault::Conflict if !verb.is_write() => continue,
                Fault::Slow(by) => course.delay += *by,
                Fault::HangsAfter => course.after = Some(Stop::Silence),
                Fault::AnswerLost => course.after = Some(Stop::Broken),
                Fault::Partitioned | Fault::HangsBefore => course.before = Some(Stop::Silence),
                Fault::Away => course.before = Some(Stop::Broken),
                Fault::Throttled(after) => course.before = Some(Stop::Refused(Refusal::throttled(*after))),
                Fault::Unavailable => course.before = Some(Stop::Refused(Refusal::unavailable())),
                Fault::Denied(why) => course.before = Some(Stop::Refused(Refusal::denied(why))),
                Fault::Conflict => course.before = Some(Stop::Refused(Refusal::outdated(resource, name))),
            }
            if let Some(times) = &mut scope.times {
                *times -= 1;
            }
        }
        // The Lease is written all the time: if that counted, hardly a crash would strike between two other writes.
        if verb.is_write() && resource.plural != "leases" && course.before.is_none() {
            let of_replica = self.crashes.iter_mut().filter(|crash| crash.replica == replica);
            of_replica.for_each(|crash| crash.left = crash.left.saturating_sub(1));
            if let Some(struck) = self.crashes.iter().position(|crash| crash.replica == replica && crash.left == 0) {
                let crash = self.crashes.remove(struck);
                course.crash = Some((crash.moment, crash.then));
            }
        }
        course
    }
}
