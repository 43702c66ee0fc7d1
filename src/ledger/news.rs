//! What became of other clusters, for the people who answer for the ClusterSet: who joined, whose key counts, who is gone. Pure.

use std::{collections::BTreeMap, fmt};

use crate::record::{Accepted, Gone};
use model::PublicKey;

/// One thing that became of another cluster, as the record of this one has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// Id of the other cluster.
    pub cluster: String,
    /// Its UID.
    pub uid: String,
    /// What it is.
    pub what: What,
}

/// What became of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// It is accepted for the first time, or again after it was gone: what it exports is imported from now on. With the key that
    /// is pinned, if heads are signed.
    Accepted(Option<PublicKey>),
    /// Another key is pinned for it than before.
    Pinned {
        /// The key that counted; `None` if its heads were not signed.
        before: Option<PublicKey>,
        /// The one that counts now.
        now: PublicKey,
    },
    /// It said that it left.
    Left,
    /// A person said that it is gone for good, here or in another cluster.
    Forgotten,
    /// A person said here that it is no member, whatever it says.
    Rejected,
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, uid, what } = self;
        match what {
            What::Accepted(key) => {
                write!(f, "Cluster {cluster} (UID {uid}")?;
                match key {
                    Some(key) => write!(f, ", key {key}")?,
                    None => f.write_str(", without a key")?,
                }
                write!(
                    f,
                    ") is accepted as a member of the ClusterSet: what it exports is imported, and its claims to names count. If \
                     nobody added this cluster, follow docs/trust.md, \"A role or a key was stolen\"."
                )
            }
            What::Pinned { before, now } => {
                write!(f, "The key {now} of cluster {cluster} (UID {uid}) counts from now on")?;
                match before {
                    Some(before) => write!(f, ", and its key {before} never again.")?,
                    None => f.write_str(". Until now, its heads were not signed.")?,
                }
                write!(
                    f,
                    " Either its key was rotated (trust rotate), or somebody accepted the key here (trust accept)."
                )
            }
            What::Left => write!(f, "Cluster {cluster} (UID {uid}) left the ClusterSet: what it exported is dropped."),
            What::Rejected => write!(
                f,
                "Somebody rejected cluster {cluster} (trust reject): what it exports and claims counts here no more. Do the same in                  the other clusters."
            ),
            What::Forgotten => write!(
                f,
                "Somebody said that cluster {cluster} (UID {uid}) is gone for good (forget), here or in another cluster: what it \
                 exported is dropped."
            ),
        }
    }
}

/// What became of other clusters between two contents of the record.
pub fn between(before: &BTreeMap<String, Accepted>, after: &BTreeMap<String, Accepted>) -> Vec<News> {
    let news = after.iter().filter_map(|(cluster, now)| {
        let what = what(before.get(cluster), now)?;
        Some(News { cluster: cluster.clone(), uid: now.uid.clone(), what })
    });
    news.collect()
}

fn what(before: Option<&Accepted>, now: &Accepted) -> Option<What> {
    let before = before.filter(|before| before.uid == now.uid);
    let was = before.and_then(|before| before.gone).filter(|gone| gone.is_left());
    match now.gone {
        Some(Gone::Forgotten) => (was != now.gone).then_some(What::Forgotten),
        Some(Gone::Rejected) => (was != now.gone).then_some(What::Rejected),
        // One that nobody here has ever read did not leave for anybody.
        Some(Gone::Left) => before.filter(|_| was.is_none()).map(|_| What::Left),
        Some(Gone::Expired) | None => {
            if now.is_member() && !before.is_some_and(Accepted::is_member) {
                return Some(What::Accepted(now.key));
            }
            let (before, now) = (before.filter(|before| before.key != now.key)?.key, now.key?);
            Some(What::Pinned { before, now })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Position;

    fn key(n: u8) -> PublicKey {
        PublicKey::from_bytes([n; 32])
    }

    fn accepted(epoch: u64, n: Option<u8>, gone: Option<Gone>) -> Accepted {
        let position = Position { epoch, seq: epoch };
        Accepted { position, gone, ..Accepted::unread("uid-blue".to_owned(), n.map(key)) }
    }

    fn of(before: Option<Accepted>, now: Accepted) -> Option<What> {
        let map = |accepted: Option<Accepted>| accepted.map(|it| ("blue".to_owned(), it)).into_iter().collect();
        between(&map(before), &map(Some(now))).pop().map(|news| news.what)
    }

    #[test]
    fn each_change_of_a_member_is_said_once_and_a_heartbeat_is_none() {
        let live = |n| accepted(1, Some(n), None);
        let (left, forgotten) = (Some(Gone::Left), Some(Gone::Forgotten));
        assert_eq!(of(None, live(1)), Some(What::Accepted(Some(key(1)))));
        assert_eq!(of(None, accepted(1, None, None)), Some(What::Accepted(None)));
        assert_eq!(of(Some(live(1)), accepted(2, Some(1), None)), None);
        assert_eq!(of(Some(live(1)), accepted(1, Some(1), Some(Gone::Expired))), None);
        assert_eq!(of(Some(live(1)), live(2)), Some(What::Pinned { before: Some(key(1)), now: key(2) }));
        assert_eq!(of(Some(accepted(1, None, None)), live(2)), Some(What::Pinned { before: None, now: key(2) }));
        assert_eq!(of(Some(live(1)), accepted(2, Some(1), left)), Some(What::Left));
        assert_eq!(of(None, accepted(2, Some(1), left)), None, "nobody here knew it");
        assert_eq!(of(Some(live(1)), accepted(2, Some(1), forgotten)), Some(What::Forgotten));
        assert_eq!(of(Some(accepted(2, Some(1), forgotten)), accepted(3, Some(1), forgotten)), None);
        let rejected = Some(Gone::Rejected);
        assert_eq!(of(Some(live(1)), accepted(1, Some(1), rejected)), Some(What::Rejected));
        assert_eq!(of(None, accepted(0, None, rejected)), Some(What::Rejected), "before it was ever read");
        assert_eq!(of(Some(accepted(2, Some(1), left)), live(1)), Some(What::Accepted(Some(key(1)))), "it is back");
        let other = Accepted { uid: "uid-other".to_owned(), ..live(1) };
        assert_eq!(of(Some(live(1)), other), Some(What::Accepted(Some(key(1)))), "another cluster has the id");
    }

    #[test]
    fn a_key_that_a_person_accepts_is_said_and_its_cluster_when_it_was_read() {
        let unread = Accepted::unread("uid-blue".to_owned(), Some(key(2)));
        let before = accepted(7, Some(1), None);
        assert_eq!(of(Some(before), unread.clone()), Some(What::Pinned { before: Some(key(1)), now: key(2) }));
        assert_eq!(of(None, unread.clone()), None, "it is no member before it was read");
        assert_eq!(of(Some(unread), accepted(1, Some(2), None)), Some(What::Accepted(Some(key(2)))));
    }

    #[test]
    fn what_is_said_names_the_cluster_its_uid_its_keys_and_what_to_do() {
        let text = |what| News { cluster: "blue".to_owned(), uid: "uid-blue".to_owned(), what }.to_string();
        let joined = text(What::Accepted(Some(key(1))));
        for part in ["blue", "uid-blue", &key(1).to_string(), "docs/trust.md"] {
            assert!(joined.contains(part), "{joined}");
        }
        let pinned = text(What::Pinned { before: Some(key(1)), now: key(2) });
        assert!(pinned.contains(&key(1).to_string()) && pinned.contains(&key(2).to_string()), "{pinned}");
        assert!(joined.len() < 1_024 && pinned.len() < 1_024, "an Event has room for 1,024 bytes");
    }
}
