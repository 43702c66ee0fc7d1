//! What changes about targets: who wants them, what they should hold, and what came of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    shared::{Shared, State},
    watch::{Watch, seconds},
};
use crate::{
    export,
    instances::sync::{Desired, TargetStatus},
    model::{ClaimOwner, Target},
};

impl Watch {
    /// Plans annotated objects again; publishes if that changed anything.
    pub(super) fn annotate(&mut self, owners: impl IntoIterator<Item = ClaimOwner>) {
        let mut publish = false;
        for owner in owners {
            let (key, caches) = (owner.key(), &self.shared.caches);
            let planned = if owner.is_ingress() {
                let state = self.shared.state();
                let rights = state.knowledge.rights();
                caches.ingresses.get(&key).and_then(|ingress| self.annotated.plan_ingress(&ingress, rights))
            } else {
                let slices = self.slices.get(&key);
                let mut state = self.shared.state();
                state.pods.update(&key, &slices, &self.shared.caches.pods);
                let (pods, rights) = (state.pods.of(&key), state.knowledge.rights());
                let endpoints = || export::join(&slices);
                let service = caches.services.get(&key);
                service.and_then(|service| self.annotated.plan_service(&service, endpoints, &pods, rights))
            };
            let Some(change) = self.annotated.replan(&owner, planned) else {
                // One that is gone now hands nothing over any more.
                self.touched.extend(self.shared.state().claims.handed_over_by(&owner).cloned());
                continue;
            };
            self.touched.extend(change.touched);
            let mut state = self.shared.state();
            let (freed, changed) = state.knowledge.annotate(&owner, change.wanted, seconds());
            self.annotated.tell_held_up(&state.knowledge, &owner);
            drop(state);
            publish |= changed;
            self.freed(freed);
        }
        if publish {
            self.publish();
        }
    }

    /// The uid of an annotated object, if it is there.
    fn present(shared: &Shared, owner: &ClaimOwner) -> Option<Box<str>> {
        let (key, caches) = (owner.key(), &shared.caches);
        if owner.is_ingress() {
            return caches.ingresses.get(&key).filter(|ingress| !ingress.deleting).map(|ingress| ingress.uid.clone());
        }
        caches.services.get(&key).filter(|service| !service.deleting).map(|service| service.uid.clone())
    }

    /// Lets those who waited for a target that is free now claim it.
    pub(super) fn freed(&mut self, owners: BTreeSet<ClaimOwner>) {
        for owner in owners {
            let mut state = self.shared.state();
            state.knowledge.claim_again(&owner, seconds());
            self.touched.extend(state.knowledge.targets_of(&owner));
            drop(state);
            if !owner.is_annotated() {
                self.shared.queue.add(owner.key());
            }
        }
    }

    pub(super) fn publish(&self) {
        let Some(ledger) = &self.ledger else { return };
        let desired = self.shared.state().knowledge.desired();
        if desired.is_some() {
            ledger.desired().send_replace(desired);
        }
    }

    pub(super) fn statuses_changed(&mut self, now: &Arc<BTreeMap<Target, TargetStatus>>) {
        let before = std::mem::replace(&mut self.shared.state().statuses, Arc::clone(now));
        let mut publish = false;
        for (target, status) in now.iter().filter(|(target, status)| before.get(*target) != Some(status)) {
            let state = self.shared.state();
            let held = state.knowledge.exports().and_then(|exports| exports.registrations().get(target));
            let owner = held.map(|held| held.owner.clone());
            drop(state);
            match owner {
                Some(owner) if owner.is_annotated() => {
                    let presence = |owner: &ClaimOwner| Self::present(&self.shared, owner);
                    self.annotated.tell_status(&owner, target, before.get(target), status, presence);
                }
                Some(owner) => self.shared.queue.add(owner.key()),
                None => {}
            }
            if status.own_gone {
                publish = true;
                self.forget(target);
            }
        }
        if publish {
            self.publish();
        }
    }

    /// A target that is given up holds nothing of this cluster any more, or what it holds stays.
    fn forget(&mut self, target: &Target) {
        let freed = self.shared.state().knowledge.retired(target);
        self.freed(freed);
        self.touched.insert(target.clone());
    }

    pub(super) fn touch_all(&mut self) {
        let state = self.shared.state();
        self.touched
            .extend(state.knowledge.exports().into_iter().flat_map(|exports| exports.registrations().keys().cloned()));
        self.touched.extend(self.desired.keys().cloned());
    }

    /// Hands the instances that the touched targets should have to whoever registers them.
    pub(super) fn update_instances(&mut self) {
        let forgotten = {
            let state = self.shared.state();
            let forgets = |target: &&Target| self.annotated.forgets(&state.knowledge, target);
            self.touched.iter().filter(forgets).cloned().collect::<Vec<_>>()
        };
        for target in &forgotten {
            self.forget(target);
        }
        if !forgotten.is_empty() {
            self.publish();
        }
        let touched = std::mem::take(&mut self.touched);
        let mut changed = false;
        let mut owners = BTreeSet::new();
        {
            let mut state = self.shared.state();
            let State { knowledge, claims, pods, .. } = &mut *state;
            let targets = &self.shared.targets;
            for target in touched {
                let exports = &self.shared.caches.exports;
                let before = claims.standing(&target);
                let now = Instant::now();
                let standing = claims.judge(knowledge, &target, |own| targets.is_implied(own), now);
                let held = knowledge.exports().and_then(|exports| exports.registrations().get(&target));
                let annotated = held.is_some_and(|held| held.owner.is_annotated());
                if let Some(held) = held.filter(|_| standing != before && !annotated) {
                    owners.insert(held.owner.key());
                }
                self.annotated.tell_waiting(knowledge, &target, claims.awaits_clusters_long(&target, now));
                let desired = standing.and_then(|standing| {
                    if annotated {
                        let presence = |owner: &ClaimOwner| Self::present(&self.shared, owner).is_some();
                        self.annotated.desired(knowledge, &target, standing, presence)
                    } else {
                        targets.desired(knowledge, &target, standing, |key| exports.get(key), pods)
                    }
                });
                match desired {
                    Some(desired) => {
                        if self.desired.get(&target) != Some(&desired) {
                            self.desired.insert(target, desired);
                            changed = true;
                        }
                    }
                    None => changed |= self.desired.remove(&target).is_some(),
                }
            }
        }
        self.enqueue(owners);
        if changed {
            self.instances.send_replace(Arc::new(Desired { targets: self.desired.clone() }));
        }
    }
}
