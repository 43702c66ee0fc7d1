//! What must hold at every moment of what is registered in Cloud Map, and of the claims to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;

use super::{
    claims::{Claim, candidates, claims, exported},
    expect::{Name, live},
    ledger::Ledgers,
    scenario::Scenario,
    world::{Cluster, OWN, World},
};
use crate::emulator::CloudMap;

/// Longest that a cluster goes without news of its own objects: what it does until then may be about former ones.
const NEWS: Duration = Duration::from_secs(150);
/// From a decision to the instance: a discovery, an operation, a process that stood still within its Lease.
const DECIDED: Duration = Duration::from_secs(12);
/// How long who loses a name keeps its endpoints there: two times the default of `--claim-delay`.
const HANDOVER: Duration = Duration::from_secs(20);
/// Who loses a name to another cluster waits until it has heard of that one afterwards.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// How long one has to be the first of the claimants to have the name: the default of `--claim-delay`, as far as it is seen.
const HOLDS: Duration = Duration::from_secs(8);

/// A want of users: index of the cluster, the target, the Kubernetes name, and whether it is exported.
type Want = (usize, Name, Name, bool);

/// An own instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Instance {
    uid: String,
    /// The ClusterSet that its mark names.
    clusterset: Option<String>,
    owner: Name,
    address: String,
}

/// By target.
type Instances = BTreeMap<Name, BTreeSet<Instance>>;

/// Since when something is so without a break.
#[derive(Debug, Clone, Copy)]
struct Since {
    wanted: Duration,
    /// With ready endpoints.
    ready: Option<Duration>,
}

/// When a Kubernetes name is, or was, the first of all claimants.
#[derive(Debug, Clone, Copy)]
struct First {
    since: Duration,
    /// `None`: it still is.
    until: Option<Duration>,
    /// Until when it had been that for long enough to have the name.
    held: Option<Duration>,
}

/// What the checks remember.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    /// The versions of the clusters and of Cloud Map that were looked at.
    seen: (Vec<u64>, u64),
    ledgers: Ledgers,
    wants: BTreeMap<Want, Since>,
    /// Who wanted a name last by an export: what is deleted hands nothing over.
    exported: BTreeSet<(usize, Name, Name)>,
    /// The date of each claim, by the cluster's UID.
    dates: BTreeMap<(String, Want), i64>,
    /// By the ledger's namespace and by target.
    first: BTreeMap<(String, Name), BTreeMap<Name, First>>,
    there: Instances,
    /// Since when a target has instances of several Kubernetes names.
    mixed: BTreeMap<Name, Duration>,
}

impl Registered {
    /// Looks at everything that happened since the last time. Gives what must not be.
    pub(crate) fn look(&mut self, world: &World, scenario: &Scenario) -> Option<(&'static str, String)> {
        let (now, clusters) = (world.began.elapsed(), &world.clusters);
        let seen = (world.versions(), world.registry.with(|cloudmap, _| cloudmap.revision()));
        if std::mem::replace(&mut self.seen, seen.clone()) == seen {
            return None;
        }
        let claims = claims(clusters);
        self.note_wants(&claims, now);
        let read = world.registry.with(|cloudmap, _| self.ledgers.read(cloudmap).map(|()| instances(cloudmap)));
        let there = match read {
            Ok(there) => there,
            Err(why) => return Some(("every head can be read", why)),
        };
        self.note_first(now);
        let checks = [
            ("every instance has a record", self.unrecorded(clusters, &there)),
            ("a claim keeps its date", self.redated(clusters, now)),
            ("who is not the first claimant registers nothing", self.usurped(&there, scenario, now)),
            ("a name has one owner", self.mixed(&there, scenario, now)),
            ("a name that is registered stays", self.emptied(clusters, &claims, &there, scenario, now)),
        ];
        self.there = there;
        checks.into_iter().find_map(|(check, what)| Some((check, what?)))
    }

    fn note_wants(&mut self, claims: &BTreeMap<Name, Vec<Claim>>, now: Duration) {
        let mut wants = BTreeMap::new();
        for (target, claims) in claims {
            for Claim { cluster, owner, exported, addresses } in claims {
                let of = (*cluster, target.clone(), owner.clone());
                if *exported {
                    self.exported.insert(of);
                } else {
                    self.exported.remove(&of);
                }
                let want = (*cluster, target.clone(), owner.clone(), *exported);
                let before = self.wants.get(&want);
                let ready = before.and_then(|since| since.ready).unwrap_or(now);
                let ready = (!addresses.is_empty()).then_some(ready);
                wants.insert(want, Since { wanted: before.map_or(now, |since| since.wanted), ready });
            }
        }
        self.wants = wants;
    }

    /// An instance that no record of its cluster leads to: nobody would find it after a crash.
    fn unrecorded(&self, clusters: &[Cluster], there: &Instances) -> Option<String> {
        for (target, instance) in there.iter().flat_map(|(target, of)| of.iter().map(move |it| (target, it))) {
            let Instance { uid, clusterset, .. } = instance;
            let namespace = clusterset.as_ref().map(|id| format!("clusterset-{id}"));
            let of_set = |(ns, _): &(&str, _)| namespace.as_ref().is_none_or(|namespace| namespace == ns);
            let mut records = self.ledgers.of(uid).filter(of_set).flat_map(|(_, ledger)| ledger.records.keys());
            let kept = || clusters.iter().any(|cluster| cluster.uid == *uid && kept(cluster, target));
            if !(records.any(|recorded| recorded == target) || clusterset.is_none() && kept()) {
                return Some(format!("{instance:?} in {}/{}", target.0, target.1));
            }
        }
        None
    }

    /// A claim that has another date than before, though its object asked for the name all the time.
    fn redated(&mut self, clusters: &[Cluster], now: Duration) -> Option<String> {
        let (mut dates, mut found) = (BTreeMap::new(), None);
        for (index, cluster) in clusters.iter().enumerate() {
            for (target, record) in self.ledgers.of(&cluster.uid).flat_map(|(_, ledger)| &ledger.records) {
                let want = (index, target.clone(), record.owner.clone(), record.exported);
                let Some(since) = self.wants.get(&want).copied() else { continue };
                let key = (cluster.uid.clone(), want);
                let before = self.dates.get(&key).copied().filter(|_| now.saturating_sub(since.wanted) > NEWS);
                if before.is_some_and(|before| before != record.claimed) {
                    found = Some(format!("{} {target:?}: {record:?}, before {before:?}", cluster.id));
                }
                dates.insert(key, record.claimed);
            }
        }
        self.dates = dates;
        found
    }

    fn note_first(&mut self, now: Duration) {
        let recorded = self.ledgers.targets().map(|(namespace, target)| (namespace.clone(), target.clone()));
        let targets: BTreeSet<_> = recorded.chain(self.first.keys().cloned()).collect();
        for (namespace, target) in targets {
            let present = self.ledgers.first(&namespace, &target);
            let first = self.first.entry((namespace, target)).or_default();
            for (_, was) in first.iter_mut().filter(|(owner, was)| Some(*owner) != present && was.until.is_none()) {
                was.until = Some(now);
                was.held = was.held.max(Some(now).filter(|now| *now >= was.since + HOLDS));
            }
            if let Some(owner) = present {
                let is = first.entry(owner.clone()).or_insert(First { since: now, until: None, held: None });
                if is.until.take().is_some() {
                    is.since = now;
                }
            }
        }
    }

    /// An instance that came though another Kubernetes name has the name by all ledgers.
    fn usurped(&self, there: &Instances, scenario: &Scenario, now: Duration) -> Option<String> {
        let mut found = None;
        for (target, of) in there {
            for set in of.iter().filter_map(|instance| instance.clusterset.as_ref()).collect::<BTreeSet<_>>() {
                let first = self.first.get(&(format!("clusterset-{set}"), target.clone()));
                let before = self.there.get(target);
                let new = of.iter().filter(|instance| instance.clusterset.as_ref() == Some(set));
                let new = new.filter(|instance| before.is_none_or(|before| !before.contains(instance)));
                for instance in new {
                    let within = |last: Option<Duration>, time| last.is_some_and(|last| now <= last + time);
                    let may = first.and_then(|first| first.get(&instance.owner)).is_some_and(
                        |First { until, held, .. }| {
                            until.is_none() || within(*until, DECIDED) || within(*held, HANDOVER + DECIDED)
                        },
                    );
                    if !may {
                        found = Some(format!("{instance:?} in {}/{}; first were {first:?}", target.0, target.1));
                    }
                }
            }
        }
        found.filter(|_| scenario.sees_claims())
    }

    /// A target with instances of several Kubernetes names for longer than one hands over to another.
    fn mixed(&mut self, there: &Instances, scenario: &Scenario, now: Duration) -> Option<String> {
        let owners =
            |of: &BTreeSet<Instance>| of.iter().map(|instance| instance.owner.clone()).collect::<BTreeSet<_>>();
        let mixed = there.iter().filter(|(_, of)| owners(of).len() > 1);
        self.mixed =
            mixed.map(|(target, _)| (target.clone(), self.mixed.get(target).copied().unwrap_or(now))).collect();
        // Another first claimant begins another hand-over.
        let changed = |target: &Name| {
            let of_target = self.first.iter().filter(|((_, of), _)| of == target).flat_map(|(_, first)| first.values());
            of_target.flat_map(|first| first.until.into_iter().chain([first.since])).max().unwrap_or_default()
        };
        let long = |(target, since): &(&Name, &Duration)| {
            now.saturating_sub((**since).max(changed(target))) > HANDOVER + HEARTBEAT + DECIDED
        };
        let (target, _) = self.mixed.iter().find(long).filter(|_| scenario.is_gentle())?;
        Some(format!("{}/{} has instances of {:?}", target.0, target.1, owners(&there[target])))
    }

    /// A target that is empty now, though an address that was there lives on and whoever may have the name has endpoints.
    fn emptied(
        &self,
        clusters: &[Cluster],
        claims: &BTreeMap<Name, Vec<Claim>>,
        there: &Instances,
        scenario: &Scenario,
        now: Duration,
    ) -> Option<String> {
        let long = if scenario.is_gentle() { 2 * HANDOVER } else { NEWS };
        for (target, former) in self.there.iter().filter(|(target, _)| !there.contains_key(*target)) {
            let candidates = candidates(target, claims.get(target).map(Vec::as_slice).unwrap_or_default());
            let ready = |owner: &Name| {
                let wants = self.wants.iter().filter(|((_, at, of, _), _)| at == target && of == owner);
                let mut ready = wants.filter_map(|(_, since)| Some(since.wanted.max(since.ready?)));
                ready.any(|since| now.saturating_sub(since) > long)
            };
            let lives = |instance: &&Instance| {
                let Some(index) = clusters.iter().position(|cluster| cluster.uid == instance.uid) else { return false };
                let (api, owner) = (&clusters[index].api, &instance.owner);
                let was_exported = self.exported.contains(&(index, target.clone(), owner.clone()));
                live(api, owner).contains(&instance.address)
                    && api.get("services", &owner.0, &owner.1).is_some()
                    && (!was_exported || exported(api, owner).is_some())
            };
            let living: Vec<_> = former.iter().filter(lives).collect();
            let uncontested = candidates.len() == 1 && living.iter().all(|it| candidates.contains_key(&it.owner));
            if !living.is_empty()
                && !candidates.is_empty()
                && candidates.keys().all(|owner| ready(owner))
                && (uncontested || scenario.is_gentle())
            {
                return Some(format!("{}/{} had {living:?}, and may have {candidates:?}", target.0, target.1));
            }
        }
        None
    }
}

/// All own instances.
fn instances(cloudmap: &CloudMap) -> Instances {
    let mut found = Instances::new();
    for service in cloudmap.services() {
        for attributes in service.instances.values().map(|instance| &instance.attributes) {
            let said = |name: &str| attributes.get(&format!("CLOUDMAP_MCS_{name}")).cloned();
            let (Some(uid), Some(namespace)) = (said("CLUSTER_UID"), cloudmap.namespace(&service.namespace_id)) else {
                continue;
            };
            let owner = said("NAMESPACE").zip(said("SERVICE")).unwrap_or_default();
            let address = attributes.get("AWS_INSTANCE_IPV4").cloned().unwrap_or_default();
            let target = (namespace.name.clone(), service.name.clone());
            let instance = Instance { uid, clusterset: said("CLUSTERSET"), owner, address };
            found.entry(target).or_default().insert(instance);
        }
    }
    found
}

/// Whether a cluster outside any ClusterSet has a registration record of a target in its ConfigMap.
fn kept(cluster: &Cluster, target: &Name) -> bool {
    let Some(object) = cluster.api.get("configmaps", OWN, "cloudmap-mcs-ledger") else { return false };
    let record: Value =
        serde_json::from_str(object["data"]["record.json"].as_str().unwrap_or_default()).unwrap_or_default();
    let mut records = record["registrations"].as_array().into_iter().flatten();
    records.any(|record| record["namespace"] == *target.0 && record["service"] == *target.1)
}
