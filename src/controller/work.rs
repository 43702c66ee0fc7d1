//! The work of workers: they write what the core planned for one name, and decide nothing.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use tracing::{debug, warn};

use super::Metrics;
use api::{
    conditions::{ImportCondition, find},
    events::EventReason,
    names::FieldManager,
};
use cluster::{
    ClusterWriter,
    apply::{Cause, Error},
    events::{self, EventRecord, Outbox},
    objects::{Namespace, ServiceExport},
};
use import::{Extent, Plan, There, Wanted};
use model::{ClusterId, ServiceKey};

/// After this many failures in a row, an Event says so, once.
const SAID_AFTER: u32 = 3;
/// The same for failures that mostly pass by themselves.
const LASTING: u32 = 5;

/// Everything that must be written for one name.
#[derive(Debug, Clone)]
pub(super) struct Work {
    pub(super) key: ServiceKey,
    pub(super) import: Plan,
    /// Whether no other cluster has endpoints of this name.
    pub(super) own_only: bool,
    /// The objects for which the plan was made.
    pub(super) there: There,
    /// This cluster's ServiceExport, on which obstacles and failures are also reported.
    pub(super) export: Option<Arc<ServiceExport>>,
    /// The namespace, on which failures are reported while there is neither an export nor an import.
    pub(super) namespace: Option<Arc<Namespace>>,
    pub(super) report: Option<Report>,
    pub(super) notes: Vec<EventRecord>,
    pub(super) now: Timestamp,
}

/// Conditions of a ServiceExport that must be written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Report {
    pub(super) uid: Box<str>,
    pub(super) conditions: Vec<Condition>,
    /// The Events to emit when they are written.
    pub(super) notes: Vec<EventRecord>,
}

/// A part of the work for a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything.
    All,
    /// All but the conditions of the ServiceExport, which are for people.
    Import,
    /// What clients of a new import need: the derived Service, the EndpointSlices and the ServiceImport. Its status and Events
    /// follow.
    Objects,
    /// The derived Service and the EndpointSlices of an import that gets another derived Service. It shows that one a second
    /// later.
    Endpoints,
    /// Nothing: whoever asks for the name in this cluster has its Service.
    Nothing,
}

impl Work {
    /// What is urgent while other names wait: traffic of existing imports, and what clients of new ones from other clusters
    /// need.
    pub(super) fn urgent(&self) -> Part {
        let is_new = self.there.import.as_ref().is_none_or(|import| import.status.conditions.is_empty());
        match &self.import {
            Plan::Want(_) if is_new && self.own_only => Part::Nothing,
            Plan::Want(wanted) if is_new && wanted.obstacle.is_none() => Part::Objects,
            Plan::Want(wanted) if wanted.former.is_some() && wanted.obstacle.is_none() => Part::Endpoints,
            Plan::Keep if self.report.is_some() => Part::Nothing,
            _ if self.report.is_some() => Part::Import,
            _ => Part::All,
        }
    }

    /// Writes a part. Events go into `outbox`, because endpoints wait for no Event.
    ///
    /// # Errors
    /// What was not written must be planned again.
    pub(super) async fn apply(
        &self,
        part: Part,
        writer: &dyn ClusterWriter,
        outbox: &Outbox,
        metrics: &Metrics,
    ) -> Result<(), Error> {
        let write = |wanted, extent| import::apply(writer, &self.key, &self.there, wanted, extent, self.now);
        match (part, &self.import) {
            (Part::Nothing, _) => Ok(()),
            (Part::Endpoints, Plan::Want(wanted)) => write(wanted, Extent::Endpoints).await,
            (Part::Objects, Plan::Want(wanted)) => write(wanted, Extent::Objects).await,
            (Part::Endpoints | Part::Objects | Part::Import, _) => self.import(writer, outbox, metrics).await,
            (Part::All, _) => {
                // Both are tried: a name whose import fails still gets its conditions.
                let imported = self.import(writer, outbox, metrics).await;
                let reported = self.report(writer, outbox).await;
                imported.and(reported)
            }
        }
    }

    /// Brings the imported objects of the name to their desired state.
    async fn import(&self, writer: &dyn ClusterWriter, outbox: &Outbox, metrics: &Metrics) -> Result<(), Error> {
        self.notes.iter().cloned().for_each(|note| outbox.send(note));
        match &self.import {
            Plan::Keep => Ok(()),
            Plan::Remove => import::remove(writer, &self.key, &self.there).await,
            Plan::Blocked(message) => {
                self.blocked(outbox, metrics, message);
                Ok(())
            }
            Plan::Want(wanted) => {
                if let Some(obstacle) = &wanted.obstacle {
                    self.blocked(outbox, metrics, obstacle);
                }
                for (cluster, address, reason) in &wanted.skipped {
                    metrics.skipped_address(reason.as_str());
                    debug!(key = %self.key, %cluster, %address, reason = reason.as_str(), "left out an address");
                }
                let notes =
                    [self.skipped(wanted), self.staleness(wanted), self.reachability(wanted), self.exclusion(wanted)];
                for note in notes.into_iter().flatten() {
                    outbox.send(note);
                }
                self.type_change(wanted).into_iter().for_each(|note| outbox.send(note));
                import::apply(writer, &self.key, &self.there, wanted, Extent::All, self.now).await
            }
        }
    }

    async fn report(&self, writer: &dyn ClusterWriter, outbox: &Outbox) -> Result<(), Error> {
        let Some(Report { uid, conditions, notes }) = &self.report else { return Ok(()) };
        writer.apply_export_conditions(&self.key, uid, conditions, FieldManager::ExportStatus).await?;
        notes.iter().cloned().for_each(|note| outbox.send(note));
        Ok(())
    }

    /// The Event for addresses that were left out. It is the same one while others come and go, so that it is not created
    /// each time.
    fn skipped(&self, wanted: &Wanted) -> Option<EventRecord> {
        let first = wanted.skipped.iter().min_by(|(a, one, _), (b, other, _)| (a, one).cmp(&(b, other)));
        let ((cluster, address, reason), import) = first.zip(self.there.import.as_ref())?;
        let text = format!(
            "Left out addresses that cannot be endpoints here, such as {address} of cluster {cluster}: it is {}.",
            reason.as_str()
        );
        let (reason, action) = (EventReason::AddressSkipped, "Import");
        Some(EventRecord { regarding: events::import(&self.key, &import.uid), reason, action, text })
    }

    /// The Event for an import whose condition `Stale` appears or disappears.
    fn staleness(&self, wanted: &Wanted) -> Option<EventRecord> {
        let appears = |clusters: &str| {
            let text = format!("Silent clusters: {clusters}. Their endpoints stay as they were, and may be gone.");
            (EventReason::ClusterSilent, text)
        };
        let over = (EventReason::ClustersHeard, "No exporting cluster is silent any more.");
        self.turn(ImportCondition::Stale, wanted.silent.as_ref()?.keys(), appears, over)
    }

    /// The Event for an import whose condition `Unreachable` appears or disappears.
    fn reachability(&self, wanted: &Wanted) -> Option<EventRecord> {
        let appears = |clusters: &str| {
            let text = format!(
                "Clusters that cannot be reached from this one: {clusters}. Their endpoints serve only if no others do."
            );
            (EventReason::ClusterUnreachable, text)
        };
        let over = (EventReason::ClusterReachable, "Every exporting cluster can be reached from this one.");
        self.turn(ImportCondition::Unreachable, wanted.unreachable.keys(), appears, over)
    }

    /// The Event for an import whose condition `Excluded` appears or disappears.
    fn exclusion(&self, wanted: &Wanted) -> Option<EventRecord> {
        let appears = |_: &str| (EventReason::ImportExcluded, import::policy::message(&wanted.excluded));
        let over = (EventReason::ImportIncluded, "The exports of all clusters count in this cluster.");
        // While the import stays as it is, so does what it says of this.
        wanted.service.as_ref()?;
        self.turn(ImportCondition::Excluded, wanted.excluded.iter().map(|(cluster, _)| cluster), appears, over)
    }

    /// The Event for a condition about clusters that appears or disappears.
    fn turn<'a>(
        &self,
        condition: ImportCondition,
        clusters: impl Iterator<Item = &'a ClusterId>,
        appears: impl FnOnce(&str) -> (EventReason, String),
        over: (EventReason, &str),
    ) -> Option<EventRecord> {
        let import = self.there.import.as_ref().filter(|import| import.managed)?;
        let is_said = find(&import.status.conditions, condition.as_str()).is_some();
        let clusters: Vec<_> = clusters.map(ToString::to_string).collect();
        let (reason, text) = match (is_said, clusters.is_empty()) {
            (false, false) => appears(&clusters.join(", ")),
            (true, true) => (over.0, over.1.to_owned()),
            _ => return None,
        };
        Some(EventRecord { regarding: events::import(&self.key, &import.uid), reason, action: "Import", text })
    }

    /// The Events for an import whose type changes, which does not say so yet: on the import, and on the export of this cluster.
    fn type_change(&self, wanted: &Wanted) -> Vec<EventRecord> {
        let import = self.there.import.as_ref().filter(|import| {
            let said = find(&import.status.conditions, ImportCondition::TypeChanges.as_str());
            import.managed && said.is_none()
        });
        let Some((import, change)) = import.zip(wanted.change.as_ref()) else { return Vec::new() };
        let export = self.export.iter().map(|export| events::export(&self.key, &export.uid));
        let (reason, action) = (EventReason::TypeChanges, "Import");
        let regarding = export.chain([events::import(&self.key, &import.uid)]);
        regarding.map(|regarding| EventRecord { regarding, reason, action, text: change.text() }).collect()
    }

    /// A foreign object blocks the import: reports it on that object, and on the export of this cluster if there is
    /// one.
    fn blocked(&self, outbox: &Outbox, metrics: &Metrics, message: &str) {
        let (key, there) = (&self.key, &self.there);
        warn!(%key, message, "cannot import");
        metrics.blocked();
        let regarding = [
            there.import.as_ref().filter(|import| !import.managed).map(|import| events::import(key, &import.uid)),
            there
                .derived
                .there
                .as_ref()
                .filter(|s| !s.managed)
                .map(|service| events::service(&service.key, &service.uid)),
            self.export.as_ref().map(|export| events::export(key, &export.uid)),
        ];
        for regarding in regarding.into_iter().flatten() {
            let (reason, action) = (EventReason::ForeignObject, "Import");
            outbox.send(EventRecord { regarding, reason, action, text: message.to_owned() });
        }
    }

    /// Reports a failure, which is tried again after `retry_in`: on the objects from the third one in a row on, or from the
    /// fifth one on if it is of a kind that mostly passes. `said` has the names of which that was said since they succeeded.
    pub(super) fn failed(
        &self,
        error: &Error,
        retry_in: Duration,
        failures: u32,
        said: &mut BTreeSet<ServiceKey>,
    ) -> Vec<EventRecord> {
        let (key, cause) = (&self.key, error.cause.to_string());
        // The cache catches up, the namespace goes, or the other replica continues. But an object of somebody else that has
        // the name of one that is to be created does not go.
        let passes = matches!(
            error.cause,
            Cause::Conflict(_) | Cause::NotLeader | Cause::NotFound(_) | Cause::NamespaceTerminating(_)
        );
        let said_at = if passes { LASTING } else { SAID_AFTER };
        if passes && failures < said_at {
            debug!(%key, %error, cause, ?retry_in, "will try again");
            return Vec::new();
        }
        warn!(%key, %error, cause, ?retry_in, failures, "failed to reconcile");
        // Nothing is wrong with the objects if another replica leads, or the namespace goes.
        let is_ours = !matches!(error.cause, Cause::NotLeader | Cause::NamespaceTerminating(_));
        if failures < said_at || !is_ours || !said.insert(key.clone()) {
            return Vec::new();
        }
        let export = self.export.as_ref().map(|export| events::export(key, &export.uid));
        let import = self.there.import.as_ref().map(|import| events::import(key, &import.uid));
        let mut objects: Vec<_> = [export, import].into_iter().flatten().collect();
        if objects.is_empty() {
            let namespace = self.namespace.as_ref();
            objects.extend(namespace.map(|namespace| events::namespace(&key.namespace, &namespace.uid)));
        }
        let text = format!("{error}: {cause}. The controller tries again until it succeeds.");
        let (reason, action) = (EventReason::ReconcileFailed, "Reconcile");
        let note = |regarding| EventRecord { regarding, reason, action, text: text.clone() };
        objects.into_iter().map(note).collect()
    }
}
