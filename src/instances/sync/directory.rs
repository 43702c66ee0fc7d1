//! The Cloud Map namespaces and services, by the listings that targets share.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use super::{known::Place, listing::Listing};
use crate::{
    attributes::ServiceTraits,
    ownership::{self, Control, ServiceOwner, service_owner},
};
use base::steps;
use cloudmap::{DnsRecord, Namespace, NamespaceKind, Service};
use model::Target;

/// The listings, and the creations of namespaces.
#[derive(Debug, Default)]
pub(super) struct Directory {
    pub(super) namespaces: Listing<BTreeMap<Arc<str>, Namespace>>,
    /// By namespace id.
    services: BTreeMap<Arc<str>, Listing<Services>>,
    /// By the name of the namespace.
    creating: BTreeMap<Arc<str>, Listing<()>>,
    /// The active targets by the name that they have in a DNS namespace.
    pub(super) namesakes: Namesakes,
}

impl Directory {
    /// The namespaces by name; `None` before they were listed.
    pub(super) fn listed(&self) -> Option<&BTreeMap<Arc<str>, Namespace>> {
        self.namespaces.rows.as_ref().map(|(_, rows)| rows)
    }

    /// The namespace with this name, if the listing has one.
    pub(super) fn namespace(&self, name: &Arc<str>) -> Option<&Namespace> {
        self.listed()?.get(name)
    }

    /// The services of a namespace.
    pub(super) fn services(&mut self, namespace_id: &Arc<str>) -> &mut Listing<Services> {
        self.services.entry(Arc::clone(namespace_id)).or_default()
    }

    /// The services in the namespace of a target; `None` if they were not listed.
    pub(super) fn services_of(&self, target: &Target) -> Option<&Services> {
        let namespace = self.namespace(&target.namespace)?;
        self.services.get(&namespace.id)?.rows.as_ref().map(|(_, services)| services)
    }

    /// The calls that create a namespace.
    pub(super) fn creating(&mut self, name: &Arc<str>) -> &mut Listing<()> {
        self.creating.entry(Arc::clone(name)).or_default()
    }

    /// A namespace was created; `None` if only a listing shows it.
    pub(super) fn created(&mut self, name: &Arc<str>, made: Option<Namespace>, now: Instant) {
        self.creating.remove(name);
        match made.zip(self.namespaces.rows.as_mut()) {
            Some((namespace, (_, rows))) => drop(rows.insert(Arc::clone(name), namespace)),
            None => self.namespaces.forget(now),
        }
    }

    /// The name of the namespace with this id.
    pub(super) fn name_of(&self, id: &Arc<str>) -> Option<Arc<str>> {
        self.listed()?.values().find(|namespace| namespace.id == *id).map(|namespace| Arc::clone(&namespace.name))
    }

    /// Forgets what is known of a namespace in which no target is.
    pub(super) fn forget(&mut self, name: &Arc<str>) {
        if self.creating.get(name).is_some_and(|listing| !listing.is_loading()) {
            self.creating.remove(name);
        }
        if let Some(id) = self.namespace(name).map(|namespace| Arc::clone(&namespace.id))
            && self.services.get(&id).is_some_and(|listing| !listing.is_loading())
        {
            self.services.remove(&id);
        }
    }

    /// Adds a service to a listing.
    pub(super) fn remember(&mut self, namespace_id: &Arc<str>, service: &Arc<str>, known: Listed) {
        if let Some((_, services)) = self.services.get_mut(namespace_id).and_then(|listing| listing.rows.as_mut()) {
            services.insert(Arc::clone(service), known);
        }
    }

    /// A service that is made again was deleted, so no listing is needed to create it.
    pub(super) fn delisted(&mut self, target: &Target) {
        let Some(namespace) = self.namespace(&target.namespace) else { return };
        debug_assert!(namespace.kind != NamespaceKind::Http, "only services with records are made again");
        let id = Arc::clone(&namespace.id);
        if let Some((_, services)) = self.services.get_mut(&id).and_then(|listing| listing.rows.as_mut()) {
            services.remove(&target.service);
        }
    }

    /// The listing of the services in a target's namespace.
    pub(super) fn listing_of(&mut self, target: &Target) -> Option<&mut Listing<Services>> {
        let id = Arc::clone(&self.namespace(&target.namespace)?.id);
        self.services.get_mut(&id)
    }

    /// Whether a target may have this service, by the listings that are known.
    pub(super) fn may_have(&self, target: &Target, service_id: &Arc<str>) -> bool {
        let Some(namespaces) = self.listed() else { return true };
        let Some(namespace) = namespaces.get(&target.namespace) else { return false };
        self.services_of(target).is_none_or(|services| {
            services.get(&target.service, namespace.kind).is_some_and(|listed| listed.id == *service_id)
        })
    }

    /// Number of entries in memory, beside the namespaces.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        let listed = self.services.values().filter_map(|listing| listing.rows.as_ref());
        let listed: usize = listed.map(|(_, rows)| 1 + rows.by_name.len()).sum();
        let namesakes: usize = self.namesakes.0.values().map(BTreeSet::len).sum();
        namesakes + self.services.len() + listed + self.creating.len()
    }
}

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

    /// Whether a service has exactly this name.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    fn insert(&mut self, name: Arc<str>, listed: Listed) {
        let first = self.folded.entry(name.to_ascii_lowercase().into()).or_insert_with(|| Arc::clone(&name));
        if name < *first {
            *first = Arc::clone(&name);
        }
        self.by_name.insert(name, listed);
    }

    /// Removes the services of this name, and of those that are one with it in DNS.
    fn remove(&mut self, name: &str) {
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
    pub(super) fn of(&self, target: &Target) -> impl Iterator<Item = &Target> {
        self.0.get(&Self::key(target)).into_iter().flatten().inspect(|_| steps::count())
    }
}

/// A service in a listing, reduced to what is needed.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) id: Arc<str>,
    pub(super) traits: ServiceTraits,
    pub(super) records: Vec<DnsRecord>,
    pub(super) owner: ServiceOwner,
    /// Whether it looks like the services that we create without records, whose owner a listing does not show.
    pub(super) unmarked: bool,
}

impl Listed {
    /// As far as a listing proves whose it is.
    pub(super) fn unproven(&self, now: Instant) -> Place {
        let ours = self.owner == ServiceOwner::Ours;
        let control = if ours { Control::Ours } else { Control::Others };
        Place { unproven: !ours, ..self.place(control, now) }
    }

    /// As far as `control` says whose it is.
    pub(super) fn place(&self, control: Control, now: Instant) -> Place {
        let Self { id: _, traits, records, owner: _, unmarked: _ } = self.clone();
        let (unproven, adopt, refused, doubtful) = Default::default();
        Place { traits, records, control, unproven, adopt, refused, since: now, doubtful }
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
pub(super) fn by_name(namespaces: &[Namespace]) -> BTreeMap<Arc<str>, Namespace> {
    let mut chosen = BTreeMap::<Arc<str>, Namespace>::new();
    for namespace in namespaces {
        match chosen.get(&namespace.name) {
            Some(other) if other.precedence() <= namespace.precedence() => {}
            _ => {
                chosen.insert(namespace.name.clone(), namespace.clone());
            }
        }
    }
    chosen
}
