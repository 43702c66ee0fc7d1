//! What this cluster exports, as far as its own objects determine it.

use std::{collections::BTreeSet, net::IpAddr, slice::from_ref, sync::Arc, time::Duration};

use super::{
    core::{Command, Core, Now},
    cutovers, idle_shares,
    parts::Part,
    pods,
    targets::Asked,
};
use cluster::{
    Change,
    objects::{Ingress, Pod, Service, ServiceExport, SourceSlice, TargetId},
};
use export::Refusal;
use instances::Traffic;
use ledger::chunks::is_served;
use model::{ClaimOwner, Exported, ServiceKey, ServicePort, Target};

/// How long an export keeps its last plan while none of its endpoints serves a port that got another name. The
/// EndpointSlice controller follows a Service within about a second.
const HOLD: Duration = Duration::from_secs(5);

impl Core {
    pub(super) fn exports_changed(&mut self, changes: &[Change<ServiceExport>], now: Now) {
        self.replan(changes.iter().map(|change| change.key.clone()), now);
        for Change { key, .. } in changes {
            // Annotations determine instances, which are not a part of the plan that other clusters see.
            let owner = ClaimOwner::export(key);
            self.touched.extend(self.knowledge.targets_of(&owner));
        }
        self.note_orphans(changes.iter().map(|change| &change.key), now);
        self.reconcile(changes.iter().map(|change| change.key.clone()));
    }

    pub(super) fn services_changed(&mut self, changes: &[Change<Service>], now: Now) {
        let mut namespaces = BTreeSet::new();
        for change in changes {
            let blocked = self.derived.update(change);
            self.reconcile(blocked);
            let Change { key, old, new } = change;
            self.count_cluster_ips(old.as_deref(), new.as_deref());
            self.out.extend(idle_shares::on_plain_service(old.as_deref(), new.as_deref()).map(Command::Emit));
            for service in old.iter().chain(new).filter_map(|service| service.service_import.as_deref()) {
                self.reconcile([ServiceKey::new(key.namespace.clone(), service)]);
            }
            // A foreign Service may have blocked an import, which its name does not reveal. Nor does it reveal to which
            // import one belonged that came and went.
            let concerns_any = old.as_ref().map_or(new.is_none(), |service| !service.managed);
            if key.name.starts_with("derived-") && concerns_any {
                namespaces.insert(key.namespace.clone());
            }
        }
        self.reconcile_within(&namespaces);
        self.annotate(changes.iter().map(|change| ClaimOwner::service(&change.key)), now);
        self.replan(changes.iter().map(|change| change.key.clone()), now);
    }

    pub(super) fn ingresses_changed(&mut self, changes: &[Change<Ingress>], now: Now) {
        self.annotate(changes.iter().map(|change| ClaimOwner::ingress(&change.key)), now);
    }

    pub(super) fn slices_changed(&mut self, changes: &[Change<SourceSlice>], now: Now) {
        let changes = changes.iter();
        let keys = changes.flat_map(|change| self.slices.update(change.old.as_ref(), change.new.as_ref())).collect();
        self.endpoints_changed(keys, now);
    }

    /// Labels of pods changed or were seen for the first time, so attributes of instances may change.
    pub(super) fn pods_changed(&mut self, changes: &[Change<Pod>], now: Now) {
        let (pods, namespaces) = pods::changed(changes, |pod| &pod.namespace);
        self.endpoints_changed(self.services_of(&pods, &namespaces), now);
    }

    /// The Services that list one of these pods, which are in these namespaces.
    pub(super) fn services_of(
        &self,
        pods: &BTreeSet<TargetId>,
        namespaces: &BTreeSet<Arc<str>>,
    ) -> BTreeSet<ServiceKey> {
        let within = namespaces.iter().flat_map(|namespace| self.slices.names_in(namespace));
        let of_them = |key: &&ServiceKey| self.slices.get(key).iter().any(|slice| pods::concerns(slice, pods));
        within.filter(of_them).cloned().collect()
    }

    pub(super) fn endpoints_changed(&mut self, keys: BTreeSet<ServiceKey>, now: Now) {
        let annotated: Vec<_> =
            keys.iter().filter(|key| self.annotated.concerns(key)).map(ClaimOwner::service).collect();
        self.annotate(annotated, now);
        self.replan(keys, now);
    }

    /// Plans names again that are or were exported.
    pub(super) fn replan(&mut self, keys: impl IntoIterator<Item = ServiceKey>, now: Now) {
        for key in keys {
            let export = self.world.exports.get(&key).filter(|export| !export.deleting);
            let slices = self.slices.get(&key);
            let notes = self.left_out.update(&key, export.as_deref(), &slices);
            self.out.extend(notes.into_iter().map(Command::Emit));
            let plan = export.as_ref().and_then(|export| self.plan_export(export, &slices));
            let plan = self.hold(&key, plan, now);
            let owner = ClaimOwner::export(&key);
            let before = self.knowledge.targets_of(&owner);
            if export.is_some() {
                if self.pods.update(&key, &slices, &self.world) {
                    self.touched.extend(before.clone());
                }
            } else if !self.annotated.concerns(&key) {
                self.pods.forget(&key);
            }
            let part = self.part(&key, export.as_deref());
            let named = export.as_deref().filter(|export| self.targets.needs_zones(export));
            let unlisted =
                named.is_some_and(|export| self.targets.asked(export, self.knowledge.rights()) == Asked::Unlisted);
            if named.is_some() {
                self.named.insert(key.clone())
            } else {
                self.named.remove(&key)
            };
            let parted = self.knowledge.set_part(&key, part) | self.knowledge.set_unlisted(&key, unlisted);
            let (mut freed, changed) = self.knowledge.replan(&key, plan, now.seconds());
            if parted && !changed {
                freed = self.knowledge.export(&key, now.seconds());
            }
            if changed || parted {
                self.publish = true;
                self.touched.extend(before);
                self.touched.extend(self.knowledge.targets_of(&owner));
                // What it hands over follows its endpoints, too. A deleted export no longer hands anything over.
                self.touched.extend(self.claims.handed_over_by(&owner).cloned());
                self.freed(freed, now);
                self.reconcile([key]);
            }
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
            && now.mono < *self.held.entry(key.clone()).or_insert(now.mono + HOLD)
        {
            return Some(Ok(Exported::clone(before)));
        }
        self.held.remove(key);
        plan
    }

    /// Plans the names again that had their time.
    pub(super) fn release(&mut self, now: Now) {
        let due = self.held.iter().filter(|(_, until)| **until <= now.mono).map(|(key, _)| key.clone());
        let due: Vec<_> = due.collect();
        self.replan(due, now);
    }

    /// Which endpoints of an export others see, if it has a share of the traffic: those that are registered as
    /// instances.
    fn part(&self, key: &ServiceKey, export: Option<&ServiceExport>) -> Option<Part> {
        let export = export.filter(|export| self.traffic(export).is_part())?;
        let target = match self.targets.asked(export, self.knowledge.rights()) {
            Asked::Target(target) => Some(target),
            // Without instances there is nothing to have a share of.
            Asked::None => Some(self.targets.for_aws_mcs(key)?),
            Asked::Invalid(_) | Asked::Unknown | Asked::Unlisted => None,
        };
        let own = ClaimOwner::export(key);
        let held = |target: &Target| {
            let registrations = self.knowledge.exports()?.registrations();
            registrations.get(target).filter(|held| held.owner.is_same_service(&own))
        };
        let share =
            target.filter(|target| held(target).is_some()).and_then(|target| self.statuses.get(&target)?.share.clone());
        if let Some(share) = share {
            return Some(Part::Chosen(share.addresses));
        }
        Some(match self.knowledge.part(key) {
            Some(known @ Part::AsMany(..)) if self.knowledge.exports().is_some() => known.clone(),
            _ => match self.knowledge.shown(key) {
                Some(shown) => Part::as_many(&shown),
                None => Part::as_listed(self.imported_from_here(key)),
            },
        })
    }

    /// The share of the traffic that is in force for an export.
    pub(super) fn traffic(&self, export: &ServiceExport) -> Traffic {
        cutovers::in_force(&self.world.cutovers, &export.key, Traffic::read(&export.annotations).0)
    }

    /// The addresses of own ready endpoints that the import of a name in this cluster has.
    fn imported_from_here(&self, key: &ServiceKey) -> BTreeSet<IpAddr> {
        let local = self.knowledge.local().as_str();
        let slices = self.imported.get(key);
        let own = slices.iter().filter(|slice| slice.source_cluster.as_deref() == Some(local));
        let ready = own.flat_map(|slice| &slice.endpoints).filter(|there| there.conditions.ready);
        ready.filter_map(|there| there.address).collect()
    }

    /// What a ServiceExport exports now. `None` if its namespace, whose labels and annotations matter, is not known
    /// yet.
    fn plan_export(&self, export: &ServiceExport, slices: &[Arc<SourceSlice>]) -> Option<Result<Exported, Refusal>> {
        let service = self.world.services.get(&export.key);
        let target = match self.targets.asked(export, self.knowledge.rights()) {
            Asked::Target(target) => Some(target),
            Asked::Unknown => return None,
            Asked::None | Asked::Invalid(_) | Asked::Unlisted => None,
        };
        let plan = export::plan(export, service.as_deref(), slices, target);
        let plan =
            if self.targets.aws_mcs { plan.and_then(|local| export::hand_over(export).map(|()| local)) } else { plan };
        let Some(allowed) = &self.export_namespaces else { return Some(plan) };
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
