//! The condition `TasksHidden` of a Cutover: how many ECS tasks are hidden, and from when on they may be stopped.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::{SignedDuration, Timestamp},
};

use super::{course::Settle, plan::Observed, standing::Facing};
use api::{
    Cutover, CutoverSpec, CutoverStatus,
    conditions::{CutoverCondition, HidingReason, SharedCondition, Status, Verdict, find},
    names::ANNOTATION_MAY_REGISTER,
};
use instances::sync::{HidingTrouble, TargetTasks};

/// AWS excludes an instance from answers about so long after it was marked as unhealthy.
pub const EXCLUDED: Duration = Duration::from_secs(30);

/// When a leader hid a task last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LastMark {
    /// How many times it hid one.
    count: u64,
    at: Option<Timestamp>,
}

impl LastMark {
    /// When this leader hid the last task, or first saw one that an earlier leader hid: that one may have marked it again
    /// a moment before it ended, and not said so in the status.
    pub fn look(&mut self, facing: &Facing, now: Timestamp) -> Option<Timestamp> {
        let count: u64 = facing.tasks().map(|tasks| tasks.hides).sum();
        let marked = count != self.count && count > 0;
        if marked || self.at.is_none() && facing.hidden() > 0 {
            self.at = Some(now);
        }
        self.count = count;
        self.at
    }
}

/// What the status says of hidden tasks.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Tasks {
    /// The condition; `None` if tasks are not to be hidden, and none is.
    pub(super) verdict: Option<Verdict>,
    pub(super) hidden: Option<i64>,
    pub(super) since: Option<Time>,
}

/// So long after the last task was marked, clients use no hidden task any more.
pub fn stoppable_after(ttl: u32, settle: Settle) -> Duration {
    EXCLUDED + settle.beyond(ttl)
}

/// The condition of a Cutover that says why no task is hidden, if one does.
pub fn obstacle(cutover: &Cutover) -> Option<&Condition> {
    let hinders = |reason: &HidingReason| reason.row().event.is_some();
    let conditions = cutover.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .find(|said| HidingReason::ALL.iter().any(|reason| hinders(reason) && reason.row().explains(said)))
}

/// The condition about hidden tasks, after a status with these conditions. `share`, in percent, is in force from now on.
pub(super) fn tasks(
    spec: &CutoverSpec,
    (status, share): (&CutoverStatus, Option<u8>),
    observed: &Observed<'_>,
    before: &[SharedCondition],
) -> Tasks {
    let facing = observed.facing;
    let condition = CutoverCondition::TasksHidden.as_str();
    let as_before = || Tasks {
        verdict: find(before, condition).map(|said| Verdict {
            type_: condition,
            status: if *said.status == *Status::True.as_str() { Status::True } else { Status::False },
            reason: said.reason.to_string(),
            event: None,
            message: said.message.to_string(),
        }),
        hidden: status.hidden,
        since: status.hidden_since.clone(),
    };
    let wished = spec.hide_tasks && share.is_some();
    if !facing.is_known() || facing.targets().is_empty() {
        return if spec.hide_tasks { as_before() } else { Tasks::default() };
    }
    let all: Vec<&TargetTasks> = facing.tasks().collect();
    let hidden: usize = all.iter().map(|tasks| tasks.hidden).sum();
    let showing = all.iter().any(|tasks| tasks.showing);
    if !spec.hide_tasks && hidden == 0 && !showing {
        return Tasks::default();
    }
    let said = |reason: HidingReason, message: String| Some(Verdict::new(reason, message));
    let shown = i64::try_from(hidden).ok().filter(|hidden| *hidden > 0);
    let since = shown.map(|_| {
        let known = [observed.hidden_since, status.hidden_since.as_ref().map(|Time(since)| *since)];
        let since = known.into_iter().flatten().max().unwrap_or(observed.now);
        Time(Timestamp::from_second(since.as_second()).unwrap_or(since))
    });
    let stuck = all.iter().filter(|tasks| tasks.showing).find_map(|tasks| tasks.trouble.as_ref());
    let verdict = if let Some((trouble, why)) = stuck {
        let (reason, text) = troubled(*trouble, why);
        said(reason, format!("Tasks that were hidden cannot be shown again yet. {text}"))
    } else if showing || !spec.hide_tasks {
        // The engine may not know it yet, and a task that is about to be shown must not be stopped.
        said(
            HidingReason::Showing,
            "Tasks are being shown again. Pods are deregistered when clients find the tasks.".to_owned(),
        )
    } else if spec.hide_tasks && !observed.may_hide {
        let text = "The controller runs without --hide-tasks, so no task is hidden, and the steps go on without it. Start it \
                    with --hide-tasks, and grant what `cloudmap-mcs iam --mode hiding` prints; or remove spec.hideTasks.";
        said(HidingReason::FlagMissing, text.to_owned())
    } else if let Some(target) = observed.ungranted {
        let text = format!(
            "No task is hidden, because no administrator has allowed it, and the steps go on without it. Ask one for the annotation \
             {ANNOTATION_MAY_REGISTER}: \"{target}\" on the Namespace, or remove spec.hideTasks."
        );
        said(HidingReason::NotGranted, text)
    } else if let Some((trouble, why)) = all.iter().find_map(|tasks| tasks.trouble.as_ref()) {
        let (reason, text) = troubled(*trouble, why);
        said(reason, text)
    } else if wished && (facing.follows(share) || all.iter().any(|tasks| tasks.to_hide > 0)) {
        said(HidingReason::Hiding, "Tasks are being hidden. Do not stop any yet.".to_owned())
    } else if all.iter().any(|tasks| !tasks.complete) {
        return Tasks { hidden: shown, since, ..as_before() };
    } else if let Some(Time(since)) = &since {
        said(HidingReason::Hidden, hidden_text(hidden, observed, *since))
    } else {
        said(HidingReason::NoneToHide, "No task has to be hidden for this share.".to_owned())
    };
    Tasks { verdict, hidden: shown, since }
}

fn hidden_text(hidden: usize, observed: &Observed<'_>, since: Timestamp) -> String {
    let facing = observed.facing;
    let wait = stoppable_after(facing.ttl(), observed.settle);
    let from = SignedDuration::try_from(wait).ok().and_then(|wait| since.checked_add(wait).ok()).unwrap_or(since);
    let tasks = if hidden == 1 { "1 task is hidden".to_owned() } else { format!("{hidden} tasks are hidden") };
    let others = match facing.others() {
        0 => String::new(),
        1 => " 1 instance of others is not.".to_owned(),
        others => format!(" {others} instances of others are not."),
    };
    format!("{tasks}, and may be stopped from {from} on: {} s after the last one was marked.{others}", wait.as_secs())
}

fn troubled(trouble: HidingTrouble, why: &str) -> (HidingReason, String) {
    match trouble {
        HidingTrouble::NoHealthCheck => (
            HidingReason::NoHealthCheck,
            "The Cloud Map service has no custom health check, so no task can be hidden. Remove spec.hideTasks.".to_owned(),
        ),
        HidingTrouble::NotRecorded => (
            HidingReason::NotRecorded,
            format!("No task can be hidden, because it must be recorded before: {why}. Allow the ConfigMap cloudmap-mcs-hidden-tasks."),
        ),
        HidingTrouble::RecordFull => (
            HidingReason::NotRecorded,
            "The ConfigMap cloudmap-mcs-hidden-tasks is full. Hide fewer tasks at a time: finish other Cutovers first."
                .to_owned(),
        ),
        HidingTrouble::Unread => (
            HidingReason::NotPermitted,
            "The health of the tasks cannot be read. Grant servicediscovery:GetInstancesHealthStatus, which `cloudmap-mcs iam \
             --mode hiding` prints."
                .to_owned(),
        ),
        HidingTrouble::AccessDenied => (
            HidingReason::NotPermitted,
            format!("AWS does not allow the controller to mark tasks: {why}. Grant what `cloudmap-mcs iam --mode hiding` prints."),
        ),
        HidingTrouble::Failed => (HidingReason::NotMarked, format!("AWS refuses to mark a task: {why}.")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::TargetStanding;
    use instances::{Share, Traffic, share::Reached, sync::TargetShare};
    use model::Target;

    fn facing(tasks: Option<TargetTasks>, others: usize) -> Facing {
        let reached = Reached { asked: Some(Share::percent(100)), ours: 2, ready: 2, others, hidden: 0, to_hide: 0 };
        let (addresses, http_name) = (Arc::default(), None);
        let (registered, unready, complete, ttl, resolves) = (2, 0, true, 60, true);
        let share = TargetShare { reached, registered, addresses, unready, complete, ttl, resolves, http_name, tasks };
        let target = Target { namespace: "internal".into(), service: "web".into() };
        Facing::Targets(vec![TargetStanding { target, share: Some(share), trouble: None }])
    }

    fn said(
        spec: &CutoverSpec,
        status: &CutoverStatus,
        (facing, may_hide): (&Facing, bool),
        hidden_since: Option<i64>,
    ) -> Tasks {
        said_with(Settle::default(), spec, status, (facing, may_hide), hidden_since)
    }

    fn said_with(
        settle: Settle,
        spec: &CutoverSpec,
        status: &CutoverStatus,
        (facing, may_hide): (&Facing, bool),
        hidden_since: Option<i64>,
    ) -> Tasks {
        let observed = Observed {
            generation: Some(1),
            annotation: Traffic::All,
            facing,
            awaits: None,
            guard: None,
            may_hide,
            ungranted: None,
            settle,
            hidden_since: hidden_since.map(|at| Timestamp::from_second(at).unwrap()),
            waited: Duration::ZERO,
            now: Timestamp::from_second(1_000).unwrap(),
        };
        let before: Vec<_> = status.conditions.iter().map(SharedCondition::from).collect();
        let share = status.share_of_traffic.and_then(|share| u8::try_from(share).ok());
        tasks(spec, (status, share), &observed, &before)
    }

    fn wished() -> (CutoverSpec, CutoverStatus) {
        let spec = CutoverSpec { hide_tasks: true, ..CutoverSpec::default() };
        (spec, CutoverStatus { share_of_traffic: Some(100), ..CutoverStatus::default() })
    }

    #[test]
    fn each_state_has_its_reason_and_each_obstacle_its_remedy() {
        let complete = TargetTasks { complete: true, ..TargetTasks::default() };
        let trouble = |trouble| TargetTasks { trouble: Some((trouble, "why".to_owned())), ..TargetTasks::default() };
        for (tasks, may, reason, part) in [
            (TargetTasks { hidden: 3, ..complete.clone() }, true, HidingReason::Hidden, "3 tasks are hidden"),
            (complete.clone(), true, HidingReason::NoneToHide, "for this share"),
            (
                TargetTasks { to_hide: 1, hidden: 2, ..TargetTasks::default() },
                true,
                HidingReason::Hiding,
                "Do not stop",
            ),
            (TargetTasks { showing: true, hidden: 2, ..TargetTasks::default() }, false, HidingReason::Showing, "again"),
            (complete, false, HidingReason::FlagMissing, "--hide-tasks"),
            (trouble(HidingTrouble::NoHealthCheck), true, HidingReason::NoHealthCheck, "spec.hideTasks"),
            (trouble(HidingTrouble::NotRecorded), true, HidingReason::NotRecorded, "cloudmap-mcs-hidden-tasks"),
            (trouble(HidingTrouble::RecordFull), true, HidingReason::NotRecorded, "full"),
            (trouble(HidingTrouble::Unread), true, HidingReason::NotPermitted, "GetInstancesHealthStatus"),
            (trouble(HidingTrouble::AccessDenied), true, HidingReason::NotPermitted, "why. Grant"),
            (trouble(HidingTrouble::Failed), true, HidingReason::NotMarked, "why"),
        ] {
            let (spec, status) = wished();
            let verdict = said(&spec, &status, (&facing(Some(tasks), 0), may), None).verdict.unwrap();
            assert_eq!(verdict.reason, reason.as_str());
            assert!(verdict.message.contains(part), "{}", verdict.message);
        }
        let (_, status) = wished();
        let hidden = TargetTasks { hidden: 3, complete: true, ..TargetTasks::default() };
        let shown = said(&CutoverSpec::default(), &status, (&facing(Some(hidden), 0), true), None);
        assert_eq!(shown.verdict.unwrap().reason, HidingReason::Showing.as_str(), "the engine has not heard of it yet");
        let none = said(&CutoverSpec::default(), &status, (&facing(None, 2), true), None);
        assert_eq!(none, Tasks::default(), "nobody hides anything");
    }

    /// The time counts from the last mark, whoever leads, and however often a status could not be written.
    #[test]
    fn tasks_may_be_stopped_when_no_client_uses_the_last_one() {
        let (spec, status) = wished();
        let hidden = TargetTasks { hidden: 1, complete: true, ..TargetTasks::default() };
        let facing = facing(Some(hidden), 2);
        let since = |known: Option<i64>, marked| {
            let hidden_since = known.map(|at| Time(Timestamp::from_second(at).unwrap()));
            let status = CutoverStatus { hidden_since, hidden: known.map(|_| 1), ..status.clone() };
            let Tasks { verdict, since, .. } = said(&spec, &status, (&facing, true), marked);
            let Time(since) = since.unwrap();
            (since.as_second(), verdict.unwrap().message)
        };
        for (known, marked, expected) in
            [(None, None, 1_000), (Some(400), None, 400), (Some(400), Some(700), 700), (Some(700), Some(400), 700)]
        {
            let (at, message) = since(known, marked);
            assert_eq!(at, expected, "{known:?} {marked:?}");
            // 30 s, a TTL of 60 s, and 30 s.
            let from = Timestamp::from_second(expected + 120).unwrap();
            let said = format!("1 task is hidden, and may be stopped from {from} on: 120 s after");
            assert!(message.starts_with(&said) && message.ends_with("2 instances of others are not."), "{message}");
        }
    }

    /// AWS takes 30 s, and the TTL is 60 s.
    #[test]
    fn hidden_tasks_may_be_stopped_when_the_last_client_may_have_noticed_it() {
        let (spec, status) = wished();
        let hidden = TargetTasks { hidden: 1, complete: true, ..TargetTasks::default() };
        let facing = facing(Some(hidden), 0);
        for (settle, wait) in [("1s", 91), ("15s", 105), ("30s", 120), ("1h", 3690)] {
            let verdict = said_with(settle.parse().unwrap(), &spec, &status, (&facing, true), None).verdict.unwrap();
            let from = Timestamp::from_second(1_000 + wait).unwrap();
            let said = format!("may be stopped from {from} on: {wait} s after");
            assert!(verdict.message.contains(&said), "{settle}: {}", verdict.message);
        }
    }

    /// The one before may have marked a task again, and have ended before it could say so.
    #[test]
    fn tasks_that_an_earlier_leader_hid_count_from_when_the_next_one_sees_them() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let with = |hidden, hides| facing(Some(TargetTasks { hidden, hides, ..TargetTasks::default() }), 2);
        let mut next = LastMark::default();
        assert_eq!(next.look(&Facing::Waits(String::new()), at(900)), None, "nothing is read yet");
        for (hidden, hides, now, expected) in [
            (4, 0, 1_000, 1_000),
            (4, 0, 1_100, 1_000),
            (4, 1, 1_200, 1_200),
            (0, 0, 1_300, 1_200),
            (1, 1, 1_400, 1_400),
        ] {
            assert_eq!(next.look(&with(hidden, hides), at(now)), Some(at(expected)), "{hidden} {hides} at {now}");
        }
        let mut first = LastMark::default();
        assert_eq!(first.look(&with(0, 0), at(1_000)), None, "none is hidden");
        assert_eq!(first.look(&with(2, 2), at(1_100)), Some(at(1_100)));
    }

    /// The tasks of the share before say nothing about those of the one that has just begun.
    #[test]
    fn nothing_is_said_to_be_hidden_for_a_share_that_the_target_does_not_have_yet() {
        let (spec, status) = wished();
        for hidden in [0, 2] {
            let complete = TargetTasks { complete: true, hidden, ..TargetTasks::default() };
            let mut facing = facing(Some(complete), 2);
            let reason = |facing: &Facing| said(&spec, &status, (facing, true), None).verdict.unwrap().reason;
            assert_ne!(reason(&facing), HidingReason::Hiding.as_str());
            let Facing::Targets(targets) = &mut facing else { unreachable!("it has targets") };
            let reached = &mut targets[0].share.as_mut().unwrap().reached;
            reached.asked = Some(Share::percent(25));
            let earlier = facing.clone();
            assert_eq!(reason(&earlier), HidingReason::Hiding.as_str(), "the engine counts the share before");
            let Facing::Targets(targets) = &mut facing else { unreachable!("it has targets") };
            let reached = &mut targets[0].share.as_mut().unwrap().reached;
            (reached.asked, reached.ours) = (Some(Share::percent(100)), 1);
            assert_eq!(reason(&facing), HidingReason::Hiding.as_str(), "one pod is not registered yet");
        }
    }

    #[test]
    fn tasks_that_cannot_be_shown_again_are_said_with_the_remedy() {
        let (spec, status) = wished();
        let trouble = Some((HidingTrouble::AccessDenied, "denied".to_owned()));
        let stuck = TargetTasks { showing: true, hidden: 2, trouble, ..TargetTasks::default() };
        let verdict = said(&spec, &status, (&facing(Some(stuck), 0), false), None).verdict.unwrap();
        assert_eq!(verdict.reason, HidingReason::NotPermitted.as_str());
        assert!(verdict.message.starts_with("Tasks that were hidden cannot be shown again yet. AWS does not allow"));
    }

    #[test]
    fn what_is_not_read_yet_leaves_what_was_said() {
        let (spec, mut status) = wished();
        let hidden = TargetTasks { hidden: 1, complete: true, ..TargetTasks::default() };
        let before = said(&spec, &status, (&facing(Some(hidden), 0), true), Some(500));
        let said_before = SharedCondition::from(
            &api::conditions::conditions(&[], before.verdict.clone(), Some(1), Timestamp::from_second(500).unwrap())[0],
        );
        status.conditions = vec![(&said_before).into()];
        (status.hidden, status.hidden_since) = (before.hidden, before.since.clone());
        for unknown in [Facing::NoObject, Facing::Targets(Vec::new()), facing(Some(TargetTasks::default()), 0)] {
            let now = said(&spec, &status, (&unknown, true), None);
            let message = now.verdict.map(|verdict| verdict.message);
            assert_eq!(message, before.verdict.as_ref().map(|verdict| verdict.message.clone()), "{unknown:?}");
        }
    }
}
