//! That a port of a derived Service keeps its endpoints, as kube-proxy sees them: the Service and its EndpointSlices belong
//! together by the names of ports.
//!
//! The oldest export of a name decides about its type and its IP families, and all of its ports are served, whatever
//! others export and however late a cluster hears of that. A cluster hears what one exporter says in order. So an endpoint
//! that the oldest export has had for the number of a port without a break is never to be missed once it is there: while
//! the port gets another name, EndpointSlices have both names until the Service has the new one. An exporter says the new
//! name of a port only together with endpoints that have it, and holds the old export for up to 5 s until there are any.
//!
//! What other exports add may come and go with the oldest one's ports, and headless Services are not behind kube-proxy.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;

use super::{
    check::{Key, is_old, news},
    expect::{Name, exports},
    kubernetes::ApiServer,
    merge::{Export, Pair, ports},
    scenario::Scenario,
    users::{addresses, annotation, is_terminating, label},
    world::{Cluster, Version, World},
};

/// Whose endpoints these are. Another one may take all of them away.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    /// All exporters, and the UIDs of the oldest one's ServiceExport and Service.
    exporters: BTreeSet<String>,
    export: Value,
    service: Value,
    families: Vec<String>,
}

/// What is known of a name in a cluster.
#[derive(Debug, Default)]
struct Known {
    /// `None`: nobody exports it to this cluster, or it is headless.
    source: Option<Source>,
    /// Since when it has been this source.
    since: Duration,
    /// What the source has without a break, since when.
    lives: BTreeMap<Pair, Duration>,
    /// The UID of the derived Service.
    derived: Option<Value>,
    /// What the derived Service had of it last.
    served: BTreeSet<Pair>,
    /// What the derived Service has although the source had it not: that may still go once, if it came back.
    stale: BTreeSet<Pair>,
}

/// What the check remembers.
#[derive(Debug, Default)]
pub(crate) struct DerivedPorts {
    /// The versions of the clusters that were looked at.
    seen: Vec<Version>,
    known: BTreeMap<Key, Known>,
}

impl DerivedPorts {
    /// Looks at everything that happened since the last time. Gives what must not be.
    pub(crate) fn look(&mut self, world: &World, scenario: &Scenario) -> Option<(&'static str, String)> {
        if !scenario.sees_at_once() {
            return None;
        }
        let versions = world.versions();
        if self.seen == versions {
            return None;
        }
        self.seen = versions;
        let mut present = BTreeSet::new();
        for cluster in &world.clusters {
            for (name, exports) in exports(&world.clusters, cluster) {
                let key = (cluster.uid.clone(), cluster.set.clone(), name.clone());
                let Some((source, lives)) = source(world, cluster, &name, &exports) else {
                    self.known.entry(key).or_default();
                    continue;
                };
                present.insert(key.clone());
                let found = derived(&cluster.api, &name);
                if let Some((number, address)) = self.follow(world, news(scenario), key, source, lives, found) {
                    let what = format!("{} {}/{}: {address} at port {number}", cluster.id, name.0, name.1);
                    return Some(("a port of a derived Service keeps its endpoints", what));
                }
            }
        }
        for (_, known) in self.known.iter_mut().filter(|(key, _)| !present.contains(*key)) {
            *known = Known::default();
        }
        None
    }

    /// Takes in what a source has, and what the derived Service has of it. Gives what that one has lost.
    fn follow(
        &mut self,
        world: &World,
        news: Duration,
        key: Key,
        source: Source,
        lives: BTreeSet<Pair>,
        found: Option<(Value, BTreeSet<Pair>)>,
    ) -> Option<Pair> {
        let now = world.began.elapsed();
        // What was there from the beginning is known everywhere before anything goes wrong.
        let since = if self.known.contains_key(&key) { now } else { Duration::ZERO };
        let known = self.known.entry(key).or_default();
        if known.source.as_ref() != Some(&source) {
            *known = Known { source: Some(source), since, ..Known::default() };
        }
        let settled = is_old(&mut known.since, now, news, world);
        let before = std::mem::take(&mut known.lives);
        for pair in lives {
            let since = before.get(&pair).copied().unwrap_or(since);
            known.lives.insert(pair, since);
        }
        let (uid, has) = found.map_or((None, BTreeSet::new()), |(uid, has)| (Some(uid), has));
        let mut lost = None;
        let stays = uid.is_some() && known.derived == uid;
        for (pair, since) in &mut known.lives {
            let old = is_old(since, now, news, world);
            if lost.is_none() && stays && settled && old && known.served.contains(pair) && !has.contains(pair) {
                lost = Some(pair.clone());
            }
        }
        let is_stale = |pair: &&Pair| !known.lives.contains_key(*pair) || known.stale.contains(*pair);
        let stale: BTreeSet<Pair> = has.iter().filter(is_stale).cloned().collect();
        known.served = has.difference(&stale).cloned().collect();
        (known.derived, known.stale) = (uid, stale);
        lost
    }
}

/// The oldest export, and what it has for clients of a cluster.
fn source(world: &World, cluster: &Cluster, name: &Name, exports: &[Export]) -> Option<(Source, BTreeSet<Pair>)> {
    let oldest = exports.iter().min().filter(|oldest| !oldest.headless)?;
    let families: Vec<String> = oldest.families_in(cluster.site).cloned().collect();
    let namespace = cluster.api.get("namespaces", "", &name.0).filter(|namespace| !is_terminating(namespace));
    if families.is_empty() || namespace.is_none() {
        return None;
    }
    let exporter = world.clusters.iter().find(|cluster| cluster.id == oldest.cluster)?;
    let uid = |plural: &str| Some(exporter.api.get(plural, &name.0, &name.1)?["metadata"]["uid"].clone());
    let (export, service) = (uid("serviceexports")?, uid("services")?);
    let lives = oldest.pairs(&families);
    let exporters = exports.iter().map(|export| export.cluster.clone()).collect();
    Some((Source { exporters, export, service, families }, lives))
}

/// The UID of the derived Service of an import, and what clients find behind the numbers of its ports.
fn derived(api: &ApiServer, name: &Name) -> Option<(Value, BTreeSet<Pair>)> {
    let import = api.get("serviceimports", &name.0, &name.1)?;
    let derived = annotation(&import, "multicluster.kubernetes.io/derived-service")?;
    let service = api.get("services", &name.0, derived)?;
    let is_of =
        |(key, slice): &(Name, Arc<Value>)| key.0 == name.0 && label(slice, "kubernetes.io/service-name") == derived;
    let slices: Vec<_> = api.list("endpointslices").into_iter().filter(is_of).map(|(_, slice)| slice).collect();
    let mut pairs = BTreeSet::new();
    for (port, number) in ports(&service["spec"]) {
        let has =
            |slice: &&Arc<Value>| slice["ports"].as_array().is_some_and(|all| all.iter().any(|of| of["name"] == *port));
        let found = slices.iter().filter(has).flat_map(|slice| addresses(slice));
        pairs.extend(found.map(|address| (number, address)));
    }
    Some((service["metadata"]["uid"].clone(), pairs))
}
