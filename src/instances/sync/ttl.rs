//! Sets the requested TTL on the records of services that we may change. Nothing else of a service is ever changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    TargetDesired,
    call::Call,
    engine::Engine,
    failure::back_off,
    known::{Known, Ttl},
    state::State,
    turns::Class,
};
use crate::ownership::Control;
use cloudmap::{DnsRecord, Error, ErrorKind, Service};
use model::Target;

/// How often the records in a Cloud Map namespace are listed: somebody else may change a TTL.
pub(super) const RECORDS: Duration = Duration::from_mins(10);

impl State {
    /// Whether the service has records that we may change.
    fn has_records(&self) -> bool {
        self.place().is_some_and(|place| place.control != Control::Others && !place.records.is_empty())
    }

    /// The TTL that the records should get now.
    pub(super) fn wanted_ttl(&self, desired: &TargetDesired, now: Instant) -> Option<u32> {
        let Known { place, ttl, .. } = self.known()?;
        let place = place.as_ref().filter(|place| !place.refused)?;
        let ours = desired.active && !desired.retiring && desired.decides && desired.creation.service;
        if !ours || ttl.in_flight || ttl.not_before.is_some_and(|at| at > now) {
            return None;
        }
        let creation = &desired.creation;
        let ttl = match place.control {
            Control::Ours => creation.dns.as_ref()?.records.first()?.ttl,
            Control::Adopted => creation.ttl?,
            Control::Others => return None,
        };
        place.records.iter().any(|record| record.ttl != ttl).then_some(ttl)
    }
}

impl Engine {
    /// The next namespace whose records are listed, spread evenly over the period.
    pub(super) fn records_check(&mut self, now: Instant) -> Option<Call> {
        if now < self.records.at || !self.may_check() {
            return None;
        }
        let with_records = self.targets.iter().filter(|(_, state)| state.has_records());
        let names: BTreeSet<Arc<str>> = with_records.map(|(target, _)| target.namespace.clone()).collect();
        self.records.at = now + RECORDS / u32::try_from(names.len().max(1)).unwrap_or(u32::MAX);
        let last = self.records.last.take();
        let next = names.iter().find(|name| last.as_ref() < Some(*name)).or_else(|| names.first())?;
        self.records.last = Some(next.clone());
        let namespace_id = self.directory.namespace(next)?.id.clone();
        self.turns.began(Class::Read);
        Some(Call::ListRecords { namespace_id })
    }

    /// Takes the records from a listing. It may be older than a change of ours: who sets a TTL looks at the service first.
    /// What the listing lacks, and everything after a failure, stays as it was.
    pub(super) fn records_listed(&mut self, result: Result<Arc<[Service]>, Error>, now: Instant) {
        let Ok(services) = result else { return };
        let records = services.iter().filter_map(|service| Some((&service.id, &service.dns.as_ref()?.records)));
        let records: BTreeMap<&Arc<str>, &Vec<DnsRecord>> = records.collect();
        let mut changed = Vec::new();
        for (target, state) in self.targets.iter_mut().filter(|(_, state)| state.has_records()) {
            let Some(Known { service_id, place: Some(place), .. }) = state.known_mut() else { continue };
            let listed = records.get(service_id).filter(|listed| ***listed != place.records);
            if let Some(listed) = listed {
                place.records.clone_from(listed);
                changed.push(target.clone());
            }
        }
        for target in changed {
            self.wake_target(&target, now);
        }
    }

    pub(super) fn ttl_set(&mut self, target: &Target, result: Result<Option<Vec<DnsRecord>>, Error>, now: Instant) {
        let Some(Known { ttl, place, .. }) = self.known_mut(target) else { return };
        match result {
            Ok(records) => {
                *ttl = Ttl::default();
                match (place, records) {
                    (Some(place), Some(records)) => place.records = records,
                    (Some(place), None) => place.control = Control::Others,
                    (None, _) => {}
                }
            }
            Err(error) => {
                ttl.in_flight = false;
                ttl.failures += 1;
                let at = now + back_off(ttl.failures);
                ttl.not_before = Some(at);
                let passing =
                    matches!(error.kind, ErrorKind::Throttled | ErrorKind::Duplicate { .. } | ErrorKind::Unknown);
                if !passing || ttl.failures > 2 {
                    ttl.error = Some(error.to_string());
                }
                self.wake_at(target, at);
            }
        }
        self.wake_target(target, now);
    }
}
