//! The registration records of this cluster, and who wants which target.

use std::collections::{BTreeMap, BTreeSet};

use instances::policy::Precedence;
use model::{ClaimOwner, ClaimState, Registration, Target};

/// The dates of new claims. A new claim is later than every known claim to its target: a cluster that claims later must
/// not come first because its clock is behind.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "it borrows a function")]
pub struct Dates<'a> {
    now: i64,
    others: &'a dyn Fn(&Target) -> Option<i64>,
}

impl<'a> Dates<'a> {
    /// `now` is the date if there is no newer claim, in seconds since 1970. `others` gives the date of the newest claim in
    /// other clusters.
    pub fn new(now: i64, others: &'a dyn Fn(&Target) -> Option<i64>) -> Self {
        Self { now, others }
    }

    fn of(&self, target: &Target, held: Option<i64>) -> i64 {
        let newest = (self.others)(target).max(held);
        newest.map_or(self.now, |newest| self.now.max(newest.saturating_add(1)))
    }
}

impl From<i64> for Dates<'_> {
    fn from(now: i64) -> Self {
        Self { now, others: &|_| None }
    }
}

/// The registration records. They begin as the previous leader left them: claims keep their dates, and targets that
/// nobody wants any more stay known until their instances were seen to be gone.
#[derive(Debug, Clone)]
pub(super) struct Registrations {
    held: BTreeMap<Target, Registration>,
    /// The targets that each owner wants, if this leader has observed the owner; sorted.
    wanted: BTreeMap<ClaimOwner, Box<[Target]>>,
    /// The targets that an earlier leader recorded for owners that this leader has not observed yet.
    inherited: BTreeMap<ClaimOwner, Vec<Target>>,
    /// Owners of this cluster that want a target which another one of them holds.
    waiting: BTreeMap<Target, BTreeMap<ClaimOwner, Waits>>,
    /// How owners wait that this leader has not observed yet, by the records of an earlier leader.
    recorded: BTreeMap<ClaimOwner, BTreeMap<Target, Waits>>,
}

/// How an owner waits for a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waits {
    /// In seconds since 1970.
    since: i64,
    /// It may not register there.
    unable: bool,
}

impl Waits {
    fn of(registration: &Registration) -> Self {
        Self { since: registration.claimed, unable: registration.is_unable() }
    }

    fn claim(self, target: &Target, owner: &ClaimOwner) -> Registration {
        let state = if self.unable { ClaimState::Unable } else { ClaimState::Serves };
        Registration { target: target.clone(), owner: owner.clone(), claimed: self.since, state }
    }

    fn precedence(self, target: &Target, owner: &ClaimOwner) -> Precedence {
        Precedence::new(owner, target, self.since, self.unable)
    }
}

/// The effects of a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Targets whose record changed.
    pub(super) records: BTreeSet<Target>,
    /// Owners that begin or cease to wait for a target.
    pub(super) waits: BTreeSet<(Target, ClaimOwner)>,
    /// Owners that may now get a target for which they waited, or that lost one and now wait for it.
    pub(super) freed: BTreeSet<ClaimOwner>,
}

impl Registrations {
    pub(super) fn resume(held: BTreeMap<Target, Registration>, waited: impl IntoIterator<Item = Registration>) -> Self {
        let mut inherited = BTreeMap::<_, Vec<_>>::new();
        for Registration { owner, target, .. } in held.values() {
            inherited.entry(owner.clone()).or_default().push(target.clone());
        }
        let mut recorded = BTreeMap::<ClaimOwner, BTreeMap<Target, Waits>>::new();
        for waited in waited {
            let waits = Waits::of(&waited);
            recorded.entry(waited.owner).or_default().insert(waited.target, waits);
        }
        Self { held, wanted: BTreeMap::new(), inherited, waiting: BTreeMap::new(), recorded }
    }

    /// The claim with which an owner waits for a target, as far as this leader or an earlier one observed it.
    pub(super) fn waits(&self, target: &Target, owner: &ClaimOwner) -> Option<Registration> {
        let waits = || self.waiting.get(target)?.get(owner);
        let waits = waits().or_else(|| self.recorded.get(owner)?.get(target))?;
        Some(waits.claim(target, owner))
    }

    /// The owners that wait for a target and may not register there.
    pub(super) fn unable(&self, target: &Target) -> impl Iterator<Item = &ClaimOwner> {
        let waiting = self.waiting.get(target).into_iter().flatten();
        waiting.filter(|(_, waits)| waits.unable).map(|(owner, _)| owner)
    }

    /// Since when an owner has waited for its first target, by the records of earlier leaders.
    pub(super) fn waited_since(&self, owner: &ClaimOwner) -> Option<i64> {
        self.recorded.get(owner)?.values().map(|waits| waits.since).min()
    }

    /// The dates of all claims.
    pub(super) fn dates(&self) -> impl Iterator<Item = i64> {
        let recorded = self.recorded.values().flat_map(BTreeMap::values).map(|waits| waits.since);
        self.held.values().map(|held| held.claimed).chain(recorded)
    }

    /// The claims that hold a target or wait for one, by the records.
    pub(super) fn claims(&self) -> impl Iterator<Item = (&ClaimOwner, &Target)> {
        let held = self.held.values().filter(|held| !held.is_retiring()).map(|held| (&held.owner, &held.target));
        let waits = self.recorded.iter().flat_map(|(owner, targets)| targets.keys().map(move |target| (owner, target)));
        let waiting = self.waiting.iter().flat_map(|(target, owners)| owners.keys().map(move |owner| (owner, target)));
        held.chain(waits).chain(waiting)
    }

    pub(super) const fn held(&self) -> &BTreeMap<Target, Registration> {
        &self.held
    }

    /// Sets all targets that an owner wants. `dates` determines the dates of new claims. An owner that waits for a target
    /// claims it with the date since when it has waited, and the first one by [`Precedence`] is the successor. An owner
    /// that holds another one's own name waits as soon as that one wants the name.
    pub(super) fn set<'a>(
        &mut self,
        owner: &ClaimOwner,
        targets: BTreeSet<Target>,
        dates: impl Into<Dates<'a>>,
    ) -> Changed {
        let (mut changed, dates) = (Changed::default(), dates.into());
        let recorded = self.recorded.remove(owner).unwrap_or_default();
        changed.waits.extend(recorded.keys().map(|target| (target.clone(), owner.clone())));
        // The records of an earlier leader count as well. They may be for other targets.
        let inherited = self.inherited.remove(owner).unwrap_or_default();
        let before = self.wanted.remove(owner).unwrap_or_else(|| inherited.into());
        for target in before.iter().filter(|target| !targets.contains(*target)) {
            if let Some(owners) = self.waiting.get_mut(target) {
                if owners.remove(owner).is_some() {
                    changed.waits.insert((target.clone(), owner.clone()));
                }
                if owners.is_empty() {
                    self.waiting.remove(target);
                }
            }
            if let Some(held) = self.held.get_mut(target).filter(|held| held.owner == *owner && !held.is_retiring()) {
                held.state = ClaimState::Retiring;
                changed.records.insert(target.clone());
                changed.freed.extend(self.waiting_for(target));
            }
        }
        for target in &targets {
            let registration = match self.held.get(target) {
                Some(held) if held.owner == *owner && held.is_retiring() => {
                    Registration { state: ClaimState::Serves, ..held.clone() }
                }
                Some(held) if held.owner == *owner => held.clone(),
                held => {
                    let held = held.filter(|held| !held.is_retiring());
                    let waiting = self.waiting.entry(target.clone()).or_default();
                    let waits = *waiting.entry(owner.clone()).or_insert_with(|| {
                        changed.waits.insert((target.clone(), owner.clone()));
                        let since = || dates.of(target, held.map(|held| held.claimed));
                        recorded.get(target).copied().unwrap_or_else(|| Waits { since: since(), unable: false })
                    });
                    let first = waiting.iter().map(|(other, waits)| (waits.precedence(target, other), other)).min();
                    let evicts = |held| waits.precedence(target, owner).evicts(Precedence::of(held));
                    if held.is_some_and(|held| !evicts(held)) || first.is_some_and(|(_, first)| first != owner) {
                        continue;
                    }
                    waiting.remove(owner);
                    changed.waits.insert((target.clone(), owner.clone()));
                    if let Some(held) = held {
                        // An owner that this leader has not observed yet may be gone. As soon as it is observed, it waits with
                        // its date.
                        if self.wanted.get(&held.owner).is_some_and(|wanted| wanted.contains(target)) {
                            waiting.insert(held.owner.clone(), Waits::of(held));
                        } else {
                            let recorded = self.recorded.entry(held.owner.clone()).or_default();
                            recorded.insert(target.clone(), Waits::of(held));
                        }
                        changed.waits.insert((target.clone(), held.owner.clone()));
                        changed.freed.insert(held.owner.clone());
                    }
                    waits.claim(target, owner)
                }
            };
            if self.held.get(target) != Some(&registration) {
                self.held.insert(target.clone(), registration);
                changed.records.insert(target.clone());
            }
            if self.waiting.get(target).is_some_and(BTreeMap::is_empty) {
                self.waiting.remove(target);
            }
        }
        if !targets.is_empty() {
            self.wanted.insert(owner.clone(), targets.into_iter().collect());
        }
        changed
    }

    /// Gives the record of a target to the first waiting owner that `shares` the target with its holder in another cluster,
    /// and is able. The owner that had the record waits from then on, with its date. Both are freed.
    pub(super) fn pass(&mut self, target: &Target, shares: impl Fn(&ClaimOwner) -> bool) -> Option<Changed> {
        let held = self.held.get_mut(target).filter(|held| !held.is_retiring() && !shares(&held.owner))?;
        let waiting = self.waiting.get_mut(target)?;
        let sharing = waiting.iter().filter(|(owner, waits)| !waits.unable && shares(owner));
        let (owner, waits) =
            sharing.min_by_key(|(owner, waits)| (waits.since, *owner)).map(|(o, w)| (o.clone(), *w))?;
        waiting.remove(&owner);
        waiting.insert(held.owner.clone(), Waits::of(held));
        let former = std::mem::replace(held, waits.claim(target, &owner)).owner;
        let waits = [&owner, &former].map(|owner| (target.clone(), owner.clone())).into();
        Some(Changed { records: [target.clone()].into(), waits, freed: [former, owner].into() })
    }

    /// Sets what the claim of an owner to a target says of it, unless it retires. An owner that is able again claims the
    /// target anew, by `dates`: it waits as long as a new claim does. Whoever may now get the target is freed.
    pub(super) fn set_state<'a>(
        &mut self,
        target: &Target,
        owner: &ClaimOwner,
        state: ClaimState,
        dates: impl Into<Dates<'a>>,
    ) -> Changed {
        let (mut changed, dates) = (Changed::default(), dates.into());
        let unable = state == ClaimState::Unable;
        let held = self.held.get_mut(target).filter(|held| !held.is_retiring());
        let newest = held.as_ref().map(|held| held.claimed);
        if let Some(held) = held.filter(|held| held.owner == *owner) {
            if held.state == state {
                return changed;
            }
            if held.is_unable() {
                held.claimed = dates.of(target, newest);
            }
            held.state = state;
            changed.records.insert(target.clone());
            if unable {
                changed.freed = self.waiting_for(target);
            }
        } else if let Some(waits) = self.waiting.get_mut(target).and_then(|waiting| waiting.get_mut(owner))
            && waits.unable != unable
        {
            let since = if unable { waits.since } else { dates.of(target, newest) };
            *waits = Waits { since, unable };
            changed.waits.insert((target.clone(), owner.clone()));
            if !unable {
                changed.freed.insert(owner.clone());
            }
        }
        changed
    }

    /// Retires the records of an earlier leader for owners that no longer exist.
    pub(super) fn retire_unowned(&mut self, is_owner: impl Fn(&ClaimOwner) -> bool) -> Changed {
        let mut changed = Changed::default();
        self.inherited.retain(|owner, _| is_owner(owner));
        for held in self.held.values_mut().filter(|held| !held.is_retiring() && !is_owner(&held.owner)) {
            held.state = ClaimState::Retiring;
            changed.records.insert(held.target.clone());
        }
        for (owner, targets) in self.recorded.extract_if(.., |owner, _| !is_owner(owner)) {
            changed.waits.extend(targets.into_keys().map(|target| (target, owner.clone())));
        }
        changed
    }

    /// Records a target as retired that was not on record.
    pub(super) fn retire(&mut self, target: &Target, owner: &ClaimOwner, now: i64) -> Changed {
        let mut changed = Changed::default();
        if !self.held.contains_key(target) {
            let (target, owner) = (target.clone(), owner.clone());
            changed.records.insert(target.clone());
            let state = ClaimState::Retiring;
            self.held.insert(target.clone(), Registration { target, owner, claimed: now, state });
        }
        changed
    }

    /// Removes the record of a retired target that has no instance of this cluster any more. `None` if the target is
    /// not retired.
    pub(super) fn retired(&mut self, target: &Target) -> Option<BTreeSet<ClaimOwner>> {
        self.held.get(target).filter(|held| held.is_retiring())?;
        self.held.remove(target);
        Some(self.waiting_for(target))
    }

    /// Number of entries of all kinds.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let Self { held, wanted, inherited, waiting, recorded } = self;
        held.len() + wanted.len() + inherited.len() + waiting.len() + recorded.len()
    }

    fn waiting_for(&self, target: &Target) -> BTreeSet<ClaimOwner> {
        self.waiting.get(target).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }
}

#[cfg(test)]
mod tests;
