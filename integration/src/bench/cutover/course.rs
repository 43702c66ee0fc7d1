//! How far the Cutovers are, as their statuses say.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, ensure};
use api::{Cutover, CutoverPhase};
use cutover::{Settle, hiding::stoppable_after};
use kube::{Api, Client, api::ListParams};
use tokio::{sync::watch, task::JoinSet};

use super::{
    NAMESPACE,
    shares::{Reached, Shares},
};

/// Nothing takes longer than this.
const PATIENCE: Duration = Duration::from_mins(40);
/// How often the Cutovers are read.
const LOOK: Duration = Duration::from_secs(1);
/// For clients to notice a change, beyond the TTL.
pub(super) const SETTLE: Duration = Duration::from_secs(10);

/// Waits until something is so.
pub(super) async fn until(what: &str, is_so: impl AsyncFn() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_so().await? {
        ensure!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// What looks at the steps of a Cutover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guard {
    None,
    Looks,
    /// It found something wrong.
    Failed,
}

/// What a Cutover says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    phase: &'static str,
    /// Whether the status is about the spec as it is.
    current: bool,
    /// Number of steps that are reached or begun.
    step: i64,
    /// What was counted of the last step's interval, in seconds. A quarter of the interval comes first.
    waited: Option<i64>,
    guard: Guard,
    /// Hundredths of a percent.
    reached: Option<u32>,
    hidden: i64,
    /// Since the epoch, in seconds.
    hidden_since: Option<i64>,
    all_hidden: bool,
}

impl Seen {
    fn of(cutover: &Cutover) -> Self {
        let status = cutover.status.clone().unwrap_or_default();
        let all_hidden = status.conditions.iter().any(|it| it.type_ == "TasksHidden" && it.status == "True");
        Self {
            phase: status.phase.map_or("", CutoverPhase::as_str),
            current: status.observed_generation == cutover.metadata.generation,
            step: status.step.unwrap_or_default(),
            waited: status.waited_seconds,
            guard: match (&cutover.spec.guard, &status.guard_failure) {
                (None, _) => Guard::None,
                (Some(_), None) => Guard::Looks,
                (Some(_), Some(_)) => Guard::Failed,
            },
            reached: status.reached.as_deref().and_then(hundredths),
            hidden: status.hidden.unwrap_or_default(),
            hidden_since: status.hidden_since.map(|since| since.0.as_second()),
            all_hidden,
        }
    }

    fn reached(&self) -> Option<Reached> {
        self.reached.map(|share| Reached { share, hides: self.hidden > 0 })
    }

    /// Whether it is in a phase, under the spec as it is.
    pub(super) fn is(&self, phase: &str) -> bool {
        self.current && self.phase == phase
    }

    /// Whether a step, by its number, was reached and has lasted for a while, or is over.
    pub(super) fn has_lasted(&self, step: i64) -> bool {
        self.step > step || self.step == step && (self.waited.is_some() || self.is("Finished"))
    }

    /// Whether a guard looks at the steps.
    pub(super) fn is_guarded(&self) -> bool {
        self.guard != Guard::None
    }

    /// Whether its guard took the traffic back, all of it.
    pub(super) fn was_taken_back(&self) -> bool {
        self.guard == Guard::Failed && self.is("RolledBack")
    }

    /// Whether so many tasks are hidden, and no more are to be.
    pub(super) fn has_hidden(&self, tasks: usize) -> bool {
        self.current && self.all_hidden && usize::try_from(self.hidden).is_ok_and(|hidden| hidden >= tasks)
    }
}

/// `33.33%`, in hundredths.
fn hundredths(percent: &str) -> Option<u32> {
    let number: f64 = percent.trim().trim_end_matches('%').trim().parse().ok()?;
    Some((number * 100.0).round() as u32)
}

/// All Cutovers, read again and again. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Course {
    seen: watch::Receiver<BTreeMap<String, Seen>>,
    _reader: JoinSet<()>,
}

impl Course {
    /// Also tells which shares are reached.
    pub(super) fn follow(client: Client, shares: Arc<Shares>) -> Self {
        let (sender, seen) = watch::channel(BTreeMap::new());
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            let api: Api<Cutover> = Api::namespaced(client, NAMESPACE);
            loop {
                match api.list(&ListParams::default()).await {
                    Ok(list) => {
                        let name = |cutover: &Cutover| cutover.metadata.name.clone().unwrap_or_default();
                        let all: BTreeMap<_, _> = list.items.iter().map(|it| (name(it), Seen::of(it))).collect();
                        shares.are_reached(all.iter().map(|(name, seen)| (name.as_str(), seen.reached())));
                        sender.send_replace(all);
                    }
                    Err(error) => tracing::warn!(%error, "failed to list Cutovers"),
                }
                tokio::time::sleep(LOOK).await;
            }
        });
        Self { seen, _reader: reader }
    }

    /// How many Cutovers are so.
    pub(super) fn count(&self, is_so: impl Fn(&Seen) -> bool) -> usize {
        self.seen.borrow().values().filter(|seen| is_so(seen)).count()
    }

    /// Waits until so many Cutovers are so.
    pub(super) async fn until(&self, what: &str, number: usize, is_so: impl Fn(&Seen) -> bool) -> Result<()> {
        let begun = Instant::now();
        let mut said = Instant::now();
        loop {
            let (those, phases) = {
                let seen = self.seen.borrow();
                let mut phases = BTreeMap::<_, usize>::new();
                for cutover in seen.values() {
                    *phases.entry(cutover.phase).or_default() += 1;
                }
                (seen.values().filter(|seen| is_so(seen)).count(), phases)
            };
            if those == number {
                return Ok(());
            }
            ensure!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}: {those} of {number}, {phases:?}");
            if said.elapsed() > Duration::from_secs(30) {
                said = Instant::now();
                tracing::info!("{what}: {those} of {number}, {phases:?}");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until no client uses hidden tasks any more.
    pub(super) async fn wait_until_stoppable(&self, ttl: u32, settle: Settle) -> Result<()> {
        let since = self.seen.borrow().values().filter_map(|seen| seen.hidden_since).max().unwrap_or_default();
        // A second more: the times in statuses are whole seconds.
        let from = Duration::from_secs(u64::try_from(since)?) + stoppable_after(ttl, settle) + Duration::from_secs(1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        tokio::time::sleep(from.saturating_sub(now)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_in_hundredths() {
        let read = ["33.33%", "50%", "0%", "16.6%", ""].map(hundredths);
        assert_eq!(read, [Some(3333), Some(5000), Some(0), Some(1660), None]);
    }

    #[test]
    fn a_status_of_an_older_spec_does_not_count() {
        let mut cutover: Cutover = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "orders", "generation": 2}, "spec": {"steps": [100]},
            "status": {
                "observedGeneration": 2, "phase": "Finished", "reached": "100%", "hidden": 2,
                "hiddenSince": "2026-11-24T10:00:30Z",
                "conditions": [{"type": "TasksHidden", "status": "True", "reason": "Hidden", "message": "",
                    "lastTransitionTime": "2026-11-24T10:00:30Z"}],
            },
        }))
        .unwrap();
        let seen = Seen::of(&cutover);
        assert!(seen.is("Finished") && seen.has_hidden(2) && !seen.has_hidden(3), "{seen:?}");
        assert_eq!((seen.reached, seen.hidden_since), (Some(10_000), Some(1_795_514_430)));
        cutover.metadata.generation = Some(3);
        let seen = Seen::of(&cutover);
        assert!(!seen.is("Finished") && !seen.has_hidden(2), "{seen:?}");
    }

    #[test]
    fn a_step_has_lasted_when_a_part_of_its_time_was_counted_and_stays_so() {
        let seen = |status: serde_json::Value| {
            let spec = serde_json::json!({"steps": [25, 100], "guard": {}});
            let cutover = serde_json::json!({"metadata": {"name": "orders"}, "spec": spec, "status": status});
            Seen::of(&serde_json::from_value(cutover).unwrap())
        };
        for (status, lasted) in [
            (serde_json::json!({}), [false, false]),
            (serde_json::json!({"phase": "Shifting", "step": 1}), [false, false]),
            (serde_json::json!({"phase": "Shifting", "step": 1, "waitedSeconds": 15}), [true, false]),
            (serde_json::json!({"phase": "Shifting", "step": 2}), [true, false]),
            (serde_json::json!({"phase": "Finished", "step": 2}), [true, true]),
        ] {
            assert_eq!([1, 2].map(|step| seen(status.clone()).has_lasted(step)), lasted, "{status}");
        }
        let failed =
            serde_json::json!({"phase": "RolledBack", "guardFailure": {"generation": 1, "message": "refused"}});
        assert!(seen(failed).was_taken_back() && !seen(serde_json::json!({"phase": "RolledBack"})).was_taken_back());
    }
}
