//! The pairs that say where a cluster registers. The ledger hashes them apart ([`crate::hash`]), looks for them in a state that
//! it cannot read whole (W2), and finds them in the record of a cluster that was in no ClusterSet.
//!
//! | key | value |
//! |---|---|
//! | `!<id>` | [`Claim`] that holds its target; the id is a short hash of the target |
//! | `~<id>` | [`Claim`] that waits until another owner of this cluster releases the target; the id is a short hash of both |

use std::sync::Arc;

use prost::Message as _;
use sha2::{Digest as _, Sha256};

pub use super::wire::{Claim, Target};
use super::{Map, Value, capped};
use crate::record::StoredRegistration;

/// Begins the key of a claim that holds its target.
pub const HOLDS: &str = "!";
/// Begins the key of a claim that waits.
pub const WAITS: &str = "~";

/// Whether a pair with this key is a claim.
pub fn is_claim(key: &str) -> bool {
    key.starts_with(HOLDS) || key.starts_with(WAITS)
}

/// The key of a claim to a target, by its Cloud Map namespace and service.
pub fn key(namespace: &str, service: &str) -> Arc<str> {
    hashed(HOLDS, &[namespace, service])
}

/// The key of a claim that waits, with kind, namespace and name of its owner.
pub fn waiting_key(namespace: &str, service: &str, [kind, owner_namespace, name]: [&str; 3]) -> Arc<str> {
    hashed(WAITS, &[namespace, service, kind, owner_namespace, name])
}

fn hashed(begin: &str, parts: &[&str]) -> Arc<str> {
    let digest = Sha256::digest(parts.join("\0"));
    digest[..8].iter().fold(begin.to_owned(), |id, byte| format!("{id}{byte:02x}")).into()
}

/// The values of a map whose keys begin so: those of all claims that hold ([`HOLDS`]), or wait ([`WAITS`]).
pub fn values<'a>(map: &'a Map, begin: &'static str) -> impl Iterator<Item = &'a Value> {
    map.range_from(begin).take_while(move |(key, _)| key.starts_with(begin)).map(|(_, value)| value)
}

impl Claim {
    /// The claim in a value; `None` if it is unreadable.
    pub fn read(value: &[u8]) -> Option<Self> {
        Self::decode(capped(value)?).ok()
    }
}

/// The claims of a map, as the record of a cluster in no ClusterSet keeps them.
pub(super) fn stored(map: &Map) -> Vec<StoredRegistration> {
    let stored = |begin| {
        values(map, begin).filter_map(move |value| {
            let Claim { target, owner_kind, owner_namespace, owner_name, claimed, retiring, empty: _, unable } =
                Claim::read(value)?;
            let Target { namespace, service } = target?;
            let owner = [owner_kind, owner_namespace, owner_name];
            let (retiring, waiting) = (retiring && !unable, begin == WAITS);
            Some(StoredRegistration { namespace, service, owner, claimed, retiring, unable, waiting })
        })
    };
    let mut held: Vec<_> = stored(HOLDS).collect();
    held.sort_by(|a, b| (&a.namespace, &a.service).cmp(&(&b.namespace, &b.service)));
    held.into_iter().chain(stored(WAITS)).collect()
}

/// The map of claims that a record keeps.
pub(super) fn of_stored(stored: &[StoredRegistration]) -> Map {
    stored.iter().filter_map(pair).collect()
}

pub(super) fn pair(stored: &StoredRegistration) -> Option<(Arc<str>, Value)> {
    let StoredRegistration { namespace, service, owner, claimed, retiring, unable, waiting } = stored.clone();
    let key = if waiting {
        waiting_key(&namespace, &service, owner.each_ref().map(String::as_str))
    } else {
        key(&namespace, &service)
    };
    let [owner_kind, owner_namespace, owner_name] = owner;
    let claim = Claim {
        target: Some(Target { namespace, service }),
        owner_kind,
        owner_namespace,
        owner_name,
        claimed,
        retiring: retiring || unable,
        empty: false,
        unable,
    };
    // Names of namespaces and services are bounded (cloudmap limits), so that the claim always fits.
    Some((key, capped(&claim.encode_to_vec())?.into()))
}
