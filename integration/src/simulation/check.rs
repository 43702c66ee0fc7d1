//! What must hold at every moment, whatever goes wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;

use super::{
    expect::{Imported, Name, imported, merged},
    kubernetes::{Verb, Write},
    merge::Port,
    scenario::Scenario,
    users::label,
    world::{Cluster, OWN, World},
};

/// What a cluster has of a name that has endpoints.
#[derive(Debug, Clone, Default)]
struct Held {
    /// Addresses that the cluster imports or imported, and that have been live in their cluster ever since.
    addresses: BTreeSet<String>,
    import: Option<Value>,
    derived: Option<Value>,
}

/// Longest that a cluster goes without news: what it does until then may be about what was before.
const NEWS: Duration = Duration::from_secs(150);
/// The same where nothing fails.
const NEWS_AT_ONCE: Duration = Duration::from_secs(20);

/// What the checks remember.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    held: BTreeMap<(String, Name), Held>,
    /// Addresses that a cluster imports although they were withdrawn. Exported anew, they may still go once: the cluster
    /// learns of one after the other.
    stale: BTreeSet<(String, Name, String)>,
    /// The versions of the clusters that were looked at.
    seen: Vec<u64>,
    /// Type and ports of each name, and since when. Another type or other ports can take endpoints and the derived Service away.
    forms: BTreeMap<Name, ((String, BTreeSet<Port>), Duration)>,
    /// Number of the last write of Cloud Map that was looked at.
    sequence: u64,
    /// Writes since [`Self::take_writes`], but for heartbeats and Leases.
    writes: Vec<String>,
}

impl Checks {
    /// Looks at everything that happened since the last time. Gives what must not be.
    pub(crate) fn look(&mut self, world: &World, scenario: &Scenario) -> Option<(&'static str, String)> {
        for cluster in &world.clusters {
            for write in cluster.api.take_writes() {
                world.trace.line(|| format!("{} {write}", cluster.id));
                if !cluster.replicas.iter().any(|replica| replica.name == write.by) {
                    continue;
                }
                if let Some(what) = stranger(&write) {
                    return Some(("nothing foreign is written", format!("{}: {what}", cluster.id)));
                }
                let counts = !["leases", "configmaps", "events"].contains(&write.resource);
                if counts && write.changed() {
                    self.writes.push(format!("{} {write}", cluster.id));
                }
            }
        }
        if let Some(what) = self.registry(world) {
            return Some(("nothing foreign is written", what));
        }
        let versions = world.versions();
        if self.seen == versions {
            return None;
        }
        self.seen = versions;
        let news = if scenario.is_gentle() { NEWS_AT_ONCE } else { NEWS };
        self.continuity(world, news).map(|what| ("a name with endpoints stays", what))
    }

    /// The writes since this was asked last.
    pub(crate) fn take_writes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.writes)
    }

    fn registry(&mut self, world: &World) -> Option<String> {
        let writes = world.registry.with(|cloudmap, _| cloudmap.writes_since(self.sequence));
        for write in writes {
            self.sequence = write.sequence;
            if !write.is_ok() || !write.caller.starts_with('c') {
                continue;
            }
            if write.instance.starts_with("ecs-") || write.service == "legacy" {
                return Some(format!("{} {} {}/{}", write.caller, write.operation, write.service, write.instance));
            }
            // Heads: every heartbeat is one. Pages that nobody needs any more go after minutes.
            let is_page = write.service.starts_with("exports-") && write.operation == "DeregisterInstance";
            if write.service != "clusters" && !is_page {
                self.writes.push(format!("{} {} {}/{}", write.caller, write.operation, write.service, write.instance));
            }
        }
        None
    }

    fn continuity(&mut self, world: &World, news: Duration) -> Option<String> {
        let (clusters, now) = (&world.clusters, world.began.elapsed());
        let mut exported: BTreeMap<Name, BTreeSet<String>> = BTreeMap::new();
        let mut settled = BTreeSet::new();
        for (name, (import, _)) in merged(clusters) {
            exported.insert(name.clone(), import.addresses());
            let form = (import.type_, import.ports);
            let (known, since) = self.forms.entry(name.clone()).or_insert_with(|| (form.clone(), Duration::ZERO));
            if *known != form {
                (*known, *since) = (form, now);
            }
            if *since == Duration::ZERO || now > *since + news {
                settled.insert(name);
            }
        }
        let (mut next, mut stale) = (BTreeMap::new(), BTreeSet::new());
        for Cluster { id, api, .. } in clusters {
            let found = imported(api);
            for (name, imported) in &found {
                for address in imported.addresses() {
                    let withdrawn = exported.get(name).is_none_or(|live| !live.contains(&address));
                    let at = (id.clone(), name.clone(), address);
                    if withdrawn || self.stale.contains(&at) {
                        stale.insert(at);
                    }
                }
            }
            for (name, live) in &exported {
                let namespace = api.get("namespaces", "", &name.0);
                if namespace.is_none_or(|it| !it["metadata"]["deletionTimestamp"].is_null()) {
                    continue;
                }
                let key = (id.clone(), name.clone());
                let before = self.held.remove(&key).unwrap_or_default();
                let held: BTreeSet<_> = before.addresses.intersection(live).cloned().collect();
                let uid = |object: Option<std::sync::Arc<Value>>| object.map(|it| it["metadata"]["uid"].clone());
                let import = api.get("serviceimports", &name.0, &name.1);
                let derived = import.as_ref().and_then(|import| {
                    import["metadata"]["annotations"]["multicluster.kubernetes.io/derived-service"].as_str()
                });
                let derived = uid(derived.and_then(|derived| api.get("services", &name.0, derived)));
                let import = uid(import.clone());
                // Without its import a name is nothing, whatever slices there are.
                let now = found.get(name).filter(|_| import.is_some()).map(Imported::addresses).unwrap_or_default();
                if !held.is_empty() && settled.contains(name) {
                    let what = format!("{id} {}/{}", name.0, name.1);
                    if now.is_disjoint(live) {
                        return Some(format!("{what} is empty, though {held:?} live and were imported"));
                    }
                    if before.import.is_some() && before.import != import {
                        return Some(format!(
                            "the ServiceImport of {what} is not the same: {:?}, {import:?}",
                            before.import
                        ));
                    }
                    if before.derived.is_some() && before.derived != derived {
                        return Some(format!("the derived Service of {what} is not the same"));
                    }
                }
                let seen = now.intersection(live).cloned();
                let seen = seen.filter(|address| !stale.contains(&(id.clone(), name.clone(), address.clone())));
                let addresses = held.into_iter().chain(seen).collect();
                next.insert(key, Held { addresses, import, derived });
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
        "leases" | "configmaps" => namespace == OWN,
        "serviceexports" => write.status,
        "serviceimports" => objects().all(|object| label(object, "cloudmap-mcs/managed-by") == "cloudmap-mcs"),
        "services" => {
            name.starts_with("derived-")
                && objects().all(|object| label(object, "cloudmap-mcs/managed-by") == "cloudmap-mcs")
        }
        "endpointslices" => {
            objects().all(|object| label(object, "endpointslice.kubernetes.io/managed-by") == "cloudmap-mcs")
        }
        _ => false,
    };
    (!ours).then(|| write.to_string())
}
