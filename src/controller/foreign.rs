//! What others registered in Cloud Map, for the Kubernetes namespaces that import it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    api::{events::EventReason, names::ANNOTATION_IMPORT_FROM},
    cluster::{
        events::{self, Note},
        objects::Namespace,
    },
    foreign::{Backend, Found, ImportFrom, InvalidImportFrom, NamespaceFound, Picture, Rejected, Trouble},
    ledger,
    model::ServiceKey,
};

/// Which namespaces import from where.
#[derive(Debug, Clone, Default)]
pub struct ImportRules {
    /// For namespaces without the annotation.
    pub default: ImportFrom,
    /// The Kubernetes namespace of this controller.
    pub own: Option<Arc<str>>,
}

/// What is known.
pub(super) struct Foreign {
    rules: ImportRules,
    /// Why nothing can be imported, whatever the namespaces ask for.
    barred: Option<String>,
    namespaces: BTreeMap<Arc<str>, Importing>,
    found: Arc<Found>,
    /// For names that are not completely read: all addresses that were.
    seen: BTreeMap<ServiceKey, BTreeSet<IpAddr>>,
    /// What was said on the Kubernetes namespaces about Cloud Map namespaces.
    said: BTreeMap<(Arc<str>, Arc<str>), Trouble>,
}

/// A Kubernetes namespace that imports.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Importing {
    uid: Box<str>,
    /// Cloud Map namespaces, by name or id.
    from: Vec<Arc<str>>,
    /// An annotation names them: one that is missing is worth an Event.
    named: bool,
    /// `false`: the annotation cannot be understood, nor is it known what it was before. What was imported by it stays.
    known: bool,
}

/// What a change means.
#[derive(Debug, Default)]
pub(super) struct Consequences {
    /// Names to look at again.
    pub(super) names: BTreeSet<ServiceKey>,
    /// Kubernetes namespaces of which all names are to be looked at again.
    pub(super) namespaces: BTreeSet<Arc<str>>,
    pub(super) notes: Vec<Note>,
    /// Names with instances that cannot be endpoints, where that is news.
    pub(super) rejected: Vec<(ServiceKey, Vec<Rejected>)>,
}

impl Foreign {
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

    /// A Kubernetes namespace came, changed, or went.
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
                    // Others may import from it already.
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

    /// Nothing can be imported any more, for this reason; `None`: it can.
    pub(super) fn bar(&mut self, why: Option<String>) -> Consequences {
        if self.barred == why {
            return Consequences::default();
        }
        self.barred = why;
        let notes = self.namespaces.iter().filter_map(|(name, importing)| self.in_vain(name, importing)).collect();
        Consequences { notes, ..Consequences::default() }
    }

    /// The note that a namespace asks for what cannot be. By the flag all do.
    fn in_vain(&self, name: &str, importing: &Importing) -> Option<Note> {
        let why = self.barred.as_ref().filter(|_| importing.named)?;
        let text = format!("Nothing is read from Cloud Map for the imports of this namespace: {why}");
        Some(note(name, &importing.uid, EventReason::NoClusterSet, text))
    }

    /// The Cloud Map namespaces that are to be read.
    pub(super) fn sought(&self) -> BTreeSet<Arc<str>> {
        if self.barred.is_some() {
            return BTreeSet::new();
        }
        self.namespaces.values().flat_map(|importing| &importing.from).cloned().collect()
    }

    /// Takes over what was found.
    pub(super) fn adopt(&mut self, found: Arc<Found>) -> Consequences {
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
                    // It is not read any more: that an address is not there says nothing.
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

    /// Notes about Cloud Map namespaces that cannot be read, on transitions.
    fn troubles(&mut self) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut now = BTreeMap::new();
        for (namespace, importing) in &self.namespaces {
            for from in &importing.from {
                let Some(found) = self.found.namespaces.get(from) else { continue };
                let Some(trouble) = found.trouble.clone() else { continue };
                let (reason, text) = match &trouble {
                    // By the flag, most namespaces have no counterpart.
                    Trouble::NotFound if !importing.named => continue,
                    Trouble::NotFound => {
                        let meanwhile = if found.is_absent() && importing.from.len() > 1 {
                            "it counts as empty as soon as another one that the annotation names was read"
                        } else {
                            "what was imported from it stays meanwhile"
                        };
                        let text = format!(
                            "There is no Cloud Map namespace {from} in this account and region. Create it, or correct the \
                             annotation; {meanwhile}."
                        );
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

    /// What is known of a name.
    pub(super) fn picture(&mut self, key: &ServiceKey) -> Picture {
        let mut picture = Picture::nothing();
        let Some(importing) = self.namespaces.get(&key.namespace) else { return picture };
        picture.complete = importing.known;
        let found = |from: &Arc<str>| self.found.namespaces.get(from);
        // Where none is there, the region or the account may be the wrong one.
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

    /// All names that others registered.
    pub(super) fn names(&self) -> impl Iterator<Item = ServiceKey> {
        self.namespaces.iter().flat_map(|(namespace, importing)| {
            let found = importing.from.iter().filter_map(|from| self.found.namespaces.get(from));
            let labels = found.flat_map(|found| found.services.keys());
            labels.map(|label| ServiceKey::new(namespace.clone(), label.clone()))
        })
    }
}

impl Consequences {
    /// Adds what is new in the Cloud Map namespace `from`, for the Kubernetes namespace `namespace`, which has the UID `uid`.
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
    /// Whether nothing may be imported under a name, whoever exports it: in the namespaces of Kubernetes itself, whose names
    /// begin with `kube-`, and of this controller, another cluster must not make Services, nor one that stands for the API
    /// server (`default/kubernetes`).
    pub(super) fn refuse(&self, key: &ServiceKey) -> bool {
        key.namespace.starts_with("kube-")
            || Some(&key.namespace) == self.own.as_ref()
            || (&*key.namespace, &*key.name) == ("default", "kubernetes")
    }

    /// The Cloud Map namespaces of a Kubernetes namespace, ledgers left out.
    ///
    /// # Errors
    /// The annotation cannot be understood, or names a ledger.
    fn of(&self, namespace: &Namespace) -> Result<Vec<Arc<str>>, String> {
        let Some(annotation) = &namespace.import_from else {
            let mut from = self.default.in_namespace(&namespace.name);
            from.retain(|name| !ledger::is_ledger(name));
            return Ok(from);
        };
        let invalid = |error: InvalidImportFrom| error.to_string();
        let from = annotation.parse::<ImportFrom>().map_err(invalid)?.in_namespace(&namespace.name);
        match from.iter().find(|name| ledger::is_ledger(name)) {
            Some(name) => Err(format!(
                "{ANNOTATION_IMPORT_FROM} has {name:?}, the ledger of a ClusterSet, from which nothing is imported; remove it"
            )),
            None => Ok(from),
        }
    }
}

/// What to say of a Cloud Map namespace that AWS does not let us read.
pub(super) fn unreadable(from: &str, error: &str) -> String {
    format!("Cloud Map namespace {from} cannot be read: {error}. What was imported from it stays.")
}

/// The note about instances of a name that cannot be endpoints.
pub(super) fn rejection(key: &ServiceKey, rejected: &[Rejected], regarding: ObjectReference) -> Option<Note> {
    let first = rejected.first()?;
    let text = format!(
        "Left out {} instance(s) of Cloud Map service {} that cannot be endpoints, such as {}: it {}.",
        rejected.len(),
        key.name,
        first.instance,
        first.why
    );
    Some(Note { regarding, reason: EventReason::InstanceSkipped, action: "Import", text })
}

/// What to say of services of a Cloud Map namespace that cannot be read any more, if there are any.
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

pub(super) fn note(namespace: &str, uid: &str, reason: EventReason, text: String) -> Note {
    let regarding = events::namespace(namespace, uid);
    Note { regarding, reason, action: "Import", text }
}

#[cfg(test)]
#[path = "foreign_tests.rs"]
mod tests;
