//! Which derived Services there are, so that the ones with former names are found.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::world::Objects;
use cluster::{
    Change,
    objects::{Service, ServiceImport},
};
use import::{DerivedNaming, DerivedServices, is_shown};
use model::{ServiceKey, ServiceType};

/// The naming of derived Services, and those that have another name.
#[derive(Debug, Clone, Default)]
pub(super) struct Derived {
    naming: DerivedNaming,
    /// By import. Empty, unless the naming has changed, or names are taken or too long.
    others: BTreeMap<ServiceKey, BTreeSet<Arc<str>>>,
}

impl Derived {
    pub(super) fn new(naming: DerivedNaming) -> Self {
        Self { naming, others: BTreeMap::new() }
    }

    /// Takes in a change of a Service. Returns the import to be planned again: a foreign Service has or had the name of
    /// its derived Service, or that Service came and went.
    pub(super) fn update(&mut self, Change { key, old, new }: &Change<Service>) -> Option<ServiceKey> {
        if let Some(import) = old.as_deref().and_then(import_of)
            && let Some(names) = self.others.get_mut(&import)
        {
            names.remove(&key.name);
            if names.is_empty() {
                self.others.remove(&import);
            }
        }
        if let Some(import) = new.as_deref().and_then(import_of)
            && self.naming.name(&import, |_| false).0 != key.name
        {
            self.others.entry(import).or_default().insert(key.name.clone());
        }
        let came_and_went = old.is_none() && new.is_none();
        let is_foreign = came_and_went || old.iter().chain(new).any(|service| !service.managed);
        let import = is_foreign.then(|| self.naming.import_of(&key.name)).flatten()?;
        Some(ServiceKey::new(key.namespace.clone(), import))
    }

    /// The derived Services of an import. If the desired one is not named as the flag says, also why.
    pub(super) fn of(
        &self,
        key: &ServiceKey,
        services: &Objects<Service>,
        import: Option<&ServiceImport>,
    ) -> (DerivedServices, Option<String>) {
        let get = |name: &str| services.get(&ServiceKey::new(key.namespace.clone(), name));
        // Somebody may have taken our labels from the one that clients use by its name.
        let is_its = |service: &Service| import_of(service).as_ref() == Some(key) || is_shown(service, import);
        let is_foreign = |name: &str| get(name).is_some_and(|service| !is_its(&service));
        let (name, why) = self.naming.name(key, is_foreign);
        let others = self.others.get(key).into_iter().flatten().filter(|other| **other != name);
        let former = others.filter_map(|other| get(other)).collect();
        let of_headless = self.naming.serves(ServiceType::Headless);
        (DerivedServices { there: get(&name), name, of_headless, former }, why)
    }
}

/// The import to which a Service of this project belongs.
fn import_of(service: &Service) -> Option<ServiceKey> {
    let name = service.service_import.as_ref().filter(|_| service.managed)?;
    Some(ServiceKey::new(service.key.namespace.clone(), name.clone()))
}
