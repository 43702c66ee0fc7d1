//! What the engine knows about one target, and the listings that targets share.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Creation, Ids, Outcome, Reason, TargetDesired, TargetStatus,
    notice::{Crowded, Notice},
};
use crate::{
    api::events::EventReason,
    cloudmap::{DnsConfig, DnsRecord, Error, ErrorKind, OperationId, RecordType},
    instances::{
        Adopt,
        attributes::{Digest, ServiceTraits},
        ownership::Control,
        plan::{Adopted, Own},
    },
};

/// First and longest wait before something that failed is tried again.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_mins(1);
/// The longest wait for a listing that AWS throttled.
const RETRY_THROTTLED: Duration = Duration::from_secs(8);

/// Wait after the n-th failure in a row, counted from 1.
pub(super) fn back_off(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(RETRY_LAST)
}

/// Kinds of calls that have places of their own, so that none waits for those of another kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Resolve,
    /// Looks at services, to know whose they are: hundreds at the begin of a term, which nothing that is made waits for.
    Inspect,
    Read,
    Write,
    /// Changes of services, which take AWS seconds.
    Change,
}

impl Class {
    pub(super) const ALL: [Self; 5] = [Self::Resolve, Self::Inspect, Self::Read, Self::Write, Self::Change];

    /// Calls in flight. Few, because those who wait for a request rate wait in the order in which they came: what is
    /// urgent overtakes the bulk only here.
    pub(super) const fn places(self) -> usize {
        match self {
            Self::Resolve | Self::Inspect | Self::Change => 4,
            Self::Read => 8,
            Self::Write => 16,
        }
    }
}

/// What is to be done next for a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Want {
    Namespaces,
    CreateNamespace,
    Services { namespace_id: Arc<str> },
    CreateService { namespace_id: Arc<str>, dns: Option<DnsConfig>, custom_health_check: bool },
    Inspect { service_id: Arc<str> },
    Read { service_id: Arc<str> },
    Write { service_id: Arc<str>, id: Arc<str> },
    SetHealth { service_id: Arc<str>, id: Arc<str>, healthy: bool },
    SetTtl { service_id: Arc<str>, ttl: u32 },
    DeleteService { service_id: Arc<str> },
}

impl Want {
    pub(super) fn class(&self) -> Class {
        match self {
            Self::Inspect { .. } => Class::Inspect,
            Self::Read { .. } => Class::Read,
            Self::Write { .. } | Self::SetHealth { .. } => Class::Write,
            Self::SetTtl { .. } => Class::Change,
            _ => Class::Resolve,
        }
    }
}

/// A service that a target was found to be.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) service_id: Arc<str>,
    pub(super) traits: ServiceTraits,
    pub(super) records: Vec<DnsRecord>,
    pub(super) control: Control,
    /// Whose it is is still to be asked: before that nothing is registered there.
    pub(super) unproven: bool,
    /// Instances that it identifies become ours.
    pub(super) adopt: Option<Adopt>,
    /// It is somebody else's, as far as is known until then: only what we have there is withdrawn.
    pub(super) refused_until: Option<Instant>,
    /// When this was found.
    pub(super) since: Instant,
}

#[derive(Debug, Clone, Default)]
pub(super) enum Phase {
    #[default]
    Unresolved,
    Resolved(Place),
    /// Retired: nothing of ours is there.
    Gone,
}

#[derive(Debug)]
pub(super) struct Running {
    /// What the instance says when the operation succeeds; `None`: it is gone then.
    pub(super) effect: Option<Digest>,
    /// The health that it is registered with.
    pub(super) healthy: bool,
    /// `None` while the request is on its way.
    pub(super) operation: Option<OperationId>,
    /// Somebody's operation that is in the way of ours.
    pub(super) in_the_way: bool,
    pub(super) polls: u32,
    pub(super) since: Instant,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    pub(super) failures: u32,
    pub(super) at: Instant,
}

/// The health that was said of an instance last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub(super) healthy: bool,
    /// AWS takes its time: until then a reading may show what was before.
    pub(super) settles: Instant,
}

/// How changing the TTL stands.
#[derive(Debug, Default)]
pub(super) struct Ttl {
    pub(super) in_flight: bool,
    pub(super) failures: u32,
    pub(super) not_before: Option<Instant>,
    pub(super) error: Option<String>,
}

/// When the own instances of a target were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Seen {
    #[default]
    Never,
    /// Since this replica leads.
    Once,
    /// Since the last write ended, and since the leader before has no more requests on their way.
    Since,
}

/// A reading that is in flight.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) begun: Instant,
    /// Ids that were written since, about which it tells nothing.
    pub(super) written: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) phase: Phase,
    /// The service that all this is about.
    pub(super) service_id: Option<Arc<str>>,
    /// A resolving call for this target is in flight.
    pub(super) busy: bool,
    pub(super) own: Own,
    pub(super) taken: BTreeSet<Arc<str>>,
    /// Instances that are not ours, and how many of them fail their health check.
    pub(super) foreign: usize,
    pub(super) foreign_ill: usize,
    /// In services with a custom health check.
    pub(super) told: BTreeMap<Arc<str>, Told>,
    /// Whose health is being said.
    pub(super) telling: BTreeSet<Arc<str>>,
    /// Whose health is still to be said; planned with `pending`.
    pub(super) untold: VecDeque<(Arc<str>, bool)>,
    pub(super) ttl: Ttl,
    pub(super) crowded: Crowded,
    /// Ids on which somebody else's operation was in the way of ours: not written before they are read.
    pub(super) unsure: BTreeSet<Arc<str>>,
    /// When to read out of turn, and how often that was done since a write succeeded.
    pub(super) read_at: Option<Instant>,
    pub(super) read_again: u32,
    /// Instances of the controller that is replaced: deregistered when ours are there.
    pub(super) adopted: Adopted,
    pub(super) seen: Seen,
    pub(super) reading: Option<Reading>,
    pub(super) running: BTreeMap<Arc<str>, Running>,
    /// Ids that are still to be written; `None`: to be planned.
    pub(super) pending: Option<VecDeque<Arc<str>>>,
    /// None of the wanted instances is there yet: what is not wanted any more is not among `pending`.
    pub(super) waits_for_first: bool,
    pub(super) retry: BTreeMap<Arc<str>, Retry>,
    pub(super) failures: u32,
    pub(super) not_before: Option<Instant>,
    /// A quota is reached: no new instances until then.
    pub(super) full_until: Option<Instant>,
    /// Why the target as a whole, or one of its writes, does not get on.
    pub(super) problem: Option<(Reason, String)>,
    /// A call that makes something was not answered: until then it may take effect.
    pub(super) late_until: Option<Instant>,
    /// Endpoints that cannot be registered.
    pub(super) unfit: Option<String>,
    /// All was as desired once: what changes from now on is urgent.
    pub(super) settled: bool,
    pub(super) found: Option<Ids>,
    pub(super) reached: Option<Ids>,
    pub(super) queued: Option<(Class, bool)>,
}

impl State {
    pub(super) fn place(&self) -> Option<&Place> {
        match &self.phase {
            Phase::Resolved(place) => Some(place),
            Phase::Unresolved | Phase::Gone => None,
        }
    }

    /// Nothing is written, waited for or to be tried again.
    pub(super) fn at_rest(&self) -> bool {
        let written =
            self.running.is_empty() && self.retry.is_empty() && self.pending.as_ref().is_some_and(VecDeque::is_empty);
        written && self.telling.is_empty() && self.untold.is_empty() && self.unsure.is_empty()
    }

    pub(super) fn registered(&self) -> usize {
        self.own.values().filter(|digest| digest.is_some()).count()
    }

    /// Forgets where the target is and what is there, but not what is on its way.
    pub(super) fn lose_place(&mut self) {
        self.phase = Phase::Unresolved;
        self.service_id = None;
        self.own.clear();
        self.taken.clear();
        self.adopted.clear();
        self.unsure.clear();
        self.read_at = None;
        (self.foreign, self.foreign_ill) = (0, 0);
        self.told.clear();
        self.untold.clear();
        self.seen = Seen::Never;
        self.reading = None;
        self.retry.clear();
        self.pending = None;
    }

    /// The target as a whole is tried again later. The wait for it is returned.
    pub(super) fn fail(&mut self, error: &Error, now: Instant) -> Instant {
        self.failures += 1;
        let mut wait = back_off(self.failures);
        if let Some(reason) = reason(error) {
            if matches!(reason, Reason::AccessDenied | Reason::LimitExceeded) {
                wait = RETRY_LAST;
            }
            if self.failures > reason.hiccups() {
                self.problem = Some((reason, error.to_string()));
            }
        }
        let at = now + wait;
        self.not_before = Some(at);
        at
    }

    /// Has the instances read out of turn: what happened only a reading explains. The time of that is returned; a target in
    /// which much happens is read once in a back-off.
    pub(super) fn read_soon(&mut self, now: Instant) -> Instant {
        *self.read_at.get_or_insert(now + back_off(self.read_again + 1))
    }

    /// Instances went: where a quota was reached, there is room now.
    pub(super) fn make_room(&mut self, now: Instant) {
        // When all that go are gone, or most attempts would be vain.
        let Some(until) = self.full_until.filter(|_| self.running.is_empty()) else { return };
        self.full_until = None;
        for retry in self.retry.values_mut().filter(|retry| retry.at == until) {
            retry.at = now;
        }
        self.pending = None;
    }

    /// Something went well: what was said is over, unless an instance is still to be tried again.
    pub(super) fn relieve(&mut self) {
        if self.retry.is_empty() && self.place().is_some_and(|place| place.refused_until.is_none()) {
            self.problem = None;
            self.failures = 0;
            self.read_again = 0;
        }
    }

    /// `dns`: the namespace is one with DNS.
    pub(super) fn status(&self, desired: &TargetDesired, dns: bool) -> TargetStatus {
        let registered = self.registered();
        let outcome = match (&self.problem, &self.unfit) {
            (Some((reason, message)), _) => Outcome::Refused { reason: *reason, message: message.clone() },
            (None, Some(message)) => Outcome::Refused { reason: Reason::UnfitEndpoints, message: message.clone() },
            (None, None) if self.settled => Outcome::Registered { count: registered },
            (None, None) => Outcome::Pending,
        };
        let own_gone = matches!(self.phase, Phase::Gone);
        let notices = if desired.active { self.notices(&desired.creation, dns) } else { Vec::new() };
        TargetStatus {
            outcome,
            registered,
            own_gone,
            notices,
            found: self.found.clone(),
            reached: self.reached.clone(),
        }
    }

    fn notices(&self, creation: &Creation, dns: bool) -> Vec<Notice> {
        let mut notices: Vec<_> = self.crowded.notices().collect();
        let place = self.place().filter(|place| place.refused_until.is_none());
        let kinds = |records: &[DnsRecord]| records.iter().map(|record| record.record_type).collect::<BTreeSet<_>>();
        let asked = creation.dns.as_ref().map(|dns| dns.records.as_slice()).unwrap_or_default();
        if let Some(place) = place.filter(|place| place.control == Control::Ours)
            && dns
            && creation.service
            && kinds(&place.records) != kinds(asked)
        {
            let list =
                |records: &[DnsRecord]| match kinds(records).into_iter().map(RecordType::as_str).collect::<Vec<_>>() {
                    kinds if kinds.is_empty() => "none".to_owned(),
                    kinds => kinds.join(" and "),
                };
            let message = format!(
                "The records of the Cloud Map service are {}, asked for are {}: AWS lets nobody change their kinds; take the \
                 Service back until its Cloud Map service is gone, or choose another name",
                list(&place.records),
                list(asked)
            );
            notices.push(Notice { reason: EventReason::RecordsDiffer, message });
        }
        if let Some(error) = &self.ttl.error {
            let message = format!("The TTL stays as it is, which is tried again: {error}");
            notices.push(Notice { reason: EventReason::TtlNotChanged, message });
        }
        notices
    }

    /// Sees how many instances there are, now that all of them are known.
    pub(super) fn count(&mut self) {
        let Some(place) = self.place().filter(|place| place.refused_until.is_none()) else { return };
        let traits = place.traits;
        let ill = self.told.iter().filter(|(id, told)| !told.healthy && self.own.contains_key(*id)).count();
        let instances = self.own.len() + self.foreign;
        self.crowded = self.crowded.with(traits, instances, instances.saturating_sub(ill + self.foreign_ill));
    }

    /// Nothing remains to be written.
    pub(super) fn settle(&mut self) {
        self.settled = true;
        self.reach();
        self.count();
    }

    /// Notes what is registered now that nothing remains to be written.
    fn reach(&mut self) {
        let registered = self.own.iter().filter(|(_, said)| said.is_some()).map(|(id, _)| id);
        if !self.reached.as_ref().is_some_and(|reached| reached.iter().eq(registered.clone())) {
            self.reached = Some(Arc::new(registered.cloned().collect()));
        }
    }
}

impl Reason {
    /// So many failures in a row are no news.
    pub(super) const fn hiccups(self) -> u32 {
        match self {
            Self::Failed => 2,
            // Half a minute: several clusters share the rates of an account.
            Self::Throttled => 5,
            _ => 0,
        }
    }
}

/// What a failed call says to the user; `None`: nothing, it is only a matter of time.
pub(super) fn reason(error: &Error) -> Option<Reason> {
    match error.kind {
        ErrorKind::LimitExceeded => Some(Reason::LimitExceeded),
        ErrorKind::AccessDenied => Some(Reason::AccessDenied),
        ErrorKind::Throttled => Some(Reason::Throttled),
        ErrorKind::Duplicate { .. } | ErrorKind::NotFound => None,
        _ => Some(Reason::Failed),
    }
}

/// What a failure says to the user, if anything yet.
pub(super) type Trouble = Option<(Reason, String)>;

/// A listing that many targets need: read once, by one call at a time.
#[derive(Debug)]
pub(super) struct Listing<T> {
    /// With the time at which they came.
    pub(super) rows: Option<(Instant, T)>,
    /// When the call for the rows began.
    begun: Option<Instant>,
    loading: Option<Instant>,
    /// A call that began before this tells nothing.
    forgotten: Option<Instant>,
    failures: u32,
    not_before: Option<Instant>,
    error: Option<Error>,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { rows: None, begun: None, loading: None, forgotten: None, failures: 0, not_before: None, error: None }
    }
}

impl<T> Listing<T> {
    /// Rows that are at most `age` old.
    pub(super) fn fresh(&self, age: Duration, now: Instant) -> Option<&T> {
        self.rows.as_ref().filter(|(at, _)| now.duration_since(*at) <= age).map(|(_, rows)| rows)
    }

    pub(super) fn may_load(&self, now: Instant) -> bool {
        !self.is_loading() && self.not_before.is_none_or(|at| at <= now)
    }

    pub(super) const fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    pub(super) fn load(&mut self, now: Instant) {
        self.loading = Some(now);
    }

    /// The rows are out of date, and those of a call that is on its way are as well.
    pub(super) fn forget(&mut self, now: Instant) {
        self.rows = None;
        self.forgotten = self.loading.map(|_| now);
    }

    /// Whether the rows are of a call that began at `since` or later: then what they lack was not there at `since`.
    pub(super) fn began_since(&self, since: Instant) -> bool {
        self.rows.is_some() && self.begun.is_some_and(|begun| begun >= since)
    }

    pub(super) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// Whether the last reading failed, and what is to be said of it.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let error = self.error.as_ref()?;
        let reason = reason(error).filter(|reason| *reason == Reason::Failed || self.failures > reason.hiccups());
        Some(reason.map(|reason| (reason, error.to_string())))
    }

    /// A failed reading leaves the rows as they were.
    pub(super) fn loaded(&mut self, result: Result<T, Error>, now: Instant) {
        let begun = self.loading.take().unwrap_or(now);
        match result {
            Ok(_) if self.forgotten.is_some_and(|at| begun <= at) => *self = Self::default(),
            Ok(rows) => *self = Self { rows: Some((now, rows)), begun: Some(begun), ..Self::default() },
            Err(error) => {
                self.failures += 1;
                // Where AWS throttles, the next one waits for its turn as it is.
                let longest = if error.kind == ErrorKind::Throttled { RETRY_THROTTLED } else { RETRY_LAST };
                self.not_before = Some(now + back_off(self.failures).min(longest));
                self.error = Some(error);
            }
        }
    }
}
