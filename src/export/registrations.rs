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
#[derive(Debug)]
pub(super) struct Registrations {
    held: BTreeMap<Target, Registration>,
    /// The targets that each owner wants, since this leader heard of it; sorted.
    wanted: BTreeMap<ClaimOwner, Box<[Target]>>,
    /// The targets that an earlier leader recorded for owners of which this leader has not heard yet.
    inherited: BTreeMap<ClaimOwner, Vec<Target>>,
    /// Owners of this cluster that want a target which another one of them holds.
    waiting: BTreeMap<Target, BTreeMap<ClaimOwner, Waits>>,
    /// How owners of which this leader has not heard yet wait, by the records of an earlier leader.
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

    /// The claim with which an owner waits for a target, as far as this leader or an earlier one heard of it.
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
                        // An owner that this leader has not heard of yet may be gone. It waits, with its date, as soon
                        // as it is heard of.
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
mod tests {
    use super::*;

    fn target(service: &str) -> Target {
        Target { namespace: "internal".into(), service: service.into() }
    }

    fn targets(services: &[&str]) -> BTreeSet<Target> {
        services.iter().map(|service| target(service)).collect()
    }

    fn owner(kind: &str, name: &str) -> ClaimOwner {
        ClaimOwner { kind: kind.into(), namespace: "shop".into(), name: name.into() }
    }

    fn state(registrations: &Registrations) -> Vec<String> {
        let held = registrations.held.values();
        held.map(|r| format!("{}={}{}", r.target.service, r.owner.name, if r.is_retiring() { "!" } else { "" }))
            .collect()
    }

    #[test]
    fn an_owner_has_as_many_targets_as_it_wants_and_releases_the_others() {
        let mut registrations = Registrations::resume(BTreeMap::new(), []);
        let web = owner("Service", "web");
        assert_eq!(registrations.set(&web, targets(&["a", "b"]), 1).records, targets(&["a", "b"]));
        assert_eq!(registrations.set(&web, targets(&["a", "b"]), 2), Changed::default());
        assert_eq!(registrations.set(&web, targets(&["b", "c"]), 3).records, targets(&["a", "c"]));
        assert_eq!(state(&registrations), ["a=web!", "b=web", "c=web"]);
        assert_eq!(registrations.held()[&target("b")].claimed, 1);
        assert_eq!(registrations.retired(&target("b")), None);
        assert_eq!(registrations.retired(&target("a")), Some(BTreeSet::new()));
        assert_eq!(state(&registrations), ["b=web", "c=web"]);
    }

    #[test]
    fn records_of_an_earlier_leader_are_released_as_well() {
        let mut before = Registrations::resume(BTreeMap::new(), []);
        let (web, api) = (owner("Service", "web"), owner("Service", "api"));
        before.set(&web, targets(&["a", "b"]), 1);
        before.set(&api, targets(&["c"]), 1);
        let mut registrations = Registrations::resume(before.held.clone(), []);
        assert_eq!(registrations.retire_unowned(|owner| *owner == web).records, targets(&["c"]));
        registrations.set(&web, targets(&["b"]), 2);
        assert_eq!(state(&registrations), ["a=web!", "b=web", "c=api!"]);
    }

    #[test]
    fn an_owner_that_waits_gets_the_target_when_it_is_free_whatever_else_it_has() {
        let mut registrations = Registrations::resume(BTreeMap::new(), []);
        let (web, api) = (owner("ServiceExport", "web"), owner("Service", "api"));
        registrations.set(&web, targets(&["a"]), 1);
        assert_eq!(registrations.set(&api, targets(&["a", "b"]), 2).records, targets(&["b"]));
        assert_eq!(state(&registrations), ["a=web", "b=api"]);
        assert_eq!(registrations.set(&web, targets(&[]), 3).freed, [api.clone()].into());
        registrations.set(&api, targets(&["a", "b"]), 4);
        assert_eq!(state(&registrations), ["a=api", "b=api"]);
        assert_eq!(registrations.held()[&target("a")].claimed, 2, "claims date from when they were first wanted");
        // An owner that no longer waits is not reported.
        registrations.set(&web, targets(&["a"]), 5);
        registrations.set(&web, targets(&[]), 6);
        assert_eq!(registrations.set(&api, targets(&[]), 7).freed, BTreeSet::new());
    }

    /// A tenant that names another one's service first does not keep it. The owner that loses the name in this way is
    /// the next.
    #[test]
    fn a_name_goes_to_the_namespace_that_it_belongs_to_no_matter_who_claimed_it_first() {
        let payments = || BTreeSet::from([Target { namespace: "shop".into(), service: "payments".into() }]);
        let evil = ClaimOwner { kind: "Service".into(), namespace: "evil".into(), name: "payments".into() };
        let (bad, own) = (ClaimOwner { namespace: "bad".into(), ..evil.clone() }, owner("ServiceExport", "payments"));
        let holds = |registrations: &Registrations| {
            let held = registrations.held.values().next().unwrap();
            (held.owner.clone(), held.claimed)
        };
        let mut registrations = Registrations::resume(BTreeMap::new(), []);
        registrations.set(&evil, payments(), 1);
        registrations.set(&bad, payments(), 2);
        let changed = registrations.set(&own, payments(), 3);
        assert_eq!((changed.records, changed.freed), (payments(), [evil.clone()].into()));
        assert_eq!(holds(&registrations), (own.clone(), 3));
        assert_eq!(registrations.set(&evil, payments(), 4), Changed::default());
        // Another claim of the same namespace does not displace it.
        let changed = registrations.set(&owner("Service", "web"), payments(), 5);
        assert!(changed.records.is_empty() && changed.freed.is_empty());
        registrations.set(&owner("Service", "web"), BTreeSet::new(), 6);
        let freed = registrations.set(&own, BTreeSet::new(), 7).freed;
        assert_eq!(freed, [bad.clone(), evil.clone()].into());
        for owner in &freed {
            registrations.set(owner, payments(), 7);
        }
        assert_eq!(holds(&registrations), (evil.clone(), 1), "it is as it was before");

        // According to the record of the previous leader. An owner that is gone since does not wait.
        let resumed = || Registrations::resume(registrations.held.clone(), []);
        let mut gone = resumed();
        gone.set(&own, payments(), 8);
        assert_eq!(holds(&gone), (own.clone(), 8));
        gone.set(&own, BTreeSet::new(), 9);
        gone.set(&bad, payments(), 9);
        assert_eq!(holds(&gone), (bad, 9));

        // An owner that is still there, and is heard of later, waits with its date.
        let mut there = resumed();
        let changed = there.set(&own, payments(), 8);
        assert!(changed.waits.contains(&(payments().pop_first().unwrap(), evil.clone())));
        there.set(&evil, payments(), 9);
        there.set(&own, BTreeSet::new(), 10);
        there.set(&evil, payments(), 11);
        assert_eq!(holds(&there), (evil, 1));
    }

    #[test]
    fn an_owner_that_shares_a_target_with_another_cluster_comes_before_owners_that_wait_for_that_cluster() {
        let mut registrations = Registrations::resume(BTreeMap::new(), []);
        let [first, web, export] = [owner("Service", "first"), owner("Service", "web"), owner("ServiceExport", "web")];
        let is_web = |owner: &ClaimOwner| *owner.name == *"web";
        registrations.set(&first, targets(&["a"]), 1);
        assert_eq!(registrations.pass(&target("a"), is_web), None, "nobody waits");
        for (now, owner) in [(2, &web), (3, &export)] {
            registrations.set(owner, targets(&["a"]), now);
        }
        assert_eq!(registrations.pass(&target("a"), is_web).unwrap().freed, [first.clone(), web.clone()].into());
        assert_eq!(registrations.pass(&target("a"), is_web), None, "it shares already");
        assert_eq!(registrations.held()[&target("a")].claimed, 2);
        assert_eq!(registrations.set(&first, targets(&["a"]), 4), Changed::default());
        // The owner that had the record waits with its date, before owners that came later.
        assert_eq!(registrations.set(&web, targets(&[]), 5).freed, [first.clone(), export.clone()].into());
        for owner in [&export, &first] {
            registrations.set(owner, targets(&["a"]), 5);
        }
        assert_eq!(
            (state(&registrations), registrations.held()[&target("a")].claimed),
            (vec!["a=first".to_owned()], 1)
        );
    }

    #[test]
    fn the_owner_that_has_waited_longest_is_the_next() {
        let mut registrations = Registrations::resume(BTreeMap::new(), []);
        let [first, second, third] = ["first", "z-second", "a-third"].map(|name| owner("Service", name));
        for (now, owner) in [(1, &first), (2, &second), (3, &third)] {
            registrations.set(owner, targets(&["a"]), now);
        }
        let freed = registrations.set(&first, targets(&[]), 4).freed;
        assert_eq!(freed, [second.clone(), third.clone()].into());
        for owner in &freed {
            registrations.set(owner, targets(&["a"]), 4);
        }
        assert_eq!(
            (state(&registrations), registrations.held()[&target("a")].claimed),
            (vec!["a=z-second".to_owned()], 2)
        );
        assert_eq!(registrations.set(&second, targets(&[]), 5).freed, [third.clone()].into());
        registrations.set(&third, targets(&["a"]), 5);
        assert_eq!(
            (state(&registrations), registrations.held()[&target("a")].claimed),
            (vec!["a=a-third".to_owned()], 3)
        );
    }

    /// Else the order of their names would decide after each change of leader.
    #[test]
    fn who_waits_keeps_its_date_when_the_leader_changes() {
        let [first, long, short] = ["first", "z-long", "a-short"].map(|name| owner("Service", name));
        let gone = owner("Service", "gone");
        let mut before = Registrations::resume(BTreeMap::new(), []);
        let mut waits = BTreeSet::new();
        for (now, owner) in [(1, &first), (2, &gone), (3, &long), (4, &short)] {
            waits.extend(before.set(owner, targets(&["a"]), now).waits);
        }
        waits.extend(before.set(&gone, targets(&[]), 5).waits);
        let recorded = |registrations: &Registrations| -> Vec<Registration> {
            waits.iter().filter_map(|(target, owner)| registrations.waits(target, owner)).collect()
        };
        let waiting = recorded(&before);
        assert_eq!(waiting.iter().map(|waiting| waiting.claimed).collect::<BTreeSet<_>>(), [3, 4].into());

        let mut after = Registrations::resume(before.held, waiting);
        assert_eq!(recorded(&after).len(), 2, "it stays on record until they speak");
        assert_eq!((after.waited_since(&long), after.waited_since(&first)), (Some(3), None));
        assert_eq!(after.set(&first, targets(&["a"]), 10), Changed::default());
        after.set(&short, targets(&["a"]), 10);
        after.set(&long, targets(&["a"]), 10);
        let freed = after.set(&first, targets(&[]), 11).freed;
        for owner in &freed {
            after.set(owner, targets(&["a"]), 12);
        }
        assert_eq!((state(&after), after.held()[&target("a")].claimed), (vec!["a=z-long".to_owned()], 3));
        // Who is no more is on record no more.
        let mut after = Registrations::resume(BTreeMap::new(), recorded(&after));
        let changed = after.retire_unowned(|owner| *owner != short);
        assert_eq!((changed.waits, after.waits(&target("a"), &short)), ([(target("a"), short)].into(), None));
    }

    #[test]
    fn who_is_unable_gives_the_target_to_whoever_is_able_and_claims_it_anew_afterwards() {
        let home = || BTreeSet::from([Target { namespace: "shop".into(), service: "pay".into() }]);
        let at = home().pop_first().unwrap();
        let away = ClaimOwner { kind: "Service".into(), namespace: "evil".into(), name: "pay".into() };
        let own = owner("ServiceExport", "pay");
        let mut registrations = Registrations::resume(BTreeMap::new(), []);
        registrations.set(&away, home(), 1);
        registrations.set(&own, home(), 2);
        let said = |registrations: &Registrations| {
            let held = &registrations.held[&at];
            (held.owner.clone(), held.claimed, held.state)
        };
        assert_eq!(said(&registrations), (own.clone(), 2, ClaimState::Serves));
        let changed = registrations.set_state(&at, &own, ClaimState::Unable, 3);
        assert_eq!((changed.records, changed.freed), (home(), [away.clone()].into()));
        assert_eq!(said(&registrations), (own.clone(), 2, ClaimState::Unable), "the record says it by itself");
        registrations.set(&away, home(), 4);
        assert_eq!(said(&registrations), (away.clone(), 1, ClaimState::Serves));
        assert_eq!(registrations.unable(&at).collect::<Vec<_>>(), [&own]);
        assert_eq!(registrations.set(&own, home(), 5), Changed::default(), "it evicts nobody");

        // The next leader knows.
        let waits = registrations.waits(&at, &own).unwrap();
        assert_eq!((waits.claimed, waits.state), (2, ClaimState::Unable));
        let mut after = Registrations::resume(registrations.held.clone(), [waits]);
        after.set(&own, home(), 6);
        after.set(&away, home(), 6);
        assert_eq!(said(&after), (away.clone(), 1, ClaimState::Serves));

        assert_eq!(after.set_state(&at, &away, ClaimState::Empty, 7).freed, BTreeSet::new(), "it may be empty");
        assert_eq!(after.set_state(&at, &own, ClaimState::Serves, 8).freed, [own.clone()].into());
        after.set(&own, home(), 8);
        assert_eq!(said(&after), (own.clone(), 8, ClaimState::Serves), "its own name, as a new claim");
        // If both are unable, it is as ever.
        after.set_state(&at, &own, ClaimState::Unable, 9);
        after.set_state(&at, &away, ClaimState::Unable, 9);
        after.set(&away, home(), 9);
        assert_eq!(said(&after), (own, 8, ClaimState::Unable));
    }

    #[test]
    fn a_claim_is_later_than_those_that_are_known_whatever_the_clock_says() {
        let (web, api) = (owner("Service", "web"), owner("Service", "api"));
        let others = |wanted: &Target| (*wanted == target("a")).then_some(90);
        let mut registrations = Registrations::resume(BTreeMap::new(), []);
        registrations.set(&web, targets(&["a", "b"]), Dates::new(50, &others));
        assert_eq!(registrations.held()[&target("a")].claimed, 91);
        assert_eq!(registrations.held()[&target("b")].claimed, 50);
        registrations.set(&api, targets(&["a", "b"]), Dates::new(40, &others));
        let waits_since = |service| registrations.waits(&target(service), &api).map(|waits| waits.claimed);
        assert_eq!((waits_since("a"), waits_since("b")), (Some(92), Some(51)));
        let absurd = |_: &Target| Some(i64::MAX);
        registrations.set(&api, targets(&["c"]), Dates::new(40, &absurd));
        assert_eq!(registrations.held()[&target("c")].claimed, i64::MAX);
    }
}
