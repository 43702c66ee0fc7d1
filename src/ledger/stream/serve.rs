//! The side of a session that says this cluster's states: first what the subscriber does not have, then what changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    vec,
};

use super::message::{FULL_ENOUGH, Message};
use crate::{
    Map,
    diff::Diff,
    hash::{Hashed, StateHash, Summary},
    head::Change,
};

/// The state that this cluster wants to be known.
#[derive(Debug, Clone, Copy)]
pub struct OwnState<'a> {
    /// The state, with its hashes.
    pub hashed: &'a Hashed,
    /// How it came from the state before, while it is new.
    pub diff: Option<&'a Arc<Diff>>,
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
    pairs: Pairs,
    to: (Summary, Arc<Map>),
}

/// What a subscriber does not have.
#[derive(Debug)]
enum Pairs {
    /// All pairs of some buckets, whose numbers go first.
    Sync(Option<Vec<u16>>, vec::IntoIter<Change>),
    /// What changed, from a place on.
    Diff(Arc<Diff>, usize),
}

impl Pairs {
    fn next(&mut self) -> Option<Change> {
        match self {
            Self::Sync(_, changes) => changes.next(),
            Self::Diff(diff, at) => {
                let changed = diff.changed().get(*at)?;
                *at += 1;
                Some((changed.key.clone(), changed.is.clone()))
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Sync(_, changes) => changes.len() == 0,
            Self::Diff(diff, at) => *at == diff.changed().len(),
        }
    }
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
        matches!(&self.transfer, Some(Transfer { pairs: Pairs::Sync(..), .. }))
    }

    /// Whether there is something to say.
    pub(super) fn has_more(&self, own: OwnState<'_>) -> bool {
        let told = self.sent.as_ref().is_some_and(|(summary, _)| *summary == own.summary);
        self.waits() || self.transfer.is_some() || !told
    }

    /// Begins with the buckets that differ.
    pub(super) fn sync(&mut self, own: OwnState<'_>) {
        let Some(theirs) = self.asked.take() else { return };
        let ours: BTreeMap<u16, StateHash> = own.hashed.buckets().collect();
        let differ = |number: &u16| ours.get(number) != theirs.get(number);
        let numbers: BTreeSet<u16> = ours.keys().chain(theirs.keys()).copied().filter(differ).collect();
        let map = own.hashed.map();
        let keys = numbers.iter().flat_map(|number| own.hashed.keys(*number));
        let changes: Vec<Change> = keys.map(|key| (key.clone(), map.get(key).cloned())).collect();
        let pairs = Pairs::Sync(Some(numbers.into_iter().collect()), changes.into_iter());
        self.transfer = Some(Transfer { pairs, to: (own.summary, map.clone()) });
    }

    /// The next message, if there is anything to say.
    pub(super) fn next(&mut self, own: OwnState<'_>) -> Option<Message> {
        if self.transfer.is_none() {
            let (summary, before) = self.sent.as_ref()?;
            if *summary == own.summary {
                return None;
            }
            let map = own.hashed.map();
            let pairs = Pairs::Diff(Diff::or_between(own.diff, before, map), 0);
            self.transfer = Some(Transfer { pairs, to: (own.summary, map.clone()) });
        }
        let transfer = self.transfer.as_mut()?;
        if let Pairs::Sync(buckets, _) = &mut transfer.pairs
            && let Some(buckets) = buckets.take()
        {
            return Some(Message::Replace { buckets });
        }
        let (mut changes, mut size) = (Vec::new(), 0);
        while size < FULL_ENOUGH
            && let Some((key, value)) = transfer.pairs.next()
        {
            size += key.len() + value.as_ref().map_or(0, |value| value.len()) + 16;
            changes.push((key, value));
        }
        let mut end = None;
        if transfer.pairs.is_empty() {
            end = Some(transfer.to.0);
            self.sent = self.transfer.take().map(|transfer| transfer.to);
        }
        Some(Message::Changes { changes, end })
    }
}
