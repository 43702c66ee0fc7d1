//! The registration records of this cluster, and who wants which target.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    instances::policy::Precedence,
    model::{ClaimOwner, Registration, Target},
};

/// The registration records. They begin as the previous leader left them: claims keep their dates, and targets that
/// nobody wants any more stay known until their instances were seen to be gone.
#[derive(Debug)]
pub(super) struct Registrations {
    held: BTreeMap<Target, Registration>,
    /// The targets that each owner wants, since this leader heard of it.
    wanted: BTreeMap<ClaimOwner, BTreeSet<Target>>,
    /// Owners of this cluster that want a target which another one of them holds, and since when, in seconds since
    /// 1970.
    waiting: BTreeMap<Target, BTreeMap<ClaimOwner, i64>>,
}

/// The effects of a change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Targets whose record changed.
    pub(super) records: BTreeSet<Target>,
    /// Owners that may now get a target for which they waited, or that lost one and now wait for it.
    pub(super) freed: BTreeSet<ClaimOwner>,
}

impl Registrations {
    pub(super) fn resume(held: BTreeMap<Target, Registration>) -> Self {
        Self { held, wanted: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    pub(super) const fn held(&self) -> &BTreeMap<Target, Registration> {
        &self.held
    }

    /// Sets all targets that an owner wants. New claims get the date `now`, in seconds since 1970. An owner that waits
    /// for a target claims it with the date since when it has waited, and the first one by [`Precedence`] is the
    /// successor. An owner that holds another one's own name waits as soon as that one wants the name.
    pub(super) fn set(&mut self, owner: &ClaimOwner, targets: BTreeSet<Target>, now: i64) -> Changed {
        let mut changed = Changed::default();
        self.waiting.retain(|target, owners| {
            if !targets.contains(target) {
                owners.remove(owner);
            }
            !owners.is_empty()
        });
        // The records of an earlier leader count as well. They may be for other targets.
        let before = match self.wanted.remove(owner) {
            Some(before) => before,
            None => self.held.values().filter(|held| held.owner == *owner).map(|held| held.target.clone()).collect(),
        };
        for target in before.difference(&targets) {
            if let Some(held) = self.held.get_mut(target).filter(|held| held.owner == *owner && !held.retiring) {
                held.retiring = true;
                changed.records.insert(target.clone());
                changed.freed.extend(self.waiting_for(target));
            }
        }
        for target in &targets {
            let registration = match self.held.get(target) {
                Some(held) if held.owner == *owner => Registration { retiring: false, ..held.clone() },
                held => {
                    let waiting = self.waiting.entry(target.clone()).or_default();
                    let claimed = *waiting.entry(owner.clone()).or_insert(now);
                    let precedence = |(owner, since): (&ClaimOwner, &i64)| Precedence::new(owner, target, *since);
                    let first = waiting.iter().map(|waiting| (precedence(waiting), waiting.0)).min();
                    let held = held.filter(|held| !held.retiring);
                    let evicts = |held| precedence((owner, &claimed)).evicts(Precedence::of(held));
                    if held.is_some_and(|held| !evicts(held)) || first.is_some_and(|(_, first)| first != owner) {
                        continue;
                    }
                    waiting.remove(owner);
                    if let Some(held) = held {
                        // An owner that this leader has not heard of yet may be gone. It waits as soon as it is heard
                        // of.
                        if self.wanted.get(&held.owner).is_some_and(|wanted| wanted.contains(target)) {
                            waiting.insert(held.owner.clone(), held.claimed);
                        }
                        changed.freed.insert(held.owner.clone());
                    }
                    Registration { target: target.clone(), owner: owner.clone(), claimed, retiring: false }
                }
            };
            if self.held.get(target) != Some(&registration) {
                self.held.insert(target.clone(), registration);
                changed.records.insert(target.clone());
            }
        }
        if !targets.is_empty() {
            self.wanted.insert(owner.clone(), targets);
        }
        changed
    }

    /// Gives the record of a target to the first waiting owner that `shares` the target with its holder in another cluster.
    /// The owner that had the record waits from then on, with its date. Returns both.
    pub(super) fn pass(&mut self, target: &Target, shares: impl Fn(&ClaimOwner) -> bool) -> Option<[ClaimOwner; 2]> {
        let held = self.held.get_mut(target).filter(|held| !held.retiring && !shares(&held.owner))?;
        let waiting = self.waiting.get_mut(target)?;
        let sharing = waiting.iter().filter(|(owner, _)| shares(owner));
        let (owner, claimed) = sharing.min_by_key(|(owner, since)| (**since, *owner)).map(|(o, s)| (o.clone(), *s))?;
        waiting.remove(&owner);
        waiting.insert(held.owner.clone(), held.claimed);
        let former = std::mem::replace(&mut held.owner, owner.clone());
        held.claimed = claimed;
        Some([former, owner])
    }

    /// Retires the records of an earlier leader for owners that no longer exist.
    pub(super) fn retire_unowned(&mut self, is_owner: impl Fn(&ClaimOwner) -> bool) -> BTreeSet<Target> {
        let unowned = self.held.values_mut().filter(|held| !held.retiring && !is_owner(&held.owner));
        unowned
            .map(|held| {
                held.retiring = true;
                held.target.clone()
            })
            .collect()
    }

    /// Removes the record of a retired target that has no instance of this cluster any more. `None` if the target is
    /// not retired.
    pub(super) fn retired(&mut self, target: &Target) -> Option<BTreeSet<ClaimOwner>> {
        self.held.get(target).filter(|held| held.retiring)?;
        self.held.remove(target);
        Some(self.waiting_for(target))
    }

    /// Number of entries of all kinds.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let Self { held, wanted, waiting } = self;
        held.len() + wanted.len() + waiting.len()
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
        held.map(|r| format!("{}={}{}", r.target.service, r.owner.name, if r.retiring { "!" } else { "" })).collect()
    }

    #[test]
    fn an_owner_has_as_many_targets_as_it_wants_and_releases_the_others() {
        let mut registrations = Registrations::resume(BTreeMap::new());
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
        let mut before = Registrations::resume(BTreeMap::new());
        let (web, api) = (owner("Service", "web"), owner("Service", "api"));
        before.set(&web, targets(&["a", "b"]), 1);
        before.set(&api, targets(&["c"]), 1);
        let mut registrations = Registrations::resume(before.held.clone());
        assert_eq!(registrations.retire_unowned(|owner| *owner == web), targets(&["c"]));
        registrations.set(&web, targets(&["b"]), 2);
        assert_eq!(state(&registrations), ["a=web!", "b=web", "c=api!"]);
    }

    #[test]
    fn an_owner_that_waits_gets_the_target_when_it_is_free_whatever_else_it_has() {
        let mut registrations = Registrations::resume(BTreeMap::new());
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
        let mut registrations = Registrations::resume(BTreeMap::new());
        registrations.set(&evil, payments(), 1);
        registrations.set(&bad, payments(), 2);
        let changed = registrations.set(&own, payments(), 3);
        assert_eq!((changed.records, changed.freed), (payments(), [evil.clone()].into()));
        assert_eq!(holds(&registrations), (own.clone(), 3));
        assert_eq!(registrations.set(&evil, payments(), 4), Changed::default());
        // Another claim of the same namespace does not displace it.
        assert_eq!(registrations.set(&owner("Service", "web"), payments(), 5), Changed::default());
        registrations.set(&owner("Service", "web"), BTreeSet::new(), 6);
        let freed = registrations.set(&own, BTreeSet::new(), 7).freed;
        assert_eq!(freed, [bad.clone(), evil.clone()].into());
        for owner in &freed {
            registrations.set(owner, payments(), 7);
        }
        assert_eq!(holds(&registrations), (evil.clone(), 1), "it is as it was before");

        // According to the record of the previous leader. An owner that is gone since does not wait.
        let mut registrations = Registrations::resume(registrations.held);
        registrations.set(&own, payments(), 8);
        assert_eq!(holds(&registrations), (own.clone(), 8));
        registrations.set(&own, BTreeSet::new(), 9);
        registrations.set(&bad, payments(), 9);
        assert_eq!(holds(&registrations), (bad, 9));
    }

    #[test]
    fn an_owner_that_shares_a_target_with_another_cluster_comes_before_owners_that_wait_for_that_cluster() {
        let mut registrations = Registrations::resume(BTreeMap::new());
        let [first, web, export] = [owner("Service", "first"), owner("Service", "web"), owner("ServiceExport", "web")];
        let is_web = |owner: &ClaimOwner| *owner.name == *"web";
        registrations.set(&first, targets(&["a"]), 1);
        assert_eq!(registrations.pass(&target("a"), is_web), None, "nobody waits");
        for (now, owner) in [(2, &web), (3, &export)] {
            registrations.set(owner, targets(&["a"]), now);
        }
        assert_eq!(registrations.pass(&target("a"), is_web), Some([first.clone(), web.clone()]));
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
        let mut registrations = Registrations::resume(BTreeMap::new());
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
}
