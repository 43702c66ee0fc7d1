//! What the ledgers of the other clusters say, and which of these clusters are silent or not known.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use tracing::{info, warn};

use super::{Concerned, Knowledge, Remote, count, discount, no_earlier};
use import::Unknown;
use ledger::{Map, RegistryName, remote::Remotes};
use model::{ClusterId, Endpoint, Exported, Registration, ServiceKey, Target};

impl Remote {
    /// What it exports under a name, decoded anew. Decoded, the exports of a hundred clusters take several times the memory
    /// that they take in the ledger's map, and a cluster imports few of them.
    pub(super) fn export(&self, key: &ServiceKey) -> Option<Exported> {
        let map = self.map.as_ref().filter(|_| self.exports.contains(key))?;
        let mut exported = records::decode_service(map, key, &mut Vec::new())?;
        exported.export.created = no_earlier(exported.export.created, self.created);
        Some(exported)
    }
}

/// The claims of other clusters to a target, without those that retire. They are decoded anew, as what is exported is.
pub(super) fn claims<'a>(
    remotes: &'a BTreeMap<ClusterId, Remote>,
    target: &Target,
) -> impl Iterator<Item = (&'a ClusterId, Registration)> {
    let (key, target) = (records::registration_key(target), target.clone());
    let claim = move |(id, remote): (&'a ClusterId, &'a Remote)| {
        let claim = records::registration_under(remote.committed.as_ref()?, &key, &target)?;
        Some((id, Registration { claimed: no_earlier(claim.claimed, remote.created), ..claim }))
    };
    remotes.iter().filter_map(claim).filter(|(_, claim)| !claim.is_retiring())
}

impl Knowledge {
    /// The properties of another cluster, as far as they are known.
    pub fn properties(&self, cluster: &ClusterId) -> BTreeMap<String, String> {
        let map = self.others.remotes.get(cluster).and_then(|remote| remote.map.as_ref());
        map.map(|map| records::properties::read(map)).unwrap_or_default()
    }

    /// The property of this name of another cluster.
    pub fn property(&self, cluster: &ClusterId, name: &str) -> Option<&str> {
        records::properties::value(self.others.remotes.get(cluster)?.map.as_ref()?, name)
    }

    /// The other clusters that have neither left nor expired, and are known.
    pub fn live(&self) -> impl Iterator<Item = &ClusterId> {
        self.others.remotes.iter().filter(|(_, remote)| !remote.gone && remote.map.is_some()).map(|(id, _)| id)
    }

    /// Whether the registry was read in this term.
    pub const fn has_read(&self) -> bool {
        self.others.read
    }

    /// The registry beside the home of this cluster that another cluster has as its home.
    pub fn registry_of(&self, cluster: &ClusterId) -> Option<&RegistryName> {
        self.others.remotes.get(cluster)?.registry.as_ref()
    }

    /// Whether another cluster exports a name.
    pub fn is_exported_by(&self, cluster: &ClusterId, key: &ServiceKey) -> bool {
        self.others.remotes.get(cluster).is_some_and(|remote| remote.exports.contains(key))
    }

    /// The names that another cluster exports.
    pub fn names_of(&self, cluster: &ClusterId) -> impl Iterator<Item = &ServiceKey> {
        self.others.remotes.get(cluster).into_iter().flat_map(|remote| &remote.exports)
    }

    /// What another cluster exports under the first `most` names of each Kubernetes namespace that are `wanted`. It is decoded as it
    /// is asked for.
    pub fn exports_of<'a>(
        &'a self,
        cluster: &ClusterId,
        wanted: impl Fn(&ServiceKey) -> bool + 'a,
        most: usize,
    ) -> impl Iterator<Item = (&'a ServiceKey, Exported)> {
        let remote = self.others.remotes.get(cluster);
        let mut last: Option<(&'a Arc<str>, usize)> = None;
        let names = self.names_of(cluster).filter(move |key| wanted(key)).filter(move |key| {
            let before = last.filter(|(namespace, _)| **namespace == key.namespace).map_or(0, |(_, count)| count);
            last = Some((&key.namespace, before + 1));
            before < most
        });
        names.filter_map(move |key| Some((key, remote?.export(key)?)))
    }

    /// Takes in the state of the other clusters. Names that wait for a cluster to become known
    /// ([`unknown`](Self::unknown), [`awaits_first_reading`](Self::awaits_first_reading)) are not in the result.
    pub fn adopt_remotes(&mut self, remotes: &Remotes) -> Concerned {
        let mut concerned = Concerned::default();
        self.others.read |= remotes.any_read();
        self.others.home_read |= remotes.heads_read;
        if std::mem::replace(&mut self.created, remotes.own_created) != remotes.own_created {
            concerned.names.extend(self.plans.planned.keys().cloned());
            concerned.targets.extend(self.exports.iter().flat_map(|exports| exports.registrations().keys().cloned()));
        }
        self.others.unaccepted.clone_from(&remotes.unaccepted);
        self.others.unread.clone_from(&remotes.unread);
        self.others.first_read |= remotes.all_read;
        for (id, remote) in &remotes.clusters {
            let gone = remote.left || remote.expired;
            let of = |state: &Option<Arc<Map>>| if gone { Some(Arc::default()) } else { state.clone() };
            let (state, committed) = (of(&remote.state), of(&remote.committed));
            let entry = self.others.remotes.entry(id.clone()).or_default();
            if std::mem::replace(&mut entry.gone, gone) != gone {
                concerned.names.extend(entry.withdrawn.iter().cloned());
            }
            if std::mem::replace(&mut entry.created, remote.created) != remote.created {
                concerned.names.extend(entry.exports.iter().cloned());
                concerned
                    .targets
                    .extend(entry.committed.iter().flat_map(|map| records::registrations(map).into_keys()));
            }
            if entry.registry != remote.registry {
                entry.registry.clone_from(&remote.registry);
                concerned.names.extend(entry.exports.iter().cloned());
            }
            let silent = remote.stale.filter(|_| !gone);
            let was_silent = std::mem::replace(&mut entry.silent, silent);
            entry.advanced |= was_silent.is_some() && silent.is_none();
            if was_silent != silent {
                concerned.names.extend(entry.exports.iter().cloned());
            }
            if std::mem::replace(&mut entry.expired, remote.expired) != remote.expired {
                let (cluster, names) = (id, entry.exports.len());
                if remote.expired {
                    warn!(%cluster, names, "the cluster has been silent for longer than --stale-cluster-ttl; its endpoints are withdrawn");
                } else {
                    info!(%cluster, "the cluster whose endpoints were withdrawn is no longer silent");
                }
            }
            if remote.refused
                && let Some(map) = entry.map.take()
            {
                // It counts as not read, so that nothing of it is deleted.
                concerned
                    .targets
                    .extend(records::registrations(entry.committed.take().as_ref().unwrap_or(&map)).into_keys());
                for key in std::mem::take(&mut entry.exports) {
                    discount(&mut self.names, &key);
                    concerned.names.insert(key);
                }
            }
            if remote.registry.is_some()
                && let Some(before) = entry.committed.take()
            {
                // It moved to another home: its claims are about what is there.
                concerned.targets.extend(records::registrations(&before).into_keys());
            }
            if let Some(committed) = committed.filter(|_| remote.registry.is_none())
                && !entry.committed.as_ref().is_some_and(|map| Arc::ptr_eq(map, &committed))
            {
                let before = entry.committed.replace(Arc::clone(&committed)).unwrap_or_default();
                concerned.targets.extend(records::changed_registrations(&before, &committed));
            }
            let Some(state) = state else { continue };
            if entry.map.as_ref().is_some_and(|map| Arc::ptr_eq(map, &state)) {
                continue;
            }
            let before = entry.map.replace(Arc::clone(&state)).unwrap_or_default();
            if records::properties::differ(&before, &state) {
                concerned.names.extend(entry.exports.iter().cloned());
            }
            let mut problems = Vec::new();
            for key in records::changed_services(&before, &state) {
                // What is unreadable is reported once, even if nobody here imports it.
                if records::decode_service(&state, &key, &mut problems).is_some() {
                    if entry.exports.insert(key.clone()) {
                        count(&mut self.names, &key);
                        entry.withdrawn.remove(&key);
                    }
                } else if entry.exports.remove(&key) {
                    discount(&mut self.names, &key);
                    entry.withdrawn.insert(key.clone());
                }
                concerned.names.insert(key);
            }
            for problem in problems {
                warn!(cluster = %id, key = &*problem.key, problem = problem.message, "unreadable ledger record");
            }
        }
        for (_, gone) in self.others.remotes.extract_if(.., |id, _| !remotes.clusters.contains_key(id)) {
            for key in gone.exports {
                discount(&mut self.names, &key);
                concerned.names.insert(key);
            }
            concerned.targets.extend(gone.committed.iter().flat_map(|map| records::registrations(map).into_keys()));
        }
        for target in &concerned.targets {
            concerned.names.extend(self.wanted_by(target).cloned());
        }
        concerned
    }

    /// The unknown clusters had their time, so new imports no longer wait for them. Returns whether that is new.
    pub fn end_first_reading(&mut self) -> bool {
        self.others.read && !std::mem::replace(&mut self.others.first_read, true)
    }

    /// The clusters whose exports are not known.
    pub fn unknown(&self) -> Unknown {
        if self.others.read && !(self.others.home_read && self.others.unread.is_empty()) {
            // Of a registry that was never read in this term, clusters may have joined of which nothing is known. The home has
            // what this cluster itself said.
            let known = self.others.remotes.iter().filter(|(_, remote)| remote.map.is_some()).map(|(id, _)| id.clone());
            let known = known.filter(|id| !self.others.unaccepted.contains(id));
            let here = self.others.home_read.then(|| self.local.clone());
            Unknown::AllBut(known.chain(here).collect())
        } else if self.others.read {
            let unknown =
                self.others.remotes.iter().filter(|(_, remote)| remote.map.is_none()).map(|(id, _)| id.clone());
            Unknown::Only(unknown.chain(self.others.unaccepted.iter().cloned()).collect())
        } else {
            Unknown::All
        }
    }

    /// Whether clusters are still being read for the first time.
    pub const fn awaits_first_reading(&self) -> bool {
        !self.others.first_read
    }

    /// The clusters that have been silent for long, and since when (milliseconds since 1970). Their last exports count.
    pub fn silent(&self) -> BTreeMap<ClusterId, u64> {
        self.others.remotes.iter().filter_map(|(id, remote)| Some((id.clone(), remote.silent?))).collect()
    }

    /// Notes clusters whose position advanced in this term. Returns the names that those export for which this is new.
    pub fn set_advanced(&mut self, clusters: &[ClusterId]) -> BTreeSet<ServiceKey> {
        let mut names = BTreeSet::new();
        for cluster in clusters {
            if let Some(remote) = self.others.remotes.get_mut(cluster).filter(|remote| !remote.advanced) {
                remote.advanced = true;
                names.extend(remote.exports.iter().cloned());
            }
        }
        names
    }

    /// The clusters that were neither seen to write nor silent for long in this term. An earlier leader may know more of them.
    pub fn unheard(&self) -> BTreeSet<ClusterId> {
        let unheard = |remote: &Remote| !remote.advanced && remote.silent.is_none() && !remote.gone;
        let unheard = self.others.remotes.iter().filter(|(_, remote)| unheard(remote)).map(|(id, _)| id);
        unheard.chain(&self.others.unaccepted).cloned().collect()
    }

    /// Other clusters' claims to a target.
    pub fn other_claims(&self, target: &Target) -> impl Iterator<Item = Registration> {
        claims(&self.others.remotes, target).map(|(_, claim)| claim)
    }

    /// Names whose endpoints in other clusters have one of these addresses, of those whose namespace `is_here`.
    pub fn names_with(
        &self,
        addresses: &BTreeSet<IpAddr>,
        is_here: impl Fn(&Arc<str>) -> bool,
    ) -> BTreeSet<ServiceKey> {
        let concerned = |endpoint: &Endpoint| {
            endpoint.ipv4.is_some_and(|address| addresses.contains(&address.into()))
                || endpoint.ipv6.is_some_and(|address| addresses.contains(&address.into()))
        };
        let has_one = |remote: &Remote, key: &ServiceKey| {
            remote.export(key).is_some_and(|exported| exported.endpoints.iter().any(concerned))
        };
        let exports =
            self.others.remotes.values().flat_map(|remote| remote.exports.iter().map(move |key| (remote, key)));
        let here = exports.filter(|(_, key)| is_here(&key.namespace));
        here.filter(|(remote, key)| has_one(remote, key)).map(|(_, key)| key.clone()).collect()
    }
}
