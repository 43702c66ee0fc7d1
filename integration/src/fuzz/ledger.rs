//! Heads, signed or not, and the keys that clusters announce.

use std::{sync::Arc, time::Duration};

use cloudmap::{Attributes, Instance};
use ledger::{
    Map,
    codec::{self, Digest},
    hash::{Hashes, StateHash, Summary},
    head::{Delta, FORMAT, Head, MAX_ADDRESSES, MAX_SHARDS, Presence, Root, RootPage, RootRun},
    page::PageId,
    record::{Position, Version},
    trust::{self, Announced, Keys, Rotation, Scope},
};
use model::SigningKey;

use super::{Target, Verdict, fields, holds, same};

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "head",
        corpus: head_bytes,
        words: &["blue", "12-3-abcdef"],
        longest: 6_000,
        quick: 5_000,
        check: bytes,
    },
    Target {
        name: "head-instance",
        corpus: head_instances,
        words: &["v", "c", "d0", "d1", "d7", "d8", "k", "s", "f", "key", "blue", "AAAA", "====", "-_"],
        longest: 12_000,
        quick: 2_000,
        check: instance,
    },
    Target {
        name: "key",
        corpus: keys,
        words: &["k", "r0", "r1", "r12", "f", "key", "AAAA"],
        longest: 8_000,
        quick: 500,
        check: key,
    },
];

const SCOPE: Scope<'_> = Scope { clusterset: "prod", namespace: "ns-0123456789abcdef" };
const CLUSTER: &str = "blue";
const UID: &str = "uid-blue";

fn signing_key(n: u8) -> Option<SigningKey> {
    SigningKey::from_seed(&[n; 32])
}

/// A state of a few kinds of pairs.
pub(super) fn state(pairs: usize) -> Map {
    let value = |n: usize| (0..n % 90).map(|at| (at * 31 + n * 7) as u8).collect::<Vec<u8>>();
    (0..pairs).map(|n| (Arc::from(format!("ns-{}/web-{n}", n % 3)), value(n).into())).collect()
}

fn root_page(n: u8) -> RootPage {
    let id = PageId { flush: format!("12-{n}-0011aabb").into(), number: n.into() };
    RootPage { shard: u32::from(n) % 4, id, digest: Digest([n; 16]) }
}

/// Heads of all forms.
pub(super) fn heads() -> Vec<Head> {
    let hashes = Hashes { state: StateHash([7; 32]), claims: StateHash([9; 32]) };
    let empty = Head {
        cluster: CLUSTER.into(),
        reads: FORMAT,
        uid: UID.into(),
        position: Position { epoch: 3, seq: 300 },
        presence: Presence::Live,
        root: Root::empty(1),
        delta: Arc::default(),
        summary: Summary::default(),
        addresses: Arc::default(),
        lease: Duration::from_mins(5),
        written: 1_700_000_000_000,
        signer: None,
    };
    let runs = [RootRun::Page(root_page(4)), RootRun::Index(root_page(5)), RootRun::Page(root_page(6))];
    let full = Head {
        root: Root { shards: 4, pages: (0..4).map(root_page).collect(), runs: runs.into() },
        delta: Arc::new(Delta::between(&state(3), &state(40), 6)),
        summary: Summary { version: Version { epoch: 3, nonce: u64::MAX, n: 12 }, hashes },
        addresses: [([192, 0, 2, 1], 9443).into(), ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 9443).into()].into(),
        ..empty.clone()
    };
    let stored = Head { delta: Arc::new(Delta::between(&state(9), &state(2), 0)), ..full.clone() };
    let left = Head { presence: Presence::Left { successor: None }, ..empty.clone() };
    let renamed = Head { presence: Presence::Left { successor: Some("green".into()) }, ..full.clone() };
    vec![empty, full, stored, left, renamed]
}

fn head_bytes() -> Vec<Vec<u8>> {
    heads().iter().filter_map(|head| codec::read_data(&head.to_instance().attributes).ok()).collect()
}

/// The instance with these bytes and their checksum: whoever forges a head computes it.
fn with_checksum(bytes: &[u8]) -> Instance {
    let mut attributes = Attributes::from([
        ("v".to_owned(), FORMAT.to_string()),
        ("c".to_owned(), codec::print_digest(Digest::of(bytes))),
    ]);
    codec::write_data(&mut attributes, bytes);
    Instance { id: CLUSTER.into(), attributes }
}

fn bytes(input: &[u8]) -> Verdict {
    read(&with_checksum(input))
}

/// What must hold of an instance that is read as a head.
fn read(instance: &Instance) -> Verdict {
    let Ok(head) = Head::from_instance(instance) else { return Ok(false) };
    let again = Head::from_instance(&head.to_instance()).map_err(|error| format!("written again: {error}"))?;
    same("the head", &head, &again)?;
    holds(head.addresses.len() <= MAX_ADDRESSES, || format!("{} addresses", head.addresses.len()))?;
    holds(head.root.shards <= MAX_SHARDS, || format!("{} shards", head.root.shards))?;
    let pages = head.root.pages.iter().chain(head.root.runs.iter().map(RootRun::page));
    holds(pages.clone().all(|page| page.shard < head.root.shards), || "a page is in no shard".to_owned())?;
    for page in pages {
        same("the id of a page", &Ok(page.id.clone()), &page.id.to_string().parse())?;
    }
    if head.delta.check().is_err() {
        return Ok(false);
    }
    let changes = head.delta.changes();
    let unpacked: usize = changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, |it| it.len())).sum();
    holds(unpacked <= codec::MAX_UNPACKED, || format!("a delta of {unpacked} bytes"))?;
    holds(head.delta.apply(&Map::new()).len() <= changes.len(), || "more pairs than changes".to_owned())?;
    Ok(true)
}

fn head_instances() -> Vec<Vec<u8>> {
    let plain = heads().into_iter().map(|head| head.to_instance());
    let signed = || signing_key(1).map(|key| heads().into_iter().map(move |head| trust::sign(&head, &key, SCOPE)));
    let copies = signed().into_iter().flatten().map(trust::copy).map(|copy| Instance { id: CLUSTER.into(), ..copy });
    plain.chain(signed().into_iter().flatten()).chain(copies).map(|it| fields::of_instance(&it)).collect()
}

fn instance(input: &[u8]) -> Verdict {
    let instance = fields::instance(input);
    let accepted = read(&instance)?;
    if let Ok(head) = Head::from_instance(&instance)
        && let Some(signer) = trust::signer(&instance.attributes, &head, SCOPE)
    {
        // The seed of no other key is in the corpus.
        same("the signer", &signing_key(1).map(|key| key.public()), &Some(signer))?;
        let genuine = heads().into_iter().any(|one| one == head);
        holds(genuine, || format!("a signature of something else: {head:?}"))?;
        let copy = trust::read_copy(&trust::copy(instance), CLUSTER, SCOPE);
        same("the copy", &Some(Head { signer: Some(signer), ..head }), &copy)?;
    }
    Ok(accepted)
}

/// What clusters announce that have rotated their key so often.
fn keys() -> Vec<Vec<u8>> {
    let announce = |rotations: u8| {
        let mut keys = Keys { current: signing_key(0)?, former: Vec::new() };
        for n in 1..=rotations {
            keys = Keys::read(&keys.rotated(UID, [n; 32])?).ok()?;
        }
        Some(fields::of_instance(&keys.to_instance()))
    };
    [0, 1, 2, 20].into_iter().filter_map(announce).collect()
}

fn key(input: &[u8]) -> Verdict {
    let instance = fields::instance(input);
    for text in instance.attributes.values() {
        if let Some(rotation) = Rotation::decode(text) {
            same("the rotation", &Some(rotation), &Rotation::decode(&rotation.encode()))?;
        }
    }
    let Some(announced) = Announced::from_instance(&instance, UID) else { return Ok(false) };
    holds(announced.former.len() <= 12, || format!("{} former keys", announced.former.len()))?;
    // Nobody without the former keys can say that they handed over.
    let known: Vec<_> = (0..=20).filter_map(signing_key).map(|key| key.public()).collect();
    holds(announced.former.iter().all(|key| known.contains(key)), || "a key that handed over to nobody".to_owned())?;
    Ok(true)
}
