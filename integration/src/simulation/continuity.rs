//! A name that has endpoints keeps them, its import and its derived Service, whatever goes wrong.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use super::{
    check::{Key, NEWS, is_old, news},
    expect::{Imported, Merged, Name, imported, live, merged_without},
    merge::{Port, families, selects},
    scenario::Scenario,
    world::{Cluster, World, record},
};

/// What a cluster has of a name that has endpoints.
#[derive(Debug, Clone, Default)]
struct Held {
    /// Addresses that the cluster imports or imported, and that have been live in their cluster ever since.
    addresses: BTreeSet<String>,
    import: Option<Value>,
    derived: Option<Value>,
}

/// Type, ports and IP families.
type Form = (String, BTreeSet<Port>, Vec<String>);

/// What the check remembers.
#[derive(Debug, Default)]
pub(crate) struct Continuity {
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
}

/// Where the check looks.
#[derive(Clone, Copy)]
struct Look<'a> {
    world: &'a World,
    scenario: &'a Scenario,
    cluster: &'a Cluster,
    now: Duration,
    news: Duration,
}

impl Look<'_> {
    fn key(&self, name: &Name) -> Key {
        (self.cluster.uid.clone(), self.cluster.set.clone(), name.clone())
    }

    fn is_old(&self, since: &mut Duration) -> bool {
        is_old(since, self.now, self.news, self.world)
    }

    /// Whether what a name has may go for another reason than its exports.
    fn may_go(&self, name: &Name) -> bool {
        let Self { world, cluster, now, news, .. } = *self;
        // What people do to what is imported is made good, but not before it is seen.
        let edited = world.edited.get(&(cluster.uid.clone(), name.clone())).is_some_and(|at| now <= *at + news);
        // What is foreign stays, and what expires goes.
        let expires = cluster.site.stale_ttl().is_some() && world.has_silence(news);
        edited || expires || world.is_intruded(&cluster.uid, name)
    }

    /// The addresses that other clusters had before they moved to another ClusterSet. Others may import what a cluster
    /// said before it left, and hear of that after it joined again.
    fn left_behind(&self, name: &Name, moved: &BTreeMap<String, Duration>) -> BTreeSet<String> {
        let moved = |other: &&Cluster| moved.get(&other.uid).is_some_and(|at| self.now <= *at + NEWS);
        let others = self.world.clusters.iter().filter(moved).filter(|other| other.uid != self.cluster.uid);
        others.flat_map(|other| live(&other.api, name)).collect()
    }
}

/// What a name should be in a cluster.
struct Expected {
    /// The addresses that are exported.
    live: BTreeSet<String>,
    families: Vec<String>,
    /// Its form is the same as long ago.
    settled: bool,
    /// The cluster has heard of all who export it.
    all_heard: bool,
}

impl Continuity {
    /// Looks at what every cluster imports. Gives what must not be.
    pub(crate) fn look(&mut self, world: &World, scenario: &Scenario) -> Option<String> {
        let (now, news) = (world.began.elapsed(), news(scenario));
        self.note_moves(&world.clusters, now);
        let (mut next, mut stale) = (BTreeMap::new(), BTreeSet::new());
        for (index, cluster) in world.clusters.iter().enumerate() {
            let look = Look { world, scenario, cluster, now, news };
            let lost = |other: usize| world.network.as_ref().is_some_and(|network| network.lost(index, other, news));
            let (found, merged) = (imported(&cluster.api), merged_without(&world.clusters, cluster, lost));
            let accepted = self.accepted_long_ago(cluster, now, news);
            self.note_stale(&look, &found, &merged, &mut stale);
            for (name, (import, _)) in merged {
                let expected = self.expected(&look, &name, import, &accepted);
                let namespace = cluster.api.get("namespaces", "", &name.0);
                if namespace.is_none_or(|it| !it["metadata"]["deletionTimestamp"].is_null()) {
                    continue;
                }
                match self.compare(&look, &name, found.get(&name), &expected) {
                    Ok((mut held, mut seen)) => {
                        let key = look.key(&name);
                        seen.retain(|address| !stale.contains(&(key.clone(), address.clone())));
                        held.addresses.extend(seen);
                        next.insert(key, held);
                    }
                    Err(what) => return Some(what),
                }
            }
        }
        (self.held, self.stale) = (next, stale);
        None
    }

    /// Notes which clusters left a ClusterSet or joined one.
    fn note_moves(&mut self, clusters: &[Cluster], now: Duration) {
        for cluster in clusters {
            let membership = cluster.membership().map(str::to_owned);
            let before = self.memberships.insert(cluster.uid.clone(), membership.clone());
            if before.is_some_and(|before| before != membership) {
                self.moved.insert(cluster.uid.clone(), now);
            }
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

    /// Notes the addresses that a cluster imports although they were withdrawn.
    fn note_stale(
        &self,
        look: &Look<'_>,
        found: &BTreeMap<Name, Imported>,
        merged: &Merged,
        stale: &mut BTreeSet<(Key, String)>,
    ) {
        // What it imported as a member of another ClusterSet, or before it left, it did not import as one of this.
        let joined = self.moved.get(&look.cluster.uid) == Some(&look.now);
        for (name, imported) in found {
            let live = merged.get(name).map(|(import, _)| import.addresses()).unwrap_or_default();
            for address in imported.addresses() {
                let withdrawn = joined || !live.contains(&address);
                let at = (look.key(name), address);
                if withdrawn || self.stale.contains(&at) {
                    stale.insert(at);
                }
            }
        }
    }

    /// What a name should be in a cluster, of the exports together, and whether the cluster should know that.
    fn expected(&mut self, look: &Look<'_>, name: &Name, import: Imported, accepted: &BTreeSet<String>) -> Expected {
        let (key, live, families) = (look.key(name), import.addresses(), import.families.clone());
        let form = (import.type_, import.ports, import.families);
        let (known, since) = self.forms.entry(key.clone()).or_insert_with(|| (form.clone(), Duration::ZERO));
        if *known != form {
            (*known, *since) = (form, look.now);
        }
        let settled = look.is_old(since);
        // Who has not heard yet of an export that came gives the Service the form of those that it knows.
        let exporters = import.clusters;
        let (known, since) = self.exporters.entry(key).or_insert_with(|| (exporters.clone(), Duration::ZERO));
        if *known != exporters {
            (*known, *since) = (exporters, look.now);
        }
        let all_heard = look.is_old(since) && known.is_subset(accepted);
        Expected { live, families, settled, all_heard }
    }

    /// Compares what a cluster has of a name with what it had. Gives what it held and has, and the addresses that it has
    /// and should have; or what must not be.
    fn compare(
        &mut self,
        look: &Look<'_>,
        name: &Name,
        found: Option<&Imported>,
        expected: &Expected,
    ) -> Result<(Held, BTreeSet<String>), String> {
        let (key, api) = (look.key(name), &look.cluster.api);
        let before = self.held.remove(&key).filter(|_| !look.may_go(name)).unwrap_or_default();
        let held: BTreeSet<_> = before.addresses.intersection(&expected.live).cloned().collect();
        let import = api.get("serviceimports", &name.0, &name.1);
        self.ips_stay(look, name, import.as_deref(), expected)?;
        let derived = import.as_ref().and_then(|import| {
            import["metadata"]["annotations"]["multicluster.kubernetes.io/derived-service"].as_str()
        });
        let derived = derived.and_then(|derived| api.get("services", &name.0, derived));
        // Kubernetes does not change the first IP family of a Service: one that has another is made anew. So is one with
        // a selector, for Kubernetes makes EndpointSlices for it.
        let fits =
            derived.as_ref().is_some_and(|it| families(&it["spec"]) == expected.families && !selects(&it["spec"]));
        let identity = |object: Option<Arc<Value>>| object.map(|it| it["metadata"]["uid"].clone());
        let (derived, import) = (identity(derived), identity(import));
        // Without its import a name is nothing, whatever slices there are.
        let now = found.filter(|_| import.is_some()).map(Imported::addresses).unwrap_or_default();
        if !held.is_empty() && expected.settled {
            let what = format!("{} {}/{}", look.cluster.id, name.0, name.1);
            // Who has not heard yet of an export that went gives the name the ports of that one.
            if now.is_empty() || now.is_disjoint(&expected.live) && expected.all_heard {
                return Err(format!("{what} is empty, though {held:?} live and were imported"));
            }
            if before.import.is_some() && before.import != import {
                return Err(format!("the ServiceImport of {what} is not the same: {:?}, {import:?}", before.import));
            }
            if before.derived.is_some() && before.derived != derived && expected.all_heard {
                return Err(format!("the derived Service of {what} is not the same"));
            }
        }
        let left_behind = look.left_behind(name, &self.moved);
        let seen =
            now.intersection(&expected.live).filter(|address| !left_behind.contains(*address)).cloned().collect();
        Ok((Held { addresses: held, import, derived: derived.filter(|_| fits) }, seen))
    }

    /// Clients know the addresses of a derived Service that is made anew.
    fn ips_stay(
        &mut self,
        look: &Look<'_>,
        name: &Name,
        import: Option<&Value>,
        expected: &Expected,
    ) -> Result<(), String> {
        let ips = |import: &Value| import["spec"]["ips"].as_array().is_some_and(|ips| !ips.is_empty());
        let Some(import) = import.filter(|import| look.scenario.repairs() && ips(import)) else { return Ok(()) };
        let shows = (import["metadata"]["uid"].clone(), import["spec"]["ips"].clone());
        let (shown, since) = self.shown.entry(look.key(name)).or_insert_with(|| (shows.clone(), look.now));
        let is_known = look.is_old(since);
        if *shown != shows {
            let before = std::mem::replace(shown, shows);
            *since = look.now;
            if is_known && expected.settled && expected.all_heard && before.0 == shown.0 {
                let id = &look.cluster.id;
                return Err(format!("{id} {}/{} had {}, now {}", name.0, name.1, before.1, shown.1));
            }
        }
        Ok(())
    }
}
