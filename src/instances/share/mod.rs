//! Which part of a Service's ready pods is registered, so that they get a share of a name's traffic beside instances of
//! others. Pure: the value and its arithmetic here, how a number follows the others' instances in [`pace`], which pods are
//! registered in [`choice`], and which tasks are hidden in [`hiding`].
//!
//! Clients choose among the instances of a name at random, so k pods beside t healthy instances of others get k/(k+t)
//! of the traffic. Nothing between these values can be reached.

pub mod choice;
pub mod hiding;
pub mod pace;

use std::{fmt, str::FromStr};

use api::names::ANNOTATION_SHARE_OF_TRAFFIC;
use cloudmap::{
    Instance,
    attributes::{IPV4, IPV6, PARTIAL},
};
use model::{Excerpt, Pairs};

/// A share of the traffic, from 0 to 100 %, in hundredths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u16);

/// A share of 100 %.
const WHOLE: u16 = 10_000;

/// Which part of the traffic the instances of a target should get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Traffic {
    /// No share is requested: every ready pod is registered.
    #[default]
    All,
    /// This share, as nearly as possible and never more.
    Share(Share),
    /// No traffic as long as others serve, because the cluster is drained. Otherwise every ready pod is registered.
    Drained,
    /// A share is requested that cannot be read. The last one stays, or else the number of instances.
    Unclear,
}

impl Traffic {
    /// What an object's annotation requests, and the message about an invalid one, with the remedy.
    pub fn read(annotations: &Pairs) -> (Self, Option<String>) {
        let Some(text) = annotations.get(ANNOTATION_SHARE_OF_TRAFFIC) else { return (Self::All, None) };
        if let Ok(share) = text.parse() {
            return (Self::Share(share), None);
        }
        let message = format!(
            "{ANNOTATION_SHARE_OF_TRAFFIC} is {}: write a percentage from \"0%\" to \"100%\", such as \"25%\". Until then, the \
             last valid share stays",
            Excerpt(text)
        );
        (Self::Unclear, Some(message))
    }

    /// The share that is requested, if it is known.
    pub const fn share(self) -> Option<Share> {
        match self {
            Self::Share(share) => Some(share),
            Self::Drained => Some(Share(0)),
            Self::All | Self::Unclear => None,
        }
    }

    /// Whether only some of the ready pods may be registered.
    pub const fn is_part(self) -> bool {
        !matches!(self, Self::All)
    }
}

/// The text is no share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a percentage from 0% to 100%")]
pub struct NoShare;

impl FromStr for Share {
    type Err = NoShare;

    /// A number from 0 to 100 with at most two decimals, followed by `%`.
    fn from_str(text: &str) -> Result<Self, NoShare> {
        let number = text.trim().strip_suffix('%').ok_or(NoShare)?.trim_end();
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits =
            |text: &str, most: usize| (1..=most).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
        if !digits(whole, 3) || !digits(decimals, 2) {
            return Err(NoShare);
        }
        let (whole, decimals) = (whole.parse::<u32>().map_err(|_| NoShare)?, format!("{decimals:0<2}"));
        let hundredths = whole * 100 + decimals.parse::<u32>().map_err(|_| NoShare)?;
        u16::try_from(hundredths).ok().filter(|hundredths| *hundredths <= WHOLE).map(Self).ok_or(NoShare)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole} %"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{} %", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02} %"),
        }
    }
}

impl Share {
    /// The share of `ours` instances beside `others`, rounded down; nothing of nothing.
    pub fn reached(ours: usize, others: usize) -> Self {
        let all = ours + others;
        let hundredths = (ours * usize::from(WHOLE)).checked_div(all).unwrap_or_default();
        Self(u16::try_from(hundredths).unwrap_or(WHOLE))
    }

    /// This percentage, or 100 % if it is more.
    pub fn percent(percent: u8) -> Self {
        Self((u16::from(percent) * 100).min(WHOLE))
    }

    /// In percent, rounded down.
    pub fn whole_percent(self) -> u8 {
        u8::try_from(self.0 / 100).unwrap_or(100)
    }

    /// Whether it requests no traffic at all.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// In hundredths of a percent.
    pub const fn hundredths(self) -> u16 {
        self.0
    }

    /// The largest number of instances that have at most this share beside `others`. Above 0 % it is at least one.
    ///
    /// k/(k+t) ≤ s is k(1−s) ≤ st. All (`usize::MAX`) have at most 100 %.
    pub fn number(self, others: usize) -> usize {
        let rest = usize::from(WHOLE - self.0);
        match (usize::from(self.0) * others).checked_div(rest) {
            _ if self.is_none() => 0,
            Some(number) => number.max(1),
            None => usize::MAX,
        }
    }

    /// The smallest number of others beside which so many instances have at most this share; `usize::MAX` for 0 %.
    pub fn beside(self, ours: usize) -> usize {
        let rest = usize::from(WHOLE - self.0);
        if self.is_none() { usize::MAX } else { (ours * rest).div_ceil(usize::from(self.0)) }
    }
}

/// What others have registered in a target, by a complete reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Others {
    /// Healthy instances that do not depend on a share: ECS tasks, and pods of clusters that register all of theirs.
    pub whole: usize,
    /// Healthy instances of clusters that have a share as well.
    pub partial: usize,
    /// The IP families that all healthy instances of the first kind have. If they have none in common, the families
    /// that any of them has.
    pub families: Families,
}

impl Others {
    /// Counts healthy instances of others.
    pub fn of<'a>(instances: impl IntoIterator<Item = &'a Instance>) -> Self {
        let (partial, whole): (Vec<_>, Vec<_>) =
            instances.into_iter().partition(|there| there.attributes.contains_key(PARTIAL));
        let has = |there: &Instance, key: &str| there.attributes.contains_key(key);
        // Those with a host name have none.
        let families = whole.iter().map(|there| Families { v4: has(there, IPV4), v6: has(there, IPV6) });
        let families = Families::common(families.filter(|families| families.v4 || families.v6));
        Self { whole: whole.len(), partial: partial.len(), families }
    }

    /// All of them: the t of k/(k+t).
    pub const fn count(self) -> usize {
        self.whole + self.partial
    }
}

/// IP families of instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Families {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

impl Default for Families {
    fn default() -> Self {
        Self { v4: true, v6: true }
    }
}

impl Families {
    /// Those that all of these have, or that any has if they have none in common. Both, if there are none.
    pub fn common(all: impl IntoIterator<Item = Self>) -> Self {
        let (mut some, mut every) = (Self { v4: false, v6: false }, Self::default());
        for Self { v4, v6 } in all {
            some = Self { v4: some.v4 | v4, v6: some.v6 | v6 };
            every = Self { v4: every.v4 & v4, v6: every.v6 & v6 };
        }
        let any = |families: Self| families.v4 || families.v6;
        [every, some].into_iter().find(|families| any(*families) && any(some)).unwrap_or_default()
    }
}

/// What became of a share: the numbers behind what users read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// The requested share; `None` if it cannot be read and none was known before.
    pub asked: Option<Share>,
    /// Number of pods that are chosen for it. They are registered as fast as AWS takes them.
    pub ours: usize,
    /// Number of pods that could be registered.
    pub ready: usize,
    /// Number of others' healthy instances that are not hidden.
    pub others: usize,
    /// Number of tasks that are hidden, and of those that are going to be.
    pub hidden: usize,
    /// See `hidden`.
    pub to_hide: usize,
}

impl Reached {
    /// The share that the chosen pods have when they are registered.
    pub fn share(self) -> Share {
        Share::reached(self.ours, self.others)
    }

    /// The largest share that can be reached with the pods that are ready, when all tasks are hidden that should be.
    pub fn most(self) -> Share {
        Share::reached(self.ready, self.others.saturating_sub(self.to_hide))
    }

    /// Whether more pods, or fewer instances of others, are needed. Where tasks are hidden, the share is as near as it can be.
    pub fn is_limited(self) -> bool {
        let hides = self.hidden + self.to_hide > 0;
        self.asked.is_some_and(|asked| asked > self.most() && self.ours == self.ready && !hides)
    }

    /// A sentence for the user, without its full stop. It says what is chosen: this does not change with each pod that is
    /// registered.
    pub fn text(self) -> String {
        let Self { asked, ours, ready, others, hidden, to_hide: _ } = self;
        let (is, next) = (self.share(), Share::reached(ours + 1, others));
        let asked = asked.map_or_else(
            || "No valid share was requested yet".to_owned(),
            |asked| format!("{asked} of the traffic is requested"),
        );
        let instances = if ours == 1 { "instance" } else { "instances" };
        let hidden = if hidden > 0 { format!(", without {hidden} hidden") } else { String::new() };
        let counted = format!("{ours} {instances} beside {others} of others{hidden}");
        if self.asked.is_some_and(Share::is_none) && ours > 0 {
            return format!(
                "{asked}, and {is} chosen ({counted}): nobody else's instances are sure to stay, and the name must not be empty"
            );
        }
        if ours < ready {
            format!("{asked}, and {is} chosen ({counted}); the next share is {next}")
        } else if self.is_limited() {
            format!(
                "{asked}, and {is} chosen ({counted}): a larger share needs more ready pods, or fewer instances of others"
            )
        } else {
            format!("{asked}, and {is} chosen ({counted})")
        }
    }
}

#[cfg(test)]
mod tests;
