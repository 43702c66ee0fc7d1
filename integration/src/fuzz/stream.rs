//! What leaders say to each other.

use std::collections::BTreeSet;

use ledger::{
    hash::{BUCKETS, Hashes, StateHash, Summary},
    head::Change,
    record::Version,
    stream::message::{Hello, MAX_FRAME, Message},
};

use super::{Target, Verdict, holds, ledger::state, same};

pub(super) const TARGETS: &[Target] = &[Target {
    name: "message",
    corpus: messages,
    words: &["prod", "blue", "uid-blue", "ns/web"],
    longest: MAX_FRAME + 100,
    quick: 5_000,
    check: message,
}];

fn messages() -> Vec<Vec<u8>> {
    let [clusterset, cluster, uid] = ["prod", "blue", "uid-blue"].map(Into::into);
    let hashes = Hashes { state: StateHash([1; 32]), claims: StateHash([2; 32]) };
    let end = Some(Summary { version: Version { epoch: 1, nonce: u64::MAX, n: 3 }, hashes });
    let (before, now) = (state(9), state(40));
    let changes: Vec<Change> = before.difference(&now).map(|(key, _, value)| (key.clone(), value.cloned())).collect();
    let gone: Vec<Change> = now.difference(&before).map(|(key, _, value)| (key.clone(), value.cloned())).collect();
    [
        Message::Hello(Hello { clusterset, cluster, uid, epoch: 1, nonce: 7 }),
        Message::Subscribe { buckets: (0..40).map(|number| (number * 25, StateHash([number as u8; 32]))).collect() },
        Message::Subscribe { buckets: Vec::new() },
        Message::Replace { buckets: (0..BUCKETS).step_by(3).collect() },
        Message::Changes { changes, end },
        Message::Changes { changes: gone, end: None },
        Message::Alive,
    ]
    .iter()
    .map(Message::encode)
    .collect()
}

fn message(input: &[u8]) -> Verdict {
    let Ok(message) = Message::decode(input) else { return Ok(false) };
    holds(input.len() <= MAX_FRAME, || "it is too long".to_owned())?;
    let numbers: Vec<u16> = match &message {
        Message::Subscribe { buckets } => buckets.iter().map(|(number, _)| *number).collect(),
        Message::Replace { buckets } => buckets.clone(),
        _ => Vec::new(),
    };
    // Each makes the receiver look through all keys of the bucket.
    let different: BTreeSet<&u16> = numbers.iter().collect();
    holds(different.len() == numbers.len(), || {
        format!("{} buckets, {} of them different", numbers.len(), different.len())
    })?;
    let written = message.encode();
    if written.len() <= MAX_FRAME {
        same("the message", &Ok(message), &Message::decode(&written))?;
    }
    Ok(true)
}
