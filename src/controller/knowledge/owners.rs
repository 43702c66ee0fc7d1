//! What the owners of this cluster want: which targets they claim, and what of it is to be published.

use std::{collections::BTreeSet, sync::Arc};

use super::{Asks, Knowledge, Membership, Wants, newest, quotas};
use crate::{Mode, subset::Subset};
use export::{Dates, Exports};
use instances::{Naming, target::validate};
use ledger::{Map, limits::MAX_SKEW};
use model::{ClaimOwner, Exported, ServiceKey, Target};

impl Knowledge {
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
    pub(super) fn register(&mut self, owner: &ClaimOwner, now: i64) -> BTreeSet<ClaimOwner> {
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
        let others = |target: &Target| newest(&self.others.remotes, target);
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

    /// The targets whose record changed since this was asked last.
    pub fn take_changed_records(&mut self) -> BTreeSet<Target> {
        self.exports.as_mut().map(Exports::take_changed).unwrap_or_default()
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
        let planned = self.plans.planned.get(&owner.key()).and_then(|plan| plan.as_ref().ok());
        let key = owner.key();
        let unlisted = self.plans.unlisted.contains(&key);
        let local = planned.map(|local| if unlisted { self.visible(&key, local) } else { Arc::clone(local) });
        let targets = local.map(|local| self.targets_for(&key, &local));
        targets.unwrap_or_default().into_iter().collect()
    }

    pub(super) fn targets_for(&self, key: &ServiceKey, local: &Exported) -> BTreeSet<Target> {
        let own = self.rules.own_targets.then(|| Naming::PerNamespace.implied(key));
        let own = own.filter(|target| validate(target).is_ok());
        local.export.target.iter().cloned().chain(own).collect()
    }

    /// Brings the map to publish up to date with what a name exports, and claims a target again that has become free.
    /// Returns the owners that may now get a target for which they waited.
    pub fn export(&mut self, key: &ServiceKey, now: i64) -> BTreeSet<ClaimOwner> {
        let local = match (&self.membership, self.plans.planned.get(key)) {
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
        // What others see of exports whose subset is not known yet stays as it is.
        for (key, subset) in &mut self.plans.subsets {
            if let (Subset::AsMany(..), Some(said)) = (&*subset, exports.said(key)) {
                *subset = Subset::as_many(&said.endpoints);
            }
        }
        self.exports = Some(exports);
        self.export_all(now);
    }

    /// Notes that it is `date` or later, in seconds since 1970: a clock that was set back dates no claim.
    pub fn not_before(&mut self, date: i64) {
        self.latest = self.latest.max(date);
    }

    pub(super) fn export_all(&mut self, now: i64) {
        let Some(exports) = &mut self.exports else { return };
        let leaving = self.membership == Membership::Leaving;
        // First, so that targets which nobody holds any more are free for the next owners.
        exports.retire_unowned(|owner| {
            let key = owner.key();
            let owns = if owner.is_annotated() {
                self.rules.frozen || self.annotated.contains_key(owner)
            } else {
                self.rules.mode != Mode::Standalone && matches!(self.plans.planned.get(&key), Some(Ok(_)))
            };
            !leaving && owns
        });
        self.accounts.restart(quotas::recorded(exports));
        self.note_retiring();
        let Some(exports) = &self.exports else { return };
        let names: BTreeSet<ServiceKey> =
            exports.names().into_iter().chain(self.plans.planned.keys().cloned()).collect();
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
}
