//! How the pods of a Service stop, and whether roll-outs wait for Cloud Map; and the patch for what is missing.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    plan::{Findings, Grade},
    situation::{CloudMapService, Pods, Situation, Stop},
};
use api::names::{CONDITION_REGISTERED, LABEL_GATE};
use cli::shell::quoted;
use cutover::course::{FAILOVER, WITHDRAWAL, lingers};

/// What a pod has for requests in flight after it has slept, in seconds: as much as Kubernetes gives pods that do not sleep.
const IN_FLIGHT: u64 = 30;

/// How the containers of pods stop that are deleted.
struct Stops<'a> {
    /// For how long clients use the address of a deleted pod, in seconds.
    needed: u64,
    ttl: u32,
    settle: u64,
    /// The containers that stop before, and how. The pod template has the first; the others are injected.
    early: Vec<(&'a String, &'a Stop)>,
    injected: Vec<&'a String>,
    /// For how long pods sleep that have the patch, in seconds.
    sleep: u64,
    /// Whether pods are killed before, or as soon as, they have slept.
    short: bool,
}

impl<'a> Stops<'a> {
    fn of(situation: &Situation, pods: &'a Pods) -> Self {
        let ttl = situation.registry.as_ref().map_or(60, CloudMapService::ttl);
        let settle = situation.settle();
        let needed = lingers(ttl, settle).as_secs();
        let early = pods.containers.iter().filter(|(_, stop)| stop.after < needed);
        let (early, injected): (Vec<_>, Vec<_>) =
            early.partition(|(name, _)| pods.template.as_ref().is_none_or(|template| template.contains(*name)));
        let injected = injected.into_iter().map(|(name, _)| name).collect();
        let sleep = pods.stops_after().max(needed);
        Self { needed, ttl, settle: settle.as_secs(), early, injected, sleep, short: sleep >= pods.grace }
    }

    fn judge(&self, pods: &Pods, found: &mut Findings) {
        // Whatever a pod does, it is killed at the end of its grace period.
        let stops_after = pods.stops_after().min(pods.grace);
        let Self { needed, ttl, settle, sleep, .. } = self;
        if stops_after < *needed {
            let early = self.early.iter().map(|(name, _)| *name).chain(self.injected.iter().copied());
            let which: Vec<_> = early.map(String::as_str).collect();
            let which = if pods.containers.len() > 1 && !which.is_empty() {
                format!(" (containers: {})", which.join(", "))
            } else {
                String::new()
            };
            let text = format!(
                "a pod that is deleted stops after {stops_after} s{which}, and clients use its address for up to {needed} s: \
                 withdrawal {} s, another leader {} s, TTL {ttl} s, and {settle} s",
                WITHDRAWAL.as_secs(),
                FAILOVER.as_secs(),
            );
            found.add(Grade::Warning, "preStop", text, self.remedy(pods));
        } else if self.short {
            let text = format!(
                "pods sleep for {sleep} s, and are killed {} s after they are deleted: nothing is left for requests in flight",
                pods.grace
            );
            found.add(Grade::Warning, "preStop", text, "apply the patch below");
        } else {
            found.ok("preStop", format!("pods stop {stops_after} s after they are deleted"));
        }
    }

    fn remedy(&self, pods: &Pods) -> String {
        let Self { needed, early, injected, .. } = self;
        let mut remedy = Vec::new();
        if self.short || !early.is_empty() {
            remedy.push("apply the patch below".to_owned());
        }
        if pods.template.is_none() && early.len() > 1 {
            remedy.push("take those out of it that are injected: they are not in the template".to_owned());
        }
        for (name, handler) in early.iter().filter_map(|(name, stop)| Some((name, stop.handler?))) {
            remedy.push(format!(
                "it replaces the {handler} hook of {name}: if that does more than sleep, let it sleep for {needed} s instead"
            ));
        }
        for name in injected {
            remedy.push(format!("{name} is injected into the pods: let what injects it stop it {needed} s later"));
        }
        remedy.join("; ")
    }
}

/// Judges whether clients find the pods of a roll-out before the last pod that they know is gone.
fn judge_gate(situation: &Situation, pods: &Pods, ungated: bool, found: &mut Findings) {
    let opens = situation.has("CLOUDMAP_MCS_READINESS_GATES");
    if ungated {
        let text =
            "pods are ready before clients of Cloud Map find them, so a roll-out may stop the last pod that is known";
        let remedy = match opens {
            Some(true) => "apply the patch below",
            // Nobody would open the gate.
            Some(false) => "start the controller with --readiness-gates, and then apply the patch below",
            None => "apply the patch below, if the controller runs with --readiness-gates",
        };
        let others = if pods.template.is_none() && !pods.gates.is_empty() {
            "; take those readiness gates out of it that are injected: they are not in the template"
        } else {
            ""
        };
        found.add(Grade::Warning, "gate", text, format!("{remedy}{others}"));
    } else if opens == Some(false) {
        let text = "pods have the readiness gate, and nobody opens it: the controller runs without --readiness-gates";
        found.add(Grade::Warning, "gate", text, "start it with --readiness-gates, or remove the gate from the pods");
    } else {
        found.ok("gate", "pods are ready when clients of Cloud Map find them");
    }
}

/// Judges how pods stop and become ready. Gives a command that patches what is missing.
pub(super) fn judge(situation: &Situation, pods: &Pods, found: &mut Findings) -> Option<String> {
    if pods.ready + pods.unready == 0 {
        return None;
    }
    let stops = Stops::of(situation, pods);
    stops.judge(pods, found);
    let ungated = pods.gated < pods.ready + pods.unready;
    judge_gate(situation, pods, ungated, found);
    let Stops { needed, early, sleep, short, .. } = stops;
    if early.is_empty() && !short && !ungated {
        return None;
    }
    let workload = quoted(pods.workload.as_deref().unwrap_or("deployment/NAME"));
    let patch = patch(&early, needed, short.then_some(sleep + IN_FLIGHT), ungated.then_some(&pods.gates));
    let namespace = &situation.key.namespace;
    Some(format!("kubectl patch --namespace {namespace} {workload} --patch {}", quoted(&patch.to_string())))
}

/// What the pod template lacks: which containers sleep for so many seconds, after how many the pod is killed, and the gate,
/// beside the others that the pods have.
fn patch(early: &[(&String, &Stop)], seconds: u64, grace: Option<u64>, gate: Option<&BTreeSet<String>>) -> Value {
    let mut template = json!({"spec": {}});
    if !early.is_empty() {
        let container = |(name, stop): &(&String, &Stop)| {
            let mut hook = json!({"sleep": {"seconds": seconds}});
            if let Some(other) = stop.handler {
                hook[other] = Value::Null;
            }
            json!({"name": name, "lifecycle": {"preStop": hook}})
        };
        template["spec"]["containers"] = early.iter().map(container).collect();
    }
    if let Some(grace) = grace {
        template["spec"]["terminationGracePeriodSeconds"] = json!(grace);
    }
    if let Some(others) = gate {
        template["metadata"] = json!({"labels": {LABEL_GATE: "registered"}});
        // The API server replaces this list as a whole.
        let gates = others.iter().map(String::as_str).chain([CONDITION_REGISTERED]);
        template["spec"]["readinessGates"] = gates.map(|gate| json!({"conditionType": gate})).collect();
    }
    json!({"spec": {"template": template}})
}
