//! Which share of endpoints must be ready.

use std::{fmt, str::FromStr};

use super::Excerpt;

/// Which share of some endpoints must be ready for these to serve alone, in percent; 0 means any ready endpoint, as in
/// KEP-5939.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MinReady(u8);

/// The text is no share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is no share: write \"any\", or a whole percentage from \"1%\" to \"100%\"", Excerpt(.0))]
pub struct NoMinReady(String);

impl MinReady {
    /// Any ready endpoint.
    pub const ANY: Self = Self(0);
    /// As many as a proxy may lose before it prefers farther endpoints (1/1.4): that of `local-first`, and of a drain.
    pub const MOST: Self = Self(70);

    /// A share in percent, from 0 for [`Self::ANY`] to 100.
    #[must_use]
    pub fn of_percent(percent: u8) -> Option<Self> {
        (percent <= 100).then_some(Self(percent))
    }

    /// The share in percent.
    #[must_use]
    pub const fn percent(self) -> u8 {
        self.0
    }

    /// Which part of the connections these endpoints can take, from 0 to 1: all while enough of them are ready.
    #[must_use]
    pub fn health(self, ready: usize, listed: usize) -> f64 {
        match (ready, self.0) {
            (0, _) => 0.0,
            (_, 0) => 1.0,
            _ => (number(ready) / number(listed) * 100.0 / f64::from(self.0)).min(1.0),
        }
    }
}

/// A number of endpoints, to be multiplied by shares. No name has so many that this would be inexact.
#[must_use]
pub fn number(count: usize) -> f64 {
    u32::try_from(count).unwrap_or(u32::MAX).into()
}

impl FromStr for MinReady {
    type Err = NoMinReady;

    fn from_str(text: &str) -> Result<Self, NoMinReady> {
        if text == "any" {
            return Ok(Self::ANY);
        }
        let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
        percent.filter(|percent| (1..=100).contains(percent)).map(Self).ok_or_else(|| NoMinReady(text.to_owned()))
    }
}

impl fmt::Display for MinReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ANY { f.write_str("any") } else { write!(f, "{}%", self.0) }
    }
}

impl TryFrom<String> for MinReady {
    type Error = NoMinReady;

    fn try_from(text: String) -> Result<Self, NoMinReady> {
        text.parse()
    }
}

impl From<MinReady> for String {
    fn from(share: MinReady) -> Self {
        share.to_string()
    }
}
