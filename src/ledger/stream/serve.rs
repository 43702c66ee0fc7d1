//! The side of a session that says this cluster's states: first what the subscriber does not have, then what changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec,
};

use super::message::{FULL_ENOUGH, Message};
use crate::{
    Map,
    hash::{Hashed, StateHash, Summary},
    head::Change,
};

/// The state that this cluster wants to be known.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// The state, with its hashes.
    pub hashed: &'a Hashed,
    /// Which one it is.
    pub summary: Summary,
}

/// What one subscriber is told. There is no queue: when the socket has taken a message, the next one is made.
#[derive(Debug)]
pub(super) struct Serving {
    /// The buckets of the subscriber, until a sync begins.
    asked: Option<BTreeMap<u16, StateHash>>,
    transfer: Option<Transfer>,
    /// What the subscriber has when it has taken everything.
    sent: Option<(Summary, Arc<Map>)>,
}

/// A state on its way.
#[derive(Debug)]
struct Transfer {
    /// Whether it is all of some buckets, and not what changed.
    sync: bool,
    replaced: Option<Vec<u16>>,
    changes: vec::IntoIter<Change>,
    to: (Summary, Arc<Map>),
}

impl Serving {
    pub(super) fn new(buckets: Vec<(u16, StateHash)>) -> Self {
        Self { asked: Some(buckets.into_iter().collect()), transfer: None, sent: None }
    }

    /// Whether it waits for its first state to be looked up.
    pub(super) fn waits(&self) -> bool {
        self.asked.is_some()
    }

    /// Whether it takes in the buckets that it does not have.
    pub(super) fn syncs(&self) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.sync)
    }

    /// Whether there is something to say.
    pub(super) fn has_more(&self, said: Said<'_>) -> bool {
        let told = self.sent.as_ref().is_some_and(|(summary, _)| *summary == said.summary);
        self.waits() || self.transfer.is_some() || !told
    }

    /// Begins with the buckets that differ.
    pub(super) fn sync(&mut self, said: Said<'_>) {
        let Some(theirs) = self.asked.take() else { return };
        let ours: BTreeMap<u16, StateHash> = said.hashed.buckets().collect();
        let differ = |number: &u16| ours.get(number) != theirs.get(number);
        let numbers: BTreeSet<u16> = ours.keys().chain(theirs.keys()).copied().filter(differ).collect();
        let map = said.hashed.map();
        let keys = numbers.iter().flat_map(|number| said.hashed.keys(*number));
        let changes: Vec<Change> = keys.map(|key| (key.clone(), map.get(key).cloned())).collect();
        self.transfer = Some(Transfer {
            sync: true,
            replaced: Some(numbers.into_iter().collect()),
            changes: changes.into_iter(),
            to: (said.summary, map.clone()),
        });
    }

    /// The next message, if there is anything to say.
    pub(super) fn next(&mut self, said: Said<'_>) -> Option<Message> {
        if self.transfer.is_none() {
            let (summary, before) = self.sent.as_ref()?;
            if *summary == said.summary {
                return None;
            }
            let map = said.hashed.map();
            let changes = before.difference(map).map(|(key, _, value)| (key.clone(), value.cloned()));
            let changes = changes.collect::<Vec<_>>().into_iter();
            self.transfer = Some(Transfer { sync: false, replaced: None, changes, to: (said.summary, map.clone()) });
        }
        let transfer = self.transfer.as_mut()?;
        if let Some(buckets) = transfer.replaced.take() {
            return Some(Message::Replace { buckets });
        }
        let (mut changes, mut size) = (Vec::new(), 0);
        while size < FULL_ENOUGH
            && let Some((key, value)) = transfer.changes.next()
        {
            size += key.len() + value.as_ref().map_or(0, |value| value.len()) + 16;
            changes.push((key, value));
        }
        let mut end = None;
        if transfer.changes.len() == 0 {
            end = Some(transfer.to.0);
            self.sent = self.transfer.take().map(|transfer| transfer.to);
        }
        Some(Message::Changes { changes, end })
    }
}
