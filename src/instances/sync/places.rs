//! Finds, creates and deletes the service of a target, with listings that targets share, and a closer look at foreign
//! services.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Creation, Reason, TargetDesired,
    engine::Engine,
    failure::Trouble,
    state::{Phase, Place, Seen, State, Want},
};
use crate::{
    attributes::ServiceTraits,
    ownership::{self, Control, ServiceOwner, control, refusal, service_owner},
    share::Others,
    target::validate,
};
use api::names::ANNOTATION_MAY_CREATE;
use base::steps;
use cloudmap::{CreateService, DnsRecord, Error, ErrorKind, LATEST_EFFECT, Namespace, NamespaceKind, Service};
use model::Target;

/// How long a listing counts that lacks something. People create namespaces and services, too.
const LISTING_AGE: Duration = Duration::from_secs(30);
/// The same before a namespace is created or first reported as missing. With the longer age, a namespace that somebody
/// created a moment before, perhaps with DNS, would be used only after minutes, or never.
const CREATION_AGE: Duration = Duration::from_secs(2);
/// How often a target that retires looks whether another one has found the service.
const SOON: Duration = Duration::from_secs(1);
/// How often a target in a foreign service is looked at again.
pub(super) const REFUSED_AGAIN: Duration = Duration::from_mins(5);
/// Number of attempts to delete an empty service before it is left to people.
const DELETE_ATTEMPTS: u32 = 5;

/// The services of a Cloud Map namespace, by name.
#[derive(Debug, Default)]
pub(super) struct Services {
    by_name: BTreeMap<Arc<str>, Listed>,
    /// The first name of those that are one in DNS.
    folded: BTreeMap<Box<str>, Arc<str>>,
}

impl Services {
    /// The service of this name in a namespace of this kind.
    pub(super) fn get(&self, name: &str, kind: NamespaceKind) -> Option<&Listed> {
        let alike = || {
            let found = self.folded.get(&*name.to_ascii_lowercase())?;
            self.by_name.get(found).filter(|_| kind.is_same_service(found, name))
        };
        self.by_name.get(name).or_else(alike)
    }

    /// Number of services.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    fn insert(&mut self, name: Arc<str>, listed: Listed) {
        let first = self.folded.entry(name.to_ascii_lowercase().into()).or_insert_with(|| Arc::clone(&name));
        if name < *first {
            *first = Arc::clone(&name);
        }
        self.by_name.insert(name, listed);
    }

    /// Removes the services of this name, and of those that are one with it in DNS.
    pub(super) fn remove(&mut self, name: &str) {
        self.folded.remove(&*name.to_ascii_lowercase());
        self.by_name.retain(|other, _| !other.eq_ignore_ascii_case(name));
    }
}

impl FromIterator<(Arc<str>, Listed)> for Services {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Listed)>>(listed: I) -> Self {
        let mut services = Self::default();
        listed.into_iter().for_each(|(name, listed)| services.insert(name, listed));
        services
    }
}

/// Active targets by namespace and name, in which AWS does not tell upper from lower case if it is a DNS namespace. To look for
/// them among all targets would take as many steps as there are, for each of them.
#[derive(Debug, Default)]
pub(super) struct Namesakes(BTreeMap<(Arc<str>, Box<str>), BTreeSet<Target>>);

impl Namesakes {
    fn key(target: &Target) -> (Arc<str>, Box<str>) {
        (Arc::clone(&target.namespace), target.service.to_ascii_lowercase().into())
    }

    /// Number of targets.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// Notes whether a target is active.
    pub(super) fn note(&mut self, target: &Target, active: bool) {
        let key = Self::key(target);
        if active {
            self.0.entry(key).or_default().insert(target.clone());
        } else if let Some(alike) = self.0.get_mut(&key) {
            alike.remove(target);
            if alike.is_empty() {
                self.0.remove(&key);
            }
        }
    }

    /// The active targets that have the name of this one, or its name in other letters.
    fn of(&self, target: &Target) -> impl Iterator<Item = &Target> {
        self.0.get(&Self::key(target)).into_iter().flatten().inspect(|_| steps::count())
    }
}

/// A service in a listing, reduced to what is needed.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) id: Arc<str>,
    traits: ServiceTraits,
    records: Vec<DnsRecord>,
    pub(super) owner: ServiceOwner,
    /// Whether it looks like the services that we create without records, whose owner a listing does not show.
    unmarked: bool,
}

impl Engine {
    /// The next step to find the service of a target.
    pub(super) fn want_place(&mut self, target: &Target, desired: &TargetDesired, now: Instant) -> Option<Want> {
        // Instances of an earlier version are withdrawn, wherever they are.
        if let Err(invalid) = validate(target).or_else(|invalid| if desired.retiring { Ok(()) } else { Err(invalid) }) {
            self.refuse(target, Reason::Failed, invalid.to_string(), now);
            return None;
        }
        let Some((_, namespaces)) = &self.namespaces.rows else { return self.want_namespaces(target, now) };
        let Some(namespace) = namespaces.get(&target.namespace) else {
            return self.want_missing_namespace(target, desired, now);
        };
        let (namespace_id, kind) = (namespace.id.clone(), namespace.kind);
        let namesake = self.namesake(target).filter(|_| !desired.retiring);
        let listing = self.services.entry(namespace_id.clone()).or_default();
        // A service that the listing lacks is created; this shows whether somebody else was faster. A service in it
        // that is ours stays ours; any other one is looked at again.
        let Some((_, services)) = &listing.rows else { return self.want_services(namespace_id, target, now) };
        // Each of the two would withdraw what the other one registers.
        let is_named = |name: &Arc<str>| services.by_name.contains_key(name);
        let is_first = |other: &Target| is_named(&other.service) && !is_named(&target.service);
        if let Some((other, may)) = namesake
            && may.unwrap_or_else(|| is_first(&other))
        {
            self.refuse(target, Reason::ForeignOwner, has_namesake(&other), now);
            return None;
        }
        let unseen = self.targets.get(target).is_some_and(|state| state.seen == Seen::Never);
        match services.get(&target.service, kind) {
            None if desired.retiring => {
                let certain = self.certain_from(target);
                if self.services.get(&namespace_id).is_some_and(|listing| listing.began_since(certain)) {
                    self.gone(target);
                } else if now < certain {
                    self.wait_until(target, certain);
                } else {
                    return self.want_services(namespace_id, target, now);
                }
                None
            }
            None if desired.only_found.is_some() => {
                self.found_nothing(target);
                None
            }
            None => {
                let Creation { service, dns, custom_health_check, .. } = &desired.creation;
                service.then(|| Want::CreateService {
                    namespace_id,
                    dns: dns.clone().filter(|_| kind != NamespaceKind::Http),
                    custom_health_check: *custom_health_check,
                })
            }
            // Our own instances are withdrawn, no matter who owns the service. If the target is wanted again meanwhile, that
            // matters.
            Some(listed) if desired.retiring || listed.owner == ServiceOwner::Ours => {
                let adopt = desired.consent.adopt.clone().filter(|adopt| adopt.covers(&listed.owner));
                let place = Place { adopt, ..listed.unproven(now) };
                self.resolved(target, place);
                self.want(target, now)
            }
            // A new leader has to find the owners of hundreds of services, with few calls a second. So it reads the
            // services meanwhile, and asks for owners first where something must be written. (To know what is adopted,
            // a reading needs the owner.)
            Some(listed) if listed.unmarked && unseen && desired.consent.adopt.is_none() => {
                let place = Place { unproven: true, ..listed.place(Control::Others, now) };
                self.resolved(target, place);
                self.want(target, now)
            }
            Some(listed) => Some(Want::Inspect { service_id: listed.id.clone() }),
        }
    }

    /// The next step if the Cloud Map namespace of a target does not exist, by the latest listing.
    fn want_missing_namespace(&mut self, target: &Target, desired: &TargetDesired, now: Instant) -> Option<Want> {
        let creates = self.may_make_namespace(target, desired.creation.namespace);
        if desired.only_found.is_some() && (creates.is_ok() || !desired.unable) {
            self.found_nothing(target);
            return None;
        }
        if desired.retiring {
            let certain = self.certain_from(target);
            if self.namespaces.began_since(certain) {
                self.gone(target);
            } else if now < certain {
                self.wait_until(target, certain);
            } else {
                return self.want_namespaces(target, now);
            }
            return None;
        }
        let refused = self.targets.get(target).is_some_and(|state| state.problem.is_some());
        let age = if creates.is_ok() || !refused { CREATION_AGE } else { LISTING_AGE };
        if self.namespaces.fresh(age, now).is_none() {
            return self.want_namespaces(target, now);
        }
        if let Err(message) = creates {
            self.refuse(target, Reason::NoNamespace, message, now);
            return None;
        }
        let creating = self.creating.entry(target.namespace.clone()).or_default();
        if creating.may_load(now) {
            return Some(Want::CreateNamespace);
        }
        let (error, at) = (creating.trouble(), creating.not_before());
        self.wait_for_listing(target, error, at, now);
        None
    }

    /// Whether a missing Cloud Map namespace is made, if the rules allow it (`creates`).
    ///
    /// # Errors
    /// Why not, for the user.
    pub(super) fn may_make_namespace(&self, target: &Target, creates: bool) -> Result<(), String> {
        let name = &target.namespace;
        // Names in DNS have no case, so a namespace beside it would be another one with the same name.
        let is_alike = |there: &&Namespace| there.kind != NamespaceKind::Http && there.name.eq_ignore_ascii_case(name);
        let alike = self.namespaces.rows.iter().flat_map(|(_, rows)| rows.values()).find(is_alike);
        match alike {
            Some(alike) => Err(format!(
                "there is no Cloud Map namespace {name:?}, but a DNS namespace {:?}; write its name in this way",
                alike.name
            )),
            None if creates && self.settings.create_namespaces => Ok(()),
            None => Err(format!(
                "there is no Cloud Map namespace {name:?}, and the controller does not create it for this; create it, name \
                 another one, or, for a ServiceExport, have an administrator list it in the annotation {ANNOTATION_MAY_CREATE} on \
                 the Namespace"
            )),
        }
    }

    pub(super) fn want_namespaces(&mut self, target: &Target, now: Instant) -> Option<Want> {
        if self.namespaces.may_load(now) {
            return Some(Want::Namespaces);
        }
        let (error, at) = (self.namespaces.trouble(), self.namespaces.not_before());
        self.wait_for_listing(target, error, at, now);
        None
    }

    pub(super) fn want_services(&mut self, namespace_id: Arc<str>, target: &Target, now: Instant) -> Option<Want> {
        let listing = self.services.entry(namespace_id.clone()).or_default();
        if listing.may_load(now) {
            return Some(Want::Services { namespace_id });
        }
        let (error, at) = (listing.trouble(), listing.not_before());
        self.wait_for_listing(target, error, at, now);
        None
    }

    /// A listing that a target needs failed, or is in progress.
    fn wait_for_listing(&mut self, target: &Target, trouble: Option<Trouble>, at: Option<Instant>, now: Instant) {
        // A listing in progress wakes the target itself.
        let Some((trouble, at)) = trouble.zip(at.filter(|at| *at > now)) else { return };
        if let Some(state) = self.targets.get_mut(target) {
            if trouble.is_some() {
                state.problem = trouble;
            }
            state.not_before = Some(at);
        }
        self.wake_at(target, at);
    }

    pub(super) fn refuse(&mut self, target: &Target, reason: Reason, message: String, now: Instant) {
        let at = now + REFUSED_AGAIN;
        if let Some(state) = self.targets.get_mut(target) {
            state.problem = Some((reason, message));
            state.not_before = Some(at);
        }
        self.wake_at(target, at);
    }

    pub(super) fn service_created(&mut self, target: &Target, result: Result<CreateService, Error>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.busy = false;
        let namespace_id =
            self.namespaces.rows.as_ref().and_then(|(_, n)| n.get(&target.namespace)).map(|n| n.id.clone());
        match (result, namespace_id) {
            (Ok(CreateService::Created(service)), Some(namespace_id)) => {
                state.failures = 0;
                // It was just created, so it has no instances of ours to read. (An earlier service with this name may
                // have had instances, but AWS deletes no service that has any.)
                state.seen = Seen::Once;
                if let Some(part) = &mut state.part {
                    part.was_read(now, Others::default());
                }
                let known = listed(&service, &self.settings.identity);
                state.found = state.found.take().or_else(|| Some(Arc::default()));
                let place = known.place(Control::Ours, now);
                self.remember(&namespace_id, &target.service, known);
                self.resolved(target, place);
                self.drift_check_soon(now);
            }
            (Ok(CreateService::Exists { id, .. }), Some(namespace_id)) => {
                // Somebody was faster, or an earlier request of ours. The next look shows which.
                let (traits, records, owner) = (ServiceTraits::default(), Vec::new(), ServiceOwner::Unclaimed);
                let unclaimed = Listed { id, traits, records, owner, unmarked: false };
                self.remember(&namespace_id, &target.service, unclaimed);
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                let at = state.fail(&error, now);
                match &error.kind {
                    ErrorKind::NotFound => self.namespaces.forget(now),
                    ErrorKind::AlreadyExists { .. } => self.forget_services(target, now),
                    kind if kind.may_come_late() => state.late_until = Some(now + LATEST_EFFECT),
                    _ => {}
                }
                self.wake_at(target, at);
            }
        }
        self.wake_target(target, now);
    }

    /// Another active target with the same Cloud Map service, and whether it may register there, if that is known. In
    /// DNS namespaces AWS does not tell upper from lower case, so two targets can have one service.
    pub(super) fn namesake(&self, target: &Target) -> Option<(Target, Option<bool>)> {
        let (_, namespaces) = self.namespaces.rows.as_ref()?;
        if namespaces.get(&target.namespace)?.kind == NamespaceKind::Http {
            return None;
        }
        let mut others = self.namesakes.of(target).filter(|other| *other != target);
        let (other, state) = others.find_map(|other| Some((other, self.targets.get(other)?)))?;
        let may = || state.place().is_none_or(|place| !place.refused);
        Some((other.clone(), state.service_id.is_some().then(may)))
    }

    /// Whether a retiring target is left to another target with the same Cloud Map service. That one reads what is
    /// registered there, and withdraws what it does not want. If both did so, they would withdraw and register the same
    /// instances in turn.
    pub(super) fn is_left(&mut self, target: &Target, now: Instant) -> bool {
        let is_looking = |other: &Target| self.targets.get(other).is_some_and(|state| state.problem.is_none());
        match self.namesake(target) {
            Some((_, Some(true))) => self.gone(target),
            Some((other, None)) if is_looking(&other) => self.wait_until(target, now + SOON),
            _ => return false,
        }
        true
    }

    fn gone(&mut self, target: &Target) {
        if let Some(state) = self.targets.get_mut(target) {
            self.running -= state.running.len();
            let (found, reached) = (state.found.take(), Some(Arc::default()));
            **state = State { phase: Phase::Gone, found, reached, counted: state.counted, ..State::default() };
        }
    }

    pub(super) fn resolved(&mut self, target: &Target, place: Place) {
        if let Some(state) = self.targets.get_mut(target) {
            if !place.refused && state.retry.is_empty() && state.denied.is_empty() {
                state.problem = None;
                state.failures = 0;
            }
            if state.service_id.as_ref().is_some_and(|before| *before != place.service_id) {
                self.running -= state.running.len();
                state.running.clear();
                state.lose_place();
            }
            state.service_id = Some(place.service_id.clone());
            if !place.traits.has_custom_health_check() {
                state.told.clear();
            }
            let again = state.unfit.is_some().then(|| place.again_at());
            state.phase = Phase::Resolved(place);
            state.pending = None;
            if let Some(at) = again {
                self.wake_at(target, at);
            }
        }
    }

    fn remember(&mut self, namespace_id: &Arc<str>, service: &Arc<str>, known: Listed) {
        if let Some((_, services)) = self.services.get_mut(namespace_id).and_then(|listing| listing.rows.as_mut()) {
            services.insert(service.clone(), known);
        }
    }

    pub(super) fn inspected(
        &mut self,
        target: &Target,
        result: Result<(Service, BTreeMap<String, String>), Error>,
        now: Instant,
    ) {
        let consent = self.desired.get(target).map(|desired| desired.consent.clone()).unwrap_or_default();
        let Some(state) = self.targets.get_mut(target) else { return };
        state.busy = false;
        if matches!(state.phase, Phase::Gone) {
            return self.looked(target, result, now);
        }
        match result {
            Ok((service, tags)) => {
                let owner = service_owner(&service, &tags, &self.settings.identity);
                state.owner = Some(owner.clone());
                let refused = refusal(target, &owner, &consent);
                let adopt = consent.adopt.filter(|adopt| adopt.covers(&owner));
                let identity = &self.settings.identity;
                let control = control(&service, &tags, identity, adopt.as_ref());
                let known = listed(&service, identity);
                let place = Place { adopt, refused: refused.is_some(), ..known.place(control, now) };
                let at = place.again_at();
                if place.refused && !state.own.is_empty() && state.place().is_none_or(|before| !before.refused) {
                    // Whether ours stay depends on who else is there now.
                    state.seen = Seen::Never;
                }
                if let Some(namespace_id) = &service.namespace_id {
                    self.remember(namespace_id, &target.service, known);
                }
                self.resolved(target, place);
                if let Some(message) = refused {
                    if let Some(state) = self.targets.get_mut(target) {
                        let problem = Some((Reason::ForeignOwner, message));
                        if state.problem != problem {
                            tracing::info!(%target, ?owner, "the Cloud Map service belongs to somebody else");
                        }
                        state.problem = problem;
                    }
                    self.wake_at(target, at);
                }
            }
            Err(error) if error.kind == ErrorKind::NotFound => self.lost(target, &error, now),
            Err(error) if state.is_look_due(now) => self.keep_place(target, &error, now),
            Err(error) => {
                let at = state.fail(&error, now);
                self.wake_at(target, at);
            }
        }
        self.wake_target(target, now);
    }

    pub(super) fn service_deleted(&mut self, target: &Target, result: Result<(), Error>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.busy = false;
        // AWS may notice only after a moment that ours are gone. What has instances of others stays.
        let stays = |error: &Error| error.kind == ErrorKind::InUse && state.foreign > 0;
        let deleted = result.is_ok();
        if let Some(error) = result.err().filter(|error| !stays(error)) {
            let at = state.fail(&error, now);
            if state.failures < DELETE_ATTEMPTS {
                return self.wake_at(target, at);
            }
            tracing::warn!(%target, %error, "cannot delete an empty service");
        }
        let remade = self.targets.get(target).is_some_and(|state| state.is_being_remade());
        if remade && deleted {
            self.delisted(target);
        } else {
            self.forget_services(target, now);
        }
        if self.desired.get(target).is_some_and(|desired| desired.retiring) {
            self.gone(target);
        } else if let Some(state) = self.targets.get_mut(target) {
            // Somebody wants it again since the call was sent.
            state.lose_place();
            self.wake_target(target, now);
        }
    }

    /// A service that keeps instances out, or to which a write was invalid, is looked at again. What is known of it counts
    /// until the answer is here, so that what it takes is written meanwhile. `None` if nothing is to be asked now.
    pub(super) fn find_again(&mut self, target: &Target, desired: &TargetDesired, now: Instant) -> Option<Want> {
        let service_id = self.targets.get(target)?.service_id.clone();
        let namespaces = self.namespaces.rows.as_ref().map(|(_, namespaces)| namespaces);
        if let Some(namespace) = namespaces.and_then(|namespaces| namespaces.get(&target.namespace)) {
            let (namespace_id, kind) = (namespace.id.clone(), namespace.kind);
            let listing = self.services.entry(namespace_id.clone()).or_default();
            let Some(services) = listing.fresh(LISTING_AGE, now) else {
                return listing.may_load(now).then_some(Want::Services { namespace_id });
            };
            let same = services.get(&target.service, kind).filter(|listed| Some(&listed.id) == service_id.as_ref());
            if let Some(listed) = same.filter(|listed| listed.owner != ServiceOwner::Ours && !desired.retiring) {
                return Some(Want::Inspect { service_id: listed.id.clone() });
            }
        }
        self.look_up(target, now);
        None
    }

    /// The services of a Cloud Map namespace cannot be listed.
    pub(super) fn keep_places(&mut self, namespace: &Arc<str>, error: &Error, now: Instant) {
        let first = Target { namespace: namespace.clone(), service: "".into() };
        let there = self.targets.range(first..).take_while(|(target, _)| target.namespace == *namespace);
        let due = there.filter(|(_, state)| state.is_look_due(now)).map(|(target, _)| target.clone());
        for target in due.collect::<Vec<_>>() {
            self.keep_place(&target, error, now);
        }
    }

    /// A look again failed. What is known of the service counts until the next one.
    fn keep_place(&mut self, target: &Target, error: &Error, now: Instant) {
        let Some(Phase::Resolved(place)) = self.targets.get_mut(target).map(|state| &mut state.phase) else { return };
        tracing::info!(%target, %error, "cannot look again at the service; what is known of it counts");
        (place.since, place.doubtful) = (now, false);
        let at = place.again_at();
        self.wake_at(target, at);
    }

    /// The service of a target may have changed. It is looked at again, with a recent listing.
    fn look_up(&mut self, target: &Target, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.phase = Phase::Unresolved;
        let Some((_, namespaces)) = &self.namespaces.rows else { return };
        let Some(namespace) = namespaces.get(&target.namespace) else { return };
        if let Some(listing) = self.services.get_mut(&namespace.id).filter(|l| l.fresh(LISTING_AGE, now).is_none()) {
            listing.forget(now);
        }
    }

    /// Whether a target may have this service, by the listings that are known.
    pub(super) fn may_have(&self, target: &Target, service_id: &Arc<str>) -> bool {
        let Some((_, namespaces)) = &self.namespaces.rows else { return true };
        let Some(namespace) = namespaces.get(&target.namespace) else { return false };
        let listing = self.services.get(&namespace.id).and_then(|listing| listing.rows.as_ref());
        listing.is_none_or(|(_, services)| {
            services.get(&target.service, namespace.kind).is_some_and(|listed| listed.id == *service_id)
        })
    }

    /// The listing of the target's namespace is out of date.
    pub(super) fn forget_services(&mut self, target: &Target, now: Instant) {
        let Some((_, namespaces)) = &self.namespaces.rows else { return };
        let namespace = namespaces.get(&target.namespace);
        if let Some(listing) = namespace.and_then(|namespace| self.services.get_mut(&namespace.id)) {
            listing.forget(now);
        }
    }
}

/// What to tell whoever wants a service that another target of this cluster has.
pub(super) fn has_namesake(other: &Target) -> String {
    format!(
        "names in a DNS namespace that differ only in upper and lower case are one, and another object of this cluster is \
         registered in {other}; name another service"
    )
}

impl Place {
    /// When to look again at a service that keeps instances out: its owner may change it.
    pub(super) fn again_at(&self) -> Instant {
        self.since + REFUSED_AGAIN
    }
}

impl Listed {
    /// As far as a listing proves whose it is.
    pub(super) fn unproven(&self, now: Instant) -> Place {
        let ours = self.owner == ServiceOwner::Ours;
        let control = if ours { Control::Ours } else { Control::Others };
        Place { unproven: !ours, ..self.place(control, now) }
    }

    fn place(&self, control: Control, now: Instant) -> Place {
        let Self { id, traits, records, owner: _, unmarked: _ } = self.clone();
        let (unproven, adopt, refused, doubtful) = Default::default();
        Place { service_id: id, traits, records, control, unproven, adopt, refused, since: now, doubtful }
    }
}

pub(super) fn listed(service: &Service, identity: &ownership::Owner) -> Listed {
    Listed {
        id: service.id.clone(),
        traits: ServiceTraits::from(service),
        records: service.dns.as_ref().map(|dns| dns.records.clone()).unwrap_or_default(),
        owner: service_owner(service, &BTreeMap::new(), identity),
        unmarked: service.dns.is_none() && service.description.as_deref().is_none_or(str::is_empty),
    }
}

/// If several namespaces have one name, the first one by [`Namespace::precedence`]. Host names follow the same order
/// (`annotations::Zones`).
pub(super) fn by_name(namespaces: Vec<Namespace>) -> BTreeMap<Arc<str>, Namespace> {
    let mut chosen = BTreeMap::<Arc<str>, Namespace>::new();
    for namespace in namespaces {
        match chosen.get(&namespace.name) {
            Some(other) if other.precedence() <= namespace.precedence() => {}
            _ => {
                chosen.insert(namespace.name.clone(), namespace);
            }
        }
    }
    chosen
}
