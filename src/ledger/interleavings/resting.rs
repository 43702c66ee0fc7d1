//! Connected leaders that read the heads rarely, and what makes them read again (S10); and others, which read more often
//! while states change (R1).

use super::{
    streaming::{SESSION, elect, key, pair, talk},
    *,
};
use crate::{record::Gone, stream::message::Message};

/// Lets seconds pass in which both are connected, and read the heads when they should. Returns how often each did.
fn pass_resting(world: &mut World, blue: &mut Process, green: &mut Process, seconds: u64) -> [u64; 2] {
    let (mut reads, mut due) = ([0; 2], [world.now; 2]);
    for _ in 0..seconds {
        world.now += Duration::from_secs(1);
        for (index, process) in [&mut *blue, &mut *green].into_iter().enumerate() {
            process.term.poll(world.now());
            process.settle(world);
            due[index] = due[index].min(world.now + process.term.pace());
            if world.now >= due[index] {
                process.term.tick(world.now(), Some(&world.discover()));
                process.settle(world);
                reads[index] += 1;
                due[index] = world.now + process.term.pace();
            }
        }
        talk(world, blue, green);
    }
    reads
}

/// Blue and green, at rest.
fn resting(world: &mut World) -> [Process; 2] {
    let [mut blue, mut green] = pair(world, None);
    pass_resting(world, &mut blue, &mut green, 90);
    assert!(rests(&blue) && rests(&green));
    [blue, green]
}

fn rests(process: &Process) -> bool {
    process.term.pace() == timing().tick_at_rest
}

#[test]
fn who_is_told_by_heads_alone_reads_more_often_for_a_minute_after_a_change() {
    let (mut world, timing) = (World::default(), timing());
    let [mut blue, mut green] = pair(&mut world, None);
    green.term.closed(world.now(), SESSION);
    blue.term.closed(world.now(), SESSION);
    pass(&mut world, &mut [&mut blue, &mut green], 90);
    // A cluster that is new, and heartbeats, are no change of a state.
    assert_eq!([&blue, &green].map(|process| process.term.pace()), [timing.tick; 2]);
    blue.desire(&mut world, &state(0..15, 2));
    pass(&mut world, &mut [&mut blue, &mut green], 2);
    assert_eq!(green.applies("blue"), Some(state(0..15, 2)));
    assert_eq!([&blue, &green].map(|process| process.term.pace()), [timing.tick, timing.tick_in_motion]);
    pass(&mut world, &mut [&mut blue, &mut green], 57);
    assert_eq!(green.term.pace(), timing.tick_in_motion);
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert_eq!(green.term.pace(), timing.tick);
    // Who is connected hears of it before, and does not wait for a read.
    green.term.opened(world.now(), SESSION, key(1), None);
    blue.term.opened(world.now(), SESSION, key(2), Some(&"green".into()));
    talk(&mut world, &mut blue, &mut green);
    blue.desire(&mut world, &state(0..15, 3));
    talk(&mut world, &mut blue, &mut green);
    assert_eq!(green.applies("blue"), Some(state(0..15, 3)));
    pass(&mut world, &mut [&mut blue, &mut green], 2);
    assert_ne!(green.term.pace(), timing.tick_in_motion);
}

fn with_claim(map: &Arc<Map>, value: u8) -> Arc<Map> {
    let mut map = Map::clone(map);
    map.insert("!target".into(), Value::from([value; 8]));
    Arc::new(map)
}

#[test]
fn a_change_is_read_back_at_once_and_others_need_not_read_it() {
    let mut world = World::default();
    let [mut blue, mut green] = resting(&mut world);
    let reads = pass_resting(&mut world, &mut blue, &mut green, 600);
    assert!(reads.iter().all(|reads| *reads <= 51), "{reads:?}");
    blue.desire(&mut world, &state(0..15, 2));
    talk(&mut world, &mut blue, &mut green);
    assert!(!rests(&blue) && rests(&green));
    assert_eq!(green.applies("blue"), Some(state(0..15, 2)));
    pass_resting(&mut world, &mut blue, &mut green, 2);
    assert!(rests(&blue) && blue.term.read_back() == Some(&state(0..15, 2)));
}

#[test]
fn a_claim_is_read_at_once_and_until_it_is_old() {
    let mut world = World::default();
    let [mut blue, mut green] = resting(&mut world);
    blue.hangs = is_head;
    let map = with_claim(&state(0..15, 1), 1);
    blue.desire(&mut world, &map);
    talk(&mut world, &mut blue, &mut green);
    // However long it takes to commit it.
    pass_resting(&mut world, &mut blue, &mut green, 100);
    assert!(!rests(&blue) && !rests(&green));
    blue.let_go(&mut world);
    pass_resting(&mut world, &mut blue, &mut green, 2);
    assert_eq!(green.remote("blue").unwrap().committed, Some(map.clone()));
    let reads = pass_resting(&mut world, &mut blue, &mut green, 57);
    assert_eq!(reads, [57, 57]);
    pass_resting(&mut world, &mut blue, &mut green, 5);
    assert!(rests(&blue) && rests(&green));
    // It was there before, but not for the ledger.
    blue.desire(&mut world, &with_claim(&map, 2));
    talk(&mut world, &mut blue, &mut green);
    assert!(!rests(&blue) && !rests(&green));
}

#[test]
fn who_is_not_heard_is_read_at_once() {
    let mut world = World::default();
    let [mut blue, mut green] = resting(&mut world);
    // Nothing gets through, and nobody knows it yet.
    let silent_until = world.now + Duration::from_millis(2_500);
    while rests(&green) {
        world.now = green.term.wake().unwrap();
        green.term.poll(world.now());
        green.settle(&mut world);
    }
    assert_eq!(world.now, silent_until);
    talk(&mut world, &mut blue, &mut green);
    assert!(rests(&green));
    green.term.closed(world.now(), SESSION);
    blue.term.closed(world.now(), SESSION);
    assert!(!rests(&blue) && !rests(&green));
}

#[test]
fn what_is_not_as_it_was_in_a_read_is_read_again_at_once() {
    let mut world = World::default();
    let [_blue, mut green] = resting(&mut world);
    let mut now = world.now();
    let mut tick = |heads: Option<Heads>| {
        now.mono += Duration::from_secs(1);
        green.term.received(now, SESSION, Message::Alive);
        green.term.tick(now, heads.as_ref());
        rests(&green)
    };
    let all = world.discover();
    let but = |id: &str, head: Option<Result<Arc<Head>, _>>| {
        let mut heads = all.clone();
        heads.remove(id);
        heads.extend(head.map(|head| (Arc::from(id), head)));
        heads
    };
    let moved = |id: &str, by: i64| {
        let mut head = Head::clone(&world.heads[id]);
        head.position.seq = head.position.seq.checked_add_signed(by).unwrap();
        head
    };
    assert!(tick(Some(all.clone())));
    assert!(!tick(None), "a read failed");
    assert!(tick(Some(all.clone())));
    for id in ["blue", "green"] {
        assert!(!tick(Some(but(id, None))), "{id} is not there");
        assert!(!tick(Some(but(id, Some(Ok(Arc::new(moved(id, -1))))))), "an older one of {id} is there");
        assert!(tick(Some(all.clone())));
    }
    let joins = Head { cluster: "red".into(), uid: "uid-red".into(), signer: Some(key(3)), ..moved("blue", 0) };
    assert!(!tick(Some(but("red", Some(Ok(Arc::new(joins)))))), "somebody joins");
    let former = Head { cluster: "lime".into(), ..moved("green", 0) };
    assert!(!tick(Some(but("lime", Some(Ok(Arc::new(former)))))), "this cluster has another id");
    // A forged one, which nobody believes.
    let forged = Head { signer: Some(key(9)), ..moved("blue", 5) };
    assert!(!tick(Some(but("blue", Some(Ok(Arc::new(forged)))))));
}

#[test]
fn who_joins_is_expected_when_its_leader_comes() {
    let mut world = World::default();
    let [mut blue, mut green] = resting(&mut world);
    green.term.refused(world.now(), key(9));
    assert!(!rests(&green));
    pass_resting(&mut world, &mut blue, &mut green, 19);
    assert!(!rests(&green));
    pass_resting(&mut world, &mut blue, &mut green, 2);
    assert!(rests(&green));
}

#[test]
fn who_leaves_or_leads_anew_does_not_rest() {
    let mut world = World::default();
    let [mut blue, mut green] = resting(&mut world);
    world.set_leaving("uid-blue");
    pass_resting(&mut world, &mut blue, &mut green, 6);
    assert!(!rests(&blue) && rests(&green));
    blue.desire(&mut world, &Arc::default());
    green.term.closed(world.now(), SESSION);
    pass_resting(&mut world, &mut blue, &mut green, 3);
    assert!(green.remote("blue").unwrap().left && !rests(&green), "nobody else is there");
}

#[test]
fn clocks_run_as_fast_when_heads_are_read_rarely() {
    let mut world = World::default();
    let mut red = elect(&mut world, "red", 3, None);
    red.desire(&mut world, &state(0..1, 1));
    pass(&mut world, &mut [&mut red], 5);
    world.set_leaving("uid-red");
    pass(&mut world, &mut [&mut red], 6);
    red.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut red], 1);
    let [mut blue, mut green] = pair(&mut world, None);
    pass_resting(&mut world, &mut blue, &mut green, 90);
    assert!(green.remote("red").unwrap().left && rests(&green));
    let gone = |world: &World| world.records["uid-green"].0.accepted.get("red").map(|accepted| accepted.gone);
    assert_eq!(gone(&world), Some(Some(Gone::Left)));
    // Its head is purged, and forgotten after ten minutes.
    world.heads.remove("red");
    let reads = pass_resting(&mut world, &mut blue, &mut green, 640);
    assert!(reads[1] < 60, "{reads:?}");
    assert_eq!(gone(&world), None);
}
