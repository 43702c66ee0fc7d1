//! The steps of a Cutover, as its spec has them.

use std::{fmt, str::FromStr, time::Duration};

use k8s_openapi::jiff::SignedDuration;

use super::guard::Guard;
use api::CutoverSpec;
use model::Excerpt;

/// How long a step lasts if the spec does not say it.
pub const INTERVAL: Duration = Duration::from_mins(5);
/// The steps of a Cutover that `start` begins without others.
pub const STEPS: [u8; 4] = [5, 25, 50, 100];
/// Until an instance that is withdrawn is gone from the answers.
pub const WITHDRAWAL: Duration = Duration::from_secs(5);
/// Until another leader withdraws a pod: the Lease, and a look at everything.
pub const FAILOVER: Duration = Duration::from_secs(15);

/// By how much clients are late (`--settle`): for so long beyond the TTL they use an answer, because resolvers and connections
/// take the next one over late. In whole seconds, as all texts have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settle(Duration);

impl Settle {
    /// The most that the flag takes.
    pub const LONGEST: Self = Self(Self::MOST);
    /// Statuses have whole seconds, so that less could be nothing.
    const LEAST: Duration = Duration::from_secs(1);
    /// Connection pools keep a connection for half an hour at most. A client that uses one for longer must be found by a person.
    const MOST: Duration = Duration::from_hours(1);

    /// The time in seconds.
    pub const fn as_secs(self) -> u64 {
        self.0.as_secs()
    }

    /// For so long clients use an answer of DNS with this TTL in seconds.
    pub fn beyond(self, ttl: u32) -> Duration {
        Duration::from_secs(ttl.into()) + self.0
    }
}

impl Default for Settle {
    /// As long as the JVM keeps addresses by itself.
    fn default() -> Self {
        Self(Duration::from_secs(30))
    }
}

impl FromStr for Settle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
        time.filter(|time| time.subsec_nanos() == 0 && (Self::LEAST..=Self::MOST).contains(time))
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not a duration from 1s to 1h, in whole seconds"))
    }
}

impl fmt::Display for Settle {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s", self.as_secs())
    }
}

/// For so long clients use the address of a pod that was deleted, beside records with this TTL in seconds. The pod has to answer
/// meanwhile.
pub fn lingers(ttl: u32, settle: Settle) -> Duration {
    WITHDRAWAL + FAILOVER + settle.beyond(ttl)
}

/// A valid spec.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    /// Rising percentages, from 1 to 100; at least one.
    pub steps: Vec<u8>,
    /// How long a step lasts at least.
    pub interval: Duration,
    /// The share that holds, whatever the steps are.
    pub held: Option<u8>,
    /// What looks at the steps.
    pub guard: Option<Guard>,
}

impl Course {
    /// What a spec says.
    ///
    /// # Errors
    /// The schema admits it, or the CRD is another one, and it is invalid. The text names the field and the remedy.
    pub fn read(spec: &CutoverSpec) -> Result<Self, String> {
        let steps: Option<Vec<u8>> =
            spec.steps.iter().map(|step| u8::try_from(*step).ok().filter(|step| (1..=100).contains(step))).collect();
        let rising = |steps: &Vec<u8>| !steps.is_empty() && steps.is_sorted_by(|one, next| one < next);
        let steps = steps.filter(rising).ok_or_else(|| {
            format!("spec.steps is {:?}: write rising percentages from 1 to 100, such as [5, 25, 50, 100]", spec.steps)
        })?;
        let interval = spec.interval.as_deref().map_or(Ok(INTERVAL), |text| {
            let parsed = text.parse::<SignedDuration>().ok().and_then(|interval| Duration::try_from(interval).ok());
            parsed.ok_or_else(|| format!("spec.interval is {}: write a duration such as 5m or 90s", Excerpt(text)))
        })?;
        let held = spec.share_of_traffic.map(|share| {
            let held = u8::try_from(share).ok().filter(|share| *share <= 100);
            held.ok_or_else(|| format!("spec.shareOfTraffic is {share}: write a percentage from 0 to 100, such as 25"))
        });
        let guard = spec.guard.as_ref().map(Guard::read).transpose()?;
        Ok(Self { steps, interval, held: held.transpose()?, guard })
    }

    /// The first step above a share.
    pub fn next(&self, share: u8) -> Option<u8> {
        self.steps.iter().copied().find(|step| *step > share)
    }

    /// How many steps a share has reached.
    pub fn count(&self, share: u8) -> usize {
        self.steps.iter().filter(|step| **step <= share).count()
    }

    /// How long a step lasts beside DNS records with this TTL in seconds.
    pub fn interval(&self, ttl: u32, settle: Settle) -> Duration {
        self.interval.max(settle.beyond(ttl))
    }
}
