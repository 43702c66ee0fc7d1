//! Which exports of other clusters count in this one: ClusterImportPolicies, the annotations of Namespaces, and which names a
//! cluster has, if it may have only so many.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    Mode,
    core::{Command, Core, Now},
    dirty::Fact,
    policy_writer::{PolicyStatus, Written},
    subscriptions::ImportRules,
};
use api::{
    ClusterImportPolicyStatus,
    conditions::{ImportCondition, PolicyReason, SharedCondition, Verdict, conditions, find},
    events::EventReason,
};
use cluster::{
    Change,
    events::{self, EventRecord},
    objects::{ClusterImportPolicy, OwnSlice, ServiceImport},
};
use import::{
    Plan, There, Unknown,
    policy::{self, Excluded, Exclusion, Origin, Policies},
};
use model::{ClusterId, Exported, ServiceKey};

/// How often statuses are written at most. What they count may change with every export.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// How many ids of clusters a message has.
const MOST_IDS: usize = 10;

/// What decides which exports count, and what that leaves out.
#[derive(Debug, Clone)]
pub(super) struct ImportPolicies {
    rules: Policies,
    /// The name of the own home.
    home: Option<Arc<str>>,
    /// For each cluster that may have only so many names, those that it has.
    admitted: BTreeMap<ClusterId, BTreeSet<ServiceKey>>,
    /// For each name, the policies that leave something of it out.
    excluded: BTreeMap<ServiceKey, BTreeSet<Arc<str>>>,
    written: Arc<Written>,
    /// When statuses may be written again.
    due: Duration,
}

impl ImportPolicies {
    pub(super) fn new(rules: &ImportRules) -> Self {
        Self {
            rules: Policies::new(Arc::clone(&rules.closed)),
            home: rules.home.clone(),
            admitted: BTreeMap::new(),
            excluded: BTreeMap::new(),
            written: Arc::default(),
            due: Duration::ZERO,
        }
    }

    /// Notes what is left out of a name.
    pub(super) fn note(&mut self, key: &ServiceKey, excluded: &[(ClusterId, Exclusion)]) {
        let policies: BTreeSet<_> = excluded.iter().filter_map(|(_, why)| why.policy().cloned()).collect();
        if policies.is_empty() {
            self.excluded.remove(key);
        } else {
            self.excluded.insert(key.clone(), policies);
        }
    }

    /// Of how many names each policy leaves something out.
    pub(super) fn excluded_names(&self) -> impl Iterator<Item = (&Arc<str>, usize)> {
        let mut counts = BTreeMap::new();
        for policy in self.excluded.values().flatten() {
            *counts.entry(policy).or_default() += 1;
        }
        counts.into_iter()
    }
}

impl Core {
    pub(super) fn policies_changed(&mut self, changes: &[Change<ClusterImportPolicy>]) {
        let mut changed = false;
        for Change { key, old, new } in changes {
            // The status changes as well.
            let [before, now] = [old, new].map(|policy| policy.as_ref().map(|policy| &policy.spec));
            if before != now {
                self.importing.policies.rules.set(key, now);
                changed = true;
            }
        }
        if changed {
            self.importing.policies.due = Duration::ZERO;
            self.admit_all();
            self.changed(Fact::Policies);
        }
    }

    fn origin<'a>(&'a self, cluster: &'a ClusterId) -> Origin<'a> {
        let home = self.importing.policies.home.as_deref();
        let registry = self.knowledge.registry_of(cluster).map(|registry| &**registry);
        Origin { cluster: cluster.as_str(), registry: registry.or(home) }
    }

    /// Why no export of a cluster counts in the namespace of a name.
    fn excludes(&self, origin: Origin<'_>, key: &ServiceKey) -> Option<Exclusion> {
        let namespace = self.world.namespaces.get(&key.namespace);
        let accepted = namespace.as_ref().and_then(|namespace| namespace.accept_clusters.as_deref());
        self.importing.policies.rules.excludes(origin, &key.namespace, accepted)
    }

    /// The exports of a name that count in this cluster, with the endpoints that count, and what does not. What this cluster itself
    /// exports always counts.
    pub(super) fn accepted(
        &self,
        key: &ServiceKey,
        mut sources: BTreeMap<ClusterId, Arc<Exported>>,
        slices: &[Arc<OwnSlice>],
    ) -> (BTreeMap<ClusterId, Arc<Exported>>, Excluded) {
        let (mut excluded, policies) = (Vec::new(), &self.importing.policies);
        sources.retain(|cluster, exported| {
            if cluster == self.knowledge.local() {
                return true;
            }
            let origin = self.origin(cluster);
            let over = || {
                let admitted = policies.admitted.get(cluster).filter(|admitted| !admitted.contains(key))?;
                let (most, policy) = policies.rules.most_names(origin)?;
                (admitted.len() >= most).then(|| Exclusion::Names(Arc::clone(policy), most))
            };
            if let Some(why) = self.excludes(origin, key).or_else(over) {
                excluded.push((cluster.clone(), why));
                return false;
            }
            let shown = LazyCell::new(|| {
                let of_source = slices.iter().filter(|slice| slice.source_cluster.as_deref() == Some(cluster.as_str()));
                let rows = of_source.flat_map(|slice| &slice.endpoints);
                rows.filter_map(|row| row.address).collect::<BTreeSet<IpAddr>>()
            });
            let (admitted, why) = policies.rules.admit(origin, &exported.endpoints, |address| shown.contains(&address));
            if !why.is_empty() {
                let endpoints = admitted.into_owned();
                Arc::make_mut(exported).endpoints = endpoints;
                excluded.extend(why.into_iter().map(|why| (cluster.clone(), why)));
            }
            true
        });
        (sources, excluded)
    }

    /// The clusters whose export of a name is not known, without those that do not count, whatever they export.
    pub(super) fn accepted_of(&self, key: &ServiceKey, unknown: Unknown, there: &There) -> Unknown {
        let imported = there.import.iter().flat_map(|import| &*import.status.clusters).map(|cluster| &**cluster);
        let seen = imported.chain(there.slices.iter().filter_map(|slice| slice.source_cluster.as_deref()));
        unknown.without(seen, |cluster| {
            let known = cluster.parse::<ClusterId>().ok().filter(|id| id != self.knowledge.local());
            // The home of one that is not known is not known either.
            let registry = known.as_ref().and_then(|id| self.knowledge.registry_of(id)).map(|registry| &**registry);
            known.is_some() && self.excludes(Origin { cluster, registry }, key).is_some()
        })
    }

    /// What the import of a name says of clusters that are not known now, as far as policies say it still.
    pub(super) fn still_excluded(
        &self,
        key: &ServiceKey,
        unknown: &Unknown,
        import: Option<&ServiceImport>,
    ) -> Vec<(ClusterId, Exclusion)> {
        let conditions = import.filter(|import| import.managed).map(|import| &*import.status.conditions);
        let said = find(conditions.unwrap_or_default(), ImportCondition::Excluded.as_str());
        let named = said.into_iter().flat_map(|said| policy::named(&said.message));
        let unknown = named.filter(|cluster| unknown.contains(cluster)).filter_map(|cluster| cluster.parse().ok());
        let why = |cluster: ClusterId| Some((cluster.clone(), self.excludes(self.origin(&cluster), key)?));
        unknown.filter_map(why).collect()
    }

    /// The Event for exports that do not count, on the Namespace, if that leaves nothing to import. It names no name, so that there is
    /// one Event for many.
    pub(super) fn excluded(&self, key: &ServiceKey, plan: &Plan, excluded: &Excluded) -> Option<EventRecord> {
        let imports = matches!(plan, Plan::Want(_) | Plan::Blocked(_));
        let exports: Excluded = excluded.iter().filter(|(_, why)| why.is_of_export()).cloned().collect();
        if imports || exports.is_empty() || self.importing.subscriptions.refuses(key) {
            return None;
        }
        let regarding = events::namespace(&key.namespace, &self.world.namespaces.get(&key.namespace)?.uid);
        let text =
            format!("Clusters export names of this namespace that are not imported. {}", policy::message(&exports));
        Some(EventRecord { regarding, reason: EventReason::ImportExcluded, action: "Import", text })
    }

    /// Names of other clusters came or went: some may be admitted now.
    pub(super) fn admit_changed(&mut self, names: &BTreeSet<ServiceKey>) {
        if !self.importing.policies.rules.limit_names() {
            return;
        }
        let live = self.forget_gone();
        let concerned = |cluster: &&ClusterId| {
            // One that has just joined has none yet.
            let Some(admitted) = self.importing.policies.admitted.get(*cluster) else { return true };
            let most = self.importing.policies.rules.most_names(self.origin(cluster)).map_or(0, |(most, _)| most);
            let differs = |key: &ServiceKey| match (admitted.contains(key), self.may_be_admitted(cluster, key)) {
                (false, true) => admitted.len() < most,
                (is, may) => is != may,
            };
            // Its home may be another one now, where other policies apply.
            admitted.len() > most || names.iter().any(differs)
        };
        let concerned: Vec<_> = live.iter().filter(concerned).collect();
        for cluster in concerned {
            self.admit(cluster);
        }
    }

    /// Chooses anew which names clusters have that may have only so many.
    pub(super) fn admit_all(&mut self) {
        for cluster in &self.forget_gone() {
            self.admit(cluster);
        }
    }

    /// Forgets the names of clusters that are no longer live. Returns those that are.
    fn forget_gone(&mut self) -> BTreeSet<ClusterId> {
        let live: BTreeSet<_> = self.knowledge.live().cloned().collect();
        self.importing.policies.admitted.retain(|cluster, _| live.contains(cluster));
        live
    }

    fn may_be_admitted(&self, cluster: &ClusterId, key: &ServiceKey) -> bool {
        self.knowledge.is_exported_by(cluster, key)
            && self.world.namespaces.contains(&key.namespace)
            && !self.importing.subscriptions.refuses(key)
            && self.excludes(self.origin(cluster), key).is_none()
    }

    /// Chooses the names of a cluster: those that it has first, then those that are imported from it, as an earlier leader chose them.
    fn admit(&mut self, cluster: &ClusterId) {
        let Some((most, _)) = self.importing.policies.rules.most_names(self.origin(cluster)) else {
            self.importing.policies.admitted.remove(cluster);
            return;
        };
        let before = self.importing.policies.admitted.get(cluster).cloned().unwrap_or_default();
        let rank = |key: &ServiceKey| {
            let names = |import: &Arc<ServiceImport>| {
                import.managed && import.status.clusters.iter().any(|named| **named == *cluster.as_str())
            };
            (!before.contains(key), !self.world.imports.get(key).as_ref().is_some_and(names), key.clone())
        };
        let mut candidates: Vec<_> =
            self.knowledge.names_of(cluster).filter(|key| self.may_be_admitted(cluster, key)).map(rank).collect();
        candidates.sort();
        let admitted: BTreeSet<_> = candidates.into_iter().take(most).map(|(_, _, key)| key).collect();
        let changed: Vec<_> = before.symmetric_difference(&admitted).cloned().collect();
        self.importing.policies.admitted.insert(cluster.clone(), admitted);
        self.changed_each(&changed, Fact::Admitted);
    }

    /// Has the statuses of ClusterImportPolicies written that say something else.
    pub(super) fn report_policies(&mut self, now: Now) {
        let nothing = self.world.policies.is_empty() && self.importing.policies.written.is_empty();
        // Before that, a new leader knows of fewer clusters than the one before it.
        let reads = self.settings.mode == Mode::Member && self.awaits_first_reading();
        if nothing || reads || now.mono < self.importing.policies.due {
            return;
        }
        self.importing.policies.due = now.mono + REPORT_EVERY;
        let counts: BTreeMap<_, _> = self.importing.policies.excluded_names().collect();
        let status = |policy: &Arc<ClusterImportPolicy>| {
            let count = counts.get(&policy.name).copied().unwrap_or_default();
            let status = self.policy_status(policy, count, now);
            let written = PolicyStatus { name: Arc::clone(&policy.name), uid: policy.uid.clone(), status };
            (written.status != policy.status).then(|| (Arc::clone(&policy.name), Arc::new(written)))
        };
        let written: Written = self.world.policies.values().filter_map(status).collect();
        if written != *self.importing.policies.written {
            self.importing.policies.written = Arc::new(written);
            self.out.push(Command::WritePolicies(Arc::clone(&self.importing.policies.written)));
        }
    }

    fn policy_status(&self, policy: &ClusterImportPolicy, count: usize, now: Now) -> ClusterImportPolicyStatus {
        let rules = &self.importing.policies.rules;
        let about: Vec<_> =
            self.knowledge.live().filter(|cluster| rules.is_about(&policy.name, self.origin(cluster))).collect();
        let verdict = match (policy::invalid(&policy.spec), about.as_slice()) {
            (Some(why), _) => Verdict::new(PolicyReason::InvalidSpec, why),
            (None, []) => Verdict::new(PolicyReason::NoCluster, "It is about no cluster that is known."),
            (None, about) => {
                let ids: Vec<_> = about.iter().take(MOST_IDS).map(|cluster| cluster.as_str()).collect();
                let more = about.len().saturating_sub(MOST_IDS);
                let more = if more == 0 { String::new() } else { format!(" and {more} more") };
                Verdict::new(PolicyReason::Enforced, format!("It is about {}{more}.", ids.join(", ")))
            }
        };
        let current: Vec<_> = policy.status.conditions.iter().map(SharedCondition::from).collect();
        // Of clusters that cannot be read, an earlier leader knew more.
        let all_known = self.knowledge.unknown().is_none();
        let number = |count: usize, said: Option<i64>| {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            Some(said.filter(|_| !all_known).map_or(count, |said| said.max(count)))
        };
        ClusterImportPolicyStatus {
            clusters: number(about.len(), policy.status.clusters),
            excluded_names: number(count, policy.status.excluded_names),
            conditions: conditions(&current, [verdict], policy.generation, now.wall),
        }
    }
}
