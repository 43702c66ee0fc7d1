//! What a cluster must remember outside of Cloud Map, as Kubernetes objects: the [record](ledger::record) of the
//! ledger, and one of [hidden tasks](hidden).

mod config_map;
pub mod hidden;
mod json;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a fake fails by panicking")]
pub mod memory;

pub use config_map::{RECORD, RecordObject};
pub use hidden::{HIDDEN, Hidden, HiddenObject, HiddenStore};
