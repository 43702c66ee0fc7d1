//! What is known of a service, and of the instances in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{activity::Activities, readings::Readings};
use crate::{
    Adopt,
    attributes::ServiceTraits,
    ownership::{Control, ServiceOwner},
    plan::{Adopted, Own},
};
use cloudmap::DnsRecord;

/// A service, and what is known of its instances.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) service_id: Arc<str>,
    /// What was found; `None` while the service is looked for again.
    pub(super) place: Option<Place>,
    /// Whose it is, as far as it was looked at.
    pub(super) owner: Option<ServiceOwner>,
    pub(super) own: Own,
    pub(super) taken: BTreeSet<Arc<str>>,
    /// Number of foreign instances, and how many of them fail their health check.
    pub(super) foreign: usize,
    pub(super) foreign_ill: usize,
    /// As [`Reading::strangers`](crate::plan::Reading::strangers).
    pub(super) strangers: usize,
    /// The last health statuses, in services with a custom health check.
    pub(super) last_health: BTreeMap<Arc<str>, LastHealth>,
    /// Instances of the replaced controller, and own ones whose endpoints get other ids. They are deregistered when those
    /// that replace them are there.
    pub(super) adopted: Adopted,
    /// What is going on with its instances, and remains to be done.
    pub(super) activities: Activities,
    pub(super) readings: Readings,
    /// Until when there are no new instances, because a quota is exhausted.
    pub(super) full_until: Option<Instant>,
    /// Until when no instances are registered (`true`) or deregistered (`false`), because IAM does not allow it. The other
    /// of the two goes on. An entry stays until such a write succeeds, or none is left to do.
    pub(super) denied: BTreeMap<bool, Instant>,
    pub(super) ttl: Ttl,
}

/// The service of a target.
#[derive(Debug)]
pub(super) struct Place {
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

/// The health status that was last set for an instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastHealth {
    pub(super) healthy: bool,
    /// Until then, a reading may show the previous status, because AWS takes its time.
    pub(super) shown_by: Instant,
}

/// The state of a change of the TTL.
#[derive(Debug, Default)]
pub(super) struct Ttl {
    pub(super) in_flight: bool,
    pub(super) failures: u32,
    pub(super) not_before: Option<Instant>,
    pub(super) error: Option<String>,
}

impl Known {
    /// A service that was just found.
    pub(super) fn new(service_id: Arc<str>) -> Self {
        Self { service_id, ..Self::default() }
    }

    /// Whether an own instance is known to be registered.
    pub(super) fn has(&self, id: &str) -> bool {
        matches!(self.own.get(id), Some(Some(_)))
    }

    /// The health status of an own instance, as far as it is known.
    pub(super) fn last_health(&self, id: &str) -> Option<bool> {
        self.last_health.get(id).map(|last| last.healthy)
    }

    /// Others' instances are no longer taken over: nothing may happen to those that were to go. Only a reading says what
    /// is there.
    pub(super) fn disown(&mut self, is_own: impl Fn(&str) -> bool) {
        self.own.retain(|id, _| is_own(id));
        self.activities.forgive(|id| is_own(id));
        self.adopted.clear();
        if let Some(place) = &mut self.place {
            // A reading in flight may end before the service is found again.
            place.adopt = None;
        }
        self.activities.plan_again();
        self.readings.read_anew();
    }

    /// Instances went. If a quota was exhausted, there may be room now.
    pub(super) fn make_room(&mut self, now: Instant) {
        // Only when all that should go are gone; otherwise most attempts would fail.
        let Some(until) = self.full_until.filter(|_| !self.activities.is_any_written()) else { return };
        self.full_until = None;
        self.activities.hurry(until, now);
        self.activities.plan_again();
    }
}
