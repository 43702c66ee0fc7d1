//! What must hold at every moment, whatever goes wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cluster::record::HIDDEN;
use serde_json::Value;

use super::{
    cutovers::{Course, in_record},
    effort::Effort,
    expect::{Imported, Name, imported, live as addresses_of, merged},
    gates,
    keys::Keys,
    kubernetes::{Verb, Write},
    machine::EPOCH,
    merge::{Port, families, selects},
    scenario::Scenario,
    silences::Silences,
    strangers::Strangers,
    users::label,
    world::{Cluster, OWN, Version, World, record},
};

/// What a cluster has of a name that has endpoints.
#[derive(Debug, Clone, Default)]
struct Held {
    /// Addresses that the cluster imports or imported, and that have been live in their cluster ever since.
    addresses: BTreeSet<String>,
    import: Option<Value>,
    derived: Option<Value>,
}

/// Longest that a cluster goes without news while nothing holds it up ([`World::held_up`]): what it does until then may be
/// about what was before.
pub(crate) const NEWS: Duration = Duration::from_secs(150);
/// The same where nothing fails.
const NEWS_AT_ONCE: Duration = Duration::from_secs(20);

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

/// How long a cluster goes without news in a scenario.
pub(crate) fn news(scenario: &Scenario) -> Duration {
    if scenario.is_gentle() { NEWS_AT_ONCE } else { NEWS }
}

/// Whether what has been so `since` then is known everywhere. News does not grow old while something holds it up: several
/// troubles may follow each other.
pub(crate) fn is_old(since: &mut Duration, now: Duration, news: Duration, world: &World) -> bool {
    let is = *since == Duration::ZERO || now > *since + news;
    if !is && !world.held_up.is_empty() {
        *since = now;
    }
    is
}

/// A cluster's UID, its ClusterSet, and a name there.
pub(crate) type Key = (String, String, Name);

/// Type, ports and IP families.
type Form = (String, BTreeSet<Port>, Vec<String>);

/// What the checks remember.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    held: BTreeMap<Key, Held>,
    /// Addresses that a cluster imports although they were withdrawn. Exported anew, they may still go once: the cluster
    /// learns of one after the other.
    stale: BTreeSet<(Key, String)>,
    /// The UID of each import and the addresses that it shows, and since when.
    shown: BTreeMap<Key, ((Value, Value), Duration)>,
    /// The form of each name, and since when. Another one can take endpoints and the derived Service away.
    forms: BTreeMap<Key, (Form, Duration)>,
    /// The clusters that export each name, and since when it is these.
    exporters: BTreeMap<Key, (BTreeSet<String>, Duration)>,
    /// Since when a cluster, by its UID, has accepted another one, by its id.
    accepted: BTreeMap<(String, String), Duration>,
    /// The ClusterSet that each cluster was a member of, by UID.
    memberships: BTreeMap<String, Option<String>>,
    /// When each cluster left a ClusterSet or joined one, by UID.
    moved: BTreeMap<String, Duration>,
    /// The versions of the clusters that were looked at.
    seen: Vec<Version>,
    /// Number of the last write of Cloud Map that was looked at.
    sequence: u64,
    /// Who made each Cloud Map service, by its tag; empty: others.
    services: BTreeMap<String, String>,
    /// The same of those that clusters made, by their names.
    made: BTreeMap<(String, String), String>,
    /// The UIDs of the clusters that registered the instances, by service and id.
    instances: BTreeMap<(String, String), String>,
    /// The Cutover of each cluster, by UID.
    courses: BTreeMap<String, Course>,
    /// When each cluster, by UID, recorded an instance as hidden first, by service and id.
    recorded: BTreeMap<(String, String, String), Duration>,
    /// Writes since [`Self::take_writes`], but for heartbeats and Leases.
    writes: Vec<String>,
    keys: Keys,
    effort: Effort,
    silences: Silences,
    strangers: Strangers,
}

impl Checks {
    /// Looks at everything that happened since the last time. Gives what must not be.
    pub(crate) fn look(&mut self, world: &World, scenario: &Scenario) -> Option<(&'static str, String)> {
        for cluster in &world.clusters {
            for write in cluster.api.take_writes() {
                world.trace.line(|| format!("{} {write}", cluster.id));
                let by_replica = cluster.replicas.iter().any(|replica| replica.name == write.by);
                if write.resource == "cutovers"
                    && let Some(what) =
                        self.courses.entry(cluster.uid.clone()).or_default().look(&write, &world.callers, by_replica)
                {
                    return Some(("no step of a Cutover is left out or too short", format!("{}: {what}", cluster.id)));
                }
                if scenario.keeps_names_apart()
                    && let Some(what) = self.effort.look(cluster, &write, by_replica)
                {
                    return Some(("a change is written where it belongs, and a few times", what));
                }
                if !by_replica {
                    continue;
                }
                if write.resource == "pods"
                    && let Some(what) = gates::wrong(&world.registry, &write)
                {
                    return Some(("a gate is opened, by success only when discovery shows its pod", what));
                }
                if write.resource == "secrets"
                    && let Some(what) = self.keys.wrong(cluster, &write)
                {
                    return Some(("a cluster keeps its key", what));
                }
                if write.key.1 == HIDDEN
                    && let Some(after) = &write.after
                {
                    for (service, id) in in_record(after) {
                        self.recorded.entry((cluster.uid.clone(), service, id)).or_insert(write.at);
                    }
                }
                if let Some(what) = stranger(&write) {
                    return Some(("nothing foreign is written", format!("{}: {what}", cluster.id)));
                }
                // Where something fails or clusters go, these follow minutes later: `rates` counts them.
                let may_follow = ["configmaps", "secrets", "events"].contains(&write.resource);
                let counts = write.resource != "leases" && (!may_follow || scenario.keeps_names_apart());
                if counts && write.changed() {
                    self.writes.push(format!("{} {write}", cluster.id));
                }
            }
        }
        if let Some(what) = self.registry(world, scenario) {
            return Some(("nothing foreign is written", what));
        }
        let versions = world.versions();
        let changed = self.seen != versions;
        if let Some(what) = self.silences.look(world, scenario, changed) {
            return Some(("who is silent is reported, and loses no endpoint before its time", what));
        }
        if let Some(what) = self.strangers.look(world) {
            return Some(("what others made stays, and is said to be in the way", what));
        }
        if !changed {
            return None;
        }
        self.seen = versions;
        self.continuity(world, scenario).map(|what| ("a name with endpoints stays", what))
    }

    /// The writes since this was asked last.
    pub(crate) fn take_writes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.writes)
    }

    fn registry(&mut self, world: &World, scenario: &Scenario) -> Option<String> {
        let writes = world.registry.with(|cloudmap, _| {
            let writes = cloudmap.writes_since(self.sequence);
            for service in cloudmap.services().filter(|_| !writes.is_empty()) {
                let made_for = service.tags.get("cloudmap-mcs/made-for").cloned();
                self.services.entry(service.id.clone()).or_insert_with(|| made_for.unwrap_or_default());
            }
            writes
        });
        for write in writes {
            self.sequence = write.sequence;
            if !write.is_ok() {
                continue;
            }
            let owner = self.note_instance(&write);
            let of = |cluster: &&Cluster| cluster.replicas.iter().any(|replica| replica.name == write.caller);
            let Some(cluster) = world.clusters.iter().find(of) else { continue };
            let what = || format!("{} {} {}/{}", write.caller, write.operation, write.service, write.instance);
            if write.service == "clusters" && write.operation == "RegisterInstance" {
                let at = write.at.saturating_sub(EPOCH);
                self.silences.note_head(&write.namespace, &write.instance, at, scenario);
            }
            if write.operation == "CreateService" {
                let named = (write.namespace.clone(), write.service.clone());
                self.made.insert(named, format!("clusterset/{}", cluster.set));
            }
            if !self.may_write(cluster, &write, owner.as_deref()) {
                return Some(what());
            }
            // Heads: every heartbeat is one. Pages that nobody needs any more go after minutes, and so do former ids.
            let deletes = ["DeregisterInstance", "DeleteService"].contains(&&*write.operation);
            if write.service != "clusters" && !(write.service.starts_with("exports-") && deletes) {
                self.writes.push(what());
            }
        }
        None
    }

    /// Notes who registers and deregisters an instance. Gives the UID of the cluster whose it was; empty: somebody else's.
    fn note_instance(&mut self, write: &emulator::Write) -> Option<String> {
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
    fn may_write(&self, cluster: &Cluster, write: &emulator::Write, owner: Option<&str>) -> bool {
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

    /// The cluster itself, and those that it accepted long ago. One that took long to join may have its own imports by then,
    /// and hears of the others one after the other, of which some are older.
    fn accepted_long_ago(&mut self, cluster: &Cluster, now: Duration, news: Duration) -> BTreeSet<String> {
        let record = record(&cluster.api);
        let accepted = record["accepted"].as_object().into_iter().flat_map(|accepted| accepted.keys());
        let seen =
            accepted.map(|id| (id.clone(), *self.accepted.entry((cluster.uid.clone(), id.clone())).or_insert(now)));
        let old = seen.filter(|(_, since)| now > *since + news).map(|(id, _)| id);
        old.chain([cluster.id.clone()]).collect()
    }

    fn continuity(&mut self, world: &World, scenario: &Scenario) -> Option<String> {
        let (clusters, now, news) = (&world.clusters, world.began.elapsed(), news(scenario));
        let (mut next, mut stale) = (BTreeMap::new(), BTreeSet::new());
        for cluster in clusters {
            let membership = cluster.membership().map(str::to_owned);
            let before = self.memberships.insert(cluster.uid.clone(), membership.clone());
            if before.is_some_and(|before| before != membership) {
                self.moved.insert(cluster.uid.clone(), now);
            }
        }
        let moved = |cluster: &&Cluster| self.moved.get(&cluster.uid).is_some_and(|at| now <= *at + NEWS);
        let moved: Vec<_> = clusters.iter().filter(moved).collect();
        for cluster in clusters {
            let Cluster { id, uid, set, api, .. } = cluster;
            let (found, merged) = (imported(api), merged(clusters, cluster));
            let accepted = self.accepted_long_ago(cluster, now, news);
            let key = |name: &Name| (uid.clone(), set.clone(), name.clone());
            // What it imported as a member of another ClusterSet, or before it left, it did not import as one of this.
            let joined = self.moved.get(uid) == Some(&now);
            for (name, imported) in &found {
                let live = merged.get(name).map(|(import, _)| import.addresses()).unwrap_or_default();
                for address in imported.addresses() {
                    let withdrawn = joined || !live.contains(&address);
                    let at = (key(name), address);
                    if withdrawn || self.stale.contains(&at) {
                        stale.insert(at);
                    }
                }
            }
            for (name, (import, _)) in merged {
                let (key, live) = (key(&name), &import.addresses());
                let form = (import.type_, import.ports, import.families);
                let (known, since) = self.forms.entry(key.clone()).or_insert_with(|| (form.clone(), Duration::ZERO));
                if *known != form {
                    (*known, *since) = (form.clone(), now);
                }
                let settled = is_old(since, now, news, world);
                // Who has not heard yet of an export that came gives the Service the form of those that it knows.
                let exporters = import.clusters;
                let (known, since) =
                    self.exporters.entry(key.clone()).or_insert_with(|| (exporters.clone(), Duration::ZERO));
                if *known != exporters {
                    (*known, *since) = (exporters, now);
                }
                let all_heard = is_old(since, now, news, world) && known.is_subset(&accepted);
                let namespace = api.get("namespaces", "", &name.0);
                if namespace.is_none_or(|it| !it["metadata"]["deletionTimestamp"].is_null()) {
                    continue;
                }
                // What people do to what is imported is made good, but not before it is seen.
                let edited = world.edited.get(&(uid.clone(), name.clone())).is_some_and(|at| now <= *at + news);
                // What is foreign stays, and what expires goes.
                let expires = cluster.site.stale_ttl().is_some() && world.has_silence(news);
                let edited = edited || expires || world.is_intruded(uid, &name);
                let before = self.held.remove(&key).filter(|_| !edited).unwrap_or_default();
                let held: BTreeSet<_> = before.addresses.intersection(live).cloned().collect();
                let identity = |object: Option<std::sync::Arc<Value>>| object.map(|it| it["metadata"]["uid"].clone());
                let import = api.get("serviceimports", &name.0, &name.1);
                // Clients know the addresses of a derived Service that is made anew.
                let ips = |import: &Value| import["spec"]["ips"].as_array().is_some_and(|ips| !ips.is_empty());
                if let Some(import) = import.as_ref().filter(|import| scenario.repairs() && ips(import)) {
                    let shows = (import["metadata"]["uid"].clone(), import["spec"]["ips"].clone());
                    let (shown, since) = self.shown.entry(key.clone()).or_insert_with(|| (shows.clone(), now));
                    let is_known = is_old(since, now, news, world);
                    if *shown != shows {
                        let before = std::mem::replace(shown, shows);
                        *since = now;
                        if is_known && settled && all_heard && before.0 == shown.0 {
                            return Some(format!("{id} {}/{} had {}, now {}", name.0, name.1, before.1, shown.1));
                        }
                    }
                }
                let derived = import.as_ref().and_then(|import| {
                    import["metadata"]["annotations"]["multicluster.kubernetes.io/derived-service"].as_str()
                });
                let derived = derived.and_then(|derived| api.get("services", &name.0, derived));
                // Kubernetes does not change the first IP family of a Service: one that has another is made anew. So is one with
                // a selector, for Kubernetes makes EndpointSlices for it.
                let fits = derived.as_ref().is_some_and(|it| families(&it["spec"]) == form.2 && !selects(&it["spec"]));
                let derived = identity(derived);
                let import = identity(import.clone());
                // Without its import a name is nothing, whatever slices there are.
                let now = found.get(&name).filter(|_| import.is_some()).map(Imported::addresses).unwrap_or_default();
                if !held.is_empty() && settled {
                    let what = format!("{id} {}/{}", name.0, name.1);
                    // Who has not heard yet of an export that went gives the name the ports of that one.
                    if now.is_empty() || now.is_disjoint(live) && all_heard {
                        return Some(format!("{what} is empty, though {held:?} live and were imported"));
                    }
                    if before.import.is_some() && before.import != import {
                        return Some(format!(
                            "the ServiceImport of {what} is not the same: {:?}, {import:?}",
                            before.import
                        ));
                    }
                    if before.derived.is_some() && before.derived != derived && all_heard {
                        return Some(format!("the derived Service of {what} is not the same"));
                    }
                }
                // Others may import what a cluster said before it left, and hear of that after it joined again.
                let others = moved.iter().filter(|other| other.uid != *uid);
                let moved: BTreeSet<_> = others.flat_map(|other| addresses_of(&other.api, &name)).collect();
                let seen = now.intersection(live).filter(|address| !moved.contains(*address)).cloned();
                let seen = seen.filter(|address| !stale.contains(&(key.clone(), address.clone())));
                let addresses = held.into_iter().chain(seen).collect();
                next.insert(key, Held { addresses, import, derived: derived.filter(|_| fits) });
            }
        }
        (self.held, self.stale) = (next, stale);
        None
    }
}

/// Why a replica must not have made this write.
fn stranger(write: &Write) -> Option<String> {
    let (namespace, name) = &write.key;
    let objects = || write.before.iter().chain(&write.after);
    let ours = match write.resource {
        "events" => write.verb == Verb::Create,
        "leases" | "configmaps" | "secrets" => namespace == OWN,
        "serviceexports" | "pods" | "cutovers" => write.status,
        "serviceimports" => objects().all(|object| label(object, "cloudmap-mcs/managed-by") == "cloudmap-mcs"),
        "services" => {
            (name.starts_with("derived-") || name.ends_with("-global"))
                && objects().all(|object| label(object, "cloudmap-mcs/managed-by") == "cloudmap-mcs")
        }
        "endpointslices" => {
            objects().all(|object| label(object, "endpointslice.kubernetes.io/managed-by") == "cloudmap-mcs")
        }
        _ => false,
    };
    (!ours).then(|| write.to_string())
}
