//! The state to be published.

use std::{sync::Arc, time::Duration};

use crate::{
    Map, Value,
    diff::{Changed, Diff},
    hash::{Hashed, Hashes},
    tree,
    writer::WriterIdentity,
};

/// The state to be published, once there is one.
#[derive(Debug)]
pub(super) struct Desired {
    /// The state, with its hashes.
    hashed: Hashed,
    diff: Option<Arc<Diff>>,
    /// Of all its keys and values.
    bytes: usize,
    /// How many states there were up to this one; 0 while there is none.
    generation: u64,
    changed_at: Duration,
    /// When the oldest change came that is not published.
    unpublished_since: Option<Duration>,
    /// Why the newest state to be published is not, if so: the last one that fitted stays.
    unfit: Option<String>,
}

impl Desired {
    pub(super) fn new(owner: WriterIdentity) -> Self {
        let (diff, bytes, generation, changed_at, unpublished_since, unfit) = Default::default();
        Self { hashed: Hashed::new(owner), diff, bytes, generation, changed_at, unpublished_since, unfit }
    }

    /// The state.
    pub(super) fn map(&self) -> Option<&Arc<Map>> {
        self.hashed().map(Hashed::map)
    }

    /// The state with its hashes.
    pub(super) fn hashed(&self) -> Option<&Hashed> {
        (self.generation > 0).then_some(&self.hashed)
    }

    pub(super) const fn hashes(&self) -> Hashes {
        self.hashed.hashes()
    }

    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) const fn changed_at(&self) -> Duration {
        self.changed_at
    }

    pub(super) const fn unpublished_since(&self) -> Option<Duration> {
        self.unpublished_since
    }

    pub(super) const fn unfit(&self) -> Option<&String> {
        self.unfit.as_ref()
    }

    /// What led to the state, for whoever follows it, until [`Self::diff_taken`].
    pub(super) const fn diff(&self) -> Option<&Arc<Diff>> {
        self.diff.as_ref()
    }

    /// Whoever follows the state took the difference: it keeps former values in memory.
    pub(super) fn diff_taken(&mut self) {
        self.diff = None;
    }

    /// Takes another state, unless it does not fit. Returns whether the state changed.
    pub(super) fn set(&mut self, now: Duration, map: Arc<Map>, value_bytes: usize) -> bool {
        let step = self.hashed.step(map);
        let changed = self.generation == 0 || !step.diff().changed().is_empty();
        match measure(self.bytes, step.diff(), value_bytes) {
            Err(unfit) if changed => {
                self.unfit = Some(unfit);
                return false;
            }
            Ok(bytes) if changed => self.bytes = bytes,
            _ => {}
        }
        // Also where it is again what is published.
        self.unfit = None;
        if changed {
            self.diff = Some(step.take());
            self.generation += 1;
            self.changed_at = now;
            self.unpublished_since.get_or_insert(now);
        }
        changed
    }

    /// A head has this state, which contains what changed until `as_of`.
    pub(super) fn published(&mut self, map: &Arc<Map>, as_of: Duration) {
        let is_newest = self.map().is_some_and(|desired| Arc::ptr_eq(desired, map));
        self.unpublished_since = self.unpublished_since.filter(|_| !is_newest).map(|since| since.max(as_of));
    }
}

/// The bytes of the next state, given those of the former one.
///
/// # Errors
/// Why it does not fit.
fn measure(before: usize, diff: &Diff, value_bytes: usize) -> Result<usize, String> {
    let mut bytes = before;
    for Changed { key, was, is } in diff.changed() {
        let size = |value: &Option<Value>| value.as_ref().map_or(0, |value| key.len() + value.len());
        bytes = bytes + size(is) - size(was);
        if let Some(value) = is.as_ref().filter(|value| value.len() > value_bytes) {
            return Err(format!("the record {key} takes {} bytes; the change is not published", value.len()));
        }
    }
    tree::excess(diff.to().len(), bytes).map_or(Ok(bytes), Err)
}
