//! Who may register (J1 to J5): what members say of each other in their states, and what follows for this cluster. Pure.
//!
//! | key | value |
//! |---|---|
//! | `+<own id>` | whether this cluster has joined, and whether newcomers need its approval |
//! | `+<cluster id>` | the cluster with this UID and key is approved, or rejected |

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

use prost::Message as _;

use super::{Map, Value, records::capped, wire};
use crate::{
    ledger::record::{Accepted, Gone},
    model::PublicKey,
};

/// Begins the key of such a statement; the id of the cluster follows.
const PREFIX: char = '+';

/// Whether a new cluster needs the word of an administrator of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Join {
    /// No: the first use of its key is trusted (see `--trust`).
    #[default]
    Tofu,
    /// Yes: `cloudmap-mcs trust accept`.
    Approve,
}

/// What a cluster says of who may join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ballot {
    /// Whether it has joined itself.
    pub joined: bool,
    /// Whether newcomers need its approval.
    pub demands: bool,
    /// Whom it approves: UID and key by cluster id.
    pub approved: BTreeMap<Arc<str>, (String, PublicKey)>,
    /// Whom it rejects.
    pub rejected: BTreeSet<Arc<str>>,
}

impl Ballot {
    /// What the cluster `own` says in its state.
    pub fn read(map: &Map, own: &str) -> Self {
        let mut ballot = Self::default();
        let said = map.range_from("+").map_while(|(key, value)| Some((cluster_of(key)?, value)));
        for (cluster, value) in said {
            let Some(said) = capped(value).and_then(|value| wire::Vote::decode(value).ok()) else { continue };
            let key = <[u8; 32]>::try_from(said.key.as_slice()).map(PublicKey::from_bytes);
            if cluster == own {
                (ballot.joined, ballot.demands) = (!said.waits, said.demands);
            } else if said.rejected {
                ballot.rejected.insert(cluster.into());
            } else if let Ok(key) = key {
                ballot.approved.insert(cluster.into(), (said.uid, key));
            }
        }
        ballot
    }

    /// What a cluster says according to its record. Without a need for approvals, and without anybody who is rejected, it says
    /// nothing.
    pub(super) fn of_record(join: Join, joined: bool, accepted: &BTreeMap<String, Accepted>) -> Self {
        let demands = join == Join::Approve;
        let of = |wanted: fn(&Accepted) -> bool| accepted.iter().filter(move |(_, it)| wanted(it));
        let rejected: BTreeSet<Arc<str>> =
            of(|it| it.gone == Some(Gone::Rejected)).map(|(id, _)| id.as_str().into()).collect();
        let member = of(|it| !it.gone.is_some_and(Gone::is_left)).filter(|_| demands);
        let approved = member.filter_map(|(id, it)| Some((id.as_str().into(), (it.uid.clone(), it.key?))));
        let joined = joined && (demands || !rejected.is_empty());
        Self { joined, demands, approved: approved.collect(), rejected }
    }

    /// `map` with it, as the state of the cluster `own`.
    pub(super) fn write(&self, map: Arc<Map>, own: &str) -> Arc<Map> {
        let said = |cluster: &str, vote: wire::Vote| -> (Arc<str>, Value) {
            (format!("{PREFIX}{cluster}").into(), vote.encode_to_vec().into())
        };
        let vote = wire::Vote { demands: self.demands, waits: !self.joined, ..wire::Vote::default() };
        let own = (self.joined || self.demands).then(|| said(own, vote));
        let approved = self.approved.iter().map(|(id, (uid, key))| {
            said(id, wire::Vote { uid: uid.clone(), key: key.as_ref().to_vec(), ..wire::Vote::default() })
        });
        let rejected = self.rejected.iter().map(|id| said(id, wire::Vote { rejected: true, ..wire::Vote::default() }));
        let all: Vec<_> = approved.chain(rejected).chain(own).collect();
        if all.is_empty() {
            return map;
        }
        let mut map = Map::clone(&map);
        map.extend(all);
        Arc::new(map)
    }

    fn approves(&self, cluster: &str, uid: &str, keys: &[PublicKey]) -> bool {
        self.approved.get(cluster).is_some_and(|(of, key)| of == uid && keys.contains(key))
    }
}

/// The id of the cluster, if this is the key of such a statement.
pub fn cluster_of(key: &str) -> Option<&str> {
    key.strip_prefix(PREFIX)
}

/// `map` without such statements. A leader says again what its record says.
pub(super) fn without(map: Arc<Map>) -> Arc<Map> {
    if map.range_from("+").next().is_none_or(|(key, _)| cluster_of(key).is_none()) {
        return map;
    }
    let rest = map.iter().filter(|(key, _)| cluster_of(key).is_none());
    Arc::new(rest.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// A cluster that this one has accepted, and that neither left nor is gone for good. Also one that is silent: what it said last
/// counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voter {
    /// Its UID.
    pub uid: String,
    /// Its key.
    pub key: Option<PublicKey>,
    /// Since when it is in the ledger, in seconds since 1970; 0 if that is not known.
    pub created: i64,
    /// What it says; `None` if its state was not read (yet).
    pub ballot: Option<Ballot>,
    /// Whether it has been silent for long.
    pub silent: bool,
}

/// Everything on which the standing of this cluster depends.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Its id and UID.
    pub me: (&'a str, &'a str),
    /// Its keys: the current one, and the one before.
    pub keys: &'a [PublicKey],
    /// Since when it is in the ledger, in seconds since 1970; 0 if that is not known.
    pub created: i64,
    /// Whether newcomers need the word of its administrators.
    pub join: Join,
    /// Whether it had joined before.
    pub joined: bool,
    /// Whether the heads were read in this term, and for each it is known whether it counts.
    pub heads_read: bool,
    /// Those that it has accepted.
    pub accepted: &'a BTreeMap<Arc<str>, Voter>,
    /// Those with a live head that it has neither accepted nor rejected.
    pub unaccepted: &'a BTreeSet<Arc<str>>,
}

/// Whether this cluster may register, and if not, what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It has joined.
    Joined,
    /// It waits, and registers nothing.
    Waits {
        /// Clusters that have not been read yet. They may be members.
        unread: BTreeSet<Arc<str>>,
        /// Members and newcomers that this cluster has not accepted: it knows nothing of their claims.
        accept: BTreeSet<Arc<str>>,
        /// Members and newcomers that have not approved this cluster: they know nothing of its claims.
        approval: BTreeSet<Arc<str>>,
    },
    /// Members rejected it.
    Rejected {
        /// Which.
        by: BTreeSet<Arc<str>>,
    },
}

impl Standing {
    /// Whether this cluster may register.
    pub fn is_joined(&self) -> bool {
        *self == Self::Joined
    }

    /// Why this cluster, with this id and key, registers nothing, with the remedy; `None` if it may.
    pub fn text(&self, me: &str, key: Option<&PublicKey>) -> Option<String> {
        let names = |ids: &BTreeSet<Arc<str>>| {
            let some: Vec<&str> = ids.iter().take(MAX_NAMED).map(|id| &**id).collect();
            let more = ids.len().saturating_sub(MAX_NAMED);
            if more > 0 { format!("{} and {more} more", some.join(", ")) } else { some.join(", ") }
        };
        let key = key.map_or_else(|| "KEY".to_owned(), ToString::to_string);
        match self {
            Self::Joined => None,
            Self::Rejected { by } => Some(format!(
                "This cluster registers nothing, because cluster {0} rejected it (trust reject). If that is a mistake, run there: \
                 cloudmap-mcs trust accept {me} --key {key}. If {0} speaks for a thief, run here: cloudmap-mcs trust reject CLUSTER.",
                names(by)
            )),
            Self::Waits { unread, accept, approval } => {
                let mut text =
                    "This cluster registers nothing before all members of the ClusterSet know it.".to_owned();
                if !approval.is_empty() {
                    let _ = write!(
                        text,
                        " Not approved yet by: {}. Run there: cloudmap-mcs trust accept {me} --key {key}.",
                        names(approval)
                    );
                }
                if !accept.is_empty() {
                    let _ = write!(
                        text,
                        " Not accepted here yet: {}. Run here, for each: cloudmap-mcs trust accept CLUSTER, or trust reject \
                         CLUSTER if it is a stranger.",
                        names(accept)
                    );
                }
                if !unread.is_empty() {
                    let _ = write!(
                        text,
                        " Not read yet: {}. If one of them is gone for good: cloudmap-mcs forget CLUSTER.",
                        names(unread)
                    );
                } else if accept.is_empty() && approval.is_empty() {
                    text.push_str(" The ledger was not read yet.");
                }
                Some(text)
            }
        }
    }
}

/// How many clusters a text names.
const MAX_NAMED: usize = 5;

/// J2: the members among those that say that they have joined. From the oldest on, by the date that AWS gives and then by id, one
/// is a member if all members before it approve it, if they want to, and none rejects it. So a newcomer has no say about who was
/// there before, and two that approve only each other are no members.
pub fn members(accepted: &BTreeMap<Arc<str>, Voter>) -> BTreeSet<Arc<str>> {
    let joined = |(id, voter)| {
        let voter: &Voter = voter;
        let ballot = voter.ballot.as_ref()?;
        ballot.joined.then_some((id, voter, ballot, ballot.demands))
    };
    let mut by_age: Vec<(&Arc<str>, &Voter, &Ballot, bool)> = accepted.iter().filter_map(joined).collect();
    by_age.sort_by_key(|(id, voter, ..)| (age(voter.created), *id));
    let mut members: Vec<(&Arc<str>, &Ballot, bool)> = Vec::new();
    for (id, voter, ballot, demands) in by_age {
        let key = voter.key.as_slice();
        let agrees = |(_, older, demands): &(&Arc<str>, &Ballot, bool)| {
            !older.rejected.contains(id) && (!demands || older.approves(id, &voter.uid, key))
        };
        if members.iter().all(agrees) {
            members.push((id, ballot, demands));
        }
    }
    members.into_iter().map(|(id, ..)| id.clone()).collect()
}

/// One of which AWS has not said how old it is counts as the youngest.
const fn age(created: i64) -> i64 {
    if created == 0 { i64::MAX } else { created }
}

/// J3 to J5: whether this cluster may register.
pub fn judge(facts: &Facts<'_>) -> Standing {
    let (me, uid) = facts.me;
    let members = members(facts.accepted);
    let voters: Vec<(&Arc<str>, &Voter, &Ballot)> = facts
        .accepted
        .iter()
        .filter(|(id, _)| members.contains(*id))
        .filter_map(|(id, voter)| Some((id, voter, voter.ballot.as_ref()?)))
        .collect();
    // A newcomer drives nobody out who was there before it.
    let counts = |voter: &Voter| !facts.joined || age(voter.created) < age(facts.created);
    let rejecting = voters.iter().filter(|(_, voter, ballot)| ballot.rejected.contains(me) && counts(voter));
    let by: BTreeSet<_> = rejecting.map(|(id, ..)| (*id).clone()).collect();
    if !by.is_empty() {
        return Standing::Rejected { by };
    }
    if facts.joined {
        return Standing::Joined;
    }
    let demanding: Vec<&Ballot> = voters.iter().map(|(.., ballot)| *ballot).filter(|ballot| ballot.demands).collect();
    // Whom a member approves is a member, or will be one. If this cluster knows no member, only its own people can tell.
    // Of two newcomers whose last approvals come at the same time, one may not see the other as a member yet. But one of
    // them sees that a member approves the other.
    let comes = |id: &Arc<str>| match demanding.as_slice() {
        [] => facts.join == Join::Approve,
        some => some.iter().any(|ballot| ballot.approved.contains_key(id)),
    };
    let newcomers = facts.accepted.iter().filter(|(id, _)| !members.contains(*id) && comes(id));
    let newcomers = newcomers.filter_map(|(id, voter)| Some((id, voter.ballot.as_ref()?)));
    let wanted = voters.iter().map(|(id, _, ballot)| (*id, *ballot)).chain(newcomers);
    let missing = wanted.filter(|(_, ballot)| ballot.demands && !ballot.approves(me, uid, facts.keys));
    let approval: BTreeSet<_> = missing.map(|(id, _)| id.clone()).collect();
    let accept: BTreeSet<_> = facts.unaccepted.iter().filter(|id| comes(id)).cloned().collect();
    // A cluster that died and was never read may be a member, too. Where nobody asks for approvals, it delays no one.
    let matters = |voter: &Voter| !voter.silent || facts.join == Join::Approve || !demanding.is_empty();
    let unread = facts.accepted.iter().filter(|(_, voter)| voter.ballot.is_none() && matters(voter));
    let unread: BTreeSet<_> = unread.map(|(id, _)| id.clone()).collect();
    if facts.heads_read && unread.is_empty() && accept.is_empty() && approval.is_empty() {
        Standing::Joined
    } else {
        Standing::Waits { unread, accept, approval }
    }
}

#[cfg(test)]
mod tests {
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
            let (rejected, approved): (Vec<&str>, Vec<&str>) =
                said.split_whitespace().partition(|id| id.starts_with('-'));
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
                let of =
                    |wanted: u8| names.iter().zip(&said).filter(move |(_, said)| **said == wanted).map(|(id, _)| *id);
                let approved = of(1).map(|id| (id.into(), (format!("uid-{id}"), key(id)))).collect();
                let ballot = Ballot { joined, demands, approved, rejected: of(2).map(Into::into).collect() };
                let (uid, key) = (format!("uid-{id}"), Some(key(id)));
                (id.into(), Voter { uid, key, created, ballot: Some(ballot), silent: false })
            };
            names.into_iter().zip(all).map(voter).collect()
        })
    }

    /// Two members that want to approve, `a` and `b`, and two newcomers. Each sees late what the others say.
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

    impl Joining {
        fn new(newcomers: [Join; 2]) -> Self {
            let join = [Join::Approve, Join::Approve, newcomers[0], newcomers[1]];
            let mut accepted: [BTreeSet<usize>; 4] = [[1].into(), [0].into(), BTreeSet::new(), BTreeSet::new()];
            for of in [2, 3] {
                if join[of] == Join::Tofu {
                    accepted[of] = (0..4).filter(|other| *other != of).collect();
                }
            }
            let mut joining = Self {
                join,
                accepted,
                joined: [true, true, false, false],
                said: Default::default(),
                seen: [[0; 4]; 4],
            };
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

        /// `what`: an administrator accepts another cluster, it says what holds now, it sees what another one said, or it
        /// judges.
        fn step(&mut self, what: u8, of: usize, other: usize) {
            match what {
                _ if of == other => {}
                0 => drop(self.accepted[of].insert(other)),
                1 => self.say(of),
                2 => self.seen[of][other] = self.said[other].len() - 1,
                _ => self.judge(of),
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

        /// Whatever the administrators do first, and however late each cluster sees what the others say.
        #[test]
        fn of_two_newcomers_that_have_joined_each_has_accepted_the_other(
            approve in any::<[bool; 2]>(),
            steps in prop::collection::vec((0..4u8, 0..4usize, 0..4usize), 0..300),
        ) {
            let mut world = Joining::new(approve.map(|approve| if approve { Join::Approve } else { Join::Tofu }));
            for (what, of, other) in steps {
                world.step(what, of, other);
                if world.joined[2] && world.joined[3] {
                    prop_assert!(world.accepted[2].contains(&3) && world.accepted[3].contains(&2), "{world:?}");
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
}
