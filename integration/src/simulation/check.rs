//! What must hold at every moment, whatever goes wrong.

use std::{collections::BTreeMap, time::Duration};

use cluster::record::HIDDEN;

use super::{
    continuity::Continuity,
    cutovers::{Course, in_record},
    effort::Effort,
    expect::Name,
    gates,
    keys::Keys,
    kubernetes::{Verb, Write},
    machine::EPOCH,
    ownership::Ownership,
    scenario::Scenario,
    silences::Silences,
    strangers::Strangers,
    unreachable,
    users::label,
    world::{Cluster, OWN, Version, World},
};

/// Longest that a cluster goes without news while nothing holds it up ([`World::held_up`]): what it does until then may be
/// about what was before.
pub(crate) const NEWS: Duration = Duration::from_secs(150);
/// The same where nothing fails.
const NEWS_AT_ONCE: Duration = Duration::from_secs(20);

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

/// What the checks remember.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// The versions of the clusters that were looked at.
    seen: Vec<Version>,
    /// The Cutover of each cluster, by UID.
    courses: BTreeMap<String, Course>,
    /// Writes since [`Self::take_writes`], but for heartbeats and Leases.
    writes: Vec<String>,
    continuity: Continuity,
    ownership: Ownership,
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
                    self.ownership.note_hidden(&cluster.uid, in_record(after), write.at);
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
        if let Some(what) = unreachable::wrong(world) {
            return Some(("nobody counts as unreachable who was reached all the time", what));
        }
        self.seen = versions;
        self.continuity.look(world, scenario).map(|what| ("a name with endpoints stays", what))
    }

    /// The writes since this was asked last.
    pub(crate) fn take_writes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.writes)
    }

    fn registry(&mut self, world: &World, scenario: &Scenario) -> Option<String> {
        for write in self.ownership.take_writes(&world.registry) {
            let owner = self.ownership.note_instance(&write);
            let of = |cluster: &&Cluster| cluster.replicas.iter().any(|replica| replica.name == write.caller);
            let Some(cluster) = world.clusters.iter().find(of) else { continue };
            let what = || format!("{} {} {}/{}", write.caller, write.operation, write.service, write.instance);
            if write.service == "clusters" && write.operation == "RegisterInstance" {
                let at = write.at.saturating_sub(EPOCH);
                self.silences.note_head(&write.namespace, &write.instance, at, scenario);
            }
            if write.operation == "CreateService" {
                self.ownership.note_service(&write, cluster);
            }
            if !self.ownership.may_write(cluster, &write, owner.as_deref()) {
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
}

/// Why a replica must not have made this write.
fn stranger(write: &Write) -> Option<String> {
    let (namespace, name) = &write.key;
    let objects = || write.before.iter().chain(&write.after);
    let ours = match write.resource {
        "events" => write.verb == Verb::Create,
        "leases" | "configmaps" | "secrets" => namespace == OWN,
        "serviceexports" | "pods" | "cutovers" | "clusterimportpolicies" => write.status,
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
