//! The workers: one name at a time, observe, plan, apply.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use tokio::time::Instant;
use tracing::{debug, warn};

use super::{Membership, shared::Shared};
use crate::{
    api::{
        conditions::{ExportCondition, ImportCondition, ImportStaleReason, Status, already_say, conditions, find},
        names::FieldManager,
    },
    cluster::{
        ClusterWriter,
        apply::{Cause, Error},
        events::{self, Note, Severity},
        objects::ServiceExport,
    },
    env,
    export::{self, Facts, Publication, verdicts},
    foreign::Picture,
    import::{self, Observed, Plan, Source, There, Wanted, derived_name},
    model::{ClusterId, Conflict, ServiceKey, merge},
};

pub(super) struct Reconciler {
    pub(super) shared: Arc<Shared>,
    pub(super) writer: Arc<dyn ClusterWriter>,
}

impl Reconciler {
    /// Works on names until it is dropped.
    pub(super) async fn run(&self) {
        loop {
            let key = self.shared.queue.take().await;
            let begun = Instant::now();
            // Both halves are tried: a name whose import fails still gets its conditions.
            let imported = self.import(&key).await;
            let reported = self.report(&key).await;
            let outcome = match imported.and(reported) {
                Ok(()) => {
                    self.shared.queue.done(&key);
                    "ok"
                }
                Err(error) => {
                    let (retry_in, failures) = self.shared.queue.failed(&key);
                    self.failed(&key, &error, retry_in, failures).await;
                    error.cause.category()
                }
            };
            self.shared.metrics.reconciled(outcome, begun.elapsed());
        }
    }

    /// Makes the imported objects of a name what they should be.
    async fn import(&self, key: &ServiceKey) -> Result<(), Error> {
        let (plan, there) = self.plan_import(key);
        match &plan {
            Plan::Keep => Ok(()),
            Plan::Remove => import::remove(&*self.writer, key, &there).await,
            Plan::Blocked(message) => {
                self.blocked(key, &there, message).await;
                Ok(())
            }
            Plan::Want(wanted) => {
                if let Some(obstacle) = &wanted.obstacle {
                    self.blocked(key, &there, obstacle).await;
                }
                for (cluster, address, reason) in &wanted.skipped {
                    self.shared.metrics.skipped_address(reason.as_str());
                    debug!(%key, %cluster, %address, reason = reason.as_str(), "left out an address");
                }
                if let (Some((cluster, address, reason)), Some(import)) = (wanted.skipped.first(), &there.import) {
                    let text = format!(
                        "Left out {} address(es) that cannot be endpoints here, such as {address} of cluster {cluster}: \
                         it is {}.",
                        wanted.skipped.len(),
                        reason.as_str()
                    );
                    let regarding = events::import(key, &import.uid);
                    let note = Note {
                        regarding,
                        severity: Severity::Warning,
                        reason: "AddressSkipped",
                        action: "Import",
                        text,
                    };
                    self.writer.publish_event(note).await;
                }
                if let Some(note) = staleness(key, &there, wanted) {
                    self.writer.publish_event(note).await;
                }
                import::apply(&*self.writer, key, &there, wanted, env::timestamp()).await
            }
        }
    }

    fn plan_import(&self, key: &ServiceKey) -> (Plan, There) {
        let caches = &self.shared.caches;
        let mut state = self.shared.state();
        let there = There {
            import: caches.imports.get(key),
            derived: caches.services.get(&ServiceKey::new(key.namespace.clone(), derived_name(key))),
            slices: state.imported.get(key),
        };
        let sources = match state.knowledge.membership() {
            Membership::Leaving => BTreeMap::new(),
            Membership::Refused(_) => return (Plan::Keep, there),
            Membership::Member { .. } | Membership::Joining(_) | Membership::Failing(_) => state.sources(key),
        };
        let sources: BTreeMap<ClusterId, Source<'_>> = sources
            .iter()
            .map(|(id, local)| (id.clone(), Source { export: &local.export, endpoints: &local.endpoints }))
            .collect();
        let unknown = match state.knowledge.membership() {
            Membership::Leaving => import::Unknown::Only(BTreeSet::new()),
            _ => state.unknown(key),
        };
        let silent = state.knowledge.silent();
        let foreign = match state.knowledge.membership() {
            Membership::Leaving => Picture::nothing(),
            _ => state.foreign.picture(key),
        };
        let observed = Observed {
            key,
            local: state.knowledge.local(),
            namespace: caches.namespaces.get(&key.namespace).is_some_and(|namespace| !namespace.terminating),
            sources: &sources,
            unknown: &unknown,
            settling: state.settling(),
            families: &self.shared.families,
            silent: &silent,
            foreign: &foreign,
            import: there.import.as_deref(),
            derived: there.derived.as_deref(),
            slices: &there.slices,
        };
        let plan = import::plan(&observed, |address: IpAddr| {
            state.cluster_ips.contains_key(&address)
                || self.shared.service_ranges.iter().any(|range| range.contains(address))
        });
        (plan, there)
    }

    /// Sets the conditions of this cluster's ServiceExport.
    async fn report(&self, key: &ServiceKey) -> Result<(), Error> {
        let Some(export) = self.shared.caches.exports.get(key).filter(|export| !export.deleting) else {
            self.shared.state().pending.over(key);
            return Ok(());
        };
        let verdicts = {
            let mut state = self.shared.state();
            let state = &mut *state;
            let knowledge = &state.knowledge;
            let refusal = match knowledge.planned(key) {
                Some(Ok(_)) => None,
                Some(Err(refusal)) => Some(refusal),
                // Not planned yet: it is in the queue again as soon as it is.
                None => return Ok(()),
            };
            if refusal.is_none() && self.shared.ledger && knowledge.starting() && says(&export, ExportCondition::Ready)
            {
                return Ok(());
            }
            let on_its_way = refusal.is_none() && self.shared.ledger && knowledge.is_on_its_way(key);
            if !on_its_way {
                state.pending.over(key);
            } else if let Some(rest) = state.pending.wait(key, Instant::now()) {
                self.shared.queue.add_after(key.clone(), rest);
                return Ok(());
            }
            let conflicts = match state.unknown(key) {
                import::Unknown::All => None,
                unknown => {
                    // Who is not known may disagree: what was said of it holds meanwhile.
                    Some(conflicts(&state.sources(key))).filter(|known| unknown.is_none() || !known.is_empty())
                }
            };
            verdicts(&Facts {
                local: knowledge.local(),
                refusal,
                remarks: export::remarks(&export),
                publication: match knowledge.publication(key) {
                    // It does not pass by itself.
                    Publication::Pending(message) if !self.shared.ledger => Publication::Outside(message),
                    publication => publication,
                },
                conflicts: conflicts.as_deref(),
                registered: self.shared.targets.registered(
                    knowledge,
                    &export,
                    &state.claims,
                    &state.statuses,
                    &state.pods,
                ),
            })
        };
        let conflict = ExportCondition::Conflict.as_str();
        let unsaid = export.conditions.iter().filter(|there| {
            self.shared.ledger
                && there.type_ == conflict
                && verdicts[0].status == Status::True
                && !verdicts.iter().any(|verdict| verdict.type_ == conflict)
        });
        let unsaid: Vec<_> = unsaid.cloned().collect();
        let news = verdicts.iter().filter_map(|verdict| {
            Some(Note {
                regarding: events::export(key, &export.uid),
                severity: if verdict.is_bad() { Severity::Warning } else { Severity::Normal },
                reason: verdict.news(&export.conditions)?,
                action: "Export",
                text: verdict.message.clone(),
            })
        });
        let news: Vec<_> = news.collect();
        let mut conditions = conditions(&export.conditions, verdicts, export.generation, env::timestamp());
        conditions.extend(unsaid);
        if already_say(&export.conditions, &conditions) && !stale_types(&export, &conditions) {
            return Ok(());
        }
        self.writer.apply_export_conditions(key, &export.uid, &conditions, FieldManager::ExportStatus).await?;
        for note in news {
            self.writer.publish_event(note).await;
        }
        Ok(())
    }

    /// An object of somebody else is in the way: said on it, and on the export of this cluster if there is one.
    async fn blocked(&self, key: &ServiceKey, there: &There, message: &str) {
        warn!(%key, message, "cannot import");
        self.shared.metrics.blocked();
        let export = self.shared.caches.exports.get(key);
        let regarding = [
            there.import.as_ref().filter(|import| !import.managed).map(|import| events::import(key, &import.uid)),
            there.derived.as_ref().filter(|s| !s.managed).map(|service| events::service(&service.key, &service.uid)),
            export.map(|export| events::export(key, &export.uid)),
        ];
        for regarding in regarding.into_iter().flatten() {
            let note = Note {
                regarding,
                severity: Severity::Warning,
                reason: "ForeignObject",
                action: "Import",
                text: message.to_owned(),
            };
            self.writer.publish_event(note).await;
        }
    }

    async fn failed(&self, key: &ServiceKey, error: &Error, retry_in: std::time::Duration, failures: u32) {
        let cause = error.cause.to_string();
        match error.cause {
            // The cache catches up, the namespace goes, or the other replica goes on.
            Cause::Conflict(_) | Cause::NotLeader | Cause::NotFound(_) | Cause::NamespaceTerminating(_)
                if failures < 5 =>
            {
                debug!(%key, %error, cause, ?retry_in, "will try again");
            }
            _ => {
                warn!(%key, %error, cause, ?retry_in, failures, "failed to reconcile");
                let objects = [
                    self.shared.caches.exports.get(key).map(|export| events::export(key, &export.uid)),
                    self.shared.caches.imports.get(key).map(|import| events::import(key, &import.uid)),
                ];
                for regarding in objects.into_iter().flatten().filter(|_| failures == 3) {
                    let note = Note {
                        regarding,
                        severity: Severity::Warning,
                        reason: "ReconcileFailed",
                        action: "Reconcile",
                        text: format!("{error}: {cause}. It is tried again until it succeeds."),
                    };
                    self.writer.publish_event(note).await;
                }
            }
        }
    }
}

/// The Event for an import whose condition `Stale` comes or goes.
fn staleness(key: &ServiceKey, there: &There, wanted: &Wanted) -> Option<Note> {
    let import = there.import.as_ref().filter(|import| import.managed && wanted.service.is_some())?;
    let is_stale = find(&import.status.conditions, ImportCondition::Stale.as_str()).is_some();
    let (severity, reason, text) = match (is_stale, wanted.silent.is_empty()) {
        (false, false) => {
            let clusters: Vec<_> = wanted.silent.keys().map(ToString::to_string).collect();
            let text = format!(
                "Nothing is heard of {}: endpoints there are as they were, and may be gone.",
                clusters.join(", ")
            );
            (Severity::Warning, ImportStaleReason::ClusterSilent.as_str(), text)
        }
        (true, true) => (Severity::Normal, "ClustersHeard", "All exporting clusters are heard of again.".to_owned()),
        _ => return None,
    };
    Some(Note { regarding: events::import(key, &import.uid), severity, reason, action: "Import", text })
}

/// The conflicts among all known exports of a name.
fn conflicts(sources: &BTreeMap<ClusterId, Arc<export::Local>>) -> Vec<Conflict> {
    let exports = sources.iter().map(|(id, local)| (id.clone(), &local.export)).collect();
    merge(&exports).map(|service| service.conflicts).unwrap_or_default()
}

/// Whether the object says that this condition holds.
fn says(export: &ServiceExport, type_: ExportCondition) -> bool {
    find(&export.conditions, type_.as_str()).is_some_and(|condition| condition.status == Status::True.as_str())
}

/// Whether the object has a condition of ours that is no longer said.
fn stale_types(
    export: &ServiceExport,
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
) -> bool {
    export.conditions.iter().any(|there| {
        ExportCondition::ALL.iter().any(|type_| type_.as_str() == there.type_)
            && !conditions.iter().any(|condition| condition.type_ == there.type_)
    })
}
