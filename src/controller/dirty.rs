//! What must be derived again: the table from what changed to what follows from it.
//!
//! A [`Fact`] is something that changed: in the world, in the registry, with time, or as the result of a derivation.
//! [`Core::changed`] has one row for each fact, and nothing else marks anything. So whoever adds a fact adds a row, and
//! whoever adds a derivation adds it to the rows of what it reads. [`Core::derive`] derives what is marked, in a fixed
//! order: owners and their claims, targets, gates and Cutovers. Names are handed to the workers last, because all else
//! may concern their conditions.
//!
//! That no row lacks anything is checked wherever a whole controller runs on a simulated machine: there, everything is
//! derived from scratch at times, and nothing new may follow ([`replay`](super::replay)).

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use super::{
    core::{Command, Core, Now},
    cutovers,
    world::World,
};
use model::{ClaimOwner, ClusterId, ServiceKey, Target};

/// Something that changed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fact<'a> {
    // Objects of this cluster.
    /// The EndpointSlices of a Service, or what matters of the pods that they list.
    Endpoints(&'a ServiceKey),
    Service(&'a ServiceKey),
    Ingress(&'a ServiceKey),
    Export(&'a ServiceKey),
    Cutover(&'a ServiceKey),
    /// An object that belongs to an import, or keeps one from being made.
    Import(&'a ServiceKey),
    /// An object that belonged to an unknown import of a Kubernetes namespace.
    ImportIn(&'a Arc<str>),
    /// A Kubernetes namespace came, changed or went.
    Namespace(&'a Arc<str>),
    /// What Kubernetes namespaces are granted, or their quotas.
    Rights(&'a BTreeSet<Arc<str>>),
    /// Cluster IPs that no Service had, or that the last one gave up.
    ClusterIps(&'a BTreeSet<IpAddr>),
    /// The ranges of cluster IPs.
    Ranges,
    /// The properties of this cluster.
    Properties,
    /// The drain of this cluster.
    Drained,
    /// The ClusterImportPolicies.
    Policies,
    /// Another cluster's export of a name counts now within the names that it may have, or no longer.
    Admitted(&'a ServiceKey),

    // Cloud Map and the ledger.
    /// The Cloud Map namespaces that take host names.
    Zones,
    /// Whether this cluster is a member, or may register.
    Membership,
    /// The own ledger as the previous leader left it is known.
    Resumed,
    /// This cluster is in no ClusterSet any more, and imports nothing.
    Outside,
    /// Whether the registrations of a standalone cluster can be recorded.
    Recordable,
    /// What is published of the own export of a name.
    Published(&'a ServiceKey),
    /// Another cluster's export of a name, or what is known about that cluster.
    Remote(&'a ServiceKey),
    /// A registration record, here or in another cluster, or what is published or visible of it.
    Record(&'a Target),
    /// Which clusters there are, and whether all of them are read. Claims wait for that.
    Clusters,
    /// Which clusters are unknown, or whether new imports wait for them.
    Unknown,
    /// What became of the instances of a target. The exports that want it report that, whoever holds it.
    Status(&'a Target),
    /// Which pods are chosen for the share of the traffic in a target.
    Chosen(&'a Target),
    /// What a reading showed of a target's successor.
    Succeeded(&'a Target),
    /// What the discovery plane shows of instances for which pods wait.
    Answers,
    /// What the guards of Cutovers found.
    Judged,

    // Results of derivations.
    /// Which labels the pods of a Service have, and which of them are fit behind their gates.
    Pods(&'a ServiceKey),
    /// An owner was planned anew. What it wants in these targets, or wanted there, may be different.
    Planned(&'a ClaimOwner, &'a BTreeSet<Target>),
    /// What is to be published of an owner: its export, and its claims.
    Wants(&'a ClaimOwner),
    /// A target for which an owner waited is free, or another owner has its record now.
    Freed(&'a ClaimOwner),
    /// An owner claimed a target again.
    Claimed(&'a ClaimOwner),
    /// An owner may get more than before because of a quota, or must get less.
    Quota(&'a ClaimOwner),
    /// What the claim of an owner to a target says of it.
    ClaimState(&'a Target),
    /// What this cluster may do in a target, or to whom it hands it over.
    Standing(&'a Target),
    /// A registration record ends, or begins to.
    Retired(&'a Target),

    // Time.
    /// About a second passed.
    Tick,
    /// A target must be judged again.
    Due(&'a Target),
    /// The last plan of an export was kept for long enough.
    HoldOver(&'a ServiceKey),
    /// It is time to say again that the import of a name is blocked.
    BlockedAgain(&'a ServiceKey),
    /// Farther clusters give connections of a name back by another step.
    StepDue(&'a ServiceKey),
    /// Endpoints of this cluster come back to a name by another step.
    DrainStep(&'a ServiceKey),
    /// Another cluster can be reached from this one, or cannot.
    Reachability(&'a ClusterId),
}

/// Some of a kind, or all of them, whichever these are when it is derived.
#[derive(Debug, Clone)]
enum Marked<T> {
    Some(BTreeSet<T>),
    All,
}

impl<T> Default for Marked<T> {
    fn default() -> Self {
        Self::Some(BTreeSet::new())
    }
}

impl<T: Ord> Marked<T> {
    fn extend(&mut self, more: impl IntoIterator<Item = T>) {
        if let Self::Some(some) = self {
            some.extend(more);
        }
    }
}

/// What must be derived again.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a column of the table")]
pub(super) struct Dirty {
    /// Annotated objects to be planned.
    annotated: Marked<ClaimOwner>,
    /// Exports to be planned.
    exports: BTreeSet<ServiceKey>,
    /// Owners that may claim a target.
    claims: BTreeSet<ClaimOwner>,
    /// Owners in all of whose targets something may be different, once they are planned: those that they want, and those
    /// that they gave up.
    owners: BTreeSet<ClaimOwner>,
    targets: Marked<Target>,
    names: Marked<ServiceKey>,
    /// Kubernetes namespaces of which all names are to be reconciled.
    namespaces: BTreeSet<Arc<str>>,
    /// Cluster IPs for which imported endpoints are searched with the next tick: for many Services at once.
    cluster_ips: BTreeSet<IpAddr>,
    /// What is said on annotated objects for which nothing can be registered.
    held_up: bool,
    /// The properties of this cluster in the map to publish.
    properties: bool,
    /// The map to publish.
    publish: bool,
    gates: bool,
    cutovers: bool,
}

/// The columns of the table.
impl Dirty {
    fn annotated(&mut self, owners: impl IntoIterator<Item = ClaimOwner>) -> &mut Self {
        self.annotated.extend(owners);
        self
    }

    fn all_annotated(&mut self) -> &mut Self {
        self.annotated = Marked::All;
        self
    }

    fn exports<'a>(&mut self, keys: impl IntoIterator<Item = &'a ServiceKey>) -> &mut Self {
        self.exports.extend(keys.into_iter().cloned());
        self
    }

    fn claim(&mut self, owner: &ClaimOwner) -> &mut Self {
        self.claims.insert(owner.clone());
        self
    }

    fn owners(&mut self, owners: impl IntoIterator<Item = ClaimOwner>) -> &mut Self {
        self.owners.extend(owners);
        self
    }

    fn targets<'a>(&mut self, targets: impl IntoIterator<Item = &'a Target>) -> &mut Self {
        self.targets.extend(targets.into_iter().cloned());
        self
    }

    fn all_targets(&mut self) -> &mut Self {
        self.targets = Marked::All;
        self
    }

    fn names(&mut self, names: impl IntoIterator<Item = ServiceKey>) -> &mut Self {
        self.names.extend(names);
        self
    }

    fn all_names(&mut self) -> &mut Self {
        self.names = Marked::All;
        self
    }

    fn names_in(&mut self, namespace: &Arc<str>) -> &mut Self {
        self.namespaces.insert(namespace.clone());
        self
    }

    fn cluster_ips(&mut self, addresses: &BTreeSet<IpAddr>) -> &mut Self {
        self.cluster_ips.extend(addresses);
        self
    }

    const fn held_up(&mut self) -> &mut Self {
        self.held_up = true;
        self
    }

    const fn properties(&mut self) -> &mut Self {
        self.properties = true;
        self
    }

    const fn publish(&mut self) -> &mut Self {
        self.publish = true;
        self
    }

    const fn cutovers(&mut self) -> &mut Self {
        self.cutovers = true;
        self
    }
}

impl Core {
    /// Marks what follows from a fact.
    pub(super) fn changed(&mut self, fact: Fact<'_>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        self.mark(fact, &mut dirty);
        // Gates are few, and depend on nearly everything.
        dirty.gates = true;
        self.dirty = dirty;
    }

    /// Marks what follows from the same fact about each of these.
    pub(super) fn changed_each<'a, T: 'a>(
        &mut self,
        each: impl IntoIterator<Item = &'a T>,
        fact: fn(&'a T) -> Fact<'a>,
    ) {
        for one in each {
            self.changed(fact(one));
        }
    }

    /// The table: a row for each fact.
    fn mark<'a>(&self, fact: Fact<'_>, dirty: &'a mut Dirty) -> &'a mut Dirty {
        let Self { annotated, claims, knowledge, world, .. } = self;
        let (export, service, ingress) = (ClaimOwner::export, ClaimOwner::service, ClaimOwner::ingress);
        match fact {
            Fact::Endpoints(key) if annotated.concerns(key) => dirty.annotated([service(key)]).exports([key]),
            Fact::Endpoints(key) | Fact::HoldOver(key) | Fact::DrainStep(key) => dirty.exports([key]),
            Fact::Service(key) => dirty.annotated([service(key)]).exports([key]),
            Fact::Ingress(key) => dirty.annotated([ingress(key)]),
            Fact::Export(key) => dirty.exports([key]).owners([export(key)]).names([key.clone()]),
            Fact::Cutover(key) => dirty.exports([key]).owners(cutovers::owners(key)).names([key.clone()]).cutovers(),
            Fact::Import(key)
            | Fact::Admitted(key)
            | Fact::BlockedAgain(key)
            | Fact::StepDue(key)
            | Fact::Published(key) => dirty.names([key.clone()]),
            Fact::ImportIn(namespace) => dirty.names_in(namespace),
            Fact::Namespace(namespace) => {
                let allowed: Vec<_> = self.exports_allowed_by(namespace).collect();
                // Its Cloud Map namespace may have been read before, because another namespace imports from it.
                let names = knowledge.names_in(namespace).cloned().chain(self.importing.peers.names_in(namespace));
                dirty.exports(allowed.iter().copied()).owners(allowed.into_iter().map(export)).names(names)
            }
            Fact::Rights(namespaces) => {
                let exports: Vec<_> = world.exports.keys().filter(|key| namespaces.contains(&key.namespace)).collect();
                let objects = annotated.owners().into_iter().filter(|owner| namespaces.contains(&owner.namespace));
                dirty.exports(exports.iter().copied()).owners(exports.into_iter().map(export)).annotated(objects)
            }
            Fact::ClusterIps(addresses) => dirty.cluster_ips(addresses),
            Fact::Ranges | Fact::Policies | Fact::Outside => dirty.all_names(),
            Fact::Properties => dirty.properties().all_names().publish(),
            Fact::Reachability(cluster) => {
                dirty.names(knowledge.names_of(cluster).filter(|key| self.is_here(key)).cloned()).properties().publish()
            }
            Fact::Drained => dirty.properties().all_targets().all_names().publish(),
            Fact::Zones => dirty.all_annotated().exports(&self.exporting.named),
            Fact::Membership => dirty.all_targets().all_names().held_up().publish(),
            Fact::Resumed => {
                dirty.all_annotated().exports(self.invalid_selections()).all_targets().properties().publish()
            }
            Fact::Recordable => dirty.held_up(),
            Fact::Remote(key) => {
                // Whether others serve decides whether instances of what is drained may go.
                let drained = world.exports.contains(key) && self.own_drain(key).is_some();
                dirty.owners(drained.then(|| export(key))).names(self.is_here(key).then(|| key.clone()))
            }
            Fact::Record(target) | Fact::Due(target) => dirty.targets([target]),
            Fact::Clusters => dirty.targets(claims.waiting()),
            Fact::Unknown => dirty.targets(claims.waiting()).all_names(),
            Fact::Status(target) => dirty.names(knowledge.wanted_by(target).cloned()).cutovers(),
            Fact::Chosen(target) => dirty.exports(knowledge.wanted_by(target)),
            Fact::Succeeded(target) => dirty.targets(claims.successor(target).map(|_| target)),
            Fact::Answers => dirty,
            Fact::Judged | Fact::Tick => dirty.cutovers(),
            Fact::Pods(key) => dirty.owners([export(key)]),
            Fact::Planned(owner, targets) => dirty.targets(targets).owners([owner.clone()]),
            Fact::Wants(owner) => dirty.names(own_name(world, owner)).publish(),
            Fact::Claimed(owner) => dirty.owners([owner.clone()]).names(own_name(world, owner)).publish(),
            Fact::Quota(owner) if owner.is_annotated() => dirty.annotated([owner.clone()]).owners([owner.clone()]),
            Fact::Freed(owner) | Fact::Quota(owner) => dirty.claim(owner),
            Fact::ClaimState(target) => dirty.targets([target]).names(knowledge.wanted_by(target).cloned()).publish(),
            Fact::Standing(target) => dirty.names(knowledge.wanted_by(target).cloned()),
            Fact::Retired(target) => dirty.targets([target]).publish(),
        }
    }

    /// The exports of a namespace, if its labels and annotations decide which are allowed.
    fn exports_allowed_by(&self, namespace: &Arc<str>) -> impl Iterator<Item = &ServiceKey> {
        let exports = self.world.exports.keys_from(&ServiceKey::new(namespace.clone(), ""));
        let exports = exports.take_while(move |key| key.namespace == *namespace);
        exports.filter(|_| self.settings.export_namespaces.is_some())
    }

    /// Derives what is marked.
    pub(super) fn derive(&mut self, now: Now) {
        self.plan_owners(now);
        for owner in self.knowledge.settle_quotas() {
            self.changed(Fact::Quota(&owner));
        }
        self.plan_owners(now);
        if std::mem::take(&mut self.dirty.held_up) {
            self.report_held_up();
        }
        self.plan_targets(now);
        if std::mem::take(&mut self.dirty.gates) {
            self.judge_gates(now);
        }
        if std::mem::take(&mut self.dirty.cutovers) {
            self.judge_cutovers(now);
        }
        if std::mem::take(&mut self.dirty.properties) {
            self.plan_properties();
        }
        if std::mem::take(&mut self.dirty.publish) {
            self.out.extend(self.knowledge.desired().map(Command::Publish));
        }
        let names = self.dirty_names();
        self.out.extend(names.into_iter().map(Command::Reconcile));
    }

    /// Plans owners: annotated objects first, of which the oldest comes first.
    fn plan_owners(&mut self, now: Now) {
        self.claim_again(now);
        let annotated = match std::mem::take(&mut self.dirty.annotated) {
            Marked::All => self.annotated.owners(),
            Marked::Some(owners) => self.annotated.oldest_first(owners),
        };
        for owner in annotated {
            self.plan_annotated(&owner, now);
            self.claim_again(now);
        }
        for key in std::mem::take(&mut self.dirty.exports) {
            self.plan_export(&key, now);
            self.claim_again(now);
        }
    }

    /// Lets owners claim a target for which they waited and that is free now. Also looks at owners whose record another
    /// one has now. This is done at once, so that nobody else is first.
    fn claim_again(&mut self, now: Now) {
        for owner in std::mem::take(&mut self.dirty.claims) {
            self.knowledge.claim_again(&owner, now.seconds());
            self.changed(Fact::Claimed(&owner));
        }
    }

    /// Passes on the desired instances of the marked targets.
    fn plan_targets(&mut self, now: Now) {
        let mut targets = self.dirty_targets();
        for target in &targets {
            if self.annotated.forgets(&self.knowledge, target) {
                self.forget(target);
            }
        }
        self.claim_again(now);
        targets.extend(self.dirty_targets());
        let mut changed = false;
        for target in targets {
            changed |= self.update_target(target, now);
        }
        if changed {
            self.out.push(Command::Register(self.instances.desired.clone()));
        }
    }

    fn dirty_targets(&mut self) -> BTreeSet<Target> {
        let records = self.knowledge.take_changed_records();
        self.changed_each(&records, Fact::Record);
        let owners = std::mem::take(&mut self.dirty.owners);
        let of_owner = |owner| {
            let given_up = self.claims.given_up_by(owner).cloned();
            self.knowledge.targets_of(owner).into_iter().chain(given_up)
        };
        let of_owners = owners.iter().flat_map(of_owner);
        match std::mem::take(&mut self.dirty.targets) {
            Marked::Some(targets) => targets.into_iter().chain(of_owners).collect(),
            Marked::All => {
                let held = self.knowledge.exports().into_iter().flat_map(|exports| exports.registrations().keys());
                held.chain(self.instances.desired.keys()).cloned().chain(of_owners).collect()
            }
        }
    }

    fn dirty_names(&mut self) -> BTreeSet<ServiceKey> {
        let within = std::mem::take(&mut self.dirty.namespaces);
        match std::mem::take(&mut self.dirty.names) {
            Marked::All => self.names(),
            Marked::Some(names) if within.is_empty() => names,
            Marked::Some(mut names) => {
                names.extend(self.names().into_iter().filter(|name| within.contains(&name.namespace)));
                names
            }
        }
    }

    /// Derives everything, whatever is marked, and returns what follows; nothing if no mark was missing. Targets that wait
    /// for a reading or for their time are left out: they are judged again then. So are Cutovers: each look at one may be a
    /// step.
    pub(super) fn derive_from_scratch(&mut self, now: Now) -> Vec<Command> {
        let published = self.knowledge.desired();
        let World { services, ingresses, exports, .. } = &self.world;
        let objects = services.keys().map(ClaimOwner::service).chain(ingresses.keys().map(ClaimOwner::ingress));
        let exports: BTreeSet<_> = exports.keys().chain(self.knowledge.planned_names()).cloned().collect();
        let objects: BTreeSet<_> = objects.chain(self.annotated.owners()).collect();
        self.dirty.annotated(objects).exports(&exports).all_targets().held_up().properties().publish();
        self.plan_owners(now);
        let mut targets = self.dirty_targets();
        targets.retain(|target| !self.claims.waits(target));
        self.dirty.targets(&targets);
        let mut commands = self.conclude(now);
        // An object that gets less than it wants asks for all of it each time it is planned, and gets the same.
        commands.retain(|command| match command {
            Command::ReconcileIn(..) => false,
            Command::Publish(map) => published.as_ref() != Some(map),
            _ => true,
        });
        commands
    }

    /// The cluster IPs that came or went since the last tick.
    pub(super) fn take_cluster_ips(&mut self) -> BTreeSet<IpAddr> {
        std::mem::take(&mut self.dirty.cluster_ips)
    }
}

/// The name whose conditions tell of an owner. An export also tells whether annotations of its Service are served.
fn own_name(world: &World, owner: &ClaimOwner) -> Option<ServiceKey> {
    let key = owner.key();
    let exported = !owner.is_annotated() || !owner.is_ingress() && world.exports.contains(&key);
    exported.then_some(key)
}
