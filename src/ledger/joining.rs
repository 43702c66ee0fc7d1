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

use super::{Map, Value, capped, wire};
use crate::record::{Accepted, Gone};
use model::PublicKey;

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
#[path = "joining_tests.rs"]
mod tests;
