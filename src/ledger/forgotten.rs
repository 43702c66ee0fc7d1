//! What a cluster says of another one that is gone for good (R6). Nobody can sign for a dead cluster, so that cluster's
//! own head cannot say it: a person says it in a living one, which publishes and signs it with its own state.

use std::{collections::BTreeMap, sync::Arc};

use prost::Message as _;

use super::{Map, Value, capped, wire};
use crate::record::{Accepted, Gone, Position};

/// Begins the key of such a statement; the id of the cluster follows.
const PREFIX: char = '^';

/// Of which cluster with this UID nothing after this position is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgotten {
    /// Its UID.
    pub uid: String,
    /// Its last position.
    pub position: Position,
}

impl Forgotten {
    /// Whether it is about the cluster with this UID, which has said nothing after this position.
    pub fn is_about(&self, uid: &str, position: Position) -> bool {
        self.uid == uid && self.position >= position
    }

    /// The statement in a value; `None` if it is unreadable.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let wire::Forgotten { uid, epoch, seq } = wire::Forgotten::decode(capped(value)?).ok()?;
        Some(Self { uid, position: Position { epoch, seq } })
    }

    fn encode(&self) -> Value {
        let Position { epoch, seq } = self.position;
        wire::Forgotten { uid: self.uid.clone(), epoch, seq }.encode_to_vec().into()
    }
}

/// The key of what is said of a cluster.
pub fn key(cluster: &str) -> Arc<str> {
    format!("{PREFIX}{cluster}").into()
}

/// The id of the cluster, if this is such a key.
pub fn cluster_of(key: &str) -> Option<&str> {
    key.strip_prefix(PREFIX)
}

/// What the state says of a cluster.
pub fn of(map: &Map, cluster: &str) -> Option<Forgotten> {
    Forgotten::decode(map.get(&*key(cluster))?)
}

/// `map` with a statement for each cluster that a person said to be gone.
pub(super) fn with(map: &Arc<Map>, accepted: &BTreeMap<String, Accepted>) -> Arc<Map> {
    let said = accepted.iter().filter(|(_, accepted)| accepted.gone == Some(Gone::Forgotten));
    let said: Vec<_> = said
        .map(|(id, Accepted { uid, position, .. })| {
            (key(id), Forgotten { uid: uid.clone(), position: *position }.encode())
        })
        .collect();
    if said.is_empty() {
        return map.clone();
    }
    let mut map = Map::clone(map);
    map.extend(said);
    Arc::new(map)
}

/// `map` without them. A leader says again what the record says, and nothing of what its predecessor said: a cluster that came
/// back is not gone any more, and one that leaves says nothing.
pub(super) fn without(map: Arc<Map>) -> Arc<Map> {
    if !map.keys().any(|key| cluster_of(key).is_some()) {
        return map;
    }
    let rest = map.iter().filter(|(key, _)| cluster_of(key).is_none());
    Arc::new(rest.map(|(key, value)| (key.clone(), value.clone())).collect())
}
