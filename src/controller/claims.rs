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

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{Knowledge, core::SETTLE};
use instances::sync::Reason;
use ledger::{Map, limits::Timing, record::Position, records};
use model::{ClaimOwner, ClaimState, ClusterId, Registration, ServiceKey, Target};

/// Older readings do not show what holds now.
const FRESH: Duration = Duration::from_secs(30);

/// How soon to judge again what waits for a reading.
const AGAIN: Duration = Duration::from_secs(1);

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

/// When the registry was read, and when the other clusters were heard of.
#[derive(Debug, Default)]
struct Readings {
    /// When the last complete reading ended, and when the one before it did: the last one began after that.
    last: Option<Duration>,
    before: Option<Duration>,
    heard: BTreeMap<Arc<str>, Heard>,
}

/// How a cluster was heard of.
#[derive(Debug, Clone, Copy)]
struct Heard {
    position: Position,
    /// When its head advanced last, and since when it does so without a long pause. `None`: it was not seen to advance.
    last: Option<Duration>,
    since: Duration,
}

impl Heard {
    fn at(before: Option<&Self>, position: Position, now: Duration) -> Self {
        match before {
            None => Self { position, last: None, since: now },
            Some(before) if before.position == position => *before,
            Some(before) => {
                let goes_on = before.last.is_some_and(|last| now <= last + Timing::default().silence());
                Self { position, last: Some(now), since: if goes_on { before.since } else { now } }
            }
        }
    }
}

/// The state of this cluster's claims.
#[derive(Debug)]
pub(super) struct Claims {
    delay: Duration,
    /// Whether this cluster is in no ClusterSet: there are no others, and there is nothing to read.
    standalone: bool,
    readings: Readings,
    /// Since when this is the only cluster in the ClusterSet, as others see it, too; `None` if there is another one.
    sole_since: Option<Duration>,
    /// Whether every live cluster is readable.
    verified: bool,
    /// The published state that was read back.
    visible: Option<Arc<Map>>,
    /// Claims of the previous leader that are older than the delay.
    established: BTreeSet<Target>,
    /// Targets of the previous leader that are not judged yet and may have instances of this cluster.
    inherited: BTreeSet<Target>,
    /// Date of a claim, and since when it is visible.
    visible_since: BTreeMap<Target, (i64, Duration)>,
    /// Until when lost targets are kept.
    kept_until: BTreeMap<Target, Duration>,
    /// The standing of this cluster, and whose instances are or may be there: those of the owner of its claim, or of
    /// the previous owner that still hands over.
    standings: BTreeMap<Target, (ClaimOwner, Standing)>,
    /// Targets whose claim went to another name of this cluster, and has not been read back yet: whose instances are
    /// still there.
    followed: BTreeMap<Target, ClaimOwner>,
    /// Targets whose owner was unable in this term, and has not held since.
    unable: BTreeSet<Target>,
    /// To whom targets are handed over.
    successors: BTreeMap<Target, Successor>,
    /// Why owners are unable.
    refusals: BTreeMap<Target, BTreeMap<ClaimOwner, (Reason, String)>>,
    /// Since when targets wait for clusters that cannot be read.
    unread_since: BTreeMap<Target, Duration>,
    /// When to judge again if time alone changes the judgement or its report.
    due: BTreeMap<Target, Duration>,
    /// The same, sorted by time.
    next: BTreeSet<(Duration, Target)>,
}

impl Claims {
    pub(super) fn new(delay: Duration) -> Self {
        Self {
            delay,
            standalone: false,
            readings: Readings::default(),
            sole_since: None,
            verified: false,
            visible: None,
            established: BTreeSet::new(),
            inherited: BTreeSet::new(),
            visible_since: BTreeMap::new(),
            kept_until: BTreeMap::new(),
            standings: BTreeMap::new(),
            followed: BTreeMap::new(),
            unable: BTreeSet::new(),
            successors: BTreeMap::new(),
            refusals: BTreeMap::new(),
            unread_since: BTreeMap::new(),
            due: BTreeMap::new(),
            next: BTreeSet::new(),
        }
    }

    /// The claims of a cluster that is in no ClusterSet.
    pub(super) fn standalone(delay: Duration) -> Self {
        Self { standalone: true, sole_since: Some(Duration::ZERO), verified: true, ..Self::new(delay) }
    }

    /// All heads were read. `positions` are those of the other clusters.
    pub(super) fn read<'a>(&mut self, positions: impl Iterator<Item = (&'a Arc<str>, Position)>, now: Duration) {
        let Readings { last, before, heard } = &mut self.readings;
        *before = last.replace(now);
        let hear =
            |(cluster, position): (&'a Arc<str>, _)| (cluster.clone(), Heard::at(heard.get(cluster), position, now));
        *heard = positions.map(hear).collect();
    }

    fn is_fresh(&self, now: Duration) -> bool {
        self.standalone || self.readings.last.is_some_and(|last| now <= last + FRESH)
    }

    /// Whether the last reading began at `time` or later.
    fn covers(&self, time: Duration) -> bool {
        self.readings.before.is_some_and(|before| before >= time)
    }

    /// Whether a cluster was heard of at this time or later, and for as long before as a successor needs.
    fn had_time(&self, cluster: &ClusterId, time: Duration) -> bool {
        let long = |heard: &Heard| heard.last.is_some_and(|last| last >= time.max(heard.since + 2 * self.delay));
        self.readings.heard.get(cluster.as_str()).is_some_and(long)
    }

    /// Takes over the claims of the previous leader. `date` is when that leader published them last, in seconds since
    /// 1970: claims and date are by the same clock.
    pub(super) fn inherit<'a>(&mut self, registrations: impl Iterator<Item = &'a Registration> + Clone, date: i64) {
        self.inherited = registrations.clone().map(|registration| registration.target.clone()).collect();
        let old = |registration: &&Registration| {
            let age = Duration::from_secs(date.saturating_sub(registration.claimed).max(0).unsigned_abs());
            matches!(registration.state, ClaimState::Serves | ClaimState::Empty) && age >= self.delay
        };
        self.established = registrations.filter(old).map(|registration| registration.target.clone()).collect();
    }

    /// Sets whether this is the only cluster, and whether every live one is readable. Returns whether that is new.
    pub(super) fn set_clusters(&mut self, sole: bool, verified: bool, now: Duration) -> bool {
        let before = (self.sole_since, self.verified);
        (self.sole_since, self.verified) = (sole.then(|| self.sole_since.unwrap_or(now)), verified);
        before != (self.sole_since, verified)
    }

    /// Other clusters see this one from now on. Those that came earlier may take themselves for the only one.
    pub(super) fn seen(&mut self, now: Duration) {
        if let Some(since) = &mut self.sole_since {
            *since = now;
        }
    }

    /// Since when nobody else can have a claim that is not known yet.
    fn alone_from(&self) -> Option<Duration> {
        let delay = if self.standalone { Duration::ZERO } else { self.delay };
        Some(self.sole_since? + delay)
    }

    /// Returns the targets whose visible records changed.
    pub(super) fn set_visible(&mut self, map: Option<Arc<Map>>) -> BTreeSet<Target> {
        let before = std::mem::replace(&mut self.visible, map);
        let [before, after] = [&before, &self.visible].map(|map| map.as_deref().cloned().unwrap_or_default());
        records::changed_registrations(&before, &after)
    }

    pub(super) fn delay(&self) -> Duration {
        self.delay
    }

    pub(super) fn standing(&self, target: &Target) -> Option<Standing> {
        self.standings.get(target).map(|(_, standing)| *standing)
    }

    /// The owner whose instances are or may be in a target.
    pub(super) fn acts_for(&self, target: &Target) -> Option<&ClaimOwner> {
        self.standings.get(target).map(|(owner, _)| owner)
    }

    /// Targets that are not held. What the registry shows of our claims, or of other clusters, may change that.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Target> {
        self.standings.iter().filter(|(_, (_, standing))| *standing != Standing::Holds).map(|(target, _)| target)
    }

    /// Targets that an owner has lost, or moved away from, and still keeps.
    pub(super) fn handed_over_by(&self, owner: &ClaimOwner) -> impl Iterator<Item = &Target> {
        let standing = |target: &&Target| self.standings.get(*target);
        // Not `due`: thousands of new claims may wait there for their delay, and each changed object asks this.
        self.kept_until.keys().filter(move |target| {
            standing(target).is_some_and(|(held, standing)| {
                held == owner && matches!(standing, Standing::HandsOver | Standing::Keeps)
            })
        })
    }

    /// When the next target must be judged again.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.next.first().map(|(at, _)| *at)
    }

    fn judge_at(&mut self, target: &Target, at: Duration) {
        self.due.insert(target.clone(), at);
        self.next.insert((at, target.clone()));
    }

    pub(super) fn due(&self, now: Duration) -> impl Iterator<Item = &Target> {
        self.next.iter().take_while(move |(at, _)| *at <= now).map(|(_, target)| target)
    }

    /// Notes why an owner may not register in a target; `None`: it may.
    pub(super) fn decide(&mut self, target: &Target, owner: &ClaimOwner, why: Option<&(Reason, String)>) {
        match why {
            Some(why) => drop(self.refusals.entry(target.clone()).or_default().insert(owner.clone(), why.clone())),
            None => {
                if let Some(refusals) = self.refusals.get_mut(target) {
                    refusals.remove(owner);
                }
            }
        }
    }

    /// Why an owner may not register in a target, if that was found out in this term.
    pub(super) fn refusal(&self, target: &Target, owner: &ClaimOwner) -> Option<&(Reason, String)> {
        self.refusals.get(target)?.get(owner)
    }

    /// To whom a target is handed over, if it is, in another cluster.
    pub(super) fn successor(&self, target: &Target) -> Option<&Successor> {
        self.successors.get(target)
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
        if let Some(at) = self.due.remove(target) {
            self.next.remove(&(at, target.clone()));
        }
        let Some(own) = knowledge.exports().and_then(|exports| exports.registrations().get(target)) else {
            self.established.remove(target);
            self.inherited.remove(target);
            self.visible_since.remove(target);
            self.kept_until.remove(target);
            self.standings.remove(target);
            self.followed.remove(target);
            self.unable.remove(target);
            self.successors.remove(target);
            self.refusals.remove(target);
            self.unread_since.remove(target);
            return None;
        };
        self.note_visibility(own, now);
        let first = knowledge.first_claim(target).filter(|(cluster, first)| {
            cluster != knowledge.local() && !first.is_unable() && !first.owner.is_same_service(&own.owner)
        });
        let rival = first.map(|(cluster, Registration { owner, state, .. })| Successor {
            cluster,
            owner,
            empty: state == ClaimState::Empty,
        });
        if own.is_unable() {
            self.unable.insert(target.clone());
        }
        let held = self.held_by(own);
        let circumstances = circumstances(own, held.as_ref().map_or(&own.owner, |(holder, _)| holder), rival.as_ref());
        let (owner, standing) = if own.is_retiring() || rival.is_some() {
            let unread = knowledge.settling() && self.sole_since.is_none();
            let held = held.filter(|_| circumstances.hand_over != HandOver::Nothing);
            let lost = self.lose(own, (held, rival.as_ref()), (circumstances.hand_over, unread), now);
            match rival.filter(|_| matches!(lost.1, Standing::HandsOver | Standing::Keeps)) {
                Some(successor) => self.successors.insert(target.clone(), successor),
                None => self.successors.remove(target),
            };
            lost
        } else if own.is_unable() {
            self.kept_until.remove(target);
            self.successors.remove(target);
            self.followed.remove(target);
            self.established.remove(target);
            (own.owner.clone(), Standing::Unable)
        } else {
            self.kept_until.remove(target);
            self.successors.remove(target);
            // A claim that is as new as this one proves nothing: both may have yet to hear of an older one.
            let delay = self.delay.as_secs().cast_signed();
            let is_settled = |other: &Registration| other.claimed.saturating_add(delay) < own.claimed;
            let shared = || {
                knowledge.other_claims(target).all(|other| other.owner.is_same_service(&own.owner))
                    && knowledge.other_claims(target).any(|other| is_settled(&other))
            };
            let alone = self.alone_from().is_some_and(|from| now >= from);
            let implied = circumstances.implied && !self.unable.contains(target);
            let free = self.established.contains(target) || implied || self.is_fresh(now) && (alone || shared());
            let was_unable = self.standings.get(target) == Some(&(own.owner.clone(), Standing::Unable));
            let standing = self.hold(knowledge, own, free, now);
            // What is registered there follows the pods while the claim waits.
            (own.owner.clone(), if was_unable && standing != Standing::Holds { Standing::Unable } else { standing })
        };
        if standing == Standing::Holds {
            self.unable.remove(target);
        }
        // Until then it is not known what the previous leader had there.
        if matches!(standing, Standing::Holds | Standing::Withdraws) {
            self.inherited.remove(target);
        }
        self.standings.insert(target.clone(), (owner, standing));
        if standing == Standing::AwaitsClusters {
            let long = *self.unread_since.entry(target.clone()).or_insert(now) + SETTLE;
            if now < long {
                self.judge_at(target, long);
            }
        } else {
            self.unread_since.remove(target);
        }
        Some(standing)
    }

    /// Whether a target has waited for unreadable clusters for longer than usual.
    pub(super) fn awaits_clusters_long(&self, target: &Target, now: Duration) -> bool {
        self.unread_since.get(target).is_some_and(|since| now >= *since + SETTLE)
    }

    fn note_visibility(&mut self, own: &Registration, now: Duration) {
        let there = self.visible.as_ref().and_then(|map| records::registration(map, &own.target));
        if own.is_retiring() || !there.is_some_and(|there| there.is_same_claim(own)) {
            self.visible_since.remove(&own.target);
            return;
        }
        let seen = self.visible_since.entry(own.target.clone()).or_insert((own.claimed, now));
        if seen.0 != own.claimed {
            *seen = (own.claimed, now);
        }
    }

    /// Whose instances are in a target that this cluster has.
    fn holder(&self, target: &Target) -> Option<&ClaimOwner> {
        self.followed.get(target).or_else(|| match self.standings.get(target) {
            Some((owner, Standing::Holds | Standing::HandsOver)) => Some(owner),
            _ => None,
        })
    }

    /// Whose instances are or may be in a target, and what may be done about them once it is lost.
    fn held_by(&self, own: &Registration) -> Option<(ClaimOwner, Standing)> {
        let target = &own.target;
        let (former, standing) = match (self.holder(target), self.standings.get(target)) {
            (Some(former), _) => (former, Standing::HandsOver),
            (None, Some((former, Standing::Keeps | Standing::Unable))) => (former, Standing::Keeps),
            _ if self.inherited.contains(target) => (&own.owner, Standing::Keeps),
            _ => return None,
        };
        // If another name of this cluster follows in the claim, but is not the first one of all clusters, it has no
        // instances there yet.
        Some((if former.is_same_service(&own.owner) { &own.owner } else { former }.clone(), standing))
    }

    /// A claim that was released, or turned out to be younger. `held`: whose instances are to be handed over. Also
    /// returns whose instances are there. `unread`: it is not known yet who else has claims.
    fn lose(
        &mut self,
        own: &Registration,
        (held, rival): (Option<(ClaimOwner, Standing)>, Option<&Successor>),
        (hand_over, unread): (HandOver, bool),
        now: Duration,
    ) -> (ClaimOwner, Standing) {
        let target = &own.target;
        self.established.remove(target);
        self.followed.remove(target);
        if let Some((former, Standing::Keeps)) = &held
            && rival.is_none()
            && unread
        {
            return (former.clone(), Standing::Keeps);
        }
        let until = *self.kept_until.entry(target.clone()).or_insert(now + 2 * self.delay);
        let awaits_time = rival.is_some_and(|rival| now < until || !self.had_time(&rival.cluster, until));
        let expected = rival.is_some_and(|rival| !rival.empty) && hand_over != HandOver::Timed;
        let awaits = if expected { hand_over != HandOver::Succeeded } else { awaits_time };
        let waits = now < until && rival.is_some() || awaits;
        match held {
            Some((former, standing)) if waits => {
                if now < until {
                    self.judge_at(target, until);
                } else if !expected {
                    self.judge_at(target, now + AGAIN);
                }
                (former, standing)
            }
            _ => (own.owner.clone(), Standing::Withdraws),
        }
    }

    /// The oldest claim of all.
    fn hold(&mut self, knowledge: &Knowledge, own: &Registration, free: bool, now: Duration) -> Standing {
        let target = &own.target;
        if let Some(holder) = self.holder(target) {
            // What shows the claim of the next name shows an older one elsewhere, too.
            let follows = !holder.is_same_service(&own.owner) && self.sole_since.is_none();
            if follows && !self.visible_since.contains_key(target) {
                let holder = holder.clone();
                self.followed.insert(target.clone(), holder);
                return Standing::AwaitsRecord;
            }
            self.followed.remove(target);
            return Standing::Holds;
        }
        if !knowledge.is_on_record(target) {
            return Standing::AwaitsRecord;
        }
        // The only cluster waits for nobody, and neither does a standalone one.
        if knowledge.settling() && self.sole_since.is_none() {
            return Standing::AwaitsClusters;
        }
        if free {
            return Standing::Holds;
        }
        let Some((_, since)) = self.visible_since.get(target) else { return Standing::AwaitsRecord };
        let ripe = *since + self.delay;
        if !self.verified {
            return Standing::AwaitsClusters;
        }
        if now < ripe || !self.covers(ripe) {
            let at = if now < ripe { ripe } else { now + AGAIN };
            self.judge_at(target, self.alone_from().map_or(at, |from| from.max(now + AGAIN).min(at)));
            return Standing::AwaitsDelay;
        }
        Standing::Holds
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
