//! The side of a session that takes in another cluster's states, each as a whole or not at all.

use std::sync::Arc;

use super::message::Message;
use crate::{
    Map,
    diff::Diff,
    hash::{Hashed, Summary},
    tree,
    writer::WriterIdentity,
};

const TOO_LARGE: &str = "the state is larger than a cluster's may be";

/// Another cluster's states, as they come in.
#[derive(Debug)]
pub(super) struct Following {
    /// The last whole one.
    hashed: Hashed,
    staged: Option<Map>,
    /// Of all keys and values in what comes in.
    bytes: usize,
    /// Of those that came since the last whole state.
    coming: usize,
    /// The newest whole one that came.
    latest: Option<(Summary, Arc<Map>)>,
    /// How it came from the one before, until somebody takes that.
    diff: Option<Arc<Diff>>,
}

impl Following {
    /// Begins with what is known of a cluster's state.
    pub(super) fn new(owner: WriterIdentity, known: Arc<Map>) -> Self {
        let bytes = known.iter().map(|(key, value)| key.len() + value.len()).sum();
        let mut hashed = Hashed::new(owner);
        hashed.set(known);
        Self { hashed, staged: None, bytes, coming: 0, latest: None, diff: None }
    }

    /// What is here already.
    pub(super) fn subscribe(&self) -> Message {
        Message::Subscribe { buckets: self.hashed.buckets().collect() }
    }

    pub(super) fn latest(&self) -> Option<&(Summary, Arc<Map>)> {
        self.latest.as_ref()
    }

    /// The newest whole state that came, with its hashes.
    pub(super) fn whole(&self) -> Option<&Hashed> {
        self.latest.as_ref().map(|_| &self.hashed)
    }

    /// How the newest whole state came from the one before, once.
    pub(super) fn take_diff(&mut self) -> Option<Arc<Diff>> {
        self.diff.take()
    }

    /// Bytes that came of a state that is not whole yet.
    pub(super) const fn coming(&self) -> usize {
        self.coming
    }

    /// All pairs of these buckets go.
    pub(super) fn replace(&mut self, buckets: &[u16]) {
        let staged = self.staged.get_or_insert_with(|| Map::clone(self.hashed.map()));
        for key in buckets.iter().flat_map(|bucket| self.hashed.keys(*bucket)) {
            if let Some(value) = staged.remove(key) {
                self.bytes -= key.len() + value.len();
            }
        }
    }

    /// Takes changes, and whether they are whole.
    ///
    /// # Errors
    /// What is wrong with them, so that nothing of this session counts any more.
    pub(super) fn change(
        &mut self,
        changes: Vec<(Arc<str>, Option<crate::Value>)>,
        end: Option<Summary>,
    ) -> Result<(), &'static str> {
        let mut staged = self.staged.take().unwrap_or_else(|| Map::clone(self.hashed.map()));
        for (key, value) in changes {
            let length = key.len();
            let before = match value {
                Some(value) => {
                    self.bytes += length + value.len();
                    self.coming += length + value.len();
                    staged.insert(key, value)
                }
                None => staged.remove(&key),
            };
            self.bytes -= before.map_or(0, |before| length + before.len());
            // What comes may be there before what goes.
            if tree::excess(staged.len() / 2, self.bytes / 2).is_some() {
                return Err(TOO_LARGE);
            }
        }
        let Some(summary) = end else {
            self.staged = Some(staged);
            return Ok(());
        };
        if tree::excess(staged.len(), self.bytes).is_some() {
            return Err(TOO_LARGE);
        }
        self.coming = 0;
        let map = Arc::new(staged);
        let diff = self.hashed.set(map.clone());
        if self.hashed.hashes() != summary.hashes {
            return Err("the state has another hash than was said");
        }
        self.diff = Some(diff);
        self.latest = Some((summary, map));
        Ok(())
    }
}
