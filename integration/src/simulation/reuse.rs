//! Addresses that pods get after other pods, as from the VPC CNI: who gets which, and what must hold of them.
//!
//! Between two pods with the same address there are looks in which no pod has it. So a check that follows an address from
//! one look to the next, while a pod has it, follows one pod.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use super::{
    check::{is_old, news},
    claims::{Instance, places},
    expect::{Name, imported},
    followed::INSTANCES,
    kubernetes::ApiServer,
    scenario::Scenario,
    slices::address,
    users::label,
    world::{Cluster, Version, World},
};

/// For so long no pod gets an address that a pod had: the default of `IP_COOLDOWN_PERIOD` of the VPC CNI.
const COOLDOWN: Duration = Duration::from_secs(30);

/// The addresses of a VPC, from which the pods of all clusters get theirs.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// How many there are so far.
    size: u32,
    /// Those of pods.
    taken: BTreeSet<String>,
    /// The others, and since when no pod has them.
    free: BTreeMap<String, Duration>,
    /// Those that pods got after others, and when the last one did.
    passed_on: BTreeMap<String, Duration>,
    /// How many pods there were.
    pods: u32,
}

impl Pool {
    /// Pods have these addresses now.
    fn note(&mut self, taken: BTreeSet<String>, now: Duration) {
        self.free.retain(|address, _| !taken.contains(address));
        self.free.extend(self.taken.difference(&taken).map(|address| (address.clone(), now)));
        self.taken = taken;
    }

    /// The name of a new pod, which begins with its address, and whether another pod had that. Of the free addresses that have
    /// cooled down, it is the one that most processes may still know: the last. Where there is none, the pool grows.
    pub(super) fn give(&mut self, now: Duration) -> (String, bool) {
        let cool = self.free.iter().filter(|(_, since)| now >= **since + COOLDOWN);
        let last = cool.max_by_key(|(_, since)| **since).map(|(address, _)| address.clone());
        let known = last.is_some();
        if let Some(address) = &last {
            self.passed_on.insert(address.clone(), now);
        }
        let address = last.unwrap_or_else(|| {
            self.size += 1;
            format!("10.9.{}.{}", self.size / 250, self.size % 250 + 1)
        });
        self.free.remove(&address);
        self.pods += 1;
        let pod = format!("{address}-{}", self.pods);
        self.taken.insert(address);
        (pod, known)
    }
}

impl World {
    /// Notes which addresses pods have now.
    pub(crate) fn note_addresses(&mut self) {
        let now = self.began.elapsed();
        if let Some(pool) = &mut self.pool {
            pool.note(taken(&self.clusters), now);
        }
    }

    /// Whether a pod got this address after another one so lately that what is said of it may be about that one.
    pub(crate) fn is_passed_on(&self, address: &str) -> bool {
        let at = self.pool.as_ref().and_then(|pool| pool.passed_on.get(address));
        at.is_some_and(|at| self.began.elapsed() <= *at + INSTANCES)
    }
}

/// The addresses by IPv4 of all pods. Those behind a gate stay when their Service goes.
fn taken(clusters: &[Cluster]) -> BTreeSet<String> {
    let mut taken = BTreeSet::new();
    for Cluster { api, .. } in clusters {
        for (_, slice) in of_users(api) {
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            let pods = endpoints.filter_map(|endpoint| endpoint["targetRef"]["name"].as_str());
            taken.extend(pods.map(|pod| address(pod).to_owned()));
        }
        taken.extend(api.list("pods").into_keys().map(|(_, pod)| address(&pod).to_owned()));
    }
    taken
}

/// The EndpointSlices of users' Services.
fn of_users(api: &ApiServer) -> impl Iterator<Item = (Name, Arc<Value>)> {
    let slices = api.list("endpointslices").into_iter();
    slices.filter(|(_, slice)| label(slice, "endpointslice.kubernetes.io/managed-by") != "cloudmap-mcs")
}

/// The UID of a cluster, and a Service there.
type Owner = (String, Name);

/// Whose pods have which addresses, of either family, ready or not.
fn owners(world: &World) -> BTreeMap<String, Owner> {
    let mut owners = BTreeMap::new();
    for Cluster { uid, api, .. } in &world.clusters {
        for ((namespace, _), slice) in of_users(api) {
            let owner = (uid.clone(), (namespace, label(&slice, "kubernetes.io/service-name").to_owned()));
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            let addresses = endpoints.flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten());
            owners.extend(addresses.filter_map(Value::as_str).map(|address| (address.to_owned(), owner.clone())));
        }
    }
    owners
}

/// Where an address is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    /// A ready endpoint of an import.
    Imported { by: String, name: Name },
    /// In an instance that a cluster registered for its Service.
    Registered { target: Name, owner: Owner },
}

impl Holder {
    /// Whether a pod of this Service belongs there.
    fn is_of(&self, pod: &Owner) -> bool {
        match self {
            Self::Imported { name, .. } => pod.1 == *name,
            Self::Registered { owner, .. } => pod == owner,
        }
    }
}

/// Where all addresses are, in all clusters and in Cloud Map.
fn everywhere(world: &World) -> BTreeSet<(String, Holder)> {
    let mut found = BTreeSet::new();
    for Cluster { id, api, .. } in &world.clusters {
        for (name, import) in imported(api) {
            let place = Holder::Imported { by: id.clone(), name };
            found.extend(import.addresses().into_iter().map(|address| (address, place.clone())));
        }
    }
    for (target, place) in world.registry.with(|cloudmap, _| places(cloudmap)) {
        for Instance { uid, owner, address, .. } in place.instances {
            found.insert((address, Holder::Registered { target: target.clone(), owner: (uid, owner) }));
        }
    }
    found
}

/// What the check remembers.
#[derive(Debug, Default)]
pub(crate) struct Reused {
    /// The versions of the clusters and of Cloud Map that were looked at.
    seen: (Vec<Version>, u64),
    /// The places where an address is that belongs to a pod of another Service, and since when it does.
    wrong: BTreeMap<(String, Holder), Duration>,
}

impl Reused {
    /// Looks for addresses that still lead to the Service of a former pod. Gives one that does so for too long.
    pub(crate) fn look(&mut self, world: &World, scenario: &Scenario) -> Option<(&'static str, String)> {
        if !scenario.reuses_addresses() {
            return None;
        }
        let now = world.began.elapsed();
        let seen = (world.versions(), world.registry.with(|cloudmap, _| cloudmap.revision()));
        if self.seen != seen {
            self.seen = seen;
            let owners = owners(world);
            let is_wrong =
                |(address, place): &(String, Holder)| owners.get(address).is_some_and(|pod| !place.is_of(pod));
            let wrong = everywhere(world).into_iter().filter(is_wrong);
            let since = |at: (String, Holder)| (self.wrong.get(&at).copied().unwrap_or(now), at);
            self.wrong = wrong.map(since).map(|(since, at)| (at, since)).collect();
        }
        for ((address, place), since) in &mut self.wrong {
            let longest = if matches!(place, Holder::Imported { .. }) { news(scenario) } else { INSTANCES };
            if is_old(since, now, longest, world) {
                let pod = owners(world).remove(address);
                let what = format!("{address} is {place:?} since {since:.1?}, but its pod is of {pod:?}");
                return Some(("no address leads to the Service of a former pod", what));
            }
        }
        None
    }
}

/// An address that is not one of a present pod of the right Service.
pub(crate) fn misplaced(world: &World) -> Option<String> {
    world.pool.as_ref()?;
    let owners = owners(world);
    let belongs = |address: &String, place: &Holder| owners.get(address).is_some_and(|pod| place.is_of(pod));
    let (address, place) = everywhere(world).into_iter().find(|(address, place)| !belongs(address, place))?;
    Some(format!("{address} is {place:?}, but its pod is of {:?}", owners.get(&address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_gets_the_address_that_is_free_for_the_shortest_time_over_the_cooldown() {
        let seconds = Duration::from_secs;
        let mut pool = Pool::default();
        let (new, known) = (|name: &str| (name.to_owned(), false), |name: &str| (name.to_owned(), true));
        let pods: Vec<_> = (0..3).map(|_| pool.give(Duration::ZERO)).collect();
        assert_eq!(pods, [new("10.9.0.2-1"), new("10.9.0.3-2"), new("10.9.0.4-3")]);
        let taken =
            |addresses: &[&str]| -> BTreeSet<String> { addresses.iter().map(|&address| address.to_owned()).collect() };
        pool.note(taken(&["10.9.0.3", "10.9.0.4"]), seconds(1));
        pool.note(taken(&["10.9.0.4"]), seconds(2));
        assert_eq!(pool.give(seconds(30)), new("10.9.0.5-4"), "the others were free for less than 30 s");
        assert_eq!(pool.give(seconds(31)), known("10.9.0.2-5"));
        assert_eq!(pool.give(seconds(40)), known("10.9.0.3-6"));
        // A pod that goes before anybody looked frees its address as well.
        pool.note(taken(&["10.9.0.2", "10.9.0.4", "10.9.0.5"]), seconds(41));
        assert_eq!(pool.give(seconds(70)), new("10.9.0.6-7"));
        assert_eq!(pool.give(seconds(71)), known("10.9.0.3-8"));
        // Of two, the one that became free last.
        pool.note(taken(&["10.9.0.2", "10.9.0.3", "10.9.0.4", "10.9.0.6"]), seconds(72));
        pool.note(taken(&["10.9.0.3", "10.9.0.4", "10.9.0.6"]), seconds(73));
        assert_eq!(pool.give(seconds(110)), known("10.9.0.2-9"));
        assert_eq!(pool.give(seconds(110)), known("10.9.0.5-10"));
    }
}
