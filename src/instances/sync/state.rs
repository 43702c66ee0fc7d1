//! What the engine knows about one target.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    ops::{AddAssign, SubAssign},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    Awaited, Ids, Outcome, Reason, ShareFigures, TargetDesired, TargetShare, TargetStatus,
    altered::Altered,
    failure::consequence,
    notice::{Crowded, Notice, of_share},
    readback,
    remade::{Remade, types},
    share::Part,
};
use crate::{
    Adopt,
    attributes::{Digest, ServiceTraits},
    ownership::{Control, ServiceOwner},
    plan::{Adopted, Own, find},
};
use api::events::EventReason;
use cloudmap::{DnsConfig, DnsRecord, Error, Namespace, NamespaceKind, OperationId, RecordType};
use model::{ClusterId, ServiceKey};

/// Kinds of calls. Each has places of its own, so that no kind waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Resolve,
    /// Looks at services to find their owners: hundreds at the beginning of a term. Nothing that is created waits for
    /// them.
    Inspect,
    Read,
    Write,
    /// Changes of services, which take AWS seconds.
    Change,
}

impl Class {
    pub(super) const ALL: [Self; 5] = [Self::Resolve, Self::Inspect, Self::Read, Self::Write, Self::Change];

    /// Maximum number of calls in flight. It is small, because calls that wait for a request rate wait in their order,
    /// and something urgent can overtake the backlog only here.
    pub(super) const fn places(self) -> usize {
        match self {
            Self::Resolve | Self::Inspect | Self::Change => 4,
            Self::Read => 8,
            Self::Write => 16,
        }
    }
}

/// The next step for a target.
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

/// The service of a target.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) service_id: Arc<str>,
    pub(super) traits: ServiceTraits,
    pub(super) records: Vec<DnsRecord>,
    pub(super) control: Control,
    /// Whether its owner is still to be found. Before that, nothing is registered there.
    pub(super) unproven: bool,
    /// Instances of this controller become ours.
    pub(super) adopt: Option<Adopt>,
    /// Whether it is foreign as far as is known. Own instances are then withdrawn, unless they stay
    /// ([`outstays`](crate::plan::outstays)).
    pub(super) refused: bool,
    /// When this was found, or could not be found again.
    pub(super) since: Instant,
    /// Whether AWS has called a write invalid since: the service may have other records by now, or no health check.
    pub(super) doubtful: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) enum Phase {
    #[default]
    Unresolved,
    Resolved(Place),
    /// The target is retired, and nothing of ours is there.
    Gone,
}

#[derive(Debug)]
pub(super) struct Running {
    /// The digest of the instance if the operation succeeds; `None` if the instance is then gone.
    pub(super) effect: Option<Digest>,
    /// The health with which it is registered.
    pub(super) healthy: bool,
    /// The operation; `None` while the request is in flight.
    pub(super) operation: Option<OperationId>,
    /// Whether it is somebody else's operation, which blocks ours.
    pub(super) in_the_way: bool,
    /// Whether AWS denied to say what became of it, so that a reading must show that.
    pub(super) unpolled: bool,
    pub(super) polls: u32,
    pub(super) since: Instant,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    pub(super) failures: u32,
    pub(super) at: Instant,
}

/// The health status that was last set for an instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub(super) healthy: bool,
    /// Until then, a reading may show the previous status, because AWS takes its time.
    pub(super) settles: Instant,
}

/// The state of a change of the TTL.
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
    /// Since the last write ended, and since the previous leader has no more requests in flight.
    Since,
}

/// A reading in flight.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) begun: Instant,
    /// Ids that were written since, about which the reading proves nothing.
    pub(super) written: BTreeSet<Arc<str>>,
}

/// What a target, or all of them, have of something.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Own instances that are known to be registered.
    pub(super) registered: usize,
    /// Writes that wait for their turn.
    pub(super) queued: usize,
    /// Listing calls that reading takes, by what was there last. (Health comes from another operation, at a rate of its own.)
    pub(super) pages: usize,
    pub(super) shares: ShareFigures,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, Self { registered, queued, pages, shares }: Self) {
        self.registered += registered;
        self.queued += queued;
        self.pages += pages;
        self.shares = self.shares.combined(shares, |a, b| a + b);
    }
}

impl SubAssign for Counts {
    fn sub_assign(&mut self, Self { registered, queued, pages, shares }: Self) {
        self.registered -= registered;
        self.queued -= queued;
        self.pages -= pages;
        self.shares = self.shares.combined(shares, |a, b| a - b);
    }
}

/// Readings that failed, one after the other. What is known is enough to write, so nothing else waits for them.
#[derive(Debug, Default)]
pub(super) struct Unread {
    failures: u32,
    not_before: Option<Instant>,
    problem: Option<(Reason, String)>,
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own: any of them goes with any other")]
pub(super) struct State {
    /// Its part of the engine's sums.
    pub(super) counted: Counts,
    pub(super) phase: Phase,
    /// The service to which all of this belongs.
    pub(super) service_id: Option<Arc<str>>,
    /// Whether a call that finds the service is in flight.
    pub(super) busy: bool,
    pub(super) own: Own,
    pub(super) taken: BTreeSet<Arc<str>>,
    /// Number of foreign instances, and how many of them fail their health check.
    pub(super) foreign: usize,
    pub(super) foreign_ill: usize,
    /// As [`Reading::strangers`](crate::plan::Reading::strangers).
    pub(super) strangers: usize,
    /// The last health statuses, in services with a custom health check.
    pub(super) told: BTreeMap<Arc<str>, Told>,
    /// Instances whose health is being set.
    pub(super) telling: BTreeSet<Arc<str>>,
    /// Instances whose health is still to be set; planned together with `pending`.
    pub(super) untold: VecDeque<(Arc<str>, bool)>,
    pub(super) ttl: Ttl,
    pub(super) crowded: Crowded,
    /// Boxed, because few targets have one; also the next.
    pub(super) remade: Option<Box<Remade>>,
    pub(super) altered: Option<Box<Altered>>,
    /// Ids for which somebody else's operation blocked ours. They are read before they are written.
    pub(super) unsure: BTreeSet<Arc<str>>,
    /// When to read out of turn, and how often that happened since a write succeeded.
    pub(super) read_at: Option<Instant>,
    pub(super) read_again: u32,
    /// Instances of the replaced controller, and own ones whose endpoints get other ids. They are deregistered when those
    /// that replace them are there.
    pub(super) adopted: Adopted,
    pub(super) seen: Seen,
    pub(super) reading: Option<Reading>,
    pub(super) unread: Unread,
    /// AWS denied to say whether an operation has ended, in these words.
    pub(super) unpolled: Option<Arc<str>>,
    pub(super) running: BTreeMap<Arc<str>, Running>,
    /// Ids that are still to be written; `None` if they must be planned.
    pub(super) pending: Option<VecDeque<Arc<str>>>,
    /// Whether none of the desired instances is there yet. Then `pending` does not contain those that are no longer
    /// desired. Or whether pods of a share wait that are replaced, or an id waits until the endpoint that had it is registered
    /// under another one: the others are registered first.
    pub(super) waits_for_first: bool,
    pub(super) retry: BTreeMap<Arc<str>, Retry>,
    pub(super) failures: u32,
    pub(super) not_before: Option<Instant>,
    /// Until when there are no new instances, because a quota is exhausted.
    pub(super) full_until: Option<Instant>,
    /// Until when no instances are registered (`true`) or deregistered (`false`), because IAM does not allow it. The other
    /// of the two goes on. An entry stays until such a write succeeds, or none is left to do.
    pub(super) denied: BTreeMap<bool, Instant>,
    /// Why the target as a whole, or one of its writes, makes no progress.
    pub(super) problem: Option<(Reason, String)>,
    /// Until when a call that creates something, and that had no answer, may take effect.
    pub(super) late_until: Option<Instant>,
    /// Why some endpoints cannot be registered.
    pub(super) unfit: Option<String>,
    /// Those of them for which somebody waits.
    pub(super) unfit_awaited: BTreeSet<Arc<str>>,
    /// Whether everything was as desired once, so that later changes are urgent.
    pub(super) settled: bool,
    /// Its share of the traffic, if it has one.
    pub(super) part: Option<Box<Part>>,
    pub(super) found: Option<Ids>,
    /// Something is registered for the Service of [`TargetDesired::only_found`].
    pub(super) found_own: bool,
    pub(super) reached: Option<Ids>,
    pub(super) queued: Option<(Class, bool)>,
    /// Whose the service is, as far as it was looked at.
    pub(super) owner: Option<ServiceOwner>,
    /// When to look at a service in which nothing is registered, for the contenders.
    pub(super) look_at: Option<Instant>,
    /// The successor whose instances the last reading showed.
    pub(super) succeeded: Option<(ClusterId, ServiceKey)>,
}

impl State {
    pub(super) fn place(&self) -> Option<&Place> {
        match &self.phase {
            Phase::Resolved(place) => Some(place),
            Phase::Unresolved | Phase::Gone => None,
        }
    }

    /// Whether its service must be looked at again: a service that keeps instances out may have changed.
    pub(super) fn is_look_due(&self, now: Instant) -> bool {
        let is_due = |place: &Place| (place.refused || self.unfit.is_some()) && place.again_at() <= now;
        self.place().is_some_and(|place| place.doubtful || is_due(place))
    }

    /// Whether nothing is being written, waited for, or to be tried again.
    pub(super) fn at_rest(&self) -> bool {
        let written =
            self.running.is_empty() && self.retry.is_empty() && self.pending.as_ref().is_some_and(VecDeque::is_empty);
        let told = self.telling.is_empty() && self.untold.is_empty();
        written && told && self.unsure.is_empty() && self.denied.is_empty()
    }

    pub(super) fn registered(&self) -> usize {
        self.own.values().filter(|digest| digest.is_some()).count()
    }

    pub(super) fn count_all(&self, desired: Option<&TargetDesired>) -> Counts {
        let pending = self.pending.as_ref().map_or(0, VecDeque::len);
        let pages = if self.seen == Seen::Never { 0 } else { self.pages() };
        let queued = pending + self.untold.len() + self.retry.len();
        let share = self.part.as_ref().and_then(|part| part.status()).zip(desired);
        let shares = share.map(|(share, desired)| ShareFigures::of(share.reached, self.registered_pods(desired)));
        let shares = shares.unwrap_or_default();
        Counts { registered: self.registered(), queued, pages, shares }
    }

    /// As [`Counts::pages`].
    pub(super) fn pages(&self) -> usize {
        1 + (self.own.len() + self.foreign) / 100
    }

    /// Forgets the service and its instances, but not the calls in flight.
    pub(super) fn lose_place(&mut self) {
        self.phase = Phase::Unresolved;
        self.service_id = None;
        self.owner = None;
        self.succeeded = None;
        self.own.clear();
        self.taken.clear();
        self.adopted.clear();
        self.unsure.clear();
        self.read_at = None;
        (self.foreign, self.foreign_ill, self.strangers) = (0, 0, 0);
        self.told.clear();
        self.untold.clear();
        self.seen = Seen::Never;
        self.reading = None;
        self.unread = Unread::default();
        self.retry.clear();
        self.denied.clear();
        self.pending = None;
        if let Some(part) = &mut self.part {
            part.lost();
        }
    }

    /// The target as a whole is tried again later. Returns when.
    pub(super) fn fail(&mut self, error: &Error, now: Instant) -> Instant {
        self.failures += 1;
        let (wait, problem) = consequence(error, self.failures);
        self.problem = problem.or(self.problem.take());
        let at = now + wait;
        self.not_before = Some(at);
        at
    }

    /// A target that was read before is read again later. Returns when.
    pub(super) fn read_failed(&mut self, error: &Error, now: Instant) -> Instant {
        let unread = &mut self.unread;
        unread.failures += 1;
        let (wait, problem) = consequence(error, unread.failures);
        unread.problem = problem.or(unread.problem.take());
        let at = now + wait;
        unread.not_before = Some(at);
        at
    }

    /// Whether it can be read now.
    pub(super) fn may_read(&self, now: Instant) -> bool {
        self.reading.is_none() && self.unread.not_before.is_none_or(|at| at <= now)
    }

    /// Others' instances are no longer taken over: nothing may happen to those that were to go. Only a reading says what
    /// is there.
    pub(super) fn disown(&mut self, is_own: impl Fn(&str) -> bool) {
        self.own.retain(|id, _| is_own(id));
        self.retry.retain(|id, _| is_own(id));
        self.adopted.clear();
        if let Phase::Resolved(place) = &mut self.phase {
            // A reading in flight may end before the service is found again.
            place.adopt = None;
        }
        self.pending = None;
        self.seen = Seen::Never;
    }

    /// Instances went. If a quota was exhausted, there may be room now.
    pub(super) fn make_room(&mut self, now: Instant) {
        // Only when all that should go are gone; otherwise most attempts would fail.
        let Some(until) = self.full_until.filter(|_| self.running.is_empty()) else { return };
        self.full_until = None;
        for retry in self.retry.values_mut().filter(|retry| retry.at == until) {
            retry.at = now;
        }
        self.pending = None;
    }

    /// Something succeeded. The last problem is over, unless something is still to be tried again.
    pub(super) fn relieve(&mut self) {
        let over = self.retry.is_empty() && self.denied.is_empty();
        if over && self.place().is_some_and(|place| !place.refused) {
            self.problem = None;
            self.failures = 0;
            self.read_again = 0;
        }
    }

    /// The status. `namespace` is the target's, if it is known.
    pub(super) fn status(&self, desired: &TargetDesired, namespace: Option<&Namespace>) -> TargetStatus {
        let dns = namespace.is_some_and(|namespace| namespace.kind != NamespaceKind::Http);
        let registered = self.registered();
        let outcome = match (self.problem.as_ref().or(self.unread.problem.as_ref()), &self.unfit) {
            (Some((reason, message)), _) => Outcome::Refused { reason: *reason, message: message.clone() },
            (None, Some(message)) => Outcome::Refused { reason: Reason::UnfitEndpoints, message: message.clone() },
            (None, None) if self.settled => Outcome::Registered { count: registered },
            (None, None) => Outcome::Pending,
        };
        let own_gone = matches!(self.phase, Phase::Gone);
        let notices = if desired.active { self.notices(desired, dns, namespace) } else { Vec::new() };
        TargetStatus {
            outcome,
            registered,
            own_gone,
            done: own_gone && desired.released,
            notices,
            found: self.found.clone(),
            reached: self.reached.clone(),
            share: self.part.as_ref().filter(|_| desired.active).and_then(|part| {
                let settled = self.at_rest() && self.problem.is_none() && !part.awaits_reading();
                let records = self.place().map(|place| &*place.records).unwrap_or_default();
                let ttl = records.iter().map(|record| record.ttl).max().unwrap_or_default();
                let resolves = records.iter().any(|record| record.record_type != RecordType::Srv);
                let http_name = namespace.map(|namespace| namespace.http_name.clone());
                let registered = self.registered_pods(desired);
                Some(Box::new(TargetShare { registered, settled, ttl, resolves, http_name, ..part.status()? }))
            }),
            awaited: (!desired.awaited.is_empty()).then(|| {
                let part = self.part.as_ref().filter(|_| desired.active);
                let is_held_back = |id: &&Arc<str>| {
                    let spec = part.and_then(|part| Some((part, find(&desired.instances, id)?)));
                    spec.is_some_and(|(part, spec)| part.leaves_out(spec))
                };
                let is_there =
                    |id: &&Arc<str>| matches!(self.own.get(*id), Some(Some(_))) && !self.running.contains_key(*id);
                Arc::new(Awaited {
                    http_name: namespace.map(|namespace| namespace.http_name.clone()),
                    registered: desired.awaited.iter().filter(is_there).cloned().collect(),
                    held_back: desired.awaited.iter().filter(is_held_back).cloned().collect(),
                    unfit: self.unfit_awaited.clone(),
                })
            }),
            claims: None,
        }
    }

    /// Why the owner of the target may not register there, if so.
    pub(super) fn is_denied_the_place(&self) -> Option<(Reason, String)> {
        self.problem.clone().filter(|(reason, _)| matches!(reason, Reason::ForeignOwner | Reason::NoNamespace))
    }

    fn notices(&self, desired: &TargetDesired, dns: bool, namespace: Option<&Namespace>) -> Vec<Notice> {
        let mut notices: Vec<_> = self.crowded.notices().collect();
        notices.extend(self.remade(namespace).into_iter().chain(self.altered()));
        notices.extend(self.unpolled.as_deref().map(readback::notice));
        notices.extend(self.part.as_ref().and_then(|part| part.status()).map(|share| of_share(share.reached)));
        let place = self.place().filter(|place| !place.refused);
        let kinds = |records: &[DnsRecord]| records.iter().map(|record| record.record_type).collect::<BTreeSet<_>>();
        let asked = desired.creation.dns.as_ref().map(|dns| dns.records.as_slice()).unwrap_or_default();
        if let Some(place) = place.filter(|place| place.control == Control::Ours)
            && dns
            && desired.creation.service
            && kinds(&place.records) != kinds(asked)
            && !self.is_to_be_remade(desired)
        {
            let message = format!(
                "The records of the Cloud Map service are {}, but {} are requested. AWS does not allow changes of their types; withdraw \
                 the Service until its Cloud Map service is gone, or choose another name",
                types(&place.records),
                types(asked)
            );
            notices.push(Notice { reason: EventReason::RecordsDiffer, message });
        }
        if let Some(error) = &self.ttl.error {
            let message = format!("The TTL could not be changed; the controller tries again: {error}");
            notices.push(Notice { reason: EventReason::TtlNotChanged, message });
        }
        notices
    }

    /// Counts the instances, now that all of them are known.
    pub(super) fn count(&mut self) {
        let Some(place) = self.place().filter(|place| !place.refused) else { return };
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

    /// Remembers what is registered, now that nothing remains to be written.
    fn reach(&mut self) {
        let registered = self.own.iter().filter(|(_, said)| said.is_some()).map(|(id, _)| id);
        let same = |ids: &&Ids| ids.iter().eq(registered.clone());
        if self.reached.as_ref().is_none_or(|ids| !same(&ids)) {
            // Where a new leader found everything as it should be, there is one set of ids and not two.
            let found = self.found.as_ref().filter(same).cloned();
            self.reached = Some(found.unwrap_or_else(|| Arc::new(registered.cloned().collect())));
        }
    }
}
