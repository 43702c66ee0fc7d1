//! Clusters of the ClusterSet that run the AWS Cloud Map MCS Controller (`--aws-mcs-compat`), and their exports, from
//! their instances.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::subscriptions::{Consequences, changed_services, failing, note, unreadable};
use api::events::EventReason;
use cluster::objects::Namespace;
use discovery::{Discovered, NamespaceFound, NoEndpoint, Reading, Rejected, Remains, ServiceFound, Trouble, label};
use model::{ClusterId, Exported, ServiceKey};

/// What is known about these clusters. As in that controller, every Kubernetes namespace imports the Cloud Map
/// namespace with its name.
#[derive(Clone)]
pub(super) struct Peers {
    enabled: bool,
    /// Uids of the namespaces, by name.
    namespaces: BTreeMap<Arc<str>, Box<str>>,
    found: Arc<Discovered>,
    /// Whether unread instances had their time.
    has_read: bool,
}

/// The exports of a name, from instances.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PeerExports {
    pub(super) exports: BTreeMap<ClusterId, Exported>,
    /// Whether everything was read, so that what is missing does not exist.
    pub(super) complete: bool,
}

impl Peers {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, namespaces: BTreeMap::new(), found: Arc::default(), has_read: !enabled }
    }

    /// A Kubernetes namespace appeared, changed or disappeared.
    pub(super) fn namespace_changed(&mut self, name: &Arc<str>, namespace: Option<&Namespace>) {
        match namespace.filter(|namespace| self.enabled && !namespace.terminating && !ledger::is_ledger(name)) {
            Some(namespace) => self.namespaces.insert(name.clone(), namespace.uid.clone()),
            None => self.namespaces.remove(name),
        };
    }

    /// The Cloud Map namespaces to read.
    pub(super) fn subscribed(&self) -> impl Iterator<Item = &Arc<str>> {
        self.namespaces.keys()
    }

    /// Takes in what was discovered.
    pub(super) fn adopt(&mut self, found: Arc<Discovered>) -> Consequences {
        let before = std::mem::replace(&mut self.found, found);
        let mut consequences = Consequences::default();
        let none = Arc::new(NamespaceFound::default());
        for (namespace, uid) in &self.namespaces {
            let old = before.namespaces.get(namespace).unwrap_or(&none);
            let new = self.found.namespaces.get(namespace).unwrap_or(&none);
            if Arc::ptr_eq(old, new) {
                continue;
            }
            if is_listed(old) != is_listed(new) {
                consequences.namespaces.insert(namespace.clone());
            }
            if let Some(Trouble::Failed(error)) = new.trouble.as_ref().filter(|_| new.trouble != old.trouble) {
                consequences.notes.push(note(namespace, uid, EventReason::ImportFailed, unreadable(namespace, error)));
            }
            let changed = changed_services(old, new);
            let failing = failing(namespace, old, new, &changed);
            consequences.notes.extend(failing.map(|text| note(namespace, uid, EventReason::ImportFailed, text)));
            for label in changed {
                let key = ServiceKey::new(namespace.clone(), label.clone());
                let rejected = |found: &NamespaceFound| found.services.get(&label).map(rejected).unwrap_or_default();
                let now = rejected(new);
                if !now.is_empty() && now != rejected(old) {
                    consequences.rejected.push((key.clone(), now));
                }
                consequences.names.insert(key);
            }
        }
        consequences
    }

    /// Whether the instances of a name are read at all.
    pub(super) fn reads(&self, key: &ServiceKey) -> bool {
        self.namespaces.contains_key(&key.namespace)
    }

    /// Whether all instances of a name were read.
    pub(super) fn is_complete(&self, key: &ServiceKey) -> bool {
        self.reading(key).1
    }

    /// The exports of a name, from instances. `is_live` returns whether a cluster has a live ledger. While a cluster
    /// moves, its ledger may not show yet what its instances, already taken over, still contain.
    pub(super) fn exports_of(&self, key: &ServiceKey, is_live: impl Fn(&ClusterId) -> bool) -> PeerExports {
        let (reading, complete) = self.reading(key);
        let exported = reading.into_iter().flat_map(Reading::exported);
        let exports = awsmcs::exports(exported.filter(|exported| !exported.moved || is_live(&exported.cluster)));
        PeerExports { exports, complete }
    }

    /// What was read of a name, if it has a Cloud Map service, and whether that is everything.
    fn reading(&self, key: &ServiceKey) -> (Option<&Reading>, bool) {
        if !self.reads(key) {
            return (None, true);
        }
        let Some(namespace) = self.found.namespaces.get(&key.namespace) else { return (None, false) };
        match namespace.services.get(&*label(&key.name)) {
            None => (None, is_listed(namespace)),
            Some(service) => (service.reading.as_ref(), service.reading.is_some()),
        }
    }

    /// This cluster's own instances of a name that are for AWS controllers, if there are any.
    pub(super) fn remains(&self, key: &ServiceKey) -> Option<&Remains> {
        self.reading(key).0.map(Reading::remains).filter(|remains| **remains != Remains::default())
    }

    /// Whether new imports do not wait (any longer) for unread instances.
    pub(super) const fn has_first_reading(&self) -> bool {
        self.has_read
    }

    /// Unread instances had their time. Returns whether that is new.
    pub(super) fn end_first_reading(&mut self) -> bool {
        !std::mem::replace(&mut self.has_read, true)
    }

    /// Names with instances that have one of these addresses.
    pub(super) fn names_with(&self, addresses: &BTreeSet<IpAddr>) -> BTreeSet<ServiceKey> {
        let mut names = BTreeSet::new();
        for namespace in self.namespaces.keys() {
            let Some(found) = self.found.namespaces.get(namespace) else { continue };
            names.extend(found.services_with(addresses).map(|name| ServiceKey::new(namespace.clone(), name.clone())));
        }
        names
    }

    /// All names that have such instances.
    pub(super) fn names(&self) -> impl Iterator<Item = ServiceKey> {
        self.namespaces.keys().flat_map(move |namespace| self.names_in(namespace))
    }

    /// Those in a Kubernetes namespace.
    pub(super) fn names_in(&self, namespace: &Arc<str>) -> impl Iterator<Item = ServiceKey> {
        let found = self.found.namespaces.get(namespace).filter(|_| self.namespaces.contains_key(namespace));
        let exports = |service: &ServiceFound| service.reading.iter().flat_map(Reading::exported).next().is_some();
        let exported = found.into_iter().flat_map(|found| &found.services).filter(move |(_, service)| exports(service));
        exported.map(move |(_, service)| ServiceKey::new(namespace.clone(), service.name.clone()))
    }
}

/// Whether the namespace has no other services than the discovered ones. One that does not exist has none.
fn is_listed(namespace: &NamespaceFound) -> bool {
    namespace.listed || namespace.trouble == Some(Trouble::NotFound)
}

/// The instances of AWS controllers that cannot be endpoints. Others do not matter here.
fn rejected(service: &Arc<ServiceFound>) -> Vec<Rejected> {
    let rejected = service.reading.iter().flat_map(Reading::rejected);
    rejected.filter(|rejected| matches!(rejected.why, NoEndpoint::AwsMcs(_))).collect()
}

#[cfg(test)]
#[path = "peers_tests.rs"]
pub(super) mod tests;
