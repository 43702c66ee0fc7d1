//! What a guard of a Cutover does.

use super::*;

#[test]
fn a_guard_holds_what_it_does_not_know_and_takes_back_what_is_wrong() {
    let of = |status: CutoverStatus, standing: TargetStanding, judgement, waited| {
        let mut case = Case { guard: Some(judgement), waited, ..Case::new(status, standing) };
        case.spec.guard = Some(CutoverGuard::default());
        let (phase, share, reason, message) = case.next();
        ((phase, share, &*reason.leak()), message)
    };
    let unknown = || Judgement::Unknown("DNS is silent".to_owned());
    let failed = || Judgement::Failed("the pod is ill".to_owned());
    for (status, standing, judgement, waited, expected) in [
        (at(None), near(5, 10, 12), unknown(), 0, (Shifting, None, "GuardUnclear")),
        (at(None), near(5, 10, 12), Judgement::Passed, 0, (Shifting, Some(5), "Registering")),
        (at(5), near(5, 10, 12), unknown(), 999, (Shifting, Some(5), "GuardUnclear")),
        (at(5), near(5, 10, 12), Judgement::Passed, 120, (Shifting, Some(25), "Registering")),
        (at(25), near(25, 10, 12), failed(), 0, (RollingBack, Some(0), "GuardFailed")),
        (at(25), standing(25, 0, 10, 12), failed(), 0, (RollingBack, Some(0), "GuardFailed")),
        // The last step lasts as well.
        (at(100), standing(100, 10, 10, 12), Judgement::Passed, 119, (Shifting, Some(100), "Shifting")),
        (at(100), standing(100, 10, 10, 12), Judgement::Passed, 120, (Finished, Some(100), "OthersServe")),
    ] {
        let (said, message) = of(status, standing, judgement, waited);
        assert_eq!(said, expected, "{message}");
    }
    let (_, message) = of(at(5), near(5, 10, 12), unknown(), 0);
    assert!(message.contains("DNS is silent. The share stays"), "{message}");
}

#[test]
fn what_the_guard_found_counts_until_the_spec_changes() {
    let guard_failure = Some(GuardFailure { generation: 1, message: "the pod is ill".to_owned() });
    let status = CutoverStatus { guard_failure, ..at(0) };
    let guarded = CutoverSpec { guard: Some(CutoverGuard::default()), ..spec() };
    let mut case = Case { spec: guarded.clone(), ..Case::new(status.clone(), standing(0, 0, 10, 2)) };
    let (phase, share, reason, message) = case.next();
    assert_eq!((phase, share, &*reason), (RolledBack, Some(0), "GuardFailed"));
    assert!(message.contains("the pod is ill. ") && message.contains("cutover resume"), "{message}");
    assert!(!message.contains("rollBack"), "nobody has set it: {message}");
    assert_eq!(plan::looks(&guarded, &status, Some(1), 60, Settle::default()), None, "nothing is left to look at");
    let other = GuardFailure { generation: 0, ..status.guard_failure.clone().unwrap() };
    case.status.guard_failure = Some(other);
    assert_eq!(case.next().1, Some(5), "the spec changed");
    assert_eq!(case.planned().unwrap().status.guard_failure, None);
    case.status = status.clone();
    case.spec.roll_back = true;
    assert_eq!((case.next().2, case.planned().unwrap().status.guard_failure), ("RolledBack".to_owned(), None));

    // It looks only while the steps go on by themselves.
    let looks = |change: fn(&mut CutoverSpec), status: CutoverStatus| {
        let mut spec = guarded.clone();
        change(&mut spec);
        plan::looks(&spec, &status, Some(1), 60, Settle::default()).is_some()
    };
    assert!(looks(|_| {}, at(None)) && looks(|_| {}, at(100)));
    assert!(!looks(|_| {}, CutoverStatus { phase: Some(Finished), ..at(100) }));
    // It was finished, and the export was away for a moment. Pods that fail now must not give the traffic to nobody.
    let blocked = |share, waited| CutoverStatus { phase: Some(Blocked), waited_seconds: Some(waited), ..at(share) };
    assert!(!looks(|_| {}, blocked(100, 120)) && looks(|_| {}, blocked(100, 119)) && looks(|_| {}, blocked(50, 120)));
    // `cutover finish` brought it there, and no step has lasted.
    let held = CutoverSpec { share_of_traffic: Some(100), ..guarded.clone() };
    let finished = Case { spec: held, ..Case::new(at(100), standing(100, 10, 10, 2)) }.planned().unwrap().status;
    assert_eq!(finished.phase, Some(Finished));
    assert!(!looks(|_| {}, CutoverStatus { phase: Some(Blocked), ..finished }));
    for change in [
        (|spec| spec.paused = true) as fn(&mut CutoverSpec),
        |spec| spec.roll_back = true,
        |spec| spec.share_of_traffic = Some(20),
        |spec| spec.guard = None,
    ] {
        assert!(!looks(change, at(25)));
    }
}

#[test]
fn a_guard_is_read_or_says_what_is_wrong() {
    let of = |path: Option<&str>, port, query: Option<&str>, max: Option<&str>| {
        let text = |text: Option<&str>| text.map(str::to_owned);
        Guard::read(&CutoverGuard { path: text(path), port, query: text(query), max: text(max) })
    };
    assert_eq!(of(None, None, None, None), Ok(Guard::default()));
    let read = of(Some("/healthz"), Some(8080), Some("up"), Some("-0.5")).unwrap();
    assert_eq!((read.port, read.query.unwrap().max), (Some(8080), -0.5));
    for (guard, said) in [
        (of(Some("healthz"), None, None, None), "spec.guard.path is \"healthz\""),
        (of(None, Some(0), None, None), "spec.guard.port"),
        (of(None, None, Some("up"), None), "only one of query and max"),
        (of(None, None, Some("up"), Some("much")), "spec.guard.max is \"much\""),
    ] {
        let error = guard.unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}
