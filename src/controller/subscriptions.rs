//! Subscriptions of Kubernetes namespaces to Cloud Map namespaces, and what was discovered there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::core::v1::ObjectReference;

use api::{events::EventReason, names::ANNOTATION_IMPORT_FROM};
use cluster::{
    events::{self, EventRecord},
    objects::Namespace,
};
use discovery::{Backend, Discovered, ImportFrom, InvalidImportFrom, NamespaceFound, Picture, Rejected, Trouble};
use import::is_system;
use model::ServiceKey;

/// Which namespaces import, and from where.
#[derive(Debug, Clone, Default)]
pub struct ImportRules {
    /// For namespaces without the annotation.
    pub default: ImportFrom,
    /// The Kubernetes namespace of this controller.
    pub own: Option<Arc<str>>,
    /// The closed namespaces (`--closed-namespaces`); `*` stands for any text.
    pub closed: Arc<[String]>,
    /// The name of the registry that is this cluster's home, if registries have names.
    pub home: Option<Arc<str>>,
    /// The names of all registries, if they have names.
    pub registries: Arc<[Arc<str>]>,
}

/// What is known about subscriptions.
#[derive(Clone)]
pub(super) struct Subscriptions {
    rules: ImportRules,
    /// Why nothing can be imported, whatever the namespaces request.
    barred: Option<String>,
    namespaces: BTreeMap<Arc<str>, Importing>,
    found: Arc<Discovered>,
    /// For names that are not completely read: all addresses that were read.
    seen: BTreeMap<ServiceKey, BTreeSet<IpAddr>>,
    /// Problems with Cloud Map namespaces that were reported on Kubernetes namespaces.
    said: BTreeMap<(Arc<str>, Arc<str>), Trouble>,
}

/// A Kubernetes namespace that imports.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Importing {
    uid: Box<str>,
    /// Cloud Map namespaces, by name, id or ARN, some of them with their registry.
    from: Vec<Arc<str>>,
    /// Whether an annotation names them, so that a missing one is worth an Event.
    named: bool,
    /// `false` if the annotation is invalid and its previous value is not known. What was imported because of it stays.
    known: bool,
}

/// The consequences of a change.
#[derive(Debug, Default)]
pub(super) struct Consequences {
    /// Names to reconcile.
    pub(super) names: BTreeSet<ServiceKey>,
    /// Kubernetes namespaces of which all names must be reconciled.
    pub(super) namespaces: BTreeSet<Arc<str>>,
    pub(super) notes: Vec<EventRecord>,
    /// Names with instances that cannot be endpoints, if that is new.
    pub(super) rejected: Vec<(ServiceKey, Vec<Rejected>)>,
}

impl Subscriptions {
    pub(super) fn new(rules: ImportRules) -> Self {
        Self {
            rules,
            barred: None,
            namespaces: BTreeMap::new(),
            found: Arc::default(),
            seen: BTreeMap::new(),
            said: BTreeMap::new(),
        }
    }

    /// Whether nothing may be imported under a name.
    pub(super) fn refuses(&self, key: &ServiceKey) -> bool {
        self.rules.refuse(key)
    }

    /// A Kubernetes namespace appeared, changed or disappeared.
    pub(super) fn namespace_changed(&mut self, name: &Arc<str>, namespace: Option<&Namespace>) -> Consequences {
        let mut consequences = Consequences::default();
        let importing = namespace.filter(|namespace| !namespace.terminating).and_then(|namespace| {
            let (uid, named) = (namespace.uid.clone(), namespace.import_from.is_some());
            match self.rules.of(namespace) {
                Ok(from) => (!from.is_empty()).then_some(Importing { uid, from, named, known: true }),
                Err(error) => {
                    let text = format!("What is imported from Cloud Map stays as it was: {error}.");
                    consequences.notes.push(note(name, &uid, EventReason::InvalidAnnotation, text));
                    let before = self.namespaces.get(name).cloned();
                    let unknown = Importing { uid: uid.clone(), from: Vec::new(), named, known: false };
                    Some(Importing { uid, ..before.unwrap_or(unknown) })
                }
            }
        });
        if self.namespaces.get(name) == importing.as_ref() {
            return consequences;
        }
        match importing {
            Some(importing) => {
                consequences.notes.extend(self.in_vain(name, &importing));
                let before = self.namespaces.get(name).map(|before| &*before.from).unwrap_or_default();
                for from in importing.from.iter().filter(|from| !before.contains(from)) {
                    // Other namespaces may already import from it.
                    if let Some(found) = self.found.namespaces.get(from) {
                        consequences.add(name, &importing.uid, from, &NamespaceFound::default(), found);
                    }
                }
                self.namespaces.insert(name.clone(), importing)
            }
            None => self.namespaces.remove(name),
        };
        self.seen.retain(|key, _| key.namespace != *name);
        consequences.namespaces.insert(name.clone());
        consequences.notes.extend(self.troubles());
        consequences
    }

    /// Sets why nothing can be imported; `None` if importing is possible.
    pub(super) fn bar(&mut self, why: Option<String>) -> Consequences {
        if self.barred == why {
            return Consequences::default();
        }
        self.barred = why;
        let notes = self.namespaces.iter().filter_map(|(name, importing)| self.in_vain(name, importing)).collect();
        Consequences { notes, ..Consequences::default() }
    }

    /// The Event that a namespace requests imports that are not possible. With the flag, all namespaces do, so it is
    /// only for annotations.
    fn in_vain(&self, name: &str, importing: &Importing) -> Option<EventRecord> {
        let why = self.barred.as_ref().filter(|_| importing.named)?;
        let text = format!("Nothing is read from Cloud Map for the imports of this namespace: {why}");
        Some(note(name, &importing.uid, EventReason::NoClusterSet, text))
    }

    /// The Cloud Map namespaces to read.
    pub(super) fn subscribed(&self) -> BTreeSet<Arc<str>> {
        if self.barred.is_some() {
            return BTreeSet::new();
        }
        self.namespaces.values().flat_map(|importing| &importing.from).cloned().collect()
    }

    /// Takes in what was discovered.
    pub(super) fn adopt(&mut self, found: Arc<Discovered>) -> Consequences {
        let before = std::mem::replace(&mut self.found, found);
        let mut consequences = Consequences::default();
        let none = Arc::new(NamespaceFound::default());
        for (namespace, importing) in &self.namespaces {
            for from in &importing.from {
                let old = before.namespaces.get(from).unwrap_or(&none);
                let new = self.found.namespaces.get(from).unwrap_or(&none);
                if Arc::ptr_eq(old, new) {
                    continue;
                }
                if !self.found.namespaces.contains_key(from) {
                    // It is no longer read, so the absence of an address means nothing.
                    self.seen.retain(|key, _| key.namespace != *namespace);
                }
                if (old.listed, old.is_absent()) != (new.listed, new.is_absent()) {
                    consequences.namespaces.insert(namespace.clone());
                }
                consequences.add(namespace, &importing.uid, from, old, new);
            }
        }
        consequences.notes.extend(self.troubles());
        consequences
    }

    /// Events about Cloud Map namespaces that cannot be read, when that changes.
    fn troubles(&mut self) -> Vec<EventRecord> {
        let mut notes = Vec::new();
        let mut now = BTreeMap::new();
        for (namespace, importing) in &self.namespaces {
            for from in &importing.from {
                let Some(found) = self.found.namespaces.get(from) else { continue };
                let Some(trouble) = found.trouble.clone() else { continue };
                let (reason, text) = match &trouble {
                    // With the flag, most namespaces have no counterpart.
                    Trouble::NotFound if !importing.named => continue,
                    Trouble::NotFound => {
                        let meanwhile = if found.is_absent() && importing.from.len() > 1 {
                            "it counts as empty as soon as another namespace of the annotation was read"
                        } else {
                            "until then, what was imported from it stays, unless the namespace was deleted"
                        };
                        let missing = self.rules.missing(from);
                        let text = format!("{missing}. Create it, or correct the annotation; {meanwhile}.");
                        (EventReason::NoNamespace, text)
                    }
                    Trouble::Failed(error) => (EventReason::ImportFailed, unreadable(from, error)),
                };
                let place = (namespace.clone(), from.clone());
                if self.said.get(&place) != Some(&trouble) {
                    notes.push(note(namespace, &importing.uid, reason, text));
                }
                now.insert(place, trouble);
            }
        }
        self.said = now;
        notes
    }

    /// What is known about a name.
    pub(super) fn picture(&mut self, key: &ServiceKey) -> Picture {
        let mut picture = Picture::nothing();
        let Some(importing) = self.namespaces.get(&key.namespace) else { return picture };
        picture.complete = importing.known;
        let found = |from: &Arc<str>| self.found.namespaces.get(from);
        // If none exists, the region or the account may be wrong.
        let is_place_right = importing.from.iter().filter_map(found).any(|namespace| namespace.listed);
        for from in &importing.from {
            let Some(namespace) = found(from) else {
                picture.complete = false;
                continue;
            };
            match namespace.services.get(&key.name) {
                None => picture.complete &= namespace.listed || namespace.is_absent() && is_place_right,
                Some(service) => {
                    picture.exists = true;
                    match &service.reading {
                        Some(reading) => picture.backends.extend(reading.backends().cloned()),
                        None => picture.complete = false,
                    }
                }
            }
        }
        picture.backends.sort();
        if picture.complete {
            self.seen.remove(key);
        } else if self.seen.contains_key(key) || !picture.backends.is_empty() {
            let seen = self.seen.entry(key.clone()).or_default();
            seen.extend(picture.backends.iter().flat_map(Backend::addresses));
            picture.seen.clone_from(seen);
        }
        picture
    }

    /// Names with instances that have one of these addresses.
    pub(super) fn names_with(&self, addresses: &BTreeSet<IpAddr>) -> BTreeSet<ServiceKey> {
        let mut names = BTreeSet::new();
        for (namespace, importing) in &self.namespaces {
            for found in importing.from.iter().filter_map(|from| self.found.namespaces.get(from)) {
                let there = found.services_with(addresses);
                names.extend(there.map(|name| ServiceKey::new(namespace.clone(), name.clone())));
            }
        }
        names
    }

    /// All discovered names.
    pub(super) fn names(&self) -> impl Iterator<Item = ServiceKey> {
        self.namespaces.iter().flat_map(|(namespace, importing)| {
            let found = importing.from.iter().filter_map(|from| self.found.namespaces.get(from));
            let labels = found.flat_map(|found| found.services.keys());
            labels.map(|label| ServiceKey::new(namespace.clone(), label.clone()))
        })
    }
}

impl Consequences {
    /// Adds the news about the Cloud Map namespace `from`, for the Kubernetes namespace `namespace` with the uid `uid`.
    fn add(&mut self, namespace: &Arc<str>, uid: &str, from: &str, old: &NamespaceFound, new: &NamespaceFound) {
        let changed = changed_services(old, new);
        let failing = failing(from, old, new, &changed);
        self.notes.extend(failing.map(|text| note(namespace, uid, EventReason::ImportFailed, text)));
        for label in changed {
            let key = ServiceKey::new(namespace.clone(), label.clone());
            let rejected = |found: &NamespaceFound| {
                found.services.get(&label).and_then(|service| Some(service.reading.as_ref()?.rejected()))
            };
            let now = rejected(new).unwrap_or_default();
            if !now.is_empty() && now != rejected(old).unwrap_or_default() {
                self.rejected.push((key.clone(), now));
            }
            self.names.insert(key);
        }
    }
}

impl ImportRules {
    /// Whether nothing may ever be imported under a name, no matter who exports it.
    pub(super) fn refuse(&self, key: &ServiceKey) -> bool {
        is_system(key, self.own.as_deref())
    }

    /// The Cloud Map namespaces of a Kubernetes namespace, without ledgers.
    ///
    /// # Errors
    /// The annotation is invalid, or names a ledger.
    fn of(&self, namespace: &Namespace) -> Result<Vec<Arc<str>>, String> {
        let Some(annotation) = &namespace.import_from else {
            let mut from = self.default.in_namespace(&namespace.name);
            from.retain(|name| !self.is_ledger(name));
            return Ok(from);
        };
        let invalid = |error: InvalidImportFrom| error.to_string();
        let from = annotation.parse::<ImportFrom>().map_err(invalid)?.in_namespace(&namespace.name);
        match from.iter().find(|name| self.is_ledger(name)) {
            Some(name) => Err(format!(
                "{ANNOTATION_IMPORT_FROM} has {name:?}, the ledger of a ClusterSet, from which nothing is imported; remove it"
            )),
            None => Ok(from),
        }
    }

    /// The registry that a subscription names, and the namespace there.
    fn in_registry<'a>(&self, from: &'a str) -> Option<(&'a str, &'a str)> {
        discovery::in_registry(from, |name| self.registries.iter().any(|registry| **registry == *name))
    }

    fn is_ledger(&self, from: &str) -> bool {
        ledger::is_ledger(self.in_registry(from).map_or(from, |(_, namespace)| namespace))
    }

    /// What is said of a namespace that does not exist.
    fn missing(&self, from: &str) -> String {
        if let Some((registry, namespace)) = self.in_registry(from) {
            return format!("There is no Cloud Map namespace {namespace} in the registry {registry}");
        }
        let here = format!("There is no Cloud Map namespace {from} in this account and region");
        if self.registries.is_empty() || !from.contains('/') {
            return here;
        }
        format!("{here}, and what precedes the slash is none of the registries {}", self.registries.join(", "))
    }
}

/// The text about a Cloud Map namespace that AWS does not let us read.
pub(super) fn unreadable(from: &str, error: &str) -> String {
    format!("Cloud Map namespace {from} cannot be read: {error}. What was imported from it stays.")
}

/// The Event about instances of a name that cannot be endpoints. It is the same one while they come and go, so that it is not
/// created anew with each task.
pub(super) fn rejection(key: &ServiceKey, rejected: &[Rejected], regarding: ObjectReference) -> Option<EventRecord> {
    if rejected.is_empty() {
        return None;
    }
    let reasons: BTreeSet<_> = rejected.iter().map(|instance| instance.why).collect();
    let reasons: Vec<_> = reasons.iter().map(|why| format!("that {why}")).collect();
    let text = format!(
        "Left out each instance of Cloud Map service {} {}: it cannot be an endpoint.",
        key.name,
        reasons.join(", or ")
    );
    Some(EventRecord { regarding, reason: EventReason::InstanceSkipped, action: "Import", text })
}

/// The text about services of a Cloud Map namespace that cannot be read any more, if there are any.
pub(super) fn failing(
    from: &str,
    old: &NamespaceFound,
    new: &NamespaceFound,
    changed: &BTreeSet<Arc<str>>,
) -> Option<String> {
    let error =
        |found: &NamespaceFound, label: &Arc<str>| found.services.get(label).and_then(|found| found.error.clone());
    let mut failing = changed.iter().filter(|label| error(old, label).is_none() && error(new, label).is_some());
    let first = failing.next()?;
    let why = error(new, first)?;
    let count = 1 + failing.count();
    Some(format!(
        "{count} service(s) of Cloud Map namespace {from} cannot be read, such as {first}: {why}. What was read before \
         holds."
    ))
}

pub(super) fn changed_services(old: &NamespaceFound, new: &NamespaceFound) -> BTreeSet<Arc<str>> {
    let differ = |a: &NamespaceFound, b: &NamespaceFound| {
        let differs =
            |label: &Arc<str>, service| b.services.get(label).is_none_or(|there| !Arc::ptr_eq(there, service));
        a.services
            .iter()
            .filter(|(label, service)| differs(label, service))
            .map(|(label, _)| label.clone())
            .collect::<Vec<_>>()
    };
    differ(old, new).into_iter().chain(differ(new, old)).collect()
}

pub(super) fn note(namespace: &str, uid: &str, reason: EventReason, text: String) -> EventRecord {
    let regarding = events::namespace(namespace, uid);
    EventRecord { regarding, reason, action: "Import", text }
}

#[cfg(test)]
#[path = "subscriptions_tests.rs"]
mod tests;
