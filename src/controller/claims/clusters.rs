//! Which other clusters there are, and what readings of the registry show of them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ledger::{limits::Timing, record::Position};
use model::ClusterId;

/// Older readings do not show what holds now.
pub(super) const FRESH: Duration = Duration::from_secs(30);

/// What claims wait for in other clusters.
#[derive(Debug, Clone)]
pub(super) struct Clusters {
    delay: Duration,
    /// Whether this cluster is in no ClusterSet: there are no others, and there is nothing to read.
    none: bool,
    readings: Readings,
    /// Since when this is the only cluster in the ClusterSet, as others see it, too; `None` if there is another one.
    sole_since: Option<Duration>,
    /// Whether every live cluster is readable.
    verified: bool,
}

/// When the registry was read, and when the other clusters were heard of.
#[derive(Debug, Clone, Default)]
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

impl Clusters {
    /// Nothing was read yet. `delay`: how long a named claim must be visible.
    pub(super) fn new(delay: Duration) -> Self {
        Self { delay, none: false, readings: Readings::default(), sole_since: None, verified: false }
    }

    /// There are no others.
    pub(super) fn none(delay: Duration) -> Self {
        Self { none: true, sole_since: Some(Duration::ZERO), verified: true, ..Self::new(delay) }
    }

    /// How long a named claim must be visible.
    pub(super) const fn delay(&self) -> Duration {
        self.delay
    }

    /// All heads were read.
    pub(super) fn read<'a>(&mut self, positions: impl Iterator<Item = (&'a Arc<str>, Position)>, now: Duration) {
        let Readings { last, before, heard } = &mut self.readings;
        *before = last.replace(now);
        let hear =
            |(cluster, position): (&'a Arc<str>, _)| (cluster.clone(), Heard::at(heard.get(cluster), position, now));
        *heard = positions.map(hear).collect();
    }

    /// Sets whether this is the only cluster, and whether every live one is readable. Returns whether that is new.
    pub(super) fn set(&mut self, sole: bool, verified: bool, now: Duration) -> bool {
        let before = (self.sole_since, self.verified);
        (self.sole_since, self.verified) = (sole.then(|| self.sole_since.unwrap_or(now)), verified);
        before != (self.sole_since, verified)
    }

    /// Other clusters see this one from now on.
    pub(super) fn seen(&mut self, now: Duration) {
        if let Some(since) = &mut self.sole_since {
            *since = now;
        }
    }

    /// Whether every live cluster is readable.
    pub(super) const fn is_verified(&self) -> bool {
        self.verified
    }

    /// Whether this is the only cluster.
    pub(super) const fn is_sole(&self) -> bool {
        self.sole_since.is_some()
    }

    /// Since when nobody else can have a claim that is not known yet.
    pub(super) fn alone_from(&self) -> Option<Duration> {
        let delay = if self.none { Duration::ZERO } else { self.delay };
        Some(self.sole_since? + delay)
    }

    /// Whether the last reading shows what holds now.
    pub(super) fn is_fresh(&self, now: Duration) -> bool {
        self.none || self.readings.last.is_some_and(|last| now <= last + FRESH)
    }

    /// Whether the last reading began at `time` or later.
    pub(super) fn covers(&self, time: Duration) -> bool {
        self.readings.before.is_some_and(|before| before >= time)
    }

    /// Whether a cluster was heard of at this time or later, and for as long before as a successor needs.
    pub(super) fn had_time(&self, cluster: &ClusterId, time: Duration) -> bool {
        let long = |heard: &Heard| heard.last.is_some_and(|last| last >= time.max(heard.since + 2 * self.delay));
        self.readings.heard.get(cluster.as_str()).is_some_and(long)
    }
}
