use super::*;
use crate::conditions::ReadyReason;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The conditions of an object of which these were written.
fn said(written: &[Condition]) -> Vec<SharedCondition> {
    written.iter().map(SharedCondition::from).collect()
}

#[test]
fn the_transition_time_changes_only_with_the_status() {
    let first = conditions(&[], [Verdict::new(ReadyReason::Pending, "waiting")], Some(1), at(10));
    assert_eq!(first[0].last_transition_time.0, at(10));

    let reworded = conditions(&said(&first), [Verdict::new(ReadyReason::Failed, "denied")], Some(2), at(20));
    assert_eq!(reworded[0].last_transition_time.0, at(10));
    assert_eq!((reworded[0].reason.as_str(), reworded[0].observed_generation), ("Failed", Some(2)));

    let flipped = conditions(&said(&reworded), [Verdict::new(ReadyReason::Exported, "")], Some(2), at(30));
    assert_eq!(flipped[0].last_transition_time.0, at(30));
}

#[test]
fn an_unchanged_verdict_needs_no_write() {
    let verdict = Verdict::new(ReadyReason::Exported, "");
    let written = conditions(&[], [verdict.clone()], Some(1), at(10));
    let there = said(&written);
    assert!(already_say(&there, &conditions(&there, [verdict], Some(1), at(99))));
    assert!(!already_say(&[], &written));
}

#[test]
fn conditions_of_other_writers_are_not_repeated() {
    let others = conditions(&[], [Verdict { type_: "Custom", ..Verdict::new(ReadyReason::Failed, "") }], None, at(1));
    let others = said(&others);
    let own = conditions(&others, [Verdict::new(ReadyReason::Exported, "")], None, at(2));
    assert_eq!(own.len(), 1);
    assert!(!already_say(&others, &own));
}

#[test]
fn what_conditions_have_in_common_is_in_memory_once() {
    let verdicts = ["denied", "throttled"].map(|message| Verdict::new(ReadyReason::Failed, message));
    let said = said(&conditions(&[], verdicts, None, at(1)));
    assert!(Arc::ptr_eq(&said[0].heading, &said[1].heading));
    assert!(size_of::<SharedCondition>() <= 56, "{} bytes", size_of::<SharedCondition>());
}

#[test]
fn fractions_of_a_second_are_dropped_as_the_api_server_does() {
    let now = Timestamp::from_millisecond(1_500).unwrap();
    assert_eq!(conditions(&[], [Verdict::new(ReadyReason::Exported, "")], None, now)[0].last_transition_time.0, at(1));
}

#[test]
fn long_messages_are_cut_between_characters() {
    let message = "é".repeat(MAX_MESSAGE + 5);
    let made = conditions(&[], [Verdict::new(ReadyReason::Failed, &message)], None, at(1));
    assert_eq!(made[0].message.chars().count(), MAX_MESSAGE);
}

#[test]
fn an_event_says_what_is_new_and_good_news_only_after_bad_ones() {
    let said = |verdict: Verdict| said(&conditions(&[], [verdict], Some(1), at(10)));
    let exported = Verdict::new(ReadyReason::Exported, "");
    let failed = Verdict::new(ReadyReason::Failed, "denied");
    assert_eq!(exported.news(&[]), None);
    assert_eq!(failed.news(&[]), Some(EventReason::Failed));
    assert_eq!(exported.news(&said(failed.clone())), Some(EventReason::Exported));
    assert_eq!(failed.news(&said(Verdict::new(ReadyReason::Failed, "throttled"))), None);
    assert_eq!(Verdict::new(ReadyReason::Pending, "").news(&said(failed)), None);
    let pending = said(Verdict::new(ReadyReason::Pending, ""));
    assert_eq!(Verdict::new(ReadyReason::Outside, "").news(&[]), Some(EventReason::NoClusterSet));
    assert_eq!(Verdict::new(ReadyReason::Outside, "").news(&pending), None);
    let conflict = Verdict::conflict(&[ConflictReason::Type, ConflictReason::Port], "");
    assert_eq!(
        (conflict.reason.as_str(), conflict.news(&[])),
        ("TypeConflict,PortConflict", Some(EventReason::Conflict))
    );
    assert_eq!(Verdict::new(ConflictState::NoConflicts, "").news(&[]), None);
    assert_eq!(Verdict::new(ConflictState::NoConflicts, "").news(&said(conflict)), Some(EventReason::NoConflicts));
}
