//! No step is left out or too short, whatever happens.

use super::*;

/// Something that happens between two looks.
#[derive(Debug, Clone)]
enum Happening {
    /// Seconds pass, on a wall clock that jumps.
    Time(u64, i64),
    /// Pods that are ready, and that are not.
    Pods(usize, usize),
    Tasks(usize),
    /// Cloud Map has what was requested, or stands still.
    CloudMap(bool),
    Pause(bool),
    Hold(Option<u8>),
    Back(bool),
    Wave(bool),
    Guard(u8),
    Leader,
    /// The status is written late.
    Lost,
}

/// An object in one target of which a share is requested, or none.
fn requested(asked: Option<u8>, ready: usize, unready: usize, tasks: usize, complete: bool) -> Facing {
    let mut standing = near(asked.unwrap_or_default(), ready, tasks);
    let there = standing.share.as_mut().unwrap();
    (there.unready, there.complete) = (unready, complete);
    there.reached.asked = there.reached.asked.filter(|_| asked.is_some());
    Facing::Targets(vec![standing])
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (1..200_u64, -5000..5000_i64).prop_map(|(time, jump)| Happening::Time(time, jump)),
        2 => (0..12_usize, 0..2_usize).prop_map(|(ready, unready)| Happening::Pods(ready, unready)),
        2 => (0..12_usize).prop_map(Happening::Tasks),
        3 => any::<bool>().prop_map(Happening::CloudMap),
        1 => any::<bool>().prop_map(Happening::Pause),
        1 => prop::option::of(0..=100_u8).prop_map(Happening::Hold),
        1 => prop::bool::weighted(0.3).prop_map(Happening::Back),
        1 => prop::bool::weighted(0.3).prop_map(Happening::Wave),
        1 => (0..4_u8).prop_map(Happening::Guard),
        1 => Just(Happening::Leader),
        1 => Just(Happening::Lost),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    /// Whatever happens: no step is left out or too short, the share falls only because the user said so, and pods get no
    /// more traffic while some fail.
    #[test]
    fn no_step_is_left_out_and_none_is_too_short(all in prop::collection::vec(happening(), 1..80)) {
        let (mut spec, mut status, mut watch) = (spec(), CutoverStatus::default(), Stopwatch::default());
        let (mut ready, mut unready, mut tasks, mut follows, mut awaits) = (5_usize, 0, 5_usize, true, false);
        let (mut mono, mut wall, mut lost) = (0_u64, 1_000_000_i64, false);
        let (mut asked, mut reached_for) = (None::<u8>, 0_u64);
        let (mut finding, mut generation) = (Judgement::Passed, 1);
        let [unknown, failed] = [Judgement::Unknown(String::new()), Judgement::Failed("ill".to_owned())];
        for what in all {
            let mut time = 1;
            match what {
                Happening::Time(seconds, jump) => (time, wall) = (seconds, wall + jump),
                Happening::Pods(some, others) => (ready, unready) = (some, others),
                Happening::Tasks(count) => tasks = count,
                Happening::CloudMap(works) => follows = works,
                Happening::Pause(paused) => spec.paused = paused,
                Happening::Hold(share) => spec.share_of_traffic = share.map(i64::from),
                Happening::Back(back) => spec.roll_back = back,
                Happening::Wave(waits) => awaits = waits,
                Happening::Guard(finds) => {
                    spec.guard = (finds > 0).then(CutoverGuard::default);
                    finding = [Judgement::Passed, Judgement::Passed, unknown.clone(), failed.clone()][usize::from(finds)].clone();
                    generation += 1;
                }
                Happening::Leader => (watch, mono) = (Stopwatch::default(), 0),
                Happening::Lost => lost = true,
            }
            for _ in 0..time {
                (mono, wall) = (mono + 1, wall + 1);
                let share = status.share_of_traffic.and_then(|share| u8::try_from(share).ok());
                if follows {
                    asked = share;
                }
                let facing = requested(asked, ready, unready, tasks, follows);
                let settle = Settle::default();
                let guard = plan::looks(&spec, &status, Some(generation), facing.ttl(), settle).map(|_| &finding);
                let is_good = guard.map_or(spec.guard.is_none(), |finding| *finding == Judgement::Passed);
                let is_reached = is_good && share.is_some_and(|share| facing.stands_at(share).is_ok());
                reached_for += u64::from(is_reached);
                let observed = Observed {
                    generation: Some(generation),
                    annotation: Traffic::All,
                    facing: &facing,
                    awaits: awaits.then_some("other"),
                    guard,
                    may_hide: false,
                    ungranted: None,
                    settle,
                    hidden_since: None,
                    waited: watch.look(&status, is_reached, Duration::from_secs(mono)),
                    now: Timestamp::from_second(wall).unwrap(),
                };
                let Some(Planned { status: next, .. }) = plan(&spec, &status, &observed) else { continue };
                let after = next.share_of_traffic.map(|share| u8::try_from(share).unwrap());
                if std::mem::take(&mut lost) {
                    continue;
                }
                if after != share {
                    let found = next.guard_failure.is_some() && after == Some(0);
                    prop_assert!(!found || spec.guard.is_some(), "the share fell without a guard");
                    prop_assert!(found || guard != Some(&unknown), "a step began although the guard does not know");
                    let said = found || spec.roll_back || spec.share_of_traffic.is_some();
                    let before = share.unwrap_or_default();
                    let course = Course::read(&spec).unwrap();
                    prop_assert!(said || after == course.next(before), "{share:?} -> {after:?}");
                    prop_assert!(said || before == 0 || reached_for >= 120, "{share:?} after {reached_for} s");
                    prop_assert!(said || before == 0 || unready == 0 && ready > 0);
                    prop_assert!(said || !spec.paused && !awaits);
                    reached_for = 0;
                }
                if next.phase == Some(RolledBack) {
                    prop_assert!(facing.stands_at(0).is_ok());
                }
                status = next;
            }
        }
    }
}
