//! The discovery and DNS sides: each replica has its own view of namespaces, services and instances, and learns of changes late.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::dns::Zone;
use super::requests::{Attributes, DnsConfig};
use super::state::Health;

/// A service as a replica sees it. Shared with the snapshots that stale reads are answered from.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) service: String,
    pub(crate) health_checked: bool,
    /// None where DNS does not find it.
    pub(crate) dns: Option<DnsConfig>,
    pub(crate) instances: BTreeMap<String, Row>,
    pub(crate) revision: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) attributes: Arc<Attributes>,
    pub(crate) health: Health,
}

/// Changes name the service by its id and its place, because a name can be taken again by another service.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    AddNamespace { http_name: String, id: String, zone: Option<Zone> },
    SetSoaTtl { http_name: String, id: String, ttl: u32 },
    RemoveNamespace { http_name: String, id: String },
    AddService { namespace: String, name: String, view: View },
    RemoveService { at: ServicePath },
    SetHealthChecked { at: ServicePath, health_checked: bool },
    SetDns { at: ServicePath, dns: Option<DnsConfig> },
    PutInstance { at: ServicePath, instance: String, row: Row, revision: u64 },
    RemoveInstance { at: ServicePath, instance: String, revision: u64 },
    SetHealth { at: ServicePath, instance: String, health: Health },
}

/// What a change is about, by name: changes with one topic keep their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Namespace { http_name: String },
    Service { namespace: String, name: String },
}

impl Change {
    pub(crate) fn topic(&self) -> Topic {
        let (namespace, name) = match self {
            Self::AddNamespace { http_name, .. }
            | Self::SetSoaTtl { http_name, .. }
            | Self::RemoveNamespace { http_name, .. } => {
                return Topic::Namespace { http_name: http_name.clone() };
            }
            Self::AddService { namespace, name, .. } => (namespace, name),
            Self::RemoveService { at }
            | Self::SetHealthChecked { at, .. }
            | Self::SetDns { at, .. }
            | Self::PutInstance { at, .. }
            | Self::RemoveInstance { at, .. }
            | Self::SetHealth { at, .. } => (&at.namespace, &at.name),
        };
        Topic::Service { namespace: namespace.clone(), name: name.clone() }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ServicePath {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) service: String,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Replica {
    /// Ids by `HttpName`.
    namespaces: HashMap<String, String>,
    /// By namespace id.
    zones: HashMap<String, Zone>,
    /// Services by namespace id and name.
    services: HashMap<String, HashMap<String, Arc<View>>>,
}

/// Why a discovery call finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Namespace,
    Service,
}

impl Replica {
    pub(crate) fn find(&self, http_name: &str, service: &str) -> Result<&Arc<View>, Missing> {
        let namespace = self.namespaces.get(http_name).ok_or(Missing::Namespace)?;
        self.services.get(namespace).and_then(|services| services.get(service)).ok_or(Missing::Service)
    }

    /// The zones by namespace id.
    pub(crate) fn zones(&self) -> impl Iterator<Item = (&str, &Zone)> {
        self.zones.iter().map(|(namespace, zone)| (namespace.as_str(), zone))
    }

    /// The services of a namespace by name.
    pub(crate) fn services(&self, namespace: &str) -> impl Iterator<Item = (&str, &View)> {
        let services = self.services.get(namespace).into_iter().flatten();
        services.map(|(name, view)| (name.as_str(), view.as_ref()))
    }

    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::AddNamespace { http_name, id, zone } => {
                if let Some(zone) = zone {
                    self.zones.insert(id.clone(), zone);
                }
                self.namespaces.insert(http_name, id);
            }
            Change::SetSoaTtl { id, ttl, .. } => {
                if let Some(zone) = self.zones.get_mut(&id) {
                    zone.soa_ttl = ttl;
                }
            }
            Change::RemoveNamespace { http_name, id } => {
                if self.namespaces.get(&http_name) == Some(&id) {
                    self.namespaces.remove(&http_name);
                }
                self.zones.remove(&id);
                self.services.remove(&id);
            }
            Change::AddService { namespace, name, view } => {
                self.services.entry(namespace).or_default().insert(name, Arc::new(view));
            }
            Change::RemoveService { at } => {
                if let Some(services) = self.services.get_mut(&at.namespace)
                    && services.get(&at.name).is_some_and(|view| view.service == at.service)
                {
                    services.remove(&at.name);
                }
            }
            Change::SetHealthChecked { at, health_checked } => {
                if let Some(view) = self.view(&at) {
                    view.health_checked = health_checked;
                    let health = if health_checked { Health::Healthy } else { Health::Unknown };
                    view.instances.values_mut().for_each(|row| row.health = health);
                }
            }
            Change::SetDns { at, dns } => {
                if let Some(view) = self.view(&at) {
                    view.dns = dns;
                }
            }
            Change::PutInstance { at, instance, row, revision } => {
                if let Some(view) = self.view(&at) {
                    view.instances.insert(instance, row);
                    view.revision = revision;
                }
            }
            Change::RemoveInstance { at, instance, revision } => {
                if let Some(view) = self.view(&at) {
                    view.instances.remove(&instance);
                    view.revision = revision;
                }
            }
            Change::SetHealth { at, instance, health } => {
                if let Some(row) = self.view(&at).and_then(|view| view.instances.get_mut(&instance)) {
                    row.health = health;
                }
            }
        }
    }

    fn view(&mut self, at: &ServicePath) -> Option<&mut View> {
        let view = self.services.get_mut(&at.namespace)?.get_mut(&at.name)?;
        (view.service == at.service).then(|| Arc::make_mut(view))
    }
}
