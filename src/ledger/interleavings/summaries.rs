//! What heads say of the states that they mean: versions and hashes.

use super::*;
use crate::{record::Version, writer::Stage};

fn version(world: &World) -> Version {
    world.heads["blue"].summary.version
}

#[test]
fn a_state_keeps_its_version_until_another_one_is_wanted() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let first = version(&world);
    pass(&mut world, &mut [&mut blue], 60);
    assert_eq!(version(&world), first, "heartbeats and flushes");
    blue.desire(&mut world, &state(0..15, 2));
    let second = version(&world);
    assert_eq!((second.epoch, second.nonce, second.n), (first.epoch, first.nonce, first.n + 1));
    // The next leader repeats it, until it knows what is wanted.
    drop(blue);
    let mut blue = Process::elect(&mut world, "blue");
    blue.hangs = is_head;
    pass(&mut world, &mut [&mut blue], 5);
    blue.desire(&mut world, &state(0..15, 3));
    blue.let_go(&mut world);
    let third = version(&world);
    assert!(third.epoch > second.epoch && third.nonce != second.nonce, "{third:?}");
    let said: Vec<_> = world.sent.iter().map(|head| (head.summary.version, meaning(head, &world.archive))).collect();
    for (one, means) in &said {
        assert!(said.iter().all(|(other, same)| one != other || means == same), "{one:?} is two states");
    }
}

#[test]
fn a_head_that_repeats_an_inherited_state_has_the_version_found_there() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    blue.desire(&mut world, &state(0..16, 1));
    let (before, seen) = (version(&world), world.heads["blue"].clone());
    drop(blue);
    let mut blue = Process::elect(&mut world, "blue");
    // What it wants fits into no head, so that it goes on with what it found.
    blue.hangs = is_page;
    pass(&mut world, &mut [&mut blue], 5);
    blue.desire(&mut world, &state(0..40, 9));
    pass(&mut world, &mut [&mut blue], 30);
    let there = world.heads["blue"].clone();
    assert!(there.position.epoch > seen.position.epoch);
    assert_eq!((version(&world), there.summary.hashes), (before, seen.summary.hashes));
}

#[test]
fn a_state_that_differs_from_the_hash_in_its_head_does_not_apply() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    blue.desire(&mut world, &state(0..16, 1));
    let genuine = world.heads["blue"].clone();
    let wrong = of_state(Head::clone(&genuine), &state(0..16, 7));
    world.heads.insert("blue".into(), Arc::new(wrong));
    pass(&mut world, &mut [&mut green], 20);
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
    assert!(green.remote("blue").unwrap().problem.is_some_and(|why| why.contains("hash")));
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    assert_eq!(green.applies("blue"), Some(state(0..16, 1)));
    assert_eq!(green.remote("blue").unwrap().problem, None);
}

#[test]
fn a_leader_does_not_begin_with_a_state_that_differs_from_the_hash_in_its_head() {
    let mut world = World::default();
    drop(with_pages(&mut world, "blue", 15));
    let wrong = of_state(Head::clone(&world.heads["blue"]), &state(0..15, 7));
    let genuine = world.heads.insert("blue".into(), Arc::new(wrong)).unwrap();
    let mut blue = Process::elect(&mut world, "blue");
    pass(&mut world, &mut [&mut blue], 10);
    assert_eq!(blue.term.writer().stage(), Stage::Verifying);
    let position = at(genuine.position.epoch, genuine.position.seq + 1);
    world.heads.insert("blue".into(), Arc::new(Head { position, ..Head::clone(&genuine) }));
    pass(&mut world, &mut [&mut blue], 3);
    assert_eq!(blue.term.own(), Some(&state(0..15, 1)));
}

#[test]
fn a_ledger_that_reads_back_as_another_state_is_written_again() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let sees = |world: &World| {
        let wrong = of_state(Head::clone(&world.heads["blue"]), &state(0..15, 7));
        Some(Heads::from([("blue".into(), Ok(Arc::new(wrong)))]))
    };
    for _ in 0..400 {
        blue.sees = sees(&world);
        pass(&mut world, &mut [&mut blue], 1);
    }
    assert!(blue.term.writer().figures().full_flushes > 0);
}

#[test]
fn a_new_leader_that_did_not_see_the_last_heads_takes_no_reader_back() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    let old = world.heads["blue"].clone();
    blue.desire(&mut world, &state(0..16, 1));
    pass(&mut world, &mut [&mut green], 3);
    assert_eq!(green.applies("blue"), Some(state(0..16, 1)));
    drop(blue);
    let mut blue = Process::elect(&mut world, "blue");
    blue.sees = Some(Heads::from([("blue".into(), Ok(old))]));
    // What it wants fits into no head for now, so that it repeats what it saw.
    blue.hangs = is_page;
    pass(&mut world, &mut [&mut blue, &mut green], 3);
    blue.desire(&mut world, &state(0..40, 9));
    blue.sees = None;
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    let position = world.heads["blue"].position;
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..15, 1))));
    assert_eq!(green.term.reader().figures()["blue"].position, Some(position));
    assert_eq!(green.applies("blue"), Some(state(0..16, 1)));
    blue.let_go(&mut world);
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    assert_eq!(green.applies("blue"), Some(state(0..40, 9)));
}

#[test]
fn what_a_reader_was_told_in_deltas_it_does_not_read_in_pages() {
    // Four of fifteen keys change: they fit into a delta.
    let changed = |value| {
        let pairs =
            state(0..4, value).iter().chain(state(4..15, 1).iter()).map(|(k, v)| (k.clone(), v.clone())).collect();
        Arc::new(pairs)
    };
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    // From now on it could not read any page.
    green.hangs = reads_pages;
    for value in 2..6 {
        let before = world.heads["blue"].root.clone();
        blue.desire(&mut world, &changed(value));
        pass(&mut world, &mut [&mut blue, &mut green], 90);
        assert_ne!(world.heads["blue"].root, before, "it was flushed");
        assert_eq!(green.applies("blue"), Some(changed(value)));
    }
    // What it was not told it reads.
    green.sees = Some(world.discover());
    blue.desire(&mut world, &changed(6));
    pass(&mut world, &mut [&mut blue, &mut green], 90);
    green.sees = None;
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert_eq!(green.applies("blue"), Some(changed(5)));
    green.let_go(&mut world);
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert_eq!(green.applies("blue"), Some(changed(6)));
}
