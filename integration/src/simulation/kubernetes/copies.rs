//! People who have a copy of a Secret, and put it back where nobody else knows what was in it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    change,
    refusal::Refusal,
    resources::Resource,
    state::{Change, State},
    store::Key,
};

/// Who holds the Lease, and how often it has changed hands.
type Term = [Value; 2];

#[derive(Debug, Default)]
pub(super) struct Copies {
    /// What people have.
    kept: BTreeMap<Key, Value>,
    /// In which term each replica has read or made an object last.
    known: BTreeMap<(String, Key), Term>,
}

impl State {
    /// Deletes an object of which people have a copy.
    ///
    /// # Errors
    /// 404.
    pub(super) fn take_away(&mut self, change: &Change<'_>) -> Result<(), Refusal> {
        let object = self.get(change.resource, &change.key)?;
        self.delete(change, None, None)?;
        self.copies.kept.insert(change.key.clone(), Value::clone(&object));
        Ok(())
    }

    /// People put back what they took away, if the replica that asks for it now cannot know it.
    pub(super) fn put_back(&mut self, replica: &str, resource: &Resource, key: &Key) {
        if !is_copied(resource) || self.get(resource, key).is_ok() {
            return;
        }
        let knows = self.copies.known.get(&(replica.to_owned(), key.clone())) == self.term(&key.0).as_ref();
        if let Some(copy) = self.copies.kept.get(key).filter(|_| !knows).cloned() {
            drop(self.create(&change(resource.plural, &key.0, &key.1, false), copy));
        }
    }

    /// A replica has read or made an object.
    pub(super) fn note_known(&mut self, replica: &str, resource: &Resource, key: &Key) {
        if is_copied(resource)
            && let Some(term) = self.term(&key.0)
        {
            self.copies.known.insert((replica.to_owned(), key.clone()), term);
        }
    }

    fn term(&self, namespace: &str) -> Option<Term> {
        let leases = &self.store.kind(Resource::named("leases")).objects;
        let (_, lease) = leases.iter().find(|(key, _)| key.0 == namespace)?;
        Some(["holderIdentity", "leaseTransitions"].map(|field| lease["spec"][field].clone()))
    }
}

fn is_copied(resource: &Resource) -> bool {
    resource.plural == "secrets"
}
