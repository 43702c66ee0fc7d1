//! Mirrors the readiness of pods in the health of their instances, in services with a custom health check.
//!
//! A pod that is not ready keeps its instance, marked as unhealthy. If it never was ready, it gets none, and when it
//! terminates, it loses it. AWS waits about 30 s before it excludes an unhealthy instance from answers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    TargetDesired,
    engine::Engine,
    state::{State, Told},
};
use cloudmap::{Error, Instance};
use model::Target;

/// For this long after a health status was set, a reading may return the previous one.
const SETTLES: Duration = Duration::from_secs(45);

impl Engine {
    /// The next instance whose health must be set.
    pub(super) fn next_health(
        &mut self,
        target: &Target,
        desired: &TargetDesired,
        now: Instant,
    ) -> Option<(Arc<str>, bool)> {
        self.plan_writes(target, desired, now)?;
        let state = self.targets.get_mut(target)?;
        // A blocked instance is planned again when whatever blocks it ends, or when its time comes.
        while let Some((id, healthy)) = state.untold.front().cloned() {
            let busy = state.running.contains_key(&id) || state.telling.contains(&id);
            if !busy && state.retry.get(&id).is_none_or(|retry| retry.at <= now) {
                return Some((id, healthy));
            }
            state.untold.pop_front();
        }
        None
    }

    pub(super) fn health_set(
        &mut self,
        target: &Target,
        id: &Arc<str>,
        healthy: bool,
        result: Result<(), Error>,
        now: Instant,
    ) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.telling.remove(id);
        state.pending = None;
        match result {
            Ok(()) => {
                state.told.insert(Arc::clone(id), Told { healthy, settles: now + SETTLES });
                state.retry.remove(id);
                state.relieve();
            }
            // This includes an instance that does not exist (yet): the next reading shows more.
            Err(error) => self.failed(target, id, &error, now),
        }
        self.wake_target(target, now);
    }

    /// Takes the health with which an instance was registered; `None` if it has none.
    pub(super) fn registered_as(&mut self, target: &Target, id: &Arc<str>, told: Option<Told>) {
        let Some(state) = self.targets.get_mut(target) else { return };
        let checked = state.place().is_some_and(|place| place.traits.has_custom_health_check());
        match told.filter(|_| checked) {
            Some(told) => state.told.insert(Arc::clone(id), told),
            None => state.told.remove(id),
        };
    }
}

impl State {
    /// Takes the instances that fail their check, if they were read. `written` are those about which the listing proves
    /// nothing.
    pub(super) fn health_was_read(
        &mut self,
        listing: &[Instance],
        unhealthy: Option<&BTreeSet<Arc<str>>>,
        written: &BTreeSet<Arc<str>>,
        now: Instant,
    ) {
        let Self { told, own, running, .. } = self;
        told.retain(|id, _| own.contains_key(id));
        let Some(unhealthy) = unhealthy else { return };
        let untold = |id: &Arc<str>| written.contains(id) || running.contains_key(id);
        for Instance { id, .. } in listing.iter().filter(|instance| own.contains_key(&instance.id)) {
            let settling = told.get(id).is_some_and(|told| told.settles > now);
            if !settling && !untold(id) {
                told.insert(Arc::clone(id), Told { healthy: !unhealthy.contains(id), settles: now });
            }
        }
        self.foreign_ill = unhealthy.iter().filter(|id| !self.own.contains_key(*id)).count();
    }
}
