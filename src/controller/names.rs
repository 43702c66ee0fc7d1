//! What a worker must write for one name: the imported objects, and the conditions of this cluster's ServiceExport.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    Membership, Mode,
    core::{Command, Core, Now},
    dirty::Fact,
    work::{Report, Work},
};
use api::{
    conditions::{ExportCondition, RegisteredReason, Status, already_say, conditions, find},
    events::EventReason,
};
use cluster::{
    events::{self, EventRecord},
    objects::ServiceExport,
};
use discovery::Picture;
use export::{ExportFacts, Publication, verdicts};
use import::{
    DerivedServices, Observed, Plan, Selecting, Source, There, TypeChange, Unknown, policy::Excluded, tiers::Spill,
};
use model::{ClusterId, ClusterSetService, Conflict, ConflictReason, ServiceKey, merge};

/// A name is looked at again this much later at the earliest, because dates of conditions have whole seconds.
const A_MOMENT: Duration = Duration::from_secs(1);

/// How often it is said and counted that an import is blocked, as long as it is. An Event is gone after an hour, and the
/// alert looks at the last 15 minutes. Every other Event may be left out, because equal ones are 10 minutes apart at least.
const BLOCKED_AGAIN: Duration = Duration::from_mins(10);

impl Core {
    /// Everything that must be written for a name, according to what is known now.
    pub(super) fn work(&mut self, key: &ServiceKey, now: Now) -> Work {
        let shown = self.world.imports.get(key);
        let (derived, misnamed) = self.world.derived.of(key, &self.world.services, shown.as_deref());
        let (import, there, excluded) = self.plan_import(key, derived, now);
        let (change, spill, serving) = match &import {
            Plan::Want(wanted) => {
                (wanted.change.clone(), wanted.spill, wanted.selection.as_ref().map(|selected| selected.serving))
            }
            Plan::Keep | Plan::Remove | Plan::Blocked(_) => (None, Spill::Settled, None),
        };
        self.importing.spills.note(key, spill, now.mono);
        match serving {
            Some(serving) => drop(self.importing.serving.insert(key.clone(), serving)),
            None => drop(self.importing.serving.remove(key)),
        }
        if let Some(rest) =
            change.as_ref().and_then(|change| Duration::try_from(change.at.duration_since(now.wall)).ok())
        {
            self.out.push(Command::ReconcileIn(key.clone(), rest.max(A_MOMENT)));
        }
        let is_blocked = match &import {
            Plan::Blocked(_) => true,
            Plan::Want(wanted) => wanted.obstacle.is_some(),
            Plan::Keep | Plan::Remove => false,
        };
        if is_blocked {
            self.reports.blocked.insert(key.clone(), now.mono + BLOCKED_AGAIN);
        } else {
            self.reports.blocked.remove(key);
        }
        self.report_unserved(key, now);
        let mut notes = Vec::new();
        notes.extend(self.refused(key));
        notes.extend(self.excluded(key, &import, &excluded));
        let is_here = self.world.namespaces.contains(&key.namespace);
        self.importing.policies.note(key, if is_here { &excluded } else { &[] });
        notes.extend(misnamed.and_then(|text| {
            let import = there.import.as_ref().filter(|import| import.managed)?;
            let (reason, action) = (EventReason::DerivedNameUnusable, "Import");
            Some(EventRecord { regarding: events::import(key, &import.uid), reason, action, text })
        }));
        let report = self.plan_report(key, change.as_ref(), now);
        let local = self.knowledge.local();
        let own_only = matches!(&import, Plan::Want(wanted) if wanted.slices.keys().all(|cluster| cluster == local));
        Work {
            key: key.clone(),
            import,
            own_only,
            there,
            export: self.world.exports.get(key),
            namespace: self.world.namespaces.get(&key.namespace),
            report,
            notes,
            now: now.wall,
        }
    }

    /// Lets it be said and counted again which imports are blocked.
    pub(super) fn look_at_blocked(&mut self, now: Now) {
        let mut due = Vec::new();
        for (key, at) in self.reports.blocked.iter_mut().filter(|(_, at)| **at <= now.mono) {
            *at = now.mono + BLOCKED_AGAIN;
            due.push(key.clone());
        }
        self.changed_each(&due, Fact::BlockedAgain);
    }

    fn plan_import(&mut self, key: &ServiceKey, derived: DerivedServices, now: Now) -> (Plan, There, Excluded) {
        let there = There { import: self.world.imports.get(key), derived, slices: self.world.imported.get(key) };
        let nothing = match self.knowledge.membership() {
            Membership::Refused(_) => return (Plan::Keep, there, Vec::new()),
            Membership::Leaving => true,
            _ if self.term.outside => true,
            Membership::Member { .. } | Membership::Joining(_) | Membership::Failing(_) => {
                self.importing.subscriptions.refuses(key)
            }
        };
        let (sources, unknown, discovered) = if nothing {
            (BTreeMap::new(), Unknown::Only(BTreeSet::new()), Picture::nothing())
        } else {
            (self.sources(key), self.unknown(key), self.importing.subscriptions.picture(key))
        };
        let (sources, mut excluded) = self.accepted(key, sources, &there.slices);
        excluded.extend(self.still_excluded(key, &unknown, there.import.as_deref()));
        let unknown = self.accepted_of(key, unknown, &there);
        let sources: BTreeMap<ClusterId, Source<'_>> = sources
            .iter()
            .map(|(id, local)| (id.clone(), Source { export: &local.export, endpoints: &local.endpoints }))
            .collect();
        let (silent, unheard) = (self.knowledge.silent(), self.knowledge.unheard());
        let namespace = self.world.namespaces.get(&key.namespace);
        let of_namespace = self.namespace_selection(&key.namespace, there.import.as_deref());
        let of_namespace = of_namespace.as_deref();
        let properties = self.properties_of(&sources, of_namespace);
        let drain = |(cluster, source): (&ClusterId, &Source<'_>)| {
            Some((cluster.clone(), self.drain_of(cluster, source.export)?))
        };
        let drains = sources.iter().filter_map(drain).collect();
        let unreachable = self.unreachable(there.import.as_deref(), sources.keys());
        let observed = Observed {
            key,
            local: self.knowledge.local(),
            namespace: namespace.is_some_and(|namespace| !namespace.terminating),
            sources: &sources,
            unknown: &unknown,
            first_reading: self.awaits_first_reading(),
            families: &self.settings.families,
            silent: &silent,
            unheard: &unheard,
            discovered: &discovered,
            import: there.import.as_deref(),
            derived: &there.derived,
            slices: &there.slices,
            excluded: &excluded,
            selecting: Selecting {
                of_namespace,
                default: &self.settings.cluster_selection,
                properties: &properties,
                drains: &drains,
                unreachable: &unreachable,
                step: self.importing.spills.taken(key),
            },
            notice: self.settings.type_notice,
            now: now.wall,
        };
        let plan = import::plan(&observed, |address: IpAddr| self.is_cluster_ip(address));
        (plan, there, excluded)
    }

    /// What all known exports of a name make of it.
    fn merged(&self, key: &ServiceKey) -> Option<ClusterSetService> {
        let sources = self.sources(key);
        merge(&sources.iter().map(|(id, local)| (id.clone(), &local.export)).collect())
    }

    /// The Event for an export that no cluster may import, on the own ServiceExport or on the namespace.
    fn refused(&mut self, key: &ServiceKey) -> Option<EventRecord> {
        if !self.importing.subscriptions.refuses(key)
            || self.sources(key).is_empty() && !self.importing.subscriptions.picture(key).exists
        {
            return None;
        }
        let export = self.world.exports.get(key).map(|export| events::export(key, &export.uid));
        let namespace = || Some(events::namespace(&key.namespace, &self.world.namespaces.get(&key.namespace)?.uid));
        let text = format!(
            "{key} is exported, and not imported: no cluster makes Services for others in the namespaces of Kubernetes \
             (kube-*) and of this controller, nor for default/kubernetes. Export it from another namespace."
        );
        let (reason, action) = (EventReason::SystemNamespace, "Import");
        Some(EventRecord { regarding: export.or_else(namespace)?, reason, action, text })
    }

    /// Which ports of an export no endpoint serves, once that has lasted, with the remedy.
    fn unserved(&mut self, key: &ServiceKey, export: &ServiceExport, now: Now) -> Option<String> {
        let planned = self.knowledge.planned(key)?.as_ref().ok();
        let text = planned.and_then(|local| {
            let has_selector = self.world.services.get(key).is_none_or(|service| service.has_selector);
            export::unserved(key, &local.export.ports, &local.endpoints, has_selector)
        });
        let Some(text) = text else {
            self.reports.unserved.over(key);
            return None;
        };
        let begins = export::unserved_begins(key);
        let is_said = export.conditions.iter().any(|there| there.message.contains(&begins));
        if let Some(rest) = self.reports.unserved.wait(key, now.mono).filter(|_| !is_said) {
            self.out.push(Command::ReconcileIn(key.clone(), rest));
            return None;
        }
        Some(text)
    }

    /// The conditions of this cluster's ServiceExport. `None` if the current ones are right, or if it is too early to
    /// tell.
    fn plan_report(&mut self, key: &ServiceKey, change: Option<&TypeChange>, now: Now) -> Option<Report> {
        let member = self.settings.mode == Mode::Member;
        let Some(export) = self.world.exports.get(key).filter(|export| !export.deleting) else {
            self.reports.pending.over(key);
            self.reports.unserved.over(key);
            return None;
        };
        // It is not planned yet. It is reconciled again as soon as it is.
        let refusal = self.knowledge.planned(key)?.as_ref().err();
        if refusal.is_none() && member && self.knowledge.starting() && says(&export, ExportCondition::Ready) {
            return None;
        }
        let on_its_way = refusal.is_none() && member && self.knowledge.is_on_its_way(key);
        if !on_its_way {
            self.reports.pending.over(key);
        } else if let Some(rest) = self.reports.pending.wait(key, now.mono) {
            self.out.push(Command::ReconcileIn(key.clone(), rest));
            return None;
        }
        let merged = self.merged(key);
        let selection = self.report_selection(&export, merged.as_ref());
        let drained = self.report_drain(&export);
        let conflicts = match self.unknown(key) {
            Unknown::All => None,
            unknown => {
                // An unknown cluster may disagree. Meanwhile what was reported stays.
                Some(conflicts(merged, change)).filter(|known| unknown.is_none() || !known.is_empty())
            }
        };
        let publication = match self.knowledge.publication(key) {
            // This does not pass by itself.
            Publication::Pending(message) if !member => Publication::Outside(message),
            publication => publication,
        };
        let unserved = self.unserved(key, &export, now);
        let refusal = self.knowledge.planned(key)?.as_ref().err();
        let traffic = Self::drained_traffic(self.instance_drain(key), self.traffic(&export));
        let (knowledge, targets) = (&self.knowledge, &self.exporting.targets);
        // What was registered is withdrawn, or nobody keeps it up to date.
        let ended = match &publication {
            Publication::Pending(why) if *knowledge.membership() == Membership::Leaving => Some(why),
            // Annotations are served all the same, and may name the same target.
            Publication::Outside(why) if !self.annotated.concerns(key) => Some(why),
            _ => None,
        };
        let registered =
            targets.registered(knowledge, (&export, traffic), &self.claims, &self.instances.statuses, &self.pods);
        let registered = registered.map(|said| match (ended, said.0) {
            (Some(why), RegisteredReason::Registered | RegisteredReason::Pending) => {
                (RegisteredReason::Pending, why.clone())
            }
            _ => said,
        });
        let registered = registered.map(|said| with_unserved(said, unserved.as_deref()));
        let news = unserved.iter().filter(|text| {
            // The condition `Registered` has an Event of its own.
            let reported = registered.as_ref().is_some_and(|said| said.0 == RegisteredReason::PortNotServed);
            !reported && !export.conditions.iter().any(|there| there.message.contains(text.as_str()))
        });
        let news: Vec<_> = news.map(|text| (EventReason::PortNotServed, text.clone())).collect();
        let remarks: Vec<_> = export::remarks(&export).into_iter().chain(unserved).collect();
        let verdicts = verdicts(&ExportFacts {
            local: self.knowledge.local(),
            refusal,
            remarks: (!remarks.is_empty()).then(|| remarks.join(" ")),
            publication,
            conflicts: conflicts.as_deref(),
            registered,
            selection,
            drained,
        });
        let conflict = ExportCondition::Conflict.as_str();
        let unsaid = export.conditions.iter().filter(|there| {
            member
                && *there.type_ == *conflict
                && refusal.is_none()
                && !verdicts.iter().any(|verdict| verdict.type_ == conflict)
        });
        let unsaid: Vec<_> = unsaid.map(Condition::from).collect();
        let notes =
            verdicts.iter().filter_map(|verdict| Some((verdict.news(&export.conditions)?, verdict.message.clone())));
        let notes = notes.chain(news).map(|(reason, text)| {
            let regarding = events::export(key, &export.uid);
            EventRecord { regarding, reason, action: "Export", text }
        });
        let notes = notes.collect();
        let mut conditions = conditions(&export.conditions, verdicts, export.generation, now.wall);
        conditions.extend(unsaid);
        if already_say(&export.conditions, &conditions) && !stale_types(&export, &conditions) {
            return None;
        }
        Some(Report { uid: export.uid.clone(), conditions, notes })
    }
}

/// What is said of the instances, if no endpoint serves a port: they are registered, and nobody gets through.
fn with_unserved(said: (RegisteredReason, String), unserved: Option<&str>) -> (RegisteredReason, String) {
    match (said, unserved) {
        ((RegisteredReason::Registered, message), Some(text)) => {
            // A new leader repeats what the previous one reported.
            let message = if message.contains(text) { message } else { format!("{message} {text}") };
            (RegisteredReason::PortNotServed, message)
        }
        (said, _) => said,
    }
}

/// The conflicts among all known exports of a name.
fn conflicts(merged: Option<ClusterSetService>, change: Option<&TypeChange>) -> Vec<Conflict> {
    let mut conflicts = merged.map(|service| service.conflicts).unwrap_or_default();
    for conflict in conflicts.iter_mut().filter(|conflict| conflict.reason == ConflictReason::Type) {
        let said = change.map(|change| format!(" {}", change.text()));
        conflict.summary.push_str(&said.unwrap_or_default());
    }
    conflicts
}

/// Whether the object has this condition with status True.
fn says(export: &ServiceExport, type_: ExportCondition) -> bool {
    find(&export.conditions, type_.as_str()).is_some_and(|condition| *condition.status == *Status::True.as_str())
}

/// Whether the object has a condition of ours that is no longer reported.
fn stale_types(export: &ServiceExport, conditions: &[Condition]) -> bool {
    export.conditions.iter().any(|there| {
        ExportCondition::ALL.iter().any(|type_| *type_.as_str() == *there.type_)
            && !conditions.iter().any(|condition| *condition.type_ == *there.type_)
    })
}
