//! Clusters that cannot be reached from this one: which endpoints are tried, and what follows from the verdicts.
//!
//! Who is unreachable is published with the properties of this cluster, so that a new leader begins with what the former one knew.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tracing::{info, warn};

use super::{
    Mode,
    core::{Command, Core, Now},
    dirty::Fact,
};
use api::conditions::{ImportCondition, SharedCondition, find};
use cluster::objects::ServiceImport;
use import::{Unreachable, is_said_of, usable};
use ledger::Map;
use model::{ClusterId, Endpoint, Exported, IpFamily, Protocol, ServiceKey};
use reachability::{Candidates, Evidence, Party, Questions, Verdict, Verdicts};

/// How often the endpoints that may be tried are chosen anew.
const CHOSEN: Duration = Duration::from_secs(10);
/// So many endpoints of a cluster may be tried at most.
const CANDIDATES: usize = 12;
/// So many names of a Kubernetes namespace, and so many of a cluster, are looked at for them.
const NAMES_IN_NAMESPACE: usize = 8;
const NAMES: usize = 64;

/// What is known of whether other clusters can be reached.
#[derive(Debug, Clone)]
pub(super) struct Reachability {
    /// `--probe`
    enabled: bool,
    unreachable: BTreeMap<ClusterId, Unreachable>,
    asked: Arc<Questions>,
    /// When the endpoints are chosen next.
    next: Duration,
}

impl Reachability {
    pub(super) fn new(enabled: bool) -> Self {
        Self { enabled, unreachable: BTreeMap::new(), asked: Arc::default(), next: Duration::ZERO }
    }

    /// Whether a cluster cannot be reached from this one.
    pub(super) fn is_unreachable(&self, cluster: &ClusterId) -> bool {
        self.unreachable.contains_key(cluster)
    }
}

impl Core {
    /// Takes in what an earlier leader published.
    pub(super) fn resume_unreachable(&mut self, own: &Map) {
        for (cluster, since) in api::unreachable::read(&records::properties::read(own)) {
            let unreachable = Unreachable { since, tried: None };
            self.importing.reachability.unreachable.entry(cluster).or_insert(unreachable);
        }
    }

    /// Those of a name's sources that cannot be reached from this cluster. Until it is known what the former leader published, what
    /// the import says counts.
    pub(super) fn unreachable<'a>(
        &self,
        import: Option<&ServiceImport>,
        sources: impl Iterator<Item = &'a ClusterId>,
    ) -> BTreeMap<ClusterId, Unreachable> {
        let is_known = self.knowledge.exports().is_some() || self.settings.mode != Mode::Member;
        let conditions = import.map(|import| &*import.status.conditions).unwrap_or_default();
        let said = find(conditions, ImportCondition::Unreachable.as_str()).filter(|_| !is_known);
        let of = |cluster: &ClusterId| {
            let said = said.filter(|said| is_said_of(&said.message, cluster));
            let since = |said: &SharedCondition| said.last_transition_time.as_second();
            let known = self.importing.reachability.unreachable.get(cluster).copied();
            known.or_else(|| Some(Unreachable { since: since(said?), tried: None }))
        };
        sources.filter_map(|cluster| Some((cluster.clone(), of(cluster)?))).collect()
    }

    /// The properties to publish.
    pub(super) fn verdicts(&self) -> Vec<(String, String)> {
        let unreachable = self.importing.reachability.unreachable.iter();
        unreachable.map(|(cluster, it)| (api::unreachable::property(cluster), it.since.to_string())).collect()
    }

    /// Chooses the endpoints that may be tried, if it is time.
    pub(super) fn choose_endpoints_in_time(&mut self, now: Now) {
        if self.importing.reachability.next <= now.mono {
            self.choose_endpoints(now);
        }
    }

    /// Chooses the endpoints that may be tried.
    pub(super) fn choose_endpoints(&mut self, now: Now) {
        self.importing.reachability.next = now.mono + CHOSEN;
        let is_known = |cluster: &ClusterId| self.knowledge.is_live(cluster);
        let streams = self.term.status.connected.is_some();
        let looks = self.importing.reachability.enabled && self.settings.mode == Mode::Member && streams;
        // Before the first status of this term, nobody knows whether leaders talk to each other.
        let stays = |cluster: &ClusterId| !self.knowledge.has_read() || looks && is_known(cluster);
        let unreachable = self.importing.reachability.unreachable.keys();
        let over: Vec<_> = unreachable.filter(|cluster| !stays(cluster)).cloned().collect();
        for cluster in over {
            self.set_reachable(&cluster);
        }
        let questions = if looks { self.questions() } else { Questions::new() };
        if *self.importing.reachability.asked != questions {
            self.importing.reachability.asked = Arc::new(questions);
            self.out.push(Command::Reach(Arc::clone(&self.importing.reachability.asked)));
        }
    }

    fn questions(&self) -> Questions {
        let connected = self.term.status.connected.iter().flatten();
        let connected: Vec<_> = connected.collect();
        let of = |cluster: &ClusterId| {
            let exports = self.knowledge.exports_of(cluster, |key| self.may_import(key), NAMES_IN_NAMESPACE);
            let candidates = Candidates {
                connected: connected.iter().any(|id| ***id == *cluster.as_str()),
                unreachable: self.importing.reachability.unreachable.contains_key(cluster),
                endpoints: self.chosen_of(exports.take(NAMES).map(|(key, exported)| (key, Arc::new(exported)))),
            };
            (Party::There(cluster.clone()), candidates)
        };
        let is_asked = |candidates: &Candidates| !candidates.endpoints.is_empty() || candidates.unreachable;
        let mut questions: Questions = self.knowledge.live().map(of).filter(|(_, it)| is_asked(it)).collect();
        if questions.is_empty() {
            return questions;
        }
        let planned = self.knowledge.planned_names().filter_map(|key| {
            let exported = self.knowledge.planned(key)?.as_ref().ok()?;
            Some((key, Arc::clone(exported)))
        });
        let endpoints = self.chosen_of(planned.take(NAMES));
        questions.insert(Party::Here, Candidates { connected: true, unreachable: false, endpoints });
        questions
    }

    fn may_import(&self, key: &ServiceKey) -> bool {
        self.is_here(key) && !self.importing.subscriptions.refuses(key)
    }

    /// Some ready endpoints of a cluster, of as many Kubernetes namespaces and nodes as there are: no one's pods alone shall decide
    /// about the cluster.
    fn chosen_of<'a>(
        &self,
        exports: impl Iterator<Item = (&'a ServiceKey, Arc<Exported>)>,
    ) -> BTreeMap<SocketAddr, Arc<str>> {
        let (mut namespaces, mut nodes) = (BTreeMap::<&Arc<str>, usize>::new(), BTreeMap::<Arc<str>, usize>::new());
        let mut ordered = Vec::new();
        for (key, exported) in exports {
            for endpoint in exported.endpoints.iter().filter(|endpoint| endpoint.conditions.ready) {
                // Endpoints without a node are not pods.
                let Some((at, node)) = self.address_of(endpoint).zip(endpoint.node.as_ref()) else { continue };
                let in_namespace = namespaces.entry(&key.namespace).or_default();
                let on_node = nodes.entry(Arc::clone(node)).or_default();
                ordered.push(((*in_namespace).max(*on_node), at, Arc::clone(node)));
                (*in_namespace, *on_node) = (*in_namespace + 1, *on_node + 1);
            }
        }
        ordered.sort();
        ordered.into_iter().take(CANDIDATES).map(|(_, at, node)| (at, node)).collect()
    }

    /// Where a connection to an endpoint may be made from this cluster: where an import may lead.
    fn address_of(&self, endpoint: &Endpoint) -> Option<SocketAddr> {
        let port = endpoint.ports.iter().find(|port| port.protocol == Protocol::Tcp)?.port;
        let served = |family| self.settings.families.contains(&family);
        let v4 = endpoint.ipv4.map(IpAddr::from).filter(|_| served(IpFamily::V4));
        let address = v4.or_else(|| endpoint.ipv6.map(IpAddr::from).filter(|_| served(IpFamily::V6)))?;
        usable(address, |address| self.is_cluster_ip(address)).ok()?;
        (port > 0).then(|| SocketAddr::new(address, port))
    }

    /// The other clusters that are known, and whether they cannot be reached.
    pub(super) fn reachable_or_not(&self) -> impl Iterator<Item = (&ClusterId, bool)> {
        self.knowledge.live().map(|cluster| (cluster, self.importing.reachability.is_unreachable(cluster)))
    }

    /// Takes in what connections showed.
    pub(super) fn reached(&mut self, verdicts: &Verdicts, now: Now) {
        for (cluster, verdict) in verdicts {
            let known = self.importing.reachability.unreachable.get(cluster);
            match verdict {
                Verdict::Reachable if known.is_some() => self.set_reachable(cluster),
                Verdict::Unreachable(evidence) if known.is_none() => self.set_unreachable(cluster, *evidence, now),
                Verdict::Reachable | Verdict::Unreachable(_) => {}
            }
        }
        // It is looked for more often whether it is back.
        self.choose_endpoints(now);
    }

    fn set_unreachable(&mut self, cluster: &ClusterId, Evidence { endpoints, nodes }: Evidence, now: Now) {
        warn!(%cluster, endpoints, nodes, "the network to the cluster is gone: its endpoints serve only if no others do");
        let unreachable = Unreachable { since: now.seconds(), tried: Some((endpoints, nodes)) };
        self.importing.reachability.unreachable.insert(cluster.clone(), unreachable);
        self.changed(Fact::Reachability(cluster));
    }

    fn set_reachable(&mut self, cluster: &ClusterId) {
        info!(%cluster, "the network to the cluster is back, or nobody looks at it any more");
        self.importing.reachability.unreachable.remove(cluster);
        self.changed(Fact::Reachability(cluster));
    }
}

#[cfg(test)]
#[path = "reachability_tests.rs"]
mod tests;
