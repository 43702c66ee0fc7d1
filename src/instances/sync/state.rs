//! What the engine knows about one target.

use std::{
    collections::BTreeSet,
    ops::{AddAssign, SubAssign},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    Awaited, Ids, Outcome, Reason, ShareFigures, TargetDesired, TargetShare, TargetStatus,
    altered::Altered,
    failure::Attempts,
    known::{Known, Place},
    notice::{Crowded, Notice, of_share},
    readback,
    readings::Seen,
    remade::{Remade, types},
    share::ShareState,
    turns::Class,
};
use crate::{
    ownership::{Control, ServiceOwner},
    plan::find,
};
use api::events::EventReason;
use cloudmap::{DnsConfig, DnsRecord, Namespace, NamespaceKind, RecordType};
use model::{ClusterId, ServiceKey};

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

/// Whether the service of a target is known.
#[derive(Debug, Default)]
#[expect(clippy::large_enum_variant, reason = "the services of nearly all targets are known")]
pub(super) enum Phase {
    #[default]
    Unresolved,
    /// Also while the service is looked for again.
    Resolved(Known),
    /// The target is retired, and nothing of ours is there. For the contenders, a service in which nothing is registered is
    /// looked at again at `look_at`.
    Gone { owner: Option<ServiceOwner>, look_at: Option<Instant> },
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

#[derive(Debug, Default)]
pub(super) struct State {
    /// Its part of the engine's sums.
    pub(super) counted: Counts,
    pub(super) phase: Phase,
    /// Whether a call that finds the service is in flight.
    pub(super) busy: bool,
    /// Attempts to find the service, and why the target as a whole, or one of its writes, makes no progress.
    pub(super) attempts: Attempts,
    /// Until when a call that creates something, and that had no answer, may take effect.
    pub(super) late_until: Option<Instant>,
    pub(super) remarks: Remarks,
    /// Why some endpoints cannot be registered.
    pub(super) unfit: Option<String>,
    /// Those of them for which somebody waits.
    pub(super) unfit_awaited: BTreeSet<Arc<str>>,
    /// Whether everything was as desired once, so that later changes are urgent.
    pub(super) was_complete: bool,
    /// Its share of the traffic, if it has one.
    pub(super) part: Option<Box<ShareState>>,
    pub(super) found: Option<Ids>,
    /// Something is registered for the Service of [`TargetDesired::only_found`].
    pub(super) found_own: bool,
    pub(super) reached: Option<Ids>,
    pub(super) queued: Option<(Class, bool)>,
    /// The successor whose instances the last reading showed.
    pub(super) succeeded: Option<(ClusterId, ServiceKey)>,
}

/// What the user is told of a target beside the result.
#[derive(Debug, Default)]
pub(super) struct Remarks {
    pub(super) crowded: Crowded,
    /// Boxed, because few targets have one; also the next.
    pub(super) remade: Option<Box<Remade>>,
    pub(super) altered: Option<Box<Altered>>,
    /// AWS denied to say whether an operation has ended, in these words.
    pub(super) unpolled: Option<Arc<str>>,
}

impl State {
    /// The service, and what is known of its instances.
    pub(super) const fn known(&self) -> Option<&Known> {
        match &self.phase {
            Phase::Resolved(known) => Some(known),
            Phase::Unresolved | Phase::Gone { .. } => None,
        }
    }

    pub(super) const fn known_mut(&mut self) -> Option<&mut Known> {
        match &mut self.phase {
            Phase::Resolved(known) => Some(known),
            Phase::Unresolved | Phase::Gone { .. } => None,
        }
    }

    pub(super) fn place(&self) -> Option<&Place> {
        self.known()?.place.as_ref()
    }

    pub(super) fn place_mut(&mut self) -> Option<&mut Place> {
        self.known_mut()?.place.as_mut()
    }

    pub(super) fn service_id(&self) -> Option<&Arc<str>> {
        self.known().map(|known| &known.service_id)
    }

    /// Whether the own instances were never read.
    pub(super) fn is_unread(&self) -> bool {
        self.known().is_none_or(|known| known.readings.seen() == Seen::Never)
    }

    /// Whether the service is not known, or looked for again.
    pub(super) fn is_unresolved(&self) -> bool {
        self.place().is_none() && !matches!(self.phase, Phase::Gone { .. })
    }

    /// Whether an operation on an instance has not ended.
    pub(super) fn is_writing(&self) -> bool {
        self.known().is_some_and(|known| known.activities.is_any_written())
    }

    /// Whether own instances are there, or may be.
    pub(super) fn has_own(&self) -> bool {
        self.known().is_some_and(|known| !known.own.is_empty())
    }

    /// What remains to be written must be planned again.
    pub(super) fn plan_again(&mut self) {
        if let Some(known) = self.known_mut() {
            known.activities.plan_again();
        }
    }

    /// The service must be looked for again. What is known of it counts until the answer is here.
    pub(super) fn find_again(&mut self) {
        match &mut self.phase {
            Phase::Resolved(known) => known.place = None,
            phase => *phase = Phase::Unresolved,
        }
    }

    /// Whether its service must be looked at again: a service that keeps instances out may have changed.
    pub(super) fn is_look_due(&self, now: Instant) -> bool {
        let is_due = |place: &Place| (place.refused || self.unfit.is_some()) && place.again_at() <= now;
        self.place().is_some_and(|place| place.doubtful || is_due(place))
    }

    /// Whether nothing is being written, waited for, or to be tried again.
    pub(super) fn at_rest(&self) -> bool {
        self.known().is_some_and(|known| known.activities.at_rest() && known.denied.is_empty())
    }

    pub(super) fn registered(&self) -> usize {
        self.known().map_or(0, |known| known.own.values().filter(|digest| digest.is_some()).count())
    }

    pub(super) fn count_all(&self, desired: Option<&TargetDesired>) -> Counts {
        let pages = if self.is_unread() { 0 } else { self.pages() };
        let queued = self.known().map_or(0, |known| known.activities.queued());
        let share = self.part.as_ref().and_then(|part| part.status()).zip(desired);
        let shares = share.map(|(share, desired)| ShareFigures::of(share.reached, self.registered_pods(desired)));
        let shares = shares.unwrap_or_default();
        Counts { registered: self.registered(), queued, pages, shares }
    }

    /// As [`Counts::pages`].
    pub(super) fn pages(&self) -> usize {
        1 + self.known().map_or(0, |known| (known.own.len() + known.foreign) / 100)
    }

    /// Forgets the service and its instances.
    pub(super) fn lose_place(&mut self) {
        self.phase = Phase::Unresolved;
        self.succeeded = None;
        if let Some(part) = &mut self.part {
            part.lost();
        }
    }

    /// Something succeeded. The last problem is over, unless something is still to be tried again.
    pub(super) fn relieve(&mut self) {
        let Phase::Resolved(known) = &mut self.phase else { return };
        let over = !known.activities.has_any_failed() && known.denied.is_empty();
        if over && known.place.as_ref().is_some_and(|place| !place.refused) {
            self.attempts.succeeded();
            known.readings.waited = 0;
        }
    }

    /// The status. `namespace` is the target's, if it is known.
    pub(super) fn status(&self, desired: &TargetDesired, namespace: Option<&Namespace>) -> TargetStatus {
        let dns = namespace.is_some_and(|namespace| namespace.kind != NamespaceKind::Http);
        let registered = self.registered();
        let unread = self.known().and_then(|known| known.readings.problem());
        let outcome = match (self.attempts.problem.as_ref().or(unread), &self.unfit) {
            (Some((reason, message)), _) => Outcome::Refused { reason: *reason, message: message.clone() },
            (None, Some(message)) => Outcome::Refused { reason: Reason::UnfitEndpoints, message: message.clone() },
            (None, None) if self.was_complete => Outcome::Registered { count: registered },
            (None, None) => Outcome::Pending,
        };
        let own_gone = matches!(self.phase, Phase::Gone { .. });
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
                let complete = self.at_rest() && self.attempts.problem.is_none() && !part.awaits_reading();
                let records = self.place().map(|place| &*place.records).unwrap_or_default();
                let ttl = records.iter().map(|record| record.ttl).max().unwrap_or_default();
                let resolves = records.iter().any(|record| record.record_type != RecordType::Srv);
                let http_name = namespace.map(|namespace| namespace.http_name.clone());
                let registered = self.registered_pods(desired);
                Some(Box::new(TargetShare { registered, complete, ttl, resolves, http_name, ..part.status()? }))
            }),
            awaited: (!desired.awaited.is_empty()).then(|| {
                let part = self.part.as_ref().filter(|_| desired.active);
                let is_held_back = |id: &&Arc<str>| {
                    let spec = part.and_then(|part| Some((part, find(&desired.instances, id)?)));
                    spec.is_some_and(|(part, spec)| part.leaves_out(spec))
                };
                let is_there = |id: &&Arc<str>| {
                    self.known().is_some_and(|there| there.has(id) && there.activities.write(id).is_none())
                };
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
        self.attempts.problem.clone().filter(|(reason, _)| matches!(reason, Reason::ForeignOwner | Reason::NoNamespace))
    }

    fn notices(&self, desired: &TargetDesired, dns: bool, namespace: Option<&Namespace>) -> Vec<Notice> {
        let mut notices: Vec<_> = self.remarks.crowded.notices().collect();
        notices.extend(self.remade(namespace).into_iter().chain(self.altered()));
        notices.extend(self.remarks.unpolled.as_deref().map(readback::notice));
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
        if let Some(error) = self.known().and_then(|known| known.ttl.error.as_ref()) {
            let message = format!("The TTL could not be changed; the controller tries again: {error}");
            notices.push(Notice { reason: EventReason::TtlNotChanged, message });
        }
        notices
    }

    /// Counts the instances, now that all of them are known.
    pub(super) fn count(&mut self) {
        let Some(known) = self.known() else { return };
        let Some(place) = known.place.as_ref().filter(|place| !place.refused) else { return };
        let ill = known.last_health.iter().filter(|(id, last)| !last.healthy && known.own.contains_key(*id)).count();
        let instances = known.own.len() + known.foreign;
        let healthy = instances.saturating_sub(ill + known.foreign_ill);
        self.remarks.crowded = self.remarks.crowded.with(place.traits, instances, healthy);
    }

    /// Nothing remains to be written.
    pub(super) fn complete(&mut self) {
        self.was_complete = true;
        self.reach();
        self.count();
    }

    /// Remembers what is registered, now that nothing remains to be written.
    fn reach(&mut self) {
        let Phase::Resolved(known) = &self.phase else { return };
        let registered = known.own.iter().filter(|(_, said)| said.is_some()).map(|(id, _)| id);
        let same = |ids: &&Ids| ids.iter().eq(registered.clone());
        if self.reached.as_ref().is_none_or(|ids| !same(&ids)) {
            // Where a new leader found everything as it should be, there is one set of ids and not two.
            let found = self.found.as_ref().filter(same).cloned();
            self.reached = Some(found.unwrap_or_else(|| Arc::new(registered.cloned().collect())));
        }
    }
}
