//! The annotated Services and Ingresses of this cluster: what they request, what is registered for them, and what is
//! reported on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tracing::info;

use super::{
    Asks, Knowledge, Membership, Targets,
    claims::Standing,
    idle_shares,
    targets::{awaits_clusters, decides},
};
use crate::{
    annotations::{
        AnnotationSettings, Known, Planned, Refusal, Wanted, Zones,
        news::{deleted, news},
        plan, plan_ingress, request,
    },
    api::events::EventReason,
    cluster::{
        events::{self, EventRecord},
        objects::{Ingress, Service},
    },
    gates::Progress,
    instances::{
        InstanceSpec, Rights, Selection, Traffic,
        custom::ByAddress,
        policy::why_it_wins,
        sync::{Ids, Notice, Outcome, TargetDesired, TargetStatus},
    },
    model::{ClaimOwner, Endpoint, ServiceKey, Target},
};

pub(super) struct Annotated {
    settings: AnnotationSettings,
    targets: Targets,
    /// The namespaces that take host names.
    zones: Known,
    objects: BTreeMap<ClaimOwner, Object>,
    /// Who wants a target, including the losers.
    wanting: BTreeMap<Target, BTreeSet<ClaimOwner>>,
    /// What was last reported about a target's instances.
    said: BTreeMap<Target, Said>,
    /// The reported problems of a target.
    trouble: BTreeMap<Target, BTreeMap<(ClaimOwner, Topic), String>>,
    /// Why registrations of a standalone cluster cannot be recorded.
    unrecorded: Option<String>,
    /// Objects on which it was reported that nothing can be registered, because of the ledger or the record.
    held_up: BTreeSet<ClaimOwner>,
    /// The last reported notices, such as limits.
    noticed: BTreeMap<Target, BTreeMap<ClaimOwner, Vec<Notice>>>,
    notes: Vec<EventRecord>,
}

/// What was reported about a target's instances, and on which object.
#[derive(Debug, Clone)]
struct Said {
    owner: ClaimOwner,
    /// Uid of the object, which may be gone by now: `kubectl describe` finds Events by it. Empty if it is not known.
    uid: Box<str>,
    ids: Ids,
}

/// The topic of a Warning. Each topic comes and goes by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Topic {
    /// Who has the target, or may have it, and whose share of the traffic counts there.
    Claim,
    /// The result of registering there.
    Outcome,
}

/// An annotated object.
#[derive(Debug)]
pub(super) struct Object {
    uid: Box<str>,
    planned: Planned,
}

impl Object {
    fn asks(&self) -> Asks {
        match &self.planned.wanted {
            None => Asks::Unknown,
            Some(wanted) => Asks::For(wanted.keys().cloned().collect()),
        }
    }
}

/// The effects of a change of an object.
pub(super) struct Change {
    /// In the form that [`Knowledge::annotate`] takes.
    pub(super) wanted: Option<Asks>,
    /// Targets whose instances may have changed.
    pub(super) touched: BTreeSet<Target>,
    /// Whether it is another object of the same name, on which nothing was said yet.
    pub(super) anew: bool,
}

impl Annotated {
    pub(super) fn new(settings: AnnotationSettings, targets: Targets) -> Self {
        let (objects, wanting, said, trouble, noticed) = Default::default();
        let (zones, unrecorded, held_up, notes) = Default::default();
        Self { settings, targets, zones, objects, wanting, said, trouble, unrecorded, held_up, noticed, notes }
    }

    /// Sets the namespaces that take host names.
    pub(super) fn set_zones(&mut self, zones: Known) {
        self.zones = zones;
    }

    /// Whether any object needs the list of namespaces.
    pub(super) fn needs_zones(&self) -> bool {
        !self.objects.is_empty()
    }

    /// The Events to emit since the last call.
    pub(super) fn take_notes(&mut self) -> Vec<EventRecord> {
        std::mem::take(&mut self.notes)
    }

    /// Number of annotated objects, and number of their requests that are refused.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let refusals: usize = self.objects.values().map(|object| object.planned.refusals.len()).sum();
        let trouble: usize = self.trouble.values().map(BTreeMap::len).sum();
        (self.objects.len(), refusals + trouble + self.held_up.len())
    }

    /// All annotated objects.
    pub(super) fn owners(&self) -> Vec<ClaimOwner> {
        self.objects.keys().cloned().collect()
    }

    /// Whether a Service requests anything, so that its endpoints matter.
    pub(super) fn concerns(&self, key: &ServiceKey) -> bool {
        self.objects.contains_key(&ClaimOwner::service(key))
    }

    /// The share of the traffic that an object's annotation requests; `None` if it requests nothing at all.
    pub(super) fn asked(&self, owner: &ClaimOwner) -> Option<Traffic> {
        let wanted = self.objects.get(owner)?.planned.wanted.as_ref();
        Some(wanted.and_then(|wanted| wanted.values().next()).map(|wanted| wanted.traffic).unwrap_or_default())
    }

    /// Plans a Service; `None` if it requests nothing. `endpoints` returns the endpoints of a headless one, and the labels
    /// of their pods.
    pub(super) fn plan_service(
        &self,
        service: &Service,
        endpoints: impl FnOnce() -> (Vec<Endpoint>, Arc<ByAddress>),
        rights: &Rights,
    ) -> Option<Object> {
        if service.deleting || service.managed {
            return None;
        }
        request::Request::read(&service.annotations)?;
        let (endpoints, pods) = if service.headless { endpoints() } else { Default::default() };
        let source = self.targets.source(&service.key, &service.ports);
        self.object(&service.uid, |zones| plan(service, &source, &endpoints, &pods, zones, &self.settings, rights))
    }

    /// Plans an Ingress; `None` if it requests nothing.
    pub(super) fn plan_ingress(&self, ingress: &Ingress, rights: &Rights) -> Option<Object> {
        if ingress.deleting {
            return None;
        }
        let source = self.targets.source(&ingress.key, &[]);
        self.object(&ingress.uid, |zones| plan_ingress(ingress, &source, zones, &self.settings, rights))
    }

    /// Why a Service requests registrations and has no target, if so, for a pod that waits.
    pub(super) fn obstacle(&self, owner: &ClaimOwner) -> Option<Progress> {
        let Planned { wanted, refusals } = &self.objects.get(owner)?.planned;
        match wanted {
            _ if self.settings.dry_run || self.targets.policy == Selection::None => Some(Progress::Declined),
            None => Some(Progress::Waits("the Cloud Map namespaces are not listed yet".to_owned())),
            Some(wanted) if wanted.is_empty() => {
                let said: Vec<_> = refusals.iter().map(|refusal| format!("{}.", refusal.message)).collect();
                Some(Progress::Refused(said.join(" ")))
            }
            Some(_) => None,
        }
    }

    fn object(&self, uid: &str, plan: impl FnOnce(Option<&Zones>) -> Option<Planned>) -> Option<Object> {
        let Known { zones, error } = self.zones.clone();
        let mut planned = plan(zones.as_deref())?;
        if let (None, Some(error)) = (&planned.wanted, error) {
            let message =
                format!("the Cloud Map namespaces, of which each host name needs one, cannot be listed: {error}");
            planned.refusals.push(Refusal { reason: EventReason::NamespacesUnknown, message });
        }
        if self.targets.policy == Selection::None {
            let message = "instances are turned off by --instances=none".to_owned();
            planned = Planned {
                wanted: Some(BTreeMap::new()),
                refusals: vec![Refusal { reason: EventReason::Disabled, message }],
            };
        }
        Some(Object { uid: uid.into(), planned })
    }

    /// Takes in what an object requests now. `None` if that changes nothing.
    pub(super) fn replan(&mut self, owner: &ClaimOwner, planned: Option<Object>) -> Option<Change> {
        let known = self.objects.get(owner);
        let anew = planned.as_ref().zip(known).is_some_and(|(object, known)| object.uid != known.uid);
        if anew {
            // It was deleted and made again at once.
            let asks = known.map(Object::asks);
            self.held_up.remove(owner);
            for target in asks.iter().flat_map(Asks::targets) {
                self.unsay(owner, target);
            }
        }
        let before = if let Some(object) = planned {
            self.complain(owner, &object);
            for target in object.planned.wanted.iter().flat_map(BTreeMap::keys) {
                // What the one before registered is of this one now.
                if let Some(said) = self.said.get_mut(target).filter(|said| said.owner == *owner) {
                    said.uid.clone_from(&object.uid);
                }
            }
            self.objects.insert(owner.clone(), object)
        } else {
            let gone = self.objects.remove(owner)?;
            self.held_up.remove(owner);
            Some(gone)
        };
        let (before, wanted) = (before.as_ref().map(Object::asks), self.objects.get(owner).map(Object::asks));
        let (old, new) =
            [&before, &wanted].map(|asks| asks.iter().flat_map(Asks::targets).collect::<BTreeSet<_>>()).into();
        for &target in old.difference(&new) {
            self.unsay(owner, target);
            if let Some(owners) = self.wanting.get_mut(target) {
                owners.remove(owner);
                if owners.is_empty() {
                    self.wanting.remove(target);
                }
            }
        }
        for &target in new.difference(&old) {
            self.wanting.entry(target.clone()).or_default().insert(owner.clone());
        }
        if self.settings.dry_run {
            self.tell_dry_run(owner);
            return None;
        }
        let touched = old.union(&new).map(|&target| target.clone()).collect();
        Some(Change { wanted, touched, anew })
    }

    /// Nothing is said on an object about a target any more.
    fn unsay(&mut self, owner: &ClaimOwner, target: &Target) {
        for topic in [Topic::Claim, Topic::Outcome] {
            remove_from(&mut self.trouble, target, &(owner.clone(), topic));
        }
        remove_from(&mut self.noticed, target, owner);
    }

    fn tell_dry_run(&self, owner: &ClaimOwner) {
        let wanted = self.objects.get(owner).and_then(|object| object.planned.wanted.as_ref());
        for (target, Wanted { instances, .. }) in wanted.into_iter().flatten() {
            let ready = instances.iter().filter(|spec| spec.is_ready());
            let addresses: Vec<_> = ready.map(InstanceSpec::address).collect();
            info!(object = %owner, %target, ?addresses, "dry run: would register");
        }
    }

    /// This cluster has no registration record of a target (any more).
    pub(super) fn forget(&mut self, target: &Target) {
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

    /// Whether a registration is given up without withdrawing its instances.
    pub(super) fn forgets(&self, knowledge: &Knowledge, target: &Target) -> bool {
        let held = knowledge.exports().and_then(|exports| exports.registrations().get(target));
        let retiring = held.is_some_and(|held| held.owner.is_annotated() && held.retiring);
        retiring && self.settings.upsert_only && *knowledge.membership() != Membership::Leaving
    }

    /// The desired instances of a target that an annotated object of this cluster, `owner`, holds or hands over. `None`
    /// if nothing is to be done there. `presence` returns whether an object exists, annotated or not, and `in_force` the share
    /// that is in force where the annotation requests another one.
    pub(super) fn desired(
        &self,
        knowledge: &Knowledge,
        target: &Target,
        (owner, standing): (&ClaimOwner, Standing),
        presence: impl Fn(&ClaimOwner) -> bool,
        in_force: impl Fn(&ServiceKey, Traffic) -> Traffic,
    ) -> Option<TargetDesired> {
        // A cluster that leaves its ClusterSet takes everything along, even what was registered before these flags were
        // set.
        let leaving = *knowledge.membership() == Membership::Leaving;
        let [dry_run, upsert_only] = [self.settings.dry_run, self.settings.upsert_only].map(|flag| flag && !leaving);
        if dry_run {
            return None;
        }
        let object = self.objects.get(owner).filter(|_| !self.settings.dry_run);
        let wanted = match object.map(|object| &object.planned.wanted) {
            // It is not known yet, so nothing may be concluded.
            Some(None) if !leaving => return None,
            Some(Some(wanted)) => wanted.get(target),
            Some(None) | None => None,
        };
        let moved_away = matches!(standing, Standing::HandsOver | Standing::Keeps) && wanted.is_none();
        // A deleted object hands nothing over.
        if standing == Standing::Withdraws || moved_away && !presence(owner) {
            return (!upsert_only).then(|| TargetDesired { retiring: true, ..TargetDesired::default() });
        }
        if moved_away {
            // No annotation says any more what belongs there, so everything stays as it is until the successor had
            // time.
            return Some(TargetDesired::default());
        }
        let Wanted { instances, creation, consent, keep, as_is, traffic } = wanted?.clone();
        let active = match standing {
            Standing::Holds => knowledge.is_on_record(target),
            Standing::HandsOver | Standing::Keeps => true,
            _ => false,
        };
        // A name without endpoints is as good as withdrawn.
        let keep = keep || upsert_only && !instances.iter().any(InstanceSpec::is_ready);
        let decides = decides(knowledge, target);
        let only_found = (standing == Standing::Keeps).then(|| owner.key());
        Some(TargetDesired {
            active,
            only_found,
            decides,
            keep,
            as_is,
            consent,
            creation,
            traffic: in_force(&owner.key(), traffic),
            instances,
            ..TargetDesired::default()
        })
    }

    /// Sets why registrations of a standalone cluster cannot be recorded, if so.
    pub(super) fn set_unrecorded(&mut self, error: Option<&str>) {
        self.unrecorded = error.map(|error| {
            format!(
                "Registrations cannot be recorded in the ConfigMap cloudmap-mcs-ledger. The controller tries again until \
                 it succeeds: {error}."
            )
        });
    }

    /// Reports on an object that nothing can be registered for it because of the ledger, with the text that exports
    /// get. This is reported once: on exports, too, each further error is only in the condition.
    pub(super) fn tell_held_up(&mut self, knowledge: &Knowledge, owner: &ClaimOwner) {
        if self.settings.dry_run || !self.objects.contains_key(owner) {
            return;
        }
        let missing = || knowledge.annotated(owner).any(|target| !knowledge.is_on_record(target));
        let why = match knowledge.membership() {
            Membership::Refused(why) | Membership::Failing(why) => Some(why),
            Membership::Member { trouble } => trouble.as_ref().filter(|_| missing()),
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

    /// Reports on the objects that want a target what they wait for: another claim, the ledger, or, with `unread`,
    /// clusters that cannot be read.
    pub(super) fn tell_waiting(&mut self, knowledge: &Knowledge, target: &Target, unread: bool) {
        if self.settings.dry_run {
            return;
        }
        let held = knowledge.exports().and_then(|exports| exports.registrations().get(target));
        for own in self.wanting.get(target).cloned().unwrap_or_default() {
            // An export of the same Service registers the same endpoints.
            let winner = knowledge.claimant(target).filter(|(_, owner)| !owner.is_same_service(&own));
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
                let holder = &held.filter(|held| !held.retiring)?.owner;
                let idle = wanted.traffic.is_part() && *holder != own && holder.is_same_service(&own);
                idle.then(|| (EventReason::InvalidAnnotation, idle_shares::beside(target, holder, &own)))
            };
            let said = said.or_else(waits).or_else(shadowed);
            self.tell(&own, target, Topic::Claim, said);
            self.tell_held_up(knowledge, &own);
        }
    }

    /// The status of an object's target changed: reports the result. `presence` returns the uid of an object, if it
    /// exists.
    pub(super) fn tell_status(
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
            && let Some(Said { owner: former, uid: former_uid, ids: said }) = self.said_of(target, owner, status)
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
                        self.tell_deleted(&former, &former_uid, target, Some(&text));
                    }
                }
                (Some(_), Some(text)) => self.note(owner, present, EventReason::IpRemoved, text),
                (None, removed) if status.own_gone => {
                    let uid = if former == *owner { &*former_uid } else { "" };
                    self.tell_deleted(owner, uid, target, removed.as_deref());
                }
                _ => {}
            }
        }
        // Until the new owner's instances are registered, the reached state is that of the former one.
        let settled = matches!(status.outcome, Outcome::Registered { .. });
        let reached_by_it = settled || self.said.get(target).is_none_or(|said| said.owner == *owner);
        match &status.reached {
            // For a deleted object, this is reported when all of its instances are gone.
            Some(reached) if !status.own_gone && present.is_some() && reached_by_it => {
                let uid = present.unwrap_or_default().into();
                self.said.insert(target.clone(), Said { owner: owner.clone(), uid, ids: Arc::clone(reached) });
            }
            _ if status.own_gone => {
                self.said.remove(target);
            }
            _ => {}
        }
        if self.objects.contains_key(owner) {
            self.tell_notices(owner, target, &status.notices);
        }
        if before.map(|before| &before.outcome) != Some(&status.outcome) && self.objects.contains_key(owner) {
            let said = match &status.outcome {
                Outcome::Refused { reason, message } => {
                    Some((reason.event(), format!("Cloud Map service {target}: {message}.")))
                }
                Outcome::Registered { .. } => None,
                Outcome::Pending => return,
            };
            self.tell(owner, target, Topic::Outcome, said);
        }
    }

    /// Reports, once, what the user should know even if everything is registered.
    fn tell_notices(&mut self, owner: &ClaimOwner, target: &Target, notices: &[Notice]) {
        let before = remove_from(&mut self.noticed, target, owner).unwrap_or_default();
        for &Notice { reason, ref message } in notices.iter().filter(|notice| !before.contains(notice)) {
            let text = format!("Cloud Map service {target}: {message}.");
            self.note(owner, None, reason, text);
        }
        if !notices.is_empty() {
            self.noticed.entry(target.clone()).or_default().insert(owner.clone(), notices.to_vec());
        }
    }

    fn tell_deleted(&mut self, owner: &ClaimOwner, uid: &str, target: &Target, removed: Option<&str>) {
        let reason = if owner.is_ingress() { EventReason::IngressDeleted } else { EventReason::ServiceDeleted };
        self.note(owner, Some(uid), reason, deleted(owner, removed, target));
    }

    /// Reports a Warning about a target once, and forgets it when it is over.
    fn tell(&mut self, owner: &ClaimOwner, target: &Target, topic: Topic, said: Option<(EventReason, String)>) {
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
    fn said_of(&self, target: &Target, owner: &ClaimOwner, status: &TargetStatus) -> Option<Said> {
        let before = || {
            let uid = self.objects.get(owner).map(|object| object.uid.clone()).unwrap_or_default();
            Some(Said { owner: owner.clone(), uid, ids: status.found.clone()? })
        };
        self.said.get(target).cloned().or_else(before)
    }

    /// Reports what is not possible for an object, if that is new.
    fn complain(&mut self, owner: &ClaimOwner, object: &Object) {
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

#[cfg(test)]
#[path = "annotated_tests.rs"]
mod tests;
