//! R9: nobody speaks for a cluster without its key, takes it back, or ends its epochs.

use super::*;
use crate::{
    head::Presence,
    record::{Accepted, Gone},
    trust::Mode,
    writer::Stage,
};
use model::PublicKey;

pub(super) const MALLORY: PublicKey = PublicKey::from_bytes([66; 32]);

pub(super) fn key(n: u8) -> PublicKey {
    PublicKey::from_bytes([n; 32])
}

pub(super) fn tofu(own: impl IntoIterator<Item = u8>) -> Trust {
    Trust { mode: Mode::Tofu, own: own.into_iter().map(key).collect(), ..Trust::default() }
}

pub(super) fn elect(world: &mut World, cluster: &str, trust: Trust) -> Process {
    elect_as(world, cluster, &format!("uid-{cluster}"), trust)
}

pub(super) fn elect_as(world: &mut World, cluster: &str, uid: &str, trust: Trust) -> Process {
    let me = WriterIdentity { clusterset: "prod".into(), cluster: cluster.into(), uid: uid.into() };
    Process::start_at(world, uid.into(), me, &timing(), limits(), None, trust)
}

/// A cluster that signs, and one that has read its state.
pub(super) fn pair(world: &mut World) -> [Process; 2] {
    let mut blue = elect(world, "blue", tofu([1]));
    let mut green = elect(world, "green", tofu([2]));
    blue.desire(world, &state(0..5, 1));
    green.desire(world, &state(0..1, 1));
    pass(world, &mut [&mut blue, &mut green], 30);
    assert_eq!(green.applies("blue"), Some(state(0..5, 1)));
    [blue, green]
}

/// Somebody writes a head of `cluster` with another position, another state and this key.
pub(super) fn forge(world: &mut World, cluster: &str, position: Position, signer: Option<PublicKey>) {
    let (delta, delta_of) = (Map::new(), state(90..93, 9));
    let delta = Arc::new(crate::head::Delta::between(&delta, &delta_of, 0));
    let head = Head { position, delta, signer, ..Head::clone(&world.heads[cluster]) };
    // It is at odds with itself in nothing.
    world.heads.insert(cluster.into(), Arc::new(head.clone()));
    let means = Arc::new(world.read(cluster).unwrap());
    world.heads.insert(cluster.into(), Arc::new(of_state(head, &means)));
}

pub(super) fn says(process: &Process, cluster: &str, word: &str) -> bool {
    process.term.reader().ignored().get(cluster).is_some_and(|why| why.contains(word))
}

pub(super) fn pin(world: &World, of: &str, cluster: &str) -> Option<PublicKey> {
    world.records[of].0.accepted.get(cluster)?.key
}

#[test]
fn what_somebody_else_signs_or_nobody_is_not_believed_and_moves_no_position() {
    for signer in [Some(MALLORY), Some(key(2)), None] {
        let mut world = World::default();
        let [mut blue, mut green] = pair(&mut world);
        let position = |green: &Process| green.term.reader().figures()["blue"].position;
        let before = position(&green);
        forge(&mut world, "blue", at(1 << 60, 1), signer);
        // Of that epoch nobody must be left behind, also not in the record.
        pass(&mut world, &mut [&mut green], 120);
        assert_eq!(green.applies("blue"), Some(state(0..5, 1)));
        assert_eq!(position(&green), before);
        assert!(says(&green, "blue", &key(1).to_string()), "{:?}", green.term.reader().ignored());
        blue.desire(&mut world, &state(0..5, 2));
        pass(&mut world, &mut [&mut blue, &mut green], 3);
        assert_eq!(green.applies("blue"), Some(state(0..5, 2)));
        assert!(!green.term.remotes().clusters[&"blue".parse().unwrap()].left);
    }
}

#[test]
fn nobody_else_can_say_that_a_cluster_left() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world);
    let head = Head { presence: Presence::Left { successor: None }, ..Head::clone(&world.heads["blue"]) };
    world.heads.insert("blue".into(), Arc::new(Head { position: at(99, 1), signer: Some(MALLORY), ..head }));
    pass(&mut world, &mut [&mut green], 60);
    assert!(!green.remote("blue").unwrap().left);
    pass(&mut world, &mut [&mut blue, &mut green], 30);
    assert_eq!(green.applies("blue"), Some(state(0..5, 1)));
}

#[test]
fn a_forged_own_head_neither_ends_an_epoch_nor_raises_it() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world);
    let epoch = world.epoch("uid-blue");
    for signer in [Some(MALLORY), None] {
        forge(&mut world, "blue", at(epoch + 3, 7), signer);
        pass(&mut world, &mut [&mut blue, &mut green], 30);
        assert_eq!((blue.term.writer().stage(), blue.term.writer().epoch()), (Stage::Running, epoch));
        assert_eq!(world.heads["blue"].signer, Some(key(1)));
    }
    // A new leader goes on from what the cluster signed, and one above it.
    drop(blue);
    let genuine = world.heads["blue"].clone();
    forge(&mut world, "blue", at(epoch + 3, 7), Some(MALLORY));
    let mut blue = elect(&mut world, "blue", tofu([1]));
    pass(&mut world, &mut [&mut blue], 5);
    world.heads.insert("blue".into(), genuine);
    pass(&mut world, &mut [&mut blue], 5);
    assert_eq!((blue.term.writer().epoch(), blue.term.own().cloned()), (epoch + 1, Some(state(0..5, 1))));
}

#[test]
fn a_head_of_another_uid_under_the_own_id_ends_no_epoch_unless_the_id_is_taken() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world);
    let epoch = world.epoch("uid-blue");
    let head = Head {
        uid: "uid-mallory".into(),
        position: at(9, 1),
        signer: Some(MALLORY),
        ..Head::clone(&world.heads["blue"])
    };
    world.heads.insert("blue".into(), Arc::new(head.clone()));
    pass(&mut world, &mut [&mut blue, &mut green], 3);
    assert_eq!((blue.term.writer().stage(), blue.term.writer().epoch()), (Stage::Running, epoch));
    assert_eq!(green.applies("blue"), Some(state(0..5, 1)));
    // The ledger was purged, and another cluster claimed the id.
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    world.creators.insert(("blue".into(), 0), "uid-mallory".into());
    world.heads.insert("blue".into(), Arc::new(head));
    pass(&mut world, &mut [&mut blue], 1);
    assert_eq!(blue.term.writer().stage(), Stage::Refused { owner: "uid-mallory".to_owned() });
}

#[test]
fn who_repeats_what_a_cluster_said_does_not_take_it_back() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world);
    let mut old = Vec::new();
    for value in 2..6 {
        blue.desire(&mut world, &state(0..5, value));
        pass(&mut world, &mut [&mut blue, &mut green], 3);
        old.push(world.heads["blue"].clone());
    }
    // The cluster is cut off, and a former process of the reader does not help either.
    drop(blue);
    for restarted in [false, true] {
        if restarted {
            green = elect(&mut world, "green", tofu([2]));
        }
        for head in &old[..3] {
            world.heads.insert("blue".into(), head.clone());
            pass(&mut world, &mut [&mut green], 60);
        }
        assert!(green.applies("blue").is_none_or(|applied| applied == state(0..5, 5)));
        assert!(!green.remote("blue").unwrap().left);
    }
}

#[test]
fn a_cluster_that_lost_its_record_comes_back_with_its_key() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world);
    for _ in 0..3 {
        blue = elect(&mut world, "blue", tofu([1]));
        blue.desire(&mut world, &state(0..5, 2));
        pass(&mut world, &mut [&mut blue, &mut green], 5);
    }
    drop(blue);
    // Registry and record are gone: the next epoch is below.
    world.records.remove("uid-blue");
    world.heads.remove("blue");
    world.pages.retain(|(cluster, _), _| **cluster != *"blue");
    let mut blue = elect(&mut world, "blue", tofu([1]));
    blue.desire(&mut world, &state(0..5, 3));
    pass(&mut world, &mut [&mut blue, &mut green], 200);
    assert_eq!(green.applies("blue"), Some(state(0..5, 3)));
}

#[test]
fn the_first_key_must_be_announced_where_only_the_cluster_should_write() {
    let mut world = World::default();
    let mut blue = elect(&mut world, "blue", tofu([1]));
    blue.desire(&mut world, &state(0..5, 1));
    pass(&mut world, &mut [&mut blue], 30);
    let genuine = world.heads["blue"].clone();
    let mut green = elect(&mut world, "green", tofu([2]));
    for signer in [Some(MALLORY), None] {
        forge(&mut world, "blue", at(7, 7), signer);
        pass(&mut world, &mut [&mut green], 60);
        assert!(green.remote("blue").is_none() && says(&green, "blue", "does not announce"));
    }
    world.heads.insert("blue".into(), genuine);
    pass(&mut world, &mut [&mut blue, &mut green], 3);
    assert_eq!((green.applies("blue"), pin(&world, "uid-green", "blue")), (Some(state(0..5, 1)), Some(key(1))));
}

/// The record of a cluster has the key of the last head that counted, also when that key was taken out of the ConfigMap since.
#[test]
fn a_key_that_is_not_pinned_any_more_may_not_connect() {
    let mut world = World::default();
    drop(pair(&mut world));
    for (pinned, may) in [(1, true), (7, false)] {
        let pinned = BTreeMap::from([(Arc::from("blue"), BTreeSet::from([key(pinned)]))]);
        let mut green = elect(&mut world, "green", Trust { mode: Mode::Pinned, pinned, ..tofu([2]) });
        pass(&mut world, &mut [&mut green], 5);
        assert_eq!(green.term.may_connect().contains(&key(1)), may);
    }
}

/// Otherwise the log and the Events would say it again each time.
#[test]
fn why_a_head_is_ignored_is_said_also_while_its_key_is_asked_for_again() {
    let mut world = World::default();
    let [blue, mut green] = pair(&mut world);
    drop(blue);
    forge(&mut world, "blue", at(9, 9), Some(MALLORY));
    pass(&mut world, &mut [&mut green], 5);
    for _ in 0..120 {
        assert!(says(&green, "blue", "did not hand over"));
        pass(&mut world, &mut [&mut green], 1);
    }
}

#[test]
fn a_new_key_counts_if_the_old_one_handed_over_and_the_old_one_never_again() {
    let mut world = World::default();
    let [blue, mut green] = pair(&mut world);
    drop(blue);
    let old = world.heads["blue"].clone();
    let mut blue = elect(&mut world, "blue", tofu([3, 1]));
    blue.desire(&mut world, &state(0..5, 2));
    pass(&mut world, &mut [&mut blue, &mut green], 15);
    assert_eq!((green.applies("blue"), pin(&world, "uid-green", "blue")), (Some(state(0..5, 2)), Some(key(3))));
    // It continues from what it said with the old key.
    assert_eq!(blue.term.own().cloned(), Some(state(0..5, 1)));
    let position = at(old.position.epoch + 5, 1);
    world.heads.insert("blue".into(), Arc::new(Head { position, written: u64::MAX, ..Head::clone(&old) }));
    pass(&mut world, &mut [&mut green], 100);
    assert_eq!(green.applies("blue"), Some(state(0..5, 2)));
    // After a restart, too.
    let mut green = elect(&mut world, "green", tofu([2]));
    pass(&mut world, &mut [&mut green], 100);
    assert!(says(&green, "blue", "did not hand over"));
    // From the copy.
    assert_eq!(green.applies("blue"), Some(state(0..5, 2)));
}

/// `cloudmap-mcs trust rotate` asks for it: of a key before the one before, no head would be this cluster's.
#[test]
fn the_record_has_the_key_of_the_last_own_head_and_another_one_only_when_a_head_of_it_was_read_back() {
    let mut world = World::default();
    let [blue, _green] = pair(&mut world);
    let signs = |world: &World| world.records["uid-blue"].0.signs;
    assert_eq!(signs(&world), Some(key(1)));
    drop(blue);
    let mut blue = elect(&mut world, "blue", tofu([3, 1]));
    blue.hangs = is_head;
    blue.desire(&mut world, &state(0..5, 2));
    pass(&mut world, &mut [&mut blue], 15);
    assert_eq!((signs(&world), world.heads["blue"].signer), (Some(key(1)), Some(key(1))));
    blue.let_go(&mut world);
    pass(&mut world, &mut [&mut blue], 3);
    assert_eq!((signs(&world), world.heads["blue"].signer), (Some(key(3)), Some(key(3))));
}

#[test]
fn a_rebuilt_cluster_counts_when_a_person_accepted_its_key() {
    let mut world = World::default();
    let [blue, mut green] = pair(&mut world);
    drop(blue);
    world.creators.retain(|(cluster, _), _| **cluster != *"blue");
    world.pages.retain(|(cluster, _), _| **cluster != *"blue");
    let mut blue = elect_as(&mut world, "blue", "uid-rebuilt", tofu([5]));
    blue.desire(&mut world, &state(0..5, 5));
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    assert_eq!(green.applies("blue"), Some(state(0..5, 1)));
    assert!(says(&green, "blue", "cloudmap-mcs trust accept blue"));
    let (record, version) = world.records.get_mut("uid-green").unwrap();
    let accepted = Accepted::unread("uid-rebuilt".to_owned(), Some(key(5)));
    record.accepted.insert("blue".to_owned(), accepted);
    *version += 1;
    pass(&mut world, &mut [&mut blue, &mut green], 15);
    assert_eq!(green.applies("blue"), Some(state(0..5, 5)));
}

#[test]
fn a_record_that_somebody_deleted_is_put_back_at_once_with_keys_and_who_is_gone() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world);
    let (record, version) = world.records.get_mut("uid-green").unwrap();
    let gone = Accepted { gone: Some(Gone::Forgotten), ..Accepted::unread("uid-red".to_owned(), Some(key(3))) };
    record.accepted.insert("red".to_owned(), gone);
    *version += 1;
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    let (before, _) = world.records.remove("uid-green").unwrap();
    assert_eq!(before.accepted["blue"].key, Some(key(1)));
    pass(&mut world, &mut [&mut blue, &mut green], 10);
    assert_eq!(world.records["uid-green"].0, before);
    assert!(green.remote("red").unwrap().left);
}

#[test]
fn a_cluster_that_does_not_sign_counts_until_it_does() {
    let mut world = World::default();
    let mut blue = Process::elect(&mut world, "blue");
    let mut green = elect(&mut world, "green", tofu([2]));
    blue.desire(&mut world, &state(0..5, 1));
    pass(&mut world, &mut [&mut blue, &mut green], 5);
    assert_eq!((green.applies("blue"), pin(&world, "uid-green", "blue")), (Some(state(0..5, 1)), None));
    let mut blue = elect(&mut world, "blue", tofu([1]));
    blue.desire(&mut world, &state(0..5, 2));
    pass(&mut world, &mut [&mut blue, &mut green], 60);
    assert_eq!((green.applies("blue"), pin(&world, "uid-green", "blue")), (Some(state(0..5, 2)), Some(key(1))));
    // It went on from what it had said without a key; what nobody signs later is not its own.
    assert_eq!(blue.term.own().cloned(), Some(state(0..5, 1)));
    let mut blue = elect(&mut world, "blue", tofu([1]));
    pass(&mut world, &mut [&mut blue], 5);
    let epoch = world.epoch("uid-blue");
    forge(&mut world, "blue", at(epoch + 1, 1), None);
    pass(&mut world, &mut [&mut blue], 5);
    assert_eq!(blue.term.writer().epoch(), epoch);
}

/// Such as leaders that run out of memory before they publish anything.
#[test]
fn leaders_that_end_before_they_sign_leave_the_last_head_to_their_cluster() {
    let mut world = World::default();
    // It signs, then it does not for a while, and then it begins to sign again.
    for value in [1, 2] {
        let mut blue = elect(&mut world, "blue", Trust::default());
        blue.desire(&mut world, &state(0..5, value));
        pass(&mut world, &mut [&mut blue], 30);
        for _ in 0..3 {
            let mut blue = elect(&mut world, "blue", tofu([1]));
            pass(&mut world, &mut [&mut blue], 5);
        }
        let mut blue = elect(&mut world, "blue", tofu([1]));
        pass(&mut world, &mut [&mut blue], 30);
        assert_eq!(blue.term.own().cloned(), Some(state(0..5, value)));
        blue.desire(&mut world, &state(0..5, value));
        pass(&mut world, &mut [&mut blue], 30);
        assert_eq!(world.records["uid-blue"].0.signs, Some(key(1)));
    }
}

#[test]
fn where_keys_are_told_no_other_counts() {
    let mut world = World::default();
    let pinned = BTreeMap::from([("blue".into(), BTreeSet::from([key(1), key(4)]))]);
    let mut blue = elect(&mut world, "blue", tofu([1]));
    let mut red = elect(&mut world, "red", tofu([3]));
    let mut green = elect(&mut world, "green", Trust { mode: Mode::Pinned, pinned, ..tofu([2]) });
    blue.desire(&mut world, &state(0..5, 1));
    red.desire(&mut world, &state(0..5, 3));
    pass(&mut world, &mut [&mut blue, &mut red, &mut green], 30);
    assert_eq!(green.applies("blue"), Some(state(0..5, 1)));
    assert!(green.remote("red").is_none() && says(&green, "red", "no key is pinned"));
    forge(&mut world, "blue", at(9, 9), Some(MALLORY));
    pass(&mut world, &mut [&mut green], 30);
    assert_eq!(green.applies("blue"), Some(state(0..5, 1)));
}

#[test]
fn who_is_open_believes_what_anybody_writes() {
    let mut world = World::default();
    let mut blue = elect(&mut world, "blue", tofu([1]));
    let mut green = Process::elect(&mut world, "green");
    blue.desire(&mut world, &state(0..5, 1));
    pass(&mut world, &mut [&mut blue, &mut green], 30);
    forge(&mut world, "blue", at(9, 9), None);
    pass(&mut world, &mut [&mut green], 3);
    assert_eq!((green.applies("blue").map(|map| map.len()), pin(&world, "uid-green", "blue")), (Some(8), None));
}

/// What `cloudmap-mcs forget` does in a cluster.
pub(super) fn forget(world: &mut World, uid: &str, cluster: &str) {
    let (record, version) = world.records.get_mut(uid).unwrap();
    record.accepted.get_mut(cluster).unwrap().gone = Some(Gone::Forgotten);
    *version += 1;
}

#[test]
fn a_dead_cluster_is_forgotten_where_a_person_says_so_and_elsewhere_when_it_is_stale_there() {
    let mut world = World::default();
    let [blue, mut green] = pair(&mut world);
    let mut red = elect(&mut world, "red", tofu([3]));
    red.desire(&mut world, &state(0..1, 1));
    pass(&mut world, &mut [&mut green, &mut red], 30);
    assert_eq!(red.applies("blue"), Some(state(0..5, 1)));
    drop(blue);
    forget(&mut world, "uid-green", "blue");
    pass(&mut world, &mut [&mut green, &mut red], 20);
    let left = |process: &Process| process.remote("blue").is_some_and(|remote| remote.left);
    // Its last head is still there, and is not stale by the clock of the other one.
    assert!(left(&green) && !left(&red), "{:?}", red.remote("blue"));
    pass(&mut world, &mut [&mut green, &mut red], 330);
    assert!(left(&green) && left(&red));
    // It stays so for the next leaders.
    let mut green = elect(&mut world, "green", tofu([2]));
    let mut red = elect(&mut world, "red", tofu([3]));
    pass(&mut world, &mut [&mut green, &mut red], 30);
    assert!(left(&green) && left(&red));
    // They hand the rest on alone, or a cluster could never leave that once said it.
    assert_eq!(green.term.own().cloned(), Some(state(0..1, 1)));
    // It was not dead, only away.
    let mut blue = elect(&mut world, "blue", tofu([1]));
    blue.desire(&mut world, &state(0..5, 2));
    green.desire(&mut world, &state(0..1, 1));
    pass(&mut world, &mut [&mut blue, &mut green, &mut red], 30);
    assert_eq!((green.applies("blue"), red.applies("blue")), (Some(state(0..5, 2)), Some(state(0..5, 2))));
    assert!(!world.read("green").unwrap().keys().any(|key| key.starts_with('^')));
}

#[test]
fn a_cluster_that_lives_cannot_be_forgotten_by_others() {
    let mut world = World::default();
    let [mut blue, mut green] = pair(&mut world);
    let mut red = elect(&mut world, "red", tofu([3]));
    pass(&mut world, &mut [&mut blue, &mut red], 30);
    forget(&mut world, "uid-green", "blue");
    for _ in 0..400 {
        pass(&mut world, &mut [&mut blue, &mut green, &mut red], 1);
        assert!(red.applies("blue").is_some());
    }
    assert!(green.applies("blue").is_some());
}
