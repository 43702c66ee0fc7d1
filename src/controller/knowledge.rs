//! Everything that is known about exports at one moment: those of this cluster from its caches, those of the others
//! from their ledgers.

mod deciding;
mod owners;
mod publication;
mod quotas;
mod remotes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Mode, subset::Subset};
use cluster::objects::Namespace;
use export::{Accounts, Dates, Exports, Quota, Refusal};
use instances::{RegistrationPolicy, Rights, policy::Precedence};
use ledger::{Map, RegistryName};
use model::{ClaimOwner, ClaimState, ClusterId, Endpoint, Exported, Registration, ServiceKey, Target};

/// What a change of the registry concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// Names whose exports changed.
    pub names: BTreeSet<ServiceKey>,
    /// Targets whose registration record changed.
    pub targets: BTreeSet<Target>,
}

/// Whether this cluster is a member of its ClusterSet, and if not, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// It is a member.
    Member {
        /// Why the registry does not accept changes, if so.
        trouble: Option<String>,
    },
    /// The leader is not ready yet; it waits for what the text says.
    Joining(String),
    /// The leader cannot get ready; the text is the error of the registry.
    Failing(String),
    /// Somebody must help; the text has the problem and the remedy.
    Refused(String),
    /// `cloudmap-mcs leave` was called: everything of this cluster is withdrawn, including imports.
    Leaving,
}

/// What an annotated object requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asks {
    /// Not known yet, so what is recorded stays.
    Unknown,
    /// These targets.
    For(Wants),
}

/// The targets that an annotated object requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wants {
    /// When the object was created, in seconds since 1970.
    pub created: i64,
    /// How many instances it has in each target.
    pub targets: BTreeMap<Target, usize>,
}

impl Asks {
    /// The targets, as far as they are known.
    pub fn targets(&self) -> impl Iterator<Item = &Target> {
        let wants = if let Self::For(wants) = self { Some(wants) } else { None };
        wants.into_iter().flat_map(|wants| wants.targets.keys())
    }

    /// A request for one target.
    #[cfg(test)]
    pub fn one(target: Target) -> Self {
        Self::For(Wants { created: 1, targets: [(target, 1)].into() })
    }
}

/// What applies to all exports and annotated objects, as flags and the identity of this cluster say.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// What this cluster takes part in.
    pub mode: Mode,
    /// Whether what is recorded for annotated objects stays as it is (`--dry-run`).
    pub frozen: bool,
    /// Whether every export also has the target with its own name, in addition to the requested one.
    pub own_targets: bool,
    /// Which targets annotations may name.
    pub registration: RegistrationPolicy,
    /// How much the objects of one Kubernetes namespace may use.
    pub quota: Quota,
}

/// What is known about exports.
#[derive(Debug, Clone)]
pub struct Knowledge {
    local: ClusterId,
    membership: Membership,
    plans: Plans,
    annotated: BTreeMap<ClaimOwner, Asks>,
    /// In how many clusters each name is exported, including this one.
    names: BTreeMap<ServiceKey, usize>,
    rules: Rules,
    rights: Rights,
    /// How much the objects of each Kubernetes namespace use.
    accounts: Accounts,
    /// `None` until the own ledger is known.
    exports: Option<Exports>,
    others: Others,
    published: Option<Arc<Map>>,
    /// The latest known time, in seconds since 1970: no claim gets an earlier date.
    latest: i64,
    /// Since when this cluster is in the ledger, in seconds since 1970; 0 if that is not known. Its exports and claims count as no
    /// older, here as in all other clusters.
    created: i64,
    /// Why this cluster may not register anything, if so (J5).
    barred: Option<String>,
}

/// What the ServiceExports of this cluster lead to.
#[derive(Debug, Clone, Default)]
struct Plans {
    /// For each ServiceExport, its export, or why there is none.
    planned: BTreeMap<ServiceKey, Result<Arc<Exported>, Refusal>>,
    /// Which endpoints of an export others see, if not all of them.
    subsets: BTreeMap<ServiceKey, Subset>,
    /// Exports whose targets are not known yet, so that what is published of them stays.
    unlisted: BTreeSet<ServiceKey>,
    /// The exports that want a target: most targets are wanted by one.
    wanting: BTreeSet<(Target, ServiceKey)>,
}

/// What is known of the other clusters.
#[derive(Debug, Clone, Default)]
struct Others {
    remotes: BTreeMap<ClusterId, Remote>,
    /// Clusters that are in the ledger, but of which nothing is accepted (yet).
    unaccepted: BTreeSet<ClusterId>,
    /// Whether the heads of any registry were read at least once in this term. The content of the record does not count.
    read: bool,
    /// The same of the home.
    home_read: bool,
    /// The registries beside the home that were not read in this term.
    unread: BTreeSet<RegistryName>,
    /// Whether all live clusters were verified at least once, or had the time for it.
    first_read: bool,
}

#[derive(Debug, Clone, Default)]
struct Remote {
    /// The same of this cluster.
    created: i64,
    /// Its home; `None` if it is that of this cluster.
    registry: Option<RegistryName>,
    /// `None` if it is not known (yet).
    map: Option<Arc<Map>>,
    /// What the registry has of it: claims count there alone.
    committed: Option<Arc<Map>>,
    /// The names that it exports readably. [`Self::export`] decodes what it exports.
    exports: BTreeSet<ServiceKey>,
    /// Names that it exported in this term and no longer exports, as long as that matters.
    withdrawn: BTreeSet<ServiceKey>,
    /// Since when the cluster is silent, if so, in milliseconds since 1970.
    silent: Option<u64>,
    /// Whether its position advanced in this term, so that it writes.
    advanced: bool,
    /// Whether it has been silent for longer than the TTL, so that its exports are withdrawn here.
    expired: bool,
    /// Whether it has left or expired.
    gone: bool,
}

impl Knowledge {
    /// Nothing is known yet.
    pub fn new(local: ClusterId, membership: Membership) -> Self {
        Self {
            local,
            membership,
            plans: Plans::default(),
            annotated: BTreeMap::new(),
            names: BTreeMap::new(),
            rules: Rules::default(),
            rights: Rights::default(),
            accounts: Accounts::new(Quota::default()),
            exports: None,
            others: Others::default(),
            published: None,
            latest: 0,
            created: 0,
            barred: None,
        }
    }

    /// Sets the general rules.
    #[must_use]
    pub fn with(self, rules: Rules) -> Self {
        let (rights, accounts) = (Rights::new(rules.registration), Accounts::new(rules.quota));
        Self { rules, rights, accounts, ..self }
    }

    /// Who may register where.
    pub const fn rights(&self) -> &Rights {
        &self.rights
    }

    /// A Kubernetes namespace appeared, changed or disappeared. Returns whether its grants or limits changed.
    pub fn namespace_changed(&mut self, name: &Arc<str>, namespace: Option<&Namespace>) -> bool {
        let limited = self.limit(name, namespace);
        self.rights.namespace_changed(name, namespace) || limited
    }

    /// The id of this cluster.
    pub fn local(&self) -> &ClusterId {
        &self.local
    }

    /// The membership of this cluster.
    pub const fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Sets the membership. A cluster that leaves exports nothing any more.
    pub fn set_membership(&mut self, membership: Membership, now: i64) {
        let leaving_changed = (self.membership == Membership::Leaving) != (membership == Membership::Leaving);
        self.membership = membership;
        if leaving_changed {
            self.export_all(now);
        }
    }

    /// Why this cluster may not register anything, if so, with the remedy.
    pub fn barred(&self) -> Option<&String> {
        self.barred.as_ref()
    }

    /// Sets it. Who may not register claims nothing, so that nobody makes room for instances that never come. Returns whether it
    /// is new.
    pub fn set_barred(&mut self, why: Option<String>, now: i64) -> bool {
        if self.barred == why {
            return false;
        }
        let changed = self.barred.is_some() != why.is_some();
        self.barred = why;
        if changed {
            self.export_all(now);
        }
        true
    }

    /// The plan of a ServiceExport, if there is one.
    pub fn planned(&self, key: &ServiceKey) -> Option<&Result<Arc<Exported>, Refusal>> {
        self.plans.planned.get(key)
    }

    /// The names of all ServiceExports that were planned.
    pub fn planned_names(&self) -> impl Iterator<Item = &ServiceKey> {
        self.plans.planned.keys()
    }

    /// The exports in the own ledger; `None` until it is known.
    pub fn exports(&self) -> Option<&Exports> {
        self.exports.as_ref()
    }

    /// Number of clusters that are known to export anything, including this one, and number of exported names.
    pub fn sizes(&self) -> (usize, usize) {
        (1 + self.others.remotes.len(), self.names.len())
    }

    /// Sets what a ServiceExport exports now (`None`: there is no ServiceExport). Returns the other names that must be
    /// planned again, and whether the map to publish changed.
    pub fn replan(
        &mut self,
        key: &ServiceKey,
        plan: Option<Result<Exported, Refusal>>,
        now: i64,
    ) -> (BTreeSet<ClaimOwner>, bool) {
        let unchanged = match (self.plans.planned.get(key), &plan) {
            (None, None) => true,
            (Some(Ok(before)), Some(Ok(after))) => **before == *after,
            (Some(Err(before)), Some(Err(after))) => before == after,
            _ => false,
        };
        if unchanged {
            return (BTreeSet::new(), false);
        }
        let owner = ClaimOwner::export(key);
        for target in self.targets_of(&owner) {
            self.plans.wanting.remove(&(target, key.clone()));
        }
        match plan.map(|plan| plan.map(Arc::new)) {
            Some(plan) => {
                if self.plans.planned.insert(key.clone(), plan).is_none() {
                    count(&mut self.names, key);
                }
            }
            None => {
                if self.plans.planned.remove(key).is_some() {
                    discount(&mut self.names, key);
                }
            }
        }
        for target in self.targets_of(&owner) {
            self.plans.wanting.insert((target, key.clone()));
        }
        (self.export(key, now), true)
    }

    /// Which endpoints of an export others see; `None` means all of them.
    pub fn subset(&self, key: &ServiceKey) -> Option<&Subset> {
        self.plans.subsets.get(key)
    }

    /// Sets which endpoints of an export others see. Returns whether that is new; [`export`](Self::export) acts on it.
    pub fn set_subset(&mut self, key: &ServiceKey, subset: Option<Subset>) -> bool {
        if self.plans.subsets.get(key) == subset.as_ref() {
            return false;
        }
        match subset {
            Some(subset) => self.plans.subsets.insert(key.clone(), subset),
            None => self.plans.subsets.remove(key),
        };
        true
    }

    /// Sets whether the target of an export is not known yet. Returns whether that is new; [`export`](Self::export) acts on
    /// it.
    pub fn set_unlisted(&mut self, key: &ServiceKey, unlisted: bool) -> bool {
        if self.plans.unlisted.contains(key) == unlisted {
            return false;
        }
        let owner = ClaimOwner::export(key);
        for target in self.targets_of(&owner) {
            self.plans.wanting.remove(&(target, key.clone()));
        }
        if unlisted {
            self.plans.unlisted.insert(key.clone())
        } else {
            self.plans.unlisted.remove(key)
        };
        for target in self.targets_of(&owner) {
            self.plans.wanting.insert((target, key.clone()));
        }
        true
    }

    /// The endpoints of an export that others see now, of those that the map has.
    pub fn shown(&self, key: &ServiceKey) -> Option<Vec<Endpoint>> {
        self.exports.as_ref()?.said(key).map(|said| said.endpoints)
    }

    /// The planned export, as others see it.
    fn visible(&self, key: &ServiceKey, local: &Arc<Exported>) -> Arc<Exported> {
        let mut visible =
            self.plans.subsets.get(key).map_or_else(|| Arc::clone(local), |subset| Arc::new(subset.of(local)));
        if self.plans.unlisted.contains(key) {
            let said = self.exports.as_ref().and_then(|exports| exports.said(key));
            Arc::make_mut(&mut visible).export.target = said.and_then(|said| said.export.target);
        }
        visible
    }

    /// The map to publish; `None` until the own ledger is known.
    pub fn desired(&self) -> Option<Arc<Map>> {
        self.exports.as_ref().map(Exports::map)
    }

    /// The exports of this cluster that want a target.
    pub fn wanted_by(&self, target: &Target) -> impl Iterator<Item = &ServiceKey> {
        let first = (target.clone(), ServiceKey::new("", ""));
        let wanting = self.plans.wanting.range(first..).take_while(move |(wanted, _)| wanted == target);
        wanting.map(|(_, key)| key)
    }

    /// Who has the target, among all clusters' claims: the first by [`Precedence`] (then by cluster id, then by owner),
    /// and in which cluster. Claims of one `<namespace>/<name>` in several clusters share the target. Nobody has it if all
    /// owners are unable: then this is the first of them.
    pub fn first_claim(&self, target: &Target) -> Option<(ClusterId, Registration)> {
        let own = self.exports.as_ref().and_then(|exports| exports.registrations().get(target));
        own.filter(|own| !own.is_retiring())
            .map(|own| (&self.local, Registration { claimed: no_earlier(own.claimed, self.created), ..own.clone() }))
            .into_iter()
            .chain(remotes::claims(&self.others.remotes, target))
            .min_by(|(a, one), (b, other)| {
                (Precedence::of(one), a, &one.owner).cmp(&(Precedence::of(other), b, &other.owner))
            })
            .map(|(id, registration)| (id.clone(), registration))
    }

    /// As [`first_claim`](Self::first_claim), if it is able: the cluster and the owner.
    pub fn claimant(&self, target: &Target) -> Option<(ClusterId, ClaimOwner)> {
        let first = self.first_claim(target).filter(|(_, first)| !first.is_unable());
        first.map(|(cluster, first)| (cluster, first.owner))
    }

    /// Whether this cluster's claim of an owner to a target says that it may not register there.
    pub fn is_unable(&self, target: &Target, owner: &ClaimOwner) -> bool {
        let Some(exports) = &self.exports else { return false };
        let held = exports.registrations().get(target).filter(|held| held.owner == *owner);
        held.map_or_else(|| exports.unable(target).any(|unable| unable == owner), Registration::is_unable)
    }

    /// Sets what this cluster's claim of an owner to a target says of it. Returns the owners that may now get a target for
    /// which they waited, and whether that is new.
    pub fn set_state(
        &mut self,
        target: &Target,
        owner: &ClaimOwner,
        state: ClaimState,
        now: i64,
    ) -> (BTreeSet<ClaimOwner>, bool) {
        self.not_before(now);
        let others = |target: &Target| newest(&self.others.remotes, target);
        let Some(exports) = &mut self.exports else { return (BTreeSet::new(), false) };
        let (mut freed, anything) = exports.set_state(target, owner, state, Dates::new(self.latest, &others));
        if anything {
            freed.extend(self.side_with_others(&[target.clone()].into()));
        }
        (freed, anything)
    }

    /// The exports of a name by every known cluster. The own export comes from memory, never from the registry. If it
    /// is refused, the version that the other clusters have counts.
    pub fn sources(&self, key: &ServiceKey) -> BTreeMap<ClusterId, Arc<Exported>> {
        let planned = self.plans.planned.get(key).and_then(|plan| plan.as_ref().ok());
        let is_refused = |exports: &&Exports| {
            exports.refusal(key).is_some() || self.accounts.exceeded(&ClaimOwner::export(key)).is_some()
        };
        let own = match self.exports.as_ref().filter(is_refused) {
            Some(exports) => exports.said(key).map(Arc::new),
            None => planned.map(|local| self.visible(key, local)),
        };
        own.map(|local| (self.local.clone(), no_older(local, self.created)))
            .into_iter()
            .chain(self.others.remotes.iter().filter_map(|(id, remote)| {
                let exported = remote.export(key)?;
                Some((id.clone(), Arc::new(exported)))
            }))
            .collect()
    }

    /// All names that any known cluster exports.
    pub fn names(&self) -> impl Iterator<Item = &ServiceKey> {
        self.names.keys()
    }

    /// Those of them in a namespace.
    pub fn names_in(&self, namespace: &Arc<str>) -> impl Iterator<Item = &ServiceKey> {
        let first = ServiceKey::new(Arc::clone(namespace), "");
        let names = self.names.range(first..).map(|(key, _)| key);
        names.take_while(move |key| key.namespace == *namespace)
    }
}

/// The export as all clusters date it.
fn no_older(mut local: Arc<Exported>, created: i64) -> Arc<Exported> {
    let counts = no_earlier(local.export.created, created);
    if local.export.created != counts {
        Arc::make_mut(&mut local).export.created = counts;
    }
    local
}

/// A date of a cluster as all count it (R10): no earlier than the cluster is in the ledger, if that is known.
fn no_earlier(date: i64, created: i64) -> i64 {
    if created == 0 { date } else { date.max(created) }
}

/// The date of the newest claim to a target in other clusters.
fn newest(remotes: &BTreeMap<ClusterId, Remote>, target: &Target) -> Option<i64> {
    remotes::claims(remotes, target).map(|(_, claim)| claim.claimed).max()
}

fn count(names: &mut BTreeMap<ServiceKey, usize>, key: &ServiceKey) {
    *names.entry(key.clone()).or_default() += 1;
}

fn discount(names: &mut BTreeMap<ServiceKey, usize>, key: &ServiceKey) {
    if let Some(count) = names.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            names.remove(key);
        }
    }
}

#[cfg(test)]
#[path = "knowledge_tests.rs"]
pub(super) mod tests;
