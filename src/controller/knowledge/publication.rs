//! What the registry has of this cluster's exports and registrations.

use std::{collections::BTreeSet, sync::Arc};

use super::{Concerned, Knowledge, Membership};
use crate::membership::LEAVING;
use export::Publication;
use ledger::Map;
use model::{ClaimOwner, ServiceKey, Target};

impl Knowledge {
    /// Sets the properties of this cluster, once its own ledger is known.
    pub fn set_properties<'a>(&mut self, properties: impl Iterator<Item = (&'a str, &'a str)>) {
        if let Some(exports) = &mut self.exports {
            exports.set_properties(properties);
        }
    }

    /// Takes in what was published of this cluster.
    pub fn adopt_published(&mut self, published: Option<Arc<Map>>) -> Concerned {
        let after = published.clone().unwrap_or_default();
        let before = std::mem::replace(&mut self.published, published);
        let mut names = BTreeSet::new();
        if before.is_none() {
            // What an earlier leader reported about them stayed until now.
            names.extend(self.plans.planned.keys().cloned());
        }
        let before = before.unwrap_or_default();
        names.extend(records::changed_services(&before, &after));
        Concerned { names, targets: records::changed_registrations(&before, &after) }
    }

    /// Whether this leader does not know the state of the exports yet. Meanwhile an earlier leader's reports stay.
    pub const fn starting(&self) -> bool {
        match &self.membership {
            Membership::Joining(_) => true,
            Membership::Member { trouble: None } => !self.others.first_read || self.published.is_none(),
            _ => false,
        }
    }

    /// Whether the registration record of a target is in the registry, so that instances may be registered there.
    pub fn is_on_record(&self, target: &Target) -> bool {
        let wanted = self.exports.as_ref().and_then(|exports| exports.registrations().get(target));
        let published = self.published.as_ref().and_then(|map| records::registration(map, target));
        published.zip(wanted).is_some_and(|(published, wanted)| published.is_same_claim(wanted))
    }

    /// Whether the registry may have the export of a name within moments.
    pub fn is_on_its_way(&self, key: &ServiceKey) -> bool {
        let refused = self.exports.as_ref().is_some_and(|exports| exports.refusal(key).is_some())
            || self.accounts.exceeded(&ClaimOwner::export(key)).is_some();
        let takes_part = matches!(self.membership, Membership::Member { .. } | Membership::Joining(_));
        takes_part && !refused && self.publication(key) != Publication::Published
    }

    /// How far the export of a name has come.
    pub fn publication(&self, key: &ServiceKey) -> Publication {
        match &self.membership {
            Membership::Refused(message) | Membership::Failing(message) => {
                return Publication::Failed(message.clone());
            }
            Membership::Leaving => {
                return Publication::Pending(LEAVING.to_owned());
            }
            Membership::Member { .. } | Membership::Joining(_) => {}
        }
        if let Some(too_large) = self.exports.as_ref().and_then(|exports| exports.refusal(key)) {
            return Publication::Failed(format!("{too_large}."));
        }
        if let Some((_, text)) = self.exceeded(&ClaimOwner::export(key)) {
            return Publication::Failed(text);
        }
        let record = records::export_key(key);
        let wanted = self.exports.as_ref().and_then(|exports| exports.record(&record));
        let there = self.published.as_ref().and_then(|map| map.get(&record));
        match (wanted, there, &self.membership) {
            (Some(wanted), Some(there), _) if wanted == there => Publication::Published,
            (_, _, Membership::Joining(waiting)) => Publication::Pending(waiting.clone()),
            (_, _, Membership::Member { trouble: Some(error) }) => Publication::Failed(error.clone()),
            _ => Publication::Pending("The export is on its way to the registry.".to_owned()),
        }
    }
}
