//! W4, W5: what counts as written, and how long that may take.

use super::*;

/// Two pages at a time, and no new tree.
fn narrow() -> Limits {
    Limits { flush_concurrency: 2, runs: 1_000, ..limits() }
}

#[test]
fn a_flush_that_goes_on_is_not_given_up_however_long_it_takes() {
    let mut world = World::default();
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", narrow(), None);
    pass(&mut world, &mut [&mut leader], 5);
    leader.hangs = is_page;
    leader.desire(&mut world, &state(0..100, 1));
    let mut rounds = 0;
    while world.read("blue") != Some(Map::clone(&state(0..100, 1))) {
        rounds += 1;
        assert!(rounds < 40, "a flush of {} pages never ends", world.count_pages("blue"));
        pass(&mut world, &mut [&mut leader], 15);
        leader.let_go_first(&mut world, 2);
    }
    assert!(rounds > 8, "longer than two minutes");
    assert_eq!(leader.term.writer().figures().flushes_abandoned, 0);
}

#[test]
fn a_ledger_that_is_written_again_is_not_begun_anew_however_long_that_takes() {
    let mut world = World::default();
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", narrow(), None);
    leader.desire(&mut world, &state(0..100, 1));
    pass(&mut world, &mut [&mut leader], 60);
    // Somebody deletes its pages, which an audit finds.
    world.pages.clear();
    leader.hangs = is_page;
    let mut rounds = 0;
    while world.read("blue") != Some(Map::clone(&state(0..100, 1))) {
        rounds += 1;
        assert!(rounds < 100, "{} full flushes", leader.term.writer().figures().full_flushes);
        pass(&mut world, &mut [&mut leader], 15);
        leader.let_go_first(&mut world, 2);
    }
    assert!(rounds > 28, "five minutes until the audit has failed for long enough, and about three more");
    assert_eq!(leader.term.writer().figures().full_flushes, 2);
}

/// A flush of a hundred records of which only the first pages were written.
fn with_a_flush_that_stands_still() -> (World, Process) {
    let mut world = World::default();
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", narrow(), None);
    pass(&mut world, &mut [&mut leader], 5);
    leader.hangs = is_page;
    leader.desire(&mut world, &state(0..100, 1));
    for _ in 0..6 {
        pass(&mut world, &mut [&mut leader], 5);
        leader.let_go_first(&mut world, 2);
    }
    (world, leader)
}

#[test]
fn a_flush_that_stands_still_is_given_up_and_its_pages_are_used_again() {
    let (mut world, mut leader) = with_a_flush_that_stands_still();
    let written = world.count_pages("blue");
    assert!(written >= 10);
    pass(&mut world, &mut [&mut leader], 140);
    assert_eq!(leader.term.writer().figures().flushes_abandoned, 1);
    leader.time_out(&mut world);
    pass(&mut world, &mut [&mut leader], 30);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..100, 1))));
    let figures = leader.term.writer().figures();
    let all = figures.run_pages + figures.data_pages + figures.index_pages;
    assert!(figures.page_writes as usize <= all + 4, "{} writes of {all} pages, {written} before", figures.page_writes);
    // They are no garbage either.
    pass(&mut world, &mut [&mut leader], 400);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..100, 1))));
    assert_eq!(world.count_pages("blue"), all);
}

#[test]
fn a_page_of_a_flush_that_was_given_up_is_written_anew_where_it_is_gone() {
    let (mut world, mut leader) = with_a_flush_that_stands_still();
    // Somebody deletes what was written of it.
    world.pages.clear();
    pass(&mut world, &mut [&mut leader], 140);
    leader.time_out(&mut world);
    pass(&mut world, &mut [&mut leader], 300);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..100, 1))));
}

#[test]
fn a_head_that_is_read_back_is_published_whatever_becomes_of_its_operation() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    // Looking at operations is denied, or hangs.
    leader.loses = is_head;
    for keys in 16..20 {
        leader.desire(&mut world, &state(0..keys, 1));
        pass(&mut world, &mut [&mut leader], 3);
        assert_eq!(world.read("blue"), Some(Map::clone(&state(0..keys, 1))));
        assert_eq!(leader.term.writer().published(), Some(&state(0..keys, 1)));
        assert_eq!(leader.term.writer().read_back(), Some(&state(0..keys, 1)));
    }
}

#[test]
fn a_head_that_is_read_back_after_its_call_failed_is_published_as_well() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    let before = world.discover();
    leader.hangs = is_head;
    leader.sees = Some(before);
    leader.desire(&mut world, &state(0..16, 1));
    let (_, call) = leader.hanging[0].clone();
    world.make(&leader, &call);
    leader.time_out(&mut world);
    leader.hangs = is_head;
    pass(&mut world, &mut [&mut leader], 1);
    assert_ne!(leader.term.writer().published(), Some(&state(0..16, 1)));
    leader.sees = None;
    pass(&mut world, &mut [&mut leader], 3);
    assert_eq!(leader.term.writer().published(), Some(&state(0..16, 1)));
}

#[test]
fn pages_that_are_seen_are_written_whatever_becomes_of_their_operations() {
    let mut world = World::default();
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", narrow(), None);
    pass(&mut world, &mut [&mut leader], 5);
    leader.loses = is_page;
    leader.desire(&mut world, &state(0..30, 1));
    pass(&mut world, &mut [&mut leader], 120);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..30, 1))));
    let figures = leader.term.writer().figures();
    assert_eq!(
        figures.page_writes as usize,
        figures.run_pages + figures.data_pages + figures.index_pages,
        "each is written once"
    );
}

/// The new tree says what they say, but the flush was planned before and puts them into an index.
#[test]
fn the_pages_that_a_long_flush_names_stay_although_a_new_tree_takes_their_place() {
    let mut world = World::default();
    let wide = Limits { flush_concurrency: 32, ..limits() };
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", wide, None);
    leader.desire(&mut world, &state(0..15, 1));
    pass(&mut world, &mut [&mut leader], 30);
    leader.hangs = is_page;
    pass(&mut world, &mut [&mut leader], 40);
    let of_the_tree = leader.hanging.len();
    leader.desire(&mut world, &state(0..60, 1));
    assert!(of_the_tree > 0 && leader.hanging.len() > of_the_tree + 8);
    leader.let_go_first(&mut world, of_the_tree);
    assert_eq!(leader.term.writer().figures().compactions, 1);
    let root = world.heads["blue"].root.clone();
    for _ in 0..4 {
        pass(&mut world, &mut [&mut leader], 50);
        leader.let_go_first(&mut world, 1);
    }
    leader.let_go_first(&mut world, usize::MAX);
    pass(&mut world, &mut [&mut leader], 2);
    assert_ne!(world.heads["blue"].root, root);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..60, 1))));
}

/// Five of eight services, and a head that says that there are eight.
#[test]
fn a_leader_that_ended_while_it_claimed_services_leaves_a_ledger_that_can_be_written() {
    let roomy = || Limits { live_pages: 2, ..limits() };
    let mut world = World::default();
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", roomy(), None);
    leader.hangs = |call| matches!(call, Call::Claim { shard: 5.. });
    for value in 0..8 {
        leader.desire(&mut world, &state(0..100, value));
        pass(&mut world, &mut [&mut leader], 60);
    }
    assert_eq!((world.heads["blue"].root.shards, world.creators.len()), (8, 5));
    drop(leader);
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", roomy(), None);
    for value in 8..16 {
        leader.desire(&mut world, &state(0..100, value));
        pass(&mut world, &mut [&mut leader], 60);
    }
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..100, 15))));
}

/// A leader that wrote nothing but pages there before it ended.
#[test]
fn pages_in_services_beyond_those_that_the_head_says_are_collected() {
    let mut world = World::default();
    drop(with_pages(&mut world, "blue", 15));
    let (_, page) = world.pages[&("blue".into(), 0)].first_key_value().unwrap();
    let id = PageId { flush: "1-99-deadbeef".into(), ..page.id.clone() };
    let page = Arc::new(StoredPage { id: id.clone(), ..StoredPage::clone(page) });
    world.creators.insert(("blue".into(), 6), "uid-blue".into());
    world.pages.insert(("blue".into(), 6), BTreeMap::from([(id.clone(), page)]));
    let mut leader = Process::elect(&mut world, "blue");
    pass(&mut world, &mut [&mut leader], 300);
    let mut pages = world.pages.values().flat_map(BTreeMap::keys);
    assert!(pages.all(|page| page.flush != id.flush));
}

/// The audit finds services of a former leader while one is being claimed that comes before them.
#[test]
fn a_ledger_has_no_more_services_than_there_are_whatever_finds_them_first() {
    let mut world = World::default();
    let roomy = Limits { live_pages: 2, ..limits() };
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", roomy, None);
    leader.hangs = |call| matches!(call, Call::Claim { shard: 1.. });
    leader.desire(&mut world, &state(0..100, 1));
    pass(&mut world, &mut [&mut leader], 60);
    assert_eq!(leader.hanging.len(), 1);
    world.creators.insert(("blue".into(), 63), "uid-blue".into());
    pass(&mut world, &mut [&mut leader], 400);
    assert_eq!(leader.term.writer().figures().shards, 64);
    leader.let_go(&mut world);
    leader.desire(&mut world, &state(0..100, 2));
    pass(&mut world, &mut [&mut leader], 120);
    assert_eq!(leader.term.writer().figures().shards, 64);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..100, 2))));
}

/// The role of the controller may register instances and not deregister them.
#[test]
fn garbage_that_may_not_be_deleted_fills_no_further_service_and_is_tried_less_and_less() {
    let mut world = World::default();
    let few = Limits { pages: 300, ..limits() };
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", few, None);
    let (mut refused, mut said, mut lapses) = (Vec::new(), 0, 0);
    for value in 0..150 {
        leader.desire(&mut world, &state(0..40, value));
        // Also when a heartbeat succeeds.
        for _ in 0..20 {
            refused.extend(refuse(&mut world, &mut leader, |call| matches!(call, Call::DeletePage { .. }), 1));
            let denied = |error: &str| error.contains("waits for room") && error.contains("AccessDeniedException");
            if leader.term.error().is_some_and(denied) {
                said += 1;
            } else {
                lapses += u32::from(said > 0);
            }
        }
    }
    assert_eq!(world.creators.len(), 1);
    assert!(world.count_pages("blue") <= 300);
    assert!((4..15).contains(&refused.len()), "{refused:?}");
    assert!(said > 500 && lapses < 5, "{said}, {lapses}");
    // Once they are allowed, everything goes on.
    pass(&mut world, &mut [&mut leader], 900);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..40, 149))));
}

/// The role of the controller may write heads and not pages.
#[test]
fn why_pages_cannot_be_written_is_said_until_a_flush_succeeds() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    leader.hangs = is_page;
    leader.desire(&mut world, &state(0..40, 2));
    assert!(!leader.hanging.is_empty());
    // Also when a heartbeat succeeds, and when the flush is given up and another one begins.
    for second in 0..300 {
        for (id, _) in std::mem::take(&mut leader.hanging) {
            let failure = Failure { message: "AccessDeniedException".to_owned() };
            leader.term.done(world.now(), id, &Outcome::Failed(failure));
        }
        pass(&mut world, &mut [&mut leader], 1);
        let error = leader.term.error();
        assert!(error.is_some_and(|error| error.contains("AccessDeniedException")), "{second}: {error:?}");
    }
    assert!(leader.term.writer().figures().flushes_abandoned > 0);
    leader.let_go(&mut world);
    pass(&mut world, &mut [&mut leader], 30);
    assert_eq!(leader.term.error(), None);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..40, 2))));
}

/// They are published all the same.
#[test]
fn garbage_that_may_not_be_deleted_and_a_copy_that_may_not_be_written_are_no_error_of_the_exports() {
    let mut world = World::default();
    let me = WriterIdentity { clusterset: "prod".into(), cluster: "blue".into(), uid: "uid-blue".into() };
    let key = model::PublicKey::from_bytes([1; 32]);
    let trust = Trust { mode: crate::trust::Mode::Tofu, own: vec![key], ..Trust::default() };
    let mut leader = Process::start_at(&mut world, "uid-blue".into(), me, &timing(), limits(), None, trust);
    leader.fails = |call| matches!(call, Call::DeletePage { .. });
    leader.hangs = |call| matches!(call, Call::PutCopy { .. });
    let mut copies = 0;
    for value in 0..15 {
        leader.desire(&mut world, &state(0..40, value));
        for _ in 0..30 {
            pass(&mut world, &mut [&mut leader], 1);
            // The head was written meanwhile.
            for (id, _) in std::mem::take(&mut leader.hanging) {
                copies += 1;
                let failure = Failure { message: "AccessDeniedException".to_owned() };
                leader.term.done(world.now(), id, &Outcome::Failed(failure));
            }
            assert_eq!(leader.term.error(), None);
        }
    }
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..40, 14))));
    let deletions = leader.term.writer().figures().page_deletions;
    assert!(copies > 5 && deletions > 5 && world.copies.is_empty(), "{copies}, {deletions}");
}

/// Readers protect their memory.
#[test]
fn no_root_names_more_pages_than_readers_take() {
    let mut world = World::default();
    let limits = Limits { root_pages: 50, ..limits() };
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", limits, None);
    let mut publish = |leader: &mut Process, map: &Arc<Map>| {
        leader.desire(&mut world, map);
        for _ in 0..100 {
            pass(&mut world, &mut [&mut *leader], 1);
            let figures = leader.term.writer().figures();
            let all = figures.run_pages + figures.data_pages + figures.index_pages;
            assert!(all <= limits.root_pages, "{all}");
        }
        world.read("blue")
    };
    for value in 0..10 {
        let map = state(0..100, value);
        assert_eq!(publish(&mut leader, &map), Some(Map::clone(&map)));
        assert_eq!(leader.term.error(), None);
    }
    // What fits stays, and the error says so.
    assert_eq!(publish(&mut leader, &state(0..400, 1)), Some(Map::clone(&state(0..100, 9))));
    let error = leader.term.error();
    assert!(error.is_some_and(|error| error.contains("more than 50 pages of the ledger")), "{error:?}");
    assert_eq!(publish(&mut leader, &state(0..90, 2)), Some(Map::clone(&state(0..90, 2))));
    assert_eq!(leader.term.error(), None);
}

/// A former leader ended while it claimed services, and another cluster has claimed one that it left out.
#[test]
fn a_service_of_somebody_else_among_the_own_ones_is_neither_written_nor_the_end() {
    for has_a_page in [false, true] {
        let mut world = World::default();
        drop(with_pages(&mut world, "blue", 15));
        let head = Head::clone(&world.heads["blue"]);
        let root = crate::head::Root { shards: 8, ..head.root.clone() };
        world.heads.insert("blue".into(), Arc::new(Head { root, ..head }));
        let theirs: (Arc<str>, u32) = ("blue".into(), 7);
        world.creators.insert(theirs.clone(), "uid-other".into());
        let (_, page) = world.pages[&("blue".into(), 0)].first_key_value().unwrap();
        let id = PageId { flush: "1-99-deadbeef".into(), ..page.id.clone() };
        let page = Arc::new(StoredPage { id: id.clone(), ..StoredPage::clone(page) });
        let pages: Stored = has_a_page.then_some((id, page)).into_iter().collect();
        world.pages.insert(theirs.clone(), pages);
        let mut leader = Process::elect(&mut world, "blue");
        pass(&mut world, &mut [&mut leader], 10);
        for value in 0..5 {
            leader.desire(&mut world, &state(0..100, value));
            for _ in 0..60 {
                pass(&mut world, &mut [&mut leader], 1);
                assert!(leader.term.writer().stage().owns_id(), "{:?}", leader.term.writer().stage());
            }
            assert_eq!(world.read("blue"), Some(Map::clone(&state(0..100, value))));
        }
        assert_eq!(world.pages[&theirs].len(), usize::from(has_a_page));
    }
}
