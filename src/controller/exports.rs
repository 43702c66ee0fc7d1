//! What this cluster exports, as far as its own objects determine it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    slice::from_ref,
    sync::Arc,
    time::Duration,
};

use super::{
    core::{Command, Core, Now},
    cutovers,
    dirty::Fact,
    drains::Drains,
    idle_shares, pods,
    subset::Subset,
    targets::{Asked, Targets},
};
use cluster::{
    Change,
    objects::{Pod, Service, ServiceExport, SourceSlice, TargetId},
};
use export::{Given, Refusal};
use instances::Traffic;
use model::{ClaimOwner, Exported, ServiceKey, ServicePort, Target};
use records::chunks::is_served;

/// How long an export keeps its last plan while none of its endpoints serves a port that got another name. The
/// EndpointSlice controller follows a Service within about a second.
const HOLD: Duration = Duration::from_secs(5);

/// What the plans of exports depend on beside objects.
#[derive(Debug, Clone)]
pub(super) struct Exporting {
    pub(super) targets: Targets,
    /// Until when exports keep their last plan, because the names of ports in Service and EndpointSlices differ.
    pub(super) held: BTreeMap<ServiceKey, Duration>,
    /// Exports whose targets follow from the list of Cloud Map namespaces.
    pub(super) named: BTreeSet<ServiceKey>,
    pub(super) drains: Drains,
}

impl Exporting {
    pub(super) fn new(targets: Targets) -> Self {
        Self { targets, held: BTreeMap::new(), named: BTreeSet::new(), drains: Drains::default() }
    }
}

impl Core {
    pub(super) fn exports_changed(&mut self, changes: &[Change<ServiceExport>], now: Now) {
        for change in changes {
            self.changed(Fact::Export(&change.key));
        }
        self.note_orphans(changes.iter().map(|change| &change.key), now);
    }

    pub(super) fn services_changed(&mut self, changes: &[Change<Service>]) {
        for change in changes {
            if let Some(blocked) = self.world.derived.update(change) {
                self.changed(Fact::Import(&blocked));
            }
            let Change { key, old, new } = change;
            self.changed(Fact::Service(key));
            self.count_cluster_ips(old.as_deref(), new.as_deref());
            self.out.extend(idle_shares::on_plain_service(old.as_deref(), new.as_deref()).map(Command::Emit));
            for service in old.iter().chain(new).filter_map(|service| service.service_import.as_deref()) {
                self.changed(Fact::Import(&ServiceKey::new(key.namespace.clone(), service)));
            }
            // A foreign Service may have blocked an import, which its name does not reveal. Nor does it reveal to which
            // import one belonged that came and went.
            let concerns_any = old.as_ref().map_or(new.is_none(), |service| !service.managed);
            if key.name.starts_with("derived-") && concerns_any {
                self.changed(Fact::ImportIn(&key.namespace));
            }
        }
    }

    pub(super) fn slices_changed(&mut self, changes: &[Change<SourceSlice>]) {
        for Change { old, new, .. } in changes {
            for key in self.world.slices.update(old.as_ref(), new.as_ref()) {
                self.changed(Fact::Endpoints(&key));
            }
        }
    }

    /// Labels of pods changed or were seen for the first time, so attributes of instances may change.
    pub(super) fn pods_changed(&mut self, changes: &[Change<Pod>]) {
        let (pods, namespaces) = pods::changed(changes, |pod| &pod.namespace);
        for key in self.services_of(&pods, &namespaces) {
            self.changed(Fact::Endpoints(&key));
        }
    }

    /// The Services that list one of these pods, which are in these namespaces.
    pub(super) fn services_of(
        &self,
        pods: &BTreeSet<TargetId>,
        namespaces: &BTreeSet<Arc<str>>,
    ) -> BTreeSet<ServiceKey> {
        let within = namespaces.iter().flat_map(|namespace| self.world.slices.names_in(namespace));
        let of_them = |key: &&ServiceKey| self.world.slices.get(key).iter().any(|slice| pods::concerns(slice, pods));
        within.filter(of_them).cloned().collect()
    }

    /// Plans a name again that is or was exported.
    pub(super) fn plan_export(&mut self, key: &ServiceKey, now: Now) {
        let export = self.world.exports.get(key).filter(|export| !export.deleting);
        let slices = self.world.slices.get(key);
        let notes = self.reports.left_out.update(key, export.as_deref(), &slices);
        self.out.extend(notes.into_iter().map(Command::Emit));
        self.drain_name(key, export.as_deref(), now);
        let plan = export.as_ref().and_then(|export| self.export_of(export, &slices));
        let plan = self.hold(key, plan, now);
        let owner = ClaimOwner::export(key);
        let before = self.knowledge.targets_of(&owner).into_iter().collect();
        if export.is_some() {
            if self.pods.update(key, &slices, &self.world) {
                self.changed(Fact::Pods(key));
            }
        } else if !self.annotated.concerns(key) {
            self.pods.forget(key);
        }
        let subset = self.subset(key, export.as_deref());
        let named = export.as_deref().filter(|export| self.exporting.targets.needs_zones(export));
        let unlisted = named
            .is_some_and(|export| self.exporting.targets.asked(export, self.knowledge.rights()) == Asked::Unlisted);
        if named.is_some() {
            self.exporting.named.insert(key.clone())
        } else {
            self.exporting.named.remove(key)
        };
        let parted = self.knowledge.set_subset(key, subset) | self.knowledge.set_unlisted(key, unlisted);
        let (mut freed, changed) = self.knowledge.replan(key, plan, now.seconds());
        if parted && !changed {
            freed = self.knowledge.export(key, now.seconds());
        }
        if changed || parted {
            self.changed(Fact::Planned(&owner, &before));
            self.changed(Fact::Wants(&owner));
            self.changed_each(&freed, Fact::Freed);
        }
    }

    /// Keeps the last plan of a name for a moment, if it had endpoints that serve and the new one has only others: a
    /// port got another name, and the Service and its EndpointSlices come one after the other. Without this, all
    /// clusters would empty the name meanwhile.
    fn hold(
        &mut self,
        key: &ServiceKey,
        plan: Option<Result<Exported, Refusal>>,
        now: Now,
    ) -> Option<Result<Exported, Refusal>> {
        let before = self.knowledge.planned(key).and_then(|before| before.as_ref().ok());
        if let (Some(before), Some(Ok(after))) = (before, &plan)
            && lost_a_port(before, after)
            && now.mono < *self.exporting.held.entry(key.clone()).or_insert(now.mono + HOLD)
        {
            return Some(Ok(Exported::clone(before)));
        }
        self.exporting.held.remove(key);
        plan
    }

    /// Plans the names again that had their time.
    pub(super) fn release(&mut self, now: Now) {
        let due = self.exporting.held.iter().filter(|(_, until)| **until <= now.mono).map(|(key, _)| key.clone());
        for key in due.collect::<Vec<_>>() {
            self.changed(Fact::HoldOver(&key));
        }
    }

    /// Which endpoints of an export others see, if it has a share of the traffic: those that are registered as
    /// instances.
    fn subset(&self, key: &ServiceKey, export: Option<&ServiceExport>) -> Option<Subset> {
        let export = export.filter(|export| self.traffic(export).is_part())?;
        let target = match self.exporting.targets.asked(export, self.knowledge.rights()) {
            Asked::Target(target) => Some(target),
            // Without instances there is nothing to have a share of.
            Asked::None => Some(self.exporting.targets.for_aws_mcs(key)?),
            Asked::Invalid(_) | Asked::Unknown | Asked::Unlisted => None,
        };
        let own = ClaimOwner::export(key);
        let held = |target: &Target| {
            let registrations = self.knowledge.exports()?.registrations();
            registrations.get(target).filter(|held| held.owner.is_same_service(&own))
        };
        let share = target
            .filter(|target| held(target).is_some())
            .and_then(|target| self.instances.statuses.get(&target)?.share.clone());
        if let Some(share) = share {
            return Some(Subset::Chosen(share.addresses));
        }
        Some(match self.knowledge.subset(key) {
            Some(known @ Subset::AsMany(..)) if self.knowledge.exports().is_some() => known.clone(),
            _ => match self.knowledge.shown(key) {
                Some(shown) => Subset::as_many(&shown),
                None => Subset::as_listed(self.imported_from_here(key)),
            },
        })
    }

    /// The share of the traffic that is in force for an export.
    pub(super) fn traffic(&self, export: &ServiceExport) -> Traffic {
        cutovers::in_force(&self.world.cutovers, &export.key, Traffic::read(&export.annotations).0)
    }

    /// The addresses of own ready endpoints that the import of a name in this cluster has.
    pub(super) fn imported_from_here(&self, key: &ServiceKey) -> BTreeSet<IpAddr> {
        let local = self.knowledge.local().as_str();
        let slices = self.world.imported.get(key);
        let own = slices.iter().filter(|slice| slice.source_cluster.as_deref() == Some(local));
        let ready = own.flat_map(|slice| &slice.endpoints).filter(|there| there.conditions.ready);
        ready.filter_map(|there| there.address).collect()
    }

    /// What a ServiceExport exports now. `None` if its namespace, whose labels and annotations matter, is not known
    /// yet.
    fn export_of(&self, export: &ServiceExport, slices: &[Arc<SourceSlice>]) -> Option<Result<Exported, Refusal>> {
        let service = self.world.services.get(&export.key);
        let target = match self.exporting.targets.asked(export, self.knowledge.rights()) {
            Asked::Target(target) => Some(target),
            Asked::Unknown => return None,
            Asked::None | Asked::Invalid(_) | Asked::Unlisted => None,
        };
        let given =
            Given { target, cluster_selection: self.exported_selection(export), drain: self.name_drain(&export.key) };
        let plan = export::plan(export, service.as_deref(), slices, given);
        let plan = if self.exporting.targets.aws_mcs {
            plan.and_then(|local| export::hand_over(export).map(|()| local))
        } else {
            plan
        };
        let Some(allowed) = &self.settings.export_namespaces else { return Some(plan) };
        let namespace = self.world.namespaces.get(&export.key.namespace)?;
        Some(plan.and_then(|local| export::permit(&namespace, allowed).map(|()| local)))
    }
}

/// Whether a port that got another name has lost all its endpoints, or all ports have.
fn lost_a_port(before: &Exported, after: &Exported) -> bool {
    let serves = |exported: &Exported, ports: &[ServicePort]| {
        exported.endpoints.iter().any(|endpoint| is_served(endpoint, ports))
    };
    let has_other_name = |old: &ServicePort, new: &ServicePort| {
        (old.port, old.protocol) == (new.port, new.protocol) && old.name != new.name
    };
    let (old, new) = (&before.export.ports, &after.export.ports);
    let lost = |port: &ServicePort| {
        let renamed = new.iter().find(|new| has_other_name(port, new));
        renamed.is_some_and(|new| !serves(after, from_ref(new)) && serves(before, from_ref(port)))
    };
    !after.endpoints.is_empty() && (serves(before, old) && !serves(after, new) || old.iter().any(lost))
}
