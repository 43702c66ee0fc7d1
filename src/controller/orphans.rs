//! Instances for AWS controllers that say that this cluster exports a name, although it does not (`--aws-mcs-compat`).
//! Other clusters import them, and no registration record names them.
//!
//! Instances with the UID of this cluster are its own, from before its record was lost: they are withdrawn. Instances
//! with only its id were probably left by its former AWS controller. They are only reported: another cluster that still
//! has that controller may have the same id by mistake, and all its exports would be withdrawn.

use std::{collections::BTreeMap, time::Duration};

use super::{
    core::{Command, Core, Now},
    dirty::Fact,
};
use api::events::EventReason;
use cluster::events::{self, EventRecord};
use discovery::Remains;
use export::Exports;
use instances::Naming;
use model::{ClaimOwner, ServiceKey};

/// How long to wait before anything is done: readings lag behind what is registered.
const SEEN: Duration = Duration::from_mins(1);

/// Names that may have such instances.
#[derive(Debug, Clone, Default)]
pub(super) struct Orphans {
    /// When to look again; `None`: people were told.
    due: BTreeMap<ServiceKey, Option<Duration>>,
}

impl Core {
    /// These names were read anew, or their exports changed.
    pub(super) fn note_orphans<'a>(&mut self, names: impl Iterator<Item = &'a ServiceKey>, now: Now) {
        for key in names {
            if self.importing.peers.remains(key).is_none() || self.world.exports.contains(key) {
                self.importing.orphans.due.remove(key);
            } else if self.importing.orphans.due.get(key).is_none_or(Option::is_none) {
                self.importing.orphans.due.insert(key.clone(), Some(now.mono + SEEN));
            }
        }
    }

    /// Withdraws instances without a record that have been there for a while.
    pub(super) fn withdraw_orphans(&mut self, now: Now) {
        let due = self.importing.orphans.due.iter().filter(|(_, at)| at.is_some_and(|at| at <= now.mono));
        for key in due.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            let again = self.withdraw_orphan(&key, now);
            self.importing.orphans.due.insert(key, again.then_some(now.mono + SEEN));
        }
    }

    /// Returns whether to look again.
    fn withdraw_orphan(&mut self, key: &ServiceKey, now: Now) -> bool {
        let target = Naming::PerNamespace.implied(key);
        let told = |exports: &Exports| exports.registrations().contains_key(&target);
        let known = self.knowledge.exports().map(told);
        if known != Some(false) {
            return true;
        }
        match self.importing.peers.remains(key) {
            Some(remains) if !remains.ours.is_empty() => {
                self.knowledge.retire(&target, &ClaimOwner::export(key), now.seconds());
                self.changed(Fact::Retired(&target));
                true
            }
            Some(Remains { left, .. }) => {
                let namespace = self.world.namespaces.get(&key.namespace);
                let regarding = namespace.map(|namespace| events::namespace(&key.namespace, &namespace.uid));
                let (named, more) = (left.first().cloned().unwrap_or_default(), left.len().saturating_sub(1));
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let text = format!(
                    "Cloud Map service {target} has instances of this cluster, which does not export {key}: {named}{more}. \
                     Its AWS Cloud Map MCS Controller left them, and other clusters import them. If no other cluster has the \
                     id \"{}\", deregister them.",
                    self.knowledge.local()
                );
                let (reason, action) = (EventReason::InstancesLeft, "Import");
                let note = regarding.map(|regarding| EventRecord { regarding, reason, action, text });
                self.out.extend(note.map(Command::Emit));
                false
            }
            None => false,
        }
    }
}
