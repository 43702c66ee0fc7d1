//! A cluster whose ledger says nothing for so long that the others report it: written from `docs/operations.md` and from
//! rule R7 of `docs/ledger.md`, not from the product's clocks.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use cluster::lease::LEASE;
use serde_json::Value;

use super::{
    check::NEWS,
    expect::{Name, imported},
    scenario::Scenario,
    world::{Cluster, OWN, World},
};

/// After this time, a cluster is reported as silent.
const SILENT: Duration = Duration::from_mins(5);
/// Who reports it counts from the heads that it read: nobody reads one before it was written.
const EARLY: Duration = Duration::from_secs(20);
/// Where heads can be hidden, the last one that others saw may be older than the last one.
const HIDDEN: Duration = Duration::from_mins(3);
/// The silence is counted in heartbeats of the own ledger, of 20 s, from the second one of a term on. Then objects are written.
const LATE: Duration = Duration::from_secs(90);
/// Until the last that a cluster said is imported everywhere.
const LAST_WORDS: Duration = Duration::from_secs(90);

/// What a cluster that is silent does not reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Neither its API server nor Cloud Map.
    Everything,
    Kubernetes,
    CloudMap,
}

impl Way {
    pub(crate) const ALL: [Self; 3] = [Self::Everything, Self::Kubernetes, Self::CloudMap];
}

/// Which cluster is silent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Silence {
    /// The step that made it so.
    pub(crate) step: usize,
    pub(crate) cluster: usize,
    pub(crate) since: Duration,
}

impl World {
    /// Whether a cluster is silent, or was until so long ago.
    pub(crate) fn has_silence(&self, ago: Duration) -> bool {
        self.silent.is_some() || self.heard.is_some_and(|at| self.began.elapsed() <= at + ago)
    }
}

/// What the check remembers. Clusters are named by their UIDs.
#[derive(Debug, Default)]
pub(crate) struct Silences {
    /// When each cluster, by the ledger's namespace and its id, wrote its head last.
    heads: BTreeMap<(String, String), Duration>,
    /// The same of the last one that followed a silence.
    back: BTreeMap<(String, String), Duration>,
    /// The ids of the clusters of which each import says that they are silent.
    said: BTreeMap<(String, Name), BTreeSet<String>>,
    /// Who leads each cluster, and since when.
    leaders: BTreeMap<String, (Value, Duration)>,
    /// The step of the present silence, of which the rest is.
    step: Option<usize>,
    /// What each cluster had imported from the silent one.
    had: BTreeMap<String, BTreeSet<(Name, String)>>,
    /// The clusters that have withdrawn it.
    withdrawn: BTreeSet<String>,
    /// The names that are not as they should be, and since when.
    late: BTreeMap<(String, Name), Duration>,
}

impl Silences {
    /// A cluster wrote its head into the ledger in a namespace.
    pub(crate) fn note_head(&mut self, namespace: &str, id: &str, at: Duration, scenario: &Scenario) {
        let key = (namespace.to_owned(), id.to_owned());
        let before = self.heads.insert(key.clone(), at);
        if before.is_some_and(|before| at.saturating_sub(before) >= least(scenario)) {
            self.back.insert(key, at);
        }
    }

    /// Gives what is said, or imported, of a cluster and should not be. `changed`: objects are others than before.
    pub(crate) fn look(&mut self, world: &World, scenario: &Scenario, changed: bool) -> Option<String> {
        let now = world.began.elapsed();
        if changed && let Some(what) = self.unfounded(world, scenario, now) {
            return Some(what);
        }
        for Cluster { uid, api, .. } in &world.clusters {
            let lease = api.get("leases", OWN, LEASE);
            let holder = lease.map(|lease| lease["spec"]["holderIdentity"].clone()).unwrap_or_default();
            if self.leaders.get(uid).is_none_or(|(known, _)| *known != holder) {
                self.leaders.insert(uid.clone(), (holder, now));
            }
        }
        self.unheard(world, now)
    }

    /// An import that begins to say that a cluster is silent, though it was heard all the time.
    fn unfounded(&mut self, world: &World, scenario: &Scenario, now: Duration) -> Option<String> {
        let (mut said, mut wrong) = (BTreeMap::new(), None);
        for Cluster { id, uid, set, api, .. } in &world.clusters {
            for (name, import) in api.list("serviceimports") {
                let (key, silent) = ((uid.clone(), name), silent(&import));
                for other in &silent {
                    let before = self.said.get(&key).is_some_and(|before| before.contains(other));
                    let head = head(set, other);
                    let quiet = self.heads.get(&head).is_none_or(|at| now.saturating_sub(*at) >= least(scenario));
                    let back = self.back.get(&head).is_some_and(|at| now <= *at + NEWS);
                    if !before && !quiet && !back {
                        wrong = Some(format!("{id} says of {:?} that {other} is silent, and it is not", key.1));
                    }
                }
                said.insert(key, silent);
            }
        }
        self.said = said;
        wrong
    }

    /// What the other clusters do not make of a silence, or do too early.
    fn unheard(&mut self, world: &World, now: Duration) -> Option<String> {
        let silence = world.silent?;
        if self.step != Some(silence.step) {
            self.step = Some(silence.step);
            (self.had, self.withdrawn, self.late) = Default::default();
        }
        let (quiet, prefix) = (&world.clusters[silence.cluster].id, format!("10.{}.", silence.cluster + 1));
        let mut late = BTreeMap::new();
        for (index, Cluster { id, uid, set, site, api, .. }) in world.clusters.iter().enumerate() {
            if index == silence.cluster {
                continue;
            }
            let found = imported(api);
            let mut theirs = BTreeSet::new();
            for (name, import) in &found {
                let addresses = import.addresses().into_iter().filter(|address| address.starts_with(&*prefix));
                theirs.extend(addresses.map(|address| (name.clone(), address)));
            }
            let led = self.leaders.get(uid).map_or(now, |(_, since)| *since);
            if now >= silence.since + LAST_WORDS && !self.had.contains_key(uid) {
                // A new leader may still import what was said last.
                let had = if led < silence.since { theirs.clone() } else { BTreeSet::new() };
                self.had.insert(uid.clone(), had);
            }
            let (ttl, last) = (site.stale_ttl(), self.heads.get(&head(set, quiet)).copied().unwrap_or_default());
            let may_go = ttl.is_some_and(|ttl| now + EARLY >= last + ttl);
            let gone = self.had.get(uid).into_iter().flatten().find(|had| !theirs.contains(*had));
            if let Some((name, address)) = gone.filter(|_| !may_go) {
                return Some(format!("{id} has withdrawn {address} of {name:?}, and {quiet} is only silent"));
            }
            // The time counts anew for each leader, but what was withdrawn stays so.
            let begun = silence.since.max(led);
            let expired = ttl.is_some_and(|ttl| now >= begun + ttl);
            if self.withdrawn.contains(uid) && !theirs.is_empty() {
                return Some(format!("{id} had withdrawn what {quiet} exports, and has {theirs:?}"));
            }
            if expired && theirs.is_empty() {
                self.withdrawn.insert(uid.clone());
            }
            for (name, import) in &found {
                let object = api.get("serviceimports", &name.0, &name.1).unwrap_or_default();
                let unsaid = import.clusters.contains(quiet) && !silent(&object).contains(quiet);
                let unsaid = unsaid && now >= begun + SILENT;
                let kept = expired && theirs.iter().any(|(of, _)| of == name);
                if unsaid || kept {
                    let key = (uid.clone(), name.clone());
                    let since = self.late.get(&key).copied().unwrap_or(now);
                    if now > since + LATE {
                        let what = if unsaid { "does not report" } else { "keeps endpoints of" };
                        return Some(format!("{id} {what} {quiet}, which is silent, in {name:?} since {since:.1?}"));
                    }
                    late.insert(key, since);
                }
            }
        }
        self.late = late;
        None
    }
}

/// How long a cluster has to be silent before anybody may say so.
fn least(scenario: &Scenario) -> Duration {
    SILENT.saturating_sub(if scenario.sees_claims() { EARLY } else { HIDDEN })
}

/// Where a cluster of a ClusterSet writes its head.
fn head(set: &str, id: &str) -> (String, String) {
    (format!("clusterset-{set}"), id.to_owned())
}

/// The ids of the clusters of which an import says that they are silent.
fn silent(import: &Value) -> BTreeSet<String> {
    let mut conditions = import["status"]["conditions"].as_array().into_iter().flatten();
    let stale = conditions.find(|condition| condition["type"] == "Stale" && condition["status"] == "True");
    let message = stale.and_then(|stale| stale["message"].as_str()).unwrap_or_default();
    // In quotes, and nothing else is.
    message.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}
