//! How far Cutovers are.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde_json::{Value, json};

use crate::{
    status::since,
    table::{Table, human},
};
use api::{
    Cutover, CutoverPhase,
    conditions::{CutoverCondition, CutoverReason, HidingReason},
};

/// Whether nothing more happens by itself.
pub(super) fn is_at_its_end(cutover: &Cutover) -> bool {
    use CutoverPhase::{Finished, Holding, Paused, RolledBack};
    let status = cutover.status.clone().unwrap_or_default();
    status.observed_generation == cutover.metadata.generation
        && status.phase.is_some_and(|phase| [Finished, Holding, Paused, RolledBack].contains(&phase))
}

/// The condition that says how far it is.
fn progress(cutover: &Cutover) -> Option<&Condition> {
    let mut conditions = cutover.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|condition| condition.type_ == CutoverCondition::Progressing.as_str())
}

/// Whether it is stuck: it goes on only when a person repairs something. What a user asked for, such as a pause, is not stuck.
pub(super) fn needs_somebody(cutover: &Cutover) -> bool {
    let condition = progress(cutover);
    let asked_for = [CutoverReason::Paused, CutoverReason::Held].map(CutoverReason::as_str);
    condition.is_none_or(|condition| condition.status != "True" && !asked_for.contains(&&*condition.reason))
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A row for each, and below the table what each says. That no task has to be hidden is no news.
pub(super) fn table(cutovers: &[Cutover], now: Timestamp) -> String {
    if cutovers.is_empty() {
        return "There is no Cutover.\n".to_owned();
    }
    let mut table = Table::new(["NAMESPACE", "NAME", "PHASE", "STEP", "SHARE", "REACHED", "SINCE", "WHY"]);
    let mut said = String::new();
    for cutover in cutovers {
        let status = cutover.status.clone().unwrap_or_default();
        let metadata = &cutover.metadata;
        let (namespace, name) = (text(metadata.namespace.as_ref()), text(metadata.name.as_ref()));
        let since = status.step_since.as_ref().map(|then| human(since(now, then.0)));
        let why = progress(cutover).map_or_else(|| "not seen by a controller with --cutovers yet", |it| &*it.reason);
        let step = status.step.map(|step| format!("{step}/{}", cutover.spec.steps.len()));
        let share = status.share_of_traffic.map(|share| format!("{share}%"));
        table.row([
            namespace.clone(),
            name.clone(),
            text(status.phase),
            text(step),
            text(share),
            text(status.reached.as_ref()),
            text(since),
            why.to_owned(),
        ]);
        let is_news = |condition: &&Condition| !HidingReason::NoneToHide.row().explains(condition);
        let lines = status.conditions.iter().filter(is_news);
        said.extend(lines.map(|condition| format!("{namespace}/{name}: {}\n", condition.message)));
    }
    format!("{table}\n{said}")
}

/// All fields.
pub(super) fn json(cutovers: &[Cutover]) -> Value {
    let row = |cutover: &Cutover| {
        json!({
            "namespace": cutover.metadata.namespace, "name": cutover.metadata.name, "spec": cutover.spec,
            "status": cutover.status, "needsSomebody": needs_somebody(cutover), "atItsEnd": is_at_its_end(cutover),
        })
    };
    json!({"cutovers": cutovers.iter().map(row).collect::<Vec<_>>()})
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::cutover) fn sample(name: &str, phase: &str, share: i64, reason: &str, ok: bool) -> Cutover {
        serde_json::from_value(json!({
            "apiVersion": "cloudmap-mcs.io/v1alpha1", "kind": "Cutover",
            "metadata": {"namespace": "shop", "name": name, "generation": 2},
            "spec": {"steps": [5, 25, 50, 100], "interval": "5m"},
            "status": {
                "observedGeneration": 2, "phase": phase, "step": 2, "shareOfTraffic": share,
                "stepSince": "2026-11-24T10:00:00Z", "reached": "21.42%", "reachable": "47.61%",
                "conditions": [{
                    "type": "Progressing", "status": if ok { "True" } else { "False" }, "reason": reason,
                    "message": format!("{reason} is said."), "lastTransitionTime": "2026-11-24T10:00:00Z",
                }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_row_says_where_each_is_and_a_line_why() {
        let now = "2026-11-24T10:04:00Z".parse().unwrap();
        let cutovers = [
            sample("carts", "Shifting", 25, "PodsNotReady", false),
            sample("orders", "Finished", 100, "OthersServe", true),
        ];
        assert_eq!(
            table(&cutovers, now),
            "NAMESPACE   NAME     PHASE      STEP   SHARE   REACHED   SINCE   WHY\n\
             shop        carts    Shifting   2/4    25%     21.42%    4m      PodsNotReady\n\
             shop        orders   Finished   2/4    100%    21.42%    4m      OthersServe\n\n\
             shop/carts: PodsNotReady is said.\nshop/orders: OthersServe is said.\n"
        );
        assert_eq!(json(&cutovers)["cutovers"][0]["needsSomebody"], true);
        assert_eq!(table(&[], now), "There is no Cutover.\n");
    }

    #[test]
    fn what_becomes_of_hidden_tasks_is_said_unless_there_is_nothing_to_hide() {
        let now = "2026-11-24T10:04:00Z".parse().unwrap();
        for (status, reason, is_said) in
            [("False", "FlagMissing", true), ("True", "Hidden", true), ("True", "NoneToHide", false)]
        {
            let mut cutover = sample("orders", "Shifting", 25, "Shifting", true);
            let hiding = json!({
                "type": "TasksHidden", "status": status, "reason": reason, "message": "It is said of tasks.",
                "lastTransitionTime": "2026-11-24T10:00:00Z",
            });
            // Whichever is the first.
            cutover.status.as_mut().unwrap().conditions.insert(0, serde_json::from_value(hiding).unwrap());
            assert!(!needs_somebody(&cutover), "the steps go on");
            let said = table(&[cutover], now);
            assert_eq!(said.contains("shop/orders: It is said of tasks.\n"), is_said, "{said}");
            assert!(said.contains("   Shifting\n") && said.contains("shop/orders: Shifting is said.\n"), "{said}");
        }
    }

    #[test]
    fn what_needs_somebody_is_told_from_what_somebody_asked_for() {
        for (phase, reason, ok, needs, ended) in [
            ("Shifting", "Shifting", true, false, false),
            ("Shifting", "PodsNotReady", false, true, false),
            ("Blocked", "NoObject", false, true, false),
            ("Paused", "Paused", false, false, true),
            ("Holding", "Held", false, false, true),
            ("Finished", "OthersServe", true, false, true),
            ("RollingBack", "LastInstance", false, true, false),
            ("RolledBack", "RolledBack", true, false, true),
        ] {
            let cutover = sample("orders", phase, 25, reason, ok);
            assert_eq!((needs_somebody(&cutover), is_at_its_end(&cutover)), (needs, ended), "{reason}");
        }
        assert!(needs_somebody(&Cutover::new("orders", api::CutoverSpec::default())), "nobody follows it");
    }
}
