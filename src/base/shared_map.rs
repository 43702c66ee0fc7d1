//! A sorted map whose clones share all that they have in common.
//!
//! A state that is handed from task to task, kept by several of them, and compared with the one before: cloning it costs
//! nothing, a change copies a small part of it, and what differs between two of them is found without looking at the rest.
//!
//! Crates: `rpds` cannot say what differs, and the licence of `imbl` (MPL-2.0) is not one that `deny.toml` allows.

use std::{borrow::Borrow, cmp::Ordering, collections::BTreeMap, fmt, ops::Index, slice, sync::Arc};

/// Most entries of a leaf.
const FULL: usize = 64;

/// Entries that follow each other in the order of their keys: at least one, and never changed.
type Leaf<K, V> = Arc<[(K, V)]>;

/// A sorted map that is cheap to clone. Keys and values are cloned with the leaf that they are in, so they should be cheap
/// to clone as well.
pub struct SharedMap<K, V> {
    leaves: Arc<Vec<Leaf<K, V>>>,
    len: usize,
}

impl<K, V> SharedMap<K, V> {
    /// An empty map.
    pub fn new() -> Self {
        Self { leaves: Arc::default(), len: 0 }
    }

    /// Number of entries.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, in the order of the keys.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { leaf: [].iter(), leaves: self.leaves.iter() }
    }

    /// All keys, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// All values, in the order of the keys.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// The leaf in which a key is, or would be: the last one that begins at the key or before it.
    fn leaf<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.leaves.partition_point(|leaf| leaf[0].0.borrow() <= key).saturating_sub(1)
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let leaf = self.leaves.get(self.leaf(key))?;
        let at = leaf.binary_search_by(|(there, _)| there.borrow().cmp(key)).ok()?;
        Some(&leaf[at].1)
    }

    /// Whether there is an entry with this key.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// The entries from a key on.
    pub fn range_from<Q: Ord + ?Sized>(&self, first: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        let mut leaves = self.leaves[self.leaf(first)..].iter();
        let leaf = leaves.next().map(|leaf| &leaf[leaf.partition_point(|(key, _)| key.borrow() < first)..]);
        Iter { leaf: leaf.unwrap_or_default().iter(), leaves }
    }

    /// What is not the same in `after`, by key: the value here and the value there. What both share is not looked at.
    pub fn difference<'a>(&'a self, after: &'a Self) -> Difference<'a, K, V>
    where
        V: PartialEq,
    {
        Difference { before: self.iter(), after: after.iter() }
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Returns the value that the key had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let at = self.leaf(&key);
        let mut entries = self.leaves.get(at).map(|leaf| leaf.to_vec()).unwrap_or_default();
        let before = match entries.binary_search_by(|(there, _)| there.cmp(&key)) {
            Ok(found) => Some(std::mem::replace(&mut entries[found].1, value)),
            Err(place) => {
                entries.insert(place, (key, value));
                self.len += 1;
                None
            }
        };
        self.put(at, entries);
        before
    }

    /// Returns the value that the key had.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.leaf(key);
        let leaf = self.leaves.get(at)?;
        let found = leaf.binary_search_by(|(there, _)| there.borrow().cmp(key)).ok()?;
        let mut entries = leaf.to_vec();
        let (_, value) = entries.remove(found);
        self.len -= 1;
        self.put(at, entries);
        Some(value)
    }

    /// Puts these entries in the place of a leaf: halved if they are too many, with those of a neighbour if they are few.
    fn put(&mut self, at: usize, mut entries: Vec<(K, V)>) {
        let leaves = Arc::make_mut(&mut self.leaves);
        let mut place = at..(at + 1).min(leaves.len());
        let few = |leaf: &&Leaf<K, V>| entries.len() + leaf.len() <= FULL / 2;
        if let Some(next) = leaves.get(place.end).filter(few) {
            entries.extend_from_slice(next);
            place.end += 1;
        } else if let Some(before) = leaves[..at].last().filter(few) {
            entries.splice(..0, before.iter().cloned());
            place.start -= 1;
        }
        let most = if entries.len() > FULL { entries.len().div_ceil(2) } else { FULL };
        leaves.splice(place, entries.chunks(most).map(Arc::from));
    }
}

/// The entries of a [`SharedMap`].
#[derive(Debug)]
pub struct Iter<'a, K, V> {
    leaf: slice::Iter<'a, (K, V)>,
    leaves: slice::Iter<'a, Leaf<K, V>>,
}

impl<'a, K, V> Iter<'a, K, V> {
    /// The next entry, which is not taken.
    fn peek(&mut self) -> Option<&'a (K, V)> {
        if self.leaf.as_slice().is_empty() {
            self.leaf = self.leaves.next()?.iter();
        }
        self.leaf.as_slice().first()
    }

    /// The next leaf, if none is begun.
    fn next_leaf(&self) -> Option<&'a Leaf<K, V>> {
        self.leaves.as_slice().first().filter(|_| self.leaf.as_slice().is_empty())
    }
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self { leaf: self.leaf.clone(), leaves: self.leaves.clone() }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.peek()?;
        self.leaf.next().map(|(key, value)| (key, value))
    }
}

/// What differs between two maps: key, value before, value after.
#[derive(Debug)]
pub struct Difference<'a, K, V> {
    before: Iter<'a, K, V>,
    after: Iter<'a, K, V>,
}

impl<'a, K: Ord, V: PartialEq> Iterator for Difference<'a, K, V> {
    type Item = (&'a K, Option<&'a V>, Option<&'a V>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            while let (Some(before), Some(after)) = (self.before.next_leaf(), self.after.next_leaf())
                && Arc::ptr_eq(before, after)
            {
                self.before.leaves.next();
                self.after.leaves.next();
            }
            let order = match (self.before.peek(), self.after.peek()) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((before, _)), Some((after, _))) => before.cmp(after),
            };
            let before = if order.is_le() { self.before.next() } else { None };
            let after = if order.is_ge() { self.after.next() } else { None };
            let value = |entry: Option<(_, &'a V)>| entry.map(|(_, value)| value);
            if value(before) != value(after) {
                return Some((before.or(after)?.0, value(before), value(after)));
            }
        }
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> Self {
        Self { leaves: Arc::clone(&self.leaves), len: self.len }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Ord, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.difference(other).next().is_none()
    }
}

impl<K: Ord, V: Eq> Eq for SharedMap<K, V> {}

impl<K: Ord + Borrow<Q>, V, Q: Ord + ?Sized> Index<&Q> for SharedMap<K, V> {
    type Output = V;

    /// # Panics
    /// If there is no such key.
    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("an entry with this key")
    }
}

impl<'a, K, V> IntoIterator for &'a SharedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for SharedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let sorted: Vec<_> = entries.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect();
        Self { len: sorted.len(), leaves: Arc::new(sorted.chunks(FULL).map(Arc::from).collect()) }
    }
}

impl<K: Ord + Clone, V: Clone, const N: usize> From<[(K, V); N]> for SharedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Inserts where there is a value, and removes where there is none.
    fn change(map: &mut SharedMap<u16, u8>, model: &mut BTreeMap<u16, u8>, changes: &[(u16, Option<u8>)]) {
        for (key, value) in changes {
            match value {
                Some(value) => assert_eq!(map.insert(*key, *value), model.insert(*key, *value)),
                None => assert_eq!(map.remove(key), model.remove(key)),
            }
        }
    }

    proptest! {
        /// As the map of the standard library, whatever is done to it or to its clones.
        #[test]
        fn is_a_sorted_map_and_tells_what_differs(
            first in prop::collection::vec((0..500u16, any::<Option<u8>>()), 0..600),
            second in prop::collection::vec((0..500u16, prop::option::weighted(0.3, any::<u8>())), 0..300),
            from in 0..500u16,
        ) {
            let (mut before, mut model) = (SharedMap::new(), BTreeMap::new());
            change(&mut before, &mut model, &first);
            let (mut after, mut changed) = (before.clone(), model.clone());
            change(&mut after, &mut changed, &second);
            for (map, model) in [(&before, &model), (&after, &changed)] {
                prop_assert!(map.iter().eq(model));
                prop_assert!(map.range_from(&from).eq(model.range(from..)));
                prop_assert!((0..500).all(|key| map.get(&key) == model.get(&key)));
                prop_assert_eq!(map.len(), model.len());
                prop_assert!(map.leaves.iter().all(|leaf| !leaf.is_empty() && leaf.len() <= FULL));
                prop_assert_eq!(map, &model.iter().map(|(key, value)| (*key, *value)).collect());
            }
            let differs = |key: &u16| {
                let (before, after) = (model.get(key), changed.get(key));
                (before != after).then_some((*key, before.copied(), after.copied()))
            };
            let expected: Vec<_> = (0..500).filter_map(|key| differs(&key)).collect();
            let found = before.difference(&after).map(|(key, before, after)| (*key, before.copied(), after.copied()));
            prop_assert_eq!(found.collect::<Vec<_>>(), expected);
            prop_assert_eq!(before == after, model == changed);
        }
    }

    #[test]
    fn a_change_copies_a_small_part_and_only_that_is_compared() {
        #[derive(Debug, Clone)]
        struct Counted(u32, std::rc::Rc<std::cell::Cell<usize>>);
        impl PartialEq for Counted {
            fn eq(&self, other: &Self) -> bool {
                self.1.set(self.1.get() + 1);
                self.0 == other.0
            }
        }
        let compared = std::rc::Rc::default();
        let before: SharedMap<u32, Counted> =
            (0..10_000).map(|key| (key, Counted(0, std::rc::Rc::clone(&compared)))).collect();
        let mut after = before.clone();
        after.insert(5_000, Counted(1, std::rc::Rc::clone(&compared)));
        after.insert(10_000, Counted(1, std::rc::Rc::clone(&compared)));
        let differ: Vec<_> = before.difference(&after).map(|(key, _, _)| *key).collect();
        assert_eq!(differ, [5_000, 10_000]);
        assert!(compared.get() <= 2 * FULL, "{} values were compared", compared.get());
        let shared = before.leaves.iter().filter(|leaf| after.leaves.iter().any(|other| Arc::ptr_eq(leaf, other)));
        assert!(shared.count() + 2 >= before.leaves.len());
    }

    #[test]
    fn what_is_emptied_takes_no_room() {
        let mut map: SharedMap<u32, u32> = (0..1_000).map(|key| (key, key)).collect();
        for key in (0..1_000).filter(|key| key % 100 != 0) {
            assert_eq!(map.remove(&key), Some(key));
        }
        assert_eq!((map.len(), map.leaves.len()), (10, 1));
    }
}
