//! Checks: scenarios that show requirements.

use std::time::{Duration, Instant};

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{Deviation, Skip, World, explained, measured};
use futures::future::LocalBoxFuture;
use serde::Serialize;

/// What a check needs of the clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clusters {
    /// The first two.
    Two,
    /// Three, or two where there are no more: it shows more with three.
    All,
    Three,
    /// The first two, and it disturbs the controller of the second one: such checks come one after the other, when no
    /// others need these clusters.
    Disturb,
    /// Three, and it stops the controller of the third one for minutes, while the others need two clusters only.
    Lose,
}

/// A scenario and the requirements that it shows.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    /// `module::function`
    pub name: &'static str,
    pub requirements: &'static [u8],
    pub clusters: Clusters,
    pub run: for<'a> fn(&'a World) -> LocalBoxFuture<'a, Result<()>>,
}

/// A check by the path of its function.
macro_rules! check {
    ($clusters:ident, [$($requirement:literal),+], $module:ident::$function:ident) => {
        crate::check::Check {
            name: concat!(stringify!($module), "::", stringify!($function)),
            requirements: &[$($requirement),+],
            clusters: crate::check::Clusters::$clusters,
            run: |world| Box::pin(super::$module::$function(world)),
        }
    };
}
pub(crate) use check;

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "result", content = "reason", rename_all = "lowercase")]
pub(crate) enum Outcome {
    Pass,
    /// Something else does not do what the standard says, and this is known.
    Deviation(String),
    /// It could not be played; why.
    Skip(String),
    Fail(String),
}

impl Outcome {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Deviation(_) => "deviation",
            Self::Skip(_) => "skip",
            Self::Fail(_) => "FAIL",
        }
    }

    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Pass => "",
            Self::Deviation(reason) | Self::Skip(reason) | Self::Fail(reason) => reason,
        }
    }
}

/// What became of a check.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Played {
    pub name: &'static str,
    pub requirements: &'static [u8],
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The longest time that a change took to show in the clusters.
    #[serde(rename = "appeared_after_seconds", serialize_with = "seconds")]
    pub appeared: Option<Duration>,
    #[serde(rename = "took_seconds", serialize_with = "seconds")]
    pub took: Option<Duration>,
}

#[expect(clippy::ref_option, reason = "serde wants it so")]
fn seconds<S: serde::Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => serializer.serialize_f64((duration.as_secs_f64() * 10.0).round() / 10.0),
        None => serializer.serialize_none(),
    }
}

/// What is there to play with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stage {
    pub clusters: usize,
    /// Whether controllers may be stopped and ClusterProperties changed.
    pub disruptive: bool,
    /// Whether there is all that any check needs: then one that is skipped fails.
    pub complete: bool,
}

impl Check {
    /// Plays it, or says why it cannot be played.
    pub(crate) async fn play(&self, stage: Stage) -> Played {
        let start = Instant::now();
        let (outcome, appeared) = if let Some(reason) = self.missing(stage) {
            (Outcome::Skip(reason), None)
        } else {
            let two = matches!(self.clusters, Clusters::Two | Clusters::Disturb);
            let clusters = if two { 2 } else { stage.clusters.min(3) };
            let (outcome, appeared) = measured(World::play(&self.namespace(), clusters, self.run)).await;
            (Self::outcome(outcome), appeared)
        };
        let outcome = match outcome {
            Outcome::Skip(reason) if stage.complete => {
                Outcome::Fail(format!("it was skipped where nothing may be missing: {reason}"))
            }
            outcome => outcome,
        };
        Played { name: self.name, requirements: self.requirements, outcome, appeared, took: Some(start.elapsed()) }
    }

    fn missing(&self, stage: Stage) -> Option<String> {
        match self.clusters {
            Clusters::Three | Clusters::Lose if stage.clusters < 3 => {
                Some("needs three clusters (CONTEXTS=a,b,c)".to_owned())
            }
            Clusters::Disturb | Clusters::Lose if !stage.disruptive => {
                Some("stops controllers and changes ClusterProperties: only with DISRUPTIVE=1".to_owned())
            }
            _ => None,
        }
    }

    fn outcome(outcome: Result<()>) -> Outcome {
        match outcome {
            Ok(()) => Outcome::Pass,
            Err(error) if error.is::<Skip>() => Outcome::Skip(error.to_string()),
            Err(error) if error.is::<Deviation>() => Outcome::Deviation(error.to_string()),
            Err(error) => Outcome::Fail(explained(&error)),
        }
    }

    /// Part of the name of its namespace.
    fn namespace(&self) -> String {
        let name = self.name.replace("::", "-").replace('_', "-");
        name.chars().take(45).collect::<String>().trim_end_matches('-').to_owned()
    }
}
