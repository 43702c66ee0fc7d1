//! The own exports services: how many there are, and the claim of further ones (W5).

use std::{collections::BTreeSet, time::Duration};

use super::{Leader, Now};
use crate::{
    call::{Call, CallId, Outbox, Outcome},
    head::MAX_SHARDS,
};

/// The own exports services.
#[derive(Debug)]
pub(super) struct Services {
    count: u32,
    /// Shards below it whose service another cluster created, so that nothing is written there.
    strange: BTreeSet<u32>,
}

impl Default for Services {
    fn default() -> Self {
        Self { count: 1, strange: BTreeSet::new() }
    }
}

impl Services {
    /// One more than the shard of the last one.
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// The shards of a root that names pages in any of them.
    pub(super) const fn shards(&self) -> u32 {
        self.count.next_power_of_two()
    }

    /// The shards in which pages may be.
    pub(super) fn usable(&self) -> impl Iterator<Item = u32> {
        (0..self.count).filter(|shard| !self.strange.contains(shard))
    }

    /// Up to which shard all services are this cluster's.
    pub(super) fn unbroken(&self) -> u32 {
        self.strange.first().map_or(self.count, |strange| self.count.min(*strange))
    }

    /// The claim of the id found so many.
    pub(super) fn found(&mut self, count: u32) {
        self.count = count.max(1);
    }

    /// There are at least so many. Returns whether that is more than were known.
    pub(super) fn learn(&mut self, count: u32) -> bool {
        let more = count > self.count;
        self.count = self.count.max(count);
        more
    }

    /// Another cluster created the service of this shard.
    pub(super) fn avoid(&mut self, shard: u32) {
        self.strange.insert(shard);
    }
}

/// The claim of further services, one by one.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// How many there should be.
    wanted: u32,
    call: Option<CallId>,
    retry_at: Duration,
}

/// What came of a claim of a further service.
pub(super) enum Grown {
    /// It was created, so that nothing is in it.
    Created(u32),
    /// Former leaders had claimed more than were known. Nobody else collects what they wrote.
    Found,
    Nothing,
}

impl Growth {
    /// There should be so many services, or the next power of two.
    pub(super) fn want(&mut self, count: u32) {
        self.wanted = self.wanted.max(count.next_power_of_two().min(MAX_SHARDS));
    }

    pub(super) fn advance(&mut self, services: &Services, now: Now, out: &mut Outbox) {
        if services.count >= self.wanted || self.call.is_some() {
            return;
        }
        if now.mono < self.retry_at {
            return out.wake_at(self.retry_at);
        }
        self.call = Some(out.call(Call::Claim { shard: services.count }));
    }

    /// Whether a call claims a further service.
    pub(super) fn waits_for(&self, id: CallId) -> bool {
        self.call == Some(id)
    }

    /// The outcome of the claim.
    pub(super) fn done(&mut self, leader: &mut Leader, now: Now, outcome: &Outcome) -> Grown {
        self.call = None;
        let shard = leader.services.count;
        match outcome {
            Outcome::Claimed { created: true, shards } if *shards == shard + 1 => {
                leader.services.count = *shards;
                return Grown::Created(shard);
            }
            Outcome::Claimed { shards, .. } if leader.services.learn(*shards) => return Grown::Found,
            Outcome::Claimed { .. } => {}
            Outcome::Taken { owner } => {
                let service = crate::service_name(&leader.me.cluster, shard);
                leader.error = Some(format!("the service {service} belongs to {owner}"));
                self.retry_at = now.mono + leader.timing.refused_retry;
            }
            outcome => {
                leader.note(outcome);
                self.retry_at = now.mono + leader.timing.retry_max;
            }
        }
        Grown::Nothing
    }
}
