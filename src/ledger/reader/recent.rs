//! The last states of a cluster that came by stream: the newest one, and what leads back from it to those before.
//!
//! Heads are behind the stream while a cluster changes. A head that has the hash of one of these states needs no pages. The
//! hash alone would not do: claims are judged by what the ledger has (I11), and where the stream ends, that state is shown and
//! the next delta adds to it. But nobody needs that state as long as no head has its hash. So only the pairs in which it
//! differs from the next one are kept, and its memory does not grow with the size of the state.

use std::{collections::VecDeque, sync::Arc};

use super::budget::{added, cost};
use crate::{Map, Value, diff::Diff, hash::Hashes};

/// As many as come within a minute with a change a second.
const MOST: usize = 64;

/// Those that no head had yet, from the one on that a head had last.
#[derive(Debug, Default)]
pub(super) struct Recent {
    newest: Option<Newest>,
    /// Those before, the oldest first.
    former: VecDeque<Former>,
}

#[derive(Debug)]
struct Newest {
    hashes: Hashes,
    map: Arc<Map>,
    /// What it takes beside the state that applies, in bytes.
    bytes: usize,
}

#[derive(Debug)]
struct Former {
    hashes: Hashes,
    /// What it has for each key in which the next one differs.
    differs: Box<[(Arc<str>, Option<Value>)]>,
    /// What these take.
    bytes: usize,
}

impl Recent {
    /// Takes the next state, unless it is the newest one already. `diff` may say how it came from that, and `applied` shares memory with it.
    pub(super) fn push(
        &mut self,
        hashes: Hashes,
        map: &Arc<Map>,
        diff: Option<&Arc<Diff>>,
        applied: Option<&Arc<Map>>,
    ) -> bool {
        if self.newest.as_ref().is_some_and(|newest| newest.hashes == hashes) {
            return false;
        }
        let bytes = added(applied, map);
        if let Some(before) = self.newest.replace(Newest { hashes, map: map.clone(), bytes }) {
            let diff = Diff::or_between(diff, &before.map, map);
            let differs: Box<[_]> = diff.changed().iter().map(|pair| (pair.key.clone(), pair.was.clone())).collect();
            let nothing = Value::default();
            let bytes = differs.iter().map(|(key, was)| cost(key, was.as_ref().unwrap_or(&nothing))).sum();
            self.former.push_back(Former { hashes: before.hashes, differs, bytes });
        }
        if self.len() > MOST {
            self.former.pop_front();
        }
        true
    }

    /// How many states are known.
    pub(super) fn len(&self) -> usize {
        self.former.len() + usize::from(self.newest.is_some())
    }

    /// The oldest state with these hashes, and its place.
    pub(super) fn find(&self, hashes: Hashes) -> Option<(usize, Arc<Map>)> {
        let newest = self.newest.as_ref()?;
        let at = self.former.iter().position(|former| former.hashes == hashes);
        let at = at.or_else(|| (newest.hashes == hashes).then_some(self.former.len()))?;
        let mut map = newest.map.clone();
        for (key, was) in self.former.range(at..).rev().flat_map(|former| &former.differs) {
            let map = Arc::make_mut(&mut map);
            match was {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        Some((at, map))
    }

    /// A head has the state at this place: forgets those before.
    pub(super) fn reached(&mut self, at: usize, state: &Arc<Map>) {
        self.former.drain(..at);
        if let Some(newest) = &mut self.newest {
            newest.bytes = added(Some(state), &newest.map);
        }
    }

    /// Forgets all but the newest.
    pub(super) fn forget_former(&mut self) {
        self.former = VecDeque::new();
    }

    /// What all of them take beside the state that applies, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let newest = self.newest.as_ref().map_or(0, |newest| newest.bytes);
        newest + self.former.iter().map(|former| former.bytes).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::writer::WriterIdentity;

    fn hashes(map: &Arc<Map>) -> Hashes {
        let owner = WriterIdentity { clusterset: "prod".into(), cluster: "blue".into(), uid: "uid-blue".into() };
        Hashes::of(&owner, map)
    }

    fn push(recent: &mut Recent, map: &Arc<Map>) -> bool {
        recent.push(hashes(map), map, None, None)
    }

    #[test]
    fn a_former_state_takes_what_changed_however_large_it_is() {
        let former_bytes = |pairs: u32| {
            let pair = |n: u32| (format!("k/{n:06}").into(), Value::from(n.to_be_bytes()));
            let mut map: Arc<Map> = Arc::new((0..pairs).map(pair).collect());
            let (mut recent, mut before) = (Recent::default(), Vec::new());
            for n in 0..20 {
                push(&mut recent, &map);
                before.push((hashes(&map), Arc::downgrade(&map)));
                let mut next = Map::clone(&map);
                next.insert("k/000007".into(), Value::from([n; 4]));
                map = Arc::new(next);
            }
            push(&mut recent, &map);
            assert!(before.iter().all(|(_, map)| map.upgrade().is_none()), "no former map is in memory");
            let bytes = recent.former.iter().map(|former| former.bytes).sum::<usize>();
            let (at, tenth) = recent.find(before[10].0).unwrap();
            recent.reached(at, &tenth);
            assert_eq!((hashes(&tenth), recent.len()), (before[10].0, 11));
            bytes
        };
        assert_eq!(former_bytes(20_000), former_bytes(20));
        assert!(former_bytes(20) < 20 * 100);
    }

    #[test]
    fn there_are_never_more_than_some() {
        let mut recent = Recent::default();
        for n in 0..200u8 {
            let map = Arc::new(Map::from([("a".into(), Value::from([n]))]));
            assert!(push(&mut recent, &map) && !push(&mut recent, &map), "the same state is there already");
        }
        assert_eq!(recent.len(), MOST);
        recent.forget_former();
        assert_eq!(recent.len(), 1);
    }

    proptest! {
        /// Whatever changes, and whichever heads come.
        #[test]
        fn each_state_that_is_reached_is_what_came(
            states in prop::collection::vec(prop::collection::btree_map(0..12u8, 0..3u8, 0..12), 1..20),
            heads in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
        ) {
            let map = |state: &std::collections::BTreeMap<u8, u8>| -> Arc<Map> {
                Arc::new(state.iter().map(|(key, value)| (format!("k/{key}").into(), Value::from([*value]))).collect())
            };
            let states: Vec<_> = states.iter().map(map).collect();
            let mut recent = Recent::default();
            for state in &states {
                push(&mut recent, state);
            }
            let mut heads: Vec<_> = heads.iter().map(|head| head.index(states.len())).collect();
            heads.sort_unstable();
            for head in heads {
                // A state may have come several times; then an earlier one was meant.
                if let Some((at, found)) = recent.find(hashes(&states[head])) {
                    prop_assert_eq!(&found, &states[head]);
                    recent.reached(at, &found);
                }
            }
            let last = states.last().unwrap();
            let found = recent.find(hashes(last)).map(|(_, found)| found);
            prop_assert_eq!(found.as_ref(), Some(last));
        }
    }
}
