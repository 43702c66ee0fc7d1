//! Two leaders, or three, whose messages are handed on by the tests.

mod dialling;
mod order;

use super::*;
use crate::{
    Value,
    hash::{Hashed, Hashes},
    limits::MAX_PAIRS,
    record::{Position, Version},
};

fn key(n: u8) -> PublicKey {
    PublicKey::from_bytes([n; 32])
}

fn owner(cluster: &str) -> WriterIdentity {
    WriterIdentity { clusterset: "prod".into(), cluster: cluster.into(), uid: format!("uid-{cluster}").into() }
}

fn state(keys: std::ops::Range<u32>, value: u8) -> Arc<Map> {
    Arc::new(keys.map(|key| (format!("ns/{key:05}").into(), Value::from([value; 100]))).collect())
}

/// What a head says that has this version.
fn said(version: Option<Version>) -> Option<Summary> {
    version.map(|version| Summary { version, ..Summary::default() })
}

/// One side: a stream, what it says, and what it knows of the other side.
struct Side {
    stream: Stream,
    hashed: Hashed,
    version: Version,
    contacts: BTreeMap<Arc<str>, Contact>,
    now: Duration,
}

fn contact(cluster: &str, n: u8, epoch: u64) -> (Arc<str>, Contact) {
    let contact = Contact {
        uid: format!("uid-{cluster}").into(),
        key: Some(key(n)),
        live: true,
        refused: false,
        dropped: false,
        position: Position { epoch, seq: 1 },
        head: None,
        silent: false,
        summary: None,
        state: None,
        addresses: [SocketAddr::from(([10, 0, 0, n], 7_946))].into(),
    };
    (cluster.into(), contact)
}

impl Side {
    fn new(cluster: &str, epoch: u64, contacts: impl IntoIterator<Item = (Arc<str>, Contact)>) -> Self {
        let mut side = Self {
            stream: Stream::new(owner(cluster), Timing::default(), Ids::new(epoch)),
            hashed: Hashed::new(owner(cluster)),
            version: Version { epoch, nonce: epoch, n: 1 },
            contacts: contacts.into_iter().collect(),
            now: Duration::from_secs(1),
        };
        side.stream.restore(side.now, None, &BTreeMap::new());
        side.advance();
        side
    }

    fn advance(&mut self) {
        let summary = Summary { version: self.version, hashes: self.hashed.hashes() };
        let said = OwnState { hashed: &self.hashed, diff: None, summary };
        self.stream.advance(self.now, Some((self.version.epoch, self.version.nonce)), Some(said), &self.contacts);
    }

    fn desire(&mut self, map: Arc<Map>) {
        self.hashed.set(map);
        self.version.n += 1;
        self.advance();
    }

    fn open(&mut self, session: u64, n: u8, dialled: Option<&str>) {
        self.stream.opened(self.now, SessionId(session), key(n), dialled.map(Arc::from).as_ref());
        self.advance();
    }

    fn hear(&mut self, session: u64, message: Message) {
        self.stream.received(self.now, SessionId(session), message, &self.contacts);
        self.advance();
    }

    /// The messages for the socket, which takes each at once, and whether the session was closed.
    fn says(&mut self, session: u64) -> (Vec<Message>, bool) {
        let (mut said, mut closed) = (Vec::new(), false);
        loop {
            let commands = self.stream.take_commands();
            if commands.is_empty() {
                return (said, closed);
            }
            for command in commands {
                match command {
                    Command::Send { session: to, message } if to.0 == session => {
                        said.push(Message::decode(&message.encode()).unwrap());
                        self.stream.taken(self.now, to, None);
                    }
                    Command::Close { session: it, .. } if it.0 == session => closed = true,
                    _ => {}
                }
            }
            self.advance();
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.advance();
    }

    fn shows(&self, cluster: &str) -> Option<Arc<Map>> {
        self.stream.ahead.map(cluster).cloned()
    }
}

/// Hands on what both say until nobody says anything.
fn talk(session: u64, one: &mut Side, other: &mut Side) {
    loop {
        let (mine, theirs) = (one.says(session).0, other.says(session).0);
        if mine.is_empty() && theirs.is_empty() {
            return;
        }
        for message in mine {
            other.hear(session, message);
        }
        for message in theirs {
            one.hear(session, message);
        }
    }
}

/// Blue has dialled green.
fn pair() -> (Side, Side) {
    let mut blue = Side::new("blue", 3, [contact("green", 2, 5)]);
    let mut green = Side::new("green", 5, [contact("blue", 1, 3)]);
    blue.open(1, 2, Some("green"));
    green.open(1, 1, None);
    (blue, green)
}

#[test]
fn leaders_say_their_states_to_each_other_over_one_connection_and_then_what_changes() {
    let (mut blue, mut green) = pair();
    blue.desire(state(0..3_000, 1));
    green.desire(state(0..10, 1));
    talk(1, &mut blue, &mut green);
    assert_eq!((green.shows("blue"), blue.shows("green")), (Some(state(0..3_000, 1)), Some(state(0..10, 1))));
    let mut map = Map::clone(&state(0..3_000, 1));
    map.insert("ns/00007".into(), Value::from([9; 9]));
    map.remove("ns/00008");
    blue.desire(Arc::new(map.clone()));
    let said = blue.says(1).0;
    assert!(matches!(&said[..], [Message::Changes { changes, end: Some(_) }] if changes.len() == 2), "{said:?}");
    for message in said {
        green.hear(1, message);
    }
    assert_eq!(green.shows("blue"), Some(Arc::new(map)));
}

#[test]
fn a_subscriber_is_told_only_the_buckets_that_it_does_not_have() {
    let (mut blue, mut green) = pair();
    let known = state(0..3_000, 1);
    let theirs = green.contacts.get_mut("blue").unwrap();
    theirs.state = Some(known.clone());
    theirs.summary =
        Some(Summary { version: Version { epoch: 3, nonce: 3, n: 1 }, hashes: Hashes::of(&owner("blue"), &known) });
    let mut map = Map::clone(&known);
    map.insert("ns/00007".into(), Value::from([9; 9]));
    blue.desire(Arc::new(map.clone()));
    let mut told = 0;
    for _ in 0..6 {
        for message in blue.says(1).0 {
            told += if let Message::Changes { changes, .. } = &message { changes.len() } else { 0 };
            green.hear(1, message);
        }
        for message in green.says(1).0 {
            blue.hear(1, message);
        }
    }
    assert_eq!(green.shows("blue"), Some(Arc::new(map)));
    assert!((1..40).contains(&told), "{told}");
}

#[test]
fn nothing_applies_before_it_is_whole_nor_with_another_hash() {
    let (mut blue, mut green) = pair();
    talk(1, &mut blue, &mut green);
    blue.desire(state(0..2_000, 1));
    let said = blue.says(1).0;
    assert!(said.len() > 3);
    let (last, first) = said.split_last().unwrap();
    for message in first {
        green.hear(1, message.clone());
        assert!(green.shows("blue").is_none_or(|map| map.is_empty()));
    }
    // One of them is missing from what the last one ends.
    let Message::Changes { changes, end } = last.clone() else { panic!("{last:?}") };
    green.hear(1, Message::Changes { changes: changes[1..].to_vec(), end });
    assert!(green.shows("blue").is_none_or(|map| map.is_empty()));
    assert!(green.says(1).1, "the session ends");
    // And for minutes nothing of it is listened to.
    green.open(2, 1, None);
    let hello = Hello { clusterset: "prod".into(), cluster: "blue".into(), uid: "uid-blue".into(), epoch: 3, nonce: 3 };
    green.hear(2, Message::Hello(hello));
    assert!(!green.says(2).0.iter().any(|message| matches!(message, Message::Subscribe { .. })));
}

#[test]
fn a_state_may_be_too_large_while_it_changes_and_not_when_it_is_whole() {
    let value = || Some(Value::from([1]));
    let full = state(0..MAX_PAIRS as u32, 1);
    let mut next = Map::clone(&full);
    next.insert("a".into(), Value::from([1]));
    next.remove("ns/00000");
    let hashes = Hashes::of(&owner("blue"), &Arc::new(next));
    let whole = Some(Summary { hashes, ..Summary::default() });
    let mut following = Following::new(owner("blue"), full);
    assert_eq!(following.change(vec![("a".into(), value()), ("ns/00000".into(), None)], whole), Ok(()));
    assert_eq!(following.change(vec![("b".into(), value())], None), Ok(()));
    assert_eq!(following.change(Vec::new(), whole), Err("the state is larger than a cluster's may be"));
    // Nor is it ever larger than that by much.
    let mut following = Following::new(owner("blue"), Arc::default());
    let large = Value::from(vec![1; 1 << 20]);
    let flood = (0..65).map(|n| (format!("ns/{n}").into(), Some(large.clone()))).collect();
    assert!(following.change(flood, None).is_err());
}

#[test]
fn nobody_is_another_cluster_than_its_key_and_no_leader_that_was_replaced_is_listened_to() {
    let hello = |cluster: &str, uid: &str, epoch| {
        Message::Hello(Hello { clusterset: "prod".into(), cluster: cluster.into(), uid: uid.into(), epoch, nonce: 1 })
    };
    let green = || Side::new("green", 5, [contact("blue", 1, 3), contact("red", 3, 1)]);
    let refused = |n, dialled: Option<&str>, message: Message| {
        let mut green = green();
        green.open(1, n, dialled);
        green.hear(1, message);
        green.says(1).1
    };
    assert!(!refused(1, None, hello("blue", "uid-blue", 3)));
    assert!(!refused(1, Some("blue"), hello("blue", "uid-blue", 4)), "its next leader, before its head is visible");
    assert!(refused(3, None, hello("blue", "uid-blue", 3)), "another member");
    assert!(refused(1, None, hello("blue", "uid-other", 3)));
    assert!(refused(1, None, hello("blue", "uid-blue", 2)), "a former leader");
    assert!(refused(3, Some("blue"), hello("red", "uid-red", 1)), "not whom it dialled");
    assert!(refused(9, None, hello("pink", "uid-pink", 1)), "no member");
    assert!(refused(1, None, Message::Alive), "who does not say who it is");
    let Message::Hello(elsewhere) = hello("blue", "uid-blue", 3) else { panic!() };
    assert!(refused(1, None, Message::Hello(Hello { clusterset: "test".into(), ..elsewhere })));
}

#[test]
fn a_key_that_does_not_count_any_more_and_a_later_head_end_a_session() {
    for change in [
        (|contact| contact.key = Some(key(7))) as fn(&mut Contact),
        |contact| contact.live = false,
        |contact| contact.position.epoch = 4,
        |contact| contact.uid = "uid-other".into(),
    ] {
        let (mut blue, mut green) = pair();
        talk(1, &mut blue, &mut green);
        assert!(!green.says(1).1);
        change(green.contacts.get_mut("blue").unwrap());
        green.advance();
        assert!(green.says(1).1);
    }
}

#[test]
fn a_later_leader_takes_the_place_of_the_one_before() {
    let (mut blue, mut green) = pair();
    blue.desire(state(0..5, 1));
    talk(1, &mut blue, &mut green);
    let mut next = Side::new("blue", 4, [contact("green", 2, 5)]);
    next.open(2, 2, Some("green"));
    green.open(2, 1, None);
    next.desire(state(0..5, 2));
    for message in next.says(2).0 {
        green.hear(2, message);
    }
    assert_eq!(green.stream.sessions.len(), 1);
    talk(2, &mut next, &mut green);
    assert_eq!(green.shows("blue"), Some(state(0..5, 2)));
}

#[test]
fn who_is_silent_or_takes_nothing_is_gone_and_who_is_there_says_so() {
    let (mut blue, mut green) = pair();
    talk(1, &mut blue, &mut green);
    for _ in 0..20 {
        blue.wait(Duration::from_secs(2));
        green.wait(Duration::from_secs(2));
        talk(1, &mut blue, &mut green);
    }
    assert_eq!(green.stream.connected().count(), 1);
    // Green hears nothing any more.
    for _ in 0..6 {
        green.wait(Duration::from_secs(2));
        if green.says(1).1 {
            break;
        }
    }
    assert_eq!(green.stream.connected().count(), 0);
    // What blue says stays in its socket.
    blue.wait(Duration::from_secs(2));
    let sent = blue.stream.take_commands();
    assert!(sent.iter().any(|command| matches!(command, Command::Send { .. })));
    for _ in 0..6 {
        blue.hear(1, Message::Alive);
        blue.wait(Duration::from_secs(2));
    }
    assert_eq!(blue.stream.connected().count(), 0);
}

/// As where large packets are lost, or a firewall ends what it let begin.
#[test]
fn who_says_who_it_is_and_no_whole_state_is_not_connected_and_why_is_said() {
    fn why(side: &Side) -> Option<&str> {
        side.stream.unreachable().get("green").map(String::as_str)
    }
    for closes in [false, true] {
        let (mut blue, mut green) = pair();
        let hello = green.says(1).0;
        assert!(matches!(&hello[..], [Message::Hello(_)]), "{hello:?}");
        for session in 1..4 {
            if session > 1 {
                blue.open(session, 2, Some("green"));
            }
            blue.hear(session, hello[0].clone());
            assert_eq!(blue.stream.connected().count(), 0);
            // One side hears the other, which hears nothing, and ends the connection.
            for _ in 0..11 {
                blue.wait(Duration::from_secs(1));
                if closes {
                    blue.says(session);
                    blue.hear(session, Message::Alive);
                }
            }
            blue.stream.closed(blue.now, SessionId(session));
            blue.advance();
            assert_eq!(why(&blue), Some(CUT), "closes: {closes}");
        }
        green.stream.closed(green.now, SessionId(1));
        blue.open(4, 2, Some("green"));
        green.open(4, 1, None);
        assert_eq!(why(&blue), Some(CUT), "it is not better yet");
        // Nobody exports anything.
        talk(4, &mut blue, &mut green);
        assert_eq!((blue.stream.connected().count(), why(&blue)), (1, None));
    }
}

#[test]
fn a_leader_that_ends_is_no_failed_attempt_of_any_of_its_sessions() {
    let (mut blue, mut green) = pair();
    talk(1, &mut blue, &mut green);
    // Both have dialled each other.
    green.open(2, 1, Some("blue"));
    blue.open(2, 2, None);
    talk(2, &mut blue, &mut green);
    for _ in 0..30 {
        for side in [&mut blue, &mut green] {
            side.wait(Duration::from_secs(1));
            for session in [1, 2] {
                side.stream.taken(side.now, SessionId(session), None);
                side.hear(session, Message::Alive);
            }
        }
    }
    assert_eq!(blue.stream.sessions.len(), 2);
    for session in [1, 2] {
        blue.stream.closed(blue.now, SessionId(session));
        blue.advance();
    }
    assert_eq!((blue.stream.connected().count(), blue.stream.unreachable().len()), (0, 0));
}

#[test]
fn what_says_nothing_new_needs_no_look_at_all_clusters() {
    let (mut blue, mut green) = pair();
    talk(1, &mut blue, &mut green);
    blue.wait(Duration::from_secs(1));
    let alive = Command::Send { session: SessionId(1), message: Arc::new(Message::Alive) };
    assert_eq!(blue.stream.take_commands(), [alive]);
    let mut summary = Summary { version: blue.version, hashes: blue.hashed.hashes() };
    let next = blue.stream.taken(blue.now, SessionId(1), Some(OwnState { hashed: &blue.hashed, diff: None, summary }));
    assert_eq!(next, Some(blue.now + Duration::from_secs(1)), "the next sign of life");
    assert!(blue.stream.alive(blue.now, SessionId(1)));
    summary.version.n += 1;
    assert_eq!(
        blue.stream.taken(blue.now, SessionId(1), Some(OwnState { hashed: &blue.hashed, diff: None, summary })),
        None
    );
    blue.now += Duration::from_secs(3);
    assert!(!blue.stream.alive(blue.now, SessionId(1)), "it was late, so that the heads were read often");
}

#[test]
fn signs_of_life_that_are_due_soon_go_together() {
    let mut blue = Side::new("blue", 3, [contact("green", 2, 5), contact("red", 3, 5)]);
    for session in [1, 2] {
        blue.open(session, 1 + session as u8, None);
        blue.says(session);
        blue.wait(Duration::from_millis(50));
    }
    blue.wait(Duration::from_millis(900));
    let alive = |session| Command::Send { session: SessionId(session), message: Arc::new(Message::Alive) };
    assert_eq!(blue.stream.take_commands(), [alive(1), alive(2)]);
}
