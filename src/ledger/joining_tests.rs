use proptest::prelude::*;

use super::*;

fn key(id: &str) -> PublicKey {
    PublicKey::from_bytes([id.as_bytes()[0]; 32])
}

fn ids(ids: &str) -> BTreeSet<Arc<str>> {
    ids.split_whitespace().map(Into::into).collect()
}

/// A ClusterSet in which each cluster says whom it approves: `a: b c` has joined and wants to approve; `s? b` has not joined;
/// `s! b` has not joined and wants to approve; `t= -b` wants no approvals, and rejects b. They are as old as they are
/// listed, the oldest first.
fn world(text: &str) -> BTreeMap<Arc<str>, Voter> {
    let of = |(age, line): (usize, &str)| {
        let (id, said) = line.trim().split_at(1);
        let (how, said) = said.split_at(1);
        let (rejected, approved): (Vec<&str>, Vec<&str>) = said.split_whitespace().partition(|id| id.starts_with('-'));
        let ballot = Ballot {
            joined: !["?", "!"].contains(&how),
            demands: [":", "!"].contains(&how),
            approved: approved.into_iter().map(|id| (id.into(), (format!("uid-{id}"), key(id)))).collect(),
            rejected: rejected.into_iter().map(|id| id[1..].into()).collect(),
        };
        let created = 1_000 + i64::try_from(age).unwrap();
        let (uid, key) = (format!("uid-{id}"), Some(key(id)));
        (id.into(), Voter { uid, key, created, ballot: Some(ballot), silent: false })
    };
    text.split(';').filter(|line| !line.trim().is_empty()).enumerate().map(of).collect()
}

/// The standing of the youngest cluster `n`, which has accepted all that are listed.
fn standing(accepted: &str, unaccepted: &str, join: Join, joined: bool) -> Standing {
    let unaccepted = ids(unaccepted);
    let keys = [key("n")];
    judge(&Facts {
        me: ("n", "uid-n"),
        keys: &keys,
        created: 9_000,
        join,
        joined,
        heads_read: true,
        accepted: &world(accepted),
        unaccepted: &unaccepted,
    })
}

fn waits(accept: &str, approval: &str) -> Standing {
    Standing::Waits { unread: BTreeSet::new(), accept: ids(accept), approval: ids(approval) }
}

#[test]
fn who_is_approved_by_every_member_registers_and_who_is_not_waits_for_those_that_miss() {
    use Join::{Approve, Tofu};
    for (accepted, unaccepted, join, expected) in [
        // The first cluster of all.
        ("", "", Approve, Standing::Joined),
        ("", "", Tofu, Standing::Joined),
        // Nobody wants to approve, or nobody knows of approvals (an earlier version).
        ("a=; b?", "", Tofu, Standing::Joined),
        ("a?; b?", "", Approve, Standing::Joined),
        ("a!; b?", "", Tofu, Standing::Joined),
        // One, two, all.
        ("a: b; b: a", "", Tofu, waits("", "a b")),
        ("a: b n; b: a", "", Approve, waits("", "b")),
        ("a: b n; b: a n", "", Approve, Standing::Joined),
        // A stranger has no veto, whether it is accepted here or not, and whomever it approves.
        ("a: b n; b: a n; s:", "", Tofu, Standing::Joined),
        ("a: b n; b: a n; s: t; t: s", "", Tofu, Standing::Joined),
        ("a: b n; b: a n; s: -n", "", Tofu, Standing::Joined),
        ("a: b n; b: a n; s? -n", "", Tofu, Standing::Joined),
        ("a: b n; b: a n", "s", Approve, Standing::Joined),
        // One that a member approves comes, too. It has to know this cluster, if its people know newcomers one by one.
        ("a: b n s; b: a n; s:", "", Approve, waits("", "s")),
        ("a: b n s; b: a n; s!", "", Tofu, waits("", "s")),
        ("a: b n s; b: a n; s! n", "", Approve, Standing::Joined),
        ("a: b n s; b: a n; s?", "", Approve, Standing::Joined),
        ("a: b n s; b: a n", "s", Approve, waits("s", "")),
        // A member that this cluster has not accepted has claims of which it knows nothing.
        ("a: b n", "b", Approve, waits("b", "")),
        ("", "a b", Approve, waits("a b", "")),
        ("", "a b", Tofu, Standing::Joined),
        // Members reject it.
        ("a: b n; b: a -n", "", Approve, Standing::Rejected { by: ids("b") }),
        ("t= -n", "", Tofu, Standing::Rejected { by: ids("t") }),
    ] {
        assert_eq!(standing(accepted, unaccepted, join, false), expected, "{accepted:?} {unaccepted:?} {join:?}");
    }
}

#[test]
fn who_has_joined_goes_on_until_an_older_member_rejects_it() {
    for (accepted, expected) in [
        // An approval that is not there any more, because a record was lost, drives nobody out.
        ("a:; b:", Standing::Joined),
        ("a: b; b: a -n", Standing::Rejected { by: ids("b") }),
        // One whom the older ones do not approve has no say.
        ("a:; b: -n", Standing::Joined),
        ("a? -n", Standing::Joined),
    ] {
        assert_eq!(standing(accepted, "", Join::Approve, true), expected, "{accepted:?}");
    }
    // A younger one, and one of which nobody knows how old it is.
    for created in [9_001, 0] {
        let mut accepted = world("a: -n");
        accepted.get_mut("a").unwrap().created = created;
        let (me, join, unaccepted) = (("n", "uid-n"), Join::Approve, BTreeSet::new());
        let facts = Facts {
            me,
            keys: &[],
            created: 9_000,
            join,
            joined: true,
            heads_read: true,
            accepted: &accepted,
            unaccepted: &unaccepted,
        };
        assert_eq!(judge(&facts), Standing::Joined, "{created}");
    }
}

#[test]
fn another_uid_or_key_is_another_cluster_and_a_key_that_was_rotated_is_not() {
    let accepted = world("a: n");
    let unaccepted = BTreeSet::new();
    let of = |uid, keys: &[PublicKey]| {
        let (me, join) = (("n", uid), Join::Tofu);
        let facts = Facts {
            me,
            keys,
            created: 0,
            join,
            joined: false,
            heads_read: true,
            accepted: &accepted,
            unaccepted: &unaccepted,
        };
        judge(&facts)
    };
    assert_eq!(of("uid-n", &[key("n")]), Standing::Joined);
    assert_eq!(of("uid-n", &[key("x"), key("n")]), Standing::Joined, "rotated");
    assert_eq!(of("uid-x", &[key("n")]), waits("", "a"));
    assert_eq!(of("uid-n", &[key("x")]), waits("", "a"));
}

#[test]
fn a_member_that_cannot_be_read_is_waited_for_unless_nobody_asks_for_approvals() {
    let mut accepted = world("a: n; b?");
    for id in ["a", "b"] {
        let voter = accepted.get_mut(id).unwrap();
        (voter.ballot, voter.silent) = (None, true);
    }
    let (unaccepted, keys) = (BTreeSet::new(), [key("n")]);
    let of = |join, accepted: &BTreeMap<Arc<str>, Voter>| {
        let me = ("n", "uid-n");
        judge(&Facts {
            me,
            keys: &keys,
            created: 0,
            join,
            joined: false,
            heads_read: true,
            accepted,
            unaccepted: &unaccepted,
        })
    };
    assert!(matches!(of(Join::Approve, &accepted), Standing::Waits { unread, .. } if unread == ids("a b")));
    assert_eq!(of(Join::Tofu, &accepted), Standing::Joined);
    accepted.get_mut("b").unwrap().silent = false;
    assert!(matches!(of(Join::Tofu, &accepted), Standing::Waits { unread, .. } if unread == ids("b")));
}

#[test]
fn what_a_cluster_says_is_read_as_it_was_written_and_nothing_is_said_without_need() {
    let accepted = |gone, id: &str| Accepted { gone, ..Accepted::unread(format!("uid-{id}"), Some(key(id))) };
    let record: BTreeMap<String, Accepted> = [
        ("b".to_owned(), accepted(None, "b")),
        ("c".to_owned(), accepted(Some(Gone::Rejected), "c")),
        ("d".to_owned(), accepted(Some(Gone::Left), "d")),
        ("e".to_owned(), accepted(Some(Gone::Forgotten), "e")),
        ("f".to_owned(), Accepted::unread("uid-f".to_owned(), None)),
    ]
    .into();
    let ballot = Ballot::of_record(Join::Approve, true, &record);
    assert_eq!((ballot.joined, ballot.demands, &ballot.rejected), (true, true, &ids("c")));
    assert_eq!(ballot.approved.keys().cloned().collect::<BTreeSet<_>>(), ids("b"));
    let empty = Arc::new(Map::new());
    let written = ballot.write(empty.clone(), "a");
    assert_eq!(Ballot::read(&written, "a"), ballot);
    assert_eq!(without(written), empty);
    let silent = Ballot::of_record(Join::Tofu, true, &BTreeMap::new());
    assert!(Arc::ptr_eq(&silent.write(empty.clone(), "a"), &empty));
    let waits = Ballot::of_record(Join::Approve, false, &record);
    assert_eq!((waits.joined, waits.demands), (false, true), "not joined yet");
    assert_eq!(Ballot::read(&waits.write(empty.clone(), "a"), "a"), waits);
    let rejects = Ballot::of_record(Join::Tofu, true, &record);
    assert_eq!((rejects.joined, rejects.demands), (true, false), "it rejects somebody");
}

#[test]
fn what_a_cluster_waits_for_is_said_with_the_command_for_it() {
    let key = key("n");
    let text = waits("b", "a").text("n", Some(&key)).unwrap();
    for part in [format!("trust accept n --key {key}"), "by: a.".to_owned(), "here yet: b.".to_owned()] {
        assert!(text.contains(&part), "{text}");
    }
    let text = Standing::Rejected { by: ids("a") }.text("n", Some(&key)).unwrap();
    assert!(text.contains("cluster a rejected it") && text.contains("trust reject"), "{text}");
    assert_eq!(Standing::Joined.text("n", None), None);
}

/// Who approves whom among six clusters, who has joined, and who wants to approve.
fn ballots() -> impl Strategy<Value = BTreeMap<Arc<str>, Voter>> {
    let names = ["a", "b", "c", "d", "e", "f"];
    let one = (any::<[bool; 2]>(), prop::collection::vec(0..3u8, names.len()), 0..4i64);
    prop::collection::vec(one, names.len()).prop_map(move |all| {
        let voter = |(id, ([joined, demands], said, created)): (&str, ([bool; 2], Vec<u8>, i64))| {
            let of = |wanted: u8| names.iter().zip(&said).filter(move |(_, said)| **said == wanted).map(|(id, _)| *id);
            let approved = of(1).map(|id| (id.into(), (format!("uid-{id}"), key(id)))).collect();
            let ballot = Ballot { joined, demands, approved, rejected: of(2).map(Into::into).collect() };
            let (uid, key) = (format!("uid-{id}"), Some(key(id)));
            (id.into(), Voter { uid, key, created, ballot: Some(ballot), silent: false })
        };
        names.into_iter().zip(all).map(voter).collect()
    })
}

/// Two members that want to approve, `a` and `b`, and two newcomers that have accepted both. Each sees late what the
/// others say.
#[derive(Debug)]
struct Joining {
    join: [Join; 4],
    accepted: [BTreeSet<usize>; 4],
    joined: [bool; 4],
    /// All that each has said, and how much of it each has seen.
    said: [Vec<Ballot>; 4],
    seen: [[usize; 4]; 4],
}

const NAMES: [&str; 4] = ["a", "b", "x", "y"];

/// What administrators accept, and what the newcomers see.
const ACCEPTS: [(usize, usize); 6] = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (3, 2)];
const SEES: [(usize, usize); 6] = [(2, 0), (2, 1), (2, 3), (3, 0), (3, 1), (3, 2)];

impl Joining {
    fn new(newcomers: [Join; 2]) -> Self {
        let join = [Join::Approve, Join::Approve, newcomers[0], newcomers[1]];
        let mut accepted = [[1].into(), [0].into(), [0, 1].into(), [0, 1].into()];
        for (of, other) in [(2, 3), (3, 2)] {
            if join[of] == Join::Tofu {
                accepted[of] = [0, 1, other].into();
            }
        }
        let joined = [true, true, false, false];
        let mut joining = Self { join, accepted, joined, said: Default::default(), seen: [[0; 4]; 4] };
        (0..4).for_each(|of| joining.say(of));
        joining
    }

    fn say(&mut self, of: usize) {
        let unread = |other: &usize| Accepted::unread(format!("uid-{}", NAMES[*other]), Some(key(NAMES[*other])));
        let record = self.accepted[of].iter().map(|other| (NAMES[*other].to_owned(), unread(other))).collect();
        self.said[of].push(Ballot::of_record(self.join[of], self.joined[of], &record));
    }

    fn judge(&mut self, of: usize) {
        let voter = |&other: &usize| {
            let ballot = Some(self.said[other][self.seen[of][other]].clone());
            let (uid, key) = (format!("uid-{}", NAMES[other]), Some(key(NAMES[other])));
            let created = 1_000 + i64::try_from(other).unwrap();
            (NAMES[other].into(), Voter { uid, key, created, ballot, silent: false })
        };
        let others = (0..4).filter(|other| *other != of && !self.accepted[of].contains(other));
        let (accepted, unaccepted) =
            (self.accepted[of].iter().map(voter).collect(), others.map(|other| NAMES[other].into()).collect());
        let (uid, keys) = (format!("uid-{}", NAMES[of]), [key(NAMES[of])]);
        let facts = Facts {
            me: (NAMES[of], &uid),
            keys: &keys,
            created: 1_000 + i64::try_from(of).unwrap(),
            join: self.join[of],
            joined: self.joined[of],
            heads_read: true,
            accepted: &accepted,
            unaccepted: &unaccepted,
        };
        self.joined[of] |= judge(&facts).is_joined();
    }

    fn step(&mut self, step: usize) {
        if let Some(&(of, other)) = ACCEPTS.get(step) {
            self.accepted[of].insert(other);
            self.say(of);
        } else {
            let (of, other) = SEES[step - ACCEPTS.len()];
            self.seen[of][other] = self.said[other].len() - 1;
            self.judge(of);
            self.say(of);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// Whatever the administrators do first, and however late each cluster sees what the others say.
    #[test]
    fn of_two_newcomers_that_have_joined_each_has_accepted_the_other(
        approve in any::<[bool; 2]>(),
        steps in prop::collection::vec(0..ACCEPTS.len() + SEES.len(), 0..40),
    ) {
        let mut world = Joining::new(approve.map(|approve| if approve { Join::Approve } else { Join::Tofu }));
        for step in steps {
            world.step(step);
            if world.joined[2] && world.joined[3] {
                prop_assert!(world.accepted[2].contains(&3) && world.accepted[3].contains(&2), "{world:?}");
            }
        }
    }
}

proptest! {
    /// Nobody's standing among the older ones changes because of what a younger one says.
    #[test]
    fn a_younger_cluster_has_no_say_about_an_older_one(all in ballots(), other in ballots(), from in 0..4i64) {
        let mut changed = all.clone();
        for (id, voter) in &mut changed {
            if age(voter.created) >= age(from) {
                voter.ballot = other[id].ballot.clone();
            }
        }
        let older = |members: BTreeSet<Arc<str>>| -> BTreeSet<Arc<str>> {
            members.into_iter().filter(|id| age(all[id].created) < age(from)).collect()
        };
        prop_assert_eq!(older(members(&all)), older(members(&changed)));
    }

    /// Two members that both want to approve know each other: the younger one was approved by the older one.
    #[test]
    fn of_two_members_the_older_one_approves_the_younger_one(all in ballots()) {
        let members = members(&all);
        let position = |id: &Arc<str>| (age(all[id].created), id.clone());
        for one in &members {
            for other in members.iter().filter(|other| position(one) < position(other)) {
                let ballot = all[one].ballot.as_ref().unwrap();
                prop_assert!(!ballot.demands || ballot.approved.contains_key(other));
                prop_assert!(!ballot.rejected.contains(other));
            }
        }
    }

    /// Nor without that of every newcomer whom a member approves.
    #[test]
    fn nobody_joins_without_the_approval_of_every_member(all in ballots(), join in prop::bool::ANY) {
        let join = if join { Join::Approve } else { Join::Tofu };
        let (me, unaccepted, keys) = (("f", "uid-f"), BTreeSet::new(), [key("f")]);
        let mut others = all;
        others.remove("f");
        let facts =
            Facts { me, keys: &keys, created: 0, join, joined: false, heads_read: true, accepted: &others, unaccepted: &unaccepted };
        let approves = |id: &Arc<str>| {
            let ballot = others[id].ballot.as_ref().unwrap();
            !ballot.demands || ballot.approved.contains_key("f")
        };
        let members = members(&others);
        let ballot = |id: &Arc<str>| others[id].ballot.as_ref().unwrap();
        let rejected = members.iter().any(|id| ballot(id).rejected.contains("f"));
        let demanding: Vec<_> = members.iter().filter(|id| ballot(id).demands).collect();
        let comes = |id: &Arc<str>| {
            let approved = demanding.iter().any(|member| ballot(member).approved.contains_key(id));
            approved || demanding.is_empty() && join == Join::Approve
        };
        let known = others.keys().filter(|id| members.contains(*id) || comes(id));
        prop_assert_eq!(judge(&facts).is_joined(), !rejected && known.into_iter().all(approves));
    }
}
