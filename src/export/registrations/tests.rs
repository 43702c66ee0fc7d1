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
    held.map(|r| format!("{}={}{}", r.target.service, r.owner.name, if r.is_retiring() { "!" } else { "" })).collect()
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

    // An owner that is still there, and is observed later, waits with its date.
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
    assert_eq!((state(&registrations), registrations.held()[&target("a")].claimed), (vec!["a=first".to_owned()], 1));
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
    assert_eq!((state(&registrations), registrations.held()[&target("a")].claimed), (vec!["a=z-second".to_owned()], 2));
    assert_eq!(registrations.set(&second, targets(&[]), 5).freed, [third.clone()].into());
    registrations.set(&third, targets(&["a"]), 5);
    assert_eq!((state(&registrations), registrations.held()[&target("a")].claimed), (vec!["a=a-third".to_owned()], 3));
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
