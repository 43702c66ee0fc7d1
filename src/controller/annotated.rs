//! The annotated Services of this cluster: what they want, what is registered for them, and what is said on them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use tokio::sync::mpsc;
use tracing::info;

use super::{Asks, Knowledge, Membership, Targets, claims::Standing};
use crate::{
    annotations::{
        Directory, Planned, Refusal, Settings, Wanted, Zones,
        news::{deleted, news},
        plan, request,
    },
    cli::Instances,
    cluster::{
        events::{self, Note, Severity},
        objects::Service,
    },
    instances::sync::{Ids, Outcome, TargetDesired, TargetStatus},
    model::{ClaimOwner, Endpoint, ServiceKey, Target},
};

pub(super) struct Annotated {
    settings: Settings,
    targets: Targets,
    /// `None` where nothing is registered anyway.
    directory: Option<Directory>,
    services: HashMap<ServiceKey, Object>,
    /// Who wants a target, the losers included.
    wanting: BTreeMap<Target, BTreeSet<ServiceKey>>,
    /// What was said last of a target's instances.
    said: HashMap<Target, Ids>,
    /// Why a target is refused, or whose it is, as said last.
    trouble: HashMap<(ServiceKey, Target), String>,
    /// Uids of Services that asked for something once: `kubectl describe` finds Events by them.
    departed: HashMap<ServiceKey, Box<str>>,
    notes: mpsc::UnboundedSender<Note>,
}

#[derive(Debug)]
struct Object {
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

/// What a change of a Service means.
pub(super) struct Change {
    /// As [`Knowledge::annotate`] takes it.
    pub(super) wanted: Option<Asks>,
    /// Targets whose instances may be others now.
    pub(super) touched: BTreeSet<Target>,
}

impl Annotated {
    pub(super) fn new(
        settings: Settings,
        targets: Targets,
        directory: Option<Directory>,
        notes: mpsc::UnboundedSender<Note>,
    ) -> Self {
        let (services, wanting, said, trouble, departed) = Default::default();
        Self { settings, targets, directory, services, wanting, said, trouble, departed, notes }
    }

    /// The namespaces that take host names.
    pub(super) fn zones(&self) -> Option<tokio::sync::watch::Receiver<Option<Arc<Zones>>>> {
        self.directory.as_ref().map(Directory::zones)
    }

    /// All annotated Services.
    pub(super) fn keys(&self) -> Vec<ServiceKey> {
        self.services.keys().cloned().collect()
    }

    /// Whether a Service asks for anything, so that its endpoints matter.
    pub(super) fn concerns(&self, key: &ServiceKey) -> bool {
        self.services.contains_key(key)
    }

    /// Plans a Service again. `None`: it was nothing to us, and is nothing.
    pub(super) fn replan(
        &mut self,
        key: &ServiceKey,
        service: Option<&Service>,
        endpoints: impl FnOnce() -> Vec<Endpoint>,
    ) -> Option<Change> {
        let directory = self.directory.as_ref()?;
        let service = service.filter(|service| !service.deleting && !service.managed);
        let asks = service.and_then(|service| Some((service, request::Request::read(&service.annotations)?)));
        let zones = directory.zones().borrow().clone();
        let planned = asks.and_then(|(service, _)| {
            if self.targets.policy == Instances::None {
                let message = "instances are switched off by --instances=none".to_owned();
                let refusals = vec![Refusal { reason: "Disabled", message }];
                return Some(Object {
                    uid: service.uid.clone(),
                    planned: Planned { wanted: Some(BTreeMap::new()), refusals },
                });
            }
            let source = self.targets.source(key, &service.ports);
            let endpoints = if service.headless { endpoints() } else { Vec::new() };
            let planned = plan(service, &source, &endpoints, zones.as_deref(), &self.settings)?;
            Some(Object { uid: service.uid.clone(), planned })
        });
        let before = if let Some(object) = planned {
            self.complain(key, &object);
            self.departed.remove(key);
            self.services.insert(key.clone(), object)
        } else {
            let gone = self.services.remove(key)?;
            self.departed.insert(key.clone(), gone.uid.clone());
            Some(gone)
        };
        directory.want(!self.services.is_empty());
        let (before, wanted) = (before.as_ref().map(Object::asks), self.services.get(key).map(Object::asks));
        let (old, new) =
            [&before, &wanted].map(|asks| asks.iter().flat_map(Asks::targets).collect::<BTreeSet<_>>()).into();
        for &target in old.difference(&new) {
            self.trouble.remove(&(key.clone(), target.clone()));
            if let Some(keys) = self.wanting.get_mut(target) {
                keys.remove(key);
                if keys.is_empty() {
                    self.wanting.remove(target);
                }
            }
        }
        for &target in new.difference(&old) {
            self.wanting.entry(target.clone()).or_default().insert(key.clone());
        }
        if self.settings.dry_run {
            self.tell_dry_run(key);
            return None;
        }
        let touched = old.union(&new).map(|&target| target.clone()).collect();
        Some(Change { wanted, touched })
    }

    fn tell_dry_run(&self, key: &ServiceKey) {
        let wanted = self.services.get(key).and_then(|object| object.planned.wanted.as_ref());
        for (target, Wanted { instances, .. }) in wanted.into_iter().flatten() {
            let addresses: Vec<_> = instances.iter().map(crate::instances::InstanceSpec::address).collect();
            info!(service = %key, %target, ?addresses, "dry run: would register");
        }
    }

    /// A registration that is given up is forgotten, and what is registered stays.
    pub(super) fn forgets(&self, knowledge: &Knowledge, target: &Target) -> bool {
        let held = knowledge.exports().and_then(|exports| exports.registrations().get(target));
        let retiring = held.is_some_and(|held| held.owner.is_service() && held.retiring);
        retiring && self.settings.upsert_only && *knowledge.membership() != Membership::Leaving
    }

    /// What should be registered in a target that a Service of this cluster holds. `None`: nothing is to be done there.
    pub(super) fn desired(&self, knowledge: &Knowledge, target: &Target, standing: Standing) -> Option<TargetDesired> {
        if self.settings.dry_run {
            return None;
        }
        let registration = knowledge.exports()?.registrations().get(target)?;
        let object = self.services.get(&registration.owner.key());
        let wanted = match object.map(|object| &object.planned.wanted) {
            // Not known yet: nothing may be concluded.
            Some(None) => return None,
            Some(Some(wanted)) => wanted.get(target),
            None => None,
        };
        let upsert_only = self.settings.upsert_only && *knowledge.membership() != Membership::Leaving;
        let retiring = standing == Standing::Withdraws || standing == Standing::HandsOver && wanted.is_none();
        if retiring {
            return (!upsert_only).then(|| TargetDesired { retiring: true, ..TargetDesired::default() });
        }
        let Wanted { instances, creation, consent } = wanted?.clone();
        let active = match standing {
            Standing::Holds => knowledge.is_on_record(target),
            Standing::HandsOver => true,
            _ => false,
        };
        // A name without endpoints is as good as withdrawn.
        let keep = upsert_only && instances.is_empty();
        Some(TargetDesired { active, retiring: false, keep, consent, creation, instances })
    }

    /// Says on the losers of a target whose it is.
    pub(super) fn tell_conflicts(&mut self, knowledge: &Knowledge, target: &Target) {
        if self.settings.dry_run {
            return;
        }
        for key in self.wanting.get(target).cloned().unwrap_or_default() {
            let own = ClaimOwner::service(&key);
            // An export of the same name registers the same endpoints.
            let winner = knowledge.claimant(target).filter(|(_, owner)| owner.key() != own.key());
            let text = winner.map(|(cluster, owner)| {
                format!(
                    "Cloud Map service {target} is claimed by {owner} of cluster {cluster}, which was first. Change the \
                     annotation to another name, or remove it there; then this Service takes over."
                )
            });
            self.tell(&key, target, "DomainConflict", text);
        }
    }

    /// A target of a Service stands otherwise than before: says what came of it.
    pub(super) fn tell_status(
        &mut self,
        owner: &ClaimOwner,
        target: &Target,
        before: Option<&TargetStatus>,
        status: &TargetStatus,
        present: Option<&Service>,
    ) {
        let key = owner.key();
        if let Some(now) = &status.reached
            && let Some(said) = self.said.get(target).or(status.found.as_ref()).cloned()
            && said != *now
        {
            let wanted = self.services.get(&key).and_then(|object| object.planned.wanted.as_ref()?.get(target));
            let known = wanted.map(|wanted| Arc::clone(&wanted.instances)).unwrap_or_default();
            let news = news(target, &said, now, &known);
            if let Some(text) = news.registered {
                self.note(&key, present, Severity::Normal, "IPRegistered", text);
            }
            match (present, news.removed) {
                (Some(_), Some(text)) => self.note(&key, present, Severity::Normal, "IPRemoved", text),
                (None, removed) if status.own_gone => {
                    let text = deleted(&key, removed.as_deref(), target);
                    self.note(&key, None, Severity::Normal, "ServiceDeleted", text);
                }
                _ => {}
            }
        }
        match &status.reached {
            // What a Service that is gone leaves is said when all of it is gone.
            Some(reached) if !status.own_gone && present.is_some() => {
                self.said.insert(target.clone(), Arc::clone(reached));
            }
            _ if status.own_gone => {
                self.said.remove(target);
            }
            _ => {}
        }
        if before.map(|before| &before.outcome) != Some(&status.outcome) && self.services.contains_key(&key) {
            let (reason, text) = match &status.outcome {
                Outcome::Refused { reason, message } => {
                    (reason.as_str(), Some(format!("Cloud Map service {target}: {message}.")))
                }
                Outcome::Registered { .. } => ("Registered", None),
                Outcome::Pending => return,
            };
            self.tell(&key, target, reason, text);
        }
    }

    /// Says a Warning about a target once, and forgets it when it is over.
    fn tell(&mut self, key: &ServiceKey, target: &Target, reason: &'static str, text: Option<String>) {
        let about = (key.clone(), target.clone());
        match text {
            Some(text) if self.trouble.get(&about) != Some(&text) => {
                self.trouble.insert(about, text.clone());
                self.note(key, None, Severity::Warning, reason, text);
            }
            Some(_) => {}
            None => {
                self.trouble.remove(&about);
            }
        }
    }

    /// Says what cannot be done for a Service, as far as that is news.
    fn complain(&self, key: &ServiceKey, object: &Object) {
        let before = self.services.get(key).map(|before| before.planned.refusals.as_slice()).unwrap_or_default();
        for refusal in object.planned.refusals.iter().filter(|refusal| !before.contains(refusal)) {
            let Refusal { reason, message } = refusal.clone();
            let regarding = events::service(key, &object.uid);
            let text = format!("Not registered as annotated: {message}.");
            let _ = self.notes.send(Note { regarding, severity: Severity::Warning, reason, action: "Register", text });
        }
    }

    fn note(
        &self,
        key: &ServiceKey,
        present: Option<&Service>,
        severity: Severity,
        reason: &'static str,
        text: String,
    ) {
        let known = || self.services.get(key).map(|object| &object.uid).or_else(|| self.departed.get(key));
        let uid = present.map(|service| &service.uid).or_else(known);
        let mut regarding = events::service(key, uid.map_or("", |uid| uid));
        regarding.uid = regarding.uid.filter(|uid| !uid.is_empty());
        // The receiver ends with the controller.
        let _ = self.notes.send(Note { regarding, severity, reason, action: "Register", text });
    }
}
