//! Sets the requested TTL on the records of services that we may change. Nothing else of a service is ever changed.

use tokio::time::Instant;

use super::{
    TargetDesired,
    engine::Engine,
    failure::back_off,
    state::{Phase, State},
};
use crate::{
    cloudmap::{DnsRecord, Error, ErrorKind},
    instances::ownership::Control,
    model::Target,
};

impl State {
    /// The TTL that the records should get now.
    pub(super) fn wanted_ttl(&self, desired: &TargetDesired, now: Instant) -> Option<u32> {
        let place = self.place().filter(|place| place.refused_until.is_none())?;
        let ours = desired.active && !desired.retiring && desired.decides && desired.creation.service;
        if !ours || self.ttl.in_flight || self.ttl.not_before.is_some_and(|at| at > now) {
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
    pub(super) fn ttl_set(&mut self, target: &Target, result: Result<Option<Vec<DnsRecord>>, Error>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.ttl.in_flight = false;
        match (result, &mut state.phase) {
            (Ok(records), phase) => {
                state.ttl = super::state::Ttl::default();
                if let Phase::Resolved(place) = phase {
                    match records {
                        Some(records) => place.records = records,
                        None => place.control = Control::Others,
                    }
                }
            }
            (Err(error), _) => {
                state.ttl.failures += 1;
                let at = now + back_off(state.ttl.failures);
                state.ttl.not_before = Some(at);
                let passing =
                    matches!(error.kind, ErrorKind::Throttled | ErrorKind::Duplicate { .. } | ErrorKind::Unknown);
                if !passing || state.ttl.failures > 2 {
                    state.ttl.error = Some(error.to_string());
                }
                self.wake_at(target, at);
            }
        }
        self.wake_target(target, now);
    }
}
