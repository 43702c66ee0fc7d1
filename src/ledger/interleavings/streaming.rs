//! Leaders that are connected: what comes by stream, beside the ledger.

use super::*;
use crate::{
    record::Gone,
    stream::{
        Command, SessionId,
        message::{Hello, Message},
    },
    trust::Mode,
};
use model::PublicKey;

pub(super) const SESSION: SessionId = SessionId(1);

pub(super) fn key(n: u8) -> PublicKey {
    PublicKey::from_bytes([n; 32])
}

pub(super) fn elect(world: &mut World, cluster: &str, n: u8, ttl: Option<Duration>) -> Process {
    let uid = format!("uid-{cluster}");
    let me = WriterIdentity { clusterset: "prod".into(), cluster: cluster.into(), uid: uid.as_str().into() };
    let trust = Trust { mode: Mode::Tofu, own: vec![key(n)], ..Trust::default() };
    let mut process = Process::start_at(world, uid.into(), me.clone(), &timing(), limits(), ttl, trust.clone());
    let ids = || Ids::new(u64::from(process.number));
    let term = Term::new(me, timing(), limits(), ttl, trust, ids());
    process.term = term.streaming(Arc::default(), ids());
    process.term.poll(world.now());
    process.settle(world);
    process
}

/// Hands on what both say to each other.
pub(super) fn talk(world: &mut World, one: &mut Process, other: &mut Process) {
    loop {
        let mut said = 0;
        for turn in 0..2 {
            let (from, to) = if turn == 0 { (&mut *one, &mut *other) } else { (&mut *other, &mut *one) };
            for command in from.term.take_commands() {
                if let Command::Send { session, message } = command {
                    said += 1;
                    from.term.taken(world.now(), session);
                    to.term.received(world.now(), session, (*message).clone());
                }
            }
            from.settle(world);
            to.settle(world);
        }
        if said == 0 {
            return;
        }
    }
}

/// Blue and green, which know each other and are connected.
pub(super) fn pair(world: &mut World, ttl: Option<Duration>) -> [Process; 2] {
    let mut blue = elect(world, "blue", 1, None);
    let mut green = elect(world, "green", 2, ttl);
    blue.desire(world, &state(0..15, 1));
    green.desire(world, &state(0..1, 1));
    pass(world, &mut [&mut blue, &mut green], 30);
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
    blue.term.opened(world.now(), SESSION, key(2), Some(&"green".into()));
    green.term.opened(world.now(), SESSION, key(1), None);
    talk(world, &mut blue, &mut green);
    [blue, green]
}

/// Seconds in which both are connected.
fn pass_connected(world: &mut World, blue: &mut Process, green: &mut Process, seconds: u64) {
    for _ in 0..seconds {
        pass(world, &mut [&mut *blue, &mut *green], 1);
        talk(world, blue, green);
    }
}

#[test]
fn a_change_is_there_at_once_and_claims_count_when_the_ledger_has_them() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world, None);
    blue.hangs = is_head;
    let mut map = Map::clone(&state(0..15, 2));
    map.insert("!target".into(), Value::from([1; 8]));
    let map = Arc::new(map);
    blue.desire(&mut world, &map);
    talk(&mut world, &mut blue, &mut green);
    let remote = green.remote("blue").unwrap();
    assert_eq!(remote.state, Some(map.clone()));
    assert_eq!(remote.committed, Some(state(0..15, 1)), "no head has it yet");
    blue.let_go(&mut world);
    pass_connected(&mut world, &mut blue, &mut green, 3);
    assert_eq!(green.remote("blue").unwrap().committed, Some(map));
}

#[test]
fn a_state_that_came_by_stream_needs_no_pages() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world, None);
    green.fails = reads_pages;
    // More than a head holds.
    blue.desire(&mut world, &state(0..60, 2));
    pass_connected(&mut world, &mut blue, &mut green, 20);
    assert_eq!(green.remote("blue").unwrap().committed, Some(state(0..60, 2)));
}

/// With a change a second, every head is behind the stream.
#[test]
fn a_head_with_a_state_that_came_by_stream_before_the_newest_needs_no_pages() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world, None);
    green.fails = reads_pages;
    blue.hangs = is_head;
    // More than a head holds.
    for value in [2, 3] {
        blue.desire(&mut world, &state(0..60, value));
        pass_connected(&mut world, &mut blue, &mut green, 1);
    }
    blue.let_go_first(&mut world, 1);
    pass_connected(&mut world, &mut blue, &mut green, 3);
    let remote = green.remote("blue").unwrap();
    assert_eq!((remote.state, remote.committed), (Some(state(0..60, 3)), Some(state(0..60, 2))));
    assert_eq!(green.term.reader().figures()["blue"].failed_fetches, 0);
}

/// As a delta of the head, it would be there a second time, in each of a hundred clusters.
#[test]
fn a_state_that_came_by_stream_is_the_one_that_its_head_means() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world, None);
    blue.hangs = is_head;
    blue.desire(&mut world, &state(0..15, 2));
    talk(&mut world, &mut blue, &mut green);
    let streamed = green.applies("blue").unwrap();
    assert_eq!(streamed, state(0..15, 2));
    blue.let_go(&mut world);
    pass_connected(&mut world, &mut blue, &mut green, 3);
    let remote = green.remote("blue").unwrap();
    for state in [remote.state, remote.committed] {
        assert!(Arc::ptr_eq(&state.unwrap(), &streamed));
    }
}

#[test]
fn who_is_heard_by_stream_is_not_silent_and_not_expired_any_more() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world, Some(timing().lease));
    blue.fails = is_head;
    pass_connected(&mut world, &mut blue, &mut green, 700);
    assert_eq!(green.remote("blue").unwrap().stale, None);
    // The connection is lost as well.
    green.term.closed(world.now(), SESSION);
    blue.term.closed(world.now(), SESSION);
    pass(&mut world, &mut [&mut blue, &mut green], 700);
    assert!(green.remote("blue").unwrap().expired);
    let gone = |world: &World| world.records["uid-green"].0.accepted["blue"].gone;
    assert_eq!(gone(&world), Some(Gone::Expired));
    let again = SessionId(2);
    blue.term.opened(world.now(), again, key(2), Some(&"green".into()));
    green.term.opened(world.now(), again, key(1), None);
    talk(&mut world, &mut blue, &mut green);
    pass_connected(&mut world, &mut blue, &mut green, 5);
    assert_eq!((gone(&world), green.applies("blue")), (None, Some(state(0..15, 1))));
}

/// As where large packets are lost: the session begins again and again.
#[test]
fn who_only_says_who_it_is_by_stream_is_silent() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world, None);
    for leader in [&mut blue, &mut green] {
        leader.term.closed(world.now(), SESSION);
    }
    blue.fails = is_head;
    for session in (2..42).map(SessionId) {
        let [clusterset, cluster, uid] = ["prod", "blue", "uid-blue"].map(Arc::<str>::from);
        let hello = Message::Hello(Hello { clusterset, cluster, uid, epoch: 99, nonce: 99 });
        green.term.opened(world.now(), session, key(1), None);
        green.term.received(world.now(), session, hello);
        pass(&mut world, &mut [&mut blue, &mut green], 20);
    }
    assert!(green.remote("blue").unwrap().stale.is_some());
}

#[test]
fn after_a_restart_nothing_applies_that_is_older_than_what_came_by_stream() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world, None);
    blue.hangs = is_head;
    blue.desire(&mut world, &state(0..15, 2));
    talk(&mut world, &mut blue, &mut green);
    pass_connected(&mut world, &mut blue, &mut green, 3);
    assert_eq!(green.applies("blue"), Some(state(0..15, 2)));
    assert!(world.records["uid-green"].0.streamed.contains_key("blue"));
    drop(green);
    let mut green = elect(&mut world, "green", 2, None);
    green.desire(&mut world, &state(0..1, 1));
    pass(&mut world, &mut [&mut green], 60);
    let remote = green.remote("blue").unwrap();
    assert!(remote.state.is_none() && remote.problem.is_some() && !remote.left, "nothing of it is deleted");
    assert_eq!(remote.committed, Some(state(0..15, 1)));
    blue.let_go(&mut world);
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert_eq!(green.applies("blue"), Some(state(0..15, 2)));
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert!(world.records["uid-green"].0.streamed.is_empty());
}

#[test]
fn a_cluster_that_left_is_gone_whatever_it_said_by_stream() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world, None);
    world.set_leaving("uid-blue");
    pass_connected(&mut world, &mut blue, &mut green, 10);
    blue.desire(&mut world, &Arc::default());
    pass_connected(&mut world, &mut blue, &mut green, 30);
    assert!(green.remote("blue").unwrap().left);
    assert_eq!(green.applies("blue"), None);
}

#[test]
fn a_deposed_leader_stores_nothing_of_what_it_hears() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world, None);
    let mut successor = elect(&mut world, "green", 2, None);
    successor.desire(&mut world, &state(0..1, 1));
    pass(&mut world, &mut [&mut successor], 2);
    blue.hangs = is_head;
    blue.desire(&mut world, &state(0..15, 2));
    talk(&mut world, &mut blue, &mut green);
    assert_eq!(green.applies("blue"), Some(state(0..15, 2)));
    pass(&mut world, &mut [&mut green], 5);
    // Its successor has read the record, and would not know of it.
    assert!(world.records["uid-green"].0.streamed.is_empty());
}
