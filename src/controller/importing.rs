//! The loop's part in importing what others registered.

use std::sync::Arc;

use super::{
    Membership,
    foreign::{Consequences, rejection},
    membership::LEAVING,
    watch::Watch,
};
use crate::{
    cluster::{Change, events, objects::Namespace},
    foreign::Found,
};

impl Watch {
    /// Namespaces came, changed or went: other Cloud Map namespaces may be sought.
    pub(super) fn importers_changed(&self, changes: &[Change<Namespace>]) {
        for Change { key, new, .. } in changes {
            let mut state = self.shared.state();
            state.peers.namespace_changed(key, new.as_deref());
            let consequences = state.foreign.namespace_changed(key, new.as_deref());
            drop(state);
            self.follow(consequences);
        }
        self.seek();
    }

    /// The membership of this cluster may have changed: without one nothing is imported, and nothing is read, which costs.
    pub(super) fn check_membership(&self) {
        let mut state = self.shared.state();
        let why = obstacle(state.knowledge.membership(), self.shared.ledger);
        let consequences = state.foreign.bar(why);
        drop(state);
        self.follow(consequences);
        self.seek();
    }

    fn seek(&self) {
        let state = self.shared.state();
        let mut sought = state.foreign.sought();
        sought.extend(state.peers.sought().cloned());
        drop(state);
        self.sought.send_if_modified(|before| {
            let changed = **before != sought;
            if changed {
                *before = Arc::new(sought);
            }
            changed
        });
    }

    /// Something else is registered.
    pub(super) fn found_changed(&self, found: Arc<Found>) {
        let mut state = self.shared.state();
        let of_peers = state.peers.adopt(Arc::clone(&found));
        let of_others = state.foreign.adopt(found);
        drop(state);
        self.follow(of_peers);
        self.follow(of_others);
    }

    /// Does what a change of what others registered, or of who imports it, entails.
    fn follow(&self, consequences: Consequences) {
        let Consequences { names, namespaces, mut notes, rejected } = consequences;
        for (key, rejected) in rejected {
            // On the ServiceImport if there is one.
            let import = self.shared.caches.imports.get(&key).filter(|import| import.managed);
            let namespace = self.shared.caches.namespaces.get(&key.namespace);
            let regarding = import
                .map(|import| events::import(&key, &import.uid))
                .or_else(|| Some(events::namespace(&key.namespace, &namespace?.uid)));
            notes.extend(regarding.and_then(|regarding| rejection(&key, &rejected, regarding)));
        }
        for note in notes {
            // It is received as long as the workers run.
            self.notes.send(note);
        }
        self.enqueue(names);
        if !namespaces.is_empty() {
            self.enqueue(self.names().into_iter().filter(|key| namespaces.contains(&key.namespace)));
        }
    }
}

/// Why nothing can be imported, if so, and the remedy.
fn obstacle(membership: &Membership, in_clusterset: bool) -> Option<String> {
    match membership {
        Membership::Leaving => Some(LEAVING.to_owned()),
        Membership::Refused(why) => Some(why.clone()),
        Membership::Joining(why) | Membership::Failing(why) => (!in_clusterset).then(|| why.clone()),
        Membership::Member { .. } => None,
    }
}
