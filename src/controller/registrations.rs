//! Changes of targets: who wants them, which instances they should have, and the results.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    claims::{Circumstances, HandOver, Standing, Successor},
    core::{Command, Core, Now},
    cutovers,
    world::World,
};
use annotations::Known;
use instances::{
    InstanceSpec, Traffic,
    policy::Verdict,
    sync::{Contender, Statuses, TargetDesired, TargetStatus},
};
use model::{ClaimOwner, ClaimState, Registration, ServiceKey, Target};

impl Core {
    /// Plans annotated objects again.
    pub(super) fn annotate(&mut self, owners: impl IntoIterator<Item = ClaimOwner>, now: Now) {
        for owner in owners {
            let (key, world, rights) = (owner.key(), &self.world, self.knowledge.rights());
            let mut pods_changed = false;
            let planned = if owner.is_ingress() {
                world.ingresses.get(&key).and_then(|ingress| self.annotated.plan_ingress(&ingress, rights))
            } else {
                let slices = self.slices.get(&key);
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
                self.touched.extend(self.knowledge.targets_of(&ClaimOwner::export(&key)));
            }
            // A deleted object no longer hands anything over.
            self.touched.extend(self.claims.handed_over_by(&owner).cloned());
            let Some(change) = self.annotated.replan(&owner, planned) else { continue };
            self.touched.extend(change.touched);
            let (freed, changed) = self.knowledge.annotate(&owner, change.wanted, now.seconds());
            self.keep(&owner);
            self.annotated.tell_held_up(&self.knowledge, &owner);
            if !owner.is_ingress() {
                self.tell_unserved(&key, now);
            }
            self.publish |= changed;
            self.freed(freed, now);
            let told_again = if change.anew { self.knowledge.targets_of(&owner) } else { Vec::new() };
            for target in told_again {
                if let Some(status) = self.statuses.get(&target).cloned() {
                    self.tell_status(&target, None, &status);
                }
            }
        }
    }

    /// Says on an annotated Service which of its ports no endpoint serves, once that has lasted: its addresses are
    /// registered all the same.
    pub(super) fn tell_unserved(&mut self, key: &ServiceKey, now: Now) {
        let owner = ClaimOwner::service(key);
        let service = self.world.services.get(key).filter(|_| self.annotated.registers(&owner));
        let text = service.and_then(|service| export::unserved_in(&service, &self.slices.get(key)));
        if text.is_none() {
            self.unserved_annotated.over(key);
        } else if let Some(rest) = self.unserved_annotated.wait(key, now.mono) {
            return self.out.push(Command::ReconcileIn(key.clone(), rest));
        }
        self.annotated.tell_unserved(&owner, text);
    }

    pub(super) fn zones_changed(&mut self, known: Known, now: Now) {
        self.targets.zones.clone_from(&known.zones);
        self.annotated.set_zones(known);
        let annotated = self.annotated.owners();
        self.annotate(annotated, now);
        self.replan(self.named.clone(), now);
    }

    /// Forgets what an annotated object does not get, and says so on the object.
    fn keep(&mut self, owner: &ClaimOwner) {
        if let Some(gets) = self.knowledge.asks(owner) {
            self.annotated.keep(owner, gets, self.knowledge.most_endpoints(&owner.namespace));
        }
        self.annotated.tell_exceeded(&self.knowledge, owner);
    }

    /// Plans what has to be cut because of a limit, or has room now.
    pub(super) fn settle_quotas(&mut self, now: Now) {
        for owner in self.knowledge.settle_quotas() {
            if owner.is_annotated() {
                self.annotate([owner.clone()], now);
                self.touched.extend(self.knowledge.targets_of(&owner));
            } else {
                self.freed([owner].into(), now);
            }
        }
    }

    /// Lets owners claim a target for which they waited and that is free now. Also looks at owners whose record another one has now.
    pub(super) fn freed(&mut self, owners: BTreeSet<ClaimOwner>, now: Now) {
        for owner in owners {
            self.knowledge.claim_again(&owner, now.seconds());
            self.publish = true;
            self.touched.extend(self.knowledge.targets_of(&owner));
            if !owner.is_annotated() {
                self.reconcile([owner.key()]);
            }
        }
    }

    pub(super) fn statuses_changed(&mut self, statuses: &Statuses, now: Now) {
        self.touch_cutovers();
        let before = std::mem::replace(&mut self.statuses, statuses.clone());
        let mut chosen = BTreeSet::new();
        for (target, before, status) in before.difference(statuses) {
            let addresses = |status: Option<&TargetStatus>| Some(Arc::clone(&status?.share.as_ref()?.addresses));
            if addresses(before) != addresses(status) {
                chosen.extend(self.knowledge.wanted_by(target).cloned());
            }
            let Some(status) = status else { continue };
            let there = |status: &TargetStatus| status.claims.as_ref().and_then(|claims| claims.succeeded.clone());
            if before.is_none_or(|before| there(before) != there(status) || before.found != status.found) {
                self.touched.extend(self.claims.successor(target).map(|_| target.clone()));
            }
            self.tell_status(target, before, status);
            for (owner, verdict) in status.claims.iter().flat_map(|claims| &claims.verdicts) {
                let state = if verdict.is_ok() { ClaimState::Serves } else { ClaimState::Unable };
                self.claims.decide(target, owner, verdict.as_ref().err());
                self.set_state(target, owner, state, now);
            }
            if status.done {
                self.forget(target, now);
            }
        }
        // Others see the pods that are registered.
        self.replan(chosen, now);
    }

    /// Reports on whoever holds a target what became of it.
    fn tell_status(&mut self, target: &Target, before: Option<&TargetStatus>, status: &TargetStatus) {
        let held = self.knowledge.exports().and_then(|exports| exports.registrations().get(target));
        let Some(owner) = held.map(|held| held.owner.clone()) else { return };
        if owner.is_annotated() {
            let world = &self.world;
            let presence = |owner: &ClaimOwner| present(world, owner);
            self.annotated.tell_status(&owner, target, before, status, presence);
        }
        self.reconcile(export_of(&self.world, &owner));
    }

    /// Sets what the claim of an owner to a target says of it.
    fn set_state(&mut self, target: &Target, owner: &ClaimOwner, state: ClaimState, now: Now) {
        let (freed, changed) = self.knowledge.set_state(target, owner, state, now.seconds());
        if changed {
            self.publish = true;
            self.touched.insert(target.clone());
            self.reconcile(export_of(&self.world, owner));
        }
        self.freed(freed, now);
    }

    /// Gives a target up. Its instances are gone, or stay there on purpose.
    fn forget(&mut self, target: &Target, now: Now) {
        let freed = self.knowledge.retired(target);
        self.publish = true;
        self.freed(freed, now);
        self.touched.insert(target.clone());
    }

    pub(super) fn touch_all(&mut self) {
        let held = self.knowledge.exports().into_iter().flat_map(|exports| exports.registrations().keys());
        self.touched.extend(held.chain(self.desired.keys()).cloned());
    }

    /// Passes on the desired instances of the touched targets.
    pub(super) fn update_instances(&mut self, now: Now) {
        let forgets = |target: &&Target| self.annotated.forgets(&self.knowledge, target);
        let forgotten: Vec<_> = self.touched.iter().filter(forgets).cloned().collect();
        for target in &forgotten {
            self.forget(target, now);
        }
        let mut changed = false;
        for target in std::mem::take(&mut self.touched) {
            changed |= self.update_target(target, now);
        }
        if changed {
            self.out.push(Command::Register(self.desired.clone()));
        }
    }

    /// Returns whether the desired instances of a target changed.
    fn update_target(&mut self, target: Target, now: Now) -> bool {
        let Self { knowledge, claims, annotated, targets, world, pods, gates, hide_tasks, out, statuses, .. } = self;
        let before = claims.standing(&target);
        let status = statuses.get(&target);
        let circumstances = |own: &Registration, holder: &ClaimOwner, successor: Option<&Successor>| {
            let exists = if holder.is_annotated() {
                present(world, holder).is_some()
            } else {
                knowledge.planned(&holder.key()).is_some_and(Result::is_ok)
            };
            let implied = targets.is_implied(own);
            let refused = matches!(knowledge.rights().register(&own.owner.namespace, &target), Verdict::Refused(_));
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
        let standing = claims.judge(knowledge, &target, circumstances, now.mono);
        let held = knowledge.exports().and_then(|exports| exports.registrations().get(&target));
        match held {
            Some(held) if standing != before => {
                out.extend(export_of(world, &held.owner).map(Command::Reconcile));
            }
            Some(_) => {}
            None => annotated.forget(&target),
        }
        annotated.tell_waiting(knowledge, &target, claims.awaits_clusters_long(&target, now.mono));
        let in_force = |key: &ServiceKey, asked| cutovers::in_force(&world.cutovers, key, asked);
        let desired = claims.acts_for(&target).zip(standing).and_then(|(owner, standing)| {
            if owner.is_annotated() {
                annotated.desired(knowledge, &target, (owner, standing), in_force)
            } else {
                let export = |key: &ServiceKey| {
                    let export = world.exports.get(key)?;
                    let traffic = in_force(key, Traffic::read(&export.annotations).0);
                    Some((export, traffic))
                };
                Some(targets.desired(knowledge, &target, (owner, standing), export, pods))
            }
        });
        let owner = claims.acts_for(&target);
        let released = held.is_some_and(Registration::is_retiring);
        let unable = held.is_some_and(Registration::is_unable);
        let waiting = knowledge.exports().into_iter().flat_map(|exports| exports.unable(&target));
        let lost = held.filter(|held| held.is_unable() && standing == Some(Standing::Withdraws));
        let contenders = waiting.chain(lost.map(|held| &held.owner)).filter_map(|owner| {
            let (consent, creates_namespace) = if owner.is_annotated() {
                annotated.consent(owner, &target)?
            } else {
                targets.consented(&*world.exports.get(&owner.key())?, &target, knowledge.rights())
            };
            Some(Contender { owner: owner.clone(), consent, creates_namespace })
        });
        let contenders: Arc<[Contender]> = contenders.collect();
        let desired = desired.map(|desired| {
            let awaited = gates.awaited(&desired.instances);
            let hides = owner.is_some_and(|owner| cutovers::hides(&world.cutovers, &owner.key()));
            let may_hide = owner.is_some_and(|owner| {
                cutovers::may_hide_in(knowledge.rights(), &owner.namespace, &target, &desired.consent)
            });
            TargetDesired {
                owner: owner.cloned(),
                released: desired.retiring && released,
                unable: unable && desired.active,
                contenders,
                successor: claims.successor(&target).filter(|_| !desired.retiring).map(Successor::place),
                awaited,
                hide_tasks: *hide_tasks && hides && may_hide && !desired.retiring,
                ..desired
            }
        });
        // What others hear of a claim that may be the first one.
        let serves =
            desired.as_ref().filter(|desired| !desired.keep && !desired.retiring && !unable).and_then(|desired| {
                let held = held.filter(|_| matches!(standing, Some(standing) if standing.is_first()))?;
                let serves = desired.instances.iter().any(InstanceSpec::is_ready);
                let state = if serves { ClaimState::Serves } else { ClaimState::Empty };
                (state != held.state).then(|| (held.owner.clone(), state))
            });
        if let Some((owner, state)) = serves {
            let (freed, changed) = knowledge.set_state(&target, &owner, state, now.seconds());
            debug_assert!(freed.is_empty(), "only who becomes unable gives a target away");
            self.publish |= changed;
        }
        match desired {
            Some(desired) if self.desired.get(&target).is_some_and(|before| **before == desired) => false,
            Some(mut desired) => {
                if let Some(before) = self.desired.get(&target) {
                    InstanceSpec::share_ids(&mut desired.instances, &before.instances);
                }
                self.desired.insert(target, Arc::new(desired));
                true
            }
            None => self.desired.remove(&target).is_some(),
        }
    }
}

/// The export whose condition `Registered` may be about a target of this owner. An annotated Service may be exported,
/// too. If both name one target, whichever of them holds it does so for both.
fn export_of(world: &World, owner: &ClaimOwner) -> Option<ServiceKey> {
    let key = owner.key();
    let exported = !owner.is_annotated() || !owner.is_ingress() && world.exports.get(&key).is_some();
    exported.then_some(key)
}

/// The uid of an annotated object, if it exists.
fn present(world: &World, owner: &ClaimOwner) -> Option<Box<str>> {
    let key = owner.key();
    if owner.is_ingress() {
        return world.ingresses.get(&key).filter(|ingress| !ingress.deleting).map(|ingress| ingress.uid.clone());
    }
    world.services.get(&key).filter(|service| !service.deleting).map(|service| service.uid.clone())
}
