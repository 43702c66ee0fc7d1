//! What a check found.

use std::time::Duration;

/// The result of a check, with what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The fact holds.
    Confirmed(String),
    /// AWS does otherwise.
    Refuted(String),
    /// The fact holds in kind, but a measured value is not what the documents say.
    Differs(String),
    /// Nothing is known, and why.
    Skipped(String),
}

impl Verdict {
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Confirmed(_) => "confirmed",
            Self::Refuted(_) => "refuted",
            Self::Differs(_) => "differs",
            Self::Skipped(_) => "skipped",
        }
    }

    /// What was seen, or why nothing was.
    pub fn seen(&self) -> &str {
        match self {
            Self::Confirmed(text) | Self::Refuted(text) | Self::Differs(text) | Self::Skipped(text) => text,
        }
    }

    pub(super) fn holds(holds: bool, seen: impl Into<String>) -> Self {
        if holds { Self::Confirmed(seen.into()) } else { Self::Refuted(seen.into()) }
    }

    /// Whether the longest of these times is within a limit.
    pub(super) fn within(limit: Duration, times: &[(&str, Vec<Duration>)]) -> Self {
        let text =
            times.iter().map(|(what, times)| format!("{what} {}", summary(times))).collect::<Vec<_>>().join("; ");
        let longest = times.iter().flat_map(|(_, times)| times).max().copied().unwrap_or_default();
        if longest <= limit { Self::Confirmed(text) } else { Self::Differs(text) }
    }
}

/// `1.2 s (0.8 to 2.0 s, 5 times)`: median, least, most.
fn summary(times: &[Duration]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    match sorted.as_slice() {
        [] => "never".to_owned(),
        [one] => seconds(*one),
        [least, .., most] => {
            let median = sorted[sorted.len() / 2];
            format!("{} ({} to {}, {} times)", seconds(median), seconds(*least), seconds(*most), sorted.len())
        }
    }
}

pub(super) fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
