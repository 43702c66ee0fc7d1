//! S1: when a leader dials.

use super::*;

#[test]
fn who_cannot_be_reached_is_dialled_less_and_less_often() {
    let mut blue = Side::new("blue", 3, [contact("green", 2, 5)]);
    let mut dials = 0;
    for _ in 0..600 {
        for command in blue.stream.take_commands() {
            if let Command::Dial { cluster, .. } = command {
                dials += 1;
                blue.stream.failed(blue.now, &cluster, String::new());
            }
        }
        blue.wait(Duration::from_secs(1));
    }
    assert!((25..45).contains(&dials), "{dials}");
}

/// A new leader, which may be unable to dial itself.
#[test]
fn who_is_elsewhere_now_is_dialled_at_once() {
    let mut blue = Side::new("blue", 3, [contact("green", 2, 5)]);
    let fails = |blue: &mut Side| {
        let mut dialled = Vec::new();
        for command in blue.stream.take_commands() {
            if let Command::Dial { cluster, addresses, .. } = command {
                dialled.extend_from_slice(&addresses);
                blue.stream.failed(blue.now, &cluster, String::new());
            }
        }
        blue.advance();
        dialled
    };
    for _ in 0..60 {
        fails(&mut blue);
        blue.wait(Duration::from_secs(1));
    }
    fails(&mut blue);
    assert!(fails(&mut blue).is_empty());
    let elsewhere = SocketAddr::from(([10, 0, 0, 9], 7_946));
    blue.contacts.get_mut("green").unwrap().addresses = [elsewhere].into();
    blue.advance();
    assert_eq!(fails(&mut blue), [elsewhere]);
    assert!(fails(&mut blue).is_empty(), "and then as before");
}

#[test]
fn who_is_refused_at_once_dials_less_and_less_often_as_well() {
    let mut blue = Side::new("blue", 3, [contact("green", 2, 5)]);
    let (mut dials, mut session) = (0, 0);
    for _ in 0..600 {
        for command in blue.stream.take_commands() {
            if let Command::Dial { .. } = command {
                (dials, session) = (dials + 1, session + 1);
                blue.open(session, 2, Some("green"));
                let (cluster, uid) = ("green".into(), "uid-green".into());
                let hello = Hello { clusterset: "prod".into(), cluster, uid, epoch: 5, nonce: 5 };
                blue.hear(session, Message::Hello(hello));
                blue.stream.closed(blue.now, SessionId(session));
            }
        }
        blue.wait(Duration::from_secs(1));
    }
    assert!((25..45).contains(&dials), "{dials}");
}

#[test]
fn who_takes_connections_and_says_nothing_is_dialled_less_and_less_often_as_well() {
    let mut blue = Side::new("blue", 3, [contact("green", 2, 5)]);
    let mut dials = 0;
    for _ in 0..2_000 {
        for command in blue.stream.take_commands() {
            if let Command::Dial { .. } = command {
                dials += 1;
                blue.open(dials, 2, Some("green"));
            }
        }
        // No timer fires at the very moment.
        blue.wait(Duration::from_millis(300));
    }
    assert!((20..30).contains(&dials), "{dials}");
}
