//! Changes of targets: who wants them, which instances they should have, and the results.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    claims::{Circumstances, HandOver, Standing, Successor},
    core::{Command, Core, Now},
    cutovers,
    dirty::Fact,
    exports::Exporting,
    world::World,
};
use annotations::Known;
use instances::{
    InstanceSpec, Traffic,
    policy::Verdict,
    sync::{Contender, Desired, Statuses, TargetDesired, TargetStatus},
};
use model::{ClaimOwner, ClaimState, Registration, ServiceKey, Target};

/// The instances that this cluster wants in Cloud Map, and what became of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Instances {
    pub(super) desired: Desired,
    pub(super) statuses: Statuses,
}

impl Core {
    /// Plans an annotated object again.
    pub(super) fn plan_annotated(&mut self, owner: &ClaimOwner, now: Now) {
        let (key, world, rights) = (owner.key(), &self.world, self.knowledge.rights());
        let mut pods_changed = false;
        let planned = if owner.is_ingress() {
            world.ingresses.get(&key).and_then(|ingress| self.annotated.plan_ingress(&ingress, rights))
        } else {
            let slices = self.world.slices.get(&key);
            let pods = &mut self.pods;
            let endpoints = || {
                pods_changed = pods.update(&key, &slices, world);
                (pods.admit(&key, &export::join(&slices)).into_owned(), pods.labels(&key))
            };
            let service = world.services.get(&key);
            service.and_then(|service| self.annotated.plan_service(&service, endpoints, rights))
        };
        if pods_changed {
            // An export of the same Service registers the same pods, and will find nothing new about them.
            self.changed(Fact::Pods(&key));
        }
        let change = self.annotated.replan(owner, planned);
        // A deleted object no longer hands anything over.
        let none = BTreeSet::new();
        self.changed(Fact::Planned(owner, change.as_ref().map_or(&none, |change| &change.touched)));
        let Some(change) = change else { return };
        let (freed, changed) = self.knowledge.annotate(owner, change.wanted, now.seconds());
        self.keep(owner);
        self.annotated.report_held_up(&self.knowledge, owner);
        if !owner.is_ingress() {
            self.report_unserved(&key, now);
        }
        if changed {
            self.changed(Fact::Wants(owner));
        }
        self.changed_each(&freed, Fact::Freed);
        let told_again = if change.anew { self.knowledge.targets_of(owner) } else { Vec::new() };
        for target in told_again {
            if let Some(status) = self.instances.statuses.get(&target).cloned() {
                self.report_status(&target, None, &status);
            }
        }
    }

    /// Says on an annotated Service which of its ports no endpoint serves, once that has lasted: its addresses are
    /// registered all the same.
    pub(super) fn report_unserved(&mut self, key: &ServiceKey, now: Now) {
        let owner = ClaimOwner::service(key);
        let service = self.world.services.get(key).filter(|_| self.annotated.registers(&owner));
        let text = service.and_then(|service| export::unserved_in(&service, &self.world.slices.get(key)));
        if text.is_none() {
            self.reports.unserved_annotated.over(key);
        } else if let Some(rest) = self.reports.unserved_annotated.wait(key, now.mono) {
            return self.out.push(Command::ReconcileIn(key.clone(), rest));
        }
        self.annotated.report_unserved(&owner, text);
    }

    pub(super) fn zones_changed(&mut self, known: Known) {
        self.exporting.targets.zones.clone_from(&known.zones);
        self.annotated.set_zones(known);
        self.changed(Fact::Zones);
    }

    /// Forgets what an annotated object does not get, and says so on the object.
    fn keep(&mut self, owner: &ClaimOwner) {
        if let Some(gets) = self.knowledge.asks(owner) {
            self.annotated.keep(owner, gets, self.knowledge.most_endpoints(&owner.namespace));
        }
        self.annotated.report_exceeded(&self.knowledge, owner);
    }

    pub(super) fn statuses_changed(&mut self, statuses: &Statuses, now: Now) {
        let before = std::mem::replace(&mut self.instances.statuses, statuses.clone());
        for (target, before, status) in before.difference(statuses) {
            let addresses = |status: Option<&TargetStatus>| Some(Arc::clone(&status?.share.as_ref()?.addresses));
            if addresses(before) != addresses(status) {
                // Others see the pods that are registered.
                self.changed(Fact::Chosen(target));
            }
            self.changed(Fact::Status(target));
            let Some(status) = status else { continue };
            let there = |status: &TargetStatus| status.claims.as_ref().and_then(|claims| claims.succeeded.clone());
            if before.is_none_or(|before| there(before) != there(status) || before.found != status.found) {
                self.changed(Fact::Succeeded(target));
            }
            self.report_status(target, before, status);
            for (owner, verdict) in status.claims.iter().flat_map(|claims| &claims.verdicts) {
                let state = if verdict.is_ok() { ClaimState::Serves } else { ClaimState::Unable };
                self.claims.decide(target, owner, verdict.as_ref().err());
                self.set_state(target, owner, state, now);
            }
            if status.done {
                self.forget(target);
            }
        }
    }

    /// Reports on whoever holds a target what became of it.
    fn report_status(&mut self, target: &Target, before: Option<&TargetStatus>, status: &TargetStatus) {
        let held = self.knowledge.exports().and_then(|exports| exports.registrations().get(target));
        let Some(owner) = held.map(|held| held.owner.clone()) else { return };
        if owner.is_annotated() {
            let world = &self.world;
            let presence = |owner: &ClaimOwner| present(world, owner);
            self.annotated.report_status(&owner, target, before, status, presence);
        }
    }

    /// Sets what the claim of an owner to a target says of it.
    fn set_state(&mut self, target: &Target, owner: &ClaimOwner, state: ClaimState, now: Now) {
        let (freed, changed) = self.knowledge.set_state(target, owner, state, now.seconds());
        if changed {
            self.changed(Fact::ClaimState(target));
        }
        self.changed_each(&freed, Fact::Freed);
    }

    /// Gives a target up. Its instances are gone, or stay there on purpose.
    pub(super) fn forget(&mut self, target: &Target) {
        let freed = self.knowledge.retired(target);
        self.changed(Fact::Retired(target));
        self.changed_each(&freed, Fact::Freed);
    }

    /// Judges a target and plans its instances. Returns whether the desired ones changed.
    pub(super) fn update_target(&mut self, target: Target, now: Now) -> bool {
        let before = (self.claims.standing(&target), self.claims.successor(&target).cloned());
        let standing = self.judge(&target, now);
        if (standing, self.claims.successor(&target)) != (before.0, before.1.as_ref()) {
            self.changed(Fact::Standing(&target));
        }
        let held = self.knowledge.exports().and_then(|exports| exports.registrations().get(&target)).cloned();
        if held.is_none() {
            self.annotated.forget(&target);
        }
        let unread = self.claims.awaits_clusters_long(&target, now.mono);
        self.annotated.report_waiting(&self.knowledge, &target, unread);
        let desired = self.desired_in(&target, held.as_ref(), standing);
        // What others hear of a claim that may be the first one.
        if let (Some(desired), Some(held)) = (&desired, held)
            && !desired.keep
            && !desired.retiring
            && !held.is_unable()
            && standing.is_some_and(Standing::is_first)
        {
            let serves = desired.instances.iter().any(InstanceSpec::is_ready);
            let state = if serves { ClaimState::Serves } else { ClaimState::Empty };
            let (freed, changed) = self.knowledge.set_state(&target, &held.owner, state, now.seconds());
            debug_assert!(freed.is_empty(), "only who becomes unable gives a target away");
            if changed {
                self.changed(Fact::Wants(&held.owner));
            }
        }
        match desired {
            Some(desired) if self.instances.desired.get(&target).is_some_and(|before| **before == desired) => false,
            Some(mut desired) => {
                if let Some(before) = self.instances.desired.get(&target) {
                    InstanceSpec::share_ids(&mut desired.instances, &before.instances);
                }
                self.instances.desired.insert(target, Arc::new(desired));
                true
            }
            None => self.instances.desired.remove(&target).is_some(),
        }
    }

    /// What this cluster may do in a target now.
    fn judge(&mut self, target: &Target, now: Now) -> Option<Standing> {
        let Self { knowledge, claims, exporting: Exporting { targets, .. }, world, instances, .. } = self;
        let before = claims.standing(target);
        let status = instances.statuses.get(target);
        let circumstances = |own: &Registration, holder: &ClaimOwner, successor: Option<&Successor>| {
            let exists = if holder.is_annotated() {
                present(world, holder).is_some()
            } else {
                knowledge.planned(&holder.key()).is_some_and(Result::is_ok)
            };
            let implied = targets.is_implied(own);
            let refused = matches!(knowledge.rights().register(&own.owner.namespace, target), Verdict::Refused(_));
            let nothing_found = || {
                let found = status.and_then(|status| status.found.as_ref());
                before == Some(Standing::Keeps) && found.is_some_and(|found| found.is_empty())
            };
            let there = status.and_then(|status| status.claims.as_ref()?.succeeded.as_ref());
            let succeeded = successor.is_some_and(|successor| there == Some(&successor.place()));
            let hand_over = if !exists {
                HandOver::Nothing
            } else if refused && !implied {
                HandOver::Timed
            } else if succeeded || nothing_found() {
                HandOver::Succeeded
            } else {
                HandOver::Awaited
            };
            Circumstances { implied, hand_over }
        };
        claims.judge(knowledge, target, circumstances, now.mono)
    }

    /// What is desired in a target of which this cluster holds the record `held`.
    fn desired_in(
        &self,
        target: &Target,
        held: Option<&Registration>,
        standing: Option<Standing>,
    ) -> Option<TargetDesired> {
        let Self { knowledge, claims, annotated, exporting, world, .. } = self;
        let in_force = |key: &ServiceKey, asked| cutovers::in_force(&world.cutovers, key, asked);
        let (owner, standing) = claims.acts_for(target).zip(standing)?;
        let of_cluster = self.cluster_drain();
        let desired = if owner.is_annotated() {
            let in_force = |key: &ServiceKey, asked| Self::drained_traffic(of_cluster, in_force(key, asked));
            annotated.desired(knowledge, target, (owner, standing), in_force)?
        } else {
            let export = |key: &ServiceKey| {
                let export = world.exports.get(key)?;
                let traffic = in_force(key, Traffic::read(&export.annotations).0);
                Some((export, Self::drained_traffic(self.instance_drain(key), traffic)))
            };
            exporting.targets.desired(knowledge, target, (owner, standing), export, &self.pods)
        };
        let hides = self.settings.hide_tasks && cutovers::hides(&world.cutovers, &owner.key());
        let may_hide = cutovers::may_hide_in(knowledge.rights(), &owner.namespace, target, &desired.consent);
        Some(TargetDesired {
            owner: Some(owner.clone()),
            released: desired.retiring && held.is_some_and(Registration::is_retiring),
            unable: desired.active && held.is_some_and(Registration::is_unable),
            contenders: self.contenders(target, held, standing),
            successor: claims.successor(target).filter(|_| !desired.retiring).map(Successor::place),
            awaited: self.gates.awaited(&desired.instances),
            hide_tasks: hides && may_hide && !desired.retiring,
            ..desired
        })
    }

    /// The owners here that may not register in a target, as their claims say.
    fn contenders(&self, target: &Target, held: Option<&Registration>, standing: Standing) -> Arc<[Contender]> {
        let Self { knowledge, annotated, exporting, world, .. } = self;
        let waiting = knowledge.exports().into_iter().flat_map(|exports| exports.unable(target));
        let lost = held.filter(|held| held.is_unable() && standing == Standing::Withdraws);
        let contenders = waiting.chain(lost.map(|held| &held.owner)).filter_map(|owner| {
            let (consent, creates_namespace) = if owner.is_annotated() {
                annotated.consent(owner, target)?
            } else {
                exporting.targets.consented(&*world.exports.get(&owner.key())?, target, knowledge.rights())
            };
            Some(Contender { owner: owner.clone(), consent, creates_namespace })
        });
        contenders.collect()
    }
}

/// The uid of an annotated object, if it exists.
fn present(world: &World, owner: &ClaimOwner) -> Option<Box<str>> {
    let key = owner.key();
    if owner.is_ingress() {
        return world.ingresses.get(&key).filter(|ingress| !ingress.deleting).map(|ingress| ingress.uid.clone());
    }
    world.services.get(&key).filter(|service| !service.deleting).map(|service| service.uid.clone())
}
