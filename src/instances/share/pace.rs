//! How the number of registered pods follows what others have registered. It follows at once when the user or the pods
//! change something, and only after a while when instances of others come and go.

use std::time::Duration;

use tokio::time::Instant;

use super::{Others, Share, Traffic};

/// For how long a number must be off before it follows a change of others' instances, as ECS' autoscaling makes them.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// The number of pods to register, and what it depends on. It survives as long as a leader's term.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pace {
    asked: Option<Share>,
    /// The number, before it is limited by the pods that are ready; `usize::MAX` means all.
    number: Option<usize>,
    off: Option<Off>,
}

/// The number is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Off {
    since: Instant,
    /// The nearest number that was right since then: by so much it was off all the time.
    nearest: usize,
    patience: Duration,
}

/// What a number is made of.
#[derive(Debug, Clone, Copy)]
pub struct Observed {
    /// What is requested.
    pub traffic: Traffic,
    /// What others have registered.
    pub others: Others,
    /// Number of pods that are registered.
    pub registered: usize,
    /// How long clusters that have a share as well may take to see a change and to go down.
    pub settling: Duration,
}

impl Pace {
    /// The share that counts: the last one that could be read.
    pub const fn asked(&self) -> Option<Share> {
        self.asked
    }

    /// The share that tasks are hidden for: the one that counts, or a smaller one that is requested.
    pub fn hiding(&self, traffic: Traffic) -> Option<Share> {
        match traffic.share() {
            Some(share) => Some(self.asked.map_or(share, |asked| asked.min(share))),
            None => self.asked,
        }
    }

    /// Where no share was requested so far in this term, and all pods were registered.
    pub fn of_all() -> Self {
        Self { number: Some(usize::MAX), ..Self::default() }
    }

    /// Whether another share is requested than the one that counts.
    pub fn is_new(&self, traffic: Traffic) -> bool {
        traffic.share().is_some_and(|share| self.number.is_some() && self.asked != Some(share))
    }

    /// When the number follows if nothing else changes.
    pub fn wake(&self) -> Option<Instant> {
        self.off.map(|off| off.since + off.patience)
    }

    /// The number of pods to register; all of them if fewer are ready.
    ///
    /// - A new share counts at once.
    /// - While only clusters with a share are left, nobody has the rest of the traffic. All pods are registered, at
    ///   once, because each serves more than it was meant to. At 0 % those that are registered stay, and none comes, unless
    ///   the cluster is drained.
    /// - Otherwise the number follows after [`PATIENCE`], to where it was off all that time.
    /// - Several clusters that each count the other's instances can drive each other up and down. So an increase waits
    ///   until the others had time to go down (`settling`). Decreases then end first, because each of them only causes
    ///   further decreases. From there each increase only causes further increases, which the number of pods limits.
    pub fn number(&mut self, observed: Observed, now: Instant) -> usize {
        let Observed { traffic, others, registered, settling } = observed;
        let share = match traffic {
            Traffic::All => {
                *self = Self::of_all();
                return usize::MAX;
            }
            Traffic::Share(_) | Traffic::Drained => traffic.share(),
            Traffic::Unclear => self.asked,
        };
        let new = share != self.asked;
        let first = self.number.is_none();
        self.asked = share;
        let before = self.number.unwrap_or(registered);
        let right = match share {
            None => before,
            Some(share) if others.whole > 0 => share.number(others.count()),
            Some(share) if share.is_none() && traffic != Traffic::Drained => {
                if before == usize::MAX {
                    registered
                } else {
                    before
                }
            }
            Some(_) => usize::MAX,
        };
        // What an earlier leader registered follows like everything else: it may have waited for a reason.
        let at_once = if first { registered == 0 } else { new } || others.whole == 0;
        let patience = if right > before && others.partial > 0 { settling.max(PATIENCE) } else { PATIENCE };
        if at_once || right == before {
            self.off = None;
            self.number = Some(right);
            return right;
        }
        let off = match self.off {
            Some(Off { since, nearest, .. }) if (nearest > before) == (right > before) => {
                let nearest = if right > before { nearest.min(right) } else { nearest.max(right) };
                Off { since, nearest, patience }
            }
            _ => Off { since: now, nearest: right, patience },
        };
        if now >= off.since + off.patience {
            self.number = Some(off.nearest);
            self.off = (off.nearest != right).then_some(Off { since: now, nearest: right, patience });
            return off.nearest;
        }
        self.number = Some(before);
        self.off = Some(off);
        before
    }
}
