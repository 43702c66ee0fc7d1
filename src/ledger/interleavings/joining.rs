//! J1 to J5 and R10: who may join, and since when a cluster is there.

use super::*;
use crate::{
    hash::Hashes,
    joining::{Ballot, Join, Standing, without},
    news::What,
    record::{Accepted, Gone},
    trust::Mode,
};
use model::PublicKey;

fn key(id: &str) -> PublicKey {
    PublicKey::from_bytes([id.as_bytes()[0]; 32])
}

fn elect(world: &mut World, cluster: &str, join: Join) -> Process {
    elect_as(world, cluster, &format!("uid-{cluster}"), key(cluster), join)
}

fn elect_as(world: &mut World, cluster: &str, uid: &str, own: PublicKey, join: Join) -> Process {
    let me = WriterIdentity { clusterset: "prod".into(), cluster: cluster.into(), uid: uid.into() };
    let trust = Trust { mode: Mode::Tofu, join, own: vec![own], ..Trust::default() };
    let mut process = Process::start_at(world, uid.into(), me, &timing(), limits(), None, trust);
    process.desire(world, &state(0..3, cluster.as_bytes()[0]));
    process
}

/// What a person does in the cluster `by`.
fn change(world: &mut World, by: &str, cluster: &str, change: impl FnOnce(Option<&Accepted>) -> Accepted) {
    let (record, version) = world.records.get_mut(&*format!("uid-{by}")).unwrap();
    let accepted = change(record.accepted.get(cluster));
    record.accepted.insert(cluster.to_owned(), accepted);
    *version += 1;
}

/// `trust accept`.
fn accept(world: &mut World, by: &str, cluster: &str) {
    change(world, by, cluster, |_| Accepted::unread(format!("uid-{cluster}"), Some(key(cluster))));
}

/// `trust reject`.
fn reject(world: &mut World, by: &str, cluster: &str) {
    let unread = || Accepted::unread(String::new(), None);
    change(world, by, cluster, |before| Accepted {
        gone: Some(Gone::Rejected),
        ..before.cloned().unwrap_or_else(unread)
    });
}

fn is_joined(process: &Process) -> bool {
    process.term.standing().is_some_and(Standing::is_joined)
}

/// What applies of another cluster, without what it says of others.
fn exports(process: &Process, cluster: &str) -> Option<Arc<Map>> {
    process.applies(cluster).map(without)
}

/// Two members that know each other, and want to approve.
fn members(world: &mut World) -> [Process; 2] {
    let mut a = elect(world, "a", Join::Approve);
    pass(world, &mut [&mut a], 10);
    assert!(is_joined(&a), "it is the first one");
    let mut b = elect(world, "b", Join::Approve);
    world.dates.insert("b".into(), BEGAN + 10);
    pass(world, &mut [&mut a, &mut b], 10);
    assert!(!is_joined(&b));
    accept(world, "a", "b");
    pass(world, &mut [&mut a, &mut b], 10);
    assert!(!is_joined(&b), "it knows nothing of the claims of the other one");
    accept(world, "b", "a");
    pass(world, &mut [&mut a, &mut b], 20);
    assert!(is_joined(&a) && is_joined(&b));
    [a, b]
}

#[test]
fn a_new_cluster_counts_where_a_person_accepted_it_and_joins_when_all_members_did() {
    let mut world = World::default();
    let [mut a, mut b] = members(&mut world);
    let mut n = elect(&mut world, "n", Join::Tofu);
    world.dates.insert("n".into(), BEGAN + 100);
    pass(&mut world, &mut [&mut a, &mut b, &mut n], 60);
    assert!(a.remote("n").is_none() && b.remote("n").is_none() && !is_joined(&n));
    let why = &a.term.reader().ignored()["n"];
    assert!(why.contains(&format!("trust accept n --key {}", key("n"))), "{why}");
    // What the others say reaches it, because it believes whom it sees first.
    assert_eq!(exports(&n, "a"), Some(state(0..3, b'a')));
    accept(&mut world, "a", "n");
    pass(&mut world, &mut [&mut a, &mut b, &mut n], 20);
    assert_eq!((exports(&a, "n"), b.remote("n").is_none(), is_joined(&n)), (Some(state(0..3, b'n')), true, false));
    let barred = n.term.barred().unwrap();
    assert!(barred.contains("by: b."), "{barred}");
    // A member that is down said nothing yet, and does not say it while it is down.
    drop(b);
    pass(&mut world, &mut [&mut a, &mut n], 400);
    assert!(!is_joined(&n));
    let mut b = elect(&mut world, "b", Join::Approve);
    accept(&mut world, "b", "n");
    pass(&mut world, &mut [&mut a, &mut b, &mut n], 30);
    assert!(is_joined(&n) && is_joined(&a) && is_joined(&b));
    // From here on, nobody's silence matters.
    drop((a, b));
    pass(&mut world, &mut [&mut n], 400);
    let mut n = elect(&mut world, "n", Join::Tofu);
    pass(&mut world, &mut [&mut n], 10);
    assert!(is_joined(&n) && !n.term.inherited().unwrap().barred);
}

/// A leader may be told what to publish before it knows its base. Newcomers ask only members.
#[test]
fn a_new_leader_of_a_member_never_says_that_its_cluster_has_not_joined() {
    let mut world = World::default();
    let mut a = elect(&mut world, "a", Join::Approve);
    pass(&mut world, &mut [&mut a], 30);
    assert!(is_joined(&a));
    drop(a);
    let before = world.sent.len();
    let mut a = elect(&mut world, "a", Join::Approve);
    pass(&mut world, &mut [&mut a], 30);
    let me = WriterIdentity { clusterset: "prod".into(), cluster: "a".into(), uid: "uid-a".into() };
    let ballot = Ballot { joined: true, demands: true, ..Ballot::default() };
    let expected = Hashes::of(&me, &ballot.write(state(0..3, b'a'), "a"));
    let said: Vec<_> = world.sent[before..].iter().map(|head| head.summary.hashes).collect();
    assert!(!said.is_empty() && said.iter().all(|said| *said == expected), "{} heads", said.len());
}

#[test]
fn a_stranger_neither_joins_nor_keeps_others_from_it_nor_from_resting() {
    let mut world = World::default();
    let [mut a, mut b] = members(&mut world);
    let mut s = elect(&mut world, "s", Join::Approve);
    world.dates.insert("s".into(), BEGAN + 50);
    pass(&mut world, &mut [&mut a, &mut b, &mut s], 30);
    assert!(!is_joined(&s) && is_joined(&a) && is_joined(&b));
    // It says that it has joined, and rejects everybody.
    for member in ["a", "b", "n"] {
        reject(&mut world, "s", member);
    }
    world.records.get_mut("uid-s").unwrap().0.joined = Some(true);
    drop(s);
    let mut s = elect(&mut world, "s", Join::Approve);
    pass(&mut world, &mut [&mut a, &mut b, &mut s], 30);
    assert!(is_joined(&s) && is_joined(&a) && is_joined(&b), "it believes so itself");
    let mut n = elect(&mut world, "n", Join::Tofu);
    world.dates.insert("n".into(), BEGAN + 100);
    for member in ["a", "b"] {
        accept(&mut world, member, "n");
    }
    pass(&mut world, &mut [&mut a, &mut b, &mut n, &mut s], 60);
    assert!(is_joined(&n), "{:?}", n.term.standing());
    assert!(a.term.reader().is_at_rest(), "{:?}", a.term.reader().ignored());
}

#[test]
fn a_cluster_that_is_rejected_is_dropped_and_registers_nothing_until_it_is_accepted_again() {
    let mut world = World::default();
    let [mut a, mut b] = members(&mut world);
    assert_eq!(exports(&a, "b"), Some(state(0..3, b'b')));
    a.term.take_news();
    reject(&mut world, "a", "b");
    pass(&mut world, &mut [&mut a, &mut b], 20);
    assert!(a.remote("b").unwrap().left && !is_joined(&b) && is_joined(&a));
    assert_eq!(a.term.take_news().into_iter().map(|news| news.what).collect::<Vec<_>>(), [What::Rejected]);
    let barred = b.term.barred().unwrap();
    assert!(barred.contains("cluster a rejected it"), "{barred}");
    // Nothing that it says brings it back, whoever leads.
    drop((a, b));
    let (mut a, mut b) = (elect(&mut world, "a", Join::Approve), elect(&mut world, "b", Join::Approve));
    pass(&mut world, &mut [&mut a, &mut b], 700);
    assert!(a.remote("b").unwrap().left && !is_joined(&b) && b.term.inherited().unwrap().barred);
    accept(&mut world, "a", "b");
    pass(&mut world, &mut [&mut a, &mut b], 30);
    assert_eq!((exports(&a, "b"), is_joined(&b)), (Some(state(0..3, b'b')), true));
}

#[test]
fn a_younger_cluster_drives_no_older_one_out_and_is_rejected_with_trust_on_first_use_too() {
    let mut world = World::default();
    let [mut a, mut b] = members(&mut world);
    reject(&mut world, "b", "a");
    pass(&mut world, &mut [&mut a, &mut b], 30);
    assert!(is_joined(&a) && b.remote("a").unwrap().left);
    let mut world = World::default();
    let (mut a, mut b) = (elect(&mut world, "a", Join::Tofu), elect(&mut world, "b", Join::Tofu));
    world.dates.insert("b".into(), BEGAN + 10);
    pass(&mut world, &mut [&mut a, &mut b], 20);
    assert!(is_joined(&a) && is_joined(&b));
    let says_nothing = |world: &World, id: &str| Ballot::read(&world.read(id).unwrap(), id) == Ballot::default();
    assert!(says_nothing(&world, "a") && says_nothing(&world, "b"), "nobody asks");
    reject(&mut world, "a", "b");
    pass(&mut world, &mut [&mut a, &mut b], 30);
    assert!(a.remote("b").unwrap().left && is_joined(&a) && !is_joined(&b));
}

#[test]
fn members_from_before_the_flag_stay_members_and_a_lost_record_drives_nobody_out() {
    let mut world = World::default();
    let (mut a, mut b) = (elect(&mut world, "a", Join::Tofu), elect(&mut world, "b", Join::Tofu));
    world.dates.insert("b".into(), BEGAN + 10);
    pass(&mut world, &mut [&mut a, &mut b], 30);
    drop((a, b));
    let (mut a, mut b) = (elect(&mut world, "a", Join::Approve), elect(&mut world, "b", Join::Approve));
    pass(&mut world, &mut [&mut a, &mut b], 30);
    assert!(is_joined(&a) && is_joined(&b) && exports(&a, "b").is_some());
    let said = Ballot::read(&world.read("a").unwrap(), "a");
    assert_eq!((said.joined, said.approved.keys().collect::<Vec<_>>()), (true, vec![&Arc::from("b")]));
    // Somebody deletes the record while no leader runs. The own ledger has the approvals.
    drop(a);
    world.records.remove("uid-a");
    let mut a = elect(&mut world, "a", Join::Approve);
    pass(&mut world, &mut [&mut a, &mut b], 60);
    assert!(is_joined(&a) && is_joined(&b));
    assert_eq!(exports(&a, "b"), Some(state(0..3, b'b')));
}

#[test]
fn what_a_stranger_says_last_pins_no_key() {
    let mut world = World::default();
    let mut a = elect(&mut world, "a", Join::Approve);
    let mut s = elect(&mut world, "s", Join::Tofu);
    pass(&mut world, &mut [&mut a, &mut s], 10);
    let live = world.heads["s"].clone();
    drop(s);
    let left = Head { presence: crate::head::Presence::Left { successor: None }, ..Head::clone(&live) };
    world.heads.insert("s".into(), Arc::new(left));
    pass(&mut world, &mut [&mut a], 60);
    assert!(!world.records["uid-a"].0.accepted.contains_key("s"));
    let position = at(live.position.epoch + 1, 1);
    world.heads.insert("s".into(), Arc::new(Head { position, ..Head::clone(&live) }));
    pass(&mut world, &mut [&mut a], 60);
    assert!(a.remote("s").is_none());
}

#[test]
fn a_member_under_another_id_needs_no_approval_and_keeps_its_date() {
    let mut world = World::default();
    let [mut a, b] = members(&mut world);
    drop(b);
    world.dates.insert("navy".into(), BEGAN + 500);
    let mut navy = elect_as(&mut world, "navy", "uid-b", key("b"), Join::Approve);
    pass(&mut world, &mut [&mut a, &mut navy], 120);
    assert!(is_joined(&navy));
    assert_eq!(exports(&a, "navy"), Some(state(0..3, b'n')));
    assert_eq!(a.remote("navy").unwrap().created, BEGAN + 10);
    assert_eq!(navy.term.remotes().own_created, BEGAN + 10);
}

#[test]
fn since_when_a_cluster_is_there_is_asked_once_and_told_by_aws_alone() {
    let mut world = World::default();
    let (mut a, mut b) = (elect(&mut world, "a", Join::Tofu), elect(&mut world, "b", Join::Tofu));
    world.dates.insert("b".into(), BEGAN + 10);
    pass(&mut world, &mut [&mut a, &mut b], 30);
    assert_eq!((a.remote("b").unwrap().created, a.term.remotes().own_created), (BEGAN + 10, BEGAN));
    let accepted = &world.records["uid-a"].0.accepted["b"];
    assert_eq!(accepted.created, BEGAN + 10);
    assert!(accepted.since >= 1_700_000_000_000, "{accepted:?}");
    let since = accepted.since;
    drop(a);
    let mut a = elect(&mut world, "a", Join::Tofu);
    a.hangs = |call| matches!(call, Call::Creator { cluster } if **cluster == *"b");
    pass(&mut world, &mut [&mut a, &mut b], 60);
    assert!(a.hanging.is_empty(), "the record has it");
    assert_eq!((a.remote("b").unwrap().created, world.records["uid-a"].0.accepted["b"].since), (BEGAN + 10, since));
    // A record of an earlier version does not have it. What is known stays meanwhile.
    drop(a);
    world.records.get_mut("uid-a").unwrap().0.accepted.get_mut("b").unwrap().created = 0;
    let mut a = elect(&mut world, "a", Join::Tofu);
    a.hangs = |call| matches!(call, Call::Creator { cluster } if **cluster == *"b");
    pass(&mut world, &mut [&mut a, &mut b], 10);
    assert_eq!((exports(&a, "b"), a.remote("b").unwrap().created), (Some(state(0..3, b'b')), 0));
    assert!(!a.term.reader().ignored().contains_key("b"));
    a.let_go(&mut world);
    pass(&mut world, &mut [&mut a, &mut b], 60);
    assert_eq!(
        (a.remote("b").unwrap().created, world.records["uid-a"].0.accepted["b"].created),
        (BEGAN + 10, BEGAN + 10)
    );
}
