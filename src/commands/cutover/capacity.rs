//! Whether there are pods for the traffic of the tasks, and what the steps reach with them: a pure judgement.

use std::net::IpAddr;

use super::{
    plan::{Findings, Grade},
    situation::{CloudMapService, Pods, Situation},
};
use instances::{
    Share,
    share::{Others, hiding::visible},
};

/// A step, and what it really reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reachable {
    pub(super) asked: u8,
    pub(super) pods: usize,
    pub(super) share: Share,
}

/// What the controller counts beside these pods: tasks, hidden ones too, and pods of other clusters.
fn beside(situation: &Situation, pods: &Pods, registry: &CloudMapService) -> Others {
    let tasks = Others { whole: situation.tasks(registry), ..registry.others };
    registry.clusters.values().filter(|cluster| !cluster.is_of(pods)).fold(tasks, |sum, cluster| Others {
        whole: sum.whole + cluster.healthy.whole,
        partial: sum.partial + cluster.healthy.partial,
        ..sum
    })
}

/// How many tasks are hidden if a share needs it.
fn hidable(situation: &Situation, registry: &CloudMapService) -> usize {
    let is_checked = registry.service.as_ref().is_some_and(|service| service.custom_health_check);
    let hides = situation.hides().is_some() && is_checked && situation.has("CLOUDMAP_MCS_HIDE_TASKS") != Some(false);
    // Those that are hidden now are tasks, too.
    if hides { registry.tasks + (situation.tasks(registry) - registry.others.whole) } else { 0 }
}

/// What steps reach with the pods that are ready now.
pub(super) fn reachable(
    situation: &Situation,
    pods: &Pods,
    registry: &CloudMapService,
    steps: &[u8],
) -> Vec<Reachable> {
    let (others, hidable) = (beside(situation, pods, registry), hidable(situation, registry));
    let all = others.count();
    let reach = |asked: u8| {
        let share = Share::percent(asked);
        let number = if others.whole == 0 { usize::MAX } else { share.number(all) };
        let number = number.min(pods.ready);
        let visible = visible(share, pods.ready, all).max(all.saturating_sub(hidable));
        Reachable { asked, pods: number, share: Share::reached(number, visible) }
    };
    steps.iter().map(|step| reach(*step)).collect()
}

/// Whether there are as many pods as tasks, and whether all of them can be registered.
pub(super) fn judge(situation: &Situation, pods: &Pods, registry: &CloudMapService, found: &mut Findings) {
    let (about, Pods { ready, unready, .. }, tasks) = ("capacity", pods, situation.tasks(registry));
    if *ready == 0 {
        return found.add(Grade::Blocked, about, "no pod is ready", "deploy the pods first");
    }
    let (others, hidable) = (beside(situation, pods, registry), hidable(situation, registry));
    let elsewhere = match others.count() - tasks {
        0 => String::new(),
        1 => " and 1 pod of another cluster".to_owned(),
        pods => format!(" and {pods} pods of other clusters"),
    };
    let counted = format!("{ready} ready pods beside {tasks} tasks{elsewhere}");
    if tasks == 0 {
        let text = if others.whole == 0 {
            "nobody else has a healthy instance: all pods are registered at the first step"
        } else {
            "no task has a healthy instance: only other clusters have"
        };
        found.add(Grade::Warning, about, text, "look whether the tasks run, and register there");
    } else if *ready < tasks {
        let text = if hidable == 0 {
            let most = Share::reached(*ready, others.count());
            format!("{counted}: more than {most} is not reached while all of these run")
        } else {
            format!("{counted}: when tasks are hidden, each pod has more traffic than each task has now")
        };
        found.add(Grade::Warning, about, text, format!("scale the pods to {tasks}"));
    } else {
        found.ok(about, counted);
    }
    if *unready > 0 {
        let text = format!("{unready} pods are not ready: no step begins before they are");
        found.add(Grade::Warning, about, text, "repair them, or remove them");
    }
    let [v4, v6] = [IpAddr::is_ipv4, IpAddr::is_ipv6].map(|is_of| pods.addresses.iter().any(is_of));
    let families = registry.others.families;
    if registry.others.whole > 0 && !(families.v4 && v4 || families.v6 && v6) {
        let text = "the pods have no IP family that the tasks have, so none is registered";
        found.add(Grade::Blocked, "families", text, "give the Service that IP family");
    }
}

/// Warns of steps that reach the same share with the same number of pods: nothing would change between them. (100 % is a step
/// of its own, because it also holds when the tasks are gone.)
pub(super) fn judge_equal_steps(steps: &[Reachable], found: &mut Findings) {
    let pairs = steps.iter().zip(steps.iter().skip(1)).filter(|(_, other)| other.asked < 100);
    let same = pairs.filter(|(one, other)| one.pods == other.pods && one.share == other.share);
    let same: Vec<_> = same.map(|(_, other)| format!("{} %", other.asked)).collect();
    if !same.is_empty() {
        let text = format!("as many pods are registered at {} as at the step before", same.join(", "));
        found.add(
            Grade::Warning,
            "steps",
            text,
            "leave out what changes nothing, or run more tasks and pods meanwhile",
        );
    }
}
