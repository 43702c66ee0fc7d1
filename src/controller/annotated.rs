//! The annotated Services and Ingresses of this cluster: what they request, and what is registered for them.

mod reports;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use self::reports::{Reported, Topic};
use super::{Asks, Knowledge, Membership, Targets, claims::Standing, knowledge::Wants, targets::decides};
use annotations::{AnnotationSettings, Known, Planned, Refusal, Wanted, Zones, plan, plan_ingress, request};
use api::events::EventReason;
use cluster::{
    events::EventRecord,
    objects::{Ingress, Service},
};
use gates::Progress;
use instances::{
    Consent, InstanceSpec, Rights, Selection, Traffic,
    custom::ByAddress,
    sync::{Notice, TargetDesired},
};
use model::{ClaimOwner, Endpoint, ServiceKey, Target, some_of};

#[derive(Clone)]
pub(super) struct Annotated {
    settings: AnnotationSettings,
    targets: Targets,
    /// The namespaces that take host names.
    zones: Known,
    objects: BTreeMap<ClaimOwner, Object>,
    /// Who wants a target, including the losers.
    wanting: BTreeMap<Target, BTreeSet<ClaimOwner>>,
    /// What was last reported about a target's instances.
    said: BTreeMap<Target, Reported>,
    /// The reported problems of a target.
    trouble: BTreeMap<Target, BTreeMap<(ClaimOwner, Topic), String>>,
    /// Why registrations of a standalone cluster cannot be recorded.
    unrecorded: Option<String>,
    /// Objects on which it was reported that nothing can be registered, because of the ledger or the record.
    held_up: BTreeSet<ClaimOwner>,
    /// What was reported about limits that an object exceeds.
    exceeded: BTreeMap<ClaimOwner, String>,
    /// What was reported about ports of a Service that no endpoint serves.
    unserved: BTreeMap<ClaimOwner, String>,
    /// The last reported notices, such as limits.
    noticed: BTreeMap<Target, BTreeMap<ClaimOwner, Vec<Notice>>>,
    notes: Vec<EventRecord>,
}

/// An annotated object.
#[derive(Debug, Clone)]
pub(super) struct Object {
    uid: Box<str>,
    /// In seconds since 1970.
    created: i64,
    planned: Planned,
}

impl Object {
    fn asks(&self) -> Asks {
        match &self.planned.wanted {
            None => Asks::Unknown,
            Some(wanted) => {
                let targets = wanted.iter().map(|(target, wanted)| (target.clone(), wanted.instances.len())).collect();
                Asks::For(Wants { created: self.created, targets })
            }
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
        // Names that nobody requests may keep their addresses. If nothing is to be registered at all, nobody would know of
        // them any more.
        let upsert_only = settings.upsert_only && targets.policy != Selection::None;
        let settings = AnnotationSettings { upsert_only, ..settings };
        let (objects, wanting, said, trouble, noticed) = Default::default();
        let (zones, unrecorded, held_up, exceeded, unserved, notes) = Default::default();
        Self {
            settings,
            targets,
            zones,
            objects,
            wanting,
            said,
            trouble,
            unrecorded,
            held_up,
            exceeded,
            unserved,
            noticed,
            notes,
        }
    }

    /// Sets the namespaces that take host names.
    pub(super) fn set_zones(&mut self, zones: Known) {
        self.zones = zones;
    }

    /// Whether any object needs the list of namespaces.
    pub(super) fn needs_zones(&self) -> bool {
        !self.objects.is_empty()
    }

    /// Number of annotated objects, and number of their requests that are refused.
    pub(super) fn sizes(&self) -> (usize, usize) {
        let refusals: usize = self.objects.values().map(|object| object.planned.refusals.len()).sum();
        let trouble: usize = self.trouble.values().map(BTreeMap::len).sum();
        (self.objects.len(), refusals + trouble + self.held_up.len() + self.exceeded.len())
    }

    /// All annotated objects, the oldest first.
    pub(super) fn owners(&self) -> Vec<ClaimOwner> {
        self.oldest_first(self.objects.keys().cloned())
    }

    /// These annotated objects, the oldest first. New ones are last, in the order of their names.
    pub(super) fn oldest_first(&self, owners: impl IntoIterator<Item = ClaimOwner>) -> Vec<ClaimOwner> {
        let mut owners: Vec<_> = owners.into_iter().collect();
        owners.sort_by_key(|owner| self.objects.get(owner).map_or(i64::MAX, |object| object.created));
        owners
    }

    /// Whether a Service requests anything, so that its endpoints matter.
    pub(super) fn concerns(&self, key: &ServiceKey) -> bool {
        self.objects.contains_key(&ClaimOwner::service(key))
    }

    /// Whether anything of an object is to be registered.
    pub(super) fn registers(&self, owner: &ClaimOwner) -> bool {
        let wanted = self.objects.get(owner).and_then(|object| object.planned.wanted.as_ref());
        wanted.is_some_and(|wanted| !wanted.is_empty())
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
        self.object((&service.uid, service.created), |zones| {
            plan(service, &source, &endpoints, &pods, zones, &self.settings, rights)
        })
    }

    /// Plans an Ingress; `None` if it requests nothing.
    pub(super) fn plan_ingress(&self, ingress: &Ingress, rights: &Rights) -> Option<Object> {
        if ingress.deleting {
            return None;
        }
        let source = self.targets.source(&ingress.key, &[]);
        self.object((&ingress.uid, ingress.created), |zones| {
            plan_ingress(ingress, &source, zones, &self.settings, rights)
        })
    }

    /// Why a Service requests registrations and has no target, if so, for a pod that waits.
    pub(super) fn obstacle(&self, owner: &ClaimOwner) -> Option<Progress> {
        let Planned { wanted, waits, refusals } = &self.objects.get(owner)?.planned;
        match (wanted, waits) {
            _ if self.settings.dry_run || self.targets.policy == Selection::None => Some(Progress::Declined),
            (None, Some(why)) => Some(Progress::Waits(why.clone())),
            (Some(wanted), _) if wanted.is_empty() && self.exceeded.contains_key(owner) => {
                self.exceeded.get(owner).cloned().map(Progress::Refused)
            }
            // Or all of its names are left to others.
            (Some(wanted), _) if !wanted.is_empty() || refusals.is_empty() => None,
            _ => {
                let said: Vec<_> = refusals.iter().map(|refusal| format!("{}.", refusal.message)).collect();
                Some(Progress::Refused(said.join(" ")))
            }
        }
    }

    fn object(
        &self,
        (uid, created): (&str, i64),
        plan: impl FnOnce(Option<&Zones>) -> Option<Planned>,
    ) -> Option<Object> {
        let Known { zones, error } = self.zones.clone();
        let mut planned = plan(zones.as_deref())?;
        if let (None, Some(error)) = (&planned.wanted, error) {
            let message =
                format!("the Cloud Map namespaces, of which each host name needs one, cannot be listed: {error}");
            planned.refusals.push(Refusal { reason: EventReason::NamespacesUnknown, message });
        }
        if self.targets.policy == Selection::None {
            // Nobody misses what would not be registered anyway, such as names that external-dns writes to Route 53.
            let is_missed = planned.wanted.is_some_and(|wanted| !wanted.is_empty());
            let refusal = || {
                let message = "instances are turned off by --instances=none".to_owned();
                Refusal { reason: EventReason::Disabled, message }
            };
            let refusals = is_missed.then(refusal).into_iter().collect();
            planned = Planned { wanted: Some(BTreeMap::new()), refusals, waits: None };
        }
        Some(Object { uid: uid.into(), created, planned })
    }

    /// Takes in what an object requests now. `None` if that changes nothing.
    pub(super) fn replan(&mut self, owner: &ClaimOwner, planned: Option<Object>) -> Option<Change> {
        let known = self.objects.get(owner);
        let anew = planned.as_ref().zip(known).is_some_and(|(object, known)| object.uid != known.uid);
        if anew {
            // It was deleted and made again at once.
            let asks = known.map(Object::asks);
            self.held_up.remove(owner);
            self.exceeded.remove(owner);
            self.unserved.remove(owner);
            for target in asks.iter().flat_map(Asks::targets) {
                self.forget_reports(owner, target);
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
            self.exceeded.remove(owner);
            Some(gone)
        };
        let (before, wanted) = (before.as_ref().map(Object::asks), self.objects.get(owner).map(Object::asks));
        let (old, new) =
            [&before, &wanted].map(|asks| asks.iter().flat_map(Asks::targets).collect::<BTreeSet<_>>()).into();
        for &target in old.difference(&new) {
            self.want_no_more(owner, target);
        }
        for &target in new.difference(&old) {
            self.wanting.entry(target.clone()).or_default().insert(owner.clone());
        }
        if self.settings.dry_run {
            self.report_dry_run(owner);
            return None;
        }
        let touched = old.union(&new).map(|&target| target.clone()).collect();
        Some(Change { wanted, touched, anew })
    }

    fn want_no_more(&mut self, owner: &ClaimOwner, target: &Target) {
        self.forget_reports(owner, target);
        if let Some(owners) = self.wanting.get_mut(target) {
            owners.remove(owner);
            if owners.is_empty() {
                self.wanting.remove(target);
            }
        }
    }

    /// Forgets what an object does not get of what it wants: it would take memory without an end. The cache has the
    /// object, which is planned again when there is room.
    pub(super) fn keep(&mut self, owner: &ClaimOwner, gets: &Asks, most_endpoints: Option<usize>) {
        let Some(planned) = self.objects.get_mut(owner).map(|object| &mut object.planned) else { return };
        let Some(wanted) = &mut planned.wanted else { return };
        let admitted: BTreeSet<_> = gets.targets().collect();
        let dropped: Vec<_> = wanted.keys().filter(|target| !admitted.contains(target)).cloned().collect();
        wanted.retain(|target, _| admitted.contains(target));
        for Wanted { instances, .. } in wanted.values_mut() {
            if let Some(most) = most_endpoints.filter(|most| *most < instances.len()) {
                *instances = some_of(instances, most, InstanceSpec::is_ready).into();
            }
        }
        if *gets == Asks::Unknown {
            planned.wanted = None;
            planned.waits = Some("the claims of this cluster are not read yet".to_owned());
        }
        for target in dropped {
            self.want_no_more(owner, &target);
        }
    }

    /// Whether a registration is given up without withdrawing its instances.
    pub(super) fn forgets(&self, knowledge: &Knowledge, target: &Target) -> bool {
        let held = knowledge.exports().and_then(|exports| exports.registrations().get(target));
        let retiring = held.is_some_and(|held| held.owner.is_annotated() && held.is_retiring());
        retiring && self.settings.upsert_only && *knowledge.membership() != Membership::Leaving
    }

    /// What an object is allowed in a target that it wants, and whether a missing namespace is created for it.
    pub(super) fn consent(&self, owner: &ClaimOwner, target: &Target) -> Option<(Consent, bool)> {
        let wanted = self.objects.get(owner)?.planned.wanted.as_ref()?.get(target)?;
        Some((wanted.consent.clone(), wanted.creation.namespace))
    }

    /// The desired instances of a target that an annotated object of this cluster, `owner`, holds or hands over. `None`
    /// if nothing is to be done there. `in_force` returns the share that is in force where the annotation requests another
    /// one.
    pub(super) fn desired(
        &self,
        knowledge: &Knowledge,
        target: &Target,
        (owner, standing): (&ClaimOwner, Standing),
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
        if standing == Standing::Withdraws {
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
            Standing::HandsOver | Standing::Keeps | Standing::Unable => true,
            _ => false,
        };
        // A name without endpoints is as good as withdrawn.
        let keep = keep || upsert_only && !instances.iter().any(InstanceSpec::is_ready);
        let decides = decides(knowledge, target);
        let only_found = standing.is_only_found().then(|| owner.key());
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
}

#[cfg(test)]
#[path = "annotated_tests.rs"]
mod tests;
