//! W9: leaving, and going on under another id.

use super::*;
use crate::{head::Presence, writer::Stage};

/// A cluster that is asked to leave, and one that watches.
fn leave(world: &mut World) -> (Process, Process) {
    let mut blue = with_pages(world, "blue", 15);
    let mut green = Process::elect(world, "green");
    pass(world, &mut [&mut blue, &mut green], 5);
    assert!(green.applies("blue").is_some());
    world.set_leaving("uid-blue");
    (blue, green)
}

#[test]
fn only_the_leader_says_that_its_cluster_left() {
    let mut world = World::default();
    let (mut blue, mut green) = leave(&mut world);
    let sent = world.sent.len();
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    assert_eq!(blue.term.writer().stage(), Stage::Leaving);
    // While instances are being deregistered it is there: their registration records are still needed.
    assert!(world.sent[sent..].iter().all(|head| head.is_live()));
    assert!(green.applies("blue").is_some() && green.term.reader().figures().contains_key("blue"));
    blue.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut blue, &mut green], 90);
    assert_eq!(blue.term.writer().stage(), Stage::Left);
    assert!(green.remote("blue").unwrap().left && !green.term.reader().figures().contains_key("blue"));
    assert_eq!(world.count_pages("blue"), 0);
}

#[test]
fn a_leader_that_stores_its_record_does_not_overwrite_the_request_to_leave() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = with_pages(&mut world, "green", 15);
    blue.hangs = is_record;
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert!(!blue.hanging.is_empty());
    world.set_leaving("uid-blue");
    blue.let_go(&mut world);
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    let record = &world.records["uid-blue"].0;
    assert!(record.leaving && record.accepted.contains_key("green"));
    assert_eq!(blue.term.writer().stage(), Stage::Leaving);
}

#[test]
fn what_a_stalled_process_still_writes_does_not_bring_a_cluster_back() {
    let mut world = World::default();
    let mut stalled = with_pages(&mut world, "blue", 15);
    stalled.hangs = |call| matches!(call, Call::PutHead { .. } | Call::PutPage { .. });
    stalled.desire(&mut world, &state(0..60, 2));
    pass(&mut world, &mut [&mut stalled], 25);
    let late: Vec<Call> = stalled.hanging.drain(..).map(|(_, call)| call).collect();
    assert!(late.iter().any(is_head) && late.iter().any(|call| matches!(call, Call::PutPage { .. })));
    let mut leader = Process::elect(&mut world, "blue");
    let mut green = Process::elect(&mut world, "green");
    leader.desire(&mut world, &state(0..15, 1));
    pass(&mut world, &mut [&mut leader, &mut green], 10);
    world.set_leaving("uid-blue");
    leader.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut leader, &mut green], 120);
    assert_eq!(leader.term.writer().stage(), Stage::Left);
    for call in &late {
        world.make(&stalled, call);
    }
    assert!(world.heads["blue"].is_live() && world.count_pages("blue") > 0);
    pass(&mut world, &mut [&mut leader, &mut green], 60);
    // Pages alone are found as well.
    late.iter().filter(|call| !is_head(call)).for_each(|call| drop(world.make(&stalled, call)));
    pass(&mut world, &mut [&mut leader, &mut green], 150);
    assert!(!world.heads["blue"].is_live());
    assert_eq!((leader.term.writer().stage(), world.count_pages("blue")), (Stage::Left, 0));
    assert!(green.remote("blue").unwrap().left);
}

#[test]
fn a_cluster_that_changes_its_id_is_there_all_the_time() {
    let mut world = World::default();
    let mut old = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut old, &mut green], 5);
    drop(old);
    let mut new = Process::elect_with(&mut world, "navy", "uid-blue", limits(), None);
    new.desire(&mut world, &state(0..15, 1));
    for second in 0..300 {
        pass(&mut world, &mut [&mut new, &mut green], 1);
        // Time for every replica to show the new head.
        assert!(world.heads["blue"].is_live() || second >= 30);
        assert!(green.applies("blue").is_some() || green.applies("navy").is_some());
    }
    let successor = Presence::Left { successor: Some("navy".into()) };
    assert_eq!(world.heads["blue"].presence, successor);
    assert!(green.remote("blue").unwrap().left);
    assert_eq!(world.count_pages("blue"), 0);
    // Whoever sees the old id leave before it has read the new one waits.
    let mut red = Process::elect(&mut world, "red");
    red.sees = Some(world.discover().into_iter().filter(|(id, _)| **id == *"blue").collect());
    pass(&mut world, &mut [&mut red], 30);
    assert!(red.remote("blue").is_none_or(|remote| !remote.left));
    red.sees = None;
    pass(&mut world, &mut [&mut red], 5);
    assert!(red.remote("blue").unwrap().left && red.applies("navy").is_some());
}

#[test]
fn who_leaves_soon_after_its_id_was_changed_leaves_under_the_former_id_too() {
    let mut world = World::default();
    let mut old = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut old, &mut green], 5);
    drop(old);
    world.set_leaving("uid-blue");
    let mut new = Process::elect_with(&mut world, "navy", "uid-blue", limits(), None);
    new.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut new, &mut green], 200);
    assert_eq!(new.term.writer().stage(), Stage::Left);
    assert!(!world.heads["blue"].is_live());
    assert!(green.remote("blue").unwrap().left && green.remote("navy").unwrap().left);
}

/// Heads of former ids would fill the room for heads, which is for 1,000.
#[test]
fn the_head_of_a_former_id_goes_and_who_was_away_knows_all_the_same() {
    let mut world = World::default();
    let mut old = with_pages(&mut world, "blue", 15);
    let mut away = Process::elect(&mut world, "red");
    pass(&mut world, &mut [&mut old, &mut away], 5);
    assert!(away.applies("blue").is_some());
    drop((old, away));
    let mut new = Process::elect_with(&mut world, "navy", "uid-blue", limits(), None);
    new.desire(&mut world, &state(0..15, 1));
    pass(&mut world, &mut [&mut new], 500);
    assert!(world.heads.contains_key("blue"), "those that are there see that it left");
    pass(&mut world, &mut [&mut new], 500);
    assert!(!world.heads.contains_key("blue") && !world.creators.contains_key(&("blue".into(), 0)));
    let mut away = Process::elect(&mut world, "red");
    away.fails = reads_pages;
    pass(&mut world, &mut [&mut new, &mut away], 120);
    assert!(!away.remote("blue").unwrap().left, "its successor is not read yet");
    away.fails = |_| false;
    pass(&mut world, &mut [&mut new, &mut away], 10);
    assert!(away.remote("blue").unwrap().left && away.applies("navy").is_some());
    // One of another UID says nothing, though it has the same id now.
    let mut other = Process::elect_with(&mut world, "blue", "uid-other", limits(), None);
    other.desire(&mut world, &state(0..3, 2));
    pass(&mut world, &mut [&mut new, &mut away, &mut other], 60);
    assert_eq!(away.applies("blue"), Some(state(0..3, 2)));
}

#[test]
fn the_last_position_decides_between_left_and_live() {
    let mut world = World::default();
    let (mut blue, mut green) = leave(&mut world);
    let live = world.discover();
    blue.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    assert!(green.remote("blue").unwrap().left);
    // A replica shows the live head again: it is below what was accepted.
    green.sees = Some(live);
    pass(&mut world, &mut [&mut green], 30);
    assert!(green.remote("blue").unwrap().left);
    assert!(world.heads["blue"].position > at(1, 0));
}

/// `purge --cluster` of a cluster that left, or was forgotten.
fn purge(world: &mut World, cluster: &str) {
    world.heads.remove(cluster);
    world.creators.retain(|(of, _), _| **of != *cluster);
    world.pages.retain(|(of, _), _| **of != *cluster);
}

#[test]
fn who_left_and_was_purged_has_left_for_the_next_leader_too() {
    let mut world = World::default();
    let (mut blue, mut green) = leave(&mut world);
    let mut red = with_pages(&mut world, "red", 3);
    blue.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut blue, &mut green, &mut red], 90);
    assert!(green.remote("blue").unwrap().left);
    drop((blue, green));
    purge(&mut world, "blue");
    let mut green = Process::elect(&mut world, "green");
    green.sees = Some(Heads::new());
    pass(&mut world, &mut [&mut green], 5);
    assert!(green.remote("blue").unwrap().left);
    let remote = green.remote("red").unwrap();
    assert!(remote.state.is_none() && !remote.left && !remote.expired, "who is merely absent has not left");
    green.sees = None;
    // Another cluster takes the id.
    let mut new = Process::elect_with(&mut world, "blue", "uid-new", limits(), None);
    new.desire(&mut world, &state(0..3, 2));
    pass(&mut world, &mut [&mut green, &mut red, &mut new], 60);
    assert_eq!(green.applies("blue"), Some(state(0..3, 2)));
}

/// `blue` continues as `navy`, and `green` has seen that.
fn rename(world: &mut World) -> (Process, Process) {
    let old = with_pages(world, "blue", 15);
    let mut green = Process::elect(world, "green");
    drop(old);
    let mut new = Process::elect_with(world, "navy", "uid-blue", limits(), None);
    new.desire(world, &state(0..15, 1));
    pass(world, &mut [&mut new, &mut green], 300);
    assert!(green.remote("blue").unwrap().left && green.applies("navy").is_some());
    (new, green)
}

#[test]
fn an_id_left_for_one_that_was_purged_has_left_for_the_next_leader_too() {
    let mut world = World::default();
    let (mut new, mut green) = rename(&mut world);
    world.set_leaving("uid-blue");
    new.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut new, &mut green], 90);
    assert!(green.remote("navy").unwrap().left);
    drop((new, green));
    purge(&mut world, "navy");
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut green], 5);
    assert!(green.remote("blue").unwrap().left && green.remote("navy").unwrap().left);
}

#[test]
fn an_id_left_for_one_that_was_purged_has_left_in_the_end_for_who_was_away_too() {
    let mut world = World::default();
    let (mut new, green) = rename(&mut world);
    world.set_leaving("uid-blue");
    new.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut new], 90);
    drop((new, green));
    purge(&mut world, "navy");
    let mut red = Process::elect(&mut world, "red");
    pass(&mut world, &mut [&mut red], 590);
    assert!(!red.remote("blue").unwrap().left, "its successor may only be late");
    pass(&mut world, &mut [&mut red], 30);
    assert!(red.remote("blue").unwrap().left);
}

/// The record says that a former id left, but objects may be there that an earlier process made for it: one that never got
/// to apply the successor's state, as it was not allowed to write.
#[test]
fn a_former_id_that_left_and_is_gone_stays_until_this_process_has_read_its_successor() {
    let mut world = World::default();
    let (mut new, green) = rename(&mut world);
    drop(green);
    let without =
        |id: &str, world: &mut World| -> Heads { world.discover().into_iter().filter(|(at, _)| **at != *id).collect() };
    let mut green = Process::elect(&mut world, "green");
    green.sees = Some(without("blue", &mut world));
    green.fails = reads_pages;
    pass(&mut world, &mut [&mut new, &mut green], 60);
    assert!(green.remote("blue").is_none_or(|remote| !remote.left), "nothing of the successor is read yet");
    green.fails = |_| false;
    pass(&mut world, &mut [&mut new, &mut green], 10);
    assert!(green.remote("blue").unwrap().left && green.applies("navy").is_some());
}

#[test]
fn who_comes_back_at_the_position_that_somebody_forgot_it_at_is_there_with_its_next_head() {
    let mut world = World::default();
    let (blue, mut green) = leave(&mut world);
    drop(blue);
    let head = world.heads["blue"].clone();
    let position = at(head.position.epoch + 1, 1);
    let forgotten = Head { position, presence: Presence::Left { successor: None }, ..Head::clone(&head) };
    world.heads.insert("blue".into(), Arc::new(forgotten));
    pass(&mut world, &mut [&mut green], 5);
    drop(green);
    world.heads.insert("blue".into(), Arc::new(Head { position, ..Head::clone(&head) }));
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut green], 5);
    let remote = green.remote("blue").unwrap();
    assert!(!remote.left && remote.state.is_some());
}

#[test]
fn who_comes_back_is_not_verified_before_its_state_is_read() {
    let mut world = World::default();
    let (blue, mut green) = leave(&mut world);
    drop(blue);
    let head = world.heads["blue"].clone();
    let left = Presence::Left { successor: None };
    let farewell = Head { position: at(head.position.epoch + 1, 1), presence: left, ..Head::clone(&head) };
    world.heads.insert("blue".into(), Arc::new(farewell));
    pass(&mut world, &mut [&mut green], 5);
    assert!(green.remote("blue").unwrap().left && green.term.remotes().all_live_verified);
    // Its claims from before may be older than those that others made meanwhile.
    green.hangs = is_record;
    world
        .heads
        .insert("blue".into(), Arc::new(Head { position: at(head.position.epoch + 2, 1), ..Head::clone(&head) }));
    pass(&mut world, &mut [&mut green], 1);
    let remote = green.remote("blue").unwrap();
    assert!(!remote.left && remote.state.is_none() && !green.term.remotes().all_live_verified);
    green.let_go(&mut world);
    pass(&mut world, &mut [&mut green], 1);
    assert!(green.remote("blue").unwrap().state.is_some() && green.term.remotes().all_live_verified);
}

#[test]
fn a_page_whose_deletion_takes_long_is_not_deleted_again_meanwhile() {
    let mut world = World::default();
    let (mut blue, _) = leave(&mut world);
    blue.hangs = |call| matches!(call, Call::DeletePage { .. });
    blue.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut blue], 50);
    let pages: BTreeSet<_> = blue.hanging.iter().map(|(_, call)| format!("{call:?}")).collect();
    assert!(!pages.is_empty() && blue.hanging.len() == pages.len(), "{} of {}", blue.hanging.len(), pages.len());
    blue.let_go(&mut world);
    pass(&mut world, &mut [&mut blue], 90);
    assert_eq!((blue.term.writer().stage(), world.count_pages("blue")), (Stage::Left, 0));
}

/// The role of a cluster with another id may not write what it wrote under the former one.
#[test]
fn deletions_that_are_refused_are_tried_less_and_less() {
    let mut world = World::default();
    drop(with_pages(&mut world, "blue", 15));
    let mut new = Process::elect_with(&mut world, "navy", "uid-blue", limits(), None);
    new.desire(&mut world, &state(0..15, 1));
    let of_blue: fn(&Call) -> bool = |call| matches!(call, Call::DeletePage { cluster, .. } if **cluster == *"blue");
    let refused = refuse(&mut world, &mut new, of_blue, 1_200);
    assert!((5..10).contains(&refused.len()), "{refused:?}");
    let pauses: Vec<_> = refused.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.windows(2).all(|pair| pair[1] >= 2 * pair[0]), "{pauses:?}");
    // Once they are allowed, the rest follows as usual.
    pass(&mut world, &mut [&mut new], 1_200);
    assert_eq!(world.count_pages("blue"), 0);
    assert!(!world.heads.contains_key("blue"));
}

#[test]
fn a_removal_that_is_refused_is_tried_less_and_less() {
    let mut world = World::default();
    drop(with_pages(&mut world, "blue", 15));
    let mut new = Process::elect_with(&mut world, "navy", "uid-blue", limits(), None);
    new.desire(&mut world, &state(0..15, 1));
    let tried = refuse(&mut world, &mut new, |call| matches!(call, Call::RemoveFormer { .. }), 2_400).len();
    assert!((3..9).contains(&tried), "{tried}");
    pass(&mut world, &mut [&mut new], 700);
    assert!(!world.heads.contains_key("blue"));
}

#[test]
fn a_left_head_of_a_former_id_does_not_keep_the_ledger_from_rest() {
    let mut world = World::default();
    let (mut new, _green) = rename(&mut world);
    assert!(!world.heads["blue"].is_live());
    assert!(new.term.writer().is_at_rest());
    // A live one does: the former leader may still be there.
    let left = world.heads["blue"].clone();
    world.heads.insert("blue".into(), Arc::new(Head { presence: Presence::Live, ..Head::clone(&left) }));
    pass(&mut world, &mut [&mut new], 1);
    assert!(!new.term.writer().is_at_rest());
}

/// Another cluster claimed it in a gap, or beyond the last one.
#[test]
fn a_service_of_somebody_else_under_a_former_id_stays_and_the_rest_goes() {
    let mut world = World::default();
    drop(with_pages(&mut world, "blue", 15));
    let theirs: (Arc<str>, u32) = ("blue".into(), 3);
    world.creators.insert(theirs.clone(), "uid-other".into());
    let pages = world.pages[&("blue".into(), 0)].clone();
    world.pages.insert(theirs.clone(), pages.clone());
    let mut new = Process::elect_with(&mut world, "navy", "uid-blue", limits(), None);
    new.desire(&mut world, &state(0..15, 1));
    pass(&mut world, &mut [&mut new], 1_000);
    assert_eq!(new.term.writer().stage(), Stage::Running);
    assert!(world.pages[&theirs].keys().eq(pages.keys()));
    assert_eq!(world.count_pages("blue"), pages.len());
    assert!(!world.heads.contains_key("blue"));
}
