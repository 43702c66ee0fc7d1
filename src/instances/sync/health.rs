//! Mirrors the readiness of pods in the health of their instances, in services with a custom health check.
//!
//! A pod that is not ready keeps its instance, marked as unhealthy. If it never was ready, it gets none, and when it
//! terminates, it loses it. AWS waits about 30 s before it excludes an unhealthy instance from answers.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    TargetDesired,
    engine::Engine,
    known::{Known, LastHealth},
};
use cloudmap::{Error, Instance};
use model::Target;

/// For this long after a health status was set, a reading may return the previous one.
const SHOWN_WITHIN: Duration = Duration::from_secs(45);

impl Engine {
    /// The next instance whose health must be set.
    pub(super) fn next_health(
        &mut self,
        target: &Target,
        desired: &TargetDesired,
        now: Instant,
    ) -> Option<(Arc<str>, bool)> {
        self.plan_writes(target, desired, now)?;
        self.targets.get(target)?.known()?.activities.next_health()
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
        let Some(there) = state.known_mut() else { return };
        if !there.activities.end_health(id, now) {
            return;
        }
        there.activities.plan_again();
        match result {
            Ok(()) => {
                there.last_health.insert(Arc::clone(id), LastHealth { healthy, shown_by: now + SHOWN_WITHIN });
                there.activities.over(id);
                state.relieve();
            }
            // This includes an instance that does not exist (yet): the next reading shows more.
            Err(error) => self.failed(target, id, &error, now),
        }
        self.wake_target(target, now);
    }

    /// Takes the health with which an instance was registered; `None` if it has none.
    pub(super) fn registered_as(&mut self, target: &Target, id: &Arc<str>, last: Option<LastHealth>) {
        let Some(there) = self.known_mut(target) else { return };
        let checked = there.place.as_ref().is_some_and(|place| place.traits.has_custom_health_check());
        match last.filter(|_| checked) {
            Some(last) => there.last_health.insert(Arc::clone(id), last),
            None => there.last_health.remove(id),
        };
    }
}

impl Known {
    /// Takes the instances that fail their check, if they were read. `written` are those about which the listing proves
    /// nothing.
    pub(super) fn health_was_read(
        &mut self,
        listing: &[Instance],
        unhealthy: Option<&BTreeSet<Arc<str>>>,
        written: &BTreeSet<Arc<str>>,
        now: Instant,
    ) {
        let Self { last_health, own, activities, .. } = self;
        last_health.retain(|id, _| own.contains_key(id));
        let Some(unhealthy) = unhealthy else { return };
        let untold = |id: &Arc<str>| written.contains(id) || activities.write(id).is_some();
        for Instance { id, .. } in listing.iter().filter(|instance| own.contains_key(&instance.id)) {
            let may_lag = last_health.get(id).is_some_and(|last| last.shown_by > now);
            if !may_lag && !untold(id) {
                last_health.insert(Arc::clone(id), LastHealth { healthy: !unhealthy.contains(id), shown_by: now });
            }
        }
        self.foreign_ill = unhealthy.iter().filter(|id| !self.own.contains_key(*id)).count();
    }
}
