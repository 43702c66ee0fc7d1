//! Calls that ended: what their results change.

use tokio::time::Instant;

use super::{
    Reason,
    call::Event,
    directory::{by_name, listed},
    engine::Engine,
    state::State,
    turns::Class,
};
use cloudmap::ErrorKind;

impl Engine {
    /// Takes the result of a call.
    pub(super) fn done(&mut self, event: Event, now: Instant) {
        let target = event.target().cloned();
        self.take_in(event, now);
        if let Some(target) = target {
            self.drop_unwanted(&target);
        }
    }

    fn take_in(&mut self, event: Event, now: Instant) {
        let class = match &event {
            Event::Inspected { .. } => Class::Inspect,
            Event::Read { .. } | Event::Records(_) => Class::Read,
            Event::Written { .. } | Event::HealthSet { .. } => Class::Write,
            Event::TtlSet { .. } => Class::Change,
            Event::Polled { .. } => {
                self.polls.in_flight -= 1;
                return self.polled(event, now);
            }
            Event::Recalled(_) | Event::Remembered(_) | Event::Marked { .. } => return self.hid(event, now),
            _ => Class::Resolve,
        };
        self.turns.ended(class);
        match event {
            Event::Namespaces(result) => {
                self.directory.namespaces.loaded(result.map(|all| by_name(&all)), now);
                if let Some(rows) = self.directory.listed() {
                    let missed = |state: &State| matches!(state.attempts.problem, Some((Reason::NoNamespace, _)));
                    for (_, state) in
                        self.targets.iter_mut().filter(|(t, s)| missed(s) && rows.contains_key(&t.namespace))
                    {
                        state.attempts.not_before = None;
                    }
                }
                self.wake_unresolved(now);
            }
            Event::NamespaceCreated { name, result } => {
                match result {
                    Ok(made) => self.directory.created(&name, made, now),
                    Err(error) => {
                        // Somebody else may have made it meanwhile: that is seen before anything is said.
                        if error.kind == ErrorKind::NoZone {
                            self.directory.namespaces.forget(now);
                        }
                        self.directory.creating(&name).loaded(Err(error), now);
                    }
                }
                self.forget_unneeded(&name);
                self.wake_unresolved(now);
            }
            Event::Services { namespace_id, result } => {
                if matches!(&result, Err(error) if error.kind == ErrorKind::NotFound) {
                    self.directory.namespaces.forget(now);
                }
                let name = self.directory.name_of(&namespace_id);
                if let (Err(error), Some(name)) = (&result, &name) {
                    self.keep_places(name, error, now);
                }
                let identity = &self.settings.identity;
                let rows =
                    result.map(|services| services.iter().map(|s| (s.name.clone(), listed(s, identity))).collect());
                self.directory.services(&namespace_id).loaded(rows, now);
                if let Some(name) = name {
                    self.forget_unneeded(&name);
                }
                self.wake_unresolved(now);
            }
            Event::Records(result) => self.records_listed(result, now),
            Event::ServiceCreated { target, result } => self.service_created(&target, result, now),
            Event::Inspected { target, result } => self.inspected(&target, result, now),
            Event::Read { target, begun, result } => self.was_read(&target, begun, result, now),
            Event::Written { target, service_id, id, result } => self.written(&target, &service_id, &id, result, now),
            Event::HealthSet { target, id, healthy, result } => self.health_set(&target, &id, healthy, result, now),
            Event::TtlSet { target, result } => self.ttl_set(&target, result, now),
            Event::ServiceDeleted { target, result } => self.service_deleted(&target, result, now),
            Event::Polled { .. } | Event::Recalled(_) | Event::Remembered(_) | Event::Marked { .. } => {}
        }
    }
}
