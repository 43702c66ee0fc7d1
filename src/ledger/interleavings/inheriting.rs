//! W2: what a leader starts from.

use super::*;
use crate::{claims, fixtures::claim, writer::Stage};

fn roomy() -> Limits {
    Limits { page_bytes: 300, delta_bytes: 400, ..limits() }
}

/// A leader of `blue` whose registration records are in pages, but for the last one.
fn with_registrations(world: &mut World) -> (Process, Arc<Map>) {
    let mut leader = Process::elect_with(world, "blue", "uid-blue", roomy(), None);
    let mut map = Map::clone(&state(0..15, 1));
    for service in ["web", "api", "db"] {
        map.extend(claims::pair(&claim(service)));
        leader.desire(world, &Arc::new(map.clone()));
        pass(world, &mut [&mut leader], if service == "db" { 5 } else { 90 });
    }
    assert!(!world.heads["blue"].delta.is_empty() && world.count_pages("blue") > 3);
    (leader, Arc::new(map))
}

#[test]
fn a_base_that_cannot_be_read_is_waited_for_however_long_that_takes() {
    let mut world = World::default();
    let (old, map) = with_registrations(&mut world);
    drop(old);
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", roomy(), None);
    leader.fails = reads_pages;
    leader.desire(&mut world, &map);
    pass(&mut world, &mut [&mut leader], 600);
    assert_eq!(leader.term.writer().stage(), Stage::Verifying);
    leader.fails = |_| false;
    pass(&mut world, &mut [&mut leader], 5);
    assert_eq!(leader.term.own(), Some(&map));
    assert_eq!(leader.term.writer().figures().full_flushes, 0);
}

#[test]
fn failed_reads_between_completed_ones_do_not_hasten_the_end_of_a_base() {
    let mut world = World::default();
    let (old, map) = with_registrations(&mut world);
    drop(old);
    // Replicas that show pages late, and reads that fail almost always.
    world.hidden = world.archive.keys().cloned().collect();
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", roomy(), None);
    leader.desire(&mut world, &map);
    for _ in 0..4 {
        leader.fails = reads_pages;
        pass(&mut world, &mut [&mut leader], 60);
        leader.fails = |_| false;
        pass(&mut world, &mut [&mut leader], 1);
    }
    assert_eq!(leader.term.writer().stage(), Stage::Verifying);
    world.hidden.clear();
    pass(&mut world, &mut [&mut leader], 3);
    assert_eq!(leader.term.own(), Some(&map));
}

#[test]
fn a_base_that_lost_a_page_is_given_up_but_not_the_registrations_that_can_still_be_read() {
    let mut world = World::default();
    let (old, map) = with_registrations(&mut world);
    drop(old);
    let readable = |page: &Arc<StoredPage>| {
        let changes = crate::page::decode_changes(&page.bytes);
        changes.is_ok_and(|changes| !changes.is_empty() && changes.iter().all(|(key, _)| !key.starts_with('!')))
    };
    let pages = world.pages.get_mut(&("blue".into(), 0)).unwrap();
    // Of the newest flush: the head refers to no other.
    let lost = pages.iter().rfind(|(_, page)| readable(page)).map(|(id, _)| id.clone()).unwrap();
    pages.remove(&lost);
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", roomy(), None);
    leader.desire(&mut world, &map);
    pass(&mut world, &mut [&mut leader], 60);
    assert_eq!(world.read("blue"), Some(Map::clone(&map)));
    let kept = claims::of_stored(&["web", "api", "db"].map(claim));
    assert_eq!(**leader.term.own().unwrap(), kept, "and no export");
}

/// A leader that saw the newest head before the registry was restored looks for its pages in vain.
#[test]
fn where_the_registry_went_back_a_leader_starts_from_what_is_there() {
    let mut world = World::default();
    let (mut old, map) = with_registrations(&mut world);
    let (heads, pages) = (world.heads.clone(), world.pages.clone());
    // Everything is written anew, under other names.
    old.desire(&mut world, &state(0..60, 2));
    pass(&mut world, &mut [&mut old], 400);
    drop(old);
    let newest = world.discover();
    (world.heads, world.pages) = (heads, pages);
    let mut leader = Process::elect_with(&mut world, "blue", "uid-blue", roomy(), None);
    leader.sees = Some(newest);
    leader.desire(&mut world, &map);
    pass(&mut world, &mut [&mut leader], 5);
    leader.sees = None;
    pass(&mut world, &mut [&mut leader], 30);
    assert_eq!(leader.term.own(), Some(&map));
    assert_eq!(leader.term.writer().figures().full_flushes, 0);
}

#[test]
fn a_cluster_that_changes_its_id_starts_from_what_it_said_under_the_old_one() {
    let mut world = World::default();
    let (old, map) = with_registrations(&mut world);
    drop(old);
    let mut new = Process::elect_with(&mut world, "navy", "uid-blue", roomy(), None);
    new.fails = reads_pages;
    pass(&mut world, &mut [&mut new], 60);
    assert_eq!(new.term.own(), None, "it is waited for");
    new.fails = |_| false;
    pass(&mut world, &mut [&mut new], 5);
    assert_eq!(new.term.own(), Some(&map));
    new.desire(&mut world, &map);
    pass(&mut world, &mut [&mut new], 200);
    assert_eq!(world.read("navy"), Some(Map::clone(&map)));
    assert!(!world.heads["blue"].is_live());
    // And back again, though the head that says so was written more often than the new one.
    let newest = world.heads["navy"].position;
    let left = Arc::make_mut(world.heads.get_mut("blue").unwrap());
    assert_eq!(left.position.epoch, newest.epoch);
    left.position.seq = newest.seq + 2;
    let mut back = Process::elect_with(&mut world, "blue", "uid-blue", roomy(), None);
    pass(&mut world, &mut [&mut back], 40);
    assert_eq!(back.term.own(), Some(&map));
}

#[test]
fn a_head_with_the_own_uid_under_an_id_that_this_cluster_never_made_is_not_inherited() {
    let mut world = World::default();
    let (old, _) = with_registrations(&mut world);
    drop(old);
    world.creators.insert(("blue".into(), 0), "uid-other".into());
    let mut new = Process::elect_with(&mut world, "navy", "uid-blue", roomy(), None);
    pass(&mut world, &mut [&mut new], 60);
    assert_eq!(new.term.own(), Some(&Arc::default()));
}
