//! Clusters that say more than there is room for: the largest is refused, and no other is affected.

use super::*;

/// What a pair of [`state`] takes: 6 bytes of key, 8 of value, and 64 besides.
const PAIR: usize = 78;

#[test]
fn the_largest_cluster_is_refused_where_not_all_have_room_and_read_again_when_it_is_smaller() {
    let mut world = World::default();
    let mut blue = with_pages(&mut world, "blue", 15);
    let mut green = with_pages(&mut world, "green", 15);
    let limits = Limits { remote_bytes: 60 * PAIR, ..limits() };
    let mut red = Process::elect_with(&mut world, "red", "uid-red", limits, None);
    pass(&mut world, &mut [&mut blue, &mut green, &mut red], 30);
    assert_eq!(["blue", "green"].map(|other| red.applies(other)), [Some(state(0..15, 1)), Some(state(0..15, 1))]);

    green.desire(&mut world, &state(0..58, 1));
    pass(&mut world, &mut [&mut blue, &mut green, &mut red], 60);
    let refused = red.remote("green").unwrap();
    assert!(
        refused.refused && refused.state.is_none() && !refused.left && !refused.expired,
        "nothing of it is deleted"
    );
    assert!(refused.problem.unwrap().contains("--remote-memory"));
    assert!(red.term.reader().refused().next().is_some_and(|(id, why)| &**id == "green" && why.contains("largest")));
    blue.desire(&mut world, &state(0..16, 2));
    pass(&mut world, &mut [&mut blue, &mut green, &mut red], 5);
    assert_eq!(red.applies("blue"), Some(state(0..16, 2)));
    assert!(red.remote("blue").unwrap().problem.is_none());

    green.desire(&mut world, &state(0..20, 3));
    pass(&mut world, &mut [&mut blue, &mut green, &mut red], 400);
    assert_eq!(red.applies("green"), Some(state(0..20, 3)));
    assert!(!red.remote("green").unwrap().refused && red.term.reader().refused().next().is_none());
}
