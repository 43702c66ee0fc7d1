//! W1 and W6: heads in the own name that this cluster did not write.

use super::*;
use crate::writer::Stage;

fn blue() -> WriterIdentity {
    WriterIdentity { clusterset: "prod".into(), cluster: "blue".into(), uid: "uid-blue".into() }
}

/// A cluster made from a backup of `blue`, whose record says `epoch`.
fn restored(world: &mut World, epoch: u64) -> Process {
    let (mut record, version) = world.records["uid-blue"].clone();
    record.epoch = epoch;
    world.records.insert("copy".into(), (record, version));
    Process::start_at(world, "copy".into(), blue(), &timing(), limits(), None, Trust::default())
}

fn contested(cluster: &str) -> Stage {
    Stage::Contested { cluster: cluster.into() }
}

#[test]
fn a_cluster_restored_from_a_backup_writes_nothing_while_the_original_lives() {
    let mut world = World::default();
    let mut first = with_pages(&mut world, "blue", 15);
    let mut original = Process::elect(&mut world, "blue");
    first.hangs = |_| true;
    original.desire(&mut world, &state(0..16, 1));
    pass(&mut world, &mut [&mut original], 10);
    let epoch = world.heads["blue"].position.epoch;
    let mut copy = restored(&mut world, epoch - 1);
    copy.desire(&mut world, &state(0..3, 9));
    pass(&mut world, &mut [&mut original, &mut copy], 300);
    assert_eq!((copy.term.writer().stage(), copy.writes), (contested("blue"), 0));
    assert_eq!((original.term.writer().stage(), world.heads["blue"].position.epoch), (Stage::Running, epoch));
    // The original is gone.
    pass(&mut world, &mut [&mut copy], 320);
    assert_eq!(copy.term.writer().stage(), Stage::Running);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..3, 9))));
}

#[test]
fn of_two_clusters_with_one_uid_one_stops_and_stays_stopped() {
    let mut world = World::default();
    let mut original = with_pages(&mut world, "blue", 15);
    // A backup of just now.
    let mut copy = restored(&mut world, 1);
    copy.desire(&mut world, &state(0..3, 9));
    pass(&mut world, &mut [&mut original, &mut copy], 120);
    let stages = |a: &Process, b: &Process| [a, b].map(|process| process.term.writer().stage());
    let (settled, epoch) = (stages(&original, &copy), world.heads["blue"].position.epoch);
    assert!(settled.contains(&contested("blue")) && settled.contains(&Stage::Running), "{settled:?}");
    pass(&mut world, &mut [&mut original, &mut copy], 600);
    assert_eq!((stages(&original, &copy), world.heads["blue"].position.epoch), (settled, epoch));
}

/// A leader that runs creates the ledger again with its next head. This one writes none before its epoch.
#[test]
fn a_ledger_that_is_deleted_while_its_only_leader_waits_is_claimed_again() {
    let mut world = World::default();
    let mut original = with_pages(&mut world, "blue", 15);
    let mut copy = restored(&mut world, 0);
    copy.desire(&mut world, &state(0..3, 9));
    pass(&mut world, &mut [&mut original, &mut copy], 100);
    assert_eq!((copy.term.writer().stage(), copy.writes), (contested("blue"), 0));
    // The original is gone, and its ledger with it. No head moves, so `purge` refuses nothing.
    drop(original);
    world.creators.clear();
    world.heads.clear();
    world.pages.clear();
    for _ in 0..60 {
        world.now += Duration::from_secs(1);
        copy.term.poll(world.now());
        let heads = (!world.creators.is_empty()).then(|| world.discover());
        copy.term.tick(world.now(), heads.as_ref());
        copy.settle(&mut world);
    }
    assert!(!world.creators.is_empty(), "it is there again");
    pass(&mut world, &mut [&mut copy], 340);
    assert_eq!(copy.term.writer().stage(), Stage::Running);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..3, 9))));
}

/// A cluster made from a backup of `blue`, to which its administrator gave another id.
fn renamed(world: &mut World, id: &str) -> Process {
    let record = world.records["uid-blue"].clone();
    world.records.insert("copy".into(), record);
    let me = WriterIdentity { cluster: id.into(), ..blue() };
    Process::start_at(world, "copy".into(), me, &timing(), limits(), None, Trust::default())
}

/// Neither is taken for the other one's former id: both would say that the other left, and withdraw what it registered.
#[test]
fn a_cluster_restored_under_another_id_writes_nothing_while_the_original_lives() {
    let mut world = World::default();
    let mut original = with_pages(&mut world, "blue", 15);
    let mut copy = renamed(&mut world, "navy");
    copy.desire(&mut world, &state(0..3, 9));
    pass(&mut world, &mut [&mut original, &mut copy], 600);
    assert_eq!((copy.term.writer().stage(), copy.writes), (contested("blue"), 0));
    assert_eq!(original.term.writer().stage(), Stage::Running);
    assert!(world.heads["blue"].is_live());
    // The original is gone for good: its id goes on as the copy's.
    drop(original);
    pass(&mut world, &mut [&mut copy], 380);
    assert_eq!(copy.term.writer().stage(), Stage::Running);
    assert!(!world.heads["blue"].is_live());
    // It was not gone for good.
    let mut original = Process::elect(&mut world, "blue");
    original.desire(&mut world, &state(0..15, 1));
    pass(&mut world, &mut [&mut original, &mut copy], 600);
    assert_eq!((original.term.writer().stage(), original.writes), (contested("navy"), 0));
    assert_eq!((copy.term.writer().stage(), world.heads["navy"].is_live()), (Stage::Running, true));
}

/// A slow operation and a replica that lags show nothing new for longer than a heartbeat.
#[test]
fn who_was_seen_at_work_is_not_gone_because_nothing_new_is_seen_for_a_minute() {
    let copies: [fn(&mut World) -> Process; 2] = [|world| renamed(world, "navy"), |world| restored(world, 0)];
    for copy in copies {
        let mut world = World::default();
        drop(with_pages(&mut world, "blue", 15));
        let mut original = Process::elect(&mut world, "blue");
        original.desire(&mut world, &state(0..15, 1));
        pass(&mut world, &mut [&mut original], 10);
        let mut copy = copy(&mut world);
        copy.desire(&mut world, &state(0..3, 9));
        pass(&mut world, &mut [&mut original, &mut copy], 100);
        copy.sees = Some(world.discover());
        pass(&mut world, &mut [&mut original, &mut copy], 60);
        copy.sees = None;
        pass(&mut world, &mut [&mut original, &mut copy], 10);
        assert_eq!((copy.term.writer().stage(), copy.writes), (contested("blue"), 0));
        assert_eq!(original.term.writer().stage(), Stage::Running);
    }
}

#[test]
fn of_two_clusters_with_one_uid_that_begin_at_once_one_goes_on() {
    let mut world = World::default();
    drop(with_pages(&mut world, "blue", 15));
    let mut copy = renamed(&mut world, "navy");
    let mut original = Process::elect(&mut world, "blue");
    // Neither sees the other's head before it has written its own.
    let before = world.discover();
    for process in [&mut original, &mut copy] {
        process.sees = Some(before.clone());
        process.desire(&mut world, &state(0..15, 1));
    }
    pass(&mut world, &mut [&mut original, &mut copy], 90);
    assert!(world.heads["blue"].is_live() && world.heads["navy"].is_live());
    (original.sees, copy.sees) = (None, None);
    pass(&mut world, &mut [&mut original, &mut copy], 120);
    assert_eq!(original.term.writer().stage(), Stage::Running);
    assert_eq!(copy.term.writer().stage(), contested("blue"));
    assert!(world.heads["blue"].is_live());
}

#[test]
fn a_record_that_was_deleted_gets_the_epoch_of_its_leader_back() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    drop(std::mem::replace(&mut leader, Process::elect(&mut world, "blue")));
    leader.desire(&mut world, &state(0..15, 1));
    pass(&mut world, &mut [&mut leader], 5);
    let epoch = world.heads["blue"].position.epoch;
    world.records.clear();
    pass(&mut world, &mut [&mut leader], 15);
    assert_eq!((world.epoch("uid-blue"), leader.term.writer().stage()), (epoch, Stage::Running));
    // Nobody was there to do so: the next leader waits whether somebody else goes on.
    world.records.clear();
    let mut next = Process::elect(&mut world, "blue");
    next.desire(&mut world, &state(0..16, 1));
    pass(&mut world, &mut [&mut next], 20);
    assert_eq!((next.term.writer().stage(), next.writes), (Stage::Electing, 0));
    pass(&mut world, &mut [&mut next], 20);
    assert_eq!((world.read("blue"), world.epoch("uid-blue")), (Some(Map::clone(&state(0..16, 1))), epoch + 1));
}

#[test]
fn a_forged_epoch_mutes_nobody_for_good() {
    let forge = |world: &mut World| {
        let mut forged = Head::clone(&world.heads["blue"]);
        forged.position = at(1 << 62, 1 << 62);
        world.heads.insert("blue".into(), Arc::new(forged));
    };
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    let mut green = with_pages(&mut world, "green", 3);
    pass(&mut world, &mut [&mut leader, &mut green], 5);
    for round in 0..3 {
        forge(&mut world);
        pass(&mut world, &mut [&mut green], 3);
        if round == 2 {
            // Nor does it where the next leader finds nothing else.
            leader = Process::elect(&mut world, "blue");
        }
        let map = state(0..16 + round, 1);
        leader.desire(&mut world, &map);
        pass(&mut world, &mut [&mut leader, &mut green], 180);
        assert_eq!(green.applies("blue"), Some(map));
        assert!(world.heads["blue"].position.epoch < 10 && world.epoch("uid-blue") < 10);
    }
    // Others are still judged by the own head.
    pass(&mut world, &mut [&mut leader], 700);
    assert!(leader.remote("green").unwrap().stale.is_some());
}

#[test]
fn a_forged_epoch_below_another_forged_one_mutes_nobody_for_good_either() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut leader, &mut green], 5);
    for epoch in [1 << 62, 1 << 61] {
        let mut forged = Head::clone(&world.heads["blue"]);
        forged.position = at(epoch, 1);
        world.heads.insert("blue".into(), Arc::new(forged));
        // Long enough that it is the newest of what is below the accepted one.
        pass(&mut world, &mut [&mut green], 60);
    }
    leader.desire(&mut world, &state(0..16, 1));
    pass(&mut world, &mut [&mut leader, &mut green], 240);
    assert_eq!(green.applies("blue"), Some(state(0..16, 1)));
}

#[test]
fn a_head_of_the_own_epoch_that_this_leader_never_sent_ends_the_epoch() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    let mut other = Head::clone(&world.heads["blue"]);
    other.position.seq += 1_000;
    world.heads.insert("blue".into(), Arc::new(other));
    pass(&mut world, &mut [&mut leader], 5);
    assert_eq!(world.heads["blue"].position.epoch, 2);
}
