//! Finds, creates and deletes the service of a target, with listings that targets share, and a closer look at foreign
//! services.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Creation, Reason, TargetDesired,
    directory::{Listed, listed},
    engine::Engine,
    failure::Trouble,
    known::{Known, Place},
    readings::Readings,
    state::{Phase, State, Want},
};
use crate::{
    MissingNamespaces,
    attributes::ServiceTraits,
    ownership::{Control, ServiceOwner, control, refusal, service_owner},
    share::Others,
    target::validate,
};
use api::names::ANNOTATION_MAY_CREATE;
use cloudmap::{CreateService, Error, ErrorKind, LATEST_EFFECT, Namespace, NamespaceKind, Service};
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

impl Engine {
    /// The next step to find the service of a target.
    pub(super) fn want_place(&mut self, target: &Target, desired: &TargetDesired, now: Instant) -> Option<Want> {
        // Instances of an earlier version are withdrawn, wherever they are.
        if let Err(invalid) = validate(target).or_else(|invalid| if desired.retiring { Ok(()) } else { Err(invalid) }) {
            self.refuse(target, Reason::Failed, invalid.to_string(), now);
            return None;
        }
        let Some(namespaces) = self.directory.listed() else { return self.want_namespaces(target, now) };
        let Some(namespace) = namespaces.get(&target.namespace) else {
            return self.want_missing_namespace(target, desired, now);
        };
        let (namespace_id, kind) = (namespace.id.clone(), namespace.kind);
        let namesake = self.namesake(target).filter(|_| !desired.retiring);
        // A service that the listing lacks is created; this shows whether somebody else was faster. A service in it
        // that is ours stays ours; any other one is looked at again.
        let Some(services) = self.directory.services_of(target) else {
            return self.want_services(namespace_id, target, now);
        };
        // Each of the two would withdraw what the other one registers.
        let is_first = |other: &Target| services.is_named(&other.service) && !services.is_named(&target.service);
        if let Some((other, may)) = namesake
            && may.unwrap_or_else(|| is_first(&other))
        {
            self.refuse(target, Reason::ForeignOwner, has_namesake(&other), now);
            return None;
        }
        let unseen = self.targets.get(target).is_some_and(|state| state.is_unread());
        match services.get(&target.service, kind) {
            None if desired.retiring => {
                let certain = self.certain_from(target);
                if self.directory.services(&namespace_id).began_since(certain) {
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
                let (service_id, place) = (listed.id.clone(), Place { adopt, ..listed.unproven(now) });
                self.resolved(target, service_id, place);
                self.want(target, now)
            }
            // A new leader has to find the owners of hundreds of services, with few calls a second. So it reads the
            // services meanwhile, and asks for owners first where something must be written. (To know what is adopted,
            // a reading needs the owner.)
            Some(listed) if listed.unmarked && unseen && desired.consent.adopt.is_none() => {
                let place = Place { unproven: true, ..listed.place(Control::Others, now) };
                let service_id = listed.id.clone();
                self.resolved(target, service_id, place);
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
            if self.directory.namespaces.began_since(certain) {
                self.gone(target);
            } else if now < certain {
                self.wait_until(target, certain);
            } else {
                return self.want_namespaces(target, now);
            }
            return None;
        }
        let refused = self.targets.get(target).is_some_and(|state| state.attempts.problem.is_some());
        let age = if creates.is_ok() || !refused { CREATION_AGE } else { LISTING_AGE };
        if self.directory.namespaces.fresh(age, now).is_none() {
            return self.want_namespaces(target, now);
        }
        if let Err(message) = creates {
            self.refuse(target, Reason::NoNamespace, message, now);
            return None;
        }
        let creating = self.directory.creating(&target.namespace);
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
        let alike = self.directory.listed().into_iter().flat_map(BTreeMap::values).find(is_alike);
        match alike {
            Some(alike) => Err(format!(
                "there is no Cloud Map namespace {name:?}, but a DNS namespace {:?}; write its name in this way",
                alike.name
            )),
            None if creates && self.settings.missing_namespaces.hides_the_internet(name) => Err(format!(
                "there is no Cloud Map namespace {name:?}, and the controller does not create it with DNS, because its hosted zone \
                 would hide all names under .{name} of the Internet from the VPC; create it yourself, or name another one"
            )),
            None if creates && self.settings.missing_namespaces != MissingNamespaces::Leave => Ok(()),
            None => Err(format!(
                "there is no Cloud Map namespace {name:?}, and the controller does not create it for this; create it, name \
                 another one, or, for a ServiceExport, have an administrator list it in the annotation {ANNOTATION_MAY_CREATE} on \
                 the Namespace"
            )),
        }
    }

    pub(super) fn want_namespaces(&mut self, target: &Target, now: Instant) -> Option<Want> {
        let listing = &self.directory.namespaces;
        if listing.may_load(now) {
            return Some(Want::Namespaces);
        }
        let (error, at) = (listing.trouble(), listing.not_before());
        self.wait_for_listing(target, error, at, now);
        None
    }

    pub(super) fn want_services(&mut self, namespace_id: Arc<str>, target: &Target, now: Instant) -> Option<Want> {
        let listing = self.directory.services(&namespace_id);
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
                state.attempts.problem = trouble;
            }
            state.attempts.not_before = Some(at);
        }
        self.wake_at(target, at);
    }

    pub(super) fn refuse(&mut self, target: &Target, reason: Reason, message: String, now: Instant) {
        let at = now + REFUSED_AGAIN;
        if let Some(state) = self.targets.get_mut(target) {
            state.attempts.problem = Some((reason, message));
            state.attempts.not_before = Some(at);
        }
        self.wake_at(target, at);
    }

    pub(super) fn service_created(&mut self, target: &Target, result: Result<CreateService, Error>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.busy = false;
        let namespace_id = self.directory.namespace(&target.namespace).map(|namespace| namespace.id.clone());
        match (result, namespace_id) {
            (Ok(CreateService::Created(service)), Some(namespace_id)) => {
                state.attempts.failures = 0;
                if state.known().is_some() {
                    state.lose_place();
                }
                // It was just created, so it has no instances of ours to read. (An earlier service with this name may
                // have had instances, but AWS deletes no service that has any.)
                let readings = Readings::of_new();
                state.phase = Phase::Resolved(Known { readings, ..Known::new(service.id.clone()) });
                if let Some(part) = &mut state.part {
                    part.was_read(now, Others::default());
                }
                let known = listed(&service, &self.settings.identity);
                state.found.get_or_insert_default();
                let place = known.place(Control::Ours, now);
                self.directory.remember(&namespace_id, &target.service, known);
                self.resolved(target, service.id, place);
                self.drift_check_soon(now);
            }
            (Ok(CreateService::Exists { id, .. }), Some(namespace_id)) => {
                // Somebody was faster, or an earlier request of ours. The next look shows which.
                let (traits, records, owner) = (ServiceTraits::default(), Vec::new(), ServiceOwner::Unclaimed);
                let unclaimed = Listed { id, traits, records, owner, unmarked: false };
                self.directory.remember(&namespace_id, &target.service, unclaimed);
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                let at = state.attempts.fail(&error, now);
                match &error.kind {
                    ErrorKind::NotFound => self.directory.namespaces.forget(now),
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
        if self.directory.namespace(&target.namespace)?.kind == NamespaceKind::Http {
            return None;
        }
        let mut others = self.directory.namesakes.of(target).filter(|other| *other != target);
        let (other, state) = others.find_map(|other| Some((other, self.targets.get(other)?)))?;
        let may = || state.place().is_none_or(|place| !place.refused);
        Some((other.clone(), state.known().is_some().then(may)))
    }

    /// Whether a retiring target is left to another target with the same Cloud Map service. That one reads what is
    /// registered there, and withdraws what it does not want. If both did so, they would withdraw and register the same
    /// instances in turn.
    pub(super) fn is_left(&mut self, target: &Target, now: Instant) -> bool {
        let is_looking = |other: &Target| self.targets.get(other).is_some_and(|state| state.attempts.problem.is_none());
        match self.namesake(target) {
            Some((_, Some(true))) => self.gone(target),
            Some((other, None)) if is_looking(&other) => self.wait_until(target, now + SOON),
            _ => return false,
        }
        true
    }

    fn gone(&mut self, target: &Target) {
        if let Some(state) = self.targets.get_mut(target) {
            let (found, reached) = (state.found.take(), Some(Arc::default()));
            let phase = Phase::Gone { owner: None, look_at: None };
            **state = State { phase, found, reached, counted: state.counted, ..State::default() };
        }
    }

    /// The service of a target was found.
    pub(super) fn resolved(&mut self, target: &Target, service_id: Arc<str>, place: Place) {
        let Some(state) = self.targets.get_mut(target) else { return };
        let hindered = |there: &Known| there.activities.has_any_failed() || !there.denied.is_empty();
        if !place.refused && !state.known().is_some_and(hindered) {
            state.attempts.succeeded();
        }
        let again = state.unfit.is_some().then(|| place.again_at());
        if state.known().is_some_and(|there| there.service_id != service_id) {
            state.lose_place();
        }
        if state.known().is_none() {
            state.phase = Phase::Resolved(Known::new(service_id));
        }
        if let Some(there) = state.known_mut() {
            if !place.traits.has_custom_health_check() {
                there.last_health.clear();
            }
            there.place = Some(place);
            there.activities.plan_again();
        }
        if let Some(at) = again {
            self.wake_at(target, at);
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
        if matches!(state.phase, Phase::Gone { .. }) {
            return self.looked(target, result, now);
        }
        match result {
            Ok((service, tags)) => {
                let owner = service_owner(&service, &tags, &self.settings.identity);
                let refused = refusal(target, &owner, &consent);
                let adopt = consent.adopt.filter(|adopt| adopt.covers(&owner));
                let identity = &self.settings.identity;
                let control = control(&service, &tags, identity, adopt.as_ref());
                let known = listed(&service, identity);
                let is_refused = refused.is_some();
                let place = Place { adopt, refused: is_refused, ..known.place(control, now) };
                let at = place.again_at();
                if let Some(there) = state.known_mut()
                    && place.refused
                    && !there.own.is_empty()
                    && there.place.as_ref().is_none_or(|before| !before.refused)
                {
                    // Whether ours stay depends on who else is there now.
                    there.readings.read_anew();
                }
                if let Some(namespace_id) = &service.namespace_id {
                    self.directory.remember(namespace_id, &target.service, known);
                }
                self.resolved(target, service.id, place);
                let Some(state) = self.targets.get_mut(target) else { return };
                let problem = refused.map(|message| (Reason::ForeignOwner, message));
                if problem.is_some() {
                    if state.attempts.problem != problem {
                        tracing::info!(%target, ?owner, "the Cloud Map service belongs to somebody else");
                    }
                    state.attempts.problem = problem;
                }
                if let Some(there) = state.known_mut() {
                    there.owner = Some(owner);
                }
                if is_refused {
                    self.wake_at(target, at);
                }
            }
            Err(error) if error.kind == ErrorKind::NotFound => self.lost(target, &error, now),
            Err(error) if state.is_look_due(now) => self.keep_place(target, &error, now),
            Err(error) => {
                let at = state.attempts.fail(&error, now);
                self.wake_at(target, at);
            }
        }
        self.wake_target(target, now);
    }

    pub(super) fn service_deleted(&mut self, target: &Target, result: Result<(), Error>, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.busy = false;
        // AWS may notice only after a moment that ours are gone. What has instances of others stays.
        let stays =
            |error: &Error| error.kind == ErrorKind::InUse && state.known().is_some_and(|there| there.foreign > 0);
        let deleted = result.is_ok();
        if let Some(error) = result.err().filter(|error| !stays(error)) {
            let at = state.attempts.fail(&error, now);
            if state.attempts.failures < DELETE_ATTEMPTS {
                return self.wake_at(target, at);
            }
            tracing::warn!(%target, %error, "cannot delete an empty service");
        }
        let remade = self.targets.get(target).is_some_and(|state| state.is_being_remade());
        if remade && deleted {
            self.directory.delisted(target);
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
        let service_id = self.targets.get(target)?.service_id().cloned();
        if let Some(namespace) = self.directory.namespace(&target.namespace) {
            let (namespace_id, kind) = (namespace.id.clone(), namespace.kind);
            let listing = self.directory.services(&namespace_id);
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
        let Some(place) = self.targets.get_mut(target).and_then(|state| state.place_mut()) else { return };
        tracing::info!(%target, %error, "cannot look again at the service; what is known of it counts");
        (place.since, place.doubtful) = (now, false);
        let at = place.again_at();
        self.wake_at(target, at);
    }

    /// The service of a target may have changed. It is looked at again, with a recent listing.
    fn look_up(&mut self, target: &Target, now: Instant) {
        let Some(state) = self.targets.get_mut(target) else { return };
        state.find_again();
        let listing = self.directory.listing_of(target);
        if let Some(listing) = listing.filter(|listing| listing.fresh(LISTING_AGE, now).is_none()) {
            listing.forget(now);
        }
    }

    /// The listing of the target's namespace is out of date.
    pub(super) fn forget_services(&mut self, target: &Target, now: Instant) {
        if let Some(listing) = self.directory.listing_of(target) {
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
