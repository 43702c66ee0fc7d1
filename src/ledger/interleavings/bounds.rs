//! What is remembered of others, and of which ClusterSet it is.

use super::*;
use crate::{
    head::Presence,
    limits::MAX_CLUSTERS,
    record::{Accepted, Gone},
};

#[test]
fn who_left_and_is_not_there_any_more_is_forgotten_and_who_is_there_is_not() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    world.set_leaving("uid-blue");
    blue.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut blue, &mut green], 90);
    let known = |world: &World| world.records["uid-green"].0.accepted.contains_key("blue");
    pass(&mut world, &mut [&mut green], 1_000);
    assert!(known(&world) && green.remote("blue").unwrap().left, "its head is there");
    let farewell = world.heads.remove("blue").unwrap();
    pass(&mut world, &mut [&mut green], 300);
    assert!(known(&world), "it was there just now");
    pass(&mut world, &mut [&mut green], 320);
    assert!(!known(&world) && green.remote("blue").is_none());
    // It says so again, and then is a member again.
    world.heads.insert("blue".into(), farewell.clone());
    pass(&mut world, &mut [&mut green], 5);
    assert!(known(&world) && green.remote("blue").unwrap().left);
    let back = Head { presence: Presence::Live, position: at(9, 1), ..Head::clone(&farewell) };
    world.heads.insert("blue".into(), Arc::new(of_state(back, &Arc::default())));
    pass(&mut world, &mut [&mut green], 5);
    assert_eq!(green.applies("blue"), Some(Arc::default()));
}

#[test]
fn who_is_merely_absent_is_never_forgotten() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    world.heads.remove("blue");
    pass(&mut world, &mut [&mut green], 2_000);
    assert!(world.records["uid-green"].0.accepted.contains_key("blue"));
    assert_eq!(green.applies("blue"), Some(state(0..15, 1)));
}

#[test]
fn a_change_of_the_clusterset_keeps_the_epoch_and_no_ghosts_and_leaves_the_former_one() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = with_pages(&mut world, "green", 3);
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    let epoch = world.epoch("uid-green");
    assert!(world.records["uid-green"].0.accepted.contains_key("blue"));
    drop(green);
    // The other ClusterSet has a ledger of its own.
    let mut other = World { records: std::mem::take(&mut world.records), now: world.now, ..World::default() };
    other.leases = std::mem::take(&mut world.leases);
    other.records.get_mut("uid-green").unwrap().0.leaving = true;
    let me = WriterIdentity { clusterset: "test".into(), cluster: "green".into(), uid: "uid-green".into() };
    let mut green = Process::start(&mut other, me, &timing(), limits(), None);
    green.desire(&mut other, &state(0..3, 1));
    pass(&mut other, &mut [&mut green], 10);
    assert_eq!(green.term.remotes().clusters.len(), 0);
    let (record, _) = &other.records["uid-green"];
    assert!(record.accepted.is_empty() && !record.leaving && record.epoch == epoch + 1);
    assert!(other.departed.is_empty(), "not before the new one can be read");
    pass(&mut other, &mut [&mut green], 60);
    let former = Member { clusterset: "prod".into(), cluster: "green".into() };
    assert_eq!(other.departed, [former]);
    assert!(other.records["uid-green"].0.former.is_empty());
    assert_eq!(other.read("green"), Some(Map::clone(&state(0..3, 1))));
}

#[test]
fn a_former_clusterset_that_cannot_be_left_keeps_no_cluster_in_another_one() {
    let mut world = World::default();
    let member = |clusterset: &str| Member { clusterset: clusterset.to_owned(), cluster: "green".to_owned() };
    let former = vec![member("denied"), member("test"), member("dev")];
    let record = Record { member: Some(member("prod")), former, ..Record::default() };
    world.records.insert("uid-green".into(), (record, 1));
    let mut green = Process::elect(&mut world, "green");
    green.fails = |call| matches!(call, Call::Depart { from } if from.clusterset == "denied");
    green.desire(&mut world, &state(0..3, 1));
    pass(&mut world, &mut [&mut green], 300);
    assert_eq!(world.departed, [member("test"), member("dev")]);
    assert_eq!(world.records["uid-green"].0.former, [member("denied")]);
}

#[test]
fn where_as_many_clusters_are_known_as_there_may_be_another_one_waits_until_one_is_forgotten() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 3);
    let known = |n| (format!("c-{n}"), Accepted::unread(format!("uid-{n}"), None));
    let record = Record { accepted: (0..MAX_CLUSTERS).map(known).collect(), ..Record::default() };
    world.records.insert("uid-green".into(), (record, 1));
    let mut green = Process::elect(&mut world, "green");
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    assert!(green.remote("blue").is_none());
    assert!(green.term.reader().ignored()["blue"].contains("cloudmap-mcs forget"));
    let (record, version) = world.records.get_mut("uid-green").unwrap();
    assert_eq!(record.accepted.len(), MAX_CLUSTERS);
    record.accepted.get_mut("c-7").unwrap().gone = Some(Gone::Forgotten);
    *version += 1;
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    assert_eq!(green.applies("blue"), Some(state(0..3, 1)));
}

#[test]
fn a_state_beyond_the_limits_says_so_until_it_fits() {
    let mut world = World::default();
    let mut blue = Process::elect(&mut world, "blue");
    let small = state(0..3, 1);
    let mut large = Map::clone(&small);
    large.insert("ns/large".into(), Value::from([1; 3_000]));
    let large = Arc::new(large);
    blue.desire(&mut world, &small);
    pass(&mut world, &mut [&mut blue], 5);
    for fits in [small, state(0..4, 2)] {
        assert_eq!(blue.term.error(), None);
        blue.desire(&mut world, &large);
        for _ in 0..60 {
            // The last state that fitted is published again and again meanwhile.
            pass(&mut world, &mut [&mut blue], 1);
            let error = blue.term.error();
            assert!(error.is_some_and(|error| error.contains("ns/large takes 3000 bytes")), "{error:?}");
        }
        blue.desire(&mut world, &fits);
        assert_eq!(blue.term.error(), None, "also where it is the one that is published");
        pass(&mut world, &mut [&mut blue], 5);
        assert_eq!(world.read("blue"), Some(Map::clone(&fits)));
    }
}
