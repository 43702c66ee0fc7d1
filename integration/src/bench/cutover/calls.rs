//! Calls to Cloud Map: how many there were, what they cost, and what the controller wrote.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use cloudmap::{Operation, Plane};

use super::{CutoverPlan, OPERATOR};
use crate::bench::{
    figure::Figure,
    registry::{Registry, calls_between},
};
use emulator::Counters;

impl CutoverPlan {
    /// Calls by caller, and what those of the discovery plane cost.
    pub(super) fn calls(&self, before: &Counters, after: &Counters) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (who, caller) in [("controller", self.controller.id.as_str()), ("commands", OPERATOR)] {
            let calls = calls_between(before, after, caller);
            let total: u64 = calls.values().sum();
            let usd: f64 = calls.iter().map(|(operation, calls)| price(operation) * *calls as f64).sum();
            figures.push(Figure::for_scale(format!("calls_of_{who}"), total as f64, "calls"));
            // A call costs a millionth of a dollar: the unit has to be small.
            figures.push(Figure::for_scale(format!("calls_of_{who}_cost"), usd * 100.0, "US cents"));
        }
        figures
    }
}

/// US dollars for a call.
fn price(operation: &str) -> f64 {
    let known = Operation::ALL.iter().find(|known| known.name() == operation);
    known.map_or(Plane::Control, |operation| operation.plane()).usd_per_million_calls() / 1e6
}

/// What the controller wrote about tasks: marks, and nothing else; and that all it marked were tasks of ECS.
pub(super) async fn marks(registry: &Registry, controller: &str) -> Result<Vec<Figure>> {
    let writes = registry.writes_since(0).await?;
    let tasks: BTreeSet<&str> = writes
        .iter()
        .filter(|write| write.caller == "ecs" && write.operation == "RegisterInstance")
        .map(|write| write.instance.as_str())
        .collect();
    ensure!(!tasks.is_empty(), "the emulator does not remember the writes of ECS any more");
    let (marks, others): (Vec<_>, Vec<_>) = writes
        .iter()
        .filter(|write| write.caller == controller)
        .partition(|write| write.operation == "UpdateInstanceCustomHealthStatus");
    let marked: BTreeSet<&str> = marks.iter().map(|write| write.instance.as_str()).collect();
    let of_tasks = marked.intersection(&tasks).count();
    let wrong = others.iter().filter(|write| tasks.contains(write.instance.as_str())).count();
    Ok(vec![
        Figure::for_scale("tasks_marked", of_tasks as f64, "tasks"),
        Figure::at_most("tasks_written_otherwise", wrong as f64, "writes", 0.0),
    ])
}
