//! Makes a service again whose records take none of the endpoints. AWS changes neither the types of records nor the routing
//! policy, so a load balancer whose host name becomes an address would leave its name without an answer for good.
//!
//! The old answer stays until there is an endpoint that only other records take. Then the old instances go, the service is
//! deleted and created again. AWS allows no two services with one name, so the name has no answer meanwhile. That time is
//! measured and reported.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::{Notice, TargetDesired, state::State};
use crate::{attributes::ServiceTraits, ownership::Control};
use api::events::EventReason;
use cloudmap::{DnsRecord, Namespace, RecordType};

/// How long it is reported that a service was made again.
const SAID: Duration = Duration::from_mins(15);

/// A service that is being made again, or was.
#[derive(Debug)]
pub(super) struct Remade {
    /// The former types of records.
    former: String,
    /// Since when the name has no answer.
    since: Instant,
    /// When it had one again.
    until: Option<Instant>,
}

impl State {
    /// Whether the service must be made again: it is ours alone, its records take none of the ready endpoints, and the
    /// requested ones take one.
    pub(super) fn is_to_be_remade(&self, desired: &TargetDesired) -> bool {
        let wishes = desired.active && desired.decides && desired.creation.service;
        let stays = desired.retiring || desired.unable || desired.keep || desired.as_is || desired.only_found.is_some();
        let Some(place) = self.place().filter(|_| wishes && !stays) else { return false };
        let Some(dns) = desired.creation.dns.as_ref().filter(|_| !place.records.is_empty()) else { return false };
        let ours = place.control == Control::Ours && !place.refused && !place.unproven && !place.doubtful;
        let alone = !self.is_unread() && self.known().is_some_and(|there| there.foreign == 0) && self.part.is_none();
        let requested = ServiceTraits::of(Some(dns), desired.creation.custom_health_check);
        let mut ready = desired.instances.iter().filter(|spec| spec.is_ready()).peekable();
        let any = ready.clone().any(|spec| spec.lacks(requested).is_none());
        ours && alone && any && ready.peek().is_some() && ready.all(|spec| spec.lacks(place.traits).is_some())
    }

    /// The name has no answer from now on, because its service is being made again.
    pub(super) fn begin_remaking(&mut self, now: Instant) {
        let former = self.place().map(|place| types(&place.records)).unwrap_or_default();
        if self.remarks.remade.as_ref().is_none_or(|remade| remade.until.is_some()) {
            self.remarks.remade = Some(Box::new(Remade { former, since: now, until: None }));
        }
    }

    /// Whether its name has no answer because of this.
    pub(super) fn is_being_remade(&self) -> bool {
        self.remarks.remade.as_ref().is_some_and(|remade| remade.until.is_none())
    }

    /// An instance is registered, so the name has an answer.
    pub(super) fn end_remaking(&mut self, now: Instant) {
        if let Some(remade) = &mut self.remarks.remade {
            remade.until.get_or_insert(now);
        }
    }

    /// Forgets a service that was made again long ago.
    pub(super) fn forget_remaking(&mut self, now: Instant) {
        let is_old = |remade: &mut Box<Remade>| remade.until.is_some_and(|until| now.duration_since(until) > SAID);
        drop(self.remarks.remade.take_if(is_old));
    }

    /// What became of it.
    pub(super) fn remade(&self, namespace: Option<&Namespace>) -> Option<Notice> {
        let Remade { former, since, until } = self.remarks.remade.as_deref()?;
        let gap = until.as_ref()?.duration_since(*since).as_secs() + 1;
        let present = self.place().map(|place| types(&place.records)).unwrap_or_default();
        let kept = match namespace.and_then(|namespace| namespace.soa_ttl) {
            Some(ttl) => format!("{ttl} s, the TTL of the zone's SOA record"),
            None => "the TTL of the zone's SOA record, 15 minutes unless it was changed".to_owned(),
        };
        let message = format!(
            "The Cloud Map service was deleted and made again, because its records were {former} and its endpoints need {present}. \
             The name had no answer for {gap} s. Resolvers that asked meanwhile may keep that answer for up to {kept}"
        );
        Some(Notice { reason: EventReason::ServiceRemade, message })
    }
}

/// The types of records, for people.
pub(super) fn types(records: &[DnsRecord]) -> String {
    let kinds: BTreeSet<_> = records.iter().map(|record| record.record_type).collect();
    match kinds.into_iter().map(RecordType::as_str).collect::<Vec<_>>() {
        kinds if kinds.is_empty() => "none".to_owned(),
        kinds => kinds.join(" and "),
    }
}
