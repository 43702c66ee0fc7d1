//! Sharing of strings that thousands of endpoints have in common.

use std::{collections::HashSet, hash::Hash, sync::Arc};

use crate::model::EndpointPort;

/// Returns the same [`Arc`] for equal values. When it grows, it drops values that are no longer in use.
#[derive(Debug, Default)]
pub struct Interner {
    strings: Pool<str>,
    ports: Pool<[EndpointPort]>,
}

impl Interner {
    /// The shared string with this content.
    pub fn string(&mut self, text: &str) -> Arc<str> {
        self.strings.share(text)
    }

    /// The shared list with these ports.
    pub fn ports(&mut self, ports: &[EndpointPort]) -> Arc<[EndpointPort]> {
        self.ports.share(ports)
    }
}

#[derive(Debug)]
struct Pool<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// Size at which to look for unused values.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), sweep_at: MIN_SWEEP }
    }
}

/// Below this size, it is not worth looking for unused values.
const MIN_SWEEP: usize = 256;

impl<T: ?Sized + Eq + Hash> Pool<T> {
    fn share<'a>(&mut self, value: &'a T) -> Arc<T>
    where
        Arc<T>: From<&'a T>,
    {
        if let Some(shared) = self.values.get(value) {
            return Arc::clone(shared);
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.sweep_at = (self.values.len() * 2).max(MIN_SWEEP);
        }
        let shared: Arc<T> = value.into();
        self.values.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_shared() {
        let mut interner = Interner::default();
        assert!(Arc::ptr_eq(&interner.string("eu-west-1a"), &interner.string("eu-west-1a")));
    }

    #[test]
    fn unused_strings_are_dropped() {
        let mut interner = Interner::default();
        let kept = interner.string("kept");
        for n in 0..10 * MIN_SWEEP {
            interner.string(&n.to_string());
        }
        assert!(interner.strings.values.len() <= MIN_SWEEP);
        assert!(Arc::ptr_eq(&kept, &interner.string("kept")));
    }
}
