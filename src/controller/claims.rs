//! In which targets this cluster may register instances now, by the claims of all clusters and by time.
//!
//! - The oldest claim of all known clusters holds; before it, one of the namespace whose own name the target is
//!   ([`Knowledge::claimant`]). A claim whose owner is unable holds nothing. When its owner is able again, it waits as a
//!   new named claim does.
//! - Nothing is registered in a target that is new to this term before all clusters were read, or had the time for it.
//! - A new claim to a *named* target must have been visible in the ledger for a while, with no older one, and every
//!   live cluster must be readable. This costs time, so three claims need none of it: one to the target that the
//!   Kubernetes name implies (others who want that target must name it, and wait); one to a target that the same name
//!   has had in another cluster for that while; and one of a cluster that has been the only one of its ClusterSet, and
//!   a member of it, for that while. (Two that come, or come back, at the same time take themselves for the only one at
//!   first.)
//! - An export that loses a target, or moves away from it while another name waits for it, keeps its live endpoints
//!   there until a reading of the control plane shows instances of the successor, however long that takes: a successor
//!   may be denied, throttled, over a quota, or dead. If the successor says that it has nothing to register, or if the
//!   loser may not register there any more, it takes twice the delay: once for the successor's own wait, and once for
//!   the successor to see the release and to register; and a successor in another cluster must have been heard of for
//!   that long. What was deleted hands nothing over. Another name of this cluster that takes over the claim, but is not
//!   the next one of all clusters, changes nothing about that. A new leader does not know when this began, or what was
//!   registered. It keeps what it finds there up to date, by the same rules.
//! - An old reading of the registry does not show who has claims now.

mod claim;
mod clusters;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use self::{
    claim::{Around, Claim},
    clusters::Clusters,
};
use super::Knowledge;
use instances::sync::Reason;
use ledger::{Map, record::Position};
use model::{ClaimOwner, ClaimState, ClusterId, Registration, ServiceKey, Target};

/// Who else has a target now, in another cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Successor {
    pub(super) cluster: ClusterId,
    pub(super) owner: ClaimOwner,
    /// It says that it has nothing to register.
    empty: bool,
}

impl Successor {
    /// Whose instances show that it serves the name.
    pub(super) fn place(&self) -> (ClusterId, ServiceKey) {
        (self.cluster.clone(), self.owner.key())
    }
}

/// What decides about a claim beside all claims and the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Circumstances {
    /// The target is the one that the owner's Kubernetes name implies.
    pub(super) implied: bool,
    pub(super) hand_over: HandOver,
}

/// How long the instances in a target stay after it was lost to a successor that has something to register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandOver {
    /// Not at all: whoever has instances there was deleted, or is neither exported nor annotated any more.
    Nothing,
    /// As long as a successor needs: what allowed the owner to register there was taken away.
    Timed,
    /// Until a reading shows instances of the successor.
    Awaited,
    /// A reading shows them, or that nothing is there to be handed over.
    Succeeded,
}

/// What this cluster may do in a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Register.
    Holds,
    /// Nothing new: the owner is unable. What is registered there stays up to date as far as that may be.
    Unable,
    /// Keep existing instances up to date, until the successor had time to register.
    HandsOver,
    /// As [`HandsOver`](Self::HandsOver) where something is registered: the previous leader may have held the target.
    Keeps,
    /// Nothing: the claim is not in the registry yet.
    AwaitsRecord,
    /// Nothing: a cluster is not read yet, and may have an older claim.
    AwaitsClusters,
    /// Nothing: the claim must be visible for some more time.
    AwaitsDelay,
    /// Withdraw.
    Withdraws,
}

impl Standing {
    /// Whether nothing is done unless something is registered there for the Service.
    pub(super) const fn is_only_found(self) -> bool {
        matches!(self, Self::Keeps | Self::Unable)
    }

    /// Whether the claim is the first one of those that are able, as far as is known.
    pub(super) const fn is_first(self) -> bool {
        matches!(self, Self::Holds | Self::AwaitsRecord | Self::AwaitsClusters | Self::AwaitsDelay)
    }
}

/// The claims of this cluster.
#[derive(Debug, Clone)]
pub(super) struct Claims {
    clusters: Clusters,
    /// The published state that was read back.
    visible: Option<Arc<Map>>,
    by_target: BTreeMap<Target, Claim>,
    /// Those that time alone may change, sorted by when.
    next: BTreeSet<(Duration, Target)>,
    /// Those that are given up, by owner: each changed object asks for its own, and there may be thousands of others.
    given_up: BTreeSet<(ClaimOwner, Target)>,
}

impl Claims {
    pub(super) fn new(delay: Duration) -> Self {
        Self::among(Clusters::new(delay))
    }

    /// The claims of a cluster that is in no ClusterSet.
    pub(super) fn standalone(delay: Duration) -> Self {
        Self::among(Clusters::none(delay))
    }

    fn among(clusters: Clusters) -> Self {
        Self { clusters, visible: None, by_target: BTreeMap::new(), next: BTreeSet::new(), given_up: BTreeSet::new() }
    }

    /// All heads were read. `positions` are those of the other clusters.
    pub(super) fn read<'a>(&mut self, positions: impl Iterator<Item = (&'a Arc<str>, Position)>, now: Duration) {
        self.clusters.read(positions, now);
    }

    /// Sets whether this is the only cluster, and whether every live one is readable. Returns whether that is new.
    pub(super) fn set_clusters(&mut self, sole: bool, verified: bool, now: Duration) -> bool {
        self.clusters.set(sole, verified, now)
    }

    /// Other clusters see this one from now on. Those that came earlier may take themselves for the only one.
    pub(super) fn seen(&mut self, now: Duration) {
        self.clusters.seen(now);
    }

    /// Takes over the claims of the previous leader. `date` is when that leader published them last, in seconds since
    /// 1970: claims and date are by the same clock.
    pub(super) fn inherit<'a>(&mut self, registrations: impl Iterator<Item = &'a Registration>, date: i64) {
        for own in registrations {
            let age = Duration::from_secs(date.saturating_sub(own.claimed).max(0).unsigned_abs());
            let established =
                matches!(own.state, ClaimState::Serves | ClaimState::Empty) && age >= self.clusters.delay();
            self.by_target.entry(own.target.clone()).or_default().inherit(established);
        }
    }

    /// Returns the targets whose visible records changed.
    pub(super) fn set_visible(&mut self, map: Option<Arc<Map>>) -> BTreeSet<Target> {
        let before = std::mem::replace(&mut self.visible, map);
        let [before, after] = [&before, &self.visible].map(|map| map.as_deref().cloned().unwrap_or_default());
        records::changed_registrations(&before, &after)
    }

    pub(super) fn delay(&self) -> Duration {
        self.clusters.delay()
    }

    pub(super) fn standing(&self, target: &Target) -> Option<Standing> {
        self.by_target.get(target)?.standing()
    }

    /// The owner whose instances are or may be in a target.
    pub(super) fn acts_for(&self, target: &Target) -> Option<&ClaimOwner> {
        self.by_target.get(target)?.acts_for()
    }

    /// Targets that are not held. What the registry shows of our claims, or of other clusters, may change that.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Target> {
        let waits = |claim: &Claim| claim.standing().is_some_and(|standing| standing != Standing::Holds);
        self.by_target.iter().filter(move |(_, claim)| waits(claim)).map(|(target, _)| target)
    }

    /// Targets that an owner has lost, or moved away from, and where it may still have instances.
    pub(super) fn given_up_by(&self, owner: &ClaimOwner) -> impl Iterator<Item = &Target> {
        let first = (owner.clone(), Target { namespace: "".into(), service: "".into() });
        let of_owner = self.given_up.range(first..).take_while(move |(by, _)| by == owner);
        of_owner.map(|(_, target)| target)
    }

    /// When the next target must be judged again.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.next.first().map(|(at, _)| *at)
    }

    /// Whether a target waits for a reading of the registry, or for its time.
    pub(super) fn waits(&self, target: &Target) -> bool {
        let awaits = |standing: Standing| standing.is_first() && standing != Standing::Holds;
        self.by_target.get(target).is_some_and(|claim| claim.due().is_some() || claim.standing().is_some_and(awaits))
    }

    pub(super) fn due(&self, now: Duration) -> impl Iterator<Item = &Target> {
        self.next.iter().take_while(move |(at, _)| *at <= now).map(|(_, target)| target)
    }

    /// Notes why an owner may not register in a target; `None`: it may.
    pub(super) fn decide(&mut self, target: &Target, owner: &ClaimOwner, why: Option<&(Reason, String)>) {
        match why {
            Some(why) => self.by_target.entry(target.clone()).or_default().refuse(owner.clone(), why.clone()),
            None => {
                if let Some(claim) = self.by_target.get_mut(target) {
                    claim.allow(owner);
                }
            }
        }
    }

    /// Why an owner may not register in a target, if that was found out in this term.
    pub(super) fn refusal(&self, target: &Target, owner: &ClaimOwner) -> Option<&(Reason, String)> {
        self.by_target.get(target)?.refusal(owner)
    }

    /// To whom a target is handed over, if it is, in another cluster.
    pub(super) fn successor(&self, target: &Target) -> Option<&Successor> {
        self.by_target.get(target)?.successor()
    }

    /// Whether a target has waited for unreadable clusters for longer than usual.
    pub(super) fn awaits_clusters_long(&self, target: &Target, now: Duration) -> bool {
        self.by_target.get(target).is_some_and(|claim| claim.awaits_clusters_long(now))
    }

    /// Judges a target again. `circumstances` gets the claim, whose instances may be there, and the claim that wins over
    /// it. `None` if this cluster has no claim to it.
    pub(super) fn judge(
        &mut self,
        knowledge: &Knowledge,
        target: &Target,
        circumstances: impl FnOnce(&Registration, &ClaimOwner, Option<&Successor>) -> Circumstances,
        now: Duration,
    ) -> Option<Standing> {
        let own = knowledge.exports().and_then(|exports| exports.registrations().get(target));
        if let Some(claim) = self.by_target.get(target) {
            if let Some(at) = claim.due() {
                self.next.remove(&(at, target.clone()));
            }
            if let Some(owner) = claim.given_up_by() {
                self.given_up.remove(&(owner.clone(), target.clone()));
            }
        }
        match own {
            Some(_) => _ = self.by_target.entry(target.clone()).or_default(),
            None => _ = self.by_target.remove(target),
        }
        let (own, claim) = own.zip(self.by_target.get_mut(target))?;
        let first = knowledge.first_claim(target).filter(|(cluster, first)| {
            cluster != knowledge.local() && !first.is_unable() && !first.owner.is_same_service(&own.owner)
        });
        let rival = first.map(|(cluster, Registration { owner, state, .. })| Successor {
            cluster,
            owner,
            empty: state == ClaimState::Empty,
        });
        let around = Around { knowledge, clusters: &self.clusters, visible: self.visible.as_deref(), now };
        let standing = claim.judge(own, rival, circumstances, around);
        if let Some(at) = claim.due() {
            self.next.insert((at, target.clone()));
        }
        if let Some(owner) = claim.given_up_by() {
            self.given_up.insert((owner.clone(), target.clone()));
        }
        Some(standing)
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
