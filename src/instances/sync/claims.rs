//! What the engine says of the claims to a target: who may register there, and whether the successor of a hand-over does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    ClaimsStatus, Contender, Reason, TargetDesired, Verdict,
    engine::Engine,
    failure::Attempts,
    known::Known,
    places::{REFUSED_AGAIN, has_namesake},
    readings::Seen,
    state::{Phase, State, Want},
};
use crate::{
    Consent, Owner,
    ownership::{ServiceOwner, is_of_cluster, refusal, service_owner},
};
use cloudmap::{Error, Instance, Service};
use model::Target;

impl Engine {
    /// Another claim has the target, or the same one says something else.
    pub(super) fn claim_changed(
        &mut self,
        target: &Target,
        old: Option<&TargetDesired>,
        wanted: &TargetDesired,
        now: Instant,
    ) {
        let Some(state) = self.targets.get_mut(target) else { return };
        if wanted.successor.is_some() && old.is_none_or(|old| old.successor != wanted.successor) {
            state.succeeded = None;
            if let Some(there) = state.known_mut() {
                there.readings.hurry(now);
                there.readings.waited = 0;
            }
        }
        if let Phase::Gone { look_at, .. } = &mut state.phase
            && old.is_none_or(|old| old.contenders != wanted.contenders)
        {
            *look_at = None;
        }
        let Some(old) = old.filter(|old| old.unable != wanted.unable) else { return };
        if wanted.unable {
            // What this leader registered for the owner follows the pods.
            state.found_own = !state.is_unread() && state.has_own() && old.owner == wanted.owner;
        } else {
            state.attempts = Attempts::default();
            if !state.busy && !matches!(state.phase, Phase::Gone { .. }) {
                state.find_again();
            }
        }
    }

    /// Nothing is there that could be handed over.
    pub(super) fn found_nothing(&mut self, target: &Target) {
        if let Some(state) = self.targets.get_mut(target) {
            state.found.get_or_insert_default();
        }
    }

    /// Looks, now and then, whether a contender may register in a target in which nothing is to be done.
    pub(super) fn want_look(
        &mut self,
        target: &Target,
        desired: &TargetDesired,
        look_at: Option<Instant>,
        now: Instant,
    ) -> Option<Want> {
        if desired.contenders.is_empty() || look_at.is_some_and(|at| at > now) {
            return None;
        }
        if self.directory.namespaces.fresh(REFUSED_AGAIN, now).is_none() {
            return self.want_namespaces(target, now);
        }
        let Some(namespace) = self.directory.namespace(&target.namespace) else {
            self.look_later(target, now);
            return None;
        };
        let (namespace_id, kind) = (namespace.id.clone(), namespace.kind);
        let Some(services) = self.directory.services(&namespace_id).fresh(REFUSED_AGAIN, now) else {
            return self.want_services(namespace_id, target, now);
        };
        match services.get(&target.service, kind) {
            Some(listed) if listed.owner != ServiceOwner::Ours => Some(Want::Inspect { service_id: listed.id.clone() }),
            _ => {
                self.look_later(target, now);
                None
            }
        }
    }

    fn look_later(&mut self, target: &Target, now: Instant) {
        let at = now + REFUSED_AGAIN;
        if let Some(Phase::Gone { look_at, .. }) = self.targets.get_mut(target).map(|state| &mut state.phase) {
            *look_at = Some(at);
        }
        self.wake_at(target, at);
    }

    /// The answer of a look at a service in which nothing is to be done.
    pub(super) fn looked(
        &mut self,
        target: &Target,
        result: Result<(Service, BTreeMap<String, String>), Error>,
        now: Instant,
    ) {
        let seen = result.ok().map(|(service, tags)| service_owner(&service, &tags, &self.settings.identity));
        if let Some(Phase::Gone { owner, .. }) = self.targets.get_mut(target).map(|state| &mut state.phase) {
            *owner = seen.or(owner.take());
        }
        self.look_later(target, now);
        self.wake_target(target, now);
    }

    /// Reads a target in which nothing is to be done, because its successor is awaited. Where this cluster has nothing, there
    /// is nothing to wait for.
    pub(super) fn want_succession(&mut self, target: &Target, now: Instant) -> Option<Want> {
        let state = self.targets.get(target)?;
        if !state.is_unread() && state.has_nothing() {
            self.hand_over_nothing(target);
            return None;
        }
        if state.is_unresolved() {
            let Some(namespaces) = self.directory.listed() else { return self.want_namespaces(target, now) };
            let namespace = namespaces.get(&target.namespace).map(|namespace| (namespace.id.clone(), namespace.kind));
            let Some((namespace_id, kind)) = namespace else {
                self.hand_over_nothing(target);
                return None;
            };
            let Some(services) = self.directory.services_of(target) else {
                return self.want_services(namespace_id, target, now);
            };
            match services.get(&target.service, kind).map(|listed| (listed.id.clone(), listed.unproven(now))) {
                Some((service_id, place)) => self.resolved(target, service_id, place),
                None => self.hand_over_nothing(target),
            }
        }
        let Known { service_id, readings, .. } = self.targets.get(target)?.known()?;
        let due = readings.seen() == Seen::Never || readings.is_due(now);
        (due && readings.may_begin(now)).then(|| Want::Read { service_id: service_id.clone() })
    }

    /// Nothing of this cluster is in a target that it hands over.
    fn hand_over_nothing(&mut self, target: &Target) {
        self.found_nothing(target);
        let successor = self.desired.get(target).and_then(|desired| desired.successor.clone());
        if let Some(state) = self.targets.get_mut(target).filter(|state| state.has_nothing()) {
            state.succeeded = successor;
        }
    }

    /// What is to be said of the claims to a target, if anything.
    pub(super) fn claims_status(&self, target: &Target, desired: &TargetDesired) -> Option<Box<ClaimsStatus>> {
        let state = self.targets.get(target)?;
        let of = |contender: &Contender| {
            let verdict = self.verdict(target, &contender.consent, contender.creates_namespace)?;
            Some((contender.owner.clone(), verdict))
        };
        let own = desired.owner.clone().filter(|_| desired.active).and_then(|owner| {
            let verdict = if desired.unable {
                self.verdict(target, &desired.consent, desired.creation.namespace).filter(Result::is_ok)
            } else {
                state.is_denied_the_place().map(Err)
            };
            Some((owner, verdict?))
        });
        let verdicts: Vec<_> = desired.contenders.iter().filter_map(of).chain(own).collect();
        let succeeded = state.succeeded.clone();
        let anything = !verdicts.is_empty() || succeeded.is_some();
        anything.then(|| Box::new(ClaimsStatus { verdicts, succeeded }))
    }

    /// Whether somebody may register in a target, as far as it is known who owns the service.
    fn verdict(&self, target: &Target, consent: &Consent, creates_namespace: bool) -> Option<Verdict> {
        let Some(namespace) = self.directory.listed()?.get(&target.namespace) else {
            return Some(self.may_make_namespace(target, creates_namespace).map_err(|why| (Reason::NoNamespace, why)));
        };
        let owner = match self.directory.services_of(target)?.get(&target.service, namespace.kind) {
            None => &ServiceOwner::Ours,
            Some(listed) if listed.owner == ServiceOwner::Ours => &ServiceOwner::Ours,
            Some(_) => match &self.targets.get(target)?.phase {
                Phase::Resolved(Known { owner, .. }) | Phase::Gone { owner, .. } => owner.as_ref()?,
                Phase::Unresolved => return None,
            },
        };
        if let Some(message) = refusal(target, owner, consent) {
            return Some(Err((Reason::ForeignOwner, message)));
        }
        Some(self.namesake(target).map_or(Ok(()), |(other, _)| Err((Reason::ForeignOwner, has_namesake(&other)))))
    }
}

impl State {
    /// Whether no instance of this cluster is there, or on its way, as far as is known.
    fn has_nothing(&self) -> bool {
        !self.has_own() && !self.is_writing()
    }

    /// A complete reading shows whether the successor serves the name. What fails its health check serves nobody.
    pub(super) fn succession_was_read(
        &mut self,
        listing: &[Instance],
        unhealthy: Option<&BTreeSet<Arc<str>>>,
        desired: &TargetDesired,
        identity: &Owner,
    ) {
        let serves = |(cluster, service): &(_, _)| {
            let healthy = |instance: &&Instance| unhealthy.is_none_or(|unhealthy| !unhealthy.contains(&instance.id));
            listing.iter().filter(healthy).any(|instance| is_of_cluster(instance, cluster, service, identity))
        };
        self.succeeded = desired.successor.clone().filter(serves);
    }
}
