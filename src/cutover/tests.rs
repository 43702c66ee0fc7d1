mod guarded;
mod steps;

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

use super::{
    course::lingers,
    guard::{Guard, Judgement},
    *,
};
use api::{
    CutoverGuard,
    CutoverPhase::{self, Blocked, Finished, Holding, Paused, RolledBack, RollingBack, Shifting, Waiting},
    CutoverSpec, CutoverStatus, GuardFailure,
    events::EventReason,
};
use instances::{
    Share, Traffic,
    share::Reached,
    sync::{TargetShare, TargetTasks},
};
use model::Target;

fn spec() -> CutoverSpec {
    CutoverSpec { steps: vec![5, 25, 50, 100], interval: Some("2m".to_owned()), ..CutoverSpec::default() }
}

/// A target in which `ours` of `ready` pods are registered beside `others`, for a share of `asked` percent.
fn standing(asked: u8, ours: usize, ready: usize, others: usize) -> TargetStanding {
    let reached = Reached { asked: Some(Share::percent(asked)), ours, ready, others, hidden: 0, to_hide: 0 };
    let share = TargetShare {
        reached,
        registered: ours,
        addresses: Arc::default(),
        unready: 0,
        complete: true,
        ttl: 60,
        resolves: true,
        http_name: None,
        tasks: None,
    };
    let target = Target { namespace: "internal".into(), service: "orders".into() };
    TargetStanding { target, share: Some(share), trouble: None }
}

/// The same where the number is the nearest from below.
fn near(asked: u8, ready: usize, others: usize) -> TargetStanding {
    standing(asked, Share::percent(asked).number(others).min(ready), ready, others)
}

fn at(share: impl Into<Option<i64>>) -> CutoverStatus {
    CutoverStatus { share_of_traffic: share.into(), observed_generation: Some(1), ..CutoverStatus::default() }
}

struct Case {
    spec: CutoverSpec,
    status: CutoverStatus,
    facing: Facing,
    annotation: Traffic,
    awaits: Option<&'static str>,
    guard: Option<Judgement>,
    waited: u64,
    may_hide: bool,
    settle: Settle,
}

impl Case {
    fn new(status: CutoverStatus, standing: TargetStanding) -> Self {
        let facing = Facing::Targets(vec![standing]);
        Self {
            spec: spec(),
            status,
            facing,
            annotation: Traffic::All,
            awaits: None,
            guard: None,
            waited: 0,
            may_hide: true,
            settle: Settle::default(),
        }
    }

    fn planned(&self) -> Option<Planned> {
        let observed = Observed {
            generation: Some(1),
            annotation: self.annotation,
            facing: &self.facing,
            awaits: self.awaits,
            guard: self.guard.as_ref(),
            may_hide: self.may_hide,
            ungranted: None,
            settle: self.settle,
            hidden_since: None,
            waited: Duration::from_secs(self.waited),
            now: Timestamp::UNIX_EPOCH,
        };
        plan(&self.spec, &self.status, &observed)
    }

    /// Phase, share, reason and message.
    fn next(&self) -> (CutoverPhase, Option<i64>, String, String) {
        let status = self.planned().map_or_else(|| self.status.clone(), |planned| planned.status);
        let condition = &status.conditions[0];
        let said = (condition.reason.clone(), condition.message.clone());
        (status.phase.unwrap(), status.share_of_traffic, said.0, said.1)
    }
}

#[test]
fn a_step_follows_when_the_one_before_was_reached_for_its_interval() {
    for (status, standing, waited, expected) in [
        // The first one begins at once.
        (at(None), near(5, 10, 12), 0, (Shifting, Some(5), "Registering")),
        (at(5), near(5, 10, 12), 119, (Shifting, Some(5), "Shifting")),
        (at(5), near(5, 10, 12), 120, (Shifting, Some(25), "Registering")),
        // The share is not that of the target yet, or not all pods are there.
        (at(25), near(5, 10, 12), 999, (Shifting, Some(25), "Registering")),
        (at(25), standing(25, 3, 10, 12), 999, (Shifting, Some(25), "Registering")),
        (at(25), standing(25, 4, 10, 12), 999, (Shifting, Some(50), "Registering")),
        // It needs more pods than there are: that is as near as possible.
        (at(50), standing(50, 2, 2, 12), 120, (Shifting, Some(100), "Registering")),
        // There are none.
        (at(50), standing(50, 0, 0, 12), 999, (Shifting, Some(50), "PodsNotReady")),
        // All pods are registered, because nobody else is.
        (at(25), standing(25, 10, 10, 0), 120, (Shifting, Some(50), "Registering")),
        (at(100), standing(100, 10, 10, 12), 0, (Finished, Some(100), "OthersServe")),
        (at(100), standing(100, 10, 10, 0), 0, (Finished, Some(100), "Finished")),
        (at(100), standing(100, 9, 10, 12), 0, (Shifting, Some(100), "Registering")),
    ] {
        let case = Case { waited, ..Case::new(status, standing) };
        let (phase, share, reason, message) = case.next();
        assert_eq!((phase, share, &*reason), expected, "{message}");
    }
}

/// Otherwise new pods are not registered as soon as the Cutover is gone.
#[test]
fn who_may_delete_a_cutover_is_told_to_remove_the_annotation_before() {
    let share = |percent| Traffic::Share(Share::percent(percent));
    for (annotation, removes) in
        [(Traffic::All, false), (share(100), false), (share(0), true), (share(25), true), (Traffic::Unclear, true)]
    {
        let case = Case { annotation, ..Case::new(at(100), standing(100, 10, 10, 0)) };
        let (_, _, reason, message) = case.next();
        assert_eq!((&*reason, message.contains("share-of-traffic")), ("Finished", removes), "{message}");
    }
}

/// AWS may throttle the registrations of the others.
#[test]
fn the_share_that_is_reached_is_that_of_the_pods_that_are_registered() {
    let mut standing = standing(50, 6, 10, 6);
    standing.share.as_mut().unwrap().registered = 2;
    assert_eq!(Facing::Targets(vec![standing]).reached().unwrap().0, Share::percent(25));
}

#[test]
fn pods_that_fail_hold_the_step() {
    let mut standing = standing(25, 2, 2, 2);
    standing.share.as_mut().unwrap().unready = 8;
    let (phase, share, reason, message) = Case { waited: 999, ..Case::new(at(25), standing) }.next();
    assert_eq!((phase, share, &*reason), (Shifting, Some(25), "PodsNotReady"));
    assert!(message.contains("8 pods are not ready") && message.contains("Step 2 of 4"), "{message}");
}

#[test]
fn all_targets_of_an_object_must_have_the_share() {
    let case = |other: TargetStanding| Case {
        waited: 999,
        facing: Facing::Targets(vec![near(25, 10, 12), other]),
        ..Case::new(at(25), near(25, 10, 12))
    };
    assert_eq!(case(near(25, 4, 4)).next().1, Some(50));
    assert_eq!(case(near(5, 4, 4)).next().1, Some(25));
    let trouble = TargetStanding { trouble: Some("AWS throttles".to_owned()), ..near(25, 4, 4) };
    let (_, share, reason, message) = case(trouble).next();
    assert_eq!((share, &*reason), (Some(25), "Registering"));
    assert!(message.contains("AWS throttles"), "{message}");
}

#[test]
fn what_the_user_says_counts_at_once() {
    let of = |change: fn(&mut CutoverSpec), status: CutoverStatus, standing: TargetStanding| {
        let mut case = Case { waited: 999, ..Case::new(status, standing) };
        change(&mut case.spec);
        let (phase, share, reason, _) = case.next();
        (phase, share, reason)
    };
    let paused = |spec: &mut CutoverSpec| spec.paused = true;
    assert_eq!(of(paused, at(25), near(25, 10, 12)), (Paused, Some(25), "Paused".to_owned()));
    assert_eq!(of(paused, at(None), near(25, 10, 12)), (Paused, None, "Paused".to_owned()), "nothing begins");
    let held = |spec: &mut CutoverSpec| (spec.share_of_traffic, spec.paused) = (Some(60), true);
    assert_eq!(of(held, at(25), near(25, 10, 12)), (Holding, Some(60), "Held".to_owned()));
    let down = |spec: &mut CutoverSpec| spec.share_of_traffic = Some(10);
    assert_eq!(of(down, at(50), near(50, 10, 12)), (Holding, Some(10), "Held".to_owned()));
    let all = |spec: &mut CutoverSpec| spec.share_of_traffic = Some(100);
    assert_eq!(of(all, at(25), near(25, 10, 12)), (Holding, Some(100), "Held".to_owned()));
    assert_eq!(of(all, at(100), standing(100, 10, 10, 2)), (Finished, Some(100), "OthersServe".to_owned()));
    // Without it, the steps go on from there.
    assert_eq!(of(|_| {}, at(60), near(60, 99, 12)), (Shifting, Some(100), "Registering".to_owned()));
    let fewer = |spec: &mut CutoverSpec| spec.steps = vec![5, 25];
    assert_eq!(of(fewer, at(60), near(60, 99, 12)), (Holding, Some(60), "LastStep".to_owned()));
}

#[test]
fn back_is_possible_from_anywhere_and_leaves_an_instance_where_nobody_else_is() {
    let of = |status: CutoverStatus, facing: Facing, invalid: bool| {
        let mut case = Case { facing, ..Case::new(status, near(5, 1, 1)) };
        case.spec.roll_back = true;
        case.spec.paused = true;
        if invalid {
            case.spec.steps.clear();
        }
        let (phase, share, reason, _) = case.next();
        (phase, share, reason)
    };
    let in_place = |standing: TargetStanding| Facing::Targets(vec![standing]);
    let finished = CutoverStatus { phase: Some(Finished), ..at(100) };
    assert_eq!(of(finished, in_place(near(100, 10, 12)), false), (RollingBack, Some(0), "RollingBack".to_owned()));
    assert_eq!(of(at(0), in_place(standing(0, 1, 10, 0)), true), (RollingBack, Some(0), "LastInstance".to_owned()));
    assert_eq!(of(at(0), in_place(standing(0, 1, 10, 2)), false), (RollingBack, Some(0), "RollingBack".to_owned()));
    assert_eq!(of(at(0), in_place(standing(0, 0, 10, 2)), true), (RolledBack, Some(0), "RolledBack".to_owned()));
    assert_eq!(of(at(50), Facing::NoObject, false), (Blocked, Some(0), "NoObject".to_owned()));
    let mut last = Case::new(at(0), standing(0, 10, 10, 0));
    last.spec.roll_back = true;
    let (_, _, reason, message) = last.next();
    assert!(reason == "LastInstance" && message.contains("the registered pods keep the traffic"), "{message}");
    // Afterwards it begins anew.
    assert_eq!(Case::new(at(0), standing(0, 0, 10, 2)).next().1, Some(5));
}

#[test]
fn what_is_missing_or_invalid_changes_no_share_and_says_what_to_do() {
    let facing = Case { facing: Facing::NoObject, ..Case::new(at(25), near(25, 1, 1)) };
    let (phase, share, reason, message) = facing.next();
    assert_eq!((phase, share, &*reason), (Blocked, Some(25), "NoObject"));
    assert!(message.contains("create one") && message.contains("stays as it is"), "{message}");
    let why = "Cloud Map service internal/orders: it belongs to somebody else".to_owned();
    let refused = Case { facing: Facing::NotRegistered(why.clone()), ..Case::new(at(25), near(25, 1, 1)) };
    let (phase, share, reason, message) = refused.next();
    assert_eq!((phase, share, &*reason), (Blocked, Some(25), "NotRegistered"));
    assert!(message.starts_with(&why), "{message}");
    for (change, field) in [
        ((|spec| spec.steps.clear()) as fn(&mut CutoverSpec), "spec.steps is []"),
        (|spec| spec.steps = vec![5, 5], "spec.steps is [5, 5]"),
        (|spec| spec.steps = vec![50, 25], "rising percentages"),
        (|spec| spec.steps = vec![5, 101], "from 1 to 100"),
        (|spec| spec.interval = Some("soon".to_owned()), "spec.interval is \"soon\""),
        (|spec| spec.share_of_traffic = Some(120), "spec.shareOfTraffic is 120"),
    ] {
        let mut case = Case { waited: 999, ..Case::new(at(25), near(25, 10, 12)) };
        change(&mut case.spec);
        let (phase, share, reason, message) = case.next();
        assert_eq!((phase, share, &*reason), (Blocked, Some(25), "InvalidSpec"));
        assert!(message.to_lowercase().contains(&field.to_lowercase()), "{message}");
    }
}

/// A quota may be exhausted, or a permission to register may be gone, while pods get traffic.
#[test]
fn what_takes_traffic_from_the_pods_counts_while_the_object_is_refused_as_well() {
    for facing in [Facing::NotRegistered("a quota is exhausted".to_owned()), Facing::NoObject] {
        let of = |change: fn(&mut CutoverSpec), guard: Option<Judgement>| {
            let mut case = Case { facing: facing.clone(), guard, ..Case::new(at(50), near(50, 10, 12)) };
            change(&mut case.spec);
            let (phase, share, _, message) = case.next();
            assert_eq!(phase, Blocked, "{message}");
            (share.unwrap(), message)
        };
        for (share, (given, message)) in [
            (0, of(|spec| spec.roll_back = true, None)),
            (10, of(|spec| spec.share_of_traffic = Some(10), None)),
            (50, of(|spec| spec.share_of_traffic = Some(50), None)),
            (0, of(|spec| spec.guard = Some(CutoverGuard::default()), Some(Judgement::Failed("ill".to_owned())))),
        ] {
            let said = format!(" {share} % of the traffic is requested all the same.");
            assert!(given == share && message.ends_with(&said), "{given}: {message}");
        }
        let (share, message) = of(|spec| spec.share_of_traffic = Some(60), None);
        assert!(share == 50 && message.ends_with("The share stays as it is."), "nothing more is registered: {message}");
    }
}

#[test]
fn a_wave_waits_for_lower_ones_wherever_it_is() {
    for (status, expected) in [(at(None), None), (at(25), Some(25))] {
        let case = Case { awaits: Some("carts"), waited: 999, ..Case::new(status, near(25, 10, 12)) };
        let (phase, share, reason, message) = case.next();
        assert_eq!((phase, share, &*reason), (Waiting, expected, "AwaitsWave"));
        assert!(message.contains("carts"), "{message}");
    }
    let last = Case { awaits: Some("carts"), ..Case::new(at(100), near(100, 10, 12)) };
    assert_eq!(last.next().0, Finished, "no step is left that could wait");
}

#[test]
fn what_the_annotation_requested_stays_until_the_next_step() {
    let of = |annotation, waited| {
        let case = Case { annotation, waited, ..Case::new(at(None), near(30, 10, 12)) };
        case.next().1
    };
    assert_eq!(of(Traffic::Share("30.5%".parse().unwrap()), 0), Some(30));
    assert_eq!(of(Traffic::Share(Share::percent(0)), 0), Some(5));
    assert_eq!(of(Traffic::Unclear, 0), Some(5));
    assert_eq!(Case { waited: 120, ..Case::new(at(30), near(30, 10, 12)) }.next().1, Some(50));
}

#[test]
fn an_interval_is_not_shorter_than_clients_use_an_answer_and_that_is_said() {
    let with = |waited, ttl: u32| {
        let mut standing = near(5, 10, 12);
        standing.share.as_mut().unwrap().ttl = ttl;
        let mut case = Case { waited, ..Case::new(at(5), standing) };
        case.spec.interval = Some("10s".to_owned());
        case.next()
    };
    let (_, share, _, message) = with(89, 60);
    assert_eq!(share, Some(5));
    assert!(message.contains("10s is too short: the TTL of 60 s plus 30 s counts instead"), "{message}");
    assert_eq!(with(90, 60).1, Some(25));
    assert_eq!(with(30, 0).1, Some(25));
    let default = CutoverSpec { interval: None, ..spec() };
    assert_eq!(Course::read(&default).unwrap().interval(60, Settle::default()), Duration::from_mins(5));
}

/// The TTL is 60 s.
#[test]
fn steps_and_pods_that_end_wait_for_clients_that_are_as_late_as_the_setting_says() {
    for (settle, seconds, interval, lingering) in
        [("1s", 1, 61, 81), ("3s", 3, 63, 83), ("30s", 30, 90, 110), ("5m", 300, 360, 380), ("1h", 3600, 3660, 3680)]
    {
        let settle: Settle = settle.parse().unwrap();
        assert_eq!(settle.to_string(), format!("{seconds}s"));
        assert_eq!(lingers(60, settle), Duration::from_secs(lingering), "{settle}");
        let after = |waited| {
            let mut case = Case { waited, settle, ..Case::new(at(5), near(5, 10, 12)) };
            case.spec.interval = Some("10s".to_owned());
            case.next()
        };
        let (_, share, _, message) = after(interval - 1);
        let said = format!("10s is too short: the TTL of 60 s plus {seconds} s counts instead");
        assert!(share == Some(5) && message.contains(&said), "{message}");
        assert_eq!(after(interval).1, Some(25), "{settle}");
        // As long as the last step has to last, the guard looks at it.
        let guarded = CutoverSpec { guard: Some(CutoverGuard::default()), interval: Some("10s".to_owned()), ..spec() };
        let looks = |waited: u64| {
            let waited_seconds = Some(i64::try_from(waited).unwrap());
            let status = CutoverStatus { phase: Some(Blocked), waited_seconds, ..at(100) };
            plan::looks(&guarded, &status, Some(1), 60, settle).is_some()
        };
        assert!(looks(interval - 1) && !looks(interval), "{settle}");
    }
    assert_eq!("30s".parse(), Ok(Settle::default()));
}

#[test]
fn a_time_of_parts_of_seconds_or_of_hours_is_no_setting() {
    for wrong in ["0s", "999ms", "1500ms", "-5s", "61m", "2h", "30", "soon", ""] {
        let error = wrong.parse::<Settle>().unwrap_err();
        assert!(error.contains("from 1s to 1h, in whole seconds"), "{wrong}: {error}");
    }
}

#[test]
fn what_is_finished_stays_so_while_pods_come_and_go() {
    let status = CutoverStatus { phase: Some(Finished), ..at(100) };
    let mut standing = standing(100, 1, 2, 2);
    standing.share.as_mut().unwrap().unready = 3;
    let mut case = Case::new(status, standing);
    assert_eq!(case.next().0, Finished);
    // Also if somebody did not wait for the steps, as `cutover finish` does.
    case.spec.share_of_traffic = Some(100);
    assert_eq!(case.next().0, Finished);
    case.spec.share_of_traffic = Some(50);
    assert_eq!(case.next().0, Holding);
}

#[test]
fn nobody_is_told_to_wait_for_a_time_to_stop_tasks_that_are_being_shown_again() {
    for (showing, said) in [(false, "from when on the tasks may be stopped"), (true, "are being shown again")] {
        let mut standing = standing(100, 10, 10, 2);
        standing.share.as_mut().unwrap().tasks = Some(TargetTasks { hidden: 2, showing, ..TargetTasks::default() });
        let (phase, _, _, message) = Case::new(at(100), standing).next();
        assert_eq!(phase, Finished);
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn a_status_is_written_only_when_something_changes_and_says_it_once() {
    let first = Case::new(at(None), near(5, 10, 12)).planned().unwrap();
    assert_eq!(first.news.iter().map(|(reason, _)| *reason).collect::<Vec<_>>(), [EventReason::StepBegun]);
    assert_eq!((first.status.step, first.status.waited_seconds), (Some(1), None));
    let mut status = first.status;
    // The reasons change with what is reached; after that, time alone is written four times in an interval.
    let mut writes = Vec::new();
    for waited in 0..120 {
        let case = Case { waited, ..Case::new(status.clone(), near(5, 10, 12)) };
        if let Some(planned) = case.planned() {
            assert!(planned.news.is_empty(), "{:?}", planned.news);
            writes.push(waited);
            status = planned.status;
        }
    }
    assert_eq!(writes, [0, 30, 60, 90]);
    assert_eq!((status.reached.as_deref(), status.reachable.as_deref()), (Some("7.69%"), Some("45.45%")));
    let case = Case { waited: 120, ..Case::new(status, near(5, 10, 12)) };
    assert_eq!(case.planned().unwrap().news[0].1, "25 % of the traffic is requested, after 5 %.");
    // While a new leader has not read the target, everything stays.
    let unread = TargetStanding { share: None, ..near(5, 10, 12) };
    let status = CutoverStatus { phase: Some(Shifting), ..at(5) };
    assert_eq!(Case::new(status, unread).planned(), None);
}

#[test]
fn only_time_in_which_a_share_is_reached_counts_and_another_leader_goes_on() {
    let s = Duration::from_secs;
    let mut watch = Stopwatch::default();
    let status = at(5);
    for (mono, reached, expected) in
        [(100, false, 0), (110, true, 0), (130, true, 20), (140, false, 20), (200, true, 20), (210, true, 30)]
    {
        assert_eq!(watch.look(&status, reached, s(mono)), s(expected), "{mono}");
    }
    assert_eq!(watch.look(&at(25), true, s(220)), s(0), "another share");
    let inherited = CutoverStatus { waited_seconds: Some(90), ..at(5) };
    let mut other = Stopwatch::default();
    assert_eq!(other.look(&inherited, true, s(3)), s(90));
    assert_eq!(other.look(&inherited, true, s(5)), s(92));
}
