//! What is reported on annotated objects, as Events: refusals, registered and removed addresses, what they wait for, and
//! what their users should know.

use std::{collections::BTreeMap, sync::Arc};

use tracing::info;

use super::{Annotated, Object};
use crate::{Knowledge, Membership, idle_shares, targets::awaits_clusters};
use annotations::{
    Refusal, Wanted,
    news::{deleted, news},
};
use api::events::EventReason;
use cluster::events::{self, EventRecord};
use instances::{
    InstanceSpec,
    policy::why_it_wins,
    sync::{Ids, Notice, Outcome, TargetStatus},
};
use model::{ClaimOwner, Target};

/// What was reported about a target's instances, and on which object.
#[derive(Debug, Clone)]
pub(super) struct Reported {
    pub(super) owner: ClaimOwner,
    /// Uid of the object, which may be gone by now: `kubectl describe` finds Events by it. Empty if it is not known.
    pub(super) uid: Box<str>,
    ids: Ids,
}

/// The topic of a Warning. Each topic comes and goes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// Who has the target, or may have it, and whose share of the traffic counts there.
    Claim,
    /// The result of registering there.
    Outcome,
}

/// Remembers what is to be said of an object, or that there is nothing. Returns it if that was not said before.
fn newly_reported(told: &mut BTreeMap<ClaimOwner, String>, owner: &ClaimOwner, said: Option<String>) -> Option<String> {
    let Some(said) = said else {
        told.remove(owner);
        return None;
    };
    (told.insert(owner.clone(), said.clone()).as_ref() != Some(&said)).then_some(said)
}

impl Annotated {
    /// The Events to emit since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<EventRecord> {
        std::mem::take(&mut self.notes)
    }

    /// Nothing is said on an object about a target any more.
    pub(super) fn forget_reports(&mut self, owner: &ClaimOwner, target: &Target) {
        for topic in [Topic::Claim, Topic::Outcome] {
            remove_from(&mut self.trouble, target, &(owner.clone(), topic));
        }
        remove_from(&mut self.noticed, target, owner);
    }

    pub(super) fn report_dry_run(&self, owner: &ClaimOwner) {
        let wanted = self.objects.get(owner).and_then(|object| object.planned.wanted.as_ref());
        for (target, Wanted { instances, .. }) in wanted.into_iter().flatten() {
            let ready = instances.iter().filter(|spec| spec.is_ready());
            let addresses: Vec<_> = ready.map(InstanceSpec::address).collect();
            info!(object = %owner, %target, ?addresses, "dry run: would register");
        }
    }

    /// This cluster has no registration record of a target (any more).
    pub(crate) fn forget(&mut self, target: &Target) {
        self.said.remove(target);
        let wanting = self.wanting.get(target);
        let wants = |owner: &ClaimOwner| wanting.is_some_and(|owners| owners.contains(owner));
        let mut trouble = self.trouble.remove(target).unwrap_or_default();
        trouble.retain(|(owner, _), _| wants(owner));
        let mut noticed = self.noticed.remove(target).unwrap_or_default();
        noticed.retain(|owner, _| wants(owner));
        if !trouble.is_empty() {
            self.trouble.insert(target.clone(), trouble);
        }
        if !noticed.is_empty() {
            self.noticed.insert(target.clone(), noticed);
        }
    }

    /// Sets why registrations of a standalone cluster cannot be recorded, if so.
    pub(crate) fn set_unrecorded(&mut self, error: Option<&str>) {
        self.unrecorded = error.map(|error| {
            format!(
                "Registrations cannot be recorded in the ConfigMap cloudmap-mcs-ledger. The controller tries again until \
                 it succeeds: {error}."
            )
        });
    }

    /// Reports on an object that nothing can be registered for it because of the ledger, with the text that exports
    /// get. This is reported once. On exports, too, further errors are only in the condition, and not Events.
    pub(crate) fn report_held_up(&mut self, knowledge: &Knowledge, owner: &ClaimOwner) {
        if self.settings.dry_run || !self.objects.contains_key(owner) {
            return;
        }
        let missing = || knowledge.annotated(owner).any(|target| !knowledge.is_on_record(target));
        let why = match knowledge.membership() {
            Membership::Refused(why) | Membership::Failing(why) => Some(why),
            Membership::Member { trouble } => trouble.as_ref().or(knowledge.barred()).filter(|_| missing()),
            Membership::Joining(_) => self.unrecorded.as_ref().filter(|_| missing()),
            Membership::Leaving => None,
        };
        match why.cloned() {
            Some(why) if self.held_up.insert(owner.clone()) => {
                self.note(owner, None, EventReason::Failed, why);
            }
            Some(_) => {}
            None => {
                self.held_up.remove(owner);
            }
        }
    }

    /// Reports on an object, once, which limit it exceeds.
    pub(crate) fn report_exceeded(&mut self, knowledge: &Knowledge, owner: &ClaimOwner) {
        let said = knowledge.exceeded(owner).filter(|_| self.objects.contains_key(owner)).map(|(_, text)| text);
        if let Some(text) = newly_reported(&mut self.exceeded, owner, said) {
            self.note(owner, None, EventReason::QuotaExceeded, text);
        }
    }

    /// Reports on a Service, once, which of its ports no endpoint serves.
    pub(crate) fn report_unserved(&mut self, owner: &ClaimOwner, said: Option<String>) {
        if let Some(text) = newly_reported(&mut self.unserved, owner, said) {
            self.note(owner, None, EventReason::PortNotServed, text);
        }
    }

    /// Reports on the objects that want a target what they wait for: another claim, the ledger, or, with `unread`,
    /// clusters that cannot be read.
    pub(crate) fn report_waiting(&mut self, knowledge: &Knowledge, target: &Target, unread: bool) {
        if self.settings.dry_run {
            return;
        }
        let held = knowledge.exports().and_then(|exports| exports.registrations().get(target));
        for own in self.wanting.get(target).cloned().unwrap_or_default() {
            // An export of the same Service registers the same endpoints.
            // Who is unable has been told why.
            let winner = knowledge
                .claimant(target)
                .filter(|(_, owner)| !owner.is_same_service(&own) && !knowledge.is_unable(target, &own));
            let said = winner.map(|(cluster, owner)| {
                let text = format!(
                    "Cloud Map service {target} is claimed by {owner} of cluster {cluster}, {}. Change the annotation to \
                     another name, or remove it there; then this {} takes over.",
                    why_it_wins(&owner, &own, target),
                    own.kind
                );
                (EventReason::DomainConflict, text)
            });
            let waits = || {
                let waits = unread && held.is_some_and(|held| held.owner == own);
                waits.then(|| (EventReason::AwaitsClusters, awaits_clusters(target)))
            };
            let shadowed = || {
                let wanted = self.objects.get(&own)?.planned.wanted.as_ref()?.get(target)?;
                let holder = &held.filter(|held| !held.is_retiring())?.owner;
                let idle = wanted.traffic.is_part() && *holder != own && holder.is_same_service(&own);
                idle.then(|| (EventReason::InvalidAnnotation, idle_shares::beside(target, holder, &own)))
            };
            let said = said.or_else(waits).or_else(shadowed);
            self.report(&own, target, Topic::Claim, said);
            self.report_held_up(knowledge, &own);
        }
    }

    /// The status of an object's target changed: reports the result. `presence` returns the uid of an object, if it
    /// exists.
    pub(crate) fn report_status(
        &mut self,
        owner: &ClaimOwner,
        target: &Target,
        before: Option<&TargetStatus>,
        status: &TargetStatus,
        presence: impl Fn(&ClaimOwner) -> Option<Box<str>>,
    ) {
        // One that was made again, and requests nothing here, has lost nothing.
        let is_another = |uid: &str| {
            let said = self.said.get(target).filter(|said| said.owner == *owner && !said.uid.is_empty());
            said.is_some_and(|said| *said.uid != *uid)
        };
        let present = presence(owner).filter(|uid| !is_another(uid));
        let present = present.as_deref();
        if let Some(now) = &status.reached
            && let Some(Reported { owner: former, uid: former_uid, ids: said }) = self.said_of(target, owner, status)
            && said != *now
        {
            let wanted = self.objects.get(owner).and_then(|object| object.planned.wanted.as_ref()?.get(target));
            let known = wanted.map(|wanted| Arc::clone(&wanted.instances)).unwrap_or_default();
            let news = news(target, &said, now, &known);
            if let Some(text) = news.registered {
                self.note(owner, present, EventReason::IpRegistered, text);
            }
            match (present, news.removed) {
                // The object took the target over. What is gone belonged to the former owner.
                (_, Some(text)) if former != *owner => {
                    let uid = presence(&former);
                    if uid.is_some() {
                        self.note(&former, uid.as_deref(), EventReason::IpRemoved, text);
                    } else {
                        self.report_deleted(&former, &former_uid, target, Some(&text));
                    }
                }
                (Some(_), Some(text)) => self.note(owner, present, EventReason::IpRemoved, text),
                (None, removed) if status.own_gone => {
                    let uid = if former == *owner { &*former_uid } else { "" };
                    self.report_deleted(owner, uid, target, removed.as_deref());
                }
                _ => {}
            }
        }
        // Until the new owner's instances are registered, the reached state is that of the former one.
        let registered = matches!(status.outcome, Outcome::Registered { .. });
        let reached_by_it = registered || self.said.get(target).is_none_or(|said| said.owner == *owner);
        match &status.reached {
            // For a deleted object, this is reported when all of its instances are gone.
            Some(reached) if !status.own_gone && present.is_some() && reached_by_it => {
                let uid = present.unwrap_or_default().into();
                self.said.insert(target.clone(), Reported { owner: owner.clone(), uid, ids: Arc::clone(reached) });
            }
            _ if status.own_gone => {
                self.said.remove(target);
            }
            _ => {}
        }
        if self.objects.contains_key(owner) {
            self.report_notices(owner, target, &status.notices);
        }
        if before.map(|before| &before.outcome) != Some(&status.outcome) && self.objects.contains_key(owner) {
            let said = match &status.outcome {
                Outcome::Refused { reason, message } => {
                    Some((reason.event(), format!("Cloud Map service {target}: {message}.")))
                }
                Outcome::Registered { .. } => None,
                Outcome::Pending => return,
            };
            self.report(owner, target, Topic::Outcome, said);
        }
    }

    /// Reports, once, what the user should know even if everything is registered.
    fn report_notices(&mut self, owner: &ClaimOwner, target: &Target, notices: &[Notice]) {
        let before = remove_from(&mut self.noticed, target, owner).unwrap_or_default();
        for &Notice { reason, ref message } in notices.iter().filter(|notice| !before.contains(notice)) {
            let text = format!("Cloud Map service {target}: {message}.");
            self.note(owner, None, reason, text);
        }
        if !notices.is_empty() {
            self.noticed.entry(target.clone()).or_default().insert(owner.clone(), notices.to_vec());
        }
    }

    fn report_deleted(&mut self, owner: &ClaimOwner, uid: &str, target: &Target, removed: Option<&str>) {
        let reason = if owner.is_ingress() { EventReason::IngressDeleted } else { EventReason::ServiceDeleted };
        self.note(owner, Some(uid), reason, deleted(owner, removed, target));
    }

    /// Reports a Warning about a target once, and forgets it when it is over.
    fn report(&mut self, owner: &ClaimOwner, target: &Target, topic: Topic, said: Option<(EventReason, String)>) {
        let about = (owner.clone(), topic);
        match said {
            Some((reason, text)) if self.trouble.get(target).and_then(|said| said.get(&about)) != Some(&text) => {
                self.trouble.entry(target.clone()).or_default().insert(about, text.clone());
                self.note(owner, None, reason, text);
            }
            Some(_) => {}
            None => {
                remove_from(&mut self.trouble, target, &about);
            }
        }
    }

    /// What was reported about the instances in a target, by this leader or, as far as it is known, before it.
    fn said_of(&self, target: &Target, owner: &ClaimOwner, status: &TargetStatus) -> Option<Reported> {
        let before = || {
            let uid = self.objects.get(owner).map(|object| object.uid.clone()).unwrap_or_default();
            Some(Reported { owner: owner.clone(), uid, ids: status.found.clone()? })
        };
        self.said.get(target).cloned().or_else(before)
    }

    /// Reports what is not possible for an object, if that is new.
    pub(super) fn complain(&mut self, owner: &ClaimOwner, object: &Object) {
        let before = self.objects.get(owner).filter(|before| before.uid == object.uid);
        let before = before.map(|before| before.planned.refusals.as_slice()).unwrap_or_default();
        let news = object.planned.refusals.iter().filter(|refusal| !before.contains(refusal)).cloned();
        for Refusal { reason, message } in news.collect::<Vec<_>>() {
            let text = format!("Not registered as annotated: {message}.");
            self.note(owner, Some(&object.uid), reason, text);
        }
    }

    fn note(&mut self, owner: &ClaimOwner, present: Option<&str>, reason: EventReason, text: String) {
        let known = || self.objects.get(owner).map(|object| &object.uid);
        let uid = present.or_else(|| known().map(|uid| &**uid)).unwrap_or_default();
        let refer = if owner.is_ingress() { events::ingress } else { events::service };
        let mut regarding = refer(&owner.key(), uid);
        regarding.uid = regarding.uid.filter(|uid| !uid.is_empty());
        self.notes.push(EventRecord { regarding, reason, action: "Register", text });
    }
}

/// Removes what was reported about somebody in a target, and the target if nothing is left.
fn remove_from<K: Ord, V>(said: &mut BTreeMap<Target, BTreeMap<K, V>>, target: &Target, about: &K) -> Option<V> {
    let of_target = said.get_mut(target)?;
    let removed = of_target.remove(about);
    if of_target.is_empty() {
        said.remove(target);
    }
    removed
}
