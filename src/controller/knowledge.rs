//! Everything that is known about exports at one moment: those of this cluster from its caches, those of the others
//! from their ledgers.

mod deciding;
mod publication;
mod quotas;
mod remotes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Mode, parts::Part};
use cluster::objects::Namespace;
use export::{Accounts, Dates, Exports, Quota, Refusal};
use instances::{Naming, RegistrationPolicy, Rights, policy::Precedence, target::validate};
use ledger::{Map, limits::MAX_SKEW};
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
#[derive(Debug)]
pub struct Knowledge {
    local: ClusterId,
    membership: Membership,
    /// For each ServiceExport, its export, or why there is none.
    planned: BTreeMap<ServiceKey, Result<Arc<Exported>, Refusal>>,
    /// Which endpoints of an export others see, if not all of them.
    parts: BTreeMap<ServiceKey, Part>,
    /// Exports whose targets are not known yet, so that what is published of them stays.
    unlisted: BTreeSet<ServiceKey>,
    annotated: BTreeMap<ClaimOwner, Asks>,
    /// The exports that want a target: most targets are wanted by one.
    wanting: BTreeSet<(Target, ServiceKey)>,
    /// In how many clusters each name is exported, including this one.
    names: BTreeMap<ServiceKey, usize>,
    rules: Rules,
    rights: Rights,
    /// How much the objects of each Kubernetes namespace use.
    accounts: Accounts,
    /// `None` until the own ledger is known.
    exports: Option<Exports>,
    remotes: BTreeMap<ClusterId, Remote>,
    /// Clusters that are in the ledger, but of which nothing is accepted (yet).
    unaccepted: BTreeSet<ClusterId>,
    /// Whether the registry's heads were read at least once in this term. The content of the record does not count.
    read: bool,
    /// Whether all live clusters were verified at least once, or had the time for it.
    settled: bool,
    published: Option<Arc<Map>>,
    /// The latest known time, in seconds since 1970: no claim gets an earlier date.
    latest: i64,
    /// Since when this cluster is in the ledger, in seconds since 1970; 0 if that is not known. Its exports and claims count as no
    /// older, here as in all other clusters.
    created: i64,
    /// Why this cluster may not register anything, if so (J5).
    barred: Option<String>,
}

#[derive(Debug, Default)]
struct Remote {
    /// The same of this cluster.
    created: i64,
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
    /// Whether it was heard in this term: its position advanced.
    heard: bool,
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
            planned: BTreeMap::new(),
            parts: BTreeMap::new(),
            unlisted: BTreeSet::new(),
            annotated: BTreeMap::new(),
            wanting: BTreeSet::new(),
            names: BTreeMap::new(),
            rules: Rules::default(),
            rights: Rights::default(),
            accounts: Accounts::new(Quota::default()),
            exports: None,
            remotes: BTreeMap::new(),
            unaccepted: BTreeSet::new(),
            read: false,
            settled: false,
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
        self.planned.get(key)
    }

    /// The exports in the own ledger; `None` until it is known.
    pub fn exports(&self) -> Option<&Exports> {
        self.exports.as_ref()
    }

    /// Number of clusters that are known to export anything, including this one, and number of exported names.
    pub fn sizes(&self) -> (usize, usize) {
        (1 + self.remotes.len(), self.names.len())
    }

    /// Sets what a ServiceExport exports now (`None`: there is no ServiceExport). Returns the other names that must be
    /// planned again, and whether the map to publish changed.
    pub fn replan(
        &mut self,
        key: &ServiceKey,
        plan: Option<Result<Exported, Refusal>>,
        now: i64,
    ) -> (BTreeSet<ClaimOwner>, bool) {
        let unchanged = match (self.planned.get(key), &plan) {
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
            self.wanting.remove(&(target, key.clone()));
        }
        match plan.map(|plan| plan.map(Arc::new)) {
            Some(plan) => {
                if self.planned.insert(key.clone(), plan).is_none() {
                    count(&mut self.names, key);
                }
            }
            None => {
                if self.planned.remove(key).is_some() {
                    discount(&mut self.names, key);
                }
            }
        }
        for target in self.targets_of(&owner) {
            self.wanting.insert((target, key.clone()));
        }
        (self.export(key, now), true)
    }

    /// Which endpoints of an export others see; `None` means all of them.
    pub fn part(&self, key: &ServiceKey) -> Option<&Part> {
        self.parts.get(key)
    }

    /// Sets which endpoints of an export others see. Returns whether that is new; [`export`](Self::export) acts on it.
    pub fn set_part(&mut self, key: &ServiceKey, part: Option<Part>) -> bool {
        if self.parts.get(key) == part.as_ref() {
            return false;
        }
        match part {
            Some(part) => self.parts.insert(key.clone(), part),
            None => self.parts.remove(key),
        };
        true
    }

    /// Sets whether the target of an export is not known yet. Returns whether that is new; [`export`](Self::export) acts on
    /// it.
    pub fn set_unlisted(&mut self, key: &ServiceKey, unlisted: bool) -> bool {
        if self.unlisted.contains(key) == unlisted {
            return false;
        }
        let owner = ClaimOwner::export(key);
        for target in self.targets_of(&owner) {
            self.wanting.remove(&(target, key.clone()));
        }
        if unlisted {
            self.unlisted.insert(key.clone())
        } else {
            self.unlisted.remove(key)
        };
        for target in self.targets_of(&owner) {
            self.wanting.insert((target, key.clone()));
        }
        true
    }

    /// The endpoints of an export that others see now, of those that the map has.
    pub fn shown(&self, key: &ServiceKey) -> Option<Vec<Endpoint>> {
        self.exports.as_ref()?.said(key).map(|said| said.endpoints)
    }

    /// The planned export, as others see it.
    fn visible(&self, key: &ServiceKey, local: &Arc<Exported>) -> Arc<Exported> {
        let mut visible = self.parts.get(key).map_or_else(|| Arc::clone(local), |part| Arc::new(part.of(local)));
        if self.unlisted.contains(key) {
            let said = self.exports.as_ref().and_then(|exports| exports.said(key));
            Arc::make_mut(&mut visible).export.target = said.and_then(|said| said.export.target);
        }
        visible
    }

    /// Sets what an annotated object wants (`None`: it is gone, or requests nothing). Returns who may now get a target
    /// that it released, and whether anything changed.
    pub fn annotate(&mut self, owner: &ClaimOwner, wanted: Option<Asks>, now: i64) -> (BTreeSet<ClaimOwner>, bool) {
        if self.annotated.get(owner) == wanted.as_ref() {
            return (BTreeSet::new(), false);
        }
        match wanted {
            Some(wanted) => self.annotated.insert(owner.clone(), wanted),
            None => self.annotated.remove(owner),
        };
        (self.register(owner, now), true)
    }

    /// The targets that an annotated object wants, as far as that is known.
    pub fn annotated(&self, owner: &ClaimOwner) -> impl Iterator<Item = &Target> {
        self.annotated.get(owner).into_iter().flat_map(Asks::targets)
    }

    /// Brings the map up to date with what an annotated object wants, as far as it is admitted.
    fn register(&mut self, owner: &ClaimOwner, now: i64) -> BTreeSet<ClaimOwner> {
        let wanted = match (&self.membership, self.annotated.get(owner)) {
            (Membership::Leaving, _) | (_, None) => Wants::default(),
            (_, Some(Asks::Unknown)) => return BTreeSet::new(),
            _ if self.barred.is_some() => Wants::default(),
            (_, Some(Asks::For(wants))) => wants.clone(),
        };
        let Some(wanted) = self.admit(owner, &wanted) else { return BTreeSet::new() };
        if self.rules.frozen {
            return BTreeSet::new();
        }
        self.change(&wanted, now, |exports, dates| exports.claim(owner, wanted.clone(), dates))
    }

    /// Changes the exports or claims that want these targets. Returns the owners that may now get a target for which they
    /// waited.
    fn change(
        &mut self,
        targets: &BTreeSet<Target>,
        now: i64,
        change: impl FnOnce(&mut Exports, Dates<'_>) -> BTreeSet<ClaimOwner>,
    ) -> BTreeSet<ClaimOwner> {
        self.not_before(now);
        let others = |target: &Target| newest(&self.remotes, target);
        let Some(exports) = &mut self.exports else { return BTreeSet::new() };
        let mut freed = change(exports, Dates::new(self.latest, &others));
        freed.extend(self.side_with_others(targets));
        self.note_retiring();
        freed
    }

    /// Gives the records of targets that other clusters hold to the owners here that share them: the same Service. Another
    /// owner that claimed the target here first waits for those clusters anyway. Returns the owners concerned.
    pub fn side_with_others(&mut self, targets: &BTreeSet<Target>) -> BTreeSet<ClaimOwner> {
        let mut concerned = BTreeSet::new();
        for target in targets {
            let holder = self.claimant(target).filter(|(cluster, _)| *cluster != self.local);
            if let (Some((_, holder)), Some(exports)) = (holder, &mut self.exports) {
                concerned.extend(exports.pass(target, |owner| owner.is_same_service(&holder)));
            }
        }
        concerned
    }

    /// Lets an owner claim a target again that has become free.
    pub fn claim_again(&mut self, owner: &ClaimOwner, now: i64) -> BTreeSet<ClaimOwner> {
        if owner.is_annotated() { self.register(owner, now) } else { self.export(&owner.key(), now) }
    }

    /// The targets that an owner wants.
    pub fn targets_of(&self, owner: &ClaimOwner) -> Vec<Target> {
        if owner.is_annotated() {
            return self.annotated(owner).cloned().collect();
        }
        let planned = self.planned.get(&owner.key()).and_then(|plan| plan.as_ref().ok());
        let key = owner.key();
        let unlisted = self.unlisted.contains(&key);
        let local = planned.map(|local| if unlisted { self.visible(&key, local) } else { Arc::clone(local) });
        let targets = local.map(|local| self.targets_for(&key, &local));
        targets.unwrap_or_default().into_iter().collect()
    }

    fn targets_for(&self, key: &ServiceKey, local: &Exported) -> BTreeSet<Target> {
        let own = self.rules.own_targets.then(|| Naming::PerNamespace.implied(key));
        let own = own.filter(|target| validate(target).is_ok());
        local.export.target.iter().cloned().chain(own).collect()
    }

    /// Brings the map to publish up to date with what a name exports, and claims a target again that has become free.
    /// Returns the owners that may now get a target for which they waited.
    pub fn export(&mut self, key: &ServiceKey, now: i64) -> BTreeSet<ClaimOwner> {
        let local = match (&self.membership, self.planned.get(key)) {
            (Membership::Leaving, _) | (_, None | Some(Err(_))) => None,
            _ if self.rules.mode == Mode::Standalone => None,
            (_, Some(Ok(local))) => Some(self.visible(key, local)),
        };
        let (encoded, targets) = self.admit_export(key, local).unzip();
        let targets = targets.filter(|_| self.barred.is_none()).unwrap_or_default();
        self.change(&targets, now, |exports, dates| exports.set_encoded(key, encoded, targets.clone(), dates))
    }

    /// Starts from the own ledger as the previous leader left it. What is no longer exported is removed from it.
    pub fn resume(&mut self, own: &Map, now: i64) {
        let exports = Exports::resume(own).within(self.capacity());
        self.accounts.forget();
        // The previous leader's clock may have been ahead of this one. A clock that was wrong shows nothing.
        let soon = now.saturating_add(MAX_SKEW.as_secs().cast_signed());
        self.not_before(exports.dates().filter(|date| *date <= soon).max().unwrap_or_default());
        // What others see of exports whose part is not known yet stays as it is.
        for (key, part) in &mut self.parts {
            if let (Part::AsMany(..), Some(said)) = (&*part, exports.said(key)) {
                *part = Part::as_many(&said.endpoints);
            }
        }
        self.exports = Some(exports);
        self.export_all(now);
    }

    /// Notes that it is `date` or later, in seconds since 1970: a clock that was set back dates no claim.
    pub fn not_before(&mut self, date: i64) {
        self.latest = self.latest.max(date);
    }

    fn export_all(&mut self, now: i64) {
        let Some(exports) = &mut self.exports else { return };
        let leaving = self.membership == Membership::Leaving;
        // First, so that targets which nobody holds any more are free for the next owners.
        exports.retire_unowned(|owner| {
            let key = owner.key();
            let owns = if owner.is_annotated() {
                self.rules.frozen || self.annotated.contains_key(owner)
            } else {
                self.rules.mode != Mode::Standalone && matches!(self.planned.get(&key), Some(Ok(_)))
            };
            !leaving && owns
        });
        self.accounts.restart(quotas::recorded(exports));
        self.note_retiring();
        let Some(exports) = &self.exports else { return };
        let names: BTreeSet<ServiceKey> = exports.names().into_iter().chain(self.planned.keys().cloned()).collect();
        let mut owners: Vec<ClaimOwner> = names.iter().map(ClaimOwner::export).collect();
        owners.extend(self.annotated.keys().cloned());
        // Of the owners that wait for a free target, the one that has waited longest comes first.
        // What is on record is not displaced by what is new, and of that the oldest object comes first.
        owners.sort_by_cached_key(|owner| {
            let waited_since = exports.waited_since(owner).unwrap_or(i64::MAX);
            (!self.accounts.holds(owner), waited_since, self.created(owner))
        });
        let freed: BTreeSet<ClaimOwner> = owners.iter().flat_map(|owner| self.claim_again(owner, now)).collect();
        for owner in freed {
            self.claim_again(&owner, now);
        }
    }

    /// Records a target as retired, so that instances of this cluster are withdrawn for which there is no record.
    pub fn retire(&mut self, target: &Target, owner: &ClaimOwner, now: i64) {
        self.not_before(now);
        if let Some(exports) = &mut self.exports {
            exports.retire(target, owner, self.latest);
        }
    }

    /// A retired target has no instances of this cluster any more.
    pub fn retired(&mut self, target: &Target) -> BTreeSet<ClaimOwner> {
        let freed = self.exports.as_mut().map(|exports| exports.retired(target)).unwrap_or_default();
        self.note_retiring();
        freed
    }

    /// The map to publish; `None` until the own ledger is known.
    pub fn desired(&self) -> Option<Arc<Map>> {
        self.exports.as_ref().map(Exports::map)
    }

    /// The exports of this cluster that want a target.
    pub fn wanted_by(&self, target: &Target) -> impl Iterator<Item = &ServiceKey> {
        let first = (target.clone(), ServiceKey::new("", ""));
        let wanting = self.wanting.range(first..).take_while(move |(wanted, _)| wanted == target);
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
            .chain(remotes::claims(&self.remotes, target))
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
        let others = |target: &Target| newest(&self.remotes, target);
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
        let planned = self.planned.get(key).and_then(|plan| plan.as_ref().ok());
        let is_refused = |exports: &&Exports| {
            exports.refusal(key).is_some() || self.accounts.exceeded(&ClaimOwner::export(key)).is_some()
        };
        let own = match self.exports.as_ref().filter(is_refused) {
            Some(exports) => exports.said(key).map(Arc::new),
            None => planned.map(|local| self.visible(key, local)),
        };
        own.map(|local| (self.local.clone(), no_older(local, self.created)))
            .into_iter()
            .chain(self.remotes.iter().filter_map(|(id, remote)| {
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
