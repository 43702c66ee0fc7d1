//! Taking the whole state out and putting it in, and changing settings while calls come in.

use super::history::{Counters, Write};
use super::namespaces::add_namespace;
use super::replicas::{Change, Replica, Row};
use super::services::{add_service, place};
use super::state::{Namespace, Service, Snapshot};
use super::{CloudMap, EmulatorSettings, Event, Fault};

impl CloudMap {
    pub fn settings(&self) -> &EmulatorSettings {
        &self.settings
    }

    /// Takes the settings for all that comes; what is under way keeps its times. Another number of replicas makes them
    /// all new, with no lag.
    ///
    /// # Errors
    /// If [`EmulatorSettings::check`] fails; nothing has changed then.
    pub fn set_settings(&mut self, settings: EmulatorSettings) -> Result<(), String> {
        settings.check()?;
        let counts = |settings: &EmulatorSettings| (settings.discovery_lag.len(), settings.dns_lag.len());
        let replicas_changed = counts(&settings) != counts(&self.settings);
        self.settings = settings;
        if replicas_changed {
            self.rebuild_replicas();
        }
        Ok(())
    }

    /// Forgets everything but the settings: resources, operations, faults, counters, writes, spent request rates.
    pub fn reset(&mut self) {
        let now = self.now;
        *self = Self::new(self.settings.clone());
        self.now = now;
    }

    /// Grows with all that happens to resources.
    pub fn revision(&self) -> u64 {
        self.sequence
    }

    /// All namespaces, as the control plane has them now.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.namespaces.values()
    }

    /// The namespace with an id.
    pub fn namespace(&self, id: &str) -> Option<&Namespace> {
        self.namespaces.get(id)
    }

    /// All services with their instances, as the control plane has them now.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            namespaces: self.namespaces.values().cloned().collect(),
            services: self.services.values().cloned().collect(),
        }
    }

    /// Puts a snapshot in the place of all resources; discovery sees it at once. Operations under way are given up; counters, writes and faults stay.
    ///
    /// # Errors
    /// If a service names a namespace that is not there; nothing has changed then.
    pub fn restore(&mut self, snapshot: Snapshot) -> Result<(), String> {
        let mut namespaces: std::collections::BTreeMap<_, _> =
            snapshot.namespaces.into_iter().map(|namespace| (namespace.id.clone(), namespace)).collect();
        for service in &snapshot.services {
            let namespace = namespaces.get_mut(&service.namespace_id).ok_or_else(|| {
                format!("service {} is in namespace {}, which is not in the snapshot", service.id, service.namespace_id)
            })?;
            namespace.services.insert(namespace.service_key(&service.name), service.id.clone());
            namespace.instance_count += service.instances.len();
        }
        self.namespaces = namespaces;
        self.sequence = snapshot.services.iter().map(|service| service.revision).fold(self.sequence, u64::max);
        self.services = snapshot.services.into_iter().map(|service| (service.id.clone(), service)).collect();
        self.creating.clear();
        self.operations = super::Operations::default();
        self.queue.clear();
        self.rebuild_replicas();
        Ok(())
    }

    /// Lets every replica see what the control plane has now.
    fn rebuild_replicas(&mut self) {
        self.queue.retain(|_, event| !matches!(event, Event::Replicate { .. }));
        self.arrivals.clear();
        let mut replica = Replica::default();
        for namespace in self.namespaces.values() {
            replica.apply(add_namespace(namespace));
        }
        for service in self.services.values() {
            replica.apply(add_service(service));
            for instance in service.instances.values() {
                replica.apply(Change::PutInstance {
                    at: place(service),
                    instance: instance.id.clone(),
                    row: Row { attributes: instance.attributes.clone(), health: instance.health },
                    revision: service.revision,
                });
            }
        }
        self.replicas = vec![replica; self.settings.lags().count()];
    }

    /// Adds a rule and gives its id.
    ///
    /// # Errors
    /// If [`Fault::check`] fails.
    pub fn add_fault(&mut self, fault: Fault) -> Result<u64, String> {
        fault.check()?;
        Ok(self.faults.add(fault, &self.replicas[0]))
    }

    /// Whether there was such a rule.
    pub fn remove_fault(&mut self, id: u64) -> bool {
        self.faults.remove(id)
    }

    pub fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// The rules that are not spent.
    pub fn faults(&self) -> Vec<(u64, Fault)> {
        self.faults.list()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn clear_counters(&mut self) {
        self.counters = Counters::default();
    }

    /// The writes after the one with the given sequence number, the oldest first; 0 for all that are remembered.
    pub fn writes_since(&self, sequence: u64) -> Vec<Write> {
        self.writes.since(sequence)
    }

    pub fn clear_writes(&mut self) {
        self.writes.clear();
    }
}
