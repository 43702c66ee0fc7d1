//! Hashes of states: what a head says of the state that it means, and what leaders compare over the stream. Pure.
//!
//! The pairs of a state are in 1,024 buckets by the hash of their keys, 32 buckets are a group, and the hashes of the groups are
//! hashed with whose state it is. So a change costs the pairs of its bucket, and not those of the state. It is not a sum over
//! pairs: who may choose a thousand pairs can make the sums of two states equal.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use sha2::{Digest as _, Sha256};

use super::{
    Map, Value, claims,
    codec::Error,
    diff::{Changed, Diff},
    reader::cost,
    tree,
    writer::WriterIdentity,
};
use crate::record::Version;
use base::shared_map::SharedMap;

/// Number of buckets of a state.
pub const BUCKETS: u16 = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 10;
/// Buckets of a group.
const GROUP: u16 = 32;

/// SHA-256 of a state, or of a part of one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StateHash(pub [u8; 32]);

impl StateHash {
    /// Reads what [`Self::0`] was written as.
    ///
    /// # Errors
    /// Another number of bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, Error> {
        bytes.try_into().map(Self).map_err(|_| Error::Malformed("a hash must have 32 bytes"))
    }

    /// Parts with their lengths, so that no two lists of parts are the same message.
    fn of<'a>(context: &'a str, parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in [context.as_bytes()].into_iter().chain(parts) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self(hash.finalize().into())
    }
}

impl fmt::Debug for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The hashes of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Hashes {
    /// Of all pairs.
    pub state: StateHash,
    /// Of its registration records alone, which are the pairs whose keys begin with `!`.
    pub claims: StateHash,
}

impl Hashes {
    /// The hashes of `map` as a state of `owner`.
    pub fn of(owner: &WriterIdentity, map: &Arc<Map>) -> Self {
        let mut hashed = Hashed::new(owner.clone());
        hashed.set(map.clone());
        hashed.hashes()
    }
}

/// What a head says of the state that it means. Of a cluster that left it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Which of the cluster's states it is.
    pub version: Version,
    /// Its hashes. Equal versions have equal hashes.
    pub hashes: Hashes,
}

/// A state with its hashes, at the cost of what changes. Clones share what they have in common.
#[derive(Debug, Clone)]
pub struct Hashed {
    owner: WriterIdentity,
    map: Arc<Map>,
    /// The keys in each bucket that is not empty, sorted.
    keys: Keys,
    pairs: Buckets,
    claims: Buckets,
    hashes: Hashes,
    /// What all pairs take in memory.
    bytes: usize,
}

type Keys = SharedMap<u16, Arc<[Arc<str>]>>;

impl Hashed {
    /// The empty state of a cluster.
    pub fn new(owner: WriterIdentity) -> Self {
        let (map, keys, pairs, claims, hashes, bytes) = Default::default();
        let mut hashed = Self { owner, map, keys, pairs, claims, hashes, bytes };
        hashed.hash();
        hashed
    }

    /// Whose state it is.
    pub fn owner(&self) -> &WriterIdentity {
        &self.owner
    }

    /// The state that was set last.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// The hashes of that state, which [`Self::set`] computed.
    pub const fn hashes(&self) -> Hashes {
        self.hashes
    }

    /// What the state takes in memory, in bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The hashes of the buckets that are not empty.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, StateHash)> {
        self.pairs.buckets.iter().map(|(number, hash)| (*number, *hash))
    }

    /// The keys in a bucket, sorted.
    pub fn keys(&self, bucket: u16) -> &[Arc<str>] {
        self.keys.get(&bucket).map(|keys| &**keys).unwrap_or_default()
    }

    /// Another state of the same cluster. Returns what differs.
    pub fn set(&mut self, map: Arc<Map>) -> Arc<Diff> {
        self.step(map).take()
    }

    /// What would become of another state of the same cluster. Nothing changes before [`Step::take`].
    pub fn step(&mut self, map: Arc<Map>) -> Step<'_> {
        Step { diff: Diff::between(self.map.clone(), map), hashed: self }
    }

    fn follow(&mut self, diff: &Diff) {
        self.map = diff.to().clone();
        let (mut touched, mut claimed) = (BTreeSet::new(), BTreeSet::new());
        let mut moved = BTreeMap::<u16, Vec<&Arc<str>>>::new();
        for Changed { key, was, is } in diff.changed() {
            let number = bucket_of(key);
            touched.insert(number);
            let cost = |value: &Option<Value>| value.as_ref().map_or(0, |value| cost(key, value));
            self.bytes = self.bytes + cost(is) - cost(was);
            if key.starts_with(claims::HOLDS) {
                claimed.insert(number);
            }
            if was.is_some() != is.is_some() {
                moved.entry(number).or_default().push(key);
            }
        }
        for (number, moved) in moved {
            let mut keys = self.keys.get(&number).map(|keys| keys.to_vec()).unwrap_or_default();
            for key in moved {
                match keys.binary_search(key) {
                    Err(place) => keys.insert(place, key.clone()),
                    Ok(place) => drop(keys.remove(place)),
                }
            }
            if keys.is_empty() {
                self.keys.remove(&number);
            } else {
                self.keys.insert(number, keys.into());
            }
        }
        if touched.is_empty() {
            return;
        }
        self.pairs.update(&self.map, &self.keys, &touched, |_| true);
        self.claims.update(&self.map, &self.keys, &claimed, |key| key.starts_with(claims::HOLDS));
        self.hash();
    }

    fn hash(&mut self) {
        self.hashes = Hashes {
            state: self.pairs.hash("cloudmap-mcs state", &self.owner),
            claims: self.claims.hash("cloudmap-mcs claims", &self.owner),
        };
    }
}

/// What leads from a state to another one. It is only for the state that it came from, which cannot change meanwhile.
#[derive(Debug)]
pub struct Step<'a> {
    hashed: &'a mut Hashed,
    diff: Diff,
}

impl Step<'_> {
    /// What differs.
    pub const fn diff(&self) -> &Diff {
        &self.diff
    }

    /// Goes to the other state.
    pub fn take(self) -> Arc<Diff> {
        self.hashed.follow(&self.diff);
        Arc::new(self.diff)
    }
}

/// The bucket of a key.
pub fn bucket_of(key: &str) -> u16 {
    (tree::hash(key) >> (u64::BITS - BUCKET_BITS)) as u16
}

/// The hashes of some pairs of a map. What is empty has a hash of zeros.
#[derive(Debug, Clone, Default)]
struct Buckets {
    buckets: SharedMap<u16, StateHash>,
    groups: SharedMap<u16, StateHash>,
}

impl Buckets {
    /// Hashes the buckets anew in which something changed: the pairs whose keys count.
    fn update(&mut self, map: &Map, keys: &Keys, touched: &BTreeSet<u16>, counts: impl Fn(&str) -> bool) {
        for number in touched {
            let keys = keys.get(number).map(|keys| &**keys).unwrap_or_default();
            let mut keys = keys.iter().filter(|key| counts(key)).peekable();
            if keys.peek().is_none() {
                self.buckets.remove(number);
                continue;
            }
            let pairs = keys.filter_map(|key| Some([key.as_bytes(), map.get(key)?]));
            self.buckets.insert(*number, StateHash::of("cloudmap-mcs bucket", pairs.flatten()));
        }
        for group in touched.iter().map(|number| number / GROUP).collect::<BTreeSet<_>>() {
            let hash = |number| self.buckets.get(&number).copied().unwrap_or_default();
            let hashes: Vec<_> = (group * GROUP..(group + 1) * GROUP).map(hash).collect();
            if hashes.iter().all(|hash| *hash == StateHash::default()) {
                self.groups.remove(&group);
                continue;
            }
            self.groups.insert(group, StateHash::of("cloudmap-mcs group", hashes.iter().map(|hash| &hash.0[..])));
        }
    }

    fn hash(&self, context: &str, owner: &WriterIdentity) -> StateHash {
        let WriterIdentity { clusterset, cluster, uid } = owner;
        let group = |number| self.groups.get(&number).copied().unwrap_or_default();
        let groups: Vec<_> = (0..BUCKETS / GROUP).map(group).collect();
        let whose = [clusterset, cluster, uid].map(|part| part.as_bytes());
        StateHash::of(context, whose.into_iter().chain(groups.iter().map(|hash| &hash.0[..])))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owner(cluster: &str) -> WriterIdentity {
        WriterIdentity { clusterset: "prod".into(), cluster: cluster.into(), uid: format!("uid-{cluster}").into() }
    }

    fn maps() -> impl Strategy<Value = Map> {
        let pair = ("[!~a-c]/?[a-z]{0,2}", prop::collection::vec(any::<u8>(), 0..3));
        prop::collection::vec(pair, 0..40)
            .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.into(), Value::from(value))).collect())
    }

    fn claims(map: &Map) -> Map {
        map.iter().filter(|(key, _)| key.starts_with('!')).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    proptest! {
        #[test]
        fn the_hashes_of_a_state_do_not_depend_on_the_states_before(states in prop::collection::vec(maps(), 1..8)) {
            let mut hashed = Hashed::new(owner("blue"));
            for state in states {
                let state = Arc::new(state);
                hashed.set(state.clone());
                prop_assert_eq!(hashed.hashes(), Hashes::of(&owner("blue"), &state));
                let keys: BTreeSet<_> = hashed.buckets().flat_map(|(bucket, _)| hashed.keys(bucket)).cloned().collect();
                prop_assert_eq!(keys, state.keys().cloned().collect());
            }
        }

        #[test]
        fn other_states_have_other_hashes(one in maps(), two in maps()) {
            let (a, b) = (Hashes::of(&owner("blue"), &Arc::new(one.clone())), Hashes::of(&owner("blue"), &Arc::new(two.clone())));
            prop_assert_eq!(a.state == b.state, one == two);
            prop_assert_eq!(a.claims == b.claims, claims(&one) == claims(&two));
        }

        #[test]
        fn one_changed_value_changes_one_bucket(state in maps(), which in any::<prop::sample::Index>()) {
            prop_assume!(!state.is_empty());
            let mut hashed = Hashed::new(owner("blue"));
            hashed.set(Arc::new(state.clone()));
            let before: BTreeMap<_, _> = hashed.buckets().collect();
            let key = state.keys().nth(which.index(state.len())).unwrap().clone();
            let mut other = state;
            other.insert(key.clone(), Value::from([9; 4]));
            hashed.set(Arc::new(other));
            let changed: Vec<_> = hashed.buckets().filter(|(number, hash)| before[number] != *hash).collect();
            prop_assert_eq!(changed.len(), 1);
            prop_assert_eq!(changed[0].0, bucket_of(&key));
        }
    }

    #[test]
    fn the_same_pairs_of_another_cluster_have_other_hashes() {
        let map = Arc::new(Map::from([("!a".into(), Value::from([1]))]));
        let blue = Hashes::of(&owner("blue"), &map);
        for other in [
            owner("red"),
            WriterIdentity { clusterset: "test".into(), ..owner("blue") },
            WriterIdentity { uid: "uid-red".into(), ..owner("blue") },
        ] {
            let other = Hashes::of(&other, &map);
            assert!(other.state != blue.state && other.claims != blue.claims);
        }
    }

    /// What goes into the hash never changes: clusters of different releases compare it.
    #[test]
    fn a_known_state_has_its_known_hash() {
        let map = Arc::new(Map::from([("!a".into(), Value::from([1])), ("ns/web".into(), Value::from([2, 3]))]));
        let hex = |hash: StateHash| hash.0.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        let hashes = Hashes::of(&owner("blue"), &map);
        assert_eq!(hex(hashes.state), "cd0a4f50ba8f1ca97350a51b89ad4ea270f5d07b4a06fe610ae03425972bf146");
        assert_eq!(hex(hashes.claims), "bb638673704d5d38995079a746b13ca94600476983eaece9bfaf6fc1f71dd1e3");
    }
}
