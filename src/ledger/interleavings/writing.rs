//! W0 to W7.

use super::*;
use crate::head::{Root, RootPage, RootRun};
use crate::{claims, fixtures::claim, record::StoredRegistration, writer::Stage};

#[test]
fn clusters_of_the_same_name_do_not_rewrite_each_other() {
    let mut world = World::default();
    let mut first = Process::elect_with(&mut world, "prod", "uid-1", limits(), None);
    first.desire(&mut world, &state(0..3, 1));
    pass(&mut world, &mut [&mut first], 5);
    let mut second = Process::elect_with(&mut world, "prod", "uid-2", limits(), None);
    second.desire(&mut world, &state(5..9, 2));
    pass(&mut world, &mut [&mut first, &mut second], 90);
    assert_eq!(second.term.writer().stage(), Stage::Refused { owner: "uid-1".to_owned() });
    assert_eq!(second.writes, 0);
    assert!(world.sent.iter().all(|head| &*head.uid == "uid-1"));
    // The first goes on, and the other reads it like any other cluster.
    assert_eq!(first.term.writer().stage(), Stage::Running);
    assert_eq!(second.applies("prod"), Some(state(0..3, 1)));
}

#[test]
fn a_leader_that_missed_its_deposition_does_not_elect_itself_above_the_real_one() {
    let mut world = World::default();
    let mut stalled = with_pages(&mut world, "blue", 3 * 5);
    let mut leader = Process::elect(&mut world, "blue");
    leader.desire(&mut world, &state(0..16, 1));
    pass(&mut world, &mut [&mut leader], 5);
    assert_eq!((world.heads["blue"].position.epoch, world.epoch("uid-blue")), (2, 2));
    // It still believes in its Lease, and has something to say.
    pass(&mut world, &mut [&mut stalled], 1);
    let writes = stalled.writes;
    stalled.desire(&mut world, &state(0..3, 9));
    pass(&mut world, &mut [&mut stalled, &mut leader], 60);
    assert_eq!((stalled.term.writer().stage(), stalled.writes), (Stage::Electing, writes));
    assert_eq!((world.heads["blue"].position.epoch, world.epoch("uid-blue")), (2, 2));
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..16, 1))));
}

#[test]
fn a_change_shows_how_long_it_waits_until_it_is_published() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let waits = |blue: &Process| blue.term.writer().figures().unpublished;
    assert_eq!(waits(&blue), None);
    blue.fails = is_head;
    blue.desire(&mut world, &state(1..15, 1));
    pass(&mut world, &mut [&mut blue], 40);
    blue.desire(&mut world, &state(2..15, 1));
    pass(&mut world, &mut [&mut blue], 20);
    assert_eq!(waits(&blue), Some(Duration::from_mins(1)), "the oldest counts");
    blue.fails = |_| false;
    pass(&mut world, &mut [&mut blue], 20);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(2..15, 1))));
    assert_eq!(waits(&blue), None);
}

#[test]
fn an_epoch_is_stored_before_a_head_carries_it() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    leader.hangs = is_head;
    let mut next = Process::elect(&mut world, "blue");
    next.hangs = is_record;
    next.desire(&mut world, &state(0..16, 1));
    let sent = world.sent.len();
    pass(&mut world, &mut [&mut next], 20);
    assert_eq!(world.sent.len(), sent);
    next.let_go(&mut world);
    pass(&mut world, &mut [&mut next], 20);
    assert!(world.sent[sent..].iter().all(|head| head.position.epoch == 2) && world.sent.len() > sent);
}

#[test]
fn a_deleted_lease_or_a_lagging_replica_does_not_take_the_epoch_back() {
    let mut world = World::default();
    let mut old = with_pages(&mut world, "blue", 15);
    let lagging = world.discover();
    old.hangs = |_| true;
    for _ in 0..3 {
        let mut leader = Process::elect(&mut world, "blue");
        pass(&mut world, &mut [&mut leader], 3);
    }
    assert_eq!(world.epoch("uid-blue"), 4);
    // The Lease counts its transitions from nothing again, and discovery shows the first epoch only.
    world.leases.clear();
    let mut leader = Process::elect(&mut world, "blue");
    leader.sees = Some(lagging);
    leader.desire(&mut world, &state(0..16, 1));
    pass(&mut world, &mut [&mut leader], 5);
    assert_eq!(world.heads["blue"].position.epoch, 5);
}

#[test]
fn a_new_leader_starts_from_its_predecessors_head_and_needs_no_room_for_a_second_copy() {
    let mut world = World::default();
    let mut old = with_pages(&mut world, "blue", 100);
    let said = Arc::new({
        let mut map = Map::clone(&state(0..100, 1));
        map.insert("ns/000".into(), Value::from([2; 8]));
        map
    });
    old.desire(&mut world, &said);
    let before = world.heads["blue"].clone();
    assert!(!before.delta.is_empty());
    // Not even half of the pages would fit a second time.
    let limits = Limits { pages: world.count_pages("blue") * 5 / 4, ..limits() };
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", limits, None);
    let mut desired = Map::clone(&said);
    (10..20).for_each(|key| drop(desired.remove(&*format!("ns/{key:03}"))));
    let sent = world.sent.len();
    leader.desire(&mut world, &Arc::new(desired.clone()));
    pass(&mut world, &mut [&mut leader], 3);
    let first = &world.sent[sent];
    assert_eq!((first.position.epoch, &first.root), (2, &before.root));
    pass(&mut world, &mut [&mut leader], 60);
    assert_eq!(world.read("blue"), Some(desired.clone()));
    assert!(world.said(sent).iter().all(|map| *map == *said || *map == desired));
    assert_eq!(leader.term.writer().figures().full_flushes, 0);
}

#[test]
fn a_change_that_fits_no_delta_is_said_whole_or_not_at_all() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    let (before, after) = (state(0..15, 1), state(30..80, 2));
    leader.hangs = |call| matches!(call, Call::PutPage { .. });
    let sent = world.sent.len();
    leader.desire(&mut world, &after);
    // The flush hangs: heartbeats go on saying what was said.
    pass(&mut world, &mut [&mut leader], 45);
    assert!(world.sent.len() >= sent + 2);
    assert!(world.said(sent).iter().all(|map| *map == *before));
    leader.let_go(&mut world);
    pass(&mut world, &mut [&mut leader], 10);
    assert_eq!(world.read("blue"), Some(Map::clone(&after)));
    assert!(world.said(sent).iter().all(|map| *map == *before || *map == *after));
    assert!(world.sent.iter().all(|head| head.fits(&limits())));
}

#[test]
fn no_head_names_pages_that_only_the_control_plane_knows() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    world.hides_new_pages = true;
    let (sent, root) = (world.sent.len(), world.heads["blue"].root.clone());
    leader.desire(&mut world, &state(0..60, 2));
    pass(&mut world, &mut [&mut leader], 50);
    assert!(!world.hidden.is_empty());
    assert!(world.sent[sent..].iter().all(|head| head.root == root));
    world.hides_new_pages = false;
    world.hidden.clear();
    pass(&mut world, &mut [&mut leader], 5);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..60, 2))));
}

#[test]
fn every_head_has_a_position_of_its_own_heartbeats_and_failed_ones_too() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    pass(&mut world, &mut [&mut leader], 60);
    for key in 15..20 {
        leader.hangs = is_head;
        leader.desire(&mut world, &state(0..key, 1));
        pass(&mut world, &mut [&mut leader], 2);
        leader.time_out(&mut world);
        pass(&mut world, &mut [&mut leader], 10);
    }
    let positions: Vec<Position> = world.sent.iter().map(|head| head.position).collect();
    assert!(positions.len() > 12 && positions.is_sorted_by(|a, b| a < b), "{positions:?}");
}

#[test]
fn a_head_that_hung_for_minutes_finds_its_pages_when_it_lands() {
    let mut world = World::default();
    let mut leader = with_pages(&mut world, "blue", 15);
    leader.hangs = is_head;
    leader.desire(&mut world, &state(0..16, 1));
    pass(&mut world, &mut [&mut leader], 60);
    let hung = leader.time_out(&mut world).pop().unwrap();
    let Call::PutHead { head, .. } = &hung else { panic!("{hung:?}") };
    leader.desire(&mut world, &state(0..60, 2));
    // Another root for 100 seconds: then the old one is back, and stays, for some.
    pass(&mut world, &mut [&mut leader], 100);
    assert_ne!(world.heads["blue"].root, head.root);
    leader.sees = Some(Heads::from([("blue".into(), Ok(head.clone()))]));
    pass(&mut world, &mut [&mut leader], 100);
    let newer = world.heads["blue"].clone();
    world.make(&leader, &hung);
    assert_eq!(world.read("blue"), Some(Map::clone(&state(0..16, 1))));
    // When it is gone for good, so are its pages.
    world.heads.insert("blue".into(), newer.clone());
    leader.sees = None;
    pass(&mut world, &mut [&mut leader], 300);
    let verified = verify::verify(&newer.root, &Cache::default(), &world.archive).unwrap();
    assert_eq!(world.count_pages("blue"), verified.layout.pages().count());
}

#[test]
fn pages_of_a_crashed_flush_look_newer_and_mean_nothing() {
    let mut world = World::default();
    let mut crashed = with_pages(&mut world, "blue", 15);
    let live = world.count_pages("blue");
    crashed.hangs = is_head;
    crashed.desire(&mut world, &state(0..60, 2));
    pass(&mut world, &mut [&mut crashed], 15);
    let abandoned: Vec<PageId> = crashed
        .hanging
        .iter()
        .filter_map(|(_, call)| {
            if let Call::PutHead { head, .. } = call { Some(head.root.runs[0].page().id.clone()) } else { None }
        })
        .collect();
    assert!(world.count_pages("blue") > live && !abandoned.is_empty());
    drop(crashed);
    let mut leader = Process::elect(&mut world, "blue");
    let mut reader = Process::elect(&mut world, "green");
    leader.desire(&mut world, &state(0..15, 1));
    pass(&mut world, &mut [&mut leader, &mut reader], 5);
    assert_eq!(leader.term.own(), Some(&state(0..15, 1)));
    assert_eq!(reader.applies("blue"), Some(state(0..15, 1)));
    // The same change again gets pages of its own, and those of the crash are collected.
    leader.desire(&mut world, &state(0..60, 2));
    pass(&mut world, &mut [&mut leader, &mut reader], 300);
    assert_eq!(reader.applies("blue"), Some(state(0..60, 2)));
    assert!(pages(&world.heads["blue"].root).all(|page| page.id.flush.starts_with("2-")));
    let mut pages = world.pages.values().flat_map(BTreeMap::keys);
    assert!(pages.all(|page| page.flush.starts_with("2-")));
}

#[test]
fn the_next_leader_knows_where_a_crashed_one_had_instances_left() {
    let mut world = World::default();
    let said = |retiring| StoredRegistration { retiring, ..claim("web") };
    let with = |retiring| {
        let mut map = Map::clone(&state(0..15, 1));
        map.extend(claims::pair(&said(retiring)));
        Arc::new(map)
    };
    let limits = Limits { page_bytes: 300, delta_bytes: 400, ..limits() };
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", limits, None);
    leader.desire(&mut world, &with(false));
    pass(&mut world, &mut [&mut leader], 90);
    // The export is deleted: the record must be there before anybody may deregister.
    leader.hangs = is_head;
    leader.desire(&mut world, &with(true));
    assert_eq!(leader.term.writer().published(), Some(&with(false)));
    // The head lands, its answer is lost, and the leader with it.
    let call = leader.hanging.pop().unwrap().1;
    world.make(&leader, &call);
    drop(leader);
    let mut next = Process::elect_with(&mut world, "blue", "uid-blue", limits, None);
    pass(&mut world, &mut [&mut next], 5);
    assert_eq!(claims::stored(next.term.own().unwrap()), [said(true)]);
}

fn pages(root: &Root) -> impl Iterator<Item = &RootPage> {
    root.pages.iter().chain(root.runs.iter().map(RootRun::page))
}
