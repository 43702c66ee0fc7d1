//! Whether the share that is in force is reached in Cloud Map.

use api::conditions::CutoverReason;
use instances::{
    Share,
    sync::{TargetShare, TargetTasks},
};
use model::Target;

/// The state of the object that a Cutover moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Facing {
    /// There is none.
    NoObject,
    /// It is registered nowhere. The text says why, and what to do.
    NotRegistered(String),
    /// It is not known yet where it is registered. The text completes "waiting: ".
    Waits(String),
    /// It is registered there; at least one.
    Targets(Vec<TargetStanding>),
}

/// A target of the object, and how its share stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetStanding {
    /// The Cloud Map service.
    pub target: Target,
    /// What became of its share; `None` if it has none yet, or was not read yet.
    pub share: Option<TargetShare>,
    /// What keeps it from being registered. It may pass. The text completes "waiting: ".
    pub trouble: Option<String>,
}

impl Facing {
    /// Its targets.
    pub fn targets(&self) -> &[TargetStanding] {
        match self {
            Self::Targets(targets) => targets,
            Self::NoObject | Self::NotRegistered(_) | Self::Waits(_) => &[],
        }
    }

    /// Whether everything about it was read. A new leader has to read it first.
    pub fn is_known(&self) -> bool {
        match self {
            Self::NoObject | Self::NotRegistered(_) => true,
            Self::Waits(_) => false,
            Self::Targets(targets) => targets.iter().all(|standing| standing.share.is_some()),
        }
    }

    /// The largest TTL of the records, in seconds.
    pub fn ttl(&self) -> u32 {
        self.shares().map(|share| share.ttl).max().unwrap_or_default()
    }

    fn shares(&self) -> impl Iterator<Item = &TargetShare> {
        self.targets().iter().filter_map(|standing| standing.share.as_ref())
    }

    /// The smallest share that the registered pods have, and that can be reached, of all targets.
    pub fn reached(&self) -> Option<(Share, Share)> {
        let reached = self.shares().map(|share| Share::reached(share.registered, share.reached.others)).min()?;
        let reachable = self.shares().map(|share| share.reached.most()).min()?;
        Some((reached, reachable))
    }

    /// Number of instances of others, in all targets.
    pub fn others(&self) -> usize {
        self.shares().map(|share| share.reached.others).sum()
    }

    /// What became of hidden tasks, in all targets.
    pub fn tasks(&self) -> impl Iterator<Item = &TargetTasks> {
        self.shares().filter_map(|share| share.tasks.as_ref())
    }

    /// Number of hidden tasks, in all targets.
    pub fn hidden(&self) -> usize {
        self.tasks().map(|tasks| tasks.hidden).sum()
    }

    /// Whether a target does not have this share, in percent, yet: it counts an earlier one, or registers pods for it. Which
    /// tasks are hidden for it is known only after that.
    pub fn follows(&self, percent: Option<u8>) -> bool {
        let Some(share) = percent.map(Share::percent) else { return false };
        self.shares().any(|TargetShare { reached, .. }| {
            let wanted = share.number(reached.others + reached.hidden).min(reached.ready);
            reached.asked != Some(share) || reached.ours < wanted
        })
    }

    /// The requested and the reached share, for people.
    pub fn text(&self) -> String {
        let targets = self.targets();
        let said = targets.iter().filter_map(|standing| {
            let text = standing.share.as_ref()?.reached.text();
            Some(if targets.len() > 1 { format!("Cloud Map service {}: {text}", standing.target) } else { text })
        });
        said.collect::<Vec<_>>().join(". ")
    }

    /// Whether a share in percent is reached everywhere, or as near as it can be with pods that are all ready.
    ///
    /// # Errors
    /// Why not. The text is for the user.
    pub fn stands_at(&self, percent: u8) -> Result<(), (CutoverReason, String)> {
        let asked = Share::percent(percent);
        let waits = |why: &str| Err((CutoverReason::Registering, format!("Waiting: {why}.")));
        let targets = match self {
            Self::Targets(targets) => targets,
            Self::Waits(why) | Self::NotRegistered(why) => return waits(why),
            Self::NoObject => return waits("there is no object of this name"),
        };
        let unready: usize = self.shares().map(|share| share.unready).max().unwrap_or_default();
        if unready > 0 && !asked.is_none() {
            let text = format!(
                "{} not ready. The steps go on when all are: repair them, or remove them.",
                if unready == 1 { "1 pod is".to_owned() } else { format!("{unready} pods are") }
            );
            return Err((CutoverReason::PodsNotReady, text));
        }
        for TargetStanding { target, share, trouble } in targets {
            if let Some(trouble) = trouble {
                return waits(trouble);
            }
            let Some(TargetShare { reached, complete, .. }) = share else {
                return waits(&format!("Cloud Map service {target} is not read yet"));
            };
            if !asked.is_none() && reached.ready == 0 {
                let text =
                    "The Service has no ready pod that can be registered. The steps go on when it has.".to_owned();
                return Err((CutoverReason::PodsNotReady, text));
            }
            let wanted = asked.number(reached.others).min(reached.ready);
            let near = if asked.is_none() { reached.ours == 0 } else { reached.ours >= wanted };
            if reached.asked != Some(asked) || !near || !complete {
                return waits(&format!("{}, and Cloud Map service {target} does not have it yet", reached.text()));
            }
        }
        Ok(())
    }
}

/// A share as the API spells it.
pub fn spelled(share: Share) -> String {
    share.to_string().replace(' ', "")
}
