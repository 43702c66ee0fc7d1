//! How far a cluster's endpoints have left what other clusters can serve.

use std::{fmt, num::NonZeroU8, str::FromStr};

use super::MinReady;

/// In how many steps endpoints leave a name, or come back.
pub const STEPS: u8 = 4;

/// The part of a cluster's endpoints that leaves each name that others can serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Drain {
    /// In percent, at most 100.
    percent: NonZeroU8,
    /// Which share of the endpoints elsewhere must be ready for all of that part to leave.
    min_ready: MinReady,
}

/// The text is no drain as [`Drain`] writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no drain that this version understands")]
pub struct NoDrain;

impl Drain {
    /// All endpoints leave, as long as this share of those elsewhere is ready.
    #[must_use]
    pub fn whole(min_ready: MinReady) -> Self {
        Self { percent: NonZeroU8::MIN.saturating_add(99), min_ready }
    }

    /// The part that leaves, in percent: from 1 to 100.
    #[must_use]
    pub const fn percent(self) -> u8 {
        self.percent.get()
    }

    /// Whether all endpoints leave.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.percent() == 100
    }

    /// Which share of the endpoints elsewhere must be ready.
    #[must_use]
    pub const fn min_ready(self) -> MinReady {
        self.min_ready
    }

    /// After the next of [`STEPS`] on the way back; `None` after the last one.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        let percent = NonZeroU8::new(self.percent().saturating_sub(100 / STEPS))?;
        Some(Self { percent, ..self })
    }

    /// How many of `count` endpoints stay.
    #[must_use]
    pub fn staying(self, count: usize) -> usize {
        (count * usize::from(100 - self.percent())).div_ceil(100)
    }
}

/// The form in which it is published: a value that a property may have.
impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.percent, self.min_ready.percent())
    }
}

impl FromStr for Drain {
    type Err = NoDrain;

    fn from_str(text: &str) -> Result<Self, NoDrain> {
        let (percent, min_ready) = text.split_once('-').ok_or(NoDrain)?;
        let percent = percent.parse::<NonZeroU8>().ok().filter(|percent| percent.get() <= 100);
        let min_ready = min_ready.parse().ok().and_then(MinReady::of_percent);
        percent.zip(min_ready).map(|(percent, min_ready)| Self { percent, min_ready }).ok_or(NoDrain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_comes_back_in_steps_and_as_it_was_published() {
        let mut drain = Drain::whole("50%".parse().unwrap());
        let mut said = vec![drain.to_string()];
        while let Some(next) = drain.next() {
            assert_eq!(next.to_string().parse(), Ok(next));
            said.push(next.to_string());
            drain = next;
        }
        assert_eq!(said, ["100-50", "75-50", "50-50", "25-50"]);
        assert_eq!(Drain::whole(MinReady::ANY).to_string(), "100-0");
    }

    #[test]
    fn what_no_version_can_have_published_is_refused() {
        for text in ["", "100", "0-50", "101-50", "50-101", "true", "-1-50", "50--1", "50-50-50"] {
            assert_eq!(text.parse::<Drain>(), Err(NoDrain), "{text:?}");
        }
    }

    #[test]
    fn the_last_endpoint_stays_until_all_leave() {
        let of = |percent: &str, count| percent.parse::<Drain>().unwrap().staying(count);
        assert_eq!([of("75-0", 1), of("75-0", 10), of("50-0", 10), of("25-0", 3)], [1, 3, 5, 3]);
        assert_eq!([of("100-0", 10), of("75-0", 0)], [0, 0]);
    }
}
