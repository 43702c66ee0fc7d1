//! R3, R6 and R7, and the record.

use super::*;

/// One hour.
const LONG: u64 = 3_600;

#[test]
fn a_restarted_reader_does_not_go_back_to_what_a_lagging_replica_shows() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let lagging = world.discover();
    let mut green = Process::elect(&mut world, "green");
    // A pod goes: its key is removed.
    blue.desire(&mut world, &state(1..15, 1));
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert_eq!(green.applies("blue"), Some(state(1..15, 1)));
    drop(green);
    let mut green = Process::elect(&mut world, "green");
    green.sees = Some(lagging);
    pass(&mut world, &mut [&mut blue, &mut green], 30);
    // Not verified: what there is of it stays as it is (R8).
    let remote = green.remote("blue").unwrap();
    assert!(remote.state.is_none() && !remote.left && !remote.expired);
    green.sees = None;
    pass(&mut world, &mut [&mut blue, &mut green], 3);
    assert_eq!(green.applies("blue"), Some(state(1..15, 1)));
}

#[test]
fn who_could_not_be_asked_whose_an_id_is_asks_again_soon_also_at_the_begin_of_a_term() {
    let mut world = World::default();
    let [mut blue, mut green] = ["blue", "green"].map(|id| Process::elect(&mut world, id));
    blue.desire(&mut world, &state(0..3, 1));
    green.hangs = |call| matches!(call, Call::Creator { .. });
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    let creator = green.hanging.iter().position(|(_, call)| matches!(call, Call::Creator { .. })).unwrap();
    let (id, _) = green.hanging.remove(creator);
    green.hangs = |_| false;
    let failure = Failure { message: "throttled".to_owned() };
    green.term.done(world.now(), id, &Outcome::Failed(failure));
    green.let_go(&mut world);
    pass(&mut world, &mut [&mut blue, &mut green], 6);
    assert_eq!(green.applies("blue"), Some(state(0..3, 1)));
}

#[test]
fn who_could_not_be_asked_whose_an_id_is_lets_no_claim_pass_meanwhile() {
    let mut world = World::default();
    let mut blue = Process::elect(&mut world, "blue");
    blue.desire(&mut world, &state(0..3, 1));
    pass(&mut world, &mut [&mut blue], 5);
    assert!(world.heads.contains_key("blue"));
    let mut green = Process::elect(&mut world, "green");
    green.fails = |call| matches!(call, Call::Creator { .. });
    let mut reasons = BTreeSet::new();
    for _ in 0..30 {
        pass(&mut world, &mut [&mut blue, &mut green], 1);
        assert!(!green.term.remotes().all_live_verified);
        reasons.extend(green.term.reader().ignored().get("blue").cloned());
    }
    let why = "AWS did not answer who created exports-0.blue, so its head does not count yet";
    assert_eq!(reasons, [why.to_owned()].into());
    green.fails = |_| false;
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    assert!(green.term.remotes().all_live_verified && green.applies("blue").is_some());
}

#[test]
fn a_record_that_can_only_be_read_is_tried_less_and_less_and_the_reason_stays() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    blue.desire(&mut world, &state(1..15, 1));
    green.hangs = is_record;
    let mut attempts = 0;
    for _ in 0..60 {
        pass(&mut world, &mut [&mut green], 1);
        // Also while it is tried again.
        assert_eq!(green.term.error().is_some(), attempts > 0);
        for (id, _) in green.hanging.drain(..).collect::<Vec<_>>() {
            attempts += 1;
            let failure = Failure { message: "a webhook denied it".to_owned() };
            green.term.done(world.now(), id, &Outcome::Failed(failure));
        }
    }
    assert!((5..15).contains(&attempts), "{attempts}");
    green.hangs = |_| false;
    pass(&mut world, &mut [&mut green], 10);
    assert_eq!((green.term.error(), green.applies("blue")), (None, Some(state(1..15, 1))));
}

#[test]
fn a_running_reader_does_not_go_back_either() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    let lagging = world.discover();
    blue.desire(&mut world, &state(1..15, 1));
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    green.sees = Some(lagging);
    pass(&mut world, &mut [&mut green], LONG);
    assert_eq!(green.applies("blue"), Some(state(1..15, 1)));
}

#[test]
fn a_position_is_stored_before_its_state_applies() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut green], 3);
    green.hangs = is_record;
    blue.desire(&mut world, &state(1..15, 1));
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
    let position = world.heads["blue"].position;
    green.let_go(&mut world);
    pass(&mut world, &mut [&mut blue, &mut green], 3);
    assert_eq!(green.applies("blue"), Some(state(1..15, 1)));
    assert!(world.records["uid-green"].0.accepted["blue"].position >= position);
}

#[test]
fn a_process_that_stored_something_newer_stays_ahead_of_its_successors() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let lagging = world.discover();
    let mut green = Process::elect(&mut world, "green");
    green.sees = Some(lagging);
    blue.desire(&mut world, &state(1..15, 1));
    // A second process of the same cluster reads a fresher replica and stores what it applies.
    let mut other = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut other, &mut green], 10);
    assert_eq!(other.applies("blue"), Some(state(1..15, 1)));
    assert_eq!(green.applies("blue"), None);
}

#[test]
fn an_answer_from_the_api_server_that_comes_late_applies_nothing() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    green.hangs = |call| matches!(call, Call::StoreRecord { record, .. } if !record.accepted.is_empty());
    pass(&mut world, &mut [&mut green], 3);
    // The record is stored, but the process stalls before it hears of it, and another one goes further.
    let (id, call) = green.hanging.pop().unwrap();
    let answer = world.make(&green, &call);
    green.hangs = |_| false;
    blue.desire(&mut world, &state(1..15, 1));
    let mut other = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut other], 5);
    assert_eq!(other.applies("blue"), Some(state(1..15, 1)));
    green.term.done(world.now(), id, &answer);
    assert_eq!(green.applies("blue"), None);
    green.settle(&mut world);
    assert_eq!(green.applies("blue"), None);
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    assert_eq!(green.applies("blue"), Some(state(1..15, 1)));
}

#[test]
fn a_control_plane_that_fails_makes_nobody_withdraw_anybody() {
    let mut world = World::default();
    let ttl = Some(timing().lease);
    let [mut blue, mut green] =
        ["blue", "green"].map(|id| Process::elect_with(&mut world, id, &format!("uid-{id}"), limits(), ttl));
    for process in [&mut blue, &mut green] {
        process.desire(&mut world, &state(0..3, 1));
    }
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    // For an hour every read succeeds and every write hangs.
    blue.hangs = is_head;
    green.hangs = is_head;
    pass(&mut world, &mut [&mut blue, &mut green], LONG);
    for (process, other) in [(&blue, "green"), (&green, "blue")] {
        let remote = process.remote(other).unwrap();
        assert!(remote.state.is_some() && remote.stale.is_none(), "{remote:?}");
    }
    // The first that is heard again does not condemn the others: they have the whole lease to come back.
    green.let_go(&mut world);
    pass(&mut world, &mut [&mut blue, &mut green], 280);
    assert_eq!(green.applies("blue"), Some(state(0..3, 1)));
    blue.let_go(&mut world);
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    assert_eq!((green.applies("blue"), blue.applies("green")), (Some(state(0..3, 1)), Some(state(0..3, 1))));
    // One that is silent while this cluster is heard is lost.
    pass(&mut world, &mut [&mut green], 400);
    let remote = green.remote("blue").unwrap();
    assert!(remote.expired && remote.stale.is_some() && remote.state.is_none() && !remote.left);
}

#[test]
fn who_expired_stays_so_for_the_next_leader_until_it_is_heard_again() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let ttl = Some(timing().lease);
    let elect = |world: &mut World, ttl| {
        let mut green = Process::elect_with(world, "green", "uid-green", limits(), ttl);
        green.desire(world, &state(0..3, 1));
        green
    };
    let mut green = elect(&mut world, ttl);
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    pass(&mut world, &mut [&mut green], 400);
    let expired = |green: &Process| {
        let remote = green.remote("blue").unwrap();
        remote.expired && remote.stale.is_some() && remote.state.is_none() && !remote.left
    };
    assert!(expired(&green));
    let lagging = world.discover();
    // Whether its head is there, or its pages, or neither.
    for (heads, page) in [(None, true), (None, false), (Some(Heads::new()), true)] {
        green = elect(&mut world, ttl);
        green.sees = heads;
        if !page {
            green.hangs = |call| matches!(call, Call::ReadPages { .. });
        }
        pass(&mut world, &mut [&mut green], 3);
        for _ in 0..600 {
            assert!(expired(&green));
            pass(&mut world, &mut [&mut green], 1);
        }
    }
    green = elect(&mut world, ttl);
    pass(&mut world, &mut [&mut green, &mut blue], 3);
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
    assert!(green.remote("blue").unwrap().stale.is_none());
    // Nor does a replica that lags take it away from a further leader.
    green = elect(&mut world, ttl);
    green.sees = Some(lagging);
    pass(&mut world, &mut [&mut green, &mut blue], 3);
    assert!(!expired(&green));
}

#[test]
fn without_a_ttl_nobody_is_expired_by_what_an_earlier_leader_recorded() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let elect = |world: &mut World, ttl| {
        let mut green = Process::elect_with(world, "green", "uid-green", limits(), ttl);
        green.desire(world, &state(0..3, 1));
        green
    };
    let mut green = elect(&mut world, Some(timing().lease));
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    pass(&mut world, &mut [&mut green], 400);
    assert!(green.remote("blue").unwrap().expired);
    let mut green = elect(&mut world, None);
    pass(&mut world, &mut [&mut green], 5);
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
}

#[test]
fn a_slow_tick_judges_after_the_same_time() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let tick = Duration::from_secs(5);
    let me = WriterIdentity { clusterset: "prod".into(), cluster: "green".into(), uid: "uid-green".into() };
    let mut green = Process::start(&mut world, me, &timing().with_tick(tick), limits(), None);
    green.desire(&mut world, &state(0..3, 1));
    pass_by(&mut world, &mut [&mut blue, &mut green], tick, 24);
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
    // The silence begins with a head that was just written, not with a heartbeat of a while ago.
    blue.desire(&mut world, &state(0..16, 1));
    pass_by(&mut world, &mut [&mut blue, &mut green], tick, 1);
    let mut seconds = 0;
    while green.remote("blue").unwrap().stale.is_none() {
        pass_by(&mut world, &mut [&mut green], tick, 1);
        seconds += tick.as_secs();
        assert!(seconds <= 330);
    }
    assert!(seconds >= 300);
}

#[test]
fn time_in_which_nobody_could_be_heard_counts_against_nobody() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let ttl = Some(timing().lease);
    let mut green = Process::elect_with(&mut world, "green", "uid-green", limits(), ttl);
    green.desire(&mut world, &state(0..3, 1));
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    // Almost a lease of silence, then an outage for all: who was silent before gets another lease after it.
    pass(&mut world, &mut [&mut green], 250);
    green.hangs = is_head;
    pass(&mut world, &mut [&mut green], LONG);
    green.let_go(&mut world);
    pass(&mut world, &mut [&mut green], 250);
    assert!(green.remote("blue").unwrap().stale.is_none());
    pass(&mut world, &mut [&mut green], 120);
    assert!(green.remote("blue").unwrap().expired);
}

#[test]
fn a_lower_head_counts_only_when_nothing_else_is_seen_and_it_advances() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let old = world.heads["blue"].clone();
    let mut green = Process::elect(&mut world, "green");
    blue.desire(&mut world, &state(1..15, 1));
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    let newest = world.heads["blue"].position;
    let mut lower = Head::clone(&old);
    // A leader that was deposed goes on for as long as it takes to notice, or somebody restores the registry.
    lower.position.epoch = newest.epoch - 1;
    for seq in 1..=7 {
        lower.position.seq = seq;
        green.sees = Some(Heads::from([("blue".into(), Ok(Arc::new(lower.clone())))]));
        pass(&mut world, &mut [&mut green], 6);
        assert_eq!(green.applies("blue"), Some(state(1..15, 1)));
    }
    for seq in 8..=11 {
        lower.position.seq = seq;
        green.sees = Some(Heads::from([("blue".into(), Ok(Arc::new(lower.clone())))]));
        pass(&mut world, &mut [&mut green], 6);
    }
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
}

#[test]
fn an_absent_head_means_nothing() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    green.sees = Some(Heads::new());
    pass(&mut world, &mut [&mut green], LONG);
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
}

#[test]
fn a_cluster_that_was_away_is_late_only_until_it_says_the_same_again() {
    let mut world = World::default();
    drop(with_pages(&mut world, "blue", 15));
    pass(&mut world, &mut [], LONG);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut green], 5);
    let lag = |green: &Process| green.term.reader().figures()["blue"].lag.unwrap().as_secs();
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
    assert!(lag(&green) >= LONG, "{} s", lag(&green));
    let mut blue = Process::elect(&mut world, "blue");
    blue.desire(&mut world, &state(0..15, 1));
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    assert_eq!(world.heads["blue"].position.epoch, 2);
    assert!(lag(&green) < 5, "{} s", lag(&green));
}

#[test]
fn an_own_state_counts_as_read_back_once_all_applies_that_was_read_with_it() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = with_pages(&mut world, "green", 15);
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert_eq!(green.term.read_back(), Some(&state(0..15, 1)));
    blue.desire(&mut world, &state(0..16, 2));
    green.desire(&mut world, &state(0..16, 3));
    // What blue says is to be stored first.
    green.hangs = is_record;
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert_eq!(green.term.writer().read_back(), Some(&state(0..16, 3)));
    assert_eq!((green.applies("blue"), green.term.read_back()), (Some(state(0..15, 1)), Some(&state(0..15, 1))));
    green.let_go(&mut world);
    assert_eq!((green.applies("blue"), green.term.read_back()), (Some(state(0..16, 2)), Some(&state(0..16, 3))));
}
