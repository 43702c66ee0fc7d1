//! The state of one claim: what this cluster may do in one target.

use std::{collections::BTreeMap, time::Duration};

use super::{Circumstances, HandOver, Standing, Successor, clusters::Clusters};
use crate::{Knowledge, core::FIRST_READING};
use instances::sync::Reason;
use ledger::Map;
use model::{ClaimOwner, Registration};

/// How soon to judge again what waits for a reading.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// A target of which this cluster has a registration record.
#[derive(Debug, Clone, Default)]
pub(super) struct Claim {
    state: State,
    inherited: Option<Inherited>,
    /// Date of the claim, and since when it is visible in the registry.
    visible: Option<(i64, Duration)>,
    /// The owner was unable in this term, and has not held since.
    was_unable: bool,
    /// Why owners are unable.
    refusals: BTreeMap<ClaimOwner, (Reason, String)>,
    /// When to judge again if time alone changes the judgement or its report.
    due: Option<Duration>,
}

/// The previous leader may have instances there, until this one holds or withdraws.
#[derive(Debug, Clone, Copy)]
struct Inherited {
    /// Its claim is older than the delay, and was able.
    established: bool,
}

/// What follows from the last judgement.
#[derive(Debug, Clone, Default)]
enum State {
    /// There was none in this term.
    #[default]
    New,
    /// It is the first claim, and instances are registered.
    Holds(ClaimOwner),
    /// It is the first one that is known, and not in the registry yet.
    AwaitsRecord {
        owner: ClaimOwner,
        /// Whose instances are still there: the claim went from one name of this cluster to another.
        former: Option<ClaimOwner>,
    },
    /// It is the first one that is known, and some cluster was not read yet.
    AwaitsClusters { owner: ClaimOwner, since: Duration },
    /// It is the first one, and must be visible for some more time.
    AwaitsDelay(ClaimOwner),
    /// Its owner is unable, or is able again and waits.
    Unable(ClaimOwner),
    /// It was lost or released, and instances stay.
    Kept(Kept),
    /// It was lost or released.
    Withdraws(ClaimOwner),
}

/// Instances that stay although the claim was lost or released.
#[derive(Debug, Clone)]
struct Kept {
    /// Whose they are.
    owner: ClaimOwner,
    /// Whether it is not known if there are any.
    if_found: bool,
    /// Until when a successor has its time. `None`: it is not known yet whether there is one.
    until: Option<Duration>,
    /// Who gets the target, in another cluster.
    successor: Option<Successor>,
}

/// What a claim is judged by, beside the claims themselves.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub(super) knowledge: &'a Knowledge,
    pub(super) clusters: &'a Clusters,
    /// The published state that was read back.
    pub(super) visible: Option<&'a Map>,
    pub(super) now: Duration,
}

impl Claim {
    /// The previous leader had it. `established`: it is older than the delay, and was able.
    pub(super) const fn inherit(&mut self, established: bool) {
        self.inherited = Some(Inherited { established });
    }

    /// What this cluster may do; `None` before the first judgement.
    pub(super) const fn standing(&self) -> Option<Standing> {
        Some(match &self.state {
            State::New => return None,
            State::Holds(_) => Standing::Holds,
            State::AwaitsRecord { .. } => Standing::AwaitsRecord,
            State::AwaitsClusters { .. } => Standing::AwaitsClusters,
            State::AwaitsDelay(_) => Standing::AwaitsDelay,
            State::Unable(_) => Standing::Unable,
            State::Kept(Kept { if_found: true, .. }) => Standing::Keeps,
            State::Kept(_) => Standing::HandsOver,
            State::Withdraws(_) => Standing::Withdraws,
        })
    }

    /// Whose instances are or may be there: those of the owner of the claim, or of the previous owner that still hands over.
    pub(super) const fn acts_for(&self) -> Option<&ClaimOwner> {
        match &self.state {
            State::New => None,
            State::Holds(owner)
            | State::AwaitsRecord { owner, .. }
            | State::AwaitsClusters { owner, .. }
            | State::AwaitsDelay(owner)
            | State::Unable(owner)
            | State::Kept(Kept { owner, .. })
            | State::Withdraws(owner) => Some(owner),
        }
    }

    /// When to judge again, if time alone changes the judgement or its report.
    pub(super) const fn due(&self) -> Option<Duration> {
        self.due
    }

    /// Who lost or released it, and may still have instances there.
    pub(super) const fn given_up_by(&self) -> Option<&ClaimOwner> {
        match &self.state {
            State::Kept(Kept { owner, .. }) | State::Withdraws(owner) => Some(owner),
            _ => None,
        }
    }

    /// To whom the target is handed over, if it is, in another cluster.
    pub(super) const fn successor(&self) -> Option<&Successor> {
        match &self.state {
            State::Kept(kept) => kept.successor.as_ref(),
            _ => None,
        }
    }

    /// Whether it has waited for unreadable clusters for longer than usual.
    pub(super) fn awaits_clusters_long(&self, now: Duration) -> bool {
        matches!(self.state, State::AwaitsClusters { since, .. } if now >= since + FIRST_READING)
    }

    /// Notes why an owner may not register there.
    pub(super) fn refuse(&mut self, owner: ClaimOwner, why: (Reason, String)) {
        self.refusals.insert(owner, why);
    }

    /// Notes that an owner may register there.
    pub(super) fn allow(&mut self, owner: &ClaimOwner) {
        self.refusals.remove(owner);
    }

    /// Why an owner may not register there, if that was found out in this term.
    pub(super) fn refusal(&self, owner: &ClaimOwner) -> Option<&(Reason, String)> {
        self.refusals.get(owner)
    }

    /// Judges the claim `own` again. `rival`: the claim of another cluster that wins over it.
    pub(super) fn judge(
        &mut self,
        own: &Registration,
        rival: Option<Successor>,
        circumstances: impl FnOnce(&Registration, &ClaimOwner, Option<&Successor>) -> Circumstances,
        around: Around<'_>,
    ) -> Standing {
        self.due = None;
        self.note_visibility(own, around);
        self.was_unable |= own.is_unable();
        let held = self.held_by(own);
        let owner = held.as_ref().map_or(&own.owner, |(owner, _)| owner);
        let Circumstances { implied, hand_over } = circumstances(own, owner, rival.as_ref());
        self.state = if own.is_retiring() || rival.is_some() {
            let held = held.filter(|_| hand_over != HandOver::Nothing);
            self.lose(own, held, rival, (hand_over, around))
        } else if own.is_unable() {
            self.is_no_longer_established();
            State::Unable(own.owner.clone())
        } else {
            // What is registered there follows the pods while the claim waits.
            let was_unable = matches!(&self.state, State::Unable(owner) if *owner == own.owner);
            match self.hold(own, implied, around) {
                state @ State::Holds(_) => state,
                _ if was_unable => State::Unable(own.owner.clone()),
                state => state,
            }
        };
        match &self.state {
            State::Holds(_) => (self.was_unable, self.inherited) = (false, None),
            State::Withdraws(_) => self.inherited = None,
            State::AwaitsClusters { since, .. } => {
                self.due = Some(*since + FIRST_READING).filter(|long| around.now < *long);
            }
            _ => {}
        }
        self.standing().expect("it was judged")
    }

    fn note_visibility(&mut self, own: &Registration, around: Around<'_>) {
        let there = around.visible.and_then(|map| records::registration(map, &own.target));
        let is_there = !own.is_retiring() && there.is_some_and(|there| there.is_same_claim(own));
        let before = self.visible.filter(|(claimed, _)| *claimed == own.claimed);
        self.visible = is_there.then(|| before.unwrap_or((own.claimed, around.now)));
    }

    const fn is_no_longer_established(&mut self) {
        if let Some(inherited) = &mut self.inherited {
            inherited.established = false;
        }
    }

    /// Whose instances are there, if this leader knows it.
    const fn holder(&self) -> Option<&ClaimOwner> {
        match &self.state {
            State::Holds(owner)
            | State::AwaitsRecord { former: Some(owner), .. }
            | State::Kept(Kept { owner, if_found: false, .. }) => Some(owner),
            _ => None,
        }
    }

    /// Whose instances are or may be there, and whether it is not known if there are any.
    fn held_by(&self, own: &Registration) -> Option<(ClaimOwner, bool)> {
        let (former, if_found) = match &self.state {
            State::Kept(Kept { owner, if_found: true, .. }) | State::Unable(owner) => (owner, true),
            _ => match self.holder() {
                Some(former) => (former, false),
                None => (self.inherited.map(|_| &own.owner)?, true),
            },
        };
        // If another name of this cluster follows in the claim, but is not the first one of all clusters, it has no
        // instances there yet.
        Some((if former.is_same_service(&own.owner) { &own.owner } else { former }.clone(), if_found))
    }

    /// The claim was released, or turned out to be younger. `held`: whose instances are to be handed over.
    fn lose(
        &mut self,
        own: &Registration,
        held: Option<(ClaimOwner, bool)>,
        rival: Option<Successor>,
        (hand_over, around): (HandOver, Around<'_>),
    ) -> State {
        let Around { knowledge, clusters, now, .. } = around;
        self.is_no_longer_established();
        let Some((owner, if_found)) = held else { return State::Withdraws(own.owner.clone()) };
        let before = if let State::Kept(kept) = &self.state { kept.until } else { None };
        // It is not known yet who else has claims.
        let unread = knowledge.awaits_first_reading() && !clusters.is_sole();
        let Some(rival) = rival else {
            if if_found && unread {
                return State::Kept(Kept { owner, if_found, until: before, successor: None });
            }
            return State::Withdraws(own.owner.clone());
        };
        let until = before.unwrap_or(now + 2 * clusters.delay());
        let expected = !rival.empty && hand_over != HandOver::Timed;
        let awaits =
            if expected { hand_over != HandOver::Succeeded } else { !clusters.had_time(&rival.cluster, until) };
        if now < until {
            self.due = Some(until);
        } else if !awaits {
            return State::Withdraws(own.owner.clone());
        } else if !expected {
            self.due = Some(now + AGAIN);
        }
        State::Kept(Kept { owner, if_found, until: Some(until), successor: Some(rival) })
    }

    /// The claim is the oldest one of all.
    fn hold(&mut self, own: &Registration, implied: bool, around: Around<'_>) -> State {
        let Around { knowledge, clusters, now, .. } = around;
        let owner = own.owner.clone();
        if let Some(holder) = self.holder() {
            // What shows the claim of the next name shows an older one elsewhere, too.
            let follows = !holder.is_same_service(&owner) && !clusters.is_sole();
            if follows && self.visible.is_none() {
                return State::AwaitsRecord { former: Some(holder.clone()), owner };
            }
            return State::Holds(owner);
        }
        let since = if let State::AwaitsClusters { since, .. } = self.state { since } else { now };
        if !knowledge.is_on_record(&own.target) {
            return State::AwaitsRecord { owner, former: None };
        }
        // The only cluster waits for nobody, and neither does a standalone one.
        if knowledge.awaits_first_reading() && !clusters.is_sole() {
            return State::AwaitsClusters { owner, since };
        }
        if self.is_free(own, implied, around) {
            return State::Holds(owner);
        }
        let Some((_, visible_since)) = self.visible else { return State::AwaitsRecord { owner, former: None } };
        if !clusters.is_verified() {
            return State::AwaitsClusters { owner, since };
        }
        let ripe = visible_since + clusters.delay();
        if now < ripe || !clusters.covers(ripe) {
            let at = if now < ripe { ripe } else { now + AGAIN };
            self.due = Some(clusters.alone_from().map_or(at, |from| from.max(now + AGAIN).min(at)));
            return State::AwaitsDelay(owner);
        }
        State::Holds(owner)
    }

    /// Whether the first claim need not be visible for a while.
    fn is_free(&self, own: &Registration, implied: bool, around: Around<'_>) -> bool {
        let Around { knowledge, clusters, now, .. } = around;
        // A claim that is as new as this one proves nothing: both may have yet to hear of an older one.
        let delay = clusters.delay().as_secs().cast_signed();
        let is_settled = |other: &Registration| other.claimed.saturating_add(delay) < own.claimed;
        let shared = || {
            knowledge.other_claims(&own.target).all(|other| other.owner.is_same_service(&own.owner))
                && knowledge.other_claims(&own.target).any(|other| is_settled(&other))
        };
        let alone = clusters.alone_from().is_some_and(|from| now >= from);
        let established = self.inherited.is_some_and(|inherited| inherited.established);
        established || implied && !self.was_unable || clusters.is_fresh(now) && (alone || shared())
    }
}
