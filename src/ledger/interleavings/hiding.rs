//! R9 and W4: who hides the head of a cluster, or writes over it, mutes nobody.

use super::{trusting::*, *};
use crate::writer::Stage;

#[test]
fn who_hides_the_head_of_a_cluster_does_not_mute_it() {
    for hides in [true, false] {
        let mut world = World::default();
        let [mut blue, mut green] = pair(&mut world);
        for value in 2..6 {
            for second in 0..60 {
                // At every moment at which somebody looks, the head is forged, or gone.
                if hides {
                    forge(&mut world, "blue", at(1 << 60, second), Some(MALLORY));
                } else {
                    world.heads.remove("blue");
                }
                if second == 30 {
                    blue.desire(&mut world, &state(0..5, value));
                }
                let heads = Some(world.discover());
                let mut hidden = heads.clone();
                hidden.as_mut().unwrap().remove("blue");
                (blue.sees, green.sees) = if hides { (heads.clone(), heads) } else { (hidden.clone(), hidden) };
                pass(&mut world, &mut [&mut blue, &mut green], 1);
            }
            assert_eq!(green.applies("blue"), Some(state(0..5, value)));
            assert_eq!(green.remote("blue").unwrap().stale, None);
        }
    }
}

#[test]
fn a_head_that_is_too_new_to_be_seen_is_copied_once() {
    let mut world = World::default();
    let [blue, mut green] = pair(&mut world);
    drop(blue);
    let mut blue = elect(&mut world, "blue", tofu([1]));
    blue.desire(&mut world, &state(0..5, 1));
    blue.sees = Some(world.discover());
    pass(&mut world, &mut [&mut blue, &mut green], 8);
    blue.sees = None;
    pass(&mut world, &mut [&mut blue, &mut green], 100);
    assert!(world.heads["blue"].position > at(2, 4));
    assert_eq!(world.copies["blue"].position, at(2, 1));
}

#[test]
fn who_hides_the_own_head_from_a_new_leader_does_not_let_it_begin_with_nothing() {
    let mut world = World::default();
    let [blue, mut green] = pair(&mut world);
    drop(blue);
    forge(&mut world, "blue", at(3, 7), Some(MALLORY));
    let mut blue = elect(&mut world, "blue", tofu([1]));
    pass(&mut world, &mut [&mut blue, &mut green], 30);
    assert_eq!(blue.term.own().cloned(), Some(state(0..5, 1)));
}

/// Readers would refuse its heads, and then its states, until they believe that the record was lost.
#[test]
fn who_begins_from_the_copy_of_a_later_epoch_than_its_record_has_is_elected_above_it() {
    let mut world = World::default();
    let [mut blue, green] = pair(&mut world);
    for _ in 0..2 {
        blue = elect(&mut world, "blue", tofu([1]));
        blue.desire(&mut world, &state(0..5, 2));
        pass(&mut world, &mut [&mut blue], 30);
    }
    drop((blue, green));
    let (epoch, sent) = (world.copies["blue"].position.epoch, world.sent.len());
    world.records.remove("uid-blue");
    let mut hidden = world.discover();
    hidden.remove("blue");
    let mut blue = elect(&mut world, "blue", tofu([1]));
    blue.sees = Some(hidden);
    pass(&mut world, &mut [&mut blue], 90);
    assert_eq!((blue.term.writer().stage(), blue.term.writer().epoch()), (Stage::Running, epoch + 1));
    assert_eq!(blue.term.own().cloned(), Some(state(0..5, 2)));
    assert!(world.sent[sent..].iter().all(|head| head.position.epoch > epoch), "nothing below was said");
}

#[test]
fn who_hides_the_last_head_of_a_cluster_that_left_does_not_keep_it_a_member() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world);
    world.set_leaving("uid-blue");
    blue.desire(&mut world, &Arc::default());
    pass(&mut world, &mut [&mut blue], 120);
    assert!(!world.heads["blue"].is_live());
    // Nobody writes it again.
    drop(blue);
    forge(&mut world, "blue", at(1 << 60, 1), Some(MALLORY));
    pass(&mut world, &mut [&mut green], 60);
    assert!(green.remote("blue").unwrap().left);
}

/// A new leader knows the cluster from the record alone. Its claims are somewhere behind the head.
#[test]
fn garbage_over_a_pinned_head_lets_no_claim_pass() {
    for returns in [true, false] {
        let mut world = World::default();
        let [blue, green] = pair(&mut world);
        drop((blue, green));
        world.copies.remove("blue");
        let mut green = elect(&mut world, "green", tofu([2]));
        green.desire(&mut world, &state(0..1, 1));
        let garbage = |world: &World| {
            let mut heads = world.discover();
            heads.insert("blue".into(), Err(crate::codec::Error::Malformed("no data")));
            heads
        };
        for _ in 0..60 {
            green.sees = Some(garbage(&world));
            pass(&mut world, &mut [&mut green], 1);
            assert!(!green.term.remotes().all_live_verified);
        }
        assert!(green.term.reader().ignored().contains_key("blue"));
        if returns {
            green.sees = None;
            pass(&mut world, &mut [&mut green], 5);
            assert_eq!(green.applies("blue"), Some(state(0..5, 1)));
        } else {
            // Who is silent for so long holds up nobody.
            for _ in 0..600 {
                green.sees = Some(garbage(&world));
                pass(&mut world, &mut [&mut green], 1);
            }
            assert!(green.remote("blue").unwrap().stale.is_some());
        }
        assert!(green.term.remotes().all_live_verified);
    }
}

/// Blue, which is navy now and has said so nowhere yet, and a cluster that has read what blue said.
fn renamed(world: &mut World) -> [Process; 2] {
    let [blue, mut green] = pair(world);
    drop(blue);
    let mut navy = elect_as(world, "navy", "uid-blue", tofu([1]));
    navy.desire(world, &state(0..5, 1));
    pass(world, &mut [&mut navy, &mut green], 45);
    [navy, green]
}

/// Readers would go on with what they have of the former id: with its copy, or with its last head from before it signed.
#[test]
fn a_former_id_ends_although_its_head_is_not_signed_by_its_cluster() {
    for signer in [Some(MALLORY), None] {
        let mut world = World::default();
        let [mut navy, mut green] = renamed(&mut world);
        assert!(world.heads.contains_key("navy") && world.heads["blue"].is_live());
        forge(&mut world, "blue", at(1 << 60, 1), signer);
        pass(&mut world, &mut [&mut navy, &mut green], 120);
        assert!(green.remote("blue").unwrap().left, "{:?}", world.heads["blue"]);
        assert_eq!(green.applies("navy"), Some(state(0..5, 1)));
        pass(&mut world, &mut [&mut navy, &mut green], 1_000);
        assert!(!world.heads.contains_key("blue"));
    }
}

#[test]
fn a_head_in_the_name_of_a_cluster_that_somebody_goes_on_writing_is_left_alone() {
    let mut world = World::default();
    let [mut navy, mut green] = renamed(&mut world);
    let epoch = navy.term.writer().epoch();
    for seq in 1..10 {
        forge(&mut world, "blue", at(1 << 60, seq), Some(MALLORY));
        pass(&mut world, &mut [&mut navy, &mut green], 20);
        assert_eq!(world.heads["blue"].signer, Some(MALLORY));
    }
    assert_eq!((navy.term.writer().stage(), navy.term.writer().epoch()), (Stage::Running, epoch));
}

#[test]
fn a_former_id_from_before_its_cluster_signed_ends_under_a_later_leader_too() {
    let mut world = World::default();
    let mut blue = elect(&mut world, "blue", Trust::default());
    blue.desire(&mut world, &state(0..5, 1));
    pass(&mut world, &mut [&mut blue], 30);
    drop(blue);
    for seconds in [45, 120] {
        let mut navy = elect_as(&mut world, "navy", "uid-blue", tofu([1]));
        navy.desire(&mut world, &state(0..5, 1));
        pass(&mut world, &mut [&mut navy], seconds);
        assert!(world.heads.contains_key("navy"));
        assert_eq!(world.heads["blue"].is_live(), seconds == 45);
    }
}
