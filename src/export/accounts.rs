//! Who uses how much of the registry, by Kubernetes namespace: what is admitted, what is refused, and who is next when there is
//! room. Pure, and the same for every leader: what decides are the records, the dates of the objects and their sizes.
//!
//! - What is in the ledger stays. Nobody who comes later takes its place, and no limit that becomes smaller.
//! - What is new is admitted if it fits, whole. Of those that wait, the oldest object comes first.
//! - What is there may grow until a limit is reached. Then the endpoints of the largest are cut, so that no name becomes
//!   empty: [`Accounts::level`] is the most that any of them has.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::quota::{Exceeded, Extent, Limit, Quota, Resource, Usage};
use base::steps;
use model::{ClaimOwner, Target};

/// Which need of an owner: that of its export (`None`), or that of a target of an annotated object.
type NeedKey = Option<Target>;

/// What an export, or a target of an annotated object, needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Need {
    /// What it needs whatever its endpoints are.
    pub fixed: Usage,
    /// Number of endpoints.
    pub endpoints: usize,
    /// What all of them need together.
    pub of_endpoints: Usage,
}

impl Need {
    /// What is needed with at most so many endpoints.
    fn at(&self, level: Option<usize>) -> Usage {
        let Some(level) = level.filter(|level| *level < self.endpoints) else {
            return self.fixed.plus(self.of_endpoints);
        };
        let part = |all: usize| all.saturating_mul(level).div_ceil(self.endpoints);
        let Usage { names, records, instances, bytes } = self.of_endpoints;
        let [names, records, instances, bytes] = [names, records, instances, bytes].map(part);
        self.fixed.plus(Usage { names, records, instances, bytes })
    }
}

/// The answer to an owner.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// What is admitted.
    pub admitted: BTreeSet<NeedKey>,
    /// Why the rest is not, if there is a rest.
    pub refused: Option<Exceeded>,
}

/// An owner of which something is refused.
#[derive(Debug, Clone)]
struct Refused {
    created: i64,
    why: Exceeded,
    /// The least of each resource with which it may be worth asking again.
    least: Usage,
}

#[derive(Debug, Clone, Default)]
struct Account {
    /// Instead of the default.
    quota: Option<Quota>,
    admitted: BTreeMap<(ClaimOwner, NeedKey), Need>,
    /// What all of these need, and what they have with the current level.
    full: Usage,
    used: Usage,
    level: Option<usize>,
    /// Names that are being withdrawn. Until their instances are gone, they have a record each.
    retiring: usize,
    refused: BTreeMap<ClaimOwner, Refused>,
    /// The same, the oldest objects first.
    queue: BTreeSet<(i64, ClaimOwner)>,
}

impl Account {
    fn is_empty(&self) -> bool {
        self.quota.is_none() && self.admitted.is_empty() && self.refused.is_empty() && self.retiring == 0
    }

    /// What is used, with the names that are being withdrawn.
    fn taken(&self) -> Usage {
        self.used.plus(Usage { names: self.retiring, records: self.retiring, ..Usage::default() })
    }

    /// The first limit that the endpoints exceed. Names have no less for being cut.
    fn excess(&self, limit: &Usage) -> Option<Resource> {
        self.full.excess(&Usage { names: usize::MAX, ..*limit })
    }

    fn put(&mut self, key: (ClaimOwner, NeedKey), need: Need) {
        if let Some(before) = self.admitted.insert(key, need) {
            self.subtract(&before);
        }
        (self.full, self.used) = (self.full.plus(need.at(None)), self.used.plus(need.at(self.level)));
    }

    fn subtract(&mut self, need: &Need) {
        (self.full, self.used) = (self.full.minus(need.at(None)), self.used.minus(need.at(self.level)));
    }

    fn parts(&self, owner: &ClaimOwner) -> Vec<NeedKey> {
        let there = self.admitted.range((owner.clone(), None)..).take_while(|((other, _), _)| other == owner);
        there.map(|((_, part), _)| part.clone()).collect()
    }

    fn forget_refused(&mut self, owner: &ClaimOwner) {
        if let Some(Refused { created, .. }) = self.refused.remove(owner) {
            self.queue.remove(&(created, owner.clone()));
        }
    }

    /// The largest number of endpoints that each may have, so that all fit. At least one, because a name must not become
    /// empty.
    fn relevel(&mut self, limit: &Usage) {
        let total = |level: Option<usize>| {
            self.admitted.values().fold(Usage::default(), |sum, need| {
                steps::count();
                sum.plus(need.at(level))
            })
        };
        // What exceeds a limit whatever is cut stays as it is, such as after the limit became smaller.
        let least = total(Some(1));
        let limit = limit.combined(least, |limit, least| if least > limit { usize::MAX } else { limit });
        let fits = |used: Usage| used.excess(&limit).is_none();
        self.level = None;
        if !fits(self.full) {
            let (mut low, mut high) = (1, self.admitted.values().map(|need| need.endpoints).max().unwrap_or(1).max(1));
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if fits(total(Some(middle))) { low = middle } else { high = middle - 1 }
            }
            self.level = Some(low);
        }
        self.used = total(self.level);
    }

    /// Owners some of whose endpoints are cut with one of these levels.
    fn cut_by(&self, levels: [Option<usize>; 2]) -> impl Iterator<Item = &ClaimOwner> {
        let least = levels.into_iter().flatten().min().unwrap_or(usize::MAX);
        let cut = self.admitted.iter().filter(move |(_, need)| need.endpoints > least);
        cut.map(|((owner, _), _)| owner)
    }
}

/// What a namespace uses, for metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// Kubernetes namespace.
    pub namespace: Arc<str>,
    /// What its objects use.
    pub used: Usage,
    /// What they may use.
    pub quota: Quota,
}

impl Used {
    /// The part of the quota that is used, of the resource of which most is, in thousandths.
    fn nearness(&self) -> usize {
        let part = |resource| self.used.of(resource).saturating_mul(1_000) / self.quota.0.of(resource).max(1);
        Resource::ALL.into_iter().map(part).max().unwrap_or_default()
    }
}

/// The accounts of all Kubernetes namespaces.
#[derive(Debug, Clone)]
pub struct Accounts {
    default: Quota,
    by_namespace: BTreeMap<Arc<str>, Account>,
    /// Namespaces in which there may be room for more, or that use too much.
    unsettled: BTreeSet<Arc<str>>,
    /// Namespaces in which something is refused because the cluster has no room, and how much room there was then.
    crowded: BTreeSet<Arc<str>>,
    room_then: Usage,
    /// Owners that have had too much since the last [`Accounts::rebalance`].
    cut: BTreeSet<ClaimOwner>,
}

impl Accounts {
    /// Accounts of which nothing is used, with the limits of namespaces that have none of their own.
    pub fn new(default: Quota) -> Self {
        let (by_namespace, unsettled, crowded, room_then, cut) = Default::default();
        Self { default, by_namespace, unsettled, crowded, room_then, cut }
    }

    /// Sets the limits of a namespace; `None` means the default ones. Returns whether that is new.
    pub fn set_quota(&mut self, namespace: &Arc<str>, quota: Option<Quota>) -> bool {
        if self.by_namespace.get(namespace).and_then(|account| account.quota) == quota {
            return false;
        }
        self.by_namespace.entry(Arc::clone(namespace)).or_default().quota = quota;
        self.unsettled.insert(Arc::clone(namespace));
        true
    }

    /// The limits of a namespace.
    pub fn quota(&self, namespace: &str) -> Quota {
        self.by_namespace.get(namespace).and_then(|account| account.quota).unwrap_or(self.default)
    }

    /// The most endpoints that a name in a namespace may have; `None` if there is room for all.
    pub fn level(&self, namespace: &str) -> Option<usize> {
        self.by_namespace.get(namespace)?.level
    }

    /// Forgets everything but the limits.
    pub fn forget(&mut self) {
        for account in self.by_namespace.values_mut() {
            *account = Account { quota: account.quota, ..Account::default() };
        }
        self.by_namespace.retain(|_, account| !account.is_empty());
    }

    /// Forgets who uses what, but not the limits. The owners are going to ask again, and what is `recorded` is admitted
    /// before.
    pub fn restart(&mut self, recorded: impl IntoIterator<Item = (ClaimOwner, NeedKey, Need)>) {
        for account in self.by_namespace.values_mut() {
            *account = Account { quota: account.quota, retiring: account.retiring, ..Account::default() };
        }
        self.unsettled = self.by_namespace.keys().cloned().collect();
        self.crowded.clear();
        for (owner, part, need) in recorded {
            let account = self.by_namespace.entry(Arc::clone(&owner.namespace)).or_default();
            account.put((owner, part), need);
        }
    }

    /// Whether anything of an owner is admitted.
    pub fn holds(&self, owner: &ClaimOwner) -> bool {
        let account = self.by_namespace.get(&owner.namespace);
        account.is_some_and(|account| !account.parts(owner).is_empty())
    }

    /// An owner that was created at `created` (seconds since 1970) needs this now. `room` is what the cluster has left.
    pub fn ask(&mut self, owner: &ClaimOwner, created: i64, needs: Vec<(NeedKey, Need)>, room: Usage) -> Answer {
        let namespace = &owner.namespace;
        if needs.is_empty() && !self.by_namespace.contains_key(namespace) {
            return Answer::default();
        }
        let limit = self.quota(namespace).0;
        let account = self.by_namespace.entry(Arc::clone(namespace)).or_default();
        account.forget_refused(owner);
        let (before, mut room, mut answer) = (account.full, room, Answer::default());
        let needed: BTreeSet<_> = needs.iter().map(|(part, _)| part).collect();
        for part in account.parts(owner).into_iter().filter(|part| !needed.contains(part)) {
            if let Some(gone) = account.admitted.remove(&(owner.clone(), part)) {
                account.subtract(&gone);
            }
        }
        // What is there first: what is new gets what that leaves.
        let (there, new): (Vec<_>, Vec<_>) =
            needs.into_iter().partition(|(part, _)| account.admitted.contains_key(&(owner.clone(), part.clone())));
        for (part, need) in there {
            account.put((owner.clone(), part.clone()), need);
            answer.admitted.insert(part);
        }
        let mut refused = None::<(Limit, Usage)>;
        for (part, need) in new {
            steps::count();
            let all = need.at(None);
            let of_namespace = account.taken().plus(all).excess(&limit).map(Limit::Namespace);
            let of_cluster = || all.excess(&room).map(|_| Limit::Cluster);
            match of_namespace.or_else(of_cluster) {
                None if account.level.is_none() => {
                    room = room.minus(all);
                    account.put((owner.clone(), part.clone()), need);
                    answer.admitted.insert(part);
                }
                why => {
                    let why = why.unwrap_or(Limit::Namespace(Resource::Instances));
                    let (first, least) = refused.unwrap_or((why, all));
                    refused = Some((first, least.least(all)));
                }
            }
        }
        if let Some((limit, least)) = refused {
            let extent = if answer.admitted.is_empty() { Extent::Whole } else { Extent::Names };
            let why = Exceeded { limit, extent };
            account.refused.insert(owner.clone(), Refused { created, why, least });
            account.queue.insert((created, owner.clone()));
            answer.refused = Some(why);
            if limit == Limit::Cluster {
                self.crowded.insert(Arc::clone(namespace));
                self.room_then = room;
            }
        }
        let shrank = account.full.excess(&before).is_none() && account.full != before && !account.queue.is_empty();
        let exceeds = account.excess(&limit).is_some();
        if exceeds && account.level.is_none() {
            // At once, so that nobody has more meanwhile.
            account.relevel(&limit);
            self.cut.extend(account.cut_by([account.level, None]).cloned());
        }
        if shrank || account.level.is_some() || exceeds {
            self.unsettled.insert(Arc::clone(namespace));
        }
        if account.is_empty() {
            self.by_namespace.remove(namespace);
        }
        answer
    }

    /// Why an owner, or a part of it, is left out.
    pub fn exceeded(&self, owner: &ClaimOwner) -> Option<Exceeded> {
        let account = self.by_namespace.get(&owner.namespace)?;
        if let Some(refused) = account.refused.get(owner) {
            return Some(refused.why);
        }
        let level = account.level?;
        let mut parts = account.admitted.range((owner.clone(), None)..).take_while(|((other, _), _)| other == owner);
        let resource = account.excess(&self.quota(&owner.namespace).0)?;
        let is_cut = parts.any(|(_, need)| need.endpoints > level);
        is_cut.then_some(Exceeded { limit: Limit::Namespace(resource), extent: Extent::Endpoints })
    }

    /// A name of a namespace is being withdrawn (`true`), or its instances are gone.
    pub fn retire(&mut self, namespace: &Arc<str>, begins: bool) {
        let account = self.by_namespace.entry(Arc::clone(namespace)).or_default();
        account.retiring = if begins { account.retiring + 1 } else { account.retiring.saturating_sub(1) };
        if !begins && !account.queue.is_empty() {
            self.unsettled.insert(Arc::clone(namespace));
        }
    }

    /// Cuts what exceeds, and finds who may get more. Returns the owners that must ask again, in this order. `room` is what
    /// the cluster has left.
    pub fn rebalance(&mut self, room: Usage) -> Vec<ClaimOwner> {
        if !self.crowded.is_empty() && room.excess(&self.room_then).is_some() {
            self.unsettled.append(&mut self.crowded);
        }
        let (mut again, mut waiting) = (std::mem::take(&mut self.cut), BTreeMap::new());
        for namespace in std::mem::take(&mut self.unsettled) {
            let limit = self.quota(&namespace).0;
            let Some(account) = self.by_namespace.get_mut(&namespace) else { continue };
            let before = account.level;
            if before.is_some() || account.excess(&limit).is_some() {
                account.relevel(&limit);
                if account.level != before {
                    again.extend(account.cut_by([before, account.level]).cloned());
                }
            }
            if account.level.is_none() {
                let mut left = limit.minus(account.taken());
                for (created, owner) in &account.queue {
                    if left.names == 0 || left.records == 0 {
                        break;
                    }
                    steps::count();
                    let Some(Refused { least, .. }) = account.refused.get(owner) else { continue };
                    if least.excess(&left).is_none() {
                        left = left.minus(*least);
                        waiting.insert((*created, owner.clone()), *least);
                    }
                }
            }
            if account.is_empty() {
                self.by_namespace.remove(&namespace);
            }
        }
        let mut left = room;
        waiting.retain(|(_, owner), least| {
            let fits = least.excess(&left).is_none();
            if fits {
                left = left.minus(*least);
            } else {
                self.crowded.insert(Arc::clone(&owner.namespace));
                self.room_then = room;
            }
            fits
        });
        again.into_iter().chain(waiting.into_keys().map(|(_, owner)| owner)).collect()
    }

    /// Number of objects of which something is left out.
    pub fn refused(&self) -> usize {
        let of = |account: &Account| {
            account.refused.len() + account.level.map_or(0, |_| account.cut_by([account.level, None]).count())
        };
        self.by_namespace.values().map(of).sum()
    }

    /// The namespaces that are nearest to a limit, at most `most`.
    pub fn nearest(&self, most: usize) -> Vec<Used> {
        let used = |(namespace, account): (&Arc<str>, &Account)| Used {
            namespace: Arc::clone(namespace),
            used: account.taken(),
            quota: account.quota.unwrap_or(self.default),
        };
        let mut all: Vec<_> = self.by_namespace.iter().map(used).collect();
        all.sort_by_cached_key(|used| (std::cmp::Reverse(used.nearness()), Arc::clone(&used.namespace)));
        all.truncate(most);
        all
    }
}

#[cfg(test)]
#[path = "accounts_tests.rs"]
mod tests;
