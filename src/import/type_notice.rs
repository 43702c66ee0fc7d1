//! A change of an import's type that an export of another cluster causes is said before it is done. Pure.
//!
//! A change of type takes the cluster IPs away from clients, or gives them others. So an import keeps its type for as long as the
//! notice takes, while any export still has that type. The time begins with the condition `TypeChanges` of the import, which
//! therefore survives a change of the leader, and no date that another cluster says can shorten it.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::plan::{Observed, type_of};
use api::conditions::{ImportCondition, find};
use model::{ClusterId, Export, ServiceType};

/// A change of an import's type that is not made yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeChange {
    /// The type that the import keeps until then.
    pub from: ServiceType,
    /// The type of the oldest export.
    pub to: ServiceType,
    /// The cluster of the oldest export.
    pub by: ClusterId,
    /// When the import changes.
    pub at: Timestamp,
}

impl TypeChange {
    /// The message of the condition.
    pub fn text(&self) -> String {
        let Self { from, to, by, at } = self;
        format!(
            "The type changes from {from} to {to} at {at:.0}, because the oldest export, of cluster {by}, has that type. Until then it \
             stays {from}. If that is a mistake, give the Service in cluster {by} the type that it had, or delete its ServiceExport. \
             If nobody there made this export, run cloudmap-mcs trust reject {by} in every cluster."
        )
    }
}

/// The change that waits, if one does: the oldest export has another type than the import, and another export still has the
/// type of the import.
pub(super) fn waiting(observed: &Observed<'_>, exports: &BTreeMap<ClusterId, &Export>) -> Option<TypeChange> {
    let import = observed.import.filter(|import| import.managed && !import.status.clusters.is_empty())?;
    let (by, oldest) = exports.iter().min_by_key(|(id, export)| (export.created, *id))?;
    let (from, to) = (type_of(&import.spec), oldest.service_type);
    if from == to || !exports.values().any(|export| export.service_type == from) {
        return None;
    }
    let said = find(&import.status.conditions, ImportCondition::TypeChanges.as_str());
    // Dates of conditions have whole seconds.
    let now = Timestamp::from_second(observed.now.as_second()).unwrap_or(observed.now);
    let since = said.map_or(now, |said| said.last_transition_time.min(now));
    let at = due(since, observed.notice);
    (observed.now < at).then(|| TypeChange { from, to, by: by.clone(), at })
}

fn due(since: Timestamp, notice: Duration) -> Timestamp {
    since.checked_add(notice).unwrap_or(Timestamp::MAX)
}
