//! The ledger: how clusters tell each other what they export, through Cloud Map alone.

use std::{collections::BTreeMap, sync::Arc};

/// The state of one cluster as the ledger carries it: opaque values under keys. `<ns>/<name>` is an export,
/// `<ns>/<name>#<i>` a chunk of its endpoints, `!<id>` a registration record.
pub type Map = BTreeMap<Arc<str>, Value>;

/// An encoded record.
pub type Value = Arc<[u8]>;
