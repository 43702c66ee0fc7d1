//! Sharing of values that thousands of objects repeat: names, zones, sets of ports.

use std::{
    borrow::Borrow,
    collections::HashSet,
    hash::Hash,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use super::EndpointPort;

/// The shared [`Arc`] for this text. It exists as long as anybody holds it, and for a while longer. Therefore a long text is
/// not shared.
pub fn intern(text: &str) -> Arc<str> {
    static TEXTS: LazyLock<Mutex<Pool<str>>> = LazyLock::new(Mutex::default);
    if text.len() > MAX_SHARED {
        return text.into();
    }
    TEXTS.lock().unwrap_or_else(PoisonError::into_inner).share(text)
}

/// The shared [`Arc`] for these ports, as for [`intern`].
pub fn intern_ports(ports: &[EndpointPort]) -> Arc<[EndpointPort]> {
    static SETS: LazyLock<Mutex<Pool<[EndpointPort]>>> = LazyLock::new(Mutex::default);
    SETS.lock().unwrap_or_else(PoisonError::into_inner).share(ports)
}

/// Longest text that is shared, in bytes: the longest name of an object.
pub const MAX_SHARED: usize = 253;

/// Values of a type, each of which is in memory once. One that nobody holds any more goes after a while.
#[derive(Debug)]
pub struct Pool<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// Size at which unused values are looked for.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), sweep_at: MIN_SWEEP }
    }
}

/// Below this, looking for unused values is not worth it.
const MIN_SWEEP: usize = 256;

impl<T: ?Sized + Eq + Hash> Pool<T> {
    /// The shared [`Arc`] for this value.
    pub fn share<V: Borrow<T> + Into<Arc<T>>>(&mut self, value: V) -> Arc<T> {
        if let Some(shared) = self.values.get(Borrow::<T>::borrow(&value)) {
            return Arc::clone(shared);
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|value| Arc::strong_count(value) > 1);
            self.values.shrink_to(self.values.len() * 2);
            // Of those that are kept, at most a fifth is unused, and a sweep looks at five for each one that came.
            self.sweep_at = (self.values.len() + self.values.len() / 4).max(MIN_SWEEP);
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
    fn equal_values_are_one() {
        assert!(Arc::ptr_eq(&intern("eu-west-1a"), &intern("eu-west-1a")));
    }

    #[test]
    fn unused_values_are_dropped() {
        let mut pool = Pool::<str>::default();
        let kept = pool.share("kept");
        for n in 0..10 * MIN_SWEEP {
            pool.share(n.to_string());
        }
        assert!(pool.values.len() <= MIN_SWEEP);
        assert!(Arc::ptr_eq(&kept, &pool.share("kept")));
    }

    #[test]
    fn few_of_many_values_are_unused() {
        let mut pool = Pool::<str>::default();
        let used: Vec<_> = (0..10 * MIN_SWEEP).map(|n| pool.share(format!("used {n}"))).collect();
        for n in 0..10 * MIN_SWEEP {
            pool.share(n.to_string());
        }
        assert!(pool.values.len() <= used.len() + used.len() / 4 + 1, "{}", pool.values.len());
    }
}
