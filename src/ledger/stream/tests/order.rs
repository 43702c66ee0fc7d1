//! S5 and S6: which of two states applies.

use super::*;
use crate::record::Streamed;

#[test]
fn what_was_streamed_applies_until_the_ledger_has_it_however_long_the_session_is_gone() {
    let (mut blue, mut green) = pair();
    blue.desire(state(0..5, 1));
    talk(1, &mut blue, &mut green);
    green.stream.closed(green.now, SessionId(1));
    green.wait(Duration::from_mins(30));
    assert_eq!(green.shows("blue"), Some(state(0..5, 1)));
    let said = blue.version;
    let mut ledger = |version| {
        let contact = green.contacts.get_mut("blue").unwrap();
        contact.summary = Some(Summary { version, ..Summary::default() });
        contact.position.seq += 1;
        green.advance();
        green.shows("blue")
    };
    assert!(ledger(Version { n: said.n - 1, ..said }).is_some(), "an older one");
    assert!(ledger(Version { epoch: said.epoch - 1, n: 99, ..said }).is_some(), "a former leader's");
    assert_eq!(ledger(said), None);
}

#[test]
fn of_two_leaders_with_one_epoch_the_ledger_decides() {
    let (mut blue, mut green) = pair();
    blue.desire(state(0..5, 1));
    talk(1, &mut blue, &mut green);
    let other = Version { nonce: 99, n: 1, ..blue.version };
    green.contacts.get_mut("blue").unwrap().summary = Some(Summary { version: other, ..Summary::default() });
    green.advance();
    assert_eq!(green.shows("blue"), None);
}

#[test]
fn where_the_record_of_a_cluster_was_lost_its_lower_epochs_count_in_the_end() {
    let (mut blue, mut green) = pair();
    blue.desire(state(0..5, 1));
    talk(1, &mut blue, &mut green);
    green.stream.closed(green.now, SessionId(1));
    let lower = Version { epoch: 1, nonce: 8, n: 1 };
    for seq in 1..40 {
        let contact = green.contacts.get_mut("blue").unwrap();
        (contact.head, contact.position) = (said(Some(lower)), Position { epoch: 1, seq });
        green.wait(Duration::from_secs(1));
    }
    assert!(green.shows("blue").is_some(), "heads of a former leader may come late");
    for seq in 40..60 {
        green.contacts.get_mut("blue").unwrap().position.seq = seq;
        green.wait(Duration::from_secs(1));
    }
    assert_eq!(green.shows("blue"), None);
}

/// Two leaders at once: the later one is gone, and the ledger went back to the other one (R3), which goes on and says so.
#[test]
fn what_a_leader_said_whose_record_was_lost_goes_although_an_earlier_one_is_connected() {
    let (mut blue, mut green) = pair();
    blue.desire(state(0..5, 1));
    talk(1, &mut blue, &mut green);
    green.stream.closed(green.now, SessionId(1));
    // Its only head repeats what the one before said.
    let before = Version { epoch: 2, nonce: 2, n: 4 };
    green.contacts.get_mut("blue").unwrap().head = said(Some(before));
    green.advance();
    green.wait(Duration::from_secs(50));
    green.stream.restore(green.now, None, &BTreeMap::new());
    let mut blue = Side { now: green.now, ..Side::new("blue", 2, [contact("green", 2, 5)]) };
    blue.desire(state(0..5, 2));
    green.contacts.get_mut("blue").unwrap().position = Position { epoch: 2, seq: 9 };
    blue.open(2, 2, Some("green"));
    green.open(2, 1, None);
    talk(2, &mut blue, &mut green);
    assert_eq!(green.shows("blue"), Some(state(0..5, 1)), "one head is not enough");
    green.contacts.get_mut("blue").unwrap().position.seq = 10;
    green.advance();
    green.advance();
    assert_eq!(green.shows("blue"), Some(state(0..5, 2)));
}

/// Of a former leader, whose operations hung: the first head after a restart is later than the record, and the next one landed
/// late.
#[test]
fn after_a_restart_one_late_head_does_not_show_that_a_record_was_lost() {
    let mut green = Side::new("green", 6, [contact("blue", 1, 3)]);
    let recorded = Streamed { uid: "uid-blue".into(), version: Version { epoch: 3, nonce: 3, n: 2 } };
    green.stream.restore(green.now, None, &BTreeMap::from([("blue".to_owned(), recorded)]));
    for (head, seq) in [(None, 1), (Some(Version { epoch: 2, nonce: 2, n: 1 }), 3), (Some(Version::default()), 4)] {
        let contact = green.contacts.get_mut("blue").unwrap();
        (contact.head, contact.position) = (said(head), Position { epoch: 2, seq });
        for _ in 0..60 {
            green.wait(Duration::from_secs(1));
        }
    }
    assert!(green.stream.record().contains_key("blue"));
}

#[test]
fn after_a_restart_nothing_older_applies_than_what_the_record_has() {
    let (mut blue, mut green) = pair();
    blue.desire(state(0..5, 1));
    talk(1, &mut blue, &mut green);
    let recorded = green.stream.record();
    assert_eq!(recorded["blue"].version, blue.version);
    let mut green = Side::new("green", 6, [contact("blue", 1, 3)]);
    green.stream.restore(green.now, None, &recorded);
    let older = Version { n: blue.version.n - 1, ..blue.version };
    green.contacts.get_mut("blue").unwrap().summary = Some(Summary { version: older, ..Summary::default() });
    green.advance();
    assert!(green.stream.record().contains_key("blue") && green.shows("blue").is_none());
    // The same state comes again.
    blue.contacts.get_mut("green").unwrap().position.epoch = 6;
    blue.stream.closed(blue.now, SessionId(1));
    blue.open(2, 2, Some("green"));
    green.open(2, 1, None);
    talk(2, &mut blue, &mut green);
    assert_eq!(green.shows("blue"), Some(state(0..5, 1)));
}

#[test]
fn where_the_record_cannot_follow_no_more_applies() {
    let (mut blue, mut green) = pair();
    blue.desire(state(0..5, 1));
    talk(1, &mut blue, &mut green);
    green.now += Duration::from_secs(7);
    blue.desire(state(0..5, 2));
    talk(1, &mut blue, &mut green);
    assert_eq!(green.shows("blue"), Some(state(0..5, 1)));
    green.stream.stored(green.now);
    green.advance();
    assert_eq!(green.shows("blue"), Some(state(0..5, 2)));
}

#[test]
fn a_state_of_an_earlier_version_changes_nothing() {
    let (mut blue, mut green) = pair();
    blue.desire(state(0..5, 1));
    talk(1, &mut blue, &mut green);
    blue.version.n -= 2;
    blue.desire(state(0..5, 2));
    talk(1, &mut blue, &mut green);
    assert_eq!(green.shows("blue"), Some(state(0..5, 1)));
}
