//! What a cluster must remember outside of Cloud Map, as Kubernetes objects: the [record](crate::ledger::record) of the
//! ledger, and one of [hidden tasks](hidden).

mod config_map;
pub mod hidden;
mod json;
#[cfg(test)]
pub(crate) mod memory;

pub use config_map::{RECORD, RecordObject};
pub use hidden::{HIDDEN, Hidden, HiddenObject, HiddenStore};
