//! Who may write what in Cloud Map.

use std::{collections::BTreeMap, time::Duration};

use super::{cloudmap::Registry, machine::EPOCH, world::Cluster};

/// What controllers write in Cloud Map. Commands write more: they delete namespaces, and tag services.
pub(crate) const WRITTEN: [&str; 7] = [
    "CreateHttpNamespace",
    "CreateService",
    "UpdateService",
    "DeleteService",
    "RegisterInstance",
    "DeregisterInstance",
    "UpdateInstanceCustomHealthStatus",
];

/// Who made what there is in Cloud Map.
#[derive(Debug, Default)]
pub(crate) struct Ownership {
    /// Number of the last write of Cloud Map that was looked at.
    sequence: u64,
    /// Who made each Cloud Map service, by its tag; empty: others.
    services: BTreeMap<String, String>,
    /// The same of those that clusters made, by their names.
    made: BTreeMap<(String, String), String>,
    /// The UIDs of the clusters that registered the instances, by service and id.
    instances: BTreeMap<(String, String), String>,
    /// When each cluster, by UID, recorded an instance as hidden first, by service and id.
    recorded: BTreeMap<(String, String, String), Duration>,
}

impl Ownership {
    /// The writes since the last time that Cloud Map accepted.
    pub(crate) fn take_writes(&mut self, registry: &Registry) -> Vec<emulator::Write> {
        let mut writes = registry.with(|cloudmap, _| {
            let writes = cloudmap.writes_since(self.sequence);
            for service in cloudmap.services().filter(|_| !writes.is_empty()) {
                let made_for = service.tags.get("cloudmap-mcs/made-for").cloned();
                self.services.entry(service.id.clone()).or_insert_with(|| made_for.unwrap_or_default());
            }
            writes
        });
        self.sequence = writes.last().map_or(self.sequence, |write| write.sequence);
        writes.retain(emulator::Write::is_ok);
        writes
    }

    /// Notes that a cluster made a service.
    pub(crate) fn note_service(&mut self, write: &emulator::Write, cluster: &Cluster) {
        let named = (write.namespace.clone(), write.service.clone());
        self.made.insert(named, format!("clusterset/{}", cluster.set));
    }

    /// Notes which instances, by service and id, a cluster has recorded as hidden.
    pub(crate) fn note_hidden(
        &mut self,
        uid: &str,
        recorded: impl IntoIterator<Item = (String, String)>,
        at: Duration,
    ) {
        for (service, id) in recorded {
            self.recorded.entry((uid.to_owned(), service, id)).or_insert(at);
        }
    }

    /// Notes who registers and deregisters an instance. Gives the UID of the cluster whose it was; empty: somebody else's.
    pub(crate) fn note_instance(&mut self, write: &emulator::Write) -> Option<String> {
        let key = (write.service_id.clone(), write.instance.clone());
        match &*write.operation {
            "RegisterInstance" => {
                let owner = write.attributes.get("CLOUDMAP_MCS_CLUSTER_UID").cloned().unwrap_or_default();
                self.instances.insert(key, owner)
            }
            "DeregisterInstance" => self.instances.remove(&key),
            "UpdateInstanceCustomHealthStatus" => self.instances.get(&key).cloned(),
            _ => None,
        }
    }

    /// Whether what a cluster wrote in Cloud Map was its own, or the ClusterSet's. `owner`: of the instance, before.
    pub(crate) fn may_write(&self, cluster: &Cluster, write: &emulator::Write, owner: Option<&str>) -> bool {
        let emulator::Write { operation, namespace, service, service_id, instance, attributes, .. } = write;
        let is_own = |owner: &str| owner == cluster.uid;
        if !WRITTEN.contains(&&**operation) {
            return false;
        }
        if let Some(set) = namespace.strip_prefix("clusterset-") {
            let id = if service == "clusters" { Some(&**instance) } else { service.split_once('.').map(|(_, id)| id) };
            return cluster.sets.contains(set) && id.is_none_or(|id| id.is_empty() || cluster.ids.contains(id));
        }
        match &**operation {
            "RegisterInstance" => {
                owner.is_none_or(is_own) && attributes.get("CLOUDMAP_MCS_CLUSTER_UID").is_some_and(|uid| is_own(uid))
            }
            // One that is not there any more is deregistered without effect.
            "DeregisterInstance" => owner.is_none_or(is_own),
            "UpdateService" | "DeleteService" => {
                // Nobody has seen a service that came and went between two looks.
                let made = || self.made.get(&(namespace.clone(), service.clone()));
                self.services.get(service_id).or_else(made).is_some_and(|maker| {
                    maker.strip_prefix("cluster/").is_some_and(is_own)
                        || maker.strip_prefix("clusterset/").is_some_and(|set| cluster.sets.contains(set))
                })
            }
            // The one thing of others that is written: whether ECS tasks that were recorded before are healthy.
            "UpdateInstanceCustomHealthStatus" if !owner.is_none_or(is_own) => {
                let recorded = self.recorded.get(&(cluster.uid.clone(), service_id.clone(), instance.clone()));
                recorded.is_some_and(|at| EPOCH + *at <= write.at) && instance.starts_with("task-")
            }
            _ => true,
        }
    }
}
