use super::*;
use model::ServiceKey;

const ROOM: Usage = Usage::UNLIMITED;

fn owner(namespace: &str, n: usize) -> ClaimOwner {
    ClaimOwner::export(&ServiceKey::new(namespace, format!("web-{n:05}")))
}

/// An export with so many endpoints and one target.
fn need(endpoints: usize) -> Need {
    Need {
        fixed: Usage { names: 1, records: 2, instances: 0, bytes: 300 },
        endpoints,
        of_endpoints: Usage { names: 0, records: endpoints.div_ceil(16), instances: endpoints, bytes: 40 * endpoints },
    }
}

fn date(n: usize) -> i64 {
    i64::try_from(n).unwrap()
}

fn accounts(names: usize, instances: usize) -> Accounts {
    Accounts::new(Quota(Usage { names, instances, ..Usage::UNLIMITED }))
}

fn ask(accounts: &mut Accounts, n: usize, endpoints: usize) -> bool {
    accounts.ask(&owner("shop", n), date(n), vec![(None, need(endpoints))], ROOM).refused.is_none()
}

fn gone(accounts: &mut Accounts, n: usize) {
    accounts.ask(&owner("shop", n), 0, Vec::new(), ROOM);
}

/// The owners that are admitted, by number.
fn admitted(accounts: &Accounts, of: usize) -> Vec<usize> {
    (0..of).filter(|n| accounts.holds(&owner("shop", *n))).collect()
}

#[test]
fn who_comes_when_the_quota_is_used_up_waits_and_the_oldest_of_those_that_wait_is_next() {
    let mut accounts = accounts(2, usize::MAX);
    let asked: Vec<_> = [5, 6, 9, 7].into_iter().map(|n| ask(&mut accounts, n, 1)).collect();
    assert_eq!(asked, [true, true, false, false]);
    // An older object that comes later takes nothing from those that are there.
    assert!(!ask(&mut accounts, 1, 1));
    assert_eq!(admitted(&accounts, 10), [5, 6]);
    assert_eq!(accounts.rebalance(ROOM), [], "nothing changed");
    let why = accounts.exceeded(&owner("shop", 1)).unwrap();
    assert_eq!(why, Exceeded { limit: Limit::Namespace(Resource::Names), extent: Extent::Whole });
    gone(&mut accounts, 5);
    assert_eq!(accounts.rebalance(ROOM), [owner("shop", 1)]);
    assert!(ask(&mut accounts, 1, 1));
    assert_eq!((admitted(&accounts, 10), accounts.refused()), (vec![1, 6], 2));
    gone(&mut accounts, 7);
    gone(&mut accounts, 9);
    gone(&mut accounts, 6);
    assert_eq!((accounts.rebalance(ROOM), accounts.refused()), (vec![], 0), "who is gone waits for nothing");
}

#[test]
fn one_that_never_fits_stands_in_nobodys_way() {
    let mut accounts = accounts(10, 100);
    assert!(!ask(&mut accounts, 1, 101));
    assert!(ask(&mut accounts, 2, 100));
    assert!(!ask(&mut accounts, 3, 5) && ask(&mut accounts, 4, 0));
    gone(&mut accounts, 2);
    assert_eq!(accounts.rebalance(ROOM), [owner("shop", 3)]);
}

#[test]
fn what_grows_beyond_the_quota_is_cut_and_no_name_becomes_empty() {
    let mut accounts = accounts(10, 100);
    for (n, endpoints) in [(1, 10), (2, 30), (3, 40)] {
        assert!(ask(&mut accounts, n, endpoints));
    }
    assert_eq!(accounts.level("shop"), None);
    assert!(ask(&mut accounts, 2, 500), "its name stays");
    assert_eq!(accounts.level("shop"), Some(50), "10 + 50 + 40");
    assert!(accounts.exceeded(&owner("shop", 1)).is_none() && accounts.exceeded(&owner("shop", 3)).is_none());
    let why = accounts.exceeded(&owner("shop", 2)).unwrap();
    assert_eq!(why, Exceeded { limit: Limit::Namespace(Resource::Instances), extent: Extent::Endpoints });
    assert!(!ask(&mut accounts, 4, 0), "nobody new comes in while others are cut");
    ask(&mut accounts, 3, 500);
    assert_eq!(
        accounts.rebalance(ROOM),
        [owner("shop", 2), owner("shop", 3)],
        "who has less, or more, is planned again"
    );
    assert_eq!(accounts.level("shop"), Some(45));
    ask(&mut accounts, 2, 20);
    accounts.rebalance(ROOM);
    assert_eq!(accounts.level("shop"), Some(70));
    gone(&mut accounts, 3);
    assert_eq!(accounts.rebalance(ROOM), [owner("shop", 4)], "and who waits comes in");
    assert_eq!(accounts.level("shop"), None);
}

#[test]
fn the_next_leader_comes_to_the_same_result_in_whatever_order_it_hears_of_the_objects() {
    let mut before = accounts(50, 700);
    let needs: Vec<_> = (0..80).map(|n| (n * 7) % 31).collect();
    for (n, endpoints) in needs.iter().enumerate() {
        ask(&mut before, (n * 37) % 80, *endpoints);
    }
    ask(&mut before, 3, 300);
    before.rebalance(ROOM);
    let held = admitted(&before, 80);
    assert!(
        held.len() > 30 && held.len() < 60 && before.level("shop").is_some(),
        "{} {:?}",
        held.len(),
        before.level("shop")
    );
    for step in [1, 13, 79] {
        let mut after = accounts(50, 700);
        after.restart(held.iter().map(|n| (owner("shop", *n), None, need(0))));
        // Those that are on record ask first.
        let order = (0..80).map(|n| (n * step + 5) % 80);
        let (first, then): (Vec<_>, Vec<_>) = order.partition(|n| held.contains(n));
        for n in first.into_iter().chain(then) {
            let endpoints = (0..80).find(|m| (m * 37) % 80 == n).map_or(0, |m| needs[m]);
            ask(&mut after, n, if n == 3 { 300 } else { endpoints });
        }
        after.rebalance(ROOM);
        assert_eq!((admitted(&after, 80), after.level("shop")), (held.clone(), before.level("shop")), "{step}");
        assert_eq!(after.refused(), before.refused());
    }
}

#[test]
fn a_smaller_quota_takes_nothing_away_and_lets_nobody_in() {
    let mut accounts = accounts(5, usize::MAX);
    (0..5).for_each(|n| assert!(ask(&mut accounts, n, 1)));
    let quota = |names| Some(Quota(Usage { names, ..Usage::UNLIMITED }));
    assert!(accounts.set_quota(&"shop".into(), quota(2)) && !accounts.set_quota(&"shop".into(), quota(2)));
    accounts.rebalance(ROOM);
    (0..5).for_each(|n| assert!(ask(&mut accounts, n, 2), "{n} may grow"));
    assert!(!ask(&mut accounts, 9, 1));
    accounts.set_quota(&"shop".into(), quota(6));
    assert_eq!(accounts.rebalance(ROOM), [owner("shop", 9)]);
    accounts.set_quota(&"shop".into(), None);
    assert_eq!(accounts.quota("shop").0.names, 5);
}

#[test]
fn names_that_are_being_withdrawn_count_until_their_instances_are_gone() {
    let mut accounts = accounts(2, usize::MAX);
    assert!(ask(&mut accounts, 1, 1) && ask(&mut accounts, 2, 1) && !ask(&mut accounts, 3, 1));
    gone(&mut accounts, 1);
    accounts.retire(&"shop".into(), true);
    assert_eq!(accounts.rebalance(ROOM), []);
    accounts.retire(&"shop".into(), false);
    assert_eq!(accounts.rebalance(ROOM), [owner("shop", 3)]);
}

#[test]
fn of_an_object_with_many_names_those_that_fit_are_admitted_and_those_that_are_there_stay() {
    let mut accounts = accounts(3, usize::MAX);
    let owner = ClaimOwner::service(&ServiceKey::new("shop", "web"));
    let needs = |names: &[&str]| -> Vec<_> {
        let target = |name: &&str| Some(Target { namespace: "internal".into(), service: (*name).into() });
        names.iter().map(|name| (target(name), need(1))).collect()
    };
    let mut names = |names: &[&str]| {
        let answer = accounts.ask(&owner, 1, needs(names), ROOM);
        let admitted = answer.admitted.into_iter().flatten().map(|target| target.service.to_string());
        (admitted.collect::<Vec<_>>(), answer.refused.map(|why| why.extent))
    };
    assert_eq!(names(&["m", "n"]), (vec!["m".to_owned(), "n".to_owned()], None));
    let (there, why) = names(&["a", "b", "m", "n"]);
    assert_eq!((there.join(" ").as_str(), why), ("a m n", Some(Extent::Names)));
    let (there, why) = names(&["b", "m", "n"]);
    assert_eq!((there.join(" ").as_str(), why), ("b m n", None), "it makes room for itself");
}

#[test]
fn a_cluster_without_room_lets_nobody_in_until_there_is_some() {
    let mut accounts = accounts(usize::MAX, usize::MAX);
    let room = |records| Usage { records, ..Usage::UNLIMITED };
    let mut ask = |namespace, n: usize, records| {
        accounts.ask(&owner(namespace, n), date(n), vec![(None, need(1))], room(records)).refused.map(|why| why.limit)
    };
    assert_eq!(ask("shop", 1, 3), None);
    assert_eq!((ask("shop", 2, 0), ask("bank", 3, 2)), (Some(Limit::Cluster), Some(Limit::Cluster)));
    assert_eq!(accounts.rebalance(room(2)), []);
    // Not enough for both: the older one comes first, whichever its namespace.
    assert_eq!(accounts.rebalance(room(5)), [owner("shop", 2)]);
    assert_eq!(accounts.rebalance(room(5)), [], "nothing changed");
    assert_eq!(accounts.rebalance(room(8)), [owner("bank", 3)]);
}

#[test]
fn the_namespaces_that_are_nearest_to_a_limit_are_shown_first() {
    let mut accounts = accounts(10, 100);
    for (namespace, n, endpoints) in [("a", 1, 1), ("b", 1, 90), ("c", 1, 5), ("c", 2, 5), ("c", 3, 5)] {
        accounts.ask(&owner(namespace, n), 1, vec![(None, need(endpoints))], ROOM);
    }
    let nearest: Vec<_> = accounts.nearest(2).into_iter().map(|used| (used.namespace, used.used.instances)).collect();
    assert_eq!(nearest, [("b".into(), 90), ("c".into(), 15)]);
}

/// 22,000 ServiceExports, which come one by one, change and go.
#[test]
fn the_steps_for_many_objects_of_a_tenant_are_in_proportion_to_their_number() {
    let steps = |objects: usize| {
        steps::take();
        let mut accounts = accounts(1_000, 10_000);
        for round in 0..3 {
            for n in 0..objects {
                ask(&mut accounts, n, round);
                for next in accounts.rebalance(ROOM) {
                    accounts.ask(&next, 1, vec![(None, need(round))], ROOM);
                }
            }
        }
        assert_eq!(admitted(&accounts, objects).len(), 1_000);
        for n in 0..objects {
            gone(&mut accounts, n);
            for next in accounts.rebalance(ROOM) {
                let of = next.name.strip_prefix("web-").unwrap().parse::<i64>().unwrap();
                accounts.ask(&next, of, vec![(None, need(1))], ROOM);
            }
        }
        assert_eq!(accounts.refused(), 0);
        steps::take()
    };
    let (few, many) = (steps(2_750), steps(22_000));
    assert!(many <= few * 12, "{few} steps for an eighth of them, and {many} for all");
}
